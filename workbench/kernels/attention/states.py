"""Attention state by state: one program loops over its tiles of keys and records its state after each."""

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, check_type
from workbench.kernels.attention import attend, load_rows, visit_bounds
from workbench.kernels.attention.tiles import check_head, step_of
from workbench.kernels.tile import gemm, reduce, scores
from workbench.launch import Launch, Step

# Arguments that the kernel shares with `attention.attention_kernel`.
_SIZES = ("group", "queries", "keys", "size", "value_size")
_RULES = ("scale", "left", "right", "shift", "extras", "mask_extra", "seed", "probability", "visits")
_META = (
    "BLOCK_M", "BLOCK_N", "WIDTHS", "VALUE_WIDTHS", "RULES", "FROM_END", "CHECKS", "TYPE", "PRECISION",
    "VISITS",
)  # fmt: skip


@triton.jit
def attention_states_kernel(
    # pointers: [batch, heads, rows, columns] each
    query, key, value,
    # pointers, an entry each visit: the tile's number and whether it is masked, [visits, 2]; scaled scores
    # and their weights, [visits, BLOCK_M, BLOCK_N]
    numbers, all_scores, all_weights,
    # pointer, likewise: the factor of earlier sums, the maximum of the scaled scores, the total, and the
    # total without any rescaling, [4, visits, BLOCK_M]
    all_states,
    # pointer, likewise: the sums of values, and those without any rescaling, [2, visits, BLOCK_M, value_size]
    all_sums,
    # sizes, as in `attention.attention_kernel`; visits at most; the tile of queries, its batch and head
    group, queries, keys, size, value_size, most, tile, batch, head,
    # strides of batch, head, row and column
    query_strides, key_strides, value_strides,
    # as in `attention.attention_kernel`
    scale: "fp64", left, right, shift, extras, mask_extra, seed: "i64", probability: "fp32", visits,
    # meta-parameters, as there
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, VALUE_WIDTHS: tl.constexpr,
    RULES: tl.constexpr, FROM_END: tl.constexpr, CHECKS: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr, VISITS: tl.constexpr,
):  # fmt: skip
    """Record the state and sums of the program of one tile of queries, which `attention.attend` makes."""
    row = tile * BLOCK_M
    if FROM_END:
        shift += keys - queries
    of_key = head // group
    k = key + batch * key_strides[0] + of_key * key_strides[1], (keys, size), key_strides[2:]
    v = value + batch * value_strides[0] + of_key * value_strides[1], (keys, value_size), value_strides[2:]
    rows = row + tl.arange(0, BLOCK_M)
    query_of, head_of = rows[:, None], head + tl.zeros([BLOCK_M, 1], tl.int32)
    query += batch * query_strides[0] + head * query_strides[1]
    held = load_rows(
        query, query_of * query_strides[2], query_strides[3], query_of < queries, size, WIDTHS
    )  # fmt: skip
    state = reduce.online_softmax_init(BLOCK_M, TYPE)
    sums = gemm.zeros_of_parts(BLOCK_M, VALUE_WIDTHS, TYPE)
    nothing, kept_total, kept_sums = state[1], state[1], sums
    last = min(row + BLOCK_M - 1, queries - 1)
    bounds, listed = visit_bounds(
        visits, batch, head, tile, row, last, keys, left, right, shift, BLOCK_N, RULES.ends_left,
        RULES.ends_right, VISITS,
    )  # fmt: skip
    place = (batch, head_of, query_of, head_of)
    window = (left, right, shift)
    rules = (keys, scale, window, extras, mask_extra, seed, probability)
    EXACT: tl.constexpr = held[0].dtype.primitive_bitwidth >= 32
    count = 0
    for phase in tl.static_range(3):
        for visit in range(bounds[phase], bounds[phase + 1]):
            number = visit
            if VISITS:
                number = tl.load(listed + visit)
            start = number * BLOCK_N
            MASKED: tl.constexpr = phase != 1 or (len(RULES.mask) > 0 and not VISITS)
            # Intermediate results of `attend`, by the tile operators that it calls.
            tiles = gemm.load_parts(k, start, BLOCK_N, WIDTHS, MASKED and CHECKS.keys, CHECKS.size)
            products = gemm.product_of_parts(held, tiles, BLOCK_M, BLOCK_N, TYPE, PRECISION)
            col = start + tl.arange(0, BLOCK_N)[None, :]
            factor = reduce.scalar(scale, TYPE)
            _, rated = scores.scored(
                products, batch, head_of, query_of, col, keys, factor, window, extras, mask_extra, RULES,
                MASKED,
            )  # fmt: skip
            if not RULES.scales_later:
                factor = reduce.scalar(1.0, TYPE)
            _, weights, rescale = reduce.online_softmax_update_in_base_2(
                state, rated, factor * scores.LOG2_E, 0, EXACT
            )
            # The tile's own contribution, with the maximum so far. `kept_total` and `kept_sums` add these up
            # without rescaling earlier ones.
            own, own_sums = attend(
                (state[0], nothing), gemm.zeros_of_parts(BLOCK_M, VALUE_WIDTHS, TYPE), held, k, v, start,
                place, rules, BLOCK_M, BLOCK_N, WIDTHS, VALUE_WIDTHS, RULES, MASKED, CHECKS, TYPE, PRECISION,
                0, False, False,
            )  # fmt: skip
            kept_total += own[1]
            kept_sums = add_parts(kept_sums, own_sums)
            state, sums = attend(
                state, sums, held, k, v, start, place, rules, BLOCK_M, BLOCK_N, WIDTHS, VALUE_WIDTHS, RULES,
                MASKED, CHECKS, TYPE, PRECISION, 0, False, False,
            )  # fmt: skip
            tl.store(numbers + count * 2, number)
            tl.store(numbers + count * 2 + 1, tl.full([], MASKED, tl.int32))
            line = tl.arange(0, BLOCK_M)
            places = (count * BLOCK_M + line[:, None]) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            tl.store(all_scores + places, rated * factor)
            tl.store(all_weights + places, weights)
            line += count * BLOCK_M
            tl.store(all_states + line, rescale)
            tl.store(all_states + most * BLOCK_M + line, state[0] * factor)
            tl.store(all_states + 2 * most * BLOCK_M + line, state[1])
            tl.store(all_states + 3 * most * BLOCK_M + line, kept_total)
            store_parts(all_sums, line, value_size, sums, VALUE_WIDTHS)
            store_parts(all_sums + most * BLOCK_M * value_size, line, value_size, kept_sums, VALUE_WIDTHS)
            count += 1


@triton.jit
def add_parts(sums, others):
    """Add two tuples of tiles, part by part."""
    added = ()
    for i in tl.static_range(len(sums)):
        added += (sums[i] + others[i],)
    return added


@triton.jit
def store_parts(pointer, row, size, parts, WIDTHS: tl.constexpr):
    """Store tiles as rows of a contiguous matrix of `size` columns."""
    col = 0
    for i in tl.static_range(len(WIDTHS)):
        cols = col + tl.arange(0, WIDTHS[i])[None, :]
        tl.store(pointer + row[:, None] * size + cols, parts[i], mask=cols < size)
        col += WIDTHS[i]


def launch(attention_launch: Launch, tile: int = 0, *, batch: int = 0, head: int = 0) -> Launch:
    """Record the state of the program of one tile of queries after each tile of keys that it visits.

    The state and the sums of values are those of the kernel itself: `attention.attend` makes them.

    Args:
        attention_launch: a launch of `attention.launch` with one program a tile of queries, no dropout, no
            fp8. Tensors that it loads by descriptors are loaded by pointers here.
        tile: the number of the tile of queries.
        batch, head: numbers of the tile's batch and head.

    Returns:
        a launch with five outputs, in which `visits` is the number of tiles of keys: numbers, int32 [visits,
        2], the tile's number and whether it is masked, or -1 in the last rows if there were fewer visits;
        scaled scores, and weights, [visits, BLOCK_M, BLOCK_N] each; states, [4, visits, BLOCK_M]: the rescale
        factor, the maximum, the total, and the total without any rescaling; sums of values, [2, visits,
        BLOCK_M, value size], with and without rescaling.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `attention_launch` is refused by `tiles.step_of` or has
            dropout or fp8; or the batch, head or tile does not exist.
    """
    step = step_of(attention_launch)
    given = step.arguments()
    check_head(given, batch, head)
    for name, value, fix in (
        ("dropout", given["DROPS"], "Give a launch without dropout."),
        ("fp8", given["BOOST"], "Give a launch of tensors of fp16, bf16, fp32 or fp64."),
    ):
        if value:
            raise InvalidArgumentError("attention_launch", f"it has {name}", fix)
    check_type("tile", tile, int, "Give the number of a tile of queries.")
    block_m, block_n = given["BLOCK_M"], given["BLOCK_N"]
    if not 0 <= tile < (tiles := triton.cdiv(given["queries"], block_m)):
        raise InvalidArgumentError("tile", f"got {tile}", f"Give a number from 0 to {tiles - 1}.")
    sources = [getattr(given[name], "base", given[name]) for name in ("query", "key", "value")]
    like, most = given["log_sums"], max(1, triton.cdiv(given["keys"], block_n))
    numbers = torch.full((most, 2), -1, dtype=torch.int32, device=like.device)
    all_scores, all_weights = (like.new_empty(most, block_m, block_n) for _ in range(2))
    states = like.new_empty(4, most, block_m)
    sums = like.new_empty(2, most, block_m, given["value_size"])
    written = (numbers, all_scores, all_weights, states, sums)
    watched = Step(
        attention_states_kernel, (1,),
        (
            *sources, *written, *[given[name] for name in _SIZES],
            most, tile, batch, head, given["query_strides"], given["key_strides"], given["value_strides"],
            *[given[name] for name in _RULES],
        ),
        {**{name: given[name] for name in _META}, "num_warps": 4},
    )  # fmt: skip
    before = attention_launch.steps[: attention_launch.steps.index(step)]
    return Launch((*before, watched), written, workspaces=given["visits"][:1])
