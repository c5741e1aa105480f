"""The start of a compiled kernel by the C function in which Triton's launcher ends.

`compiled[grid](...)` of Triton 3.6 to 3.9 asks for device and stream, prepares hooks, and on 3.6 and 3.7
makes the maps of tensor descriptors again. That takes longer on the CPU than the start. The arguments of the
C function depend on the version: those of 3.6 and 3.7 are here, and other versions start kernels through
Triton. `tests/runtime/test_kept_on_a_gpu.py::test_a_kept_launch_passes_tritons_arguments` compares both ways.
The file is no longer needed when Triton's own start costs as little: the suite `launch` measures it
(docs/decisions/019).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

from workbench.compat.versions import VERSION

# A function of the grid's three axes, a stream and the list of all arguments.
Start = Callable[[int, int, int, int, Sequence[Any]], None]


@dataclass(frozen=True)
class Starter:
    """The functions that start a compiled kernel.

    Attributes:
        start: a function of the grid's three axes, a stream and all of the kernel's arguments; constants are
            included, with any value. A pointer is a tensor or an integer; for an integer the driver is not
            asked.
        expanded: a function of a descriptor's position among the kernel's tensor descriptors, and of the
            descriptor, that returns its arguments for `start`: the map that the hardware reads, and integers,
            valid as long as the tensor's address is the same. None if `start` takes descriptors themselves.
    """

    start: Start
    expanded: Callable[[int, Any], list[Any]] | None


def starter(compiled: Any) -> Starter:
    """Return the cheapest way to start a kernel that Triton compiled.

    Triton's `compiled[grid](...)` asks for device and stream, makes a dictionary for hooks and calls them,
    which are empty chains in most processes, and makes the map of each tensor descriptor again (3.6, 3.7).
    With these versions on NVIDIA GPUs the starter calls the C function that this ends in, with hooks only if
    there are any, such as a profiler's. On other GPUs, with other versions, and if the kernel needs scratch
    memory or has metadata of its own for hooks (`launch_metadata`), it uses Triton's start.

    Args:
        compiled: the result of `kernel.warmup(...)` on the device on which the kernel will run.
    """
    from triton.backends.nvidia import driver as nvidia

    run, metadata = compiled.run, compiled.metadata  # the first loads the kernel
    has_own = getattr(getattr(compiled.src, "fn", None), "launch_metadata", None) is not None
    is_direct = VERSION in ((3, 6), (3, 7)) and isinstance(run, nvidia.CudaLauncher) and not has_own
    if not is_direct or run.global_scratch_size or run.profile_scratch_size:
        return Starter(partial(_start_through_triton, compiled), None)

    maps = getattr(metadata, "tensordesc_meta", None)

    def expanded(which: int, descriptor: Any) -> list[Any]:
        parts = _expanded(descriptor, maps[which] if maps else None)
        return [part.data_ptr() if isinstance(part, torch.Tensor) else part for part in parts]

    # Triton may wrap the C function in a Python function that makes the maps of descriptors.
    wraps = inspect.isfunction(run.launch)
    launch = inspect.getclosurevars(run.launch).nonlocals["launcher"] if wraps else run.launch
    make = _start_36 if VERSION == (3, 6) else _start_37
    return Starter(make(compiled, launch), expanded)


def _start_36(compiled: Any, launch: Callable[..., None]) -> Start:
    """Return `Starter.start` for the arguments of Triton 3.6's C function."""
    run, settings = compiled.run, knobs.runtime
    enters, leaves = _chains_of_hooks()
    flags = (compiled.function, run.launch_cooperative_grid, run.launch_pdl)
    packed = None, None, compiled.packed_metadata
    without_hooks: tuple[Any, ...] = (*flags, *packed, None, None, None)

    def start(x: int, y: int, z: int, stream: int, arguments: Sequence[Any]) -> None:
        enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
        if enter is enters and leave is leaves and not enters.calls and not leaves.calls:
            launch(x, y, z, stream, *without_hooks, *arguments)
        else:
            told = compiled.launch_metadata((x, y, z), stream, *arguments)
            launch(x, y, z, stream, *flags, *packed, told, enter, leave, *arguments)

    return start


def _start_37(compiled: Any, launch: Callable[..., None]) -> Start:
    """Return `Starter.start` for the arguments of Triton 3.7's C function."""
    run, settings = compiled.run, knobs.runtime
    enters, leaves = _chains_of_hooks()
    flags = compiled.function, run.launch_cooperative_grid, run.launch_pdl, compiled.packed_metadata
    after = None, None, run.arg_annotations, run.kernel_signature
    without_hooks = (*flags, None, None, None, *after)

    def start(x: int, y: int, z: int, stream: int, arguments: Sequence[Any]) -> None:
        enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
        if enter is enters and leave is leaves and not enters.calls and not leaves.calls:
            launch(x, y, z, stream, *without_hooks, arguments)
        else:
            told = compiled.launch_metadata((x, y, z), stream, *arguments)
            launch(x, y, z, stream, *flags, told, enter, leave, *after, arguments)

    return start


def _chains_of_hooks() -> tuple[Any, Any]:
    """Return Triton's own chains of enter and exit hooks; users can set other chains, a function or None."""
    return type(knobs.runtime).launch_enter_hook, type(knobs.runtime).launch_exit_hook


def _expanded(descriptor: Any, meta: Any) -> list[Any]:
    """Return the arguments that a launch takes in place of a tensor descriptor, on an NVIDIA GPU.

    The driver needs a current context for a map. A thread that has not used CUDA yet has none, such as
    autograd's if a backward pass begins with a product; Triton makes one current only at the launch, after
    its maps (3.6, 3.7).
    """
    from triton.backends.nvidia import driver as nvidia

    try:
        return list(nvidia.make_tensordesc_arg(descriptor, meta))
    except RuntimeError as error:
        if "invalid device context" not in str(error):
            raise
    # The call makes the context current, also while a graph is captured; its result is not needed.
    torch.cuda.cudart().cudaMemGetInfo(current_cuda_device())
    return list(nvidia.make_tensordesc_arg(descriptor, meta))


def _start_through_triton(
    compiled: Any, x: int, y: int, z: int, stream: int, arguments: Sequence[Any]
) -> None:
    compiled[x, y, z](*arguments, stream=stream)


def stream_getter() -> Callable[[int], int]:
    """Return a function from a device's index to the handle of its current stream."""
    getter: Callable[[int], int] = driver.active.get_current_stream
    return getter


def current_device() -> int:
    """Return the index of the device that Triton compiles for."""
    number: int = driver.active.get_current_device()
    return number


# What `torch.cuda.current_device()` calls once CUDA is initialized; torch for the CPU does not have it.
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


@cache
def allocator(kind: str) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """Return a function like `torch.empty_strided` that bypasses torch's dispatcher, in half the time.

    Code that torch.compile generates allocates in the same way.

    Args:
        kind: "cuda" or "cpu"; tensors are on the current device of this type.

    Returns:
        A function of shape, strides and dtype.
    """
    guards: Any = torch._C._dynamo.guards
    allocate: Callable[..., torch.Tensor] = getattr(guards, f"_empty_strided_{kind}")
    return allocate


def compiled_for(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the kernel as Triton compiles it for the arguments on the current device; start nothing.

    Args:
        kernel: a `@triton.jit` function, not interpreted.
        arguments: all arguments, including constants.
        options: launch options, such as `num_warps`.
    """
    return kernel.warmup(*arguments, grid=(1, 1, 1), **options)
