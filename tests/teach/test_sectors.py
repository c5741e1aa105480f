"""Sectors of whole launches, compared with counts made by hand."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError, KernelError
from workbench.kernels.movement import transfer
from workbench.launch import Launch
from workbench.teach import sectors


@triton.jit
def copy_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.store(output_pointer + offsets, tl.load(x_pointer + offsets, mask=valid), mask=valid)


@triton.jit
def spread_out_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.store(
        output_pointer
        + offsets,
        tl.load(
            x_pointer + offsets,
            mask=valid,
        ),
        mask=valid,
    )  # fmt: skip


@triton.jit
def row_sums_kernel(x_pointer, sums_pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    places = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(sums_pointer + rows, tl.sum(tl.load(x_pointer + places), axis=1))


@triton.jit
def one_element_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    first = tl.load(x_pointer)
    offsets = tl.arange(0, BLOCK_SIZE)
    tl.store(output_pointer + offsets, first + offsets * 0.0, mask=offsets < length)


@triton.jit
def atomic_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tl.atomic_add(output_pointer + offsets, tl.load(x_pointer + offsets, mask=valid), mask=valid)


@triton.jit
def python_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = [tl.arange(0, BLOCK_SIZE)]
    offsets.append(offsets[0] < length)
    tile = tl.load(x_pointer + offsets[0], mask=offsets[1])
    tl.store(output_pointer + offsets[0], tile, mask=sorted(offsets[1:], key=id)[0])


def launched(kernel: object, length: int) -> Launch:
    x, output = torch.zeros(length), torch.zeros(length)
    grid = (triton.cdiv(length, 1024),)
    return Launch.of(kernel, grid, x, output, length, outputs=output, BLOCK_SIZE=1024)


def counts(launch: Launch) -> list[tuple[str, str, int, int]]:
    return [
        (access.kind, access.argument, access.totals.bits, access.totals.sectors)
        for access in sectors.by_access(launch)
    ]


@pytest.mark.parametrize("kernel", [copy_kernel, spread_out_kernel], ids=["one line", "several lines"])
def test_a_copy_touches_each_sector_once(kernel: object) -> None:
    """4096 numbers of 4 bytes are 512 sectors. The compiler may give a call the line of an argument."""
    assert counts(launched(kernel, 4096)) == [
        ("load", "x_pointer", 128, 512),
        ("store", "output_pointer", 128, 512),
    ]


def test_a_ragged_mask_splits_each_request_into_four() -> None:
    """An access of 4 elements becomes four; the last 4 of 4100 numbers touch one sector four times."""
    assert counts(launched(copy_kernel, 4100)) == [
        ("load", "x_pointer", 32, 4 * 512 + 4),
        ("store", "output_pointer", 32, 4 * 512 + 4),
    ]


def test_accesses_of_a_tile_operator_are_counted_by_call() -> None:
    """The shipped copy calls the same two operators for whole tiles and for the last tile."""
    x = torch.zeros(4100)
    load, store, last_load, last_store = counts(transfer.launch(x, torch.empty_like(x)))
    assert (load[2:], store[2:]) == ((128, 512), (128, 512))
    assert (last_load[2:], last_store[2:]) == ((32, 4), (32, 4))


def test_sectors_of_a_reduced_tile_are_counted() -> None:
    """The sums' layout is a slice of the tile's or one of its own; 16 sums of 4 bytes are 2 sectors."""
    x, sums = torch.zeros(16, 64), torch.zeros(16)
    launch = Launch.of(row_sums_kernel, (1,), x, sums, outputs=sums, ROWS=16, COLUMNS=64)
    load, store = sectors.by_access(launch)
    assert load.totals.sectors == 16 * 64 * 4 // 32
    assert 2 <= store.totals.sectors <= 16
    assert store.totals.useful_bytes == 64


def test_sectors_of_all_steps_are_counted() -> None:
    one, two = launched(copy_kernel, 4096), launched(copy_kernel, 2048)
    launch = Launch((*one.steps, *two.steps), (*one.outputs, *two.outputs))
    assert [found[3] for found in counts(launch)] == [512, 512, 256, 256]
    assert sectors.by_access(Launch((), ())) == ()


def test_the_repr_of_an_access_gives_its_counts() -> None:
    load, _ = sectors.by_access(launched(copy_kernel, 4096))
    assert repr(load) == ("load x_pointer: 128 bits a lane, 16 sectors a request, 512 in all, 100.0% used")


@pytest.mark.parametrize(
    ("kernel", "what"), [(one_element_kernel, "load"), (atomic_kernel, "atomic")], ids=["element", "atomic"]
)
def test_accesses_that_cannot_be_counted_raise(kernel: object, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"the {what} in line .* accesses no tile of pointers"):
        sectors.by_access(launched(kernel, 100))


def test_a_kernel_that_does_not_compile_raises() -> None:
    """The interpreter runs any Python, the compiler does not."""
    with pytest.raises(KernelError, match="python_kernel"):
        sectors.by_access(launched(python_kernel, 100))
