"""Roofline with controls to choose what is drawn and to add a kernel of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from workbench.bench.roofline import Ceilings, Point
from workbench.errors import InvalidArgumentError, check_each, check_type
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.roofline.points import TYPED, YOUR_KERNEL
from workbench.viz.roofline.roofline import check, check_point, describe_drawn, draw_roofline, dtypes_of, fact

Roofline: TypeAlias = tuple[Ceilings, Sequence[Point]]
Source: TypeAlias = Roofline | Callable[[], Roofline]

_ALL = "all"
_MOST_ROWS = 8  # the most dtypes that are listed without scrolling


class RooflineWidget(FigureWidget):
    """Widget for the roofline: choose operator, dtypes, sizes, data source and theme, and add your kernel.

    The static figure is :func:`workbench.viz.roofline.roofline_figure`.

    Args:
        load: (ceilings, points), or a function that returns them; or several of these by name, such as
            {"live": measure, "recorded": read}, for the reader to choose from. The first is the initial
            choice; a function is called when its name is first chosen.
        add: initial point of the reader's own, as in :meth:`add`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `load` or `add` has the wrong type, or cannot be drawn.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever a function in `load` raises for the first source, or the function `add`.
    """

    def __init__(
        self,
        load: Source | Mapping[str, Source],
        *,
        add: Point | Callable[[], Point] | None = None,
        theme: str | None = None,
    ) -> None:
        widgets = require_ipywidgets()
        self._sources = dict(load) if isinstance(load, Mapping) else {"data": load}
        if not self._sources:
            raise InvalidArgumentError(
                "load", "got no source", 'Give at least one, such as {"recorded": read}.'
            )
        check_each("load", self._sources, str, "Name each source by a text, such as 'recorded'.")
        self._loaded: dict[str, Roofline] = {}
        self._current: str | None = None
        self._own: list[Point] = []
        # _offer updates the options after data was loaded.
        self.source = widgets.Dropdown(
            description="source", options=list(self._sources), style=FIRST_IN_ROW, layout={"width": "19em"}
        )
        self.operator = widgets.Dropdown(
            description="operator", options=[_ALL], style=FIRST_IN_ROW, layout={"width": "19em"}
        )
        self.dtypes = widgets.SelectMultiple(description="dtypes", layout={"width": "14em"})
        self.sizes = widgets.SelectionRangeSlider(
            description="sizes", options=[_ALL], continuous_update=False, layout={"width": "26em"}
        )
        self.flops, self.bytes, self.milliseconds = (
            widgets.FloatText(description=name, value=value, layout={"width": "15em"})
            for name, value in (("FLOPs", 2.0**24), ("bytes", 12 * 2.0**24), ("ms", 0.1))
        )
        self.flops.style = FIRST_IN_ROW
        self.own_dtype = widgets.Dropdown(description="dtype", layout={"width": "14em"})
        self.add_button = widgets.Button(description="add your kernel", icon="star")
        self.clear_button = widgets.Button(description="remove yours", icon="trash")
        self.add_button.on_click(lambda _: self.attempt(self._add_typed))
        self.clear_button.on_click(lambda _: self.attempt(self._clear))
        if add is not None:
            self._own.append(_own_point("add", add))
        super().__init__(
            [self.source] if len(self._sources) > 1 else [],
            [self.operator, self.dtypes, self.sizes],
            unwatched=[
                [widgets.Label("your own kernel")],
                [self.flops, self.bytes, self.milliseconds, self.own_dtype],
                [self.add_button, self.clear_button],
            ],
            theme=theme,
        )

    def add(self, point: Point | Callable[[], Point]) -> None:
        """Draw a kernel of your own as a labeled star: a Point, or a function that measures and returns one.

        Raises:
            ArgumentTypeError, InvalidArgumentError: `point` is not a Point, or cannot be drawn.
        """
        own = _own_point("point", point)
        self._own.append(own)
        try:
            self.redraw()
        except Exception:  # otherwise a point that cannot be drawn would break every later picture
            self._own.remove(own)
            raise

    def draw(self, theme: str) -> Drawing:
        """Draw the chosen points under the roofs of the chosen dtypes, and the reader's own points."""
        ceilings, points = self._chosen()
        self._offer(ceilings, points)
        labels = _labels(points, self.operator.value)
        first, last = self.sizes.index
        chosen = set(labels[first : last + 1])
        shown = [
            point
            for point in points
            if point.dtype in self.dtypes.value
            and self.operator.value in (_ALL, point.op)
            and point.label in chosen
        ]
        drawn = [*shown, *self._own]
        figure = draw_roofline(ceilings, [*points, *self._own], drawn, self.dtypes.value, theme=theme)
        placed = sum(point.flops > 0 for point in shown)
        facts = [f"{placed} of {len(points)} points shown."]
        facts += [f"{fact(ceilings, point)}." for point in self._own]
        return Drawing(figure, describe_drawn(ceilings, drawn, self.dtypes.value), facts)

    def _chosen(self) -> Roofline:
        """Return the chosen source's data, read on first use; if that fails, undo the choice."""
        name = self.source.value
        if name not in self._loaded:
            self.say(f"Getting the data: {name} ...")
            try:
                self._loaded[name] = _read(self._sources[name])
            except Exception:
                if self._current is not None:
                    with self.held():
                        self.source.value = self._current
                raise
        self._current = name
        return self._loaded[name]

    def _offer(self, ceilings: Ceilings, points: Sequence[Point]) -> None:
        """Update the controls' options, and keep the chosen values that still exist."""
        dtypes = dtypes_of(ceilings, points)
        with self.held():
            _set_options(self.operator, [_ALL, *dict.fromkeys(point.op for point in points)])
            _set_options(self.own_dtype, dtypes or ["fp32"])
            if list(self.dtypes.options) != dtypes:
                kept = [dtype for dtype in self.dtypes.value if dtype in dtypes]
                self.dtypes.options = dtypes
                self.dtypes.rows = min(max(len(dtypes), 2), _MOST_ROWS)
                self.dtypes.value = kept or dtypes
            labels = _labels(points, self.operator.value) or [_ALL]
            if list(self.sizes.options) != labels:
                self.sizes.options = labels
                self.sizes.index = (0, len(labels) - 1)

    def _add_typed(self) -> None:
        for control, (least, most) in (
            (self.flops, (0, 1e24)),
            (self.bytes, (1, 1e18)),
            (self.milliseconds, (1e-6, 1e9)),
        ):
            if not least <= control.value <= most:
                raise InvalidArgumentError(
                    control.description,
                    f"got {control.value:g}",
                    f"Type a number from {least:g} to {most:g}.",
                )
        self.add(
            Point(
                label=f"yours {len(self._own) + 1}",
                provider=YOUR_KERNEL,
                op="",
                dtype=self.own_dtype.value,
                flops=int(self.flops.value),
                bytes=int(self.bytes.value),
                seconds=self.milliseconds.value / 1e3,
                device=TYPED,
                when="",
                recorded=False,
            )
        )

    def _clear(self) -> None:
        self._own.clear()
        self.redraw()


def _read(source: Source) -> Roofline:
    loaded: Any = source() if callable(source) else source
    fix = "Give (ceilings, points), or a function that returns them."
    check_type("load", loaded, tuple, fix)
    if len(loaded) != 2:
        raise InvalidArgumentError("load", f"got {len(loaded)} values", fix)
    ceilings, points = loaded
    return ceilings, check(ceilings, points)


def _own_point(argument: str, point: Point | Callable[[], Point]) -> Point:
    measured = point() if callable(point) else point
    check_type(argument, measured, Point, "Give a Point, or a function that returns one.")
    check_point(argument, measured)
    return replace(measured, provider=YOUR_KERNEL)


def _labels(points: Sequence[Point], operator: str) -> list[str]:
    """Return the labels of an operator's points, sorted by bytes moved."""
    of_operator = [point for point in points if operator in (_ALL, point.op)]
    return list(dict.fromkeys(point.label for point in sorted(of_operator, key=lambda point: point.bytes)))


def _set_options(control: Any, options: Sequence[str]) -> None:
    if list(control.options) != list(options):
        kept = control.value
        control.options = options
        control.value = kept if kept in options else next(iter(options), None)
