"""Base of the steppers: controls for recorded steps, and figures that are laid out in pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.errors import ArgumentTypeError, InvalidArgumentError, in_brief
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, new_figure
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets

Steps = TypeVar("Steps")

MARGIN = 18.0  # left margin of a figure's heading, in pixels


def checked_step(at: int | None, last: int) -> int:
    """Return `at`, the number of a step; `last` if it is None.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `at` is not a whole number from 0 to `last`.
    """
    if at is None:
        return last
    fix = f"Give a whole number from 0 to {last}, or None for the last step."
    if isinstance(at, bool) or not isinstance(at, int):
        raise ArgumentTypeError("at", f"got {in_brief(at)}, a {type(at).__name__}", fix)
    if not 0 <= at <= last:
        raise InvalidArgumentError("at", f"got {at}", fix)
    return at


@dataclass(frozen=True)
class Sheet:
    """A figure whose parts are placed in pixels, counted from its upper left corner.

    Attributes:
        figure: the figure.
        axes: its first panel, which the caller must place: `axes.set_position(sheet.place(...))`.
        height: the height of the figure in pixels.
    """

    figure: Figure
    axes: Axes
    height: float

    @classmethod
    def of(cls, height: float) -> Sheet:
        """Return a sheet of the usual width, in the enclosing figure style."""
        figure, axes = new_figure()
        figure.set_size_inches(WIDTH_INCHES, round(height) / DPI)
        return cls(figure, axes, height)

    def place(self, left: float, top: float, across: float, down: float) -> tuple[float, float, float, float]:
        """Return a panel's position for matplotlib, as fractions of the figure."""
        return left / WIDTH, 1 - (top + down) / self.height, across / WIDTH, down / self.height

    def write(self, left: float, middle: float, text: str, color: str, **style: Any) -> None:
        """Write a line of text from `left` on, with `middle` as its middle height, in pixels."""
        style = {"fontsize": 9, **style}
        self.figure.text(left / WIDTH, 1 - middle / self.height, text, va="center", color=color, **style)

    def write_heading(self, heading: str, subheading: str, palette: Palette) -> None:
        """Write the two lines above all panels."""
        self.write(MARGIN, 22, heading, palette.ink, fontsize=12, fontweight="bold")
        self.write(MARGIN, 44, subheading, palette.muted)


class Stepper(FigureWidget, Generic[Steps]):
    """Base of widgets that step through a recording, forward and back.

    A recording is the sequence of a kernel's steps that a subclass draws. Recordings are made when they are
    first chosen, and kept.

    Args:
        steps: a recording; or a function that returns one for the value of `chooser`.
        chooser: the control whose value chooses a recording; shown only if `steps` is a function.
        step: the label of the slider.
        controls: more controls beside the slider.
        theme: as for :class:`FigureWidget`.

    Raises:
        Exception: the errors of :class:`FigureWidget`, and whatever `steps` raises for the first recording.
    """

    def __init__(
        self,
        steps: Steps | Callable[[int], Steps],
        chooser: Any,
        step: str,
        *,
        controls: Sequence[Any] = (),
        theme: str | None = None,
    ) -> None:
        widgets = require_ipywidgets()
        self._make = steps if callable(steps) else None
        self._made: dict[int, Steps] = {} if callable(steps) else {chooser.value: steps}
        self._chooser = chooser
        self.at = widgets.IntSlider(0, 0, 0, description=step, continuous_update=False, style=FIRST_IN_ROW)
        self.back = widgets.Button(description="back")
        self.forward = widgets.Button(description="forward")
        self.back.on_click(lambda _: self._move(-1))
        self.forward.on_click(lambda _: self._move(1))
        super().__init__(
            [chooser] if self._make else [],
            [self.at, *controls],
            unwatched=[[self.back, self.forward]],
            theme=theme,
        )

    @abstractmethod
    def last(self, steps: Steps) -> int:
        """Return the number of a recording's last step; raise an error if it cannot be drawn."""

    @abstractmethod
    def progress_text(self, choice: int) -> str:
        """Return the text that is shown while the recording of this choice is made."""

    @abstractmethod
    def draw_step(self, steps: Steps, at: int, theme: str) -> Drawing:
        """Draw a step of a recording."""

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen step of the chosen recording."""
        steps = self._steps(self._chooser.value)
        with self.held():
            self.at.max = self.last(steps)
        at = self.at.value
        self.back.disabled, self.forward.disabled = at == 0, at == self.at.max
        return self.draw_step(steps, at, theme)

    def _steps(self, choice: int) -> Steps:
        if self._make is not None and choice not in self._made:
            self.say(self.progress_text(choice))
            steps = self._make(choice)
            self.last(steps)
            self._made[choice] = steps
        return self._made[choice]

    def _move(self, by: int) -> None:
        self.at.value += by
