"""Old names of modules and functions still work, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from workbench import coords, explore, lens, measured, operators, profiler, readings, renamed
from workbench.bench import accuracy, baseline, data
from workbench.kernels import choosing, instances
from workbench.kernels.rows import rowwise
from workbench.operators import spec
from workbench.profiler import problem


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget modules that a test imported by old names, so that the next test imports them anew."""
    yield
    for old in renamed.MODULES:
        if sys.modules.pop(f"workbench.{old}", None):
            package, _, name = f"workbench.{old}".rpartition(".")
            delattr(sys.modules[package], name)


@pytest.mark.parametrize("old", renamed.MODULES)
def test_old_name_gives_the_module_itself(old: str) -> None:
    new = importlib.import_module(f"workbench.{renamed.MODULES[old]}")
    before = new.__spec__
    with pytest.warns(DeprecationWarning, match=rf"workbench\.{old} is now {new.__name__}\."):
        assert importlib.import_module(f"workbench.{old}") is new
    assert new.__spec__ is before


def test_old_name_of_a_member_warns_and_gives_the_member() -> None:
    with pytest.warns(DeprecationWarning, match=r"workbench\.explore\.tile_sizes is now"):
        assert explore.tile_sizes is explore.tiles.tile_sizes
    with pytest.warns(DeprecationWarning, match=r"workbench\.bench\.data\.whole is now .*\.to_int8\."):
        assert data.whole is data.to_int8
    with pytest.warns(DeprecationWarning, match=r"workbench\.bench\.data\.drawn is now .*\.draw\."):
        assert data.drawn is data.draw
    with pytest.warns(DeprecationWarning, match=r"accuracy\.of_arithmetic is now"):
        assert accuracy.of_arithmetic is accuracy.allowed_relative_error
    with pytest.warns(DeprecationWarning, match=r"instances\.gemm\.choose is now .*\.choosing\.gemm"):
        assert instances.gemm.choose is choosing.gemm.choose
    with pytest.warns(DeprecationWarning, match=r"operators\.spec\.listed is now"):
        assert spec.listed is spec.list_instances
    with pytest.warns(DeprecationWarning, match=r"profiler\.default_sizes is now .*\.default_case"):
        assert profiler.default_sizes is profiler.default_case
    with pytest.warns(DeprecationWarning, match=r"baseline\.lengths_of is now workbench\.measured\."):
        assert baseline.lengths_of is measured.lengths_of
    with pytest.warns(DeprecationWarning, match=r"workbench\.lens\.gemm_reads is now"):
        assert lens.gemm_reads is readings.gemm_reads


def test_every_old_name_of_a_member_gives_the_new_member() -> None:
    for old, new in renamed.MEMBERS.items():
        package, _, name = f"workbench.{old}".rpartition(".")
        module, _, member = f"workbench.{new}".rpartition(".")
        with pytest.warns(DeprecationWarning, match=rf"workbench\.{old} is now workbench\.{new}\."):
            found = getattr(importlib.import_module(package), name)
        assert found is getattr(importlib.import_module(module), member)


OF_OPERATION = (
    "EXACT FLOATS Accuracy Arguments Draw Instance Operation convolution_precision given gradients_of "
    "instances_of largest list_instances matmul_precision operations precision_of register sum_accuracy"
)


@pytest.mark.parametrize("old", ["operators.operation", "kernels.instances.operation"])
def test_every_member_is_found_in_a_module_whose_members_moved_to_several(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{old} is now workbench\.operators\.spec"):
        module = importlib.import_module(f"workbench.{old}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = {name: getattr(module, name) for name in OF_OPERATION.split()}
    everything = vars(operators) | vars(spec) | vars(operators.accuracy)
    renamed_too = {"Operation": operators.OperatorSpec, "operations": operators.specs}
    assert all(one is renamed_too.get(name, everything.get(name)) for name, one in found.items())


def test_the_warning_names_the_line_of_the_caller() -> None:
    """Python shows such a warning by default only if its line is in a notebook cell or script."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from workbench.explore import tile_sizes  # noqa: F401

        _ = explore.intensity, lens.gemm_reads, data.whole
    assert {each.filename for each in caught} == {__file__}
    assert len({each.lineno for each in caught}) == 2


def test_old_name_of_a_method_warns() -> None:
    descriptor = coords.packed((2, 3))
    with pytest.warns(DeprecationWarning, match=r"asked\(\) is now symbolic_indices\(\)"):
        assert descriptor.asked() == descriptor.symbolic_indices()


@pytest.mark.parametrize("package", [lens, explore, accuracy, baseline, spec, profiler, problem, rowwise])
def test_name_that_never_was_is_an_error(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_imports_by_old_names_work_and_warn() -> None:
    """The first cell of a notebook with the old name works."""
    code = "from workbench import look\nfrom workbench.kernels import attention_backward\nlook.source_lens"
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "workbench.look is now workbench.explore.source." in done.stderr
    assert "workbench.kernels.attention_backward is now workbench.kernels.attention.backward." in done.stderr
