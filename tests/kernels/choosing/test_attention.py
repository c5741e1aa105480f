"""The instances of attention: the kernel that a problem gets, and the compilation of every instance."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.everything import some_of
from tests.kernels.compiled_for import assert_waits_before_memory
from tests.machines import A100, H200, MI300X
from workbench import device
from workbench.errors import DeviceError, InvalidArgumentError
from workbench.kernels import attention
from workbench.kernels.attention import (
    CAUSAL,
    EVERYTHING,
    PLAIN,
    Configuration,
    Dropout,
    Hook,
    Scoring,
    Starts,
    Window,
)
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.attention.hopper import Way
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.instances import attention as instances
from workbench.kernels.options import options_of
from workbench.kernels.tile import scores
from workbench.lens.compile import compile, compile_all
from workbench.operators import attention as operators

TWO = Way(2, 128, 2, turns=False, persistent=False)


def of(
    queries: int, keys: int, size: int, *, batch: int = 4, heads: int = 16, key_heads: int = 16,
    dtype: torch.dtype = torch.float16, on: str = "meta",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    query = torch.zeros(batch, heads, queries, size, dtype=dtype, device=on)
    key, value = (torch.zeros(batch, key_heads, keys, size, dtype=dtype, device=on) for _ in range(2))
    return query, key, value


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", lambda: H200)


@pytest.mark.usefixtures("h200")
def test_only_the_smallest_tile_is_listed_with_splits() -> None:
    found = list(operators._configurations(*of(4096, 4096, 128)[:2]))
    portable = [one for one in found if "tile" in one]
    smallest = instances.PORTABLE[0].tile
    assert {one["tile"] for one in portable} == {tiling.tile for tiling in instances.PORTABLE}
    assert {one["splits"] for one in portable if one["tile"][0] != smallest[0]} == {1}
    assert {one["splits"] for one in portable if one["tile"] == smallest} == {1, *instances.SPLITS}
    listed = {tuple(one.items()) for one in portable}
    assert len(listed) == len(portable)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("given", "window", "groups"),
    [
        (of(4096, 4096, 128), EVERYTHING, 2),
        (of(4096, 4096, 128), CAUSAL, 2),
        (of(4096, 4096, 64), EVERYTHING, 3),
        (of(8192, 8192, 64), Window(right=0, from_end=True), 2),
        (of(2048, 2048, 256, dtype=torch.bfloat16), CAUSAL, 2),
        (of(4096, 4096, 96), CAUSAL, 2),
        (of(4096, 8192, 128, key_heads=4), CAUSAL, 2),
    ],
)
def test_the_hopper_kernel_is_chosen_where_it_is_faster(
    given: tuple[torch.Tensor, ...], window: Window, groups: int
) -> None:
    found = choosing.forward(given[0], given[1], given[2], Scoring(window=window))
    assert found.hopper is not None
    assert found.hopper.groups == groups


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("given", "scoring", "has_descriptors"),
    [
        (of(512, 512, 64), PLAIN, True),
        (of(1024, 1024, 128), Scoring(window=CAUSAL), True),
        (of(4096, 4096, 64), Scoring(window=CAUSAL), True),
        (of(4096, 4096, 128, batch=1, heads=2, key_heads=2), PLAIN, True),  # too few programs
        (of(4096, 4096, 128), Scoring(window=Window(100, 0)), True),
        (of(4096, 4096, 128), Scoring(hooks=(Hook(scores.cap_softly, (30.0,)),)), True),
        (of(4096, 4096, 128), Scoring(dropout=Dropout(0.1, 1)), True),
        (of(4096, 4096, 128), Scoring(scale=-1.0), True),
        (of(4096, 4096, 160), PLAIN, False),  # two parts
        (of(4096, 4096, 100), PLAIN, False),  # rows of 200 bytes
    ],
)
def test_other_problems_get_the_portable_kernel(
    given: tuple[torch.Tensor, ...], scoring: Scoring, has_descriptors: bool
) -> None:
    found = choosing.forward(given[0], given[1], given[2], scoring)
    assert found.hopper is None
    assert found.descriptors is has_descriptors


# (batch, keys) -> the tried numbers of splits with which an H200 took at most 1 % longer than with the
# fastest number, for one query, 32 heads on 8 heads of keys, of 128 columns in fp16.
FAST_SPLITS = {
    (1, 8192): (16,), (1, 32768): (16,), (1, 131072): (16,), (3, 32768): (4, 5), (5, 32768): (3,),
    (8, 8192): (2,), (8, 32768): (2, 4), (8, 131072): (2, 4, 6, 8, 16, 18), (10, 8192): (1,),
    (10, 32768): (1, 3, 6, 8), (12, 32768): (1,), (16, 32768): (1,), (17, 32768): (11, 13, 16, 18),
    (20, 8192): (3, 4), (20, 32768): (3, 4, 8), (32, 32768): (1, 2, 4, 5, 6), (40, 8192): (2,),
    (40, 32768): (2, 4, 5, 6, 8, 11, 13, 16),  # 2 was the fastest of one run, and 1.2 % behind by both
}  # fmt: skip


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("batch", "keys"), FAST_SPLITS)
def test_decoding_has_as_many_splits_as_measured_fastest(batch: int, keys: int) -> None:
    found = choosing.forward(*of(1, keys, 128, batch=batch, heads=32, key_heads=8))
    assert found.tile == (16, 128)
    assert found.splits in FAST_SPLITS[batch, keys]
    assert found.num_stages == (4 if keys // found.splits >= 512 * 128 else 3)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("batch", "keys"), [(1, 200), (1, 0), (0, 8192)])
def test_short_decoding_is_not_split(batch: int, keys: int) -> None:
    assert choosing.forward(*of(1, keys, 128, batch=batch, heads=32, key_heads=8)).splits == 1


@given(st.integers(1, 2000), st.integers(1, 1024), st.integers(1, 200))
def test_even_splits_keep_memory_busy(programs: int, tiles: int, units: int) -> None:
    """A last round takes time by its share of the units, at least DRAWING, the share that memory needs."""
    splits = choosing.even_splits(programs, tiles, units)

    def taken(splits: int) -> float:
        rounds, rest = divmod(programs * splits, units)
        last = max(rest / units, instances.DRAWING) if rest else 0.0
        return (rounds + last) * -(-tiles // splits)

    assert 1 <= splits <= max(1, min(tiles // 2, attention.MOST_SPLITS))
    assert taken(splits) <= taken(1)
    if splits < min(tiles // 2, attention.MOST_SPLITS):
        assert taken(splits) <= 1.25 * programs * tiles / units + 12


@pytest.mark.parametrize("here", [H200, A100, MI300X, device.current()], ids=lambda here: here.name)
def test_merging_overlaps_on_hopper_alone(here: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given = of(1, 200, 64, on="cpu")
    monkeypatch.setattr(device, "current", lambda: here)
    (alone,) = attention.launch(*given, splits=1).steps
    first, merging = attention.launch(*given, splits=2).steps
    assert alone.meta["OVERLAP"] is False
    assert first.meta["OVERLAP"] is merging.meta["OVERLAP"] is (here is H200)
    assert [step.meta.get("launch_pdl", False) for step in (alone, first, merging)] == [
        False, False, here is H200,
    ]  # fmt: skip


def test_programs_that_overlap_wait_before_they_touch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", lambda: H200)
    query, key, value = of(1, 8192, 128, batch=8, heads=32, key_heads=8, on="cpu")
    launch = attention.launch(query, key, value, **options_of(choosing.forward(query, key, value)))
    monkeypatch.undo()
    found = compile(launch, "sm_90")
    assert [step.kernel for step in found] == ["attention_kernel", "merge_kernel"]
    for step in found:
        assert_waits_before_memory(step.stages["ptx"])
        assert (step.spills, step.problem) == (0, "")


def test_merging_that_overlaps_can_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch made for Hopper may be interpreted: its steps run one after the other."""
    query, key, value = (torch.randn(1, 2, rows, 16) for rows in (1, 70, 70))
    monkeypatch.setattr(device, "current", lambda: H200)
    launch = attention.launch(query, key, value, tile=(16, 16), splits=3)
    monkeypatch.undo()
    for space in (*launch.outputs, *launch.workspaces):
        space.fill_(float("nan"))
    found, _ = launch.run()
    wanted = torch.softmax(query.double() @ key.double().mT / 4, -1) @ value.double()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("here", [A100, MI300X, device.current()], ids=lambda here: here.name)
def test_other_devices_get_the_default_configuration(
    here: device.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "current", lambda: here)
    assert choosing.forward(*of(4096, 4096, 128)) == Configuration()
    assert choosing.backward(*of(4096, 4096, 128)) == attention_backward.Configuration()


@pytest.mark.usefixtures("h200")
def test_gradients_get_the_first_tiling_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiling depends on the number of keys; descriptors are used where query, key and value have them."""
    described, plain = Tiling((64, 128), 8, 3, descriptors=True), Tiling((32, 64), 4, 3)
    for name in ("OF_KEYS", "OF_QUERIES"):
        monkeypatch.setitem(getattr(instances, name), (128, True), ((2048, described), (0, plain)))
    causal = Scoring(window=CAUSAL)
    starts = torch.zeros(2, dtype=torch.int32, device="meta")
    for tensors, scoring, wanted in [
        (of(4096, 4096, 128), causal, described),
        (of(4096, 1024, 128), causal, plain),
        (of(4096, 4096, 100), causal, plain),
        (of(4096, 4096, 128, batch=1), replace(causal, starts=Starts(starts, starts, 4096, 4096)), plain),
    ]:
        found = choosing.backward(*tensors, scoring)
        assert (found.of_keys, found.of_queries) == (wanted, wanted)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("table", [instances.OF_KEYS, instances.OF_QUERIES], ids=["keys", "queries"])
def test_each_table_of_gradients_has_a_tiling_for_all_tensors(
    table: dict[tuple[int, bool], tuple[tuple[int, Tiling], ...]],
) -> None:
    """Tilings go from the most keys to the fewest, and the last one loads by pointers."""
    for tilings in table.values():
        assert tilings[-1][0] == 0
        assert not tilings[-1][1].descriptors
        lengths = [least for least, _ in tilings]
        assert lengths == sorted(lengths, reverse=True)
        assert len({(least, tiling.descriptors) for least, tiling in tilings}) == len(tilings)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("given", "is_causal", "of_keys", "of_queries"),
    [
        (of(4096, 4096, 64), False, Tiling((32, 128), 4, 3, True), Tiling((128, 64), 4, 3)),
        (of(1024, 1024, 64), False, Tiling((32, 64), 4, 3, True), Tiling((128, 64), 4, 3)),
        (of(1024, 1024, 64), True, Tiling((32, 64), 4, 3, True), Tiling((64, 64), 4, 3, True)),
        (of(4096, 4096, 64), True, Tiling((64, 64), 4, 4, True), Tiling((128, 64), 4, 3, True)),
        (of(2048, 2048, 64), True, Tiling((32, 64), 4, 3, True), Tiling((128, 64), 4, 3, True)),
        (of(1024, 1024, 128), False, Tiling((64, 64), 4, 2, True), Tiling((128, 32), 8, 3, True)),
        (of(4096, 4096, 128), True, Tiling((64, 64), 4, 2, True), Tiling((128, 64), 8, 3, True)),
        (of(1024, 1024, 256), False, Tiling((64, 32), 4, 2), Tiling((128, 32), 8, 3, True)),
        (of(2048, 2048, 256), False, Tiling((64, 64), 8, 2, True), Tiling((128, 32), 8, 3, True)),
        (of(16384, 16384, 256), False, Tiling((64, 32), 4, 2), Tiling((128, 32), 8, 3, True)),
        (of(4096, 4096, 256), True, Tiling((64, 32), 4, 2), Tiling((128, 32), 8, 3, True)),
        (of(4096, 4096, 100), False, Tiling((64, 128), 8, 3), Tiling((128, 64), 8, 3)),  # rows of 200 bytes
    ],
)
def test_gradients_get_the_tilings_measured_fastest(
    given: tuple[torch.Tensor, ...], is_causal: bool, of_keys: Tiling, of_queries: Tiling
) -> None:
    scoring = Scoring(window=CAUSAL if is_causal else EVERYTHING)
    found = choosing.backward(given[0], given[1], given[2], scoring)
    assert (found.of_keys, found.of_queries) == (of_keys, of_queries)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_get_the_default_configuration(dtype: torch.dtype) -> None:
    assert choosing.forward(*of(4096, 4096, 128, dtype=dtype)) == Configuration()


@pytest.mark.parametrize(
    ("given", "scoring", "reason"),
    [
        (of(128, 128, 128, dtype=torch.float32), PLAIN, "takes fp16 and bf16, not torch.float32"),
        (of(128, 128, 128), Scoring(hooks=(Hook(scores.cap_softly, (30.0,)),)), "no hooks, masks, dropout"),
        (of(128, 128, 128), Scoring(window=Window(left=3)), "no windows that end on the left"),
        (of(128, 128, 128), Scoring(scale=0.0), "positive scales only"),
        (of(128, 128, 160), PLAIN, "no heads of 160 and 160 columns"),
        (of(128, 128, 32), PLAIN, "no heads of 32 and 32 columns"),
        (of(128, 128, 100), PLAIN, "TMA takes no query of shape (4, 16, 128, 100)"),
        (of(128, 0, 128), PLAIN, "TMA takes no key of shape (4, 16, 0, 128)"),
    ],
)
def test_problems_the_hopper_kernel_does_not_take_are_refused(
    given: tuple[torch.Tensor, ...], scoring: Scoring, reason: str
) -> None:
    query, key, value = given
    assert reason in attention.why_not_hopper(query, key, value, scoring)
    with pytest.raises(InvalidArgumentError) as caught:
        attention.launch(query, key, value, scoring, hopper=TWO)
    assert caught.value.argument == "hopper"
    assert reason in str(caught.value)


def test_the_hopper_kernel_refuses_expanded_heads() -> None:
    query, key, value = of(128, 128, 128)
    assert "TMA takes no key" in attention.why_not_hopper(query, key[:1].expand_as(key), value)


def test_the_hopper_kernel_is_not_interpreted() -> None:
    launch = attention.launch(*of(128, 128, 64, on="cpu"), hopper=TWO)
    with pytest.raises(DeviceError, match="attention_hopper_kernel is written in Gluon"):
        launch.run()


ON_HOPPER = [
    (size, is_causal, way) for (size, is_causal), ways in instances.ON_HOPPER.items() for _, way in ways
]


@pytest.mark.parametrize(("size", "is_causal", "way"), ON_HOPPER)
def test_the_hopper_kernel_compiles_without_spills(size: int, is_causal: bool, way: Way) -> None:
    """The two products of a group of warps are asynchronous, and nothing is spilled."""
    is_ragged = size == 64
    given = of(300, 333 if is_ragged else 384, size, key_heads=4, on="cpu")
    launch = attention.launch(*given, Scoring(window=CAUSAL if is_causal else EVERYTHING), hopper=way)
    (step,) = compile(launch, "sm_90")
    assert (step.spills, step.local_bytes, step.problem) == (0, 0, "")
    assert step.threads == 32 * {2: 12, 3: 16}[way.groups]
    products = step.stages["ttgir"].count("ttng.warp_group_dot ")
    loops = 2 if is_causal or is_ragged else 1
    assert products == way.groups * (2 * loops + 2)  # two in each loop; the first scores, the last values
    assert "ttir" not in step.stages


@pytest.mark.parametrize(
    ("target", "room"), [("sm_80", 163 << 10), ("sm_86", 99 << 10), ("gfx942", 64 << 10)]
)
@pytest.mark.parametrize("size", [128, 256])
def test_default_tiles_fit_the_shared_memory_of_other_gpus(
    size: int, target: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value = of(300, 333, size, key_heads=4, on="cpu")
    (step,) = compile(attention.launch(query, key, value, splits=1), target)
    assert step.problem == ""
    here = replace(device.current(), shared_memory_bytes=room)
    monkeypatch.setattr(device, "current", lambda: here)
    sums = torch.zeros(query.shape[:3])
    back = attention_backward.launch(query, query, key, value, query, sums, one_pass=False)
    assert [one.problem for one in compile(back, target)] == ["", "", ""]


@pytest.mark.parametrize("size", [64, 160, 256])
@pytest.mark.parametrize("keys", [333, 1_000_000])
def test_decoding_fits_on_hopper(keys: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", lambda: H200)
    query, key, value = of(1, keys, size, batch=1, heads=8, key_heads=1, on="cpu")
    chosen = options_of(choosing.forward(query, key, value))
    for step in compile(attention.launch(query, key, value, **chosen), "sm_90"):
        assert (step.spills, step.problem) == (0, "")
        assert step.shared_bytes <= H200.shared_memory_bytes


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_masks_and_biases_of_wide_heads_fit_on_hopper(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of the mask or bias are in shared memory too, one for each stage of keys and values."""
    query, key, value = of(300, 333, 256, batch=1, heads=1, key_heads=1, on="cpu")
    mask = torch.zeros(1, 1, 300, 333, dtype=dtype)
    shape, strides = (300, 333), mask.stride()
    hook = (
        Hook(scores.keep_where, (mask.view(torch.int8), shape, strides), scores.pass_gradient)
        if dtype == torch.bool
        else Hook(
            scores.add_bias, (mask, shape, strides, torch.zeros_like(mask), strides), scores.pass_gradient,
            scores.store_bias_gradient,
        )
    )  # fmt: skip
    scoring = Scoring(hooks=(hook,))
    monkeypatch.setattr(device, "current", lambda: H200)
    forward = options_of(choosing.forward(query, key, value, scoring))
    back = options_of(choosing.backward(query, key, value, scoring))
    monkeypatch.undo()
    sums = torch.zeros(query.shape[:3])
    launches = (
        attention.launch(query, key, value, scoring, splits=1, **forward),
        attention_backward.launch(query, query, key, value, query, sums, scoring, **back),
    )
    for steps in compile_all(launches, "sm_90"):
        assert isinstance(steps, tuple)
        assert [step.problem for step in steps] == [""] * len(steps)


@pytest.mark.parametrize(
    ("tokens", "is_causal", "size"),
    some_of([*itertools.product([256, 2048], [False, True], [64, 128, 256])], 6),
)
def test_portable_instances_on_hopper_compile(
    tokens: int, size: int, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that keeps keys may spill, where that was measured to be faster; no other may."""
    monkeypatch.setattr(device, "current", lambda: replace(H200, compute_units=10**9))  # too few programs
    query, key, value = of(tokens, tokens, size, batch=1, heads=1, key_heads=1, on="cpu")
    scoring = Scoring(window=CAUSAL if is_causal else EVERYTHING)
    chosen = options_of(choosing.forward(query, key, value, scoring))
    back = options_of(choosing.backward(query, key, value, scoring))
    monkeypatch.undo()
    (step,) = compile(attention.launch(query, key, value, scoring, splits=1, **chosen), "sm_90")
    assert (step.spills, step.problem) == (0, "")
    sums = torch.zeros(query.shape[:3])
    gradients = attention_backward.launch(query, query, key, value, query, sums, scoring, **back)
    _, of_keys, of_queries = compile(gradients, "sm_90")
    assert of_keys.problem == of_queries.problem == ""
    assert of_queries.spills == 0
    for kernel in (of_keys, of_queries):  # all tiles are whole
        assert "tt.load" in kernel.stages["ttir"]
        assert not re.search(r"tt\.load %[\w#]+, ", kernel.stages["ttir"])
