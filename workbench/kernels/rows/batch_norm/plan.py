"""Plans of batch norm and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.kernels.channels import CHANNEL, GROUP, IMAGE, Channels, Lengths, described
from workbench.kernels.rows import normalization
from workbench.kernels.rows.rowwise import FREE, Fixed, Plan
from workbench.kernels.views import Described

# With known statistics, pixels that are neighbors in memory are the columns. More than MOST_COLS of them are
# divided into rows, by their largest divisor from FEWEST_COLS to MOST_COLS, if there is one.
MOST_COLS, FEWEST_COLS = 4096, 128


def by_channel(channels: Channels) -> tuple[Lengths, Lengths]:
    """Return the dimensions that are rows and columns, where a row is a channel.

    Images come first among the columns, so that generated code does not depend on their number.
    """
    return (GROUP, CHANNEL), (IMAGE, *channels.sizes)


def described_each(
    channels: Channels, tensors: Sequence[torch.Tensor], rows: Lengths, cols: Lengths
) -> list[Described]:
    """Return tensors as matrices; all are taken to have their neighbors in memory where the last one has."""
    alike = channels._replace(strides=channels.strides[-1:])
    views = [
        channels.view(t, strides, rows, cols) for t, strides in zip(tensors, channels.strides, strict=True)
    ]
    return [described(view, alike, rows, cols) for view in views]


def planned(matrix: Described, fixed: Fixed = FREE) -> Plan:
    """Return how programs share `matrix`: the plan of layer norm."""
    return normalization.planned("layer_norm", matrix, matrix.view.tensor.element_size(), fixed)
