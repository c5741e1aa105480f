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
    """As in lesson 13: large enough that no GPU in the table shares its sums."""
    a, b = (torch.empty(4096, 4096, dtype=torch.float16, device=place) for _ in range(2))
    launch = gemm.launch(a, b, tile=(128, 256, 64), num_stages=4, num_warps=8, device=target)
    (step,) = lens.compile(launch, target)
    assert ("shared memory" in step.problem) == (target in ("sm_89", "gfx942"))


def test_what_runs_is_planned_for_this_gpu() -> None:
    """A call inside the block is right, and nothing that belongs to the other device is kept."""
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


def test_python_cannot_call_a_jit_function() -> None:
    """What lesson 11 did; a kernel that asks the same is told."""
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        scores.tiles_of_window.fn(0, 15, 50, 0, 0, 0, 16, False, True)
    query = torch.zeros(1, 1, 50, 16, device="cuda", dtype=torch.float16)
    told = explore.attention.tiles(
        attention.launch(query, query, query, Scoring(window=CAUSAL), tile=(16, 16), splits=1)
    )
    assert told.visits.tolist() == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
