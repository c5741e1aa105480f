"""Operators on a pretended GPU: kernels are compiled for it, and calls that would start them are recorded.

Triton's own launcher for NVIDIA GPUs is used, except for the C function that it calls in the end. Run as a
script, where kernels are compiled, it prints for each operator the arguments of that function, call by
call, for tensors at addresses of two kinds: once as Triton starts kernels, and once as warm calls do.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

from workbench import compat, device, ops
from workbench.kernels.epilogues import add, bias, fast_gelu
from workbench.launch import Launch, Step
from workbench.runtime import replay, warm

OFFSETS = (0, 0, 0, 1, 1, 1, 0)  # in elements of two bytes: aligned to 16 bytes, or not
FUNCTION = 3  # place of the compiled function in the recorded arguments
ROWS, COLS = 40, 1000

# Addresses are larger than any size, stride or constant here.
FIRST_ADDRESS = 2**32

started: list[list[Any]] = []
compiled: list[str] = []
maps: list[int] = []  # addresses for which the driver was asked for a tensor map
stream = 7  # the current stream


# The name of a kernel -> a function of the types and the values of its arguments that computes its result.
computed: dict[str, Callable[[list[str], Sequence[Any]], None]] = {}


class Launcher(nvidia.CudaLauncher):  # type: ignore[misc]  # Triton does not type it
    """Triton's launcher, one for each compiled kernel, which records the call of the C function."""

    def __init__(self, source: Any, metadata: Any) -> None:
        compiled.append(source.fn.__name__)
        record = partial(self.record, source)
        # Triton 3.6 writes and compiles C for it, which needs a driver.
        nvidia.library_dirs = list
        nvidia.compile_module_from_src = lambda **_: SimpleNamespace(launch=record)
        driver.active.utils.launch = record
        super().__init__(source, metadata)

    @staticmethod
    def record(source: Any, x: int, y: int, z: int, on: int, function: int, *given: Any) -> None:
        """Record what Triton 3.6 and 3.7 pass: flags, metadata, scratch memory and arguments; no hooks."""
        if compat.VERSION == (3, 6):
            *flags, first, second, packed, told, enter, _ = given[:8]
            arguments = given[8:]
        else:
            *flags, packed, told, enter, _, first, second, _, _, arguments = given
        name = source.fn.__name__
        check_promises(source, arguments)
        if enter is not None:
            enter(told)
        if name in computed:
            with compat.without_modes():  # a kernel's work is no work of torch
                computed[name](list(source.signature.values()), arguments)
        started.append(
            [name, [x, y, z], on, function, flags, packed, first, second, *map(in_short, arguments)]
        )


def check_promises(source: Any, arguments: Sequence[Any]) -> None:
    """Check that a kernel's arguments are those it was compiled for: divisibility by 16, and constants.

    Args:
        source: what Triton compiled: the type, the attributes and the value of an argument, by its place.
        arguments: the arguments of the C function; a tensor descriptor is a map, its sizes and strides.
    """
    places = [0]
    for kind in source.signature.values():
        block = re.match(r"tensordesc<\w+\[([\d, ]+)\]", kind) if isinstance(kind, str) else None
        places.append(places[-1] + (1 if block is None else 1 + 2 * len(block[1].split(","))))
    assert places[-1] == len(arguments), source.signature

    def value_at(path: Sequence[int]) -> Any:
        value = arguments[places[path[0]]]
        for i in path[1:]:
            value = value[i]
        return value.data_ptr() if isinstance(value, torch.Tensor) else value

    for path, attributes in source.attrs.items():
        for attribute, divisor in attributes:
            if attribute == "tt.divisibility":
                what = f"{source.fn.__name__}, argument {path}: {value_at(path)}, compiled for multiples"
                assert value_at(path) % divisor == 0, f"{what} of {divisor}"
    for path, constant in source.constants.items():
        if isinstance(constant, int | float):
            what = f"{source.fn.__name__}, argument {path}: {value_at(path)}, compiled for {constant}"
            assert value_at(path) == constant, what


memory = torch.zeros(2 * ROWS * COLS + 64, dtype=torch.float16)
large = torch.zeros(1536 * 1536 + 64, dtype=torch.float16)


def in_short(value: Any) -> Any:
    """Return a comparable value: for an address its offset in `memory`, or elsewhere its value modulo 16."""
    if isinstance(value, torch.Tensor):
        value = value.data_ptr()
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(in_short, value)]
    if isinstance(value, int) and value >= FIRST_ADDRESS:
        inside = value - memory.data_ptr()
        return f"memory + {inside}" if 0 <= inside < memory.nbytes else f"elsewhere + {value % 16}"
    if isinstance(value, int | float | str | None):
        return value
    return getattr(value, "__name__", type(value).__name__)


def pretend() -> None:
    """Replace the GPU that Triton and the workbench look for by an H200."""
    here = device.Device(
        kind="cuda", name="H200", architecture="sm_90", compute_units=132, shared_memory_bytes=232448,
        memory_bytes=140 << 30, l2_bytes=50 << 20, warp_size=32, driver="none",
    )  # fmt: skip
    limits = {"max_shared_mem": here.shared_memory_bytes}

    def map_of(address: int, *parts: Any) -> tuple[Any, ...]:
        maps.append(address)
        return "map", address, *parts

    driver.set_active(
        SimpleNamespace(
            launcher_cls=Launcher,
            utils=SimpleNamespace(
                load_binary=lambda name, kernel, shared, index: (1, zlib.crc32(kernel), 32, 0, 1024),
                get_device_properties=lambda index: limits,
                build_signature_metadata=tuple,
                fill_tma_descriptor=map_of,
                fill_tma_descriptor_tiled=map_of,
            ),
            get_current_device=lambda: 0,
            get_current_stream=lambda index: stream,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_active_torch_device=lambda: torch.device("cpu"),
        )
    )
    nvidia.PyKernelArg = lambda **annotation: annotation
    device.current = lambda: here  # type: ignore[assignment]
    Step.check_place = lambda self: None  # type: ignore[method-assign]


def matrix(rows: int, cols: int, offset: int = 0) -> torch.Tensor:
    """Return a view of `memory` that begins at element `offset`."""
    return memory.as_strided((rows, cols), (cols, 1), offset)


def layer_norm_backward(x: torch.Tensor) -> None:
    """Run `ops.layer_norm` with gradients, forward and backward; both launches are kept."""
    x, weight, bias = (t.detach().requires_grad_() for t in (x, torch.ones_like(x[0]), torch.ones_like(x[0])))
    result = ops.layer_norm(x, (COLS,), weight, bias)
    torch.autograd.grad(result, (x, weight, bias), torch.ones_like(result))


def in_turns(offset: int) -> None:
    """Run a product so large that Gluon's programs take two tiles at a time, with addends as an epilogue."""
    a, b = (large.as_strided(shape, (shape[1], 1), offset) for shape in ((1536, 64), (64, 1536)))
    addend = large.as_strided((1536, 1536), (1536, 1), offset)
    ops.fused_matmul(a, b, epilogue=add(addend) | add(addend) | add(a[:, :1]) | fast_gelu())


OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda x: ops.add(x, x),
    "axpy": lambda x: ops.add(x, x, alpha=0.5),
    "add of columns": lambda x: ops.add(x.t(), x.t()),
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
    "fused_matmul in turns": lambda x: in_turns(int(x.storage_offset())),
    "matmul": lambda x: ops.matmul(x, x.t()),  # by tensor descriptors, where addresses are aligned
    "addmm": lambda x: ops.addmm(x[:, :ROWS], x, x.t(), beta=0.5),
}


def calls_of(operator: Callable[[torch.Tensor], object]) -> list[list[list[Any]]]:
    """Return what each call starts, for tensors at each offset."""
    calls = []
    for offset in OFFSETS:
        started.clear()
        operator(matrix(ROWS, COLS, offset))
        calls.append(started.copy())
    return calls


def by_triton(launch: Launch, *tensors: torch.Tensor) -> Callable[..., None]:
    """Stand in for a replay: Triton starts each step."""
    return lambda *tensors: launch.run()  # type: ignore[return-value]  # nothing needs the outputs


if __name__ == "__main__":
    pretend()
    with (
        patch.object(replay, "Replay", by_triton),
        patch.object(warm, "_is_recordable", lambda values: False),
    ):
        wanted = {name: calls_of(operator) for name, operator in OPERATORS.items()}
    for name, operator in OPERATORS.items():
        print(json.dumps({"operator": name, "by_triton": wanted[name], "kept": calls_of(operator)}))
