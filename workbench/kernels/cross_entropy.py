"""Cross entropy of class indices, with its gradient: one pass over the classes, online softmax."""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from workbench.errors import DimensionError, TensorMismatchError, check_type
from workbench.kernels import rowwise, softmax
from workbench.kernels.layout import Rows, distinct_elements, rows_of
from workbench.kernels.tile import reduce, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache


@triton.jit
def cross_entropy_kernel(
    # pointers: scores; of one value a row the target class; the classes' weights, in a tuple, none for 1
    scores, targets, class_weights,
    # pointers to the first so many of: loss, weight of the target, what is subtracted before exp, sum of
    # exp, and by what the softmax is multiplied in the gradient; each of one value a row
    results,
    # sizes
    rows, cols,
    # what the access function is given, for the scores
    layout,
    # the target class that is passed over, and the label smoothing
    ignored, smoothing: "fp64",
    # meta-parameters
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """The loss of each row, ROWS rows at a time.

    loss = -(1 - smoothing) * w[target] * log p[target] - smoothing / cols * sum of w[c] * log p[c]
    """
    (layout,) = transfer.known((layout,), DIVISORS)
    smoothing = reduce.scalar(smoothing, TYPE)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        state = reduce.online_softmax_init(ROWS, TYPE)
        # sum of w * (x - shift) and of w over the classes seen so far: with the scores themselves instead of
        # their distances from the maximum, large ones would cancel one another's digits
        below, mass = tl.zeros([ROWS], TYPE), tl.zeros([ROWS], TYPE)
        for start in range(0, cols, COLS):
            col = rowwise.columns_from(start, COLS, WIDE)
            offsets, valid = rowwise.access(row, col, layout, ACCESS, EXACT)
            x = transfer.load(scores, offsets, valid, float("-inf")).to(TYPE)
            earlier = reduce.finite_shift(state[0])
            state = reduce.online_softmax_update(state, x)[0]
            if SMOOTH:
                shift = reduce.finite_shift(state[0])
                weight = weights_of(class_weights, col, cols, TYPE)
                below += tl.where(mass == 0, 0.0, (earlier - shift) * mass)
                below += tl.sum(tl.where(valid, weight[None, :] * (x - shift[:, None]), 0.0), 1)
                mass += tl.sum(weight, 0)
        target = transfer.load(targets, row, row < rows).to(tl.int64)
        is_class = (target >= 0) & (target < cols)
        offsets, valid = ACCESS(row, tl.where(is_class, target, 0), layout)
        logit = transfer.load(scores, offsets, valid).to(TYPE)
        weight = weights_of(class_weights, tl.where(is_class, target, 0), cols, TYPE)
        shift, log_total = reduce.finite_shift(state[0]), tl.log(state[1])
        loss = (1.0 - smoothing) * weight * ((shift - logit) + log_total)
        share = (1.0 - smoothing) * weight
        if SMOOTH:
            loss += smoothing / cols * (mass * log_total - below)
            share += smoothing / cols * mass
        counts = target != ignored
        loss = tl.where(counts, tl.where(is_class, loss, float("nan")), 0.0)
        found = (loss, tl.where(counts, weight, 0.0), shift, state[1], share)
        rowwise.store_each(results, row, found, row < rows)


@triton.jit
def cross_entropy_backward_kernel(
    # pointers: as in cross_entropy_kernel, `known` its results but the loss; the loss's gradient, of one
    # value a row or of one for all; the gradient of the scores
    scores, targets, class_weights, known, gradients, destination,
    # sizes, and the step from one row's gradient to the next
    rows, cols, gradient_step,
    # what the access function is given, for the scores and for their gradient
    layouts,
    # as in cross_entropy_kernel
    ignored, smoothing: "fp64",
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """gradient * (share * p[c] - (1 - smoothing) * w[target] at the target - smoothing / cols * w[c])

    One tile a program; share = (1 - smoothing) * w[target] + smoothing / cols * sum of w.
    """
    layouts = transfer.known(layouts, DIVISORS)
    smoothing = reduce.scalar(smoothing, TYPE)
    beside = tl.cdiv(rowwise.widened(cols, WIDE), COLS)
    row = rowwise.rows_of_tile(tl.program_id(0) // beside, ROWS, WIDE)
    col = rowwise.columns_from(tl.program_id(0) % beside * COLS, COLS, WIDE)
    target = transfer.load(targets, row, row < rows).to(tl.int64)
    weight, shift, total, share = rowwise.load_each(known, row, row < rows)
    gradient = transfer.load(gradients, row * gradient_step, row < rows).to(TYPE)
    offsets, valid = rowwise.access(row, col, layouts[0], ACCESS, EXACT)
    x = transfer.load(scores, offsets, valid).to(TYPE)
    change = tl.exp(x - shift[:, None]) * (share / total)[:, None]
    change -= tl.where(col[None, :] == target[:, None], ((1.0 - smoothing) * weight)[:, None], 0.0)
    if SMOOTH:
        change -= smoothing / cols * weights_of(class_weights, col, cols, TYPE)[None, :]
    change = tl.where((target != ignored)[:, None], gradient[:, None] * change, 0.0)
    offsets, valid = rowwise.access(row, col, layouts[1], ACCESS, EXACT)
    transfer.store(destination, offsets, change, valid)


@triton.jit
def weights_of(class_weights, classes, cols, TYPE: tl.constexpr):
    """The weights of these classes: 1 where there are none, 0 for what is no class."""
    if len(class_weights) == 0:
        return (classes < cols).to(TYPE)
    else:
        return transfer.load(class_weights[0], classes, classes < cols).to(TYPE)


# Of a kernel's results, those that a loss alone needs, a mean too, and a gradient too.
LOSS, LOSS_AND_WEIGHT, ALL = 1, 2, 5

FLOPS, FLOPS_BACKWARD = 5, 5


def launch(
    scores: torch.Tensor,
    targets: torch.Tensor,
    class_weights: torch.Tensor | None = None,
    *,
    dim: int,
    results: Sequence[torch.Tensor],
    ignored: int = -100,
    smoothing: float = 0.0,
    tile: Sequence[int] | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """The loss of each row of `scores`, and what the gradient needs of it.

    FLOPs: 5 an element. Least bytes: scores, targets and weights read once, results written once.

    Args:
        scores: of any strides, with elements.
        targets: the class of each row, contiguous, int64 or uint8, in the order of the dimensions but `dim`.
            One that is neither a class nor `ignored` makes its row's loss NaN.
        class_weights: contiguous, one a class; None for 1 each.
        dim: the dimension of the classes, from 0.
        results: contiguous tensors of one value a row: :data:`LOSS` of them, :data:`LOSS_AND_WEIGHT` or
            :data:`ALL`.
        ignored: the target that is passed over.
        smoothing: label smoothing, from 0 to 1.
        tile, programs, num_warps, compute_units: see :func:`softmax.launch`.

    Raises:
        TensorMismatchError: tensors do not fit. DimensionError: `dim`. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    if reason := softmax.is_supported("softmax", scores):
        raise TensorMismatchError("scores", reason, "Give a tensor of a supported dtype.")
    if not scores.numel():
        raise TensorMismatchError("scores", "it has no elements", "There is nothing to launch.")
    check_type("dim", dim, int, "Give the number of a dimension.")
    if not 0 <= dim < scores.dim():
        raise DimensionError("dim", f"got {dim}", f"Count from 0: scores has {scores.dim()} dimensions.")
    rows, cols = scores.numel() // scores.shape[dim], scores.shape[dim]
    wanted = [("targets", targets, rows), *((f"results[{i}]", each, rows) for i, each in enumerate(results))]
    if class_weights is not None:
        wanted.append(("class_weights", class_weights, cols))
    for name, tensor, count in wanted:
        if tensor.numel() != count or not tensor.is_contiguous() or tensor.device != scores.device:
            raise TensorMismatchError(
                name,
                f"shape {tuple(tensor.shape)}, strides {tensor.stride()}, on {tensor.device}",
                f"Give {count} elements, contiguous, on {scores.device}.",
            )
    view = rows_of(scores.shape, (scores.stride(),), frozenset((dim,)))[0]
    units = rowwise.units_of(compute_units)
    shape = softmax.default_tile(view, units) if tile is None else rowwise.checked_tile(tile)
    plan = rowwise.plan(
        view, scores.element_size(), shape, splits=1, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
    )  # fmt: skip
    weights = () if class_weights is None else (class_weights,)
    meta = _meta(scores, (view,), plan.rows, plan.cols, smoothing) | {"num_warps": plan.num_warps}
    arguments = (
        scores, targets, weights, tuple(results), view.rows, view.cols, view.layout, ignored, float(smoothing)
    )  # fmt: skip
    work = Work(FLOPS * scores.numel(), _bytes(scores, targets, *weights, *results))
    return Launch((Step(cross_entropy_kernel, (plan.programs,), arguments, meta),), tuple(results), work=work)


_launches = LaunchCache()


def run(
    scores: torch.Tensor,
    targets: torch.Tensor,
    class_weights: torch.Tensor | None,
    dim: int,
    results: Sequence[torch.Tensor],
    ignored: int,
    smoothing: float,
) -> None:
    """`launch(scores, targets, class_weights, ...).run()`, kept ready for tensors that lie alike."""
    weights = () if class_weights is None else (class_weights,)
    tensors = (scores, targets, *weights, *results)
    make = partial(_launch, weights=len(weights), dim=dim, ignored=ignored, smoothing=smoothing)
    _launches.run((_key(tensors, len(weights)), dim, ignored, smoothing), make, *tensors)


def _launch(*tensors: torch.Tensor, weights: int, dim: int, ignored: int, smoothing: float) -> Launch:
    """The launch on scores, targets, `weights` tensors of class weights, and results, in this order."""
    scores, targets, *rest = tensors
    class_weights = rest[0] if weights else None
    return launch(
        scores, targets, class_weights, dim=dim, results=rest[weights:], ignored=ignored, smoothing=smoothing
    )


def run_backward(
    scores: torch.Tensor,
    targets: torch.Tensor,
    class_weights: torch.Tensor | None,
    dim: int,
    known: Sequence[torch.Tensor],
    gradient: torch.Tensor,
    output: torch.Tensor,
    ignored: int,
    smoothing: float,
) -> None:
    """The gradient of the scores, into `output`, kept ready for tensors that lie alike.

    Args:
        scores, targets, class_weights, dim, ignored, smoothing: as :func:`launch` was given.
        known: its results but the loss.
        gradient: of the loss: contiguous, one value a row, or one for all.
        output: of the shape of the scores, of any strides in which no two elements share memory.
    """
    weights = () if class_weights is None else (class_weights,)
    tensors = (scores, targets, *weights, *known, gradient, output)
    make = partial(_launch_backward, weights=len(weights), dim=dim, ignored=ignored, smoothing=smoothing)
    _launches.run(("backward", _key(tensors, len(weights)), dim, ignored, smoothing), make, *tensors)


def _launch_backward(
    *tensors: torch.Tensor, weights: int, dim: int, ignored: int, smoothing: float
) -> Launch:
    """The launch on the tensors of :func:`run_backward`, in this order."""
    scores, targets, *rest, gradient, output = tensors
    views = rows_of(scores.shape, (scores.stride(), output.stride()), frozenset((dim,)))
    rows, cols = softmax.gradient_tile(views[0])
    programs = triton.cdiv(views[0].rows, rows) * triton.cdiv(views[0].cols, cols)
    arguments = (
        scores, targets, tuple(rest[:weights]), tuple(rest[weights:]), gradient, output,
        views[0].rows, views[0].cols, int(gradient.numel() > 1), tuple(view.layout for view in views),
        ignored, float(smoothing),
    )  # fmt: skip
    step = Step(
        cross_entropy_backward_kernel, (programs,), arguments, _meta(scores, views, rows, cols, smoothing)
    )
    return Launch((step,), (output,), work=Work(FLOPS_BACKWARD * scores.numel(), _bytes(*tensors)))


def _meta(
    scores: torch.Tensor, views: Sequence[Rows], rows: int, cols: int, smoothing: float
) -> dict[str, object]:
    view = views[0]
    return {
        "ACCESS": transfer.strided,
        "DIVISORS": sum((each.divisors(scores.element_size()) for each in views), ()),
        "TYPE": tl.float64 if scores.dtype == torch.float64 else tl.float32,
        "ROWS": rows,
        "COLS": cols,
        "EXACT": view.rows % rows == 0 and view.cols % cols == 0,
        "WIDE": any(each.is_wide(max(view.rows + rows, view.cols + cols)) for each in views),
        "SMOOTH": smoothing > 0,
    }


def _key(tensors: Sequence[torch.Tensor], weights: int) -> tuple[object, ...]:
    return (weights, tensors[0].device, tuple((t.shape, t.stride(), t.dtype) for t in tensors))


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(distinct_elements(t) * t.element_size() for t in tensors)
