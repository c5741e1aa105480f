"""Operators agree with their references, also for arguments that no case of their spec has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workbench import ops
from workbench.kernels import reference
from workbench.kernels.attention import Scoring, Window
from workbench.kernels.epilogues import add, bias, dropout, gelu, multiply, relu, silu


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y, BATCH = numbers(5, 7), numbers(7, 4, seed=1), numbers(2, 3, 5, seed=2)
HEADS = numbers(2, 4, 7, 5, seed=8)

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add": (X, numbers(7, seed=3)),
    "clone": (X.t(),),
    "transpose_copy": (X, 0, 1),
    "permute_copy": (BATCH, (2, 0, 1)),
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin"), (X, 1)),
    **dict.fromkeys(("all", "any"), (X > 1.5, 1)),
    "norm": (X, 3, 1),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), (X, 1)),
    "cross_entropy": (X, torch.arange(5)),
    "layer_norm": (X, (7,), X[0], X[1]),
    "rms_norm": (X, (7,), X[0]),
    "group_norm": (numbers(2, 6, 3, 5, seed=6), 2, X[0, :6], X[1, :6]),
    "batch_norm": (numbers(2, 7, 3, seed=6), X[0], X[1].abs(), X[2], X[3]),
    **dict.fromkeys(("avg_pool2d", "max_pool2d"), (numbers(2, 3, 7, 8, seed=6), 3, 2, 1)),
    "matmul": (BATCH, numbers(5, 2, seed=4)),
    "mm": (X, Y),
    "bmm": (BATCH, BATCH.mT),
    "addmm": (Y[0], X, Y),
    "baddbmm": (BATCH[:, :, :3], BATCH, BATCH.mT),
    "linear": (X, Y.t(), Y[0]),
    **dict.fromkeys(("grouped_mm", "fused_grouped_mm"), (X, numbers(2, 7, 4, seed=5))),
    "fused_matmul": (BATCH, numbers(5, 2, seed=4)),
    "fused_conv2d": (numbers(2, 4, 6, 6, seed=6), numbers(6, 2, 2, 2, seed=7), Y[0, :1].expand(6)),
    **dict.fromkeys(
        [f"matmul_{name}" for name in ("softmax", "log_softmax", "sum", "mean", "norm", "amax", "amin")],
        (BATCH, numbers(5, 40, seed=4)),
    ),
    **dict.fromkeys(("matmul_argmax", "matmul_logsumexp"), (BATCH, numbers(5, 40, seed=4), True)),
    "matmul_layer_norm": (BATCH, numbers(5, 40, seed=4), numbers(40, seed=9), numbers(40, seed=10)),
    "matmul_rms_norm": (BATCH, numbers(5, 40, seed=4), numbers(40, seed=9)),
    "matmul_matmul": (BATCH, numbers(5, 6, seed=4), numbers(6, 3, seed=9), "gelu"),
    "swiglu": (BATCH, numbers(5, 6, seed=4), numbers(5, 6, seed=9)),
    "geglu": (BATCH, numbers(5, 6, seed=4), numbers(5, 6, seed=9), "tanh"),
    **{
        f"conv{rank}d": (
            numbers(2, 4, *(6,) * rank, seed=6),
            numbers(6, 2, *(2,) * rank, seed=7),
            Y[0, :1].expand(6),
        )
        for rank in (1, 2, 3)
    },
    "scaled_dot_product_attention": (HEADS, HEADS[:, :1], HEADS[:, 1:2], None, 0.0, True, 0.4, True),
    "attention": (HEADS, HEADS[:, :1], HEADS[:, 1:2], Scoring(window=Window(2, 1, -1))),
    "conv_transpose2d": (numbers(2, 4, 3, 5, seed=6), numbers(4, 3, 2, 3, seed=7), Y[1, :3]),
    "pixel_shuffle": (numbers(2, 8, 3, 5, seed=6), 2),
    "pixel_unshuffle": (numbers(2, 3, 4, 6, seed=6), 2),
    "flip": (BATCH, (0, 2)),
    "roll": (BATCH, (1, -2), (0, 2)),
    "pad": (BATCH, (1, 2, -1, 3), "constant", 0.5),
    "unfold": (numbers(2, 3, 6, 7, seed=6), 2),
}
IN_IMAGES = add(numbers(6, 1, 3, seed=9)) | bias(numbers(6, seed=10)) | dropout(0.4, 3) | relu()
OPTIONS: dict[str, dict[str, Any]] = {
    "grouped_mm": {"offs": torch.tensor([2, 4], dtype=torch.int32)},
    "fused_grouped_mm": {
        "offs": torch.tensor([2, 5], dtype=torch.int32),
        "epilogue": add(Y[:5]) | bias(Y[:2]) | dropout(0.4, 3) | silu(),
    },
    "fused_matmul": {"epilogue": multiply(Y[0, :2]) | gelu()},
    "fused_conv2d": {"stride": 2, "groups": 2, "epilogue": IN_IMAGES},
    **{f"conv{rank}d": {"stride": 2, "padding": 1, "dilation": 2, "groups": 2} for rank in (1, 2, 3)},
    "conv_transpose2d": {"stride": 2, "padding": 1},
    "unfold": {"dilation": 2, "padding": 1, "stride": 2},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_operators_agree_with_their_references(name: str) -> None:
    arguments, options = ARGUMENTS[name], OPTIONS.get(name, {})
    got, want = (getattr(module, name)(*arguments, **options) for module in (ops, reference))
    torch.testing.assert_close(got, want)


def test_reductions_of_all_elements_agree_with_their_references() -> None:
    for name in ("sum", "mean", "prod", "amax", "argmin", "norm"):
        torch.testing.assert_close(getattr(ops, name)(X), getattr(reference, name)(X))
    for name in ("all", "any"):
        assert torch.equal(getattr(ops, name)(X > 1.5), getattr(reference, name)(X > 1.5))
