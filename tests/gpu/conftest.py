"""What the tests on a GPU share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from workbench import device


@pytest.fixture
def many() -> Iterator[int]:
    """2^31; less on a GPU without space for three tensors of over 4 GB and something to check them with."""
    gc.collect()
    torch.cuda.empty_cache()
    yield 2**31 if device.free_memory_bytes() >= 24 * 2**30 else 2**22
    gc.collect()
    torch.cuda.empty_cache()
