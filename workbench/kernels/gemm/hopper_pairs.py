"""The matrix product in Gluon, for Hopper: two groups of warps with neighboring tiles share blocks of A.

As in `hopper`, programs have two groups of four warps, a tile for each, and a warp that copies. In `hopper`,
one group multiplies while the other finishes, so each needs blocks of A and of B at its own time, and tiles
of 128 x 128 need all that a multiprocessor can load. Here the groups have neighboring tiles of one row, and
multiply the same block of A, each by its own block of B: three blocks instead of four.

Both would finish at the same time. So one group is SKEW steps behind the other along K: it skips the first
steps, and takes them at the end. While one group finishes, the other multiplies steps that the first does not
need at that time. The tensors that a chain adds first are added to the sums half-way, part by part, while the
other group multiplies: then less is left to finish.
"""

from __future__ import annotations

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

from workbench.kernels.gemm.hopper import (
    PART_COLS,
    ROWS,
    barriers,
    copy_part,
    finish,
    number_of_columns,
    of_parts,
)

# Fewer buffers, each for a block of A and two of B, were not tried.
FEWEST_STAGES = 4

# The most tiles of a program in pairs, as a multiple of its tiles without pairs. More extra tiles, during
# which nothing is multiplied or other programs have ended, lose more than sharing gains.
MOST_TILES = 1.05

# Steps by which the second group is behind the first, during which one of them finishes. (Two addends and
# gelu on an H200: 5, 7, 9 and 12 take the same time within 0.5 %; times are in docs/notebook.)
SKEW = gl.constexpr(7)


@gluon.jit(do_not_specialize=["m", "n", "k", "pairs"])
def gemm_pairs_kernel(
    # descriptors of A and B or of their transposes; of the tensors that are added first, or None; a pointer
    # to the output; the epilogue's arguments
    a, b, first, second, output, extra,
    # sizes of the product; parameters of PLACE, such as the output's strides; number of pairs of tiles
    m, n, k, layout, pairs,
    # meta-parameters: the tile; STAGES buffers of A and of pairs of blocks of B; BESIDE tensors that are
    # added first; the launch order of pairs; the epilogue; access function of the output; whether the
    # descriptors have the transposes of A and B; divisors of the sizes and of the output's strides; whether
    # offsets need 64 bits; PRODUCTS: false to skip the multiplications and do all else, as if A were 0
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BESIDE: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr,
    WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """output = EPILOGUE(A @ B), by persistent programs that take pairs of tiles that lie side by side."""
    A: gl.constexpr = a.block_type.shape
    B: gl.constexpr = b.block_type.shape
    of_a = gl.allocate_shared_memory(a.dtype, [STAGES, A[0], A[1]], a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, [2 * STAGES, B[0], B[1]], b.layout)
    sizes = (m, n, k, pairs)
    if BESIDE > 0:
        full, free, turn, there, is_free, may_begin = barriers(
            (STAGES, STAGES, 2, 2, 1, 1), (1, 2, 1, 1, 1, 1)
        )
        mbarrier.arrive(turn.index(0), count=1)
        PART: gl.constexpr = first.block_type.shape
        brought = (
            gl.allocate_shared_memory(first.dtype, [BESIDE, PART[0], PART[1]], first.layout),
            there, is_free, may_begin,
        )  # fmt: skip
        gl.warp_specialize(
            [
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, gl.constexpr(0),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, gl.constexpr(1),
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BESIDE, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, b, of_a, of_b, full, free, brought, sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER,
                    GROUP, A_TRANSPOSED, B_TRANSPOSED,
                )),
                (bring, (first, second, brought, sizes, BLOCK_M, BLOCK_N, BESIDE, ORDER, GROUP)),
            ],
            [4, 1, 1], [240, 24, 24],
        )  # fmt: skip
    else:
        full, free, turn = barriers((STAGES, STAGES, 2), (1, 2, 1))
        mbarrier.arrive(turn.index(0), count=1)
        gl.warp_specialize(
            [
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, (), sizes, output, extra, layout, gl.constexpr(0), BLOCK_M,
                    BLOCK_N, BLOCK_K, STAGES, BESIDE, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (multiply_and_finish, (
                    of_a, of_b, full, free, turn, (), sizes, output, extra, layout, gl.constexpr(1), BLOCK_M,
                    BLOCK_N, BLOCK_K, STAGES, BESIDE, ORDER, GROUP, EPILOGUE, PLACE,
                    A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, b, of_a, of_b, full, free, (), sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP,
                    A_TRANSPOSED, B_TRANSPOSED,
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip


@gluon.jit
def number_of_pairs(sizes):
    """Number of pairs of this program."""
    return gl.cdiv(sizes[3] - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def place_of(
    nth, WHO: gl.constexpr, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """The first row and the first column of a group's tile in a program's nth pair."""
    pair = gl.program_id(0) + nth * gl.num_programs(0)
    row, col = ORDER(pair, gl.cdiv(sizes[0], BLOCK_M), gl.cdiv(sizes[1], 2 * BLOCK_N), GROUP)
    return row * BLOCK_M, (2 * col + WHO) * BLOCK_N


@gluon.jit
def copy(
    a, b, of_a, of_b, full, free, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The warp that copies blocks along K: for the first group alone, for both, then for the second alone."""
    steps = gl.cdiv(sizes[2], BLOCK_K)
    done = 0
    for nth in range(number_of_pairs(sizes)):
        place = place_of(nth, 0, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        for step in range(SKEW):
            copy_step(
                a, b, of_a, of_b, full, free, done, place, step * BLOCK_K, True, False, STAGES, BLOCK_N,
                A_TRANSPOSED, B_TRANSPOSED,
            )  # fmt: skip
            done += 1
        for step in range(SKEW, steps):
            copy_step(
                a, b, of_a, of_b, full, free, done, place, step * BLOCK_K, True, True, STAGES, BLOCK_N,
                A_TRANSPOSED, B_TRANSPOSED,
            )  # fmt: skip
            done += 1
            if len(brought) > 0:
                if done == SKEW + 1:  # A and B are needed first, and before anything is added
                    mbarrier.arrive(brought[3].index(0), count=1)
        for step in range(SKEW):
            copy_step(
                a, b, of_a, of_b, full, free, done, place, step * BLOCK_K, False, True, STAGES, BLOCK_N,
                A_TRANSPOSED, B_TRANSPOSED,
            )  # fmt: skip
            done += 1


@gluon.jit
def copy_step(
    a, b, of_a, of_b, full, free, done, place, start, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_N: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Copy a block of A, and one of B for each group that needs one, once their buffers are free."""
    BLOCKS: gl.constexpr = 2 if LEFT and RIGHT else 1
    row, col = place
    at = done % STAGES
    whole = full.index(at)
    mbarrier.wait(free.index(at), (done // STAGES & 1) ^ 1)
    mbarrier.expect(whole, a.block_type.nbytes + BLOCKS * b.block_type.nbytes)
    if A_TRANSPOSED:
        tma.async_copy_global_to_shared(a, [start, row], whole, of_a.index(at))
    else:
        tma.async_copy_global_to_shared(a, [row, start], whole, of_a.index(at))
    for who in gl.static_range(2):
        if RIGHT if who else LEFT:
            if B_TRANSPOSED:
                where = [col + who * BLOCK_N, start]
            else:
                where = [start, col + who * BLOCK_N]
            tma.async_copy_global_to_shared(b, where, whole, of_b.index(2 * at + who))


@gluon.jit
def bring(
    first, second, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The warp that copies the tensors that are added first, part by part, in turns for both groups."""
    COLUMNS: gl.constexpr = number_of_columns(BLOCK_N)
    PARTS: gl.constexpr = BLOCK_M // ROWS * COLUMNS
    tiles_of, there, is_free, may_begin = brought
    mbarrier.wait(may_begin.index(0), 0)
    for nth in range(number_of_pairs(sizes)):
        for part in gl.static_range(PARTS):
            for who in gl.static_range(2):
                row, col = place_of(nth, who, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
                place = [row + part // COLUMNS * ROWS, col + part % COLUMNS * PART_COLS]
                mbarrier.wait(is_free.index(0), ((nth * PARTS + part) * 2 + who & 1) ^ 1)
                mbarrier.expect(there.index(who), BESIDE * first.block_type.nbytes)
                copy_part(first, place, there.index(who), tiles_of.index(0), True)
                if BESIDE > 1:
                    copy_part(second, place, there.index(who), tiles_of.index(1), True)


@gluon.jit
def multiply_and_finish(
    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, WHO: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BESIDE: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr,
    WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """A group of warps, with one tile of each of its program's pairs: the left ones, or the right ones."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    steps = gl.cdiv(sizes[2], BLOCK_K)
    for nth in range(number_of_pairs(sizes)):
        row, col = place_of(nth, WHO, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        sums = multiply(
            gl.zeros([BLOCK_M, BLOCK_N], gl.float32, S), nth, steps, of_a, of_b, full, free, turn, brought,
            WHO, STAGES, BESIDE, A_TRANSPOSED, B_TRANSPOSED, PRODUCTS,
        )  # fmt: skip
        finish(
            sums, row, col, nth, nth, (), sizes, output, extra, layout, 0, 0, BESIDE > 0, EPILOGUE, PLACE,
            DIVISORS, WIDE,
        )  # fmt: skip


@gluon.jit
def multiply(
    sums, nth, steps, of_a, of_b, full, free, turn, brought, WHO: gl.constexpr,
    STAGES: gl.constexpr, BESIDE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    PRODUCTS: gl.constexpr,
):  # fmt: skip
    """sums + A @ B of the group's tile of the program's nth pair.

    The number of earlier pairs tells a group which buffers are its own. A barrier only tells even rounds from
    odd ones, so a group that was absent for some rounds waits for it again when it is its turn.
    """
    PARTS: gl.constexpr = sums.shape[0] // ROWS * number_of_columns(sums.shape[1])
    SEGMENTS: gl.constexpr = PARTS + 1 if BESIDE > 0 else 1
    done = nth * (steps + SKEW) + WHO * SKEW
    mbarrier.wait(turn.index(WHO), nth & 1)
    begin = 0
    for segment in gl.static_range(SEGMENTS):
        end = steps
        if segment < SEGMENTS - 1:
            end = when_added(segment, WHO, steps)
        for step in range(begin, end):
            at = (done + step) % STAGES
            mbarrier.wait(full.index(at), (done + step) // STAGES & 1)
            x, y = of_a.index(at), of_b.index(2 * at + WHO)
            if A_TRANSPOSED:
                x = x.permute((1, 0))
            if B_TRANSPOSED:
                y = y.permute((1, 0))
            if PRODUCTS:
                token = warpgroup_mma(x, y, sums, is_async=True)
                sums = warpgroup_mma_wait(1, deps=[token])
            if step > begin:
                give_free(free, done, step - 1, steps, WHO, STAGES)
            if WHO == 0 and segment == 0:
                if step == SKEW - 1:
                    mbarrier.arrive(turn.index(1), count=1)
        if WHO == 1 and segment == SEGMENTS - 1:
            mbarrier.arrive(turn.index(0), count=1)
        sums = warpgroup_mma_wait(0, deps=[sums])
        give_free(free, done, end - 1, steps, WHO, STAGES)
        if segment < SEGMENTS - 1:
            sums = with_part(sums, brought, nth, segment, PARTS, WHO, BESIDE)
        begin = end
    return sums


@gluon.jit
def when_added(PART: gl.constexpr, WHO: gl.constexpr, steps):
    """The step before which a part is added: evenly spaced, so that the copying warp can keep up."""
    apart = gl.maximum(steps * 5 // 32, 2)
    return gl.maximum(steps * 5 // 16, SKEW) + PART * apart + WHO * (apart // 2 - SKEW)


@gluon.jit
def give_free(free, done, step, steps, WHO: gl.constexpr, STAGES: gl.constexpr):
    """Give back the buffers of a step; on behalf of the other group too, if that does not read them."""
    at = free.index((done + step) % STAGES)
    alone = step < SKEW
    if WHO == 1:
        alone = step >= steps - SKEW
    if alone:
        mbarrier.arrive(at, count=2)
    else:
        mbarrier.arrive(at, count=1)


@gluon.jit
def with_part(
    sums, brought, nth, PART: gl.constexpr, PARTS: gl.constexpr, WHO: gl.constexpr, BESIDE: gl.constexpr
):
    """sums + the copied tensors, in one part of the tile."""
    COLUMNS: gl.constexpr = number_of_columns(sums.shape[1])
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, sums.shape[1] // COLUMNS, 16]
    )
    tiles_of, there, is_free, _ = brought
    mbarrier.wait(there.index(WHO), nth * PARTS + PART & 1)
    part = tiles_of.index(0).load(S).to(gl.float32)
    if BESIDE > 1:
        part += tiles_of.index(1).load(S).to(gl.float32)
    fence_async_shared()  # orders the reads before TMA writes there again
    tl.debug_barrier()  # by all warps
    mbarrier.arrive(is_free.index(0), count=1)
    tile = ()
    for i in gl.static_range(PARTS):
        # Add 0 to the other parts: if only some change, ptxas keeps those elsewhere, and waits for each
        # product.
        tile += (part if i == PART else gl.zeros(part.shape, gl.float32, S),)  # type: ignore[assignment]
    return sums + gl.convert_layout(of_parts(tile, sums.shape[0] // ROWS, COLUMNS), sums.type.layout)
