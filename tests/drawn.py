"""Random problems for every family of operators: ragged sizes, any layout, forward and gradients.

Results are compared with torch and float64 by the accuracy rule. A family and a seed draw a problem again
(:func:`check`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench import ops
from workbench.kernels import epilogues

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Sizes: one, two, a few, and sizes that no tile divides.
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 29, 33, 40, 63, 64, 65, 100, 127, 129, 200, 239, 333)

# Allowed error, in errors of torch's own kernel and in roundings of the largest value. A draw may have few
# elements, so that torch's largest error is below what its rounding allows.
ERRORS_OF_TORCH, ROUNDINGS = 4.0, 4.0


class Problem(NamedTuple):
    """A call of an operator, and torch's call of the same meaning.

    Attributes:
        words: the operator and its arguments, for messages.
        ours, torchs: functions of the tensors.
        tensors: the operands of both functions; floating-point ones have gradients.
        has_gradient: whether there are gradients to compare.
        terms: the number of products in a sum where gradients are differences of two fp32 sums; else 0.
    """

    words: str
    ours: Callable[..., torch.Tensor]
    torchs: Callable[..., torch.Tensor]
    tensors: tuple[torch.Tensor, ...]
    has_gradient: bool = True
    terms: int = 0


class Draw:
    """Random choices and tensors of one seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self.dtype = self.random.choice(DTYPES)

    def one(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return self.random.choice(choices)

    def size(self, most: int = 333) -> int:
        """Return a length up to `most`."""
        return self.random.choice([size for size in SIZES if size <= most])

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return normal numbers, contiguous."""
        made = torch.randn(shape, generator=self.generator)
        return made.to(self.dtype if dtype is None else dtype).to(self.device)

    def tensor(self, *shape: int) -> torch.Tensor:
        """Return normal numbers in a random layout: permuted, channels_last, sliced, at an odd address."""
        layouts = ["contiguous", "permuted", "pitch", "offset", "step"]
        if len(shape) in (4, 5):
            layouts += ["last", "last", "chunk"]
        layout = self.random.choice(layouts)
        if layout == "permuted":
            order = self.random.sample(range(len(shape)), len(shape))
            back = [order.index(d) for d in range(len(shape))]
            return self.normal(*(shape[d] for d in order)).permute(back)
        if layout == "pitch":  # rows begin at no multiple of an access
            return self.normal(*shape[:-1], shape[-1] + self.one(1, 3, 4))[..., : shape[-1]]
        if layout == "offset":
            more = self.one(1, 2, 4)
            return self.normal(more + torch.Size(shape).numel())[more:].view(shape)
        if layout == "step":
            return self.normal(*shape[:-1], 2 * shape[-1])[..., ::2]
        format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape), torch.contiguous_format)
        if layout == "last":
            return self.normal(*shape).to(memory_format=format)
        if layout == "chunk":
            first = self.one(0, 1, shape[1])
            wide = self.normal(shape[0], 2 * shape[1], *shape[2:]).to(memory_format=format)
            return wide[:, first : first + shape[1]]
        return self.normal(*shape)


def _words(name: str, tensors: Sequence[torch.Tensor], **others: Any) -> str:
    described = [f"{t.dtype} {tuple(t.shape)} strides {t.stride()} at {t.data_ptr() % 16}" for t in tensors]
    return f"{name}({'; '.join(described)}; {others})"


def convolution(draw: Draw) -> Problem:
    """Draw conv1d, conv2d, conv3d or conv_transpose2d: groups, strides, padding and dilation."""
    rank = draw.one(1, 2, 2, 2, 2, 3)
    is_transposed = rank == 2 and draw.one(True, False, False)
    groups = draw.one(1, 1, 1, 2, 4)
    channels, features = (groups * draw.one(1, 2, 3, 4, 5, 8, 16, 20) for _ in range(2))
    sizes = [draw.random.randint(5, 2000 if rank == 1 else 66 if rank == 2 else 13) for _ in range(rank)]
    taps = [draw.random.randint(1, 4) for _ in range(rank)]
    stride, padding = draw.one(1, 1, 2, 3), draw.random.randint(0, 2)
    dilation = draw.one(1, 1, 2) if all((r - 1) * 2 < n for r, n in zip(taps, sizes, strict=True)) else 1
    x = draw.tensor(draw.random.randint(1, 7), channels, *sizes)
    bias = draw.normal(features)
    others: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if is_transposed:
        others["padding"] = min(padding, min((r - 1) * dilation // 2 for r in taps))
        weight = draw.tensor(channels, features // groups, *taps)
        name = "conv_transpose2d"
    else:
        weight = draw.tensor(features, channels // groups, *taps)
        name = f"conv{rank}d"
    tensors = (x, weight, bias) if draw.one(True, False) else (x, weight)
    ours, torchs = getattr(ops, name), getattr(F, name)
    return Problem(
        _words(name, tensors, **others),
        lambda *t: ours(*t, **others),
        lambda *t: torchs(*t, **others),
        tensors,
    )


def product(draw: Draw) -> Problem:
    """Draw a matmul of matrices or batches, linear, addmm, or fused_matmul with bias and ReLU."""
    m, n, k = draw.size(), draw.size(), draw.one(draw.size(), draw.random.randint(1, 5000))
    kind = draw.one("matmul", "batched", "linear", "addmm", "gelu")
    tensors: tuple[torch.Tensor, ...]
    if kind == "linear":
        tensors = (draw.tensor(draw.size(8), m, k), draw.tensor(n, k), draw.normal(n))
        return Problem(_words(kind, tensors), ops.linear, F.linear, tensors)
    if kind == "addmm":
        tensors = (draw.tensor(m, n), draw.tensor(m, k), draw.tensor(k, n))
        return Problem(_words(kind, tensors), ops.addmm, torch.addmm, tensors)
    if kind == "gelu":
        tensors = (draw.tensor(m, k), draw.tensor(k, n), draw.normal(n))
        return Problem(
            _words("fused_matmul, bias and relu", tensors),
            lambda a, b, c: ops.fused_matmul(a, b, epilogue=epilogues.bias(c) | epilogues.relu()),
            lambda a, b, c: torch.relu(a @ b + c),
            tensors, has_gradient=False,
        )  # fmt: skip
    batch = (draw.size(8),) if kind == "batched" else ()
    tensors = (draw.tensor(*batch, m, k), draw.tensor(*batch, k, n))
    return Problem(_words(kind, tensors), ops.matmul, torch.matmul, tensors)


def rows(draw: Draw) -> Problem:
    """Draw a softmax, a reduction or a norm along a random dimension; layer and RMS norm along the last."""
    shape = [draw.size(65) for _ in range(draw.one(1, 2, 3))]
    dim = draw.random.randrange(len(shape))
    shape[dim] = draw.one(draw.size(), draw.random.randint(1, 20000))
    x = draw.tensor(*shape)
    name = draw.one(
        "softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "norm", "layer_norm", "rms_norm"
    )
    if name in ("layer_norm", "rms_norm"):
        width = (shape[-1],)
        vectors = (draw.normal(*width), draw.normal(*width))[: 2 if name == "layer_norm" else 1]
        tensors = (x, *vectors)
        ours, theirs = getattr(ops, name), getattr(F, name)
        return Problem(
            _words(name, tensors),
            lambda x, *v: ours(x, width, *v),
            lambda x, *v: theirs(x, width, *v),
            tensors,
        )
    ours, theirs = getattr(ops, name), getattr(torch, name)
    if name == "norm":
        order = draw.one(1, 2, 3)
        return Problem(
            _words(name, (x,), p=order, dim=dim),
            lambda x: ours(x, order, dim), lambda x: theirs(x, order, dim), (x,),
        )  # fmt: skip
    return Problem(_words(name, (x,), dim=dim), lambda x: ours(x, dim), lambda x: theirs(x, dim), (x,))


def channels(draw: Draw) -> Problem:
    """Draw a group norm, batch norm or pool of images."""
    groups = draw.one(1, 2, 4)
    count = groups * draw.one(1, 2, 3, 8, 10)
    x = draw.tensor(draw.random.randint(1, 7), count, draw.random.randint(2, 40), draw.random.randint(2, 40))
    name = draw.one("group_norm", "batch_norm", "avg_pool2d", "max_pool2d")
    if name.endswith("pool2d"):
        window = draw.one(2, 3) if min(x.shape[2:]) > 2 else 2
        others: dict[str, Any] = {"stride": draw.one(1, 2), "padding": draw.one(0, 1)}
        ours, theirs = getattr(ops, name), getattr(F, name)
        return Problem(
            _words(name, (x,), window=window, **others),
            lambda x: ours(x, window, **others), lambda x: theirs(x, window, **others), (x,),
        )  # fmt: skip
    tensors = (x, draw.normal(count), draw.normal(count))
    if name == "group_norm":
        return Problem(
            _words(name, tensors, groups=groups),
            lambda x, w, b: ops.group_norm(x, groups, w, b), lambda x, w, b: F.group_norm(x, groups, w, b),
            tensors,
        )  # fmt: skip
    return Problem(
        _words(name, tensors),
        lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        tensors,
    )


def attention(draw: Draw) -> Problem:
    """Draw scaled dot product attention: few or many queries, shared keys, masks, any layout of operands."""
    batch, heads, of_key = draw.random.randint(1, 3), draw.one(1, 2, 3, 4), 1
    queries, keys = draw.one(1, draw.size(), draw.random.randint(1, 700)), draw.one(draw.size(), 700, 2049)
    size, of_value = draw.one(
        (40, 40), (64, 64), (128, 128), (59, 59), (32, 48), (96, 96), (8, 16), (160, 160), (159, 31)
    )
    is_shared = draw.one(True, False, False)
    of_key = 1 if is_shared else heads
    tensors = (
        draw.tensor(batch, heads, queries, size), draw.tensor(batch, of_key, keys, size),
        draw.tensor(batch, of_key, keys, of_value),
    )  # fmt: skip
    kind = draw.one("none", "none", "causal", "boolean", "number")
    others: dict[str, Any] = {"is_causal": kind == "causal", "enable_gqa": is_shared}
    beside: tuple[torch.Tensor, ...] = ()
    if kind in ("boolean", "number"):
        mask = draw.tensor(draw.one(1, batch), draw.one(1, heads), queries, keys)
        beside = (mask > -1,) if kind == "boolean" else (mask,)

    def torchs(*operands: torch.Tensor) -> torch.Tensor:
        """Compute products and a softmax: torch's fused kernels refuse rows at odd pitches, or crash."""
        with sdpa_kernel(SDPBackend.MATH):
            return partial(F.scaled_dot_product_attention, **others)(*operands)

    given = (*tensors, *beside)
    words = _words("scaled_dot_product_attention", given, **others)
    # The gradient of a score is its weight's minus sum(gradient * output): sums over a value's elements.
    return Problem(words, partial(ops.scaled_dot_product_attention, **others), torchs, given, terms=of_value)


def moved(draw: Draw) -> Problem:
    """Draw an operator that only moves elements."""
    x = draw.tensor(draw.random.randint(1, 4), 4 * draw.one(1, 2, 3), draw.size(40), draw.size(40))
    name, how = draw.one(
        ("pixel_shuffle", (2,)), ("clone", ()), ("flip", ((1, 3),)), ("roll", ((1, 3), (1, 2))),
    )  # fmt: skip
    theirs = F.pixel_shuffle if name == "pixel_shuffle" else getattr(torch, name)
    ours = getattr(ops, name)
    return Problem(_words(name, (x,), how=how), lambda x: ours(x, *how), lambda x: theirs(x, *how), (x,))


def grouped(draw: Draw) -> Problem:
    """Draw a grouped product whose groups are empty, short and long."""
    groups, n, k = draw.random.randint(1, 6), 8 * draw.random.randint(1, 20), 8 * draw.random.randint(1, 30)
    lengths = [draw.one(0, 1, draw.size(), 8 * draw.size(29)) for _ in range(groups)]
    dtype = draw.one(torch.float16, torch.bfloat16)
    a, b = draw.normal(max(sum(lengths), 1), k, dtype=dtype), draw.normal(groups, k, n, dtype=dtype)
    lengths[-1] += a.shape[0] - sum(lengths)
    offsets = torch.tensor(lengths).cumsum(0).to(torch.int32).to(a.device)

    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ y for x, y in zip(a.split(lengths), b, strict=True)])

    return Problem(
        _words("grouped_mm", (a, b), lengths=lengths),
        lambda a, b: ops.grouped_mm(a, b, offs=offsets),
        apart,
        (a, b),
    )


def fused(draw: Draw) -> Problem:
    """Draw a product fused with a row operator, another product or a gate; or cross entropy."""
    m, n, k = draw.size(), draw.size(), draw.one(draw.size(), draw.random.randint(1, 2000))
    kind = draw.one("softmax", "layer_norm", "sum", "logsumexp", "pair", "swiglu", "cross_entropy")
    tensors: tuple[torch.Tensor, ...]
    if kind == "cross_entropy":
        classes = draw.one(n, draw.random.randint(2, 40000))
        target = torch.randint(classes, (m,), generator=draw.generator).to(draw.device)
        tensors = (draw.tensor(m, classes), target)
        return Problem(_words(kind, tensors), ops.cross_entropy, F.cross_entropy, tensors)
    # Products have unit variance, which the next step neither saturates nor loses.
    a, b = draw.tensor(m, k), draw.tensor(k, n) * k**-0.5
    if kind == "pair":
        tensors = (a, b, draw.tensor(n, draw.size(200)) * n**-0.5)
        return Problem(_words(kind, tensors), ops.matmul_matmul, lambda a, b, c: a @ b @ c, tensors)
    if kind == "swiglu":
        tensors = (a, b, draw.tensor(k, n) * k**-0.5)
        return Problem(_words(kind, tensors), ops.swiglu, lambda a, b, c: F.silu(a @ b) * (a @ c), tensors)
    ours = getattr(ops, f"matmul_{kind}")
    theirs: dict[str, Callable[..., torch.Tensor]] = {
        "softmax": lambda a, b: torch.softmax(a @ b, -1),
        "layer_norm": lambda a, b: F.layer_norm(a @ b, (n,)),
        "sum": lambda a, b: (a @ b).sum(-1),
        "logsumexp": lambda a, b: torch.logsumexp(a @ b, -1),
    }
    return Problem(_words(f"matmul_{kind}", (a, b)), ours, theirs[kind], (a, b))


FAMILIES: dict[str, Callable[[Draw], Problem]] = {
    "convolution": convolution, "product": product, "rows": rows, "channels": channels,
    "attention": attention, "moved": moved, "grouped": grouped, "fused": fused,
}  # fmt: skip


def check(family: str, seed: int, device: str) -> None:
    """Draw a problem of a family, and check the result and every gradient."""
    draw = Draw(seed, device)
    problem = FAMILIES[family](draw)
    words = f"{family}, seed {seed}: {problem.words}"
    own, theirs = (
        [t.detach().requires_grad_(t.is_floating_point() and problem.has_gradient) for t in problem.tensors]
        for _ in range(2)
    )
    # On the CPU, since torch's gradient of avg_pool2d by CUDA is wrong where the input is channels_last, in
    # float64 too; and contiguous, since its convolutions in float64 refuse some permuted weights (2.11).
    exact = [
        t.detach().cpu().double().contiguous().requires_grad_(problem.has_gradient)
        if t.is_floating_point()
        else t.cpu()
        for t in problem.tensors
    ]
    try:
        result = problem.ours(*own)
    except Exception as error:
        raise AssertionError(f"{words}: {type(error).__name__}: {error}") from error
    torchs, right = problem.torchs(*theirs), problem.torchs(*exact)
    assert result.shape == right.shape, words
    close(result, torchs, right, right.abs().max().item() if right.numel() else 0.0, words)
    if not problem.has_gradient:
        return
    gradient = torch.randn(right.shape, generator=draw.generator)
    of_each = []
    for made, given in ((result, own), (torchs, theirs), (right, exact)):
        followed = [t for t in given if t.requires_grad]
        of_each.append(torch.autograd.grad(made, followed, gradient.to(made)))
    # A result that cancels, such as the gradient of a softmax over one element, is as exact as its terms.
    largest = max((t.abs().max().item() for t in (right, *of_each[-1]) if t.numel()), default=0.0)
    for place, (ours, torchs, right) in enumerate(zip(*of_each, strict=True)):
        close(ours, torchs, right, largest, f"{words}, gradient {place}", problem.terms)


def close(
    ours: torch.Tensor, torchs: torch.Tensor, right: torch.Tensor, largest: float, words: str, terms: int = 0
) -> None:
    """Check that the largest error of `ours` is at most :func:`allowed_error`.

    Args:
        ours: a result or gradient of the operator.
        torchs: that of torch in the same dtype.
        right: that of torch in float64.
        largest: the largest value, whose rounding is allowed.
        words: the problem, for the message.
        terms: as in :class:`Problem`.
    """
    if not right.numel():
        return
    assert not ours.isnan().any(), f"{words}: NaN"
    error, of_torch = ((t.double().cpu() - right).abs().max().item() for t in (ours, torchs))
    eps, order = torch.finfo(ours.dtype).eps, torch.finfo(torch.float32).eps
    allowed = allowed_error(of_torch, eps, largest, order, terms, largest)
    assert error <= allowed, f"{words}: error {error:.3g}, torch's {of_torch:.3g}, allowed {allowed:.3g}"


def allowed_error(
    of_torch: float, eps: float, largest: float, order: float, terms: float, summed: float
) -> float:
    """Return 4 of_torch + 4 (eps largest + sqrt(terms) order summed), the error that a draw allows.

    Args:
        of_torch: the largest error of torch's own kernel.
        eps: the rounding step of the result's dtype.
        largest: the largest value of the result.
        order: the rounding step of the dtype in which terms are added, in any order.
        terms: the number of terms of a sum, whose roundings add up to the square root of their number.
        summed: the size of the sums.
    """
    return ERRORS_OF_TORCH * of_torch + ROUNDINGS * (eps * largest + math.sqrt(terms) * order * summed)
