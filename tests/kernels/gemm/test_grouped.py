"""Grouped products agree with a loop of products for any division, and only kernels read the offsets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.kernels.gemm.test_gemm import FLOATS
from tests.kernels.inputs import laid, numbers, whole
from tests.kernels.results import assert_as_accurate_as_torch, assert_untouched, guarded
from workbench import ops
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import reference
from workbench.kernels.gemm import grouped as grouped_gemm
from workbench.launch import Work
from workbench.lens.compile import CompiledStep, compile
from workbench.lens.trace import trace
from workbench.runtime import interpret

pytestmark = pytest.mark.usefixtures("pretended")

SMALL = (16, 32, 16)
# Name and number of the dimension (of m, n, k) that is divided into groups.
AXES = {"m": 0, "n": 1, "k": 2}
axes = pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
UNEVEN = (0, 1, 40, 0, 17, 3)


def ends_of(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([*accumulate(lengths)], dtype=torch.int32)


def shapes(axis: int, groups: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes of a, b and the output; `sizes` has the total of all groups for the divided size."""
    m, n, k = sizes
    each = [groups]
    return [
        tuple(([] if axis in axes_of_it else each) + [*size])
        for axes_of_it, size in (((0, 2), (m, k)), ((1, 2), (k, n)), ((0, 1), (m, n)))
    ]


def operands(
    axis: int,
    lengths: Sequence[int],
    others: Sequence[int],
    *,
    left: int = 0,
    make: Any = whole,
    **options: Any,
) -> list[torch.Tensor]:
    """Return a, b and offsets.

    Args:
        others: the two sizes that are not divided.
        left: the number of rows or columns after the last group.
        make: a function of a shape and `options` that returns a tensor.
    """
    sizes = [*others]
    sizes.insert(axis, sum(lengths) + left)
    of_a, of_b, _ = shapes(axis, len(lengths), sizes)
    return [make(*of_a, **options), make(*of_b, seed=1, **options), ends_of(lengths)]


def loop(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return reference.grouped_mm(a.double(), b.double(), offs=offs)


def product(*args: Any, **options: Any) -> torch.Tensor:
    return grouped_gemm.launch(*args, **{"tile": SMALL, **options}).run()[0]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_division_into_groups_is_exact(data: st.DataObject) -> None:
    """Results of integers are exact in any order of summation; guards surround the output."""
    axis = data.draw(st.sampled_from(list(AXES.values())), label="axis")
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 40]), max_size=5), label="lengths")
    left = data.draw(st.sampled_from([0, 1, 20, -sum(lengths) % 32]), label="left")
    others = [data.draw(st.sampled_from([1, 2, 15, 16, 33, 50]), label="size") for _ in range(2)]
    dtype = data.draw(st.sampled_from(FLOATS), label="dtype")
    a, b, offs = operands(axis, lengths, others, left=left, dtype=dtype)
    layouts = [
        data.draw(st.sampled_from(["dense", "transposed", "sliced"]), label="layout") for _ in range(2)
    ]
    a, b = (laid(t, layout) for t, layout in zip((a, b), layouts, strict=True))
    is_strided: bool = data.draw(st.booleans(), label="offsets in every second place")
    if is_strided:
        offs = torch.stack([offs, offs + 1], 1)[:, 0]
    want = loop(a, b, offs)
    output, memory = guarded(want.shape, torch.float64 if dtype == torch.float64 else torch.float32)
    tile = data.draw(st.sampled_from([(16, 16, 16), (32, 16, 32), SMALL]), label="tile")
    programs = data.draw(st.sampled_from([None, 1, 3]), label="programs")
    grouped_gemm.launch(a, b, offs, output=output, tile=tile, programs=programs).run()
    assert torch.equal(output.double(), want)
    assert_untouched(memory, output)


@axes
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_grouped_products_are_as_accurate_as_torch(axis: int, dtype: torch.dtype) -> None:
    a, b, offs = operands(axis, (60, 0, 1, 130), (50, 70), make=numbers, dtype=dtype)
    got, torchs = grouped_gemm.launch(a, b, offs).run()[0], reference.grouped_mm(a, b, offs=offs)
    assert_as_accurate_as_torch(got, torchs, loop(a, b, offs))


@axes
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0), (33,), (0, 33), (33, 0), (1,) * 20], ids=str)
def test_empty_groups_agree_with_a_loop_of_products(axis: int, lengths: tuple[int, ...]) -> None:
    """Cases: no group, empty groups alone, empty groups before and after others, many groups in a tile."""
    for left in (0, 5):
        a, b, offs = operands(axis, lengths, (20, 18), left=left)
        want = loop(a, b, offs).float()
        got = product(a, b, offs, output=torch.full_like(want, float("nan")))
        assert torch.equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_products_over_empty_k_are_zero(axis: int) -> None:
    a, b, offs = operands(axis, UNEVEN, (20, 0))
    output = torch.full((61, 20) if axis == 0 else (20, 61), float("nan"))
    assert torch.equal(product(a, b, offs, output=output), torch.zeros_like(output))


def test_empty_results_launch_nothing() -> None:
    for axis in (0, 1):
        one = grouped_gemm.launch(*operands(axis, (0, 0), (5, 4)))
        assert one.steps == ()
        assert one.run()[0].numel() == 0


@axes
def test_nothing_behind_the_last_group_is_read(axis: int) -> None:
    a, b, offs = operands(axis, UNEVEN, (20, 30), left=25)
    want = loop(a, b, offs).float()
    for tensor, of_it in ((a, (0, None, 1)), (b, (None, 1, 0))):
        if (dim := of_it[axis]) is not None:
            tensor.narrow(dim, 61, 25).fill_(float("nan"))
    assert torch.equal(product(a, b, offs, output=torch.full_like(want, float("nan"))), want)


@axes
def test_a_group_does_not_see_its_neighbors(axis: int) -> None:
    """NaN and infinity in neighboring groups, whose tiles lie beside its own, do not reach a group."""
    a, b, offs = operands(axis, (20, 9, 21), (18, 35))
    others = [slice(0, 20), slice(29, 50)]
    for tensor, of_it in ((a, (0, None, 1)), (b, (None, 1, 0))):
        for group, part in zip((0, 2), others, strict=True):
            if tensor.dim() == 3:
                tensor[group] = float("nan")
            elif of_it[axis] is not None:
                tensor.transpose(0, of_it[axis] or 0)[part] = float("inf")
    got, want = product(a, b, offs), loop(a, b, offs).float()
    mine = [(slice(20, 29),), (slice(None), slice(20, 29)), (1,)][axis]
    assert want[mine].isfinite().all()
    assert torch.equal(got[mine], want[mine])


@axes
def test_offsets_are_read_by_the_kernel_alone(axis: int) -> None:
    """A launch computes any division of the same total, after its offsets were overwritten."""
    a, b, offs = operands(axis, UNEVEN, (20, 30))
    one = grouped_gemm.launch(a, b, offs, tile=SMALL)
    for lengths in (UNEVEN, (61, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 61), (10, 10, 10, 10, 10, 11), (1,) * 6):
        offs.copy_(ends_of(lengths))
        assert torch.equal(one.run()[0], loop(a, b, offs).float())


@axes
@pytest.mark.parametrize("ends", [(50, 10, 61), (-5, 200, 61), (2**31 - 1, -(2**31), 7)], ids=str)
def test_invalid_offsets_write_nothing_outside_the_output(axis: int, ends: tuple[int, ...]) -> None:
    a, b, _ = operands(axis, (20, 20, 21), (20, 30))
    memory = torch.full((3, 80, 80), -77.0)
    output = (memory[:, 1:21, 1:31], memory[0, 1:21, 1:62], memory[0, 1:62, 1:21])[2 - axis]
    product(a, b, torch.tensor(ends, dtype=torch.int32), output=output)  # the interpreter checks each access
    output.fill_(-77)
    assert (memory == -77).all()


@axes
def test_results_are_the_same_bits_in_any_order_of_programs(axis: int) -> None:
    seed = random.randrange(2**32)
    for programs in (None, 4):
        one = grouped_gemm.launch(
            *operands(axis, UNEVEN, (40, 70), make=numbers), tile=SMALL, programs=programs
        )
        (want,) = one.run()
        (got,) = interpret(one, poison=True, seed=seed).outputs
        assert torch.equal(got, want), f"shuffled by seed {seed}"


@axes
def test_far_groups_take_64_bit_offsets(axis: int) -> None:
    """There is one group or row, so its stride of 2**31 touches no memory."""
    far = 2**31
    a, b, offs = operands(axis, (20,), (1, 30) if axis else (30, 40))
    if axis:
        a = a.as_strided(a.shape, (far, 1) if a.dim() == 2 else (far, far, 1))
    else:
        b = b.as_strided(b.shape, (far, *b.stride()[1:]))
    one = grouped_gemm.launch(a, b, offs, tile=SMALL)
    assert one.steps[0].meta["WIDE"]
    assert torch.equal(one.run()[0], loop(a, b, offs).float())
    assert not compile(one, "sm_90")[0].problem


@given(
    lengths=st.lists(st.integers(0, 300), max_size=20),
    left=st.integers(0, 300),
    axis=st.sampled_from(list(AXES.values())),
)
def test_there_are_programs_for_all_tiles(lengths: list[int], left: int, axis: int) -> None:
    """Each group, and what lies after the last group, adds at most one row (or column) of tiles."""
    tile = (16, 32, 16)
    one = grouped_gemm.launch(*operands(axis, lengths, (40, 70), left=left, make=torch_empty), tile=tile)
    others = [triton.cdiv(size, length) for size, length in zip((40, 70), tile, strict=False)]
    if axis == 2:
        tiles, most = len(lengths) * others[0] * others[1], 0
    else:
        beside = triton.cdiv(40, tile[1 - axis])
        tiles = sum(triton.cdiv(length, tile[axis]) for length in (*lengths, left)) * beside
        most = (len(lengths) + 1) * beside
    started = sum(step.programs for step in one.steps)
    assert tiles <= started <= tiles + most


@axes
def test_each_tile_is_stored_once(axis: int) -> None:
    one = grouped_gemm.launch(*operands(axis, UNEVEN, (40, 40), left=20), tile=(16, 16, 16))
    rows, cols = 3, 3
    if axis != 2:
        rows = sum(triton.cdiv(length, 16) for length in (*UNEVEN, 20))
    (step,) = trace(one)
    stores = step.traffic("output_pointer", "store").accesses
    assert stores == rows * cols * (len(UNEVEN) if axis == 2 else 1)
    assert (step.counts("output_pointer", "store") == 1).all()


def test_meta_parameters_do_not_depend_on_the_number_of_rows() -> None:
    """The number of rows changes with each batch of a mixture of experts, and should compile nothing."""
    b = torch.empty(4, 72, 136, dtype=torch.bfloat16)
    metas = [
        grouped_gemm.launch(torch.empty(rows, 72, dtype=b.dtype), b, ends_of((1, 2, 3, 4))).steps[0].meta
        for rows in (497, 500, 512, 403)
    ]
    assert all(meta == metas[0] for meta in metas)


def torch_empty(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape)


def test_work_counts_all_groups_and_their_offsets() -> None:
    a, b, offs = operands(0, (3, 4), (5, 6), dtype=torch.float16)
    assert grouped_gemm.launch(a, b, offs).work == Work(
        2 * 7 * 5 * 6, 2 * (7 * 6 + 2 * 6 * 5 + 7 * 5) + 4 * 2
    )


def test_kept_launches_run_on_each_calls_own_tensors() -> None:
    for seed, lengths in enumerate(((5, 6), (11, 0))):
        a, b, offs = whole(11, 7, seed=seed), whole(2, 7, 9, seed=seed + 5), ends_of(lengths)
        assert torch.equal(ops.grouped_mm(a, b, offs=offs).double(), loop(a, b, offs))


# The divided dimension, and the layouts of A and B. In the first case both are contiguous along k, in the
# second A along k and B along n, in the third A along m and B along n.
LAYOUTS = {
    "m, NT": (0, ("dense", "transposed")),
    "m, NN": (0, ("dense", "dense")),
    "k, TN": (2, ("transposed", "dense")),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def compiled(layout: str, size: int, dtype: torch.dtype, **options: Any) -> CompiledStep:
    """Return the compiled step of a product with eight groups for sm_90."""
    axis, lie = LAYOUTS[layout]
    sizes = [size, size, size]
    sizes[axis] = 8 * size
    given = zip(shapes(axis, 8, sizes)[:2], lie, strict=True)
    a, b = (laid(torch.empty(shape, dtype=dtype), how) for shape, how in given)
    (step,) = compile(grouped_gemm.launch(a, b, torch.empty(8, dtype=torch.int32), **options), "sm_90")
    return step


@layouts
@pytest.mark.parametrize(("size", "bits"), [(1024, 128), (1000, 128), (996, 64), (999, 16)])
def test_accesses_are_as_wide_as_strides_allow(size: int, bits: int, layout: str) -> None:
    """Groups end anywhere, so a divisor of the divided size is not known, but those of strides are."""
    step = compiled(layout, size, torch.bfloat16, tile=(64, 64, 32))
    assert not step.problem
    assert step.spills == 0
    tiles = [each for each in step.instructions if each.kind in ("asynchronous copy", "global load")]
    offsets = {32}  # offsets are loaded one at a time
    assert {each.bits for each in tiles} - offsets == {bits}
    assert any(each.kind == "matrix" for each in step.instructions)


@layouts
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_default_tiles_spill_no_registers(dtype: torch.dtype, layout: str) -> None:
    for precision in ("ieee", "tf32") if dtype == torch.float32 else ("ieee",):
        step = compiled(layout, 1000, dtype, precision=precision)
        assert not step.problem
        assert step.spills == 0
        is_matrix = any(each.kind == "matrix" for each in step.instructions)
        assert is_matrix == (dtype != torch.float32 or precision == "tf32")


A, B, OFFS = whole(8, 4), whole(2, 4, 6), ends_of((3, 5))
NO_TENSOR: Any = [3, 8]


@pytest.mark.parametrize(
    ("args", "options", "error", "says"),
    [
        ((A, B, OFFS.long()), {}, TensorMismatchError, "offs is torch.int64, not int32"),
        ((A, B, OFFS[None]), {}, TensorMismatchError, "offs has 2 dimensions"),
        ((A, B, OFFS[:1]), {}, TensorMismatchError, "b has 2 matrices, offs 1 groups"),
        ((B.mT, A.t(), OFFS[:1]), {}, TensorMismatchError, "a has 2 matrices, offs 1 groups"),
        ((A, B, OFFS.to("meta")), {}, TensorMismatchError, "a is on cpu, offs on meta"),
        ((A, B.to("meta"), OFFS), {}, TensorMismatchError, "a is on cpu, b on meta"),
        ((A, B, NO_TENSOR), {}, ArgumentTypeError, "offs: got"),
        ((A, B[:, :3], OFFS), {}, TensorMismatchError, "4 and 3 along K"),
        ((A, A, OFFS), {}, TensorMismatchError, "4 and 8 along K"),
        ((B.mT, B, OFFS), {}, TensorMismatchError, "gemm.launch multiplies such batches"),
        ((A[0], B, OFFS), {}, TensorMismatchError, "a has 1 dimensions"),
        ((A, B.half(), OFFS), {}, TensorMismatchError, "float32, b is torch.float16"),
        ((A.int(), B.int(), OFFS), {}, TensorMismatchError, "int32; supported"),
        ((A, A.t(), torch.zeros(5000, dtype=torch.int32)), {}, TensorMismatchError, "5000 groups, more than"),
        ((A, B, OFFS), {"output": torch.empty(8, 5)}, TensorMismatchError, r"output: shape \(8, 5\)"),
        ((A, B, OFFS), {"output": torch.empty(8, 6).long()}, TensorMismatchError, "output: got torch.int64"),
        (
            (A, B, OFFS),
            {"output": torch.empty(1, 6).expand(8, 6)},
            TensorMismatchError,
            "each element in its own",
        ),
        ((A, B, OFFS), {"tile": (16, 16)}, InvalidArgumentError, "tile: got"),
        ((A, B, OFFS), {"tile": (16, 48, 16)}, InvalidArgumentError, r"tile\[1\]: got 48"),
        ((A, B, OFFS), {"tile": (16, 16, 8)}, InvalidArgumentError, r"tile\[2\]: got 8"),
        ((A, B, OFFS), {"precision": "tf64"}, UnknownNameError, "tf32"),
        ((A, B, OFFS), {"programs": 0}, InvalidArgumentError, "programs"),
    ],
)
def test_invalid_arguments_are_refused(
    args: Sequence[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        grouped_gemm.launch(*args, **options)
