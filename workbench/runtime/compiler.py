"""The worker in which kernels are compiled: it never interprets.

Compiling needs no device. A crash of the compiler (it aborts on some inputs) ends the worker and not the
caller; the next call starts another.
"""

from __future__ import annotations

import os

from workbench.runtime.worker import NO_GPU, Worker

worker = Worker(
    {"TRITON_INTERPRET": "0", **NO_GPU},
    advice="Look for loops that are unrolled (tl.static_range) many times, or use smaller tiles.",
)


def warm_up() -> None:
    """Start the worker in the background, so that the first compilation does not wait for it."""
    worker.submit(os.getpid)
