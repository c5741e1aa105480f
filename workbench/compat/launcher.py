"""The start of a compiled kernel by the C function in which Triton's launcher ends.

`compiled[grid](...)` of Triton 3.6 to 3.9 asks for device and stream, prepares hooks, and on 3.6 and 3.7
makes the maps of tensor descriptors anew, which takes longer on the CPU than the start. The arguments of the
C function belong to a version: those of 3.6 and of 3.7 are here, and other versions start kernels through
Triton. `tests/runtime/test_kept_on_a_gpu.py::test_a_kept_launch_passes_tritons_arguments` compares the two
ways. The file is no longer needed when Triton's own start costs as little: the suite `launch` measures it
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

# From the three axes of a grid, a stream and all arguments.
Start = Callable[[int, int, int, int, Sequence[Any]], None]


@dataclass(frozen=True)
class Starter:
    """What starts a compiled kernel.

    Attributes:
        start: of the grid's three axes, a stream and all of the kernel's arguments, constants too, of
            whatever value. A pointer is a tensor or an integer; for an integer the driver is not asked.
        expanded: from the number of a tensor descriptor among the kernel's, and the descriptor, to what
            `start` takes in its place: the map that the hardware reads, and integers, right for as long as
            the tensor's address is the same. None where `start` takes descriptors themselves.
    """

    start: Start
    expanded: Callable[[int, Any], list[Any]] | None


def starter(compiled: Any) -> Starter:
    """The cheapest way to start a kernel that Triton compiled.

    `compiled[grid](...)`, Triton's own, asks for device and stream, makes a dictionary for hooks and calls
    them, which are empty chains in most processes, and makes the map of each tensor descriptor anew (3.6,
    3.7). On NVIDIA GPUs this calls what that calls in the end, a function in C, with hooks only where there
    are some, such as a profiler's. Elsewhere, and where the kernel wants scratch memory, it is Triton's.

    Args:
        compiled: what `kernel.warmup(...)` returned, on the device that it is to run on.
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

    # Around what it calls in C, Triton has a function that makes maps of descriptors.
    wraps = inspect.isfunction(run.launch)
    launch = inspect.getclosurevars(run.launch).nonlocals["launcher"] if wraps else run.launch
    make = _start_36 if VERSION == (3, 6) else _start_37
    return Starter(make(compiled, launch), expanded)


def _start_36(compiled: Any, launch: Callable[..., None]) -> Start:
    """`Starter.start` with the arguments that the C function of Triton 3.6 takes."""
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
    """`Starter.start` with the arguments that the C function of Triton 3.7 takes."""
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
    """Triton's own chains, empty in most processes; somebody can set others, a function, or None."""
    return type(knobs.runtime).launch_enter_hook, type(knobs.runtime).launch_exit_hook


def _expanded(descriptor: Any, meta: Any) -> list[Any]:
    """What a launch takes in place of a tensor descriptor, on an NVIDIA GPU.

    In a thread that has asked CUDA for nothing, as autograd's may be when a gradient begins with a product,
    no context is current, which the driver wants for a map; Triton sees to that at the launch, after its maps
    (3.6, 3.7).
    """
    from triton.backends.nvidia import driver as nvidia

    try:
        return list(nvidia.make_tensordesc_arg(descriptor, meta))
    except RuntimeError as error:
        if "invalid device context" not in str(error):
            raise
    # The answer is of no use; to ask makes the context current, also while a graph is captured.
    torch.cuda.cudart().cudaMemGetInfo(current_cuda_device())
    return list(nvidia.make_tensordesc_arg(descriptor, meta))


def _start_through_triton(
    compiled: Any, x: int, y: int, z: int, stream: int, arguments: Sequence[Any]
) -> None:
    compiled[x, y, z](*arguments, stream=stream)


def stream_getter() -> Callable[[int], int]:
    """A function from the number of a device to the handle of the stream that is current there."""
    getter: Callable[[int], int] = driver.active.get_current_stream
    return getter


def current_device() -> int:
    """The number of the device that Triton compiles for."""
    number: int = driver.active.get_current_device()
    return number


# As `torch.cuda.current_device()` asks, once CUDA is initialized; torch for the CPU does not have it.
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


@cache
def allocator(kind: str) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """`torch.empty_strided` on the current device of a type, "cuda" or "cpu", without torch's dispatcher.

    As code that torch.compile has written allocates, in half the time.
    """
    guards: Any = torch._C._dynamo.guards
    allocate: Callable[..., torch.Tensor] = getattr(guards, f"_empty_strided_{kind}")
    return allocate


def compiled_for(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The kernel as Triton compiles it for such arguments on the current device; nothing is started.

    Args:
        kernel: a `@triton.jit` function, not interpreted.
        arguments: all of them, constants too.
        options: of the launch, such as `num_warps`.
    """
    return kernel.warmup(*arguments, grid=(1, 1, 1), **options)
