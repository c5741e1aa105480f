"""Matrix products: every way to make one gives the same answer, on any strides, batches and dtypes."""

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
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
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


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def whole(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small integers: their products and sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def laid(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    """The same matrix, lying otherwise."""
    if layout == "transposed":
        return matrix.mT.contiguous().mT
    if layout == "sliced":
        return torch.stack([matrix, matrix + 1], -1).flatten(-2)[..., ::2]
    return matrix


def product(*args: Any, **options: Any) -> torch.Tensor:
    return gemm.launch(*args, **{"tile": SMALL, **options}).run()[0]


def assert_right(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """At most twice as far from float64 as torch's own product, and one rounding of the largest value."""
    exact = a.double() @ b.double()
    torchs = a @ b
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    if got.numel() == 0:
        return
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    # Of float64 there is nothing wider to compare with: a few roundings.
    roundings = 8 if got.dtype == torch.float64 else 1
    assert off <= 2 * theirs + roundings * exact.abs().max().item() * torch.finfo(got.dtype).eps


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_product(data: st.DataObject) -> None:
    """Integers, so that each result is exact whatever the order of summation; between guards of NaN."""
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
        tiles.append((16, 192, 16))  # in two parts
    tile = data.draw(st.sampled_from(tiles), label="tile")
    want = a.double() @ b.double()
    result = {torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32)
    nothing = -77
    memory = torch.full((*batch, m + 4, n + 6), nothing, dtype=result)
    output = memory[..., 2 : m + 2, 3 : n + 3]
    gemm.launch(a, b, output=output, tile=tile, **way).run()
    assert torch.equal(output.double(), want)
    output.fill_(nothing)
    assert (memory == nothing).all()


@ways
@pytest.mark.parametrize(
    ("shape", "dtype"),
    some_of([*itertools.product([(64, 64, 64), (50, 70, 90), (1, 40, 200), (40, 1, 17)], FLOATS)], 6),
    ids=str,
)
def test_accuracy(shape: tuple[int, int, int], dtype: torch.dtype, way: dict[str, Any]) -> None:
    m, n, k = shape
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype, seed=1)
    assert_right(product(a, b, **way), a, b)


@pytest.mark.parametrize("dtype", gemm.FP8, ids=str)
@pytest.mark.parametrize("other", gemm.FP8, ids=str)
def test_fp8_goes_into_bf16(dtype: torch.dtype, other: torch.dtype) -> None:
    a, b = whole(33, 47).to(dtype), whole(47, 21, seed=1).to(other)
    got = product(a, b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (a.double() @ b.double()).bfloat16())


@ways
def test_nothing_along_k(way: dict[str, Any]) -> None:
    a, b = torch.empty(20, 0), torch.empty(0, 30)
    output = torch.full((20, 30), float("nan"))
    assert torch.equal(product(a, b, output=output, **way), torch.zeros(20, 30))


@pytest.mark.parametrize("shape", [(0, 5, 4), (5, 0, 4), (0, 0, 0)])
def test_of_no_elements_nothing_is_launched(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    one = gemm.launch(torch.ones(m, k), torch.ones(k, n))
    assert one.steps == ()
    assert one.run()[0].shape == (m, n)


@ways
def test_an_addend(way: dict[str, Any]) -> None:
    """Of each shape that broadcasts, into an output whose batch lies in another order."""
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
    """Where each program would go."""
    number = tl.program_id(0)
    row, col = ORDER(number, rows, cols, GROUP)
    tl.store(output_pointer + row * cols + col, number)


@pytest.mark.parametrize("name", order.ORDERS)
@pytest.mark.parametrize(("rows", "cols", "group"), [(1, 1, 1), (4, 3, 2), (5, 4, 2), (7, 3, 8), (3, 7, 1)])
def test_an_order_visits_each_tile_once(name: str, rows: int, cols: int, group: int) -> None:
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
    else:  # a group is left only when all of it was visited
        assert [row // group for row, _ in steps] == sorted(row // group for row, _ in steps)
    if name == "snake":  # and the next one begins where the columns' tiles were read last
        for (row, col), (after, beside) in itertools.pairwise(steps):
            assert row // group == after // group or col == beside


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("size", "bits"), [(1024, 128), (1000, 128), (996, 64), (999, 16)])
def test_accesses_are_as_wide_as_strides_allow(size: int, bits: int, layout: str) -> None:
    """Triton knows of an integer whether 16 divides it; that 8 divides 1000 reaches it as a constant."""
    a, b = (torch.empty(size, size, dtype=torch.float16) for _ in range(2))
    if layout == "tt":
        a, b = a.t(), b.t()
    (step,) = compile(gemm.launch(a, b, tile=(64, 64, 32)), "sm_90")
    assert not step.problem
    assert step.spills == 0
    kinds = ("asynchronous copy", "global load")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {bits}
    assert any(each.kind == "matrix" for each in step.instructions)


def test_accesses_are_as_wide_in_a_batch() -> None:
    """Also where 8 divides the steps from one of the batch to the next, and 16 does not: 9 x 72 elements."""
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
        (torch.empty(24, 41, dtype=torch.float16), False),  # rows begin at odd addresses
        (torch.empty(24, 41, dtype=torch.float16)[:, 1:], False),
        (torch.empty(24, 48, dtype=torch.float16)[:, 1:41], False),  # the first one does
        (torch.empty(24, 80, dtype=torch.float16)[:, ::2], False),
        (torch.empty(1, 40, dtype=torch.float16).expand(24, 40), False),
    ],
)
def test_what_descriptors_take(matrix: torch.Tensor, is_taken: bool) -> None:
    """Of what they do not, tiles are loaded by pointers, with the same result."""
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
def test_parts_side_by_side_share_what_is_loaded_of_a(target: str, tile: Sequence[int], warps: int) -> None:
    """Of 192 columns there are two products a step, of 128 and 64, and one load of A."""
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
def test_products_do_not_wait_for_one_another(layout: str, tile: Sequence[int], template: str) -> None:
    """The four of a step along K are issued in a row: ptxas has not serialized them (its C7510 to C7515)."""
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
    assert products in (4, 8)  # of one part, of two
    assert waits < products


def test_steps_that_overlap_wait_before_they_touch_memory() -> None:
    """As on Hopper: what comes before the wait is not ordered behind the step before."""
    a, b = (torch.empty(1000, 1000, dtype=torch.float16) for _ in range(2))
    one = gemm.launch(a, b, tile=(64, 64, 64), splits=2, pack=True, descriptors=True, compute_units=132)
    steps = tuple([replace(step, meta={**step.meta, "OVERLAP": True}) for step in one.steps])
    assert len(steps) == 3
    for step in compile(replace(one, steps=steps), "sm_90"):
        before, waited, behind = step.stages["ptx"].partition("griddepcontrol.wait")
        assert waited
        touches = re.compile(r"(ld|st|red|atom)\.global|cp\.async")
        assert touches.search(behind)
        assert not touches.search(before)


def test_steps_that_overlap_can_be_interpreted() -> None:
    """As those made on Hopper are where somebody looks at them: one runs behind the other."""
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
def test_rows_and_the_rest(data: st.DataObject) -> None:
    """Rows that are not asked for stay as they are; with the rest, all are made."""
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
def test_packed_first(data: st.DataObject) -> None:
    """The same result, of operands whose rows begin at lines, and beside K's only of 16 bits."""
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


def test_nothing_is_packed_that_lies_well() -> None:
    a, b = torch.empty(64, 64, dtype=torch.float16), torch.empty(64, 128, dtype=torch.float16)
    assert not gemm.packed(a, b)
    assert [*gemm.packed(a, b.t().contiguous().t())] == []
    assert [*gemm.packed(a[:, 1:], b[1:])] == []
    assert [*gemm.packed(a.float(), b.float())] == ["b"]
    assert len(gemm.launch(a, b, pack=True, splits=1).steps) == 1


def test_packing_moves_as_much_at_once_as_pitches_allow() -> None:
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
        ((A, B), {"output": torch.empty(8, 6).long()}, TensorMismatchError, "int64 of torch.float32"),
        ((A, B), {"output": torch.empty(1, 6).expand(8, 6)}, TensorMismatchError, "each element in its own"),
        ((A, B), {"tile": (16, 16)}, InvalidArgumentError, "tile: got"),
        ((A, B), {"tile": (16, 16, 8)}, InvalidArgumentError, r"tile\[2\]: got 8"),
        ((A, B), {"tile": (48, 16, 16)}, InvalidArgumentError, r"tile\[0\]"),
        ((A, B), {"tile": (16, 40, 16)}, InvalidArgumentError, r"tile\[1\]: got 40"),
        ((A, B), {"rows": (0, 9)}, InvalidArgumentError, r"rows: got \(0, 9\)"),
        ((A, B), {"rows": 3}, ArgumentTypeError, "rows: got 3"),
        ((A, B), {"rows": (0, 1), "template": "persistent"}, InvalidArgumentError, "rows: got"),
        ((A, B), {"rest": {"tile": (16, 16, 16)}}, InvalidArgumentError, "rest: got"),
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
def test_what_does_not_fit_is_refused(
    args: Sequence[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        gemm.launch(*args, **options)


def test_copies_of_matrices_that_reach_far_have_wide_offsets() -> None:
    """Rows lie 2**21 elements apart: of 1,000 rows offsets need 64 bits, of 1,000 columns they do not."""
    for shape, is_wide in (((1000, 2), True), ((2, 1000), False)):
        matrix = torch.empty_strided(shape, (2**21, 1), device="meta")
        step = packing.pack_step({"a": matrix}, {"a": torch.empty(shape, device="meta")})
        assert step.meta["WIDE"] is is_wide


def test_misspelled_option_is_named() -> None:
    a = torch.ones(16, 16)
    with pytest.raises(ArgumentTypeError, match=r"tiles: launch has no such argument\. It takes tile, "):
        gemm.launch(a, a, tiles=(16, 16, 16))  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="warps: launch has no such argument"):
        softmax.launch("softmax", a, warps=4)  # type: ignore[call-arg]
