"""The workers in which kernels are compiled: they never interpret.

Compiling needs no device. A crash of the compiler (it aborts on some inputs) ends the worker and not the
caller; the next call starts another.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from queue import LifoQueue
from typing import Any

from loky import cpu_count

from workbench.runtime.worker import NO_GPU, Worker

# Each one takes some 350 MB of memory, whose end comes before that of the cores on a large machine.
MOST_WORKERS = 32


class Pool:
    """Workers, each of which has one call at a time.

    Args:
        workers: a process is started for one when it has its first call.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._idle: LifoQueue[Worker] = LifoQueue()
        for worker in reversed(workers):
            self._idle.put(worker)

    @property
    def size(self) -> int:
        """How many calls run at a time."""
        return len(self._workers)

    def call(self, function: Any, *args: Any, timeout: float) -> Any:
        """As `Worker.call`, in a worker that was warm last; waits where all are busy."""
        worker = self._idle.get()
        try:
            return worker.call(function, *args, timeout=timeout)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End all processes, and the calls in them; the next call starts another."""
        for worker in self._workers:
            worker.stop()


def _worker() -> Worker:
    return Worker(
        {"TRITON_INTERPRET": "0", **NO_GPU},
        advice="Look for loops that are unrolled (tl.static_range) many times, or use smaller tiles.",
    )


worker = _worker()

# One to each core that this process may use; who calls from one thread has `worker`.
pool = Pool([worker, *(_worker() for _ in range(min(cpu_count(), MOST_WORKERS) - 1))])


def warm_up(module: str) -> None:
    """Start a worker in the background, so that the first compilation does not wait for it.

    Args:
        module: what it imports then, by name.
    """
    worker.submit(_imported, module)


def _imported(module: str) -> None:
    """In the worker."""
    importlib.import_module(module)
