"""The row template: plans that share rows and columns among programs, and equal results by all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import triton

from workbench import device
from workbench.errors import (
    ArgumentTypeError,
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.kernels.layout import rows_of
from workbench.kernels.rows import batch_norm, group_norm, normalization, rowwise, softmax
from workbench.launch import Launch
from workbench.lens.compile import compile
from workbench.operators.row_tiles import row_tiles
from workbench.runtime import interpret

pytestmark = pytest.mark.usefixtures("pretended")

UNITS = 132
FEW, MANY = rowwise.FEWEST_PER_UNIT * UNITS, rowwise.MOST_PER_UNIT * UNITS


def planned(rows: int, cols: int, tile: tuple[int, int], **how: Any) -> rowwise.Plan:
    (view,) = rows_of((rows, cols), ((cols, 1),), frozenset((1,)))
    return rowwise.plan(view, 2, tile, **({"compute_units": UNITS} | how))


def test_enough_tiles_of_rows_are_not_split() -> None:
    assert planned(FEW, 4096, (1, 1024)) == (1, 1024, 1, FEW, 1)
    assert planned(8 * FEW, 4096, (8, 1024)).splits == 1
    assert planned(MANY, 64, (1, 64)).programs == MANY


def test_too_few_tiles_of_rows_are_split() -> None:
    split = planned(FEW - 1, 4096, (1, 1024))
    assert split.splits == 4  # as many as there are tiles of 1024 columns
    assert split.programs == 4 * (FEW - 1)
    assert planned(8 * FEW - 8, 4096, (8, 1024)).splits == 4
    assert planned(8 * FEW - 7, 4096, (8, 1024)).splits == 1  # the last tile has one row


def test_splits_follow_split_per_unit_and_most_splits() -> None:
    wanted = rowwise.SPLIT_PER_UNIT * UNITS
    assert planned(128, 64 * 1024, (1, 64)).splits == triton.cdiv(wanted, 128)
    assert planned(128, 64 * 1024, (1, 64), split_per_unit=1).splits == triton.cdiv(UNITS, 128)
    assert planned(1, 2**20, (1, 64)).splits == rowwise.MOST_SPLITS
    assert planned(1, 2**20, (1, 64), most_splits=2048).splits == 2048
    assert planned(3, 100, (4, 128)).splits == 1  # one tile of columns


@pytest.mark.parametrize("cols", [1, 17, 64, 65, 1000, 1024, 1025])
@pytest.mark.parametrize("splits", [1, 2, 3, 5, 16, 100])
def test_every_split_has_a_tile(cols: int, splits: int) -> None:
    got = planned(3, cols, (4, 64), splits=splits).splits
    tiles = triton.cdiv(cols, 64)
    span = triton.cdiv(tiles, got)
    assert 1 <= got <= splits
    assert (got - 1) * span < tiles <= got * span


def test_many_tiles_are_taken_by_persistent_programs() -> None:
    assert planned(MANY + 1, 64, (1, 64)).programs == MANY
    assert planned(100 * MANY, 64, (4, 64)).programs == MANY
    assert planned(4 * MANY, 64, (4, 64)).programs == MANY


def test_the_interpreter_gets_few_persistent_programs() -> None:
    """Tests of few rows then run persistent programs. With given compute units, the plan is that of a GPU."""
    with device.pretend(device.current()):
        assert planned(100, 64, (1, 64), compute_units=None).programs == rowwise.PERSISTENT_IN_INTERPRETER
    assert planned(100, 64, (1, 64), compute_units=1).programs == min(rowwise.MOST_PER_UNIT, 100)


def test_row_tiles_are_whole_rows_and_splits_of_long_rows() -> None:
    tried = [(one["tile"], one["splits"]) for one in row_tiles(6, 3000)]
    assert sorted(set(tried)) == [
        ((1, 1024), 1),
        ((1, 1024), 2),
        ((1, 1024), 8),
        ((1, 4096), 1),
        ((4, 1024), 1),
    ]
    assert {one["splits"] for one in row_tiles(6, 1000)} == {1}


def test_a_given_plan_is_kept() -> None:
    assert planned(8, 4096, (2, 512), splits=2, programs=3, num_warps=16) == (2, 512, 2, 3, 16)
    assert planned(100 * MANY, 64, (1, 64), splits=1, programs=7).programs == 7


def test_every_program_has_a_tile() -> None:
    """A program without a tile would access other memory where rows fill their tiles."""
    assert planned(8, 64, (2, 64), splits=1, programs=9).programs == 4
    # A row of one tile has no parts.
    assert planned(8, 64, (2, 64), splits=2, programs=9).programs == 4
    assert planned(8, 256, (2, 64), splits=3, programs=99).programs == 8


@pytest.mark.parametrize("rows", [1, 2])
def test_more_programs_than_tiles_change_no_result(rows: int) -> None:
    x = torch.randn(2, 128)
    how: dict[str, Any] = {"tile": (rows, 128), "programs": 5}
    images = x.view(2, 4, 32)
    norm = torch.nn.functional.batch_norm(images, None, None, training=True)
    known = torch.nn.functional.batch_norm(images, torch.zeros(4), torch.ones(4))
    for launch, want in (
        (softmax.launch("softmax", x, **how), x.softmax(1)),
        (normalization.launch("layer_norm", x, 1, epsilon=1e-5, **how), torch.layer_norm(x, (128,))),
        (group_norm.launch(images, 1, epsilon=1e-5, **how), torch.group_norm(images, 1)),
        (batch_norm.launch(images, epsilon=1e-5, tile=(rows, 64), programs=5), norm),
        (
            batch_norm.launch_known(
                images, torch.zeros(4), torch.ones(4), epsilon=1e-5, tile=(rows, 32), programs=13
            ),
            known,
        ),
    ):
        torch.testing.assert_close(launch.run()[0], want)


def test_warps_follow_the_bytes_of_a_tile() -> None:
    warps = [planned(4096, cols, (1, cols)).num_warps for cols in (16, 1024, 2048, 2**20)]
    assert warps == [1, 1, 2, rowwise.MOST_WARPS]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        *(
            ({name: number}, ArgumentTypeError if number == 1 else InvalidArgumentError)
            for name in ("splits", "programs", "num_warps", "compute_units")
            for number in (0, -2, 1.0)
        ),
        ({"num_warps": 3}, InvalidArgumentError),
        ({"tile": (3, 4)}, InvalidArgumentError),
        ({"tile": (4, 0)}, InvalidArgumentError),
        ({"tile": (4,)}, InvalidArgumentError),
        ({"tile": 4}, InvalidArgumentError),
        ({"tile": (4.0, 4)}, ArgumentTypeError),
    ],
)
def test_invalid_plans_are_refused(how: dict[str, Any], error: type[Exception]) -> None:
    """The invokers of softmax and of the norms name the argument."""
    (name,) = how
    x = torch.zeros(8, 64)
    with pytest.raises(error, match=name):
        softmax.launch("softmax", x, **how)
    with pytest.raises(error, match=name):
        normalization.launch("layer_norm", x, 1, epsilon=1e-5, **how)


# Measured shape -> how its rows are shared on 132 compute units: whole, in tiles, or split.
SHAPES: dict[tuple[int, int], str] = {
    (4096, 256): "whole",
    (4096, 1024): "whole",
    (4096, 4096): "whole",
    (4096, 16384): "whole",
    (4096, 65536): "tiles",
    (16384, 4096): "whole",
    (32768, 768): "whole",
    (128, 1_000_000): "split",
}
KERNELS = {
    "whole": ["rowwise_kernel"],
    "tiles": ["rowwise_tiles_kernel"],
    "split": ["row_states_kernel", "apply_states_kernel"],
}


def assert_planned(one: Launch, shape: tuple[int, int], way: str) -> None:
    rows, cols = shape
    meta = one.steps[0].meta
    assert [step.name for step in one.steps] == KERNELS[way]
    tiles = triton.cdiv(rows, meta["ROWS"])
    if way == "split":
        span = triton.cdiv(triton.cdiv(cols, meta["COLS"]), meta["SPLITS"]) * meta["COLS"]
        assert (meta["SPLITS"] - 1) * span < cols
        assert tiles < FEW
        assert {step.grid for step in one.steps} == {(tiles * meta["SPLITS"],)}
        assert tiles * meta["SPLITS"] >= rowwise.SPLIT_PER_UNIT * UNITS * 0.8  # ragged ends lose some
    else:
        assert tiles >= FEW
        assert one.steps[0].grid == (min(tiles, MANY),)
    assert (meta["COLS"] >= cols) == (way == "whole")


@pytest.mark.parametrize(("shape", "way"), SHAPES.items(), ids=str)
@pytest.mark.parametrize("operator", [*softmax.OPERATORS, *normalization.NORMS])
def test_measured_shapes_get_their_plans(operator: str, shape: tuple[int, int], way: str) -> None:
    x = torch.empty(shape, dtype=torch.float16, device="meta")
    if operator in normalization.NORMS:
        one = normalization.launch(operator, x, 1, epsilon=1e-5, compute_units=UNITS)
        most, fewest = normalization.MOST_WHOLE, normalization.FEWEST_ELEMENTS
        if shape[1] <= normalization.SHORT_COLS:
            fewest = normalization.ELEMENTS_PER_WARP
    else:
        sources = [x] * len(softmax.OPERATORS[operator].fills)
        one = softmax.launch(operator, *sources, compute_units=UNITS)
        tuning = softmax.FORWARD if len(sources) == 1 else softmax.BACKWARD
        most, fewest = softmax.MOST_WHOLE, tuning.fewest_elements
    assert (shape[1] <= most) == (way == "whole")
    assert_planned(one, shape, way)
    if way == "whole":  # several short rows fill a tile
        meta = one.steps[0].meta
        if operator in normalization.NORMS and shape == (4096, 1024):
            assert meta["ROWS"] == 2  # with more rows there are too few tiles
            assert meta["num_warps"] == normalization.HALVED_WARPS
        elif operator.endswith("backward") and shape == (4096, 256):
            assert meta["ROWS"] == 4  # for the same reason
        else:
            assert meta["ROWS"] == max(fewest // meta["COLS"], 1)


@pytest.mark.parametrize("norm", normalization.NORMS)
def test_norms_across_contiguous_rows_get_wide_tiles(norm: str) -> None:
    """Tiles are wide along contiguous elements, forward and backward."""
    x = torch.empty(8192, 4096, dtype=torch.float16, device="meta").t()
    forward = normalization.launch(norm, x, 1, epsilon=1e-5, compute_units=UNITS)
    results = normalization.statistics(norm, x, 4096)
    backward = normalization.launch_backward(norm, x, x, 1, None, results, vectors=2, compute_units=UNITS)
    for step in (*forward.steps, *backward.steps[:1]):
        assert (step.meta["ROWS"], step.meta["COLS"]) == normalization.ACROSS_TILE
    assert "norm_backward_kernel" not in {step.name for step in backward.steps}


def test_softmax_across_contiguous_rows_is_split() -> None:
    """Tiles of 8192 x 8192 along dim 0 are wide along contiguous elements, and columns are split."""
    x = torch.empty(8192, 8192, dtype=torch.float16, device="meta")
    for one, tuning in (
        (softmax.launch("softmax", x, dim=0, compute_units=UNITS), softmax.FORWARD),
        (softmax.launch("softmax_backward", x, x, dim=0, compute_units=UNITS), softmax.BACKWARD),
    ):
        assert [step.name for step in one.steps] == KERNELS["split"]
        meta = one.steps[0].meta
        assert (meta["ROWS"], meta["COLS"]) == softmax.ACROSS_TILE
        assert meta["num_warps"] == softmax.ACROSS_WARPS
        assert one.steps[0].programs == 8192 // meta["ROWS"] * meta["SPLITS"]
        assert one.steps[0].programs <= 2 * tuning.across_per_unit * UNITS


@pytest.mark.parametrize("norm", normalization.NORMS)
@pytest.mark.parametrize(
    ("shape", "is_fused"),
    [
        ((4096, 256), True),
        ((4096, 1024), True),
        ((32768, 768), True),
        ((4096, 65536), False),
        ((128, 1_000_000), False),
    ],
    ids=str,
)
def test_gradients_are_fused_where_rows_fit(norm: str, shape: tuple[int, int], is_fused: bool) -> None:
    x, weight = (torch.empty(s, dtype=torch.float16, device="meta") for s in (shape, shape[1:]))
    results = normalization.statistics(norm, x, shape[0])
    one = normalization.launch_backward(norm, x, x, 1, weight, results, compute_units=UNITS)
    names = [step.name for step in one.steps]
    assert ("norm_backward_kernel" in names) == is_fused
    assert ("norm_columns_backward_kernel" in names) != is_fused
    if not is_fused:
        of_sums, of_columns, _ = one.steps
        assert (of_sums.meta["SPLITS"] > 1) == (shape[0] < FEW)
        assert of_columns.meta["SPLITS"] == of_sums.meta["SPLITS"]
        assert of_columns.programs >= normalization.COLUMNS_PER_UNIT * UNITS * 0.9
    else:
        step = one.steps[0]
        warps = step.programs * step.meta["num_warps"]
        assert warps <= normalization.BACKWARD_WARPS_PER_UNIT * UNITS
        tiles = triton.cdiv(shape[0], step.meta["ROWS"])
        assert tiles / step.programs >= normalization.FEWEST_BACKWARD_TILES * 0.99
        assert step.meta["COLS"] >= shape[1]
    alone = normalization.launch_backward(norm, x, x, 1, weight, results, vectors=0, compute_units=UNITS)
    assert {step.name for step in alone.steps} <= {name for names in KERNELS.values() for name in names}


# How 7 rows of 19 elements are shared, and the kernels of the plan. The last tile of rows is ragged.
WAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a row in a tile": ({"tile": (1, 32), "splits": 1}, KERNELS["whole"]),
    "several rows in a tile": ({"tile": (4, 32), "splits": 1}, KERNELS["whole"]),
    "all in one tile": ({"tile": (16, 64), "splits": 1}, KERNELS["whole"]),
    "rows in a tile, persistent": ({"tile": (2, 32), "splits": 1, "programs": 3}, KERNELS["whole"]),
    "rows of several tiles": ({"tile": (2, 8), "splits": 1}, KERNELS["tiles"]),
    "rows of several tiles, persistent": ({"tile": (1, 4), "splits": 1, "programs": 2}, KERNELS["tiles"]),
    "rows split": ({"tile": (2, 8), "splits": 2}, KERNELS["split"]),
    "rows split, a tile each": ({"tile": (4, 4), "splits": 5}, KERNELS["split"]),
    "chosen": ({}, KERNELS["whole"]),
    "chosen for a GPU": ({"tile": (4, 8), "compute_units": UNITS}, KERNELS["split"]),
}
ROWS, COLS = 7, 19
NAN = float("nan")

ways = pytest.mark.parametrize(("way", "kernels"), WAYS.values(), ids=list(WAYS))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def poison_states(one: Launch) -> list[torch.Tensor]:
    """Fill the states between two steps with NaN, and return these tensors."""
    states: Sequence[torch.Tensor] = one.steps[0].arguments().get("states", ())
    return [state.fill_(NAN) for state in states]


def assert_same_bits_in_any_order(one: Launch, kernels: list[str], wanted: Sequence[torch.Tensor]) -> None:
    """Assert the same bits for programs in order and shuffled, and that exactly the outputs are written."""
    assert [step.name for step in one.steps] == kernels
    states = poison_states(one)
    seed = random.randrange(2**32)
    shuffled = interpret(one, poison=True, seed=seed)
    assert all(any(each is state for state in states) for each in shuffled.changed)
    for output, got, want in zip(one.run(), shuffled.outputs, wanted, strict=True):
        torch.testing.assert_close(output, want)
        assert torch.equal(output, got), f"shuffled by seed {seed}"


def guarded(like: torch.Tensor) -> torch.Tensor:
    """Return an output with foreign memory before, behind and between its rows."""
    return torch.full((like.shape[0] + 4, like.shape[1] + 9), NAN, dtype=like.dtype)[2:-2, 3:-6]


@ways
@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_softmax_agrees_with_torch(operator: str, way: dict[str, Any], kernels: list[str]) -> None:
    x = numbers(ROWS, COLS) * 5
    one = softmax.launch(operator, x, output=guarded(x), **way)
    assert_same_bits_in_any_order(one, kernels, [getattr(torch, operator)(x, 1)])


@ways
@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_gradients_of_softmax_agree_with_autograd(
    operator: str, way: dict[str, Any], kernels: list[str]
) -> None:
    x, direction = numbers(ROWS, COLS).requires_grad_(), numbers(COLS, ROWS, seed=1).t()
    y = getattr(torch, operator)(x, 1)
    (want,) = torch.autograd.grad(y, x, direction)
    one = softmax.launch(f"{operator}_backward", y.detach(), direction, output=guarded(x), **way)
    assert_same_bits_in_any_order(one, kernels, [want])


@ways
@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_softmax_of_infinity_and_nan_agrees_with_torch(
    operator: str, way: dict[str, Any], kernels: list[str]
) -> None:
    """There are rows and whole tiles of -inf, NaN, infinity and very large numbers."""
    x = numbers(ROWS, COLS)
    x[0], x[1, :12], x[2, 12:] = -float("inf"), -float("inf"), -float("inf")
    x[3, 4], x[4, 18], x[5, 0] = float("inf"), NAN, 1e300
    (got,) = softmax.launch(operator, x, **way).run()
    torch.testing.assert_close(got, getattr(torch, operator)(x, 1), equal_nan=True)


def statistics_of(norm: str, x: torch.Tensor, epsilon: float) -> list[torch.Tensor]:
    mean = x.mean(1)
    square = x.var(1, correction=0) if norm == "layer_norm" else x.square().mean(1)
    return [mean, (square + epsilon).rsqrt()][2 - normalization.STATISTICS[norm] :]


def normalized(norm: str, x: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    function: Callable[..., torch.Tensor] = getattr(torch.nn.functional, norm)
    return function(x, x.shape[1:], *columns, eps=1e-5)


@ways
@pytest.mark.parametrize("norm", normalization.NORMS)
def test_norms_agree_with_torch(norm: str, way: dict[str, Any], kernels: list[str]) -> None:
    x = numbers(ROWS, COLS) + 3
    columns = [numbers(COLS, seed=1 + i) for i in range(normalization.STATISTICS[norm])]
    one = normalization.launch(
        norm, x, 1, *columns, epsilon=1e-5, output=guarded(x), with_statistics=True, **way
    )
    assert_same_bits_in_any_order(one, kernels, [normalized(norm, x, columns), *statistics_of(norm, x, 1e-5)])


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "sliced": lambda x: torch.stack((x, -x), -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("name", ["several rows in a tile", "rows of several tiles", "rows split"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_strides_agree_with_torch(layout: str, name: str) -> None:
    x = LAYOUTS[layout](numbers(ROWS, COLS) + 3)
    way, kernels = WAYS[name]
    assert_same_bits_in_any_order(
        softmax.launch("softmax", x, output=guarded(x), **way), kernels, [torch.softmax(x, 1)]
    )
    one = normalization.launch("layer_norm", x, 1, epsilon=1e-5, output=guarded(x), **way)
    assert_same_bits_in_any_order(one, kernels, [normalized("layer_norm", x, [])])


@ways
@pytest.mark.parametrize("norm", normalization.NORMS)
def test_gradients_of_norms_agree_with_autograd(norm: str, way: dict[str, Any], kernels: list[str]) -> None:
    x, direction, weight = numbers(ROWS, COLS), numbers(COLS, ROWS, seed=1).t(), numbers(COLS, seed=2)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(normalized(norm, leaf, [weight]), leaf, direction)
    (view,) = rows_of((ROWS, COLS), ((COLS, 1),), frozenset((1,)))
    options = {"splits": 1, "compute_units": UNITS} | way
    tile = options.pop("tile", (8, 32))
    if "compute_units" in way:
        del options["splits"]
    plan = rowwise.plan(view, 8, tile, **options)
    operator = normalization.NORMS[norm].backward
    one = rowwise.launch(
        operator, (x, direction), guarded(x), frozenset((1,)), plan, columns=[weight],
        given=statistics_of(norm, x, 1e-5),
    )  # fmt: skip
    assert_same_bits_in_any_order(one, kernels, [want])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("vectors", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (7, 19), (37, 200), (17, 257)])
@pytest.mark.parametrize("norm", normalization.NORMS)
def test_gradients_of_weight_and_bias_agree_with_autograd(
    norm: str, rows: int, cols: int, weighted: bool, vectors: int, fused: bool
) -> None:
    """Programs on one compute unit take several tiles each."""
    x, direction = numbers(rows, cols), numbers(cols, rows, seed=1).t()
    leaf, weight = x.clone().requires_grad_(), numbers(cols, seed=2)
    columns = [weight] if weighted else []
    (of_x,) = torch.autograd.grad(normalized(norm, leaf, columns), leaf, direction)
    ones = normalized(norm, x, [])
    of_columns = torch.stack(((direction * ones).sum(0), direction.sum(0)))[:vectors]
    one = normalization.launch_backward(
        norm, direction, x, 1, weight if weighted else None, statistics_of(norm, x, 1e-5),
        vectors=vectors, fused=fused, compute_units=1,
    )  # fmt: skip
    outputs = one.run()
    torch.testing.assert_close(outputs[0], of_x)
    for found, exact in zip(outputs[1:], of_columns, strict=True):
        torch.testing.assert_close(found, exact)
    if vectors:
        assert ("norm_backward_kernel" in {step.name for step in one.steps}) == fused


@pytest.mark.parametrize("norm", normalization.NORMS)
@pytest.mark.parametrize(("rows", "cols"), [(3, 9001), (1, 20000), (66, 4097), (4, 8192)])
def test_gradients_of_split_rows_agree_with_autograd(norm: str, rows: int, cols: int) -> None:
    """Several programs sum parts of a row; the columns end within a tile, or with it."""
    x, direction, weight = numbers(rows, cols), numbers(rows, cols, seed=1), numbers(cols, seed=2)
    leaf = x.clone().requires_grad_()
    (of_x,) = torch.autograd.grad(normalized(norm, leaf, [weight]), leaf, direction)
    one = normalization.launch_backward(
        norm, direction, x, 1, weight, statistics_of(norm, x, 1e-5), vectors=2, fused=False,
        compute_units=UNITS,
    )  # fmt: skip
    assert one.steps[0].meta["SPLITS"] > 1
    assert one.steps[1].meta["EXACT"] == (rows == 4)
    got, of_weight, of_bias = one.run()
    torch.testing.assert_close(got, of_x)
    torch.testing.assert_close(of_weight, (direction * normalized(norm, x, [])).sum(0))
    torch.testing.assert_close(of_bias, direction.sum(0))


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_the_same_bits_in_any_order_of_programs(fused: bool) -> None:
    x, direction = numbers(37, 200), numbers(37, 200, seed=1)
    one = normalization.launch_backward(
        "layer_norm", direction, x, 1, numbers(200, seed=2), statistics_of("layer_norm", x, 1e-5),
        vectors=2, fused=fused, compute_units=1,
    )  # fmt: skip
    assert any(step.programs > 1 for step in one.steps)
    seed = random.randrange(2**32)
    for output, got in zip(one.run(), interpret(one, poison=True, seed=seed).outputs, strict=True):
        assert torch.equal(output, got), f"shuffled by seed {seed}"


@pytest.mark.parametrize("way", list(WAYS.values())[:8], ids=list(WAYS)[:8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_plans_agree_with_float64_within_two_epsilons(
    dtype: torch.dtype, way: tuple[dict[str, Any], list[str]]
) -> None:
    x = numbers(ROWS, COLS, dtype=dtype)
    wide = x.double()
    rounding = 2 * torch.finfo(dtype).eps
    for launch, want in (
        (softmax.launch("softmax", x, **way[0]), torch.softmax(wide, 1)),
        (
            normalization.launch("layer_norm", x, 1, epsilon=1e-5, **way[0]),
            normalized("layer_norm", wide, []),
        ),
    ):
        torch.testing.assert_close(launch.run()[0].double(), want, rtol=rounding, atol=rounding)


def test_gradients_from_many_programs_are_summed() -> None:
    """There are more programs than a tile of their sums has rows."""
    x, direction = numbers(300, 900), numbers(300, 900, seed=1)
    results = statistics_of("rms_norm", x, 1e-5)
    one = normalization.launch_backward(
        "rms_norm", direction, x, 1, None, results, vectors=2, compute_units=150
    )
    programs, _, cols = one.workspaces[0].shape
    assert programs > normalization.PARTS_TILE.rows
    assert cols % normalization.PARTS_TILE.cols
    _, of_weight, of_bias = one.run()
    torch.testing.assert_close(of_weight, (direction * normalized("rms_norm", x, [])).sum(0))
    torch.testing.assert_close(of_bias, direction.sum(0))


@pytest.mark.parametrize("norm", normalization.NORMS)
def test_empty_rows_launch_nothing(norm: str) -> None:
    for shape in ((0, 5), (5, 0)):
        x = torch.zeros(shape)
        results = normalization.statistics(norm, x, shape[0])
        assert normalization.launch(norm, x, 1, epsilon=1e-5).steps == ()
        backward = normalization.launch_backward(norm, x, x, 1, torch.ones(shape[1]), results)
        assert backward.steps == ()
        assert torch.equal(backward.run()[1], torch.zeros(shape[1]))
    assert softmax.launch("softmax", torch.zeros(0, 5)).steps == ()


X = numbers(3, 4, dtype=torch.float32)
MEAN, SCALE = statistics_of("layer_norm", X, 1e-5)
BOTH = torch.stack((MEAN, SCALE), 1)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"norm": "layernorm"}, UnknownNameError, "layer_norm"),
        ({"x": [1.0]}, ArgumentTypeError, "x"),
        ({"x": X.long()}, TensorMismatchError, "int64"),
        ({"rank": 3}, DimensionError, "rank"),  # a negative dimension would count from the end
        ({"rank": 1, "x": torch.tensor(1.0)}, DimensionError, "rank: got 1 for x of shape .* at least 1 dim"),
        ({"rank": 0}, InvalidArgumentError, "rank"),
        ({"rank": "1"}, ArgumentTypeError, "rank"),
        ({"epsilon": "1"}, ArgumentTypeError, "epsilon"),
        ({"weight": torch.ones(3)}, TensorMismatchError, "weight"),
        ({"weight": torch.ones(8)[::2]}, TensorMismatchError, "weight"),
        (
            {"weight": torch.ones(4, device="meta")},
            TensorMismatchError,
            "weight is on meta, x on cpu. Move it",
        ),
        ({"x": X.to_sparse()}, TensorMismatchError, r"layout of x is torch.sparse_coo. Give x.to_dense\(\)."),
        ({"x": torch._neg_view(X)}, TensorMismatchError, r"negates its memory. Give x.resolve_neg\(\)."),
        ({"bias": torch.ones(4)}, TensorMismatchError, "bias"),  # a bias needs a weight
        ({"output": torch.zeros(4, 3)}, TensorMismatchError, "output"),
        ({"output": torch.zeros(1, 4).expand(3, 4)}, TensorMismatchError, "output"),
        ({"output": 5}, ArgumentTypeError, "output"),
        ({"output": "x"}, ArgumentTypeError, "output"),
        ({"output": torch.empty(3, 4).long()}, TensorMismatchError, "output"),
        ({"output": torch.empty(3, 4).bool()}, TensorMismatchError, "output"),
        (
            {"norm": "rms_norm", "weight": torch.ones(4), "bias": torch.ones(4)},
            TensorMismatchError,
            "rms_norm has no bias. Leave out the bias",
        ),
    ],
)
def test_norms_refuse_invalid_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments: dict[str, Any] = {"norm": "layer_norm", "x": X, "rank": 1, "epsilon": 1e-5} | change
    with pytest.raises(error, match=says):
        normalization.launch(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"norm": "layernorm"}, UnknownNameError, "layer_norm"),
        ({"rank": 3}, DimensionError, "rank"),
        ({"gradient": X[:2]}, TensorMismatchError, "gradient"),
        ({"gradient": X.long()}, TensorMismatchError, "gradient"),
        ({"gradient": torch._neg_view(X)}, TensorMismatchError, "gradient"),
        ({"gradient": None}, ArgumentTypeError, "gradient"),
        ({"weight": torch.ones(3)}, TensorMismatchError, "weight"),
        ({"results": None}, ArgumentTypeError, "results"),
        ({"results": [1, 2]}, ArgumentTypeError, "results"),
        ({"results": [MEAN.int(), SCALE.int()]}, TensorMismatchError, "int32"),
        ({"results": [MEAN.half(), SCALE.half()]}, TensorMismatchError, "float16"),
        ({"results": (MEAN,)}, TensorMismatchError, "results"),
        ({"results": (MEAN, SCALE[:2])}, TensorMismatchError, r"results\[1\]"),
        # read as contiguous, each would be mixed with the other
        ({"results": (BOTH[:, 0], BOTH[:, 1])}, TensorMismatchError, r"results\[0\]"),
        ({"norm": "rms_norm"}, TensorMismatchError, "results"),  # rms_norm has the scale alone
        ({"vectors": 1.0}, ArgumentTypeError, "vectors"),
        ({"vectors": 3}, InvalidArgumentError, "vectors"),
        ({"vectors": -1}, InvalidArgumentError, "vectors"),
        ({"fused": "x"}, ArgumentTypeError, "fused"),
        ({"compute_units": 0}, InvalidArgumentError, "compute_units"),
    ],
)
def test_gradients_of_norms_refuse_invalid_arguments(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    arguments: dict[str, Any] = {
        "norm": "layer_norm", "gradient": X, "x": X, "rank": 1, "weight": None, "results": (MEAN, SCALE),
    } | change  # fmt: skip
    with pytest.raises(error, match=says):
        normalization.launch_backward(**arguments)


IMAGES, VECTOR, SHORT = torch.zeros(2, 4, 3), torch.zeros(4), torch.zeros(3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: batch_norm.launch(IMAGES, VECTOR, SHORT, epsilon=1e-5), r"bias has shape \(3,\)"),
        (lambda: batch_norm.launch_known(IMAGES, SHORT, VECTOR, epsilon=1e-5), r"mean has shape \(3,\)"),
        (lambda: batch_norm.launch_known(IMAGES, VECTOR, SHORT, epsilon=1e-5), r"variance has shape \(3,\)"),
        (lambda: batch_norm.launch_backward(IMAGES, IMAGES, VECTOR, SHORT), r"scale has shape \(3,\)"),
        (lambda: group_norm.launch(IMAGES, 2, VECTOR, SHORT, epsilon=1e-5), r"bias has shape \(3,\)"),
        (
            lambda: group_norm.launch(IMAGES, 3, epsilon=1e-5),
            "do not divide 4 channels. Give a number of groups",
        ),
        (lambda: group_norm.launch(VECTOR, 2, epsilon=1e-5), r"x has 1 dimensions.*Give \(n, channels"),
    ],
    ids=["batch bias", "mean", "variance", "scale", "group bias", "groups", "dimensions"],
)
def test_norms_of_images_name_the_tensor_that_does_not_fit(call: Callable[[], Launch], says: str) -> None:
    with pytest.raises(TensorMismatchError, match=says):
        call()


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_whole_and_split_norms_compile(target: str) -> None:
    x, weight = torch.empty(64, 4096, dtype=torch.float16), torch.empty(4096, dtype=torch.float16)
    for way, steps in (({"tile": (1, 4096)}, 1), ({"tile": (1, 512), "splits": 4}, 2)):
        one = normalization.launch("layer_norm", x, 1, weight, weight, epsilon=1e-5, **way)
        assert len(compile(one, target)) == steps


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_prefetched_loads_of_gradients_fit(target: str, dtype: torch.dtype) -> None:
    """The lengths are those whose loads are prefetched, and the widest rows of each plan."""
    for norm, cols in (("rms_norm", 4096), ("layer_norm", 8192), ("rms_norm", 16384), ("rms_norm", 32768)):
        x, weight = torch.empty(4096, cols, dtype=dtype), torch.empty(cols, dtype=dtype)
        saved = [torch.empty(4096)] * (2 if norm == "layer_norm" else 1)
        one = normalization.launch_backward(norm, x, x, 1, weight, saved, vectors=1, compute_units=132)
        for compiled in compile(one, target):
            # Whole rows of 16384 spill a little on NVIDIA GPUs, and are faster than two passes.
            assert compiled.spills == 0 or cols == 16384
            assert compiled.shared_bytes <= {"sm_80": 163, "sm_90": 227, "gfx942": 64}[target] * 1024
