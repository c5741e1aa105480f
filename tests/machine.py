"""The machine that tests run on: exclusive use of it, and its present slowness."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Seconds of `_yardstick` on the machine on which time limits were set: two idle cores of an AMD EPYC.
YARDSTICK_SECONDS = 0.013


def _yardstick() -> float:
    """Return the seconds of this process for a fixed job."""
    start = time.process_time()
    sum(len(str(number)) for number in range(200_000))
    return time.process_time() - start


class Machine:
    """The machine, which pytest's processes share, or which one of them has to itself.

    A process that asks for exclusive use goes first: others take their turn before they share it again.
    """

    def __init__(self, folder: Path) -> None:
        self._turn = (folder / "turn.lock").open("w")
        self._use = (folder / "use.lock").open("w")

    def close(self) -> None:
        """Close the files that are locked."""
        self._turn.close()
        self._use.close()

    @contextmanager
    def _taken(self, how: int) -> Iterator[None]:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        fcntl.flock(self._use, how)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._use, fcntl.LOCK_UN)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside other processes' tests."""
        with self._taken(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until the running tests have ended, and run before the next ones: for timed tests."""
        fcntl.flock(self._use, fcntl.LOCK_UN)
        with self._taken(fcntl.LOCK_EX):
            yield

    @staticmethod
    def slowness() -> float:
        """Return how many times as long as on the reference machine a job takes now, at least 1.

        A core that others share, or a process that has run for half an hour, is slower for all its work.
        """
        return max(1.0, min(_yardstick() for _ in range(3)) / YARDSTICK_SECONDS)

    def seconds_of(
        self, actions: Sequence[Callable[[], object]], clock: Callable[[], float] = time.process_time
    ) -> list[float]:
        """Return the seconds of each action, as counted on the machine on which limits were set.

        Args:
            actions: the functions to time, one by one, alone on the machine.
            clock: `time.process_time`, or `time.perf_counter` if another process takes part.
        """
        times = []
        with self.alone():
            slowness = self.slowness()
            for action in actions:
                start = clock()
                action()
                times.append(clock() - start)
            slowness = max(slowness, self.slowness())
        return [each / slowness for each in times]

    def least_seconds(
        self, actions: Sequence[Callable[[], object]], clock: Callable[[], float] = time.process_time
    ) -> float:
        """Return the seconds of the quickest action; see `seconds_of`."""
        return min(self.seconds_of(actions, clock))
