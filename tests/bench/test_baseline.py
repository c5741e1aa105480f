"""Baselines: their names, the reasons of absence, their calls, and torch settings that are restored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.bench.example import gpu
from workbench.bench import baseline, plain_triton
from workbench.device import Device
from workbench.errors import (
    ArgumentTypeError,
    DeviceError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.problems import OPERATORS

# name of a baseline -> the packages of its optional library
PACKAGES = {name: one.package for name, one in baseline.BASELINES.items() if one.package is not None}


class GpuWithoutMemory(Device):
    """A GPU by its fields, with tensors on the CPU: for tests on a machine without a GPU."""

    @property
    def torch_device(self) -> str:
        return "cpu"


def installed(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Pretend that a module is installed, and the packages that contain it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(members)


def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)


def preferred() -> Any:
    return torch.backends.cuda.preferred_blas_library()


def test_every_baseline_has_its_name_a_description_and_operators() -> None:
    for name, one in baseline.BASELINES.items():
        assert one.name == name
        assert one.about
        assert one.operators
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
        one.build("matmul", torch.ones(2, 2), torch.ones(2, 2))


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


def test_handwritten_kernels_take_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    here = GpuWithoutMemory(**asdict(gpu()))
    monkeypatch.setattr("workbench.device.current", lambda: here)
    x = torch.ones(8)
    assert torch.equal(baseline.get("Triton").build("add", x, x)(), 2 * x)
    with pytest.raises(InvalidArgumentError, match="options: got alpha"):
        baseline.get("Triton autotuned").build("add", x, x, alpha=2)
    with pytest.raises(UnknownNameError, match="operator of Triton: 'sum'"):
        baseline.get("Triton").build("sum", x)


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


class Softmax(torch.autograd.Function):
    """A stand-in with the arguments of Liger's softmax, computed by torch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(result := x.softmax(-1))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (result,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, result, -1, result.dtype)


class LayerNorm(torch.autograd.Function):
    """A stand-in with the arguments of Liger's layer norm, computed by torch."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        result, *statistics = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, *statistics, weight, bias)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        return *torch.ops.aten.native_layer_norm_backward(gradient, x, x.shape[-1:], *saved, [True] * 3), None


class RMSNorm(torch.autograd.Function):
    """A stand-in with the arguments of Liger's RMS norm, computed by torch."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
    ) -> torch.Tensor:
        assert (offset, casting_mode) == (0.0, "gemma")
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.in_place = eps, in_place
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        leaves = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            result = functional.rms_norm(leaves[0], leaves[0].shape[-1:], leaves[1], ctx.eps)
        of_x, of_weight = torch.autograd.grad(result, leaves, gradient)
        return gradient.copy_(of_x) if ctx.in_place else of_x, of_weight, None, None, None, None


def with_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that both libraries are installed on a machine with a GPU; their functions call torch."""
    here = GpuWithoutMemory(**asdict(gpu()))
    monkeypatch.setattr("workbench.device.current", lambda: here)
    installed(
        monkeypatch,
        "liger_kernel.ops",
        LigerSoftmaxFunction=Softmax,
        LigerLayerNormFunction=LayerNorm,
        LigerRMSNormFunction=RMSNorm,
    )

    def rms_norm(
        x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor, eps: float = 1e-5
    ) -> torch.Tensor:
        return functional.rms_norm(x, normalized_shape, weight, eps)

    def sum_dim(
        inp: torch.Tensor,
        dim: list[int],
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        assert isinstance(dim, list)
        return inp.sum(dim, keepdim, dtype=dtype)

    installed(
        monkeypatch,
        "flag_gems",
        softmax=lambda self, dim, half_to_float=False: self.softmax(dim),
        softmax_backward=torch._softmax_backward_data,
        layer_norm=torch.native_layer_norm,
        layer_norm_backward=torch.ops.aten.native_layer_norm_backward,
        rms_norm=rms_norm,
        sum_dim=sum_dim,
        amax=torch.amax,
        argmax=torch.argmax,
        mm=torch.mm,
    )


@pytest.mark.parametrize(
    ("name", "op"), [(name, op) for name in PACKAGES for op in baseline.get(name).operators]
)
def test_optional_libraries_are_called_with_arguments_that_give_torchs_results(
    name: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins compute by torch. There are two calls: a benchmark passes the same gradient to every one."""
    with_libraries(monkeypatch)
    is_product = op == "matmul"
    case = {"m": 6, "n": 5, "k": 9, "layout": "nn"} if is_product else {"rows": 6, "cols": 9, "dim": -1}
    inputs, options = OPERATORS[op].inputs("fp32", case), OPERATORS[op].options(case)
    wanted = baseline.get("torch").build(op, *inputs, **options)()
    call = baseline.get(name).build(op, *inputs, **options)
    for _ in range(2):
        torch.testing.assert_close(call(), wanted)


@pytest.mark.parametrize("op", ["sum", "amax", "argmax", "softmax"])
def test_flag_gems_reduces_along_the_first_dimension(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch)
    x = torch.randn(6, 9)
    of_torch: Callable[..., torch.Tensor] = getattr(torch, op)
    assert torch.equal(baseline.get("FlagGems").build(op, x, dim=0)(), of_torch(x, dim=0))


@pytest.mark.parametrize(
    ("name", "op", "options", "said"),
    [
        ("Liger", "softmax", {"dim": 0}, "dim: got 0. Liger has softmax along the last dimension only"),
        ("Liger", "softmax_backward", {"dim": 0}, "dim: got 0"),
        ("FlagGems", "sum", {"dim": (0, 1)}, r"dim: got \(0, 1\). FlagGems is compared along one dimension"),
        ("FlagGems", "amax", {}, "dim: got None"),
        ("Liger", "rms_norm", {"normalized_shape": [6, 9]}, r"got \[6, 9\]. Liger .* give \[9\]"),
        ("FlagGems", "layer_norm", {}, "normalized_shape: got None"),
    ],
)
def test_a_library_refuses_dimensions_along_which_it_is_not_compared(
    name: str, op: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libraries(monkeypatch)
    x, weight = torch.ones(6, 9), torch.ones(9)
    inputs = {"rms_norm": (x, weight), "layer_norm": (x, weight, weight), "softmax_backward": (x, x)}
    with pytest.raises(InvalidArgumentError, match=said):
        baseline.get(name).build(op, *inputs.get(op, (x,)), **options)


def test_a_library_has_its_own_operators_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch)
    with pytest.raises(UnknownNameError, match="operator of Liger: 'matmul'"):
        baseline.get("Liger").build("matmul", torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(UnknownNameError, match="operator of FlagGems: 'rms_norm_backward'"):
        baseline.get("FlagGems").build("rms_norm_backward", torch.ones(2, 2))


def test_the_torch_baseline_calls_torchs_operators() -> None:
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


def test_cublas_refuses_fp8_and_cublaslt_is_named_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.device.current", gpu)
    fp8 = torch.zeros(16, 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(TensorMismatchError, match="cannot multiply fp8"):
        baseline.get("cuBLAS").build("matmul", fp8, fp8.t())
    assert baseline.product_libraries("fp8_e4m3") == ("cuBLASLt",)
    assert baseline.product_libraries("fp16") == ("cuBLAS", "cuBLASLt")
    assert baseline.product_libraries("fp16", "hip") == ("rocBLAS", "hipBLASLt")
    assert (baseline.product_layout("fp8_e4m3"), baseline.product_layout("fp16")) == ("nt", "nn")


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


@pytest.mark.parametrize(
    ("op", "inputs", "said"),
    [
        ("matmul", (), "inputs: got 0 tensors. Give 2, as the operator matmul takes"),
        ("add", (torch.ones(1),), "inputs: got 1 tensors. Give 2, as the operator add takes"),
        ("sum", (torch.ones(1), torch.ones(1)), "inputs: got 2 tensors. Give 1, as the operator sum takes"),
    ],
)
def test_a_wrong_number_of_inputs_is_named(op: str, inputs: tuple[torch.Tensor, ...], said: str) -> None:
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


def test_int8_is_multiplied_as_int8_not_as_fp8() -> None:
    a = torch.ones(2, 2, dtype=torch.int8)
    assert torch.equal(baseline.get("torch").build("matmul", a, a)(), a @ a)


@pytest.mark.parametrize("name", ["x", "float16", "int8", None, 3, ["fp16"], ""])
def test_an_unknown_dtype_is_named(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="dtype"), baseline.precision(name):
        pass
    with pytest.raises(UnknownNameError, match="dtype"):
        baseline.product_libraries(name)
    with pytest.raises(UnknownNameError, match="dtype"):
        baseline.product_layout(name)


@pytest.mark.parametrize("name", [None, 3, ["torch"], {}])
def test_a_name_of_a_wrong_type_is_refused(name: Any) -> None:
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


def test_kernels_of_refuses_a_tensor() -> None:
    with pytest.raises(ArgumentTypeError, match="subject: got a Tensor"):
        baseline.kernels_of(torch.ones(3))  # type: ignore[arg-type] # a result instead of the launch


def test_no_kernels_are_named_where_none_run_on_a_gpu() -> None:
    assert baseline.kernels_of(lambda: torch.ones(3) + 1) == ()
