"""Descriptors: offsets and validity, errors, and coordinates that move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.coords.random_chains import descriptors, offset_by_the_table
from workbench.coords import (
    Adaptor,
    Descriptor,
    adaptor,
    aligned,
    chain,
    lower,
    naive,
    packed,
    symbol,
    transform,
    transforms,
)
from workbench.coords.expression import Number
from workbench.coords.transforms import (
    clamp,
    embed,
    freeze,
    indexing,
    insert,
    left_pad,
    merge,
    modulo,
    offset,
    pad,
    pass_through,
    reflect,
    replicate,
    right_pad,
    unmerge,
    xor,
)
from workbench.errors import ArgumentTypeError, InvalidArgumentError


def indices(descriptor: Adaptor) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in descriptor.lengths)))  # type: ignore[arg-type]


@given(descriptors(smallest=0))
def test_offset_and_validity_agree_with_the_table_of_transforms(descriptor: Descriptor) -> None:
    reach = descriptor.reach
    for index in indices(descriptor):
        wanted, is_valid = offset_by_the_table(descriptor, index)
        assert descriptor.offset(index) == wanted
        assert descriptor.valid(index) == is_valid
        if is_valid:
            assert reach.low is not None
            assert reach.high is not None
            assert reach.low <= wanted <= reach.high


@given(descriptors(smallest=0))
def test_offsets_gives_the_offset_of_every_element(descriptor: Descriptor) -> None:
    found = descriptor.offsets()
    assert found.shape == descriptor.lengths
    for index in indices(descriptor):
        wanted, is_valid = offset_by_the_table(descriptor, index)
        assert found.data[index] == wanted
        assert bool(np.ma.getmaskarray(found)[index]) != is_valid


def test_offsets_of_unbound_symbols_raise() -> None:
    assert naive((), ()).offsets() == 0
    with pytest.raises(InvalidArgumentError, match=r"n not known yet.*Call bind\(n="):
        packed((symbol("n"), 2)).offsets()


@given(descriptors(smallest=0), st.data())
def test_moving_a_coordinate_equals_recomputing_it(descriptor: Descriptor, data: st.DataObject) -> None:
    """The move goes from one index within the lengths to another, and back."""
    every = indices(descriptor)
    if not every:
        return
    here, there = data.draw(st.sampled_from(every)), data.draw(st.sampled_from(every))
    step = [b - a for a, b in zip(here, there, strict=True)]
    moved = descriptor.coordinate(here).move(step)
    assert moved.values == descriptor.coordinate(there).values
    assert moved.index == there
    assert moved.valid == descriptor.valid(there)
    assert moved.move([-n for n in step]).values == descriptor.coordinate(here).values
    if not any(step):
        assert moved.touched == ()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(-200, 200), st.integers(-200, 200))
def test_moving_a_merged_index_beyond_both_ends_equals_recomputing(
    lengths: Sequence[int], start: int, step: int
) -> None:
    merged = transform(packed(lengths), [merge(lengths)], [range(len(lengths))], [(0,)])
    moved = merged.coordinate((start,)).move((step,))
    assert moved.values == merged.coordinate((start + step,)).values


@pytest.mark.parametrize("lengths", [(10, 0, 5), (5, 0), (0, 5)], ids=str)
def test_moving_in_an_empty_merge_equals_recomputing(lengths: tuple[int, ...]) -> None:
    merged = transform(packed(lengths), [merge(lengths)], [range(len(lengths))], [(0,)])
    beyond = transform(merged, [offset(30, 3)], [(0,)], [(0,)])
    moved = beyond.coordinate((2,)).move((17,))
    assert moved.values == beyond.coordinate((19,)).values


def strayed() -> Descriptor:
    """Return a gather by a table of 3 elements whose indices go from 0 to 3."""
    row = transform(naive((3,), (1,)), [offset(5, -2)], [(0,)], [(0,)])
    gathered = transform(row, [indexing([2, 3, 4], 5)], [(0,)], [(0,)])
    return transform(gathered, [embed((1, 4), (0, 1))], [(0,)], [(0, 1)])


def test_an_index_outside_a_table_is_invalid() -> None:
    found = strayed()
    assert [found.valid((0, i)) for i in range(4)] == [True, True, True, False]
    assert found.offsets().tolist() == [[0, 1, 2, None]]
    assert (found.reach.low, found.reach.high) == (0, 2)
    (stage,) = found.coordinate((0, 3)).violations
    assert stage.transform.name == "indexing"
    assert found.all_names[stage.limited] == "d0"


def test_default_names_are_unique() -> None:
    several = transform(
        naive((5,), (1,)), [pass_through(5), insert(2), insert(3)], [(0,), (), ()], [(0,), (1,), (2,)]
    )
    assert several.names == ("d0", "replicate", "replicate_2")
    cut = transform(
        naive((4, 6), (6, 1), names=("a", "a_0")), [unmerge((2, 2)), pass_through(6)], [(0,), (1,)],
        [(0, 1), (2,)],
    )  # fmt: skip
    assert cut.names == ("a_0", "a_1", "a_0_2")
    taken = transform(
        naive((4,), (1,), names=("replicate_2",)), [insert(2), insert(3), pass_through(4)],
        [(), (), (0,)], [(0,), (1,), (2,)],
    )  # fmt: skip
    assert taken.names == ("replicate", "replicate_3", "replicate_2")


@given(descriptors(smallest=0))
def test_names_of_top_dimensions_are_unique(descriptor: Descriptor) -> None:
    assert len(set(descriptor.names)) == len(descriptor.names)


def test_an_index_into_an_unbound_length_can_be_frozen() -> None:
    row = transform(packed((symbol("n", most=8),)), [freeze(7)], [(0,)], [()])
    assert row.bind(n=8).offset(()) == 7


def test_a_move_evaluates_only_transforms_with_an_upper_index_that_changes() -> None:
    image = convolution_input(2, 5, 5, 3, 3, 2, 1)
    names = {stage.transform.name for stage in image.coordinate((0, 0)).move((0, 1)).touched}
    assert names == {"merge", "pass_through", "embed"}  # a step along the channels passes no padding
    names = {stage.transform.name for stage in image.coordinate((0, 0)).move((0, 3)).touched}
    assert names == {"merge", "embed", "pad"}  # a step along the window's columns


def convolution_input(n: int, h: int, w: int, c: int, window: int, stride: int, padding: int) -> Descriptor:
    """Return an image as the matrix of an implicit GEMM: [(n, oh, ow), (r, s, c)]."""
    image = packed((n, h, w, c), names=("n", "h", "w", "c"))
    rows, cols = ((size + 2 * padding - window) // stride + 1 for size in (h, w))
    padded = transform(
        image,
        [pass_through(n), pad(h, padding, padding), pad(w, padding, padding), pass_through(c)],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1,), (2,), (3,)],
    )
    windows = transform(
        padded,
        [pass_through(n), embed((rows, window), (stride, 1)), embed((cols, window), (stride, 1)),
         pass_through(c)],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1, 3), (2, 4), (5,)],
        names=("n", "oh", "ow", "r", "s", "c"),
    )  # fmt: skip
    return transform(
        windows, [merge((n, rows, cols)), merge((window, window, c))], [(0, 1, 2), (3, 4, 5)], [(0,), (1,)],
        names=("row", "col"),
    )  # fmt: skip


@pytest.mark.parametrize(("window", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 2, 0)])
def test_the_implicit_matrix_of_a_convolution_equals_unfold(window: int, stride: int, padding: int) -> None:
    n, h, w, c = 2, 6, 5, 3
    matrix = convolution_input(n, h, w, c, window, stride, padding)
    image = torch.arange(1, n * h * w * c + 1.0).view(n, h, w, c)
    unfolded = torch.nn.functional.unfold(
        image.permute(0, 3, 1, 2), window, padding=padding, stride=stride
    )  # [n, (c, r, s), (oh, ow)]
    shape = [n * unfolded.shape[2], window * window * c]
    wanted = unfolded.view(n, c, window * window, -1).permute(0, 3, 2, 1).reshape(shape)
    flat = image.flatten()
    found = [flat[matrix.offset(i)] if matrix.valid(i) else 0.0 for i in indices(matrix)]
    assert torch.equal(torch.tensor(found).view(shape), wanted)
    assert list(matrix.lengths) == shape


def test_a_1x1_convolution_simplifies_to_a_plain_matrix() -> None:
    """No division and no check is left, as in CK's specialization for 1 x 1 without padding."""
    matrix = convolution_input(2, 6, 5, 3, 1, 1, 0)
    asked = matrix.symbolic_indices()
    values = matrix.values(asked)
    assert values[0] == asked[0] * 3 + asked[1]
    assert list(lower(matrix, checked=(False, False)).source.splitlines()[-3:]) == [
        "    offset = row * 3 + col",
        "    valid = True",
        "    return offset, valid",
    ]


def test_lines_lists_the_graph_from_top_to_bottom() -> None:
    lines = convolution_input(1, 4, 4, 2, 3, 1, 1).lines()
    assert lines[0] == "top      row[16], col[18]"
    assert "  row[16] -> n[1], oh[4], ow[4]: merge((1, 4, 4))" in lines
    assert "  h[6] -> h[4]: pad(4, 1, 1)" in lines
    assert lines[-1] == "bottom   offset[32]"


def test_naive_packed_and_aligned_have_their_strides() -> None:
    assert naive((3, 4), (1, 3)).offset((2, 3)) == 11
    assert packed((2, 3, 4)).offset((1, 2, 3)) == 23
    assert packed((2, 3, 4)).element_space == 24
    assert packed(()).offset(()) == 0
    assert packed((2, 0, 4)).element_space == 0
    rows = aligned((3, 5), 8)
    assert rows.offset((2, 1)) == 17
    assert rows.element_space == 21
    backward = naive((4,), (-2,))
    assert backward.offset((3,)) == -6
    assert backward.reach.low == -6


def test_a_flip_is_an_embed_on_an_offset() -> None:
    row = packed((5,))
    moved = transform(row, [offset(5, 4)], [(0,)], [(0,)])
    flipped = transform(moved, [embed((5,), (-1,))], [(0,)], [(0,)])
    assert [flipped.offset((i,)) for i in range(5)] == [4, 3, 2, 1, 0]
    assert flipped.reach.low == 0
    assert flipped.reach.high == 4


def test_each_transform_maps_indices_by_its_formula() -> None:
    row = packed((8,), names=("x",))

    def on(one: transforms.Transform) -> Descriptor:
        return transform(row, [one], [(0,)], [tuple(range(len(one.upper_lengths)))])

    assert [on(left_pad(8, 2)).valid((i,)) for i in range(10)] == [False] * 2 + [True] * 8
    assert [on(right_pad(8, 2)).valid((i,)) for i in range(10)] == [True] * 8 + [False] * 2
    assert on(modulo(8, 20)).offset((19,)) == 3
    assert on(unmerge((2, 4))).offset((1, 3)) == 7
    assert [on(reflect(8, 3, 2)).offset((i,)) for i in range(13)] == [3, 2, 1, *range(8), 6, 5]
    assert [on(clamp(8, 3, 2)).offset((i,)) for i in range(13)] == [0, 0, 0, *range(8), 7, 7]
    assert on(reflect(8, 3, 2)).reach == on(clamp(8, 3, 2)).reach == on(pass_through(8)).reach
    assert on(freeze(5)).offset(()) == 5
    assert on(transforms.slice(8, 2, 5)).lengths == (3,)
    assert on(transforms.slice(8, 2, 5)).offset((1,)) == 3
    assert on(indexing((7, 0, 7), 8)).offset((2,)) == 7
    tile = packed((4, 4))
    swizzled = transform(tile, [xor((4, 4))], [(0, 1)], [(0, 1)])
    assert [swizzled.offset((1, i)) for i in range(4)] == [5, 4, 7, 6]
    repeated = transform(row, [pass_through(8), replicate((2, 3))], [(0,), ()], [(1,), (0, 2)])
    assert repeated.lengths == (2, 8, 3)
    assert repeated.offset((1, 5, 2)) == 5
    added = transform(row, [insert(4), pass_through(8)], [(), (0,)], [(0,), (1,)])
    assert added.offset((3, 6)) == 6


def test_an_adaptor_can_be_chained_onto_a_descriptor() -> None:
    pixels = adaptor((4, 6), names=("y", "x"))
    blocks = transform(pixels, [unmerge((2, 2)), unmerge((3, 2))], [(0,), (1,)], [(0, 2), (1, 3)])
    together = transform(blocks, [merge((2, 3)), merge((2, 2))], [(0, 1), (2, 3)], [(0,), (1,)])
    assert together.lengths == (6, 4)
    assert together.coordinate((4, 3)).bottom == (3, 3)
    stored = chain(packed((4, 6)), together)
    assert [stored.offset((0, i)) for i in range(4)] == [0, 1, 6, 7]
    twice = chain(pixels, together)
    assert twice.coordinate((4, 3)).bottom == (3, 3)
    with pytest.raises(InvalidArgumentError, match=r"bottom lengths are \(4, 6\)"):
        chain(packed((4, 5)), together)


def test_symbols_are_bound_within_their_limits() -> None:
    batch = symbol("batch", least=1)
    images = packed((batch, 4, 6))
    rows = transform(images, [merge((batch, 4)), pass_through(6)], [(0, 1), (2,)], [(0,), (1,)])
    assert [found.name for found in rows.symbols] == ["batch"]
    assert str(rows.lengths[0]) == "batch * 4"
    assert rows.bind(batch=3).offset((11, 5)) == 71
    assert rows.bind(batch=3).lengths == (12, 6)
    with pytest.raises(InvalidArgumentError, match="bind"):
        rows.offset((0, 0))
    with pytest.raises(InvalidArgumentError, match="no such symbol"):
        rows.bind(n=3)
    with pytest.raises(InvalidArgumentError, match="Give 1 or more"):
        rows.bind(batch=0)
    with pytest.raises(ArgumentTypeError, match="whole number"):
        rows.bind(batch=1.5)  # type: ignore[arg-type]
    eights = packed((symbol("c", multiple_of=8),))
    with pytest.raises(InvalidArgumentError, match="multiple of 8"):
        eights.bind(c=12)


IMAGE = packed((4, 6), names=("y", "x"))


def frozen(length: Number, index: int) -> Descriptor:
    image = packed((length, 6), names=("y", "x"))
    return transform(image, [freeze(index), pass_through(6)], [(0,), (1,)], [(), (0,)])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda: transform(IMAGE, [pass_through(4)], [(0,)], [(0,)]),
            r"lower_dims: dimensions \[1\] are missing",
        ),
        (
            lambda: transform(IMAGE, [pass_through(4), pass_through(4)], [(0,), (0,)], [(0,), (1,)]),
            r"lower_dims\[1\]: 0 is in lower_dims\[0\] already",
        ),
        (
            lambda: transform(IMAGE, [pass_through(4), pass_through(6)], [(0,), (1,)], [(0,), (0,)]),
            r"upper_dims\[1\]: 0 is in upper_dims\[0\] already",
        ),
        (
            lambda: transform(IMAGE, [pass_through(4), pass_through(6)], [(0,), (1,)], [(0,), (2,)]),
            r"upper_dims\[1\]: got 2",
        ),
        (
            lambda: transform(IMAGE, [pass_through(6), pass_through(6)], [(0,), (1,)], [(0,), (1,)]),
            r"transforms\[0\]: pass_through\(6\) takes a dimension of 6, and y has 4",
        ),
        (lambda: transform(IMAGE, [merge((4, 6))], [(0,)], [(0,)]), r"lower_dims\[0\]: got 1"),
        (lambda: transform(IMAGE, [merge((4, 6))], [(0, 1)], [(0, 1)]), r"upper_dims\[0\]"),
        (lambda: transform(IMAGE, [merge((4, 6))], [], [(0,)]), r"lower_dims: got 0"),
        (
            lambda: transform(IMAGE, [merge((4, 6))], [(0, 1)], [(0,)], names=("a", "b")),
            "1 different Python identifiers",
        ),
        (lambda: naive((2, 3), (1,)), "coefficients: got 1 for 2 lengths"),
        (lambda: naive((2, -3), (1, 1)), r"lengths\[1\]: got -3"),
        (lambda: naive((2,), (1,), names=("offset",)), "names: got 'offset'"),
        (lambda: naive((2,), (1,), names=("tl",)), "names: got 'tl'"),
        (lambda: naive((2,), (1,), names=("if",)), "names: got 'if'"),
        (lambda: indexing((0,), 4, name="my table"), "name: got 'my table'"),
        (lambda: naive((2, 2), (1, 1), names=("a", "a")), "different"),
        (lambda: aligned((2, 2), 0), "alignment: got 0"),
        (lambda: aligned((), 4), "lengths: got none"),
        (lambda: pad(4, -1, 0), "left: got -1"),
        (lambda: transforms.slice(4, 3, 2), "begin, end: got 3 and 2"),
        (lambda: transforms.slice(4, 0, 5), "begin, end: got 0 and 5"),
        (lambda: merge(()), "lengths: got none"),
        (lambda: modulo(0, 4), "modulus: got 0"),
        (lambda: reflect(4, 1, 4), "right: got 4. Give less than the length, 4"),
        (lambda: reflect(4, -1, 0), "left: got -1"),
        (lambda: clamp(0, 1, 0), "length: got 0"),
        (lambda: xor((4, 3)), r"lengths\[1\]: got 3"),
        (lambda: xor((4,)), "lengths"),
        (lambda: indexing((4,), 4), r"table\[0\]: got 4"),
        (
            lambda: frozen(4, 9),
            r"transforms\[0\]: freeze\(9\) is outside .*: y has 4. Give an index from 0 to 3",
        ),
        (lambda: frozen(4, 4), r"transforms\[0\]: freeze\(4\)"),
        (lambda: frozen(4, -1), r"transforms\[0\]: freeze\(-1\)"),
        (lambda: frozen(symbol("n"), -1), r"freeze\(-1\) .*: y has n"),
        (lambda: frozen(symbol("n", most=3), 3), r"freeze\(3\) .*: y has n"),
        (lambda: frozen(0, 0), "Give a dimension with elements"),
        (lambda: symbol("n", least=5, most=3), "least, most: got 5 and 3"),
        (lambda: IMAGE.offset((1,)), "got 1 numbers for the dimensions y, x"),
        (lambda: IMAGE.coordinate((0, 0)).move((1, 2, 3)), "step: got 3 numbers"),
    ],
)
def test_errors_name_the_argument_that_does_not_fit(made: object, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        made()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: pad(4, 1.5, 0), "left"),  # type: ignore[arg-type]
        (lambda: pass_through("4"), "length"),  # type: ignore[arg-type]
        (lambda: embed(4, (1,)), "lengths"),  # type: ignore[arg-type]
        (lambda: IMAGE.offset((1.0, 2)), "index"),  # type: ignore[arg-type]
        (lambda: transform(IMAGE, [3], [(0,)], [(0,)]), r"transforms\[0\]"),  # type: ignore[list-item]
        (lambda: transform(7, [], [], []), "base"),  # type: ignore[type-var]
        (lambda: transform(IMAGE, pass_through(4), [(0,)], [(0,)]), "transforms: "),  # type: ignore[arg-type]
        (lambda: transform(IMAGE, None, [(0,)], [(0,)]), "transforms: got None"),  # type: ignore[arg-type]
        (lambda: transform(IMAGE, [merge((4, 6))], None, [(0,)]), "lower_dims: got None"),  # type: ignore[arg-type]
        (lambda: transform(IMAGE, [merge((4, 6))], [(0, 1)], 3), "upper_dims: got 3"),  # type: ignore[arg-type]
        (lambda: transform(IMAGE, [pass_through(4)], (0,), [(0,)]), "lower_dims"),  # type: ignore[arg-type]
        (lambda: chain(IMAGE, 5), "upper: got 5"),  # type: ignore[arg-type]
        (lambda: chain(5, IMAGE), "base: got 5"),  # type: ignore[type-var]
        (lambda: adaptor(4), "lengths: got 4"),  # type: ignore[arg-type]
        (lambda: packed((2, None)), r"lengths\[1\]: got None"),  # type: ignore[arg-type]
        (lambda: aligned((2, None), 4), r"lengths\[1\]: got None"),  # type: ignore[arg-type]
        (lambda: symbol("n", least=1.5), "least: got 1.5"),  # type: ignore[arg-type]
        (lambda: symbol("n", most="3"), "most: got '3'"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_argument_of_a_wrong_type(made: object, words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        made()  # type: ignore[operator]


def test_violations_of_a_coordinate_name_the_padding() -> None:
    matrix = convolution_input(1, 4, 4, 2, 3, 1, 1)
    (stage, other) = matrix.coordinate((0, 0)).violations
    assert {stage.transform.name, other.transform.name} == {"pad"}
    assert matrix.coordinate((5, 0)).violations == ()
    assert math.prod(matrix.lengths) == 16 * 18
