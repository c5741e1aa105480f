"""Grouped matrix products: many products of uneven sizes in one launch, as a mixture of experts needs them.

One of m, n and k is divided into consecutive groups by offsets that stay on the device, so the CPU does not
know how many tiles there are. Each program finds out to which group its tile belongs. There are as many
programs as there can be tiles, or fewer, each of which then computes several tiles in turn.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_power_of_two,
    check_type,
)
from workbench.kernels.epilogues import Epilogue, Frame, bind
from workbench.kernels.gemm import (
    PRECISIONS,
    Checks,
    check_epilogue,
    check_output,
    divisors,
    output_dtypes,
    with_epilogue,
)
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS, least_bytes
from workbench.kernels.tile import epilogue, gemm, order, transfer
from workbench.launch import Launch, Step, Work

SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@triton.jit
def grouped_gemm_kernel(
    # pointers: of A, B, the output and the offsets, the ends of groups; the epilogue's arguments
    a_pointer, b_pointer, output_pointer, offsets_pointer, extra,
    # sizes (m, n, k), with the total of all groups for the divided one; number of groups
    sizes, groups,
    # strides in elements: of A, B and the output, each of groups, rows and columns; of the offsets
    strides, offsets_stride,
    # meta-parameters: the tile; rows of tiles in a group of the launch order; a power of two above `groups`
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TOGETHER: tl.constexpr,
    GROUPS: tl.constexpr,
    # which of m, n and k is divided; the epilogue; type and precision of the products
    AXIS: tl.constexpr, EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    # which sides need checks; divisors of sizes and strides; whether offsets need 64 bits
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """output of each group = EPILOGUE(A of the group @ B of the group); 0 after the last group.

    Tiles are numbered group by group. A tile's group is the number of groups whose tiles end before it.
    """
    each = tl.arange(0, GROUPS)
    begin, end = bounds(each, groups, offsets_pointer, offsets_stride, sizes[AXIS], WIDE)
    rows, cols = tiles_of(end - begin, sizes, AXIS, BLOCK_M, BLOCK_N)
    # What lies after the last group counts as one more group, with output 0; along k it would add nothing.
    last = groups - 1 if AXIS == 2 else groups
    ends = tl.cumsum(tl.where(each <= last, rows * cols, 0).to(tl.int32), 0)
    for number in tl.range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        group = tl.sum((ends <= number).to(tl.int32), 0)
        first = tl.max(tl.where(ends <= number, ends, 0), 0)
        one_tile(
            number - first, group, a_pointer, b_pointer, output_pointer, offsets_pointer, extra, sizes,
            groups, strides, offsets_stride, BLOCK_M, BLOCK_N, BLOCK_K, TOGETHER, AXIS, EPILOGUE, ACCUMULATOR,
            PRECISION, CHECKS, DIVISORS, WIDE,
        )  # fmt: skip


@triton.jit
def bounds(group, groups, offsets_pointer, offsets_stride, total, WIDE: tl.constexpr):
    """Begin and end of a group; group number `groups` is what lies after all others.

    For any offsets they are within [0, total], and no group ends before it begins.

    Args:
        group: its number, or a tile of numbers.
    """
    begin = tl.load(
        offsets_pointer + (group - 1) * offsets_stride, mask=(group > 0) & (group <= groups), other=0
    )
    end = tl.load(offsets_pointer + group * offsets_stride, mask=group < groups, other=0)
    if WIDE:
        begin, end = begin.to(tl.int64), end.to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), total)
    end = tl.minimum(tl.where(group < groups, end, total), total)
    return begin, tl.maximum(begin, end)


@triton.jit
def tiles_of(length, sizes, AXIS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Number of tiles in a group, as (rows of tiles, columns of tiles); `length`: of its divided axis."""
    m = length if AXIS == 0 else sizes[0]
    n = length if AXIS == 1 else sizes[1]
    return tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)


@triton.jit
def one_tile(
    # number of the tile within its group; number of the group; the rest as in grouped_gemm_kernel
    number, group, a, b, output, offsets_pointer, extra, sizes, groups, strides, offsets_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TOGETHER: tl.constexpr,
    AXIS: tl.constexpr, EPILOGUE: tl.constexpr, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    CHECKS: tl.constexpr, DIVISORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute one tile of a group's product and store it."""
    OF_SIZES: tl.constexpr = DIVISORS.sizes
    OF_A: tl.constexpr = DIVISORS.a
    OF_B: tl.constexpr = DIVISORS.b
    OF_OUTPUT: tl.constexpr = DIVISORS.output
    m, n, k = transfer.multiples_of(sizes, OF_SIZES)
    a_strides = transfer.multiples_of(strides[0], OF_A)
    b_strides = transfer.multiples_of(strides[1], OF_B)
    output_strides = transfer.multiples_of(strides[2], OF_OUTPUT)
    begin, end = bounds(group, groups, offsets_pointer, offsets_stride, sizes[AXIS], WIDE)
    rows, cols = tiles_of(end - begin, sizes, AXIS, BLOCK_M, BLOCK_N)
    tile_row, tile_col = order.grouped(number, rows, cols, TOGETHER)
    row, col = tile_row * BLOCK_M, tile_col * BLOCK_N
    if WIDE:
        group, row, col = tl.cast(group, tl.int64), tl.cast(row, tl.int64), tl.cast(col, tl.int64)
        k = tl.cast(k, tl.int64)
    a += group * a_strides[0]
    b += group * b_strides[0]
    output += group * output_strides[0]
    if AXIS == 0:
        a += begin * a_strides[1]
        output += begin * output_strides[1]
        m = end - begin
    elif AXIS == 1:
        b += begin * b_strides[2]
        output += begin * output_strides[2]
        n = end - begin
    else:
        a += begin * a_strides[2]
        b += begin * b_strides[1]
        k = end - begin
    of_rows, of_cols = row + tl.arange(0, BLOCK_M)[:, None], col + tl.arange(0, BLOCK_N)[None, :]
    if group < groups:
        (product,) = gemm.mainloop(
            (a, (m, k), (a_strides[1], a_strides[2])), ((b, (k, n), (b_strides[1], b_strides[2])),),
            row, col, 0, tl.cdiv(k, BLOCK_K), k, BLOCK_M, (BLOCK_N,), BLOCK_K, gemm.load_strided,
            gemm.load_strided, CHECKS.m, CHECKS.n, CHECKS.k, ACCUMULATOR, PRECISION,
        )  # fmt: skip
        # Rows and columns of the tile within the whole output.
        rows_there = of_rows + (begin if AXIS == 0 else 0)
        cols_there = of_cols + (begin if AXIS == 1 else 0)
        tile = epilogue.applied(
            product, group, rows_there, cols_there, of_rows < m, of_cols < n, extra, EPILOGUE
        ).to(output.dtype.element_ty)  # fmt: skip
    else:
        tile = gemm.zeros(BLOCK_M, BLOCK_N, ACCUMULATOR).to(output.dtype.element_ty)
    offsets = of_rows * output_strides[1] + of_cols * output_strides[2]
    transfer.store(output, offsets, tile, (of_rows < m) & (of_cols < n))


# Rows of tiles in a group of `order.grouped`: programs that run at one time share tiles of B.
TOGETHER = 8

# Every program keeps one number per group in registers.
MOST_GROUPS = 4096

# The longest side of a tile of the output, by bytes of an element; bytes of a tile's row along K.
LONGEST_SIDE = {2: 128, 4: 64, 8: 64}
TILE_ROW_BYTES = 128

# Bytes of the output's tile per warp, in the operands' dtype.
BYTES_OF_A_WARP = 2048


class Divisors(NamedTuple):
    """The divisors of the sizes, and of the strides of A, B and the output."""

    sizes: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]
    output: tuple[int, ...]


class GroupedProblem(NamedTuple):
    """Grouped products as the kernel sees them.

    Attributes:
        axis: index into `sizes` of the size that is divided into groups.
        groups: number of groups.
        sizes: m, n and k, with the total of all groups for the divided one.
        shape: of the output.
    """

    axis: int
    groups: int
    sizes: tuple[int, int, int]
    shape: tuple[int, ...]


def problem_of(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> GroupedProblem:
    """Return the problem of operands that :func:`is_supported` accepts."""
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    axis = {(2, 3): 0, (3, 2): 1, (2, 2): 2}[a.dim(), b.dim()]
    groups = offs.shape[0]
    return GroupedProblem(axis, groups, sizes, (groups, *sizes[:2]) if axis == 2 else sizes[:2])


def new_output(problem: GroupedProblem, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a new output whose rows begin at multiples of 16 bytes, as torch's grouped_mm allocates it."""
    shape, itemsize = problem.shape, dtype.itemsize
    pitch = max(triton.cdiv(shape[-1] * itemsize, ACCESS_BYTES), 1) * ACCESS_BYTES // itemsize
    strides = (*(shape[-2] * pitch for _ in shape[:-2]), pitch, 1)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


# What to do if :func:`is_supported` gives a reason.
OPERANDS_WANTED = (
    "Give plain tensors of one supported dtype on one device: (m, k) or (groups, m, k), and (k, n) or "
    "(groups, k, n), not both with groups; and offs of shape (groups,) in int32 on that device, of at "
    f"most {MOST_GROUPS} groups."
)


def is_supported(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, *, names: tuple[str, str] = ("a", "b")
) -> str:
    """Return why the template cannot take these operands; empty if it can. The reason uses `names`."""
    first, second = names
    for name, tensor in ((first, a), (second, b)):
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is not a plain strided tensor"
        if tensor.dim() not in (2, 3):
            return f"{name} has {tensor.dim()} dimensions, not 2 or 3"
    if a.dim() == b.dim() == 3:
        both = f"{first} and {second} have 3 dimensions"
        return f"{both}: gemm.launch multiplies such batches, without offsets"
    if a.dtype != b.dtype:
        return f"{first} is {a.dtype}, {second} is {b.dtype}"
    if a.shape[-1] != b.shape[-2]:
        shapes = f"{first} has shape {tuple(a.shape)}, {second} {tuple(b.shape)}"
        return f"{shapes}: {a.shape[-1]} and {b.shape[-2]} along K"
    if offs.dtype != torch.int32:
        return f"offs is {offs.dtype}, not int32"
    if offs.dim() != 1:
        return f"offs has {offs.dim()} dimensions, not 1"
    if offs.shape[0] > MOST_GROUPS:
        return f"offs has {offs.shape[0]} groups, more than {MOST_GROUPS}"
    for name, tensor in ((first, a), (second, b)):
        if tensor.dim() == 3 and tensor.shape[0] != offs.shape[0]:
            return f"{name} has {tensor.shape[0]} matrices, offs {offs.shape[0]} groups"
    for name, tensor in ((second, b), ("offs", offs)):
        if tensor.device != a.device:
            return f"{first} is on {a.device}, {name} on {tensor.device}"
    return ""


def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor,
    *,
    output: torch.Tensor | None = None,
    epilogue: Epilogue | None = None,
    tile: Sequence[int] | None = None,
    precision: str = "ieee",
    programs: int | None = None,
    num_warps: int | None = None,
    num_stages: int = 3,
) -> Launch:
    """Return the launch of the product of each group g, the part [offs[g - 1], offs[g]) of the divided axis.

    ==============  ==============  ==============  ====================================
    a               b               output
    ==============  ==============  ==============  ====================================
    [total_m, k]    [groups, k, n]  [total_m, n]    output[part] = a[part] @ b[g]
    [groups, m, k]  [k, total_n]    [m, total_n]    output[:, part] = a[g] @ b[:, part]
    [m, total_k]    [total_k, n]    [groups, m, n]  output[g] = a[:, part] @ b[part]
    ==============  ==============  ==============  ====================================

    The first case is a mixture of experts, each with its matrix b[g]; the others are its gradients. The first
    part begins at 0. Any part may be empty; a product with nothing along k is 0. What lies after the last
    offset belongs to no group: the output is 0 there (torch leaves it uninitialized), and a and b are not
    read. Offsets must not decrease, nor exceed the length of the divided axis. They stay on the device, so
    this is not checked, but memory outside the tensors is never accessed.

    Products are accumulated in fp32 (fp64 in fp64), each by one program, always in the same order.

    FLOPs: 2 m n k of all groups together, and those of the epilogue. Least bytes: a, b, offs and the
    epilogue's tensors read once, the output written once. Both assume that the groups cover everything and
    none is empty, since the offsets are not known here.

    Args:
        a, b: as above, of one dtype in `SUPPORTED`, with any strides.
        offs: int32 [groups], on the device of a and b.
        output: as above, of any floating dtype (with an epilogue also int8 or int32), with any strides by
            which no two elements share memory; None for a new tensor of the operands' dtype, or of the dtype
            that the epilogue casts to.
        epilogue: a chain of functors (`epilogues`) for each group's product, whose tensors broadcast to
            [groups, m, n] with the output's rows and columns: (groups, n) is a bias for each group. None for
            none.
        tile: m, n and k of a tile, powers of two of 16 or more; None for :func:`default_tile`.
        precision: of fp32 operands, "tf32" or "ieee".
        programs: number of programs, each of which computes tile after tile; None for as many programs as
            there can be tiles (:func:`most_tiles`).
        num_warps: None for :func:`default_warps`. num_stages: of the loop over K.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `precision`.
        InvalidArgumentError, ArgumentTypeError: another argument.
    """
    for name, tensor in (("a", a), ("b", b), ("offs", offs)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if reason := is_supported(a, b, offs):
        raise TensorMismatchError("a, b, offs", reason, OPERANDS_WANTED)
    check_name("precision", precision, PRECISIONS)
    problem = problem_of(a, b, offs)
    chain = Epilogue() if epilogue is None else epilogue
    check_type("epilogue", chain, Epilogue, "Give an epilogue, such as relu(), or None.")
    if output is None:
        output = new_output(problem, chain.result_dtype(a.dtype), a.device)
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    check_epilogue(chain, output.dtype)
    check_output(output, problem.shape, a.device, output_dtypes(a.dtype, chain))
    m, n, k = problem.sizes
    work = Work(2 * m * n * k, least_bytes(a, b, offs, output))
    work = with_epilogue(work, chain, output.numel())
    accumulator = torch.float64 if a.dtype == torch.float64 else torch.float32
    bound = bind(chain, Frame((problem.groups, m, n)), accumulator, output.dtype, a.device)
    if output.numel() == 0:
        return Launch((), (output,), work=work)
    blocks = default_tile(problem, a.element_size()) if tile is None else _checked_tile(tile)
    block_m, block_n, block_k = blocks
    most = most_tiles(problem, blocks)
    strides = tuple((t.stride(0) if t.dim() == 3 else 0, *t.stride()[-2:]) for t in (a, b, output))
    checks = [
        axis == problem.axis or size % length != 0 or size == 0
        for axis, (size, length) in enumerate(zip(problem.sizes, blocks, strict=True))
    ]
    step = Step(
        grouped_gemm_kernel,
        (most if programs is None else min(check_positive("programs", programs), most),),
        (a, b, output, offs, bound.extras, problem.sizes, problem.groups, strides, offs.stride(0)),
        {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "TOGETHER": TOGETHER,
            "GROUPS": triton.next_power_of_2(problem.groups + 1), "AXIS": problem.axis,
            "EPILOGUE": bound.functors,
            "ACCUMULATOR": tl.float64 if a.dtype == torch.float64 else tl.float32, "PRECISION": precision,
            "CHECKS": Checks(*checks),
            "DIVISORS": _divisors(problem, strides, a.element_size(), output.element_size()),
            "WIDE": _is_wide(problem, strides, blocks) or bound.reach > MOST_OFFSETS_IN_32_BITS,
            "num_warps": check_power_of_two(
                "num_warps", default_warps(blocks, a.element_size()) if num_warps is None else num_warps
            ),
            "num_stages": check_positive("num_stages", num_stages),
        },
    )  # fmt: skip
    return Launch((step,), (output,), work=work)


def default_tile(problem: GroupedProblem, itemsize: int) -> tuple[int, int, int]:
    """Return m, n and k of a tile that a group of average size fills, with sides of 16 to `LONGEST_SIDE`.

    The choice was not measured.
    """
    sizes = [*problem.sizes]
    sizes[problem.axis] = triton.cdiv(sizes[problem.axis], max(problem.groups, 1))
    rows, cols = (min(max(triton.next_power_of_2(size), 16), LONGEST_SIDE[itemsize]) for size in sizes[:2])
    return rows, cols, TILE_ROW_BYTES // itemsize


def default_warps(tile: tuple[int, int, int], itemsize: int) -> int:
    """Return 4 or 8 warps, 8 for tiles of 16 KB or more.

    With :func:`default_tile` no kernel spills registers on Hopper, unless row pitches are odd.
    """
    return min(max(tile[0] * tile[1] * itemsize // BYTES_OF_A_WARP, 4), 8)


def most_tiles(problem: GroupedProblem, tile: tuple[int, int, int]) -> int:
    """Return the most tiles that there can be for any offsets."""
    counts: list[int] = [
        triton.cdiv(size, length) for size, length in zip(problem.sizes[:2], tile[:2], strict=True)
    ]
    if problem.axis == 2:
        return problem.groups * math.prod(counts)
    # The last tile of each group, and of the rest after the last group, has at least one row or column.
    total, length = problem.sizes[problem.axis], tile[problem.axis]
    counts[problem.axis] = min((total + (problem.groups + 1) * (length - 1)) // length, total)
    return math.prod(counts)


def _checked_tile(tile: Sequence[int]) -> tuple[int, int, int]:
    fix = "Give m, n and k of a tile, such as (128, 128, 64)."
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 3:
        raise InvalidArgumentError("tile", f"got {tile!r}", fix)
    for i, length in enumerate(tile):
        if check_power_of_two(f"tile[{i}]", length) < 16:
            raise InvalidArgumentError(f"tile[{i}]", f"got {length}", "Give a power of two of 16 or more.")
    return tile[0], tile[1], tile[2]


def _divisors(
    problem: GroupedProblem, strides: Sequence[Sequence[int]], itemsize: int, output_itemsize: int
) -> Divisors:
    """Return the divisors of m, n, k and the strides, as far as they widen an access.

    Multiples of 16, which Triton finds by itself, get 1. The size that is divided also gets 1: its total says
    nothing about one group, and changes with every batch.
    """
    sizes = [1 if axis == problem.axis else size for axis, size in enumerate(problem.sizes)]
    a, b, output = strides
    return Divisors(
        divisors(sizes, itemsize), divisors(a, itemsize), divisors(b, itemsize),
        divisors(output, output_itemsize),
    )  # fmt: skip


def _is_wide(problem: GroupedProblem, strides: Sequence[Sequence[int]], tile: tuple[int, int, int]) -> bool:
    """Return whether an offset, or a padded length, needs 64 bits."""
    m, n, k = (size + length for size, length in zip(problem.sizes, tile, strict=True))
    reach = max(m, n, k)
    for (rows, cols), steps in zip(((m, k), (k, n), (m, n)), strides, strict=True):
        reach = max(reach, problem.groups * steps[0] + rows * steps[1] + cols * steps[2])
    return reach > MOST_OFFSETS_IN_32_BITS
