"""Claims of lessons about recorded times and compiled kernels, checked by `python -m tools.lessons check`.

These are not tests of the package: if the next recording, or another version of Triton, contradicts a
sentence, write the sentence again.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

from tests.machines import H200
from workbench import explore, lens, suites, viz
from workbench.bench import from_recording, recording
from workbench.kernels import attention, gemm
from workbench.kernels.attention import CAUSAL, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.attention.hopper import Way
from workbench.kernels.choosing import convolution as choosing_convolution
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.instances import attention as attention_instances
from workbench.launch import Launch
from workbench.lens.compile import compile
from workbench.ops.convolution import geometry_of
from workbench.teach.rungs import attention_ladder, gemm_ladder

# Untyped, so that the tests can pass arguments from dictionaries.
forward: Any = attention.launch
backward: Any = attention_backward.launch

_SMALL: dict[str, Any] = {"of_keys": Tiling((16, 16)), "of_queries": Tiling((16, 16))}


@cache
def shipped(slug: str = "nvidia-h200") -> list[recording.Line]:
    return recording.load(recording.recordings_folder() / f"{slug}.jsonl")


CUBE = {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"}


@pytest.fixture(scope="module")
def rungs() -> dict[str, recording.Line]:
    """Return the lines of the product of lessons 05 and 06 by provider, in the last run of its rungs."""
    lines = shipped()
    lines = recording.select(lines, op="matmul", dtype="fp16", mode="events", case=CUBE)
    climbed = recording.latest_run(line for line in lines if line.provider.startswith("workbench:"))
    return {line.provider: line for line in recording.select(lines, run=climbed[0].run)}


@pytest.mark.parametrize(
    ("rung", "over", "least", "most"),
    [
        ("workbench:grouped", "workbench:ragged", 0.95, 1.05),  # "At 4096³ groups of 8 cannot help"
        ("workbench:pipelined", "workbench:grouped", 1.5, 4),  # "wherever they come from. That is next."
        ("workbench:pipelined", "cuBLAS", 0.9, 1),  # "the vendor's speed but for a few percent"
        ("workbench:split_k", "workbench:pipelined", 0, 0.8),  # "A rung that loses here"
        ("workbench:persistent", "workbench:pipelined", 0.9, 1.01),  # "the loop has a price"
        # "what rungs 9 to 11 change here is about as large as what one kernel gains over itself"
        ("workbench:descriptors", "workbench:persistent", 0.95, 1.05),
        ("workbench:flattened", "workbench:descriptors", 0.95, 1.05),
        ("workbench", "workbench:flattened", 0.95, 1.05),
    ],
)
def test_rungs_of_lesson_06_gained_what_its_prose_says(
    rungs: dict[str, recording.Line], rung: str, over: str, least: float, most: float
) -> None:
    assert least <= recording.ratio(rungs.values(), rung, over) <= most


def test_long_sum_of_lesson_06_keeps_up_with_the_better_library() -> None:
    lines = recording.select(shipped(), op="matmul", dtype="fp16", mode="cuda_graph")
    deep = recording.select(lines, case={"m": 384, "n": 384, "k": 65536, "layout": "nn"})
    run = recording.latest_run(line for line in deep if line.provider == "workbench")[0].run
    times = {line.provider: line.median_ms for line in recording.select(deep, run=run)}
    assert times["workbench"] < 1.1 * times["cuBLAS"]
    assert times["workbench"] < times["cuBLASLt"] / 2


def test_untuned_products_cost_a_few_percent_as_lesson_06_says() -> None:
    lines = recording.select(shipped(), op="matmul")
    ratios = [
        recording.ratio(recording.select(lines, run=best.run, case=best.case), "tuned", "workbench")
        for best in recording.select(lines, provider="tuned")
    ]
    assert len(ratios) >= 15
    assert math.prod(ratios) ** (1 / len(ratios)) < 1.05


def test_the_last_rung_of_lesson_06_is_the_kernel_that_matmul_chose_on_an_h200() -> None:
    """Today matmul chooses a kernel whose warp groups take turns; the compared runs have both kernels."""
    a, b, output = (torch.empty(4096, 4096, dtype=torch.float16) for _ in range(3))
    asked = choosing.asked_of(a, b, output, here=H200)
    ways = [choosing.choose(asked, takes_turns=turns) for turns in (True, False)]
    options: list[gemm.Options] = [{**way.keywords, "programs": 132} for way in ways]
    now, then = (gemm.launch(a, b, output=output, **way).steps[0] for way in options)
    (rung,) = gemm_ladder.flattened(a, b, output, programs=132).steps
    assert (then.kernel, then.grid, then.meta) == (rung.kernel, rung.grid, rung.meta)
    lines = recording.select(shipped(), op="matmul", dtype="fp16", mode="events", case=CUBE)
    ran = [
        recording.select(lines, run=top.run, provider="workbench")[0].config["kernels"]
        for top in recording.select(lines, provider="workbench:flattened")
    ]
    assert ran[-1] == [now.kernel.fn.__name__]
    assert sum(kernels == [rung.kernel.fn.__name__] for kernels in ran) >= 3


@pytest.mark.parametrize(
    ("rung", "over", "least", "most"),
    [
        ("workbench:row", "workbench:element", 10, 100),  # "Of that the count explains a factor of two"
        ("workbench:tile_sum", "workbench:row", 0.8, 1.0),  # "*not* faster than rung 2"
        ("workbench:dot", "workbench:tile_sum", 10, 100),  # "the tile's reuse is real at last"
        ("workbench:ragged", "workbench:dot", 1.1, 2),  # "fewer instructions and fewer registers"
        ("cuBLAS", "workbench:ragged", 2, 4),  # "What is left between rung 5 and the vendor's library"
    ],
)
def test_rungs_of_lesson_05_gained_what_its_prose_says(
    rungs: dict[str, recording.Line], rung: str, over: str, least: float, most: float
) -> None:
    assert least <= recording.ratio(rungs.values(), rung, over) <= most


def test_rungs_of_lesson_05_compile_to_what_its_prose_says() -> None:
    a, output = (torch.empty(4096, 4096, dtype=torch.float16) for _ in range(2))
    row, tile_sum, dot, ragged = (
        compile(gemm_ladder.LADDER[name](a, a, output), "sm_90")[0]
        for name in ("row", "tile_sum", "dot", "ragged")
    )
    for step in (row, tile_sum):
        adds = sum(each.opcode.startswith("FFMA") for each in step.instructions)
        assert step.count("global load") / adds == pytest.approx(1, abs=0.05)
    assert (row.occupancy.blocks, tile_sum.occupancy.blocks) == (16, 4)
    assert dot.widest("global load") == ragged.widest("global load") == 128
    assert ragged.occupancy.blocks == dot.occupancy.blocks + 1
    assert len(ragged.instructions) < len(dot.instructions)


def test_every_low_share_of_lesson_06_has_a_note() -> None:
    """The notes are rows that do not begin at a cache line, and waves that tiles of 128 x 256 do not fill."""
    lines = [
        line
        for line in recording.select(shipped(), op="matmul", dtype="fp16", case={"layout": "nn"})
        if line.provider in ("workbench", "cuBLAS", "cuBLASLt")
    ]
    with_vendor = {line.run for line in lines if line.provider == "cuBLAS"}
    ours = [line for line in lines if line.provider == "workbench" and line.run in with_vendor]
    latest = recording.select(lines, run=recording.latest_run(ours)[0].run)
    in_graph = {line.problem for line in latest if line.mode == "cuda_graph"}
    timed = [line for line in latest if line.mode == "cuda_graph" or line.problem not in in_graph]
    for own in (line for line in timed if line.provider == "workbench"):
        vendor = min(line.median_ms for line in timed if line.problem == own.problem and line is not own)
        if vendor / own.median_ms < 0.9:
            m, n, k = (own.case[name] for name in "mnk")
            waves = lens.waves.Waves(m, n, (128, 256))
            assert n * 2 % 128 or k * 2 % 128 or waves.efficiency < 0.8, own.problem


def test_what_remains_in_lesson_06_explains_the_notes_of_its_table_and_no_others() -> None:
    source = (Path(__file__).parents[2] / "lessons" / "source" / "06_fast_gemm.py").read_text()
    notes = re.findall(r'notes\.append\("(.+)"\)', source)
    told = source.partition("**What remains.**")[2].partition("# ## ")[0].replace("\n# ", " ")
    explained = [note.lower() for note in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", told)]
    assert len(notes) == 4
    assert sorted(explained) == sorted(notes)


def test_seven_programs_of_rung_6_fit_on_an_sm_as_lesson_06_says() -> None:
    a, b, output = (torch.empty(4096, 4096, dtype=torch.float16) for _ in range(3))
    (step,) = lens.compile(gemm_ladder.grouped(a, b, output), "sm_90")
    assert step.occupancy.blocks == 7


CONVOLUTIONS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight")


def shares_of_cudnn(op: str, **case: int) -> list[float]:
    """Return cuDNN's time over ours for each fp16 problem with these keys, in the operator's fullest run."""
    lines = recording.select(shipped(), op=op, dtype="fp16")
    runs = [line.run for line in sorted(lines, key=lambda line: line.time) if line.provider == "cuDNN"]
    fullest = max(dict.fromkeys(runs[::-1]), key=runs.count)  # the newest of several
    latest = recording.select(lines, run=fullest, case=case)
    problems = dict.fromkeys(line.problem for line in latest)
    several = [[line for line in latest if line.problem == problem] for problem in problems]
    return [recording.ratio(lines, "workbench", "cuDNN") for lines in several]


def geometric_mean(numbers: list[float]) -> float:
    return math.prod(numbers) ** (1 / len(numbers))


def test_convolutions_of_lesson_09_keep_up_with_cudnn_as_its_prose_says() -> None:
    """Forward and backward for weight take about as long as cuDNN; with one image the workbench is faster."""
    for op in ("conv2d", "conv2d_backward_weight"):
        assert 0.9 < geometric_mean(shares_of_cudnn(op, n=32) + shares_of_cudnn(op, n=2)) < 1.1
    assert geometric_mean(shares_of_cudnn("conv2d", n=1)) > 1.05
    strided = {op: geometric_mean(shares_of_cudnn(op, n=32, r=3, stride=2)) for op in CONVOLUTIONS}
    assert min(strided, key=lambda op: strided[op]) == "conv2d_backward_data"


@pytest.mark.parametrize(
    ("op", "case"),
    [
        ("conv2d_backward_data", {"n": 32, "r": 3, "stride": 2}),
        *((op, {"groups": 32}) for op in CONVOLUTIONS),
        ("conv2d", {"n": 32, "c": 512, "h": 28, "k": 256, "r": 1}),
        ("conv2d_backward_data", {"n": 32, "c": 512, "h": 7, "k": 512, "r": 3}),
        ("conv2d", {"n": 32, "c": 3}),
        ("conv2d", {"n": 2}),  # the UNet's
    ],
)
def test_convolutions_are_behind_cudnn_where_lesson_09_says(op: str, case: dict[str, int]) -> None:
    shares = shares_of_cudnn(op, **case)
    assert shares
    assert max(shares) < 0.97


@pytest.mark.parametrize(
    ("op", "provider", "case", "name"),
    [
        ("conv2d", "cuDNN", {"n": 32, "c": 128, "h": 28, "k": 128, "r": 3}, "implicit_gemm"),
        ("conv2d", "cuDNN", {"n": 32, "c": 512, "h": 28, "k": 256, "r": 1}, "nvjet"),
        ("conv2d_backward_data", "cuDNN", {"n": 32, "c": 128, "h": 56, "k": 128, "r": 3}, "indexed"),
        ("conv2d", "cuDNN", {"n": 32, "c": 3}, "nhwcAddPaddingKernel"),
        ("conv2d", "workbench", {"n": 32, "c": 3}, "view_kernel"),
        ("conv2d", "workbench", {"groups": 32}, "view_kernel"),
        ("conv2d_backward_weight", "workbench", {"groups": 32}, "view_kernel"),
        ("conv2d_backward_weight", "workbench", {"n": 32, "c": 64, "h": 56, "r": 3}, "sum_of_splits_kernel"),
    ],
)
def test_the_kernels_that_lesson_09_names_ran(
    op: str, provider: str, case: dict[str, int], name: str
) -> None:
    lines = shipped()
    lines = recording.select(lines, op=op, dtype="fp16", provider=provider, case=case)
    for line in recording.latest_run(lines):
        assert any(name in kernel for kernel in line.config["kernels"])


def test_cudnn_calls_cublas_for_most_1x1_windows_as_lesson_09_says() -> None:
    lines = recording.select(
        shipped(), op="conv2d", dtype="fp16", provider="cuDNN",
        case={"n": 32, "r": 1, "stride": 1},
    )  # fmt: skip
    latest = recording.latest_run(lines)
    products = [line for line in latest if any("nvjet" in kernel for kernel in line.config["kernels"])]
    assert len(products) > len(latest) / 2


def test_ridge_lies_between_im2col_and_the_implicit_product_of_lesson_09() -> None:
    """By im2col the layer does 57 FLOP a byte and waits for memory; implicitly it does 563 FLOP a byte."""
    roofs, _ = suites.live_or_recorded("matmul", recorded=True)
    assert 57 < roofs.rate("fp16") / roofs.bandwidth < 563


def test_ridge_lies_between_attention_in_three_kernels_and_in_one_as_lesson_11_says() -> None:
    """Three kernels do d / 2 FLOP a byte at most, for heads of 64 and 128; one does n / 2, for n = 4,096."""
    roofs, _ = suites.live_or_recorded("matmul", recorded=True)
    assert 2 * 128 / 2 < roofs.rate("fp16") / roofs.bandwidth < 4096 / 2


Curves = dict[tuple[int, bool, str], dict[int, recording.Line]]


@pytest.fixture(scope="module")
def attention_run() -> list[recording.Line]:
    """Return the run that lesson 11 shows, with its roofs."""
    lines = shipped()
    climbed = recording.select(lines, op="scaled_dot_product_attention", provider="workbench:online")
    return recording.select(lines, run=recording.latest_run(climbed)[0].run)


@pytest.fixture(scope="module")
def curves(attention_run: list[recording.Line]) -> Curves:
    """Return the run's lines with 2,048 columns in all heads by (columns, mask, provider), then by tokens."""
    found: Curves = {}
    for line in recording.select(attention_run, op="scaled_dot_product_attention", dtype="fp16"):
        case = line.case
        if case["h"] * case["d"] == case["h_kv"] * case["d"] == 2048:
            found.setdefault((case["d"], case["causal"], line.provider), {})[case["n_q"]] = line
    return found


@pytest.mark.parametrize(
    ("masked", "rung", "other_masked", "over", "least", "most"),
    [
        (True, "workbench:causal", False, "workbench:online", 1.94, 2.15),  # "a little *more* than its tiles"
        (True, "workbench:grouped_queries", True, "workbench:causal", 1.15, 1.25),  # "gains a fifth"
        (False, "workbench:portable", False, "workbench:online", 1.28, 1.4),  # "a third without a mask"
        (True, "workbench:portable", True, "workbench:grouped_queries", 0.97, 1.05),  # "hardly anything"
        (False, "workbench", False, "workbench:portable", 1.03, 1.2),  # "less than a fifth"
        (True, "workbench", True, "workbench:portable", 0.96, 1.04),  # "the very same kernel"
    ],
)
def test_rungs_of_lesson_11_gained_what_its_prose_says(
    curves: Curves, masked: bool, rung: str, other_masked: bool, over: str, least: float, most: float
) -> None:
    slower, faster = curves[64, other_masked, over][4096], curves[64, masked, rung][4096]
    assert least <= slower.median_ms / faster.median_ms <= most


def test_rungs_of_lesson_11_lie_under_the_roofs_where_its_prose_says(
    attention_run: list[recording.Line], curves: Curves
) -> None:
    roofs = from_recording(attention_run)
    rate = {name: 1e12 * (by[4096].tflops or 0) for (d, masked, name), by in curves.items()
            if (d, masked) == (64, False)}  # fmt: skip
    line = curves[64, False, "workbench:unfused"][4096]
    moved = 128 * (8 * 4096 * 64 + 8 * 4096**2)
    assert 0.7 < moved / (line.median_ms / 1e3) / roofs.bandwidth < 0.8  # "three quarters"
    allowed = (moved / roofs.bandwidth) / ((line.flops or 0) / roofs.rate("fp16"))
    assert 0.55 < rate["workbench:online"] / rate["workbench:unfused"] / allowed < 0.65  # "three fifths"
    half = roofs.rate("fp16") / 2
    assert max(rate["workbench:online"], rate["FlashAttention-2"]) < half
    assert half < rate["workbench:portable"] < rate["workbench"]
    assert half < min(rate["cuDNN"], rate["flex_attention"])
    short = curves[64, True, "workbench"][512]
    assert (short.flops or 0) / (short.bytes or 1) < roofs.rate(
        "fp16"
    ) / roofs.bandwidth  # "left of the ridge"


def test_lesson_11_is_behind_cudnn_and_ahead_where_its_prose_says(curves: Curves) -> None:
    families = [(d, masked) for d in (64, 128) for masked in (False, True)]
    shares = {
        (d, masked, tokens): line.median_ms / curves[d, masked, "workbench"][tokens].median_ms
        for d, masked in families
        for tokens, line in curves[d, masked, "cuDNN"].items()
    }
    assert min(shares, key=lambda key: shares[key]) == (128, True, 512)
    for d, masked in families:
        assert max(shares[d, masked, tokens] for tokens in (512, 1024)) < 0.97
        assert min(shares[d, masked, tokens] for tokens in (16384, 32768)) > 0.97
        ours = curves[d, masked, "workbench"]
        for tokens, line in curves[d, masked, "FlashAttention-2"].items():
            assert line.median_ms > 1.25 * ours[tokens].median_ms  # "far below"
        assert curves[d, masked, "flex_attention"][4096].median_ms > ours[4096].median_ms
    for d in (64, 128):
        assert shares[d, True, 512] < shares[d, False, 512]  # "without a mask lack less"
    for masked in (False, True):  # "further for 64 columns than for 128"
        narrow, wide = (curves[d, masked, "workbench"][16384].median_ms for d in (64, 128))
        assert narrow > wide


def test_short_sequences_lose_fixed_cost_and_not_time_per_key_in_lesson_11(curves: Curves) -> None:
    """Each line fits its four points; the slopes are equal, and ours has the larger constant."""
    fits = {}
    for provider in ("workbench", "cuDNN"):
        by_length = curves[64, True, provider]
        lengths = [tokens for tokens in sorted(by_length) if tokens <= 4096]
        seen = np.array([(tokens + 1) / 2 for tokens in lengths])
        times = np.array([by_length[tokens].median_ms for tokens in lengths])
        slope, besides = fits[provider] = np.polyfit(seen, times, 1)
        np.testing.assert_allclose(besides + slope * seen, times, rtol=0.05)
    ours, theirs = fits["workbench"], fits["cuDNN"]
    assert ours[0] == pytest.approx(theirs[0], rel=0.05)
    assert ours[1] > 1.3 * theirs[1]


def test_the_kernels_that_lesson_11_names_ran(curves: Curves) -> None:
    for tokens, line in curves[64, True, "workbench"].items():
        portable = line.config["kernels"] == ["attention_kernel"]
        assert portable == (tokens <= 4096)
    for d, masked in ((64, False), (128, False), (128, True)):
        assert curves[d, masked, "workbench"][4096].config["kernels"] == ["attention_hopper_kernel"]


def test_programs_per_sm_are_as_many_as_lesson_11_counts() -> None:
    x = torch.empty(1, 16, 4096, 64, dtype=torch.float16)
    rungs = [attention_ladder.LADDER[name](x, x, x, torch.empty_like(x)) for name in ("online", "causal")]
    tile, warps, stages, _ = tiling = attention_ladder.PORTABLE[64]
    assert attention_instances.DESCRIBED[64] == tiling == Tiling((64, 128), 4, 2, descriptors=True)
    portable = forward(x, x, x, descriptors=True, tile=tile, num_warps=warps, num_stages=stages, splits=1)
    ways = attention_instances.ON_HOPPER[64, True]
    assert isinstance(ways[0][1], Way)
    hopper = forward(x, x, x, Scoring(window=CAUSAL), hopper=ways[0][1])
    blocks = [lens.compile(launch, "sm_90")[0].occupancy.blocks for launch in (*rungs, portable, hopper)]
    assert blocks == [2, 2, 3, 1]


LEVELS = ("workbench:thread", "workbench:warp", "workbench:block")


def test_the_fastest_level_is_the_one_that_lesson_13_names() -> None:
    lines = shipped()
    run = recording.latest_run(recording.select(lines, op="sum", provider=LEVELS[1]))[0].run
    times: dict[int, dict[str, float]] = {}
    for line in recording.select(lines, op="sum", dtype="fp16", run=run):
        times.setdefault(line.case["cols"], {})[line.provider] = line.median_ms
    best = {cols: min(LEVELS, key=lambda level: by[level]) for cols, by in times.items()}
    assert [cols for cols in sorted(best) if best[cols] == LEVELS[0]] == [8, 32]
    assert times[128][LEVELS[2]] > 1.5 * times[128][LEVELS[1]]  # "far ahead"
    leads = [times[cols][LEVELS[2]] / times[cols][LEVELS[1]] for cols in (512, 1024, 4096)]
    assert 0.8 < min(leads) < 1 < max(leads) < 1.25  # "by less than a quarter"
    assert best[65536] == LEVELS[2]
    for cols, by in times.items():  # "about as fast as the best of the three on each line"
        assert by["workbench"] < 1.05 * by[best[cols]]
    assert 10 * times[2**22]["workbench"] < times[2**22][best[2**22]]  # "none of the three"
    for provider in ("workbench", "torch"):  # "nearly as fast as before"
        assert times[2**22][provider] < 1.1 * times[65536][provider]


def test_calls_cost_as_much_as_lesson_13_says() -> None:
    """A call costs more than its kernel with every provider, and Triton's own launches more than ours."""
    lines = shipped()
    for op, problems in (("add", 1), ("matmul", 2)):
        own = recording.select(lines, op=op)
        run = recording.latest_run(line for line in own if line.provider == "Triton autotuned")[0].run
        by: dict[str, dict[str, recording.Line]] = {}
        for line in recording.select(own, run=run):
            by.setdefault(line.problem, {})[line.provider] = line
        called = [each for each in by.values() if "Triton autotuned" in each]
        assert len(called) == problems
        for each in called:
            ours, plain, tuned = (
                each[name].config["launch_us"] for name in ("workbench", "Triton", "Triton autotuned")
            )
            assert ours < plain < tuned
            more = ours / each["torch"].config["launch_us"]
            assert 1.125 < more < 1.185  # "some 13 to 18 % more"
            assert all(line.config["launch_us"] > 1e3 * line.median_ms for line in each.values())


@pytest.mark.parametrize(
    ("kind", "channels", "size", "features", "tile", "tiles"),
    [
        ("forward", 128, 28, 128, (128, 128), 196),  # "Its 196 tiles of 128 x 128"
        ("backward_data", 512, 7, 512, (64, 128), 100),  # "It has 100 tiles of 64 x 128"
    ],
)
def test_tiles_are_as_many_as_lesson_09_counts(
    kind: str, channels: int, size: int, features: int, tile: tuple[int, int], tiles: int
) -> None:
    image = torch.empty(32, channels, size, size, device="meta")
    weight = torch.empty(features, channels, 3, 3, device="meta")
    problem = choosing_convolution.problem_of(kind, geometry_of(2, image, weight, padding=1), 32)
    found = choosing_convolution.fastest(problem, 132).tile
    assert found is not None
    assert found[:2] == tile
    assert -(-problem.m // tile[0]) * -(-problem.n // tile[1]) == tiles


@pytest.mark.parametrize(("columns", "fits"), [(64, True), (128, False)])
def test_default_tiles_leave_or_exhaust_registers_as_lesson_12_says(columns: int, fits: bool) -> None:
    """The test counts registers of the keys kernel on Hopper, of 255."""
    of_keys, _ = attention_backward.default_tilings(torch.float16, columns)
    assert of_keys.tile == (64, 128)  # whose sums the lesson counts
    assert of_keys.num_warps == 8
    heads = [torch.empty(1, 1, 256, columns, dtype=torch.float16) for _ in range(5)]
    launch = backward(*heads, torch.empty(1, 1, 256))
    (step,) = compile(Launch(launch.steps[1:2], launch.outputs[1:]), "sm_90")
    assert step.kernel == "gradients_of_keys_kernel"
    assert (step.registers < 250 and step.spills == 0) == fits


def test_the_backward_has_as_many_products_as_lesson_12_counts() -> None:
    """Two kernels compute seven products of tiles, one kernel five; the forward has 1 / 2.5 of the FLOPs."""
    given = [torch.zeros(1, 1, 16, 16) for _ in range(5)]
    for one_pass, products in ((False, 7), (True, 5)):
        launch = backward(*given, torch.zeros(1, 1, 16), one_pass=one_pass, **_SMALL)
        dots = [event for step in lens.trace(launch) for event in step.events(kind="dot")]
        assert len(dots) == products
    assert launch.work.flops == 2.5 * forward(*given[:3]).work.flops


TUNED = "torch.compile max-autotune"
FOLLOWED = ("matmul_layer_norm", "matmul_rms_norm", "matmul_softmax", "matmul_matmul", "swiglu")
# The large problems of lesson 10 with a long K.
LONG_K = ("4096^3", "16384 x 4096 x 4096", "8192 x 16384 x 4096", "4096 x 11008 x 4096")
SHORT_K = ("2048 x 3072 x 768", "4096 x 4096 x 512")


def latest_of(op: str, mode: str = "cuda_graph") -> dict[str, dict[str, recording.Line]]:
    """Return the lines of an operator in lesson 10, by problem and provider."""
    lines = shipped()
    found: dict[str, dict[str, recording.Line]] = {}
    for line in recording.latest_run(recording.select(lines, op=op, dtype="fp16", mode=mode)):
        found.setdefault(line.problem, {})[line.provider] = line
    return found


def runs_of(problem: str, slug: str) -> list[dict[str, recording.Line]]:
    """Return the lines of a fused product by provider for each run in bursts on a GPU, the newest last."""
    runs: dict[str, dict[str, recording.Line]] = {}
    lines = shipped(slug)
    for line in recording.select(lines, op="fused_matmul", dtype="fp16", mode="burst"):
        if line.problem == problem:
            runs.setdefault(line.run, {})[line.provider] = line
    return list(runs.values())


def microseconds(by: dict[str, recording.Line]) -> dict[str, float]:
    return {provider: 1e3 * line.median_ms for provider, line in by.items()}


def ratios_to_ours(by: dict[str, recording.Line]) -> dict[str, float]:
    return {provider: line.median_ms / by["workbench"].median_ms for provider, line in by.items()}


def tiles_of(line: recording.Line, rows: int, cols: int) -> int:
    m, n = int(line.case["m"]), int(line.case["n"])
    return -(-m // rows) * -(-n // cols)


@pytest.fixture(scope="module")
def fused() -> dict[str, dict[str, recording.Line]]:
    found = latest_of("fused_matmul", "burst")
    assert len(found) == 10
    return found


def test_the_chain_at_2048_cubed_cost_as_much_elsewhere_as_lesson_10_says() -> None:
    runs = map(microseconds, runs_of("2048^3", "nvidia-h200"))
    assert 1.09 in {round(times["workbench"] / times["workbench:bare"], 2) for times in runs}  # "it was nine"
    times = microseconds(runs_of("2048^3", "nvidia-h100-80gb-hbm3")[-1])
    assert round(times["workbench"] / times["workbench:bare"], 2) == 1.07  # "on an H100 it is seven"


@pytest.mark.parametrize(
    ("problem", "least", "most"),
    [
        *((problem, 1.03, 1.06) for problem in LONG_K),  # "three to six hundredths"
        ("2048^3", 1.045, 1.055),  # "no more than they do, five hundredths"
        *((problem, 1.18, 1.46) for problem in SHORT_K),  # "from about a fifth to over two fifths"
    ],
)
def test_the_chain_of_lesson_10_costs_as_much_as_its_prose_says(
    fused: dict[str, dict[str, recording.Line]], problem: str, least: float, most: float
) -> None:
    times = microseconds(fused[problem])
    assert least < times["workbench"] / times["workbench:bare"] < most


def test_addends_of_lesson_10_cost_as_much_as_its_prose_says(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    for problem in (*LONG_K, *SHORT_K):
        case = fused[problem]["workbench"].case
        explored = explore.fusion.explored(viz.FusionChoice(case["m"], case["n"], case["k"]))
        assert explored.roofs is not None
        addends = 1e6 * 4 * case["m"] * case["n"] / explored.roofs.bandwidth
        times = microseconds(fused[problem])
        more = times["workbench"] - times["workbench:bare"]
        if problem in LONG_K:  # "a third to seven tenths of what the addends' bytes would take alone"
            assert 1 / 3 < more / addends < 0.7
        else:  # "about half of what the addends' bytes take, or over", and far from what the model promised
            assert 0.45 < more / addends < 1
            promised = 1e6 * explored.predicted[0]
            sum_of_both = times["workbench:bare"] + addends
            assert times["workbench"] - promised > sum_of_both - times["workbench"]  # "nearer to the sum"


def test_time_without_products_is_as_long_as_lesson_10_says(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    shares, over_bare = {}, {}
    for problem, by in fused.items():
        times = microseconds(by)
        if rest := times.get("workbench:without products"):
            shares[problem] = rest / times["workbench"]
            over_bare[problem] = rest / times["workbench:bare"]
    assert set(shares) == {*LONG_K, *SHORT_K, "2048^3"}
    for problem in LONG_K:  # "some three fifths"
        assert 0.57 < shares[problem] < 0.67
    for problem in SHORT_K:  # "more than four fifths"
        assert shares[problem] > 0.8
    assert 1.25 < over_bare["4096 x 4096 x 512"] < 1.35  # "by more than a quarter"
    long, short = (max(shares[problem] for problem in LONG_K), min(shares[problem] for problem in SHORT_K))
    assert long + 0.1 < shares["2048^3"] < short + 0.04  # "more than of those, and up to as much as of these"
    runs = [
        microseconds(by)
        for by in runs_of("2048 x 3072 x 768", "nvidia-h200")
        if "workbench:without products" in by
    ]
    left = [times["workbench:without products"] / times["workbench"] for times in runs]
    assert 0.795 < min(left) <= max(left) < 1.03  # "from 0.80 to 1.02 of the whole"
    left = [times["workbench:without products"] / times["workbench:bare"] for times in runs]
    assert 0.935 < min(left) <= max(left) < 1.225  # "0.94 to 1.22 of the bare product"
    times = microseconds(runs_of("2048 x 3072 x 768", "nvidia-h100-80gb-hbm3")[-1])
    assert round(times["workbench:without products"] / times["workbench"], 2) == 0.90  # "0.90 is left"
    line = fused["2048 x 3072 x 768"]["workbench"]
    products = 2 * line.case["m"] * line.case["n"] * line.case["k"]
    assert round(products / line.bytes) == 212  # "212 FLOP a byte"


def test_kernels_follow_from_tile_counts_as_lesson_10_says(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    for by in fused.values():
        line = by["workbench"]
        tiles = tiles_of(line, 128, 128)
        has_more = tiles > 2 * 132 and line.case["k"] >= 1024  # "where an SM has more tiles, and K is long"
        rounds = [-(-tiles_of(line, 128, cols) // 132) for cols in (128, 192)]
        name = "gemm_pairs_kernel" if has_more else "gemm_ping_pong_kernel"
        if rounds == [3, 2] and line.case["k"] >= 640:  # "three tiles of 128 x 128, but two of 128 x 192"
            name = "gemm_wide_kernel"
        assert (name in line.config["kernels"]) == (tiles >= 132)
    assert tiles_of(fused["2048^3"]["workbench"], 128, 128) == 256


def test_torch_compile_is_as_far_behind_as_lesson_10_says(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    ratios = {problem: ratios_to_ours(by) for problem, by in fused.items()}
    tuned = {problem: each[TUNED] for problem, each in ratios.items()}
    assert min(tuned.values()) > 1  # "slower on all ten"
    assert min(tuned[problem] for problem in LONG_K) > 1.12  # "an eighth slower or more"
    *before, newest = map(microseconds, runs_of("4096^3", "nvidia-h200"))
    ratios_before = sorted(times[TUNED] / times["workbench"] for times in before)
    assert ratios_before[0] > 1.055  # "once 6 %"
    assert 1.09 < ratios_before[1] <= ratios_before[-1] < 1.115  # "some 10 %"
    assert newest[TUNED] / newest["workbench"] > 1.2  # "longer in this run than in all such runs before"
    are_fused: dict[str, set[bool]] = {}
    for problem in fused:
        for by in runs_of(problem, "nvidia-h200"):
            kernels = [name for name in by[TUNED].config["kernels"] if "Mem" not in name]
            are_fused.setdefault(problem, set()).add(len(kernels) == 1)
    assert sum(len(each) == 2 for each in are_fused.values()) == 5  # "fused in one run, and not in another"
    assert "4096^3" not in {problem for problem, each in are_fused.items() if len(each) == 2}
    assert all(times[TUNED] < times["workbench:chained"] for times in before)  # "in all runs but this one"
    assert newest["workbench:chained"] < newest[TUNED]
    in_one = {
        problem
        for problem, by in fused.items()
        if sum("Mem" not in name for name in by[TUNED].config["kernels"]) == 1
    }
    assert not in_one & set(LONG_K)  # "of the large products with a long K"
    assert tuned["16 x 4096 x 4096"] > 1.35  # "over a third as long again"


def test_four_kernels_lose_at_most_what_the_roofs_allow_as_lesson_10_says(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    shares = {}
    for problem, by in fused.items():
        case = by["workbench"].case
        least, unfused = explore.fusion.explored(viz.FusionChoice(case["m"], case["n"], case["k"])).predicted
        gained = ratios_to_ours(by)["torch"]
        assert gained > 1
        shares[problem] = gained / (unfused / least)
    assert all(abs(shares[problem] - 1) < 0.03 for problem in LONG_K)  # "about what the roofs allow"
    assert all(shares[problem] < 0.85 for problem in (*SHORT_K, "1000^3"))  # "a sixth less or more"


def test_chain_that_lesson_10_builds_is_ahead_of_torch(
    fused: dict[str, dict[str, recording.Line]],
) -> None:
    times = microseconds(fused["4096^3"])
    assert times["workbench:chained"] < times["torch"]


def newest_of(op: str) -> dict[str, dict[str, recording.Line]]:
    """Return the lines of an operator in lesson 10 by problem and provider, of each problem's newest run."""
    lines = [line for slug in ("nvidia-h200", "nvidia-h100-80gb-hbm3") for line in shipped(slug)]
    found: dict[str, dict[str, recording.Line]] = {}
    for problem in {line.problem for line in recording.select(lines, op=op, mode="cuda_graph")}:
        own = recording.select(lines, op=op, dtype="fp16", mode="cuda_graph")
        run = recording.latest_run(line for line in own if line.problem == problem)
        found[problem] = {line.provider: line for line in run if line.problem == problem}
    return found


def test_norms_pairs_and_gates_of_lesson_10_gain_where_its_prose_says() -> None:
    lines = {op: newest_of(op) for op in FOLLOWED}
    in_one = {
        (op, problem): ratios_to_ours(by)
        for op, of_op in lines.items()
        for problem, by in of_op.items()
        if len(by["workbench"].config["kernels"]) == 1
    }
    assert all(min(ratios["torch"], ratios[TUNED]) > 1 for ratios in in_one.values())  # "ahead everywhere"
    gates = sorted(lines["swiglu"].values(), key=lambda by: by["workbench"].case["k"])
    gains = [ratios_to_ours(by)[TUNED] for by in gates]
    assert min(gains[:2]) > max(gains[2:])  # "most where K is short"
    is_short = {
        each: each[0] != "swiglu" or lines[each[0]][each[1]]["workbench"].case["k"] <= 512 for each in in_one
    }
    assert min(ratios[TUNED] for each, ratios in in_one.items() if is_short[each]) > 1.2  # "a fifth"
    in_all = {
        (op, problem): ratios_to_ours(by)["torch"]
        for op, of_op in lines.items()
        for problem, by in of_op.items()
    }
    assert max(in_all, key=lambda each: in_all[each]) == ("matmul_layer_norm", "131072 x 64 x 64")
    norm = ratios_to_ours(lines["matmul_layer_norm"]["131072 x 64 x 64"])
    assert norm["torch"] > 3 * norm[TUNED]  # "more about torch's layer norm of very short rows"
    for op in ("matmul_layer_norm", "matmul_rms_norm"):
        for problem, by in lines[op].items():
            has_long_rows = by["workbench"].case["n"] >= 1024
            assert (len(by["workbench"].config["kernels"]) == 2) == has_long_rows, problem
        assert ratios_to_ours(lines[op]["4096^3"])[TUNED] < 1  # "those of 4,096 columns are losses"
    wide = lines["matmul_matmul"]["4096^3, l 4096"]
    assert "gemm_pair_kernel" not in wide["workbench"].config["kernels"]
    assert 0.95 < ratios_to_ours(wide)["torch"] < 1.05  # "about as fast as torch"


BACKWARD = "scaled_dot_product_attention_backward"
Case = tuple[int, int, bool, int]  # columns, heads of keys, mask, tokens
Gradients = dict[str, dict[Case, dict[str, recording.Line]]]


@pytest.fixture(scope="module")
def gradient_lines() -> Gradients:
    """Return the lines of lesson 12 by dtype and problem, then by provider, of each dtype's newest run."""
    own = recording.select(shipped(), op=BACKWARD)
    found: Gradients = {"fp16": {}, "bf16": {}}
    for dtype, provider in (("fp16", "workbench:one_pass"), ("bf16", "workbench")):
        of_type = recording.select(own, dtype=dtype)
        run = recording.latest_run(line for line in of_type if line.provider == provider)[0].run
        for line in recording.select(of_type, run=run):
            key = (line.case["d"], line.case["h_kv"], line.case["causal"], line.case["n_q"])
            found[dtype].setdefault(key, {})[line.provider] = line
    return found


def lead(by: dict[str, recording.Line], over: str) -> float:
    """Return the package's speed over a library's."""
    return by[over].median_ms / by["workbench"].median_ms


def test_one_pass_is_slower_in_lesson_12_wherever_it_was_recorded(gradient_lines: Gradients) -> None:
    slower = {
        case[:3]: lead(by, "workbench:one_pass")
        for case, by in gradient_lines["fp16"].items()
        if "workbench:one_pass" in by
    }
    assert slower.keys() == {(d, 2048 // d, masked) for d in (64, 128) for masked in (False, True)}
    assert min(slower.values()) > 1
    assert [4096 // tiling.tile[1] for tiling in attention_ladder.ONE_PASS.values()] == [32, 32]


def test_lesson_12_is_behind_cudnn_and_ahead_of_the_others_where_its_prose_says(
    gradient_lines: Gradients,
) -> None:
    by_case = gradient_lines["fp16"]
    shares = {case: lead(by, "cuDNN") for case, by in by_case.items()}
    for masked in (False, True):
        assert shares[64, 32, masked, 512] > 1.03  # "the shortest texts with heads of 64 columns are ahead"
        for d in (64, 128):
            assert shares[d, 2048 // d, masked, 512] > 0.9  # the figure: "near cuDNN or above it"
            assert max(shares[d, 2048 // d, masked, 2**power] for power in range(11, 16)) < 0.97
        assert shares[256, 8, masked, 4096] == pytest.approx(5 / 7, abs=0.04)  # "near it"
        assert 0.9 < shares[128, 8, masked, 4096] / shares[128, 16, masked, 4096] < 1  # "a little more"
    for name, least in (
        ("FlashAttention-2", (256, 8, False, 4096)),
        ("flex_attention", (128, 16, True, 4096)),
    ):
        leads = {case: lead(by, name) for case, by in by_case.items() if name in by}
        assert min(leads, key=lambda case: leads[case]) == least
        assert leads[least] > 1
    for case, by in by_case.items():
        if case[1] * case[0] == 2048 and case[0] < 256:
            assert lead(by, "FlashAttention-2") > 1.3  # the figure: "far below both"
            assert by["FlashAttention-2"].median_ms > 1.3 * by["cuDNN"].median_ms
        if "flex_attention" in by:
            assert by["flex_attention"].median_ms < by["FlashAttention-2"].median_ms


def test_bf16_is_like_fp16_as_lesson_12_says(gradient_lines: Gradients) -> None:
    assert gradient_lines["bf16"].keys() == gradient_lines["fp16"].keys()
    for case, by in gradient_lines["bf16"].items():
        for name in ("cuDNN", "FlashAttention-2"):
            assert lead(by, name) == pytest.approx(lead(gradient_lines["fp16"][case], name), rel=0.1)
        assert lead(by, "FlashAttention-2") > 1


def test_keys_cost_more_than_in_cudnn_and_the_rest_less_in_lesson_12(gradient_lines: Gradients) -> None:
    """A key costs less than 7/5 of a key in cuDNN, the ratio of the products; the rest costs less."""
    fits = []
    lengths = [512, 1024, 2048, 4096]
    for provider in ("workbench", "cuDNN"):
        times = [gradient_lines["fp16"][64, 32, False, tokens][provider].median_ms for tokens in lengths]
        slope, besides = np.polyfit(lengths, times, 1)
        np.testing.assert_allclose(besides + slope * np.array(lengths), times, rtol=0.03)
        fits.append((slope, besides))
    assert 1.05 < fits[0][0] / fits[1][0] < 7 / 5
    assert fits[0][1] < fits[1][1]
    for d in (64, 128, 256):
        assert lead(gradient_lines["fp16"][d, 2048 // d, False, 4096], "cuDNN") > 5 / 7


def test_the_kernels_that_lesson_12_names_ran(gradient_lines: Gradients) -> None:
    """Ours are delta and two portable kernels; cuDNN and FlashAttention-2 have one for all gradients."""
    ours = ["delta_kernel", "gradients_of_keys_kernel", "gradients_of_queries_kernel"]
    for by in (by for by_case in gradient_lines.values() for by in by_case.values()):
        assert all(line.mode == "cuda_graph" for line in by.values())
        assert by["workbench"].config["kernels"] == ours
        for name, loop in (("cuDNN", "bprop"), ("FlashAttention-2", "dq_dk_dv_loop")):
            kernels = by[name].config["kernels"]
            assert sum(loop in kernel for kernel in kernels) == 1
            assert any("convert_dq" in kernel for kernel in kernels)
        assert any("Memset" in kernel for kernel in by["cuDNN"].config["kernels"])


def test_the_backward_keeps_the_bytes_that_lesson_12_says() -> None:
    """The bytes are 4 for each query of a head, and in one pass also 4 for each element of dQ."""
    for length in (512, 4096):
        heads = [torch.empty(1, 32, length, 64, dtype=torch.float16, device="meta") for _ in range(5)]
        sums = torch.empty(1, 32, length, device="meta")
        for one_pass, numbers in ((False, 1), (True, 1 + 64)):
            kept = backward(*heads, sums, one_pass=one_pass).workspaces
            assert sum(space.nbytes for space in kept) == 4 * 32 * length * numbers


@pytest.mark.parametrize(
    ("columns", "masked"), [(64, False), (64, True), (128, False), (128, True), (256, False), (256, True)]
)
def test_eight_warps_of_the_keys_kernel_fit_on_an_sm_as_lesson_12_counts(columns: int, masked: bool) -> None:
    """The tiles are those of an H200 at 4,096 tokens."""
    tiling = next(tiling for least, tiling in attention_instances.OF_KEYS[columns, masked] if least <= 4096)
    if columns < 256:  # "smaller, for four warps"
        default = attention_backward.default_tilings(torch.float16, columns)[0]
        assert math.prod(tiling.tile) < math.prod(default.tile)
        assert tiling.num_warps == 4
    heads = [torch.empty(1, 1, 4096, columns, dtype=torch.float16) for _ in range(5)]
    scoring = Scoring(window=CAUSAL) if masked else Scoring()
    launch = backward(*heads, torch.empty(1, 1, 4096), scoring, of_keys=tiling)
    (step,) = compile(Launch(launch.steps[1:2], launch.outputs[1:]), "sm_90")
    assert step.occupancy.blocks * tiling.num_warps == 8


NOTEBOOKS = sorted((Path(__file__).parents[2] / "lessons").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_table_of_a_lesson_is_empty(path: Path) -> None:
    """A selection that matches nothing in a later recording would leave only the head of a table."""
    outputs = [out for cell in nbformat.read(path, 4).cells for out in cell.get("outputs", ())]
    for text in (out.get("data", {}).get("text/markdown", "") for out in outputs):
        lines = [*text.splitlines(), ""]
        for i, line in enumerate(lines):
            if re.fullmatch(r"\|( ?:?-+:? ?\|)+", line.strip()):
                assert lines[i + 1].startswith("|"), lines[max(i - 1, 0)]
