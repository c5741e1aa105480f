"""Tensor coordinates: pure index algebra, in the words of Composable Kernel."""

from workbench.coords.distribution import TileDistributionEncoding

__all__ = ["TileDistributionEncoding"]
