"""Calls that torch traces, or whose shapes it infers with fake tensors.

A kernel that starts while torch makes a graph is missing from that graph, and fake tensors have no memory.
torch reports neither to a function that starts kernels by itself. The names of torch's modes are private, and
are used only here. `tests/ops/test_tracing.py` and `tests/test_launch.py` test the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from workbench.errors import TracingError

# Returns the number of dispatch modes on this thread, mostly 0; a call takes 30 ns.
watching_modes = torch._C._len_torch_dispatch_stack
# Returns the number of function modes on this thread, of which torch's default device is one.
function_modes = torch._C._len_torch_function_stack
# A context without dispatch modes.
without_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes


def recorder_here() -> Any:
    """Return the innermost recorder among torch's dispatch modes, or None.

    A thread that autograd starts has the modes of the thread that called the backward pass.
    """
    for place in reversed(range(watching_modes())):
        if hasattr(mode := torch._C._get_dispatch_stack_at(place), "started"):
            return mode
    return None


def refuse_tracing() -> None:
    """Raise an error if torch traces the calls on this thread, or only infers their shapes.

    `make_fx` and `torch.func.linearize` trace; a `FakeTensorMode` infers shapes.

    Raises:
        TracingError: torch traces, and its graph would silently lack the kernel that is about to start; or
            torch infers shapes, and the kernel's tensors would have no memory.
    """
    if not watching_modes():
        return
    mode_of, modes = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    if mode_of(modes.PROXY) is not None:
        raise TracingError(
            "torch traces this call and would leave the kernel out of its graph. Trace torch's own function "
            "instead, or call this one outside of make_fx and torch.func.linearize."
        )
    if mode_of(modes.FAKE) is not None:
        raise _without_memory()


def refuse_fakes(*tensors: object) -> None:
    """Raise an error if a tensor is a `FakeTensor`, whose mode may be off by now.

    Raises:
        TracingError: a tensor is fake, and a kernel would get the address 0.
    """
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        raise _without_memory()


def _without_memory() -> TracingError:
    return TracingError(
        "fake tensors, of a FakeTensorMode, have no memory that the kernel could work on. Call the operator "
        "outside of the mode with plain tensors; or for shapes alone, with tensors on the meta device."
    )
