"""What one group of warps gets done while another one multiplies."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tools import contention
from workbench import device

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if device.current().architecture != "sm_90":
        pytest.skip("it is a kernel for Hopper")


def test_products_alone_are_at_their_roof() -> None:
    for columns in contention.PRODUCTS[1:]:
        alone = contention.measure(columns, 0)
        assert 0.95 < alone.products <= 1.01
        assert math.isnan(alone.clocks)


def test_nobody_reads_shared_memory_beside_products_of_64_columns() -> None:
    """Of 192, which need two thirds of what it gives, leave much more; so does who multiplies nothing."""
    reads = [contention.rate(1, contention.measure((cols, 0), 1).clocks) for cols in (64, 192, 0)]
    assert reads[0] < 8
    assert 20 < reads[1] < 64 < reads[2] <= 129


@pytest.mark.parametrize("columns", [(0, 0), (128, 64), (256, 0)], ids=str)
@pytest.mark.parametrize("beside", contention.BESIDE)
def test_something_is_done_beside_products(beside: int, columns: tuple[int, int]) -> None:
    found = contention.measure(columns, beside)
    assert found.clocks > 0
    if columns[0]:
        assert 0.2 < found.products <= 1.01


def test_parts_take_longer_beside_products() -> None:
    part = [contention.measure(columns, 5).clocks for columns in ((0, 0), (192, 0), (128, 64))]
    assert 1.4 * part[0] < part[1] < part[2] / 1.2


def test_it_runs_where_nothing_has_used_the_gpu_before() -> None:
    code = "from tools import contention; print(contention.measure((192, 0), 0).products)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 0.95 < float(ran.stdout) <= 1.01
