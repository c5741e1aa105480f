"""Check that tests reach every branch of the code that chooses templates, tiles, splits and warps.

    python -m tools.choosers             # runs the tests of kernels and operators under coverage.py: an hour
    python -m tools.choosers --report    # reports the last run

This code is `workbench/kernels/choosing`, and in other files of `workbench/kernels` the functions whose names
match `PLANNING`. A branch that no test can reach is in `EXCLUDED`, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "choosers"
DATA = FOLDER / "coverage"
TESTS = ("tests/kernels", "tests/operators", "tests/ops", "tests/profiler", "tests/tune/test_tune.py")

# Functions that plan, by their names: default_tile, default_splits, _plan, planned, enough_tiles, units_of.
PLANNING = re.compile(r"(default_\w+|_?plan(ned|_\w+)?|enough_tiles|units_of|why_not\w*)")

# "file: function: line's text" -> why no test reaches it.
EXCLUDED: Mapping[str, str] = {}

CONFIGURATION = f"""
[run]
branch = True
source = workbench/kernels
patch = subprocess
parallel = True
data_file = {DATA}
"""


def measure() -> int:
    """Run the tests under coverage.py and return pytest's exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("coverage*"):
        old.unlink()
    (FOLDER / "coveragerc").write_text(CONFIGURATION)
    coverage = [sys.executable, "-m", "coverage"]
    rc = ["--rcfile", str(FOLDER / "coveragerc")]
    pytest = ["-m", "pytest", "-q", "-n", str(os.cpu_count() or 1), "--dist", "loadfile", *TESTS]
    status = subprocess.run([*coverage, "run", *rc, *pytest], cwd=ROOT, check=False).returncode
    subprocess.run([*coverage, "combine", "-q", *rc], cwd=ROOT, check=True)
    subprocess.run([*coverage, "json", "-q", *rc, "-o", str(FOLDER / "report.json")], cwd=ROOT, check=True)
    return status


def unreached(report: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return the lines and branches of choosers that no test reached, as "file: function: line's text".

    Args:
        report: the output of `coverage json`.
        root: the folder to which the report's paths are relative.
    """
    found = []
    for file, measured in sorted(report["files"].items()):
        lines = (root / file).read_text().splitlines()
        is_chooser = "/choosing/" in file
        for function, region in measured["functions"].items():
            if not is_chooser and not PLANNING.fullmatch(function):
                continue
            numbers = {*region["missing_lines"], *(abs(begin) for begin, _ in region["missing_branches"])}
            found += [f"{file}: {function or 'module'}: {lines[n - 1].strip()}" for n in sorted(numbers)]
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure and report; return 0 if tests reach everything that is not excluded."""
    parser = argparse.ArgumentParser(prog="python -m tools.choosers", description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="report the last run, and run no tests")
    options = parser.parse_args(given)
    if options.report and not (FOLDER / "report.json").exists():
        parser.error("there is no last run: leave out --report")
    status = 0 if options.report else measure()
    missing = unreached(json.loads((FOLDER / "report.json").read_text()))
    for each in missing:
        print(f"{'excluded' if each in EXCLUDED else 'UNREACHED'}  {each}  {EXCLUDED.get(each, '')}".rstrip())
    stale = sorted(EXCLUDED.keys() - set(missing))
    for each in stale:
        print(f"reached, though excluded: {each}")
    wrong = [each for each in missing if each not in EXCLUDED]
    print(f"{len(wrong)} not reached, {len(missing) - len(wrong)} excluded")
    return 1 if wrong or stale or status else 0


if __name__ == "__main__":
    sys.exit(main())
