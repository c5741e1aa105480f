"""Imports in `workbench/` point one way, and one file alone asks the running machine.

Who may import whom is the house's plan (CONTRIBUTING.md): a room that is not in the table has no place yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

WORKBENCH = Path(__file__).parents[1] / "workbench"

FOUNDATION = {"errors", "compat", "device", "interpreter"}
LAUNCHES = FOUNDATION | {"launch"}
KERNELS = {"kernels", "kernels.tile", "kernels.instances", "kernels.reference"}
ROOMS = LAUNCHES | KERNELS | {"runtime", "coords", "ops", "lens", "bench", "viz", "teach"}

# The four layers, by their folders: each may import those before it, and itself.
LAYERS = ("kernels/tile", "kernels", "kernels/instances", "ops")

# For each room, those that it may import besides itself. The longest name that fits a module is its room.
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "compat": {"errors"},
    "device": {"errors"},
    "interpreter": {"errors", "compat"},
    "launch": FOUNDATION,
    "__init__": LAUNCHES,
    "runtime": LAUNCHES,
    "coords": LAUNCHES,
    "kernels.tile": LAUNCHES,
    "kernels.reference": FOUNDATION,
    "kernels": LAUNCHES | {"runtime", "coords", "kernels.tile"},
    "kernels.instances": LAUNCHES | {"kernels", "kernels.reference"},
    "ops": LAUNCHES | KERNELS | {"runtime", "coords"},
    "lens": LAUNCHES | {"runtime", "coords"},
    "bench": LAUNCHES | {"runtime"},
    "viz": {"errors"},
    "teach": LAUNCHES | {"runtime", "coords", "lens", "ops", "kernels.reference"},
    "teach.solutions": LAUNCHES | KERNELS | {"runtime", "coords", "lens", "ops"},  # as a learner's cell
    "tune": ROOMS,
    "profiler": LAUNCHES | KERNELS | {"runtime", "lens", "bench", "tune"},
    "problems": ROOMS - {"viz", "teach", "lens"},
    "suites": ROOMS | {"problems", "tune"},
    "look": ROOMS,
    "address": ROOMS,
    "attend": ROOMS,
    "fuse": ROOMS,
    "explore": ROOMS | {"problems"},
    "landscape": ROOMS | {"tune"},
    "__main__": ROOMS | {"tune", "profiler", "suites", "look"},
}

# What a room may import inside a function alone, as who calls that asked for it by name.
LATE = {("ops", "profiler")}

# Viz draws plain results: of these rooms it may import classes, and the roofline's arithmetic.
DRAWN = {"bench", "lens", "coords", "interpreter"}
ARITHMETIC = "bench.roofline"

# What only `device` may ask: names, by their end, and texts. Keys of a dict ask nothing: a worker gets them.
QUESTIONS = (
    "cuda.is_available",
    "cuda.device_count",
    "get_device_properties",
    "get_device_capability",
    "get_device_name",
    "mem_get_info",
    "version.cuda",
    "version.hip",
)
TEXTS = {"TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "nvidia-smi", "rocminfo"}
MAY_ASK = {"device"}


@dataclass(frozen=True)
class Import:
    """In a line of `module`: `name` of the module `target`, or that itself; all without `workbench.`."""

    module: str
    line: int
    target: str
    name: str
    is_late: bool = False  # inside a function

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {'.'.join(filter(None, (self.target, self.name)))}"


def modules(package: Path) -> dict[str, ast.Module]:
    """Every module of the package by its dotted name: "__init__", "launch", "bench", "bench.roofline"."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def late_lines(tree: ast.Module) -> set[int]:
    """The lines inside functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {line for node in functions for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def imported_names(module: str, tree: ast.Module, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that is imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["workbench", *module.split(".")]
                kept = len(parts) - node.level + is_package
                base = ".".join(filter(None, [*parts[:kept], node.module]))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (
                (node.lineno, str(given.value)) for given in node.args if isinstance(given, ast.Constant)
            )


def imports(trees: Mapping[str, ast.Module]) -> list[Import]:
    """Every import within the package, and of what lies beside it."""
    found = []
    for module, tree in trees.items():
        is_package = any(other.startswith(f"{module}.") for other in trees) or module == "__init__"
        late = late_lines(tree)
        for line, name in imported_names(module, tree, is_package):
            top, _, rest = name.partition(".")
            if top in {"tests", "tools", "lessons"}:
                found.append(Import(module, line, name, ""))
            if top != "workbench":
                continue
            parts = rest.split(".") if rest else []
            ends = [end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in trees]
            end = ends[0] if ends else 0
            target = ".".join(parts[:end]) or "__init__"
            found.append(Import(module, line, target, ".".join(parts[end:]), line in late))
    return found


def room_of(module: str) -> str:
    """The room of a module: the longest name in the table that it begins with."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), module)


def wrong_directions(trees: Mapping[str, ast.Module]) -> list[str]:
    """Imports that the table does not allow."""
    problems = [
        f"{module}: has no place in the table" for module in trees if room_of(module) not in MAY_IMPORT
    ]
    for one in imports(trees):
        room, other = room_of(one.module), room_of(one.target)
        if other == room or other in MAY_IMPORT.get(room, set()):
            continue
        if one.is_late and (room, other) in LATE:
            continue
        if room == "viz" and other in DRAWN and (one.target == ARITHMETIC or one.name[:1].isupper()):
            continue
        problems.append(str(one))
    return problems


def cycles(trees: Mapping[str, ast.Module]) -> list[str]:
    """The first ring of modules that import one another."""
    graph: dict[str, set[str]] = {module: set() for module in trees}
    for one in imports(trees):
        if one.target in graph:
            graph[one.module].add(one.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def questions(trees: Mapping[str, ast.Module]) -> list[str]:
    """Places outside `device` that ask what this machine has."""
    problems = []
    for module, tree in trees.items():
        if module in MAY_ASK:
            continue
        given = {id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and f".{ast.unparse(node)}".endswith(QUESTIONS):
                problems.append(f"{module}, line {node.lineno}: asks {ast.unparse(node)}")
            elif isinstance(node, ast.Constant) and node.value in TEXTS and id(node) not in given:
                problems.append(f"{module}, line {node.lineno}: asks {node.value}")
    return problems


def test_imports_point_one_way() -> None:
    trees = modules(WORKBENCH)
    assert len(imports(trees)) > 10
    assert wrong_directions(trees) == []


def layer_of(module: str) -> int | None:
    """The place of a module's folder among the layers; None where it is in none."""
    parts = module.split(".")
    folders = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((LAYERS.index(folder) for folder in folders if folder in LAYERS), None)


def test_a_layer_imports_those_below_it() -> None:
    trees = modules(WORKBENCH)
    assert {layer_of(module) for module in trees} == {None, 0, 1, 2, 3}
    upwards = []
    for one in imports(trees):
        layer, other = layer_of(one.module), layer_of(one.target)
        if layer is not None and other is not None and other > layer:
            upwards.append(str(one))
    assert upwards == []


def test_no_module_imports_itself_in_a_ring() -> None:
    assert cycles(modules(WORKBENCH)) == []


def test_device_alone_asks_the_machine() -> None:
    trees = modules(WORKBENCH)
    assert questions(trees) == []
    assert questions({"elsewhere": trees["device"]})  # it does ask


def test_the_table_has_no_ring() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()
    assert set().union(*MAY_IMPORT.values()) <= set(MAY_IMPORT)


def tree(texts: Mapping[str, str]) -> dict[str, ast.Module]:
    """These modules, beside the rooms that they may name."""
    rooms = dict.fromkeys((*MAY_IMPORT, "bench.roofline", "bench.recording", "kernels.gemm"), "")
    return {name: ast.parse(text) for name, text in {**rooms, **texts}.items()}


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("errors", "from workbench import device", "errors, line 1: imports device"),
        ("launch", "import workbench.runtime", "launch, line 1: imports runtime"),
        (
            "launch",
            "def f():\n    from workbench import ops",
            "launch, line 2: imports ops",
        ),  # hidden in a function
        (
            "lens.trace",
            "from workbench.kernels.gemm import launch",
            "lens.trace, line 1: imports kernels.gemm.launch",
        ),
        ("bench.timing", "from workbench.lens import trace", "bench.timing, line 1: imports lens.trace"),
        ("bench.timing", "from ..lens import trace", "bench.timing, line 1: imports lens.trace"),  # relative
        ("bench.timing", "from .. import ops", "bench.timing, line 1: imports ops"),
        ("coords.lower", "from workbench.kernels import gemm", "coords.lower, line 1: imports kernels.gemm"),
        (
            "kernels.tile.reduce",
            "from workbench.kernels import gemm",
            "imports kernels.gemm",
        ),  # upwards in a room
        ("kernels.gemm", "from workbench.kernels import instances", "imports kernels.instances"),
        ("kernels.gemm", "from workbench import ops", "kernels.gemm, line 1: imports ops"),
        ("ops", "from workbench.bench import timing", "ops, line 1: imports bench.timing"),
        (
            "viz.roofline",
            "from workbench.bench.recording import load",
            "imports bench.recording.load",
        ),  # computes
        ("viz.roofline", "from workbench import bench", "viz.roofline, line 1: imports bench"),
        ("teach.check", "from workbench.viz import style", "teach.check, line 1: imports viz.style"),
        ("bench.timing", "from workbench import Launch", "bench.timing, line 1: imports __init__.Launch"),
        ("ops", "from workbench import profiler", "ops, line 1: imports profiler"),  # late alone
        ("kernels.gemm", "def f():\n    from workbench import profiler", "imports profiler"),
        ("ops", "from tools import lessons", "ops, line 1: imports tools.lessons"),
        ("ops", "import tests.conftest", "ops, line 1: imports tests.conftest"),
        ("ops", "importlib.import_module('workbench.tune')", "ops, line 1: imports tune"),
        ("attic.old", "", "attic.old: has no place in the table"),
    ],
)
def test_wrong_direction_is_found(module: str, text: str, said: str) -> None:
    (problem,) = wrong_directions(tree({module: text}))
    assert said in problem


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("viz.roofline", "from workbench.bench.recording import Line"),  # a class: plain data
        ("viz.roofline", "from workbench.bench.roofline import ridge"),  # arithmetic
        ("ops", "from workbench.kernels import gemm\nfrom workbench import errors"),
        ("teach.check", "from workbench.lens import trace\nfrom . import progress"),
        ("__main__", "from workbench import tune, viz, teach"),
        ("ops", "def f():\n    from workbench import profiler"),
    ],
)
def test_right_direction_is_free(module: str, text: str) -> None:
    assert wrong_directions(tree({module: text})) == []


def test_ring_is_found() -> None:
    one, other = "from workbench.lens.layout import x", "def f():\n    from workbench.lens import trace"
    ring = tree({"lens.trace": one, "lens.layout": other})
    assert wrong_directions(ring) == []
    (found,) = cycles(ring)
    assert "lens.trace" in found
    assert "lens.layout" in found


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.is_available()",
        "from torch import cuda\ncuda.is_available()",
        "torch.cuda.get_device_properties(0)",
        "torch.version.hip",
        "os.environ.get('TRITON_INTERPRET')",
        "subprocess.run(['nvidia-smi'])",
    ],
)
def test_question_is_found(text: str) -> None:
    assert len(questions(tree({"lens.trace": text}))) == 1


def test_what_a_worker_is_given_is_no_question() -> None:
    assert questions(tree({"runtime.worker": "environment = {'TRITON_INTERPRET': '1'}"})) == []


def test_files_become_modules(tmp_path: Path) -> None:
    for name in ("__init__.py", "launch.py", "bench/__init__.py", "bench/roofline.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from . import errors")
    assert list(modules(tmp_path)) == ["__init__", "bench", "bench.roofline", "launch"]
    assert [str(one) for one in imports(modules(tmp_path))] == [
        "__init__, line 1: imports __init__.errors",
        "bench, line 1: imports bench.errors",
        "bench.roofline, line 1: imports bench.errors",
        "launch, line 1: imports __init__.errors",
    ]
