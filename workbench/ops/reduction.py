"""Reductions of a tensor, or of some of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NumberRangeError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
    check_type,
    in_brief,
)
from workbench.kernels.rows import reduction
from workbench.ops.arguments import (
    TORCHS_ERRORS,
    as_real,
    as_wholes,
    check_operand,
    check_out,
    check_plain,
    copy_out,
    in_words,
    is_autocast,
    is_followed,
    kind_of,
    torchs_words,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.elementwise import on_one_device, run_binary
from workbench.ops.gradients import add_batch_dim, batches
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start

Dims = int | Sequence[int] | None
Pair = tuple[torch.Tensor, torch.Tensor]

# Without a dimension, torch's forms of these functions do not accept `dim` and `keepdim` as keywords.
_TWO_FORMS = ("max", "min")

# The kernels of reductions to bool.
_OF_TRUTHS = {"sum": "any", "prod": "all"}

# These take several dimensions, like a list of sizes, which can be a tensor of one element.
_OF_SEVERAL = ("sum", "mean", "amax", "amin", "norm")

# torch's functions also take NumPy's names, and Python's types as dtypes.
_NUMPYS_NAMES = {
    "axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "x1": "input", "x2": "other",
}  # fmt: skip
_PYTHONS_TYPES: dict[object, torch.dtype] = {
    float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128,
}  # fmt: skip

# Keywords, and types of `dim`, that are passed on unread, to save time.
_PLAIN, _PLAIN_DIMS = {"dim", "keepdim", "out", "p"}, {int, tuple, type(None)}

_NORMS: dict[float, str] = {
    0: "count_nonzero", 1: "norm1", 2: "norm2",
    float("inf"): "largest_magnitude", float("-inf"): "smallest_magnitude",
}  # fmt: skip


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _with_torchs_keywords(function: _Function) -> _Function:
    """Let a function take torch's other keywords too: `axis`, `keepdims`, `dtype=float`."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if options and not (_PLAIN.issuperset(options) and type(options.get("dim")) in _PLAIN_DIMS):
            options = _read(options, function.__name__ in _OF_SEVERAL)
        return function(*args, **options)

    return called  # type: ignore[return-value]  # of the same signature


def _read(options: dict[str, Any], are_several: bool) -> dict[str, Any]:
    """Translate names and types; `dim` may be a tensor, of one element if the function takes several."""
    read = {_NUMPYS_NAMES.get(name, name): value for name, value in options.items()}
    if len(read) < len(options):
        raise ArgumentTypeError(
            ", ".join(options), "two of these names mean the same argument", "Give only one of the two."
        )
    if isinstance(read.get("dtype"), type):
        read["dtype"] = _PYTHONS_TYPES.get(read["dtype"], read["dtype"])
    if isinstance(dim := read.get("dim"), torch.Tensor):
        # Under this name a tensor is a dimension, not the second operand of `max` or `min`.
        if are_several:
            (read["dim"],) = as_wholes("dim", dim)
            return read
        if dim.dim() or dim.dtype not in reduction.INTEGERS:
            raise ArgumentTypeError("dim", f"got {in_words(dim)}", "Give a whole number.")
        read["dim"] = int(dim)
    return read


@profiled
@_with_torchs_keywords
def sum(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sum of elements, as `torch.sum`: in fp32, in fp64 for fp64, exact modulo 2^64 for integers.

    Args:
        input: a tensor of any shape and strides.
        dim: one dimension or several; negative ones count from the end; None or () for all. As in torch,
            `axis` is another name of it, and `keepdims` of the next argument.
        keepdim: whether to keep reduced dimensions, with one element.
        dtype: the dtype of the result, to which elements are converted first; None for that of `input`, int64
            for integers and bool.
        out: the tensor for the result; None for a new tensor.

    Raises:
        ArgumentTypeError: an argument has another type. DimensionError: `input` does not have `dim`.
        TensorMismatchError: `dim`, `dtype` or `out` do not fit; the message quotes torch.
        UnsupportedDtypeError: `input` or `dtype` is complex, fp8 or another dtype without a kernel.
    """
    return _total("sum", input, dim, keepdim, dtype, out)


@profiled
@_with_torchs_keywords
def mean(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mean of floating-point elements, as `torch.mean`; other elements need a floating `dtype`.

    Arguments and errors as for :func:`sum`.
    """
    return _total("mean", input, dim, keepdim, dtype, out)


@profiled
@_with_torchs_keywords
def prod(
    input: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of elements along one dimension or of all, as `torch.prod`.

    It can be differentiated once. Arguments and errors as for :func:`sum`.
    """
    question = _Reduction("prod", input, dim, keepdim, out, dtype=dtype)
    check_out(out, input)
    if question.is_torchs:
        return question.torchs_answer()  # type: ignore[no-any-return]  # torch's operators are not typed alike
    to = _dtype_of_result(input, dtype, out, widened_on_cpu=True)
    compute = partial(_reduce, name="prod", dtype=to)
    derive = partial(_prod_gradient, is_of_all=dim is None)
    return _delivered(_derivable(compute, derive, input, question.dims, keepdim, to), out)


@profiled
@_with_torchs_keywords
def amax(
    input: torch.Tensor, dim: Dims = (), keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The largest element, NaN if there is one, as `torch.amax`.

    It can be differentiated once: equal elements share the gradient. Arguments and errors as for :func:`sum`.
    """
    return _value("amax", "amax", input, dim, keepdim, out)


@profiled
@_with_torchs_keywords
def amin(
    input: torch.Tensor, dim: Dims = (), keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The smallest element, NaN if there is one, as `torch.amin`.

    It can be differentiated once: equal elements share the gradient. Arguments and errors as for :func:`sum`.
    """
    return _value("amin", "amin", input, dim, keepdim, out)


@profiled
@_with_torchs_keywords
def max(
    input: torch.Tensor,
    dim: int | torch.Tensor | None = None,
    keepdim: bool = False,
    *,
    other: torch.Tensor | None = None,
    out: torch.Tensor | Pair | None = None,
) -> Any:
    """The largest element, as `torch.max` in its three forms.

    `max(input)`: the largest of all elements. `max(input, dim, keepdim)`: the largest along a dimension and
    its first index, as `torch.return_types.max`. `max(input, other)`: the larger of two tensors that
    broadcast, element by element. NaN is larger than any number. It can be differentiated once: along a
    dimension the element at the index has the gradient; in the other forms equal elements share it.

    Args:
        input: a tensor of any shape and strides.
        dim: a dimension; None for all; or the other tensor.
        keepdim: whether to keep the dimension, with one element.
        other: the other tensor.
        out: the tensor for the result; with a dimension, a pair for values and indices.

    Raises:
        The errors of :func:`sum`.
    """
    return _extreme("max", input, dim, keepdim, other, out)


@profiled
@_with_torchs_keywords
def min(
    input: torch.Tensor,
    dim: int | torch.Tensor | None = None,
    keepdim: bool = False,
    *,
    other: torch.Tensor | None = None,
    out: torch.Tensor | Pair | None = None,
) -> Any:
    """The smallest element, as `torch.min` in its three forms; NaN is the smallest. See :func:`max`."""
    return _extreme("min", input, dim, keepdim, other, out)


@profiled
@_with_torchs_keywords
def norm(
    input: torch.Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(sum of |x| ** p) ** (1 / p), as `torch.norm`.

    It can be differentiated once.

    Args:
        input: a floating-point tensor of any shape and strides.
        p: the order, a number: 0 counts the elements that are not 0, infinity is the largest magnitude,
            -infinity the smallest; orders without a kernel of their own are computed in float64. "fro" and
            None are 2.
        dim, keepdim, dtype, out: as for :func:`sum`.

    Raises:
        InvalidArgumentError: `p` is "nuc", the sum of singular values, which is not a reduction. Others as
            for :func:`sum`.
    """
    if not isinstance(p, str | None):
        if isinstance(p, int) and not -(2**63) <= p < 2**64:
            raise NumberRangeError("p", f"got {in_brief(p)}", "Give it as a float.")
        p = as_real("p", p)
    if p == "nuc":
        raise InvalidArgumentError(
            "p",
            "got 'nuc', the sum of singular values",
            "Use torch.linalg.matrix_norm: 'nuc' is not a reduction.",
        )
    question = _Reduction("norm", input, dim, keepdim, out, p=p, dtype=dtype)
    check_out(out, input)
    if question.is_torchs:
        return question.torchs_answer()  # type: ignore[no-any-return]  # torch's operators are not typed alike
    order = 2.0 if p in ("fro", None) else float(p)
    dtype = _dtype_of_result(input, dtype, None) or input.dtype
    compute, derive = partial(_norm, order=order, dtype=dtype), partial(_norm_gradient, order=order)
    return _delivered(_derivable(compute, derive, input, question.dims, keepdim, dtype), out)


def _norm(
    input: torch.Tensor, order: float, dims: frozenset[int], keepdim: bool, dtype: torch.dtype
) -> torch.Tensor:
    if order in _NORMS:
        return _reduce(input, _NORMS[order], dims, keepdim, dtype, order)
    return _reduce(input, "norm", dims, keepdim, torch.float64, order).to(dtype)


@profiled
@_with_torchs_keywords
def any(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Test if any element is nonzero, as `torch.any`: bool; uint8 for uint8. NaN counts as nonzero.

    Arguments and errors as for :func:`sum`, but `dim=()` reduces no dimension.
    """
    return _value("any", "any", input, dim, keepdim, out)


@profiled
@_with_torchs_keywords
def all(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Test if all elements are nonzero, as `torch.all`: bool; uint8 for uint8. NaN counts as nonzero.

    Arguments and errors as for :func:`sum`, but `dim=()` reduces no dimension.
    """
    return _value("all", "all", input, dim, keepdim, out)


@profiled
@_with_torchs_keywords
def argmax(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The index of the largest element, as `torch.argmax`: the first of equal elements, or the first NaN.

    Without `dim` it is the index in the flattened tensor. Arguments and errors as for :func:`sum`.
    """
    return _value("argmax", "argmax", input, dim, keepdim, out)


@profiled
@_with_torchs_keywords
def argmin(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The index of the smallest element, as `torch.argmin`: the first of equal elements, or the first NaN.

    Arguments and errors as for :func:`argmax`.
    """
    return _value("argmin", "argmin", input, dim, keepdim, out)


def _total(
    name: str,
    input: torch.Tensor,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Return the sum or the mean, with gradients."""
    question = _Reduction(name, input, dim, keepdim, out, dtype=dtype)
    if out is not None:
        check_out(out, input)
    if question.is_torchs:
        return question.torchs_answer()  # type: ignore[no-any-return]  # torch's operators are not typed alike
    to = _dtype_of_result(input, dtype, out) if name == "sum" or out is not None else dtype
    return _delivered(_followed_total(input, name, question.dims, keepdim, to), out)


def sum_of_gradient(
    grad: torch.Tensor, dims: Sequence[int], keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the sum of a gradient, or of each in a batch, over some of its dimensions, rounded once.

    Args:
        dims: the dimensions, 0 or more; if there are none, the gradient itself is returned.
        keepdim: whether to keep these dimensions, with one element.
        dtype: the dtype of the result; None for that of `grad`.
    """
    if (found := batches(grad)) is not None:
        behind = [d + 1 for d in dims]
        return add_batch_dim(sum_of_gradient(found.tensors[0], behind, keepdim, dtype), found.level)
    dtype = grad.dtype if dtype is None else dtype
    return sum(grad, tuple(dims), keepdim, dtype=dtype) if dims else grad.to(dtype)


def _dtype_of_result(
    input: torch.Tensor, dtype: torch.dtype | None, out: torch.Tensor | None, *, widened_on_cpu: bool = False
) -> torch.dtype | None:
    """Return `dtype`, else that of `out`, else fp32 for fp16 and bf16 under `torch.autocast`, else None."""
    if dtype is not None or out is not None:
        return out.dtype if dtype is None and out is not None else dtype
    is_half = input.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if is_half and is_autocast(input, on_cpu=widened_on_cpu) else None


def _followed_total(
    input: torch.Tensor, name: str, dims: frozenset[int], keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    if not is_followed(input):
        return _reduce(input, name, dims, keepdim, dtype)  # autograd would take longer than the launch
    _check_derivable(input, dtype)
    return _recorded_total(input, name=name, dims=dims, keepdim=keepdim, dtype=dtype)  # type: ignore[no-any-return]


def _total_backward(call: Applied, name: str, dims: frozenset[int], **_: Any) -> Gradient:
    (input,) = call.tensors
    compute = partial(_spread_total, shape=input.shape, like=input.dtype, is_mean=name == "mean", dims=dims)
    return (), compute


def _spread_total(
    grad: torch.Tensor, shape: torch.Size, like: torch.dtype, is_mean: bool, dims: frozenset[int]
) -> torch.Tensor:
    """Return the gradient of each element of a sum or mean."""
    grad = grad.reshape([1 if d in dims else n for d, n in enumerate(shape)])
    if is_mean:
        grad = grad / torch.Size(shape[d] for d in dims).numel()
    return grad.to(like).expand(shape)


def _total_tangent(tensors: Sequence[Any], tangents: Sequence[torch.Tensor], **how: Any) -> torch.Tensor:
    return _followed_total(tangents[0], **how)


def _total_of_batches(
    size: int, places: Sequence[int], input: torch.Tensor, dims: frozenset[int], **how: Any
) -> torch.Tensor:
    return _followed_total(input.movedim(places[0], 0), dims=frozenset(d + 1 for d in dims), **how)


def _value(
    name: str, kernel: str, input: torch.Tensor, dim: Dims, keepdim: bool, out: torch.Tensor | None
) -> torch.Tensor:
    """Return a reduction that has one result and converts no elements."""
    question = _Reduction(name, input, dim, keepdim, out)
    derive = _GRADIENTS.get(name)
    if derive is None:
        _check_no_transform(name)
    else:
        check_out(out, input)
    if question.is_torchs:
        return question.torchs_answer()  # type: ignore[no-any-return]  # torch's operators are not typed alike
    if derive is None:
        return _delivered(_reduce(input, kernel, question.dims, keepdim), out)
    return _delivered(_derivable(partial(_reduce, name=kernel), derive, input, question.dims, keepdim), out)


def _extreme(
    name: str,
    input: torch.Tensor,
    dim: int | torch.Tensor | None,
    keepdim: bool,
    other: torch.Tensor | None,
    out: torch.Tensor | Pair | None,
) -> Any:
    """Return `max` or `min` in one of its three forms."""
    if isinstance(dim, torch.Tensor):
        if other is not None or keepdim:
            raise ArgumentTypeError(
                "dim", "got a tensor, and other or keepdim", f"Give two tensors to {name} and no more."
            )
        dim, other = None, dim
    if other is not None:
        if dim is not None or keepdim:
            fix = f"Give {name} two tensors and no more, or one tensor with dim and keepdim."
            raise ArgumentTypeError("other", "got it together with dim or keepdim", fix)
        return _binary(f"{name}imum", input, other, out)
    if dim is None and not keepdim:
        return _value(name, f"a{name}", input, None, False, out)  # type: ignore[arg-type]  # _Reduction sees to it
    question = _Reduction(name, input, dim, keepdim, out, is_pair=True)
    for place in out or ():
        check_out(place, input)
    if question.is_torchs:
        return question.torchs_answer()
    compute = partial(_pair, name=name)
    derive = partial(_picked_gradient, shape=input.shape)
    results = _derivable(compute, derive, input, question.dims, keepdim, needed=(2,))
    if out is not None:
        results = [_delivered(result, place) for result, place in zip(results, out, strict=True)]
    return getattr(torch.return_types, name)(results)


def _pair(input: torch.Tensor, name: str, dims: frozenset[int], keepdim: bool) -> tuple[torch.Tensor, ...]:
    """Return the extreme along a dimension, and its index."""
    results = _outputs(input, name, dims, keepdim, input.dtype)
    run_reduction(input.resolve_neg(), dims, results, name)
    return tuple(results)


def _binary(name: str, input: torch.Tensor, other: torch.Tensor, out: object) -> torch.Tensor:
    """Return the larger or the smaller of two tensors, element by element."""
    check_plain(input)
    check_operand("other", other, torch.Tensor, "a torch.Tensor")
    check_out(out, input, other)
    for argument, tensor in (("input", input), ("other", other)):
        _check_dtype(argument, tensor.dtype)
    try:
        like: torch.Tensor = getattr(torch, name)(*(t.detach().to("meta") for t in (input, other)))
    except TORCHS_ERRORS as error:
        given = f"{in_words(input)}, {in_words(other)}"
        raise kind_of(error)("input, other", given, torchs_words(error, f"torch.{name}")) from None
    both = torch.broadcast_tensors(*on_one_device(input, other))
    compute = partial(_run_binary, name=name, like=like)
    if is_followed(input, other):
        derive = partial(_shared_gradient, is_smaller=torch.lt if name == "maximum" else torch.gt)
        tensors = [t.to(like.dtype) for t in both]
        return _followed(*tensors, compute=compute, derive=derive, needed=(0, 1))  # type: ignore[no-any-return]
    return _delivered(compute(*both), out)  # type: ignore[arg-type]  # check_out has seen that it is a tensor


def _run_binary(x: torch.Tensor, y: torch.Tensor, name: str, like: torch.Tensor) -> torch.Tensor:
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=x.device)
    if result.numel() and not result.is_meta:
        run_binary(x.resolve_neg(), y.resolve_neg(), result, name)
    return result


def _derivable(
    compute: Callable[..., Any],
    derive: Callable[..., tuple[torch.Tensor, ...]],
    input: torch.Tensor,
    dims: frozenset[int],
    keepdim: bool,
    dtype: torch.dtype | None = None,
    needed: Sequence[int] = (0, 1),
) -> Any:
    """Return `compute(input, dims=..., keepdim=...)`, a tensor or a pair; autograd records it if it has to.

    Args:
        compute: the reduction, of `input` or of `input` converted to `dtype`.
        derive, needed: see :func:`_compute`; `derive` is also given `dims`, and results with kept
            dimensions.
    """
    if not is_followed(input):
        return compute(input, dims=dims, keepdim=keepdim)  # autograd would take longer than the launch
    _check_derivable(input, dtype)
    kept = _followed(
        input if dtype is None else input.to(dtype),
        compute=partial(compute, dims=dims, keepdim=True),
        derive=partial(derive, dims=tuple(dims)),
        needed=needed,
    )
    if keepdim:
        return kept
    results = [result.squeeze(tuple(dims)) for result in (kept if isinstance(kept, tuple) else (kept,))]
    return results if isinstance(kept, tuple) else results[0]


def _compute(
    *tensors: torch.Tensor,
    compute: Callable[..., Any],
    derive: Callable[..., tuple[torch.Tensor, ...]],
    needed: Sequence[int],
) -> Any:
    """Return `compute(*tensors)`; its first result has the gradients `derive(grad, *saved)`.

    `needed` are the positions of the saved tensors in the tensors followed by the results. They must not be
    changed in place.
    """
    return compute(*tensors)


def _derived(
    call: Applied,
    compute: Callable[..., Any],
    derive: Callable[..., tuple[torch.Tensor, ...]],
    needed: Sequence[int],
) -> Gradient:
    both = (*call.tensors, *call.results)
    return [both[i] for i in needed], derive


_followed = differentiable(_compute, _derived)


def _check_derivable(input: torch.Tensor, dtype: torch.dtype | None) -> None:
    """Raise an error if a gradient would have to pass through a conversion to integers."""
    if dtype is None or dtype.is_floating_point:
        return
    if input.requires_grad and torch.is_grad_enabled():
        raise TensorMismatchError(
            "dtype", f"got {dtype} for an input that requires grad", "Give a floating dtype, or detach it."
        )


def _prod_gradient(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dims: tuple[int, ...], *, is_of_all: bool
) -> tuple[torch.Tensor]:
    """Return grad times the product of all other elements, by torch's rules for zeros, infinities and NaN.

    Without a zero in `x` the factor is result / x, which is NaN for an infinity. With zeros it is the product
    of the elements before times that of the elements after, so that 0 times infinity gives NaN only if both
    are other elements. For the product of all elements, two zeros make every gradient 0.
    """
    if not x.dim():
        return (grad,)
    wide = _widened(x)
    rows, dim = (wide.reshape(-1), 0) if is_of_all else (wide, dims[0])
    others = (_product_before(rows, dim) * _product_before(rows.flip(dim), dim).flip(dim)).view_as(wide)
    zeros = (x == 0).sum()
    if is_of_all:
        others = others.masked_fill(zeros > 1, 0)
    return ((grad * torch.where(zeros > 0, others, result / wide)).to(x.dtype),)


def _product_before(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return for each element the product of those before it along `dim`; 1 for the first."""
    one = torch.ones_like(x.narrow(dim, 0, 1))
    return torch.cat([one, x.narrow(dim, 0, x.shape[dim] - 1)], dim).cumprod(dim)


def _widened(x: torch.Tensor) -> torch.Tensor:
    """Convert fp16 and bf16 to fp32, in which their gradients are computed and then rounded once."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _norm_gradient(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dims: tuple[int, ...], order: float
) -> tuple[torch.Tensor]:
    """Return grad * sgn(x) * (|x| / norm) ** (order - 1), and 0 where there is no slope, as in torch.

    For infinite orders it is the gradient of a maximum. Powers are in float64, like those of the norm: in a
    narrower type they overflow where their product does not. For orders under 1 the quotient would underflow,
    so that powers are multiplied, and a zero has no slope.
    """
    if order == 0:
        return (torch.zeros_like(x),)
    if order == 1:
        return (x.sgn() * grad,)
    if order == 2:
        slope = (_widened(x) / result).masked_fill(result == 0, 0)
        return ((grad * slope).to(x.dtype),)
    size = x.abs()
    if math.isinf(order):
        is_it = (size == result) | size.isnan()
        return (x.sgn() * is_it * (grad / is_it.sum(dims, True)),)
    size, norm = size.double(), result.double()
    if order < 1:
        slope = size.pow(order - 1).masked_fill(x == 0, 0) * norm.pow(1 - order)
    else:
        slope = (size / norm).pow(order - 1).masked_fill(norm == 0, 0)
    return ((grad * (x.sgn() * slope)).to(x.dtype),)


def _equals_gradient(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dims: tuple[int, ...]
) -> tuple[torch.Tensor]:
    """Share the gradient among the elements that equal the result; for NaN, all get NaN, as in torch."""
    is_it = x == result
    return (grad * is_it / is_it.sum(dims, True),)


def _equals_or_nan_gradient(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, dims: tuple[int, ...]
) -> tuple[torch.Tensor]:
    """Share the gradient among the elements that equal the result; if that is NaN, among all NaN."""
    is_it = (x == result) | (x.isnan() & result.isnan())
    return (is_it * (grad / is_it.sum(dims, True)),)


def _picked_gradient(
    grad: torch.Tensor, indices: torch.Tensor, dims: tuple[int, ...], shape: torch.Size
) -> tuple[torch.Tensor]:
    """Return the gradient, which goes to the element at the index."""
    return (grad.new_zeros(shape).scatter(dims[0] if dims else 0, indices, grad),)


def _shared_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    is_smaller: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `x` and `y`.

    The tensor that is the result gets the gradient; equal elements get half each; if one is NaN, both get
    all of it.
    """
    of_each = torch.where(x == y, grad / 2, grad)
    return of_each.masked_fill(is_smaller(x, y), 0), of_each.masked_fill(is_smaller(y, x), 0)


_GRADIENTS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "amax": _equals_gradient,
    "amin": _equals_gradient,
    "max": _equals_or_nan_gradient,
    "min": _equals_or_nan_gradient,
}


class _Reduction:
    """The arguments of a reduction, checked by torch.

    Attributes:
        dims: the dimensions to reduce.
        is_torchs: True if the input has no elements or is a meta tensor; torch's function gives the result.
    """

    def __init__(
        self,
        name: str,
        input: torch.Tensor,
        dim: Any,
        keepdim: bool,
        out: Any,
        *,
        is_pair: bool = False,
        **options: Any,
    ) -> None:
        check_plain(input)
        check_type("keepdim", keepdim, bool, "Give True or False.")
        check_operand("dtype", options.get("dtype"), torch.dtype | None, "a torch.dtype")
        if is_pair and out is not None:
            if not isinstance(out, tuple | list) or len(out) != 2:
                fix = "Give a pair of tensors, for values and indices."
                raise ArgumentTypeError("out", f"got a {type(out).__name__}", fix)
            for place in out:
                check_operand("out", place, torch.Tensor, "two of torch.Tensor")
        else:
            check_operand("out", out, torch.Tensor | None, "a torch.Tensor")
        _check_dtype("input", input.dtype)
        dim = _hashable(dim)
        places = None if out is None else tuple(place.dtype for place in (out if is_pair else (out,)))
        asked = tuple(options.items())
        self.is_torchs = not input.numel() or input.is_meta
        self._name, self._input = name, input
        self._arguments = _arguments(name, dim, keepdim, out, asked)
        self.dims: frozenset[int] = frozenset()
        if not self.is_torchs:
            try:
                self.dims = _dims(name, input.dtype, input.device, input.dim(), dim, keepdim, places, asked)
            except WorkbenchError:
                self.torchs_answer()  # torch refuses them too, and its message names the input's shape
                raise

    def torchs_answer(self) -> Any:
        """Return the result of torch's function; raise an error that quotes torch if it refuses."""
        return _torchs(self._name, self._input, self._arguments)


def _arguments(
    name: str, dim: Any, keepdim: bool, out: Any, options: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    arguments = dict(options)
    if dim is not None or keepdim or (out is not None and name not in _TWO_FORMS):
        arguments |= {"dim": dim, "keepdim": keepdim}
    return arguments if out is None else arguments | {"out": out}


def _torchs(name: str, input: torch.Tensor, arguments: dict[str, Any]) -> Any:
    """Return torch's own result; raise an error of the workbench that quotes torch if it refuses."""
    try:
        return getattr(torch, name)(input, **arguments)
    except TORCHS_ERRORS as error:
        given = ", ".join(
            f"{argument}={in_words(value)}" for argument, value in arguments.items() if argument != "out"
        )
        raise kind_of(error)(
            ", ".join(["input", *arguments]),
            in_words(input) + (given and f", {given}"),
            torchs_words(error, f"torch.{name}"),
        ) from None


@lru_cache(maxsize=4096, typed=True)
def _dims(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    rank: int,
    dim: int | tuple[int, ...] | None,
    keepdim: bool,
    places: tuple[torch.dtype, ...] | None,
    options: tuple[tuple[str, Any], ...],
) -> frozenset[int]:
    """Return the dimensions to reduce, if torch accepts the arguments with a tensor of one element."""
    out: Any = None
    if places is not None:
        empty = tuple(torch.empty(0, dtype=place, device=device) for place in places)
        out = empty if len(empty) == 2 else empty[0]
    one = torch.ones((1,) * rank, dtype=dtype, device=device)
    _torchs(name, one, _arguments(name, dim, keepdim, out, options))
    for option, value in options:
        if option == "dtype" and value is not None:
            _check_dtype("dtype", value)
    every = frozenset(range(rank))
    if dim is None:
        return every
    if isinstance(dim, tuple):
        return frozenset(d % rank for d in dim if rank) if dim or name in ("any", "all") else every
    return frozenset((dim % rank,)) if rank else every


def _hashable(dim: Any) -> int | tuple[int, ...] | None:
    """Return `dim` as an int, a tuple of ints, or None; refuse names of dimensions, bools and arrays."""
    if dim is None or type(dim) is int:
        return dim
    whole = as_wholes("dim", dim, "Give a whole number, or several in a tuple.")
    return whole if isinstance(dim, tuple | list) else whole[0]


def _check_dtype(argument: str, dtype: torch.dtype) -> None:
    if dtype not in reduction.SUPPORTED:
        supported = ", ".join(str(one)[6:] for one in reduction.SUPPORTED)
        raise UnsupportedDtypeError(argument, dtype, f"Convert to one of {supported}.")


def _check_no_transform(name: str) -> None:
    """Raise an error inside a transform of torch.func. An index or a bool has no gradient for autograd."""
    if torch._C._are_functorch_transforms_active():
        raise TensorMismatchError("input", "it is inside a transform of torch.func", f"Use torch.{name}.")


def _reduce(
    input: torch.Tensor,
    name: str,
    dims: frozenset[int],
    keepdim: bool,
    dtype: torch.dtype | None = None,
    exponent: float = 2,
) -> torch.Tensor:
    """Return a reduction's single result for elements converted to `dtype`."""
    if dtype is None:
        dtype = reduction.result_dtype(name, input.dtype)
        elements = input.resolve_neg()
    else:
        name = _OF_TRUTHS.get(name, name) if dtype == torch.bool else name
        elements = _converted(input.resolve_neg(), dtype)
    outputs = _outputs(input, name, dims, keepdim, dtype)
    if outputs[0].numel():  # none for an empty batch in vmap's rule
        run_reduction(elements, dims, outputs, name, exponent)
    return outputs[0]


_recorded_total = differentiable(
    _reduce, _total_backward, jvp=_total_tangent, vmap=_total_of_batches, is_once=False
)


def run_reduction(
    x: torch.Tensor, dims: frozenset[int], outputs: Sequence[torch.Tensor], name: str, exponent: float = 2
) -> None:
    """Reduce a nonempty `x` over `dims` into outputs that fit."""
    start(reduction.launch_checked, x, dims, outputs, name, exponent)


def _converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert `x` to `dtype`, unless the kernel does: it reduces fp16 and bf16 in fp32, integers in int64."""
    is_half_in_fp32 = dtype == torch.float32 and x.dtype in (torch.float16, torch.bfloat16)
    are_integers = not (x.dtype.is_floating_point or dtype.is_floating_point or dtype == torch.bool)
    return x if is_half_in_fp32 or are_integers else x.to(dtype)


def _outputs(
    input: torch.Tensor, name: str, dims: frozenset[int], keepdim: bool, dtype: torch.dtype
) -> list[torch.Tensor]:
    shape = [1 if d in dims else n for d, n in enumerate(input.shape) if keepdim or d not in dims]
    dtypes = {"value": dtype, "index": torch.int64}
    gives = reduction.REDUCTIONS[name].gives
    return [torch.empty(shape, dtype=dtypes[part], device=input.device) for part in gives]


def _delivered(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None else copy_out(result, out)
