"""Records of the tiles that attention visits, and of the pairs of a query and a key that are seen."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, check_type
from workbench.kernels.attention import attention_kernel, visit_bounds
from workbench.kernels.tile import scores
from workbench.launch import Launch, Step


@triton.jit
def attention_tiles_kernel(
    # pointers: the bounds of each tile's visits, [tiles of queries, 4]; whether a query sees a key, [queries,
    # keys]
    bounds_of, seen_by,
    # sizes; the batch and the head
    queries, keys, batch, head,
    # as in `attention.attention_kernel`
    left, right, shift, mask_extra, visits,
    # meta-parameters: as there; COLS, the keys rounded up to a power of two
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLS: tl.constexpr, RULES: tl.constexpr,
    FROM_END: tl.constexpr, VISITS: tl.constexpr,
):  # fmt: skip
    """Record the visits of one tile of queries, and the keys that its queries see."""
    tile = tl.program_id(0)
    row = tile * BLOCK_M
    if FROM_END:
        shift += keys - queries
    last = min(row + BLOCK_M - 1, queries - 1)
    bounds, _ = visit_bounds(
        visits, batch, head, tile, row, last, keys, left, right, shift, BLOCK_N, RULES.ends_left,
        RULES.ends_right, VISITS,
    )  # fmt: skip
    for number in tl.static_range(4):
        tl.store(bounds_of + tile * 4 + number, bounds[number])
    query, key = row + tl.arange(0, BLOCK_M)[:, None], tl.arange(0, COLS)[None, :]
    seen = (query < queries) & scores.sees(
        query, key, keys, left, right, shift, RULES.ends_left, RULES.ends_right
    )
    MASK: tl.constexpr = RULES.mask
    if len(MASK) > 0:
        # As in attention, the mask is never evaluated beyond the last tile of keys.
        end = tl.cdiv(keys, BLOCK_N) * BLOCK_N
        seen = seen & scores.of_mask(batch, head, query, tl.minimum(key, end - 1), mask_extra, MASK[0])
    tl.store(seen_by + query * keys + key, seen.to(tl.int8), mask=(query < queries) & (key < keys))


def step_of(attention_launch: Launch) -> Step:
    """Return the step of `attention_kernel` in a launch.

    Raises:
        ArgumentTypeError: `attention_launch` is not a launch.
        InvalidArgumentError: `attention_launch` has no step of `attention_kernel`; or its programs share keys
            or have rows of several heads, or its sequences are concatenated.
    """
    fix = "Give attention.launch(query, key, value, scoring, splits=1), with queries, and without hopper=."
    check_type("attention_launch", attention_launch, Launch, fix)
    found = [step for step in attention_launch.steps if step.kernel is attention_kernel]
    if len(found) != 1:
        raise InvalidArgumentError("attention_launch", f"got {attention_launch!r}", fix)
    given = found[0].arguments()
    if given["SPLITS"] > 1:
        words = f"its keys are shared by {given['SPLITS']} programs"
        raise InvalidArgumentError("attention_launch", words, "Give attention.launch(..., splits=1).")
    if given["packed"] > 1:
        words = f"a tile has rows of {given['packed']} heads"
        fix = "Give a head of keys for each head of queries."
        raise InvalidArgumentError("attention_launch", words, fix)
    if given["RAGGED"]:
        fix = "Give a launch of one sequence, without starts."
        raise InvalidArgumentError("attention_launch", "its sequences are concatenated", fix)
    return found[0]


def check_head(given: Mapping[str, Any], batch: int, head: int) -> None:
    """Raise unless the batch and the head exist; `given` are the arguments of `attention_kernel`, by name."""
    for name, number, count in (
        ("batch", batch, given["query"].shape[0]),
        ("head", head, given["heads"]),
    ):
        check_type(name, number, int, f"Give the number of a {name}.")
        if not 0 <= number < count:
            raise InvalidArgumentError(name, f"got {number}", f"Give a number from 0 to {count - 1}.")


def launch(attention_launch: Launch, *, batch: int = 0, head: int = 0) -> Launch:
    """Record the tiles of keys that the programs of one head visit, and the keys that its queries see.

    It calls the same tile operators as the kernel: `scores.tiles_of_window` (with a mask, the list of
    `attention.visits_launch`), `scores.sees` and the mask.

    Args:
        attention_launch: a launch of `attention.launch` with one program a tile of queries.
        batch, head: numbers of the batch and of the head of queries.

    Returns:
        a launch with the outputs bounds, int32 [tiles of queries, 4], see `scores.tiles_of_window`; seen,
        int8 [queries, keys], 1 where the query sees the key; and, if the bounds count entries of a list of
        visits, the list: int32, see `attention.visits_of`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `attention_launch` is refused by :func:`step_of`, or the
            batch or head does not exist.
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
