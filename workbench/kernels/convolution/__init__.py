"""Convolutions as GEMMs of described matrices, and pooling."""

from workbench.kernels.convolution.windows import (
    KINDS,
    Geometry,
    backward_data,
    backward_data_phases,
    gradient_windows,
    image_of,
    input_windows,
    launch,
    phases_of,
    run,
    sides_of,
)

__all__ = [
    "KINDS",
    "Geometry",
    "backward_data",
    "backward_data_phases",
    "gradient_windows",
    "image_of",
    "input_windows",
    "launch",
    "phases_of",
    "run",
    "sides_of",
]
