"""Kept launches give a compiled kernel the arguments that Triton gives it, seen on a pretended GPU."""

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


def lines_of(module: str) -> list[dict[str, Any]]:
    """Run a module as a script where kernels are compiled, and return the lines of JSON that it prints."""
    paths = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def started() -> dict[str, dict[str, Any]]:
    """Return for each operator what was started, call by call."""
    return {line["operator"]: line for line in lines_of(pretended_gpu.__name__)}


@pytest.mark.parametrize("operator", pretended_gpu.OPERATORS)
def test_a_kept_launch_passes_tritons_arguments(operator: str) -> None:
    """Grid, stream, function, flags and all arguments agree, for aligned and for unaligned addresses."""
    found = started()[operator]
    assert all(len(call) >= 1 for call in found["kept"])
    assert found["kept"] == found["by_triton"]
    by_offset = dict(zip(pretended_gpu.OFFSETS, found["kept"], strict=True))
    aligned, other = (by_offset[offset][0][pretended_gpu.FUNCTION] for offset in (0, 1))
    assert aligned != other  # aligned addresses have code of their own, with 16-byte accesses
