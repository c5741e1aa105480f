"""The accuracy that the statistics of norms must have, in the interpreter and on a GPU: torch's.

The rule: over the rows of all seeds, the errors from float64 of mean, scale (1 / sqrt(variance + eps))
and result are at most torch's, of the same dtype and for the same numbers. If torch computes in another way
on the CPU than on a GPU, the smaller of both errors counts. Errors below a rounding are always allowed:

- for a mean, half a rounding step of its own and one of the largest difference from it, since differences
    are rounded too;
- for scale and result, two steps of the largest one: the reciprocal square root of a GPU's own unit, which
    torch's kernels use too, has such an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

# Means of rows as multiples of the deviation.
RATIOS = (0.0, 1.0, -100.0, 1e4)
SEEDS = range(4)
EPSILON = 1e-5


class Found(NamedTuple):
    """The results of a norm: mean and scale of each row, and the result [rows, elements]."""

    mean: torch.Tensor
    scale: torch.Tensor
    result: torch.Tensor


Norm = Callable[[torch.Tensor], Found]


def rows(
    count: int, length: int, ratio: float, seed: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Return normal numbers of deviation 1 around `ratio`, rounded to the dtype."""
    generator = torch.Generator(device).manual_seed(seed)
    normal = torch.randn(count, length, generator=generator, dtype=torch.float64, device=device)
    return (ratio + normal).to(dtype)


def exact(x: torch.Tensor, epsilon: float = EPSILON) -> Found:
    """Compute the norm of the rounded numbers in float64."""
    wide = x.double()
    mean = wide.mean(1)
    # A second pass adds what the sum of large numbers has lost.
    mean += (wide - mean[:, None]).mean(1)
    variance = (wide - mean[:, None]).square().mean(1)
    scale = (variance + epsilon).rsqrt()
    return Found(mean, scale, (wide - mean[:, None]) * scale[:, None])


def errors(found: Found, right: Found) -> list[float]:
    """Return the largest error of each part."""
    return [
        (ours.to(theirs.device).double() - theirs).abs().max().item()
        for ours, theirs in zip(found, right, strict=True)
    ]


def roundings(x: torch.Tensor, found: Found, right: Found) -> list[float]:
    """Return the errors that are always allowed."""
    half, step = torch.finfo(torch.float32).eps / 2, torch.finfo(found.result.dtype).eps
    difference = (x.double() - right.mean[:, None]).abs().max().item()
    return [
        half * right.mean.abs().max().item() + 2 * half * difference,
        4 * half * right.scale.max().item(),
        2 * step * right.result.abs().max().item(),
    ]


def on_the_cpu(norm: Norm) -> Norm:
    """Return the same norm, computed on a copy that is on the CPU."""
    return lambda x: norm(x.cpu())


def assert_as_accurate_as_torch(
    ours: Norm, torchs: Sequence[Norm], inputs: Sequence[torch.Tensor], times: float = 1.0
) -> None:
    """Check the rule for all inputs together; each of `torchs` is a way in which torch computes the norm.

    Args:
        times: the number of torch's errors that is allowed.
    """
    rights = [exact(x) for x in inputs]
    found = [ours(x) for x in inputs]
    off = _largest([errors(one, right) for one, right in zip(found, rights, strict=True)])
    theirs = [
        _largest([errors(torchs_way(x), right) for x, right in zip(inputs, rights, strict=True)])
        for torchs_way in torchs
    ]
    least = _largest([roundings(x, *pair) for x, *pair in zip(inputs, found, rights, strict=True)])
    for number, name in enumerate(Found._fields):
        bar = min(each[number] for each in theirs)
        assert off[number] <= max(times * bar, least[number]), (
            f"{name} is off by {off[number]:.3g}, torch by {bar:.3g}, roundings are {least[number]:.3g}"
        )


def _largest(found: Sequence[Sequence[float]]) -> list[float]:
    return [max(each) for each in zip(*found, strict=True)]


def layer_norm_of_torch(x: torch.Tensor) -> Found:
    """Compute layer norm with its statistics, by torch on the device of x."""
    result, mean, scale = torch.native_layer_norm(x, x.shape[1:], None, None, EPSILON)
    return Found(mean.flatten(), scale.flatten(), result)


def group_norm_of_torch(x: torch.Tensor) -> Found:
    """Compute group norm of each row as an image of one group."""
    count, length = x.shape
    result, mean, scale = torch.native_group_norm(x, None, None, count, length, 1, 1, EPSILON)
    return Found(mean.flatten(), scale.flatten(), result)


def batch_norm_of_torch(x: torch.Tensor) -> Found:
    """Compute batch norm in training of channels that are the rows."""
    ones, zeros = (torch.full((len(x),), value, device=x.device) for value in (1.0, 0.0))
    result, mean, scale = torch.native_batch_norm(x[None], ones, zeros, None, None, True, 0.1, EPSILON)
    return Found(mean, scale, result[0])
