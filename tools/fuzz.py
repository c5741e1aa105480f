"""Fuzz every operator against torch: `make gpu-fuzz SECONDS=300`, or `python -m tools.fuzz --seconds 300`.

It draws sizes, layouts, dtypes, options and modes, and compares results and gradients with float64 by the
accuracy rule. Each failure is printed at once, with the command that repeats it and the smallest case that
fails in the same way; counts by operator follow at the end. Without a GPU kernels run in the interpreter.

    python -m tools.fuzz --seed 7 --case 4242          one case alone
    python -m tools.fuzz --seconds 60 --operators sum conv2d
    python -m tools.fuzz --cases 2000 --output fuzz.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.fuzz.running import (
    Plan,
    Record,
    Summary,
    checked_names,
    chosen_seed,
    failure_text,
    processes_that_fit,
    run,
    run_case,
)


def arguments_of(given: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, help="seconds to run; 60 if --cases is not given either")
    parser.add_argument("--cases", type=int, help="the largest number of cases")
    parser.add_argument("--seed", type=int, help="seed of all cases; a random one by default")
    parser.add_argument("--case", type=int, help="the number of one case to run alone")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--members", type=int, help="cases in a group that shares compiled kernels")
    parser.add_argument("--operators", nargs="+", default=[], help="names of operators; all by default")
    parser.add_argument("--processes", type=int, help="number of processes; one per core by default")
    parser.add_argument("--output", type=Path, help="a file to add a line of JSON to for each case")
    return parser.parse_args(given)


def kernels_run_on() -> tuple[str, str]:
    """Return torch's device type and the device's name; "cpu" means that kernels are interpreted."""
    from workbench import device

    found = device.current()
    return found.torch_device, found.name


def main(given: Sequence[str]) -> int:
    """Run the fuzzer; return the exit status, 0 if nothing failed."""
    options = arguments_of(given)
    try:
        names = checked_names(options.operators)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    device, where = kernels_run_on()
    plan = Plan(chosen_seed(options.seed), names, options.first, options.cases, device, options.members)
    if options.case is not None:
        return report_case(run_case(plan, options.case))
    seconds = 60.0 if options.seconds is None and options.cases is None else options.seconds
    processes = options.processes or processes_that_fit(device)
    limit = "no limit" if seconds is None else f"{seconds:.0f} s"
    print(f"seed {plan.seed}: {processes} processes on {where}, {limit}", flush=True)
    with contextlib.ExitStack() as stack:
        output = None if options.output is None else stack.enter_context(options.output.open("a"))
        summary = run(
            plan,
            seconds=seconds,
            processes=processes,
            say=lambda text: print(text, flush=True),
            output=output,
        )
    return report_summary(summary)


def report_case(record: Record) -> int:
    """Print the outcome of a single case; return the exit status."""
    is_wrong = record.outcome == "failed"
    print(failure_text(record) if is_wrong else f"{record.operator}, case {record.number}: {record.outcome}")
    return int(is_wrong)


def report_summary(summary: Summary) -> int:
    """Print the counts; return the exit status."""
    print(summary.text(), flush=True)
    return int(bool(summary.failures) or not summary.records)


def handle_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the run so that its counts are printed; ignore further signals meanwhile."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle_interrupt)
    sys.exit(main(sys.argv[1:]))
