"""Launches that are planned for another device, on a machine that has a GPU."""

from __future__ import annotations

import pytest
import torch

from workbench import device, explore, lens, ops
from workbench.kernels import attention, gemm
from workbench.kernels.attention import CAUSAL, Scoring
from workbench.kernels.tile import scores

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "sm_89", "gfx942"])
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_product_for_a_target_is_one_kernel(target: str, place: str) -> None:
    """The product of lesson 13, so large that no GPU in the table splits its sums."""
    a, b = (torch.empty(4096, 4096, dtype=torch.float16, device=place) for _ in range(2))
    launch = gemm.launch(a, b, tile=(128, 256, 64), num_stages=4, num_warps=8, device=target)
    (step,) = lens.compile(launch, target)
    assert ("shared memory" in step.problem) == (target in ("sm_89", "gfx942"))


def test_operators_run_for_this_gpu_inside_planning_for() -> None:
    """Calls inside the block give the results of this GPU, and keep nothing planned for the other device."""
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    rows = torch.randn(64, 5000, device="cuda")
    with device.planning_for("gfx942"):
        product, weights = ops.matmul(a, b), ops.softmax(rows, 1)
        assert device.planned().architecture == "gfx942"
    assert device.planned() == device.current()
    torch.testing.assert_close(product, a @ b, atol=0.1, rtol=1e-2)
    torch.testing.assert_close(weights, rows.softmax(1))
    assert torch.equal(ops.matmul(a, b), product)
    assert torch.equal(ops.softmax(rows, 1), weights)


def test_tiles_of_a_window_are_computed_in_a_kernel_and_refused_in_python() -> None:
    """Triton refuses a jit function that Python calls; lesson 11 asks a kernel for the tiles instead."""
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        scores.tiles_of_window.fn(0, 15, 50, 0, 0, 0, 16, False, True)
    query = torch.zeros(1, 1, 50, 16, device="cuda", dtype=torch.float16)
    told = explore.attention.tiles(
        attention.launch(query, query, query, Scoring(window=CAUSAL), tile=(16, 16), splits=1)
    )
    assert told.visits.tolist() == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
