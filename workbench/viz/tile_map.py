"""Which program touches which element, drawn from the accesses of a real run: 1-D tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import InvalidArgumentError
from workbench.interpreter import Access
from workbench.viz.style import Palette, figure_style, new_figure
from workbench.viz.widget import Drawing, FigureWidget, require_ipywidgets

MOST_ELEMENTS = 128

Run = Callable[[int, int], Sequence[Access]]


def tile_map_figure(accesses: Sequence[Access], length: int, *, theme: str | None = None) -> Figure:
    """A strip of cells for each load and store, one cell a lane, colored by the program that it belongs to.

    Args:
        accesses: of one step, as `runtime.interpret(launch, record=True).accesses[0]` has them; 1-D tiles.
        length: the elements of the tensors; lanes beyond them are drawn as masked off.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        InvalidArgumentError: no accesses, tiles that are not 1-D, or more elements than can be told apart.
    """
    strips = _strips(accesses, length)
    with figure_style(theme) as palette:
        figure, axes = new_figure()
        lanes = max(length, max(int(a.offsets.max()) + 1 for a in accesses))
        figure.set_size_inches(9.0, 0.9 + 0.75 * len(strips))
        for row, (name, strip) in enumerate(strips.items()):
            _draw_strip(axes, -row, strip, palette, numbers=lanes <= 64)
            axes.text(-0.012 * lanes, -row + 0.35, name, ha="right", va="center")
        axes.axvline(length, color=palette.ink, linewidth=1.5, ymin=0.0, ymax=1.0)
        axes.text(length, 1.0, f" the end: {length} elements", ha="left" if length < 0.8 * lanes else "right")
        axes.set(xlim=(-0.2 * lanes, lanes + 0.5), ylim=(0.9 - len(strips), 1.4), yticks=[])
        axes.set_xticks(_ticks(accesses, lanes))
        axes.set_xlabel("element (the numbers are the program's)")
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        figure.tight_layout()
    return figure


def describe_tile_map(accesses: Sequence[Access], length: int) -> str:
    """The figure in one sentence, its text alternative."""
    masked = sum(int((~a.mask).sum()) for a in accesses)
    programs = len({a.program for a in accesses})
    return (
        f"Strips of cells, one for each load and store, colored by program: {programs} programs cover "
        f"{length} elements, and {masked} lanes in all are masked off."
    )


class TileMapWidget(FigureWidget):
    """The tile map with sliders for the length and the block size.

    Beside it stands the static figure, :func:`tile_map_figure`.

    Args:
        run: from (length, block size) to the accesses of a real run of the kernel with them.
        length: the first length. most_elements: the longest that the slider offers.
        block_sizes: the choices; the first is shown first.
        theme: as in :func:`tile_map_figure`.
    """

    def __init__(
        self,
        run: Run,
        *,
        length: int = 21,
        most_elements: int = 48,
        block_sizes: Sequence[int] = (8, 4, 16, 32),
        theme: str | None = None,
    ) -> None:
        widgets = require_ipywidgets()
        self._run = run
        self.length = widgets.IntSlider(length, 1, most_elements, description="n", continuous_update=False)
        self.block_size = widgets.ToggleButtons(options=sorted(block_sizes), description="BLOCK_SIZE")
        self.block_size.value = block_sizes[0]
        super().__init__([self.length], [self.block_size], theme=theme)

    def draw(self, theme: str) -> Drawing:
        """Run the kernel with the controls' values and draw what it did."""
        length, block_size = self.length.value, self.block_size.value
        accesses = self._run(length, block_size)
        programs = len({a.program for a in accesses})
        lanes = programs * block_size
        facts = (
            f"{programs} programs × {block_size} lanes = {lanes} lanes for {length} elements: "
            f"{lanes - length} idle ({1 - length / lanes:.0%}).",
        )
        return Drawing(
            tile_map_figure(accesses, length, theme=theme), describe_tile_map(accesses, length), facts
        )


def _strips(accesses: Sequence[Access], length: int) -> dict[str, list[Access]]:
    """The accesses by the line of the strip that shows them, in the order in which they first come."""
    if not accesses:
        raise InvalidArgumentError("accesses", "got none", "Run with record=True, and a grid of one or more.")
    strips: dict[str, list[Access]] = {}
    for access in accesses:
        if access.offsets.ndim > 1:
            raise InvalidArgumentError(
                "accesses", f"a tile of {access.offsets.ndim} dimensions", "This map is for 1-D tiles."
            )
        strips.setdefault(f"{access.kind} {access.argument.removesuffix('_pointer')}", []).append(access)
    if length > MOST_ELEMENTS:
        raise InvalidArgumentError("length", f"got {length}", f"Draw at most {MOST_ELEMENTS} elements.")
    return strips


def _draw_strip(axes: Axes, y: int, strip: Sequence[Access], palette: Palette, *, numbers: bool) -> None:
    for access in strip:
        number = access.program[0]
        color = palette.series[number % len(palette.series)]
        lanes = zip(np.atleast_1d(access.offsets), np.atleast_1d(access.mask), strict=True)
        for element, active in lanes:
            if active:
                axes.add_patch(
                    Rectangle(
                        (element, y), 1, 0.7, facecolor=color, edgecolor=palette.background, linewidth=1
                    )
                )
                if numbers:
                    axes.text(
                        element + 0.5, y + 0.34, str(number),
                        ha="center", va="center", fontsize=8, color=palette.background,
                    )  # fmt: skip
            else:
                axes.add_patch(
                    Rectangle((element, y), 1, 0.7, fill=False, edgecolor=color, hatch="////", linewidth=0.6)
                )


def _ticks(accesses: Sequence[Access], lanes: int) -> list[int]:
    """The first element of each tile, and the end."""
    starts = sorted({int(np.atleast_1d(a.offsets)[0]) for a in accesses})
    step = -(-len(starts) // 16)
    return [*starts[::step], lanes]
