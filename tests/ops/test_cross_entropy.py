"""Cross entropy over rows of several tiles and by persistent programs: as torch, and the same bits twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from workbench import ops
from workbench.errors import TensorMismatchError, WorkbenchError
from workbench.kernels.cross_entropy import ALL, LOSS, launch
from workbench.runtime import interpret

ROWS, CLASSES = 7, 19
IGNORED = -100
INFINITY, NAN = float("inf"), float("nan")
WAYS: dict[str, dict[str, Any]] = {
    "whole rows": {"tile": (4, 32)},
    "whole rows, persistent": {"tile": (1, 32), "programs": 3},
    "rows of several tiles": {"tile": (2, 8)},
    "rows of several tiles, persistent": {"tile": (2, 4), "programs": 2},
    "chosen for a GPU": {"compute_units": 132},
}

ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def targets(rows: int = ROWS, classes: int = CLASSES) -> torch.Tensor:
    """The first and the last class among them, and one that is ignored."""
    found = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(0))
    return found.index_copy(0, torch.arange(3), torch.tensor([0, classes - 1, IGNORED]))


@ways
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_ways_to_share_rows(way: dict[str, Any], smoothing: float, weighted: bool, layout: str) -> None:
    """A later tile may raise the maximum, or not: rows rise, fall, and are far from 0."""
    x = numbers(ROWS, CLASSES) + 50
    x[0], x[1] = torch.arange(CLASSES), -torch.arange(CLASSES)
    x = x.t().contiguous().t() if layout == "transposed" else x
    weight = numbers(CLASSES, seed=1).abs() + 0.1 if weighted else None
    want = torch.nn.functional.cross_entropy(
        x, targets(), weight, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
    )
    results = [torch.empty(ROWS, dtype=torch.float64) for _ in range(ALL)]
    one = launch(x, targets(), weight, dim=1, results=results, ignored=IGNORED, smoothing=smoothing, **way)
    seed = random.randrange(2**32)
    shuffled = interpret(one, poison=True, seed=seed)
    assert shuffled.changed == ()
    loss, counted, shift, total, _ = one.run()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(shift + total.log(), x.logsumexp(1))
    weights = torch.ones(CLASSES, dtype=torch.float64) if weight is None else weight
    is_class = targets() != IGNORED
    torch.testing.assert_close(counted[is_class], weights[targets()[is_class]])
    assert counted[~is_class].tolist() == [0.0]
    for got, plain in zip(shuffled.outputs, results, strict=True):
        assert torch.equal(got, plain), f"shuffled by seed {seed}"


def test_nothing_around_the_loss_is_written() -> None:
    memory = torch.full((ROWS + 8,), NAN)
    launch(numbers(ROWS, CLASSES).float(), targets(), dim=1, results=[memory[4:-4]], tile=(4, 8)).run()
    assert memory[4:-4].isfinite().all()
    memory[4:-4] = NAN
    assert memory.isnan().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_more_classes_than_a_tile_holds(smoothing: float) -> None:
    x, target = numbers(3, 20000, dtype=torch.float32), targets(3, 20000)
    leaves = [t.requires_grad_() for t in (x.clone(), x.clone(), x.double())]
    got, want, exact = (
        function(leaf, target, label_smoothing=smoothing)
        for function, leaf in zip(
            (ops.cross_entropy, *[torch.nn.functional.cross_entropy] * 2), leaves, strict=True
        )
    )
    grads = [torch.autograd.grad(y, leaf)[0] for y, leaf in zip((got, want, exact), leaves, strict=True)]
    for ours, theirs, reference in ((got, want, exact), grads):
        off, torchs_off = ((t - reference).abs().max() for t in (ours, theirs))
        assert off <= 2 * torchs_off + reference.abs().max() * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("tile", [(1, 32), (2, 4)])
def test_scores_that_are_no_numbers_as_torch(tile: tuple[int, int], smoothing: float) -> None:
    """Of a row of -inf, of tiles of -inf, of infinity and of NaN: beside the target, and at it."""
    x, target = numbers(8, 12), torch.full((8,), 5)
    x[0], x[1, :4], x[2, 8:], x[3, 5] = -INFINITY, -INFINITY, -INFINITY, -INFINITY
    x[4, 2], x[5, 5], x[6, 2], x[7, 5] = INFINITY, INFINITY, NAN, NAN
    (got,) = launch(
        x, target, dim=1, results=[torch.empty(8, dtype=torch.float64)], smoothing=smoothing, tile=tile
    ).run()
    want = torch.nn.functional.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert want[3] == INFINITY


def test_a_target_that_is_no_class() -> None:
    """The invoker cannot raise, as that would wait for a GPU: NaN in its row alone, and no access outside."""
    target = torch.tensor([0, CLASSES, -1, 2**62, -(2**62), IGNORED, 3])
    (got,) = launch(numbers(ROWS, CLASSES), target, dim=1, results=[numbers(ROWS)], tile=(2, 8)).run()
    assert got.isnan().tolist() == [False, True, True, True, True, False, False]


def test_bytes_as_targets() -> None:
    target = torch.tensor([0, 18, 3, 4, 5, 6, 255], dtype=torch.uint8)
    x = numbers(ROWS, CLASSES)
    torch.testing.assert_close(
        ops.cross_entropy(x, target, ignore_index=255),
        torch.nn.functional.cross_entropy(x, target.long(), ignore_index=255),
    )


def test_a_second_derivative_raises() -> None:
    x = numbers(3, 5).requires_grad_()
    (grad,) = torch.autograd.grad(ops.cross_entropy(x, torch.tensor([0, 1, 4])), x, create_graph=True)
    with pytest.raises(TensorMismatchError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_same_bits_twice(reduction: str) -> None:
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
        ({"dim": -1}, "dim"),  # which would be taken for no dimension at all
        ({"dim": 1.0}, "dim"),
        ({"targets": Y[:2]}, "targets"),
        ({"targets": torch.stack((Y, Y), 1)[:, 0]}, "targets"),  # not contiguous
        ({"class_weights": torch.ones(3)}, "class_weights"),
        ({"results": [LOSSES[:2]]}, r"results\[0\]"),
        ({"results": [LOSSES.to("meta")]}, r"results\[0\]"),
        ({"tile": (3, 4)}, "tile"),
        ({"programs": 0}, "programs"),
    ],
)
def test_errors(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"scores": X, "targets": Y, "dim": 1, "results": [LOSSES][:LOSS]} | change
    scores, target = arguments.pop("scores"), arguments.pop("targets")
    with pytest.raises(WorkbenchError, match=says):
        launch(scores, target, **arguments)
