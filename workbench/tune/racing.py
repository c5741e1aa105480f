"""The race: short rounds for all candidates, and longer rounds for the fastest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tqdm.auto import tqdm

from workbench.bench.timing import Measurement

Runner = TypeVar("Runner")
Clock = Callable[[Mapping[str, Runner], float], Mapping[str, Measurement]]

# Milliseconds of a round, divided among its candidates; and the minimum and maximum for each candidate.
ROUND_MS, LEAST_MS, MOST_MS = 400.0, 5.0, 200.0

# A candidate is out if even its 20th percentile is slower than the leader's median by more than this share:
# this is not noise, and longer measurements would not change it.
MARGIN = 0.1


@dataclass(frozen=True)
class Lap:
    """The last round that a candidate was in.

    Attributes:
        round: the round's number, starting at 1.
        measurement: the measurement in this round.
        reason: why the candidate was dropped; empty for the winner.
    """

    round: int
    measurement: Measurement
    reason: str


def race(runners: Mapping[str, Runner], clock: Clock[Runner], *, progress: bool = True) -> dict[str, Lap]:
    """Find the fastest runner by successive halving.

    Each round times the remaining runners in turns and drops the slower half and all that are far behind. All
    rounds take about the same time, so most of it is spent on runners that are hard to tell apart (Jamieson
    and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016,
    section 3). The last two are timed for `MOST_MS` each.

    Args:
        runners: the arguments of the clock, by name.
        clock: times several runners together, each for the given number of milliseconds.
        progress: show a progress bar.

    Returns:
        The last round of each runner. Only the winner's has an empty reason.
    """
    left, laps, number = dict(runners), dict[str, Lap](), 0
    with tqdm(
        total=len(left).bit_length(), desc="racing", unit="round", disable=not (progress and left)
    ) as bar:
        while left:
            number += 1
            measured = clock(left, min(max(ROUND_MS / len(left), LEAST_MS), MOST_MS))
            order = sorted(left, key=lambda name: measured[name].median_ms)
            leader = measured[order[0]]
            for place, name in enumerate(order):
                is_slower_half = place >= (len(order) + 1) // 2
                laps[name] = Lap(number, measured[name], _behind(measured[name], leader, is_slower_half))
            left = {name: left[name] for name in order if not laps[name].reason} if len(order) > 2 else {}
            bar.set_postfix_str(f"{len(left) or 1} left, {leader.median_ms:.4g} ms")
            bar.update()
    return laps


def _behind(own: Measurement, leader: Measurement, is_slower_half: bool) -> str:
    """Say why a candidate is dropped; empty if it stays in the race."""
    ratio = own.median_ms / leader.median_ms
    if own.p20_ms > (1 + MARGIN) * leader.median_ms:
        return f"{ratio:.2f} times the leader's time"
    return f"in the slower half, {ratio:.3f} times the leader's time" if is_slower_half else ""
