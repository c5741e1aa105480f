"""Transfer of views: any descriptor and dtype, with wide accesses, and none outside the tensors."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coords.random_chains import descriptors, offset_by_the_table
from tests.everything import examples
from tests.kernels.compiled_for import kernels_for
from workbench import lens
from workbench.coords import Descriptor, naive, packed, symbol, transform
from workbench.coords.transforms import embed, modulo, offset, pad, pass_through
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels.movement import rearrangement, view_transfer
from workbench.kernels.movement.rearrangement import Windows
from workbench.kernels.movement.view_transfer import bits_of, default_tile, matrices
from workbench.kernels.views import View
from workbench.launch import Launch


@settings(max_examples=examples(60))
@given(descriptors(), st.permutations(range(6)), st.data())
def test_any_descriptor_is_copied_in_any_order(
    descriptor: Descriptor, order: list[int], data: st.DataObject
) -> None:
    """Elements agree with the descriptor index by index, for outputs in any order and ragged tiles."""
    lengths: Any = descriptor.lengths
    reach = descriptor.reach
    if 0 in lengths or reach.low is None or reach.low < 0 or reach.high is None:
        return
    source = torch.arange(max(reach.high, 0) + 1, dtype=torch.int32)  # negative if no index is valid
    order = [d for d in order if d < len(lengths)]
    output = torch.full([lengths[d] for d in order], 99, dtype=torch.int32)
    stored = output.permute([order.index(d) for d in range(len(lengths))])
    seen, places = matrices(descriptor, naive(lengths, stored.stride()), 4)
    if seen.reach.low is None or seen.reach.low < 0:
        return  # for merged dimensions i - i is not known to be 0, so the view is refused
    tile = data.draw(st.sampled_from([None, (1, 1), (2, 8), (16, 4)]))
    view_transfer.launch(View(source, seen, {}), View(output, places, {}), fill=-7, tile=tile).run()
    for index in itertools.product(*map(range, lengths)):
        place, is_valid = offset_by_the_table(descriptor, index)
        assert stored[index] == (place if is_valid else -7)


def test_views_of_padding_alone_are_filled() -> None:
    padded = transform(naive((1,), (1,)), [pad(1, 2, 0)], [(0,)], [(0,)])
    seen, places = matrices(transform(padded, [modulo(3, 1)], [(0,)], [(0,)]), naive((1,), (1,)), 4)
    output = torch.zeros(1)
    view_transfer.launch(
        View(torch.ones(1), seen, {}),
        View(output, places, {}),
        fill=view_transfer.bits_of(-7.0, torch.float32),
    ).run()
    assert output.tolist() == [-7]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.bool, True),
        (torch.uint8, 200),
        (torch.int8, -3),
        (torch.float16, -1.5),
        (torch.bfloat16, float("nan")),
        (torch.float32, float("-inf")),
        (torch.int64, -(2**40)),
        (torch.float64, -0.0),
        (torch.complex64, 2 - 3j),
        (torch.float8_e5m2, 1.5),
    ],
    ids=str,
)
def test_fills_of_every_dtype_keep_their_bits(dtype: torch.dtype, value: Any) -> None:
    """Bits are compared, so a NaN must keep its payload."""
    source, output = torch.zeros(4, dtype=torch.float32).to(dtype), torch.zeros(8).to(dtype)
    seen, places = matrices(
        transform(packed((4,)), [pad(4, 1, 3)], [(0,)], [(0,)]), packed((8,)), source.element_size()
    )
    view_transfer.launch(View(source, seen, {}), View(output, places, {}), fill=bits_of(value, dtype)).run()
    want = torch.full((8,), value, dtype=dtype)
    want[1:5] = 0
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[output.element_size()]
    assert torch.equal(output.view(word), want.view(word))


def test_invalid_elements_of_the_output_are_not_stored() -> None:
    source, output = torch.arange(12.0).view(4, 3), torch.full((2, 3), 99.0)
    inner = transform(packed((2, 3)), [pad(2, 1, 1), pass_through(3)], [(0,), (1,)], [(0,), (1,)])
    view_transfer.launch(View(source, packed((4, 3)), {}), View(output, inner, {})).run()
    assert torch.equal(output, source[1:3])


def backward(rows: int, cols: int) -> Descriptor:
    """Return the descriptor of a matrix whose columns are in reverse order."""
    moved = transform(
        packed((rows, cols)), [pass_through(rows), offset(cols, cols - 1)], [(0,), (1,)], [(0,), (1,)]
    )
    return transform(moved, [pass_through(rows), embed((cols,), (-1,))], [(0,), (1,)], [(0,), (1,)])


@pytest.mark.parametrize(
    ("dtype", "cols", "tile", "run"),
    [
        (torch.float16, 64, None, 8),
        (torch.float32, 64, None, 4),
        (torch.int8, 64, None, 16),
        (torch.float64, 64, None, 2),
        (torch.float16, 64, (4, 2), 2),
        (torch.float16, 36, None, 4),
        (torch.float16, 35, None, 1),
    ],
)
def test_reversed_elements_are_loaded_in_memory_order(
    dtype: torch.dtype, cols: int, tile: tuple[int, int] | None, run: int
) -> None:
    source = torch.randint(-100, 100, (5, cols)).to(dtype)
    output = torch.zeros_like(source)
    launch = view_transfer.launch(
        View(source, backward(5, cols), {}), View(output, packed((5, cols)), {}), tile=tile
    )
    assert launch.steps[0].meta["REVERSED"] == run
    launch.run()
    assert torch.equal(output, source.flip(1))


def test_offsets_have_64_bits_where_needed() -> None:
    """The tensors are never touched, so they take no memory."""
    for rows, wide in ((2**10, False), (2**12, True)):
        source, output = (torch.empty(rows, 2**19 + 8, dtype=torch.int8) for _ in range(2))
        launch = rearrangement.launch(rearrangement.flip(tuple(source.shape), (1,)), source, output)
        assert launch.steps[0].meta["WIDE"] == wide


def test_elements_beyond_32_bit_offsets_are_copied(tmp_path: Path) -> None:
    """The source is in a sparse file, which takes memory only where it is touched."""
    memory = torch.from_file(str(tmp_path / "sparse"), shared=True, size=2**31 + 200, dtype=torch.int8)
    source = memory.as_strided((2, 100), (2**31, 1))
    source.copy_(torch.arange(200).view(2, 100))
    output = torch.zeros(2, 100, dtype=torch.int8)
    launch = rearrangement.launch(rearrangement.flip((2, 100), (0, 1)), source, output)
    assert launch.steps[0].meta["WIDE"]
    launch.run()
    assert torch.equal(output, source.flip(0, 1))


def test_common_lengths_keep_their_default_tiles() -> None:
    assert default_tile(8192, 8192, 2, is_transposed=False) == (4, 1024)
    assert default_tile(None, 3136, 2, is_transposed=False) == (16, 256)  # 512 would mask an eighth
    assert default_tile(1, 2**20, 4, is_transposed=False) == (1, 2048)
    assert default_tile(3, 5, 4, is_transposed=False) == (4, 8)
    assert default_tile(None, 35, 4, is_transposed=False) == (32, 64)  # narrower ones have no whole line
    assert default_tile(None, 4, 2, is_transposed=True) == (1024, 4)
    assert default_tile(4096, 4096, 4, is_transposed=True) == (64, 64)


def test_invalid_arguments_are_refused() -> None:
    tensor, other = torch.zeros(4, 6), torch.zeros(4, 6)
    view, output = View(tensor, packed((4, 6)), {}), View(other, packed((4, 6)), {})
    for got, words in [
        ((view, View(other, packed((6, 4)), {})), "lengths are"),
        ((view, View(other.half(), packed((4, 6)), {})), "dtypes differ"),
        ((view, View(tensor, packed((4, 6)), {})), "overlap"),
        ((view, View(other, naive((4, 6), (0, 1)), {})), "share one address"),
        ((view, View(torch.zeros(1, 4, 6), packed((1, 4, 6)), {})), "not rows and columns"),
        ((View(tensor.to(torch.complex128), packed((4, 6)), {}), output), "have 16 bytes"),
        ((View(torch._neg_view(tensor), packed((4, 6)), {}), output), "negates"),
    ]:
        with pytest.raises(TensorMismatchError, match=words):
            view_transfer.launch(*got)
    for options, words in [
        ({"fill": 2**31}, "fill: got"),
        ({"tile": (3, 4)}, r"tile\[0\]"),
        ({"tile": (2048, 2048)}, "at most"),
        ({"tile": (2, 4, 8)}, "tile: got 3 lengths. Give rows and columns"),
        ({"num_warps": 3}, "num_warps"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            view_transfer.launch(view, output, **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="fill"):
        view_transfer.launch(view, output, fill=0.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="source"):
        view_transfer.launch(tensor, output)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="its lengths are"):
        matrices(packed((4, 6)), packed((6, 4)), 4)
    with pytest.raises(UnknownNameError, match="mode"):
        rearrangement.pad((4,), "mirror", ((1, 1),))
    with pytest.raises(TensorMismatchError, match="output: shape"):
        rearrangement.launch(((), ()), tensor, torch.zeros(4, 7))


@pytest.mark.parametrize("rows", [2, 6])
def test_outputs_with_another_number_of_rows_than_the_source_are_refused(rows: int) -> None:
    """The first length is a symbol here; each of its values must be the source's."""
    source = torch.zeros(4, 64)
    wanted = rf"output: shape \({rows}, 64\), which has {rows * 64} elements. Give a tensor of 256 elements"
    with pytest.raises(TensorMismatchError, match=wanted):
        rearrangement.launch(rearrangement.flip((4, 64), (1,)), source, torch.zeros(rows, 64))


def test_columns_are_the_contiguous_dimensions_of_the_output() -> None:
    """The contiguous dimension of the source, if it is another one, becomes the last of the rows."""
    n = symbol("n", least=1)
    plain, _ = matrices(packed((n, 8, 4, 64)), packed((n, 8, 4, 64)), 2)
    assert [str(length) for length in plain.lengths] == ["n * 8", "256"]  # 512 bytes, and no longer rows
    # From planes to contiguous channels: pixels are adjacent in the source.
    planes, pixels = matrices(packed((n, 3, 50, 60)), naive((n, 3, 50, 60), (9000, 1, 180, 3)), 2)
    assert [str(length) for length in planes.lengths] == ["n * 3000", "3"]
    assert [pixels.bind(n=1).offset(index) for index in ((0, 1), (1, 0))] == [1, 3]
    assert [planes.bind(n=1).offset(index) for index in ((0, 1), (1, 0))] == [3000, 1]
    flat, _ = matrices(packed((5, 7)), packed((5, 7)), 4)
    assert flat.lengths == (1, 35)


@pytest.mark.parametrize(
    ("how", "shape"),
    [
        (rearrangement.flip((1, 6, 40), (2,)), (6, 40)),
        (rearrangement.roll((1, 6, 40), (3, 5), (1, 2)), (6, 40)),
        (rearrangement.pad((1, 6, 40), "reflect", ((0, 0), (0, 0), (2, 3))), (6, 45)),
        (Windows((2,), (39,), (1,), (1,), (0,)), (12, 39)),
    ],
)
def test_the_batch_changes_no_constants(how: Any, shape: tuple[int, ...]) -> None:
    metas = []
    for batch in (1, 3, 16):
        launch = rearrangement.launch(how, torch.zeros(batch, 6, 40), torch.zeros(batch, *shape))
        metas.append(launch.steps[0].meta)
    assert metas[0] == metas[1] == metas[2]


def widths(launch: Launch) -> tuple[int | None, int | None]:
    """Return the bits that a lane loads and stores at once on sm_90."""
    (step,) = lens.compile(launch, "sm_90")
    return step.widest("global load"), step.widest("global store")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_flips_load_and_store_16_bytes_at_once(dims: tuple[int, ...], dtype: torch.dtype) -> None:
    """Lanes reverse the elements in registers, without shared memory."""
    source, output = torch.empty(2, 1024, 1024, dtype=dtype)
    launch = rearrangement.launch(rearrangement.flip((1024, 1024), dims), source, output)
    assert widths(launch) == (128, 128)
    (step,) = lens.compile(launch, "sm_90")
    assert "st.shared" not in step.stages["ptx"]


def test_rearrangements_move_as_many_bits_as_lie_together() -> None:
    """Windows and shifts begin at any element; rows of 58 fp16 elements begin at multiples of 4.

    Elements that are loaded one by one are stored by 8 bytes, so lanes that load are closer together.
    """
    image = torch.empty(8, 64, 56, 56, dtype=torch.float16)
    windows = Windows((3, 3), (56, 56), (1, 1), (1, 1), (1, 1))
    found = widths(rearrangement.launch(windows, image, image.new_empty(8, 576, 3136)))
    assert found == (16, 64)
    around = rearrangement.pad(tuple(image.shape), "constant", ((0, 0), (0, 0), (1, 1), (1, 1)))
    assert widths(rearrangement.launch(around, image, image.new_empty(8, 64, 58, 58))) == (16, 64)
    output = torch.empty_like(image)
    for shift, found in ((8, (128, 128)), (4, (64, 128)), (3, (16, 64))):
        how = rearrangement.roll(tuple(image.shape), (shift,), (3,))
        assert widths(rearrangement.launch(how, image, output)) == found
    turned = rearrangement.launch(((),) * 4, image.to(memory_format=torch.channels_last), output)
    assert widths(turned) == (128, 128)


def test_another_batch_and_fill_compile_nothing() -> None:
    pairs = ((0, 0), (0, 0), (3, 4), (1, 2))
    found = []
    for images, fill in ((64, 3), (64, 0), (31, 1), (16, 16), (2, 5), (1, 1)):
        image = torch.empty(images, 8, 30, 30)
        how = rearrangement.pad(tuple(image.shape), "constant", pairs)
        launch = rearrangement.launch(how, image, torch.empty(images, 8, 37, 33), fill=fill)
        (kernel,) = kernels_for(launch)
        found.append(kernel)
    assert all(kernel == found[0] for kernel in found)


def test_rows_beyond_31_bits_are_counted_in_64() -> None:
    """The kernel computes rows in 64 bits; the tensors are never touched."""
    many = 2**31 + 16
    rows = symbol("images", least=1, multiple_of=16)
    seen = naive((rows, 1), (1, 1), names=("row", "col"))
    memory = torch.empty(many, dtype=torch.int8)
    views = (View(one, seen, {"images": many}) for one in (memory, torch.empty_like(memory)))
    launch = view_transfer.launch(*views, tile=(1024, 1))
    assert launch.steps[0].meta["WIDE"]
    (step,) = lens.compile(launch, "sm_90")
    assert "arith.extsi %rows : i32 to i64" in step.stages["ttir"]
    assert not re.search("arith.muli .* : i32", step.stages["ttir"])
