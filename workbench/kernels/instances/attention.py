"""Instances of attention: kernels, tiles, warps and stages, and the lengths from which each is the fastest.

Measured on an H200 (Triton 3.6, fp16, 16,384 tokens, heads of 2,048 columns in all, with and without a causal
mask; docs/notebook has what else was tried), with 512, 1,024, 4,096 and 16,384 keys: a threshold is one of
these lengths, or lies between two of them. Gradients were measured likewise, with 512, 1,024 and so on to
16,384 keys. bf16 gets the instances of fp16. All other problems get the defaults of `kernels.attention`,
which were not measured.
"""

from __future__ import annotations

from workbench.kernels.attention import Tiling
from workbench.kernels.attention.hopper import Way

# Tilings of the portable kernel by the columns of a head, rounded up: with tensor descriptors; and without,
# for tensors that cannot have one.
DESCRIBED = {
    64: Tiling((64, 128), 4, 2, descriptors=True),
    128: Tiling((64, 64), 4, 3, descriptors=True),
    256: Tiling((64, 64), 4, 3, descriptors=True),
}
PLAINLY = {64: Tiling((64, 64), 4, 3), 128: Tiling((64, 64), 4, 3), 256: Tiling((128, 64), 8, 2)}

# Tilings if queries of several heads are rows of one tile, whose time is the loading of keys and values; with
# enough splits to keep the memory busy. From DEEPER_FROM tiles of keys for each split on, one more stage is
# faster (by 0.5 % with 512 of them; with 128 and fewer slower by as much or more). Tiles of wider heads have
# as many bytes (not measured).
PACKED_ROWS = 16
PACKED = {
    64: Tiling((PACKED_ROWS, 128), 4, 3),
    128: Tiling((PACKED_ROWS, 128), 4, 3),
    256: Tiling((PACKED_ROWS, 64), 4, 3),
}
DEEPER_FROM = 512

# Parameters of `even_splits`: the share of the units that uses the whole memory bandwidth; the time of a
# program's start, and of the merging of splits, in tiles of keys. Fitted to an H200 (November 2026; fp16, 32
# heads on 8, 128 columns; 18 problems of 1 to 40 sequences and 8,192 to 131,072 keys, 6 to 13 numbers of
# splits each): the choice is within 1 % of the fastest, except for 40 sequences of 32,768 keys (1.2 %, where
# two runs differ by more).
DRAWING, START_IN_TILES, MERGE_IN_TILES = 0.63, 0.25, 3

# By columns, and whether there is a causal mask: the number of keys from which the kernel for Hopper is
# faster than the portable one, and its configuration.
ON_HOPPER: dict[tuple[int, bool], tuple[tuple[int, Way], ...]] = {
    (64, False): ((2048, Way(3, 128, 2, turns=True, persistent=True)),),
    (64, True): ((8192, Way(2, 128, 2, turns=False, persistent=False)),),
    (128, False): (
        (4096, Way(2, 128, 2, turns=False, persistent=False)),
        (512, Way(2, 128, 2, turns=True, persistent=True)),
    ),
    (128, True): ((2048, Way(2, 128, 2, turns=False, persistent=False)),),
    (256, False): ((1024, Way(2, 64, 2, turns=False, persistent=False)),),
    (256, True): ((1024, Way(2, 64, 2, turns=False, persistent=False)),),
}

# Tilings of the gradients, for the kernel that keeps keys and for the one that keeps queries, by columns and
# whether there is a causal mask: the least number of keys, and the tiling. The first one that fits is chosen;
# one with descriptors fits only tensors that can have them. The last of each is without.
OF_KEYS: dict[tuple[int, bool], tuple[tuple[int, Tiling], ...]] = {
    (64, False): (
        (2048, Tiling((32, 128), 4, 3, descriptors=True)),
        (0, Tiling((32, 64), 4, 3, descriptors=True)),
        (0, Tiling((32, 128), 4, 3)),
    ),
    (64, True): (
        (4096, Tiling((64, 64), 4, 4, descriptors=True)),
        (0, Tiling((32, 64), 4, 3, descriptors=True)),
        (0, Tiling((64, 64), 4, 3)),
    ),
    (128, False): ((0, Tiling((64, 64), 4, 2, descriptors=True)), (0, Tiling((64, 128), 8, 3))),
    (128, True): ((0, Tiling((64, 64), 4, 2, descriptors=True)), (0, Tiling((64, 128), 8, 3))),
    (256, False): (
        (16384, Tiling((64, 32), 4, 2)),
        (2048, Tiling((64, 64), 8, 2, descriptors=True)),
        (0, Tiling((64, 32), 4, 2)),
    ),
    (256, True): ((0, Tiling((64, 32), 4, 2)),),
}
OF_QUERIES: dict[tuple[int, bool], tuple[tuple[int, Tiling], ...]] = {
    (64, False): ((0, Tiling((128, 64), 4, 3)),),
    (64, True): (
        (2048, Tiling((128, 64), 4, 3, descriptors=True)),
        (0, Tiling((64, 64), 4, 3, descriptors=True)),
        (0, Tiling((128, 64), 4, 3)),
    ),
    (128, False): (
        (2048, Tiling((128, 64), 8, 3, descriptors=True)),
        (0, Tiling((128, 32), 8, 3, descriptors=True)),
        (0, Tiling((128, 64), 8, 3)),
    ),
    (128, True): (
        (2048, Tiling((128, 64), 8, 3, descriptors=True)),
        (0, Tiling((128, 32), 8, 3, descriptors=True)),
        (0, Tiling((128, 64), 8, 3)),
    ),
    (256, False): ((0, Tiling((128, 32), 8, 3, descriptors=True)), (0, Tiling((128, 32), 8, 3))),
    (256, True): ((0, Tiling((128, 32), 8, 3, descriptors=True)), (0, Tiling((128, 32), 8, 3))),
}

# Instances of the portable kernel; numbers of splits, for few queries; and instances of the gradients.
PORTABLE = (
    Tiling((16, 64), 4, 3), Tiling((16, 128), 4, 3), Tiling((32, 64), 4, 3), Tiling((64, 64), 4, 3),
    Tiling((64, 128), 4, 2), Tiling((128, 64), 8, 2), Tiling((128, 128), 8, 2),
)  # fmt: skip
SPLITS = (2, 8)
TILINGS = (
    Tiling((32, 64), 4, 3), Tiling((64, 32), 4, 2), Tiling((64, 64), 4, 3), Tiling((64, 128), 8, 3),
    Tiling((128, 64), 8, 3),
)  # fmt: skip
