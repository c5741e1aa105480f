"""Instances of row operators: reductions, softmax, norms, which share one template."""

# Columns of a tile; elements of a tile of several rows.
COLUMNS, ELEMENTS = (1024, 4096, 16384), 4096
WARPS = (4, 8)

# Programs that share a row of several tiles.
SPLITS = (2, 8)
