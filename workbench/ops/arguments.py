"""Checks of the arguments of operators, and errors that quote torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from types import UnionType
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    NumberRangeError,
    TensorMismatchError,
    UnsupportedDtypeError,
    in_brief,
)
from workbench.operators import accuracy
from workbench.operators.accuracy import matmul_precision
from workbench.runtime.warm import read_switch

Number = bool | int | float | complex


def check_operand(name: str, value: object, kinds: type | UnionType, wanted: str) -> None:
    """Raise an error if an argument is not of a type in `kinds`, or is a sparse or nested tensor.

    Args:
        name: the argument's name.
        wanted: a description of `kinds` that follows "Give" in the message.
    """
    if not isinstance(value, kinds):
        raise ArgumentTypeError(name, f"got a {type(value).__name__}", f"Give {wanted}.")
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise TensorMismatchError(name, f"its layout is {value.layout}", "Give a strided tensor.")
        if value.is_nested:
            fix = f"Call the function for each tensor of {name}.unbind()."
            raise TensorMismatchError(name, "it is nested", fix)


def as_number(name: str, value: object) -> Number:
    """Return a number of Python or NumPy, or the value of a tensor without dimensions, as a Python number.

    Raises:
        ArgumentTypeError: the value is none of these, or a tensor that requires grad.
        TensorMismatchError: the tensor has no value, such as one on the meta device.
    """
    if isinstance(value, torch.Tensor) and not value.dim() and not value.requires_grad:
        try:
            value = value.item()
        except RuntimeError as error:
            fix = torchs_words(error, fix="Give a number, or a tensor whose value can be read.")
            raise TensorMismatchError(name, in_words(value), fix) from None
    elif isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, Number):
        wanted = "Give a number, or a tensor without dimensions that does not require grad."
        raise ArgumentTypeError(name, f"got {in_brief(value)}, a {type(value).__name__}", wanted)
    return value


def as_real(name: str, value: object) -> float:
    """Return a real number as a float; it may be anything that :func:`as_number` takes."""
    if type(value) is float:
        return value
    number = as_number(name, value)
    if isinstance(number, complex):
        raise ArgumentTypeError(name, f"got {in_brief(value)}", "Give a real number.")
    return as_float(name, number)


def as_whole(name: str, value: object, fix: str = "Give a whole number.", *, is_index: bool = False) -> int:
    """Return a whole number of Python or NumPy, or that of a tensor without dimensions, as an int.

    A bool or a floating-point number is not a whole number, as in torch.

    Args:
        fix: a sentence that says what to give instead.
        is_index: whether to accept everything that Python takes for an index, as torch does for some
            arguments.

    Raises:
        ArgumentTypeError: the value is not a whole number. InvalidArgumentError: it does not fit 64 bits.
    """
    if type(value) is int:
        number = value
    elif isinstance(value, torch.Tensor):
        is_one = value.dtype != torch.bool and (is_index or not value.dim())
        number = _index(name, value if is_one else None, value, fix)
    elif is_index or isinstance(value, int | np.integer | torch.SymInt):
        number = _index(name, value, value, fix)
    else:
        raise ArgumentTypeError(name, f"got {in_brief(value)}, a {type(value).__name__}", fix)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            name, f"got {in_brief(value)}", "Give a number that fits a signed integer of 64 bits."
        )
    return number


def as_wholes(name: str, value: object, fix: str = "Give whole numbers.") -> tuple[int, ...]:
    """Return a tuple of ints, from one whole number, or a tuple or list of what Python takes for an index.

    As in torch's lists of sizes, a tensor of one element is a number, and a NumPy array is not.

    Args:
        fix: a sentence that says what to give instead.

    Raises:
        ArgumentTypeError: a value is not a whole number. InvalidArgumentError: one does not fit 64 bits.
    """
    if type(value) is int:
        return (as_whole(name, value),)
    if isinstance(value, torch.Tensor | int | np.integer | torch.SymInt):
        value = (value,)
    if not isinstance(value, tuple | list):
        raise ArgumentTypeError(name, f"got {in_brief(value)}, a {type(value).__name__}", fix)
    numbers = tuple([each if type(each) is int else _index(name, each, value, fix) for each in value])
    for number in numbers:
        if not -(2**63) <= number < 2**63:
            raise InvalidArgumentError(
                name, f"got {in_brief(value)}", "Give numbers that fit a signed integer of 64 bits."
            )
    return numbers


def _index(name: str, value: Any, given: object, fix: str) -> int:
    """Return `value` as Python reads an index, but refuse a bool; `given` is for the message."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except (TypeError, RuntimeError):
        raise ArgumentTypeError(name, f"got {in_brief(given)}, a {type(given).__name__}", fix) from None


def as_float(name: str, value: float) -> float:
    """Return a number as a float; raise NumberRangeError if it is larger than any float."""
    try:
        return float(value)
    except OverflowError:
        raise NumberRangeError(
            name, f"got {in_brief(value)}", "Give a number that a float can hold."
        ) from None


def check_plain(input: torch.Tensor) -> None:
    """Raise an error if `input` is not a tensor that the kernels can take."""
    check_operand("input", input, torch.Tensor, "a torch.Tensor")
    if input.is_quantized:
        fix = "Give input.dequantize(), or input.int_repr() for its integers."
        raise TensorMismatchError("input", f"quantized, {input.dtype}", fix)


def view_of(
    function: Callable[..., torch.Tensor], input: torch.Tensor, arguments: dict[str, Any]
) -> torch.Tensor:
    """Return `function`'s view of `input`; raise an error that quotes torch if it refuses."""
    try:
        return function(input, **arguments)
    except TORCHS_ERRORS as error:
        given = ", ".join(map(repr, arguments.values()))
        raise kind_of(error)(
            ", ".join(arguments),
            f"got {given} for a tensor of {input.dim()} dimensions",
            torchs_words(error, f"torch.{function.__name__}"),
        ) from None


_Ours = type[TensorMismatchError] | type[ArgumentTypeError] | type[InvalidArgumentError]
_ERRORS: dict[type[Exception], _Ours] = {
    NotImplementedError: UnsupportedDtypeError,  # before its base class, RuntimeError
    IndexError: DimensionError,
    OverflowError: NumberRangeError,
    RuntimeError: TensorMismatchError,
    TypeError: ArgumentTypeError,
    ValueError: InvalidArgumentError,
}
TORCHS_ERRORS = tuple(_ERRORS)


def kind_of(error: Exception) -> _Ours:
    """Return the class of the workbench's errors that is a subclass of this error of torch."""
    return next(ours for torchs, ours in _ERRORS.items() if isinstance(error, torchs))


def torchs_words(
    words: object, source: str = "torch", *, fix: str = "Give arguments that torch accepts."
) -> str:
    """Return the last part of a message that quotes torch: "torch says: ...", then what to do.

    Args:
        words: torch's error, or its text.
        source: torch, or the function of torch that raised the error.
        fix: what to do, as a sentence.
    """
    return f"{source} says: {str(words).strip().rstrip('.')}. {fix}"


def is_followed(*tensors: torch.Tensor) -> bool:
    """Return whether autograd, forward mode or a transform of torch.func has to record these tensors."""
    if torch._C._are_functorch_transforms_active():
        return True
    for tensor in tensors:  # any(...) would take longer than everything else here
        if tensor.requires_grad and torch.is_grad_enabled():
            return True
    is_forward = forward_ad._current_level >= 0
    return is_forward and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def in_shape(result: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a result that was made for the caller, in the given shape.

    If autograd does not record it, it is not a view, because a view that was made without grad cannot be
    changed in place by a tensor that requires grad. Otherwise it is a view, and shares its version counter
    with the tensor that is kept for the gradient.
    """
    if result.shape == torch.Size(shape):
        return result
    if result.requires_grad:
        return result.view(shape)
    seen: torch.Tensor = torch.ops.aten._unsafe_view(result, shape)
    return seen


def is_autocast(input: torch.Tensor, *, on_cpu: bool = False) -> bool:
    """Return whether `torch.autocast` is on for the input's device and for an operator computed in float32.

    On a GPU these operators are softmax, log_softmax, logsumexp, cross_entropy, layer_norm, rms_norm, sum,
    prod and norm; on the CPU (`on_cpu`) only cross_entropy and prod.
    """
    if input.is_cuda:
        return torch.is_autocast_enabled("cuda")
    return on_cpu and input.is_cpu and torch.is_autocast_enabled("cpu")


def precision_of(operand: torch.Tensor, switch: Callable[[], str] = matmul_precision) -> str:
    """Return "tf32" where torch's switch for products of fp32 allows it and a GPU computes, else "ieee".

    Args:
        switch: `matmul_precision`, or `convolution_precision` for convolutions.
    """
    return accuracy.precision_of(operand, partial(read_switch, switch))


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert floats narrower than float32, as `torch.autocast` does for operators computed in float32."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def check_out(out: object, *tensors: torch.Tensor) -> None:
    """Raise an error if `out` is neither a tensor nor None, or if autograd would have to record it."""
    check_operand("out", out, torch.Tensor | None, "a torch.Tensor")
    if isinstance(out, torch.Tensor) and is_followed(*tensors, out):
        raise TensorMismatchError(
            "out",
            "given together with tensors that require grad, have tangents or are in torch.func",
            "Leave out= away where autograd or torch.func records the call.",
        )


def in_words(value: object) -> str:
    """Describe a tensor by dtype, shape and device; anything else by its repr."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]} {tuple(value.shape)} on {value.device}"
    return repr(value)


def copy_out(result: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copy the result to `out` and return it; an empty `out` gets the result's shape and strides.

    Raises:
        TensorMismatchError: `out` cannot hold the result, as in torch.
    """
    if not torch.can_cast(result.dtype, out.dtype):
        given = f"got dtype {out.dtype}, but the result is {result.dtype}"
        raise TensorMismatchError("out", given, "Give a tensor of a dtype that can hold the result.")
    if out.device != result.device:
        fix = f"Give a tensor on {result.device}, like the operands."
        raise TensorMismatchError("out", f"on {out.device}", fix)
    if out.shape != result.shape:
        if out.numel():
            raise TensorMismatchError(
                "out", f"shape {tuple(out.shape)}", f"Give an empty tensor, or shape {tuple(result.shape)}."
            )
        out.resize_(result.shape).as_strided_(result.shape, result.stride())
    try:
        return out.copy_(result)
    except RuntimeError as error:
        fix = torchs_words(error, fix="Give a tensor that torch can copy the result to.")
        raise TensorMismatchError("out", f"strides {out.stride()}", fix) from None
