"""Matrix products: every template gives the same result for any strides, batches and dtypes."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples, some_of
from tests.kernels.compiled_for import assert_waits_before_memory
from tests.kernels.inputs import laid, numbers, whole
from tests.kernels.results import assert_as_accurate_as_torch, assert_untouched, guarded
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import gemm
from workbench.kernels.gemm import packing
from workbench.kernels.rows import softmax
from workbench.kernels.tile import order
from workbench.launch import Launch
from workbench.lens.compile import compile
from workbench.runtime import interpret

pytestmark = pytest.mark.usefixtures("pretended")

SMALL = (16, 32, 16)
BATCHES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3)]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

WAYS: dict[str, dict[str, Any]] = {
    "one program a tile": {},
    "K split": {"splits": 3},
    "K split, more than there are tiles": {"splits": 50},
    "K split, atomic": {"splits": 3, "atomic": True},
    "row by row": {"launch_order": "by_rows"},
    "back and forth": {"launch_order": "snake", "group": 2},
    "persistent": {"template": "persistent", "programs": 3},
    "persistent, K split": {"template": "persistent", "programs": 3, "splits": 2, "flatten": False},
    "Stream-K": {"template": "stream-k", "programs": 3},
    "Stream-K, more programs than tiles": {"template": "stream-k", "programs": 29},
    "Stream-K by descriptors": {"template": "stream-k", "programs": 5, "descriptors": True},
    "by descriptors": {"descriptors": True},
    "by descriptors, persistent": {"descriptors": True, "template": "persistent", "programs": 3},
    "by descriptors, K split": {"descriptors": True, "splits": 3},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def product(*args: Any, **options: Any) -> torch.Tensor:
    return gemm.launch(*args, **{"tile": SMALL, **options}).run()[0]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_product_is_exact(data: st.DataObject) -> None:
    """Results of integers are exact in any order of summation; guards surround the output."""
    m, n, k = (data.draw(st.sampled_from([1, 2, 15, 16, 17, 33, 50]), label=name) for name in "mnk")
    batch: tuple[int, ...] = data.draw(st.sampled_from(BATCHES), label="batch")
    dtype = data.draw(st.sampled_from([*FLOATS, torch.int8]), label="dtype")
    layouts = [
        data.draw(st.sampled_from(["dense", "transposed", "sliced"]), label="layout") for _ in range(2)
    ]
    a, b = whole(*batch, m, k, dtype=dtype), whole(*batch, k, n, dtype=dtype, seed=1)
    is_broadcast: bool = data.draw(st.booleans(), label="broadcast")
    if batch and is_broadcast:
        a = a[:1].expand_as(a)
    a, b = (t if 0 in t.stride() else laid(t, layout) for t, layout in zip((a, b), layouts, strict=True))
    way = data.draw(st.sampled_from(list(WAYS.values())), label="way")
    tiles = [(16, 16, 16), (32, 16, 32), SMALL]
    if way.get("template") != "stream-k":
        tiles.append((16, 192, 16))  # two parts, of 128 and 64 columns
    tile = data.draw(st.sampled_from(tiles), label="tile")
    want = a.double() @ b.double()
    result = {torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32)
    output, memory = guarded((*batch, m, n), result)
    gemm.launch(a, b, output=output, tile=tile, **way).run()
    assert torch.equal(output.double(), want)
    assert_untouched(memory, output)


@ways
@pytest.mark.parametrize(
    ("shape", "dtype"),
    some_of([*itertools.product([(64, 64, 64), (50, 70, 90), (1, 40, 200), (40, 1, 17)], FLOATS)], 6),
    ids=str,
)
def test_products_are_as_accurate_as_torch(
    shape: tuple[int, int, int], dtype: torch.dtype, way: dict[str, Any]
) -> None:
    m, n, k = shape
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype, seed=1)
    assert_as_accurate_as_torch(product(a, b, **way), a @ b, a.double() @ b.double())


@pytest.mark.parametrize("dtype", gemm.FP8, ids=str)
@pytest.mark.parametrize("other", gemm.FP8, ids=str)
def test_fp8_products_are_rounded_to_bf16(dtype: torch.dtype, other: torch.dtype) -> None:
    a, b = whole(33, 47).to(dtype), whole(47, 21, seed=1).to(other)
    got = product(a, b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (a.double() @ b.double()).bfloat16())


@ways
def test_products_over_empty_k_are_zero(way: dict[str, Any]) -> None:
    a, b = torch.empty(20, 0), torch.empty(0, 30)
    output = torch.full((20, 30), float("nan"))
    assert torch.equal(product(a, b, output=output, **way), torch.zeros(20, 30))


@pytest.mark.parametrize("shape", [(0, 5, 4), (5, 0, 4), (0, 0, 0)])
def test_empty_results_launch_nothing(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    one = gemm.launch(torch.ones(m, k), torch.ones(k, n))
    assert one.steps == ()
    assert one.run()[0].shape == (m, n)


@ways
def test_addends_of_any_broadcast_shape_are_added(way: dict[str, Any]) -> None:
    """The output's batch has permuted strides."""
    a, b = whole(2, 3, 20, 40), whole(3, 40, 30, seed=1)
    for shape in some_of([(2, 3, 20, 30), (3, 1, 30), (30,), (20, 1), ()], 3):
        addend = whole(*shape, seed=2)
        output = torch.empty(3, 2, 20, 30).transpose(0, 1)
        got = product(a, b, output=output, addend=addend, alpha=2, beta=0.5, **way)
        assert got is output
        assert torch.equal(got, 2 * (a @ b) + 0.5 * addend)


def test_results_are_the_same_bits_in_any_order_of_programs() -> None:
    a, b = numbers(50, 200), numbers(200, 40, seed=1)
    seed = random.randrange(2**32)
    for splits in (1, 4):
        one = gemm.launch(a, b, tile=SMALL, splits=splits)
        assert all(step.programs > 1 for step in one.steps)
        (want,) = one.run()
        (got,) = interpret(one, poison=True, seed=seed).outputs
        assert torch.equal(got, want), f"shuffled by seed {seed}"


def test_an_atomic_product_starts_from_zero_each_time() -> None:
    a, b = whole(20, 64), whole(64, 30, seed=1)
    one = gemm.launch(a, b, tile=SMALL, splits=4, atomic=True)
    for _ in range(2):
        assert torch.equal(one.run()[0], a @ b)


@triton.jit
def numbers_kernel(output_pointer, rows, cols, ORDER: tl.constexpr, GROUP: tl.constexpr):
    """Store the number of each program at the tile that it would compute."""
    number = tl.program_id(0)
    row, col = ORDER(number, rows, cols, GROUP)
    tl.store(output_pointer + row * cols + col, number)


@pytest.mark.parametrize("name", order.ORDERS)
@pytest.mark.parametrize(("rows", "cols", "group"), [(1, 1, 1), (4, 3, 2), (5, 4, 2), (7, 3, 8), (3, 7, 1)])
def test_each_launch_order_visits_each_tile_once(name: str, rows: int, cols: int, group: int) -> None:
    visited = torch.full((rows, cols), -1, dtype=torch.int32)
    Launch.of(
        numbers_kernel, (rows * cols,), visited, rows, cols, outputs=visited,
        ORDER=order.ORDERS[name], GROUP=group,
    ).run()  # fmt: skip
    assert visited.flatten().sort().values.tolist() == list(range(rows * cols))
    neighbors = visited.flatten().argsort()
    steps = [(i // cols, i % cols) for i in neighbors.tolist()]
    if name == "by_rows":
        assert steps == sorted(steps)
    else:  # a group is left only after all its tiles were visited
        assert [row // group for row, _ in steps] == sorted(row // group for row, _ in steps)
    if name == "snake":  # and the next group begins in the column of tiles where the last one ended
        for (row, col), (after, beside) in itertools.pairwise(steps):
            assert row // group == after // group or col == beside


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("size", "bits"), [(1024, 128), (1000, 128), (996, 64), (999, 16)])
def test_accesses_are_as_wide_as_strides_allow(size: int, bits: int, layout: str) -> None:
    """Triton finds only whether 16 divides an integer; a constant says that 8 divides 1000."""
    a, b = (torch.empty(size, size, dtype=torch.float16) for _ in range(2))
    if layout == "tt":
        a, b = a.t(), b.t()
    (step,) = compile(gemm.launch(a, b, tile=(64, 64, 32)), "sm_90")
    assert not step.problem
    assert step.spills == 0
    kinds = ("asynchronous copy", "global load")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {bits}
    assert any(each.kind == "matrix" for each in step.instructions)


def test_accesses_of_batches_have_128_bits_if_8_divides_the_strides() -> None:
    """Matrices of the batch have 9 x 72 elements, which 8 divides and 16 does not."""
    a, b = torch.empty(3, 9, 72, dtype=torch.float16), torch.empty(3, 72, 72, dtype=torch.float16)
    output = torch.empty(3, 9, 72, dtype=torch.float16)
    (step,) = compile(gemm.launch(a, b, output=output, tile=(16, 32, 32), num_warps=1), "sm_90")
    kinds = ("asynchronous copy", "global load", "global store")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {128}


@pytest.mark.parametrize(
    ("matrix", "is_taken"),
    [
        (torch.empty(24, 40, dtype=torch.float16), True),
        (torch.empty(24, 40, dtype=torch.float16).t(), True),
        (torch.empty(24, 64, dtype=torch.float16)[:, :40], True),
        (torch.empty(24, 41, dtype=torch.float16), False),  # rows begin at multiples of 2 bytes
        (torch.empty(24, 41, dtype=torch.float16)[:, 1:], False),
        (torch.empty(24, 48, dtype=torch.float16)[:, 1:41], False),  # the address is a multiple of 2
        (torch.empty(24, 80, dtype=torch.float16)[:, ::2], False),
        (torch.empty(1, 40, dtype=torch.float16).expand(24, 40), False),
    ],
)
def test_descriptors_take_aligned_matrices_with_contiguous_rows_or_columns(
    matrix: torch.Tensor, is_taken: bool
) -> None:
    """Matrices without a descriptor are loaded by pointers, with the same result."""
    assert (gemm.descriptor_of(matrix, (16, 16)) is not None) == is_taken
    a, b = whole(*matrix.shape, dtype=torch.float16), whole(matrix.shape[1], 16, dtype=torch.float16, seed=1)
    if 0 not in matrix.stride():
        a = matrix.copy_(a)
    one = gemm.launch(a, b, tile=SMALL, descriptors=True)
    assert torch.equal(one.run()[0].double(), a.double() @ b.double())


@pytest.mark.parametrize(
    ("target", "tile", "warps"),
    [("sm_80", (64, 192, 32), 4), ("sm_90", (128, 192, 64), 8), ("gfx942", (64, 192, 64), 4)],
)
def test_tiles_of_two_parts_load_a_once(target: str, tile: Sequence[int], warps: int) -> None:
    """A tile of 192 columns has two products per step, of 128 and 64 columns, and one load of A."""
    a, b = (torch.empty(3072, 3072, dtype=torch.float16) for _ in range(2))
    one = gemm.launch(a, b, tile=tile, splits=1, num_warps=warps, num_stages=3, descriptors=target == "sm_90")
    (step,) = compile(one, target)
    assert step.spills == 0
    assert any(each.kind == "matrix" for each in step.instructions)
    text = step.stages["ttir"]
    assert text.count("tt.dot") == 2
    assert text.count("tt.descriptor_load" if target == "sm_90" else "tt.load") == 3


@pytest.mark.parametrize("template", ["simple", "persistent"])
@pytest.mark.parametrize("tile", [(128, 256, 64), (128, 192, 64)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_wgmma_products_are_not_serialized(layout: str, tile: Sequence[int], template: str) -> None:
    """ptxas issues the four products of a step along K without a wait between them (else: C7510 to C7515)."""
    size = 4096
    a, b = (torch.empty(size, size, dtype=torch.float16) for _ in range(2))
    a, b = (t.t() if letter == "t" else t for t, letter in zip((a, b), layout, strict=True))
    one = gemm.launch(
        a, b, tile=tile, splits=1, num_warps=8, num_stages=3, descriptors=True, template=template,
        compute_units=132,
    )  # fmt: skip
    (step,) = compile(one, "sm_90")
    issued = re.findall(r"HGMMA|WARPGROUP\.DEPBAR", step.stages["sass"])
    products, waits = issued.count("HGMMA"), issued.count("WARPGROUP.DEPBAR")
    assert products in (4, 8)  # for tiles of one part or two
    assert waits < products


def test_steps_that_overlap_wait_before_they_touch_memory() -> None:
    """Accesses before the wait are not ordered after the previous step."""
    a, b = (torch.empty(1000, 1000, dtype=torch.float16) for _ in range(2))
    one = gemm.launch(a, b, tile=(64, 64, 64), splits=2, pack=True, descriptors=True, compute_units=132)
    steps = tuple([replace(step, meta={**step.meta, "OVERLAP": True}) for step in one.steps])
    assert len(steps) == 3
    for step in compile(replace(one, steps=steps), "sm_90"):
        assert_waits_before_memory(step.stages["ptx"])


def test_steps_that_overlap_can_be_interpreted() -> None:
    """Launches made for Hopper may be interpreted: their steps run one after the other."""
    a, b = whole(33, 40, dtype=torch.float16), whole(40, 17, dtype=torch.float16, seed=1)
    one = gemm.launch(a, b, tile=SMALL, splits=2, pack=True)
    steps = tuple(
        [
            replace(step, meta={**step.meta, "OVERLAP": True} | ({"launch_pdl": True} if i else {}))
            for i, step in enumerate(one.steps)
        ]
    )
    assert len(steps) == 3
    (result,) = interpret(replace(one, steps=steps)).outputs
    assert torch.equal(result.double(), a.double() @ b.double())


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_range_of_rows_and_the_rest_make_the_product(data: st.DataObject) -> None:
    """Rows outside the range are not written; with `rest`, all rows are computed."""
    m, n, k = (data.draw(st.sampled_from([2, 17, 33, 64]), label=name) for name in "mnk")
    layout = data.draw(st.sampled_from(["dense", "transposed"]), label="layout of a")
    end = data.draw(st.integers(1, m - 1), label="end")
    first = data.draw(st.integers(0, end - 1), label="first")
    descriptors = data.draw(st.booleans(), label="descriptors")
    a, b = laid(whole(m, k, dtype=torch.float16), layout), whole(k, n, dtype=torch.float16, seed=1)
    want = (a.double() @ b.double()).float()
    output = torch.full((m, n), float("nan"))
    some = gemm.launch(a, b, output=output, tile=SMALL, rows=(first, end), descriptors=descriptors)
    assert some.work is not None
    assert some.work.flops == 2 * (end - first) * n * k
    some.run()
    assert torch.equal(output[first:end], want[first:end])
    assert output[:first].isnan().all()
    assert output[end:].isnan().all()
    addend = whole(n, seed=2)
    pack: list[bool | tuple[str, ...]] = [False, True, ("a",), ("b",)]
    one = gemm.launch(
        a, b, output=output, addend=addend, alpha=2.0, tile=SMALL, rows=(0, end), rest={"tile": (32, 16, 32)},
        descriptors=descriptors, pack=data.draw(st.sampled_from(pack), label="pack"),
    )  # fmt: skip
    assert torch.equal(one.run()[0], 2 * want + addend)
    assert one.work == gemm.launch(a, b, output=output, addend=addend, alpha=2.0, tile=SMALL).work


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_packed_products_are_exact(data: st.DataObject) -> None:
    """Rows of packed operands begin at cache lines; operands not of 16 bits are contiguous along K."""
    m, n, k = (data.draw(st.sampled_from([1, 17, 33, 64]), label=name) for name in "mnk")
    dtype = data.draw(st.sampled_from([torch.float16, torch.float32, torch.int8]), label="dtype")
    layouts = [
        data.draw(st.sampled_from(["dense", "transposed", "sliced"]), label="layout") for _ in range(2)
    ]
    dense = (whole(m, k, dtype=dtype), whole(k, n, dtype=dtype, seed=1))
    a, b = (laid(t, layout) for t, layout in zip(dense, layouts, strict=True))
    one = gemm.launch(a, b, tile=SMALL, pack=True, descriptors=True)
    copies = gemm.packed(a, b)
    for copy in copies.values():
        assert max(copy.stride()) * copy.element_size() % 128 == 0
    if dtype != torch.float16:
        assert copies.get("a", a).stride(1) == copies.get("b", b).stride(0) == 1
    assert torch.equal(one.run()[0].double(), a.double() @ b.double())
    assert one.work == gemm.launch(a, b, tile=SMALL).work


def test_aligned_operands_are_not_packed() -> None:
    a, b = torch.empty(64, 64, dtype=torch.float16), torch.empty(64, 128, dtype=torch.float16)
    assert not gemm.packed(a, b)
    assert [*gemm.packed(a, b.t().contiguous().t())] == []
    assert [*gemm.packed(a[:, 1:], b[1:])] == []
    assert [*gemm.packed(a.float(), b.float())] == ["b"]
    assert len(gemm.launch(a, b, pack=True, splits=1).steps) == 1


def test_packing_moves_16_bytes_at_once() -> None:
    a = torch.empty(1000, 1000, dtype=torch.float16)
    for matrix in (a, a.t()):
        step, _ = compile(gemm.launch(matrix, matrix, pack=True, splits=1, tile=(64, 64, 64)), "sm_90")
        assert step.spills == 0
        moved = [each.bits for each in step.instructions if each.kind in ("global load", "global store")]
        assert set(moved) == {128}


def test_descriptors_become_bulk_copies() -> None:
    a, b = (torch.empty(1000, 1000, dtype=torch.float16) for _ in range(2))
    one = gemm.launch(a, b, num_warps=8, descriptors=True, template="persistent", programs=132)
    (step,) = compile(one, "sm_90")
    assert step.spills == 0
    assert not any(each.kind in ("global load", "global store") for each in step.instructions)
    assert "cp.async.bulk.tensor.2d" in step.stages["ptx"]
    assert any(each.kind == "matrix" for each in step.instructions)


A, B = whole(8, 4), whole(4, 6)
COMPLEX = torch.empty(8, 6, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("args", "options", "error", "says"),
    [
        ((A, A), {}, TensorMismatchError, "4 and 8 along K"),
        ((A, B.half()), {}, TensorMismatchError, "float32, b is torch.float16"),
        ((A.int(), B.int()), {}, TensorMismatchError, "int32; supported"),
        ((A[0], B), {}, TensorMismatchError, "1 dimensions"),
        ((A.expand(2, 8, 4), B.expand(3, 4, 6)), {}, TensorMismatchError, "do not broadcast"),
        (([[1]], B), {}, ArgumentTypeError, "a: got"),
        ((A, B), {"output": torch.empty(8, 5)}, TensorMismatchError, r"output: shape \(8, 5\)"),
        ((A, B), {"output": torch.empty(8, 6).long()}, TensorMismatchError, "int64 for operands of"),
        ((A, B), {"output": torch.empty(1, 6).expand(8, 6)}, TensorMismatchError, "each element in its own"),
        ((A, B), {"output": torch.empty(8, 6).to_sparse()}, TensorMismatchError, "sparse_coo"),
        ((A, B), {"output": COMPLEX.conj().imag}, TensorMismatchError, "negates"),
        ((A, B), {"tile": (16, 16)}, InvalidArgumentError, "tile: got"),
        ((A, B), {"tile": (16, 16, 8)}, InvalidArgumentError, r"tile\[2\]: got 8"),
        ((A, B), {"tile": (48, 16, 16)}, InvalidArgumentError, r"tile\[0\]"),
        ((A, B), {"tile": (16, 40, 16)}, InvalidArgumentError, r"tile\[1\]: got 40"),
        ((A, B), {"rows": (0, 9)}, InvalidArgumentError, r"rows: got \(0, 9\)\. .* end <= 8"),
        ((A[None], B), {"rows": (0, 4)}, InvalidArgumentError, r"rows: .* of shape \(1, 8, 6\), a batch"),
        ((A, B), {"rows": (0, 4), "splits": 2}, InvalidArgumentError, "rows: .* with splits=2"),
        ((A, B), {"rows": 3}, ArgumentTypeError, "rows: got 3"),
        (
            (A, B),
            {"rows": (0, 1), "template": "persistent"},
            InvalidArgumentError,
            "rows: .* template persistent",
        ),
        ((A, B), {"rest": {"tile": (16, 16, 16)}}, InvalidArgumentError, "rest: .*before row 8"),
        ((A, B), {"rows": (0, 1), "rest": [1]}, ArgumentTypeError, "rest: got"),
        ((A, B), {"rows": (0, 1), "rest": {"tiles": (16, 16, 16)}}, UnknownNameError, "rest"),
        ((A, B), {"rows": (0, 1), "rest": {"pack": True}}, UnknownNameError, "rest"),
        ((A, B), {"pack": ["c"]}, UnknownNameError, "pack"),
        ((A, B), {"pack": 3}, ArgumentTypeError, "pack: got"),
        ((A, B), {"tile": (16, 96, 16)}, InvalidArgumentError, r"tile\[1\]: got 96"),
        ((A, B), {"splits": 0}, InvalidArgumentError, "splits"),
        ((A, B), {"tile": (16, 192, 16), "template": "stream-k"}, InvalidArgumentError, "tile: got"),
        ((A[None], B), {"pack": True}, InvalidArgumentError, "pack: got True for a batch"),
        ((A, B), {"programs": 3}, InvalidArgumentError, "programs: got 3"),
        ((A, B), {"template": "stream-k", "splits": 2}, InvalidArgumentError, "splits by itself"),
        ((A, B), {"template": "streamed"}, UnknownNameError, "stream-k"),
        ((A, B), {"group": 0}, InvalidArgumentError, "group"),
        ((A, B), {"group": 2**31}, InvalidArgumentError, "group: got 2,147,483,648"),
        ((A, B), {"tile": (2048, 1024, 16)}, InvalidArgumentError, r"tile: got \(2048, 1024, 16\)"),
        ((A, B), {"launch_order": "spiral"}, UnknownNameError, "grouped"),
        ((A, B), {"precision": "tf64"}, UnknownNameError, "tf32"),
        ((A, B), {"alpha": 2}, InvalidArgumentError, "without an addend"),
        ((A, B), {"addend": torch.ones(7)}, TensorMismatchError, r"broadcasts to \(8, 6\)"),
        ((A, B), {"addend": A, "beta": "1"}, ArgumentTypeError, "beta"),
    ],
)
def test_invalid_arguments_are_refused(
    args: Sequence[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        gemm.launch(*args, **options)


def test_packing_far_rows_takes_64_bit_offsets() -> None:
    """Rows are 2**21 elements apart, so offsets of 1,000 rows need 64 bits, those of 2 rows do not."""
    for shape, is_wide in (((1000, 2), True), ((2, 1000), False)):
        matrix = torch.empty_strided(shape, (2**21, 1), device="meta")
        step = packing.pack_step({"a": matrix}, {"a": torch.empty(shape, device="meta")})
        assert step.meta["WIDE"] is is_wide


def test_misspelled_option_is_named() -> None:
    a = torch.ones(16, 16)
    with pytest.raises(ArgumentTypeError, match=r"tiles: launch has no such argument\. Its options are tile"):
        gemm.launch(a, a, tiles=(16, 16, 16))  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="warps: launch has no such argument"):
        softmax.launch("softmax", a, warps=4)  # type: ignore[call-arg]


def test_default_tiles_of_wide_operands_have_8192_elements_at_most() -> None:
    for itemsize, elements in ((2, 128 * 256), (4, gemm.MOST_WITHOUT_UNITS), (8, gemm.MOST_WITHOUT_UNITS)):
        rows, cols, _ = gemm.default_tile(8192, 8192, 1, itemsize, 132)
        assert rows * cols == elements
