"""Graphs that torch makes of calls say what they would leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from workbench import ops
from workbench.errors import TracingError

CALLS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: ops.add(x, x), lambda x: ops.matmul(x, x), lambda x: ops.softmax(x, 1),
    lambda x: ops.clone(x),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=["add", "matmul", "softmax", "clone"])
def test_a_graph_is_refused_after_plain_calls_too(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(16, 16)
    before = call(x)
    with pytest.raises(TracingError, match="leave the kernel out"):
        make_fx(call, tracing_mode="real")(x)
    assert torch.equal(call(x), before)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
def test_a_linear_map_is_refused() -> None:
    with pytest.raises(TracingError, match=r"torch\.func\.linearize"):
        torch.func.linearize(lambda x: ops.add(x, x), torch.randn(4))


def test_modes_that_make_no_graph_let_kernels_run() -> None:
    x = torch.randn(16, 16)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(ops.add(x, x), 2 * x)
