"""Fixtures and hooks of all tests: which cases run, a home of its own, seeds, the pretended GPU."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pytest
import torch
from hypothesis import is_hypothesis_test, settings

from tests.choice import Took, chosen_cases, most_cases, read_times, seconds_of_files
from tests.everything import all_is_tested, examples
from tests.machine import Machine

if TYPE_CHECKING:
    from workbench.device import Device

# Not MPLBACKEND: the lessons' kernels, which tests start, would inherit it and draw nothing.
matplotlib.use("agg")

# Triton's interpreter has no fixed speed; a failing example is printed with the code to run it again.
settings.register_profile("workbench", max_examples=examples(100), deadline=None, print_blob=True)
settings.load_profile("workbench")

ROOT = Path(__file__).resolve().parent.parent

# Longer names of groups of values are left to pytest, which numbers them.
LONGEST_ID = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--daily`, with which `make test` leaves out cases of tests that take long."""
    parser.addoption(
        "--daily", action="store_true", help="leave out cases of tests that take long (tests/choice.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Decide how kernels run, before a test file imports Triton: they are compiled for `-m gpu` only."""
    if config.option.markexpr != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    importlib.import_module("workbench")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name tensors by dtype and shape, and groups of values by their elements, the same in every process."""
    if isinstance(val, dict):
        return ",".join(f"{name}={_short(value)}" for name, value in val.items())
    name = _short(val) if isinstance(val, (torch.Tensor, torch.dtype, tuple, list)) else ""
    return name if 0 < len(name) <= LONGEST_ID and " at 0x" not in name else None


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_short, value))})"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return getattr(value, "__name__", str(value))  # the text of a function has its address


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--daily` leaves out; longest files first; skip tests for a GPU where there is none."""
    from workbench import device  # not above: it would be imported before the mode is set

    times = read_times()
    if config.getoption("--daily"):
        left_out = _left_out(items, times)
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    # If a long file began last, everything else would wait for it.
    seconds = seconds_of_files(times, map(_name, items))
    items.sort(key=lambda item: -seconds[_name(item).partition("::")[0]])
    reason = device.gpu_absence() or ("run them with pytest -m gpu" if device.is_interpreter() else "")
    for item in items:
        mark = item.get_closest_marker("gpu")
        if mark and (absence := reason or _other_gpu(**mark.kwargs)):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {absence}"))


def _other_gpu(*, architecture: str = "", name: str = "") -> str:
    """Return why this GPU is not the one that a mark names, "" if it is.

    Args:
        architecture: the device's architecture, such as "sm_90".
        name: a part of the device's name, such as "H200".
    """
    from workbench import device  # not above: it would be imported before the mode is set

    here = device.current()
    if architecture in ("", here.architecture) and name in here.name:
        return ""
    return f"the test needs {architecture or name}, this is {here.name} ({here.architecture})"


def _name(item: pytest.Item) -> str:
    """Return `path::name` of a test, which its cases share."""
    return f"{item.path.relative_to(ROOT).as_posix()}::{getattr(item, 'originalname', item.name)}"


def _left_out(items: list[pytest.Item], times: Mapping[str, Took]) -> list[pytest.Item]:
    """Return the cases that `--daily` leaves out. Tests for a GPU and a case of each property stay."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("gpu"):
            tests.setdefault(_name(item), []).append(item)
    left_out: list[pytest.Item] = []
    for name, cases in tests.items():
        daily, is_slow = cases[0].get_closest_marker("daily"), name in times
        # The test that opens the first page pays for the browser and the lab.
        if not daily and cases[0].get_closest_marker("browser"):
            left_out += cases
        elif is_slow:
            is_property = is_hypothesis_test(getattr(cases[0], "obj", None))
            at_least = daily.kwargs.get("cases", len(cases)) if daily else int(is_property)
            values = [getattr(getattr(case, "callspec", None), "params", {}) for case in cases]
            chosen = set(chosen_cases(values, most_cases(times[name], at_least)))
            left_out += [case for position, case in enumerate(cases) if position not in chosen]
    return left_out


@pytest.fixture(scope="session")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.getbasetemp()
    with closing(Machine(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)) as machine:
        yield machine


@pytest.fixture(autouse=True)
def machine(_machine: Machine) -> Iterator[Machine]:
    """Return the machine, shared with other processes' tests as long as this test runs."""
    with _machine.shared():
        yield _machine


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Seed torch, so that a test without a seed of its own draws the same numbers in any order of tests."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from the user's own progress and caches."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))


@pytest.fixture(params=None if not all_is_tested() else ("H200", "A100", "RTX 4060", "MI300X"))
def pretended(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Choose kernels as on this GPU, and interpret them; an H200 unless all is tested.

    A program that has nothing to do is an error.
    """
    from tests.idle import no_program_is_idle  # not above: they would be imported before the mode is set
    from tests.machines import CHOOSING
    from workbench import device

    with device.pretend(CHOOSING[getattr(request, "param", "H200")]) as stands_in, no_program_is_idle():
        yield stands_in


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where pytest runs in the background, with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
