"""`warmup` compiles what a call would start, and starts nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError
from workbench.kernels import epilogues
from workbench.ops.elementwise import run_binary
from workbench.runtime import warmup


def test_warming_up_leaves_memory_as_it_is() -> None:
    """No output is written, and the next calls give right results; wrong arguments raise as in a call."""
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


def test_a_shape_stands_for_a_tensor_when_warming_up() -> None:
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


def test_a_shape_stands_for_a_tensor_inside_containers() -> None:
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


def test_a_shape_stands_for_a_tensor_of_an_epilogue() -> None:
    a, vector = torch.empty(16, 16, device="meta"), torch.empty(16, device="meta")
    chain = epilogues.bias(vector) | epilogues.scale(2.0) | epilogues.multiply(torch.ones(16, 1))
    results: list[torch.Tensor] = []

    def call(*args: Any, **kwargs: Any) -> None:
        results.append(ops.matmul_sum(*args, **kwargs))

    warmup(call, a, a, epilogue=chain)
    warmup(call, a, a, epilogue=epilogues.relu())
    assert [result.is_meta for result in results] == [False, False]
    assert chain.tensors[0] is vector
