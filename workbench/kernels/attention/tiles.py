"""Which tiles attention visits, and which pairs of a query and a key its mask lets through, written down."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, check_type
from workbench.kernels.attention import attention_kernel, visits_of
from workbench.kernels.tile import scores
from workbench.launch import Launch, Step


@triton.jit
def attention_tiles_kernel(
    # pointers: of each tile of queries the bounds of its visits; of each query which keys it sees
    bounds_of, seen_by,
    # sizes, and which head
    queries, keys, batch, head,
    # as of `attention.attention_kernel`
    left, right, shift, mask_extra, visits,
    # meta-parameters: as there; COLS, a power of two of no fewer than all keys
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLS: tl.constexpr, RULES: tl.constexpr,
    FROM_END: tl.constexpr, VISITS: tl.constexpr,
):  # fmt: skip
    """One tile of queries, by the tile operators that `attention.attention_kernel` asks."""
    tile = tl.program_id(0)
    row = tile * BLOCK_M
    if FROM_END:
        shift += keys - queries
    if VISITS:
        bounds, _ = visits_of(visits, batch, head, tile)
    else:
        last = min(row + BLOCK_M - 1, queries - 1)
        bounds = scores.tiles_of_window(
            row, last, keys, left, right, shift, BLOCK_N, RULES.ends_left, RULES.ends_right
        )
    for number in tl.static_range(4):
        tl.store(bounds_of + tile * 4 + number, bounds[number])
    query, key = row + tl.arange(0, BLOCK_M)[:, None], tl.arange(0, COLS)[None, :]
    seen = (query < queries) & scores.sees(
        query, key, keys, left, right, shift, RULES.ends_left, RULES.ends_right
    )
    MASK: tl.constexpr = RULES.mask
    if len(MASK) > 0:
        # What the mask is asked of goes no farther than the last tile, as in attention.
        end = tl.cdiv(keys, BLOCK_N) * BLOCK_N
        seen = seen & scores.of_mask(batch, head, query, tl.minimum(key, end - 1), mask_extra, MASK[0])
    tl.store(seen_by + query * keys + key, seen.to(tl.int8), mask=(query < queries) & (key < keys))


def step_of(launch: Launch) -> Step:
    """The step of `attention_kernel`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `launch` is none of `attention.launch`, or one whose programs
            share keys or have rows of several heads.
    """
    fix = "Give attention.launch(query, key, value, scoring, splits=1), with queries and keys."
    check_type("launch", launch, Launch, fix)
    found = [step for step in launch.steps if step.kernel is attention_kernel]
    if len(found) != 1:
        raise InvalidArgumentError("launch", f"got {launch!r}", fix)
    given = found[0].arguments()
    if given["SPLITS"] > 1:
        raise InvalidArgumentError("launch", f"its keys are shared by {given['SPLITS']} programs", fix)
    if given["packed"] > 1:
        given_rows = f"a tile has rows of {given['packed']} heads"
        raise InvalidArgumentError("launch", given_rows, "Give a head of keys for each of queries.")
    if given["RAGGED"]:
        fix = "Give a sequence of its own, without starts."
        raise InvalidArgumentError("launch", "its sequences lie one after another", fix)
    return found[0]


def check_head(given: Mapping[str, Any], batch: int, head: int) -> None:
    """Refuse a head that there is not; `given` are arguments of `attention_kernel`."""
    for name, number, count in (
        ("batch", batch, given["query"].shape[0]),
        ("head", head, given["heads"]),
    ):
        check_type(name, number, int, "Give its number.")
        if not 0 <= number < count:
            raise InvalidArgumentError(name, f"got {number}", f"Give a number from 0 to {count - 1}.")


def launch(attention_launch: Launch, *, batch: int = 0, head: int = 0) -> Launch:
    """Which tiles of keys the programs of one head visit, and which keys its queries see.

    It asks what the kernel asks, in the same words: `scores.tiles_of_window` or, where there is a mask, the
    list of `attention.visits_launch`; `scores.sees` and the mask itself.

    Args:
        attention_launch: of `attention.launch`; one program a tile of queries.
        batch, head: which.

    Returns:
        a launch with the outputs bounds, int32 [tiles of queries, 4], see `scores.tiles_of_window`; seen,
        int8 [queries, keys]; and, where the bounds count places of a list, that: int32, see
        `attention.visits_of`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: see :func:`step_of`; or there is no such head.
    """
    step = step_of(attention_launch)
    given = step.arguments()
    check_head(given, batch, head)
    queries, keys, visits = given["queries"], given["keys"], given["visits"]
    device = given["log_sums"].device
    bounds = torch.empty(triton.cdiv(queries, given["BLOCK_M"]), 4, dtype=torch.int32, device=device)
    seen = torch.empty(queries, keys, dtype=torch.int8, device=device)
    asked = Step(
        attention_tiles_kernel, (len(bounds),),
        (
            bounds, seen, queries, keys, batch, head, given["left"], given["right"], given["shift"],
            given["mask_extra"], visits,
        ),
        {
            **{name: given[name] for name in ("BLOCK_M", "BLOCK_N", "RULES", "FROM_END", "VISITS")},
            "COLS": triton.next_power_of_2(max(keys, 1)), "num_warps": 4,
        },
    )  # fmt: skip
    before = attention_launch.steps[: attention_launch.steps.index(step)]
    return Launch((*before, asked), (bounds, seen, *visits[:1]), workspaces=visits[:1])
