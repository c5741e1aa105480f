"""Every memory access is seen, accesses outside the tensors are refused, and programs run in any order."""

from __future__ import annotations

import gc
import inspect
import itertools
import linecache
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.runtime import interpreter as triton_interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.errors import InvalidArgumentError, KernelError, OutOfBoundsError
from workbench.interpreter import Access
from workbench.launch import Launch, Step


@triton.jit
def copy_kernel(x, output, n, shift, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + i, mask=i < n)
    tl.store(output + i + shift, value, mask=i < n)


@triton.jit
def pair_kernel(x, y, offset, N: tl.constexpr):
    """Read x, write y, and add to y; `offset` may lead anywhere."""
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(y + i, value)
    tl.atomic_add(y + offset + i, value)


@triton.jit
def exchange_kernel(x, offset):
    tl.atomic_cas(x + offset, 0, 7)


@triton.jit
def scalar_kernel(x, offset):
    tl.store(x + offset, 1.0)


@triton.jit
def inner_load(pointer, offsets):
    return tl.load(pointer + offsets)


@triton.jit
def nested_kernel(x, output, offset, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, inner_load(x, offset + i))


@triton.jit
def choice_kernel(x, y, output, N: tl.constexpr):
    """Half of the lanes address one tensor, and half another."""
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(tl.where(i % 2 == 0, x + i, y + i)))


@triton.jit
def wide_load_kernel(x, output, offset):
    """Load eight bytes at a time from a tensor of bytes."""
    tl.store(output, tl.load((x + offset).to(tl.pointer_type(tl.int64))))


@triton.jit
def grid_kernel(output):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    height, depth = tl.num_programs(1), tl.num_programs(2)
    tl.store(output + (x * height + y) * depth + z, 1)


@triton.jit
def division_kernel(x, y, output, N: tl.constexpr):
    i = tl.arange(0, N)
    quotient = tl.load(x + i) / tl.load(y + i)
    tl.store(output + i, tl.exp(quotient * 1000))


@triton.jit
def descriptor_kernel(descriptor, output, row, column, M: tl.constexpr, N: tl.constexpr):
    tile = descriptor.load([row, column])
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(output + at, tile)


@triton.jit
def own_descriptor_kernel(x, output, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(output, [rows, columns], [columns, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]))


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def watch(launch: Launch, order: list[int] | None = None) -> list[Access]:
    seen: list[Access] = []
    (step,) = launch.steps
    step.run(observer=seen.append, order=order)
    return seen


def test_each_access_is_seen_with_argument_elements_and_line() -> None:
    x, y = torch.arange(8.0), torch.zeros(12)
    seen = watch(Launch.of(pair_kernel, 1, x, y, 4, 8, outputs=y))
    assert [(access.kind, access.argument, access.line) for access in seen] == [
        ("load", "x", line_of(pair_kernel, "tl.load")),
        ("store", "y", line_of(pair_kernel, "tl.store")),
        ("atomic", "y", line_of(pair_kernel, "tl.atomic_add")),
    ]
    for access, first in zip(seen, (0, 0, 4), strict=True):
        assert access.program == (0, 0, 0)
        np.testing.assert_array_equal(access.offsets, np.arange(first, first + 8))
        assert access.offsets.dtype == np.int64
        assert access.mask.all()
        assert access.mask.shape == access.offsets.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_the_bits_that_a_store_writes_are_seen(dtype: torch.dtype) -> None:
    """The bits of all lanes are seen; loads and atomics have none."""
    x, y = torch.arange(8).to(dtype), torch.zeros(12, dtype=dtype)
    launch = Launch.of(pair_kernel, 1, x, y, 4, 8, outputs=y)
    if dtype == torch.int8:  # it has no atomics
        launch = Launch.of(copy_kernel, 1, x, y, 5, 0, 8, outputs=y)
    load, store, *atomic = watch(launch)
    assert [access.stored for access in (load, *atomic)] == [None] * (1 + len(atomic))
    assert store.stored is not None
    assert store.stored.shape == store.mask.shape
    stored = torch.from_numpy(store.stored[store.mask].view(np.uint8)).view(dtype)
    assert torch.equal(stored, x[: len(stored)])


def test_the_mask_shows_the_lanes_that_touch_memory() -> None:
    """The last of three tiles is partial; a fourth program has no active lane, and still has its argument."""
    x, output = torch.arange(10.0), torch.zeros(10)
    seen = watch(Launch.of(copy_kernel, 4, x, output, 10, 0, 4, outputs=output))
    assert [int(access.mask.sum()) for access in seen] == [4, 4, 4, 4, 2, 2, 0, 0]
    assert [access.argument for access in seen] == ["x", "output"] * 4
    assert [access.program[0] for access in seen] == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(output, x)


@pytest.mark.parametrize("shift", [2**31, -(2**31), 2**40])
def test_lanes_that_are_masked_off_may_point_anywhere(shift: int) -> None:
    x, output = torch.arange(4.0), torch.zeros(4)
    Launch.of(copy_kernel, 1, x, output, 0, shift, 4, outputs=output).run()
    assert output.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("offset", "element"),
    [(1, 4), (-1, -1), (4, 4), (1000, 1000), (-(2**40), -(2**40)), (2**40, 2**40)],
    ids=["one too far", "one before", "all too far", "a little away", "far before", "far away"],
)
def test_a_store_outside_is_refused_and_not_done(offset: int, element: int) -> None:
    x, output = torch.arange(4.0), torch.full((4,), 5.0)
    launch = Launch.of(copy_kernel, 1, x, output, 4, offset, 4, outputs=output)
    with pytest.raises(OutOfBoundsError) as caught:
        launch.run()
    error = caught.value
    assert f"writes outside output: element {element} of a tensor with 4, in program (0, 0, 0)" in str(error)
    assert (error.kernel, error.file) == ("copy_kernel", __file__)
    assert error.line == line_of(copy_kernel, "tl.store")
    assert error.source is not None
    assert error.source.strip() == "tl.store(output + i + shift, value, mask=i < n)"
    assert "Mask the lanes that have no element" in str(error)
    assert output.tolist() == [5.0] * 4  # lanes within bounds are not written either


def test_accesses_beyond_a_slice_are_refused() -> None:
    """The slice's storage goes on, but the kernel was not given the elements there."""
    x, memory = torch.arange(8.0), torch.full((16,), 5.0)
    for begin, offset, element in ((0, 0, 6), (10, -2, -2), (10, 0, 6)):
        output = memory[begin : begin + 6]
        launch = Launch.of(copy_kernel, 1, x, output, 8, offset, 8, outputs=output)
        with pytest.raises(
            OutOfBoundsError, match=f"writes outside output: element {element} of a tensor with 6"
        ):
            launch.run()
    column = torch.zeros(4, 4)[:, 1]  # 13 elements from its first to its last
    Launch.of(scalar_kernel, 1, column, 12, outputs=column).run()
    with pytest.raises(OutOfBoundsError, match="outside x: element 13"):
        Launch.of(scalar_kernel, 1, column, 13, outputs=column).run()
    assert memory.tolist() == [5.0] * 16


def test_the_program_that_went_outside_is_named() -> None:
    x, output = torch.arange(16.0), torch.zeros(12)
    with pytest.raises(OutOfBoundsError, match=r"element 12 of a tensor with 12, in program \(3, 0, 0\)"):
        Launch.of(copy_kernel, 4, x, output, 16, 0, 4, outputs=output).run()
    assert output.tolist() == list(range(12))  # programs before it ran


def test_each_kind_of_access_outside_is_refused() -> None:
    x, short, y = torch.arange(8.0), torch.arange(7.0), torch.zeros(8)
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 7 of a tensor with 7"):
        Launch.of(pair_kernel, 1, short, y, 0, 8, outputs=y).run()
    with pytest.raises(OutOfBoundsError, match="updates outside y: element 8 of a tensor with 8") as caught:
        Launch.of(pair_kernel, 1, x, y, 1, 8, outputs=y).run()
    assert caught.value.line == line_of(pair_kernel, "tl.atomic_add")
    assert torch.equal(y, x)  # operations before the update are done, the update is not
    count = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(OutOfBoundsError, match="updates outside x: element 1 of a tensor with 1"):
        Launch.of(exchange_kernel, 1, count, 1, outputs=count).run()
    with pytest.raises(OutOfBoundsError, match="writes outside x: element -1 of a tensor with 8"):
        Launch.of(scalar_kernel, 1, x, -1, outputs=x).run()


def test_an_atomic_add_of_bf16_is_one_access_with_checks() -> None:
    x, y = torch.arange(8.0).bfloat16(), torch.zeros(12, dtype=torch.bfloat16)
    assert [a.kind for a in watch(Launch.of(pair_kernel, 1, x, y, 4, 8, outputs=y))] == [
        "load",
        "store",
        "atomic",
    ]
    with pytest.raises(OutOfBoundsError, match="updates outside y: element 12 of a tensor with 12"):
        Launch.of(pair_kernel, 1, x, y, 5, 8, outputs=y).run()


def test_an_access_wider_than_the_elements_is_checked_to_its_end() -> None:
    """The last int64 that begins inside the tensor ends outside it."""
    x, output = torch.arange(16, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    Launch.of(wide_load_kernel, 1, x, output, 8, outputs=output).run()
    assert output.view(torch.uint8).tolist() == list(range(8, 16))
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 9 of a tensor with 16"):
        Launch.of(wide_load_kernel, 1, x, output, 9, outputs=output).run()


def test_an_access_in_a_called_function_is_refused() -> None:
    """The line is the innermost in the kernel's file: that of the load itself."""
    x, output = torch.arange(8.0), torch.zeros(4)
    (load, _) = watch(Launch.of(nested_kernel, 1, x, output, 4, 4, outputs=output))
    assert (load.argument, load.line) == ("x", line_of(inner_load, "tl.load"))
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 8") as caught:
        Launch.of(nested_kernel, 1, x, output, 5, 4, outputs=output).run()
    assert caught.value.line == line_of(inner_load, "tl.load")


def test_lanes_may_choose_among_tensors() -> None:
    """An access whose lanes touch two tensors is reported once for each; as on a GPU, it is not an error."""
    x, y, output = torch.arange(8.0), -torch.arange(8.0), torch.zeros(8)
    seen = watch(Launch.of(choice_kernel, 1, x, y, output, 8, outputs=output))
    assert [(access.kind, access.argument) for access in seen] == [
        ("load", "x"),
        ("load", "y"),
        ("store", "output"),
    ]
    assert seen[0].mask.tolist() == [True, False] * 4
    assert seen[1].mask.tolist() == [False, True] * 4
    assert output.tolist() == [0, -1, 2, -3, 4, -5, 6, -7]
    with pytest.raises(OutOfBoundsError, match="reads outside y: element 7 of a tensor with 7"):
        Launch.of(choice_kernel, 1, x, y[:7].clone(), output, 8, outputs=output).run()


def test_an_offset_from_one_tensor_into_another_is_refused() -> None:
    """An address belongs to the argument from which it was computed, whatever other argument is there."""
    both = torch.zeros(1000)
    x, y = both[:4].clone(), both[4:8].clone()
    distance = (y.data_ptr() - x.data_ptr()) // 4
    with pytest.raises(
        OutOfBoundsError, match=f"writes outside output: element {distance} of a tensor with 4"
    ):
        Launch.of(copy_kernel, 1, y, x, 4, distance, 4, outputs=x).run()
    assert y.tolist() == [0.0] * 4


def test_one_tensor_may_be_two_arguments() -> None:
    x = torch.arange(8.0)
    seen = watch(Launch.of(copy_kernel, 1, x, x, 4, 4, 4, outputs=x))
    assert [access.argument for access in seen] == ["x", "output"]
    assert x.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_reads_of_tensors_without_elements_are_out_of_bounds_unless_masked() -> None:
    x, output = torch.empty(0), torch.empty(0)
    Launch.of(copy_kernel, 1, x, output, 0, 0, 4, outputs=output).run()
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 0 of a tensor with 0"):
        Launch.of(copy_kernel, 1, x, output, 4, 0, 4, outputs=output).run()


def test_an_address_that_no_argument_has_is_refused() -> None:
    with pytest.raises(OutOfBoundsError, match="writes an address that none of its arguments has"):
        Launch.of(address_kernel, 1, 4096, outputs=()).run()


@triton.jit
def address_kernel(address):
    tl.store(address.to(tl.int64).to(tl.pointer_type(tl.float32), bitcast=True), 1.0)


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(lambda both: (both[:8], both[8:16]), id="one after the other"),
        pytest.param(lambda both: (both[:16:2], both[1:16:2]), id="interleaved"),
        pytest.param(lambda both: (both[8:], both), id="one inside the other"),
    ],
)
def test_views_of_one_memory_are_told_apart(views: Any) -> None:
    """Queries and keys of a packed projection are such views."""
    both = torch.zeros(24)
    x, y = views(both)
    seen = watch(Launch.of(strided_kernel, 1, x, y, x.stride(0), y.stride(0), 8, outputs=y))
    assert [(access.kind, access.argument) for access in seen] == [("load", "x"), ("store", "y")]
    for access, tensor in zip(seen, (x, y), strict=True):  # elements are counted in the view
        np.testing.assert_array_equal(access.offsets, np.arange(8) * tensor.stride(0))


@triton.jit
def strided_kernel(x, y, x_stride, y_stride, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i * y_stride, tl.load(x + i * x_stride))


@triton.jit
def tuple_kernel(tensors, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(tensors[0] + i) + tl.load(tensors[1][0] + i))


def test_tensors_inside_tuples_are_watched() -> None:
    x, y, output = torch.arange(4.0), torch.ones(4), torch.zeros(4)
    seen = watch(Launch.of(tuple_kernel, 1, (x, (y, 3)), output, 4, outputs=output))
    assert [access.argument for access in seen] == ["tensors[0]", "tensors[1]", "output"]
    assert output.tolist() == [1, 2, 3, 4]
    with pytest.raises(OutOfBoundsError, match=r"reads outside tensors\[1\]: element 3 of a tensor with 3"):
        Launch.of(tuple_kernel, 1, (x, (y[:3].clone(), 3)), output, 4, outputs=output).run()


@triton.jit
def byte_kernel(words, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(words + i))


def test_a_reinterpreted_tensor_is_watched() -> None:
    """`triton.reinterpret` wraps a tensor in an object that is not a tensor."""
    x, output = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.int8)
    launch = Launch.of(byte_kernel, 1, triton.reinterpret(x, tl.int8), output, 8, outputs=output)
    assert [access.argument for access in watch(launch)] == ["words", "output"]
    assert output.tolist() == list(range(8))


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
    offset=st.integers(0, 5),
    gap=st.integers(1, 3),
)
def test_any_view_is_read_by_its_strides(shape: list[int], order: Any, offset: int, gap: int) -> None:
    dims = list(range(len(shape)))
    order.shuffle(dims)
    whole = torch.arange(200.0)
    dense = torch.empty(shape).permute(dims)
    view = whole.as_strided(dense.shape, [step * gap for step in dense.stride()], offset)
    index = sum(np.indices(view.shape)[d].ravel() * view.stride(d) for d in range(view.dim()))
    elements, output = torch.from_numpy(np.asarray(index, dtype=np.int64)), torch.zeros(view.numel())
    launch = Launch.of(gather_kernel, 1, view, elements, output, view.numel(), 64, outputs=output)
    loads = [access for access in watch(launch) if access.argument == "view"]
    assert [access.offsets[access.mask].tolist() for access in loads] == [elements.tolist()]
    torch.testing.assert_close(output, view.flatten())


@triton.jit
def gather_kernel(view, index, output, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(view + tl.load(index + i, mask=i < n), mask=i < n), mask=i < n)


def test_descriptors_of_the_host_are_watched() -> None:
    """The descriptor itself masks elements beyond its shape."""
    x, output = torch.arange(64.0).reshape(8, 8), torch.zeros(4, 4)
    descriptor = TensorDescriptor(x, [8, 8], [8, 1], [4, 4])
    launch = Launch.of(descriptor_kernel, 1, descriptor, output, 6, 4, 4, 4, outputs=output)
    seen = watch(launch)
    assert [(access.kind, access.argument) for access in seen] == [
        ("load", "descriptor"),
        ("store", "output"),
    ]
    assert seen[0].mask.sum() == 8
    torch.testing.assert_close(output, torch.cat([x[6:, 4:], torch.zeros(2, 4)]))


def test_descriptors_made_in_the_kernel_are_watched() -> None:
    x, output = torch.arange(6 * 8.0).reshape(6, 8), torch.zeros(6, 8)
    launch = Launch.of(own_descriptor_kernel, (2, 2), x, output, 6, 8, 4, 4, outputs=output)
    seen = watch(launch)
    assert [access.argument for access in seen] == ["x", "output"] * 4
    assert torch.equal(output, x)
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 48 of a tensor with 48"):
        Launch.of(own_descriptor_kernel, (2, 2), x, output, 7, 8, 4, 4, outputs=output).run()


@pytest.mark.skipif(
    not hasattr(triton_interpreter, "BlockPointerHandle"), reason="Triton dropped block pointers in 3.9"
)
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_are_watched() -> None:
    @triton.jit
    def block_kernel(x, output, n, CHECKED: tl.constexpr, N: tl.constexpr):
        source = tl.make_block_ptr(x, (n,), (1,), (tl.program_id(0) * N,), (N,), (0,))
        value = tl.load(source, boundary_check=CHECKED)
        target = tl.make_block_ptr(output, (n,), (1,), (0,), (N,), (0,))
        tl.store(tl.advance(target, (tl.program_id(0) * N,)), value, boundary_check=(0,))

    x, output = torch.arange(6.0), torch.zeros(6)
    seen = watch(Launch.of(block_kernel, 2, x, output, 6, (0,), 4, outputs=output))
    assert [int(access.mask.sum()) for access in seen] == [4, 4, 2, 2]
    assert torch.equal(output, x)
    with pytest.raises(OutOfBoundsError, match="reads outside x: element 6 of a tensor with 6"):
        Launch.of(block_kernel, 2, x, output, 6, (), 4, outputs=output).run()


def test_division_by_zero_does_not_warn() -> None:
    """A division by zero and an overflow give infinities and NaN; numpy would warn of them."""
    x, y, output = torch.tensor([1.0, 0.0, -1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.empty(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Launch.of(division_kernel, 1, x, y, output, 4, outputs=output).run()
    torch.testing.assert_close(
        output, torch.tensor([float("inf"), float("nan"), 0.0, float("inf")]), equal_nan=True
    )
    assert np.geterr()["divide"] == "warn"


GRIDS = [(1,), (7,), (2, 3), (3, 1, 2), (1, 2, 2), (2, 2, 3)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "reversed", "shuffled"])
def test_programs_run_in_the_order_asked_for(grid: tuple[int, ...], kind: str) -> None:
    """An order counts along the first axis first, as GPUs do; Triton's interpreter along the last."""
    programs = list(itertools.product(*(range(n) for n in (*grid, 1, 1)[:3])))
    in_launch_order = sorted(programs, key=lambda program: program[::-1])
    numbers = torch.randperm(len(programs), generator=torch.Generator().manual_seed(5)).tolist()
    order = {"plain": None, "reversed": list(range(len(programs)))[::-1], "shuffled": numbers}[kind]
    output = torch.zeros(len(programs), dtype=torch.int32)
    seen = watch(Launch.of(grid_kernel, grid, output, outputs=output), order)
    assert [access.program for access in seen] == ([in_launch_order[i] for i in order] if order else programs)
    assert output.tolist() == [1] * len(programs)
    # The order applies to this run only.
    seen = watch(Launch.of(grid_kernel, grid, output, outputs=output))
    assert [access.program for access in seen] == programs


def test_some_programs_run_alone_in_the_grid_of_all() -> None:
    output = torch.zeros(12, dtype=torch.int32)
    seen = watch(Launch.of(grid_kernel, (3, 2, 2), output, outputs=output), [10, 2])
    assert [access.program for access in seen] == [(1, 1, 1), (2, 0, 0)]
    # Each program, which asks for the size of the grid, has marked its own element.
    assert output.nonzero().flatten().tolist() == [(1 * 2 + 1) * 2 + 1, (2 * 2 + 0) * 2 + 0]


@pytest.mark.parametrize("order", [[], [0, 1, 2, 3, 4], [0, 0], [0, 1, 2, -1], [4]], ids=str)
def test_invalid_orders_of_programs_are_refused(order: list[int]) -> None:
    output = torch.zeros(4, dtype=torch.int32)
    step = Step(grid_kernel, (2, 2), (output,))
    with pytest.raises(InvalidArgumentError, match=r"^order: got .*one or more .* 0 to 3, none of them"):
        step.run(order=order)
    assert output.tolist() == [0] * 4


@triton.jit
def failing_kernel(x):
    tl.static_assert(False, "as it should")


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def of_tiles(length, BLOCK: tl.constexpr):
    return tl.cdiv(length, BLOCK)


@triton.jit
def doubling_kernel(x, output, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, doubled(tl.load(x + i)) + of_tiles(n, 4))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: doubled(3), "doubled"),
        (lambda: doubled(torch.ones(4)), "doubled"),
        (lambda: of_tiles.fn(9, 4), "cdiv"),
        (lambda: copy_kernel(torch.ones(4), torch.ones(4), 4, 0, N=4), "copy_kernel"),
    ],
)
def test_a_jit_function_that_python_calls_is_refused_as_on_a_gpu(call: Callable[[], Any], name: str) -> None:
    """It is also refused after a launch, during which Triton's interpreter replaces the language."""
    for _ in range(2):
        with pytest.raises(KernelError, match=rf"^kernel {name}: a jit function, called from Python"):
            call()
        x = torch.arange(4.0)
        (output,) = Launch.of(doubling_kernel, 1, x, torch.empty(4), 9, outputs=x, N=4).steps[0].args[1:2]
        Launch.of(doubling_kernel, 1, x, output, 9, outputs=output, N=4).run()
        assert output.tolist() == [3, 5, 7, 9]


def test_a_call_of_a_jit_function_from_python_says_what_to_do() -> None:
    with pytest.raises(KernelError, match=r"Call it in a kernel, and start that"):
        doubled(3)
    with pytest.raises(KernelError, match=r"In Python, call triton\.cdiv\."):
        tl.cdiv(7, 2)
    assert triton.cdiv(7, 2) == 4
    assert doubled.fn(3) == 6  # plain arithmetic, which Python does on any machine


def test_tritons_own_launch_is_not_refused() -> None:
    x, output = torch.arange(4.0), torch.empty(4)
    doubling_kernel[(1,)](x, output, 9, N=4)
    assert output.tolist() == [3, 5, 7, 9]


@pytest.mark.parametrize("order", [None, [1, 0]])
def test_tritons_interpreter_is_restored_after_an_error(order: list[int] | None) -> None:
    plain, memory = vars(triton_interpreter.interpreter_builder).copy(), triton_interpreter._interpreter
    x = torch.zeros(2)
    for failing in (Step(failing_kernel, (2,), (x,)), Step(scalar_kernel, (2,), (x, 9))):
        with pytest.raises(KernelError):
            failing.run(order=order)
        assert triton_interpreter._interpreter is memory
        assert not {"set_grid_idx", "set_grid_dim"} & vars(triton_interpreter.interpreter_builder).keys()
    assert vars(triton_interpreter.interpreter_builder).keys() == plain.keys() | {"grid_idx", "grid_dim"}
    Launch.of(scalar_kernel, 1, x, 1, outputs=x).run()
    assert x.tolist() == [0.0, 1.0]


def language() -> dict[str, Any]:
    """Return the members of Triton's language, by name."""
    places = {"tl": tl, "core": tl.core, "math": tl.math, "tensor": tl.tensor, "dtype": tl.dtype}
    return {
        f"{place}.{name}": value
        for place, holder in places.items()
        for name, value in vars(holder).items()
        if callable(value) or isinstance(value, property)
    }


CORE_ONLY = """\
import triton
import triton.language.core as core


@triton.jit
def doubled(pointer, offsets):
    return core.load(pointer + offsets) * 2
"""


@pytest.fixture
def core_only() -> Iterator[Any]:
    """Yield a helper from a module that has `tl.core` and no `tl`."""
    file = "<a module of helpers>"
    linecache.cache[file] = (len(CORE_ONLY), None, CORE_ONLY.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {}
    exec(compile(CORE_ONLY, file, "exec"), namespace)
    yield namespace["doubled"]
    del linecache.cache[file]


@triton.jit
def calling_kernel(x, output, N: tl.constexpr, HELPER: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.sum(inner_load(x, i)) + tl.max(inner_load(x, i))
    tl.store(output + i, HELPER(x, i) + total)


@pytest.mark.parametrize("fails", [False, True], ids=["after a run", "after an error"])
def test_the_language_is_replaced_once_a_launch_and_put_back(
    core_only: Any, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each module is replaced once and put back; Triton alone would leave some of them replaced."""
    plain, replaced = triton_interpreter._patch_lang, []

    def counted(function: Any) -> Any:
        replaced.append(function.__name__)
        return plain(function)

    monkeypatch.setattr(triton_interpreter, "_patch_lang", counted)
    before = language()
    x, output = torch.arange(32.0), torch.zeros(32)
    short = x[: 20 if fails else 32].clone()
    step = Step(calling_kernel, (4,), (short, output, 8, core_only))
    if fails:
        with pytest.raises(OutOfBoundsError):
            step.run()
    else:
        step.run()
        tiles = x.reshape(4, 8)
        expected = 2 * tiles + tiles.sum(dim=1, keepdim=True) + tiles.amax(dim=1, keepdim=True)
        assert torch.equal(output, expected.flatten())
    assert replaced == ["calling_kernel", "sum"]
    assert language() == before


def test_tracing_takes_less_than_twice_the_time() -> None:
    """A kernel of loads and stores takes less than twice the time of Triton's interpreter without checks."""
    x, output = torch.arange(1024.0), torch.zeros(1024)
    step = Step(repeated_kernel, (1,), (x, output, 200, 1024))

    def seconds(run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def alone() -> None:
        step.kernel[step.grid](*step.args)

    def traced() -> None:
        seen: list[Access] = []
        step.run(observer=seen.append)

    times = [(seconds(alone), seconds(traced)) for _ in range(10)]  # in turns: the machine has other load
    plain, watched = (min(column) for column in zip(*times, strict=True))
    assert watched < 2 * plain


@triton.jit
def repeated_kernel(x, output, TIMES: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(TIMES):
        tl.store(output + i, tl.load(x + i))


class Observing:
    """An observer that can be referenced weakly."""

    def __call__(self, access: Access) -> None:
        self.last = access


def test_a_trace_is_not_kept_by_the_kernels_module(cell: dict[str, Any]) -> None:
    """Triton copies its own globals into those of a kernel that it sees for the first time."""
    observer = Observing()
    x = torch.zeros(4)
    Step(cell["kernel"], (1,), (x,)).run(observer=observer)
    assert observer.last.argument == "x"
    assert "interpreter_builder" in cell
    kept = weakref.ref(observer)
    del observer
    gc.collect()
    assert kept() is None


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    """Yield the globals of a kernel in a cell."""
    file = "<cell 3>"
    text = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(x):\n    tl.store(x, 1)\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {}
    exec(compile(text, file, "exec"), namespace)
    yield namespace
    del linecache.cache[file]


def test_an_error_of_the_observer_is_not_the_kernels() -> None:
    x = torch.zeros(2)

    def observe(access: Access) -> None:
        raise OutOfBoundsError("observer", "its own error")

    with pytest.raises(OutOfBoundsError, match="observer"):
        Step(scalar_kernel, (1,), (x, 0)).run(observer=observe)
    assert x.tolist() == [0.0, 0.0]


def test_launches_of_several_threads_do_not_mix() -> None:
    """The interpreter keeps the program's number in one place for all threads."""
    outputs = [torch.zeros(12, dtype=torch.int32) for _ in range(4)]
    seen: list[list[Access]] = [[] for _ in outputs]

    def run(output: torch.Tensor, accesses: list[Access]) -> None:
        Step(grid_kernel, (3, 2, 2), (output,)).run(observer=accesses.append)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(outputs, seen, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output, accesses in zip(outputs, seen, strict=True):
        assert output.tolist() == [1] * 12
        assert [access.program for access in accesses] == list(
            itertools.product(range(3), range(2), range(2))
        )


def test_line_of_finds_the_line_of_a_kernel_in_this_file() -> None:
    assert (
        Path(__file__)
        .read_text()
        .splitlines()[line_of(copy_kernel, "tl.store") - 1]
        .strip()
        .startswith("tl.store")
    )
