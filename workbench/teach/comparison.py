"""Whether a result is right: a tensor by its dtype's own error, everything else by its value."""

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
    """Where `got` is further from `reference` than a good kernel of its dtype may be.

    The largest error allowed is twice the largest of torch's own kernel, plus one rounding step of the
    largest reference value (the rule of FlashAttention's tests), and `tolerance` of it besides; none for
    whole numbers and booleans.

    Args:
        got: the result to judge, on the CPU.
        reference: the same computed in float64 where `got` is of a floating dtype.
        torchs_own: the same computed by torch in the dtype of `got`.
        tolerance: an error that is allowed besides, as a share of the largest reference value.

    Returns:
        bool, of the common shape.
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
    """Whether `got` is what `expected` is: a whole number, a number, a text, or a tuple of such."""
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and len(got) == len(expected) and all(map(same_type, got, expected))
    if isinstance(expected, bool | str):
        return isinstance(got, type(expected))
    kind = Integral if isinstance(expected, int) else Real
    return isinstance(got, kind) and not isinstance(got, bool)


def same_value(got: Any, expected: Any) -> bool:
    """Whether `got`, which is of the same type, has the value `expected`; floats to nine digits."""
    if isinstance(expected, tuple):
        return all(map(same_value, got, expected))
    if isinstance(expected, float):
        return math.isclose(got, expected, rel_tol=RELATIVE_TOLERANCE)
    return bool(got == expected)


def in_words(value: Any) -> str:
    """A value as a verdict shows it: tensors by dtype and shape, launches by kernel, floats to ten digits."""
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
