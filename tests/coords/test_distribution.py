"""CK's tile distribution: encodings of CK, random encodings against the definition, and errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.coords import TileDistributionEncoding
from workbench.errors import ArgumentTypeError, InvalidArgumentError

# The accumulator of v_mfma_f32_32x32x8_f16: CWarpDstrEncoding of ck_tile's warp_gemm_attribute_mfma.hpp, with
# the lengths of WarpGemmAttributeMfmaImplF16F16F32M32N32K8.
MFMA_ACCUMULATOR = ((), ((4, 2, 4), (32,)), ((1, 2),), ((1, 0),), (1, 1), (0, 2))

# Its operand A in the same file, AWarpDstrEncoding: lane = (k of 2, row of 32), 4 values along K.
MFMA_OPERAND = ((), ((32,), (2, 4)), ((2, 1),), ((0, 0),), (2,), (1,))

# Operand A of RDNA 3's WMMA: warp_gemm_attribute_wmma_impl_16bit_traits.hpp, WmmaTraits16BitBase<gfx11_t>.
# R says that both halves of the wave hold it.
WMMA_OPERAND = ((2,), ((16,), (1, 1, 16)), ((0, 2, 1),), ((0, 1, 0),), (2, 2), (0, 2))


def test_the_mfma_accumulator_of_ck_has_its_elements() -> None:
    encoding = TileDistributionEncoding(*MFMA_ACCUMULATOR)
    assert (encoding.lengths, encoding.ps_lengths, encoding.ys_lengths) == ((32, 32), (64,), (4, 4))
    for lane, block, value in itertools.product(range(64), range(4), range(4)):
        assert encoding.x((lane,), (block, value)) == (8 * block + 4 * (lane // 32) + value, lane % 32)


def test_the_mfma_operand_of_ck_has_its_elements() -> None:
    encoding = TileDistributionEncoding(*MFMA_OPERAND)
    assert (encoding.lengths, encoding.ps_lengths, encoding.ys_lengths) == ((32, 8), (64,), (4,))
    for lane, value in itertools.product(range(64), range(4)):
        assert encoding.x((lane,), (value,)) == (lane % 32, 4 * (lane // 32) + value)


def test_replication_holds_copies() -> None:
    encoding = TileDistributionEncoding(*WMMA_OPERAND)
    assert (encoding.lengths, encoding.ps_lengths) == ((16, 16), (32,))
    elements = encoding.elements()
    np.testing.assert_array_equal(elements[:16], elements[16:])
    assert encoding.x((21,), (0, 3)) == (5, 3)


def test_warps_and_steps_of_a_block_shift_the_elements_of_an_accumulator() -> None:
    # CK embeds the accumulator of a warp in the tile of a block (make_embed_tile_distribution_encoding). Here
    # 2 x 2 warps take 2 x 1 steps: X[0] is cut into (steps, warps, 4, 2, 4), X[1] into (steps, warps, 32).
    encoding = TileDistributionEncoding(
        (), ((2, 2, 4, 2, 4), (1, 2, 32)), ((1, 2), (1, 2)), ((1, 1), (3, 2)), (1, 2, 1, 1), (0, 0, 2, 4)
    )
    assert (encoding.lengths, encoding.ps_lengths, encoding.ys_lengths) == ((128, 64), (4, 64), (2, 1, 4, 4))
    # This is step 1 of the warp in row 1 and column 0 of warps; lane 40 is in the upper half, column 8.
    assert encoding.x((2, 40), (1, 0, 3, 1)) == (64 + 32 + 24 + 4 + 1, 8)


def test_the_table_has_a_row_for_each_processor() -> None:
    encoding = TileDistributionEncoding((), ((2, 2), (2,)), ((), (1,)), ((), (0,)), (1, 2), (1, 0))
    assert encoding.table() == (
        "warp  lane  y=(0, 0)  y=(0, 1)  y=(1, 0)  y=(1, 1)\n"
        "   0     0    (0, 0)    (0, 1)    (1, 0)    (1, 1)\n"
        "   0     1    (2, 0)    (2, 1)    (3, 0)    (3, 1)"
    )


@st.composite
def encodings(draw: st.DrawFn) -> TileDistributionEncoding:
    """Draw dimensions R and H, assigned to (warp, lane) or (lane,) and Y in any order."""
    lengths = st.integers(1, 4)
    rs = draw(st.lists(lengths, max_size=2))
    hs = draw(st.lists(st.lists(lengths, min_size=1, max_size=3), min_size=1, max_size=2))
    dimensions = [(i + 1, j) for i, h in enumerate(hs) for j in range(len(h))]
    shuffled = draw(st.permutations([(0, j) for j in range(len(rs))] + dimensions))
    ndim_p = draw(st.integers(1, 2))
    owners: list[list[tuple[int, int]]] = [[] for _ in range(ndim_p + 1)]
    for dimension in shuffled:
        most = ndim_p - 1 if dimension[0] == 0 else ndim_p
        owners[draw(st.integers(0, most))].append(dimension)
    *ps, ys = [tuple(zip(*owner, strict=True)) or ((), ()) for owner in owners]
    return TileDistributionEncoding(
        tuple(rs),
        tuple(map(tuple, hs)),
        tuple(major for major, _ in ps),
        tuple(minor for _, minor in ps),
        ys[0],
        ys[1],
    )


def digits(number: int, lengths: list[int]) -> list[int]:
    """Return the digits of a number whose i-th digit, the slowest first, is from 0 to lengths[i] - 1."""
    found = []
    for length in reversed(lengths):
        found.append(number % length)
        number //= length
    return found[::-1]


def definition(encoding: TileDistributionEncoding, p: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    lengths = (encoding.rs_lengths, *encoding.hs_lengthss)
    values = dict(zip(zip(encoding.ys_to_rhs_major, encoding.ys_to_rhs_minor, strict=True), y, strict=True))
    for number, majors, minors in zip(p, encoding.ps_to_rhss_major, encoding.ps_to_rhss_minor, strict=True):
        pairs = list(zip(majors, minors, strict=True))
        values |= dict(zip(pairs, digits(number, [lengths[i][j] for i, j in pairs]), strict=True))
    xs = []
    for i, hs in enumerate(encoding.hs_lengthss, start=1):
        xs.append(sum(values[i, j] * math.prod(hs[j + 1 :]) for j in range(len(hs))))
    return tuple(xs)


@given(encodings())
def test_every_encoding_agrees_with_the_definition(encoding: TileDistributionEncoding) -> None:
    elements = encoding.elements()
    assert elements.shape == (*encoding.ps_lengths, *encoding.ys_lengths, len(encoding.lengths))
    ndim_p = len(encoding.ps_lengths)
    for place in np.ndindex(elements.shape[:-1]):
        x = definition(encoding, place[:ndim_p], place[ndim_p:])
        assert tuple(elements[place]) == x == encoding.x(place[:ndim_p], place[ndim_p:])


@given(encodings())
def test_every_element_is_held_once_for_each_index_along_r(encoding: TileDistributionEncoding) -> None:
    rows = encoding.elements().reshape(-1, len(encoding.lengths))
    held, copies = np.unique(rows, axis=0, return_counts=True)
    assert len(held) == math.prod(encoding.lengths)
    assert set(copies) == {math.prod(encoding.rs_lengths)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ys_to_rhs_minor": (0, 0)}, r"H\[0\]\[0\] belongs to Y\[0\] and Y\[1\]"),
        ({"ys_to_rhs_minor": (0, 1)}, r"H\[0\]\[1\] belongs to P\[0\]\[0\] and Y\[1\]"),
        ({"rs_lengths": (2,)}, r"R\[0\] belongs to no P and no Y"),
        ({"ys_to_rhs_major": (1,), "ys_to_rhs_minor": (0,)}, r"H\[0\]\[2\] belongs to no P and no Y"),
        (
            {"rs_lengths": (2,), "ys_to_rhs_major": (1, 1, 0), "ys_to_rhs_minor": (0, 2, 0)},
            r"ys_to_rhs_major: Y\[2\] is R\[0\]",
        ),
        ({"ps_to_rhss_major": ((1, 3),)}, r"ps_to_rhss_major: P\[0\]\[1\] is of major 3 and minor 0"),
        ({"ys_to_rhs_minor": (0, 7)}, r"ys_to_rhs_minor: Y\[1\] is of major 1 and minor 7"),
        ({"ps_to_rhss_minor": ((1,),)}, r"ps_to_rhss_minor\[0\]: got \(1,\) for the majors \(1, 2\)"),
        ({"ys_to_rhs_minor": (0,)}, r"ys_to_rhs_minor: got \(0,\) for the majors \(1, 1\)"),
        ({"ps_to_rhss_major": (), "ps_to_rhss_minor": ()}, "ps_to_rhss_major: got 0 dimensions P"),
        ({"ps_to_rhss_minor": ()}, "ps_to_rhss_minor: got"),
        ({"hs_lengthss": ((4, 2, 0), (32,))}, r"hs_lengthss\[0\]: got \(4, 2, 0\)"),
        ({"hs_lengthss": ((4, 2, 4), ())}, r"hs_lengthss\[1\]: got none"),
        ({"hs_lengthss": ()}, "hs_lengthss: got none"),
    ],
)
def test_a_wrong_encoding_raises(changed: dict[str, Any], said: str) -> None:
    names = TileDistributionEncoding.__dataclass_fields__
    with pytest.raises(InvalidArgumentError, match=said):
        TileDistributionEncoding(**(dict(zip(names, MFMA_ACCUMULATOR, strict=True)) | changed))


@pytest.mark.parametrize(("name", "value"), [("rs_lengths", 2), ("hs_lengthss", ((4, 2, "4"), (32,)))])
def test_a_length_of_a_wrong_type_raises(name: str, value: Any) -> None:
    names = TileDistributionEncoding.__dataclass_fields__
    with pytest.raises(ArgumentTypeError, match=name):
        TileDistributionEncoding(**(dict(zip(names, MFMA_ACCUMULATOR, strict=True)) | {name: value}))


@pytest.mark.parametrize(
    ("p", "y"), [((64,), (0, 0)), ((0, 0), (0, 0)), ((0,), (0, 4)), ((0,), (-1, 0))], ids=str
)
def test_an_index_outside_the_lengths_raises(p: tuple[int, ...], y: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="index into the lengths"):
        TileDistributionEncoding(*MFMA_ACCUMULATOR).x(p, y)


@pytest.mark.parametrize(
    ("p", "y", "argument"),
    [((0.5,), (0, 0), "p"), (("0",), (0, 0), "p"), (3, (0, 0), "p"), ((0,), None, "y"), ((0,), "ab", "y")],
    ids=str,
)
def test_an_index_of_a_wrong_type_raises(p: Any, y: Any, argument: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{argument}: got .* Give a tuple of whole numbers"):
        TileDistributionEncoding(*MFMA_ACCUMULATOR).x(p, y)


def test_a_tile_of_9216_lanes_has_each_element_once() -> None:
    """numpy's unravel_index gives wrong places for the shape [9216, 1]."""
    encoding = TileDistributionEncoding((), ((96, 96, 1),), ((1, 1),), ((0, 1),), (1,), (2,))
    assert encoding.elements().ravel().tolist() == list(range(9216))
