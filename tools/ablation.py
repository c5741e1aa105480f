"""Ablation of a fused product: the times of its parts, alone and together: `python -m tools.ablation`.

It answers what it costs to copy, to multiply, to add two matrices, to apply GELU and to store. `ablation.cu`,
in CUDA for a Hopper GPU, does some or all of these for products in fp16 with TMA and `wgmma`; each part has a
warp or a warp group of its own. Warp groups do not wait for each other's sums: the one that finishes a tile
uses numbers of its own. The kernels are timed in bursts together with the shipped product and the shipped
chain. The times are not lower bounds: a kernel that orders its copies better may be faster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tools import hopper
from tools.hopper import OUTSIDE
from workbench import device, ops
from workbench.bench import measure_together
from workbench.kernels.epilogues import add, fast_gelu

PROBLEMS = (2048, 3072, 768), (2048, 2048, 2048)
STEP = 64  # along K
UNITS = 128  # SMs in use, each with the same number of tiles
SOURCE = Path(__file__).with_suffix(".cu")


@dataclass(frozen=True)
class Part:
    """A kernel that does a part of the work.

    Attributes:
        m, n, k: the sizes of the product.
        rows, cols: the sizes of a tile.
        stages, slots: the number of buffers for A and B, and for the addends.
        pace: the rate of loading the addends, in quarters of a step for each part of a tile.
        copy, multiply, addends, first, last: the macros of `ablation.cu` with these names.
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
    addends: bool = False
    first: bool = False
    last: int = 0

    @property
    def tiles(self) -> int:
        """The number of tiles that each SM computes."""
        return self.m * self.n // (self.rows * self.cols * UNITS)

    @property
    def copies_out(self) -> bool:
        """True if the unchanged addends are stored, because no results are."""
        return self.addends and not self.first and (self.tiles > 1 or self.last < 2)

    @property
    def name(self) -> str:
        """A description of the sizes and of the work that is done."""
        done = [
            "A and B copied" if self.copy else "",
            "multiplied" if self.multiply else "",
            "addends copied, stored again" if self.copies_out else "addends copied" if self.addends else "",
            "all added, all but the last tile finished and stored" if self.first else "",
            ("", "gelu of the last tile", "gelu of the last tile, stored")[self.last],
        ]
        return f"{self.rows} x {self.cols}, {self.stages}, {self.slots}, {self.pace / 4}: " + "; ".join(
            filter(None, done)
        )

    @property
    def defines(self) -> dict[str, int]:
        """The macros of `ablation.cu`."""
        return {
            "BM": self.rows, "BN": self.cols, "TILES": self.tiles, "STAGES": self.stages, "SLOTS": self.slots,
            "PACE": self.pace, "COPY": self.copy, "MULTIPLY": self.multiply, "ADDENDS": self.addends,
            "FIRST": self.first, "LAST": self.last,
        }  # fmt: skip

    @property
    def threads(self) -> int:
        """The number of threads of an SM: one warp group copies, two multiply, one finishes."""
        return 128 * (1 + 2 * self.multiply + self.first)

    @property
    def shared_bytes(self) -> int:
        """The shared memory of an SM's buffers, in bytes."""
        return OUTSIDE + self.stages * (self.rows + self.cols) * STEP * 2 + self.slots * 2 * 64 * 64 * 2


# Tiles, and for each the numbers of buffers for A and B, and for the addends, that fit in shared memory.
BUFFERS = {
    (128, 192): ((4, 1), (4, 2), (4, 3)),
    (128, 128): ((6, 1), (5, 2), (5, 3)),
    (256, 192): ((3, 1), (3, 2), (3, 3)),
    (256, 128): ((4, 1), (4, 2), (3, 3)),
}
# The addends are loaded as early as buffers allow (0), or spread over this share of the steps.
SHARES = 0.0, 0.5, 0.75


def parts_by_tile(problem: tuple[int, int, int]) -> dict[tuple[int, int], list[Part]]:
    """Return parts that do no work yet: for each tile that fits, one for each way to load the addends.

    A tile fits if its columns divide N and each SM gets the same number of tiles.
    """
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


def with_copies_and_products(part: Part) -> Part:
    """Return the part with all copies and products."""
    return replace(part, copy=True, multiply=True, addends=True)


def with_all_work(part: Part) -> Part:
    """Return the part with all the work."""
    return replace(with_copies_and_products(part), first=part.tiles > 1, last=2)


def steps_between(fastest_copying: Part, fastest_finished: Part) -> list[Part]:
    """Return the parts of one tile that do more and more work: from multiplying alone to all the work."""
    alone = replace(fastest_copying, addends=False)
    return [
        replace(alone, copy=False),
        replace(fastest_copying, multiply=False),
        alone,
        replace(alone, last=2),
        fastest_copying,
        replace(fastest_copying, last=1),
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
    """Return random tensors for a problem."""
    torch.manual_seed(0)
    m, n, k = problem

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").half()

    return Tensors(randn(m, k), randn(n, k), (randn(m, n), randn(m, n)), randn(m, n))


def launcher(part: Part, given: Tensors) -> Callable[[], None]:
    """Compile a part's kernel and return a function that launches it.

    Raises:
        RuntimeError: the error of the compiler or the driver.
    """
    kernel = hopper.Kernel(SOURCE, "ablation", [part.cols], part.defines, part.shared_bytes)
    boxes = ((given.a, 128), (given.b, part.cols), *((x, 64) for x in (*given.addends, given.output)))
    maps = [hopper.descriptor(tensor, rows) for tensor, rows in boxes]
    sizes = part.n // part.cols, part.k // STEP
    return partial(kernel.launch, UNITS, part.threads, *maps, *sizes)


def expected(part: Part, given: Tensors) -> torch.Tensor:
    """Return the expected output of a part's kernel in fp32; NaN for elements that it does not store."""

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
    """Return the function that :func:`launcher` makes for a part, after checking its output three times.

    The first run has cold caches, and the others warm ones.

    Raises:
        AssertionError: the output is wrong.
        RuntimeError: as in :func:`launcher`.
    """
    launch, should_be = launcher(part, given), expected(part, given)
    stored = ~should_be.isnan()
    for _ in range(3):
        given.output.fill_(torch.nan)
        launch()
        torch.testing.assert_close(given.output[stored].float(), should_be[stored], rtol=2e-3, atol=2e-3)
    return launch


def timed_together(parts: list[Part], given: Tensors) -> dict[Part, float]:
    """Time several parts together; return the median of each in milliseconds."""
    times = measure_together({part.name: verified(part, given) for part in parts}, mode="burst", rounds=3)
    return {part: times[part.name].median_ms for part in parts}


def race(problem: tuple[int, int, int]) -> None:
    """Print the times of a product's parts, each with the fastest way to load the addends."""
    given = tensors(problem)
    b = given.b.T.contiguous()
    chain = add(given.addends[0]) | add(given.addends[1]) | fast_gelu()
    rows: list[Part] = []
    for same in parts_by_tile(problem).values():
        fastest = []
        for way in (with_copies_and_products, with_all_work):
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
    if missing := hopper.is_missing():
        print(missing)
        return 1
    for problem in PROBLEMS:
        race(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
