"""Ablation of a fused product: what parts of it take, alone and together: `python -m tools.ablation`.

What does it cost to copy, to multiply, to add two matrices, to apply gelu, to store? `ablation.cu`, in
CUDA, for a Hopper GPU, does some or all of that for some products in fp16, by TMA and `wgmma`, with a warp or
a group of warps for each. Nobody waits for the sums that others finish: those finish numbers of their own.
Times are raced in bursts with the product alone and with the chain as they ship. They are times of these
kernels, and no bounds: one that orders its copies better may be faster.

CUDA is compiled by NVRTC, through NVIDIA's own `cuda.bindings`, which a torch for GPUs brings along.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workbench import device, ops
from workbench.bench import measure_together
from workbench.kernels.epilogues import add, fast_gelu

PROBLEMS = (2048, 3072, 768), (2048, 2048, 2048)
STEP = 64  # along K
UNITS = 128  # which have as many tiles each
SOURCE = Path(__file__).with_suffix(".cu")
OUTSIDE = 1024  # bytes, for the alignment of what a unit shares


@dataclass(frozen=True)
class Part:
    """A kernel that does a part of the work; the switches are `ablation.cu`'s.

    Attributes:
        m, n, k: of the product.
        rows, cols: of a tile.
        stages, slots: buffers of A and B, and of what is added.
        pace: of bringing that, quarters of a step for each part.
    """

    m: int
    n: int
    k: int
    rows: int
    cols: int
    stages: int
    slots: int
    pace: int
    copy: bool = False
    multiply: bool = False
    beside: bool = False
    first: bool = False
    last: int = 0

    @property
    def tiles(self) -> int:
        """Of a unit."""
        return self.m * self.n // (self.rows * self.cols * UNITS)

    @property
    def copies_out(self) -> bool:
        """Whether addends are stored, as they are, where no results are."""
        return self.beside and not self.first and (self.tiles > 1 or self.last < 2)

    @property
    def name(self) -> str:
        """What is done, for people."""
        done = [
            "A and B copied" if self.copy else "",
            "multiplied" if self.multiply else "",
            "addends copied, stored again" if self.copies_out else "addends copied" if self.beside else "",
            "all added, all but the last tile finished and stored" if self.first else "",
            ("", "gelu of the last tile", "gelu of the last tile, stored")[self.last],
        ]
        return f"{self.rows} x {self.cols}, {self.stages}, {self.slots}, {self.pace / 4}: " + "; ".join(
            filter(None, done)
        )

    @property
    def defines(self) -> dict[str, int]:
        """Macros of `ablation.cu`."""
        return {
            "BM": self.rows, "BN": self.cols, "TILES": self.tiles, "STAGES": self.stages, "SLOTS": self.slots,
            "PACE": self.pace, "COPY": self.copy, "MULTIPLY": self.multiply, "BESIDE": self.beside,
            "FIRST": self.first, "LAST": self.last,
        }  # fmt: skip

    @property
    def threads(self) -> int:
        """Of a unit: one group of warps copies, two multiply, one finishes."""
        return 128 * (1 + 2 * self.multiply + self.first)

    @property
    def shared_bytes(self) -> int:
        """Of a unit's buffers."""
        return OUTSIDE + self.stages * (self.rows + self.cols) * STEP * 2 + self.slots * 2 * 64 * 64 * 2


# Tiles, and for each buffers of A and B and of what is added, for which there is room.
BUFFERS = {
    (128, 192): ((4, 1), (4, 2), (4, 3)),
    (128, 128): ((6, 1), (5, 2), (5, 3)),
    (256, 192): ((3, 1), (3, 2), (3, 3)),
    (256, 128): ((4, 1), (4, 2), (3, 3)),
}
# What is added is asked for as early as there are buffers, or by and by: of all steps, so many are done then.
SHARES = 0.0, 0.5, 0.75


def alike(problem: tuple[int, int, int]) -> dict[tuple[int, int], list[Part]]:
    """Parts that do nothing yet, for every tile that fits: what is added can be brought in several ways."""
    m, n, k = problem
    found = {}
    for (rows, cols), buffers in BUFFERS.items():
        if m * n % (rows * cols * UNITS) or n % cols:
            continue
        steps_for_part = k / STEP * 64 * 64 / (rows * cols)
        found[rows, cols] = [
            Part(m, n, k, rows, cols, stages, slots, round(4 * share * steps_for_part))
            for stages, slots in buffers
            for share in SHARES
        ]
    return found


def moved(part: Part) -> Part:
    """One that multiplies, and moves all that has to be moved."""
    return replace(part, copy=True, multiply=True, beside=True)


def finished(part: Part) -> Part:
    """One that does all there is to do."""
    return replace(moved(part), first=part.tiles > 1, last=2)


def steps_between(fastest_moved: Part, fastest_finished: Part) -> list[Part]:
    """From a product alone to all that there is to do, of one tile."""
    alone = replace(fastest_moved, beside=False)
    return [
        replace(alone, copy=False),
        replace(fastest_moved, multiply=False),
        alone,
        replace(alone, last=2),
        fastest_moved,
        replace(fastest_moved, last=1),
        *([replace(fastest_finished, last=last) for last in (0, 1)] if fastest_finished.first else []),
        fastest_finished,
    ]


@dataclass(frozen=True)
class Tensors:
    """A [M, K], B [N, K], two addends and the output [M, N], all fp16."""

    a: torch.Tensor
    b: torch.Tensor
    addends: tuple[torch.Tensor, torch.Tensor]
    output: torch.Tensor


def tensors(problem: tuple[int, int, int]) -> Tensors:
    """Random ones."""
    torch.manual_seed(0)
    m, n, k = problem

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").half()

    return Tensors(randn(m, k), randn(n, k), (randn(m, n), randn(m, n)), randn(m, n))


def launcher(part: Part, given: Tensors) -> Callable[[], None]:
    """A function that launches a part's kernel.

    Raises:
        RuntimeError: what the compiler or the driver says.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    options = ["--gpu-architecture=sm_90a", *(f"-D{name}={value:d}" for name, value in part.defines.items())]
    program = taken(
        nvrtc.nvrtcCreateProgram(
            (multiply_add(part.cols) + SOURCE.read_text()).encode(), b"ablation.cu", 0, [], []
        )
    )
    if nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]:
        log = b" " * taken(nvrtc.nvrtcGetProgramLogSize(program))
        taken(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    binary = b" " * taken(nvrtc.nvrtcGetCUBINSize(program))
    taken(nvrtc.nvrtcGetCUBIN(program, binary))
    kernel = taken(driver.cuModuleGetFunction(taken(driver.cuModuleLoadData(binary)), b"ablation"))
    wanted = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    taken(driver.cuFuncSetAttribute(kernel, wanted, part.shared_bytes))
    boxes = ((given.a, 128), (given.b, part.cols), *((x, 64) for x in (*given.addends, given.output)))
    maps = [descriptor(driver, tensor, rows) for tensor, rows in boxes]
    arguments = (
        (*maps, part.n // part.cols, part.k // STEP),
        (*(None for _ in maps), ctypes.c_int, ctypes.c_int),
    )

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        taken(
            driver.cuLaunchKernel(
                kernel, UNITS, 1, 1, part.threads, 1, 1, part.shared_bytes, stream, arguments, 0
            )
        )

    return launch


def multiply_add(cols: int) -> str:
    """CUDA: `wgmma` of 64 rows and `cols` columns, sums += (or =, where not `add`) x @ y."""
    sums = ", ".join(f"%{i}" for i in range(cols // 2))
    outputs = ", ".join(f'"+f"(sums[{i}])' for i in range(cols // 2))
    x = cols // 2
    return f"""
__device__ __forceinline__ void multiply_add(
    float (&sums)[{x}], unsigned long long x, unsigned long long y, int add) {{
  asm volatile(
      "{{ .reg .pred p; setp.ne.b32 p, %{x + 2}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{cols}k16.f32.f16.f16 {{{sums}}}, %{x}, %{x + 1}, p, 1, 1, 0, 0; }}"
      : {outputs} : "l"(x), "l"(y), "r"(add));
}}
"""


def descriptor(driver: Any, tensor: torch.Tensor, rows: int) -> Any:
    """Of a matrix, for TMA: boxes of rows x 64, with the swizzle of 128 bytes."""
    return taken(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in reversed(tensor.shape)],
            [driver.cuuint64_t(tensor.stride(0) * tensor.element_size())],
            [driver.cuuint32_t(size) for size in (64, rows)],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


def taken(returned: tuple[Any, ...]) -> Any:
    """What a function of CUDA returns beside its status.

    Raises:
        RuntimeError: the status is an error.
    """
    status, *found = returned
    if int(status):
        raise RuntimeError(f"CUDA says {status!r}.")
    return found[0] if found else None


def expected(part: Part, given: Tensors) -> torch.Tensor:
    """The output that a part's kernel leaves, fp32; NaN where it stores nothing."""

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    nowhere = torch.full_like(given.output, torch.nan, dtype=torch.float32)
    again = given.addends[0].float() if part.copies_out else nowhere
    first = gelu(given.addends[0].float() + given.addends[1].float()) if part.first else again
    last = gelu(given.a.float() @ given.b.float().T) if part.last == 2 else again
    output = nowhere.clone()
    group = 1024 // part.rows
    across = part.n // part.cols
    for number in range(UNITS * part.tiles):
        row = (number // (group * across) * group + number % group) * part.rows
        col = number % (group * across) // group * part.cols
        source = last if number >= UNITS * (part.tiles - 1) else first
        here = slice(row, row + part.rows), slice(col, col + part.cols)
        output[here] = source[here]
    return output


def verified(part: Part, given: Tensors) -> Callable[[], None]:
    """:func:`launcher` of a part that leaves what it should, with cold caches and with warm ones.

    Raises:
        AssertionError: it does not.
        RuntimeError: as :func:`launcher`.
    """
    launch, should_be = launcher(part, given), expected(part, given)
    stored = ~should_be.isnan()
    for _ in range(3):
        given.output.fill_(torch.nan)
        launch()
        torch.testing.assert_close(given.output[stored].float(), should_be[stored], rtol=2e-3, atol=2e-3)
    return launch


def timed_together(parts: list[Part], given: Tensors) -> dict[Part, float]:
    """Milliseconds."""
    times = measure_together({part.name: verified(part, given) for part in parts}, mode="burst", rounds=3)
    return {part: times[part.name].median_ms for part in parts}


def race(problem: tuple[int, int, int]) -> None:
    """Print what parts of one product take, brought in the ways that are the fastest."""
    given = tensors(problem)
    b = given.b.T.contiguous()
    chain = add(given.addends[0]) | add(given.addends[1]) | fast_gelu()
    rows: list[Part] = []
    for same in alike(problem).values():
        fastest = []
        for way in (moved, finished):
            timed = timed_together([way(part) for part in same], given)
            fastest.append(min(timed, key=lambda part: timed[part]))
        rows += steps_between(*fastest)
    raced: dict[str, Callable[[], object]] = {
        "the product alone, as it ships": lambda: ops.matmul(given.a, b),
        "the whole chain, as it ships": lambda: ops.fused_matmul(given.a, b, epilogue=chain),
    }
    raced |= {part.name: verified(part, given) for part in rows}
    times = measure_together(raced, mode="burst")
    bare = next(iter(times.values())).median_ms
    print(f"\n{device.current().name}, {' x '.join(map(str, problem))}, fp16, bursts\n")
    print("| tile, stages, buffers of addends, steps for a part: what is done | us | over the product |")
    print("| --- | --- | --- |")
    for name, found in times.items():
        print(f"| {name} | {found.median_ms * 1e3:.2f} | {found.median_ms / bare:.3f} |")


def main() -> int:
    """Race the parts of each product; return the exit status."""
    if device.current().architecture != "sm_90":
        print(f"This needs a Hopper GPU (sm_90), not {device.current().architecture}.")
        return 1
    try:
        importlib.import_module("cuda.bindings")
    except ModuleNotFoundError:
        print(f"This needs NVIDIA's bindings: {sys.executable} -m pip install cuda-bindings")
        return 1
    for problem in PROBLEMS:
        race(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
