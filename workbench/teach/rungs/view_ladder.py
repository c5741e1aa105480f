"""The rungs of the lesson on coordinate transforms: one convolution, with less and less known of its operand.

As in :mod:`~.ladder`, each is measured like the shipped kernel, as `workbench:<rung>`. They
have the same tile, and are the kernel of `gemm`: what differs is what the descriptor of the image knows. The
last two are a plain kernel that computes a column's digits at each step along K, or moves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from workbench.coords import Descriptor, naive, symbol, transform
from workbench.coords.expression import Number
from workbench.coords.transforms import embed, merge, pad, pass_through
from workbench.errors import InvalidArgumentError
from workbench.kernels import gemm
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.layout import ACCESS_BYTES, MOST_OFFSETS_IN_32_BITS
from workbench.kernels.movement.view_transfer import IMAGES, IMAGES_NAME
from workbench.kernels.views import View
from workbench.launch import Launch

# Of all rungs, so that only what they know differs.
TILE, STAGES = (128, 64, 64), 3

# The digits of a column of the matrix, the slow one first, by their numbers in `image_windows`.
TAPS_THEN_CHANNEL, CHANNEL_THEN_TAPS = (2, 4, 5), (5, 2, 4)


def image_windows(
    lengths: Sequence[Number],
    outputs: Sequence[Number],
    taps: Sequence[int],
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    order: Sequence[int] = TAPS_THEN_CHANNEL,
) -> Descriptor:
    """Images (n, y, x, c), contiguous, as the matrix [(n, outputs...), (taps..., c)] of a convolution.

    Args:
        lengths: of n, y, x and c; numbers or symbols.
        outputs: down and across; what the other numbers say.
        taps: down and across.
        order: of y's tap (2), x's tap (4) and the channel (5) in a column, the slowest first.
    """
    n, high, wide, channels = lengths
    images = naive(
        (n, high, wide, channels),
        (high * wide * channels, wide * channels, channels, 1),
        names=("n", "y", "x", "c"),
    )
    each = [(0,), (1,), (2,), (3,)]
    padded = transform(
        images,
        [pass_through(n), pad(high, padding, padding), pad(wide, padding, padding), pass_through(channels)],
        each,
        each,
    )
    down, across = (embed((out, count), (stride, dilation)) for out, count in zip(outputs, taps, strict=True))
    apart = transform(
        padded,
        [pass_through(n), down, across, pass_through(channels)],
        each,
        [(0,), (1, 2), (3, 4), (5,)],
        names=("n", "y_out", "y_tap", "x_out", "x_tap", "c"),
    )
    rows = (0, 1, 3)
    merged = [merge([apart.lengths[d] for d in dims]) for dims in (rows, order)]
    return transform(apart, merged, [rows, order], [(0,), (1,)], names=("row", "col"))


def constants(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    order: Sequence[int] = TAPS_THEN_CHANNEL,
) -> Launch:
    """A convolution of channels_last images whose descriptor knows all lengths but the number of images.

    Args:
        input: (n, c, h, w), channels_last. weight: (k, c, r, s).
        order: as of :func:`image_windows`.

    Raises:
        InvalidArgumentError: the images are not channels_last. Others: as `implicit_gemm.launch`.
    """
    sizes = _sizes(input, weight, stride, padding, dilation)
    return _launch(
        input, weight, (IMAGES, *sizes[1:]), {IMAGES_NAME: sizes[0]}, stride, padding, dilation, order
    )


def arguments(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    divisor: int = 1,
) -> Launch:
    """As :func:`constants`, with height, width and channels as arguments of the kernel too.

    Args:
        divisor: of the channels, which the descriptor knows.

    Raises:
        InvalidArgumentError: the channels are no multiple of it. Others: as :func:`constants`.
    """
    sizes = _sizes(input, weight, stride, padding, dilation)
    if sizes[3] % divisor:
        raise InvalidArgumentError("input", f"{sizes[3]} channels", f"Give a multiple of {divisor}.")
    names = ("high", "wide", "channels", "down", "across")
    known = {"channels": divisor}
    lengths = (IMAGES, *(symbol(name, least=1, multiple_of=known.get(name, 1)) for name in names))
    values = dict(zip((IMAGES_NAME, *names), sizes, strict=True))
    return _launch(input, weight, lengths, values, stride, padding, dilation, TAPS_THEN_CHANNEL)


def in_eights(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Launch:
    """As :func:`arguments`, and the descriptor knows that 8 divides the channels."""
    return arguments(input, weight, stride=stride, padding=padding, dilation=dilation, divisor=8)


def taps_innermost(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Launch:
    """As :func:`constants`, summed channel by channel: neighbors along K are different pixels."""
    return constants(
        input, weight, stride=stride, padding=padding, dilation=dilation, order=CHANNEL_THEN_TAPS
    )


@triton.jit
def walking_kernel(
    # pointers to the first element of each tensor
    image_pointer, weight_pointer, output_pointer,
    # sizes: rows of the product
    m,
    # meta-parameters: lengths of an image and of an output, of the window; channels and features; stride,
    # padding and dilation; the tile; how many channels lie together for sure; whether digits are moved
    HIGH: tl.constexpr, WIDE: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr,
    MOVES: tl.constexpr,
):  # fmt: skip
    """output[(n, y, x), feature] = sum over columns (tap of y, tap of x, channel), by their digits."""
    length: tl.constexpr = TAPS_Y * TAPS_X * CHANNELS
    col_tiles: tl.constexpr = (FEATURES + BLOCK_N - 1) // BLOCK_N
    row = tl.program_id(0) // col_tiles * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    feature = tl.program_id(0) % col_tiles * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    y = row // ACROSS % DOWN * STRIDE - PADDING
    x = row % ACROSS * STRIDE - PADDING
    first = ((row // (DOWN * ACROSS) * HIGH + y) * WIDE + x) * CHANNELS
    col = tl.arange(0, BLOCK_K)[None, :]
    tap_y, tap_x, channel = digits(col, TAPS_X, CHANNELS)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, length, BLOCK_K):
        if not MOVES:
            tap_y, tap_x, channel = digits(start + col, TAPS_X, CHANNELS)
        down, across = y + tap_y * DILATION, x + tap_x * DILATION
        valid = (down >= 0) & (down < HIGH) & (across >= 0) & (across < WIDE) & (row < m) & (tap_y < TAPS_Y)
        offsets = first + ((tap_y * WIDE + tap_x) * (DILATION * CHANNELS) + channel)
        # What the algebra of descriptors would say; of digits that move the compiler would not know it.
        offsets = tl.max_contiguous(tl.multiple_of(offsets, (1, VECTOR)), (1, VECTOR))
        valid = tl.max_constancy(valid, (1, VECTOR))
        a = tl.load(image_pointer + offsets, mask=valid, other=0.0)
        of_b = start + tl.arange(0, BLOCK_K)[:, None]
        inside = (of_b < length) & (feature < FEATURES)
        b = tl.load(weight_pointer + of_b + feature * length, mask=inside, other=0.0)
        total = tl.dot(a, b, total)
        if MOVES:
            channel += BLOCK_K % CHANNELS
            carry = tl.where(channel >= CHANNELS, 1, 0)
            channel -= carry * CHANNELS
            tap_x += BLOCK_K // CHANNELS % TAPS_X + carry
            carry = tl.where(tap_x >= TAPS_X, 1, 0)
            tap_x -= carry * TAPS_X
            tap_y += BLOCK_K // CHANNELS // TAPS_X + carry
    result = total.to(output_pointer.dtype.element_ty)
    tl.store(output_pointer + row * FEATURES + feature, result, mask=(row < m) & (feature < FEATURES))


@triton.jit
def digits(col, TAPS_X: tl.constexpr, CHANNELS: tl.constexpr):
    """(tap of y, tap of x, channel) of a column."""
    return col // (TAPS_X * CHANNELS), col // CHANNELS % TAPS_X, col % CHANNELS


def computed(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    moves: bool = False,
) -> Launch:
    """A convolution by a kernel that divides at each step along K for the taps and channels that it is at.

    Args:
        input: (n, c, h, w), channels_last, of fewer than 2^31 elements. weight: (k, c, r, s).
        moves: carry the digits of the last step instead.

    Raises:
        InvalidArgumentError: the images are not channels_last, or too many.
    """
    n, high, wide, channels, down, across = _sizes(input, weight, stride, padding, dilation)
    if max(input.numel(), n * down * across * len(weight)) > MOST_OFFSETS_IN_32_BITS:
        raise InvalidArgumentError("input", f"{input.numel()} elements", "Give fewer than 2^31.")
    features, _, *taps = weight.shape
    rows = weight.permute(0, 2, 3, 1).contiguous()  # laid out once
    output = _output(input, features, down, across)
    block_m, block_n, block_k = TILE
    m = n * down * across
    lengths: dict[str, Any] = {
        "HIGH": high, "WIDE": wide, "DOWN": down, "ACROSS": across, "TAPS_Y": taps[0], "TAPS_X": taps[1],
        "CHANNELS": channels, "FEATURES": features,
    }  # fmt: skip
    return Launch.of(
        walking_kernel, (triton.cdiv(m, block_m) * triton.cdiv(features, block_n),), input, rows, output, m,
        outputs=output, **lengths, STRIDE=stride, PADDING=padding, DILATION=dilation, BLOCK_M=block_m,
        BLOCK_N=block_n, BLOCK_K=block_k, VECTOR=math.gcd(channels, ACCESS_BYTES // input.element_size()),
        MOVES=moves, num_warps=gemm.default_warps(block_m, block_n), num_stages=STAGES,
    )  # fmt: skip


def moved(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Launch:
    """As :func:`computed`, with digits that move: a step is added, and what is too much carried on."""
    return computed(input, weight, stride=stride, padding=padding, dilation=dilation, moves=True)


def _output(input: torch.Tensor, features: int, down: int, across: int) -> torch.Tensor:
    return torch.empty(
        (len(input), features, down, across),
        dtype=input.dtype,
        device=input.device,
        memory_format=torch.channels_last,
    )


def _sizes(
    input: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int
) -> tuple[int, ...]:
    """n, height, width and channels of the images, and the height and width of the output."""
    if not input.is_contiguous(memory_format=torch.channels_last):
        raise InvalidArgumentError("input", f"strides {input.stride()}", "Give channels_last images.")
    n, channels, *sizes = input.shape
    outputs = [
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps in zip(sizes, weight.shape[2:], strict=True)
    ]
    return (n, *sizes, channels, *outputs)


def _launch(
    input: torch.Tensor,
    weight: torch.Tensor,
    lengths: Sequence[Number],
    values: Mapping[str, int],
    stride: int,
    padding: int,
    dilation: int,
    order: Sequence[int],
) -> Launch:
    """Images of these lengths, of which the last two are the output's, times the weight."""
    features, _, *taps = weight.shape
    windows = image_windows(
        lengths[:4], lengths[4:], taps, stride=stride, padding=padding, dilation=dilation, order=order
    )
    # The weight's rows in the order of the windows' columns; it is small, and laid out once.
    as_windows = (0, 1, 2, 3) if order == CHANNEL_THEN_TAPS else (0, 2, 3, 1)
    rows = weight.permute(as_windows).reshape(features, -1)
    *_, down, across = _sizes(input, weight, stride, padding, dilation)
    output = _output(input, features, down, across)
    stored = naive((windows.lengths[0], features), (features, 1), names=("row", "col"))
    return implicit_gemm.launch(
        _view(input, windows, values),
        View(rows, naive(rows.shape[::-1], rows.stride()[::-1], names=("row", "col")), {}),
        _view(output, stored, values),
        tile=TILE,
        num_stages=STAGES,
    )


def _view(tensor: torch.Tensor, descriptor: Descriptor, values: Mapping[str, int]) -> View:
    known = {found.name for found in descriptor.symbols}
    return View(tensor, descriptor, {name: value for name, value in values.items() if name in known})


# By rung: what makes its launch. None of them knows groups.
LADDER: Mapping[str, Callable[..., Launch]] = {
    "constants": constants,
    "in_eights": in_eights,
    "arguments": arguments,
    "taps_innermost": taps_innermost,
    "computed": computed,
    "moved": moved,
}


def _convolving(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(
        input: torch.Tensor, weight: torch.Tensor, *, groups: int = 1, **options: Any
    ) -> Callable[[], torch.Tensor]:
        if groups != 1:
            raise InvalidArgumentError("groups", f"got {groups}", "The rungs know one group.")
        launch = rung(input, weight, **options)
        return lambda: launch.run()[0]

    return build


# By operator and rung, as in `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    "conv2d": {name: _convolving(rung) for name, rung in LADDER.items()}
}
