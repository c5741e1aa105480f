"""relu(a @ b)^2: a product with an epilogue of its own, in one file."""

import torch
import triton
import triton.language as tl

from workbench import ops
from workbench.kernels import epilogues
from workbench.operators import Accuracy, OperatorSpec, by_rows, given, some_rows
from workbench.operators.accuracy import matmul_precision


@triton.jit
def squared_relu(tile, operands, place):
    above = tl.maximum(tile, 0.0)
    return above * above


CHAIN = epilogues.own(squared_relu, meaning=lambda x, operands, place: x.relu().square(), flops=2)


def matmul_squared_relu(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return ops.fused_matmul(input, other, epilogue=CHAIN)


def meaning(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """relu(input @ other)^2"""
    return (input @ other).relu().square()


SPECS = (
    OperatorSpec(
        "matmul_squared_relu", meaning, case={"m": (40, 4096), "n": (24, 4096), "k": (30, 4096)},
        arguments=lambda draw, m, n, k: given(draw(m, k), draw(k, n)),
        instances=lambda a, b: ops.fused_matmul.instances(a, b, epilogue=CHAIN),
        accuracy=lambda a, b: (Accuracy(2 * a.shape[1], a.shape[1]),), function=matmul_squared_relu,
        fp32_precision=matmul_precision, parts=by_rows(0, blocks=some_rows),
    ),
)  # fmt: skip
