"""Elementwise operators of two tensors of any layout and dtype, and the merging of their dimensions."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from triton.runtime.jit import JITFunction

from tests.everything import examples
from tests.kernels.inputs import strides_of
from tests.kernels.results import assert_as_accurate_as_torch
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.kernels import reference
from workbench.kernels.layout import collapse
from workbench.kernels.pointwise import elementwise
from workbench.kernels.pointwise.elementwise import is_supported, launch
from workbench.launch import Work
from workbench.runtime import interpret

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    bits = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
    return bits.to(dtype) if dtype != torch.bool else bits % 2 == 0


def addresses(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the offsets of every element in each tensor, by brute force."""
    return sorted(
        tuple(sum(i * step for i, step in zip(index, steps, strict=True)) for steps in strides)
        for index in itertools.product(*map(range, shape))
    )


@st.composite
def layouts(draw: st.DrawFn, smallest: int = 1) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Draw a shape, and strides of three tensors: dense, permuted, with gaps, or (not the last) expanded."""
    shape = tuple(draw(st.lists(st.integers(smallest, 4), max_size=4)))
    return shape, [draw(strides_of(shape, expandable)) for expandable in (True, True, False)]


@given(layouts())
def test_merged_dimensions_reach_the_same_elements(layout: tuple[Any, Any]) -> None:
    shape, strides = layout
    sizes, merged = collapse(shape, strides)
    assert len(sizes) >= 1
    assert all(len(steps) == len(sizes) for steps in merged)
    assert addresses(sizes, merged) == addresses(shape, strides)


@given(layouts())
def test_collapse_leaves_no_dimensions_that_could_be_merged(layout: tuple[Any, Any]) -> None:
    """Mergeable neighbors and dimensions of length 1 would cost work for each element."""
    shape, strides = layout
    sizes, merged = collapse(shape, strides)
    assert sizes == (1,) or all(n > 1 for n in sizes)
    for d in range(len(sizes) - 1):
        assert any(steps[d] != sizes[d + 1] * steps[d + 1] for steps in merged)
    assert list(merged[-1]) == sorted(merged[-1], reverse=True)  # the output is written in memory's order


@pytest.mark.parametrize(
    ("shape", "strides", "sizes", "merged"),
    [
        ((2, 3, 4), [(12, 4, 1)] * 3, (24,), [(1,)] * 3),  # contiguous: one run
        ((2, 3, 4), [(1, 2, 6)] * 3, (24,), [(1,)] * 3),  # all reversed alike: also one run
        ((2, 3, 4), [(12, 4, 1), (0, 0, 0), (12, 4, 1)], (24,), [(1,), (0,), (1,)]),  # an expanded number
        ((2, 3), [(3, 1), (0, 1), (3, 1)], (2, 3), [(3, 1), (0, 1), (3, 1)]),  # an expanded row
        ((2, 3), [(1, 2), (3, 1), (3, 1)], (2, 3), [(1, 2), (3, 1), (3, 1)]),  # transposed
        ((5, 1, 4), [(4, 9, 1)] * 3, (20,), [(1,)] * 3),  # a dimension of length 1 may have any stride
        ((), [()] * 3, (1,), [(1,)] * 3),  # no dimensions
        ((1, 1), [(7, 3)] * 3, (1,), [(1,)] * 3),
        ((3, 4), [(8, 2)] * 3, (12,), [(2,)] * 3),  # every other element
    ],
)
def test_dimensions_of_common_layouts_are_merged(shape: Any, strides: Any, sizes: Any, merged: Any) -> None:
    assert collapse(shape, strides) == (sizes, merged)


def tensor_of(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, seed: int
) -> torch.Tensor:
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if 0 not in shape else -1
    return numbers((reach + 3,), dtype, seed).as_strided(shape, strides, 1)


@settings(max_examples=examples(60))
@given(
    layout=layouts(smallest=0),
    dtypes=st.tuples(*[st.sampled_from(FLOATS + INTEGERS)] * 2),
    tile=st.sampled_from([1, 4, 32]),
)
def test_sums_of_any_layout_and_dtypes_agree_with_torch(
    layout: tuple[Any, Any], dtypes: Any, tile: int
) -> None:
    """Memory between and around the output's elements is not written."""
    shape, strides = layout
    assume(torch.Size(shape).numel() <= 64 * tile)
    x, y = (
        tensor_of(shape, steps, dtype, i)
        for i, (steps, dtype) in enumerate(zip(strides[:2], dtypes, strict=False))
    )
    dtype = torch.promote_types(*dtypes)
    output = tensor_of(shape, strides[2], dtype, 2)
    whole = output.as_strided((output.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    before = whole.clone()
    (result,) = launch(x, y, output, tile=tile).run()
    assert result is output
    torch.testing.assert_close(output, reference.add(x, y), equal_nan=True, rtol=0, atol=0)
    before.as_strided(shape, strides[2], 1).copy_(output)
    torch.testing.assert_close(whole, before, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_axpy_wraps_integers_and_rounds_floats_once(dtype: torch.dtype) -> None:
    x, y = numbers((100,), dtype), numbers((100,), dtype, seed=1)
    alpha = 0.3 if dtype.is_floating_point else -3
    (result,) = launch(x, y, operation="axpy", alpha=alpha, tile=64).run()
    assert result.dtype == dtype
    if not dtype.is_floating_point:
        assert torch.equal(result, reference.add(y, x, alpha=alpha))
        return
    expected = reference.add(y.double(), x.double(), alpha=alpha)
    torch.testing.assert_close(
        result.double(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(torch.float32).eps
    )


def test_alpha_reaches_the_kernel_in_fp64() -> None:
    """Rounded to fp32 on the way, alpha would differ in the ninth digit."""
    x, y = numbers((16,), torch.float64), numbers((16,), torch.float64, seed=1)
    (result,) = launch(x, y, operation="axpy", alpha=0.1).run()
    torch.testing.assert_close(result, y + 0.1 * x, rtol=2e-16, atol=2e-16)


@pytest.mark.parametrize(
    ("dtype", "alpha", "same_as"),
    [
        (torch.uint8, -1, 255),
        (torch.uint8, -255, 1),
        (torch.int8, 127, 127),
        (torch.int8, -128, -128),
        (torch.int64, 2**53, 2**53),
        (torch.int64, -(2**53), -(2**53)),
        (torch.int32, 2**31 - 1, 2**31 - 1),
    ],
    ids=str,
)
def test_extreme_integer_alphas_wrap_as_in_torch(dtype: torch.dtype, alpha: int, same_as: int) -> None:
    x, y = numbers((16,), dtype), numbers((16,), dtype, seed=1)
    (result,) = launch(x, y, operation="axpy", alpha=alpha).run()
    assert torch.equal(result, y + x * torch.tensor(same_as).to(dtype))


def test_logical_or_is_true_where_either_boolean_is() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    (result,) = launch(x, y, operation="logical_or").run()
    assert result.tolist() == [True, True, True, False]
    assert result.dtype == torch.bool


def test_the_output_may_be_an_input() -> None:
    x, y = numbers((37,), torch.float32), numbers((37,), torch.float32, seed=1)
    expected = x + y
    (result,) = launch(x, y, x, tile=16).run()
    assert result is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1023, 1025])
def test_ragged_lengths_write_nothing_outside(length: int) -> None:
    memory = torch.full((length + 64,), float("nan"))
    x, y = numbers((length,), torch.float32), numbers((length,), torch.float32, seed=1)
    launch(x, y, memory[32 : 32 + length], tile=16 if length < 100 else 1024).run()
    assert torch.equal(memory[32 : 32 + length], x + y)
    assert memory[:32].isnan().all()
    assert memory[32 + length :].isnan().all()


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), columns=st.integers(1, 9))
@settings(max_examples=8)
def test_programs_write_all_elements_in_any_order(seed: int, rows: int, columns: int) -> None:
    x, y = numbers((rows, columns), torch.float32), numbers((columns, rows), torch.float32, seed=1).t()
    result = interpret(launch(x, y, tile=4), poison=True, seed=random.Random(seed).randrange(2**32))
    assert torch.equal(result.outputs[0], x + y)
    assert result.changed == ()


def test_work_counts_each_element_in_memory_once() -> None:
    """Inputs are read once, expanded elements count once, and outputs are written once."""
    x, row, column = torch.zeros(4, 6), torch.zeros(6), torch.zeros(4, 1, dtype=torch.float64)
    one_run = launch(x, x + 1)
    assert one_run.work is not None
    assert (one_run.work.flops, one_run.work.bytes) == (24, 3 * 24 * 4)
    axpy = launch(x, row.expand(4, 6), operation="axpy", alpha=2.0)
    assert axpy.work is not None
    assert (axpy.work.flops, axpy.work.bytes) == (48, 2 * 24 * 4 + 6 * 4)
    mixed = launch(x, column.expand(4, 6))
    assert mixed.work is not None
    assert mixed.outputs[0].dtype == torch.float64
    assert (mixed.work.flops, mixed.work.bytes) == (24, 24 * 4 + 4 * 8 + 24 * 8)
    empty = launch(torch.zeros(0, 6), row.expand(0, 6))
    assert (empty.steps, empty.work) == ((), Work(0, 0))
    assert empty.run()[0].shape == (0, 6)


def test_the_simplest_kernel_that_fits_is_started() -> None:
    x, y = torch.zeros(4, 6), torch.zeros(6, 4)
    assert launch(x, x).steps[0].name == "binary_kernel"
    assert launch(y.t(), y.t(), y.clone().t()).steps[0].name == "binary_kernel"
    assert launch(x, y.t()).steps[0].name == "binary_strided_kernel"
    assert launch(x[:, ::2], x[:, ::2]).steps[0].name == "binary_strided_kernel"


def test_default_tiles_give_each_lane_16_bytes() -> None:
    x = torch.zeros(1000)
    assert launch(x, x, tile=256).steps[0].grid == (4,)
    for dtype, tile in (
        (torch.float32, 1024),
        (torch.float64, 512),
        (torch.float16, 2048),
        (torch.int8, 4096),
    ):
        # 16 bytes per lane, 32 lanes, 8 warps
        step = launch(x.to(dtype), x.to(dtype)).steps[0]
        assert (step.meta["BLOCK_SIZE"], step.meta["num_warps"]) == (tile, 8)


@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((2**31 - 16,), (1,), False),
        ((2**31,), (1,), True),  # the kernel compares offsets with the length, which is 2^31
        ((2**31 + 5,), (1,), True),
        ((2**16, 2**16), (2**16, 1), True),
        ((2, 100), (2**31, 1), True),  # few elements, far apart
        ((2, 100), (2**30, 1), False),
        ((2**20, 2**12), (0, 0), True),  # one element, but many in the output
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["x", "y", "output"])
def test_offsets_have_64_bits_where_needed(
    which: str, shape: Any, strides: Any, wide: bool, wide_memory: torch.Tensor
) -> None:
    dense = wide_memory.as_strided(shape, torch.empty(shape, device="meta").stride())
    if 0 in strides and which == "output":
        return
    tensors = {"x": dense, "y": dense, "output": dense, which: wide_memory.as_strided(shape, strides)}
    (step,) = launch(tensors["x"], tensors["y"], tensors["output"], tile=8).steps
    assert step.meta["WIDE"] is wide


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(TensorMismatchError) as caught:
        launch(*args, **options)
    return str(caught.value)


def test_unsupported_tensors_are_refused() -> None:
    x = torch.zeros(4, 6)
    assert "x (4, 6), y (6, 4). Give x and y of one shape: broadcast" in refused(x, torch.zeros(6, 4))
    assert "shapes differ: x (4, 6), y (6,)" in refused(x, torch.zeros(6))  # the caller broadcasts
    assert "x (4, 6), output (4, 5). Give output of shape (4, 6)." in refused(x, x, x[:, 1:])
    assert "y is torch.complex64; supported: float32, float16" in refused(x, x.to(torch.complex64))
    assert "output is torch.float8_e5m2; supported" in refused(x, x, x.to(torch.float8_e5m2))
    assert "x is a int, not a tensor" in refused(3, x)
    assert "y is a float, not a tensor" in refused(x, 2.0)
    assert "output is a list, not a tensor" in refused(x, x, [])
    assert "tensors on cpu and meta" in refused(x, x.to("meta"), x)
    overlapping = refused(x, x, torch.zeros(6).expand(4, 6))
    assert "several elements of output may share one address: its strides are (0, 1)" in overlapping
    windows = torch.zeros(5).unfold(0, 2, 1)
    assert "of output may share one address: its strides are (1, 1)" in refused(
        windows + 1, windows + 1, windows
    )
    assert is_supported(windows, windows, torch.zeros(4, 2)) == ""  # inputs may share elements
    assert is_supported(x, x, torch.zeros(1, 6).expand(1, 6)) != ""
    assert is_supported(x[:1], x[:1], torch.zeros(6).expand(1, 6)) == ""  # length 1 shares no memory
    empty = torch.zeros(0).as_strided((0, 6), (0, 0))
    assert is_supported(empty, empty, empty) == ""  # nor do empty tensors
    assert is_supported(x, x.half()) == ""


@pytest.mark.parametrize(
    ("dtype", "alpha"),
    [
        (torch.int32, 0.5),
        (torch.int32, 2.0),
        (torch.int8, 128),
        (torch.uint8, 256),
        (torch.int32, 2**31),
        (torch.int64, 2**53 + 1),
        (torch.int64, float("nan")),
    ],
    ids=str,
)
def test_alphas_that_the_arithmetic_cannot_hold_are_refused(dtype: torch.dtype, alpha: float) -> None:
    x = torch.zeros(4, dtype=dtype)
    said = refused(x, x, operation="axpy", alpha=alpha)
    assert said.startswith(f"alpha: got {alpha!r} for {dtype}. Give a whole number from -")


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"operation": "ad"}, UnknownNameError, "operation: 'ad' is not known. Did you mean 'add'"),
        ({"operation": None}, UnknownNameError, "operation: None is not known"),
        ({"tile": 0}, InvalidArgumentError, "tile: got 0"),
        ({"tile": -1}, InvalidArgumentError, "tile: got -1"),
        ({"tile": 100}, InvalidArgumentError, "tile: got 100, not a power of two. .* try 64 or 128"),
        ({"tile": 64.0}, ArgumentTypeError, "tile: got 64.0, a float"),
        ({"tile": True}, ArgumentTypeError, "tile: got True"),
        ({"num_warps": 0}, InvalidArgumentError, "num_warps: got 0"),
        ({"num_warps": 3}, InvalidArgumentError, "num_warps: got 3, not a power of two"),
        ({"num_warps": "4"}, ArgumentTypeError, "num_warps: got '4', a str"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: Any, kind: type[Exception], message: str) -> None:
    x = torch.zeros(4)
    with pytest.raises(kind, match=message):
        launch(x, x, **options)


def test_a_tile_beyond_tritons_limit_is_refused() -> None:
    x = torch.zeros(4)
    with pytest.raises(KernelError, match="1048576"):
        launch(x, x, tile=2**21).run()


def test_the_reference_agrees_with_torch() -> None:
    x, y = numbers((4, 1), torch.float64), numbers((3,), torch.float64, seed=1)
    assert torch.equal(reference.add(x, y, alpha=2), torch.add(x, y, alpha=2))
    assert torch.equal(reference.add(x, 2.0), x + 2)


@pytest.mark.parametrize("kernel", [elementwise.binary_kernel, elementwise.binary_strided_kernel])
def test_alpha_is_compiled_as_a_double(kernel: Any) -> None:
    """Triton passes a Python float as fp32 unless the annotation of the parameter says otherwise."""
    compiled = JITFunction(kernel.fn)
    assert {p.name: p.annotation_type for p in compiled.params}["alpha"] == "fp64"


@pytest.mark.parametrize("around", [-80, -16, -3, 0, 20])
@pytest.mark.parametrize("name", ["sigmoid_gated", "silu_gated", "gelu_tanh_gated"])
def test_gated_activations_are_accurate_on_narrow_ranges(name: str, around: float) -> None:
    """An error of a rounded exponent shows where all numbers have a similar size."""
    x = numbers((2048,), torch.float32) / 4 + around
    (got,) = elementwise.launch(x, torch.ones(2048), operation=name).run()
    wide = x.double()
    u = 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    exact, theirs = {
        "sigmoid_gated": (torch.sigmoid(wide), torch.sigmoid(x)),
        "silu_gated": (functional.silu(wide), functional.silu(x)),
        "gelu_tanh_gated": (wide * torch.sigmoid(u), functional.gelu(x, approximate="tanh")),
    }[name]
    assert_as_accurate_as_torch(got, theirs, exact)
