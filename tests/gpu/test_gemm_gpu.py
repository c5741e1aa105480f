"""Matrix products on a GPU: each template is right at any size and layout, and the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.gpu.test_ops_gpu import bits, numbers, whole_numbers
from tests.ops.test_gemm import OPERATORS, assert_samples_as_torch
from workbench import ops
from workbench.kernels import gemm

pytestmark = pytest.mark.gpu

WAYS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "one program a tile": {"tile": (128, 128, 64), "splits": 1, "num_warps": 8},
    "K split": {"tile": (64, 64, 64), "splits": 5},
    "K split, atomic": {"tile": (64, 64, 64), "splits": 5, "atomic": True},
    "persistent": {"tile": (128, 64, 64), "template": "persistent", "programs": 20},
    "persistent, loops apart": {
        "tile": (128, 64, 64),
        "template": "persistent",
        "programs": 20,
        "flatten": False,
    },
    "by descriptors": {"tile": (128, 128, 64), "descriptors": True, "splits": 1, "num_warps": 8},
    "by descriptors, persistent": {
        "tile": (128, 128, 64),
        "template": "persistent",
        "descriptors": True,
        "programs": 20,
        "num_warps": 8,
    },
    "by descriptors, K split": {"tile": (64, 64, 64), "descriptors": True, "splits": 4},
    "parts side by side": {"tile": (128, 192, 64), "splits": 1, "num_warps": 8},
    "parts side by side, by descriptors": {
        "tile": (128, 192, 64),
        "template": "persistent",
        "descriptors": True,
        "num_warps": 8,
    },
    "narrow parts side by side": {"tile": (64, 192, 64), "splits": 1},
    "narrow parts side by side, persistent": {
        "tile": (64, 192, 64),
        "template": "persistent",
        "programs": 20,
    },
    "packed first": {"tile": (128, 128, 64), "splits": 1, "descriptors": True, "pack": True},
    "packed first, K split": {"tile": (64, 128, 64), "splits": 3, "descriptors": True, "pack": True},
    "Stream-K": {"tile": (64, 64, 64), "template": "stream-k", "programs": 20},
    "Stream-K, by descriptors": {"tile": (64, 64, 64), "template": "stream-k", "descriptors": True},
    "back and forth": {"tile": (64, 64, 64), "launch_order": "snake", "group": 3},
}
SHAPES = [(1, 1, 32), (15, 160, 1024), (495, 533, 71), (512, 768, 256), (1000, 1000, 1000), (239, 17, 799)]
LAYOUTS = ["nn", "nt", "tn", "tt"]


def matrices(
    shape: Sequence[int], layout: str, dtype: torch.dtype, *, whole: bool = False
) -> list[torch.Tensor]:
    """Return A [m, k] and B [k, n] in a layout.

    Args:
        whole: make them of small integers, whose products and sums are exact.
    """
    m, n, k = shape
    given = []
    for seed, (letter, size) in enumerate(zip(layout, ((m, k), (k, n)), strict=True)):
        stored = size[::-1] if letter == "t" else size
        one = whole_numbers(stored, dtype, seed) if whole else numbers(stored, torch.float32, seed).to(dtype)
        given.append(one.t() if letter == "t" else one)
    return given


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_integers_are_multiplied_exactly(
    shape: Sequence[int], dtype: torch.dtype, way: dict[str, Any]
) -> None:
    way = way | ({"tile": (64, 64, 32)} if dtype == torch.float32 and "tile" in way else {})
    for layout in LAYOUTS:
        a, b = matrices(shape, layout, dtype, whole=True)
        want = (a.double() @ b.double()).float()
        output = torch.full_like(want, float("nan"))
        gemm.launch(a, b, output=output, **way).run()
        assert torch.equal(output, want), layout


@pytest.mark.parametrize("dtype", [torch.int8, *gemm.FP8], ids=str)
@pytest.mark.parametrize("way", ["as chosen", "one program a tile", "K split"])
def test_int8_and_fp8_are_multiplied_exactly(dtype: torch.dtype, way: str) -> None:
    for shape in ((495, 533, 71), (512, 768, 256)):
        a, b = matrices(shape, "nt", dtype, whole=True)
        got = gemm.launch(a, b, **WAYS[way]).run()[0]
        assert torch.equal(got.double(), (a.double() @ b.double()).to(got.dtype).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_error_is_at_most_twice_that_of_torch(shape: Sequence[int], dtype: torch.dtype) -> None:
    """The reference is float64, and one rounding of the largest value is added.

    For float64 itself there is no better reference: two orders of summing differ by about sqrt(k) roundings.
    """
    a, b = matrices(shape, "nn", dtype)
    exact = a.double() @ b.double()
    off, theirs = ((t.double() - exact).abs().max().item() for t in (ops.mm(a, b), a @ b))
    roundings = shape[2] ** 0.5 if dtype == torch.float64 else 1
    assert off <= 2 * theirs + roundings * exact.abs().max().item() * torch.finfo(dtype).eps


def test_tf32_follows_torchs_switch() -> None:
    a, b = matrices((256, 256, 256), "nn", torch.float32)
    exact = a.double() @ b.double()
    errors = []
    for precision in ("highest", "high"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            errors.append((ops.mm(a, b).double() - exact).abs().max().item())
        finally:
            torch.set_float32_matmul_precision(before)
    assert errors[0] * 50 < errors[1] < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_opinfo_samples_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    assert_samples_as_torch(op, "cuda", dtype)


def test_every_run_gives_the_same_bits() -> None:
    for shape in ((1000, 1000, 1000), (16, 4096, 4096)):
        a, b = matrices(shape, "nn", torch.float16)
        first = ops.mm(a, b)
        for _ in range(4):
            assert torch.equal(bits(ops.mm(a, b)), bits(first))


@pytest.mark.usefixtures("much_memory")
def test_products_of_more_than_two_to_the_31_elements_are_exact() -> None:
    """The last rows of A and, in the second product, the end of the output lie beyond 2^31 elements."""
    a = torch.zeros(70000, 32768, dtype=torch.float16, device="cuda")
    a[-1] = 1
    b = torch.ones(32768, 16, dtype=torch.float16, device="cuda")
    got = ops.mm(a, b)
    assert torch.equal(got[-1], torch.full_like(got[-1], 32768))
    assert not got[:-1].any()
    del a, got
    column, row = (torch.ones(*size, dtype=torch.float16, device="cuda") for size in ((70000, 1), (1, 32768)))
    column[-1] = 3
    output = ops.mm(column, row)
    assert (output[-1] == 3).all()
    assert (output[:-1] == 1).all()


def test_kept_launches_run_on_each_calls_own_tensors() -> None:
    for seed in range(3):
        a, b = (numbers((256, 256), torch.float16, seed + i) for i in range(2))
        c = numbers((256,), torch.float16, seed + 7)
        torch.testing.assert_close(ops.mm(a, b), a @ b)
        torch.testing.assert_close(ops.addmm(c, a, b, alpha=0.5), torch.addmm(c, a, b, alpha=0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_an_alpha_of_zero_drops_the_product(name: str, dtype: torch.dtype) -> None:
    """NaN and inf of either operand stay out of the result, as in cuBLAS, for small and large matrices."""
    batch = (3,) if name == "baddbmm" else ()
    for m, n, k in ((3, 4, 5), (256, 192, 128)):
        addend = numbers((*batch, m, n), dtype, 2)
        a, b = numbers((*batch, m, k), dtype), numbers((*batch, k, n), dtype, 1)
        for value in (float("nan"), float("inf")):
            bad_a, bad_b = a.clone(), b.clone()
            bad_a[..., 1, 2] = bad_b[..., 2, 1] = value
            for operands in ((bad_a, b), (a, bad_b), (bad_a, bad_b)):
                for beta in (0, 1):
                    want = getattr(torch, name)(addend, *operands, alpha=0, beta=beta)
                    got = getattr(ops, name)(addend, *operands, alpha=0, beta=beta)
                    torch.testing.assert_close(got, want, rtol=0, atol=0, msg=f"{m, n, k}, {value}, {beta}")
