"""Base class of widgets drawn in the browser, where hovering and stepping work without the Python kernel.

A subclass sends data; JavaScript (the files in `js/`) draws it on canvases and describes what is under the
pointer. The state that readers change there comes back as `step` and `hovered`, so that the static picture
and the facts follow it.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    MissingPackageError,
    in_brief,
)
from workbench.viz.base.style import PALETTES, Palette, Picture, figure_png, resolve_theme
from workbench.viz.base.widget import ShownWidget

_JS = Path(__file__).parents[1] / "js"

# Numpy dtypes for which JavaScript has a typed array.
_ARRAYS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")


class CanvasWidget(ShownWidget):
    """Controls above a canvas. A subclass has `scripts`, `scene`, `draw`, `describe` and `facts`.

    The scripts are concatenated after `common.js`, because the browser gets a single module that cannot
    import files; the last one ends with `export default rendering(show)`. In it,
    `model.get(name)` gives: `scene`, as packed by :func:`packed` (`arrays(scene)` in `common.js` restores
    it); `alt`; `step` and `hovered`, which the script sets; `palettes`; and `theme` (empty for the page's
    theme).

    Args:
        rows, unwatched: as in :class:`workbench.viz.base.widget.FigureWidget`; most widgets have none.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else the page's theme (light
            in the static picture).

    Raises:
        MissingPackageError: anywidget or ipywidgets is not installed.
        ArgumentTypeError, UnknownNameError: an argument has the wrong type or value.
        Exception: whatever :meth:`scene` or :meth:`describe` raises, so that the notebook cell fails like any
            other cell.
    """

    scripts: ClassVar[tuple[str, ...]] = ()
    steps: int = 1  # number of steps; :meth:`scene` may change it

    def __init__(
        self, *rows: Sequence[Any], unwatched: Sequence[Sequence[Any]] = (), theme: str | None = None
    ) -> None:
        self._theme = resolve_theme(theme)
        chosen = theme is not None or bool(os.environ.get("WORKBENCH_THEME"))
        self._picture: Picture | None = None
        self.canvas = _canvas_class()(
            _esm="\n".join((_JS / name).read_text("utf-8") for name in ("common.js", *self.scripts)),
            _css=(_JS / "common.css").read_text("utf-8"),
            palettes={name: asdict(palette) for name, palette in PALETTES.items()},
            theme=self._theme if chosen else "",
        )
        self.canvas.observe(self._forget_picture, ["step", "hovered"])
        super().__init__(rows, unwatched, [self.canvas])
        self.redraw()

    @abstractmethod
    def scene(self) -> Mapping[str, Any]:
        """Return what JavaScript draws: plain JSON data, with numpy arrays for long data at any depth."""

    @abstractmethod
    def draw(self, theme: str) -> Figure:
        """Draw the current state as a static figure. Called only when the figure is needed."""

    @abstractmethod
    def describe(self) -> str:
        """Return a text alternative: a description of the current state for readers who cannot see it."""

    @property
    def step(self) -> int:
        """Index of the shown step, from 0. Can be set."""
        return min(max(int(self.canvas.step), 0), self.steps - 1)

    @step.setter
    def step(self, step: int) -> None:
        fix = f"Give a whole number from 0 to {self.steps - 1}."
        if isinstance(step, bool) or not isinstance(step, int):
            raise ArgumentTypeError("step", f"got {in_brief(step)}, a {type(step).__name__}", fix)
        if not 0 <= step < self.steps:
            raise InvalidArgumentError("step", f"got {step}", fix)
        self.canvas.step = step

    @property
    def hovered(self) -> Mapping[str, Any]:
        """Data about what is under the pointer or the cursor; empty if nothing is."""
        return dict(self.canvas.hovered)

    @property
    def picture(self) -> Picture:
        """The current state as a PNG with alternative text, drawn on first use."""
        if self._picture is None:
            self._picture = Picture(figure_png(self.draw(self._theme)), self.describe())
        return self._picture

    @property
    def palette(self) -> Palette:
        """Colors of the static picture's theme."""
        return PALETTES[self._theme]

    def redraw(self) -> None:
        """Send the scene again, after a change that JavaScript does not know of.

        Raises:
            ArgumentTypeError: the scene has an array of a dtype for which JavaScript has no typed array.
            Exception: whatever :meth:`scene` or :meth:`describe` raises.
        """
        scene = packed(self.scene())
        self._picture = None
        with self.canvas.hold_sync():
            self.canvas.step = min(self.canvas.step, self.steps - 1)
            self.canvas.hovered = {}
            self.canvas.alt = self.describe()
            self.canvas.scene = scene
        self._clear_messages()

    def _forget_picture(self, _: object) -> None:
        self._picture = None


def packed(value: Any, where: str = "scene") -> Any:
    """Return a copy of `value` that ipywidgets can send: plain data, with bytes for the arrays.

    A numpy array becomes {"dtype", "shape", "bytes"}, a tuple a list, and a numpy scalar a Python number.

    Args:
        value: JSON data, with numpy arrays and scalars at any depth.
        where: path to `value`, which errors name.

    Raises:
        ArgumentTypeError: there is an array of a dtype for which JavaScript has no typed array.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.name not in _ARRAYS:
            raise ArgumentTypeError(
                where, f"got an array of {value.dtype.name}", f"Give one of {', '.join(_ARRAYS)}: use astype."
            )
        return {"dtype": value.dtype.name, "shape": list(value.shape), "bytes": value.tobytes()}
    if isinstance(value, Mapping):
        return {str(key): packed(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [packed(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


@cache
def _canvas_class() -> Any:
    """Return the AnyWidget subclass that all canvas widgets use, created on first use."""
    anywidget = require_anywidget()
    import traitlets  # comes with anywidget

    class Canvas(anywidget.AnyWidget):  # type: ignore[misc, name-defined] # the module is imported late
        """State shared by the browser and this process."""

        _esm = traitlets.Unicode().tag(sync=True)
        _css = traitlets.Unicode().tag(sync=True)
        scene = traitlets.Dict().tag(sync=True)
        palettes = traitlets.Dict().tag(sync=True)
        theme = traitlets.Unicode().tag(sync=True)
        alt = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int(0).tag(sync=True)
        hovered = traitlets.Dict().tag(sync=True)

        def __repr__(self) -> str:
            """Return a constant; anywidget's own text includes an address."""
            return "Canvas()"

    return Canvas


def require_anywidget() -> Any:
    """Return the anywidget module, which only widgets drawn in the browser need.

    Raises:
        MissingPackageError: anywidget is not installed.
    """
    try:
        import anywidget
    except ImportError as error:
        raise MissingPackageError(
            "This widget needs anywidget, which is not installed. Run `pip install anywidget` (`make lab` "
            "does it for you), or draw the static figure: every widget has a function beside it, such as "
            "trace_map."
        ) from error
    return anywidget
