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
    outputs = (size + 2 * padding - taps) // stride + 1
    inside = sum(
        0 <= output * stride + tap - padding < size for output in range(outputs) for tap in range(taps)
    )
    of_a = images * inside**2 * channels
    of_b = taps**2 * channels * features
    tile_rows, tile_cols = -(-images * outputs**2 // tile), -(-features // tile)
    return 2 * (tile_cols * of_a + tile_rows * of_b)
