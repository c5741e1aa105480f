"""Layer norm, RMS norm, group norm and batch norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
)
from workbench.kernels.layout import format_of_batch_norm, suggested_format
from workbench.kernels.rows import batch_norm as by_channel
from workbench.kernels.rows import group_norm as by_group
from workbench.kernels.rows import normalization
from workbench.ops.arguments import (
    as_real,
    as_whole,
    as_wholes,
    check_operand,
    check_plain,
    in_float32,
    is_autocast,
    is_followed,
)
from workbench.ops.differentiable import Applied, Gradient, differentiable
from workbench.ops.gradients import once_differentiable
from workbench.ops.profiled import profiled
from workbench.ops.reduction import sum_of_gradient
from workbench.runtime.replay import start


@profiled
def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * weight + bias, as `torch.nn.functional.layer_norm`.

    Mean and variance are those of the last dimensions. It can be differentiated once.

    Args:
        input: a tensor of any shape and strides, fp16, bf16, fp32 or fp64.
        normalized_shape: the last dimensions, which are normalized together.
        weight, bias: tensors of that shape, or None; of the dtype of `input`, or fp32 with fp16 or bf16.
        eps: added to the variance.

    Raises:
        ArgumentTypeError: an argument has another type.
        UnsupportedDtypeError: `input` has another dtype.
        TensorMismatchError: the shape of `input` does not end in `normalized_shape`; weight or bias has
            another shape, dtype or device; a tensor is sparse, nested or quantized.
    """
    epsilon = as_real("eps", eps)
    rank = _checked_rank("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    if is_autocast(input):
        input, weight, bias = in_float32(input), _in_float32(weight), _in_float32(bias)
    given = [t.dtype for t in (weight, bias) if t is not None]
    if len(set(given)) > 1 or any(d not in _with(input.dtype) for d in given):
        raise TensorMismatchError(
            "weight, bias", f"{' and '.join(map(str, given))}, input {input.dtype}", _dtypes_wanted(input)
        )
    if bias is not None and weight is None:
        weight = torch.ones_like(bias)
    return _normalized("layer_norm", input, weight, bias, rank, epsilon)


@profiled
def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """input / sqrt(mean of input^2 + eps) * weight, as `torch.nn.functional.rms_norm`.

    The mean is that of the last dimensions. It can be differentiated once. The result is contiguous on a GPU,
    as with torch's own kernel; on the CPU, where torch composes operators, it has the input's layout.

    Args:
        input: a tensor of any shape and strides, fp16, bf16, fp32 or fp64.
        normalized_shape: the last dimensions, which are normalized together.
        weight: a tensor of that shape and of one of these dtypes, or None.
        eps: added to the mean square; None for the machine epsilon of the arithmetic, fp32 or fp64.

    Raises:
        InvalidArgumentError: `input` has fewer dimensions than `normalized_shape`. Others as for
            :func:`layer_norm`.
    """
    epsilon = None if eps is None else as_real("eps", eps)
    rank = _checked_rank("rms_norm", input, normalized_shape, weight=weight)
    if is_autocast(input):
        input, weight = in_float32(input), _in_float32(weight)
    if weight is not None and weight.dtype not in normalization.SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in normalization.SUPPORTED)
        raise UnsupportedDtypeError("weight", f"{weight.dtype}", f"Give one of {supported}.")
    if epsilon is None:
        epsilon = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    return _normalized("rms_norm", input, weight, None, rank, epsilon)


@profiled
def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * weight + bias, as `torch.nn.functional.group_norm`.

    Mean and variance are those of a group of channels of an image. It can be differentiated once. The result
    is channels_last if the input is, also on a GPU, where torch makes it contiguous.

    Args:
        input: (n, channels, ...), of any sizes and strides, fp16, bf16, fp32 or fp64.
        num_groups: the number of groups; it divides the channels.
        weight, bias: (channels,), or None; of the dtype of `input`, or fp32 with fp16 or bf16.
        eps: added to the variance.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: `input` has another dtype.
        TensorMismatchError: `num_groups` does not divide the channels; weight or bias has another shape,
            dtype or device; a tensor is sparse, nested or quantized. InvalidArgumentError: the groups of a
            single image have one element.
    """
    check_plain(input)
    num_groups, epsilon = as_whole("num_groups", num_groups), as_real("eps", eps)
    if input.dim() < 2:
        raise TensorMismatchError("input", f"{input.dim()} dimensions", "Give (n, channels, ...).")
    channels = input.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise TensorMismatchError(
            "num_groups",
            f"got {num_groups} for {channels} channels",
            f"Give a positive number that divides {channels}.",
        )
    if input.shape[0] * channels // num_groups * input.shape[2:].numel() == 1:
        given = f"shape {tuple(input.shape)}, {num_groups} groups"
        fix = "Give fewer groups, or more images or pixels: a group has one element."
        raise InvalidArgumentError("input, num_groups", given, fix)
    if is_autocast(input):
        input, weight, bias = in_float32(input), _in_float32(weight), _in_float32(bias)
    columns = _checked_vectors(input, channels, weight=weight, bias=bias)
    weight, bias = _with_weight(*columns)
    input = input.resolve_neg()
    followed = is_followed(input, *(t for t in (weight, bias) if t is not None))
    run = _followed_groups if followed else _run_groups
    return run(input, weight, bias, groups=num_groups, epsilon=epsilon, with_statistics=followed)[0]


@profiled
def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * weight + bias, as `torch.nn.functional.batch_norm`.

    In training, mean and variance are those of a channel over all images and pixels; otherwise they are the
    running ones. It can be differentiated once. The result is channels_last if the input is.

    Args:
        input: (n, channels, ...), of any sizes and strides, fp16, bf16, fp32 or fp64.
        running_mean, running_var: (channels,), or in training both None. Training updates them in place:
            running = (1 - momentum) * running + momentum * new, with the mean and the unbiased variance.
        weight, bias: tensors of as many elements, or None. All vectors have one dtype: that of `input`, or
            fp32 with fp16 or bf16.
        training: whether to use the input's own mean and variance.
        momentum: the weight of new values in the running ones.
        eps: added to the variance.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: `input` has another dtype.
        TensorMismatchError: a vector is missing, or has another size, dtype or device; a running vector
            requires grad; in training, elements of a running vector share memory, or it is an inference
            tensor outside inference mode; a tensor is sparse, nested or quantized.
        InvalidArgumentError: in training, channels have one element; only one running vector is given; `eps`
            is negative, or 0 in training. NumberRangeError: `eps` or `momentum` is larger than any float.
    """
    check_plain(input)
    if not isinstance(training, bool):
        raise ArgumentTypeError("training", f"got {training!r}", "Give True or False.")
    epsilon, momentum = as_real("eps", eps), as_real("momentum", momentum)
    if epsilon < 0 or (training and not epsilon):
        fix = f"Give a positive number{'' if training else ', or 0'}."
        raise InvalidArgumentError("eps", f"got {eps}", fix)
    if input.dim() < 2 and input.numel():
        raise TensorMismatchError("input", f"{input.dim()} dimensions", "Give (n, channels, ...).")
    channels = input.shape[1] if input.dim() > 1 else 0
    running = {"running_mean": running_mean, "running_var": running_var}
    for name, tensor in running.items():
        if tensor is None and not training:
            raise TensorMismatchError(name, "got None", "Give a tensor: without training it is needed.")
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise TensorMismatchError(name, "it requires grad", "Detach it: it gets no gradient.")
    if (running_mean is None) != (running_var is None):
        raise InvalidArgumentError("running_mean, running_var", "one is None", "Give both, or neither.")
    mean, variance, weight, bias = _checked_vectors(input, channels, **running, weight=weight, bias=bias)
    if training:
        _check_writable(**running)
    if training and input.dim() > 1 and input.shape[0] * input.shape[2:].numel() == 1:
        raise InvalidArgumentError(
            "input", f"shape {tuple(input.shape)}", "Give more than one element per channel in training."
        )
    weight, bias = _with_weight(weight, bias)
    input = input.resolve_neg()
    columns = [t for t in (weight, bias) if t is not None]
    if not training:
        assert mean is not None
        assert variance is not None
        run = _followed_known if is_followed(input, *columns) else _run_known
        return run(input, weight, bias, mean, variance, epsilon=epsilon)
    if not is_followed(input, *columns):
        needed = 0 if running_mean is None else 3
        results = _run_channels(input, weight, bias, epsilon, needed)
    else:
        results = _followed_channels(input, weight, bias, epsilon=epsilon, needed=3)
    if running_mean is not None and input.numel() and not input.is_meta:
        _move(running_mean, results[1], momentum)
        assert running_var is not None
        _move(running_var, results[3], momentum)
    return results[0]


def _check_writable(**running: torch.Tensor | None) -> None:
    """Raise an error if one of these vectors cannot be changed, before any is."""
    for name, tensor in running.items():
        if tensor is None:
            continue
        if not tensor.stride(0) and tensor.numel() > 1:
            raise TensorMismatchError(
                name, "its elements share memory", "Give its clone: training changes each element."
            )
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise TensorMismatchError(
                name, "an inference tensor", "Give its clone: training changes it outside inference mode."
            )


def _move(running: torch.Tensor, new: torch.Tensor, momentum: float) -> None:
    """Compute running = (1 - momentum) * running + momentum * new in place, rounded once."""
    with torch.no_grad():
        if running.dtype == new.dtype:
            running.lerp_(new, momentum)
        else:
            running.copy_(running.to(new.dtype).lerp(new, momentum))


def _checked_vectors(
    input: torch.Tensor, channels: int, **vectors: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """Check vectors by channel; return them contiguous and without pending negations.

    Weight and bias of batch norm, which has running vectors, can have any shape; torch allows it if all
    tensors are contiguous.
    """
    if input.dtype not in normalization.SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in normalization.SUPPORTED)
        raise UnsupportedDtypeError("input", f"{input.dtype}", f"Give one of {supported}.")
    found: list[torch.Tensor | None] = []
    for name, tensor in vectors.items():
        check_operand(name, tensor, torch.Tensor | None, "a torch.Tensor, or None")
        if tensor is None:
            found.append(None)
            continue
        can_have_any_shape = "running_mean" in vectors and name in ("weight", "bias")
        if tensor.numel() != channels or (tensor.dim() != 1 and not can_have_any_shape):
            raise TensorMismatchError(name, f"shape {tuple(tensor.shape)}", f"Give shape ({channels},).")
        if tensor.device != input.device:
            given = f"on {tensor.device}, input on {input.device}"
            raise TensorMismatchError(name, given, "Move both to one device.")
        found.append(tensor.resolve_neg().contiguous().view(-1))
    given_dtypes = [t.dtype for t in found if t is not None]
    if len(set(given_dtypes)) > 1 or any(d not in _with(input.dtype) for d in given_dtypes):
        dtypes = " and ".join(str(each) for each in given_dtypes)
        raise TensorMismatchError(", ".join(vectors), f"{dtypes}, input {input.dtype}", _dtypes_wanted(input))
    return found


def _with_weight(
    weight: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return weight and bias, with a weight of ones if there is only a bias."""
    return (torch.ones_like(bias) if weight is None and bias is not None else weight), bias


def _like(input: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor for the result: channels_last if the input suggests it."""
    return torch.empty_like(input, memory_format=suggested_format(input))


def _like_a_batch(input: torch.Tensor, *, is_gradient: bool = False) -> torch.Tensor:
    """Return an empty tensor for batch norm's result, or the gradient of its input."""
    return torch.empty_like(input, memory_format=format_of_batch_norm(input, is_gradient=is_gradient))


def _run_groups(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    groups: int,
    epsilon: float,
    *,
    with_statistics: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the result, and if requested mean and scale of each group."""
    output = _like(input)
    results = by_group.statistics(input, groups) if with_statistics else []
    if input.numel() and not input.is_meta:
        columns = [t for t in (weight, bias) if t is not None]
        start(by_group.launch_checked, input, groups, columns, output, results, epsilon)
    return output, *results


def _run_groups_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    *results: torch.Tensor,
    groups: int,
    vectors: int,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of input, and of weight and bias in `dtype`; None for those beyond `vectors`."""
    if input.numel() and not input.is_meta:
        outputs = by_group.gradients(input, vectors)
        columns = () if weight is None else (weight,)
        start(by_group.backward_checked, groups, None, input, grad, results, columns, outputs)
    else:
        outputs = (_like(input), *(input.new_zeros(input.shape[1]) for _ in range(vectors)))
    of_input, *sums = outputs
    return of_input, *[each.to(dtype) for each in sums], *[None] * (2 - vectors)


def _kept(
    needed: Sequence[bool],
    tensors: Sequence[Any],
    results: Sequence[torch.Tensor],
    dims: Sequence[int],
    compute: Callable[..., Any],
) -> Gradient:
    """Return what the requested gradients depend on, and how they are computed.

    Args:
        tensors: input, weight and bias.
        results: what the gradients read of the results.
        dims: the gradient of the bias, which depends on nothing else, is the sum over these dimensions.
        compute: returns all gradients, and is given their `dtype`.
    """
    input, weight, _ = tensors
    of_input, of_weight, _ = needed
    dtype = None if weight is None else weight.dtype
    if of_input or of_weight:
        saved = (input, weight if of_input else None, *results)
        return saved, partial(once_differentiable, partial(compute, dtype=dtype))
    return (), partial(_of_bias_alone, dims=tuple(dims), dtype=dtype)


def _of_bias_alone(
    grad: torch.Tensor, dims: tuple[int, ...], dtype: torch.dtype | None
) -> tuple[torch.Tensor | None, ...]:
    return None, None, sum_of_gradient(grad, dims, dtype=dtype)


def _vectors(needed: Sequence[bool]) -> int:
    """Return how many gradients to compute besides that of the input: of weight, then of bias."""
    return 2 if needed[2] else int(needed[1])


def _but_channels(grad: torch.Tensor) -> tuple[int, ...]:
    """Return all dimensions except that of channels."""
    return (0, *range(2, grad.dim()))


def _groups_backward(call: Applied, groups: int, **_: Any) -> Gradient:
    compute = partial(_run_groups_backward, groups=groups, vectors=_vectors(call.needed))
    return _kept(call.needed, call.tensors, call.results[1:], _but_channels(call.results[0]), compute)


_followed_groups = differentiable(_run_groups, _groups_backward, is_once=False)


def _run_channels(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    needed: int,
) -> tuple[torch.Tensor, ...]:
    """Return the result, and the first `needed` of mean, scale and unbiased variance."""
    output = _like_a_batch(input)
    if not input.numel():
        return output, *(input.new_zeros(input.shape[1:2].numel()) for _ in range(needed))
    results = by_channel.statistics(input)[:needed]
    if not input.is_meta:
        columns = [t for t in (weight, bias) if t is not None]
        start(by_channel.launch_checked, input, columns, output, results, epsilon)
    return output, *results


def _run_known(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    output = _like_a_batch(input)
    if input.numel() and not input.is_meta:
        columns = [t for t in (mean, variance, weight, bias) if t is not None]
        start(by_channel.launch_known_checked, input, columns, output, epsilon)
    return output


def _run_channels_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    are_known: bool,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of input, and of weight and bias in `dtype`."""
    if not input.numel() or input.is_meta:
        channels = input.shape[1:2].numel()
        return _like_a_batch(input, is_gradient=True), input.new_zeros(channels), input.new_zeros(channels)
    of_input, *sums = outputs = by_channel.gradients(input)
    columns = () if weight is None else (weight,)
    start(by_channel.backward_checked, are_known, None, input, grad, outputs, (mean, scale, *columns))
    return of_input, *(each if dtype is None else each.to(dtype) for each in sums)


def _channels_backward(call: Applied, **_: Any) -> Gradient:
    compute = partial(_run_channels_backward, are_known=False)
    return _kept(call.needed, call.tensors, call.results[1:3], _but_channels(call.results[0]), compute)


_followed_channels = differentiable(_run_channels, _channels_backward, is_once=False)


def _known_backward(call: Applied, epsilon: float) -> Gradient:
    input, weight, bias, mean, variance = call.tensors
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    # A copy: training may change them before the backward pass.
    known = mean.to(dtype, copy=True), (variance.to(dtype) + epsilon).rsqrt()
    read = (input if call.needed[1] else None, weight, bias)
    compute = partial(_run_known_backward, format=format_of_batch_norm(input, is_gradient=True))
    return _kept(call.needed[:3], read, known, _but_channels(call.results[0]), compute)


_followed_known = differentiable(_run_known, _known_backward, is_once=False)


def _copied(tensor: torch.Tensor, format: torch.memory_format) -> torch.Tensor:
    """Return a copy in a memory format; with one channel, `Tensor.contiguous` would keep the strides."""
    return torch.empty_like(tensor, memory_format=format).copy_(tensor)


def _run_known_backward(
    grad: torch.Tensor,
    input: torch.Tensor | None,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    format: torch.memory_format,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, ...]:
    """Run :func:`_run_channels_backward`; the input's gradient needs only the weight and the gradient."""
    if input is None:  # a tensor of its layout takes its place, whose elements are not used
        input = grad if format_of_batch_norm(grad, is_gradient=True) is format else _copied(grad, format)
    return _run_channels_backward(grad, input, weight, mean, scale, are_known=True, dtype=dtype)


def _in_float32(column: torch.Tensor | None) -> torch.Tensor | None:
    return None if column is None else in_float32(column)


def _normalized(
    norm: str,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rank: int,
    epsilon: float,
) -> torch.Tensor:
    input = input.resolve_neg()
    weight, bias = (None if t is None else t.resolve_neg().contiguous() for t in (weight, bias))
    columns = [t for t in (weight, bias) if t is not None]
    if not is_followed(input, *columns):
        return _run(norm, input, weight, bias, rank, epsilon, with_statistics=False)[0]
    # The kernel gives all gradients in the dtype that it normalizes in: the wider of input's and weight's.
    dtypes = {t.dtype for t in (input, *columns)}
    wide = input.dtype
    for dtype in dtypes:
        wide = torch.promote_types(wide, dtype)
    return _followed(input, weight, bias, wide=wide, norm=norm, rank=rank, epsilon=epsilon)[0]  # type: ignore[no-any-return]


def _run(
    norm: str,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rank: int,
    epsilon: float,
    *,
    with_statistics: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the result, and if requested the statistics of each row that the gradients need."""
    if norm == "rms_norm" and suggested_format(input) is not torch.contiguous_format:  # as torch's composite
        output = torch.empty_like(input)
    else:
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    rows = input.shape[: input.dim() - rank].numel()
    results = normalization.statistics(norm, input, rows) if with_statistics else []
    if input.numel() and not input.is_meta:
        columns = [t for t in (weight, bias) if t is not None]
        start(normalization.launch_checked, norm, input, rank, columns, output, results, epsilon)
    return output, *results


def _run_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    *results: torch.Tensor,
    wide: torch.dtype,
    dtype: torch.dtype | None,
    norm: str,
    rank: int,
    vectors: int,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of input, and of weight and bias in `dtype`; None for those beyond `vectors`.

    Args:
        wide: the dtype in which the kernel gives them.
    """
    shape, narrow = input.shape[input.dim() - rank :], input.dtype
    input, grad = input.to(wide), grad.to(wide)
    weight = None if weight is None else weight.to(wide)
    if input.numel() and not input.is_meta:
        gradients = normalization.gradients(norm, input, grad, shape.numel(), vectors)
        columns = () if weight is None else (weight,)
        start(normalization.backward_checked, norm, rank, input, grad, results, columns, gradients)
        of_input, *outputs = gradients
    else:
        of_input = torch.empty_like(input, memory_format=torch.contiguous_format)
        outputs = [input.new_zeros(shape.numel()) for _ in range(vectors)]
    of_columns = [(each if rank == 1 else each.view(shape)).to(dtype) for each in outputs]
    return of_input.to(narrow), *of_columns, *[None] * (2 - vectors)


def _run_wide(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    wide: torch.dtype,
    norm: str,
    rank: int,
    epsilon: float,
) -> tuple[torch.Tensor, ...]:
    wide_weight, wide_bias = (None if t is None else t.to(wide) for t in (weight, bias))
    result, *statistics = _run(
        norm, input.to(wide), wide_weight, wide_bias, rank, epsilon, with_statistics=True
    )
    return result.to(input.dtype), *statistics


def _backward(call: Applied, wide: torch.dtype, norm: str, rank: int, epsilon: float) -> Gradient:
    compute = partial(_run_backward, wide=wide, norm=norm, rank=rank, vectors=_vectors(call.needed))
    return _kept(call.needed, call.tensors, call.results[1:], range(call.results[0].dim() - rank), compute)


_followed = differentiable(_run_wide, _backward, is_once=False)


def _checked_rank(
    norm: str, input: torch.Tensor, normalized_shape: object, **columns: torch.Tensor | None
) -> int:
    """Check the arguments; return the number of dimensions that are normalized together."""
    check_plain(input)
    for name, tensor in columns.items():
        check_operand(name, tensor, torch.Tensor | None, "a torch.Tensor, or None")
    check_operand("normalized_shape", normalized_shape, tuple | list, "a tuple of lengths")
    shape = torch.Size(as_wholes("normalized_shape", normalized_shape, "Give a tuple of lengths."))
    rank = len(shape)
    if not rank or rank > input.dim() or input.shape[input.dim() - rank :] != shape:
        # torch.rms_norm raises ValueError for more dimensions than there are, and RuntimeError for others.
        is_value = norm == "rms_norm" and rank > input.dim()
        raise (InvalidArgumentError if is_value else TensorMismatchError)(
            "normalized_shape",
            f"got {tuple(shape)} for input of shape {tuple(input.shape)}",
            "Give the lengths of the last dimensions of input, one or more.",
        )
    for name, tensor in columns.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise TensorMismatchError(name, f"shape {tuple(tensor.shape)}", f"Give shape {tuple(shape)}.")
        if tensor.device != input.device:
            raise TensorMismatchError(
                name, f"on {tensor.device}, input on {input.device}", "Move both to one device."
            )
    if input.dtype not in normalization.SUPPORTED:
        supported = ", ".join(str(each)[6:] for each in normalization.SUPPORTED)
        raise UnsupportedDtypeError("input", f"{input.dtype}", f"Give one of {supported}.")
    return rank


def _dtypes_wanted(input: torch.Tensor) -> str:
    """Return the advice for vectors whose dtypes differ, or do not fit the input's."""
    return f"Give all vectors in one dtype: {' or '.join(map(str, _with(input.dtype)))}."


def _with(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the dtypes that torch takes for weight and bias with an input of this dtype."""
    return (dtype, torch.float32) if dtype in (torch.float16, torch.bfloat16) else (dtype,)
