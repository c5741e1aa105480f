"""Choice among `instances.convolution` for a problem on the planned device, and of the number of splits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
import triton

from workbench import device
from workbench.kernels import gemm
from workbench.kernels.choosing import tiles
from workbench.kernels.convolution import Configuration, Geometry
from workbench.kernels.instances.convolution import (
    FLAT,
    FLAT_TILE,
    MOST_NARROW,
    MOST_SHORT,
    NARROW,
    NARROW_DEEP,
    NUM_STAGES,
    OF_PIXELS,
    OF_WEIGHT,
    ROW_BYTES,
    SIMPLE,
    TILES,
    Instance,
)

# The choice depends on whether images are few or many, not on their number, so that another number compiles
# nothing: both instances are compiled when a geometry is first seen. FEW_IMAGES and MANY_IMAGES stand for the
# two cases; at most MOST_FEW_IMAGES are few.
FEW_IMAGES, MANY_IMAGES = 2, 32
MOST_FEW_IMAGES = 5

# Fewest steps along K of a split.
FEWEST_STEPS = 4

# Most programs that share the pixels over which a weight's gradient is summed: enough for each compute unit.
MOST_SPLITS = 256


class ConvolutionProblem(NamedTuple):
    """A convolution's product: for each of `batch`, [m, k] by [k, n].

    Attributes:
        kind: a name in `convolution.KINDS`.
        taps: the number of times that an element of the image is in the matrix of windows.
        is_gathered: whether windows overlap or leave pixels out.
    """

    kind: str
    m: int
    n: int
    k: int
    batch: int
    taps: int
    is_gathered: bool


def problem_of(kind: str, geometry: Geometry, images: int) -> ConvolutionProblem:
    """Return the product of a convolution of `images`; for backward for data, of one of its phases."""
    out, taps = math.prod(geometry.outputs), math.prod(geometry.taps)
    skipped = math.prod(geometry.stride)
    channels, features = geometry.group_channels, geometry.group_features
    m, n, k = {
        "forward": (images * out, features, taps * channels),
        "backward_data": (
            images * math.prod(geometry.sizes) // skipped, channels, max(taps // skipped, 1) * features
        ),
        "backward_weight": (features, taps * channels, images * out),
    }[kind]  # fmt: skip
    return ConvolutionProblem(kind, max(m, 1), n, k, geometry.groups, taps, geometry.is_gathered)


def is_few(images: int) -> bool:
    """Return whether a convolution gets the instance for few images."""
    return images <= MOST_FEW_IMAGES


def chosen(kind: str, geometry: Geometry, images: int, dtype: torch.dtype) -> Configuration:
    """Choose the configuration of `convolution.launch` on the planned device.

    It is the :func:`fastest` for elements of 2 bytes on sm_90, which was measured; elsewhere, that of the
    largest tile that keeps the compute units busy.

    Args:
        kind: a name in `convolution.KINDS`.
        geometry: of the convolution.
        images: number of images; the choice depends only on whether they are few, see :func:`is_few`.
        dtype: of the image.
    """
    here = device.planned()
    problem = problem_of(kind, geometry, FEW_IMAGES if is_few(images) else MANY_IMAGES)
    if here.architecture == "sm_90" and dtype.itemsize == 2:
        return fastest(problem, here.compute_units)
    has_descriptors = here.architecture in ("sm_90", "sm_100", "sm_103")
    return replace(_by_rule(problem, dtype, here.compute_units), descriptors=has_descriptors)


def fastest(problem: ConvolutionProblem, units: int) -> Configuration:
    """Return the configuration of the instance and splits with the shortest predicted time.

    A product of at most MOST_NARROW columns, or rows for a weight's gradient, gets an instance by rule.
    """
    if problem.kind != "backward_weight" and problem.n <= MOST_NARROW:
        return NARROW if problem.k <= MOST_SHORT else NARROW_DEEP
    if problem.kind == "backward_weight" and problem.m <= MOST_NARROW:
        _, cols, depth = FLAT_TILE
        count = triton.cdiv(problem.n, cols) * problem.batch
        most = max(problem.k // depth // FEWEST_STEPS, 1)
        return replace(FLAT, splits=max(min(4 * units // count, most, MOST_SPLITS), 1))
    instances = OF_WEIGHT if problem.kind == "backward_weight" else OF_PIXELS
    candidates = [(one, splits) for one in instances for splits in splits_of(one, problem, units)]
    best, splits = min(candidates, key=lambda pair: predicted_us(pair[0], pair[1], problem, units))
    return Configuration(
        tile=best.tile, splits=splits, num_warps=best.num_warps, num_stages=best.num_stages,
        template=best.template, descriptors=True,
    )  # fmt: skip


def predicted_us(instance: Instance, splits: int, problem: ConvolutionProblem, units: int) -> float:
    """Return the predicted time of an instance for a problem, in microseconds, by the fitted formula."""
    rows, cols, depth = instance.tile
    count = _tiles(instance, problem) * splits
    steps: int = triton.cdiv(triton.cdiv(problem.k, depth), splits)
    together = _programs_of_a_unit(instance) if instance.template == SIMPLE else 1
    multiplied: float = triton.cdiv(count, units) * steps * rows * cols * depth / (128 * 128 * 64)
    rounds = math.ceil(count / units / together)
    a, b, result = (
        problem.m * problem.k, problem.k * problem.n, problem.m * problem.n,
    )  # fmt: skip
    if problem.kind == "backward_weight":
        elements = a + b / problem.taps
    else:
        elements = a / problem.taps + b + result
    takes = instance.takes
    return (
        (takes.gathered if problem.is_gathered else takes.product) * multiplied
        + takes.round * rounds
        + takes.step * rounds * steps
        + takes.load * elements * 2 / 4e6
        + (splits > 1) * (takes.parts * splits * result * problem.batch * 8 / 4e6 + takes.second)
        + takes.start
    )


def _tiles(instance: Instance, problem: ConvolutionProblem) -> int:
    rows, cols, _ = instance.tile
    found: int = triton.cdiv(problem.m, rows) * triton.cdiv(problem.n, cols) * problem.batch
    return found


def _programs_of_a_unit(instance: Instance) -> int:
    """Return about how many programs fit on a unit: by 227 KB of shared memory, registers and threads."""
    rows, cols, depth = instance.tile
    threads = 32 * instance.num_warps
    shared = (rows + cols) * depth * 2 * instance.num_stages
    registers = max(64, rows * cols // threads + 60) * threads
    return max(1, min(227 * 1024 // shared, 65536 // registers, 2048 // threads))


def splits_of(instance: Instance, problem: ConvolutionProblem, units: int) -> list[int]:
    """Return numbers of splits to try: 1, and if tiles are few, about as many as fill the compute units.

    For a weight's gradient, twice that number is tried as well; for other products, half of it. Only the
    simple template takes splits.
    """
    count = _tiles(instance, problem)
    most = max(problem.k // instance.tile[2] // FEWEST_STEPS, 1)
    if instance.template != SIMPLE or count >= units:
        return [1]
    enough = units // count
    wanted = (enough, 2 * enough) if problem.kind == "backward_weight" else (enough // 2, enough)
    return sorted({1, *(max(min(one, most, MOST_SPLITS), 1) for one in wanted)})


def _by_rule(problem: ConvolutionProblem, dtype: torch.dtype, units: int) -> Configuration:
    """Return the configuration of the largest tile that gives each compute unit work, or of the smallest.

    Splits count as work. No tile is longer than the product's sides, rounded up to powers of two.
    """
    itemsize = dtype.itemsize
    block_k = min(max(ROW_BYTES // itemsize, tiles.SHORTEST), tiles.rounded(problem.k))
    for most_rows, most_cols, num_warps in TILES:  # noqa: B007  # the last one stays
        rows, cols = tiles.cut((most_rows, most_cols), (problem.m, problem.n))
        count = triton.cdiv(problem.m, rows) * triton.cdiv(problem.n, cols) * problem.batch
        is_summed = problem.kind == "backward_weight"
        shares = max(problem.k // block_k // FEWEST_STEPS, 1) if is_summed else 1
        fits = itemsize < 4 or rows * cols <= gemm.MOST_WITHOUT_UNITS
        if fits and count * shares >= units:
            break
    splits = max(min(units // count, shares, MOST_SPLITS), 1) if is_summed else 1
    return Configuration(
        tile=(rows, cols, block_k), splits=splits, num_warps=num_warps, num_stages=NUM_STAGES
    )
