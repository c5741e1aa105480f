"""The check that every program of a launch has work, with exceptions for a few kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from workbench import interpreter
from workbench.interpreter import watching
from workbench.launch import Step

# The reason why a program may write nothing, by the kernel's name.
MAY_BE_IDLE = {
    "clear_slack_kernel": "Sequences may cover every row.",
    "gemm_stream_kernel": "As many programs are started as are given, or as there are compute units.",
    "grouped_gemm_kernel": "The ends of groups are known on the device only: the grid has the most tiles.",
    "sum_of_stream_kernel": "A tile that a single program computed is complete.",
}


@contextmanager
def no_program_is_idle() -> Iterator[None]:
    """Raise AssertionError, while this is open, if a program of an interpreted step writes nothing."""
    of_thread = threading.local()

    def noted(access: Callable[..., Any], mask_at: int) -> Callable[..., Any]:
        def note(memory: Any, *arguments: Any) -> Any:
            if np.any(np.asarray(arguments[mask_at])):  # a descriptor's mask is a memoryview
                of_thread.wrote.add(interpreter.running_program())
            return access(memory, *arguments)

        return note

    def run(step: Step, **how: Any) -> None:
        of_thread.wrote = set()
        plain_run(step, **how)
        idle = step.programs - len(of_thread.wrote)
        # Packed sequences: each has as many tiles as the longest.
        may_be = step.name in MAY_BE_IDLE or step.meta.get("RAGGED")
        if idle and how.get("order") is None and not may_be:
            raise AssertionError(f"{idle} of {step.programs} programs wrote nothing: {step}")

    plain_run, memory = Step.run, watching._WatchedMemory
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(memory, "store", noted(memory.store, 2)))
        stack.enter_context(mock.patch.object(memory, "atomic_rmw", noted(memory.atomic_rmw, 3)))
        stack.enter_context(mock.patch.object(Step, "run", run))
        yield
