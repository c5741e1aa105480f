"""Cross entropy for each way in which programs share rows: torch's results, and the same bits twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from workbench import ops
from workbench.errors import DimensionError, TensorMismatchError, WorkbenchError
from workbench.kernels.rows import softmax
from workbench.kernels.rows.cross_entropy import ALL, LOSS, launch
from workbench.lens.compile import compile
from workbench.runtime import interpret

ROWS, CLASSES = 7, 19
IGNORED = -100
INFINITY, NAN = float("inf"), float("nan")
ONE, SPLIT = ["cross_entropy_kernel"], ["row_states_kernel", "cross_entropy_of_states_kernel"]
WAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "whole rows": ({"tile": (4, 32)}, ONE),
    "whole rows, persistent": ({"tile": (1, 32), "programs": 3}, ONE),
    "rows of several tiles": ({"tile": (2, 8), "splits": 1}, ONE),
    "rows of several tiles, persistent": ({"tile": (2, 4), "splits": 1, "programs": 2}, ONE),
    "rows split": ({"tile": (2, 8), "splits": 2}, SPLIT),
    "rows split, a tile each": ({"tile": (4, 4), "splits": 5}, SPLIT),
    "chosen": ({}, ONE),
    "chosen for a GPU": ({"tile": (4, 8), "compute_units": 132}, SPLIT),
}

ways = pytest.mark.parametrize(("way", "kernels"), WAYS.values(), ids=list(WAYS))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def targets(rows: int = ROWS, classes: int = CLASSES) -> torch.Tensor:
    """Return targets with the first and the last class among them, and one that is ignored."""
    found = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(0))
    return found.index_copy(0, torch.arange(3), torch.tensor([0, classes - 1, IGNORED]))


@ways
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_every_division_of_rows_agrees_with_torch_in_any_order_of_programs(
    way: dict[str, Any], kernels: list[str], smoothing: float, weighted: bool, layout: str
) -> None:
    """Rows rise or fall, so that a later tile may raise the maximum or not, and are far from 0."""
    x = numbers(ROWS, CLASSES) + 50
    x[0], x[1] = torch.arange(CLASSES), -torch.arange(CLASSES)
    x = x.t().contiguous().t() if layout == "transposed" else x
    weight = numbers(CLASSES, seed=1).abs() + 0.1 if weighted else None
    want = torch.nn.functional.cross_entropy(
        x, targets(), weight, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
    )
    results = [torch.empty(ROWS, dtype=torch.float64) for _ in range(ALL)]
    one = launch(x, targets(), weight, dim=1, results=results, ignored=IGNORED, smoothing=smoothing, **way)
    assert [step.name for step in one.steps] == kernels
    seed = random.randrange(2**32)
    shuffled = interpret(one, poison=True, seed=seed)
    assert all(any(each is state for state in one.workspaces) for each in shuffled.changed)
    loss, counted, shift, total, _ = one.run()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(shift + total.log(), x.logsumexp(1))
    weights = torch.ones(CLASSES, dtype=torch.float64) if weight is None else weight
    is_class = targets() != IGNORED
    torch.testing.assert_close(counted[is_class], weights[targets()[is_class]])
    assert counted[~is_class].tolist() == [0.0]
    for got, plain in zip(shuffled.outputs, results, strict=True):
        assert torch.equal(got, plain), f"shuffled by seed {seed}"


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_few_rows_of_many_classes_are_shared_by_programs(smoothing: float) -> None:
    """A row of a million classes has the grid of a softmax; a row of 16,384 is computed by one kernel."""
    x = torch.empty(1, 1_000_000)
    one = launch(x, Y[:1], dim=1, results=[torch.empty(1)], smoothing=smoothing, compute_units=132)
    like = softmax.launch("softmax", x, compute_units=132)
    assert one.steps[0].grid == like.steps[0].grid
    assert one.steps[0].grid > (1,)
    whole = launch(
        torch.empty(1, 16384), Y[:1], dim=1, results=[torch.empty(1)], smoothing=smoothing, compute_units=132
    )
    assert [step.name for step in whole.steps] == ONE


def test_interleaved_rows_are_split_among_programs() -> None:
    x = torch.empty(2, 1000, 3, 3)
    target, loss = torch.zeros(2, 3, 3, dtype=torch.int64), torch.empty(2, 3, 3)
    one = launch(x, target, dim=1, results=[loss], compute_units=132)
    assert [step.name for step in one.steps] == SPLIT


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_variant_of_the_kernel_compiles_for_nvidia_and_amd(target: str, smoothing: float) -> None:
    x, weight = torch.empty(8, 999, dtype=torch.float16), torch.empty(999, dtype=torch.float16)
    results = [torch.empty(8) for _ in range(ALL)]
    how: dict[str, Any] = {"dim": 1, "results": results, "smoothing": smoothing, "tile": (1, 128)}
    for given in (weight, None):
        for splits, steps in ((1, 1), (4, 2)):
            one = launch(x, torch.empty(8, dtype=torch.int64), given, splits=splits, **how)
            assert len(compile(one, target)) == steps


def test_no_memory_around_the_loss_is_written() -> None:
    memory = torch.full((ROWS + 8,), NAN)
    launch(numbers(ROWS, CLASSES).float(), targets(), dim=1, results=[memory[4:-4]], tile=(4, 8)).run()
    assert memory[4:-4].isfinite().all()
    memory[4:-4] = NAN
    assert memory.isnan().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_longer_than_a_tile_are_as_accurate_as_torch(smoothing: float) -> None:
    x, target = numbers(3, 20000, dtype=torch.float32), targets(3, 20000)
    leaves = [t.requires_grad_() for t in (x.clone(), x.clone(), x.double())]
    functions: list[Callable[..., torch.Tensor]] = [ops.cross_entropy]
    functions += [torch.nn.functional.cross_entropy] * 2
    got, want, exact = (
        function(leaf, target, label_smoothing=smoothing)
        for function, leaf in zip(functions, leaves, strict=True)
    )
    grads = [torch.autograd.grad(y, leaf)[0] for y, leaf in zip((got, want, exact), leaves, strict=True)]
    for ours, theirs, reference in ((got, want, exact), grads):
        off, torchs_off = ((t - reference).abs().max() for t in (ours, theirs))
        assert off <= 2 * torchs_off + reference.abs().max() * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("tile", "splits"), [((1, 32), 1), ((2, 4), 1), ((2, 4), 3)])
def test_nan_and_infinite_scores_give_torchs_losses(
    tile: tuple[int, int], splits: int, smoothing: float
) -> None:
    """Rows hold -inf alone, tiles of -inf, infinity or NaN, beside the target and at it."""
    x, target = numbers(8, 12), torch.full((8,), 5)
    x[0], x[1, :4], x[2, 8:], x[3, 5] = -INFINITY, -INFINITY, -INFINITY, -INFINITY
    x[4, 2], x[5, 5], x[6, 2], x[7, 5] = INFINITY, INFINITY, NAN, NAN
    results = [torch.empty(8, dtype=torch.float64)]
    one = launch(x, target, dim=1, results=results, smoothing=smoothing, tile=tile, splits=splits)
    (got,) = one.run()
    want = torch.nn.functional.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert want[3] == INFINITY


def test_a_target_that_is_no_class_has_a_loss_of_nan() -> None:
    """Other rows have torch's losses, and no access is out of bounds.

    Raising would have to wait for the GPU.
    """
    x, target = numbers(ROWS, CLASSES), torch.tensor([0, CLASSES, -1, 2**62, -(2**62), IGNORED, 3])
    (got,) = launch(x, target, dim=1, results=[numbers(ROWS)], tile=(2, 8)).run()
    others = [0, 5, 6]
    assert got.isnan().tolist() == [row not in others for row in range(ROWS)]
    want = torch.nn.functional.cross_entropy(x[others], target[others], reduction="none")
    torch.testing.assert_close(got[others], want)


def test_uint8_targets_give_torchs_loss_of_int64_targets() -> None:
    target = torch.tensor([0, 18, 3, 4, 5, 6, 255], dtype=torch.uint8)
    x = numbers(ROWS, CLASSES)
    torch.testing.assert_close(
        ops.cross_entropy(x, target, ignore_index=255),
        torch.nn.functional.cross_entropy(x, target.long(), ignore_index=255),
    )


@pytest.mark.parametrize("outside", [156, 255, 19])
def test_uint8_targets_that_are_not_a_class_raise(outside: int) -> None:
    """156 has the bits of -100 in a byte, but is not ignored."""
    target = torch.tensor([0, 18, 3, 4, 5, 6, outside], dtype=torch.uint8)
    with pytest.raises(DimensionError, match=f"target: got {outside}"):
        ops.cross_entropy(numbers(ROWS, CLASSES), target)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in a view of their negatives."""
    return torch._neg_view(-tensor)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_negated_views_give_the_losses_of_their_values(which: int, reduction: str) -> None:
    target = torch.tensor([0, 18, 3, 4, 5, 6, 9])
    plain = [numbers(ROWS, CLASSES), target, numbers(CLASSES, seed=1).abs()]
    given = [negated(t) if i == which else t for i, t in enumerate(plain)]
    assert given[which].is_neg()
    got, want = (ops.cross_entropy(x, y, weight, reduction=reduction) for x, y, weight in (given, plain))
    assert torch.equal(got, want)


def test_transforms_of_a_weighted_loss_agree_with_torch() -> None:
    """torch's transforms follow every tensor of a call, but only the scores are differentiated."""
    x, target, weight = numbers(ROWS, CLASSES), targets(), numbers(CLASSES, seed=1).abs()

    def gradients(function: Any) -> list[torch.Tensor]:
        def loss(a: torch.Tensor) -> torch.Tensor:
            return function(a, target, weight, label_smoothing=0.1)  # type: ignore[no-any-return]

        value, pull_back = torch.func.vjp(loss, x)[:2]
        return [torch.func.grad(loss)(x), value, *pull_back(torch.ones_like(value))]

    for ours, torchs in zip(
        gradients(ops.cross_entropy), gradients(torch.nn.functional.cross_entropy), strict=True
    ):
        torch.testing.assert_close(ours, torchs)


def test_class_weights_have_a_gradient_with_probabilities_only() -> None:
    """With class indices, autograd and torch.func are refused a gradient of the class weights."""
    x, target, weight = numbers(ROWS, CLASSES), targets(), numbers(CLASSES, seed=1).abs()

    def loss(w: torch.Tensor, a: torch.Tensor = x) -> torch.Tensor:
        return ops.cross_entropy(a, target, w)

    with pytest.raises(TensorMismatchError, match="weight: it requires a gradient"):
        loss(weight.clone().requires_grad_())
    with torch.no_grad():
        assert loss(weight.clone().requires_grad_()).isfinite()
    with pytest.raises(TensorMismatchError, match="weight: it requires a gradient"):
        torch.func.grad(loss)(weight)
    with pytest.raises(TensorMismatchError, match="weight: it requires a gradient"):
        torch.func.grad(lambda w: torch.func.grad(lambda a: loss(w, a))(x).sum())(weight)
    leaf = weight.clone().requires_grad_()
    got, want = (
        torch.autograd.grad(function(x, x.softmax(1), leaf), leaf)[0]
        for function in (ops.cross_entropy, torch.nn.functional.cross_entropy)
    )
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("of_target", [torch.int64, torch.float32])
def test_autocast_gives_torchs_loss(dtype: torch.dtype, of_target: torch.dtype) -> None:
    x, weight = numbers(ROWS, CLASSES, dtype=dtype), numbers(CLASSES, seed=1, dtype=dtype).abs()
    target = targets() if of_target == torch.int64 else numbers(ROWS, CLASSES, seed=2).softmax(1).to(dtype)
    outcomes = []
    for function in (ops.cross_entropy, torch.nn.functional.cross_entropy):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = function(leaf, target, weight)
        outcomes.append((loss, *torch.autograd.grad(loss, leaf)))
    for ours, torchs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_scores_changed_before_the_gradient_raise() -> None:
    """The gradient reads the scores, so it would be wrong after the change."""
    x = numbers(ROWS, CLASSES).requires_grad_()
    scores = x * 1
    loss = ops.cross_entropy(scores, targets())
    scores.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_raises() -> None:
    x = numbers(3, 5).requires_grad_()
    (grad,) = torch.autograd.grad(ops.cross_entropy(x, torch.tensor([0, 1, 4])), x, create_graph=True)
    with pytest.raises(TensorMismatchError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_loss_and_gradient_have_the_same_bits_twice(reduction: str) -> None:
    x, target = numbers(40, 33, dtype=torch.float32), targets(40, 33)

    def both() -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        loss = ops.cross_entropy(leaf, target, reduction=reduction, label_smoothing=0.1)
        return [loss.detach(), *torch.autograd.grad(loss.sum(), leaf)]

    for one, other in zip(both(), both(), strict=True):
        assert torch.equal(one, other)


X, Y, LOSSES = numbers(3, 4), torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": X.long()}, "int64"),
        ({"scores": X[:, :0]}, "no elements"),
        ({"dim": 2}, "dim"),
        ({"dim": -1}, "dim"),  # would pass for no dimension
        ({"dim": 1.0}, "dim"),
        ({"targets": Y[:2]}, "targets"),
        ({"targets": torch.stack((Y, Y), 1)[:, 0]}, "targets"),  # not contiguous
        ({"class_weights": torch.ones(3)}, "class_weights"),
        ({"results": [LOSSES[:2]]}, r"results\[0\]"),
        ({"results": [LOSSES.to("meta")]}, r"results\[0\]"),
        ({"tile": (3, 4)}, "tile"),
        ({"programs": 0}, "programs"),
        ({"splits": 0}, "splits"),
        ({"targets": Y.float()}, "targets"),
        ({"targets": torch._neg_view(-Y)}, "targets"),
        ({"targets": [0, 1, 2]}, "targets"),
        ({"class_weights": [1.0] * 4}, "class_weights"),
        ({"class_weights": torch.ones(4, dtype=torch.int64)}, "class_weights"),
        ({"class_weights": torch._neg_view(torch.ones(4))}, "class_weights"),
        ({"results": None}, "results"),
        ({"results": [1]}, r"results\[0\]"),
        ({"results": [LOSSES.long()]}, r"results\[0\]"),
        ({"results": [torch._neg_view(LOSSES)]}, r"results\[0\]"),
        ({"results": []}, "results: got 0"),
        ({"results": [LOSSES] * 3}, "results: got 3"),
        ({"smoothing": 1.5}, "smoothing"),
        ({"smoothing": -0.1}, "smoothing"),
        ({"smoothing": NAN}, "smoothing"),
        ({"smoothing": "a"}, "smoothing"),
        ({"ignored": "a"}, "ignored"),
        ({"ignored": 1 << 70}, "ignored"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"scores": X, "targets": Y, "dim": 1, "results": [LOSSES][:LOSS]} | change
    scores, target = arguments.pop("scores"), arguments.pop("targets")
    with pytest.raises(WorkbenchError, match=says):
        launch(scores, target, **arguments)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_ignored_row_has_a_gradient_of_zeros(value: float) -> None:
    """The row may hold NaN or infinity, which torch multiplies by zero."""
    x = torch.tensor([[1.0, 2.0], [value, 1.0]], requires_grad=True)
    ops.cross_entropy(x, torch.tensor([0, -100])).backward()
    assert x.grad is not None
    assert x.grad[0].isfinite().all()
    assert torch.equal(x.grad[1], torch.zeros(2))
