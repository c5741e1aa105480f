"""Attention's forward pass in Gluon, for Hopper: faster than the portable kernel, for fewer cases.

In Triton's language the compiler decides which warps load and when a product is waited for; in Gluon,
Triton's lower language, the kernel does. Here one warp starts the copies (TMA) of all tiles; barriers in
shared memory tell it when a buffer is free. Each group of four warps has 64 queries. It starts the product
for the scores of a tile of keys, then the product of the previous tile's weights and values, and computes the
softmax of those scores while the tensor core works on the second product. Groups can take turns at starting
products, so that one has the tensor core while another computes its softmax. And a program can process
several tiles of queries, one after another, so that the first keys of the next tile are loaded while the last
tile is written.

The arithmetic is that of the portable kernel: the online softmax in base 2, fp32 sums, weights rounded to the
dtype of the values.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Queries of a group of four warps: the rows of one matrix instruction of the group.
ROWS = gl.constexpr(64)


class Way(NamedTuple):
    """Configuration of the kernel for Hopper.

    Attributes:
        groups: the number of groups of four warps, with 64 queries each: 2 or 3.
        keys: keys of a tile.
        stages: the number of buffers for tiles of keys, and likewise for tiles of values.
        turns: whether groups take turns at starting products.
        persistent: whether there is at most one program for each compute unit of the device, which processes
            its tiles of queries one after another; if not, there is one program for each tile.
    """

    groups: int
    keys: int
    stages: int
    turns: bool
    persistent: bool


@gluon.jit
def attention_hopper_kernel(
    # descriptors of [batch, heads, rows, columns], in blocks of rows of a tile and all columns; pointers of
    # the output and its log-sum-exps, [batch, heads, queries]
    query, key, value, output, log_sums,
    # sizes: batches; heads of queries; heads of queries for each head of keys; queries, keys; columns of the
    # output
    batches, heads, group, queries, keys, value_size,
    # the scale times log2(e); if CAUSAL, query i sees keys up to i + shift
    factor: "fp32", shift,
    # strides of batch, head, row and column; of batch and head
    output_strides, sums_strides,
    # meta-parameters: keys of a tile; columns in a power of two; buffers of keys and of values; groups of
    # warps, and whether they take turns; whether the mask is causal; whether the last tile of keys is
    # partial; whether offsets need 64 bits
    BLOCK_N: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    TURNS: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Process the tiles of queries of one program, 64 queries for each group of warps."""
    DTYPE: gl.constexpr = query.dtype
    OF_Q: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE)
    OF_K: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, WIDTH], DTYPE)
    of_queries = gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, WIDTH], OF_Q)
    of_keys = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, WIDTH], OF_K)
    of_values = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, WIDTH], OF_K)
    has_query, query_is_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    has_key, key_is_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    has_value, value_is_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    turn = barriers(GROUPS, 1)
    if TURNS:
        mbarrier.arrive(turn.index(0), count=1)
    tiles_of = (of_queries, of_keys, of_values)
    full, free = (has_query, has_key, has_value), (query_is_free, key_is_free, value_is_free)
    sizes = (batches, heads, group, queries, keys, value_size, factor, shift)
    written = (output, log_sums, output_strides, sums_strides)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (
                    tiles_of, full, free, turn, sizes, written, gl.constexpr(0), BLOCK_N, WIDTH, STAGES,
                    GROUPS, TURNS, CAUSAL, RAGGED, WIDE,
                )),
                (attend, (
                    tiles_of, full, free, turn, sizes, written, gl.constexpr(1), BLOCK_N, WIDTH, STAGES,
                    GROUPS, TURNS, CAUSAL, RAGGED, WIDE,
                )),
                (copy, (
                    query, key, value, tiles_of, full, free, sizes, BLOCK_N, STAGES, GROUPS, CAUSAL,
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (attend, (
                    tiles_of, full, free, turn, sizes, written, gl.constexpr(0), BLOCK_N, WIDTH, STAGES,
                    GROUPS, TURNS, CAUSAL, RAGGED, WIDE,
                )),
                (attend, (
                    tiles_of, full, free, turn, sizes, written, gl.constexpr(1), BLOCK_N, WIDTH, STAGES,
                    GROUPS, TURNS, CAUSAL, RAGGED, WIDE,
                )),
                (attend, (
                    tiles_of, full, free, turn, sizes, written, gl.constexpr(2), BLOCK_N, WIDTH, STAGES,
                    GROUPS, TURNS, CAUSAL, RAGGED, WIDE,
                )),
                (copy, (
                    query, key, value, tiles_of, full, free, sizes, BLOCK_N, STAGES, GROUPS, CAUSAL,
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip


@gluon.jit
def barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """Allocate NUMBER barriers in shared memory, each of which opens after COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def place_of(number, sizes, NUMBER: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Locate tile `number` of NUMBER queries, and the tiles of keys that it sees.

    Returns:
        batch, head, first query; the number of tiles of keys that all its queries see whole; the number of
        tiles that any of them sees.
    """
    _, heads, _, queries, keys, _, _, shift = sizes
    tiles = gl.cdiv(queries, NUMBER)
    tile, number = number % tiles, number // tiles
    head, batch = number % heads, number // heads
    if CAUSAL:
        tile = tiles - 1 - tile  # the tiles that see the most keys begin first
    row = tile * NUMBER
    whole, end = keys // BLOCK_N, gl.cdiv(keys, BLOCK_N)
    if CAUSAL:
        end = gl.minimum(gl.cdiv(gl.maximum(row + NUMBER + shift, 0), BLOCK_N), end)
        whole = gl.minimum(gl.maximum(row + shift + 1, 0) // BLOCK_N, whole)
    return batch, head, row, gl.minimum(whole, end), end


@gluon.jit
def copy(
    query, key, value, tiles_of, full, free, sizes,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Copy queries and tiles of keys and values, each once its buffer is free; run by one warp."""
    of_queries, of_keys, of_values = tiles_of
    has_query, has_key, has_value = full
    query_is_free, key_is_free, value_is_free = free
    batches, heads, group, queries, _, _, _, _ = sizes
    around, done = 0, 0
    for number in range(
        gl.program_id(0), batches * heads * gl.cdiv(queries, ROWS * GROUPS), gl.num_programs(0)
    ):
        batch, head, row, _, end = place_of(number, sizes, ROWS * GROUPS, BLOCK_N, CAUSAL)
        of_key = head // group
        for i in gl.static_range(GROUPS):
            mbarrier.wait(query_is_free.index(i), around ^ 1)
            mbarrier.expect(has_query.index(i), query.block_type.nbytes)
            tma.async_copy_global_to_shared(
                query, [batch, head, row + ROWS * i, 0], has_query.index(i), of_queries.index(i)
            )
        for tile in range(end):
            at, half = (done + tile) % STAGES, (done + tile) // STAGES & 1
            mbarrier.wait(key_is_free.index(at), half ^ 1)
            mbarrier.expect(has_key.index(at), key.block_type.nbytes)
            tma.async_copy_global_to_shared(
                key, [batch, of_key, tile * BLOCK_N, 0], has_key.index(at), of_keys.index(at)
            )
            mbarrier.wait(value_is_free.index(at), half ^ 1)
            mbarrier.expect(has_value.index(at), value.block_type.nbytes)
            tma.async_copy_global_to_shared(
                value, [batch, of_key, tile * BLOCK_N, 0], has_value.index(at), of_values.index(at)
            )
        done += end
        around ^= 1


@gluon.jit
def attend(
    tiles_of, full, free, turn, sizes, written,
    GROUP: gl.constexpr, BLOCK_N: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, TURNS: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """Compute attention of 64 queries of each tile; run by a group of four warps."""
    of_queries, of_keys, of_values = tiles_of
    has_query, has_key, has_value = full
    query_is_free, key_is_free, value_is_free = free
    batches, heads, _, queries, keys, value_size, factor, shift = sizes
    output, log_sums, output_strides, sums_strides = written
    DTYPE: gl.constexpr = of_queries.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(  # noqa: E741
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    R: gl.constexpr = gl.SliceLayout(1, S)
    B: gl.constexpr = gl.BlockedLayout([1, 8], [256 // WIDTH, WIDTH // 8], [4, 1], [1, 0])
    NEXT: gl.constexpr = (GROUP + 1) % GROUPS
    cols = gl.arange(0, BLOCK_N, gl.SliceLayout(0, S))[None, :]
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, S)
    q = of_queries.index(GROUP)
    around, done = 0, 0
    for number in range(
        gl.program_id(0), batches * heads * gl.cdiv(queries, ROWS * GROUPS), gl.num_programs(0)
    ):
        batch, head, row, whole, end = place_of(number, sizes, ROWS * GROUPS, BLOCK_N, CAUSAL)
        rows = row + ROWS * GROUP + gl.arange(0, ROWS, R)
        maximum = gl.full([ROWS], float("-inf"), gl.float32, R)
        total = gl.full([ROWS], 0.0, gl.float32, R)
        sums = gl.zeros([ROWS, WIDTH], gl.float32, O)
        mbarrier.wait(has_query.index(GROUP), around)
        if end > 0:
            at = done % STAGES
            mbarrier.wait(has_key.index(at), done // STAGES & 1)
            if TURNS:
                mbarrier.wait(turn.index(GROUP), done & 1)
            scores = warpgroup_mma(
                q, of_keys.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            if TURNS:
                mbarrier.arrive(turn.index(NEXT), count=1)
            scores = warpgroup_mma_wait(0, deps=[scores])
            mbarrier.arrive(key_is_free.index(at), count=1)
            weights, maximum, total, rescale = softmax(
                scores, maximum, total, factor, rows, cols, keys, shift, CAUSAL or RAGGED, CAUSAL
            )
            p = gl.convert_layout(weights.to(DTYPE), P)
            for phase in gl.static_range(2):
                if phase == 0 or CAUSAL or RAGGED:
                    first = 1 if phase == 0 else gl.maximum(whole, 1)
                    for tile in range(first, whole if phase == 0 else end):
                        at, half = (done + tile) % STAGES, (done + tile) // STAGES & 1
                        before, half_before = (done + tile - 1) % STAGES, (done + tile - 1) // STAGES & 1
                        mbarrier.wait(has_key.index(at), half)
                        if TURNS:
                            mbarrier.wait(turn.index(GROUP), done + tile & 1)
                        scores = warpgroup_mma(
                            q, of_keys.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True
                        )
                        mbarrier.wait(has_value.index(before), half_before)
                        token = warpgroup_mma(p, of_values.index(before), sums, is_async=True)
                        if TURNS:
                            mbarrier.arrive(turn.index(NEXT), count=1)
                        scores = warpgroup_mma_wait(1, deps=[scores])
                        mbarrier.arrive(key_is_free.index(at), count=1)
                        weights, maximum, total, rescale = softmax(
                            scores, maximum, total, factor, rows, tile * BLOCK_N + cols, keys, shift,
                            phase == 1, CAUSAL,
                        )  # fmt: skip
                        sums = warpgroup_mma_wait(0, deps=[token])
                        mbarrier.arrive(value_is_free.index(before), count=1)
                        sums = sums * gl.convert_layout(rescale, gl.SliceLayout(1, O))[:, None]
                        p = gl.convert_layout(weights.to(DTYPE), P)
            done += end
            last = (done - 1) % STAGES
            mbarrier.wait(has_value.index(last), (done - 1) // STAGES & 1)
            token = warpgroup_mma(p, of_values.index(last), sums, is_async=True)
            mbarrier.arrive(query_is_free.index(GROUP), count=1)
            sums = warpgroup_mma_wait(0, deps=[token])
            mbarrier.arrive(value_is_free.index(last), count=1)
        else:
            mbarrier.arrive(query_is_free.index(GROUP), count=1)
        around ^= 1
        # A query that sees no key has a total of 0, and its output is 0.
        share = gl.where(total == 0.0, 0.0, 1.0 / total)
        sums = sums * gl.convert_layout(share, gl.SliceLayout(1, O))[:, None]
        shown = gl.where(maximum == float("-inf"), 0.0, maximum) * factor
        log_sum = (shown + gl.log2(total)) * 0.6931471805599453
        if WIDE:
            batch, head, rows = batch.to(gl.int64), head.to(gl.int64), rows.to(gl.int64)
        places = log_sums + batch * sums_strides[0] + head * sums_strides[1]
        gl.store(places + rows, log_sum, mask=rows < queries)
        row_of = gl.convert_layout(rows, gl.SliceLayout(1, B))[:, None]
        col = gl.arange(0, WIDTH, gl.SliceLayout(0, B))[None, :]
        places = output + batch * output_strides[0] + head * output_strides[1]
        gl.store(
            places + row_of * output_strides[2] + col * output_strides[3],
            gl.convert_layout(sums.to(output.dtype.element_ty), B),
            mask=(row_of < queries) & (col < value_size),
        )


@gluon.jit
def softmax(
    scores, maximum, total, factor, rows, col, keys, shift, MASKED: gl.constexpr, CAUSAL: gl.constexpr
):
    """Return the weights of a tile, the new state of the online softmax, and the factor of earlier sums."""
    if MASKED:
        is_seen = col < keys
        if CAUSAL:
            is_seen = is_seen & (col <= rows[:, None] + shift)
        scores = gl.where(is_seen, scores, float("-inf"))
    larger = gl.maximum(maximum, gl.max(scores, 1))
    at = gl.where(larger == float("-inf"), 0.0, larger)
    weights = gl.exp2(scores * factor - (at * factor)[:, None])
    rescale = gl.exp2((maximum - at) * factor)
    return weights, larger, total * rescale + gl.sum(weights, 1), rescale


def described(tensors: Sequence[torch.Tensor], width: int, keys: int) -> tuple[TensorDescriptor, ...]:
    """Return descriptors of query, key and value, [batch, heads, rows, columns] each.

    Args:
        tensors: query, key and value.
        width: columns of a block. keys: rows of a block of keys or values; a block of queries has `ROWS`.
    """

    def one(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
        dtype = gl.float16 if tensor.dtype == torch.float16 else gl.bfloat16
        block = [1, 1, rows, width]
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)

    query, key, value = tensors
    return one(query, ROWS.value), one(key, keys), one(value, keys)
