"""Row operators on a GPU: right at any size and division of the rows, with the same bits in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.gpu.test_ops_gpu import bits, numbers
from workbench import ops
from workbench.errors import WorkbenchError
from workbench.kernels.rows import cross_entropy, normalization, softmax

pytestmark = pytest.mark.gpu

TORCHS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "logsumexp": torch.logsumexp,
    "cross_entropy": functional.cross_entropy,
    "layer_norm": functional.layer_norm,
    "rms_norm": functional.rms_norm,
}
ALONG_A_DIMENSION = ["softmax", "log_softmax", "logsumexp"]
LOGARITHMS = ["log_softmax", "logsumexp", "cross_entropy"]

# Compiling a kernel takes up to a second, so the tests share this shape. No tile divides its rows.
RAGGED = (1023, 515)

# Each way to share the work on 132 compute units: shape, dimension and layout that lead to it.
WAYS: dict[str, tuple[tuple[int, ...], int, str]] = {
    "rows in one tile": (RAGGED, 1, "dense"),
    "persistent": ((200001, 33), 1, "dense"),
    "several tiles a row": ((530, 20001), 1, "dense"),
    "rows split": ((8, 300001), 1, "dense"),
    "rows are neighbors, split": ((5001, 701), 0, "dense"),
    "the middle one": ((200, 2560, 3), 1, "dense"),
    "tiles that fit": ((1024, 4096), 1, "dense"),
    "sliced": (RAGGED, 1, "sliced"),
    "transposed": (RAGGED, 1, "transposed"),
    "stride 0": (RAGGED, 1, "expanded"),
    "a vocabulary": ((65, 50257), 1, "dense"),
}


def laid(shape: tuple[int, ...], layout: str) -> torch.Tensor:
    """Return normal numbers of deviation 3, so that a softmax has peaks."""
    x = numbers(shape, torch.float32) * 3
    if layout == "sliced":
        return torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
    if layout == "transposed":
        return x.t().contiguous().t()
    return x[:1].expand(shape) if layout == "expanded" else x


def given(name: str, x: torch.Tensor) -> list[torch.Tensor]:
    """Return `x` and the operator's other tensors: weight and bias, or the target classes."""
    if name == "cross_entropy":
        generator = torch.Generator("cuda").manual_seed(2)
        return [x, torch.randint(0, x.shape[1], x.shape[:1], generator=generator, device="cuda")]
    count = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    return [x, *(1 + numbers(x.shape[-1:], torch.float32, seed).to(x.dtype) for seed in range(count))]


def called(
    function: Callable[..., torch.Tensor], name: str, tensors: Sequence[torch.Tensor], dim: int
) -> torch.Tensor:
    x, *others = tensors
    if name in ALONG_A_DIMENSION:
        return function(x, dim)
    return function(x, *others) if name == "cross_entropy" else function(x, x.shape[-1:], *others)


def result_and_gradients(
    function: Callable[..., torch.Tensor],
    name: str,
    tensors: Sequence[torch.Tensor],
    dim: int,
    rounded_to: torch.dtype,
) -> list[torch.Tensor]:
    """Return the result and all gradients, for a random output gradient rounded to that dtype."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    result = called(function, name, leaves, dim)
    direction = numbers(tuple(result.shape), rounded_to, 7).to(result.dtype)
    followed = [leaf for leaf in leaves if leaf.requires_grad]
    return [result.detach(), *torch.autograd.grad(result, followed, direction)]


def in_float64(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.double() if t.is_floating_point() else t for t in tensors]


def assert_as_accurate_as_torch(
    ours: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, least: float = 0.0
) -> None:
    """Check that the error is at most twice torch's plus one rounding of the largest value, or of `least`."""
    assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
    off, theirs = ((t.double() - exact).abs().max().item() for t in (ours, torchs))
    rounding = max(exact.abs().max().item(), least) * torch.finfo(ours.dtype).eps
    assert off <= 2 * theirs + rounding, f"{off} off, torch {theirs}, one rounding {rounding}"


def assert_operator_as_accurate_as_torch(name: str, x: torch.Tensor, dim: int) -> None:
    tensors = given(name, x)
    ours, torchs, exact = (
        result_and_gradients(function, name, each, dim, x.dtype)
        for function, each in (
            (getattr(ops, name), tensors),
            (TORCHS[name], tensors),
            (TORCHS[name], in_float64(tensors)),
        )
    )
    # The rounding of a sum is an absolute error of its logarithm, however small that is.
    assert_as_accurate_as_torch(ours[0], torchs[0], exact[0], least=float(name in LOGARITHMS))
    for gradients in zip(ours[1:], torchs[1:], exact[1:], strict=True):
        assert_as_accurate_as_torch(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_results_and_gradients_are_as_accurate_as_torch(name: str, dtype: torch.dtype) -> None:
    assert_operator_as_accurate_as_torch(name, laid(RAGGED, "dense").to(dtype), 1)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *(
            ("softmax", way)
            for way in WAYS
            if way not in ("rows in one tile", "tiles that fit", "a vocabulary", "rows split", "transposed")
        ),
        *(("layer_norm", way) for way in ("persistent", "several tiles a row", "transposed")),
        *((name, "rows split") for name in TORCHS),
        ("cross_entropy", "a vocabulary"),
    ],
)
def test_every_division_of_rows_is_as_accurate_as_torch(name: str, way: str) -> None:
    """fp32 shows one missing element in a row of 300001."""
    shape, dim, layout = WAYS[way]
    assert_operator_as_accurate_as_torch(name, laid(shape, layout), dim)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_fp16_rows_in_one_tile_are_as_accurate_as_torch(name: str) -> None:
    shape, dim, layout = WAYS["tiles that fit"]
    assert_operator_as_accurate_as_torch(name, laid(shape, layout).half(), dim)


@pytest.mark.parametrize("way", ["rows in one tile", "rows split"])
@pytest.mark.parametrize("name", TORCHS)
def test_every_run_gives_the_same_bits(name: str, way: str) -> None:
    """Five runs, the last one in memory that is filled with NaN."""
    shape, dim, layout = WAYS[way]
    tensors = given(name, laid(shape, layout))
    first = result_and_gradients(getattr(ops, name), name, tensors, dim, torch.float32)
    for number in range(4):
        torch.use_deterministic_algorithms(number == 3)  # then torch.empty fills what it gives
        try:
            again = result_and_gradients(getattr(ops, name), name, tensors, dim, torch.float32)
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(first, again, strict=True))


def with_specials(x: torch.Tensor) -> torch.Tensor:
    """Make rows end in NaN, infinities or both, or have nothing else; exp overflows in one more row."""
    for row, specials in enumerate(
        (
            [math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [math.inf, math.nan],
            [-math.inf] * x.shape[1], [math.inf] * x.shape[1], [math.nan] * x.shape[1], [3e38, 1e30, -3e38],
        )
    ):  # fmt: skip
        x[row, x.shape[1] - len(specials) :] = torch.tensor(specials, device=x.device)
    return x


@pytest.mark.parametrize("name", TORCHS)
def test_nan_and_infinities_give_torchs_results(name: str) -> None:
    x = with_specials(laid(RAGGED, "dense"))
    if name.endswith("norm"):
        x[8] = 0  # the variance of numbers whose squares overflow depends on the algorithm
    tensors = given(name, x)
    how: dict[str, Any] = {"reduction": "none"} if name == "cross_entropy" else {}
    ours = called(lambda *args: getattr(ops, name)(*args, **how), name, tensors, 1)
    if name == "rms_norm":  # for a row with an infinity, torch 2.11 gives NaN or 0, by the row's divisibility
        squares = tensors[0].square().mean(1, keepdim=True) + torch.finfo(torch.float32).eps
        torchs = tensors[0] * squares.rsqrt() * tensors[1]
    else:
        torchs = called(lambda *args: TORCHS[name](*args, **how), name, tensors, 1)
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_gradient_of_an_infinite_logsumexp_agrees_with_torch() -> None:
    """It is exp(x - result), as in torch 2.13. The values are written out: other versions may differ."""
    inf, nan = math.inf, math.nan
    rows = [[inf, 1, 2], [-inf] * 3, [inf, -inf, 1], [nan, 1, 2], [-inf, 0, 0]]
    x = torch.tensor(rows, device="cuda", requires_grad=True)
    (got,) = torch.autograd.grad(ops.logsumexp(x, 1).sum(), x)
    want = torch.tensor([[nan, 0, 0], [nan] * 3, [nan, 0, 0], [nan] * 3, [0, 0.5, 0.5]])
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_autocast_computes_in_float32(name: str, dtype: torch.dtype) -> None:
    """The reference widens by hand, since torch's versions differ in what autocast widens."""
    tensors = given(name, laid(RAGGED, "dense").to(dtype))
    widened = [t.float() if t.is_floating_point() else t for t in tensors]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours = result_and_gradients(getattr(ops, name), name, tensors, 1, dtype)
    torchs, exact = (
        result_and_gradients(TORCHS[name], name, each, 1, dtype) for each in (widened, in_float64(widened))
    )
    assert_as_accurate_as_torch(ours[0], torchs[0], exact[0], least=float(name in LOGARITHMS))
    followed = [t for t in tensors if t.is_floating_point()]
    for got, wide, right, leaf in zip(ours[1:], torchs[1:], exact[1:], followed, strict=True):
        assert_as_accurate_as_torch(got, wide.to(leaf.dtype), right)


@pytest.mark.parametrize("name", TORCHS)
def test_autocast_does_not_change_float64(name: str) -> None:
    tensors = given(name, laid(RAGGED, "dense").double())
    plain = result_and_gradients(getattr(ops, name), name, tensors, 1, torch.float64)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours = result_and_gradients(getattr(ops, name), name, tensors, 1, torch.float64)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("name", ALONG_A_DIMENSION)
def test_autocast_does_not_convert_out(name: str) -> None:
    x = laid(RAGGED, "dense").half()
    out = torch.empty(0, dtype=torch.float16, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert getattr(ops, name)(x, 1, out=out) is out
    torch.testing.assert_close(out, TORCHS[name](x, 1))


def test_a_target_that_is_not_a_class_has_a_loss_of_nan() -> None:
    """Other losses are right. torch aborts the process; checking targets would wait for the GPU."""
    x, target = given("cross_entropy", laid(RAGGED, "dense"))
    expected = functional.cross_entropy(x, target, reduction="none")
    target[7], target[9], expected[7], expected[9] = 515, -1, math.nan, math.nan
    loss = ops.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert ops.cross_entropy(x, target).isnan()


def launched(name: str, x: torch.Tensor, output: torch.Tensor) -> None:
    others = given(name, x)[1:]
    if name == "cross_entropy":
        cross_entropy.launch(x, others[0], dim=1, results=[output]).run()
    elif name == "logsumexp":
        softmax.launch_log_sum_exp(x, (1,), output).run()
    elif name in ALONG_A_DIMENSION:
        softmax.launch(name, x, dim=1, output=output).run()
    else:
        normalization.launch(name, x, 1, *others, epsilon=1e-5, output=output).run()


@pytest.mark.parametrize("name", TORCHS)
def test_every_element_is_written_and_none_beside(name: str) -> None:
    x = laid(RAGGED, "dense")
    how: dict[str, Any] = {"reduction": "none"} if name == "cross_entropy" else {}
    how |= {"eps": 1e-5} if name == "rms_norm" else {}
    expected = called(lambda *args: TORCHS[name](*args, **how), name, given(name, x), 1)
    memory = torch.full((expected.numel() + 2 * 4096,), math.nan, device="cuda")
    inside = memory[4096 : 4096 + expected.numel()].view(expected.shape)
    launched(name, x, inside)
    torch.testing.assert_close(inside, expected, rtol=1e-4, atol=1e-4)
    inside.fill_(math.nan)
    assert memory.isnan().all()


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("cross_entropy", 1), ("layer_norm", 1), ("layer_norm", 2), ("rms_norm", 1),
        ("cross_entropy", 0), ("layer_norm", 0),
    ],
)  # fmt: skip
def test_tensors_on_different_devices_are_refused(name: str, which: int) -> None:
    """torch raises a RuntimeError, and our error is one."""
    tensors = given(name, laid(RAGGED, "dense"))
    tensors[which] = tensors[which].cpu()
    with pytest.raises(RuntimeError):
        called(TORCHS[name], name, tensors, 1)
    with pytest.raises(RuntimeError) as refused:
        called(getattr(ops, name), name, tensors, 1)
    assert isinstance(refused.value, WorkbenchError)


@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "layer_norm"])
def test_rows_beyond_two_to_the_31_elements_are_as_accurate_as_torch(name: str, many: int) -> None:
    """Results and gradients of the first and last rows are compared; the last begin beyond 2^31."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (many // 1024 + 5, 1024)
    x = torch.randn(shape, generator=generator, dtype=torch.float16, device="cuda").requires_grad_()
    others = given(name, x.detach())[1:]
    how: dict[str, Any] = {"reduction": "none"} if name == "cross_entropy" else {}

    def ends(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.detach()[:3], tensor.detach()[-3:]])

    def outcome(function: Any, x: torch.Tensor, others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        result = called(lambda *args: function(*args, **how), name, [x, *others], 1)
        direction = torch.ones_like(result) if name == "cross_entropy" else x.detach()
        return [ends(result), ends(*torch.autograd.grad(result, x, direction))]

    ours = outcome(getattr(ops, name), x, others)
    few = [ends(other) if other.dim() and len(other) == len(x) else other for other in others]
    torchs = outcome(TORCHS[name], ends(x).requires_grad_(), few)
    exact = outcome(TORCHS[name], ends(x).double().requires_grad_(), in_float64(few))
    for parts in zip(ours, torchs, exact, strict=True):
        assert_as_accurate_as_torch(*parts, least=float(name in LOGARITHMS))


def test_softmax_of_rows_of_two_to_the_30_elements_agrees_with_float64(many: int) -> None:
    """The last of three rows begins at element 2^31. A few elements weigh as much as all others together."""
    cols = many // 2
    period = -20 + (torch.arange(2**20 - 3, device="cuda") % 251).half() / 512
    x = period.repeat(3 * cols // len(period) + 1)[: 3 * cols].view(3, cols)
    x[0, cols // 2], x[1, 5], x[2, -1], x[2, -900] = 1, 2, 3, 2
    pieces = [torch.logsumexp(piece.double(), 1) for piece in x.split(2**26, 1)]
    log_total = torch.stack(pieces).logsumexp(0)[:, None]
    parts = [slice(0, 1000), slice(cols // 2 - 500, cols // 2 + 500), slice(cols - 1000, cols)]
    exact = [x[:, part].double() - log_total for part in parts]
    result = ops.log_softmax(x, 1)
    for part, log_weights in zip(parts, exact, strict=True):
        torch.testing.assert_close(result[:, part].double(), log_weights, rtol=2**-10, atol=1e-5)
    del result
    result = ops.softmax(x, 1)
    for part, log_weights in zip(parts, exact, strict=True):
        torch.testing.assert_close(result[:, part].double(), log_weights.exp(), rtol=2**-10, atol=2**-24)
    torch.testing.assert_close(ops.logsumexp(x, 1).double(), log_total[:, 0], rtol=2**-10, atol=1e-5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_images_have_torchs_strides(name: str, memory_format: torch.memory_format) -> None:
    x = torch.randn(3, 5, 6, 7, device="cuda").contiguous(memory_format=memory_format)
    ours, torchs = (getattr(module, name)(x, (7,)) for module in (ops, functional))
    assert ours.stride() == torchs.stride()
    torch.testing.assert_close(ours, torchs)
