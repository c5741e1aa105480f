"""Run everything that needs a GPU: the GPU tests, the lessons and the benchmarks; or only the lessons.

`make gpu` runs everything and `make gpu-lessons` the lessons (`python tools/gpu.py lessons`), with `.venv` or
with the interpreter that `make gpu PYTHON=...` names. If a part fails, the next ones still run; the exit
status is 0 only if all passed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """A part of the run: one command.

    Attributes:
        name: the name to display.
        modules: the modules that the part imports, which this Python may lack.
        arguments: the arguments of `python -m`.
        shares: whether the part may run together with neighboring parts that share. Its output is then
            captured, and shown only if it fails.
    """

    name: str
    modules: tuple[str, ...]
    arguments: tuple[str, ...]
    shares: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a part.

    Attributes:
        name: the part's name.
        outcome: the outcome in words; success begins with "passed".
        seconds: the duration.
        output: the captured output, if any.
    """

    name: str
    outcome: str
    seconds: float
    output: str = ""

    @property
    def passed(self) -> bool:
        """True if the part succeeded."""
        return self.outcome.startswith("passed")

    def __str__(self) -> str:
        return f"{self.name:<32} {self.seconds:6.0f} s  {self.outcome}"


TRITON = ("torch", "triton", "numpy")
WORKBENCH = (*TRITON, "matplotlib", "tqdm", "loky", "filelock", "platformdirs")
PYTEST = (*WORKBENCH, "pytest", "pytest_timeout", "hypothesis")
TESTS = (*PYTEST, "xdist", "expecttest", "nbformat")
LESSONS = (*PYTEST, "nbval", "ipykernel", "ipywidgets", "anywidget")
NBVAL = ("pytest", "--nbval", "--nbval-current-env", "--nbval-sanitize-with", "tests/lessons/sanitize.cfg")


# Tests that measure times: each runs with the GPU to itself.
TIMES = (
    "tests/gpu/test_bench_gpu.py",
    "tests/gpu/test_overheads_gpu.py",
    "tests/gpu/test_profiler_gpu.py::test_the_best_product_is_timed_kept_and_found_again",
)
# Where the tests with the marker `gpu` are. Other tests are not imported, since their packages may be missing
# on a machine with a GPU.
PLACES = (
    "tests/gpu",
    "tests/lens/test_targets.py",
    "tests/setup/test_documents.py",
    "tests/teach/test_exercises.py",
)
# pytest-benchmark, if installed, warns that it is disabled under xdist, and warnings are errors.
OTHERS = ("--dist", "worksteal", "-p", "no:benchmark", *(f"--deselect={test}" for test in TIMES), *PLACES)
# GPU memory of a process that runs tests: tensors, a context, and workspaces of libraries.
GPU_BYTES_EACH = 5 * 2**30

# A lesson mostly waits for the compiler and the interpreter; four can share a GPU and its memory.
LESSONS_AT_A_TIME = 4

# The last line of pytest, such as "1 failed, 30 passed in 12.34s".
COUNTS = re.compile(r"\b(\d+) (passed|failed|errors?)\b")


def processes() -> int:
    """Return the number of processes that run tests.

    Each process mostly waits for the compiler, on a core of its own; all share the GPU's memory.
    """
    return max(min(os.cpu_count() or 1, gpu_bytes() // GPU_BYTES_EACH), 1)


def gpu_bytes() -> int:
    """Return the GPU's memory in bytes; 0 if torch is missing or finds no GPU."""
    # A process that asks takes GPU memory itself, so a subprocess asks.
    asked = "import torch; print(torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 0)"
    answer = subprocess.run([sys.executable, "-c", asked], check=False, capture_output=True, text=True).stdout
    return int(answer or 0)


def parts() -> list[Part]:
    """Return all parts in order: first the tests, which show failures early, and last the benchmarks."""
    return [
        Part("GPU tests of times", PYTEST, ("pytest", "-m", "gpu", *TIMES)),
        Part("other GPU tests", TESTS, ("pytest", "-m", "gpu", "-n", str(processes()), *OTHERS)),
        *lessons(),
        # Last, because the lessons' stored outputs depend on the present recordings.
        Part("benchmarks", WORKBENCH, ("workbench", "record", "all")),
    ]


def lessons() -> list[Part]:
    """Return a part for every lesson, which runs it and compares its output with the stored one."""
    return [
        Part(
            f"lesson {notebook.stem}",
            LESSONS,
            (*NBVAL, "--color=no", str(notebook.relative_to(ROOT))),
            shares=True,
        )
        for notebook in sorted((ROOT / "lessons").glob("*.ipynb"))
    ]


def missing(modules: Sequence[str]) -> list[str]:
    """Return the modules that this interpreter cannot find."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def run(part: Part) -> Result:
    """Run one part; its output is shown at once, or captured if the part shares."""
    lacking = missing(part.modules)
    if lacking:
        return Result(part.name, f"not run: this Python lacks {', '.join(lacking)}", 0.0)
    if not part.shares:
        print(f"\n== {heading(part)}", flush=True)
    # A lesson's Jupyter kernel starts in lessons/ and has to find this package even if it is not installed.
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:  # isolates the run from the user's progress and settings
        own = {"PYTHONPATH": paths, "WORKBENCH_HOME": home, "IPYTHONDIR": home}
        ended = subprocess.run(
            [sys.executable, "-m", *part.arguments],
            cwd=ROOT,
            env=os.environ | own,
            check=False,
            stdout=subprocess.PIPE if part.shares else None,
            stderr=subprocess.STDOUT if part.shares else None,
            text=True,
            errors="replace",
        )
    output = ended.stdout or ""
    outcome = "passed" if ended.returncode == 0 else f"FAILED, exit status {ended.returncode}"
    return Result(part.name, outcome + cells(output), time.monotonic() - start, output)


def heading(part: Part) -> str:
    """Return the part's name and the command that runs it alone."""
    return f"{part.name}: python -m {' '.join(part.arguments)}"


def cells(output: str) -> str:
    """Return the number of a lesson's cells in words, from pytest's last line; "" if it has no counts."""
    last = output.rstrip().rpartition("\n")[2]
    counts = {kind.rstrip("s"): int(number) for number, kind in COUNTS.findall(last)}
    if not counts:
        return ""
    wrong = counts.get("failed", 0) + counts.get("error", 0)
    number = sum(counts.values())
    of_them = f"{wrong} of {number}" if wrong else f"{number}"
    return f", {of_them} cell{'s' * (number != 1)}"


def run_together(chosen: Sequence[Part]) -> Iterator[Result]:
    """Run parts that share, `LESSONS_AT_A_TIME` at a time; yield each result as soon as it is known."""
    with ThreadPoolExecutor(LESSONS_AT_A_TIME) as threads:
        running = {threads.submit(run, part): part for part in chosen}
        for ended in as_completed(running):
            result = ended.result()
            if result.output and not result.passed:
                print(f"\n== {heading(running[ended])}\n{result.output.rstrip()}", flush=True)
            print(result, flush=True)
            yield result


def run_all(chosen: Iterable[Part]) -> list[Result]:
    """Run all parts in order; neighboring parts that share run together."""
    results: list[Result] = []
    for shares, group in itertools.groupby(chosen, key=lambda part: part.shares):
        alike = tuple(group)
        results += run_together(alike) if shares else map(run, alike)
    return results


def main(chosen: Sequence[Part]) -> int:
    """Run all parts and print a table of their outcomes; return the exit status."""
    lacking = missing(sorted({name for part in chosen for name in part.modules}))
    if lacking:
        print(f"{sys.executable} lacks {', '.join(lacking)}. This adds them and leaves torch as it is:")
        packages = ("pytest-xdist" if name == "xdist" else name.replace("_", "-") for name in lacking)
        print(f"    {sys.executable} -m pip install {' '.join(packages)}")
    results = run_all(chosen)
    places = {part.name: place for place, part in enumerate(chosen)}
    print("\n== summary")
    for result in sorted(results, key=lambda result: places[result.name]):
        print(result)
    return 0 if all(result.passed for result in results) else 1


def parts_asked_for(arguments: Sequence[str]) -> list[Part]:
    """Return the parts that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python tools/gpu.py", description="Run everything that needs a GPU."
    )
    parser.add_argument("what", nargs="?", choices=("all", "lessons"), default="all")
    return lessons() if parser.parse_args(arguments).what == "lessons" else parts()


if __name__ == "__main__":
    asked_for = parts_asked_for(sys.argv[1:])
    if not missing(["torch"]) and not gpu_bytes():
        sys.exit(f"The torch of {sys.executable} finds no GPU. Run `python -m workbench doctor` to see why.")
    sys.exit(main(asked_for))
