"""The scripts behind `make test` and `make gpu`, and JupyterLab's settings."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import ensure_browser, gpu
from tools.gpu import Part

ROOT = Path(__file__).resolve().parents[2]


def put_program(folder: Path, name: str, status: int) -> str:
    """Put a program that only exits with this status into a folder, and return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder in which programs and browsers are looked for."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.delenv("WORKBENCH_BROWSER", raising=False)
    return tmp_path


def test_browser_that_does_not_start_is_passed_over(programs: Path) -> None:
    """Ubuntu's chromium-browser is a stub that asks for snap."""
    put_program(programs, "chromium-browser", 1)
    assert ensure_browser.find_browser() is None
    chrome = put_program(programs, "google-chrome", 0)
    assert ensure_browser.find_browser() == chrome


def test_named_browser_comes_first(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(programs, "chromium", 0)
    named = put_program(programs, "my-browser", 0)
    monkeypatch.setenv("WORKBENCH_BROWSER", named)
    assert ensure_browser.find_browser() == named


def test_browser_of_playwright_is_found(programs: Path) -> None:
    folder = programs / "playwright" / "chromium-1187" / "chrome-linux"
    folder.mkdir(parents=True)
    assert ensure_browser.find_browser() is None
    chrome = put_program(folder, "chrome", 0)
    assert ensure_browser.find_browser() == chrome


def test_the_next_way_to_install_a_browser_is_tried(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first way fails; the second gives a browser; no third is tried."""
    script = f"open(r'{programs / 'second'}', 'w').close()"
    ways = [[["/no/such/installer"]], [[sys.executable, "-c", script]], [["/no/third"]]]
    put_program(programs, "sh-that-fails", 1)
    ways[0] = [[str(programs / "sh-that-fails")]]
    monkeypatch.setattr(ensure_browser, "installers", lambda: iter(ways))
    found = ensure_browser.install_browser(lambda: "it" if (programs / "second").exists() else None)
    assert found == "it"


def test_apt_is_used_only_by_root_on_debian(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [way[0][0] for way in ensure_browser.installers()] == [sys.executable]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    put_program(programs, "apt-get", 0)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/etc/debian_version")
    first, second = ensure_browser.installers()
    assert [command[:2] for command in first] == [["apt-get", "update"], ["apt-get", "install"]]
    assert second[0][1:3] == ["-m", "playwright"]


def test_a_missing_browser_is_explained(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ensure_browser, "installers", lambda: iter([]))
    assert ensure_browser.main() == 1
    said = capsys.readouterr()
    assert said.out == ""  # make reads a path there
    assert "apt install chromium" in said.err
    assert "make test-fast" in said.err


def test_gpu_parts_go_on_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    """The first part fails, the second cannot be run, and the last is run all the same."""
    chosen = [
        Part("fails", (), ("no_such_module",)),
        Part("lacks", ("sys", "no_such_module"), ("this",)),
        Part("works", ("sys",), ("platform",)),
    ]
    assert gpu.main(chosen) == 1
    said = capfd.readouterr().out
    assert f"{sys.executable} -m pip install no-such-module" in said
    assert outcomes(said) == [
        "FAILED, exit status 1",
        "not run: this Python lacks no_such_module",
        "passed",
    ]
    assert gpu.main(chosen[2:]) == 0


def test_gpu_run_is_refused_without_a_gpu() -> None:
    command = [sys.executable, gpu.__file__]
    no_gpu = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | no_gpu)
    assert (done.returncode, done.stdout) == (1, "")
    assert "finds no GPU" in done.stderr


def outcomes(said: str) -> list[str]:
    """Return each part's outcome, from the table at the end."""
    return [line.split(" s  ")[1] for line in said.partition("== summary")[2].splitlines() if line]


# A stand-in for pytest that prints its progress, and waits until the others that run beside it have begun.
STAND_IN = """
import os, sys, time
from pathlib import Path

folder, name, others, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
(folder / name).touch()
print(f"{name} begins", flush=True)
until = time.monotonic() + 60
while len(list(folder.iterdir())) < others and time.monotonic() < until:
    time.sleep(0.01)
print(f"{name} saw {len(list(folder.iterdir()))}", file=sys.stderr, flush=True)
print(f"{name} ends, at home in {os.environ['WORKBENCH_HOME']}")
print(last)
sys.exit("failed" in last or "error" in last)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Part]:
    """Return a function that makes a part from its name, the number of parts to await, and its last line."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "modules" / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    def part(name: str, others: int, last: str) -> Part:
        return Part(name, (), ("stand_in", str(tmp_path / "there"), name, str(others), last), shares=True)

    return part


def test_parallel_lessons_print_the_whole_output_of_those_that_fail(
    stand_in: Callable[..., Part], capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits until all four have begun; the lines of the two that fail must not be mixed."""
    lasts = ("3 passed in 1.00s", "2 failed, 5 passed in 1s", "1 passed, 1 warning in 2s", "1 error in 1s")
    chosen = [stand_in(f"lesson{n}", 4, f"==== {last} ====") for n, last in enumerate(lasts)]
    assert gpu.main(chosen) == 1
    said = capfd.readouterr().out
    assert outcomes(said) == [
        "passed, 3 cells",
        "FAILED, exit status 1, 2 of 7 cells",
        "passed, 1 cell",
        "FAILED, exit status 1, 1 of 1 cell",
    ]
    before, table = said.split("\n== summary\n")
    for name in ("lesson1", "lesson3"):
        shown = before.partition(f"\n== {name}: python -m stand_in ")[2].splitlines()
        assert shown[1:3] == [f"{name} begins", f"{name} saw 4"]
        assert shown[3].startswith(f"{name} ends, at home in ")
    assert "lesson0 begins" not in said
    assert "lesson2 begins" not in said
    # Each part prints a line when it ends, and the table at the end has the same lines in order.
    lines = [line for line in before.splitlines() if " s  " in line]
    assert sorted(lines) == table.splitlines()
    homes = [line for line in before.splitlines() if "at home in" in line]
    assert len({line.rpartition(" ")[2] for line in homes}) == 2


def test_no_more_lessons_run_at_once_than_a_gpu_has_room_for(
    stand_in: Callable[..., Part], tmp_path: Path
) -> None:
    """The fifth begins when one of the first four has ended."""
    chosen = [stand_in(f"lesson{n}", gpu.LESSONS_AT_A_TIME, "1 passed in 1s") for n in range(6)]
    (first, *_) = gpu.run_all(chosen)
    assert "saw 4" in first.output
    assert len(list((tmp_path / "there").iterdir())) == 6


def test_a_lesson_that_ends_without_a_result_has_failed(stand_in: Callable[..., Part]) -> None:
    (killed,) = gpu.run_all([Part("lesson", (), ("no_such_module",), shares=True)])
    assert not killed.passed
    assert killed.outcome == "FAILED, exit status 1"
    assert "No module named no_such_module" in killed.output
    (lacking,) = gpu.run_all([Part("lesson", ("no_such_module",), ("this",), shares=True)])
    assert lacking.outcome == "not run: this Python lacks no_such_module"


def test_parts_that_measure_run_apart_from_the_lessons(stand_in: Callable[..., Part]) -> None:
    alone = [Part(name, ("sys",), ("platform",)) for name in ("before", "after")]
    results = gpu.run_all([alone[0], stand_in("a", 2, "1 passed"), stand_in("b", 2, "1 passed"), alone[1]])
    names = [result.name for result in results]
    assert names[0] == "before"
    assert set(names[1:3]) == {"a", "b"}
    assert names[3] == "after"


def test_gpu_lessons_are_every_notebook() -> None:
    assert gpu.parts_asked_for(["lessons"]) == gpu.lessons()
    assert gpu.parts_asked_for([]) == gpu.parts()
    assert all(part.shares for part in gpu.lessons())
    assert len(gpu.lessons()) == len(list((ROOT / "lessons").glob("*.ipynb")))


@pytest.mark.lesson
def test_the_gpu_script_runs_a_real_lesson(tmp_path: Path) -> None:
    """The lesson runs with the same Python as this test, as on a machine with an unknown Python."""
    (chosen,) = (part for part in gpu.lessons() if part.name == "lesson 02_roofline")
    result = gpu.run(chosen)
    assert result.passed, result.output
    notebook = json.loads((ROOT / "lessons" / "02_roofline.ipynb").read_text())
    number = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    assert result.outcome == f"passed, {number} cells"


def test_the_parts_of_a_gpu_run_are_tests_lessons_and_benchmarks() -> None:
    """The test environment has all modules that the parts import."""
    times, tests, *lessons, benchmarks = gpu.parts()
    assert times.arguments == ("pytest", "-m", "gpu", *gpu.TIMES)
    for file, _, name in (test.partition("::") for test in gpu.TIMES):
        assert f"def {name}" in (ROOT / file).read_text()
    assert tests.arguments[:4] == ("pytest", "-m", "gpu", "-n")
    assert 1 <= int(tests.arguments[4]) <= (os.cpu_count() or 1)
    assert {f"--deselect={test}" for test in gpu.TIMES} <= set(tests.arguments)
    assert set(gpu.PLACES) <= set(tests.arguments)
    assert benchmarks.arguments == ("workbench", "record", "all")
    assert [Path(part.arguments[-1]).stem for part in lessons] == sorted(
        path.stem for path in (ROOT / "lessons").glob("*.ipynb")
    )
    for part in gpu.parts():
        assert gpu.missing(part.modules) == []


def has_gpu_marker(source: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.gpu"
        for node in ast.walk(ast.parse(source))
    )


def test_gpu_parts_run_every_test_for_a_gpu() -> None:
    marked = [path for path in (ROOT / "tests").rglob("*.py") if has_gpu_marker(path.read_text())]
    places = [ROOT / place for place in gpu.PLACES]
    assert len(marked) > 25
    assert [path for path in marked if not any(path.is_relative_to(place) for place in places)] == []


def test_the_modules_of_gpu_tests_are_checked_before_the_run() -> None:
    """A missing module is reported before the tests are collected."""
    files = [
        file
        for place in gpu.PLACES
        for file in [ROOT / place, *(ROOT / place).glob("*.py")]
        if file.is_file()
    ]
    imported = {
        name.partition(".")[0]
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        )
    }
    ours = {"tests", "tools", "workbench"}
    assert "nbformat" in imported
    assert imported - set(sys.stdlib_module_names) - ours <= set(gpu.TESTS)


def test_jupyterlab_knows_every_setting() -> None:
    """JupyterLab silently ignores a setting that it has renamed."""
    settings = json.loads((ROOT / "jupyter" / "labconfig" / "default_setting_overrides.json").read_text())
    share = Path(sys.prefix) / "share" / "jupyter"
    for plugin, values in settings.items():
        package, _, name = plugin.partition(":")
        # Schemas of JupyterLab itself, and of its extensions.
        places = [share / "lab" / "schemas", share / "labextensions" / package / "schemas"]
        (found,) = [file for place in places if (file := place / package / f"{name}.json").exists()]
        assert set(values) <= set(json.loads(found.read_text())["properties"])
    assert settings["@jupyterlab/apputils-extension:notification"] == {
        "checkForUpdates": False,
        "fetchNews": "false",
    }
