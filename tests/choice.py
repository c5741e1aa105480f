"""Choose the cases that `make test` runs, by the times that tests took before."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMES = Path(__file__).with_name("times.txt")

# Cases of one test are left out when, together, they take longer than this many seconds.
SECONDS_A_TEST = 0.5

# A test whose average case takes longer than this many seconds is left out, unless it is marked `daily`.
SECONDS_A_CASE = 1.0


@dataclass(frozen=True)
class Took:
    """The recorded time of one test.

    Attributes:
        cases: the number of its cases.
        seconds: the time of all of them, on the machine on which limits were set (`tests.machine.Machine`).
    """

    cases: int
    seconds: float

    @property
    def mean(self) -> float:
        """Seconds of an average case."""
        return self.seconds / self.cases


def read_times(file: Path = TIMES) -> dict[str, Took]:
    """Return the recorded time of each test that takes long, by `path::name`.

    `tools/test_times.py` writes the file.
    """
    times = {}
    for line in file.read_text().splitlines():
        seconds, cases, name = line.split()
        times[name] = Took(int(cases), float(seconds))
    return times


def most_cases(took: Took, at_least: int = 0) -> int:
    """Return how many cases of a test `make test` runs, 0 if the test is left out.

    Args:
        took: its recorded time.
        at_least: the number of cases that run however long they take.
    """
    if took.mean > SECONDS_A_CASE:
        return at_least
    return max(int(SECONDS_A_TEST / took.mean), 1, at_least)


def chosen_cases(cases: Sequence[Mapping[str, Any]], most: int) -> list[int]:
    """Return the positions of `most` cases, in order.

    A few cases first show every value of every parameter; further ones are spread evenly. If `most` is too
    few for that, they are spread evenly over those few cases.

    Args:
        cases: the values of each case's parameters, by the parameters' names.
        most: how many to choose.
    """
    if most >= len(cases):
        return list(range(len(cases)))
    left = {
        position: {(name, _key(value)) for name, value in case.items()} for position, case in enumerate(cases)
    }
    seen: set[tuple[str, Hashable]] = set()
    cover: list[int] = []
    while left:
        best = max(left, key=lambda position: len(left[position] - seen))
        if not left[best] - seen:
            break
        cover.append(best)
        seen |= left.pop(best)
    if len(cover) >= most:
        return sorted(_spread(cover, most))
    return sorted(cover + _spread(list(left), most - len(cover)))


def _spread(positions: Sequence[int], most: int) -> list[int]:
    return [positions[place * len(positions) // most] for place in range(most)]


def _key(value: Hashable) -> Hashable:
    """Return a hashable key of a value: the value itself, or its id if it has no hash."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def seconds_of_files(times: Mapping[str, Took], names: Iterable[str]) -> dict[str, float]:
    """Return the recorded seconds of each file's chosen tests, by the file's path.

    Args:
        times: the recorded time of each test, by `path::name`.
        names: `path::name` of the test of each case that runs; a test occurs once for each of its cases.
    """
    seconds: dict[str, float] = {}
    for name in names:
        path = name.partition("::")[0]
        seconds[path] = seconds.get(path, 0.0) + (times[name].mean if name in times else 0.0)
    return seconds
