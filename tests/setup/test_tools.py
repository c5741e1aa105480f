"""The scripts behind `make test` and `make gpu`, and JupyterLab's settings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tools import ensure_browser, gpu
from tools.gpu import Part

ROOT = Path(__file__).resolve().parents[2]


def put_program(folder: Path, name: str, status: int) -> str:
    """Put a program into a folder which does nothing but end."""
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs and browsers are looked for."""
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


def test_next_way_to_install_is_tried(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first way fails; the second gives a browser; no third is tried."""
    script = f"open(r'{programs / 'second'}', 'w').close()"
    ways = [[["/no/such/installer"]], [[sys.executable, "-c", script]], [["/no/third"]]]
    put_program(programs, "sh-that-fails", 1)
    ways[0] = [[str(programs / "sh-that-fails")]]
    monkeypatch.setattr(ensure_browser, "installers", lambda: iter(ways))
    found = ensure_browser.install_browser(lambda: "it" if (programs / "second").exists() else None)
    assert found == "it"


def test_apt_only_for_root_on_debian(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [way[0][0] for way in ensure_browser.installers()] == [sys.executable]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    put_program(programs, "apt-get", 0)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/etc/debian_version")
    first, second = ensure_browser.installers()
    assert [command[:2] for command in first] == [["apt-get", "update"], ["apt-get", "install"]]
    assert second[0][1:3] == ["-m", "playwright"]


def test_no_browser_says_what_to_do(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ensure_browser, "installers", lambda: iter([]))
    assert ensure_browser.main() == 1
    said = capsys.readouterr()
    assert said.out == ""  # make reads a path there
    assert "apt install chromium" in said.err
    assert "make test-fast" in said.err


def test_gpu_parts_go_on_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    """One fails, one cannot be run, and the last is run all the same."""
    chosen = [
        Part("fails", (), ("no_such_module",)),
        Part("lacks", ("sys", "no_such_module"), ("this",)),
        Part("works", ("sys",), ("platform",)),
    ]
    assert gpu.main(chosen) == 1
    said = capfd.readouterr().out
    assert f"{sys.executable} -m pip install no-such-module" in said
    outcomes = [line.split(" s  ")[1] for line in said.partition("== summary")[2].splitlines() if line]
    assert outcomes == ["FAILED, exit status 1", "not run: this Python lacks no_such_module", "passed"]
    assert gpu.main(chosen[2:]) == 0


def test_gpu_parts() -> None:
    """The tests, the benchmarks, every lesson; what they import is what the test environment has."""
    times, tests, *lessons, benchmarks = gpu.parts()
    assert times.arguments == ("pytest", "-m", "gpu", gpu.TIMES)
    assert (ROOT / gpu.TIMES).exists()
    assert tests.arguments[:3] == ("pytest", "-m", "gpu")
    assert f"--ignore={gpu.TIMES}" in tests.arguments
    assert benchmarks.arguments == ("workbench", "record", "all")
    assert [Path(part.arguments[-1]).stem for part in lessons] == sorted(
        path.stem for path in (ROOT / "lessons").glob("*.ipynb")
    )
    for part in gpu.parts():
        assert gpu.missing(part.modules) == []


def test_settings_are_ones_that_jupyterlab_has() -> None:
    """A setting that JupyterLab has renamed would be passed over in silence."""
    settings = json.loads((ROOT / "jupyter" / "labconfig" / "default_setting_overrides.json").read_text())
    schemas = Path(sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
    for plugin, values in settings.items():
        package, _, name = plugin.partition(":")
        schema = json.loads((schemas / package / f"{name}.json").read_text())
        assert set(values) <= set(schema["properties"])
    assert settings["@jupyterlab/apputils-extension:notification"] == {
        "checkForUpdates": False,
        "fetchNews": "false",
    }
