"""Lowered descriptors: they agree with Python for every index, are readable, and their loads are wide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coords.random_chains import descriptors, offset_by_the_table
from tests.everything import examples
from workbench import Launch, lens
from workbench.coords import Descriptor, lower, naive, packed, symbol, transform
from workbench.coords.transforms import (
    clamp,
    embed,
    freeze,
    indexing,
    insert,
    merge,
    modulo,
    offset,
    pad,
    pass_through,
    reflect,
)
from workbench.errors import ArgumentTypeError, InvalidArgumentError


@triton.jit
def probe_kernel(
    offset_pointer, valid_pointer, known,
    ACCESS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Store offset and validity of every row and column, from the access function."""
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    offset, valid = ACCESS(row, col, known)
    place = row * COLS + col
    tl.store(offset_pointer + place, offset + tl.zeros([ROWS, COLS], tl.int32))
    tl.store(valid_pointer + place, (valid & (place >= 0)).to(tl.int8))


def two_dimensions(descriptor: Descriptor) -> Descriptor:
    """Merge the first dimensions into rows and the others into columns; a missing one has length 1."""
    for place in range(len(descriptor.top), 2):
        kept = [pass_through(length) for length in descriptor.lengths]
        taken = [(i,) for i in range(place)]
        descriptor = transform(descriptor, [*kept, insert(1)], [*taken, ()], [*taken, (place,)])
    cut = len(descriptor.top) // 2
    sides = [range(cut), range(cut, len(descriptor.top))]
    merges = [merge([descriptor.lengths[d] for d in side]) for side in sides]
    return transform(descriptor, merges, sides, [(0,), (1,)], names=("row", "col"))


def probed(
    descriptor: Descriptor, checked: tuple[bool, bool] = (True, True), **symbols: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return offset and validity of every row and column, by a kernel whose tile hangs over both ends."""
    access = lower(descriptor, checked=checked)
    bound = descriptor.bind(**symbols)
    rows, cols = (triton.next_power_of_2(int(n) + 1) for n in bound.lengths)  # type: ignore[arg-type]
    offsets = torch.full((rows, cols), -1, dtype=torch.int32)
    valid = torch.full((rows, cols), -1, dtype=torch.int8)
    probe_kernel[(1,)](offsets, valid, access.params(symbols), ACCESS=access.function, ROWS=rows, COLS=cols)
    return offsets, valid


def check_every_index(descriptor: Descriptor, **symbols: int) -> None:
    offsets, valid = probed(descriptor, (True, True), **symbols)
    bound = descriptor.bind(**symbols)
    rows, cols = bound.lengths
    for row in range(offsets.shape[0]):
        for col in range(offsets.shape[1]):
            if row >= rows or col >= cols:  # type: ignore[operator]
                assert not valid[row, col]
                continue
            wanted, is_valid = offset_by_the_table(bound, (row, col))
            assert bool(valid[row, col]) == is_valid
            if is_valid:
                assert offsets[row, col] == wanted


@settings(max_examples=examples(60))
@given(descriptors(smallest=0))
def test_lowered_offsets_and_validity_agree_with_python(descriptor: Descriptor) -> None:
    check_every_index(two_dimensions(descriptor))


def check_hints(descriptor: Descriptor, checked: tuple[bool, bool]) -> None:
    """Check that each aligned run of a hint has one validity and, if valid, is contiguous and aligned."""
    source = lower(descriptor, checked=checked).source
    offsets, valid = (table.tolist() for table in probed(descriptor, checked))
    rows, cols = (int(n) for n in descriptor.lengths)  # type: ignore[arg-type]
    for of_offsets, pattern in (
        (True, r"max_contiguous\(.*, \((\d+), (\d+)\)\)"),
        (False, r"max_constancy\(valid, \((\d+), (\d+)\)\)"),
    ):
        found = re.search(pattern, source)
        if found is None:
            continue
        for dim, run in enumerate(map(int, found.groups())):
            for row in range(0, rows, run if dim == 0 else 1):
                for col in range(0, cols, run if dim == 1 else 1):
                    places = [(row + j * (dim == 0), col + j * (dim == 1)) for j in range(run)]
                    if any(i >= len(offsets) or j >= len(offsets[0]) for i, j in places):
                        continue  # longer than the tile
                    if not of_offsets:
                        assert len({valid[i][j] for i, j in places}) == 1
                    elif all(valid[i][j] for i, j in places) and run > 1:
                        got = [offsets[i][j] for i, j in places]
                        assert got == list(range(got[0], got[0] + run))
                        assert got[0] % run == 0


@settings(max_examples=examples(60))
@given(descriptors(smallest=1), st.booleans(), st.booleans())
def test_generated_hints_are_true(descriptor: Descriptor, check_rows: bool, check_cols: bool) -> None:
    check_hints(two_dimensions(descriptor), (check_rows, check_cols))


@pytest.mark.parametrize("checked", [True, False])
def test_hints_are_true_where_the_end_cuts_a_run(checked: bool) -> None:
    """With 20 of 24 rows valid, the second run of 16 is valid only in part, with and without a check."""
    padded = transform(packed((20, 3)), [pad(20, 0, 4), pass_through(3)], [(0,), (1,)], [(0,), (1,)])
    assert "valid = tl.max_constancy(valid, (4, 1))" in lower(padded, checked=(checked, checked)).source
    check_hints(padded, (checked, checked))


@triton.jit
def tile_kernel(x, params, ACCESS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Call the access function for a tile, and discard the result."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ACCESS(row[:, None], (tl.program_id(1) * COLS + tl.arange(0, COLS))[None, :], params)


def ask_for_tiles(descriptor: Descriptor, tile: tuple[int, int]) -> str:
    """Run an access function over all tiles, which checks its hints, and return its source."""
    access = lower(descriptor, checked=(False, False), tile=tile, is_whole=True)
    grid = tuple(-(-int(n) // block) for n, block in zip(descriptor.lengths, tile, strict=True))  # type: ignore[arg-type]
    tile_kernel[grid](torch.zeros(1), access.params(), ACCESS=access.function, ROWS=tile[0], COLS=tile[1])
    return access.source


@settings(max_examples=examples(60))
@given(descriptors(smallest=1), *2 * [st.sampled_from((1, 2, 4, 8, 16, 32))])
def test_generated_hints_are_true_in_tiles_that_hang_over_the_ends(
    descriptor: Descriptor, rows: int, cols: int
) -> None:
    """The interpreter refuses a false hint, in any lane of a tile that hangs over."""
    ask_for_tiles(two_dimensions(descriptor), (rows, cols))


def test_a_tile_that_hangs_over_the_only_row_has_no_hint() -> None:
    """The missing second row would begin at an odd offset; tiles of one row have no second row."""
    row = naive((1, 16), (17, 1), names=("row", "col"))
    assert "tl.multiple_of(offset, (1, 16))" in ask_for_tiles(row, (1, 16))
    assert "tl.multiple_of" not in ask_for_tiles(row, (2, 16))


def test_the_outermost_digit_takes_no_remainder() -> None:
    """Beyond its end the outermost digit goes on: with two taps, to 2 and 3, not to 0 and 1 again."""
    pixels = transform(packed((1,)), [pad(1, 2, 2)], [(0,)], [(0,)])
    taps = transform(pixels, [embed((2, 2), (3, 1))], [(0,)], [(0, 1)])
    kept = [pass_through(2), insert(1), pass_through(2)]
    of_channel = transform(taps, kept, [(0,), (), (1,)], [(0,), (1,), (2,)])
    matrix = transform(of_channel, [pass_through(2), merge((1, 2))], [(0,), (1, 2)], [(0,), (1,)])
    assert "%" not in ask_for_tiles(two_dimensions(matrix), (2, 16))


@pytest.mark.parametrize("batch", [1, 3])
def test_unbound_lengths_and_strides_are_arguments(batch: int) -> None:
    n, c, pitch = symbol("n", least=1), symbol("c", least=1), symbol("pitch")
    image = naive((n, 3, c), (pitch * 3, pitch, 1), names=("n", "x", "c"))
    padded = transform(image, [pass_through(n), pad(3, 1, 1), pass_through(c)], [(0,), (1,), (2,)],
                       [(0,), (1,), (2,)])  # fmt: skip
    matrix = transform(padded, [merge((n, 5)), pass_through(c)], [(0, 1), (2,)], [(0,), (1,)])
    assert set(lower(matrix).symbols) == {"n", "c", "pitch"}
    check_every_index(matrix, n=batch, c=2, pitch=4)


def test_one_lowered_function_serves_every_batch() -> None:
    n = symbol("n", least=1)
    matrix = transform(packed((n, 4, 8)), [merge((n, 4)), pass_through(8)], [(0, 1), (2,)], [(0,), (1,)])
    assert lower(matrix) is lower(
        transform(packed((n, 4, 8)), [merge((n, 4)), pass_through(8)], [(0, 1), (2,)], [(0,), (1,)])
    )
    for batch in (1, 2, 7):
        check_every_index(matrix, n=batch)


def test_dividends_are_made_nonnegative() -> None:
    """Triton divides as C does: -1 % 4 would be -1."""
    row = transform(packed((4,)), [modulo(4, 6)], [(0,)], [(0,)])
    shifted = transform(row, [offset(6, -3)], [(0,)], [(0,)])
    matrix = transform(shifted, [pass_through(6), insert(1)], [(0,), ()], [(0,), (1,)], names=("row", "col"))
    assert "(row + 1) % 4" in lower(matrix).source
    check_every_index(matrix)


def test_reflected_and_clamped_edges_are_computed() -> None:
    image = transform(packed((5, 6)), [reflect(5, 2, 4), clamp(6, 3, 1)], [(0,), (1,)], [(0,), (1,)])
    text = lower(image, checked=(False, False)).source
    assert "tl.abs(d0 - 2)" in text
    assert "tl.minimum(tl.maximum(d1 - 3, 0), 5)" in text
    assert "valid = True" in text
    check_every_index(image)


def test_a_gather_reads_its_table() -> None:
    rows = transform(packed((5, 3)), [indexing((4, 0, 4, 2), 5), pass_through(3)], [(0,), (1,)],
                     [(0,), (1,)])  # fmt: skip
    assert "tl.load(table" in lower(rows).source
    check_every_index(rows)


@pytest.mark.parametrize("shift", [0, -3, 3, 2])
def test_indices_that_can_miss_a_table_are_checked(shift: int) -> None:
    row = transform(packed((5,)), [indexing((4, 0, 4, 2), 5, name="places")], [(0,)], [(0,)])
    moved = transform(row, [offset(9, shift)], [(0,)], [(0,)])
    windows = transform(moved, [embed((3, 2), (1, -1))], [(0,)], [(0, 1)], names=("row", "col"))
    check_every_index(windows)
    fixed = transform(moved, [freeze(0), insert(2), insert(3)], [(0,), (), ()], [(), (0,), (1,)])
    check_every_index(fixed)


def test_indices_that_cannot_miss_a_table_are_not_checked() -> None:
    row = transform(packed((5,)), [indexing((4, 0, 4, 2), 5)], [(0,)], [(0,)])
    windows = transform(row, [embed((3, 2), (1, 1))], [(0,)], [(0, 1)], names=("row", "col"))
    assert not lower(windows, checked=(False, False)).is_checked
    padded = transform(row, [pad(4, 1, 1)], [(0,)], [(0,)])
    assert (
        lower(padded, checked=(False,)).source.count(" >= 0") == 2
    )  # the checks of the padding and of the load


def test_equal_names_get_a_number() -> None:
    several = transform(
        naive((5,), (1,)), [pass_through(5), insert(2), insert(3)], [(0,), (), ()], [(0,), (1,), (2,)]
    )
    assert "def access(d0, replicate, replicate_2, params)" in lower(several).source


def test_lists_are_taken_as_tuples() -> None:
    matrix = packed((60, 60))
    assert lower(matrix, checked=[True, True]) is lower(matrix)
    assert lower(matrix, tile=[64, 64]) is lower(matrix, tile=(64, 64))


def conv_input(batch: object, height: int, channels: object, window: int, padding: int) -> Descriptor:
    image = packed((batch, height, height, channels), names=("n", "h", "w", "c"))  # type: ignore[arg-type]
    out = height + 2 * padding - window + 1
    each = [(0,), (1,), (2,), (3,)]
    padded = transform(
        image,
        [pass_through(batch), pad(height, padding, padding), pad(height, padding, padding),  # type: ignore[arg-type]
         pass_through(channels)],  # type: ignore[arg-type]
        each, each,
    )  # fmt: skip
    windows = transform(
        padded,
        [pass_through(batch), embed((out, window), (1, 1)), embed((out, window), (1, 1)),  # type: ignore[arg-type]
         pass_through(channels)],  # type: ignore[arg-type]
        each, [(0,), (1, 3), (2, 4), (5,)], names=("n", "oh", "ow", "r", "s", "c"),
    )  # fmt: skip
    merges = [merge((batch, out, out)), merge((window, window, channels))]  # type: ignore[arg-type]
    return transform(windows, merges, [(0, 1, 2), (3, 4, 5)], [(0,), (1,)], names=("row", "col"))


def test_the_generated_source_is_readable() -> None:
    access = lower(conv_input(symbol("batch", least=1), 56, 64, 3, 1), checked=(False, False))
    assert access.source.split('"""')[2].splitlines()[1:] == [
        "    ow = row % 56",
        "    col_over_64 = col // 64",
        "    s = col_over_64 % 3",
        "    w = ow + (s - 1)",
        "    row_over_56 = row // 56",
        "    oh = row_over_56 % 56",
        "    r = col // 192",
        "    h = oh + (r - 1)",
        "    c = col % 64",
        "    offset = row * 64 + (r * 3584 + s * 64 + c - 3648)",
        "    valid = (w >= 0) & (w < 56) & (h >= 0) & (h < 56)",
        "    offset = tl.max_contiguous(tl.multiple_of(offset, (1, 16)), (1, 16))",
        "    valid = tl.max_constancy(valid, (1, 16))",
        "    return offset, valid",
    ]
    assert access.is_checked


def test_only_indices_that_can_be_out_of_range_are_checked() -> None:
    row = transform(packed((8,)), [pad(8, 0, 2)], [(0,)], [(0,)])
    windows = transform(row, [embed((4, 3), (2, 1))], [(0,)], [(0, 1)], names=("row", "col"))
    assert "valid = (d0 < 8)" in lower(windows, checked=(False, False)).source
    inner = transform(windows, [pass_through(4), freeze(1)], [(0,), (1,)], [(0,), ()], names=("row",))
    assert "valid = True" in lower(inner, checked=(False,)).source


def test_a_symbol_with_the_name_of_an_index_gets_a_number() -> None:
    n = symbol("row", least=1)
    matrix = packed((n, 4), names=("row", "col"))
    assert "row_2 = params[0]" in lower(matrix).source
    check_every_index(matrix, row=3)


@pytest.mark.parametrize("least", [0, 1])
def test_an_index_is_not_confused_with_a_length_of_its_name(least: int) -> None:
    n = symbol("row", least=least)
    matrix = transform(packed((n, 4), names=("row", "col")), [pass_through(n), pass_through(4)],
                       [(0,), (1,)], [(0,), (1,)], names=("row", "col"))  # fmt: skip
    assert "(row < row_2)" in lower(matrix).source
    check_every_index(matrix, row=5)


def loads_of(source: torch.Tensor, descriptor: Descriptor, **symbols: int) -> int:
    """Return the bits of the widest load of a lane through a descriptor, compiled for sm_90."""
    access = lower(descriptor, checked=(False, False))
    launch = Launch.of(
        copy_kernel, (1,), source, torch.empty(64 * 64, dtype=source.dtype), access.params(symbols),
        outputs=(), ACCESS=access.function, num_warps=4,
    )  # fmt: skip
    (step,) = lens.compile(launch, "sm_90")
    width = step.widest("global load")
    assert width is not None
    return width


@triton.jit
def copy_kernel(source, destination, known, ACCESS: tl.constexpr):
    row, col = tl.program_id(0) * 64 + tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    offset, valid = ACCESS(row, col, known)
    tl.store(destination + row * 64 + col, tl.load(source + offset, mask=valid, other=0.0))


@pytest.mark.parametrize(("channels", "bits"), [(64, 128), (24, 128), (20, 64), (3, 16)])
def test_loads_are_as_wide_as_channels_allow(channels: int, bits: int) -> None:
    image = torch.zeros(2 * 8 * 8 * channels, dtype=torch.float16)
    assert loads_of(image, conv_input(2, 8, channels, 3, 1)) == bits


@pytest.mark.parametrize(("multiple", "bits"), [(8, 128), (4, 64), (1, 16)])
def test_a_known_divisor_of_a_run_time_length_widens_loads(multiple: int, bits: int) -> None:
    image = torch.zeros(2 * 8 * 8 * 24, dtype=torch.float16)
    channels = symbol("c", least=1, multiple_of=multiple)
    assert loads_of(image, conv_input(2, 8, channels, 3, 1), c=24) == bits


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"checked": (True,)}, InvalidArgumentError, "checked: got 1"),
        ({"checked": (1, 2)}, ArgumentTypeError, "checked"),
        ({"checked": 3}, ArgumentTypeError, "checked: got 3"),
        ({"tile": [64]}, InvalidArgumentError, "tile: got 1"),
        ({"tile": [64, 0]}, InvalidArgumentError, r"tile\[1\]: got 0"),
        ({"name": "no name"}, InvalidArgumentError, "name"),
        ({"name": ["a"]}, ArgumentTypeError, "name"),
        ({"is_whole": [1]}, ArgumentTypeError, "is_whole"),
    ],
)
def test_errors_name_the_wrong_argument(
    arguments: Mapping[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        lower(packed((2, 2)), **arguments)
    for other in (3, [3]):
        with pytest.raises(ArgumentTypeError, match="descriptor"):
            lower(other)  # type: ignore[arg-type]


def test_missing_params_raise_and_others_are_ignored() -> None:
    access = lower(packed((symbol("n"), 4)))
    with pytest.raises(InvalidArgumentError, match="Give a value for n"):
        access.params()
    with pytest.raises(InvalidArgumentError, match="got values of m"):
        access.params({"m": 1})
    assert access.params({"m": 1, "n": 2}) == (2,)


def test_a_value_outside_the_limits_of_its_symbol_raises() -> None:
    """The hints depend on a symbol's divisor even if the symbol is in no offset."""
    rows, cols = symbol("rows", least=1, most=64), symbol("cols", multiple_of=8)
    access = lower(packed((rows, cols)), checked=(False, False))
    assert access.params({"rows": 3, "cols": 16}) == (16,)
    for values, words in (
        ({"rows": 3, "cols": 20}, "cols: got 20. Give a multiple of 8."),
        ({"rows": 0, "cols": 16}, "rows: got 0. Give 1 or more."),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            access.params(values)
    with pytest.raises(ArgumentTypeError, match="cols: got True"):
        access.params({"cols": True})


def test_a_symbol_that_the_code_does_not_need_is_not_an_argument() -> None:
    """An outermost batch is in no offset: if its end is not checked, all sizes are the same call."""
    access = lower(packed((symbol("n"), 4)), checked=(False, True))
    assert access.symbols == ()
    assert access.params({"n": 7}) == ()
