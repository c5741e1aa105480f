"""Invoker of softmax, its logarithm and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch

from workbench.errors import DimensionError, TensorMismatchError, check_name, check_type
from workbench.kernels.layout import may_share, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Fixed, Options
from workbench.kernels.rows.softmax.kernel import ACROSS, OPERATORS
from workbench.kernels.rows.softmax.plan import BACKWARD, FORWARD, planned
from workbench.launch import Launch, Work

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FLOPS = {"softmax": 5, "log_softmax": 5, "softmax_backward": 4, "log_softmax_backward": 4}


def unsupported(tensor: torch.Tensor, dtypes: Sequence[torch.dtype] = SUPPORTED) -> str:
    """Return why kernels for these dtypes cannot take a tensor; empty if they can."""
    if tensor.dtype not in dtypes:
        return f"{tensor.dtype}; supported: {', '.join(str(d)[6:] for d in dtypes)}"
    return "not a plain strided tensor" if tensor.layout != torch.strided or tensor.is_neg() else ""


def check_tensor(
    name: str,
    tensor: object,
    device: torch.device,
    dtypes: Sequence[torch.dtype] = SUPPORTED,
) -> None:
    """Raise if an argument is not a plain tensor of one of these dtypes on this device."""
    fix = f"Give a plain tensor on {device} of one of {', '.join(str(d)[6:] for d in dtypes)}."
    check_type(name, tensor, torch.Tensor, fix)
    assert isinstance(tensor, torch.Tensor)
    reason = unsupported(tensor, dtypes) or (f"on {tensor.device}" if tensor.device != device else "")
    if reason:
        raise TensorMismatchError(name, reason, fix)


def is_supported(operator: str, *sources: torch.Tensor) -> str:
    """Return why the templates cannot take these tensors; empty if they can."""
    for i, x in enumerate(sources):
        if not isinstance(x, torch.Tensor):
            return f"source {i} is a {type(x).__name__}, not a tensor"
        if reason := unsupported(x):
            return f"source {i} is {reason}"
        if x.shape != sources[0].shape or x.device != sources[0].device:
            return f"source {i} is of another shape or on another device than source 0"
    wanted = len(OPERATORS[operator].fills)
    return "" if len(sources) == wanted else f"{len(sources)} tensors, {operator} takes {wanted}"


def launch(
    operator: str,
    *sources: torch.Tensor,
    dim: int = -1,
    output: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> Launch:
    """output = operator(sources) along `dim`.

    softmax: exp(x - max) / sum of exp(x - max). log_softmax: x - max - log(sum of exp(x - max)). The
        gradients,
    with y the result and g its gradient, are softmax_backward: y * (g - sum of y * g), and
    log_softmax_backward: g - exp(y) * sum of g. The arithmetic is in fp32, for fp64 in fp64.

    FLOPs: 5 an element forward, 4 backward, exp counted as one. Least bytes: each source read once, the
    output written once.

    Args:
        operator: a name in `OPERATORS`.
        sources: x; for a gradient y and g. Tensors of one shape, any strides.
        dim: the dimension that is reduced.
        output: tensor for the result, of the sources' shape and any strides in which no two elements share
            memory; None for a new tensor like the first source.
        options: see :class:`rowwise.Options`; the default tile is that of :func:`default_tile`.

    Raises:
        UnknownNameError: `operator`. TensorMismatchError: sources or output do not fit.
        DimensionError: `dim`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_name("operator", operator, OPERATORS)
    if reason := is_supported(operator, *sources):
        raise TensorMismatchError("sources", reason, "Give tensors of one shape and a supported dtype.")
    x = sources[0]
    output = torch.empty_like(x) if output is None else output
    check_tensor("output", output, x.device)
    if output.shape != x.shape or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}",
            f"Give a tensor of shape {tuple(x.shape)}, each element in its own place.",
        )
    work = Work(FLOPS[operator] * x.numel(), rowwise.least_bytes(*sources, output))
    if x.numel() == 0:
        return Launch((), (output,), work=work)
    dims = columns_of((checked_dim(dim, x.dim()),), x.dim())
    view = rows_of(x.shape, (x.stride(),), dims)[0]
    plan = planned(view, x.element_size(), fixed, FORWARD if len(sources) == 1 else BACKWARD)
    chosen = (OPERATORS if view.are_cols_neighbors else ACROSS)[operator]
    return rowwise.launch(chosen, sources, output, dims, plan, work=work)


def columns_of(dims: Sequence[int], rank: int) -> frozenset[int]:
    """Return the dimensions that are the columns; none for a 0-d tensor, which is a row of one element."""
    return frozenset(dims) if rank else frozenset()


def checked_dim(dim: int, rank: int) -> int:
    """Return the dimension counted from 0; raise if a tensor of this rank does not have it."""
    check_type("dim", dim, int, "Give the number of a dimension.")
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise DimensionError("dim", f"got {dim}", f"The tensor has {rank} dimensions.")
    return dim % max(rank, 1)
