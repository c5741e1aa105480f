"""Reductions on a GPU: right at any size and division of the work, with the same bits in every run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.gpu.test_ops_gpu import bits, numbers, whole_numbers
from tests.ops.test_reduction import OF_ONE, OF_SEVERAL, WITH_GRADIENTS, assert_as_torch
from workbench import ops
from workbench.errors import TensorMismatchError
from workbench.kernels.rows import reduction

pytestmark = pytest.mark.gpu

NAMES = OF_SEVERAL + OF_ONE
HALVES_AND_SINGLES = [torch.float32, torch.float16, torch.bfloat16]

# Compiling a kernel takes up to a second, so the tests share this shape. No tile divides its rows.
RAGGED = (1023, 515)

# Each way to share the work on 132 compute units in fp32: shape, dimension and layout that lead to it.
WAYS: dict[str, tuple[tuple[int, ...], int | tuple[int, ...] | None, str]] = {
    "several rows a program": ((200001, 33), 1, "dense"),
    "several tiles a row": ((530, 20001), 1, "dense"),
    "persistent": ((8501, 16383), 1, "dense"),
    "tiles that fit": ((1024, 4096), 1, "dense"),
    "rows split": ((8, 300001), 1, "dense"),
    "all of it": ((495, 5333), None, "dense"),
    "rows are neighbors, split": ((5001, 701), 0, "dense"),
    "rows are neighbors": ((201, 135301), 0, "dense"),
    "the middle one": ((200, 2560, 3), 1, "dense"),
    "several dimensions": ((15, 160, 1024), (0, 2), "dense"),
    "sliced": (RAGGED, 1, "sliced"),
    "stride 0": (RAGGED, 1, "expanded"),
}
WAYS_OF_INDICES = [
    "several tiles a row", "rows split", "all of it", "rows are neighbors, split", "the middle one",
]  # fmt: skip


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of this layout with these elements; if expanded, with those of the first row."""
    if layout == "sliced":
        return torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
    return x[:1].expand(x.shape) if layout == "expanded" else x


def sample(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return elements for which the result of the reduction `name` is neither trivial nor out of range."""
    x = numbers(shape, torch.float32)
    if name == "prod":
        x = 1 + x / 300  # the product of 500 normal numbers is 0 in fp32
    if name in ("any", "all"):
        x[::3] = 0
        x[1::3, 7] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", HALVES_AND_SINGLES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_as_accurate_as_torch(name: str, dtype: torch.dtype) -> None:
    x = sample(name, RAGGED, dtype)
    assert_as_torch(name, x, dim=1)
    assert_as_torch(name, x, dim=1, keepdim=True)


@pytest.mark.parametrize("p", [1, 3, math.inf])
def test_norms_of_any_order_are_as_accurate_as_torch(p: float) -> None:
    assert_as_torch("norm", numbers(RAGGED, torch.float32), p, dim=1)


@pytest.mark.parametrize("way", WAYS)
def test_every_division_of_the_work_agrees_with_torch(way: str) -> None:
    """Sums of whole numbers are exact, so that a missing element shows."""
    shape, dim, layout = WAYS[way]
    options: dict[str, Any] = {} if dim is None else {"dim": dim}
    assert_as_torch("sum", laid(numbers(shape, torch.float32), layout), **options)
    assert_as_torch("sum", laid(whole_numbers(shape, torch.float32), layout), exact=True, **options)


def first_extreme(x: torch.Tensor, dim: int | None, sign: int) -> torch.Tensor:
    """Return the first index of the largest (sign 1) or smallest (-1) element, or of the first NaN."""
    rows = x.flatten() if dim is None else x.movedim(dim, -1)
    extreme = (rows * sign).amax(-1, keepdim=True) * sign
    is_it = (rows == extreme) | (rows.isnan() & extreme.isnan())
    index = torch.arange(rows.shape[-1], device=x.device)
    return torch.where(is_it, index, rows.shape[-1]).amin(-1)


@pytest.mark.parametrize("way", WAYS_OF_INDICES)
@pytest.mark.parametrize("has_nan", [False, True])
def test_argmax_and_argmin_find_the_first_of_equal_elements(way: str, has_nan: bool) -> None:
    """Many elements are the largest, and a row has none, one or several NaN."""
    shape, dim, layout = WAYS[way]
    assert dim is None or isinstance(dim, int)
    x = whole_numbers(shape, torch.float16)
    if has_nan:
        cols = x.numel() if dim is None else shape[dim]
        generator = torch.Generator("cuda").manual_seed(1)
        x[torch.rand(shape, generator=generator, device="cuda") < 1 / cols] = math.nan
    x = laid(x, layout)
    expected = first_extreme(x, dim, 1)
    assert torch.equal(ops.argmax(x, dim), expected)
    if way == "rows split":
        values, indices = ops.max(x, 1)
        assert torch.equal(indices, expected)
        torch.testing.assert_close(values, x.amax(1), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ops.argmin(x, dim), first_extreme(x, dim, -1))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 14), 0), ((14, 3), 1), ((5, 77), 1), ((1000, 7), 0), ((7, 1000), 0)]
)
def test_extremes_of_narrow_integers_are_exact(dtype: torch.dtype, shape: tuple[int, int], dim: int) -> None:
    """All elements are far from 0 and -1, with which masked lanes might be filled by mistake."""
    low, high = (-100, -50) if dtype != torch.uint8 else (50, 100)
    x = torch.randint(low, high, shape, device="cuda").to(dtype)
    for name in ("amax", "amin", "argmax", "argmin"):
        assert torch.equal(getattr(ops, name)(x, dim), getattr(x.cpu(), name)(dim).cuda()), name
    for name in ("max", "min"):
        got, want = getattr(ops, name)(x, dim), getattr(x.cpu(), name)(dim)
        assert torch.equal(got[0], want[0].cuda()), name
        assert torch.equal(got[1], want[1].cuda()), name
    x = -x if dtype != torch.uint8 else x
    assert torch.equal(ops.amin(x, dim), x.amin(dim))


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinities_give_torchs_results(name: str) -> None:
    x = sample(name, RAGGED, torch.float32)
    for row, specials in enumerate(
        (
            [math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [-math.inf, math.inf, math.nan],
            [math.nan, math.inf], [math.nan] * 515, [math.inf] * 515, [-math.inf] * 515,
        )
    ):  # fmt: skip
        x[row, 515 - len(specials) :] = torch.tensor(specials, device="cuda")
    assert_as_torch(name, x, dim=1)


def assert_repeatable(name: str, x: torch.Tensor, dim: int) -> None:
    """Check for the same bits in five runs, the last one in memory that is filled with NaN."""

    def parts() -> list[torch.Tensor]:
        result = getattr(ops, name)(x, dim=dim)
        return [result] if isinstance(result, torch.Tensor) else list(result)

    first = parts()
    for number in range(4):
        torch.use_deterministic_algorithms(number == 3)  # then torch.empty fills what it gives
        try:
            again = parts()
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_run_gives_the_same_bits(name: str) -> None:
    assert_repeatable(name, sample(name, RAGGED, torch.float32), 1)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "rows split") for name in ("sum", "mean", "prod", "norm")),
        ("sum", "rows are neighbors, split"),
    ],
)
def test_every_run_of_split_rows_gives_the_same_bits(name: str, way: str) -> None:
    shape, dim, _ = WAYS[way]
    assert isinstance(dim, int)
    assert_repeatable(name, sample(name, shape, torch.float32), dim)


def test_every_run_of_split_rows_gives_the_same_indices() -> None:
    for name in ("argmax", "max"):
        assert_repeatable(name, whole_numbers(WAYS["rows split"][0], torch.float16), 1)


@pytest.mark.parametrize(("name", "shape"), [("sum", RAGGED), ("sum", (8, 300001)), ("amax", RAGGED)])
def test_every_result_is_written_and_none_beside(name: str, shape: tuple[int, ...]) -> None:
    x = numbers(shape, torch.float32)
    memory = torch.full((shape[0] + 2 * 4096,), math.nan, device="cuda")
    inside = memory[4096 : 4096 + shape[0]]
    reduction.launch(x, (1,), inside, reduction=name).run()
    torch.testing.assert_close(inside, getattr(torch, name)(x, dim=1), rtol=1e-4, atol=1e-3)
    inside.fill_(math.nan)
    assert memory.isnan().all()


@pytest.mark.parametrize("dtype", HALVES_AND_SINGLES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_gradients_of_sums_are_as_accurate_as_torch(name: str, dtype: torch.dtype) -> None:
    x = numbers(RAGGED, dtype).requires_grad_()
    direction = numbers(RAGGED[:1], dtype, 1)
    ours, torchs, exact = (
        torch.autograd.grad(function(leaf, dim=1), leaf, direction.to(leaf.dtype))[0]
        for function, leaf in (
            (getattr(ops, name), x),
            (getattr(torch, name), x),
            (getattr(torch, name), x.detach().double().requires_grad_()),
        )
    )
    assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
    off, theirs = ((t.double() - exact).abs().max().item() for t in (ours, torchs))
    assert off <= 2 * theirs + exact.abs().max().item() * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_that_depend_on_the_elements_agree_with_torch(name: str) -> None:
    leaf = sample(name, RAGGED, torch.float32).requires_grad_()
    direction = numbers(RAGGED[:1], torch.float32, 1)
    results = (getattr(module, name)(leaf, dim=1) for module in (ops, torch))
    ours, torchs = (
        torch.autograd.grad(r if isinstance(r, torch.Tensor) else r.values, leaf, direction) for r in results
    )
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_tensor_without_dimensions_may_be_on_the_cpu(name: str) -> None:
    x, number = numbers(RAGGED, torch.float32).requires_grad_(), torch.tensor(0.5, requires_grad=True)
    for pair in ((x, number), (number, x)):
        ours, torchs = (getattr(module, name)(*pair) for module in (ops, torch))
        torch.testing.assert_close(ours, torchs, rtol=0, atol=0)
        assert torch.autograd.grad(ours.sum(), number)[0] == torch.autograd.grad(torchs.sum(), number)[0]


def test_tensors_on_different_devices_are_refused() -> None:
    """torch raises a RuntimeError, and our error is one."""
    x = numbers(RAGGED, torch.float32)
    on_cpu = x.cpu()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("max", (x, on_cpu), {}),
        ("min", (on_cpu, x), {}),
        ("sum", (x, 1), {"out": torch.empty(1023)}),
        ("amax", (x, 1), {"out": torch.empty(1023)}),
        ("argmax", (x, 1), {"out": torch.empty(1023, dtype=torch.int64)}),
    ]
    for name, arguments, options in calls:
        with pytest.raises(RuntimeError):
            getattr(torch, name)(*arguments, **options)
        with pytest.raises(TensorMismatchError):
            getattr(ops, name)(*arguments, **options)
    with pytest.raises(TensorMismatchError, match=r"tensors on cpu, while kernels run on .*device='cuda'"):
        ops.sum(on_cpu, 1)


def small_numbers(length: int) -> torch.Tensor:
    """Return 0 to 6 over and over, as int8, with a period that no tile has."""
    period = (torch.arange(2**20 - 3, device="cuda") % 7).to(torch.int8)
    return period.repeat(-(-length // len(period)))[:length]


def assert_all_counted(length: int) -> None:
    """Check the sum of `length` elements and the first index of the largest."""
    x = small_numbers(length)
    x[-5], x[-2] = 100, 100
    assert ops.sum(x).item() == sum(part.sum().item() for part in x.split(2**28))
    assert ops.argmax(x).item() == length - 5


def test_sums_and_maxima_of_more_than_two_to_the_31_elements_are_exact(many: int) -> None:
    assert_all_counted(many + 1025)
    x = small_numbers(many + 1025)
    x[many + 9] = 100
    assert ops.amax(x).item() == 100


def test_argmax_of_fp16_finds_an_index_beyond_two_to_the_31(many: int) -> None:
    x = torch.zeros(many + 1025, dtype=torch.float16, device="cuda")
    x[many + 7], x[many + 900] = math.nan, math.nan
    assert ops.argmax(x).item() == many + 7


def test_amax_of_more_than_two_to_the_31_rows_is_exact(many: int) -> None:
    rows = many + 1025
    x = small_numbers(2 * rows).view(rows, 2)
    result = ops.amax(x, 1)
    for ours, part in zip(result.split(2**28), x.split(2**28), strict=True):
        assert torch.equal(ours, torch.maximum(part[:, 0], part[:, 1]))


def test_column_sums_of_more_than_two_to_the_31_elements_are_exact(many: int) -> None:
    rows = many // 1024 + 3
    x = small_numbers(rows * 1025).view(rows, 1025)
    assert torch.equal(ops.sum(x, 0), torch.stack([part.sum(0) for part in x.split(2**17)]).sum(0))


def test_sums_and_argmax_of_two_to_the_31_minus_one_elements_are_exact(many: int) -> None:
    """Rounded up to tiles, the number of elements does not fit 32 bits."""
    assert_all_counted(many - 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "norm", "amax"])
def test_autocast_results_agree_with_torch(name: str, dtype: torch.dtype) -> None:
    x = numbers((50, 70), dtype)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got, want = getattr(ops, name)(x, dim=1), getattr(torch, name)(x, dim=1)
    torch.testing.assert_close(got, want)
