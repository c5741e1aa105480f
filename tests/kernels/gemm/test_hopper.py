"""The ping-pong template without a GPU: its compiled code, and the problems that it takes and gets."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.everything import some_of
from tests.kernels.test_epilogues import FUNCTORS
from tests.machines import A100, H200
from workbench import device, ops
from workbench.errors import ArgumentTypeError, InvalidArgumentError, WorkbenchError
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.epilogues import (
    ACTIVATIONS,
    NARROW,
    Epilogue,
    add,
    bias,
    cast,
    dropout,
    fast_gelu,
    gelu,
    own,
    relu,
    row_scale,
    sigmoid,
    silu,
)
from workbench.kernels.gemm import hopper_pairs as gemm_hopper_pairs
from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide
from workbench.kernels.tile.activations import COARSE
from workbench.launch import Launch
from workbench.lens.compile import CompiledStep, compile_all
from workbench.operators import gemm as operators


def half(rows: int, cols: int) -> torch.Tensor:
    return torch.zeros(rows, cols, dtype=torch.float16)


def ping_pong(
    layout: str = "nn", chain: Epilogue | None = None, m: int = 512, n: int = 512, k: int = 128,
    dtype: torch.dtype = torch.float16, **more: Any,
) -> Launch:  # fmt: skip
    a = half(m, k).to(dtype) if layout[0] == "n" else half(k, m).to(dtype).t()
    b = half(k, n).to(dtype) if layout[1] == "n" else half(n, k).to(dtype).t()
    how = {"tile": (128, 128, 64), "num_stages": 6, "compute_units": 132, **more}
    return gemm.launch(a, b, epilogue=chain, template="ping-pong", **how)


def of_192(layout: str = "nn", chain: Epilogue | None = None, **more: Any) -> Launch:
    """Return a launch with tiles of 128 x 192, two for each program."""
    how = {"tile": gemm_hopper_wide.TILE, "num_stages": 5, "n": 768, "k": 512, "programs": 8, **more}
    return ping_pong(layout, chain, **how)


def compiled(launches: Sequence[Launch]) -> list[CompiledStep]:
    """Return the compiled step of each launch on sm_90."""
    steps: list[CompiledStep] = []
    for found in compile_all(launches, "sm_90"):
        assert isinstance(found, tuple), found
        steps += found
    assert len(steps) == len(launches)
    return steps


def brought(launch: Launch) -> int:
    """Return how many of an epilogue's tensors are prefetched to shared memory."""
    found: int = launch.steps[0].meta["BESIDE"]
    return found


def test_ping_pong_kernels_compile_for_hopper() -> None:
    """Tiles of 192 columns spill a little, others do not."""
    two = add(half(512, 512)) | add(half(512, 512)) | fast_gelu()
    launches = {
        "bare": ping_pong(),
        "transposed": ping_pong("tt"),
        "two addends": ping_pong(chain=two),
        "one, and a row": ping_pong("nt", add(half(512, 512)) | bias(half(1, 512)[0]) | relu()),
        "wide": ping_pong(chain=two, tile=(64, 256, 64), num_stages=5),
        "narrow": ping_pong(chain=two, tile=(64, 32, 64)),
        "high": ping_pong(chain=two, tile=(256, 64, 64), num_stages=4),
        "long": ping_pong(chain=two, k=2048, programs=8),
        "long, of one addend": ping_pong("tt", add(half(512, 512)) | relu(), k=2048, programs=8),
        "long and small": ping_pong(chain=two, tile=(64, 64, 64), k=2048, programs=32),
        "without what is brought": ping_pong(chain=fast_gelu()),
        "pairs": ping_pong(chain=two, k=2048, programs=4),
        "pairs, of one addend": ping_pong("tt", add(half(512, 512)) | relu(), k=2048, programs=4),
        "pairs, without addends": ping_pong(chain=bias(half(1, 512)[0]) | fast_gelu(), k=2048, programs=4),
        "pairs, bare": ping_pong(k=2048, programs=8),
        "exact": ping_pong(chain=two | silu() | sigmoid(), output=torch.zeros(512, 512)),
        "gelu": ping_pong(chain=two | gelu()),
        "of 192 columns": of_192(chain=add(half(512, 768)) | add(half(512, 768)) | fast_gelu()),
        "of 192 columns, transposed": of_192("tt", add(half(512, 768)) | relu()),
        "of 192 columns, which begin with nothing": of_192(chain=fast_gelu() | add(half(512, 768))),
        "of 192 columns, without addends": of_192(chain=bias(half(1, 768)[0]) | fast_gelu()),
        "of 192 columns, bare": of_192(),
    }
    launches = dict(some_of([*launches.items()], 8))
    for name, step in zip(launches, compiled([*launches.values()]), strict=True):
        assert (step.problem, step.serialization) == ("", ""), name
        # Accumulators of 128 x 192 leave a lane 48 registers; some epilogues need a few more.
        assert step.spills <= (64 if "192" in name else 0), (name, step.spills)
        assert step.shared_bytes <= H200.shared_memory_bytes, name
        assert "wgmma.mma_async" in step.stages["ptx"], name
        # Warps that copy leave registers to warps that compute.
        assert "setmaxnreg" in step.stages["ptx"], name


def test_each_shipped_functor_compiles_in_gluon() -> None:
    """All functors are in one chain, for results of 16 and of 32 bits; some have a form for each.

    Activations that other functors follow have the exact form, so each coarse form is compiled alone too.
    """
    chains = [
        make(*(torch.zeros([512] * each.dim(), dtype=torch.float16) for each in tensors))
        for make, tensors, _ in FUNCTORS.values()
    ]
    whole = functools.reduce(operator.or_, [*chains, dropout(0.5, seed=1)])
    launches = [ping_pong(chain=whole, tile=(64, 32, 64), output=torch.zeros(512, 512))]
    coarse = [make() for make in ACTIVATIONS.values() if make().functors[0].function in COARSE]
    alone = *coarse, *map(cast, NARROW)
    launches += [ping_pong(chain=chain, tile=(64, 32, 64)) for chain in (whole, *alone)]
    assert "exact" not in str([launch.steps[0].meta["EPILOGUE"] for launch in launches[2:]])
    assert {launch.steps[0].name for launch in launches} == {"gemm_ping_pong_kernel"}
    assert {step.problem for step in compiled(launches)} == {""}


@pytest.mark.parametrize(
    ("layout", "dtype"),
    some_of([*itertools.product(["nn", "nt", "tn", "tt"], [torch.float16, torch.bfloat16])], 3),
    ids=str,
)
def test_tiles_of_192_columns_use_wgmma_of_192_columns(layout: str, dtype: torch.dtype) -> None:
    """Products of 128 or 64 columns, as Triton makes them, do not appear."""
    addend = half(512, 768).to(dtype)
    two = add(addend) | add(addend) | fast_gelu()
    chains = None, bias(addend[0]) | fast_gelu(), two, gelu() | add(addend)
    launches = [of_192(layout, chain, dtype=dtype) for chain in chains]
    for step in compiled(launches):
        products = re.findall(r"wgmma\.mma_async\S+\.m64n(\d+)k16\.f32\.(\w+)", step.stages["ptx"])
        # Two groups of warps, a step of 64 along K: four products of 16, each for two halves of the rows.
        assert products == [("192", {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype])] * 16


def test_a_launch_without_products_copies_as_much() -> None:
    """The kernel of `without_products` issues the same copies and no wgmma."""
    two = add(half(512, 512)) | add(half(512, 512)) | fast_gelu()
    launches = [ping_pong(chain=two, k=2048, programs=programs) for programs in (16, 8, 4)]
    launches.append(of_192(chain=add(half(512, 768)) | relu()))
    without = [gemm.without_products(one) for one in launches]
    for whole, rest in zip(compiled(launches), compiled(without), strict=True):
        found = [step.stages["ptx"] for step in (whole, rest)]
        assert whole.kernel == rest.kernel
        assert ["wgmma.mma_async" in text for text in found] == [True, False]
        copies = [text.count("cp.async.bulk.tensor") for text in found]
        assert copies[0] == copies[1] > 0
    for launch, said in (
        (gemm.launch(half(64, 64), half(64, 64)), "a launch of gemm_kernel"),
        (gemm.launch(half(64, 64)[:0], half(64, 64)), "a launch of no kernel"),
        (ping_pong(k=0), "a launch of gemm_kernel"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            gemm.without_products(launch)
    with pytest.raises(ArgumentTypeError, match="product"):
        gemm.without_products(half(64, 64))  # type: ignore[arg-type]
    assert [(one.work, one.outputs) for one in without] == [(None, one.outputs) for one in launches]


def test_addends_that_tma_takes_are_prefetched_to_shared_memory() -> None:
    whole = half(512, 512)
    wide, row, across = torch.zeros(512, 512), half(1, 512)[0], half(512, 512).t()
    unaligned = half(1, 512 * 516 + 1)[0, 1:].view(512, 516)[:, :512]
    for chain, wanted in (
        (add(whole) | add(whole), 2),
        (add(whole) | add(whole) | add(whole), 2),
        (bias(row) | add(whole), 1),
        (add(wide) | add(across) | add(unaligned) | bias(row), 0),
        (add(whole) | add(whole.to(torch.bfloat16)), 1),
    ):
        launch = ping_pong(chain=chain)
        assert brought(launch) == wanted, chain
        # Buffers replace a stage, and a little more: three parts of two tensors, or all four parts of one.
        assert launch.steps[0].meta["STAGES"] == (5 if wanted else 6)
        assert launch.steps[0].meta["SLOTS"] == {0: 0, 1: 4, 2: 3}[wanted]
    # At least two stages are left beside the buffers.
    assert brought(ping_pong(chain=add(whole) | add(whole), num_stages=3)) == 2
    assert brought(ping_pong(chain=add(whole), num_stages=2)) == 0
    # A narrow tile is one part.
    assert ping_pong(chain=add(whole), tile=(64, 32, 64)).steps[0].meta["SLOTS"] == 1


def test_addends_are_evicted_from_the_cache_first() -> None:
    """Copies of addends alone have the hint, if everything fits into the L2 cache; those of pairs too."""
    whole = half(512, 512)
    chain = add(whole) | add(whole)
    launches = [
        ping_pong(chain=chain),
        ping_pong(chain=chain, programs=8, k=1024),
        ping_pong(chain=chain, programs=4, k=1024),
        ping_pong(chain=relu()),
    ]
    large = half(4096, 4096)
    launches.append(ping_pong(m=4096, n=4096, k=512, chain=add(large) | add(large)))
    assert launches[2].steps[0].kernel is gemm_hopper_pairs.gemm_pairs_kernel
    hinted = []
    for step in compiled(launches):
        copies = [line for line in step.stages["ptx"].splitlines() if "cp.async.bulk.tensor" in line]
        hinted.append([line for line in copies if "L2::cache_hint" in line])
        assert len(hinted[-1]) < len(copies)
    # Two tensors of four parts; for pairs, of each of the two tiles.
    assert [len(lines) for lines in hinted] == [8, 8, 16, 0, 0]
    assert all("createpolicy.fractional.L2::evict_first.b64" in line for lines in hinted for line in lines)


@pytest.mark.parametrize(
    ("more", "begins"),
    [
        ({"programs": 8}, True),  # two tiles per program
        ({"programs": 15}, True),  # two tiles for some programs
        ({}, False),  # one tile per program
        ({"programs": 7}, False),  # three tiles for some programs
        ({"programs": 8, "k": 1024}, True),
        ({"programs": 8, "k": 960}, False),  # fifteen steps
        ({"programs": 8, "k": 32768 + 64}, False),  # so many steps cost accuracy
        ({"programs": 8, "tile": (64, 256, 64), "num_stages": 4}, False),
        ({"programs": 8, "num_stages": 2}, False),  # no addend is brought
        ({"programs": 8, "num_stages": 4}, False),  # no buffer is left beside the last steps of a tile
        ({"programs": 8, "num_stages": 5}, True),
        ({"programs": 8, "tile": (64, 64, 64)}, False),
        ({"programs": 8, "tile": (128, 128, 32)}, False),  # no buffer holds the handed-over part
    ],
)
def test_accumulators_start_as_the_addends_in_programs_of_two_tiles_of_many_steps(
    more: dict[str, Any], begins: bool
) -> None:
    """Programs need two tiles of many steps, and chains that begin with adding prefetched tensors."""
    first, wide = half(512, 512), torch.zeros(512, 512)
    for chain, may in (
        (add(first) | add(first) | fast_gelu(), True),
        (add(first), True),
        (fast_gelu() | add(first), False),
        (add(first) | relu() | add(first), False),
        (add(wide) | add(first), False),
        (relu(), False),
    ):
        launch = ping_pong(chain=chain, **{"k": 2048, **more})
        assert launch.steps[0].meta.get("BEGIN", False) == (may and begins), chain
    output = torch.zeros(512, 512)  # fp32 would show the error of a sum that starts large
    assert not ping_pong(chain=add(first), k=2048, programs=8, output=output).steps[0].meta["BEGIN"]
    # Two numbers in bf16 may have an infinite sum although the result, with the product, would be finite.
    others = torch.zeros(512, 512, dtype=torch.bfloat16)
    assert not ping_pong(chain=add(others), k=2048, programs=8).steps[0].meta["BEGIN"]


@pytest.mark.parametrize(
    ("more", "added", "loaded", "bare"),
    [
        ({"programs": 4}, True, False, True),  # two pairs per program
        ({"programs": 8}, False, False, True),  # one pair per program, started as the addends
        ({"programs": 16}, False, False, False),  # one tile per program: no pairs
        ({"programs": 3}, True, False, True),  # three pairs for some programs, six tiles otherwise
        ({"programs": 7}, False, False, False),  # two pairs for some programs, three tiles otherwise
        ({"programs": 1, "m": 128, "n": 41 * 128}, False, False, False),  # one tile has no neighbor
        ({"programs": 1, "m": 128, "n": 40 * 128}, True, False, True),
        ({"programs": 4, "k": 960}, False, False, False),  # fifteen steps
        ({"programs": 4, "k": 1024}, True, False, True),
        ({"programs": 4, "k": 32768 + 64}, False, False, True),  # so many steps cost accuracy
        ({"programs": 4, "num_stages": 5}, False, False, False),
        ({"programs": 4, "tile": (64, 256, 64), "num_stages": 4}, False, False, False),
    ],
)
def test_programs_make_pairs_of_tiles_where_they_get_no_more_tiles(
    more: dict[str, Any], added: bool, loaded: bool, bare: bool
) -> None:
    """Pairs are made where programs get no more tiles by them, and prefetched tensors may be added early."""
    n = more.get("n", 512)
    first = half(more.get("m", 512), n)
    for chain, wanted in (
        (add(first) | add(first) | fast_gelu(), added),
        (fast_gelu() | add(first), loaded),
        (bias(first[0]) | relu(), bare),
        (None, bare),
    ):
        launch = ping_pong(chain=chain, **{"k": 2048, **more})
        is_of_pairs = launch.steps[0].kernel is gemm_hopper_pairs.gemm_pairs_kernel
        assert is_of_pairs == wanted, chain
    pairs = ping_pong(k=2048, programs=None).steps[0]
    assert (pairs.kernel is gemm_hopper_pairs.gemm_pairs_kernel, pairs.grid) == (False, (16,))


def test_tiles_of_192_columns_start_as_fp16_addends_that_come_first() -> None:
    """Fewer steps suffice than for other tiles; beside buffers of parts there is room for four stages."""
    first, wide = half(512, 768), torch.zeros(512, 768)
    for chain, begins, stages in (
        (add(first) | add(first) | fast_gelu(), True, 4),
        (add(first), True, 4),
        (fast_gelu() | add(first), False, 4),
        (add(wide) | relu(), False, 5),
        (None, False, 5),
    ):
        meta = of_192(chain=chain).steps[0].meta
        assert (meta["BEGIN"], meta["STAGES"]) == (begins, stages), chain
    assert not of_192(chain=add(first), output=wide).steps[0].meta["BEGIN"]
    assert not of_192(chain=add(first.to(torch.bfloat16))).steps[0].meta["BEGIN"]
    assert of_192(programs=None).steps[0].grid == (16,)  # one tile per program
    assert of_192(programs=15, chain=add(first)).steps[0].grid == (15,)
    assert of_192(programs=None, compute_units=10).steps[0].grid == (8,)  # two tiles per program
    assert of_192(programs=3, chain=bias(first[0])).steps[0].grid == (3,)  # more tiles: no addend is brought


@pytest.mark.parametrize(
    ("operands", "more", "said"),
    [
        ((torch.zeros(64, 64), torch.zeros(64, 64)), {}, "fp16 and bf16"),
        ((half(2, 64 * 64).view(2, 64, 64), half(64, 64)), {}, "no batches"),
        ((half(64, 65), half(65, 64)), {}, r"template: .* TMA takes no a of .* strides \(65, 1\), 0 bytes"),
        ((half(64, 64), half(64, 64)), {"tile": (128, 256, 64)}, "tile: .* elements at most"),
        ((half(64, 64), half(64, 64)), {"tile": (32, 64, 64)}, "multiple of 64 rows"),
        ((half(64, 64), half(64, 64)), {"tile": (64, 192, 64)}, "power of two"),
        ((half(512, 64), half(64, 768)), {"tile": (128, 192, 32)}, "power of two"),
        (
            (half(512, 192), half(192, 768)),
            {"tile": (128, 192, 64), "programs": 7, "epilogue": add(half(512, 768))},
            "makes 16 tiles for 7 programs, .* there may be 14",
        ),
        ((half(512, 192), half(192, 768)), {"tile": (128, 192, 64), "num_stages": 2}, "Give 3 or more"),
        ((half(512, 128), half(128, 768)), {"tile": (128, 192, 64)}, "K must have 129 elements or more"),
        ((half(64, 64), half(64, 64)), {"num_stages": 1}, "Give 2 or more"),
        ((half(64, 64), half(64, 64)), {"num_warps": 8}, "num_warps"),
        ((half(64, 64), half(64, 64)), {"splits": 2}, "splits"),
        ((half(64, 64), half(64, 64)), {"pack": True}, "pack"),
    ],
)
def test_problems_that_ping_pong_does_not_support_are_refused(
    operands: tuple[torch.Tensor, torch.Tensor], more: dict[str, Any], said: str
) -> None:
    how = {"tile": (64, 64, 64), "compute_units": 132, **more}
    with pytest.raises(InvalidArgumentError, match=said):
        gemm.launch(*operands, template="ping-pong", **how)


def test_ping_pong_is_not_interpreted() -> None:
    with pytest.raises(WorkbenchError, match="Gluon"):
        ping_pong().run()


@pytest.mark.parametrize(
    ("shape", "here", "template"),
    [
        ((4096, 4096, 4096), H200, "ping-pong"),
        ((2048, 3072, 768), H200, "ping-pong"),
        ((3000, 3000, 3000), H200, "simple"),  # rows do not begin at cache lines
        ((1024, 1024, 1024), H200, "simple"),  # fewer tiles than units
        ((64, 65536, 4096), H200, None),  # no whole tile of rows
        ((256, 128, 64), H200, "simple"),
        ((4096, 4096, 4096), A100, "simple"),
        ((4096, 4096, 4096), dataclasses.replace(H200, architecture="sm_120"), "simple"),
    ],
)
def test_only_large_aligned_products_on_hopper_get_ping_pong(
    shape: tuple[int, int, int], here: device.Device, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone or with an epilogue that loads a matrix, products get it where it is predicted to be faster."""
    monkeypatch.setattr(device, "current", lambda: here)
    m, n, k = shape
    for dtype in (torch.float16, torch.float32):
        a = torch.empty(m, k, dtype=dtype, device="meta")
        b, output = (torch.empty(rows, n, dtype=dtype, device="meta") for rows in (k, m))
        found = choosing.chosen_for_followed(a, b, output, "ieee")
        if dtype == torch.float16 and template is not None:
            assert found.template == template
        else:
            assert found.template != "ping-pong"
        alone = choosing.chosen(a, b, output, "ieee").template == "ping-pong"
        assert alone == (dtype == torch.float16 and template == "ping-pong")


@pytest.mark.parametrize(
    ("shape", "added", "cols"),
    [
        ((2048, 3072, 768), (torch.float16, torch.float16), 192),
        ((2304, 2304, 4096), (torch.float16, torch.float16, torch.bfloat16), 192),
        ((2048, 3072, 768), (torch.float16,), 128),
        ((2048, 3072, 768), (torch.float16, torch.float32), 128),
        ((2048, 3072, 768), (), 128),
        ((2048, 3072, 576), (torch.float16, torch.float16), 128),  # nine steps
        ((2048, 3072, 33024), (torch.float16, torch.float16), 128),  # so many steps cost accuracy
        ((2048, 2048, 768), (torch.float16, torch.float16), 128),  # two tiles of 128 columns per program
        ((2048, 4096, 768), (torch.float16, torch.float16), 128),  # three tiles of 192 columns per program
    ],
)
def test_tiles_of_192_columns_need_two_fp16_matrices_and_a_fitting_grid(
    shape: tuple[int, int, int], added: tuple[torch.dtype, ...], cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs get two tiles of 192 columns instead of three of 128 if two matrices are added first."""
    monkeypatch.setattr(device, "current", lambda: H200)
    m, n, k = shape
    a, b, output = half(m, k), half(k, n), half(m, n)
    chain = Epilogue()
    for dtype in added:
        chain |= add(torch.zeros(m, n, dtype=dtype))
    for each in (chain | fast_gelu(), chain | bias(half(1, n)[0]) | silu()):
        found = choosing.chosen_for_chain(each, a, b, output, "ieee")
        assert (found.template, found.tile[1]) == ("ping-pong", cols)
        launch = gemm.launch(a, b, output=output, epilogue=each, compute_units=132, **found.keywords)
        assert launch.steps[0].meta["BLOCK_N"] == cols
    assert choosing.chosen_for_chain(chain | gelu(), a, b, output, "ieee").tile[1] != 192
    late = choosing.chosen_for_chain(relu() | chain | fast_gelu(), a, b, output, "ieee")
    assert late.tile[1] == 128


def test_addends_that_tma_does_not_take_get_no_tiles_of_192_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulators of 192 columns would spill with them, or with wider or narrower functors behind."""
    monkeypatch.setattr(device, "current", lambda: H200)
    m, n, k = 2048, 3072, 768
    a, b, first = half(m, k), half(k, n), half(m, n)
    wanted = choosing.chosen_for_chain(add(first) | add(first) | relu(), a, b, half(m, n), "ieee")
    assert wanted.tile == gemm_hopper_wide.TILE
    for other in (
        half(n, m).t(),
        half(m, n + 4)[:, :n],
        half(1, m * n + 1)[0, 1:].view(m, n),
        half(1, n).expand(m, n),
        torch.zeros(m, n, dtype=torch.bfloat16),
    ):
        for chain in (add(first) | add(other), add(other) | add(first)):
            found = choosing.chosen_for_chain(chain | relu(), a, b, half(m, n), "ieee")
            assert found.tile == (128, 128, 64), other.stride()
    for behind in (add(torch.zeros(m, n)), cast(torch.int8)):
        found = choosing.chosen_for_chain(add(first) | add(first) | behind, a, b, half(m, n), "ieee")
        assert found.tile == (128, 128, 64)


def test_large_products_with_slow_activations_get_ping_pong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains with slow activations get ping-pong for the products for which chains with matrices get it."""
    monkeypatch.setattr(device, "current", lambda: H200)
    for m, n, k, wanted in (
        (2048, 3072, 768, "ping-pong"),
        (1024, 1024, 1024, "simple"),
        (8, 8, 64, "simple"),
    ):
        a, b, output, row = half(m, k), half(k, n), half(m, n), half(1, n)[0]
        alone = choosing.chosen(a, b, output, "ieee")
        for chain in (bias(row) | fast_gelu(), fast_gelu() | gelu(), silu(), bias(row) | sigmoid()):
            found = choosing.chosen_for_chain(chain, a, b, output, "ieee")
            assert found.template == wanted, chain
            assert wanted == "ping-pong" or found == alone
        wide = torch.empty(m, n, device="meta")
        chosen = choosing.chosen(a, b, wide, "ieee")
        assert choosing.chosen_for_chain(silu(), a, b, wide, "ieee") == chosen  # not measured
        asked = choosing.asked_of(a, b, output)
        for chain in (bias(row) | relu(), gelu(), Epilogue()):
            found = choosing.chosen_for_chain(chain, a, b, output, "ieee")
            assert found == choosing.choose(asked, is_followed=True)
        found = choosing.chosen_for_chain(silu() | dropout(0.5, seed=1), a, b, output, "ieee")
        assert found == choosing.choose(asked, takes_turns=False)


def test_cheap_chains_get_ping_pong_where_the_product_gains_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 192 columns are chosen where there are fewer waves of them."""
    monkeypatch.setattr(device, "current", lambda: H200)
    for m, n, k, cols in ((2048, 3072, 4096, 128), (3072, 3072, 3072, 192)):
        a, b, output, row = half(m, k), half(k, n), half(m, n), half(1, n)[0]
        for chain in (bias(row) | relu(), gelu(), Epilogue(), bias(row) | fast_gelu()):
            found = choosing.chosen_for_chain(chain, a, b, output, "ieee")
            assert (found.template, found.tile) == ("ping-pong", (128, cols, 64)), chain
        late = choosing.chosen_for_chain(relu() | dropout(0.5, seed=1), a, b, output, "ieee")
        assert late.template != "ping-pong"


def test_results_of_64_bits_get_the_simple_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of 64 bits take more shared memory than there is."""
    monkeypatch.setattr(device, "current", lambda: H200)
    a, b = half(2048, 2048), half(2048, 2048)
    for wide in (torch.float64, torch.int64):
        output = torch.empty(2048, 2048, dtype=wide, device="meta")
        assert choosing.chosen_for_followed(a, b, output, "ieee").template == "simple"


def test_small_products_with_long_k_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", lambda: H200)
    for k, splits in ((64, 1), (65536, 32)):
        found = choosing.chosen_for_followed(half(8, k), half(k, 8), half(8, 8), "ieee")
        assert (found.template, found.splits) == ("simple", splits)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list to which calls of operators append the options of `gemm.launch`; no kernel is started."""
    found: list[dict[str, Any]] = []

    def launch(
        *operands: Any, output: Any, precision: str, addend: Any = None, alpha: float = 1, beta: float = 1,
        epilogue: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        found.append(options)

    monkeypatch.setattr(device, "current", lambda: H200)
    monkeypatch.setattr(gemm, "launch", launch)
    for module in (ops.fused, ops.gemm):
        monkeypatch.setattr(module, "start", lambda make, *args, **keywords: make(*args, **keywords))
    return found


@triton.jit
def made_anew(tile, operands, place):
    """max(tile, 0), by zeros without the layout that Gluon requires"""
    return tl.maximum(tile, tl.zeros(tile.shape, tl.float32))


def test_user_defined_functors_get_no_gluon_kernel(chosen: list[dict[str, Any]]) -> None:
    a, b, c = (half(2048, 2048) for _ in range(3))
    for chain in (add(c) | own(made_anew), add(c) | relu()):
        ops.fused_matmul(a, b, epilogue=chain)
    assert [each["template"] for each in chosen] == ["simple", "ping-pong"]
    names = [each.name for each in operators.instances_for(a, b, epilogue=add(c) | own(made_anew))]
    assert names
    assert not [name for name in names if "ping" in name]


def test_batches_of_one_are_launched_as_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for batches takes more shared memory than there is."""
    a, b, c = half(1, 2048 * 64).view(1, 2048, 64), half(64, 2048), half(2048, 2048)
    ranks = []

    def start(make: object, *args: Any) -> None:
        chains = [each for each in args if isinstance(each, Epilogue)]
        given = [*args, *[each for chain in chains for each in chain.tensors]]
        ranks.append([each.dim() for each in given if isinstance(each, torch.Tensor)])

    monkeypatch.setattr(device, "current", lambda: H200)
    monkeypatch.setattr(ops.fused, "start", start)
    monkeypatch.setattr(ops.gemm, "start", start)
    for left, right in ((a, b), (a, b[None]), (a[0], b[None]), (a[None], b)):
        ops.fused_matmul(left, right, epilogue=add(c) | dropout(0.1, 3))
    ops.baddbmm(c[None], a, b[None])
    assert ranks == [[2, 2, 2, 2]] * 5


@pytest.mark.parametrize("batch", [(1,), (1, 1), (2,)])
def test_fused_products_of_batches_agree_with_their_meaning(batch: tuple[int, ...]) -> None:
    """Functors get the right indices of batch, row and column, in batches of one too."""
    a, b, c = torch.randn(*batch, 20, 9), torch.randn(9, 33), torch.randn(*batch, 20, 33)
    chain = add(c.mT.contiguous().mT) | row_scale(torch.randn(*batch, 20)) | dropout(0.5, 3)
    for left, right in (
        (a, b),
        (a, b.expand(*batch, 9, 33)),
        (a[(0,) * len(batch)], b.expand(*batch, 9, 33)),
    ):
        torch.testing.assert_close(ops.fused_matmul(left, right, epilogue=chain), chain.meaning(left @ right))


def test_only_operands_of_full_shape_count_as_loaded_matrices() -> None:
    assert add(half(512, 256)).loads_matrices((512, 256))
    assert not (bias(half(1, 256)[0]) | relu()).loads_matrices((512, 256))
    assert not add(half(512, 1)).loads_matrices((512, 256))
    assert not Epilogue().loads_matrices((512, 256))


def test_chains_with_dropout_or_user_defined_functors_are_not_for_ping_pong() -> None:
    whole = half(512, 512)
    assert (add(whole) | fast_gelu()).takes_turns
    assert not (add(whole) | dropout(0.5, seed=1)).takes_turns
    assert not (add(whole) | own(made_anew)).takes_turns


def test_addmm_gets_ping_pong_like_chains(chosen: list[dict[str, Any]]) -> None:
    """With a row as addend some products get ping-pong, with a matrix all; the profiler lists the same."""
    for m, k, of_a_row in ((2048, 4096, "ping-pong"), (2048, 768, "ping-pong"), (1024, 1024, "simple")):
        a, b, output = half(m, k), half(k, 3072), half(m, 3072)
        for addend, template in ((half(1, 3072)[0], of_a_row), (half(m, 3072), "ping-pong")):
            found = choosing.chosen_for_sum(addend, 2.0, 0.5, a, b, output, "ieee")
            assert found.template == template
            listed = operators.instances_for(a, b, addend, 2.0, 0.5)
            assert [each.keywords for each in listed if each.is_shipped] == [found.keywords]
            ops.addmm(addend, a, b, alpha=2.0, beta=0.5)
            assert chosen[-1] == found.keywords


def test_ops_launch_the_shipped_instance(chosen: list[dict[str, Any]]) -> None:
    """The cases are an addend that is not read (beta=0), and batches of one, alone or with an addend."""
    a, b, c = half(3072, 3072), half(3072, 3072), half(3072, 3072)
    for listed, call in (
        (operators.instances_for(a, b, c, 1.0, 0.0), lambda: ops.addmm(c, a, b, beta=0)),
        (operators.instances_for(a[None], b[None], c[None]), lambda: ops.baddbmm(c[None], a[None], b[None])),
        (operators.instances_for(a[None], b[None]), lambda: ops.bmm(a[None], b[None])),
        (operators.instances_for(a, b[None]), lambda: ops.matmul(a, b[None])),
        (operators.instances_for(a, b), lambda: ops.matmul(a, b)),
    ):
        call()
        assert [each.keywords for each in listed if each.is_shipped] == chosen[-1:]
        assert chosen[-1]["template"] == "ping-pong"
