"""The choice of cases that `make test` runs, and the recorded times that it depends on."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import choice
from tests.choice import Took, chosen_cases, most_cases, read_times, seconds_of_files
from tools import test_times

ROOT = Path(__file__).resolve().parents[2]

# Two parameters, one of which has values that cannot be hashed.
SHAPES = [[side] for side in range(6)]
PRODUCT = [{"dtype": dtype, "shape": shape} for dtype, shape in itertools.product(range(4), SHAPES)]


def test_all_cases_of_a_quick_test_run() -> None:
    assert most_cases(Took(cases=100, seconds=choice.SECONDS_A_TEST)) >= 100


def test_cases_of_a_slow_test_take_no_longer_than_a_test_may() -> None:
    took = Took(cases=100, seconds=20 * choice.SECONDS_A_TEST)
    assert most_cases(took) == 5
    assert most_cases(took, at_least=7) == 7


def test_one_case_runs_where_a_case_takes_longer_than_a_test_may() -> None:
    assert most_cases(Took(cases=10, seconds=10 * choice.SECONDS_A_CASE)) == 1


def test_a_test_of_slow_cases_is_left_out_unless_asked_for() -> None:
    took = Took(cases=10, seconds=11 * choice.SECONDS_A_CASE)
    assert most_cases(took) == 0
    assert most_cases(took, at_least=3) == 3


def test_every_value_of_every_parameter_is_chosen_first() -> None:
    chosen = [PRODUCT[position] for position in chosen_cases(PRODUCT, 6)]
    assert {case["dtype"] for case in chosen} == set(range(4))
    assert sorted(str(case["shape"]) for case in chosen) == [str(shape) for shape in SHAPES]


def test_values_are_spread_evenly_if_there_are_more_values_than_cases() -> None:
    assert chosen_cases([{"exercise": number // 2} for number in range(40)], 4) == [0, 10, 20, 30]


def test_further_cases_are_spread_over_the_rest() -> None:
    alike = [{"seed": 0}] * 100
    assert chosen_cases(alike, 5) == [0, 1, 25, 50, 75]


@given(
    st.lists(st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(0, 5)}), max_size=40),
    st.integers(0, 50),
)
def test_as_many_cases_as_asked_for_are_chosen_once_each(cases: list[dict[str, object]], most: int) -> None:
    chosen = chosen_cases(cases, most)
    assert len(chosen) == len(set(chosen)) == min(most, len(cases))
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(len(cases)))


def test_seconds_of_a_file_are_those_of_the_cases_that_run() -> None:
    times = {"a.py::slow": Took(cases=4, seconds=8.0)}
    assert seconds_of_files(times, ["b.py::quick", "a.py::slow", "a.py::slow"]) == {"b.py": 0.0, "a.py": 4.0}


RUN = """<testsuite>
<testcase classname="tests.ops.test_gemm" name="test_product[fp16-8]" time="4.0"/>
<testcase classname="tests.ops.test_gemm" name="test_product[fp32-8]" time="2.0"/>
<testcase classname="tests.ops.test_gemm" name="test_quick" time="0.1"/>
<testcase classname="tests.ops.test_gemm" name="test_broken" time="50"><failure message="no"/></testcase>
<testcase classname="tests.gpu.test_gpu" name="test_there" time="50"><skipped message="no GPU"/></testcase>
</testsuite>"""


def test_times_of_a_run_are_read_back(tmp_path: Path) -> None:
    """Quick tests are left out, and so are tests that failed or were skipped."""
    (tmp_path / "run.xml").write_text(RUN)
    lines = test_times.times_of(tmp_path / "run.xml", slowness=2.0)
    (tmp_path / "times.txt").write_text("\n".join(lines))
    assert read_times(tmp_path / "times.txt") == {"tests/ops/test_gemm.py::test_product": Took(2, 3.0)}


def test_every_recorded_test_exists() -> None:
    """When a test is renamed or moved, its line in tests/times.txt has to follow."""
    times = read_times()
    assert len(times) > 100
    files = {path: (ROOT / path).read_text() for path in {name.partition("::")[0] for name in times}}
    gone = [
        name
        for name in times
        if not re.search(rf"def {re.escape(name.partition('::')[2])}\b", files[name.partition("::")[0]])
    ]
    assert gone == []


TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("dtype", range(2))
def test_product(dtype, shape): pass

@pytest.mark.parametrize("case", range(4))
def test_long(case): pass

@pytest.mark.daily
def test_oracle(): pass

@pytest.mark.daily(cases=2)
@pytest.mark.parametrize("case", range(4))
def test_exercise(case): pass

@given(st.just(0))
def test_property(number): pass

@pytest.mark.parametrize("case", range(4))
def test_unknown(case): pass

@pytest.mark.gpu
@pytest.mark.parametrize("case", range(4))
def test_fast_there(case): pass
"""

# Seconds and number of cases of each test.
TOOK = {"product": (2, 6), "long": (40, 4), "oracle": (30, 1), "exercise": (40, 4), "property": (20, 1)}


def test_daily_leaves_out_cases_of_tests_that_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import conftest

    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    daily\n")
    times = {f"test_it.py::test_{name}": Took(cases, float(taken)) for name, (taken, cases) in TOOK.items()}
    monkeypatch.setattr(choice, "SECONDS_A_TEST", 1.0)
    monkeypatch.setattr(choice, "SECONDS_A_CASE", 2.0)
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    monkeypatch.setattr(conftest, "read_times", lambda: times)
    chosen: list[str] = []

    class Plugin:
        pytest_addoption = staticmethod(conftest.pytest_addoption)
        pytest_collection_modifyitems = staticmethod(conftest.pytest_collection_modifyitems)

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            chosen.extend(item.name.removeprefix("test_") for item in session.items)

    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    assert pytest.main([*arguments, "--daily"], plugins=[Plugin()]) == pytest.ExitCode.OK
    assert chosen == [
        *("product[0-0]", "product[0-2]", "product[1-1]"),
        "oracle",
        *("exercise[0]", "exercise[2]"),
        "property",
        *(f"unknown[{case}]" for case in range(4)),
        *(f"fast_there[{case}]" for case in range(4)),
    ]
    del chosen[:]
    pytest.main(arguments, plugins=[Plugin()])
    assert len(chosen) == 6 + 4 + 1 + 4 + 1 + 4 + 4
