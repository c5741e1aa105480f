"""The profiler on a GPU: real times, and a best instance that is kept and found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.profiler.test_profiler import FAMILIES
from workbench import device, ops, profiler
from workbench.__main__ import main
from workbench.bench import measure_together
from workbench.operators import given, named

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))


def matrices(n: int = 1024) -> list[torch.Tensor]:
    return [torch.randn(n, n, device=device.current().torch_device, dtype=torch.float16) for _ in range(2)]


def test_the_best_product_is_timed_kept_and_found_again() -> None:
    # A product of 4096^3 takes longer than its launch, even on a busy CPU; the times are then the kernels'.
    arguments = given(*matrices(4096))
    found = profiler.profile("matmul", arguments, progress=False)
    timed = [trial for trial in found.trials if trial.measurement is not None]
    assert len(timed) >= 4
    assert {trial.fate for trial in timed} == {"won", "slower"}
    assert not [trial for trial in found.trials if trial.fate in ("wrong", "failed")]
    assert "shipped" in {trial.candidate["instance"] for trial in timed}
    assert any("Kept in" in note for note in found.notes)
    assert "GB/s" in str(found)

    again = profiler.profile("matmul", arguments, again=False, progress=False)
    assert again.is_kept
    assert found.best is not None
    assert again.best is not None
    assert again.best.name == found.best.name
    best = ops.matmul.best(*arguments.args)
    assert best.name == found.best.name
    a, b = arguments.args
    torch.testing.assert_close(best.launch().run()[0], a @ b, rtol=1e-2, atol=1e-1)
    # Not the times of the trials: those of different rounds were measured at different clocks.
    shipped = next(each for each in found.instances if each.name == "shipped")
    together = measure_together({"best": best.launch(), "shipped": shipped.launch()}, mode="burst")
    assert together["best"].median_ms <= 1.05 * together["shipped"].median_ms
    assert not profiler.profile("matmul", given(*matrices(1040)), again=False, progress=False).is_kept


@pytest.mark.parametrize(("name", "case", "how"), FAMILIES)
def test_every_instance_passes_verification_or_is_refused(
    name: str, case: dict[str, Any], how: dict[str, Any]
) -> None:
    small = named(name).defaults(is_gpu=False)
    found = profiler.profile(name, profiler.arguments_of(name, small | case, **how), progress=False)
    assert [trial for trial in found.trials if trial.fate in ("wrong", "failed")] == []
    assert found.best is not None


@pytest.fixture
def tf32() -> Iterator[None]:
    """Let matrix units round fp32, by torch's switches; `monkeypatch` cannot restore module properties."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32"
    yield
    for switch, precision in zip(switches, before, strict=True):
        switch.fp32_precision = precision


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("name", ["matmul", "conv2d"])
def test_fp32_is_held_to_tf32s_accuracy_where_torch_allows_tf32(name: str) -> None:
    sizes = {"c": 64} if name == "conv2d" else {"m": 256, "n": 256, "k": 256}
    found = profiler.profile(name, profiler.arguments_of(name, sizes, dtype="fp32"), progress=False)
    assert found.best is not None
    assert [trial for trial in found.trials if trial.fate == "wrong"] == []


def test_the_command_prints_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "softmax", "--rows", "1024", "--cols", "1024"]) == 0
    printed = capsys.readouterr().out
    assert "won" in printed
    assert " ms " in printed
