"""Exercises of lesson 13: why an instance is refused, the key of a kernel, two states in one pass."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise

# Bytes that are copied at once in 13-1, and the divisor that the compiler looks for in 13-2.
_BYTES, _DIVISOR = 16, 16

Call = tuple[str, int, int, int, int]


def why_not(
    rows: int, cols: int, row_stride: int, itemsize: int, tile: tuple[int, int], stages: int, room: int
) -> str:
    """Return in a word or two why an instance cannot take a matrix; "" if it can.

    The instance has no masks. It copies tiles to shared memory, row by row in pieces of 16 bytes, and keeps
    `stages` tiles there.

    Args:
        rows, cols: the size of the matrix, whose columns are neighbors in memory and which begins at a
            multiple of 16 bytes.
        row_stride: the number of elements from one row to the next.
        itemsize: the bytes of an element.
        tile: rows and columns of a tile, at least 1 each.
        stages: the number of tiles in shared memory at a time.
        room: the bytes of shared memory that a block can have.

    Returns:
        the first of these that holds: "power of two" if a side of the tile is not a power of two; "tile" if
            the tile does
        not divide the matrix; "alignment" if a row of the matrix does not begin at a multiple of 16 bytes, or
        a row of the tile is not a whole number of pieces; "shared memory" if a block needs more than `room`.
    """
    if any(side.bit_count() != 1 for side in tile):
        return "power of two"
    if rows % tile[0] or cols % tile[1]:
        return "tile"
    begins = {row * row_stride for row in range(min(rows, 32))}
    if any(elements * itemsize % _BYTES for elements in (*begins, tile[1])):
        return "alignment"
    return "shared memory" if stages * tile[0] * tile[1] * itemsize > room else ""


def compiled(calls: tuple[Call, ...]) -> tuple[int, ...]:
    """Return for each of several calls the index of the first call that shares its compiled kernel.

    Args:
        calls: calls of one kernel, in order: (dtype of the tensor, its address, a size, a stride, BLOCK).
            Size and stride are whole numbers that the kernel takes as arguments, and BLOCK is a constant.

    Returns:
        an index for each call. Two calls share a kernel if Triton finds no difference. It compares the dtype;
        whether the address is a multiple of 16; for each whole number whether it is 1, a multiple of 16, and
        2^31 or more; and the constant.
    """

    def kind(number: int) -> str:
        width = "long" if number >= 2**31 else "short"
        return "one" if number == 1 else f"{width} {number % _DIVISOR == 0}"

    seen: list[tuple[object, ...]] = []
    for dtype, address, size, stride, block in calls:
        seen.append((dtype, address % _DIVISOR == 0, kind(size), kind(stride), block))
    return tuple(seen.index(one) for one in seen)


def crest(x: torch.Tensor) -> torch.Tensor:
    """Return the crest factor of each row: its largest magnitude over the root of its mean square; in fp32.

    Args:
        x: [rows, cols], contiguous, in fp16 or fp32.

    Returns:
        [rows]: max |x| / sqrt(mean x^2), and 0 for a row of zeros.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    root = wide.square().mean(1).sqrt()
    return torch.where(root == 0, 0.0, wide.abs().amax(1) / root)


def _asked(*arguments: int | tuple[int, int]) -> Case:
    return Case(lambda generator: arguments)


def _calls(*calls: Call) -> Case:
    return Case(lambda generator: (calls,))


def _rows(
    rows: int, cols: int, dtype: torch.dtype, *, scale: float = 1, peaks: tuple[int, ...] = (), seed: int
) -> Case:
    """Return a case with normals times `scale`; row i has a negative peak in column peaks[i].

    If peaks[i] is -1, row i is all zeros.
    """

    def build(generator: torch.Generator) -> tuple[torch.Tensor]:
        x = scale * normals(generator, rows, cols)
        for row, place in enumerate(peaks):
            if place < 0:
                x[row] = 0
            else:
                x[row, place] = -8 * scale
        return (x.to(dtype),)

    return Case(build, seed)


def _each_element_once(x: torch.Tensor) -> Budget:
    return Budget(loaded_bytes=x.nbytes, stored_bytes=4 * len(x))


WHY_NOT = Exercise(
    id="13-1",
    title="why not",
    function="why_not",
    specification=why_not,
    cases=(
        _asked(64, 1024, 1024, 2, (4, 256), 3, 6144),  # all that there is room for
        _asked(64, 1024, 1024, 2, (4, 256), 3, 6143),
        _asked(64, 1024, 1032, 2, (4, 256), 2, 65536),  # 16 bytes, no multiple of 16 elements
        _asked(64, 1024, 1028, 2, (4, 256), 2, 65536),
        _asked(1, 1024, 1028, 2, (1, 256), 2, 65536),  # there is no second row
        _asked(2, 1024, 1028, 2, (2, 256), 2, 65536),
        _asked(64, 1028, 1028, 4, (4, 4), 2, 65536),  # the same stride, of fp32
        _asked(64, 1020, 1024, 4, (4, 2), 2, 65536),  # a row of the tile is half a piece
        _asked(64, 4, 1024, 2, (4, 4), 2, 65536),  # so it is where it is all of the matrix's row
        _asked(64, 8, 1024, 2, (4, 4), 2, 65536),
        _asked(6, 1000, 1000, 2, (2, 500), 2, 65536),
        _asked(6, 1000, 1000, 2, (6, 8), 2, 65536),
        _asked(6, 1000, 1000, 2, (4, 8), 2, 65536),
        _asked(6, 1000, 1000, 2, (2, 8), 2, 65536),
        _asked(6, 1000, 1000, 2, (2, 256), 2, 65536),
        _asked(8, 16, 17, 1, (8, 16), 1, 100),  # of three reasons the first
        _asked(8, 15, 17, 1, (8, 16), 1, 100),
        _asked(8, 15, 17, 1, (8, 12), 1, 100),
        _asked(8, 16, 16, 1, (8, 16), 1, 127),
        _asked(8, 16, 32, 1, (8, 16), 1, 128),
        _asked(3, 24, 24, 2, (1, 8), 4, 64),
        _asked(4, 64, 64, 8, (4, 1), 1, 65536),
        _asked(4, 64, 64, 8, (4, 2), 1, 65536),
        _asked(64, 1024, 1028, 2, (1, 256), 2, 65536),  # tiles of one row, of which there are more
        _asked(2, 1024, 1024, 2, (4, 256), 2, 65536),  # fewer rows than the tile has
        _asked(64, 1024, 1024, 2, (4, 256), 8, 16384),
        _asked(64, 1024, 1024, 2, (4, 256), 8, 16383),
        _asked(7, 64, 64, 2, (7, 64), 2, 65536),  # neither 3 nor 5 divides a side
        _asked(4, 88, 88, 2, (4, 22), 2, 65536),
        _asked(4, 8192, 8192, 2, (2, 4096), 3, 65536),
    ),
    hints=(
        "What is a side that is a power of two divided by 2, again and again? Python's whole numbers have "
        "`bit_count()`.",
        "At how many bytes begins the second row of the matrix, and is there one at all? How many pieces of "
        "16 bytes is a row of the tile?",
        "How many bytes has a tile, and how many tiles are in shared memory at a time? Does it fit if it is "
        "just as much as there is?",
    ),
    mutants=(
        Mutant("one stage", "This is the shared memory of one tile. How many of them are there at a time?"),
        Mutant("no room for just as much", "A block may have just as much as there is."),
        Mutant(
            "elements for bytes",
            "The stride of rows is held to multiples of 16 elements. 16 bytes are fewer.",
        ),
        Mutant(
            "rows have no gaps",
            "Rows are taken to follow one another without a gap. It is their stride that says where they "
            "begin.",
        ),
        Mutant(
            "the stride of a single row",
            "A matrix of one row has a stride, but no second row that begins anywhere.",
        ),
        Mutant(
            "a tile that divides one side is enough",
            "The tile is refused only where it divides neither rows nor columns. It has to divide both.",
        ),
        Mutant("the tile's columns alone", "The tile divides the columns. Does it divide the rows?"),
        Mutant(
            "a tile may be narrower than a piece",
            "Rows of the matrix begin at multiples of 16 bytes. How many pieces of 16 is a row of the tile?",
        ),
        Mutant("even is enough", "An even number need not be a power of two."),
    ),
    unproven="that what it lets through is fast, nor that it compiles: registers are not asked for.",
)

COMPILED = Exercise(
    id="13-2",
    title="the key of a kernel",
    function="compiled",
    specification=compiled,
    cases=(
        _calls(
            ("fp16", 4096, 1000, 1, 64),
            ("fp16", 8192, 1001, 1, 64),  # another size of the same kind, elsewhere
            ("bf16", 4096, 1000, 1, 64),
            ("fp16", 4098, 1000, 1, 64),
            ("fp16", 4096, 1008, 1, 64),
            ("fp16", 4096, 1000, 1, 128),
            ("fp16", 4096, 1000, 1001, 64),  # another stride, and one of its kind
            ("fp16", 4096, 1000, 999, 64),
        ),
        _calls(("fp32", 64, 48, 1, 64), ("fp32", 96, 4096, 1, 64), ("fp32", 80, 24, 1, 64)),
        _calls(("fp32", 64, 5, 1, 64), ("fp32", 72, 5, 1, 64), ("fp32", 68, 7, 1, 64)),
        _calls(("fp16", 64, 5, 1, 64), ("fp16", 64, 1, 1, 64), ("fp16", 64, 5, 2, 64)),
        _calls(("fp16", 64, 17, 33, 64), ("fp16", 64, 33, 17, 64), ("fp16", 64, 17, 48, 64)),
        _calls(("fp16", 64, 16, 3, 64), ("fp16", 64, 2**31, 3, 64), ("fp16", 64, 2**31 - 16, 3, 64)),
        _calls(("fp16", 64, 3, 2**31 + 1, 64), ("fp16", 64, 3, 2**40 + 3, 64), ("fp16", 64, 3, 5, 64)),
        _calls(("fp16", 64, 3, 5, 64), ("fp16", 64, 5, 3, 32), ("fp32", 65, 5, 3, 64)),
        _calls(("fp16", 0, 0, 1, 16), ("fp16", 16, 32, 1, 16), ("fp16", 16, 8, 1, 16)),
        _calls(("int8", 7, 1, 16, 16), ("int8", 9, 16, 1, 16), ("int8", 1, 1, 160, 16)),
        # Two numbers of 64 bits, of which 16 divides only one.
        _calls(("fp16", 64, 2**31, 3, 64), ("fp16", 64, 2**31 + 1, 3, 64), ("fp16", 64, 2**31 + 16, 3, 64)),
        _calls(("fp16", 64, 3, 2**31 + 1, 64), ("fp16", 64, 3, 2**31, 64), ("fp16", 64, 3, 2**40, 64)),
        # The largest number of 32 bits.
        _calls(("fp16", 64, 5, 3, 64), ("fp16", 64, 2**31 - 1, 3, 64), ("fp16", 64, 2**31 + 1, 3, 64)),
        _calls(("fp16", 64, 3, 5, 64), ("fp16", 64, 3, 2**31 - 1, 64), ("fp16", 64, 3, 2**31 + 1, 64)),
    ),
    hints=(
        "Of which of the five does the compiler know the value, and of which only the kind?",
        "Two sizes, 1,000 and 1,001: what does the compiler know of each? And 1,008? And 1?",
        "Size and stride are asked the same three questions. Would a function help?",
    ),
    mutants=(
        Mutant("no dtype", "A kernel for fp16 is started on bf16: the same 16 bits, and other numbers."),
        Mutant(
            "no alignment",
            "A kernel that loads 16 bytes at a time is started at an address that 16 does not divide.",
        ),
        Mutant(
            "every address",
            "Every address is a key of its own. How often does a tensor lie where another has lain?",
        ),
        Mutant("multiples of 8", "An address that 8 divides and 16 does not is taken for an aligned one."),
        Mutant(
            "every size",
            "Every size is a key of its own, so that each new length compiles the same kernel again.",
        ),
        Mutant(
            "no size", "The size is not in the key at all. What does the compiler make of a multiple of 16?"
        ),
        Mutant(
            "every stride",
            "Every stride is a key of its own, so that each new width compiles the same kernel again.",
        ),
        Mutant(
            "no stride",
            "The stride is a whole number like the size. What does the compiler make of a stride of 1?",
        ),
        Mutant("1 is like any other", "1 is like any other number here. Triton puts it into the code."),
        Mutant("no constant", "The constant is not in the key, though the code is made for it."),
        Mutant("32 bits for all", "A number that needs 64 bits is handed to a kernel that takes 32."),
    ),
    unproven="that a look-up is cheap: a key is made at every call.",
)

CREST = Exercise(
    id="13-3",
    title="two states in one pass",
    function="crest",
    specification=crest,
    cases=(
        _rows(5, 100, torch.float16, peaks=(0, 99, 40, -1, 64), seed=1),
        _rows(4, 32, torch.float32, scale=0.01, seed=2),  # no peak comes near 1
        _rows(9, 33, torch.float16, scale=60, seed=3),  # squares beyond fp16
        _rows(1, 1, torch.float32, seed=4),
        _rows(3, 70, torch.float32, peaks=(2, 33, 69), seed=5),
        _rows(8, 64, torch.float16, peaks=(0, 31, 32, 63), seed=6),  # nothing hangs over
        _rows(5, 40, torch.float32, scale=1e-6, peaks=(7, -1, 33), seed=7),  # small, and only one row is 0
        _rows(5, 40, torch.float32, scale=1e-15, peaks=(7, -1, 33), seed=8),
    ),
    hints=(
        "The state is two tiles. What does each element of them know after the first tile of columns, and "
        "what does a second tile change in it?",
        "What is an fp16 of 300, squared? In which type does the tile come, and in which are the states?",
        "By which number is the mean made, that of the tile's columns or of the row's? What does your "
        "formula give for a row of zeros, and what does the template's mask make of a NaN?",
    ),
    mutants=(
        Mutant(
            "squares in fp16", "The tile is squared in the type that it has. In fp16 300 squared is infinite."
        ),
        Mutant("the largest, whatever its sign", "A large negative element is a peak, too."),
        Mutant("squares of the last tile", "The squares are those of the last tile alone."),
        Mutant("the peak of the last tile", "The peak is that of the last tile alone."),
        Mutant(
            "no root",
            "The root of the mean square is missing: the result should not change if all of x is doubled.",
        ),
        Mutant(
            "the mean over the tile's columns",
            "The sum is divided by the columns of a tile. It has all of the row.",
        ),
        Mutant("0 / 0", "A row of zeros gives 0 / 0, a NaN, which the template does not store."),
        Mutant(
            "squares are subtracted",
            "The squares are subtracted. The root of a number below 0 is NaN, which the template does not "
            "store.",
        ),
        Mutant("the mean magnitude", "Magnitudes are added up where squares are asked for."),
    ),
    unproven="that it is fast: a tile of 4 x 32 is a small one.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_element_once,
    tolerance=1e-6,
)

EXERCISES = (WHY_NOT, COMPILED, CREST)
