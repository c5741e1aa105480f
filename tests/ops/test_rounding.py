"""Results of 16 bits are rounded once: sums, scales and biases before that are wider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from workbench import ops

Function = Callable[..., torch.Tensor]

HALVES = [torch.float16, torch.bfloat16]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def outcomes(function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the result and all gradients, for an incoming gradient with many digits."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    result = function(*leaves)
    grad = torch.linspace(0.3, 1.7, result.numel(), dtype=torch.float64).bfloat16().view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad.to(result.dtype))]


def assert_rounded_once(mine: Function, torchs: Function, *tensors: torch.Tensor) -> None:
    """Check that errors of result and gradients are at most twice torch's plus one rounding step."""
    exact = outcomes(torchs, [t.double() for t in tensors])
    theirs, ours = outcomes(torchs, tensors), outcomes(mine, tensors)
    for want, reference, got in zip(exact, theirs, ours, strict=True):
        assert got.dtype == reference.dtype
        step = torch.finfo(got.dtype).eps * want.abs().max()
        assert (got - want).abs().max() <= 2 * (reference - want).abs().max() + step


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": 2, "output_padding": 1}, {"stride": 3}], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_adds_its_bias_before_it_rounds(
    dtype: torch.dtype, options: dict[str, Any], groups: int
) -> None:
    """The bias cancels most of the product, so that a rounding of the product would show.

    A stride of 3 with taps of 2 leaves pixels that no tap reaches, whose value is the bias.
    """
    torch.manual_seed(0)
    options = options | {"groups": groups}
    x, w = ((10 * numbers(*shape)).to(dtype) for shape in ((1, 8, 2, 2), (8, 6 // groups, 2, 2)))
    product = F.conv_transpose2d(x.double(), w.double(), **options)
    bias = (-product[0, :, 0, 0]).to(dtype)
    exact = F.conv_transpose2d(x.double(), w.double(), bias.double(), **options)[0, :, 0, 0]
    got = ops.conv_transpose2d(x, w, bias, **options)
    step = torch.finfo(dtype).eps
    # The error of fp32, and one rounding step of the result.
    bound = exact.abs() * step + product.abs().max() * 8 * torch.finfo(torch.float32).eps
    assert ((got[0, :, 0, 0] - exact).abs() <= bound).all()
    assert_rounded_once(
        lambda *given: ops.conv_transpose2d(*given, **options),
        lambda *given: F.conv_transpose2d(*given, **options),
        x, w, bias,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_bias_reaches_every_pixel_of_a_transposed_convolution_of_zeros(dtype: torch.dtype) -> None:
    """A batch without images gives an empty result."""
    bias = torch.tensor([0.5, -2.0], dtype=dtype)
    for shape in ((0, 3, 4, 4), (2, 3, 1, 4)):
        x, w = torch.zeros(shape, dtype=dtype), torch.ones(3, 2, 2, 2, dtype=dtype)
        got, want = ops.conv_transpose2d(x, w, bias), F.conv_transpose2d(x, w, bias)
        assert torch.equal(got, want)
        single = ops.conv_transpose2d(x[0], w, bias) if shape[0] else got
        assert torch.equal(single, want[0] if shape[0] else want)


def products() -> dict[str, tuple[Function, Function, list[torch.Tensor]]]:
    """Return the operators that add to products or scale them, with torch's and the tensors for both."""
    a, b, c = numbers(5, 7), numbers(7, 6), numbers(5, 6)
    return {
        "addmm": (
            lambda *given: ops.addmm(*given, alpha=0.3, beta=-1.7),
            lambda *given: torch.addmm(*given, alpha=0.3, beta=-1.7),
            [c, a, b],
        ),
        "addmm of a row": (ops.addmm, torch.addmm, [c[0], a, b]),
        "baddbmm": (
            lambda *given: ops.baddbmm(*given, alpha=1.3, beta=0.1),
            lambda *given: torch.baddbmm(*given, alpha=1.3, beta=0.1),
            [c[None], a[None], b[None]],
        ),
        "linear": (ops.linear, F.linear, [a, numbers(6, 7), numbers(6)]),
        "add": (
            lambda x, y: ops.add(x, y, alpha=0.3),
            lambda x, y: torch.add(x, y, alpha=0.3),
            [c, numbers(5, 6)],
        ),
    }


def windows() -> dict[str, tuple[Function, Function, list[torch.Tensor]]]:
    """Return convolutions, pools and padding, with torch's and the tensors for both."""
    x, w = numbers(2, 4, 6, 5), numbers(6, 2, 3, 3)
    found: dict[str, tuple[Function, Function, list[torch.Tensor]]] = {
        "conv2d": (
            lambda x, w, b: ops.conv2d(x, w, b, padding=1, groups=2),
            lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2),
            [x, w, numbers(6)],
        ),
        "conv1d": (ops.conv1d, F.conv1d, [numbers(2, 4, 9), numbers(3, 4, 3), numbers(3)]),
        "avg_pool2d": (
            lambda x: ops.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            [x],
        ),
        "divisor": (
            lambda x: ops.avg_pool2d(x, 3, 1, divisor_override=7),
            lambda x: F.avg_pool2d(x, 3, 1, divisor_override=7),
            [x],
        ),
        "max_pool2d": (lambda x: ops.max_pool2d(x, 3, 1), lambda x: F.max_pool2d(x, 3, 1), [x]),
        "unfold": (lambda x: ops.unfold(x, 3), lambda x: F.unfold(x, 3), [x]),
    }
    for mode in ("reflect", "replicate", "circular"):
        found[mode] = (
            lambda x, mode=mode: ops.pad(x, (3, 2, 4, 5), mode),
            lambda x, mode=mode: F.pad(x, (3, 2, 4, 5), mode),
            [x],
        )
    return found


def rows() -> dict[str, tuple[Function, Function, list[torch.Tensor]]]:
    """Return norms, losses and reductions, with torch's and the tensors for both."""
    x, weight, bias = 3 + numbers(6, 9), numbers(9), numbers(9)
    image, vector = 3 + numbers(2, 9, 3, 2), numbers(9)
    mean, variance = numbers(9), numbers(9).abs() + 0.5
    classes = torch.tensor([0, 3, 8, 1, 1, 2])
    shares = numbers(6, 9).softmax(1)
    return {
        "layer_norm": (
            lambda *given: ops.layer_norm(given[0], (9,), *given[1:]),
            lambda *given: F.layer_norm(given[0], (9,), *given[1:]),
            [x, weight, bias],
        ),
        "rms_norm": (
            lambda x, w: ops.rms_norm(x, (9,), w, 1e-6),
            lambda x, w: F.rms_norm(x, (9,), w, 1e-6),
            [x, weight],
        ),
        "group_norm": (
            lambda x, *given: ops.group_norm(x, 3, *given),
            lambda x, *given: F.group_norm(x, 3, *given),
            [image, vector, bias],
        ),
        "batch_norm": (
            lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True),
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            [image, vector, bias],
        ),
        "batch_norm of known": (
            lambda x, w, b: ops.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), w, b),
            lambda x, w, b: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), w, b),
            [image, vector, bias],
        ),
        "cross_entropy": (
            lambda x: ops.cross_entropy(x, classes, label_smoothing=0.1),
            lambda x: F.cross_entropy(x, classes, label_smoothing=0.1),
            [x],
        ),
        "cross_entropy of shares": (
            lambda x: ops.cross_entropy(x, shares.to(x.dtype), label_smoothing=0.1),
            lambda x: F.cross_entropy(x, shares.to(x.dtype), label_smoothing=0.1),
            [x],
        ),
        "mean": (lambda x: ops.mean(x, 1), lambda x: torch.mean(x, 1), [x]),
        "prod": (lambda x: ops.prod(x, 1), lambda x: torch.prod(x, 1), [x / 4]),
        "prod with a zero": (lambda x: ops.prod(x, 1), lambda x: torch.prod(x, 1), [x / 4 * (x > x.min())]),
        "norm": (lambda x: ops.norm(x, 2, 1), lambda x: torch.norm(x, 2, 1), [x]),
        "norm of order 3": (lambda x: ops.norm(x, 3, 1), lambda x: torch.norm(x, 3, 1), [x]),
        "norm of order 1.5": (lambda x: ops.norm(x, 1.5, 1), lambda x: torch.norm(x, 1.5, 1), [x]),
        "norm of order 0.5": (lambda x: ops.norm(x, 0.5, 1), lambda x: torch.norm(x, 0.5, 1), [x]),
        "logsumexp": (lambda x: ops.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1), [x]),
        "softmax": (lambda x: ops.softmax(x, 1), lambda x: torch.softmax(x, 1), [x]),
        "amax": (lambda x: ops.amax(x, 1), lambda x: torch.amax(x, 1), [(2 * x).round()]),
    }


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [products, windows, rows], ids=lambda kind: str(kind.__name__))
def test_the_error_is_at_most_twice_that_of_torch_and_a_step(
    kind: Callable[[], dict[str, tuple[Function, Function, list[torch.Tensor]]]], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    for name, (mine, torchs, tensors) in kind().items():
        try:
            assert_rounded_once(mine, torchs, *(t.to(dtype) for t in tensors))
        except AssertionError as error:
            error.add_note(name)
            raise
