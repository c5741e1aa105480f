"""Group norm and its gradients: row operators of matrices that descriptors describe, and no kernel.

A row is a group of an image, its columns the group's channels and pixels in the order of memory; a weight or
bias is a matrix of which all pixels are one. The templates are those of
:mod:`workbench.kernels.rows.rowwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each, check_positive, check_type
from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths, described
from workbench.kernels.layout import distinct_elements, suggested_format
from workbench.kernels.rows import normalization, reduction, rowwise
from workbench.kernels.rows.normalization import (
    NORMS,
    SUPPORTED,
    add_centered,
    centered_affine,
    centered_gradient,
    centered_sums,
    centered_weighted,
)
from workbench.kernels.rows.rowwise import Plan
from workbench.kernels.views import Described, View
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache

FLOPS, FLOPS_BACKWARD = 8, 14

# Where a group's neighbors in memory are fewer bytes than these, a tile has several groups, whose channels
# lie together; it has so many elements where its rows are longer. Reasoned, not measured yet.
RUN_BYTES = 128
TILE_ELEMENTS = 4096

# The tile of the gradients of weight and bias where pixels are neighbors: a channel, and columns; and a
# warp's share of any tile.
VECTOR_COLS, VECTOR_PER_WARP = 2048, 512


@triton.jit
def both_across(states):
    """The two sums of each row from those of its splits"""
    return tl.sum(states[0], 1), tl.sum(states[1], 1)


# Where weights are no values by column, they are tiles of their own, behind those of the sources.


@triton.jit
def weighted_beside(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight, with tiles (x, weight)"""
    return centered_weighted(tiles, tiles[1:], of_rows, result)


@triton.jit
def affine_beside(tiles, of_columns, of_rows, result):
    """(x - mean) * scale * weight + bias, with tiles (x, weight, bias)"""
    return centered_affine(tiles, tiles[1:], of_rows, result)


@triton.jit
def sums_beside(tiles, of_columns, of_rows, valid, cols):
    """sum of g * n, sum of g"""
    return centered_sums(tiles, tiles[2:], of_rows, valid, cols)


@triton.jit
def add_beside(kept, tiles, of_columns, of_rows, valid, tally):
    """g * n and g, added by lane"""
    return add_centered(kept, tiles, tiles[2:], of_rows, valid, tally)


@triton.jit
def gradient_beside(tiles, of_columns, of_rows, result):
    """scale * (g - mean of g - n * mean of (g * n))"""
    return centered_gradient(tiles, tiles[2:], of_rows, result)


# The gradients of weight and bias: sums over the rows of a channel, with tiles (x, gradient, mean, scale).


@triton.jit
def add_of_channel(kept, tiles, of_columns, of_rows, valid, tally):
    """gradient * n and gradient, added by lane"""
    return kept[0] + tiles[1] * (tiles[0] - tiles[2]) * tiles[3], kept[1] + tiles[1]


_LAYER = NORMS["layer_norm"]
_FORWARD = tuple(
    operator._replace(apply=apply, fills=(0.0,) * (1 + vectors))
    for vectors, (operator, apply) in enumerate(
        zip(_LAYER.forward, (_LAYER.forward[0].apply, weighted_beside, affine_beside), strict=True)
    )
)
_BACKWARD = tuple(
    _LAYER.backward._replace(
        whole=sums_beside,
        update=add_beside,
        apply=gradient_beside,
        fills=(0.0,) * (2 + vectors),
        across=both_across,
    )
    for vectors in (0, 1)
)
_OF_CHANNEL = _LAYER.backward._replace(whole=None, update=add_of_channel, fills=(0.0,) * 4)


def is_supported(x: torch.Tensor, groups: int, *others: torch.Tensor | None) -> str:
    """Why the templates cannot take these tensors, in words; empty when they can.

    Args:
        x: what is normalized.
        groups: into how many its channels fall.
        others: weight and bias, each of a value a channel, or None.
    """
    if not isinstance(x, torch.Tensor):
        return f"x is a {type(x).__name__}, not a tensor"
    if x.dim() < 2:
        return f"x has {x.dim()} dimensions, not images and channels"
    if x.shape[1] % groups:
        return f"{groups} groups do not divide {x.shape[1]} channels"
    return normalization.is_supported("layer_norm", x, x.shape[1], *others)


def launch(
    x: torch.Tensor,
    groups: int,
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
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, of each group of channels of each image.

    Mean and variance are Welford's, in fp32, of fp64 in fp64.

    FLOPs: 8 an element. Least bytes: x, weight and bias read once, the outputs written once.

    Args:
        x: (n, channels, sizes...), of any strides.
        groups: into how many the channels fall, which it divides.
        weight, bias: contiguous, of a value a channel, or None; a bias needs a weight.
        epsilon: added to the variance.
        output: where the result goes, of the shape of x and any strides in which no two elements share
            memory; None for a new tensor like x.
        with_statistics: also give mean and scale of each group, [n * groups], for the gradients.
        tile, splits, programs, num_warps, compute_units: see :func:`rowwise.plan`.

    Returns:
        a launch with the outputs (result,), and with statistics (result, mean, scale).

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    check_type("epsilon", epsilon, float | int, "Give a number.")
    if reason := is_supported(x, check_positive("groups", groups), weight, bias):
        raise TensorMismatchError("x, weight, bias", reason, "Give (n, channels, sizes...) and vectors.")
    if bias is not None and weight is None:
        raise TensorMismatchError("bias", "given without a weight", "Give a weight of ones.")
    output = normalization.checked_output(x, output)
    results = statistics(x, groups) if with_statistics else []
    columns = [t for t in (weight, bias) if t is not None]
    if x.numel() == 0:
        return Launch((), (output, *results), work=Work(0, 0))
    how = {"splits": splits, "programs": programs, "num_warps": num_warps, "compute_units": compute_units}
    return _launch(x, groups, columns, output, results, epsilon, tile, how)


def statistics(x: torch.Tensor, groups: int) -> list[torch.Tensor]:
    """Where mean and scale of each group of each image go."""
    return normalization.statistics("layer_norm", x, x.shape[0] * groups)


def _launch(
    x: torch.Tensor,
    groups: int,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
    results: Sequence[torch.Tensor],
    epsilon: float,
    tile: Sequence[int] | None = None,
    how: dict[str, int | None] | None = None,
) -> Launch:
    channels = Channels.of(groups, output, x)
    (out_strides, x_strides), (rows, cols) = channels.strides, _grouped(channels, 1)
    of_x, of_output = (
        channels.view(t, strides, rows, cols) for t, strides in ((x, x_strides), (output, out_strides))
    )
    vectors = [channels.view(t, channels.of_channels, rows, cols) for t in columns]
    work = Work(
        FLOPS * x.numel(),
        sum(distinct_elements(t) * t.element_size() for t in (x, *columns, output, *results)),
    )
    return rowwise.launch_views(
        _FORWARD[len(columns)], (of_x,), of_output, _plan(of_x, channels, cols, 1, tile, **(how or {})),
        vectors=vectors, results=results, parameter=float(epsilon), work=work,
    )  # fmt: skip


def _grouped(channels: Channels, tensor: int) -> tuple[Lengths, Lengths]:
    """Rows and columns of group norm, in the order of a tensor's memory."""
    return (IMAGE, GROUP), channels.in_order((CHANNEL, *channels.sizes), tensor)


def _plan(
    view: View,
    channels: Channels,
    cols: Lengths,
    tensor: int,
    tile: Sequence[int] | None = None,
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Plan:
    matrix, itemsize = Described(view), view.tensor.element_size()
    run = _run(channels, cols, tensor) * itemsize
    shape = default_tile(matrix, run, rowwise.units_of(compute_units)) if tile is None else tile
    return normalization.planned(
        matrix, itemsize, rowwise.checked_tile(shape), splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
    )  # fmt: skip


def _run(channels: Channels, cols: Lengths, tensor: int) -> int:
    """How many columns lie together, one behind the other."""
    lengths, strides = (channels.images, *channels.lengths), channels.strides[tensor]
    run = 1
    for d in reversed(cols):
        if lengths[d] > 1 and strides[d] != run:
            break
        run *= lengths[d]
    return run


def default_tile(view: Described, run: int, compute_units: int) -> tuple[int, int]:
    """A program's rows and columns.

    As layer norm's, but where only `run` bytes of a row lie together, fewer than :data:`RUN_BYTES`, so many
    rows as are that many bytes: channels_last, the next group's channels are next to a group's.

    Args:
        view: rows and columns. run: bytes. compute_units: of the device.
    """
    rows, cols = normalization.default_tile("layer_norm", view, compute_units)
    together = min(triton.next_power_of_2(triton.cdiv(RUN_BYTES, run)), triton.next_power_of_2(view.rows))
    if run >= RUN_BYTES or rows >= together:
        return rows, cols
    if cols >= view.cols and together * cols <= normalization.MOST_WHOLE:
        return together, cols
    return together, min(max(TILE_ELEMENTS // together, 1), triton.next_power_of_2(view.cols))


_launches = LaunchCache()


def run(
    x: torch.Tensor,
    groups: int,
    columns: Sequence[torch.Tensor],
    epsilon: float,
    output: torch.Tensor,
    results: Sequence[torch.Tensor] = (),
) -> None:
    """`launch(x, groups, *columns, ...).run()`, kept ready for tensors that lie alike."""
    dtypes = tuple([t.dtype for t in columns])
    layouts = (x.shape, x.stride(), x.dtype, x.device, output.stride(), output.dtype)
    make = partial(_make, groups, len(columns), epsilon)
    key = (groups, dtypes, epsilon or repr(epsilon), len(results), layouts)
    _launches.run(key, make, x, *columns, output, *results)


def _make(groups: int, count: int, epsilon: float, x: torch.Tensor, *tensors: torch.Tensor) -> Launch:
    """The launch of `run`, on x, `count` values by channel, output, and results by group."""
    return _launch(x, groups, tensors[:count], tensors[count], tensors[count + 1 :], epsilon)


def launch_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    *,
    vectors: int = 0,
    compute_units: int | None = None,
) -> Launch:
    """The gradients of x, and of weight and bias, the latter in the type of the arithmetic.

    That of x is one row operator, those of the others another and a reduction, which add up in an order that
    depends on shapes alone.

    FLOPs: 14 an element. Least bytes: gradient, x, statistics and weight read once, the gradients written
    once.

    Args:
        gradient: of the output, of the shape of x, any strides.
        x: what was normalized, any strides.
        groups: of its channels.
        weight: as in the forward pass; None for none.
        results: the statistics that :func:`launch` gave.
        vectors: how many of weight and bias want a gradient: 0, 1 or 2.
        compute_units: of the device to plan for; None for this one.

    Returns:
        a launch with the outputs (gradient of x, of the weight, of the bias), of the last two as many as
        `vectors`.

    Raises:
        TensorMismatchError: tensors do not fit. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    if reason := is_supported(x, check_positive("groups", groups), weight):
        raise TensorMismatchError("x, weight", reason, "Give what the forward pass was given.")
    results = check_each("results", results, torch.Tensor, "Give the statistics that launch gave.")
    like = statistics(x, groups)
    if [(t.shape, t.dtype, t.device) for t in results] != [(t.shape, t.dtype, t.device) for t in like]:
        given = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in results)
        raise TensorMismatchError(
            "results", f"got {given}", f"Give two of {like[0].dtype} {(*like[0].shape,)}."
        )
    check_type("gradient", gradient, torch.Tensor, "Give a torch.Tensor.")
    if gradient.shape != x.shape or gradient.dtype not in SUPPORTED or gradient.device != x.device:
        given = f"{gradient.dtype}, shape {tuple(gradient.shape)} on {gradient.device}"
        raise TensorMismatchError("gradient", given, f"Give floats of shape {tuple(x.shape)} on {x.device}.")
    if vectors not in (0, 1, 2):
        raise InvalidArgumentError("vectors", f"got {vectors!r}", "Give 0, 1 or 2.")
    outputs = gradients(x, vectors)
    if x.numel() == 0:
        return Launch((), outputs, outputs[1:], work=Work(0, 0))
    columns = () if weight is None else (weight,)
    return _make_backward(groups, len(columns), compute_units, x, gradient, *results, *columns, *outputs)


def gradients(x: torch.Tensor, vectors: int) -> tuple[torch.Tensor, ...]:
    """Where the gradients of x, and of weight and bias, go."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = [torch.empty(x.shape[1], dtype=dtype, device=x.device) for _ in range(vectors)]
    return torch.empty_like(x, memory_format=suggested_format(x)), *sums


_backward_launches = LaunchCache()


def run_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    results: Sequence[torch.Tensor],
    vectors: int,
) -> tuple[torch.Tensor, ...]:
    """The outputs of `launch_backward(...).run()`, kept ready for tensors that lie alike."""
    outputs = gradients(x, vectors)
    layouts = (x.shape, x.stride(), x.dtype, x.device, gradient.stride(), gradient.dtype)
    columns = () if weight is None else (weight,)
    key = (groups, tuple([t.dtype for t in columns]), vectors, layouts)
    make = partial(_make_backward, groups, len(columns), None)
    _backward_launches.run(key, make, x, gradient, *results, *columns, *outputs)
    return outputs


def _make_backward(
    groups: int,
    count: int,
    compute_units: int | None,
    x: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    *tensors: torch.Tensor,
) -> Launch:
    """The launch on these, `count` values by channel, the gradient of x, and sums by channel."""
    columns, output, sums = tensors[:count], tensors[count], tensors[count + 1 :]
    channels = Channels.of(groups, output, gradient, x)
    rows, cols = _grouped(channels, 2)
    whole = [
        channels.view(t, strides, rows, cols)
        for t, strides in zip((output, gradient, x), channels.strides, strict=True)
    ]
    plan = _plan(whole[2], channels, cols, 2, compute_units=compute_units)
    work = Work(
        FLOPS_BACKWARD * x.numel(),
        sum(distinct_elements(t) * t.element_size() for t in (x, gradient, mean, scale, *tensors)),
    )
    launch = rowwise.launch_views(
        _BACKWARD[count], (whole[2], whole[1]), whole[0], plan,
        vectors=[channels.view(t, channels.of_channels, rows, cols) for t in columns],
        given=(mean, scale), work=work,
    )  # fmt: skip
    if not sums:
        return launch
    more = _of_vectors(channels, x, gradient, mean, scale, sums, compute_units)
    return Launch(
        (*launch.steps, *more.steps), (output, *sums), work=work,
        workspaces=(*launch.workspaces, *more.workspaces),
    )  # fmt: skip


def _of_vectors(
    channels: Channels,
    x: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    sums: Sequence[torch.Tensor],
    compute_units: int | None,
) -> Launch:
    """sums = those of gradient * n, and of the gradient, over images and pixels of each channel.

    The first step of a row operator whose rows are channels leaves both for each share of the columns; then
    the states are summed.
    """
    rows, cols = (GROUP, CHANNEL), channels.in_order((IMAGE, *channels.sizes), 2)
    cols = (IMAGE, *(d for d in cols if d != IMAGE))
    of_gradient, of_x = (
        channels.view(t, strides, rows, cols)
        for t, strides in zip((gradient, x), channels.strides[1:], strict=True)
    )
    by_group = [channels.view(t, channels.of_groups, rows, cols) for t in (mean, scale)]
    matrix = described(of_x, channels._replace(strides=channels.strides[2:]), rows, cols)
    tile = (1, VECTOR_COLS) if matrix.are_cols_neighbors else normalization.ACROSS_TILE
    high, wide = (
        min(n, triton.next_power_of_2(m)) for n, m in zip(tile, (matrix.rows, matrix.cols), strict=True)
    )
    plan = rowwise.plan(
        matrix, x.element_size(), (high, wide), num_warps=max(high * wide // VECTOR_PER_WARP, 1),
        compute_units=compute_units,
    )  # fmt: skip
    call = rowwise.prepared_views(_OF_CHANNEL, (of_x, of_gradient), of_x, plan, by_group)
    states, first = rowwise.states_step(_OF_CHANNEL, call, x, plan)
    steps: list[Step] = [first]
    spaces = list(states)
    for state, total in zip(states, sums, strict=False):
        added = reduction.launch(state, (1,), total, compute_units=compute_units)
        steps += added.steps
        spaces += added.workspaces
    return Launch(tuple(steps), tuple(sums), workspaces=tuple(spaces))
