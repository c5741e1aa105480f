"""The ping-pong template is right for every layout, length, tile and epilogue, on every run."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from tests.gpu.test_ops_gpu import whole_numbers
from workbench.kernels import gemm
from workbench.kernels.epilogues import (
    add,
    bias,
    cast,
    clamp,
    dropout,
    fast_gelu,
    gelu,
    multiply,
    permuted,
    relu,
    row_scale,
    scale,
    sigmoid,
    silu,
)
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm import hopper_pairs as gemm_hopper_pairs
from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

pytestmark = pytest.mark.gpu(architecture="sm_90")

HALVES = [torch.float16, torch.bfloat16]
# Whole tiles; fewer than a tile; ragged in every direction; more tiles than programs; short and long along K.
SIZES = [
    (256, 256, 128), (64, 64, 64), (1, 8, 8), (1000, 776, 520), (129, 136, 72), (2048, 2304, 64),
    (3000, 1000, 200), (128, 128, 8192), (136, 4096, 40),
]  # fmt: skip
TILES = [
    ((128, 128, 64), 5), ((128, 128, 64), 2), ((64, 256, 64), 4), ((64, 128, 64), 6), ((128, 64, 64), 3),
    ((64, 64, 128), 4), ((128, 128, 128), 3), ((128, 32, 64), 4), ((64, 32, 32), 8),
]  # fmt: skip


def whole(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Return whole numbers, so that every product and sum here is exact in fp32."""
    return whole_numbers(shape, dtype, seed)


def laid(
    layout: str, m: int, n: int, k: int, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [m, k] and B [k, n] of whole numbers, in a layout such as "nt"."""
    a = whole(m, k, dtype=dtype) if layout[0] == "n" else whole(k, m, dtype=dtype).t()
    b = whole(k, n, dtype=dtype, seed=1) if layout[1] == "n" else whole(n, k, dtype=dtype, seed=1).t()
    return a, b


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").half()


def poisoned(m: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((m, n), float("nan"), device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_integers_are_multiplied_exactly(m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> None:
    # Pitches are multiples of 16 bytes for every length, as TMA requires.
    rows, cols = -(-m // 8) * 8, -(-n // 8) * 8
    a = whole(m, k, dtype=dtype) if layout[0] == "n" else whole(k, rows, dtype=dtype)[:, :m].t()
    b = whole(k, cols, dtype=dtype, seed=1)[:, :n] if layout[1] == "n" else whole(n, k, dtype=dtype).t()
    output = poisoned(m, n)
    launch = gemm.launch(a, b, output=output, template="ping-pong", tile=(128, 128, 64), num_stages=5)
    (found,) = launch.run()
    assert torch.equal(found, a.float() @ b.float())


@pytest.mark.parametrize(("tile", "stages"), TILES, ids=str)
@pytest.mark.parametrize("programs", [1, 3, None])
def test_every_tile_and_number_of_programs_is_exact(
    tile: tuple[int, int, int], stages: int, programs: int | None
) -> None:
    a, b, addend = whole(1000, 328), whole(328, 776, seed=1), whole(1000, 776, seed=2)
    wanted = (a.float() @ b.float() + addend).relu()
    for chain in (None, add(addend) | relu()):
        output = poisoned(1000, 776)
        launch = gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=tile, num_stages=stages,
            programs=programs,
        )  # fmt: skip
        launch.run()
        assert torch.equal(output, a.float() @ b.float() if chain is None else wanted)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    "tile", [(128, 128, 64), (64, 256, 64), (256, 64, 64), (64, 64, 64), (128, 128, 32)], ids=str
)
@pytest.mark.parametrize("tiles_of_each", [1, 2, 1.5, 3])
def test_accumulators_may_begin_as_the_addend(
    tiles_of_each: float, tile: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Accumulators begin so in programs with two tiles. The output's rows are parts of longer rows."""
    m, n, k = 1000, 520, 1096
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype, seed=1)
    first, second = whole(m, n, dtype=dtype, seed=2), whole(m, 1024, dtype=dtype, seed=3)[:, :n]
    exact = a.float() @ b.float()
    programs = int(-(-m // tile[0]) * -(-n // tile[1]) / tiles_of_each)
    for chain, wanted, may_begin in (
        (add(first) | relu(), (exact + first).relu(), True),
        (add(first) | add(second), exact + first + second, True),
        (add(first) | scale(2.0) | add(second), (exact + first) * 2 + second, False),
    ):
        output = poisoned(m, 1024, dtype)[:, :n]
        launch = gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=tile, num_stages=5,
            programs=programs,
        )  # fmt: skip
        launch.run()
        assert torch.equal(output, wanted.to(dtype))
        begins = may_begin and 1 < tiles_of_each <= 2 and tile == (128, 128, 64) and dtype == torch.float16
        assert launch.steps[0].meta.get("BEGIN", False) == begins


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("programs", [24, 30])
@pytest.mark.parametrize("stages", [5, 6])
def test_tiles_that_end_by_halves_are_exact(stages: int, layout: str, programs: int) -> None:
    """Programs have two tiles, or some have one; A and B have any layout."""
    m, n, k = 1000, 712, 1096
    a, b = laid(layout, m, n, k)
    first, second = whole(m, n, seed=2), whole(m, n, seed=3)
    output = poisoned(m, n, torch.float16)
    launch = gemm.launch(
        a, b, output=output, epilogue=add(first) | add(second) | relu(), template="ping-pong",
        tile=(128, 128, 64), num_stages=stages, programs=programs,
    )  # fmt: skip
    wanted = (a.float() @ b.float() + first + second).relu().half()
    for _ in range(3):
        output.fill_(float("nan"))
        launch.run()
        assert torch.equal(output, wanted)
    assert launch.steps[0].meta["BEGIN"]


@pytest.mark.parametrize("k", [1024, 1088, 2048])
def test_long_epilogues_of_short_products_agree_with_float64(k: int) -> None:
    """Two halves are handed over before the first tile is finished; the other group finds them later."""
    a, b, first = half(2048, k), half(k, 2048, seed=1), half(2048, 2048, seed=2)
    chain, wanted = add(first), a.double() @ b.double() + first
    for _ in range(8):
        chain = chain | gelu() | scale(2.0)
        wanted = functional.gelu(wanted) * 2
    launch = gemm.launch(a, b, epilogue=chain, template="ping-pong", tile=(128, 128, 64), num_stages=6)
    assert launch.steps[0].meta["BEGIN"]
    for _ in range(10):
        launch.outputs[0].fill_(float("nan"))
        torch.testing.assert_close(launch.run()[0].double(), wanted, atol=0.5, rtol=2e-3)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("programs", [12, 5, 1])
@pytest.mark.parametrize("k", [968, 4096])
def test_pairs_of_tiles_are_exact(k: int, programs: int, layout: str) -> None:
    """Pairs are neighbors. Programs have one or more, some one more than others; A and B have any layout."""
    m, n = 1000, 712
    a, b = laid(layout, m, n, k)
    first, second = whole(m, n, seed=2), whole(m, 1024, seed=3)[:, :n]
    exact = a.float() @ b.float()
    for chain, wanted in (
        (add(first) | add(second) | relu(), (exact + first + second).relu()),
        (add(first) | scale(0.5), (exact + first) / 2),
        (bias(first[0]) | relu(), (exact + first[0]).relu()),
        (None, exact),
    ):
        output = poisoned(m, 1024, torch.float16)[:, :n]
        launch = gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=(128, 128, 64), num_stages=6,
            programs=programs,
        )  # fmt: skip
        for _ in range(3):
            output.fill_(float("nan"))
            launch.run()
            assert torch.equal(output, wanted.half())
        assert launch.steps[0].kernel is gemm_hopper_pairs.gemm_pairs_kernel


def test_pairs_of_bf16_tiles_are_exact() -> None:
    a, b = whole(1000, 2048, dtype=torch.bfloat16), whole(2048, 712, dtype=torch.bfloat16, seed=1)
    row = whole(712, dtype=torch.bfloat16, seed=2)
    launch = gemm.launch(
        a,
        b,
        epilogue=bias(row) | relu(),
        template="ping-pong",
        tile=(128, 128, 64),
        num_stages=6,
        programs=12,
    )
    assert torch.equal(launch.run()[0], (a.float() @ b.float() + row).relu().bfloat16())
    assert launch.steps[0].kernel is gemm_hopper_pairs.gemm_pairs_kernel


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("programs", [32, 16, 20])
@pytest.mark.parametrize("k", [136, 200, 1096])
def test_tiles_of_192_columns_are_exact(k: int, programs: int, layout: str, dtype: torch.dtype) -> None:
    """Programs have one or two ragged tiles; an addend comes first, last, or not at all."""
    m, n = 1000, 712
    a, b = laid(layout, m, n, k, dtype)
    first, second = whole(m, n, dtype=dtype, seed=2), whole(m, 1024, dtype=dtype, seed=3)[:, :n]
    exact = a.float() @ b.float()
    for chain, wanted, may_begin in (
        (add(first) | add(second) | relu(), (exact + first + second).relu(), True),
        (add(first) | scale(0.5), (exact + first) / 2, True),
        (scale(0.5) | add(first) | add(second), exact / 2 + first + second, False),
        (bias(first[0]) | relu(), (exact + first[0]).relu(), False),
        (None, exact, False),
    ):
        output = poisoned(m, 1024, dtype)[:, :n]
        launch = gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=gemm_hopper_wide.TILE,
            num_stages=5, programs=programs,
        )  # fmt: skip
        for _ in range(3):
            output.fill_(float("nan"))
            launch.run()
            assert torch.equal(output, wanted.to(dtype))
        assert launch.steps[0].meta["BEGIN"] == (may_begin and dtype == torch.float16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("programs", [13, 11, 8, 7, 1])
@pytest.mark.parametrize("k", [136, 200, 312, 1096])
def test_many_tiles_of_192_columns_are_exact(k: int, programs: int, layout: str, dtype: torch.dtype) -> None:
    """Programs have two to 32 tiles, some one more than others; the epilogue loads no addend."""
    m, n = 1000, 712
    a, b = laid(layout, m, n, k, dtype)
    row = whole(1, n, dtype=dtype, seed=2)[0]
    exact = a.float() @ b.float()
    for chain, wanted in ((bias(row) | relu(), (exact + row).relu()), (None, exact)):
        output = poisoned(m, 1024, dtype)[:, :n]
        launch = gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=gemm_hopper_wide.TILE,
            num_stages=3 + k % 3, programs=programs,
        )  # fmt: skip
        for _ in range(3):
            output.fill_(float("nan"))
            launch.run()
            assert torch.equal(output, wanted.to(dtype))


@pytest.mark.parametrize("tile", [(128, 128, 64), gemm_hopper_wide.TILE], ids=str)
@pytest.mark.parametrize("shape", [(3072, 3072, 3072), (3072, 3072, 192), (4096, 6144, 1024)], ids=str)
def test_bare_products_are_the_same_a_hundred_times(
    shape: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = half(m, k), half(k, n, seed=1)
    stages = 5 if tile == gemm_hopper_wide.TILE else 6  # with long K, pairs of tiles too
    launch = gemm.launch(a, b, template="ping-pong", tile=tile, num_stages=stages)
    once = launch.run()[0].clone()
    for _ in range(100):
        launch.outputs[0].fill_(float("nan"))
        assert torch.equal(launch.run()[0], once)
    torch.testing.assert_close(once.double(), a.double() @ b.double(), atol=0.05, rtol=2e-3)


@pytest.mark.parametrize("shape", [(2048, 3072, 768), (2304, 2304, 192), (1536, 4096, 2048)], ids=str)
def test_tiles_of_192_columns_are_the_same_a_hundred_times(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, first, second = half(m, k), half(k, n, seed=1), half(m, n, seed=2), half(m, n, seed=3)
    exact = a.double() @ b.double()
    for chain, wanted in (
        (add(first) | add(second) | fast_gelu(), functional.gelu(exact + first + second, approximate="tanh")),
        (gelu() | add(first), functional.gelu(exact) + first),
        (None, exact),
    ):
        launch = gemm.launch(
            a, b, epilogue=chain, template="ping-pong", tile=gemm_hopper_wide.TILE, num_stages=5
        )
        once = launch.run()[0].clone()
        for _ in range(100):
            launch.outputs[0].fill_(float("nan"))
            assert torch.equal(launch.run()[0], once)
        torch.testing.assert_close(once.double(), wanted.double(), atol=0.05, rtol=2e-3)


@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 256, 64), gemm_hopper_wide.TILE], ids=str)
def test_gelu_into_fp16_is_within_its_rounding(tile: tuple[int, int, int]) -> None:
    """The error is at most 0.52 steps of fp16, for tiny results too. Infinities and NaN agree with torch."""
    identity = torch.eye(256, 512, device="cuda", dtype=torch.float16)
    a = torch.linspace(-8, 8, 512 * 256, device="cuda").view(512, 256).half()
    x = a.double()
    exact = x * torch.special.erfc(-x * math.sqrt(0.5)) / 2
    how = {"template": "ping-pong", "tile": tile, "num_stages": 4}
    (found,) = gemm.launch(a, identity, epilogue=gelu(), **how).run()  # type: ignore[arg-type]
    fp16 = torch.finfo(torch.float16)
    step = exact.abs().clamp(min=fp16.tiny) * fp16.eps
    assert ((found[:, :256].double() - exact).abs() <= 0.52 * step).all()
    infinite = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    infinite[0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    none = torch.zeros(64, 192, device="cuda", dtype=torch.float16)
    (found,) = gemm.launch(none, none.t(), epilogue=add(infinite) | gelu(), **how).run()  # type: ignore[arg-type]
    assert torch.equal(found.nan_to_num(), functional.gelu(infinite).nan_to_num())


@pytest.mark.parametrize(("n", "k"), [(2048, 768), (2048, 1024), (2048, 2048), (4096, 4096)])
def test_fused_products_are_the_same_a_hundred_times(n: int, k: int) -> None:
    """A race in the buffers of A, B or the addends would change a result."""
    a, b, first, second = half(n, k), half(k, n, seed=1), half(n, n, seed=2), half(n, n, seed=3)
    chain = add(first) | add(second) | fast_gelu()
    launch = gemm.launch(a, b, epilogue=chain, template="ping-pong", tile=(128, 128, 64), num_stages=6)
    once = launch.run()[0].clone()
    for _ in range(100):
        launch.outputs[0].fill_(float("nan"))
        assert torch.equal(launch.run()[0], once)
    exact = functional.gelu(a.double() @ b.double() + first + second, approximate="tanh")
    torch.testing.assert_close(once.double(), exact, atol=0.05, rtol=2e-3)


@pytest.mark.parametrize("programs", [16, 4])
@pytest.mark.parametrize("around", [-80, -16, -5, -1, 0, 3, 20])
def test_activations_into_fp32_are_within_roundings(around: int, programs: int) -> None:
    """The limit is 2 roundings of fp32; 64 for fast_gelu, whose exponent is rounded before exp.

    16 programs have single tiles, 4 programs have pairs of tiles.
    """
    k = 1024
    identity = torch.eye(k, 512, device="cuda", dtype=torch.float16)
    a = (half(512, k) / 8 + around).half()
    x = a[:, :512].double()
    for chain, exact, roundings in (
        (silu(), x * torch.sigmoid(x), 2),
        (sigmoid(), torch.sigmoid(x), 2),
        (fast_gelu(), x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 64),
    ):
        output = poisoned(512, 512)
        launch = gemm.launch(
            a, identity, output=output, epilogue=chain, template="ping-pong", tile=(128, 128, 64),
            num_stages=6, programs=programs,
        )  # fmt: skip
        launch.run()
        kernels = gemm_hopper.gemm_ping_pong_kernel, gemm_hopper_pairs.gemm_pairs_kernel
        assert launch.steps[0].kernel is kernels[programs == 4]
        fp32 = torch.finfo(torch.float32)
        least = fp32.tiny * fp32.eps  # the step between numbers below `tiny`; less is 0
        torch.testing.assert_close(output.double(), exact, rtol=roundings * fp32.eps, atol=least)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tile", [(128, 128, 64), gemm_hopper_wide.TILE], ids=str)
def test_addends_of_any_shape_are_exact(tile: tuple[int, int, int], dtype: torch.dtype) -> None:
    """alpha * (a @ b) + beta * addend; the addend is an element, a row, a column or a matrix."""
    m, n, k = 1000, 712, 200
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype, seed=1)
    all_of_it = whole(m, n, dtype=dtype, seed=2)
    for addend in (all_of_it[0, 0], all_of_it[0], all_of_it[:, :1], all_of_it, whole(n, m, dtype=dtype).t()):
        output = poisoned(m, 1024, dtype)[:, :n]
        gemm.launch(
            a, b, output=output, addend=addend, alpha=0.5, beta=2.0, template="ping-pong", tile=tile,
            num_stages=5,
        ).run()  # fmt: skip
        assert torch.equal(output, (0.5 * (a.float() @ b.float()) + 2 * addend.float()).to(dtype))


@pytest.mark.parametrize(("m", "n"), [(512, 384), (777, 136)])
def test_every_epilogue_agrees_with_float64(m: int, n: int) -> None:
    a, b = half(m, 256) / 16, half(256, n, seed=1)
    exact = a.double() @ b.double()
    first, row, column = half(m, n, seed=2), half(n, seed=3), half(m, 1, seed=4)
    across = half(n, m, seed=5).t()
    wide, single = torch.randn(m, n, device="cuda"), half(1, 1, seed=6)
    for chain, wanted in (
        (add(first) | add(across) | gelu(), functional.gelu(exact + first + across)),
        (bias(row) | multiply(column) | relu(), ((exact + row) * column).relu()),
        (row_scale(column[:, 0]) | add(wide) | scale(0.5), (exact * column + wide) * 0.5),
        (add(single) | clamp(-1, 1), (exact + single).clamp(-1, 1)),
        (scale(2.0), exact * 2),
    ):
        output = poisoned(m, n)
        gemm.launch(
            a, b, output=output, epilogue=chain, template="ping-pong", tile=(128, 128, 64), num_stages=4
        ).run()
        torch.testing.assert_close(output.double(), wanted.double(), atol=1e-4, rtol=1e-4)


def test_permuted_cast_and_transposed_outputs_are_exact() -> None:
    a, b = whole(256, 64), whole(64, 512, seed=1)
    exact = a.float() @ b.float()
    how = {"template": "ping-pong", "tile": (128, 128, 64), "num_stages": 4}
    (found,) = gemm.launch(a, b, epilogue=permuted((256, 8, 64), (1, 0, 2)), **how).run()  # type: ignore[arg-type]
    assert torch.equal(found.float(), exact.view(256, 8, 64).permute(1, 0, 2))
    (found,) = gemm.launch(a, b, epilogue=cast(torch.int8), **how).run()  # type: ignore[arg-type]
    assert torch.equal(found.float(), exact.clamp(-128, 127))
    output = poisoned(512, 256).t()
    gemm.launch(a, b, output=output, **how).run()  # type: ignore[arg-type]
    assert torch.equal(output, exact)


def test_dropout_drops_the_same_elements_as_the_portable_kernel() -> None:
    a, b = whole(256, 64), whole(64, 512, seed=1)
    chain = dropout(0.3, seed=5)
    (wanted,) = gemm.launch(a, b, epilogue=chain, tile=(64, 64, 64)).run()
    (found,) = gemm.launch(
        a, b, epilogue=chain, template="ping-pong", tile=(128, 128, 64), num_stages=4
    ).run()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("programs", "cols", "kernel"),
    [(None, 128, "ping"), (8, 128, "ping"), (4, 128, "pairs"), (None, 192, "wide"), (6, 192, "wide")],
)
def test_launches_without_products_do_all_other_work(programs: int | None, cols: int, kernel: str) -> None:
    """The result is the epilogue of zeros, for every way in which the kernels add the addends."""
    a, b = whole(512, 2048), whole(2048, 512, seed=1)
    first, second = whole(512, 512, seed=2), whole(512, 512, seed=3)
    output = poisoned(512, 512, torch.float16)
    launch = gemm.launch(
        a, b, output=output, epilogue=add(first) | add(second) | relu(), template="ping-pong",
        tile=(128, cols, 64), num_stages=6, programs=programs,
    )  # fmt: skip
    assert kernel in launch.steps[0].name
    gemm.without_products(launch).run()
    assert torch.equal(output, (first + second).relu())
    launch.run()
    assert torch.equal(output.float(), ((a.float() @ b.float()) + first + second).relu().half().float())
