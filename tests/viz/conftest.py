"""Data like an H200's: its roofs, the vendor's GEMM, and memory-bound operators at many sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.bench.roofline import Ceilings, Point

DEVICE, WHEN = "NVIDIA H200", "2026-11-21"
ROOFS = {"fp16": 7.0e14, "bf16": 7.1e14, "tf32": 4.0e14, "fp32": 5.1e13}


@pytest.fixture
def ceilings() -> Ceilings:
    return Ceilings(4.25e12, ROOFS, DEVICE, WHEN, recorded=True)


@pytest.fixture
def make_point() -> Callable[..., Point]:
    def make(label: str = "4096^3", **changes: object) -> Point:
        values: dict[str, object] = {
            "provider": "cuBLAS",
            "op": "matmul",
            "dtype": "fp16",
            "flops": 2 * 4096**3,
            "bytes": 6 * 4096**2,
            "seconds": 2.05e-4,
            "device": DEVICE,
            "when": WHEN,
            "recorded": True,
        }
        return Point(label, **{**values, **changes})  # type: ignore[arg-type] # the names are fields of Point

    return make


@pytest.fixture
def points(make_point: Callable[..., Point]) -> list[Point]:
    """Return 36 points: 15 products, 4 sums and 17 additions."""
    products = [
        make_point(
            f"{n}^3",
            dtype=dtype,
            flops=2 * n**3,
            bytes=3 * n**2 * (4 if dtype == "tf32" else 2),
            seconds=2 * n**3 / (ROOFS[dtype] * share),
        )
        for dtype in ("fp16", "bf16", "tf32")
        for n, share in ((512, 0.05), (1024, 0.34), (2048, 0.87), (4096, 0.95), (8192, 0.93))
    ]
    sums = [
        make_point(
            f"{rows} x {cols}",
            provider="torch",
            op="sum",
            dtype="fp32",
            flops=rows * cols,
            bytes=4 * rows * (cols + 1),
            seconds=3e-6 + 4 * rows * cols / 3.9e12,
        )
        for rows, cols in ((4096, 4096), (16384, 4096), (4096, 16384), (32768, 768))
    ]
    adds = [
        make_point(
            f"2^{exponent}",
            provider=provider,
            op="add",
            dtype="fp32",
            flops=2**exponent,
            bytes=12 * 2**exponent,
            seconds=slower * (2.1e-6 + 12 * 2**exponent / 4.1e12),
        )
        for provider, slower in (("torch", 1.0), ("workbench", 1.02))
        for exponent in range(12, 29, 2)
    ]
    return products + sums + adds[:-1]
