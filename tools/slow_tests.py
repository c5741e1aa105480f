"""Write tests/slow.txt, the tests that `make test-fast` leaves out, from a run's own times.

make test TEST_ARGS="--junitxml=run.xml" && .venv/bin/python tools/slow_tests.py run.xml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).resolve().parent.parent / "tests" / "slow.txt"

# What the cases of one test may take together, seconds: with this, two cores are done in some three minutes.
MOST_SECONDS = 1.0


def slow_tests(run: Path) -> list[str]:
    """Those of a run in JUnit's format, as "tests.lens.test_trace::test_name", but for what failed."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(run).getroot().iter("testcase"):
        if case.find("failure") is None and case.find("error") is None:
            name = case.attrib["name"].split("[")[0]
            seconds[f"{case.attrib['classname']}::{name}"] += float(case.attrib["time"])
    return sorted(name for name, taken in seconds.items() if taken > MOST_SECONDS)


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow_tests(Path(sys.argv[1]))))
