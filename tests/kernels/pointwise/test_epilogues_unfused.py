"""A chain in a kernel of its own, and the rungs of lesson 10, agree with the fused epilogue's meaning."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional

from workbench import lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, WorkbenchError
from workbench.kernels import epilogues
from workbench.kernels.pointwise import epilogues_unfused
from workbench.kernels.tile import epilogue
from workbench.runtime import interpret
from workbench.teach.rungs import gemm_ladder, ladder

TILE = (16, 32, 16)


@triton.jit
def relu_alone(tile):
    """max(tile, 0)"""
    return tl.maximum(tile, 0.0)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (17, 33), (32, 64), (0, 5)])
def test_an_unfused_chain_agrees_with_float64(m: int, n: int) -> None:
    x, vector = numbers(m, n), numbers(n, seed=1)
    chain = (
        epilogues.bias(vector) | epilogues.scale(0.5) | epilogues.silu() | epilogues.add(x.t().clone().t())
    )
    launch = epilogues_unfused.launch(x, chain, tile=(16, 32))
    (got,) = interpret(launch, poison=True, seed=1).outputs
    exact = functional.silu((x.double() + vector.double()) * 0.5) + x.double()
    torch.testing.assert_close(got.double(), exact, atol=0.01, rtol=0.002)
    assert launch.work is not None
    assert launch.work.bytes == 2 * (3 * m * n + n)


def test_unfused_chains_refuse_invalid_arguments() -> None:
    x = numbers(4, 8)
    with pytest.raises(TensorMismatchError, match=r"^x: got .* Give a contiguous matrix in fp16"):
        epilogues_unfused.launch(x.t(), epilogues.relu())
    wanted = r"^output: got torch.float32 \(4, 4\).* Give a contiguous matrix of shape \(4, 8\), like x, in"
    with pytest.raises(TensorMismatchError, match=wanted):
        epilogues_unfused.launch(x, epilogues.relu(), output=torch.zeros(4, 4))
    with pytest.raises(TensorMismatchError, match="permutes"):
        epilogues_unfused.launch(x, epilogues.permuted((4, 8), (1, 0)))
    with pytest.raises(InvalidArgumentError, match=r"tile\[0\]"):
        epilogues_unfused.launch(x, epilogues.relu(), tile=(3, 8))
    with pytest.raises(InvalidArgumentError, match=r"tile: got \(16, 8, 4\)"):
        epilogues_unfused.launch(x, epilogues.relu(), tile=(16, 8, 4))
    with pytest.raises(ArgumentTypeError, match="output"):
        epilogues_unfused.launch(x, epilogues.relu(), output=[1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="epilogue"):
        epilogues_unfused.launch(x, "relu")  # type: ignore[arg-type]
    with pytest.raises(TensorMismatchError, match="32 bits"):
        epilogues_unfused.launch(torch.empty(2**16, 2**15, dtype=torch.float16), epilogues.relu())


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (17, 33, 31), (16, 32, 32)])
def test_rungs_with_an_epilogue_agree_with_float64(m: int, n: int, k: int) -> None:
    a, b = numbers(m, k), numbers(k, n, seed=1)
    exact = a.double() @ b.double()
    output, row, full = torch.empty(m, n).half(), numbers(n, seed=2), numbers(m, n, seed=3)
    silu = gemm_ladder.activated(a, b, output, relu_alone, tile=TILE)
    (got,) = interpret(silu, poison=True).outputs
    torch.testing.assert_close(got.double(), exact.relu(), atol=0.01, rtol=0.002)
    functors = [(epilogue.add, (row,)), (epilogue.relu, ()), (epilogue.multiply, (full,))]
    (got,) = interpret(gemm_ladder.chained(a, b, output, functors, tile=TILE), poison=True).outputs
    want = (exact + row.double()).relu() * full.double()
    torch.testing.assert_close(got.double(), want, atol=0.01, rtol=0.002)
    launch = gemm_ladder.product_rms_norm(a, b, row, output, tile=(16, 64, 16))
    (got,) = interpret(launch, poison=True).outputs
    want = functional.rms_norm(exact, (n,), row.double(), 1e-5)
    torch.testing.assert_close(got.double(), want, atol=0.01, rtol=0.002)


def test_the_measured_chained_rung_agrees_with_float64() -> None:
    a, b, first, second = numbers(16, 16), numbers(16, 32, seed=1), numbers(16, 32), numbers(16, 32, seed=2)
    chain = epilogues.add(first) | epilogues.add(second) | epilogues.fast_gelu()
    got = ladder.RUNGS["fused_matmul"]["chained"](a, b, epilogue=chain)()
    exact = functional.gelu(a.double() @ b.double() + first + second, approximate="tanh")
    torch.testing.assert_close(got.double(), exact, atol=0.01, rtol=0.002)


def test_rungs_compile_without_spills() -> None:
    a, weight = torch.empty(512, 512, dtype=torch.float16), torch.empty(256, dtype=torch.float16)
    b, output = torch.empty(512, 256, dtype=torch.float16), torch.empty(512, 256, dtype=torch.float16)
    functors = [(epilogue.add, (output,)), (epilogue.add, (weight,)), (epilogue.fast_gelu, ())]
    launches = [
        gemm_ladder.activated(a, b, output, relu_alone),
        gemm_ladder.chained(a, b, output, functors, tile=(128, 128, 64)),
        gemm_ladder.product_rms_norm(a, b, weight, output),
        epilogues_unfused.launch(output, epilogues.bias(weight) | epilogues.fast_gelu()),
    ]
    for found in lens.compile_all(launches, "sm_90"):
        assert not isinstance(found, WorkbenchError)
        (step,) = found
        assert step.spills == 0
        assert step.problem == ""


def test_the_norm_of_a_product_refuses_invalid_arguments() -> None:
    a, b, output = numbers(16, 16), numbers(16, 64), torch.empty(16, 64).half()
    with pytest.raises(InvalidArgumentError, match=r"tile \(n\): got 32"):
        gemm_ladder.product_rms_norm(a, b, numbers(64), output, tile=TILE)
    with pytest.raises(TensorMismatchError, match="weight"):
        gemm_ladder.product_rms_norm(a, b, numbers(3), output, tile=(16, 64, 16))
