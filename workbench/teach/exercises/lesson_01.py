"""Exercises of lesson 01: sectors of a request, strides, and a transpose that wastes no sector."""

from __future__ import annotations

import torch

from workbench.teach.definition import Budget, Case, Mutant, eighths, normals
from workbench.teach.exercise import Exercise

SECTOR_BYTES = 32


def sectors(first: int, stride: int, itemsize: int) -> int:
    """Return the number of 32-byte sectors that a warp touches if lane l of its 32 reads element l * stride.

    Elements have `itemsize` bytes and follow one another; the first begins at byte `first`, a multiple of
    `itemsize`.
    """
    touched = []
    for lane in range(32):
        for byte in range(itemsize):
            sector = (first + lane * stride * itemsize + byte) // SECTOR_BYTES
            if sector not in touched:
                touched.append(sector)
    return len(touched)


def copy_any(x: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a matrix in fp32 of any strides."""
    return x.clone(memory_format=torch.contiguous_format)


def quarter_turn(x: torch.Tensor) -> torch.Tensor:
    """Return x turned counterclockwise: output[columns - 1 - j, i] = x[i, j]; x is contiguous, in fp32."""
    return torch.rot90(x).contiguous()


def _numbers(*arguments: int) -> Case:
    return Case(lambda generator: arguments)


def _contiguous(rows: int, columns: int, seed: int) -> Case:
    return Case(lambda generator: (eighths(generator, rows, columns),), seed)


def _transposed(rows: int, columns: int, seed: int) -> Case:
    return Case(lambda generator: (eighths(generator, columns, rows).t(),), seed)


def _window(rows: int, columns: int, step: int, seed: int) -> Case:
    """Return a case with every `step`-th column of a wider matrix."""
    return Case(lambda generator: (eighths(generator, rows, step * columns + 5)[:, 3:-2:step],), seed)


def _each_once(x: torch.Tensor) -> Budget:
    return Budget(loaded_bytes=x.nbytes, stored_bytes=x.nbytes)


def _least_sectors(x: torch.Tensor) -> Budget:
    """Return a budget with each sector touched once, or twice if a side is not a multiple of 16.

    Then rows need not begin at sectors, so that two programs may share a sector. A vector may touch any
    number of sectors: on one of its sides a tile has no runs of neighboring elements.
    """
    least = 2 * -(-x.nbytes // SECTOR_BYTES)
    is_aligned = all(length % 16 == 0 for length in x.shape)
    allowed = None if min(x.shape) == 1 else least if is_aligned else 2 * least
    return Budget(x.nbytes, x.nbytes, sectors=allowed)


SECTORS = Exercise(
    id="01-1",
    title="sectors of a request",
    function="sectors",
    specification=sectors,
    cases=(
        _numbers(4, 3, 4),  # beside a sector's start, with gaps
        _numbers(0, 1, 4),  # neighbors
        _numbers(4, 1, 4),  # one element beside: a sector more
        _numbers(0, 1, 2),  # smaller elements, fewer sectors
        _numbers(0, 2, 4),  # every second element
        _numbers(0, 8, 4),  # a sector for each lane
        _numbers(0, 4096, 4),  # not more, however far apart
        _numbers(64, 0, 4),  # all lanes read one element
        _numbers(24, 1, 8),
        _numbers(62, 5, 2),
    ),
    hints=(
        "At which byte does lane 0 begin, and at which lane 1? And lane l?",
        "Bytes 0 to 31 are sector 0, bytes 32 to 63 are sector 1. Which operator gives any byte's sector?",
        "Several lanes may lie in one sector. Which Python type keeps each number once?",
    ),
    mutants=(
        Mutant(
            "the first byte is left out",
            "Where the first element begins does not enter. Does it begin with a sector?",
        ),
        Mutant("the stride is left out", "The stride does not enter: these lanes read neighbors."),
        Mutant("the stride is taken for bytes", "The stride counts elements; addresses count bytes."),
        Mutant("cache lines instead of sectors", "Those are lines of 128 bytes, of four sectors each."),
        Mutant("one for each lane", "That is one for each lane. Lanes that lie in one sector share it."),
        Mutant(
            "the bytes asked for, in sectors",
            "That is how many sectors the bytes would fill if they lay together.",
        ),
        Mutant(
            "not rounded down",
            "The address is divided and not rounded: lanes in one sector get numbers that differ in the "
            "digits after the point.",
        ),
        Mutant("bits instead of bytes", "The item size counts bytes already, and so do addresses."),
        Mutant("lanes count from 1", "Those are lanes 1 to 32: lanes, like elements, count from 0."),
        Mutant("half a warp", "Those are 16 lanes: a warp has 32."),
        Mutant("the last lane is missing", "One lane is missing: a warp has 32, from 0 to 31."),
        Mutant("zero", "It is always zero."),
        Mutant("the first byte, untouched", "That is the first byte, just as it came."),
    ),
    unproven="how long the request takes: neighboring requests may find their sectors in the cache.",
)

_NO_MASK = "Has it a mask, and is the mask false for all of them?"
_GRID_MUTANTS = (
    Mutant("one program", "One program is started, and one program does one tile."),
    Mutant(
        "the grid rounds rows down",
        "The grid is rounded down along the rows, so nobody takes the last, partly filled tiles.",
    ),
    Mutant(
        "the grid rounds columns down",
        "The grid is rounded down along the columns, so nobody takes the last, partly filled tiles.",
    ),
    Mutant(
        "the axes of the grid are swapped",
        "The grid has the tiles along the columns first, and the kernel takes its rows from there.",
    ),
    Mutant(
        "every program takes the first rows",
        "All programs work on the first rows: the program id of axis 0 does not enter.",
    ),
)

COPY_ANY = Exercise(
    id="01-2",
    title="copy any matrix",
    function="copy_any",
    specification=copy_any,
    cases=(
        _window(40, 70, 2, seed=1),  # no stride is 1, tiles hang over at both sides
        _contiguous(40, 70, seed=2),
        _transposed(70, 40, seed=3),
        _contiguous(1, 1, seed=4),  # a single element
        _contiguous(32, 64, seed=5),  # whole tiles
        _contiguous(33, 31, seed=6),  # one beyond, one short
        _transposed(1, 100, seed=7),
        _window(100, 1, 1, seed=8),  # a column of a wider matrix
        Case(lambda generator: (normals(generator, 40).expand(50, 40),), seed=9),  # every row is the same
    ),
    hints=(
        "How far apart in memory are x[i, j] and x[i + 1, j]? And x[i, j] and x[i, j + 1]?",
        "Where is x[i, j], counted in elements from the first, for any strides? And where output[i, j]?",
        "Which of `[:, None]` and `[None, :]` makes a column of the row numbers, and what is the shape of "
        "their sum?",
        "How many tiles does the matrix need along each dimension, and which lanes of the last ones have no "
        "element?",
    ),
    mutants=(
        Mutant(
            "the strides are swapped",
            "The strides are swapped: rows are multiplied by the stride of columns.",
        ),
        Mutant(
            "right for contiguous matrices only",
            "It is right for contiguous matrices only: the strides do not enter.",
        ),
        Mutant(
            "the column stride is taken for 1",
            "Neighbors in a row are taken to be neighbors in memory: the column stride does not enter.",
        ),
        Mutant(
            "the row stride is taken for the number of columns",
            "Rows are taken to follow one another: the row stride does not enter.",
        ),
        Mutant("the output gets x's strides", "The output is stored with the strides of x. It has its own."),
        Mutant("no mask on the load", f"Lanes that have no element load x. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant(
            "the mask knows the columns only",
            "The mask is about columns only; at the bottom, tiles hang over as well.",
        ),
        Mutant(
            "a diagonal",
            "Row numbers and column numbers are added one to one: this gives the diagonal of a tile. "
            "`[:, None]` and `[None, :]` make a tile of all pairs.",
        ),
        *_GRID_MUTANTS,
        Mutant("zeros", "Only zeros are stored."),
    ),
    unproven="that it is fast for all strides, or that it is right for other dtypes.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_once,
)

QUARTER_TURN = Exercise(
    id="01-3",
    title="a quarter turn",
    function="quarter_turn",
    specification=quarter_turn,
    cases=(
        _contiguous(40, 70, seed=1),  # several tiles, ragged on both sides
        _contiguous(64, 32, seed=2),  # whole tiles: the least sectors there are
        _contiguous(32, 64, seed=3),
        _contiguous(1, 1, seed=4),
        _contiguous(33, 31, seed=5),  # one beyond, one short
        _contiguous(1, 100, seed=6),  # a row, and a column
        _contiguous(100, 1, seed=7),
        Case(lambda generator: (normals(generator, 16, 48),), seed=8),
    ),
    hints=(
        "Turn a sheet of paper counterclockwise. Where does its upper right corner go, and where the upper "
        "left one?",
        "In which row of the output is column 0 of x, and in which is the last column?",
        "Which line of the tiled transpose says where an element goes, and what would it say here?",
        "Of the tile that you store, do neighbors lie beside one another in the output's memory? How long "
        "are the runs, in bytes?",
    ),
    mutants=(
        Mutant(
            "a transpose", "This is the transpose: the last column of x has to come out as the first row."
        ),
        Mutant("clockwise", "This turns clockwise."),
        Mutant(
            "each tile turned in its place",
            "Each tile is turned, and stays in the place that it has in the transpose. The last columns of x "
            "have to become the first rows.",
        ),
        Mutant(
            "the rows run backwards",
            "The rows come out in reverse as well: that is a transpose along the other diagonal.",
        ),
        Mutant("one row too far", "Column 0 goes to row columns, which does not exist: rows count from 0."),
        Mutant("the tile is not turned", "The tile is stored as it was loaded, where it belongs turned."),
        Mutant(
            "the mask is not turned",
            "The tile is turned, and its mask is not. Which lanes of the stored tile have an element?",
        ),
        Mutant("no mask on the load", f"Lanes that have no element load x. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant(
            "tiles of 8 x 8",
            "A tile of 8 x 8 has 64 elements, and a program of four warps has 128 lanes: half of them load "
            "what others load as well, in requests of their own.",
        ),
        *_GRID_MUTANTS,
        Mutant("zeros", "Only zeros are stored."),
        Mutant(
            "x, untouched", "The elements are in the order in which they came: only the shape has changed."
        ),
    ),
    unproven="that it is as fast as its sectors allow, or that it is right for other dtypes and strides.",
    returns_launch=True,
    is_contiguous=True,
    budget=_least_sectors,
)

EXERCISES = (SECTORS, COPY_ANY, QUARTER_TURN)
