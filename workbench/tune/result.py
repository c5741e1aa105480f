"""The results of tuning: the fate of each candidate, as plain data and as a table."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from workbench.bench.timing import Measurement
from workbench.lens.compile import CompiledStep

# The table sorts its rows in this order.
Fate = Literal["won", "slower", "verified", "left", "wrong", "failed", "pruned", "refused"]
_FATES = get_args(Fate)


@dataclass(frozen=True)
class Resources:
    """The resources that a launch's kernels need on a target: for several kernels, the maximum of each.

    Attributes:
        registers: 32-bit registers of a thread.
        spills: spilled registers, see `lens.CompiledStep`.
        serialized_wgmma: True if the assembler serialized the wgmma instructions of a kernel.
        shared_bytes: shared memory of a block.
        blocks: resident blocks on an SM; for several kernels, the minimum.
        limited_by: the resources that limit `blocks`, see `lens.targets.Occupancy`.
    """

    registers: int
    spills: int
    serialized_wgmma: bool
    shared_bytes: int
    blocks: int
    limited_by: tuple[str, ...]

    @classmethod
    def of(cls, steps: Sequence[CompiledStep]) -> Resources:
        """Combine the resources of the steps of a launch; there must be at least one step."""
        fewest = min((step.occupancy for step in steps), key=lambda fit: fit.blocks)
        return cls(
            registers=max(step.registers for step in steps),
            spills=max(step.spills for step in steps),
            serialized_wgmma=any(step.serialized_wgmma for step in steps),
            shared_bytes=max(step.shared_bytes for step in steps),
            blocks=fewest.blocks,
            limited_by=fewest.limited_by,
        )


@dataclass(frozen=True)
class Trial:
    """The outcome for one candidate.

    Attributes:
        candidate: its keywords.
        fate: "refused": the invoker raised an error. "pruned": compiling showed that it cannot be good, or it
            makes the same launch as another. "left": neither refused nor pruned, and not timed. "failed": its
            run raised an error. "wrong": its result is wrong. "verified": its result is right, and it was
            not timed. "slower": it was timed and lost. "won": it was the fastest.
        reason: the reason for the fate; empty for "verified", "left" and "won".
        resources: the resources of its kernels; None if they were not compiled for a target.
        round: the last round of its race, starting at 1; None if it was not in a race.
        measurement: the measurement in that round.
    """

    candidate: Mapping[str, Any]
    fate: Fate
    reason: str = ""
    resources: Resources | None = None
    round: int | None = None
    measurement: Measurement | None = None


@dataclass(frozen=True)
class Trials:
    """The trials of all candidates, best first, shown as a table in a notebook and as text.

    Attributes:
        trials: one trial for each candidate.
        about: the device or target, as the end of "12 candidates ...": "for sm_90".
        notes: further notes for the user, such as the file in which the winner is cached.
    """

    trials: tuple[Trial, ...]
    about: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", tuple(sorted(self.trials, key=_place)))

    @property
    def left(self) -> list[Mapping[str, Any]]:
        """The candidates that were not ruled out, including the winner."""
        return [
            trial.candidate for trial in self.trials if trial.fate in ("left", "verified", "slower", "won")
        ]

    @property
    def summary(self) -> str:
        """The number of candidates with each fate: "12 candidates for sm_90: 4 left, 8 pruned"."""
        counts = Counter(trial.fate for trial in self.trials)
        counted = ", ".join(f"{counts[fate]} {fate}" for fate in _FATES if counts[fate])
        plural = "" if len(self.trials) == 1 else "s"
        return f"{len(self.trials)} candidate{plural} {self.about}: {counted or 'none'}"

    def table(self) -> list[list[str]]:
        """Return the table's rows, the heading first: a column for each keyword, then the results."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.candidate))
        columns = [name for name in _COLUMNS if any(_COLUMNS[name](trial) for trial in self.trials)]
        rows = [
            [
                *(str(trial.candidate.get(name, "")) for name in names),
                *(_COLUMNS[name](trial) for name in columns),
            ]
            for trial in self.trials
        ]
        return [[*names, *columns], *rows]

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )
        return "\n".join([*rows, self.summary, *self.notes])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary})"

    def _repr_html_(self) -> str:
        heading, *rows = [[html.escape(cell) for cell in row] for row in self.table()]
        head = "".join(f'<th scope="col">{cell}</th>' for cell in heading)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        caption = "<br>".join(map(html.escape, (self.summary, *self.notes)))
        return (
            f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


@dataclass(frozen=True, repr=False)
class Tuning(Trials):
    """The result of a tuning, which has a winner.

    Attributes:
        is_kept: True if the winner comes from the cache; it is then the only trial, and nothing was timed.
    """

    is_kept: bool = False

    @property
    def winner(self) -> Trial:
        """The trial of the fastest candidate, with its measurement."""
        return self.trials[0]


def in_words(candidate: Mapping[str, Any]) -> str:
    """Format a candidate's keywords: "tile=(64, 64, 32), num_warps=4"."""
    return ", ".join(f"{name}={value}" for name, value in candidate.items()) or "no keywords"


def _place(trial: Trial) -> tuple[int, int, float]:
    """Return the sort key of a trial: by fate, then later rounds first, then faster first."""
    median = trial.measurement.median_ms if trial.measurement else 0.0
    return _FATES.index(trial.fate), -(trial.round or 0), median


def _resource(name: str) -> Callable[[Trial], str]:
    return lambda trial: "" if trial.resources is None else str(getattr(trial.resources, name))


def _time(show: Callable[[Measurement], str]) -> Callable[[Trial], str]:
    return lambda trial: "" if trial.measurement is None else show(trial.measurement)


def _rate(measurement: Measurement) -> str:
    return "" if measurement.mode == "interpreter" or not measurement.tflops else f"{measurement.tflops:.3g}"


def _bandwidth(measurement: Measurement) -> str:
    return "" if measurement.mode == "interpreter" or not measurement.bytes else f"{measurement.gb_per_s:.4g}"


_COLUMNS: dict[str, Callable[[Trial], str]] = {
    "registers": _resource("registers"),
    "spills": _resource("spills"),
    "wgmma serialized": lambda trial: "yes" if trial.resources and trial.resources.serialized_wgmma else "",
    "shared bytes": _resource("shared_bytes"),
    "blocks per SM": _resource("blocks"),
    "fate": lambda trial: trial.fate,
    "round": lambda trial: str(trial.round or ""),
    "ms": _time(lambda measured: f"{measured.median_ms:.4g}"),
    "p20 to p80": _time(lambda measured: f"{measured.p20_ms:.4g} to {measured.p80_ms:.4g}"),
    "TFLOP/s": _time(_rate),
    "GB/s": _time(_bandwidth),
    "mode": _time(lambda m: "interpreter, no measurement" if m.mode == "interpreter" else m.mode),
    "reason": lambda trial: trial.reason,
}
