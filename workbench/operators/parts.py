"""Parts of an operator's results: what is compared with float64 where the whole takes too much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from workbench.operators.arguments import Arguments, replaced

# Rows are compared in blocks of about so many elements; of products, so many rows of the beginning, the
# middle and the end.
BLOCK_ELEMENTS, BLOCK_ROWS = 2**22, 128

# More results than any operator has; places of further ones are not used.
MOST_RESULTS = 8


class Part(NamedTuple):
    """A part of the results.

    Attributes:
        calls: arguments of the operator whose results, added up, are this part.
        places: for each result the index of the part in it; None if it is compared in another part.
    """

    calls: Sequence[Arguments]
    places: tuple[Any, ...]


Parts = Callable[[Arguments], Iterator[Part]]


def whole(arguments: Arguments) -> Iterator[Part]:
    """Yield one part: all elements of all results."""
    yield Part((arguments,), (...,) * MOST_RESULTS)


def by_rows(
    *places: int | str,
    blocks: Callable[[int, int], Iterator[slice]] | None = None,
    of_results: int | None = None,
    rank: int = 1,
) -> Parts:
    """Return a function that splits the named arguments, and the results, into blocks of rows.

    Args:
        places: the arguments, by position or keyword, whose first dimension is that of the results.
        blocks: yields slices, from the numbers of rows and of elements; all rows, in blocks of about
            :data:`BLOCK_ELEMENTS` elements, by default.
        of_results: how many results have these rows; the further ones are sums over rows, and are compared
            as one part. None if all have.
        rank: the least number of dimensions that these arguments have; all is compared at once for fewer.
    """
    first, cut = places[0], blocks or all_rows

    def parts(arguments: Arguments) -> Iterator[Part]:
        if not _have_rows(arguments, places, rank):
            yield from whole(arguments)
            return
        tensor = _at(arguments, first)
        slices = list(cut(tensor.shape[0], tensor.numel()))
        calls = [
            replaced(arguments, {at: _rows(_at(arguments, at), rows) for at in places}) for rows in slices
        ]
        counted = MOST_RESULTS if of_results is None else of_results
        for rows, call in zip(slices, calls, strict=True):
            yield Part((call,), (rows,) * counted + (None,) * (MOST_RESULTS - counted))
        if of_results is not None:
            yield Part(calls, (None,) * counted + (...,) * (MOST_RESULTS - counted))

    return parts


def by_lines(*places: int | str, dim: int) -> Parts:
    """Return :func:`by_rows` for operators along the rows of a matrix; along its columns, by columns.

    Args:
        places: as there.
        dim: the position of the argument that names the dimension.
    """
    rows = by_rows(*places)

    def parts(arguments: Arguments) -> Iterator[Part]:
        along = arguments.args[dim] if len(arguments.args) > dim else None
        if _at(arguments, places[0]).dim() != 2 or along not in (0, 1, -1):
            return whole(arguments)
        return _by_columns(arguments, places) if along == 0 else rows(arguments)

    return parts


def _by_columns(arguments: Arguments, places: Sequence[int | str]) -> Iterator[Part]:
    """Yield blocks of columns, of these arguments and of the results."""
    matrix = _at(arguments, places[0])
    for columns in all_rows(matrix.shape[1], matrix.numel()):
        call = replaced(arguments, {at: _at(arguments, at)[:, columns] for at in places})
        yield Part((call,), ((..., columns),) * MOST_RESULTS)


def _have_rows(arguments: Arguments, places: Sequence[int | str], rank: int) -> bool:
    """Return whether these arguments have a first dimension, of one length; epilogues take what there is."""
    values = [_at(arguments, place) for place in places]
    tensors = [each for each in values if not hasattr(each, "with_tensors")]
    if not all(isinstance(each, torch.Tensor) and each.dim() >= rank for each in tensors):
        return False
    return len({len(each) for each in tensors}) == 1


def _at(arguments: Arguments, place: int | str) -> Any:
    return arguments.args[place] if isinstance(place, int) else arguments.keywords[place]


def _rows(value: Any, rows: slice) -> Any:
    """Return the rows of a tensor; of an epilogue, those of its tensors that have as many rows."""
    if isinstance(value, torch.Tensor):
        return value[rows]
    return value.with_tensors(
        [each[rows] if each.dim() > 1 and each.shape[0] > 1 else each for each in value.tensors]
    )


def all_rows(rows: int, elements: int) -> Iterator[slice]:
    """Yield slices of all rows, in blocks of about :data:`BLOCK_ELEMENTS` elements."""
    step = max(1, BLOCK_ELEMENTS * rows // max(1, elements))
    return (slice(start, start + step) for start in range(0, rows, step))


def some_rows(rows: int, elements: int) -> Iterator[slice]:
    """Yield slices of the first, the middle and the last :data:`BLOCK_ROWS` rows."""
    starts = {0, max(0, (rows - BLOCK_ROWS) // 2), max(0, rows - BLOCK_ROWS)}
    return (slice(start, start + BLOCK_ROWS) for start in sorted(starts))


def first_and_last(rows: int, elements: int) -> Iterator[slice]:
    """Yield slices of the first and the last row, such as an image of a batch."""
    return (slice(place, place + 1) for place in sorted({0, rows - 1}))
