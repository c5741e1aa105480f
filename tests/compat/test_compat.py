"""Repairs of Triton give torch's results and are still needed; names that moved in Triton are found."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton._utils import validate_block_shape
from triton.backends import backends
from triton.backends.nvidia import driver as nvidia
from triton.compiler import ASTSource, CompilationError
from triton.compiler.code_generator import CodeGenerator
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.runtime import cache, interpreter
from triton.runtime.jit import JITFunction

from tests.compat import narrow_floats
from workbench import compat
from workbench.compat import cache_keys, launcher
from workbench.errors import KernelError
from workbench.launch import Launch
from workbench.lens import compile as compile_for

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
REPAIRED = {name: case for cases in narrow_floats.CASES.values() for name, case in cases.items()}


def run_all(cases: dict[str, narrow_floats.Case], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.errstate(all="ignore"):  # as a Launch does: numpy warns of arithmetic that is ordinary on a GPU
        return cases[name]()


@pytest.mark.parametrize("name", REPAIRED)
def test_repaired_operations_give_torchs_results(name: str) -> None:
    got, want = run_all(REPAIRED, name)
    assert narrow_floats.same(got, want)


@pytest.mark.parametrize("name", narrow_floats.UNAFFECTED)
def test_operations_that_need_no_repair_stay_right(name: str) -> None:
    got, want = run_all(narrow_floats.UNAFFECTED, name)
    assert narrow_floats.same(got, want)


@pytest.fixture(scope="module")
def unrepaired() -> dict[str, dict[str, str]]:
    """Return the outcome of each case in Triton's own interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", narrow_floats.__file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result: dict[str, dict[str, str]] = json.loads(done.stdout)
    return result


def pinned_triton() -> str:
    found = re.search(r"^triton==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.skipif(
    triton.__version__ != pinned_triton(), reason="which repairs are needed is kept for the pinned Triton"
)
@pytest.mark.parametrize("repair", narrow_floats.CASES)
def test_repair_is_still_needed(repair: str, unrepaired: dict[str, dict[str, str]]) -> None:
    right = [name for name, outcome in unrepaired[repair].items() if outcome == "right"]
    assert right != list(unrepaired[repair]), (
        f"Triton {triton.__version__} no longer needs the repair of {repair}: remove it from compat/"
    )
    assert right == [], f"Triton {triton.__version__} gets {right} right: move them to UNAFFECTED"


def test_repairing_the_interpreter_again_changes_nothing() -> None:
    before = dict(vars(interpreter.InterpreterBuilder)), interpreter._interpreter
    compat.repair_interpreter()
    assert (dict(vars(interpreter.InterpreterBuilder)), interpreter._interpreter) == before


@triton.jit
def truth_kernel(x, output, n, KIND: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    valid = i < n
    if KIND == "if":
        if valid:
            tl.store(output + i, tl.load(x + i))
    elif KIND == "if expression":
        tl.store(output + i, tl.load(x + i) if valid else 0.0)
    elif KIND == "and":
        tl.store(output + i, tl.load(x + i), mask=(i > 1) and valid)
    elif KIND == "or":
        tl.store(output + i, tl.load(x + i), mask=(i > 1) or valid)
    elif KIND == "not":
        tl.store(output + i, tl.load(x + i), mask=not valid)
    elif KIND == "while":
        while valid:
            valid = valid & (i < 0)


@pytest.mark.parametrize("kind", ["if", "if expression", "and", "or", "not", "while"])
def test_a_tile_as_a_condition_is_refused(kind: str) -> None:
    """Triton's compiler refuses an `if` too, and warns of `and`, which its interpreter gets wrong."""
    x, output = torch.arange(8.0), torch.zeros(8)
    with pytest.raises(KernelError, match="a tile of 8 elements is neither true nor false") as caught:
        Launch.of(truth_kernel, 1, x, output, 5, kind, 8, outputs=output).run()
    assert caught.value.source is not None
    assert "valid" in caught.value.source


@triton.jit
def fill_kernel(x, output, known, N: tl.constexpr, FILL: tl.constexpr, IS_CONSTANT: tl.constexpr):
    i = tl.arange(0, 8)
    tl.store(output + i, tl.load(x + i, mask=i < N, other=FILL if IS_CONSTANT else known))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(torch.int8, -128), (torch.int8, -2), (torch.int16, -32768), (torch.uint8, 200), (torch.uint16, 40000)],
    ids=str,
)
def test_fills_that_triton_packs_wrongly_are_refused(dtype: torch.dtype, fill: int) -> None:
    """A constant fill is refused; the same fill, known only at run time, is stored.

    The code that Triton generates for a GPU is checked in tests/kernels/rows/test_reduction.py.
    """
    x, output = torch.ones(8).to(dtype), torch.zeros(8).to(dtype)
    with pytest.raises(KernelError, match=rf"other={fill} of .*with -1\. Write tl\.where") as caught:
        Launch.of(fill_kernel, 1, x, output, fill, 3, fill, True, outputs=output).run()
    assert "tl.load(x + i, mask=i < N" in (caught.value.source or "")
    Launch.of(fill_kernel, 1, x, output, fill, 3, fill, False, outputs=output).run()  # known at run time only
    assert output.tolist() == [1] * 3 + [fill] * 5


@triton.jit
def other_fills_kernel(x, output, known, N: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, 8)
    fill = -128
    if KIND == "variable":
        tile = tl.load(x + i, mask=i < N, other=fill)
    elif KIND == "float":
        tile = tl.load(x + i, mask=i < N, other=-128.0)
    elif KIND == "tile":
        tile = tl.load(x + i, mask=i < N, other=tl.full([8], -128, tl.int8))
    elif KIND == "tile of one":
        tile = tl.load(x + i, mask=i < N, other=tl.full([1], -128, tl.int32))
    elif KIND == "cast":
        tile = tl.load(x + i, mask=i < N, other=tl.cast(-128, tl.int8))
    elif KIND == "cast, known at run time":
        tile = tl.load(x + i, mask=i < N, other=known.to(tl.int8))
    else:
        tile = tl.load(x + i, mask=i < N, other=tl.full([8], 0, tl.int8) + known.to(tl.int8))
    tl.store(output + i, tile)


@pytest.mark.parametrize(
    "kind",
    [
        "variable",
        "float",
        "tile",
        "tile of one",
        "cast",
        "cast, known at run time",
        "tile, known at run time",
    ],
)
def test_only_fills_that_the_compiler_knows_are_refused(kind: str) -> None:
    x, output = torch.ones(8, dtype=torch.int8), torch.zeros(8, dtype=torch.int8)
    is_refused = "run time" not in kind
    launch = Launch.of(other_fills_kernel, 1, x, output, -128, 3, kind, outputs=output)
    with pytest.raises(KernelError, match="other=-128 of") if is_refused else nullcontext():
        launch.run()
    if not is_refused:
        assert output.tolist() == [1] * 3 + [-128] * 5


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(torch.int8, -1), (torch.uint8, 255), (torch.int8, 127), (torch.int32, -7), (torch.float16, -7.0)],
    ids=str,
)
def test_fills_that_triton_packs_correctly_are_exact(dtype: torch.dtype, fill: float) -> None:
    x, output = torch.ones(8).to(dtype), torch.zeros(8).to(dtype)
    Launch.of(fill_kernel, 1, x, output, 0, 3, fill, True, outputs=output).run()
    assert output.tolist() == [1] * 3 + [fill] * 5


@triton.jit
def methods_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i)
    tl.store(output + i, tile.exp() + tile.log2() + tile.sin() + tile.rsqrt() + tile.erf() + tile.floor())
    tl.store(output + N + i, tl.load(x + i).to(tl.float16).sqrt())


def test_functions_of_the_language_are_methods_of_tensors() -> None:
    x, output = torch.linspace(0.1, 3, 16), torch.zeros(2, 16)
    launch = Launch.of(methods_kernel, 1, x, output, 16, outputs=output)
    launch.run()
    torch.testing.assert_close(output[0], x.exp() + x.log2() + x.sin() + x.rsqrt() + x.erf() + x.floor())
    torch.testing.assert_close(output[1], x.half().sqrt().float())
    assert compile_for(launch, "sm_90")


@triton.jit
def described_kernel(x, KIND: tl.constexpr, rows, N: tl.constexpr):
    into = tl.make_tensor_descriptor(x, [rows, N], [N, 1], [4, N])
    tile = (tl.arange(0, 4)[:, None] + tl.arange(0, N)[None, :]).to(x.dtype.element_ty)
    if KIND == "add":
        into.atomic_add([2, 0], tile)
    elif KIND == "min":
        into.atomic_min([2, 0], tile)
    elif KIND == "max":
        into.atomic_max([2, 0], tile)
    elif KIND == "and":
        into.atomic_and([2, 0], tile)
    elif KIND == "or":
        into.atomic_or([2, 0], tile)
    else:
        into.atomic_xor([2, 0], tile)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(("add", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32)),
        *((kind, dtype) for kind in ("min", "max") for dtype in (torch.int32, torch.uint32, torch.int64)),
        *((kind, torch.int32) for kind in ("and", "or", "xor")),
    ],
)
def test_atomics_through_descriptors_agree_with_python(kind: str, dtype: torch.dtype) -> None:
    """Rows beyond the last one are not touched."""
    operations: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b,
        "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    }  # fmt: skip
    memory = torch.full((6, 8), 5).to(dtype)
    if kind == "min" and not dtype.is_signed:
        memory.fill_(2**32 - 1)
    before = memory.tolist()
    launch = Launch.of(described_kernel, 1, memory[:4], kind, 4, 8, outputs=memory[:4])
    launch.run()
    for row, (old, new) in enumerate(zip(before, memory.tolist(), strict=True)):
        is_touched = row in (2, 3)
        assert new == [operations[kind](old[i], row - 2 + i) if is_touched else old[i] for i in range(8)]
    assert compile_for(launch, "sm_90")


@triton.jit
def turned_kernel(x, output, N: tl.constexpr):
    tile = tl.load(x + tl.arange(0, N)).reshape(2, 2, N // 4)
    tl.store(output + tl.arange(0, N), tile.T.reshape(N))


def test_only_a_matrix_has_a_transpose() -> None:
    x, output = torch.arange(16.0), torch.zeros(16)
    launch = Launch.of(turned_kernel, 1, x, output, 16, outputs=output)
    for run in (launch.run, lambda: compile_for(launch, "sm_90")):
        with pytest.raises(KernelError, match="permute dims must have the same length as input shape"):
            run()


@triton.jit
def counting_kernel(output, n, STEP: tl.constexpr):
    total = 0
    for start in range(0, n, STEP):
        total += start
    tl.store(output, total)


def test_a_loop_to_a_runtime_bound_does_not_warn() -> None:
    """On Triton 3.6 numpy warns of such a loop, an error in tests; from 3.7 on nothing needs repair."""
    output = torch.zeros(1, dtype=torch.int32)
    Launch.of(counting_kernel, 1, output, 9, 4, outputs=output).run()
    assert output.item() == 0 + 4 + 8


@triton.jit
def single_values_kernel(x, output, n, N: tl.constexpr):
    i = tl.arange(0, N)
    if (n > 2 and not n > 7) or tl.load(x) > 100:
        value = tl.load(x + i, mask=i < n, other=tl.full((N,), 9.0, tl.float32))
        tl.store(output + i, value if tl.max(value) > 3 else -value, mask=i < N)
    while n > 5:
        n -= 1
    tl.atomic_add(output + tl.arange(0, 1), n, mask=tl.arange(0, 1) < n)


def test_a_single_value_may_be_a_condition() -> None:
    """Scalars known at run time and tiles of one element may; a mask of one element that is 0 still masks."""
    x, output = torch.arange(8.0), torch.zeros(8)
    Launch.of(single_values_kernel, 1, x, output, 6, 8, outputs=output).run()
    assert output.tolist() == [5, 1, 2, 3, 4, 5, 9, 9]


TRUTH = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, 1.0, mask=(i < n) and (i >= 0))

x = torch.zeros(4)
kernel[(1,)](x, 2, 4)
print(int(x.sum()))
"""


def test_the_truth_of_tiles_still_needs_repair(tmp_path: Path) -> None:
    """Unrepaired, the first condition of an `and` is lost: four elements are written instead of two."""
    script = tmp_path / "truth.py"
    script.write_text(TRUTH)
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,  # once Triton refuses tiles as conditions, the script fails
    )
    assert done.stdout == "4\n", f"Triton loses no condition: remove the repair from compat/\n{done.stderr}"


@triton.jit
def larger_first(value, index, other, other_index):
    is_first = (value > other) | ((value == other) & (index < other_index))
    return tl.where(is_first, value, other), tl.where(is_first, index, other_index)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def reductions_kernel(x, largest, places, whole, columns, ROWS: tl.constexpr, COLS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x + i[:, None] * COLS + j[None, :])
    value, place = tl.reduce((tile, tl.broadcast_to(j[None, :], tile.shape)), 1, larger_first)
    tl.store(largest + i, value)
    tl.store(places + i, place)
    tl.store(whole, tl.reduce(tile, None, product))
    tl.store(columns + j[None, :], tl.reduce(tile, 0, product, keep_dims=True))


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 16), (8, 1), (8, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_reductions_by_a_users_function_agree_with_torch(rows: int, cols: int, dtype: torch.dtype) -> None:
    """Reductions go along one axis or all, may keep the axis, and give the first place of equal elements."""
    x = torch.randint(-2, 3, (rows, cols)).to(dtype)
    x[x == 0] = 1
    largest, places = torch.empty(rows, dtype=dtype), torch.empty(rows, dtype=torch.int64)
    whole, columns = torch.empty(1, dtype=dtype), torch.empty(cols, dtype=dtype)
    outputs = (largest, places, whole, columns)
    Launch.of(reductions_kernel, 1, x, *outputs, outputs=outputs, ROWS=rows, COLS=cols).run()
    wide = x.double()
    assert torch.equal(largest, x.amax(1))
    assert torch.equal(places, wide.argmax(1))
    if wide.prod().abs() < 2**31:
        assert whole.double() == wide.prod()
    assert torch.equal(columns.double(), wide.prod(0))


@triton.jit
def timed_kernel(output, x, N: tl.constexpr):
    begun = tl.extra.cuda.globaltimer()
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)
    tl.static_assert(begun.dtype == tl.int64)
    tl.static_assert(tl.extra.cuda.smid().dtype == tl.int32)
    tl.store(output, tl.extra.cuda.globaltimer() - begun)
    tl.store(output + 1, begun)
    tl.store(output + 2, tl.extra.cuda.smid())


def test_a_kernel_can_read_the_clock_and_its_multiprocessor() -> None:
    x, output = torch.zeros(8), torch.full((3,), -1)
    launch = Launch.of(timed_kernel, 1, output, x, 8, outputs=(output, x))
    before = time.time_ns()
    launch.run()
    took, begun, place = output.tolist()
    assert before <= begun <= begun + took <= time.time_ns()
    assert place == 0
    assert compile_for(launch, "sm_90")


class Chosen(NamedTuple):
    """Constants of a kernel."""

    function: Any
    number: int


@triton.constexpr_function
def function_of(chosen: tuple[Chosen, ...], which: int) -> Any:
    return chosen[which].function


@triton.constexpr_function
def number_of(chosen: tuple[Chosen, ...], which: int) -> int:
    return chosen[which].number


@triton.jit
def twice(x):
    return 2 * x


@triton.jit
def one_of(x, CHOSEN: tl.constexpr, WHICH: tl.constexpr):
    FUNCTION: tl.constexpr = function_of(CHOSEN, WHICH)
    return FUNCTION(x) + number_of(CHOSEN, WHICH)


@triton.jit
def chosen_kernel(output, CHOSEN: tl.constexpr):
    for i in tl.static_range(len(CHOSEN)):
        tl.store(output + i, one_of(tl.load(output + i), CHOSEN, i))


def test_constexpr_functions_get_named_tuples() -> None:
    output = torch.ones(2)
    chosen = (Chosen(twice, 3), Chosen(twice, 5))
    launch = Launch.of(chosen_kernel, 1, output, CHOSEN=chosen, outputs=output)
    launch.run()
    assert output.tolist() == [5, 7]
    assert compile_for(launch, "sm_90")


@triton.jit
def sums_kernel(x, rows, cols, whole, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + i[:, None] * N + j[None, :])
    tl.static_assert(tl.sum(tile).dtype == tile.dtype)
    tl.store(rows + i[:, None], tl.sum(tile, 1, keep_dims=True))
    tl.store(cols + j, tl.sum(tile, 0))
    tl.store(whole, tl.sum(tile))
    tl.store(whole + 1, tl.sum(tl.sum(tile, None, keep_dims=True)))


def test_sums_of_halves_are_halves() -> None:
    """The compiler adds halves as halves: an intermediate sum that is too large is infinite, and stays so."""
    x = torch.arange(32.0).reshape(4, 8).to(torch.float16)
    rows, cols, whole = (torch.zeros(size, dtype=torch.float16) for size in (4, 8, 2))
    launch = Launch.of(sums_kernel, 1, x, rows, cols, whole, 4, 8, outputs=(rows, cols, whole))
    launch.run()
    assert torch.equal(rows, x.sum(1))
    assert torch.equal(cols, x.sum(0))
    assert whole.tolist() == [496, 496]
    added = [line for line in compile_for(launch, "sm_90")[0].stages["ttir"].splitlines() if "addf" in line]
    assert added
    assert all("f16" in line for line in added)
    x[1] = torch.tensor([40000.0, 0, 0, 0, 40000, -40000, -40000, 0])
    x[2] = torch.tensor([2048.0, 1, 1, 1, 1, 1, 1, 1])
    launch.run()
    assert rows.tolist() == [x[0].sum(), torch.inf, 2054, x[3].sum()]
    assert whole.tolist() == [torch.inf, torch.inf]


@triton.jit
def by_min(a, b):
    return min(a, b)


@triton.jit
def by_choice(a, b):
    return a if a < b else b


@triton.jit
def by_branch(a, b):
    if a < b:
        return a
    return b


@triton.jit
def by_branch_with_place(a, i, b, j):
    if a < b:
        smaller, place = a, i
    else:
        smaller, place = b, j
    return smaller, place


@triton.jit
def branching_kernel(x, y, KIND: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, 4), tl.arange(0, N)
    tile = tl.load(x + i[:, None] * N + j[None, :])
    if KIND == "min":
        smallest, whole = tl.reduce(tile, 1, by_min), tl.reduce(tile, None, by_min)
    elif KIND == "choice":
        smallest, whole = tl.reduce(tile, 1, by_choice), tl.reduce(tile, None, by_choice)
    else:
        smallest, whole = tl.reduce(tile, 1, by_branch), tl.reduce(tile, None, by_branch)
    tl.store(y + i, smallest)
    tl.store(y + 12, whole)
    smallest, place = tl.reduce((tile, tl.broadcast_to(j[None, :], tile.shape)), 1, by_branch_with_place)
    tl.store(y + 4 + i, smallest)
    tl.store(y + 8 + i, place)


@pytest.mark.parametrize("kind", ["min", "choice", "branch"])
def test_a_function_of_a_reduction_may_branch(kind: str) -> None:
    """On a GPU the function gets scalars. The repair gives it tiles, and scalars only if it branches."""
    x, y = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(13)
    launch = Launch.of(branching_kernel, 1, x, y, kind, 16, outputs=y)
    launch.run()
    smallest, place = x.min(1)
    assert y.tolist() == [*smallest.tolist() * 2, *place.tolist(), x.min().item()]
    assert compile_for(launch, "sm_90")


@triton.jit
def running_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.associative_scan(tl.load(x + i), 0, by_min))


def test_a_scan_calls_its_function_as_the_compiler_does() -> None:
    """`min` of the compiler skips NaN; Python's own returns the first argument."""
    x, y = torch.tensor([torch.nan, 3.0, 5.0, 1.0]), torch.zeros(4)
    launch = Launch.of(running_kernel, 1, x, y, 4, outputs=y)
    launch.run()
    assert y[0].isnan()
    assert y[1:].tolist() == [3, 3, 1]
    assert "arith.minnumf" in compile_for(launch, "sm_90")[0].stages["ttir"]


COMBINED = """
import torch, triton, triton.language as tl

@triton.jit
def add(a, b):
    print("called")
    return a + b

@triton.jit
def kernel(x, N: tl.constexpr):
    tl.store(x, tl.reduce(tl.load(x + tl.arange(0, N)), 0, add))

kernel[(1,)](torch.ones(16), 16)
"""


def test_reductions_one_by_one_still_need_repair(tmp_path: Path) -> None:
    """Unrepaired, the function is called for each element but one; repaired, once for each halving."""
    script = tmp_path / "combined.py"
    script.write_text(COMBINED)
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("called") == 15, (
        "Triton combines several at once: remove the repair from compat/"
    )


@triton.jit
def fp8_kernel(x, output, DO: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    if DO == "add":
        result = (value + value).to(tl.float32)
    elif DO == "scale":
        result = (value * 2.0).to(tl.float32)
    elif DO == "negate":
        result = (-value).to(tl.float32)
    elif DO == "compare":
        result = tl.where(value > value, 1.0, 0.0)
    elif DO == "sum":
        result = tl.sum(value, 0).to(tl.float32) + i
    elif DO == "scan":
        result = tl.cumsum(value, 0).to(tl.float32)
    elif DO == "max":
        result = tl.max(value, 0).to(tl.float32) + 0.0 * i
    else:
        result = tl.where(i < 2, value, -2.0).to(tl.float32)
    tl.store(output + i, result)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("what", ["add", "scale", "negate", "compare", "sum", "scan"])
def test_arithmetic_of_fp8_is_refused(what: str, dtype: torch.dtype) -> None:
    """The interpreter would compute with the bits of fp8, and the compiler refuses such arithmetic."""
    x, output = torch.ones(4).to(dtype), torch.zeros(4)
    launch = Launch.of(fp8_kernel, 1, x, output, what, 4, outputs=output)
    old = compat.VERSION < (3, 7) and what == "scale"  # there is not even a constant 2.0 of fp8
    made = r"makes no fp8\w+ of the constant 2.0: convert the tile of fp8\w+ first, as in"
    used = r"an operand is fp8\w+, with which a GPU does not compute: convert it first, as in"
    with pytest.raises(KernelError, match=made if old else used):
        launch.run()
    if dtype == torch.float8_e4m3fn and what == "add":
        with pytest.raises(KernelError, match="fadd"):
            compile_for(launch, "sm_90")


def test_fp8_values_can_be_selected_and_reduced_by_max() -> None:
    x, output = torch.tensor([-4.0, 1.0, 3.0, 2.0]).to(torch.float8_e5m2), torch.zeros(4)
    Launch.of(fp8_kernel, 1, x, output, "max", 4, outputs=output).run()
    assert output.tolist() == [3.0] * 4
    launch = Launch.of(fp8_kernel, 1, x, output, "choose", 4, outputs=output)
    if compat.VERSION < (3, 7):  # as the compiler does
        with pytest.raises(KernelError, match=r"makes no fp8e5 of the constant -2.0"):
            launch.run()
        with pytest.raises(KernelError, match="get_fp8e5"):
            compile_for(launch, "sm_90")
    else:
        launch.run()
        assert output.tolist() == [-4.0, 1.0, -2.0, -2.0]


@triton.jit
def to_fp8_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i).to(output.dtype.element_ty))


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)], ids=["e4m3", "e5m2"]
)
def test_fp8_saturates_as_on_nvidia(dtype: torch.dtype, most: float) -> None:
    x = torch.tensor([1e6, -1e6, float("nan"), 0.0])
    output = torch.empty(4, dtype=dtype)
    to_fp8_kernel[(1,)](x, output, 4)
    torch.testing.assert_close(output.float(), torch.tensor([most, -most, float("nan"), 0.0]), equal_nan=True)


@triton.jit
def function_kernel(x, output, N: tl.constexpr, FUNCTION: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    if FUNCTION == "exp":
        value = tl.exp(value)
    elif FUNCTION == "log":
        value = tl.log(value)
    elif FUNCTION == "sqrt":
        value = tl.sqrt(value)
    elif FUNCTION == "rsqrt":
        value = tl.rsqrt(value)
    else:
        value = tl.erf(value)
    tl.store(output + i, value)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "erf": torch.erf,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_bf16_are_refused_as_when_compiled(function: str) -> None:
    """Triton has the functions for fp32 and fp64 only; a kernel that converts first gives torch's result."""
    x = torch.rand(32, generator=torch.Generator().manual_seed(0)) + 0.5
    half = x.bfloat16()
    with pytest.raises(KernelError, match="bf16"):
        Launch.of(function_kernel, 1, half, torch.empty_like(half), 32, outputs=(), FUNCTION=function).run()
    output = torch.empty_like(half)
    Launch.of(function_kernel, 1, half.float(), output, 32, outputs=output, FUNCTION=function).run()
    torch.testing.assert_close(output, FUNCTIONS[function](half.float()).bfloat16(), rtol=2**-8, atol=0)


# fmt: off
@triton.jit(
    do_not_specialize=["n"],
)
def decorated_kernel(x, n,
                     BLOCK: tl.constexpr = 8):
    tl.store(x + tl.arange(0, BLOCK), n)
# fmt: on


autotuned = triton.autotune(configs=[triton.Config({"BLOCK": 8})], key=["n"])(decorated_kernel)
heuristic = triton.heuristics({"BLOCK": lambda arguments: 8})(decorated_kernel)


def plain(x: Any) -> Any:
    return x


def test_is_kernel_recognizes_jit_functions() -> None:
    assert [compat.is_kernel(f) for f in (decorated_kernel, autotuned, heuristic, plain, 3)] == [
        True, False, False, False, False,
    ]  # fmt: skip
    assert [compat.is_wrapped_kernel(f) for f in (decorated_kernel, autotuned, heuristic, plain, 3)] == [
        False, True, True, False, False,
    ]  # fmt: skip


def test_the_signature_and_definition_of_a_kernel_are_found() -> None:
    assert list(compat.signature(decorated_kernel).parameters) == ["x", "n", "BLOCK"]
    assert compat.signature(decorated_kernel).parameters["BLOCK"].default == 8
    line = compat.definition_line(decorated_kernel)
    assert Path(__file__).read_text().splitlines()[line - 1].startswith("def decorated_kernel(x, n,")
    assert inspect.isfunction(compat.python_function(decorated_kernel))


def test_launch_options_have_triton_options_and_no_launch_arguments() -> None:
    """`warmup` and `grid` are arguments of Triton's own launch, and would be given twice as options."""
    options = compat.launch_options()
    assert {"num_warps", "num_stages", "num_ctas", "waves_per_eu", "maxnreg"} <= options
    assert not {"warmup", "grid", "stream", "arch"} & options


@triton.jit
def extremes_kernel(x, output, N: tl.constexpr):
    tile = tl.load(x + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(output + tl.arange(0, 2), tl.max(tile, 1))
    tl.store(output + 2 + tl.arange(0, 2), tl.min(tile, 1))


@pytest.mark.filterwarnings("error")
def test_extremes_of_rows_of_nan_are_nan_without_a_warning() -> None:
    x = torch.tensor([[float("nan")] * 4, [float("nan"), 2.0, 1.0, 3.0]])
    output = torch.zeros(4)
    extremes_kernel[(1,)](x, output, N=4)
    assert output.isnan().tolist() == [True, False, True, False]
    assert output[1::2].tolist() == [3.0, 1.0]


def test_the_compilers_key_changes_with_each_of_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "backends").mkdir()
    file = tmp_path / "backends" / "compiler.py"
    file.write_text("one = 1\n")
    monkeypatch.setattr(cache_keys, "TRITON_FOLDER", str(tmp_path))
    monkeypatch.setattr(cache, "triton_key", cache.triton_key)  # restored afterwards
    keys = []
    for text in ("one = 1\n", "one = 1\n", "one = 12\n"):
        if file.read_text() != text:
            file.write_text(text)
        compat.tell_compilers_apart_quickly()
        keys.append(cache.triton_key())
    assert keys[0] == keys[1] != keys[2]


def chain_kernel(x: Any, output: Any, CHAIN: tl.constexpr) -> None:
    tile = tl.load(x)
    for i in tl.static_range(len(CHAIN)):
        tile = CHAIN[i][0](tile, CHAIN[i][1])
    tl.store(output, tile)


def edited(text: str) -> list[JITFunction[Any]]:
    """Return a function before and after an edit, with the same name and the same place."""
    found = []
    for operator in "+*":
        file = f"<edited {operator}>"
        lines = text.replace("OPERATOR", operator)
        linecache.cache[file] = (len(lines), None, lines.splitlines(keepends=True), file)
        namespace = {"jit": JITFunction, "__name__": __name__}
        exec(compile(lines, file, "exec"), namespace)
        found.append(namespace["functor"])
    return found


def with_chain(functor: JITFunction[Any]) -> ASTSource:
    """Return Triton's source for a kernel with the functor in a tuple; its hash is the key of the cache."""
    signature = {"x": "*fp32", "output": "*fp32", "CHAIN": "constexpr"}
    return ASTSource(JITFunction(chain_kernel), signature, {"CHAIN": ((functor, 2.0), (functor, 3.0))})


@pytest.mark.parametrize(
    "text",
    [
        "@jit\ndef functor(x, y):\n    return x OPERATOR y\n",
        "@jit\ndef inner(x, y):\n    return x OPERATOR y\n\n\n"
        "@jit\ndef functor(x, y):\n    return inner(x, y)\n",
    ],
    ids=["edited", "calls what was edited"],
)
def test_a_kernels_key_changes_with_a_function_in_a_tuple(text: str) -> None:
    """Without the repair, the cache on disk gives the kernel that was compiled before the edit."""
    before, after = (with_chain(functor) for functor in edited(text))
    assert before.hash() != after.hash()
    assert before.hash() == with_chain(edited(text)[0]).hash()
    plain = ASTSource.hash.__wrapped__
    assert plain(before) == plain(after), "Triton's key tells functions in tuples apart: remove the repair"


def test_a_kernels_key_changes_with_the_repairs_of_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    source = with_chain(edited("@jit\ndef functor(x, y):\n    return x\n")[0])
    before = source.hash()
    monkeypatch.setattr(cache_keys, "_own_text", lambda: "edited")
    assert source.hash() != before


COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


def test_a_copy_behind_a_mark_gets_its_hint() -> None:
    """Only the first copy after a mark gets the hint; a mark without a copy stays a comment."""
    copy = f"\t@%p5 {COPY} [%r1], [%rd2, {{%r3, %r4}}], [%r5];"
    text = "\n".join([copy, f"\t{compat.EVICT_FIRST}", "\tbar.warp.sync -1;", copy, copy, compat.EVICT_FIRST])
    lines = compat.with_hints(text).split("\n")
    assert [i for i, line in enumerate(lines) if line != text.split("\n")[i]] == [3]
    assert f"@%p5 {COPY}.L2::cache_hint [%r1], [%rd2, {{%r3, %r4}}], [%r5], policy;" in lines[3]


def test_gluon_still_has_no_hints() -> None:
    words = inspect.signature(tma.async_copy_global_to_shared).parameters
    has_none = not any(word in name for name in words for word in ("evict", "cache", "policy"))
    assert has_none, "Gluon hints the cache by itself: remove with_hints"


def test_tensors_still_cannot_have_192_columns() -> None:
    with pytest.raises(ValueError, match="power of"):  # if this no longer raises, remove with_whole_products
        validate_block_shape([128, 192])


def test_installing_the_marks_again_changes_nothing() -> None:
    before = backends["nvidia"].compiler.make_ptx
    compat.let_marks_change_ptx()
    assert backends["nvidia"].compiler.make_ptx == before


def of_columns(columns: int, sums: str, a: str, b: str, how: str = "%p4, 1, 1, 0, 1") -> str:
    kind = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16"
    return f"\t{kind} {{{sums}}}, {a}, {b}, {how};"


LEFT, RIGHT = of_columns(128, "%r1,%r2", "%rd1", "%rd2"), of_columns(64, "%r9", "%rd1", "%rd3")
BELOW = [of_columns(128, "%r3,%r4", "%rd5", "%rd2"), of_columns(64, "%r7", "%rd5", "%rd3")]
MARK, WAIT = f"\t{compat.ONE_BLOCK}", "\twgmma.wait_group.sync.aligned 2;"
BETWEEN = "\tadd.s64 \t%rd5, %rd1, 2; // %r9"


def test_products_of_one_block_are_joined() -> None:
    """Between a mark and the next wait, the 128- and the 64-column product of each A become one."""
    lines = [LEFT, RIGHT, WAIT, MARK, LEFT, BETWEEN, BELOW[0], RIGHT, BELOW[1], WAIT, LEFT, RIGHT, WAIT]
    made = compat.with_whole_products("\n".join(lines)).split("\n")
    assert [i for i, line in enumerate(made) if line != lines[i]] == [4, 6, 7, 8]
    assert made[4] == of_columns(192, "%r1,%r2,%r9", "%rd1", "%rd2")
    assert made[6] == of_columns(192, "%r3,%r4,%r7", "%rd5", "%rd2")
    assert made[7] == made[8] == ""


def test_products_behind_each_mark_are_joined_separately() -> None:
    """The instructions between a wait and the next mark belong to no product, and may branch."""
    wait = "\t@!complete bra.uni waitLoop;"
    lines = [MARK, LEFT, RIGHT, wait, MARK, *BELOW, MARK, LEFT, wait, MARK, RIGHT, WAIT]
    made = compat.with_whole_products("\n".join(lines)).split("\n")
    assert [i for i, line in enumerate(made) if line != lines[i]] == [1, 2, 5, 6]


@pytest.mark.parametrize(
    "lines",
    [
        [LEFT, RIGHT],  # no mark
        [MARK, WAIT],
        [MARK, LEFT, WAIT, RIGHT, WAIT],
        [MARK, LEFT, BELOW[1], WAIT],  # of another A
        [MARK, LEFT, *BELOW, WAIT],  # one has no partner
        [MARK, LEFT, RIGHT, RIGHT, WAIT],
        [MARK, LEFT, of_columns(64, "%r9", "%rd1", "%rd3", "%p4, 1, 1, 0, 0"), WAIT],  # another layout of B
        [MARK, LEFT, "\tmov.b32 \t%r9, 0;", RIGHT, WAIT],  # sums that begin between the products
        [MARK, LEFT, "\tbra.uni \t$L__BB0_7;", RIGHT, WAIT],
        [MARK, LEFT, "$L__BB0_7:", RIGHT, WAIT],
    ],
    ids=repr,
)
def test_products_without_a_mark_or_a_safe_partner_are_unchanged(lines: list[str]) -> None:
    assert compat.with_whole_products("\n".join(lines)).split("\n") == lines


def test_tritons_errors_still_name_no_function() -> None:
    """Triton's error has no name and no file. Errors with them are tested in `tests/lens/test_compile.py`."""
    error = CompilationError("def f(): pass", ast.parse("pass").body[0])
    assert set(vars(error)) == {"src", "node", "error_message", "message"}
    before = CodeGenerator.call_JitFunction
    compat.let_errors_know_their_functions()
    assert CodeGenerator.call_JitFunction is before


def test_tritons_own_key_still_reads_all_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workbench's key, of sizes and times of files, takes less than a quarter of the time of Triton's."""
    monkeypatch.setattr(cache, "triton_key", cache.triton_key)
    own = inspect.unwrap(cache.triton_key)  # without its cache
    begin = time.process_time()
    own()
    reads = time.process_time() - begin
    begin = time.process_time()
    compat.tell_compilers_apart_quickly()
    assert time.process_time() - begin < reads / 4


class OfAnotherVendor:
    """A compiled kernel whose launcher is not NVIDIA's, started as Triton documents it."""

    src = metadata = None
    function, packed_metadata = 1, (4, 1, 0)

    def __init__(self) -> None:
        self.started: list[Any] = []

    def run(self, *given: object) -> None:
        raise AssertionError("the launcher of another vendor is called by Triton alone")

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *given, stream: self.started.append((grid, stream, given))


def test_a_launcher_of_another_vendor_starts_through_triton() -> None:
    compiled = OfAnotherVendor()
    starter = compat.starter(compiled)
    starter.start(3, 2, 1, 7, [16, "x", None])
    assert compiled.started == [((3, 2, 1), 7, (16, "x", None))]
    assert starter.expanded is None


@pytest.mark.parametrize("said", ["invalid device context", "invalid argument"])
def test_a_tensor_map_is_made_again_once_there_is_a_context(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def made(descriptor: str, meta: int) -> list[Any]:
        done.append("map")
        if done == ["map"]:
            raise RuntimeError(f"Triton Error [CUDA]: Failed to create tensor map descriptor: {said}\n...")
        return [descriptor, meta]

    monkeypatch.setattr(nvidia, "make_tensordesc_arg", made)
    runtime = SimpleNamespace(cudaMemGetInfo=lambda number: done.append("context"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with nullcontext() if said.endswith("context") else pytest.raises(RuntimeError, match="invalid argument"):
        assert launcher._expanded("x", 3) == ["x", 3]
    assert done == (["map", "context", "map"] if said.endswith("context") else ["map"])


@triton.jit
def bounds_kernel(x, output, KIND: tl.constexpr, NAN: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    if KIND == "maximum":
        result = tl.maximum(value, tl.full([N], 0.5, value.dtype), NAN)
    elif KIND == "minimum":
        result = tl.minimum(tl.full([N], 0.5, value.dtype), value, NAN)
    else:
        low, high = tl.full([N], -0.5, value.dtype), tl.full([N], 0.5, value.dtype)
        result = tl.clamp(value, low, high, NAN)
    tl.store(output + tl.arange(0, N), result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("kind", "passed_by", "propagated"),
    [
        ("maximum", [1, 0.5, 0.5, 2], [1, torch.nan, 0.5, 2]),
        ("minimum", [0.5, 0.5, -3, 0.5], [0.5, torch.nan, -3, 0.5]),
        ("clamp", [0.5, -0.5, -0.5, 0.5], [0.5, torch.nan, -0.5, 0.5]),
    ],
)
def test_nan_is_propagated_on_request_only(
    kind: str, passed_by: list[float], propagated: list[float], dtype: torch.dtype
) -> None:
    """`PropagateNan.NONE`, the default, gives the number beside a NaN, as on a GPU."""
    x, output = torch.tensor([1, torch.nan, -3, 2], dtype=dtype), torch.zeros(4, dtype=dtype)
    for nan, want in ((tl.PropagateNan.NONE, passed_by), (tl.PropagateNan.ALL, propagated)):
        Launch.of(bounds_kernel, 1, x, output, kind, nan, 4, outputs=output).run()
        torch.testing.assert_close(output, torch.tensor(want, dtype=dtype), equal_nan=True)


@triton.jit
def index_kernel(x, values, indices, KIND: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x + row[:, None] * COLS + col[None, :])
    if KIND == "argmax":
        value, index = tl.max(tile, axis=1, return_indices=True)
    else:
        value, index = tl.min(tile, axis=1, return_indices=True)
    tl.store(values + row, value)
    tl.store(indices + row, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "best"), [("argmax", 3), ("argmin", 1)])
def test_the_index_of_an_extreme_skips_nan(kind: str, best: int, dtype: torch.dtype) -> None:
    """The GPU's comparisons skip it too: a NaN in the first half of a row loses against every number."""
    x = torch.tensor([[2.0, -1, 0, 5, 1, 2, 3, 1]] * 4, dtype=dtype)
    x[1, 0] = x[2, 2] = torch.nan
    x[3] = torch.nan
    values, indices = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    Launch.of(index_kernel, 1, x, values, indices, kind, 4, 8, outputs=(values, indices)).run()
    assert indices[:3].tolist() == [best] * 3
    assert values[:3].tolist() == [x[0, best].item()] * 3
    assert values[3].isnan()


@triton.jit
def undefined_kernel(x, output, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i, mask=i < n))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
    ],
)  # fmt: skip
def test_masked_lanes_without_other_hold_unusual_values(dtype: torch.dtype) -> None:
    """Such lanes are undefined on a GPU: a kernel that relies on 0 there is wrong."""
    x, output = torch.ones(8).to(dtype), torch.zeros(8).to(dtype)
    Launch.of(undefined_kernel, 1, x, output, 5, 8, outputs=output).run()
    assert output[:5].float().tolist() == [1.0] * 5
    rest = output[5:]
    if dtype == torch.bool:
        assert rest.all()
    elif dtype.is_floating_point:
        assert rest.float().isnan().all()
    elif dtype.is_signed:
        assert (rest.double().abs() > 80).all()
    else:
        assert rest.tolist() == [1, 243, 1]  # no unsigned number stands out; the smallest shows it


@triton.jit
def single_kernel(x, output, n):
    one = tl.arange(0, 1)
    tl.store(output, tl.load(x, mask=n > 1, other=0))
    tl.store(output + 1 + one, tl.load(x + one, mask=one > n, other=tl.zeros([1], output.dtype.element_ty)))
    tl.store(output + 2, tl.load(x, mask=n > 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_an_other_of_one_element_that_is_zero_is_used(dtype: torch.dtype) -> None:
    x, output = torch.ones(1).to(dtype), torch.ones(3).to(dtype)
    Launch.of(single_kernel, 1, x, output, 1, outputs=output).run()
    assert output[:2].tolist() == [0, 0]
    assert output[2] != 0


@triton.jit
def block_kernel(x, output, n, PADDING: tl.constexpr, N: tl.constexpr):
    block = tl.make_block_ptr(x, (n,), (1,), (0,), (N,), (0,))
    tile = tl.load(block, boundary_check=(0,), padding_option=PADDING)
    tl.store(output + tl.arange(0, N), tile)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_without_padding_are_undefined_beyond_the_edge() -> None:
    x, output = torch.ones(8), torch.zeros(8)
    Launch.of(block_kernel, 1, x, output, 5, "", 8, outputs=output).run()
    assert output[5:].isnan().all()
    Launch.of(block_kernel, 1, x, output, 5, "zero", 8, outputs=output).run()
    assert output.tolist() == [1.0] * 5 + [0.0] * 3


UNDEFINED = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i, mask=i < 4)
    tl.store(output, tl.maximum(tl.load(x), 0.5))
    tl.store(output + 1, tl.clamp(tl.load(x), -0.5, 0.5))
    tl.store(output + 2, tl.argmin(tl.where(i < 4, tile, 9.0), axis=0))
    tl.store(output + 3 + i, tile)
    tl.store(output + 11, tl.sum(tl.gather(tl.where(i < 4, 0.0, i), i * 0 - 1, 0)) / N)
    tl.store(output + 12, tl.sum(tl.where(i == 0, 2048.0, 1.0).to(tl.float16)))
    rest = tl.fma(i * 0.0 + 1.000244140625, 1.000244140625, -1.00048828125)
    tl.store(output + 13 + i, rest * 1e9, mask=i < 1)
    tl.store(output + 14 + i, tl.cast(i * 0.0 + 40000.0, tl.int16), mask=i < 1)

x, output = torch.tensor([torch.nan, 2.0, 1.0, 3.0]), torch.zeros(15)
kernel[(1,)](x, output, 8)
print(output.nan_to_num(99).int().tolist())
"""


def test_nan_and_undefined_lanes_still_need_repair(tmp_path: Path) -> None:
    """Unrepaired, maximum and clamp propagate NaN, argmin finds it, and masked lanes hold 0.

    Also, a negative index counts from the end, fp16 is summed in fp32, `tl.fma` rounds twice, and
    conversions to integers wrap.
    """
    script = tmp_path / "undefined.py"
    script.write_text(UNDEFINED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout) == [99, 99, 0, 99, 2, 1, 3, 0, 0, 0, 0, 7, 2056, 0, -25536]
