"""Optional libraries that operators are compared with, imported when they are first called."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def flag_gems() -> Any:
    """Return FlagGems: torch's operators in Triton."""
    return import_module("flag_gems")


@cache
def liger() -> Any:
    """Return the operators of Liger-Kernel: differentiable functions in Triton."""
    return import_module("liger_kernel.ops")
