"""Fused products: torch's results step by step, gradients, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import triton
import triton.language as tl  # the interpreter needs it in the module of a jit function
from torch.nn import functional

from tests.ops.test_gemm import assert_as_accurate_as_torch, numbers
from workbench import lens, ops
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
)
from workbench.kernels import gemm, reference
from workbench.kernels.epilogues import (
    Epilogue,
    ImageFrame,
    add,
    bias,
    cast,
    clamp,
    column_scale,
    dropout,
    fast_gelu,
    gelu,
    multiply,
    own,
    permuted,
    relu,
    residual,
    row_scale,
    scale,
    sigmoid,
    silu,
)

OFFS = torch.tensor([3, 3, 12], dtype=torch.int32)
GROUP = torch.tensor([0] * 3 + [2] * 9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("left", "right"), [((33, 20), (20, 18)), ((3, 17, 20), (20, 18)), ((2, 1, 5, 20), (3, 20, 18))], ids=str
)
def test_add_bias_fast_gelu_is_as_accurate_as_torch(
    left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype
) -> None:
    a, b = numbers(*left, dtype=dtype), numbers(*right, dtype=dtype, seed=1)
    product = a.double() @ b.double()
    first, second = numbers(*product.shape, dtype=dtype, seed=2), numbers(18, dtype=dtype, seed=3)
    chain = add(first) | bias(second) | fast_gelu()
    torchs = functional.gelu(a @ b + first + second, approximate="tanh")
    exact = functional.gelu(product + first + second, approximate="tanh")
    assert_as_accurate_as_torch(ops.fused_matmul(a, b, epilogue=chain), torchs, exact)
    assert_as_accurate_as_torch(reference.fused_matmul(a.double(), b.double(), epilogue=chain), exact, exact)


def test_a_batch_with_any_strides_of_operands_agrees_with_torch() -> None:
    """The batch is one matrix where strides allow it, and else a batch, with the same result."""
    a, b, d = numbers(2, 9, 20), numbers(20, 18, seed=1), numbers(2, 9, 18, seed=2)
    for chain, want in (
        (row_scale(d[..., 0]) | add(d) | bias(d[0, 0]), a @ b * d[..., :1] + d + d[0, 0]),
        (row_scale(d[..., 0]) | bias(d[:, 0]), a @ b * d[..., :1] + d[:, :1]),
        (row_scale(d[0, :, 0]) | multiply(d.mT.contiguous().mT), a @ b * d[0, :, :1] * d),
        (add(d[:, :1]) | dropout(0.0, 3), a @ b + d[:, :1]),
        (column_scale(d[0, 0]) | scale(2), a @ b * d[0, 0] * 2),
    ):
        torch.testing.assert_close(ops.fused_matmul(a, b, epilogue=chain), want)


@pytest.mark.parametrize(
    ("dtype", "chain", "out_dtype", "result"),
    [
        (torch.float16, relu(), None, torch.float16),
        (torch.float16, relu(), torch.float32, torch.float32),
        (torch.float32, cast(torch.int8), None, torch.int8),
        (torch.float32, cast(torch.float8_e5m2), None, torch.float8_e5m2),
        (torch.int8, relu(), None, torch.int32),
        (torch.int8, scale(0.5), None, torch.float32),
        (torch.int8, scale(0.5), torch.bfloat16, torch.bfloat16),
        (torch.float8_e4m3fn, scale(0.5), None, torch.bfloat16),
    ],
    ids=str,
)
def test_results_have_the_promised_dtype(dtype: Any, chain: Epilogue, out_dtype: Any, result: Any) -> None:
    """The results are small whole numbers, which every dtype holds."""
    a, b = torch.eye(8), torch.arange(64).view(8, 8) % 7 * 2 - 6.0
    got = ops.fused_matmul(a.to(dtype), b.to(dtype), epilogue=chain, out_dtype=out_dtype)
    assert got.dtype == result
    assert torch.equal(got.float(), chain.meaning(b).float())


def test_each_group_has_its_own_bias() -> None:
    a, w, v, d = (numbers(*shape, seed=i) for i, shape in enumerate([(15, 8), (3, 8, 10), (3, 10), (15, 10)]))
    got = ops.fused_grouped_mm(a, w, offs=OFFS, epilogue=bias(v) | silu() | residual(d))
    product = torch.bmm(a[:12, None], w[GROUP])[:, 0]
    torch.testing.assert_close(got[:12], functional.silu(product + v[GROUP]) + d[:12])
    assert (got[12:] == 0).all()
    assert ops.fused_grouped_mm(a, w, offs=OFFS, epilogue=cast(torch.int8)).dtype == torch.int8


def test_zero_groups_give_results_and_gradients_of_zeros() -> None:
    a, vector = numbers(4, 16).requires_grad_(), numbers(0, 8).requires_grad_()
    offs = torch.zeros(0, dtype=torch.int32)
    result = ops.fused_grouped_mm(a, numbers(0, 16, 8), offs=offs, epilogue=bias(vector))
    found = torch.autograd.grad(result.sum(), (a, vector))
    for each in (result, *found):
        assert torch.equal(each, torch.zeros_like(each))


def test_groups_of_columns_and_of_the_summed_dimension_agree_with_references() -> None:
    a, w, v = numbers(3, 6, 8), numbers(8, 15, seed=1), numbers(3, 6, seed=2)
    got = ops.fused_grouped_mm(a, w, offs=OFFS, epilogue=row_scale(v) | relu())
    product = (a[GROUP] @ w.T[:12, :, None])[..., 0].T
    torch.testing.assert_close(got[:, :12], (product * v[GROUP].T).relu())
    a, w, v = numbers(6, 12), numbers(12, 8, seed=1), numbers(3, 8, seed=2)
    got = ops.fused_grouped_mm(a, w, offs=OFFS, epilogue=bias(v) | sigmoid())
    torch.testing.assert_close(got, torch.sigmoid(reference.grouped_mm(a, w, offs=OFFS) + v[:, None]))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("images", [0, 1, 2])
def test_a_fused_convolution_agrees_with_torchs_separate_steps(
    images: int, memory_format: torch.memory_format
) -> None:
    x, w = numbers(images, 4, 7, 6), numbers(6, 2, 3, 3, seed=1)
    v, d = numbers(6, seed=2), numbers(images, 6, 4, 3, seed=3)
    x, d = (t.contiguous(memory_format=memory_format) for t in (x, d))
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    chain = add(d) | column_scale(v) | multiply(d[:, :1, 1:2]) | relu()
    got = ops.fused_conv2d(x, w, v, **options, epilogue=chain)
    plain = functional.conv2d(x, w, v, **options)
    torch.testing.assert_close(got, ((plain + d) * v.view(-1, 1, 1) * d[:, :1, 1:2]).relu())
    assert got.stride() == ops.conv2d(x, w, v, **options).stride()
    if images:
        (one,) = ops.fused_conv2d(x[:1], w, v, **options, epilogue=chain_of(d[0]))
        torch.testing.assert_close(ops.fused_conv2d(x[0], w, v, **options, epilogue=chain_of(d[0])), one)


def test_kept_launches_are_not_used_for_another_epilogue() -> None:
    """The epilogues differ in their functor, or in its factor."""
    x, w, a, b = numbers(1, 4, 5, 5), numbers(6, 4, 3, 3, seed=1), numbers(6, 8), numbers(8, 5, seed=2)
    groups, offs = numbers(3, 8, 5, seed=3), torch.tensor([1, 3, 6], dtype=torch.int32)
    calls: list[tuple[Callable[..., torch.Tensor], torch.Tensor]] = [
        (lambda chain: ops.fused_conv2d(x, w, epilogue=chain), functional.conv2d(x, w)),
        (lambda chain: ops.fused_matmul(a, b, epilogue=chain), a @ b),
        (lambda chain: ops.fused_grouped_mm(a, groups, offs=offs, epilogue=chain),
         reference.grouped_mm(a, groups, offs=offs)),
    ]  # fmt: skip
    for call, plain in calls:
        for _ in range(2):
            torch.testing.assert_close(call(relu()), plain.relu())
            torch.testing.assert_close(call(sigmoid()), plain.sigmoid())
            torch.testing.assert_close(call(scale(2.0)), plain * 2)
            torch.testing.assert_close(call(scale(3.0)), plain * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("weight", "options"),
    [
        ((6, 4, 3, 3), {"padding": 1}),
        ((6, 4, 1, 1), {"memory_format": torch.channels_last}),
        ((4, 1, 3, 3), {"groups": 4, "stride": 2}),  # depthwise
        ((6, 2, 3, 3), {"groups": 2, "memory_format": torch.channels_last}),
    ],
    ids=str,
)
def test_a_convolution_may_be_stored_as_int8(
    weight: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    """The results are small whole numbers and halves, which are exact; some are beyond int8's range."""
    options = dict(options)
    format = options.pop("memory_format", torch.contiguous_format)
    x = (numbers(2, 4, 7, 6) * 8).round().to(dtype).contiguous(memory_format=format)
    w, v = (numbers(*weight, seed=1) * 8).round().to(dtype), torch.arange(weight[0]).to(dtype)
    plain = functional.conv2d(x.double(), w.double(), v.double(), **options) / 2
    got = ops.fused_conv2d(x, w, v, **options, epilogue=scale(0.5) | cast(torch.int8))
    assert got.dtype == torch.int8
    assert got.stride() == ops.conv2d(x, w, v, **options).stride()
    assert plain.abs().max() > 128
    assert torch.equal(got.double(), plain.round().clamp(-128, 127))
    (one,) = ops.fused_conv2d(x[:1], w, v, **options, epilogue=cast(torch.int8), out_dtype=torch.int8)
    assert torch.equal(one.double(), (plain[0] * 2).clamp(-128, 127))


@pytest.mark.parametrize("out_dtype", [torch.int8, torch.int32, torch.float8_e4m3fn], ids=str)
def test_products_groups_and_convolutions_take_the_same_result_dtypes(out_dtype: torch.dtype) -> None:
    """A convolution of one tap and a single group are products too; every dtype holds the results."""
    a, b = torch.arange(32.0).view(4, 8) % 3, torch.arange(48.0).view(8, 6) % 2
    want = (a @ b).to(out_dtype)
    for got in (
        ops.fused_matmul(a, b, epilogue=relu(), out_dtype=out_dtype),
        ops.fused_grouped_mm(a, b[None], offs=ENDS[-1:] + 1, epilogue=relu(), out_dtype=out_dtype),
        ops.fused_conv2d(
            a[..., None, None], b.T[..., None, None], epilogue=relu(), out_dtype=out_dtype
        )[..., 0, 0],
    ):  # fmt: skip
        assert got.dtype == out_dtype
        assert torch.equal(got.float(), want.float())


def chain_of(image: torch.Tensor) -> Epilogue:
    return add(image) | gelu()


def test_dropout_of_a_grouped_convolution_agrees_with_its_meaning() -> None:
    drop = dropout(0.4, 7)
    x, w = numbers(2, 4, 5, 5), numbers(6, 2, 3, 3, seed=1)
    got = ops.fused_conv2d(x, w, groups=2, epilogue=drop)
    want = drop.meaning(functional.conv2d(x, w, groups=2), ImageFrame((2, 6, 3, 3), 2))
    torch.testing.assert_close(got, want)
    assert 0.2 < (got == 0).float().mean() < 0.6


LEAVES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "matrices": (
        lambda a, b, v, d, e: ops.fused_matmul(
            a, b,
            epilogue=bias(v) | gelu() | add(d) | multiply(e) | silu() | dropout(0.3, 2) | clamp(-0.8, 1.5)
            | scale(0.7),
        ),
        ((3, 2), (2, 3), (3,), (3, 1), (3, 3)),
    ),
    "a batch, permuted rows": (
        lambda a, b, v: ops.fused_matmul(a, b, epilogue=row_scale(v) | fast_gelu() | sigmoid()),
        ((2, 2, 2), (2, 2), (2,)),
    ),
    "stored otherwise": (
        lambda a, b: ops.fused_matmul(a, b, epilogue=relu() | permuted((3, 2, 2), (1, 0, 2))),
        ((3, 2), (2, 4)),
    ),
    "a batch, stored otherwise": (
        lambda a, b: ops.fused_matmul(a, b, epilogue=relu() | permuted((2, 3, 2, 2), (2, 0, 1, 3))),
        ((2, 3, 2), (2, 4)),
    ),
    "groups": (
        lambda a, b, v: ops.fused_grouped_mm(
            a, b, offs=torch.tensor([1, 3], dtype=torch.int32), epilogue=bias(v) | silu() | dropout(0.2, 3)
        ),
        ((4, 2), (2, 2, 2), (2, 2)),
    ),
    "images": (
        lambda x, w, v, d: ops.fused_conv2d(x, w, v, groups=2, epilogue=residual(d) | gelu()),
        ((1, 2, 3, 2), (2, 1, 2, 2), (2,), (1, 2, 2, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAVES.values(), ids=LEAVES)
def test_gradients_agree_with_finite_differences(
    case: tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]],
) -> None:
    function, shapes = case
    leaves = [numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


def test_gradients_of_bias_and_gelu_in_fp16_are_as_accurate_as_torch() -> None:
    a, b, v = (
        numbers(*shape, dtype=torch.float16, seed=i) for i, shape in enumerate([(20, 30), (30, 10), (10,)])
    )
    found = []
    for make, dtype in (
        (lambda a, b, v: ops.fused_matmul(a, b, epilogue=bias(v) | fast_gelu()), torch.float16),
        (lambda a, b, v: functional.gelu(a @ b + v, approximate="tanh"), torch.float16),
        (lambda a, b, v: functional.gelu(a @ b + v, approximate="tanh"), torch.float64),
    ):
        leaves = [t.to(dtype).requires_grad_() for t in (a, b, v)]
        found.append(torch.autograd.grad(make(*leaves).sum(), leaves))
    for got, torchs, exact in zip(*found, strict=True):
        assert_as_accurate_as_torch(got, torchs, exact)


def test_a_second_derivative_is_refused() -> None:
    a = numbers(3, 3).requires_grad_()
    (first,) = torch.autograd.grad(
        ops.fused_matmul(a, a, epilogue=silu()).sum(), a, create_graph=True
    )  # fmt: skip
    with pytest.raises(TensorMismatchError, match="second derivative"):
        first.sum().backward()


def test_empty_products_and_nan_give_torchs_results() -> None:
    a, b = numbers(4, 0, dtype=torch.float32), numbers(0, 5, dtype=torch.float32)
    v = torch.tensor([0, 1, -1, math.inf, math.nan])
    assert torch.equal(
        ops.fused_matmul(a, b, epilogue=bias(v) | relu()).nan_to_num(-7), v.relu().nan_to_num(-7).expand(4, 5)
    )
    assert ops.fused_matmul(a[:0], b, epilogue=gelu()).shape == (0, 5)
    assert ops.fused_grouped_mm(
        torch.ones(0, 4), torch.ones(2, 4, 3), offs=torch.zeros(2, dtype=torch.int32), epilogue=relu()
    ).shape == (0, 3)


def test_a_negated_addend_is_added_and_autocast_gives_its_dtype() -> None:
    a, b = numbers(4, 8, dtype=torch.float32), numbers(8, 4, dtype=torch.float32, seed=1)
    negated = torch.complex(a, a).conj().imag[:, :4]
    assert negated.is_neg()
    torch.testing.assert_close(ops.fused_matmul(a, b, epilogue=add(negated)), a @ b - a[:, :4])
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.fused_matmul(a, b, epilogue=relu()).dtype == torch.bfloat16


@triton.jit
def doubled(tile, operands, place):
    return tile * 2


A, B, W = torch.ones(4, 8), torch.ones(8, 6), torch.ones(3, 8, 6)
ENDS = torch.tensor([1, 2, 3], dtype=torch.int32)
X, TAPS = torch.ones(1, 2, 4, 4), torch.ones(6, 2, 3, 3)
TOO_LARGE: Any = Fraction(10**400)
WRONG: dict[str, tuple[Callable[[], object], type[WorkbenchError], str]] = {
    "no epilogue": (
        lambda: ops.fused_matmul(A, B, epilogue=relu), ArgumentTypeError, "epilogue",  # type: ignore[arg-type]
    ),
    "a vector": (lambda: ops.fused_matmul(A[0], B, epilogue=relu()), TensorMismatchError, "input: 1 dim"),
    "other lengths": (lambda: ops.fused_matmul(A, A, epilogue=relu()), TensorMismatchError, "torch.matmul"),
    "no product": (lambda: ops.fused_matmul(A.int(), B.int(), epilogue=relu()), UnsupportedDtypeError, "int"),
    "nested": (
        lambda: ops.fused_matmul(A, B, epilogue=add(torch.nested.nested_tensor([A]))),
        TensorMismatchError, r"\[0\], add: nested",
    ),
    "a fraction": (lambda: scale(TOO_LARGE), InvalidArgumentError, "factor: got Fraction"),
    "an addend": (lambda: ops.fused_matmul(A, B, epilogue=add(A)), TensorMismatchError, r"\[0\], add"),
    "no dtype": (
        lambda: ops.fused_matmul(A, B, epilogue=relu(), out_dtype="fp16"), ArgumentTypeError, "out_dtype",  # type: ignore[arg-type]
    ),
    "a result": (
        lambda: ops.fused_matmul(A, B, epilogue=relu(), out_dtype=torch.int64), UnsupportedDtypeError,
        "int64",
    ),
    "two dtypes": (
        lambda: ops.fused_matmul(A, B, epilogue=cast(torch.int8), out_dtype=torch.float16),
        TensorMismatchError, "casts to torch.int8. Give torch.int8, or None",
    ),
    "whole gradients": (
        lambda: ops.fused_matmul(A.clone().requires_grad_(), B, epilogue=cast(torch.int8)),
        TensorMismatchError, "requires grad",
    ),
    "no meaning": (
        lambda: ops.fused_matmul(A.clone().requires_grad_(), B, epilogue=own(doubled)),
        WorkbenchError, r"epilogue\[0\]\.meaning",
    ),
    "no meaning behind a bias": (
        lambda: ops.fused_conv2d(X.clone().requires_grad_(), TAPS, TAPS[:, 0, 0, 0], epilogue=own(doubled)),
        WorkbenchError, r"epilogue\[0\]\.meaning",
    ),
    "no meaning without channels": (
        lambda: ops.fused_conv2d(X[:, :0], TAPS[:, :0], TAPS[:, 0, 0, 0], epilogue=relu() | own(doubled)),
        WorkbenchError, r"epilogue\[1\]\.meaning",
    ),
    "an addend of instances": (
        lambda: ops.fused_conv2d.instances(X, TAPS, TAPS[:, 0, 0, 0], epilogue=add(A)),
        TensorMismatchError, r"epilogue\[0\], add",
    ),
    "whole numbers of floats": (
        lambda: ops.fused_matmul(A, B, epilogue=Epilogue(), out_dtype=torch.int8), TensorMismatchError,
        "out_dtype: torch.int8",
    ),
    "floats of whole numbers": (
        lambda: ops.fused_matmul(A.char(), B.char(), epilogue=Epilogue(), out_dtype=torch.float16),
        TensorMismatchError, "out_dtype: torch.float16",
    ),
    "whole numbers of groups": (
        lambda: ops.fused_grouped_mm(A, W, offs=ENDS, epilogue=Epilogue(), out_dtype=torch.int32),
        TensorMismatchError, "out_dtype: torch.int32",
    ),
    "whole numbers of images": (
        lambda: ops.fused_conv2d(X, TAPS, TAPS[:, 0, 0, 0], epilogue=Epilogue(), out_dtype=torch.int8),
        TensorMismatchError, "out_dtype: torch.int8",
    ),
    "fp8 of fp64": (
        lambda: ops.fused_grouped_mm(
            A.double(), W.double(), offs=ENDS, epilogue=relu(), out_dtype=torch.float8_e5m2
        ),
        TensorMismatchError, r"out_dtype: torch.float8_e5m2 of .*cast\(torch.float8_e5m2\)",
    ),
    "no tensor": (
        lambda: ops.fused_grouped_mm(A, W, offs=3, epilogue=relu()), ArgumentTypeError, "offs",  # type: ignore[arg-type]
    ),
    "groups' dtype": (
        lambda: ops.fused_grouped_mm(A.char(), W.char(), offs=ENDS, epilogue=relu()),
        UnsupportedDtypeError, "int8",
    ),
    "groups' lengths": (
        lambda: ops.fused_grouped_mm(A, W.mT, offs=ENDS, epilogue=relu()), TensorMismatchError, "along K",
    ),
    "groups' rows": (
        lambda: ops.fused_grouped_mm(A, W, offs=ENDS, epilogue=add(torch.ones(3, 4, 6))),
        TensorMismatchError, "same for all rows of a group",
    ),
    "groups permuted": (
        lambda: ops.fused_grouped_mm(A, W, offs=ENDS, epilogue=permuted((4, 6), (1, 0))),
        TensorMismatchError, "permutes",
    ),
    "images permuted": (
        lambda: ops.fused_conv2d(X, TAPS, epilogue=permuted((4, 6), (1, 0))), TensorMismatchError, "permutes",
    ),
    "rows of pixels": (
        lambda: ops.fused_conv2d(X, TAPS, epilogue=row_scale(A[0])), TensorMismatchError,
        r"row_scale: .* multiply\(\)",
    ),
    "features": (lambda: ops.fused_conv2d(X, TAPS, epilogue=bias(A[0])), TensorMismatchError, "columns of"),
    "a bias of two dimensions": (
        lambda: ops.fused_conv2d(X, TAPS, A[:2, :3], epilogue=relu()), TensorMismatchError, r"^bias: shape",
    ),
    "one bias for all": (
        lambda: ops.fused_conv2d(X, TAPS, A[0, :1], epilogue=relu()), TensorMismatchError, r"^bias: shape",
    ),
    "features in two dimensions": (
        lambda: ops.fused_conv2d(X, TAPS, epilogue=relu() | bias(A[:2, :3].clone())), TensorMismatchError,
        r"\[1\], bias: shape \(2, 3\). Give shape \(6,\)",
    ),
    "a scale of images": (
        lambda: ops.fused_conv2d(X, TAPS, epilogue=column_scale(A[:1, :6])), TensorMismatchError,
        r"column_scale: shape \(1, 6\). Give shape \(6,\)",
    ),
    "one feature": (
        lambda: ops.fused_conv2d(X, TAPS, epilogue=bias(A[0, :1])), TensorMismatchError,
        r"bias: shape \(1,\). Give shape \(6,\)",
    ),
    "features of instances": (
        lambda: ops.conv2d.instances(X, TAPS, A[:2, :3]), TensorMismatchError, r"^bias: shape",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named(call: tuple[Callable[[], object], type[WorkbenchError], str]) -> None:
    function, error, words = call
    with pytest.raises(error, match=words):
        function()


def test_rows_and_columns_behind_the_last_group_reach_no_gradient() -> None:
    """The forward ignores them too; an addend may hold memory there that nobody wrote."""
    offs = torch.tensor([2], dtype=torch.int32)
    for axis, a, w in (
        (0, torch.ones(4, 2), torch.ones(1, 2, 4)),
        (1, torch.ones(1, 4, 2), torch.ones(2, 4)),
    ):
        shared = torch.ones(4, 1) if axis else torch.ones(4)
        d = torch.ones(4, 4)
        d.movedim(axis, 0)[2:] = math.nan
        vector, leaf = shared.requires_grad_(), d.requires_grad_()
        chain = residual(leaf) | silu() | multiply(vector)
        result = ops.fused_grouped_mm(a, w, offs=offs, epilogue=chain)
        of_vector, of_leaf = torch.autograd.grad(result.sum(), (vector, leaf))
        assert of_vector.isfinite().all()
        assert (of_leaf.movedim(axis, 0)[2:] == 0).all()
        assert (of_leaf.movedim(axis, 0)[:2] != 0).all()


@triton.jit
def halved(tile, operands, place):
    return tile * 0.5


def test_a_functor_that_makes_floats_of_integers_needs_a_dtype() -> None:
    """The dtype that a user's functor makes is unknown, so the result could be stored as int32."""
    a, b = torch.ones(1, 3, dtype=torch.int8), torch.ones(3, 2, dtype=torch.int8)
    with pytest.raises(InvalidArgumentError, match=r"epilogue\[1\].*halved"):
        ops.fused_matmul(a, b, epilogue=relu() | own(halved))
    for chain, dtype in ((own(halved), torch.float32), (own(halved) | scale(1.0), None)):
        got = ops.fused_matmul(a, b, epilogue=chain, out_dtype=dtype)
        assert torch.equal(got, torch.full((1, 2), 1.5))
    got = ops.fused_matmul(a, b, epilogue=own(halved) | cast(torch.int8))
    assert torch.equal(got, torch.full((1, 2), 2, dtype=torch.int8))


@pytest.mark.parametrize("chain", [add(torch.tensor(2**33)), clamp(min=2**40), add(2**31)], ids=repr)
def test_integers_beyond_32_bits_are_refused_or_saturated(chain: Epilogue) -> None:
    a, b = torch.ones(1, 3, dtype=torch.int8), torch.ones(3, 2, dtype=torch.int8)
    with pytest.raises(InvalidArgumentError, match=r"epilogue\[0\].*32 bits"):
        ops.fused_matmul(a, b, epilogue=chain)
    got = ops.fused_matmul(a, b, epilogue=chain | cast(torch.int8))
    assert (got == 127).all()


def test_the_gradient_of_a_scale_of_an_integer_product_is_exact() -> None:
    """fp32 does not hold 2^24 + 1, so an integer intermediate is needed."""
    a, b = torch.arange(32).view(4, 8).char(), torch.arange(48).view(8, 6).char() - 20
    large = 2**24
    vector = torch.rand(6, requires_grad=True)
    chain = add(torch.full((6,), large + 1, dtype=torch.int32)) | add(-large) | column_scale(vector)
    result = ops.fused_matmul(a, b, epilogue=chain)
    (found,) = torch.autograd.grad(result.sum(), vector)
    torch.testing.assert_close(found, (a.int() @ b.int() + 1).sum(0).float())


@triton.jit
def to_double(tile, operands, place):
    return tile.to(tl.float64)


def test_fp8_results_of_integers_need_a_cast() -> None:
    a, b = torch.ones(4, 8, dtype=torch.int8), torch.ones(8, 6, dtype=torch.int8)
    with pytest.raises(TensorMismatchError, match=r"out_dtype.*End the epilogue with cast"):
        ops.fused_matmul(a, b, epilogue=relu(), out_dtype=torch.float8_e4m3fn)
    got = ops.fused_matmul(a, b, epilogue=relu() | cast(torch.float8_e4m3fn))
    assert (got.float() == 8).all()
    chain = own(to_double)
    (step,) = lens.compile(gemm.launch(a.half(), b.half(), epilogue=chain, output=got), "sm_90")
    assert not step.problem


def test_scales_of_integer_products_have_gradients() -> None:
    a, b = torch.arange(32).view(4, 8).char(), torch.arange(48).view(8, 6).char() - 20
    rows, vector = torch.rand(4, requires_grad=True), torch.rand(6, requires_grad=True)
    result = ops.fused_matmul(a, b, epilogue=row_scale(rows) | bias(vector) | silu())
    want = functional.silu((a.int() @ b.int()).float() * rows[:, None] + vector)
    grad = torch.rand_like(want)
    torch.testing.assert_close(result, want)
    torch.testing.assert_close(
        torch.autograd.grad(result, (rows, vector), grad), torch.autograd.grad(want, (rows, vector), grad)
    )


def test_a_result_of_one_dimension_takes_a_matrix_as_addend() -> None:
    a, b, d = numbers(1, 7), numbers(7, 3, seed=1), numbers(1, 3, seed=2)
    got = ops.fused_matmul(a, b, epilogue=add(d) | permuted((3,), (0,)))
    torch.testing.assert_close(got, (a @ b + d)[0])


def test_dropout_of_fp64_and_its_gradient_drop_the_same_element() -> None:
    """The generator's number for this element is between 0.7 in fp32 and 0.7 in fp64."""
    a = torch.ones(364, 1, dtype=torch.float64)
    b = torch.ones(1, 1972, dtype=torch.float64, requires_grad=True)
    result = ops.fused_matmul(a, b, epilogue=dropout(0.7, 16))
    (found,) = torch.autograd.grad(result[363, 1971], b)
    assert result[363, 1971] == 0 == found[0, -1]
