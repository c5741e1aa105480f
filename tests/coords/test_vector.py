"""Claimed vectors are true by brute force, and the longest possible ones for affine descriptors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from tests.coords.random_chains import descriptors, offset_by_the_table
from tests.everything import examples
from workbench.coords import Descriptor, naive, packed, symbol, transform, vector_of
from workbench.coords.transforms import embed, indexing, merge, offset, pad, pass_through, slice, xor
from workbench.coords.vector import Vector
from workbench.errors import ArgumentTypeError, InvalidArgumentError


def runs(descriptor: Descriptor, dim: int, length: int) -> list[list[tuple[int, bool]]]:
    """Return all runs along a dimension, as the offset and validity of each element."""
    ranges = [range(n) for n in descriptor.lengths]  # type: ignore[arg-type]
    whole = range(0, len(ranges[dim]) - length + 1, length)
    starts = itertools.product(*(whole if d == dim else own for d, own in enumerate(ranges)))
    return [
        [
            offset_by_the_table(descriptor, [i + j * (d == dim) for d, i in enumerate(start)])
            for j in range(length)
        ]
        for start in starts
    ]


def is_claim_true(descriptor: Descriptor, dim: int, claim: Vector) -> bool:
    """Return whether every run has equal steps and one validity, and begins at a multiple of the divisor."""
    return all(
        offset == first + j * claim.stride
        and valid == is_first_valid
        and (first % claim.multiple_of == 0 if claim.multiple_of else first == 0)
        for (first, is_first_valid), *others in runs(descriptor, dim, claim.length)
        for j, (offset, valid) in enumerate([(first, is_first_valid), *others])
    )


def longest(descriptor: Descriptor, dim: int, most: int) -> int:
    """Return the length of the longest run with equal steps and one validity, found by trying."""
    found, length = 1, 2
    end = descriptor.lengths[dim]
    assert isinstance(end, int)
    while length <= min(most, end):
        every = runs(descriptor, dim, length)
        steps = {b[0] - a[0] for run in every for a, b in itertools.pairwise(run)}
        if len(steps) > 1 or any(len({valid for _, valid in run}) > 1 for run in every):
            break
        found, length = length, length * 2
    return found


@settings(max_examples=examples(300))
@given(descriptors(most_stages=4))
def test_claimed_vectors_are_true_for_every_run_of_elements(descriptor: Descriptor) -> None:
    for dim in range(len(descriptor.top)):
        for most in (1, 2, 4, 16):
            claim = vector_of(descriptor, dim, most)
            assert claim.length <= most
            assert is_claim_true(descriptor, dim, claim), (dim, claim)


@settings(max_examples=examples(300))
@given(descriptors(affine=True, most_stages=2))
def test_no_longer_run_holds_for_affine_descriptors(descriptor: Descriptor) -> None:
    """The claimed run is the longest possible one if all transforms are linear and none pads."""
    if any(stage.transform.limits((0,) * len(stage.upper)) for stage in descriptor.stages):
        return
    if 0 in descriptor.lengths:
        return
    for dim in range(len(descriptor.top)):
        assert vector_of(descriptor, dim).length == longest(descriptor, dim, 16)


@pytest.mark.parametrize(
    ("left", "length", "right", "vector"),
    [
        (8, 16, 8, 8),  # each run of 8 is all padding or all inside
        (4, 16, 8, 4),
        (1, 16, 7, 1),
        (0, 16, 0, 16),
        (0, 24, 8, 8),
        (0, 12, 4, 4),
        (16, 16, 0, 16),
    ],
)
def test_padding_cuts_runs_of_contiguous_elements(left: int, length: int, right: int, vector: int) -> None:
    row = transform(packed((length,)), [pad(length, left, right)], [(0,)], [(0,)])
    found = vector_of(row, 0)
    assert (found.length, found.stride) == (vector, int(vector > 1))
    assert found.contiguous == math.gcd(vector, left)


@pytest.mark.parametrize(
    ("made", "dim", "vector"),
    [
        (naive((4, 16), (16, 1)), 1, Vector(16, 1, 16)),
        (naive((4, 16), (16, 1)), 0, Vector(4, 16, 1)),
        (naive((4, 16), (20, 1)), 1, Vector(16, 1, 20)),
        (naive((4, 16), (0, 1)), 1, Vector(16, 1, 0)),
        (naive((4, 12), (12, 1)), 1, Vector(8, 1, 4)),
        (naive((4, 3), (3, 1)), 1, Vector(2, 1, 1)),
        (naive((4, symbol("n", multiple_of=8)), (symbol("pitch", multiple_of=8), 1)), 1, Vector(16, 1, 8)),
        (naive((4, 16), (16, symbol("stride"))), 1, Vector(1, 0, 1)),
    ],
    ids=[
        "along a row", "along a column", "pitch of 20", "expanded", "length of 12", "length of 3",
        "symbols with divisors", "unknown stride",
    ],
)  # fmt: skip
def test_vectors_follow_from_strides_and_lengths(made: Descriptor, dim: int, vector: Vector) -> None:
    assert vector_of(made, dim) == vector


def test_contiguous_elements_have_stride_1_and_are_aligned_to_their_number() -> None:
    assert vector_of(naive((4, 16), (20, 1)), 1).contiguous == 4
    assert vector_of(naive((4, 16), (16, 2)), 1).contiguous == 1
    assert vector_of(naive((4, 16), (0, 1)), 1).contiguous == 16


@pytest.mark.parametrize(("channels", "vector"), [(64, 16), (24, 8), (3, 1), (20, 4)])
def test_merging_keeps_runs_that_the_last_length_divides(channels: int, vector: int) -> None:
    image = packed((3, 3, channels))
    flat = transform(
        transform(image, [pad(3, 1, 1), pass_through(3), pass_through(channels)], [(0,), (1,), (2,)],
                  [(0,), (1,), (2,)]),
        [merge((5, 3, channels))], [(0, 1, 2)], [(0,)],
    )  # fmt: skip
    assert vector_of(flat, 0).length == vector


def test_a_length_with_a_known_divisor_keeps_runs() -> None:
    channels = symbol("c", multiple_of=8)
    image = naive((3, channels), (channels, 1))
    merged = transform(image, [merge((3, channels))], [(0, 1)], [(0,)])
    assert vector_of(merged, 0) == Vector(8, 1, 8)


def test_a_slice_that_begins_at_an_odd_element_is_not_aligned() -> None:
    row = transform(packed((17,)), [slice(17, 1, 17)], [(0,)], [(0,)])
    assert vector_of(row, 0) == Vector(16, 1, 1)
    assert vector_of(row, 0).contiguous == 1


def test_windows_one_step_apart_are_contiguous_unless_padded() -> None:
    windows = transform(packed((18,)), [embed((16, 3), (1, 1))], [(0,)], [(0, 1)])
    assert vector_of(windows, 0) == Vector(16, 1, 1)
    padded = transform(packed((14,)), [pad(14, 1, 1)], [(0,)], [(0,)])
    windows = transform(padded, [embed((14, 3), (1, 1))], [(0,)], [(0, 1)])
    assert vector_of(windows, 0).length == 1  # the end of the padding can fall within a run


def test_a_swizzle_keeps_runs_as_long_as_its_pieces() -> None:
    """A swizzle of 16-byte pieces exchanges elements in groups of 8."""
    tile = packed((8, 8, 8))
    groups = transform(tile, [xor((8, 8)), pass_through(8)], [(0, 1), (2,)], [(0, 1), (2,)])
    rows = transform(groups, [pass_through(8), merge((8, 8))], [(0,), (1, 2)], [(0,), (1,)])
    assert vector_of(rows, 1) == Vector(8, 1, 8)
    assert vector_of(transform(packed((8, 8)), [xor((8, 8))], [(0, 1)], [(0, 1)]), 1).length == 1


@pytest.mark.parametrize(
    ("table", "shift", "window", "dim", "vector"),
    [
        (range(16), 0, ((16,), (1,)), 0, Vector(16, 1, 1)),
        (range(32, 48), 0, ((16, 2), (1, 8)), 0, Vector(1, 0, 1)),
        (range(3), 0, ((3, 4), (0, -1)), 1, Vector(1, 0, 1)),
        (range(4), -3, ((1, 2), (0, 1)), 1, Vector(1, 0, 1)),
        (range(4), -3, ((1, 2), (1, 0)), 1, Vector(2, 0, 1)),
        ((7, 7, 7, 7), 4, ((4,), (1,)), 0, Vector(2, 0, 1)),
    ],
    ids=[
        "all inside", "the end cuts runs", "one of four inside", "the beginning cuts runs",
        "runs of one element", "all outside",
    ],
)  # fmt: skip
def test_the_ends_of_a_table_cut_runs(
    table: Sequence[int],
    shift: int,
    window: tuple[tuple[int, ...], tuple[int, ...]],
    dim: int,
    vector: Vector,
) -> None:
    gathered = transform(packed((48,)), [indexing(tuple(table), 48)], [(0,)], [(0,)])
    moved = transform(gathered, [offset(16, shift)], [(0,)], [(0,)])
    windows = transform(moved, [embed(*window)], [(0,)], [tuple(range(len(window[0])))])
    assert is_claim_true(windows, dim, vector_of(windows, dim))
    assert vector_of(windows, dim) == vector


@pytest.mark.parametrize(("given", "words"), [((None, 0), "descriptor"), ((packed((4,)), 0.5), "dim")])
def test_an_argument_of_a_wrong_type_raises(given: tuple[Any, Any], words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        vector_of(*given)


def test_a_missing_dimension_and_a_limit_that_is_not_a_power_of_two_raise() -> None:
    with pytest.raises(InvalidArgumentError, match="dim: got 2"):
        vector_of(packed((4, 4)), 2)
    with pytest.raises(InvalidArgumentError, match="most"):
        vector_of(packed((4, 4)), 0, most=3)
