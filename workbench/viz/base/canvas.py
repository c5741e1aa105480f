"""The base of the widgets that are drawn in the browser: hovering and stepping answer without the kernel.

What a subclass sends is data; JavaScript (the files of `js/`) draws it on canvases and says what lies under
the pointer. The state that readers change there comes back as `step` and `hovered`, so that the static
picture and the facts follow it.
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

# What JavaScript has an array of numbers for, by numpy's name.
_ARRAYS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")


class CanvasWidget(ShownWidget):
    """Controls above what JavaScript draws. A subclass has `scripts`, `scene`, `draw`, `describe`, `facts`.

    The scripts are put one behind another (what the browser gets is one module, which cannot import files),
    `common.js` first; the last one ends with `export default rendering(show)`. In it,
    `model.get(name)` gives: `scene`, as packed by :func:`packed` (`arrays(scene)` in `common.js` restores
    it); `alt`; `step` and `hovered`, which it sets; `palettes` and `theme` (empty: as the page).

    Args:
        rows, unwatched: as in :class:`workbench.viz.base.widget.FigureWidget`; most have none.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else as the page (and light in the
            static picture).

    Raises:
        MissingPackageError: anywidget or ipywidgets is not installed.
        ArgumentTypeError, UnknownNameError: an argument has the wrong type or value.
        Exception: what :meth:`scene` raises; a cell that makes a widget fails like any other cell.
    """

    scripts: ClassVar[tuple[str, ...]] = ()
    steps: int = 1  # how many there are, which :meth:`scene` may change

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
        self.canvas.observe(self._moved, ["step", "hovered"])
        super().__init__(rows, unwatched, [self.canvas])
        self.redraw()

    @abstractmethod
    def scene(self) -> Mapping[str, Any]:
        """What JavaScript draws: plain JSON data; in it, at any depth, numpy arrays for all that is long."""

    @abstractmethod
    def draw(self, theme: str) -> Figure:
        """The present state as a static figure; drawn only when it is asked for."""

    @abstractmethod
    def describe(self) -> str:
        """One sentence that describes the present state to readers who cannot see it."""

    @property
    def step(self) -> int:
        """The number of the step that is shown, from 0. It can be set."""
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
        """What lies under the pointer or the cursor; empty where nothing does."""
        return dict(self.canvas.hovered)

    @property
    def picture(self) -> Picture:
        """The present state as a PNG, drawn when it is first asked for, and its alternative text."""
        if self._picture is None:
            self._picture = Picture(figure_png(self.draw(self._theme)), self.describe())
        return self._picture

    @property
    def palette(self) -> Palette:
        """The colors of the static picture's theme."""
        return PALETTES[self._theme]

    def redraw(self) -> None:
        """Send the scene anew, after a change that JavaScript cannot know of.

        Raises:
            ArgumentTypeError: the scene holds an array that JavaScript has none for.
            Exception: what :meth:`scene` raises.
        """
        scene = packed(self.scene())
        self._picture = None
        with self.canvas.hold_sync():
            self.canvas.step = min(self.canvas.step, self.steps - 1)
            self.canvas.hovered = {}
            self.canvas.alt = self.describe()
            self.canvas.scene = scene
        self._shown_well()

    def _moved(self, _: object) -> None:
        self._picture = None


def packed(value: Any, where: str = "scene") -> Any:
    """JSON data in which each numpy array has become {"dtype", "shape", "bytes"}.

    Raises:
        ArgumentTypeError: JavaScript has no array of such numbers.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.name not in _ARRAYS:
            raise ArgumentTypeError(
                where, f"got an array of {value.dtype.name}", f"Give one of {', '.join(_ARRAYS)}."
            )
        return {"dtype": value.dtype.name, "shape": list(value.shape), "bytes": value.tobytes()}
    if isinstance(value, Mapping):
        return {str(key): packed(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [packed(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


@cache
def _canvas_class() -> Any:
    """The one subclass of AnyWidget, made when it is first needed."""
    anywidget = require_anywidget()
    import traitlets  # comes with anywidget

    class Canvas(anywidget.AnyWidget):  # type: ignore[misc, name-defined] # the module is imported late
        """What the browser and this process share."""

        _esm = traitlets.Unicode().tag(sync=True)
        _css = traitlets.Unicode().tag(sync=True)
        scene = traitlets.Dict().tag(sync=True)
        palettes = traitlets.Dict().tag(sync=True)
        theme = traitlets.Unicode().tag(sync=True)
        alt = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int(0).tag(sync=True)
        hovered = traitlets.Dict().tag(sync=True)

        def __repr__(self) -> str:
            """Fixed: anywidget's own holds an address."""
            return "Canvas()"

    return Canvas


def require_anywidget() -> Any:
    """The anywidget module, which only widgets drawn in the browser need.

    Raises:
        MissingPackageError: it is not installed.
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
