"""The instances of the matrix product: the one that a product gets, and the compilation of each."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import A100, H200, MI300X
from workbench import device, ops
from workbench.errors import InvalidArgumentError
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.instances import gemm as instances
from workbench.lens.compile import compile


def chosen(
    m: int, n: int, k: int, *, dtype: torch.dtype = torch.float16, here: device.Device = H200
) -> gemm.Configuration:
    a, b = torch.empty(m, k, dtype=dtype, device="meta"), torch.empty(k, n, dtype=dtype, device="meta")
    output = torch.empty(m, n, dtype=gemm.result_dtype(dtype), device="meta")
    return choosing.choose(choosing.asked_of(a, b, output, here=here))


@pytest.mark.parametrize(
    ("shape", "tile", "template", "splits"),
    [
        ((8192, 8192, 8192), (128, 128, 64), "ping-pong", 1),
        ((2048, 3072, 4096), (128, 128, 64), "ping-pong", 1),  # one and a half waves of 128 x 256
        ((3072, 3072, 3072), (128, 192, 64), "ping-pong", 1),  # three waves, but five of 128 x 128
        ((2304, 2304, 768), (128, 128, 64), "ping-pong", 1),
        ((1536, 1536, 1536), (64, 128, 64), "simple", 1),  # three of these run on a unit at a time
        ((3072, 3072, 128), (128, 128, 64), "persistent", 1),
        ((2048, 2048, 2048), (128, 128, 64), "ping-pong", 1),
        ((1024, 1024, 1024), (64, 128, 128), "simple", 1),
        ((512, 512, 512), (64, 64, 128), "simple", 1),
        ((8192, 8192, 64), (64, 256, 64), "persistent", 1),
        ((4096, 4096, 64), (64, 256, 64), "persistent", 1),
        ((1, 4096, 4096), (16, 128, 128), "simple", 4),
        ((64, 4096, 4096), (64, 32, 128), "simple", 1),
    ],
)
def test_the_configuration_measured_fastest_is_chosen(
    shape: tuple[int, int, int], tile: tuple[int, int, int], template: str, splits: int
) -> None:
    """The configurations were the fastest on an H200 in fp16."""
    found = chosen(*shape)
    assert (found.tile, found.template, found.splits) == (tile, template, splits)
    assert found.descriptors


@given(data=st.data())
def test_any_product_gets_a_configuration_that_fits(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 20000), label=name) for name in "mnk")
    here = data.draw(st.sampled_from([H200, A100, MI300X]), label="device")
    dtype = data.draw(
        st.sampled_from([torch.float16, torch.float32, torch.int8, torch.float64]), label="dtype"
    )
    found = chosen(m, n, k, dtype=dtype, here=here)
    rows, cols, depth = found.tile
    assert rows < 2 * max(m, 16)
    assert cols < 2 * max(n, 16)
    itemsize = torch.empty((), dtype=dtype).element_size()
    assert found.num_stages * (rows + cols) * depth * itemsize <= here.shared_memory_bytes
    assert 1 <= found.splits <= max(-(-k // depth), 1)


@pytest.mark.parametrize("shape", [(3072, 2112, 128), (3200, 4032, 64)], ids=str)
def test_products_with_short_k_get_no_tile_that_needs_more_steps(shape: tuple[int, int, int]) -> None:
    """The launch raises for 128 x 192, which needs three steps along K, but is predicted to be fastest."""
    m, n, k = shape
    a, b = torch.empty(m, k, dtype=torch.float16), torch.empty(k, n, dtype=torch.float16)
    gemm.launch(a, b, compute_units=H200.compute_units, **chosen(m, n, k).keywords)
    asked = choosing.asked_of(a, b, torch.empty(m, n, dtype=torch.float16), here=H200)
    times = {
        each.name: choosing.predicted_ns(each, 1, asked)
        for each in (*instances.PING_PONG[:2], *instances.HOPPER)
    }
    assert min(times, key=lambda name: times[name]) == "ping_pong_128x192"


@given(data=st.data())
def test_configurations_chosen_on_hopper_can_be_launched(data: st.DataObject) -> None:
    """Templates refuse some sizes; rows begin at cache lines or elsewhere."""
    step = data.draw(st.sampled_from([1, 8, 64]), label="step")
    m, n, k = (step * data.draw(st.integers(1, 4096 // step), label=name) for name in "mnk")
    a, b = torch.empty(m, k, dtype=torch.float16), torch.empty(k, n, dtype=torch.float16)
    launch = gemm.launch(a, b, compute_units=H200.compute_units, **chosen(m, n, k).keywords)
    assert launch.outputs[0].shape == (m, n)


@pytest.mark.parametrize("here", [H200, A100, MI300X], ids=lambda each: each.architecture)
@pytest.mark.parametrize("sizes", [(0, 5, 6), (5, 0, 6), (0, 0, 6), (5, 6, 0), (0, 0, 0)], ids=str)
def test_empty_products_get_a_configuration(sizes: tuple[int, int, int], here: device.Device) -> None:
    for dtype in (torch.float16, torch.float32):
        assert chosen(*sizes, dtype=dtype, here=here).splits == 1
    m, n, k = sizes
    for batch in ((), (2,), (0,)):
        a, b = torch.ones(*batch, m, k), torch.ones(*batch, k, n)
        for one in ops.matmul.instances(a, b):
            assert torch.equal(one.launch().run()[0], a @ b)


def test_unaligned_rows_are_predicted_slower() -> None:
    a, b, c = (torch.empty(1000, 1000, dtype=torch.float16, device="meta") for _ in range(3))
    asked = choosing.asked_of(a, b, c, here=H200)
    straight = dataclasses.replace(asked, a=choosing.Laid())
    assert not asked.a.is_line_aligned
    with pytest.raises(InvalidArgumentError, match="was not measured"):
        choosing.predicted_ns(instances.OTHERS["sm_80"][0], 1, asked)
    times = [
        [choosing.predicted_ns(instance, 1, each) for instance in instances.HOPPER]
        for each in (straight, asked)
    ]
    assert all(one <= other for one, other in zip(*times, strict=True))
    assert times[0] != times[1]


def test_rows_beyond_whole_waves_get_a_launch_of_their_own() -> None:
    """264 of 24 x 12 tiles fill two waves of 132 units; a second launch with smaller tiles takes the rest."""
    found = chosen(3000, 3000, 3000)
    assert (found.rows, found.tile) == ((0, 22 * 128), (128, 256, 64))
    assert found.rest is not None
    rows, cols, _ = found.rest.tile
    assert rows * cols < 128 * 256
    a, b = (torch.randint(-2, 3, (300, 64)).half(), torch.randint(-2, 3, (64, 48)).half())
    few = dataclasses.replace(H200, compute_units=2)
    asked = choosing.asked_of(a, b, torch.empty(300, 48, dtype=torch.float16), here=few)
    way = choosing._with_rest(instances.HOPPER[2], instances.HOPPER[2:], asked)
    assert way is not None
    one = gemm.launch(a, b, compute_units=2, **way[1].keywords)
    assert torch.equal(one.run()[0].float(), a.float() @ b.float())


@pytest.mark.parametrize(
    ("size", "dtype", "precision", "packed"),
    [
        (4096, torch.float16, "ieee", ()),
        (1000, torch.float16, "ieee", ("a", "b")),
        (3000, torch.float16, "ieee", ("b",)),  # a tile has more of B than of A; copying both takes too long
        (2999, torch.float16, "ieee", ("a", "b")),
        (4096, torch.float32, "tf32", ("b",)),  # B is not contiguous along K
        (4096, torch.float32, "ieee", ()),  # no matrix units
    ],
)
def test_operands_are_packed_where_that_is_faster(
    size: int, dtype: torch.dtype, precision: str, packed: tuple[str, ...]
) -> None:
    a, b, c = (torch.empty(size, size, dtype=dtype, device="meta") for _ in range(3))
    found = choosing.choose(choosing.asked_of(a, b, c, precision, H200))
    assert found.pack == packed


@pytest.mark.parametrize(
    ("here", "instance"),
    [
        pytest.param(here, each, id=f"{here.architecture} {each.name}")
        for here, many in (
            (H200, instances.HOPPER),
            (A100, instances.OTHERS["sm_80"]),
            (MI300X, instances.OTHERS["gfx942"]),
        )
        for each in many
    ],
)
def test_each_instance_compiles_without_spills_and_fits(
    here: device.Device, instance: instances.Instance
) -> None:
    a, b = (torch.empty(4096, 4096, dtype=torch.float16) for _ in range(2))
    asked = choosing.asked_of(a, b, a, here=here)
    way = choosing.configured(instance, asked, 1)
    one = gemm.launch(a, b, compute_units=here.compute_units, **way.keywords)
    (step,) = compile(one, here.architecture)
    assert not step.problem
    assert step.spills == 0
    assert step.shared_bytes <= here.shared_memory_bytes
    assert any(each.kind == "matrix" for each in step.instructions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8], ids=str)
def test_a_masked_last_step_fits_beside_the_stages(dtype: torch.dtype) -> None:
    """The step is outside the pipelined loop: its tiles of A and B need room beside those of the stages."""
    a, b = (torch.empty(1001, 1001, dtype=dtype) for _ in range(2))
    output = torch.empty(1001, 1001, dtype=gemm.result_dtype(dtype))
    asked = choosing.asked_of(a, b, output, here=H200)
    as_it_is = [dataclasses.replace(each, packed_bytes=0) for each in (asked.a, asked.b)]
    asked = dataclasses.replace(asked, a=as_it_is[0], b=as_it_is[1])
    way = choosing.choose(asked)
    one = gemm.launch(a, b, output=output, compute_units=H200.compute_units, **way.keywords)
    for step in compile(one, "sm_90"):
        assert not step.problem
        assert step.shared_bytes <= H200.shared_memory_bytes


@pytest.mark.parametrize("shape", [(512, 5120, 12288), (2000, 3000, 4096), (1536, 1536, 1536)], ids=str)
@pytest.mark.parametrize("batch", [(), (1,), (1, 1), (2,)], ids=str)
def test_configurations_chosen_for_batches_can_be_launched(
    shape: tuple[int, int, int], batch: tuple[int, ...]
) -> None:
    m, n, k = shape
    sizes = ((m, k), (k, n), (m, n))
    a, b, output = (torch.empty((), dtype=torch.float16).expand(*batch, *size) for size in sizes)
    way = choosing.choose(choosing.asked_of(a, b, output, here=H200))
    output = torch.empty(*batch, m, n, dtype=torch.float16)
    # Both calls raise for a launch that cannot be started.
    gemm.launch(a, b, output=output, compute_units=132, **way.keywords).check()
    assert (way.rest is not None) <= (not batch)


def test_kept_launches_take_unaligned_addresses() -> None:
    """Launches are kept by layout, and tensors of one layout may lie at odd addresses."""
    memory = torch.randn(64 * 64 + 1).half()
    for start in (0, 1, 0):
        a = memory[start : start + 64 * 64].view(64, 64)
        assert torch.allclose(ops.mm(a, a).float(), a.float() @ a.float(), atol=0.05)
