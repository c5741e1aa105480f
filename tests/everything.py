"""The part of the tests that a run has: some on every change, all in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def all_is_tested() -> bool:
    """Return whether everything is tested in this run (`make test-all`)."""
    return os.environ.get("WORKBENCH_TEST_ALL", "") not in ("", "0")


def some_of(many: Sequence[T], most: int) -> Sequence[T]:
    """Return every n-th item, so that there are at most `most`; all items if all is tested."""
    return many if all_is_tested() else many[:: -(-len(many) // most) or 1]


def examples(most: int) -> int:
    """Return how many random examples of a property are tried: a fifth, unless all is tested."""
    return most if all_is_tested() else max(most // 5, 1)
