from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from workbench import viz
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.viz.base import style
from workbench.viz.base.style import (
    DPI,
    PALETTES,
    SIZE_INCHES,
    THEMES,
    drawable,
    fit,
    new_figure,
    resolve_theme,
    text_color,
)

Color = NDArray[np.float64]

# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# IEEE TVCG 15(6), 2009: severity 1.0, on linear RGB.
COLOR_VISION = {
    "full": "1 0 0  0 1 0  0 0 1",
    "no red cones": "0.152286 1.052583 -0.204868  0.114503 0.786281 0.099216  -0.003882 -0.048116 1.051998",
    "no green cones": "0.367322 0.860646 -0.227968  0.280085 0.672501 0.047413  -0.011820 0.042940 0.968881",
    "no blue cones": "1.255528 -0.076749 -0.178779  -0.078411 0.930809 0.147602  0.004733 0.691367 0.303900",
}


def linear(color: str) -> Color:
    values = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Return WCAG 2.1's contrast ratio, 1 to 21."""
    dark, bright = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (first, second))
    return (bright + 0.05) / (dark + 0.05)


def lab(color: Color) -> Color:
    """Return CIE L*a*b* (D65) of a linear RGB color."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ color / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_series_contrast_with_the_background(theme: viz.style.Theme) -> None:
    palette = PALETTES[theme]
    assert min(contrast(text, palette.background) for text in (palette.ink, palette.muted)) >= 4.5
    assert contrast(palette.ink, palette.warning) >= 4.5
    assert min(contrast(color, palette.background) for color in palette.series) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", COLOR_VISION)
def test_series_differ_for_color_blind_readers(theme: viz.style.Theme, vision: str) -> None:
    eye = np.array(COLOR_VISION[vision].split(), dtype=float).reshape(3, 3)
    seen = [lab(np.clip(eye @ linear(color), 0, 1)) for color in PALETTES[theme].series]
    # A CIE76 difference of 2.3 can just be noticed; small markers need several times that.
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12


def test_the_theme_is_the_argument_else_the_environments_else_light(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORKBENCH_THEME", raising=False)
    assert resolve_theme() == "light"
    monkeypatch.setenv("WORKBENCH_THEME", "dark")
    assert resolve_theme() == "dark"
    assert resolve_theme("light") == "light"


def test_the_error_of_an_unknown_theme_names_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"theme: 'drak'.*'dark'"):
        resolve_theme("drak")
    monkeypatch.setenv("WORKBENCH_THEME", "blue")
    with pytest.raises(UnknownNameError, match="WORKBENCH_THEME: 'blue'"), viz.figure_style():
        pass


def sketch(theme: str) -> bytes:
    with viz.figure_style(theme) as palette:
        figure, axes = new_figure()
        axes.plot([1, 2, 3], [4, 1, 2], color=palette.series[0])
        axes.set_title("a sketch")
    return viz.figure_png(figure)


def test_the_same_figure_gives_the_same_bytes_whatever_the_user_s_settings() -> None:
    expected = sketch("light")
    with mpl.rc_context({"savefig.bbox": "tight", "font.size": 20, "lines.linewidth": 9, "savefig.dpi": 50}):
        assert sketch("light") == expected
    assert sketch("dark") != expected


def test_powers_of_ten_on_a_logarithmic_axis_are_typeset() -> None:
    with viz.figure_style():
        figure, axes = new_figure()
        axes.loglog([1e-2, 1e4], [1, 1e3])
        figure.canvas.draw()
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    written = [tick for tick in ticks if tick.get_text()]
    assert written
    assert (
        max(tick.get_window_extent().width for tick in written) < 50
    )  # the source text of a formula would be wider


def test_interleaved_figures_do_not_influence_one_another() -> None:
    def made(title: str) -> Figure:
        with style.figure_style():
            figure, axes = style.new_figure()
            axes.set_title(title)
            return figure

    alone = [style.figure_png(made(title)) for title in ("one", "another")]
    first, second = made("one"), made("another")
    assert [style.figure_png(second), style.figure_png(first)] == alone[::-1]


def test_a_figure_leaves_the_user_s_settings_alone() -> None:
    before = dict(mpl.rcParams)
    sketch("dark")
    assert dict(mpl.rcParams) == before


def test_a_png_has_a_fixed_size_an_opaque_background_and_no_date(tmp_path: Path) -> None:
    for theme in THEMES:
        (path := tmp_path / f"{theme}.png").write_bytes(sketch(theme))
        with Image.open(path) as image:
            assert image.size == (int(SIZE_INCHES[0] * DPI), int(SIZE_INCHES[1] * DPI))
            assert image.info == {}  # neither a date, nor a program, nor transparency
            red, green, blue = image.convert("RGB").getpixel((0, 0))  # type: ignore[misc] # a tuple for RGB
        assert f"#{red:02x}{green:02x}{blue:02x}" == PALETTES[theme].background


def test_the_mime_bundle_of_a_picture_has_its_alternative_text() -> None:
    picture = viz.Picture(sketch("light"), alt="A line that falls, then rises.")
    data, metadata = picture._repr_mimebundle_(include=None, exclude=None)
    assert data["text/plain"] == repr(picture) == "Picture()"
    assert data["image/png"].startswith("iVBORw0KGgo")  # base64 of a PNG's first bytes
    assert metadata["image/png"]["alt"] == "A line that falls, then rises."


@pytest.mark.parametrize("theme", THEMES)
def test_text_on_a_series_color_is_legible(theme: viz.style.Theme) -> None:
    palette = PALETTES[theme]
    assert min(contrast(text_color(palette, color), color) for color in palette.series) >= 4.5


def test_a_fallback_font_draws_glyphs_that_the_first_one_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    # DejaVu Sans has neither. STIXGeneral, also part of matplotlib, has the first; the second not in bold.
    sign, thin = "\u29b6", "\u1d84"
    assert drawable(f"a {sign}") == r"a \u29b6"
    monkeypatch.setattr(style, "FALLBACK_FONTS", ("no such font", "STIXGeneral"))
    assert drawable(f"a {sign}{thin}") == f"a {sign}\\u1d84"
    with viz.figure_style():
        figure, axes = new_figure()
        axes.set(title=sign, xlabel=sign)
    assert viz.figure_png(figure)  # a warning of a missing glyph would fail the test


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2^12 × µs", "2^12 × µs"),
        ("x\ny\t", r"x\ny\t"),
        ("\ud800\x00", r"\ud800\x00"),  # half a surrogate pair; a NUL
        ("", ""),
    ],
)
def test_characters_that_cannot_be_drawn_on_one_line_are_escaped(text: str, written: str) -> None:
    assert drawable(text) == written


@pytest.mark.parametrize(
    "text", ["short", "a long name " * 50, "x" * 5000], ids=["short", "words", "one word"]
)
def test_a_text_is_cut_to_fit(text: str) -> None:
    with viz.figure_style():
        _, axes = new_figure()
        note = axes.text(0, 0, text)
    fit(note, 100)
    assert note.get_window_extent().width <= 100
    assert note.get_text() == text or note.get_text().endswith("…")
    assert text.startswith(note.get_text().removesuffix("…"))


@pytest.mark.parametrize("wrong", [None, "figure", 3, [], float("nan"), b"\x89PNG"], ids=repr)
def test_only_a_figure_is_accepted(wrong: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"figure: got .* Give a matplotlib Figure"):
        viz.figure_png(wrong)  # type: ignore[arg-type] # that is the mistake


def test_only_a_png_and_a_sentence_make_a_picture() -> None:
    png = sketch("light")
    wrong: Any
    for wrong in (None, "png", 3, []):
        with pytest.raises(ArgumentTypeError, match=r"png: got .* Give the bytes of a PNG"):
            viz.Picture(wrong, "A line.")
        if wrong != "png":
            with pytest.raises(ArgumentTypeError, match=r"alt: got .* Give one sentence"):
                viz.Picture(png, wrong)
    with pytest.raises(InvalidArgumentError, match="png: bytes that begin with b'GIF89a'"):
        viz.Picture(b"GIF89a", "A line.")
    with pytest.raises(InvalidArgumentError, match="alt: got ' '"):
        viz.Picture(png, " ")
