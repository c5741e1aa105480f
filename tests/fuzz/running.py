"""Runs of the fuzz: processes draw and judge cases within a time limit, with a line of JSON for each case.

A process has one group of cases at a time. These cases share kernels, which the process compiles.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

from tests.fuzz.cases import Case
from tests.fuzz.draws import INTERPRETED, ON_GPU, Limits

# A case that takes longer is stopped and counts as failed.
CASE_SECONDS = 180.0

# A process that holds more memory is replaced between two groups.
PROCESS_BYTES = 6 * 2**30

# GPU memory of a process: its context, tensors, and workspaces of libraries.
GPU_BYTES_EACH = 3 * 2**30

# How long shrinking a case may take.
SHRINK_SECONDS = 30.0

# How many processes may end by themselves before the run gives up.
MOST_DEATHS = 50


@dataclass(frozen=True)
class Plan:
    """The cases of a run.

    Attributes:
        seed: the seed of all cases.
        names: the operators; () for all.
        first: the number of the first case.
        cases: the number of cases; None for as many as the time allows.
        device: "cuda" or "cpu".
        members: the number of cases of a group; None for the number in the device's `Limits`.
        planted: a function in place of an operator's, as "operator=module:function"; for tests.
    """

    seed: int
    names: tuple[str, ...] = ()
    first: int = 0
    cases: int | None = None
    device: str = "cpu"
    members: int | None = None
    planted: str = ""

    @property
    def limits(self) -> Limits:
        """The limits of a problem's size on this device."""
        limits = ON_GPU if self.device == "cuda" else INTERPRETED
        return limits if self.members is None else replace(limits, members=self.members)

    def groups(self) -> Iterable[range]:
        """Yield the numbers of the cases of each group."""
        last = sys.maxsize if self.cases is None else self.first + self.cases
        start, members = self.first, self.limits.members
        while start < last:
            end = min(start - start % members + members, last)
            yield range(start, end)
            start = end


@dataclass
class Record:
    """Outcome of one case, a line of JSON.

    Attributes:
        seed, number, operator: the seed of the run, the number of the case and its operator.
        outcome: "passed", "failed", or "not judged" if torch's own function ended the process.
        seconds: the time that the case took.
        calls: the number of calls of the case.
        compared, refused_by_both, listed, refusals, lenient: see `judging.Verdict`.
        findings: kind and words of each failure.
        text: lines of Python of the smallest failing case; empty if the case passed.
        command: the command that makes the case alone; empty if the case passed.
    """

    seed: int
    number: int
    operator: str
    outcome: str
    seconds: float
    calls: int
    compared: int = 0
    refused_by_both: int = 0
    findings: list[tuple[str, str]] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    lenient: list[str] = field(default_factory=list)
    text: str = ""
    command: str = ""


@dataclass
class Summary:
    """Records and counts of a run.

    Attributes:
        seconds: the time of the run.
        cut: the number of cases that were not finished in time.
        records: the records of the finished cases.
    """

    seconds: float = 0.0
    cut: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def failures(self) -> list[Record]:
        """The records of cases that failed."""
        return [record for record in self.records if record.outcome == "failed"]

    def text(self) -> str:
        """Return tables of counts: cases by operator, listed differences, refusals by `ops` and by torch."""
        lines = [
            f"{'operator':<32}{'cases':>7}{'calls':>7}{'compared':>9}{'neither':>8}{'failed':>7}{'s':>8}"
        ]
        for name in sorted({record.operator for record in self.records}):
            of = [record for record in self.records if record.operator == name]
            lines.append(
                f"{name:<32}{len(of):>7}{sum(r.calls for r in of):>7}{sum(r.compared for r in of):>9}"
                f"{sum(r.refused_by_both for r in of):>8}{sum(r.outcome == 'failed' for r in of):>7}"
                f"{sum(r.seconds for r in of):>8.1f}"
            )
        for title, reasons in (
            ("other than torch on purpose", Counter(r for record in self.records for r in record.listed)),
            (
                "refused by ops, accepted by torch",
                Counter(r for record in self.records for r in record.refusals),
            ),
            (
                "refused by torch, computed by ops",
                Counter(r for record in self.records for r in record.lenient),
            ),
        ):
            lines.append(f"{title}: {sum(reasons.values())} calls")
            lines += [f"  {count:>6}  {reason}" for reason, count in reasons.most_common()]
        calls = sum(record.calls for record in self.records)
        lines.append(
            f"{len(self.records)} cases, {calls} calls in {self.seconds:.0f} s; {len(self.failures)} failed; "
            f"{self.cut} not finished in time"
        )
        return "\n".join(lines)


def processes_that_fit(device: str) -> int:
    """Return the number of processes to run: one for each core, but no more than fit in the GPUs' memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device != "cuda":
        return cores
    from workbench.device import free_memory_bytes

    return max(min(cores, len(gpus()) * (free_memory_bytes() // GPU_BYTES_EACH)), 1)


def gpus() -> list[str]:
    """Return the GPUs that this process sees, as entries of CUDA_VISIBLE_DEVICES."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]


def run_case(
    plan: Plan,
    number: int,
    *,
    shrunk: set[tuple[str, str]] | None = None,
    torch_begins: Callable[[], None] = lambda: None,
) -> Record:
    """Draw one case, judge it in this process, and shrink it if it fails.

    Args:
        shrunk: (operator, kind of finding) pairs that are not shrunk again; the pair of this case is added.
            None to shrink in any case.
        torch_begins: see :func:`judging.judge`.
    """
    from tests.fuzz.judging import judge
    from tests.fuzz.operators import drawn
    from tests.fuzz.shrinking import shrink

    case = drawn(plan.seed, number, plan.limits, plan.names)
    ours = _planted(plan, case.operator)
    judged = partial(judge, device=plan.device, ours=ours)
    start = time.monotonic()
    verdict = judged(case, torch_begins=torch_begins)
    record = Record(
        plan.seed, number, case.operator, "passed", 0.0, len(case.calls), verdict.compared,
        verdict.refused_by_both, listed=verdict.listed, refusals=verdict.refusals, lenient=verdict.lenient,
    )  # fmt: skip
    if verdict.findings:
        kind, kinds = verdict.findings[0].kind, {finding.kind for finding in verdict.findings}

        def fails(candidate: Case) -> bool:
            # A smaller case with a failure of another kind, such as a missing argument, would mislead.
            found = {finding.kind for finding in judged(candidate).findings}
            return kind in found and found <= kinds

        shrunk = set() if shrunk is None else shrunk
        smallest, is_known = case, (case.operator, kind) in shrunk
        shrunk.add((case.operator, kind))
        again = {finding.kind for finding in judged(case).findings} if is_healthy(plan.device) else set()
        kinds |= again
        if again and not is_known:
            smallest = shrink(case, fails, seconds=SHRINK_SECONDS)
            verdict = judged(smallest)
        record.outcome, record.command = "failed", command_of(plan, number)
        record.findings = [(finding.kind, finding.words) for finding in verdict.findings]
        record.text = smallest.text()
        if not again:
            record.findings.append(("fuzz", "the case alone passes when it is made again"))
    record.seconds = time.monotonic() - start
    return record


def command_of(plan: Plan, number: int) -> str:
    """Return the command that makes a case alone."""
    names = f" --operators {' '.join(plan.names)}" if plan.names else ""
    members = "" if plan.members is None else f" --members {plan.members}"
    return f"python -m tools.fuzz --seed {plan.seed} --case {number}{members}{names}"


def _planted(plan: Plan, operator: str) -> Callable[..., Any] | None:
    if not plan.planted:
        return None
    import importlib

    name, _, place = plan.planted.partition("=")
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function) if name == operator else None


# Worker processes.


def _work(connection: Connection, plan: Plan, gpu: str) -> None:
    """Judge the groups that come over the connection and report each case, in a worker process.

    Return on None instead of a group, if a failure broke the GPU, or if the process holds too much memory.

    Args:
        gpu: the entry of CUDA_VISIBLE_DEVICES for this process; "" without a GPU.
    """
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # torch reads it when it first needs a GPU
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal: the parent process ends this one
    torch.set_num_threads(1)
    if plan.device == "cuda":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(GPU_BYTES_EACH / total, 1.0))
    shrunk: set[tuple[str, str]] = set()  # operators and kinds of failures that were shrunk once
    while (numbers := connection.recv()) is not None:
        for number in numbers:
            connection.send(("begin", number))
            record = run_case(
                plan, number, shrunk=shrunk, torch_begins=lambda: connection.send(("torch begins", None))
            )
            connection.send(("end", record))
            if record.outcome == "failed" and not is_healthy(plan.device):
                return
        if plan.device == "cuda":
            torch.cuda.empty_cache()
        is_full = _held_bytes() > PROCESS_BYTES
        connection.send(("full" if is_full else "idle", None))
        if is_full:
            return


def is_healthy(device: str) -> bool:
    """Return whether the GPU still works in this process; after an illegal access it does not."""
    import torch

    try:
        return device != "cuda" or torch.ones(1, device=device).item() == 1
    except RuntimeError:
        return False


def _held_bytes() -> int:
    """Return the bytes that this process holds; 0 if the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


class _Worker:
    """Worker process, as its parent process sees it: the connection, the group and the present case."""

    def __init__(self, plan: Plan, gpu: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, plan, gpu), daemon=True)
        self.process.start()
        theirs.close()
        self.left: range = range(0)
        self.number: int | None = None
        self.is_torchs_turn = False
        self.since = time.monotonic()
        self.is_idle = True

    def give(self, numbers: range) -> None:
        self.left, self.is_idle = numbers, False
        self.connection.send(numbers)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(
    plan: Plan,
    *,
    seconds: float | None = None,
    processes: int = 1,
    say: Callable[[str], None] = print,
    output: TextIO | None = None,
) -> Summary:
    """Judge cases until the time or the cases run out, or until an interrupt.

    Args:
        seconds: the time after which every process is ended; None for no limit.
        processes: the number of processes.
        say: a function that is called with the text of each failure.
        output: a file to which a line of JSON is written for each case; None for no file.

    Raises:
        RuntimeError: more than `MOST_DEATHS` processes ended during a case, or one ended outside any case.
    """
    summary, begin = Summary(), time.monotonic()
    deadline = None if seconds is None else begin + seconds
    groups, again = iter(plan.groups()), list[range]()
    places = itertools.cycle(gpus() if plan.device == "cuda" else [""])
    workers: list[_Worker] = []
    deaths = 0

    def keep(record: Record) -> None:
        summary.records.append(record)
        if output is not None:
            output.write(json.dumps(vars(record)) + "\n")
            output.flush()
        if record.outcome == "failed":
            say(failure_text(record))

    def next_group() -> range | None:
        return again.pop() if again else next(groups, None)

    try:
        while deadline is None or time.monotonic() < deadline:
            for worker in [each for each in workers if each.is_idle]:
                if (group := next_group()) is not None:
                    worker.give(group)
                else:
                    workers.remove(worker)
                    worker.end()
            while len(workers) < processes and (group := next_group()) is not None:
                workers.append(_Worker(plan, next(places)))
                workers[-1].give(group)
            if not workers:
                break
            left = 1.0 if deadline is None else max(min(deadline - time.monotonic(), 1.0), 0.0)
            ready = wait([worker.connection for worker in workers], timeout=left)
            for worker in list(workers):
                is_gone = False
                if worker.connection in ready:
                    is_gone = not _heard(worker, keep)
                elif worker.number is not None and time.monotonic() - worker.since > CASE_SECONDS:
                    is_gone = True
                if not is_gone:
                    continue
                workers.remove(worker)
                worker.end()
                if worker.number is not None:
                    deaths += 1
                    keep(_lost(plan, worker))
                if worker.left:
                    again.append(worker.left)
                if deaths > MOST_DEATHS or (worker.number is None and worker.process.exitcode not in (0, -9)):
                    raise RuntimeError(
                        f"processes of the fuzz end by themselves: {deaths} during a case, the last one with "
                        f"status {worker.process.exitcode}. Run the commands of the failed cases alone."
                    )
    except KeyboardInterrupt:  # cases judged so far are counted
        pass
    finally:
        summary.cut = sum(worker.number is not None for worker in workers)
        for worker in workers:  # all at once, because each takes a while to release its GPU
            worker.process.kill()
        for worker in workers:
            worker.end()
        summary.seconds = time.monotonic() - begin
    return summary


def _heard(worker: _Worker, keep: Callable[[Record], None]) -> bool:
    """Take one message of a worker process, and return whether the process goes on."""
    try:
        what, value = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        return False
    if what == "begin":
        worker.number, worker.since, worker.is_torchs_turn = value, time.monotonic(), False
        worker.left = worker.left[1:]
    elif what == "torch begins":
        worker.is_torchs_turn = True
    elif what == "end":
        worker.number = None
        keep(value)
    elif what == "idle":
        worker.is_idle = True
    return bool(what != "full")


def _lost(plan: Plan, worker: _Worker) -> Record:
    """Return the record of the case that a worker was judging when it ended or exceeded `CASE_SECONDS`."""
    from tests.fuzz.operators import drawn

    number, status = worker.number, worker.process.exitcode
    assert number is not None
    took = time.monotonic() - worker.since
    kind = "hang" if took > CASE_SECONDS else "crash"
    words = f"took over {CASE_SECONDS:.0f} s" if kind == "hang" else f"the process ended with status {status}"
    case = drawn(plan.seed, number, plan.limits, plan.names)
    if kind == "crash" and worker.is_torchs_turn:
        return Record(
            plan.seed, number, case.operator, "not judged", took, len(case.calls),
            lenient=[f"{case.operator}: torch ended the process, with status {status}"],
            text=case.text(), command=command_of(plan, number),
        )  # fmt: skip
    return Record(
        plan.seed, number, case.operator, "failed", took, len(case.calls), findings=[(kind, words)],
        text=case.text(), command=command_of(plan, number),
    )  # fmt: skip


def failure_text(record: Record) -> str:
    """Return the text of a failure: findings, command and smallest case."""
    lines = [f"FAILED {record.operator}: {record.command}"]
    lines += [f"  {kind}: {words}" for kind, words in record.findings]
    lines += [f"    {line}" for line in record.text.splitlines()]
    return "\n".join(lines)


def chosen_seed(asked: int | None) -> int:
    """Return the seed that was asked for; for None a new seed each time."""
    return int.from_bytes(os.urandom(3), "big") if asked is None else asked


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, sorted and without repetition; raise ValueError for one that is not drawn."""
    from tests.fuzz.operators import OPERATORS

    if unknown := sorted(set(names) - OPERATORS.keys()):
        known = ", ".join(sorted(OPERATORS))
        raise ValueError(f"operators not drawn: {', '.join(unknown)}. Give some of: {known}")
    return tuple(sorted(set(names)))
