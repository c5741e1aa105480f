"""The rungs of the lesson on coordinate transforms: convolutions that know more or less of their operand.

Each rung is measured like the shipped kernel, as `workbench:<rung>` (see :mod:`~.ladder`). All have the same
tile. The first four run the kernel of `gemm`, and differ in what the image's descriptor knows at compile time
and in the order of its columns. The last two run a plain kernel, which computes the digits of a column (its
tap of y, tap of x and channel) at each step along K, or increments them.
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

# The tile (m, n, k) and the stages of all rungs, so that they differ only in what they know.
TILE, STAGES = (128, 64, 64), 3

# The dimensions that form a column of the matrix, by their numbers in `image_windows`, the slowest first.
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
    """Describe contiguous images (n, y, x, c) as the matrix [(n, outputs...), (taps..., c)] of a convolution.

    Args:
        lengths: the lengths of n, y, x and c, as numbers or symbols.
        outputs: height and width of the output, which follow from the other arguments.
        taps: height and width of the window.
        order: the order of y's tap (2), x's tap (4) and the channel (5) in a column, the slowest first.
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
    """Convolve channels_last images; the descriptor knows all lengths except the number of images.

    Args:
        input: (n, c, h, w), channels_last. weight: (k, c, r, s).
        order: as in :func:`image_windows`.

    Raises:
        InvalidArgumentError: the images are not channels_last. Also the errors of `implicit_gemm.launch`.
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
    """Like :func:`constants`, but height, width and channels are arguments of the kernel too.

    Args:
        divisor: a divisor of the number of channels that the descriptor knows.

    Raises:
        InvalidArgumentError: the number of channels is not a multiple of `divisor`. Also the errors of
            :func:`constants`.
    """
    sizes = _sizes(input, weight, stride, padding, dilation)
    if sizes[3] % divisor:
        raise InvalidArgumentError("input", f"{sizes[3]} channels", f"Give a multiple of {divisor} channels.")
    names = ("high", "wide", "channels", "down", "across")
    known = {"channels": divisor}
    lengths = (IMAGES, *(symbol(name, least=1, multiple_of=known.get(name, 1)) for name in names))
    values = dict(zip((IMAGES_NAME, *names), sizes, strict=True))
    return _launch(input, weight, lengths, values, stride, padding, dilation, TAPS_THEN_CHANNEL)


def in_eights(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Launch:
    """Like :func:`arguments`, but the descriptor knows that the number of channels is a multiple of 8.

    Raises:
        The errors of :func:`arguments`, for a divisor of 8.
    """
    return arguments(input, weight, stride=stride, padding=padding, dilation=dilation, divisor=8)


def taps_innermost(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Launch:
    """Like :func:`constants`, but the sum runs channel by channel: neighbors along K are different pixels."""
    return constants(
        input, weight, stride=stride, padding=padding, dilation=dilation, order=CHANNEL_THEN_TAPS
    )


@triton.jit
def walking_kernel(
    # pointers to the first element of each tensor
    image_pointer, weight_pointer, output_pointer,
    # sizes: rows of the product
    m,
    # meta-parameters: height and width of an image, of an output and of the window; channels and features;
    # stride, padding and dilation; the tile; a divisor of the channels, by which accesses are widened;
    # whether digits are incremented
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
        # The algebra of descriptors knows this divisor; for digits that move, the compiler would not.
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
    """Return the (tap of y, tap of x, channel) of a column."""
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
    """Convolve with a kernel that finds its taps and channels by division at each step along K.

    Args:
        input: (n, c, h, w), channels_last, of fewer than 2^31 elements. weight: (k, c, r, s).
        moves: increment taps and channels with carries instead of dividing.

    Raises:
        InvalidArgumentError: the images are not channels_last, or images or output have 2^31 elements or
            more.
    """
    n, high, wide, channels, down, across = _sizes(input, weight, stride, padding, dilation)
    results = n * down * across * len(weight)
    if max(input.numel(), results) > MOST_OFFSETS_IN_32_BITS:
        given = f"{input.numel()} elements, and {results} in the output"
        raise InvalidArgumentError("input", given, "Give fewer images: both have to be below 2^31.")
    features, _, *taps = weight.shape
    rows = weight.permute(0, 2, 3, 1).contiguous()  # copied once, not at every run
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
    """Like :func:`computed`, but taps and channels are incremented with carries at each step."""
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
    """Return n, height, width and channels of the images, and height and width of the output."""
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
    """Return the launch of the product of the images' windows with the weight.

    Args:
        lengths: n, height, width and channels of the images, then height and width of the output.
        values: the values of the symbols among `lengths`.
    """
    features, _, *taps = weight.shape
    windows = image_windows(
        lengths[:4], lengths[4:], taps, stride=stride, padding=padding, dilation=dilation, order=order
    )
    # Permute the weight to the order of the windows' columns; it is small, and copied only once.
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


# The function that makes the launch of each rung. No rung supports groups.
LADDER: Mapping[str, Callable[..., Launch]] = {
    "constants": constants,
    "in_eights": in_eights,
    "arguments": arguments,
    "taps_innermost": taps_innermost,
    "computed": computed,
    "moved": moved,
}


def _conv2d_builder(rung: Callable[..., Launch]) -> Callable[..., Callable[[], torch.Tensor]]:
    def build(
        input: torch.Tensor, weight: torch.Tensor, *, groups: int = 1, **options: Any
    ) -> Callable[[], torch.Tensor]:
        if groups != 1:
            raise InvalidArgumentError("groups", f"got {groups}", "Give 1: no rung supports groups.")
        launch = rung(input, weight, **options)
        return lambda: launch.run()[0]

    return build


# By operator and rung, like `ladder.RUNGS`.
RUNGS: Mapping[str, Mapping[str, Callable[..., Callable[[], torch.Tensor]]]] = {
    "conv2d": {name: _conv2d_builder(rung) for name, rung in LADDER.items()}
}
