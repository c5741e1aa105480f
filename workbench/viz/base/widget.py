"""Base classes of all widgets: controls, a picture that follows them, lines of facts, and error messages.

ipywidgets drops exceptions and prints of callbacks, so a redraw reports its errors inside the widget.
JupyterLab shows no live widgets in a notebook before it runs, so the widget's MIME bundle includes the
current picture as a PNG.
"""

from __future__ import annotations

import base64
import html
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from matplotlib.figure import Figure

from workbench.errors import MissingPackageError, WorkbenchError, check_each, check_type
from workbench.viz.base.style import (
    PALETTES,
    THEMES,
    Palette,
    Picture,
    check_callable,
    check_sentence,
    figure_image,
    quick_png,
    resolve_theme,
    small_png,
)

# The style of the first control of each row, which aligns the rows.
FIRST_IN_ROW = {"description_width": "7em"}


@dataclass(frozen=True)
class Drawing:
    """Contents of a widget for one state of its controls.

    Attributes:
        figure: the picture.
        alt: text that describes the picture to readers who cannot see it.
        facts: lines of plain text below the picture.

    Raises:
        ArgumentTypeError, InvalidArgumentError: a field has the wrong type, or `alt` is blank.
    """

    figure: Figure
    alt: str
    facts: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_type("figure", self.figure, Figure, "Give a matplotlib Figure.")
        check_sentence("alt", self.alt)
        check_each("facts", self.facts, str, "Give a list of lines of text.")


class ShownWidget(ABC):
    """Base of every widget: a view, a picture of the current state, lines of facts, and error messages.

    It is not an ipywidget but has one, `view`, so that this file can be imported without ipywidgets.

    Args:
        rows: rows of ipywidgets above `shown`; whenever the `value` of one changes, `redraw` is attempted.
            The first of each row should have the style `FIRST_IN_ROW`.
        unwatched: more rows, whose controls do not trigger a redraw.
        shown: the ipywidgets that show the state.

    Raises:
        MissingPackageError: ipywidgets is not installed.
        ArgumentTypeError: `rows` holds something other than an ipywidget with a `value`, or `unwatched` holds
            something other than an ipywidget.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Any]],
        unwatched: Sequence[Sequence[Any]],
        shown: Sequence[Any],
    ) -> None:
        ipywidgets = require_ipywidgets()
        for index, row in enumerate(rows):
            fix = "Give a list of ipywidgets that have a value; others go to `unwatched`."
            check_each(f"rows[{index}]", row, ipywidgets.ValueWidget, fix)
        check_each("unwatched", unwatched, Sequence, "Give a list of rows.")
        for index, row in enumerate(unwatched):
            check_each(f"unwatched[{index}]", row, ipywidgets.Widget, "Give a list of ipywidgets.")
        self._error = ipywidgets.HTML()
        self._below = ipywidgets.HTML()
        self._problem = ""
        self._held = False
        for control in (control for row in rows for control in row):
            control.observe(self._changed, "value")
        boxes = [
            ipywidgets.HBox(list(row), layout={"flex_flow": "row wrap"}) for row in [*rows, *unwatched] if row
        ]
        self.view = ipywidgets.VBox([*boxes, self._error, *shown, self._below])

    @abstractmethod
    def redraw(self) -> None:
        """Show the current state again, after a change that no control shows."""

    @property
    @abstractmethod
    def picture(self) -> Picture:
        """Picture of the current state for an unopened notebook, with alternative text."""

    @property
    @abstractmethod
    def facts(self) -> tuple[str, ...]:
        """Lines of text about the current state."""

    @property
    @abstractmethod
    def palette(self) -> Palette:
        """Colors of the current theme."""

    @property
    def error(self) -> str:
        """Message of the last error since the shown state was drawn; empty if there was none."""
        return self._problem

    def attempt(self, action: Callable[[], object]) -> None:
        """Run the action of a control; if it fails, show the error and keep the last picture.

        Raises:
            ArgumentTypeError: `action` is not callable.
        """
        check_callable("action", action, "Give a function without arguments.")
        try:
            action()
        except Exception as error:  # ipywidgets drops what a callback raises
            self._problem = in_words(error)
            self._show_lines()
            palette = self.palette
            self._error.value = (
                f'<pre role="alert" style="background: {palette.warning}; color: {palette.ink}; '
                f'padding: 0.5em; white-space: pre-wrap">{html.escape(self._problem)}</pre>'
            )

    def say(self, text: str) -> None:
        """Show one line below the picture during a long operation.

        Raises:
            ArgumentTypeError: `text` is not a string.
        """
        check_type("text", text, str, "Give one line of text.")
        self._below.value = f"<div>{html.escape(text)}</div>"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Suspend redraws inside this block, so that several controls can be set."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def _clear_messages(self) -> None:
        """Clear the error and the line of `say` after the current state was shown."""
        self._problem = self._error.value = ""
        self._show_lines()

    def _show_lines(self) -> None:
        """Show the lines that belong below the picture when no operation is running."""
        self._below.value = ""

    def _changed(self, _: object) -> None:
        if not self._held:
            self.attempt(self.redraw)

    def __repr__(self) -> str:
        """Return a constant, so that stored notebooks match every run."""
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the live view and the current picture, which an unopened notebook shows."""
        picture, metadata = self.picture._repr_mimebundle_()
        view = self.view._repr_mimebundle_(**kwargs) or {}
        return {**view, **picture, "text/plain": repr(self)}, metadata


class FigureWidget(ShownWidget):
    """Controls above a figure. A subclass passes its controls to `__init__` and defines `draw`.

    Args:
        rows: rows of ipywidgets; whenever the `value` of one changes, the figure is redrawn. The first of
            each row should have the style `FIRST_IN_ROW`.
        unwatched: more rows, whose controls do not trigger a redraw.
        theme: initial theme, as in :func:`workbench.viz.base.style.resolve_theme`.

    Raises:
        MissingPackageError: ipywidgets is not installed.
        ArgumentTypeError: `rows` holds something other than an ipywidget with a `value`, `unwatched` holds
            something other than an ipywidget, or :meth:`draw` returns no Drawing.
        UnknownNameError: the theme is unknown.
        Exception: whatever the first drawing raises, so that the notebook cell fails like any other cell.
    """

    def __init__(
        self, *rows: Sequence[Any], unwatched: Sequence[Sequence[Any]] = (), theme: str | None = None
    ) -> None:
        ipywidgets = require_ipywidgets()
        self.theme = ipywidgets.Dropdown(
            description="theme",
            options=THEMES,
            value=resolve_theme(theme),
            style=FIRST_IN_ROW,
            layout={"width": "14em"},
        )
        self.theme.observe(self._changed, "value")
        self._image = ipywidgets.HTML()
        self._lines: tuple[str, ...] = ()
        check_each("unwatched", unwatched, Sequence, "Give a list of rows.")
        super().__init__(rows, [*unwatched, [self.theme]], [self._image])
        self.redraw()

    @abstractmethod
    def draw(self, theme: str) -> Drawing:
        """Draw the current state. If this raises, the error is shown and the last picture stays."""

    @property
    def picture(self) -> Picture:
        """The picture currently shown, with alternative text."""
        return self._shown()

    @property
    def facts(self) -> tuple[str, ...]:
        """The lines below the picture."""
        return self._lines

    @property
    def palette(self) -> Palette:
        """Colors of the chosen theme."""
        return PALETTES[resolve_theme(self.theme.value)]

    def redraw(self) -> None:
        """Redraw, after a change that no control shows.

        Raises:
            ArgumentTypeError: :meth:`draw` returns no Drawing.
            Exception: whatever :meth:`draw` raises.
        """
        drawing = self.draw(self.theme.value)
        check_type("draw", drawing, Drawing, f"Return a Drawing from {type(self).__name__}.draw.")
        image = figure_image(drawing.figure)
        self._shown = cache(lambda: Picture(small_png(image), drawing.alt))
        self._lines = tuple(drawing.facts)
        self._image.value = (
            f'<img src="data:image/png;base64,{base64.b64encode(quick_png(image)).decode("ascii")}" '
            f'alt="{html.escape(drawing.alt)}" style="max-width: 100%; height: auto">'
        )
        self._clear_messages()

    def _show_lines(self) -> None:
        self._below.value = "".join(f"<div>{html.escape(line)}</div>" for line in self._lines)


def in_words(error: Exception) -> str:
    """Return an error's message; unless it is a WorkbenchError, with its type and the line that raised it."""
    if isinstance(error, WorkbenchError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"\nraised in line {frames[-1].lineno} of {frames[-1].name}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def toggle_buttons(description: str, options: Sequence[Any], value: object, *, width: str = "4em") -> Any:
    """Return a row of buttons, one of them pressed, with the style of the first control of a row.

    Args:
        description: label on the left of the buttons.
        options: values to choose from, one for each button.
        value: the initial choice.
        width: width of a button, in CSS.
    """
    buttons = require_ipywidgets().ToggleButtons(
        options=options, value=value, description=description, style={**FIRST_IN_ROW, "button_width": width}
    )
    buttons.add_class("widget-inline-hbox")  # else its label stands above the buttons
    return buttons


def require_ipywidgets() -> Any:
    """Return the ipywidgets module, which only widgets need.

    Raises:
        MissingPackageError: ipywidgets is not installed.
    """
    try:
        import ipywidgets
    except ImportError as error:
        raise MissingPackageError(
            "Widgets need ipywidgets, which is not installed. Run `pip install ipywidgets` (`make lab` "
            "does it for you), or draw the static figure: every widget has a function beside it, such as "
            "roofline_figure."
        ) from error
    return ipywidgets
