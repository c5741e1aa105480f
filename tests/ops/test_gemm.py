"""Products as torch's: PyTorch's own samples, gradients of any order, batches, autocast, out=."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError, UnsupportedDtypeError, WorkbenchError

NAMES = ["matmul", "mm", "bmm", "addmm", "baddbmm", "nn.functional.linear"]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
OPERATORS = [
    op for op in op_db if op.name in NAMES and not op.variant_test_name and op.aten_name != "bmm_triton"
]


def ours_of(op: Any) -> Any:
    return getattr(ops, op.name.rpartition(".")[2])


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_near(got: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor) -> None:
    """At most twice as far from float64 as torch, and one rounding of the largest value."""
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    if not got.numel():
        return
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    rounding = exact.abs().max().item() * torch.finfo(got.dtype).eps
    # Of float64 there is nothing wider to compare with: a few roundings.
    assert off <= 2 * theirs + (8 if got.dtype == torch.float64 else 1) * rounding


def wide(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_torchs_samples(op: Any, dtype: torch.dtype) -> None:
    assert_samples_as_torch(op, "cpu", dtype)


def assert_samples_as_torch(op: Any, device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 0
    for sample in op.sample_inputs(device, dtype, requires_grad=True):
        tensors = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
        got, want = (f(sample.input, *sample.args, **sample.kwargs) for f in (ours_of(op), op.op))
        exact = op.op(wide(sample.input), *map(wide, sample.args), **sample.kwargs)
        assert_near(got.detach(), want.detach(), exact)
        direction = torch.ones_like(want)
        for mine, theirs in zip(
            *(torch.autograd.grad(r, tensors, direction, allow_unused=True) for r in (got, want)), strict=True
        ):
            if theirs is None:
                assert mine is None
            else:
                torch.testing.assert_close(mine, theirs)
        count += 1
    assert count


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_broadcasting(data: st.DataObject) -> None:
    """Integers, which every order of summation adds up exactly."""
    m, n, k = (data.draw(st.sampled_from([0, 1, 3, 17, 33]), label=name) for name in "mnk")
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), ()), ((2,), ()), ((), (2,)), ((2,), (2,)), ((3, 1), (2,)), ((1, 2), (3, 1)), ((0,), (0,)),
    ]  # fmt: skip
    batches = data.draw(st.sampled_from(shapes), label="batches")
    dtype = data.draw(st.sampled_from([*FLOATS, torch.int8]), label="dtype")
    a, b = (
        torch.randint(-3, 4, (*batch, *size)) for batch, size in zip(batches, ((m, k), (k, n)), strict=True)
    )
    is_vector, is_transposed = (data.draw(st.booleans(), label=name) for name in ("vector", "transposed"))
    if not batches[0] and is_vector:
        a = a[:1].flatten() if m else torch.randint(-3, 4, (k,))
    if is_transposed:
        b = b.mT.contiguous().mT
    a, b = a.to(dtype), b.to(dtype)
    got, want = ops.matmul(a, b), torch.matmul(a, b)
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    assert torch.equal(got, want)


@pytest.mark.slow
def test_gradients_of_any_order() -> None:
    a, b, c = (
        numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate(((2, 3, 4), (4, 5), (3, 1)))
    )
    assert torch.autograd.gradcheck(ops.matmul, (a, b))
    assert torch.autograd.gradgradcheck(ops.matmul, (a, b))
    assert torch.autograd.gradcheck(lambda c, a: ops.addmm(c, a[0], b, beta=0.3, alpha=0.7), (c, a))
    weight, bias = numbers(5, 4, seed=3).requires_grad_(), numbers(5, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(ops.linear, (a, weight, bias))
    tangents = numbers(*a.shape, seed=5), numbers(*b.shape, seed=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of the compiler of its rules
        pairs = [torch.func.jvp(f, (a.detach(), b.detach()), tangents) for f in (ops.matmul, torch.matmul)]
    torch.testing.assert_close(*pairs)


def test_under_vmap() -> None:
    a, b = numbers(6, 2, 3, 4), numbers(6, 4, 5, seed=1)
    for dims in ((0, 0), (0, None), (None, 0), (1, None)):
        one, other = a, b
        if dims[0] is None:
            one = a[0]
        if dims[1] is None:
            other = b[0]
        got = torch.vmap(ops.matmul, in_dims=dims)(one, other)
        torch.testing.assert_close(got, torch.vmap(torch.matmul, in_dims=dims)(one, other))
    grads = torch.func.vmap(torch.func.grad(lambda x, y: ops.mm(x, y).sum()))(a[:, 0], b)
    torch.testing.assert_close(grads, torch.ones(6, 3, 5).double() @ b.mT)


def test_beta_of_zero_leaves_nan_out() -> None:
    a, b, nan = numbers(3, 4), numbers(4, 5), torch.full((3, 5), float("nan"), dtype=torch.float64)
    torch.testing.assert_close(ops.addmm(nan, a, b, beta=0, alpha=2), 2 * (a @ b))
    torch.testing.assert_close(ops.baddbmm(nan[None], a[None], b[None], beta=0), (a @ b)[None])


def test_infinities_and_nan_go_where_torch_lets_them() -> None:
    a, b = numbers(20, 30, dtype=torch.float32), numbers(30, 40, dtype=torch.float32)
    a[3, 5], a[4, 6], b[7, 8] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(ops.mm(a, b), a @ b, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    a, b, c = (numbers(*shape, dtype=torch.float32) for shape in ((6, 7), (7, 8), (8,)))
    with torch.autocast("cpu", dtype=dtype):
        pairs = (
            (ops.matmul(a, b), torch.matmul(a, b)),
            (ops.linear(a, b.t(), c), torch.nn.functional.linear(a, b.t(), c)),
            (ops.addmm(c, a, b), torch.addmm(c, a, b)),
        )
    for got, want in pairs:
        assert got.dtype == want.dtype == dtype
        torch.testing.assert_close(got, want)


def test_out() -> None:
    a, b = numbers(3, 4), numbers(4, 5)
    out = torch.empty(5, 3, dtype=torch.float64).t()
    assert ops.mm(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    empty = torch.empty(0, dtype=torch.float64)
    assert ops.matmul(a, b, out=empty).shape == (3, 5)
    with pytest.raises(TensorMismatchError, match="out"):
        ops.mm(a, b, out=torch.empty(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-3, 4, shape).to(torch.float32).to(dtype) for shape in ((9, 20), (20, 7)))
    got = ops.matmul(a, b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())


def test_meta_tensors_have_results_without_data() -> None:
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta")
    assert ops.matmul(a, b).shape == (2, 3, 5)
    assert ops.linear(a, b.t()).is_meta


def test_negated_views_and_strides() -> None:
    pairs = torch.randn(6, 6, 2)
    a = torch.view_as_complex(pairs).conj().imag
    assert a.is_neg()
    torch.testing.assert_close(ops.mm(a, a.t()), a @ a.t())


A = torch.ones(3, 4)
NO_TENSOR: Any = ["2"]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ops.matmul(A, A), TensorMismatchError, "matmul says"),
        (lambda: ops.mm(A[0], A), TensorMismatchError, "mm says"),
        (lambda: ops.bmm(A, A), TensorMismatchError, "bmm says"),
        (lambda: ops.mm(A, A.t().half()), TensorMismatchError, "dtype"),
        (lambda: ops.matmul(A, NO_TENSOR), ArgumentTypeError, "other: got a list"),
        (
            lambda: ops.matmul(A.to(torch.complex64), A.to(torch.complex64)),
            UnsupportedDtypeError,
            "complex64",
        ),
        (lambda: ops.matmul(A.long(), A.t().long()), UnsupportedDtypeError, "int64"),
        (lambda: ops.addmm(A, A, A.t(), beta=NO_TENSOR[0]), ArgumentTypeError, "beta"),
        (lambda: ops.matmul(A, A.to("meta").t()), TensorMismatchError, "on meta"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        call()
    assert isinstance(refused.value, WorkbenchError)
