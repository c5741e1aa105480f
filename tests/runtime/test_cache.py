"""A kept launch is started again for tensors of the same layout, and for no others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from workbench import Launch, ops
from workbench.errors import ArgumentTypeError, TensorMismatchError
from workbench.kernels import epilogues
from workbench.kernels.movement import transfer
from workbench.kernels.pointwise import elementwise
from workbench.ops.elementwise import run_binary
from workbench.runtime import cache, warmup
from workbench.runtime.cache import BucketCache, LaunchCache


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend a GPU, because launches are not kept where kernels are interpreted."""
    monkeypatch.setattr(cache, "device", SimpleNamespace(is_interpreter=lambda: False))
    monkeypatch.setattr(BucketCache, "make", lambda *_: None)


class Making:
    """A function that makes launches and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, source: torch.Tensor, destination: torch.Tensor) -> Launch:
        self.made += 1
        return transfer.launch(source, destination)


def test_the_second_call_makes_no_launch() -> None:
    launches, make = LaunchCache(), Making()
    for _ in range(3):
        x, y = torch.randint(99, (40,)), torch.zeros(40, dtype=torch.int64)
        launches.run("alike", make, x, y)
        assert torch.equal(y, x)
    assert make.made == 1


def test_another_key_makes_another_launch() -> None:
    launches, make = LaunchCache(), Making()
    for length in (40, 50):
        x, y = torch.arange(length), torch.zeros(length, dtype=torch.int64)
        launches.run(length, make, x, y)
        assert torch.equal(y, x)
    assert make.made == 2


def attended(scale: float) -> None:
    query = torch.ones(1, 1, 16, 16, requires_grad=True)
    ops.scaled_dot_product_attention(query, query, query, scale=scale).sum().backward()


X = torch.ones(1, 4, 16, 16)
VARIANCE = torch.ones(4)
NUMBERS: dict[str, Callable[[float], object]] = {
    "alpha of a sum": lambda number: ops.add(X.mT, X, alpha=number),
    "alpha": lambda number: ops.baddbmm(X[0], X[0], X[0], alpha=number),
    "beta": lambda number: ops.addmm(X[0, 0], X[0, 1], X[0, 2], beta=number),
    "scale": attended,
    "epsilon of a layer": lambda number: ops.layer_norm(X, (16,), eps=number),
    "epsilon of groups": lambda number: ops.group_norm(X, 2, eps=number),
    "epsilon of a batch": lambda number: ops.batch_norm(X, VARIANCE, VARIANCE, eps=number),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_zeros_of_both_signs_have_launches_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's == says that 0.0 and -0.0 are equal, so keys have other forms of these numbers."""
    keys: list[Hashable] = []
    monkeypatch.setattr(LaunchCache, "run", lambda self, key, *_: keys.append(key))
    for number in (0.0, -0.0):
        NUMBERS[name](number)
    half = len(keys) // 2
    assert half
    for one, other in zip(keys[:half], keys[half:], strict=True):
        assert one != other


def test_tensors_are_not_kept_alive() -> None:
    launches, x, y = LaunchCache(), torch.arange(9), torch.zeros(9, dtype=torch.int64)
    launches.run("once", Making(), x, y)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_the_number_of_kept_launches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_KEPT", 2)
    launches, make = LaunchCache(), Making()
    for key in (1, 2, 3, 3, 1):
        launches.run(key, make, torch.arange(9), torch.zeros(9, dtype=torch.int64))
    assert make.made == 4  # the third launch has displaced the others


def test_a_launch_of_a_tensor_that_is_given_twice_is_kept() -> None:
    launches, made = LaunchCache(), []

    def make(left: torch.Tensor, right: torch.Tensor, output: torch.Tensor) -> Launch:
        made.append(output)
        return elementwise.launch(left, right, output)

    for left, right in ((torch.ones(9), None), (torch.arange(9.0), None), (torch.ones(9), torch.arange(9.0))):
        right, output = left if right is None else right, torch.zeros(9)
        launches.run("add", make, left, right, output)
        assert torch.equal(output, left + right)
    assert len(made) == 1


def test_a_launch_of_one_tensor_twice_is_not_used_for_two() -> None:
    """ops.add(x, x) comes first, and then two different tensors of the same layout."""
    x, y = torch.arange(9.0), torch.ones(9)
    for left, right in ((x, x), (x, y), (x, x), (y, x)):
        assert torch.equal(ops.add(left, right), left + right)


@pytest.mark.parametrize("alphas", [(1, 2, 0.5, 1), (0.0, 2.0, 0.0), (float("nan"), 2.0)], ids=str)
def test_kept_sums_are_not_used_for_another_alpha(alphas: tuple[float, ...]) -> None:
    x, y = torch.arange(9.0), torch.full((9,), 3.0)
    for alpha in alphas:
        expected = torch.add(x, y, alpha=alpha)
        torch.testing.assert_close(ops.add(x, y, alpha=alpha), expected, rtol=0, atol=0, equal_nan=True)


def test_layouts_and_dtypes_are_part_of_the_key() -> None:
    base = torch.arange(64.0).reshape(8, 8)
    for x in (base, base.t(), base.half(), base[::2], base[:, ::2], base[:1].expand(8, 8)):
        for _ in range(2):
            assert torch.equal(ops.clone(x), x)
            assert torch.equal(ops.permute_copy(x, (1, 0)), x.t())
            assert torch.equal(ops.add(x, x.clone()), x + x)


def test_warming_up_leaves_memory_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No output is written, and the next calls give right results; wrong arguments raise as in a call."""
    monkeypatch.undo()
    results = []

    def call() -> None:
        x = torch.ones(2, 3, 16, 16)
        results.append(ops.add(x, x))
        results.append(ops.scaled_dot_product_attention(x, x, x, dropout_p=0.5))
        run_binary(x, x, output, "add")

    output = torch.full((2, 3, 16, 16), float("nan"))
    warmup(call)
    assert output.isnan().all()
    assert [result.shape for result in results] == [output.shape] * 2
    call()
    assert torch.equal(output, torch.full_like(output, 2))
    assert torch.equal(results[2], output)
    with pytest.raises(TensorMismatchError, match="input, other"):
        warmup(ops.add, torch.ones(2), torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="operator: got a int"):
        warmup(3)  # type: ignore[arg-type]


def test_a_shape_stands_for_a_tensor_when_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    given: list[Any] = []
    shape = torch.empty_strided((3, 4), (1, 3), dtype=torch.int16, device="meta")
    warmup(lambda *args, **kwargs: given.extend((*args, *kwargs.values())), shape, 5, last=shape)
    first, number, last = given
    for tensor in (first, last):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (shape.shape, shape.stride(), shape.dtype)
        assert not tensor.is_meta
    assert number == 5


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_a_shape_stands_for_a_tensor_inside_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shape, here = torch.empty(3, device="meta"), torch.ones(3)
    given: list[Any] = []
    kept, sizes = {"a": [here, 5]}, torch.Size((3, 4))
    several = ([shape, here], (shape, (5, shape)), Pair(here, shape), {"a": shape}, kept, sizes)
    warmup(lambda *args, **kwargs: given.extend((*args, *kwargs.values())), *several, last=[[shape]])
    of_list, of_tuple, pair, of_dict, others, number, last = given
    tensors = (of_list[0], of_tuple[0], of_tuple[1][1], pair.second, of_dict["a"], last[0][0])
    assert [(t.shape, t.is_meta) for t in tensors] == [((3,), False)] * 6
    assert of_list[1] is pair.first is here
    assert [type(each) for each in (of_list, of_tuple, pair, last)] == [list, tuple, Pair, list]
    assert others is kept  # it has no tensor to replace
    assert number is sizes


def test_a_shape_stands_for_a_tensor_of_an_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    a, vector = torch.empty(16, 16, device="meta"), torch.empty(16, device="meta")
    chain = epilogues.bias(vector) | epilogues.scale(2.0) | epilogues.multiply(torch.ones(16, 1))
    results: list[torch.Tensor] = []

    def call(*args: Any, **kwargs: Any) -> None:
        results.append(ops.matmul_sum(*args, **kwargs))

    warmup(call, a, a, epilogue=chain)
    warmup(call, a, a, epilogue=epilogues.relu())
    assert [result.is_meta for result in results] == [False, False]
    assert chain.tensors[0] is vector


def test_run_gives_the_result_of_the_launch() -> None:
    x, y = torch.randn(33), torch.randn(33)
    for _ in range(2):
        kept, made = torch.empty(33), torch.empty(33)
        run_binary(x, y, kept, "axpy", 0.3)
        elementwise.launch(x, y, made, operation="axpy", alpha=0.3).run()
        assert torch.equal(kept, made)
