"""The data to measure with: dtypes by their names in recordings, and random-normal inputs.

Zeros or small integers would flatter a GPU: fewer bits toggle, so it draws less power and clocks higher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from workbench import device, renamed
from workbench.bench.recording import FLOATS, LAYOUTS
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_name,
    check_positive,
    check_type,
)

# The one dtype that is not a float, and the standard deviation of its values, which are rounded normal
# values: four deviations fill the range.
INT8, INT8_DEVIATION = "int8", 32

# Ways to fill inputs, in ckProfiler's terms, and the largest value of "integer".
INITS = ("normal", "integer", "one-hot")
LARGEST_INTEGER = 5

# Lengths and seeds fit into 64 bits, as in torch.
_MOST = 2**63 - 1

_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def torch_dtype(dtype: str) -> torch.dtype:
    """Return torch's dtype for a name such as "fp16", on this device (MI300's fp8 has no negative zero).

    Raises:
        UnknownNameError: it is not the name of a floating-point dtype.
    """
    check_name("dtype", dtype, FLOATS)
    if device.current().architecture.startswith("gfx94"):
        if dtype == "fp8_e4m3":
            return torch.float8_e4m3fnuz
        if dtype == "fp8_e5m2":
            return torch.float8_e5m2fnuz
    return _TORCH_DTYPES[dtype]


def product_absence(dtype: str, here: device.Device) -> str:
    """Return why a device's matrix units cannot multiply this dtype; empty if they can.

    Raises:
        UnknownNameError: as :func:`torch_dtype`. ArgumentTypeError: `here` is not a Device.
        InvalidArgumentError: the architecture of an NVIDIA device is not like "sm_90".
    """
    check_name("dtype", dtype, FLOATS)
    check_type("here", here, device.Device, "Give a Device, such as device.current().")
    if dtype == "fp8_e5m2":
        return "no library multiplies two fp8_e5m2 matrices"
    if here.kind == "interpreter":
        return f"{dtype} is a format of GPU matrix units" if dtype in ("tf32", "fp8_e4m3") else ""
    if here.kind == "hip":
        if dtype == "tf32":
            return "torch does not use tf32 on AMD GPUs by itself"
        if dtype == "fp8_e4m3" and not here.architecture.startswith(("gfx94", "gfx95", "gfx12")):
            return f"{here.architecture} has no fp8"
        return ""
    least = {"tf32": 80, "bf16": 80, "fp8_e4m3": 89}.get(dtype, 0)
    capability = here.architecture.removeprefix("sm_")
    if not capability.isdecimal():
        raise InvalidArgumentError(
            "here",
            f"its architecture is {here.architecture!r}",
            "Give a device with an architecture such as 'sm_90'.",
        )
    return f"{dtype} needs sm_{least}, this is {here.architecture}" if int(capability) < least else ""


def normal(shape: Sequence[int], dtype: str, *, seed: int = 0) -> torch.Tensor:
    """Return a contiguous tensor of standard normal values on this device, the same for the same seed.

    Args:
        shape: its lengths, each 0 or more.
        dtype: the name of a floating-point dtype.
        seed: a whole number of 0 or more.

    Raises:
        UnknownNameError: as :func:`torch_dtype`.
        ArgumentTypeError, InvalidArgumentError: the seed or the shape is invalid, or exceeds the memory.
    """
    kind = torch_dtype(dtype)
    _check_shape(shape, kind)
    _check_whole("seed", seed)
    place = device.current().torch_device
    generator = torch.Generator(device=place).manual_seed(seed)
    if kind.itemsize == 1:  # torch draws no fp8
        return torch.randn(tuple(shape), generator=generator, device=place).to(kind)
    return torch.randn(tuple(shape), generator=generator, device=place, dtype=kind)


def to_int8(normal: torch.Tensor) -> torch.Tensor:
    """Convert normal values to int8; the input is overwritten."""
    return normal.mul_(INT8_DEVIATION).round_().clamp_(-128, 127).to(torch.int8)


def draw(shape: Sequence[int], dtype: str, init: str = "normal", *, seed: int = 0) -> torch.Tensor:
    """Return a contiguous tensor on this device, filled in one of the ways of `INITS`.

    "normal": as :func:`normal`, scaled and rounded for int8. "integer": whole numbers from -5 to 5, whose
    sums are exact in fp32 up to 2^24, so that the order of additions changes nothing. "one-hot": each row
    has a 1, one place further in every next row, and 0 elsewhere, so that a result shows the elements that
    it was made of.

    Args:
        shape: its lengths, each 0 or more.
        dtype: the name of a floating-point dtype, or "int8".
        init: one of `INITS`.
        seed: a whole number of 0 or more; for "one-hot" the place of the first row's 1.

    Raises:
        UnknownNameError: `init` or `dtype` is unknown. Others as :func:`normal`.
    """
    check_name("init", init, INITS)
    kind = torch.int8 if dtype == INT8 else torch_dtype(dtype)
    if init == "normal":
        return to_int8(normal(shape, "fp32", seed=seed)) if dtype == INT8 else normal(shape, dtype, seed=seed)
    _check_shape(shape, kind)
    _check_whole("seed", seed)
    place = device.current().torch_device
    if init == "integer":
        generator = torch.Generator(device=place).manual_seed(seed)
        least, most = -LARGEST_INTEGER, LARGEST_INTEGER + 1
        return torch.randint(least, most, tuple(shape), generator=generator, device=place).to(kind)
    cols = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    hot = torch.zeros((rows, cols), device=place)
    if cols:
        hot[torch.arange(rows, device=place), (torch.arange(rows, device=place) + seed) % cols] = 1
    return hot.to(kind).view(tuple(shape))


def _check_shape(shape: Sequence[int], dtype: torch.dtype) -> None:
    check_type("shape", shape, tuple | list, "Give a length for each axis, such as (4096, 4096).")
    for axis, length in enumerate(shape):
        _check_whole(f"shape[{axis}]", length)
    here = device.current()
    needed = math.prod(shape) * dtype.itemsize
    if needed > here.memory_bytes:
        raise InvalidArgumentError(
            "shape",
            f"{tuple(shape)} takes {needed // 10**9} GB, and {here.name} has {here.memory_bytes // 10**9} GB",
            "Give smaller lengths.",
        )


def _check_whole(argument: str, value: int) -> None:
    fix = f"Give a whole number from 0 to {_MOST}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, f"got {value!r}, a {type(value).__name__}", fix)
    if not 0 <= value <= _MOST:
        raise InvalidArgumentError(argument, f"got {value}", fix)


def matrices(m: int, n: int, k: int, dtype: str, layout: str = "nn") -> tuple[torch.Tensor, torch.Tensor]:
    """Return random-normal A (m x k) and B (k x n).

    Args:
        m, n, k: the lengths.
        dtype: the name of a floating-point dtype.
        layout: see `recording.LAYOUTS`; libraries multiply fp8 only in "nt".

    Raises:
        UnknownNameError: dtype or layout is unknown. ArgumentTypeError, InvalidArgumentError: a length is
            invalid.
    """
    check_name("layout", layout, LAYOUTS)
    for name, length in (("m", m), ("n", n), ("k", k)):
        check_positive(name, length)
    a = normal((m, k), dtype, seed=0) if layout[0] == "n" else normal((k, m), dtype, seed=0).t()
    b = normal((k, n), dtype, seed=1) if layout[1] == "n" else normal((n, k), dtype, seed=1).t()
    return a, b


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
