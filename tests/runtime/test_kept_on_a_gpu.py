"""Kept launches give a compiled kernel what Triton itself gives it, seen on a GPU that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.runtime import pretended_gpu

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@cache
def started() -> dict[str, list[Any]]:
    """By operator: for each call, what was started."""
    paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", pretended_gpu.__name__],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {line["operator"]: line["calls"] for line in lines}


@pytest.mark.parametrize("operator", pretended_gpu.OPERATORS)
def test_the_compiled_kernel_is_given_the_same(operator: str) -> None:
    """The first call goes through Triton, as does the second, which keeps the compiled kernel it found."""
    calls = started()[operator]
    assert all(len(call) >= 1 for call in calls)
    by_address: dict[int, Any] = {}
    for offset, call in zip(pretended_gpu.OFFSETS, calls, strict=True):
        assert call == by_address.setdefault(offset, call)
    aligned, other = (by_address[offset][0][pretended_gpu.FUNCTION] for offset in (0, 1))
    assert aligned != other  # code of its own for 16 bytes at a time
