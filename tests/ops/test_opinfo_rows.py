"""PyTorch's own samples of the row operators: results, dtypes, shapes and gradients are torch's.

The loop over samples serves the reductions too, and the tests on a GPU.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from workbench import ops
from workbench.errors import WorkbenchError

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
    # Where terms cancel, torch too errs by some roundings of the terms: in layer norm's gradient of one or
    # two elements they are in the hundreds, like 1 / sqrt(epsilon), and cancel to 0.
    rounding = torch.finfo(want.dtype).eps
    terms = 2048 if want.dtype in (torch.float32, torch.float64) else 8
    torch.testing.assert_close(got, want, rtol=8 * rounding, atol=terms * rounding, equal_nan=True)


def ours_of(op: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = OPERATORS.get(op.name) or getattr(ops, op.name)
    return function


def outcome(function: Callable[..., Any], sample: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the results, and the gradients of the first one along one direction."""
    tensors = [sample.input, *(a for a in sample.args if isinstance(a, torch.Tensor))]
    followed = [t for t in tensors if t.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns for some samples
        result = function(sample.input, *sample.args, **sample.kwargs)
    results = [result] if isinstance(result, torch.Tensor) else [*result]
    if not followed:
        return results, []
    first = results[0]
    generator = torch.Generator(first.device).manual_seed(0)
    direction = torch.randn(first.shape, generator=generator, device=first.device).to(first.dtype)
    # allow_unused: torch's norm of order 0 has no gradient for its input.
    grads = torch.autograd.grad(first, followed, direction, allow_unused=True, materialize_grads=True)
    return results, [*grads]


def assert_samples_as_torch(op: Any, device: str, dtype: torch.dtype, most: int | None = None) -> None:
    """Compare results and gradients of the first `most` samples, or of all."""
    is_followed = dtype.is_floating_point and op.supports_autograd
    samples = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=is_followed), most))
    assert samples
    for sample in samples:
        got, got_gradients = outcome(ours_of(op), sample)
        want, want_gradients = outcome(op.op, sample)
        for ours, torchs in zip(got, want, strict=True):
            if op.name in OPERATORS:
                close(ours, torchs)
            else:
                torch.testing.assert_close(ours, torchs, equal_nan=True)
        for ours, torchs in zip(got_gradients, want_gradients, strict=True):
            close(ours, torchs)


def assert_refused_as_torch(op: Any, device: str) -> None:
    """Check that the input that torch refuses is refused with an error of torch's kind."""
    for wrong in op.error_inputs(device):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type) as refused:
            ours_of(op)(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(refused.value, WorkbenchError)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", SAMPLES, ids=lambda info: f"{info.name} {info.variant_test_name}".strip())
def test_opinfo_samples_and_gradients_agree_with_torch(info: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert_samples_as_torch(info, "cpu", dtype)
