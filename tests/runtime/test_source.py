"""Kernels travel as text with the names that they read; others are refused, and lines are kept."""

from __future__ import annotations

import importlib
import inspect
import linecache
import math
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton as another_triton
import triton.language as language
import triton.language as tl
from triton.language import max as largest
from triton.runtime.jit import JITFunction

from workbench import compat
from workbench.errors import ArgumentTypeError, KernelError
from workbench.kernels.tile import transfer
from workbench.launch import Launch
from workbench.lens.compile import compile as compile_for
from workbench.runtime import interpret
from workbench.runtime.source import KernelSource, pack, unpack

WIDTH = 8
FACTOR = tl.constexpr(3)
PAIR = (2, (5, tl.constexpr(7)))
ELEMENT = tl.float32
TABLE = torch.arange(8.0)
offsets = torch.arange(3)  # has the name of a local variable of a kernel below
OPTIONS = {"a": 1}


def travelled(kernel: Any) -> Any:
    """Return the function that arrives when a kernel is packed, pickled and unpacked."""
    source: KernelSource = pickle.loads(pickle.dumps(pack(kernel)))
    arrived = unpack(source)
    assert arrived.fn is not kernel.fn
    assert not arrived.fn.__globals__.keys() & {
        "test_kernels_travel_with_the_constants_that_they_use",
        "TABLE",
        "travelled",
    }  # nothing else is packed
    return arrived


def run(kernel: Any, x: torch.Tensor, **meta: Any) -> torch.Tensor:
    output = torch.full_like(x, float("nan"))
    Launch.of(kernel, 1, x, output, outputs=output, **meta).run()
    return output


@triton.jit
def constants_kernel(x, output, N: tl.constexpr = WIDTH):
    """Use numbers, constexpr, tuples and types in the body, and one as a default."""
    i = tl.arange(0, N)
    value = tl.load(x + i).to(ELEMENT) * FACTOR
    tl.store(output + i, value + PAIR[0] + PAIR[1][0] + PAIR[1][1])


def test_kernels_travel_with_the_constants_that_they_use() -> None:
    x = torch.arange(8.0)
    assert torch.equal(run(travelled(constants_kernel), x), 3 * x + 14)


@triton.jit
def innermost(value):
    return value * FACTOR


@triton.jit
def inner(value):
    return innermost(value) + 1


@triton.jit
def helpers_kernel(x, output, N: tl.constexpr):
    i, valid = transfer.tile_1d(0, N, N)
    transfer.store(output, i, inner(transfer.load(x, i, valid)) + inner(0.0), valid)


def test_kernels_travel_with_the_functions_that_they_call() -> None:
    x = torch.arange(8.0)
    assert torch.equal(run(travelled(helpers_kernel), x, N=8), 3 * x + 2)


@triton.jit
def aliases_kernel(x, output, N: tl.constexpr):
    i = language.arange(0, N)
    value = language.load(x + i)
    language.store(output + i, value + largest(value, axis=0) + another_triton.language.sum(value, axis=0))


def test_triton_modules_and_functions_under_other_names_travel() -> None:
    """The kernel uses Triton's modules under other names, and an imported function of its library."""
    x = torch.arange(8.0)
    arrived = travelled(aliases_kernel)
    assert torch.equal(run(arrived, x, N=8), x + 7 + 28)
    assert arrived.fn.__globals__["largest"] is tl.max


def test_a_helper_named_like_the_kernel_is_not_a_recursion() -> None:
    @triton.jit
    def add(value):
        return value + 1

    called = add

    @triton.jit  # type: ignore[no-redef]  # a helper and a kernel of one name
    def add(x, output, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(output + i, called(tl.load(x + i)))

    x = torch.arange(8.0)
    assert torch.equal(run(travelled(add), x, N=8), x + 1)


def closure(factor: float, combine: Any) -> Any:
    width = tl.constexpr(8)

    @triton.jit
    def kernel(x, output):
        i = tl.arange(0, width)
        tl.store(output + i, combine(tl.load(x + i) * factor))

    return kernel


@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_kernels_made_in_a_function_travel_with_its_variables(factor: float) -> None:
    """Two kernels of one function keep their own factors."""
    x = torch.arange(8.0)
    assert torch.equal(run(travelled(closure(factor, inner)), x), 3 * factor * x + 1)


@triton.jit
def nested_kernel(x, output, N: tl.constexpr):
    @triton.jit
    def unused(value):
        return value + OPTIONS

    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i))


@triton.jit
def locals_kernel(x, output, N: tl.constexpr):
    offsets = tl.arange(0, N)
    TABLE = tl.load(x + offsets)
    tl.store(output + offsets, TABLE)


@triton.jit
def attributes_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i).reshape(N).to(output.dtype.element_ty))


def test_local_names_and_attributes_are_not_packed_as_globals() -> None:
    """Globals with the names of the kernel's locals and attributes are not packed."""
    x = torch.arange(8.0)
    assert torch.equal(run(travelled(locals_kernel), x, N=8), x)
    assert [name for name, _ in pack(locals_kernel).names] == ["tl"]
    assert [name for name, _ in pack(attributes_kernel).names] == ["tl"]


# fmt: off
@triton.jit(
    do_not_specialize=["x"],
)
def decorated_kernel(
    x,
    output,  # def kernel(
    N: tl.constexpr,
):
    i = tl.arange(
        0,
        N,
    )
    tl.store(output + i, tl.load(x + i) / (N - 8))  # here
# fmt: on


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_errors_of_a_travelled_kernel_show_lines_of_its_file() -> None:
    """The text that is sent begins at `def`; an error shows the line of the file where the kernel is."""
    source = pack(decorated_kernel)
    assert (source.name, source.file) == ("decorated_kernel", __file__)
    assert Path(__file__).read_text().splitlines()[source.line - 1] == "def decorated_kernel("
    arrived = travelled(failing_kernel)
    with pytest.raises(KernelError) as caught:
        run(arrived, torch.zeros(8), N=8)
    assert (caught.value.file, caught.value.line) == (__file__, line_of(failing_kernel, "# fails"))
    assert "tl.static_assert(N == 4)" in str(caught.value)


@triton.jit
def failing_kernel(x, output, N: tl.constexpr):
    tl.store(x, 1.0)
    tl.static_assert(N == 4)  # fails


CELL = '''\
import triton
import triton.language as tl

SCALE = 4.0


@triton.jit
def helper(value):
    return value * SCALE


@triton.jit
def kernel(x, output, N: tl.constexpr, BAD: tl.constexpr = False):
    """One of a notebook."""
    i = tl.arange(0, N)
    tl.store(output + i + BAD, helper(tl.load(x + i)))
'''


def in_a_cell(text: str, file: str = "<cell 7>") -> dict[str, Any]:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec", dont_inherit=True), namespace)
    return namespace


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    yield in_a_cell(CELL)
    linecache.cache.pop("<cell 7>", None)


def test_a_kernel_of_a_notebook_cell_travels_with_its_text(cell: dict[str, Any]) -> None:
    """The cell's text is in no file, so all of it is sent, and the other process can show its lines."""
    x = torch.arange(8.0)
    source = pack(cell["kernel"])
    assert "".join(source.file_lines) == CELL
    del linecache.cache["<cell 7>"]  # as in a process that has never seen the cell
    arrived = unpack(pickle.loads(pickle.dumps(source)))
    assert torch.equal(run(arrived, x, N=8), 4 * x)
    with pytest.raises(KernelError) as caught:
        run(arrived, x, N=8, BAD=True)
    assert caught.value.line == 16
    assert "tl.store(output + i + BAD, helper(tl.load(x + i)))" in str(caught.value)


def test_a_cell_with_another_factor_is_another_kernel(cell: dict[str, Any]) -> None:
    x = torch.arange(8.0)
    assert torch.equal(run(unpack(pack(cell["kernel"])), x, N=8), 4 * x)
    cell["SCALE"] = 5.0
    assert torch.equal(run(unpack(pack(cell["kernel"])), x, N=8), 5 * x)


def packed_text(kernel: Any) -> str:
    """Return the kernel's text and that of the functions that it calls."""
    source = pack(kernel)
    return "".join([source.text, *(each.text for _, each in source.names if isinstance(each, KernelSource))])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value * SCALE", "value + SCALE"),
        ("x + i)))", "x + i)))  # scaled"),  # the code of the functions is the same
        ("N: tl.constexpr, BAD", "N, BAD"),
        ("def kernel(x", "def  kernel(x"),
    ],
)
def test_a_cell_that_is_run_again_is_packed_anew(cell: dict[str, Any], old: str, new: str) -> None:
    """The cell has the same file name, and its functions the same names and often the same code."""
    assert new not in packed_text(cell["kernel"])
    again = in_a_cell(CELL.replace(old, new))
    for _ in range(2):
        assert new in packed_text(again["kernel"])
        assert new in "".join(pack(again["kernel"]).file_lines)


def test_a_helper_that_is_defined_again_is_packed_anew(cell: dict[str, Any]) -> None:
    """A cell defines the helper again; the kernel that calls the helper is not defined again."""
    x = torch.arange(8.0)
    assert torch.equal(run(unpack(pack(cell["kernel"])), x, N=8), 4 * x)
    helper = CELL.partition("@triton.jit\ndef kernel")[0].replace("value * SCALE", "value - SCALE")
    cell["helper"] = in_a_cell(helper, "<cell 10>")["helper"]
    assert torch.equal(run(unpack(pack(cell["kernel"])), x, N=8), x - 4)
    linecache.cache.pop("<cell 10>")


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    """A function is packed anew if it is defined again, or gets new code by assignment."""
    path = tmp_path / "edited.py"

    def defined(text: str) -> Any:
        path.write_text(text)
        namespace: dict[str, Any] = {"__name__": "edited"}
        exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
        return namespace["kernel"]

    first = defined(CELL)
    before = pack(first)
    assert "+ 1.0" not in before.text
    moved = "# one line more\n" + CELL.replace("helper(tl.load(x + i))", "helper(tl.load(x + i)) + 1.0")
    second = defined(moved)
    after = pack(second)
    assert "+ 1.0" in after.text
    assert after.line == before.line + 1
    first.fn.__code__ = second.fn.__code__
    assert (pack(first).text, pack(first).line) == (after.text, after.line)


def test_the_source_text_of_a_function_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding a function's end takes a millisecond, and a launch packs a kernel with all that it calls."""
    once = pack(helpers_kernel)
    monkeypatch.setattr(inspect, "getsourcelines", lambda function: pytest.fail(f"{function} is read again"))
    assert pack(helpers_kernel) == once


ANNOTATED = """\
import triton
import triton.language as tl

C = tl.constexpr


def made():
    @triton.jit
    def inner(x, alpha: "fp64", rows: tl.int32, N: C):
        tl.store(x + tl.arange(0, N), alpha * rows)

    return inner


@triton.jit
def kernel(x, alpha: "fp64", rows: tl.int32, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), alpha * rows)
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"], ids=["values", "texts"])
def test_annotations_keep_their_meaning(future: str) -> None:
    """Annotations are values, or texts under the future import; Triton reads the same types from them."""
    cell = in_a_cell(future + ANNOTATED)
    for kernel in (cell["kernel"], cell["made"]()):
        arrived = travelled(kernel)
        assert arrived.fn.__annotations__ == kernel.fn.__annotations__
        assert (arrived.fn.__annotations__["alpha"] == "fp64") == (future == "")
        types = [
            [(p.annotation, p.is_constexpr) for p in JITFunction(k.fn).params] for k in (arrived, kernel)
        ]
        assert types[0] == types[1]
    x = torch.zeros(8)
    Launch.of(travelled(cell["kernel"]), 1, x, 1.5, 2, 8, outputs=x).run()
    assert x.tolist() == [3.0] * 8


@triton.constexpr_function
def next_power_of_two(n: int) -> int:
    return 1 << math.ceil(math.log2(n))


@triton.jit
def constexpr_function_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, next_power_of_two(N))
    tl.store(output + i, tl.load(x + i, mask=i < N, other=-1), mask=i < 8)


def test_functions_that_run_at_compile_time_travel() -> None:
    x = torch.arange(8.0)
    assert run(travelled(constexpr_function_kernel), x, N=5).tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


def test_the_same_source_is_the_same_function() -> None:
    """Equal sources give the same function, so a kernel that is sent again is not prepared again."""
    assert unpack(pack(helpers_kernel)) is unpack(pickle.loads(pickle.dumps(pack(helpers_kernel))))
    assert unpack(pack(closure(2.0, inner))) is not unpack(pack(closure(3.0, inner)))


MODULE = """\
import math

import triton
import triton.language as tl

K = 2
WIDTH = tl.constexpr(8)
NUMBERS = (1, 2)
TABLE = {"a": 1}


@triton.jit
def scaled(value):
    return value * K
"""
USER = """\
import math

import triton
import triton.language as tl

import settings
import settings.inner


@triton.jit
def kernel(x, output, K: tl.constexpr = settings.K):
    i = tl.arange(0, settings.WIDTH)
    value = tl.load(x + i) * settings.K + settings.inner.DEPTH + settings.NUMBERS[1]
    tl.store(output + i, value)


@triton.jit
def calling_kernel(x, output):
    i = tl.arange(0, 8)
    tl.store(output + i, settings.scaled(tl.load(x + i)))


@triton.jit
def pi_kernel(x, output):
    i = tl.arange(0, 8)
    tl.store(output + i, tl.load(x + i) * math.pi)


@triton.jit
def table_kernel(x, output):
    tl.store(output, settings.TABLE["a"])


@triton.jit
def missing_kernel(x, output):
    tl.store(output, settings.NO_SUCH)


@triton.jit
def hidden_kernel(x, settings):
    tl.store(x, settings.dtype.element_ty.primitive_bitwidth)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield a module `settings` with a module `settings.inner`, and a cell whose kernels use them."""
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "__init__.py").write_text(MODULE)
    (tmp_path / "settings" / "inner.py").write_text("DEPTH = 100\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("settings", "settings.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield in_a_cell(USER, "<cell 8>")
    linecache.cache.pop("<cell 8>", None)
    for name in ("settings", "settings.inner"):
        sys.modules.pop(name, None)


def interpreted(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    output = torch.zeros(8)
    (result,) = interpret(Launch.of(kernel, 1, x, output, outputs=output)).outputs
    return result


def test_constants_of_a_module_have_their_present_values(settings: dict[str, Any]) -> None:
    """The values are sent, because the other process may have another module, or none."""
    x = torch.arange(8.0)
    for k in (2, 5, 7):
        settings["settings"].K = k
        assert torch.equal(interpreted(settings["kernel"], x), k * x + 102)
        assert torch.equal(interpreted(settings["calling_kernel"], x), k * x)
    settings["settings"].inner.DEPTH = 200
    settings["settings"].NUMBERS = (1, 3)
    assert torch.equal(interpreted(settings["kernel"], x), 7 * x + 203)
    assert torch.equal(interpreted(settings["pi_kernel"], x), x * math.pi)
    output = torch.zeros(1)
    Launch.of(travelled(settings["hidden_kernel"]), 1, output, output, outputs=output).run()
    assert output.item() == 32


def test_members_of_a_module_that_cannot_travel_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"^settings\.TABLE: kernel table_kernel reads it from outside, and it"
    ):
        pack(settings["table_kernel"])
    with pytest.raises(KernelError, match="module 'settings' has no attribute 'NO_SUCH'"):
        interpreted(settings["missing_kernel"], torch.zeros(8))


CONSTANTS = """\
import triton
import triton.language as tl

import settings

ELEMENT = tl.float32


@triton.jit
def type_kernel(x, output):
    i = tl.arange(0, 8)
    tl.store(output + i, tl.load(x + i).to(ELEMENT))


@triton.jit
def module_kernel(x, output):
    i = tl.arange(0, 8)
    tl.store(output + i, tl.load(x + i) * settings.K)


@triton.constexpr_function
def factor():
    return settings.K


@triton.jit
def function_kernel(x, output):
    i = tl.arange(0, 8)
    tl.store(output + i, tl.load(x + i) * factor())
"""


def compiled(kernel: Any) -> str:
    x = torch.zeros(8)
    (step,) = compile_for(Launch.of(kernel, 1, x, x, outputs=x), "sm_90")
    return step.stages["ttir"]


def test_a_changed_constant_is_compiled_anew(settings: dict[str, Any]) -> None:
    """Triton tells kernels apart by their text and their constexpr globals only."""
    cell = in_a_cell(CONSTANTS, "<cell 9>")
    assert "f16" not in compiled(cell["type_kernel"])
    cell["ELEMENT"] = tl.float16
    assert "f16" in compiled(cell["type_kernel"])
    for kernel in (cell["module_kernel"], cell["function_kernel"]):
        for k in (2.0, 5.0, 2.0):
            cell["settings"].K = k
            assert f"dense<{k:.6e}>" in compiled(kernel)


NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def enum_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.maximum(tl.load(x + i), 2.0, propagate_nan=NAN))


def test_kernels_travel_with_tritons_enums() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, float("nan")] * 2)
    want = torch.tensor([2.0, 2.0, 3.0, float("nan")] * 2)
    assert torch.equal(run(travelled(enum_kernel), x, N=8).nan_to_num(9.0), want.nan_to_num(9.0))
    output = torch.zeros(8)
    launch = Launch.of(enum_kernel, 1, x, output, outputs=output, N=8)
    assert torch.equal(interpret(launch).outputs[0].nan_to_num(9.0), want.nan_to_num(9.0))
    assert "max.NaN" in compile_for(launch, "sm_90")[0].stages["ptx"]


@triton.jit
def global_tensor_kernel(x, output):
    tl.store(output, tl.load(TABLE))


@triton.jit
def dictionary_kernel(x, output):
    tl.store(output, OPTIONS["a"])


@triton.jit
def tensor_in_a_helper(value):
    return value + TABLE


@triton.jit
def tensor_below_kernel(x, output):
    tl.store(output, tensor_in_a_helper(tl.load(x)))


@triton.jit
def recursive_kernel(x, n: tl.constexpr):
    if n > 0:
        recursive_kernel(x, n - 1)


@triton.jit
def ping(n: tl.constexpr):
    return pong(n - 1) if n > 0 else 0


@triton.jit
def pong(n: tl.constexpr):
    return ping(n - 1) if n > 0 else 0


@triton.jit
def mutual_kernel(x):
    tl.store(x, ping(3))


def without_source() -> Any:
    namespace: dict[str, Any] = {"tl": tl, "triton": triton}
    exec("@triton.jit\ndef kernel(x):\n    tl.store(x, 1)\n", namespace)
    return namespace["kernel"]


def local_class_kernel() -> Any:
    class Local:
        ROWS = 4

    thing = Local()

    @triton.jit
    def kernel(x):
        tl.store(x, thing.ROWS)

    return kernel


def notebook_kernel(value: Any) -> Any:
    """Return a kernel that reads a class or function as if a notebook had defined it."""
    value.__module__ = "__main__"

    @triton.jit
    def kernel(x):
        tl.store(x, value(4))

    return kernel


class Sizes:
    """A class that `notebook_kernel` moves to a notebook."""


def plain_function(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            lambda: notebook_kernel(Sizes),
            r"^value: .* it is a class that a notebook .* outside\. Define it in a module and import that\.",
        ),
        (
            lambda: notebook_kernel(plain_function),
            r"^value: .* it is a function that a notebook .* outside\. Decorate it with @triton\.jit, or",
        ),
        (
            lambda: global_tensor_kernel,
            "^TABLE: kernel global_tensor_kernel reads it from outside, and it is a Tensor",
        ),
        (
            lambda: dictionary_kernel,
            "^OPTIONS: kernel dictionary_kernel reads it from outside, and it is a dict. Only constants",
        ),
        (lambda: nested_kernel, "^OPTIONS: "),
        (lambda: tensor_below_kernel, "^TABLE: kernel tensor_in_a_helper reads it"),
        (
            lambda: recursive_kernel,
            "^recursive_kernel: it calls itself. Triton has no recursion: write a loop",
        ),
        (lambda: mutual_kernel, "^ping: it calls itself"),
        (lambda: without_source(), "^kernel: its source text cannot be found"),
        (lambda: local_class_kernel(), "^thing: kernel kernel reads it from outside, and it is a Local"),
    ],
    ids=[
        "class of a notebook",
        "function of a notebook",
        "tensor",
        "dict",
        "in a nested function",
        "in a helper",
        "itself",
        "each other",
        "no source",
        "an object",
    ],
)
def test_globals_that_cannot_travel_are_refused(kernel: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        pack(kernel())


def test_interpret_refuses_globals_that_cannot_travel() -> None:
    x = torch.zeros(1)
    with pytest.raises(
        ArgumentTypeError, match=r"Only constants .* may come from outside\. Pass the values as arguments"
    ):
        interpret(Launch.of(global_tensor_kernel, 1, x, x, outputs=x))


def test_kernels_run_in_another_process() -> None:
    """Kernels of this file run in the worker, which does not import it."""
    x = torch.arange(8.0)
    for kernel, meta, want in (
        (constants_kernel, {}, 3 * x + 14),
        (helpers_kernel, {"N": 8}, 3 * x + 2),
        (aliases_kernel, {"N": 8}, x + 35),
        (closure(2.0, inner), {}, 6 * x + 1),
        (constexpr_function_kernel, {"N": 8}, x),
        (in_a_cell(CELL)["kernel"], {"N": 8}, 4 * x),
    ):
        output = torch.zeros(8)
        given: dict[str, Any] = dict(meta)
        (result,) = interpret(Launch.of(kernel, 1, x, output, outputs=output, **given)).outputs
        assert torch.equal(result, want)
        assert not output.any()


def test_arguments_of_the_decorator_travel() -> None:
    @triton.jit(do_not_specialize=["length"], noinline=True)
    def kernel(pointer, length):
        tl.store(pointer, length)

    assert dict(pack(kernel).decorations) == {"do_not_specialize": ["length"], "noinline": True}
    assert compat.decorations(unpack(pack(kernel))) == compat.decorations(kernel)
    assert pack(constants_kernel).decorations == ()


def test_a_module_in_an_archive_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text comes from the module's loader, because no file of that name exists."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        text = 'import triton\n\n\n@triton.jit\ndef zipped_kernel(x):\n    """One line."""\n    pass\n'
        archive.writestr("zipped_module.py", text)
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    monkeypatch.setattr(linecache, "cache", {})  # not cleared: texts of other tests are nowhere else
    kernel = importlib.import_module("zipped_module").zipped_kernel
    assert pack(kernel) == pack(kernel)
    assert "def zipped_kernel" in inspect.getsource(travelled(kernel).fn)
