"""PyTorch's own samples of each reduction with their gradients, and the input that it refuses.

At most eight samples of an operator and dtype run: the interpreter takes milliseconds for each tile.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.test_opinfo_rows import assert_refused_as_torch, assert_samples_as_torch
from workbench.kernels.rows.reduction import SUPPORTED

NAMES = ["sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "any", "all", "argmax", "argmin"]
MOST_SAMPLES = 8
OPERATORS = [op for op in op_db if op.name in NAMES and op.variant_test_name != "nuc"]
CASES = [(op, dtype) for op in OPERATORS for dtype in SUPPORTED if dtype in op.supported_dtypes("cpu")]


def test_every_operator_has_samples() -> None:
    variants = {(op.name, op.variant_test_name) for op in OPERATORS}
    assert {name for name, _ in variants} == set(NAMES)
    of_two = ("reduction_with_dim", "reduction_no_dim", "binary")
    assert {(name, variant) for name in ("max", "min") for variant in of_two} <= variants
    assert {("norm", variant) for variant in ("", "fro", "inf")} <= variants


@pytest.mark.parametrize(
    ("op", "dtype"), CASES, ids=[f"{op.formatted_name}-{str(dtype)[6:]}" for op, dtype in CASES]
)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert_samples_as_torch(op, "cpu", dtype, MOST_SAMPLES)


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func is not None], ids=lambda op: op.formatted_name
)
def test_opinfo_error_inputs_are_refused_as_in_torch(op: Any) -> None:
    assert_refused_as_torch(op, "cpu")
