"""Data flow of attention's backward: for each kernel the tiles that it keeps and the tiles that pass by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from workbench.errors import InvalidArgumentError, check_type
from workbench.readings.attention_gradients import GradientFlow, KernelFlow, Part, TileFlow
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, new_figure, plain_text_style
from workbench.viz.base.words import bytes_text, grouped, listed, times

# Sizes in pixels.
_MARGIN, _HEADING, _TITLE, _BETWEEN, _LINE = 18.0, 76.0, 46.0, 22.0, 19.0
_LONGEST, _SHORTEST = 76.0, 7.0  # limits of the sides of a drawn tile
_UNDER, _NAMES = 32.0, 22.0  # heights of the texts below and above a tile
_GAP, _LEAST_WIDTHS = 11.0, (45.0, 54.0)  # gap between tiles; least widths of 1D and 2D tiles with their text
_PRODUCTS, _ARROW = 256.0, 24.0  # widths of the list of products and of an arrow
_MOST_KERNELS = 8

_PARTS: dict[Part, str] = {
    "kept": "kept by a program",
    "passing": "passes by, tile after tile",
    "written": "written",
    "added": "added to, atomically",
}


def plot_attention_gradients(flow: GradientFlow, *, theme: str | None = None) -> Figure:
    """Draw each kernel from left to right: tiles kept, tiles passing by, products, tiles written.

    Args:
        flow: a result of `readings.attention_gradients.gradient_flow`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `flow` has the wrong type. InvalidArgumentError: it has no kernels, or too many.
        UnknownNameError: the theme is unknown.
    """
    _check(flow)
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        sentences = _sentences(flow)[1:]
        scale = _scale(flow)
        heights = [_height(kernel, scale) for kernel in flow.kernels]
        width = WIDTH
        below = _HEADING + sum(heights) + _BETWEEN * len(heights)
        height = round(below + len(sentences) * _LINE + _MARGIN)
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        axes.set_position((0, 0, 1, 1))
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        pen = _Pen(axes, palette, scale)
        pen.write(_MARGIN, 22, _heading(flow), fontsize=12, fontweight="bold")
        top = _HEADING
        for number, (kernel, down) in enumerate(zip(flow.kernels, heights, strict=True), 1):
            _draw_kernel(pen, kernel, number, top, down)
            top += down + _BETWEEN
        for number, line in enumerate(sentences):
            pen.write(_MARGIN, below + (number + 0.5) * _LINE, line, fontsize=9)
        colors = _colors(palette)
        parts = {f.part for kernel in flow.kernels if kernel.products for f in kernel.flows}
        figure.legend(
            handles=[Patch(color=colors[part], label=_PARTS[part]) for part in _PARTS if part in parts],
            loc="center left", bbox_to_anchor=((_MARGIN - 4) / width, 1 - 50 / height), ncols=len(_PARTS),
            borderaxespad=0, borderpad=0.3, handlelength=1.2, columnspacing=1.6,
        )  # fmt: skip
    return figure


def describe_attention_gradients(flow: GradientFlow) -> str:
    """Return the text alternative of :func:`plot_attention_gradients`, with its arguments and errors."""
    _check(flow)
    sentences = " ".join(_sentences(flow))
    return f"The kernels of attention's backward with their tiles, from left to right. {sentences}"


def _check(flow: GradientFlow) -> None:
    fix = "Give a result of readings.attention_gradients.gradient_flow."
    check_type("flow", flow, GradientFlow, fix)
    if not 0 < len(flow.kernels) <= _MOST_KERNELS:
        fix = f"Give a flow of 1 to {_MOST_KERNELS} kernels."
        raise InvalidArgumentError("flow", f"it has {len(flow.kernels)} kernels", fix)


def _heading(flow: GradientFlow) -> str:
    kernels = sum(bool(kernel.products) for kernel in flow.kernels)
    where = "one kernel" if kernels == 1 else f"{kernels} kernels"
    return f"Attention's backward: {grouped(flow.products, 'product')} for a pair of tiles, in {where}"


def _sentences(flow: GradientFlow) -> list[str]:
    """Return the sentences that describe the figure."""
    sentences = [f"{_heading(flow)}."]
    for kernel in flow.kernels:
        moved = f"loads {bytes_text(kernel.loaded)}, stores {bytes_text(kernel.stored)}"
        if not kernel.products:
            sentences.append(f"{kernel.kernel}: {moved}.")
            continue
        kept, passing, written = (
            listed([f.name for f in _formula_tiles(kernel, *parts)])
            for parts in (("kept",), ("passing",), ("written", "added"))
        )
        sentences.append(
            f"{kernel.kernel}: keeps {kept}; {passing} pass by, {times(kernel.visits)}; writes {written}; "
            f"{moved}."
        )
    loaded, stored = (sum(getattr(k, what) for k in flow.kernels) for what in ("loaded", "stored"))
    sentences.append(f"All kernels together: load {bytes_text(loaded)}, store {bytes_text(stored)}.")
    return sentences


def _formula_tiles(kernel: KernelFlow, *parts: Part) -> list[TileFlow]:
    """Return the tiles of a kernel that the formulas name; tiles of masks and hooks are not drawn."""
    return [flow for part in parts for flow in kernel.of(part) if flow.name != flow.argument]


def _colors(palette: Palette) -> dict[Part, str]:
    return {
        "kept": palette.series[0],
        "passing": palette.series[1],
        "written": palette.series[2],
        "added": palette.series[3],
    }


def _scale(flow: GradientFlow) -> float:
    """Return the pixels per element at which the tiles of every kernel with products fit side by side."""
    kernels = [kernel for kernel in flow.kernels if kernel.products]
    scale = _LONGEST / max(
        (side for kernel in kernels for f in _formula_tiles(kernel, *_PARTS) for side in f.shape), default=1
    )
    room = WIDTH - 2 * _MARGIN - _PRODUCTS - _ARROW - 10
    for _ in range(20):
        if all(
            sum(_room(f, scale) + _GAP for f in _formula_tiles(kernel, *_PARTS)) <= room for kernel in kernels
        ):
            break
        scale *= 0.9
    return scale


def _room(flow: TileFlow, scale: float) -> float:
    """Return the width in pixels of a tile with its text."""
    return max(_box(flow, scale)[0], _LEAST_WIDTHS[len(flow.shape) - 1])


def _height(kernel: KernelFlow, scale: float) -> float:
    if not kernel.products:
        return _TITLE
    tallest = max(_box(f, scale)[1] for f in _formula_tiles(kernel, *_PARTS))
    return _TITLE + _NAMES + max(tallest + _UNDER, 23.0 * len(kernel.products) + 10)


def _box(flow: TileFlow, scale: float) -> tuple[float, float]:
    """Return the width and height in pixels of a drawn tile; a tile of one dimension is a thin column."""
    rows, cols = flow.shape if len(flow.shape) == 2 else (flow.shape[0], 1)
    return max(cols * scale, _SHORTEST), max(rows * scale, _SHORTEST)


@dataclass(frozen=True)
class _Pen:
    """Axes in pixels from the upper left corner, with a palette and a scale.

    Attributes:
        axes: axes to draw into.
        palette: colors.
        scale: pixels per element of a tile.
    """

    axes: Axes
    palette: Palette
    scale: float

    def write(self, left: float, top: float, text: str, **style: Any) -> None:
        """Write a text, vertically centered at `top`."""
        self.axes.text(left, top, text, **{"va": "center", "color": self.palette.ink, **style})

    def tiles(self, left: float, top: float, flows: Sequence[TileFlow]) -> float:
        """Draw tiles side by side, with names above and shapes below, and return their right edge."""
        for flow in flows:
            across, down = _box(flow, self.scale)
            room = _room(flow, self.scale)
            middle = left + room / 2
            color = _colors(self.palette)[flow.part]
            corner = (middle - across / 2, top + _NAMES)
            self.axes.add_patch(
                Rectangle(
                    corner, across, down, facecolor=mixed(self.palette.background, color, 0.55),
                    edgecolor=color, linewidth=1.6,
                )
            )  # fmt: skip
            self.write(middle, top + 9, flow.name, ha="center", fontsize=10, fontweight="bold")
            shape = " × ".join(map(str, flow.shape))
            muted = self.palette.muted
            self.write(middle, top + _NAMES + down + 11, shape, ha="center", fontsize=8, color=muted)
            how = f"× {flow.times:.3g}" if flow.times > 1 else "once"
            self.write(middle, top + _NAMES + down + 24, how, ha="center", fontsize=8, color=muted)
            left += room + _GAP
        return left

    def arrow(self, left: float, middle: float) -> None:
        """Draw an arrow from left to right."""
        self.axes.add_patch(
            FancyArrowPatch(
                (left, middle), (left + _ARROW, middle), arrowstyle="-|>", mutation_scale=11,
                color=self.palette.muted, linewidth=1.4, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip


def _draw_kernel(pen: _Pen, kernel: KernelFlow, number: int, top: float, down: float) -> None:
    palette, width = pen.palette, WIDTH
    pen.axes.plot([_MARGIN, width - _MARGIN], [top - 8, top - 8], color=palette.grid, linewidth=1.0)
    pen.write(_MARGIN, top + 8, f"{number}. {kernel.kernel}", fontsize=10.5, fontweight="bold")
    pen.write(_MARGIN, top + 28, _subtitle(kernel), fontsize=9, color=palette.muted)
    if not kernel.products:
        return
    body = top + _TITLE
    middle = body + _NAMES + (down - _TITLE - _NAMES - _UNDER) / 2
    left = pen.tiles(_MARGIN, body, _formula_tiles(kernel, "kept"))
    left = pen.tiles(left + 6, body, _formula_tiles(kernel, "passing"))
    pen.arrow(left - 8, middle)
    left += _ARROW + 2
    _write_products(pen, kernel, left, body)
    left += _PRODUCTS
    pen.arrow(left - _ARROW - 6, middle)
    pen.tiles(left, body, _formula_tiles(kernel, "written", "added"))


def _subtitle(kernel: KernelFlow) -> str:
    programs = grouped(kernel.programs, "program")
    if not kernel.products:
        loaded, stored = (
            list(dict.fromkeys(f.name.partition("[")[0] for f in kernel.of(part)))
            for part in ("passing", "written")
        )
        return f"{programs}: reads {listed(loaded) if loaded else 'nothing'}, writes {listed(stored)}"
    others = list(dict.fromkeys(f.argument.partition("[")[0] for f in kernel.flows if f.name == f.argument))
    also = f"; it reads {listed(others)} too" if others else ""
    visits = f"a program visits up to {kernel.most_visits} tiles, all together {kernel.visits:,}"
    return f"{programs}; {visits}; {kernel.flops / 1e6:,.3g} MFLOP of products{also}"


def _write_products(pen: _Pen, kernel: KernelFlow, left: float, top: float) -> None:
    """Write the formula of each product of a visit, and its rows, columns and length of the sum."""
    muted = pen.palette.muted
    pen.write(left, top + 9, "at each visit", fontsize=9, color=muted)
    pen.write(left + 112, top + 9, "rows × columns × sum", fontsize=8, color=muted)
    for number, product in enumerate(kernel.products):
        line = top + 32 + 23 * number
        pen.write(left, line, product.name, fontsize=10)
        pen.write(left + 112, line, " × ".join(map(str, product.shape)), fontsize=9, color=muted)
