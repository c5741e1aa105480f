"""Baselines: the libraries and code that an expert would use instead of our kernels, by name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch.nn import functional
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
from torch.profiler import ProfilerActivity

from workbench import device
from workbench.bench import plain_triton
from workbench.bench.recording import FLOATS
from workbench.bench.timing import Subject, callable_of
from workbench.errors import (
    DeviceError,
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_name,
    check_type,
)

# The libraries that multiply matrices, by kind of device.
VENDOR_LIBRARIES: dict[device.Kind, tuple[str, ...]] = {
    "cuda": ("cuBLAS", "cuBLASLt"),
    "hip": ("rocBLAS", "hipBLASLt"),
    "interpreter": (),
}


@dataclass(frozen=True)
class Baseline:
    """A library or a way of writing code to compare with.

    Attributes:
        name: the name in recordings.
        about: a description.
        operators: the operators that it can build.
        kind: the kind of device that it needs, None for any.
        library: torch's name of the BLAS library that it prefers; or "cudnn", for convolutions in benchmark
            mode; or "flash_attention". None: torch chooses.
        compiles: True if torch.compile makes the kernel.
        mode: the mode of torch.compile; None for its default.
        by_hand: by operator, functions that launch a kernel of Triton's tutorials; None for other baselines.
        package: the module of a library that users install to compare with; None for what comes with torch.
        install: the arguments of pip that install it.
    """

    name: str
    about: str
    operators: tuple[str, ...]
    kind: device.Kind | None = None
    library: str | None = None
    compiles: bool = False
    mode: str | None = None
    by_hand: Mapping[str, Callable[..., torch.Tensor]] | None = None
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
        if (self.compiles or self.by_hand or self.is_optional) and not here.is_gpu:
            return f"{self.name} is measured on GPUs only"
        if self.package is not None and find_spec(self.package) is None:
            return f"{self.name} is not installed: pip install {self.install}"
        return ""

    def available(self) -> bool:
        """Return whether the baseline can run here; :meth:`absence` says why not."""
        return not self.absence()

    def build(self, op: str, *inputs: torch.Tensor, **options: Any) -> Callable[[], Any]:
        """Return a function of no arguments that computes `op`: it returns a tensor, or all gradients.

        Args:
            op: a name in `operators`, with torch's meaning; fp8 matrices are multiplied with scales of 1 and
                fast accumulation, into bf16. "<op>_backward" gives the gradients of all inputs.
            inputs: tensors on this device; fp8 matrices in layout "nt" (A row-major, B column-major); for a
                backward the operator's inputs, and last the gradient of its result.
            options: keyword arguments of torch's function of that name, such as `alpha` or `dim`.

        Raises:
            DeviceError: it cannot run here.
            UnknownNameError: it has no such operator, or the operator has no such option.
            ArgumentTypeError, InvalidArgumentError: `inputs` are not tensors, too few or too many.
            TensorMismatchError: `inputs` are on another device, or the library cannot multiply their dtype.
            Errors that an optional library raises when it is imported or called are passed on.
        """
        if reason := self.absence():
            raise DeviceError(f"{reason}. Use another baseline. Available here: {', '.join(available())}.")
        check_name(f"operator of {self.name}", op, self.operators)
        operator = _OPERATORS[op]
        _check_call(op, operator, inputs, options)
        is_fp8 = inputs[0].dtype.itemsize == 1 and inputs[0].is_floating_point()
        if is_fp8 and self.library == "cublas":
            raise TensorMismatchError(
                "inputs", f"{inputs[0].dtype}", f"{self.name} cannot multiply fp8: use cuBLASLt (hipBLASLt)."
            )
        _check_place(inputs)
        if self.by_hand is not None:
            _check_no_options(self.name, options)
            return partial(self.by_hand[op], *inputs)
        if self.package is not None:
            _check_dimension(self.name, operator, inputs, options)
            module, calls = _PACKAGES[self.package]
            return calls[op](import_module(module), *inputs, **options)
        if op in _ATTENTION and self.name != "torch":
            attend = (
                _attend_with(_BACKENDS[self.name], **options)
                if self.name in _BACKENDS
                else _attend_flexibly(inputs[0], inputs[1], **options)
            )
            return backward_of(attend, *inputs) if operator.is_backward else partial(attend, *inputs)
        if op in _VARLEN_ATTENTION and self.name != "torch":
            attend = _attend_to_all(inputs[0].device, **options)
            return backward_of(attend, *inputs) if operator.is_backward else partial(attend, *inputs)
        if self.compiles:
            # Without fullgraph, torch would silently fall back to eager code.
            function = _with(operator.function, options)
            whole = torch.compile(function, fullgraph=True, dynamic=False, mode=self.mode)
            return backward_of(whole, *inputs) if operator.is_backward else partial(whole, *inputs)
        if operator.is_backward:
            return backward_of(_with(operator.function, options), *inputs)
        if is_fp8 and op == "matmul":
            return _scaled_product(*inputs)
        function = partial(operator.function, *inputs, **options)
        if self.library == "cudnn":
            return _in_benchmark_mode(function)
        return function if self.library is None else _preferring(self.library, function)


@dataclass(frozen=True)
class _TorchOperator:
    """Torch's function, its number of tensors, and the options that a baseline passes on."""

    function: Callable[..., torch.Tensor]
    inputs: int
    options: tuple[str, ...] = ()
    is_backward: bool = False

    def backward(self) -> _TorchOperator:
        """Return the operator of the gradients; its last input is the gradient of the result."""
        return _TorchOperator(self.function, self.inputs + 1, self.options, is_backward=True)


_FORWARD = {
    "add": _TorchOperator(torch.add, 2, ("alpha",)),
    "amax": _TorchOperator(torch.amax, 1, ("dim", "keepdim")),
    "argmax": _TorchOperator(torch.argmax, 1, ("dim", "keepdim")),
    "clone": _TorchOperator(torch.clone, 1),
    "layer_norm": _TorchOperator(
        lambda input, weight, bias, normalized_shape: functional.layer_norm(
            input, normalized_shape, weight, bias
        ),
        3,
        ("normalized_shape",),
    ),
    "matmul": _TorchOperator(torch.matmul, 2),
    # Written as users write it: a permuted view, then a copy.
    "permute_copy": _TorchOperator(lambda input, dims: input.permute(dims).contiguous(), 1, ("dims",)),
    "rms_norm": _TorchOperator(
        lambda input, weight, normalized_shape: functional.rms_norm(input, normalized_shape, weight),
        2,
        ("normalized_shape",),
    ),
    "softmax": _TorchOperator(torch.softmax, 1, ("dim",)),
    "sum": _TorchOperator(torch.sum, 1, ("dim", "keepdim", "dtype")),
}
_BACKWARD = ("softmax", "layer_norm", "rms_norm")
_OPERATORS = _FORWARD | {f"{name}_backward": _FORWARD[name].backward() for name in _BACKWARD}

# Operators that only move elements.
_OPERATORS |= {
    "flip": _TorchOperator(torch.flip, 1, ("dims",)),
    "pad": _TorchOperator(functional.pad, 1, ("pad", "mode", "value")),
    "pixel_shuffle": _TorchOperator(functional.pixel_shuffle, 1, ("upscale_factor",)),
    "roll": _TorchOperator(torch.roll, 1, ("shifts", "dims")),
    "unfold": _TorchOperator(functional.unfold, 1, ("kernel_size", "dilation", "padding", "stride")),
}

# Operators on images.
_OPERATORS |= {
    "group_norm": _TorchOperator(
        lambda input, weight, bias, num_groups: functional.group_norm(input, num_groups, weight, bias),
        3,
        ("num_groups",),
    ),
    "avg_pool2d": _TorchOperator(functional.avg_pool2d, 1, ("kernel_size", "stride", "padding")),
    "max_pool2d": _TorchOperator(functional.max_pool2d, 1, ("kernel_size", "stride", "padding")),
}

_CONVOLUTION = ("stride", "padding", "dilation", "groups")


def _convolution_backward(
    of: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    gradient: torch.Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> torch.Tensor:
    """Return one gradient of a convolution: of the input if `of` is 0, of the weight if it is 1."""
    pair = [stride] * 2, [padding] * 2, [dilation] * 2
    found = torch.ops.aten.convolution_backward(
        gradient, input, weight, None, *pair, False, [0, 0], groups, [of == 0, of == 1, False]
    )
    result: torch.Tensor = found[of]
    return result


_OPERATORS |= {
    "conv2d": _TorchOperator(functional.conv2d, 2, _CONVOLUTION),
    "conv2d_backward_data": _TorchOperator(partial(_convolution_backward, 0), 3, _CONVOLUTION),
    "conv2d_backward_weight": _TorchOperator(partial(_convolution_backward, 1), 3, _CONVOLUTION),
}
_CONVOLUTIONS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight")


def _add_add_gelu(
    input: torch.Tensor, other: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    return functional.gelu(input @ other + first + second, approximate="tanh")


_OPERATORS["fused_matmul"] = _TorchOperator(_add_add_gelu, 4)

_ATTENTION = ("scaled_dot_product_attention", "scaled_dot_product_attention_backward")


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, enable_gqa=enable_gqa
    )


_OPERATORS["scaled_dot_product_attention"] = _TorchOperator(_attend, 3, ("is_causal", "enable_gqa"))
_OPERATORS["scaled_dot_product_attention_backward"] = _OPERATORS["scaled_dot_product_attention"].backward()

_VARLEN_ATTENTION = ("varlen_attention", "varlen_attention_backward")


def lengths_of(tokens: int, sequences: int) -> tuple[int, ...]:
    """Return lengths in the ratio 1 : 2 : 3 and so on, with the sum `tokens`.

    Raises:
        InvalidArgumentError: there are too few tokens for that many sequences.
    """
    shares = sequences * (sequences + 1) // 2
    if tokens < shares:
        raise InvalidArgumentError(
            "tokens", f"got {tokens} for {sequences} sequences", f"Give {shares} or more."
        )
    ends = [tokens * number * (number + 1) // 2 // shares for number in range(sequences + 1)]
    return tuple([end - begin for begin, end in pairwise(ends)])


def _attend_one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: tuple[int, ...], is_causal: bool
) -> torch.Tensor:
    """Attend within packed sequences, [tokens, heads, columns], with one call for each."""
    is_shared = query.shape[1] != key.shape[1]
    outputs = []
    for parts in zip(*(tensor.split(lengths) for tensor in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)
        outputs.append(_attend(q, k, v, is_causal, is_shared)[0].transpose(0, 1))
    return torch.cat(outputs)


_OPERATORS["varlen_attention"] = _TorchOperator(_attend_one_by_one, 3, ("lengths", "is_causal"))
_OPERATORS["varlen_attention_backward"] = _OPERATORS["varlen_attention"].backward()


def _attend_to_all(
    device: torch.device, lengths: tuple[int, ...], is_causal: bool
) -> Callable[..., torch.Tensor]:
    """Attend within packed sequences in one call, by torch's operator for FlashAttention-2."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)

    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, longest, longest, 0.0, is_causal, False
        )[0]
        return output

    return function


# Matrix products with a following operator, as users write them.
_FUSED = {
    "matmul_layer_norm": _TorchOperator(
        lambda a, b, weight, bias: functional.layer_norm(a @ b, b.shape[-1:], weight, bias), 4
    ),
    "matmul_rms_norm": _TorchOperator(
        lambda a, b, weight: functional.rms_norm(a @ b, b.shape[-1:], weight), 3
    ),
    "matmul_softmax": _TorchOperator(lambda a, b: torch.softmax(a @ b, -1), 2),
    "matmul_amax": _TorchOperator(lambda a, b: torch.amax(a @ b, -1), 2),
    "matmul_logsumexp": _TorchOperator(lambda a, b: torch.logsumexp(a @ b, -1), 2),
    "matmul_matmul": _TorchOperator(lambda a, b0, b1: torch.relu(a @ b0) @ b1, 3),
    "swiglu": _TorchOperator(lambda a, gate, up: functional.silu(a @ gate) * (a @ up), 3),
    "geglu": _TorchOperator(lambda a, gate, up: functional.gelu(a @ gate) * (a @ up), 3),
}
_OPERATORS |= _FUSED

# torch's names of its attention libraries.
_BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}


def _attend_with(backend: SDPBackend, **options: Any) -> Callable[..., torch.Tensor]:
    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend]):
            return _attend(query, key, value, **options)

    return function


def _attend_flexibly(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> Callable[..., torch.Tensor]:
    """Compile flex_attention; it derives the tiles to visit from the causal mask, given as a function."""
    blocks = None
    if is_causal:
        lengths = query.shape[2], key.shape[2]
        blocks = flex_attention.create_block_mask(
            lambda batch, head, row, col: row >= col, None, None, *lengths, device=str(query.device)
        )
    attend: Any = torch.compile(flex_attention.flex_attention, fullgraph=True, dynamic=False)
    return partial(attend, block_mask=blocks, enable_gqa=enable_gqa)


# torch's defaults: layer norm's, and that of rms_norm for every dtype that is computed in fp32.
_LAYER_NORM_EPSILON, _RMS_NORM_EPSILON = 1e-5, torch.finfo(torch.float32).eps


def _liger_rms_norm(liger: Any) -> Callable[..., torch.Tensor]:
    """Return Liger's variant that rounds once, at the end, as torch does.

    It must not work in place, as Liger does by default: that overwrites the given gradient, which is passed
    again to every call of a backward.
    """
    apply = liger.LigerRMSNormFunction.apply
    offset, casting_mode, in_place = 0.0, "gemma", False
    return lambda x, weight: apply(x, weight, _RMS_NORM_EPSILON, offset, casting_mode, in_place)


def _liger_call(
    op: str, liger: Any, *inputs: torch.Tensor, dim: int = -1, **_: object
) -> Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]:
    if dim not in (-1, inputs[0].dim() - 1):
        fix = "Liger has softmax along the last dimension only: give -1, or use another baseline."
        raise InvalidArgumentError("dim", f"got {dim}", fix)
    function = _LIGER[op.removesuffix("_backward")](liger)
    return partial(function, *inputs) if op in _LIGER else backward_of(function, *inputs)


# Functions that take `liger_kernel.ops` and return differentiable functions of tensors.
_LIGER: dict[str, Callable[[Any], Callable[..., torch.Tensor]]] = {
    "softmax": lambda liger: liger.LigerSoftmaxFunction.apply,
    "layer_norm": lambda liger: (
        lambda x, weight, bias: liger.LigerLayerNormFunction.apply(x, weight, bias, _LAYER_NORM_EPSILON)
    ),
    "rms_norm": _liger_rms_norm,
}


def _gems_layer_norm(
    gems: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Sequence[int],
) -> Callable[[], torch.Tensor]:
    # It also returns the rows' mean and 1 / deviation.
    return lambda: gems.layer_norm(x, normalized_shape, weight, bias, _LAYER_NORM_EPSILON)[0]


def _gems_layer_norm_backward(
    gems: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    gradient: torch.Tensor,
    normalized_shape: Sequence[int],
) -> Callable[[], tuple[torch.Tensor, ...]]:
    _, *statistics = gems.layer_norm(x, normalized_shape, weight, bias, _LAYER_NORM_EPSILON)
    all_three = [True, True, True]
    return partial(
        gems.layer_norm_backward, gradient, x, normalized_shape, *statistics, weight, bias, all_three
    )


def _gems_softmax_backward(
    gems: Any, x: torch.Tensor, gradient: torch.Tensor, dim: int
) -> Callable[[], tuple[torch.Tensor]]:
    result = gems.softmax(x, dim)
    return lambda: (gems.softmax_backward(gradient, result, dim, x.dtype),)


# Functions that take `flag_gems`, inputs and options and return a function of no arguments. The backward of
# rms_norm is left out: it takes a whole row as one tile, and compiles for minutes.
_FLAG_GEMS: dict[str, Callable[..., Callable[[], Any]]] = {
    "amax": lambda gems, x, dim, **keepdim: partial(gems.amax, x, [dim], **keepdim),
    "argmax": lambda gems, x, dim, **keepdim: partial(gems.argmax, x, dim, **keepdim),
    "layer_norm": _gems_layer_norm,
    "layer_norm_backward": _gems_layer_norm_backward,
    "matmul": lambda gems, a, b: partial(gems.mm, a, b),
    "rms_norm": lambda gems, x, weight, normalized_shape: partial(
        gems.rms_norm, x, normalized_shape, weight, _RMS_NORM_EPSILON
    ),
    "softmax": lambda gems, x, dim: partial(gems.softmax, x, dim),
    "softmax_backward": _gems_softmax_backward,
    "sum": lambda gems, x, dim, **more: partial(gems.sum_dim, x, [dim], **more),
}

# By package: the module that has the operators, and the functions that call them.
_PACKAGES: dict[str, tuple[str, Mapping[str, Callable[..., Callable[[], Any]]]]] = {
    "liger_kernel": (
        "liger_kernel.ops",
        {name: partial(_liger_call, name) for op in _LIGER for name in (op, f"{op}_backward")},
    ),
    "flag_gems": ("flag_gems", _FLAG_GEMS),
}

BASELINES = {
    baseline.name: baseline
    for baseline in (
        Baseline("torch", "PyTorch, eager mode", tuple(_OPERATORS)),
        Baseline(
            "torch.compile",
            "PyTorch's compiler (Inductor)",
            tuple(
                name
                for name in _OPERATORS
                if name not in ("matmul", "fused_matmul", *_CONVOLUTIONS, *_ATTENTION, *_VARLEN_ATTENTION)
            ),
            compiles=True,
        ),
        # Without CUDA graphs, since `bench` makes its own graph to time it.
        Baseline(
            "torch.compile max-autotune",
            "PyTorch's compiler, which tries kernels for each product, and templates of its own",
            ("fused_matmul", *_FUSED),
            compiles=True,
            mode="max-autotune-no-cudagraphs",
        ),
        Baseline(
            "Triton",
            "kernels of Triton's tutorials, started as in the tutorials",
            tuple(plain_triton.JITTED),
            by_hand=plain_triton.JITTED,
        ),
        Baseline(
            "Triton autotuned",
            "kernels of Triton's tutorials, behind @triton.autotune",
            tuple(plain_triton.AUTOTUNED),
            by_hand=plain_triton.AUTOTUNED,
        ),
        # torch calls AMD's libraries by the names of their NVIDIA counterparts.
        Baseline("cuBLAS", "NVIDIA's BLAS, classic interface", ("matmul",), "cuda", "cublas"),
        Baseline("cuBLASLt", "NVIDIA's BLAS, lightweight interface", ("matmul",), "cuda", "cublaslt"),
        Baseline(
            "cuDNN",
            "NVIDIA's library; of convolutions it tries its kernels and takes the fastest",
            (*_CONVOLUTIONS, *_ATTENTION),
            "cuda",
            "cudnn",
        ),
        Baseline(
            "FlashAttention-2",
            "Tri Dao's kernels, in torch",
            (*_ATTENTION, *_VARLEN_ATTENTION),
            "cuda",
            "flash_attention",
        ),
        Baseline(
            "flex_attention",
            "a template of PyTorch's compiler, for any function of a score",
            _ATTENTION,
            compiles=True,
        ),
        Baseline("rocBLAS", "AMD's BLAS", ("matmul",), "hip", "cublas"),
        Baseline("hipBLASLt", "AMD's BLAS, lightweight interface", ("matmul",), "hip", "cublaslt"),
        # Installed without dependencies: FlagGems would put numpy back to 1.26, and Liger, if torch is built
        # for ROCm, would replace torch's Triton by PyPI's.
        Baseline(
            "Liger",
            "Triton kernels for training (Liger-Kernel)",
            tuple(_PACKAGES["liger_kernel"][1]),
            package="liger_kernel",
            install="--no-deps liger-kernel",
        ),
        Baseline(
            "FlagGems",
            "torch's operators in Triton, for many vendors' devices",
            tuple(_PACKAGES["flag_gems"][1]),
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
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a function that computes gradients again and again; the forward pass runs once per stream.

    Autograd runs a backward on the stream of its forward, and a CUDA graph captures one stream only. The
    forward passes of the two most recently used streams are kept.

    Args:
        function: a differentiable function of tensors.
        inputs: its inputs, and last the gradient of its result.

    Returns:
        a function of no arguments that returns the gradients of all of the function's inputs.
    """
    *given, gradient = inputs
    passes: dict[object, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def gradients() -> tuple[torch.Tensor, ...]:
        stream = torch.cuda.current_stream() if gradient.is_cuda else None
        if stream in passes:
            passes[stream] = passes.pop(stream)  # move to the end
        else:
            for oldest in list(passes)[:-1]:
                del passes[oldest]
            leaves = [tensor.detach().requires_grad_() for tensor in given]
            # Compiled code frees its saved tensors after the first backward, unless told to keep them.
            with functorch_config.patch(donated_buffer=False):
                passes[stream] = function(*leaves), leaves
        result, leaves = passes[stream]
        return torch.autograd.grad(result, leaves, gradient, retain_graph=True)

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
    """Return the layout in which libraries multiply a dtype: "nt" for fp8, their only one, else "nn".

    Raises:
        UnknownNameError: the dtype is unknown.
    """
    check_name("dtype", dtype, FLOATS)
    return "nt" if dtype.startswith("fp8") else "nn"


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
    """Context manager in which fp32 matrices are multiplied as tf32 if `dtype` is "tf32", else as fp32.

    Raises:
        UnknownNameError: the dtype is unknown.
    """
    check_name("dtype", dtype, FLOATS)
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


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


def _check_call(
    op: str, operator: _TorchOperator, inputs: Sequence[torch.Tensor], options: Mapping[str, object]
) -> None:
    check_each("inputs", inputs, torch.Tensor, "Give tensors.")
    if len(inputs) != operator.inputs:
        raise InvalidArgumentError(
            "inputs", f"got {len(inputs)} tensors", f"Give {operator.inputs}, as the operator {op} takes."
        )
    for name in options:
        check_name(f"option of {op}", name, operator.options)


def _check_no_options(name: str, options: Mapping[str, object]) -> None:
    if options:
        raise InvalidArgumentError(
            "options",
            f"got {', '.join(options)}",
            f"{name} takes none: leave them out, or use another baseline.",
        )


def _check_dimension(
    name: str, operator: _TorchOperator, inputs: Sequence[torch.Tensor], options: Mapping[str, Any]
) -> None:
    """Check that a library is asked to reduce one dimension, or to normalize the last one."""
    if "dim" in operator.options and not isinstance(options.get("dim"), int):
        raise InvalidArgumentError(
            "dim", f"got {options.get('dim')}", f"{name} is compared along one dimension: give its number."
        )
    last = list(inputs[0].shape[-1:])
    if "normalized_shape" in operator.options and list(options.get("normalized_shape", [])) != last:
        raise InvalidArgumentError(
            "normalized_shape",
            f"got {options.get('normalized_shape')}",
            f"{name} is compared over the last dimension: give {last}.",
        )


def _check_place(inputs: Sequence[torch.Tensor]) -> None:
    here = device.current()
    places = sorted({str(tensor.device) for tensor in inputs})
    if len(places) > 1:
        raise TensorMismatchError(
            "inputs", f"tensors on {' and '.join(places)}", "Move them all to one device."
        )
    if inputs[0].device.type != here.torch_device:
        raise TensorMismatchError(
            "inputs",
            f"tensors on {places[0]}, while kernels run on {here.name}",
            f"Create them with device={here.torch_device!r}.",
        )


def _with(operation: Callable[..., torch.Tensor], options: Mapping[str, Any]) -> Callable[..., torch.Tensor]:
    def function(*inputs: torch.Tensor) -> torch.Tensor:
        return operation(*inputs, **options)

    return function


def _preferring(library: str, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with blas_library(library):
            return function()

    return call


def _in_benchmark_mode(function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        tf32 = torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=0, allow_tf32=tf32):
            return function()

    return call


def _scaled_product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    one = torch.ones((), device=a.device)
    return partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


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
