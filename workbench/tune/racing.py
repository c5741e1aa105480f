"""The race: short rounds for all candidates, longer ones for those that are still among the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tqdm.auto import tqdm

from workbench.bench.timing import Measurement

Runner = TypeVar("Runner")
Clock = Callable[[Mapping[str, Runner], float], Mapping[str, Measurement]]

# Milliseconds of a round, shared by those that are in it; and the least and the most that each one has.
ROUND_MS, LEAST_MS, MOST_MS = 400.0, 5.0, 200.0

# Out is who is slower than the leader by more than this even in its fastest fifth: no noise, and no matter of
# a better clock later on.
MARGIN = 0.1


@dataclass(frozen=True)
class Lap:
    """The last round that a candidate was in.

    Attributes:
        round: its number, from 1.
        measurement: of it.
        reason: why the candidate went no further, in words; empty for the winner.
    """

    round: int
    measurement: Measurement
    reason: str


def race(runners: Mapping[str, Runner], clock: Clock[Runner], *, progress: bool = True) -> dict[str, Lap]:
    """Time all in turns, drop the slower half and who is far behind, and go on with those left, for longer.

    Successive halving: each round takes as long, so that most time is spent on those that are hard to tell
    apart (Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization,
    AISTATS 2016, section 3). The last two are timed for `MOST_MS` each.

    Args:
        runners: by name, whatever the clock takes.
        clock: times all of them together, each for so many milliseconds.
        progress: show a progress bar.

    Returns:
        for each, its last round; the reason of one alone, the winner, is empty.
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
    """Why a candidate goes no further, in words; empty where it does."""
    ratio = own.median_ms / leader.median_ms
    if own.p20_ms > (1 + MARGIN) * leader.median_ms:
        return f"{ratio:.2f} times the leader's time"
    return f"in the slower half, {ratio:.3f} times the leader's time" if is_slower_half else ""
