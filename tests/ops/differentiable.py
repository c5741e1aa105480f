"""Every differentiable operator with small tensors, for tests of the properties that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from workbench import ops
from workbench.kernels import epilogues
from workbench.kernels.attention import Hook, Mask, Scoring, Starts
from workbench.kernels.tile import scores

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An operator and its tensors.

    Attributes:
        ours: a function of the tensors.
        theirs: the same function by torch.
        shapes: the shapes of the tensors, which are fp32.
        fixed: the number of tensors, the last ones, that have no gradient.
        recomputes: whether the backward pass reads tensors where torch keeps intermediate results.
        complex: whether the tensors are cfloat instead of fp32.
    """

    ours: Function
    theirs: Function
    shapes: Sequence[tuple[int, ...]]
    fixed: int = 0
    recomputes: bool = False
    complex: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, the same at each call; running variances are not negative."""
        generator = torch.Generator("cpu").manual_seed(1)
        dtype, place = torch.cfloat if self.complex else torch.float32, torch.get_default_device()
        made = [
            torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(place)
            for shape in self.shapes
        ]
        return [each.abs() if self.fixed and i == len(made) - 1 else each for i, each in enumerate(made)]

    @property
    def followed(self) -> int:
        """The number of tensors that have a gradient."""
        return len(self.shapes) - self.fixed


def offsets(*ends: int) -> torch.Tensor:
    """Return the ends of groups, or of sequences."""
    return torch.tensor(ends, dtype=torch.int32)


def hooked(bias: torch.Tensor) -> Scoring:
    """Return a scoring that adds a bias."""
    extra = (bias, tuple(bias.shape[-2:]), bias.expand(1, 2, 4, 4).stride())
    return Scoring(hooks=(Hook(scores.add_bias, extra, scores.pass_gradient),))


def of_two_documents(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention within documents of 3 rows and of 1."""
    documents = offsets(0, 0, 0, 1)
    mask = Mask(scores.same_document, (documents, 4), of_batch=True, of_head=False)
    return ops.attention(query, key, value, Scoring(mask=mask))


def within_documents(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute :func:`of_two_documents` by torch."""
    documents = offsets(0, 0, 0, 1)
    mask = documents[:, None] == documents
    return functional.scaled_dot_product_attention(query, key, value, mask)


def of_sequences(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute attention of sequences of 2 rows and of 1, with a row before them and none behind."""
    starts = offsets(1, 3, 4)
    return ops.attention(query, key, value, Scoring(starts=Starts(starts, starts, 2, 2)))


def one_by_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute :func:`of_sequences` by torch."""
    parts = [torch.zeros_like(query[:, :, :1])]
    for begin, end in ((1, 3), (3, 4)):
        q, k, v = (t[:, :, begin:end] for t in (query, key, value))
        parts.append(functional.scaled_dot_product_attention(q, k, v))
    return torch.cat(parts, 2)


def grouped(a: torch.Tensor, b: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
    """Multiply groups of 1 row and of 3, apply gelu with a vector each, and append a row of zeros."""
    results = [a[:1] @ b[0], a[1:4] @ b[1]]
    if vectors:
        results = [functional.gelu(each + vector) for each, vector in zip(results, *vectors, strict=True)]
    return torch.cat([*results, a.new_zeros(1, b.shape[2])])


def both(name: str, *arguments: Any, **options: Any) -> tuple[Function, Function]:
    """Return the package's function and torch's; both take tensors first and then these arguments."""
    torchs = getattr(functional, name, None) or getattr(torch, name)
    return tuple(  # type: ignore[return-value]  # of two
        [lambda *tensors, f=f: f(*tensors, *arguments, **options) for f in (getattr(ops, name), torchs)]
    )


def norm(name: str, *arguments: Any) -> tuple[Function, Function]:
    """Return what :func:`both` does, for a norm: its arguments follow the first tensor."""
    ours, theirs = getattr(ops, name), getattr(functional, name)
    return tuple(  # type: ignore[return-value]  # of two
        [lambda x, *columns, f=f: f(x, *arguments, *columns) for f in (ours, theirs)]
    )


def fused(chain: Callable[..., epilogues.Epilogue]) -> tuple[Function, Function]:
    """Return a product with an epilogue of further tensors, and its meaning in torch."""

    def ours(a: torch.Tensor, b: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return ops.fused_matmul(a, b, epilogue=chain(*tensors))

    def theirs(a: torch.Tensor, b: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return chain(*tensors).meaning(a @ b)

    return ours, theirs


HEAD = (1, 2, 4, 16)
CASES: dict[str, Case] = {
    "add": Case(*both("add", alpha=2), [(2, 3), (3,)]),
    "matmul": Case(*both("matmul"), [(3, 4), (4, 5)]),
    "matmul, batches": Case(*both("matmul"), [(2, 3, 4), (4, 5)]),
    "addmm": Case(*both("addmm", beta=2, alpha=3), [(5,), (3, 4), (4, 5)]),
    "baddbmm": Case(*both("baddbmm"), [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "linear": Case(*both("linear"), [(3, 4), (5, 4), (5,)]),
    "grouped_mm": Case(lambda a, b: ops.grouped_mm(a, b, offs=offsets(1, 4)), grouped, [(5, 4), (2, 4, 8)]),
    "conv1d": Case(*both("conv1d", stride=2), [(2, 2, 5), (3, 2, 2), (3,)]),
    "conv2d": Case(*both("conv2d", padding=1, groups=2), [(1, 4, 3, 3), (2, 2, 2, 2), (2,)]),
    "conv3d": Case(*both("conv3d"), [(1, 2, 2, 3, 3), (2, 2, 2, 2, 2), (2,)]),
    "conv_transpose2d": Case(*both("conv_transpose2d", stride=2), [(1, 2, 3, 3), (2, 3, 2, 2), (3,)]),
    "layer_norm": Case(*norm("layer_norm", (4,)), [(3, 4), (4,), (4,)]),
    "rms_norm": Case(*norm("rms_norm", (4,)), [(3, 4), (4,)], recomputes=True),
    "group_norm": Case(*norm("group_norm", 2), [(3, 4, 2), (4,), (4,)]),
    "batch_norm": Case(
        lambda x, w, b: ops.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
        [(3, 4, 2), (4,), (4,)],
    ),
    "batch_norm, known": Case(
        lambda x, w, b, m, v: ops.batch_norm(x, m, v, w, b),
        lambda x, w, b, m, v: functional.batch_norm(x, m, v, w, b),
        [(3, 4, 2), (4,), (4,), (4,), (4,)],
        fixed=2,
    ),
    "softmax": Case(*both("softmax", 1), [(3, 4)]),
    "log_softmax": Case(*both("log_softmax", 0), [(3, 4)]),
    "logsumexp": Case(*both("logsumexp", 1), [(3, 4)]),
    "cross_entropy": Case(
        lambda x, w: ops.cross_entropy(x, torch.tensor([0, 3, 2]), w, label_smoothing=0.1),
        lambda x, w: functional.cross_entropy(x, torch.tensor([0, 3, 2]), w, label_smoothing=0.1),
        [(3, 4), (4,)],
        fixed=1,
        recomputes=True,
    ),
    "cross_entropy, probabilities": Case(*both("cross_entropy"), [(3, 4), (3, 4)]),
    "sum": Case(*both("sum", 1), [(3, 4)]),
    "mean": Case(*both("mean"), [(3, 4)]),
    "prod": Case(*both("prod", 1), [(3, 4)]),
    "norm": Case(*both("norm", 2, 1), [(3, 4)]),
    "norm, of order 3": Case(*both("norm", 3, 1), [(3, 4)]),
    "amax": Case(*both("amax", 1), [(3, 4)]),
    "max": Case(*both("max"), [(3, 4)]),
    "max, along a dimension": Case(lambda x: ops.max(x, 1)[0], lambda x: torch.max(x, 1)[0], [(3, 4)]),
    "min, of two": Case(*both("min"), [(3, 4), (3, 4)]),
    "avg_pool2d": Case(*both("avg_pool2d", 2, padding=1, count_include_pad=False), [(1, 2, 4, 4)]),
    "max_pool2d": Case(*both("max_pool2d", 2), [(1, 2, 4, 4)]),
    "clone": Case(lambda x: ops.clone(x), lambda x: x.clone(), [(2, 3)]),
    "permute_copy": Case(*both("permute_copy", (1, 0)), [(2, 3)]),
    "pixel_shuffle": Case(*both("pixel_shuffle", 2), [(1, 4, 2, 2)]),
    "flip": Case(*both("flip", (1,)), [(2, 3)]),
    "roll": Case(*both("roll", 1, 1), [(2, 3)]),
    "pad": Case(*both("pad", (1, 1), "reflect"), [(2, 3)]),
    "pad, with zeros": Case(*both("pad", (1, 1)), [(2, 3)]),
    "unfold": Case(*both("unfold", 2), [(1, 2, 3, 3)]),
    "scaled_dot_product_attention": Case(*both("scaled_dot_product_attention"), [HEAD] * 3),
    "scaled_dot_product_attention, a bias": Case(
        *both("scaled_dot_product_attention"), [*[HEAD] * 3, (4, 4)], recomputes=True
    ),
    "attention, a hook": Case(
        lambda q, k, v, b: ops.attention(q, k, v, hooked(b)),
        functional.scaled_dot_product_attention,
        [*[HEAD] * 3, (4, 4)],
        fixed=1,
        recomputes=True,
    ),
    "attention, a mask": Case(of_two_documents, within_documents, [HEAD] * 3),
    "attention, sequences": Case(of_sequences, one_by_one, [HEAD] * 3, recomputes=True),
    "fused_matmul, sums": Case(
        *fused(lambda v, d: epilogues.bias(v) | epilogues.add_scaled(d, 0.5, 2.0)),
        [(3, 4), (4, 5), (5,), (3, 5)],
    ),
    "fused_matmul, a factor": Case(
        *fused(lambda v, w, d: epilogues.bias(v) | epilogues.column_scale(w) | epilogues.add(d)),
        [(3, 4), (4, 5), (5,), (5,), (3, 5)],
        recomputes=True,
    ),
    "fused_matmul, gelu": Case(
        *fused(lambda v, d: epilogues.bias(v) | epilogues.gelu() | epilogues.residual(d)),
        [(3, 4), (4, 5), (5,), (3, 5)],
        recomputes=True,
    ),
    "fused_matmul, dropout": Case(
        *fused(lambda d: epilogues.dropout(0.5, 3) | epilogues.residual(d)), [(3, 4), (4, 5), (3, 5)]
    ),
    "fused_grouped_mm": Case(
        lambda a, b, v: ops.fused_grouped_mm(
            a, b, offs=offsets(1, 4), epilogue=epilogues.bias(v) | epilogues.gelu()
        ),
        grouped,
        [(5, 4), (2, 4, 8), (2, 8)],
        recomputes=True,
    ),
    "fused_conv2d": Case(
        lambda x, w, v, d: ops.fused_conv2d(x, w, v, epilogue=epilogues.add(d)),
        lambda x, w, v, d: functional.conv2d(x, w, v) + d,
        [(1, 2, 3, 3), (2, 2, 2, 2), (2,), (1, 2, 2, 2)],
    ),
    "fused_conv2d, silu": Case(
        lambda x, w, v: ops.fused_conv2d(x, w, v, epilogue=epilogues.silu()),
        lambda x, w, v: functional.silu(functional.conv2d(x, w, v)),
        [(1, 2, 3, 3), (2, 2, 2, 2), (2,)],
        recomputes=True,
    ),
    "matmul_layer_norm": Case(
        lambda a, b, w, c, v: ops.matmul_layer_norm(a, b, w, c, epilogue=epilogues.bias(v)),
        lambda a, b, w, c, v: functional.layer_norm(a @ b + v, (5,), w, c),
        [(3, 4), (4, 5), (5,), (5,), (5,)],
        recomputes=True,
    ),
    "matmul_softmax": Case(
        ops.matmul_softmax, lambda a, b: (a @ b).softmax(-1), [(3, 4), (4, 5)], recomputes=True
    ),
    "matmul_sum": Case(
        lambda a, b, v: ops.matmul_sum(a, b, epilogue=epilogues.bias(v)),
        lambda a, b, v: (a @ b + v).sum(-1),
        [(3, 4), (4, 5), (5,)],
    ),
    "matmul_norm": Case(
        ops.matmul_norm, lambda a, b: (a @ b).norm(dim=-1), [(3, 4), (4, 5)], recomputes=True
    ),
    "matmul_matmul": Case(
        ops.matmul_matmul, lambda a, b, c: a @ b @ c, [(3, 4), (4, 5), (5, 6)], recomputes=True
    ),
    "matmul_matmul, silu": Case(
        lambda a, b, c: ops.matmul_matmul(a, b, c, "silu"),
        lambda a, b, c: functional.silu(a @ b) @ c,
        [(3, 4), (4, 5), (5, 6)],
        recomputes=True,
    ),
    "swiglu": Case(
        ops.swiglu,
        lambda a, b, c: functional.silu(a @ b) * (a @ c),
        [(3, 4), (4, 5), (4, 5)],
        recomputes=True,
    ),
    "add, complex": Case(*both("add", alpha=2), [(2, 3), (3,)], complex=True),
    "clone, complex": Case(lambda x: ops.clone(x), lambda x: x.clone(), [(2, 3)], complex=True),
    "flip, complex": Case(*both("flip", (1,)), [(2, 3)], complex=True),
    "pad, complex": Case(*both("pad", (1, 1)), [(2, 3)], complex=True),
    "unfold, complex": Case(*both("unfold", 2), [(1, 2, 3, 3)], complex=True),
}
