"""Divisors given to kernels as constants are checked against the sizes and strides that they divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from workbench.errors import PromiseError
from workbench.kernels import gemm
from workbench.kernels.epilogues import bias
from workbench.kernels.rows import reduction
from workbench.kernels.tile import epilogue, transfer
from workbench.launch import Launch, Step


@triton.jit
def divided_kernel(output, values, DIVISORS: tl.constexpr, FIRST: tl.constexpr):
    known = transfer.multiples_of(values, DIVISORS, FIRST)
    for d in tl.static_range(len(values)):
        tl.store(output + d, known[d])


def divided(values: tuple[int, ...], divisors: tuple[int, ...], first: int = 0) -> list[int]:
    output = torch.zeros(len(values), dtype=torch.int64)
    Launch.of(divided_kernel, 1, output, values, divisors, first, outputs=output).run()
    return output.tolist()


def test_true_divisors_do_not_change_values() -> None:
    """The effect of divisors on compiled kernels is tested in tests/kernels/movement/test_transfer.py."""
    assert divided((24, 7, 16), (8, 1, 16)) == [24, 7, 16]
    assert divided((0, -32), (4, 8, 16), first=1) == [0, -32]
    values = (0, 1, 6, 196, 3, 48, 2**40)
    assert divided(values, (8, 1, 2, 4, 1, 16, 8)) == [*values]


@pytest.mark.parametrize(("values", "value", "divisor"), [((24, 7, 20), 20, 16), ((12, 7, 16), 12, 8)])
def test_a_divisor_that_does_not_divide_is_refused(values: tuple[int, ...], value: int, divisor: int) -> None:
    """A wrong divisor would round a size or stride down, and leave elements out."""
    with pytest.raises(PromiseError) as caught:
        divided(values, (8, 1, 16))
    words = f"tl.multiple_of(..., [{divisor}]) promises multiples of {divisor}, but the value is {value}"
    assert words in str(caught.value)
    assert (caught.value.kernel, caught.value.function) == ("divided_kernel", None)
    assert "known = transfer.multiples_of" in (caught.value.source or "")


def changed(launch: Launch, **meta: Any) -> Launch:
    """Return the launch with other constants in its first step."""
    first, *others = launch.steps
    step = Step(first.kernel, first.grid, first.args, {**first.meta, **meta})
    return Launch((step, *others), launch.outputs, launch.accumulators)


def test_templates_check_the_divisors_of_their_invokers() -> None:
    x = torch.ones(6, 24, dtype=torch.float16)
    reduced = reduction.launch(x[:, :20], (1,))
    reduced.run()
    own = reduced.steps[0].meta["DIVISORS"]
    assert own
    with pytest.raises(PromiseError, match=r"tl\.multiple_of"):
        changed(reduced, DIVISORS=tuple(16 for _ in own)).run()

    a, b = torch.ones(24, 40, dtype=torch.float16), torch.ones(40, 8, dtype=torch.float16)
    product = gemm.launch(a, b, tile=(16, 16, 16))
    product.run()
    divisors = product.steps[0].meta["DIVISORS"]
    assert divisors.sizes[0] > 1
    with pytest.raises(PromiseError, match="multiples of 16, but the value is 24"):
        changed(product, DIVISORS=divisors._replace(sizes=(16, 8, 8))).run()


@triton.jit
def strides_kernel(output, strides, DIVISOR: tl.constexpr):
    known = epilogue.multiples(strides, DIVISOR)
    tl.store(output, known[0] + known[1])


def test_divisors_of_epilogue_strides_are_checked() -> None:
    output = torch.zeros(1, dtype=torch.int64)
    Launch.of(strides_kernel, 1, output, (24, 8), 8, outputs=output).run()
    assert output.item() == 32
    with pytest.raises(PromiseError, match="multiples of 8, but the value is 12"):
        Launch.of(strides_kernel, 1, output, (24, 12), 8, outputs=output).run()
    a, b = torch.ones(16, 16), torch.ones(16, 16)
    (product,) = gemm.launch(a, b, epilogue=bias(torch.ones(16))).run()
    assert torch.equal(product, torch.full((16, 16), 17.0))
