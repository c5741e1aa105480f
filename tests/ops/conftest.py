"""Operators choose as on a GPU, and the interpreter runs what they choose."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _as_on_a_gpu(pretended: object) -> None:
    """Each test of this folder."""
