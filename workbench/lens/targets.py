"""The GPUs that kernels are compiled for, with the limits that decide how many blocks one of them holds.

Every figure has its source. Capacities are binary, as their sources mean them: 1 KB is 1024 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.errors import check_name, check_positive

Vendor = Literal["NVIDIA", "AMD"]

KB = 1024
MB = 1024 * KB

MOST_THREADS_PER_BLOCK = 1024

# Each SM, compute unit and work-group processor in the table is made of four: NVIDIA's processing blocks (the
# sub-partitions of cuda_occupancy.h), AMD's SIMDs. A warp stays in one of them and uses its registers only.
PARTITIONS = 4


@dataclass(frozen=True)
class Source:
    """A public document."""

    title: str
    url: str


@dataclass(frozen=True)
class Target:
    """What a kernel can be compiled for.

    Attributes:
        name: as the compiler spells it: "sm_90", "gfx942".
        vendor: "NVIDIA" or "AMD".
        architecture: the vendor's name for it: "Hopper", "CDNA3".
        unit: what one block runs on, and what `_per_sm` below means: a streaming multiprocessor (NVIDIA), a
            compute unit (CDNA), or a work-group processor, which is two compute units (RDNA, in the mode that
            the compiler chooses).
        warp_size: threads in a warp (AMD: wavefront), as Triton compiles.
        registers_per_sm: 32-bit registers of all its threads together. On CDNA the accumulation registers
            (AGPRs) that matrix instructions use are half of them.
        most_registers_per_thread: a thread's most (CDNA: 256 VGPRs and 256 AGPRs).
        register_granularity: a thread gets registers in multiples of so many.
        most_warps_per_sm: resident at a time.
        most_blocks_per_sm: resident at a time. On AMD it counts barriers, and blocks of one warp need none.
        shared_per_sm: bytes of shared memory (AMD: LDS) that resident blocks divide among them.
        most_shared_per_block: bytes that one block can ask for.
        reserved_shared_per_block: bytes that the driver takes for itself, for every block.
        shared_granularity: a block gets shared memory in multiples of so many bytes.
        product: a GPU of that architecture; what follows depends on the product.
        sms: how many units (`unit`) it has.
        l2_bytes: each of its L2 caches.
        l2_caches: how many there are. Where more than one, a unit uses the one of its own die, and blocks are
            handed to the dies in turn.
        sources: for each figure above, by its name, where it is published.
    """

    name: str
    vendor: Vendor
    architecture: str
    unit: str
    warp_size: int
    registers_per_sm: int
    most_registers_per_thread: int
    register_granularity: int
    most_warps_per_sm: int
    most_blocks_per_sm: int
    shared_per_sm: int
    most_shared_per_block: int
    reserved_shared_per_block: int
    shared_granularity: int
    product: str
    sms: int
    l2_bytes: int
    l2_caches: int
    sources: Mapping[str, Source] = field(hash=False)

    def __repr__(self) -> str:
        return f"Target({self.name}: {self.vendor} {self.architecture}, such as {self.product})"


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


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        UnknownNameError: it is not in the table, or is spelled in another way.
    """
    check_name("target", name, TARGETS)
    return TARGETS[name]


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


_CUDA_GUIDE = Source(
    "CUDA Programming Guide, 5.1 Compute Capabilities, table of technical specifications",
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html",
)
_CUDA_OCCUPANCY = Source(
    "CUDA Toolkit, cuda_occupancy.h: registers are allocated to warps in units of 256, in 4 sub-partitions; "
    "shared memory in units of 256 bytes (7.x) or 128 bytes (8.0 on)",
    "https://developer.nvidia.com/cuda-toolkit",
)
_CCCL = Source(
    "CUDA Core Compute Libraries, cuda/__device/arch_traits.h: reserved_shared_memory_per_block",
    "https://github.com/NVIDIA/cccl/blob/main/libcudacxx/include/cuda/__device/arch_traits.h",
)
_CUDA_DEVICE = Source(
    "CUDA Runtime API, cudaDeviceProp: multiProcessorCount and l2CacheSize as the driver reports them",
    "https://docs.nvidia.com/cuda/cuda-runtime-api/structcudaDeviceProp.html",
)
_TURING = Source(
    "NVIDIA Turing GPU Architecture, WP-09183-001, table 1",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/"
    "turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf",
)
_AMPERE = Source(
    "NVIDIA A100 Tensor Core GPU Architecture, table 4",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
)
_AMPERE_GA102 = Source(
    "NVIDIA Ampere GA102 GPU Architecture, comparison of the GeForce RTX 3090",
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf",
)
_ADA = Source(
    "NVIDIA Ada GPU Architecture, comparison of the GeForce RTX 4090",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
)
_RTX_BLACKWELL = Source(
    "NVIDIA RTX Blackwell GPU Architecture, comparison of the GeForce RTX 5090",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
)
_ROCM = Source(
    "ROCm documentation, AMD GPU specifications: compute units, wavefront size, LDS, L2, VGPR file",
    "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html",
)
_LLVM_OCCUPANCY = Source(
    "LLVM, AMDGPUBaseInfo.cpp (IsaInfo), as llvm-calc-occupancy prints it: waves per SIMD, VGPRs and their "
    "granularity, work-groups per compute unit or work-group processor, LDS of one work-group",
    "https://llvm.org/docs/CommandGuide/llvm-calc-occupancy.html",
)
_LLVM_USAGE = Source(
    "LLVM, User Guide for AMDGPU Backend, compute_pgm_rsrc2: GRANULATED_LDS_SIZE",
    "https://llvm.org/docs/AMDGPUUsage.html",
)


def _nvidia(
    name: str,
    architecture: str,
    *,
    warps: int,
    blocks: int,
    shared: int,
    product: str,
    sms: int,
    l2: int,
    source: Source,
    reserved: int = KB,
    shared_granularity: int = 128,
) -> Target:
    """A compute capability; alike in all: 64 K registers, 255 a thread, 8 at a time (256 a warp)."""
    guide = dict.fromkeys(
        (
            "warp_size",
            "registers_per_sm",
            "most_registers_per_thread",
            "most_warps_per_sm",
            "most_blocks_per_sm",
            "shared_per_sm",
            "most_shared_per_block",
        ),
        _CUDA_GUIDE,
    )
    return Target(
        name=name,
        vendor="NVIDIA",
        architecture=architecture,
        unit="streaming multiprocessor",
        warp_size=32,
        registers_per_sm=64 * KB,
        most_registers_per_thread=255,
        register_granularity=8,
        most_warps_per_sm=warps,
        most_blocks_per_sm=blocks,
        shared_per_sm=shared,
        most_shared_per_block=shared - reserved,
        reserved_shared_per_block=reserved,
        shared_granularity=shared_granularity,
        product=product,
        sms=sms,
        l2_bytes=l2,
        l2_caches=1,
        sources=guide
        | {
            "register_granularity": _CUDA_OCCUPANCY,
            "shared_granularity": _CUDA_OCCUPANCY,
            "reserved_shared_per_block": _CCCL,
            "sms": source,
            "l2_bytes": source,
            "l2_caches": source,
        },
    )


def _amd(
    name: str,
    architecture: str,
    *,
    unit: str,
    warp_size: int,
    registers_per_lane: int,
    most_registers: int,
    register_granularity: int,
    warps_per_simd: int,
    blocks: int,
    shared: int,
    most_shared: int,
    shared_granularity: int,
    product: str,
    sms: int,
    l2: int,
    l2_caches: int,
) -> Target:
    """An AMD architecture: each of its four SIMDs has `registers_per_lane` for each lane of a wavefront."""
    compiler = dict.fromkeys(
        (
            "most_registers_per_thread",
            "register_granularity",
            "most_warps_per_sm",
            "most_blocks_per_sm",
            "most_shared_per_block",
            "reserved_shared_per_block",
        ),
        _LLVM_OCCUPANCY,
    )
    specifications = dict.fromkeys(
        ("warp_size", "registers_per_sm", "shared_per_sm", "sms", "l2_bytes", "l2_caches"), _ROCM
    )
    return Target(
        name=name,
        vendor="AMD",
        architecture=architecture,
        unit=unit,
        warp_size=warp_size,
        registers_per_sm=PARTITIONS * registers_per_lane * warp_size,
        most_registers_per_thread=most_registers,
        register_granularity=register_granularity,
        most_warps_per_sm=PARTITIONS * warps_per_simd,
        most_blocks_per_sm=blocks,
        shared_per_sm=shared,
        most_shared_per_block=most_shared,
        reserved_shared_per_block=0,
        shared_granularity=shared_granularity,
        product=product,
        sms=sms,
        l2_bytes=l2,
        l2_caches=l2_caches,
        sources=compiler | specifications | {"shared_granularity": _LLVM_USAGE},
    )


def _cdna(
    name: str,
    architecture: str,
    *,
    shared: int = 64 * KB,
    shared_granularity: int = 512,
    product: str,
    sms: int,
    l2: int,
    l2_caches: int,
) -> Target:
    return _amd(
        name,
        architecture,
        unit="compute unit",
        warp_size=64,
        registers_per_lane=512,
        most_registers=512,
        register_granularity=8,
        warps_per_simd=8,
        blocks=16,
        shared=shared,
        most_shared=shared,
        shared_granularity=shared_granularity,
        product=product,
        sms=sms,
        l2=l2,
        l2_caches=l2_caches,
    )


def _rdna(name: str, architecture: str, *, product: str, compute_units: int, l2: int) -> Target:
    return _amd(
        name,
        architecture,
        unit="work-group processor",
        warp_size=32,
        registers_per_lane=1536,
        most_registers=256,
        register_granularity=24,
        warps_per_simd=16,
        blocks=32,
        shared=128 * KB,
        most_shared=64 * KB,
        shared_granularity=512,
        product=product,
        sms=compute_units // 2,
        l2=l2,
        l2_caches=1,
    )


TARGETS: Mapping[str, Target] = {
    each.name: each
    for each in (
        _nvidia("sm_75", "Turing", warps=32, blocks=16, shared=64 * KB, reserved=0, shared_granularity=256,
                product="GeForce RTX 2080 Ti", sms=68, l2=5632 * KB, source=_TURING),
        _nvidia("sm_80", "Ampere", warps=64, blocks=32, shared=164 * KB,
                product="A100", sms=108, l2=40 * MB, source=_AMPERE),
        _nvidia("sm_86", "Ampere", warps=48, blocks=16, shared=100 * KB,
                product="GeForce RTX 3090", sms=82, l2=6 * MB, source=_AMPERE_GA102),
        _nvidia("sm_89", "Ada", warps=48, blocks=24, shared=100 * KB,
                product="GeForce RTX 4090", sms=128, l2=72 * MB, source=_ADA),
        _nvidia("sm_90", "Hopper", warps=64, blocks=32, shared=228 * KB,
                product="H200", sms=132, l2=60 * MB, source=_CUDA_DEVICE),
        _nvidia("sm_100", "Blackwell", warps=64, blocks=32, shared=228 * KB,
                product="B200", sms=148, l2=126 * MB, source=_CUDA_DEVICE),
        _nvidia("sm_120", "Blackwell", warps=48, blocks=24, shared=100 * KB,
                product="GeForce RTX 5090", sms=170, l2=96 * MB, source=_RTX_BLACKWELL),
        _cdna("gfx90a", "CDNA2",
              product="Instinct MI250X (one of its two dies)", sms=110, l2=8 * MB, l2_caches=1),
        _cdna("gfx942", "CDNA3", product="Instinct MI300X", sms=304, l2=4 * MB, l2_caches=8),
        _cdna("gfx950", "CDNA4", shared=160 * KB, shared_granularity=1280,
              product="Instinct MI355X", sms=256, l2=4 * MB, l2_caches=8),
        _rdna("gfx1100", "RDNA3", product="Radeon RX 7900 XTX", compute_units=96, l2=6 * MB),
        _rdna("gfx1201", "RDNA4", product="Radeon RX 9070 XT", compute_units=64, l2=8 * MB),
    )
}  # fmt: skip
