"""Constructors of epilogues of one functor, each with its meaning in torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any

import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    check_type,
    in_brief,
)
from workbench.kernels.epilogues.chain import Epilogue, Functor, Meaning, Permuted
from workbench.kernels.epilogues.frames import Operand, Place
from workbench.kernels.tile import activations, epilogue

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# Dtypes that :func:`cast` takes: their range is smaller than that of the dtype in which functors compute.
NARROW = (*FP8, torch.int8)


def bias(vector: torch.Tensor) -> Epilogue:
    """product + vector, with vector [n]: one value for each column (for a convolution, for each feature).

    The vector may also be [1] for matrices, [batch, n] for a batch, and [groups, n] for grouped products.
    """
    return _of(Functor("bias", epilogue.add, (_tensor("vector", vector, "columns"),), _add))


def add(other: torch.Tensor | float) -> Epilogue:
    """product + other; `other` broadcasts to the output."""
    return _of(Functor("add", epilogue.add, (_operand("other", other),), _add))


def residual(other: torch.Tensor) -> Epilogue:
    """product + other, as :func:`add`; `other` is a tensor, such as the input of a network's block."""
    return _of(Functor("residual", epilogue.add, (_tensor("other", other),), _add))


def multiply(other: torch.Tensor | float) -> Epilogue:
    """product * other; `other` broadcasts to the output."""
    return _of(Functor("multiply", epilogue.multiply, (_operand("other", other),), _multiply))


def scale(factor: float) -> Epilogue:
    """product * factor"""
    return _of(Functor("scale", epilogue.multiply, (_number("factor", factor),), _multiply))


def add_scaled(addend: torch.Tensor, alpha: float = 1.0, beta: float = 1.0) -> Epilogue:
    """alpha * product + beta * addend; `addend` broadcasts to the output."""
    operands = (_tensor("addend", addend), _number("alpha", alpha), _number("beta", beta))
    return _of(Functor("add_scaled", epilogue.add_scaled, operands, _add_scaled, flops=3))


def row_scale(vector: torch.Tensor) -> Epilogue:
    """product * vector[row], with vector [m] or [batch, m]: the scales of A's quantized rows."""
    return _of(Functor("row_scale", epilogue.multiply, (_tensor("vector", vector, "rows"),), _multiply))


def column_scale(vector: torch.Tensor) -> Epilogue:
    """product * vector[column], shaped as for :func:`bias`: the scales of B's quantized columns."""
    return _of(Functor("column_scale", epilogue.multiply, (_tensor("vector", vector, "columns"),), _multiply))


@cache
def relu() -> Epilogue:
    """max(product, 0)"""
    return _activation("relu")


@cache
def gelu() -> Epilogue:
    """x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, 2016)"""
    return _activation("gelu")


@cache
def fast_gelu() -> Epilogue:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2, within 0.0005 of gelu"""
    return _activation("gelu_tanh")


@cache
def silu() -> Epilogue:
    """x * sigmoid(x)"""
    return _activation("silu")


@cache
def sigmoid() -> Epilogue:
    """1 / (1 + exp(-x))"""
    return _activation("sigmoid")


# Activations by the names of their functors.
ACTIVATIONS: Mapping[str, Callable[[], Epilogue]] = {
    "relu": relu, "sigmoid": sigmoid, "silu": silu, "gelu": gelu, "fast_gelu": fast_gelu,
}  # fmt: skip


def clamp(min: float | None = None, max: float | None = None) -> Epilogue:
    """min(max(x, `min`), `max`), like `torch.clamp`. None means no bound on that side.

    Raises:
        InvalidArgumentError: both bounds are None, or one is NaN. ArgumentTypeError: a bound is not a number.
    """
    bounds = [_number(name, bound) for name, bound in (("min", min), ("max", max)) if bound is not None]
    if not bounds:
        raise InvalidArgumentError(
            "min, max", "got None for both", "Give a number for min, for max, or for both."
        )
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and math.isnan(bound):
            raise InvalidArgumentError(name, "got nan", "Give a number: nan would make every element nan.")
    function = epilogue.clamp if len(bounds) == 2 else epilogue.at_least if max is None else epilogue.at_most

    def meaning(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
        return torch.clamp(x, min, max)

    return _of(Functor("clamp", function, tuple(bounds), meaning, flops=len(bounds)))


def dropout(probability: float, seed: int | torch.Tensor) -> Epilogue:
    """0 with `probability`, else x / (1 - probability).

    Which elements are dropped depends on the seed and their indices alone, not on the tiles. The generator is
    attention's (`tile.scores.is_kept`), with a matrix of the batch for a head.

    Args:
        probability: at least 0, below 1.
        seed: at least 0, below 2^63; or an int64 tensor of one element on the device. A warm call and a
            CUDA graph read the tensor's value at each run.

    Raises:
        InvalidArgumentError: `probability` or `seed` is out of its range. ArgumentTypeError: it has
            the wrong type. TensorMismatchError: `seed` is a tensor of another dtype, or of several elements.
    """
    share = _number("probability", probability).value
    if not 0 <= share < 1:
        raise InvalidArgumentError("probability", f"got {probability}", "Give 0 or more, below 1.")
    if isinstance(seed, bool) or not isinstance(seed, Integral | torch.Tensor):
        fix = "Give an integer, or an int64 tensor of one element."
        raise ArgumentTypeError("seed", f"got {in_brief(seed)}", fix)
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TensorMismatchError(
                "seed",
                f"got a tensor of {seed.dtype} of shape {tuple(seed.shape)}",
                "Give an int64 tensor of one element.",
            )
    elif not 0 <= seed < 2**63:
        raise InvalidArgumentError("seed", f"got {seed}", "Give 0 or more, below 2^63.")
    number = seed if isinstance(seed, torch.Tensor) else int(seed)
    operands = (Operand(number), Operand(float(share)), Operand(1 / (1 - share)))
    return _of(
        Functor("dropout", epilogue.dropout, operands, _dropout, flops=2, makes_floats=True, uses_place=True)
    )


def cast(dtype: torch.dtype) -> Epilogue:
    """Store the result in this dtype: round to nearest, ties to even, and saturate to the dtype's range.

    NaN becomes 0 in int8 and stays NaN in fp8.

    Args:
        dtype: a dtype in `NARROW`.

    Raises:
        UnsupportedDtypeError: it is another dtype.
    """
    if dtype not in NARROW:
        names = ", ".join(str(each)[6:] for each in NARROW)
        fix = f"Give one of {names}; for other dtypes, give the operator out_dtype= instead of a cast."
        raise UnsupportedDtypeError("dtype", f"got {in_brief(dtype)}", fix)
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        operands = (Operand(-most), Operand(most))
        return _of(Functor("cast", epilogue.to_fp8, operands, _saturate, flops=2, dtype=dtype))
    info = torch.iinfo(dtype)
    operands = (Operand(info.min), Operand(info.max))
    return _of(Functor("cast", epilogue.to_whole, operands, _to_whole, flops=5, dtype=dtype))


def permuted(shape: Sequence[int], dims: Sequence[int]) -> Epilogue:
    """Store the product [..., m, n], viewed as `shape`, with dimension dims[d] as dimension d, contiguous.

    For example, `permuted((b, s, h, d), (0, 2, 1, 3))` stores a product of tokens and heads, [b * s, h * d],
    or one of a batch, [b, s, h * d], as [b, h, s, d]. It has to be the last functor.

    Args:
        shape: the batch's lengths, then lengths whose product is m, then lengths whose product is n.
        dims: a permutation of 0, 1, ... len(shape) - 1.

    Raises:
        ArgumentTypeError: an argument is not a sequence of integers of 0 or more.
        InvalidArgumentError: `dims` is not a permutation.
    """
    for name, values in (("shape", shape), ("dims", dims)):
        if not isinstance(values, Sequence) or any(type(n) is not int or n < 0 for n in values):
            fix = "Give a sequence of integers of 0 or more, such as (1, 0)."
            raise ArgumentTypeError(name, f"got {in_brief(values)}", fix)
    if sorted(dims) != list(range(len(shape))):
        given = f"got {tuple(dims)} for {len(shape)} dimensions"
        fix = f"Give each of the numbers from 0 to {len(shape) - 1} once."
        raise InvalidArgumentError("dims", given, fix)
    return Epilogue(permuted=Permuted(tuple(shape), tuple(dims)))


def own(
    function: Any, *operands: torch.Tensor | float, meaning: Meaning | None = None, flops: int = 1
) -> Epilogue:
    """Make an epilogue of a function of your own.

    Args:
        function: a jit function `(tile, operands, place) -> tile`; see `tile.epilogue`.
        operands: tensors, which broadcast to the output, and numbers.
        meaning: the same function of torch's tensors, `(x, operands, place) -> x`, which gradients need; None
            if there is none.
        flops: floating-point operations per element.

    For an int8 product, give the result's dtype by `out_dtype` or a cast: whether the function makes floats
    of integers is not known.

    Raises:
        ArgumentTypeError: an argument has another type. InvalidArgumentError: a number is too large.
    """
    if not callable(getattr(function, "fn", None)):
        raise ArgumentTypeError("function", f"got {in_brief(function)}", "Give a @triton.jit function.")
    if meaning is not None and not callable(meaning):
        fix = "Give a function (x, operands, place) -> x of torch tensors, or None."
        raise ArgumentTypeError("meaning", f"got {in_brief(meaning)}", fix)
    if isinstance(flops, bool) or not isinstance(flops, int) or flops < 0:
        raise ArgumentTypeError("flops", f"got {in_brief(flops)}", "Give an integer of 0 or more.")
    given = tuple(_operand(f"operands[{i}]", each) for i, each in enumerate(operands))
    name = function.fn.__name__
    return _of(Functor(name, function, given, meaning, flops, makes_floats=None, uses_place=True))


def _of(functor: Functor) -> Epilogue:
    return Epilogue((functor,))


def _activation(name: str) -> Epilogue:
    """Return an activation of the table as a chain, named after its functor."""
    one = activations.ACTIVATIONS[name]

    def meaning(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
        return one.meaning(_floats(x) if one.makes_floats else x)

    function = one.functor
    made = Functor(function.fn.__name__, function, (), meaning, one.flops, makes_floats=one.makes_floats)
    return _of(made)


def _tensor(name: str, value: object, along: str = "all") -> Operand:
    check_type(name, value, torch.Tensor, "Give a torch.Tensor.")
    found = Operand(value, along)
    if along != "all" and not found.value.dim():
        given = "got a tensor without dimensions"
        raise TensorMismatchError(name, given, f"Give a vector of the output's {along}.")
    return found


def _number(name: str, value: object, wanted: str = "Give a number.") -> Operand:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, f"got {in_brief(value)}", wanted)
    try:
        number = int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        fix = f"Give a number whose magnitude is at most {sys.float_info.max:.2e}, which a float can hold."
        raise InvalidArgumentError(name, f"got {in_brief(value)}", fix) from None
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(name, f"got {number}", "Give a signed 64-bit integer, or a float.")
    return Operand(number)


def _operand(name: str, value: object) -> Operand:
    if isinstance(value, torch.Tensor):
        return Operand(value)
    return _number(name, value, "Give a torch.Tensor, or a number.")


# Meanings.


def _add(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    other: torch.Tensor | float = operands[0]
    return x + other


def _multiply(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    other: torch.Tensor | float = operands[0]
    return x * other


def _add_scaled(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    addend: torch.Tensor = operands[0]
    return torch.add(x * operands[1], addend * operands[2])


def _dropout(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    seed, probability, factor = operands
    x = _floats(x)
    return torch.where(
        is_kept(seed, torch.tensor(probability, dtype=x.dtype, device="cpu"), place), x * factor, 0
    )


def _saturate(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    return torch.clamp(x, *operands)


def _to_whole(x: torch.Tensor, operands: Sequence[Any], place: Place) -> torch.Tensor:
    if not x.is_floating_point():
        return torch.clamp(x, *operands)
    return torch.clamp(torch.round(torch.where(x.isnan(), 0, x)), *operands)


def _floats(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.float()


def is_kept(seed: int | torch.Tensor, probability: torch.Tensor, place: Place) -> torch.Tensor:
    """Return whether dropout keeps each element: `tile.scores.is_kept` in torch.

    An element is kept if a number in [0, 1), made of the upper 24 bits of the first word of Philox with ten
    rounds (Salmon and others, 2011, section 4.3), is at least `probability`.

    Args:
        place: indices (batch, row, column) of the elements, for attention (head, query, key).
    """
    head, query, key = place
    low = 2**32 - 1

    def times(x: torch.Tensor, y: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the upper and the lower 32 bits of a product of 32-bit words, which does not fit int64."""
        upper, lower = x * (y >> 16), x * (y & 0xFFFF)
        return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & low

    words = [key, query, head, torch.zeros_like(key)]
    keys = [seed & low, (seed >> 32) & low]
    for _ in range(10):
        upper, lower = times(words[0], 0xD2511F53)
        other_upper, other_lower = times(words[2], 0xCD9E8D57)
        words = [other_upper ^ words[1] ^ keys[0], other_lower, upper ^ words[3] ^ keys[1], lower]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return (words[0] >> 8).double() * 2.0**-24 >= probability.double()  # torch would compare in fp32
