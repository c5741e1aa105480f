"""Every public function takes the numbers that torch takes, and refuses in words what torch refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.everything import some_of
from workbench import ops
from workbench.errors import ArgumentTypeError, WorkbenchError
from workbench.kernels import epilogues

IMAGE, MATRIX = torch.arange(32.0).view(1, 2, 4, 4) / 7, torch.arange(16.0).view(4, 4) / 5
TAPS, SEQUENCE = torch.arange(36.0).view(2, 2, 3, 3) / 9, torch.arange(8.0).view(1, 2, 4)
HEADS, BATCH = MATRIX[None, None], MATRIX[None]

# name -> torch's function and the other arguments of both, for each function with a numeric argument.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "add": (torch.add, {"input": MATRIX, "other": MATRIX, "alpha": 1}),
    "addmm": (torch.addmm, {"input": MATRIX, "mat1": MATRIX, "mat2": MATRIX}),
    "all": (torch.all, {"input": MATRIX, "dim": 0}),
    "amax": (torch.amax, {"input": MATRIX, "dim": 0}),
    "amin": (torch.amin, {"input": MATRIX, "dim": 0}),
    "any": (torch.any, {"input": MATRIX, "dim": 0}),
    "argmax": (torch.argmax, {"input": MATRIX, "dim": 0}),
    "argmin": (torch.argmin, {"input": MATRIX, "dim": 0}),
    "avg_pool2d": (F.avg_pool2d, {"input": IMAGE, "kernel_size": 2}),
    "baddbmm": (torch.baddbmm, {"input": BATCH, "batch1": BATCH, "batch2": BATCH}),
    "batch_norm": (
        F.batch_norm, {"input": IMAGE, "running_mean": torch.zeros(2), "running_var": torch.ones(2)},
    ),
    "conv1d": (F.conv1d, {"input": SEQUENCE, "weight": TAPS[..., 0]}),
    "conv2d": (F.conv2d, {"input": IMAGE, "weight": TAPS}),
    "conv3d": (F.conv3d, {"input": IMAGE[..., None], "weight": TAPS[..., None]}),
    "conv_transpose2d": (F.conv_transpose2d, {"input": IMAGE, "weight": TAPS}),
    "cross_entropy": (F.cross_entropy, {"input": MATRIX, "target": torch.tensor([0, 1, 2, 3])}),
    "flip": (torch.flip, {"input": MATRIX, "dims": (0,)}),
    "group_norm": (F.group_norm, {"input": IMAGE, "num_groups": 1}),
    "layer_norm": (F.layer_norm, {"input": MATRIX, "normalized_shape": (4,)}),
    "log_softmax": (torch.log_softmax, {"input": MATRIX, "dim": 0}),
    "logsumexp": (torch.logsumexp, {"input": MATRIX, "dim": 0}),
    "max": (torch.max, {"input": MATRIX, "dim": 0}),
    "max_pool2d": (F.max_pool2d, {"input": IMAGE, "kernel_size": 2}),
    "mean": (torch.mean, {"input": MATRIX, "dim": 0}),
    "min": (torch.min, {"input": MATRIX, "dim": 0}),
    "norm": (torch.norm, {"input": MATRIX, "p": 2, "dim": 0}),
    "pad": (F.pad, {"input": MATRIX, "pad": (1, 1)}),
    "permute_copy": (torch.permute_copy, {"input": MATRIX, "dims": (1, 0)}),
    "pixel_shuffle": (F.pixel_shuffle, {"input": IMAGE.view(1, 4, 4, 2), "upscale_factor": 2}),
    "pixel_unshuffle": (F.pixel_unshuffle, {"input": IMAGE, "downscale_factor": 2}),
    "prod": (torch.prod, {"input": MATRIX, "dim": 0}),
    "rms_norm": (F.rms_norm, {"input": MATRIX, "normalized_shape": (4,)}),
    "roll": (torch.roll, {"input": MATRIX, "shifts": 1, "dims": 0}),
    "scaled_dot_product_attention": (
        F.scaled_dot_product_attention, {"query": HEADS, "key": HEADS, "value": HEADS},
    ),
    "softmax": (torch.softmax, {"input": MATRIX, "dim": 0}),
    "sum": (torch.sum, {"input": MATRIX, "dim": 0}),
    "transpose_copy": (torch.transpose_copy, {"input": MATRIX, "dim0": 0, "dim1": 1}),
    "unfold": (F.unfold, {"input": IMAGE, "kernel_size": 2}),
}  # fmt: skip

# Names of arguments that are numbers or switches.
NUMBERS = {
    "alpha", "beta", "ceil_mode", "count_include_pad", "dilation", "dim", "dim0", "dim1", "dims",
    "divisor_override", "downscale_factor", "dropout_p", "eps", "groups", "ignore_index", "is_causal",
    "keepdim", "kernel_size", "label_smoothing", "momentum", "normalized_shape", "num_groups",
    "output_padding", "p", "pad", "padding", "return_indices", "scale", "shifts", "stride", "training",
    "upscale_factor", "value",
}  # fmt: skip
OTHERS = {
    "a", "approximate", "attn_mask", "bias", "batch1", "batch2", "dtype", "enable_gqa", "epilogue", "input",
    "key", "mat1", "mat2", "memory_format", "mode", "other", "out", "query", "reduce", "reduction",
    "running_mean", "running_var", "size_average", "target", "weight",
}  # fmt: skip


class Index:
    """An object that Python takes as an index, and that is otherwise not a number."""

    def __index__(self) -> int:
        return 1


def values() -> Iterator[Any]:
    """Yield numbers, and objects that resemble numbers."""
    for n in (1, 2, 0):
        yield from (n, np.int64(n), np.int32(n), float(n), np.float64(n), np.float32(n))
        yield from (torch.tensor(n), torch.tensor(float(n)), np.array(n), torch.tensor([n]), np.array([n]))
        yield from ((n,), [n], torch.Size([n]), (np.int64(n),), (torch.tensor(n),), (float(n),), (n, 1))
        yield from ([n, 1], (np.int64(n), np.int32(1)), [torch.tensor(n), 1], np.array([n, 1]))
    yield from (np.int64(4), (np.int64(4),), [np.int64(4)], torch.Size([4]), (torch.tensor(4),), np.uint8(1))
    yield from (-1, np.int64(-1), torch.tensor(-1), 0.5, np.float16(0.5), Fraction(1, 2))
    yield from (True, False, np.bool_(True), np.bool_(False), torch.tensor(True), (True, True), (True,))
    yield from (None, "1", (), 1j, 2**70, {1: 1}, {1}, range(1, 3), ((1,),), Index(), (Index(), Index()))
    yield torch.tensor(1.0, requires_grad=True)


def outcome(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return the function's result, or the exception that it raised."""
    # Vectors that training changes are copied; other tensors are not changed.
    mine = {k: v.clone() if k.startswith("running") else v for k, v in given.items()}
    try:
        return function(**mine)
    except Exception as error:
        return error


def are_equal(x: Any, y: Any) -> bool:
    """Return whether results, or pairs of them, are equal up to rounding."""
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (x, y)), strict=True)
    return all(
        a.shape == b.shape and a.dtype == b.dtype
        and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
        for a, b in pairs
    )  # fmt: skip


def told(name: str, argument: str, value: object, got: object, want: object) -> str:
    """Return the call and both outcomes, for the message of a failure."""
    return f"{name}({argument}={value!r}): {got!r}, torch {want!r}"


# torch refuses a `None` that means the same as no argument.
SAME_AS_LEFT_OUT = {("prod", "dim"), ("max", "dim"), ("min", "dim")}
# Weights are dropped at random.
IS_DRAWN = {("scaled_dot_product_attention", "dropout_p", 0.5)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_of(list(CALLS), 20))
def test_numbers_give_torchs_results_or_are_refused_as_in_torch(name: str) -> None:
    torchs, base = CALLS[name]
    mine = getattr(ops, name)
    for argument in inspect.signature(mine).parameters:
        if argument not in NUMBERS:
            assert argument in OTHERS, f"{name}: is {argument} a number?"
            continue
        for value in values():
            if isinstance(value, float | np.floating) and (name, argument, float(value)) in IS_DRAWN:
                continue
            want, got = (outcome(function, base | {argument: value}) for function in (torchs, mine))
            if isinstance(want, Exception):
                if value is None and (name, argument) in SAME_AS_LEFT_OUT:
                    continue
                assert isinstance(got, WorkbenchError), told(name, argument, value, got, want)
            else:
                assert not isinstance(got, Exception), told(name, argument, value, got, want)
                assert are_equal(got, want), told(name, argument, value, got, want)


def test_every_public_function_is_tested() -> None:
    """Functions without a counterpart in torch read numbers by the code of the others."""
    own = {name for name in ops.__all__ if name.startswith(("fused_", "matmul_"))}
    without = {
        "attention", "bmm", "clone", "geglu", "grouped_mm", "linear", "matmul", "mm", "swiglu",
    }  # fmt: skip
    assert set(ops.__all__) == set(CALLS) | own | without
    for name in without - {"attention"}:
        assert not NUMBERS & set(inspect.signature(getattr(ops, name)).parameters)


@pytest.mark.parametrize("number", [np.float64(1e-3), np.float32(1e-3), torch.tensor(1e-3), np.int64(1), 1])
def test_the_epsilon_of_a_fused_norm_may_be_any_number(number: Any) -> None:
    for name in ("matmul_layer_norm", "matmul_rms_norm"):
        function = getattr(ops, name)
        want = function(MATRIX, MATRIX, eps=float(number))
        torch.testing.assert_close(function(MATRIX, MATRIX, eps=number), want)
        with pytest.raises(ArgumentTypeError, match="eps"):
            function(MATRIX, MATRIX, eps="1")


def test_a_fused_convolution_takes_numpys_numbers() -> None:
    epilogue = epilogues.relu()
    want = ops.fused_conv2d(IMAGE, TAPS, stride=2, padding=1, dilation=1, epilogue=epilogue)
    options: dict[str, Any] = {"stride": np.int64(2), "padding": (torch.tensor(1), np.int32(1))}
    options |= {"dilation": np.int8(1), "groups": np.int64(1)}
    got = ops.fused_conv2d(IMAGE, TAPS, epilogue=epilogue, **options)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("other", [1.0, True, np.float64(1)])
def test_kept_calls_do_not_let_floats_and_bools_pass_for_integers(other: Any) -> None:
    """1.0 and True equal the 1 of an earlier call."""
    for name in ("avg_pool2d", "max_pool2d", "conv2d", "fused_conv2d"):
        options = {"epilogue": epilogues.relu()} if name == "fused_conv2d" else {}
        tensors = (IMAGE, TAPS) if "conv" in name else (IMAGE, 1)
        function = getattr(ops, name)
        function(*tensors, stride=1, **options)
        for value in (other, (other, 1), [1, other]):
            with pytest.raises(ArgumentTypeError, match="stride"):
                function(*tensors, stride=value, **options)


def test_max_and_min_refuse_two_tensors_with_a_dimension_or_keepdim() -> None:
    for name in ("max", "min"):
        with pytest.raises(ArgumentTypeError, match="other"):
            getattr(ops, name)(MATRIX, 0, other=MATRIX)
        with pytest.raises(ArgumentTypeError, match="other"):
            getattr(ops, name)(MATRIX, keepdim=True, other=MATRIX)
