"""A kept launch starts with other tensors, and a kernel is compiled once for each specialization."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import Launch, Step, compat
from workbench.errors import InvalidArgumentError, KernelError
from workbench.runtime import replay
from workbench.runtime.replay import Replay, only_prepared, starter_of


@triton.jit
def scale_kernel(x, output, n, factor=2.0, BLOCK_SIZE: tl.constexpr = 8):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x + i, mask=i < n)
    tl.store(output + i, value * factor, mask=i < n)


@triton.jit
def add_into_kernel(x, total, BLOCK_SIZE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tl.atomic_add(total + i * 0, tl.load(x + i))


@triton.jit
def parts_kernel(pair, nested, constants):
    pass


class Pair(NamedTuple):
    whole: Any
    rest: Any


def tensors(length: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(float(length)), torch.full((length,), float("nan"))


def test_a_kept_launch_runs_on_other_tensors() -> None:
    x, output = tensors(20)
    again = Replay(Launch.of(scale_kernel, 3, x, output, 20, 3.0, outputs=output), x, output)
    other, others_output = torch.randn(20), torch.zeros(20)
    again(other, others_output)
    assert torch.equal(others_output, 3 * other)
    assert output.isnan().all()  # the first tensors are not touched


def test_a_kept_launch_clears_accumulators() -> None:
    x, total = torch.ones(8), torch.zeros(1)
    launch = Launch.of(add_into_kernel, 1, x, total, outputs=total, accumulators=(total,), BLOCK_SIZE=8)
    again, other = Replay(launch, x, total), torch.full((1,), 100.0)
    again(2 * x, other)
    assert other.item() == 16.0


def test_a_kept_launch_has_its_own_workspaces() -> None:
    x, output = tensors(20)
    space = torch.empty(20)
    steps = (
        Step(scale_kernel, (3,), (x, space, 20, 3.0)),
        Step(scale_kernel, (3,), (space, output, 20, 2.0)),
    )
    with pytest.raises(InvalidArgumentError, match="tensors: "):
        Replay(Launch(steps, (output,)), x, output)
    again = Replay(Launch(steps, (output,), workspaces=(space,)), x, output)
    space.fill_(7.0)
    other, others_output = torch.randn(20), torch.zeros(20)
    again(other, others_output)
    assert torch.equal(others_output, 6 * other)
    assert torch.equal(space, torch.full((20,), 7.0))


@pytest.mark.parametrize("given", [[], [0], [1], [0, 0, 1], [0, 1, 1]], ids=str)
def test_a_kept_launch_refuses_missing_and_repeated_tensors(given: list[int]) -> None:
    pair = tensors(20)
    launch = Launch.of(scale_kernel, 3, *pair, 20, outputs=pair[1])
    fault = "one is given twice" if len(given) == 3 else "the steps take a tensor that is not among them"
    with pytest.raises(InvalidArgumentError, match=f"tensors: got {len(given)}, and {fault}"):
        Replay(launch, *(pair[i] for i in given))


class Compiler:
    """A stand-in for Triton's compiler that records what it compiles and what is started."""

    def __init__(self, takes_descriptors: bool = True) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.started: list[tuple[Any, ...]] = []
        self.takes_descriptors = takes_descriptors

    def compiled_for(self, kernel: Any, arguments: Sequence[Any], options: dict[str, Any]) -> int:
        # Weakly, since a compiled kernel keeps no tensor.
        self.compiled.append((len(arguments), dict(options)))
        return len(self.compiled)

    def starter(self, number: int) -> compat.Starter:
        def start(x: int, y: int, z: int, stream: int, arguments: Sequence[Any]) -> None:
            self.started.append((number, (x, y, z), stream, *arguments))

        def expanded(which: int, descriptor: Any) -> list[Any]:
            return [("map", which, descriptor.base.data_ptr()), *descriptor.shape]

        return compat.Starter(start, None if self.takes_descriptors else expanded)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Pretend a GPU whose current stream is 5."""
    made, of_kernel = Compiler(), {"BLOCK_SIZE": "constant"}
    here = SimpleNamespace(is_interpreter=lambda: False, current=lambda: SimpleNamespace(kind="cuda"))
    monkeypatch.setattr(replay, "device", here)
    monkeypatch.setattr(replay, "_compiled", {})
    monkeypatch.setattr(compat, "compiled_for", made.compiled_for)
    monkeypatch.setattr(compat, "starter", made.starter)
    monkeypatch.setattr(compat, "current_device", lambda: 0)
    monkeypatch.setattr(compat, "stream_getter", lambda: lambda index: 5)
    monkeypatch.setattr(
        compat, "specialized", lambda k: [of_kernel.get(n, "value") for n in compat.signature(k).parameters]
    )
    return made


@pytest.mark.parametrize("takes_descriptors", [True, False])
def test_tuples_and_descriptors_are_filled_and_no_tensor_is_kept(
    compiler: Compiler, takes_descriptors: bool
) -> None:
    compiler.takes_descriptors = takes_descriptors
    x, output = tensors(20)
    matrix = torch.zeros(4, 16)
    descriptor = TensorDescriptor(matrix, [4, 16], [16, 1], [4, 8])
    given = (Pair(x, 3), descriptor, (5, (x, output), (output,), None))
    again = Replay(Launch((Step(parts_kernel, (3,), given),), (output,)), x, output, matrix)
    gone = [weakref.ref(tensor) for tensor in (x, output, matrix)]
    del x, output, matrix, descriptor, given
    gc.collect()
    assert all(tensor() is None for tensor in gone)
    for _ in range(2):  # the second time through the kept answer
        others = (*tensors(20), torch.ones(4, 16))
        again(*others)
        first, second, third = (tensor.data_ptr() for tensor in others)
        _, grid, stream, pair, *filled, last = compiler.started[-1]
        assert (grid, stream, pair, type(pair)) == ((3, 1, 1), 5, (first, 3), Pair)
        assert last == (5, (first, second), (second,), None)
        if takes_descriptors:
            assert filled[0].base is others[2]
            assert (filled[0].shape, filled[0].block_shape) == ([4, 16], [4, 8])
        else:
            assert filled == [("map", 0, third), 4, 16]


def test_a_kernel_is_compiled_once_for_each_kind_of_address(compiler: Compiler) -> None:
    """An address is a multiple of 16 bytes, or it is not."""
    x, output = tensors(20)
    step = Step(scale_kernel, (3,), (x, output, 20), {"num_warps": 2, "BLOCK_SIZE": 8, "factor": 3.0})
    again = Replay(Launch((step,), (output,)), x, output)
    beside = torch.randn(21)[1:]  # 4 bytes further, where Triton compiles anew, with narrower loads
    calls = [(x, output), (output, x), (beside, output), (x, output), (beside, output)]
    for given in calls:
        again(*given)
    assert compiler.compiled == [(5, {"num_warps": 2})] * 2
    assert compiler.started == [
        (number, (3, 1, 1), 5, first.data_ptr(), second.data_ptr(), 20, 3.0, 8)
        for number, (first, second) in zip((1, 1, 2, 1, 2), calls, strict=True)
    ]


def sized(length: int, **meta: Any) -> tuple[Launch, torch.Tensor, torch.Tensor]:
    x, output = tensors(length)
    return Launch.of(scale_kernel, 3, x, output, length, outputs=output, **meta), x, output


def test_sizes_of_one_specialization_share_a_compiled_kernel(compiler: Compiler) -> None:
    for length, compiled in ((32, 1), (48, 1), (47, 2), (33, 2), (1, 3), (160, 3), (9, 3)):
        launch, x, output = sized(length)
        Replay(launch, x, output)(x, output)
        assert len(compiler.compiled) == compiled, length
        assert compiler.started[-1][5] == length


@pytest.mark.parametrize(
    "other",
    [
        lambda x, output: (x, output, 40, 2.0, 16),  # a constant
        lambda x, output: (x.half(), output, 40, 2.0, 8),
        lambda x, output: (x, output, 41, 2.0, 8),  # no multiple of 16
        lambda x, output: (x, output, 2**31, 2.0, 8),
        lambda x, output: (x, output, True, 2.0, 8),
        lambda x, output: (x, output, 40.0, 2.0, 8),
        lambda x, output: (x, output, None, 2.0, 8),
        lambda x, output: (x, (output,), 40, 2.0, 8),
        lambda x, output: (torch.zeros(9)[1:], output, 40, 2.0, 8),
        lambda x, output: (x, output, 40, 2.0, True),
    ],
)
def test_arguments_of_another_kind_are_compiled_anew(
    compiler: Compiler, other: Callable[..., tuple[Any, ...]]
) -> None:
    x, output = tensors(48)
    usual = (x, output, 48, 2.0, 8), {"num_warps": 4}
    first = starter_of(scale_kernel, *usual)
    assert starter_of(scale_kernel, (output, x, 480, 3.0, 8), {"num_warps": 4}) is first
    assert starter_of(scale_kernel, other(x, output), {"num_warps": 4}) is not first
    assert starter_of(scale_kernel, usual[0], {"num_warps": 2}) is not first
    assert starter_of(add_into_kernel, (x, output, 8), {"num_warps": 4}) is not first
    assert len(compiler.compiled) == 4


def test_zeros_of_each_type_and_sign_are_different_constants(compiler: Compiler) -> None:
    found = {starter_of(scale_kernel, (1.0, 1.0, 5, 2.0, zero), {}) for zero in (0.0, -0.0, 0, False)}
    assert len(found) == 4


def test_the_number_of_kept_kernels_is_limited(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_COMPILED", 2)
    for block in (1, 2, 4, 4, 1):
        starter_of(scale_kernel, (1.0, 1.0, 5, 2.0, block), {})
    assert len(compiler.compiled) == 4  # the third has displaced the others


def test_only_prepared_compiles_and_starts_no_kernel(compiler: Compiler) -> None:
    launch, x, output = sized(20, BLOCK_SIZE=8)
    again = Replay(launch, x, output)
    with only_prepared(), only_prepared():
        again(x, output)
    assert (len(compiler.compiled), compiler.started) == (1, [])
    again(x, output)
    assert compiler.started == [(1, (3, 1, 1), 5, x.data_ptr(), output.data_ptr(), 20, 2.0, 8)]


def test_an_error_of_the_compiler_names_the_kernel(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such layout")

    monkeypatch.setattr(compat, "compiled_for", fail)
    launch, x, output = sized(20)
    with pytest.raises(KernelError, match=r"scale_kernel.*no such layout"):
        Replay(launch, x, output)(x, output)


def test_an_earlier_kernels_error_does_not_name_this_kernel(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA reports an earlier kernel's error to the next call, here the loading of another kernel."""

    def fail(*_: object) -> None:
        raise RuntimeError("Triton Error [CUDA]: misaligned address")

    monkeypatch.setattr(compat, "compiled_for", fail)
    launch, x, output = sized(20)
    with pytest.raises(
        KernelError, match=r"(?s)misaligned address.*ran before this one.*CUDA_LAUNCH_BLOCKING"
    ):
        Replay(launch, x, output)(x, output)
