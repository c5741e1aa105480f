"""Operators in a folder of their own, one file each: found tested, profiled, measured and documented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.operators import test_specs
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.operators import OperatorSpec, exact, given, named, register, specs

PAGES = Path(__file__).parent / "pages"
NAMES = ("l1_normalize", "matmul_squared_relu")
ROOT = PAGES.parents[2]

# Measures a small case of each as suites do, without a GPU.
MEASURE = """
from dataclasses import replace
from workbench import suites
from workbench.operators import named
found = [case for case in suites.get("operators").cases if case.op in {names}]
small = [replace(case, case=named(case.op).defaults(is_gpu=False), mode="events") for case in found]
lines, cut = suites.run(suites.Suite("small", "small cases", tuple(small)), interpreter=True, progress=False)
print([(line.op, line.provider, line.flops > 0) for line in lines], cut)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the two pages, which nothing else names."""
    return Path(shutil.copytree(PAGES, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__")))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the operators of the folder."""
    environment = os.environ | {"WORKBENCH_OPERATORS": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_page_has_at_most_forty_lines() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in PAGES.glob("*.py")}
    assert lines.keys() == set(NAMES)
    assert max(lines.values()) <= 40


def test_they_are_found_tested(folder: Path) -> None:
    """The tests of all operators include them, and fail for a page that is wrong."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", test_specs.__file__, "-k", " or ".join(NAMES)]
    done = run(folder, *tests)
    count = len([name for name in vars(test_specs) if name.startswith("test_")]) - 2  # two have no operator
    assert f"{2 * count} passed" in done.stdout, done.stdout
    page = folder / "l1_normalize.py"
    page.write_text(page.read_text().replace("tl.sum(tl.abs(x), axis=0)", "tl.sum(x * x, axis=0)"))
    done = run(folder, *tests)
    assert "FAILED" in done.stdout
    assert "test_results_are_those_of_the_meaning[l1_normalize]" in done.stdout


@pytest.mark.parametrize(("name", "case"), [(NAMES[0], ["--rows", "4"]), (NAMES[1], ["--m", "17"])])
def test_they_are_found_profiled(folder: Path, name: str, case: Sequence[str]) -> None:
    done = run(folder, "-m", "workbench", "profile", name, *case)
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
    assert "wrong" not in done.stdout


def test_they_are_found_measured(folder: Path) -> None:
    done = run(folder, "-c", MEASURE.format(names=NAMES))
    both = [(name, provider, True) for name in NAMES for provider in ("workbench", "torch")]
    assert done.stdout == f"{both} []\n", done.stderr


def test_they_are_found_documented(folder: Path) -> None:
    done = run(folder, "-m", "workbench", "operators")
    assert done.returncode == 0, done.stderr
    assert "| `matmul_squared_relu` | relu(input @ other)^2 |" in done.stdout
    assert "| `l1_normalize` |" in done.stdout


def test_wrong_folders_and_pages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(words: str) -> None:
        with pytest.raises(InvalidArgumentError, match=words):
            specs()

    monkeypatch.setenv("WORKBENCH_OPERATORS", str(folder / "none"))
    ask("WORKBENCH_OPERATORS: no folder .*none")
    for number, (text, words) in enumerate(
        (
            ("x = 1\n", r"has no tuple SPECS of OperatorSpec"),
            ("SPECS = [1]\n", r"has no tuple SPECS of OperatorSpec"),
            ("from workbench.operators import named\nSPECS = (named('add'),)\n", "name: got 'add'"),
            ("1 / 0\n", "page.py cannot be read: ZeroDivisionError: division by zero. Correct the page"),
            ("SPECS = (\n", "page.py cannot be read: SyntaxError"),
            ("import sys; sys.exit(3)\n", "page.py cannot be read: SystemExit: 3"),
            ("import no_such_module\n", "page.py cannot be read: ModuleNotFoundError"),
        )
    ):
        other = folder / str(number)
        other.mkdir()
        (other / "page.py").write_text(text)
        (other / "_helper.py").write_text("no python")
        monkeypatch.setenv("WORKBENCH_OPERATORS", str(other))
        ask(words)


def test_pages_import_modules_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_names_of_my_page.py").write_text("NAME = 'renamed_l1'\n")
    page = (PAGES / "l1_normalize.py").read_text().replace('"l1_normalize"', "NAME")
    (tmp_path / "page.py").write_text(f"from _names_of_my_page import NAME\n{page}")
    monkeypatch.setenv("WORKBENCH_OPERATORS", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert "renamed_l1" in specs()


def test_registering_under_the_name_of_a_page_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_OPERATORS", str(folder))
    with pytest.raises(InvalidArgumentError, match="name: got 'l1_normalize', an operator of a page"):
        register(specs()["l1_normalize"])


def test_threads_wait_until_the_pages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PAGES / "l1_normalize.py").read_text()
    (tmp_path / "slow.py").write_text(f"import time\ntime.sleep(0.5)\n{page}")
    monkeypatch.setenv("WORKBENCH_OPERATORS", str(tmp_path))
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: "l1_normalize" in specs(), range(2)))
    assert found == [True, True]


RIGHT: dict[str, Any] = {
    "name": "mine",
    "meaning": torch.relu,
    "case": {"rows": (3, 8)},
    "arguments": lambda draw, rows: given(draw(rows)),
    "instances": lambda x: [],
    "accuracy": exact,
}


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"name": None}, ArgumentTypeError, "name of an operator: got None"),
        ({"name": ""}, InvalidArgumentError, "name of an operator: got ''"),
        ({"name": "a b"}, InvalidArgumentError, "name of an operator: got 'a b'"),
        ({"meaning": 3}, ArgumentTypeError, "mine, meaning: got 3"),
        ({"torch": 3}, ArgumentTypeError, "mine, torch: got 3"),
        ({"case": None}, ArgumentTypeError, "mine, case: got None"),
        ({"case": {"rows": 3}}, InvalidArgumentError, "mine, case, rows: got 3. Give two defaults"),
        ({"case": {"rows": (3, "8")}}, InvalidArgumentError, "mine, case, rows: got"),
        ({"case": {"rows": (None, None)}}, InvalidArgumentError, "value of a case: got None"),
        ({"case": {"dtype": (3, 8)}}, InvalidArgumentError, "mine, case: got the key 'dtype'"),
        ({"case": {"a-b": (3, 8)}}, InvalidArgumentError, "mine, case: got the key 'a-b'"),
        ({"optional": frozenset({"cols"})}, InvalidArgumentError, "mine, optional: got cols"),
        ({"dtypes": "fp32"}, ArgumentTypeError, "mine, dtypes: got 'fp32'"),
        ({"dtypes": ()}, InvalidArgumentError, "mine, dtypes: got none"),
        ({"argnums": (0,)}, InvalidArgumentError, r"mine, argnums: got \(0,\). Give them with `of`"),
        ({"of": "relu", "argnums": (0,)}, ArgumentTypeError, "mine, of: got 'relu'"),
        ({"of": named("softmax")}, InvalidArgumentError, r"mine, argnums: got \(\). Give positions"),
        ({"of": named("softmax"), "argnums": (-1,)}, InvalidArgumentError, r"mine, argnums: got \(-1,\)"),
        ({"aten": "relu"}, ArgumentTypeError, "mine, aten: got 'relu'"),
    ],
)
def test_wrong_attributes_of_a_spec_are_named(
    wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    assert OperatorSpec(**RIGHT).name == "mine"
    with pytest.raises(error, match=said):
        OperatorSpec(**{**RIGHT, **wrong})


def test_values_of_another_kind_than_the_default_are_named() -> None:
    case = {
        "rows": (3, 8),
        "eps": (1e-5, 1e-5),
        "by": ("rows", "rows"),
        "gated": (False, True),
        "to": ((1,), (2,)),
    }
    spec = OperatorSpec(**{**RIGHT, "case": case})
    right = {"rows": 4, "eps": 1, "by": "cols", "gated": True, "to": [3]}
    assert spec.completed(right) == right
    for key, value, fix in (
        ("rows", 1.5, "a whole number"), ("rows", True, "a whole number"), ("eps", "x", "a number"),
        ("by", 3, "a text"), ("gated", 1, "true or false"), ("to", 3, "a list of whole numbers"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"^{key}: got .* Give {fix}"):
            spec.completed({**right, key: value})
