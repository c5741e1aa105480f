"""Reductions against torch: values, dtypes, shapes, errors, gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import all_is_tested, examples
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    UnsupportedDtypeError,
    WorkbenchError,
)

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OF_SEVERAL = ["sum", "mean", "amax", "amin", "norm", "any", "all"]  # of several dimensions at once
OF_ONE = ["prod", "max", "min", "argmax", "argmin"]
NAN, INFINITY = float("nan"), float("inf")


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, are_whole: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point and not are_whole:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@st.composite
def tensors(draw: Any, dtypes: list[torch.dtype], are_whole: bool = False) -> torch.Tensor:
    """Draw a tensor, maybe without dimensions or elements; dense, transposed, sliced or expanded."""
    shape: tuple[int, ...] = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7]), max_size=4)))
    x = values(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 99)), are_whole)
    if shape and draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(x.dim()))))
    if shape and draw(st.booleans()):
        x = x[..., ::2]
    if shape and draw(st.booleans()):
        x = x[:1].expand(3, *x.shape[1:]) if x.shape[0] else x
    return x


@st.composite
def calls(draw: Any, dtypes: list[torch.dtype], are_whole: bool = False) -> tuple[str, Any, Any]:
    """Draw an operator, a tensor, and dimensions, which may not exist."""
    x = draw(tensors(dtypes, are_whole))
    name = draw(st.sampled_from(OF_SEVERAL + OF_ONE))
    one = st.integers(-x.dim() - 1, x.dim())
    dims: Any = one
    if name in OF_SEVERAL:
        dims = one | st.lists(one, max_size=3).map(tuple)
    options = {"dim": draw(dims), "keepdim": draw(st.booleans())} if draw(st.booleans()) else {}
    return name, x, options


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except Exception as error:
        return error


def assert_as_torch(name: str, x: Any, *args: Any, exact: bool = False, **options: Any) -> None:
    """Check for torch's result, or an error of the kind that torch raises.

    The error from float64 is at most twice torch's plus a rounding of the result of the magnitudes, since a
    sum may cancel to a value that the order of additions decides.
    """
    want = outcome(getattr(torch, name), x, *args, **options)
    got = outcome(getattr(ops, name), x, *args, **options)
    if isinstance(want, Exception):
        assert isinstance(got, WorkbenchError), f"torch: {want!r}; ops: {got!r}"
        assert isinstance(got, type(want)), f"torch: {want!r}; ops: {got!r}"
        return
    assert not isinstance(got, Exception), f"torch: {want!r}; ops: {got!r}"
    assert type(got) is type(want)
    if isinstance(want, tuple):
        for ours, torchs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, torchs, rtol=0, atol=0, equal_nan=True)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if exact or not want.is_floating_point() or not want.numel():
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        return
    if x.dtype == torch.float64:  # the reference is no more exact
        largest = float(x.abs().sum()) if name == "sum" else 1
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-14 * largest, equal_nan=True)
        return
    options |= {"dtype": torch.float64} if "dtype" in options else {}
    reference = getattr(torch, name)(x.double(), *args, **options)
    largest = getattr(torch, name)(x.double().abs(), *args, **options)
    finite = reference.isfinite() & want.isfinite()
    torch.testing.assert_close(got[~finite], want[~finite], equal_nan=True)
    if finite.any():
        off, torchs = ((t.double() - reference)[finite].abs().max() for t in (got, want))
        rounding = largest[finite].abs().max() * torch.finfo(want.dtype).eps
        assert off <= 2 * torchs + rounding, f"{float(off)} off, torch {float(torchs)}"


@settings(max_examples=examples(100), derandomize=True)  # torch's error may be 0 by chance
@given(calls(FLOATS))
def test_results_are_as_accurate_as_torch(call: tuple[str, torch.Tensor, dict[str, Any]]) -> None:
    name, x, options = call
    assert_as_torch(name, x, **options)


@settings(max_examples=examples(100))
@given(calls([*INTEGERS, torch.bool, torch.float32], are_whole=True))
def test_reductions_of_whole_numbers_are_exact(call: tuple[str, torch.Tensor, dict[str, Any]]) -> None:
    name, x, options = call
    assert_as_torch(name, x, exact=name not in ("mean", "norm"), **options)


@settings(max_examples=examples(40))
@given(
    x=tensors([*FLOATS[:3], torch.int32, torch.int8, torch.bool], are_whole=True),
    name=st.sampled_from(["sum", "mean", "prod"]),
    dtype=st.sampled_from([*FLOATS, torch.int64, torch.int32, torch.int8, torch.bool]),
)
def test_elements_are_converted_to_dtype_before_they_are_reduced(
    x: torch.Tensor, name: str, dtype: torch.dtype
) -> None:
    assert_as_torch(name, x, dtype=dtype, exact=name != "mean")
    assert_as_torch(name, x, -1, True, dtype=dtype, exact=name != "mean")


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, -1, -2.5, INFINITY, -INFINITY, "fro", None], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_any_order_are_as_accurate_as_torch(p: Any, dtype: torch.dtype) -> None:
    x = values((4, 5), dtype, 1)
    assert_as_torch("norm", x, p)
    assert_as_torch("norm", x, p, 0)
    x[1, 2], x[2, 3], x[3, 0] = 0, INFINITY, NAN
    assert_as_torch("norm", x, p, 1, True)
    assert_as_torch("norm", x.new_empty(0), p)


def test_a_norm_may_have_a_wider_dtype_only() -> None:
    x = values((3, 5), torch.float16, 2)
    assert_as_torch("norm", x, 3, dtype=torch.float32)
    assert_as_torch("norm", x.double(), 2, dtype=torch.float32)  # narrower: refused


def test_the_nuclear_norm_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not a reduction"):
        ops.norm(torch.ones(2, 2), "nuc")


@pytest.mark.parametrize("special", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("name", OF_SEVERAL + OF_ONE)
def test_nan_and_infinities_give_torchs_results(name: str, special: float) -> None:
    for places in ([3], [0, 6], [5, 6], list(range(7))):
        x = values((2, 7), torch.float32, 3)
        x[1, places] = special
        assert_as_torch(name, x)
        assert_as_torch(name, x, 1)
        assert_as_torch(name, x, 0)
    x[1, 0] = -special
    assert_as_torch(name, x, 1)


@settings(max_examples=examples(40))
@given(
    rows=st.integers(1, 4),
    cols=st.integers(1, 40),
    seed=st.integers(0, 99),
    name=st.sampled_from(["max", "min", "argmax", "argmin"]),
    has_nan=st.booleans(),
    dim=st.sampled_from([0, 1]),
)
def test_argmax_and_argmin_find_the_first_of_equal_elements(
    rows: int, cols: int, seed: int, name: str, has_nan: bool, dim: int
) -> None:
    x = torch.randint(0, 2, (rows, cols), generator=torch.Generator().manual_seed(seed)).float()
    if has_nan:
        x[x == 0] = NAN
    by_hand = [
        next((i for i, v in enumerate(row) if math.isnan(v)), row.index((max if "max" in name else min)(row)))
        for row in (x.t() if dim == 0 else x).tolist()
    ]
    got = getattr(ops, name)(x, dim)
    assert (got if isinstance(got, torch.Tensor) else got.indices).tolist() == by_hand


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_extremes_of_two_tensors_agree_with_torch(name: str, dtype: torch.dtype) -> None:
    x, y = values((3, 5), dtype, 1), values((5,), dtype, 2)
    if dtype.is_floating_point:
        x[0, 0], y[1] = NAN, NAN
    assert_as_torch(name, x, y, exact=True)
    assert_as_torch(name, x.t(), y[:3], exact=True)
    assert_as_torch(name, x, y.double(), exact=True)
    assert_as_torch(name, x, torch.zeros(4, dtype=dtype))
    assert_as_torch(name, x[:0], y)


@pytest.mark.parametrize("name", OF_SEVERAL + OF_ONE)
def test_wrong_arguments_are_refused_as_in_torch(name: str) -> None:
    x = torch.ones(2, 3)
    for options in (
        {"dim": 2}, {"dim": (0, 0)}, {"dim": (0, -2)}, {"dim": "a"}, {"dim": 0.5}, {"dim": 0, "keepdim": 1},
        {"dim": 0, "out": torch.empty(3, dtype=torch.complex64)}, {"dim": 0, "out": 3},
    ):  # fmt: skip
        refused = outcome(getattr(ops, name), x, **options)
        torchs = outcome(getattr(torch, name), x, **options)
        assert isinstance(refused, WorkbenchError), f"{options}: {refused!r}"
        if options.get("dim") != "a" and name != "sum" and not isinstance(torchs, torch.Tensor | tuple):
            assert isinstance(refused, type(torchs)), f"{options}: {torchs!r}, {refused!r}"
    for dtype in (torch.complex64, torch.float8_e5m2, torch.uint16):
        with pytest.raises(UnsupportedDtypeError, match=str(dtype)):
            getattr(ops, name)(torch.zeros(2).to(dtype))
    with pytest.raises(TypeError, match="input"):
        getattr(ops, name)([1.0])


@pytest.mark.parametrize("name", [name for name in OF_SEVERAL + OF_ONE if name != "norm"])
def test_numpys_names_of_arguments_agree_with_torch(name: str) -> None:
    x = values((2, 3), torch.float32, 1, are_whole=True)
    ways: list[dict[str, Any]] = [{"axis": 1}, {"axis": -1, "keepdims": True}, {"dim": 0, "keepdims": True}]
    for keywords in ways:
        assert_as_torch(name, x, **keywords)
    for first in ("a", "x"):
        assert torch.equal(getattr(ops, name)(**{first: x}), getattr(torch, name)(**{first: x}))
    assert_as_torch(name, x, dim=1, axis=1)
    assert_as_torch(name, x, axis=2)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "norm"])
@pytest.mark.parametrize("dtype", [float, int, bool, complex, str, [1]], ids=str)
def test_pythons_types_as_dtypes_agree_with_torch_but_complex_is_refused(name: str, dtype: Any) -> None:
    x = values((2, 3), torch.float32, 1)
    if dtype is complex:
        with pytest.raises(WorkbenchError):
            getattr(ops, name)(x, dtype=dtype)
        return
    assert_as_torch(name, x, dtype=dtype)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "any", "argmax"])
def test_an_error_about_a_dimension_names_the_shape(name: str) -> None:
    with pytest.raises(DimensionError, match=r"\(2, 3\) on cpu.*got 5"):
        getattr(ops, name)(torch.ones(2, 3), 5)


@pytest.mark.parametrize("name", OF_SEVERAL[:-3] + OF_ONE)
def test_a_dimension_may_be_a_tensor(name: str) -> None:
    """The tensor is given by name, since `max(x, tensor)` compares two tensors."""
    x = values((2, 3), torch.float32, 1)
    if name != "norm":  # torch itself fails for it
        assert_as_torch(name, x, dim=torch.tensor(1))
        assert_as_torch(name, x, dim=torch.tensor(2))
    with pytest.raises(ArgumentTypeError, match=r"dim: got (float32|.*tensor\()"):
        getattr(ops, name)(x, dim=torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_integer_dtypes_are_refused_for_tensors_that_require_grad_as_in_torch(
    name: str, dtype: torch.dtype
) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert_as_torch(name, x, dtype=dtype)
    assert_as_torch(name, x, 1, dtype=dtype)
    with torch.no_grad():
        assert_as_torch(name, x, dtype=dtype)
    assert_as_torch(name, x.detach(), dtype=dtype)


@pytest.mark.parametrize("name", OF_SEVERAL + OF_ONE)
def test_results_are_written_to_out(name: str) -> None:
    x = values((4, 5), torch.float32, 4)
    want = getattr(torch, name)(x, dim=1)
    out: Any = torch.empty(4, 2).select(1, 0) if isinstance(want, torch.Tensor) else None
    if isinstance(want, tuple):
        out = tuple(torch.empty_like(each) for each in want)
        got = getattr(ops, name)(x, dim=1, out=out)
        assert all(ours is place for ours, place in zip(got, out, strict=True))
    else:
        out = out.to(want.dtype)
        got = getattr(ops, name)(x, dim=1, out=out)
        assert got is out
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8], ids=str)
def test_a_sum_is_computed_in_the_dtype_of_out(dtype: torch.dtype) -> None:
    x = torch.full((40,), 16777217, dtype=torch.int64)
    assert torch.equal(
        ops.sum(x, 0, out=torch.empty((), dtype=dtype)), torch.sum(x, 0, out=torch.empty((), dtype=dtype))
    )


@pytest.mark.daily(cases=1)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize(
    "options", [{}, {"dim": 1}, {"dim": (0, -1)}, {"dim": (0, 2), "keepdim": True}], ids=str
)
def test_derivatives_of_sums_and_means_agree_with_differences_and_torch(
    name: str, options: dict[str, Any]
) -> None:
    x = values((2, 3, 4), torch.float64, 5).requires_grad_()
    function = getattr(ops, name)
    assert torch.autograd.gradcheck(lambda t: function(t, **options), x, check_forward_ad=True)
    is_fast = not all_is_tested()
    assert torch.autograd.gradgradcheck(lambda t: function(t, **options) ** 2, x, fast_mode=is_fast)
    half = x.detach().half().requires_grad_()
    ours = torch.autograd.grad(function(half, **options, dtype=torch.float32).square().sum(), half)[0]
    torchs = torch.autograd.grad(
        getattr(torch, name)(half, **options, dtype=torch.float32).square().sum(), half
    )[0]
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_the_gradient_of_a_sum_is_an_expanded_tensor(name: str) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(getattr(ops, name)(x), x)
    assert grad.stride() == (0, 0)


def test_vmap_agrees_with_torch() -> None:
    x = values((2, 3, 4), torch.float32, 6)
    for dim in (0, -1, (0, 1)):
        got = torch.func.vmap(lambda t, dim=dim: ops.sum(t, dim), in_dims=1)(x)
        torch.testing.assert_close(got, torch.func.vmap(lambda t, dim=dim: t.sum(dim), in_dims=1)(x))


WITH_GRADIENTS = ["prod", "amax", "amin", "max", "min", "norm"]
NORMS = [0, 0.5, 1, 1.5, 2, 3, -1, -2.5, INFINITY, -INFINITY, "fro"]
ALONG: list[dict[str, Any]] = [{}, {"dim": 0}, {"dim": -1, "keepdim": True}]


def assert_gradients_as_torch(name: str, *args: Any, **options: Any) -> None:
    """Assert that the first result's gradients along a random direction are torch's."""
    grads: list[torch.Tensor] = []
    for module in (ops, torch):
        leaves = [t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for t in args]
        result = getattr(module, name)(*leaves, **options)
        result = result if isinstance(result, torch.Tensor) else result[0]
        direction = values(tuple(result.shape), result.dtype, 9)
        grads += torch.autograd.grad(result, [t for t in leaves if isinstance(t, torch.Tensor)], direction)
    half = len(grads) // 2
    for ours, torchs in zip(grads[:half], grads[half:], strict=True):
        torch.testing.assert_close(ours, torchs, equal_nan=True)


@pytest.mark.parametrize("options", ALONG, ids=str)
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_agree_with_finite_differences(name: str, options: dict[str, Any]) -> None:
    function = getattr(ops, name)

    def value(t: torch.Tensor) -> torch.Tensor:
        result = function(t, **options)
        return result if isinstance(result, torch.Tensor) else result.values

    x = values((3, 4), torch.float64, 5).requires_grad_()
    assert torch.autograd.gradcheck(value, x)
    assert torch.autograd.gradcheck(value, x.t(), fast_mode=not all_is_tested())
    (grad,) = torch.autograd.grad(value(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("p", NORMS, ids=str)
def test_gradients_of_norms_agree_with_finite_differences(p: Any) -> None:
    x = values((3, 4), torch.float64, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ops.norm(t, p, 1), x)


@pytest.mark.parametrize("options", ALONG, ids=str)
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_of_equal_elements_and_zeros_agree_with_torch(name: str, options: dict[str, Any]) -> None:
    """Rows have no zero, one, several, or only zeros; equal elements share a gradient or the first has it."""
    x = torch.tensor([[3, 1, 2, 3], [0, 2, 3, 0.5], [0, 1, 0, 1], [0, 0, 0, 0], [-1, 1, -1, 1]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert_gradients_as_torch(name, x.to(dtype), **options)
        assert_gradients_as_torch(name, x[0].to(dtype))
    assert_gradients_as_torch(name, torch.tensor(3.0))
    assert_gradients_as_torch(name, torch.empty(0, 4), **(options | {"dim": -1}))
    if name in ("prod", "norm"):
        assert_gradients_as_torch(name, x.half(), dtype=torch.float32, **({"dim": 1} | options))


@pytest.mark.parametrize("p", NORMS[1:], ids=str)  # torch gives "0" no gradient at all
def test_gradients_of_norms_agree_with_torch(p: Any) -> None:
    x = torch.tensor([[3, -1, 2, -3], [0, 2, -3, 0.5], [0, 0, 0, 0], [NAN, 0, 1, 2], [INFINITY, 1, 2, 1]])
    assert_gradients_as_torch("norm", x, p, 1)
    assert_gradients_as_torch("norm", x[:2], p)
    assert_gradients_as_torch("norm", x[:3].half(), p, (0, 1), True)


@pytest.mark.parametrize("name", ["max", "min"])
def test_results_may_be_changed_in_place(name: str) -> None:
    """The gradient of a picked element needs its index alone, as in torch."""
    x = torch.tensor([[1.0, 3.0, 2.0], [4.0, 4.0, 0.0]], requires_grad=True)
    y = torch.tensor([[2.0, 3.0, float("nan")], [1.0, 5.0, 0.0]], requires_grad=True)
    gradients = []
    for library in (ops, torch):
        values, _ = getattr(library, name)(x, 1)
        values.mul_(3)
        of_two = getattr(library, name)(x, y)
        of_two.mul_(2)
        gradients.append(torch.autograd.grad(values.sum() + of_two.nan_to_num().sum(), (x, y)))
    for ours, torchs in zip(*gradients, strict=True):
        assert torch.equal(ours, torchs)


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_gradients_beside_nan_agree_with_torch(name: str) -> None:
    x = torch.tensor([[NAN, 1, 2, NAN], [0, 2, NAN, 1], [INFINITY, 1, INFINITY, 2]])
    assert_gradients_as_torch(name, x)
    assert_gradients_as_torch(name, x, dim=1)


@pytest.mark.parametrize("name", ["max", "min"])
def test_gradients_of_two_tensors_agree_with_torch(name: str) -> None:
    x = torch.tensor([[1.0, 2, 3], [NAN, 5, 6]])
    assert_gradients_as_torch(name, x, torch.tensor([1.0, 3, 2]))
    assert_gradients_as_torch(name, x, torch.tensor([[NAN], [NAN]]).double())
    assert_gradients_as_torch(name, x, torch.tensor(2.0))


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_out_with_tensors_that_require_grad_is_refused(name: str) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="out"):
        getattr(ops, name)(x, **({"dim": 0} if name not in WITH_GRADIENTS[3:5] else {}), out=torch.empty(()))


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_tensor_without_dimensions_may_be_on_the_cpu(name: str) -> None:
    """The other tensor is a meta tensor, without data, which the result joins as in torch."""
    x, number = torch.ones(2, 3, device="meta"), torch.tensor(2.0, dtype=torch.float64)
    for one, other in ((x, number), (number, x)):
        got, want = getattr(ops, name)(one, other), getattr(torch, name)(one, other)
        assert (got.device, got.dtype, got.shape) == (want.device, want.dtype, want.shape)
    for other in (torch.ones(3), torch.ones(2, 3)):
        with pytest.raises(RuntimeError) as refused:
            getattr(ops, name)(x, other)
        assert isinstance(refused.value, WorkbenchError)


@pytest.mark.parametrize("name", ["any", "all", "argmax", "argmin"])
def test_bools_and_indices_have_no_gradient_and_refuse_vmap(name: str) -> None:
    x = torch.ones(3, requires_grad=True)
    result = getattr(ops, name)(x)
    assert torch.equal(result, getattr(torch, name)(x))
    assert not result.requires_grad
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.vmap(getattr(ops, name))(torch.ones(2, 3))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "norm", "amax"])
def test_autocast_results_agree_with_torch(name: str) -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = getattr(ops, name)(x, dim=1), getattr(torch, name)(x, dim=1)
    torch.testing.assert_close(got, want)


INF, NAN = float("inf"), float("nan")

ORDERS = [1, 2, 3, 0.5, 0.1, 1.5, 2.5, 7, -1, -2, -0.5, -3.5, INF, -INF, 20]

ELEMENTS = {
    "zeros": [0.0, 0.0, 0.0],
    "a zero": [0.0, 1.0, -2.0],
    "small beside large": [1e-4, *[16.0] * 30],
    "tiny": [1e-20, 2e-20, -1e-21],
    "huge": [3e38, -1e38, 1.0],
    "huge of 16 bits": [60000.0, -60000.0, 3.0],
    "denormal": [1e-7, 6e-8, 0.0],
    "an infinity": [INF, 1.0, 0.0],
    "NaN": [NAN, 1.0, 0.0],
}


def gradient_of(function: Any, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Return the gradient of x, for a result of any shape whose own gradient is 1."""
    leaf = x.detach().requires_grad_()
    result = function(leaf, *arguments)
    return torch.autograd.grad(result, leaf, torch.ones_like(result))[0]


@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_gradient_of_a_norm_is_finite_where_it_is_in_torch(elements: str, dtype: torch.dtype) -> None:
    """The gradient is as near to fp64's as torch's, of the whole tensor and along a dimension."""
    row = ELEMENTS[elements]
    x = torch.tensor([row, row[::-1]], dtype=dtype)
    for order, arguments in itertools.product(ORDERS, ((), (1,), (0, True))):
        got, torchs = (gradient_of(f, x, order, *arguments) for f in (ops.norm, torch.norm))
        exact = gradient_of(torch.norm, x.double(), order, *arguments)
        is_finite = torchs.isfinite()
        assert got[is_finite].isfinite().all(), (order, arguments, got, torchs)
        is_known = is_finite & exact.isfinite()
        step = torch.finfo(dtype).eps * exact.abs().clamp(min=torch.finfo(dtype).tiny)
        error = (got - exact).abs() <= 2 * (torchs - exact).abs() + step
        assert error[is_known].all(), (order, arguments, got, torchs)


def test_the_gradient_of_a_norm_of_order_one_half_is_finite_in_fp16() -> None:
    """A quotient of 1e-4 and the norm underflows in fp16, and 0 to a negative power is infinite."""
    x = torch.tensor([1e-4] + [16.0] * 30).half()
    got = gradient_of(ops.norm, x, 0.5)
    torch.testing.assert_close(got, gradient_of(torch.norm, x, 0.5), rtol=2e-3, atol=0.0)
    assert 11000 < float(got[0]) < 13000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_of_prod_beside_zeros_and_infinities_agrees_with_torch(dtype: torch.dtype) -> None:
    """Rows are all triples of these elements; the product is of the whole tensor or along a dimension."""
    special = [0.0, 2.0, INF, -INF, NAN]
    rows = list(itertools.product(special, repeat=3))
    for row in rows[:: 1 if dtype == torch.float32 else 7]:
        x = torch.tensor(row, dtype=dtype)
        pair = torch.stack([x, torch.ones_like(x)])
        for tensor, arguments in ((x, ()), (x, (0,)), (pair, ()), (pair, (1,)), (pair, (0, True))):
            got, want = (gradient_of(f, tensor, *arguments) for f in (ops.prod, torch.prod))
            torch.testing.assert_close(got, want, equal_nan=True)
    for number in special:
        got, want = (gradient_of(f, torch.tensor(number)) for f in (ops.prod, torch.prod))
        torch.testing.assert_close(got, want, equal_nan=True)
