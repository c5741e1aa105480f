"""Write tests/times.txt, from which `make test` chooses cases, using the times of a complete run.

make test CASES=all TEST_ARGS="--junitxml=run.xml"
.venv/bin/python tools/test_times.py run.xml
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / "tests" / "times.txt"

# A test whose cases together take less than this is not listed, so all its cases run.
LISTED_SECONDS = 0.5


def times_of(run: Path, slowness: float) -> list[str]:
    """Return the lines of the file: seconds, number of cases, and `path::name` of each slow test.

    Args:
        run: the file of pytest's `--junitxml`. Tests that failed or were skipped are left out.
        slowness: the machine's time relative to the reference machine (`tests.machine.Machine.slowness`).
    """
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(run).getroot().iter("testcase"):
        if all(case.find(outcome) is None for outcome in ("failure", "error", "skipped")):
            path = case.attrib["classname"].replace(".", "/")
            name = case.attrib["name"].partition("[")[0]
            seconds[f"{path}.py::{name}"].append(float(case.attrib["time"]) / slowness)
    return [
        f"{sum(each):8.2f} {len(each):5} {name}"
        for name, each in sorted(seconds.items())
        if sum(each) > LISTED_SECONDS
    ]


def main() -> None:
    """Read the command line and write the file."""
    sys.path.insert(0, str(ROOT))
    from tests.machine import Machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the file of --junitxml")
    parser.add_argument(
        "--slowness",
        type=float,
        help="slowness of the machine that ran the tests; by default that of this machine now",
    )
    arguments = parser.parse_args()
    lines = times_of(arguments.run, arguments.slowness or Machine.slowness())
    TIMES.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} tests in {TIMES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
