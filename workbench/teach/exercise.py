"""An exercise, as a lesson uses it."""

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
    """An exercise with its check and hints; all else is in :class:`Definition`."""

    _hints_given: ClassVar[dict[str, int]] = {}

    def __repr__(self) -> str:
        """Without addresses, for the end of a cell."""
        return f"Exercise {self.name}"

    def check(self, candidate: object, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Try `candidate`, print the verdict, and note the progress.

        Args:
            candidate: the learner's function.
            timeout: seconds of real time that the function, and each run of what it launches, may take.
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
        """The verdict on `candidate`, neither printed nor noted. Arguments as in :meth:`check`."""
        return check.evaluate(self, candidate, timeout)

    def hint(self) -> None:
        """Print the next hint; after the last one, where the solution is."""
        given = self._hints_given.get(self.id, 0)
        if given == len(self.hints):
            print("That was the last hint. The solution is folded below the exercise.")
            return
        print(f"Hint {given + 1} of {len(self.hints)}: {self.hints[given]}")
        self._hints_given[self.id] = given + 1

    def reset(self) -> None:
        """Forget the progress of this exercise, and begin its hints anew.

        Raises:
            ProgressError: the progress file cannot be written.
        """
        self._hints_given.pop(self.id, None)
        if notice := progress_file.forget(self.id):
            print(notice)
