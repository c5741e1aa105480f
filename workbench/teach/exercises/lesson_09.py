"""Exercises of lesson 09: convolution windows, loaded bytes, space-to-batch, pixel shuffle in the store."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise

# The side of all tiles of the products in 09-1 and 09-4.
_SIDE = 16


def convolved(
    image: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int
) -> torch.Tensor:
    """Return the convolution of images in fp16, contiguous.

    Args:
        image: [n, height, width, channels], contiguous, in fp16.
        weight: [taps down, taps across, channels, features], likewise.
        stride, padding, dilation: as in torch, the same down and across.

    Returns:
        [n, height, width, features] of the output. Sums are computed in fp32.
    """
    result = functional.conv2d(
        image.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1), None, stride, padding, dilation
    )
    return result.permute(0, 2, 3, 1).contiguous()


def loaded_bytes(
    images: int, size: int, channels: int, features: int, taps: int, stride: int, padding: int, tile: int
) -> int:
    """Return the bytes that all programs of an implicit product load together for a convolution in fp16.

    Images and windows are square, and a program computes a tile of tile x tile of the output,
    [images * outputs * outputs, features]. It loads its rows of A and columns of B once; padding, and
    elements beyond the end of a matrix, are not loaded.
    """
    inside = functional.unfold(torch.ones(1, 1, size, size), taps, 1, padding, stride)
    rows = images * inside.shape[2]
    of_a = images * channels * int(inside.sum())
    of_b = taps * taps * channels * features
    return 2 * (len(range(0, features, tile)) * of_a + len(range(0, rows, tile)) * of_b)


def space_to_batch(image: torch.Tensor, block: int, padding: int) -> torch.Tensor:
    """Return the images cut into blocks, with one image for each place in a block: every `block`-th pixel.

    Args:
        image: [n, height, width, channels], contiguous.
        block: divides height + 2 * padding and width + 2 * padding.
        padding: zeros on each side of height and width.

    Returns:
        [block * block * n, blocks down, blocks across, channels], contiguous. The first dimension counts
        (place in a block down, place across, image).
    """
    padded = functional.pad(image, (0, 0, padding, padding, padding, padding))
    blocks = padded.unflatten(2, (-1, block)).unflatten(1, (-1, block))
    result: torch.Tensor = blocks.permute(2, 4, 0, 1, 3, 5).flatten(0, 2)
    return result.contiguous()


def upsampled(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the transposed convolution of images in fp16 with a stride of `factor`, contiguous.

    Args:
        image: [n, height, width, channels], contiguous, in fp16.
        weight: [channels, features, factor, factor], likewise, as torch's conv_transpose2d takes it.

    Returns:
        [n, height * factor, width * factor, features]. Sums are computed in fp32.
    """
    result = functional.conv_transpose2d(image.permute(0, 3, 1, 2), weight, stride=weight.shape[-1])
    return result.permute(0, 2, 3, 1).contiguous()


def _convolution(
    image: tuple[int, int, int, int],
    weight: tuple[int, int, int],
    stride: int,
    padding: int,
    dilation: int,
    seed: int,
) -> Case:
    """Return a case; `image` is [n, height, width, channels], `weight` (taps down, taps across, features)."""
    taps = (*weight[:2], image[3], weight[2])
    return Case(
        lambda generator: (
            normals(generator, *image).half(), normals(generator, *taps).half(), stride, padding, dilation,
        ),
        seed,
    )  # fmt: skip


def _sizes(*sizes: int) -> Case:
    return Case(lambda generator: sizes)


def _images(shape: tuple[int, int, int, int], block: int, padding: int, seed: int) -> Case:
    return Case(lambda generator: (normals(generator, *shape).half(), block, padding), seed)


def _upsampling(image: tuple[int, int, int, int], features: int, factor: int, seed: int) -> Case:
    weight = (image[3], features, factor, factor)
    return Case(
        lambda generator: (normals(generator, *image).half(), normals(generator, *weight).half()), seed
    )


def _tiles(length: int) -> int:
    return -(-length // _SIDE)


def _what_is_inside(
    image: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int
) -> Budget:
    """Return a budget: a column of tiles loads the elements of A inside the image, and a row of tiles B."""
    (n, height, width, channels), (high, wide, _, features) = image.shape, weight.shape
    ones = torch.ones(1, 1, height, width)
    inside = functional.unfold(ones, (high, wide), dilation, padding, stride)
    rows = n * inside.shape[2]
    of_a = n * channels * int(inside.sum())
    return Budget(
        loaded_bytes=2 * (_tiles(features) * of_a + _tiles(rows) * weight.numel()),
        stored_bytes=2 * rows * features,
        programs=_tiles(rows) * _tiles(features),
    )


def _each_pixel_once(image: torch.Tensor, block: int, padding: int) -> Budget:
    """Return a budget: the image is loaded once, and its blocks, padding included, are stored once."""
    n, height, width, channels = image.shape
    stored = n * (height + 2 * padding) * (width + 2 * padding) * channels
    return Budget(loaded_bytes=2 * image.numel(), stored_bytes=2 * stored)


def _no_second_pass(image: torch.Tensor, weight: torch.Tensor) -> Budget:
    """Return a budget: tiles load their operands, and each element of the output is stored once."""
    rows, cols = image.numel() // image.shape[3], weight.numel() // weight.shape[0]
    return Budget(
        loaded_bytes=2 * (_tiles(cols) * image.numel() + _tiles(rows) * weight.numel()),
        stored_bytes=2 * rows * cols,
        programs=_tiles(rows) * _tiles(cols),
    )


CONVOLVED = Exercise(
    id="09-1",
    title="the windows of an image",
    function="convolved",
    specification=convolved,
    cases=(
        _convolution((2, 6, 5, 3), (3, 2, 4), stride=1, padding=1, dilation=1, seed=1),  # nothing is square
        _convolution((1, 7, 9, 2), (3, 3, 5), stride=2, padding=1, dilation=1, seed=2),
        _convolution((1, 8, 7, 2), (2, 3, 3), stride=1, padding=2, dilation=2, seed=3),
        _convolution((1, 9, 8, 1), (3, 2, 20), stride=3, padding=2, dilation=2, seed=4),  # two tile columns
        _convolution((3, 4, 3, 5), (1, 1, 2), stride=1, padding=0, dilation=1, seed=5),
        _convolution((1, 1, 1, 1), (3, 3, 1), stride=1, padding=1, dilation=1, seed=6),  # one pixel
    ),
    hints=(
        "`windows_of_a_signal` in this lesson does it for one dimension. Which of its lines do you need "
        "twice for an image?",
        "After `pad`, the descriptor has the dimensions n, height, width and channels. Two of them become "
        "two dimensions each. Which places do these have in the result, and which numbers come next?",
        "Which three dimensions does a row of A count, and which three a column? In what order has the "
        "weight, [taps down, taps across, channels, features], the rows of B?",
    ),
    mutants=(
        Mutant(
            "stride and dilation swapped",
            "Stride and dilation are swapped. Which of them does the next output pixel go, and which the "
            "next tap?",
        ),
        Mutant("no dilation", "Taps are taken one beside the other: the dilation is missing."),
        Mutant("no stride", "Each output pixel goes one step further, whatever the stride."),
        Mutant(
            "padding at the end only",
            "All the padding is at the end of the height: the windows begin too late.",
        ),
        Mutant(
            "channels before taps",
            "Columns of A are in the order (channel, tap, tap), and rows of B in the order of the weight, "
            "(tap, tap, channel).",
        ),
        Mutant(
            "taps swapped", "The tap across comes before the tap down. In which order has the weight them?"
        ),
        Mutant(
            "height and width swapped",
            "Rows are in the order (n, x, y), and the output is stored in the order (n, y, x).",
        ),
    ),
    unproven="that it is fast: a tile of 16 x 16 keeps no matrix unit busy, and few channels make narrow "
    "loads.",
    returns_launch=True,
    is_contiguous=True,
    budget=_what_is_inside,
)

LOADED_BYTES = Exercise(
    id="09-2",
    title="what an implicit product loads",
    function="loaded_bytes",
    specification=loaded_bytes,
    cases=(
        _sizes(2, 7, 8, 40, 3, 1, 1, 16),  # 98 rows and 40 columns, neither of whole tiles
        _sizes(32, 28, 128, 128, 3, 1, 1, 128),
        _sizes(32, 56, 128, 128, 3, 2, 1, 128),
        _sizes(4, 56, 64, 256, 1, 1, 0, 64),  # no padding
        _sizes(1, 224, 3, 64, 7, 2, 3, 128),
        _sizes(1, 5, 1, 1, 5, 1, 4, 16),  # more padding than image
        _sizes(2, 7, 4, 20, 3, 3, 2, 16),  # a window begins at every third pixel
        _sizes(3, 9, 4, 130, 2, 3, 0, 64),  # pixels that no window has
        _sizes(1, 1, 1, 1, 1, 1, 0, 16),
    ),
    hints=(
        "How many rows and columns of tiles has the output? How often is an element of A loaded, and how "
        "often one of B?",
        "In one dimension, for which pairs of output and tap does the place lie in the image?",
        "If a pair is inside down, and a pair is inside across: what can be said of the two together? So how "
        "many elements of A are inside for each image and channel?",
    ),
    mutants=(
        Mutant(
            "padding is loaded too", "All elements of A are counted. Those in the padding are not loaded."
        ),
        Mutant(
            "inside in one dimension only", "Padding is left out in one direction, and loaded in the other."
        ),
        Mutant(
            "tiles of the input",
            "Rows are counted as the input's pixels. The product has one for each pixel of the output.",
        ),
        Mutant("stride is forgotten", "Windows are taken to begin at every pixel, whatever the stride."),
        Mutant(
            "A and B swapped",
            "A is loaded for each column of tiles, and B for each row of them, not the other way around.",
        ),
        Mutant(
            "each matrix once",
            "Each matrix is counted once. Who else needs the rows of A that a tile has loaded?",
        ),
        Mutant(
            "tiles rounded down", "The number of tiles is rounded down. A tile that hangs over loads too."
        ),
    ),
    unproven="that so many bytes come from memory: a pixel that nine taps ask for is brought once, as long "
    "as a cache keeps it.",
)

SPACE_TO_BATCH = Exercise(
    id="09-3",
    title="space to batch",
    function="space_to_batch",
    specification=space_to_batch,
    cases=(
        _images((2, 4, 6, 3), block=2, padding=1, seed=1),
        _images((1, 9, 3, 4), block=3, padding=0, seed=2),
        _images((3, 2, 8, 1), block=2, padding=2, seed=3),
        _images((1, 5, 2, 20), block=3, padding=2, seed=4),
        _images((2, 3, 2, 7), block=1, padding=1, seed=5),  # padding alone
        _images((1, 4, 4, 8), block=4, padding=0, seed=6),  # one block
    ),
    hints=(
        "Which pixel of the padded image is pixel i of block y, down? Which transform makes two indices of "
        "one so?",
        "A convolution's window has a stride and a dilation. What are they, if windows must not overlap and "
        "their pixels lie side by side?",
        "`upper_dims` says where the indices that a transform makes go. Where do y and i have to go, if i is "
        "to be the first dimension of all?",
    ),
    mutants=(
        Mutant(
            "pieces instead of every second pixel",
            "This cuts the image into pieces that lie one below the other. Pixel i of *each* block was asked "
            "for.",
        ),
        Mutant("down and across swapped", "The images are in the order (across, down, image)."),
        Mutant(
            "image first",
            "The number of the image comes first. It was asked for behind the two of the block's pixel.",
        ),
        Mutant("padding at the end only", "All the padding is at the end of the height."),
        Mutant(
            "blocks overlap", "Each block begins one pixel after the one before it, so that blocks overlap."
        ),
    ),
    unproven="that it pays: the pixels are moved once there, and once more back.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_pixel_once,
)

UPSAMPLED = Exercise(
    id="09-4",
    title="pixels shuffled by the store",
    function="upsampled",
    specification=upsampled,
    cases=(
        _upsampling((2, 3, 4, 20), features=5, factor=2, seed=1),
        _upsampling((1, 5, 2, 8), features=3, factor=3, seed=2),
        _upsampling((1, 1, 7, 3), features=1, factor=4, seed=3),
        _upsampling((3, 4, 4, 16), features=4, factor=2, seed=4),  # whole tiles
        _upsampling((2, 2, 3, 5), features=6, factor=1, seed=5),
    ),
    hints=(
        "Output pixel Y down comes from which pixel y of the image, and from which tap i of the window? "
        "Which transform makes these two of Y?",
        "Which dimensions are there after that, and in which order?",
        "A row of the product is (n, y, x). Which dimensions does a column count, in the order that the "
        "weight, [channels, features, factor, factor], has them?",
    ),
    mutants=(
        Mutant(
            "taps swapped",
            "The tap across comes before the tap down: each block of pixels is mirrored at its diagonal.",
        ),
        Mutant(
            "features last",
            "Columns are in the order (tap, tap, feature), and those of B in the order of the weight.",
        ),
        Mutant(
            "place and tap swapped",
            "Down, the pixel's own place counts faster than its tap: pixel y and tap i go to i · height + y.",
        ),
        Mutant(
            "height and width swapped",
            "Rows are in the order (n, x, y), and those of A in the order of the image.",
        ),
    ),
    unproven="that the store is fast: neighbors in a row of the tile are not neighbors in memory.",
    returns_launch=True,
    is_contiguous=True,
    budget=_no_second_pass,
)

EXERCISES = (CONVOLVED, LOADED_BYTES, SPACE_TO_BATCH, UPSAMPLED)
