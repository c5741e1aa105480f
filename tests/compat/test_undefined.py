"""Lanes and memory that a GPU leaves undefined show in results, also in extremes, which skip ordinary NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from workbench import teach
from workbench.compat.undefined import ends, fill_undefined, is_undefined, undefined
from workbench.launch import Launch, Step
from workbench.lens import compile as compile_for
from workbench.runtime import interpret
from workbench.teach.definition import Case

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@triton.jit
def extreme_kernel(x, y, n, KIND: tl.constexpr, GUARDED: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i, mask=i < n).to(tl.float32)
    if GUARDED:
        tile = tl.where(i < n, tile, 1.0)
    if KIND == "min":
        result = tl.min(tile, 0)
    elif KIND == "max":
        result = tl.max(tile, 0)
    elif KIND == "minimum":
        result = tl.sum(tl.minimum(tile, 2.0), 0)
    elif KIND == "clamp":
        result = tl.sum(tl.clamp(tile, 0.0, 2.0), 0)
    elif KIND == "argmin":
        result = tl.argmin(tile, 0).to(tl.float32)
    elif KIND == "max with index":
        result, index = tl.max(tile, 0, return_indices=True)
        result += index
    else:
        result = tl.sum(tile, 0)
    tl.store(y, result)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["min", "max", "minimum", "clamp", "argmin", "max with index", "sum"])
def test_extremes_over_undefined_lanes_are_undefined(kind: str, dtype: torch.dtype) -> None:
    """The kernel loads five of eight lanes: unless it replaces the other three, the result is undefined."""
    x, y = torch.ones(5).to(dtype), torch.zeros(1)
    launch = Launch.of(extreme_kernel, 1, x, y, 5, kind, False, 8, outputs=y)
    (result,) = interpret(launch, poison=True).outputs
    if kind == "argmin":
        assert result.item() > 8
    else:
        assert result.isnan().all()
    guarded = Launch.of(extreme_kernel, 1, x, y, 5, kind, True, 8, outputs=y)
    (result,) = interpret(guarded, poison=True).outputs
    assert result.item() == {"minimum": 8, "clamp": 8, "argmin": 0, "sum": 8}.get(kind, 1)


@pytest.mark.parametrize("kind", ["min", "max", "minimum", "clamp"])
def test_extremes_skip_an_ordinary_nan(kind: str) -> None:
    """`PropagateNan.NONE` specifies it, also beside masked lanes that the kernel replaces."""
    x, y = torch.tensor([1.0, torch.nan, 1.0, -torch.nan, 1.0]), torch.zeros(1)
    Launch.of(extreme_kernel, 1, x, y, 5, kind, True, 8, outputs=y).run()
    assert y.item() == {"minimum": 10, "clamp": 6}.get(kind, 1)


@triton.jit
def along_kernel(x, y, z, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x + row[:, None] * COLS + col[None, :], mask=(row[:, None] > 0) | (col[None, :] < cols))
    largest, index = tl.max(tile, 1, return_indices=True)
    tl.store(y + row, largest)
    tl.store(z + row, index)


def test_only_rows_with_undefined_lanes_are_undefined() -> None:
    x = torch.arange(32.0).reshape(4, 8)
    x[2, 3] = torch.nan
    y, z = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    Launch.of(along_kernel, 1, x, y, z, 5, 4, 8, outputs=(y, z)).run()
    assert y[0].isnan()
    assert abs(z[0].item()) > 2**30
    assert y[1:].tolist() == [15, 23, 31]
    assert z[1:].tolist() == [7, 7, 7]


@triton.jit
def atomic_kernel(x, y, n, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if KIND == "add":
        before = tl.atomic_add(x + i, 1.0, mask=i < n)
    elif KIND == "max":
        before = tl.atomic_max(x + i, 1.0, mask=i < n)
    else:
        before = tl.atomic_xchg(x + i, 1.0, mask=i < n)
    tl.store(y + i, before)


WIDE = [torch.float32, torch.float64, torch.int32, torch.int64]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(("add", dtype) for dtype in (torch.float16, torch.bfloat16, *WIDE)),
        *((kind, dtype) for kind in ("max", "exchange") for dtype in WIDE),
    ],
)
def test_the_result_of_an_atomic_is_undefined_in_masked_lanes(kind: str, dtype: torch.dtype) -> None:
    """Without the repair, such lanes have the contents of uninitialized memory."""
    x, y = torch.arange(2, 10).to(dtype), torch.zeros(8, dtype=dtype)
    Launch.of(atomic_kernel, 1, x, y, 5, kind, 8, outputs=y).run()
    assert y[:5].tolist() == [2, 3, 4, 5, 6]
    if dtype.is_floating_point and kind != "max":
        assert y[5:].isnan().all()
    elif not dtype.is_floating_point:
        assert (y[5:].abs() > 2**30).all()
    changed = {"add": range(3, 8), "max": range(2, 7), "exchange": [1] * 5}[kind]
    assert x.tolist() == [*changed, 7, 8, 9]


@triton.jit
def gathering_kernel(x, indices, y, n, AXIS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    places = tl.load(indices + at, mask=at < n)
    tl.store(y + at, tl.gather(tl.load(x + at), places, AXIS), mask=at < n)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("places", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_gathers_outside_the_source_are_undefined(dtype: torch.dtype, places: torch.dtype, axis: int) -> None:
    """Such an index is not an error if the value is not used, and a negative one does not count back."""
    x = torch.arange(16.0).reshape(4, 4).to(dtype)
    indices = torch.randint(0, 4, (4, 4), generator=torch.Generator().manual_seed(3)).to(places)
    y = torch.zeros(4, 4, dtype=dtype)
    launch = Launch.of(gathering_kernel, 1, x, indices, y, 13, axis, 4, outputs=y)
    launch.run()
    right = x.gather(axis, indices.long())
    assert torch.equal(y.reshape(-1)[:13], right.reshape(-1)[:13])
    assert y.reshape(-1)[13:].eq(0).all()
    assert compile_for(launch, "sm_90")
    indices[0, 1], indices[2, 2] = -1, 4
    launch.run()
    wrong = torch.zeros(4, 4, dtype=torch.bool)
    wrong[0, 1] = wrong[2, 2] = True
    found = y.isnan() if dtype.is_floating_point else y.double().abs() > 1000
    assert torch.equal(found, wrong)
    assert torch.equal(y.where(~wrong, 0).reshape(-1)[:13], right.where(~wrong, 0).reshape(-1)[:13])


@triton.jit
def integer_kernel(x, y, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i, mask=i < n)
    tl.store(y, tl.min(tile, 0).to(tl.int64))
    tl.store(y + 1, tl.max(tile, 0).to(tl.int64))
    tl.store(y + 2, tl.sum(tile, 0).to(tl.int64))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_undefined_integers_show_in_extremes_and_sums(dtype: torch.dtype) -> None:
    x, y = torch.ones(6, dtype=dtype), torch.zeros(3, dtype=torch.int64)
    Launch.of(integer_kernel, 1, x, y, 6, 8, outputs=y).run()
    large, small = ends(np.dtype(str(dtype).removeprefix("torch.")))
    assert y.tolist() == [small, large, 6 + (large + small)]
    assert small < -80 < 80 < large
    assert abs(large + small) > 20


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_undefined_unsigned_integers_show_in_extremes_and_sums(dtype: torch.dtype) -> None:
    x, y = torch.full((6,), 9).to(dtype), torch.zeros(3, dtype=torch.int64)
    Launch.of(integer_kernel, 1, x, y, 6, 8, outputs=y).run()
    large = ends(np.dtype(str(dtype).removeprefix("torch.")))[0]
    total = (6 * 9 + large + 1) % 2 ** max(torch.iinfo(dtype).bits, 32)
    wrapped = [value - 2**64 if value >= 2**63 else value for value in (large, total)]
    assert y.tolist() == [1, *wrapped]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_undefined_memory_of_integers_has_large_and_small_numbers(dtype: torch.dtype) -> None:
    """Large and small numbers alternate, and elements beside the view are not touched."""
    memory = torch.zeros(4, 4, dtype=dtype)
    fill_undefined(memory[:, ::2])
    assert memory[:, 1::2].eq(0).all()
    assert memory[:, ::2].tolist() == [[*ends(np.dtype(str(dtype).removeprefix("torch.")))]] * 4


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_undefined_bits_survive_arithmetic_and_conversions(dtype: type) -> None:
    """The bits survive negation, sums, products, quotients, absolute values and conversions."""
    values = undefined((16,), dtype)
    ones: Any = np.ones(16, dtype)
    with np.errstate(all="ignore"):
        for changed in (-values, values + ones, ones - values, values * ones, ones / values, np.abs(values)):
            assert is_undefined(changed).all()
        for other in (np.float16, np.float32, np.float64):
            assert is_undefined(values.astype(other)).all()
    assert not is_undefined(np.array([np.nan, -np.nan, np.inf, 1], dtype)).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_undefined_memory_of_floats_has_the_undefined_bits(dtype: torch.dtype) -> None:
    """A strided view is filled, and elements between its own are not touched."""
    memory = torch.zeros(4, 4, dtype=dtype)
    fill_undefined(memory[:, ::2])
    assert memory[:, 1::2].eq(0).all()
    assert is_undefined(memory[:, ::2].double().numpy()).all()


# Scratch memory


@triton.jit
def smallest_of_parts_kernel(parts, y, PARTS: tl.constexpr):
    tl.store(y, tl.min(tl.load(parts + tl.arange(0, PARTS)), 0))


@triton.jit
def part_kernel(x, parts, n):
    part = tl.program_id(0)
    if part < n:
        tl.store(parts + part, tl.load(x + part))


def two_steps(n: int, parts: torch.Tensor, workspaces: tuple[torch.Tensor, ...] = ()) -> Launch:
    """Return a launch of the smallest of four parts, of which the first step writes n."""
    x, y = torch.arange(1.0, 5.0), torch.zeros(1)
    first = Step(part_kernel, (4,), (x, parts, n))
    second = Step(smallest_of_parts_kernel, (1,), (parts, y, 4))
    return Launch((first, second), (y,), workspaces=workspaces)


def test_declared_workspaces_are_filled_with_poison() -> None:
    """The memory holds a large number, so only poison shows that no step wrote an element."""
    parts = torch.full((4,), 9.0)
    for n, smallest in ((4, 1.0), (3, None)):
        undeclared = interpret(two_steps(n, parts), poison=True)
        assert undeclared.outputs[0].item() == 1.0
        assert [id(tensor) for tensor in undeclared.changed] == [id(parts)]
        declared = interpret(two_steps(n, parts, workspaces=(parts,)), poison=True)
        assert declared.outputs[0].item() == smallest or (smallest is None and declared.outputs[0].isnan())
        assert declared.changed == ()
        assert interpret(two_steps(n, parts, workspaces=(parts,))).outputs[0].item() == 1.0
    assert parts.tolist() == [9.0] * 4


@triton.jit
def through_scratch_kernel(x, scratch, y, shift, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(scratch + i, tl.load(x + i))
    tl.store(y + i, tl.load(scratch + i + shift))


def test_workspaces_of_a_launch_of_one_kernel_are_filled_with_poison() -> None:
    x, scratch, y = torch.arange(8.0), torch.zeros(16), torch.zeros(8)
    for shift in (0, 2):
        launch = Launch.of(
            through_scratch_kernel, 1, x, scratch, y, shift, 8, outputs=y, workspaces=(scratch,)
        )
        assert launch.workspaces == (scratch,)
        (result,) = interpret(launch, poison=True).outputs
        assert result.isnan().tolist() == [False] * (8 - shift) + [True] * shift


def test_an_accumulator_that_is_a_workspace_starts_at_zero() -> None:
    x, total, y = torch.ones(4), torch.full((1,), 5.0), torch.zeros(1)
    launch = Launch.of(
        summing_kernel, 1, x, total, y, 4, outputs=y, accumulators=(total,), workspaces=(total,)
    )
    assert interpret(launch, poison=True).outputs[0].item() == 4.0


@triton.jit
def summing_kernel(x, total, y, N: tl.constexpr):
    tl.atomic_add(total, tl.sum(tl.load(x + tl.arange(0, N)), 0))
    tl.store(y, tl.load(total))


# In an exercise's check


def specification(x: torch.Tensor) -> torch.Tensor:
    return x.min().reshape(1)


def exercise() -> teach.Exercise:
    return teach.Exercise(
        id="99-1",
        title="smallest",
        function="answer",
        specification=specification,
        cases=(Case(lambda _: (torch.arange(1.0, 6.0),)), Case(lambda _: (torch.arange(3.0, 11.0),))),
        hints=(),
        mutants=(),
        unproven="anything.",
        returns_launch=True,
    )


@triton.jit
def smallest_kernel(x, y, n, OTHER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y, tl.min(tl.load(x + i, mask=i < n, other=OTHER), 0))


def answer_with(other: float | None) -> Callable[[torch.Tensor], Launch]:
    def answer(x: torch.Tensor) -> Launch:
        y = torch.empty(1)
        return Launch.of(smallest_kernel, 1, x, y, len(x), other, 8, outputs=y)

    return answer


def test_a_check_finds_an_extreme_over_undefined_lanes() -> None:
    """The answer would be right if extremes skipped the NaN of masked lanes."""
    assert exercise().evaluate(answer_with(float("inf"))).solved
    verdict = exercise().evaluate(answer_with(None))
    assert not verdict.solved
    assert "nan" in verdict.text.lower()
