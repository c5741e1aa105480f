"""Lines and branches of the choosers that no test has reached, as measured by coverage.py."""

from __future__ import annotations

import json
from pathlib import Path

import coverage
import pytest

from tools import choosers

CHOOSING = """
def chosen(rows):
    if rows > 4:
        return "many"
    return "few"
"""

KERNELS = """
def default_tile(rows):
    tile = 16
    if rows > 16:
        tile = 64
    return tile


def launch(rows):
    if rows > 16:
        return "not a chooser's branch"
    return default_tile(rows)
"""


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure the coverage of a package in which `chosen(1)` and `launch(1)` are called."""
    kernels = tmp_path / "workbench" / "kernels"
    (kernels / "choosing").mkdir(parents=True)
    (kernels / "choosing" / "rows.py").write_text(CHOOSING)
    (kernels / "rows.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    covered = coverage.Coverage(branch=True, data_file=None, include=[f"{tmp_path}/*"], config_file=False)
    with covered.collect():
        for file, call in (
            (kernels / "choosing" / "rows.py", "chosen(1)"),
            (kernels / "rows.py", "launch(1)"),
        ):
            exec(compile(f"{file.read_text()}\n{call}", file, "exec"), {})
    monkeypatch.setattr(choosers, "FOLDER", tmp_path)
    covered.json_report(outfile=str(tmp_path / "report.json"))
    return tmp_path


def test_unreached_lists_lines_and_branches_of_choosers_alone(measured: Path) -> None:
    report = json.loads((measured / "report.json").read_text())
    assert choosers.unreached(report, measured) == [
        "workbench/kernels/choosing/rows.py: chosen: if rows > 4:",
        'workbench/kernels/choosing/rows.py: chosen: return "many"',
        "workbench/kernels/rows.py: default_tile: if rows > 16:",
        "workbench/kernels/rows.py: default_tile: tile = 64",
    ]


def test_excluded_lines_are_reported_and_needless_exclusions_fail(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choosers, "unreached", lambda report: ["a: b: c", "d: e: f"])
    assert choosers.main(["--report"]) == 1
    assert "2 not reached, 0 excluded" in capsys.readouterr().out
    monkeypatch.setattr(choosers, "EXCLUDED", {"a: b: c": "nobody has one", "d: e: f": "nor that"})
    assert choosers.main(["--report"]) == 0
    assert "nobody has one" in capsys.readouterr().out
    monkeypatch.setattr(choosers, "EXCLUDED", {"a: b: c": "", "d: e: f": "", "g": "gone"})
    assert choosers.main(["--report"]) == 1
    assert "reached, though excluded: g" in capsys.readouterr().out


def test_a_report_without_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choosers, "FOLDER", tmp_path)
    with pytest.raises(SystemExit):
        choosers.main(["--report"])
    assert "leave out --report" in capsys.readouterr().err
