"""Wave quantization: the slots of a GPU in each wave, and how well square products of all sizes fill them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2, sqrt
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from workbench.errors import InvalidArgumentError, check_type
from workbench.lens.waves import Waves
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, plain_text_style
from workbench.viz.base.widget import (
    FIRST_IN_ROW,
    Drawing,
    FigureWidget,
    require_ipywidgets,
    toggle_buttons,
)
from workbench.viz.base.words import counted, grouped, listed

# If there are more waves, only the last ones are drawn. The curve has about _SIZES sizes, at multiples of
# _BETWEEN_SIZES, the least length of a tile.
MOST_WAVES = 12
MOST_SLOTS = 4096
_SIZES, _BETWEEN_SIZES, _LEAST_LIMIT = 512, 16, 1024

# Sizes in pixels: margins of the panels; the strip, the gap, the curve.
_LEFT, _RIGHT, _MARGIN, _TOP = 70.0, 24.0, 18.0, 84.0
_STRIP, _BETWEEN, _CURVE, _BOTTOM = 168.0, 106.0, 190.0, 58.0
_ROOM = WIDTH - _LEFT - _RIGHT
_LINED = 4.0  # the smallest cells with lines between them
_EARLIER = 0.6  # opacity of waves before the last

# Choices of the widget's controls.
_SIZE, _TILE_M, _TILE_N = range(8, 16385, 8), (16, 32, 64, 128, 256), range(16, 257, 16)
_UNITS, _RESIDENT = range(1, 513), range(1, 9)


def waves_figure(waves: Waves, *, theme: str | None = None) -> Figure:
    """Draw a strip of slots for each wave, with the empty tail of the last, and the efficiency against m = n.

        efficiency = tiles / (waves * slots), with tiles = ceil(m / tile[0]) * ceil(n / tile[1]),
        slots = compute_units * resident, waves = ceil(tiles / slots)

    The thinner curve is the efficiency times the share of the tiles inside the output: the attainable share
    of the peak if nothing else limits the product. A product that is not square is marked at
    m = n = sqrt(m n).

    Args:
        waves: a product and its tile, such as `lens.waves.Waves(4096, 4096, (128, 192))`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `waves` has the wrong type, or too many slots to draw.
        UnknownNameError: the theme is unknown.
    """
    _check(waves)
    with plain_text_style(theme) as palette:
        figure = Figure()
        FigureCanvasAgg(figure)
        width, height = WIDTH, _TOP + _STRIP + _BETWEEN + _CURVE + _BOTTOM
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        figure.text(
            _MARGIN / width, 1 - _MARGIN / height, _heading(waves), va="top", fontsize=12, fontweight="bold"
        )
        across = _ROOM / width
        strip = figure.add_axes((_LEFT / width, 1 - (_TOP + _STRIP) / height, across, _STRIP / height))
        curve = figure.add_axes((_LEFT / width, _BOTTOM / height, across, _CURVE / height))
        _draw_strip(strip, waves, palette)
        _draw_curve(curve, waves, palette)
    return figure


def describe_waves(waves: Waves) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    _check(waves)
    what = "The slots of a GPU as a strip for each wave, and the efficiency of square products of all sizes"
    return f"{what}. {' '.join(_sentences(waves))}"


class WavesWidget(FigureWidget):
    """Widget for wave quantization with controls for the output's size, the tile, and the GPU.

    The static figure is :func:`waves_figure`.

    Args:
        waves: initial state; None for 4096 x 4096 in tiles of 128 x 192 on an H200.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: `waves` has the wrong type, or the controls cannot
            show it: sizes are multiples of 8 up to 16384; a tile has 16, 32, 64, 128 or 256 rows, and a
            multiple of 16 columns up to 256; a GPU has up to 512 compute units, with up to 8 programs each.
        UnknownNameError: the theme is unknown.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(self, waves: Waves | None = None, *, theme: str | None = None) -> None:
        first = Waves(4096, 4096, (128, 192)) if waves is None else waves
        _check_offered(first)
        self.m = _slider("m", first.m, _SIZE)
        self.n = _slider("n", first.n, _SIZE)
        self.tile_m = toggle_buttons("BLOCK_M", _TILE_M, first.tile[0])
        self.tile_n = _slider("BLOCK_N", first.tile[1], _TILE_N)
        self.compute_units = _slider("compute units", first.compute_units, _UNITS)
        self.resident = _slider("programs on each", first.resident, _RESIDENT)
        super().__init__(
            [self.m, self.n],
            [self.tile_m, self.tile_n],
            [self.compute_units, self.resident],
            theme=theme,
        )

    def draw(self, theme: str) -> Drawing:
        """Draw the waves for the controls' values."""
        waves = Waves(
            self.m.value,
            self.n.value,
            (self.tile_m.value, self.tile_n.value),
            self.compute_units.value,
            self.resident.value,
        )
        return Drawing(waves_figure(waves, theme=theme), describe_waves(waves), _sentences(waves))


def _slider(description: str, value: int, offered: range) -> Any:
    return require_ipywidgets().IntSlider(
        value,
        offered[0],
        offered[-1],
        step=offered.step,
        description=description,
        continuous_update=False,
        style=FIRST_IN_ROW,
        layout={"width": "27em"},
    )


def _check_offered(waves: Waves) -> None:
    """Raise an error if the controls cannot show these waves."""
    _check(waves)
    for name, value, offered in (
        ("m", waves.m, _SIZE),
        ("n", waves.n, _SIZE),
        ("tile[0]", waves.tile[0], _TILE_M),
        ("tile[1]", waves.tile[1], _TILE_N),
        ("compute_units", waves.compute_units, _UNITS),
        ("resident", waves.resident, _RESIDENT),
    ):
        if value not in offered:
            known = f"one of {listed(list(map(str, offered)))}"
            if isinstance(offered, range):
                known = f"a multiple of {offered.step} from {offered[0]} to {offered[-1]}"
            fix = f"Give {known}, which the controls offer, or draw it with waves_figure."
            raise InvalidArgumentError(f"waves.{name}", f"got {value}", fix)


def _check(waves: Waves) -> None:
    check_type("waves", waves, Waves, "Give lens.waves.Waves(m, n, tile).")
    if waves.slots > MOST_SLOTS:
        fix = f"Take fewer compute units, or programs on each: at most {MOST_SLOTS} slots can be drawn."
        raise InvalidArgumentError("waves", f"it has {waves.slots} slots", fix)


def _heading(waves: Waves) -> str:
    tile = f"{waves.tile[0]} × {waves.tile[1]}"
    return (
        f"{waves.m} × {waves.n} in tiles of {tile}: {grouped(waves.tiles, 'tile')} in "
        f"{grouped(waves.waves, 'wave')}, efficiency {_percent(waves.efficiency)}"
    )


def _sentences(waves: Waves) -> list[str]:
    """Return the sentences that describe the waves."""
    units = f"{counted(waves.compute_units, 'compute unit')} × {counted(waves.resident, 'program')}"
    filled = f"The last wave has {counted(waves.last, 'tile')} ({_percent(waves.last / waves.slots)} full)"
    return [
        f"{_heading(waves)}.",
        f"{units} = {counted(waves.slots, 'slot')}. {filled}: {waves.tiles:,} / ({waves.waves:,} × "
        f"{waves.slots:,}) = {_percent(waves.efficiency)} of the slots have a tile.",
        f"{_percent(waves.filled)} of what the tiles cover lies inside the output; "
        f"together {_percent(waves.utilization)} of the time of all slots goes into it.",
    ]


def _percent(share: float) -> str:
    """Return a share in whole percent; with a decimal if a share below 1 would read "100 %"."""
    return f"{100 * share:.1f} %" if share < 1 and round(100 * share) == 100 else f"{100 * share:.0f} %"


def _draw_strip(axes: Axes, waves: Waves, palette: Palette) -> None:
    """Draw the last waves as rows of slots."""
    shown = min(waves.waves, MOST_WAVES)
    hidden = waves.waves - shown
    tile, of_last = mixed(palette.background, palette.series[0], _EARLIER), palette.series[1]
    colors = np.empty((shown, waves.slots, 3))
    colors[:-1] = to_rgb(tile)
    colors[-1, : waves.last], colors[-1, waves.last :] = to_rgb(of_last), to_rgb(palette.grid)
    axes.imshow(colors, extent=(0, waves.slots, waves.waves, hidden), interpolation="nearest", aspect="auto")
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    lines = [((0, wave), (waves.slots, wave)) for wave in range(hidden + 1, waves.waves)]
    if _ROOM / waves.slots >= _LINED:
        lines += [((slot, hidden), (slot, waves.waves)) for slot in range(1, waves.slots)]
    axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=0.8))
    numbers = range(hidden + 1, waves.waves + 1)
    axes.set_yticks([number - 0.5 for number in numbers], [f"{number:,}" for number in numbers])
    axes.tick_params(length=0)
    axes.tick_params(axis="y", labelsize=8.5)
    axes.set_ylabel("wave")
    units = f"{counted(waves.compute_units, 'compute unit')} × {counted(waves.resident, 'program')}"
    axes.set_xlabel(f"slots: {units}")
    legend = {tile: "a tile"} if shown > 1 else {}
    legend[of_last] = f"the last wave: {counted(waves.last, 'tile')}"
    if waves.last < waves.slots:
        legend[palette.grid] = f"{waves.slots - waves.last} idle"
    axes.legend(
        handles=[Patch(color=color, label=text) for color, text in legend.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(legend),
        borderaxespad=0.3,
        borderpad=0,
        handlelength=1.2,
    )
    if hidden:
        axes.set_title(
            f"waves 1 to {hidden:,}, all full, are not drawn" if hidden > 1 else "wave 1, full, is not drawn",
            loc="right",
            fontsize=9,
            fontweight="normal",
            color=palette.muted,
        )


def _draw_curve(axes: Axes, waves: Waves, palette: Palette) -> None:
    """Draw the efficiency of square products with this tile and GPU, and mark this product."""
    here = sqrt(waves.m * waves.n)
    limit = max(_LEAST_LIMIT, 2 ** ceil(log2(2 * here)))
    step = _BETWEEN_SIZES * max(1, limit // (_BETWEEN_SIZES * _SIZES))
    sizes = range(step, limit + 1, step)
    square = [replace(waves, m=size, n=size) for size in sizes]
    axes.plot(
        sizes,
        [100 * one.efficiency for one in square],
        color=palette.series[0],
        linewidth=1.8,
        zorder=3,
        label="efficiency: tiles / (waves × slots)",
    )
    axes.plot(
        sizes,
        [100 * one.utilization for one in square],
        color=palette.series[2],
        linewidth=1.0,
        label="times the tiles' share inside the output",
    )
    axes.axvline(here, color=palette.ink, linestyle=":", linewidth=1.0)
    axes.plot(
        here,
        100 * waves.efficiency,
        "o",
        color=palette.series[1],
        markersize=7,
        label=f"{waves.m} × {waves.n}",
        zorder=4,
    )
    axes.set(xlim=(0, limit), ylim=(0, 104))
    axes.set_xlabel(f"m = n, in tiles of {waves.tile[0]} × {waves.tile[1]}")
    axes.set_ylabel("% of all slots")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.3, borderpad=0, handlelength=1.8
    )
