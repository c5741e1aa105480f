"""The matrix product in Gluon, for Hopper: tiles of 128 x 192, which need fewer copies per sum.

As in `hopper`, one group of warps multiplies while the other finishes. For each element along K, a tile of
128 x 128 needs 256 elements of A and B for 16,384 sums, and one of 128 x 192 needs 320 for 24,576: a sixth
less for each sum. Its sums take 192 registers of a lane. It is two blocks of columns, 128 and 64, since
blocks of Triton have powers of two.

If a chain's tensors are prefetched, a program has at most two tiles: the first group has the first tile, and
the second group the second tile, if there is one. The second tile may begin as the sum of its addends, which
are prefetched while the first is multiplied. If nothing is prefetched, the groups take turns with any number
of tiles. Nothing is multiplied while a program's last tile is finished, so the first group, which is idle by
then, finishes a third of it.
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

from workbench import compat
from workbench.kernels.gemm.hopper import (
    EARLY,
    PART_COLS,
    ROWS,
    barriers,
    copy_part,
    in_parts,
    of_parts,
    place_of,
    store,
)

# The only tile of this kernel, its two blocks of columns, and its parts, which are numbered column by column.
TILE = 128, 192, 64
LEFT, RIGHT = gl.constexpr(128), gl.constexpr(64)
PARTS = gl.constexpr(6)

# In shared memory a block of B is three of 64 columns: two on the left and one on the right.
BLOCKS = gl.constexpr(3)
MARK = gl.constexpr(compat.ONE_BLOCK)

# The most tiles of a program if parts are prefetched. The fewest steps along K: one more than EARLY, after
# which parts are prefetched, and one more than the buffers of the tile's last steps in which parts are handed
# over.
MOST_TILES, FEWEST_STEPS = 2, 3

# The fewest stages; the most with which two buffers of parts fit in shared memory.
FEWEST_STAGES, MOST_STAGES_BESIDE = 3, 4

# Buffers of parts, and the number of the second tile's last parts that the first group finishes. (Two addends
# and gelu, 2048 x 3072 x 768 on H100s: with three buffers a thirtieth slower, with one part or three a
# fiftieth.)
SLOTS, HANDED = gl.constexpr(2), gl.constexpr(2)


@gluon.jit(do_not_specialize=["m", "n", "k", "tiles"])
def gemm_wide_kernel(
    # descriptors of A and of both blocks of B, or of their transposes; of prefetched tensors of the epilogue,
    # or None; a pointer to the output; the epilogue's arguments
    a, left, right, first, second, output, extra,
    # sizes of the product; parameters of PLACE, such as the output's strides; number of tiles
    m, n, k, layout, tiles,
    # meta-parameters: the tile; STAGES buffers of A and of B; BESIDE prefetched tensors; BEGIN: whether the
    # second tile begins as their sum; whether they leave the L2 cache first; the rest as in `hopper`
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BESIDE: gl.constexpr, BEGIN: gl.constexpr, EVICT_FIRST: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """output = EPILOGUE(A @ B), by persistent programs that take tile by tile."""
    A: gl.constexpr = a.block_type.shape
    R: gl.constexpr = right.block_type.shape
    of_a = gl.allocate_shared_memory(a.dtype, [STAGES, A[0], A[1]], a.layout)
    of_b = gl.allocate_shared_memory(right.dtype, [BLOCKS * STAGES, R[0], R[1]], right.layout)
    sizes = (m, n, k, tiles)
    if BESIDE > 0:
        full, free, turn, there, is_free, may_begin = barriers(
            (STAGES, STAGES, 2, 2 * SLOTS, SLOTS, 1), (1, 1, 1, 1, 1, 1)
        )
        begin_copies(
            a, left, right, of_a, of_b, full, sizes, BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, A_TRANSPOSED,
            B_TRANSPOSED,
        )  # fmt: skip
        PART: gl.constexpr = first.block_type.shape
        brought = (
            gl.allocate_shared_memory(first.dtype, [SLOTS * BESIDE, PART[0], PART[1]], first.layout),
            there, is_free, may_begin,
        )  # fmt: skip
        gl.warp_specialize(
            [
                (make_first, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, BLOCK_M, BLOCK_N,
                    BLOCK_K, STAGES, BESIDE, BEGIN, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED,
                    DIVISORS, WIDE, PRODUCTS,
                )),
                (make_second, (
                    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, BLOCK_M, BLOCK_N,
                    BLOCK_K, STAGES, BESIDE, BEGIN, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED,
                    DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, left, right, of_a, of_b, full, free, brought, sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                    ORDER, GROUP, A_TRANSPOSED, B_TRANSPOSED,
                )),
                (bring, (
                    first, second, brought, sizes, BLOCK_M, BLOCK_N, BESIDE, BEGIN, EVICT_FIRST, ORDER, GROUP,
                )),
            ],
            [4, 1, 1], [240, 24, 24],
        )  # fmt: skip
    else:
        full, free, turn = barriers((STAGES, STAGES, 3), (1, 1, 1))  # two turns, and what is handed over
        begin_copies(
            a, left, right, of_a, of_b, full, sizes, BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP, A_TRANSPOSED,
            B_TRANSPOSED,
        )  # fmt: skip
        mbarrier.arrive(turn.index(number_of_tiles(sizes) % 2), count=1)
        gl.warp_specialize(
            [
                (take_turns, (
                    of_a, of_b, full, free, turn, sizes, output, extra, layout, gl.constexpr(0), BLOCK_M,
                    BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED,
                    DIVISORS, WIDE, PRODUCTS,
                )),
                (take_turns, (
                    of_a, of_b, full, free, turn, sizes, output, extra, layout, gl.constexpr(1), BLOCK_M,
                    BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED,
                    DIVISORS, WIDE, PRODUCTS,
                )),
                (copy, (
                    a, left, right, of_a, of_b, full, free, (), sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                    ORDER, GROUP, A_TRANSPOSED, B_TRANSPOSED,
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip


@gluon.jit
def number_of_tiles(sizes):
    """Number of tiles of this program."""
    return gl.cdiv(sizes[3] - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def place_of_nth(
    nth, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr
):
    """The first row and the first column of this program's nth tile, counted from 0."""
    return place_of(gl.program_id(0) + nth * gl.num_programs(0), sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)


@gluon.jit
def begin_copies(
    a, left, right, of_a, of_b, full, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Start the copies of the first EARLY steps along K, before the groups of warps start."""
    place = place_of(gl.program_id(0), sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
    for step in gl.static_range(EARLY):
        copy_step(a, left, right, of_a, of_b, full, step, place, step * BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)


@gluon.jit
def copy(
    a, left, right, of_a, of_b, full, free, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The warp that copies the remaining blocks of A and B, after :func:`begin_copies`, into free buffers."""
    steps = gl.cdiv(sizes[2], BLOCK_K)
    done = gl.to_tensor(EARLY)
    for number in range(gl.program_id(0), sizes[3], gl.num_programs(0)):
        place = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        begin = 0
        if number == gl.program_id(0):
            begin = EARLY
        for step in range(begin, steps):
            at = done % STAGES
            mbarrier.wait(free.index(at), (done // STAGES & 1) ^ 1)
            copy_step(a, left, right, of_a, of_b, full, at, place, step * BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)
            done += 1
            if len(brought) > 0:
                if done == gl.minimum(STAGES, steps):  # A and B are needed first
                    mbarrier.arrive(brought[3].index(0), count=1)


@gluon.jit
def copy_step(
    a, left, right, of_a, of_b, full, at, place, start, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr
):
    """Copy a block of A and two of B for one step along K to free buffers."""
    row, col = place
    whole = full.index(at)
    mbarrier.expect(whole, a.block_type.nbytes + left.block_type.nbytes + right.block_type.nbytes)
    if A_TRANSPOSED:
        tma.async_copy_global_to_shared(a, [start, row], whole, of_a.index(at))
    else:
        tma.async_copy_global_to_shared(a, [row, start], whole, of_a.index(at))
    if B_TRANSPOSED:
        tma.async_copy_global_to_shared(left, [col, start], whole, left_of(of_b, at, B_TRANSPOSED))
        tma.async_copy_global_to_shared(right, [col + LEFT, start], whole, right_of(of_b, at))
    else:
        tma.async_copy_global_to_shared(left, [start, col], whole, left_of(of_b, at, B_TRANSPOSED))
        tma.async_copy_global_to_shared(right, [start, col + LEFT], whole, right_of(of_b, at))


@gluon.jit
def left_of(of_b, at, B_TRANSPOSED: gl.constexpr):
    """The buffer of the left block of B."""
    HEIGHT: gl.constexpr = of_b.shape[1] * (2 if B_TRANSPOSED else 1)
    WIDTH: gl.constexpr = of_b.shape[2] * (1 if B_TRANSPOSED else 2)
    return of_b.index(BLOCKS * at)._reinterpret(of_b.dtype, [HEIGHT, WIDTH], of_b.layout)


@gluon.jit
def right_of(of_b, at):
    """The buffer of the right block of B, directly after the left one."""
    return of_b.index(BLOCKS * at + BLOCKS - 1)


@gluon.jit
def bring(
    first, second, brought, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BESIDE: gl.constexpr,
    BEGIN: gl.constexpr, EVICT_FIRST: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The warp that prefetches the epilogue's tensors: if BEGIN, the second tile's come first."""
    mbarrier.wait(brought[3].index(0), 0)
    others = number_of_tiles(sizes) - 1
    if BEGIN:
        for _ in range(others):
            bring_tile(
                first, second, brought, sizes, 1, 0, BLOCK_M, BLOCK_N, BESIDE, EVICT_FIRST, ORDER, GROUP
            )
        bring_tile(
            first, second, brought, sizes, 0, others, BLOCK_M, BLOCK_N, BESIDE, EVICT_FIRST, ORDER, GROUP
        )
    else:
        bring_tile(first, second, brought, sizes, 0, 0, BLOCK_M, BLOCK_N, BESIDE, EVICT_FIRST, ORDER, GROUP)
        for _ in range(others):
            bring_tile(
                first, second, brought, sizes, 1, 1, BLOCK_M, BLOCK_N, BESIDE, EVICT_FIRST, ORDER, GROUP
            )


@gluon.jit
def bring_tile(
    first, second, brought, sizes, NTH: gl.constexpr, before, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BESIDE: gl.constexpr, EVICT_FIRST: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Copy all parts of a tile, each when a buffer is free; `before`: tiles that were copied earlier."""
    tiles_of, there, is_free, _ = brought
    row, col = place_of_nth(NTH, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
    for part in gl.static_range(PARTS):
        place = [row + row_of_part(part), col + col_of_part(part)]
        slot = part % SLOTS
        whole = there.index(NTH * SLOTS + slot)
        mbarrier.wait(is_free.index(slot), ((before * PARTS + part) // SLOTS & 1) ^ 1)
        mbarrier.expect(whole, BESIDE * first.block_type.nbytes)
        copy_part(first, place, whole, tiles_of.index(slot * BESIDE), EVICT_FIRST)
        if BESIDE > 1:
            copy_part(second, place, whole, tiles_of.index(slot * BESIDE + 1), EVICT_FIRST)


@gluon.constexpr_function
def row_of_part(part: int) -> int:
    """Return the first row of a part in its tile."""
    rows: int = ROWS.value
    return part % 2 * rows


@gluon.constexpr_function
def col_of_part(part: int) -> int:
    """Return the first column of a part in its tile."""
    cols: int = PART_COLS.value
    return part // 2 * cols


@gluon.jit
def taken(brought, NTH: gl.constexpr, PART: gl.constexpr, BESIDE: gl.constexpr):
    """A prefetched part for a program's first tile (NTH = 0) or second (1); its buffer is given back."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_COLS, 16]
    )
    tiles_of, there, is_free, _ = brought
    SLOT: gl.constexpr = PART % SLOTS
    mbarrier.wait(there.index(NTH * SLOTS + SLOT), PART // SLOTS & 1)
    found = ()
    for i in gl.static_range(BESIDE):
        found += (tiles_of.index(SLOT * BESIDE + i).load(S),)  # type: ignore[assignment]
    fence_async_shared()  # orders the reads before TMA writes there again
    tl.debug_barrier()  # by all warps
    mbarrier.arrive(is_free.index(SLOT), count=1)
    return found


@gluon.jit
def make_first(
    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, BESIDE: gl.constexpr,
    BEGIN: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr,
    WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """The group of warps with a program's first tile; if BEGIN, it also finishes some parts of the second."""
    steps = gl.cdiv(sizes[2], BLOCK_K)
    sums = multiply(
        zeros(BLOCK_M, LEFT), zeros(BLOCK_M, RIGHT), 0, steps, of_a, of_b, full, free, STAGES, A_TRANSPOSED,
        B_TRANSPOSED, PRODUCTS,
    )  # fmt: skip
    mbarrier.arrive(turn.index(0), count=1)
    parts = multiplied(sums, steps - 1, free, STAGES, PRODUCTS)
    row, col = place_of_nth(0, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
    finish(parts, row, col, 0, brought, sizes, output, extra, layout, BESIDE, EPILOGUE, PLACE, DIVISORS, WIDE)
    if BEGIN:
        for _ in range(1, number_of_tiles(sizes)):
            row, col = place_of_nth(1, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
            finish_handed(
                of_a, turn.index(1), 2 * steps - 1, row, col, sizes, output, extra, layout, STAGES, EPILOGUE,
                PLACE, DIVISORS, WIDE,
            )  # fmt: skip


@gluon.jit
def make_second(
    of_a, of_b, full, free, turn, brought, sizes, output, extra, layout, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, BESIDE: gl.constexpr,
    BEGIN: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr,
    WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """The group of warps with a program's second tile, if there is one."""
    steps = gl.cdiv(sizes[2], BLOCK_K)
    for _ in range(1, number_of_tiles(sizes)):
        if BEGIN:
            addends = ()
            for i in gl.static_range(PARTS):
                there = taken(brought, 1, i, BESIDE)
                part = there[0].to(gl.float32)
                if BESIDE > 1:
                    part += there[1].to(gl.float32)
                addends += (part,)  # type: ignore[assignment]
            p, q = of_columns(addends, BLOCK_M)
        else:
            p, q = zeros(BLOCK_M, LEFT), zeros(BLOCK_M, RIGHT)
        row, col = place_of_nth(1, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        mbarrier.wait(turn.index(0), 0)
        sums = multiply(
            p, q, steps, steps, of_a, of_b, full, free, STAGES, A_TRANSPOSED, B_TRANSPOSED, PRODUCTS
        )
        parts = multiplied(sums, 2 * steps - 1, free, STAGES, PRODUCTS)
        if BEGIN:
            hand_over(parts, of_a, turn.index(1), 2 * steps - 1, STAGES)
            for i in gl.static_range(PARTS - HANDED):
                store(
                    parts[i], row + row_of_part(i), col + col_of_part(i), (), sizes, output, extra, layout,
                    True, EPILOGUE, PLACE, DIVISORS, WIDE,
                )  # fmt: skip
        else:
            finish(
                parts, row, col, 1, brought, sizes, output, extra, layout, BESIDE, EPILOGUE, PLACE, DIVISORS,
                WIDE,
            )  # fmt: skip


@gluon.jit
def take_turns(
    of_a, of_b, full, free, turn, sizes, output, extra, layout, WHO: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """A group of warps, if nothing is prefetched: groups take tiles in turns, the second group the last one.

    The first group, which is idle by then, finishes a third of the last tile.
    """
    steps = gl.cdiv(sizes[2], BLOCK_K)
    number = number_of_tiles(sizes)
    for nth in range((number + WHO) % 2, number, 2):
        mbarrier.wait(turn.index(WHO), nth // 2 & 1)
        sums = multiply(
            zeros(BLOCK_M, LEFT), zeros(BLOCK_M, RIGHT), nth * steps, steps, of_a, of_b, full, free, STAGES,
            A_TRANSPOSED, B_TRANSPOSED, PRODUCTS,
        )  # fmt: skip
        mbarrier.arrive(turn.index(1 - WHO), count=1)
        parts = multiplied(sums, (nth + 1) * steps - 1, free, STAGES, PRODUCTS)
        if WHO == 1:
            if nth == number - 1:
                hand_over(parts, of_a, turn.index(2), number * steps - 1, STAGES)
        row, col = place_of_nth(nth, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        for i in gl.static_range(PARTS):
            if WHO == 0 or i < PARTS - HANDED or nth < number - 1:
                store(
                    parts[i], row + row_of_part(i), col + col_of_part(i), (), sizes, output, extra, layout,
                    False, EPILOGUE, PLACE, DIVISORS, WIDE,
                )  # fmt: skip
    if WHO == 0:
        row, col = place_of_nth(number - 1, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        finish_handed(
            of_a, turn.index(2), number * steps - 1, row, col, sizes, output, extra, layout, STAGES, EPILOGUE,
            PLACE, DIVISORS, WIDE,
        )  # fmt: skip


@gluon.jit
def zeros(BLOCK_M: gl.constexpr, COLS: gl.constexpr):
    """Zeros for the sums of a block of columns."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLS, 16]
    )
    return gl.zeros([BLOCK_M, COLS], gl.float32, LAYOUT)


@gluon.jit
def multiply(
    p, q, done, steps, of_a, of_b, full, free, STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, PRODUCTS: gl.constexpr,
):  # fmt: skip
    """Add A @ B to the sums of both blocks of columns; the last step's products may still be running.

    MARK makes one product of 192 columns of a step's two. Products of 64 columns take the whole bandwidth of
    shared memory, so nothing else could read there while they run.

    Args:
        done: earlier steps of the program.
    """
    for step in range(steps):
        at, half = (done + step) % STAGES, (done + step) // STAGES & 1
        mbarrier.wait(full.index(at), half)
        x, y, z = of_a.index(at), left_of(of_b, at, B_TRANSPOSED), right_of(of_b, at)
        if A_TRANSPOSED:
            x = x.permute((1, 0))
        if B_TRANSPOSED:
            y = y.permute((1, 0))
            z = z.permute((1, 0))
        if PRODUCTS:
            gl.inline_asm_elementwise(MARK, "=r,r", [0], gl.int32, is_pure=False, pack=1)
            of_p = warpgroup_mma(x, y, p, is_async=True)
            of_q = warpgroup_mma(x, z, q, is_async=True)
            p, q = warpgroup_mma_wait(2, deps=[of_p, of_q])
        if step > 0:
            mbarrier.arrive(free.index((done + step - 1) % STAGES), count=1)
    return p, q


@gluon.jit
def multiplied(sums, last, free, STAGES: gl.constexpr, PRODUCTS: gl.constexpr):
    """Parts of the tile, after the last step's products have ended."""
    p, q = sums
    if PRODUCTS:
        p, q = warpgroup_mma_wait(0, deps=[p, q])
    mbarrier.arrive(free.index(last % STAGES), count=1)
    of_p = in_parts(p, 2, 2)
    of_q = in_parts(q, 2, 1)
    return of_p[0], of_p[2], of_p[1], of_p[3], of_q[0], of_q[1]


@gluon.jit
def of_columns(parts, BLOCK_M: gl.constexpr):
    """The blocks of columns from their parts: the inverse of the order in :func:`multiplied`."""
    P: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, LEFT, 16]
    )
    Q: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, RIGHT, 16]
    )
    p = of_parts((parts[0], parts[2], parts[1], parts[3]), 2, 2)
    q = of_parts((parts[4], parts[5]), 2, 1)
    return gl.convert_layout(p, P), gl.convert_layout(q, Q)


@gluon.jit
def finish(
    parts, row, col, NTH: gl.constexpr, brought, sizes, output, extra, layout, BESIDE: gl.constexpr,
    EPILOGUE: gl.constexpr, PLACE: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a tile with prefetched tensors and store it, part by part.

    A part's tensors are read, and their buffer is given back, before the previous part is finished.
    """
    ahead = taken(brought, NTH, 0, BESIDE)
    for i in gl.static_range(PARTS):
        there = ahead
        if i + 1 < PARTS:
            ahead = taken(brought, NTH, i + 1, BESIDE)
        store(
            parts[i], row + row_of_part(i), col + col_of_part(i), there, sizes, output, extra, layout, False,
            EPILOGUE, PLACE, DIVISORS, WIDE,
        )  # fmt: skip


@gluon.jit
def hand_over(parts, of_a, barrier, last, STAGES: gl.constexpr):
    """Hand the last parts of a tile's sums to the other group; `last`: the program's last step."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_COLS, 16]
    )
    for i in gl.static_range(PARTS - HANDED, PARTS):
        handed(of_a, i, last, STAGES).store(gl.convert_layout(parts[i], S))
    tl.debug_barrier()  # by all warps
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def finish_handed(
    of_a, barrier, last, row, col, sizes, output, extra, layout, STAGES: gl.constexpr, EPILOGUE: gl.constexpr,
    PLACE: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to the parts that :func:`hand_over` gives, and store them."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART_COLS, 16]
    )
    mbarrier.wait(barrier, 0)
    for i in gl.static_range(PARTS - HANDED, PARTS):
        store(
            handed(of_a, i, last, STAGES).load(S), row + row_of_part(i), col + col_of_part(i), (), sizes,
            output, extra, layout, True, EPILOGUE, PLACE, DIVISORS, WIDE,
        )  # fmt: skip


@gluon.jit
def handed(of_a, PART: gl.constexpr, last, STAGES: gl.constexpr):
    """Room for a part of the sums that one group hands to the other: A's buffer of one of the last steps.

    These steps belong to the tile whose parts are handed over, so its group has waited for their products.
    """
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    at = (last - (PARTS - 1 - PART)) % STAGES
    return of_a.index(at)._reinterpret(gl.float32, [ROWS, PART_COLS], LAYOUT)
