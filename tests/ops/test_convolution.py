"""Convolutions and their gradients against torch: its own samples, and random arguments."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import examples, some_of
from tests.ops.refused import assert_refused_as_in_torch
from tests.ops.test_opinfo_rows import outcome
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
)

NAMES = ["conv1d", "conv2d", "conv3d", "conv_transpose2d"]
OPERATORS = [op for op in op_db if op.name in [f"nn.functional.{name}" for name in NAMES]]


@pytest.fixture(autouse=True, scope="module")
def torchs_plain_kernels() -> Iterator[None]:
    """Use torch's own kernels: oneDNN's, in torch 2.13, abort the process for some channels_last tensors.

    Seen on an AMD EPYC with AVX-512: an input of (2, 3, 2, 1), 7 features of (2, 1) taps, a stride of
    (3, 4), a padding of (2, 2) and a dilation of (2, 3), with input or weight in channels_last.
    """
    with warnings.catch_warnings(action="ignore"):  # warnings about Intel's GPUs
        before = torch.backends.mkldnn.set_flags(False)
    yield
    with warnings.catch_warnings(action="ignore"):
        torch.backends.mkldnn.set_flags(*before)


def rounding_of(want: torch.Tensor, terms: int) -> float:
    """Return the allowed error of a sum of `terms` terms of about 1, in the dtype of `want`."""
    eps = torch.finfo(want.dtype).eps
    scale = max(float(want.detach().abs().max()) if want.numel() else 0.0, 1.0)
    return 4 * eps * scale + math.sqrt(terms) * 4 * torch.finfo(torch.float32).eps * scale


def test_every_operator_has_samples() -> None:
    assert {op.name.split(".")[-1] for op in OPERATORS} == set(NAMES)


@pytest.mark.daily(cases=1)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    """At most eight samples of each operator run, to save time; the reference is torch in fp64."""
    torch.manual_seed(0)
    mine: Callable[..., Any] = getattr(ops, op.name.split(".")[-1])
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    for sample in samples[:8] if op.name.endswith("3d") else some_of(samples, 8):
        got, got_gradients = outcome(mine, sample)
        exact = sample.transform(lambda t: t.double() if isinstance(t, torch.Tensor) else t)
        for tensor in (exact.input, *exact.args):
            if isinstance(tensor, torch.Tensor):
                tensor.requires_grad_() if tensor.is_leaf else tensor.retain_grad()
        want, want_gradients = outcome(op.op, exact)
        for ours, torchs in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            assert ours.dtype == dtype
            tolerance = rounding_of(ours, 1000) + (0 if dtype == torch.float64 else 1e-5)
            torch.testing.assert_close(ours.double(), torchs.double(), rtol=0, atol=tolerance)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Draw stride, padding, dilation, groups, odd channels and image sizes; no kernel exceeds its image."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels = groups * draw(st.sampled_from([1, 3, 5]))
    features = groups * draw(st.sampled_from([1, 2, 7]))
    each = []
    for _ in range(2):
        taps = draw(st.integers(1, 3))
        dilation, stride = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        padding = draw(st.integers(0, 3))
        smallest = max(dilation * (taps - 1) + 1 - 2 * padding, 1)
        each.append((taps, dilation, stride, padding, draw(st.integers(smallest, smallest + 5))))
    windows, dilations, strides, paddings, sizes = zip(*each, strict=True)
    return {
        "input": (draw(st.integers(0, 3)), channels, *sizes),
        "weight": (features, channels // groups, *windows),
        "stride": strides,
        "padding": paddings,
        "dilation": dilations,
        "groups": groups,
        "has_bias": draw(st.booleans()),
        "is_last": draw(st.tuples(st.booleans(), st.booleans())),
    }


def tensors_of(problem: dict[str, Any], dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """Return tensors of whole numbers, whose sums are all exact, and the options."""
    formats = [torch.channels_last if last else torch.contiguous_format for last in problem["is_last"]]
    tensors = [
        torch.randint(-3, 4, problem[name]).to(dtype).contiguous(memory_format=one).requires_grad_()
        for name, one in zip(("input", "weight"), formats, strict=True)
    ]
    if problem["has_bias"]:
        tensors.append(torch.randint(-3, 4, problem["weight"][:1]).to(dtype).requires_grad_())
    return tensors, {name: problem[name] for name in ("stride", "padding", "dilation", "groups")}


@settings(max_examples=examples(40))
@given(problems())
def test_whole_numbers_are_convolved_exactly(problem: dict[str, Any]) -> None:
    """Results and gradients equal torch's."""
    tensors, options = tensors_of(problem, torch.float32)
    got, want = ops.conv2d(*tensors, **options), F.conv2d(*tensors, **options)
    assert torch.equal(got, want)
    grad = torch.randint_like(want, -3, 4)
    got_gradients = torch.autograd.grad(got, tensors, grad)
    for ours, torchs in zip(got_gradients, torch.autograd.grad(want, tensors, grad), strict=True):
        assert torch.equal(ours, torchs)


def whole_numbers(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return tensors of whole numbers so small that all their sums are exact."""
    return [torch.randint(-3, 4, shape).float().requires_grad_() for shape in shapes]


@st.composite
def transposed_problems(draw: st.DrawFn) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Draw arguments of conv_transpose2d: output_padding below the stride or dilation, and groups."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    group_features = draw(st.sampled_from([1, 3]))
    each = []
    for _ in range(2):
        taps, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
        more, size = draw(st.integers(0, max(stride, dilation) - 1)), draw(st.integers(1, 4))
        unpadded = (size - 1) * stride + dilation * (taps - 1) + 1 + more
        each.append((size, taps, draw(st.integers(0, min(3, (unpadded - 1) // 2))), more, stride, dilation))
    sizes, windows, paddings, mores, strides, dilations = zip(*each, strict=True)
    channels = groups * draw(st.sampled_from([1, 2]))
    shapes = [(draw(st.integers(0, 2)), channels, *sizes), (channels, group_features, *windows)]
    shapes += [(groups * group_features,)] if draw(st.booleans()) else []
    options = {"stride": strides, "padding": paddings, "output_padding": mores}
    return whole_numbers(*shapes), options | {"dilation": dilations, "groups": groups}


@settings(max_examples=examples(60))
@given(transposed_problems())
def test_transposed_convolutions_of_whole_numbers_are_exact(
    problem: tuple[list[torch.Tensor], dict[str, Any]],
) -> None:
    tensors, options = problem
    assert_transposed_exact(tensors, options)


def assert_transposed_exact(tensors: list[Any], options: dict[str, Any]) -> None:
    """Check that results and gradients of a transposed convolution are exactly torch's."""
    got: torch.Tensor = ops.conv_transpose2d(*tensors, **options)
    want: torch.Tensor = F.conv_transpose2d(*tensors, **options)
    assert torch.equal(got, want)
    grad = torch.randint_like(want, -3, 4)
    got_gradients = torch.autograd.grad(got, tensors, grad)
    for ours, torchs in zip(got_gradients, torch.autograd.grad(want, tensors, grad), strict=True):
        assert torch.equal(ours, torchs)


@pytest.mark.parametrize(
    "options",
    [
        {"output_padding": 1, "stride": 2},
        {"output_padding": (1, 0), "stride": 2, "padding": 1},  # the usual upsampling by two
        {"output_padding": 2, "stride": 3, "groups": 2},
        {"output_padding": (2, 1), "stride": (3, 2), "padding": (1, 2), "groups": 4},
        {"output_padding": 1, "dilation": 2},  # less than the dilation, but not than the stride
        {"output_padding": 2, "stride": 2, "dilation": 3, "groups": 2},  # no tap reaches the last pixels
    ],
    ids=str,
)
def test_transposed_convolutions_with_output_padding_are_exact(options: dict[str, Any]) -> None:
    groups = options.get("groups", 1)
    assert_transposed_exact(whole_numbers((2, 4, 4, 3), (4, 3, 3, 2), (3 * groups,)), options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [1, 3])
def test_the_error_of_half_precision_is_at_most_twice_that_of_torch_and_a_step(
    dtype: torch.dtype, window: int
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 40, 6, 6).to(dtype), torch.randn(24, 40, window, window).to(dtype)
    exact = F.conv2d(x.double(), w.double(), padding=window // 2)
    got = ops.conv2d(x, w, padding=window // 2)
    torchs = F.conv2d(x, w, padding=window // 2)
    rounding = torch.finfo(dtype).eps * exact.abs().max()
    assert (got - exact).abs().max() <= 2 * (torchs - exact).abs().max() + rounding


def test_any_layout_is_convolved_as_in_torch() -> None:
    torch.manual_seed(0)
    base, weight = torch.randn(3, 8, 12, 10), torch.randn(6, 4, 3, 3)
    views = [
        base[1:, 2:6, ::2, 1:9],
        base.transpose(2, 3)[:, 4:],
        base[:, :1].expand(3, 4, 12, 10),
        base.permute(0, 2, 3, 1)[:, :4],
        torch._neg_view(base[:, :4]),
    ]
    for x in views:
        for w in (
            weight,
            weight.flip(2),
            weight.transpose(2, 3),
            weight.to(memory_format=torch.channels_last),
        ):
            torch.testing.assert_close(ops.conv2d(x, w, padding=1), F.conv2d(x, w, padding=1))


@pytest.mark.parametrize(
    ("of_input", "of_weight"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_result_is_channels_last_where_an_operand_is(of_input: bool, of_weight: bool) -> None:
    x, w = torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3)
    x = x.to(memory_format=torch.channels_last) if of_input else x
    w = w.to(memory_format=torch.channels_last) if of_weight else w
    result = ops.conv2d(x, w)
    assert result.is_contiguous(memory_format=torch.channels_last) == (of_input or of_weight)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, on its first dual tensor
def test_second_derivatives_and_forward_mode_pass_gradcheck() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 5, dtype=torch.double, requires_grad=True)
    w = torch.randn(4, 1, 3, 2, dtype=torch.double, requires_grad=True)
    b = torch.randn(4, dtype=torch.double, requires_grad=True)

    def convolution(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, w, b, stride=(2, 1), padding=1, groups=2)

    assert torch.autograd.gradcheck(convolution, (x, w, b), fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(convolution, (x, w, b), fast_mode=True)


@pytest.mark.parametrize("changed", ["weight", "gradient"])
def test_changing_a_tensor_that_second_derivatives_read_raises(changed: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, requires_grad=True), torch.randn(4, 2, 3, 3, requires_grad=True)
    y = ops.conv2d(x, w)
    grad = torch.randn_like(y).requires_grad_()
    (of_x,) = torch.autograd.grad(y, x, grad, create_graph=True)
    with torch.no_grad():
        (w if changed == "weight" else grad).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(of_x.sum(), grad if changed == "weight" else w)


def test_an_empty_batch_gives_a_gradient_of_zeros_and_one_pixel_torchs_result() -> None:
    w = torch.randn(5, 3, 3, 3, requires_grad=True)
    nothing = ops.conv2d(torch.randn(0, 3, 4, 4), w)
    assert nothing.shape == (0, 5, 2, 2)
    (grad,) = torch.autograd.grad(nothing.sum(), w)
    assert torch.equal(grad, torch.zeros_like(w))
    pixel = torch.randn(2, 3, 1, 1)
    torch.testing.assert_close(ops.conv2d(pixel, w, padding=1), F.conv2d(pixel, w, padding=1))


def test_padding_by_name_agrees_with_torch() -> None:
    x, w = torch.randn(1, 2, 7, 6), torch.randn(3, 2, 4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it copies
        for padding in ("same", "valid"):
            torch.testing.assert_close(ops.conv2d(x, w, padding=padding), F.conv2d(x, w, padding=padding))


def test_autocast_gives_results_in_the_lower_precision() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.conv2d(x, w).dtype == torch.bfloat16


def test_results_of_meta_tensors_have_the_right_shape() -> None:
    x, w = torch.empty(2, 3, 8, 8, device="meta"), torch.empty(5, 3, 3, 3, device="meta")
    assert ops.conv2d(x, w, stride=2).shape == (2, 5, 3, 3)


IMAGE, WEIGHT = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((IMAGE, torch.randn(6, 4, 7, 3)), {}),  # a kernel larger than the image
        ((IMAGE, torch.randn(6, 3, 3, 3)), {}),
        ((IMAGE, WEIGHT), {"groups": 3}),
        ((IMAGE, WEIGHT), {"groups": 0}),
        ((IMAGE, WEIGHT, torch.randn(5)), {}),
        ((IMAGE, WEIGHT), {"stride": 0}),
        ((IMAGE, WEIGHT), {"stride": (1, 1, 1)}),
        ((IMAGE, WEIGHT), {"padding": -1}),
        ((IMAGE, WEIGHT), {"dilation": 0}),
        ((IMAGE, WEIGHT), {"padding": "same", "stride": 2}),
        ((IMAGE, WEIGHT), {"padding": "some"}),
        ((IMAGE, WEIGHT), {"stride": 1.5}),
        ((IMAGE, WEIGHT.half()), {}),
        ((IMAGE[0, 0], WEIGHT), {}),
        ((IMAGE, WEIGHT[0]), {}),
        ((IMAGE, None), {}),
        ((IMAGE, torch.ones(3, 2, 3, 3)), {"groups": 2}),
        ((IMAGE, torch.ones(0, 4, 3, 3)), {}),
        ((IMAGE, torch.ones(4, 4, 0, 3)), {}),
        ((IMAGE, torch.ones(4, 4, 0, 3)), {"padding": "same"}),
        ((IMAGE[:, :, :0], WEIGHT), {"padding": 2}),
        ((IMAGE, WEIGHT, torch.ones(6, 1)), {}),
        ((IMAGE, WEIGHT, torch.tensor(1.0)), {}),
        ((IMAGE, WEIGHT), {"stride": 2**70}),
        ((IMAGE, WEIGHT), {"padding": 2**70}),
        ((IMAGE, WEIGHT), {"padding": 2**61}),
        ((IMAGE, WEIGHT), {"groups": 2**70}),
        ((IMAGE, WEIGHT), {"groups": True}),
        ((IMAGE, WEIGHT), {"groups": [1]}),
    ],
)
def test_wrong_arguments_of_conv2d_are_refused_as_in_torch(
    arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert_refused_as_in_torch(ops.conv2d, F.conv2d, *arguments, **options)


SMALL, FILTER = torch.ones(1, 4, 8, 8), torch.ones(4, 4, 3, 3)
UNEVEN = {"stride": [1, 5], "padding": 3, "dilation": 3}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        *(((SMALL, FILTER), {"groups": groups}) for groups in (-1, 0, 3, 5, 8, 2**70, True)),
        ((torch.ones(1, 5, 8, 8), FILTER), {}),
        ((torch.ones(1, 3, 2, 2), torch.ones(4, 1, 1, 1)), {}),
        *(((SMALL, FILTER, torch.ones(shape)), {}) for shape in [(4, 1), (1,), (), (1, 4), (3,), (8,)]),
        ((SMALL, FILTER, torch.ones(4)), {"groups": 2}),  # 8 features
        ((SMALL, FILTER), {"output_padding": 1}),
        ((SMALL, FILTER), {"output_padding": (1, 2), "stride": 2}),
        ((SMALL, FILTER), {"output_padding": (1, 0), "stride": (1, 2), "dilation": (1, 2)}),
        ((SMALL, FILTER), {"output_padding": -1}),
        ((SMALL[:, :, :0], FILTER), {}),
        ((SMALL, FILTER[:, :0]), {}),
        ((SMALL, FILTER[:, :, :0]), {}),
        ((SMALL[:, :0], FILTER[:0]), {}),
        ((torch.ones(1, 2, 3, 1), torch.ones(2, 2, 2, 4)), UNEVEN),
        ((torch.ones(1, 2, 3, 1).half(), torch.ones(2, 2, 2, 4).half()), UNEVEN),
        ((SMALL, FILTER), {"padding": 6}),
        ((SMALL, FILTER), {"padding": "same"}),
        ((SMALL, FILTER), {"stride": 2**70}),
        ((SMALL, FILTER), {"stride": 2**61}),
    ],
)
def test_wrong_arguments_of_conv_transpose2d_are_refused_as_in_torch(
    arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert_refused_as_in_torch(ops.conv_transpose2d, F.conv_transpose2d, *arguments, **options)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]], dict[str, Any]]:
    """Draw shapes and options that often do not fit, with at least one channel, which torch requires."""
    rank = draw(st.integers(1, 3))
    is_transposed = rank == 2 and draw(st.booleans())
    one, small = st.sampled_from([1, 1, 1, 2]), st.sampled_from([0, 1, 2, 3, 4])
    groups = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    per_group = draw(one)
    channels = draw(st.sampled_from([max(groups, 1) * per_group] * 4 + [3]))
    outer = channels if is_transposed else draw(st.sampled_from([0, groups, groups, 2 * groups, 3]))
    inner = draw(st.sampled_from([0, 1, 1, 2, 3])) if is_transposed else per_group
    sizes, taps = ([draw(values) for _ in range(rank)] for values in (st.integers(0, 6), small))
    features = inner * groups if is_transposed else outer
    shapes = [(draw(st.sampled_from([0, 1, 1, 2])), channels, *sizes), (outer, inner, *taps)]
    of_bias = draw(st.sampled_from([None, (features,), (features,), (1,), (features, 1), ()]))
    shapes += [] if of_bias is None else [of_bias]
    options: dict[str, Any] = {name: [draw(one) for _ in range(rank)] for name in ("stride", "dilation")}
    options |= {"padding": [draw(small) for _ in range(rank)], "groups": groups}
    if is_transposed:
        options["output_padding"] = [draw(st.sampled_from([0, 0, 1, 2])) for _ in range(rank)]
    return "conv_transpose2d" if is_transposed else f"conv{rank}d", shapes, options


@settings(max_examples=examples(300))
@given(calls())
def test_arguments_are_accepted_exactly_where_torch_accepts_them(
    call: tuple[str, list[tuple[int, ...]], dict[str, Any]],
) -> None:
    """Shapes of results agree with torch; meta tensors save the time of the kernels."""
    name, shapes, options = call
    try:
        want = getattr(F, name)(*(torch.ones(shape, dtype=torch.double) for shape in shapes), **options)
    except (RuntimeError, IndexError):
        with pytest.raises(TensorMismatchError):
            getattr(ops, name)(*(torch.empty(shape, device="meta") for shape in shapes), **options)
    else:
        ours = getattr(ops, name)(*(torch.empty(shape, device="meta") for shape in shapes), **options)
        assert ours.shape == want.shape


def test_errors_name_the_argument_and_its_value() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"stride: got 1180591620717411303424\. Give a number that fits"
    ):
        ops.conv2d(IMAGE, WEIGHT, stride=2**70)
    with pytest.raises(TensorMismatchError, match=r"bias: shape \(3,\).*Give shape \(4,\)"):
        ops.conv_transpose2d(SMALL, FILTER, torch.ones(3))
    with pytest.raises(TensorMismatchError, match=r"output_padding: \(1, 1\) for a stride of \(1, 1\)"):
        ops.conv_transpose2d(SMALL, FILTER, output_padding=1)
    with pytest.raises(TensorMismatchError, match=r"weight, groups: 3 in the first dimension.*multiple of 2"):
        ops.conv2d(IMAGE, torch.ones(3, 2, 3, 3), groups=2)


def test_dtypes_devices_and_lists_that_kernels_do_not_take_are_refused() -> None:
    with pytest.raises(UnsupportedDtypeError, match="int64"):
        ops.conv2d(IMAGE.long(), WEIGHT.long())
    with pytest.raises(TensorMismatchError, match="weight: on meta, input on cpu"):
        ops.conv2d(IMAGE, WEIGHT.to("meta"))
    with pytest.raises(ArgumentTypeError, match="input"):
        ops.conv2d([1], WEIGHT)  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
def test_nan_and_infinity_stay_in_their_group_and_window(last: bool) -> None:
    """Zeros of the padding and other groups would turn NaN or infinity into more NaN."""
    format = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 12, 6, 6).to(memory_format=format)
    x[0, 5, 2, 2], x[1, 0, 0, 0] = math.inf, math.nan
    w = torch.randn(8, 3, 3, 3)
    w[7, 2] = math.nan
    result = ops.conv2d(x, w, groups=4, padding=1)
    want = F.conv2d(x, w, groups=4, padding=1)
    torch.testing.assert_close(result, want, equal_nan=True)
    assert result.isfinite().sum() == want.isfinite().sum()
