"""The device that runs kernels: an NVIDIA GPU (CUDA), an AMD GPU (ROCm), or Triton's interpreter on the CPU.

`@triton.jit` reads `TRITON_INTERPRET` once, when Triton is imported. Importing `workbench` therefore calls
:func:`choose` before it imports Triton. Only this module queries the machine.

A launch can be planned for a device that the machine does not have. The code that chooses templates, tiles
and grids asks :func:`planned` for the device, which :func:`planning_for` sets. Inside :func:`pretend` the
interpreter also runs such launches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Literal, ParamSpec, TypeVar, get_args

import torch

from workbench.errors import DeviceError, check_name, check_type
from workbench.targets import target

P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal["cuda", "hip", "interpreter"]

# Values of TRITON_INTERPRET in any case. Triton takes only those of _YES for yes, and every other for no.
_YES = ("1", "true", "yes", "on", "y")
_NO = ("0", "false", "no", "off", "n", "")


@dataclass(frozen=True)
class Device:
    """The processor that runs kernels in this process.

    Attributes:
        kind: "cuda", "hip" (ROCm) or "interpreter".
        name: the vendor's product name, or "Triton interpreter (CPU)".
        architecture: the compile target, such as "sm_90" or "gfx942"; "interpreter" without a GPU.
        compute_units: streaming multiprocessors (NVIDIA), compute units (AMD) or CPU cores.
        shared_memory_bytes: maximum shared memory (LDS) of one program; 0 in the interpreter.
        memory_bytes: total device memory; the CPU's in the interpreter; 0 if unknown.
        l2_bytes: size of the last-level cache that all compute units share; 0 if unknown.
        warp_size: threads in a warp (wavefront); 1 in the interpreter.
        driver: version of the driver; "none" in the interpreter.
        is_pretended: True if the interpreter stands in for this device (:func:`pretend`).

    Raises:
        UnknownNameError: the kind is unknown.
    """

    kind: Kind
    name: str
    architecture: str
    compute_units: int
    shared_memory_bytes: int
    memory_bytes: int
    l2_bytes: int
    warp_size: int
    driver: str
    is_pretended: bool = False

    def __post_init__(self) -> None:
        check_name("kind", self.kind, get_args(Kind))

    @property
    def is_gpu(self) -> bool:
        """True when kernels are compiled for a GPU, False when they are interpreted."""
        return self.kind != "interpreter"

    @property
    def runs_gluon(self) -> bool:
        """True if Gluon kernels can run on this device; the interpreter cannot run them."""
        return self.is_gpu and not self.is_pretended

    @property
    def torch_device(self) -> str:
        """torch's device type for tensors: "cuda" (also for ROCm) or "cpu"."""
        return "cuda" if self.is_gpu else "cpu"

    @property
    def slug(self) -> str:
        """The name as a file name: lower case, hyphens."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.name.lower()).split())


def choose() -> None:
    """Choose between GPU and interpreter before Triton is imported; `import workbench` calls this.

    The user's `TRITON_INTERPRET` takes precedence. If it is not set, kernels are interpreted when torch sees
    no GPU.

    Raises:
        DeviceError: Triton was already imported in the other mode.
    """
    if "TRITON_INTERPRET" not in os.environ and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    if "triton.language" in sys.modules:
        interprets = _triton_interprets()
        if interprets != is_interpreter():
            have, want = ("interpret", "compile") if interprets else ("compile", "interpret")
            raise DeviceError(
                f"Triton was imported before workbench, set to {have} kernels, and this machine needs it to "
                f"{want} them. Restart Python (in a notebook: Kernel > Restart) and import workbench first."
            )


def is_interpreter() -> bool:
    """Return whether this process interprets kernels: the value of `TRITON_INTERPRET` as Triton reads it."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in _YES


def unclear_wish() -> str:
    """Describe how Triton reads a `TRITON_INTERPRET` that is neither yes nor no; empty if it is clear."""
    wish = os.environ.get("TRITON_INTERPRET", "0")
    if wish.lower() in (*_YES, *_NO):
        return ""
    return f"TRITON_INTERPRET is {wish!r}, neither yes (1) nor no (0). Triton takes it for no: it compiles"


def _triton_interprets() -> bool:
    """Return whether the imported Triton interprets, judged by how it decorated its own library."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return not isinstance(tl.zeros, JITFunction)


@cache
def current() -> Device:
    """Return the device of this process. It is queried once and never changes.

    Raises:
        DeviceError: `TRITON_INTERPRET` asks to compile kernels (0, or a value that Triton reads as no), but
            torch sees no GPU.
    """
    if is_interpreter():
        return Device(
            kind="interpreter",
            name="Triton interpreter (CPU)",
            architecture="interpreter",
            compute_units=os.cpu_count() or 1,
            shared_memory_bytes=0,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            l2_bytes=0,
            warp_size=1,
            driver="none",
        )
    if not torch.cuda.is_available():
        setting = unclear_wish() or "TRITON_INTERPRET is set to compile"
        raise DeviceError(
            f"{setting} kernels, but torch sees no GPU. Unset it to use the interpreter, or run "
            "`python -m workbench doctor` to see what a GPU needs."
        )
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    hip = torch.version.hip is not None
    major, minor = torch.cuda.get_device_capability(index)
    return Device(
        kind="hip" if hip else "cuda",
        name=properties.name,
        architecture=properties.gcnArchName.split(":")[0] if hip else f"sm_{major}{minor}",
        compute_units=properties.multi_processor_count,
        shared_memory_bytes=_shared_memory_bytes(index),
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        warp_size=properties.warp_size,
        driver=_driver_version(),
    )


@cache
def named(name: str) -> Device:
    """Return the GPU of a target as a Device, from the table in `workbench.targets`.

    The table has neither memory sizes nor drivers: `memory_bytes` is 0, and `driver` is "none".

    Args:
        name: a name in `targets.TARGETS`, such as "sm_90" or "gfx942".

    Raises:
        UnknownNameError: the name is not in the table.
    """
    on = target(name)
    return Device(
        kind="cuda" if on.vendor == "NVIDIA" else "hip",
        name=on.product,
        architecture=on.name,
        compute_units=on.sms,
        shared_memory_bytes=on.most_shared_per_block,
        memory_bytes=0,
        l2_bytes=on.l2_bytes,
        warp_size=on.warp_size,
        driver="none",
    )


_planned: ContextVar[Device | None] = ContextVar("planned", default=None)
_pretended: ContextVar[Device | None] = ContextVar("pretended", default=None)


def planned() -> Device:
    """Return the device that launches are planned for: that of :func:`planning_for`, else :func:`running`."""
    return _planned.get() or running()


def running() -> Device:
    """Return the device that runs launches: the pretended one (:func:`pretend`), else :func:`current`."""
    return _pretended.get() or current()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a GPU, real or pretended (:func:`pretend`), computes with this tensor."""
    return tensor.is_cuda or _pretended.get() is not None


@contextmanager
def pretend(machine: str | Device) -> Iterator[Device]:
    """Interpret the launches that would be chosen on another device, including those of `ops`.

        with device.pretend("sm_90"):
            result = ops.matmul(a, b)  # the tile, splits and grid of an H200, interpreted

    A machine without a GPU then runs the same kernels as that GPU. Gluon kernels are the exception, because
    the interpreter cannot run them: the next candidate is chosen instead. The context applies to the thread
    (or task) that enters it.

    Args:
        machine: a name in `targets.TARGETS`, which stands for the product in that entry ("sm_90": an H200),
            or a device.

    Raises:
        UnknownNameError: the name is not in the table. DeviceError: this process compiles kernels for its own
        GPU. ArgumentTypeError: `machine` is neither a name nor a device.
    """
    check_type("machine", machine, str | Device, 'Name a target, such as "sm_90", or give a Device.')
    if not is_interpreter():
        raise DeviceError(
            f"This process compiles kernels for {current().name}, which cannot pretend to be another GPU. "
            "Set TRITON_INTERPRET=1 before Python starts, or use device.planning_for to make launches."
        )
    stands_in = replace(named(machine) if isinstance(machine, str) else machine, is_pretended=True)
    token = _pretended.set(stands_in)
    try:
        yield stands_in
    finally:
        _pretended.reset(token)


@contextmanager
def planning_for(name: str | None) -> Iterator[Device]:
    """Plan launches for the named device instead of this process's device.

        with device.planning_for("sm_90"):
            launch = gemm.launch(a, b)
        lens.compile(launch, "sm_90")

    Templates, tiles, splits and options are chosen for the named device; tensors stay where they are. The
    context applies to the thread (or task) that enters it. Functions of `ops` run their launches, so they
    still choose for this process's device.

    Args:
        name: a name in `targets.TARGETS`; None for this process's device.

    Raises:
        UnknownNameError: the name is not in the table.
    """
    token = _planned.set(None if name is None else named(name))
    try:
        yield planned()
    finally:
        _planned.reset(token)


def plans_for_device(make: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that makes launches: its keyword `device` is passed to `planning_for`."""

    @wraps(make)
    def make_for_device(*args: P.args, **kwargs: P.kwargs) -> R:
        name = kwargs.get("device")
        if name is None:
            return make(*args, **kwargs)
        check_type("device", name, str, 'Name a target, such as "sm_90", or give None for this device.')
        with planning_for(str(name)):
            return make(*args, **kwargs)

    return make_for_device


def free_memory_bytes() -> int:
    """Return the free device memory (GPU) or the machine's available memory (interpreter), in bytes."""
    if current().is_gpu:
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def gpu_absence() -> str:
    """Say why torch sees no GPU; empty if it sees one."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is a CPU build"
    return f"torch is built for {'ROCm' if torch.version.hip else 'CUDA'} but finds no usable GPU or driver"


def _shared_memory_bytes(index: int) -> int:
    import triton

    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def _driver_version() -> str:
    """Return the driver version that the kernel module states, or else the version of the runtime."""
    for path in ("/sys/module/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            with open(path) as file:
                return file.read().strip()
        except OSError:
            continue
    return str(torch.version.hip or torch.version.cuda)
