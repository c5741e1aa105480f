"""Invoker of cross entropy and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import triton
import triton.language as tl

from workbench.errors import (
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    check_each,
    check_type,
)
from workbench.kernels.layout import Rows, least_bytes, rows_of
from workbench.kernels.options import from_options
from workbench.kernels.rows import rowwise, softmax
from workbench.kernels.rows.cross_entropy.kernel import (
    PLAIN,
    SMOOTHED,
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
    cross_entropy_of_states_kernel,
    mean_loss_kernel,
)
from workbench.kernels.rows.cross_entropy.plan import planned
from workbench.kernels.rows.rowwise import Fixed, Options
from workbench.kernels.tile import transfer
from workbench.launch import Launch, Step, Work

# Number of the kernel's results that a caller needs: for the losses; for their weighted mean; for a gradient.
LOSS, LOSS_AND_WEIGHT, ALL = 1, 2, 5
TARGETS = (torch.int64, torch.uint8)

# The most rows whose mean one program computes, and how many of them at a time.
MOST_ROWS_OF_A_MEAN, ROWS_OF_A_STEP = 2**16, 4096
FLOPS, FLOPS_BACKWARD = 5, 5


def launch(
    scores: torch.Tensor,
    targets: torch.Tensor,
    class_weights: torch.Tensor | None = None,
    *,
    dim: int,
    results: Sequence[torch.Tensor],
    mean: Sequence[torch.Tensor] = (),
    ignored: int = -100,
    smoothing: float = 0.0,
    **options: Unpack[Options],
) -> Launch:
    """Compute the loss of each row of `scores`, and the values of each row that its gradient needs.

    If rows are few, several programs share a row, as in :func:`softmax.launch`; a second step joins their
    states. The arithmetic is in fp64 if the scores are fp64, else in fp32. A last step computes the mean.

    FLOPs: 5 an element. Least bytes: scores, targets and weights read once, results written once.

    Args:
        scores: of any strides, with elements.
        targets: the class of each row, contiguous, int64 or uint8, in the order of the dimensions other than
            `dim`. A target that is neither a class nor `ignored` makes its row's loss NaN.
        class_weights: contiguous, one a class; None for weights of 1.
        dim: the dimension of the classes, from 0.
        results: contiguous tensors with one value a row: :data:`LOSS` (the loss), :data:`LOSS_AND_WEIGHT`
            (loss and weight of the target) or :data:`ALL` of the results of `cross_entropy_kernel`.
        mean: two tensors of one element: the sum of the losses over that of the weights, and the latter; then
            `results` has both, in the dtype of the arithmetic, and at most :data:`MOST_ROWS_OF_A_MEAN` rows.
            Empty for no mean.
        ignored: the target class that is ignored: its rows have loss 0 and weight 0.
        smoothing: label smoothing, from 0 to 1.
        options: see :class:`rowwise.Options`.

    Raises:
        TensorMismatchError: tensors do not fit. DimensionError: `dim`. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    fixed = from_options(Fixed, options)
    if found := softmax.misfit("softmax", {"scores": scores}):
        raise TensorMismatchError("scores", *found)
    if not scores.numel():
        given = f"shape {tuple(scores.shape)} has no elements"
        raise TensorMismatchError("scores", given, "Give at least one row and one class.")
    check_type("dim", dim, int, "Give the number of a dimension.")
    if not 0 <= dim < scores.dim():
        fix = f"Give a number from 0 to {scores.dim() - 1}: scores has {scores.dim()} dimensions."
        raise DimensionError(
            "dim", f"got {dim}", fix if scores.dim() else "Give scores of one dimension or more."
        )
    weights = () if class_weights is None else (class_weights,)
    results = _checked_results(results)
    _check_vectors(scores, scores.shape[dim], targets, weights, results)
    _check_numbers(ignored, smoothing)
    view = rows_of(scores.shape, (scores.stride(),), frozenset((dim,)))[0]
    plan = planned(view, scores.element_size(), fixed)
    work = Work(FLOPS * scores.numel(), least_bytes(scores, targets, *weights, *results))
    sizes = (view.rows, view.cols, (view.layout,))
    finished = (scores, targets, weights, results, *sizes, ignored, float(smoothing))
    meta = _meta(scores, (view,), plan.rows, plan.cols, plan.splits)
    is_smooth, begin = {"SMOOTH": smoothing > 0}, SMOOTHED if smoothing > 0 else PLAIN
    by_tile = meta | begin.meta | {"FILLS": (float("-inf"),), "num_warps": plan.num_warps}
    last = _mean_steps(results, mean, view.rows)
    outputs = (*mean, *results)
    if plan.splits == 1:
        step = Step(cross_entropy_kernel, (plan.programs,), finished, by_tile | is_smooth)
        return Launch((step, *last), outputs, work=work)
    states = rowwise.workspaces(begin.parts, scores, view.rows, plan)
    first = Step(
        rowwise.row_states_kernel,
        (triton.cdiv(view.rows, plan.rows) * plan.splits,),
        ((scores,), weights if smoothing > 0 else (), (), states, *sizes),
        by_tile | {"SPLITS": plan.splits},
    )
    by_row = {name: meta[name] for name in ("ACCESS", "DIVISORS", "TYPE", "WIDE")}
    second = Step(
        cross_entropy_of_states_kernel,
        (triton.cdiv(view.rows, softmax.JOINED_ROWS),),
        (states, *finished),
        by_row
        | is_smooth
        | {"MERGE": begin.merge, "ROWS": softmax.JOINED_ROWS, "SPLITS": plan.splits, "num_warps": 1},
    )
    return Launch((first, second, *last), outputs, work=work, workspaces=states)


def _mean_steps(results: Sequence[torch.Tensor], mean: Sequence[torch.Tensor], rows: int) -> tuple[Step, ...]:
    """Return the step that computes the mean, in a tuple; an empty one if there is none."""
    if not mean:
        return ()
    if len(mean) != 2 or len(results) < LOSS_AND_WEIGHT or rows > MOST_ROWS_OF_A_MEAN:
        given = f"got {len(mean)} tensors, for {len(results)} results of {rows} rows"
        fix = f"Give two, for losses and weights of at most {MOST_ROWS_OF_A_MEAN} rows."
        raise InvalidArgumentError("mean", given, fix)
    each = min(triton.next_power_of_2(rows), ROWS_OF_A_STEP)
    return (Step(mean_loss_kernel, (1,), (*results[:2], *mean, rows), {"ROWS": each, "num_warps": 8}),)


def _checked_results(results: object) -> tuple[torch.Tensor, ...]:
    fix = f"Give {LOSS}, {LOSS_AND_WEIGHT} or {ALL} tensors, in a sequence."
    checked = tuple(check_each("results", results, torch.Tensor, fix))
    if len(checked) not in (LOSS, LOSS_AND_WEIGHT, ALL):
        raise InvalidArgumentError("results", f"got {len(checked)} tensors", fix)
    return checked


def _check_vectors(
    scores: torch.Tensor,
    cols: int,
    targets: torch.Tensor,
    weights: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> None:
    rows = scores.numel() // cols
    floats = softmax.SUPPORTED
    vectors: list[tuple[str, torch.Tensor, int, Sequence[torch.dtype]]] = [
        ("targets", targets, rows, TARGETS)
    ]
    vectors += [("class_weights", each, cols, floats) for each in weights]
    vectors += [(f"results[{i}]", each, rows, floats) for i, each in enumerate(results)]
    for name, tensor, count, dtypes in vectors:
        softmax.check_tensor(name, tensor, scores.device, dtypes)
        if tensor.numel() != count or not tensor.is_contiguous():
            raise TensorMismatchError(
                name,
                f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
                f"Give a contiguous tensor of {count} elements.",
            )


def _check_numbers(ignored: int, smoothing: float) -> None:
    fix = "Give a whole number of 64 bits."
    check_type("ignored", ignored, int, fix)
    if not -(2**63) <= ignored < 2**63:
        raise InvalidArgumentError("ignored", f"got {ignored}", fix)
    check_type("smoothing", smoothing, float | int, "Give a number from 0 to 1.")
    if not 0 <= smoothing <= 1:
        raise InvalidArgumentError("smoothing", f"got {smoothing}", "Give a number from 0 to 1.")


def launch_backward(
    scores: torch.Tensor,
    targets: torch.Tensor,
    weights: Sequence[torch.Tensor],
    known: Sequence[torch.Tensor],
    gradient: torch.Tensor,
    output: torch.Tensor,
    *,
    dim: int,
    ignored: int,
    smoothing: float,
) -> Launch:
    """output = the gradient of the scores, on tensors that are known to fit.

    FLOPs: 5 an element. Least bytes: all other tensors read once, the output written once.

    Args:
        scores, targets, dim, ignored, smoothing: the arguments of :func:`launch`.
        weights: the class weights, in a sequence; empty for weights of 1.
        known: the :data:`ALL` results of :func:`launch` without the first, the loss.
        gradient: the gradient of the loss, contiguous: one value a row, or one for all rows.
        output: of the shape of the scores, of any strides in which no two elements share memory.
    """
    views = rows_of(scores.shape, (scores.stride(), output.stride()), frozenset((dim,)))
    rows, cols = softmax.gradient_tile(views[0])
    programs = triton.cdiv(views[0].rows, rows) * triton.cdiv(views[0].cols, cols)
    arguments = (
        scores, targets, tuple(weights), tuple(known), gradient, output,
        views[0].rows, views[0].cols, int(gradient.numel() > 1), tuple(view.layout for view in views),
        ignored, float(smoothing),
    )  # fmt: skip
    meta = _meta(scores, views, rows, cols) | {"SMOOTH": smoothing > 0}
    step = Step(cross_entropy_backward_kernel, (programs,), arguments, meta)
    size = least_bytes(scores, targets, *weights, *known, gradient, output)
    return Launch((step,), (output,), work=Work(FLOPS_BACKWARD * scores.numel(), size))


def _meta(
    scores: torch.Tensor, views: Sequence[Rows], rows: int, cols: int, splits: int = 1
) -> dict[str, object]:
    view = views[0]
    padded = max(view.rows + max(rows, softmax.JOINED_ROWS), view.cols + splits * cols, view.rows * splits)
    return {
        "ACCESS": transfer.strided,
        "DIVISORS": sum((each.divisors(scores.element_size()) for each in views), ()),
        "TYPE": tl.float64 if scores.dtype == torch.float64 else tl.float32,
        "ROWS": rows,
        "COLS": cols,
        "EXACT": view.rows % rows == 0 and view.cols % cols == 0,
        "WIDE": any(each.is_wide(padded) for each in views),
    }
