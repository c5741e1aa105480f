"""`make` and the README agree, and each target runs what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def make(*arguments: str, **variables: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHON")}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=inherited | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_makefile_has_the_documented_targets() -> None:
    assert {
        "help",
        "lab",
        "test",
        "test-fast",
        "test-nightly",
        "check",
        "gpu",
        "gpu-lessons",
        "gpu-fuzz",
        "clean",
    } <= TARGETS


def test_help_is_the_default_and_names_every_target_and_variable() -> None:
    said = make()
    assert set(re.findall(r"^make ([a-z-]+) +\S", said, re.MULTILINE)) == TARGETS
    assert set(re.findall(r"^([A-Z_]+) +\S", said, re.MULTILINE)) == {
        "PYTHON",
        "TORCH",
        "LAB_ARGS",
        "TEST_ARGS",
        "CASES",
        "SECONDS",
        "FUZZ_ARGS",
    }


def test_readme_names_targets_that_exist() -> None:
    # `make`'s variables may stand before the target.
    named = set(re.findall(r"(?:`|^ {4})make(?: [A-Z]+=\S+)* ([a-z-]+)", README, re.MULTILINE))
    assert {"lab", "test", "gpu"} <= named <= TARGETS


def test_readme_names_files_that_exist() -> None:
    paths = re.findall(r"`([\w.]+/[\w./-]*|[\w-]+\.(?:yml|txt|toml))`|\]\((?!http)([^)]+)\)", README)
    named = {first or second for first, second in paths}
    assert "lessons/" in named
    made_by_make = {".venv/bin/python"}
    assert [path for path in sorted(named - made_by_make) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("target", ["lab", "test", "test-fast", "test-nightly", "check"])
def test_the_environment_is_updated_first(target: str) -> None:
    first = make("-n", target).splitlines()[0]
    assert first.split()[:2] == ["python3", "tools/setup_environment.py"]
    assert "--this-python" not in first


def test_a_named_python_makes_the_environment() -> None:
    first = make("-n", "PYTHON=python3.12", "lab").splitlines()[0]
    assert first.split()[:2] == ["python3.12", "tools/setup_environment.py"]
    assert "--this-python" in first
    assert "--this-python" in make("-n", "lab", PYTHON="python3.12")


def test_gpu_with_a_named_python_makes_no_environment() -> None:
    assert make("-n", "PYTHON=/some/python", "gpu").split() == ["/some/python", "tools/gpu.py"]
    assert "setup_environment.py" in make("-n", "gpu")
    given = make("-n", "PYTHON=/some/python", "gpu-lessons")
    assert given.split() == ["/some/python", "tools/gpu.py", "lessons"]
    made, run = make("-n", "gpu-lessons").splitlines()
    assert "setup_environment.py" in made
    assert run.split() == [".venv/bin/python", "tools/gpu.py", "lessons"]


def test_lab_passes_arguments_on_and_opens_the_first_lesson() -> None:
    command = make("-n", "lab", "LAB_ARGS=--no-browser --port 8899").splitlines()[-1]
    assert command.endswith("-m workbench lab 00_start_here --no-browser --port 8899")


def test_ci_runs_make_check_and_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert {"make check", "make test"} <= set(script.read_text().splitlines())
