"""Cases of warm calls on a pretended GPU: the kernels that are compiled and started, and by which path.

Run as a script in a process that compiles kernels, it prints for each case its traceback, or nothing.
"""

from __future__ import annotations

import ctypes
import json
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from triton import knobs
from triton.runtime.jit import JITFunction

from tests.runtime import any_order
from tests.runtime import pretended_gpu as gpu
from tests.warm_variants import tf32
from workbench import compat, ops
from workbench.errors import TracingError, WorkbenchError
from workbench.kernels import gemm
from workbench.kernels.epilogues import (
    add,
    bias,
    cast,
    dropout,
    fast_gelu,
    permuted,
    relu,
    residual,
    scale,
    silu,
)
from workbench.kernels.pointwise import elementwise
from workbench.runtime import launches, prepared, replay, warm, warmup

DTYPES = {
    "*fp16": torch.float16, "*bf16": torch.bfloat16, "*fp32": torch.float32, "*fp64": torch.float64,
    "*i32": torch.int32, "*i64": torch.int64, "*i16": torch.int16,
}  # fmt: skip


def memory_at(address: int | torch.Tensor, kind: str, reach: int) -> torch.Tensor:
    """Return a tensor of `reach` elements of a Triton type, such as "*fp16", at an address."""
    address = address.data_ptr() if isinstance(address, torch.Tensor) else address
    size = reach * DTYPES[kind].itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=DTYPES[kind])


def binary(kinds: list[str], given: Sequence[Any]) -> None:
    """Compute the result of `binary_kernel`."""
    x, y, output = (memory_at(*pair, given[3]) for pair in zip(given[:3], kinds, strict=False))
    output.copy_(torch.add(y, x, alpha=given[4] if given[5] is elementwise.axpy else 1))


def binary_strided(kinds: list[str], given: Sequence[Any]) -> None:
    """Compute the result of `binary_strided_kernel`."""
    sizes = given[4]
    x, y, output = (
        memory_at(
            pointer, kind, 1 + sum((n - 1) * by for n, by in zip(sizes, strides, strict=True))
        ).as_strided(sizes, strides)
        for pointer, kind, strides in zip(given[:3], kinds, given[5:8], strict=False)
    )
    output.copy_(torch.add(y, x, alpha=given[8] if given[9] is elementwise.axpy else 1))


class Decorators:
    """A context that counts calls that go through `@triton.jit`."""

    def __init__(self) -> None:
        self.calls, self._run = 0, JITFunction.run

    def __enter__(self) -> Decorators:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self._run(kernel, *args, **kwargs)

        JITFunction.run = run
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.run = self._run


def both(
    length: int, dtype: torch.dtype = torch.float32, offset: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors of whole numbers, so that every sum here is exact."""
    x, y = (torch.randint(-9, 9, (length + offset,)).to(dtype)[offset:] for _ in range(2))
    return x, y


def sizes_of_sums() -> None:
    """Sizes that 16 divides share a kernel, and so do others; size 1 and another dtype have their own."""
    with Decorators() as through:
        for length, compiled in ((32, 1), (48, 1), (4096, 1), (33, 2), (160, 2), (7, 2), (100_000, 2)):
            x, y = both(length)
            assert torch.equal(ops.add(x, y), x + y), length
            assert torch.equal(ops.add(x.view(1, -1, 1), y.view(1, -1, 1)).view(-1), x + y), length
            assert (through.calls, len(gpu.compiled)) == (compiled, compiled), length
        one = both(1)
        assert torch.equal(ops.add(*one), one[0] + one[1])
        x, y = both(32)
        assert torch.equal(ops.add(x.half(), y.half()), (x + y).half())
        assert through.calls == 4
    for x, y in (both(64, offset=1), both(48, offset=1), both(80, offset=3)):
        before = len(gpu.compiled)
        assert torch.equal(ops.add(x, y), x + y)
    assert len(gpu.compiled) == before  # unaligned, and of another length: nothing is compiled


def sizes_of_strided_sums() -> None:
    """A new shape makes a launch but compiles no kernel of a known kind."""
    with Decorators() as through:
        for rows, cols in ((32, 48), (64, 16), (16, 160)):
            x, y = both(rows * cols)
            x, y = x.view(rows, cols).t(), y.view(cols, rows)
            assert torch.equal(ops.add(x, y), x + y)
    assert (through.calls, len(gpu.compiled)) == (1, 1)


def sizes_of_products() -> None:
    """The tile of a product depends on its size; other sizes of one tile compile nothing."""
    with Decorators() as through:
        for m, n, k in ((128, 128, 128), (192, 64, 256), (64, 320, 1024)):
            a, b = torch.zeros(m, k), torch.zeros(k, n)
            replay.start(gemm.launch, a, b, output=torch.zeros(m, n), tile=(64, 64, 64), splits=1)
    counts = through.calls, len(gpu.compiled), len(gpu.started)
    assert counts == (1, 1, 3), counts
    assert len({json.dumps(call) for call in gpu.started}) == 3  # each has its own sizes and grid


def zeros_of_products() -> None:
    """A kernel gets the 0.0 or -0.0 of its call, although the two are equal as keys."""
    a, addend = torch.zeros(2, 64, 64), torch.zeros(2, 64, 64)
    for alpha, beta in ((0.0, 1.0), (-0.0, 1.0), (0.0, 1.0), (1.0, 0.5), (-0.0, 1.0)):
        ops.baddbmm(addend, a, a, alpha=alpha, beta=beta)
        assert f", {alpha}, {beta}]" in json.dumps(gpu.started[-1]), (alpha, beta, gpu.started[-1])


def values_of_sums() -> None:
    """Sums are torch's for all kinds of arguments, by the shortest path and by the others."""
    x, y = both(48)
    for alpha in (1, 1.0, 2, -0.5, 0.0, -0.0, float("nan"), float("inf")):
        torch.testing.assert_close(ops.add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha), equal_nan=True)
    x[3] = float("nan")
    y[7] = float("inf")
    special: dict[str, tuple[torch.Tensor, Any]] = {
        "NaN": (x, y),
        "itself": (x, x),
        "overlapping": (x[:32], x[16:]),
        "negative bit": (torch._neg_view(y), x),
        "negative bit of the second": (x, torch._neg_view(y)),
        "both": (torch._neg_view(x), torch._neg_view(y)),
        "unaligned": (x[1:], y[1:]),
        "parameter": (torch.nn.Parameter(x), y),
        "strided": (x[::2], y[::2]),
        "expanded": (x[:1].expand(48), y),
        "broadcast": (x.view(6, 8), y[:8]),
        "transposed": (x.view(6, 8).t(), y.view(8, 6)),
        "number": (x, 3),
        "promoted": (x, y.half()),
        "integers": both(48, torch.int64),
        "halves": both(48, torch.float16),
        "narrow integers": both(48, torch.int16),
        "of no dimensions": (x[4], y[4]),
        "empty": (x[:0], y[:0]),
        "in three dimensions": (x.view(2, 4, 6), y.view(2, 4, 6)),
    }
    for name, (left, right) in special.items():
        for _ in range(2):
            result, wanted = ops.add(left, right), torch.add(left, right)
            torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True, msg=name)
            assert (type(result), result.requires_grad) == (torch.Tensor, wanted.requires_grad), name
        with torch.no_grad():
            assert not ops.add(left, right).requires_grad, name
    out = torch.full((48,), float("nan"))
    assert ops.add(x, y, out=out) is out
    torch.testing.assert_close(out, x + y, equal_nan=True)
    shell = ops.add(torch.empty(16, device="meta"), torch.empty(16, device="meta"))
    assert shell.is_meta
    with torch.inference_mode():
        inner = both(48)
        assert torch.equal(ops.add(*inner), inner[0] + inner[1])
    assert torch.equal(ops.add(*inner), inner[0] + inner[1])


def transforms_of_sums() -> None:
    """Autograd, forward mode and transforms of torch.func follow sums that have been started before."""
    x, y = both(48)
    ops.add(x, y)
    x.requires_grad_()
    result = ops.add(x, y, alpha=2)
    (of_x,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(of_x, torch.ones(48))
    x = x.detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.full((48,), 5.0))
        assert torch.equal(forward_ad.unpack_dual(ops.add(dual, y)).tangent, torch.full((48,), 5.0))
    rows = torch.stack((x, y))
    assert torch.equal(torch.func.vmap(lambda row: ops.add(row, y))(rows), rows + y)
    assert torch.equal(torch.func.grad(lambda row: ops.add(row, y).sum())(x), torch.ones(48))
    torch.use_deterministic_algorithms(True)  # torch fills new memory with NaN
    try:
        assert torch.equal(ops.add(x, y), x + y)
    finally:
        torch.use_deterministic_algorithms(False)


def again(operator: Any, *args: Any, **keywords: Any) -> Any:
    """Return the result of a warm call; None, and start nothing, if no such call is kept."""
    values = (*args, *keywords.values())
    kinds = tuple(map(type, values))
    pattern = operator.patterns.get((len(args), *keywords, *kinds) if keywords else kinds)
    return None if pattern is None else pattern.again(*values)


def calls_of_known_layouts_are_warm() -> None:
    """A warm call is for tensors like those of a call that was made twice; all others take the long way."""
    kept = lambda left, right, alpha: again(ops.add, left, right, alpha=alpha)  # noqa: E731
    (x, y), (a, b) = both(48), both(48)
    follows = x.clone().requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert kept(x, y, 1) is None  # of other tensors
            assert not ops.add(follows, y, alpha=1).requires_grad
    gone = weakref.ref(z := y.clone())
    for alpha in (1, 0.5):
        assert kept(x, z, alpha) is None
        for _ in range(2):
            ops.add(x, z, alpha=alpha)
        for left, right in ((x, y), (a, b), (b, a)):
            total = kept(left, right, alpha)
            assert total is not None
            assert torch.equal(total, torch.add(left, right, alpha=alpha))
        assert kept(x, x, alpha) is None  # the same tensor twice is a case of its own
        for _ in range(2):
            ops.add(x, x, alpha=alpha)
        assert torch.equal(kept(y, y, alpha), torch.add(y, y, alpha=alpha))
    del z
    assert gone() is None
    others: dict[str, tuple[Any, Any, Any]] = {
        "another shape": (x[:32], y[:32], 1),
        "other shapes": (x, y[:1], 1),
        "other strides": (x, torch.zeros(96)[::2], 1),
        "another dtype": (x.half(), y.half(), 1),
        "two dtypes": (x, y.double(), 1),
        "unaligned": (torch.zeros(49)[1:], y, 1),
        "negative bit": (x, torch._neg_view(y), 1),
        "parameter": (torch.nn.Parameter(x, requires_grad=False), y, 1),
        "requires grad": (x, follows, 1),
        "meta": (x, y.to("meta"), 1),
        "no tensor": (x, 3, 1),
        "sparse": (x, y.to_sparse(), 1),
        "both sparse": (x.to_sparse(), y.to_sparse(), 1),
        "nested": (torch.nested.nested_tensor([x]), torch.nested.nested_tensor([y]), 1),
        "nested second": (x, torch.nested.nested_tensor([y]), 1),
        "whole alpha": (x, y, 2),
        "true alpha": (x, y, True),
    }
    for name, given in others.items():
        for _ in range(2):
            assert kept(*given) is None, name
    with forward_ad.dual_level():
        assert kept(forward_ad.make_dual(x, x), y, 1) is None

    def row(vector: torch.Tensor) -> torch.Tensor:
        assert kept(vector, y, 1) is None
        return vector

    torch.func.vmap(row)(torch.stack((x, x)))
    torch._vmap_internals._vmap(row)(torch.stack((x, x)))  # the older vmap, of batched gradients
    with torch.inference_mode():
        inner = x.clone()
    for left, right in ((x, inner), (inner, x), (inner, inner)):
        assert kept(left, right, 1) is None
        for _ in range(2):
            assert torch.equal(ops.add(left, right, alpha=1), 2 * x)
        assert kept(left, right, 1) is not None
    assert torch.equal(kept(x, y, 1), x + y)


def calls_see_torchs_modes_and_switches() -> None:
    """A warm call is not repeated under another autocast, precision, grad mode or default dtype."""
    a, b = torch.zeros(64, 32), torch.zeros(32, 48)
    for _ in range(2):
        ops.matmul(a, b)
    before = len(gpu.started)
    result = again(ops.matmul, a, b)
    assert (result.shape, result.dtype, len(gpu.started)) == ((64, 48), torch.float32, before + 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert again(ops.matmul, a, b) is None
        for _ in range(2):
            assert ops.matmul(a, b).dtype == torch.bfloat16
        assert again(ops.matmul, a, b).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert again(ops.matmul, a, b) is None
    with tf32():
        assert again(ops.matmul, a, b) is None
    assert again(ops.matmul, a, b) is not None
    follows = a.clone().requires_grad_()
    for _ in range(2):
        assert ops.matmul(follows, b).requires_grad
    assert again(ops.matmul, follows, b).requires_grad
    with torch.no_grad():
        assert again(ops.matmul, follows, b) is None
    whole = torch.ones(40, dtype=torch.int64)
    for _ in range(3):
        assert ops.logsumexp(whole, 0).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert again(ops.logsumexp, whole, 0) is None
        assert ops.logsumexp(whole, 0).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with forward_ad.dual_level():
        assert again(ops.matmul, forward_ad.make_dual(a, a), b) is None


def sums_on_another_device() -> None:
    """Sums on a device that is not current are right."""
    x, y = both(48)
    with patch.object(compat, "current_cuda_device", lambda: 5):
        for _ in range(3):
            assert torch.equal(ops.add(x, y), x + y)


def attended(x: torch.Tensor) -> torch.Tensor:
    return ops.scaled_dot_product_attention(x, x, x, is_causal=True)


def repeated_launches() -> None:
    """A launch that is repeated starts its kernels on its own tensors, and compiles them once."""
    a, b = numbers(48, 64), numbers(64, 32)
    launch = gemm.launch(a, b)
    again = replay.repeated(launch)
    seen = []
    for _ in range(3):
        gpu.started.clear()
        assert again() is launch.outputs
        seen.append(json.dumps(gpu.started))
    assert seen == [seen[0]] * 3
    assert gpu.started
    assert len(gpu.compiled) == len(launch.steps)


def causal_attention_is_warm() -> None:
    """From the third call on, causal attention starts the kernels of the second and refuses no recording."""
    x, seen = numbers(48, 64).view(1, 4, 12, 64), []
    for _ in range(4):
        gpu.started.clear()
        attended(x)
        seen.append([name for name, *_ in gpu.started])
    assert seen[1:] == [seen[1]] * 3, seen
    assert seen[1]
    assert not warm.reasons_of(ops.scaled_dot_product_attention)
    assert warm.source_of(ops.scaled_dot_product_attention)


def gradients_are_warm() -> None:
    """From the third step on, forward and backward start the kernels of the second and check nothing."""
    x, w, v = (numbers(*shape).requires_grad_() for shape in ((48, 64), (64,), (64,)))
    calls: dict[str, tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "layer_norm": (lambda: ops.layer_norm(x, (64,), w, v), (x, w, v)),
        "matmul": (lambda: ops.matmul(x, x.t()), (x,)),
        "softmax": (lambda: ops.softmax(x, 1), (x,)),
        "attention": (
            lambda: attended(x.view(1, 4, 12, 64)), (x,)
        ),
        "max": (lambda: ops.max(x, 1)[0].sum(), ()),
        "swiglu": (lambda: ops.swiglu(x, x.t(), x.t()), (x,)),
    }  # fmt: skip
    for name, (call, leaves) in calls.items():
        seen = []
        for number in range(4):
            gpu.started.clear()
            before = len(gpu.compiled)
            result = call()
            assert result.requires_grad, name
            if leaves:
                gradients = torch.autograd.grad(result, leaves, torch.ones_like(result))
                assert [g.shape for g in gradients] == [t.shape for t in leaves], name
            seen.append(json.dumps(gpu.started))
            assert number == 0 or len(gpu.compiled) == before, name
        assert len(set(seen)) == 1, (name, seen)
        assert type(result.grad_fn).__name__ != "NoneType"
    x = x.detach().requires_grad_()
    for _ in range(4):  # only some gradients are asked for
        result = ops.layer_norm(x, (64,), w, v)
        for leaves in ((x,), (w,), (v,), (x, v), (x, w, v)):
            found = torch.autograd.grad(result, leaves, torch.ones_like(result), retain_graph=True)
            assert [g.shape for g in found] == [t.shape for t in leaves]
    result = ops.softmax(x, 1)
    (once,) = torch.autograd.grad(result, x, torch.ones_like(result), create_graph=True)
    with pytest.raises(WorkbenchError, match="a second derivative"):
        torch.autograd.grad(once.sum(), x)


def numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


A, B, D, E, V = numbers(48, 64), numbers(64, 32), numbers(48, 32), numbers(48, 32), numbers(32)
X, W = numbers(2, 16, 6, 6), numbers(16, 16, 3, 3)
GROUPS, OFFS = numbers(3, 64, 32), torch.tensor([16, 32, 48], dtype=torch.int32)

# name -> an operator of its tensors alone, and the tensors
FUSED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "fused_matmul": (
        lambda a, b, d, e: ops.fused_matmul(a, b, epilogue=add(d) | add(e) | fast_gelu()), (A, B, D, E)
    ),
    "cast": (
        lambda a, b, v: ops.fused_matmul(a, b, epilogue=bias(v) | cast(torch.int8)), (A, B, V)
    ),
    "permuted": (
        lambda a, b: ops.fused_matmul(a, b, epilogue=relu() | permuted((3, 16, 4, 8), (0, 2, 1, 3))), (A, B)
    ),
    "rows of a batch": (
        lambda a, b, d: ops.fused_matmul(a, b, epilogue=add(d), out_dtype=torch.float32),
        (A.view(3, 16, 64), B, D.view(3, 16, 32)),
    ),
    "dropout": (
        lambda a, b, seed: ops.fused_matmul(a, b, epilogue=dropout(0.5, seed)), (A, B, torch.tensor([7]))
    ),
    "fused_grouped_mm": (
        lambda a, b, offs, v: ops.fused_grouped_mm(a, b, offs=offs, epilogue=bias(v) | silu()),
        (A, GROUPS, OFFS, numbers(3, 32)),
    ),
    "fused_conv2d": (
        lambda x, w, v, d: ops.fused_conv2d(x, w, v, 1, 1, epilogue=residual(d) | relu()),
        (X, W, numbers(16), numbers(2, 16, 6, 6)),
    ),
    "an image": (
        lambda x, w: ops.fused_conv2d(x, w, padding=(1, 1), epilogue=relu()), (X[0], W)
    ),
    "matmul_layer_norm": (
        lambda a, b, w, v, d: ops.matmul_layer_norm(a, b, w, v, epilogue=residual(d)), (A, B, V, V + 1, D)
    ),
    "rows of a norm": (lambda a, b: ops.matmul_layer_norm(a, b), (A.view(3, 16, 64), B)),
    "matmul_rms_norm": (lambda a, b, w: ops.matmul_rms_norm(a, b, w), (A, B, V)),
    **{
        name: (getattr(ops, name), (A, B))
        for name in ("matmul_softmax", "matmul_argmax", "matmul_logsumexp")
    },
    "keepdim": (lambda a, b: ops.matmul_sum(a, b, True), (A, B)),
    "wide sums": (lambda a, b: ops.matmul_sum(a, b), (A, numbers(64, 2000))),
    "matmul_matmul": (ops.matmul_matmul, (A, B, numbers(32, 16))),
    "two products": (ops.matmul_matmul, (A, B, numbers(32, 2000))),
    "swiglu": (ops.swiglu, (A, B, B + 1)),
    "geglu": (ops.geglu, (A, B, B + 1)),
    "one weight": (lambda a, b: ops.swiglu(a, b, b), (A, B)),
}  # fmt: skip


def forget_calls() -> None:
    """Drop all warm calls, so that operators start with their checks again."""
    for name in ops.__all__:
        getattr(ops, name).patterns.clear()


def started_by(call: Callable[[], torch.Tensor]) -> tuple[Any, ...]:
    """Return the kernels that a call starts, and its result's shape, strides, dtype and `requires_grad`."""
    gpu.started.clear()
    result = call()
    return json.dumps(gpu.started), result.shape, result.stride(), result.dtype, result.requires_grad


def asks(call: Callable[[], object]) -> bool:
    """Return whether an operator itself runs in a call, because no warm call fits it."""
    found = []
    cold = warm.Pattern.cold

    def seen(self: warm.Pattern, *given: Any) -> Any:
        found.append(self)
        return cold(self, *given)

    with patch.object(warm.Pattern, "cold", seen):
        call()
    return bool(found)


def fused_calls() -> None:
    """Later calls, with these or like tensors, start the kernels of the first call without its checks."""
    for name, (operator, given) in FUSED.items():
        first = started_by(partial(operator, *given))
        assert json.loads(first[0]), name
        assert started_by(partial(operator, *given)) == first, name
        likes = [t.clone(memory_format=torch.preserve_format) for t in given]
        for tensors in (given, likes, given):
            assert not asks(partial(operator, *tensors)), name
            assert started_by(partial(operator, *tensors)) == first, name
        results = [operator(*given) for _ in range(2)]
        assert results[0].data_ptr() != results[1].data_ptr(), name
        gone = weakref.ref(likes[0])
        likes.clear()
        assert gone() is None, name


def unlike(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors of the same shape that are unlike a plain one."""
    found = [
        torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape),
        torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)[..., 0],
        torch.nn.Parameter(tensor, requires_grad=False),
        tensor[:1].expand(tensor.shape),
    ]
    if tensor.is_floating_point():
        found += [torch._neg_view(tensor), tensor.clone().requires_grad_()]
    return found


def fused_calls_of_special_tensors() -> None:
    """After a plain call was kept, calls with a special tensor start what they start without it."""
    number = 0
    for name in ("fused_matmul", "fused_grouped_mm", "fused_conv2d", "matmul_layer_norm", "swiglu"):
        operator, given = FUSED[name]
        for place, plain in enumerate(given):
            several = unlike(plain)
            number += 1
            for special in (several[number % len(several)], several[(number + 3) % len(several)]):
                call = partial(operator, *given[:place], special, *given[place + 1 :])
                with torch.no_grad():
                    forget_calls()
                    wanted = started_by(call)
                    forget_calls()
                    plainly = started_by(partial(operator, *given))
                    for _ in range(3):
                        assert started_by(call) == wanted, (name, place, special)
                    assert started_by(partial(operator, *given)) == plainly, (name, place, special)


def fused_calls_of_copies() -> None:
    """A warm call whose kernel gets a copy of a tensor copies the tensor again."""
    columns = numbers(32, 2)[:, 0]
    cases = {"columns": partial(ops.matmul_layer_norm, A, B, columns)}
    for name in ("fused_matmul", "fused_grouped_mm", "fused_conv2d", "matmul_layer_norm", "swiglu"):
        operator, given = FUSED[name]
        for place, plain in enumerate(given):
            if plain.is_floating_point():
                call = partial(operator, *given[:place], torch._neg_view(plain), *given[place + 1 :])
                cases[f"{name} {place}"] = call
    for name, call in cases.items():
        first = started_by(call)
        for _ in range(3):
            assert started_by(call) == first, name
        copied = [each for text in _sources() for each in text.splitlines() if "_start" not in each]
        assert copied, name


def _sources() -> list[str]:
    """Return the text of all warm calls."""
    return [text for name in ops.__all__ for text in warm.source_of(getattr(ops, name))]


def fused_calls_under_autograd_and_torchs_modes() -> None:
    """Warm calls follow autograd, forward mode, autocast and inference mode."""
    for name in ("fused_matmul", "fused_conv2d", "matmul_argmax", "matmul_matmul", "two products"):
        operator, given = FUSED[name]
        operator(*given)
        follows = partial(operator, given[0].clone().requires_grad_(), *given[1:])
        with torch.no_grad():
            for _ in range(2):
                follows()
            assert not asks(follows), name
        for number in range(4):
            assert asks(follows) == (number < 1), (name, number)
        assert follows().requires_grad == (name != "matmul_argmax"), name
    for name in ("fused_matmul", "matmul_softmax"):
        operator, given = FUSED[name]
        call = partial(operator, *[t.float() for t in given])
        for _ in range(3):
            assert call().dtype == torch.float32
            for dtype in (torch.float16, torch.bfloat16):
                with torch.autocast("cpu", dtype=dtype):
                    assert call().dtype == dtype
                    assert operator(*[t.to(torch.float16) for t in given]).dtype == dtype
            with torch.inference_mode():
                assert call().is_inference()
            with forward_ad.dual_level():
                assert asks(call)
        assert not asks(call)
        with tf32():
            assert asks(call), name


def other_arguments_of_fused_calls() -> None:
    """Other arguments are part of the key, with their types; what was refused is refused later too."""
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: ops.fused_matmul(A, B, epilogue=scale(1)),
        lambda: ops.fused_matmul(A, B, epilogue=scale(1.0)),
        lambda: ops.fused_matmul(A, B, epilogue=scale(0.0)),
        lambda: ops.fused_matmul(A, B, epilogue=scale(-0.0)),
        lambda: ops.fused_matmul(A, B, epilogue=scale(1), out_dtype=torch.float32),
        lambda: ops.fused_matmul(A, B, epilogue=add(V)),
        lambda: ops.fused_matmul(A, B, epilogue=bias(V)),
        lambda: ops.fused_matmul(A, B, epilogue=add(V) | relu()),
        lambda: ops.fused_matmul(A, B, epilogue=relu() | add(V)),
        lambda: ops.fused_matmul(A, B, epilogue=dropout(0.5, 3)),
        lambda: ops.fused_matmul(A, B, epilogue=dropout(0.5, 4)),
        lambda: ops.fused_matmul(A, B, epilogue=cast(torch.float8_e4m3fn)),
        lambda: ops.fused_matmul(A, B, epilogue=cast(torch.float8_e5m2)),
        lambda: ops.matmul_layer_norm(A, B),
        lambda: ops.matmul_layer_norm(A, B, V),
        lambda: ops.matmul_layer_norm(A, B, None, V),
        lambda: ops.matmul_layer_norm(A, B, eps=0.5),
        lambda: ops.matmul_layer_norm(A, B, epilogue=relu()),
        lambda: ops.matmul_sum(A, B, True),
        lambda: ops.matmul_sum(A, B, False),
        lambda: ops.swiglu(A, B, B),
        lambda: ops.geglu(A, B, B),
        lambda: ops.geglu(A, B, B, "tanh"),
        lambda: ops.matmul_matmul(A, B, B.t(), "relu"),
        lambda: ops.matmul_matmul(A, B, B.t()),
        *[
            lambda options=options: ops.fused_conv2d(X, W, *options, epilogue=relu())
            for options in ((None, 1), (None, 2), (None, (2, 1)), (None, 1, 1), (None, 1, "same"),
                            (None, [1, 1], [1, 1]), (numbers(16), 1), (None, 1, 1, 2))
        ],
    ]  # fmt: skip
    cold = []
    for call in calls:
        forget_calls()
        cold.append(started_by(call))
    for _ in range(3):
        assert [started_by(call) for call in calls] == cold
    refused: list[Callable[[], object]] = [
        lambda: ops.fused_matmul(A, A, epilogue=scale(1)),
        lambda: ops.fused_matmul(A, B, epilogue=add(D[:7])),
        lambda: ops.fused_matmul(A, B.float(), epilogue=scale(1)),
        lambda: ops.fused_matmul(A, 3, epilogue=scale(1)),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.fused_matmul(A, B, epilogue=None),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.fused_matmul(A, B, epilogue=scale(1), out_dtype=[]),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.fused_matmul(A, B.to_sparse(), epilogue=scale(1)),
        lambda: ops.matmul_layer_norm(A, B, V[:3]),
        lambda: ops.matmul_layer_norm(A, B, eps=[]),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.matmul_sum(A, B, 1),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.matmul_matmul(A, B, B.t(), []),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.matmul_softmax(torch.nested.nested_tensor([A, A]), B),
        lambda: ops.swiglu(A, B, D),
        lambda: ops.fused_conv2d(X, W, None, 1, 1, 1, True, epilogue=relu()),
        lambda: ops.fused_conv2d(X, W, None, True, epilogue=relu()),
        lambda: ops.fused_conv2d(X, W, None, 1.0, epilogue=relu()),  # type: ignore[arg-type]  # refused at run time
        lambda: ops.fused_grouped_mm(A, GROUPS, offs=OFFS.long(), epilogue=relu()),
    ]  # fmt: skip
    for number, bad in enumerate(refused):
        for _ in range(2):
            try:
                bad()
            except WorkbenchError:
                continue
            raise AssertionError(f"{number} was not refused")


def tensors_without_memory() -> None:
    """No kernel is started at address 0, although tensors of the same layout were kept."""
    a, b, x = torch.zeros(64, 64), torch.zeros(64, 64), torch.zeros(1, 1, 64, 64)
    calls: tuple[Callable[..., object], ...] = (
        lambda a, b, x: ops.matmul(a, b), lambda a, b, x: ops.baddbmm(x[0], x[0], x[0]),
        lambda a, b, x: ops.add(a, b), lambda a, b, x: ops.add(a.t(), b), lambda a, b, x: ops.swiglu(a, b, b),
        lambda a, b, x: ops.softmax(a, 1), lambda a, b, x: ops.clone(a.t()), lambda a, b, x: ops.sum(a),
    )  # fmt: skip
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(tensor) for tensor in (a, b, x)]
    for number, call in enumerate(calls):
        for within, given in (
            (nullcontext(), fakes), (mode, fakes),
            (nullcontext(), (a, b, x)), (nullcontext(), (a, b, x)),
            (nullcontext(), fakes), (mode, fakes), (nullcontext(), (a, fakes[1], fakes[2])),
        ):  # fmt: skip
            gpu.started.clear()
            try:
                with within:
                    call(*given)
                is_started = True
            except TracingError:
                is_started = False
            wanted = given[-1] is x or (given[0] is a and number >= 5)  # only `a`
            assert (is_started, len(gpu.started) > 0) == (wanted, wanted), (number, within, given)


def current_stream() -> None:
    """The stream is the one that is current at the call."""
    x, y = both(32)
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    for gpu.stream in (3, 4, 3, 0):
        gpu.started.clear()
        ops.add(x, y)
        ops.clone(x[::2])
        ops.matmul(a, b)
        assert {call[2] for call in gpu.started} == {gpu.stream}


def maps_of_descriptors() -> None:
    """Warm calls make a map once for each address."""
    a, b, c = (torch.zeros(256, 256, dtype=torch.float16) for _ in range(3))
    outputs = [ops.matmul(a, b)]  # kept alive, so that each has its own address
    assert [call[0] for call in gpu.started] == ["gemm_kernel"]
    outputs.append(ops.matmul(a, b))
    assert {a.data_ptr(), b.data_ptr()} <= set(gpu.maps)
    gpu.maps.clear()
    outputs.append(ops.matmul(a, b))
    assert not {a.data_ptr(), b.data_ptr()} & set(gpu.maps)
    gpu.maps.clear()
    outputs.append(ops.matmul(c, b))
    assert gpu.maps.count(c.data_ptr()) == 1
    assert json.dumps(gpu.started[-1]).count('"map"') == json.dumps(gpu.started[0]).count('"map"') > 0
    with patch.object(replay, "MOST_MAPS", 1):
        for left in (a, c, a, c):
            ops.matmul(left, b)


def hooks_are_called() -> None:
    """A profiler's hooks are called at warm calls too, as long as there are any."""
    x, y = both(32)
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    ops.add(x, y)
    ops.matmul(a, b)
    told: list[str] = []
    hook = lambda metadata: told.append(metadata.get()["name"])  # noqa: E731
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        ops.add(x, y)
        ops.matmul(a, b)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    ops.add(x, y)
    assert told == ["binary_kernel", "gemm_kernel"]


def warming_up() -> None:
    """Everything is compiled and kept, and nothing started, for tensors and for shapes alone."""
    x, y = both(64)
    a, b = torch.zeros(64, 96), torch.zeros(96, 32)
    shapes = [torch.empty(t.shape, device="meta") for t in (a, b)]
    for operator, given in (
        (ops.add, (x, y)), (ops.matmul, (a, b)), (ops.softmax, (a, 1)), (ops.sum, (a,)),
        (ops.swiglu, (a, b, b)),
    ):  # fmt: skip
        before = len(gpu.compiled)
        warmup(operator, *given)
        assert len(gpu.compiled) > before, operator
        assert not gpu.started, operator
        with Decorators() as through:
            operator(*given)
        assert (through.calls, len(gpu.started) > 0) == (0, True), operator
        warmup(operator, *given)  # everything is kept by now, and nothing is started either
        started = len(gpu.started)
        warmup(operator, *given)
        assert len(gpu.started) == started
        gpu.started.clear()
    before = len(gpu.compiled)
    with patch.object(prepared, "_with_real_tensors", lambda t: torch.zeros_like(t, device="cpu").half()):
        warmup(ops.matmul, *shapes)
    assert len(gpu.compiled) > before
    assert not gpu.started
    before = len(gpu.compiled)
    ops.matmul(a.half(), b.half())
    assert len(gpu.compiled) == before


def other_threads_are_not_warming_up() -> None:
    """While one thread warms up, calls of another start kernels."""
    x, y = both(64)
    results: list[torch.Tensor] = []

    def inside() -> None:
        thread = threading.Thread(target=lambda: results.append(ops.add(x, y)))
        thread.start()
        thread.join()

    warmup(inside)
    assert torch.equal(results[0], x + y)


def in_threads(count: int, call: Callable[[int], None]) -> None:
    """Run the call in threads at the same time, and raise what one of them raises."""
    barrier, failed = threading.Barrier(count), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            call(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def concurrent_first_calls() -> None:
    """The first of several threads that need a kernel compiles it, and each gets its own result."""
    pairs = [both(64) for _ in range(8)]

    def call(number: int) -> None:
        x, y = pairs[number]
        assert torch.equal(ops.add(x, y), x + y)
        assert torch.equal(ops.add(x[::2], y[::2]), (x + y)[::2])
        ops.matmul(torch.zeros(64, 64), torch.zeros(64, 64))
        assert ops.swiglu(A, B, B).shape == (48, 32)

    in_threads(8, call)
    names = [name for name in gpu.compiled if name != "sum_of_splits_kernel"]
    assert sorted(names) == sorted(set(names)) or len(names) == 3, names
    assert len(gpu.started) >= 24


def calls_that_are_not_warm() -> None:
    """In a transform of torch.func, a call plans its launch twice; later ones only start it."""
    x = numbers(6, 64)
    mapped = torch.func.vmap(lambda row: ops.softmax(row, 0))
    seen = []
    with patch.object(launches, "keep", wraps=launches.keep) as keep:
        for _ in range(4):
            keep.reset_mock()
            gpu.started.clear()
            mapped(x.clone())
            seen.append((keep.call_count, [each[:2] for each in gpu.started]))
    assert seen[-1][0] == 0
    assert seen[-1][1] == seen[0][1]


def one_tensor_twice_and_two_tensors() -> None:
    """Tensors that are one object, views of one memory, and apart are told apart, in any order."""
    x, a, b = (torch.ones(64, 64) for _ in range(3))
    for left, right in ((x, x), (x, x), (x, x.detach()), (a, b), (a, a.detach()), (b, a)) * 2:
        gpu.started.clear()
        with patch.object(gpu, "in_short", any_order.raw):
            ops.add(left, right)
        assert gpu.started[-1][8:10] == [right.data_ptr(), left.data_ptr()]


def concurrent_clearing() -> None:
    """Calls in threads give right results while caches are cleared over and over."""
    with patch.object(warm, "MOST_KEYS", 2), patch.object(replay, "MOST_COMPILED", 2):

        def call(number: int) -> None:
            for length in range(2, 40):
                x, y = both(length * (number + 1))
                assert torch.equal(ops.add(x, y), x + y)
                assert torch.equal(ops.add(x[::2], y[::2], alpha=0.5), torch.add(x, y, alpha=0.5)[::2])

        in_threads(4, call)


CASES = (
    sizes_of_sums, sizes_of_strided_sums, sizes_of_products, zeros_of_products,
    values_of_sums, transforms_of_sums, calls_of_known_layouts_are_warm, sums_on_another_device,
    calls_see_torchs_modes_and_switches, causal_attention_is_warm, gradients_are_warm, fused_calls,
    fused_calls_of_special_tensors, fused_calls_of_copies, fused_calls_under_autograd_and_torchs_modes,
    other_arguments_of_fused_calls, repeated_launches, tensors_without_memory, current_stream,
    maps_of_descriptors, hooks_are_called, warming_up, calls_that_are_not_warm,
    one_tensor_twice_and_two_tensors, other_threads_are_not_warming_up, concurrent_first_calls,
    concurrent_clearing,
)  # fmt: skip


def forget() -> None:
    """Clear all caches and records, as in a new process."""
    forget_calls()
    replay._compiled.clear()
    launches.clear()
    for kernel in (elementwise.binary_kernel, elementwise.binary_strided_kernel, gemm.gemm_kernel):
        kernel.device_caches.clear()
    for seen in (gpu.compiled, gpu.started, gpu.maps):
        seen.clear()
    gpu.stream = 7


if __name__ == "__main__":
    gpu.pretend()
    gpu.computed.update(binary_kernel=binary, binary_strided_kernel=binary_strided)
    warnings.simplefilter("ignore")
    for case in CASES:
        forget()
        wrong = ""
        try:
            case()
        except Exception:
            wrong = traceback.format_exc()
        print(json.dumps({"case": case.__name__, "wrong": wrong}))
