"""Suites: cases that are cut and why, recordings, and checks before anything is timed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.example import copy_line, gpu, line
from workbench import comparing, measured, ops, suites
from workbench.bench import baseline, data, recording
from workbench.device import Device
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    NotMeasurableError,
    RecordingError,
    UnknownNameError,
)
from workbench.kernels.pointwise import elementwise
from workbench.launch import Work
from workbench.operators import arguments, parts, registry
from workbench.operators.arguments import Arguments
from workbench.operators.spec import OperatorSpec
from workbench.suites import Case, Suite
from workbench.teach.rungs import ladder, reduction_levels

FOUR_GB_CARD = gpu(name="NVIDIA GeForce RTX 3050", architecture="sm_86", memory_bytes=4 * 2**30)
FREE_ON_IT = int(3.4e9)

TINY = Suite(
    "tiny",
    "one case of each operator, small enough for the interpreter",
    (
        Case("add", "fp32", {"shape": [100]}, ("workbench", "torch", "torch.compile")),
        Case("add", "fp16", {"shape": [7, 5], "alpha": 2}, ("workbench", "torch")),
        Case("add", "fp32", {"shape": [100]}, ("workbench", "torch"), "cuda_graph"),
        Case("sum", "bf16", {"rows": 8, "cols": 32, "dim": -1}, ("torch",)),
        Case("clone", "fp32", {"shape": [64]}, ("torch",)),
        Case("matmul", "fp16", {"m": 200, "n": 16, "k": 24, "layout": "nt"}, ("cuBLAS", "torch")),
        Case("matmul", "tf32", {"m": 16, "n": 16, "k": 16, "layout": "nn"}, ("cuBLAS", "torch")),
        Case("matmul", "fp32", {"m": 16, "n": 16, "k": 16, "layout": "nn"}, ("cuBLAS", "rocBLAS")),
        Case("clone", "fp32", {"shape": [2**28]}, ("torch",)),
        Case(
            "fused_matmul", "fp16", {"m": 40, "n": 32, "k": 24, "layout": "nn"},
            ("workbench", "workbench:bare", "torch", "cuBLAS"),
        ),
    ),
)  # fmt: skip


def case(op: str, dtype: str = "fp32", providers: tuple[str, ...] = ("torch",), **problem: Any) -> Case:
    return Case(op, dtype, problem, providers)


def names(suite: str) -> set[str]:
    return {str(one) for one in suites.get(suite).cases}


def optional_libraries() -> set[str]:
    return {name for name, one in baseline.BASELINES.items() if one.is_optional}


class Library(baseline.Baseline):
    """A library that runs everywhere, also if it is optional."""

    def absence(self, here: Device | None = None) -> str:
        return ""


def add_library(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[torch.Tensor], torch.Tensor], package: str | None = "x"
) -> None:
    """Register a library named "library", which computes every operator by `call` of its first argument."""
    known = suites.spec_of

    def with_library(op: str) -> OperatorSpec:
        spec = known(op)
        return replace(spec, baselines={**spec.baselines, "library": lambda input, *others: call(input)})

    monkeypatch.setitem(baseline.BASELINES, "library", Library("library", "a test's", package=package))
    monkeypatch.setattr(suites, "spec_of", with_library)


def inputs_of(one: Case) -> Arguments:
    """Return the arguments of a case on the CPU."""
    return suites.arguments_of(one, "cpu")


def result_of(provider: str, one: Case, inputs: Arguments) -> Any:
    """Return what a candidate of a case computes for these arguments."""
    return suites._candidate(provider, one, inputs)()


FUSED = (
    "matmul_layer_norm", "matmul_rms_norm", "matmul_softmax", "matmul_amax", "matmul_logsumexp",
    "matmul_matmul", "swiglu", "geglu",
)  # fmt: skip

SUM = Suite(
    "sum",
    "one sum by a library too",
    (Case("sum", "fp32", {"rows": 8, "cols": 32, "dim": -1}, ("library", "torch", "workbench")),),
)


def test_the_suites_have_the_documented_cases() -> None:
    assert set(suites.SUITES) == {
        "ceilings", "elementwise", "reduction", "softmax", "normalization", "transfer", "matmul", "gemm",
        "convolution", "rearrangement", "images", "descriptors", "attention", "attention_backward",
        "decoding", "varlen", "reduction_levels", "fused", "fused_templates", "launch", "tuned", "operators",
        "all",
    }  # fmt: skip
    products = {
        f"matmul {t} {n}^3" for t in ("fp16", "bf16", "tf32", "fp32") for n in (512, 1024, 2048, 4096, 8192)
    }
    assert names("ceilings") >= products | {"clone fp32 2^28"}
    assert names("matmul") >= products | {"matmul fp16 16 x 4096 x 4096", "matmul fp16 1000^3"}
    assert names("elementwise") >= {f"add fp32 2^{n}" for n in range(12, 29, 2)}
    assert names("elementwise") >= {"add fp16 2^28", "add bf16 2^28", "add fp32 2^28, alpha 2"}
    assert "sum fp32 32768 x 768 in a CUDA graph" in names("reduction")
    for op in ("sum", "amax", "argmax"):
        gigabyte = {f"{op} fp16 16384 x 32768{dim} in a CUDA graph" for dim in ("", ", dim 0")}
        assert names("reduction") >= gigabyte
    short = {"4096 x 256", "4096 x 1024", "4096 x 4096", "32768 x 768"}
    long = {"4096 x 16384", "4096 x 65536", "16384 x 4096", "128 x 1000000"}
    rows = {f"{shape} in a CUDA graph" for shape in short | long}
    for suite, op in (("softmax", "softmax"), ("normalization", "layer_norm"), ("normalization", "rms_norm")):
        for name in (op, f"{op}_backward"):
            dtypes = ("fp16", "bf16")
            assert names(suite) >= {f"{name} {dtype} {shape}" for dtype in dtypes for shape in rows}
    assert "softmax bf16 8192 x 8192, dim 0 in a CUDA graph" in names("softmax")
    assert names("launch") == {
        "add fp32 2^4 in a CUDA graph",
        "matmul fp16 128^3 in a CUDA graph",
        "matmul fp16 512^3 in a CUDA graph",
    }
    assert names("transfer") >= {
        "clone fp32 2^28",
        "permute_copy fp16 8192 x 8192, dims [1, 0]",
        "permute_copy fp32 8192 x 8192, dims [1, 0]",
        "permute_copy fp16 32 x 64 x 56 x 56, dims [0, 2, 3, 1]",
    }
    assert names("rearrangement") >= {
        "flip fp16 8192 x 8192, dims [1] in a CUDA graph",
        "roll fp32 8192 x 8192, dims [0], shift 1001 in a CUDA graph",
        "unfold fp16 8 x 64 x 56 x 56, pad 1, window 3 in a CUDA graph",
        "pixel_shuffle bf16 8 x 256 x 64 x 64, factor 2 in a CUDA graph",
        "pixel_shuffle fp32 8 x 256 x 64 x 64, factor 2 in a CUDA graph",
    }
    assert names("images") >= {
        f"group_norm {dtype} {shape}, groups 32, {memory_format} in a CUDA graph"
        for dtype in ("fp16", "bf16")
        for shape in ("2 x 320 x 64 x 64", "8 x 256 x 128 x 128")
        for memory_format in ("contiguous", "channels_last")
    }
    assert all(suite.about for suite in suites.SUITES.values())


def test_the_fused_suite_has_its_products() -> None:
    """Composable Kernel's example comes first; each case also times the product alone, with cuBLAS too."""
    measured = suites.get("fused").cases
    sizes = [tuple(one.case[key] for key in "mnk") for one in measured]
    assert sizes[:4] == [(4096, 4096, 4096), (2048, 3072, 768), (8192, 16384, 4096), (256, 128, 64)]
    assert len({*sizes}) == 10
    assert {(one.op, one.dtype, one.mode) for one in measured} == {("fused_matmul", "fp16", "burst")}
    ours = {"workbench", "workbench:bare", "workbench:without products"}
    wanted = ours | {"torch", "torch.compile max-autotune", "cuBLAS"}
    assert all(wanted <= {*one.providers} for one in measured)


def test_partial_candidates_of_fused_products_are_checked_for_their_part() -> None:
    problem = {"m": 40, "n": 32, "k": 24, "layout": "nn"}
    fused = Case("fused_matmul", "fp16", problem, ("workbench",))
    inputs = inputs_of(fused)
    (a, b), (first, second) = inputs.args, inputs.keywords["epilogue"].tensors
    product = a @ b
    whole = torch.nn.functional.gelu(product.float() + first + second, approximate="tanh").half()
    suites.check(fused, inputs, whole, "workbench")
    suites.check(fused, inputs, product, "workbench:bare")
    left = torch.nn.functional.gelu(first.float() + second, approximate="tanh").half()
    suites.check(fused, inputs, left, "workbench:without products")
    for wrong, provider in (
        (product, "workbench"),
        (whole, "workbench:bare"),
        (whole, "cuBLAS"),
        (whole, "workbench:without products"),
    ):
        with pytest.raises(KernelError, match="wrong result"):
            suites.check(fused, inputs, wrong, provider)


def test_candidates_that_do_not_exist_here_are_left_out_and_reported() -> None:
    """The kernel that is interpreted cannot leave out its products."""
    problem = {"m": 40, "n": 32, "k": 24, "layout": "nn"}
    case = Case("fused_matmul", "fp16", problem, ("workbench", "workbench:without products"))
    lines, cut = suites.run(suites.Suite("one", "of one case", (case,)), interpreter=True, progress=False)
    assert [line.provider for line in lines] == ["workbench"]
    assert [str(one) for one in cut] == [
        "fused_matmul fp16 40 x 32 x 24: workbench:without products is left out: "
        "only the kernels of Hopper for large products can leave the products out"
    ]


def test_a_failure_of_the_workbench_itself_ends_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise NotMeasurableError("not here")

    monkeypatch.setattr(ops, "add", refuse)
    case = Case("add", "fp32", {"shape": [16]}, ("workbench", "torch"))
    with pytest.raises(NotMeasurableError, match="not here"):
        suites.run(suites.Suite("one", "of one case", (case,)), interpreter=True, progress=False)


def test_the_attention_suite_has_its_problems() -> None:
    """16,384 tokens of heads of 64, 128 and 256 columns, also with shared keys; one query of many keys."""
    for suite in ("attention", "attention_backward"):
        cases = suites.get(suite).cases
        assert all({"workbench", "cuDNN", "FlashAttention-2"} <= set(one.providers) for one in cases)
        assert {one.dtype for one in cases} == {"fp16", "bf16"}
        found = {tuple(one.case[key] for key in ("n_q", "d", "causal")) for one in cases}
        lengths = (512, 1024, 2048, 4096, 8192, 16384, 32768)
        assert found >= {(n, d, causal) for n in lengths for d in (64, 128) for causal in (False, True)}
        assert found >= {(4096, 256, causal) for causal in (False, True)}
        assert all(one.case["b"] * one.case["n_q"] == 16384 for one in cases if one.case["n_q"] <= 16384)
        assert {(one.case["h"], one.case["h_kv"]) for one in cases} >= {(32, 8), (32, 32), (16, 16)}
        with_designs = [one for one in cases if len(one.providers) > 3]
        assert {(one.case["d"], one.case["causal"]) for one in with_designs} == {
            (d, causal) for d in (64, 128) for causal in (False, True)
        }
        rung = "portable" if suite == "attention" else "one_pass"
        wanted = {"flex_attention", f"workbench:{rung}"}
        assert all(wanted <= set(one.providers) for one in with_designs)
    varlen = suites.get("varlen").cases
    assert {(one.op, one.dtype, one.case["d"], one.case["causal"]) for one in varlen} == {
        (f"varlen_attention{suffix}", dtype, d, causal)
        for suffix in ("", "_backward")
        for dtype in ("fp16", "bf16")
        for d in (64, 128)
        for causal in (False, True)
    }
    decoding = suites.get("decoding").cases
    assert {one.case["n_q"] for one in decoding} == {1}
    assert {one.case["n_k"] for one in decoding} == {8192, 32768, 131072}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "op", ["scaled_dot_product_attention", "scaled_dot_product_attention_backward", *measured.VARLEN]
)
def test_wrong_results_of_attention_fail_the_check(op: str, causal: bool) -> None:
    """Results of torch and the workbench pass the check, with shared heads too; shifted results fail it."""
    keys = 40 if causal or op in measured.VARLEN else 50
    described = {"b": 2, "h": 4, "h_kv": 2, "n_q": 40, "n_k": keys, "d": 16, "causal": causal}
    case = suites.Case(op, "fp32", described, ("workbench", "torch"))
    inputs = inputs_of(case)
    result = result_of("workbench", case, inputs)
    suites.check(case, inputs, result, "workbench")
    suites.check(case, inputs, result_of("torch", case, inputs), "torch")
    wrong = tuple(t.roll(1, -1) for t in result) if isinstance(result, tuple) else result.roll(1, -1)
    with pytest.raises(KernelError):
        suites.check(case, inputs, wrong, "wrong")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", FUSED)
def test_wrong_results_of_fused_products_fail_the_check(op: str, dtype: str) -> None:
    """Results of torch and the workbench pass, also with B contiguous along K; others fail."""
    described: dict[str, Any] = {"m": 20, "n": 40, "k": 24, "layout": "nt"}
    described |= {"l": 30} if op == "matmul_matmul" else {}
    case = suites.Case(op, dtype, described, ("workbench", "torch"))
    inputs = inputs_of(case)
    assert inputs.args[1].stride() == (1, 24)
    result = result_of("workbench", case, inputs)
    suites.check(case, inputs, result, "workbench")
    suites.check(case, inputs, result_of("torch", case, inputs), "torch")
    moved = sum(tensor.nbytes for tensor in (*arguments.tensors_of(inputs), result))
    assert suites._work_of(case).bytes == moved
    one_wrong = result.clone()
    one_wrong.view(-1)[7] += 0.1 * result.abs().max()
    for wrong in (result.roll(1, -1), one_wrong):
        with pytest.raises(KernelError):
            suites.check(case, inputs, wrong, "wrong")


def test_the_suite_of_fused_templates_has_its_problems() -> None:
    cases = suites.get("fused_templates").cases
    assert {one.op for one in cases} == set(FUSED)
    assert all({"workbench", "torch", suites.AUTOTUNED} <= set(one.providers) for one in cases)
    kept, cut = suites.plan(suites.get("fused_templates"), gpu(), free_bytes=140 * 10**9)
    assert (len(kept), cut) == (len(cases), [])


def test_the_suite_of_operators_has_a_case_of_each() -> None:
    cases = suites.get("operators").cases
    assert [one.op for one in cases] == list(registry.specs())
    assert all({"workbench", "torch"} <= set(one.providers) for one in cases)
    kept, cut = suites.plan(suites.get("operators"), gpu(), free_bytes=140 * 10**9)
    assert (len(kept), cut) == (len(cases), [])


def test_lengths_of_sequences_fill_the_total() -> None:
    assert measured.lengths_of(16384, 8) == (455, 910, 1365, 1821, 2275, 2731, 3186, 3641)
    assert sum(measured.lengths_of(1000, 7)) == 1000
    with pytest.raises(InvalidArgumentError, match="Give 36"):
        measured.lengths_of(35, 8)


def test_the_convolution_suite_has_its_layers() -> None:
    """ResNet-50's at two batches, a UNet's, grouped and dilated ones, forward and both gradients."""
    of_op: dict[str, list[Any]] = {}
    for one in suites.get("convolution").cases:
        assert one.providers == ("workbench", "cuDNN", "torch")
        of_op.setdefault(f"{one.op} {one.dtype}", []).append(one.case)
    assert {name.split()[0] for name in of_op} == {"conv2d", "conv2d_backward_data", "conv2d_backward_weight"}
    assert {name.split()[1] for name in of_op} == {"fp16", "bf16"}
    for name, cases in of_op.items():
        batches = (32, 1) if name.startswith("conv2d ") else (32,)
        for n in batches:
            plain = [c for c in cases if c["n"] == n and (c["groups"], c["dilation"]) == (1, 1)]
            assert len({tuple(c.values()) for c in plain}) == 23
        assert {(c["c"], c["h"]) for c in cases if c["n"] == 2} == {(320, 64), (640, 32)}
        assert {c["groups"] for c in cases} == {1, 32}
        assert {c["dilation"] for c in cases} == {1, 2}


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward_data", "conv2d_backward_weight"])
def test_convolutions_are_measured_beside_torch(op: str) -> None:
    problem = case(
        op, "fp16", ("workbench", "torch"), n=2, c=8, h=9, w=7, k=12, r=3, s=3, stride=2, pad=1, dilation=1,
        groups=2,
    )  # fmt: skip
    lines, cut = suites.run(Suite("mine", "", (problem,)), interpreter=True, progress=False)
    assert cut == []
    assert [one.provider for one in lines] == ["workbench", "torch"]
    weight = 12 * 4 * 9
    assert lines[0].flops == 2 * 2 * 5 * 4 * weight
    assert lines[0].bytes == 2 * (2 * 8 * 9 * 7 + 2 * 12 * 5 * 4 + weight)


def shape_of(product: Any) -> str:
    """Return the shape of a product's case, of any layout."""
    return recording.in_short({**product.case, "layout": "nn"})


def test_products_are_measured_in_every_layout_and_dtype() -> None:
    shapes = {f"{n}^3" for n in (512, 768, 1000, 1024, 1536, 2048, 3000, 3072, 4096, 8192)}
    shapes |= {f"{m} x 4096 x 4096" for m in (1, 16, 64, 256, 16384)}
    shapes |= {"4096 x 4096 x 512", "8192 x 8192 x 64", "4096 x 11008 x 4096", "2048 x 3072 x 768"}
    shapes |= {"2048 x 3072 x 4096", "384 x 384 x 65536"}
    found: dict[tuple[str, Any], set[str]] = {}
    for one in suites.get("gemm").cases:
        found.setdefault((one.dtype, one.case["layout"]), set()).add(shape_of(one))
        assert one.providers[0] == "workbench"
        assert {"cuBLASLt", "hipBLASLt", "torch"} <= set(one.providers)
        assert ("cuBLAS" in one.providers) == (one.dtype not in ("fp8_e4m3", "int8"))
    assert {way for way, of in found.items() if of == shapes} == {
        (dtype, layout) for dtype in ("fp16", "bf16") for layout in ("nn", "nt")
    }
    others = [("fp16", "tn"), ("fp16", "tt"), ("tf32", "nn"), ("fp8_e4m3", "nt"), ("int8", "nt")]
    assert set(found) - {way for way, of in found.items() if of == shapes} == set(others)
    assert all(len(found[way]) == 6 and found[way] <= shapes for way in others)


def test_short_products_are_timed_in_graphs_and_small_ones_in_both_modes() -> None:
    modes: dict[str, set[str]] = {}
    for one in suites.get("gemm").cases:
        modes.setdefault(shape_of(one), set()).add(one.mode)
    small = {"512^3", "768^3", "1000^3", "1024^3", "1 x 4096 x 4096", "16 x 4096 x 4096", "64 x 4096 x 4096"}
    assert {shape for shape, of in modes.items() if of == {"events", "cuda_graph"}} == small
    in_graphs = {shape for shape, of in modes.items() if of == {"cuda_graph"}}
    assert in_graphs == {
        "1536^3", "2048^3", "256 x 4096 x 4096", "4096 x 4096 x 512", "8192 x 8192 x 64", "2048 x 3072 x 768",
        "2048 x 3072 x 4096", "3000^3", "384 x 384 x 65536",
    }  # fmt: skip


def test_the_gemm_suite_has_measurements_for_at_most_four_minutes() -> None:
    kept, cut = suites.plan(suites.get("gemm"), gpu(), free_bytes=140 * 10**9)
    assert cut == []
    assert 0.35 * sum(len(one.providers) for one in kept) < 240  # seconds; a measurement takes about 0.35


@pytest.mark.parametrize(
    ("dtype", "layout", "said"),
    [
        ("fp16", "nn", ""),
        ("fp16", "tn", ", tn"),
        ("fp8_e4m3", "nt", ", nt"),
        ("int8", "nt", ", nt"),
        ("int8", "nn", ""),
    ],
)
def test_layouts_other_than_nn_are_named_in_the_text_of_a_case(dtype: str, layout: str, said: str) -> None:
    """The layout is not named if it is nn, for any dtype."""
    assert str(case("matmul", dtype, m=4, n=4, k=4, layout=layout)) == f"matmul {dtype} 4^3{said}"


def test_a_problem_of_two_suites_has_the_candidates_of_both() -> None:
    (of_all,) = (one for one in suites.get("all").cases if str(one) == "matmul fp16 4096^3")
    (of_matmul,) = (one for one in suites.get("matmul").cases if str(one) == "matmul fp16 4096^3")
    rungs = {f"workbench:{rung}" for rung in ladder.RUNGS["matmul"]}
    assert "workbench" not in of_matmul.providers
    assert set(of_all.providers) == {*of_matmul.providers, "workbench", "FlagGems", *rungs}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "int8"])
def test_products_of_the_workbench_are_measured_beside_torch(dtype: str, layout: str) -> None:
    problem = case("matmul", dtype, ("workbench", "torch"), m=24, n=40, k=16, layout=layout)
    lines, cut = suites.run(Suite("mine", "", (problem,)), interpreter=True, progress=False)
    assert cut == []
    assert [one.provider for one in lines] == ["workbench", "torch"]
    itemsize, of_result = {"int8": (1, 4), "fp32": (4, 4)}.get(dtype, (2, 2))
    assert {one.bytes for one in lines} == {(24 * 16 + 16 * 40) * itemsize + 24 * 40 * of_result}


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "tf32", "fp8_e4m3", "int8"])
def test_each_dtype_of_products_is_checked(dtype: str) -> None:
    problem = case("matmul", dtype, m=40, n=24, k=32, layout="nt")
    inputs = inputs_of(problem)
    result = result_of("workbench", problem, inputs)
    of_fp8, of_int8 = torch.bfloat16, torch.int32
    assert result.dtype == {"fp8_e4m3": of_fp8, "int8": of_int8}.get(dtype, inputs.args[0].dtype)
    suites.check(problem, inputs, result, "mine")
    wrong = result.clone()
    wrong[7, 3] += 1 if dtype == "int8" else 0.1 * result.abs().max()
    with pytest.raises(KernelError, match="mine gives a wrong result"):
        suites.check(problem, inputs, wrong, "mine")
    with pytest.raises(KernelError, match=r"wrong result .* expected torch\."):
        suites.check(problem, inputs, result.int() if dtype != "int8" else result.float(), "mine")


def test_int8_inputs_fill_the_range() -> None:
    a, b = inputs_of(case("matmul", "int8", m=200, n=100, k=300, layout="nt")).args
    assert (a.dtype, a.shape, b.shape, b.stride()) == (torch.int8, (200, 300), (300, 100), (1, 300))
    for each in (a, b):
        assert each.min() < -100
        assert each.max() > 100
        assert each.double().std() == pytest.approx(32, rel=0.05)
    for one in (case("clone", "int8", shape=[8]), case("clone", "tf32", shape=[8])):
        with pytest.raises(InvalidArgumentError, match=f"dtype: clone of {one.dtype}. Give one of fp16"):
            suites.plan(Suite("mine", "", (one,)))


def test_the_suite_all_has_every_case_once() -> None:
    everything = suites.get("all").cases
    assert len({str(one) for one in everything}) == len(everything)
    left_out = ("all", "tuned", "fused_templates", "operators")
    merged = [suite for suite in suites.SUITES.values() if suite.name not in left_out]
    assert {str(one) for one in everything} == {str(one) for suite in merged for one in suite.cases}


@pytest.mark.parametrize("name", ["gemm", "softmax", "normalization", "reduction", "all"])
def test_recordings_have_points_of_the_workbench_and_of_torch(name: str) -> None:
    _, points = suites.live_or_recorded(name, recorded=True)
    assert {point.provider for point in points} > {"workbench", "torch"}


def test_the_suite_of_reduction_levels_times_each_level_for_rows_of_every_length() -> None:
    cases = suites.get("reduction_levels").cases
    providers = ("workbench", "workbench:thread", "workbench:warp", "workbench:block", "torch")
    assert {one.providers for one in cases} == {providers}
    assert {one.case["rows"] * one.case["cols"] for one in cases} == {2**27}
    lengths = [one.case["cols"] for one in cases if one.dtype == "fp16"]
    assert (min(lengths), max(lengths)) == (8, 2**22)


def test_an_unknown_suite_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'elementwise'\?"):
        suites.get("element-wise")
    with pytest.raises(UnknownNameError, match="suite: 'matmull'"):
        suites.record("matmull", interpreter=True)


def test_an_h200_runs_every_case() -> None:
    kept, cut = suites.plan(suites.get("all"), gpu(), free_bytes=140 * 10**9)
    assert cut == []
    assert len(kept) == len(suites.get("all").cases)
    assert all(set(one.providers).isdisjoint({"rocBLAS", "hipBLASLt"}) for one in kept)
    products = [one for one in kept if one.op == "matmul" and one.case["m"] != 128]
    assert all("cuBLASLt" in one.providers for one in products)


def test_products_are_tuned_only_on_gpus() -> None:
    here, there = (
        suites.plan(suites.get("tuned"), machine, free_bytes=140 * 10**9)[0] for machine in (None, gpu())
    )
    assert {provider for one in here for provider in one.providers} <= {"workbench"}
    assert len(there) == 21
    assert {one.providers for one in there} == {("workbench", "tuned")}


def test_nothing_is_tuned_where_products_are_measured_live() -> None:
    quick = [suites._quick_version(one) for one in suites.get("tuned").cases]
    assert {provider for one in quick for provider in one.providers} == {"workbench"}


def test_a_4_gb_card_runs_the_cases_that_fit_and_reports_the_rest() -> None:
    kept, cut = suites.plan(suites.get("all"), FOUR_GB_CARD, FREE_ON_IT)
    left_out = {str(one.case): one.reason for one in cut}
    assert left_out["add fp32 2^28"] == "needs 3.96 GB of memory, 3.40 GB are free"
    assert left_out["matmul fp8_e4m3 4096^3, nt"] == "fp8_e4m3 needs sm_89, this is sm_86"
    kept_names = {str(one) for one in kept}
    assert kept_names | set(left_out) == names("all")
    assert kept_names >= {"add fp32 2^26", "clone fp32 2^28", "matmul fp32 8192^3", "matmul bf16 8192^3"}


@given(st.integers(min_value=0, max_value=2**38))
def test_more_memory_never_cuts_more(free: int) -> None:
    everything = suites.get("all")
    kept = {str(one) for one in suites.plan(everything, FOUR_GB_CARD, free)[0]}
    more = {str(one) for one in suites.plan(everything, FOUR_GB_CARD, 2 * free)[0]}
    assert kept <= more


def test_an_amd_gpu_is_measured_against_amds_libraries() -> None:
    here = gpu(kind="hip", architecture="gfx942", name="AMD Instinct MI300X")
    kept, cut = suites.plan(suites.get("matmul"), here, 190 * 10**9)
    assert {name for one in kept for name in one.providers} == {"rocBLAS", "hipBLASLt", "torch"}
    assert {one.case.dtype for one in cut} == {"tf32"}


def test_only_small_cases_are_left_in_the_interpreter() -> None:
    kept, cut = suites.plan(suites.get("all"))
    assert {one.op for one in kept} == {"add", "clone", "matmul", "permute_copy"}
    reasons = {one.reason for one in cut}
    assert reasons >= {"too slow in the interpreter", "CUDA graphs need a GPU"}
    assert str(cut[0]) == "add fp32 2^12 in a CUDA graph: CUDA graphs need a GPU"


def test_rungs_are_measured_beside_the_shipped_kernel() -> None:
    problem = case(
        "permute_copy", providers=("workbench", "workbench:rows", "torch"), shape=[8, 8], dims=[1, 0]
    )
    lines, cut = suites.run(Suite("mine", "", (problem,)), interpreter=True, progress=False)
    assert [line.provider for line in lines] == ["workbench", "workbench:rows", "torch"]
    assert cut == []
    wrong = case("permute_copy", providers=("workbench:row",), shape=[8, 8], dims=[1, 0])
    with pytest.raises(
        UnknownNameError, match=r"rung of permute_copy: 'row' is not known\. Did you mean 'rows'"
    ):
        suites.run(Suite("mine", "", (wrong,)), interpreter=True, progress=False)


_ATTENDED = {"b": 1, "h": 2, "h_kv": 2, "n_q": 32, "n_k": 32, "d": 16}
RUNG_CASES: dict[str, dict[str, Any]] = {
    "clone": {"shape": [64, 32]},
    "permute_copy": {"shape": [64, 32], "dims": [1, 0]},
    "sum": {"rows": 8, "cols": 32, "dim": -1},
    "amax": {"rows": 8, "cols": 32, "dim": -1},
    "softmax": {"rows": 8, "cols": 32, "dim": -1},
    "layer_norm": {"rows": 8, "cols": 32, "dim": -1},
    "matmul": {"m": 32, "n": 64, "k": 32, "layout": "nn"},
    "fused_matmul": {"m": 32, "n": 64, "k": 32, "layout": "nn"},
    "scaled_dot_product_attention": _ATTENDED,
    "scaled_dot_product_attention_backward": _ATTENDED,
    "conv2d": {
        "n": 1, "c": 8, "h": 6, "w": 5, "k": 8, "r": 3, "s": 3, "stride": 1, "pad": 1, "dilation": 1,
        "groups": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("op", ladder.RUNGS)
def test_every_rung_computes_its_operator_from_the_arguments_of_suites(op: str) -> None:
    for rung in ladder.RUNGS[op]:
        if rung in reduction_levels.LEVELS:
            continue  # only on a GPU
        described = dict(RUNG_CASES[op])
        if op.startswith("scaled_dot_product_attention"):
            described["causal"] = rung in ("causal", "grouped_queries")
        one = case(op, "fp16", **described)
        inputs = inputs_of(one)
        suites.check(one, inputs, result_of(f"workbench:{rung}", one, inputs), rung)


@pytest.mark.parametrize("dims", [[0], [0, 0], [1, 2], [0, 1, 2], [-1, 0]], ids=str)
def test_dims_that_are_not_a_permutation_are_refused(dims: list[int]) -> None:
    wrong = case("permute_copy", shape=[8, 4], dims=dims)
    with pytest.raises(InvalidArgumentError, match=r"dims: got \["):
        suites.plan(Suite("mine", "", (wrong,)))


def test_one_wrong_element_of_a_permutation_fails_the_check() -> None:
    problem = case("permute_copy", shape=[6, 4], dims=[1, 0])
    x = torch.arange(24.0).reshape(6, 4)
    inputs = arguments.given(x, (1, 0))
    suites.check(problem, inputs, x.t().contiguous(), "mine")
    wrong = x.t().contiguous()
    wrong[3, 5] += 1
    with pytest.raises(KernelError, match="the largest error is 1"):
        suites.check(problem, inputs, wrong, "mine")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (case("einsum", shape=[1]), "op: 'einsum'"),
        (
            case("clone", providers=("torhc",), shape=[1]),
            "baseline: 'torhc' is not known. Did you mean 'torch'",
        ),
        (case("clone", dtype="float", shape=[1]), "dtype: 'float'"),
    ],
)
def test_unknown_names_in_a_suite_are_named(wrong: Case, said: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        suites.plan(Suite("mine", "", (wrong,)))
    assert said in str(caught.value)


def test_a_part_of_a_suite_has_the_cases_of_some_dtypes_and_operators() -> None:
    assert suites.part(TINY) == TINY
    part = suites.part(TINY, dtypes=("fp16", "bf16"))
    assert [(case.op, case.dtype) for case in part.cases] == [
        ("add", "fp16"), ("sum", "bf16"), ("matmul", "fp16"), ("fused_matmul", "fp16")
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match=r"dtype: 'fp61' is not known. Did you mean 'fp16'"):
        suites.part(TINY, dtypes=("bf16", "fp61"))
    part = suites.part(TINY, dtypes=("fp16",), ops=("matmul",))
    assert [(case.op, case.dtype) for case in part.cases] == [("matmul", "fp16")]
    with pytest.raises(UnknownNameError, match=r"op: 'sun' is not known. Did you mean 'sum'"):
        suites.part(TINY, ops=("sun",))
    with pytest.raises(UnknownNameError, match=r"op: 'sum' is not known"):  # none in fp16
        suites.part(TINY, dtypes=("fp16",), ops=("matmul", "sum"))


def test_an_interruption_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part.jsonl"
    left, before = [None, None], []

    def measured(*given: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        before.append(given[0])
        return whole(*given)

    whole = suites._measure_case
    monkeypatch.setattr(suites, "_measure_case", measured)
    with pytest.raises(KeyboardInterrupt):
        suites.record(TINY, path=path, interpreter=True, progress=False)
    kept = recording.load(path)
    assert {(line.op, line.dtype) for line in kept} == {(case.op, case.dtype) for case in before}
    assert len({line.run for line in kept}) == 1


def test_without_a_gpu_nothing_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    with pytest.raises(NotMeasurableError, match="--interpreter"):
        suites.record(TINY, path)
    assert not path.exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> suites.Recorded:
    """Return TINY, recorded twice in the interpreter."""
    path = tmp_path_factory.mktemp("recorded") / "new" / "interpreter.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_COMMIT", "0123456789ab")
        suites.record(TINY, path, interpreter=True, progress=False)
        return suites.record(TINY, path, interpreter=True, progress=False)


def test_recorded_lines_are_appended_to_the_file(recorded: suites.Recorded) -> None:
    lines = recording.load(recorded.path)
    assert lines[len(lines) // 2 :] == recorded.lines
    assert recording.latest_run(lines) == recorded.lines
    assert len({one.run for one in lines}) == 2


def test_every_candidate_that_can_run_has_a_line(recorded: suites.Recorded) -> None:
    measured = {(one.op, one.dtype, one.problem, one.provider) for one in recorded.lines}
    assert measured == {
        ("add", "fp32", "100", "workbench"),
        ("add", "fp32", "100", "torch"),
        ("add", "fp16", "7 x 5, alpha 2", "workbench"),
        ("add", "fp16", "7 x 5, alpha 2", "torch"),
        ("sum", "bf16", "8 x 32", "torch"),
        ("clone", "fp32", "2^6", "torch"),
        ("matmul", "fp16", "200 x 16 x 24, nt", "torch"),
        *(
            ("fused_matmul", "fp16", "40 x 32 x 24", name)
            for name in ("workbench", "workbench:bare", "torch")
        ),
    }
    assert [str(one) for one in recorded.cut] == [
        "add fp32 100 in a CUDA graph: CUDA graphs need a GPU",
        "matmul tf32 16^3: tf32 is a format of GPU matrix units",
        "matmul fp32 16^3: none of cuBLAS, rocBLAS runs here",
        "clone fp32 2^28: too slow in the interpreter",
    ]


def test_a_suite_is_recorded_with_the_roofs_that_its_roofline_needs(tmp_path: Path) -> None:
    cases = (case("add", "fp32", ("torch",), shape=[100]), case("clone", "fp32", ("torch",), shape=[2**28]))
    with_roofs = Suite("mine", "", cases, with_roofs=True)
    recorded = suites.record(with_roofs, tmp_path / "mine.jsonl", interpreter=True, progress=False)
    assert [line.op for line in recorded.lines] == ["add"]
    left_out = [str(one.case) for one in recorded.cut]
    assert left_out.count("clone fp32 2^28") == 1  # a roof's own case, once
    assert {"clone fp32 2^26", "clone fp32 2^29", "matmul fp16 8192^3"} <= set(left_out)
    for name in ("with_roofs", "with_kernels"):
        with pytest.raises(ArgumentTypeError, match=name):
            Suite("mine", "", cases, **{name: "yes"})  # type: ignore[arg-type]


def test_lines_are_labeled_as_the_interpreters(recorded: suites.Recorded) -> None:
    for one in recorded.lines:
        assert (one.mode, one.device, one.driver) == ("interpreter", "Triton interpreter (CPU)", "none")
        assert (one.commit, one.torch, one.data) == ("0123456789ab", torch.__version__, "normal")
    assert recording.points(recorded.lines) == []


def test_work_is_counted_as_the_launch_counts_it(recorded: suites.Recorded) -> None:
    x = torch.ones(100)
    work = elementwise.launch(x, x).work
    (one,) = recording.select(recorded.lines, op="add", dtype="fp32", provider="workbench")
    assert work is not None
    assert (one.flops, one.bytes) == (work.flops, work.bytes)
    x = x[:35].half()
    work = elementwise.launch(x, x, operation="axpy", alpha=2).work
    (one,) = recording.select(recorded.lines, op="add", dtype="fp16", provider="workbench")
    assert work is not None
    assert (one.flops, one.bytes) == (work.flops, work.bytes)


@pytest.mark.parametrize(
    ("op", "flops", "moved"),
    [
        ("sum", 8 * 32, (8 * 32 + 8) * 2),
        ("clone", 0, 2 * 64 * 4),
        ("matmul", 2 * 200 * 16 * 24, (200 * 24 + 24 * 16 + 200 * 16) * 2),
    ],
)
def test_baselines_have_the_work_of_their_case(
    recorded: suites.Recorded, op: str, flops: int, moved: int
) -> None:
    (one,) = recording.select(recorded.lines, op=op)
    assert (one.flops, one.bytes) == (flops, moved)


def test_progress_of_recording_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Suite("mine", "", (case("clone", shape=[8]),))
    suites.record(one, tmp_path / "a.jsonl", interpreter=True)
    assert "clone fp32 2^3" in capsys.readouterr().err
    suites.record(one, tmp_path / "a.jsonl", interpreter=True, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["matmul", "mm", "bmm"])
def test_products_of_int8_are_measured(name: str) -> None:
    small = registry.named(name).defaults(is_gpu=False)
    one = suites.Suite("one", "a product", (case(name, "int8", ("workbench", "torch"), **small),))
    lines, cut = suites.run(one, interpreter=True, progress=False)
    assert ([line.provider for line in lines], cut) == (["workbench", "torch"], [])


def test_a_wrong_kernel_is_not_timed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "add", lambda x, y, alpha=1: x)
    with pytest.raises(
        KernelError, match="workbench gives a wrong result for add fp32 100: the largest error"
    ):
        suites.record(TINY, tmp_path / "a.jsonl", interpreter=True, progress=False)
    assert not (tmp_path / "a.jsonl").exists()


def fails(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("cannot launch\nwith more to say") from ValueError("65536 columns at most\nof a tile")


def later(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that is right only at its first call."""
    calls: list[None] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x.sum(-1) if len(calls) == 1 else call(x)

    return function


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (fails, "ValueError: 65536 columns at most"),
        (later(fails), "ValueError: 65536 columns at most"),
        (
            lambda x: x[:, 0],
            "kernel sum: library gives a wrong result for sum fp32 8 x 32: the largest error",
        ),
        (later(lambda x: x[:, 0]), "kernel sum: library gives a wrong result for sum fp32 8 x 32"),
    ],
    ids=["fails", "fails later", "is wrong", "is wrong later"],
)
def test_an_optional_library_that_fails_is_left_out_and_named(
    call: Callable[[torch.Tensor], torch.Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_library(monkeypatch, call)
    lines, (cut,) = suites.run(SUM, interpreter=True, progress=False)
    assert [one.provider for one in lines] == ["torch", "workbench"]
    assert str(cut).startswith(f"sum fp32 8 x 32: library is left out: {reason}")
    assert "\n" not in str(cut)


def test_an_optional_library_with_correct_results_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    add_library(monkeypatch, lambda x: x.sum(-1))
    lines, cut = suites.run(SUM, interpreter=True, progress=False)
    assert [one.provider for one in lines] == ["library", "torch", "workbench"]
    assert cut == []


def test_a_failure_of_a_required_library_ends_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    add_library(monkeypatch, fails, package=None)
    with pytest.raises(RuntimeError, match="cannot launch"):
        suites.run(SUM, interpreter=True, progress=False)


def test_a_case_whose_only_candidate_is_left_out_has_no_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_library(monkeypatch, fails)
    alone = Suite("alone", "", (case("sum", "fp32", ("library",), rows=8, cols=32, dim=-1),))
    assert suites.run(alone, interpreter=True, progress=False)[0] == []
    with pytest.raises(NotMeasurableError, match="1 case: library is left out: ValueError: 65536 columns"):
        suites.record(alone, tmp_path / "a.jsonl", interpreter=True, progress=False)
    assert not (tmp_path / "a.jsonl").exists()


def test_int8_products_of_an_optional_library_call_no_vendor_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other providers call the vendor's `_int_mm` instead, since torch.matmul would return int8."""
    add_library(monkeypatch, fails)
    product = case("matmul", "int8", ("torch", "library"), m=32, n=32, k=32, layout="nt")
    lines, (cut,) = suites.run(Suite("mine", "", (product,)), interpreter=True, progress=False)
    assert [one.provider for one in lines] == ["torch"]
    assert "library is left out" in str(cut)


def test_row_operators_are_compared_with_the_libraries_that_have_them() -> None:
    asked = optional_libraries()
    for suite in ("reduction", "softmax", "normalization"):
        for one in suites.get(suite).cases:
            have = {name for name in asked if name in suites.spec_of(one.op).baselines}
            assert set(one.providers) & asked == have
    operators = {one.op for one in suites.get("all").cases if "Liger" in one.providers}
    assert operators == {
        name + way for name in ("softmax", "layer_norm", "rms_norm") for way in ("", "_backward")
    }


def test_few_products_are_compared_with_libraries_that_tune_them() -> None:
    compared = [one for one in suites.get("gemm").cases if set(one.providers) & optional_libraries()]
    assert {(one.dtype, one.case["layout"]) for one in compared} == {("fp16", "nn")}
    cubes = {f"{n}^3" for n in (512, 768, 1000, 1024, 1536, 2048, 3000, 3072, 4096, 8192)}
    assert set(map(shape_of, compared)) == cubes | {f"{m} x 4096 x 4096" for m in (1, 16, 64, 256)}


def install_libraries(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    for name in optional_libraries():
        package = baseline.get(name).package
        assert package is not None
        module = ModuleType(package)
        module.__spec__ = ModuleSpec(package, None)
        monkeypatch.setitem(sys.modules, package, module if there else None)


@pytest.mark.parametrize("there", [True, False])
def test_libraries_that_are_not_installed_are_passed_over(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_libraries(monkeypatch, there=there)
    kept, cut = suites.plan(suites.get("all"), gpu(), free_bytes=140 * 10**9)
    assert cut == []
    found = {name for one in kept for name in one.providers} & optional_libraries()
    assert found == (optional_libraries() if there else set())


def test_a_path_that_cannot_be_written_is_found_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_reached(*_: object, **__: object) -> None:
        pytest.fail("measured first")

    monkeypatch.setattr(suites, "run", not_reached)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match="path"):
        suites.record(TINY, tmp_path / "file" / "a.jsonl", interpreter=True)
    (tmp_path / "broken.jsonl").write_text("{}\n")
    with pytest.raises(RecordingError, match="line 1"):
        suites.record(TINY, tmp_path / "broken.jsonl", interpreter=True)


@given(
    st.sampled_from(["fp64", "fp32", "fp16", "bf16"]),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 200),
)
def test_torchs_own_results_pass_the_check(dtype: str, m: int, n: int, k: int) -> None:
    a, b = data.matrices(m, n, k, dtype)
    by = arguments.given
    suites.check(case("matmul", dtype, m=m, n=n, k=k, layout="nn"), by(a, b), a @ b, "torch")
    suites.check(case("sum", dtype, rows=m, cols=k, dim=-1), by(a, -1), a.sum(-1), "torch")
    whole = by(a, a, alpha=3)
    suites.check(case("add", dtype, shape=[m, k], alpha=3), whole, torch.add(a, a, alpha=3), "torch")
    suites.check(case("clone", dtype, shape=[m, k]), by(a), a.clone(), "torch")
    for dim in (-1, 0):
        suites.check(case("softmax", dtype, rows=m, cols=k, dim=dim), by(a, dim), a.softmax(dim), "torch")
        suites.check(case("argmax", dtype, rows=m, cols=k, dim=dim), by(a, dim), a.argmax(dim), "torch")


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_one_wrong_element_of_a_row_operator_fails_the_check(op: str, dtype: str) -> None:
    """Each result of torch and of the workbench, forward and backward, gets one wrong element in turn."""
    for name in (op, f"{op}_backward"):
        problem = case(name, dtype, rows=40, cols=24, dim=-1)
        inputs = inputs_of(problem)
        for provider in ("torch", "workbench"):
            results = result_of(provider, problem, inputs)
            suites.check(problem, inputs, results, "mine")
            parts = results if isinstance(results, tuple) else (results,)
            for i, part in enumerate(parts):
                wrong = part.clone()
                wrong.view(-1)[7] += 0.1 * part.abs().max()
                with pytest.raises(KernelError, match="mine gives a wrong result"):
                    suites.check(problem, inputs, (*parts[:i], wrong, *parts[i + 1 :]), "mine")
        with pytest.raises(KernelError, match="results" if len(parts) > 1 else "shape"):
            suites.check(problem, inputs, parts[0][:, :1] if len(parts) == 1 else parts[:1], "mine")


@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("op", ["sum", "amax", "argmax", "softmax", "softmax_backward", "logsumexp"])
def test_a_wrong_element_is_found_in_every_block(op: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are compared in blocks, and reductions along columns in blocks of columns."""
    monkeypatch.setattr(parts, "BLOCK_ELEMENTS", 16)
    problem = case(op, rows=6, cols=8, dim=dim)
    inputs = inputs_of(problem)
    assert len(list(suites.spec_of(op).parts(inputs))) == (4 if dim == 0 else 3)
    found = result_of("torch", problem, inputs)
    result = found[0] if isinstance(found, tuple) else found
    suites.check(problem, inputs, result, "mine")
    for place in range(result.numel()):
        wrong = result.clone()
        wrong.view(-1)[place] += 1
        with pytest.raises(KernelError, match="mine gives a wrong result"):
            suites.check(problem, inputs, wrong, "mine")


@pytest.mark.parametrize(
    ("op", "problem", "elements"),
    [
        ("flip", {"shape": [6, 8], "dims": [0]}, 48),
        ("roll", {"shape": [6, 8], "dims": [0, 1], "shift": 3}, 48),
        ("pad", {"shape": [6, 8], "pad": 1}, 80),
        ("pad", {"shape": [6], "pad": 2}, 10),
        ("pixel_shuffle", {"shape": [1, 4, 3, 3], "factor": 2}, 36),
        ("unfold", {"shape": [1, 2, 4, 4], "window": 3, "pad": 1}, 288),
    ],
)
def test_one_wrong_moved_element_fails_the_check(op: str, problem: dict[str, Any], elements: int) -> None:
    one = case(op, "fp16", **problem)
    inputs = inputs_of(one)
    assert suites._work_of(one) == Work(0, 2 * (inputs.args[0].numel() + elements))
    for provider in ("torch", "workbench"):
        result = result_of(provider, one, inputs)
        suites.check(one, inputs, result, "mine")
        result.view(-1)[7] += 0.01
        with pytest.raises(KernelError, match="mine gives a wrong result"):
            suites.check(one, inputs, result, "mine")


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("op", "problem", "work"),
    [
        ("group_norm", {"shape": [2, 6, 5, 4], "groups": 3}, Work(8 * 240, 2 * (2 * 240 + 12))),
        (
            "avg_pool2d",
            {"shape": [2, 3, 7, 6], "window": 3, "stride": 2, "pad": 1},
            Work(72 * 9, 2 * (252 + 72)),
        ),
        (
            "max_pool2d",
            {"shape": [2, 3, 6, 6], "window": 2, "stride": 2, "pad": 0},
            Work(54 * 4, 2 * (216 + 54)),
        ),
    ],
)
def test_one_wrong_element_of_an_image_operator_fails_the_check(
    op: str, problem: dict[str, Any], work: Work, memory_format: str
) -> None:
    one = case(op, "fp16", **problem, memory_format=memory_format)
    inputs = inputs_of(one)
    assert suites._work_of(one) == work
    assert inputs.args[0].is_contiguous() == (memory_format == "contiguous")
    for provider in ("workbench", "torch"):
        result = result_of(provider, one, inputs)
        assert isinstance(result, torch.Tensor)
        suites.check(one, inputs, result, provider)
        result[1, 2, 0, 1] += 0.1
        with pytest.raises(KernelError, match=f"{provider} gives a wrong result"):
            suites.check(one, inputs, result, provider)


@pytest.mark.parametrize(
    ("op", "problem", "words"),
    [
        ("group_norm", {"shape": [2, 6, 5, 4], "groups": 4}, "groups: got 4 for 6 channels"),
        ("group_norm", {"shape": [2, 6, 5], "groups": 3}, "Give images"),
        ("max_pool2d", {"shape": [2, 6, 5, 4], "window": 3, "stride": 2, "pad": 2}, "half a window at most"),
    ],
)
def test_problems_of_images_that_cannot_be_measured_are_refused(
    op: str, problem: dict[str, Any], words: str
) -> None:
    one = case(op, "fp16", **problem, memory_format="contiguous")
    with pytest.raises(InvalidArgumentError, match=words):
        suites.plan(Suite("mine", "", (one,)))


@pytest.mark.parametrize(
    ("op", "problem", "words"),
    [
        ("flip", {"shape": [6, 8], "dims": [2]}, "Give different dimensions of the shape, from 0 to 1"),
        ("flip", {"shape": [6, 8], "dims": [0, 0]}, "Give different dimensions of the shape, from 0 to 1"),
        ("roll", {"shape": [6, 8], "dims": [0]}, "The keys of roll are dims, shape, shift"),
        ("unfold", {"shape": [6, 8], "window": 3, "pad": 0}, "Give images"),
        (
            "pixel_shuffle",
            {"shape": [1, 3, 8, 8], "factor": 2},
            "upscale_factor: got 2, but 4 does not divide",
        ),
        ("pixel_shuffle", {"shape": [8], "factor": 2}, "torch says: Dimension out of range"),
    ],
)
def test_impossible_moves_of_elements_are_refused(op: str, problem: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        suites.plan(Suite("mine", "", (case(op, **problem),)))


def test_a_wrong_index_fails_the_check() -> None:
    x = torch.tensor([[1.0, 3, 3], [5, 4, 5]])
    problem = case("argmax", rows=2, cols=3, dim=-1)
    inputs = arguments.given(x, -1)
    suites.check(problem, inputs, torch.tensor([1, 0]), "mine")
    with pytest.raises(KernelError, match="mine gives a wrong result"):
        suites.check(problem, inputs, torch.tensor([2, 0]), "mine")
    with pytest.raises(KernelError, match=r"torch\.float32, expected torch\.int64"):
        suites.check(problem, inputs, torch.tensor([1.0, 0]), "mine")


@pytest.mark.parametrize("row", [0, 150, 299])  # the first, a middle and the last checked row
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e3])
def test_one_wrong_element_fails_the_check(row: int, value: float) -> None:
    x = torch.randn(300, 8)
    for one, inputs, result in (
        (case("clone", shape=[300, 8]), arguments.given(x), x.clone()),
        (case("add", shape=[300, 8]), arguments.given(x, x), x + x),
        (case("matmul", m=300, n=8, k=8, layout="nn"), arguments.given(x, torch.eye(8)), x.clone()),
    ):
        suites.check(one, inputs, result, "mine")
        result[row, 3] = value
        with pytest.raises(KernelError, match="mine gives a wrong result"):
            suites.check(one, inputs, result, "mine")


def test_a_copy_must_be_exact() -> None:
    x = torch.ones(8)
    with pytest.raises(KernelError, match="allowed is 0"):
        suites.check(case("clone", shape=[8]), arguments.given(x), torch.nextafter(x, x + 1), "mine")


def test_a_result_of_another_shape_fails_the_check() -> None:
    x = torch.ones(4, 1)  # would broadcast against the right one
    with pytest.raises(KernelError, match=r"shape \(4,\)"):
        suites.check(case("clone", shape=[4, 1]), arguments.given(x), x[:, 0], "mine")


def test_a_result_with_more_rows_than_are_checked_fails_the_check() -> None:
    """Only some rows of products are checked, and some rows of some heads of attention."""
    product = case("matmul", m=300, n=8, k=8, layout="nn")
    attended = case("scaled_dot_product_attention", b=1, h=2, h_kv=1, n_q=8, n_k=8, d=16, causal=False)
    for one, dim in ((product, 0), (attended, 1)):
        inputs = inputs_of(one)
        result = result_of("torch", one, inputs)
        suites.check(one, inputs, result, "mine")
        for wrong in (torch.cat([result, result], dim), result[0]):
            with pytest.raises(KernelError, match="shape"):
                suites.check(one, inputs, wrong, "mine")


def test_errors_beyond_rounding_fail_the_check() -> None:
    x = torch.randn(4096, dtype=torch.float16)
    one, inputs = case("add", "fp16", shape=[4096]), arguments.given(x, x)
    suites.check(one, inputs, (x.double() * 2).half(), "mine")
    with pytest.raises(KernelError):
        suites.check(one, inputs, x * 2 + 0.05, "mine")


def shipped(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: recording.Line) -> None:
    recording.append(folder / "gpu.jsonl", lines)
    monkeypatch.setattr(recording, "recordings_folder", lambda: folder)


VECTORS = {"op": "add", "dtype": "fp32", "provider": "torch", "case": {"shape": [2**28]}, "median_ms": 0.8}
LATER, LAST = "2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"


def test_the_recorded_run_shown_is_the_latest_with_roofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(
        monkeypatch,
        tmp_path,
        copy_line(),
        line(),
        copy_line(run="b", when=LATER, median_ms=0.6),
        line(run="b", when=LATER, median_ms=0.25),
        line(run="b", when=LATER, **VECTORS),
        line(run="c", when=LAST, **VECTORS),  # no roofs
        copy_line(run="d", when=LAST, mode="interpreter"),
        line(run="d", when=LAST, mode="interpreter"),
    )
    roofs, points = suites.live_or_recorded()
    assert (roofs.device, roofs.when, roofs.recorded) == ("NVIDIA H200", "2026-02-01", True)
    assert roofs.rate("fp16") == pytest.approx(2 * 4096**3 / 0.25e-3)
    assert {point.op for point in points} == {"clone", "matmul", "add"}
    assert all(point.recorded and point.when == "2026-02-01" for point in points)
    assert {point.op for point in suites.live_or_recorded("elementwise")[1]} == {"add"}
    assert {point.op for point in suites.live_or_recorded("ceilings", recorded=True)[1]} == {
        "clone",
        "matmul",
    }


def of_runs(*runs: tuple[str, str, list[dict[str, Any]]]) -> list[recording.Line]:
    """Return runs by id and time, each with roofs, and with lines that differ from the example."""
    return [
        one
        for run, when, lines in runs
        for one in (
            copy_line(run=run, when=when),
            line(run=run, when=when),
            *(line(run=run, when=when, **changes) for changes in lines),
        )
    ]


def test_a_newer_run_of_fewer_operators_does_not_hide_an_older_run_of_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_sizes = [{**VECTORS, "case": {"shape": [2**n]}} for n in (12, 14, 16, 18)]
    all_rows = [
        {"op": op, "dtype": "fp16", "case": {"rows": 16384, "cols": 4096, "dim": -1}}
        for op in ("layer_norm", "rms_norm")
    ]
    lines = of_runs(("all", LATER, [*all_rows, VECTORS]), ("few", LAST, other_sizes))
    shipped(monkeypatch, tmp_path, *lines)
    roofs, points = suites.live_or_recorded()
    # the newer run has more problems, the older one more operators
    assert {point.op for point in points} == {"clone", "matmul", "add", "layer_norm", "rms_norm"}
    assert {point.when for point in points} == {roofs.when} == {"2026-02-01"}
    assert suites.live_or_recorded("normalization")[0].when == "2026-02-01"
    assert suites.live_or_recorded("elementwise")[0].when == "2026-03-01"  # more of its own problems


def test_of_runs_with_equally_many_operators_the_one_with_more_problems_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [{**VECTORS, "case": {"shape": [2**n]}} for n in (12, 14)]
    rivals = [{**VECTORS, "provider": provider} for provider in ("torch", "workbench", "torch.compile")]
    shipped(monkeypatch, tmp_path, *of_runs(("sizes", LATER, sizes), ("providers", LAST, rivals)))
    for suite in ("elementwise", "all"):
        roofs, points = suites.live_or_recorded(suite)
        assert roofs.when == "2026-02-01"  # candidates are not problems
        assert {point.label for point in points if point.op == "add"} == {"2^12", "2^14"}


def test_of_runs_with_equally_many_problems_the_newest_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, older = ("a", LAST, [VECTORS]), ("b", LATER, [VECTORS])
    for number, in_file in enumerate([(older, newest), (newest, older)]):
        shipped(monkeypatch, tmp_path / str(number), *of_runs(*in_file))
        roofs, points = suites.live_or_recorded()
        assert {point.when for point in points} == {roofs.when} == {"2026-03-01"}


def pretend_live(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Pretend to measure suites on an H200, one millisecond per call; return the cases asked for."""
    asked: list[Case] = []

    def run(suite: Suite, **_: object) -> tuple[list[recording.Line], list[suites.Cut]]:
        kept, cut = suites.plan(suite)
        asked.extend(kept)
        measured = [
            line(
                op=one.op,
                dtype=one.dtype,
                case=dict(one.case),
                provider=provider,
                median_ms=1.0,
                flops=2 * one.case["m"] ** 3 if one.op == "matmul" else 0,
                bytes=2**30,
            )
            for one in kept
            for provider in one.providers
        ]
        return measured, cut

    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr("workbench.device.current", gpu)
    monkeypatch.setattr("workbench.device.free_memory_bytes", lambda: 140 * 10**9)
    return asked


def test_live_roofs_and_points_are_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend_live(monkeypatch)
    install_libraries(monkeypatch, there=True)
    roofs, points = suites.live_or_recorded()
    assert not any(set(one.providers) & optional_libraries() for one in asked)  # they take time to tune
    assert len({str(one) for one in asked}) == len(asked)  # each problem once
    assert not any("torch.compile" in one.providers or one.mode == "cuda_graph" for one in asked)
    products = [one for one in asked if one.op == "matmul"]
    assert not any("torch" in one.providers for one in products)
    assert {one.dtype for one in products if "workbench" in one.providers} == {"fp16"}
    assert not any(one.dtype == "int8" or one.case["m"] == 3000 for one in products)  # in our own suite
    assert (roofs.device, roofs.recorded) == ("NVIDIA H200", False)
    assert roofs.bandwidth == pytest.approx(2**30 / 1e-3)
    assert roofs.rate("bf16") == roofs.rate("fp8_e4m3") == pytest.approx(2 * 8192**3 / 1e-3)
    assert roofs.rate("fp32") == pytest.approx(2 * 4096**3 / 1e-3)  # 8192 takes too long
    rows = {"sum", "softmax", "layer_norm", "rms_norm"}
    assert {point.op for point in points} == {"add", "clone", "permute_copy", "matmul"} | rows
    assert not any(point.recorded for point in points)


def test_live_points_come_only_from_the_requested_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend_live(monkeypatch)
    roofs, points = suites.live_or_recorded("elementwise")
    assert {one.op for one in asked} == {"add", "clone", "matmul"}  # the last two for the roofs
    assert {point.op for point in points} == {"add"}
    assert {"fp16", "bf16", "tf32", "fp32", "fp8_e4m3"} == set(roofs.matrix)


def test_live_roofs_are_refused_if_memory_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_live(monkeypatch)
    monkeypatch.setattr("workbench.device.free_memory_bytes", lambda: 6 * 10**8)
    with pytest.raises(
        NotMeasurableError, match=r"clone fp32 2\^26: needs 1\.21 GB of memory, 0\.60 GB are free"
    ):
        suites.live_or_recorded("elementwise")


def test_without_gpu_and_recording_the_error_gives_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(monkeypatch, tmp_path, line())
    with pytest.raises(NotMeasurableError, match="python -m workbench record"):
        suites.live_or_recorded()
    with pytest.raises(UnknownNameError, match="suite: 'reductions'"):
        suites.live_or_recorded("reductions")


def test_a_checkout_without_git_records_an_unknown_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKBENCH_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    one = Suite("mine", "", (case("clone", shape=[8]),))
    suites.record(one, tmp_path / "a.jsonl", interpreter=True, progress=False)
    assert json.loads((tmp_path / "a.jsonl").read_text())["commit"] == "unknown"


def test_an_interrupted_recording_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "new.jsonl"
    monkeypatch.setattr(suites, "_measure_case", interrupt)
    with pytest.raises(KeyboardInterrupt):
        suites.record("elementwise", path, interpreter=True)
    assert not path.exists()
    recording.append(path, [line()])
    with pytest.raises(KeyboardInterrupt):
        suites.record("elementwise", path, interpreter=True)
    assert recording.load(path) == [line()]


@pytest.mark.parametrize("wrong", [None, 3, ["all"], {"name": "all"}])
def test_a_suite_of_a_wrong_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="suite: got"):
        suites.record(wrong, interpreter=True)
    with pytest.raises(ArgumentTypeError, match="suite: got"):
        suites.run(wrong, interpreter=True)
    with pytest.raises(ArgumentTypeError, match="suite: got"):
        suites.plan(wrong)
    with pytest.raises(UnknownNameError, match="suite"):
        suites.get(wrong)
    with pytest.raises(UnknownNameError, match="suite"):
        suites.live_or_recorded(wrong)


def test_wrong_arguments_of_plan_are_named() -> None:
    everything = suites.get("all")
    with pytest.raises(ArgumentTypeError, match="here: got 'NVIDIA H200'"):
        suites.plan(everything, "NVIDIA H200")  # type: ignore[arg-type] # its name instead
    with pytest.raises(ArgumentTypeError, match="free_bytes"):
        suites.plan(everything, gpu(), 1e9)  # type: ignore[arg-type] # no whole number
    with pytest.raises(InvalidArgumentError, match="free_bytes: got -1"):
        suites.plan(everything, gpu(), -1)


@pytest.mark.parametrize("flag", [None, 1, "no"])
def test_flags_that_are_not_bools_are_refused(flag: Any, tmp_path: Path) -> None:
    one, path = Suite("mine", "", (case("clone", shape=[8]),)), tmp_path / "a.jsonl"
    with pytest.raises(ArgumentTypeError, match="interpreter"):
        suites.record(one, path, interpreter=flag)
    with pytest.raises(ArgumentTypeError, match="progress"):
        suites.record(one, path, interpreter=True, progress=flag)
    with pytest.raises(ArgumentTypeError, match="name_kernels"):
        suites.run(one, interpreter=True, name_kernels=flag)
    with pytest.raises(ArgumentTypeError, match="recorded"):
        suites.live_or_recorded(recorded=flag)
    assert not path.exists()


@pytest.mark.parametrize("path", [3, ["a.jsonl"], b"a.jsonl", "a\0b"])
def test_a_path_of_a_wrong_type_is_refused(path: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="path"):
        suites.record(TINY, path, interpreter=True)


def test_reasons_are_given_if_nothing_can_be_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(NotMeasurableError, match=r"'reduction'.*22 cases: CUDA graphs need a GPU\)"):
        suites.record("reduction", path, interpreter=True)
    with pytest.raises(NotMeasurableError, match="it has no cases"):
        suites.record(Suite("mine", "", ()), path, interpreter=True)
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"op": None}, ArgumentTypeError),
        ({"dtype": ["fp32"]}, ArgumentTypeError),
        ({"case": None}, ArgumentTypeError),
        ({"case": {"shape": (8,)}}, InvalidArgumentError),  # a recording holds a list
        ({"case": {"shape": 8}}, InvalidArgumentError),
        ({"case": {}}, InvalidArgumentError),
        ({"providers": "torch"}, ArgumentTypeError),
        ({"providers": None}, ArgumentTypeError),
        ({"providers": (3,)}, ArgumentTypeError),
        ({"mode": "interpreter"}, UnknownNameError),
    ],
)
def test_a_case_is_checked_when_it_is_made(change: dict[str, Any], error: type[Exception]) -> None:
    fields: dict[str, Any] = {"op": "clone", "dtype": "fp32", "case": {"shape": [8]}, "providers": ("torch",)}
    with pytest.raises(error, match=next(iter(change))):
        Case(**{**fields, **change})


def test_baselines_know_the_operators_of_the_cases_they_are_in() -> None:
    """A provider that does not have the operator would fail on a GPU only."""
    unknown = {
        (name, part)
        for case in suites.SUITES["all"].cases
        for name in case.providers
        for part in (measured.PARTS.get(case.op, {}).get(name, case.op),)
        if name in baseline.BASELINES and name not in comparing.baselines_of(suites.spec_of(part))
    }
    assert unknown == set()


COMPILED = sorted(
    {
        one.op
        for suite in suites.SUITES.values()
        for one in suite.cases
        if {suites.COMPILER, suites.AUTOTUNED} & set(one.providers)
    }
)


@pytest.mark.filterwarnings("ignore")  # torch.compile's own warnings change with its versions
@pytest.mark.parametrize("op", COMPILED)
def test_torchs_compiler_reads_each_operator_as_one_graph(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler makes no kernels here; what it cannot read would fail on a GPU only."""
    compiler: Any = torch.compile

    def read(function: Any, mode: str | None = None, **options: bool) -> Any:
        return compiler(function, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", read)
    monkeypatch.setattr(baseline.Baseline, "absence", lambda self, here=None: "")
    torch.compiler.reset()
    defaults = suites.spec_of(op).defaults(is_gpu=False)
    problem = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
    one = Case(op, "fp32", problem, (suites.COMPILER,))
    inputs = inputs_of(one)
    suites.check(one, inputs, result_of(suites.COMPILER, one, inputs), suites.COMPILER)


@pytest.mark.parametrize("cases", [None, 3, "all", ["clone"], case("clone", shape=[8])])
def test_a_suite_of_other_objects_is_refused(cases: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="cases"):
        Suite("mine", "", cases)
    with pytest.raises(ArgumentTypeError, match="name"):
        Suite(None, "", ())  # type: ignore[arg-type] # forgotten


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (case("matmul", rows=8, cols=8, dim=-1), "The keys of matmul are k, layout, m, n."),
        (case("matmul", m=8, n=8, k=8, layout="nn", batch=4), "matmul"),  # would be measured without
        (case("clone", shape=[8], alpha=2), "The keys of clone are shape."),
        (case("layer_norm", rows=8, cols=8, dim=0), "dim: got 0"),
        (case("add", shape=[]), "shape: got []"),
        (case("clone", shape=[5, 0]), "shape: got [5, 0]"),
    ],
)
def test_a_problem_that_would_be_measured_as_another_is_refused(wrong: Case, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        suites.plan(Suite("mine", "", (wrong,)))
    assert said in str(caught.value)


def test_results_that_are_not_tensors_fail_the_check() -> None:
    x = torch.ones(8)
    one = case("clone", shape=[8])
    inputs = arguments.given(x)
    with pytest.raises(ArgumentTypeError, match="result: got None"):
        suites.check(one, inputs, None, "mine")  # type: ignore[arg-type] # a kernel that returns nothing
    with pytest.raises(ArgumentTypeError, match=r"arguments\.args\[0\]: got None"):
        suites.check(one, arguments.given(None), x, "mine")  # as above
    with pytest.raises(ArgumentTypeError, match="arguments: got"):
        suites.check(one, (x,), x, "mine")  # type: ignore[arg-type] # without their keywords
    with pytest.raises(InvalidArgumentError, match="arguments: got 0"):
        suites.check(one, arguments.given(), x, "mine")
    with pytest.raises(InvalidArgumentError, match="arguments: got 1, alpha"):
        suites.check(one, arguments.given(x, alpha=2), x, "mine")
    with pytest.raises(ArgumentTypeError, match="case"):
        suites.check("clone", inputs, x, "mine")  # type: ignore[arg-type] # its operator instead
    for wrong in (x.int(), x.sum()):
        with pytest.raises(KernelError, match=r"mine gives a wrong result .*: (torch\.int32|shape)"):
            suites.check(one, inputs, wrong, "mine")
