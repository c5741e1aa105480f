"""What every test stands on: no GPU needed, no window, a home of its own, freshly seeded fuzzing."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pytest
import torch
from hypothesis import settings

from tests.everything import all_is_tested, examples
from tests.machine import Machine

if TYPE_CHECKING:
    from workbench.device import Device

# Not MPLBACKEND: the lessons' kernels, which tests start, would inherit that and draw nothing.
matplotlib.use("agg")

# Triton's interpreter has no fixed speed; a failing example is printed with what it takes to run it again.
settings.register_profile("workbench", max_examples=examples(100), deadline=None, print_blob=True)
settings.load_profile("workbench")


# Files of tests that take minutes, the longest first: whoever began one of them last would be waited for.
LONGEST = (
    "teach/test_exercises.py", "lessons/test_nbval.py", "browser/test_lessons.py", "kernels/test_gemm.py",
    "ops/test_gemm.py", "kernels/test_attention_instances.py", "teach/test_near_misses.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Decide how kernels run, before a test file imports Triton: they are compiled for `-m gpu` only."""
    if config.option.markexpr != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    importlib.import_module("workbench")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a changed argument by tensors' shapes, not numbers: every process has to find the same name."""
    return (
        ",".join(f"{name}={_short(value)}" for name, value in val.items()) if isinstance(val, dict) else None
    )


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_short, value))})"
    return getattr(value, "__name__", str(value))  # a function as text says where it lies


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; mark what `slow.txt` lists; skip what wants a GPU where there is none."""
    from workbench import device  # not above: it would be imported before the mode is set

    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    slow = set(Path(__file__).with_name("slow.txt").read_text().split())
    reason = device.gpu_absence() or ("run them with pytest -m gpu" if device.is_interpreter() else "")
    for item in items:
        if item.nodeid.split("[")[0].replace(".py::", "::").replace("/", ".") in slow:
            item.add_marker(pytest.mark.slow)
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture(scope="session")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.getbasetemp()
    with closing(Machine(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)) as machine:
        yield machine


@pytest.fixture(autouse=True)
def machine(_machine: Machine) -> Iterator[Machine]:
    """The machine, shared with other processes' tests as long as this test runs."""
    with _machine.shared():
        yield _machine


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """What a test draws without a seed of its own is the same each time, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from the user's own progress and caches."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))


@pytest.fixture(params=None if not all_is_tested() else ("H200", "A100", "RTX 4060", "MI300X"))
def pretended(request: pytest.FixtureRequest) -> Iterator[Device]:
    """What is chosen is chosen as on that GPU, an H200 where not all is tested, and interpreted.

    A program that has nothing to do is an error.
    """
    from tests.idle import no_program_is_idle  # not above: they would be imported before the mode is set
    from tests.machines import CHOOSING
    from workbench import device

    with device.pretend(CHOOSING[getattr(request, "param", "H200")]) as stands_in, no_program_is_idle():
        yield stands_in


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where pytest runs in the background, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
