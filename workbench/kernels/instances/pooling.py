"""Instances of pooling: windows of images, reduced. Which is the fastest was not measured."""

from __future__ import annotations

# Rows are windows of neighbors, columns taps; each row of taps goes over one by one, or all at once.
ROWS, WARPS = (128, 256, 512, 1024), (4, 8)
