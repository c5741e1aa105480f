"""Cross entropy of class indices, with its gradient: one pass over the classes, online softmax."""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
from workbench.kernels.layout import Rows, distinct_elements, rows_of
from workbench.kernels.rows import rowwise, softmax
from workbench.kernels.tile import reduce, transfer
from workbench.launch import Launch, Step, Work
from workbench.runtime.cache import LaunchCache

# With label smoothing a row's state is that of the online softmax and two sums over the classes seen so far:
# of w * (x - shift), and of w. Of the scores themselves, instead of their distances from the maximum, large
# ones would cancel one another's digits.


@triton.jit
def init_smoothed(ROWS: tl.constexpr, COLS: tl.constexpr, TYPE: tl.constexpr):
    """The state of no classes, by row."""
    maximum, total = reduce.online_softmax_init(ROWS, TYPE)
    return maximum, total, tl.zeros([ROWS], TYPE), tl.zeros([ROWS], TYPE)


@triton.jit
def seen_smoothed(state, tiles, of_columns, of_rows, valid, tally):
    """The state once a tile of scores was seen too; `of_columns` are the classes' weights, none for 1."""
    x = tiles[0]
    maximum, total = reduce.online_softmax_update((state[0], state[1]), x)[0]
    if len(of_columns) == 0:
        weight = valid.to(x.dtype)
    else:
        weight = tl.where(valid, of_columns[0].to(x.dtype), 0.0)
    distance = x - reduce.finite_shift(maximum)[:, None]
    below = below_another(state[0], state[2], state[3], maximum)
    below += tl.sum(tl.where(valid, weight * distance, 0.0), 1)
    return maximum, total, below, state[3] + tl.sum(weight, 1)


@triton.jit
def merge_smoothed(maximum, total, below, mass, other_maximum, other_total, other_below, other_mass):
    """The state of two sets of classes from the states of each."""
    highest, total = reduce.online_softmax_merge(maximum, total, other_maximum, other_total)
    below = below_another(maximum, below, mass, highest)
    below += below_another(other_maximum, other_below, other_mass, highest)
    return highest, total, below, mass + other_mass


@triton.jit
def below_another(maximum, below, mass, other_maximum):
    """sum of w * (x - shift), where `below` is that of `maximum`, with the shift of another one."""
    distance = reduce.finite_shift(maximum) - reduce.finite_shift(other_maximum)
    return below + tl.where(mass == 0, 0.0, distance * mass)


@triton.jit
def cross_entropy_kernel(
    # pointers: scores; of one value a row the target class; the classes' weights, in a tuple, none for 1
    scores, targets, class_weights,
    # pointers to the first so many of: loss, weight of the target, what is subtracted before exp, sum of
    # exp, and by what the softmax is multiplied in the gradient; each of one value a row
    results,
    # sizes
    rows, cols,
    # what the access function is given, for the scores, in a tuple
    layouts,
    # the target class that is passed over, and the label smoothing
    ignored, smoothing: "fp64",
    # meta-parameters, as in rowwise_tiles_kernel; whether there is label smoothing
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """The loss of each row, ROWS rows at a time, gone over once."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    columns = class_weights[:0]
    if SMOOTH:
        columns = class_weights
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rowwise.rows_of_tile(number, ROWS, WIDE)
        state = rowwise.row_state(
            (scores,), columns, (), row, 0, cols, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
        store_losses(
            state, scores, targets, class_weights, results, row, rows, cols, layouts[0], ignored, smoothing,
            ACCESS, TYPE, SMOOTH,
        )  # fmt: skip


@triton.jit
def cross_entropy_of_states_kernel(
    # pointers: what row_states_kernel left, one tensor [rows, SPLITS] for each part of a state
    states,
    # as in cross_entropy_kernel
    scores, targets, class_weights, results, rows, cols, layouts, ignored, smoothing: "fp64",
    MERGE: tl.constexpr, ACCESS: tl.constexpr, DIVISORS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """The loss of each row, ROWS rows a program, from the states of the SPLITS parts of each."""
    layouts = transfer.known(layouts, DIVISORS)
    rows, cols = rowwise.widened(rows, WIDE), rowwise.widened(cols, WIDE)
    row = rowwise.rows_of_tile(tl.program_id(0), ROWS, WIDE)
    store_losses(
        softmax.state_of_splits(states, row, row < rows, MERGE, SPLITS),
        scores, targets, class_weights, results, row, rows, cols, layouts[0], ignored, smoothing,
        ACCESS, TYPE, SMOOTH,
    )  # fmt: skip


@triton.jit
def store_losses(
    # the rows' state; as in cross_entropy_kernel
    state, scores, targets, class_weights, results, row, rows, cols, layout, ignored, smoothing,
    ACCESS: tl.constexpr, TYPE: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """The results of these rows.

    loss = -(1 - smoothing) * w[target] * log p[target] - smoothing / cols * sum of w[c] * log p[c]

    Shift and logarithm stay apart: their sum, `reduce.online_softmax_finish`, would be rounded.
    """
    smoothing = reduce.scalar(smoothing, TYPE)
    target = transfer.load(targets, row, row < rows).to(tl.int64)
    is_class = (target >= 0) & (target < cols)
    offsets, valid = ACCESS(row, tl.where(is_class, target, 0), layout)
    logit = transfer.load(scores, offsets, valid).to(TYPE)
    weight = weights_of(class_weights, tl.where(is_class, target, 0), cols, TYPE)
    shift, log_total = reduce.finite_shift(state[0]), tl.log(state[1])
    loss = (1.0 - smoothing) * weight * ((shift - logit) + log_total)
    share = (1.0 - smoothing) * weight
    if SMOOTH:
        loss += smoothing / cols * (state[3] * log_total - state[2])
        share += smoothing / cols * state[3]
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

TARGETS = (torch.int64, torch.uint8)

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
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
) -> Launch:
    """The loss of each row of `scores`, and what the gradient needs of it.

    Few rows are split over programs, as those of :func:`softmax.launch`; a second step joins their states.

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
        tile, splits, programs, num_warps, compute_units: see :func:`softmax.launch`.

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
    weights = () if class_weights is None else (class_weights,)
    results = _checked_results(results)
    _check_vectors(scores, scores.shape[dim], targets, weights, results)
    _check_numbers(ignored, smoothing)
    view = rows_of(scores.shape, (scores.stride(),), frozenset((dim,)))[0]
    units = rowwise.units_of(compute_units)
    shape = softmax.default_tile(view, units) if tile is None else rowwise.checked_tile(tile)
    plan = rowwise.plan(
        view, scores.element_size(), shape, splits=splits, programs=programs, num_warps=num_warps,
        compute_units=compute_units,
        split_per_unit=rowwise.SPLIT_PER_UNIT if view.are_cols_neighbors else softmax.FORWARD.across_per_unit,
    )  # fmt: skip
    work = Work(FLOPS * scores.numel(), _bytes(scores, targets, *weights, *results))
    sizes = (view.rows, view.cols, (view.layout,))
    finished = (scores, targets, weights, results, *sizes, ignored, float(smoothing))
    meta = _meta(scores, (view,), plan.rows, plan.cols, plan.splits)
    is_smooth, begin = {"SMOOTH": smoothing > 0}, _SMOOTHED if smoothing > 0 else _PLAIN
    by_tile = meta | begin.meta | {"FILLS": (float("-inf"),), "num_warps": plan.num_warps}
    if plan.splits == 1:
        step = Step(cross_entropy_kernel, (plan.programs,), finished, by_tile | is_smooth)
        return Launch((step,), results, work=work)
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
    return Launch((first, second), results, work=work, workspaces=states)


class _State(NamedTuple):
    """A row's state, as the kernels are given it.

    Attributes:
        meta: INIT, UPDATE and SETTLE. merge: makes one of two. parts: how many tiles it is.
    """

    meta: dict[str, object]
    merge: Any
    parts: int


_PLAIN = _State(
    {"INIT": softmax.init, "UPDATE": softmax.seen, "SETTLE": softmax.settled}, reduce.online_softmax_merge, 2
)
_SMOOTHED = _State(
    {"INIT": init_smoothed, "UPDATE": seen_smoothed, "SETTLE": softmax.settled}, merge_smoothed, 4
)


def _checked_results(results: object) -> tuple[torch.Tensor, ...]:
    fix = f"Give a sequence of {LOSS}, {LOSS_AND_WEIGHT} or {ALL} tensors."
    checked = tuple(check_each("results", results, torch.Tensor, fix))
    if len(checked) not in (LOSS, LOSS_AND_WEIGHT, ALL):
        raise InvalidArgumentError("results", f"got {len(checked)} of them", fix)
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
                f"Give {count} elements, contiguous.",
            )


def _check_numbers(ignored: int, smoothing: float) -> None:
    fix = "Give a whole number of 64 bits."
    check_type("ignored", ignored, int, fix)
    if not -(2**63) <= ignored < 2**63:
        raise InvalidArgumentError("ignored", f"got {ignored}", fix)
    check_type("smoothing", smoothing, float | int, "Give a number from 0 to 1.")
    if not 0 <= smoothing <= 1:
        raise InvalidArgumentError("smoothing", f"got {smoothing}", "Give a number from 0 to 1.")


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
    meta = _meta(scores, views, rows, cols) | {"SMOOTH": smoothing > 0}
    step = Step(cross_entropy_backward_kernel, (programs,), arguments, meta)
    return Launch((step,), (output,), work=Work(FLOPS_BACKWARD * scores.numel(), _bytes(*tensors)))


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


def _key(tensors: Sequence[torch.Tensor], weights: int) -> tuple[object, ...]:
    return (weights, tensors[0].device, tuple((t.shape, t.stride(), t.dtype) for t in tensors))


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(distinct_elements(t) * t.element_size() for t in tensors)
