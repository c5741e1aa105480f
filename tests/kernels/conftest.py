"""Fixtures of the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def wide_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.Tensor]:
    """A tensor of 8 GiB in a sparse file, which takes neither memory nor disk until it is touched."""
    file = tmp_path_factory.mktemp("wide") / "sparse"
    yield torch.from_file(str(file), shared=True, size=2**33, dtype=torch.uint8)
    file.unlink()
