"""How tensors of one shape lie in memory, described in as few dimensions as possible."""

from __future__ import annotations

from collections.abc import Sequence

MOST_OFFSETS_IN_32_BITS = 2**31 - 1


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The fewest dimensions that describe the same elements, in the order of the last tensor's memory.

    Dimensions of one element are dropped. A dimension is merged into the next inner one where, for every
    tensor, its stride is the inner length times the inner stride. (PyTorch's TensorIterator does the same.)

    Args:
        shape: the length of each dimension, none of them 0.
        strides: of each tensor, one stride a dimension.

    Returns:
        the lengths, and for each tensor its strides, outermost first, at least one dimension.
    """
    order = sorted(
        (i for i, length in enumerate(shape) if length > 1),
        key=lambda i: (strides[-1][i], shape[i]),
        reverse=True,
    )
    dims = [(shape[i], tuple(s[i] for s in strides)) for i in order]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for length, steps in reversed(dims):
        if merged and all(
            step == merged[-1][0] * inner for step, inner in zip(steps, merged[-1][1], strict=True)
        ):
            merged[-1] = (merged[-1][0] * length, merged[-1][1])
        else:
            merged.append((length, steps))
    merged = merged[::-1] or [(1, (1,) * len(strides))]
    return tuple(m[0] for m in merged), [tuple(m[1][t] for m in merged) for t in range(len(strides))]
