"""The matrix product in Gluon, for Hopper: two groups of warps, of which one multiplies while one finishes.

In a kernel of Triton's language all warps of a program multiply, and then all of them finish their tile:
while an epilogue loads its tensors, computes and stores, the tensor cores have nothing to do, and a second
program on the same unit, which began at the same time, finishes at the same time too. Here a program has two
groups of four warps, with a tile each. While one multiplies, the other one finishes; then they change places
(CUTLASS's ping-pong schedule). One more warp starts the copies (TMA) of the tiles of A and B that both need,
in turns, and is told by barriers in shared memory when a buffer is free.

Programs are persistent: there are as many as compute units, and each takes tile by tile. The functors of an
epilogue are those of `tile.epilogue`, which Gluon compiles as they are.
"""

from typing import Any

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

from workbench.kernels.tile import epilogue, transfer

SUPPORTED = (torch.float16, torch.bfloat16)

# Of each of the two groups that multiply.
WARPS = 4

# A matrix instruction's rows, of which a tile has a multiple, and its columns, at least and at most; elements
# of a tile, which a group keeps in registers.
ROWS, COLS = 64, (32, 256)
MOST_ELEMENTS = 128 * 128


@gluon.jit(do_not_specialize=["m", "n", "k", "tiles"])
def gemm_ping_pong_kernel(
    # descriptors of A and B, or of what is transposed of them; a pointer; the epilogue's own arguments
    a, b, output, extra,
    # sizes of the product; strides of the output, or what else PLACE takes; how many tiles there are
    m, n, k, layout, tiles,
    # meta-parameters: the tile; buffers of A and of B; how tiles are numbered; what the product becomes, and
    # where its elements lie; whether the descriptors have A's and B's transpose; what divides the sizes and
    # the strides of the output; whether offsets need 64 bits
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """output = EPILOGUE(A @ B), tile by tile, as many as a program gets."""
    A: gl.constexpr = a.block_type.shape
    B: gl.constexpr = b.block_type.shape
    of_a = gl.allocate_shared_memory(a.dtype, [STAGES, A[0], A[1]], a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, [STAGES, B[0], B[1]], b.layout)
    full, free, turn = barriers(STAGES), barriers(STAGES), barriers(2)
    mbarrier.arrive(turn.index(0), count=1)
    sizes = (m, n, k, tiles)
    gl.warp_specialize(
        [
            (multiply_and_finish, (
                of_a, of_b, full, free, turn, sizes, output, extra, layout, gl.constexpr(0), BLOCK_M, BLOCK_N,
                BLOCK_K, STAGES, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE,
            )),
            (multiply_and_finish, (
                of_a, of_b, full, free, turn, sizes, output, extra, layout, gl.constexpr(1), BLOCK_M, BLOCK_N,
                BLOCK_K, STAGES, ORDER, GROUP, EPILOGUE, PLACE, A_TRANSPOSED, B_TRANSPOSED, DIVISORS, WIDE,
            )),
            (copy, (
                a, b, of_a, of_b, full, free, sizes, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP,
                A_TRANSPOSED, B_TRANSPOSED,
            )),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


@gluon.jit
def barriers(NUMBER: gl.constexpr):
    """So many barriers in shared memory, each of which opens when one has arrived."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=1)
    return made


@gluon.jit
def place_of(
    number, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr
):
    """The first row and the first column of tile `number`."""
    tile_row, tile_col = ORDER(number, gl.cdiv(sizes[0], BLOCK_M), gl.cdiv(sizes[1], BLOCK_N), GROUP)
    return tile_row * BLOCK_M, tile_col * BLOCK_N


@gluon.jit
def copy(
    a, b, of_a, of_b, full, free, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The warp that copies: of each tile, along K, a block of A and one of B, once their buffers are free."""
    done = 0
    for number in range(gl.program_id(0), sizes[3], gl.num_programs(0)):
        row, col = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
        for step in range(gl.cdiv(sizes[2], BLOCK_K)):
            at, half = done % STAGES, done // STAGES & 1
            mbarrier.wait(free.index(at), half ^ 1)
            mbarrier.expect(full.index(at), a.block_type.nbytes + b.block_type.nbytes)
            start = step * BLOCK_K
            if A_TRANSPOSED:
                tma.async_copy_global_to_shared(a, [start, row], full.index(at), of_a.index(at))
            else:
                tma.async_copy_global_to_shared(a, [row, start], full.index(at), of_a.index(at))
            if B_TRANSPOSED:
                tma.async_copy_global_to_shared(b, [col, start], full.index(at), of_b.index(at))
            else:
                tma.async_copy_global_to_shared(b, [start, col], full.index(at), of_b.index(at))
            done += 1


@gluon.jit
def multiply_and_finish(
    of_a, of_b, full, free, turn, sizes, output, extra, layout, WHO: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """A group of warps, with every second tile of its program.

    Which buffers are its own follows from how many steps there were before. A barrier tells even rounds from
    odd ones and no more, so a group looks at them only when it is its turn.
    """
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    steps = gl.cdiv(sizes[2], BLOCK_K)
    done, around = WHO * steps, 0
    for number in range(gl.program_id(0) + WHO * gl.num_programs(0), sizes[3], 2 * gl.num_programs(0)):
        mbarrier.wait(turn.index(WHO), around)
        sums = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, S)
        for step in range(steps):
            at, half = (done + step) % STAGES, (done + step) // STAGES & 1
            mbarrier.wait(full.index(at), half)
            x, y = of_a.index(at), of_b.index(at)
            if A_TRANSPOSED:
                x = x.permute((1, 0))
            if B_TRANSPOSED:
                y = y.permute((1, 0))
            token = warpgroup_mma(x, y, sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[token])
            if step > 0:
                mbarrier.arrive(free.index((done + step - 1) % STAGES), count=1)
        mbarrier.arrive(turn.index(1 - WHO), count=1)
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index((done + steps - 1) % STAGES), count=1)
        finish(
            sums, number, sizes, output, extra, layout, BLOCK_M, BLOCK_N, ORDER, GROUP, EPILOGUE, PLACE,
            DIVISORS, WIDE,
        )  # fmt: skip
        done += 2 * steps
        around ^= 1


@gluon.jit
def finish(
    sums, number, sizes, output, extra, layout, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, EPILOGUE: gl.constexpr, PLACE: gl.constexpr,
    DIVISORS: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Store what the epilogue makes of a tile; by halves, for which registers last, where there is one."""
    row, col = place_of(number, sizes, BLOCK_M, BLOCK_N, ORDER, GROUP)
    if WIDE:
        row, col = row.to(gl.int64), col.to(gl.int64)
    if len(EPILOGUE) > 0:
        left, right = gl.split(gl.permute(gl.reshape(sums, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
        finish_part(left, row, col, sizes, output, extra, layout, EPILOGUE, PLACE, DIVISORS)
        finish_part(right, row, col + BLOCK_N // 2, sizes, output, extra, layout, EPILOGUE, PLACE, DIVISORS)
    else:
        finish_part(sums, row, col, sizes, output, extra, layout, EPILOGUE, PLACE, DIVISORS)


@gluon.jit
def finish_part(
    part, row, col, sizes, output, extra, layout, EPILOGUE: gl.constexpr, PLACE: gl.constexpr,
    DIVISORS: gl.constexpr,
):  # fmt: skip
    """Store what the epilogue makes of a part of a tile.

    What is loaded and stored has 16 bytes to a lane, in rows; products lie otherwise, as the matrix units
    leave them. Tensors of the output's shape are brought to the products, as narrow as they are.
    """
    ROWS: gl.constexpr = part.shape[0]
    COLS: gl.constexpr = part.shape[1]
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLS, 16]
    )
    B: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLS, COLS // 8], [4, 1], [1, 0])
    OF_SIZES: gl.constexpr = DIVISORS[0]
    OF_OUTPUT: gl.constexpr = DIVISORS[1]
    rows, cols = places(row, col, ROWS, COLS, B)
    m, n, _ = transfer.multiples_of((sizes[0], sizes[1], sizes[2]), OF_SIZES)
    tile = gl.convert_layout(part, S)
    if len(EPILOGUE) > 0:
        beside = places(row, col, ROWS, COLS, S)
        for i in gl.static_range(len(EPILOGUE)):
            tile = of_functor(tile, (rows, cols), beside, m, n, extra[i], S, EPILOGUE, i)
    if len(OF_OUTPUT) > 0:
        layout = transfer.multiples_of(layout, OF_OUTPUT)
    offsets, valid = PLACE(rows, cols, layout)
    gl.store(
        output + offsets, gl.convert_layout(tile.to(output.dtype.element_ty), B),
        mask=(rows < m) & (cols < n) & valid,
    )  # fmt: skip


@gluon.jit
def places(row, col, ROWS: gl.constexpr, COLS: gl.constexpr, LAYOUT: gl.constexpr):
    """The numbers of a tile's rows, [ROWS, 1], and columns, [1, COLS]."""
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    cols = col + gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))[None, :]
    return rows, cols


@gluon.jit
def of_functor(
    tile, in_rows_of_memory, beside, m, n, extra, S: gl.constexpr, EPILOGUE: gl.constexpr,
    NUMBER: gl.constexpr,
):  # fmt: skip
    """:func:`epilogue.of_functor` of a tile that lies as S says."""
    FUNCTOR: gl.constexpr = EPILOGUE[NUMBER]
    FUNCTION: gl.constexpr = FUNCTOR[0]
    operands = ()
    for i in gl.static_range(len(extra)):
        operands += (  # type: ignore[assignment]
            operand(
                extra[i], in_rows_of_memory, beside, m, n, S, FUNCTOR[4 * i + 1], FUNCTOR[4 * i + 2],
                FUNCTOR[4 * i + 3],
            ),
        )  # fmt: skip
    return FUNCTION(tile, operands, (0, beside[0], beside[1]))


@gluon.jit
def operand(
    given, in_rows_of_memory, beside, m, n, S: gl.constexpr, KIND: gl.constexpr, OF_ROWS: gl.constexpr,
    OF_COLS: gl.constexpr,
):  # fmt: skip
    """:func:`epilogue.operand`, floats in fp32."""
    if KIND == epilogue.TENSOR:
        OF_MEMORY: gl.constexpr = given[0].dtype.element_ty
        NARROW: gl.constexpr = gl.float32 if OF_MEMORY.is_fp8() else OF_MEMORY
        if OF_ROWS and OF_COLS:
            rows, cols = in_rows_of_memory
            found = epilogue.of_tensor(given, 0, rows, cols, rows < m, cols < n, NARROW, OF_ROWS, OF_COLS, 0)
            found = gl.convert_layout(found, S)
        elif OF_ROWS or OF_COLS:
            rows, cols = beside
            found = epilogue.of_tensor(given, 0, rows, cols, rows < m, cols < n, NARROW, OF_ROWS, OF_COLS, 0)
        else:
            found = gl.load(given[0])
        if OF_MEMORY.is_floating():
            return found.to(gl.float32)
        else:
            return found
    else:
        return given


def described(descriptor: Any) -> TensorDescriptor:
    """A descriptor of a matrix as Gluon has it, which knows how its blocks lie in shared memory."""
    base, block = descriptor.base, [*descriptor.block_shape]
    dtype = gl.float16 if base.dtype == torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(base, [*descriptor.shape], [*descriptor.strides], block, layout)
