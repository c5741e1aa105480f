"""Run every test unattended and write a report: `make test-nightly`.

It writes a folder `build/nightly/<date>T<time>` with `report.md` (what failed and why, what took longest),
`run.xml` (pytest's own results) and `log.txt` (its output). The exit status is that of `make test-all`, which
is 0 if all tests passed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "nightly"

# How many of the slowest tests the report lists.
SLOWEST = 20

# How many lines of a failure's text the report shows, from the end, where the error is.
LINES_OF_A_FAILURE = 12


@dataclass(frozen=True)
class Case:
    """A case of a test in a run.

    Attributes:
        name: module and name, with the case's parameters.
        seconds: the duration.
        outcome: "passed", "skipped", "failure" or "error".
        text: the message and traceback of a failure or error, or the reason for skipping.
    """

    name: str
    seconds: float
    outcome: str
    text: str


def read(run: Path) -> list[Case]:
    """Return the cases of a run from the file of pytest's `--junitxml`.

    Raises:
        FileNotFoundError: pytest ended before it wrote the file.
    """
    cases = []
    for each in ElementTree.parse(run).getroot().iter("testcase"):
        outcome, text = "passed", ""
        for kind in ("failure", "error", "skipped"):
            if (found := each.find(kind)) is not None:
                outcome, text = kind, found.text or found.attrib.get("message", "")
        name = f"{each.attrib['classname']}::{each.attrib['name']}"
        cases.append(Case(name, float(each.attrib["time"]), outcome, text))
    return cases


def report(cases: list[Case], status: int, seconds: float, commit: str) -> str:
    """Return the report in Markdown.

    Args:
        cases: the cases of the run.
        status: the exit status of `make test-all`.
        seconds: the duration of the whole run.
        commit: the commit that was tested.
    """
    count = {
        kind: sum(case.outcome == kind for case in cases)
        for kind in ("passed", "failure", "error", "skipped")
    }
    bad = [case for case in cases if case.outcome in ("failure", "error")]
    lines = [
        f"# Tests of {commit}",
        "",
        f"{count['passed']:,} passed, {count['failure']:,} failed, {count['error']:,} errors, "
        f"{count['skipped']:,} skipped in {seconds / 60:.0f} minutes. Exit status: {status}.",
        "",
        "## Failures",
        "",
        *([] if bad else ["None." if status == 0 else "No test failed, but the run did: read log.txt."]),
    ]
    for case in bad:
        end = case.text.rstrip().splitlines()[-LINES_OF_A_FAILURE:]
        lines += [f"### {case.name}", "", *(f"    {line}" for line in end), ""]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += ["", f"## The {len(slowest)} slowest", "", "| seconds | test |", "| ---: | --- |"]
    lines += [f"| {case.seconds:.1f} | {case.name.replace('|', chr(92) + '|')} |" for case in slowest]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Return the commit that is tested, marked "-dirty" if files have changed since."""
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


def main(arguments: list[str]) -> int:
    """Run the tests with additional arguments for pytest, and write the report."""
    folder = FOLDER / datetime.now().strftime("%Y-%m-%dT%H%M%S")
    folder.mkdir(parents=True)
    run = folder / "run.xml"
    print(f"Running every test. The report will be {folder.relative_to(ROOT)}/report.md", flush=True)
    given = shlex.join([*arguments, f"--junitxml={run}"])
    start = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        status = subprocess.run(
            ["make", "--no-print-directory", "test-all", f"TEST_ARGS={given}"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    cases = read(run) if run.exists() else []
    text = report(cases, status, time.monotonic() - start, commit())
    (folder / "report.md").write_text(text)
    print(text.split("\n## The ")[0])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
