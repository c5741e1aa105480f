"""Bytes that fusion saves, counted in traces of both plans, and the explorer that shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from workbench import explore, ops
from workbench.bench import recording
from workbench.bench.roofline import Ceilings
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
    UnsupportedDtypeError,
)
from workbench.kernels import epilogues, reference
from workbench.viz import FusionChoice

M, N, K, L = 32, 64, 32, 48
TILE = (16, 32, 32)


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def given(op: str) -> list[torch.Tensor]:
    a, b = half(M, K), half(K, N, seed=1)
    vectors = {"matmul_layer_norm": 2, "matmul_rms_norm": 1}.get(op, 0)
    if op == "matmul_matmul":
        return [a, half(K, L, seed=1), half(L, N, seed=2)]
    if op in ("swiglu", "geglu"):
        return [a, b, half(K, N, seed=2)]
    return [a, b, *(half(N, seed=2 + i) for i in range(vectors))]


def tile_of(op: str, cols: int) -> tuple[int, ...]:
    return (16, cols, 32, 16) if op == "matmul_matmul" else (16, cols, 32)


def test_every_fused_operator_has_two_plans() -> None:
    fused = {name for name in ops.__all__ if name.startswith("matmul_") or name in ("swiglu", "geglu")}
    assert set(explore.fusion.OPERATORS) == fused


@pytest.mark.parametrize("op", explore.fusion.OPERATORS)
def test_both_plans_give_the_same_result(op: str) -> None:
    tensors = given(op)
    plans = explore.fusion.plans(op, *tensors, tile=tile_of(op, 32), product_tile=TILE)
    got = plans.fused.run()[0].clone()
    want = [launch.run()[0] for launch in plans.unfused][-1]
    exact = getattr(reference, op)(*[t.double() for t in tensors])
    for each in (got, want):
        torch.testing.assert_close(each.double(), exact.double(), atol=0.05, rtol=0.01)


@pytest.mark.parametrize("op", ["matmul_layer_norm", "matmul_softmax"])
def test_a_product_whose_rows_fit_a_tile_never_reaches_memory(op: str) -> None:
    plans = explore.fusion.plans(op, *given(op), tile=tile_of(op, N), product_tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.fused_kernels, found.unfused_kernels) == (1, 2)
    assert found.saved == 2 * M * N * 2  # it would be stored and loaded once
    assert found.fused == plans.fused.work.bytes  # type: ignore[union-attr]  # the work is known
    by_name = {each.name: each for each in found.arguments}
    assert by_name["product"].saved == found.saved
    assert by_name["product"].fused_loaded == by_name["product"].fused_stored == 0
    assert by_name["A"].fused_loaded == by_name["A"].unfused_loaded == M * K * 2


def test_a_norm_in_two_steps_saves_nothing() -> None:
    """The product is still stored and loaded, and the states of its rows are added."""
    op = "matmul_layer_norm"
    plans = explore.fusion.plans(op, *given(op), tile=tile_of(op, 32), product_tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    states = 3 * M * (N // 32) * 4
    assert found.saved == -2 * states


@pytest.mark.parametrize("op", ["matmul_amax", "matmul_logsumexp"])
def test_a_reduction_saves_the_product_in_two_steps_too(op: str) -> None:
    parts = 2 if op == "matmul_logsumexp" else 1
    plans = explore.fusion.plans(op, *given(op), tile=tile_of(op, 32), product_tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.saved == 2 * M * N * 2 - 2 * parts * M * (N // 32) * 4


def test_a_gate_saves_both_products_and_one_load_of_a() -> None:
    plans = explore.fusion.plans("swiglu", *given("swiglu"), tile=TILE, product_tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.unfused_kernels == 3
    assert found.saved == 4 * M * N * 2 + M * K * 2


def test_a_tensor_passed_under_two_parameters_counts_once() -> None:
    """The unfused argmax loads the product, and one value of each row again for its index."""
    m, n, k = 17, 33, 20
    a, b, addend = half(m, k), half(k, n, seed=1), half(m, n, seed=2)
    plans = explore.fusion.plans("matmul_argmax", a, b)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.saved == 2 * m * n * 2
    plans = explore.fusion.chained(
        a, b, epilogues.add(addend) | epilogues.add(addend), tile=TILE, product_tile=TILE
    )
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.fused == 2 * (m * k + k * n + 2 * m * n)
    assert found.unfused == 2 * (m * k + k * n + 7 * m * n)


@pytest.mark.parametrize(
    ("op", "places", "kept"),
    [
        ("swiglu", (0, 1, 1), ["A", "gate"]),
        ("matmul_sum", (0, 0), ["A"]),
        ("matmul_matmul", (0, 0, 0), ["A"]),
        ("matmul_layer_norm", (0, 0, 1, 1), ["A", "weight"]),
    ],
)
def test_a_tensor_given_twice_has_its_first_name(op: str, places: tuple[int, ...], kept: list[str]) -> None:
    several = [half(M, M), half(M, seed=1) if op == "matmul_layer_norm" else half(M, M, seed=1)]
    plans = explore.fusion.plans(
        op, *[several[place] for place in places], tile=tile_of(op, M), product_tile=TILE
    )
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    names = [each.name for each in found.arguments]
    assert names[: len(kept)] == kept
    assert not {"up", "B0", "B1", "bias"} & set(names)
    if op == "swiglu":
        assert found.fused == 3 * M * M * 2
        assert found.saved == 6 * M * M * 2  # A and B once more, and both products stored and loaded


def test_a_chain_counts_a_tensor_given_as_every_operand_once() -> None:
    a = half(M, M)
    plans = explore.fusion.chained(a, a, epilogues.add(a), tile=TILE, product_tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.fused, found.unfused) == (2 * M * M * 2, 5 * M * M * 2)


def test_a_second_product_saves_the_first_and_its_activation() -> None:
    plans = explore.fusion.plans(
        "matmul_matmul", *given("matmul_matmul"), activation="gelu", tile=(16, 64, 32, 16), product_tile=TILE
    )
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.unfused_kernels == 3
    one = 2  # bytes of the factor 1 of the activation's kernel
    assert found.saved == 4 * M * L * 2 + one
    a, b0, b1 = (t.double() for t in given("matmul_matmul"))
    exact = reference.matmul_matmul(a, b0, b1, "gelu")
    for launch in (plans.fused, *plans.unfused):
        launch.run()
    torch.testing.assert_close(plans.fused.outputs[0].double(), exact, atol=0.05, rtol=0.02)


def test_a_launch_compared_with_itself_saves_nothing() -> None:
    plans = explore.fusion.plans("matmul_sum", *given("matmul_sum"), tile=TILE)
    found = explore.fusion.bytes_saved(plans.fused, plans.fused)
    assert found.saved == 0
    assert found.fused > 0
    assert {"a", "b"} <= {each.name for each in found.arguments}


def test_errors_name_the_wrong_argument() -> None:
    plans = explore.fusion.plans("matmul_sum", *given("matmul_sum"), tile=TILE)
    nothing: Any = None
    with pytest.raises(UnknownNameError, match="matmul_sum"):
        explore.fusion.plans("matmul_summ", *given("matmul_sum"))
    with pytest.raises(ArgumentTypeError, match="fused"):
        explore.fusion.bytes_saved(nothing, plans.unfused)
    with pytest.raises(ArgumentTypeError, match="unfused"):
        explore.fusion.bytes_saved(plans.fused, [nothing])
    a = torch.ones(16, 16)
    with pytest.raises(ArgumentTypeError, match="epilogue"):
        explore.fusion.chained(a, a, nothing)
    for op, count, wanted in (
        ("swiglu", 2, "Give 3"),
        ("matmul_sum", 3, "Give 2"),
        ("matmul_rms_norm", 4, "2 to 3"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"given: got {count} tensors for {op}. .*{wanted}"):
            explore.fusion.plans(op, *[a] * count)


def test_an_activation_for_an_operator_without_one_raises() -> None:
    for op in ("matmul_sum", "matmul_layer_norm", "swiglu"):
        with pytest.raises(InvalidArgumentError, match=f"activation: got 'relu' for {op}. .*matmul_matmul"):
            explore.fusion.plans(op, *given(op), activation="relu")


def test_errors_of_a_chain_name_the_wrong_operand() -> None:
    a, b = half(M, K), half(K, N, seed=1)
    relu, empty = epilogues.relu(), epilogues.Epilogue()
    for chain in (relu, empty):
        with pytest.raises(UnsupportedDtypeError, match=r"a: torch.float64\. Give fp16, bf16 or fp32"):
            explore.fusion.chained(a.double(), b.double(), chain)
    with pytest.raises(TensorMismatchError, match=r"a: shape \(1, 32, 32\)"):
        explore.fusion.chained(a[None], b, relu)
    with pytest.raises(TensorMismatchError, match=r"b: shape \(1, 32, 64\)"):
        explore.fusion.chained(a, b[None], relu)
    for last, given in (
        (epilogues.cast(torch.int8), "it casts to torch.int8. Leave the cast out"),
        (epilogues.permuted((M, N), (1, 0)), "it permutes the result. Leave the permutation out"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"epilogue: {given}"):
            explore.fusion.chained(a, b, last)


# Images, channels, height and width; features, groups, taps; stride and padding.
IMAGES = [
    ((2, 16, 6, 5), (16, 1, 3), 1, 1),  # a block of ResNet
    ((2, 32, 7, 6), (16, 2, 3), 2, 0),  # groups, and pixels in no window
    ((1, 8, 5, 8), (24, 1, 1), 1, 0),  # a matrix as it lies
    ((2, 3, 8, 6), (5, 1, 2), (1, 2), (2, 1)),  # too few channels and features for a wide access
]


def images(
    sizes: tuple[int, ...],
    kernel: tuple[int, int, int],
    stride: Any,
    padding: Any,
    format: torch.memory_format,
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], dict[str, Any], torch.Tensor]:
    """Return input, weight and bias, the options, and torch's result in float64."""
    features, groups, taps = kernel
    x, weight = half(*sizes), half(features, sizes[1] // groups, taps, taps, seed=1)
    x, weight = x.contiguous(memory_format=format), weight.contiguous(memory_format=format)
    bias = half(features, seed=2)
    options = {"stride": stride, "padding": padding, "groups": groups}
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), **options)
    return (x, weight, bias), options, exact


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "padding"),
    IMAGES,
    ids=["resnet block", "groups", "1 x 1", "narrow channels"],
)
def test_a_convolution_saves_the_results_between_its_functors(
    sizes: tuple[int, ...],
    kernel: tuple[int, int, int],
    stride: Any,
    padding: Any,
    format: torch.memory_format,
) -> None:
    tensors, options, exact = images(sizes, kernel, stride, padding, format)
    residual, wide = half(*exact.shape, seed=3), half(exact.shape[-1], seed=4)
    chain = epilogues.residual(residual) | epilogues.multiply(wide) | epilogues.relu()
    plans = explore.fusion.chained_conv2d(*tensors, **options, epilogue=chain)
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    functors, result = 3, 2 * exact.numel()
    assert found.saved == functors * 2 * result  # the result before each functor is stored and loaded once
    assert len(plans.unfused) == 1 + functors
    assert found.unfused_kernels == found.fused_kernels + functors
    by_name = {each.name: each for each in found.arguments}
    assert by_name["convolution"].saved == 2 * result
    assert by_name["output"].saved == by_name["residual 1"].saved == by_name["bias"].saved == 0
    copied = sum(each.saved for name, each in by_name.items() if name.startswith("copy of "))
    assert copied == by_name["input"].saved == by_name["weight"].saved == 0
    wanted = torch.relu((exact + residual) * wide)
    for launches in ((plans.fused,), plans.unfused):
        plans.fused.outputs[0].zero_()
        for launch in launches:
            (got,) = launch.run()
        torch.testing.assert_close(got.double(), wanted, atol=0.05, rtol=0.01)
        assert got.is_contiguous(memory_format=format)


def test_a_resnet_convolution_moves_the_bytes_of_the_formula() -> None:
    tensors, options, exact = images(*IMAGES[0], torch.channels_last)
    chain = epilogues.residual(half(*exact.shape, seed=3)) | epilogues.relu()
    plans = explore.fusion.chained_conv2d(*tensors, **options, epilogue=chain, tile=(16, 16, 16))
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.fused_kernels, found.unfused_kernels) == (1, 3)
    result = exact.numel()
    assert found.fused == 2 * (sum(each.numel() for each in tensors) + 2 * result)
    assert found.fused == plans.fused.work.bytes  # type: ignore[union-attr]  # the work is known
    assert found.saved == 2 * 4 * result


def test_a_convolution_alone_is_one_launch_in_both_plans() -> None:
    (x, weight, _), options, _ = images(*IMAGES[0], torch.contiguous_format)
    plans = explore.fusion.chained_conv2d(x, weight, **options, epilogue=epilogues.Epilogue())
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.saved, len(plans.unfused)) == (0, 1)
    assert plans.unfused[0].outputs[0] is plans.fused.outputs[0]


def test_both_plans_of_a_convolution_drop_the_same_elements() -> None:
    """The plans number elements by pixel and feature, which needs channels_last and one group."""
    tensors, options, _ = images(*IMAGES[0], torch.channels_last)
    chain = epilogues.relu() | epilogues.dropout(0.5, 7)
    plans = explore.fusion.chained_conv2d(*tensors, **options, epilogue=chain)
    fused = plans.fused.run()[0].clone()
    for launch in plans.unfused:
        (unfused,) = launch.run()
    torch.testing.assert_close(fused, unfused, atol=0.02, rtol=0.01)
    assert 0 < int((fused == 0).sum()) < fused.numel()
    for case, format in ((IMAGES[0], torch.contiguous_format), (IMAGES[1], torch.channels_last)):
        tensors, options, _ = images(*case, format)
        with pytest.raises(InvalidArgumentError, match=r"epilogue\[1\]: dropout .*position.*channels_last"):
            explore.fusion.chained_conv2d(*tensors, **options, epilogue=chain)


def test_errors_of_a_convolution_name_the_wrong_argument() -> None:
    (x, weight, bias), options, _ = images(*IMAGES[0], torch.contiguous_format)
    relu, nothing = epilogues.relu(), None
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ArgumentTypeError, "input: got None", {"input": nothing}),
        (ArgumentTypeError, "weight: got None", {"weight": nothing}),
        (ArgumentTypeError, "bias: got 3", {"bias": 3}),
        (ArgumentTypeError, "epilogue: got None", {"epilogue": nothing}),
        (UnsupportedDtypeError, "input: torch.float64", {"input": x.double(), "weight": weight.double()}),
        (TensorMismatchError, "weight: torch.float32", {"weight": weight.float()}),
        (TensorMismatchError, "bias: torch.float32", {"bias": bias.float()}),
        (TensorMismatchError, r"input: shape \(16, 6, 5\)", {"input": x[0]}),
        (TensorMismatchError, r"input: shape \(0, 16, 6, 5\)", {"input": x[:0]}),
        (
            TensorMismatchError,
            "input: layout torch.sparse_coo. Give input.to_dense",
            {"input": x.to_sparse()},
        ),
        (TensorMismatchError, "input: the negative view", {"input": x.to(torch.complex64).conj().imag}),
        (TensorMismatchError, r"bias: shape \(3,\)", {"bias": bias[:3]}),
        (TensorMismatchError, "input, weight: input has 16 channels", {"weight": weight[:, :4]}),
        (TensorMismatchError, "stride: got 0", {"stride": 0}),
        (TensorMismatchError, "padding: got 'some'", {"padding": "some"}),
        (TensorMismatchError, "weight, groups: 16", {"groups": 3}),
        (TensorMismatchError, r"epilogue\[0\], add: shape \(7,\)", {"epilogue": epilogues.add(half(7))}),
        (InvalidArgumentError, "epilogue: it casts", {"epilogue": epilogues.cast(torch.int8)}),
        (InvalidArgumentError, r"tile\[0\]: got 3", {"tile": (3, 16, 16)}),
    ]
    for error, message, given in wrong:
        with pytest.raises(error, match=message):
            explore.fusion.chained_conv2d(
                **{"input": x, "weight": weight, "bias": bias, "epilogue": relu, **options, **given}
            )


def formula(functors: tuple[str, ...], m: int, n: int, k: int) -> tuple[int, int]:
    """Return the bytes of both plans of a chain in fp16: each matrix once for each kernel that uses it."""
    size = {"": 0, "m": m, "n": n, "mn": m * n}
    own = sum(size[explore.fusion.FUNCTORS[name][0]] for name in functors)
    once = m * k + k * n + m * n + own
    return 2 * once, 2 * (once + 2 * len(functors) * m * n)


CHAINS = [(), ("add", "add", "fast_gelu"), ("bias", "silu", "row_scale", "clamp"), ("multiply", "scale")]


@pytest.mark.parametrize("functors", CHAINS, ids=" | ".join)
def test_the_explorer_shows_the_bytes_of_the_formula(functors: tuple[str, ...]) -> None:
    for sizes in ((4096, 2048, 64), (M, N, K)):
        found = explore.fusion.explored(FusionChoice(*sizes, functors=functors))
        assert (found.fused.bytes, found.unfused_bytes) == formula(functors, *sizes)
        assert [kernel.name for kernel in found.unfused] == ["product", *functors]
        assert sum(each.fused for each in found.tensors) == found.fused.bytes
        assert sum(each.unfused for each in found.tensors) == found.unfused_bytes


def test_both_plans_of_a_chain_agree_and_move_the_explorers_bytes() -> None:
    """The traced product differs from the explorer's, and its tiles hang over."""
    m, n, k = 20, 40, 24
    a, b = half(m, k), half(k, n, seed=1)
    first, second = half(m, n, seed=2), half(m, n, seed=3)
    chain = epilogues.add(first) | epilogues.add(second) | epilogues.fast_gelu()
    plans = explore.fusion.chained(a, b, chain, tile=(16, 32, 16), product_tile=(16, 32, 16))
    found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    expected = explore.fusion.explored(FusionChoice(m, n, k))
    assert (found.fused, found.unfused) == (expected.fused.bytes, expected.unfused_bytes)
    assert found.saved == 6 * m * n * 2
    exact = torch.nn.functional.gelu(a.double() @ b.double() + first + second, approximate="tanh")
    for launches in ((plans.fused,), plans.unfused):
        for launch in launches:
            (got,) = launch.run()
        torch.testing.assert_close(got.double(), exact, atol=0.01, rtol=0.002)


def test_the_explorer_shows_recordings_of_its_own_chain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(each for each in recording.shipped(explore.fusion.DEVICE) if each.op == "matmul")
    case = {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"}
    own = replace(
        line, op="fused_matmul", case=case, dtype="fp16", mode="burst", provider="workbench",
        median_ms=0.25, p20_ms=0.25, p80_ms=0.25,
    )  # fmt: skip
    monkeypatch.setattr(explore.fusion, "_recorded", lambda: (own,))
    (point,) = explore.fusion.explored(FusionChoice()).points
    assert (point.provider, point.seconds) == ("workbench", 0.25e-3)
    assert explore.fusion.explored(FusionChoice(functors=("add",))).points == ()
    assert explore.fusion.explored(FusionChoice(m=64)).points == ()


def test_one_line_opens_the_explorer() -> None:
    widget = explore.fusion.explore((4096, 4096, 64), ("bias", "silu"))
    assert widget.choice == FusionChoice(4096, 4096, 64, ("bias", "silu"))
    assert "in 3." in widget.picture.alt
    widget.functors[2].value = "add"
    assert "in 4." in widget.picture.alt
    assert (
        "def add(tile, operands, place):\n    return tile + operands[0]"
        in explore.fusion.explored(widget.choice).code
    )
    roofs = Ceilings(1e12, {"fp16": 1e14}, "A GPU", "2026-01-31", recorded=False)
    slow = explore.fusion.explored(widget.choice, roofs=roofs)
    assert slow.predicted[0] == pytest.approx(slow.fused.bytes / 1e12)


def test_the_explorer_offers_the_given_sizes() -> None:
    widget = explore.fusion.explore((17, 300, 17), ("relu",))
    assert widget.choice == FusionChoice(17, 300, 17, ("relu",))
    assert list(widget.sizes["k"].options) == [17, 64, 256, 300, *explore.fusion.SIZES[2:]]
    assert widget.facts[0].startswith("A product of 17 x 300 x 17")


def test_errors_of_the_explorer_name_the_wrong_argument() -> None:
    with pytest.raises(InvalidArgumentError, match=r"shape\[1\]: got 0"):
        explore.fusion.explore((64, 0, 64))
    with pytest.raises(InvalidArgumentError, match=r"^functors: got 5 functors\. Give 4 at most"):
        explore.fusion.explore(functors=("relu",) * 5)
    with pytest.raises(UnknownNameError, match="functor: 'ad'"):
        explore.fusion.explored(FusionChoice(functors=("ad",)))
    with pytest.raises(UnknownNameError, match="'ad'"):
        explore.fusion.explore(functors=("ad",))
    with pytest.raises(InvalidArgumentError, match=r"shape: got \(64, 64\)"):
        explore.fusion.explore((64, 64))
    with pytest.raises(InvalidArgumentError, match="functors: got 5"):
        explore.fusion.explored(FusionChoice(functors=("relu",) * 5))
    with pytest.raises(InvalidArgumentError, match="m: got 0"):
        explore.fusion.explored(FusionChoice(m=0))


def test_gains_under_the_recorded_roofs_agree_with_lesson_10() -> None:
    """At 4096 x 4096 time gains as much as bytes at K = 64, more at K = 512, and below 10 % at K = 16384."""
    found = {k: explore.fusion.explored(FusionChoice(k=k)) for k in (64, 512, 4096, 16384)}
    in_bytes = {k: each.unfused_bytes / each.fused.bytes for k, each in found.items()}
    in_time = {k: each.predicted[1] / each.predicted[0] for k, each in found.items()}
    assert in_time[64] == pytest.approx(in_bytes[64])
    assert round(in_bytes[64]) == 3
    assert in_time[512] > in_bytes[512]
    assert in_time[4096] < in_bytes[4096]
    assert in_time[16384] < 1.1
    assert [found[k].bound for k in (64, 512, 4096)] == ["memory", "memory", "compute"]
