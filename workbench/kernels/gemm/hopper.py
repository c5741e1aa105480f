"""The matrix product in Gluon, for Hopper: one group of warps multiplies while another finishes its tile.

In Triton's language all warps of a program multiply, and then all finish their tile. While an epilogue loads
its tensors, computes and stores, the tensor cores are idle; and a second program on the same multiprocessor,
which began at the same time, finishes at the same time too. Here a program has two groups of four warps, with
one tile each. While one group multiplies, the other finishes; then they change places (CUTLASS's ping-pong
schedule). One more warp starts the copies (TMA) of the blocks of A and B for both groups, in turns; barriers
in shared memory tell it when a buffer is free. Another warp prefetches the first tensors of the epilogue,
part by part, so that they are there when a product is.

If a program has more than two tiles, and these have neighbors in a row, `hopper_pairs` is faster. For a
program of two tiles, nothing would hide the finish of the second, whose group is idle while the first tile is
multiplied. So it begins its sums with the tensors that are added first, finishes one half of its tile between
the last products of the other half, and hands a part of each half to the other group.

Programs are persistent: there is one per multiprocessor at most, which takes tile by tile. The functors of an
epilogue are those of `tile.epilogue`, which Gluon compiles as they are.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from workbench import compat
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.tile import epilogue, transfer

SUPPORTED = (torch.float16, torch.bfloat16)

# Warps of each of the two groups that multiply.
WARPS = 4

# Rows of a matrix instruction, of which a tile has a multiple; its fewest and most columns; the most elements
# of a tile, whose sums a group keeps in registers.
ROWS, FEWEST_COLS, MOST_COLS = gl.constexpr(64), 32, 256
MOST_ELEMENTS = 128 * 128

# A buffer is free once the next step has begun, which needs another buffer.
FEWEST_STAGES = 2

# A tile is finished part by part. A part has the rows of a matrix instruction, and at most as many columns as
# a line of memory.
PART_COLS = gl.constexpr(64)

# The epilogue's tensors are requested after the copies of so many times all buffers of A and B, which are
# needed first; tensors with which sums begin are needed sooner.
WAITING, WAITING_TO_BEGIN = gl.constexpr(2), gl.constexpr(1)

# Steps along K that are copied before the groups of warps start: there is a buffer for each. (Time with two
# addends and gelu over that of the bare product, 2048^3 on an H200: 1.067 without, 1.056 with two or three,
# 1.065 with more.)
EARLY = gl.constexpr(2)

# Tiles, and the fewest steps along K, that hide the loads of the epilogue's tensors; the most steps of sums
# to which these are added before the last products.
LARGE_TILE = 128, 128
FEWEST_LONG_STEPS, MOST_ADDED_STEPS = 16, 512

# If programs have two such tiles, the second one begins as the sum of its addends and ends by halves. STARTED
# says how many of the lower half's last TAIL steps have been started before the upper half's right part is
# handed to the other group, and before each half of its left part is stored. A part that is handed over, in
# fp32, takes the place of a block of A with BLOCK_K_OF_HALVES elements along K. (Times for two addends and
# gelu, 2048^3 on an H200, are in docs/notebook. With more tiles, or fewer steps, this is as fast or slower.)
STARTED = 1, 2, 4
TAIL = gl.constexpr(STARTED[-1])
BLOCK_K_OF_HALVES = 64

# If all tensors of a product fit the L2 cache, in at most so many bytes, the epilogue's tensors leave it
# before A and B, which every row or column of tiles reads. If they do not fit, that is slower. (Time over
# that of the bare product, on H100s: 2048^3 1.064 -> 1.046, 2048 x 3072 x 768 1.39 -> 1.24; but 4096 x 4096 x
# 512, of 109 MB, 1.39 -> 1.46.)
L2_BYTES = 50 * 2**20
HINT = gl.constexpr(compat.EVICT_FIRST)

# Another kind of operand, besides `epilogue.TENSOR` and so on: BROUGHT + i is tensor i of those whose parts
# are prefetched to shared memory.
BROUGHT = gl.constexpr(8)
MOST_BROUGHT = 2


class Divisors(NamedTuple):
    """The divisors of m, n and k, and of the output's strides (empty if they are not known)."""

    sizes: tuple[int, ...]
    output: tuple[int, ...]


@gluon.jit(do_not_specialize=["m", "n", "k", "tiles"])
def gemm_ping_pong_kernel(
    # descriptors of A and B or of their transposes; of prefetched tensors of the epilogue, or None; a pointer
    # to the output; the epilogue's arguments
    a, b, first, second, output, extra,
    # sizes of the product; parameters of PLACE, such as the output's strides; number of tiles
    m, n, k, layout, tiles,
    # meta-parameters: the tile; STAGES buffers of A and of B; BESIDE prefetched tensors, SLOTS buffers of
    # their parts; BEGIN: whether a program has at most two tiles, and the second begins as the prefetched
    # tensors' sum; whether these leave the L2 cache first; the launch order; the epilogue; access function of
    # the output; whether the descriptors have the transposes of A and B; divisors of the sizes and of the
    # output's strides; whether offsets need 64 bits; PRODUCTS: false to skip the multiplications and do all
    # else, as if A were 0
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BESIDE: gl.constexpr, SLOTS: gl.constexpr, BEGIN: gl.constexpr, EVICT_FIRST: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
    PRODUCTS: gl.constexpr,
):  # fmt: skip
    """output = EPILOGUE(A @ B), by persistent programs that take tile by tile."""
    A: gl.constexpr = a.block_type.shape
    B: gl.constexpr = b.block_type.shape
    of_a = gl.allocate_shared_memory(a.dtype, [STAGES, A[0], A[1]], a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, [STAGES, B[0], B[1]], b.layout)
    sizes = (m, n, k, tiles)
    if BESIDE > 0:
        PARTS: gl.constexpr = BLOCK_M // ROWS * number_of_columns(BLOCK_N)
        # Two turns, and a half each that is handed over.
        NUMBERS: gl.constexpr = (STAGES, STAGES, 4, 2 * barriers_of_parts(PARTS, SLOTS), SLOTS, 1)
        full, free, turn, there, is_free, may_begin = barriers(NUMBERS, (1, 1, 1, 1, 1, 1))
        begin_copies(
            a, b, of_a, of_b, full, sizes, BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, A_TRANSPOSED, B_TRANSPOSED
        )
        mbarrier.arrive(turn.index(0), count=1)
        BROUGHT_PART: gl.constexpr = first.block_type.shape
        brought = (
            gl.allocate_shared_memory(
                first.dtype, [SLOTS * BESIDE, BROUGHT_PART[0], BROUGHT_PART[1]], first.layout
            ),
            there, is_free, may_begin,
        )  # fmt: skip
        gl.warp_specialize(
            [
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, gl.constexpr(0),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, SLOTS, BEGIN, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, gl.constexpr(1),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, SLOTS, BEGIN, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, b, of_a, of_b, full, free, brought, sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BEGIN,
                    ORDER, GROUP, A_TRANSPOSED, B_TRANSPOSED,
                )),
                (bring, (
                    first, second, brought, sizes, BLOCK_M, BLOCK_N, BESIDE, SLOTS, BEGIN, EVICT_FIRST, ORDER,
                    GROUP,
                )),
            ],
            [4, 1, 1], [240, 24, 24],
        )  # fmt: skip
    else:
        full, free, turn = barriers((STAGES, STAGES, 2), (1, 1, 1))
        begin_copies(
            a, b, of_a, of_b, full, sizes, BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, A_TRANSPOSED, B_TRANSPOSED
        )
        mbarrier.arrive(turn.index(0), count=1)
        gl.warp_specialize(
            [
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, (), sizes, output, extra, layout, gl.constexpr(0),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, SLOTS, BEGIN, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, (), sizes, output, extra, layout, gl.constexpr(1),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, SLOTS, BEGIN, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, b, of_a, of_b, full, free, (), sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BEGIN, ORDER,
                    GROUP, A_TRANSPOSED, B_TRANSPOSED,
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip


@gluon.constexpr_function
def number_of_columns(block_n: int) -> int:
    """Return the number of parts in a row of a tile."""
    found: int = max(block_n // PART_COLS.value, 1)
    return found


@gluon.constexpr_function
def log2(number: int) -> int:
    """Return the binary logarithm of a power of two."""
    return number.bit_length() - 1


@gluon.constexpr_function
def barriers_of_parts(parts: int, slots: int) -> int:
    """Return a group's number of barriers for parts: one each, so that no wait spans two rounds.

    With a single buffer, the next part is copied only after this one has been read, so one barrier is enough.
    """
    return 1 if slots == 1 else parts


@gluon.jit
def barriers(NUMBERS: gl.constexpr, COUNTS: gl.constexpr):
    """Barriers in shared memory: NUMBERS of each kind, each of which opens after COUNTS arrivals.

    They are initialized in rounds, one of each kind in a round: all warps wait between two of the same kind.
    """
    made = ()
    for kind in gl.static_range(len(NUMBERS)):
        made += (  # type: ignore[assignment]
            gl.allocate_shared_memory(gl.int64, [NUMBERS[kind], 1], mbarrier.MBarrierLayout()),
        )
    for nth in gl.static_range(largest(NUMBERS)):
        for kind in gl.static_range(len(NUMBERS)):
            if nth < NUMBERS[kind]:
                mbarrier.init(made[kind].index(nth), count=COUNTS[kind])
    return made


@gluon.constexpr_function
def largest(numbers: tuple[int, ...]) -> int:
    """Return the largest of some numbers."""
    return max(numbers)


@gluon.jit
def place_of(
    number, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr
):
    """The first row and the first column of tile `number`."""
    tile_row, tile_col = ORDER(number, gl.cdiv(sizes[0], BLOCK_M), gl.cdiv(sizes[1], BLOCK_N), GROUP)
    return tile_row * BLOCK_M, tile_col * BLOCK_N


@gluon.jit
def begin_copies(
    a, b, of_a, of_b, full, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start the copies of the first EARLY steps along K, before the groups of warps start."""
    place = place_of(gl.program_id(0), sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
    for step in gl.static_range(EARLY):
        if step < gl.cdiv(sizes[2], BLOCK_K):
            copy_step(a, b, of_a, of_b, full, step, place, step * BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)


@gluon.jit
def copy(
    a, b, of_a, of_b, full, free, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, BEGIN: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The warp that copies the remaining blocks of A and B, after :func:`begin_copies`, into free buffers."""
    WAIT: gl.constexpr = (WAITING_TO_BEGIN if BEGIN else WAITING) * STAGES
    steps = gl.cdiv(sizes[2], BLOCK_K)
    done = gl.minimum(EARLY, steps)
    if len(brought) > 0:
        if done == gl.minimum(WAIT, steps):
            mbarrier.arrive(brought[3].index(0), count=1)
    for number in range(gl.program_id(0), sizes[3], gl.num_programs(0)):
        place = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        begin = 0
        if number == gl.program_id(0):
            begin = gl.minimum(EARLY, steps)
        for step in range(begin, steps):
            at = done % STAGES
            mbarrier.wait(free.index(at), (done // STAGES & 1) ^ 1)
            copy_step(a, b, of_a, of_b, full, at, place, step * BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)
            done += 1
            if len(brought) > 0:
                if done == gl.minimum(WAIT, steps):
                    mbarrier.arrive(brought[3].index(0), count=1)


@gluon.jit
def copy_step(
    a, b, of_a, of_b, full, at, place, start, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr
):
    """Copy the blocks of A and B for one step along K to free buffers."""
    row, col = place
    mbarrier.expect(full.index(at), a.block_type.nbytes + b.block_type.nbytes)
    if A_TRANSPOSED:
        tma.async_copy_global_to_shared(a, [start, row], full.index(at), of_a.index(at))
    else:
        tma.async_copy_global_to_shared(a, [row, start], full.index(at), of_a.index(at))
    if B_TRANSPOSED:
        tma.async_copy_global_to_shared(b, [col, start], full.index(at), of_b.index(at))
    else:
        tma.async_copy_global_to_shared(b, [start, col], full.index(at), of_b.index(at))


@gluon.jit
def bring(
    first, second, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr,
    SLOTS: gl.constexpr, BEGIN: gl.constexpr, EVICT_FIRST: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """The warp that prefetches the epilogue's tensors, part by part, each when a buffer is free."""
    COLUMNS: gl.constexpr = number_of_columns(BLOCK_N)
    PARTS: gl.constexpr = BLOCK_M // ROWS * COLUMNS
    EACH: gl.constexpr = barriers_of_parts(PARTS, SLOTS)
    tiles_of, there, is_free, may_begin = brought
    mbarrier.wait(may_begin.index(0), 0)
    number_of_tiles = gl.cdiv(sizes[3] - gl.program_id(0), gl.num_programs(0))
    for when in range(number_of_tiles):
        nth = when_brought(when, number_of_tiles, BEGIN)  # which is its own inverse
        number = gl.program_id(0) + nth * gl.num_programs(0)
        row, col = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        for part in gl.static_range(PARTS):
            place = [row + part // COLUMNS * ROWS, col + part % COLUMNS * PART_COLS]
            before = when * PARTS + part
            slot, whole = before % SLOTS, there.index((nth & 1) * EACH + part % EACH)
            mbarrier.wait(is_free.index(slot), (before // SLOTS & 1) ^ 1)
            mbarrier.expect(whole, BESIDE * first.block_type.nbytes)
            copy_part(first, place, whole, tiles_of.index(slot * BESIDE), EVICT_FIRST)
            if BESIDE > 1:
                copy_part(second, place, whole, tiles_of.index(slot * BESIDE + 1), EVICT_FIRST)


@gluon.jit
def copy_part(source, place, barrier, buffer, EVICT_FIRST: gl.constexpr):
    """Copy a part of an epilogue's tensor. EVICT_FIRST: whether it leaves the L2 cache before A and B."""
    if EVICT_FIRST:
        gl.inline_asm_elementwise(HINT, "=r,r", [0], gl.int32, is_pure=False, pack=1)
    tma.async_copy_global_to_shared(source, place, barrier, buffer)


@gluon.jit
def when_brought(nth, number_of_tiles, BEGIN: gl.constexpr):
    """The turn in which the nth tile's parts are prefetched; if BEGIN, the second tile comes first."""
    when = nth
    if BEGIN:
        if (nth < 2) & (number_of_tiles > 1):
            when = 1 - nth
    return when


@gluon.jit
def multiply_and_finish(
    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, WHO: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BESIDE: gl.constexpr, SLOTS: gl.constexpr, BEGIN: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr,
    EPILOGUE: gl.constexpr, PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    DIVISORS: gl.constexpr, WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """A group of warps, with every second tile of its program.

    The number of earlier tiles tells a group which buffers are its own. A barrier only tells even rounds from
    odd ones, so a group waits for barriers only when it is its turn.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    steps = gl.cdiv(sizes[2], BLOCK_K)
    number_of_tiles = gl.cdiv(sizes[3] - gl.program_id(0), gl.num_programs(0))
    if not BEGIN:
        for nth in range(WHO, number_of_tiles, 2):
            sums = multiply(
                gl.zeros([BLOCK_M, BLOCK_N], gl.float32, S), nth, steps, 0, of_a, of_b, full, free, turn, WHO,
                STAGES, A_TRANSPOSED, B_TRANSPOSED, PRODUCTS,
            )  # fmt: skip
            number = gl.program_id(0) + nth * gl.num_programs(0)
            row, col = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
            finish(
                sums, row, col, nth, nth, brought, sizes, output, extra, layout, BESIDE, SLOTS, False,
                EPILOGUE, PLACE, DIVISORS, WIDE,
            )  # fmt: skip
    elif WHO == 0:
        sums = multiply(
            gl.zeros([BLOCK_M, BLOCK_N], gl.float32, S), 0, steps, 0, of_a, of_b, full, free, turn, WHO,
            STAGES, A_TRANSPOSED, B_TRANSPOSED, PRODUCTS,
        )  # fmt: skip
        row, col = place_of(gl.program_id(0), sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        finish(
            sums, row, col, 0, when_brought(0, number_of_tiles, BEGIN), brought, sizes, output, extra, layout,
            BESIDE, SLOTS, False, EPILOGUE, PLACE, DIVISORS, WIDE,
        )  # fmt: skip
        PART: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_COLS, 16]
        )
        for nth in range(1, number_of_tiles, 2):
            number = gl.program_id(0) + nth * gl.num_programs(0)
            row, col = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
            for half in gl.static_range(2):
                mbarrier.wait(turn.index(2 + half), 0)
                part = handed(of_a, half, (nth + 1) * steps, STAGES).load(PART)
                store(
                    part, row + half * ROWS, col + PART_COLS, (), sizes, output, extra, layout, True,
                    EPILOGUE, PLACE, DIVISORS, WIDE,
                )  # fmt: skip
    else:
        for nth in range(1, number_of_tiles, 2):  # which is one, or none
            when = when_brought(nth, number_of_tiles, BEGIN)
            sums = sum_of_brought(brought, nth, when, BLOCK_M, BLOCK_N, BESIDE, SLOTS)
            sums = multiply(
                gl.convert_layout(sums, S), nth, steps, TAIL, of_a, of_b, full, free, turn, WHO, STAGES,
                A_TRANSPOSED, B_TRANSPOSED, PRODUCTS,
            )  # fmt: skip
            multiply_and_finish_halves(
                sums, nth, steps, of_a, of_b, full, turn, sizes, output, extra, layout, STAGES, ORDER, GROUP,
                EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
            )  # fmt: skip


@gluon.jit
def multiply(
    sums, nth, steps, LEFT: gl.constexpr, of_a, of_b, full, free, turn, WHO: gl.constexpr,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """sums + A @ B of the program's nth tile, without the last LEFT steps, when it is the group's turn."""
    done = nth * steps
    mbarrier.wait(turn.index(WHO), nth // 2 & 1)
    for step in range(steps - LEFT):
        at, half = (done + step) % STAGES, (done + step) // STAGES & 1
        mbarrier.wait(full.index(at), half)
        x, y = of_a.index(at), of_b.index(at)
        if A_TRANSPOSED:
            x = x.permute((1, 0))
        if B_TRANSPOSED:
            y = y.permute((1, 0))
        if PRODUCTS:
            token = warpgroup_mma(x, y, sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[token])
        if step > 0:
            mbarrier.arrive(free.index((done + step - 1) % STAGES), count=1)
    mbarrier.arrive(turn.index(1 - WHO), count=1)
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(free.index((done + steps - LEFT - 1) % STAGES), count=1)
    return sums


@gluon.jit
def multiply_and_finish_halves(
    sums, nth, steps, of_a, of_b, full, turn, sizes, output, extra, layout, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr,
    WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """Multiply the last TAIL steps of the last tile, and finish it: first its upper half, then the lower.

    The tensor cores' queue takes few products, and a warp that starts more has to wait. So the products of
    the lower half are started a few at a time, between stores of the upper half. No buffer is given back. The
    right part of each half is handed to the other group, which is idle.
    """
    BLOCK_N: gl.constexpr = sums.shape[1]
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    QUARTER: gl.constexpr = BLOCK_N // 4
    number = gl.program_id(0) + nth * gl.num_programs(0)
    row, col = place_of(number, sizes, sums.shape[0], BLOCK_N, ORDER, GROUP)
    halves = in_parts(sums, 2, 1)
    upper, lower = gl.convert_layout(halves[0], S), gl.convert_layout(halves[1], S)
    end = (nth + 1) * steps
    for step in gl.static_range(TAIL):
        at, half = (end - TAIL + step) % STAGES, (end - TAIL + step) // STAGES & 1
        mbarrier.wait(full.index(at), half)
        if PRODUCTS:
            upper = multiply_half(upper, at, 0, of_a, of_b, A_TRANSPOSED, B_TRANSPOSED)
    upper = warpgroup_mma_wait(0, deps=[upper])
    parts = in_parts(upper, 1, 2)
    quarters = in_parts(parts[0], 1, 2)
    for i in gl.static_range(3):
        for step in gl.static_range(started(i - 1), started(i)):
            if PRODUCTS:
                at = (end - TAIL + step) % STAGES
                lower = multiply_half(lower, at, 1, of_a, of_b, A_TRANSPOSED, B_TRANSPOSED)
        if i == 0:
            hand_over(parts[1], handed(of_a, 0, end, STAGES), turn.index(2))
        else:
            store(
                quarters[i - 1], row, col + (i - 1) * QUARTER, (), sizes, output, extra, layout, True,
                EPILOGUE, PLACE, DIVISORS, WIDE,
            )  # fmt: skip
    lower = warpgroup_mma_wait(0, deps=[lower])
    parts = in_parts(lower, 1, 2)
    hand_over(parts[1], handed(of_a, 1, end, STAGES), turn.index(3))
    store(
        parts[0], row + ROWS, col, (), sizes, output, extra, layout, True, EPILOGUE, PLACE, DIVISORS, WIDE,
    )  # fmt: skip


@gluon.jit
def hand_over(part, room, barrier):
    """Hand a part of a tile's sums to the other group of warps, which waits for the part's barrier.

    Each warp has waited only for its own products, so first all warps of this group wait for one another.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_COLS, 16]
    )
    tl.debug_barrier()
    room.store(gl.convert_layout(part, S))
    tl.debug_barrier()  # by all warps
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def handed(of_a, half, end, STAGES: gl.constexpr):
    """Room for the part of one half's sums that one group hands to the other: a buffer of A.

    The upper half's takes the buffer before the last TAIL, which are still needed; the lower's, the next one.
    """
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    return of_a.index((end - TAIL - 1 + half) % STAGES)._reinterpret(gl.float32, [ROWS, PART_COLS], LAYOUT)


@gluon.constexpr_function
def started(when: int) -> int:
    """Return how many of the lower half's last steps are started before action `when` on the upper half."""
    return STARTED[when] if when >= 0 else 0


@gluon.jit
def multiply_half(
    sums, at, HALF: gl.constexpr, of_a, of_b, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr
):
    """Start sums + A @ B of buffer `at`, for the upper or the lower 64 rows of A, without waiting for it."""
    y = of_b.index(at)
    if B_TRANSPOSED:
        y = y.permute((1, 0))
    if A_TRANSPOSED:
        x = of_a.index(at).slice(HALF * ROWS, ROWS, 1).permute((1, 0))
    else:
        x = of_a.index(at).slice(HALF * ROWS, ROWS, 0)
    return warpgroup_mma(x, y, sums, is_async=True)


@gluon.jit
def in_parts(tile, ROWS_OF_PARTS: gl.constexpr, COLUMNS: gl.constexpr):
    """Parts of a tile, row by row, in the same registers."""
    found = (tile,)
    for _ in gl.static_range(log2(ROWS_OF_PARTS)):
        halves = ()
        for i in gl.static_range(len(found)):
            halved = gl.reshape(found[i], [2, found[i].shape[0] // 2, found[i].shape[1]])
            halves += gl.split(gl.permute(halved, [1, 2, 0]))
        found = halves  # type: ignore[assignment]
    for _ in gl.static_range(log2(COLUMNS)):
        halves = ()
        for i in gl.static_range(len(found)):
            halved = gl.reshape(found[i], [found[i].shape[0], 2, found[i].shape[1] // 2])
            halves += gl.split(gl.permute(halved, [0, 2, 1]))
        found = halves  # type: ignore[assignment]
    return found


@gluon.jit
def of_parts(parts, ROWS_OF_PARTS: gl.constexpr, COLUMNS: gl.constexpr):
    """The tile from its parts: the inverse of :func:`in_parts`."""
    found = parts
    for _ in gl.static_range(log2(COLUMNS)):
        wholes = ()
        for i in gl.static_range(len(found) // 2):
            pair = gl.permute(gl.join(found[2 * i], found[2 * i + 1]), [0, 2, 1])
            wholes += (gl.reshape(pair, [pair.shape[0], 2 * pair.shape[2]]),)  # type: ignore[assignment]
        found = wholes
    for _ in gl.static_range(log2(ROWS_OF_PARTS)):
        wholes = ()
        for i in gl.static_range(len(found) // 2):
            pair = gl.permute(gl.join(found[2 * i], found[2 * i + 1]), [2, 0, 1])
            wholes += (gl.reshape(pair, [2 * pair.shape[1], pair.shape[2]]),)  # type: ignore[assignment]
        found = wholes
    return found[0]


@gluon.jit
def sum_of_brought(
    brought, nth, when, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr,
    SLOTS: gl.constexpr,
):  # fmt: skip
    """Sum, in fp32, of the tensors that were prefetched for a program's nth tile."""
    COLUMNS: gl.constexpr = number_of_columns(BLOCK_N)
    PARTS: gl.constexpr = BLOCK_M // ROWS * COLUMNS
    parts = ()
    for i in gl.static_range(PARTS):
        there = of_brought(brought, nth, when, i, BLOCK_N // COLUMNS, PARTS, BESIDE, SLOTS)
        give_back(brought, when, i, PARTS, SLOTS)
        part = there[0].to(gl.float32)
        if BESIDE > 1:
            part += there[1].to(gl.float32)
        parts += (part,)  # type: ignore[assignment]
    return of_parts(parts, BLOCK_M // ROWS, COLUMNS)


@gluon.jit
def of_brought(
    brought, nth, when, PART: gl.constexpr, WIDTH: gl.constexpr, PARTS: gl.constexpr, BESIDE: gl.constexpr,
    SLOTS: gl.constexpr,
):  # fmt: skip
    """Part number PART of each tensor that was prefetched, in turn `when`, for a program's nth tile."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    EACH: gl.constexpr = barriers_of_parts(PARTS, SLOTS)
    tiles_of, there, _, _ = brought
    slot = (when * PARTS + PART) % SLOTS
    mbarrier.wait(
        there.index((nth & 1) * EACH + PART % EACH), (nth // 2 * (PARTS // EACH) + PART // EACH) & 1
    )
    found = ()
    for i in gl.static_range(BESIDE):
        found += (tiles_of.index(slot * BESIDE + i).load(S),)  # type: ignore[assignment]
    return found


@gluon.jit
def give_back(brought, when, PART: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr):
    """Return a part's buffer, which has been read, to TMA."""
    fence_async_shared()  # orders the reads before TMA writes there again
    tl.debug_barrier()  # by all warps
    mbarrier.arrive(brought[2].index((when * PARTS + PART) % SLOTS), count=1)


@gluon.jit
def finish(
    sums, row, col, nth, when, brought, sizes, output, extra, layout, BESIDE: gl.constexpr,
    SLOTS: gl.constexpr, BEGUN: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr,
    DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a tile and store it; with an epilogue part by part, which saves registers.

    The prefetched tensors of a part are read before the previous part is finished.

    Args:
        row, col: the tile's first row and column. nth: the tile's number in its program. when: the turn in
            which its tensors are prefetched.
        BESIDE: number of prefetched tensors that are read here. BEGUN: see :func:`of_functor`.
    """
    BLOCK_M: gl.constexpr = sums.shape[0]
    BLOCK_N: gl.constexpr = sums.shape[1]
    if len(EPILOGUE) > 0:
        COLUMNS: gl.constexpr = number_of_columns(BLOCK_N)
        PARTS: gl.constexpr = BLOCK_M // ROWS * COLUMNS
        parts = in_parts(sums, BLOCK_M // ROWS, COLUMNS)
        ahead = ()
        if BESIDE > 0:
            ahead = of_brought(brought, nth, when, 0, BLOCK_N // COLUMNS, PARTS, BESIDE, SLOTS)
            give_back(brought, when, 0, PARTS, SLOTS)
        for i in gl.static_range(PARTS):
            there = ahead
            if BESIDE > 0 and i + 1 < PARTS:
                ahead = of_brought(brought, nth, when, i + 1, BLOCK_N // COLUMNS, PARTS, BESIDE, SLOTS)
            store(
                parts[i], row + i // COLUMNS * ROWS, col + i % COLUMNS * PART_COLS, there, sizes, output,
                extra, layout, BEGUN, EPILOGUE, PLACE, DIVISORS, WIDE,
            )  # fmt: skip
            if BESIDE > 0 and i + 1 < PARTS:
                give_back(brought, when, i + 1, PARTS, SLOTS)
    else:
        store(sums, row, col, (), sizes, output, extra, layout, BEGUN, EPILOGUE, PLACE, DIVISORS, WIDE)


@gluon.jit
def store(
    part, row, col, brought, sizes, output, extra, layout, BEGUN: gl.constexpr,
    EPILOGUE: gl.constexpr, PLACE: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a tile, or to a part of one, and store the result.

    Loads and stores have a layout with 16 bytes of a row per lane. Products have the layout of the matrix
    units. Tensors of the output's shape are converted to the products' layout before they are widened.
    """
    HEIGHT: gl.constexpr = part.shape[0]
    WIDTH: gl.constexpr = part.shape[1]
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    IN_ROWS: gl.constexpr = rows_of_warps(HEIGHT, WIDTH)
    OF_SIZES: gl.constexpr = DIVISORS.sizes
    OF_OUTPUT: gl.constexpr = DIVISORS.output
    if WIDE:
        row, col = row.to(gl.int64), col.to(gl.int64)
    rows, cols = places(row, col, HEIGHT, WIDTH, IN_ROWS)
    m, n, _ = transfer.multiples_of((sizes[0], sizes[1], sizes[2]), OF_SIZES)
    tile = gl.convert_layout(part, S)
    if len(EPILOGUE) > 0:
        where = ((rows, cols), places(row, col, HEIGHT, WIDTH, S), (m, n), brought)
        for i in gl.static_range(len(EPILOGUE)):
            tile = of_functor(tile, where, extra[i], BEGUN, S, EPILOGUE, i)
    if len(OF_OUTPUT) > 0:
        layout = transfer.multiples_of(layout, OF_OUTPUT)
    offsets, valid = PLACE(rows, cols, layout)
    gl.store(
        output + offsets, gl.convert_layout(tile.to(output.dtype.element_ty), IN_ROWS),
        mask=(rows < m) & (cols < n) & valid,
    )  # fmt: skip


@gluon.constexpr_function
def rows_of_warps(height: int, width: int) -> Any:
    """Return a layout with eight elements of a row per lane; warps have the same rows as in products.

    So a conversion between both layouts stays within a warp.
    """
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    registers += [[0, 32 << i] for i in range((width // 32).bit_length() - 1)]
    registers += [[64 << i, 0] for i in range((height // 64).bit_length() - 1)]
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [height, width])


@gluon.jit
def places(row, col, HEIGHT: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Indices of a tile's rows, [HEIGHT, 1], and columns, [1, WIDTH]."""
    rows = row + gl.arange(0, HEIGHT, gl.SliceLayout(1, LAYOUT))[:, None]
    cols = col + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))[None, :]
    return rows, cols


@gluon.jit
def of_functor(
    tile, where, extra, BEGUN: gl.constexpr, S: gl.constexpr, EPILOGUE: gl.constexpr, NUMBER: gl.constexpr
):
    """:func:`epilogue.of_functor`, for a tile with layout S.

    Args:
        where: (rows, columns) in the layout of loads, (rows, columns) in the tile's layout, (m, n), and the
            prefetched parts.
        BEGUN: whether the prefetched tensors, which the chain adds first, are already in the tile's sums.
    """
    FUNCTOR: gl.constexpr = epilogue.functor_of(EPILOGUE, NUMBER)
    FUNCTION: gl.constexpr = epilogue.function_of(EPILOGUE, NUMBER)
    if BEGUN and is_brought(FUNCTOR):
        return tile
    else:
        operands = ()
        for i in gl.static_range(len(extra)):
            operands += (  # type: ignore[assignment]
                operand(extra[i], where, S, FUNCTOR, i),
            )
        return FUNCTION(tile, operands, (0, where[1][0], where[1][1]))


@gluon.constexpr_function
def is_brought(functor: epilogue.FunctorConstants) -> bool:
    """Return whether a functor's first operand is a prefetched tensor."""
    return len(functor.operands) > 0 and functor.operands[0].kind >= BROUGHT.value


@gluon.jit
def operand(
    given, where, S: gl.constexpr, FUNCTOR: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """:func:`epilogue.operand` for Hopper: prefetched parts too; floating-point tensors become fp32."""
    OPERAND: gl.constexpr = FUNCTOR.operands[WHICH]
    KIND: gl.constexpr = OPERAND.kind
    OF_ROWS: gl.constexpr = OPERAND.rows
    OF_COLS: gl.constexpr = OPERAND.cols
    in_rows_of_memory, beside, sizes, brought = where
    if KIND >= BROUGHT:
        return brought[KIND - BROUGHT].to(gl.float32)
    elif KIND == epilogue.TENSOR:
        OF_MEMORY: gl.constexpr = given[0].dtype.element_ty
        NARROW: gl.constexpr = gl.float32 if OF_MEMORY.is_fp8() else OF_MEMORY
        if OF_ROWS and OF_COLS:
            rows, cols = in_rows_of_memory
            found = epilogue.of_tensor(
                given, 0, rows, cols, rows < sizes[0], cols < sizes[1], NARROW, OF_ROWS, OF_COLS, 0
            )
            found = gl.convert_layout(found, S)
        elif OF_ROWS or OF_COLS:
            rows, cols = beside
            found = epilogue.of_tensor(
                given, 0, rows, cols, rows < sizes[0], cols < sizes[1], NARROW, OF_ROWS, OF_COLS, 0
            )
        else:
            found = gl.load(given[0])
        if OF_MEMORY.is_floating():
            return found.to(gl.float32)
        else:
            return found
    else:
        return given


@gluon.jit
def reciprocal(x):
    """1 / x for x from 1 to infinity, in one instruction; a division would also check how large x is."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def gelu(tile, operands, place):
    """:func:`epilogue.gelu`, with :func:`reciprocal` for its division"""
    x = epilogue.floats(tile)
    return x * epilogue.normal_share(x, reciprocal(tl.abs(x) * epilogue.OF_ABS + 1.0))


@gluon.jit
def fast_gelu(tile, operands, place):
    """:func:`epilogue.fast_gelu`, with :func:`reciprocal` for its division"""
    x = epilogue.floats(tile)
    return x * reciprocal(1.0 + gl.exp2(epilogue.exponent_of_gelu(x)))


@gluon.jit
def silu(tile, operands, place):
    """:func:`epilogue.silu`, with :func:`reciprocal` for its division"""
    x = epilogue.floats(tile)
    return x * sigmoid(x, operands, place)


@gluon.jit
def sigmoid(tile, operands, place):
    """:func:`epilogue.sigmoid`, with :func:`reciprocal` for its division"""
    return reciprocal(1.0 + gl.exp2(epilogue.floats(tile) * epilogue.LESS_LOG2_E))


ON_HOPPER = {
    epilogue.gelu: gelu, epilogue.fast_gelu: fast_gelu, epilogue.silu: silu, epilogue.sigmoid: sigmoid,
}  # fmt: skip


def on_hopper(functors: tuple[epilogue.FunctorConstants, ...]) -> tuple[epilogue.FunctorConstants, ...]:
    """Return a chain's constants with the faster functions for Hopper."""
    return tuple([one._replace(function=ON_HOPPER.get(one.function, one.function)) for one in functors])


def described(base: torch.Tensor, shape: Any, strides: Any, block: Sequence[int]) -> TensorDescriptor:
    """Return a descriptor of a matrix in memory, with the layout of its blocks in shared memory."""
    dtype = gl.float16 if base.dtype == torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for([*block], dtype)
    return TensorDescriptor(base, [*shape], [*strides], [*block], layout)


class Ahead(NamedTuple):
    """The tensors of a chain that are prefetched.

    Attributes:
        functors: the chain's constants, in which prefetched tensor i is an operand of kind BROUGHT + i.
        tensors: descriptors of the prefetched tensors.
        is_first: whether a sum may begin as these tensors: the chain adds them first, and they are fp16: the
            sums are finite, and not so large that products added to them lose many digits.
    """

    functors: tuple[epilogue.FunctorConstants, ...]
    tensors: list[TensorDescriptor]
    is_first: bool


def bring_ahead(
    functors: tuple[epilogue.FunctorConstants, ...],
    extras: tuple[Any, ...],
    shape: tuple[int, int],
    part: tuple[int, int],
    most: int,
) -> Ahead:
    """Choose the tensors of a chain that are prefetched to shared memory.

    The first tensors of one 16-bit dtype are chosen that have all of the output's rows and columns and a
    layout that TMA takes.

    Args:
        functors, extras: those of the `Bound` that `epilogues.lowered` returns.
        shape: of the output. part: rows and columns that are copied at a time. most: the most tensors.
    """
    rows, cols = shape
    found: list[TensorDescriptor] = []
    changed = []
    for constants, given in zip(functors, extras, strict=True):
        operands = [*constants.operands]
        for i, each in enumerate(given):
            kind, of_rows, of_cols, _ = operands[i]
            if kind != epilogue.TENSOR.value or not (of_rows and of_cols) or len(found) == most:
                continue
            tensor, _, strides, (col_stride,), _, _ = each
            alike = tensor.dtype in SUPPORTED and (not found or found[0].base.dtype == tensor.dtype)
            pitches = len(strides) == 1 and strides[0] * tensor.element_size() % ACCESS_BYTES == 0
            if not (alike and pitches and col_stride == 1 and strides[0] >= cols):
                continue
            if tensor.data_ptr() % ACCESS_BYTES == 0:
                operands[i] = operands[i]._replace(kind=BROUGHT.value + len(found))
                found.append(described(tensor, (rows, cols), (strides[0], 1), part))
        changed.append(constants._replace(operands=tuple(operands)))
    is_added = [one.function is epilogue.add and one.operands[0].kind >= BROUGHT.value for one in changed]
    added = sum(1 for _ in takewhile(bool, is_added))
    is_first = 0 < len(found) == added and found[0].base.dtype == torch.float16
    return Ahead(tuple(changed), found, is_first)
