"""Tensor transfer copies any layout to any other bit for bit, in tiles with long runs of memory."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.kernels.inputs import strides_of
from workbench import compat
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError
from workbench.interpreter import Access
from workbench.kernels import reference
from workbench.kernels.movement import transfer
from workbench.kernels.movement.transfer import default_tile, is_supported, launch, merged
from workbench.launch import Launch, Work
from workbench.lens.compile import KINDS
from workbench.lens.compile import compile as compile_for
from workbench.ops.transfer import run_transfer
from workbench.runtime import interpret

DTYPES = [
    torch.uint8, torch.int8, torch.bool, torch.float8_e5m2, torch.float8_e4m3fn,
    torch.float16, torch.bfloat16, torch.int16, torch.uint16,
    torch.float32, torch.int32, torch.uint32, torch.complex32,
    torch.float64, torch.int64, torch.uint64, torch.complex64,
    torch.complex128,
]  # fmt: skip
WIDTHS = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return random bits, including NaN with payloads; booleans are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    raw = torch.randint(256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes in one more dimension, so NaN equals itself and -0.0 differs from 0.0."""
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def tensor_of(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, seed: int
) -> torch.Tensor:
    """Return a tensor in memory with one element before and after it."""
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if 0 not in shape else -1
    return noise((reach + 3,), dtype, seed).as_strided(shape, strides, 1)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@settings(max_examples=examples(150))
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_any_layout_is_copied_to_any_other(data: st.DataObject, dtype: torch.dtype) -> None:
    """Memory between and around the destination's elements is not written."""
    shape = tuple(data.draw(st.lists(st.integers(0 if data.draw(st.booleans()) else 1, 6), max_size=5)))
    source = tensor_of(shape, data.draw(strides_of(shape, True)), dtype, 1)
    strides = data.draw(strides_of(shape, False))
    destination = tensor_of(shape, strides, dtype, 2)
    tile = data.draw(st.none() | tiles(len(merged(source, destination))))
    assume(tile is None or source.numel() <= 40 * math.prod(tile))
    whole = destination.as_strided((destination.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    expected = whole.clone()
    expected.as_strided(shape, strides, 1).copy_(source)
    (result,) = launch(source, destination, tile=tile).run()
    assert result is destination
    assert torch.equal(bits(whole), bits(expected))


def tiles(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw tiles with up to three lengths over 1, for the last dimensions or for all."""
    lengths = st.lists(st.sampled_from([1, 1, 2, 4, 16]), min_size=1, max_size=rank).map(tuple)
    return lengths.filter(lambda tile: sum(n > 1 for n in tile) <= 3)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch warns once in a process
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_copied_bit_for_bit(dtype: torch.dtype) -> None:
    x = noise((7, 3, 5), dtype)
    for view in (x, x.mT, x.permute(2, 0, 1), x[:, :, ::2], x[1:, :1].expand(6, 4, 5)):
        result = noise(tuple(view.shape), dtype, 1)
        launch(view, result).run()
        assert torch.equal(bits(result), bits(view))


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((), ()),
        ((1,), (0,)),
        ((1, 1, 1), (2, 0, 1)),
        ((64, 64), (1, 0)),  # one tile
        ((63, 65), (1, 0)),  # below one tile, and above one
        ((1, 65), (1, 0)),  # the transpose has the same order in memory
        ((129, 2), (1, 0)),
        ((2, 3, 40, 5), (0, 2, 3, 1)),  # NCHW to NHWC, three channels
        ((2, 40, 5, 3), (0, 3, 1, 2)),  # NHWC to NCHW
        ((2, 7, 3, 8), (0, 2, 1, 3)),  # the heads of attention: rows stay rows
        ((5, 6, 3), (1, 0, 2)),  # pixels of three bytes: neither tensor has a long innermost dimension
        ((2,) * 7, (6, 5, 4, 3, 2, 1, 0)),  # more short dimensions than a tile has axes
        ((3, 1, 5, 2), (3, 1, 0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", WIDTHS)
def test_permutations_are_copied_bit_for_bit(shape: Any, dims: Any, width: int) -> None:
    x = noise(shape, WIDTHS[width])
    result = noise(tuple(shape[d] for d in dims), WIDTHS[width], 1)
    launch(x.permute(dims), result).run()
    assert torch.equal(bits(result), bits(reference.permute_copy(x, dims)))


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1023, 1025])
def test_flat_copies_of_ragged_lengths_write_nothing_outside(length: int) -> None:
    memory = torch.full((length + 64,), 7, dtype=torch.int16)
    x = noise((length,), torch.int16)
    launch(x, memory[32 : 32 + length], tile=(256,)).run()
    assert torch.equal(memory[32 : 32 + length], x)
    assert (memory[:32] == 7).all()
    assert (memory[32 + length :] == 7).all()


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_programs_write_all_elements_in_any_order(seed: int, rows: int, columns: int) -> None:
    """Unwritten elements would still have the worker's poison."""
    x = noise((rows, columns), torch.int32)
    started = launch(x.t(), torch.zeros(columns, rows, dtype=torch.int32), tile=(4, 4)[: min(rows, columns)])
    result = interpret(started, poison=True, seed=random.Random(seed).randrange(2**32))
    assert torch.equal(result.outputs[0], x.t())
    assert result.changed == ()


def test_the_simplest_kernel_that_fits_is_started() -> None:
    x = torch.zeros(4, 6, 2)

    def name(source: torch.Tensor, destination: torch.Tensor) -> str:
        return launch(source, destination).steps[0].name

    assert name(x, x.clone()) == "copy_kernel"
    assert name(x.permute(2, 0, 1), x.clone().permute(2, 0, 1)) == "copy_kernel"  # both are permuted alike
    assert name(x[0, 0, 0], x.clone()[0, 0, 0]) == "copy_kernel"
    assert name(x[:, :3], x.clone()[:, :3]) == "permute_kernel"
    assert name(x.mT, torch.zeros(4, 2, 6)) == "permute_kernel"
    assert name(x[:1].expand(4, 6, 2), x.clone()) == "permute_kernel"
    pairs = torch.zeros(4, 6, dtype=torch.complex128)
    assert name(pairs, pairs.clone()) == "copy_kernel"


def test_dimensions_are_merged_where_both_tensors_allow() -> None:
    x = torch.zeros(2, 3, 4, 5)
    assert merged(x, x.clone()) == (120,)
    assert merged(x.permute(0, 2, 3, 1), torch.zeros(2, 4, 5, 3)) == (2, 20, 3)
    assert merged(torch.zeros(2, 4, 5, 3).permute(0, 3, 1, 2), x) == (2, 3, 20)
    assert merged(x, x.to(memory_format=torch.channels_last)) == (2, 20, 3)  # the destination's order
    assert merged(x[:, :, ::2], x.clone()[:, :, ::2]) == (12, 5)
    pairs = torch.zeros(4, 6, dtype=torch.complex128)
    assert merged(pairs.t(), torch.zeros(6, 4, dtype=torch.complex128)) == (6, 4, 2)


def test_work_counts_each_element_in_memory_once() -> None:
    """Elements of the source's memory are read once, elements of the destination are written once."""
    x = torch.zeros(4, 6)
    for source, nbytes in (
        (x, 2 * 24 * 4),
        (x.t().contiguous().t(), 2 * 24 * 4),
        (x[:1].expand(4, 6), (6 + 24) * 4),
        (x[0, 0].expand(4, 6), (1 + 24) * 4),
        (torch.zeros(9).as_strided((4, 6), (1, 1)), (9 + 24) * 4),  # overlapping windows
    ):
        assert launch(source, torch.zeros(4, 6)).work == Work(0, nbytes)
    pairs = torch.zeros(4, 6, dtype=torch.complex128)
    assert launch(pairs.t(), torch.zeros(6, 4, dtype=torch.complex128)).work == Work(0, 2 * 24 * 16)
    empty = launch(torch.zeros(0, 6), torch.zeros(0, 6))
    assert (empty.steps, empty.work) == ((), Work(0, 0))
    assert empty.run()[0].shape == (0, 6)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "case",
    ["copy", "transpose", "four channels last", "four channels first", "heads", "rows of a slice", "pixels"],
)
def test_no_sector_is_fetched_twice(case: str, width: int) -> None:
    """A program's loads and stores touch as many sectors of 32 bytes as their bytes fill.

    If a tile were read along the wrong dimension, or in rows of a few bytes, programs would share sectors.
    Every length is a multiple of the tile's, so no edge of a tile cuts a sector.
    """
    x = torch.zeros(2, 128, 256, dtype=WIDTHS[width])
    source: torch.Tensor = {
        "copy": x,
        "transpose": x.mT,
        "four channels last": x.view(2, 4, 8192).mT,
        "four channels first": x.view(2, 8192, 4).mT,
        "heads": x.view(2, 128, 4, 64).transpose(1, 2),
        "rows of a slice": x[:, :, :128],
        "pixels": x.view(2, 128, 64, 4).transpose(1, 2),
    }[case]
    started = launch(source, torch.zeros_like(source, memory_format=torch.contiguous_format))
    sectors = dict.fromkeys(("load", "store"), 0)

    def count(access: Access) -> None:
        touched = access.offsets[access.mask] * width // 32
        sectors[access.kind] += len(set(touched.tolist()))

    started.steps[0].run(observer=count)
    assert sectors == dict.fromkeys(("load", "store"), source.numel() * width // 32)


@settings(max_examples=examples(200))
@given(data=st.data(), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_default_tiles_have_long_runs_in_both_tensors(data: st.DataObject, itemsize: int) -> None:
    """Lengths are powers of two, no longer than needed, and at most three exceed 1."""
    sizes = tuple(data.draw(st.lists(st.integers(2, 500), min_size=2, max_size=4)))
    order = data.draw(st.permutations(range(len(sizes))))
    source_strides, destination_strides = [0] * len(sizes), [0] * len(sizes)
    for strides, dims in ((source_strides, order), (destination_strides, range(len(sizes) - 1, -1, -1))):
        step = 1
        for d in dims:
            strides[d], step = step, step * sizes[d]
    tile = default_tile(sizes, tuple(source_strides), tuple(destination_strides), itemsize)
    assert len(tile) == len(sizes)
    assert all(n & (n - 1) == 0 and n < 2 * size for n, size in zip(tile, sizes, strict=True))
    axes = sum(n > 1 for n in tile)
    assert axes <= transfer.MOST_AXES
    for dims in (order, range(len(sizes) - 1, -1, -1)):
        run = 1
        for d in dims:
            run *= min(tile[d], sizes[d])
            if tile[d] < sizes[d]:
                break
        assert run >= transfer.RUN[itemsize] or run == math.prod(sizes) or axes == transfer.MOST_AXES
    assert math.prod(tile) * itemsize <= 64 * 1024


@pytest.mark.parametrize(
    ("shape", "dims", "width", "tile", "num_warps"),
    [
        ((64, 64, 64), (0, 1, 2), 4, (1024,), 8),  # flat: 16 bytes per lane
        ((64, 64, 64), (0, 1, 2), 1, (4096,), 8),
        ((640, 960), (1, 0), 2, (128, 128), 8),  # transposes: a cache line along both axes
        ((640, 960), (1, 0), 4, (64, 64), 8),
        ((640, 960), (1, 0), 8, (32, 32), 4),
        ((16, 3, 224, 224), (0, 2, 3, 1), 2, (1, 1024, 4), 4),  # many pixels of three channels
        ((16, 224, 224, 3), (0, 3, 1, 2), 2, (1, 4, 1024), 4),
        ((8, 128, 8, 64), (0, 2, 1, 3), 2, (1, 1, 64, 64), 4),  # 64 rows of 64
        ((80, 90, 100), (2, 1, 0), 2, (64, 1, 64), 4),  # both innermost dimensions, not adjacent
        # the third axis is long, no pair
        ((8, 64, 2, 2, 64, 64), (0, 1, 4, 2, 5, 3), 2, (1, 32, 1, 64, 2), 4),
    ],
    ids=str,
)
def test_common_transfers_keep_their_default_tiles(
    shape: Any, dims: Any, width: int, tile: Any, num_warps: int
) -> None:
    x = torch.zeros(shape, dtype=WIDTHS[width])
    view = x.permute(dims)
    destination = torch.zeros(view.shape, dtype=x.dtype)
    (step,) = launch(view, destination).steps
    given = {d: n for d, n in enumerate(tile) if n > 1}
    meta = step.meta
    lengths = (meta["BLOCK_SIZE"],) if "BLOCK_SIZE" in meta else meta["TILE"]
    assert sorted(lengths) == sorted(tile)
    if compat.lanes_lie_along_the_last_axes():
        assert [n for n in lengths if n > 1] == list(given.values())
    assert meta["num_warps"] == num_warps
    sizes = merged(view, destination)
    assert step.programs == math.prod(-(-n // length) for n, length in zip(sizes, tile, strict=True))


@pytest.mark.parametrize(
    ("source", "axes"),
    [
        (torch.zeros(64, 100)[:, :96:2], (0, 1)),  # rows in both
        (torch.zeros(96, 64).t()[:, ::2], (1, 0)),  # columns, even if no two elements are adjacent
        (torch.zeros(96, 32, 80).permute(2, 1, 0), (2, 1, 0)),
        (torch.zeros(96, 80, 32).permute(1, 0, 2), (1, 0, 2)),
        # Expanded dimensions keep their order: all lanes along one of them read one address.
        (torch.zeros(96)[::2].expand(64, 48), (0, 1)),
        (torch.zeros(64, 1).expand(64, 48), (0, 1)),
        (torch.zeros(48, 1, 64).permute(2, 1, 0).expand(64, 16, 48), (2, 1, 0)),
    ],
    ids=lambda value: str(value.stride()) if isinstance(value, torch.Tensor) else str(value),
)
def test_a_tile_is_loaded_in_the_order_of_the_sources_memory(source: torch.Tensor, axes: Any) -> None:
    (step,) = launch(source, torch.zeros(source.shape), tile=(16,) * len(axes)).steps
    if len(axes) == transfer.MOST_AXES and not compat.lanes_lie_along_the_last_axes():
        axes = {(2, 1, 0): (0, 2, 1), (1, 0, 2): (1, 0, 2)}[axes]  # axes 0 and 1 of both are exchanged
    assert step.meta["SOURCE_AXES"] == axes
    assert step.meta["DESTINATION_AXES"] == tuple(range(len(axes)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_lanes_of_pixel_shuffle_store_neighbors(dtype: torch.dtype) -> None:
    x = torch.empty(8, 64, 2, 2, 64, 64, dtype=dtype).permute(0, 1, 4, 2, 5, 3)
    launched = launch(x, torch.empty(x.shape, dtype=dtype))
    (step,) = compile_for(launched, "sm_90")
    text = step.stages["ttgir"]
    (layout,) = re.findall(r"tt\.store .*, #(\w+)>", text)
    (lanes,) = re.findall(rf"#{layout} = .*threadsPerWarp = \[([\d, ]+)\]", text)
    (axis,) = (i for i, stride in enumerate(launched.steps[0].args[4][-3:]) if stride == 2)
    assert [int(n) for n in lanes.split(",")][axis] == 32


@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((2**31 - 2**12,), (1,), False),
        ((2**31 - 2**12 + 1,), (1,), True),  # lanes of the last tile would count beyond 2^31 - 1
        ((2**15, 2**16), (1, 2**15), False),  # the last element is number 2^31 - 1
        ((2**15, 2**16 + 1), (1, 2**15), True),
        ((2, 100), (2**31, 1), True),  # few elements, far apart
        ((2, 100), (2**30, 1), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["source", "destination"])
def test_offsets_have_64_bits_where_needed(
    which: str, shape: Any, strides: Any, wide: bool, wide_memory: torch.Tensor
) -> None:
    dense = wide_memory.as_strided(shape, torch.empty(shape, device="meta").stride())
    strided = wide_memory[2**32 :].as_strided(shape, strides)
    source, destination = (strided, dense) if which == "source" else (dense, strided)
    assert launch(source, destination).steps[0].meta["WIDE"] is wide


def test_elements_beyond_32_bit_offsets_are_copied(wide_memory: torch.Tensor) -> None:
    """The kernel runs with offsets that 32 bits do not hold."""
    far = wide_memory.as_strided((2, 20), (2**31 + 7, 3))
    x = noise((20, 2), torch.uint8)
    launch(x.t(), far, tile=(2, 16)).run()
    assert torch.equal(far, x.t())
    result = torch.zeros(20, 2, dtype=torch.uint8)
    launch(far.t(), result, tile=(16, 2)).run()
    assert torch.equal(result, x)


def test_a_tensor_is_copied_onto_itself_and_to_other_parts_of_its_memory() -> None:
    """The other parts are columns between those of the source, and rows after those of the source."""
    x = torch.arange(24.0).view(4, 6)
    launch(x, x).run()
    assert torch.equal(x, torch.arange(24.0).view(4, 6))
    launch(x[:, ::2], x[:, 1::2]).run()
    assert x[:, 1::2].tolist() == x[:, ::2].tolist()
    launch(x[:2], x[2:]).run()
    assert torch.equal(x[2:], x[:2])


def refused(*args: Any) -> str:
    with pytest.raises(TensorMismatchError) as caught:
        launch(*args)
    return str(caught.value)


def test_unsupported_tensors_are_refused() -> None:
    x, z = torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.complex64)
    assert "shapes differ: source (4, 6), destination (6, 4). Give tensors of one shape" in refused(
        x, torch.zeros(6, 4)
    )
    assert "destination torch.int32. Convert the source: source.to(torch.int32)." in refused(x, x.int())
    assert "source is a int, not a tensor" in refused(3, x)
    assert "destination is a list, not a tensor" in refused(x, [])
    assert "the layout of source is torch.sparse_coo. Give source.to_dense()." in refused(x.to_sparse(), x)
    assert "source is a view that negates or conjugates" in refused(z.conj(), z.clone())
    assert "destination is a view that negates or conjugates" in refused(x, z.conj().imag)
    assert "tensors on cpu and meta" in refused(x, x.to("meta"))
    shared = "several elements of destination may share one address: its strides are"
    assert f"{shared} (0, 1)" in refused(x, torch.zeros(6).expand(4, 6))
    assert f"{shared} (1, 1)" in refused(x, torch.zeros(9).unfold(0, 6, 1))  # overlapping windows
    assert is_supported(x[:1], torch.zeros(6).expand(1, 6)) == ""  # length 1 shares no memory
    memory = torch.zeros(40)
    for source, destination in (
        (memory[:16].view(4, 4), memory[:16].view(4, 4).t()),  # it would read elements that it has written
        (memory[:24], memory[1:25]),
        (memory[16:], memory[:24]),
        (memory[:1].expand(24), memory[:24]),
    ):
        message = refused(source, destination)
        assert "source and destination overlap in memory. Give a copy of the source" in message
    empty = torch.zeros(0).as_strided((0, 6), (0, 0))
    assert is_supported(empty, empty) == ""


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_nested_tensors_are_refused() -> None:
    """Nested tensors report a strided layout, but have no shape."""
    x = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert "source is nested" in refused(x, x)


def test_run_transfer_refuses_different_dtypes_and_shapes() -> None:
    """Elements are moved as integers of the same width, which must not hide that dtypes differ."""
    x = torch.ones(4, 6)
    with pytest.raises(
        TensorMismatchError, match=r"dtypes differ: source torch.float32, destination torch.int32"
    ):
        run_transfer(x, result := torch.zeros(4, 6, dtype=torch.int32))
    assert not result.any()
    pairs = torch.ones(4, 6, dtype=torch.complex128)
    with pytest.raises(TensorMismatchError, match=r"dtypes differ: source torch.complex128"):
        run_transfer(pairs, torch.zeros(4, 6, 2, dtype=torch.float64))
    with pytest.raises(TensorMismatchError, match="shapes differ"):
        run_transfer(x, torch.zeros(6, 4))
    run_transfer(x.t(), result := torch.zeros(6, 4))
    assert torch.equal(result, x.t())


def test_merging_refuses_different_shapes() -> None:
    with pytest.raises(TensorMismatchError, match="shapes differ"):
        merged(torch.zeros(2, 3), torch.zeros(3, 5))


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_quantized_tensors_are_refused() -> None:
    """The shape of a quantized tensor does not tell the size of its memory."""
    x = torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.qint8)
    assert "source is quantized: torch.qint8" in refused(x, x)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"tile": (2**20, 2)},
            InvalidArgumentError,
            r"2097152 elements. Give at most 1048576 elements, Triton's limit",
        ),
        ({"tile": (3, 4)}, InvalidArgumentError, r"tile\[0\]: got 3, not a power of two. .* try 2 or 4"),
        ({"tile": (4, 0)}, InvalidArgumentError, r"tile\[1\]: got 0"),
        ({"tile": (4, 4.0)}, ArgumentTypeError, r"tile\[1\]: got 4.0, a float"),
        (
            {"tile": 64},
            ArgumentTypeError,
            r"tile: got 64, a int. Give a length for each dimension: \(64, 64\)",
        ),
        ({"tile": "64"}, ArgumentTypeError, "tile: got '64', a str"),
        ({"tile": ()}, InvalidArgumentError, "tile: got 0 lengths"),
        (
            {"tile": (1, 1, 1, 4, 4)},
            InvalidArgumentError,
            r"got 5 lengths. Give 1 to 4: these tensors have the merged dimensions \(5, 4, 3, 2\)",
        ),
        ({"tile": (2, 2, 2, 2)}, InvalidArgumentError, r"tile: got \(2, 2, 2, 2\). Give at most 3 lengths"),
        ({"num_warps": 0}, InvalidArgumentError, "num_warps: got 0"),
        ({"num_warps": 3}, InvalidArgumentError, "num_warps: got 3, not a power of two"),
        ({"num_warps": "4"}, ArgumentTypeError, "num_warps: got '4', a str"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: Any, kind: type[Exception], message: str) -> None:
    x = torch.zeros(2, 3, 4, 5)
    with pytest.raises(kind, match=message):
        launch(x.permute(3, 2, 1, 0), torch.zeros(5, 4, 3, 2), **options)


def compiled_widths(started: Launch, target: str) -> dict[str, set[int | None]]:
    """Return, for each kind of instruction, the bits that a lane moves at once."""
    (step,) = compile_for(started, target)
    assert not step.spills
    widths: dict[str, set[int | None]] = {kind: set() for kind in KINDS}
    for instruction in step.instructions:
        widths[instruction.kind].add(instruction.bits)
    return widths


def halves(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16)


@pytest.mark.parametrize(
    ("source", "loaded", "stored", "is_shared"),
    [
        (torch.empty(256, 512, dtype=torch.uint8).t(), {128}, {128}, True),
        (halves(256, 512).t(), {128}, {128}, True),
        (torch.empty(256, 512).t(), {128}, {128}, True),
        (torch.empty(256, 512, dtype=torch.float64).t(), {128}, {128}, True),
        (torch.empty(256, 512, dtype=torch.complex128).t(), {128}, {128}, True),
        (halves(8, 64, 196).mT, {64}, {128}, True),  # rows of 196 elements, which 4 divides
        (halves(8, 64, 98).mT, {32}, {128}, True),
        (halves(8, 64, 49).mT, {16}, {128}, True),
        (halves(8, 49, 64).mT, {128}, {16}, True),
        (halves(2, 3, 4096).mT, {128}, {16}, True),  # three channels
        (halves(2, 128, 8, 64).transpose(1, 2), {128}, {128}, False),  # rows stay rows
        (halves(512).expand(64, 512), {128}, {128}, False),
    ],
    ids=lambda value: (
        f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else str(value)
    ),
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_accesses_are_as_wide_as_strides_allow(
    target: str, source: torch.Tensor, loaded: set[int], stored: set[int], is_shared: bool
) -> None:
    """The test checks the bits that a lane moves at once, and whether values pass through shared memory."""
    widths = compiled_widths(launch(source, torch.empty(source.shape, dtype=source.dtype)), target)
    assert widths["global load"] == loaded
    assert widths["global store"] == stored
    assert bool(widths["shared load"]) == bool(widths["shared store"]) == is_shared


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_flat_copy_moves_16_bytes_a_lane_whatever_its_length(target: str) -> None:
    """Lanes of a ragged last tile move single elements."""
    for length, bits_at_once in ((8192, {128}), (8193, {16, 128})):
        widths = compiled_widths(launch(halves(length), halves(length), tile=(4096,)), target)
        assert widths["global load"] == widths["global store"] == bits_at_once


def test_references_agree_with_torch() -> None:
    x = torch.randn(2, 3, 4).mT
    assert torch.equal(reference.clone(x), x)
    assert reference.clone(x).stride() == x.stride()
    assert reference.clone(x, memory_format=torch.contiguous_format).is_contiguous()
    assert torch.equal(reference.permute_copy(x, [2, 0, 1]), x.permute(2, 0, 1))
    assert torch.equal(reference.transpose_copy(x, 0, -1), x.transpose(0, 2))
    for copy in (reference.permute_copy(x, (2, 0, 1)), reference.transpose_copy(x, 1, 2)):
        assert copy.is_contiguous()
        assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
