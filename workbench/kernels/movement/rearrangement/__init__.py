"""Operators that only move data, as descriptors: flips, shifts, padding, windows."""

from workbench.kernels.movement.rearrangement.chains import Flattened, How, Windows, flip, pad, roll
from workbench.kernels.movement.rearrangement.invoker import fold, launch

__all__ = ["Flattened", "How", "Windows", "flip", "fold", "launch", "pad", "roll"]
