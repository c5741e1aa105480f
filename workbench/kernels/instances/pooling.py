"""Instances of pooling. Their times were not measured."""

from __future__ import annotations

# Rows of a tile: windows, whose taps are reduced one by one. Warps of a program.
ROWS, WARPS = (128, 256, 512, 1024), (4, 8)
