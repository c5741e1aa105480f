"""Exceptions: their base classes, messages and pickling, and what a notebook shows of them."""

from __future__ import annotations

import copy
import inspect
import pickle
import string
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import errors
from workbench.errors import (
    ArgumentTypeError,
    DeviceError,
    DimensionError,
    InvalidArgumentError,
    KernelError,
    MissingPackageError,
    NotMeasurableError,
    NumberRangeError,
    OutOfBoundsError,
    ProgressError,
    PromiseError,
    RecordingError,
    TensorMismatchError,
    TracingError,
    UnknownNameError,
    UnsupportedDtypeError,
    WorkbenchError,
    WorkerError,
    check_positive,
    check_power_of_two,
    nearest,
)

EXAMPLES: list[tuple[WorkbenchError, type[Exception]]] = [
    (InvalidArgumentError("tile", "got 3", "Try 4."), ValueError),
    (ArgumentTypeError("grid", "got 'x'", "Give a tuple."), TypeError),
    (TensorMismatchError("x, y", "on cpu and cuda:0", "Move them."), RuntimeError),
    (DimensionError("dims", "2 of a matrix", "Give 0 or 1."), IndexError),
    (UnsupportedDtypeError("input", "torch.uint4", "Convert it."), NotImplementedError),
    (NumberRangeError("other", "2**70", "Give a smaller one."), OverflowError),
    (UnknownNameError("baseline", "cublass", ["cublas", "eager"]), ValueError),
    (DeviceError("No GPU."), RuntimeError),
    (MissingPackageError("Install it."), ImportError),
    (NotMeasurableError("Not a measurement."), RuntimeError),
    (KernelError("k", "NameError: y", file="a.py", line=3, source="  y\n", fix="Define y."), RuntimeError),
    (OutOfBoundsError("k", "reads outside x", line=3), IndexError),
    (PromiseError("k", "tl.assume's condition is false", line=3), RuntimeError),
    (TracingError("It is traced."), RuntimeError),
    (WorkerError("It died."), RuntimeError),
    (RecordingError("a.jsonl", 3, "dtype", "got 5", "Give a name."), ValueError),
    (ProgressError("Cannot be written."), RuntimeError),
]
KINDS = [type(example).__name__ for example, _ in EXAMPLES]


@pytest.mark.parametrize(("error", "builtin"), EXAMPLES, ids=KINDS)
def test_errors_are_subclasses_of_what_torch_raises(error: WorkbenchError, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)
    assert isinstance(error, WorkbenchError)


@pytest.mark.parametrize(("error", "builtin"), EXAMPLES, ids=KINDS)
def test_an_error_is_pickled_whole(error: WorkbenchError, builtin: type[Exception]) -> None:
    """A worker raises an exception and the caller gets it with its type, message and attributes."""
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_every_exception_is_tested_here() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, WorkbenchError) and value is not WorkbenchError
    }
    assert defined == set(KINDS)


def test_messages_name_argument_value_and_remedy() -> None:
    assert str(InvalidArgumentError("tile", "got 3", "Try 4.")) == "tile: got 3. Try 4."
    assert str(RecordingError("a.jsonl", 3, "dtype", "got 5", "Give a name.")) == (
        "a.jsonl, line 3, field 'dtype': got 5. Give a name."
    )
    assert str(KernelError("k", "NameError: y", line=3, source="    z = y\n", fix="Define y.")) == (
        "kernel k, line 3: NameError: y\n    z = y\nDefine y."
    )
    inside = KernelError("k", "NameError: y", function="f", file="<cell 3>", line=2, source="z = y")
    assert str(inside) == "kernel k, in f, line 2 (<cell 3>): NameError: y\n    z = y"
    assert str(KernelError("k", "too much shared memory")) == "kernel k: too much shared memory"


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    error = UnknownNameError("baseline", "cuBLASs", ["eager", "cublas", "cublaslt"])
    assert error.nearest == ["cublas", "cublaslt"]
    assert str(error) == (
        "baseline: 'cuBLASs' is not known. Did you mean 'cublas' or 'cublaslt'? "
        "Known: cublas, cublaslt, eager."
    )
    assert str(UnknownNameError("suite", "zzz", ["all"])) == "suite: 'zzz' is not known. Known: all."
    assert str(UnknownNameError("suite", 3, [])) == "suite: 3 is not known. Known: none."


def test_nearest_keeps_the_spelling_and_the_order() -> None:
    assert nearest("blocksize", ["BLOCK_SIZE", "num_warps", "BLOCK"]) == ["BLOCK_SIZE", "BLOCK"]
    assert nearest("x", []) == []
    assert len(nearest("aaaa", ["aaa1", "aaa2", "aaa3", "aaa4"], most=2)) == 2


@given(st.text(string.ascii_letters + "_", min_size=1), st.lists(st.text(string.ascii_letters, min_size=1)))
def test_nearest_finds_an_exact_name(name: str, others: list[str]) -> None:
    found = nearest(name, [*others, name])
    assert found[0].lower() == name.lower()
    assert set(found) <= {*others, name}


@pytest.mark.parametrize("value", [True, 1.0, "4", None, np.int64(4), (4,)])
def test_positive_refuses_values_that_are_not_an_int(value: object) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^tile: got .*, a {type(value).__name__}. "):
        check_positive("tile", value)


@pytest.mark.parametrize("value", [0, -1, -(2**70)])
def test_positive_refuses_numbers_below_1(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^tile: got {value}. "):
        check_positive("tile", value)


def test_positive_returns_the_value() -> None:
    assert check_positive("tile", 1) == 1
    assert check_positive("tile", 2**70) == 2**70


@given(st.integers(1, 2**40))
def test_power_of_two_refuses_other_numbers(value: int) -> None:
    if bin(value).count("1") == 1:
        assert check_power_of_two("tile", value) == value
        return
    with pytest.raises(InvalidArgumentError) as caught:
        check_power_of_two("tile", value)
    assert str(caught.value).startswith(f"tile: got {value}, not a power of two. Triton needs one: try ")
    below, above = (int(word.strip(".")) for word in str(caught.value).split()[-3::2])
    assert below < value < above == 2 * below
    assert bin(below).count("1") == 1


@pytest.mark.parametrize(
    ("value", "kind"), [(0, InvalidArgumentError), (-4, InvalidArgumentError), (8.0, ArgumentTypeError)]
)
def test_power_of_two_refuses_values_that_are_not_a_positive_int(value: Any, kind: type[Exception]) -> None:
    """The message asks for a power of two, as for numbers that are none."""
    with pytest.raises(
        kind, match=rf"^num_warps: got {value}.*\. Give a power of two: 1, 2, 4, and so on\.$"
    ):
        check_power_of_two("num_warps", value)


def test_check_name_refuses_unknown_names() -> None:
    errors.check_name("suite", "all", {"all": 1})
    for wrong in ("al", 3, None, ["all"]):
        with pytest.raises(UnknownNameError, match=r"suite: .* is not known"):
            errors.check_name("suite", wrong, {"all": 1})


def test_check_type_names_type_and_value() -> None:
    errors.check_type("work", None, int | None, "Give a number.")
    with pytest.raises(ArgumentTypeError, match=r"^work: got 'x', a str\. Give a number\.$"):
        errors.check_type("work", "x", int | None, "Give a number.")
    with pytest.raises(ArgumentTypeError) as caught:
        errors.check_type("work", ["x" * 1000], int, "Give a number.")
    assert len(str(caught.value)) < 150


def test_check_each_names_the_first_wrong_item() -> None:
    assert errors.check_each("lines", (i for i in range(3)), int, "Give numbers.") == [0, 1, 2]
    for wrong in ("abc", 3, None, torch.tensor(1)):
        with pytest.raises(ArgumentTypeError, match=r"^lines: got"):
            errors.check_each("lines", wrong, int, "Give numbers.")
    with pytest.raises(ArgumentTypeError, match=r"^lines\[1\]: got 'x', a str"):
        errors.check_each("lines", [0, "x", "y"], int, "Give numbers.")


def function_in(file: str, body: str, **names: Any) -> Any:
    namespace: dict[str, Any] = dict(names)
    exec(compile(f"def call():\n    {body}", file, "exec"), namespace)
    return namespace["call"]


def shown(call: Any) -> str:
    with pytest.raises(WorkbenchError) as caught:
        call()
    return "\n".join(caught.value._render_traceback_())


def test_only_the_readers_own_lines_are_shown() -> None:
    """Frames of the cell, a library and this package are reduced to the cell's, and the message."""
    package = Path(errors.__file__).parent
    inner = function_in(str(package / "launch.py"), "check()", check=check_nothing)
    library = function_in("lib/python3/dist-packages/loky/executor.py", "inner()", inner=inner)
    standard = function_in(f"{sysconfig.get_path('stdlib')}/contextlib.py", "library()", library=library)
    cell = function_in("<cell 3>", "standard()", standard=standard)
    text = shown(cell)
    assert '"<cell 3>", line 2, in call' in text
    assert "launch.py" not in text
    assert "loky" not in text
    assert "contextlib" not in text
    assert text.endswith("InvalidArgumentError: tile: got 0. Give a whole number of 1 or more.")


def check_nothing() -> None:
    check_positive("tile", 0)


def test_a_folder_with_the_same_beginning_is_the_readers() -> None:
    """`workbench-solutions/` lies next to `workbench/`."""
    beside = Path(errors.__file__).parents[1] / "workbench-solutions" / "mine.py"
    assert "mine.py" in shown(function_in(str(beside), "check()", check=check_nothing))


def test_an_error_without_traceback_shows_its_message() -> None:
    error = DeviceError("No GPU.")
    assert error._render_traceback_() == ["DeviceError: No GPU."]
