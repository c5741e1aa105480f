"""Contention: how fast a warp group works while another one multiplies: `python -m tools.contention`.

A fused product overlaps its other work with products: one warp group finishes a tile while another one
multiplies. This tool measures how fast each is then. `contention.cu`, in CUDA for a Hopper GPU, lets every SM
multiply by `wgmma` of a given width, with both operands in shared memory, while another warp group reads or
writes shared memory, computes, or finishes parts of a tile.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from tools import hopper
from tools.hopper import OUTSIDE
from workbench import device

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 384  # threads of an SM: three warp groups
BYTES = 64 * 64 * 2 * (1 + 4 + 3)  # a block of A, one of B with 256 columns, and three parts
STEPS, CLOCKS = 2000, 400_000  # the length of a run: steps of products, or clocks without products

# The columns of products: of one instruction, or of two that alternate.
PRODUCTS = (0, 0), (64, 0), (128, 0), (128, 64), (192, 0), (256, 0)
# The work beside the products: its name, the amount at a time, and the unit of its rate.
PART_BYTES, PART_NUMBERS = 2 * 64 * 64 * 2, 64 * 64
BESIDE = {
    1: ("reads", PART_BYTES, "bytes a clock"),
    2: ("writes", PART_BYTES, "bytes a clock"),
    3: ("exponentials", PART_NUMBERS, "a clock"),
    4: ("multiplications", PART_NUMBERS, "a clock"),
    5: ("a part", 0, "clocks"),
    6: ("a part, with two barriers", 0, "clocks"),
}


@dataclass(frozen=True)
class Found:
    """The results of a run, from medians over all SMs.

    Attributes:
        products: the rate of products as a fraction of the peak rate; NaN without products.
        clocks: the clocks for doing the work beside the products once; NaN without such work.
    """

    products: float
    clocks: float


def measure(columns: tuple[int, int], beside: int) -> Found:
    """Measure the products and the work beside them.

    Args:
        columns: the columns of products, one of `PRODUCTS`.
        beside: the work beside the products, a key of `BESIDE`, or 0 for none.

    Raises:
        RuntimeError: the error of the compiler or the driver.
    """
    left, right = columns
    defines = {"LEFT": left, "RIGHT": right, "BESIDE": beside, "BYTES": BYTES}
    kernel = hopper.Kernel(SOURCE, "contention", [each for each in columns if each], defines, OUTSIDE + BYTES)
    units = device.current().compute_units
    found = torch.zeros(units, 3, dtype=torch.int64, device="cuda")
    results = torch.zeros(units, 64 * 64, dtype=torch.float16, device="cuda")
    for _ in range(2):  # the first launch warms up
        kernel.launch(units, THREADS, found, results, STEPS if left else CLOCKS)
    multiplying, often, doing = found.double().quantile(0.5, dim=0).tolist()
    # A block of 64 x columns and a step of 64 keep the matrix units busy for 2 clocks a column.
    roof = STEPS * 2 * sum(columns)
    return Found(roof / multiplying if left else torch.nan, doing / often if often else torch.nan)


def rate(beside: int, clocks: float) -> float:
    """Convert clocks to the unit that `BESIDE` names."""
    _, much, _ = BESIDE[beside]
    return much / clocks if much else clocks


def main() -> int:
    """Print the rates of all work beside each kind of products; return the exit status."""
    if missing := hopper.is_missing():
        print(missing)
        return 1
    print(f"{torch.cuda.get_device_name()}; in parentheses how fast products are made meanwhile\n")
    head = ["columns of products", *(f"{name} ({unit})" for name, _, unit in BESIDE.values())]
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for columns in PRODUCTS:
        cells = [" and ".join(str(each) for each in columns if each) or "none"]
        for beside in BESIDE:
            found = measure(columns, beside)
            much = rate(beside, found.clocks)
            cells.append(f"{much:.3g}" if beside < 5 else f"{much:.0f}")
            cells[-1] += f" ({found.products:.2f})" if columns[0] else ""
        print("| " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
