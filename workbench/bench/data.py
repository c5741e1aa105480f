"""What is measured on: dtypes by their names in recordings, and random-normal inputs.

Zeros or small integers would flatter a GPU: fewer bits toggle, so that it draws less power and clocks higher.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench import device
from workbench.bench.recording import FLOATS, LAYOUTS
from workbench.errors import UnknownNameError, check_positive

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
    """Torch's dtype for a name such as "fp16", as this device has it (MI300's fp8 has no negative zero).

    Raises:
        UnknownNameError: it is not the name of a floating-point dtype.
    """
    if dtype not in FLOATS:
        raise UnknownNameError("dtype", dtype, FLOATS)
    if device.current().architecture.startswith("gfx94"):
        if dtype == "fp8_e4m3":
            return torch.float8_e4m3fnuz
        if dtype == "fp8_e5m2":
            return torch.float8_e5m2fnuz
    return _TORCH_DTYPES[dtype]


def product_absence(dtype: str, here: device.Device) -> str:
    """Why a device's matrix units do not multiply this dtype, in words; empty where they do.

    Raises:
        UnknownNameError: as :func:`torch_dtype`.
    """
    if dtype not in FLOATS:
        raise UnknownNameError("dtype", dtype, FLOATS)
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
    capability = int(here.architecture.removeprefix("sm_"))
    return f"{dtype} needs sm_{least}, this is {here.architecture}" if capability < least else ""


def normal(shape: Sequence[int], dtype: str, *, seed: int = 0) -> torch.Tensor:
    """A contiguous tensor of standard normal values on this device, the same for the same seed.

    Raises:
        UnknownNameError: as :func:`torch_dtype`.
    """
    place = device.current().torch_device
    generator = torch.Generator(device=place).manual_seed(seed)
    kind = torch_dtype(dtype)
    if kind.itemsize == 1:  # torch draws no fp8
        return torch.randn(*shape, generator=generator, device=place).to(kind)
    return torch.randn(*shape, generator=generator, device=place, dtype=kind)


def matrices(m: int, n: int, k: int, dtype: str, layout: str = "nn") -> tuple[torch.Tensor, torch.Tensor]:
    """Random-normal A (m x k) and B (k x n).

    Args:
        m, n, k: the lengths.
        dtype: a name of a floating-point dtype.
        layout: see `recording.LAYOUTS`; libraries multiply fp8 only in "nt".

    Raises:
        UnknownNameError: dtype or layout. ArgumentTypeError, InvalidArgumentError: a length.
    """
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    for name, length in (("m", m), ("n", n), ("k", k)):
        check_positive(name, length)
    a = normal((m, k), dtype, seed=0) if layout[0] == "n" else normal((k, m), dtype, seed=0).t()
    b = normal((k, n), dtype, seed=1) if layout[1] == "n" else normal((n, k), dtype, seed=1).t()
    return a, b
