"""Operators on a GPU that is not there: kernels are compiled for it, and what would be started is recorded.

Run as a script, where kernels are to be compiled; prints for each operator what Triton's launcher was given,
call by call, for tensors at addresses of two kinds.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from workbench import device, ops
from workbench.kernels.epilogues import add, bias, fast_gelu
from workbench.launch import Step

OFFSETS = (0, 0, 0, 1, 1, 1, 0)  # in elements of two bytes: aligned to 16 bytes, or not
FUNCTION = 5  # where in what was started the compiled function is
ROWS, COLS = 40, 1000

started: list[list[Any]] = []


class Launcher:
    """What Triton calls to start a compiled kernel, once for each."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._name = source.fn.__name__

    def __call__(self, *given: Any) -> None:
        started.append([self._name, *map(in_short, given)])


def in_short(value: Any) -> Any:
    """What can be compared: of a tensor how it lies, and whether it is aligned."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), list(value.stride()), value.data_ptr() % 16 == 0]
    if isinstance(value, tuple):
        return [type(value).__name__, *map(in_short, value)]
    if isinstance(value, int | float | str | None):
        return value
    return getattr(value, "__name__", type(value).__name__)


def pretend() -> None:
    """Put an H200 in the place of the GPU that Triton and the workbench look for."""
    here = device.Device(
        kind="cuda", name="H200", architecture="sm_90", compute_units=132, shared_memory_bytes=232448,
        memory_bytes=140 << 30, l2_bytes=50 << 20, warp_size=32, driver="none",
    )  # fmt: skip
    limits = {"max_shared_mem": here.shared_memory_bytes}
    driver.set_active(
        SimpleNamespace(
            launcher_cls=Launcher,
            utils=SimpleNamespace(
                load_binary=lambda name, kernel, shared, index: (1, zlib.crc32(kernel), 32, 0, 1024),
                get_device_properties=lambda index: limits,
            ),
            get_current_device=lambda: 0,
            get_current_stream=lambda index: 0,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_active_torch_device=lambda: torch.device("cpu"),
        )
    )
    device.current = lambda: here  # type: ignore[assignment]
    Step.check_place = lambda self: None  # type: ignore[method-assign]


def layer_norm_backward(x: torch.Tensor) -> None:
    """Forward and backward, both kept."""
    x, weight, bias = (t.detach().requires_grad_() for t in (x, torch.ones_like(x[0]), torch.ones_like(x[0])))
    result = ops.layer_norm(x, (COLS,), weight, bias)
    torch.autograd.grad(result, (x, weight, bias), torch.ones_like(result))


OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda x: ops.add(x, x),
    "clone": ops.clone,
    "permute_copy": lambda x: ops.permute_copy(x, (1, 0)),
    "sum of rows": lambda x: ops.sum(x, 1),
    "sum of all": ops.sum,
    "argmax": lambda x: ops.argmax(x, 1),
    "softmax": lambda x: ops.softmax(x, 1),
    "softmax of columns": lambda x: ops.softmax(x, 0),
    "logsumexp": lambda x: ops.logsumexp(x, 1),
    "cross_entropy": lambda x: ops.cross_entropy(x, torch.zeros(ROWS, dtype=torch.int64)),
    "layer_norm": lambda x: ops.layer_norm(x, (COLS,)),
    "layer_norm_backward": layer_norm_backward,
    "fused_matmul": lambda x: ops.fused_matmul(
        x, x.t(), epilogue=bias(x[0, :ROWS]) | add(x[:, :ROWS]) | add(x[:, :ROWS]) | fast_gelu()
    ),
}

if __name__ == "__main__":
    pretend()
    memory = torch.zeros(ROWS * COLS + 16, dtype=torch.float16)
    for name, operator in OPERATORS.items():
        calls = []
        for offset in OFFSETS:
            started.clear()
            operator(memory.as_strided((ROWS, COLS), (COLS, 1), offset))
            calls.append(started.copy())
        print(json.dumps({"operator": name, "calls": calls}))
