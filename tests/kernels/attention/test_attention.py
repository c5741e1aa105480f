"""The attention template agrees with float64 for any lengths, heads, strides, windows, hooks and masks."""

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
from tests.kernels.attention import cases
from tests.kernels.attention.cases import AT_END, Tensors, assert_by_rule, plain, seen, tensors
from tests.kernels.compiled_for import torn_sums
from tests.kernels.places_in_sass import misplaced
from workbench import device, explore, lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
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


def check(given: Tensors, scoring: Scoring = PLAIN, launched: dict[str, Any] = SMALL, **known: Any) -> None:
    result, log_sums = attention.launch(*given, scoring, **launched).run()
    exact, exact_sums = plain(*given, scale=scoring.scale, window=scoring.window, **known)
    dtype = torch.float32 if given[0].element_size() == 1 else given[0].dtype
    plainly, _ = plain(*given, scale=scoring.scale, window=scoring.window, dtype=dtype, **known)
    assert_by_rule(result, exact, plainly)
    torch.testing.assert_close(log_sums.double(), exact_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(3, 5), Window(left=4)], ids=str)
def test_windows_agree_with_float64(window: Window, dtype: torch.dtype) -> None:
    check(tensors(1, 2, 1, 37, 44, 16, dtype), Scoring(window=window))


@pytest.mark.parametrize("size", [1, 8, 16, 40, 64, 72, 96, 128, 180, 200, 256])
def test_heads_of_any_size_agree_with_float64(size: int) -> None:
    check(tensors(1, 1, 1, 17, 33, size), launched={"tile": (16, 32)})


def test_values_may_have_another_size_than_keys() -> None:
    check(tensors(1, 2, 2, 17, 33, 24, value_size=72))


@settings(max_examples=examples(24), deadline=None)
@given(st.data())
def test_any_problem_agrees_with_float64(data: st.DataObject) -> None:
    given, scoring = cases.drawn(data, longest=70, most=3)
    side_of_tile = st.sampled_from([16, 32])
    launched = {
        "tile": (data.draw(side_of_tile), data.draw(side_of_tile)),
        "splits": data.draw(st.sampled_from([None, 1, 2, 5])),
    }
    check(given, scoring, launched)


@pytest.mark.parametrize("pair", [(1, 1), (239, 1), (79, 3), (113, 203), (1023, 24)])
def test_ragged_lengths_agree_with_float64(pair: tuple[int, int]) -> None:
    for window in (EVERYTHING, CAUSAL, AT_END):
        check(tensors(1, 1, 1, *pair, 59), Scoring(window=window), {"tile": (64, 64)})


@pytest.mark.parametrize("splits", [1, 2, 3, 40])
@pytest.mark.parametrize("window", [EVERYTHING, AT_END, Window(right=0, shift=-1), Window(20, 0)], ids=str)
def test_few_queries_share_a_tile_and_splits_share_keys(window: Window, splits: int) -> None:
    given = tensors(2, 8, 2, 3, 200, 16)
    check(given, Scoring(window=window), {"tile": (16, 16), "splits": splits})
    launch = attention.launch(*given, tile=(16, 16), splits=splits)
    # splits of each head of keys; 4 heads of 3 queries share a tile
    assert launch.steps[0].programs == 2 * 2 * splits


def test_hooks_change_scores_in_order() -> None:
    given, scoring, known = cases.capped_biased_and_masked()
    check(given, scoring, **known)


def test_alibi_and_relative_biases_are_added() -> None:
    heads, queries, keys = 4, 20, 35
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    given = tensors(2, heads, 2, queries, keys, 16)
    alibi = Scoring(hooks=(Hook(scores.add_alibi, (slopes,)),))
    check(given, alibi, bias=-slopes[:, None, None] * distance.abs())
    few = given[0][:, :, :3]  # each row of a tile may be of another head
    check((few, *given[1:]), alibi, bias=-slopes[:, None, None] * distance[:3].abs())
    table = torch.randn(heads, 17)
    relative = Scoring(hooks=(Hook(scores.add_relative_bias, (table, 8)),))
    check(given, relative, bias=table[:, distance.clamp(-8, 8) + 8])


@triton.jit
def of_even_sum(batch, head, query, key, extra):
    return (query + key + head) % 2 == 0


def test_document_and_user_defined_masks_hide_keys() -> None:
    mask, keep = cases.of_documents([0] * 20 + [1] * 5 + [2] * 45, [5] * 70)
    for window in (EVERYTHING, CAUSAL, Window(9, 9)):
        check(tensors(2, 2, 2, 70, 70, 16), Scoring(mask=mask, window=window), keep=keep)
    place = torch.arange(2)[:, None, None] + torch.arange(70)[:, None] + torch.arange(70)
    even = Scoring(mask=Mask(of_even_sum, of_batch=False))
    check(tensors(2, 2, 1, 70, 70, 16), even, keep=place % 2 == 0)
    check(tensors(2, 2, 1, 9, 70, 16), even, keep=(place % 2 == 0)[:, :9])  # fewer queries than a tile has


def test_tiles_hidden_by_a_mask_are_not_visited() -> None:
    mask, _ = cases.of_documents([0] * 32 + [1] * 30)
    scoring = Scoring(mask=mask)
    for of_keys in (False, True):
        (visits,) = attention.visits_launch(scoring, 1, 8, 62, 62, (16, 16), "cpu", of_keys=of_keys).run()
        assert visits.shape == (1, 1, 4, 6)
        assert visits[0, 0, :2, :4].tolist() == [[2, 0, 0, 1]] * 2
        # The last tile is ragged: keys beyond the end must not be seen, queries there need not be loaded.
        assert visits[0, 0, 2, :4].tolist() == [1, 1, 2, 3]
    given = tensors(1, 2, 2, 62, 62, 16)
    trace = lens.trace(attention.launch(*given, scoring, tile=(16, 16), splits=1))
    assert trace[-1].traffic("key", "load").bytes == 4 * 16 * 2 * (2 * 32 + 2 * 30)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, AT_END, Window(4, 2)], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_packed_sequences_match_separate_ones(window: Window, splits: int) -> None:
    given, scoring, rows = cases.packed_sequences(window)
    query, key, value = given
    found, sums = attention.launch(*given, scoring, tile=(16, 16), splits=splits).run()
    for q, k in rows:
        part = query[:, :, q], key[:, :, k], value[:, :, k]
        exact, exact_sums = plain(*part, window=window)
        assert_by_rule(found[:, :, q], exact, plain(*part, window=window, dtype=torch.float32)[0])
        torch.testing.assert_close(sums[:, :, q].double(), exact_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", [[4, 9, 9, 30], [0, 40], [17], [40, 40]], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_rows_outside_all_sequences_are_cleared(ends: list[int], splits: int) -> None:
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
def test_the_kernel_that_clears_rows_compiles(dtype: torch.dtype) -> None:
    starts = torch.tensor([4, 30], dtype=torch.int32)
    query, key, value = (t.to(dtype) for t in tensors(1, 4, 2, 40, 40, 48))
    launch = attention.launch(query, key, value, Scoring(starts=Starts(starts, starts, 26, 26)))
    assert launch.steps[-1].name == "clear_slack_kernel"
    (step,) = lens.compile(Launch(launch.steps[-1:], launch.outputs), "sm_90")
    assert not step.spills


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64], ids=str)
def test_document_numbers_may_have_any_integer_dtype(dtype: torch.dtype) -> None:
    last = 255 if dtype == torch.uint8 else -1
    mask, keep = cases.of_documents([0] * 20 + [1] * 5 + [last] * 15, dtype=dtype)
    check(tensors(1, 1, 1, 40, 40, 16), Scoring(mask=mask), keep=keep)


def test_masks_count_from_the_start_of_each_packed_sequence() -> None:
    starts = torch.tensor([0, 40, 90], dtype=torch.int32)
    given = query, key, value = tensors(1, 2, 1, 90, 90, 16)
    even = Mask(of_even_sum)
    scoring = Scoring(mask=even, window=CAUSAL, starts=Starts(starts, starts, 50, 50))
    found, _ = attention.launch(*given, scoring, **SMALL).run()
    for part in (slice(0, 40), slice(40, 90)):
        of_part = query[:, :, part], key[:, :, part], value[:, :, part]
        alone, _ = attention.launch(*of_part, replace(scoring, starts=None), **SMALL).run()
        torch.testing.assert_close(found[:, :, part], alone)


def test_dropout_depends_on_seed_and_position_alone() -> None:
    query, key, _ = tensors(1, 4, 2, 60, 64, 16)
    value = torch.eye(64).expand(1, 2, 64, 64)  # so the output is the weights

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
def test_fp8_errors_are_within_the_rounding_of_weights(dtype: torch.dtype) -> None:
    given = tensors(1, 2, 1, 40, 50, 32, dtype)
    found, _ = attention.launch(*given, tile=(16, 16)).run()
    exact, _ = plain(*given)
    assert found.dtype == torch.bfloat16
    # Each weight is rounded to 3 or 2 bits after its leading one.
    rounding = 2.0**-4 if dtype == torch.float8_e4m3fn else 2.0**-3
    weights = plain(*given[:2], torch.eye(50).expand(1, 1, 50, 50))[0]
    most = (weights @ given[2].double().abs().repeat_interleave(2, 1)).max()
    assert float((found.double() - exact).abs().max()) < rounding * float(most)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL], ids=str)
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0, 1e-50])
def test_scales_of_any_sign_and_size_agree_with_float64(scale: float, window: Window) -> None:
    check(tensors(1, 1, 1, 16, 40, 16), Scoring(scale=scale, window=window))


def test_large_scores_agree_with_float64_and_nan_stays_in_its_row() -> None:
    query, key, value = tensors(1, 1, 1, 16, 32, 16)
    large = query * 1e3, key * 1e3, value
    found, _ = attention.launch(*large, **SMALL).run()
    assert torch.allclose(found.double(), plain(*large)[0], atol=1e-4)
    query[0, 0, 3, 0] = math.nan
    found, sums = attention.launch(query, key, value, **SMALL).run()
    assert found[0, 0, 3].isnan().all()
    assert sums[0, 0, 3].isnan()
    assert not found[0, 0, torch.arange(16) != 3].isnan().any()


def test_queries_that_see_no_key_give_zero_and_minus_infinity() -> None:
    given = tensors(1, 1, 1, 20, 8, 16)
    found, sums = attention.launch(*given, Scoring(window=AT_END), **SMALL).run()
    assert (found[:, :, :12] == 0).all()
    assert (sums[:, :, :12] == -math.inf).all()
    assert (found[:, :, 12:] != 0).any()


def test_empty_problems_give_zeros_and_minus_infinity() -> None:
    for shape in ((0, 2, 2, 4, 5, 16), (1, 0, 0, 4, 5, 16), (1, 2, 2, 0, 5, 16)):
        found, sums = attention.launch(*tensors(*shape)).run()
        assert found.numel() == sums.numel() == 0
    found, sums = attention.launch(*tensors(1, 2, 2, 4, 0, 16)).run()
    assert (found == 0).all()
    assert (sums == -math.inf).all()


def test_the_output_may_have_any_strides() -> None:
    given = tensors(2, 3, 3, 20, 20, 16)
    output = torch.full((2, 20, 3, 24), math.nan)
    found, _ = attention.launch(*given, output=output.transpose(1, 2)[..., 4:20], **SMALL).run()
    assert_by_rule(found, plain(*given)[0], plain(*given, dtype=torch.float32)[0])
    assert output[..., :4].isnan().all()
    assert output[..., 20:].isnan().all()


def test_neither_scores_nor_weights_reach_memory() -> None:
    """The trace shows reads of query, key and value, and writes of the output and one number per query."""
    given = tensors(1, 2, 2, 64, 64, 16)
    (step,) = lens.trace(attention.launch(*given, tile=(32, 32)))
    matrix = 4 * 2 * 64 * 16
    assert step.traffic(kind="store").bytes == matrix + 4 * 2 * 64
    # keys and values for each tile of queries
    assert step.traffic(kind="load").bytes == matrix + 2 * 2 * matrix


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL], ids=str)
def test_compiled_kernels_use_wgmma_and_16_byte_copies(size: int, window: Window) -> None:
    query, key, value = (torch.empty(2, 8, 1024, size, dtype=torch.float16) for _ in range(3))
    (step,) = lens.compile(attention.launch(query, key, value, Scoring(window=window)), "sm_90")
    assert step.spills == 0
    assert "wgmma" in step.stages["ptx"]
    kinds = ("asynchronous copy", "global load")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {128}


@pytest.mark.parametrize(
    "window", [EVERYTHING, CAUSAL, Window(2, 3, -4), Window(None, 1, 6), AT_END], ids=str
)
def test_work_counts_visible_pairs(window: Window) -> None:
    assert window.pairs(9, 7) == int(seen(window, 9, 7).sum())
    work = attention.launch(*tensors(2, 4, 2, 9, 7, 16), Scoring(window=window)).work
    assert work is not None
    assert work.flops == 4 * 2 * 4 * window.pairs(9, 7) * 16
    assert work.bytes == 4 * (2 * 4 * 9 * 16 * 2 + 2 * 2 * 7 * 16 * 2 + 2 * 4 * 9)


def test_split_attention_compiles_for_every_dtype() -> None:
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
def test_values_in_another_layout_than_keys_are_read_at_their_own_addresses(sizes: tuple[int, int]) -> None:
    """A compiler fault made kernels read narrow values at odd pitches from the keys' shared memory."""
    query, key, value = (
        torch.empty(1, 2, 300, size + 1, dtype=torch.float16)[..., :size] for size in (sizes[0], *sizes)
    )
    with device.planning_for("sm_90"):
        way = options_of(choosing.forward(query, key, value, PLAIN))
    step, *_ = lens.compile(attention.launch(query, key, value, **way), "sm_90")
    assert not misplaced(step.stages["sass"])
    assert not torn_sums(step.stages["sass"])


def test_invalid_arguments_are_refused() -> None:
    query, key, value = tensors(1, 3, 1, 4, 5, 16)
    wrong: Any
    for wrong, words in [
        ((query[0], key, value), "3 dimensions"),
        ((query.to_sparse(), key, value), r"Give query\.to_dense\(\)"),
        ((query, key, value._neg_view()), r"Give value\.resolve_neg\(\)"),
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
    elsewhere = torch.empty(1, 3, 4, device="meta")
    with pytest.raises(TensorMismatchError, match=r"log_sums: .* on meta\. Give .* on cpu"):
        attention.launch(query, key, value, log_sums=elsewhere)
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
        (ends, ends.long(), "starts.keys is torch.int64 on cpu, not torch.int32"),
        (ends, torch.tensor([0, 2, 5], dtype=torch.int32), "1 sequences of queries, 2 of keys"),
        (ends[None], ends, "is not a contiguous vector"),
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
def test_scorings_of_wrong_types_are_refused(name: str, given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{name}:"):
        Scoring(**given)


@pytest.mark.parametrize("number", [2**31 - 1, 2**63 - 1])
@pytest.mark.parametrize("name", ["left", "right", "shift"])
def test_windows_whose_ends_would_overflow_are_refused(name: str, number: int) -> None:
    """The sum query + right + 1 would be negative in 32 bits, and no key would be seen."""
    too_far: dict[str, Any] = {name: number}
    with pytest.raises(InvalidArgumentError, match=name):
        Scoring(window=Window(**too_far))
    widest = Window(left=attention.MOST_REACH, right=attention.MOST_REACH)
    given = tensors(1, 1, 1, 3, 5, 16)
    assert torch.equal(*(attention.launch(*given, Scoring(window=w)).run()[0] for w in (widest, EVERYTHING)))


@pytest.mark.parametrize(("left", "right"), [(24, 0), (0, 0), (24, None), (None, 0)])
def test_tiles_outside_the_window_are_not_visited(left: int | None, right: int | None) -> None:
    """There are more queries than keys, and the last tile of keys is ragged."""
    queries, keys, block = 96, 40, 16
    query, key = (torch.zeros(1, 1, length, 16) for length in (queries, keys))
    scoring = Scoring(window=Window(left, right))
    told = explore.attention.tiles(attention.launch(query, key, key, scoring, tile=(block, block), splits=1))
    visible = seen(Window(left, right), queries, keys)
    for row, visits in enumerate(told.visits):
        of_tile = visible[row * block : (row + 1) * block]
        wanted = sorted({int(key) // block for key in of_tile.nonzero()[:, 1]})
        assert visits.nonzero()[0].tolist() == wanted
