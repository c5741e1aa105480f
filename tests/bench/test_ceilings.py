"""Ceilings come from a recording's lines, and are refused where nothing can be measured."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.example import copy_line, gpu, line
from workbench import device
from workbench.bench import ceilings
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotMeasurableError,
    UnknownNameError,
)

LINES = [
    copy_line(),
    copy_line(bytes=2**31, median_ms=2**31 / 4.28e9, case={"shape": [2**29]}),  # the best copy
    copy_line(provider="workbench", median_ms=0.001),  # faster, but not the copy that makes the roof
    copy_line(mode="cuda_graph", median_ms=0.001),  # warm caches
    line(median_ms=0.2),
    line(median_ms=0.19, provider="cuBLASLt", when="2026-02-01T00:00:01+00:00"),
    line(median_ms=0.1, provider="workbench"),  # faster than the vendor: drawn above the roof
    line(median_ms=0.3, dtype="bf16"),
    line(median_ms=0.4, dtype="fp64", provider="torch"),  # the provider is not a vendor library
]


def test_roofs_are_the_best_copy_and_the_best_vendor_rates() -> None:
    roofs = ceilings.from_recording(LINES)
    assert roofs.bandwidth == pytest.approx(4.28e12)
    assert roofs.matrix == {
        "fp16": pytest.approx(2 * 4096**3 / 0.19e-3),
        "bf16": pytest.approx(2 * 4096**3 / 0.3e-3),
    }
    assert (roofs.device, roofs.when, roofs.recorded) == ("NVIDIA H200", "2026-02-01", True)
    assert not ceilings.from_recording(LINES, recorded=False).recorded


def test_the_interpreters_lines_make_no_roof() -> None:
    lines = [copy_line(mode="interpreter"), line(mode="interpreter")]
    assert not ceilings.has_roofs(lines)
    with pytest.raises(InvalidArgumentError, match="no copy"):
        ceilings.from_recording(lines)


def test_lines_without_a_copy_or_without_a_vendor_product_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no copy"):
        ceilings.from_recording([line()])
    with pytest.raises(InvalidArgumentError, match="no product"):
        ceilings.from_recording([copy_line(), line(provider="torch")])
    assert not ceilings.has_roofs([copy_line()])
    assert ceilings.has_roofs(LINES)


def test_lines_of_two_devices_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="of AMD Instinct MI300X and NVIDIA H200"):
        ceilings.from_recording([*LINES, line(device="AMD Instinct MI300X")])


def test_measure_ceilings_refuses_the_interpreter_and_unknown_dtypes() -> None:
    with pytest.raises(NotMeasurableError, match="interpreter"):
        ceilings.measure_ceilings()
    with pytest.raises(UnknownNameError, match="dtype: 'fp4'"):
        ceilings.measure_ceilings(["fp4"])


@pytest.mark.parametrize("dtypes", [3, None, "fp16", [3], [["fp16"]]])
def test_dtypes_of_a_wrong_type_are_refused(dtypes: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="dtypes"):
        ceilings.measure_ceilings(dtypes)


def test_an_empty_list_of_dtypes_and_an_unknown_dtype_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="dtypes: got none"):
        ceilings.measure_ceilings([])
    with pytest.raises(UnknownNameError, match="dtype: 'half'"):
        ceilings.roof_sizes("half")


@pytest.mark.parametrize("lines", [None, 3, "run", [3], [{}], line()])
def test_lines_of_a_wrong_type_are_refused(lines: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="lines"):
        ceilings.from_recording(lines)
    with pytest.raises(ArgumentTypeError, match="lines"):
        ceilings.has_roofs(lines)


def test_a_full_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", gpu)
    monkeypatch.setattr(device, "free_memory_bytes", lambda: 3 * 10**8)
    with pytest.raises(NotMeasurableError, match=r"0\.30 GB of device memory are free"):
        ceilings.measure_ceilings()
