"""Warm calls: what is recorded, what is not, and what a later call compares.

Kernels are interpreted for a pretended device, on which calls are kept as on a GPU.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode

from tests.machines import A100, H200
from workbench import device, ops
from workbench.errors import WorkbenchError
from workbench.kernels import epilogues
from workbench.kernels.pointwise import elementwise
from workbench.launch import Launch
from workbench.runtime import warm as module
from workbench.runtime.following import follow
from workbench.runtime.replay import only_prepared, start
from workbench.runtime.warm import read_switch, reasons_of, source_of, warm


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with device.pretend(H200):
        yield


class Counted:
    """A function of tensors that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls, self._function = 0, function
        self.__name__ = "counted"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        self.calls += 1
        return self._function(*args, **keywords)


def sums(function: Callable[..., Any] | None = None) -> tuple[Counted, Any]:
    """Return a counted function, by default the sum of two tensors, and its warm form."""

    def add(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        output = torch.empty_like(x)
        start(elementwise.launch, y, x, output, operation="axpy", alpha=alpha)
        return output

    counted = Counted(add if function is None else function)
    return counted, warm(counted)


def test_the_third_call_is_warm() -> None:
    counted, add = sums()
    for number in range(5):
        x, y = torch.randn(40), torch.randn(40)
        assert torch.equal(add(x, y), x + y)
        assert counted.calls == min(number + 1, 2)
    assert len(source_of(add)) == 1
    assert reasons_of(add) == []


def test_other_layouts_values_and_keywords_are_calls_of_their_own() -> None:
    counted, add = sums()
    x, y = torch.randn(40), torch.randn(40)
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, y), {}), ((x[:20], y[:20]), {}), ((x[::2], y[::2]), {}), ((x.half(), y.half()), {}),
        ((x, y, 2.0), {}), ((x, y), {"alpha": 2.0}), ((x, y), {"alpha": 0.0}), ((x, y), {"alpha": -0.0}),
        ((x, y), {"alpha": float("nan")}), ((x, x), {}), ((x.view(4, 10), y.view(4, 10)), {}),
    ]  # fmt: skip
    for _ in range(4):
        for args, keywords in given:
            wanted = torch.add(*args[:2], alpha=(*args[2:], *keywords.values(), 1.0)[0])
            torch.testing.assert_close(add(*args, **keywords), wanted, equal_nan=True, rtol=0, atol=0)
    warm_ones = len(given) - 1  # a NaN equals no other
    assert counted.calls <= 2 * warm_ones + 4


def test_the_sign_of_zero_is_part_of_a_call() -> None:
    seen: list[float] = []

    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        seen.append(factor)
        return torch.empty_like(x).fill_(factor)

    call = warm(scaled)
    x = torch.ones(3)
    for factor in (0.0, -0.0, 0.0, -0.0, 0.0, -0.0):
        assert str(call(x, factor)[0].item()) == str(factor)
    assert len(seen) == 4


def test_whole_numbers_and_truths_are_told_apart() -> None:
    def typed(x: torch.Tensor, dims: Any) -> torch.Tensor:
        return torch.full_like(x, sum(type(each) is int for each in dims))

    call, x = warm(typed), torch.ones(2)
    for _ in range(3):
        assert call(x, (1, 1))[0] == 2
        assert call(x, (True, 1))[0] == 1
        assert call(x, [1, 1])[0] == 2
        assert call(x, torch.Size((1, 1)))[0] == 2


def test_each_machine_has_calls_of_its_own() -> None:
    counted, add = sums()
    x, y = torch.randn(40), torch.randn(40)
    for machine, calls in ((H200, 2), (A100, 3), (H200, 3), (A100, 3)):
        with device.pretend(machine):
            for _ in range(3):
                add(x, y)
        assert counted.calls == calls
    with device.pretend(device.current()):
        pass


def test_where_kernels_are_interpreted_nothing_is_kept() -> None:
    counted, add = sums()
    x, y = torch.randn(40), torch.randn(40)
    token = device._pretended.set(None)
    try:
        for _ in range(4):
            add(x, y)
    finally:
        device._pretended.reset(token)
    assert counted.calls == 4
    assert source_of(add) == []


def test_a_call_that_reads_a_value_is_not_kept() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + x[0].item()

    counted, call = sums(shifted)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(call(torch.full((3,), value)), torch.full((3,), 2 * value))
    assert counted.calls == 3
    assert "depends on values" in reasons_of(call)[0]


def test_a_call_with_a_tensor_from_elsewhere_is_not_kept() -> None:
    constant = torch.ones(3)
    counted, call = sums(lambda x: x + constant)
    for _ in range(4):
        assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    assert counted.calls == 4
    assert "neither an argument nor made of arguments" in reasons_of(call)[0]


def test_a_result_that_is_not_a_tensor_is_not_kept() -> None:
    counted, call = sums(lambda x: (x + 1, 5))
    for _ in range(4):
        assert call(torch.ones(3))[1] == 5
    assert counted.calls == 4
    assert reasons_of(call) == ["a result is not a tensor that the call was given or made"]


@triton.jit
def doubled_kernel(x, output, n: tl.constexpr):
    offsets = tl.arange(0, n)
    tl.store(output + offsets, 2 * tl.load(x + offsets))


def test_a_kernel_that_is_started_by_itself_is_not_kept() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(x)
        (step,) = Launch.of(doubled_kernel, (1,), x, output, outputs=(output,), n=8).steps
        step.run()
        return output

    counted, call = sums(doubled)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(call(torch.full((8,), value)), torch.full((8,), 2 * value))
    assert counted.calls == 3
    assert reasons_of(call) == ["doubled_kernel was started by itself, not by `runtime.replay.start`"]


def test_torchs_operations_are_repeated() -> None:
    """Copies, views, changes in place, several results, None and an argument as a result."""

    def several(x: torch.Tensor, total: torch.Tensor) -> Any:
        turned = x.t().contiguous().double()
        total += turned.sum()
        first, second = turned.view(-1).split([2, 4])
        unused = x.sin()
        assert unused.shape == x.shape
        return [first, second.neg_(), None, x]

    counted, call = sums(several)
    for value in range(4):
        x, total = torch.arange(6.0).view(2, 3) + value, torch.zeros(())
        first, second, nothing, same = call(x, total)
        wanted = x.t().reshape(-1).double()
        assert torch.equal(first, wanted[:2])
        assert torch.equal(second, -wanted[2:])
        assert nothing is None
        assert same is x
        assert total == x.sum()
    assert counted.calls == 2
    (text,) = source_of(call)
    assert "aten" not in text  # operations are constants of the text
    assert text.count(" = k") <= 8  # the sine is left out


def test_a_named_tuple_is_made_again() -> None:
    counted, call = sums(lambda x: torch.max(x * 2, 0))
    for _ in range(4):
        found = call(torch.tensor([1.0, 3.0, 2.0]))
        assert isinstance(found, torch.return_types.max)
        assert (found.values.item(), found.indices.item()) == (6.0, 1)
    assert counted.calls == 2


def test_a_result_is_allocated_in_its_own_layout() -> None:
    """A result that is a view of all of an allocated tensor is no view in a warm call."""

    def shaped(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(x.numel())
        start(elementwise.launch, x.view(-1), x.view(-1), output)
        return output.view(x.shape)

    _, call = sums(shaped)
    x = torch.randn(4, 5)
    for _ in range(3):
        result = call(x)
        assert torch.equal(result, 2 * x)
    assert not result._is_view()


def switch() -> str:
    return str(torch.backends.cuda.matmul.fp32_precision)


def test_a_switch_that_was_read_is_compared() -> None:
    def named(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 1.0 if read_switch(switch) == "tf32" else 2.0)

    counted, call = sums(named)
    x, matmul = torch.ones(3), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for precision, wanted in (("ieee", 2.0), ("ieee", 2.0), ("tf32", 1.0), ("ieee", 2.0), ("tf32", 1.0)):
            matmul.fp32_precision = precision
            assert call(x)[0] == wanted
        assert counted.calls == 3
    finally:
        matmul.fp32_precision = before


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.factor = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.factor + 0 * x, None


def test_gradients_are_those_of_the_followed_function() -> None:
    counted, call = sums(lambda x: follow(Doubled, x, 2.0).view(-1))
    for number in range(5):
        x = torch.randn(3, 2).requires_grad_()
        result = call(x)
        assert torch.equal(result, 2 * x.view(-1))
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient, torch.full((3, 2), 2.0))
        assert counted.calls == min(number + 1, 2)
    with torch.no_grad():
        assert not call(x).requires_grad
    x = torch.randn(3, 2).requires_grad_()
    result = call(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_function_that_is_applied_unnoticed_is_not_kept() -> None:
    """Its gradients would be lost: only `follow` tells of it."""

    def applied(x: torch.Tensor) -> torch.Tensor:
        class Added(Doubled):
            @staticmethod
            def forward(x: torch.Tensor, factor: float) -> torch.Tensor:
                output = torch.empty_like(x)
                start(elementwise.launch, x, x, output)
                return output

        return Added.apply(x, 2.0)  # type: ignore[no-any-return]

    counted, call = sums(applied)
    for _ in range(4):
        x = torch.ones(8).requires_grad_()
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        assert torch.equal(gradient, torch.full((8,), 2.0))
    assert counted.calls == 4
    assert "while autograd was off" in reasons_of(call)[0]


def test_modes_that_see_calls_still_see_them() -> None:
    counted, add = sums()
    x, y = torch.randn(40), torch.randn(40)
    for _ in range(3):
        add(x, y)
    seen: list[str] = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        assert torch.equal(add(x, y), x + y)
    assert "aten.empty_like.default" in seen
    assert counted.calls == 3


def test_tensors_are_not_kept_alive() -> None:
    _, add = sums()
    x, y = torch.randn(40), torch.randn(40)
    for _ in range(3):
        add(x, y)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_KEYS", "MOST_LIKE", "MOST_PATTERNS"):
        monkeypatch.setattr(module, name, 2)
    monkeypatch.setattr(module, "MANY_RECORDINGS", 5)
    counted, add = sums()
    for length in range(2, 9):
        for _ in range(3):
            add(torch.ones(length), torch.ones(length))
    (pattern,) = add.patterns.values()
    assert len(pattern.kept) <= 2
    like = torch.zeros(64)
    for _ in range(3):
        for step in range(1, 5):
            add(like.as_strided((8,), (step,)), torch.ones(8))
    assert all(len(tapes) <= 2 for tapes in pattern.kept.values())
    before = counted.calls
    for _ in range(4):
        for step in range(1, 5):
            assert torch.equal(add(like.as_strided((8,), (step,)), torch.ones(8)), torch.ones(8))
    assert counted.calls > before  # more layouts than are kept are recorded only so often
    for given in (
        (torch.ones(3), torch.ones(3), 1),
        (torch.ones(3), torch.ones(3), True),
        (torch.ones(3),) * 2,
    ):
        add(*given)
    assert len(add.patterns) <= 2


def test_lengths_that_grow_leave_room_for_calls_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding keeps the query's shape, and has one key more at each step."""
    monkeypatch.setattr(module, "MOST_KEYS", 8)

    def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(y)
        start(elementwise.launch, y, y, output)
        return output

    counted, call = sums(doubled)
    x = torch.ones(1)
    for _ in range(3):
        call(x, torch.ones(3))
    for length in range(4, 104):
        call(x, torch.ones(length))
    before = counted.calls
    call(x, torch.ones(3))  # kept, although a hundred other lengths were seen since
    assert counted.calls == before
    for _ in range(5):
        assert torch.equal(call(x, torch.ones(200)), 2 * torch.ones(200))
    assert counted.calls == before + 2
    assert reasons_of(call) == []


def test_calls_are_recorded_again_and_again_but_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_RECORDINGS", 4)
    monkeypatch.setattr(module, "MOST_LIKE", 2)
    counted, add = sums()
    like, others = torch.zeros(640), range(1, 41)
    for step in others:
        add(like.as_strided((8,), (step,)), torch.ones(8))
    assert reasons_of(add) == [
        "calls with tensors of these shapes were recorded so often that few later ones are"
    ]
    before = counted.calls
    for _ in range(100):
        add(like.as_strided((8,), (64,)), torch.ones(8))
    assert counted.calls - before < 40


def test_other_threads_stay_warm_while_one_warms_up() -> None:
    counted, add = sums()
    x = torch.ones(8)
    for _ in range(3):
        add(x, x)
    entered, done = threading.Event(), threading.Event()

    def warm_up() -> None:
        with only_prepared():
            entered.set()
            done.wait(30)

    thread = threading.Thread(target=warm_up)
    thread.start()
    entered.wait(30)
    before = counted.calls
    assert torch.equal(add(x, x), 2 * x)
    done.set()
    thread.join()
    assert counted.calls == before


def test_memory_of_intermediate_results_is_freed_before_the_end() -> None:
    def three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second, third = (torch.empty_like(x) for _ in range(3))
        start(elementwise.launch, x, y, first)
        start(elementwise.launch, first, y, second)
        start(elementwise.launch, second, y, third)
        return third

    _, call = sums(three)
    x = torch.ones(1000)
    for _ in range(4):
        assert torch.equal(call(x, x), 4 * x)
    (text,) = source_of(call)
    lines = [line.strip() for line in text.splitlines()]
    freed = [place for place, line in enumerate(lines) if line.startswith("del ")]
    made = [place for place, line in enumerate(lines) if " = k" in line and line.startswith("v")]
    assert len(made) == 3
    assert freed[0] < made[2]  # the first is freed before the third is allocated
    assert len(freed) == 2


def test_a_tensor_in_an_epilogue_may_be_of_any_kind() -> None:
    a, b, t = torch.randn(16, 16), torch.randn(16, 16), torch.randn(16, 16)
    for _ in range(4):
        ops.fused_matmul(a, b, epilogue=epilogues.add(t))
    with warnings.catch_warnings(action="ignore"):  # torch's nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.randn(16), torch.randn(16)])
    for _ in range(2):
        with pytest.raises(WorkbenchError):
            ops.fused_matmul(a, b, epilogue=epilogues.add(nested))
    freed = t.clone()
    freed.untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises((WorkbenchError, RuntimeError)):
            ops.fused_matmul(a, b, epilogue=epilogues.add(freed))


@triton.jit
def plus_one(tile, operands, place):
    return tile + 1


@pytest.mark.parametrize("follows", [False, True])
def test_tensors_in_a_users_function_are_not_kept(follows: bool) -> None:
    a, alive = torch.randn(16, 16, requires_grad=follows), []
    for number in range(40):
        large = torch.full((4,), float(number))
        alive.append(weakref.ref(large))

        def meaning(x: Any, operands: Any, place: Any, large: torch.Tensor = large) -> Any:
            return x + 1

        own = epilogues.own(plus_one, meaning=meaning)
        for _ in range(3):
            ops.fused_matmul(a, a, epilogue=own)
        del large, own, meaning
    gc.collect()
    assert [each() for each in alive] == [None] * 40


class Halving(TorchFunctionMode):
    """Halves what is converted."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 0.5 if func is torch.Tensor.to else result


def test_function_modes_are_seen() -> None:
    def converted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, output = x.to(torch.float32), torch.empty_like(y)
        start(elementwise.launch, x, y, output)
        return output

    counted, call = sums(converted)
    x, y = torch.ones(8, dtype=torch.float16), torch.ones(8)
    for _ in range(4):
        assert torch.equal(call(x, y), 2 * y)
    with Halving():
        assert torch.equal(call(x, y), 1.5 * y)
    before = counted.calls
    assert torch.equal(call(x, y), 2 * y)
    assert counted.calls == before


def test_what_hooks_of_saved_tensors_do_is_not_recorded() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    ops.softmax.patterns.clear()  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone().mul_(1), lambda t: t):
        for _ in range(3):
            ops.softmax(x, 1)
    texts = [text for tape in source_of(ops.softmax) for text in tape.splitlines()]
    assert texts
    before = torch.softmax(x, 1)
    with torch.profiler.profile() as profile:
        after = ops.softmax(x, 1)
    assert torch.allclose(after, before)
    assert not {"aten::clone", "aten::mul_"} & {event.key for event in profile.key_averages()}


def test_a_warm_result_has_the_name_of_its_function_in_the_graph() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    ops.softmax.patterns.clear()  # type: ignore[attr-defined]
    names = [type(ops.softmax(x, 1).grad_fn).__name__ for _ in range(4)]
    assert len(set(names)) == 1
    assert names[0].endswith("Backward")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.pad(x, (1, 2), value=1.5),
        lambda x: ops.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: ops.avg_pool2d(x, 3, 2, 0, True),
        lambda x: ops.cross_entropy(x[0, 0], x[0, 1].detach()),
        lambda x: ops.scaled_dot_product_attention(x, x, x, x.detach()),
        lambda x: ops.norm(x, 3, -1),
        lambda x: ops.prod(x, -1),
    ],
)
def test_steps_of_training_are_warm(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    colds, cold = [], module.Pattern.cold

    def counted(*args: Any) -> Any:
        colds.append(1)
        return cold(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Pattern, "cold", counted)
        for _ in range(6):
            colds.clear()
            call(x).sum().backward()
    assert colds == []


def test_the_package_names_each_operators_calls() -> None:
    x = torch.randn(6, 64)
    for _ in range(3):
        assert torch.allclose(ops.softmax(x, 1), torch.softmax(x, 1))
    assert any("def call(t0):" in text for text in source_of(ops.softmax))
    with pytest.raises(AttributeError):
        source_of(torch.softmax)
