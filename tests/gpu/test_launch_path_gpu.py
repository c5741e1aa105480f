"""Warm calls on a GPU: right for any tensors, on any stream, from threads and in graphs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from triton import knobs
from triton.runtime.jit import JITFunction

from workbench import ops
from workbench.kernels import gemm
from workbench.kernels.epilogues import add, bias, dropout, relu, residual
from workbench.runtime import warmup
from workbench.runtime.replay import repeated, start

pytestmark = pytest.mark.gpu


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return whole numbers, so that every sum and product here is exact."""
    return torch.randint(-3, 4, shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_sums_of_every_size_need_no_new_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in (32, 48):
        ops.add(numbers(length, dtype=dtype), numbers(length, dtype=dtype))
    ops.add(numbers(33, dtype=dtype), numbers(33, dtype=dtype))
    monkeypatch.setattr(JITFunction, "run", None)  # from here on nothing goes through @triton.jit
    for length in (2, 15, 16, 17, 1000, 1024, 4097, 100_000, 2**20 + 16):
        x, y = numbers(length, dtype=dtype), numbers(length, dtype=dtype)
        assert torch.equal(ops.add(x, y), x + y), length


def test_sums_of_unusual_tensors_agree_with_torch() -> None:
    x, y = torch.randn(48, device="cuda"), torch.randn(48, device="cuda")
    x[3], y[7] = float("nan"), float("inf")
    special: list[tuple[torch.Tensor, Any]] = [
        (x, y), (x, x), (x[:32], x[16:]), (torch._neg_view(y), x), (x, torch._neg_view(y)), (x[1:], y[1:]),
        (torch.nn.Parameter(x), y), (x[::2], y[::2]), (x[:1].expand(48), y), (x, y.half()), (x[4], y[4]),
        (x[:0], y[:0]), (x, 3), (x, torch.tensor(2.0)),
    ]  # fmt: skip
    for left, right in special * 2:
        for alpha in (1, 0.5):
            wanted = torch.add(left, right, alpha=alpha)
            torch.testing.assert_close(ops.add(left, right, alpha=alpha), wanted, equal_nan=True)
    out = torch.full((48,), float("nan"), device="cuda")
    assert ops.add(x, y, out=out) is out
    torch.testing.assert_close(out, x + y, equal_nan=True)


def test_a_launch_is_repeated_with_little_work_on_the_cpu() -> None:
    """With split-K there is an accumulator, which each run zeroes."""
    a, b = numbers(64, 512, dtype=torch.float16), numbers(512, 64, dtype=torch.float16)
    for splits in (1, 4):
        launch = gemm.launch(a, b, tile=(64, 64, 64), splits=splits)
        again = repeated(launch)
        for _ in range(3):
            launch.outputs[0].fill_(float("nan"))
            (result,) = again()
            assert result is launch.outputs[0]
            assert torch.equal(result, a @ b)
        torch.cuda.synchronize()
        seconds = []
        for run in (again, launch.run):
            begin = time.perf_counter()
            for _ in range(100):
                run()
            seconds.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
        assert seconds[0] < seconds[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
def test_products_of_unusual_tensors_agree_with_torch() -> None:
    """A plain product of the same layout is kept first; each product is computed twice."""
    a, b = numbers(64, 96), numbers(96, 32)
    unaligned = torch.empty(64 * 96 + 1, device="cuda")[1:].view(64, 96).copy_(a)
    for left, right in [
        (a, b), (torch._neg_view(a), b), (torch.nn.Parameter(a), b), (unaligned, b), (b.t(), a.t()),
        (a.half(), b.half()), (a.expand(3, 64, 96), b), (a, b[:, 0]),
    ] * 2:  # fmt: skip
        assert torch.equal(ops.matmul(left, right), torch.matmul(left, right))
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert ops.matmul(a, b).dtype == torch.bfloat16
        assert ops.matmul(a, b).dtype == torch.float32
    follows = a.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ops.matmul(follows, b).sum(), follows)
    assert torch.equal(gradient, b.sum(1).expand(64, 96))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a)
        assert torch.equal(forward_ad.unpack_dual(ops.matmul(dual, b)).tangent, a @ b)
    assert torch.equal(torch.func.vmap(lambda row: ops.matmul(row, b))(torch.stack((a, -a)))[1], -(a @ b))
    wanted = a @ b
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        assert torch.equal(ops.matmul(a, b), wanted)
        assert torch.equal(ops.add(a, a), 2 * a)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
def test_fused_products_of_unusual_tensors_agree_with_torch() -> None:
    """A plain product of the same layout is kept first; each product is computed twice."""
    a, b, d, v = numbers(64, 96), numbers(96, 32), numbers(64, 32), numbers(32)
    unaligned = torch.empty(64 * 96 + 1, device="cuda")[1:].view(64, 96).copy_(a)
    fused = lambda a, b, d, v: ops.fused_matmul(a, b, epilogue=bias(v) | residual(d) | relu())  # noqa: E731
    meant = lambda a, b, d, v: torch.relu(torch.matmul(a, b) + v + d)  # noqa: E731
    for tensors in [
        (a, b, d, v), (torch._neg_view(a), b, d, v), (a, b, torch._neg_view(d), v), (unaligned, b, d, v),
        (a, b, d.t().contiguous().t(), v), (a, b, d[:1].expand(64, 32), v), (a, b, d, v[:1].expand(32)),
        (torch.nn.Parameter(a), b, d, v), (a.half(), b.half(), d, v), (a.expand(3, 64, 96), b, d, v),
        (a, b, v.expand(64, 32), v), (a + 1, b, d, v),
    ] * 2:  # fmt: skip
        assert torch.equal(fused(*tensors), meant(*tensors))
        norm = ops.matmul_layer_norm(*tensors[:2], epilogue=add(tensors[2]))
        wanted = torch.nn.functional.layer_norm(torch.matmul(*tensors[:2]) + tensors[2], (32,))
        torch.testing.assert_close(norm, wanted.to(norm.dtype), rtol=1e-2, atol=1e-2)
        assert torch.equal(ops.matmul_amax(*tensors[:2]), torch.matmul(*tensors[:2]).amax(-1))
    follows = v.clone().requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert not fused(a, b, d, follows).requires_grad
        (gradient,) = torch.autograd.grad(fused(a, b, d, follows).sum(), follows)
        assert torch.equal(gradient, (a @ b + v + d > 0).sum(0).float())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert fused(a, b, d, v).dtype == torch.bfloat16
        assert fused(a, b, d, v).dtype == torch.float32


def test_a_graph_of_warm_fused_calls_follows_new_values_and_seeds() -> None:
    x, w, d = numbers(2, 16, 8, 8), numbers(16, 16, 3, 3), numbers(2, 16, 8, 8)
    a, b, v, seed = numbers(64, 96), numbers(96, 32), numbers(32), torch.tensor([3], device="cuda")

    def calls() -> tuple[torch.Tensor, ...]:
        return (
            ops.fused_matmul(a, b, epilogue=bias(v) | dropout(0.5, seed)),
            ops.fused_conv2d(x, w, None, 1, 1, epilogue=residual(d)),
            ops.swiglu(a, b, b),
            ops.matmul_sum(a, b),
        )

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = calls()
    for number in range(3):
        for tensor in (x, w, d, a, b, v):
            tensor.copy_(numbers(*tensor.shape))
        seed.fill_(number)
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for result, wanted in zip(results, calls(), strict=True):
            assert torch.equal(result, wanted)


def test_kept_descriptors_follow_the_addresses_of_each_call() -> None:
    """A tensor map describes one address, and torch gives an address to one tensor after another."""
    for _ in range(50):
        a, b = numbers(256, 512, dtype=torch.float16), numbers(512, 256, dtype=torch.float16)
        assert torch.equal(ops.matmul(a, b), torch.matmul(a, b))


def test_other_sizes_of_one_tile_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(m: int, n: int, k: int) -> None:
        a, b, output = numbers(m, k), numbers(k, n), torch.full((m, n), float("nan"), device="cuda")
        start(gemm.launch, a, b, output=output, tile=(64, 64, 32), splits=1)
        assert torch.equal(output, a @ b)

    product(128, 128, 128)
    monkeypatch.setattr(JITFunction, "run", None)
    for sizes in ((192, 64, 256), (64, 320, 96), (1024, 64, 64)):
        product(*sizes)


def test_a_graph_of_warm_calls_follows_new_values() -> None:
    """The graph holds the workspaces of a split product too."""
    x, y = numbers(1000), numbers(1000)
    a, b = numbers(64, 8192), numbers(8192, 64)
    c, d = numbers(256, 256, dtype=torch.float16), numbers(256, 256, dtype=torch.float16)

    def calls() -> tuple[torch.Tensor, ...]:
        parted = torch.empty(64, 64, device="cuda")
        start(gemm.launch, a, b, output=parted, tile=(64, 64, 32), splits=8)
        return ops.add(x, y), parted, ops.matmul(a, b), ops.matmul(c, d)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = calls()
    for _ in range(3):
        for tensor in (x, y, a, b, c, d):
            tensor.copy_(numbers(*tensor.shape))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for result, wanted in zip(results, (x + y, a @ b, a @ b, c @ d), strict=True):
            assert torch.equal(result, wanted)


def test_calls_can_be_captured_after_a_warmup_alone() -> None:
    a, b = numbers(96, 160), numbers(160, 224)
    warmup(ops.matmul, a, b)
    warmup(ops.add, torch.empty(a.shape, device="meta"), torch.empty(a.shape, device="meta"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product, total = ops.matmul(a, b), ops.add(a, a)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(product, a @ b)
    assert torch.equal(total, 2 * a)


def test_calls_run_on_the_current_stream() -> None:
    """The calls read the result of long work on that stream."""
    x, a = torch.zeros(1 << 20, device="cuda"), torch.zeros(256, 256, device="cuda")
    ops.add(x, x)
    ops.matmul(a, a)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1)
        a.fill_(1)
        total, product = ops.add(x, x), ops.matmul(a, a)
    stream.synchronize()
    assert torch.equal(total, torch.full_like(x, 2))
    assert torch.equal(product, torch.full_like(a, 256))


def test_threads_with_streams_of_their_own_get_right_results() -> None:
    wrong = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for length in range(1, 60):
                x, a = numbers(length * (number + 1)), numbers(16 * (number + 1), 48)
                good = torch.equal(ops.add(x, x), 2 * x) and torch.equal(ops.matmul(a, a.t()), a @ a.t())
                if not good:
                    wrong.append((number, length))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_without_a_cuda_context_gets_a_right_result() -> None:
    """Its first request is a tensor map, for which the driver needs a context."""
    a, b, c = (numbers(1024, 1024, dtype=torch.float16) for _ in range(3))
    ops.matmul(a, b)  # kept; the memory of its result is free again
    found = []
    thread = threading.Thread(target=lambda: found.append(ops.matmul(a, c)))
    thread.start()
    thread.join()
    assert len(found) == 1
    assert torch.equal(found[0], a @ c)


def test_a_profilers_hooks_are_called() -> None:
    x, a = numbers(64), numbers(64, 64)
    ops.add(x, x)
    ops.matmul(a, a)
    told: list[str] = []

    def hook(metadata: object) -> None:
        told.append(metadata.get()["name"])  # type: ignore[attr-defined]

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        assert torch.equal(ops.add(x, x), 2 * x)
        assert torch.equal(ops.matmul(a, a), a @ a)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert told[0] == "binary_kernel"
    assert "gemm" in told[1]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_calls_run_on_the_device_of_their_tensors() -> None:
    for place in ("cuda:1", "cuda:0", "cuda:1"):
        x, a = torch.ones(64, device=place), torch.ones(64, 64, device=place)
        assert torch.equal(ops.add(x, x), 2 * x)
        assert torch.equal(ops.matmul(a, a), 64 * a)
