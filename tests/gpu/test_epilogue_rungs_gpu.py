"""The rungs of lesson 10 and chains in kernels of their own, compiled and run on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from workbench import explore, ops
from workbench.kernels import epilogues
from workbench.kernels.tile import epilogue
from workbench.teach.rungs import gemm_ladder

pytestmark = pytest.mark.gpu

# Multiples of every tile; multiples of no access width; few rows.
SIZES = [(512, 512, 256), (777, 131, 99), (16, 1024, 64)]


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").half()


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_rung_plan_operator_and_separate_kernels_agree_on_a_chain(m: int, n: int, k: int) -> None:
    a, b = half(m, k) / k**0.5, half(k, n, seed=1)
    first, row = half(m, n, seed=2), half(n, seed=3)
    exact = functional.gelu(a.double() @ b.double() + first + row, approximate="tanh")
    functors = [(epilogue.add, (first,)), (epilogue.add, (row,)), (epilogue.fast_gelu, ())]
    chain = epilogues.add(first) | epilogues.bias(row) | epilogues.fast_gelu()
    plans = explore.fusion.chained(a, b, chain)
    for launch in plans.unfused:
        (unfused,) = launch.run()
    unfused = unfused.clone()
    for got, tolerance in (
        (gemm_ladder.chained(a, b, torch.empty_like(first), functors).run()[0], 0.004),
        (plans.fused.run()[0], 0.004),
        (ops.fused_matmul(a, b, epilogue=chain), 0.004),
        (unfused, 0.01),
    ):
        torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=0.002)


@pytest.mark.parametrize(("m", "n", "k"), [(512, 256, 256), (777, 131, 99)])
def test_rms_norm_of_a_product_agrees_with_float64(m: int, n: int, k: int) -> None:
    a, b, weight = half(m, k), half(k, n, seed=1), half(n, seed=2)
    (got,) = gemm_ladder.product_rms_norm(a, b, weight, torch.empty(m, n, device="cuda").half()).run()
    exact = functional.rms_norm(a.double() @ b.double(), (n,), weight.double(), 1e-5)
    torch.testing.assert_close(got.double(), exact, atol=0.004, rtol=0.002)
