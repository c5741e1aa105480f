"""PyTorch's own samples of reductions and row operators on a GPU, and the arguments that torch refuses.

Most of the time goes to compiling some 700 kernels: `-n 8` lets 8 processes share the work.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops import test_opinfo_reduction as reductions
from tests.ops import test_opinfo_rows as rows
from workbench.kernels.rows.reduction import SUPPORTED

pytestmark = pytest.mark.gpu

OPERATORS = [*reductions.OPERATORS, *rows.SAMPLES]
CASES = [(op, dtype) for op in OPERATORS for dtype in SUPPORTED if dtype in op.supported_dtypes("cuda")]


@pytest.mark.parametrize(
    ("op", "dtype"), CASES, ids=[f"{op.formatted_name}-{str(dtype)[6:]}" for op, dtype in CASES]
)
def test_opinfo_samples_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows.assert_samples_as_torch(op, "cuda", dtype)


@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func is not None], ids=lambda op: op.formatted_name
)
def test_opinfo_error_inputs_are_refused_as_in_torch(op: Any) -> None:
    rows.assert_refused_as_torch(op, "cuda")
