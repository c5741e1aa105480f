"""Pictures of a descriptor: the reads of a tile are counted again, element by element."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from workbench import explore
from workbench.coords import Descriptor, lower, naive, symbol, transform, transforms
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels import convolution
from workbench.kernels.convolution import Geometry
from workbench.viz import VectorWidth, describe_image_tile

PLAIN = Geometry((6, 6), (6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 4, 8, 1)
STRIDED = Geometry((7, 5), (4, 3), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 4, 8, 2)
DILATED = Geometry((6, 6), (4, 7), (3, 2), (1, 1), ((1, 1), (1, 2)), (2, 2), 2, 8, 1)
LINE = Geometry((9,), (9,), (3,), (1,), ((1, 1),), (1,), 4, 8, 1)


def windows(geometry: Geometry, images: int = 2, channels_last: bool = True) -> Descriptor:
    """Return the implicit matrix of a dense image."""
    channels, sizes = geometry.group_channels, geometry.sizes
    order: tuple[int, ...] = (0, *range(1, len(sizes) + 1))
    if channels_last:
        inner = [int(np.prod(sizes[i + 1 :])) * geometry.channels for i in range(len(sizes))]
        strides, order = (int(np.prod(sizes)) * geometry.channels, channels, 1, *inner), (*order[1:], 0)
    else:
        inner = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
        plane = int(np.prod(sizes))
        strides = (plane * geometry.channels, plane * channels, plane, *inner)
    return convolution.input_windows(geometry, channels, strides, order).bind(images=images)


def phase() -> Descriptor:
    """Return the matrix of a phase of backward for data, whose places are reached by an offset."""
    phases = convolution.backward_data_phases(STRIDED)[0]
    strides = (96, 4, 1, 24, 8)
    return convolution.gradient_windows(STRIDED, 4, strides, phases, (1, 2, 0)).bind(images=2)


MATRICES = {
    "plain": windows(PLAIN),
    "channels first": windows(PLAIN, channels_last=False),
    "strided, in groups": windows(STRIDED),
    "dilated": windows(DILATED, images=5),
    "line": windows(LINE),
    "phase": phase(),
}


def reads_by_hand(
    descriptor: Descriptor, batch: int, rows: Sequence[int], cols: Sequence[int]
) -> tuple[Counter[tuple[int, ...]], int]:
    """Count how often each element is asked for, by its coordinates in memory, and how many are valid."""
    found: Counter[tuple[int, ...]] = Counter()
    valid = 0
    for row, col in itertools.product(rows, cols):
        coordinate = descriptor.coordinate((batch, row, col))
        found[(*(coordinate.values[d] for d in descriptor.stages[0].upper), int(coordinate.valid))] += 1
        valid += coordinate.valid
    return found, valid


@pytest.mark.parametrize("at", ["first", "last", "middle"])
@pytest.mark.parametrize("side", [(16, 8), (5, 3)], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_tile_on_image_counts_the_reads_of_every_pixel(name: str, side: tuple[int, int], at: str) -> None:
    descriptor = MATRICES[name]
    pixels = ("x",) if name == "line" else ("y", "x")
    batch, rows, cols = (int(str(length)) for length in descriptor.lengths)
    counts = [-(-rows // side[0]), -(-cols // side[1])]
    place = [{"first": 0, "last": n - 1, "middle": n // 2}[at] for n in counts]
    tile = explore.descriptors.tile_on_image(descriptor, side, place, batch=batch - 1, pixels=pixels)
    own = [range(i * s, min((i + 1) * s, n)) for i, s, n in zip(place, side, (rows, cols), strict=True)]
    found, valid = reads_by_hand(descriptor, batch - 1, *own)
    expected = np.zeros_like(tile.reads)
    for (number, _, _, *spatial, is_valid), count in found.items():
        down, across = (0, *spatial)[-2:]
        where = (number - tile.first_image, down - tile.origin[0], across - tile.origin[1])
        height, width = tile.size
        assert bool(is_valid) == (0 <= down < height and 0 <= across < width)
        expected[where] = max(expected[where], count)
    assert tile.reads.tolist() == expected.tolist()
    assert int(tile.tile.sum()) == valid
    assert tile.elements == sum(1 for key in found if key[-1])
    assert (tile.rows, tile.cols) == tuple((r.start, r.stop) for r in own)
    assert tile.valid.shape == (rows, cols)


def test_the_first_and_last_row_and_column_are_described_by_their_digits() -> None:
    tile = explore.descriptors.tile_on_image(MATRICES["plain"], (16, 8), (1, 2))
    assert tile.where == (
        "Row 16 is n 0, y_out 2, x_out 4; row 31 is n 0, y_out 5, x_out 1.",
        "Column 16 is y_tap 1, x_tap 1, c 0; column 23 is y_tap 1, x_tap 2, c 3.",
    )
    assert describe_image_tile(tile).endswith(" ".join(tile.where))
    plain = transform(
        naive((6, 6), (6, 1), names=("y", "x")), [transforms.pass_through(6)] * 2, [(0,), (1,)], [(0,), (1,)]
    )
    assert explore.descriptors.tile_on_image(plain, (2, 2)).where == ()


def test_more_than_four_images_are_cut_to_the_images_that_the_tile_reads() -> None:
    tile = explore.descriptors.tile_on_image(windows(PLAIN, images=9), (36, 8), (7, 0))
    assert (tile.first_image, len(tile.reads), tile.images) == (7, 1, 9)
    few = explore.descriptors.tile_on_image(windows(PLAIN, images=3), (36, 8), (1, 0))
    assert (few.first_image, len(few.reads)) == (0, 3)


def test_the_widget_moves_over_the_whole_matrix() -> None:
    widget = explore.descriptors.move_tile(MATRICES["plain"], (16, 8), (1, 2))
    assert (widget.row.value, widget.row.min, widget.row.max) == (1, 0, 4)
    assert (widget.step.value, widget.step.min, widget.step.max) == (2, 0, 4)
    before = widget.picture
    widget.row.value = 4
    widget.step.value = 4
    assert widget.error == ""
    assert widget.picture.png != before.png
    assert widget.facts[0].startswith("Rows 64 to 71 of 72, columns 32 to 35 of 36: 8 × 4 = 32 elements")
    assert widget.picture.alt == describe_image_tile(
        explore.descriptors.tile_on_image(MATRICES["plain"], (16, 8), (4, 4))
    )


def test_the_code_picture_shows_the_lowered_source() -> None:
    descriptor = convolution.input_windows(PLAIN, 4, (144, 4, 1, 24, 4), (1, 2, 0))
    picture = explore.descriptors.code(descriptor)
    lines = lower(descriptor).source.splitlines()
    assert picture.alt.startswith("(batch, row, col) -> (offset, valid), as Triton gets it")
    assert f"{len(lines)} lines" in picture.alt
    for line in lines:
        if line.strip().startswith(("offset = ", "valid = ")):
            assert line.strip() in picture.alt
    assert explore.descriptors.code(descriptor, title="My pad").alt.startswith("My pad: ")
    assert explore.descriptors.code(descriptor, theme="dark").png != picture.png


def test_vector_widths_lists_each_dimension_of_each_descriptor() -> None:
    base = naive((64, 32), (32, 1), names=("row", "col"))
    padded = transform(
        base, [transforms.pass_through(64), transforms.pad(32, 1, 1)], [(0,), (1,)], [(0,), (1,)]
    )
    assert explore.descriptors.vector_widths({"before": base, "after": padded}, 2) == (
        VectorWidth("before", "row", 1, 1, 2),
        VectorWidth("before", "col", 16, 16, 16),
        VectorWidth("after", "row", 1, 1, 2),
        VectorWidth("after", "col", 1, 1, 2),
    )
    (_, wide) = explore.descriptors.vector_widths({"fp32": base}, 4)
    assert wide.bytes == 16
    # The length is unknown, but its divisor is known.
    rows = symbol("rows", multiple_of=8)
    (first, _) = explore.descriptors.vector_widths({"columns": naive((rows, 4), (1, rows))}, 1)
    assert (first.contiguous, first.bytes) == (8, 8)


def test_errors_name_the_wrong_argument() -> None:
    plain: Any = MATRICES["plain"]
    both: list[Any] = [explore.descriptors.tile_on_image, explore.descriptors.move_tile]
    for function in (*both, explore.descriptors.code):
        with pytest.raises(ArgumentTypeError, match="descriptor: got 3"):
            function(3)
    for function in both:
        with pytest.raises(InvalidArgumentError, match=r"at: got \(5, 0\)\. Give two .* of rows, 0 to 4,"):
            function(plain, (16, 8), (5, 0))
        with pytest.raises(InvalidArgumentError, match="at: got"):
            function(plain, (16, 8), (0,))
        with pytest.raises(InvalidArgumentError, match=r"tile\[1\]: got 0"):
            function(plain, (16, 0))
        with pytest.raises(InvalidArgumentError, match=r"tile: got \(16,\)"):
            function(plain, (16,))
        with pytest.raises(InvalidArgumentError, match="batch: got 1"):
            function(plain, batch=1)
        with pytest.raises(UnknownNameError, match=r"pixels\[0\]: 'h'"):
            function(plain, pixels=("h", "w"))
        with pytest.raises(InvalidArgumentError, match="images not known yet"):
            function(convolution.input_windows(PLAIN, 4, (144, 4, 1, 24, 4), (1, 2, 0)))
        with pytest.raises(InvalidArgumentError, match="its dimensions are 6 long"):
            function(naive((6,), (1,), names=("x",)))
        with pytest.raises(InvalidArgumentError, match="its matrix is 1048576 x 2"):
            function(naive((2**20, 2), (2, 1)))
    with pytest.raises(ArgumentTypeError, match=r"descriptors\['a'\]: got 3"):
        explore.descriptors.vector_widths({"a": 3}, 2)  # type: ignore[dict-item] # that is the question
    with pytest.raises(InvalidArgumentError, match="itemsize: got 0"):
        explore.descriptors.vector_widths({"a": plain}, 0)
