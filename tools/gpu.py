"""Run everything that wants a GPU, in one go: the GPU tests, the lessons, the benchmarks.

`make gpu` runs it, with `.venv` or with the interpreter that `make gpu PYTHON=...` names. A part that fails
does not stop the next; the exit status is 0 only when all went well.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """One of the things to run.

    Attributes:
        name: for people.
        modules: what it imports that an interpreter may lack.
        arguments: what follows `python -m`.
    """

    name: str
    modules: tuple[str, ...]
    arguments: tuple[str, ...]


TRITON = ("torch", "triton", "numpy")
WORKBENCH = (*TRITON, "matplotlib", "tqdm", "loky", "filelock", "platformdirs")
PYTEST = (*WORKBENCH, "pytest", "pytest_timeout", "hypothesis")
TESTS = (*PYTEST, "xdist", "expecttest")
LESSONS = (*PYTEST, "nbval", "ipykernel", "ipywidgets", "anywidget")
NBVAL = ("pytest", "--nbval", "--nbval-current-env", "--nbval-sanitize-with", "tests/lessons/sanitize.cfg")


# What measures times has the GPU for itself.
TIMES = "tests/gpu/test_bench_gpu.py"
# pytest-benchmark, where there is one, warns that it measures nothing beside other processes, which fails.
OTHERS = (f"--ignore={TIMES}", "--ignore=tests/browser", "-p", "no:benchmark")
PROCESSES = min(os.cpu_count() or 1, 4)


def parts() -> list[Part]:
    """Everything there is to run, in order: what is wrong shows early, what takes long comes late."""
    return [
        Part("GPU tests of times", PYTEST, ("pytest", "-m", "gpu", TIMES)),
        # The browser tests are not collected: a machine with a GPU need not have what they import.
        Part("other GPU tests", TESTS, ("pytest", "-m", "gpu", "-n", str(PROCESSES), *OTHERS)),
        *(
            Part(f"lesson {notebook.stem}", LESSONS, (*NBVAL, str(notebook.relative_to(ROOT))))
            for notebook in sorted((ROOT / "lessons").glob("*.ipynb"))
        ),
        # Last: the lessons' stored outputs are those of the recordings so far.
        Part("benchmarks", WORKBENCH, ("workbench", "record", "all")),
    ]


def missing(modules: Sequence[str]) -> list[str]:
    """Those modules that this interpreter cannot find."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def run(part: Part) -> tuple[str, float]:
    """Run one part; say how it ended, and after how many seconds."""
    lacking = missing(part.modules)
    if lacking:
        return f"not run: this Python lacks {', '.join(lacking)}", 0.0
    print(f"\n== {part.name}: python -m {' '.join(part.arguments)}", flush=True)
    # A lesson's kernel starts in lessons/, and must find this package where it is not installed.
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:  # the user's own progress and settings stay out of it
        own = {"PYTHONPATH": paths, "WORKBENCH_HOME": home, "IPYTHONDIR": home}
        command = [sys.executable, "-m", *part.arguments]
        status = subprocess.run(command, cwd=ROOT, env=os.environ | own, check=False).returncode
    return "passed" if status == 0 else f"FAILED, exit status {status}", time.monotonic() - start


def main(chosen: Sequence[Part]) -> int:
    """Run all parts and print a table of how they ended; return the exit status."""
    lacking = missing(sorted({name for part in chosen for name in part.modules}))
    if lacking:
        print(f"{sys.executable} lacks {', '.join(lacking)}. This adds them and leaves torch as it is:")
        packages = ("pytest-xdist" if name == "xdist" else name.replace("_", "-") for name in lacking)
        print(f"    {sys.executable} -m pip install {' '.join(packages)}")
    results = [(part.name, *run(part)) for part in chosen]
    print("\n== summary")
    for name, outcome, seconds in results:
        print(f"{name:<24} {seconds:6.0f} s  {outcome}")
    return 0 if all(outcome == "passed" for _, outcome, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(parts()))
