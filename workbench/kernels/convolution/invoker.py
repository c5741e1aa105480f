"""Invoker of convolutions: copies where the products need them, then the products."""

from __future__ import annotations

from typing import Unpack

import torch

from workbench.errors import InvalidArgumentError, check_name, in_brief
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.convolution.geometry import Geometry
from workbench.kernels.convolution.implicit_gemm import Options
from workbench.kernels.convolution.products import KINDS
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.kernels.gemm import with_epilogue
from workbench.kernels.layout import least_bytes
from workbench.launch import Launch, Work


def launch(
    kind: str,
    first: torch.Tensor,
    second: torch.Tensor,
    output: torch.Tensor,
    *,
    geometry: Geometry,
    epilogue: Epilogue | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """Return the launch of a convolution or of one of its gradients: copies, if needed, then products.

    Args:
        kind: a name in `KINDS`.
        first, second, output: the tensors that the function in `KINDS` takes.
        geometry: of the convolution.
        epilogue: functors applied to the result before it is stored; None for none. For "forward", their
            tensors broadcast to the image (n, features, outputs...). For "backward_data", which has a product
            for each phase, they have one value for each channel, as a bias does. "backward_weight" takes no
            epilogue.
        precision: of fp32: "ieee" or "tf32".
        options: tile and other options, see `implicit_gemm.Options`.

    Raises:
        UnknownNameError: `kind` is unknown. InvalidArgumentError: `kind` does not take this epilogue. Errors
            of the other arguments: see `implicit_gemm.launch`.
    """
    check_name("kind", kind, KINDS)
    is_taken = kind == "forward" or (kind == "backward_data" and epilogue and not _has_pixels(epilogue))
    if epilogue is not None and not is_taken:
        fix = (
            'Give None, or functors whose tensors have one value for each channel with kind "backward_data".'
        )
        raise InvalidArgumentError("epilogue", f"kind {kind!r} does not take {in_brief(epilogue)}", fix)
    work = Work(geometry.flops(first.shape[0]), least_bytes(first, second, output))
    products = KINDS[kind](first, second, output, geometry=geometry)
    copies = [image.launch for image in products[0].images if image.launch is not None]
    parts = [
        implicit_gemm.launch(
            one.a,
            one.b,
            one.output,
            epilogue=epilogue,
            frame=None if epilogue is None else ImageFrame(one.shape, geometry.groups),
            work=work,
            precision=precision,
            **options,
        )
        for one in products
    ]
    steps = [step for part in (*copies, *parts) for step in part.steps]
    spaces = [space for copy in copies for space in copy.outputs]
    spaces += [space for part in parts for space in part.workspaces]
    if epilogue is not None:
        work = with_epilogue(work, epilogue, output.numel())
    return Launch(tuple(steps), (output,), work=work, workspaces=tuple(spaces))


def _has_pixels(epilogue: Epilogue) -> bool:
    """Return whether an epilogue depends on the pixel: by an operand with pixels, or by its position."""
    return any(
        one.uses_place
        or any(isinstance(each.value, torch.Tensor) and each.along != "columns" for each in one.operands)
        for one in epilogue.functors
    )
