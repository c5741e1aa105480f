"""What the tests on a GPU share."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from filelock import FileLock

from workbench import device

# What a process may keep from one test for the next, of memory that others on this GPU may need.
KEPT_BYTES = 2**28

# For a test that waits until others of many GB have ended.
WAIT_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that wait for memory more time: a test's limit counts what its fixtures wait for."""
    for item in items:
        if "much_memory" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(WAIT_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def autograd_has_a_context() -> None:
    """In the thread that computes gradients, the first call of cuBLAS warns that it makes a context."""
    if device.current().is_gpu:
        matrix = torch.ones(16, 16, device=device.current().torch_device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (matrix @ matrix).sum().backward()


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """torch keeps what was freed; a dozen processes on one GPU would run out of memory together."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()


@pytest.fixture
def much_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process at a time: tensors of many GB, and something to check them with."""
    folder = tmp_path_factory.getbasetemp()
    with FileLock((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "much_memory.lock"):
        gc.collect()
        torch.cuda.empty_cache()
        yield
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def many(much_memory: None) -> int:
    """2^31; less on a GPU without space for three tensors of over 4 GB and something to check them with."""
    return 2**31 if device.free_memory_bytes() >= 24 * 2**30 else 2**22
