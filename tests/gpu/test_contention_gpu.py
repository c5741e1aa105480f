"""The work that one group of warps gets done while another one multiplies (`tools/contention.py`)."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tools import contention

pytestmark = pytest.mark.gpu(architecture="sm_90")

ROOT = Path(__file__).parents[2]


def test_products_without_other_work_reach_95_percent_of_the_peak() -> None:
    for columns in contention.PRODUCTS[1:]:
        alone = contention.measure(columns, 0)
        assert 0.95 < alone.products <= 1.01
        assert math.isnan(alone.clocks)


def test_reads_of_shared_memory_are_slow_beside_products_of_64_columns() -> None:
    """Products of 192 columns need two thirds of the bandwidth of shared memory and leave more for reads."""
    reads = [contention.rate(1, contention.measure((cols, 0), 1).clocks) for cols in (64, 192, 0)]
    assert reads[0] < 8
    assert 20 < reads[1] < 64 < reads[2] <= 129


@pytest.mark.parametrize("columns", [(0, 0), (128, 64), (256, 0)], ids=str)
@pytest.mark.parametrize("beside", contention.BESIDE)
def test_both_groups_of_warps_make_progress(beside: int, columns: tuple[int, int]) -> None:
    found = contention.measure(columns, beside)
    assert found.clocks > 0
    if columns[0]:
        assert 0.2 < found.products <= 1.01


def test_parts_of_an_epilogue_take_longer_beside_products() -> None:
    part = [contention.measure(columns, 5).clocks for columns in ((0, 0), (192, 0), (128, 64))]
    assert 1.4 * part[0] < part[1] < part[2] / 1.2


def test_the_tool_runs_in_a_process_that_has_not_used_the_gpu() -> None:
    code = "from tools import contention; print(contention.measure((192, 0), 0).products)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 0.95 < float(ran.stdout) <= 1.01
