"""The device table: every figure has its source, and occupancy agrees with published examples."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from workbench import device
from workbench.errors import InvalidArgumentError, UnknownNameError
from workbench.lens.targets import KB, MOST_THREADS_PER_BLOCK, TARGETS, Target, occupancy, target

NAMES = {
    "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
    "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201",
}  # fmt: skip


def test_the_targets_are_listed() -> None:
    assert set(TARGETS) == NAMES
    assert all(target(name).name == name for name in NAMES)


@pytest.mark.parametrize(
    ("name", "nearest"), [("sm90", "sm_90"), ("sm_91", "sm_90"), ("GFX942", "gfx942"), ("gfx943", "gfx942")]
)
def test_a_misspelled_target_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=f"target: '{name}' is not known. Did you mean .*'{nearest}'"):
        target(name)


@pytest.mark.parametrize("name", [None, 90, "", b"sm_90", ["sm_90"], {}])
def test_a_name_of_a_wrong_type_is_refused(name: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"^target: .* is not known\. .*Known: gfx1100, "):
        target(name)


@pytest.mark.parametrize("on", TARGETS.values(), ids=str)
def test_every_figure_has_its_source(on: Target) -> None:
    figures = {field.name for field in dataclasses.fields(on) if isinstance(getattr(on, field.name), int)}
    assert set(on.sources) == figures
    assert all(source.url.startswith("https://") and source.title for source in on.sources.values())


@pytest.mark.parametrize("on", TARGETS.values(), ids=str)
def test_figures_of_a_target_are_consistent(on: Target) -> None:
    assert on.warp_size in (32, 64)
    assert on.most_shared_per_block + on.reserved_shared_per_block <= on.shared_per_sm
    assert on.registers_per_sm % (4 * on.warp_size * on.register_granularity) == 0
    assert on.most_warps_per_sm * on.warp_size >= MOST_THREADS_PER_BLOCK
    assert pickle.loads(pickle.dumps(on)) == on
    assert hash(on) == hash(pickle.loads(pickle.dumps(on)))
    assert len(repr(on)) < 100


@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "percent"),
    [
        (128, 37, 12, 75),  # both from the CUDA C++ Best Practices Guide, "Calculating Occupancy"
        (320, 37, 4, 62.5),
        (1024, 32, 2, 100),  # 32 registers are the most at which 2048 threads fit
        (1024, 33, 1, 50),
        (128, 255, 2, 12.5),
        (384, 168, 1, 18.75),  # three warp groups at 168 registers fill the file
    ],
)
def test_occupancy_by_registers_of_nvidia_is_as_published(
    threads: int, registers: int, blocks: int, percent: float
) -> None:
    for name in ("sm_80", "sm_90", "sm_100"):
        fit = occupancy(target(name), threads=threads, registers=registers, shared_bytes=0)
        assert (fit.blocks, fit.percent) == (blocks, percent)


def test_the_limiting_resource_is_named() -> None:
    h200 = target("sm_90")
    assert occupancy(h200, threads=128, registers=16, shared_bytes=0).limited_by == ("warps",)
    assert occupancy(h200, threads=128, registers=64, shared_bytes=0).limited_by == ("registers",)
    assert occupancy(h200, threads=32, registers=16, shared_bytes=0).limited_by == ("blocks",)
    both = occupancy(h200, threads=128, registers=128, shared_bytes=56 * KB)
    assert (both.blocks, both.limited_by) == (4, ("registers", "shared memory"))
    assert both.limits == {"registers": 4, "shared memory": 4, "warps": 16, "blocks": 32}
    assert repr(both) == "Occupancy(4 blocks, 16 of 64 warps, 25%, limited by registers and shared memory)"


def test_the_driver_takes_a_kilobyte_of_each_block() -> None:
    """Two blocks of 113 KB fit into 228 KB, and one block has at most 227 KB (CUDA Programming Guide)."""
    h200 = target("sm_90")
    assert h200.most_shared_per_block == 227 * KB
    for shared, blocks in ((113 * KB, 2), (113 * KB + 1, 1), (227 * KB, 1), (227 * KB + 1, 0)):
        assert occupancy(h200, threads=128, registers=16, shared_bytes=shared).blocks == blocks


def test_turing_reserves_no_shared_memory() -> None:
    assert occupancy(target("sm_75"), threads=128, registers=16, shared_bytes=32 * KB).blocks == 2
    assert occupancy(target("sm_75"), threads=128, registers=16, shared_bytes=32 * KB + 1).blocks == 1


def test_a_thousand_threads_leave_a_third_of_sm_86_idle() -> None:
    """An SM has 48 warps (CUDA Programming Guide), and a block of 32 warps leaves 16 unused."""
    fit = occupancy(target("sm_86"), threads=1024, registers=16, shared_bytes=0)
    assert (fit.blocks, fit.warps, fit.most_warps) == (1, 32, 48)


def test_occupancy_agrees_with_llvm_calc_occupancy() -> None:
    """`llvm-calc-occupancy -mcpu=gfx90a --wg-size=512 --vgprs=50` prints 8 waves a SIMD, 32 a unit."""
    fit = occupancy(target("gfx90a"), threads=512, registers=50, shared_bytes=0)
    assert (fit.warps, fit.most_warps) == (32, 32)


def test_occupancy_by_registers_of_amd_agrees_with_llvm() -> None:
    """The expected waves a SIMD, by VGPRs, are those that LLVM prints for kernels of these sizes."""
    for name, registers, waves in (
        ("gfx942", 99, 4), ("gfx942", 255, 2), ("gfx942", 345, 1), ("gfx942", 512, 1),
        ("gfx1100", 60, 16), ("gfx1100", 180, 8), ("gfx1100", 256, 5),
    ):  # fmt: skip
        on = target(name)
        fit = occupancy(on, threads=4 * on.warp_size, registers=registers, shared_bytes=0)
        assert fit.warps == 4 * waves


def test_blocks_of_one_warp_on_amd_are_not_limited_by_barriers() -> None:
    mi300x = target("gfx942")
    assert occupancy(mi300x, threads=64, registers=16, shared_bytes=0).blocks == 32
    two = occupancy(mi300x, threads=128, registers=16, shared_bytes=0)
    assert (two.blocks, two.limited_by) == (16, ("warps", "blocks"))


def test_shared_memory_of_rdna_holds_two_blocks_of_64_kb() -> None:
    on = target("gfx1100")
    assert occupancy(on, threads=128, registers=16, shared_bytes=64 * KB).blocks == 2
    assert occupancy(on, threads=128, registers=16, shared_bytes=64 * KB + 1).blocks == 0


@pytest.mark.parametrize("on", TARGETS.values(), ids=str)
def test_blocks_that_never_fit_have_no_occupancy(on: Target) -> None:
    for threads, registers, shared, limit in (
        (2 * MOST_THREADS_PER_BLOCK, 16, 0, "warps"),
        (128, on.most_registers_per_thread + 1, 0, "registers"),
        (128, 16, on.most_shared_per_block + 1, "shared memory"),
    ):
        fit = occupancy(on, threads=threads, registers=registers, shared_bytes=shared)
        assert (fit.blocks, fit.percent, fit.limited_by) == (0, 0, (limit,))


def test_a_block_without_threads_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="threads: got 0"):
        occupancy(target("sm_90"), threads=0, registers=16, shared_bytes=0)


@pytest.mark.gpu
def test_the_table_agrees_with_this_gpu() -> None:
    """Figures of a product are compared only if this GPU is that product."""
    here = device.current()
    on = target(here.architecture)
    assert (here.warp_size, here.shared_memory_bytes) == (on.warp_size, on.most_shared_per_block)
    if on.product in here.name:
        assert (here.compute_units, here.l2_bytes) == (on.sms, on.l2_bytes)
