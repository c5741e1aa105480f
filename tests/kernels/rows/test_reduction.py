"""The reduction template: every way to share rows among programs agrees with torch."""

from __future__ import annotations

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from typing import Any

import pytest
import torch

from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels.rows.reduction import ATOMIC, OF_FLOATS, REDUCTIONS, is_supported, launch
from workbench.launch import Launch
from workbench.lens.compile import compile
from workbench.lens.trace import trace

pytestmark = pytest.mark.usefixtures("pretended")

REFERENCES: dict[str, Any] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "any": torch.any,
    "all": torch.all,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "max": torch.max,
    "min": torch.min,
    "prod": torch.prod,
    "count_nonzero": torch.count_nonzero,
    "norm1": lambda x, dim: torch.linalg.vector_norm(x, 1, dim),
    "norm2": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "largest_magnitude": lambda x, dim: torch.linalg.vector_norm(x, float("inf"), dim),
    "smallest_magnitude": lambda x, dim: torch.linalg.vector_norm(x, float("-inf"), dim),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 3, dim),
}
WAYS: list[dict[str, Any]] = [
    {},
    {"tile": (1, 4), "splits": 1},  # rows of several tiles
    {"tile": (4, 8), "splits": 2},  # two steps, with ragged tiles of rows and columns
    {"tile": (2, 4), "splits": 5, "programs": 2},  # persistent, in both steps
    {"tile": (1, 4), "splits": 1, "programs": 1},
    {"tile": (8, 32), "splits": 1},  # all in one tile
]


def sample(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(7, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_every_reduction_has_a_reference() -> None:
    assert set(REFERENCES) == set(REDUCTIONS)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_agree_with_torch(reduction: str, way: dict[str, Any]) -> None:
    x = sample()
    for tensor, dim in ((x, 1), (x.t(), 1), (x, 0)):  # contiguous columns, then contiguous rows
        outputs = launch(tensor, (dim,), reduction=reduction, exponent=3, **way).run()
        want = REFERENCES[reduction](tensor, dim)
        for ours, torchs in zip(outputs, want if isinstance(want, tuple) else (want,), strict=True):
            torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("exponent", [-3, -1.0, -0.5, 0.5, 1.5])
def test_norms_of_any_exponent_agree_with_torch(exponent: float, way: dict[str, Any]) -> None:
    """Masked lanes hold the neutral element, which depends on the sign of the exponent."""
    x = sample()
    x[2, 3], x[4, 5] = 0, float("inf")
    (got,) = launch(x, (1,), reduction="norm", exponent=exponent, **way).run()
    torch.testing.assert_close(got, torch.linalg.vector_norm(x, exponent, 1), rtol=1e-14, atol=0)


@pytest.mark.parametrize("exponent", [-2, -1, -0.3, 0.1, 0.5, 1.5, 3, 7.3])
@pytest.mark.parametrize("size", [5e-320, 1e-300, 1e-100, 1e-3, 1.0, 1e30, 1e100, 1e300])
def test_norms_of_extreme_numbers_are_as_accurate_as_torch(size: float, exponent: float) -> None:
    """The error is at most twice torch's plus a rounding: the logarithm of `size` costs no digits."""
    x = (1 + sample()[:, :6].abs()) * size
    (got,) = launch(x, (1,), reduction="norm", exponent=exponent).run()
    torchs = torch.linalg.vector_norm(x, exponent, 1)
    if not (0 < torchs.max() < float("inf")):
        assert torch.equal(got, torchs)
        return
    with localcontext(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN):
        power = Decimal(exponent)
        exact = [sum(Decimal(value) ** power for value in row) ** (1 / power) for row in x.tolist()]
        off, torchs_off = (
            max(abs(Decimal(value) - true) for value, true in zip(values.tolist(), exact, strict=True))
            for values in (got, torchs)
        )
        assert off <= 2 * torchs_off + Decimal(math.ulp(max(exact)))


@pytest.mark.parametrize("cols", [2**31 - 1, 2**31 + 2**20 + 5])
@pytest.mark.parametrize("reduction", ["sum", "argmax"])
def test_rows_beyond_31_bits_are_read_whole(reduction: str, cols: int) -> None:
    """Rounded up to tiles, the number of columns may need one bit more. The last program reads the rest.

    The test traces the first and the last program.
    """
    x = torch.ones(1, dtype=torch.int8).expand(cols)
    tile = 2**20
    first = launch(x, (0,), reduction=reduction, tile=(1, tile), splits=1024).steps[0]
    (number,) = first.grid
    (traced,) = trace(Launch((first,), ()), programs=[0, number - 1])
    seen = [
        sum(
            int(event.mask.sum()) for event in traced.events(program=p, kind="load") if event.mask is not None
        )
        for p in traced.programs
    ]
    span = -(-cols // tile // 1024) * tile
    assert seen == [span, cols - (number - 1) * span]


@pytest.mark.parametrize("reduction", ATOMIC)
def test_atomic_reductions_agree_with_torch_on_repeated_runs(reduction: str) -> None:
    x = sample()
    one = launch(x, (1,), reduction=reduction, tile=(2, 4), splits=3, atomic=True)
    assert len(one.steps) == 1
    for _ in range(2):  # the second run clears what the first one added
        torch.testing.assert_close(one.run()[0], REFERENCES[reduction](x, 1))


def test_splits_make_two_steps_and_no_idle_program() -> None:
    x = sample()
    assert len(launch(x, (1,), tile=(8, 8), splits=1).steps) == 1
    two = launch(x, (1,), tile=(8, 8), splits=100)
    assert len(two.steps) == 2
    assert two.steps[0].grid == (3,)  # three tiles of 8 columns in a row of 19


def test_the_grid_is_the_number_of_persistent_programs() -> None:
    assert launch(sample(), (1,), tile=(1, 32), splits=1, programs=3).steps[0].grid == (3,)


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_first_of_equals_is_found_across_splits(name: str, dim: int) -> None:
    x = torch.zeros(16, 16)
    for splits in (1, 2, 4):
        outputs = launch(x, (dim,), reduction=name, tile=(4, 4), splits=splits).run()
        assert not outputs[-1].any()


def test_split_reductions_are_deterministic() -> None:
    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    first, second = (launch(x, (1,), tile=(1, 64), splits=4).run()[0] for _ in range(2))
    assert torch.equal(first.view(torch.int32), second.view(torch.int32))


def test_work_counts_expanded_elements_once() -> None:
    x = torch.ones(4, 1).expand(4, 8)
    assert launch(x, (1,)).work == launch(x, (1,), tile=(1, 4)).work
    work = launch(x, (1,)).work
    assert work is not None
    assert (work.flops, work.bytes) == (32, 4 * 4 + 4 * 4)  # expanded elements are read once


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"reduction": "summ"}, UnknownNameError, "sum"),
        ({"tile": (3, 4)}, InvalidArgumentError, "tile"),
        ({"splits": 0}, InvalidArgumentError, "splits"),
        ({"programs": 0}, InvalidArgumentError, "programs"),
        ({"num_warps": 3}, InvalidArgumentError, "num_warps"),
        ({"reduction": "amax", "atomic": True}, InvalidArgumentError, "atomic"),
        ({"output": torch.zeros(6)}, TensorMismatchError, "output"),
        ({"output": [1]}, ArgumentTypeError, "output"),
        ({"output": torch._neg_view(torch.zeros(7))}, TensorMismatchError, "negated view"),
        ({"output": torch.zeros(7, dtype=torch.int32)}, TensorMismatchError, r"output: .*int32.*float32"),
        ({"output": torch.zeros(7, dtype=torch.float16)}, TensorMismatchError, "output"),
        ({"reduction": "argmax", "output": torch.zeros(7)}, InvalidArgumentError, "output"),
        ({"reduction": "norm"}, TensorMismatchError, r"powers are taken in float64. Give x.double\(\)."),
        ({"exponent": "a"}, ArgumentTypeError, "exponent"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        launch(sample(torch.float32), (1,), **options)


@pytest.mark.parametrize("exponent", [0, float("inf"), -float("inf"), float("nan"), 10**400])
def test_exponents_without_a_root_are_refused(exponent: float) -> None:
    with pytest.raises(InvalidArgumentError, match="exponent"):
        launch(sample(), (1,), reduction="norm", exponent=exponent)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("reduction", OF_FLOATS)
def test_integers_have_no_mean_and_no_norm(reduction: str, dtype: torch.dtype) -> None:
    """Torch refuses them too."""
    x = torch.ones(7, 19, dtype=dtype)
    with pytest.raises(TensorMismatchError, match="x is torch"):
        launch(x, (1,), reduction=reduction)
    with pytest.raises(RuntimeError):
        REFERENCES[reduction](x, 1)


def test_outputs_take_torchs_dtype_or_the_dtype_of_the_arithmetic() -> None:
    x = sample(torch.float16)
    halves, singles = torch.empty(7, dtype=torch.float16), torch.empty(7)
    for output in (halves, singles):
        assert launch(x, (1,), output).run()[0] is output
    torch.testing.assert_close(singles, x.float().sum(1))
    torch.testing.assert_close(halves, x.sum(1))


@pytest.mark.parametrize(
    ("dims", "error", "says"),
    [
        *((dims, InvalidArgumentError, "dims") for dims in ((2,), (-1,), (1, 1))),
        (torch.tensor(1), ArgumentTypeError, "dims: got tensor"),
    ],
)
def test_invalid_dims_are_refused(dims: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        launch(sample(), dims)


def test_dims_of_a_number_must_be_empty() -> None:
    with pytest.raises(InvalidArgumentError, match=r"dims: got \(0,\). Give \(\): x has no dimensions"):
        launch(torch.tensor(1.0), (0,))


def test_is_supported_names_the_reason() -> None:
    assert "no elements" in is_supported(torch.empty(0))
    assert "complex64" in is_supported(torch.ones(2, dtype=torch.complex64))
    assert is_supported(torch.ones(2)) == ""


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("reduction", ["sum", "argmax", "norm"])
def test_split_reductions_compile(reduction: str, target: str) -> None:
    dtype = torch.float64 if reduction == "norm" else torch.float16
    for dim in (0, 1):
        one = launch(torch.empty(64, 4096, dtype=dtype), (dim,), reduction=reduction, tile=(4, 32), splits=2)
        assert len(compile(one, target)) == 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("name", ["amax", "max"])
def test_masked_lanes_of_narrow_integers_are_loaded_as_zero(name: str, dtype: torch.dtype) -> None:
    """Triton fills -128 as 0xff80 where a lane loads two bytes at once: the second byte would be -1."""
    rows_are_neighbors = launch(torch.zeros(3, 14, dtype=dtype), (0,), reduction=name, compute_units=132)
    rows_are_apart = launch(torch.zeros(14, 40, dtype=dtype), (1,), reduction=name, compute_units=132)
    for one in (rows_are_neighbors, rows_are_apart):
        for step in compile(one, "sm_90"):
            text = step.stages["ptx"]
            assert re.search(r"@%p\d+ ld\.global\.(v2\.)?b(16|32)", text)
            begins = re.findall(
                r"^\s*mov\.[ub](?:16|32) %rs?\d+, (\S+);\n\s*(?:mov.*\n\s*)*@%p\d+ ld", text, re.M
            )
            assert begins
            assert set(begins) == {"0x0"}
