"""Depth to space and back, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.refused import assert_refused_as_in_torch
from tests.ops.test_opinfo_rows import outcome
from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError

NAMES = ["pixel_shuffle", "pixel_unshuffle"]
OPERATORS = [op for op in op_db if op.name in [f"nn.functional.{name}" for name in NAMES]]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_opinfo_samples_and_gradients_are_exact(op: Any, dtype: torch.dtype) -> None:
    assert len(OPERATORS) == 2
    mine = getattr(ops, op.name.split(".")[-1])
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
    assert samples
    for sample in samples:
        for got, want in zip(outcome(mine, sample), outcome(op.op, sample), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_any_layout_is_shuffled_exactly(name: str, factor: int) -> None:
    x = torch.randn(3, 2 * factor**2, 4 * factor, 5 * factor)
    views = [x, x[1:, :, :, :], x.transpose(2, 3), x.to(memory_format=torch.channels_last), x[0]]
    for view in views:
        got = getattr(ops, name)(view, factor)
        assert torch.equal(got, getattr(torch.nn.functional, name)(view, factor))
    # torch's pixel_unshuffle keeps the shape of an empty tensor, but not of an empty meta tensor.
    like = getattr(torch.nn.functional, name)(x[:0].to("meta"), factor)
    assert getattr(ops, name)(x[:0], factor).shape == like.shape
    last = getattr(ops, name)(views[3], factor)
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "shape", "factor"),
    [
        ("pixel_shuffle", (1, 6, 4, 4), 2),
        ("pixel_shuffle", (4, 4), 2),
        ("pixel_shuffle", (1, 4, 4, 4), 0),
        ("pixel_unshuffle", (1, 4, 5, 4), 2),
        ("pixel_unshuffle", (1, 4, 4, 4), -1),
        ("pixel_unshuffle", (0, 1, 3), 2),
        ("pixel_unshuffle", (0, 2, 3), 2),
        ("pixel_unshuffle", (1, 0, 3), 2),
        ("pixel_unshuffle", (0, 4, 4), 2**40),
        ("pixel_shuffle", (3, 0, 3), 2),
        ("pixel_shuffle", (0, 4, 4), 2**40),
    ],
)
def test_wrong_shapes_are_refused_as_in_torch(name: str, shape: tuple[int, ...], factor: int) -> None:
    theirs = getattr(torch.nn.functional, name)
    assert_refused_as_in_torch(getattr(ops, name), theirs, torch.zeros(shape), factor)


def test_arguments_of_wrong_types_and_layouts_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="upscale_factor"):
        ops.pixel_shuffle(torch.zeros(1, 4, 2, 2), 2.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="input"):
        ops.pixel_shuffle([1], 2)  # type: ignore[arg-type]
    with pytest.raises(TensorMismatchError):
        ops.pixel_shuffle(torch.zeros(1, 4, 2, 2).to_sparse(), 2)
