"""Plant typical faults of GPU kernels, one at a time, and see whether the CPU tests catch them.

    python -m tools.plant --list                   # the faults, and the number of places of each
    python -m tools.plant surplus_program          # at all places, or at 20 drawn by --seed if there are more
    python -m tools.plant --only softmax.py        # every fault, in that file

Each fault changes a copy of the package, on which the tests of the changed file run until one fails. A fault
that no test catches is printed with its place: add a test, or a sentence in `EQUIVALENT` that says why the
fault changes nothing. A run takes hours and is made on demand.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
MOST_PLACES = 20
SECONDS = 900.0  # time limit of a file's tests; a longer run is a hang, which counts as caught

# The shipped code: kernels, their invokers, the choice among them, and warm calls. Ladders
# belong to the course, whose exercises have mutants of their own.
SOURCES = (
    "workbench/kernels/**/*.py", "workbench/coords/lower.py", "workbench/ops/*.py",
    "workbench/runtime/warm.py", "workbench/runtime/recording.py", "workbench/runtime/tape.py",
    "workbench/runtime/following.py",
)  # fmt: skip
LADDERS = ("_ladder.py", "/ladder.py", "_unfused.py", "reduction_levels.py", "levels.py", "reference.py")

# The tests of a file, by the end of its path or by its folder; other files have the test of the same name.
TESTS: dict[str, tuple[str, ...]] = {
    "coords/lower.py": ("tests/coords/test_lower.py", "tests/kernels/movement/test_view_transfer.py"),
    "choosing/gemm.py": ("tests/kernels/choosing/test_gemm.py", "tests/ops/test_gemm.py"),
    "choosing/attention.py": ("tests/kernels/choosing/test_attention.py", "tests/ops/test_attention.py"),
    "choosing/convolution.py": (
        "tests/kernels/convolution/test_implicit_gemm.py",
        "tests/ops/test_convolution.py",
    ),
    "instances/attention.py": ("tests/kernels/choosing/test_attention.py", "tests/ops/test_attention.py"),
    "instances/convolution.py": (
        "tests/kernels/convolution/test_implicit_gemm.py",
        "tests/ops/test_convolution.py",
    ),
    "choosing/fused_templates.py": (
        "tests/kernels/choosing/test_fused_templates.py",
        "tests/ops/test_fused_templates.py",
    ),
    "tile/gemm.py": ("tests/kernels/gemm/test_gemm.py", "tests/kernels/convolution/test_implicit_gemm.py"),
    "choosing/tiles.py": (
        "tests/kernels/choosing/test_gemm.py",
        "tests/kernels/choosing/test_fused_templates.py",
    ),
    "tile/reduce.py": (
        "tests/kernels/rows/test_norm_accuracy.py",
        "tests/kernels/rows/test_reduction.py",
        "tests/ops/test_normalization.py",
        "tests/ops/test_softmax.py",
        "tests/ops/test_reduction.py",
    ),
    "grouped_gemm.py": ("tests/kernels/gemm/test_grouped.py", "tests/ops/test_grouped_gemm.py"),
    "kernels/gemm/grouped.py": ("tests/kernels/gemm/test_grouped.py", "tests/ops/test_fused.py"),
    "kernels/movement/transfer/": ("tests/kernels/movement/test_transfer.py", "tests/ops/test_rearrange.py"),
    **{
        f"kernels/attention/backward/{name}.py": (
            "tests/kernels/attention/test_backward.py",
            "tests/ops/test_attention.py",
        )
        for name in ("kernels", "plan", "invoker")
    },
    "tile/transfer.py": ("tests/kernels/tile/test_transfer.py", "tests/kernels/rows/test_rowwise.py"),
    "tile/epilogue.py": ("tests/kernels/test_epilogues.py",),
    "tile/activation.py": ("tests/kernels/test_epilogues.py",),
    "tile/scores.py": (
        "tests/kernels/attention/test_attention.py",
        "tests/kernels/attention/test_backward.py",
    ),
    "tile/order.py": ("tests/kernels/gemm/test_gemm.py",),
    "tile/overlap.py": ("tests/kernels/attention/test_attention.py", "tests/kernels/gemm/test_hopper.py"),
    **{
        f"kernels/attention/{name}.py": (
            "tests/kernels/attention/test_attention.py",
            "tests/ops/test_attention.py",
        )
        for name in ("kernel", "scoring", "plan", "invoker")
    },
    **{
        f"kernels/gemm/{name}.py": ("tests/kernels/gemm/test_gemm.py", "tests/ops/test_gemm.py")
        for name in (
            "kernel",
            "invoker",
            "plan",
            "placement",
            "request",
            "options",
            "problem",
            "descriptors",
            "packing",
            "permuted",
            "checks",
            "constants",
            "overlapping",
        )
    },
    "kernels/epilogues/": ("tests/kernels/test_epilogues.py", "tests/ops/test_fused.py"),
    "kernels/gemm/hopper.py": ("tests/kernels/gemm/test_hopper.py",),
    "kernels/gemm/ping_pong.py": ("tests/kernels/gemm/test_hopper.py",),
    "kernels/gemm/rows.py": (
        "tests/kernels/gemm/test_fused_templates.py",
        "tests/ops/test_fused_templates.py",
    ),
    "kernels/gemm/pair.py": (
        "tests/kernels/gemm/test_fused_templates.py",
        "tests/ops/test_fused_templates.py",
    ),
    "kernels/gemm/gated.py": (
        "tests/kernels/gemm/test_fused_templates.py",
        "tests/ops/test_fused_templates.py",
    ),
    "kernels/gemm/products.py": ("tests/kernels/gemm/test_fused_templates.py",),
    **{
        f"kernels/convolution/{name}.py": (
            "tests/kernels/convolution/test_implicit_gemm.py",
            "tests/ops/test_convolution.py",
            "tests/ops/test_fused.py",
        )
        for name in ("geometry", "windows", "images", "products", "invoker")
    },
    "kernels/rows/normalization/": (
        "tests/kernels/rows/test_norm_accuracy.py",
        "tests/ops/test_normalization.py",
    ),
    "kernels/rows/batch_norm/": ("tests/ops/test_group_norm.py", "tests/kernels/rows/test_norm_accuracy.py"),
    "kernels/channels.py": ("tests/ops/test_group_norm.py",),
    "kernels/rows/group_norm/": ("tests/ops/test_group_norm.py", "tests/kernels/rows/test_norm_accuracy.py"),
    "kernels/rows/softmax/": ("tests/ops/test_softmax.py", "tests/kernels/rows/test_rowwise.py"),
    "kernels/rows/rowwise/": (
        "tests/kernels/rows/test_rowwise.py",
        "tests/ops/test_softmax.py",
        "tests/kernels/rows/test_norm_accuracy.py",
        "tests/kernels/gemm/test_fused_templates.py",
    ),
    "kernels/convolution/implicit_gemm/": ("tests/kernels/convolution/test_implicit_gemm.py",),
    "kernels/convolution/pooling/": ("tests/ops/test_pooling.py",),
    "kernels/rows/cross_entropy/": ("tests/ops/test_cross_entropy.py",),
    "kernels/movement/rearrangement/": ("tests/ops/test_rearrange.py", "tests/ops/test_pixel_shuffle.py"),
    "kernels/rows/reduction/": ("tests/kernels/rows/test_reduction.py", "tests/ops/test_reduction.py"),
    "kernels/movement/view_transfer/": ("tests/kernels/movement/test_view_transfer.py",),
    "kernels/pointwise/elementwise/": ("tests/kernels/pointwise/test_elementwise.py",),
    "kernels/attention/tiles.py": ("tests/kernels/attention/test_attention.py",),
    "kernels/attention/states.py": ("tests/kernels/attention/test_attention.py",),
    "kernels/layout.py": ("tests/kernels/test_views.py", "tests/kernels/rows/test_rowwise.py"),
    "kernels/views.py": ("tests/kernels/convolution/test_implicit_gemm.py", "tests/kernels/test_views.py"),
    "kernels/gemm/hopper_wide.py": ("tests/kernels/gemm/test_hopper.py",),
    "kernels/gemm/hopper_pairs.py": ("tests/kernels/gemm/test_hopper.py",),
    "kernels/attention/hopper.py": ("tests/kernels/choosing/test_attention.py",),
    "kernels/options.py": (
        "tests/kernels/choosing/test_attention.py",
        "tests/kernels/convolution/test_implicit_gemm.py",
    ),
    "ops/arguments.py": ("tests/ops/test_elementwise.py", "tests/ops/test_numbers.py"),
    "ops/profiled.py": ("tests/profiler",),
    "ops/elementwise.py": ("tests/kernels/pointwise/test_elementwise.py", "tests/ops/test_elementwise.py"),
    "ops/softmax.py": ("tests/ops/test_softmax.py", "tests/ops/test_cross_entropy.py"),
    "ops/transfer.py": ("tests/kernels/movement/test_transfer.py", "tests/ops/test_pixel_shuffle.py"),
    "ops/gradients.py": ("tests/ops/test_gradients.py", "tests/ops/test_differentiable.py"),
    "ops/gemm.py": ("tests/ops/test_gemm.py", "tests/runtime/test_warm_calls.py"),
    "ops/normalization.py": ("tests/ops/test_normalization.py", "tests/ops/test_group_norm.py"),
    "runtime/warm.py": ("tests/runtime",),
    "runtime/recording.py": ("tests/runtime",),
    "runtime/tape.py": ("tests/runtime",),
    "runtime/following.py": ("tests/runtime",),
}
# Additional tests of operators, for their gradients.
OF_GRADIENTS = ("tests/ops/test_differentiable.py",)

# Places at which a fault changes nothing, with the reason: "file: line's text" -> sentence.
EQUIVALENT: dict[str, str] = {
    "workbench/ops/attention.py: torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device) -> "
    "torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device).fill_(1)": (
        "The kernel writes the gradient of every pair."
    ),
    "workbench/kernels/tile/reduce.py: tl.zeros([ROWS], DTYPE) -> (tl.zeros([ROWS], DTYPE) + 1)": (
        "The total of no scores: the first scores rescale it by exp(-inf), which is 0."
    ),
    "workbench/kernels/gemm/rows.py: triton.cdiv(count, rows) -> (triton.cdiv(count, rows)) + 1": (
        "Rows beyond the last one are masked where states are loaded and results stored."
    ),
    "workbench/kernels/attention/states.py: 1 -> (1) + 1": "Another program would write the same once more.",
    "workbench/kernels/gemm/packing.py: tiles -> (tiles) + 1": (
        "A program behind the last tile is that of no matrix."
    ),
}

Edit = tuple[ast.expr | ast.stmt, str]  # the replaced node, and the new text


@dataclass(frozen=True)
class Place:
    """A place where a fault can be planted.

    Attributes:
        fault: the fault's name in `FAULTS`.
        file: the path from the root. line: the line of the first change.
        edits: (first byte, end byte, text) of each change.
        words: the first change in words: text before -> text after.
    """

    fault: str
    file: str
    line: int
    edits: tuple[tuple[int, int, str], ...]
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words}"


class Source:
    """A parsed source file."""

    def __init__(self, file: Path) -> None:
        self.name = file.relative_to(ROOT).as_posix()
        self.bytes = file.read_bytes()
        self.tree = ast.parse(self.bytes)
        lengths = [len(line) for line in self.bytes.splitlines(keepends=True)]
        self._starts = [sum(lengths[:i]) for i in range(len(lengths))]

    def text(self, node: ast.AST) -> str:
        """Return the source text of a node."""
        begin, end = self._span(node)
        return self.bytes[begin:end].decode()

    def place(self, fault: str, edits: Sequence[Edit]) -> Place:
        """Return the place of a fault that consists of one or more changes."""
        spans = tuple((*self._span(node), text) for node, text in edits)
        node, text = edits[0]
        words = f"{' '.join(self.text(node).split())} -> {' '.join(text.split())}"
        return Place(fault, self.name, node.lineno, spans, words)

    def jit_nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes inside jit functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and any(
                "jit" in ast.unparse(d) for d in node.decorator_list
            ):
                yield from (inner for statement in node.body for inner in ast.walk(statement))

    def python_nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes outside jit functions: invokers and choosers."""
        of_jit = set(self.jit_nodes())
        yield from (node for node in ast.walk(self.tree) if node not in of_jit)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _called(node: ast.AST) -> str:
    """Return the dotted name of the function that a call node calls; empty for other nodes."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in node.keywords if each.arg == name), None)


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def dropped_mask(source: Source) -> Iterator[Sequence[Edit]]:
    """Drop a mask, so that lanes without an element are used too."""
    places = {"transfer.load": 2, "transfer.store": 3, "tl.where": 0}
    for node in source.jit_nodes():
        if not isinstance(node, ast.Call):
            continue
        mask: ast.expr | None = None
        if _called(node) in ("tl.load", "tl.store"):
            mask = _keyword(node, "mask")
        elif (place := places.get(_called(node), 99)) < len(node.args):
            mask = node.args[place]
            if _called(node) == "tl.where" and not isinstance(mask, ast.Name | ast.Subscript):
                continue  # a comparison of values, not of places
        if mask is not None and not (
            _is_none(mask) or (isinstance(mask, ast.Constant) and mask.value is True)
        ):
            yield [(mask, f"(({source.text(mask)}) | True)")]


def surplus_program(source: Source) -> Iterator[Sequence[Edit]]:
    """Start one program more than there is work for."""
    for node in source.python_nodes():
        if isinstance(node, ast.Call) and _called(node) in ("Step", "Launch.of") and len(node.args) > 1:
            grid = node.args[1]
            if isinstance(grid, ast.Tuple) and grid.elts:
                yield [(grid.elts[0], f"({source.text(grid.elts[0])}) + 1")]


def false_hint(source: Source) -> Iterator[Sequence[Edit]]:
    """Double the divisibility or contiguity that a hint or constant promises to the compiler."""
    hints = ("tl.multiple_of", "tl.max_contiguous", "tl.max_constancy")
    for node in source.python_nodes():
        called = _called(node).split(".")[-1].lstrip("_")
        if called == "in_brackets" and source.name.endswith("lower.py"):  # of hints that are generated
            (lengths,) = node.args  # type: ignore[attr-defined]
            yield [(lengths, f"[2 * each for each in {source.text(lengths)}]")]
        if called in ("divisor", "divisor_of") and "/kernels/" in source.name:
            yield [(cast("ast.expr", node), f"2 * {source.text(node)}")]
        if called in ("divisors", "divisors_of"):
            doubled = "tuple(2 * d for d in each) if isinstance(each, tuple) else 2 * each"
            yield [(cast("ast.expr", node), f"tuple({doubled} for each in {source.text(node)})")]
    for node in source.jit_nodes():
        if isinstance(node, ast.Call) and _called(node) in hints and len(node.args) > 1:
            numbers = node.args[1]
            for each in numbers.elts if isinstance(numbers, ast.List | ast.Tuple) else [numbers]:
                yield [(each, f"2 * ({source.text(each)})")]


def wrong_tail(source: Source) -> Iterator[Sequence[Edit]]:
    """Use one element beyond the end, or leave out the last part of a length."""
    for node in source.jit_nodes():
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
            left, right = node.left, node.comparators[0]
            if isinstance(right, ast.Name | ast.Attribute) or "[None" in source.text(left):
                yield [(node, f"{source.text(left)} <= {source.text(right)}")]
        if isinstance(node, ast.Call) and _called(node) == "tl.cdiv":
            over, by = map(source.text, node.args)
            yield [(node, f"(({over}) // ({by}))")]


def missing_reset(source: Source) -> Iterator[Sequence[Edit]]:
    """Do not zero an accumulator."""
    for node in source.python_nodes():
        if isinstance(node, ast.Call) and (given := _keyword(node, "accumulators")) is not None:
            yield [(given, "()")]
        if isinstance(node, ast.Expr) and _called(node.value).endswith(".zero_"):
            yield [(node, "pass")]


def _told(source: Source) -> Iterator[ast.AST]:
    """Yield nodes in which the order of strides does not matter: parts of keys, and texts of messages."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            yield from ast.walk(node)
        elif isinstance(node, ast.Tuple):
            names = {each.attr for each in node.elts if isinstance(each, ast.Attribute)}
            if names & {"dtype", "device", "shape"}:
                yield from node.elts


def swapped_stride(source: Source) -> Iterator[Sequence[Edit]]:
    """Pass strides to a kernel in the wrong order; keys and messages are left out."""
    told = set(_told(source))
    for node in source.python_nodes():
        if node in told:
            continue
        if isinstance(node, ast.Call) and _called(node).endswith(".stride") and not node.args:
            yield [(node, f"{source.text(node)}[::-1]")]
        if isinstance(node, ast.Call | ast.Tuple):
            many = node.args if isinstance(node, ast.Call) else node.elts
            for one, other in pairwise(many):
                if all(_called(each).endswith(".stride") for each in (one, other)):
                    yield [(one, source.text(other)), (other, source.text(one))]


def unsaved_tensor(source: Source) -> Iterator[Sequence[Edit]]:
    """Hide a saved tensor from autograd, which then misses changes of it in place."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        saves = [n for n in ast.walk(node) if _called(n) == "ctx.save_for_backward"]
        reads = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
        reads = [n for n in reads if source.text(n) == "ctx.saved_tensors"]
        if saves and reads:
            edits: list[Edit] = []
            for save in saves:
                assert isinstance(save, ast.Call)
                given = ", ".join(map(source.text, save.args))
                edits.append((save, f"setattr(ctx, 'unsaved', ({given},))"))
            yield [*edits, *((read, "ctx.unsaved") for read in reads)]


def wrong_split(source: Source) -> Iterator[Sequence[Edit]]:
    """Divide a kernel's work among another number of programs than are started."""
    for node in source.python_nodes():
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("SPLITS", "PARTS", "SHARES", "splits"):
                    yield [(value, f"({source.text(value)}) + 1")]
        given = _keyword(node, "splits") if isinstance(node, ast.Call) else None
        if given is not None and not isinstance(given, ast.Name | ast.Constant):
            yield [(given, f"({source.text(given)}) + 1")]


def uninitialized(source: Source) -> Iterator[Sequence[Edit]]:
    """Fill a tensor or tile with ones instead of zeros."""
    makes = ("torch.zeros", "torch.zeros_like", ".new_zeros")
    for node in source.python_nodes():
        if isinstance(node, ast.Call) and _called(node).endswith(makes):
            yield [(node, f"{source.text(node)}.fill_(1)")]
    for node in source.jit_nodes():
        if isinstance(node, ast.Call) and _called(node) in ("tl.zeros", "tl.zeros_like"):
            yield [(node, f"({source.text(node)} + 1)")]


def stale_warm_call(source: Source) -> Iterator[Sequence[Edit]]:
    """Leave out a condition of a warm call's guard."""
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef) or function.name != "_guard":
            continue
        for node in ast.walk(function):
            is_added = isinstance(node, ast.AugAssign)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                is_added = _called(node.value).endswith("unlike.append")
            if is_added and isinstance(node, ast.stmt):
                yield [(node, "pass")]


FAULTS: dict[str, Callable[[Source], Iterator[Sequence[Edit]]]] = {
    each.__name__: each
    for each in (
        dropped_mask, surplus_program, false_hint, wrong_tail, missing_reset, swapped_stride, unsaved_tensor,
        wrong_split, uninitialized, stale_warm_call,
    )
}  # fmt: skip


def sources(root: Path = ROOT) -> list[Source]:
    """Return the files in which faults are planted."""
    files = sorted({file for pattern in SOURCES for file in root.glob(pattern)})
    return [Source(file) for file in files if not file.as_posix().endswith(LADDERS)]


def places_of(fault: str, files: Sequence[Source]) -> list[Place]:
    """Return all places of a fault."""
    return [source.place(fault, edits) for source in files for edits in FAULTS[fault](source)]


def plant(source: bytes, place: Place) -> bytes:
    """Return the source with the fault planted at `place`."""
    for begin, end, text in sorted(place.edits, reverse=True):
        source = source[:begin] + text.encode() + source[end:]
    ast.parse(source)
    return source


def tests_of(file: str) -> tuple[str, ...]:
    """Return the paths of the tests that should catch faults in a file."""
    folder = f"{Path(file).parent.as_posix()}/"
    found = next((tests for end, tests in TESTS.items() if file.endswith(end) or folder.endswith(end)), ())
    name = Path(file).stem
    own = [
        test for folder in ("kernels", "ops") for test in (ROOT / "tests" / folder).rglob(f"test_{name}.py")
    ]
    found = found or tuple(sorted(test.relative_to(ROOT).as_posix() for test in own))
    if "/ops/" in file:
        found = (*found, *OF_GRADIENTS)
    is_chosen = "/instances/" in file or "/choosing/" in file
    if any(family in name for family in ("gemm", "convolution", "attention")) and not is_chosen:
        found = (*found, "tests/ops/test_precision.py")
    return tuple(dict.fromkeys(found))


def copy_of_package() -> Path:
    """Copy what the tests need to a new folder, and return it."""
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    ignored = shutil.ignore_patterns("__pycache__", "artifacts", "recordings")
    for name in ("workbench", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=None if name == "workbench" else ignored)
    for name in ("pyproject.toml", "constraints.txt", "lessons"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment for the tests of a copy: kernels are interpreted, and a GPU is hidden."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def failing_anyway(folder: Path, tests: Sequence[str], processes: int) -> list[str]:
    """Return the tests that fail without a fault, which therefore cannot catch one.

    Raises:
        RuntimeError: pytest could not run.
    """
    cache = folder / "cache"
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-o", f"cache_dir={cache}", *tests]
    done = subprocess.run(
        command, cwd=folder, env=environment_of(folder), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):  # all passed, or some failed
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    failed = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(failed.read_text())) if done.returncode else []


def caught(
    folder: Path, place: Place | None, tests: Sequence[str], failing: Sequence[str] = ()
) -> tuple[bool, str]:
    """Return whether a test fails, and the first failure's line or pytest's last line.

    Args:
        folder: a copy of the package, which is restored afterwards.
        place: the place of the fault; None for no fault.
        tests: the tests to run.
        failing: the tests that fail without a fault, which are left out.
    """
    file = None if place is None else folder / place.file
    before = b"" if file is None else file.read_bytes()
    if file is not None and place is not None:
        file.write_bytes(plant(before, place))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    command += [word for each in failing for word in ("--deselect", each)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment_of(folder),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, f"no end in {SECONDS:.0f} s"
    finally:
        if file is not None:
            file.write_bytes(before)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])
    return done.returncode != 0, failed


def arguments_of(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.plant", description=__doc__.splitlines()[0])
    parser.add_argument(
        "faults", nargs="*", metavar="fault", help=f"one of {', '.join(FAULTS)}; all by default"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the faults with their numbers of places, and plant nothing"
    )
    parser.add_argument("--only", default="", help="only files whose path ends with this")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for drawing places of faults with many places"
    )
    parser.add_argument(
        "--most", type=int, default=MOST_PLACES, help="the largest number of places of each fault"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(given)
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}. Give some of {', '.join(FAULTS)}.")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """List or plant faults; return 0 if at least 95 % were caught and the others are explained."""
    options = arguments_of(given)
    files = [source for source in sources() if source.name.endswith(options.only)]
    chosen: list[Place] = []
    for fault in options.faults or FAULTS:
        places = places_of(fault, files)
        drawn = random.Random(options.seed).sample(places, min(options.most, len(places)))
        print(f"{fault:<16} {len(places):4} places, {len(drawn)} drawn", flush=True)
        chosen += drawn
    if options.list:
        return 0
    folders: SimpleQueue[Path] = SimpleQueue()
    for _ in range(options.processes):
        folders.put(copy_of_package())
    tests = sorted({test for place in chosen for test in tests_of(place.file)})
    folder = folders.get()
    failing = failing_anyway(folder, tests, options.processes)
    folders.put(folder)
    for each in failing:
        print(f"fails without a fault, and is left out: {each}", flush=True)

    def judge(place: Place) -> tuple[Place, bool, str]:
        folder, start = folders.get(), time.monotonic()
        try:
            is_caught, line = caught(folder, place, tests_of(place.file), failing)
        finally:
            folders.put(folder)
        word = "caught" if is_caught else "SURVIVED"
        print(
            f"{word:<8} {place.fault:<16} {time.monotonic() - start:4.0f} s  {place}\n{'':9}{line}",
            flush=True,
        )
        return place, is_caught, line

    try:
        with ThreadPoolExecutor(options.processes) as threads:
            found = list(threads.map(judge, chosen))
    finally:
        while not folders.empty():
            shutil.rmtree(folders.get(), ignore_errors=True)
    survivors = [place for place, is_caught, _ in found if not is_caught]
    unexplained = [place for place in survivors if f"{place.file}: {place.words}" not in EQUIVALENT]
    of_each = Counter(place.fault for place, is_caught, _ in found if is_caught)
    print(f"\ncaught {len(found) - len(survivors)} of {len(found)}: {dict(of_each)}")
    for place in survivors:
        print(f"survived: {place.fault} {place}: {EQUIVALENT.get(f'{place.file}: {place.words}', 'why?')}")
    return 0 if len(survivors) <= 0.05 * len(found) and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
