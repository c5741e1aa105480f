"""All exercises by id, and the learner's progress."""

from __future__ import annotations

import html
from dataclasses import dataclass

from workbench.errors import UnknownNameError
from workbench.teach import progress_file
from workbench.teach.exercise import Exercise
from workbench.teach.exercises import ALL

_BY_ID = {exercise.id: exercise for exercise in ALL}


def exercise(id: str) -> Exercise:
    """Return the exercise with this id, such as "00-1".

    Raises:
        UnknownNameError: there is no such exercise; the message lists the closest ids.
    """
    if not isinstance(id, str) or id not in _BY_ID:
        raise UnknownNameError("exercise", id, _BY_ID)
    return _BY_ID[id]


def exercises(lesson: str | None = None) -> list[Exercise]:
    """Return the exercises of a lesson ("00"), or all exercises, in order.

    Raises:
        UnknownNameError: the lesson has no exercises or does not exist.
    """
    lessons = {exercise.lesson for exercise in ALL}
    if lesson is not None and not (isinstance(lesson, str) and lesson in lessons):
        raise UnknownNameError("lesson", lesson, lessons)
    return [exercise for exercise in ALL if lesson in (None, exercise.lesson)]


def solution_text(id: str) -> str:
    """Return the code of an exercise's solution, which needs the imports of its lesson.

    Raises:
        UnknownNameError: there is no such exercise.
    """
    return exercise(id).solution_code()


def solution_explanation(id: str) -> str:
    """Return the explanation of an exercise's solution, in Markdown. Raises as :func:`solution_text`."""
    return exercise(id).solution_explanation()


def stub_text(id: str) -> str:
    """Return the code that the lesson gives as a start. Raises as :func:`solution_text`."""
    return exercise(id).stub_code()


@dataclass(frozen=True, repr=False)
class Progress:
    """The state of every exercise, as a table.

    Attributes:
        rows: lesson, exercise and state ("open", "tried" or "solved"), in order.
        notice: a message about the progress file; often empty.
    """

    rows: tuple[tuple[str, str, str], ...]
    notice: str = ""

    def text(self) -> str:
        """Return the table as plain text."""
        width = max(len(name) for _, name, _ in self.rows)
        lines = [f"{lesson:<6}  {name:<{width}}  {state}" for lesson, name, state in (_HEADER, *self.rows)]
        return "\n".join([*lines, self._summary(), *filter(None, [self.notice])])

    def __repr__(self) -> str:
        """Return the table as plain text, for the end of a notebook cell and for print."""
        return self.text()

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="text-align: left">{name}</th>' for name in _HEADER)
        rows = (
            "".join(f'<td style="text-align: left">{html.escape(cell)}</td>' for cell in row)
            for row in self.rows
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (self._summary(), self.notice) if note)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _summary(self) -> str:
        return f"{sum(state == 'solved' for *_, state in self.rows)} of {len(self.rows)} solved"


_HEADER = ("lesson", "exercise", "state")


def progress() -> Progress:
    """Return the learner's progress.

    Raises:
        ProgressError: the progress file cannot be read.
    """
    states, notice = progress_file.load()
    return Progress(tuple((e.lesson, e.name, states.get(e.id, "open")) for e in ALL), notice)


def reset_progress() -> None:
    """Forget which exercises were tried and solved, and start their hints again.

    Raises:
        ProgressError: the progress file cannot be written.
    """
    for each in ALL:
        each.reset()
