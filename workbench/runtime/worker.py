"""Worker processes that stay warm, end with their parent, and are restarted after a crash."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidArgumentError, WorkerError, check_type

if TYPE_CHECKING:
    from loky.process_executor import ProcessPoolExecutor

START_SECONDS = 120.0

# Hide the GPU from workers: they do not need it, and initializing it would take GPU memory.
NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


# loky replaces a process, with a warning, when it has grown by more than this. Its default of 300 MB is too
# little for the caches that the compiler keeps in memory.
MOST_GROWTH_BYTES = 4 << 30


class Worker:
    """A process that stays warm, ends with its parent, and is restarted after a crash.

    Args:
        environment: environment variables of the process.
        advice: what to do if a call takes too long, as a sentence.
    """

    def __init__(self, environment: dict[str, str], advice: str) -> None:
        self._environment, self._advice = environment, advice
        self._lock = threading.RLock()
        self._executor: ProcessPoolExecutor | None = None

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        """Queue a call, and start the process if it is not running."""
        with self._lock:
            if self._executor is None:
                # Not at the top, because it takes 12 ms of `import workbench.ops`.
                from loky.process_executor import ProcessPoolExecutor

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
        """Return `function(*args)`, computed in the worker.

        The timeout, in seconds, starts when the process has started. Calls of several threads run one after
        the other, so a timeout, which stops the process, never ends the call of another thread.

        Raises:
            The function's own errors; WorkerError if the process does not start, dies, or exceeds the
            timeout; ArgumentTypeError or InvalidArgumentError if `timeout` is not a valid time.
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
                is_started = self._started.done()
                self.stop()
                raise WorkerError(
                    f"The kernel did not finish within {timeout:g} s in the worker process and was stopped. "
                    f"{self._advice}"
                    if is_started
                    else f"The worker process did not start within {START_SECONDS:g} s. Call again when the "
                    "machine has less load."
                ) from None
            except BrokenExecutor as error:
                self.stop()
                raise WorkerError(
                    f"The worker process died during the call ({error}). Call again: that starts another. "
                    "If it dies too, simplify the kernel, or use smaller tiles."
                ) from None

    def stop(self) -> None:
        """End the process; the next call starts a new one."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, kill_workers=True)
            self._executor = None


def _check_timeout(timeout: object) -> None:
    fix = f"Give seconds, more than 0 and at most {threading.TIMEOUT_MAX:g}, such as 120."
    check_type("timeout", timeout, int | float, fix)
    assert isinstance(timeout, int | float)
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError("timeout", f"got {timeout}", fix)


def end_with_parent(parent: int) -> None:
    """Exit the worker when its parent is gone: loky alone lets a worker outlive a parent that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
