"""Products of fp32 before and after a change of torch's switches for their precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from workbench import ops


def ones(*shape: int) -> torch.Tensor:
    """Return whole numbers from -3 to 3, which tf32 holds exactly."""
    return torch.randint(-3, 4, shape).float().requires_grad_()


def composed(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(x @ gate) * (x @ up)


def by_groups(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([a[:5] @ b[0], a[5:] @ b[2]])


CALLS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "matmul": (ops.matmul, torch.matmul, [ones(20, 24), ones(24, 40)]),
    "addmm": (ops.addmm, torch.addmm, [ones(20, 40), ones(20, 24), ones(24, 40)]),
    "swiglu": (ops.swiglu, composed, [ones(20, 24), ones(24, 40), ones(24, 40)]),
    "matmul_matmul": (
        ops.matmul_matmul, lambda a, b, c: a @ b @ c, [ones(20, 24), ones(24, 40), ones(40, 16)],
    ),
    "matmul_softmax": (
        ops.matmul_softmax, lambda a, b: torch.softmax(a @ b, -1), [ones(20, 24), ones(24, 40)],
    ),
    "grouped_mm": (
        lambda a, b: ops.grouped_mm(a, b, offs=torch.tensor([5, 5, 20], dtype=torch.int32)), by_groups,
        [ones(20, 24), ones(3, 24, 40)],
    ),
    "attention": (
        ops.scaled_dot_product_attention, functional.scaled_dot_product_attention,
        [ones(1, 2, 20, 16), ones(1, 2, 24, 16), ones(1, 2, 24, 16)],
    ),
    "conv2d": (ops.conv2d, functional.conv2d, [ones(2, 4, 7, 7), ones(8, 4, 3, 3)]),
}  # fmt: skip


@pytest.fixture
def switches() -> Iterator[tuple[object, ...]]:
    """Yield the switches of products and of convolutions, and restore them afterwards."""
    found = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in found]
    yield found
    for switch, precision in zip(found, before, strict=True):
        switch.fp32_precision = precision


@pytest.mark.parametrize("name", CALLS)
def test_results_agree_with_torch_after_each_change_of_its_precision_switches(
    name: str, switches: tuple[object, ...]
) -> None:
    ours, torchs, tensors = CALLS[name]
    for precision in ("ieee", "tf32", "ieee"):
        for switch in switches:
            switch.fp32_precision = precision  # type: ignore[attr-defined]
        results = [function(*tensors) for function in (ours, torchs)]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        gradients = [torch.autograd.grad(result.sum(), tensors) for result in results]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
