"""Calls that torch watches: it traces them, or asks for shapes alone.

A kernel that is started while torch makes a graph is not in that graph, and fake tensors have no memory.
Torch does not say either to a function that starts kernels by itself. The names of torch's modes are private,
and stand here alone. `tests/ops/test_tracing.py` and `tests/test_launch.py` hold the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from workbench.errors import TracingError

# How many modes watch what torch dispatches on this thread: mostly none, which takes 30 ns to ask.
watching_modes = torch._C._len_torch_dispatch_stack
# Within it, none does.
without_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes


def refuse_tracing() -> None:
    """Raise where torch makes a graph of the calls on this thread, or asks for their shapes alone.

    The first in `make_fx` and `torch.func.linearize`, the second in a `FakeTensorMode`.

    Raises:
        TracingError: the graph would do without the kernel that is about to be started, and say nothing; or
            there is nothing that it could work on.
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
    """Raise where one is a `FakeTensor`, whose mode may be off by now.

    Raises:
        TracingError: a kernel would find it at the address 0.
    """
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        raise _without_memory()


def _without_memory() -> TracingError:
    return TracingError(
        "fake tensors, of a FakeTensorMode, have no memory that the kernel could work on. Call it outside of "
        "the mode with plain tensors; or for shapes alone, with tensors on the meta device."
    )
