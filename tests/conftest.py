"""What every test stands on: no GPU needed, no window, a home of its own, freshly seeded fuzzing."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from hypothesis import settings

import workbench  # noqa: F401  # before a test file imports Triton, whose mode it sets

# Not MPLBACKEND: the lessons' kernels, which tests start, would inherit that and draw nothing.
matplotlib.use("agg")

# Triton's interpreter has no fixed speed; a failing example is printed with what it takes to run it again.
settings.register_profile("workbench", deadline=None, print_blob=True)
settings.load_profile("workbench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where torch sees no GPU."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    from workbench import device  # torch takes seconds to import, and many test files need none

    absence = device.gpu_absence()
    if absence:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {absence}"))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from the user's own progress and caches."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
