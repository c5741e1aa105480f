"""Activations: functions of each element of a tile in registers, in the type of the arithmetic."""

import triton
import triton.language as tl


@triton.jit
def identity(x):
    """x"""
    return x


@triton.jit
def relu(x):
    """max(x, 0); NaN of NaN"""
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


ACTIVATIONS = {
    "identity": identity, "relu": relu, "sigmoid": sigmoid, "silu": silu, "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}  # fmt: skip
