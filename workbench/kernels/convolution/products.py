"""Convolutions as matrix products: descriptors of the matrices for the kernels of GEMM.

Forward: output[(n, out), k] = input[(n, out), (taps, c)] @ weight[(taps, c), k]. The descriptor finds the
input's element for an output pixel and a tap; the matrix is never laid out in memory (implicit GEMM; Chetlur
et al., cuDNN, 2014, section 3). Backward for data sums over taps and k; with stride s it is up to s products
for each dimension, one for each remainder of a pixel's position modulo s (Composable Kernel's backward data
"v4r1"). Backward for weight sums over pixels. Groups are a batch of products. The number of images is a
symbol, so another number of images neither generates nor compiles code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from workbench.kernels.convolution.geometry import Geometry, Lengths, backward_data_phases
from workbench.kernels.convolution.images import Image, image_of
from workbench.kernels.convolution.windows import (
    gradient_windows,
    input_windows,
    output_features,
    output_pixels,
    phase_input,
    phase_weight,
    weight_columns,
    weight_rows,
)
from workbench.kernels.movement.view_transfer import IMAGES_NAME
from workbench.kernels.views import View


class ConvolutionGemm(NamedTuple):
    """One of the matrix products of a convolution.

    Attributes:
        a, b, output: the matrices.
        images: the image or weight of which `a` is a view, and the image or weight of which `b` is a view.
        shape: shape of the part of the result that this product computes.
    """

    a: View
    b: View
    output: View
    images: tuple[Image, Image]
    shape: Lengths


def forward(
    input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[ConvolutionGemm]:
    """Return the product that computes the convolution of input and weight.

    Args:
        input: (n, channels, sizes...), of any strides. weight: (features, channels / groups, taps...).
        output: (n, features, outputs...).
        geometry: of the convolution.
    """
    count = {IMAGES_NAME: input.shape[0]}
    image = image_of(input, geometry.groups, is_gathered=geometry.is_gathered)
    channels, order = image.channels, image.order
    kernel = image_of(weight, least=channels)
    return [
        ConvolutionGemm(
            View(image.tensor, input_windows(geometry, channels, image.strides, order), count),
            View(kernel.tensor, weight_columns(geometry, channels, kernel.of_weight, order), {}),
            View(output, output_pixels(geometry, _strides_of(output, geometry.groups)), count),
            (image, kernel),
            tuple(output.shape),
        )
    ]


def backward_data(
    grad: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[ConvolutionGemm]:
    """Return the products, one for each phase, that compute the input's gradient from the output's.

    Args:
        grad: (n, features, outputs...). weight: (features, channels / groups, taps...).
        output: (n, channels, sizes...).
        geometry: of the convolution.
    """
    count = {IMAGES_NAME: grad.shape[0]}
    image = image_of(grad, geometry.groups, is_gathered=geometry.is_gathered)
    kernel = image_of(weight)
    features, order = image.channels, image.order
    return [
        ConvolutionGemm(
            View(image.tensor, gradient_windows(geometry, features, image.strides, phases, order), count),
            View(kernel.tensor, phase_weight(geometry, features, kernel.of_weight, phases, order), {}),
            View(output, phase_input(geometry, _strides_of(output, geometry.groups), phases), count),
            (image, kernel),
            (*output.shape[:2], *(phase.count for phase in phases)),
        )
        for phases in backward_data_phases(geometry)
    ]


def backward_weight(
    grad: torch.Tensor, input: torch.Tensor, output: torch.Tensor, *, geometry: Geometry
) -> list[ConvolutionGemm]:
    """Return the product that computes the weight's gradient from the output's.

    Args:
        grad: (n, features, outputs...). input: (n, channels, sizes...).
        output: (features, channels / groups, taps...).
        geometry: of the convolution.
    """
    count = {IMAGES_NAME: grad.shape[0]}
    image = image_of(input, geometry.groups, is_gathered=geometry.is_gathered)
    of_grad = image_of(grad, geometry.groups, is_gathered=False)
    features, channels, order = of_grad.channels, image.channels, image.order
    return [
        ConvolutionGemm(
            View(of_grad.tensor, output_features(geometry, features, of_grad.strides), count),
            View(image.tensor, input_windows(geometry, channels, image.strides, order), count),
            View(output, weight_rows(geometry, features, channels, output.stride(), order), {}),
            (of_grad, image),
            tuple(output.shape),
        )
    ]


KINDS: Mapping[str, Callable[..., list[ConvolutionGemm]]] = {
    "forward": forward,
    "backward_data": backward_data,
    "backward_weight": backward_weight,
}


def _strides_of(tensor: torch.Tensor, groups: int) -> Lengths:
    """Return the strides of (n, group, channel, sizes...)."""
    of_image, of_channel, *of_sizes = tensor.stride()
    return (of_image, tensor.shape[1] // groups * of_channel, of_channel, *of_sizes)
