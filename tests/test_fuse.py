"""What fusion saves, counted in traces: the product's bytes where rows fit a tile, and nothing where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from workbench import fuse, ops
from workbench.bench import recording
from workbench.bench.roofline import Ceilings
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
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
    assert set(fuse.OPERATORS) == fused


@pytest.mark.parametrize("op", fuse.OPERATORS)
def test_both_plans_give_the_same(op: str) -> None:
    tensors = given(op)
    plans = fuse.plans(op, *tensors, tile=tile_of(op, 32), product_tile=TILE)
    got = plans.fused.run()[0].clone()
    want = [launch.run()[0] for launch in plans.unfused][-1]
    exact = getattr(reference, op)(*[t.double() for t in tensors])
    for each in (got, want):
        torch.testing.assert_close(each.double(), exact.double(), atol=0.05, rtol=0.01)


@pytest.mark.parametrize("op", ["matmul_layer_norm", "matmul_softmax"])
def test_a_product_whose_rows_fit_a_tile_is_never_in_memory(op: str) -> None:
    plans = fuse.plans(op, *given(op), tile=tile_of(op, N), product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.fused_kernels, found.unfused_kernels) == (1, 2)
    assert found.saved == 2 * M * N * 2  # stored, and loaded
    assert found.fused == plans.fused.work.bytes  # type: ignore[union-attr]  # it is known
    by_name = {each.name: each for each in found.arguments}
    assert by_name["product"].saved == found.saved
    assert by_name["product"].fused_loaded == by_name["product"].fused_stored == 0
    assert by_name["A"].fused_loaded == by_name["A"].unfused_loaded == M * K * 2


def test_in_two_steps_a_norm_saves_nothing() -> None:
    """The product is stored and loaded as before, and states of its rows besides: fusion does not pay."""
    op = "matmul_layer_norm"
    plans = fuse.plans(op, *given(op), tile=tile_of(op, 32), product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    states = 3 * M * (N // 32) * 4
    assert found.saved == -2 * states


@pytest.mark.parametrize("op", ["matmul_amax", "matmul_logsumexp"])
def test_a_reduction_saves_the_product_in_two_steps_too(op: str) -> None:
    parts = 2 if op == "matmul_logsumexp" else 1
    plans = fuse.plans(op, *given(op), tile=tile_of(op, 32), product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.saved == 2 * M * N * 2 - 2 * parts * M * (N // 32) * 4


def test_a_gate_saves_both_products_and_a_reading_of_a() -> None:
    plans = fuse.plans("swiglu", *given("swiglu"), tile=TILE, product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.unfused_kernels == 3
    assert found.saved == 4 * M * N * 2 + M * K * 2


def test_what_a_kernel_has_under_two_parameters_counts_once() -> None:
    """The reduction of the other plan loads the product's values, and one of each row again for its place."""
    m, n, k = 17, 33, 20
    a, b, addend = half(m, k), half(k, n, seed=1), half(m, n, seed=2)
    plans = fuse.plans("matmul_argmax", a, b)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.saved == 2 * m * n * 2
    plans = fuse.chained(a, b, epilogues.add(addend) | epilogues.add(addend), tile=TILE, product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
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
def test_a_tensor_given_twice_is_called_by_its_first_name(
    op: str, places: tuple[int, ...], kept: list[str]
) -> None:
    several = [half(M, M), half(M, seed=1) if op == "matmul_layer_norm" else half(M, M, seed=1)]
    plans = fuse.plans(op, *[several[place] for place in places], tile=tile_of(op, M), product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    names = [each.name for each in found.arguments]
    assert names[: len(kept)] == kept
    assert not {"up", "B0", "B1", "bias"} & set(names)
    if op == "swiglu":
        assert found.fused == 3 * M * M * 2
        assert found.saved == 6 * M * M * 2  # A and B again, and both products stored and loaded


def test_a_chain_takes_one_tensor_for_all_that_it_is_given() -> None:
    a = half(M, M)
    plans = fuse.chained(a, a, epilogues.add(a), tile=TILE, product_tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert (found.fused, found.unfused) == (2 * M * M * 2, 5 * M * M * 2)


def test_a_second_product_saves_the_first_and_what_activates_it() -> None:
    plans = fuse.plans(
        "matmul_matmul", *given("matmul_matmul"), activation="gelu", tile=(16, 64, 32, 16), product_tile=TILE
    )
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    assert found.unfused_kernels == 3
    one = 2  # of 1, with which the activation's kernel multiplies
    assert found.saved == 4 * M * L * 2 + one
    a, b0, b1 = (t.double() for t in given("matmul_matmul"))
    exact = reference.matmul_matmul(a, b0, b1, "gelu")
    for launch in (plans.fused, *plans.unfused):
        launch.run()
    torch.testing.assert_close(plans.fused.outputs[0].double(), exact, atol=0.05, rtol=0.02)


def test_one_launch_beside_itself_saves_nothing() -> None:
    plans = fuse.plans("matmul_sum", *given("matmul_sum"), tile=TILE)
    found = fuse.bytes_saved(plans.fused, plans.fused)
    assert found.saved == 0
    assert found.fused > 0
    assert {"a", "b"} <= {each.name for each in found.arguments}


def test_arguments_are_checked() -> None:
    plans = fuse.plans("matmul_sum", *given("matmul_sum"), tile=TILE)
    nothing: Any = None
    with pytest.raises(UnknownNameError, match="matmul_sum"):
        fuse.plans("matmul_summ", *given("matmul_sum"))
    with pytest.raises(ArgumentTypeError, match="fused"):
        fuse.bytes_saved(nothing, plans.unfused)
    with pytest.raises(ArgumentTypeError, match="unfused"):
        fuse.bytes_saved(plans.fused, [nothing])
    a = torch.ones(16, 16)
    with pytest.raises(ArgumentTypeError, match="epilogue"):
        fuse.chained(a, a, nothing)
    for op, count, wanted in (
        ("swiglu", 2, "Give 3"),
        ("matmul_sum", 3, "Give 2"),
        ("matmul_rms_norm", 4, "2 to 3"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"given: got {count} tensors for {op}. .*{wanted}"):
            fuse.plans(op, *[a] * count)


def formula(functors: tuple[str, ...], m: int, n: int, k: int) -> tuple[int, int]:
    """What both plans of a chain move in fp16: each matrix once for each kernel that has it."""
    size = {"": 0, "m": m, "n": n, "mn": m * n}
    own = sum(size[fuse.FUNCTORS[name][0]] for name in functors)
    once = m * k + k * n + m * n + own
    return 2 * once, 2 * (once + 2 * len(functors) * m * n)


CHAINS = [(), ("add", "add", "fast_gelu"), ("bias", "silu", "row_scale", "clamp"), ("multiply", "scale")]


@pytest.mark.parametrize("functors", CHAINS)
def test_the_explorer_scales_traces_to_what_the_formula_says(functors: tuple[str, ...]) -> None:
    for sizes in ((4096, 2048, 64), (M, N, K)):
        found = fuse.explored(FusionChoice(*sizes, functors=functors))
        assert (found.fused.bytes, found.unfused_bytes) == formula(functors, *sizes)
        assert [kernel.name for kernel in found.unfused] == ["product", *functors]
        assert sum(each.fused for each in found.tensors) == found.fused.bytes
        assert sum(each.unfused for each in found.tensors) == found.unfused_bytes


def test_both_plans_of_a_chain_give_the_same_and_move_what_the_explorer_says() -> None:
    """A trace of another product than the explorer's, whose tiles hang over."""
    m, n, k = 20, 40, 24
    a, b = half(m, k), half(k, n, seed=1)
    first, second = half(m, n, seed=2), half(m, n, seed=3)
    chain = epilogues.add(first) | epilogues.add(second) | epilogues.fast_gelu()
    plans = fuse.chained(a, b, chain, tile=(16, 32, 16), product_tile=(16, 32, 16))
    found = fuse.bytes_saved(plans.fused, plans.unfused, plans.tensors)
    expected = fuse.explored(FusionChoice(m, n, k))
    assert (found.fused, found.unfused) == (expected.fused.bytes, expected.unfused_bytes)
    assert found.saved == 6 * m * n * 2
    exact = torch.nn.functional.gelu(a.double() @ b.double() + first + second, approximate="tanh")
    for launches in ((plans.fused,), plans.unfused):
        for launch in launches:
            (got,) = launch.run()
        torch.testing.assert_close(got.double(), exact, atol=0.01, rtol=0.002)


def test_the_explorer_shows_what_was_recorded_of_its_chain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(each for each in recording.shipped(fuse.DEVICE) if each.op == "matmul")
    case = {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"}
    own = replace(
        line, op="fused_matmul", case=case, dtype="fp16", mode="burst", provider="workbench",
        median_ms=0.25, p20_ms=0.25, p80_ms=0.25,
    )  # fmt: skip
    monkeypatch.setattr(fuse, "_recorded", lambda: (own,))
    (point,) = fuse.explored(FusionChoice()).points
    assert (point.provider, point.seconds) == ("workbench", 0.25e-3)
    assert fuse.explored(FusionChoice(functors=("add",))).points == ()
    assert fuse.explored(FusionChoice(m=64)).points == ()


def test_the_explorer_in_one_line() -> None:
    widget = fuse.explore((4096, 4096, 64), ("bias", "silu"))
    assert widget.choice == FusionChoice(4096, 4096, 64, ("bias", "silu"))
    assert "in 3." in widget.picture.alt
    widget.functors[2].value = "add"
    assert "in 4." in widget.picture.alt
    assert (
        "def add(tile, operands, place):\n    return tile + operands[0]" in fuse.explored(widget.choice).code
    )
    roofs = Ceilings(1e12, {"fp16": 1e14}, "A GPU", "2026-01-31", recorded=False)
    slow = fuse.explored(widget.choice, roofs=roofs)
    assert slow.predicted[0] == pytest.approx(slow.fused.bytes / 1e12)


def test_arguments_of_the_explorer_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="functor: 'ad'"):
        fuse.explored(FusionChoice(functors=("ad",)))
    with pytest.raises(UnknownNameError, match="'ad'"):
        fuse.explore(functors=("ad",))
    with pytest.raises(InvalidArgumentError, match="got 2 sizes"):
        fuse.explore((64, 64))
    with pytest.raises(InvalidArgumentError, match="functors: got 5"):
        fuse.explored(FusionChoice(functors=("relu",) * 5))
    with pytest.raises(InvalidArgumentError, match="m: got 0"):
        fuse.explored(FusionChoice(m=0))


def test_what_lesson_10_says_of_gains_under_the_recorded_roofs() -> None:
    """Of its chain, 4096 x 4096: bytes at first, more at K = 512, and less than a tenth at the end."""
    found = {k: fuse.explored(FusionChoice(k=k)) for k in (64, 512, 4096, 16384)}
    in_bytes = {k: each.unfused_bytes / each.fused.bytes for k, each in found.items()}
    in_time = {k: each.predicted[1] / each.predicted[0] for k, each in found.items()}
    assert in_time[64] == pytest.approx(in_bytes[64])
    assert round(in_bytes[64]) == 3
    assert in_time[512] > in_bytes[512]
    assert in_time[4096] < in_bytes[4096]
    assert in_time[16384] < 1.1
    assert [found[k].bound for k in (64, 512, 4096)] == ["memory", "memory", "compute"]
