"""Tile transfer: a tile has the offsets of its indices; masked lanes hold the fill and touch no memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench.interpreter import Access
from workbench.kernels.tile import transfer
from workbench.launch import Launch


@triton.jit
def tile_kernel(offsets, valid, tile, length, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tile_offsets, tile_valid = transfer.tile_1d(tile, length, BLOCK_SIZE, WIDE)
    tl.store(offsets + i, tile_offsets)
    tl.store(valid + i, tile_valid)


@triton.jit
def first_tile_kernel(offsets, length, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr):
    tile_offsets, _ = transfer.tile_1d(0, length, BLOCK_SIZE, WIDE)
    tl.store(offsets + tl.arange(0, BLOCK_SIZE), tile_offsets)


@triton.jit
def fill_kernel(x, output, length, fill, BLOCK_SIZE: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE)
    tl.store(output + offsets, transfer.load(x, offsets, valid, fill))


@triton.jit
def copy_kernel(x, output, length, BLOCK_SIZE: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE)
    transfer.store(output, offsets, transfer.load(x, offsets, valid), valid)


def tile_of(tile: int, length: int, size: int, wide: bool) -> tuple[list[int], list[bool]]:
    offsets, valid = torch.full((size,), -1), torch.zeros(size, dtype=torch.bool)
    launch = Launch.of(
        tile_kernel, 1, offsets, valid, tile, length, outputs=(offsets, valid), BLOCK_SIZE=size, WIDE=wide
    )
    launch.run()
    return offsets.tolist(), valid.tolist()


@given(
    tile=st.integers(0, 50),
    length=st.integers(0, 300),
    size=st.sampled_from([1, 2, 8, 16]),
    wide=st.booleans(),
)
def test_a_tile_has_consecutive_elements_below_the_length(
    tile: int, length: int, size: int, wide: bool
) -> None:
    offsets, valid = tile_of(tile, length, size, wide)
    assert offsets == list(range(tile * size, tile * size + size))
    assert valid == [offset < length for offset in offsets]


@given(tile=st.integers(2**28 - 2, 2**40), missing=st.integers(0, 20))
def test_wide_tiles_count_beyond_32_bits(tile: int, missing: int) -> None:
    """Offsets are stored, so no tensor of that size is needed."""
    length = tile * 8 + 8 - missing
    offsets, valid = tile_of(tile, length, 8, wide=True)
    assert offsets == list(range(tile * 8, tile * 8 + 8))
    assert valid == [offset < length for offset in offsets]


def test_narrow_tiles_wrap_beyond_32_bits() -> None:
    """Narrow offsets after the last element would be valid offsets before the first one."""
    offsets, valid = tile_of(2**28 - 1, 2**31 - 8, 16, wide=False)
    assert min(offsets) < 0
    assert any(valid)


@pytest.mark.parametrize("wide", [False, True])
def test_the_tile_number_may_be_a_constant(wide: bool) -> None:
    offsets = torch.full((4,), -1)
    Launch.of(first_tile_kernel, 1, offsets, 4, outputs=offsets, BLOCK_SIZE=4, WIDE=wide).run()
    assert offsets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (torch.float32, -1.5),
        (torch.float16, float("-inf")),
        (torch.bfloat16, 0.5),
        (torch.float64, float("nan")),
        (torch.int64, -7),
        (torch.int8, 100),
        (torch.bool, 1),
    ],
    ids=str,
)
def test_masked_lanes_hold_the_fill(dtype: torch.dtype, fill: Any) -> None:
    x = torch.arange(1, 6).to(dtype)
    output = torch.zeros(8, dtype=dtype)
    Launch.of(fill_kernel, 2, x, output, 5, fill, outputs=output, BLOCK_SIZE=4).run()
    expected = torch.cat([x, torch.full((3,), fill).to(dtype)])
    torch.testing.assert_close(output, expected, equal_nan=True, rtol=0, atol=0)


def test_masked_lanes_hold_zero_without_a_fill() -> None:
    x, output = torch.arange(1.0, 6.0), torch.full((8,), float("nan"))
    Launch.of(zero_kernel, 1, x, output, 5, outputs=output, BLOCK_SIZE=8).run()
    assert output.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@triton.jit
def zero_kernel(x, output, length, BLOCK_SIZE: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE)
    tl.store(output + offsets, transfer.load(x, offsets, valid))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17])  # below, at and above one tile and two
def test_masked_lanes_touch_nothing(length: int) -> None:
    memory = torch.full((length + 32,), -1.0)
    x, output = torch.arange(float(length)), memory[16 : 16 + length]
    launch = Launch.of(copy_kernel, triton.cdiv(length, 8), x, output, length, outputs=output, BLOCK_SIZE=8)
    seen: list[Access] = []
    launch.steps[0].run(observer=seen.append)
    assert torch.equal(output, x)
    assert (memory[:16] == -1).all()
    assert (memory[16 + length :] == -1).all()
    assert sum(int(access.mask.sum()) for access in seen if access.kind == "load") == length
    assert sum(int(access.mask.sum()) for access in seen if access.kind == "store") == length


@pytest.mark.parametrize(
    ("dtype", "output_dtype"),
    [(torch.float32, torch.float16), (torch.float64, torch.bfloat16), (torch.float32, torch.int32)],
    ids=str,
)
def test_a_stored_tile_is_rounded_to_the_tensors_type(dtype: torch.dtype, output_dtype: torch.dtype) -> None:
    x = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=dtype) * 10
    output = torch.zeros(16, dtype=output_dtype)
    Launch.of(copy_kernel, 1, x, output, 16, outputs=output, BLOCK_SIZE=16).run()
    assert torch.equal(output, x.to(output_dtype))


@triton.jit
def tile_nd_kernel(
    offsets, valid, tile, sizes, strides, LENGTH: tl.constexpr, TILE: tl.constexpr, AXES: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    if WIDE:
        tile = tl.cast(tile, tl.int64)
    tile_offsets, tile_valid = transfer.tile_nd(tile, sizes, strides, TILE, AXES)
    i = tl.arange(0, LENGTH)
    tl.store(offsets + i, tl.reshape(tile_offsets, (LENGTH,)))
    tl.store(valid + i, tl.reshape(tile_valid, (LENGTH,)))


def tile_nd_of(
    tile: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    lengths: tuple[int, ...],
    axes: tuple[int, ...],
    wide: bool = False,
) -> tuple[list[int], list[bool]]:
    """Return the offsets and the mask of a tile, flattened in the order of its axes."""
    length = math.prod(lengths)
    offsets, valid = torch.full((length,), -1), torch.zeros(length, dtype=torch.bool)
    Launch.of(
        tile_nd_kernel, 1, offsets, valid, tile, sizes, strides, outputs=(offsets, valid),
        LENGTH=length, TILE=lengths, AXES=axes, WIDE=wide,
    ).run()  # fmt: skip
    return offsets.tolist(), valid.tolist()


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Draw the sizes and strides of a tensor, the lengths of a tile, and the order of the tile's axes."""
    rank = draw(st.integers(1, 5))
    thick = draw(st.integers(1, min(rank, 3)))
    sizes = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    strides = tuple(draw(st.integers(0, 50)) for _ in range(rank))
    lengths = (1,) * (rank - thick) + tuple(draw(st.sampled_from([1, 2, 4])) for _ in range(thick))
    return sizes, strides, lengths, tuple(draw(st.permutations(range(thick))))


@settings(max_examples=examples(60))
@given(cut=cuts(), data=st.data(), wide=st.booleans())
def test_tiles_of_any_rank_have_the_offsets_of_their_indices(
    cut: Any, data: st.DataObject, wide: bool
) -> None:
    """The offset and the validity of every index are computed by brute force."""
    sizes, strides, lengths, axes = cut
    tiles = [-(-n // length) for n, length in zip(sizes, lengths, strict=True)]
    numbers = list(itertools.product(*map(range, tiles)))
    tile = data.draw(st.integers(0, len(numbers) - 1))
    rank, thick = len(sizes), len(axes)
    expected = {}
    for place in itertools.product(*map(range, lengths)):
        index = [t * n + i for t, n, i in zip(numbers[tile], lengths, place, strict=True)]
        lane = [0] * thick
        for i, axis in zip(place[rank - thick :], axes, strict=True):
            lane[axis] = i
        expected[tuple(lane)] = (
            sum(i * step for i, step in zip(index, strides, strict=True)),
            all(i < n for i, n in zip(index, sizes, strict=True)),
        )
    offsets, valid = tile_nd_of(tile, sizes, strides, lengths, axes, wide)
    assert list(zip(offsets, valid, strict=True)) == [expected[lane] for lane in sorted(expected)]


def test_all_tiles_together_have_every_element_once() -> None:
    sizes, strides, lengths = (3, 5, 6), (30, 6, 1), (1, 2, 4)
    found = []
    for tile in range(3 * 3 * 2):
        offsets, valid = tile_nd_of(tile, sizes, strides, lengths, (1, 0))
        found += [offset for offset, is_valid in zip(offsets, valid, strict=True) if is_valid]
    assert sorted(found) == list(range(90))


@pytest.mark.parametrize(
    ("tile", "sizes", "strides", "lengths", "first", "missing"),
    [
        (2**29 - 1, (2**31 - 1,), (1,), (4,), 2**31 - 4, 1),  # the sum in tl.cdiv would overflow
        (2**29, (2**31 + 2,), (1,), (4,), 2**31, 2),
        (5, (2, 12), (2**31, 1), (1, 4), 2**31 + 8, 0),  # few elements, far apart
        (2**20, (2**20 + 1, 2**20), (2**20, 1), (1, 2**20), 2**40, 0),
    ],
    ids=str,
)
def test_wide_tiles_of_any_rank_count_beyond_32_bits(
    tile: int, sizes: Any, strides: Any, lengths: Any, first: int, missing: int
) -> None:
    length = math.prod(lengths)
    offsets, valid = tile_nd_of(tile, sizes, strides, lengths, (0,), wide=True)
    assert offsets == list(range(first, first + length))
    assert valid == [True] * (length - missing) + [False] * missing


@triton.jit
def permute_kernel(x, output, LENGTHS: tl.constexpr, AXES: tl.constexpr, LENGTH: tl.constexpr):
    i = tl.arange(0, LENGTH)
    if len(AXES) == 1:
        tile = tl.load(x + i)
    elif len(AXES) == 2:
        tile = tl.reshape(tl.load(x + i), (LENGTHS[0], LENGTHS[1]))
    else:
        tile = tl.reshape(tl.load(x + i), (LENGTHS[0], LENGTHS[1], LENGTHS[2]))
    tl.store(output + i, tl.reshape(transfer.permute(tile, AXES), (LENGTH,)))


@pytest.mark.parametrize("lengths", [(8,), (2, 8), (4, 2, 8), (1, 4, 1)])
def test_permute_orders_axes_like_torch(lengths: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(lengths))
    for axes in itertools.permutations(range(len(lengths))):
        output = torch.full_like(x, -1)
        Launch.of(
            permute_kernel, 1, x, output, outputs=output, LENGTHS=lengths, AXES=axes, LENGTH=x.numel()
        ).run()
        assert torch.equal(output, x.view(lengths).permute(axes).flatten())
