"""Lines of kernels, and the race of a launch that runs in this process."""

from __future__ import annotations

import inspect
from typing import Any

from workbench import compat
from workbench.interpreter import Access
from workbench.launch import Launch
from workbench.teach import races
from workbench.teach.races import Race


def line_of(kernel: Any, text: str) -> int:
    """Return the number in its file of the kernel's first line that contains `text`."""
    lines, first = inspect.getsourcelines(compat.python_function(kernel))
    return next(first + number for number, line in enumerate(lines) if text in line)


def found(launch: Launch) -> Race | None:
    """Run a launch in this process, and return the race in its accesses."""
    accesses: list[tuple[Access, ...]] = []
    for step in launch.steps:
        seen: list[Access] = []
        step.run(observer=seen.append)
        accesses.append(tuple(seen))
    return races.find(launch, tuple(accesses))
