"""Invoker of softmax, its logarithm and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch

from workbench.errors import DimensionError, TensorMismatchError, check_name, check_type
from workbench.kernels.layout import least_bytes, may_share, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import rowwise
from workbench.kernels.rows.rowwise import Fixed, Options
from workbench.kernels.rows.softmax.kernel import ACROSS, OPERATORS
from workbench.kernels.rows.softmax.plan import BACKWARD, FORWARD, planned
from workbench.launch import Launch, Work

SUPPORTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FLOPS = {"softmax": 5, "log_softmax": 5, "softmax_backward": 4, "log_softmax_backward": 4}


def unsupported(tensor: torch.Tensor, dtypes: Sequence[torch.dtype] = SUPPORTED) -> str:
    """Return why kernels for these dtypes cannot take a tensor, as words after "it is"; empty if they can."""
    if tensor.dtype not in dtypes:
        return f"{tensor.dtype}; supported: {', '.join(str(d)[6:] for d in dtypes)}"
    if tensor.layout != torch.strided:
        return f"of the layout {tensor.layout}"
    return "a view that negates its memory" if tensor.is_neg() else ""


def check_tensor(
    name: str,
    tensor: object,
    device: torch.device,
    dtypes: Sequence[torch.dtype] = SUPPORTED,
) -> None:
    """Raise if an argument is not a strided tensor of one of these dtypes on this device, or is negated.

    Raises:
        ArgumentTypeError: it is not a tensor. TensorMismatchError: its dtype, layout or device does not fit.
    """
    names = ", ".join(str(d)[6:] for d in dtypes)
    fix = f"Give a strided tensor on {device} of one of {names}, not a negated view."
    check_type(name, tensor, torch.Tensor, fix)
    assert isinstance(tensor, torch.Tensor)
    reason = unsupported(tensor, dtypes) or (f"on {tensor.device}" if tensor.device != device else "")
    if reason:
        raise TensorMismatchError(name, f"it is {reason}", fix)


def is_supported(operator: str, *sources: torch.Tensor) -> str:
    """Return why the templates cannot take these tensors; empty if they can.

    Args:
        operator: a name in `OPERATORS`. sources: x; for a gradient y and g.
    """
    found = misfit(operator, {f"sources[{i}]": x for i, x in enumerate(sources)})
    return "" if found is None else found[0]


def misfit(operator: str, sources: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
    """Return why the templates cannot take these tensors, and what to give instead; None if they can.

    Args:
        operator: a name in `OPERATORS`. sources: the tensors, by the names of arguments.
    """
    first = None
    for name, x in sources.items():
        if not isinstance(x, torch.Tensor):
            return f"{name} is a {type(x).__name__}, not a tensor", "Give a torch.Tensor."
        if reason := unsupported(x):
            fix = "Give a strided tensor of a supported dtype, not a negated view."
            return f"{name} is {reason}", fix
        first = x if first is None else first
        if x.shape != first.shape or x.device != first.device:
            reason = f"{name} has shape {tuple(x.shape)} on {x.device}"
            return reason, f"Give a tensor of shape {tuple(first.shape)} on {first.device}, like the first."
    wanted = len(OPERATORS[operator].fills)
    if len(sources) != wanted:
        return (
            f"got {len(sources)} tensors",
            f"Give {wanted}: {'x' if wanted == 1 else 'y and its gradient'}.",
        )
    return None


def launch(
    operator: str,
    *sources: torch.Tensor,
    dim: int = -1,
    output: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> Launch:
    """output = operator(sources) along `dim`.

    softmax: exp(x - max) / sum of exp(x - max). log_softmax: x - max - log(sum of exp(x - max)).
    Gradients, with y the result and g its gradient: softmax_backward is y * (g - sum of y * g), and
    log_softmax_backward is g - exp(y) * sum of g. The arithmetic is in fp64 if the first source is fp64, else
    in fp32.

    FLOPs: 5 an element forward, 4 backward, exp counted as one. Least bytes: each source read once, the
    output written once.

    Args:
        operator: a name in `OPERATORS`.
        sources: x; for a gradient y and g. Tensors of one shape, any strides.
        dim: the dimension that is reduced, from 0, or from -1 for the last.
        output: tensor for the result, of the sources' shape and any strides in which no two elements share
            memory; None for a new tensor like the first source.
        options: see :class:`rowwise.Options`; the default tile is that of :func:`default_tile`.

    Raises:
        UnknownNameError: `operator`. TensorMismatchError: sources or output do not fit.
        DimensionError: `dim`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    check_name("operator", operator, OPERATORS)
    if found := misfit(operator, {f"sources[{i}]": x for i, x in enumerate(sources)}):
        raise TensorMismatchError(f"sources of {operator}", *found)
    x = sources[0]
    output = torch.empty_like(x) if output is None else output
    check_tensor("output", output, x.device)
    if output.shape != x.shape or may_share(output.shape, output.stride()):
        raise TensorMismatchError(
            "output",
            f"shape {tuple(output.shape)}, strides {output.stride()}",
            f"Give a tensor of shape {tuple(x.shape)}, in which no two elements share memory.",
        )
    work = Work(FLOPS[operator] * x.numel(), least_bytes(*sources, output))
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
    """Return the dimension counted from 0.

    Raises:
        DimensionError: a tensor of this rank does not have it; a 0-d tensor has 0 and -1, as in torch.
        ArgumentTypeError: it is not an int.
    """
    check_type("dim", dim, int, "Give the number of a dimension.")
    count = max(rank, 1)
    if not -count <= dim < count:
        raise DimensionError(
            "dim",
            f"got {dim}",
            f"The tensor has {rank} dimensions: give a number from {-count} to {count - 1}.",
        )
    return dim % count
