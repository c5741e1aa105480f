"""Attention's template: against float64, whatever the lengths, heads, strides, windows, hooks and masks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl  # noqa: F401  # the interpreter asks for it
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.kernels.attention_cases import Tensors, agree, plain, seen, tensors
from tests.kernels.compiled_for import torn_sums
from tests.kernels.places_in_sass import misplaced
from workbench import device, explore, lens
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.kernels import attention
from workbench.kernels.attention import (
    CAUSAL,
    EVERYTHING,
    PLAIN,
    Dropout,
    Hook,
    Mask,
    Scoring,
    Starts,
    Window,
)
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.options import options_of
from workbench.kernels.tile import scores
from workbench.launch import Launch

pytestmark = pytest.mark.usefixtures("pretended")

SMALL: dict[str, Any] = {"tile": (16, 16)}
AT_END = Window(right=0, from_end=True)


def check(given: Tensors, scoring: Scoring = PLAIN, launched: dict[str, Any] = SMALL, **known: Any) -> None:
    result, log_sums = attention.launch(*given, scoring, **launched).run()
    exact, exact_sums = plain(*given, scale=scoring.scale, window=scoring.window, **known)
    dtype = torch.float32 if given[0].element_size() == 1 else given[0].dtype
    plainly, _ = plain(*given, scale=scoring.scale, window=scoring.window, dtype=dtype, **known)
    agree(result, exact, plainly)
    torch.testing.assert_close(log_sums.double(), exact_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(3, 5), Window(left=4)], ids=str)
def test_windows(window: Window, dtype: torch.dtype) -> None:
    check(tensors(1, 2, 1, 37, 44, 16, dtype), Scoring(window=window))


@pytest.mark.parametrize("size", [1, 8, 16, 40, 64, 72, 96, 128, 180, 200, 256])
def test_sizes_of_heads(size: int) -> None:
    check(tensors(1, 1, 1, 17, 33, size), launched={"tile": (16, 32)})


def test_values_of_another_size_than_keys() -> None:
    check(tensors(1, 2, 2, 17, 33, 24, value_size=72))


@settings(max_examples=examples(24), deadline=None)
@given(st.data())
def test_any_problem(data: st.DataObject) -> None:
    queries, keys = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 70))
    key_heads, group, batch = (data.draw(st.integers(1, 3)) for _ in range(3))
    side = st.one_of(st.none(), st.integers(0, 80))
    shift = data.draw(st.sampled_from([0, -5, 9]))
    window = Window(data.draw(side), data.draw(side), shift, data.draw(st.booleans()))
    given = tensors(batch, key_heads * group, key_heads, queries, keys, data.draw(st.integers(1, 24)))
    if data.draw(st.booleans()):  # (batch, rows, heads, columns), as models have it
        query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in given)
        given = query, key, value
    side_of_tile = st.sampled_from([16, 32])
    launched = {
        "tile": (data.draw(side_of_tile), data.draw(side_of_tile)),
        "splits": data.draw(st.sampled_from([None, 1, 2, 5])),
    }
    check(given, Scoring(window=window), launched)


@pytest.mark.parametrize("pair", [(1, 1), (239, 1), (79, 3), (113, 203), (1023, 24)])
def test_lengths_that_break_kernels(pair: tuple[int, int]) -> None:
    for window in (EVERYTHING, CAUSAL, AT_END):
        check(tensors(1, 1, 1, *pair, 59), Scoring(window=window), {"tile": (64, 64)})


@pytest.mark.parametrize("splits", [1, 2, 3, 40])
@pytest.mark.parametrize("window", [EVERYTHING, AT_END, Window(right=0, shift=-1), Window(20, 0)], ids=str)
def test_few_queries_share_a_tile_and_programs_share_keys(window: Window, splits: int) -> None:
    given = tensors(2, 8, 2, 3, 200, 16)
    check(given, Scoring(window=window), {"tile": (16, 16), "splits": splits})
    launch = attention.launch(*given, tile=(16, 16), splits=splits)
    assert launch.steps[0].programs == 2 * 2 * splits  # of each head of keys; 4 heads by 3 queries are a tile


def test_hooks_in_their_order() -> None:
    bias, keep = torch.randn(2, 1, 20, 35), torch.rand(1, 2, 1, 35) > 0.3
    of_bias, of_keep = bias.expand(2, 2, 20, 35), keep.expand(2, 2, 20, 35).view(torch.int8)
    hooks = (
        Hook(scores.cap_softly, (2.0,)),
        Hook(scores.add_bias, (of_bias, (20, 35), of_bias.stride())),
        Hook(scores.keep_where, (of_keep, (20, 35), of_keep.stride())),
    )
    check(tensors(2, 2, 2, 20, 35, 16), Scoring(hooks=hooks, window=CAUSAL), bias=bias, keep=keep, cap=2.0)


def test_biases_of_distances() -> None:
    heads, queries, keys = 4, 20, 35
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    given = tensors(2, heads, 2, queries, keys, 16)
    alibi = Scoring(hooks=(Hook(scores.add_alibi, (slopes,)),))
    check(given, alibi, bias=-slopes[:, None, None] * distance.abs())
    few = given[0][:, :, :3]  # a head for each row of a tile
    check((few, *given[1:]), alibi, bias=-slopes[:, None, None] * distance[:3].abs())
    table = torch.randn(heads, 17)
    relative = Scoring(hooks=(Hook(scores.add_relative_bias, (table, 8)),))
    check(given, relative, bias=table[:, distance.clamp(-8, 8) + 8])


@triton.jit
def of_even_sum(batch, head, query, key, extra):
    return (query + key + head) % 2 == 0


def test_masks_of_a_learner() -> None:
    documents = torch.tensor([[0] * 20 + [1] * 5 + [2] * 45, [5] * 70], dtype=torch.int32)
    keep = documents[:, None, :, None] == documents[:, None, None, :]
    of_documents = Mask(scores.same_document, (documents, 70), of_head=False)
    for window in (EVERYTHING, CAUSAL, Window(9, 9)):
        check(tensors(2, 2, 2, 70, 70, 16), Scoring(mask=of_documents, window=window), keep=keep)
    place = torch.arange(2)[:, None, None] + torch.arange(70)[:, None] + torch.arange(70)
    even = Scoring(mask=Mask(of_even_sum, of_batch=False))
    check(tensors(2, 2, 1, 70, 70, 16), even, keep=place % 2 == 0)
    check(tensors(2, 2, 1, 9, 70, 16), even, keep=(place % 2 == 0)[:, :9])  # fewer queries than a tile has


def test_tiles_that_a_mask_hides_are_not_visited() -> None:
    documents = torch.tensor([[0] * 32 + [1] * 30], dtype=torch.int32)
    scoring = Scoring(mask=Mask(scores.same_document, (documents, 62), of_head=False))
    for of_keys in (False, True):
        (visits,) = attention.visits_launch(scoring, 1, 8, 62, 62, (16, 16), "cpu", of_keys=of_keys).run()
        assert visits.shape == (1, 1, 4, 6)
        assert visits[0, 0, :2, :4].tolist() == [[2, 0, 0, 1]] * 2
        # The last tile hangs over: keys beyond the end must not be seen, queries there need not be loaded.
        assert visits[0, 0, 2, :4].tolist() == [1, 1, 2, 3]
    given = tensors(1, 2, 2, 62, 62, 16)
    trace = lens.trace(attention.launch(*given, scoring, tile=(16, 16), splits=1))
    assert trace[-1].traffic("key", "load").bytes == 4 * 16 * 2 * (2 * 32 + 2 * 30)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(4, 2)], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_sequences_one_after_another(window: Window, splits: int) -> None:
    of_queries, of_keys = [5, 0, 37, 18, 3], [9, 3, 37, 2, 0]
    queries, keys = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (of_queries, of_keys))
    given = query, key, value = tensors(1, 4, 2, sum(of_queries), sum(of_keys), 16)
    scoring = Scoring(window=window, starts=Starts(queries, keys, 37, 37))
    found, sums = attention.launch(*given, scoring, tile=(16, 16), splits=splits).run()
    for i in range(len(of_queries)):
        q, k = slice(queries[i], queries[i + 1]), slice(keys[i], keys[i + 1])
        part = query[:, :, q], key[:, :, k], value[:, :, k]
        exact, exact_sums = plain(*part, window=window)
        agree(found[:, :, q], exact, plain(*part, window=window, dtype=torch.float32)[0])
        torch.testing.assert_close(sums[:, :, q].double(), exact_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", [[4, 9, 9, 30], [0, 40], [17], [40, 40]], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_rows_that_no_sequence_covers(ends: list[int], splits: int) -> None:
    starts, longest = torch.tensor(ends, dtype=torch.int32), 40
    query, key, value = tensors(1, 4, 2, 40, 40, 16)
    output, sums = torch.full_like(query, torch.nan), torch.full((1, 4, 40), torch.nan)
    scoring = Scoring(starts=Starts(starts, starts, longest, longest))
    attention.launch(
        query, key, value, scoring, output=output, log_sums=sums, tile=(16, 16), splits=splits
    ).run()
    row = torch.arange(40)
    is_slack = (row < ends[0]) | (row >= ends[-1])
    assert not output[:, :, is_slack].any()
    assert (sums[:, :, is_slack] == -torch.inf).all()
    assert output[:, :, ~is_slack].isfinite().all()
    assert sums[:, :, ~is_slack].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e4m3fn], ids=str)
def test_what_clears_rows_compiles(dtype: torch.dtype) -> None:
    starts = torch.tensor([4, 30], dtype=torch.int32)
    query, key, value = (t.to(dtype) for t in tensors(1, 4, 2, 40, 40, 48))
    launch = attention.launch(query, key, value, Scoring(starts=Starts(starts, starts, 26, 26)))
    assert launch.steps[-1].name == "clear_slack_kernel"
    (step,) = lens.compile(Launch(launch.steps[-1:], launch.outputs), "sm_90")
    assert not step.spills


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64], ids=str)
def test_documents_of_any_integers(dtype: torch.dtype) -> None:
    documents = torch.tensor([[0] * 20 + [1] * 5 + [255 if dtype == torch.uint8 else -1] * 15], dtype=dtype)
    keep = documents[:, None, :, None] == documents[:, None, None, :]
    scoring = Scoring(mask=Mask(scores.same_document, (documents, 40), of_head=False))
    check(tensors(1, 1, 1, 40, 40, 16), scoring, keep=keep)


def test_documents_in_sequences_one_after_another() -> None:
    starts = torch.tensor([0, 40, 90], dtype=torch.int32)
    given = query, key, value = tensors(1, 2, 1, 90, 90, 16)
    even = Mask(of_even_sum)
    scoring = Scoring(mask=even, window=CAUSAL, starts=Starts(starts, starts, 50, 50))
    found, _ = attention.launch(*given, scoring, **SMALL).run()
    for part in (slice(0, 40), slice(40, 90)):
        of_part = query[:, :, part], key[:, :, part], value[:, :, part]
        alone, _ = attention.launch(*of_part, replace(scoring, starts=None), **SMALL).run()
        torch.testing.assert_close(found[:, :, part], alone)


def test_dropout_is_a_function_of_the_seed_and_the_place() -> None:
    query, key, _ = tensors(1, 4, 2, 60, 64, 16)
    value = torch.eye(64).expand(1, 2, 64, 64)  # the output is the weights

    def weights(seed: int, probability: float = 0.3, **launched: Any) -> torch.Tensor:
        scoring = Scoring(dropout=Dropout(probability, seed))
        return attention.launch(query, key, value, scoring, **launched).run()[0]

    one = weights(2**40 + 3, tile=(16, 16))
    for launched in ({"tile": (32, 64)}, {"tile": (16, 32), "splits": 2}):
        torch.testing.assert_close(weights(2**40 + 3, **launched), one)
    whole, _ = attention.launch(query, key, value, **SMALL).run()
    kept = one != 0
    torch.testing.assert_close(one[kept], whole[kept] / 0.7)
    assert abs(float(kept.float().mean()) - 0.7) < 4 * math.sqrt(0.21 / kept.numel())
    other = weights(2**40 + 4, tile=(16, 16)) != 0
    assert abs(float((other == kept).float().mean()) - 0.58) < 0.02  # 0.7^2 + 0.3^2
    assert abs(float((kept[:, 0] == kept[:, 1]).float().mean()) - 0.58) < 0.03  # heads differ
    torch.testing.assert_close(weights(5, 0.0, tile=(16, 16)), whole)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8(dtype: torch.dtype) -> None:
    given = tensors(1, 2, 1, 40, 50, 32, dtype)
    found, _ = attention.launch(*given, tile=(16, 16)).run()
    exact, _ = plain(*given)
    assert found.dtype == torch.bfloat16
    # Each weight is rounded to 3 or 2 bits behind its first one.
    rounding = 2.0**-4 if dtype == torch.float8_e4m3fn else 2.0**-3
    weights = plain(*given[:2], torch.eye(50).expand(1, 1, 50, 50))[0]
    most = (weights @ given[2].double().abs().repeat_interleave(2, 1)).max()
    assert float((found.double() - exact).abs().max()) < rounding * float(most)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL], ids=str)
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0, 1e-50])
def test_scales(scale: float, window: Window) -> None:
    check(tensors(1, 1, 1, 16, 40, 16), Scoring(scale=scale, window=window))


def test_large_scores_and_nan() -> None:
    query, key, value = tensors(1, 1, 1, 16, 32, 16)
    large = query * 1e3, key * 1e3, value
    found, _ = attention.launch(*large, **SMALL).run()
    assert torch.allclose(found.double(), plain(*large)[0], atol=1e-4)
    query[0, 0, 3, 0] = math.nan
    found, sums = attention.launch(query, key, value, **SMALL).run()
    assert found[0, 0, 3].isnan().all()
    assert sums[0, 0, 3].isnan()
    assert not found[0, 0, 4:].isnan().any()


def test_queries_that_see_nothing() -> None:
    given = tensors(1, 1, 1, 20, 8, 16)
    found, sums = attention.launch(*given, Scoring(window=AT_END), **SMALL).run()
    assert (found[:, :, :12] == 0).all()
    assert (sums[:, :, :12] == -math.inf).all()
    assert (found[:, :, 12:] != 0).any()


def test_nothing_to_do() -> None:
    for shape in ((0, 2, 2, 4, 5, 16), (1, 0, 0, 4, 5, 16), (1, 2, 2, 0, 5, 16)):
        found, sums = attention.launch(*tensors(*shape)).run()
        assert found.numel() == sums.numel() == 0
    found, sums = attention.launch(*tensors(1, 2, 2, 4, 0, 16)).run()
    assert (found == 0).all()
    assert (sums == -math.inf).all()


def test_the_output_may_lie_anywhere() -> None:
    given = tensors(2, 3, 3, 20, 20, 16)
    output = torch.full((2, 20, 3, 24), math.nan)
    found, _ = attention.launch(*given, output=output.transpose(1, 2)[..., 4:20], **SMALL).run()
    agree(found, plain(*given)[0], plain(*given, dtype=torch.float32)[0])
    assert output[..., :4].isnan().all()
    assert output[..., 20:].isnan().all()


def test_neither_scores_nor_weights_reach_memory() -> None:
    """Queries, keys and values are read, output and one number a query written: counted from the trace."""
    given = tensors(1, 2, 2, 64, 64, 16)
    (step,) = lens.trace(attention.launch(*given, tile=(32, 32)))
    matrix = 4 * 2 * 64 * 16
    assert step.traffic(kind="store").bytes == matrix + 4 * 2 * 64
    assert step.traffic(kind="load").bytes == matrix + 2 * 2 * matrix  # keys, values for each tile of queries


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL], ids=str)
def test_what_is_compiled(size: int, window: Window) -> None:
    """Matrix units, 16 bytes at once, no spills."""
    query, key, value = (torch.empty(2, 8, 1024, size, dtype=torch.float16) for _ in range(3))
    (step,) = lens.compile(attention.launch(query, key, value, Scoring(window=window)), "sm_90")
    assert step.spills == 0
    assert "wgmma" in step.stages["ptx"]
    kinds = ("asynchronous copy", "global load")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {128}


@pytest.mark.parametrize(
    "window", [EVERYTHING, CAUSAL, Window(2, 3, -4), Window(None, 1, 6), AT_END], ids=str
)
def test_pairs_are_counted(window: Window) -> None:
    assert window.pairs(9, 7) == int(seen(window, 9, 7).sum())
    work = attention.launch(*tensors(2, 4, 2, 9, 7, 16), Scoring(window=window)).work
    assert work is not None
    assert work.flops == 4 * 2 * 4 * window.pairs(9, 7) * 16
    assert work.bytes == 4 * (2 * 4 * 9 * 16 * 2 + 2 * 2 * 7 * 16 * 2 + 2 * 4 * 9)


def test_states_of_every_dtype_are_merged() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        query, key, value = (torch.empty(1, 2, rows, 64, dtype=dtype) for rows in (1, 500, 500))
        steps = lens.compile(attention.launch(query, key, value, splits=3), "sm_90")
        assert [step.kernel for step in steps] == ["attention_kernel", "merge_kernel"]


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL], ids=str)
def test_a_mask_in_fp64_compiles(window: Window) -> None:
    """Without a window, whether a key exists does not depend on the query, but the mask does."""
    given = tensors(1, 1, 1, 32, 32, 16, torch.float64)
    scoring = Scoring(mask=Mask(of_even_sum, of_batch=False), window=window)
    steps = lens.compile(attention.launch(*given, scoring, tile=(16, 16), splits=1), "sm_90")
    assert [step.kernel for step in steps] == ["visits_kernel", "attention_kernel"]


@pytest.mark.parametrize("sizes", [(159, 31), (159, 15), (64, 48), (160, 32)], ids=str)
def test_values_of_another_layout_than_keys_are_read_where_they_are(sizes: tuple[int, int]) -> None:
    """Compiled as on a GPU, at odd pitches: narrow values took the place of keys in shared memory."""
    query, key, value = (
        torch.empty(1, 2, 300, size + 1, dtype=torch.float16)[..., :size] for size in (sizes[0], *sizes)
    )
    with device.planning_for("sm_90"):
        way = options_of(choosing.forward(query, key, value, PLAIN))
    step, *_ = lens.compile(attention.launch(query, key, value, **way), "sm_90")
    assert not misplaced(step.stages["sass"])
    assert not torn_sums(step.stages["sass"])


def test_what_does_not_fit() -> None:
    query, key, value = tensors(1, 3, 1, 4, 5, 16)
    wrong: Any
    for wrong, words in [
        ((query[0], key, value), "3 dimensions"),
        ((query, key.half(), value), "torch.float16"),
        ((query, key[..., :8], value), "do not fit"),
        ((query[:, :2], key.expand(1, 3, 5, 16), value.expand(1, 3, 5, 16)), "do not divide"),
        ((query.int(), key.int(), value.int()), "torch.int32"),
        (tensors(1, 1, 1, 2, 2, 257), "257 columns"),
    ]:
        with pytest.raises(TensorMismatchError, match=words):
            attention.launch(*wrong)
    ends = torch.tensor([0, 4], dtype=torch.int32)
    starts = Starts(ends, ends, 4, 4)
    with pytest.raises(TensorMismatchError, match="batch of 1"):
        attention.launch(*tensors(2, 1, 1, 4, 4, 16), Scoring(starts=starts))
    with pytest.raises(TensorMismatchError, match="output"):
        attention.launch(query, key, value, output=query[:, :1].expand(1, 3, 4, 16))
    with pytest.raises(UnknownNameError, match="precision"):
        attention.launch(query, key, value, precision="fast")
    for tile in ((16,), (8, 16), (16, 48)):
        with pytest.raises(InvalidArgumentError, match="tile"):
            attention.launch(query, key, value, tile=tile)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"window\.left"):
        Scoring(window=Window(left=-1))
    with pytest.raises(InvalidArgumentError, match="probability"):
        Scoring(dropout=Dropout(1.0, 3))
    with pytest.raises(InvalidArgumentError, match="seed"):
        Scoring(dropout=Dropout(0.5, 2**64))
    for of_queries, of_keys, words in (
        (ends, ends.long(), "starts.keys is not an int32"),
        (ends, torch.tensor([0, 2, 5], dtype=torch.int32), "1 sequences of queries, 2 of keys"),
        (ends[None], ends, "contiguous in one dimension"),
    ):
        with pytest.raises(TensorMismatchError, match=words):
            attention.launch(query, key, value, Scoring(starts=Starts(of_queries, of_keys, 4, 5)))
    with pytest.raises(TensorMismatchError, match="most_keys is -5"):
        attention.launch(query, key, value, Scoring(starts=Starts(ends, ends, 4, -5)))
    with pytest.raises(ArgumentTypeError, match="hook"):
        Scoring(hooks=(Hook(math.tanh),))
    for splits in (0, -1):
        with pytest.raises(InvalidArgumentError, match="splits"):
            attention.launch(query, key, value, splits=splits)
    with pytest.raises(ArgumentTypeError, match="output"):
        attention.launch(query, key, value, output=[0.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="splits"):
        attention.launch(query, key, value, splits=1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="scoring"):
        attention.launch(query, key, value, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scale", {"scale": "large"}),
        ("window", {"window": (None, 0)}),
        (r"window\.left", {"window": Window(left=2.5)}),  # type: ignore[arg-type]
        (r"window\.shift", {"window": Window(shift=None)}),  # type: ignore[arg-type]
        ("mask", {"mask": scores.same_document}),
        ("hooks", {"hooks": [Hook(scores.cap_softly, (1.0,))]}),
        (r"hooks\[0\]", {"hooks": (scores.cap_softly,)}),
        (r"hooks\[0\]", {"hooks": Hook(scores.cap_softly, (1.0,))}),
        ("dropout", {"dropout": 0.5}),
        (r"dropout\.probability", {"dropout": Dropout("half", 1)}),  # type: ignore[arg-type]
        (r"dropout\.seed", {"dropout": Dropout(0.5, 1.5)}),  # type: ignore[arg-type]
        ("starts", {"starts": (torch.zeros(2, dtype=torch.int32),) * 2}),
    ],
)
def test_a_scoring_of_something_else_is_refused(name: str, given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{name}:"):
        Scoring(**given)


@pytest.mark.parametrize("number", [2**31 - 1, 2**63 - 1])
@pytest.mark.parametrize("name", ["left", "right", "shift"])
def test_windows_whose_ends_would_overflow_are_refused(name: str, number: int) -> None:
    """In 32 bits query + right + 1 would be below 0, and nothing seen."""
    too_far: dict[str, Any] = {name: number}
    with pytest.raises(InvalidArgumentError, match=name):
        Scoring(window=Window(**too_far))
    widest = Window(left=attention.MOST_REACH, right=attention.MOST_REACH)
    given = tensors(1, 1, 1, 3, 5, 16)
    assert torch.equal(*(attention.launch(*given, Scoring(window=w)).run()[0] for w in (widest, EVERYTHING)))


@pytest.mark.parametrize(("left", "right"), [(24, 0), (0, 0), (24, None), (None, 0)])
def test_tiles_of_which_no_query_sees_a_key_are_not_visited(left: int | None, right: int | None) -> None:
    """Where queries go on behind the last key, and its tile hangs over; by the keys that each query sees."""
    queries, keys, block = 96, 40, 16
    query, key = (torch.zeros(1, 1, length, 16) for length in (queries, keys))
    scoring = Scoring(window=Window(left, right))
    told = explore.attention.tiles(attention.launch(query, key, key, scoring, tile=(block, block), splits=1))
    visible = seen(Window(left, right), queries, keys)
    for row, visits in enumerate(told.visits):
        of_tile = visible[row * block : (row + 1) * block]
        wanted = sorted({int(key) // block for key in of_tile.nonzero()[:, 1]})
        assert visits.nonzero()[0].tolist() == wanted
