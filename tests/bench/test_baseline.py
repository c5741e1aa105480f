"""Baselines: names, what is absent here and why, and settings of torch that are put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.bench.example import gpu
from workbench.bench import baseline
from workbench.errors import (
    ArgumentTypeError,
    DeviceError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)


def preferred() -> Any:
    return torch.backends.cuda.preferred_blas_library()


def test_every_baseline_has_a_name_and_a_sentence() -> None:
    for name, one in baseline.BASELINES.items():
        assert one.name == name
        assert one.about
        assert one.operators
    assert set(baseline.BASELINES) >= {"torch", "torch.compile", "cuBLAS", "cuBLASLt", "rocBLAS", "hipBLASLt"}


@pytest.mark.parametrize(
    ("name", "near"), [("cublas", "cuBLAS"), ("hipBLAS", "hipBLASLt"), ("touch", "torch")]
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        baseline.get(name)
    assert near in caught.value.nearest


@pytest.mark.parametrize("name", ["cuBLAS", "cuBLASLt", "rocBLAS", "hipBLASLt", "torch.compile"])
def test_without_a_gpu_the_reason_is_said(name: str) -> None:
    one = baseline.get(name)
    assert not one.available()
    assert one.absence()
    with pytest.raises(DeviceError, match=r"Available here: torch\."):
        one.build("matmul", torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kind", "architecture", "there"),
    [
        ("cuda", "sm_90", {"torch", "torch.compile", "cuBLAS", "cuBLASLt"}),
        ("hip", "gfx942", {"torch", "torch.compile", "rocBLAS", "hipBLASLt"}),
        ("interpreter", "interpreter", {"torch"}),
    ],
)
def test_each_kind_of_device_has_its_own(kind: str, architecture: str, there: set[str]) -> None:
    here = gpu(kind=kind, architecture=architecture)
    assert {name for name, one in baseline.BASELINES.items() if not one.absence(here)} == there


def test_eager_torch_is_torch() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    eager = baseline.get("torch")
    assert torch.equal(eager.build("add", x, y, alpha=2)(), torch.add(x, y, alpha=2))
    assert torch.equal(eager.build("sum", x, dim=-1)(), x.sum(-1))
    assert torch.equal(eager.build("clone", x)(), x)
    assert torch.equal(eager.build("matmul", x, y.t())(), x @ y.t())


def test_fp8_is_multiplied_with_scales_of_one() -> None:
    a, b = (torch.randn(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    product = baseline.get("torch").build("matmul", a, b.t())()
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.float(), a.float() @ b.t().float(), rtol=2**-7, atol=2**-7)


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(UnknownNameError, match="operator of torch: 'mul'"):
        baseline.get("torch").build("mul", torch.ones(1), torch.ones(1))


def test_the_classic_interface_has_no_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.device.current", gpu)
    fp8 = torch.zeros(16, 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(TensorMismatchError, match="multiplies no fp8"):
        baseline.get("cuBLAS").build("matmul", fp8, fp8.t())
    assert baseline.product_libraries("fp8_e4m3") == ("cuBLASLt",)
    assert baseline.product_libraries("fp16") == ("cuBLAS", "cuBLASLt")
    assert baseline.product_libraries("fp16", "hip") == ("rocBLAS", "hipBLASLt")
    assert (baseline.product_layout("fp8_e4m3"), baseline.product_layout("fp16")) == ("nt", "nn")


def test_the_library_is_put_back() -> None:
    before = preferred()
    with baseline.blas_library("ck"):  # the only other one that a CPU build takes
        assert preferred() != before
        with baseline.blas_library("cublas"):
            assert preferred() == torch._C._BlasBackend.Cublas
        assert preferred() != before
    assert preferred() == before
    with pytest.raises(ZeroDivisionError), baseline.blas_library("ck"):
        raise ZeroDivisionError
    assert preferred() == before


def test_an_unknown_library_is_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'cublaslt'"), baseline.blas_library("cublas-lt"):
        pass


def test_torch_s_word_on_the_switch_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with baseline.blas_library("ck"):
        pass
    assert capfd.readouterr().err == ""


def test_precision_is_put_back() -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    with baseline.precision("tf32"):
        assert settings.fp32_precision == "tf32"
        with baseline.precision("fp32"):
            assert settings.fp32_precision == "ieee"
        assert settings.fp32_precision == "tf32"
    assert settings.fp32_precision == before
    with pytest.raises(ZeroDivisionError), baseline.precision("tf32"):
        raise ZeroDivisionError
    assert settings.fp32_precision == before


@pytest.mark.parametrize(
    ("op", "inputs", "said"),
    [
        ("matmul", (), "inputs: got 0 tensors. The operator matmul takes 2"),
        ("add", (torch.ones(1),), "inputs: got 1 tensors. The operator add takes 2"),
        ("sum", (torch.ones(1), torch.ones(1)), "inputs: got 2 tensors. The operator sum takes 1"),
    ],
)
def test_too_few_or_too_many_inputs_are_said(op: str, inputs: tuple[torch.Tensor, ...], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        baseline.get("torch").build(op, *inputs)
    assert said in str(caught.value)


def test_inputs_are_tensors_of_this_device() -> None:
    eager = baseline.get("torch")
    here, elsewhere = torch.ones(2), torch.ones(2, device="meta")
    with pytest.raises(ArgumentTypeError, match=r"inputs\[1\]: got 2, a int"):
        eager.build("add", here, 2)  # type: ignore[arg-type] # torch would take it
    with pytest.raises(TensorMismatchError, match="tensors on cpu and meta"):
        eager.build("add", here, elsewhere)
    with pytest.raises(TensorMismatchError, match="tensors on meta, while kernels run on Triton interpreter"):
        eager.build("clone", elsewhere)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"option of add: 'alhpa'.*Did you mean 'alpha'"):
        baseline.get("torch").build("add", torch.ones(1), torch.ones(1), alhpa=2)


def test_integers_of_one_byte_are_no_fp8() -> None:
    a = torch.ones(2, 2, dtype=torch.int8)
    assert torch.equal(baseline.get("torch").build("matmul", a, a)(), a @ a)


@pytest.mark.parametrize("name", ["x", "float16", "int8", None, 3, ["fp16"], ""])
def test_a_dtype_that_is_not_known_is_named(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="dtype"), baseline.precision(name):
        pass
    with pytest.raises(UnknownNameError, match="dtype"):
        baseline.product_libraries(name)
    with pytest.raises(UnknownNameError, match="dtype"):
        baseline.product_layout(name)


@pytest.mark.parametrize("name", [None, 3, ["torch"], {}])
def test_what_is_no_name_is_refused_as_a_name(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="baseline"):
        baseline.get(name)
    with pytest.raises(UnknownNameError, match="operator of torch"):
        baseline.get("torch").build(name)
    with pytest.raises(UnknownNameError, match="BLAS library"), baseline.blas_library(name):
        pass


def test_an_unknown_kind_of_device_is_named() -> None:
    with pytest.raises(UnknownNameError, match="kind: 'rocm'"):
        baseline.product_libraries("fp16", "rocm")  # type: ignore[arg-type] # what a user might type
    with pytest.raises(ArgumentTypeError, match="here: got 'cuda'"):
        baseline.get("cuBLAS").absence("cuda")  # type: ignore[arg-type] # as above


def test_kernels_are_those_of_a_launch_or_function() -> None:
    with pytest.raises(ArgumentTypeError, match="subject: got a Tensor"):
        baseline.kernels_of(torch.ones(3))  # type: ignore[arg-type] # a result instead of the launch


def test_no_kernels_are_named_where_none_run_on_a_gpu() -> None:
    assert baseline.kernels_of(lambda: torch.ones(3) + 1) == ()
