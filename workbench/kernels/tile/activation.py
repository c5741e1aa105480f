"""Activations: functions of each element of a tile in registers, in the type of the arithmetic.

Functions named `exact_` are for results of `EXACT_FROM` bytes and more. The other functions use `tl.exp`,
whose error in fp32, in rounding steps, grows with |x|. The table of activations is in
:mod:`workbench.kernels.tile.activations`.
"""

import math

import triton
import triton.language as tl

# exp(x) = 2^n * exp(r), where x = n * log(2) + r and n is an integer. The first part of log(2) has 9 bits, so
# that n times it is exact (Cody and Waite, "Software Manual for the Elementary Functions", 1980).
LOG2_E = tl.constexpr(math.log2(math.e))
LOG_2_HIGH = tl.constexpr(355 / 512)
LOG_2_LOW = tl.constexpr(math.log(2) - 355 / 512)

# For larger |x|, exp is 0 or infinite in fp32.
MOST_EXPONENT = tl.constexpr(120.0)

# Adding one of these to a number near 0 and subtracting it again rounds the number to an integer, half to
# even: beyond them, fp32 and fp64 have only integers.
WHOLE_FROM_32 = tl.constexpr(1.5 * 2**23)
WHOLE_FROM_64 = tl.constexpr(1.5 * 2**52)


@triton.jit
def identity(x):
    """Return x, for templates that take an activation and are given none."""
    return x


@triton.jit
def relu(x):
    """max(x, 0); NaN for NaN"""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))"""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """x * sigmoid(x)"""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def gelu(x):
    """x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, "Gaussian error linear units", 2016)"""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    """x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3), as x * sigmoid(2 u)"""
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def exponential(x):
    """exp(x); in fp32, as exact for large x as for small x, and 0 where it is below the normal numbers"""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        near = tl.where(x > MOST_EXPONENT, MOST_EXPONENT, tl.where(x < -MOST_EXPONENT, -MOST_EXPONENT, x))
        n = (near * LOG2_E + WHOLE_FROM_32) - WHOLE_FROM_32
        rest = near - n * LOG_2_HIGH - n * LOG_2_LOW
        # 2^128 alone overflows.
        return tl.exp2(rest * LOG2_E) * tl.exp2(n - 1.0) * 2.0


@triton.jit
def quotient(x, y):
    """x / y, rounded to nearest"""
    if y.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def exact_sigmoid(x):
    """Like :func:`sigmoid`, with :func:`exponential` and :func:`quotient`."""
    return quotient(1.0, 1.0 + exponential(-x))


@triton.jit
def exact_silu(x):
    """Like :func:`silu`, with :func:`exponential` and :func:`quotient`."""
    return quotient(x, 1.0 + exponential(-x))


@triton.jit
def exact_gelu_tanh(x):
    """Like :func:`gelu_tanh`, with :func:`exponential` and :func:`quotient`."""
    return quotient(x, 1.0 + exponential(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


# The fewest bytes of an element of a result in which rounding steps of fp32 are visible.
EXACT_FROM = 4
