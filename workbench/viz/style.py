"""The one look of all figures: light and dark, safe for colour-blind readers, the same bytes on every run.

with figure_style("dark") as palette:
    figure, axes = new_figure()
    axes.plot(x, y, color=palette.series[0])
Picture(figure_png(figure), alt="Time against size: flat, then a straight line.")
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import matplotlib.style
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image  # matplotlib writes its own pictures with it

from workbench.errors import UnknownNameError

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

SIZE_INCHES = (9.0, 5.5)
DPI = 110


@dataclass(frozen=True)
class Palette:
    """The colors of a theme, as "#rrggbb".

    Attributes:
        background: behind everything; opaque, so that a picture reads on a page of the other theme too.
        ink: text and axes; 4.5:1 against the background at least (WCAG 2.1, 1.4.3).
        muted: text and lines of second rank; 4.5:1 too.
        grid: barely seen.
        series: one for each data series; 3:1 at least (WCAG 2.1, 1.4.11).
        warning: behind the text of an error in a widget.
    """

    background: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    warning: str


# M. Okabe, K. Ito, "Color Universal Design" (2008). Of its eight colors each theme takes those that stand out
# from its background; the light one's brown is their yellow, darkened.
PALETTES: Mapping[Theme, Palette] = {
    "light": Palette(
        background="#ffffff",
        ink="#1a1a1a",
        muted="#595959",
        grid="#e3e3e3",
        series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#5c4400", "#4d4d4d"),
        warning="#fff1e0",
    ),
    "dark": Palette(
        background="#1b1b1b",
        ink="#f2f2f2",
        muted="#b3b3b3",
        grid="#363636",
        series=("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d0d0d0"),
        warning="#4a2f10",
    ),
}


def resolve_theme(theme: str | None = None) -> Theme:
    """The theme to draw in: `theme`, else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        UnknownNameError: it is neither "light" nor "dark".
    """
    name = theme if theme is not None else os.environ.get("WORKBENCH_THEME") or "light"
    for known in THEMES:
        if name == known:
            return known
    raise UnknownNameError("theme" if theme is not None else "WORKBENCH_THEME", name, THEMES)


@contextmanager
def figure_style(theme: str | None = None) -> Iterator[Palette]:
    """Inside this block matplotlib draws in the workbench's style, whatever the user's settings.

    Raises:
        UnknownNameError: the theme is not known.
    """
    palette = PALETTES[resolve_theme(theme)]
    settings = {
        "figure.figsize": SIZE_INCHES,
        "figure.dpi": DPI,
        "figure.facecolor": palette.background,
        "axes.facecolor": palette.background,
        "axes.edgecolor": palette.muted,
        "axes.labelcolor": palette.ink,
        "axes.prop_cycle": cycler(color=palette.series),
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same picture on every machine
        "font.size": 10,
        "grid.color": palette.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "text.color": palette.ink,
        "text.parse_math": False,  # a device or a learner's kernel may have a $ in its name
        "xtick.color": palette.muted,
        "ytick.color": palette.muted,
        "xtick.labelcolor": palette.ink,
        "ytick.labelcolor": palette.ink,
        "lines.markersize": 7,
    }
    with matplotlib.style.context(settings, after_reset=True):
        yield palette


def new_figure() -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes, in the style of the enclosing :func:`figure_style`.

    It does not register with pyplot, so widgets that redraw do not pile figures up.
    """
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def figure_png(figure: Figure) -> bytes:
    """`figure` as a PNG of exactly its size, with no date or version inside: the same figure, the same bytes.

    At most 256 colors, the most frequent ones exact: a third of the bytes, and notebooks keep many pictures.
    """
    pixels = io.BytesIO()
    with figure_style():  # some settings are read when a figure is saved, not when it is drawn
        figure.savefig(pixels, format="rgba", dpi=figure.dpi, facecolor=figure.get_facecolor())
    width, height = (int(length) for length in figure.bbox.size)
    image = Image.frombytes("RGBA", (width, height), pixels.getvalue()).convert("RGB")
    png = io.BytesIO()
    image.quantize(method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(png, "png")
    return png.getvalue()


@dataclass(frozen=True, repr=False)
class Picture:
    """A PNG with its alternative text, shown by a notebook as the value of a cell.

    Attributes:
        png: the picture.
        alt: one sentence that describes it.
    """

    png: bytes
    alt: str

    def __repr__(self) -> str:
        """Fixed: a lesson's stored text must fit whatever machine the picture was measured on."""
        return "Picture()"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """What IPython displays: data by MIME type, and metadata, where notebooks keep alternative texts."""
        data = {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt}}
