"""Fixtures of the operators' tests: choices are those of a GPU, and the interpreter runs the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.everything import all_is_tested


@pytest.fixture(autouse=True)
def _as_on_a_gpu(pretended: object) -> None:
    """Use the fixture `pretended` in each test of this folder."""


@pytest.fixture(autouse=True)
def _nothing_unwritten() -> Iterator[None]:
    """Let torch fill new memory with NaN where all is tested, so that unwritten elements show."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or all_is_tested())
    yield
    torch.use_deterministic_algorithms(before)
