"""The profiler: the instances that it lists for every operator, their verification, operators of a user."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from workbench import kernels, operators, ops, profiler
from workbench.__main__ import main
from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    NotMeasurableError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.kernels import epilogues, gemm, reference, tile
from workbench.launch import Launch
from workbench.operators.accuracy import Accuracy
from workbench.operators.arguments import Arguments
from workbench.operators.arguments import given as called_with
from workbench.operators.instance import Instance, instances_of
from workbench.operators.judging import judge_of
from workbench.operators.registry import register, specs
from workbench.operators.spec import OperatorSpec, list_instances
from workbench.ops.profiled import profiled

SPECS = specs()
FUNCTIONS = {name: getattr(ops, name) for name in ops.__all__}

# One problem of each family and of each gradient: how operands are made, and sizes that show their use.
FAMILIES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("add", {"shape": (3, 1)}, {"dtype": "bf16"}),
    ("permute_copy", {}, {"init": "integer"}),
    ("pixel_unshuffle", {"shape": (1, 1, 6, 15), "factor": 3}, {}),
    ("flip", {}, {"init": "integer"}),
    ("unfold", {"shape": (1, 2, 5, 6), "pad": 0}, {"init": "integer", "dtype": "fp32"}),
    ("sum", {"rows": 1}, {"dtype": "fp32"}),
    ("max", {"rows": 2}, {"init": "integer"}),  # many elements are the largest
    ("softmax", {}, {"init": "one-hot"}),
    ("log_softmax_backward", {}, {"dtype": "fp64"}),
    ("cross_entropy", {}, {"init": "integer"}),
    ("layer_norm", {"cols": 17}, {"dtype": "bf16"}),
    ("layer_norm_backward", {"cols": 130}, {}),
    ("rms_norm_backward", {"cols": 130}, {"dtype": "fp32"}),
    ("group_norm", {"memory_format": "channels_last"}, {}),
    ("batch_norm", {"shape": (1, 4, 5, 6)}, {"init": "integer"}),
    (
        "group_norm_backward",
        {"shape": (2, 6, 5, 6), "groups": 3, "memory_format": "channels_last"},
        {"dtype": "bf16"},
    ),
    ("batch_norm_backward", {"shape": (3, 4, 5, 6)}, {"dtype": "fp32"}),
    ("matmul", {"m": 17, "n": 33, "k": 1, "layout": "tt"}, {"init": "integer"}),
    ("matmul", {"m": 16, "n": 31, "k": 70}, {"dtype": "int8"}),
    ("baddbmm", {"batch": 2, "m": 15, "n": 17, "k": 16}, {"dtype": "fp32"}),
    ("matmul_softmax", {"m": 17, "n": 33, "k": 20}, {"init": "integer"}),
    ("matmul_matmul", {"m": 17, "n": 16, "k": 16, "l": 33}, {"init": "one-hot"}),
    ("swiglu", {"m": 17, "n": 33, "k": 20}, {"dtype": "fp32"}),
    ("fused_matmul", {"m": 17, "n": 33, "k": 20, "layout": "nt"}, {}),
    ("fused_grouped_mm", {"groups": 2, "m": 17, "n": 24, "k": 16}, {}),
    ("fused_conv2d", {}, {"dtype": "bf16"}),
    ("grouped_mm", {"groups": 2, "m": 17, "n": 24, "k": 16}, {"init": "one-hot"}),
    ("conv2d", {"groups": 2, "memory_format": "contiguous"}, {}),
    ("conv2d_backward_data", {"stride": 2}, {}),
    ("conv2d_backward_weight", {}, {"init": "integer"}),
    ("conv_transpose2d", {"stride": 2}, {}),
    ("avg_pool2d", {"shape": (2, 3, 5, 6), "memory_format": "channels_last"}, {}),
    ("scaled_dot_product_attention", {"n_q": 17, "n_k": 33, "causal": True}, {}),
    ("attention", {"n_q": 1, "n_k": 65}, {"dtype": "bf16"}),  # decoding
    ("scaled_dot_product_attention_backward", {"h": 1, "n_q": 17, "n_k": 20}, {"dtype": "fp32"}),
]


def test_every_function_of_the_client_api_is_an_operator() -> None:
    assert set(ops.__all__) <= set(SPECS)
    assert set(SPECS) - set(ops.__all__) >= {
        "batch_norm_backward", "conv2d_backward_data", "conv2d_backward_weight", "group_norm_backward",
        "layer_norm_backward", "log_softmax_backward", "rms_norm_backward",
        "scaled_dot_product_attention_backward", "softmax_backward",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_instances_know_arguments_by_the_names_of_the_call(name: str) -> None:
    listed_by = inspect.signature(SPECS[name].instances).parameters
    assert set(listed_by) <= set(inspect.signature(FUNCTIONS[name]).parameters)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_shipped_instance_gives_the_result_of_a_call(name: str) -> None:
    arguments = profiler.arguments_of(name)
    each = FUNCTIONS[name].instances(*arguments.args, **arguments.keywords)
    assert [one.is_shipped for one in each] == [True] + [False] * (len(each) - 1)
    assert len({one.name for one in each}) == len(each) > 1
    called = FUNCTIONS[name](*arguments.args, **arguments.keywords)
    for result, wanted in zip(each[0].launch().run(), _tensors(called), strict=False):
        assert torch.equal(result.reshape(wanted.shape), wanted)


def _tensors(results: Any) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


@pytest.mark.parametrize(("name", "case", "how"), FAMILIES)
def test_every_instance_passes_verification(name: str, case: dict[str, Any], how: dict[str, Any]) -> None:
    found = profiler.profile(name, profiler.arguments_of(name, case, **how), progress=False)
    same = "the same launch as"
    assert [
        trial
        for trial in found.trials
        if trial.fate != "verified" and same not in trial.reason and trial.fate != "refused"
    ] == []
    assert found.trials[0].fate == "verified"
    assert found.best is None
    assert "a time needs a GPU" in str(found)


# Sizes at which terms cancel, so that the result is a rounding of them.
CANCELING = [
    *(
        (f"{name}_backward", {"rows": rows, "cols": cols})
        for name in ("layer_norm", "rms_norm", "softmax")
        for rows in (1, 3)
        for cols in (1, 2)
    ),
    ("group_norm", {"shape": (7, 2, 1, 2), "groups": 2}),
    ("batch_norm", {"shape": (1, 2, 1, 2)}),
    ("log_softmax_backward", {"rows": 2, "cols": 2}),
    ("cross_entropy", {"rows": 1, "cols": 3}),
    ("logsumexp", {"rows": 3, "cols": 1}),
    # With so many rows, some have nearly equal elements.
    *(
        (name, {"rows": 1000, "cols": cols})
        for name in ("layer_norm", "layer_norm_backward")
        for cols in (2, 3)
    ),
    *(("matmul_layer_norm", {"m": 1000, "n": 2, "k": k}) for k in (3, 17)),
    ("scaled_dot_product_attention_backward", {"n_q": 3, "n_k": 1, "d": 16}),
    ("scaled_dot_product_attention_backward", {"n_q": 3, "n_k": 17, "d": 1}),
    ("scaled_dot_product_attention_backward", {"n_q": 3, "n_k": 17, "d": 16, "causal": True}),
]


@pytest.mark.parametrize(("name", "case"), CANCELING)
@pytest.mark.parametrize("init", ["normal", "integer"])
def test_results_that_cancel_are_held_to_the_size_of_their_terms(
    name: str, case: dict[str, Any], init: str
) -> None:
    for dtype in SPECS[name].dtypes:
        arguments = profiler.arguments_of(name, case, dtype=dtype, init=init)
        shipped, *_ = SPECS[name].instances(*arguments.args, **arguments.keywords)
        assert judge_of(SPECS[name], arguments)(shipped.launch().run()) == "", dtype


@pytest.mark.parametrize("name", sorted({name for name, _ in CANCELING} | {"layer_norm"}))
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_an_error_of_a_hundredth_of_the_largest_element_is_rejected(name: str, dtype: str) -> None:
    """The error is added to one element of the first result, at usual sizes."""
    spec = SPECS[name]
    case = {"rows": 16} if "rows" in spec.case else {}
    arguments = profiler.arguments_of(name, case, dtype=dtype)
    shipped, *_ = spec.instances(*arguments.args, **arguments.keywords)
    judge, (first, *others) = judge_of(spec, arguments), shipped.launch().run()
    assert judge((first, *others)) == ""
    first[(-1,) * first.dim()] += first.abs().max() / 100
    assert "the largest error is" in judge((first, *others))


@pytest.mark.parametrize(
    ("name", "case", "dtype", "init"),
    [
        ("sum", {}, "bf16", "one-hot"),
        ("matmul", {"m": 4, "n": 8, "k": 4096}, "bf16", "one-hot"),
        ("matmul", {}, "fp16", "integer"),
        ("conv2d", {}, "bf16", "integer"),
        ("grouped_mm", {}, "bf16", "integer"),
    ],
)
def test_sums_of_whole_numbers_must_be_exact(name: str, case: dict[str, Any], dtype: str, init: str) -> None:
    """An error of 1 in elements below 32 is rejected, even if the bound for the largest one allows it."""
    arguments = profiler.arguments_of(name, case, dtype=dtype, init=init)
    shipped, *_ = SPECS[name].instances(*arguments.args, **arguments.keywords)
    judge, (result, *_) = judge_of(SPECS[name], arguments), shipped.launch().run()
    assert judge((result,)) == ""
    assert "sums of whole numbers are exact" in judge((torch.where(result.abs() < 32, result + 1, result),))
    assert judge((0 * result,)) != ""


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_batch_norm_are_verified_for_their_own_mode_only(training: bool) -> None:
    spec = SPECS["batch_norm_backward"]
    gradient, x = torch.randn(3, 4, 5, 6), torch.randn(3, 4, 5, 6) + 1
    vectors = [torch.rand(4) + 0.5 for _ in range(4)]
    arguments = called_with(gradient, x, *vectors, training, 0.3)
    shipped, *_ = spec.instances(*arguments.args)
    assert judge_of(spec, arguments)(shipped.launch().run()) == ""
    other = called_with(gradient, x, *vectors, not training, 0.3)
    assert judge_of(spec, other)(shipped.launch().run()) != ""


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("layer_norm_backward", {"rows": 64, "cols": 1024}),
        ("group_norm_backward", {"shape": (4, 32, 16, 16), "groups": 8}),
        ("batch_norm_backward", {"shape": (4, 8, 16, 16)}),
    ],
)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_gradient_that_keeps_its_mean_is_rejected(name: str, case: dict[str, Any], dtype: str) -> None:
    """In dx = scale * (g - mean of g - ...), with g the weighted gradient, the second term is left out."""
    spec = SPECS[name]
    arguments = profiler.arguments_of(name, case, dtype=dtype)
    shipped, *_ = spec.instances(*arguments.args, **arguments.keywords)
    judge, (of_input, *others) = judge_of(spec, arguments), shipped.launch().run()
    assert judge((of_input, *others)) == ""
    gradient, x = arguments.args[:2]
    weight = next(one for one in arguments.args[2:] if isinstance(one, torch.Tensor))
    by_rows = {
        "layer_norm_backward": lambda each: each,
        "group_norm_backward": lambda each: each.reshape(32, -1),
        "batch_norm_backward": lambda each: each.transpose(0, 1).flatten(1),
    }[name]
    weighted = gradient.float() * (weight.float() if x.dim() == 2 else weight.float()[:, None, None])
    kept = by_rows(weighted).mean(1, keepdim=True) / by_rows(x.float()).std(1, keepdim=True)
    kept = kept.expand_as(by_rows(x))
    if name == "batch_norm_backward":
        kept = kept.reshape(x.transpose(0, 1).shape).transpose(0, 1)
    assert judge((of_input + kept.reshape(x.shape), *others)) != ""


def test_sums_of_other_numbers_need_not_be_exact() -> None:
    """Sums of normal values, and of whole numbers too large for fp32, may be off by a rounding."""
    large = torch.full((3, 5), 2.0**24 + 2)
    for x, moved in ((torch.randn(3, 5), 1e-6), (large, 16.0)):
        judge = judge_of(SPECS["sum"], called_with(x, 1))
        assert judge((x.sum(1) + moved,)) == ""


def test_arguments_may_be_given_by_name() -> None:
    x, weight = torch.randn(4, 6), torch.randn(6, 3)
    for name, arguments in {
        "sum": called_with(x, dim=-1),
        "norm": called_with(x, "fro"),
        "layer_norm": called_with(x, normalized_shape=(6,)),
        "roll": called_with(x, shifts=1, dims=0),
        "swiglu": called_with(input=x, gate=weight, up=weight),
    }.items():
        assert profiler.profile(name, arguments, progress=False).trials[0].fate == "verified", name


def test_an_unusual_row_does_not_loosen_the_limits_of_others() -> None:
    """A row with masked scores, or of equal elements, does not hide errors in other rows."""
    masked, flat = torch.randn(64, 512), torch.randn(64, 512)
    masked[:, 500:], flat[0] = -1e9, 1000.0
    judge = judge_of(SPECS["logsumexp"], Arguments((masked, -1), {}))
    assert judge((masked.logsumexp(-1),)) == ""
    assert "the largest error is" in judge((masked.logsumexp(-1) + 0.01,))
    judge = judge_of(SPECS["layer_norm"], Arguments((flat, (512,)), {}))
    normed = torch.nn.functional.layer_norm(flat, (512,))
    normed[5:] += 0.01
    assert "the largest error is" in judge((normed,))


def test_empty_results_pass_verification() -> None:
    for name, sizes in (("layer_norm", (0, 5)), ("layer_norm", (3, 0)), ("softmax_backward", (3, 0))):
        x, vector = torch.empty(sizes), torch.empty(sizes[1])
        args = (x, sizes[1:], vector, vector) if "norm" in name else (x, x, -1)
        shipped, *_ = list_instances(SPECS[name], called_with(*args))
        assert judge_of(SPECS[name], called_with(*args))(shipped.launch().run()) == ""


@pytest.mark.parametrize(("heads", "shared", "width"), [(2, 1, 0), (0, 0, 8)])
def test_empty_results_of_attention_pass_verification(heads: int, shared: int, width: int) -> None:
    query, key = torch.randn(1, heads, 3, width), torch.randn(1, shared, 4, width)
    spec = SPECS["scaled_dot_product_attention_backward"]
    arguments = called_with(query, query, key, key, enable_gqa=True)
    shipped, *_ = spec.instances(*arguments.args, **arguments.keywords)
    assert judge_of(spec, arguments)(shipped.launch().run()) == ""


def test_the_decorator_keeps_the_operators_signature() -> None:
    def matmul(x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x

    decorated = profiled(matmul)
    assert inspect.signature(decorated) == inspect.signature(matmul)
    assert (decorated.__doc__, decorated.__name__) == (matmul.__doc__, "matmul")
    assert all(inspect.isfunction(function) for function in FUNCTIONS.values())
    assert all(callable(function.best) for function in FUNCTIONS.values())
    a, b = torch.ones(17, 16), torch.ones(16, 15)
    first, *others = ops.matmul.instances(a, b)
    assert (first.name, first.is_supported) == ("shipped", True)
    assert torch.equal(others[0].launch().run()[0], a @ b)


def test_listing_instances_imports_neither_tuner_nor_lens_nor_profiler() -> None:
    code = (
        "import sys, torch; from workbench import ops; x = torch.ones(16, 16); ops.matmul.instances(x, x);"
        "print([m for m in sys.modules if m.startswith(('workbench.tune', 'workbench.lens',"
        "'workbench.profiler'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"


def test_an_instance_says_why_the_invoker_refuses_it() -> None:
    refused = [each for each in ops.sum.instances(torch.ones(3, 2000).half(), 1) if not each.is_supported]
    assert {each.keywords["atomic"] for each in refused} == {True}
    assert all("4 bytes or more" in each.why_not for each in refused)
    assert not [each for each in ops.sum.instances(torch.ones(3, 2000), 1) if each.why_not]


def test_instances_of_a_batch_take_the_epilogue_of_a_call() -> None:
    a, b = torch.ones(2, 20, 6), torch.ones(6, 9)
    row = epilogues.row_scale(torch.arange(40.0).view(2, 20))
    for chain in (epilogues.add(torch.ones(2, 20, 9)) | row, row | epilogues.dropout(0.5, 3)):
        shipped, *_ = ops.fused_matmul.instances(a, b, epilogue=chain)
        assert shipped.why_not == ""
        want = ops.fused_matmul(a, b, epilogue=chain)
        assert torch.equal(shipped.launch().run()[0].view_as(want), want)


def test_instances_that_exceed_shared_memory_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"tile": (128, 256, 64), "num_stages": 5, "num_warps": 8}  # 196,608 of 166,912 bytes

    def of_two(input: torch.Tensor, other: torch.Tensor) -> list[Instance]:
        small = {"tile": (64, 64, 32), "num_warps": 4}
        return instances_of(lambda **chosen: gemm.launch(input, other, **chosen), small, [large])

    _register(monkeypatch, "two_products", of_two, reference.matmul)
    arguments = called_with(*(torch.ones(256, 256).half() for _ in range(2)))
    found = profiler.profile("two_products", arguments, target="sm_80", verify=False, progress=False)
    left, pruned = found.trials
    assert (left.fate, pruned.fate) == ("left", "pruned")
    assert "shared memory" in pruned.reason
    assert left.resources is not None
    assert left.resources.registers > 0
    assert "compiled for sm_80" in str(found)


def test_an_instance_with_a_wrong_result_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_two(input: torch.Tensor, other: torch.Tensor) -> list[Instance]:
        nothing = torch.zeros(())
        make = partial(gemm.launch, input, other, addend=nothing)
        return instances_of(make, {"alpha": 1.0}, [{"alpha": 1.01}])

    _register(monkeypatch, "almost", of_two, reference.matmul)
    arguments = called_with(torch.ones(16, 16), torch.ones(16, 16))
    found = profiler.profile("almost", arguments, progress=False)
    assert {trial.candidate["instance"]: trial.fate for trial in found.trials} == {
        "shipped": "verified",
        "1.01_alpha": "wrong",
    }
    assert "the largest error is 0.16, allowed is" in found.trials[-1].reason


def _register(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    list_instances: Callable[..., list[Instance]],
    meaning: Callable[..., torch.Tensor],
) -> None:
    monkeypatch.setattr("workbench.operators.registry._registered", {})
    register(
        OperatorSpec(
            name,
            meaning,
            case={"n": (16, 16)},
            arguments=lambda draw, n: called_with(draw(n, n), draw(n, n)),
            instances=list_instances,
            accuracy=lambda input, other: (Accuracy(16, 4),),
        )
    )


def test_an_operator_of_a_notebook_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.operators.registry._registered", {})

    def of_one(name: str, n: float) -> OperatorSpec:
        return OperatorSpec(
            name,
            lambda a, b: n * (a @ b),
            case={"n": (16, 16)},
            arguments=lambda draw, n: called_with(draw(n, n), draw(n, n)),
            instances=lambda a, b: instances_of(partial(gemm.launch, a, b), {}),
            accuracy=lambda a, b: (Accuracy(16, 4),),
        )

    @profiled
    def my_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return gemm.launch(a, b).run()[0]

    for n, fate in ((2.0, "wrong"), (1.0, "verified")):  # the later registration counts
        register(of_one("my_product", n))
        arguments = profiler.arguments_of("my_product", dtype="fp32")
        assert [t.fate for t in profiler.profile("my_product", arguments, progress=False).trials] == [fate]
    assert [each.name for each in my_product.instances(*arguments.args)] == ["shipped"]
    with pytest.raises(InvalidArgumentError, match="name: got 'matmul', an operator of the package"):
        register(of_one("matmul", 1.0))
    with pytest.raises(ArgumentTypeError, match="spec"):
        register(of_one)  # type: ignore[arg-type]  # on purpose


@given(st.integers(0, 11), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.data())
@settings(max_examples=examples(100))
def test_results_pass_verification_only_within_their_rounding(
    place: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    exact = torch.randn(3, 4, generator=torch.Generator().manual_seed(place)).double()
    judge = judge_of(_constant(exact, Accuracy(1)), Arguments((), {}))
    right = exact.to(dtype)
    assert judge((right.flatten(),)) == ""
    wrong = right.clone()
    by = data.draw(st.sampled_from([10 * torch.finfo(dtype).eps, 1e3, torch.inf, torch.nan]))
    wrong.view(-1)[place] += by * max(exact.abs().max().item(), 1)
    assert "the largest error is" in judge((wrong,))
    assert "shape" in judge((right[:2],))
    assert judge(()) == "0 results, expected 1"


def _constant(result: torch.Tensor, accuracy: Accuracy) -> OperatorSpec:
    """Return an operator without arguments."""
    return OperatorSpec("constant", lambda: result, {}, called_with, list, lambda: (accuracy,))


def test_results_beyond_the_range_of_fp16_must_be_infinite_or_0() -> None:
    spec = _constant(torch.tensor([1e6, 1e-30]).double(), Accuracy(4))
    judge = judge_of(spec, Arguments((), {}))
    assert judge((torch.tensor([torch.inf, 0.0]).half(),)) == ""
    assert judge((torch.tensor([-torch.inf, 0.0]).half(),)) != ""
    assert judge((torch.tensor([65504.0, 0.0]).half(),)) != ""
    exact = _constant(torch.tensor([3]), Accuracy(0))
    assert judge_of(exact, Arguments((), {}))((torch.tensor([4]),)) != ""


@pytest.mark.parametrize(
    "name",
    [
        "matmul", "linear", "swiglu", "geglu", "matmul_sum", "matmul_layer_norm", "matmul_softmax",
        "matmul_matmul",
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1,)], ids=str)
def test_the_shipped_instance_is_the_launch_of_a_call(
    name: str, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a batch are one matrix to both the operator and the instance."""
    x, weight = torch.randn(*batch, 5, 7), torch.randn(7, 7)
    arguments = (x, *(weight,) * (1 + (name in ("swiglu", "geglu", "matmul_matmul"))))
    assert steps_of(FUNCTIONS[name].instances(*arguments)[0].launch()) == called_steps(
        monkeypatch, lambda: FUNCTIONS[name](*arguments)
    )


@pytest.mark.parametrize("n", [1, 5, 8, 20])
def test_the_shipped_instance_of_groups_is_the_launch_of_a_call(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the output begin at multiples of 16 bytes in both."""
    a, b, offs = torch.randn(9, 16).half(), torch.randn(2, 16, n).half(), torch.tensor([4, 9]).int()
    shipped = ops.grouped_mm.instances(a, b, offs=offs)[0].launch()
    assert steps_of(shipped) == called_steps(monkeypatch, lambda: ops.grouped_mm(a, b, offs=offs))


def test_no_pair_is_shipped_where_the_operator_makes_two_products() -> None:
    a, b0, b1 = torch.randn(8, 300), torch.randn(300, 300), torch.randn(300, 600)
    assert not any(each.is_shipped for each in ops.matmul_matmul.instances(a, b0, b1))
    assert ops.matmul_matmul.instances(a, b0, b1[:, :16])[0].name != "shipped"  # both long
    assert ops.matmul_matmul.instances(a[:, :16], b0[:16], b1[:, :16])[0].is_shipped


def steps_of(launch: Launch) -> list[tuple[object, ...]]:
    return [(step.name, step.grid, step.meta) for step in launch.steps]


def called_steps(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[tuple[object, ...]]:
    """Return the steps of the launches that a call runs."""
    found: list[tuple[object, ...]] = []
    run = Launch.run

    def recorded(launch: Launch) -> Any:
        found.extend(steps_of(launch))
        return run(launch)

    with monkeypatch.context() as patched:
        patched.setattr(Launch, "run", recorded)
        call()
    return found


@pytest.mark.filterwarnings("ignore:Sparse CSR")  # torch's warning about its own beta state
@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda a: ops.sum.instances(a, 5), DimensionError, "got 5"),
        (lambda a: ops.bmm.instances(a, a), TensorMismatchError, "must be a 3D tensor"),
        (lambda a: ops.mm.instances(a[None], a[None]), TensorMismatchError, "must be 2D"),
        (lambda a: ops.fused_matmul.instances(a, a, epilogue=None), ArgumentTypeError, "epilogue: got None"),  # type: ignore[arg-type]
        (lambda a: ops.add.instances(a, a, alpha="x"), ArgumentTypeError, "alpha: got 'x', a str"),  # type: ignore[arg-type]
        (lambda a: ops.sum.instances(a, 1, True), ArgumentTypeError, "instances, keepdim: got True"),
        (lambda a: ops.geglu.instances(a, a, a, "tanh"), ArgumentTypeError, "approximate: got 'tanh'"),
        (lambda a: ops.matmul.instances(a, a, out=a), ArgumentTypeError, "out: got a tensor"),
        (
            lambda a: ops.matmul.instances(a.to_sparse_csr(), a),
            TensorMismatchError,
            "sparse_csr. Give a strided",
        ),
        (lambda a: ops.matmul.instances(a), TypeError, "missing 1 required"),  # type: ignore[call-arg]
    ],
)
def test_instances_refuse_the_arguments_that_the_operator_refuses(
    ask: Callable[[torch.Tensor], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ask(torch.ones(4, 4))


def test_instances_of_an_unregistered_operator_are_refused() -> None:
    @profiled
    def matmull(input: torch.Tensor) -> torch.Tensor:
        return input

    with pytest.raises(UnknownNameError, match="matmull"):
        matmull.instances(torch.ones(3))


def test_instances_treat_an_explicit_default_like_an_omitted_argument() -> None:
    a = torch.ones(4, 4)
    assert len(ops.sum.instances(a, 1, keepdim=False)) == len(ops.sum.instances(a, 1))
    x, w = torch.ones(1, 2, 5, 6), torch.ones(3, 2, 3, 5)
    for padding in ("same", "valid"):
        (result,) = ops.conv2d.instances(x, w, None, 1, padding)[0].launch().run()
        torch.testing.assert_close(result, torch.nn.functional.conv2d(x, w, padding=padding))


def test_wrong_arguments_of_the_profiler_are_named() -> None:
    a = torch.ones(4, 4)
    with pytest.raises(NotMeasurableError, match="Only a GPU tells"):
        ops.matmul.best(a, a)
    with pytest.raises(ArgumentTypeError, match=r"out.*listed for input, other"):
        ops.matmul.instances(a, a, out=a)
    with pytest.raises(ArgumentTypeError, match="other: got a int"):
        ops.matmul.instances(a, 3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidArgumentError, match="without them"):
        ops.scaled_dot_product_attention.instances(a, a, a, dropout_p=0.5)
    with pytest.raises(UnknownNameError, match="matmul"):
        profiler.profile("matmull", Arguments((a, a), {}))
    with pytest.raises(UnknownNameError, match="key"):
        profiler.arguments_of("matmul", {"q": 3})
    with pytest.raises(InvalidArgumentError, match="--m: got 0"):
        profiler.arguments_of("matmul", {"m": 0})
    with pytest.raises(
        InvalidArgumentError, match=r"--dtype: softmax is not made for 'int8'. Give one of fp16"
    ):
        profiler.arguments_of("softmax", dtype="int8")
    with pytest.raises(UnknownNameError, match="key: 'layout' is not known"):
        profiler.arguments_of("softmax", {"layout": "nt"})
    with pytest.raises(InvalidArgumentError, match=r"--layout: got 'xx'\. Give one of nn"):
        profiler.arguments_of("matmul", {"layout": "xx"})
    with pytest.raises(InvalidArgumentError, match=r"--causal: got 2\. Give true or false"):
        profiler.arguments_of("scaled_dot_product_attention", {"causal": 2})
    with pytest.raises(InvalidArgumentError, match=r"--stride: got 18,446,744,073,709,551,616\. Give 68,7"):
        profiler.arguments_of("conv2d", {"stride": 2**64})
    with pytest.raises(InvalidArgumentError, match=r"--pad: got -1\. Give a whole number of 0 or more"):
        profiler.arguments_of("avg_pool2d", {"pad": -1})
    with pytest.raises(ArgumentTypeError, match=r"case: got \[1\]"):
        profiler.arguments_of("add", [1])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidArgumentError, match=r"dim: got 5 for 2 dimensions\. Give -2 to 1"):
        profiler.profile("sum", called_with(a, 5), progress=False)
    with pytest.raises(ArgumentTypeError, match="arguments of unfold: TypeError"):
        profiler.profile("unfold", called_with(torch.ones(1, 2, 5, 5), (2, 2)), progress=False)
    large = profiler.arguments_of("matmul", {"m": 4096, "n": 4096, "k": 64})
    with pytest.raises(InvalidArgumentError, match=r"--verify: .* for the interpreter\. Leave sizes out"):
        profiler.profile("matmul", large, progress=False)
    assert profiler.profile("matmul", large, verify=False, progress=False).trials


def test_results_beyond_memory_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The result would take 200 TB, more than an address space; the operands take 20 MB each."""
    many = str(10**7)
    assert main(["profile", "matmul", "--m", many, "--n", many, "--k", "1", "--no-verify"]) == 1
    assert capsys.readouterr().err == (
        "workbench: matmul: its results need more memory than there is. Give smaller sizes.\n"
    )


def test_an_instance_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_two(input: torch.Tensor, other: torch.Tensor) -> list[Instance]:
        def make(rows: int) -> Launch:
            torch.empty(rows, 2**20)
            return gemm.launch(input, other)

        return instances_of(make, {"rows": 1}, [{"rows": 2**40}, {"rows": 2**62}])

    _register(monkeypatch, "two_products", of_two, reference.matmul)
    arguments = called_with(torch.ones(16, 16), torch.ones(16, 16))
    found = profiler.profile("two_products", arguments, progress=False)
    assert [trial.fate for trial in found.trials] == ["verified", "refused", "refused"]
    assert all("more memory than there is" in trial.reason for trial in found.trials[1:])


# A user's operator: a file in each of the four layers, and nothing elsewhere that names it.
FILES = {
    "kernels/tile/doubling.py": '''
import triton
import triton.language as tl

@triton.jit
def doubled(tile):
    """2 x"""
    return tile * 2
''',
    "kernels/twice.py": '''
import torch
import triton
import triton.language as tl

from workbench.errors import InvalidArgumentError
from workbench.kernels.tile.doubling import doubled
from workbench.launch import Launch, Work

@triton.jit
def twice_kernel(x_pointer, output_pointer, length, BLOCK: tl.constexpr):
    """output = 2 x"""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x_pointer + offsets, mask=offsets < length)
    tl.store(output_pointer + offsets, doubled(tile), mask=offsets < length)

def launch(x, *, tile=64):
    """output = 2 x, contiguous."""
    if tile > 256:
        raise InvalidArgumentError("tile", f"got {tile}", "Give 256 or less.")
    output = torch.empty_like(x)
    return Launch.of(
        twice_kernel, (triton.cdiv(x.numel(), tile),), x, output, x.numel(), outputs=output,
        work=Work(x.numel(), 2 * x.numel() * x.element_size()), BLOCK=tile,
    )
''',
    "operators/twice.py": """
from functools import partial

import torch

from workbench.kernels import twice as template
from workbench.operators.accuracy import Accuracy
from workbench.operators.arguments import given
from workbench.operators.instance import instances_of
from workbench.operators.spec import OperatorSpec

def twice(input: torch.Tensor):
    return instances_of(partial(template.launch, input), {}, ({"tile": n} for n in (32, 128, 512)))

SPECS = (
    OperatorSpec(
        "twice",
        lambda input: 2 * input,
        case={"n": (100, 2**24)},
        arguments=lambda draw, n: given(draw(n)),
        instances=twice,
        accuracy=lambda input: (Accuracy(1),),
    ),
)
""",
    "ops/twice.py": '''
import torch

from workbench.kernels import twice as template
from workbench.ops.profiled import profiled

@profiled
def twice(input: torch.Tensor) -> torch.Tensor:
    """2 input"""
    return template.launch(input).run()[0]
''',
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add one more operator to the package, from files in a folder of their own."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for room, folder in (
        (tile, "kernels/tile"), (kernels, "kernels"), (operators, "operators"), (ops, "ops"),
    ):  # fmt: skip
        monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path / folder)])
    yield
    for room, name in ((tile, "doubling"), (kernels, "twice"), (operators, "twice"), (ops, "twice")):
        sys.modules.pop(f"{room.__name__}.{name}", None)
        room.__dict__.pop(name, None)


def test_a_users_operator_is_a_file_in_each_layer(package: None, capsys: pytest.CaptureFixture[str]) -> None:
    twice = importlib.import_module("workbench.ops.twice").twice
    x = torch.arange(100.0)
    assert torch.equal(twice(x), 2 * x)
    assert [each.name for each in twice.instances(x)] == ["shipped", "32", "128", "512"]
    assert [each.is_supported for each in twice.instances(x)] == [True, True, True, False]
    assert list_instances(specs()["twice"], called_with(x))[2].launch().run()[0][99] == 198
    assert main(["profile", "twice", "--n", "70", "--init", "integer", "--dtype", "bf16"]) == 0
    printed = capsys.readouterr().out
    assert "twice: n=70, bf16, integer" in printed
    assert "4 candidates of twice on Triton interpreter (CPU): 3 verified, 1 refused" in printed
    assert "got 512. Give 256 or less." in printed


def test_instances_of_wrong_arguments_raise_the_operators_errors() -> None:
    """Errors of Python itself, such as the IndexError of a tuple, do not reach the caller."""
    with pytest.raises(DimensionError, match="dim: got 3"):
        ops.softmax.instances(torch.ones(3, 4), 3)
    with pytest.raises(ArgumentTypeError, match="unfold itself"):  # the operator takes a pair
        ops.unfold.instances(torch.ones(1, 2, 5, 5), (2, 2))
