"""Exercises of lesson 08: an enlarged image, moving a coordinate, wide loads, a descriptor in the GEMM."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NoReturn

import torch
from torch.nn import functional

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import merge
from workbench.teach.definition import Budget, Case, Code, Mutant, eighths, normals
from workbench.teach.exercise import Exercise
from workbench.teach.exercises.lesson_05 import loaded_bytes

# The side of the tiles in 08-4, as the stub sets it.
_SIDE = 16


def enlarged(rows: int, cols: int, factor: int) -> Descriptor:
    """Describe a contiguous image [rows, cols] with every pixel `factor` times in each direction.

    Element [i, j] of the descriptor, which is [rows * factor, cols * factor], lies at offset
    i // factor * cols + j // factor. The descriptor has at most three transforms above the transform of the
    image, and no table.
    """
    # Strides of 0 repeat elements, as replicate does.
    apart = naive((rows, factor, cols, factor), (cols, 0, 1, 0))
    digits = [merge((rows, factor)), merge((cols, factor))]
    return transform(apart, digits, [(0, 1), (2, 3)], [(0,), (1,)])


def move(digits: Sequence[int], lengths: Sequence[int], step: Sequence[int]) -> tuple[int, ...]:
    """Return the digits that an index has after a step, where `merge(lengths)` defines the digits.

    Digit i counts to lengths[i], and the last one is the fastest. `step` is a number of either sign, given by
    its digits: each is less than its length, and has the sign of the number. The first digit has no limit: it
    may become lengths[0] or more, or negative. The numbers can be added, multiplied and compared; to divide
    one raises a TypeError.
    """
    digits, lengths, step = ([_number(value) or 0 for value in values] for values in (digits, lengths, step))
    places = [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]
    rest = sum((d + s) * place for d, s, place in zip(digits, step, places, strict=True))
    found = []
    for place in places:
        found.append(rest // place)
        rest %= place
    return tuple(found)


def causal(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return y[i, f] = sum over t and c of x[i + t - (taps - 1), c] * weight[f, t, c], contiguous, for fp16.

    x is [n, channels], weight [features, taps, channels], both contiguous; elements before x are 0.
    Channels and features are multiples of 8. Sums are computed in fp32, and rounded to fp16 at the end.
    """
    taps = weight.shape[1]
    padded = functional.pad(x, (0, 0, taps - 1, 0))
    windows = padded.unfold(0, taps, 1).transpose(1, 2)  # [n, taps, channels]
    return windows.reshape(len(x), -1) @ weight.reshape(len(weight), -1).t()


def patch_embedding(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply each patch of each image by the weight: [patches, features], contiguous, for fp16.

    images is [n, h, w] and weight [features, side, side], both contiguous. A patch has side x side pixels;
    pixels beyond the end of the image are 0. Patches are counted image by image, and row by row within an
    image. Sums are computed in fp32, and rounded to fp16 at the end.
    """
    (_, h, w), (features, side, _) = images.shape, weight.shape
    padded = functional.pad(images, (0, -w % side, 0, -h % side))
    apart = padded.unfold(1, side, side).unfold(2, side, side)  # [n, down, across, side, side]
    return apart.reshape(-1, side * side) @ weight.reshape(features, -1).t()


def _number(value: object) -> int | None:
    """Return the number of an operand that can be added to an `Undivided`; None for any other operand."""
    if isinstance(value, Undivided):
        return value._number
    return int(value) if isinstance(value, int) else None


def _kept(method: Callable[[int, int], int]) -> Any:
    """Make an operation of `Undivided` whose result is an `Undivided` too."""

    def operation(self: Undivided, other: object) -> Any:
        number = _number(other)
        return NotImplemented if number is None else Undivided(method(self._number, number))

    return operation


def _told(method: Callable[[int, int], bool]) -> Any:
    """Make a comparison of `Undivided`."""

    def comparison(self: Undivided, other: object) -> Any:
        number = _number(other)
        return NotImplemented if number is None else method(self._number, number)

    return comparison


def _refuse(self: Undivided, *other: object) -> NoReturn:
    text = f"digit {self._number} cannot be used in a division here: that takes far longer than an addition."
    raise TypeError(f"{text} Add and compare the digits instead.")


def _stay(self: Undivided, *other: object) -> NoReturn:
    text = f"digit {self._number} cannot become an int or a float, which could be divided."
    raise TypeError(f"{text} Add and compare the digit as it is.")


class Undivided:
    """A whole number that can be added, multiplied and compared, but not divided."""

    def __init__(self, number: int) -> None:
        self._number = number

    __add__ = __radd__ = _kept(operator.add)
    __mul__ = __rmul__ = _kept(operator.mul)
    __sub__ = _kept(operator.sub)
    __rsub__ = _kept(lambda mine, other: other - mine)
    __eq__, __ne__ = _told(operator.eq), _told(operator.ne)
    __lt__, __le__ = _told(operator.lt), _told(operator.le)
    __gt__, __ge__ = _told(operator.gt), _told(operator.ge)
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __divmod__ = __rdivmod__ = __truediv__ = __rtruediv__ = _refuse
    __int__ = __index__ = __float__ = __trunc__ = _stay

    def __neg__(self) -> Undivided:
        return Undivided(-self._number)

    def __pos__(self) -> Undivided:
        return self

    def __abs__(self) -> Undivided:
        return Undivided(abs(self._number))

    def __bool__(self) -> bool:
        return self._number != 0

    def __hash__(self) -> int:
        return hash(self._number)

    def __repr__(self) -> str:
        return repr(self._number)


Integral.register(Undivided)


def _picture(rows: int, cols: int, factor: int) -> Case:
    return Case(lambda generator: (rows, cols, factor))


def _step(digits: Sequence[int], lengths: Sequence[int], step: Sequence[int]) -> Case:
    numbers = tuple(tuple(map(Undivided, given)) for given in (digits, lengths, step))
    return Case(lambda generator: numbers)


def _signal(n: int, channels: int, features: int, taps: int, seed: int) -> Case:
    return Case(
        lambda generator: (
            normals(generator, n, channels).half(),
            normals(generator, features, taps, channels).half(),
        ),
        seed,
    )


def _images(n: int, h: int, w: int, side: int, features: int, seed: int) -> Case:
    return Case(
        lambda generator: (
            eighths(generator, n, h, w).half(),
            eighths(generator, features, side, side).half(),
        ),
        seed,
    )


def _wide(x: torch.Tensor, weight: torch.Tensor) -> Budget:
    """Return a budget: 16 bytes in each access on an H200; a sample is loaded for every tap that sees it."""
    (n, channels), (features, taps, _) = x.shape, weight.shape
    whole = sum(max(n - (taps - 1 - tap), 0) for tap in range(taps)) * channels
    loaded = 2 * (whole * -(-features // 32) + weight.numel() * -(-n // 64))
    return Budget(loaded, 2 * n * features, code=(Code("sm_90", bits=128, registers=255),))


def _no_copies(images: torch.Tensor, weight: torch.Tensor) -> Budget:
    """Return a budget: a pixel is loaded once for each tile of features; padding is not loaded."""
    (n, h, w), (features, side, _) = images.shape, weight.shape
    rows, k = n * -(-h // side) * -(-w // side), side * side
    of_weight = loaded_bytes(rows, features, k, _SIDE, _SIDE) - 2 * rows * k * -(-features // _SIDE)
    return Budget(2 * images.numel() * -(-features // _SIDE) + of_weight, 2 * rows * features)


PICTURE = Exercise(
    id="08-1",
    title="make this picture",
    function="enlarged",
    specification=enlarged,
    cases=(
        _picture(2, 3, 2),
        _picture(3, 2, 4),
        _picture(4, 4, 3),  # square: rows and columns look alike
        _picture(1, 5, 2),
        _picture(3, 5, 1),  # nothing to do
        _picture(2, 2, 2),
    ),
    hints=(
        "Which row of the image does row i of the picture show? And what does the rest of i say?",
        "A row of the picture has two digits then. Which transform makes two indices of one, and which of "
        "its lengths is the fast one?",
        "One of the digits is to have no effect. Which transform has upper indices and no lower one?",
        "With all four dimensions there, row of the image, copy, column of the image, copy: which pairs of "
        "them are merged?",
    ),
    mutants=(
        Mutant(
            "the image again and again",
            "The whole image is repeated. Each pixel is to be: which digit is the fast one?",
        ),
        Mutant(
            "columns again and again",
            "Rows are right. Along a row the image is repeated, and not each pixel.",
        ),
        Mutant(
            "rows again and again",
            "Columns are right. Down a column the image is repeated, and not each pixel.",
        ),
        Mutant("rows and columns swapped", "Rows and columns of the picture are swapped."),
        Mutant(
            "an embed for each direction",
            "An embed with a coefficient of 0 repeats too, but it takes one for each direction. Which "
            "transform makes both new dimensions at once?",
        ),
        Mutant(
            "column by column", "The image is taken to lie in memory column by column; it lies row by row."
        ),
        Mutant("zeros", "All of the picture is the first pixel."),
        Mutant("the image, untouched", "This is the image, with no transform on top."),
    ),
    unproven="that it is fast: two divisions by a constant for each element, and neighbors that lie "
    "together only as the copies do.",
    transforms=3,
)

MOVE = Exercise(
    id="08-2",
    title="move without dividing",
    function="move",
    specification=move,
    cases=(
        _step((1, 2, 3), (4, 3, 5), (0, 1, 2)),  # 28 + 7: two carries
        _step((2, 0, 1), (4, 3, 5), (0, -1, -2)),  # 31 - 7: two borrows
        _step((0, 0, 0), (4, 3, 5), (0, 0, -1)),  # before the first
        _step((3, 2, 4), (4, 3, 5), (0, 0, 1)),  # beyond the last
        _step((1, 0, 3), (4, 3, 5), (0, 0, 1)),  # a digit that stays 0
        _step((1, 2, 3), (4, 3, 5), (0, 0, 0)),
        _step((1, 1, 4), (4, 3, 5), (0, 2, 4)),  # both digits nearly twice their lengths
        _step((1, 0, 0), (4, 3, 5), (-1, -2, -4)),
        _step((2, 0, 6), (3, 1, 7), (1, 0, 1)),  # a digit that is always 0
        _step((2, 0, 0), (3, 1, 7), (0, 0, -1)),
        _step((6,), (8,), (-9,)),  # one digit, without an end
        _step((0, 1, 1, 1), (2, 2, 2, 2), (0, 0, 0, 1)),  # a carry through all of them
    ),
    hints=(
        "How do you add two numbers of several digits on paper? With which digit do you begin?",
        "The sum of a digit, the step's digit and a carry: how large can it be at most, and how small? How "
        "often does it overflow at most?",
        "What is to happen to the first digit when it overflows?",
    ),
    mutants=(
        Mutant(
            "nothing is carried",
            "A digit that overflows begins anew, and nothing is carried to the next one.",
        ),
        Mutant(
            "nothing is borrowed",
            "A digit below 0 is made positive, and nothing is borrowed from the next one.",
        ),
        Mutant("the carry is lost", "What is carried never reaches the next digit."),
        Mutant("digits below 0 stay", "A digit may not be negative, unless it is the first one."),
        Mutant(
            "digits that are too large stay",
            "A digit may not be as large as its length, unless it is the first one.",
        ),
        Mutant("a digit may be its length", "A digit of length 5 counts from 0 to 4. What does a 5 become?"),
        Mutant(
            "the first digit begins anew", "The first digit begins anew beyond its length. It is to go on."
        ),
        Mutant("the first digit ends at 0", "The first digit is made positive. It is to go below 0."),
        Mutant("it divides", "It divides. A digit overflows once at most: what does that spare you?"),
        Mutant(
            "from the slow end",
            "It begins with the slow digit. Where does a carry come from, and where does it go?",
        ),
        Mutant("only added", "The digits are added, and no more."),
        Mutant("zeros", "It is always zeros."),
        Mutant("the digits, untouched", "Those are the digits, just as they came."),
    ),
    unproven="that it gains anything on a GPU: the kernels here recompute their offsets, for which the "
    "compiler turns divisions by constants into multiplications.",
)

SIXTEEN = Exercise(
    id="08-3",
    title="sixteen bytes at once",
    function="causal",
    specification=causal,
    cases=(
        _signal(70, 24, 40, 3, seed=1),  # tiles hang over along rows, features and K
        _signal(64, 32, 32, 2, seed=2),  # nothing hangs over
        _signal(5, 8, 8, 7, seed=3),  # more taps than samples
        _signal(1, 16, 24, 1, seed=4),
    ),
    hints=(
        "Which samples does row i of the windows see? Which transform makes a place of `out` and `tap`, and "
        "what has to be there before the first sample?",
        "A column of the windows is a tap and a channel. In which of two orders can they be merged, and how "
        "far apart in memory are two neighbors then?",
        "The rows of the weight have to stand in the same order. Where is element [t * channels + c, f] of "
        "it in memory? Is that more than strides?",
    ),
    mutants=(
        Mutant(
            "the tap is the fast digit",
            "The sum is right, and its order is not that of memory: neighbors along a row of the windows are "
            "different samples.",
        ),
        Mutant(
            "windows and weight in different orders",
            "Columns of the windows and rows of the weight stand in different orders.",
        ),
        Mutant("no zeros before", "Window i begins at sample i. It is to end there."),
        Mutant("one zero too many", "Window i ends before sample i: there is one zero too many."),
        Mutant(
            "windows side by side",
            "Windows lie side by side here. They are to overlap: the next one begins one sample further.",
        ),
        Mutant(
            "the weight as it lies",
            "The weight lies in memory as [features, taps, channels]. Which strides has its transpose?",
        ),
        Mutant("zeros", "Every element of the windows is the first one of the signal."),
    ),
    unproven="that it is faster: nothing was timed. But eight times fewer loads bring the same bytes.",
    returns_launch=True,
    is_contiguous=True,
    budget=_wide,
)

PATCHES = Exercise(
    id="08-4",
    title="patches into the GEMM",
    function="patch_embedding",
    specification=patch_embedding,
    cases=(
        _images(2, 7, 10, 3, 5, seed=1),  # patches hang over in both directions
        _images(1, 8, 12, 4, 16, seed=2),  # they are whole
        _images(3, 5, 5, 2, 3, seed=3),
        _images(1, 2, 3, 4, 1, seed=4),  # one patch, larger than the image
        _images(2, 6, 4, 1, 2, seed=5),  # of one pixel
        _images(4, 9, 3, 3, 20, seed=6),  # one column of patches, two tiles of features
    ),
    hints=(
        "How many patches lie side by side, the last of which may be cut? How many zeros does that take to "
        "the right of a row?",
        "Row y of the image is in which patch, and which row of it? Which transform takes one index apart "
        "into two that were its digits?",
        "There are five dimensions now. Which of them say which patch it is, and which say where in the "
        "patch? In what order are they merged?",
    ),
    mutants=(
        Mutant(
            "cut patches are left out", "Patches that the image's end cuts count too: the rest of them is 0."
        ),
        Mutant("the padding on the left", "The zeros are above and to the left of the image."),
        Mutant(
            "digits of a place swapped",
            "Neighbors in a patch lie far apart in the image. Which digit of a place says which patch it is?",
        ),
        Mutant("patches column by column", "The patches of an image are counted column by column."),
        Mutant("pixels column by column", "The pixels of a patch are counted column by column."),
        Mutant(
            "images are the fast digit",
            "The first patch of all images comes first. All patches of the first image are to come first.",
        ),
        Mutant("an image of h x h", "A row of the image has w pixels: how far is it to the next one?"),
        Mutant("zeros", "Every element is the first pixel."),
    ),
    unproven="that it is fast: a patch whose side is odd is loaded pixel by pixel.",
    returns_launch=True,
    is_contiguous=True,
    budget=_no_copies,
)

EXERCISES = (PICTURE, MOVE, SIXTEEN, PATCHES)
