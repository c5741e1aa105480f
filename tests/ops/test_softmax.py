"""Softmax, its logarithm, log-sum-exp and cross entropy are as exact and as strict as torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.ops.refused import assert_refused_as_in_torch
from workbench import ops
from workbench.errors import TensorMismatchError, WorkbenchError
from workbench.kernels.rows import softmax as templates
from workbench.launch import Launch
from workbench.lens.trace import trace

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHAPES = [(1,), (5,), (3, 7), (2, 33, 3), (4, 3, 2), (1, 65), (40, 1), (2, 3, 4, 5)]
INFINITY, NAN = float("inf"), float("nan")
TORCHS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "logsumexp": torch.logsumexp,
}


def assert_as_accurate_as_torch(
    got: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, *, terms: float = 0.0
) -> None:
    """Check the error: at most twice torch's largest, plus one rounding of the largest reference value.

    Args:
        terms: the largest term, whose rounding is allowed where terms cancel to a value far below them.
    """
    assert (got.dtype, got.shape) == (torchs.dtype, torchs.shape)
    if not exact.numel():
        return
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    step = max(exact.abs().max().item(), terms) * torch.finfo(got.dtype).eps
    is_reference = got.dtype == torch.float64  # the reference is no more exact
    assert off <= (4 * step if is_reference else 2 * theirs + step)


def term_of_a_logarithm(dtype: torch.dtype) -> float:
    """Return the `terms` of a logarithm: its absolute error is the sum's rounding, in fp32 for halves."""
    return min(torch.finfo(torch.float32).eps / torch.finfo(dtype).eps, 1.0)


def terms_of_a_gradient(name: str, x: torch.Tensor, dim: int, direction: torch.Tensor) -> float:
    """Return the largest sum of magnitudes of the terms of a gradient."""
    y, g = x.double().softmax(dim), direction.double().abs()
    if name == "logsumexp":  # exp(x - result) has the relative error that the result has as an absolute one
        return float((y * (g * (1 + x.double().logsumexp(dim).abs())).unsqueeze(dim)).max())
    weighted = y * (y * g).sum(dim, True) if name == "softmax" else y * g.sum(dim, True)
    return float((weighted + (y * g if name == "softmax" else g)).max())


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, layout: str = "dense") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "transposed":
        return torch.randn(shape[::-1], generator=generator).to(dtype).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return torch.randn((*shape[:-1], shape[-1] * 2), generator=generator).to(dtype)[..., ::2]
    if layout == "expanded":
        return torch.randn((1, *shape[1:]), generator=generator).to(dtype).expand(shape)
    return torch.randn(shape, generator=generator).to(dtype)


LAYOUTS = st.sampled_from(["dense", "transposed", "sliced", "expanded"])


@settings(max_examples=examples(60))
@given(
    name=st.sampled_from(sorted(TORCHS)),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(FLOATS),
    layout=LAYOUTS,
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_results_and_gradients_are_as_accurate_as_torch(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int, data: Any
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (numbers(shape, dtype, seed, layout) * 3).detach()
    ours, torchs, wide = (t.detach().requires_grad_() for t in (x, x.clone(), x.double()))
    got, want, exact = getattr(ops, name)(ours, dim), TORCHS[name](torchs, dim), TORCHS[name](wide, dim)
    assert_as_accurate_as_torch(
        got, want, exact, terms=term_of_a_logarithm(dtype) if name != "softmax" else 0.0
    )
    assert torch.equal(getattr(ops, name)(x, dim), got)
    direction = numbers(tuple(want.shape), dtype, seed + 1) if want.dim() else torch.tensor(2.0, dtype=dtype)
    grads = [
        torch.autograd.grad(y, leaf, direction.to(y.dtype))[0]
        for y, leaf in ((got, ours), (want, torchs), (exact, wide))
    ]
    assert_as_accurate_as_torch(*grads, terms=terms_of_a_gradient(name, x, dim, direction))


@pytest.mark.parametrize("dim", [(0, 2), (1,), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_over_several_dimensions_agrees_with_torch(dim: tuple[int, ...], keepdim: bool) -> None:
    x = numbers((3, 5, 4), torch.float64, 1).requires_grad_()
    got, want = ops.logsumexp(x, dim, keepdim), torch.logsumexp(x, dim, keepdim)
    torch.testing.assert_close(got, want)
    direction = torch.randn_like(want)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, direction)[0] for y in (got, want)))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 35])
def test_logsumexp_of_split_rows_agrees_with_torch(rows: int) -> None:
    """The second kernel merges a few rows at a time, and the last tile may have fewer."""
    x = numbers((rows, 70), torch.float32, 3)
    x[0] = float("-inf")
    memory = torch.full((rows + 16,), 7.0)
    launch = templates.launch_log_sum_exp(x, (1,), memory[:rows], tile=(2, 16), splits=3)
    assert len(launch.steps) == 2
    torch.testing.assert_close(launch.run()[0], torch.logsumexp(x, 1))
    assert bool((memory[rows:] == 7).all())


@pytest.mark.parametrize("cols", [2**31 - 1, 2**31 + 2**20 + 5])
def test_rows_of_about_two_to_the_31_are_counted_in_64_bits(cols: int) -> None:
    """Rounded up to tiles, the number of columns may need one more bit; the last program has fewer tiles."""
    x, tile = torch.ones(1, dtype=torch.float16).expand(cols), 2**20
    first = templates.launch_log_sum_exp(x, (0,), tile=(1, tile), splits=1024).steps[0]
    (number,) = first.grid
    (traced,) = trace(Launch((first,), ()), programs=[0, number - 1])
    seen = [
        sum(
            int(event.mask.sum()) for event in traced.events(program=p, kind="load") if event.mask is not None
        )
        for p in traced.programs
    ]
    span = -(-cols // tile // 1024) * tile
    assert seen == [span, cols - (number - 1) * span]


def assert_same_without_data(got: torch.Tensor, want: torch.Tensor, *leaves: torch.Tensor) -> None:
    """Check that both are meta tensors of the same dtype and shape, and their gradients too."""
    assert got.is_meta
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    for grad, leaf in zip(torch.autograd.grad(got.sum(), leaves), leaves, strict=True):
        assert grad.is_meta
        assert (grad.dtype, grad.shape) == (leaf.dtype, leaf.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_meta_tensors_have_results_without_data(dtype: torch.dtype) -> None:
    x = torch.ones(3, 5, dtype=dtype, device="meta", requires_grad=True)
    for name, torchs in TORCHS.items():
        assert_same_without_data(getattr(ops, name)(x, 1), torchs(x, 1), x)
    y = torch.ones(5, dtype=torch.float32, device="meta", requires_grad=True)
    assert_same_without_data(ops.add(x, y, alpha=2), torch.add(x, y, alpha=2), x, y)
    assert_same_without_data(ops.add(x, torch.tensor(2.0)), torch.add(x, torch.tensor(2.0)), x)
    assert ops.add(x.detach(), x.detach()).is_meta


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_of_meta_tensors_have_no_data(reduction: str) -> None:
    x = torch.ones(3, 5, device="meta", requires_grad=True)
    for target in (torch.zeros(3, dtype=torch.int64, device="meta"), x.detach()):
        assert_same_without_data(
            ops.cross_entropy(x, target, reduction=reduction),
            torch.nn.functional.cross_entropy(x, target, reduction=reduction),
            x,
        )


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_nan_and_infinities_give_torchs_results(name: str) -> None:
    """Rows of -inf, +inf beside numbers, NaN beside +inf, and numbers that overflow exp."""
    rows = [
        [-INFINITY] * 3,
        [INFINITY, 1, 2],
        [NAN, 1, 2],
        [INFINITY, NAN, 0],
        [INFINITY, -INFINITY, 0],
        [1e30, 1e30, 0],
        [-INFINITY, 1, 2],
    ]
    x = torch.tensor(rows)
    for each, dim in ((x, 1), (x.t(), 0)):
        torch.testing.assert_close(getattr(ops, name)(each, dim), TORCHS[name](each, dim), equal_nan=True)


def test_the_gradient_of_an_infinite_logsumexp_agrees_with_torch() -> None:
    """exp(x - result), as in torch 2.13; values are written out, since other versions may differ."""
    x = torch.tensor(
        [
            [INFINITY, 1, 2],
            [-INFINITY] * 3,
            [INFINITY, -INFINITY, 1],
            [INFINITY, INFINITY, 0],
            [NAN, 1, 2],
            [-INFINITY, 0, 0],
        ],
        requires_grad=True,
    )
    want = [[NAN, 0, 0], [NAN] * 3, [NAN, 0, 0], [NAN, NAN, 0], [NAN] * 3, [0, 0.5, 0.5]]
    for dim, leaf in ((1, x), (0, x.t())):
        (got,) = torch.autograd.grad(ops.logsumexp(leaf, dim).sum(), x)
        torch.testing.assert_close(got, torch.tensor(want), equal_nan=True)


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_a_tensor_without_dimensions_has_torchs_result_and_gradient(name: str) -> None:
    outcomes = []
    for function in (getattr(ops, name), TORCHS[name]):
        x = torch.tensor(3.0, requires_grad=True)
        result = function(x, -1)
        outcomes.append((result, *torch.autograd.grad(result, x)))
    for ours, torchs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_out_is_written_as_in_torch(name: str) -> None:
    x = numbers((3, 7), torch.float32, 0)
    want = TORCHS[name](x, 1)
    memory = torch.full((5, *want.shape), NAN)
    for out in (
        torch.empty(0),
        memory[2],
        torch.empty(want.shape[::-1]).permute(*reversed(range(want.dim()))),
    ):
        assert getattr(ops, name)(x, 1, out=out) is out
        torch.testing.assert_close(out, want)
    assert memory[[0, 1, 3, 4]].isnan().all()
    ours = getattr(ops, name)(x, 1, out=x[:, 1] if name == "logsumexp" else x)
    torch.testing.assert_close(ours, want)


@pytest.mark.parametrize("name", sorted(TORCHS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_out_of_another_dtype_is_taken_or_refused_as_in_torch(name: str, dtype: torch.dtype) -> None:
    """A log-sum-exp takes any floating dtype for `out`; a softmax takes only that of its result."""
    x, out = numbers((3, 7), torch.float32, 0), torch.empty(0, dtype=dtype)
    if name == "logsumexp" and dtype.is_floating_point:
        torch.testing.assert_close(ops.logsumexp(x, 1, out=out), torch.logsumexp(x, 1).to(dtype))
        return
    with pytest.raises(RuntimeError):
        TORCHS[name](x, 1, out=torch.empty(0, dtype=dtype))
    with pytest.raises(TensorMismatchError, match="out:"):
        getattr(ops, name)(x, 1, out=out)


@pytest.mark.parametrize("name", sorted(TORCHS))
@pytest.mark.parametrize(
    ("out", "error"),
    [([1], TypeError), (torch.empty(2), RuntimeError), (torch.empty(0, device="meta"), RuntimeError)],
)
def test_out_that_does_not_fit_is_refused(name: str, out: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="out:") as refused:
        getattr(ops, name)(torch.ones(3, 7), 1, out=out)
    assert isinstance(refused.value, WorkbenchError)


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_out_with_tensors_that_require_grad_is_refused(name: str) -> None:
    with pytest.raises(TensorMismatchError, match="out:"):
        getattr(ops, name)(torch.ones(3, 7, requires_grad=True), 1, out=torch.empty(0))


@pytest.mark.parametrize("name", sorted(TORCHS))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_autocast_on_the_cpu_does_not_change_dtypes(name: str, dtype: torch.dtype) -> None:
    """torch lists these operators as float32 operators for GPUs only."""
    x = numbers((3, 7), dtype, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert getattr(ops, name)(x, 1).dtype == TORCHS[name](x, 1).dtype == dtype


@pytest.mark.parametrize("name", sorted(TORCHS))
@pytest.mark.parametrize(("shape", "dim"), [((0, 3), 0), ((0, 3), 1), ((2, 0), 1), ((), 0), ((), -1)])
def test_empty_tensors_and_scalars_agree_with_torch(name: str, shape: tuple[int, ...], dim: int) -> None:
    x = torch.full(shape, 3.0)
    torch.testing.assert_close(getattr(ops, name)(x, dim), TORCHS[name](x, dim))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(torch.float16, torch.float32), (torch.int64, torch.float64), (torch.float32, torch.float16)],
)
def test_elements_are_converted_to_dtype_before_the_softmax(given: torch.dtype, dtype: torch.dtype) -> None:
    x = (numbers((3, 9), torch.float32, 0) * 4).to(given)
    for name in ("softmax", "log_softmax"):
        got, want = getattr(ops, name)(x, 1, dtype), TORCHS[name](x, 1, dtype=dtype)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", sorted(TORCHS))
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_agree_with_finite_differences(name: str, dim: int) -> None:
    x = numbers((3, 5), torch.float64, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: getattr(ops, name)(t, dim), (x,))


def test_a_second_derivative_raises() -> None:
    x = numbers((3, 5), torch.float64, 2).requires_grad_()
    (grad,) = torch.autograd.grad(ops.softmax(x, 1).pow(2).sum(), x, create_graph=True)
    with pytest.raises(TensorMismatchError, match="second derivative"):
        grad.sum().backward()


BAD: list[tuple[str, tuple[Any, ...]]] = [
    *((name, (torch.ones(3, 4, dtype=torch.int64), 0)) for name in ("softmax", "log_softmax")),
    *((name, (torch.ones(3, 4), dim)) for name in TORCHS for dim in (2, -3, 1.5, None)),
    *((name, ([1.0], 0)) for name in TORCHS),
    ("softmax", (torch.ones(3, 4), 0, torch.int32)),
    ("softmax", (torch.ones(3, 4), True)),
    ("logsumexp", (torch.ones(3, 4), (0, 0))),
    ("logsumexp", (torch.ones(3, 4), ())),
    ("logsumexp", (torch.ones(3, 4), 0, "yes")),
]


BAD_LAUNCHES: list[tuple[Callable[..., Launch], tuple[Any, ...], dict[str, Any]]] = [
    (launch, arguments, {"output": output})
    for launch, arguments, place in (
        (templates.launch, ("softmax", torch.ones(3, 4)), torch.zeros(3, 4)),
        (templates.launch_log_sum_exp, (torch.ones(3, 4), (1,)), torch.zeros(3)),
    )
    for output in (
        [1], 1.0, place.long(), place.bool(), place.to(torch.complex64), torch._neg_view(place),
        place.to("meta"), place[:2], place.to_sparse(),
    )
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "how"), BAD_LAUNCHES)
def test_launches_name_an_output_that_does_not_fit(
    function: Callable[..., Launch], arguments: tuple[Any, ...], how: dict[str, Any]
) -> None:
    with pytest.raises(WorkbenchError, match=r"^output: "):
        function(*arguments, **how)


def test_a_launch_takes_a_tensor_without_dimensions() -> None:
    (one,) = templates.launch("softmax", torch.tensor(5.0)).run()
    (itself,) = templates.launch_log_sum_exp(torch.tensor(5.0), (0,)).run()
    assert (one.item(), itself.item()) == (1, 5)
    with pytest.raises(WorkbenchError, match="dim"):
        templates.launch("softmax", torch.tensor(5.0), dim=1)


@pytest.mark.parametrize(("name", "arguments"), BAD)
def test_wrong_arguments_are_refused_as_in_torch(name: str, arguments: tuple[Any, ...]) -> None:
    assert_refused_as_in_torch(getattr(ops, name), TORCHS[name], *arguments)


@settings(max_examples=examples(60))
@given(
    shape=st.sampled_from([(4,), (3, 5), (2, 33, 3), (2, 4, 3, 2), (5, 1)]),
    dtype=st.sampled_from(FLOATS),
    weighted=st.booleans(),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    smoothing=st.sampled_from([0.0, 0.2, 1.0]),
    ignored=st.sampled_from([-100, 1]),
    layout=LAYOUTS,
    probabilities=st.booleans(),
    seed=st.integers(0, 99),
)
def test_cross_entropy_is_as_accurate_as_torch(
    shape: tuple[int, ...], dtype: torch.dtype, weighted: bool, reduction: str, smoothing: float,
    ignored: int, layout: str, probabilities: bool, seed: int,
) -> None:  # fmt: skip
    dim = min(len(shape) - 1, 1)
    generator = torch.Generator().manual_seed(seed)
    x = numbers(shape, dtype, seed, layout).detach() + 50
    weight = (torch.rand(shape[dim], generator=generator) + 0.1).to(dtype) if weighted else None
    rows = shape[:dim] + shape[dim + 1 :]
    target = torch.randint(0, shape[dim], rows, generator=generator)
    if probabilities:
        target, ignored = numbers(shape, dtype, seed + 1).softmax(dim), -100
    how: Any = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    ours, torchs, wide = (t.detach().requires_grad_() for t in (x, x.clone(), x.double()))
    exact_target = target.double() if probabilities else target
    got = ops.cross_entropy(ours, target, weight, **how)
    want = torch.nn.functional.cross_entropy(torchs, target, weight, **how)
    exact = torch.nn.functional.cross_entropy(
        wide, exact_target, weight if weight is None else weight.double(), **how
    )
    if want.isnan().any():
        assert torch.equal(got.isnan(), want.isnan())
        return
    quotient = 2 * exact.abs().max().item() if reduction == "mean" else 0.0  # both sums are rounded
    assert_as_accurate_as_torch(got, want, exact, terms=max(term_of_a_logarithm(dtype), quotient))
    grads = [
        torch.autograd.grad(y.sum(), leaf)[0] for y, leaf in ((got, ours), (want, torchs), (exact, wide))
    ]
    # The gradient is the difference of a row's weight times its softmax, and its weight at the target.
    of_class = torch.ones(shape[dim]).double() if weight is None else weight.double()
    counted = 1.0
    if reduction == "mean":
        counted = (
            x.numel() / shape[dim] if probabilities else float(of_class[target[target != ignored]].sum())
        )
    assert_as_accurate_as_torch(*grads, terms=float(of_class.max()) / counted)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradients_of_cross_entropy_agree_with_finite_differences(reduction: str) -> None:
    x, target = numbers((3, 5), torch.float64, 2).requires_grad_(), torch.tensor([0, 4, -100])
    weight = torch.rand(5, dtype=torch.float64) + 0.5
    assert torch.autograd.gradcheck(
        lambda t: ops.cross_entropy(t, target, weight, reduction=reduction, label_smoothing=0.1), (x,)
    )


@pytest.mark.parametrize("smoothing", [NAN, -1.0, -INFINITY, True, np.float32(0.5), np.int64(0)])
@pytest.mark.parametrize("probabilities", [False, True])
def test_any_label_smoothing_that_torch_takes_gives_torchs_loss(smoothing: Any, probabilities: bool) -> None:
    x = numbers((3, 5), torch.float64, 2)
    target = x.softmax(1) if probabilities else torch.tensor([0, 4, 2])
    got, want = (
        function(x, target, label_smoothing=smoothing)
        for function in (ops.cross_entropy, torch.nn.functional.cross_entropy)
    )
    torch.testing.assert_close(got, want)


def test_an_ignored_class_may_be_numpys() -> None:
    x, target = numbers((3, 5), torch.float64, 2), torch.tensor([0, 4, 2])
    ignored: Any = np.int64(4)
    got, want = (
        function(x, target, ignore_index=ignored)
        for function in (ops.cross_entropy, torch.nn.functional.cross_entropy)
    )
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_of_no_rows_agrees_with_torch(reduction: str) -> None:
    for x, target in (
        (torch.empty(0, 4), torch.empty(0, dtype=torch.int64)),
        (torch.empty(0, 4), torch.empty(0, 4)),
        (torch.ones(3, 4), torch.full((3,), -100)),
    ):
        got = ops.cross_entropy(x, target, reduction=reduction)
        want = torch.nn.functional.cross_entropy(x, target, reduction=reduction)
        torch.testing.assert_close(got, want, equal_nan=True)


X, Y = torch.ones(3, 4), torch.tensor([0, 1, 2])
BAD_LOSSES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X, Y[:2]), {}),
    ((X, Y + 2), {}),
    ((X, -Y), {}),
    ((X, Y.int()), {}),
    ((X, Y.float()), {}),
    ((X, Y, torch.ones(3)), {}),
    ((X, Y, torch.ones(4, 1)), {}),
    ((X, Y, torch.ones(4).double()), {}),
    ((X, Y, torch.ones(4, requires_grad=True)), {}),
    ((X, Y, torch.ones(4, device="meta")), {}),
    ((X, Y), {"reduction": "max"}),
    ((X, Y), {"label_smoothing": 1.5}),
    ((X, Y), {"label_smoothing": "a"}),
    ((X, Y), {"ignore_index": 1.5}),
    ((X, Y), {"ignore_index": True}),
    ((X, Y), {"ignore_index": 1 << 70}),
    ((X, Y), {"ignore_index": -(1 << 70)}),
    ((X, torch.tensor(1)), {}),
    ((X[:1], torch.tensor(1)), {}),
    ((torch.ones(2, 4, 3), torch.tensor(1)), {}),
    ((X[0], torch.tensor([[1, 1]])), {}),
    ((X, torch.tensor([0, 1, 156], dtype=torch.uint8)), {}),
    ((X, X.softmax(1)), {"ignore_index": 1}),
    ((X.long(), Y), {}),
    ((torch.tensor(1.0), torch.tensor(0)), {}),
    (([1.0], Y), {}),
]


@pytest.mark.parametrize(("arguments", "how"), BAD_LOSSES)
def test_wrong_arguments_of_cross_entropy_are_refused_as_in_torch(
    arguments: tuple[Any, ...], how: dict[str, Any]
) -> None:
    assert_refused_as_in_torch(ops.cross_entropy, torch.nn.functional.cross_entropy, *arguments, **how)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_logsumexp_into_a_wider_dtype_is_not_rounded_before(dtype: torch.dtype) -> None:
    x = torch.randn(40, 50).to(dtype)
    out = torch.empty(40, dtype=torch.float64)
    assert ops.logsumexp(x, 1, out=out) is out
    torch.testing.assert_close(out, torch.logsumexp(x.double(), 1), rtol=0, atol=1e-12)
    narrow = torch.empty(40, dtype=torch.float16)
    torch.testing.assert_close(ops.logsumexp(x.double(), 1, out=narrow), out.half(), rtol=0, atol=4e-3)


def test_logsumexp_of_a_square_along_each_dimension_agrees_with_torch() -> None:
    """Results and gradients of both dimensions have the same shapes and strides."""
    x = numbers((6, 6), torch.float64, 3).requires_grad_()
    for dim in (0, 1, 0):
        ours, torchs = (function(x, dim) for function in (ops.logsumexp, torch.logsumexp))
        torch.testing.assert_close(ours, torchs)
        gradients = [torch.autograd.grad(each, x, torch.arange(6).double())[0] for each in (ours, torchs)]
        torch.testing.assert_close(*gradients)
