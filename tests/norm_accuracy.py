"""What the statistics of norms are held to, in the interpreter and on a GPU: torch's own error.

The rule: of the rows of all seeds, mean, scale (1 / sqrt(variance + eps)) and result are at most as far from
float64 as torch's, of the same dtype and for the same numbers. Where torch computes in another way on the CPU
than on a GPU, the smaller of both errors counts. Less than a rounding is asked of nobody:

- a mean may be off by half a step of its own, and one of the largest difference from it, since differences
  are rounded too;
- scale and result by two steps of the largest one: as far off is the reciprocal root of a GPU's own unit,
  which torch's kernels take as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

# Of rows: the mean as a multiple of the deviation.
RATIOS = (0.0, 1.0, -100.0, 1e4)
SEEDS = range(4)
EPSILON = 1e-5


class Found(NamedTuple):
    """What a norm finds: mean and scale of each row, and the result [rows, elements]."""

    mean: torch.Tensor
    scale: torch.Tensor
    result: torch.Tensor


Norm = Callable[[torch.Tensor], Found]


def rows(
    count: int, length: int, ratio: float, seed: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Normal numbers of deviation 1 around `ratio`, which the dtype rounds."""
    generator = torch.Generator(device).manual_seed(seed)
    normal = torch.randn(count, length, generator=generator, dtype=torch.float64, device=device)
    return (ratio + normal).to(dtype)


def exact(x: torch.Tensor, epsilon: float = EPSILON) -> Found:
    """In float64, of the numbers as they are."""
    wide = x.double()
    mean = wide.mean(1)
    # Once more, for what the sum of large numbers has lost.
    mean += (wide - mean[:, None]).mean(1)
    variance = (wide - mean[:, None]).square().mean(1)
    scale = (variance + epsilon).rsqrt()
    return Found(mean, scale, (wide - mean[:, None]) * scale[:, None])


def errors(found: Found, right: Found) -> list[float]:
    """The largest of each."""
    return [
        (ours.to(theirs.device).double() - theirs).abs().max().item()
        for ours, theirs in zip(found, right, strict=True)
    ]


def roundings(x: torch.Tensor, found: Found, right: Found) -> list[float]:
    """What nobody is asked to be nearer than."""
    half, step = torch.finfo(torch.float32).eps / 2, torch.finfo(found.result.dtype).eps
    difference = (x.double() - right.mean[:, None]).abs().max().item()
    return [
        half * right.mean.abs().max().item() + 2 * half * difference,
        4 * half * right.scale.max().item(),
        2 * step * right.result.abs().max().item(),
    ]


def on_the_cpu(norm: Norm) -> Norm:
    """The same norm of a copy that is on the CPU."""
    return lambda x: norm(x.cpu())


def assert_as_near_as_torch(ours: Norm, torchs: Sequence[Norm], inputs: Sequence[torch.Tensor]) -> None:
    """The rule, for all inputs together; each of `torchs` is a way in which torch computes it."""
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
        assert off[number] <= max(bar, least[number]), (
            f"{name} is off by {off[number]:.3g}, torch by {bar:.3g}, roundings are {least[number]:.3g}"
        )


def _largest(found: Sequence[Sequence[float]]) -> list[float]:
    return [max(each) for each in zip(*found, strict=True)]


def layer_norm_of_torch(x: torch.Tensor) -> Found:
    """Layer norm with its statistics, as torch has them on the device of x."""
    result, mean, scale = torch.native_layer_norm(x, x.shape[1:], None, None, EPSILON)
    return Found(mean.flatten(), scale.flatten(), result)


def group_norm_of_torch(x: torch.Tensor) -> Found:
    """Group norm of each row as an image of one group."""
    count, length = x.shape
    result, mean, scale = torch.native_group_norm(x, None, None, count, length, 1, 1, EPSILON)
    return Found(mean.flatten(), scale.flatten(), result)


def batch_norm_of_torch(x: torch.Tensor) -> Found:
    """Batch norm in training of channels that are the rows."""
    ones, zeros = (torch.full((len(x),), value, device=x.device) for value in (1.0, 0.0))
    result, mean, scale = torch.native_batch_norm(x[None], ones, zeros, None, None, True, 0.1, EPSILON)
    return Found(mean, scale, result[0])
