"""Exercises as lessons use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.errors import ProgressError
from workbench.teach import check, progress_file
from workbench.teach.check import Verdict
from workbench.teach.definition import Definition

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, repr=False, eq=False)
class Exercise(Definition):
    """An exercise with its check and hints; see :class:`Definition` for the attributes."""

    _hints_given: ClassVar[dict[str, int]] = {}

    def __repr__(self) -> str:
        """Return the word Exercise, the id and the title."""
        return f"Exercise {self.name}"

    def check(self, candidate: object, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Try `candidate`, print the verdict, and save the progress.

        Args:
            candidate: the learner's function.
            timeout: time limit in seconds for the function and for each run of its launch.
        """
        verdict = self.evaluate(candidate, timeout=timeout)
        print(verdict.text)
        if verdict.kind == "not solved yet":
            return
        try:
            notice = progress_file.note(self.id, "solved" if verdict.solved else "tried")
        except ProgressError as error:
            notice = str(error)
        if notice:
            print(notice)

    def evaluate(self, candidate: object, *, timeout: float = TIMEOUT_SECONDS) -> Verdict:
        """Return the verdict on `candidate` without printing or saving it. Arguments as in :meth:`check`."""
        return check.evaluate(self, candidate, timeout)

    def hint(self) -> None:
        """Print the next hint; after the last hint, print where the solution is."""
        given = self._hints_given.get(self.id, 0)
        if given == len(self.hints):
            print("That was the last hint. The solution is folded below the exercise.")
            return
        print(f"Hint {given + 1} of {len(self.hints)}: {self.hints[given]}")
        self._hints_given[self.id] = given + 1

    def reset(self) -> None:
        """Forget the progress of this exercise and start its hints again.

        Raises:
            ProgressError: the progress file cannot be written.
        """
        self._hints_given.pop(self.id, None)
        if notice := progress_file.forget(self.id):
            print(notice)
