"""The code that the tools for Hopper share, and their refusals, as far as no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tools import ablation, contention, hopper
from workbench import device


@pytest.mark.parametrize("main", [ablation.main, contention.main], ids=["ablation", "contention"])
def test_without_hopper_the_tools_say_what_they_need(
    main: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(device.current(), architecture="sm_80")
    monkeypatch.setattr(device, "current", lambda: other)
    assert main() == 1
    assert capsys.readouterr().out == "This needs a Hopper GPU (sm_90), not sm_80.\n"


def test_error_codes_of_cuda_raise() -> None:
    assert hopper.checked_result((0, "found")) == "found"
    assert hopper.checked_result((0,)) is None
    with pytest.raises(RuntimeError, match="719"):
        hopper.checked_result((719, None))


def test_the_wgmma_text_has_its_shape_and_registers() -> None:
    text = hopper.multiply_add(64)
    assert "m64n64k16" in text
    assert text.count('"+f"') == 32


def test_rates_are_in_the_units_that_the_table_names() -> None:
    assert contention.rate(1, 512) == 32  # two parts of fp16
    assert contention.rate(3, 256) == 16
    assert contention.rate(5, 999.0) == 999
