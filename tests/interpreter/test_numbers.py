"""Numbers in the interpreter have the compiler's types, and wrap, divide and shift as in the compiler."""

from __future__ import annotations

import importlib.util
import operator
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tests.everything import examples
from workbench import compat
from workbench.errors import KernelError, OutOfBoundsError
from workbench.interpreter import numbers
from workbench.launch import Launch
from workbench.lens import compile as compile_for
from workbench.runtime import interpret

TARGET = "sm_90"


def compiles(launch: Launch) -> str:
    """Return the compiler's Triton IR for the launch."""
    return compile_for(launch, TARGET)[0].stages["ttir"]


HEAD = "import triton\nimport triton.language as tl\n\n"


def module_of(path: Path, text: str) -> Any:
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# Arguments


@triton.jit
def scaled_kernel(x, y, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_a_float_argument_is_fp32(dtype: torch.dtype) -> None:
    """A tile times a float argument is fp32, so 2 * 60000 does not overflow fp16."""
    x = torch.full((16,), 60000, dtype=dtype)
    launch = Launch.of(scaled_kernel, 1, x, torch.empty(16), 2.0, outputs=(), N=16)
    y = launch.steps[0].args[1]
    launch.run()
    assert torch.equal(y, x.float() * 2)
    assert "tensor<16xf32>" in next(line for line in compiles(launch).splitlines() if "mulf" in line)


@triton.jit
def literal_kernel(x, y, SCALE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) * SCALE)
    tl.store(y + N + i, tl.load(x + i) * 2.0)


def test_a_constant_takes_the_type_of_the_tile() -> None:
    x, y = torch.full((16,), 60000.0, dtype=torch.float16), torch.empty(32)
    launch = Launch.of(literal_kernel, 1, x, y, 2.0, 16, outputs=y)
    launch.run()
    assert y.isinf().all()
    assert "tensor<16xf16>" in next(line for line in compiles(launch).splitlines() if "mulf" in line)


@triton.jit
def eps_kernel(x, y, eps, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.static_assert(eps.dtype == tl.float32)
    tl.store(y + i, tl.load(x + i) + eps.to(tl.float32) + n.to(tl.float32))


def test_number_arguments_have_a_type_and_convert() -> None:
    x, y = torch.ones(16), torch.empty(16)
    launch = Launch.of(eps_kernel, 1, x, y, 0.5, 7, 16, outputs=y)
    launch.run()
    assert y.tolist() == [8.5] * 16
    assert compiles(launch)


def test_an_integer_argument_that_is_1_is_a_constant() -> None:
    """The compiler makes it a constant, which has no `.to`: such a kernel fails if n is 1."""
    x, y = torch.ones(16), torch.empty(16)
    launch = Launch.of(eps_kernel, 1, x, y, 0.5, 1, 16, outputs=y)
    for run in (launch.run, lambda: compiles(launch)):
        with pytest.raises(KernelError, match="object has no attribute 'to'"):
            run()


@triton.jit(do_not_specialize=["n"])
def unspecialized_kernel(y, n):
    tl.store(y, n.to(tl.int64) + 1)


@triton.jit(do_not_specialize=[1])
def unspecialized_by_number_kernel(y, n):
    tl.store(y, n.to(tl.int64) + 1)


@triton.jit
def annotated_kernel(y, n: tl.int32):
    tl.store(y, n.to(tl.int64) + 1)


@pytest.mark.parametrize("kernel", [unspecialized_kernel, unspecialized_by_number_kernel, annotated_kernel])
def test_an_unspecialized_1_is_not_a_constant(kernel: Any) -> None:
    y = torch.zeros(1, dtype=torch.int64)
    launch = Launch.of(kernel, 1, y, 1, outputs=y)
    launch.run()
    assert y.item() == 2
    assert compiles(launch)


@triton.jit
def one_kernel(x, y, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i) * stride + (stride - 1) * 5
    tl.static_assert(tile.dtype == (tl.int8 if N == 8 else tl.int32))
    tl.store(y + i, stride * tile)


@pytest.mark.parametrize(("stride", "size"), [(1, 8), (2, 16)])
def test_a_constant_1_does_not_widen_a_tile(stride: int, size: int) -> None:
    x, y = torch.full((size,), 100, dtype=torch.int8), torch.zeros(size, dtype=torch.int32)
    launch = Launch.of(one_kernel, 1, x, y, stride, size, outputs=y)
    launch.run()
    assert (y == stride * (100 * stride + 5 * (stride - 1))).all()
    assert compiles(launch)


@triton.jit
def dtype_kernel(value, NAME: tl.constexpr):
    tl.static_assert(value.dtype.name == NAME)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "int32"), (-1, "int32"), (2**31 - 1, "int32"), (-(2**31), "int32"), (2**31, "int64"),
        (-(2**31) - 1, "int64"), (2**32 - 1, "int64"), (2**32, "int64"), (2**63 - 1, "int64"),
        (2**63, "uint64"), (2**64 - 1, "uint64"), (0.0, "fp32"), (1.0, "fp32"), (1e-300, "fp32"),
        (1e300, "fp32"), (float("inf"), "fp32"), (True, "int1"), (False, "int1"),
    ],
)  # fmt: skip
def test_an_argument_has_the_type_that_the_compiler_gives_it(value: Any, name: str) -> None:
    launch = Launch.of(dtype_kernel, 1, value, name, outputs=())
    launch.run()
    assert compiles(launch)
    typed = numbers.typed(value)
    with np.errstate(over="ignore"):
        expected = np.float32(value) if isinstance(value, float) else value
    assert typed.handle.data.item() == expected


class Scale(NamedTuple):
    by: float
    times: int
    one: int


@triton.jit
def tuple_kernel(y, pair, named):
    tl.static_assert(pair[0].dtype == tl.float32)
    tl.static_assert(pair[1][0].dtype == tl.int64)
    tl.static_assert(named.by.dtype == tl.float32)
    tl.store(y, pair[0] + pair[1][0] + named.by * named.times * named.one)


def test_numbers_in_tuples_have_the_types_of_arguments() -> None:
    y = torch.zeros(1)
    launch = Launch.of(tuple_kernel, 1, y, (0.5, (2**33, 1)), Scale(1.5, 3, 1), outputs=y)
    launch.run()
    assert y.item() == 2**33
    assert compiles(launch)


# A text, since with `from __future__ import annotations` Triton would get the quotes too.
ANNOTATIONS = """
@triton.jit
def kernel(y, a: "fp64", b: "fp16", c: "bf16", d: "i64", e: tl.float64, f: tl.uint8):
    tl.static_assert(a.dtype == tl.float64)
    tl.static_assert(b.dtype == tl.float16)
    tl.static_assert(c.dtype == tl.bfloat16)
    tl.static_assert(d.dtype == tl.int64)
    tl.static_assert(e.dtype == tl.float64)
    tl.static_assert(f.dtype == tl.uint8)
    tl.store(y, a)
    tl.store(y + 1, b.to(tl.float64))
    tl.store(y + 2, c.to(tl.float64))
    tl.store(y + 3, d.to(tl.float64))
    tl.store(y + 4, e)
    tl.store(y + 5, f.to(tl.float64))
"""


def test_an_annotation_decides_the_type(tmp_path: Path) -> None:
    y = torch.zeros(6, dtype=torch.float64)
    kernel = module_of(tmp_path / "annotated.py", ANNOTATIONS).kernel
    launch = Launch.of(kernel, 1, y, 1 / 3, 1 / 3, 1 / 3, 3, 1 / 3, 200, outputs=y)
    launch.run()
    third = torch.tensor(1 / 3, dtype=torch.float64)
    narrow = [third.half().item(), third.bfloat16().item()]
    assert y.tolist() == [1 / 3, *narrow, 3, 1 / 3, 200]
    assert compiles(launch)


@triton.jit
def default_kernel(x, y, N: tl.constexpr, scale=2.0, shift=3):
    i = tl.arange(0, N)
    tl.static_assert(shift.dtype == tl.int32)
    tl.store(y + i, tl.load(x + i) * scale + shift)


def test_defaults_have_the_types_of_arguments() -> None:
    x, y = torch.full((16,), 60000.0, dtype=torch.float16), torch.empty(16)
    Launch.of(default_kernel, 1, x, y, 16, outputs=y).run()
    assert y.tolist() == [120003.0] * 16


def test_arguments_of_tritons_own_call_have_types_too() -> None:
    """The grid is a function, which gets Python's numbers, as on a GPU."""
    x, y = torch.full((32,), 60000.0, dtype=torch.float16), torch.zeros(32)
    given: list[Any] = []

    def grid(arguments: dict[str, Any]) -> tuple[int]:
        given.extend((arguments["scale"], arguments["N"]))
        return (1,)

    scaled_kernel[grid](x, y, scale=2.0, N=32, num_warps=4)
    assert y.tolist() == [120000.0] * 32
    assert [(type(value), value) for value in given] == [(float, 2.0), (int, 32)]


# Loops


@triton.jit
def loop_kernel(y, start, stop, step, NAME: tl.constexpr):
    for index in range(start, stop, step):
        count = (index - start) // step
        tl.static_assert(index.dtype.name == NAME)  # type: ignore[attr-defined]
        tl.store(y + 2 * count, index.to(tl.int64))  # type: ignore[attr-defined]
        tl.store(y + 2 * count + 1, (index // 2).to(tl.int64))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ((-5, 4, 3), "int32"),
        ((5, -4, -3), "int32"),
        ((0, 7, 2), "int32"),
        ((2**31 - 4, 2**31 + 3, 2), "int64"),
        ((2**63, 2**63 + 2, 1), "uint64"),
    ],
)
def test_an_index_has_the_type_of_the_bounds_and_divides_toward_zero(
    bounds: tuple[int, int, int], name: str
) -> None:
    expected = [[index, int(abs(index) // 2 * (1 if index > 0 else -1))] for index in range(*bounds)]
    y = torch.zeros(len(expected), 2, dtype=torch.int64)
    launch = Launch.of(loop_kernel, 1, y, *bounds, name, outputs=y)
    launch.run()
    assert y.tolist() == [[(n + 2**63) % 2**64 - 2**63 for n in pair] for pair in expected]
    assert "scf.for" in compiles(launch)


@triton.jit
def loops_kernel(y, n, N: tl.constexpr):
    for i in range(N):
        tl.static_assert(i.dtype == tl.int32)  # type: ignore[attr-defined]
        tl.store(y + i, i.to(tl.float32) / 2)  # type: ignore[attr-defined]
    for j in tl.range(0, n, 2, num_stages=2):
        tl.static_assert(j.dtype == tl.int32)
        tl.store(y + N + j, (j - 8) % 3)
    for k in tl.static_range(N):
        tl.static_assert((k - 8) % 3 == (k + 1) % 3)
        tl.store(y + 2 * N + k, (k - 8) // 3)


def test_each_kind_of_range_counts_as_in_the_compiler() -> None:
    """`static_range` counts constants, which follow Python's rules: -8 // 3 is -3."""
    y = torch.zeros(24)
    launch = Launch.of(loops_kernel, 1, y, 8, 8, outputs=y)
    launch.run()
    assert y[:8].tolist() == [i / 2 for i in range(8)]
    assert y[8:16:2].tolist() == [-2, 0, -1, -2]
    assert y[16:].tolist() == [(k - 8) // 3 for k in range(8)]
    assert compiles(launch)


@triton.jit
def keyword_kernel(y, n):
    for i in tl.range(arg1=1, arg2=n, step=3):
        tl.store(y + i, i)
    for i in tl.range(arg1=2):
        tl.store(y + 8 + i, i + 1)


def test_a_range_takes_its_bounds_by_name() -> None:
    y = torch.zeros(10)
    launch = Launch.of(keyword_kernel, 1, y, 8, outputs=y)
    launch.run()
    assert y.tolist() == [0, 1, 0, 0, 4, 0, 0, 7, 1, 2]
    assert compiles(launch)


@triton.jit
def wrapping_kernel(y, n):
    total = n
    for index in range(3):
        tl.store(y + index, total)
        total += n
    tl.store(y + 3, n * n)
    tl.store(y + 4, -n - n - 2)


def test_integers_wrap_around() -> None:
    most = 2**31 - 1
    y = torch.zeros(5, dtype=torch.int64)
    Launch.of(wrapping_kernel, 1, y, most, outputs=y).run()
    assert y.tolist() == [most, -2, most - 2, 1, 0]


@triton.jit
def float_bound_kernel(y, n):
    for i in range(n):
        tl.store(y + i, i)


def test_a_float_bound_of_a_loop_is_refused() -> None:
    y = torch.zeros(4)
    launch = Launch.of(float_bound_kernel, 1, y, 4.0, outputs=y)
    for run in (launch.run, lambda: compiles(launch)):
        with pytest.raises(KernelError, match=r"must all be ints|are integers"):
            run()


# Expressions

OPERANDS = {
    "half": "tl.load(halves + i)", "narrow": "tl.load(bytes_ + i)", "whole": "tl.load(words + i)",
    "unsigned": "tl.load(unsigned_bytes + i)", "truth": "(tl.load(words + i) > 2)", "real": "a",
    "number": "n", "large": "m", "index": "k", "count": "tl.program_id(0)", "half_scalar": "tl.load(halves)",
    "literal": "3", "literal_real": "1.5", "constant": "N", "one": "u", "flag": "t",
}  # fmt: skip
INTEGERS = ["narrow", "whole", "unsigned", "number", "large", "index", "count", "literal", "constant", "one"]
SCALARS = ["real", "number", "large", "index", "count", "literal", "half_scalar", "one"]


def expression(draw: random.Random, depth: int = 2) -> str:
    kind = draw.choice(["binary", "integer", "compare", "least", "choice", "tuple", "negative"])
    if depth == 0 or draw.random() < 0.2:
        return OPERANDS[draw.choice(list(OPERANDS))]
    one, other = expression(draw, depth - 1), expression(draw, depth - 1)
    if kind == "binary":
        return f"({one} {draw.choice('+-*/')} {other})"
    if kind == "integer":
        one, other = (OPERANDS[draw.choice(INTEGERS)] for _ in range(2))
        return f"({one} {draw.choice(['//', '%', '<<', '>>', '&', '|', '^', '+', '*'])} {other})"
    if kind == "compare":
        return f"({one} {draw.choice(['<', '<=', '==', '!=', '>', '>='])} {other})"
    scalars = [OPERANDS[draw.choice(SCALARS)] for _ in range(3)]
    if kind == "least":
        return f"{draw.choice(['min', 'max'])}({scalars[0]}, {scalars[1]})"
    if kind == "choice":
        return f"({scalars[0]} * 1 if {scalars[1]} < {scalars[2]} else {scalars[0]} * 1)"
    if kind == "tuple":
        return f"({one}, {scalars[0]})[{draw.choice('01')}]"
    return f"(-{one})"


def kernel_of(path: Path, statements: list[str]) -> Any:
    lines = [
        "@triton.jit",
        "def kernel(halves, bytes_, words, unsigned_bytes, a, n, m, u, t, N: tl.constexpr):",
        "    i = tl.arange(0, N)",
        "    for k in range(2):",
        *(f"        {statement}" for statement in statements),
    ]
    return module_of(path, "\n".join(lines) + "\n").kernel


def launched(kernel: Any) -> Launch:
    tiles = [torch.arange(16).to(dtype) for dtype in (torch.float16, torch.int8, torch.int32, torch.uint8)]
    return Launch.of(kernel, 1, *tiles, 2.5, 7, 2**40, 1, True, 16, outputs=tiles)


@pytest.mark.filterwarnings("ignore:builtin m.. on non-scalar")
def test_expressions_have_the_types_that_the_compiler_gives_them(tmp_path: Path) -> None:
    """Random expressions are assigned to a variable; the compiler then asserts the interpreter's type."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    accepted = []
    for number in range(examples(60)):
        text = expression(draw)
        kernel = kernel_of(
            tmp_path / f"drawn_{seed}_{number}.py", [f"v = {text}", "tl.static_print(v.dtype)"]
        )
        try:
            printed = interpret(launched(kernel)).printed.split()
        except KernelError:
            continue  # Triton refuses it: a shift of floats, a lost sign
        assert printed[0] == printed[1]
        accepted += [f"v{number} = {text}", f"tl.static_assert(v{number}.dtype.name == {printed[0]!r})"]
    assert len(accepted) > 20
    assert compiles(launched(kernel_of(tmp_path / f"all_{seed}.py", accepted))), seed


@triton.jit
def first_of(pair):
    return pair[0]


@triton.jit
def assigned_kernel(x, y, flag, n, FLAG: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    half = tl.load(x + i)
    factor = 2.0
    one, other = 2.0, (3, 2.0)
    first, second = other
    chosen = 2.0 if flag > 0 else 3.0
    total = 1.0
    total += 1.0
    annotated: tl.float32 = 2.0
    constant: tl.constexpr = 2.0
    tl.static_assert((half * factor).dtype == tl.float32)
    tl.static_assert((half * one).dtype == tl.float32)
    tl.static_assert((half * second).dtype == tl.float32)
    tl.static_assert((half * first).dtype == tl.float16)
    tl.static_assert((half * chosen).dtype == tl.float32)
    tl.static_assert((half * (2.0 if flag > 0 else 3.0)).dtype == tl.float32)
    tl.static_assert((half * (2.0 if FLAG else 3.0)).dtype == tl.float16)
    tl.static_assert((half * total).dtype == tl.float32)
    tl.static_assert((half * annotated).dtype == tl.float32)
    tl.static_assert((half * constant).dtype == tl.float16)
    tl.static_assert((half * min(n, 2.0)).dtype == tl.float32)
    tl.static_assert((half * max(N, 2.0)).dtype == tl.float16)
    tl.static_assert(max(n, 2.0).dtype == tl.float32)
    tl.store(y + i, half * first_of((second, 0)) * min(n, 1) * max(N, 3) / N)


def test_assigned_numbers_are_tensors() -> None:
    """Numbers become tensors when they are assigned, also in tuples, and by +=, a choice, min or max."""
    x, y = torch.full((16,), 60000.0, dtype=torch.float16), torch.empty(16)
    launch = Launch.of(assigned_kernel, 1, x, y, 3, 5, True, 16, outputs=y)
    launch.run()
    assert y.tolist() == [120000.0] * 16
    assert compiles(launch)


@triton.jit
def unpacking_kernel(y, values):
    first, second, third = values
    tl.store(y, first + second + third)


def test_a_tuple_must_be_unpacked_whole() -> None:
    """The compiler drops a fourth value without an error; the interpreter refuses it."""
    y = torch.zeros(1)
    Launch.of(unpacking_kernel, 1, y, (1.0, 2.0, 3), outputs=y).run()
    assert y.item() == 6
    longer = Launch.of(unpacking_kernel, 1, y, (1.0, 2.0, 3, 4), outputs=y)
    assert compiles(longer)
    with pytest.raises(KernelError, match="4 values for 3 names; the compiler drops the last ones"):
        longer.run()
    with pytest.raises(KernelError, match="2 values for 3 names: write a name for each value"):
        Launch.of(unpacking_kernel, 1, y, (1.0, 2.0), outputs=y).run()


@triton.jit
def chained_kernel(y):
    first = second = 2.0
    tl.store(y, first + second)


def test_an_assignment_to_several_targets_is_refused() -> None:
    """The compiler has no such assignment either."""
    launch = Launch.of(chained_kernel, 1, torch.zeros(1), outputs=())
    with pytest.raises(KernelError, match=r"write `first = second = 2\.0` as one assignment for each"):
        launch.run()
    with pytest.raises(KernelError, match="multiple assignment"):
        compiles(launch)


RETURNING = """
@triton.jit
def after_branch(k):
    if k > 3:
        return 2.0
    return 3.0


@triton.jit
def in_both_branches(k):
    if k > 3:
        return 2.0
    else:
        return 3.0


@triton.jit
def one_constant(k):
    if k > 3:
        return 2.0
    return 2.0


@triton.jit
def constant_and_tensor(k):
    if k > 3:
        return 2.0
    return k * 1.5


@triton.jit
def chosen(KIND: tl.constexpr):
    if KIND == 1:
        return 2.0
    elif KIND == 2:
        return 3
    else:
        return 4.0


@triton.jit
def chosen_in_order(KIND: tl.constexpr):
    if KIND == 1:
        return 2.0
    return 4.0


@triton.jit
def nested(k, KIND: tl.constexpr):
    if KIND == 1:
        return 1.0
    else:
        if k > 3:
            return 2.0
        else:
            return 3.0


@triton.jit
def in_a_loop(TIMES: tl.constexpr):
    for time in tl.static_range(TIMES):
        if time == 2:
            return 2.0
    return 3.0


@triton.jit
def pair(k):
    if k > 3:
        return 2.0, 5.0
    return 2.0, 6.0


@triton.jit
def kernel(x, k, N: tl.constexpr):
    half = tl.load(x + tl.arange(0, N))
    value = half * {call}
    tl.static_assert(value.dtype == tl.{dtype})
    tl.store(x + tl.arange(0, N), value)
"""


@pytest.mark.skipif(compat.VERSION < (3, 7), reason="before, every function returns tensors")
@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        ("after_branch(k)", "float32"), ("in_both_branches(k)", "float32"), ("one_constant(k)", "float16"),
        ("constant_and_tensor(k)", "float32"), ("chosen(1)", "float16"), ("chosen(2)", "float16"),
        ("chosen(3)", "float16"), ("chosen_in_order(1)", "float32"), ("chosen_in_order(2)", "float16"),
        ("nested(k, 1)", "float16"), ("nested(k, 2)", "float32"), ("in_a_loop(0)", "float16"),
        ("in_a_loop(1)", "float16"), ("in_a_loop(3)", "float32"), ("pair(k)[0]", "float16"),
        ("pair(k)[1]", "float32"),
    ],
)  # fmt: skip
def test_returns_of_different_values_make_a_constant_a_tensor(tmp_path: Path, call: str, dtype: str) -> None:
    """Every `return` that the compiler sees counts, executed or not.

    If all have one value, it stays a constant and takes the dtype of the other operand, fp16. A tensor is
    fp32.
    """
    name = f"returning_{''.join(filter(str.isalnum, call))}"
    kernel = module_of(tmp_path / f"{name}.py", RETURNING.format(call=call, dtype=dtype)).kernel
    for k in (2, 5):
        launch = Launch.of(kernel, 1, torch.ones(16, dtype=torch.float16), k, 16, outputs=())
        launch.run()
    assert compiles(launch)


FACTOR = tl.constexpr(2.0)


@triton.jit
def global_constant_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, FACTOR * tl.load(x + i) + FACTOR)
    tl.store(y + N + i, tl.where(tl.load(x + i) > FACTOR, FACTOR, 0.0))


def test_a_global_constant_may_be_the_left_operand() -> None:
    x, y = torch.arange(4.0), torch.zeros(8)
    launch = Launch.of(global_constant_kernel, 1, x, y, 4, outputs=y)
    launch.run()
    assert y.tolist() == [2, 4, 6, 8, 0, 0, 0, 2]
    assert compiles(launch)


@triton.jit
def guarded_kernel(x, y, n, i, GUARD: tl.constexpr):
    if GUARD == "and":
        inside = i < n and tl.load(x + i) > 0
    elif GUARD == "or":
        inside = i >= n or tl.load(x + i) > 0
    elif GUARD == "constant":
        inside = GUARD == "none" and tl.load(x + i) > 0
    else:
        inside = False
        if i < n:
            inside = tl.load(x + i) > 0
    tl.store(y, inside)


@pytest.mark.parametrize("guard", ["and", "or"])
def test_both_sides_of_and_and_or_are_evaluated(guard: str) -> None:
    """A GPU does not skip the right side, so a load there needs its own mask."""
    x, y = torch.ones(4), torch.zeros(1, dtype=torch.int32)
    inside = Launch.of(guarded_kernel, 1, x, y, 4, 3, guard, outputs=y)
    inside.run()
    assert y.item() == 1
    ttir = compiles(inside)
    assert "tt.load" in ttir
    assert "scf.if" not in ttir
    with pytest.raises(OutOfBoundsError, match="element 4 of a tensor with 4"):
        Launch.of(guarded_kernel, 1, x, y, 4, 4, guard, outputs=y).run()


@pytest.mark.parametrize("guard", ["constant", "branch"])
def test_a_constant_or_a_branch_skips_the_second_side(guard: str) -> None:
    x, y = torch.ones(4), torch.ones(1, dtype=torch.int32)
    launch = Launch.of(guarded_kernel, 1, x, y, 4, 4, guard, outputs=y)
    launch.run()
    assert y.item() == 0
    assert compiles(launch)


@triton.jit
def logic_kernel(y, a, b, NONE: tl.constexpr):
    tl.store(y, (a > 2 and b > 2) + 1)
    tl.store(y + 1, (a > 2 or b > 2) + 1)
    tl.store(y + 2, (not a > 2) + 1)
    tl.store(y + 3, (a > 2 and not (b > 2) and True) + 1)
    tl.store(y + 4, (NONE is None or NONE > 2) + 1)
    tl.store(y + 5, (NONE or 5) + 1)
    tl.store(y + 6, (a > 2 and 0) + 1)


@pytest.mark.parametrize("a", [2, 3])
@pytest.mark.parametrize("b", [2, 3])
@pytest.mark.parametrize("none", [None, 3])
def test_logical_operators_of_scalars_give_one_bit(a: int, b: int, none: int | None) -> None:
    y = torch.zeros(7, dtype=torch.int32)
    launch = Launch.of(logic_kernel, 1, y, a, b, none, outputs=y)
    launch.run()
    truths = [a > 2 and b > 2, a > 2 or b > 2, a <= 2, a > 2 >= b, True]
    assert y.tolist() == [1 + truth for truth in truths] + [1 + (none or 5), 1]
    assert compiles(launch)


# Operations on integers

DTYPES = {
    name: (getattr(torch, name), np.dtype(name))
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
}


@triton.jit
def operation_kernel(x, y, z, OPERATION: tl.constexpr, NAME: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OPERATION == "add":
        result = a + b
    elif OPERATION == "sub":
        result = a - b
    elif OPERATION == "mul":
        result = a * b
    elif OPERATION == "floordiv":
        result = a // b
    elif OPERATION == "mod":
        result = a % b
    elif OPERATION == "lshift":
        result = a << b
    elif OPERATION == "rshift":
        result = a >> b
    elif OPERATION == "lt":
        result = a < b
    elif OPERATION == "ge":
        result = a >= b
    else:
        result = a == b
    tl.static_assert(result.dtype.name == NAME)
    tl.store(z + i, result.to(tl.int64))


def promoted(one: str, other: str) -> str:
    """Return the promoted type: the wider one; of two types of one width, the unsigned one."""
    bits = {name: DTYPES[name][1].itemsize for name in (one, other)}
    if bits[one] != bits[other]:
        return max(one, other, key=bits.__getitem__)
    return one if one.startswith("u") else other


def wrapped(value: int, name: str) -> int:
    bits = 8 * DTYPES[name][1].itemsize
    value %= 2**bits
    return value if name.startswith("u") or value < 2 ** (bits - 1) else value - 2**bits


def truncated(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


EXPECTED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": truncated,
    "mod": lambda one, other: one - other * truncated(one, other), "lshift": operator.lshift,
    "rshift": operator.rshift, "lt": operator.lt, "ge": operator.ge, "eq": operator.eq,
}  # fmt: skip


def numbers_of(name: str) -> Any:
    limits = np.iinfo(DTYPES[name][1])
    edges = [limits.min, limits.min + 1, 0, 1, 2, 7, limits.max - 1, limits.max]
    return st.lists(
        st.sampled_from(edges) | st.integers(int(limits.min), int(limits.max)), min_size=8, max_size=8
    )


@st.composite
def operations(draw: Any) -> tuple[str, str, str, list[int], list[int]]:
    operation = draw(st.sampled_from(list(EXPECTED)))
    one, other = draw(st.sampled_from(list(DTYPES))), draw(st.sampled_from(list(DTYPES)))
    if operation in ("floordiv", "mod") and one[0] != other[0]:
        other = one  # Triton refuses different signs
    left, right = draw(numbers_of(one)), draw(numbers_of(other))
    result = promoted(one, other)
    if operation in ("floordiv", "mod"):
        right = [number or 3 for number in right]
    if operation in ("lshift", "rshift"):
        right = [abs(number) % min(8 * DTYPES[result][1].itemsize, 100) for number in right]
    return operation, one, other, left, right


@given(operations())
def test_operations_on_integers_of_each_width_and_sign_are_exact(
    case: tuple[str, str, str, list[int], list[int]],
) -> None:
    """Python's integers, reduced to the width, are the reference."""
    operation, one, other, left, right = case
    is_truth = operation in ("lt", "ge", "eq")
    name = promoted(one, other)
    x, y = (
        torch.from_numpy(np.array(values, DTYPES[dtype][1]))
        for values, dtype in ((left, one), (right, other))
    )
    z = torch.zeros(8, dtype=torch.int64)
    Launch.of(operation_kernel, 1, x, y, z, operation, "int1" if is_truth else name, 8, outputs=z).run()
    expected = []
    for a, b in zip(left, right, strict=True):
        a, b = wrapped(a, name), wrapped(b, name)
        if operation == "rshift" and one.startswith("i"):
            a = wrapped(a, name.removeprefix("u"))  # the left operand decides the kind of shift
        result = EXPECTED[operation](a, b)
        expected.append(int(result) if is_truth else wrapped(wrapped(result, name), "int64"))
    assert z.tolist() == expected


def test_a_shift_by_the_width_and_more_shifts_all_bits_out() -> None:
    """`shl` and `shr` of PTX do so; a negative count is a large one."""
    x = torch.tensor([5, -5, 5, -5, 5, -5, 1, -1], dtype=torch.int32)
    y = torch.tensor([32, 32, 33, 33, -1, -1, 31, 31], dtype=torch.int32)
    z = torch.zeros(8, dtype=torch.int64)
    Launch.of(operation_kernel, 1, x, y, z, "lshift", "int32", 8, outputs=z).run()
    assert z.tolist() == [0] * 6 + [-(2**31)] * 2
    Launch.of(operation_kernel, 1, x, y, z, "rshift", "int32", 8, outputs=z).run()
    assert z.tolist() == [0, -1] * 4


@triton.jit
def bits_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(z + i, (a + b).to(tl.int32))
    tl.store(z + N + i, (a - b).to(tl.int32))
    tl.store(z + 2 * N + i, (a * b).to(tl.int32))
    tl.store(z + 3 * N + i, a + b.to(tl.int32))
    tl.store(z + 4 * N + i, ((a < b) + (a <= b)).to(tl.int32))
    tl.store(z + 5 * N + i, (a << b).to(tl.int32))
    tl.store(z + 6 * N + i, (a >> b).to(tl.int32))


def test_adding_booleans_wraps_within_one_bit() -> None:
    """A boolean has no second bit for the carry."""
    x, y = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    z = torch.zeros(7, 4, dtype=torch.int32)
    launch = Launch.of(bits_kernel, 1, x, y, z, 4, outputs=z)
    launch.run()
    assert z.tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 1, 1, 2], [1, 0, 0, 1],
                          [0, 0, 1, 0], [0, 0, 1, 0]]  # fmt: skip
    assert re.search(r"arith\.addi .* : tensor<4xi1>", compiles(launch))


@triton.jit
def high_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))


@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "uint64"])
def test_the_high_half_of_a_product_treats_operands_as_unsigned(name: str) -> None:
    dtype, stored = DTYPES[name]
    limits, bits = np.iinfo(stored), 8 * stored.itemsize
    numbers = [int(limits.min), int(limits.max), 1 if name.startswith("u") else -1, 12345]
    x, y = (torch.from_numpy(np.array(each, stored)) for each in (numbers * 4, sorted(numbers * 4)))
    z = torch.zeros(16, dtype=dtype)
    Launch.of(high_kernel, 1, x, y, z, 16, outputs=z).run()
    expected = [
        wrapped(a % 2**bits * (b % 2**bits) >> bits, name)
        for a, b in zip(numbers * 4, sorted(numbers * 4), strict=True)
    ]
    assert z.tolist() == expected


@triton.jit
def rounded_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_floats_that_no_integer_holds_are_saturated(source: torch.dtype, name: str) -> None:
    """`cvt.rzi` on NVIDIA GPUs does so, and NaN becomes 0; numpy would give the smallest, or wrap."""
    limits = np.iinfo(DTYPES[name][1])
    values = [0.0, -0.5, 2.75, -2.75, torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 2.0**31, -(2.0**31), 3e9,
              2.0**63, -(2.0**63), 2.0**64, 60000.0]  # fmt: skip
    x, y = torch.tensor(values, dtype=torch.float64).to(source), torch.zeros(16, dtype=DTYPES[name][0])
    Launch.of(rounded_kernel, 1, x, y, 16, outputs=y).run()
    expected = [
        0 if value != value else int(max(limits.min, min(limits.max, np.trunc(value))))
        if abs(value) < float("inf") else int(limits.max if value > 0 else limits.min)
        for value in x.double().tolist()
    ]  # fmt: skip
    assert y.tolist() == expected


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["int8", "uint8"])
def test_floats_are_converted_to_8_bits_through_16_bits(source: torch.dtype, name: str) -> None:
    """Without a conversion to 8 bits, -1 becomes 0 as an unsigned number, and 300 becomes 44."""
    values = [
        -1,
        300,
        -300,
        70000,
        -70000,
        1e30,
        torch.inf,
        -torch.inf,
        torch.nan,
        1.5,
        100,
        127,
        128,
        255,
        256,
        -0.5,
    ]
    x, y = torch.tensor(values, dtype=torch.float64).to(source), torch.zeros(16, dtype=DTYPES[name][0])
    launch = Launch.of(rounded_kernel, 1, x, y, 16, outputs=y)
    launch.run()
    is_unsigned = name.startswith("u")
    low, high = (0, 2**16 - 1) if is_unsigned else (-(2**15), 2**15 - 1)
    expected = [0 if v != v else wrapped(int(max(low, min(high, v))), name) for v in x.double().tolist()]
    assert y.tolist() == expected
    short = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}[source]
    assert f"cvt.rzi.{'u' if is_unsigned else 's'}16.{short}" in compile_for(launch, TARGET)[0].stages["ptx"]


@triton.jit
def inverted_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    value = ~tl.load(x + i)
    tl.static_assert(value.dtype == x.dtype.element_ty)
    tl.store(y + i, value)
    tl.store(y + N, ~tl.load(x))


@pytest.mark.parametrize("name", DTYPES)
def test_the_bits_of_any_integer_are_inverted(name: str) -> None:
    dtype, stored = DTYPES[name]
    limits = np.iinfo(stored)
    x = torch.from_numpy(np.array([0, 1, limits.max, limits.min], stored))
    y = torch.zeros(5, dtype=dtype)
    launch = Launch.of(inverted_kernel, 1, x, y, 4, outputs=y)
    launch.run()
    assert y.tolist() == [wrapped(~value, name) for value in (*x.tolist(), 0)]
    assert compiles(launch)


@triton.jit
def histogram_kernel(x, y, n, IS_MASKED: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    if IS_MASKED:
        counts = tl.histogram(tl.load(x + i, mask=i < n), BINS, mask=i < n)
    else:
        counts = tl.histogram(tl.load(x + i), BINS)
    tl.static_assert(counts.dtype == tl.int32)
    tl.store(y + tl.arange(0, BINS), counts)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_histograms_take_integers_of_32_bits_only(name: str, is_masked: bool) -> None:
    """Triton's interpreter also takes other dtypes, which the compiler refuses."""
    x = torch.from_numpy(np.array([3] * 700 + [0] * 300 + [1] * 24, DTYPES[name][1]))
    y = torch.full((4,), -1, dtype=torch.int32)
    launch = Launch.of(histogram_kernel, 1, x, y, 1000, is_masked, 1024, 4, outputs=y)
    if name not in ("int32", "uint32"):
        with pytest.raises(KernelError, match=rf"tl\.histogram counts integers of 32 bits, not {name}"):
            launch.run()
        with pytest.raises(KernelError):
            compiles(launch)
        return
    launch.run()
    assert y.tolist() == [300, 0 if is_masked else 24, 0, 700]
    assert compiles(launch)


@triton.jit
def unmasked_histogram_kernel(x, y, n, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + tl.arange(0, BINS), tl.histogram(tl.load(x + i, mask=i < n), BINS))


def test_numbers_without_a_bin_are_counted_by_their_lowest_bits() -> None:
    """The bin is that of at least five lowest bits, one for each lane of a warp; masked lanes count too."""
    x, y = (
        torch.tensor([0, 1, 64, 65, -1, 63, 127, 33], dtype=torch.int32),
        torch.zeros(64, dtype=torch.int32),
    )
    Launch.of(unmasked_histogram_kernel, 1, x, y, 8, 8, 64, outputs=y).run()
    assert {i: int(count) for i, count in enumerate(y) if count} == {0: 2, 1: 2, 33: 1, 63: 3}
    few = torch.zeros(4, dtype=torch.int32)
    Launch.of(unmasked_histogram_kernel, 1, x, few, 8, 8, 4, outputs=few).run()
    assert few.tolist() == [2, 3, 0, 0]
    Launch.of(unmasked_histogram_kernel, 1, x, y, 4, 8, 64, outputs=y).run()
    assert int(y.sum()) == 8


@triton.jit
def fused_kernel(x, y, z, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_fused_product_and_sum_is_rounded_once(dtype: torch.dtype) -> None:
    """A product minus its own rounding is the rounding's error, and not 0."""
    generator = torch.Generator().manual_seed(7)
    x, y, others = torch.randn(3, 64, generator=generator, dtype=torch.float64).to(dtype)
    zeros = torch.zeros_like(others)
    pairs = [(y, -(x * y)), (y, others), (y, others * 1e3), (y, zeros), (zeros + 1, others)]
    for factor, z in pairs:
        output = torch.zeros(64, dtype=dtype)
        launch = Launch.of(fused_kernel, 1, x, factor, z, output, 64, outputs=output)
        launch.run()
        numbers = zip(*(each.double().tolist() for each in (x, factor, z, output)), strict=True)
        exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c, _ in numbers]
        for sign in (-torch.inf, torch.inf):
            beside = torch.nextafter(output, torch.full_like(output, sign)).double()
            for value, near, other in zip(exact, output.double().tolist(), beside.tolist(), strict=True):
                assert abs(value - Fraction(near)) <= abs(value - Fraction(other))
        assert compiles(launch)


def test_fma_of_integers_is_refused() -> None:
    x = torch.ones(8, dtype=torch.int32)
    launch = Launch.of(fused_kernel, 1, x, x, x, x.clone(), 8, outputs=())
    with pytest.raises(KernelError, match=r"tl\.fma takes floats, not int32"):
        launch.run()
    with pytest.raises(KernelError, match="must be floating-point-like"):
        compiles(launch)


def test_fma_of_nan_infinity_and_zeros_follows_ieee_754() -> None:
    inf, nan = torch.inf, torch.nan
    x, y = (
        torch.tensor([inf, inf, nan, 0.0, 3e38, 2.0, 0.0, -0.0]),
        torch.tensor([1.0, 0, 1, inf, 10, inf, 5, 5]),
    )
    z, output = torch.tensor([1.0, 1, 1, 1, -3e38, -inf, 0.0, -0.0]), torch.zeros(8)
    Launch.of(fused_kernel, 1, x, y, z, output, 8, outputs=output).run()
    assert torch.equal(output.isnan(), torch.tensor([False, True, True, True, False, True, False, False]))
    assert output[[0, 4]].tolist() == [inf, inf]
    assert output[6:].signbit().tolist() == [False, True]


# Costs


def test_integer_arithmetic_is_not_repeated_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's check for overflows, which computes each result again in 64 bits, is off."""
    seen: list[str] = []
    builder: Any = triton.runtime.interpreter.InterpreterBuilder
    plain = builder.binary_op

    def counting(self: Any, one: Any, other: Any, operation: Any) -> Any:
        seen.append(operation.__name__)
        return plain(self, one, other, operation)

    monkeypatch.setattr(builder, "binary_op", counting)
    y = torch.zeros(5, dtype=torch.int64)
    Launch.of(wrapping_kernel, 1, y, 5, outputs=y).run()
    assert seen.count("multiply") == 1
    assert seen.count("less_equal") == 0


UNREPAIRED = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, scale, n):
    tl.store(y, tl.load(x) * scale)
    for index in range(n):
        tl.store(y + 1 + index, (index - 3) // 2)

x, y = torch.full((1,), 60000.0, dtype=torch.float16), torch.zeros(3)
kernel[(1,)](x, y, 2.0, 2)
print(y.tolist())
"""


def test_numbers_of_tritons_interpreter_still_need_repair(tmp_path: Path) -> None:
    """Unrepaired, a float argument becomes fp16 like its tile, and an index divides toward minus infinity."""
    script = tmp_path / "unrepaired.py"
    script.write_text(UNREPAIRED)
    command = [sys.executable, str(script)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[inf, -2.0, -1.0]"
    y = torch.zeros(3)
    x = torch.full((1,), 60000.0, dtype=torch.float16)
    Launch.of(module_of(tmp_path / "repaired.py", UNREPAIRED.split("x, y =")[0]).kernel, 1, x, y, 2.0, 2,
              outputs=y).run()  # fmt: skip
    assert y.tolist() == [120000.0, -1.0, -1.0]
