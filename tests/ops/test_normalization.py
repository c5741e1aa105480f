"""Layer norm and RMS norm are as exact and strict as torch, forward and backward, and repeatable."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.ops.refused import assert_refused_as_in_torch
from workbench import ops
from workbench.errors import TensorMismatchError
from workbench.kernels.rows.normalization import launch, launch_backward
from workbench.runtime import interpret

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
MOST_COLUMNS = {"layer_norm": 2, "rms_norm": 1}  # weight and bias, or a weight
NORMS = sorted(MOST_COLUMNS)
NAN, INFINITY = float("nan"), float("inf")
LAYOUTS = ["dense", "transposed", "sliced", "expanded"]

Tensors = list[torch.Tensor]


def torchs(norm: str) -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] = getattr(torch.nn.functional, norm)
    return function


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, layout: str = "dense") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "transposed":
        return torch.randn(shape[::-1], generator=generator).to(dtype).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return torch.randn((*shape[:-1], shape[-1] * 2), generator=generator).to(dtype)[..., ::2]
    if layout == "expanded":
        return torch.randn((*shape[:-1], 1), generator=generator).to(dtype).expand(shape)
    return torch.randn(shape, generator=generator).to(dtype)


def operands(
    norm: str, shape: tuple[int, ...], rank: int, dtype: torch.dtype, seed: int = 0, layout: str = "dense"
) -> Tensors:
    """Return x, a weight around 1, and for layer norm a bias."""
    columns = [numbers(shape[-rank:], dtype, seed + 1 + i) for i in range(MOST_COLUMNS[norm])]
    columns[0] = columns[0] + 1
    return [numbers(shape, dtype, seed, layout), *columns]


def applied(
    function: Callable[..., torch.Tensor],
    tensors: Tensors,
    rank: int,
    epsilon: float,
    direction: torch.Tensor,
) -> Tensors:
    """Return the result, and the gradients of all tensors along `direction`."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    result = function(leaves[0], leaves[0].shape[leaves[0].dim() - rank :], *leaves[1:], eps=epsilon)
    return [result.detach(), *torch.autograd.grad(result, leaves, direction.to(result.dtype))]


def assert_as_accurate_as_torch(
    got: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, terms: float = 0.0
) -> None:
    """Check the error: at most twice torch's largest, plus one rounding of the largest reference value.

    Args:
        terms: the largest term, whose rounding is allowed where the terms of a sum cancel.
    """
    assert (got.dtype, got.shape) == (theirs.dtype, theirs.shape)
    if exact.numel():
        off, torchs_off = ((t.double() - exact).abs().max().item() for t in (got, theirs))
        # If the results are float64 too, the reference is no more exact than they are.
        steps = 32 if got.dtype == torch.float64 else 1
        allowed = 2 * torchs_off + steps * max(exact.abs().max().item(), terms) * torch.finfo(got.dtype).eps
        assert off <= allowed, f"{off} off, torch {torchs_off}, allowed {allowed}"


def assert_as_torch(
    norm: str, tensors: Tensors, rank: int, epsilon: float = 1e-5, terms: tuple[float, ...] = (0.0,) * 4
) -> None:
    assert_results_and_gradients_as_accurate_as_torch(
        getattr(ops, norm), torchs(norm), tensors, rank, epsilon, terms
    )


def assert_results_and_gradients_as_accurate_as_torch(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor],
    tensors: Tensors, rank: int, epsilon: float = 1e-5, terms: tuple[float, ...] = (0.0,) * 4,
) -> None:  # fmt: skip
    direction = numbers(tuple(tensors[0].shape), tensors[0].dtype, 99)
    found = [
        applied(function, given, rank, epsilon, direction)
        for function, given in ((ours, tensors), (theirs, tensors), (theirs, [t.double() for t in tensors]))
    ]
    for (got, want, exact), largest in zip(zip(*found, strict=True), terms, strict=False):
        assert_as_accurate_as_torch(got, want, exact, largest)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((0, 17), 1),  # no rows
        ((4, 0), 1),  # no columns
        ((1, 1), 1),
        ((17, 1), 1),  # the only element of a row is its mean
        ((15, 15), 1),
        ((17, 17), 1),  # one over a tile in both directions
        ((1, 239), 1),
        ((15, 799), 1),
        ((17, 1023), 1),
        ((1, 1025), 1),  # half of its tile is empty
        ((1, 1, 32), 1),
        ((1, 1, 32), 2),
        ((15, 4, 1024), 1),
        ((5,), 1),  # one row
        ((5, 3, 7), 2),
        ((2, 3, 4, 5), 3),
        ((2, 0, 3), 2),
    ],
    ids=str,
)
def test_shapes_at_the_edges_of_tiles_are_as_accurate_as_torch(
    norm: str, shape: tuple[int, ...], rank: int
) -> None:
    assert_as_torch(norm, operands(norm, shape, rank, torch.float32), rank)


@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_several_tiles_are_as_accurate_as_torch(norm: str) -> None:
    assert_as_torch(norm, operands(norm, (1, 16411), 1, torch.float32), 1)


def test_many_rows_of_several_tiles_are_as_accurate_as_torch() -> None:
    x = numbers((100, 40499), torch.float32, 0)
    got, theirs, exact = (f(t, (40499,)) for f, t in (
        (ops.layer_norm, x), (torch.nn.functional.layer_norm, x), (torch.nn.functional.layer_norm, x.double())
    ))  # fmt: skip
    assert_as_accurate_as_torch(got, theirs, exact)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("norm", "columns"), [(n, c) for n in NORMS for c in range(MOST_COLUMNS[n] + 1)])
def test_every_dtype_and_epsilon_is_as_accurate_as_torch(
    norm: str, columns: int, dtype: torch.dtype, epsilon: float
) -> None:
    assert_as_torch(norm, operands(norm, (5, 37), 1, dtype)[: columns + 1], 1, epsilon)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_results_of_a_bias_without_a_weight_are_as_accurate_as_torch(dtype: torch.dtype) -> None:
    def weightless(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, shape, bias, eps: function(x, shape, None, bias, eps)

    x, _, bias = operands("layer_norm", (5, 37), 1, dtype)
    assert_results_and_gradients_as_accurate_as_torch(
        weightless(ops.layer_norm), weightless(torch.nn.functional.layer_norm), [x, bias], 1
    )


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_default_epsilon_of_rms_norm_is_that_of_torch(dtype: torch.dtype, scale: float) -> None:
    """Small numbers let epsilon decide the result."""
    x = (numbers((4, 19), torch.float64, 0) * scale).to(dtype)
    torch.testing.assert_close(ops.rms_norm(x, (19,)), torch.nn.functional.rms_norm(x, (19,)))


# torch says that it falls back to a slower implementation.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(("dtype", "other"), list(itertools.permutations(FLOATS, 2)), ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_a_weight_of_another_dtype_agrees_with_torch_or_is_refused_as_in_torch(
    norm: str, dtype: torch.dtype, other: torch.dtype
) -> None:
    x, *columns = operands(norm, (5, 37), 1, torch.float32)
    tensors = [x.to(dtype), *(c.to(other) for c in columns)]
    try:
        torchs(norm)(tensors[0], (37,), *tensors[1:])
    except RuntimeError:
        with pytest.raises(TensorMismatchError, match="dtype"):
            getattr(ops, norm)(tensors[0], (37,), *tensors[1:])
        return
    assert_as_torch(norm, tensors, 1)
    followed = [t.detach().requires_grad_() for t in tensors]
    torch.testing.assert_close(
        getattr(ops, norm)(followed[0], (37,), *followed[1:]).detach(),
        getattr(ops, norm)(tensors[0], (37,), *tensors[1:]),
    )


def test_weight_and_bias_of_two_dtypes_are_refused() -> None:
    x, weight, bias = operands("layer_norm", (2, 3), 1, torch.float16)
    for columns in ((weight.float(), bias), (weight, bias.float())):
        with pytest.raises(RuntimeError):
            torch.nn.functional.layer_norm(x, (3,), *columns)
        with pytest.raises(TensorMismatchError, match="weight, bias"):
            ops.layer_norm(x, (3,), *columns)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("shape", "rank"), [((17, 33), 1), ((3, 5, 7), 2), ((3, 5, 7), 1)], ids=str)
def test_any_layout_is_as_accurate_as_torch(
    norm: str, shape: tuple[int, ...], rank: int, layout: str
) -> None:
    x, *columns = operands(norm, shape, rank, torch.float32, layout=layout)
    strided = [torch.stack((c, c), -1)[..., 0] for c in columns]
    assert not strided[0].is_contiguous()
    if layout == "expanded":  # with a variance of 0, epsilon alone would decide all errors
        x = numbers((1, *shape[1:]), torch.float32, 0).expand(shape)
    assert_as_torch(norm, [x, *strided], rank)


@pytest.mark.parametrize("value", [0.0, 3.0, -1024.0])
@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_equal_numbers_are_as_accurate_as_torch(norm: str, value: float) -> None:
    x = torch.tensor(value).expand(3, 40)
    got, want = getattr(ops, norm)(x, (40,)), torchs(norm)(x, (40,))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_nan_and_infinity_give_torchs_results_in_their_row_only(norm: str, dtype: torch.dtype) -> None:
    """Results and gradients of other rows are those of a call without the special rows."""
    clean = numbers((9, 20), dtype, 0)
    x = clean.clone()
    for row, places in enumerate(
        ([NAN], [INFINITY], [-INFINITY], [INFINITY, -INFINITY], [NAN, INFINITY], [INFINITY] * 20)
    ):
        x[row, : len(places)] = torch.tensor(places, dtype=dtype)
    _, *columns = operands(norm, (9, 20), 1, dtype)
    direction = numbers((9, 20), dtype, 5)
    direction[7, 3] = NAN
    ours, theirs = (applied(f, [x, *columns], 1, 1e-5, direction) for f in (getattr(ops, norm), torchs(norm)))
    for got, want in zip(ours, theirs, strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        rounding = 16 * torch.finfo(dtype).eps  # sums of terms up to some tens cancel
        torch.testing.assert_close(got, want, rtol=rounding, atol=rounding, equal_nan=True)
    alone = applied(getattr(ops, norm), [clean[6:], *columns], 1, 1e-5, direction[6:])
    for with_others, by_itself in zip(ours[:2], alone, strict=False):
        torch.testing.assert_close(with_others[6:], by_itself, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("norm", NORMS)
def test_squares_that_overflow_give_torchs_results(norm: str) -> None:
    x = numbers((2, 20), torch.float32, 0)
    x[0, 3] = 1e30
    torch.testing.assert_close(getattr(ops, norm)(x, (20,)), torchs(norm)(x, (20,)))


@pytest.mark.parametrize("cols", [17, 1023, 20000])
def test_a_large_mean_loses_no_digits(cols: int) -> None:
    """The variance is 1, and a difference of the mean square and the squared mean would err by a few."""
    x = numbers((2, cols), torch.float32, 0) + 1e4
    exact = torch.nn.functional.layer_norm(x.double(), (cols,))
    got = ops.layer_norm(x, (cols,))
    assert_as_accurate_as_torch(got, torch.nn.functional.layer_norm(x, (cols,)), exact, terms=1e4)
    assert (got - exact).abs().max() < 2e-3


@pytest.mark.parametrize("norm", NORMS)
def test_any_combination_of_gradients_agrees_with_torch(norm: str) -> None:
    tensors = operands(norm, (4, 3, 11), 2, torch.float32)
    direction = numbers((4, 3, 11), torch.float32, 99)
    everyones = applied(torchs(norm), tensors, 2, 1e-5, direction)[1:]
    for needs in itertools.product([False, True], repeat=len(tensors)):
        leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
        result = getattr(ops, norm)(leaves[0], (3, 11), *leaves[1:], eps=1e-5)
        assert result.requires_grad == any(needs)
        if any(needs):
            result.backward(direction)
        for leaf, want in zip(leaves, everyones, strict=True):
            if leaf.requires_grad:
                assert leaf.grad is not None
                torch.testing.assert_close(leaf.grad, want)
            else:
                assert leaf.grad is None


@pytest.mark.parametrize(("norm", "columns"), [(n, c) for n in NORMS for c in range(MOST_COLUMNS[n] + 1)])
def test_gradients_agree_with_finite_differences(norm: str, columns: int) -> None:
    tensors = operands(norm, (2, 2, 3), 2, torch.float64, layout="transposed")[: columns + 1]
    assert torch.autograd.gradcheck(
        lambda x, *rest: getattr(ops, norm)(x, (2, 3), *rest, eps=0.1), [t.requires_grad_() for t in tensors]
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_incoming_gradient_may_have_any_layout(norm: str, layout: str) -> None:
    tensors = operands(norm, (6, 4, 9), 1, torch.float64)
    direction = numbers((6, 4, 9), torch.float64, 5, layout)
    ours, theirs = (applied(f, tensors, 1, 1e-5, direction) for f in (getattr(ops, norm), torchs(norm)))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("norm", NORMS)
def test_negated_views_give_the_results_of_their_values(norm: str) -> None:
    tensors = [torch._neg_view(t) for t in operands(norm, (4, 9), 1, torch.float64)]
    direction = torch._neg_view(numbers((4, 9), torch.float64, 5))
    ours, theirs = (applied(f, tensors, 1, 1e-5, direction) for f in (getattr(ops, norm), torchs(norm)))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("norm", NORMS)
def test_a_second_derivative_raises(norm: str) -> None:
    x = numbers((3, 5), torch.float64, 2).requires_grad_()
    (grad,) = torch.autograd.grad(getattr(ops, norm)(x, (5,)).pow(2).sum(), x, create_graph=True)
    with pytest.raises(TensorMismatchError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("norm", NORMS)
def test_an_input_changed_before_its_gradient_raises(norm: str) -> None:
    leaf = numbers((3, 5), torch.float32, 2).requires_grad_()
    x = leaf * 1
    result = getattr(ops, norm)(x, (5,))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("norm", NORMS)
def test_transforms_agree_with_torch(norm: str) -> None:
    tensors = operands(norm, (3, 5), 1, torch.float64)

    def loss(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, *columns: function(x, (5,), *columns).pow(3).sum()

    places = tuple(range(len(tensors)))
    ours, theirs = (torch.func.grad(loss(f), places)(*tensors) for f in (getattr(ops, norm), torchs(norm)))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)
    ours, theirs = (
        torch.func.vmap(lambda x, f=f: f(x, (5,)))(tensors[0]) for f in (getattr(ops, norm), torchs(norm))
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
@pytest.mark.parametrize("norm", NORMS)
def test_forward_mode_raises_not_implemented_error(norm: str) -> None:
    x = numbers((3, 5), torch.float32, 0)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda t: getattr(ops, norm)(t, (5,)), (x,), (x,))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_the_result_has_torchs_strides(norm: str, dims: tuple[int, ...]) -> None:
    """torch's rms_norm on the CPU keeps channels_last; for any other order it is contiguous."""
    x = torch.randn(2, 3, 5, 4).permute(dims)
    for each in (x, torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)):
        got, want = (f(each, each.shape[-1:]) for f in (getattr(ops, norm), torchs(norm)))
        assert got.stride() == want.stride()


@pytest.mark.parametrize("norm", NORMS)
def test_meta_tensors_have_results_without_data(norm: str) -> None:
    """The shape, the dtype and the graph are right."""
    tensors = [t.to("meta").requires_grad_() for t in operands(norm, (2, 3, 5), 2, torch.float16)]
    got, want = (f(tensors[0], (3, 5), *tensors[1:]) for f in (getattr(ops, norm), torchs(norm)))
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    assert got.is_meta
    for leaf, grad in zip(tensors, torch.autograd.grad(got, tensors, torch.empty_like(got)), strict=True):
        assert (grad.shape, grad.dtype, grad.device) == (leaf.shape, leaf.dtype, leaf.device)
    assert getattr(ops, norm)(tensors[0].detach(), (3, 5)).is_meta


@pytest.mark.parametrize("norm", NORMS)
def test_inputs_and_incoming_gradients_are_not_changed(norm: str) -> None:
    tensors = operands(norm, (4, 9), 1, torch.float32)
    direction = numbers((4, 9), torch.float32, 99)
    before = [t.clone() for t in (*tensors, direction)]
    applied(getattr(ops, norm), tensors, 1, 1e-5, direction)
    for tensor, was in zip((*tensors, direction), before, strict=True):
        assert torch.equal(tensor, was)


X, W = torch.ones(3, 4), torch.ones(4)
BAD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(
        (norm, arguments, {})
        for norm in NORMS
        for arguments in (
            *((X, shape) for shape in ((3,), (4, 3), (), 4, (4.0,), (True,), (2, 3, 4), None, "4", (-1,))),
            *((X, (4,), W.new_ones(shape)) for shape in ((3,), (4, 1), (1, 4), (1,), (), (8,))),
            (X, (4,), W.to("meta")),
            (X.to("meta"), (4,), W),
            (X, (4,), [1.0] * 4),
            *((X.to(dtype), (4,)) for dtype in (torch.int64, torch.bool, torch.uint8)),
            ([1.0], (1,)),
            (torch.tensor(1.0), ()),
            (torch.tensor(1.0), (1,)),
        )
    ),
    *(("layer_norm", (X, (4,), W, each), {}) for each in (torch.ones(3), W.to("meta"), W.long(), [1.0] * 4)),
    *(
        ("layer_norm", (X, (4,), each), {})
        for each in (W.long(), W.double(), W.half(), W.to(torch.complex64))
    ),
    *((norm, (X, (4,)), {"eps": eps}) for norm in NORMS for eps in ("a", 1j, [1e-5])),
    ("layer_norm", (X, (4,)), {"eps": None}),
]


@pytest.mark.parametrize(("norm", "arguments", "how"), BAD)
def test_invalid_arguments_are_refused_as_in_torch(
    norm: str, arguments: tuple[Any, ...], how: dict[str, Any]
) -> None:
    refused = assert_refused_as_in_torch(getattr(ops, norm), torchs(norm), *arguments, **how)
    assert str(refused).startswith(("input", "normalized_shape", "weight", "bias", "eps"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_unsupported_dtypes_are_refused(norm: str, dtype: torch.dtype) -> None:
    with pytest.raises(NotImplementedError, match=str(dtype)):
        getattr(ops, norm)(X.to(dtype), (4,))


@pytest.mark.parametrize("norm", NORMS)
def test_sparse_and_nested_tensors_are_refused(norm: str) -> None:
    nested = torch.nested.nested_tensor([X, X], layout=torch.jagged)
    for each in (X.to_sparse(), nested):
        with pytest.raises(TensorMismatchError, match="input"):
            getattr(ops, norm)(each, (4,))


SMALL_SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 16, 17]), min_size=1, max_size=4).map(tuple).filter(
    lambda shape: torch.Size(shape).numel() < 600
)  # fmt: skip


@settings(max_examples=examples(60))
@given(
    norm=st.sampled_from(NORMS),
    shape=SMALL_SHAPES,
    dtype=st.sampled_from(FLOATS),
    columns=st.integers(0, 2),
    layout=st.sampled_from(["dense", "transposed", "sliced"]),
    expanded=st.booleans(),
    epsilon=st.sampled_from([1e-6, 1e-3, 1.0]),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
def test_any_shape_layout_and_dtype_is_as_accurate_as_torch(
    norm: str, shape: tuple[int, ...], dtype: torch.dtype, columns: int, layout: str, expanded: bool,
    epsilon: float, seed: int, data: Any,
) -> None:  # fmt: skip
    rank = data.draw(st.integers(1, len(shape)))
    tensors = operands(norm, shape, rank, dtype, seed, layout)[: columns + 1]
    if expanded:
        tensors[0] = tensors[0][:1].expand(shape)
    assert_as_torch(norm, tensors, rank, epsilon, terms_of(norm, tensors, rank, epsilon))


def terms_of(norm: str, tensors: Tensors, rank: int, epsilon: float) -> tuple[float, ...]:
    """Return the largest terms of the sums of the result and of each gradient, times some roundings.

    x - mean errs by a rounding of x, which the scale magnifies.
    """
    x, *columns = (t.double() for t in tensors)
    dims = tuple(range(-rank, 0))
    spread = x - x.mean(dims, keepdim=True) if norm == "layer_norm" else x
    scale = (spread.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    magnified = 1 + (x.abs() * scale).max().item()
    weight = columns[0].abs().max().item() if columns else 1.0
    bias = columns[1].abs().max().item() if columns[1:] else 0.0
    direction = numbers(tuple(x.shape), tensors[0].dtype, 99).double().abs().max().item()
    rows = x.shape[: x.dim() - rank].numel()
    of_x = scale.max().item() * direction * weight * magnified
    return 4 * (magnified * weight + bias), 8 * of_x, 4 * rows * direction * magnified, 4 * rows * direction


@pytest.mark.parametrize("shape", [(9, 100), (33, 17)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_result_and_gradients_have_the_same_bits_twice(norm: str, shape: tuple[int, int]) -> None:
    tensors = operands(norm, shape, 1, torch.float32)
    direction = numbers(shape, torch.float32, 5)
    first, second = (applied(getattr(ops, norm), tensors, 1, 1e-5, direction) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_programs_may_run_in_any_order(norm: str, fused: bool) -> None:
    """Every element is written, since the worker poisons memory."""
    seed = random.randrange(2**32)
    x, *columns = operands(norm, (50, 70), 1, torch.float32)
    forward = launch(norm, x, 1, *columns, epsilon=1e-5, with_statistics=True, tile=(4, 32), compute_units=8)
    want = forward.run()
    assert forward.steps[0].programs > 1
    for got, plain in zip(interpret(forward, poison=True, seed=seed).outputs, want, strict=True):
        assert torch.equal(got, plain), f"seed {seed}"
    direction = numbers((50, 70), torch.float32, 5)
    backward = launch_backward(
        norm, direction, x, 1, columns[0], want[1:], vectors=len(columns), fused=fused, compute_units=1
    )
    results = backward.run()
    assert all(step.programs > 1 for step in backward.steps[:1])
    for got, plain in zip(interpret(backward, poison=True, seed=seed).outputs, results, strict=True):
        assert torch.equal(got, plain), f"seed {seed}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_no_memory_around_the_output_is_written(norm: str, dtype: torch.dtype) -> None:
    x, *columns = operands(norm, (7, 19), 1, dtype)
    for tile, splits in (((8, 32), 1), ((2, 8), 1), ((2, 8), 3)):
        memory = torch.full((13, 40), NAN, dtype=dtype)
        output = memory[3:10, 8:27]
        launch(norm, x, 1, *columns, epsilon=1e-5, output=output, tile=tile, splits=splits).run()
        torch.testing.assert_close(output, torchs(norm)(x, (19,), *columns, eps=1e-5))
        output.fill_(NAN)
        assert memory.isnan().all()
