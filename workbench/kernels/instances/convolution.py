"""Instances of the convolution: tiles, warps and stages.

On Hopper, for 16-bit dtypes, a formula predicts which instance is the fastest. Its coefficients were fitted
to 2,600 launches on an H200 (layers of ResNet-50 at 1 and 32 images, and of a UNet; forward, backward for
data and for weight, fp16, channels_last): its choice takes 1.02 times as long as the fastest of 20
configurations, on average. Other devices and dtypes get a rule that was not measured.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.kernels.convolution import Configuration


class Microseconds(NamedTuple):
    """Coefficients, in microseconds, of the predicted time of a launch: a sum of each times a count.

    Attributes:
        product: for each 128 x 128 x 64 multiplications of the compute unit with most tiles, if operands are
            matrices.
        gathered: instead of `product`, for windows that overlap or leave pixels out.
        round: for each round of programs that run at a time.
        step: for each step along K of all rounds.
        load: for each 4 MB that are read or written at least.
        parts: for each 4 MB of sums that splits write and read again.
        second: for the step that adds up these sums.
        start: for the launch.
    """

    product: float
    gathered: float
    round: float
    step: float
    load: float
    parts: float
    second: float
    start: float


class Instance(NamedTuple):
    """A configuration of the kernel, and its fitted times."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int
    template: str
    takes: Microseconds


SIMPLE, PERSISTENT = "simple", "persistent"

# Instances of forward and backward for data.
OF_PIXELS = (
    Instance((128, 128, 64), 4, 3, SIMPLE, Microseconds(0.251, 0.350, 2.850, 0.051, 0.270, 0.603, 1.711, 0)),
    Instance((256, 128, 64), 8, 3, PERSISTENT, Microseconds(0.226, 0.347, 1.279, 0.286, 0.448, 0, 0, 0.099)),
    Instance((128, 128, 64), 4, 4, PERSISTENT, Microseconds(0.080, 0.216, 0.838, 0.296, 0.362, 0, 0, 0.436)),
    Instance(
        (64, 128, 128), 4, 3, SIMPLE, Microseconds(0.074, 0.204, 1.645, 0.277, 0.278, 1.084, 0.974, 0.872)
    ),
    Instance(
        (128, 64, 64), 4, 4, SIMPLE, Microseconds(0.147, 0.390, 1.620, 0.163, 0.465, 1.426, 0.941, 0.763)
    ),
    Instance(
        (64, 64, 128), 4, 3, SIMPLE, Microseconds(0.330, 0.490, 1.119, 0.145, 0.369, 1.691, 0.698, 1.010)
    ),
    Instance(
        (64, 32, 128), 4, 4, SIMPLE, Microseconds(0.751, 1.001, 1.052, 0.032, 0.362, 1.580, 1.008, 1.280)
    ),
    Instance((256, 64, 64), 8, 4, PERSISTENT, Microseconds(0.050, 0.356, 0.467, 0.406, 0.564, 0, 0, 0.854)),
    Instance(
        (128, 192, 64), 8, 4, SIMPLE, Microseconds(0.139, 0.244, 2.576, 0.255, 0.247, 0.581, 2.128, 0.950)
    ),
    Instance(
        (64, 64, 64), 4, 5, SIMPLE, Microseconds(0.097, 0.319, 1.166, 0.184, 0.411, 1.714, 0.586, 0.885)
    ),
)

# Instances of backward for weight, a sum over pixels.
OF_WEIGHT = (
    Instance((128, 128, 64), 4, 3, SIMPLE, Microseconds(0.210, 0.364, 2.299, 0, 1.153, 0.816, 0, 0.801)),
    Instance((64, 128, 128), 4, 3, SIMPLE, Microseconds(0, 0.357, 4.485, 0.133, 1.039, 0, 0, 0.517)),
    Instance((64, 64, 128), 4, 3, SIMPLE, Microseconds(0.209, 0.469, 3.394, 0.032, 0.858, 0.391, 0, 1.649)),
    Instance((256, 64, 64), 8, 4, SIMPLE, Microseconds(0.151, 0.152, 4.460, 0.303, 0.902, 0.096, 0, 0)),
    Instance((128, 192, 64), 8, 4, SIMPLE, Microseconds(0.091, 0.259, 5.559, 0.234, 0.971, 0.522, 0, 0)),
    Instance((64, 32, 128), 4, 4, SIMPLE, Microseconds(0.487, 0.659, 3.375, 0.042, 0.660, 0.100, 0, 1.828)),
)  # fmt: skip

# Products with at most MOST_NARROW features in a group, or channels of an image, have instances of their own:
# NARROW for K up to MOST_SHORT, NARROW_DEEP for longer K. H200, fp16, 32 groups of 8 channels, 3 x 3, 32 x 28
# x 28 pixels: forward 36.1 us; with 32 along K in a tile 39.3; with more stages 40 and more. Backward for
# weight 54.9 us, and 71.0 if the kernel is told that groups begin at multiples of 16 bytes; forward is
# then 5 % faster. 64 features to 3 channels, 7 x 7, stride 2: backward for data 361 us; with a tile of 128
# x 16 x 64, 381 us.
MOST_NARROW, MOST_SHORT = 16, 256
NARROW = Configuration(tile=(256, 16, 16), num_warps=2, num_stages=1)
NARROW_DEEP = Configuration(tile=(256, 16, 32), num_warps=4, num_stages=3)
FLAT_TILE = (16, 128, 64)
FLAT = Configuration(tile=FLAT_TILE, num_warps=4, num_stages=1, aligned=False)

# Where nothing was measured: rows and columns of a tile, and its warps, the largest tile first. A row of a
# tile along K has ROW_BYTES.
TILES = ((128, 256, 8), (128, 128, 4), (128, 64, 4), (64, 64, 4), (64, 32, 4), (32, 32, 4))
ROW_BYTES, NUM_STAGES = 128, 4
