"""Occupancy, the number of blocks of a kernel that a compute unit holds; and the targets of compilation."""

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
    """The number of blocks of a kernel that a compute unit of a target holds at a time.

    Attributes:
        blocks: blocks resident on one SM (compute unit, work-group processor); 0 if not even one fits.
        warps: warps in these blocks.
        most_warps: the most warps that the unit can hold.
        limits: the number of blocks that each of the four limits allows.
        limited_by: the limits that allow the fewest: "registers", "shared memory", "warps" or "blocks".
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
    """Return the number of blocks that fit on one compute unit of `on`, and what limits this number.

    With w warps in a block of `threads`, and up(n, g) for n rounded up to a multiple of g:

        warps           most_warps_per_sm // w
        blocks          most_blocks_per_sm, on AMD only for w > 1
        registers       4 * (registers_per_sm // 4 // (warp_size * up(registers, register_granularity))) // w
        shared memory   shared_per_sm // up(shared_bytes + reserved_shared_per_block, shared_granularity)

    The smallest of the four counts. Registers are divided among the unit's four partitions, and a warp stays
    in one. Nothing fits if the kernel needs more than a thread or a block can have.

    Not considered: AMD's scalar registers (more than 100 cost CDNA one warp in eight, RDNA nothing), thread
    block clusters, and tensor memory.

    The rules are those of cuda_occupancy.h (CUDA Toolkit) and of LLVM's AMDGPU back end, which
    llvm-calc-occupancy prints. NVIDIA's example (CUDA C++ Best Practices Guide, "Calculating Occupancy", for
    64 warps and 65,536 registers): with 37 registers a thread, 40 after rounding, a partition holds
    16384 // (32 * 40) = 12 warps and the SM 48. A block of 128 threads has 4 warps, so 12 blocks fit, and the
    occupancy is 75%. A block of 320 threads has 10 warps, so 4 fit: 40 of 64 warps, 63%.

    Args:
        on: the target.
        threads: threads in a block.
        registers: registers of a thread.
        shared_bytes: shared memory of a block.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `threads` is not a whole number of 1 or more.
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
    """Return how many blocks of `shared` bytes fit, rounded and with the reserve; 0 bytes set no limit."""
    return on.shared_per_sm // shared if shared else on.most_warps_per_sm


def _round_up(number: int, granularity: int) -> int:
    return -(-number // granularity) * granularity
