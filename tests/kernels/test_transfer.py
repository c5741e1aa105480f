"""Tile transfer: which elements a tile has, what masked lanes hold, and that they touch nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

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
def test_elements_of_a_tile(tile: int, length: int, size: int, wide: bool) -> None:
    offsets, valid = tile_of(tile, length, size, wide)
    assert offsets == list(range(tile * size, tile * size + size))
    assert valid == [offset < length for offset in offsets]


@given(tile=st.integers(2**28 - 2, 2**40), missing=st.integers(0, 20))
def test_beyond_what_32_bits_count(tile: int, missing: int) -> None:
    """No tensor of that size is needed to see the numbers."""
    length = tile * 8 + 8 - missing
    offsets, valid = tile_of(tile, length, 8, wide=True)
    assert offsets == list(range(tile * 8, tile * 8 + 8))
    assert valid == [offset < length for offset in offsets]


def test_counted_in_32_bits_they_wrap() -> None:
    """Why there is a choice: the lanes after the last element would be valid ones before the first."""
    offsets, valid = tile_of(2**28 - 1, 2**31 - 8, 16, wide=False)
    assert min(offsets) < 0
    assert any(valid)


@pytest.mark.parametrize("wide", [False, True])
def test_a_tile_whose_number_is_known(wide: bool) -> None:
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
def test_lanes_that_read_nothing_hold_the_fill(dtype: torch.dtype, fill: Any) -> None:
    x = torch.arange(1, 6).to(dtype)
    output = torch.zeros(8, dtype=dtype)
    Launch.of(fill_kernel, 2, x, output, 5, fill, outputs=output, BLOCK_SIZE=4).run()
    expected = torch.cat([x, torch.full((3,), fill).to(dtype)])
    torch.testing.assert_close(output, expected, equal_nan=True, rtol=0, atol=0)


def test_without_a_fill_they_hold_zero() -> None:
    x, output = torch.arange(1.0, 6.0), torch.full((8,), float("nan"))
    Launch.of(zero_kernel, 1, x, output, 5, outputs=output, BLOCK_SIZE=8).run()
    assert output.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@triton.jit
def zero_kernel(x, output, length, BLOCK_SIZE: tl.constexpr):
    offsets, valid = transfer.tile_1d(tl.program_id(0), length, BLOCK_SIZE)
    tl.store(output + offsets, transfer.load(x, offsets, valid))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17])  # under, at and over one tile and two
def test_what_hangs_over_touches_nothing(length: int) -> None:
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
