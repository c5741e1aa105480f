"""CUDA kernels for a Hopper GPU that tools time: compiled by NVRTC and launched by the driver API.

NVRTC and the driver are used through NVIDIA's `cuda.bindings`, which torch for CUDA depends on.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from workbench import device

SHARED = Path(__file__).with_suffix(".cu")  # the code that all kernels share
OUTSIDE = 1024  # bytes, for the alignment of a block's shared memory


def is_missing() -> str:
    """Say why kernels cannot be launched here; empty if they can."""
    if device.current().architecture != "sm_90":
        return f"This needs a Hopper GPU (sm_90), not {device.current().architecture}."
    try:
        importlib.import_module("cuda.bindings")
    except ModuleNotFoundError:
        return f"This needs NVIDIA's bindings: {sys.executable} -m pip install cuda-bindings"
    return ""


class Kernel:
    """A CUDA kernel from a file, compiled for this GPU.

    Args:
        source: the file.
        name: the kernel's name.
        columns: widths of products; the kernel gets a function :func:`multiply_add` for each.
        defines: macros.
        shared_bytes: the dynamic shared memory of a block.

    Raises:
        RuntimeError: the error of the compiler or the driver.
    """

    def __init__(
        self,
        source: Path,
        name: str,
        columns: Sequence[int],
        defines: Mapping[str, int],
        shared_bytes: int,
    ) -> None:
        self._driver = importlib.import_module("cuda.bindings.driver")
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        products = (multiply_add(cols) for cols in columns)
        text = "".join((SHARED.read_text(), *products, "#line 1\n", source.read_text()))
        options = ["--gpu-architecture=sm_90a", *(f"-D{macro}={value:d}" for macro, value in defines.items())]
        program = checked_result(nvrtc.nvrtcCreateProgram(text.encode(), source.name.encode(), 0, [], []))
        if nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]:
            log = b" " * checked_result(nvrtc.nvrtcGetProgramLogSize(program))
            checked_result(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"{source.name} does not compile:\n{log.decode()}")
        binary = b" " * checked_result(nvrtc.nvrtcGetCUBINSize(program))
        checked_result(nvrtc.nvrtcGetCUBIN(program, binary))
        torch.cuda.synchronize()  # creates a context if nothing has used the GPU yet
        module = checked_result(self._driver.cuModuleLoadData(binary))
        self._kernel = checked_result(self._driver.cuModuleGetFunction(module, name.encode()))
        self._shared_bytes = shared_bytes
        wanted = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked_result(self._driver.cuFuncSetAttribute(self._kernel, wanted, shared_bytes))

    def launch(self, units: int, threads: int, *arguments: Any) -> None:
        """Launch on torch's stream; arguments are tensors, ints, or results of :func:`descriptor`."""
        values = tuple(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments)
        kinds = {torch.Tensor: ctypes.c_void_p, int: ctypes.c_int}
        types = tuple(kinds.get(type(each)) for each in arguments)
        stream = torch.cuda.current_stream().cuda_stream
        checked_result(
            self._driver.cuLaunchKernel(
                self._kernel, units, 1, 1, threads, 1, 1, self._shared_bytes, stream, (values, types), 0
            )
        )


def descriptor(tensor: torch.Tensor, rows: int) -> Any:
    """Return the TMA descriptor of a matrix in fp16: boxes of rows x 64, with the swizzle of 128 bytes."""
    driver = importlib.import_module("cuda.bindings.driver")
    return checked_result(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in reversed(tensor.shape)],
            [driver.cuuint64_t(tensor.stride(0) * tensor.element_size())],
            [driver.cuuint32_t(size) for size in (64, rows)],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


def multiply_add(cols: int) -> str:
    """Return the text of a CUDA function for `wgmma` of 64 rows and `cols` columns.

    It computes sums += x @ y, or sums = x @ y if `add` is 0.
    """
    sums = ", ".join(f"%{i}" for i in range(cols // 2))
    outputs = ", ".join(f'"+f"(sums[{i}])' for i in range(cols // 2))
    x = cols // 2
    return f"""
__device__ __forceinline__ void multiply_add(
    float (&sums)[{x}], unsigned long long x, unsigned long long y, int add) {{
  asm volatile(
      "{{ .reg .pred p; setp.ne.b32 p, %{x + 2}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{cols}k16.f32.f16.f16 {{{sums}}}, %{x}, %{x + 1}, p, 1, 1, 0, 0; }}"
      : {outputs} : "l"(x), "l"(y), "r"(add));
}}
"""


def checked_result(returned: tuple[Any, ...]) -> Any:
    """Return the result of a CUDA function without its status.

    Raises:
        RuntimeError: the status is an error.
    """
    status, *found = returned
    if int(status):
        raise RuntimeError(f"A call of CUDA's driver or of NVRTC failed with {status!r}.")
    return found[0] if found else None
