"""Problems for which an H200 gets a Gluon kernel: grid, shared memory, and the interpreted replacement."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional

from tests.chosen import only_made_for
from tests.everything import all_is_tested
from tests.machines import H200
from workbench import device, lens, ops


class Problem(NamedTuple):
    """A problem of ragged sizes.

    Attributes:
        function, reference: the workbench's function and torch's.
        shapes: the shapes of the tensors, in fp16.
        kernel: the name of the kernel that an H200 gets.
        divided: each length that is divided into tiles, and the tile's length.
        programs: the number of programs that share the tiles.
    """

    function: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    kernel: str
    divided: tuple[tuple[int, int], ...]
    programs: int


PROBLEMS = {
    "product and sum": Problem(
        ops.addmm, torch.addmm, ((1537, 1472), (1537, 64), (64, 1472)), "gemm_ping_pong_kernel",
        ((1537, 128), (1472, 128)), 78,
    ),
    "product": Problem(
        ops.matmul, torch.matmul, ((2876, 192), (192, 2944)), "gemm_wide_kernel", ((2876, 128), (2944, 192)),
        123,
    ),
    "attention": Problem(
        ops.scaled_dot_product_attention, functional.scaled_dot_product_attention,
        ((3, 23, 130, 80), (3, 23, 521, 80), (3, 23, 521, 80)), "attention_hopper_kernel",
        ((3, 1), (23, 1), (130, 128)), 132,
    ),
}  # fmt: skip


def drawn(problem: Problem) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [(torch.randn(shape) / shape[-1] ** 0.5).half() for shape in problem.shapes]


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_h200_gets_a_gluon_kernel_and_no_idle_programs(name: str) -> None:
    problem = PROBLEMS[name]
    with only_made_for(H200) as made:
        problem.function(*drawn(problem))
    (launch,) = made
    (step,) = launch.steps
    assert step.name == problem.kernel
    assert step.grid == (problem.programs,)
    tiles = prod(-(-length // part) for length, part in problem.divided)
    # No program is without a tile, and there are no more rounds than necessary.
    assert problem.programs <= min(tiles, H200.compute_units)
    assert -(-tiles // problem.programs) == -(-tiles // H200.compute_units)
    arguments = step.arguments()
    assert arguments.get("tiles", tiles) == tiles
    (compiled,) = lens.compile(launch, "sm_90")
    assert compiled.spills == 0
    assert compiled.shared_bytes <= H200.shared_memory_bytes


# Products that get tiles of 192 columns are large, and many other tests run their interpreted replacement.
RUN_HERE = PROBLEMS if all_is_tested() else ("product and sum", "attention")


@pytest.mark.parametrize("name", RUN_HERE)
def test_interpreted_replacements_of_gluon_kernels_agree_with_float64(name: str) -> None:
    problem = PROBLEMS[name]
    tensors = drawn(problem)
    with device.pretend(H200):
        ours = problem.function(*tensors)
    exact = problem.reference(*(each.double() for each in tensors))
    torch.testing.assert_close(ours.double(), exact, rtol=2e-3, atol=2e-3)
