"""Convolutions as GEMMs of described matrices, and pooling."""

from workbench.kernels.convolution.geometry import (
    Geometry,
    Phase,
    backward_data_phases,
    phases_of,
    sides_of,
)
from workbench.kernels.convolution.images import (
    Image,
    image_of,
)
from workbench.kernels.convolution.implicit_gemm import (
    Configuration,
    Options,
)
from workbench.kernels.convolution.invoker import (
    launch,
)
from workbench.kernels.convolution.products import (
    KINDS,
    ConvolutionGemm,
    backward_data,
)
from workbench.kernels.convolution.windows import (
    gradient_windows,
    input_windows,
)

__all__ = [
    "KINDS",
    "Configuration",
    "ConvolutionGemm",
    "Geometry",
    "Image",
    "Options",
    "Phase",
    "backward_data",
    "backward_data_phases",
    "gradient_windows",
    "image_of",
    "input_windows",
    "launch",
    "phases_of",
    "sides_of",
]
