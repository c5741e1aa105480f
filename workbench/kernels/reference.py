"""The meaning of every operator in plain torch, against which kernels are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn import functional

from workbench.errors import InvalidArgumentError, in_brief

Dims = int | tuple[int, ...] | None


def add(input: torch.Tensor, other: torch.Tensor | float, *, alpha: float = 1) -> torch.Tensor:
    """input + alpha * other, elementwise, with torch's broadcasting and type promotion.

    Judge a kernel against this on float64 copies of its inputs.
    """
    return torch.add(input, other, alpha=alpha)


def clone(input: torch.Tensor, *, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
    """A copy of input in new memory, with the layout of `memory_format`."""
    return torch.clone(input, memory_format=memory_format)


def transpose_copy(input: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """input with dimensions dim0 and dim1 exchanged, contiguous."""
    return torch.transpose_copy(input, dim0, dim1)


def permute_copy(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """input with its dimension dims[d] as dimension d, contiguous."""
    return torch.permute_copy(input, tuple(dims))


def sum(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum along `dim`; of all elements if `dim` is None."""
    return torch.sum(input, dim, keepdim, dtype=dtype)


def mean(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The mean along `dim`; of all elements if `dim` is None."""
    return torch.mean(input, dim, keepdim, dtype=dtype)


def prod(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The product along `dim`; of all elements if `dim` is None."""
    return torch.prod(input, dtype=dtype) if dim is None else torch.prod(input, dim, keepdim, dtype=dtype)


def norm(
    input: torch.Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False
) -> torch.Tensor:
    """(sum of |x|^p)^(1/p) along `dim`, or of all elements if `dim` is None; "fro" and None mean p = 2"""
    result: torch.Tensor = torch.norm(input, p, dim, keepdim)
    return result


def amax(input: torch.Tensor, dim: int | tuple[int, ...] = (), keepdim: bool = False) -> torch.Tensor:
    """The largest element along `dim`, or of all elements for (); NaN if an element is NaN."""
    return torch.amax(input, dim, keepdim)


def amin(input: torch.Tensor, dim: int | tuple[int, ...] = (), keepdim: bool = False) -> torch.Tensor:
    """The smallest element along `dim`, or of all elements for (); NaN if an element is NaN."""
    return torch.amin(input, dim, keepdim)


def max(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest element along `dim`, or NaN if there is one, and the first index at which it occurs."""
    values, indices = torch.max(input, dim, keepdim)
    return values, indices


def min(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest element along `dim`, or NaN if there is one, and the first index at which it occurs."""
    values, indices = torch.min(input, dim, keepdim)
    return values, indices


def argmax(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The first index of the largest element along `dim` (of the flat tensor for None), or of NaN."""
    return torch.argmax(input, dim, keepdim)


def argmin(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The first index of the smallest element along `dim` (of the flat tensor for None), or of NaN."""
    return torch.argmin(input, dim, keepdim)


def all(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """True if no element along `dim` (or of the tensor, for None) is 0."""
    return torch.all(input) if dim is None else torch.all(input, dim, keepdim)


def any(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """True if an element along `dim` (or of the tensor, for None) is not 0."""
    return torch.any(input) if dim is None else torch.any(input, dim, keepdim)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """exp(x) / sum of exp(x) along `dim`"""
    return torch.softmax(input, dim, dtype)


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """x - log(sum of exp(x) along `dim`)"""
    return torch.log_softmax(input, dim, dtype)


def logsumexp(input: torch.Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> torch.Tensor:
    """log(sum of exp(x) along `dim`)"""
    return torch.logsumexp(input, dim, keepdim)


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """-log(softmax(input)) at the target class, with torch's class weights, smoothing and reduction."""
    return functional.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, along the last len(normalized_shape) dimensions"""
    return functional.layer_norm(input, [*normalized_shape], weight, bias, eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """x / sqrt(mean of x^2 + eps) * weight; None for eps means torch.finfo(input.dtype).eps"""
    return functional.rms_norm(input, [*normalized_shape], weight, eps)


def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, for each group of channels of each image"""
    grouped = input.unflatten(1, (num_groups, -1))
    dims = tuple(range(2, grouped.dim()))
    variance, mean = torch.var_mean(grouped, dims, correction=0, keepdim=True)
    return _of_channels(((grouped - mean) * torch.rsqrt(variance + eps)).flatten(1, 2), weight, bias)


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
    """(x - mean) / sqrt(variance + eps) * weight + bias, by channel

    Running statistics are not updated here.
    """
    dims, shape = (0, *range(2, input.dim())), (-1, *(1,) * (input.dim() - 2))
    if training or running_mean is None or running_var is None:
        variance, mean = torch.var_mean(input, dims, correction=0, keepdim=True)
    else:
        variance, mean = running_var.view(shape), running_mean.view(shape)
    return _of_channels((input - mean) * torch.rsqrt(variance + eps), weight, bias)


def _of_channels(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """x * weight + bias, per channel; either may be None."""
    shape = (-1, *(1,) * (x.dim() - 2))
    scaled = x if weight is None else x * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of matrices, vectors, or batches of matrices that broadcast."""
    return torch.matmul(input, other)


def mm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """The product of two matrices."""
    return torch.mm(input, mat2)


def bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """The products of two batches of matrices."""
    return torch.bmm(input, mat2)


def addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2); `input` is not read where beta is 0."""
    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)


def baddbmm(
    input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """beta * input + alpha * (batch1 @ batch2), batch by batch."""
    return torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight.T + bias"""
    return torch.nn.functional.linear(input, weight, bias)


def grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    """The product of each part [offs[g - 1], offs[g]) of the divided axis; 0 after the last part."""
    ends = offs.tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    if mat_a.dim() == mat_b.dim() == 2:
        each = [mat_a[:, part] @ mat_b[part] for part in parts]
        return torch.stack(each) if each else mat_a.new_zeros(0, len(mat_a), mat_b.shape[1])
    output = mat_a.new_zeros(mat_a.shape[-2], mat_b.shape[-1])
    for group, part in enumerate(parts):
        if mat_a.dim() == 2:
            output[part] = mat_a[part] @ mat_b[group]
        else:
            output[:, part] = mat_a[group] @ mat_b[:, part]
    return output


class Chain(Protocol):
    """The meaning of an epilogue, whose tensors broadcast to the result."""

    def meaning(self, product: torch.Tensor) -> torch.Tensor:
        """Return the result for matrices (..., m, n)."""

    def meaning_of_images(self, images: torch.Tensor, groups: int) -> torch.Tensor:
        """Return the result for images (n, features, sizes...) of a convolution with `groups` groups."""

    def meaning_of_groups(self, product: torch.Tensor, axis: int, offs: torch.Tensor) -> torch.Tensor:
        """Return the result for grouped products.

        Args:
            product: divided into groups along `axis` if that is 0 or 1; one matrix per group if it is 2.
            offs: the end of each group.
        """


def fused_matmul(input: torch.Tensor, other: torch.Tensor, *, epilogue: Chain) -> torch.Tensor:
    """epilogue(input @ other)"""
    return epilogue.meaning(torch.matmul(input, other))


def fused_grouped_mm(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, epilogue: Chain
) -> torch.Tensor:
    """The epilogue of the result of :func:`grouped_mm`.

    Kernels store 0 after the last group, where this function gives epilogue(0), so the last group must end
    where the output ends.
    """
    product = grouped_mm(mat_a, mat_b, offs=offs)
    axis = 2 if mat_a.dim() == mat_b.dim() else mat_a.dim() - 2
    return epilogue.meaning_of_groups(product, axis, offs)


def fused_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    groups: int = 1,
    epilogue: Chain,
    **options: Any,
) -> torch.Tensor:
    """The epilogue of the result of :func:`conv2d`."""
    return epilogue.meaning_of_images(convolve(input, weight, bias, groups=groups, **options), groups)


def conv1d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """Sums of the products of the weight and windows of the input, in one spatial dimension, plus bias."""
    return convolve(input, weight, bias, **options)


def conv2d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """Sums of the products of the weight and windows of the input, in two spatial dimensions, plus bias."""
    return convolve(input, weight, bias, **options)


def conv3d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """Sums of the products of the weight and windows of the input, in three spatial dimensions, plus bias."""
    return convolve(input, weight, bias, **options)


def convolve(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> torch.Tensor:
    """For each output pixel, the sum of the products of the weight and a window of the input, plus bias."""
    rank = input.dim() - 2
    x = torch.nn.functional.pad(input, (padding,) * (2 * rank))
    for dim, taps in enumerate(weight.shape[2:], 2):
        x = x.unfold(dim, dilation * (taps - 1) + 1, stride)[..., ::dilation]
    # (n, group, channel, out..., taps...) and (group, feature, channel, taps...)
    windows, taps_of = x.unflatten(1, (groups, -1)), weight.unflatten(0, (groups, -1))
    space, inner = "uvw"[:rank], "rst"[:rank]
    result = torch.einsum(f"ngc{space}{inner},gkc{inner}->ngk{space}", windows, taps_of).flatten(1, 2)
    return result if bias is None else result + bias.view(-1, *(1,) * rank)


def conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
) -> torch.Tensor:
    """The weight times each input pixel, added up at `stride` times the pixel's position, plus bias.

    Then `padding` rows and columns are cut off each side.
    """
    n, _, high, wide = input.shape
    _, features, taps, other_taps = weight.shape
    size = (n, features, (high - 1) * stride + taps, (wide - 1) * stride + other_taps)
    result = input.new_zeros(size)
    for y in range(high):
        for x in range(wide):
            window = result[:, :, y * stride : y * stride + taps, x * stride : x * stride + other_taps]
            window += torch.einsum("nc,ckrs->nkrs", input[:, :, y, x], weight)
    result = result[:, :, padding : size[2] - padding, padding : size[3] - padding]
    return result if bias is None else result + bias.view(-1, 1, 1)


def avg_pool2d(
    input: torch.Tensor, kernel_size: int, stride: int | None = None, padding: int = 0
) -> torch.Tensor:
    """The mean of each window of kernel_size x kernel_size pixels; padding counts as zeros."""
    return _windows(functional.pad(input, (padding,) * 4), kernel_size, stride).mean((-2, -1))


def max_pool2d(
    input: torch.Tensor, kernel_size: int, stride: int | None = None, padding: int = 0
) -> torch.Tensor:
    """The largest element of each window of kernel_size x kernel_size pixels; padding is ignored."""
    padded = functional.pad(input, (padding,) * 4, value=float("-inf"))
    return _windows(padded, kernel_size, stride).amax((-2, -1))


def _windows(input: torch.Tensor, taps: int, stride: int | None) -> torch.Tensor:
    """(..., windows of y, windows of x, taps of y, taps of x)"""
    step = taps if stride is None else stride
    return input.unfold(-2, taps, step).unfold(-2, taps, step)


def pixel_shuffle(input: torch.Tensor, upscale_factor: int) -> torch.Tensor:
    """output[n, c, h r + i, w r + j] = input[n, (c r + i) r + j, h, w]."""
    r = upscale_factor
    n, channels, high, wide = input.shape
    apart = input.reshape(n, channels // r**2, r, r, high, wide)
    return apart.permute(0, 1, 4, 2, 5, 3).reshape(n, channels // r**2, high * r, wide * r)


def pixel_unshuffle(input: torch.Tensor, downscale_factor: int) -> torch.Tensor:
    """output[n, (c r + i) r + j, h, w] = input[n, c, h r + i, w r + j]."""
    r = downscale_factor
    n, channels, high, wide = input.shape
    apart = input.reshape(n, channels, high // r, r, wide // r, r)
    return apart.permute(0, 1, 3, 5, 2, 4).reshape(n, channels * r**2, high // r, wide // r)


def flip(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """output[i] = input[length - 1 - i] along each of `dims`."""
    return torch.flip(input, tuple(dims))


def roll(
    input: torch.Tensor, shifts: int | tuple[int, ...], dims: int | tuple[int, ...] = ()
) -> torch.Tensor:
    """output[(i + shift) % length] = input[i] along each of `dims`; along the flat tensor for ()."""
    return torch.roll(input, shifts, dims)


def pad(
    input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> torch.Tensor:
    """input with elements added at (or, for negative numbers, cut from) both ends of its last dimensions.

    Args:
        pad: begin and end of the last dimension, then of the one before, and so on.
        mode: "constant" adds `value` (0 for None); "reflect", "replicate" and "circular" add input's
            elements.
    """
    return functional.pad(input, [*pad], mode, value)


def unfold(
    input: torch.Tensor, kernel_size: int, dilation: int = 1, padding: int = 0, stride: int = 1
) -> torch.Tensor:
    """output[n, (c, r, s), (y, x)] = input[n, c, row, col], or 0 outside of input.

    row = y * stride + r * dilation - padding, col = x * stride + s * dilation - padding.
    """
    x = functional.pad(input, (padding,) * 4)
    for dim in (2, 3):
        x = x.unfold(dim, dilation * (kernel_size - 1) + 1, stride)[..., ::dilation]
    return x.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale * query @ key^T + attn_mask) @ value, with a causal mask if `is_causal`.

    Raises:
        InvalidArgumentError: `dropout_p` is not 0; torch cannot draw the random numbers of the kernel.
    """
    if dropout_p:
        raise InvalidArgumentError(
            "dropout_p",
            f"got {dropout_p}, but torch cannot draw the kernel's random numbers",
            "Give 0. To see which weights a kernel drops, give the kernel torch.eye(keys) as value.",
        )
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Any = None
) -> torch.Tensor:
    """softmax(scale * query @ key^T) @ value, over the keys in each query's window.

    Args:
        scoring: a `workbench.kernels.attention.Scoring` with a scale and a window; None for the default scale
            and all keys.

    Raises:
        InvalidArgumentError: `scoring` has hooks or a mask, which are jit functions without a meaning in
            torch, or dropout or sequence starts.
    """
    if scoring is None:
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    if scoring.hooks or scoring.mask or scoring.dropout or scoring.starts:
        raise InvalidArgumentError(
            "scoring",
            f"got {in_brief(scoring)}, which has more than a scale and a window",
            "Give a Scoring without hooks, mask, dropout and starts, or compare with torch code of your own.",
        )
    window, queries, keys = scoring.window, query.shape[-2], key.shape[-2]
    shift = window.shift + (keys - queries if window.from_end else 0)
    place = (
        torch.arange(keys, device=query.device) - torch.arange(queries, device=query.device)[:, None] - shift
    )
    seen = torch.ones_like(place, dtype=torch.bool)
    if window.left is not None:
        seen &= place >= -window.left
    if window.right is not None:
        seen &= place <= window.right
    return functional.scaled_dot_product_attention(
        query, key, value, seen, scale=scoring.scale, enable_gqa=True
    )


def matmul_layer_norm(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """layer_norm(input @ other)"""
    return layer_norm(input @ other, other.shape[-1:], weight, bias, eps)


def matmul_rms_norm(
    input: torch.Tensor, other: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """rms_norm(input @ other)"""
    return rms_norm(input @ other, other.shape[-1:], weight, eps)


def matmul_softmax(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """softmax(input @ other)"""
    return softmax(input @ other, -1)


def matmul_log_softmax(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """log_softmax(input @ other)"""
    return log_softmax(input @ other, -1)


def matmul_sum(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The sum of each row of input @ other."""
    return sum(input @ other, -1, keepdim)


def matmul_mean(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The mean of each row of input @ other."""
    return mean(input @ other, -1, keepdim)


def matmul_norm(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The square root of the sum of squares of each row of input @ other."""
    return norm(input @ other, 2, -1, keepdim)


def matmul_amax(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The largest element of each row of input @ other."""
    return amax(input @ other, -1, keepdim)


def matmul_amin(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The smallest element of each row of input @ other."""
    return amin(input @ other, -1, keepdim)


def matmul_argmax(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """The first index of the largest element of each row of input @ other."""
    return argmax(input @ other, -1, keepdim)


def matmul_logsumexp(input: torch.Tensor, other: torch.Tensor, keepdim: bool = False) -> torch.Tensor:
    """log of the sum of exp of each row of input @ other"""
    return logsumexp(input @ other, -1, keepdim)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


def matmul_matmul(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> torch.Tensor:
    """activation(input @ mat1) @ mat2"""
    return ACTIVATIONS[activation](input @ mat1) @ mat2


def swiglu(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(input @ gate) * (input @ up)"""
    return functional.silu(input @ gate) * (input @ up)


def geglu(
    input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    """gelu(input @ gate) * (input @ up)"""
    return functional.gelu(input @ gate, approximate=approximate) * (input @ up)
