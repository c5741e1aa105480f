"""What fusion saves, counted in traces: the product's bytes where rows fit a tile, and nothing where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workbench import fuse, ops
from workbench.errors import ArgumentTypeError, UnknownNameError
from workbench.kernels import reference

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
