"""Worker processes that compile kernels and never interpret them.

Compiling needs no GPU. If the compiler crashes (it aborts on some inputs), only the worker ends, not the
caller; the next call starts a new worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from queue import LifoQueue
from typing import Any

from loky import cpu_count

from workbench.runtime.worker import NO_GPU, Worker

# Each worker takes about 350 MB: a large machine runs out of memory before it runs out of cores.
MOST_WORKERS = 32


class Pool:
    """A pool of workers; each worker runs one call at a time.

    Args:
        workers: the workers; each starts its process at its first call.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._idle: LifoQueue[Worker] = LifoQueue()
        for worker in reversed(workers):
            self._idle.put(worker)

    @property
    def size(self) -> int:
        """The number of calls that can run at a time."""
        return len(self._workers)

    def call(self, function: Any, *args: Any, timeout: float) -> Any:
        """Call :meth:`Worker.call` of the most recently used idle worker; wait if all are busy."""
        worker = self._idle.get()
        try:
            return worker.call(function, *args, timeout=timeout)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End all processes and their calls; the next call starts a new process."""
        for worker in self._workers:
            worker.stop()


def _worker() -> Worker:
    return Worker(
        {"TRITON_INTERPRET": "0", **NO_GPU},
        advice="Look for loops that are unrolled (tl.static_range) many times, or use smaller tiles.",
    )


worker = _worker()

# One worker for each core that this process may use, at most `MOST_WORKERS`. Callers with a single thread use
# `worker`.
pool = Pool([worker, *(_worker() for _ in range(min(cpu_count(), MOST_WORKERS) - 1))])


def warm_up(module: str) -> None:
    """Start a worker in the background, so that the first compilation does not wait for it.

    Args:
        module: the name of a module for the worker to import.
    """
    worker.submit(_imported, module)


def _imported(module: str) -> None:
    """Import a module (in the worker)."""
    importlib.import_module(module)
