"""Fused products on a GPU: instances of large products, narrow results, graphs with other seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from workbench import ops, suites
from workbench.kernels.epilogues import (
    Epilogue,
    add,
    bias,
    cast,
    column_scale,
    dropout,
    fast_gelu,
    gelu,
    multiply,
    permuted,
    relu,
    residual,
    row_scale,
    scale,
    sigmoid,
    silu,
)

pytestmark = pytest.mark.gpu


def numbers(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def assert_as_accurate_as_torch(
    got: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, roundings: int = 1
) -> None:
    """Check that the error from float64 is at most twice torch's plus roundings of the largest value."""
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    assert off <= 2 * theirs + roundings * exact.abs().max().item() * torch.finfo(got.dtype).eps


@pytest.mark.parametrize("case", suites.get("fused").cases, ids=str)
def test_the_products_of_the_suite_are_as_accurate_as_torch(case: suites.Case) -> None:
    """The sizes cover every template and tile that the suite uses; addends are fp16 and fp32."""
    m, n, k = (case.case[key] for key in "mnk")
    a, b, v = numbers(m, k), numbers(k, n, seed=1), numbers(n, seed=4)
    rows = slice(0, min(m, 256))
    for dtype in (torch.float16, torch.float32):
        first, second = numbers(m, n, dtype=dtype, seed=2), numbers(m, n, dtype=dtype, seed=3)
        got = ops.fused_matmul(a, b, epilogue=add(first) | add(second) | bias(v) | fast_gelu())
        exact = a[rows].double() @ b.double() + first[rows] + second[rows] + v
        exact = functional.gelu(exact, approximate="tanh")
        torchs = functional.gelu(
            (a[rows] @ b).to(dtype) + first[rows] + second[rows] + v, approximate="tanh"
        ).half()
        assert_as_accurate_as_torch(got[rows], torchs, exact)


CHAINS: dict[str, tuple[Callable[..., Epilogue], Callable[..., torch.Tensor]]] = {
    "erf": (lambda d, v: residual(d) | gelu(), lambda x, d, v: functional.gelu(x + d)),
    "vectors": (lambda d, v: row_scale(d[:, 0]) | column_scale(v), lambda x, d, v: x * d[:, :1] * v),
    "numbers": (lambda d, v: scale(0.3) | silu(), lambda x, d, v: functional.silu(x * 0.3)),
    "permuted": (
        lambda d, v: bias(v) | permuted((16, 64, 16, 64), (0, 2, 1, 3)),
        lambda x, d, v: (x + v).view(16, 64, 16, 64).transpose(1, 2),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_chains_are_accurate_and_kept_launches_give_the_same_bits(
    chain: tuple[Callable[..., Epilogue], Callable[..., torch.Tensor]], dtype: torch.dtype
) -> None:
    make, meaning = chain
    a, b, d = (numbers(1024, 1024, dtype=dtype, seed=seed) for seed in range(3))
    v = numbers(1024, dtype=dtype, seed=3)
    exact = meaning(a.double() @ b.double(), d.double(), v.double())
    got = ops.fused_matmul(a, b, epilogue=make(d, v))
    # fp64's reference has rounding steps too.
    assert_as_accurate_as_torch(
        got, meaning(a @ b, d, v), exact, roundings=64 if dtype == torch.float64 else 1
    )
    again = ops.fused_matmul(a.clone(), b.clone(), epilogue=make(d.clone(), v.clone()))  # kept
    assert torch.equal(got, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [(0, 2, 1, 3), (2, 1, 0, 3), (3, 1, 2, 0)], ids=str)
def test_a_batch_is_stored_permuted(dims: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = numbers(6, 200, 96, dtype=dtype), numbers(6, 96, 256, dtype=dtype, seed=1)
    for second in (b, b[0]):
        got = ops.fused_matmul(a, second, epilogue=relu() | permuted((6, 200, 4, 64), dims))
        exact, torchs = (
            functional.relu(one @ other).view(6, 200, 4, 64).permute(dims)
            for one, other in ((a.double(), second.double()), (a, second))
        )
        assert got.is_contiguous()
        assert_as_accurate_as_torch(got, torchs, exact)


EXPONENTIALS: dict[str, tuple[Callable[[], Epilogue], Callable[..., torch.Tensor]]] = {
    "fast_gelu": (fast_gelu, lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (silu, functional.silu),
    "sigmoid": (sigmoid, torch.sigmoid),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXPONENTIALS)
def test_activations_are_as_accurate_as_torch_at_every_magnitude(name: str, dtype: torch.dtype) -> None:
    """All values of a tensor have one magnitude, because larger values would hide the errors of small ones.

    The rounding error of the exponent grows with the magnitude.
    """
    make, torchs = EXPONENTIALS[name]
    wide = torch.promote_types(dtype, torch.float32)
    identity = torch.eye(256, device="cuda", dtype=dtype)
    for around in (-104, -88.5, -80, -50, -30, -16, -8, -5, -3, -1, 0, 1, 3, 20, 88.5, 104):
        a = (numbers(512, 256, dtype=torch.float32) / 8 + around).to(dtype)
        got, theirs = ops.fused_matmul(a, identity, epilogue=make(), out_dtype=wide), torchs(a.to(wide))
        x = a.double()
        exact = torchs(x)
        if name == "fast_gelu":  # the 1 + tanh of torch's formula is mostly rounding
            exact = x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        if around == -88.5 and wide == torch.float32:  # torch's exponential is infinite below -88.7
            got, theirs, exact = (each[a > -88.7] for each in (got, theirs, exact))
        assert_as_accurate_as_torch(got, theirs, exact, roundings=8 if wide == torch.float64 else 1)


LINKS: list[tuple[Callable[[torch.Tensor], Epilogue], Callable[..., torch.Tensor]]] = [
    *((lambda _, make=make: make(), lambda x, _, of=of: of(x)) for make, of in EXPONENTIALS.values()),
    (lambda _: gelu(), lambda x, _: functional.gelu(x)),
    (lambda _: relu(), lambda x, _: x.relu()),
    (lambda _: scale(-1.7), lambda x, _: x * -1.7),
    (lambda d: add(d), lambda x, d: x + d),
    (lambda d: multiply(d), lambda x, d: x * d),
    (lambda d: row_scale(d[:, 0]), lambda x, d: x * d[:, :1]),
    (lambda d: bias(d[0]), lambda x, d: x + d[0]),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_random_chains_are_as_accurate_as_torchs_functions_in_turn(seed: int, dtype: torch.dtype) -> None:
    drawn = random.Random(seed)
    a, b, d = numbers(200, 40, dtype=dtype), numbers(40, 160, dtype=dtype), numbers(200, 160, dtype=dtype)
    chain, exact, theirs = Epilogue(), a.double() @ b.double(), a.float() @ b.float()
    for make, meaning in drawn.choices(LINKS, k=4):
        chain |= make(d)
        exact, theirs = meaning(exact, d.double()), meaning(theirs, d.float())
    assert_as_accurate_as_torch(ops.fused_matmul(a, b, epilogue=chain), theirs.to(dtype), exact)


def test_int8_and_fp8_are_scaled_and_stored_narrow() -> None:
    a, b = (numbers(512, 512, seed=seed).mul(20).round().clamp(-127, 127).to(torch.int8) for seed in (0, 1))
    rows, cols = (numbers(512, dtype=torch.float32, seed=seed).abs() for seed in (2, 3))
    got = ops.fused_matmul(
        a, b.t(), epilogue=row_scale(rows) | column_scale(cols) | scale(1e-3) | cast(torch.int8)
    )
    exact = (a.double() @ b.double().t() * rows[:, None] * cols * 1e-3).round().clamp(-128, 127)
    assert (got.double() - exact).abs().max().item() <= 1
    assert (got.double() != exact).double().mean().item() < 1e-3
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    got = ops.fused_matmul(a, b.t(), epilogue=scale(0.01) | relu() | cast(torch.float8_e4m3fn))
    exact = (a.double() @ b.double().t() * 0.01).relu().clamp(max=448)
    torch.testing.assert_close(got.double(), exact, rtol=2**-3, atol=2**-6)


def test_dropout_in_a_graph_follows_the_seed() -> None:
    a, b = numbers(640, 256), numbers(256, 512, seed=1)
    seed = torch.tensor([5], device="cuda")
    chain = dropout(0.25, seed)
    ops.fused_matmul(a, b, epilogue=chain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.fused_matmul(a, b, epilogue=chain)
    dropped = []
    for value in (5, 6):
        seed.fill_(value)
        graph.replay()
        want = dropout(0.25, value).meaning(torch.ones(640, 512, device="cuda"))
        assert torch.equal(result == 0, want == 0)
        dropped.append(result == 0)
    assert not torch.equal(*dropped)


def test_fused_grouped_products_and_convolutions_agree_with_float64() -> None:
    a, w, v = numbers(300, 128), numbers(4, 128, 256, seed=1), numbers(4, 256, seed=2)
    offs = torch.tensor([100, 100, 230, 300], dtype=torch.int32, device="cuda")
    group = torch.searchsorted(offs, torch.arange(300, device="cuda"), right=True)
    got = ops.fused_grouped_mm(a, w, offs=offs, epilogue=bias(v) | silu())
    exact = functional.silu(torch.bmm(a[:, None].double(), w[group].double())[:, 0] + v[group])
    assert_as_accurate_as_torch(got, exact.half(), exact)
    x, taps, d = numbers(8, 64, 28, 28), numbers(64, 64, 3, 3, seed=1), numbers(8, 64, 28, 28, seed=2)
    x, taps, d = (t.contiguous(memory_format=torch.channels_last) for t in (x, taps, d))
    got = ops.fused_conv2d(x, taps, v[0, :64], padding=1, epilogue=add(d) | relu())
    plain = functional.conv2d(x.double(), taps.double(), v[0, :64].double(), padding=1)
    exact = (plain + d).relu()
    assert_as_accurate_as_torch(got, (functional.conv2d(x, taps, v[0, :64], padding=1) + d).relu(), exact)


def test_gradients_of_bias_and_gelu_are_as_accurate_as_torch() -> None:
    a, b, v = numbers(300, 200), numbers(200, 120, seed=1), numbers(120, seed=2)
    found = []
    for make, dtype in (
        (lambda a, b, v: ops.fused_matmul(a, b, epilogue=bias(v) | fast_gelu()), torch.float16),
        (lambda a, b, v: functional.gelu(a @ b + v, approximate="tanh"), torch.float16),
        (lambda a, b, v: functional.gelu(a @ b + v, approximate="tanh"), torch.float64),
    ):
        leaves = [t.to(dtype).requires_grad_() for t in (a, b, v)]
        result = make(*leaves)
        found.append(torch.autograd.grad(result, leaves, numbers(300, 120, seed=3).to(dtype)))
    for got, torchs, exact in zip(*found, strict=True):
        assert_as_accurate_as_torch(got, torchs, exact)
