"""Operators choose as on a GPU, and the interpreter runs what they choose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.everything import all_is_tested


@pytest.fixture(autouse=True)
def _as_on_a_gpu(pretended: object) -> None:
    """Each test of this folder."""


@pytest.fixture(autouse=True)
def _nothing_unwritten() -> Iterator[None]:
    """Where all is tested, torch fills what it allocates with NaN, which shows where nobody wrote."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or all_is_tested())
    yield
    torch.use_deterministic_algorithms(before)
