"""What the tests on a GPU share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
import torch

from workbench import device


@pytest.fixture(scope="session", autouse=True)
def autograd_has_a_context() -> None:
    """In the thread that computes gradients, the first call of cuBLAS warns that it makes a context."""
    if device.current().is_gpu:
        matrix = torch.ones(16, 16, device=device.current().torch_device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (matrix @ matrix).sum().backward()


@pytest.fixture
def many() -> Iterator[int]:
    """2^31; less on a GPU without space for three tensors of over 4 GB and something to check them with."""
    gc.collect()
    torch.cuda.empty_cache()
    yield 2**31 if device.free_memory_bytes() >= 24 * 2**30 else 2**22
    gc.collect()
    torch.cuda.empty_cache()
