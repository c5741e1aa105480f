"""Every rung computes what its operator does, and reads memory in the order of its pattern."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from workbench import lens, ops
from workbench.errors import InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.launch import Launch
from workbench.teach.rungs import ladder, row_ladder


@pytest.mark.parametrize("pattern", ladder.PATTERNS)
@pytest.mark.parametrize("length", [1, 64, 2048])
def test_a_copy_by_every_pattern_equals_its_source(pattern: str, length: int) -> None:
    values = torch.randn(length)
    output = torch.full_like(values, float("nan"))
    ladder.copy_by(pattern, ladder.spread(values, pattern), output, block_size=256).run()
    assert torch.equal(output, values)


@pytest.mark.parametrize("pattern", ladder.PATTERNS)
def test_a_copy_reads_the_indices_of_its_pattern(pattern: str) -> None:
    output = torch.empty(256)
    launch = ladder.copy_by(pattern, ladder.spread(torch.randn(256), pattern), output, block_size=64)
    (step,) = lens.trace(launch)
    read = [int(offset) for event in step.events(kind="load") for offset in event.offsets.flat]  # type: ignore[union-attr] # loads have them
    assert read == ladder.places(pattern, 256).tolist()
    assert len(set(read)) == 256


def test_patterns_are_ordered_by_the_sectors_of_a_warp() -> None:
    """The 32 lanes of a warp load 4 bytes each; a sector has 32 bytes."""
    sectors = [len({int(at) // 8 for at in ladder.places(name, 2**16)[:32]}) for name in ladder.PATTERNS]
    assert sectors == [4, 5, 8, 32, 32]


@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (65, 63), (3, 200)], ids=str)
@pytest.mark.parametrize("rung", [ladder.transpose_rows, ladder.transpose_tiles])
def test_both_rungs_transpose_ragged_matrices(rung: object, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    output = torch.full(shape[::-1], float("nan"))
    rung(x, output).run()  # type: ignore[operator] # both rungs are functions
    assert torch.equal(output, x.t())


def test_rungs_are_candidates_of_their_operators() -> None:
    x = torch.randn(64, 64)
    for name, rung in ladder.RUNGS["permute_copy"].items():
        assert torch.equal(rung(x, dims=(1, 0))(), ops.permute_copy(x, (1, 0))), name
    for name, rung in ladder.RUNGS["clone"].items():
        assert torch.equal(rung(x)(), x), name


def test_errors_name_the_wrong_pattern_or_length() -> None:
    with pytest.raises(UnknownNameError, match="pattern: 'strided'"):
        ladder.spread(torch.ones(8), "strided")
    with pytest.raises(InvalidArgumentError, match="length: got 9"):
        ladder.spread(torch.ones(9), "scattered")


@pytest.mark.parametrize(("pattern", "length"), [("every_eighth", 2**29), ("every_second", 2**31)])
def test_lengths_whose_places_exceed_32_bits_raise(pattern: str, length: int) -> None:
    """The kernel's 32-bit offsets would wrap around to places before the tensor."""
    values = torch.empty(1).expand(length)
    with pytest.raises(InvalidArgumentError, match=f"length: got {length}"):
        ladder.copy_by(pattern, values, values)


def test_a_source_too_short_or_strided_for_its_pattern_raises() -> None:
    values = torch.ones(64)
    with pytest.raises(TensorMismatchError, match=r"source: 64 elements. shifted reads element 64"):
        ladder.copy_by("shifted", values, torch.empty(64))
    with pytest.raises(TensorMismatchError, match=r"source: its strides are \(2,\)"):
        ladder.copy_by("contiguous", torch.ones(128)[::2], torch.empty(64))
    with pytest.raises(TensorMismatchError, match=r"output: it is torch.float16, not torch.float32"):
        ladder.copy_by("contiguous", values, torch.empty(64, dtype=torch.float16))


@pytest.mark.parametrize("rung", [ladder.transpose_rows, ladder.transpose_tiles])
def test_matrices_that_a_rung_would_transpose_wrongly_raise(rung: Callable[..., Launch]) -> None:
    with pytest.raises(TensorMismatchError, match=r"x: its strides are \(1, 8\)"):
        rung(torch.ones(4, 8).t(), torch.empty(4, 8))
    with pytest.raises(TensorMismatchError, match=r"shapes \(4, 8\) and \(4, 8\)"):
        rung(torch.ones(4, 8), torch.empty(4, 8))
    with pytest.raises(TensorMismatchError, match=r"shapes \(4,\) and \(4,\)"):
        rung(torch.ones(4), torch.empty(4))
    with pytest.raises(TensorMismatchError, match="x: 2147483648 elements"):
        rung(*(torch.empty(shape, device="meta") for shape in ((2**16, 2**15), (2**15, 2**16))))


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (5, 4097), (2, 9000)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_rung_sums_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randint(-8, 9, shape).to(dtype)
    for rung in (row_ladder.row_sum, row_ladder.row_sum_tiles, row_ladder.row_sum_split):
        output = torch.full(shape[:1], float("nan"), dtype=dtype)
        rung(x, output).run()
        assert torch.equal(output, x.sum(1)), rung


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (5, 4097), (2, 9000)], ids=str)
def test_every_rung_computes_softmax(shape: tuple[int, int]) -> None:
    x = 200 * torch.randn(shape)
    for rung in (row_ladder.softmax_three_reads, row_ladder.softmax_two_reads, row_ladder.softmax_row):
        output = torch.full(shape, float("nan"))
        rung(x, output).run()
        torch.testing.assert_close(output.double(), x.double().softmax(1), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (5, 1025)], ids=str)
def test_the_rung_computes_layer_norm(shape: tuple[int, int]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(shape[1:]), torch.randn(shape[1:])
    output = torch.full(shape, float("nan"))
    row_ladder.layer_norm_row(x, weight, bias, output).run()
    exact = torch.nn.functional.layer_norm(x.double(), shape[1:], weight.double(), bias.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=2e-6)


def test_softmax_rungs_read_the_rows_three_times_twice_and_once() -> None:
    x = torch.randn(2, 9000)
    for rung, reads in (
        (row_ladder.softmax_three_reads, 3),
        (row_ladder.softmax_two_reads, 2),
        (row_ladder.softmax_row, 1),
    ):
        (step,) = lens.trace(rung(x, torch.empty_like(x)))
        assert step.traffic("x_pointer", "load").bytes == reads * x.nbytes


def test_row_rungs_are_candidates_of_their_operators() -> None:
    x, w = torch.randn(4, 64), torch.randn(64)
    for name, rung in row_ladder.RUNGS["sum"].items():
        torch.testing.assert_close(rung(x, dim=-1)(), ops.sum(x, -1)), name
    for name, rung in ladder.RUNGS["softmax"].items():
        torch.testing.assert_close(rung(x, dim=-1)(), ops.softmax(x, -1)), name
    for name, rung in ladder.RUNGS["layer_norm"].items():
        (
            torch.testing.assert_close(rung(x, (64,), w, w, eps=1e-5)(), ops.layer_norm(x, (64,), w, w)),
            name,
        )


def test_errors_name_rows_that_no_rung_takes() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(TensorMismatchError, match=r"x: shape \(8, 4\), strides \(1, 8\)"):
        row_ladder.row_sum(x.t(), torch.empty(8))
    with pytest.raises(TensorMismatchError, match=r"output: shape \(8,\)"):
        row_ladder.row_sum_tiles(x, torch.empty(8))
    with pytest.raises(TensorMismatchError, match=r"weight: shape \(4,\)"):
        row_ladder.layer_norm_row(x, torch.ones(4), torch.ones(8), torch.empty_like(x))
    with pytest.raises(InvalidArgumentError, match="splits"):
        row_ladder.row_sum_split(x, torch.empty(4), splits=0)
