r"""Four questions, from what can be asked of the instance alone to what depends on the device.

**Power of two.** The sides of Triton's tiles are powers of two. The lesson's invoker did not ask, and the
instance was found out only when it ran.

**Tile.** Without a mask, rows and columns that are left over would be read beyond the matrix.

**Alignment.** A piece of 16 bytes can only be copied whole, and from a multiple of 16 bytes. So a row of the
tile has to be whole pieces: its $c$ columns are a multiple of 16 bytes. Tile $(i, j)$ has rows that begin at
element $r \cdot \text{stride} + j \cdot c$. With such a $c$ that is a multiple of 16 bytes for all $r$ and
$j$ if the stride is one, in bytes, and $r = 1$ shows that it has to be. Where there is no second row, the
stride does not matter. In elements it depends on the dtype: 8 halves are 16 bytes, and so are 4
floats.

**Shared memory.** While one tile is worked on, the other tiles of the pipeline arrive: `stages` tiles at a
time, and just as much as there is still fits.

The first reason is given, as the package's invokers do it. Whoever reads "shared memory" knows that all else
is right, and that another GPU might take the instance.
"""


def why_not(
    rows: int, cols: int, row_stride: int, itemsize: int, tile: tuple[int, int], stages: int, room: int
) -> str:
    """Return why an instance without masks cannot take a matrix; an empty string if it can."""
    ### BEGIN SOLUTION
    tile_rows, tile_cols = tile
    if any(side.bit_count() != 1 for side in tile):
        # WRONG even is enough: if any(side % 2 and side != 1 for side in tile):
        return "power of two"
    if rows % tile_rows or cols % tile_cols:
        # WRONG a tile that divides one side is enough: if rows % tile_rows and cols % tile_cols:
        # WRONG the tile's columns alone: if cols % tile_cols:
        return "tile"
    if rows > 1 and row_stride * itemsize % 16:
        # WRONG elements for bytes: if rows > 1 and row_stride % 16:
        # WRONG rows have no gaps: if rows > 1 and cols * itemsize % 16:
        # WRONG the stride of a single row: if row_stride * itemsize % 16:
        return "alignment"
    if tile_cols * itemsize % 16:
        # WRONG a tile may be narrower than a piece: if False:
        return "alignment"
    if stages * tile_rows * tile_cols * itemsize > room:
        # WRONG one stage: if tile_rows * tile_cols * itemsize > room:
        # WRONG no room for just as much: if stages * tile_rows * tile_cols * itemsize >= room:
        return "shared memory"
    return ""
    ### END SOLUTION
    # STUB: pass  # return "power of two", "tile", "alignment", "shared memory" or ""
