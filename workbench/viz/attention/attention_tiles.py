"""Attention's mask in tiles: which are skipped, which are masked, and how much work each program has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from workbench.errors import InvalidArgumentError, check_each, check_name, check_type
from workbench.readings.attention import MaskTiles
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import (
    DPI,
    WIDTH,
    WIDTH_INCHES,
    Palette,
    check_callable,
    new_figure,
    plain_text_style,
)
from workbench.viz.base.widget import (
    FIRST_IN_ROW,
    Drawing,
    FigureWidget,
    require_ipywidgets,
    toggle_buttons,
)
from workbench.viz.base.words import counted, grouped

# The most queries or keys, and the most tiles along a side, that a figure can show.
MOST_ROWS, MOST_TILES = 1024, 64

# Choices of the widget's controls.
MASKS = ("everything", "causal", "sliding window", "documents", "causal documents")
SIDES = (16, 32, 64)
_STEP = 8

# Sizes in pixels: margins, heading with legend; the largest map; the gap and margin of the bars beside it.
_MARGIN, _LEFT, _HEADING, _BELOW = 18.0, 76.0, 78.0, 64.0
_MAP, _BETWEEN, _RIGHT = (600.0, 400.0), 44.0, 28.0
_LEAST = 120.0  # the shortest side
_LINED = 5.0  # the smallest tiles with lines between them


class TilesChoice(NamedTuple):
    """A choice of :class:`AttentionTilesWidget`.

    Attributes:
        mask: name of the mask, in `MASKS`.
        queries, keys: number of queries and keys.
        tile: queries and keys of a tile.
        window: for a sliding window, the number of keys before its own that a query sees.
        from_end: whether to align the last query with the last key, instead of the first with the first.
    """

    mask: str
    queries: int
    keys: int
    tile: tuple[int, int]
    window: int
    from_end: bool


def plot_attention_tiles(tiles: MaskTiles, *, theme: str | None = None) -> Figure:
    """Draw queries by keys in tiles, colored by how the kernel treats them, and tiles visited per program.

    Args:
        tiles: a result of `readings.attention.tiles`.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `tiles` has the wrong type. InvalidArgumentError: it is too large to draw, or
        empty.
        UnknownNameError: the theme is unknown.
    """
    _check(tiles)
    with plain_text_style(theme) as palette:
        figure, axes = new_figure()
        down, across = _size(tiles)
        width, height = WIDTH, round(_HEADING + down + _BELOW)
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        bottom = _BELOW / height
        axes.set_position((_LEFT / width, bottom, across / width, down / height))
        left = _LEFT + across + _BETWEEN
        bars = figure.add_axes((left / width, bottom, 1 - (left + _RIGHT) / width, down / height))
        figure.text(
            _MARGIN / width, 1 - 22 / height, _heading(tiles), va="center", fontsize=12, fontweight="bold"
        )
        _draw_map(axes, tiles, palette)
        _draw_bars(bars, tiles, palette)
        colors = _colors(palette)
        shown = [("whole", "visited, no mask")] if tiles.visited > tiles.masked else []
        if tiles.masked:
            shown += [("seen", "visited with the mask: seen"), ("unseen", "computed, then masked")]
        shown += [("skipped", "skipped")] if tiles.visited < tiles.tiles else []
        figure.legend(
            handles=[Patch(color=colors[name], label=label) for name, label in shown],
            loc="center left", bbox_to_anchor=((_MARGIN - 4) / width, 1 - 50 / height), ncols=len(shown),
            borderaxespad=0, borderpad=0.3, handlelength=1.2, columnspacing=1.6,
        )  # fmt: skip
    return figure


def describe_attention_tiles(tiles: MaskTiles) -> str:
    """Return the text alternative of :func:`plot_attention_tiles`, with its arguments and errors."""
    _check(tiles)
    what = "Queries by keys as a map of tiles, colored by whether a program visits them"
    return f"{what}. {' '.join(_sentences(tiles))}"


class AttentionTilesWidget(FigureWidget):
    """Widget that chooses a mask, lengths and a tile, and shows which tiles attention visits.

    The static figure is :func:`plot_attention_tiles`.

    Args:
        make: function that returns the MaskTiles of a TilesChoice, such as
            `explore.attention.tiles_of_choice`.
        first: initial choice; None for causal, 128 queries and keys, in tiles of 16 x 16.
        masks: names in `MASKS` to choose from.
        longest: the most queries or keys to choose, a multiple of 8.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an argument has the wrong type or value, or
            the controls cannot show `first`.
        MissingPackageError: ipywidgets is not installed.
    """

    def __init__(
        self,
        make: Callable[[TilesChoice], MaskTiles],
        first: TilesChoice | None = None,
        *,
        masks: Sequence[str] = MASKS,
        longest: int = 256,
        theme: str | None = None,
    ) -> None:
        check_callable("make", make, "Give a function that returns the MaskTiles of a TilesChoice.")
        offered = check_each("masks", masks, str, f"Give some of {', '.join(MASKS)}.")
        for mask in offered:
            check_name("masks", mask, MASKS)
        first = _checked_choice(
            TilesChoice("causal", 128, 128, (16, 16), 32, False) if first is None else first, offered, longest
        )
        widgets = require_ipywidgets()
        self._make = make
        self._made: dict[TilesChoice, MaskTiles] = {}
        self.mask = widgets.Dropdown(
            options=list(offered), value=first.mask, description="mask", style=FIRST_IN_ROW
        )
        self.window = _slider("keys before", first.window, 0, longest, 1)
        self.queries = _slider("queries", first.queries, _STEP, longest, _STEP)
        self.keys = _slider("keys", first.keys, _STEP, longest, _STEP)
        self.block_m = toggle_buttons("BLOCK_M", SIDES, first.tile[0])
        self.block_n = toggle_buttons("BLOCK_N", SIDES, first.tile[1])
        self.aligned = toggle_buttons("align the", ("first", "last"), "last" if first.from_end else "first")
        super().__init__(
            [self.mask, self.window],
            [self.queries, self.keys],
            [self.block_m, self.block_n],
            [self.aligned],
            theme=theme,
        )

    @property
    def choice(self) -> TilesChoice:
        """The choice that the controls show."""
        return TilesChoice(
            self.mask.value, self.queries.value, self.keys.value, (self.block_m.value, self.block_n.value),
            self.window.value, self.aligned.value == "last",
        )  # fmt: skip

    def draw(self, theme: str) -> Drawing:
        """Draw the tiles of the choice that the controls show."""
        choice = self.choice
        self.window.disabled = choice.mask != "sliding window"
        self.aligned.disabled = choice.mask == "everything" or choice.queries == choice.keys
        if choice not in self._made:
            self.say("Asking the kernel for its tiles …")
            made = self._make(choice)
            _check(made)
            self._made[choice] = made
        tiles = self._made[choice]
        return Drawing(
            plot_attention_tiles(tiles, theme=theme), describe_attention_tiles(tiles), _sentences(tiles)
        )


def _slider(description: str, value: int, least: int, most: int, step: int) -> Any:
    return require_ipywidgets().IntSlider(
        value, least, most, step=step, description=description, continuous_update=False,
        style=FIRST_IN_ROW, layout={"width": "27em"},
    )  # fmt: skip


def _checked_choice(choice: TilesChoice, masks: Sequence[str], longest: int) -> TilesChoice:
    """Return the choice; raise an error if the controls cannot show it."""
    check_type("first", choice, TilesChoice, "Give a TilesChoice.")
    check_name("first.mask", choice.mask, masks)
    for name, length in (("queries", choice.queries), ("keys", choice.keys)):
        if length % _STEP or not _STEP <= length <= longest:
            fix = f"Give a multiple of {_STEP} from {_STEP} to `longest`, {longest}."
            raise InvalidArgumentError(f"first.{name}", f"got {length}", fix)
    if any(side not in SIDES for side in choice.tile):
        raise InvalidArgumentError(
            "first.tile", f"got {choice.tile}", f"Give two sides, each one of {SIDES}."
        )
    if not 0 <= choice.window <= longest:
        raise InvalidArgumentError("first.window", f"got {choice.window}", f"Give 0 to `longest`, {longest}.")
    return choice


def _check(tiles: MaskTiles) -> None:
    check_type("tiles", tiles, MaskTiles, "Give a result of readings.attention.tiles.")
    if max(tiles.queries, tiles.keys) > MOST_ROWS or max(tiles.visits.shape) > MOST_TILES:
        given = f"{tiles.queries} queries and {tiles.keys} keys in {tiles.visits.shape} tiles"
        fix = f"Give at most {MOST_ROWS} queries and keys, in at most {MOST_TILES} tiles along a side."
        raise InvalidArgumentError("tiles", given, fix)
    if not tiles.seen.size:
        raise InvalidArgumentError(
            "tiles", "it has no pairs of a query and a key", "Give one query and one key or more."
        )


def _heading(tiles: MaskTiles) -> str:
    block_m, block_n = tiles.tile
    return (
        f"{tiles.visited:,} of {grouped(tiles.tiles, 'tile')} of {block_m} × {block_n} visited, "
        f"{_percent(tiles.saved)} of the work saved"
    )


def _sentences(tiles: MaskTiles) -> list[str]:
    """Return the sentences that describe the map."""
    whole = tiles.visited - tiles.masked
    per_program = (tiles.visits != 0).sum(1)
    fewest, most = int(per_program.min()), int(per_program.max())
    each = f"{most}" if fewest == most else f"{fewest} to {most}"
    return [
        f"{tiles.queries} queries, {tiles.keys} keys: {_heading(tiles)}.",
        f"{tiles.tiles - tiles.visited} skipped, {tiles.masked} visited with the mask, {whole} without; "
        f"a program visits {each}.",
        f"Queries see {tiles.pairs:,} pairs, {_percent(tiles.used)} of those that the visited tiles compute.",
    ]


def _percent(share: float) -> str:
    """Return a share in percent, with a decimal digit if it would else read 0 % or 100 % wrongly."""
    digits = 1 if round(100 * share) in (0, 100) and 0 < share < 1 else 0
    return f"{100 * share:.{digits}f} %"


def _size(tiles: MaskTiles) -> tuple[float, float]:
    """Return the map's height and width in pixels; pairs are squares unless a side would be too short."""
    cell = min(_MAP[0] / tiles.keys, _MAP[1] / tiles.queries)
    return max(cell * tiles.queries, _LEAST), max(cell * tiles.keys, _LEAST)


def _colors(palette: Palette) -> dict[str, str]:
    return {
        "whole": palette.series[0],
        "seen": palette.series[1],
        "unseen": mixed(palette.background, palette.series[1], 0.35),
        "skipped": palette.grid,
    }


def _draw_map(axes: Axes, tiles: MaskTiles, palette: Palette) -> None:
    """Draw a color for each pair, and lines between tiles."""
    (block_m, block_n), colors = tiles.tile, {name: to_rgb(c) for name, c in _colors(palette).items()}
    kinds = np.repeat(np.repeat(tiles.visits, block_m, 0), block_n, 1)[: tiles.queries, : tiles.keys]
    image = np.empty((*kinds.shape, 3))
    image[kinds == 0] = colors["skipped"]
    image[kinds == 2] = colors["whole"]
    image[(kinds == 1) & tiles.seen] = colors["seen"]
    image[(kinds == 1) & ~tiles.seen] = colors["unseen"]
    axes.imshow(image, extent=(0, tiles.keys, tiles.queries, 0), interpolation="nearest", aspect="auto")
    down, across = _size(tiles)
    if min(down * block_m / tiles.queries, across * block_n / tiles.keys) >= _LINED:
        lines = [((0, row), (tiles.keys, row)) for row in range(block_m, tiles.queries, block_m)]
        lines += [((col, 0), (col, tiles.queries)) for col in range(block_n, tiles.keys, block_n)]
        axes.add_collection(LineCollection(lines, colors=palette.background, linewidths=1.0), autolim=False)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=8.5)
    axes.set_xticks(_ticks(tiles.keys, block_n, across))
    axes.set_yticks(_ticks(tiles.queries, block_m, down))
    axes.set_xlabel(grouped(tiles.keys, "key"))
    axes.set_ylabel(counted(tiles.queries, "query", "queries"))


def _draw_bars(axes: Axes, tiles: MaskTiles, palette: Palette) -> None:
    """Draw for each program, beside its queries, the number of tiles that it visits."""
    colors, block_m = _colors(palette), tiles.tile[0]
    rows = np.arange(len(tiles.visits)) * block_m
    heights = np.minimum(block_m, tiles.queries - rows)
    left = np.zeros(len(rows))
    for kind, name in ((2, "whole"), (1, "seen")):
        counts = (tiles.visits == kind).sum(1)
        axes.barh(rows + heights / 2, counts, 0.72 * heights, left=left, color=colors[name], linewidth=0)
        left = left + counts
    axes.set_ylim(tiles.queries, 0)
    axes.set_xlim(0, tiles.visits.shape[1])
    axes.grid(visible=False, axis="y")
    axes.tick_params(length=0, labelsize=8.5)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.set_xlabel(f"tiles that a program visits, of {tiles.visits.shape[1]}")


def _ticks(length: int, block: int, pixels: float) -> list[int]:
    """Return the first elements of tiles that get a number on an axis, far enough apart for the numbers."""
    step = block
    while step < length and pixels * step / length < 34:
        step *= 2
    return list(range(0, length, step))
