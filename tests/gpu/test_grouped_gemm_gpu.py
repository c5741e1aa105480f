"""Grouped products on a GPU: as accurate as torch's for any division, without waits for the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
import torch

from tests.gpu.test_ops_gpu import bits, numbers, whole_numbers
from workbench import ops
from workbench.kernels import reference
from workbench.kernels.gemm import grouped as grouped_gemm

pytestmark = pytest.mark.gpu

DIVISIONS = {
    "even": (128, 128, 128, 128),
    "uneven": (0, 1, 300, 17, 0, 129, 65),
    "one": (512,),
    "empty ones only": (0, 0, 0),
    "more groups than tiles": (3,) * 170,
}
divisions = pytest.mark.parametrize("lengths", DIVISIONS.values(), ids=DIVISIONS)

WAYS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "one program a tile": {"tile": (64, 64, 32)},
    "few programs": {"tile": (64, 64, 32), "programs": 20},
    "wide tile": {"tile": (64, 128, 32), "num_warps": 8},
}
SIZES = [(256, 384), (200, 136), (77, 131)]  # multiples of a tile, of 16 bytes, of one element


def ends_of(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([*accumulate(lengths)], dtype=torch.int32, device="cuda")


def shapes(groups: int, total: int, sizes: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shapes of a and b, divided along m, n and k."""
    one, other = sizes
    return [
        ((total, one), (groups, one, other)),
        ((groups, other, one), (one, total)),
        ((one, total), (total, other)),
    ]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@divisions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_integers_are_multiplied_exactly(
    dtype: torch.dtype, lengths: Sequence[int], way: dict[str, Any]
) -> None:
    """A and B have any layout, the output begins as NaN, and 9 rows or columns belong to no group."""
    offs = ends_of(lengths)
    for sizes in SIZES:
        for of_a, of_b in shapes(len(lengths), sum(lengths) + 9, sizes):
            a, b = whole_numbers(of_a, dtype, 0), whole_numbers(of_b, dtype, 1)
            want = reference.grouped_mm(a.double(), b.double(), offs=offs).float()
            for one in (a, a.mT.contiguous().mT):
                for other in (b, b.mT.contiguous().mT):
                    output = torch.full_like(want, float("nan"))
                    grouped_gemm.launch(one, other, offs, output=output, **way).run()
                    assert torch.equal(output, want), (of_a, of_b)


@divisions
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_error_is_at_most_twice_that_of_torch(dtype: torch.dtype, lengths: Sequence[int]) -> None:
    """The reference is float64, and one rounding of the largest value is added, 8 for float64 itself."""
    offs = ends_of(lengths)
    for of_a, of_b in shapes(len(lengths), sum(lengths), (200, 136)):
        a, b = numbers(of_a, dtype), numbers(of_b, dtype, 1)
        exact = reference.grouped_mm(a.double(), b.double(), offs=offs)
        off, theirs = (
            (t.double() - exact).abs().max().item() if t.numel() else 0.0
            for t in (ops.grouped_mm(a, b, offs=offs), reference.grouped_mm(a, b, offs=offs))
        )
        largest = exact.abs().max().item() if exact.numel() else 0.0
        assert off <= 2 * theirs + (8 if dtype == torch.float64 else 1) * largest * torch.finfo(dtype).eps


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Make every call that waits for the GPU raise."""
    try:
        with warnings.catch_warnings():  # torch warns that it does not find every wait
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_offsets_are_not_copied_to_the_cpu() -> None:
    """A copy, in forward or backward, would wait for all earlier work of the GPU."""
    offs = ends_of(DIVISIONS["uneven"])
    (of_a, of_b), *_ = shapes(7, 512, (256, 384))
    a, b = (numbers(shape, torch.bfloat16, i).requires_grad_() for i, shape in enumerate((of_a, of_b)))
    direction = torch.ones(512, 384, dtype=torch.bfloat16, device="cuda")
    with nothing_waits():
        gradients = torch.autograd.grad(ops.grouped_mm(a, b, offs=offs), (a, b), direction)
    assert [gradient.shape for gradient in gradients] == [a.shape, b.shape]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_captured_product_follows_its_offsets() -> None:
    a, b = whole_numbers((512, 256), torch.bfloat16, 0), whole_numbers((4, 256, 384), torch.bfloat16, 1)
    offs = ends_of((128, 128, 128, 128))
    one = grouped_gemm.launch(a, b, offs, output=torch.empty(512, 384, device="cuda"))
    one.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.run()
    for lengths in ((512, 0, 0, 0), (0, 1, 500, 3), (7, 0, 0, 100)):
        offs.copy_(ends_of(lengths))
        graph.replay()
        want = reference.grouped_mm(a.double(), b.double(), offs=offs).float()
        assert torch.equal(one.outputs[0], want)


def test_results_and_strides_agree_with_torch() -> None:
    """Groups cover all rows, since torch writes nothing behind the last group.

    Their lengths are multiples of 16 bytes, which torch's kernel asserts for groups along K.
    """
    offs = ends_of((0, 104, 24, 384))
    for of_a, of_b in shapes(4, 512, (256, 384)):
        a, b = (numbers(shape, torch.bfloat16, i) for i, shape in enumerate((of_a, of_b)))
        got, want = (f(a, b.mT.contiguous().mT, offs=offs) for f in (ops.grouped_mm, torch._grouped_mm))
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def test_tf32_follows_torchs_switch() -> None:
    a, b, offs = (
        numbers((512, 256), torch.float32),
        numbers((4, 256, 384), torch.float32, 1),
        ends_of((128,) * 4),
    )
    exact = reference.grouped_mm(a.double(), b.double(), offs=offs)
    errors = []
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            errors.append((ops.grouped_mm(a, b, offs=offs).double() - exact).abs().max().item())
        finally:
            torch.set_float32_matmul_precision(before)
    assert errors[0] * 50 < errors[1] < 0.1


def test_every_run_gives_the_same_bits() -> None:
    offs = ends_of(DIVISIONS["uneven"])
    for of_a, of_b in shapes(7, 512, (256, 384)):
        a, b = (numbers(shape, torch.bfloat16, i) for i, shape in enumerate((of_a, of_b)))
        first = ops.grouped_mm(a, b, offs=offs)
        for _ in range(4):
            assert torch.equal(bits(ops.grouped_mm(a, b, offs=offs)), bits(first))


@pytest.mark.usefixtures("much_memory")
def test_products_of_more_than_two_to_the_31_elements_are_exact() -> None:
    """The last matrix of B lies beyond 2^31 elements, and so do the last rows of A."""
    b = torch.zeros(3, 32768, 32768, dtype=torch.float16, device="cuda")
    b[2] = 1
    a = torch.ones(48, 32768, dtype=torch.float16, device="cuda")
    got = ops.grouped_mm(a, b, offs=ends_of((16, 16, 16)))
    assert not got[:32].any()
    assert torch.equal(got[32:], torch.full_like(got[32:], 32768))
    del b, got
    a = torch.zeros(70000, 32768, dtype=torch.float16, device="cuda")
    a[-1] = 1
    b = torch.ones(2, 32768, 16, dtype=torch.float16, device="cuda")
    got = ops.grouped_mm(a, b, offs=ends_of((1, 69999)))
    assert torch.equal(got[-1], torch.full_like(got[-1], 32768))
    assert not got[:-1].any()
