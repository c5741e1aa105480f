"""The data flow of attention's backward, read from traces of real launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.attention.cases import seen, tensors
from workbench import explore
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, PLAIN, Mask, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import scores
from workbench.launch import Launch
from workbench.readings.attention_gradients import KernelFlow, gradient_flow
from workbench.runtime import interpret

QUERIES, KEYS, SIZE, VALUE_SIZE = 48, 64, 16, 32


def launched(
    scoring: Scoring = PLAIN, size: int = SIZE, *, queries: int = QUERIES, keys: int = KEYS, **options: Any
) -> Launch:
    query, key, value = tensors(1, 2, 1, queries, keys, size, value_size=VALUE_SIZE)
    forward = attention.launch(query, key, value, scoring, tile=(16, 16), splits=1)
    output, log_sums = interpret(forward).outputs
    tilings = {"of_keys": Tiling((16, 32)), "of_queries": Tiling((32, 16))}
    return attention_backward.launch(
        torch.ones_like(output), query, key, value, output, log_sums, scoring, **{**tilings, **options}
    )


def by_name(kernel: KernelFlow) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {flow.name: (flow.part, flow.shape) for flow in kernel.flows}


def test_one_kernel_keeps_tiles_of_keys_and_the_other_one_tiles_of_queries() -> None:
    rows, of_keys, of_queries = gradient_flow(launched()).kernels
    assert rows.kernel == "delta_kernel"
    assert {name: part for name, (part, _) in by_name(rows).items()} == {
        "O": "passing", "dO": "passing", "δ": "written",
    }  # fmt: skip
    assert by_name(of_keys) == {
        "K": ("kept", (32, 16)), "V": ("kept", (32, 32)),
        "Q": ("passing", (16, 16)), "dO": ("passing", (16, 32)), "L": ("passing", (16,)),
        "δ": ("passing", (16,)), "dK": ("written", (32, 16)), "dV": ("written", (32, 32)),
    }  # fmt: skip
    assert by_name(of_queries) == {
        "Q": ("kept", (32, 16)), "dO": ("kept", (32, 32)), "L": ("kept", (32,)), "δ": ("kept", (32,)),
        "K": ("passing", (16, 16)), "V": ("passing", (16, 32)), "dQ": ("written", (32, 16)),
    }  # fmt: skip


@pytest.mark.parametrize("descriptors", [False, True])
def test_partial_tiles_are_read_like_whole_ones(descriptors: bool) -> None:
    """A program may visit one whole tile and one partial tile at most."""
    tilings: dict[str, Any] = {
        "of_keys": Tiling((16, 32), descriptors=descriptors),
        "of_queries": Tiling((32, 16), descriptors=descriptors),
    }
    _, *even = gradient_flow(launched()).kernels
    for queries, keys in ((50, 70), (20, 20)):
        _, *ragged = gradient_flow(launched(queries=queries, keys=keys, **tilings)).kernels
        for kernel, other in zip(ragged, even, strict=True):
            assert [(flow.name, flow.part, flow.shape) for flow in kernel.flows] == [
                (flow.name, flow.part, flow.shape) for flow in other.flows
            ]
            by = {flow.name: flow for flow in kernel.flows}
            passing, rows = ("Q", 2 * queries) if "keys" in kernel.kernel else ("K", keys)
            assert by[passing].tiles == kernel.visits
            assert by[passing].distinct_bytes == rows * SIZE * 4


def test_the_products_have_the_shapes_of_their_names() -> None:
    # The columns of queries and keys differ from those of values, which tells the products apart.
    flow = gradient_flow(launched())
    _, of_keys, of_queries = flow.kernels
    assert [(one.name, one.shape) for one in of_keys.products] == [
        ("Sᵀ = K Qᵀ", (32, 16, SIZE)),
        ("dPᵀ = V dOᵀ", (32, 16, VALUE_SIZE)),
        ("dV += Pᵀ dO", (32, VALUE_SIZE, 16)),
        ("dK += dSᵀ Q", (32, SIZE, 16)),
    ]
    assert [(one.name, one.shape) for one in of_queries.products] == [
        ("S = Q Kᵀ", (32, 16, SIZE)),
        ("dP = dO Vᵀ", (32, 16, VALUE_SIZE)),
        ("dQ += dS K", (32, SIZE, 16)),
    ]
    assert flow.products == 7
    pairs = 2 * 48 * KEYS  # of both heads, all visited
    assert of_keys.flops == 2 * pairs * (2 * SIZE + 2 * VALUE_SIZE)
    assert of_queries.flops == 2 * 2 * 64 * KEYS * (2 * SIZE + VALUE_SIZE)  # half a tile is beyond the end
    assert repr(flow) == ("GradientFlow(delta_kernel, gradients_of_keys_kernel, gradients_of_queries_kernel)")


def test_one_pass_adds_to_the_gradient_of_queries() -> None:
    flow = gradient_flow(launched(one_pass=True))
    _, of_keys, rounding = flow.kernels
    assert flow.products == 5
    assert of_keys.products[-1].name == "dQ += dS K"
    assert of_keys.products[-1].shape == (16, SIZE, 32)
    (added,) = of_keys.of("added")
    assert (added.name, added.shape, added.tiles) == ("dQ", (16, SIZE), of_keys.visits)
    assert rounding.kernel == "round_kernel"


def test_columns_in_two_parts_are_one_tile() -> None:
    _, of_keys, _ = gradient_flow(launched(size=150)).kernels
    assert by_name(of_keys)["K"] == ("kept", (32, 192))
    assert by_name(of_keys)["dK"] == ("written", (32, 192))
    assert [one.shape for one in of_keys.products] == [
        (32, 16, 192), (32, 16, 32), (32, 32, 16), (32, 192, 16),
    ]  # fmt: skip
    assert {one.times for one in of_keys.products} == {of_keys.visits}


def test_visits_are_the_tiles_that_the_mask_leaves() -> None:
    _, of_keys, of_queries = gradient_flow(launched(Scoring(window=CAUSAL))).kernels
    visible = seen(CAUSAL, QUERIES, KEYS)
    for kernel, (block_m, block_n) in ((of_keys, (16, 32)), (of_queries, (32, 16))):
        padded = torch.zeros(64, KEYS, dtype=torch.bool)
        padded[:QUERIES] = visible
        some = padded.unflatten(0, (-1, block_m)).unflatten(2, (-1, block_n)).any(3).any(1)
        assert kernel.visits == 2 * int(some.sum())  # two heads
    assert of_queries.most_visits == 3


def test_bytes_are_counted_by_kernel() -> None:
    _, of_keys, of_queries = gradient_flow(launched()).kernels
    by = {flow.name: flow for flow in of_keys.flows}
    assert by["K"].bytes == by["K"].distinct_bytes == KEYS * SIZE * 4
    assert by["Q"].distinct_bytes == 2 * QUERIES * SIZE * 4
    assert by["Q"].times == 2  # tiles of keys
    assert of_keys.loaded == 4 * (KEYS * (SIZE + VALUE_SIZE) + 2 * 2 * QUERIES * (SIZE + VALUE_SIZE + 2))
    assert of_keys.stored == 4 * KEYS * (SIZE + VALUE_SIZE)
    assert of_queries.stored == 4 * 2 * QUERIES * SIZE


def test_reads_of_masks_are_listed_by_parameter() -> None:
    documents = torch.arange(64, dtype=torch.int32) // 20
    mask = Mask(scores.same_document, (documents, 64), of_batch=False, of_head=False)
    flow = gradient_flow(launched(Scoring(mask=mask)))
    assert [kernel.kernel for kernel in flow.kernels].count("visits_kernel") == 2
    of_keys = next(kernel for kernel in flow.kernels if kernel.kernel == "gradients_of_keys_kernel")
    assert {"mask_extra", "visits"} <= {one.argument for one in of_keys.flows}


def test_launches_that_cannot_be_read_are_refused() -> None:
    large = Tiling((64, 64))
    with pytest.raises(
        InvalidArgumentError,
        match=r"no program of gradients_of_queries_kernel visits more than 1 tiles.*smaller tiles",
    ):
        gradient_flow(launched(of_queries=large))
    query, key, value = tensors(1, 1, 1, 16, 16, 16)
    with pytest.raises(InvalidArgumentError, match=r"launch: .*Give kernels\.attention\.backward\.launch"):
        gradient_flow(attention.launch(query, key, value))
    with pytest.raises(ArgumentTypeError, match="launch"):
        gradient_flow(3)  # type: ignore[arg-type]
    assert explore.attention.gradients is gradient_flow
