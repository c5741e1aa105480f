"""Fixtures of the tests on a GPU."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from filelock import FileLock

from workbench import device

# GPU memory that a process may keep between tests; other processes on this GPU need the rest.
KEPT_BYTES = 2**28

# Time limit of a test that may have to wait for other tests that use many GB.
WAIT_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that wait for memory more time: a test's limit includes the wait of its fixtures."""
    for item in items:
        if "much_memory" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(WAIT_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def autograd_has_a_context() -> None:
    """Create cuBLAS's context in autograd's thread, where torch's first call warns that there is none."""
    if device.current().is_gpu:
        matrix = torch.ones(16, 16, device=device.current().torch_device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (matrix @ matrix).sum().backward()


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """Give freed memory back to the GPU: torch keeps it, and a dozen processes would run out of memory."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()


@pytest.fixture
def much_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let one process at a time use many GB of GPU memory."""
    folder = tmp_path_factory.getbasetemp()
    with FileLock((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "much_memory.lock"):
        gc.collect()
        torch.cuda.empty_cache()
        yield
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def many(much_memory: None) -> int:
    """Return a number of elements for tests of 64-bit offsets: 2^31; 2^22 with less than 24 GiB free.

    Three tensors of over 4 GB and their reference must fit into the GPU's memory.
    """
    return 2**31 if device.free_memory_bytes() >= 24 * 2**30 else 2**22
