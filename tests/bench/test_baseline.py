"""Baselines: their names, the reasons of absence, their calls, and torch settings that are restored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.example import PACKAGES, gpu, installed, on_a_gpu
from workbench.bench import baseline, plain_triton
from workbench.errors import ArgumentTypeError, DeviceError, TensorMismatchError, UnknownNameError


def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)


def preferred() -> Any:
    return torch.backends.cuda.preferred_blas_library()


def test_every_baseline_has_its_name_and_a_description() -> None:
    for name, one in baseline.BASELINES.items():
        assert one.name == name
        assert one.about
    assert set(baseline.BASELINES) >= {"torch", "torch.compile", "cuBLAS", "cuBLASLt", "rocBLAS", "hipBLASLt"}
    assert set(PACKAGES) == {"Liger", "FlagGems"}
    assert all(one.is_optional == (name in PACKAGES) for name, one in baseline.BASELINES.items())


@pytest.mark.parametrize(
    ("name", "near"), [("cublas", "cuBLAS"), ("hipBLAS", "hipBLASLt"), ("touch", "torch")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        baseline.get(name)
    assert near in caught.value.nearest


@pytest.mark.parametrize(
    "name",
    ["cuBLAS", "cuBLASLt", "rocBLAS", "hipBLASLt", "torch.compile", "Triton", "Triton autotuned", *PACKAGES],
)
def test_baselines_that_need_a_gpu_give_their_reason_without_one(name: str) -> None:
    one = baseline.get(name)
    assert not one.available()
    assert one.absence()
    with pytest.raises(DeviceError, match=r"Available here: torch\."):
        one.call(torch.matmul, torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kind", "architecture", "there"),
    [
        (
            "cuda", "sm_90",
            {
                "torch", "torch.compile", "torch.compile max-autotune", "flex_attention", "cuBLAS",
                "cuBLASLt", "cuDNN", "FlashAttention-2", "Triton", "Triton autotuned",
            },
        ),
        (
            "hip", "gfx942",
            {
                "torch", "torch.compile", "torch.compile max-autotune", "Triton", "Triton autotuned",
                "flex_attention", "rocBLAS",
                "hipBLASLt",
            },
        ),
        ("interpreter", "interpreter", {"torch"}),
    ],
)  # fmt: skip
def test_each_kind_of_device_has_its_own_baselines(
    kind: str, architecture: str, there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    not_installed(monkeypatch)
    here = gpu(kind=kind, architecture=architecture)
    assert {name for name, one in baseline.BASELINES.items() if not one.absence(here)} == there
    for package in PACKAGES.values():
        installed(monkeypatch, package)
    optional = set(PACKAGES) if here.is_gpu else set()
    assert {name for name, one in baseline.BASELINES.items() if not one.absence(here)} == there | optional


@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 64), (65, 17, 70)], ids=str)
def test_handwritten_kernels_agree_with_torch(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    x, y = torch.randn(m * n), torch.randn(m * n)
    assert torch.equal(plain_triton.JITTED["add"](x, y), x + y)
    a, b = torch.randn(m, k), torch.randn(n, k).t()
    torch.testing.assert_close(plain_triton.JITTED["matmul"](a, b), a @ b)
    assert plain_triton.AUTOTUNED.keys() == plain_triton.JITTED.keys()


def test_absent_optional_libraries_say_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    not_installed(monkeypatch)
    said = {name: baseline.get(name).absence(gpu()) for name in PACKAGES}
    assert said == {
        "Liger": "Liger is not installed: pip install --no-deps liger-kernel",
        "FlagGems": "FlagGems is not installed: pip install --no-deps flag-gems sqlalchemy",
    }
    assert baseline.get("Liger").absence(gpu(kind="interpreter")) == "Liger is measured on GPUs only"


@pytest.mark.parametrize("name", PACKAGES)
def test_asking_for_a_library_does_not_import_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, PACKAGES[name], raising=False)
    (tmp_path / PACKAGES[name]).mkdir()
    (tmp_path / PACKAGES[name] / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert baseline.get(name).absence(gpu()) == ""
    assert PACKAGES[name] not in sys.modules


def test_a_call_computes_a_function_or_its_gradients() -> None:
    x, weight, gradient = torch.randn(3, 4), torch.randn(4), torch.randn(3, 4)
    eager = baseline.get("torch")
    assert torch.equal(eager.call(torch.add, x, weight, alpha=2)(), x + 2 * weight)
    of_weight, of_x = eager.call(torch.mul, gradient, x, weight, argnums=(1, 0))()
    torch.testing.assert_close(of_x, gradient * weight)
    torch.testing.assert_close(of_weight, (gradient * x).sum(0))
    assert not x.requires_grad


def test_gradients_are_computed_again_and_again_from_one_warm_forward_pass() -> None:
    passes: list[float] = []

    def scaled(x: torch.Tensor, *, factor: float) -> torch.Tensor:
        passes.append(factor)
        return x * factor

    call = baseline.backward_of(scaled, (0,), torch.ones(3), torch.zeros(3), factor=2.0)
    assert passes == []
    for _ in range(3):
        (found,) = call()
        assert torch.equal(found, torch.full((3,), 2.0))
    assert passes == [2.0] * baseline.CALLS_UNTIL_WARM


def test_a_library_is_preferred_during_its_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    before = preferred()
    with baseline.blas_library("ck"):
        call = baseline.get("cuBLAS").call(preferred)
        assert call() == torch._C._BlasBackend.Cublas
        assert preferred() != call()
        assert baseline.get("torch").call(preferred)() == preferred()
    assert preferred() == before


def test_cudnn_tries_its_kernels_during_benchmarked_calls_only() -> None:
    settings = torch.backends.cudnn
    call = baseline.benchmarked(lambda: settings.benchmark)
    assert call()
    assert not settings.benchmark


@pytest.mark.parametrize(
    ("name", "mode"),
    [("torch.compile", None), ("torch.compile max-autotune", "max-autotune-no-cudagraphs"), ("torch", "")],
)
def test_a_compiler_gets_the_function_alone(
    name: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles the function without its arguments, for one shape, and may not fall back to eager code."""
    on_a_gpu(monkeypatch)
    asked: list[dict[str, Any]] = []

    def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        asked.append({"function": function, **how})
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    x = torch.randn(3)
    assert torch.equal(baseline.get(name).call(torch.add, x, x, alpha=2)(), 3 * x)
    (of_x,) = baseline.get(name).call(torch.mul, x, x, x, argnums=(1,))()
    assert torch.equal(of_x, x * x)
    wanted = [
        {"function": function, "fullgraph": True, "dynamic": False, "mode": mode}
        for function in (torch.add, torch.mul)
    ]
    assert asked == ([] if name == "torch" else wanted)


def test_inputs_are_tensors_of_this_device() -> None:
    eager = baseline.get("torch")
    here, elsewhere = torch.ones(2), torch.ones(2, device="meta")
    with pytest.raises(TensorMismatchError, match="tensors on cpu and meta"):
        eager.call(torch.add, here, elsewhere)
    with pytest.raises(TensorMismatchError, match="tensors on cpu and meta"):
        eager.call(torch.add, here, other=elsewhere)
    with pytest.raises(TensorMismatchError, match="tensors on meta, while kernels run on Triton interpreter"):
        eager.call(torch.clone, elsewhere)


def test_fp8_is_multiplied_with_scales_of_one() -> None:
    a, b = (torch.randn(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    product = baseline.product(a, b.t())
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.float(), a.float() @ b.t().float(), rtol=2**-7, atol=2**-7)


def test_cublas_refuses_fp8_and_cublaslt_is_named_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    fp8 = torch.ones(16, 16).to(torch.float8_e4m3fn)
    with pytest.raises(TensorMismatchError, match=r"fp8.*cuBLAS cannot multiply it: use cuBLASLt"):
        baseline.get("cuBLAS").call(baseline.product, fp8, fp8.t())
    baseline.get("cuBLASLt").call(baseline.product, fp8, fp8.t())
    assert baseline.product_libraries("fp8_e4m3") == ("cuBLASLt",)
    assert baseline.product_libraries("fp16") == ("cuBLAS", "cuBLASLt")
    assert baseline.product_libraries("fp16", "hip") == ("rocBLAS", "hipBLASLt")
    assert [baseline.product_layout(each) for each in ("fp8_e4m3", "int8", "fp16")] == ["nt", "nt", "nn"]


def test_blas_library_is_restored_after_its_context() -> None:
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


def test_torchs_message_about_the_library_is_hidden() -> None:
    """In a new process, because torch shows the message only once in a process."""
    script = "from workbench.bench import baseline\nwith baseline.blas_library('ck'):\n    pass\n"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""


def test_precision_is_restored_after_its_context() -> None:
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


@pytest.mark.parametrize("dtype", ["tf32", "fp32", "fp16"])
def test_cudnn_tries_its_kernels_in_each_precision(dtype: str) -> None:
    settings: Any = torch.backends.cudnn
    wanted = "tf32" if dtype == "tf32" else "ieee"
    with baseline.precision(dtype):
        call = baseline.benchmarked(lambda: (settings.benchmark, settings.conv.fp32_precision))
        assert call() == (True, wanted)
        assert not settings.benchmark


def test_int8_is_multiplied_as_int8_not_as_fp8() -> None:
    a = torch.ones(2, 2, dtype=torch.int8)
    assert torch.equal(baseline.product(a, a), a @ a)


@pytest.mark.parametrize("name", ["x", "float16", "int8", None, 3, ["fp16"], ""])
def test_an_unknown_dtype_is_named(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="dtype"), baseline.precision(name):
        pass
    with pytest.raises(UnknownNameError, match="dtype"):
        baseline.product_libraries(name)
    if name != "int8":
        with pytest.raises(UnknownNameError, match="dtype"):
            baseline.product_layout(name)


@pytest.mark.parametrize("name", [None, 3, ["torch"], {}])
def test_a_name_of_a_wrong_type_is_refused(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="baseline"):
        baseline.get(name)
    with pytest.raises(UnknownNameError, match="BLAS library"), baseline.blas_library(name):
        pass


def test_an_unknown_kind_of_device_is_named() -> None:
    with pytest.raises(UnknownNameError, match="kind: 'rocm'"):
        baseline.product_libraries("fp16", "rocm")  # type: ignore[arg-type] # what a user might type
    with pytest.raises(ArgumentTypeError, match="here: got 'cuda'"):
        baseline.get("cuBLAS").absence("cuda")  # type: ignore[arg-type] # as above


def test_kernels_of_refuses_a_tensor() -> None:
    with pytest.raises(ArgumentTypeError, match="subject: got a Tensor"):
        baseline.kernels_of(torch.ones(3))  # type: ignore[arg-type] # a result instead of the launch


def test_no_kernels_are_named_where_none_run_on_a_gpu() -> None:
    assert baseline.kernels_of(lambda: torch.ones(3) + 1) == ()
