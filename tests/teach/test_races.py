"""Races between programs are found in elements that they share, and nowhere else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
import triton
import triton.language as tl

from tests.teach.launches import found, line_of
from workbench.interpreter import Access
from workbench.launch import Launch, Step
from workbench.teach import races

if TYPE_CHECKING:
    from tests.machine import Machine


@triton.jit
def add_into_kernel(x, total, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    before = tl.load(total)
    tl.store(total, before + tl.sum(tl.load(x + i)))


def test_an_update_that_is_not_atomic_races() -> None:
    """The sum is correct in any order of the programs as long as they run one by one."""
    x, total = torch.ones(64), torch.zeros(1)
    race = found(Launch.of(add_into_kernel, 4, x, total, 16, outputs=total))
    assert total.item() == 64
    assert race is not None
    assert not race.is_harmless
    assert race.describe() == (
        "element 0 of total is written by one program and read by another.\n"
        f"  read by program 0, line {line_of(add_into_kernel, 'before =')}: before = tl.load(total)\n"
        f"  written by program 1, line {line_of(add_into_kernel, 'tl.store')}: "
        "tl.store(total, before + tl.sum(tl.load(x + i)))"
    )
    assert found(Launch.of(add_into_kernel, 1, x, total, 64, outputs=total)) is None


@triton.jit
def smooth_kernel(x, length, N: tl.constexpr):
    """Compute x[i] = x[i] + x[i + 1] in place: the last lane reads what the next program writes."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    neighbor = tl.load(x + i + 1, mask=i + 1 < length, other=0)
    tl.store(x + i, tl.load(x + i, mask=i < length) + neighbor, mask=i < length)


def test_reading_what_another_program_overwrites_races() -> None:
    x = torch.ones(20)
    race = found(Launch.of(smooth_kernel, 3, x, 20, 8, outputs=x))
    assert race is not None
    assert "element 8 of x is written by one program and read by another" in race.describe()
    assert (race.store.program, race.other.program) == ((1, 0, 0), (0, 0, 0))
    race = found(Launch.of(smooth_kernel, 1, x, 20, 32, outputs=x))
    assert race is not None
    assert race.is_within  # lanes of one program do the same to one another


@triton.jit
def write_kernel(output, first, value, N: tl.constexpr):
    """Store value * program to the tile that begins at element first * program."""
    i = tl.program_id(0) * first + tl.arange(0, N)
    tl.store(output + i, (value * tl.program_id(0)).to(output.dtype.element_ty) + tl.zeros_like(i))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64], ids=str
)
def test_two_programs_that_write_one_element_race_unless_values_agree(dtype: torch.dtype) -> None:
    output = torch.zeros(64, dtype=dtype)
    assert found(Launch.of(write_kernel, 4, output, 8, 1, 8, outputs=output)) is None
    race = found(Launch.of(write_kernel, 4, output, 7, 0, 8, outputs=output))
    assert race is not None
    assert race.is_harmless
    assert race.describe().startswith("element 7 of output is written by two programs, with one value.\n")
    race = found(Launch.of(write_kernel, 4, output, 7, 1, 8, outputs=output))
    assert race is not None
    assert not race.is_harmless
    assert race.describe().startswith("element 7 of output is written by two programs, with two values.\n")


@triton.jit
def dissenting_kernel(output, dissenter):
    tl.store(output + tl.program_id(0) // 8, tl.where(tl.program_id(0) == dissenter, 1.0, float("nan")))


@pytest.mark.parametrize("dissenter", range(16))
def test_one_differing_write_among_many_is_found(dissenter: int) -> None:
    """The one differing program may be any of the sixteen; NaN equals NaN."""
    output = torch.zeros(2)
    race = found(Launch.of(dissenting_kernel, 16, output, dissenter, outputs=output))
    assert race is not None
    assert not race.is_harmless
    assert race.element == str(dissenter // 8)
    race = found(Launch.of(dissenting_kernel, 16, output, 99, outputs=output))
    assert race is not None
    assert race.is_harmless


@triton.jit
def histogram_kernel(x, counts, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(counts + tl.load(x + i), 1)


@triton.jit
def zero_then_add_kernel(x, counts, N: tl.constexpr):
    """Let the first program clear the counts, perhaps after others have begun to count."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(counts + tl.arange(0, 4), tl.zeros((4,), tl.int32))
    tl.atomic_add(counts + tl.load(x + i), 1)


def test_atomics_do_not_race_with_one_another() -> None:
    x, counts = torch.arange(32) % 4, torch.zeros(4, dtype=torch.int32)
    assert found(Launch.of(histogram_kernel, 4, x, counts, 8, outputs=counts)) is None
    race = found(Launch.of(zero_then_add_kernel, 4, x, counts, 8, outputs=counts))
    assert race is not None
    assert "element 0 of counts is written by one program and updated by another" in race.describe()


@triton.jit
def last_arriver_kernel(x, parts, counter, total, N: tl.constexpr, P: tl.constexpr):
    """Store a part in each program; the last to count itself adds them up and clears the counter."""
    program = tl.program_id(0)
    tl.store(parts + program, tl.sum(tl.load(x + program * N + tl.arange(0, N))))
    if tl.atomic_add(counter, 1) == P - 1:
        tl.store(total, tl.sum(tl.load(parts + tl.arange(0, P))))
        tl.store(counter, 0)


@triton.jit
def impatient_kernel(x, parts, counter, total, N: tl.constexpr, P: tl.constexpr):
    """Do as `last_arriver_kernel`, but count before storing the part."""
    program = tl.program_id(0)
    count = tl.atomic_add(counter, 1)
    tl.store(parts + program, tl.sum(tl.load(x + program * N + tl.arange(0, N))))
    if count == P - 1:
        tl.store(total, tl.sum(tl.load(parts + tl.arange(0, P))))


@triton.jit
def locked_kernel(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0)


def test_accesses_ordered_by_atomics_do_not_race() -> None:
    """The atomics are a counter that tells the last program that all have stored, and a lock."""
    x, parts, total = torch.ones(32), torch.zeros(4), torch.zeros(1)
    counter = torch.zeros(1, dtype=torch.int32)
    arguments = (x, parts, counter, total, 8, 4)
    assert found(Launch.of(last_arriver_kernel, 4, *arguments, outputs=total)) is None
    assert (total.item(), counter.item()) == (32, 0)
    race = found(Launch.of(impatient_kernel, 4, *arguments, outputs=total))
    assert race is not None
    assert race.store.argument == "parts"
    lock = torch.zeros(1, dtype=torch.int32)
    assert found(Launch.of(locked_kernel, 4, lock, total, outputs=total)) is None
    assert total.item() == 36


@triton.jit
def last_arriver_of_tiles_kernel(
    x, parts, counter, total, HAS_BARRIER: tl.constexpr, N: tl.constexpr, P: tl.constexpr
):
    """Store a tile by many lanes; one lane counts it, perhaps before the others have stored."""
    i = tl.arange(0, N)
    program = tl.program_id(0)
    tl.store(parts + program * N + i, tl.load(x + program * N + i))
    if HAS_BARRIER:
        tl.debug_barrier()
    if tl.atomic_add(counter, 1) == P - 1:
        sums = tl.zeros([N], tl.float32)
        for part in range(P):
            sums += tl.load(parts + part * N + i)
        tl.store(total + i, sums)


@pytest.mark.parametrize("has_barrier", [False, True])
def test_an_atomic_orders_tiles_only_after_a_barrier(has_barrier: bool) -> None:
    """Triton's tutorial on layer norm has such a barrier before it releases its lock."""
    x, parts, total = torch.ones(4, 8), torch.zeros(4, 8), torch.zeros(8)
    counter = torch.zeros(1, dtype=torch.int32)
    arguments = (x, parts, counter, total, has_barrier, 8, 4)
    race = found(Launch.of(last_arriver_of_tiles_kernel, 4, *arguments, outputs=total))
    assert total.tolist() == [4.0] * 8
    assert (race is None) == has_barrier
    if race is not None:
        assert "of parts is written by one program and read by another" in race.describe()


@triton.jit
def copy_kernel(x, output, length, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(output + i, tl.load(x + i, mask=i < length), mask=i < length)


def test_steps_of_a_launch_do_not_race() -> None:
    """Programs of the second step read what other programs of the first step wrote."""
    x, y, z = torch.ones(32), torch.zeros(32), torch.zeros(32)
    steps = (Step(copy_kernel, (4,), (x, y, 32, 8)), Step(copy_kernel, (2,), (y, z, 32, 16)))
    assert found(Launch(steps, (z,))) is None
    assert (
        found(Launch((Step(copy_kernel, (4,), (x, x, 32, 8)),), (x,))) is None
    )  # each program reads and writes its own part


@triton.jit
def repeated_kernel(x, output, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    for _ in range(3):
        tl.store(output + i, tl.load(output + i) + tl.load(x + i))


def test_lanes_that_keep_to_their_own_elements_do_not_race() -> None:
    x, output = torch.ones(32), torch.zeros(32)
    assert found(Launch.of(repeated_kernel, 4, x, output, 8, outputs=output)) is None
    assert output.tolist() == [3.0] * 32


@triton.jit
def shared_memory_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(output + i, i)
    else:
        tl.store(output + N + i, tl.load(x + i))


def test_arguments_that_share_memory_race() -> None:
    """A kernel reads by one argument the memory that it writes by another."""
    memory = torch.zeros(64)
    race = found(Launch.of(shared_memory_kernel, 2, memory[8:], memory[:32], 16, outputs=memory))
    assert race is not None
    assert (race.store.argument, race.other.argument, race.element) == ("output", "x", "8")
    assert found(Launch.of(shared_memory_kernel, 2, memory[32:], memory[:32], 16, outputs=memory)) is None


@triton.jit
def grid_kernel(output, columns):
    """Write the first element of a row in every program of that row."""
    tl.store(output + tl.program_id(0) * columns, tl.program_id(1))


def test_races_give_all_indices_of_elements_and_programs() -> None:
    output = torch.zeros(3, 5, dtype=torch.int32)
    race = found(Launch.of(grid_kernel, (3, 2), output, 5, outputs=output))
    assert race is not None
    assert race.describe().splitlines()[0].startswith("element (0, 0) of output is written by two programs")
    assert "program (0, 0), line" in race.describe()
    assert "program (0, 1), line" in race.describe()
    transposed = torch.zeros(5, 3, dtype=torch.int32).t()  # elements are counted in memory
    race = found(Launch.of(grid_kernel, (1, 2), transposed[1:], 5, outputs=transposed))
    assert race is not None
    assert race.element == "0"


def test_two_million_accesses_take_less_than_a_second(machine: Machine) -> None:
    """The million lanes that store are searched; accesses to a tensor that is only read cost nothing."""
    x, output = torch.ones(2**20), torch.zeros(2**20)
    launch = Launch.of(copy_kernel, 64, x, output, 2**20, 2**14, outputs=output)
    seen: list[Access] = []
    launch.steps[0].run(observer=seen.append)
    find = partial(races.find, launch, (tuple(seen),))
    assert find() is None
    assert machine.least_seconds([find]) < 1


def test_a_launch_without_steps_or_active_lanes_has_no_race() -> None:
    assert races.find(Launch((), (torch.zeros(0),)), ()) is None
    output = torch.zeros(4)
    assert found(Launch.of(copy_kernel, 2, output, output, 0, 4, outputs=output)) is None
