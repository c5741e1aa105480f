"""Inputs of measurements: dtypes by name, dtypes that a device multiplies, normal matrices in a layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.bench.example import gpu
from workbench.bench import data
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_inputs_are_normal_and_repeatable(dtype: str) -> None:
    values = data.normal((64, 64), dtype)
    assert values.dtype == data.torch_dtype(dtype)
    assert values.is_contiguous()
    wide = values.double()
    assert abs(wide.mean()) < 0.1
    assert abs(wide.std() - 1) < 0.1
    assert torch.equal(wide, data.normal((64, 64), dtype).double())
    assert not torch.equal(wide, data.normal((64, 64), dtype, seed=1).double())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_matrices_are_stored_in_the_layout(layout: str) -> None:
    a, b = data.matrices(3, 5, 7, "fp32", layout)
    assert (a.shape, b.shape) == ((3, 7), (7, 5))
    for letter, matrix in zip(layout, (a, b), strict=True):
        assert matrix.is_contiguous() == (letter == "n")
        assert matrix.t().is_contiguous() == (letter == "t")
    assert not torch.equal(a[:3, :3], b[:3, :3])


@pytest.mark.parametrize(
    ("architecture", "absent"),
    [
        ("sm_75", {"bf16", "tf32", "fp8_e4m3"}),
        ("sm_80", {"fp8_e4m3"}),
        ("sm_89", set()),
        ("sm_90", set()),
        ("sm_120", set()),
        ("gfx90a", {"tf32", "fp8_e4m3"}),
        ("gfx942", {"tf32"}),
        ("gfx950", {"tf32"}),
        ("gfx1100", {"tf32", "fp8_e4m3"}),
        ("gfx1201", {"tf32"}),
        ("interpreter", {"tf32", "fp8_e4m3"}),
    ],
)
def test_a_reason_is_given_for_each_dtype_that_a_device_cannot_multiply(
    architecture: str, absent: set[str]
) -> None:
    kind = (
        "cuda"
        if architecture.startswith("sm")
        else "hip"
        if architecture.startswith("gfx")
        else "interpreter"
    )
    here = gpu(kind=kind, architecture=architecture)
    dtypes = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3")
    reasons = {dtype: data.product_absence(dtype, here) for dtype in dtypes}
    assert {dtype for dtype, reason in reasons.items() if reason} == absent


def test_mi300_has_an_fp8_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.device.current", lambda: gpu(kind="hip", architecture="gfx942"))
    assert data.torch_dtype("fp8_e4m3") == torch.float8_e4m3fnuz
    assert data.torch_dtype("fp8_e5m2") == torch.float8_e5m2fnuz
    assert data.torch_dtype("fp16") == torch.float16


def test_wrong_names_and_lengths_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="dtype: 'float16'"):
        data.normal((1,), "float16")
    with pytest.raises(UnknownNameError, match="dtype: 'int8'"):
        data.product_absence("int8", gpu())
    with pytest.raises(UnknownNameError, match="layout: 'rc'"):
        data.matrices(1, 1, 1, "fp32", "rc")
    with pytest.raises(InvalidArgumentError, match="n: got 0"):
        data.matrices(1, 0, 1, "fp32")
    with pytest.raises(UnknownNameError, match="dtype"):
        data.torch_dtype(["fp16"])  # type: ignore[arg-type] # several


@pytest.mark.parametrize("shape", [3, None, "4", "", 2.0, [2.0], [None], (True,), {4}])
def test_a_shape_of_a_wrong_type_is_refused(shape: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="shape"):
        data.normal(shape, "fp32")


@pytest.mark.parametrize("shape", [(-1,), (2**63,), (2**40, 2**40)])
def test_a_shape_that_no_memory_holds_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="shape"):
        data.normal(shape, "fp32")


def test_a_shape_may_be_empty() -> None:
    assert data.normal((), "fp16").shape == ()
    assert data.normal([0, 3], "fp16").shape == (0, 3)


@pytest.mark.parametrize("seed", [None, "0", 1.0, True, -1, 2**63])
def test_a_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match="seed"):
        data.normal((1,), "fp32", seed=seed)


def test_a_wrong_device_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="here"):
        data.product_absence("fp16", "sm_90")  # type: ignore[arg-type] # its name instead
    with pytest.raises(InvalidArgumentError, match="'hopper'"):
        data.product_absence("fp16", gpu(architecture="hopper"))


@pytest.mark.parametrize("dtype", ["fp16", "fp8_e4m3", "int8"])
def test_integer_inputs_are_the_whole_numbers_from_minus_5_to_5_in_every_dtype(dtype: str) -> None:
    values = data.draw((50, 40), dtype, "integer").double()
    assert values.unique().tolist() == [*range(-5, 6)]
    assert torch.equal(values, data.draw((50, 40), dtype, "integer").double())
    assert not torch.equal(values, data.draw((50, 40), dtype, "integer", seed=1).double())


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (7, 1), (2, 0), (0, 3), ()])
def test_one_element_of_each_row_is_hot(shape: tuple[int, ...]) -> None:
    values = data.draw(shape, "bf16", "one-hot", seed=2)
    assert values.shape == shape
    assert values.dtype == torch.bfloat16
    if values.numel() and shape:
        assert torch.equal(values.sum(-1), torch.ones(shape[:-1], dtype=torch.bfloat16))
        places = values.reshape(-1, shape[-1]).argmax(-1)
        assert places.tolist() == [(row + 2) % shape[-1] for row in range(len(places))]


def test_normal_values_of_int8_have_the_documented_deviation() -> None:
    values = data.draw((64, 64), "int8")
    assert values.dtype == torch.int8
    assert abs(values.double().std() - data.INT8_DEVIATION) < 2
    assert torch.equal(data.draw((8,), "fp32", seed=3), data.normal((8,), "fp32", seed=3))


def test_an_unknown_init_is_named() -> None:
    with pytest.raises(UnknownNameError, match="integer, normal, one-hot"):
        data.draw((2,), "fp32", "ones")
