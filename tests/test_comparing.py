"""Calls to compare an operator with: of torch, of libraries, of Triton's tutorials, and of `ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.bench.example import PACKAGES, installed, on_a_gpu
from workbench import comparing, measured, ops
from workbench.bench import baseline
from workbench.errors import (
    ArgumentTypeError,
    DeviceError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
)
from workbench.operators.arguments import Arguments, given
from workbench.operators.drawing import draw_arguments
from workbench.operators.judging import judge
from workbench.operators.libraries import flag_gems, liger
from workbench.operators.registry import named, specs
from workbench.operators.spec import OperatorSpec

SPECS = {**specs(), **measured.SPECS}
# Each optional library with the operators that it has.
OF_LIBRARIES = [(name, op) for name in PACKAGES for op, spec in SPECS.items() if name in spec.baselines]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the libraries that a test pretended to have."""
    yield
    flag_gems.cache_clear()
    liger.cache_clear()


def small(spec: OperatorSpec) -> Arguments:
    """Return the arguments of the operator's small case."""
    return draw_arguments(spec, spec.defaults(is_gpu=False), "fp32", "cpu")


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
    on_a_gpu(monkeypatch)
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


@pytest.mark.parametrize(("name", "op"), OF_LIBRARIES)
def test_optional_libraries_are_called_with_arguments_that_give_torchs_results(
    name: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins compute by torch. There are two calls: a benchmark passes the same gradient to every one."""
    with_libraries(monkeypatch)
    spec = SPECS[op]
    arguments = small(spec)
    wanted = comparing.call_of("torch", spec, arguments)()
    call = comparing.call_of(name, spec, arguments)
    for _ in range(2):
        found = call()
        alone = isinstance(wanted, tuple) and len(wanted) == 1 and isinstance(found, torch.Tensor)
        torch.testing.assert_close((found,) if alone else found, wanted)


def test_the_optional_libraries_have_their_operators() -> None:
    assert {name: {op for each, op in OF_LIBRARIES if each == name} for name in PACKAGES} == {
        "Liger": {
            "softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "rms_norm",
            "rms_norm_backward",
        },
        "FlagGems": {
            "amax", "argmax", "layer_norm", "layer_norm_backward", "matmul", "rms_norm", "softmax",
            "softmax_backward", "sum",
        },
    }  # fmt: skip
    assert comparing.optional_baselines_of("rms_norm_backward") == ("Liger",)
    assert set(comparing.optional_baselines_of("softmax")) == {"Liger", "FlagGems"}
    assert comparing.optional_baselines_of("add") == ()


def test_every_baseline_has_an_operator_and_every_operator_has_torch() -> None:
    having = {name: comparing.baselines_of(spec) for name, spec in SPECS.items()}
    assert set().union(*having.values()) == set(baseline.BASELINES)
    for name, names in having.items():
        assert names[:3] == ("torch", "torch.compile", "torch.compile max-autotune"), name
        assert len(names) == len(set(names)), name


@pytest.mark.parametrize("op", ["sum", "amax", "argmax", "softmax"])
def test_flag_gems_reduces_along_the_first_dimension(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch)
    x = torch.randn(6, 9)
    of_torch: Callable[..., torch.Tensor] = getattr(torch, op)
    assert torch.equal(comparing.call_of("FlagGems", named(op), given(x, 0))(), of_torch(x, dim=0))


X, WEIGHT = torch.ones(6, 9), torch.ones(9)


@pytest.mark.parametrize(
    ("name", "op", "arguments", "said"),
    [
        ("Liger", "softmax", given(X, 0), "dim: got 0. Liger has softmax along the last dimension only"),
        ("Liger", "softmax_backward", given(X, X, 0), "dim: got 0"),
        (
            "Liger", "rms_norm", given(X, (6, 9), torch.ones(6, 9), eps=1e-5),
            r"normalized_shape: got \[6, 9\]. Liger .* give \[9\]",
        ),
        (
            "FlagGems", "layer_norm", given(X, (6, 9), X, X, eps=1e-5),
            r"normalized_shape: got \[6, 9\]. FlagGems .* give \[9\]",
        ),
        ("FlagGems", "layer_norm_backward", given(X, X, (6, 9), X, X, eps=1e-5), r"got \[6, 9\]"),
    ],
)  # fmt: skip
def test_a_library_refuses_dimensions_along_which_it_is_not_compared(
    name: str, op: str, arguments: Arguments, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libraries(monkeypatch)
    with pytest.raises(InvalidArgumentError, match=said):
        comparing.call_of(name, named(op), arguments)()


def test_a_baseline_has_its_own_operators_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries(monkeypatch)
    product = given(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(UnknownNameError, match=r"baseline of matmul: 'Liger'.*FlagGems"):
        comparing.call_of("Liger", named("matmul"), product)
    with pytest.raises(UnknownNameError, match="baseline of rms_norm_backward: 'FlagGems'"):
        comparing.call_of("FlagGems", named("rms_norm_backward"), given(X, X, (9,), WEIGHT))
    with pytest.raises(UnknownNameError, match="baseline of sum: 'Triton'"):
        comparing.call_of("Triton", named("sum"), given(X, 0))
    with pytest.raises(UnknownNameError, match=r"baseline: 'cublas'.*Did you mean 'cuBLAS'"):
        comparing.call_of("cublas", named("matmul"), product)


@pytest.mark.parametrize(("name", "op"), [*OF_LIBRARIES, ("cuDNN", "conv2d_backward_data")])
def test_an_absent_library_says_so_before_it_is_imported(name: str, op: str) -> None:
    """Also for operators that need it once before they are called."""
    with pytest.raises(DeviceError, match=rf"{name} .* Available here: torch\."):
        comparing.call_of(name, SPECS[op], small(SPECS[op]))


def test_handwritten_kernels_take_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    x = torch.ones(8)
    assert torch.equal(comparing.call_of("Triton", named("add"), given(x, x))(), 2 * x)
    with pytest.raises(ArgumentTypeError, match=r"add: .*'alpha'. Give what Triton autotuned takes: x, y"):
        comparing.call_of("Triton autotuned", named("add"), given(x, x, alpha=2))


def test_the_torch_baseline_calls_torchs_operators() -> None:
    def computed(op: str, *args: Any, **keywords: Any) -> Any:
        return comparing.call_of("torch", named(op), given(*args, **keywords))()

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(computed("add", x, y, alpha=2), torch.add(x, y, alpha=2))
    assert torch.equal(computed("sum", x, -1), x.sum(-1))
    assert torch.equal(computed("clone", x), x)
    assert torch.equal(computed("matmul", x, y.t()), x @ y.t())
    a = torch.ones(2, 2, dtype=torch.int8)
    assert torch.equal(computed("matmul", a, a), torch.full((2, 2), 2, dtype=torch.int32))


@pytest.mark.parametrize("op", measured.SPECS)
def test_torch_computes_what_only_suites_measure(op: str) -> None:
    """The other operators are compared with torch in the tests of specs."""
    spec = SPECS[op]
    arguments = small(spec)
    for _ in range(2):
        found = comparing.call_of("torch", spec, arguments)()
        assert judge(spec, arguments, [found] if isinstance(found, torch.Tensor) else found) == ""


@pytest.mark.parametrize(
    ("op", "arguments", "said"),
    [
        (
            "matmul",
            given(),
            "matmul: missing a required argument: 'input'. Give what torch takes: input, other",
        ),
        ("add", given(torch.ones(1)), "add: missing a required argument: 'other'"),
        ("sum", given(torch.ones(1), 0, False, 3), "sum: too many positional arguments"),
        ("softmax_backward", given(X, X), "softmax_backward: missing a required argument: 'dim'"),
        (
            "add",
            given(torch.ones(1), torch.ones(1), alhpa=2),
            "add: got an unexpected keyword argument 'alhpa'",
        ),
    ],
)
def test_arguments_that_a_baseline_does_not_take_are_named(op: str, arguments: Arguments, said: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        comparing.call_of("torch", named(op), arguments)
    assert said in str(caught.value)


def test_arguments_are_of_this_device() -> None:
    here, elsewhere = torch.ones(2, 2), torch.ones(2, 2, device="meta")
    with pytest.raises(TensorMismatchError, match="tensors on cpu and meta"):
        comparing.call_of("torch", named("add"), given(here, elsewhere))
    with pytest.raises(TensorMismatchError, match="tensors on meta, while kernels run on Triton interpreter"):
        comparing.call_of("torch", named("clone"), given(elsewhere))
    fused = named("fused_matmul")
    arguments = small(fused)
    epilogue = arguments.keywords["epilogue"]
    moved = epilogue.with_tensors([tensor.to("meta") for tensor in epilogue.tensors])
    with pytest.raises(TensorMismatchError, match="tensors on cpu and meta"):
        comparing.call_of("torch", fused, given(*arguments.args, epilogue=moved))


def test_our_call_is_of_ops_or_of_the_specs_function() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert comparing.function_of(named("add")) is ops.add
    assert torch.equal(comparing.our_call_of(named("add"), given(x, y, alpha=2))(), ops.add(x, y, alpha=2))
    (found,) = comparing.our_call_of(named("softmax_backward"), given(y, x, -1))()
    torch.testing.assert_close(found, torch._softmax_backward_data(y, x.softmax(-1), -1, x.dtype))
    with pytest.raises(UnknownNameError, match="operator of ops: 'fused_matmul_without_products'"):
        comparing.function_of(SPECS["fused_matmul_without_products"])
    assert comparing.function_of(SPECS["varlen_attention"]) is SPECS["varlen_attention"].function
