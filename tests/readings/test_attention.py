"""Readings of attention: tiles and states against a computation of all pairs, and against the kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.attention.cases import seen, tensors
from workbench import explore, lens, readings
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, Dropout, Hook, Mask, Scoring, Starts, Window
from workbench.kernels.attention import tiles as attention_tiles
from workbench.kernels.attention import unfused as attention_unfused
from workbench.kernels.pointwise import elementwise
from workbench.kernels.tile import scores
from workbench.launch import Launch
from workbench.readings.attention import MASKED, SKIPPED, WHOLE, AttentionSteps
from workbench.runtime import interpret

DOCUMENTS = torch.tensor([0] * 21 + [1] * 30 + [2] * 29, dtype=torch.int32)
OF_DOCUMENTS = Mask(scores.same_document, (DOCUMENTS, len(DOCUMENTS)), of_batch=False, of_head=False)

# Windows and masks, queries, keys, tile.
CASES: dict[str, tuple[Scoring, int, int, tuple[int, int]]] = {
    "everything": (Scoring(), 48, 64, (16, 16)),
    "everything, ragged": (Scoring(), 41, 50, (16, 32)),
    "causal": (Scoring(window=CAUSAL), 64, 64, (16, 16)),
    "causal, wide tiles": (Scoring(window=CAUSAL), 80, 80, (16, 32)),
    "causal, more keys, first aligned": (Scoring(window=CAUSAL), 33, 70, (16, 16)),
    "causal, more keys, last aligned": (Scoring(window=Window(right=0, from_end=True)), 33, 70, (16, 16)),
    "causal, more queries, last aligned": (Scoring(window=Window(right=0, from_end=True)), 70, 33, (16, 16)),
    "sliding window": (Scoring(window=Window(left=20, right=0)), 80, 80, (16, 16)),
    "both sides": (Scoring(window=Window(left=9, right=25, shift=-7)), 64, 72, (32, 16)),
    "nothing seen": (Scoring(window=Window(right=0, shift=-100)), 32, 32, (16, 16)),
    "documents": (Scoring(mask=OF_DOCUMENTS), 80, 80, (16, 16)),
    "causal documents": (Scoring(window=CAUSAL, mask=OF_DOCUMENTS), 80, 80, (16, 16)),
    "a mask without a list": (Scoring(mask=OF_DOCUMENTS), 10, 80, (16, 16)),
}


def launched(name: str) -> Launch:
    scoring, queries, keys, tile = CASES[name]
    return attention.launch(*tensors(1, 1, 1, queries, keys, 16), scoring, tile=tile, splits=1)


def visible(name: str) -> torch.Tensor:
    """Return which keys each query sees, computed for each pair."""
    scoring, queries, keys, _ = CASES[name]
    mask = seen(scoring.window, queries, keys)
    if scoring.mask is not None:
        mask &= DOCUMENTS[:queries, None] == DOCUMENTS[None, :keys]
    return mask


# Cases of the tests of steps: dtype, scoring, queries, keys, columns of a value, tile.
STEPPED: dict[str, tuple[torch.dtype, Scoring, int, int, int, tuple[int, int]]] = {
    "everything": (torch.float32, Scoring(), 40, 50, 16, (16, 16)),
    "causal halves": (torch.float16, Scoring(window=CAUSAL), 60, 60, 20, (16, 32)),
    "window of doubles": (torch.float64, Scoring(window=Window(left=20, right=3)), 40, 40, 16, (32, 16)),
    "documents": (torch.float32, Scoring(mask=OF_DOCUMENTS), 80, 80, 16, (16, 16)),
    "values in two parts": (torch.float32, Scoring(window=CAUSAL), 40, 40, 150, (16, 16)),
    "a hook": (
        torch.float32,
        Scoring(hooks=(Hook(scores.cap_softly, (1.5,)),), scale=0.7),
        40,
        40,
        16,
        (16, 16),
    ),
    "some see nothing": (torch.float32, Scoring(window=Window(right=0, shift=-20)), 48, 48, 16, (16, 16)),
}


def stepped(name: str, head: int = 1) -> tuple[Launch, list[AttentionSteps], torch.Tensor]:
    """Return the launch, the steps of each tile of queries, and the values of the head."""
    dtype, scoring, queries, keys, value_size, tile = STEPPED[name]
    query, key, value = tensors(1, 2, 1, queries, keys, 16, dtype, value_size=value_size)
    launch = attention.launch(4 * query, key, value, scoring, tile=tile, splits=1)
    found = [explore.attention.steps(launch, number, head=head) for number in range(-(-queries // tile[0]))]
    return launch, found, value[0, 0]


@pytest.mark.parametrize("name", CASES)
def test_tiles_cover_all_visible_pairs_and_no_invisible_ones(name: str) -> None:
    found = explore.attention.tiles(launched(name))
    np.testing.assert_array_equal(found.seen, visible(name).numpy())
    counts = found.seen_of_tile
    assert counts.sum() == found.pairs == int(visible(name).sum())
    assert not counts[found.visits == SKIPPED].any()
    (block_m, block_n), (rows, cols) = found.tile, found.visits.shape
    for row in range(rows):
        for col in range(cols):
            pairs = visible(name)[row * block_m :, col * block_n :][:block_m, :block_n]
            if found.visits[row, col] == WHOLE:
                assert pairs.all()
                assert pairs.shape[1] == block_n
            elif found.visits[row, col] == MASKED and "without a list" not in name:
                # The rule is one of intervals: it visits a tile only if a query of it sees a key of it.
                assert pairs.any()
                assert not pairs.all() or pairs.shape[1] < block_n


@pytest.mark.parametrize("name", CASES)
def test_the_tiles_are_those_that_the_kernel_loads(name: str) -> None:
    launch = launched(name)
    found = explore.attention.tiles(launch)
    loaded = readings.attention.visited(lens.trace(launch)[-1], found.tile)
    np.testing.assert_array_equal(loaded, found.visits != SKIPPED)


def test_a_causal_mask_saves_the_tiles_above_the_diagonal() -> None:
    found = explore.attention.tiles(launched("causal"))
    assert (found.tiles, found.visited, found.masked) == (16, 10, 4)
    assert found.saved == 6 / 16
    assert found.used == (64 * 65 / 2) / (10 * 256)
    assert (
        repr(found)
        == "MaskTiles(64 queries, 64 keys in tiles of 16 x 16: 10 of 16 visited, 4 of them masked)"
    )


def test_tiles_are_read_for_the_given_batch_and_head() -> None:
    numbers = torch.stack([DOCUMENTS, DOCUMENTS.flip(0)])
    scoring = Scoring(mask=Mask(scores.same_document, (numbers, 80), of_head=False))
    launch = attention.launch(*tensors(2, 2, 1, 80, 80, 16), scoring, tile=(16, 16), splits=1)
    (trace,) = lens.trace(launch)[1:]
    for batch in range(2):
        found = explore.attention.tiles(launch, batch=batch, head=1)
        assert (found.seen == (numbers[batch][:, None] == numbers[batch]).numpy()).all()
        loaded = readings.attention.visited(trace, (16, 16), batch=batch, head=1)
        np.testing.assert_array_equal(loaded, found.visits != SKIPPED)
    assert (explore.attention.tiles(launch).seen != explore.attention.tiles(launch, batch=1).seen).any()


def test_launches_that_cannot_be_read_are_refused() -> None:
    shared = attention.launch(*tensors(1, 1, 1, 16, 64, 16), tile=(16, 16), splits=2)
    with pytest.raises(InvalidArgumentError, match="shared by 2 programs"):
        explore.attention.tiles(shared)
    packed = attention.launch(*tensors(1, 4, 1, 2, 64, 16), tile=(16, 16), splits=1)
    with pytest.raises(InvalidArgumentError, match="rows of 4 heads"):
        explore.attention.tiles(packed)
    plain = attention.launch(*tensors(1, 2, 2, 16, 64, 16), tile=(16, 16), splits=1)
    with pytest.raises(InvalidArgumentError, match=r"batch: got 1\. Give a number from 0 to 0"):
        explore.attention.tiles(plain, batch=1)
    with pytest.raises(InvalidArgumentError, match=r"head: got -1\. Give a number from 0 to 1"):
        explore.attention.tiles(plain, head=-1)


def test_sequences_one_after_another_are_refused() -> None:
    starts = torch.tensor([0, 9, 20], dtype=torch.int32)
    scoring = Scoring(starts=Starts(starts, starts, 11, 11))
    launch = attention.launch(*tensors(1, 1, 1, 20, 20, 16), scoring, tile=(16, 16), splits=1)
    with pytest.raises(InvalidArgumentError, match="concatenated"):
        explore.attention.tiles(launch)


def test_a_launch_that_is_not_attention_is_refused() -> None:
    other = elementwise.launch(torch.zeros(4), torch.zeros(4))
    with pytest.raises(InvalidArgumentError, match=r"launch: .*Give attention\.launch"):
        attention_tiles.launch(other)
    with pytest.raises(InvalidArgumentError, match=r"launch: .*Give kernels\.attention\.tiles\.launch"):
        readings.attention.tiles(launched("causal"))
    with pytest.raises(ArgumentTypeError, match="launch"):
        readings.attention.tiles(3)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="query"):
        readings.attention.visited(lens.trace(other)[0], (16, 16))


@pytest.mark.parametrize("name", STEPPED)
def test_the_last_state_is_what_the_kernel_writes(name: str) -> None:
    launch, found, _ = stepped(name)
    output, log_sums = (tensor[0, 1].double().numpy() for tensor in interpret(launch).outputs)
    rounding = torch.finfo(launch.outputs[0].dtype).eps
    for steps in found:
        wanted, sums = output[steps.begin : steps.end], log_sums[steps.begin : steps.end]
        if not steps.visits:
            assert not wanted.any()
            continue
        last = steps.visits[-1]
        np.testing.assert_allclose(last.output(), wanted, rtol=2 * rounding, atol=2 * rounding)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(last.maximum + np.log(last.total), sums, rtol=1e-5, atol=1e-5)
        assert (last.error() <= 16 * max(rounding, 1e-7)).all()  # of outputs up to 4


@pytest.mark.parametrize("name", STEPPED)
def test_steps_visit_the_tiles_that_the_reading_of_tiles_lists(name: str) -> None:
    launch, found, _ = stepped(name)
    visits = explore.attention.tiles(launch, head=1).visits
    for row, steps in enumerate(found):
        kinds = {visit.number: MASKED if visit.is_masked else WHOLE for visit in steps.visits}
        assert len(kinds) == len(steps.visits)
        assert kinds == {number: kind for number, kind in enumerate(visits[row].tolist()) if kind != SKIPPED}


@pytest.mark.parametrize("name", STEPPED)
def test_each_state_follows_from_scores_and_values(name: str) -> None:
    _, found, values = stepped(name)
    for steps in found:
        maximum = np.full(steps.end - steps.begin, -np.inf)
        sums, kept = np.zeros((2, len(maximum), values.shape[1]))
        for at, visit in enumerate(steps.visits):
            now = np.maximum(maximum, visit.scores.max(1))
            np.testing.assert_allclose(visit.maximum, now, rtol=1e-6)
            shift = np.where(np.isneginf(now), 0.0, now)
            weights = np.exp(visit.scores - shift[:, None])
            np.testing.assert_allclose(visit.weights, weights, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(visit.rescale, np.exp(maximum - shift), rtol=1e-4, atol=1e-7)
            added = weights @ values[visit.begin : visit.end].double().numpy()
            sums = sums * np.exp(maximum - shift)[:, None] + added
            kept = kept + added
            np.testing.assert_allclose(visit.sums, sums, rtol=3e-3, atol=3e-2 if "halves" in name else 1e-4)
            np.testing.assert_allclose(
                visit.kept_sums, kept, rtol=3e-3, atol=3e-2 if "halves" in name else 1e-4
            )
            counted = sum(
                (other.weights * factor[:, None]).sum(1)
                for other, factor in zip(steps.visits, steps.carried(at), strict=False)
            )
            np.testing.assert_allclose(visit.total, counted, rtol=1e-4)
            maximum = now


def test_without_the_rescale_the_output_is_wrong_where_the_maximum_rose() -> None:
    _, found, _ = stepped("everything")
    last = found[0].visits[-1]
    rose = np.array([visit.maximum for visit in found[0].visits[:-1]]).min(0) < last.maximum
    assert rose.any()
    assert not rose.all()
    assert (last.error(False)[rose] > 1e-3).all()
    assert (last.error(False)[~rose] < 1e-6).all()
    assert (last.error() < 1e-6).all()


def test_steps_have_a_repr_and_refuse_a_visit_that_does_not_exist() -> None:
    _, (_, second, _), _ = stepped("everything")
    assert repr(second) == "AttentionSteps(queries 16 to 31 of 40, 4 tiles of 16 keys of 50)"
    assert repr(second.visits[-1]) == "TileVisit(keys 48 to 49, masked)"
    assert (second.tiles, second.dtype, second.state_dtype) == (3, "float32", "float32")
    assert second.visits[-1].scores.shape == (16, 2)
    for wrong, error in ((4, InvalidArgumentError), (True, ArgumentTypeError)):
        with pytest.raises(error, match="at: got"):
            second.carried(wrong)


def test_steps_that_cannot_be_read_are_refused() -> None:
    query, key, value = tensors(1, 1, 1, 16, 32, 16)
    plain = attention.launch(query, key, value, tile=(16, 16), splits=1)
    with pytest.raises(InvalidArgumentError, match="tile: got 1"):
        explore.attention.steps(plain, 1)
    dropping = attention.launch(query, key, value, Scoring(dropout=Dropout(0.5, 1)), tile=(16, 16), splits=1)
    with pytest.raises(InvalidArgumentError, match="attention_launch: it has dropout"):
        explore.attention.steps(dropping)
    q, k, v = (tensor.to(torch.float8_e4m3fn) for tensor in (query, key, value))
    with pytest.raises(InvalidArgumentError, match="attention_launch: it has fp8"):
        explore.attention.steps(attention.launch(q, k, v, tile=(16, 16), splits=1))
    with pytest.raises(InvalidArgumentError, match=r"launch: .*Give kernels\.attention\.states\.launch"):
        readings.attention.steps(plain)


@pytest.mark.parametrize(("queries", "keys"), [(48, 48), (40, 70)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_bytes_are_the_sizes_of_the_tensors_of_each_kernel(
    queries: int, keys: int, dtype: torch.dtype
) -> None:
    heads, columns, value_size, itemsize = 2, 16, 24, dtype.itemsize
    query, key, value = tensors(1, heads, 1, queries, keys, columns, dtype, value_size=value_size)
    unfused = attention_unfused.launch(query, key, value, tile=(32, 32, 16), softmax_tile=(8, 128))
    given = {"Q": query, "K": key, "V": value, "S": unfused.workspaces[0], "P": unfused.workspaces[1]}
    sizes = {
        "Q": heads * queries * columns * itemsize,
        "K": keys * columns * itemsize,
        "V": keys * value_size * itemsize,
        "S": heads * queries * keys * itemsize,
        "P": heads * queries * keys * itemsize,
        "O": heads * queries * value_size * itemsize,
    }
    apart = readings.attention.attention_bytes(unfused, {**given, "O": unfused.outputs[0]}, label="unfused")
    assert {tensor.name: tensor.size for tensor in apart.tensors} == sizes
    assert [tensor.loaded for tensor in apart.tensors] == [*[sizes[name] for name in "QKVSP"], 0]
    assert [tensor.stored for tensor in apart.tensors] == [0, 0, 0, sizes["S"], sizes["P"], sizes["O"]]
    assert apart.moved == apart.formula == sum(sizes.values()) + sizes["S"] + sizes["P"]
    fused = attention.launch(query, key, value, Scoring(scale=1.0), tile=(16, 16), splits=1)
    together = readings.attention.attention_bytes(
        fused, {**given, "O": fused.outputs[0], "L": fused.outputs[1]}, label="fused", length=keys
    )
    assert (together["S"].asked, together["P"].asked, together.kernels) == (0, 0, 1)
    assert together.moved == together.formula == sum(sizes[name] for name in "QKVO") + 4 * heads * queries
    assert fused.work is not None
    assert together.moved == fused.work.bytes
    # Each program of 16 queries reads all keys of its head.
    assert together["K"].asked == sizes["K"] * heads * -(-queries // 16)
    assert repr(together) == f"AttentionBytes(fused, {keys} long: {together.moved} bytes by 1 kernels)"


def test_unfused_and_fused_attention_give_the_same_output() -> None:
    query, key, value = tensors(2, 4, 2, 33, 50, 16, value_size=24)
    apart = interpret(attention_unfused.launch(query, key, value, tile=(32, 32, 16))).outputs[0]
    launch = attention.launch(query, key, value, Scoring(scale=1.0), tile=(16, 16), splits=1)
    torch.testing.assert_close(apart, interpret(launch).outputs[0], rtol=1e-5, atol=2e-6)


def test_unfused_attention_refuses_tensors_that_do_not_fit() -> None:
    query, key, value = tensors(1, 2, 1, 16, 16, 16)
    with pytest.raises(TensorMismatchError, match="query, key, value"):
        attention_unfused.launch(query, key[..., :8], value)
    with pytest.raises(TensorMismatchError, match=r"query of shape \(1, 2, 0, 16\) has no elements"):
        attention_unfused.launch(query[:, :, :0], key, value)
    with pytest.raises(ArgumentTypeError, match="value"):
        attention_unfused.launch(query, key, 3)  # type: ignore[arg-type]


def test_memory_without_a_given_name_is_counted_under_its_parameter() -> None:
    query, key, value = tensors(1, 1, 1, 16, 64, 16)
    split = attention.launch(query, key, value, tile=(16, 16), splits=2)
    found = readings.attention.attention_bytes(split, {"Q": query, "K": key}, label="split")
    assert found.kernels == 2
    assert [tensor.name for tensor in found.tensors[:2]] == ["Q", "K"]
    assert found["Q"].moved == query.numel() * 4
    assert found["output"].loads == found["output"].stores == 1  # the parts are written, and merged
    assert (found["merge_kernel: output"].loads, found["merge_kernel: output"].stores) == (0, 1)
    with pytest.raises(UnknownNameError, match="S"):
        found["S"]


def test_memory_of_several_parameters_counts_once_in_a_kernel() -> None:
    """Memory counts for its first parameter, also if tensors overlap only in part or differ in dtype."""
    memory = torch.zeros(64)
    x, shifted, output = memory[:48], memory[16:], torch.empty(48)
    found = readings.attention.attention_bytes(elementwise.launch(x, x, output), {"x": x}, label="")
    assert (found["x"].loaded, found["x"].asked_to_load, found["x"].loads) == (48 * 4, 2 * 48 * 4, 1)
    found = readings.attention.attention_bytes(
        elementwise.launch(x, shifted, output), {"x": x, "y": shifted}, label=""
    )
    assert (found["x"].loaded, found["y"].loaded) == (48 * 4, 16 * 4)
    halves = memory.view(torch.float16)[: 2 * 48 : 2]
    found = readings.attention.attention_bytes(
        elementwise.launch(halves, shifted, output), {"y": shifted}, label=""
    )
    assert (found["x_pointer"].loaded, found["y"].loaded) == (48 * 2, 48 * 4 - 32 * 2)
    inplace = readings.attention.attention_bytes(elementwise.launch(x, x, x), {"x": x}, label="")
    assert (inplace["x"].loaded, inplace["x"].stored) == (48 * 4, 48 * 4)


def test_tensors_that_cannot_be_told_apart_are_refused() -> None:
    launch = launched("causal")
    query = launch.steps[0].arguments()["query"]
    with pytest.raises(InvalidArgumentError, match="'P' begins where 'Q' does"):
        readings.attention.attention_bytes(launch, {"Q": query, "P": query}, label="fused")
    with pytest.raises(ArgumentTypeError, match=r"tensors\['Q'\]"):
        readings.attention.attention_bytes(launch, {"Q": 3}, label="fused")  # type: ignore[dict-item]


def test_bytes_grow_with_the_square_if_scores_are_in_memory() -> None:
    found = explore.attention.bytes_by_length((32, 64), tile=(32, 32))
    assert [(one.label, one.length) for one in found] == [
        ("unfused", 32), ("fused", 32), ("unfused", 64), ("fused", 64),
    ]  # fmt: skip
    apart, together, apart_twice, together_twice = found
    assert together_twice.moved == 2 * together.moved
    pairs = [one["S"].moved + one["P"].moved for one in (apart, apart_twice)]
    assert pairs == [4 * 2 * 32 * 32, 4 * 2 * 64 * 64]
    assert apart_twice.moved - pairs[1] == 2 * (apart.moved - pairs[0])


def test_descriptors_give_the_same_reading() -> None:
    query, key, value = tensors(1, 2, 1, 40, 50, 16)
    for_pointers, for_descriptors = (
        attention.launch(
            query, key, value, Scoring(window=CAUSAL), tile=(16, 16), splits=1, descriptors=descriptors
        )
        for descriptors in (False, True)
    )
    assert for_descriptors.steps[0].arguments()["DESCRIPTORS"]
    found, wanted = (explore.attention.tiles(launch, head=1) for launch in (for_descriptors, for_pointers))
    np.testing.assert_array_equal(found.visits, wanted.visits)
    (trace,) = lens.trace(for_descriptors)
    np.testing.assert_array_equal(
        readings.attention.visited(trace, (16, 16), head=1), wanted.visits != SKIPPED
    )
    one, other = (
        explore.attention.steps(launch, 2, head=1).visits[-1] for launch in (for_descriptors, for_pointers)
    )
    np.testing.assert_array_equal(one.sums, other.sums)
