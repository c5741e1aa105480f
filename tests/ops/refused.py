"""A check for tests: an operator refuses the arguments that torch refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.errors import WorkbenchError


def assert_refused_as_in_torch(
    ours: Callable[..., Any], theirs: Callable[..., Any], *arguments: Any, **options: Any
) -> WorkbenchError:
    """Check that both functions raise, and ours an error of the kind that torch raises; return it."""
    with pytest.raises(WorkbenchError) as refused:
        ours(*arguments, **options)
    with pytest.raises(Exception) as torchs:  # any error of torch counts
        theirs(*arguments, **options)
    assert isinstance(refused.value, type(torchs.value)), f"torch: {torchs.value!r}"
    return refused.value
