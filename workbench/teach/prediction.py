"""Predictions: the learner commits to an answer before it is revealed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError

Answer = float | str


@dataclass(frozen=True, repr=False)
class Prediction:
    """A question and the learner's guess.

    Attributes:
        question: the question in words.
        guess: a number or one of the choices; None for no guess.
        choices: the answers to choose from; empty if the answer is a number.
        unit: the unit of the number.
    """

    question: str
    guess: Answer | None
    choices: tuple[str, ...]
    unit: str

    def __repr__(self) -> str:
        """Show the question and the guess."""
        return f"{self.question}: {'no guess' if self.guess is None else self._shown(self.guess)}"

    def reveal(self, answer: Answer, because: str = "", tolerance: float = 0.0) -> None:
        """Print the answer, how far off the guess is, and the reason on a line of its own.

        Args:
            answer: a number or one of the choices.
            because: the reason, as a sentence.
            tolerance: the error with which a guess still counts as right, as a fraction of the answer.

        Raises:
            UnknownNameError: `answer` is not one of the choices.
            ArgumentTypeError, InvalidArgumentError: `answer` is not a finite number, or `tolerance` is
                negative.
        """
        answer = _validated(self.choices, "answer", answer)
        if tolerance < 0:
            raise InvalidArgumentError(
                "tolerance", f"got {tolerance}", "Give a fraction of the answer, such as 0.1."
            )
        print(self._judgment(answer, tolerance))
        if because:
            print(f"Because: {because}")

    def _judgment(self, answer: Answer, tolerance: float) -> str:
        shown = self._shown(answer)
        if self.guess is None:
            return f"No prediction made. The answer: {shown}."
        if isinstance(answer, str) or isinstance(self.guess, str):
            right = self.guess == answer
            return f"Right: {shown}." if right else f"Your guess was {self.guess}. The answer: {shown}."
        if abs(self.guess - answer) <= tolerance * abs(answer):
            return f"Right: {shown}." if self.guess == answer else f"Right, near enough: {shown}."
        off = "too high" if self.guess > answer else "too low"
        if self.guess * answer > 0:
            factor = max(self.guess / answer, answer / self.guess)
            off += f" by a factor of {_number(factor)}"
        return f"Your guess of {self._shown(self.guess)} is {off}. The answer: {shown}."

    def _shown(self, value: Answer) -> str:
        if isinstance(value, str):
            return value
        return f"{_number(value)} {self.unit}".strip()


def predict(
    question: str, guess: Answer | None = None, *, choices: Sequence[str] = (), unit: str = ""
) -> Prediction:
    """Commit to an answer before it is revealed.

    Args:
        question: the question in words.
        guess: a number (NumPy scalars included) or one of `choices`; None to continue without a guess.
        choices: the answers to choose from; empty if the answer is a number.
        unit: the unit of the number.

    Raises:
        UnknownNameError: `guess` is not one of the choices.
        ArgumentTypeError: `guess` is not a number. InvalidArgumentError: it is not finite.
    """
    if guess is not None:
        guess = _validated(tuple(choices), "guess", guess)
    return Prediction(question, guess, tuple(choices), unit)


def _validated(choices: tuple[str, ...], name: str, value: object) -> Answer:
    """Validate a value, and convert NumPy scalars, which can overflow, to Python numbers."""
    if choices:
        if not isinstance(value, str) or value not in choices:
            raise UnknownNameError(name, value, choices)
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, f"got {value!r}, a {type(value).__name__}", "Give a number.")
    if isinstance(value, Integral):
        return int(value)
    if not math.isfinite(value):
        raise InvalidArgumentError(name, f"got {value}", "Give a finite number.")
    return float(value)


def _number(value: float) -> str:
    """Format a number: in full if it is whole, else rounded.

    Numbers from 1,000 on are rounded to whole ones, and smaller ones, like all from 10^15 on, to three
    digits.
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
