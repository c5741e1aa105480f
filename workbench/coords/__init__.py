"""Coordinate transforms: from the indices that a kernel asks for to offsets in memory.

Pure index algebra: it works on the shapes of tensors, never on their data. The generated code is Triton.
"""

from workbench.coords import transforms
from workbench.coords.descriptor import (
    Adaptor,
    Coordinate,
    Descriptor,
    adaptor,
    aligned,
    chain,
    naive,
    packed,
    transform,
)
from workbench.coords.distribution import TileDistributionEncoding
from workbench.coords.expression import symbol
from workbench.coords.lower import Access, lower
from workbench.coords.vector import Vector, vector_of

__all__ = [
    "Access",
    "Adaptor",
    "Coordinate",
    "Descriptor",
    "TileDistributionEncoding",
    "Vector",
    "adaptor",
    "aligned",
    "chain",
    "lower",
    "naive",
    "packed",
    "symbol",
    "transform",
    "transforms",
    "vector_of",
]
