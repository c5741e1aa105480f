"""Worker processes: warm, gone with their parent, and started anew after a crash."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from workbench.errors import InvalidArgumentError, WorkerError, check_type

START_SECONDS = 120.0

# No worker sees a GPU: to interpret and to compile needs none, and one that looked would take its memory.
NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


# loky replaces, with a warning, a process that has grown by more: by default 300 MB, which is what a compiler
# keeps so that the next answer is quick.
MOST_GROWTH_BYTES = 4 << 30


class Worker:
    """One process that stays warm, ends with its parent, and is started anew after a crash.

    Args:
        environment: variables that it is started with.
        advice: what to do when a call takes too long, a sentence.
    """

    def __init__(self, environment: dict[str, str], advice: str) -> None:
        self._environment, self._advice = environment, advice
        self._lock = threading.RLock()
        self._executor: ProcessPoolExecutor | None = None

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        """Queue a call; it starts the process if there is none."""
        with self._lock:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    max_workers=1,
                    env={"LOKY_MAX_MEMORY_LEAK_SIZE": str(MOST_GROWTH_BYTES), **self._environment},
                    initializer=end_with_parent,
                    initargs=(os.getpid(),),
                )
                self._started = self._executor.submit(os.getpid)
            future: Future[Any] = self._executor.submit(function, *args)
            return future

    def call(self, function: Any, *args: Any, timeout: float) -> Any:
        """The result of `function(*args)` in the worker; the time begins when the process has started.

        Threads take turns, so that one whose time is over stops no other's call.

        Raises:
            what the function raises; WorkerError where the process dies or the time is over;
            InvalidArgumentError where `timeout` is no time.
        """
        _check_timeout(timeout)
        with self._lock:
            try:
                future = self.submit(function, *args)
                self._started.result(START_SECONDS)
                return future.result(timeout)
            except KeyboardInterrupt:
                self.stop()
                raise
            except FutureTimeoutError:
                self.stop()
                raise WorkerError(
                    f"The kernel did not finish within {timeout:g} s in the worker process and was stopped. "
                    f"{self._advice}"
                ) from None
            except BrokenProcessPool as error:
                self.stop()
                raise WorkerError(
                    f"The worker process died while it ran ({error}). The next call starts another."
                ) from None

    def stop(self) -> None:
        """End the process; the next call starts another."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, kill_workers=True)
            self._executor = None


def _check_timeout(timeout: object) -> None:
    fix = "Give seconds, such as 120."
    check_type("timeout", timeout, int | float, fix)
    assert isinstance(timeout, int | float)
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError("timeout", f"got {timeout}", fix)


def end_with_parent(parent: int) -> None:
    """In the worker: leave when the parent is gone. loky alone outlives a parent that is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
