"""GEMM with a chain of epilogue functors: its source, its fused and unfused traffic, and its time."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.bench.roofline import Ceilings, Point, bound
from workbench.errors import InvalidArgumentError, check_each, check_name, check_positive, check_type
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import (
    DPI,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    drawable,
    fit,
    new_figure,
    plain_text_style,
    text_color,
)
from workbench.viz.base.widget import FIRST_IN_ROW, Drawing, FigureWidget, require_ipywidgets
from workbench.viz.base.words import counted, listed
from workbench.viz.roofline.points import number

NO_FUNCTOR = "none"
MOST_FUNCTORS = 4

# In pixels; y is measured from the top. The code is on the left, the bars and the table on the right.
_WIDTH, _EDGE, _TITLE, _SUBTITLE, _TOP = WIDTH, 14.0, 24.0, 47.0, 84.0
_CODE_END, _RIGHT, _NAMES, _LINE, _ROW = 500.0, 524.0, 66.0, 15.0, 22.0
_BAR, _BARS_END, _LINE_OF_CAPTION = 26.0, 900.0, 17.0
_SMALL, _CODE = 9, 7  # points
_MOST_LINES, _CHARACTERS = 34, 66  # limits of the code: lines, and characters in a line
_MONO = "DejaVu Sans Mono"


@dataclass(frozen=True)
class FusionChoice:
    """GEMM sizes and the chain of functors that is applied before the store.

    Attributes:
        m, n, k: sizes of the product.
        functors: names of the functors, in order; at most `MOST_FUNCTORS`.
    """

    m: int = 4096
    n: int = 4096
    k: int = 4096
    functors: tuple[str, ...] = ("add", "add", "fast_gelu")

    @property
    def chain(self) -> str:
        """The product and its functors as text: "product + add + gelu"."""
        return " + ".join(("product", *self.functors))


@dataclass(frozen=True)
class FusionKernel:
    """A kernel of a plan, with its FLOPs and its traffic.

    Attributes:
        name: what it computes.
        flops: FLOPs of the matrix units; those of functors do not count.
        bytes: bytes that it loads and stores, each element counted once.
    """

    name: str
    flops: int
    bytes: int

    def seconds(self, roofs: Ceilings, dtype: str) -> float:
        """Return the least time under the roofs: the larger of compute time and memory time."""
        return max(self.flops / roofs.rate(dtype), self.bytes / roofs.bandwidth)


@dataclass(frozen=True)
class FusedTensor:
    """Bytes of one tensor that each plan moves.

    Attributes:
        name: name of the tensor.
        fused, unfused: bytes moved by the fused kernel, and by all kernels of the unfused plan.
    """

    name: str
    fused: int
    unfused: int


@dataclass(frozen=True)
class ExploredFusion:
    """The plans of a choice, fused and unfused, with their traffic and times.

    Attributes:
        choice: sizes and functors.
        dtype: dtype of all matrices, by its name in recordings.
        sources: source of each functor by name, in order of first use.
        tensors: traffic of each tensor.
        fused: the fused kernel. unfused: the product's kernel, then one for each functor.
        roofs: roofs of a device; None if none are known for the dtype.
        points: speeds of exactly this product and chain, recorded or just measured; may be empty.
    """

    choice: FusionChoice
    dtype: str
    sources: Mapping[str, str]
    tensors: tuple[FusedTensor, ...]
    fused: FusionKernel
    unfused: tuple[FusionKernel, ...]
    roofs: Ceilings | None
    points: tuple[Point, ...] = ()

    @property
    def unfused_bytes(self) -> int:
        """Bytes that all kernels of the unfused plan move."""
        return sum(kernel.bytes for kernel in self.unfused)

    @property
    def saved(self) -> int:
        """Bytes that fusion saves."""
        return self.unfused_bytes - self.fused.bytes

    @property
    def predicted(self) -> tuple[float, float]:
        """Least seconds of the fused and of the unfused plan under the roofs; 0 without roofs."""
        if self.roofs is None:
            return 0.0, 0.0
        of_each = [kernel.seconds(self.roofs, self.dtype) for kernel in (self.fused, *self.unfused)]
        return of_each[0], sum(of_each[1:])

    @property
    def bound(self) -> Literal["memory", "compute", ""]:
        """The roof that limits the fused kernel, "memory" or "compute"; empty without roofs."""
        if self.roofs is None:
            return ""
        intensity = self.fused.flops / self.fused.bytes
        return bound(intensity, self.roofs.bandwidth, self.roofs.rate(self.dtype))

    @property
    def code(self) -> str:
        """The chain of calls in the kernel, followed by the source of its functors."""
        defined = {name: text.partition("(")[0].removeprefix("def ") for name, text in self.sources.items()}
        calls = [f"tile = {defined[name]}(tile, operands, place)  # {name}" for name in self.choice.functors]
        texts = dict.fromkeys(text.strip() for text in self.sources.values())
        lines = ["tile = ...  # of A @ B, in registers", *calls, "store(tile)"]
        return "\n".join([*lines, *(f"\n{text}" for text in texts)])


def fusion_explorer_figure(explored: ExploredFusion, *, theme: str | None = None) -> Figure:
    """Draw the chain's source, and beside it traffic, least times and measured times of both plans.

    Each bar is divided into one part for each kernel of its plan.

    Args:
        explored: a result of `explore.fusion.explored`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `explored` has the wrong type. UnknownNameError: the theme is unknown.
    """
    _check_explored("explored", explored)
    code = _wrapped_code(explored.code)
    plans = _bar_groups(explored)
    rows = _rows(explored)
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        bars = sum(40 + len(plan.bars) * (_BAR + 8) for plan in plans)
        caption = _caption(explored)
        below = 22 + len(caption) * _LINE_OF_CAPTION
        height = round(_TOP + max(len(code) * _LINE, bars + 8 + len(rows) * _ROW) + below)
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        page = _PixelAxes(axes, palette)
        page.write(_EDGE, _TITLE, explored.choice.chain, size=12, weight="bold")
        page.write(_EDGE, _SUBTITLE, _subtitle(explored), color=palette.muted)
        for place, line in enumerate(code):
            is_new = line.startswith("def ")
            color = palette.muted if line.lstrip().startswith("#") else palette.ink
            page.write(
                _EDGE, _TOP + place * _LINE, line, end=_CODE_END, color=color, size=_CODE, is_code=True,
                weight="bold" if is_new else "normal",
            )  # fmt: skip
        top = _TOP
        for plan in plans:
            top = _draw_bar_group(page, plan, top)
        for place, (name, value) in enumerate(rows):
            y = top + 8 + place * _ROW
            page.write(_RIGHT, y, name, end=_RIGHT + 118, color=palette.muted)
            page.write(_RIGHT + 122, y, value)
        for place, line in enumerate(reversed(caption)):
            y = height - 15 - place * _LINE_OF_CAPTION
            page.write(_EDGE, y, line, color=palette.muted, size=8)
    return figure


def describe_fusion_explorer(explored: ExploredFusion) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    _check_explored("explored", explored)
    return " ".join(_sentences(explored))


class FusionExplorerWidget(FigureWidget):
    """Widget to build an epilogue functor by functor; it shows what the fusion of the epilogue saves.

    Results are cached. The static figure is :func:`fusion_explorer_figure`.

    Args:
        explore: function from a choice to its `ExploredFusion`.
        functors: names to choose from.
        sizes: values to choose from for m, n and k.
        first: the initial choice; its values must be among `functors` and `sizes`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument has the wrong type or value, or `sizes` lack a
            size of `first`.
        UnknownNameError: the theme is unknown, or `functors` lack a functor of `first`.
        MissingPackageError: ipywidgets is not installed.
        Exception: whatever `explore` raises for `first`.
    """

    def __init__(
        self,
        explore: Callable[[FusionChoice], ExploredFusion],
        functors: Sequence[str],
        sizes: Sequence[int],
        first: FusionChoice | None = None,
        *,
        theme: str | None = None,
    ) -> None:
        check_callable("explore", explore, "Give a function from a FusionChoice to an ExploredFusion.")
        first = FusionChoice() if first is None else first
        names, lengths = _checked_choices(functors, sizes, first)
        widgets = require_ipywidgets()
        self._explore = explore
        self._known: dict[FusionChoice, ExploredFusion] = {}
        self.functors = [
            widgets.Dropdown(
                options=[NO_FUNCTOR, *names],
                value=first.functors[place] if place < len(first.functors) else NO_FUNCTOR,
                description="chain" if place == 0 else "then",
                style=FIRST_IN_ROW if place == 0 else {"description_width": "3em"},
                layout={"width": "15em" if place == 0 else "13em"},
            )
            for place in range(MOST_FUNCTORS)
        ]
        self.sizes = {
            name: widgets.SelectionSlider(
                options=lengths, value=getattr(first, name), description=name, continuous_update=False,
                style=FIRST_IN_ROW if name == "m" else {"description_width": "3em"},
                layout={"width": "20em" if name == "m" else "18em"},
            )
            for name in ("m", "n", "k")
        }  # fmt: skip
        self.status = widgets.HTML(layout={"min_height": "2em"})
        super().__init__(self.functors, list(self.sizes.values()), unwatched=[[self.status]], theme=theme)

    @property
    def choice(self) -> FusionChoice:
        """The choice that the controls show."""
        sizes = {name: control.value for name, control in self.sizes.items()}
        names = [control.value for control in self.functors if control.value != NO_FUNCTOR]
        return FusionChoice(**sizes, functors=tuple(names))

    def draw(self, theme: str) -> Drawing:
        """Draw the choice that the controls show."""
        explored = self._explored_choice(self.choice)
        figure = fusion_explorer_figure(explored, theme=theme)
        return Drawing(figure, describe_fusion_explorer(explored), _sentences(explored))

    def _explored_choice(self, choice: FusionChoice) -> ExploredFusion:
        if choice not in self._known:
            self.status.value = '<div role="status">Tracing both plans on a small product …</div>'
            begin = time.perf_counter()
            try:
                explored = self._explore(choice)
            finally:
                self.status.value = ""
            self._known[choice] = _check_explored("explore(choice)", explored)
            seconds = time.perf_counter() - begin
            self.status.value = f'<div role="status">traced in {seconds:.1f} s</div>'
        return self._known[choice]


def _checked_choices(
    functors: Sequence[str], sizes: Sequence[int], first: FusionChoice
) -> tuple[list[str], list[int]]:
    check_type("first", first, FusionChoice, "Give a FusionChoice.")
    names = list(check_each("functors", functors, str, 'Give names, such as ("add", "gelu").'))
    lengths = list(check_each("sizes", sizes, int, "Give lengths, such as (1024, 4096)."))
    for place, length in enumerate(lengths):
        check_positive(f"sizes[{place}]", length)
    for name in ("m", "n", "k"):
        if getattr(first, name) not in lengths:
            given = f"{lengths}, without {getattr(first, name)!r}"
            fix = f"Add {getattr(first, name)!r}: it is `{name}` of `first`."
            raise InvalidArgumentError("sizes", given, fix)
    for name in first.functors:
        check_name("first.functors", name, names)
    if len(first.functors) > MOST_FUNCTORS:
        given = f"got {len(first.functors)} functors"
        fix = f"Give at most {MOST_FUNCTORS}: the widget has {MOST_FUNCTORS} controls for functors."
        raise InvalidArgumentError("first.functors", given, fix)
    return names, lengths


def _check_explored(argument: str, explored: ExploredFusion) -> ExploredFusion:
    check_type(argument, explored, ExploredFusion, "It must be a result of explore.fusion.explored.")
    return explored


def _wrapped_code(code: str) -> list[str]:
    lines = []
    for line in code.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 8)
        lines += textwrap.wrap(line, _CHARACTERS, subsequent_indent=indent) or [""]
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 1], f"# and {len(lines) - _MOST_LINES + 1} more lines"]


def _size(count: float) -> str:
    return f"{number(count / 1e6)} MB" if count >= 1e6 else f"{number(count / 1e3)} kB"


def _time(seconds: float) -> str:
    return f"{number(seconds * 1e6)} µs" if seconds >= 1e-6 else f"{number(seconds * 1e9)} ns"


class _PlanBar(NamedTuple):
    """Bar of one plan: its parts, and its total as text."""

    name: str
    parts: list[tuple[str, float]]
    text: str


class _BarGroup(NamedTuple):
    """Bars of both plans in one unit."""

    title: str
    bars: list[_PlanBar]


def _bar_groups(explored: ExploredFusion) -> list[_BarGroup]:
    """Return the bars of both plans: bytes, and if there are roofs, times."""
    kernels = [("fused", (explored.fused,)), ("unfused", explored.unfused)]
    moved = [
        _PlanBar(name, [(each.name, each.bytes) for each in those], _size(sum(e.bytes for e in those)))
        for name, those in kernels
    ]
    plans = [_BarGroup("bytes moved, each element once a kernel, kernels in order", moved)]
    if (roofs := explored.roofs) is not None:
        times = []
        for name, those in kernels:
            parts = [(each.name, each.seconds(roofs, explored.dtype)) for each in those]
            times.append(_PlanBar(name, parts, _time(sum(seconds for _, seconds in parts))))
        plans.append(_BarGroup("least time under the roofs", times))
    return plans


def _rows(explored: ExploredFusion) -> list[tuple[str, str]]:
    """Return names and values for the table: everything that is not drawn as a bar."""
    fewer = explored.unfused_bytes / explored.fused.bytes
    rows = [
        ("saved", f"{_size(explored.saved)}: unfused moves {fewer:.2f} times as much"),
    ]
    kept = [each.name for each in explored.tensors if each.unfused and not each.fused]
    if kept:
        rows.append(
            ("on chip alone", listed(kept[:2] if len(kept) < 3 else [kept[0], f"{len(kept) - 1} more"]))
        )
    if explored.roofs is not None:
        fused, unfused = explored.predicted
        rows += [("bound by", explored.bound), ("fusing gains", f"{unfused / fused:.2f} times, by the model")]
    rows += [
        ("recorded" if each.recorded else "measured", f"{each.provider} {_time(each.seconds)}")
        for each in explored.points
    ]
    if not explored.points:
        rows.append(("measured", "no recording of this product and chain"))
    return rows


def _subtitle(explored: ExploredFusion) -> str:
    choice = explored.choice
    ways = f"{counted(len(explored.unfused), 'kernel')}, or 1 that does all of it before it stores"
    return (
        f"{choice.m} x {choice.n} x {choice.k}, {explored.dtype}: {ways if choice.functors else '1 kernel'}"
    )


def _sentences(explored: ExploredFusion) -> list[str]:
    """Return the sentences that describe the figure."""
    choice = explored.choice
    fused, unfused = explored.predicted
    sentences = [
        f"A product of {choice.m} x {choice.n} x {choice.k} in {explored.dtype}, "
        f"then {listed(choice.functors) if choice.functors else 'nothing'}: "
        f"fused {_size(explored.fused.bytes)} in 1 kernel, unfused {_size(explored.unfused_bytes)} "
        f"in {len(explored.unfused)}."
    ]
    if explored.roofs is None:
        sentences.append(_without_roofs(explored))
    else:
        sentences.append(f"Under the roofs at least {_time(fused)} fused, {_time(unfused)} unfused.")
    rows = [f"{name}: {value}" for name, value in _rows(explored)]
    text = "; ".join(rows)
    sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return sentences


def _without_roofs(explored: ExploredFusion) -> str:
    return f"No {explored.dtype} roofs are known, so no time is predicted: give them as `roofs`."


def _caption(explored: ExploredFusion) -> list[str]:
    counts = "Bytes are those of traces of a small product, scaled by the sizes of its tensors."
    if explored.roofs is None:
        return [counts, _without_roofs(explored)]
    how = "recorded" if explored.roofs.recorded else "measured live"
    where = f"by roofs {how} on {explored.roofs.device}, {explored.roofs.when}"
    found = [counts, f"Times are a model: matrix FLOPs or bytes, whichever takes longer, {where}."]
    if explored.points:
        found.append(
            "Roofs are of work that lasts; what was timed in bursts, at a higher clock, may lie below them."
        )
    return found


class _PixelAxes(NamedTuple):
    """Axes in pixels to write on; y points down."""

    axes: Axes
    palette: Palette

    def write(
        self,
        x: float,
        y: float,
        text: str,
        *,
        end: float = _WIDTH - _EDGE,
        color: str | None = None,
        size: float = _SMALL,
        weight: str = "normal",
        is_code: bool = False,
        **looks: Any,
    ) -> None:
        """Write one line, cut off at `end`."""
        if is_code:
            looks["fontfamily"] = [_MONO, *mpl.rcParams["font.family"]]
        note = self.axes.text(
            x, y, drawable(text), color=color or self.palette.ink, fontsize=size, fontweight=weight,
            va="center", **looks,
        )  # fmt: skip
        fit(note, end - x)


def _draw_bar_group(page: _PixelAxes, plans: _BarGroup, top: float) -> float:
    """Draw a bar for each plan from y = `top` on, and return the y below the last one."""
    palette = page.palette
    page.write(_RIGHT, top, plans.title, color=palette.muted)
    top += 24
    left = _RIGHT + _NAMES
    most = max(sum(amount for _, amount in bar.parts) for bar in plans.bars)
    for bar, color in zip(plans.bars, (palette.series[0], palette.series[1]), strict=True):
        page.write(_RIGHT, top + _BAR / 2 - 6, bar.name, end=left - 4)
        x = left
        for place, (name, amount) in enumerate(bar.parts):
            width = (_BARS_END - left) * amount / most
            fill = color if place % 2 == 0 else mixed(palette.background, color, 0.7)
            page.axes.add_patch(
                Rectangle(
                    (x, top - 6), width, _BAR, facecolor=fill, edgecolor=palette.background, linewidth=1
                )
            )
            if width > 7.5 * len(name):
                page.write(
                    x + width / 2, top - 6 + _BAR / 2, name, end=_WIDTH, size=7.5, ha="center",
                    color=text_color(palette, fill),
                )  # fmt: skip
            x += width
        page.write(x + 8, top + _BAR / 2 - 6, bar.text)
        top += _BAR + 8
    return top + 16
