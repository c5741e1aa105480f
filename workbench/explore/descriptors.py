"""Pictures of a descriptor: its code, its load widths, and what a tile reads of an image.

Evaluates descriptors of `coords`, and draws the results with `viz`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.coords import Descriptor, lower, vector_of
from workbench.coords.transforms import Merge
from workbench.errors import (
    InvalidArgumentError,
    check_each,
    check_name,
    check_positive,
    check_type,
)
from workbench.viz import (
    ImageTile,
    ImageTileWidget,
    Picture,
    VectorWidth,
    code_figure,
    describe_code,
    figure_png,
)
from workbench.viz.code.vector_widths import WIDEST_LOAD

# The most elements of a matrix to evaluate: more take long and cannot be drawn.
MOST_ELEMENTS = 2**20

# Up to this many images, all are drawn, even those that the tile does not read.
_MOST_SHOWN = 4

_FIX = "Give a Descriptor, such as kernels.convolution.input_windows returns."

Ints = NDArray[np.int64]


def code(descriptor: Descriptor, *, title: str | None = None, theme: str | None = None) -> Picture:
    """Draw the jit function that a descriptor is lowered to, with the offset and padding lines marked.

    Args:
        descriptor: the descriptor; its symbols become arguments.
        title: the title; None for the signature of the function, with the names of the dimensions.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: an argument has the wrong type. UnknownNameError: the theme is unknown.
    """
    check_type("descriptor", descriptor, Descriptor, _FIX)
    text = lower(descriptor).source
    names = ", ".join(descriptor.names)
    head = f"({names}) -> (offset, valid), as Triton gets it" if title is None else title
    marked = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip().startswith(("offset = ", "valid = "))
    ]
    figure = code_figure(text, title=head, marked=marked, theme=theme)
    return Picture(figure_png(figure), describe_code(text, title=head, marked=marked))


def vector_widths(descriptors: Mapping[str, Descriptor], itemsize: int) -> tuple[VectorWidth, ...]:
    """Return the bytes that one load moves along each dimension; `viz.vector_widths_figure` draws them.

    Args:
        descriptors: descriptors by their names in the table, such as "before" and "after".
        itemsize: size of an element in bytes.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above.
    """
    check_type("descriptors", descriptors, Mapping, 'Give descriptors by name: {"before": descriptor}.')
    check_positive("itemsize", itemsize)
    return tuple(
        one for name, descriptor in descriptors.items() for one in _widths(name, descriptor, itemsize)
    )


def _widths(name: str, descriptor: Descriptor, itemsize: int) -> Iterator[VectorWidth]:
    check_type(f"descriptors[{name!r}]", descriptor, Descriptor, _FIX)
    for dim, dimension in enumerate(descriptor.names):
        found = vector_of(descriptor, dim)
        moved = max(min(found.contiguous * itemsize, WIDEST_LOAD), itemsize)
        yield VectorWidth(name, dimension, found.contiguous, found.multiple_of, moved)


def tile_on_image(
    descriptor: Descriptor,
    tile: Sequence[int] = (16, 16),
    at: Sequence[int] = (0, 0),
    *,
    batch: int = 0,
    pixels: Sequence[str] = ("y", "x"),
    image: str = "n",
) -> ImageTile:
    """Return what a tile of a convolution's matrix reads of the image; `viz.image_tile_figure` draws it.

    Args:
        descriptor: a descriptor of [rows, cols] or [batch, rows, cols], with all symbols bound.
        tile: rows and columns of a tile.
        at: index of the tile along the rows, and of the step along K.
        batch: index in the batch; not used without a batch dimension.
        pixels: names of the height and width dimensions in memory, or of the width alone.
        image: name of the dimension that counts images, if there is one.

    Raises:
        ArgumentTypeError, InvalidArgumentError, UnknownNameError: an argument is not as above.
    """
    evaluated = _EvaluatedDescriptor.of(descriptor, tile, batch, pixels, image)
    return evaluated.tile(*evaluated.place(at))


def move_tile(
    descriptor: Descriptor,
    tile: Sequence[int] = (16, 16),
    at: Sequence[int] = (0, 0),
    *,
    batch: int = 0,
    pixels: Sequence[str] = ("y", "x"),
    image: str = "n",
    theme: str | None = None,
) -> ImageTileWidget:
    """Return the widget that moves a tile over the matrix. Arguments and errors: :func:`tile_on_image`."""
    evaluated = _EvaluatedDescriptor.of(descriptor, tile, batch, pixels, image)
    return ImageTileWidget(evaluated.tile, *evaluated.counts, at=evaluated.place(at), theme=theme)


@dataclass(frozen=True, eq=False)
class _EvaluatedDescriptor:
    """A descriptor evaluated at every element of its matrix.

    Attributes:
        descriptor: descriptor of the matrix. sides: rows and columns of a tile.
        valid: bool, (rows, cols): whether each element of the matrix is valid, not padding.
        number: index of the image, (rows, cols).
        down, across: coordinates of the pixel, which may lie outside the image, (rows, cols).
        element: linear index of the element in memory, (rows, cols).
        images, size: number of images, and the height and width of each.
        extent: first and last coordinate along height and width, including those outside the image.
    """

    descriptor: Descriptor
    sides: tuple[int, int]
    valid: NDArray[np.bool_]
    number: Ints
    down: Ints
    across: Ints
    element: Ints
    images: int
    size: tuple[int, int]
    extent: tuple[tuple[int, int], tuple[int, int]]

    @classmethod
    def of(
        cls, descriptor: Descriptor, tile: Sequence[int], batch: int, pixels: Sequence[str], image: str
    ) -> _EvaluatedDescriptor:
        """Check the arguments and evaluate the descriptor."""
        check_type("descriptor", descriptor, Descriptor, _FIX)
        sides = check_each("tile", tile, int, "Give rows and columns, such as (16, 16).")
        if len(sides) != 2:
            raise InvalidArgumentError("tile", f"got {tuple(sides)}", "Give two sizes: rows and columns.")
        for i, side in enumerate(sides):
            check_positive(f"tile[{i}]", side)
        if descriptor.symbols:
            names = ", ".join(found.name for found in descriptor.symbols)
            fix = f"Call bind({names}=...) first."
            raise InvalidArgumentError("descriptor", f"{names} not known yet", fix)
        lengths: Any = descriptor.lengths  # numbers: there are no symbols
        if len(lengths) not in (2, 3) or 0 in lengths:
            given = f"its dimensions are {', '.join(map(str, lengths))} long"
            raise InvalidArgumentError(
                "descriptor", given, "Give rows and columns, or a batch of them, none of length 0."
            )
        rows, cols = lengths[-2:]
        if rows * cols > MOST_ELEMENTS:
            fix = f"Give {MOST_ELEMENTS} elements at most: fewer images, pixels or channels."
            raise InvalidArgumentError("descriptor", f"its matrix is {rows} x {cols}", fix)
        check_type("batch", batch, int, "Give a whole number.")
        if len(lengths) == 3 and not 0 <= batch < lengths[0]:
            raise InvalidArgumentError("batch", f"got {batch}", f"Give a number from 0 to {lengths[0] - 1}.")
        index = [batch] * (len(lengths) - 2) + [np.arange(rows)[:, None], np.arange(cols)[None, :]]
        values = [np.broadcast_to(value, (rows, cols)) for value in descriptor.values(index)]
        valid = np.ones((rows, cols), dtype=bool)
        for _, limit in descriptor.limits(values):
            valid &= limit.holds
        return cls._in_memory(descriptor, (sides[0], sides[1]), valid, values, tuple(pixels), image)

    @classmethod
    def _in_memory(
        cls,
        descriptor: Descriptor,
        sides: tuple[int, int],
        valid: NDArray[np.bool_],
        values: Sequence[Ints],
        pixels: tuple[str, ...],
        image: str,
    ) -> _EvaluatedDescriptor:
        """Locate each element in the images by its indices along the tensor's dimensions."""
        bottom = descriptor.stages[0].upper
        by_name = {descriptor.all_names[d]: d for d in bottom}
        if len(pixels) not in (1, 2):
            fix = 'Give height and width, such as ("y", "x"), or the width alone.'
            raise InvalidArgumentError("pixels", f"got {pixels}", fix)
        for i, name in enumerate(pixels):
            check_name(f"pixels[{i}]", name, by_name)
        lengths: Any = descriptor.all_lengths  # numbers: there are no symbols
        element = np.zeros(valid.shape, dtype=np.int64)
        for d in bottom:
            element = element * lengths[d] + values[d]
        nothing = np.zeros(valid.shape, dtype=np.int64)
        own = [values[by_name[name]] for name in pixels]
        across, down = own[-1], own[0] if len(own) == 2 else nothing
        size = (lengths[by_name[pixels[0]]] if len(own) == 2 else 1, lengths[by_name[pixels[-1]]])
        return cls(
            descriptor=descriptor,
            sides=sides,
            valid=valid,
            number=values[by_name[image]] if image in by_name else nothing,
            down=down,
            across=across,
            element=element,
            images=lengths[by_name[image]] if image in by_name else 1,
            size=size,
            extent=(_coordinate_range(down, size[0]), _coordinate_range(across, size[1])),
        )

    @property
    def counts(self) -> tuple[int, int]:
        """Number of tiles along the rows, and of steps along K."""
        rows, cols = self.valid.shape
        return -(-rows // self.sides[0]), -(-cols // self.sides[1])

    def place(self, at: Sequence[int]) -> tuple[int, int]:
        """Check the index of a tile and return it."""
        numbers = check_each("at", at, int, "Give two whole numbers, such as (0, 0).")
        if len(numbers) != 2 or not all(0 <= i < n for i, n in zip(numbers, self.counts, strict=True)):
            rows, steps = self.counts
            fix = f"Give two numbers: a tile of rows, 0 to {rows - 1}, and a step along K, 0 to {steps - 1}."
            raise InvalidArgumentError("at", f"got {tuple(numbers)}", fix)
        return numbers[0], numbers[1]

    def tile(self, row: int, step: int) -> ImageTile:
        """Return the elements that one tile reads, counted by pixel."""
        (rows, cols) = (
            (at * side, min((at + 1) * side, most))
            for at, side, most in zip((row, step), self.sides, self.valid.shape, strict=True)
        )
        own = (slice(*rows), slice(*cols))
        number, down, across = self.number[own], self.down[own], self.across[own]
        # Show the same images for every tile if there are few enough to draw.
        least, most = int(number.min()), int(number.max())
        first = 0 if self.images <= _MOST_SHOWN else min(least, self.images - 1)
        end = self.images if self.images <= _MOST_SHOWN else most + 1
        (top, bottom), (left, right) = self.extent
        reads = np.zeros((end - first, bottom + 1 - top, right + 1 - left), dtype=np.int64)
        valid = self.valid[own]
        elements, firsts, counts = np.unique(self.element[own][valid], return_index=True, return_counts=True)
        places = (number - first, down - top, across - left)
        np.maximum.at(reads, tuple(place[valid][firsts] for place in places), counts)
        height, width = self.size
        is_outside = ~valid & ((down < 0) | (down >= height) | (across < 0) | (across >= width))
        asked = np.stack([place[is_outside] for place in (*places, self.element[own])])
        (*outside, _), often = np.unique(asked, axis=1, return_counts=True)
        np.maximum.at(reads, tuple(outside), often)
        return ImageTile(
            valid=self.valid,
            rows=rows,
            cols=cols,
            reads=reads,
            origin=(top, left),
            size=self.size,
            first_image=first,
            images=self.images,
            elements=len(elements),
            where=tuple(self._where(rows, cols)),
        )

    def _where(self, rows: tuple[int, int], cols: tuple[int, int]) -> Iterator[str]:
        """Describe the first and last row and column if they are merged from other dimensions."""
        for what, dim, (begin, end) in zip(
            ("Row", "Column"), self.descriptor.top[-2:], (rows, cols), strict=True
        ):
            for stage in self.descriptor.stages:
                if stage.upper == (dim,) and isinstance(stage.transform, Merge):
                    names = [self.descriptor.all_names[d] for d in stage.lower]
                    ends = [
                        f"{one} is {_indices(names, stage.transform.lower((one,)))}"
                        for one in dict.fromkeys((begin, end - 1))
                    ]
                    yield f"{what} {f'; {what.lower()} '.join(ends)}."


def _indices(names: Sequence[str], values: Sequence[int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def _coordinate_range(places: Ints, length: int) -> tuple[int, int]:
    """Return the first and last coordinate that is accessed or lies in the image."""
    return min(0, int(places.min())), max(length - 1, int(places.max()))
