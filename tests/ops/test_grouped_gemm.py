"""Grouped products against torch: results, refusals, and gradients of any order."""

from __future__ import annotations

import warnings
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import all_is_tested, examples
from tests.ops.test_gemm import assert_as_accurate_as_torch, numbers
from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError, UnsupportedDtypeError, WorkbenchError
from workbench.kernels import reference

torchs_grouped_mm = torch.nn.functional.grouped_mm

# Shapes of A and B by the dimension, of 64, that these lengths divide; rows of 16 bytes, as torch requires.
LENGTHS = (10, 0, 33, 1, 20)
SHAPES = {
    "m": ((64, 24), (5, 24, 40)),
    "n": ((5, 40, 24), (24, 64)),
    "k": ((24, 64), (64, 40)),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def ends_of(lengths: Any) -> torch.Tensor:
    return torch.tensor([*accumulate(lengths)], dtype=torch.int32)


OFFS = ends_of(LENGTHS)


@shapes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_and_strides_agree_with_torch(shape: Any, dtype: torch.dtype) -> None:
    a, b = (numbers(*size, dtype=dtype, seed=i) for i, size in enumerate(shape))
    got, want = ops.grouped_mm(a, b, offs=OFFS), torchs_grouped_mm(a, b, offs=OFFS)
    assert got.stride() == want.stride()
    assert_as_accurate_as_torch(got, want, reference.grouped_mm(a.double(), b.double(), offs=OFFS))


@shapes
def test_gradients_agree_with_torch(shape: Any) -> None:
    a, b = (numbers(*size, dtype=torch.float32, seed=i).requires_grad_() for i, size in enumerate(shape))
    pairs = []
    for function in (ops.grouped_mm, torchs_grouped_mm):
        result = function(a, b, offs=OFFS)
        pairs.append(torch.autograd.grad(result, (a, b), numbers(*result.shape, dtype=torch.float32, seed=2)))
    torch.testing.assert_close(*pairs)


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_results_and_gradients_are_exact_for_any_group_lengths(data: st.DataObject) -> None:
    """Integers are summed exactly in any order; gradients are compared too."""
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 3, 16, 17]), min_size=1, max_size=4), label="lengths")
    left = data.draw(st.sampled_from([0, 5]), label="left")
    sizes = [data.draw(st.sampled_from([0, 1, 7, 18]), label="size") for _ in range(2)]
    total, groups = sum(lengths) + left, len(lengths)
    shape = data.draw(
        st.sampled_from(
            [
                ((total, sizes[0]), (groups, sizes[0], sizes[1])),
                ((groups, sizes[0], sizes[1]), (sizes[1], total)),
                ((sizes[0], total), (total, sizes[1])),
            ]
        ),
        label="shapes",
    )
    a, b = (torch.randint(-3, 4, size).double() for size in shape)
    is_transposed: bool = data.draw(st.booleans(), label="transposed")
    if is_transposed:
        b = b.mT.contiguous().mT
    a.requires_grad_()
    b.requires_grad_()
    offs = ends_of(lengths)
    got, want = (f(a, b, offs=offs) for f in (ops.grouped_mm, reference.grouped_mm))
    assert torch.equal(got, want)
    for mine, theirs in zip(
        *(torch.autograd.grad(result.square().sum(), (a, b), allow_unused=True) for result in (got, want)),
        strict=True,
    ):
        assert torch.equal(mine, torch.zeros_like(mine) if theirs is None else theirs)


@pytest.mark.daily(cases=1)
@pytest.mark.parametrize(
    "shape",
    [((5, 2), (3, 2, 2)), ((3, 2, 2), (2, 5)), ((2, 5), (5, 2))],
    ids=["m", "n", "k"],
)
def test_first_and_second_derivatives_pass_gradcheck(shape: Any) -> None:
    """The last of five rows belongs to no group: its gradient is 0, and never what the memory held."""
    offs = ends_of((2, 0, 2))
    a, b = (numbers(*size, seed=i).requires_grad_() for i, size in enumerate(shape))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.grouped_mm(a, b, offs=offs)

    assert torch.autograd.gradcheck(function, (a, b), fast_mode=not all_is_tested())
    assert torch.autograd.gradgradcheck(function, (a, b), fast_mode=True)


def test_forward_mode_and_transforms_agree_with_the_reference() -> None:
    a, b = (numbers(*size, seed=i) for i, size in enumerate(SHAPES["m"]))
    tangents = numbers(*a.shape, seed=5), numbers(*b.shape, seed=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, from compiling its rules
        for given, along in (((a, b), tangents), ((a,), tangents[:1])):
            pairs = [
                torch.func.jvp(lambda x, y=b, f=f: f(x, y, offs=OFFS), given, along)
                for f in (ops.grouped_mm, reference.grouped_mm)
            ]
            torch.testing.assert_close(*pairs)
    grads = [
        torch.func.grad(lambda x, f=f: f(x, b, offs=OFFS).square().sum())(a)
        for f in (ops.grouped_mm, reference.grouped_mm)
    ]
    torch.testing.assert_close(*grads)


@shapes
def test_batched_gradients_agree_with_the_reference(shape: Any) -> None:
    """Both of torch's vmaps are used, with negated views; gradients have a graph."""
    a, b = (numbers(*size, seed=i).requires_grad_() for i, size in enumerate(shape))
    pairs = []
    for function in (ops.grouped_mm, reference.grouped_mm):
        result = function(a, b, offs=OFFS)
        grads = torch._neg_view(numbers(3, *result.shape, seed=2))
        found = torch.autograd.grad(result, (a, b), grads, is_grads_batched=True, create_graph=True)
        pairs.append((found, torch.autograd.grad(found[0].sum() + found[1].sin().sum(), (a, b))))
    torch.testing.assert_close(*pairs)
    batch = numbers(3, *shape[0], seed=3)
    got = torch.vmap(lambda x: ops.grouped_mm(x, b, offs=OFFS))(batch)
    torch.testing.assert_close(got, torch.stack([reference.grouped_mm(x, b, offs=OFFS) for x in batch]))


def test_a_batch_without_offsets_agrees_with_torch() -> None:
    a, b = numbers(3, 5, 8, dtype=torch.float32), numbers(3, 8, 4, dtype=torch.float32, seed=1)
    torch.testing.assert_close(ops.grouped_mm(a, b), torchs_grouped_mm(a, b))
    a.requires_grad_()
    (of_a,) = torch.autograd.grad(ops.grouped_mm(a, b).sum(), a)
    torch.testing.assert_close(of_a, b.sum(2)[:, None].expand_as(a))


def test_results_may_be_changed_in_place() -> None:
    a, b = (numbers(*size, seed=i).requires_grad_() for i, size in enumerate(SHAPES["m"]))
    ops.grouped_mm(a, b, offs=OFFS).relu_().sum().backward()
    want = torch.autograd.grad(reference.grouped_mm(a, b, offs=OFFS).relu().sum(), (a, b))
    torch.testing.assert_close((a.grad, b.grad), want)


def test_products_of_strides_that_torch_refuses_agree_with_the_reference() -> None:
    """Rows may have any length, and views may be negated. The result's rows are padded to 16 bytes."""
    a, b = numbers(64, 23, dtype=torch.float32), numbers(5, 23, 41, dtype=torch.float32, seed=1)
    got = ops.grouped_mm(a, b, offs=OFFS)
    assert got.stride() == (44, 1)
    torch.testing.assert_close(got, reference.grouped_mm(a, b, offs=OFFS))
    negated = torch.view_as_complex(torch.randn(64, 23, 2)).conj().imag
    torch.testing.assert_close(
        ops.grouped_mm(negated, b, offs=OFFS), reference.grouped_mm(negated.clone(), b, offs=OFFS)
    )


@shapes
def test_meta_tensors_have_results_without_data(shape: Any) -> None:
    a, b = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in shape)
    got, want = (f(a, b, offs=OFFS.to("meta")) for f in (ops.grouped_mm, torchs_grouped_mm))
    assert got.is_meta
    assert got.shape == want.shape


A, B = torch.ones(8, 4), torch.ones(2, 4, 8)
TWO = ends_of((3, 5))
NO_TENSOR: Any = [3, 8]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda f: f(A, B), TensorMismatchError, "offs: not given for operands of 2 and 3 dimensions"),
        (lambda f: f(B.mT, B, offs=TWO), TensorMismatchError, "offs: given for operands of 3 and 3"),
        (lambda f: f(B.mT, B[:1]), TensorMismatchError, "2 and 1 matrices"),
        (lambda f: f(A, B, offs=TWO.long()), TensorMismatchError, "int64, not int32"),
        (lambda f: f(A, B, offs=TWO[None]), TensorMismatchError, "offs has 2 dimensions"),
        (lambda f: f(A, B, offs=TWO[:1]), TensorMismatchError, "2 matrices, offs 1 groups"),
        (lambda f: f(A, torch.ones(2, 8, 8), offs=TWO), TensorMismatchError, "4 and 8 along K"),
        (lambda f: f(A[0], B, offs=TWO), TensorMismatchError, "mat_a has 1 dimensions, .*Give plain tensors"),
        (
            lambda f: f(A, B.half(), offs=TWO),
            TensorMismatchError,
            "mat_a is .*32, mat_b is .*16",
        ),
        (lambda f: f(A.int(), B.int(), offs=TWO), UnsupportedDtypeError, "mat_a: torch.int32"),
        (lambda f: f(A, B, offs=TWO, bias=torch.ones(8)), TensorMismatchError, "bias: given"),
        (
            lambda f: f(A, B, offs=TWO, out_dtype=torch.half),
            TensorMismatchError,
            "out_dtype: got torch.float16",
        ),
        (lambda f: f(A, B, offs=NO_TENSOR), ArgumentTypeError, "offs: got a list"),
        (lambda f: f(NO_TENSOR, B, offs=TWO), ArgumentTypeError, "mat_a: got a list"),
    ],
)
def test_wrong_operands_are_refused_as_in_torch(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        call(torchs_grouped_mm)
    with pytest.raises(error, match=says) as refused:
        call(ops.grouped_mm)
    assert isinstance(refused.value, WorkbenchError)
    assert isinstance(refused.value, TypeError if isinstance(theirs.value, TypeError) else RuntimeError)
