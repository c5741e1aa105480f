"""Chosen instances of the fused templates fit, and compile without spills."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples, some_of
from tests.machines import A100, H200, MI300X
from workbench import device
from workbench.kernels.choosing import fused_templates as choosing
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.instances import fused_templates as instances
from workbench.kernels.instances.fused_templates import Instance
from workbench.launch import Launch
from workbench.lens.compile import compile

DEVICES = {"sm_90": H200, "sm_80": A100, "gfx942": MI300X}
ITEMSIZES = {torch.float16: 2, torch.float32: 4, torch.float64: 8}


def on_meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@settings(max_examples=examples(80))
@given(data=st.data())
def test_any_problem_gets_an_instance_that_fits(data: st.DataObject) -> None:
    """The operands of all stages fit into a program's shared memory, the accumulators into its registers."""
    m, n, k, inner = (data.draw(st.integers(1, 20000), label=name) for name in "mnkl")
    here = data.draw(st.sampled_from([*DEVICES.values()]), label="device")
    dtype = data.draw(st.sampled_from([*ITEMSIZES]), label="dtype")
    precision = data.draw(st.sampled_from(["ieee", "tf32"]), label="precision")
    a, b, c = (on_meta(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    ways = {
        "rows": choosing.rows(a, b, c, precision, here),
        "reduced": choosing.reduced(a, b, c[:, 0], precision, here),
        "gated": choosing.gated(a, b, c, precision, here),
    }
    b0, b1 = on_meta(k, inner, dtype=dtype), on_meta(inner, n, dtype=dtype)
    if choosing.is_pair_fused(a, b0, b1, here):
        ways["pair"] = choosing.pair(a, b0, b1, c, precision, here)
    for name, way in ways.items():
        rows, cols, depth = way.tile[:3]
        parts = 2 if name == "gated" else 1
        kept = way.num_stages - (here.kind == "hip")  # AMD GPUs keep one stage in registers
        stages = kept * (rows + parts * cols) * depth * ITEMSIZES[dtype]
        # A pair needs more: operands of two products, and A may be kept.
        assert stages <= here.shared_memory_bytes or name == "pair"
        lanes = way.num_warps * (64 if here.kind == "hip" else 32)
        words = max(ITEMSIZES[dtype], 4) // 4
        assert parts * rows * cols * words <= 128 * lanes
        assert all(length & (length - 1) == 0 and length >= 16 for length in way.tile)
        if name == "rows" and n <= 512 and dtype == torch.float16:
            assert cols >= n


def test_chosen_instances_agree_with_torch() -> None:
    """Problems are narrow, or wider than any tile, on this device."""
    for n in (1, 300, 600):
        a, b, c = torch.randn(3, 4), torch.randn(4, n), torch.randn(n, 2)
        row = gemm_rows.launch("softmax", a, b, **choosing.rows(a, b, a @ b).keywords)
        torch.testing.assert_close(row.run()[0], (a @ b).softmax(-1))
        assert len(row.steps) == (1 if n <= 512 else 2)
        if choosing.is_pair_fused(a, b, c):
            way = choosing.pair(a, b, c, a @ b @ c)
            got = gemm_pair.launch(a, b, c, **way.keywords).run()[0]
            torch.testing.assert_close(got, a @ b @ c, atol=1e-4, rtol=1e-5)  # sums of 600 that cancel


def test_long_pairs_are_not_fused() -> None:
    short, long = on_meta(4096, 256), on_meta(4096, 4096)
    assert choosing.is_pair_fused(long, short, on_meta(256, 256), H200)
    assert not choosing.is_pair_fused(long, long, short, H200)
    assert not choosing.is_pair_fused(long, short, on_meta(256, 4096), H200)


def test_unlisted_devices_get_the_instances_of_a_similar_one() -> None:
    a, b = on_meta(4096, 1024), on_meta(1024, 4096)
    for like, architecture in ((A100, "sm_89"), (MI300X, "gfx90a")):
        other = dataclasses.replace(like, architecture=architecture)
        assert choosing.gated(a, b, b, here=other) == choosing.gated(a, b, b, here=like)


M, K = 4096, 1024


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16)


def options(instance: Instance, here: device.Device) -> dict[str, Any]:
    return {
        "tile": (instance.rows, instance.cols, instance.row_bytes // 2),
        "num_warps": instance.num_warps,
        "num_stages": instance.num_stages,
        "descriptors": here.architecture == "sm_90",
    }


def launched(table: str, instance: Instance, here: device.Device) -> Launch:
    """Return the launch of an instance for the largest problem of its table."""
    chosen, cols = options(instance, here), instance.cols
    if table == "WHOLE_ROWS":
        vectors = empty(cols), empty(cols)
        return gemm_rows.launch("layer_norm", empty(M, K), empty(K, cols), *vectors, **chosen)
    if table == "STATES":
        return gemm_rows.launch("softmax", empty(M, K), empty(K, 4096), **chosen, compute_units=132)
    if table in ("GATED", "SHORT_GATED"):
        return gemm_gated.launch(empty(M, K), empty(K, M), empty(K, M), activation="gelu", **chosen)
    depth = instances.WHOLE_K if table == "PAIRS" else K
    block_k = depth if table == "PAIRS" else chosen["tile"][2]
    chosen["tile"] = (*chosen["tile"][:2], block_k, instance.between)
    # In the other tables gelu, by the error function, spills up to 15 words.
    chosen["activation"] = "gelu" if table == "PLAIN_PAIRS" else "silu"
    return gemm_pair.launch(empty(M, depth), empty(depth, 256), empty(256, cols), **chosen)


ALL = [
    (table, architecture, instance)
    for table in ("WHOLE_ROWS", "STATES", "GATED", "SHORT_GATED", "PAIRS", "DEEP_PAIRS", "PLAIN_PAIRS")
    for architecture, many in getattr(instances, table).items()
    for instance in many
]


@pytest.mark.parametrize(
    ("name", "architecture", "dtype", "precision", "m"),
    [
        ("pair", "sm_90", torch.float32, "ieee", 2048),  # tiles are transposed in shared memory
        ("pair", "sm_90", torch.float32, "tf32", 32768),  # matrix units read operands from shared memory
        ("pair", "sm_80", torch.float32, "tf32", 32768),
        ("pair", "gfx942", torch.float32, "ieee", 32768),
        ("pair", "gfx942", torch.float64, "ieee", 2048),
        ("rows", "sm_90", torch.float32, "ieee", 32768),
        ("rows", "sm_90", torch.float32, "tf32", 32768),
        ("gated", "sm_90", torch.float32, "ieee", 32768),
        ("gated", "sm_90", torch.float32, "tf32", 32768),
    ],
    ids=str,
)
def test_wide_dtypes_fit_into_shared_memory(
    name: str, architecture: str, dtype: torch.dtype, precision: str, m: int
) -> None:
    """Operands are contiguous along K, for which the compiler needs the most shared memory."""
    here = DEVICES[architecture]
    a, output = torch.empty(m, 64, dtype=dtype), torch.empty(m, 256, dtype=dtype)
    b, c = (torch.empty(256, depth, dtype=dtype).t() for depth in (64, 256))
    if name == "pair":
        way = choosing.pair(a, b, c, output, precision, here)
        one = gemm_pair.launch(a, b, c, output=output, precision=precision, **way.keywords)
    elif name == "rows":
        way = choosing.rows(a, b, output, precision, here)
        one = gemm_rows.launch("softmax", a, b, output=output, precision=precision, **way.keywords)
    else:
        way = choosing.gated(a, b, output, precision, here)
        one = gemm_gated.launch(
            a, b, b, activation="silu", output=output, precision=precision, **way.keywords
        )
    for step in compile(one, architecture):
        assert not step.problem
        assert step.shared_bytes <= here.shared_memory_bytes


@pytest.mark.parametrize(
    ("table", "architecture", "instance"),
    [pytest.param(*each, id=f"{each[0]} {each[1]} {each[2].name}") for each in some_of(ALL, 9)],
)
def test_each_instance_compiles_without_spills_and_fits(
    table: str, architecture: str, instance: Instance
) -> None:
    here = DEVICES[architecture]
    steps = compile(launched(table, instance, here), architecture)
    for step in steps:
        assert not step.problem
        assert step.spills == 0
        assert step.shared_bytes <= here.shared_memory_bytes
    assert any(each.kind == "matrix" for each in steps[0].instructions)


def test_pairs_that_keep_operand_a_load_it_once() -> None:
    """A is loaded outside the loop over the first product's columns."""
    for depth, loops in ((64, 1), (1024, 2)):
        (step,) = compile(
            gemm_pair.launch(empty(M, depth), empty(depth, 256), empty(256, 64), tile=(64, 64, 64, 64)),
            "sm_80",
        )
        assert step.spills == 0
        assert step.stages["ttir"].count("scf.for") == loops


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_norm_of_long_rows_brings_no_row_through_shared_memory(target: str) -> None:
    """All lanes of a tile of one row have its mean."""
    weight = torch.zeros(4096, dtype=torch.float16)
    launch = gemm_rows.launch(
        "layer_norm", torch.zeros(4096, 64).half(), torch.zeros(64, 4096).half(), weight, weight,
        tile=(128, 128, 64), num_stages=2, compute_units=132,
    )  # fmt: skip
    assert launch.steps[1].meta["ROWS"] == 1
    _, apply = compile(launch, target)
    stores = [each for each in apply.instructions if each.opcode.lower().startswith(("sts", "ds_write"))]
    assert len(stores) < 64
