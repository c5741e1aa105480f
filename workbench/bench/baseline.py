"""Baselines: the libraries and code that an expert would use instead of our kernels, by name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch._functorch import config as functorch_config
from torch.profiler import ProfilerActivity

from workbench import device, renamed
from workbench.bench.recording import FLOATS
from workbench.bench.timing import Subject, callable_of
from workbench.errors import (
    DeviceError,
    TensorMismatchError,
    check_name,
    check_type,
)

P = ParamSpec("P")
R = TypeVar("R")

# The libraries that multiply matrices, by kind of device.
VENDOR_LIBRARIES: dict[device.Kind, tuple[str, ...]] = {
    "cuda": ("cuBLAS", "cuBLASLt"),
    "hip": ("rocBLAS", "hipBLASLt"),
    "interpreter": (),
}


# The third call of an operator with arguments of one kind is warm, see `runtime.warm`.
CALLS_UNTIL_WARM = 3


@dataclass(frozen=True)
class Baseline:
    """A library or a way of writing code to compare with.

    Attributes:
        name: the name in recordings.
        about: a description.
        kind: the kind of device that it needs, None for any.
        library: torch's name of the BLAS library that it prefers; None: torch chooses.
        compiles: True if torch.compile makes the kernel.
        mode: the mode of torch.compile; None for its default.
        needs_gpu: True if it is measured on GPUs only.
        package: the module of a library that users install to compare with; None for what comes with torch.
        install: the arguments of pip that install it.
    """

    name: str
    about: str
    kind: device.Kind | None = None
    library: str | None = None
    compiles: bool = False
    mode: str | None = None
    needs_gpu: bool = False
    package: str | None = None
    install: str = ""

    @property
    def is_optional(self) -> bool:
        """True if comparisons leave the baseline out where it is absent, fails or is wrong."""
        return self.package is not None

    def absence(self, here: device.Device | None = None) -> str:
        """Return why the baseline cannot run; empty if it can.

        Args:
            here: the device in question; this process's by default.

        Raises:
            ArgumentTypeError: `here` is not a Device.
        """
        check_type("here", here, device.Device | None, "Give a Device, or None for this process's.")
        here = here or device.current()
        if self.kind is not None and here.kind != self.kind:
            vendor = {"cuda": "NVIDIA", "hip": "AMD"}[self.kind]
            return f"{self.name} is {vendor}'s, and kernels run on {here.name} here"
        if (self.needs_gpu or self.compiles or self.is_optional) and not here.is_gpu:
            return f"{self.name} is measured on GPUs only"
        if self.package is not None and find_spec(self.package) is None:
            return f"{self.name} is not installed: pip install {self.install}"
        return ""

    def available(self) -> bool:
        """Return whether the baseline can run here; :meth:`absence` says why not."""
        return not self.absence()

    def check_here(self) -> None:
        """Raise DeviceError if the baseline cannot run here."""
        if reason := self.absence():
            raise DeviceError(f"{reason}. Use another baseline. Available here: {', '.join(available())}.")

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        argnums: Sequence[int] | None = None,
        **keywords: Any,
    ) -> Callable[[], Any]:
        """Return a function of no arguments that calls a function in the way of this baseline.

        Args:
            function: an operator, as a user of the library writes it.
            args, keywords: its arguments.
            argnums: None for the function itself. To get its gradients instead, the arguments by position for
                which they are wanted; the first of `args` is then the gradient of its result.

        Raises:
            DeviceError: it cannot run here.
            TensorMismatchError: tensors are on another device, or the library cannot multiply their dtype.
            Errors that an optional library raises when it is imported or called are passed on.
        """
        self.check_here()
        tensors = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)]
        check_place(tensors)
        is_fp8 = any(each.dtype.itemsize == 1 and each.is_floating_point() for each in tensors)
        if is_fp8 and self.library == "cublas":
            raise TensorMismatchError(
                "args", "fp8", f"{self.name} cannot multiply it: use cuBLASLt (hipBLASLt)."
            )
        if self.compiles:
            # Without fullgraph, torch would silently fall back to eager code.
            function = torch.compile(function, fullgraph=True, dynamic=False, mode=self.mode)
        whole: Callable[[], Any] = partial(function, *args, **keywords)
        if argnums is not None:
            whole = backward_of(function, argnums, *args, **keywords)
        return whole if self.library is None else _preferring(self.library, whole)


BASELINES = {
    baseline.name: baseline
    for baseline in (
        Baseline("torch", "PyTorch, eager mode"),
        Baseline("torch.compile", "PyTorch's compiler (Inductor)", compiles=True),
        # Without CUDA graphs, since `bench` makes its own graph to time it.
        Baseline(
            "torch.compile max-autotune",
            "PyTorch's compiler, which tries kernels for each product, and templates of its own",
            compiles=True,
            mode="max-autotune-no-cudagraphs",
        ),
        Baseline("Triton", "kernels of Triton's tutorials, started as in the tutorials", needs_gpu=True),
        Baseline(
            "Triton autotuned", "kernels of Triton's tutorials, behind @triton.autotune", needs_gpu=True
        ),
        # torch calls AMD's libraries by the names of their NVIDIA counterparts.
        Baseline("cuBLAS", "NVIDIA's BLAS, classic interface", "cuda", "cublas"),
        Baseline("cuBLASLt", "NVIDIA's BLAS, lightweight interface", "cuda", "cublaslt"),
        Baseline(
            "cuDNN",
            "NVIDIA's library; of convolutions it tries its kernels and takes the fastest",
            "cuda",
        ),
        Baseline("FlashAttention-2", "Tri Dao's kernels, in torch", "cuda"),
        Baseline(
            "flex_attention",
            "a template of PyTorch's compiler, for any function of a score",
            needs_gpu=True,
        ),
        Baseline("rocBLAS", "AMD's BLAS", "hip", "cublas"),
        Baseline("hipBLASLt", "AMD's BLAS, lightweight interface", "hip", "cublaslt"),
        # Installed without dependencies: FlagGems would put numpy back to 1.26, and Liger, if torch is built
        # for ROCm, would replace torch's Triton by PyPI's.
        Baseline(
            "Liger",
            "Triton kernels for training (Liger-Kernel)",
            package="liger_kernel",
            install="--no-deps liger-kernel",
        ),
        Baseline(
            "FlagGems",
            "torch's operators in Triton, for many vendors' devices",
            package="flag_gems",
            install="--no-deps flag-gems sqlalchemy",
        ),
    )
}


def get(name: str) -> Baseline:
    """Return the baseline of that name.

    Raises:
        UnknownNameError: there is none; the message lists the nearest names.
    """
    check_name("baseline", name, BASELINES)
    return BASELINES[name]


def available() -> list[str]:
    """Return the names of the baselines that can run here."""
    return [name for name, baseline in BASELINES.items() if baseline.available()]


def backward_of(
    function: Callable[..., torch.Tensor],
    argnums: Sequence[int],
    gradient: torch.Tensor,
    *args: Any,
    **keywords: Any,
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a function that computes gradients again and again; the forward pass runs once per stream.

    Autograd runs a backward on the stream of its forward, and a CUDA graph captures one stream only. The
    forward passes of the two most recently used streams are kept.

    Args:
        function: a differentiable function.
        argnums: the arguments, by position, for which gradients are wanted.
        gradient: the gradient of its result.
        args, keywords: its arguments.

    Returns:
        a function of no arguments that returns the gradients.
    """
    passes: dict[object, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def gradients() -> tuple[torch.Tensor, ...]:
        stream = torch.cuda.current_stream() if gradient.is_cuda else None
        if stream in passes:
            passes[stream] = passes.pop(stream)  # move to the end
        else:
            for oldest in list(passes)[:-1]:
                del passes[oldest]
            leaves = {place: args[place].detach().requires_grad_() for place in argnums}
            given = [leaves.get(place, value) for place, value in enumerate(args)]
            # Compiled code frees its saved tensors after the first backward, unless told to keep them.
            with functorch_config.patch(donated_buffer=False):
                for _ in range(CALLS_UNTIL_WARM):  # a training step differentiates a warm call
                    passes[stream] = function(*given, **keywords), list(leaves.values())
        result, wanted = passes[stream]
        return torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    return gradients


def product_libraries(dtype: str, kind: device.Kind | None = None) -> tuple[str, ...]:
    """Return the vendor's libraries that multiply matrices of a dtype; fp8 needs an interface with scales.

    Args:
        dtype: its name, such as "fp16".
        kind: the kind of device; this process's by default.

    Raises:
        UnknownNameError: the dtype or the kind is unknown.
    """
    check_name("dtype", dtype, FLOATS)
    if kind is not None:
        check_name("kind", kind, VENDOR_LIBRARIES)
    names = VENDOR_LIBRARIES[kind or device.current().kind]
    return tuple(name for name in names if not dtype.startswith("fp8") or name.endswith("Lt"))


def product_layout(dtype: str) -> str:
    """Return the layout in which libraries multiply a dtype: "nt" for fp8 and int8, else "nn".

    Raises:
        UnknownNameError: the dtype is unknown.
    """
    check_name("dtype", dtype, (*FLOATS, "int8"))
    return "nt" if dtype == "int8" or dtype.startswith("fp8") else "nn"


@contextmanager
def blas_library(name: str) -> Iterator[None]:
    """Context manager in which torch multiplies matrices with this library wherever it can.

    Args:
        name: "cublas" or "cublaslt" (on ROCm these mean rocBLAS and hipBLASLt), or "ck".

    Raises:
        UnknownNameError: the name is unknown.
        DeviceError: this build of torch does not have the library.
    """
    check_name("BLAS library", name, _LIBRARIES)
    before = torch.backends.cuda.preferred_blas_library()
    _prefer_quietly(name)
    try:
        torch.backends.cuda.preferred_blas_library(name)
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Context manager in which fp32 is multiplied as tf32 if `dtype` is "tf32", else as fp32; by cuDNN too.

    Raises:
        UnknownNameError: the dtype is unknown.
    """
    check_name("dtype", dtype, FLOATS)
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]  # torch does not type it
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def kernels_of(subject: Subject) -> tuple[str, ...]:
    """Return the distinct kernels and copies that run on the device in one call, in order of their start.

    Empty if none run on a GPU, or if the profiler is not allowed to see them (some drivers and containers
    forbid it).

    Args:
        subject: a Launch, or a function of no arguments.

    Raises:
        ArgumentTypeError: `subject` is neither.
    """
    function = callable_of("subject", subject)
    if not device.current().is_gpu:
        return ()
    function()
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        function()
        torch.cuda.synchronize()
    ran = [event for event in profile.events() or [] if event.device_type.name == "CUDA"]
    ran.sort(key=lambda event: event.time_range.start)
    return tuple(dict.fromkeys(event.name for event in ran))


_LIBRARIES = ("cublas", "cublaslt", "ck")


def check_place(inputs: Sequence[torch.Tensor]) -> None:
    """Raise TensorMismatchError unless all tensors are on the device on which kernels run."""
    here = device.current()
    places = sorted({str(tensor.device) for tensor in inputs})
    if len(places) > 1:
        raise TensorMismatchError(
            "inputs", f"tensors on {' and '.join(places)}", "Move them all to one device."
        )
    if inputs and inputs[0].device.type != here.torch_device:
        raise TensorMismatchError(
            "inputs",
            f"tensors on {places[0]}, while kernels run on {here.name}",
            f"Create them with device={here.torch_device!r}.",
        )


def _preferring(library: str, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with blas_library(library):
            return function()

    return call


def _set_benchmark(is_on: bool, limit: int | None) -> None:
    """Let cuDNN try that many kernels (0: all), or none; None for the limit where torch has no cuDNN.

    `cudnn.flags` would read `allow_tf32`, which torch refuses inside :func:`precision`.
    """
    cudnn: Any = torch.backends.cudnn
    with torch.backends.__allow_nonbracketed_mutation():  # as `flags` does
        cudnn.benchmark, cudnn.benchmark_limit = is_on, limit


def benchmarked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function during whose calls cuDNN tries all its kernels once, and takes the fastest."""

    def call(*args: P.args, **keywords: P.kwargs) -> R:
        cudnn: Any = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.benchmark_limit
        _set_benchmark(True, 0)
        try:
            return function(*args, **keywords)
        finally:
            _set_benchmark(*before)

    return call


def product(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return input @ other as a user of torch writes it: fp8 with scales of 1, into bf16; int8 into int32."""
    if input.dtype == torch.int8:
        return torch._int_mm(input, other)
    if input.dtype.itemsize == 1 and input.is_floating_point():
        one = _one(input.device)
        return torch._scaled_mm(input, other, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return torch.matmul(input, other)


@cache
def _one(device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):  # else later gradients could not use it
        return torch.ones((), device=device)


@cache
def _prefer_quietly(name: str) -> None:
    """Prefer a library for the first time; hides torch's C++ message that the switch is experimental.

    Raises:
        DeviceError: this build of torch does not have the library.
    """
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.backends.cuda.preferred_blas_library(name)
    except RuntimeError as error:
        reason = str(error).rstrip(".")
        raise DeviceError(f"{name}: {reason}. Use another baseline, or another build of torch.") from error
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
