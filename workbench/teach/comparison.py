"""Compare results with their references: tensors by the error of their dtype, other values exactly."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch

from workbench.coords import Descriptor
from workbench.launch import Launch

RELATIVE_TOLERANCE = 1e-9


def wrong_elements(
    got: torch.Tensor, reference: torch.Tensor, torchs_own: torch.Tensor, tolerance: float = 0.0
) -> torch.Tensor:
    """Return a mask of the elements in which `got` differs from `reference` by more than is allowed.

    The largest allowed error is twice the largest error of torch's own kernel plus one rounding step of the
    largest reference value (the rule of FlashAttention's tests) plus `tolerance` times that value. Integers
    and booleans must be equal.

    Args:
        got: the result to judge, on the CPU.
        reference: the expected result, computed in float64; not used unless `got` has a floating dtype.
        torchs_own: the expected result, computed by torch in the dtype of `got`.
        tolerance: an additional allowed error, relative to the largest reference value.

    Returns:
        A bool tensor of the common shape.
    """
    if not got.dtype.is_floating_point:
        return got != torchs_own
    exact = reference.double()
    finite = exact[exact.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    errors = (torchs_own.double() - exact).abs()
    errors = errors[errors.isfinite()]
    own_error = float(errors.max()) if errors.numel() else 0.0
    allowed = 2 * own_error + (torch.finfo(got.dtype).eps + tolerance) * largest
    close = (got.double() - exact).abs() <= allowed
    same = (got.double() == exact) | (got.isnan() & exact.isnan())
    return ~(close | same)


def same_type(got: Any, expected: Any) -> bool:
    """Return whether `got` has the type of `expected`: a bool, integer, real number, string or tuple.

    NumPy's integers and floats count too, and an integer passes where a float is expected. Tuples have to
    agree in length and in the types of their items.
    """
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and len(got) == len(expected) and all(map(same_type, got, expected))
    if isinstance(expected, bool | str):
        return isinstance(got, type(expected))
    kind = Integral if isinstance(expected, int) else Real
    return isinstance(got, kind) and not isinstance(got, bool)


def same_value(got: Any, expected: Any) -> bool:
    """Return whether `got` equals `expected`, of the same type; floats may differ by 1e-9 of their value."""
    if isinstance(expected, tuple):
        return all(map(same_value, got, expected))
    if isinstance(expected, float):
        return math.isclose(got, expected, rel_tol=RELATIVE_TOLERANCE)
    return bool(got == expected)


def in_words(value: Any) -> str:
    """Format a value for a verdict: tensors by dtype and shape, launches by kernel, floats to ten digits."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Descriptor):
        return f"a descriptor of [{', '.join(map(str, value.lengths))}]"
    if isinstance(value, Launch):
        steps = (", ".join([step.name, *(f"{k}={v}" for k, v in step.meta.items())]) for step in value.steps)
        return f"<{'; '.join(steps)}>"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(in_words, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
