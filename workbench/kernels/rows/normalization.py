"""Layer norm and RMS norm with their gradients: row operators, and one kernel that adds up over rows too."""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench.errors import (
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels.layout import Rows, distinct_elements, may_share, rows_of
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Operator, Plan
from workbench.kernels.tile import reduce, transfer
from workbench.kernels.views import Described
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache


@triton.jit
def state_of_row(tiles, of_columns, of_rows, valid, cols):
    """Welford's state of rows in one tile."""
    return reduce.welford_of_row(tiles[0], valid, cols)


@triton.jit
def seen(kept, tiles, of_columns, of_rows, valid, tally):
    """Welford's mean and squares, by lane, once a tile of x was seen too."""
    return reduce.welford_update(kept, tiles[0], valid, tally)


@triton.jit
def mean_and_scale(state, cols, epsilon):
    """mean, 1 / sqrt(variance + epsilon)"""
    mean, variance = reduce.welford_finish(state)
    return mean, tl.rsqrt(variance + reduce.scalar(epsilon, variance.dtype))


@triton.jit
def sum_of_squares(tiles, of_columns, of_rows, valid, cols):
    """sum of x^2"""
    return (tl.sum(tiles[0] * tiles[0], 1),)


@triton.jit
def add_squares(kept, tiles, of_columns, of_rows, valid, tally):
    """x^2, added by lane"""
    return (kept[0] + tiles[0] * tiles[0],)


@triton.jit
def root_scale(state, cols, epsilon):
    """1 / sqrt(mean of x^2 + epsilon)"""
    mean = reduce.quotient(state[0], reduce.scalar(cols, state[0].dtype))
    return (tl.rsqrt(mean + reduce.scalar(epsilon, mean.dtype)),)


@triton.jit
def centered(tiles, of_columns, of_rows, result):
    """(x - mean) * scale"""
    return (tiles[0] - result[0][:, None]) * result[1][:, None]


@triton.jit
def centered_weighted(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight"""
    return centered(tiles, of_columns, of_rows, result) * of_columns[0]


@triton.jit
def centered_affine(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias"""
    return centered_weighted(tiles, of_columns, of_rows, result) + of_columns[1]


@triton.jit
def scaled(tiles, of_columns, of_rows, result):
    """x * scale"""
    return tiles[0] * result[0][:, None]


@triton.jit
def scaled_weighted(tiles, of_columns, of_rows, result):
    """x * scale * weight"""
    return scaled(tiles, of_columns, of_rows, result) * of_columns[0]


# The gradients of x. Sources are x and the output's gradient; what is known of each row is what the forward
# pass found out, the mean and the scale, or the scale alone. With n = normalized x and g = gradient * weight,
# layer norm: scale * (g - mean of g - n * mean of (g * n)); RMS norm: scale * (g - n * mean of (g * n)).


@triton.jit
def two_zeros(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """The sums of nothing, by lane."""
    return tl.zeros([ROWS, COLS], TYPE), tl.zeros([ROWS, COLS], TYPE)


@triton.jit
def settle_both(kept, tallies, count):
    """The two sums of each row from those of its lanes."""
    return tl.sum(kept[0], 1), tl.sum(kept[1], 1)


@triton.jit
def both_means(state, cols, parameter):
    """The two means."""
    return state[0] / cols, state[1] / cols


@triton.jit
def one_mean(state, cols, parameter):
    """The mean."""
    return (state[0] / cols,)


@triton.jit
def weighted(gradient, of_columns):
    """gradient * weight, where there is one; rounded, so that of a row of one its mean leaves nothing."""
    if len(of_columns) == 0:
        return gradient
    else:
        return reduce.product(gradient, of_columns[0])


@triton.jit
def centered_again(tiles, of_rows):
    """(x - mean) * scale, from what is known of the rows"""
    return (tiles[0] - of_rows[0][:, None]) * of_rows[1][:, None]


@triton.jit
def scaled_again(tiles, of_rows):
    """x * scale, from what is known of the rows"""
    return tiles[0] * of_rows[0][:, None]


@triton.jit
def centered_sums(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n, sum of g"""
    g = weighted(tiles[1], of_columns)
    return tl.sum(g * centered_again(tiles, of_rows), 1), tl.sum(g, 1)


@triton.jit
def add_centered(kept, tiles, of_columns, of_rows, valid, tally):
    """g * n and g, added by lane"""
    g = weighted(tiles[1], of_columns)
    return kept[0] + g * centered_again(tiles, of_rows), kept[1] + g


@triton.jit
def centered_gradient(tiles, of_columns, of_rows, result):
    """scale * (g - mean of g - n * mean of (g * n))"""
    n, g = centered_again(tiles, of_rows), weighted(tiles[1], of_columns)
    return of_rows[1][:, None] * (g - result[1][:, None] - n * result[0][:, None])


@triton.jit
def scaled_sum(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n"""
    return (tl.sum(weighted(tiles[1], of_columns) * scaled_again(tiles, of_rows), 1),)


@triton.jit
def add_scaled(kept, tiles, of_columns, of_rows, valid, tally):
    """g * n, added by lane"""
    return (kept[0] + weighted(tiles[1], of_columns) * scaled_again(tiles, of_rows),)


@triton.jit
def scaled_gradient(tiles, of_columns, of_rows, result):
    """scale * (g - n * mean of (g * n))"""
    n, g = scaled_again(tiles, of_rows), weighted(tiles[1], of_columns)
    return of_rows[0][:, None] * (g - n * result[0][:, None])


@triton.jit
def norm_backward_kernel(
    # pointers: x and the output's gradient, the weight, what is known of the rows; the gradient of x, and
    # what each program adds to those of weight and bias, [programs, VECTORS, cols]
    sources, columns, given, destination, parts,
    # sizes
    rows, cols,
    # what the access function is given, for x, the output's gradient and x's gradient
    layouts,
    # meta-parameters
    WHOLE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr,
    NORMALIZED: tl.constexpr, ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr,
    TYPE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, VECTORS: tl.constexpr, EXACT: tl.constexpr,
    WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """rowwise_kernel for the gradient of x, which adds up those of weight and bias on the way.

    weight: sum over rows of gradient * n; bias: sum over rows of the gradient. Each program leaves the sums
    of its rows, which a second step adds up.
    """
    layouts = transfer.known(layouts, DIVISORS)
    col = rowwise.columns_from(0, COLS, WIDE)
    of_columns = rowwise.load_each(columns, col[None, :], col[None, :] < cols)
    of_weight = tl.zeros([ROWS, COLS], TYPE)
    of_bias = tl.zeros([ROWS, COLS], TYPE)
    for number in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        of_rows = rowwise.load_each(given, row, row < rows)
        tiles, valid = rowwise.load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        result = FINISH(WHOLE(tiles, of_columns, of_rows, valid, cols), cols, 0.0)
        offsets, valid = rowwise.access(row, col, layouts[2], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)
        of_weight += tiles[1] * NORMALIZED(tiles, of_rows)
        of_bias += tiles[1]
    place = (tl.program_id(0) * VECTORS).to(col.dtype) * cols + col
    transfer.store(parts, place, tl.sum(of_weight, 0), col < cols)
    if VECTORS > 1:
        transfer.store(parts, place + cols, tl.sum(of_bias, 0), col < cols)


@triton.jit
def norm_columns_backward_kernel(
    # as in norm_backward_kernel, and the states of the rows, which the first step left
    sources, columns, given, states, destination, parts, rows, cols, layouts,
    MERGE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, NORMALIZED: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, SHARES: tl.constexpr,
    VECTORS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All gradients, once the sums of each row are known: COLS columns, and one of SHARES shares of the rows.

    A program stays in its columns, so that it adds up what the rows give to weight and bias. It takes the
    last rows first, of which the cache still holds some.
    """
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    share = tl.program_id(0) % SHARES
    col = rowwise.columns_from(tl.program_id(0) // SHARES * COLS, COLS, WIDE)
    of_columns = rowwise.load_each(columns, col[None, :], col[None, :] < cols)
    of_weight = tl.zeros([ROWS, COLS], TYPE)
    of_bias = tl.zeros([ROWS, COLS], TYPE)
    for number in tl.range(share, tl.cdiv(rows, ROWS), SHARES, num_stages=STAGES):
        row = rowwise.rows_of_tile(tl.cdiv(rows, ROWS) - 1 - number, ROWS, WIDE)
        of_rows = rowwise.load_each(given, row, row < rows)
        tiles, _ = rowwise.load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        result = FINISH(rowwise.joined_states(states, row, rows, SPLITS, MERGE), cols, 0.0)
        offsets, valid = rowwise.access(row, col, layouts[2], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)
        of_weight += tiles[1] * NORMALIZED(tiles, of_rows)
        of_bias += tiles[1]
    place = (share * VECTORS).to(col.dtype) * cols + col
    transfer.store(parts, place, tl.sum(of_weight, 0), col < cols)
    if VECTORS > 1:
        transfer.store(parts, place + cols, tl.sum(of_bias, 0), col < cols)


@triton.jit
def sum_of_parts_kernel(
    # pointers: [programs, VECTORS, cols]; VECTORS tensors [cols]
    parts, outputs,
    # sizes
    programs, cols,
    # meta-parameters: programs and columns of a tile
    ROWS: tl.constexpr, COLS: tl.constexpr, VECTORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """outputs[vector][col] = sum over programs of parts[program, vector, col]"""
    col, vector = rowwise.columns_from(tl.program_id(0) * COLS, COLS, WIDE), tl.program_id(1)
    total = tl.zeros([ROWS, COLS], parts.dtype.element_ty)
    for start in range(0, programs, ROWS):
        part = rowwise.columns_from(start, ROWS, WIDE)
        offsets = (part[:, None] * VECTORS + vector) * cols + col[None, :]
        total += transfer.load(parts, offsets, (part[:, None] < programs) & (col[None, :] < cols))
    of_columns = tl.sum(total, 0)
    for i in tl.static_range(VECTORS):
        if vector == i:
            transfer.store(outputs[i], col, of_columns, col < cols)


_ZERO = (0.0,)
_WELFORD = (state_of_row, reduce.welford_init, seen, reduce.welford_settle, None)
_SQUARES = (sum_of_squares, reduce.zero_init, add_squares, reduce.zero_settle, reduce.add)
_BOTH = (centered_sums, two_zeros, add_centered, settle_both, reduce.add_both, both_means)
_ONE = (scaled_sum, reduce.zero_init, add_scaled, reduce.zero_settle, reduce.add, one_mean)


class Norm(NamedTuple):
    """A normalization: its row operators by what columns there are, and what its gradients need."""

    forward: tuple[Operator, ...]
    backward: Operator
    normalized: Any


NORMS = {
    "layer_norm": Norm(
        tuple(
            Operator(*_WELFORD, mean_and_scale, apply, _ZERO, 4, reduce.across_numbers)
            for apply in (centered, centered_weighted, centered_affine)
        ),
        Operator(*_BOTH, centered_gradient, _ZERO * 2, 2),
        centered_again,
    ),
    "rms_norm": Norm(
        tuple(Operator(*_SQUARES, root_scale, apply, _ZERO, 1) for apply in (scaled, scaled_weighted)),
        Operator(*_ONE, scaled_gradient, _ZERO * 2, 1),
        scaled_again,
    ),
}

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# What the gradients need of each row: mean and scale, or the scale alone.
STATISTICS = {"layer_norm": 2, "rms_norm": 1}

# Rows of up to so many columns are taken as a whole; longer ones in tiles of fewer, by more warps.
MOST_WHOLE = 16384
TILE_COLS = {"layer_norm": 4096, "rms_norm": 8192}
TILE_PER_WARP, TILE_WARPS = 512, 16
SPLIT_COLS = 8192

# The tile of rows that are neighbors in memory, and programs for each compute unit where they are split. With
# 64 rows a program that joins states takes 254 registers (sm_90), with these 128.
ACROSS_TILE, ACROSS_PER_UNIT = (32, 64), 8

# A tile's elements where rows are shorter than that, as long as there are so many tiles for each compute
# unit; and a warp's, but of up to four warps half as many. Tiles of the shortest rows are one warp's.
FEWEST_ELEMENTS, FEWEST_TILES_PER_UNIT = 4096, 8
ELEMENTS_PER_WARP, HALVED_WARPS = 1024, 4
SHORT_COLS = 256

# The gradients: rows of up to so many columns and bytes in one kernel, whose programs each add up the
# gradients of weight and bias over several tiles of rows; a tile's elements, of the shortest rows fewer; so
# many warps to a compute unit. H200, 4096 x 256, layer norm: 8 us, with a tile to each program 10.
MOST_FUSED, MOST_FUSED_BYTES = {"layer_norm": 8192, "rms_norm": 16384}, 32768
SHORT_BACKWARD_ELEMENTS, BACKWARD_ELEMENTS = 1024, 2048
BACKWARD_ELEMENTS_PER_WARP = 512
BACKWARD_WARPS_PER_UNIT, FEWEST_BACKWARD_TILES = 16, 3
# Tiles that loads run ahead of the arithmetic, if what they bring fits into so many bytes of shared memory.
# H200, 16384 x 4096, layer norm: 103 us, with none ahead 126; one ahead alone gains nothing.
BACKWARD_AHEAD, BACKWARD_AHEAD_BYTES = 2, 65536

# Longer rows are gone over twice: for their sums, in tiles of so many columns, and so many a warp; then by
# columns, with so many programs for each compute unit.
SUMS_COLS, SUMS_PER_WARP = 2048, 512
COLUMNS_TILE, COLUMNS_WARPS, COLUMNS_PER_UNIT = (4, 512), 4, 8
COLUMNS_AHEAD, COLUMNS_AHEAD_BYTES = 3, 32768

# Adding up what the programs left: programs and columns of a tile, whose rows are two sectors each; of fewer
# programs it has more columns.
PARTS_TILE, PARTS_WARPS = (128, 16), 8

FLOPS = {"layer_norm": 8, "rms_norm": 4, "layer_norm_backward": 14, "rms_norm_backward": 11}


def is_supported(norm: str, x: torch.Tensor, cols: int, *others: torch.Tensor | None) -> str:
    """Why the templates cannot take these tensors, in words; empty when they can.

    Args:
        norm: a name in `NORMS`.
        x: what is normalized.
        cols: the elements that are normalized together.
        others: weight and bias, each of so many elements, or None.
    """
    for name, tensor in zip(("x", "weight", "bias"), (x, *others), strict=False):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}, not a tensor"
        if tensor.dtype not in SUPPORTED:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in SUPPORTED)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.device != x.device:
            return f"{name} is on {tensor.device}, x on {x.device}"
        if tensor is not x and (tensor.numel() != cols or not tensor.is_contiguous()):
            return (
                f"{name} has shape {tuple(tensor.shape)}, strides {tensor.stride()}; {cols} elements in a row"
            )
    if norm == "rms_norm" and len(others) > 1 and others[1] is not None:
        return "rms_norm has no bias"
    return ""


def launch(
    norm: str,
    x: torch.Tensor,
    rank: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    output: torch.Tensor | None = None,
    with_statistics: bool = False,
    tile: Sequence[int] | None = None,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """Normalize `x` over its last `rank` dimensions.

    layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias; rms_norm: x / sqrt(mean of x^2 +
    epsilon) * weight. The arithmetic is in fp32, for fp64 in fp64.

    FLOPs: 8 an element for layer_norm, 4 for rms_norm. Least bytes: x, weight and bias read once, the outputs
    written once.

    Args:
        norm: a name in `NORMS`.
        x: a tensor of any strides.
        rank: how many dimensions are normalized together.
        weight, bias: contiguous, of the shape of these dimensions, or None; a bias needs a weight.
        epsilon: added to the variance, or to the mean square.
        output: where the result goes, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        with_statistics: also give what the gradients need of each row: mean and scale, or the scale alone.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Returns:
        a launch with the outputs (result,), and with statistics (result, mean, scale) or (result, scale).

    Raises:
        UnknownNameError: `norm`. DimensionError: x has fewer dimensions than `rank`. TensorMismatchError:
        tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("norm", norm, NORMS)
    check_type("epsilon", epsilon, float | int, "Give a number.")
    rows, cols = _rows_and_cols(x, rank)
    if reason := is_supported(norm, x, cols, weight, bias):
        raise TensorMismatchError("x, weight, bias", reason, "Give contiguous weights of as many elements.")
    if bias is not None and weight is None:
        raise TensorMismatchError("bias", "given without a weight", "Give a weight of ones.")
    output = checked_output(x, output)
    dims = frozenset(range(x.dim() - rank, x.dim()))
    results = statistics(norm, x, rows) if with_statistics else []
    columns = [t for t in (weight, bias) if t is not None]
    work = Work(
        FLOPS[norm] * x.numel(),
        sum(distinct_elements(t) * t.element_size() for t in (x, *columns, output, *results)),
    )
    if x.numel() == 0:
        return Launch((), (output, *results), work=work)
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    shape = default_tile(norm, view, rowwise.units_of(compute_units)) if tile is None else tile
    plan = planned(
        view, x.element_size(), rowwise.checked_tile(shape), splits=splits, programs=programs,
        num_warps=num_warps, compute_units=compute_units,
    )  # fmt: skip
    return _launch(norm, x, columns, output, results, epsilon, dims, plan, work)


def _rows_and_cols(x: torch.Tensor, rank: int) -> tuple[int, int]:
    """How many rows `x` has, and how many elements each, if its last `rank` dimensions are the columns."""
    check_type("x", x, torch.Tensor, "Give a torch.Tensor.")
    first = x.dim() - check_positive("rank", rank)
    if first < 0:
        raise DimensionError("rank", f"got {rank}", f"x has {x.dim()} dimensions.")
    return x.shape[:first].numel(), x.shape[first:].numel()


def statistics(norm: str, x: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """Where mean and scale of each row go, or the scale alone: in the type of the arithmetic."""
    dtype = _statistics_dtype(x)
    return [torch.empty(rows, dtype=dtype, device=x.device) for _ in range(STATISTICS[norm])]


_launches = LaunchCache()


def run(
    norm: str,
    x: torch.Tensor,
    rank: int,
    columns: Sequence[torch.Tensor],
    epsilon: float,
    output: torch.Tensor,
    results: Sequence[torch.Tensor] = (),
) -> None:
    """`launch(norm, x, rank, *columns, ...).run()`, kept ready for tensors that lie alike."""
    dtypes = tuple([t.dtype for t in columns])
    layouts = (x.shape, x.stride(), x.dtype, x.device, output.stride(), output.dtype)
    make = partial(_make, norm, rank, len(columns), epsilon)
    key = (norm, rank, dtypes, epsilon or repr(epsilon), len(results), layouts)
    _launches.run(key, make, x, *columns, output, *results)


def _make(
    norm: str, rank: int, count: int, epsilon: float, x: torch.Tensor, *tensors: torch.Tensor
) -> Launch:
    """The launch of `run`, on x, `count` tensors by column, output, and results by row."""
    dims = frozenset(range(x.dim() - rank, x.dim()))
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    plan = planned(view, x.element_size(), default_tile(norm, view, rowwise.units_of(None)))
    return _launch(norm, x, tensors[:count], tensors[count], tensors[count + 1 :], epsilon, dims, plan)


def planned(
    view: Rows | Described,
    itemsize: int,
    tile: tuple[int, int],
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Plan:
    """How programs share `view` in tiles of this shape; what is given is taken, the rest is chosen.

    As of :func:`rowwise.plan`. But rows that are split are split into their tiles, if columns are neighbors
    in memory and there are at most :data:`rowwise.MOST_SPLITS` tiles: a program with one tile needs fewer
    registers.
    """
    is_whole = tile[1] >= view.cols
    if num_warps is None:
        elements = math.prod(tile)
        each, most = (ELEMENTS_PER_WARP, rowwise.MOST_WARPS) if is_whole else (TILE_PER_WARP, TILE_WARPS)
        halved = min(2 * elements // each, HALVED_WARPS if tile[1] > SHORT_COLS else 1)
        num_warps = min(max(elements // each, halved, 1), most)
    if splits is None and is_whole:
        splits = 1
    row_tiles, col_tiles = triton.cdiv(view.rows, tile[0]), triton.cdiv(view.cols, tile[1])
    is_few = row_tiles < rowwise.FEWEST_PER_UNIT * rowwise.units_of(compute_units)
    if splits is None and is_few and view.are_cols_neighbors and col_tiles <= rowwise.MOST_SPLITS:
        splits = col_tiles
    return rowwise.plan(
        view, itemsize, tile, splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else ACROSS_PER_UNIT,
    )  # fmt: skip


def default_tile(norm: str, view: Rows | Described, compute_units: int) -> tuple[int, int]:
    """A program's rows and columns.

    Rows of up to :data:`MOST_WHOLE` columns: as a whole, several where they are short, so that a tile has
    :data:`FEWEST_ELEMENTS`, or of the shortest one warp's share, if there are then enough tiles for each
    compute unit. Longer ones: :data:`TILE_COLS` columns,
    :data:`SPLIT_COLS` where rows are so few that they are split. Where rows, not columns, are neighbors in
    memory: :data:`ACROSS_TILE`.
    """
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if not view.are_cols_neighbors:
        rows = min(rows, ACROSS_TILE[0])
        return rows, min(cols, math.prod(ACROSS_TILE) // rows)
    if cols <= MOST_WHOLE:
        is_short = cols <= SHORT_COLS
        rows = min(rows, max((ELEMENTS_PER_WARP if is_short else FEWEST_ELEMENTS) // cols, 1))
        fewest = rowwise.FEWEST_PER_UNIT if is_short else FEWEST_TILES_PER_UNIT
        return rowwise.enough_tiles(view, rows, fewest * compute_units), cols
    is_split = view.rows < rowwise.FEWEST_PER_UNIT * compute_units and cols > 2 * SPLIT_COLS
    return 1, SPLIT_COLS if is_split else TILE_COLS[norm]


def _launch(
    norm: str,
    x: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    dims: frozenset[int],
    plan: Plan,
    work: Work | None = None,
) -> Launch:
    return rowwise.launch(
        NORMS[norm].forward[len(columns)], (x,), output, dims, plan,
        columns=columns, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip


def launch_backward(
    norm: str,
    gradient: torch.Tensor,
    x: torch.Tensor,
    rank: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    *,
    vectors: int | None = None,
    fused: bool | None = None,
    compute_units: int | None = None,
) -> Launch:
    """The gradients of x, and of weight and bias.

    FLOPs: 14 an element for layer_norm, 11 for rms_norm. Least bytes: gradient, x, statistics and weight read
    once, the gradients written once.

    Args:
        norm: a name in `NORMS`.
        gradient: of the output, of the shape of x, any strides.
        x: what was normalized, any strides.
        rank: how many dimensions were normalized together.
        weight: as in the forward pass; None for none.
        results: the statistics that :func:`launch` gave, contiguous.
        vectors: how many of weight and bias want a gradient: 0, 1 or 2; None for 1 where there is a weight.
        fused: all in one pass over the rows; or in two, of which the first finds the sums of each row. None:
            fused for rows of up to :data:`MOST_FUSED` columns and :data:`MOST_FUSED_BYTES`, neighbors in
            memory. Of no use for the gradient of x alone.
        compute_units: of the device to plan for; None for this one.

    Returns:
        a launch with the outputs (gradient of x, of the weight [cols], of the bias [cols]), of the last two
        as many as `vectors`.

    Raises:
        UnknownNameError: `norm`. DimensionError: x has fewer dimensions than `rank`. TensorMismatchError:
        tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_name("norm", norm, NORMS)
    rows, cols = _rows_and_cols(x, rank)
    if reason := is_supported(norm, x, cols, weight):
        raise TensorMismatchError("x, weight", reason, "Give what the forward pass was given.")
    _check_floating("gradient", gradient)
    check_each("results", results, torch.Tensor, "Give the statistics that launch gave.")
    if len(results) != STATISTICS[norm]:
        fix = f"Give the {STATISTICS[norm]} that launch(..., with_statistics=True) gave."
        raise TensorMismatchError("results", f"{len(results)} tensors", fix)
    _check_place("gradient", gradient, x.shape, x.device)
    for i, each in enumerate(results):
        _check_place(f"results[{i}]", each, (rows,), x.device)
        if not each.is_contiguous() or each.dtype != _statistics_dtype(x):
            given = f"{each.dtype}, strides {each.stride()}"
            raise TensorMismatchError(
                f"results[{i}]", given, f"Give a contiguous tensor of {_statistics_dtype(x)}."
            )
    check_type("vectors", vectors, int | None, "Give 0, 1 or 2, or None.")
    if vectors not in (None, 0, 1, 2):
        raise InvalidArgumentError("vectors", f"got {vectors!r}", "Give 0, 1 or 2.")
    check_type("fused", fused, bool | None, "Give True, False or None.")
    vectors = int(weight is not None) if vectors is None else vectors
    read = (x, gradient, *results, *(() if weight is None else (weight,)))
    outputs = _gradients(norm, x, gradient, cols, vectors)
    if x.numel() == 0:
        written = sum(t.numel() * t.element_size() for t in outputs)
        return Launch((), outputs, outputs[1:], work=Work(0, written))
    return _make_backward(norm, rank, len(results), vectors, fused, compute_units, *read, *outputs)


def _gradients(
    norm: str, x: torch.Tensor, gradient: torch.Tensor, cols: int, vectors: int
) -> tuple[torch.Tensor, ...]:
    """Where the gradients of x, and of weight and bias, go.

    The first is contiguous as torch's is; but on the CPU, where torch composes the RMS norm of elementwise
    operators, it lies as the gradient that it is made from.
    """
    if norm == "rms_norm" and not x.is_cuda:
        of_x = torch.empty_like(gradient, dtype=x.dtype)
    else:
        of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return of_x, *[torch.empty(cols, dtype=x.dtype, device=x.device) for _ in range(vectors)]


def checked_output(x: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    """Where the result goes, a new tensor like x for None.

    Raises:
        TensorMismatchError, ArgumentTypeError: it does not fit.
    """
    output = torch.empty_like(x) if output is None else output
    _check_floating("output", output)
    if output.shape != x.shape or output.device != x.device or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}, on {output.device}",
            f"Give a tensor of shape {tuple(x.shape)} on {x.device}, each element in its own place.",
        )
    return output


def _check_floating(name: str, tensor: object) -> None:
    check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype not in SUPPORTED or tensor.layout != torch.strided or tensor.is_neg():
        given = f"{tensor.dtype}, {tensor.layout}, is_neg {tensor.is_neg()}"
        raise TensorMismatchError(name, given, "Give a plain strided tensor of a floating dtype.")


def _check_place(name: str, tensor: torch.Tensor, shape: Sequence[int], device: torch.device) -> None:
    if tuple(tensor.shape) != tuple(shape) or tensor.device != device:
        given = f"shape {tuple(tensor.shape)} on {tensor.device}"
        raise TensorMismatchError(name, given, f"Give {tuple(shape)} on {device}.")


_backward_launches = LaunchCache()


def run_backward(
    norm: str,
    gradient: torch.Tensor,
    x: torch.Tensor,
    rank: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    vectors: int,
) -> tuple[torch.Tensor, ...]:
    """The outputs of `launch_backward(...).run()`, kept ready for tensors that lie alike."""
    outputs = _gradients(norm, x, gradient, x.shape[x.dim() - rank :].numel(), vectors)
    layouts = (x.shape, x.stride(), x.dtype, x.device, gradient.stride(), gradient.dtype)
    key = (norm, rank, None if weight is None else weight.dtype, vectors, layouts)
    make = partial(_make_backward, norm, rank, len(results), vectors, None, None)
    columns = () if weight is None else (weight,)
    _backward_launches.run(key, make, x, gradient, *results, *columns, *outputs)
    return outputs


def _plan_fused(view: Rows, itemsize: int, compute_units: int) -> Plan:
    """Programs that take several tiles of whole rows each."""
    cols = triton.next_power_of_2(view.cols)
    elements = SHORT_BACKWARD_ELEMENTS if cols <= SHORT_COLS else BACKWARD_ELEMENTS
    rows = min(max(elements // cols, 1), triton.next_power_of_2(view.rows))
    warps = min(max(rows * cols // BACKWARD_ELEMENTS_PER_WARP, 1), TILE_WARPS)
    tiles = triton.cdiv(view.rows, rows)
    most = max(BACKWARD_WARPS_PER_UNIT // warps, 1) * compute_units
    programs = min(most, max(triton.cdiv(tiles, FEWEST_BACKWARD_TILES), compute_units), tiles)
    return rowwise.plan(
        view, itemsize, (rows, cols), splits=1, programs=programs, num_warps=warps,
        compute_units=compute_units,
    )  # fmt: skip


def _plan_sums(view: Rows, itemsize: int, compute_units: int) -> Plan:
    """The plan of the first step, for the sums of each row."""
    rows, cols = triton.next_power_of_2(view.rows), triton.next_power_of_2(view.cols)
    if view.are_cols_neighbors:
        tile, per_unit = (1, min(cols, SUMS_COLS)), rowwise.SPLIT_PER_UNIT
    else:
        rows = min(rows, ACROSS_TILE[0])
        tile, per_unit = (rows, min(cols, math.prod(ACROSS_TILE) // rows)), ACROSS_PER_UNIT
    warps = min(max(math.prod(tile) // SUMS_PER_WARP, 1), rowwise.MOST_WARPS)
    return rowwise.plan(
        view, itemsize, tile, num_warps=warps, compute_units=compute_units, split_per_unit=per_unit
    )


def _plan_columns(view: Rows, plan: Plan, compute_units: int) -> tuple[Plan, int]:
    """The plan of the second step, by columns, behind that of the sums; and shares of the rows."""
    rows, cols = COLUMNS_TILE if view.are_cols_neighbors else ACROSS_TILE
    beside = triton.cdiv(view.cols, cols)
    shares = max(COLUMNS_PER_UNIT * compute_units // beside, 1)
    shares = min(shares, triton.cdiv(view.rows, rows))
    return plan._replace(rows=rows, cols=cols, programs=beside * shares, num_warps=COLUMNS_WARPS), shares


def _stages(plan: Plan, itemsize: int, ahead: int, most_bytes: int) -> int:
    """Stages of a loop over tiles of x and the output's gradient: loads run `ahead` by so many, if that fits.

    Where two tiles do not fit, none is loaded ahead.
    """
    fit = most_bytes // (2 * plan.rows * plan.cols * itemsize)
    return 1 + min(ahead, fit) if fit >= 2 else 1


def _statistics_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _make_backward(
    norm: str,
    rank: int,
    results: int,
    vectors: int,
    fused: bool | None,
    compute_units: int | None,
    x: torch.Tensor,
    gradient: torch.Tensor,
    *tensors: torch.Tensor,
) -> Launch:
    """The launch on x and gradient; `results` statistics; the weight if there is one; and the outputs."""
    outputs = tensors[len(tensors) - 1 - vectors :]
    given, columns = tensors[:results], tensors[results : len(tensors) - 1 - vectors]
    dims = frozenset(range(x.dim() - rank, x.dim()))
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    units, itemsize = rowwise.units_of(compute_units), x.element_size()
    operator = NORMS[norm].backward
    work = Work(
        FLOPS[f"{norm}_backward"] * x.numel(),
        sum(distinct_elements(t) * t.element_size() for t in (x, gradient, *tensors)),
    )
    prepared = partial(
        rowwise.prepared, operator, (x, gradient), outputs[0], dims, columns=columns, given=given
    )
    meta = {"FINISH": operator.finish, "APPLY": operator.apply}
    meta |= {"NORMALIZED": NORMS[norm].normalized, "VECTORS": vectors}
    if not vectors:
        plan = planned(view, itemsize, default_tile(norm, view, units), compute_units=compute_units)
        return rowwise.launch(
            operator, (x, gradient), outputs[0], dims, plan, columns=columns, given=given, work=work
        )
    if fused is None:
        cols = triton.next_power_of_2(view.cols)
        fused = cols <= MOST_FUSED[norm] and cols * itemsize <= MOST_FUSED_BYTES and view.are_cols_neighbors
    if fused:
        plan = _plan_fused(view, itemsize, units)
        call = prepared(plan)
        parts = _parts(plan.programs, vectors, view, x)
        arguments = (*call.read, outputs[0], parts, *call.sizes)
        meta |= call.meta | {"WHOLE": operator.whole}
        meta["STAGES"] = _stages(plan, itemsize, BACKWARD_AHEAD, BACKWARD_AHEAD_BYTES)
        steps = [Step(norm_backward_kernel, (plan.programs,), arguments, meta)]
        spaces = [parts]
    else:
        plan = _plan_sums(view, itemsize, units)
        states, first = rowwise.states_step(operator, prepared(plan), x, plan)
        splits = plan.splits
        plan, shares = _plan_columns(view, plan, units)
        call = prepared(plan)
        parts = _parts(shares, vectors, view, x)
        arguments = (*call.read, states, outputs[0], parts, *call.sizes)
        meta |= call.meta | {
            "MERGE": operator.merge,
            "SPLITS": splits,
            "SHARES": shares,
            "STAGES": _stages(plan, itemsize, COLUMNS_AHEAD, COLUMNS_AHEAD_BYTES),
        }
        steps = [first, Step(norm_columns_backward_kernel, (plan.programs,), arguments, meta)]
        spaces = [*states, parts]
    steps.append(_sum_of_parts(parts, outputs[1:]))
    return Launch(tuple(steps), outputs, work=work, workspaces=tuple(spaces))


def _parts(programs: int, vectors: int, view: Rows, x: torch.Tensor) -> torch.Tensor:
    """Where programs leave what they add to the gradients of weight and bias."""
    return torch.empty((programs, vectors, view.cols), dtype=_statistics_dtype(x), device=x.device)


def _sum_of_parts(parts: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Step:
    """What the programs found of the gradients of weight and bias, added up."""
    programs, vectors, cols = parts.shape
    rows = min(triton.next_power_of_2(programs), PARTS_TILE[0])
    beside = math.prod(PARTS_TILE) // rows
    meta = {
        "ROWS": rows,
        "COLS": beside,
        "VECTORS": vectors,
        "WIDE": (programs + rows) * vectors * (cols + beside) >= 2**31,
        "num_warps": PARTS_WARPS,
    }
    grid = (triton.cdiv(cols, beside), vectors)
    return Step(sum_of_parts_kernel, grid, (parts, tuple(outputs), programs, cols), meta)
