"""Kernels that do a part of a fused product's work, as far as no GPU is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tools import least_time
from workbench import device

MOST_SHARED_BYTES = 227 * 1024  # of a unit of Hopper


@pytest.fixture(scope="module")
def given() -> least_time.Tensors:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half()

    m, n, k = least_time.M, least_time.N, least_time.K
    return least_time.Tensors(randn(m, k), randn(n, k), (randn(m, n), randn(m, n)), randn(m, n))


def test_parts_differ_and_have_room() -> None:
    assert len({part.name for part in least_time.PARTS}) == len(least_time.PARTS)
    for part in least_time.PARTS:
        assert part.tiles * part.rows * part.cols * least_time.UNITS == least_time.M * least_time.N
        assert part.shared_bytes < MOST_SHARED_BYTES
        # the last tile is stored from where A was
        assert part.last < 2 or part.stages * least_time.STEP >= part.cols


@pytest.mark.parametrize("tile", [least_time.WIDE, least_time.SQUARE, least_time.ONE])
def test_units_have_every_tile_once(given: least_time.Tensors, tile: least_time.Part) -> None:
    whole = least_time.expected(replace(tile, first=True, last=2), given)
    assert not whole.isnan().any()
    last = least_time.expected(replace(tile, last=2), given)
    assert (~last.isnan()).sum() * tile.tiles == whole.numel()
    assert torch.equal(whole[~last.isnan()], last[~last.isnan()])
    product = given.a.float() @ given.b.float().T
    gelu = torch.nn.functional.gelu(product, approximate="tanh")
    assert torch.equal(last[~last.isnan()], gelu[~last.isnan()])


def test_without_hopper_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(device.current(), architecture="sm_80")
    monkeypatch.setattr(device, "current", lambda: other)
    assert least_time.main() == 1
    assert capsys.readouterr().out == "This needs a Hopper GPU (sm_90), not sm_80.\n"


def test_what_cuda_refuses_is_said() -> None:
    assert least_time.taken((0, "found")) == "found"
    assert least_time.taken((0,)) is None
    with pytest.raises(RuntimeError, match="719"):
        least_time.taken((719, None))
