"""Compilation of an operator's kernels before its first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workbench import compat, device
from workbench.errors import ArgumentTypeError
from workbench.runtime.replay import only_prepared


def warmup(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Compile and cache all kernels that `operator(*args, **kwargs)` would start, without starting them.

    The next call with such arguments, from any thread, then compiles nothing. Call it, for example
    `warmup(ops.matmul, a, b)`, before you capture a CUDA graph or serve a request. torch's own operations in
    the operator, such as filling a tensor with zeros, do run. To warm up a backward pass, pass a function
    that computes the gradients. If kernels are interpreted, only the arguments are checked.

    Args:
        operator: a function of `ops`, or one that calls several of them.
        args, kwargs: its arguments. A tensor on the meta device, `torch.empty(4096, 64, device="meta")`,
            stands for a tensor with its shape, strides and dtype on this process's device, aligned to 16
            bytes. It can also be inside an epilogue, list, tuple or dictionary.

    Raises:
        ArgumentTypeError: `operator` is not callable.
        KernelError: a kernel fails to compile. Also the operator's own errors.
    """
    if not callable(operator):
        raise ArgumentTypeError("operator", f"got a {type(operator).__name__}", "Give a function of ops.")
    with only_prepared():
        operator(
            *map(_with_real_tensors, args),
            **{name: _with_real_tensors(value) for name, value in kwargs.items()},
        )


def _with_real_tensors(value: Any) -> Any:
    """Replace meta tensors in `value` by real ones; return `value` itself if it has none."""
    if isinstance(value, torch.Tensor):
        return _real_tensor(value) if value.is_meta else value
    if isinstance(value, dict):
        parts = tuple(value.values())
        return value if (made := _with_real_tensors(parts)) is parts else dict(zip(value, made, strict=True))
    if isinstance(value, list | tuple):
        made = list(map(_with_real_tensors, value))
        if all(one is other for one, other in zip(made, value, strict=True)):
            return value
        return made if isinstance(value, list) else compat.tuple_like(value, made)
    if hasattr(value, "with_tensors"):  # an epilogue or a scoring, which this package must not import
        return (
            value
            if (made := _with_real_tensors(value.tensors)) is value.tensors
            else value.with_tensors(made)
        )
    return value


def _real_tensor(value: torch.Tensor) -> torch.Tensor:
    place = device.current().torch_device
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place)
    return made.requires_grad_(value.requires_grad)
