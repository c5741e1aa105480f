"""The fuzz: a short run of every operator, and tests of its drawing, judging, shrinking and runs."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.everything import all_is_tested
from tests.fuzz import differences, planted, running
from tests.fuzz.cases import Call, Case, Mode
from tests.fuzz.differences import Listed
from tests.fuzz.draws import INTERPRETED, ON_GPU
from tests.fuzz.judging import _BentElsewhere, _has_a_format, judge
from tests.fuzz.operators import NOT_DRAWN, OPERATORS, drawn
from tests.fuzz.running import Plan, command_of, run, run_case
from tests.fuzz.shrinking import candidates, shrink
from tests.fuzz.tensors import Layout, TensorSpec, tensor
from tools import fuzz
from workbench import ops

# A fixed seed, so that only the change under test can fail; `make gpu-fuzz` draws a new one each time.
SEED = 11
CASES = 40 if all_is_tested() else 1

PLAIN = TensorSpec((4, 9), requires_grad=True)


def of_sum(spec: TensorSpec = PLAIN, mode: Mode = Mode(), **options: Any) -> Case:  # noqa: B008  # frozen
    return Case("sum", (Call({"input": spec}, options, mode),))


def kinds(case: Case, ours: Callable[..., Any]) -> list[str]:
    return [finding.kind for finding in judge(case, "cpu", ours).findings]


def test_every_operator_is_drawn_or_listed_with_a_reason() -> None:
    assert OPERATORS.keys() | NOT_DRAWN.keys() == set(ops.__all__)
    assert not OPERATORS.keys() & NOT_DRAWN.keys()
    assert all(NOT_DRAWN.values())


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_agrees_with_torch(name: str) -> None:
    wrong = []
    plan = Plan(SEED, (name,))
    for number in range(CASES):
        record = run_case(plan, number)
        assert record.operator == name
        if record.outcome != "passed":
            wrong.append(running.failure_text(record))
    assert not wrong, "\n".join(wrong)


# Drawing.


@pytest.mark.parametrize("limits", [INTERPRETED, ON_GPU], ids=["interpreted", "on a GPU"])
def test_cases_are_reproducible_and_of_limited_size(limits: Any) -> None:
    for number in range(0, 200 * limits.members, limits.members - 1):
        case = drawn(SEED, number, limits)
        assert case == drawn(SEED, number, limits)
        assert case == Case.from_json(case.to_json())
        assert 1 <= len(case.calls) <= 4
        for call in case.calls:
            assert all(spec.layout.strides(spec.shape) for spec in call.tensors.values() if spec.shape)
            assert all(
                torch.Size(spec.shape).numel() <= 64 * limits.elements for spec in call.tensors.values()
            )


def test_cases_of_a_group_differ_in_sizes_alone() -> None:
    """Cases of a group share dtypes, layouts, modes and options, and so most of their compiled kernels."""
    for group in range(20):
        first, *others = (
            drawn(SEED, group * ON_GPU.members + member, ON_GPU, ["softmax"]) for member in range(6)
        )
        for other in others:
            assert [call.mode for call in other.calls] == [call.mode for call in first.calls]
            for one, another in zip(first.calls, other.calls, strict=True):
                assert one.options == another.options
                assert one.tensors["input"].dtype == another.tensors["input"].dtype
                assert one.tensors["input"].layout == another.tensors["input"].layout
        shapes = {case.calls[0].tensors["input"].shape for case in (first, *others)}
        assert len(shapes) > 1 or all(max(shape, default=1) <= 1 for shape in shapes)


def test_every_mode_layout_value_and_size_is_drawn() -> None:
    """800 cases also have sizes of 0 and 1, threads and streams."""
    cases = [drawn(SEED, number, INTERPRETED) for number in range(0, 1600, 2)]
    calls = [call for case in cases for call in case.calls]
    specs = [spec for call in calls for spec in call.tensors.values()]
    assert {call.mode.grad for call in calls} == {"grad", "no_grad", "inference"}
    assert {call.mode.autocast for call in calls} == {"", "float16", "bfloat16"}
    for switch in ("tf32", "deterministic", "one_gradient"):
        assert {getattr(call.mode, switch) for call in calls} == {True, False}
    assert {case.threads for case in cases} == {1, 2}
    threaded = [
        [(call.mode.tf32, call.mode.deterministic) for call in case.calls]
        for case in cases
        if case.threads > 1
    ]
    assert all(len(set(switches)) == 1 for switches in threaded)
    assert any(len(switches) > 1 for switches in threaded)
    assert {case.on_stream for case in cases} == {True, False}
    lengths = {n for spec in specs for n in spec.shape}
    assert {0, 1, 2, 7, 13, 15, 16, 17, 31, 33} <= lengths
    layouts = [spec.layout for spec in specs]
    for part in ("order", "steps", "gap", "expanded", "offset"):
        assert any(getattr(layout, part) for layout in layouts)
    assert {"float16", "bfloat16", "float32", "float64", "int64", "int8", "bool"} <= {s.dtype for s in specs}
    assert {"normal", "special", "whole", "large_mean", "zeros"} <= {spec.values for spec in specs}


def test_memory_beside_a_tensor_is_nan() -> None:
    layout = Layout(order=(1, 0), steps=(2, 1), gap=3, offset=5)
    made = TensorSpec((4, 3), "float16", layout).make("cpu", 0)
    memory = made.as_strided((made.untyped_storage().nbytes() // 2,), (1,), 0)
    assert made.stride() == layout.strides((4, 3)) == (2, 11)
    assert made.data_ptr() % 16 == 10
    assert not made.isnan().any()
    assert int((~memory.isnan()).sum()) == made.numel()
    expanded = tensor((2, 3), strides=(0, 1))
    assert torch.equal(expanded[0], expanded[1])


# Judging.


def test_a_wrong_operator_is_found_and_shrunk() -> None:
    spec = TensorSpec(
        (6, 40), "bfloat16", Layout(order=(1, 0), offset=3), values="large_mean", requires_grad=True
    )
    mode = Mode("inference", tf32=True, deterministic=True)
    case = Case("sum", (of_sum().calls[0], Call({"input": spec}, {"dim": 1, "keepdim": True}, mode)), 2, True)
    assert "accuracy" in kinds(case, planted.forgetful_sum)
    smallest = shrink(case, lambda each: "accuracy" in kinds(each, planted.forgetful_sum))
    (call,) = smallest.calls
    assert (smallest.threads, smallest.on_stream, call.mode, call.options) == (1, False, Mode(), {})
    shape = call.tensors["input"].shape
    assert (call.tensors["input"].layout, shape[-1], len(shape)) == (Layout(), 8, 2)
    assert shape[0] <= 2
    assert not judge(smallest, "cpu").findings


def test_shrinking_ends_and_keeps_a_case_without_smaller_failures() -> None:
    case = of_sum(dim=1)
    asked: list[Case] = []

    def never(candidate: Case) -> bool:
        asked.append(candidate)
        return False

    assert shrink(case, never) is case
    assert len(asked) == len([*candidates(case)])
    asked.clear()
    assert shrink(case, never, attempts=3) is case
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(planted.writing_sum, "changed"), (planted.wide_sum, "dtype"), (planted.forgetful_sum, "accuracy")],
)
def test_changed_inputs_dtypes_and_values_are_compared(wrong: Callable[..., Any], kind: str) -> None:
    assert kinds(of_sum(dim=1), wrong)[0] == kind
    assert not kinds(of_sum(dim=1), ops.sum)


def test_strides_gradients_and_flags_are_compared() -> None:
    transposed = TensorSpec((3, 4), layout=Layout(order=(1, 0)))
    case = Case("clone", (Call({"input": transposed}),))
    assert kinds(case, lambda input: input.contiguous().clone()) == ["strides"]
    assert kinds(of_sum(), lambda input: ops.sum(input).detach()) == ["requires_grad"]
    assert "accuracy" in kinds(of_sum(), lambda input: ops.sum(input) + 0.01 * (input - input.detach()).sum())
    inference = of_sum(mode=Mode("inference"))
    assert kinds(inference, lambda input: torch.zeros(()) + input.tolist()[0][0]) == ["accuracy"]
    special = Case("flip", (Call({"input": replace(PLAIN, values="special", shape=(40, 9))}, {"dims": [0]}),))
    assert "kind of number" in kinds(special, lambda input, dims: ops.flip(input, dims).nan_to_num())


def test_a_result_asked_for_in_a_narrow_dtype_may_be_rounded_to_it() -> None:
    """The gradient of a float64 input may be rounded to float32 too, if float32 was asked for."""
    call = Call(
        {"input": replace(PLAIN, shape=(8,), dtype="float64")},
        {"dim": -1, "dtype": "torch.float32"},
        Mode(one_gradient=True),
    )

    def in_float32(input: torch.Tensor, dim: int, dtype: torch.dtype, error: float = 0.0) -> torch.Tensor:
        powers = torch.exp(input.to(dtype) - input.max().to(dtype))
        return powers / powers.sum(dim, keepdim=True) * (1 + error)

    case = Case("softmax", (call,))
    assert not kinds(case, in_float32)
    assert {*kinds(case, lambda **given: in_float32(**given, error=1e-5))} == {"accuracy"}


def test_near_0_the_gradient_of_relu_may_be_0_or_1() -> None:
    half = TensorSpec((47, 16), "float16", requires_grad=True)
    tensors = {"input": half, "other": replace(half, shape=(16, 47))}
    call = Call(tensors, {"epilogue": [["relu"]]}, Mode(one_gradient=True))

    def bent_at(share: float) -> Callable[..., torch.Tensor]:
        def product(input: torch.Tensor, other: torch.Tensor, epilogue: Any) -> torch.Tensor:
            product = torch.matmul(input, other)
            kept = product * (product > share * product.abs().max())
            return kept + (torch.relu(product) - kept).detach()

        return product

    case = Case("fused_matmul", (call,))
    assert not kinds(case, bent_at(2e-4))
    assert kinds(case, bent_at(0.2)) == ["accuracy", "accuracy"]


def test_a_float64_gradient_of_a_norm_is_judged_by_the_terms_that_cancel() -> None:
    """torch's own gradient has an error of a hundred rounding steps if two elements are nearly equal."""
    narrow = TensorSpec((5, 4, 2), "float64", requires_grad=True)
    case = Case(
        "group_norm", (Call({"input": narrow}, {"num_groups": 4}),) * 4
    )  # each call has other numbers

    def subtracted_first(input: torch.Tensor, num_groups: int, error: float = 0.0) -> torch.Tensor:
        mean = input.view(5, num_groups, -1).mean(-1, keepdim=True).expand(5, num_groups, 2)
        result = F.group_norm(input - mean.reshape(input.shape), num_groups)
        return result + error * (result - result.detach())

    assert kinds(case, subtracted_first) == []
    assert kinds(case, partial(subtracted_first, error=1e-8)) == ["accuracy"] * 4


@pytest.mark.parametrize(
    ("strides", "is_one"),
    [
        ((4, 2, 2, 1), True),
        ((4, 1, 4, 2), True),
        ((20, 1, 4, 2), True),
        ((4, 1, 1, 2), False),
        ((8, 4, 4, 2), False),
    ],
    ids=str,
)
def test_strides_of_a_memory_format_are_recognized(strides: tuple[int, ...], is_one: bool) -> None:
    """torch suggests contiguous for (4, 1, 1, 2) because it also reads the stride of a height of one."""
    assert _has_a_format(torch.empty(8).as_strided((1, 2, 1, 2), strides)) == is_one


def test_a_batch_norm_with_given_statistics_is_judged_strictly() -> None:
    """With given statistics the float64 result is exact to rounding, even for nearly equal elements."""
    few = TensorSpec((3,), "float64")
    tensors = {"input": replace(few, shape=(1, 3, 1, 1), values="large_mean"), "bias": few}
    running = {"running_mean": few, "running_var": replace(few, values="positive")}
    case = Case("batch_norm", (Call(tensors | running, {"training": False}),))
    torchs = OPERATORS["batch_norm"].torchs

    def rounded(**given: Any) -> Any:
        return torchs(**given | {"bias": given["bias"].float().double()})

    assert kinds(case, torchs) == []
    assert kinds(case, rounded) == ["accuracy"]


@pytest.mark.parametrize("autocast", ["", "float16"])
def test_gradients_under_autocast_may_be_rounded_to_its_dtype(autocast: str) -> None:
    single = TensorSpec((4, 3), "float32", requires_grad=True)
    call = Call({"input": single, "other": replace(single, shape=(3, 4))}, {}, Mode(autocast=autocast))

    def rounded(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.matmul(input, other + 0.0003 * (other - other.detach()))

    case = Case("matmul", (call,))
    assert kinds(case, torch.matmul) == []
    assert kinds(case, rounded) == ([] if autocast else ["accuracy"])


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_either_of_two_nearly_largest_elements_may_have_the_gradient(name: str) -> None:
    x = torch.tensor([[1.0, 0.95, 0.2], [0.5, 0.1, 1.0], [-0.3, -1.0, -0.97]], dtype=torch.float64)
    x = (x if name == "amax" else -x).requires_grad_()
    with _BentElsewhere(0.1):
        result = getattr(torch, name)(x, dim=-1)
    assert torch.equal(result, getattr(torch, name)(x, dim=-1))
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert grad.argmax(-1).tolist() == [1, 2, 0]


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_gradient_of_an_element_that_is_not_the_largest_is_wrong(share: float) -> None:
    single = TensorSpec((64, 24), "float32", requires_grad=True)
    tensors = {"input": single, "other": replace(single, shape=(24, 48))}

    def second_within(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = torch.matmul(input, other)
        best, places = product.topk(2, -1)
        is_near = best[:, 0] - best[:, 1] < share * product.abs().max()
        kept = product.gather(-1, torch.where(is_near, places[:, 1], places[:, 0])[:, None])[:, 0]
        return kept + (product.amax(-1) - kept).detach()

    case = Case("matmul_amax", (Call(tensors, {}, Mode(one_gradient=True)),))
    assert set(kinds(case, second_within)) == ({"accuracy"} if share else set())


def test_a_near_tie_hides_no_wrong_gradient_of_other_rows() -> None:
    """In some of the 64 rows two elements are equal to the rounding of bfloat16; in others one is largest."""
    narrow = TensorSpec((64, 24), "bfloat16", requires_grad=True)
    tensors = {"input": narrow, "other": replace(narrow, shape=(24, 48))}
    case = Case("matmul_amax", (Call(tensors, {}, Mode()),))

    def chosen(share: float) -> Callable[..., torch.Tensor]:
        def function(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            product = input.float() @ other.float()
            best, places = product.topk(2, -1)
            is_near = best[:, 0] - best[:, 1] < share * product.abs().max()
            kept = product.gather(-1, torch.where(is_near, places[:, 1], places[:, 0])[:, None])[:, 0]
            return (kept + (product.amax(-1) - kept).detach()).bfloat16()

        return function

    def without_gradient(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = input @ other
        return product.amax(-1).detach() + 0 * product.sum(-1)

    assert set(kinds(case, chosen(0.0))) == set()
    assert set(kinds(case, chosen(0.99 * 2**-7))) == set()  # either is right
    assert set(kinds(case, chosen(1.0))) == {"accuracy"}
    assert set(kinds(case, without_gradient)) == {"accuracy"}


def test_dtypes_that_the_cpu_lacks_are_compared_with_the_devices_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU cannot pad booleans by reflection, for example; such results are exact: nothing is rounded."""
    calls = []

    def once(input: torch.Tensor, dims: Any) -> torch.Tensor:
        calls.append(dims)
        if len(calls) % 2 == 0:
            raise NotImplementedError("not implemented for 'Int'")
        return torch.flip(input, dims)

    monkeypatch.setitem(OPERATORS, "flip", OPERATORS["flip"]._replace(torchs=once))
    case = Case("flip", (Call({"input": TensorSpec((2, 3), "int32")}, {"dims": [0]}, Mode()),))
    assert kinds(case, torch.flip) == []
    assert kinds(case, lambda input, dims: torch.flip(input, dims) + 1) == ["accuracy"]
    floats = replace(case, calls=(Call({"input": TensorSpec((2, 3), "float32")}, {"dims": [0]}, Mode()),))
    assert kinds(floats, torch.flip) == ["fuzz"]


def test_an_unlisted_refusal_fails_and_a_listed_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = of_sum(replace(PLAIN, layout=Layout(order=(1, 0))))
    verdict = judge(case, "cpu", planted.choosy_sum)
    assert [finding.kind for finding in verdict.findings] == ["refusal"]
    assert "TensorMismatchError: input: strides" in verdict.findings[0].words
    assert verdict.refusals == ["sum: TensorMismatchError: input: strides (...). Give a contiguous tensor."]
    listed = Listed("sum on cpu: refusal: .*strides", "It is choosy.")
    monkeypatch.setattr(differences, "LISTED", (listed,))
    verdict = judge(case, "cpu", planted.choosy_sum)
    assert (verdict.findings, verdict.listed) == ([], ["sum: refusal: It is choosy."])
    assert len(verdict.refusals) == 1


def test_calls_that_torch_refuses_are_counted() -> None:
    case = of_sum(dim=7)
    assert judge(case, "cpu").refused_by_both == 1
    assert kinds(case, lambda input, dim: (_ for _ in ()).throw(ValueError("dim"))) == ["error"]
    lenient = judge(case, "cpu", lambda input, dim: ops.sum(input))
    assert len(lenient.lenient) == 1
    assert lenient.lenient[0].startswith("sum: IndexError: Dimension out of range")


def test_listed_differences_have_reasons() -> None:
    assert all(each.why.endswith(".") and each.pattern for each in differences.LISTED)


# Printing.


def test_the_text_of_a_case_runs() -> None:
    """The texts of twelve cases run without an error."""
    checked = 0
    for number in range(0, 400, 2):
        case = drawn(SEED, number, INTERPRETED)
        if case.threads > 1 or any(call.mode.deterministic or call.mode.tf32 for call in case.calls):
            continue
        verdict = judge(case, "cpu")
        if verdict.refused_by_both or verdict.lenient or verdict.listed:
            continue
        exec(case.text(), {})
        checked += 1
        if checked == 12:
            break
    assert checked == 12


def test_a_failing_case_has_the_command_that_repeats_it() -> None:
    plan = Plan(SEED, ("sum",), planted="sum=tests.fuzz.planted:wide_sum")
    record = run_case(plan, 6)
    assert record.command == f"python -m tools.fuzz --seed {SEED} --case 6 --operators sum"
    assert command_of(Plan(3, members=4), 9) == "python -m tools.fuzz --seed 3 --case 9 --members 4"


# Runs.


def test_a_run_prints_failures_and_counts() -> None:
    said: list[str] = []
    output = io.StringIO()
    plan = Plan(SEED, ("max", "sum"), cases=16, planted="sum=tests.fuzz.planted:wide_sum")
    summary = run(plan, say=said.append, output=output)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(lines) == len(summary.records) == 16
    assert {line["number"] for line in lines} == set(range(16))
    assert {line["operator"] for line in lines if line["outcome"] == "failed"} == {"sum"}
    assert len(said) == len(summary.failures) > 0
    assert f"--seed {SEED} --case " in said[0]
    assert "ops.sum(input=input" in said[0]
    text = summary.text()
    assert "16 cases" in text
    assert f"{len(summary.failures)} failed" in text
    assert {line.split()[0] for line in text.splitlines()[1:3]} == {"max", "sum"}


def test_a_crash_is_a_failure_and_other_cases_go_on() -> None:
    said: list[str] = []
    plan = Plan(SEED, ("amax", "sum"), cases=4, planted="sum=tests.fuzz.planted:crashing_sum")
    summary = run(plan, say=said.append)
    assert len(summary.records) == 4
    of_sums = [record for record in summary.records if record.operator == "sum"]
    assert of_sums
    assert all(record.findings == [("crash", "the process ended with status 7")] for record in of_sums)
    assert all(record.outcome == "passed" for record in summary.records if record.operator == "amax")


def test_a_crash_in_torch_is_not_judged() -> None:
    worker: Any = SimpleNamespace(
        number=0, process=SimpleNamespace(exitcode=-11), since=time.monotonic(), is_torchs_turn=True
    )
    record = running._lost(Plan(SEED, ("sum",)), worker)
    assert (record.outcome, record.lenient) == (
        "not judged",
        ["sum: torch ended the process, with status -11"],
    )
    worker.is_torchs_turn = False
    record = running._lost(Plan(SEED, ("sum",)), worker)
    assert (record.outcome, record.findings[0][0]) == ("failed", "crash")
    turns: list[str] = []

    def ours(**given: Any) -> torch.Tensor:
        turns.append("ours")
        return ops.sum(**given)

    judge(of_sum(), "cpu", ours, torch_begins=lambda: turns.append("torch's"))
    assert turns == ["ours", "torch's"]


def test_a_run_and_a_case_end_at_their_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of a run ends it without a record; a case that exceeds `CASE_SECONDS` fails."""
    plan = Plan(SEED, ("sum",), planted="sum=tests.fuzz.planted:endless_sum")
    begin = time.monotonic()
    summary = run(plan, seconds=8.0, say=print)
    assert time.monotonic() - begin < 8.0 + 4.0
    assert (summary.records, summary.cut) == ([], 1)
    monkeypatch.setattr(running, "CASE_SECONDS", 1.0)
    said: list[str] = []
    summary = run(replace(plan, cases=1), say=said.append)
    assert [record.findings[0][0] for record in summary.records] == ["hang"]
    assert "took over 1 s" in said[0]


def test_judged_cases_are_counted_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = running._heard

    def until_the_fourth(worker: Any, keep: Callable[[running.Record], None]) -> bool:
        goes_on = heard(worker, keep)
        if worker.number == 3:
            raise KeyboardInterrupt
        return goes_on

    monkeypatch.setattr(running, "_heard", until_the_fourth)
    summary = run(Plan(SEED, ("amax",)), say=print)
    assert ([record.number for record in summary.records], summary.cut) == ([0, 1, 2], 1)
    assert "3 cases" in summary.text()


def test_the_command_line_runs_a_case_or_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--seed", "1", "--case", "4", "--operators", "amax"]) == 0
    assert "amax, case 4: passed" in capsys.readouterr().out
    assert fuzz.main(["--operators", "nothing"]) == 2
    assert "not drawn: nothing" in capsys.readouterr().err
    assert fuzz.main(["--seed", "1", "--cases", "2", "--processes", "1", "--operators", "amax"]) == 0
    assert "2 cases" in capsys.readouterr().out
