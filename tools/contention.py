"""Contention: what a group of warps gets done while another one multiplies: `python -m tools.contention`.

A fused product hides what it does besides multiplying behind products: of two groups of warps one finishes a
tile while the other one multiplies. How fast is it then? `contention.cu`, in CUDA, for a Hopper GPU, lets
every unit (SM) multiply by `wgmma` of one width or another, whose blocks both lie in shared memory, and
another group read or write there, or compute, or finish parts of a tile.
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
THREADS = 384  # of a unit
BYTES = 64 * 64 * 2 * (1 + 4 + 3)  # of a block of A, of one of B with 256 columns, and of three parts
STEPS, CLOCKS = 2000, 400_000  # of products; where nothing is multiplied

# Of products: columns, of one instruction or of two in turns.
PRODUCTS = (0, 0), (64, 0), (128, 0), (128, 64), (192, 0), (256, 0)
# What is done beside: how much at a time, of what.
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
    """What medians of all units make.

    Attributes:
        products: how fast they were made, of how fast they can be (0 to 1); NaN where there are none.
        clocks: that it took to do once what is done beside; NaN where nothing is.
    """

    products: float
    clocks: float


def measured(columns: tuple[int, int], beside: int) -> Found:
    """What a unit gets done.

    Args:
        columns: of products, one of `PRODUCTS`. beside: a key of `BESIDE`, or 0.

    Raises:
        RuntimeError: what the compiler or the driver says.
    """
    left, right = columns
    defines = {"LEFT": left, "RIGHT": right, "BESIDE": beside, "BYTES": BYTES}
    kernel = hopper.Kernel(SOURCE, "contention", [each for each in columns if each], defines, OUTSIDE + BYTES)
    units = device.current().compute_units
    found = torch.zeros(units, 3, dtype=torch.int64, device="cuda")
    results = torch.zeros(units, 64 * 64, dtype=torch.float16, device="cuda")
    for _ in range(2):  # the first one is to warm up
        kernel.launch(units, THREADS, found, results, STEPS if left else CLOCKS)
    multiplying, often, doing = found.double().quantile(0.5, dim=0).tolist()
    # A block of 64 x columns and a step of 64 keep the matrix units busy for 2 clocks a column.
    roof = STEPS * 2 * sum(columns)
    return Found(roof / multiplying if left else torch.nan, doing / often if often else torch.nan)


def rate(beside: int, clocks: float) -> float:
    """What was found, in the unit that `BESIDE` says."""
    _, much, _ = BESIDE[beside]
    return much / clocks if much else clocks


def main() -> int:
    """Print what is done beside each kind of products; return the exit status."""
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
            found = measured(columns, beside)
            much = rate(beside, found.clocks)
            cells.append(f"{much:.3g}" if beside < 5 else f"{much:.0f}")
            cells[-1] += f" ({found.products:.2f})" if columns[0] else ""
        print("| " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
