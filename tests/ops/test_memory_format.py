"""The memory format of results and gradients is torch's, for every format of the operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from workbench import ops
from workbench.kernels import epilogues
from workbench.kernels.layout import suggested_format

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

SHAPES = [
    (2, 4, 3, 5),
    (1, 4, 3, 5),  # a single image, whose stride says nothing
    (2, 1, 3, 4),  # a single channel
    (2, 4, 1, 1),  # a single pixel
    (1, 1, 1, 1),
    (2, 4, 3, 1),
    (2, 4, 1, 3),
]


def formats_of(shape: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return tensors of a shape in the formats that occur in networks, by name."""
    n, c, *sizes = shape
    rank = len(shape)
    last = LAST[rank]

    def wide(*lengths: int) -> torch.Tensor:
        return torch.randn(lengths).contiguous(memory_format=last)

    inner = (slice(None), slice(None), *(slice(0, size) for size in sizes))
    return {
        "contiguous": torch.randn(*shape),
        "channels_last": wide(*shape),
        "chunk of channels": wide(n, 2 * c, *sizes).chunk(2, 1)[0],
        "last chunk of channels": wide(n, 2 * c, *sizes).chunk(2, 1)[1],
        "every second channel": wide(n, 2 * c, *sizes)[:, ::2],
        "crop": wide(n, c, *(2 * size for size in sizes))[inner],
        "every second image": wide(2 * n, c, *sizes)[::2],
        "permuted to channels_last": torch.randn(n, *sizes, c).movedim(-1, 1),
        "images innermost": torch.randn(c, *sizes, n).movedim(-1, 0),
        "width before height": torch.randn(n, *sizes[::-1], c).movedim(-1, 1).transpose(2, rank - 1),
        "transposed": torch.randn(n, c, *sizes[::-1]).transpose(2, rank - 1)
        if rank == 4
        else torch.randn(n, c, *sizes),
        "slice of channels": torch.randn(n, 2 * c, *sizes)[:, :c],
        "expanded images": wide(1, c, *sizes).expand(*shape),
        "expanded channels": torch.randn(n, 1, *sizes).expand(*shape),
        "expanded": torch.randn(()).expand(*shape),
    }


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the same strides, for which no kernel runs."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def telling(strides: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the strides of dimensions of more than one element; other strides have no meaning."""
    return [stride for stride, size in zip(strides, shape, strict=True) if size > 1]


def outcomes(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], *, is_expanded: bool = False
) -> list[torch.Tensor]:
    """Return the result and the gradients, for an incoming gradient that is contiguous or expanded."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    result = function(*leaves)
    one = torch.ones(() if is_expanded else result.shape, dtype=result.dtype, device=result.device)
    return [result.detach(), *torch.autograd.grad(result, leaves, one.expand(result.shape))]


def assert_strides_as_torchs(
    mine: Callable[..., torch.Tensor],
    torchs: Callable[..., torch.Tensor],
    *tensors: torch.Tensor,
    gradients: int = 99,
) -> None:
    """Check the strides of the result and of so many gradients."""
    for is_expanded in (False, True):
        want = outcomes(torchs, tensors, is_expanded=is_expanded)
        got = outcomes(mine, [on_meta(t) for t in tensors], is_expanded=is_expanded)
        for ours, reference in list(zip(got, want, strict=True))[: 1 + gradients]:
            assert ours.shape == reference.shape
            assert telling(ours.stride(), ours.shape) == telling(reference.stride(), reference.shape)


@pytest.mark.parametrize(
    "shape", [*SHAPES, (2, 4, 2, 3, 2), (1, 4, 2, 3, 2), (2, 1, 2, 2, 2), (2, 4, 1, 1, 1)]
)
def test_suggested_memory_formats_agree_with_torch(shape: tuple[int, ...]) -> None:
    """Padding a tensor with its ends asks C++ for the suggested format, so the result shows it."""
    around = (1, *(0,) * (2 * len(shape) - 5))
    cases = formats_of(shape)
    for name, x in cases.items():
        want = F.pad(x, around, "replicate")
        got = torch.empty(want.shape, memory_format=suggested_format(x))
        assert got.stride() == want.stride(), name
    overlapping = torch.randn(64).as_strided((2, 3, 4, 5), (20, 1, 5, 1))
    assert suggested_format(overlapping) is torch.contiguous_format


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((6, 7, 16, 1), (112, 1, 7, 672)),  # the stride of a single column fits no format
        ((6, 7, 1, 4), (28, 1, 999, 7)),
        ((1, 7, 3, 4), (5, 1, 28, 7)),  # the stride of a single image
        ((6, 1, 4, 4), (16, 1, 4, 1)),  # one channel: contiguous and channels_last
        ((2, 3, 4, 5), (999, 1, 100, 8)),  # gaps, as of a crop
        ((3, 2, 2, 2, 1), (8, 1, 4, 2, 500)),
    ],
)
def test_batch_norm_ignores_strides_of_dimensions_of_one_element(
    shape: tuple[int, ...], strides: tuple[int, ...], training: bool
) -> None:
    """torch's CPU kernels do the same where the input is dense."""
    x = torch.randn(4000).as_strided(shape, strides)
    mean, variance = torch.zeros(shape[1]), torch.ones(shape[1])
    outcomes_of = [
        outcomes(lambda x, f=f: f(x, mean.clone(), variance.clone(), training=training), [x])
        for f in (ops.batch_norm, F.batch_norm)
    ]
    for ours, reference in zip(*outcomes_of, strict=True):
        assert telling(ours.stride(), shape) == telling(reference.stride(), shape)


@pytest.mark.daily(cases=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_convolutions_of_images_have_torchs_format(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Input or weight suggests channels_last; gradients follow it for every incoming gradient."""
    channels = shape[1]
    weights = {name: formats_of((6, channels, 3, 3))[name] for name in ("contiguous", "channels_last")}
    weights |= {"chunk of channels": formats_of((6, channels, 3, 3))["chunk of channels"]}
    for (name, x), (of_weight, w) in itertools.product(formats_of(shape).items(), weights.items()):
        if dtype != torch.float32 and name not in ("contiguous", "channels_last", "chunk of channels"):
            continue
        x, w = x.to(dtype), w.to(dtype)
        for mine, torchs in ((ops.conv2d, F.conv2d), (ops.conv_transpose2d, F.conv_transpose2d)):
            taps = w if torchs is F.conv2d else w.transpose(0, 1)
            # oneDNN chooses the format of a transposed weight's gradient by itself.
            count = 2 if torchs is F.conv2d else 1
            try:
                assert_strides_as_torchs(
                    lambda x, w, mine=mine: mine(x, w, padding=1),
                    lambda x, w, torchs=torchs: torchs(x, w, padding=1),
                    x, taps, gradients=count,
                )  # fmt: skip
            except AssertionError as error:
                error.add_note(f"{torchs.__name__}, input {name}, weight {of_weight}")
                raise


def test_grouped_and_fused_convolutions_of_a_chunk_have_torchs_strides() -> None:
    """The input is half of the channels of a channels_last tensor; kernels run."""
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).chunk(2, 1)[1]
    for groups in (1, 2, 4):
        w, bias = torch.randn(8, 4 // groups, 3, 3), torch.randn(8)
        want = F.conv2d(x, w, bias, padding=1, groups=groups)
        got = ops.conv2d(x, w, bias, padding=1, groups=groups)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        fused = ops.fused_conv2d(x, w, bias, padding=1, groups=groups, epilogue=epilogues.relu())
        assert fused.stride() == want.stride()
        torch.testing.assert_close(fused, want.relu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_convolutions_of_volumes_have_the_suggested_format(dtype: torch.dtype) -> None:
    """Formats are those of images, but fp64 is contiguous; torch's differ for small volumes."""
    shapes = ((2, 4, 2, 3, 2), (6, 4, 1, 1, 1))
    for (name, x), of_weight in itertools.product(formats_of(shapes[0]).items(), LAST_OR_NOT):
        w = torch.randn(shapes[1]).contiguous(memory_format=of_weight)
        x, w = on_meta(x.to(dtype)), on_meta(w.to(dtype))
        is_last = torch.channels_last_3d in map(suggested_format, (x, w)) and dtype != torch.float64
        want = torch.channels_last_3d if is_last else torch.contiguous_format
        for each in outcomes(ops.conv3d, (x, w)):
            assert each.is_contiguous(memory_format=want), name


LAST_OR_NOT = [torch.contiguous_format, torch.channels_last_3d]


@pytest.mark.parametrize("shape", [(2, 4, 5), (1, 4, 5), (2, 1, 5)])
def test_convolutions_of_sequences_have_torchs_format(shape: tuple[int, ...]) -> None:
    """torch convolves contiguous images of height 1, so that only the weight can suggest channels_last."""
    n, channels, length = shape
    inputs = (
        torch.randn(shape), torch.randn(n, length, channels).transpose(1, 2),
        torch.randn(n, length, 2 * channels)[..., :channels].transpose(1, 2),
        torch.randn(n, 2 * channels, length)[:, :channels], torch.randn(()).expand(shape),
    )  # fmt: skip
    for x, w in itertools.product(
        inputs, (torch.randn(6, channels, 3), torch.randn(6, 3, channels).transpose(1, 2))
    ):
        assert_strides_as_torchs(ops.conv1d, F.conv1d, x, w)
    x, w = inputs[1], torch.randn(6, 3, channels).transpose(1, 2)
    torch.testing.assert_close(ops.conv1d(x, w), F.conv1d(x, w))


PERMUTED = ("images innermost", "width before height", "transposed")


def same(name: str, *arguments: Any, **options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an operator of ops and of torch, with the same arguments behind the first one."""
    theirs = getattr(F, name, None) or getattr(torch, name)
    mine = getattr(ops, name)
    return (lambda x: mine(x, *arguments, **options)), (lambda x: theirs(x, *arguments, **options))


OPERATORS = {
    "avg_pool2d": same("avg_pool2d", 2, 1, 1),
    "max_pool2d": same("max_pool2d", 2, 1, 1),
    "pixel_unshuffle": same("pixel_unshuffle", 1),
    "pixel_shuffle": same("pixel_shuffle", 1),
    "group_norm": same("group_norm", 1),
    "batch_norm": same("batch_norm", None, None, training=True),
    "layer_norm of a width": (
        lambda x: ops.layer_norm(x, x.shape[-1:]),
        lambda x: F.layer_norm(x, x.shape[-1:]),
    ),
    "roll": same("roll", 1, 1),
    "roll of nothing": same("roll", 0, 1),
    "roll of two": same("roll", (1, 1), (2, 3)),
    "pad": same("pad", (1, 1)),
    "reflect": same("pad", (1, 1, 1, 1), "reflect"),
    "replicate": same("pad", (1, 1, 1, 1), "replicate"),
    "circular": same("pad", (1, 1, 1, 1), "circular"),
    "softmax": same("softmax", 1),
    "log_softmax": same("log_softmax", -1),
    "logsumexp": same("logsumexp", 1),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_operators_have_torchs_format(name: str, shape: tuple[int, ...]) -> None:
    mine, torchs = OPERATORS[name]
    if name == "reflect" and 1 in shape[2:]:
        return  # a single element has no neighbor to reflect
    for of_input, x in formats_of(shape).items():
        if name == "logsumexp" and of_input in PERMUTED:
            continue  # torch's gradient mixes the order of the incoming gradient and of the input
        try:
            assert_strides_as_torchs(mine, torchs, x)
        except AssertionError as error:
            error.add_note(of_input)
            raise


@pytest.mark.parametrize("name", ["avg_pool2d", "max_pool2d", "pixel_unshuffle", "group_norm", "reflect"])
def test_values_of_chunks_crops_and_expanded_images_agree_with_torch(name: str) -> None:
    torch.manual_seed(0)
    mine, torchs = OPERATORS[name]
    for of_input in ("chunk of channels", "crop", "width before height", "expanded images"):
        x = formats_of((2, 4, 3, 5))[of_input]
        for ours, reference in zip(outcomes(mine, [x]), outcomes(torchs, [x]), strict=True):
            assert ours.stride() == reference.stride()
            torch.testing.assert_close(ours, reference)


def test_the_indices_of_a_pool_have_torchs_strides() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)[:, :4]
    got, want = (f(x, 2, return_indices=True) for f in (ops.max_pool2d, F.max_pool2d))
    for ours, reference in zip(got, want, strict=True):
        assert ours.stride() == reference.stride()
        assert torch.equal(ours, reference)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
def test_gradients_of_pixel_shuffle_have_the_incoming_format() -> None:
    """The gradient is the opposite operator; it can be differentiated again, and inside a vmap."""
    x = torch.randn(2, 8, 3, 2, dtype=torch.float64).to(memory_format=torch.channels_last)
    for name, factor in (("pixel_shuffle", 2), ("pixel_unshuffle", 1)):
        mine, torchs = getattr(ops, name), getattr(F, name)
        leaf = x.clone().requires_grad_()
        for format in (torch.contiguous_format, torch.channels_last):
            results = [f(leaf, factor) for f in (mine, torchs)]
            grad = torch.randn(results[0].shape, dtype=x.dtype).contiguous(memory_format=format)
            got, want = (torch.autograd.grad(result, leaf, grad)[0] for result in results)
            assert got.stride() == want.stride()
            assert torch.equal(got, want)
        assert torch.autograd.gradgradcheck(lambda t, f=mine, r=factor: f(t, r), leaf, fast_mode=True)
        batched = torch.func.vmap(lambda t, f=mine, r=factor: f(t, r))(x)
        assert torch.equal(batched, torchs(x, factor))
        tangent = torch.func.jvp(lambda t, f=mine, r=factor: f(t, r), (x,), (2 * x,))[1]
        assert torch.equal(tangent, torchs(2 * x, factor))
