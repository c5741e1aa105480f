"""Imports in `workbench/` point one way, and one file alone asks the running machine.

Which room may import which is decided in docs/architecture.md; a room that is not in the table here has no
place yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

WORKBENCH = Path(__file__).parents[1] / "workbench"

FOUNDATION = {"errors", "targets", "compat", "device", "interpreter"}
LAUNCHES = FOUNDATION | {"launch", "renamed"}
KERNELS = {"kernels", "kernels.tile", "kernels.instances", "kernels.choosing", "kernels.reference"}
ROOMS = (
    LAUNCHES
    | KERNELS
    | {"operators", "runtime", "coords", "ops", "lens", "readings", "bench", "viz", "teach"}
)

# The four layers, by their folders: each may import those before it, and itself. Choosing among instances of
# the third stands between it and the fourth.
LAYERS = ("kernels/tile", "kernels", "kernels/instances", "kernels/choosing", "ops")

# room -> the other rooms that it may import. The longest name that fits a module is its room.
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "renamed": set(),
    "compat": {"errors"},
    "targets": {"errors"},
    "device": {"errors", "targets"},
    "interpreter": {"errors", "compat"},
    "launch": FOUNDATION,
    "__init__": LAUNCHES,
    "runtime": LAUNCHES,
    "coords": LAUNCHES,
    "kernels.tile": LAUNCHES,
    "kernels.reference": FOUNDATION,
    "kernels": LAUNCHES | {"runtime", "coords", "kernels.tile"},
    "kernels.instances": LAUNCHES | {"kernels"},
    "kernels.choosing": LAUNCHES | {"kernels", "kernels.instances"},
    "operators": LAUNCHES | KERNELS | {"coords", "bench"},
    "ops": LAUNCHES | KERNELS | {"operators", "runtime", "coords"},
    "comparing": {"errors", "ops", "operators", "bench"},
    "measured": LAUNCHES | {"kernels", "runtime", "ops", "operators", "comparing"},
    "lens": LAUNCHES | {"runtime", "coords"},
    "readings": LAUNCHES | {"runtime", "coords", "lens"},
    "bench": LAUNCHES | {"runtime"},
    "viz": {"errors", "renamed"},
    "teach": LAUNCHES | {"runtime", "coords", "lens", "readings", "ops", "kernels.reference"},
    "teach.rungs": LAUNCHES | KERNELS | {"runtime", "coords"},
    "teach.solutions": LAUNCHES | KERNELS | {"runtime", "coords", "lens", "ops"},  # as a learner's cell may
    "tune": ROOMS,
    "profiler": LAUNCHES | KERNELS | {"operators", "runtime", "lens", "bench", "tune"},
    "documentation": {"errors", "device", "operators", "bench", "comparing"},
    "overheads": {"errors", "device", "operators", "bench", "comparing"},
    "suites": ROOMS | {"comparing", "measured", "teach.rungs", "tune"},
    "explore": ROOMS | {"tune"},
    "__main__": ROOMS | {"tune", "profiler", "documentation", "overheads", "suites", "explore"},
}

# Imports inside one function, whose caller asks for them by name: module, function, room.
LATE = {("ops.profiled", "profiled.best", "profiler")}

# Functions that import a module by a text, which can be followed only where the text is written out.
IMPORTERS = ("importlib.import_module", "importlib.__import__", "builtins.__import__", "__import__")
LOADED = "sys.modules"
COMPUTED = "a module whose name is computed"

# Modules that compute the names of their imports: a kernel's own module, in a process that gets its
# text; each page of an operator; subjects of `explore`; old names.
MAY_COMPUTE = {"runtime.source", "runtime.compiler", "operators.registry", "explore", "renamed"}

# Viz draws plain results: it may import classes of these rooms, and the roofline's arithmetic.
DRAWN = {"bench", "lens", "readings", "coords", "interpreter"}
ARITHMETIC = "bench.roofline"

# Names, by their end, and texts for `device` only. Keys of a dict ask nothing: a worker gets them.
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
    """An import: a line of `module` with `name` of the module `target`; all without `workbench.`."""

    module: str
    line: int
    target: str
    name: str
    function: str = ""  # the function that contains it, with those around it: "profiled.best"

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {'.'.join(filter(None, (self.target, self.name)))}"


@cache
def modules(package: Path) -> dict[str, ast.Module]:
    """Return every module of the package by its dotted name: "__init__", "launch", "bench.roofline"."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def functions_of(tree: ast.Module) -> dict[int, str]:
    """Return the function of each line that is in one, with the functions around it."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):  # from outside to inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = ".".join(filter(None, (found.get(node.lineno), node.name)))
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), name)
    return found


def import_statements(module: str, tree: ast.Module, is_package: bool) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, absolute dotted name, local name and meaning of each name that a statement imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                here, meaning = (alias.asname, alias.name) if alias.asname else (top, top)
                yield node.lineno, alias.name, here, meaning
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["workbench", *module.split(".")]
                kept = len(parts) - node.level + is_package
                base = ".".join(filter(None, [*parts[:kept], node.module]))
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, name, alias.asname or alias.name, name


def meaning_of(node: ast.expr, known: Mapping[str, str]) -> str:
    """Return the absolute dotted name of `a.b.c`, given what names mean; empty for other expressions."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (before := meaning_of(node.value, known)):
        return f"{before}.{node.attr}"
    return ""


def module_text(given: ast.expr | None) -> str:
    """Return the module that a text names in full, or `COMPUTED`."""
    text = given.value if isinstance(given, ast.Constant) else None
    return text if isinstance(text, str) and not text.startswith(".") else COMPUTED


def named_in_texts(tree: ast.Module, known: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module that is imported by a text, or taken from the loaded modules."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and meaning_of(node.value, known) == LOADED:
            yield node.lineno, module_text(node.slice)
        elif isinstance(node, ast.Name | ast.Attribute):
            meaning, call = meaning_of(node, known), calls.get(id(node))
            if meaning in IMPORTERS or (call and meaning.startswith(f"{LOADED}.")):
                # One that is passed on, as to `map`, is not called here, so the name is computed too.
                named = {word.arg: word.value for word in call.keywords} if call else {}
                yield node.lineno, module_text(call.args[0] if call and call.args else named.get("name"))


def reached_by_attribute(tree: ast.Module, known: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield line and absolute name of each `kernels.instances.gemm`, and the meaning of its first name."""
    chains = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in chains}
    for node in chains:
        first: ast.expr = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if id(node) not in inner and isinstance(first, ast.Name) and first.id in known:
            yield node.lineno, meaning_of(node, known), known[first.id]


def module_in(trees: Mapping[str, ast.Module], name: str) -> tuple[str, str]:
    """Return the longest module of the package that begins an absolute name, and the rest of the name."""
    parts = name.split(".")[1:]
    ends = (end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in trees)
    end = next(ends, 0)
    return ".".join(parts[:end]) or "__init__", ".".join(parts[end:])


def imports(trees: Mapping[str, ast.Module]) -> list[Import]:
    """Return every import within the package.

    Names in texts and attributes of a package count too: `kernels.instances` exists once `kernels` is
    imported, whoever imported it.
    """
    found = []
    for module, tree in trees.items():
        is_package = any(other.startswith(f"{module}.") for other in trees) or module == "__init__"
        functions = functions_of(tree)
        statements = list(import_statements(module, tree, is_package))
        known = {here: meaning for _, _, here, meaning in statements}
        names = [(line, name) for line, name, _, _ in statements]
        names += named_in_texts(tree, known)
        for line, name, first in reached_by_attribute(tree, known):
            if name.startswith("workbench.") and module_in(trees, name)[0] != module_in(trees, first)[0]:
                names.append((line, name))
        for line, name in names:
            if name.partition(".")[0] in {"tests", "tools", "lessons"} or name == COMPUTED:
                found.append(Import(module, line, name, ""))
            elif name.partition(".")[0] == "workbench":
                found.append(Import(module, line, *module_in(trees, name), functions.get(line, "")))
    return found


def room_of(module: str) -> str:
    """Return the room of a module: the longest name in the table that it begins with."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), module)


def wrong_directions(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the imports that the table does not allow."""
    problems = [
        f"{module}: has no place in the table" for module in trees if room_of(module) not in MAY_IMPORT
    ]
    for one in imports(trees):
        room, other = room_of(one.module), room_of(one.target)
        hides = one.name == "*"  # nobody can tell which module has it then
        if not hides and (other == room or other in MAY_IMPORT.get(room, set())):
            continue
        if (one.module, one.function, other) in LATE:
            continue
        if one.target == COMPUTED and one.module in MAY_COMPUTE:
            continue
        if room == "viz" and other in DRAWN and (one.target == ARITHMETIC or one.name[:1].isupper()):
            continue
        problems.append(str(one))
    return problems


def cycles(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the first ring of modules that import one another."""
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
    """Return the places outside `device` that ask what this machine has."""
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
    """Return the place of a module's folder among the layers; None if it is in none."""
    parts = module.split(".")
    folders = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((LAYERS.index(folder) for folder in folders if folder in LAYERS), None)


def test_a_layer_imports_those_below_it() -> None:
    trees = modules(WORKBENCH)
    assert {layer_of(module) for module in trees} == {None, *range(len(LAYERS))}
    upwards = []
    for one in imports(trees):
        layer, other = layer_of(one.module), layer_of(one.target)
        if layer is not None and other is not None and other > layer:
            upwards.append(str(one))
    assert upwards == []


def test_modules_have_no_import_cycle() -> None:
    assert cycles(modules(WORKBENCH)) == []


def test_only_the_module_device_asks_the_machine() -> None:
    trees = modules(WORKBENCH)
    assert questions(trees) == []
    assert questions({"elsewhere": trees["device"]})  # it does ask


def test_the_table_of_allowed_imports_has_no_cycle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()  # raises CycleError if there is a cycle
    assert set().union(*MAY_IMPORT.values()) <= set(MAY_IMPORT)


def tree(texts: Mapping[str, str]) -> dict[str, ast.Module]:
    """Return these modules, beside the rooms that they may name."""
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
        ("bench.baseline", "from workbench.operators import spec", "line 1: imports operators.spec"),
        ("bench.baseline", "importlib.import_module(x)", f"imports {COMPUTED}"),
        ("comparing", "from workbench import measured", "comparing, line 1: imports measured"),
        ("ops", "from workbench.bench import timing", "ops, line 1: imports bench.timing"),
        (
            "viz.roofline",
            "from workbench.bench.recording import load",
            "imports bench.recording.load",
        ),  # computed
        ("viz.roofline", "from workbench import bench", "viz.roofline, line 1: imports bench"),
        ("teach.check", "from workbench.viz import style", "teach.check, line 1: imports viz.style"),
        ("bench.timing", "from workbench import Launch", "bench.timing, line 1: imports __init__.Launch"),
        ("ops", "from workbench import profiler", "ops, line 1: imports profiler"),  # not late
        ("kernels.gemm", "def f():\n    from workbench import profiler", "imports profiler"),
        ("ops", "from tools import lessons", "ops, line 1: imports tools.lessons"),
        ("ops", "import tests.conftest", "ops, line 1: imports tests.conftest"),
        (
            "ops",
            "def f():\n    from workbench import profiler",
            "ops, line 2: imports profiler",
        ),  # not in best
        ("ops.profiled", "def best():\n    from workbench import profiler", "line 2: imports profiler"),
        ("ops", "importlib.import_module('workbench.tune')", "ops, line 1: imports tune"),
        ("ops", "importlib.import_module(name='workbench.tune')", "ops, line 1: imports tune"),
        ("ops", "import importlib as i\ni.import_module('workbench.tune')", "ops, line 2: imports tune"),
        ("ops", "from importlib import import_module as f\nf('workbench.tune')", "line 2: imports tune"),
        ("ops", "__import__('workbench.bench')", "ops, line 1: imports bench"),
        ("kernels.instances.gemm", "__import__('workbench.ops')", "line 1: imports ops"),
        ("kernels.instances.gemm", "importlib.import_module(x)", f"imports {COMPUTED}"),
        ("kernels.instances.gemm", "importlib.import_module(f'workbench.{x}')", f"imports {COMPUTED}"),
        ("kernels.instances.gemm", "importlib.import_module('.ops', 'workbench')", f"imports {COMPUTED}"),
        ("kernels.instances.gemm", "list(map(__import__, names))", f"imports {COMPUTED}"),
        ("kernels.gemm", "sys.modules['workbench.ops']", "line 1: imports ops"),
        ("kernels.gemm", "from sys import modules\nmodules.get('workbench.ops')", "line 2: imports ops"),
        ("kernels.gemm", "sys.modules[name]", f"imports {COMPUTED}"),
        (
            "kernels.gemm",
            "from workbench import kernels\ndef f():\n    kernels.instances.gemm.best()",
            "kernels.gemm, line 3: imports kernels.instances.gemm.best",
        ),  # exists once anybody has imported it
        ("kernels.gemm", "import workbench.kernels as k\nk.instances", "line 2: imports kernels.instances"),
        ("kernels.gemm", "import workbench.launch\nworkbench.ops.add", "line 2: imports ops.add"),
        ("kernels.gemm", "from .. import kernels as k\nk.instances", "line 2: imports kernels.instances"),
        ("kernels.gemm", "from workbench.kernels import *", "kernels.gemm, line 1: imports kernels.*"),
        ("ops", "from workbench.kernels import *", "ops, line 1: imports kernels.*"),  # a lower layer's too
        ("attic.old", "", "attic.old: has no place in the table"),
    ],
)
def test_imports_in_the_wrong_direction_are_found(module: str, text: str, said: str) -> None:
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
        ("ops.profiled", "def profiled():\n    def best():\n        from workbench import profiler"),
        ("ops", "from workbench import kernels\nkernels.instances.gemm.best()"),
        ("kernels.gemm", "from workbench import kernels\nkernels.tile.transfer.load()"),
        ("kernels.gemm", "import workbench.launch\nworkbench.launch.Launch"),
        ("viz.roofline", "from workbench.bench.recording import Line\nLine.of(1)"),
        ("operators.registry", "importlib.import_module(x)"),
        ("operators.gemm", "from workbench.bench import baseline"),
        ("lens.trace", "importlib.import_module('numpy')\n'numpy' in sys.modules"),
    ],
)
def test_imports_in_the_right_direction_are_allowed(module: str, text: str) -> None:
    assert wrong_directions(tree({module: text})) == []


def test_an_import_cycle_is_found() -> None:
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
def test_questions_to_the_machine_are_found(text: str) -> None:
    assert len(questions(tree({"lens.trace": text}))) == 1


def test_environment_variables_set_for_a_worker_are_allowed() -> None:
    assert questions(tree({"runtime.worker": "environment = {'TRITON_INTERPRET': '1'}"})) == []


def test_file_paths_become_module_names(tmp_path: Path) -> None:
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
