"""What is tested on every change, and what `make test-all` tests besides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def all_is_tested() -> bool:
    """Whether this run takes its time: tests of one kind, of which there are many, run all of them."""
    return os.environ.get("WORKBENCH_TEST_ALL", "") not in ("", "0")


def some_of(many: Sequence[T], most: int) -> Sequence[T]:
    """Every n-th, so that there are no more than `most`; all of them where all is tested."""
    return many if all_is_tested() else many[:: -(-len(many) // most) or 1]


def examples(most: int) -> int:
    """Return how many random examples of a property are tried: a fifth, unless all is tested."""
    return most if all_is_tested() else max(most // 5, 1)
