"""Wave quantization: how the tiles of a GEMM fill the compute units of a GPU, wave by wave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_positive, in_brief

H200_COMPUTE_UNITS = 132


@dataclass(frozen=True)
class Waves:
    """The waves in which the tiles of an m x n output are computed, one tile per program.

        tiles      = ceil(m / tile[0]) * ceil(n / tile[1])
        slots      = compute_units * resident
        waves      = ceil(tiles / slots)
        efficiency = tiles / (waves * slots)

    All tiles are assumed to take equally long, so that a wave ends as a whole, and the last one takes as long
    with a single busy slot as with all. (NVIDIA, "Matrix Multiplication Background User's Guide", sections
    "Tile Quantization" and "Wave Quantization".)

    Attributes:
        m, n: rows and columns of the output.
        tile: rows and columns of a tile, of any lengths; they need not be powers of two.
        compute_units: compute units (SMs, CUs) of the GPU; by default an H200's.
        resident: programs that a compute unit runs at one time.

    Raises:
        ArgumentTypeError, InvalidArgumentError: a number is not a whole number of 1 or more, or `tile` is
            not a pair of them.
    """

    m: int
    n: int
    tile: tuple[int, int]
    compute_units: int = H200_COMPUTE_UNITS
    resident: int = 1

    def __post_init__(self) -> None:
        for name in ("m", "n", "compute_units", "resident"):
            check_positive(name, getattr(self, name))
        object.__setattr__(self, "tile", _checked_tile(self.tile))

    @property
    def rows(self) -> int:
        """The number of tiles along m."""
        return -(-self.m // self.tile[0])

    @property
    def cols(self) -> int:
        """The number of tiles along n."""
        return -(-self.n // self.tile[1])

    @property
    def tiles(self) -> int:
        """The number of tiles, which is the number of programs."""
        return self.rows * self.cols

    @property
    def slots(self) -> int:
        """The number of programs that run at one time."""
        return self.compute_units * self.resident

    @property
    def waves(self) -> int:
        """The number of waves; the last one may leave slots empty."""
        return -(-self.tiles // self.slots)

    @property
    def last(self) -> int:
        """The number of tiles of the last wave, from 1 to `slots`."""
        return self.tiles - (self.waves - 1) * self.slots

    @property
    def efficiency(self) -> float:
        """The fraction of the slots that have a tile: tiles / (waves * slots)."""
        return self.tiles / (self.waves * self.slots)

    @property
    def filled(self) -> float:
        """The fraction of the tiles' area inside the output: m * n / (tiles * tile[0] * tile[1])."""
        return self.m * self.n / (self.tiles * self.tile[0] * self.tile[1])

    @property
    def utilization(self) -> float:
        """The fraction of all slots' time that goes into the output: efficiency * filled."""
        return self.efficiency * self.filled


def _checked_tile(tile: object) -> tuple[int, int]:
    fix = "Give its rows and columns, such as (128, 192)."
    if not isinstance(tile, Sequence) or isinstance(tile, str):
        raise ArgumentTypeError("tile", f"got {in_brief(tile)}, a {type(tile).__name__}", fix)
    if len(tile) != 2:
        raise InvalidArgumentError("tile", f"got {in_brief(tile)}", fix)
    rows, cols = (check_positive(f"tile[{index}]", length, fix) for index, length in enumerate(tile))
    return rows, cols
