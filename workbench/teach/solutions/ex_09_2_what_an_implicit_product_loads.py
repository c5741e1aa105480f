r"""Count what is valid in one dimension, and square it: height and width do not know of each other.

An element of A is loaded if its place is in the image, down *and* across. Of the pairs (output, tap) of one
dimension, $v$ are inside:

$$v = \#\{(y, r) : 0 \le y \cdot \text{stride} + r - \text{padding} < \text{size}\}$$

Each pair down goes with each pair across, so that A has images · $v^2$ · channels elements that are loaded.
Padding costs multiplications, for the zeros are multiplied too, but no bytes.

The rest is the count of exercise 05-1: A is loaded once for each *column* of tiles of the output, and B once
for each *row* of tiles. The matrix is loaded as often as if it had been laid out in memory; what is saved is
the laying out. And since a pixel is in up to taps · taps rows of A, most loads find in a cache what another
tap has brought already.
"""


def loaded_bytes(
    images: int, size: int, channels: int, features: int, taps: int, stride: int, padding: int, tile: int
) -> int:
    """Bytes that all programs of a convolution in fp16 load together."""
    ### BEGIN SOLUTION
    outputs = (size + 2 * padding - taps) // stride + 1
    inside = sum(
        0 <= output * stride + tap - padding < size for output in range(outputs) for tap in range(taps)
    )
    # WRONG padding is loaded too:
    #     inside = sum(
    #         1 for output in range(outputs) for tap in range(taps)
    #     )
    # WRONG stride is forgotten:
    #     inside = sum(
    #         0 <= output + tap - padding < size for output in range(outputs) for tap in range(taps)
    #     )
    of_a = images * inside**2 * channels
    # WRONG inside in one dimension only: of_a = images * inside * outputs * taps * channels
    of_b = taps**2 * channels * features
    tile_rows, tile_cols = -(-images * outputs**2 // tile), -(-features // tile)
    # WRONG tiles of the input: tile_rows, tile_cols = -(-images * size**2 // tile), -(-features // tile)
    # WRONG tiles rounded down: tile_rows, tile_cols = images * outputs**2 // tile, features // tile
    return 2 * (tile_cols * of_a + tile_rows * of_b)
    # WRONG A and B swapped: return 2 * (tile_rows * of_a + tile_cols * of_b)
    # WRONG each matrix once: return 2 * (of_a + of_b)
    ### END SOLUTION
