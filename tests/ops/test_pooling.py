"""Pools against torch: its own samples, and random arguments."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import examples
from tests.ops.refused import assert_refused_as_in_torch
from tests.ops.test_opinfo_rows import outcome
from workbench import lens, ops
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
    UnsupportedDtypeError,
    WorkbenchError,
)
from workbench.kernels.convolution import pooling
from workbench.kernels.convolution.pooling import Pool

NAMES = ["avg_pool2d", "max_pool2d"]
OPERATORS = [op for op in op_db if op.name in [f"nn.functional.{name}" for name in NAMES]]
DTYPES = [torch.float64, torch.float16, torch.int64, torch.int8]


def samples_of(op: Any, device: str, dtype: torch.dtype) -> list[Any]:
    """Return torch's samples; of the 1440 of max_pool2d, some in which each option changes."""
    every = list(op.sample_inputs(device, dtype, requires_grad=dtype.is_floating_point))
    return every[:: 113 if len(every) > 100 else 1]


def in_double(sample: Any) -> Any:
    """Return the same sample in float64, of which torch's sums are nearly exact."""
    exact = sample.transform(lambda t: t.double() if isinstance(t, torch.Tensor) else t)
    exact.input.requires_grad_()
    return exact


@pytest.mark.daily(cases=1)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [pytest.param(op, d, id=f"{op.name}-{d}") for op in OPERATORS for d in DTYPES if d in op.dtypes],
)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    assert len(OPERATORS) == 2
    torch.manual_seed(0)
    mine = getattr(ops, op.name.split(".")[-1])
    samples = samples_of(op, "cpu", dtype)
    assert samples
    for sample in samples:
        got, got_gradients = outcome(mine, sample)
        want, want_gradients = outcome(op.op, in_double(sample) if dtype == torch.float16 else sample)
        for ours, torchs in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            assert ours.stride() == torchs.stride()
            rounding = 2 * torch.finfo(dtype).eps if dtype.is_floating_point else 0
            torch.testing.assert_close(ours.to(torchs.dtype), torchs, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_opinfo_error_inputs_are_refused_as_in_torch(op: Any) -> None:
    mine = getattr(ops, op.name.split(".")[-1])
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type) as refused:
            mine(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(refused.value, WorkbenchError)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Draw windows no larger than the padded image, and padding of at most half a window."""
    each = []
    for _ in range(2):
        taps, dilation = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3]))
        reach = dilation * (taps - 1) + 1
        padding = draw(st.integers(0, taps // 2))
        least = max(reach - 2 * padding, 1)
        each.append((taps, dilation, draw(st.integers(1, 4)), padding, draw(st.integers(least, least + 7))))
    windows, dilations, strides, paddings, sizes = zip(*each, strict=True)
    return {
        "shape": (draw(st.integers(0, 3)), draw(st.sampled_from([1, 3, 8])), *sizes),
        "kernel_size": windows,
        "stride": strides,
        "padding": paddings,
        "dilation": dilations,
        "ceil_mode": draw(st.booleans()),
        "layout": draw(st.sampled_from(["contiguous", "channels_last", "sliced", "transposed", "expanded"])),
        "is_single": draw(st.booleans()),
        "count_include_pad": draw(st.booleans()),
        "divisor_override": draw(st.sampled_from([None, None, 3, -7])),
    }


def image_of(problem: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return whole numbers, often equal, in the problem's layout."""
    n, c, high, wide = problem["shape"]
    shape = {
        "sliced": (n, c, 2 * high, wide + 1),
        "transposed": (n, c, wide, high),
        "expanded": (n, 1, 1, wide),
    }.get(problem["layout"], (n, c, high, wide))
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if problem["layout"] == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif problem["layout"] == "sliced":
        x = x[:, :, ::2, 1:]
    elif problem["layout"] == "transposed":
        x = x.mT
    elif problem["layout"] == "expanded":
        x = x.expand(n, c, high, wide)
    return x[0] if problem["is_single"] and n else x


@settings(max_examples=examples(24))
@given(problems())
def test_averages_and_their_gradients_agree_with_torch(problem: dict[str, Any]) -> None:
    """Results have torch's strides; averages of int64 are exact."""
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    options = {name: problem[name] for name in names}
    x = image_of(problem, torch.float64).requires_grad_()
    window = problem["kernel_size"]
    if any(size + 2 * p < k for size, p, k in zip(x.shape[-2:], options["padding"], window, strict=True)):
        return
    got, want = ops.avg_pool2d(x, **options), F.avg_pool2d(x, **options)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    grad = torch.randint_like(want, -3, 4)
    ours, torchs = (torch.autograd.grad(result, x, grad) for result in (got, want))
    torch.testing.assert_close(ours, torchs)
    whole = x.detach().long()
    assert torch.equal(ops.avg_pool2d(whole, **options), F.avg_pool2d(whole, **options))


@settings(max_examples=examples(24))
@given(problems(), st.booleans())
def test_maxima_and_their_indices_agree_with_torch(problem: dict[str, Any], has_nan: bool) -> None:
    """Elements are often equal, sometimes NaN; some planes have nothing but -inf."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    options = {name: problem[name] for name in names}
    x = image_of(problem, torch.float32).clone()
    if has_nan and x.numel():
        x = torch.where(x == 2, float("nan"), x)
    if x.numel():
        x[..., 0, :, :] = float("-inf")
    x.requires_grad_()
    want, places = F.max_pool2d(x, **options, return_indices=True)
    got, ours = ops.max_pool2d(x, **options, return_indices=True)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours, places)
    with torch.no_grad():
        torch.testing.assert_close(ops.max_pool2d(x, **options), want, rtol=0, atol=0, equal_nan=True)
    grad = torch.randint_like(want, -3, 4)
    (of_ours,) = torch.autograd.grad(got, x, grad)
    if bool((places < x.shape[-2:].numel()).all()):  # otherwise torch writes out of bounds
        assert torch.equal(of_ours, torch.autograd.grad(want, x, grad)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_maxima_of_integers_agree_with_torch(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, 1, 0], dtype=dtype)[torch.randint(0, 4, (2, 3, 7, 5))]
    x[0, 0] = limits.min
    for stride, padding in ((None, 0), (2, 1)):
        got = ops.max_pool2d(x, 3, stride, padding, return_indices=True)
        for ours, torchs in zip(got, F.max_pool2d(x, 3, stride, padding, return_indices=True), strict=True):
            assert torch.equal(ours, torchs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_windows_of_a_whole_image_agree_with_torch(dtype: torch.dtype, last: bool) -> None:
    """Tiles of a long window have rows and columns, and few windows are split; halves are summed in fp32."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 33, 21).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    exact = x.double().mean((2, 3), keepdim=True)
    assert (ops.avg_pool2d(x, (33, 21)) - exact).abs().max() <= torch.finfo(dtype).eps
    x[0, 0, 30, 3] = x[0, 0, 2, 20] = float("nan")
    for ours, torchs in zip(
        ops.max_pool2d(x, (33, 21), return_indices=True),
        F.max_pool2d(x, (33, 21), return_indices=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, torchs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["average", "max", "max_with_indices"])
@pytest.mark.parametrize(
    "how",
    [{"tile": (8, 16)}, {"tile": (64, 1)}, {"tile": (4, 4), "splits": 3}, {"tile": (2, 4), "programs": 3}],
)
def test_every_division_of_the_work_agrees_with_torch(kind: str, how: dict[str, Any]) -> None:
    x = torch.randint(-3, 4, (1, 2, 9, 4)).float()
    x[0, 0, 4, 2] = x[0, 0, 3, 3] = float("nan")
    pool = Pool((9, 4), (5, 2), (4, 3), (2, 2), (2, 1))
    shape = (1, 2, 5, 2)
    outputs = [torch.full(shape, 77.0), torch.full(shape, 77)][: 2 if kind == "max_with_indices" else 1]
    pooling.launch(kind, x, outputs, pool=pool, with_padding=False, **how).run()
    if kind == "average":
        want: Any = (F.avg_pool2d(x, (4, 3), 2, (2, 1), count_include_pad=False),)
    else:
        want = F.max_pool2d(x, (4, 3), 2, (2, 1), return_indices=True)
    for ours, torchs in zip(outputs, want, strict=False):
        torch.testing.assert_close(ours, torchs, equal_nan=True)


def test_an_empty_batch_gives_empty_results_and_gradients_and_meta_tensors_shapes() -> None:
    x = torch.zeros(0, 3, 8, 8, requires_grad=True)
    for result in (ops.avg_pool2d(x, 2), ops.max_pool2d(x, 2)):
        assert isinstance(result, torch.Tensor)
        assert result.shape == (0, 3, 4, 4)
        (grad,) = torch.autograd.grad(result.sum(), x)
        assert grad.shape == x.shape
    on_meta = ops.max_pool2d(torch.empty(2, 3, 8, 8, device="meta"), 3)
    assert isinstance(on_meta, torch.Tensor)
    assert on_meta.shape == (2, 3, 2, 2)


def test_meta_parameters_do_not_depend_on_the_number_of_images() -> None:
    """A kernel is compiled once for its meta-parameters, so another number of images compiles nothing."""
    pool = Pool((8, 8), (4, 4), (3, 3), (2, 2), (1, 1))
    metas = []
    for images in (64, 65):
        x, y = torch.zeros(images, 16, 8, 8), torch.zeros(images, 16, 4, 4)
        (step,) = pooling.launch("average", x, (y,), pool=pool, with_padding=False, compute_units=2).steps
        metas.append(step.meta)
    assert metas[0] == metas[1]


@pytest.mark.parametrize("kind", ["average", "max", "max_with_indices", "average_backward"])
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
def test_pools_compile_to_wide_accesses_without_spills(kind: str, last: bool) -> None:
    """The sizes are those of ResNet-50's pool. Loads have 128 bits with channels_last, 16 otherwise."""
    pool = Pool((112, 112), (56, 56), (3, 3), (2, 2), (1, 1))
    format = torch.channels_last if last else torch.contiguous_format
    big, small = (
        torch.zeros(32, 64, size, size, dtype=torch.float16).contiguous(memory_format=format)
        for size in (112, 56)
    )
    x, output = (small, big) if kind == "average_backward" else (big, small)
    outputs = (output, torch.empty_like(output, dtype=torch.int64))[: 2 if kind == "max_with_indices" else 1]
    launch = pooling.launch(kind, x, outputs, pool=pool, compute_units=132)
    (step,) = lens.compile(launch, "sm_90")
    assert step.spills == 0
    assert step.registers is not None
    assert step.registers <= 64
    assert step.widest("global load") == (128 if last else 16)
    assert (step.widest("global store") or 0) >= 64


IMAGE = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((IMAGE, 9), {}),
        ((IMAGE, 0), {}),
        ((IMAGE, 3), {"stride": 0}),
        ((IMAGE, 3), {"padding": 2}),
        ((IMAGE, 3), {"padding": -1}),
        ((IMAGE, (3, 3, 3)), {}),
        ((IMAGE, 2.5), {}),
        ((IMAGE, "3"), {}),
        ((IMAGE, {3}), {}),
        ((IMAGE, 3), {"ceil_mode": "yes"}),
        ((IMAGE, 2), {"stride": 2**31}),
        ((IMAGE, 2), {"stride": (1, 2**40)}),
        ((IMAGE, 2), {"stride": 2**63}),
        ((IMAGE, 2**40), {"stride": 1}),
        ((IMAGE[0, 0], 3), {}),
        ((IMAGE[:, :, :0], 3), {}),
        ((None, 3), {}),
    ],
)
def test_wrong_arguments_are_refused_as_in_torch(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert_refused_as_in_torch(getattr(ops, name), getattr(F, name), *arguments, **options)


def test_wrong_arguments_of_each_pool_are_refused_by_name() -> None:
    with pytest.raises(
        TensorMismatchError, match=r"divisor_override=0.*torch\.avg_pool2d says: divisor must"
    ):
        ops.avg_pool2d(IMAGE, 3, divisor_override=0)
    with pytest.raises(InvalidArgumentError, match=f"divisor_override: got {2**63}"):
        ops.avg_pool2d(IMAGE, 3, divisor_override=2**63)
    for pool in (ops.avg_pool2d, ops.max_pool2d):
        with pytest.raises(TensorMismatchError, match=rf"^stride: got {2**40}\."):
            pool(IMAGE, 2, stride=2**40)
    with pytest.raises(TensorMismatchError, match=rf"^dilation: got \(1, {2**31}\)"):
        ops.max_pool2d(IMAGE, 1, dilation=(1, 2**31))
    with pytest.raises(TensorMismatchError, match="dilation"):
        ops.max_pool2d(IMAGE, 3, dilation=0)
    with pytest.raises(InvalidArgumentError, match="return_indices"):
        ops.max_pool2d(IMAGE, 3, return_indices=torch.ones(2))  # type: ignore[call-overload]
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises(UnsupportedDtypeError, match="avg_pool2d takes"):
            ops.avg_pool2d(IMAGE.to(dtype), 3)
    with pytest.raises(UnsupportedDtypeError, match="max_pool2d takes"):
        ops.max_pool2d(IMAGE.bool(), 3)
    with pytest.raises(TensorMismatchError, match="sparse"):
        ops.max_pool2d(IMAGE.to_sparse(), 3)


@pytest.mark.parametrize("divisor", [2**31 - 1, 2**31, -(2**31) - 1, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int64], ids=str)
def test_divisors_of_64_bits_give_torchs_averages(dtype: torch.dtype, divisor: int) -> None:
    torch.manual_seed(0)
    size = 6e4 if dtype == torch.float16 else 1e17
    x = torch.empty(1, 2, 5, 6, dtype=torch.float64).uniform_(-size, size).to(dtype)
    x.requires_grad_(dtype != torch.int64)
    got = ops.avg_pool2d(x, 3, 2, 1, divisor_override=divisor)
    want = F.avg_pool2d(x, 3, 2, 1, divisor_override=divisor)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want, rtol=0 if dtype == torch.int64 else 1e-3, atol=1e-7)
    if dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(got, want)
        pairs = zip(*(torch.autograd.grad(each.sum(), x) for each in (got, want)), strict=True)
        for ours, torchs in pairs:
            torch.testing.assert_close(ours * divisor, torchs * divisor)


@pytest.mark.parametrize("far", [2**31 - 1, (1, 2**31 - 1)])
def test_a_single_window_may_have_a_huge_stride_or_dilation(far: Any) -> None:
    x = torch.randn(1, 1, 4, 5, requires_grad=True)
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("avg_pool2d", (2, far)),
        ("max_pool2d", (2, far)),
        ("max_pool2d", (1, 1, 0, far)),
    ]
    for name, arguments in asked:
        got, want = (getattr(on, name)(x, *arguments) for on in (ops, F))
        torch.testing.assert_close(got, want)
        (ours,), (torchs,) = (torch.autograd.grad(each.sum(), x) for each in (got, want))
        torch.testing.assert_close(ours, torchs)
    got, want = (on.max_pool2d(x, 1, dilation=far, return_indices=True)[1] for on in (ops, F))
    assert torch.equal(got, want)


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(1, 1, 6, 6, requires_grad=True)
    for name, result in itertools.product(("create_graph",), (ops.avg_pool2d(x, 3), ops.max_pool2d(x, 3))):
        assert isinstance(result, torch.Tensor)
        (grad,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        with pytest.raises(TensorMismatchError, match=name):
            torch.autograd.grad(grad.sum(), x)


def test_launches_of_arguments_that_do_not_fit_are_refused() -> None:
    pool = Pool((8, 8), (4, 4), (2, 2), (2, 2), (0, 0))
    with pytest.raises(UnknownNameError, match="kind"):
        pooling.launch("mean", IMAGE, (torch.zeros(2, 3, 4, 4),), pool=pool)
    with pytest.raises(TensorMismatchError, match="x, outputs: shapes"):
        pooling.launch("max", IMAGE, (torch.zeros(2, 3, 5, 4),), pool=pool)
    with pytest.raises(TensorMismatchError, match="contiguous or channels_last"):
        pooling.launch("max", IMAGE, (torch.zeros(2, 3, 4, 5)[..., 1:],), pool=pool)


def test_instances_of_pools_have_no_splits() -> None:
    """Windows are too short to be split among programs."""
    found = [instance.keywords for instance in ops.avg_pool2d.instances(torch.zeros(1, 4, 6, 6), 2)]
    assert len(found) > 1
    assert {one["splits"] for one in found[1:]} == {1}


def test_a_change_of_the_indices_before_the_gradient_raises() -> None:
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    for module in (ops, F):
        result, indices = module.max_pool2d(x, 2, return_indices=True)
        indices.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), x)
