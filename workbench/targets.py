"""The GPUs that kernels can be compiled and planned for, by name; the machine need not have them.

Every figure names its source. Capacities are binary, as in the sources: 1 KB is 1024 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from workbench.errors import check_name

Vendor = Literal["NVIDIA", "AMD"]

KB = 1024
MB = 1024 * KB

# Each SM, compute unit and work-group processor in the table has four partitions: NVIDIA's processing blocks
# (the sub-partitions of cuda_occupancy.h) or AMD's SIMDs. A warp stays in one and uses only its registers.
PARTITIONS = 4


@dataclass(frozen=True)
class Source:
    """A public document."""

    title: str
    url: str


@dataclass(frozen=True)
class Target:
    """A GPU architecture that Triton compiles for, with the figures of one product.

    Attributes:
        name: the compiler's name: "sm_90", "gfx942".
        vendor: "NVIDIA" or "AMD".
        architecture: the vendor's name: "Hopper", "CDNA3".
        unit: the unit that runs a block, called `sm` in the names below: a streaming multiprocessor (NVIDIA),
            a compute unit (CDNA), or a work-group processor, which is two compute units (RDNA, in the mode
            that the compiler chooses).
        warp_size: threads in a warp (AMD: wavefront), as Triton compiles.
        registers_per_sm: 32-bit registers that all resident threads share. On CDNA half of them are the
            accumulation registers (AGPRs) that matrix instructions use.
        most_registers_per_thread: the maximum for a thread (CDNA: 256 VGPRs and 256 AGPRs).
        register_granularity: registers are allocated to a thread in multiples of this number.
        most_warps_per_sm: maximum number of resident warps.
        most_blocks_per_sm: maximum number of resident blocks. On AMD the limit is the number of barriers,
            and a block of one warp needs none.
        shared_per_sm: bytes of shared memory (AMD: LDS) that the resident blocks share.
        most_shared_per_block: bytes of shared memory that one block can request.
        reserved_shared_per_block: bytes of shared memory that the driver reserves for every block.
        shared_granularity: shared memory is allocated to a block in multiples of this many bytes.
        product: a GPU of this architecture; the following figures are the product's.
        sms: the number of units (`unit`).
        l2_bytes: the size of each L2 cache.
        l2_caches: the number of L2 caches. If there are several, a unit uses the cache of its own die, and
            blocks are distributed to the dies in turn.
        sources: the published source of each figure above, by the figure's name.
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


def target(name: str) -> Target:
    """Return the target with the given name.

    Raises:
        UnknownNameError: the name is not in `TARGETS`.
    """
    check_name("target", name, TARGETS)
    return TARGETS[name]


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
    """Build the target of a compute capability.

    Every SM has 64 K registers; a thread has at most 255, in multiples of 8 (256 for a warp).
    """
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


@dataclass(frozen=True)
class _Family:
    """The figures that AMD's architectures of one family share.

    A unit has four SIMDs (`PARTITIONS`).

    Attributes:
        unit, warp_size, register_granularity, shared_granularity: as in `Target`.
        registers_per_lane: 32-bit registers of one SIMD for each lane of a wavefront.
        most_registers: maximum number of registers of a thread.
        warps_per_simd: maximum number of resident wavefronts of one SIMD.
        blocks: maximum number of resident blocks of a unit.
        shared: bytes of shared memory (LDS) of a unit.
        most_shared: bytes of shared memory that one block can request.
    """

    unit: str
    warp_size: int
    registers_per_lane: int
    most_registers: int
    register_granularity: int
    warps_per_simd: int
    blocks: int
    shared: int
    most_shared: int
    shared_granularity: int


_CDNA = _Family(
    unit="compute unit",
    warp_size=64,
    registers_per_lane=512,
    most_registers=512,
    register_granularity=8,
    warps_per_simd=8,
    blocks=16,
    shared=64 * KB,
    most_shared=64 * KB,
    shared_granularity=512,
)
_CDNA4 = replace(_CDNA, shared=160 * KB, most_shared=160 * KB, shared_granularity=1280)
_RDNA = _Family(
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
)


def _amd(
    name: str, architecture: str, family: _Family, *, product: str, sms: int, l2: int, l2_caches: int = 1
) -> Target:
    """Build an AMD target of a family of architectures."""
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
        unit=family.unit,
        warp_size=family.warp_size,
        registers_per_sm=PARTITIONS * family.registers_per_lane * family.warp_size,
        most_registers_per_thread=family.most_registers,
        register_granularity=family.register_granularity,
        most_warps_per_sm=PARTITIONS * family.warps_per_simd,
        most_blocks_per_sm=family.blocks,
        shared_per_sm=family.shared,
        most_shared_per_block=family.most_shared,
        reserved_shared_per_block=0,
        shared_granularity=family.shared_granularity,
        product=product,
        sms=sms,
        l2_bytes=l2,
        l2_caches=l2_caches,
        sources=compiler | specifications | {"shared_granularity": _LLVM_USAGE},
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
        _amd("gfx90a", "CDNA2", _CDNA,
             product="Instinct MI250X (one of its two dies)", sms=110, l2=8 * MB),
        _amd("gfx942", "CDNA3", _CDNA, product="Instinct MI300X", sms=304, l2=4 * MB, l2_caches=8),
        _amd("gfx950", "CDNA4", _CDNA4, product="Instinct MI355X", sms=256, l2=4 * MB, l2_caches=8),
        # Half as many work-group processors as compute units.
        _amd("gfx1100", "RDNA3", _RDNA, product="Radeon RX 7900 XTX", sms=96 // 2, l2=6 * MB),
        _amd("gfx1201", "RDNA4", _RDNA, product="Radeon RX 9070 XT", sms=64 // 2, l2=8 * MB),
    )
}  # fmt: skip
