"""PyTorch's own samples of each reduction, and the input that it refuses.

At most eight samples of an operator and dtype, for time: the interpreter takes milliseconds for each tile.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from workbench import ops
from workbench.errors import WorkbenchError

NAMES = ["sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "any", "all", "argmax", "argmin"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
MOST_SAMPLES = 8
OPERATORS = [op for op in op_db if op.name in NAMES and op.variant_test_name != "nuc"]
CASES = [(op, dtype) for op in OPERATORS for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]


def test_every_operator_has_samples() -> None:
    variants = {(op.name, op.variant_test_name) for op in OPERATORS}
    assert {name for name, _ in variants} == set(NAMES)
    of_two = ("reduction_with_dim", "reduction_no_dim", "binary")
    assert {(name, variant) for name in ("max", "min") for variant in of_two} <= variants
    assert {("norm", variant) for variant in ("", "fro", "inf")} <= variants


@pytest.mark.parametrize(
    ("op", "dtype"), CASES, ids=[f"{op.formatted_name}-{str(dtype)[6:]}" for op, dtype in CASES]
)
def test_samples(op: Any, dtype: torch.dtype) -> None:
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype), MOST_SAMPLES))
    assert samples
    for sample in samples:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of samples on which it warns
            want = op.op(sample.input, *sample.args, **sample.kwargs)
        got = getattr(ops, op.name)(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func is not None], ids=lambda op: op.formatted_name
)
def test_what_torch_refuses(op: Any) -> None:
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type) as refused:
            getattr(ops, op.name)(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(refused.value, WorkbenchError)
