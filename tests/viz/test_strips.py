"""The strips: requested bytes are filled in their sectors, and words stand in their bank and pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.viz.drawn import assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.interpreter import Frame
from workbench.lens import memory
from workbench.lens.layout import Layout, SharedLayout
from workbench.lens.memory import BankConflicts, Coalescing
from workbench.lens.trace import Event, Site
from workbench.viz import figure_png
from workbench.viz.base.style import THEMES, Theme
from workbench.viz.layouts.bank_strips import bank_strip, describe_bank_strip
from workbench.viz.layouts.layout_maps import number_colors
from workbench.viz.layouts.sector_strips import coalescing_strip, describe_coalescing_strip


def doublings(count: int, first: int = 1) -> tuple[tuple[int, ...], ...]:
    return tuple((first << power,) for power in range(count))


def load(
    stride: int,
    *,
    lanes: int = 32,
    each: int = 1,
    itemsize: int = 4,
    first: int = 0,
    active: int | None = None,
) -> Coalescing:
    """Return the coalescing of a warp's load of elements `stride` apart; the first `active` are unmasked."""
    registers = each.bit_length() - 1
    count = lanes * each
    layout = Layout(
        "#ttg.blocked<{...}>", (count,), doublings(registers), doublings(lanes.bit_length() - 1, each), ()
    )
    site = Site("load", "x", (Frame("kernel.py", 3),), (count,), itemsize, 0)
    mask = np.arange(count) < (count if active is None else active)
    event = Event(0, site, first + stride * np.arange(count), mask)
    return memory.coalescing(event, layout, target="sm_90" if lanes == 32 else "gfx942")


def moved(
    kind: str = "plain", *, columns: bool = True, bits: int = 32, target: str = "sm_90"
) -> BankConflicts:
    """Return the bank conflicts of a warp that reads a 32 × 32 fp32 tile, by columns or else by rows."""
    swizzle = {"plain": [(1, 0), (2, 0), (4, 0)], "swizzled": [(1, 4), (2, 8), (4, 16)]}[kind]
    rows = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), *swizzle, (8, 0), (16, 0)]
    shared = SharedLayout("#ttg.swizzled_shared<{...}>", (32, 32), 32, tuple(rows), ())
    lanes = [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0)]
    registers = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16)]
    if not columns:
        lanes, registers = registers, lanes
    if target.startswith("gfx"):
        lanes, registers = [*lanes, registers[-1]], registers[:-1]
    layout = Layout("#ttg.blocked<{...}>", (32, 32), tuple(registers), tuple(lanes), ())
    return memory.bank_conflicts(layout, shared, target=target, bits=bits)


def filled(figure: Figure, colors: set[str]) -> list[Rectangle]:
    """Return the rectangles in one of these colors."""
    patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [patch for patch in patches if to_hex(patch.get_facecolor()) in colors]


ACCESSES = {
    "whole": load(1),
    "vectors": load(1, each=4),
    "misaligned": load(1, first=3),
    "every other": load(2),
    "far apart": load(32),
    "one element": load(0),
    "backwards": load(-1, first=31),
    "ragged": load(1, active=5),
    "bytes": load(1, itemsize=1),
    "AMD": load(1, lanes=64),
    "AMD, far apart": load(64, lanes=64),
    "far away": load(97, first=10**9),
}
TILES = {
    "columns": moved(),
    "rows": moved(columns=False),
    "swizzled": moved("swizzled"),
    "vectors": moved("swizzled", bits=128),
    "vectors in conflict": moved(bits=128),
    "AMD": moved(bits=128, target="gfx942"),
    "64 banks": moved(bits=128, target="gfx950"),
}


@pytest.mark.parametrize("name", ["whole", "vectors", "misaligned", "every other", "ragged", "AMD"])
def test_the_filled_share_of_the_sectors_is_the_efficiency(name: str) -> None:
    access = ACCESSES[name]
    figure = coalescing_strip(access, theme="light")
    lanes = access.requests[0].lanes
    shapes = filled(figure, set(number_colors(max(lanes) + 1, "light")))
    boxes = [shape for shape in shapes if shape.get_y() == 0]
    used = [shape for shape in shapes if shape.get_y() > 0]
    assert len(boxes) == len(lanes)
    sectors = figure.axes[0].collections[0].get_paths()
    assert len(sectors) == access.sectors
    width = sum(path.get_extents().width for path in sectors)
    assert len(access.requests) == 1
    assert sum(shape.get_width() for shape in used) / width == pytest.approx(access.efficiency)


def test_each_lane_has_its_number_and_each_sector_its_first_byte() -> None:
    written = texts(coalescing_strip(load(8)))
    assert {str(lane) for lane in range(32)} <= written
    assert {str(32 * sector) for sector in range(32)} <= written


def test_an_access_across_a_border_is_filled_in_both_sectors() -> None:
    unaligned = replace(
        ACCESSES["whole"],
        requests=(
            replace(
                ACCESSES["whole"].requests[0],
                lanes=(0,),
                addresses=(28,),
                bytes=8,
                sectors=(0, 1),
                useful_bytes=8,
            ),
        ),
    )
    shapes = filled(coalescing_strip(unaligned, theme="light"), set(number_colors(1, "light")))
    below = sorted(shape.get_x() for shape in shapes if shape.get_y() > 0)
    assert len(below) == 2


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ACCESSES)
def test_texts_of_sectors_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    access = ACCESSES[name]
    for request in {0, len(access.requests) - 1}:
        figure = coalescing_strip(access, request, theme=theme)
        assert_legible(figure)


@pytest.mark.parametrize("name", TILES)
def test_each_word_stands_once_in_its_bank_in_a_pass_of_its_phase(name: str) -> None:
    conflicts = TILES[name]
    request = conflicts.requests[0]
    figure = bank_strip(conflicts, theme="light")
    colors = number_colors(len(request.addresses), "light")
    words = max(conflicts.bits // 32, 1)
    width = figure.axes[0].get_xlim()[1] / conflicts.banks
    found = filled(figure, set(colors))
    by_bank = Counter(round(cell.get_x() / width) for cell in found)
    expected: Counter[int] = Counter()
    for phase in request.phases:
        wanted = {request.addresses[lane] // 4 + word for lane in phase for word in range(words)}
        expected.update(word % conflicts.banks for word in wanted)
    assert by_bank == expected
    passes = {round(cell.get_y()) for cell in found}
    assert len(passes) == request.passes
    assert len({(round(cell.get_x() / width), round(cell.get_y())) for cell in found}) == len(found)


def test_lanes_that_share_a_word_share_a_cell() -> None:
    half = moved()
    shared = replace(
        half, requests=(replace(half.requests[0], addresses=(0, 0, *range(4, 124, 4)), ways=(1,)),)
    )
    written = texts(bank_strip(shared))
    assert "0+" in written
    assert "1" in written  # only as the number of a bank
    assert "31" in written


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", TILES)
def test_texts_of_banks_neither_overlap_nor_leave_the_figure(name: str, theme: Theme) -> None:
    figure = bank_strip(TILES[name], theme=theme)
    assert_legible(figure)


def test_the_descriptions_count_sectors_used_bytes_and_passes() -> None:
    assert describe_coalescing_strip(load(2)) == (
        "The lanes of a warp above the sectors of memory that they touch: 32 lanes × 4 bytes in 8 sectors of "
        "32 bytes: 128 of 256 bytes are used, 50%."
    )
    assert "1 lane × 4 bytes in 1 sector of 32 bytes: 4 of 32 bytes are used, 12.5%." in (
        describe_coalescing_strip(load(1, active=1))
    )
    assert describe_bank_strip(moved()) == (
        "Which lanes each of 32 banks serves, pass by pass: 32 lanes × 32 bits: 32 passes instead of 1, at "
        "worst a 32-way conflict."
    )
    assert describe_bank_strip(moved(columns=False)).endswith("32 lanes × 32 bits: 1 pass, no conflict.")
    assert "an 8-way conflict" in describe_bank_strip(moved(bits=128))


def test_the_heading_gives_the_request_and_the_number_of_requests() -> None:
    access = load(1, each=8)
    heading = " ".join(texts(coalescing_strip(access, 1)))
    assert f"sm_90, request 1 of {len(access.requests)} (warp 0)" in heading
    assert "sm_90, load, request 2 of 32 (warp 0). All requests of this tile: 1024 passes" in " ".join(
        texts(bank_strip(moved(), 2))
    )


def test_the_same_data_gives_the_same_picture_in_each_theme() -> None:
    for draw in (
        lambda theme: coalescing_strip(load(1), theme=theme),
        lambda theme: bank_strip(moved(), theme=theme),
    ):
        assert figure_png(draw("light")) == figure_png(draw("light"))
        assert figure_png(draw("light")) != figure_png(draw("dark"))


def test_an_access_without_active_lanes_raises() -> None:
    with pytest.raises(InvalidArgumentError, match="coalescing: none of its lanes touches memory"):
        coalescing_strip(load(1, active=0))


@pytest.mark.parametrize(
    ("function", "data"),
    [
        (coalescing_strip, ACCESSES["whole"]),
        (describe_coalescing_strip, ACCESSES["whole"]),
        (bank_strip, TILES["columns"]),
        (describe_bank_strip, TILES["columns"]),
    ],
)
def test_errors_name_the_wrong_argument(function: Callable[..., object], data: object) -> None:
    no_results: list[Any] = [None, "coalescing", 3, [], ACCESSES["whole"].requests[0]]
    for wrong in no_results:
        with pytest.raises(ArgumentTypeError, match=r"(coalescing|conflicts): got .*lens\.memory"):
            function(wrong)
    for number in (-1, 32):
        with pytest.raises(InvalidArgumentError, match=f"request: got {number}. Give a whole number from 0"):
            function(data, number)
    for wrong in (None, "0", 1.0, True):
        with pytest.raises(ArgumentTypeError, match=r"request: got .*a whole number"):
            function(data, wrong)


def test_an_unknown_theme_raises() -> None:
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        coalescing_strip(load(1), theme="blue")
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        bank_strip(moved(), theme="blue")
