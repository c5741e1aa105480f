"""Kernels that compilers miscompile without the repairs of `workbench/compat`, on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.compat.test_compiler_repairs import of_pixels
from workbench import ops

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


@pytest.mark.parametrize("kind", ["plain", "mask"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_transposed_narrow_elements_are_exact(kind: str, dtype: torch.dtype) -> None:
    for images, pixels in itertools.product((1, 3, 4), (1, 2, 9, 15, 16)):
        x = torch.randint(0, 2 if kind == "mask" else 100, (images, pixels, 4), device=DEVICE).to(dtype)
        (output,) = of_pixels(x, kind).run()
        assert torch.equal(output, x.transpose(1, 2)), (images, pixels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_pixel_shuffle_of_few_narrow_elements_is_exact(dtype: torch.dtype, factor: int) -> None:
    for images, channels, height, width in itertools.product((1, 3, 4), (1, 2, 3), (1, 2, 9, 11), (1, 2, 5)):
        shape = images, channels * factor**2, height, width
        x = torch.randint(0, 2 if dtype == torch.bool else 100, shape, device=DEVICE).to(dtype)
        apart = F.pixel_shuffle(x, factor)
        assert torch.equal(ops.pixel_shuffle(x, factor), apart), shape
        assert torch.equal(ops.pixel_unshuffle(apart, factor), x), shape


def test_permuted_bytes_are_exact() -> None:
    for lengths in itertools.product((1, 2, 4, 5, 16), repeat=3):
        x = torch.randint(0, 100, lengths, device=DEVICE, dtype=torch.uint8)
        for order in itertools.permutations(range(3)):
            assert torch.equal(ops.permute_copy(x, order), x.permute(order)), (lengths, order)


@pytest.mark.parametrize("keys", [1, 11, 64, 70])
@pytest.mark.parametrize("queries", [1, 511, 512])
def test_attention_of_interleaved_heads_agrees_with_float64(queries: int, keys: int) -> None:
    """Without the repair, NVIDIA's assembler makes a product that reads beyond shared memory."""
    torch.manual_seed(0)
    query = torch.randn(queries, 24, 4, 2, device=DEVICE, dtype=torch.bfloat16).permute(3, 2, 0, 1)
    key = torch.randn(2 * keys * 24 * 4 + 1, device=DEVICE, dtype=torch.bfloat16)[1:]
    key = key.view(2, keys, 24, 4).permute(0, 3, 1, 2)
    value = torch.randn(2, 4, keys, 24, device=DEVICE, dtype=torch.bfloat16)
    given = [t.requires_grad_() for t in (query, key, value)]
    exact = [t.detach().double().requires_grad_() for t in given]
    direction = torch.randn(2, 4, queries, 24, device=DEVICE, dtype=torch.bfloat16)
    result = ops.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = F.scaled_dot_product_attention(exact[0], exact[1], exact[2], is_causal=True)
    found = [result, *torch.autograd.grad(result, given, direction)]
    wanted = [expected, *torch.autograd.grad(expected, exact, direction.double())]
    for one, other in zip(found, wanted, strict=True):
        # With one key the gradient of queries is 0; ours is the rounding of a difference of equal sums.
        atol = max(2e-2 * float(other.detach().abs().max()), 1e-3)
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=atol)
