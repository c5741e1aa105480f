"""How many blocks of a kernel a unit of a target holds, and what limits them; and the targets themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.errors import check_positive
from workbench.targets import KB, MB, PARTITIONS, TARGETS, Source, Target, Vendor, target

__all__ = [
    "KB",
    "MB",
    "MOST_THREADS_PER_BLOCK",
    "PARTITIONS",
    "TARGETS",
    "Limit",
    "Occupancy",
    "Source",
    "Target",
    "Vendor",
    "occupancy",
    "target",
]

MOST_THREADS_PER_BLOCK = 1024

Limit = Literal["registers", "shared memory", "warps", "blocks"]


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel a unit of a target holds at a time.

    Attributes:
        blocks: blocks resident on one SM (compute unit, work-group processor); 0 where not even one fits.
        warps: their warps together.
        most_warps: the warps that it could hold.
        limits: what would stop at how many blocks, for each of the four limits.
        limited_by: those that stop first: "registers", "shared memory", "warps" or "blocks".
    """

    blocks: int
    warps: int
    most_warps: int
    limits: Mapping[Limit, int] = field(hash=False)
    limited_by: tuple[Limit, ...]

    @property
    def percent(self) -> float:
        """100 * warps / most_warps."""
        return 100 * self.warps / self.most_warps

    def __repr__(self) -> str:
        return (
            f"Occupancy({self.blocks} blocks, {self.warps} of {self.most_warps} warps, "
            f"{self.percent:.0f}%, limited by {' and '.join(self.limited_by)})"
        )


def occupancy(on: Target, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """How many blocks fit on one unit of `on`, and what limits them.

    With w warps in a block of `threads`, and up(n, g) for n rounded up to a multiple of g:

        warps           most_warps_per_sm // w
        blocks          most_blocks_per_sm, on AMD only for w > 1
        registers       4 * (registers_per_sm // 4 // (warp_size * up(registers, register_granularity))) // w
        shared memory   shared_per_sm // up(shared_bytes + reserved_shared_per_block, shared_granularity)

    The least of them counts. Registers are divided within each of the unit's four partitions, and a warp
    stays in one. Nothing fits where the kernel asks for more than a thread or a block can have.

    Left out: AMD's scalar registers (more than 100 cost CDNA one warp in eight, RDNA nothing), thread block
    clusters, and tensor memory.

    The rules are those of cuda_occupancy.h (CUDA Toolkit) and of LLVM's AMDGPU back end, which
    llvm-calc-occupancy prints. NVIDIA's example (CUDA C++ Best Practices Guide, "Calculating Occupancy", for
    64 warps and 65,536 registers): at 37 registers a thread, 40 after rounding, a partition holds
    16384 // (32 * 40) = 12 warps and the SM 48. Blocks of 128 threads are 4 warps, so 12 fit and occupancy
    is 75%; of blocks of 320 threads, 10 warps, 4 fit, which makes 40 of 64 warps, 63%.

    Args:
        on: the target.
        threads: in a block.
        registers: of a thread.
        shared_bytes: of a block.
    """
    warps = -(-check_positive("threads", threads) // on.warp_size)
    registers_of_a_warp = on.warp_size * _round_up(max(registers, 1), on.register_granularity)
    warps_by_registers = PARTITIONS * (on.registers_per_sm // PARTITIONS // registers_of_a_warp)
    shared = _round_up(shared_bytes + on.reserved_shared_per_block, on.shared_granularity)
    needs_no_barrier = on.vendor == "AMD" and warps == 1
    limits: dict[Limit, int] = {
        "registers": warps_by_registers // warps if registers <= on.most_registers_per_thread else 0,
        "shared memory": _shared_limit(on, shared) if shared_bytes <= on.most_shared_per_block else 0,
        "warps": on.most_warps_per_sm // warps if threads <= MOST_THREADS_PER_BLOCK else 0,
        "blocks": on.most_warps_per_sm if needs_no_barrier else on.most_blocks_per_sm,
    }
    blocks = min(limits.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        most_warps=on.most_warps_per_sm,
        limits=limits,
        limited_by=tuple(name for name, most in limits.items() if most == blocks),
    )


def _shared_limit(on: Target, shared: int) -> int:
    """Blocks of `shared` bytes, rounded and with what is reserved; none asked for limits nothing."""
    return on.shared_per_sm // shared if shared else on.most_warps_per_sm


def _round_up(number: int, granularity: int) -> int:
    return -(-number // granularity) * granularity
