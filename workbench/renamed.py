"""Old names of modules and of their members, which keep working for one release, with a DeprecationWarning.

`from workbench import look` imports `workbench.explore.source`. A finder of Python's import system finds
renamed modules; :func:`find` finds renamed members of modules that still exist.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

# The new name of each module that has an old one, without `workbench.`.
MODULES = {
    "look": "explore.source",
    "attend": "explore.attention",
    "address": "explore.descriptors",
    "fuse": "explore.fusion",
    "landscape": "explore.instances",
    "lens.attention": "readings.attention",
    "lens.attention_gradients": "readings.attention_gradients",
    "lens.gemm_reads": "readings.gemm_reads",
    "lens.online_softmax": "readings.online_softmax",
    "kernels.gemm_hopper": "kernels.gemm.hopper",
    "kernels.gemm_hopper_pairs": "kernels.gemm.hopper_pairs",
    "kernels.gemm_hopper_wide": "kernels.gemm.hopper_wide",
    "kernels.gemm_pair": "kernels.gemm.pair",
    "kernels.gemm_gated": "kernels.gemm.gated",
    "kernels.gemm_rows": "kernels.gemm.rows",
    "kernels.grouped_gemm": "kernels.gemm.grouped",
    "kernels.products": "kernels.gemm.products",
    "kernels.attention_backward": "kernels.attention.backward",
    "kernels.attention_hopper": "kernels.attention.hopper",
    "kernels.attention_states": "kernels.attention.states",
    "kernels.attention_tiles": "kernels.attention.tiles",
    "kernels.attention_unfused": "kernels.attention.unfused",
    "kernels.implicit_gemm": "kernels.convolution.implicit_gemm",
    "kernels.pooling": "kernels.convolution.pooling",
    "kernels.transfer": "kernels.movement.transfer",
    "kernels.view_transfer": "kernels.movement.view_transfer",
    "kernels.rearrangement": "kernels.movement.rearrangement",
    "kernels.elementwise": "kernels.pointwise.elementwise",
    "kernels.epilogues_unfused": "kernels.pointwise.epilogues_unfused",
    "kernels.rowwise": "kernels.rows.rowwise",
    "kernels.softmax": "kernels.rows.softmax",
    "kernels.softmax_states": "kernels.rows.softmax_states",
    "kernels.normalization": "kernels.rows.normalization",
    "kernels.group_norm": "kernels.rows.group_norm",
    "kernels.batch_norm": "kernels.rows.batch_norm",
    "kernels.cross_entropy": "kernels.rows.cross_entropy",
    "kernels.reduction": "kernels.rows.reduction",
    "kernels.ladder": "teach.rungs.ladder",
    "kernels.gemm_ladder": "teach.rungs.gemm_ladder",
    "kernels.attention_ladder": "teach.rungs.attention_ladder",
    "kernels.row_ladder": "teach.rungs.row_ladder",
    "kernels.view_ladder": "teach.rungs.view_ladder",
    "kernels.reduction_levels": "teach.rungs.reduction_levels",
    "kernels.instances.operation": "operators.spec",
    "operators.operation": "operators.spec",
    "profiler.verifying": "operators.judging",
    "compiler_repairs": "compat.compiler",
    "interpreted_libdevice": "interpreter.libdevice",
    "interpreted_numbers": "interpreter.numbers",
    "interpreted_undefined": "compat.undefined",
    "promises": "interpreter.promises",
}

# Modules that moved from `kernels.instances` to `operators`.
_OF_OPERATORS = "elementwise normalization rearrangement reduction row_tiles softmax transfer"
# Modules that moved from `viz` to a package of `viz`, by package.
_OF_VIZ = {
    "attention": "attention_bytes attention_gradients attention_stepper attention_tiles",
    "base": "canvas labels panel_figure panels style widget words",
    "code": "code_text compiled_lines line_facts listing source_figure source_widget vector_widths",
    "coords": "descriptor graph_layout image_tile",
    "gemm": "fusion_explorer gemm_map instance_landscape tile_explorer waves",
    "layouts": "bank_strips layout_maps reduction_trees row_holders sector_strips strip_figure",
    "numerics": "softmax_stepper",
    "roofline": "points roofline_widget",
    "traces": "accesses heat_maps tile_map trace_maps",
}
MODULES |= {f"kernels.instances.{name}": f"operators.{name}" for name in _OF_OPERATORS.split()}
MODULES |= {f"viz.{name}": f"viz.{room}.{name}" for room, names in _OF_VIZ.items() for name in names.split()}

# The new name of each member of a module that still exists, without `workbench.`.
MEMBERS = {
    "bench.accuracy.of_arithmetic": "bench.accuracy.allowed_relative_error",
    "bench.baseline.lengths_of": "measured.lengths_of",
    "bench.data.drawn": "bench.data.draw",
    "bench.data.whole": "bench.data.to_int8",
    "kernels.instances.gemm.asked_of": "kernels.choosing.gemm.asked_of",
    "kernels.instances.gemm.choose": "kernels.choosing.gemm.choose",
    "kernels.rows.rowwise.Operator": "kernels.rows.rowwise.RowOperator",
    "explore.tile": "explore.tiles.tile",
    "explore.tile_sizes": "explore.tiles.tile_sizes",
    "explore.intensity": "explore.tiles.intensity",
    "lens.attention_bytes": "readings.attention.attention_bytes",
    "operators.spec.Operation": "operators.spec.OperatorSpec",
    "operators.spec.listed": "operators.spec.list_instances",
    "operators.spec.of_convolutions": "operators.accuracy.convolution_precision",
    "operators.spec.of_products": "operators.accuracy.matmul_precision",
    "operators.spec.operations": "operators.registry.specs",
    "operators.spec.sum_of": "operators.accuracy.sum_accuracy",
    "profiler.default_sizes": "profiler.problem.default_case",
    "profiler.problem.default_sizes": "profiler.problem.default_case",
}
# Members of `operators.operation`, which is found as `operators.spec`, by their module in `operators`.
_OF_OPERATION = {
    "accuracy": "EXACT convolution_precision largest matmul_precision precision_of sum_accuracy",
    "arguments": "Draw given",
    "instance": "instances_of",
    "registry": "register",
}
MEMBERS |= {
    f"operators.spec.{name}": f"operators.{module}.{name}"
    for module, names in _OF_OPERATION.items()
    for name in names.split()
}
# These modules of `viz` are now packages, each with a module of its name.
_IN_PACKAGES = {
    "numerics": (
        "NumericsWidget describe_summation_errors describe_variance_errors summation_errors variance_errors"
    ),
    "roofline": "bandwidth_figure describe describe_bandwidth roofline_figure",
}
MEMBERS |= {
    f"viz.{package}.{name}": f"viz.{package}.{package}.{name}"
    for package, names in _IN_PACKAGES.items()
    for name in names.split()
}


class _Loader(importlib.abc.Loader):
    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"workbench.{MODULES[old.removeprefix('workbench.')]}"
        _warn(old, new, stacklevel=3)  # Python leaves out the frames of the import system
        # The import system takes the module that it finds here from the one that it began.
        sys.modules[old] = importlib.import_module(new)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith("workbench.") and fullname.removeprefix("workbench.") in MODULES:
            return importlib.machinery.ModuleSpec(fullname, _Loader())
        return None


def install() -> None:
    """Let `import` find modules by their old names; do nothing if it does already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def find(package: str, name: str) -> object:
    """Return the object whose old name is `package.name`, with a DeprecationWarning.

    The `__getattr__` of a module or package calls it.

    Args:
        package: the full name of the module or package, such as "workbench.viz".
        name: the attribute that was asked for.

    Raises:
        AttributeError: no object had this name.
    """
    old = f"{package.removeprefix('workbench.')}.{name}"
    if old not in MODULES and old not in MEMBERS:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    new = f"workbench.{MODULES.get(old) or MEMBERS[old]}"
    _warn(f"{package}.{name}", new, stacklevel=4)  # the caller of the package's `__getattr__`
    if old in MODULES:
        return importlib.import_module(new)
    module, _, member = new.rpartition(".")
    return getattr(importlib.import_module(module), member)


def _warn(old: str, new: str, *, stacklevel: int) -> None:
    warnings.warn(f"{old} is now {new}.", DeprecationWarning, stacklevel=stacklevel)
