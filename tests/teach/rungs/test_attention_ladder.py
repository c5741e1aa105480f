"""Every rung of attention is correct, moves what lesson 11 says, and compiles without a spill."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.attention.cases import assert_by_rule, plain, tensors
from workbench import lens
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels.attention import CAUSAL, EVERYTHING, Window
from workbench.kernels.instances import attention as instances
from workbench.launch import Launch
from workbench.lens.compile import CompiledStep
from workbench.runtime import interpret
from workbench.teach.rungs import attention_ladder, ladder
from workbench.teach.rungs.attention_ladder import LADDER

AT_END = Window(right=0, from_end=True)

each_rung = pytest.mark.parametrize("name", LADDER)


def launched(name: str, *given: torch.Tensor, from_end: bool = False) -> Launch:
    """Return the rung's launch with tiles so small that a few rows make several tiles."""
    options: dict[str, Any] = {"block_m": 16} if name == "whole_rows" else {"tile": (16, 32)}
    if name in ("causal", "grouped_queries"):
        options["from_end"] = from_end
    return LADDER[name](*given, torch.empty_like(given[0]), **options)


def window_of(name: str, from_end: bool) -> Window:
    if name in ("whole_rows", "online"):
        return EVERYTHING
    return AT_END if from_end else CAUSAL


@each_rung
@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [
        (1, 1, 16),
        (17, 33, 32),
        (40, 70, 16),  # the last query sees more than one tile
        (70, 40, 16),  # aligned at the end, the first queries see nothing
        (32, 64, 64),  # no tile hangs over
    ],
)
def test_every_rung_computes_attention_for_any_lengths(
    name: str, from_end: bool, queries: int, keys: int, size: int
) -> None:
    key_heads = 2 if name == "grouped_queries" else 4
    given = tensors(1, 4, key_heads, queries, keys, size, torch.float16)
    outputs = interpret(launched(name, *given, from_end=from_end), poison=True, seed=3).outputs
    window = window_of(name, from_end)
    exact, sums = plain(*given, window=window)
    assert_by_rule(outputs[0], exact, plain(*given, window=window, dtype=torch.float16)[0])
    if name != "whole_rows":
        torch.testing.assert_close(outputs[1].double(), sums, rtol=1e-5, atol=1e-5)


@each_rung
def test_every_rung_takes_heads_interleaved_in_memory(name: str) -> None:
    """The rows of all heads lie side by side in memory, those of the output too."""
    query, key, value = (
        tensor.transpose(1, 2).contiguous().transpose(1, 2)
        for tensor in tensors(2, 2, 2, 20, 35, 16, torch.bfloat16)
    )
    (got, *_) = launched(name, query, key, value).run()
    window = window_of(name, False)
    exact, _ = plain(query, key, value, window=window)
    assert_by_rule(got, exact, plain(query, key, value, window=window, dtype=torch.bfloat16)[0])


@pytest.mark.parametrize(("name", "tiles"), [("online", 64), ("causal", 36), ("grouped_queries", 36)])
def test_rungs_visit_only_tiles_that_the_mask_leaves(name: str, tiles: int) -> None:
    """Visited tiles have two products each; of 8 x 8 tiles, 36 lie on and below the diagonal."""
    given = tensors(1, 1, 1, 128, 128, 16, torch.float16)
    (trace,) = lens.trace(LADDER[name](*given, torch.empty_like(given[0]), tile=(16, 16)))
    assert len(list(trace.events(kind="dot"))) == 2 * tiles


@each_rung
def test_loads_touch_all_inputs_and_stores_all_outputs(name: str) -> None:
    given = tensors(1, 1, 1, 64, 64, 16, torch.float16)
    launch = launched(name, *given)
    (trace,) = lens.trace(launch)
    assert trace.traffic(kind="load").distinct_bytes == 3 * 64 * 16 * 2
    assert trace.traffic(kind="store").distinct_bytes == sum(output.nbytes for output in launch.outputs)


def test_work_counts_only_visible_pairs() -> None:
    given = tensors(1, 1, 1, 64, 64, 16, torch.float16)
    for name, pairs in (("online", 64 * 64), ("causal", 64 * 65 // 2)):
        work = launched(name, *given).work
        assert work is not None
        assert (work.flops, work.bytes) == (4 * pairs * 16, 4 * 64 * 16 * 2)


@cache
def compiled(name: str, target: str) -> CompiledStep:
    query = torch.empty(1, 16, 4096, 64, dtype=torch.float16)
    key = query[:, :, :64] if name == "whole_rows" else query
    (step,) = lens.compile(LADDER[name](query, key, key, torch.empty_like(query)), target)
    return step


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@each_rung
def test_every_rung_uses_matrix_units_and_does_not_spill(name: str, target: str) -> None:
    step = compiled(name, target)
    assert step.count("matrix") > 0
    assert (step.spills, step.problem) == (0, "")


def test_whole_rows_of_many_keys_spill() -> None:
    """The scores of a whole tile exceed the registers, as lesson 11 says."""
    query = torch.empty(1, 1, 64, 64, dtype=torch.float16)
    key = torch.empty(1, 1, 1024, 64, dtype=torch.float16)
    (step,) = lens.compile(LADDER["whole_rows"](query, key, key, torch.empty_like(query)), "sm_90")
    assert step.spills > 0


@each_rung
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 2, 8, 16), (1, 2, 8, 32), (1, 2, 8, 32)),
        ((1, 2, 8, 24), (1, 2, 8, 24), (1, 2, 8, 24)),
        ((1, 2, 8, 8), (1, 2, 8, 8), (1, 2, 8, 8)),
        ((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 9, 16)),
        ((1, 3, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)),
        ((1, 2, 8, 16), (1, 2, 0, 16), (1, 2, 0, 16)),
        ((2, 8, 16), (2, 8, 16), (2, 8, 16)),
    ],
    ids=[
        "key columns differ", "columns no power of two", "too few columns", "more values than keys",
        "heads do not divide", "no keys", "no batch dimension",
    ],
)  # fmt: skip
def test_shapes_that_no_rung_takes_raise(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    query, key, value = (torch.zeros(shape, dtype=torch.float16) for shape in shapes)
    with pytest.raises(TensorMismatchError):
        LADDER[name](query, key, value, torch.empty_like(query))


def test_only_the_last_rung_takes_shared_heads() -> None:
    given = tensors(1, 2, 1, 8, 8, 16, torch.float16)
    *others, last = LADDER
    for name in others:
        with pytest.raises(TensorMismatchError, match="Give 2 heads in key and value"):
            launched(name, *given)
    launched(last, *given)


@pytest.mark.parametrize(
    ("shapes", "fix"),
    [
        (((1, 2, 8, 16), (1, 2, 8, 32), (1, 2, 8, 32)), r"Give query and output \[b, h, q, size\]"),
        (((1, 2, 8, 24),) * 3, r"Give a size \(last dimension\) that is a power of two of 16 or more"),
        (((1, 3, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)), "Give a divisor of 3 heads in key and value"),
        (((2, 8, 16),) * 3, "Give four dimensions for each"),
        (((70_000, 1, 1, 16),) * 3, "Give fewer batches or heads: 65535 heads of all batches at most"),
        (((1, 2**15, 2**13, 16),) * 3, r"offsets of elements have to be below 2\^31"),
    ],
    ids=["other columns", "size", "heads", "dimensions", "batches", "offsets"],
)
def test_errors_of_shapes_say_what_to_give(shapes: tuple[tuple[int, ...], ...], fix: str) -> None:
    query, key, value = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
    with pytest.raises(TensorMismatchError, match=rf"query, key, value, output: .*{fix}"):
        attention_ladder.grouped_queries(query, key, value, torch.empty_like(query))


def test_unsupported_dtypes_tiles_and_batches_raise() -> None:
    given = tensors(1, 1, 1, 8, 8, 16, torch.float32)
    with pytest.raises(TensorMismatchError, match="all in fp16 or all in bf16"):
        attention_ladder.online(*given, torch.empty_like(given[0]))
    given = tensors(1, 1, 1, 8, 8, 16, torch.float16)
    for tile in ((8, 16), (16, 24)):
        with pytest.raises(InvalidArgumentError):
            attention_ladder.online(*given, torch.empty_like(given[0]), tile=tile)
    many = torch.empty(70_000, 1, 1, 16, dtype=torch.float16)
    with pytest.raises(TensorMismatchError, match="65535 heads"):
        attention_ladder.online(many, many, many, torch.empty_like(many))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rung", ladder.RUNGS["scaled_dot_product_attention"])
def test_rungs_built_for_suites_agree_with_torch(rung: str, is_causal: bool) -> None:
    """Each rung but the portable one has either a causal mask or none, and refuses the other case."""
    query, key, value = (torch.randn(1, 2, 40, 16).half() for _ in range(3))
    build = ladder.RUNGS["scaled_dot_product_attention"][rung]
    if rung != "portable" and is_causal != (rung in ("causal", "grouped_queries")):
        with pytest.raises(InvalidArgumentError, match=rung):
            build(query, key, value, is_causal=is_causal, enable_gqa=False)
        return
    found = build(query, key, value, is_causal=is_causal, enable_gqa=False)()
    wanted = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), is_causal=is_causal)
    torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_one_pass_backward_built_for_suites_computes_the_gradients(is_causal: bool) -> None:
    given = [torch.randn(1, 2, 40, 16).half() for _ in range(4)]
    build = ladder.RUNGS["scaled_dot_product_attention_backward"]["one_pass"]
    found = build(*given, is_causal=is_causal, enable_gqa=False)()
    inputs = [tensor.double().requires_grad_() for tensor in given[1:]]
    output = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=is_causal)
    for ours, wanted in zip(found, torch.autograd.grad(output, inputs, given[0].double()), strict=True):
        torch.testing.assert_close(ours.double(), wanted, atol=5e-3, rtol=5e-3)


def test_the_portable_rung_has_the_shipped_tiles() -> None:
    assert attention_ladder.PORTABLE == instances.DESCRIBED
