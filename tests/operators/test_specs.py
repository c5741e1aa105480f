"""Every operator, by its spec: results and baselines, work, parts, cases, names and its line in the docs.

Run with the environment variable `WORKBENCH_OPERATORS`, these are also the tests of the pages in that folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench import comparing, documentation, ops, profiler, suites
from workbench.bench import baseline, recording
from workbench.device import current
from workbench.errors import InvalidArgumentError
from workbench.operators import OperatorSpec, named, registry, specs
from workbench.operators.arguments import Arguments, tensors_of
from workbench.operators.drawing import draw_arguments
from workbench.operators.judging import judge, judge_of
from workbench.operators.spec import list_instances

NAMES = tuple(specs())
# torch gives their results other strides on a CPU than on a GPU.
OF_THE_DEVICE = ("conv3d", "scaled_dot_product_attention_backward")
DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"


def small(spec: OperatorSpec, dtype: str) -> Arguments:
    """Return the arguments of the operator's small case."""
    return draw_arguments(spec, spec.defaults(is_gpu=False), dtype, current().torch_device)


def results_of(call: Any) -> list[torch.Tensor]:
    """Return a call's results as a list."""
    result = call()
    return [result] if isinstance(result, torch.Tensor) else list(result)


def dtypes_of(spec: OperatorSpec) -> Sequence[str]:
    """Return the dtypes that the interpreter computes, and that the operator's function takes."""
    return [dtype for dtype in spec.dtypes if dtype not in ("fp8_e4m3", "int8")]


@cache
def page() -> str:
    """Return the documentation of all operators."""
    return documentation.page()


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_meaning(name: str) -> None:
    spec = named(name)
    for dtype in dtypes_of(spec):
        arguments = small(spec, dtype)
        found = results_of(comparing.our_call_of(spec, arguments))
        assert judge(spec, arguments, found) == "", dtype


@pytest.mark.parametrize("name", NAMES)
def test_torch_gives_the_same(name: str) -> None:
    spec = named(name)
    for dtype in dtypes_of(spec):
        arguments = small(spec, dtype)
        assert judge(spec, arguments, results_of(comparing.call_of("torch", spec, arguments))) == "", dtype


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_THE_DEVICE])
def test_results_have_torchs_strides(name: str) -> None:
    spec = named(name)
    arguments = small(spec, "fp32")
    ours, torchs = (
        [each.stride() for each in results_of(call)]
        for call in (comparing.our_call_of(spec, arguments), comparing.call_of("torch", spec, arguments))
    )
    assert ours == torchs


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_launch_gives_the_same(name: str) -> None:
    spec = named(name)
    arguments = small(spec, "fp32")
    shipped = list_instances(spec, arguments)[0]
    assert judge_of(spec, arguments)(shipped.launch().run()) == ""


@pytest.mark.parametrize("name", NAMES)
def test_errors_at_both_ends_of_each_result_are_found(name: str) -> None:
    """The parts that are compared have the first and the last element of every result."""
    spec = named(name)
    arguments = small(spec, "fp32")
    found = results_of(comparing.call_of("torch", spec, arguments))
    for which in range(len(found)):
        for place in (0, -1):
            wrong = [each.clone(memory_format=torch.contiguous_format) for each in found]
            flat = wrong[which].view(-1)
            flat[place] = ~flat[place] if flat.dtype == torch.bool else flat[place] * 2 + 100
            assert judge(spec, arguments, wrong) != "", (which, place)
    assert judge(spec, arguments, found[:-1]) != ""


@pytest.mark.parametrize("name", NAMES)
def test_the_work_is_known_without_memory(name: str) -> None:
    """Work on a GPU's case reads every tensor and writes something."""
    spec = named(name)
    arguments = draw_arguments(spec, spec.defaults(is_gpu=True), spec.dtypes[0], "meta")
    work = spec.work_of(arguments)
    assert work is not None
    assert work.flops >= 0
    assert work.bytes > max(each.nbytes for each in tensors_of(arguments))
    for part in spec.parts(arguments):
        assert all(tensors_of(call) for call in part.calls)


@pytest.mark.parametrize("name", NAMES)
def test_cases_are_those_of_recordings(name: str) -> None:
    spec = named(name)
    for is_gpu in (False, True):
        case = {k: list(v) if isinstance(v, tuple) else v for k, v in spec.defaults(is_gpu).items()}
        recording.check_case(case)
        assert recording.in_short(case)
        assert spec.completed({k: v for k, v in case.items() if k not in spec.optional}).keys() == case.keys()
    with pytest.raises(InvalidArgumentError, match="Give these and no others"):
        spec.completed({**spec.defaults(is_gpu=True), "no_such_key": 1})
    assert profiler.arguments_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_known(name: str) -> None:
    spec = named(name)
    for operator in spec.aten:
        packet, _, overload = operator.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default") or not overload, operator
    assert set(spec.baselines) <= set(baseline.BASELINES)
    if spec.of is None:
        assert callable(comparing.function_of(spec))
    else:
        assert spec.argnums
        assert spec.of.name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_suites_measure_it_and_the_docs_list_it(name: str) -> None:
    assert name in {case.op for case in suites.get("operators").cases}
    assert f"| `{name}` |" in page()


def test_every_function_of_ops_has_a_page() -> None:
    assert set(ops.__all__) <= set(NAMES)


def test_the_document_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_OPERATORS", raising=False)
    monkeypatch.setattr(registry, "_registered", {})
    assert DOCUMENT.read_text() == documentation.page()
