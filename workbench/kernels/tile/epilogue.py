"""Epilogues: operations on a tile of a product in registers, before it is stored.

An epilogue is a chain of functors, each a jit function `(tile, operands, place) -> tile`.

- `tile` is the previous functor's result; for the first functor, the product in its accumulator's type.
- `operands` are the functor's tensors and numbers, in order. A tensor comes as the elements that belong to
  the tile, [rows, cols]; if they are the same along an axis, as [1, cols], [rows, 1] or [1, 1]. A number that
  is a float comes as [1, 1]. Floats have the type of the arithmetic: the tile's, or fp32 if the tile has
  integers. Integers come as they are.
- `place` is (batch, row, col), the indices of the tile's elements in the output: rows [rows, 1], columns
  [1, cols].

A functor's result must have the tile's shape; floats narrower than fp32 become fp32. The last result is
rounded to the output's type when it is stored.

A template takes a chain as the constant EPILOGUE, with the :class:`FunctorConstants` of each functor, and as
the argument `extras`, with a tuple of operands for each functor. Without functors both are empty, and the
tile stays as it is.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.tile import activation, scores, transfer

# Kinds of operands.
TENSOR, FLOAT, BITS, WHOLE = (tl.constexpr(kind) for kind in range(4))


class OperandConstants(NamedTuple):
    """The constants of one operand of a functor.

    Attributes:
        kind: `TENSOR`, `FLOAT`, `WHOLE`, or `BITS`: a float of 64 bits as a whole number, since Triton rounds
            the floats in tuples.
        rows, cols, batch: the divisor of a tensor's strides along rows, columns and batches; 0 where all of
            them have the same elements. Numbers have 0.
    """

    kind: int
    rows: int = 0
    cols: int = 0
    batch: int = 0


class FunctorConstants(NamedTuple):
    """The constants of one functor of an EPILOGUE: its jit function and its operands' constants, in order."""

    function: Any
    operands: tuple[OperandConstants, ...] = ()


# Constants of silu, sigmoid and fast_gelu, multiplied by log2(e): a power of two is one instruction, and the
# multiplication that `tl.exp` adds to it would be a quarter of an epilogue's instructions. OF_ROOT is
# -2 * sqrt(2 / pi), and OF_CUBE is OF_ROOT times the factor of the cube.
LESS_LOG2_E = tl.constexpr(-math.log2(math.e))
OF_ROOT = tl.constexpr(-2 * math.sqrt(2 / math.pi) * math.log2(math.e))
OF_CUBE = tl.constexpr(-2 * math.sqrt(2 / math.pi) * math.log2(math.e) * 0.044715)

# The tail of the normal distribution beyond |x|, as exp(-x^2 / 2) times a polynomial in t = 1 / (1 + OF_ABS
# |x|) without a constant term (the form of Abramowitz and Stegun, 26.2.17). It is fitted to a relative error
# of 3.5e-5 (4.1e-5 as fp32 computes it) for |x| up to 13, beyond which the tail is 0 in fp32.
OF_SQUARE = tl.constexpr(-math.log2(math.e) / 2)
OF_ABS = tl.constexpr(0.37)


@triton.jit
def applied(tile, batch, row, col, in_rows, in_cols, extras, EPILOGUE: tl.constexpr):
    """Apply the chain EPILOGUE to a tile.

    Args:
        batch, row, col: as a functor's `place`.
        in_rows, in_cols: bool [rows, 1] and [1, cols], whether the output has these rows and columns.
    """
    for i in tl.static_range(len(EPILOGUE)):
        tile = of_functor(tile, batch, row, col, in_rows, in_cols, extras[i], EPILOGUE, i)
    return tile


@triton.constexpr_function
def functor_of(chain: tuple[FunctorConstants, ...], number: int) -> FunctorConstants:
    """Return the constants of one functor.

    In a kernel, `EPILOGUE[number]` is a Triton tuple, which has lost the names of the fields.
    """
    return chain[number]


@triton.constexpr_function
def function_of(chain: tuple[FunctorConstants, ...], number: int) -> Any:
    """Return the jit function of one functor.

    In a kernel, Triton 3.8 and 3.9 take a field that is a function for a method: they pass it the tuple too.
    """
    return chain[number].function


@triton.jit
def of_functor(
    tile, batch, row, col, in_rows, in_cols, extra, EPILOGUE: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """Apply functor number NUMBER of a chain to a tile."""
    FUNCTOR: tl.constexpr = functor_of(EPILOGUE, NUMBER)
    FUNCTION: tl.constexpr = function_of(EPILOGUE, NUMBER)
    TYPE: tl.constexpr = tile.dtype if tile.dtype.is_floating() else tl.float32
    operands = extra[:0]
    for i in tl.static_range(len(extra)):
        operands += (operand(extra[i], batch, row, col, in_rows, in_cols, TYPE, FUNCTOR, i),)
    made = FUNCTION(tile, operands, (batch, row, col))
    tl.static_assert(made is not None, f"functor {NUMBER} of the epilogue returns nothing")
    tl.static_assert(made.shape == tile.shape, f"functor {NUMBER} of the epilogue changes the tile's shape")
    if made.dtype.is_floating():
        # A cast to fp8 makes fp32 of fp64, too.
        return floats(made) if tl.float64 == TYPE else made.to(tl.float32)
    else:
        return made


@triton.jit
def floats(tile):
    """Return the tile in floats: integers, and floats narrower than fp32, become fp32."""
    TYPE: tl.constexpr = tl.float64 if tile.dtype == tl.float64 else tl.float32
    return tile.to(TYPE)


@triton.jit
def operand(
    given, batch, row, col, in_rows, in_cols, TYPE: tl.constexpr, FUNCTOR: tl.constexpr,
    WHICH: tl.constexpr,
):  # fmt: skip
    """Return a functor's operand in the form that functors take, see the top of this file.

    Args:
        given: for a tensor (pointer, row sizes, row strides, column stride, batch sizes, batch strides); for
            a number the number. Rows have one dimension or several, numbered in row-major order, and so have
            batches; the first size of each is not used.
        TYPE: type of floats.
        FUNCTOR: constants of the functor, of which this is operand number WHICH.
    """
    OPERAND: tl.constexpr = FUNCTOR.operands[WHICH]
    if OPERAND.kind == TENSOR:
        return of_tensor(
            given, batch, row, col, in_rows, in_cols, TYPE, OPERAND.rows, OPERAND.cols, OPERAND.batch
        )
    elif OPERAND.kind == FLOAT:
        return tl.full([1, 1], given, TYPE)
    elif OPERAND.kind == BITS:
        return tl.full([1, 1], given, tl.int64).to(tl.float64, bitcast=True).to(TYPE)
    else:
        return given


@triton.jit
def of_tensor(
    given, batch, row, col, in_rows, in_cols, TYPE: tl.constexpr, OF_ROWS: tl.constexpr,
    OF_COLS: tl.constexpr, OF_BATCH: tl.constexpr,
):  # fmt: skip
    """The elements of a tensor that belong to a tile, each loaded once."""
    pointer, row_sizes, row_strides, col_stride, batch_sizes, batch_strides = given
    if OF_BATCH:
        pointer += transfer.place(batch, batch_sizes, multiples(batch_strides, OF_BATCH))[0]
    zero: tl.constexpr = 0 if pointer.dtype.element_ty.is_int() else 0.0  # no integer becomes an fp8
    if OF_ROWS:
        offsets = transfer.place(row, row_sizes, multiples(row_strides, OF_ROWS))[0]
        if OF_COLS:
            offsets += col * multiples(col_stride, OF_COLS)[0]
            found = transfer.load(pointer, offsets, in_rows & in_cols, zero)
        else:
            found = transfer.load(pointer, offsets, in_rows, zero)
    elif OF_COLS:
        offsets = col * multiples(col_stride, OF_COLS)[0]
        found = transfer.load(pointer, offsets, in_cols, zero)
    else:
        found = tl.load(pointer + tl.zeros([1, 1], tl.int32))
    if pointer.dtype.element_ty.is_fp8():  # of which Triton makes no fp64 at once
        return found.to(tl.float32).to(TYPE)
    elif pointer.dtype.element_ty.is_floating():
        return found.to(TYPE)
    else:
        return found


@triton.jit
def multiples(strides, DIVISOR: tl.constexpr):
    """Return `strides` unchanged, so that the compiler sees that DIVISOR divides them.

    See :func:`transfer.multiples_of`.
    """
    if DIVISOR == 1:
        return strides
    else:
        known = strides[:0]
        for d in tl.static_range(len(strides)):
            known += (tl.multiple_of(strides[d], DIVISOR) // DIVISOR * DIVISOR,)
        return known


# Functors.


@triton.jit
def add(tile, operands, place):
    """tile + operands[0]"""
    return tile + operands[0]


@triton.jit
def multiply(tile, operands, place):
    """tile * operands[0]"""
    return tile * operands[0]


@triton.jit
def add_scaled(tile, operands, place):
    """tile * operands[1] + operands[0] * operands[2]"""
    return tile * operands[1] + operands[0] * operands[2]


@triton.jit
def relu(tile, operands, place):
    """max(tile, 0)"""
    return tl.where(tile < 0, 0, tile)


@triton.jit
def gelu(tile, operands, place):
    """tile * (1 + erf(tile / sqrt(2))) / 2

    Computed as tile * Phi(tile), with the normal distribution Phi in few instructions; `tl.erf` has many.
    """
    x = floats(tile)
    return x * normal_share(x, over(1.0, tl.abs(x) * OF_ABS + 1.0))


@triton.jit
def normal_share(x, t):
    """(1 + erf(x / sqrt(2))) / 2, from x and t = 1 / (1 + OF_ABS |x|)

    The error is at most 4.1e-5 times the smaller of the distribution's parts below x and above it.
    """
    polynomial = ((-0.090350904 * t + 0.20993037) * t + 0.07614054) * t + 0.15737587
    polynomial = polynomial * t + 0.14691973
    beyond = tl.exp2(x * x * OF_SQUARE) * t * polynomial
    return tl.where(x < 0, beyond, 1.0 - beyond)


@triton.jit
def over(x, y):
    """x / y, for y from 1 to infinity

    Division would first check whether y is so large that its reciprocal is subnormal. This form, like a power
    of two with a rounded exponent, has an error of a few rounding steps in fp32. Results of 16 bits do not
    show such errors; other results take the functors in `activations.EXACT`.
    """
    root = tl.rsqrt(y)
    return x * root * root


@triton.jit
def fast_gelu(tile, operands, place):
    """tile * (1 + tanh(sqrt(2 / pi) * (tile + 0.044715 * tile^3))) / 2

    Computed as tile / (1 + exp(-2 u)), where u is the argument of tanh.
    """
    x = floats(tile)
    return over(x, 1.0 + tl.exp2(exponent_of_gelu(x)))


@triton.jit
def exponent_of_gelu(x):
    """-2 u log2(e), where u is the argument of tanh in :func:`fast_gelu`."""
    return x * (OF_ROOT + x * x * OF_CUBE)


@triton.jit
def silu(tile, operands, place):
    """tile / (1 + exp(-tile))"""
    x = floats(tile)
    return over(x, 1.0 + tl.exp2(x * LESS_LOG2_E))


@triton.jit
def sigmoid(tile, operands, place):
    """1 / (1 + exp(-tile))"""
    return over(1.0, 1.0 + tl.exp2(floats(tile) * LESS_LOG2_E))


@triton.jit
def at_least(tile, operands, place):
    """max(tile, operands[0]); NaN stays NaN"""
    return tl.where(tile < operands[0], operands[0], tile)


@triton.jit
def at_most(tile, operands, place):
    """min(tile, operands[0]); NaN stays NaN"""
    return tl.where(tile > operands[0], operands[0], tile)


@triton.jit
def clamp(tile, operands, place):
    """min(max(tile, operands[0]), operands[1]); NaN stays NaN"""
    return at_most(at_least(tile, (operands[0],), place), (operands[1],), place)


@triton.jit
def to_fp8(tile, operands, place):
    """Apply :func:`clamp` with the range of an fp8 type, and return fp32, which Triton can convert to fp8."""
    return clamp(tile, operands, place).to(tl.float32)


@triton.jit
def dropout(tile, operands, place):
    """0 with probability operands[1], else tile * operands[2]

    Which elements become 0 depends on the seed, operands[0], and on `place`. The generator is that of
    attention, :func:`scores.is_kept`, with the number of the matrix in the batch as the head.
    """
    batch, row, col = place
    kept = scores.is_kept(
        operands[0], operands[1], tl.cast(batch, tl.int32), tl.cast(row, tl.int32), tl.cast(col, tl.int32)
    )
    return tl.where(kept, floats(tile) * operands[2], 0.0)


@triton.jit
def to_whole(tile, operands, place):
    """Round to the nearest integer, half to even, clamped to [operands[0], operands[1]]; NaN becomes 0."""
    if tile.dtype.is_floating():
        within = clamp(tl.where(tile == tile, tile, 0.0), operands, place)
        if tile.dtype == tl.float64:
            return (within + activation.WHOLE_FROM_64) - activation.WHOLE_FROM_64
        else:
            return (within + activation.WHOLE_FROM_32) - activation.WHOLE_FROM_32
    else:
        return clamp(tile, operands, place)


# Exact forms, for results of `activation.EXACT_FROM` bytes and more. Coarse activations take them for all
# results if a later functor may show their error.


@triton.jit
def exact_gelu(tile, operands, place):
    """Like :func:`gelu`, by :func:`activation.gelu`, with the error function itself."""
    return activation.gelu(floats(tile))


@triton.jit
def exact_fast_gelu(tile, operands, place):
    """Like :func:`fast_gelu`, by :func:`activation.exact_gelu_tanh`."""
    return activation.exact_gelu_tanh(floats(tile))


@triton.jit
def exact_silu(tile, operands, place):
    """Like :func:`silu`, by :func:`activation.exact_silu`."""
    return activation.exact_silu(floats(tile))


@triton.jit
def exact_sigmoid(tile, operands, place):
    """Like :func:`sigmoid`, by :func:`activation.exact_sigmoid`."""
    return activation.exact_sigmoid(floats(tile))


# Functors that, after a coarse activation, do not make its error more visible.
HIDING = frozenset({multiply, dropout, to_fp8})
