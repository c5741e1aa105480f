"""Flips, shifts, padding and windows on a GPU: torch's samples, any layout, and large tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops import test_rearrange as on_cpu
from tests.ops.test_opinfo_rows import outcome
from workbench import ops
from workbench.kernels import convolution
from workbench.kernels.movement import rearrangement, view_transfer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.bool,
]

# Lengths that are multiples of 16 bytes, and others, for many dtypes and access widths.
SHAPES = [(4, 256, 1024), (3, 61, 1000), (7, 33, 35), (2, 3, 4096)]


@pytest.mark.parametrize(
    ("op", "dtype"), [case for case in on_cpu.CASES if case.values[1] in case.values[0].dtypesIfCUDA]
)
def test_opinfo_results_are_exact_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    """Gradients in bf16 may differ by roundings, as in the test on the CPU."""
    mine: Callable[..., Any] = getattr(ops, op.name.split(".")[-1])
    is_followed = dtype.is_floating_point or dtype.is_complex
    for sample in op.sample_inputs(DEVICE, dtype, requires_grad=is_followed):
        (got,), gradients = outcome(mine, sample)
        (want,), wanted = outcome(op.op, sample)
        assert torch.equal(got, want)
        for ours, torchs in zip(gradients, wanted, strict=True):
            rounding = 0.2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(ours, torchs, rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rearrangements_of_any_layout_are_exact(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base = torch.randn(shape, device=DEVICE).mul(9).to(dtype)
    for x in (base, base.transpose(1, 2), base.transpose(0, 2), base[:, ::2, 1:], base[:, :1].expand(shape)):
        for dims in ((0,), (1,), (2,), (0, 2)):
            assert torch.equal(ops.flip(x, dims), torch.flip(x, dims))
            shifts = (8, -3)[: len(dims)]
            assert torch.equal(ops.roll(x, shifts, dims), torch.roll(x, shifts, dims))
        assert torch.equal(ops.roll(x, 12345), torch.roll(x, 12345))
        for added in ((8, 8), (1, 3, -2, 5), (0, 0, 2, 2, 1, 0)):
            assert torch.equal(ops.pad(x, added, value=1.5), F.pad(x, added, value=1.5))
        if dtype.is_floating_point:
            for mode in ("reflect", "replicate", "circular"):
                added = (min(2, x.shape[-1] - 1), 1)  # a reflection repeats no edge
                assert torch.equal(ops.pad(x, added, mode), F.pad(x, added, mode))


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [4, 8])
def test_channels_that_are_added_are_zeros(channels: int, last: bool) -> None:
    """A convolution adds channels to images of three channels whose layout is slow."""
    format = torch.channels_last if last else torch.contiguous_format
    source = torch.randn(5, 3, 97, 61, device=DEVICE).half().to(memory_format=format)
    image = convolution.image_of(source, least=channels)
    assert image.launch is not None
    image.tensor.fill_(float("nan"))
    image.launch.run()
    assert torch.equal(image.tensor[:, 0, ..., :3], source.permute(0, 2, 3, 1))
    assert not image.tensor[..., 3:].any()


def test_kept_launches_follow_other_fills_and_addresses() -> None:
    """The batch and the fill change, and memory begins anywhere."""
    x = torch.randn(65, 129, device=DEVICE)
    for fill in (0.0, 1.5, -2.0, float("inf")):
        for rows in (65, 64, 1):
            assert torch.equal(ops.pad(x[:rows], (3, 2), value=fill), F.pad(x[:rows], (3, 2), value=fill))
    memory = torch.arange(4096 + 8, device=DEVICE, dtype=torch.int16)
    for start in range(8):
        part = memory[start : start + 4096].view(64, 64)
        assert torch.equal(ops.flip(part, (1,)), torch.flip(part, (1,)))


def test_another_batch_and_fill_compile_nothing() -> None:
    def compiled() -> int:
        return sum(len(kept[0]) for kept in view_transfer.view_kernel.device_caches.values())

    image = torch.randn(64, 8, 30, 30, device=DEVICE)
    ops.pad(image, (1, 2, 3, 4), value=1.5)
    before = compiled()
    for batch in (1, 2, 16, 31):
        ops.pad(image[:batch], (1, 2, 3, 4), value=float(batch))
    assert compiled() == before


def test_rearrangements_of_more_than_two_to_the_31_elements_are_exact(many: int) -> None:
    """Elements are int8, so that the source, the result and torch's result fit into memory."""
    rows = many // 2**14 + 3
    x = torch.empty(rows, 2**14, dtype=torch.int8, device=DEVICE).random_(-128, 128)
    for dims in ((0,), (1,)):
        got = ops.flip(x, dims)
        assert torch.equal(got, torch.flip(x, dims))
        del got
    got = ops.roll(x, 2**20 + 1)
    assert torch.equal(got.view(-1)[2**20 + 1 :], x.view(-1)[: -(2**20 + 1)])
    del got
    got = ops.pad(x, (8, 8), "circular")
    assert torch.equal(got[:, 8:-8], x)
    launch = rearrangement.launch(rearrangement.flip(tuple(x.shape), (1,)), x, torch.empty_like(x))
    assert launch.steps[0].meta["WIDE"] == (many >= 2**31)
