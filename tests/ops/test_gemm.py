"""Products against torch: its own samples, gradients of any order, batches, autocast, out=."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import all_is_tested, examples
from workbench import device, ops
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


def assert_as_accurate_as_torch(got: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor) -> None:
    """Check that the error from float64 is at most twice torch's plus one rounding of the largest value."""
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    if not got.numel():
        return
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    rounding = exact.abs().max().item() * torch.finfo(got.dtype).eps
    # For float64 there is no wider reference, so a few roundings are allowed.
    assert off <= 2 * theirs + (8 if got.dtype == torch.float64 else 1) * rounding


def wide(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    assert_samples_as_torch(op, "cpu", dtype)


def assert_samples_as_torch(op: Any, device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 0
    for sample in op.sample_inputs(device, dtype, requires_grad=True):
        tensors = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
        got, want = (f(sample.input, *sample.args, **sample.kwargs) for f in (ours_of(op), op.op))
        exact = op.op(wide(sample.input), *map(wide, sample.args), **sample.kwargs)
        assert_as_accurate_as_torch(got.detach(), want.detach(), exact)
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


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_products_of_broadcast_batches_are_exact(data: st.DataObject) -> None:
    """Integers are summed exactly in any order."""
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


def test_first_and_second_derivatives_pass_gradcheck() -> None:
    a, b, c = (
        numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate(((2, 3, 4), (4, 5), (3, 1)))
    )
    assert torch.autograd.gradcheck(ops.matmul, (a, b))
    assert torch.autograd.gradgradcheck(ops.matmul, (a, b), fast_mode=not all_is_tested())
    assert torch.autograd.gradcheck(lambda c, a: ops.addmm(c, a[0], b, beta=0.3, alpha=0.7), (c, a))
    weight, bias = numbers(5, 4, seed=3).requires_grad_(), numbers(5, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(ops.linear, (a, weight, bias))
    tangents = numbers(*a.shape, seed=5), numbers(*b.shape, seed=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, from compiling its rules
        pairs = [torch.func.jvp(f, (a.detach(), b.detach()), tangents) for f in (ops.matmul, torch.matmul)]
    torch.testing.assert_close(*pairs)


def test_vmap_agrees_with_torch() -> None:
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


# Functions to differentiate with respect to a and b, [3, 4] and [4, 5].
FUNCTIONS: dict[str, Any] = {
    "mm": lambda f, a, b: f.mm(a, b),
    "matmul": lambda f, a, b: f.matmul(a.expand(2, 3, 4), b),
    "matmul of a vector": lambda f, a, b: f.matmul(a[0], b),
    "bmm": lambda f, a, b: f.bmm(a.expand(2, 3, 4), b.expand(2, 4, 5)),
    "addmm": lambda f, a, b: f.addmm(b[0], a, b, beta=0.5, alpha=2),
    "baddbmm": lambda f, a, b: f.baddbmm(b[:3], a[None], b[None], beta=0.5, alpha=2),
    "linear": lambda f, a, b: getattr(f, "linear", torch.nn.functional.linear)(a, b.t(), b[0]),
}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@functions
def test_batched_gradients_agree_with_torch(function: Any) -> None:
    a, b = numbers(3, 4).requires_grad_(), numbers(4, 5, seed=1).requires_grad_()
    pairs = []
    for module in (ops, torch):
        result = function(module, a, b)
        grads = numbers(6, *result.shape, seed=2).requires_grad_()
        found = torch.autograd.grad(result, (a, b), grads, is_grads_batched=True, create_graph=True)
        # Second derivatives, in a batch too.
        total = found[0].sin().sum() + found[1].square().sum()
        (again,) = torch.autograd.grad(total, grads, create_graph=True)
        batch = numbers(2, *again.shape, seed=3)
        pairs.append((found, again, torch.autograd.grad(again, (a, b), batch, is_grads_batched=True)))
    torch.testing.assert_close(*pairs)


@functions
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobians_agree_with_torch(function: Any, strategy: str) -> None:
    a, b = numbers(3, 4), numbers(4, 5, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, from compiling its rules
        got, want = (
            torch.autograd.functional.jacobian(
                lambda a, b, module=module: function(module, a, b), (a, b), vectorize=True, strategy=strategy
            )
            for module in (ops, torch)
        )
    torch.testing.assert_close(got, want)


@functions
def test_batched_gradients_pass_gradcheck(function: Any) -> None:
    a, b = numbers(3, 4).requires_grad_(), numbers(4, 5, seed=1).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert torch.autograd.gradcheck(
            lambda a, b: function(ops, a, b), (a, b), check_batched_grad=True, check_forward_ad=True,
            check_batched_forward_grad=True, fast_mode=True,
        )  # fmt: skip


@functions
def test_negated_incoming_gradients_give_torchs_gradients(function: Any) -> None:
    a, b = numbers(3, 4).requires_grad_(), numbers(4, 5, seed=1).requires_grad_()
    pairs = []
    for module in (ops, torch):
        result = function(module, a, b)
        negated = torch._neg_view(numbers(*result.shape, seed=2))
        assert negated.is_neg()
        pairs.append(torch.autograd.grad(result, (a, b), negated))
    torch.testing.assert_close(*pairs)


def test_an_addend_of_nan_is_not_read_if_beta_is_0() -> None:
    a, b, nan = numbers(3, 4), numbers(4, 5), torch.full((3, 5), float("nan"), dtype=torch.float64)
    torch.testing.assert_close(ops.addmm(nan, a, b, beta=0, alpha=2), 2 * (a @ b))
    torch.testing.assert_close(ops.baddbmm(nan[None], a[None], b[None], beta=0), (a @ b)[None])


BIASES: list[tuple[tuple[int, ...], ...]] = [
    ((0, 4), (1, 4), (5,)), ((0, 4), (5, 4), (7, 5)), ((0, 4), (5, 4), (5,)), ((2, 0, 4), (1, 4), (2, 1, 5)),
    ((3, 4), (5, 4), (2, 1, 5)), ((3, 4), (1, 4), (5,)), ((3, 4), (5, 4), (1,)), ((3, 4), (5, 4), (3, 1)),
    ((3, 4), (5, 4), (1, 3, 5)), ((3, 4), (5, 4), (4,)), ((3, 0), (1, 0), (5,)), ((3, 0), (5, 0), (5,)),
    ((2, 3, 4), (5, 4), (2, 1, 5)), ((2, 3, 4), (5, 4), (6, 5)), ((2, 3, 4), (5, 4), (1, 1, 1, 5)),
    ((4,), (5, 4), ()), ((4,), (5, 4), (1, 5)), ((4,), (5, 4), (1, 1)), ((4,), (5, 4), (3, 5)),
    ((4,), (1, 4), (5,)), ((4,), (4,), ()), ((4,), (4,), (1,)), ((3, 4), (4,), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", BIASES, ids=str)
def test_a_bias_broadcasts_into_the_result_as_in_torch(shapes: Any) -> None:
    """The result never grows to the bias's shape, as it does for torch's meta tensors."""
    assert_as_torch(
        lambda f, *tensors: f.linear(*tensors),
        *(numbers(*shape, seed=i) for i, shape in enumerate(shapes)),
        modules=(ops, torch.nn.functional),
        names="bias",
    )


def assert_as_torch(call: Any, *tensors: torch.Tensor, modules: Any = (ops, torch), names: str = "") -> None:
    """Check that `call(module, *tensors)` gives torch's result, or an error of the kind that torch raises."""
    ours, torchs = modules
    try:
        want = call(torchs, *tensors)
    except (RuntimeError, TypeError, OverflowError) as error:
        theirs = type(error)
    else:
        torch.testing.assert_close(call(ours, *tensors), want, equal_nan=True)
        return
    with pytest.raises(WorkbenchError, match=f"^{names}") as refused:
        call(ours, *tensors)
    assert isinstance(refused.value, theirs), refused.value


@pytest.mark.parametrize("beta", [1, 0, -0.0, 0.5])
@pytest.mark.parametrize("k", [4, 0])
def test_an_addend_broadcasts_into_the_result_as_in_torch(beta: float, k: int) -> None:
    """An addend that is not read, because beta is 0, has to fit too."""
    a, b = numbers(2, 3, k), numbers(2, k, 5, seed=1)
    for shape in ((2, 5), (4,), (2, 3, 5), (5,), (1, 1), (), (1, 3, 5), (2, 2, 5), (1, 2, 3, 5), (3, 1)):
        addend = numbers(*shape, seed=2)
        assert_as_torch(lambda f, c: f.addmm(c, a[0], b[0], beta=beta), addend, names="input")
        assert_as_torch(lambda f, c: f.baddbmm(c, a, b, beta=beta), addend, names="input")
        assert_as_torch(lambda f, c: f.addmm(c, a[0, :0], b[0], beta=beta), addend, names="input")
        assert_as_torch(lambda f, c: f.baddbmm(c, a[:0], b[:0], beta=beta), addend, names="input")


NUMBERS: list[Any] = [
    True, False, -0.0, 0.5, 2.5, -2.5, -1, 127, -128, 128, -129, 256, 10**12, 2**63, 10**30, -(2**63) - 1,
    70000.0, 1e39, float("inf"), float("nan"), 1j, 1 + 0j, 2.5 - 0j, "2", None, [2.0],
    np.float32(2.5), np.int64(2), np.array(2.5), torch.tensor(2.5), torch.tensor(3),
    torch.tensor(True), torch.tensor(1j), torch.tensor([2.0]), torch.tensor(2.0, requires_grad=True),
    torch.tensor(2.0, device="meta"),
]  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float16], ids=str)
def test_alpha_and_beta_take_torchs_numbers(dtype: torch.dtype, name: str, value: Any) -> None:
    """Results and refusals are torch's, also if K is 0."""
    for m, k in ((2, 3), (2, 0), (0, 3)):
        a, b, c = (torch.full(shape, 2).to(dtype) for shape in ((m, k), (k, 3), (m, 3)))
        assert_as_torch(lambda f, c, a=a, b=b: f.addmm(c, a, b, **{name: value}), c, names=name)
        assert_as_torch(lambda f, c, a=a, b=b: f.baddbmm(c, a[None], b[None], **{name: value}), c, names=name)


@pytest.mark.parametrize("alpha", [0, -0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("beta", [0, 1, 0.5, float("inf")])
def test_alphas_that_make_nan_give_torchs_results(alpha: float, beta: float) -> None:
    """inf and NaN as alpha act as in torch; 0 drops the product of two matrices, and K = 0 every product."""
    nan, b, c = torch.full((3, 4), float("nan")), torch.ones(4, 5), torch.ones(3, 5)
    for k in (4, 0):
        for dtype in (torch.float32, torch.float64):
            tensors = [t.to(dtype) for t in (c, nan[:, :k], b[:k])]
            assert_as_torch(lambda f, c, a, b: f.addmm(c, a, b, alpha=alpha, beta=beta), *tensors)
            if alpha == 0 and k:  # the next test's: torch on the CPU multiplies small batches by 0
                continue
            tensors = [t[None] for t in tensors]
            assert_as_torch(lambda f, c, a, b: f.baddbmm(c, a, b, alpha=alpha, beta=beta), *tensors)


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("beta", [0, 1])
def test_an_alpha_of_zero_drops_the_product_on_a_gpu(name: str, value: float, beta: float) -> None:
    """BLAS on a GPU reads neither operand if alpha is 0, whatever their number of dimensions."""
    batch = (2,) if name == "baddbmm" else ()
    addend = numbers(*batch, 20, 30, dtype=torch.float32)
    a, b = (torch.full((*batch, *sizes), value) for sizes in ((20, 40), (40, 30)))
    with device.pretend("sm_90"):
        got = getattr(ops, name)(addend, a, b, alpha=0, beta=beta)
    assert torch.equal(got, addend * beta)


def test_mm_of_infinities_and_nan_agrees_with_torch() -> None:
    a, b = numbers(20, 30, dtype=torch.float32), numbers(30, 40, dtype=torch.float32)
    a[3, 5], a[4, 6], b[7, 8] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(ops.mm(a, b), a @ b, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_torchs_dtypes(dtype: torch.dtype) -> None:
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


def test_out_is_written_and_resized_if_empty() -> None:
    a, b = numbers(3, 4), numbers(4, 5)
    out = torch.empty(5, 3, dtype=torch.float64).t()
    assert ops.mm(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    empty = torch.empty(0, dtype=torch.float64)
    assert ops.matmul(a, b, out=empty).shape == (3, 5)
    with pytest.raises(TensorMismatchError, match="out"):
        ops.mm(a, b, out=torch.empty(3, 3, dtype=torch.float64))


PRODUCTS: dict[str, Any] = {
    "mm": lambda f, a, b, c, **kwargs: f.mm(a, b, **kwargs),
    "matmul": lambda f, a, b, c, **kwargs: f.matmul(a, b, **kwargs),
    "matmul of a vector": lambda f, a, b, c, **kwargs: f.matmul(a, b[:, 0], **kwargs),
    "bmm": lambda f, a, b, c, **kwargs: f.bmm(a[None], b[None], **kwargs),
    "addmm": lambda f, a, b, c, **kwargs: f.addmm(c, a, b, **kwargs),
    "baddbmm": lambda f, a, b, c, **kwargs: f.baddbmm(c, a[None], b[None], **kwargs),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_out_of_fp32_fp64_and_bf16_is_taken_or_refused_as_in_torch(product: Any) -> None:
    """Autocast does not touch a product that is written into out."""
    tensors = [numbers(*shape, seed=i, dtype=torch.float32) for i, shape in enumerate(((3, 4), (4, 5), (5,)))]
    for dtype, is_autocast in itertools.product(
        (torch.float32, torch.float64, torch.bfloat16), (False, True)
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
            assert_as_torch(
                lambda f, *tensors, dtype=dtype: product(f, *tensors, out=torch.empty(0, dtype=dtype)),
                *tensors,
                names="out",
            )


FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def small(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(torch.float32).to(dtype)


@pytest.mark.parametrize("of_addend", [torch.bfloat16, *FP8], ids=str)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_products_take_addends(dtype: torch.dtype, of_addend: torch.dtype) -> None:
    a, b = small(2, 9, 20, dtype=dtype), small(2, 20, 7, dtype=dtype, seed=1)
    c = small(7, dtype=of_addend, seed=2)
    for got, f, tensors, options in (
        (ops.addmm, torch.addmm, (c, a[0], b[0]), {"alpha": 2, "beta": 0.5}),
        (ops.baddbmm, torch.baddbmm, (c, a, b), {"alpha": 2, "beta": 0.5}),
        (ops.addmm, torch.addmm, (c, a[0], b[0]), {"beta": 0}),
        (ops.linear, torch.nn.functional.linear, (a, b[0].t(), c), {}),
    ):
        call: Any = f
        want = call(*(t.float() for t in tensors), **options).bfloat16()
        for is_autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.float16, enabled=is_autocast):
                result = got(*tensors, **options)
            assert result.dtype == torch.bfloat16
            assert torch.equal(result, want)


def test_fp8_products_have_gradients_of_addends_only() -> None:
    """The bf16 addend gets a gradient; a product with another tensor that requires one is refused."""
    a, b = small(9, 20, dtype=FP8[0]), small(20, 7, dtype=FP8[0], seed=1)
    bias = small(7, dtype=torch.bfloat16, seed=2).requires_grad_()
    (of_bias,) = torch.autograd.grad(ops.linear(a, b.t(), bias).sum(), bias)
    assert torch.equal(of_bias, torch.full((7,), 9, dtype=torch.bfloat16))
    followed = a.clone().requires_grad_()
    for name, call in {
        "input": lambda: ops.matmul(followed, b),
        "mat1": lambda: ops.addmm(bias, followed, b),
        "other": lambda: ops.matmul(b.t(), followed.t()),
    }.items():
        with pytest.raises(TensorMismatchError, match=f"^{name}: .*requires grad"):
            call()
        with torch.no_grad():
            assert call().dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_products_are_exact_bf16(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-3, 4, shape).to(torch.float32).to(dtype) for shape in ((9, 20), (20, 7)))
    got = ops.matmul(a, b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())


def test_meta_tensors_have_results_without_data() -> None:
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta")
    assert ops.matmul(a, b).shape == (2, 3, 5)
    assert ops.linear(a, b.t()).is_meta


def test_negated_views_are_multiplied_by_their_values() -> None:
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
def test_wrong_operands_are_refused(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        call()
    assert isinstance(refused.value, WorkbenchError)


def test_gradients_have_torchs_strides() -> None:
    """With other strides, autograd would copy the gradients of weights in every step."""
    x, w = numbers(5, 3).requires_grad_(), numbers(4, 3, seed=1).requires_grad_()
    for module in (torch.nn.functional, ops):
        of_x, of_w = torch.autograd.grad(module.linear(x, w).sum(), (x, w))
        assert (of_x.stride(), of_w.stride()) == ((3, 1), (3, 1))
    a, b = numbers(3, 5).t().requires_grad_(), numbers(3, 4, seed=1).requires_grad_()
    found = [torch.autograd.grad((module.mm(a, b) * 2).sum(), (a, b)) for module in (torch, ops)]
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
