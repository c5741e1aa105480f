"""Fused operators agree with their parts, in any dtype and with batches, and have torch's gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.everything import some_of
from tests.ops.test_gemm import assert_as_accurate_as_torch, numbers
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    NumberRangeError,
    TensorMismatchError,
    UnknownNameError,
    UnsupportedDtypeError,
)
from workbench.kernels import epilogues, reference
from workbench.kernels.gemm import products

REDUCTIONS = [f"matmul_{name}" for name in ("sum", "mean", "norm", "amax", "amin", "logsumexp")]
# name -> the shapes of the operands behind the first one, which is (..., m, k).
SHAPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "matmul_layer_norm": (("k", "n"), ("n",), ("n",)),
    "matmul_rms_norm": (("k", "n"), ("n",)),
    "matmul_softmax": (("k", "n"),),
    "matmul_log_softmax": (("k", "n"),),
    **dict.fromkeys(REDUCTIONS, (("k", "n"),)),
    "matmul_matmul": (("k", "n"), ("n", "l")),
    "swiglu": (("k", "n"), ("k", "n")),
    "geglu": (("k", "n"), ("k", "n")),
}
names = pytest.mark.parametrize("name", SHAPES)


def given(name: str, *rows: int, dtype: torch.dtype = torch.float64, **sizes: int) -> list[torch.Tensor]:
    """Return the operator's tensors, the first with `rows` and k columns."""
    sizes = {"k": 6, "n": 9, "l": 4} | sizes
    shapes = [(*rows, sizes["k"]), *[tuple(sizes[each] for each in shape) for shape in SHAPES[name]]]
    return [numbers(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


@names
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_results_are_as_accurate_as_torchs_composition(name: str, dtype: torch.dtype) -> None:
    tensors = given(name, 20, dtype=dtype, n=40)
    got, torchs = (getattr(module, name)(*tensors) for module in (ops, reference))
    assert_as_accurate_as_torch(got, torchs, getattr(reference, name)(*[t.double() for t in tensors]))


@names
def test_rows_longer_than_a_tile_agree_with_references(name: str) -> None:
    tensors = given(name, 3, dtype=torch.float32, n=700)
    got, want = (getattr(module, name)(*tensors) for module in (ops, reference))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@names
@pytest.mark.parametrize("batch", [(2,), (2, 1, 3), (0,)], ids=str)
def test_batches_in_any_layout_agree_with_references(name: str, batch: tuple[int, ...]) -> None:
    first, *others = given(name, *batch, 5)
    expanded = [t.expand(batch[-1], *t.shape) if t.dim() == 2 else t for t in others]
    for each in ([first, *others], [first.mT.contiguous().mT, *expanded]):
        got, want = (getattr(module, name)(*each) for module in (ops, reference))
        torch.testing.assert_close(got, want)


@names
@pytest.mark.parametrize("batch", [(), (1,), (1, 1)], ids=str)
def test_one_input_broadcasts_to_a_batch_of_weights(name: str, batch: tuple[int, ...]) -> None:
    """The input may have fewer dimensions than the weights; gradients are right too."""
    first, *others = given(name, *batch, 5)
    expanded = [t.expand(2, 3, *t.shape) if t.dim() == 2 else t for t in others]
    got, want = (getattr(module, name)(first, *expanded) for module in (ops, reference))
    torch.testing.assert_close(got, want)
    one = [t.expand(1, *t.shape) if t.dim() == 2 else t for t in others]
    assert_gradients(name, [t.requires_grad_() for t in (first, *one)])


@names
def test_gradients_of_batches_agree_with_references(name: str) -> None:
    tensors = [t.requires_grad_() for t in given(name, 2, 3)]
    assert_gradients(name, tensors)


@pytest.mark.parametrize(
    ("name", "option"),
    [("geglu", "tanh"), *(("matmul_matmul", each) for each in ("relu", "silu", "gelu_tanh", "sigmoid"))],
)
def test_gradients_with_other_activations_agree_with_references(name: str, option: str) -> None:
    assert_gradients(name, [t.requires_grad_() for t in given(name, 3)], option)


def assert_gradients(name: str, tensors: list[torch.Tensor], *options: str) -> None:
    pairs = []
    for module in (ops, reference):
        result = getattr(module, name)(*tensors, *options)
        pairs.append(torch.autograd.grad(result, tensors, numbers(*result.shape, seed=9)))
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("name", ["matmul_layer_norm", "matmul_rms_norm", "swiglu", "geglu"])
def test_gradients_agree_with_finite_differences(name: str) -> None:
    tensors = [t.requires_grad_() for t in given(name, 2, k=2, n=3)]
    assert torch.autograd.gradcheck(getattr(ops, name), tensors, fast_mode=True)


@pytest.mark.parametrize("name", ["matmul_layer_norm", "matmul_rms_norm"])
@pytest.mark.parametrize("dtype", products.SUPPORTED, ids=str)
def test_each_gradient_has_its_tensors_dtype(name: str, dtype: torch.dtype) -> None:
    """The backward takes every combination of dtypes that the forward takes."""
    matrices = given(name, 5, dtype=dtype)[:2]
    for first, second in some_of([*itertools.product(products.SUPPORTED, repeat=2)], 6):
        vectors = [t.to(d) for t, d in zip(given(name, 5)[2:], (first, second), strict=False)]
        tensors = [t.clone().requires_grad_() for t in (*matrices, *vectors)]
        result = getattr(ops, name)(*tensors)
        assert result.dtype == dtype
        got = torch.autograd.grad(result, tensors, numbers(5, 9, dtype=dtype, seed=9))
        wide = [t.detach().double().requires_grad_() for t in tensors]
        product = (wide[0] @ wide[1]).to(dtype).double()  # rounded like the composition's product
        norm = getattr(reference, name.removeprefix("matmul_"))(product, (9,), *wide[2:])
        want = torch.autograd.grad(norm, wide, numbers(5, 9, dtype=dtype, seed=9).double())
        steps = 32 * max(torch.finfo(d).eps for d in (dtype, first, second))
        for tensor, one, exact in zip(tensors, got, want, strict=True):
            assert one.dtype == tensor.dtype
            torch.testing.assert_close(one.double(), exact, rtol=steps, atol=steps * exact.abs().max().item())


@pytest.mark.parametrize("name", ["matmul_layer_norm", "matmul_softmax", "matmul_logsumexp", "matmul_norm"])
def test_gradients_agree_with_float64_where_products_overflow_fp16(name: str) -> None:
    """The forward and backward kernels hold products in fp32, until the epilogue makes them small."""
    wide = [numbers(*shape, seed=i) for i, shape in enumerate([(8, 64), (64, 16)])]
    given = [(60 * t).half().requires_grad_() for t in wide]
    exact = [t.detach().double().requires_grad_() for t in given]
    assert (given[0] @ given[1]).isinf().any()
    result = getattr(ops, name)(*given, epilogue=epilogues.scale(1e-3))
    product = 1e-3 * (exact[0] @ exact[1])
    meant = {
        "matmul_layer_norm": lambda: torch.nn.functional.layer_norm(product, (16,)),
        "matmul_softmax": lambda: product.softmax(-1),
        "matmul_logsumexp": lambda: product.logsumexp(-1),
        "matmul_norm": lambda: product.norm(dim=-1),
    }[name]()
    weights = numbers(*meant.shape, seed=5)
    found = torch.autograd.grad((result.double() * weights).sum(), given)
    wanted = torch.autograd.grad((meant * weights).sum(), exact)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=4e-3 * want.abs().max().item())


@pytest.mark.parametrize("name", ["swiglu", "matmul_matmul"])
def test_gates_beyond_fp16_give_results_and_gradients_of_zeros(name: str) -> None:
    """silu of -10^5 and its slope are 0. In fp16 the product would be -inf, for which both are NaN."""
    given = [torch.full((16, 16), value, dtype=torch.float16) for value in (100.0, -70.0, 0.5)]
    followed = [t.requires_grad_() for t in given]
    activation = ("silu",) if name == "matmul_matmul" else ()
    result = getattr(ops, name)(*followed, *activation)
    assert result.eq(0).all()
    for gradient in torch.autograd.grad(result.sum(), followed):
        assert gradient.eq(0).all()


def test_only_tensors_that_require_grad_get_a_gradient() -> None:
    a, b, _, bias = given("matmul_layer_norm", 3)
    ops.matmul_layer_norm(a, b.requires_grad_(), None, bias.requires_grad_()).sum().backward()
    assert a.grad is None
    assert b.grad is not None
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 3))


def test_a_second_derivative_is_refused() -> None:
    tensors = [t.requires_grad_() for t in given("swiglu", 3)]
    (first,) = torch.autograd.grad(ops.swiglu(*tensors).sum(), tensors[:1], create_graph=True)
    with pytest.raises(TensorMismatchError, match="second derivative"):
        first.sum().backward()


def test_argmax_has_no_gradient_and_keepdim_keeps_the_dimension() -> None:
    a, b = given("matmul_sum", 3)
    got = ops.matmul_argmax(a.requires_grad_(), b, True)
    assert torch.equal(got, (a @ b).argmax(-1, True))
    assert not got.requires_grad
    assert ops.matmul_amax(a, b, keepdim=True).shape == (3, 1)


def test_gate_and_up_may_be_halves_of_one_weight() -> None:
    x, weight = numbers(5, 6), numbers(6, 14, seed=1)
    gate, up = weight.chunk(2, -1)
    torch.testing.assert_close(ops.swiglu(x, gate, up), reference.swiglu(x, gate, up))
    linear = numbers(14, 6, seed=2)
    gate, up = linear[:7].t(), linear[7:].t()
    torch.testing.assert_close(ops.geglu(x, gate, up), reference.geglu(x, gate, up))


def test_a_long_pair_of_products_agrees_with_its_reference() -> None:
    tensors = given("matmul_matmul", 2, dtype=torch.float32, k=300, n=300, l=20)
    got, want = (module.matmul_matmul(*tensors, "relu") for module in (ops, reference))
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("cols", [1, 3, 130, 192, 200, 300, 600, 1100])
def test_logsumexp_passes_nan_on(cols: int) -> None:
    """With a maximum that skips NaN, a row of NaN alone would give the result of an empty row."""
    a, b = torch.ones(4, 4), numbers(4, cols, dtype=torch.float32).abs()
    a[0, 1], a[2, 0], a[3, 0] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(ops.matmul_logsumexp(a, b), reference.matmul_logsumexp(a, b), equal_nan=True)
    # The operands are infinite already: with fused additions, products that overflow give inf.
    infinite = torch.tensor([[float("inf")], [float("-inf")]]).repeat(1, cols)
    assert ops.matmul_logsumexp(torch.ones(1, 2), infinite).isnan().all()


@names
def test_negated_views_agree_with_references_and_meta_tensors_give_shapes(name: str) -> None:
    first, *others = given(name, 4)
    want = getattr(reference, name)(-first, *others)
    torch.testing.assert_close(getattr(ops, name)(torch._neg_view(first), *others), want)
    assert getattr(ops, name)(*[t.to("meta") for t in (first, *others)]).shape == want.shape


def test_autocast_computes_in_the_lower_precision() -> None:
    tensors = given("swiglu", 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = ops.swiglu(*tensors)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), reference.swiglu(*tensors), atol=0.1, rtol=0.05)


A, B = numbers(4, 6), numbers(6, 9)
NO_TENSOR: Any = [1.0]


@pytest.mark.parametrize(
    ("function", "args", "error", "says"),
    [
        (ops.matmul_softmax, (A, NO_TENSOR), ArgumentTypeError, "other"),
        (ops.matmul_softmax, (A.int(), B.int()), UnsupportedDtypeError, "input"),
        (ops.matmul_softmax, (A, B.float()), TensorMismatchError, "float32"),
        (ops.matmul_softmax, (A, B.t()), TensorMismatchError, r"other .* 6 and 9 along K\. Give strided"),
        (ops.matmul_softmax, (A[0], B), DimensionError, "1 dimensions"),
        (ops.matmul_layer_norm, (A, B, A[0]), TensorMismatchError, "9 columns"),
        (ops.matmul_layer_norm, (A, B, B[0].int()), TensorMismatchError, "is torch.int32, .* in float16"),
        (ops.matmul_layer_norm, (A, B, NO_TENSOR), ArgumentTypeError, "weight"),
        (ops.matmul_layer_norm, (A, B, None, None, "x"), ArgumentTypeError, "eps"),
        (ops.matmul_layer_norm, (A, B, None, NO_TENSOR), ArgumentTypeError, "bias: got a list"),
        (ops.matmul_layer_norm, (A, B, None, A[0]), TensorMismatchError, "bias: bias has shape"),
        (ops.matmul_layer_norm, (A, B, None, None, 10**400), NumberRangeError, "eps"),
        (ops.matmul_rms_norm, (A, B, A[0]), TensorMismatchError, r"other, weight: weight has .*\(n,\) for"),
        (ops.matmul_sum, (A, B[:, :0]), TensorMismatchError, "other has no columns, .* with n > 0"),
        (ops.matmul_sum, (A, B, 1), ArgumentTypeError, "keepdim"),
        (ops.matmul_matmul, (A, B, B), TensorMismatchError, "input @ mat1 has 9 columns, mat2 6 rows"),
        (ops.matmul_matmul, (A, B, B.t(), "swish"), UnknownNameError, "silu"),
        (ops.swiglu, (A, B, B[:, :3]), TensorMismatchError, "up"),
        (ops.swiglu, (A.float(), B, B), TensorMismatchError, "input is torch.float32, gate is torch"),
        (ops.geglu, (A, B, B, "erf"), InvalidArgumentError, "approximate"),
        (ops.geglu, (A.int(), B.int(), B.int()), UnsupportedDtypeError, "geglu takes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    function: Callable[..., Any], args: tuple[Any, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        function(*args)


@pytest.mark.parametrize(
    ("name", "cols"),
    [("layer_norm", 40), ("layer_norm", 600), ("softmax", 40), ("amax", 40), ("logsumexp", 70)],
)
def test_an_epilogue_before_a_row_operator_is_applied_and_differentiated(name: str, cols: int) -> None:
    """Bias and residual have gradients too; long rows take two steps."""
    a, b = numbers(2, 3, 6).requires_grad_(), numbers(6, cols, seed=1).requires_grad_()
    vector, residual = (
        numbers(cols, seed=2).requires_grad_(),
        numbers(2, 3, cols, seed=3).requires_grad_(),
    )
    chain = epilogues.bias(vector) | epilogues.add(residual) | epilogues.silu()
    got = getattr(ops, f"matmul_{name}")(a, b, epilogue=chain)
    x = torch.nn.functional.silu(a @ b + vector + residual)
    along = (x.shape[-1:],) if name == "layer_norm" else (-1,)
    want = getattr(reference, name)(x, *along)
    torch.testing.assert_close(got, want)
    pairs = [
        torch.autograd.grad(result, (a, b, vector, residual), numbers(*result.shape, seed=9))
        for result in (got, want)
    ]
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("name", ["softmax", "sum"])
def test_gradients_of_a_batch_have_its_dropout(name: str) -> None:
    """Dropout depends on an element's place in its own matrix, even if all rows could be one matrix."""
    tensors = [numbers(2, 5, 6).requires_grad_(), numbers(6, 9, seed=1).requires_grad_()]
    chain = epilogues.dropout(0.5, 7)
    got = getattr(ops, f"matmul_{name}")(*tensors, epilogue=chain)
    want = getattr(reference, name)(ops.fused_matmul(*tensors, epilogue=chain), -1)
    torch.testing.assert_close(got, want)
    pairs = [torch.autograd.grad(each, tensors, numbers(*each.shape, seed=9)) for each in (got, want)]
    torch.testing.assert_close(*pairs)


@triton.jit
def chosen_by(tile, operands, place):
    return tl.where(operands[0] > 0, tile, 0.0)


def test_an_operand_that_only_chooses_has_a_gradient_of_0() -> None:
    a, b, gate = (numbers(5, 5, seed=seed).requires_grad_() for seed in range(3))
    chain = epilogues.own(chosen_by, gate, meaning=lambda x, given, place: torch.where(given[0] > 0, x, 0.0))
    for operator in (ops.matmul_softmax, ops.fused_matmul):
        (of_gate,) = torch.autograd.grad(operator(a, b, epilogue=chain).sum(), gate)
        assert torch.equal(of_gate, torch.zeros_like(gate))


def test_an_epilogue_before_a_row_operator_refuses_casts_and_tensors_that_do_not_fit() -> None:
    with pytest.raises(TensorMismatchError, match="an operation on rows follows it"):
        ops.matmul_softmax(A, B, epilogue=epilogues.cast(torch.float8_e5m2))
    with pytest.raises(TensorMismatchError, match="epilogue"):
        ops.matmul_argmax(A, B, epilogue=epilogues.add(A))
    assert torch.equal(ops.matmul_argmax(A, B, epilogue=epilogues.scale(-1.0)), (A @ B).argmin(-1))
