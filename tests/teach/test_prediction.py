"""Predictions: the lines that `reveal` prints for a guess and without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench import teach
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError


@pytest.mark.parametrize(
    ("guess", "answer", "tolerance", "said"),
    [
        (None, 12_000, 0.0, "No prediction made. The answer: 12,000 bytes."),
        (12_000, 12_000, 0.0, "Right: 12,000 bytes."),
        (12_000.0, 12_000, 0.0, "Right: 12,000 bytes."),
        (11_900, 12_000, 0.02, "Right, near enough: 12,000 bytes."),
        (11_000, 12_000, 0.02, "Your guess of 11,000 bytes is too low by a factor of 1.09."),
        (4_000, 12_000, 0.0, "Your guess of 4,000 bytes is too low by a factor of 3. The answer: 12,000"),
        (120_000, 12_000, 0.0, "is too high by a factor of 10. The answer: 12,000 bytes."),
        (
            0,
            12_000,
            0.0,
            "Your guess of 0 bytes is too low. The answer",
        ),  # no factor leads from 0 to the answer
        (-1, 12_000, 0.0, "Your guess of -1 bytes is too low. The answer"),
        (
            0.25,
            1 / 3,
            0.0,
            "Your guess of 0.25 bytes is too low by a factor of 1.33. The answer: 0.333 bytes.",
        ),
        (1234.56, 1e20, 0.0, "Your guess of 1,235 bytes"),
        (5, 0, 0.0, "Your guess of 5 bytes is too high. The answer: 0 bytes."),
    ],
)
def test_a_guessed_number_is_judged_by_its_factor(
    guess: float | None, answer: float, tolerance: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    teach.predict("Bytes moved", guess, unit="bytes").reveal(answer, tolerance=tolerance)
    out = capsys.readouterr().out
    assert said in out
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (None, "No prediction made. The answer: compute.\nBecause: it is large.\n"),
        ("compute", "Right: compute.\nBecause: it is large.\n"),
        ("memory", "Your guess was memory. The answer: compute.\nBecause: it is large.\n"),
    ],
)
def test_a_guessed_choice_is_judged(guess: str | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = teach.predict("What bounds it?", guess, choices=("memory", "compute"))
    prediction.reveal("compute", because="it is large.")
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("guess", [np.int64(3), np.uint8(3), np.float32(3), np.float64(3)], ids=repr)
def test_numpy_numbers_are_guesses_and_answers(guess: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of 8 bits is compared with an answer that 8 bits cannot hold."""
    teach.predict("Idle lanes", guess, unit="lanes").reveal(3000)
    teach.predict("Idle lanes", 3, unit="lanes").reveal(guess)
    assert capsys.readouterr().out == (
        "Your guess of 3 lanes is too low by a factor of 1,000. The answer: 3,000 lanes.\nRight: 3 lanes.\n"
    )


def test_repr_is_the_question_and_the_guess() -> None:
    assert repr(teach.predict("Idle lanes", unit="lanes")) == "Idle lanes: no guess"
    assert repr(teach.predict("Idle lanes", 2, unit="lanes")) == "Idle lanes: 2 lanes"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"guess": "many"}, ArgumentTypeError, "guess: got 'many', a str. Give a number."),
        ({"guess": True}, ArgumentTypeError, "guess: got True, a bool"),
        ({"guess": np.True_}, ArgumentTypeError, "a bool"),
        ({"guess": float("nan")}, InvalidArgumentError, "guess: got nan. Give a finite number."),
        ({"guess": "memry", "choices": ("memory", "compute")}, UnknownNameError, "Did you mean 'memory'"),
        ({"guess": 3, "choices": ("memory", "compute")}, UnknownNameError, "guess: 3 is not known"),
    ],
)
def test_a_wrong_guess_raises(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.replace("(", r"\(")):
        teach.predict("Bytes moved", **arguments)


def test_a_wrong_answer_raises() -> None:
    with pytest.raises(UnknownNameError, match="answer: 'time' is not known"):
        teach.predict("What bounds it?", choices=("memory", "compute")).reveal("time")
    with pytest.raises(ArgumentTypeError, match="answer"):
        teach.predict("Bytes moved").reveal("many")
    with pytest.raises(InvalidArgumentError, match="tolerance: got -1"):
        teach.predict("Bytes moved").reveal(3, tolerance=-1)
