"""The machine that tests run on: who has it to itself, and how slow it is now."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What `_yardstick` takes on the machine on which limits of seconds were set: two idle cores of an AMD EPYC.
YARDSTICK_SECONDS = 0.013


def _yardstick() -> float:
    """Seconds of this process for a job that never changes."""
    start = time.process_time()
    sum(len(str(number)) for number in range(200_000))
    return time.process_time() - start


class Machine:
    """The machine, which pytest's processes share, or one of them has to itself.

    Who asks for it alone goes first: a process takes its turn before it shares the machine again.
    """

    def __init__(self, folder: Path) -> None:
        self._turn = (folder / "turn.lock").open("w")
        self._use = (folder / "use.lock").open("w")

    def close(self) -> None:
        """Close the files that it locks."""
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
        """Beside other processes' tests."""
        with self._taken(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """When the tests that run now have ended, and before the next: for what is timed."""
        fcntl.flock(self._use, fcntl.LOCK_UN)
        with self._taken(fcntl.LOCK_EX):
            yield

    @staticmethod
    def slowness() -> float:
        """How many times as long as where limits were set this machine takes now; 1 at least.

        A core that others share, or a process that has run for half an hour, takes longer for all it does.
        """
        return max(1.0, min(_yardstick() for _ in range(3)) / YARDSTICK_SECONDS)

    def seconds_of(
        self, actions: Sequence[Callable[[], object]], clock: Callable[[], float] = time.process_time
    ) -> list[float]:
        """Return the seconds of each action, counted as on the machine on which limits were set.

        Args:
            actions: what is timed, one by one, alone on the machine.
            clock: of this process, or `time.perf_counter`, where another one has a part in it.
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
