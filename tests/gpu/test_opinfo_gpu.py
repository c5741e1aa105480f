"""PyTorch's own samples of each operator on a GPU: all of them, and what it refuses.

Most of the time goes to the compiler, some 700 kernels: `-n 8` lets so many processes share them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.ops import test_opinfo_reduction as reductions
from tests.ops import test_opinfo_rows as rows
from workbench import ops
from workbench.errors import WorkbenchError

pytestmark = pytest.mark.gpu

# Of the other dtypes the kernels differ in how an element is loaded alone.
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64]
OPERATORS = [*reductions.OPERATORS, *rows.SAMPLES]
CASES = [(op, dtype) for op in OPERATORS for dtype in DTYPES if dtype in op.supported_dtypes("cuda")]
CASES += [(op, torch.bool) for op in OPERATORS if op.name in ("any", "all")]


def outcome(function: Any, sample: Any) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    """The results, and their gradients along one direction."""
    tensors = [sample.input, *(a for a in sample.args if isinstance(a, torch.Tensor))]
    followed = [t for t in tensors if t.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of samples on which it warns
        result = function(sample.input, *sample.args, **sample.kwargs)
    if not followed:
        return ([result] if isinstance(result, torch.Tensor) else result), []
    generator = torch.Generator("cuda").manual_seed(0)
    direction = torch.randn(result.shape, generator=generator, device="cuda").to(result.dtype)
    return [result], [*torch.autograd.grad(result, followed, direction)]


@pytest.mark.parametrize(
    ("op", "dtype"), CASES, ids=[f"{op.formatted_name}-{str(dtype)[6:]}" for op, dtype in CASES]
)
def test_samples(op: Any, dtype: torch.dtype) -> None:
    is_followed = op in rows.SAMPLES and dtype.is_floating_point
    ours = rows.OPERATORS.get(op.name) or getattr(ops, op.name)
    samples = list(op.sample_inputs("cuda", dtype, requires_grad=is_followed))
    assert samples
    for sample in samples:
        got, got_gradients = outcome(ours, sample)
        want, want_gradients = outcome(op.op, sample)
        for each, torchs in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            if is_followed:
                rows.close(each, torchs)
            else:
                torch.testing.assert_close(each, torchs, equal_nan=True)


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func is not None], ids=lambda op: op.formatted_name
)
def test_what_torch_refuses(op: Any) -> None:
    ours = rows.OPERATORS.get(op.name) or getattr(ops, op.name)
    for wrong in op.error_inputs("cuda"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type) as refused:
            ours(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(refused.value, WorkbenchError)
