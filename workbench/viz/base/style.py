"""The style of all figures: light and dark, safe for color-blind readers, the same bytes on every run.

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
from functools import cache, lru_cache
from typing import Literal

import matplotlib.style
import numpy as np
from cycler import cycler
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image  # matplotlib writes its own pictures with it

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_name,
    check_type,
    in_brief,
)

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

WIDTH_INCHES = 9.0
SIZE_INCHES = (WIDTH_INCHES, 5.5)
DPI = 110
WIDTH = WIDTH_INCHES * DPI  # pixels

# This font comes with matplotlib, so text looks the same on every machine.
FONT = "DejaVu Sans"
# Fonts for characters that DejaVu Sans lacks, such as Chinese; each is used only if it is installed.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Unifont",
)

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Palette:
    """The colors of a theme, as "#rrggbb".

    Attributes:
        background: behind everything; opaque, so that a picture is readable on a page of the other theme too.
        ink: text and axes; 4.5:1 against the background at least (WCAG 2.1, 1.4.3).
        muted: secondary text and lines; 4.5:1 against the background at least.
        grid: barely visible lines.
        series: one for each data series; 3:1 against the background at least (WCAG 2.1, 1.4.11).
        warning: behind the text of an error in a widget, and behind the part of a figure that has a fault.
    """

    background: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    warning: str


# M. Okabe, K. Ito, "Color Universal Design" (2008). Each theme takes those of the eight colors that contrast
# with its background; the light theme's brown is their yellow, darkened.
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
    """Return the theme to draw in: `theme`, else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        UnknownNameError: the theme is neither "light" nor "dark".
    """
    name = theme if theme is not None else os.environ.get("WORKBENCH_THEME") or "light"
    check_name("theme" if theme is not None else "WORKBENCH_THEME", name, THEMES)
    return "dark" if name == "dark" else "light"


@contextmanager
def figure_style(theme: str | None = None) -> Iterator[Palette]:
    """Use the workbench's style in matplotlib inside this block, whatever the user's settings.

    Raises:
        UnknownNameError: the theme is unknown.
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
        "font.family": list(_fonts(FALLBACK_FONTS)),
        "font.size": 10,
        "grid.color": palette.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "text.color": palette.ink,
        "xtick.color": palette.muted,
        "ytick.color": palette.muted,
        "xtick.labelcolor": palette.ink,
        "ytick.labelcolor": palette.ink,
        "lines.markersize": 7,
    }
    with matplotlib.style.context(settings, after_reset=True):
        yield palette


@contextmanager
def plain_text_style(theme: str | None = None) -> Iterator[Palette]:
    """Use :func:`figure_style` with $ as plain text, for names from elsewhere such as a device's."""
    with figure_style(theme) as palette, matplotlib.rc_context({"text.parse_math": False}):
        yield palette


class _Canvas(FigureCanvasAgg):
    """Canvas that shares one renderer among figures of the same size, since it caches text widths."""

    def get_renderer(self) -> RendererAgg:
        renderer = _renderer(*self.figure.bbox.size, self.figure.dpi)
        self.renderer = renderer
        return renderer


@lru_cache(maxsize=8)  # megabytes each
def _renderer(width: float, height: float, dpi: float) -> RendererAgg:
    return RendererAgg(width, height, dpi)  # type: ignore[no-untyped-call]


def new_figure() -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, in the style of the enclosing :func:`figure_style`.

    The figure is not registered with pyplot, so widgets that redraw do not accumulate figures.
    """
    figure = Figure()
    _Canvas(figure)
    return figure, figure.add_subplot()


def text_color(palette: Palette, color: str) -> str:
    """Return the palette's darkest or brightest color, whichever contrasts more with `color` (WCAG)."""
    on = _luminance(color)
    dark, bright = sorted((palette.background, palette.ink), key=_luminance)
    return (
        dark
        if (on + 0.05) / (_luminance(dark) + 0.05) > (_luminance(bright) + 0.05) / (on + 0.05)
        else bright
    )


def _luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2.1."""
    values = np.array(to_rgb(color))
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def drawable(text: str) -> str:
    r"""Return `text` with what cannot be drawn in Python's notation, such as ``\u5bd2``.

    This replaces line breaks, other unprintable characters, and characters that no font here has.
    """
    known = _characters(_fonts(FALLBACK_FONTS))
    return "".join(
        character
        if character.isprintable() and ord(character) in known
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def fit(note: Text, pixels: float) -> None:
    """Truncate a text, with an ellipsis, if it is wider than `pixels`."""
    text = note.get_text()
    while (width := note.get_window_extent().width) > pixels and text:
        text = text[: min(len(text) - 1, int(len(text) * pixels / width))].rstrip()
        note.set_text(f"{text}…")


@cache
def _fonts(fallbacks: tuple[str, ...]) -> tuple[str, ...]:
    installed = set(font_manager.fontManager.get_font_names())
    return (FONT, *(name for name in fallbacks if name in installed))


@cache
def _characters(fonts: tuple[str, ...]) -> frozenset[int]:
    """Return the codes of all characters that at least one of the fonts has, also in bold."""
    known: set[int] = set()
    for name in fonts:
        faces = [font_manager.FontProperties(family=[name], weight=weight) for weight in ("normal", "bold")]
        normal, bold = (font_manager.get_font(font_manager.findfont(face)).get_charmap() for face in faces)
        known |= normal.keys() & bold.keys()
    return frozenset(known)


def figure_png(figure: Figure) -> bytes:
    """Return `figure` as a PNG of its exact size, without date or version, so equal figures give equal bytes.

    It has at most 256 colors, chosen by median cut: so it is a third as large in a notebook. Lines and
    areas of a figure with few colors keep them exactly.

    Raises:
        ArgumentTypeError: `figure` is not a matplotlib Figure.
    """
    return small_png(figure_image(figure))


def figure_image(figure: Figure) -> Image.Image:
    """Return the pixels of `figure`, without transparency. Errors are those of :func:`figure_png`."""
    check_type("figure", figure, Figure, "Give a matplotlib Figure, such as roofline_figure returns.")
    pixels = io.BytesIO()
    with figure_style():  # some settings are read when a figure is saved, not when it is drawn
        figure.savefig(pixels, format="rgba", dpi=figure.dpi, facecolor=figure.get_facecolor())
    width, height = (int(length) for length in figure.bbox.size)
    return Image.frombytes("RGBA", (width, height), pixels.getvalue()).convert("RGB")


def small_png(image: Image.Image) -> bytes:
    """Encode a picture to keep, with at most 256 colors; choosing them takes most of the time."""
    return _png(image.quantize(method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))


def quick_png(image: Image.Image) -> bytes:
    """Encode a picture for display only: two and a half times the bytes in a third of the time."""
    return _png(image, compress_level=1)


def _png(image: Image.Image, **options: int) -> bytes:
    png = io.BytesIO()
    image.save(png, "png", **options)
    return png.getvalue()


@dataclass(frozen=True, repr=False)
class Picture:
    """PNG with alternative text, which a notebook shows as the value of a cell.

    Attributes:
        png: the picture.
        alt: text that describes the picture to readers who cannot see it.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `png` is not a PNG, or `alt` is not a text or is blank.
    """

    png: bytes
    alt: str

    def __post_init__(self) -> None:
        check_type("png", self.png, bytes, "Give the bytes of a PNG, such as figure_png(figure) returns.")
        if not self.png.startswith(_PNG):
            raise InvalidArgumentError(
                "png",
                f"bytes that begin with {self.png[:8]!r}",
                "Give the bytes of a PNG, as figure_png does.",
            )
        check_sentence("alt", self.alt)

    def __repr__(self) -> str:
        """Return a constant: the output stored in a lesson must match on every machine."""
        return "Picture()"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Return data by MIME type and metadata for IPython; notebooks store alternative text there."""
        data = {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt}}


def check_callable(argument: str, value: object, fix: str) -> None:
    """Raise an error that names `argument` unless `value` is callable. `fix` is a sentence."""
    if not callable(value):
        raise ArgumentTypeError(argument, f"got {in_brief(value)}, a {type(value).__name__}", fix)


def check_sentence(argument: str, value: object) -> None:
    """Raise an error that names `argument` unless `value` is a text that is not blank."""
    fix = "Give one sentence that describes the picture to readers who cannot see it."
    check_type(argument, value, str, fix)
    if not str(value).strip():
        raise InvalidArgumentError(argument, f"got {value!r}", fix)
