"""Calls that torch would trace into a graph without the kernel are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from workbench import ops
from workbench.errors import TracingError
from workbench.kernels import epilogues

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
def test_torch_func_linearize_is_refused() -> None:
    with pytest.raises(TracingError, match=r"torch\.func\.linearize"):
        torch.func.linearize(lambda x: ops.add(x, x), torch.randn(4))


CALLS_OF_ALL_KINDS: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda x: ops.add(x, x),
    "matmul": lambda x: ops.matmul(x, x),
    "fused_matmul": lambda x: ops.fused_matmul(x, x, epilogue=epilogues.bias(x[0])),
    "swiglu": lambda x: ops.swiglu(x, x, x),
    "conv2d": lambda x: ops.conv2d(x.view(1, 1, 16, 16), x.view(16, 1, 4, 4)),
    "attention": lambda x: ops.scaled_dot_product_attention(x, x, x),
    "attention, dropped": lambda x: ops.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "softmax": lambda x: ops.softmax(x, 1),
    "layer_norm": lambda x: ops.layer_norm(x, (16,)),
    "cross_entropy": lambda x: ops.cross_entropy(x, x[0].long()),
    "sum": lambda x: ops.sum(x),
    "clone": lambda x: ops.clone(x),
    "pad": lambda x: ops.pad(x, (1, 1), value=2.0),
    "unfold": lambda x: ops.unfold(x.view(1, 1, 16, 16), 2),
}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("name", CALLS_OF_ALL_KINDS)
def test_tensors_without_memory_are_refused(name: str) -> None:
    """Fake tensors are refused while their mode is active, and after it has ended."""
    call, x = CALLS_OF_ALL_KINDS[name], torch.zeros(16, 16)
    call(x)
    with FakeTensorMode() as mode:
        fake = torch.zeros(16, 16)
        with pytest.raises(TracingError, match=r"have no memory.*meta device"):
            call(fake)
    assert not torch._C._len_torch_dispatch_stack()
    with pytest.raises(TracingError, match=r"have no memory.*meta device"):
        call(mode.from_tensor(x))
    call(x)


def test_kernels_run_under_a_flop_counter() -> None:
    x = torch.randn(16, 16)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(ops.add(x, x), 2 * x)
