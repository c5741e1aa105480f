"""PyTorch's own samples of the row operators: results, dtypes, shapes and gradients as torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from workbench import ops

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
    "logsumexp": ops.logsumexp,
    "nn.functional.cross_entropy": ops.cross_entropy,
    "nn.functional.layer_norm": ops.layer_norm,
    "nn.functional.rms_norm": ops.rms_norm,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SAMPLES = [info for info in op_db if info.name in OPERATORS]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    # Where terms cancel, torch too is off by some roundings of the terms: in layer norm's gradient of one or
    # two elements they are hundreds, as 1 / sqrt(epsilon) is, and cancel to 0.
    rounding = torch.finfo(want.dtype).eps
    terms = 2048 if want.dtype in (torch.float32, torch.float64) else 8
    torch.testing.assert_close(got, want, rtol=8 * rounding, atol=terms * rounding, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", SAMPLES, ids=lambda info: f"{info.name} {info.variant_test_name}".strip())
def test_torchs_samples(info: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 0
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        count += 1
        got = OPERATORS[info.name](sample.input, *sample.args, **sample.kwargs)
        want = info.op(sample.input, *sample.args, **sample.kwargs)
        close(got, want)
        tensors = [sample.input, *(a for a in sample.args if isinstance(a, torch.Tensor))]
        followed = [t for t in tensors if t.requires_grad]
        direction = torch.randn_like(want)
        grads = [torch.autograd.grad(result, followed, direction) for result in (got, want)]
        for ours, torchs in zip(*grads, strict=True):
            close(ours, torchs)
    assert count > 0
