"""Wave quantization agrees with counts by hand and stays within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.lens.waves import Waves


@pytest.mark.parametrize(
    ("waves", "tiles", "slots", "count", "last"),
    [
        (Waves(4096, 4096, (128, 128)), 1024, 132, 8, 100),
        (Waves(4096, 4096, (128, 192)), 32 * 22, 132, 6, 44),  # the last column of tiles exceeds the output
        (Waves(4096, 4096, (128, 256), 132, 2), 512, 264, 2, 248),
        (Waves(128 * 11, 128 * 12, (128, 128)), 132, 132, 1, 132),  # just full
        (Waves(128 * 7, 128 * 19, (128, 128)), 133, 132, 2, 1),  # one too many
        (Waves(1, 1, (128, 128)), 1, 132, 1, 1),
    ],
)
def test_tiles_and_waves_are_those_counted_by_hand(
    waves: Waves, tiles: int, slots: int, count: int, last: int
) -> None:
    assert (waves.tiles, waves.slots, waves.waves, waves.last) == (tiles, slots, count, last)
    assert waves.efficiency == tiles / (count * slots)


def test_one_tile_too_many_halves_the_efficiency() -> None:
    assert Waves(128 * 11, 128 * 12, (128, 128)).efficiency == 1
    assert Waves(128 * 7, 128 * 19, (128, 128)).efficiency == pytest.approx(133 / 264)


def test_partial_tiles_lower_the_utilization() -> None:
    waves = Waves(100, 192, (128, 192), compute_units=1)
    assert waves.efficiency == 1
    assert waves.filled == waves.utilization == pytest.approx(100 / 128)


SIZES = st.integers(1, 3000)


@given(
    SIZES, SIZES, st.tuples(st.integers(1, 300), st.integers(1, 300)), st.integers(1, 200), st.integers(1, 4)
)
def test_counts_of_tiles_and_waves_are_consistent(
    m: int, n: int, tile: tuple[int, int], compute_units: int, resident: int
) -> None:
    waves = Waves(m, n, tile, compute_units, resident)
    assert (waves.rows - 1) * tile[0] < m <= waves.rows * tile[0]
    assert (waves.cols - 1) * tile[1] < n <= waves.cols * tile[1]
    assert 1 <= waves.last <= waves.slots
    assert (waves.waves - 1) * waves.slots + waves.last == waves.tiles == waves.rows * waves.cols
    assert 0 < waves.utilization <= min(waves.efficiency, waves.filled) <= 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 8, (16, 16)), InvalidArgumentError, "m: got 0"),
        ((8, 8.0, (16, 16)), ArgumentTypeError, r"n: got 8\.0, a float"),
        ((8, 8, 16), ArgumentTypeError, r"tile: got 16, a int.*\(128, 192\)"),
        ((8, 8, "16"), ArgumentTypeError, "tile: got '16'"),
        ((8, 8, (16, 16, 16)), InvalidArgumentError, r"tile: got \(16, 16, 16\)"),
        ((8, 8, (16, 0)), InvalidArgumentError, r"tile\[1\]: got 0"),
        ((8, 8, (True, 16)), ArgumentTypeError, r"tile\[0\]: got True"),
        ((8, 8, (16, 16), 0), InvalidArgumentError, "compute_units: got 0"),
        ((8, 8, (16, 16), 132, -1), InvalidArgumentError, "resident: got -1"),
    ],
)
def test_invalid_arguments_are_named(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Waves(*arguments)


def test_a_tile_may_be_a_list() -> None:
    tile: Any = [128, 192]
    assert Waves(8, 8, tile) == Waves(8, 8, (128, 192))
