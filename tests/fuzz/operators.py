"""The operators of the fuzz: how their calls are drawn, and the same calls in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.fuzz.cases import Call, Case
from tests.fuzz.draws import Draw, Limits
from tests.fuzz.tensors import COMPLEX, CONTIGUOUS, FLOATS, INTEGERS, Layout, TensorSpec, dtype_of, seed_of
from workbench import ops
from workbench.kernels import epilogues, reference

Function = Callable[..., Any]
HALVES = ("float16", "bfloat16")
ANY = (*FLOATS, *INTEGERS, "bool")
MOVED = (*ANY, *COMPLEX)
FEW_FLOATS = ("float16", "bfloat16", "float32", "float32", "float64")


def _by_size(call: Call) -> float:
    """Return the number of elements of the largest tensor."""
    return float(max((_elements(spec.shape) for spec in call.tensors.values()), default=1))


def _elements(shape: Sequence[int]) -> int:
    return max(torch.Size(shape).numel(), 1)


class Operator(NamedTuple):
    """Operator of the fuzz.

    Attributes:
        draw: a function that draws a call.
        torchs: the same function in torch, with the same arguments by name.
        ours: the function under test; None for the one in `workbench.ops`.
        dtypes: the dtypes that are drawn.
        terms: the number of terms of the largest sum in an element of the result or of a gradient; 0 where
            elements are only moved, which is exact.
        is_torchs: whether torch has this operator itself, so that strides of results and kinds of errors are
            compared too.
        fixed: tensors that never require grad.
        changed: tensors that the operator changes in place.
        multiplies: whether the operator multiplies matrices, so that fp32 may be rounded to tf32.
        divides_by_deviation: whether rounding can change a result by far more than its size, for example
            where nearly equal elements are divided by their deviation.
        chooses: whether a gradient goes to one of several elements, and rounding can change which is the
            largest.
    """

    draw: Callable[[Draw], Call]
    torchs: Function
    ours: Function | None = None
    dtypes: tuple[str, ...] = FEW_FLOATS
    terms: Callable[[Call], float] = _by_size
    is_torchs: bool = True
    fixed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    multiplies: bool = False
    divides_by_deviation: bool = False
    chooses: bool = False


def _nothing_summed(call: Call) -> float:
    return 0.0


def _one_term(call: Call) -> float:
    return 1.0


# Movement of elements.


def _flip(draw: Draw) -> Call:
    shape = draw.shape(draw.one(1, 2, 3, 4))
    return Call({"input": draw.tensor(*shape)}, {"dims": draw.dims(len(shape), least=0)})


def _roll(draw: Draw) -> Call:
    shape = draw.shape(draw.one(1, 2, 3, 4))
    if draw.chance(0.25):
        return Call({"input": draw.tensor(*shape)}, {"shifts": draw.between(-9, 9)})
    dims = draw.dims(len(shape))
    shifts = [draw.between(-9, 99) for _ in dims]
    return Call({"input": draw.tensor(*shape)}, {"shifts": shifts, "dims": dims})


def _pad(draw: Draw) -> Call:
    mode = draw.one("constant", "constant", "reflect", "replicate", "circular")
    if mode == "constant":
        rank = draw.one(1, 2, 3, 4)
        shape, padded = draw.shape(rank, 300), draw.one(*range(1, rank + 1))
        added = [draw.between(-1, 5) for _ in range(2 * padded)]
        options: dict[str, Any] = {"pad": added}
        if draw.chance(0.4):
            options["value"] = draw.one(1.0, -2.5, 3) if draw.dtype in FLOATS else draw.one(1, 0)
    else:
        padded = draw.one(1, 2, 3)
        shape = draw.shape(padded + draw.one(1, 2), 200)
        most = [max(n - 1, 0) for n in shape[::-1][:padded]]
        added = [draw.between(0, min(n, 4)) for n in most for _ in range(2)]
        options = {"pad": added, "mode": mode}
    return Call({"input": draw.tensor(*shape)}, options)


def _unfold(draw: Draw) -> Call:
    n, channels = draw.size(4), draw.one(1, 2, 3, 8)
    options = _windows(draw, ("kernel_size", "dilation", "padding", "stride"))
    sizes = [draw.size(40, least=1) for _ in range(2)]
    shape = draw.fitted([n, channels, *sizes], draw.limits.elements // 8)
    shape[2:] = _reached(draw, shape[2:], _of_two(options["kernel_size"], 2), options)
    if draw.chance(0.2):
        shape = shape[1:]
    return Call({"input": draw.tensor(*shape)}, options)


def _windows(draw: Draw, names: Sequence[str], rank: int = 2) -> dict[str, Any]:
    """Draw options of sliding windows: a number, or a list with one for each dimension; some are left out."""
    choices = {
        "kernel_size": (1, 2, 3), "dilation": (1, 1, 2), "padding": (0, 0, 1, 2), "stride": (1, 2, 3)
    }  # fmt: skip
    options: dict[str, Any] = {}
    for name in names:
        if name != "kernel_size" and draw.chance(0.4):
            continue
        if draw.chance(0.3):
            options[name] = [draw.one(*choices[name]) for _ in range(rank)]
        else:
            options[name] = draw.one(*choices[name])
    return options


def _of_two(value: Any, rank: int) -> list[int]:
    return list(value) if isinstance(value, list) else [value] * rank


def _reached(draw: Draw, sizes: Sequence[int], taps: Sequence[int], options: dict[str, Any]) -> list[int]:
    """Return the sizes; in 15 of 16 draws, enlarged if they are too small for a window of these taps."""
    if draw.own(*(True,) * 15, False):
        rank = len(sizes)
        steps = _of_two(options.get("dilation", 1), rank)
        pads = (
            _of_two(options.get("padding", 0), rank)
            if not isinstance(options.get("padding"), str)
            else [0] * rank
        )
        least = [d * (r - 1) + 1 - 2 * p for d, r, p in zip(steps, taps, pads, strict=True)]
        return [max(size, n) for size, n in zip(sizes, least, strict=True)]
    return [*sizes]


def _clone(draw: Draw) -> Call:
    rank = draw.one(0, 1, 2, 3, 4, 5)
    formats = ["torch.preserve_format", "torch.contiguous_format"]
    formats += {4: ["torch.channels_last"], 5: ["torch.channels_last_3d"]}.get(rank, [])
    return Call({"input": draw.tensor(*draw.shape(rank))}, {"memory_format": draw.one(*formats)})


def _permute_copy(draw: Draw) -> Call:
    rank = draw.one(0, 1, 2, 3, 4, 5)
    return Call({"input": draw.tensor(*draw.shape(rank))}, {"dims": draw.permutation(rank)})


def _transpose_copy(draw: Draw) -> Call:
    rank = draw.one(1, 2, 3, 4)
    options = {"dim0": draw.dim(rank), "dim1": draw.dim(rank)}
    return Call({"input": draw.tensor(*draw.shape(rank))}, options)


def _pixel_shuffle(draw: Draw) -> Call:
    r = draw.one(1, 2, 3)
    shape = draw.fitted(
        [draw.size(4), draw.one(1, 2, 3), draw.size(40), draw.size(40)], draw.limits.elements // 9
    )
    shape[1] *= r**2
    shape = shape[1:] if draw.chance(0.2) else shape
    return Call({"input": draw.tensor(*shape)}, {"upscale_factor": r})


def _pixel_unshuffle(draw: Draw) -> Call:
    r = draw.one(1, 2, 3)
    shape = draw.fitted(
        [draw.size(4), draw.one(1, 2, 3), draw.size(20), draw.size(20)], draw.limits.elements // 9
    )
    shape[2:] = [n * r for n in shape[2:]]
    shape = shape[1:] if draw.chance(0.2) else shape
    return Call({"input": draw.tensor(*shape)}, {"downscale_factor": r})


# Sums and reductions.


def _add(draw: Draw) -> Call:
    shape = draw.shape(draw.one(0, 1, 2, 3, 4))
    other = shape[draw.one(*range(len(shape) + 1)) :] if draw.chance(0.3) else shape
    other = [1 if draw.chance(0.15) else n for n in other]
    dtype = draw.one(*ANY) if draw.chance(0.25) else draw.dtype
    whole = draw.dtype not in FLOATS or dtype not in FLOATS
    options: dict[str, Any] = {}
    if draw.chance(0.4) and draw.dtype != "bool":
        options["alpha"] = draw.one(2, -1, 0) if whole else draw.one(2, 0.5, -1.5, 0.0)
    tensors = {"input": draw.tensor(*shape), "other": draw.tensor(*other, dtype=dtype)}
    return Call(tensors, options)


def _reduced(draw: Draw, values: str = "") -> tuple[TensorSpec, int]:
    rank = draw.one(0, 1, 2, 2, 3, 3, 4)
    return draw.tensor(*draw.shape(rank), values=values), rank


def _of_dims(name: str, draw: Draw) -> Call:
    """Draw a reduction over all dimensions, one or several."""
    input, rank = _reduced(draw)
    options: dict[str, Any] = {}
    if draw.chance(0.75):
        options["dim"] = draw.dim(rank) if draw.chance(0.5) or not rank else draw.dims(rank)
        if draw.chance(0.4):
            options["keepdim"] = True
    if name in ("sum", "mean") and draw.chance(0.25):
        options["dtype"] = f"torch.{draw.one('float32', 'float64', 'float16')}"
    return Call({"input": input}, options)


def _of_one_dim(name: str, draw: Draw) -> Call:
    """Draw a reduction over one dimension or all; or, for max and min, of two tensors."""
    input, rank = _reduced(draw, "unit" if name == "prod" else "")
    options: dict[str, Any] = {}
    if draw.chance(0.75):
        options = {"dim": draw.dim(rank), "keepdim": draw.chance(0.4)}
    if name in ("max", "min") and not options and draw.chance(0.5):
        other = draw.tensor(*input.shape[draw.one(*range(rank + 1)) :], values=input.values)
        return Call({"input": input, "other": other})
    return Call({"input": input}, options)


def _norm(draw: Draw) -> Call:
    input, rank = _reduced(draw)
    options: dict[str, Any] = {"p": draw.one(2, 1, 3, 0.5, 0, "fro", float("inf"), float("-inf"))}
    if draw.chance(0.75):
        options |= {"dim": draw.dim(rank) if draw.chance(0.5) or not rank else draw.dims(rank)}
        options |= {"keepdim": draw.chance(0.4)}
    return Call({"input": input}, options)


# Rows and channels.


def _softmax(draw: Draw) -> Call:
    input, rank = _reduced(draw)
    options: dict[str, Any] = {"dim": draw.dim(rank)}
    if draw.chance(0.25):
        options["dtype"] = f"torch.{draw.one('float32', 'float64')}"
    return Call({"input": input}, options)


def _logsumexp(draw: Draw) -> Call:
    input, rank = _reduced(draw)
    dim = draw.dim(rank) if draw.chance(0.5) or not rank else draw.dims(rank)
    return Call({"input": input}, {"dim": dim, "keepdim": draw.chance(0.4)})


def _cross_entropy(draw: Draw) -> Call:
    rank = draw.one(1, 2, 2, 2, 3, 4)
    shape = draw.shape(rank, least=1)
    dim = min(rank - 1, 1)
    classes, behind = shape[dim], shape[:dim] + shape[dim + 1 :]
    options: dict[str, Any] = {"reduction": draw.one("mean", "sum", "none")}
    if draw.chance(0.3):
        options["label_smoothing"] = 0.1
    tensors = {"input": draw.tensor(*shape, values=draw.one("normal", "normal", "zeros", "large_mean"))}
    if draw.chance(0.2):
        tensors["target"] = draw.tensor(*shape, values="positive")
    else:
        dtype = draw.one("int64", "int64", "int64", "uint8" if classes < 256 else "int64")
        tensors["target"] = TensorSpec(tuple(behind), dtype, draw.layout(rank - 1), f"below:{classes}")
        if draw.chance(0.3):
            options["ignore_index"] = draw.own(0, classes - 1)
    if draw.chance(0.3):
        tensors["weight"] = draw.vector(classes, values="positive", grad=False)
    return Call(tensors, options)


def _row_norm(name: str, draw: Draw) -> Call:
    rank = draw.one(1, 2, 3, 4)
    shape = draw.shape(rank)
    normalized = shape[draw.one(*range(rank)) :]
    tensors = {"input": draw.tensor(*shape, values=draw.one("normal", "normal", "large_mean", "whole"))}
    if draw.chance(0.7):
        tensors["weight"] = draw.tensor(*normalized, values="normal")
    if name == "layer_norm" and draw.chance(0.6):
        tensors["bias"] = draw.tensor(*normalized, values="normal")
    options: dict[str, Any] = {"normalized_shape": normalized}
    if draw.chance(0.4):
        options["eps"] = draw.one(1e-5, 1e-3, 1e-6)
    return Call(tensors, options)


def _group_norm(draw: Draw) -> Call:
    groups, rank = draw.one(1, 2, 3, 4), draw.one(2, 3, 4, 4, 5)
    shape = draw.fitted(
        [draw.size(8), draw.size(64, least=1), *draw.shape(rank - 2, 60)], draw.limits.elements
    )
    shape[1] *= groups
    tensors = {"input": draw.tensor(*shape, values=draw.one("normal", "normal", "large_mean"))}
    for name in ("weight", "bias"):
        if draw.chance(0.7):
            tensors[name] = draw.vector(shape[1], values="normal")
    options: dict[str, Any] = {"num_groups": groups}
    if draw.chance(0.3):
        options["eps"] = draw.one(1e-3, 1e-6)
    return Call(tensors, options)


def group_norm(input: torch.Tensor, num_groups: int, **others: Any) -> torch.Tensor:
    """Return torch's group norm, whose gradient of the input is computed whenever another one is.

    Otherwise torch (2.13, CPU) crashes for channels_last.
    """
    vectors = [others[name] for name in ("weight", "bias") if name in others]
    if torch.is_grad_enabled() and any(t.requires_grad for t in vectors):
        input = _WithGradient.apply(input, *vectors)
    return F.group_norm(input, num_groups, **others)


class _WithGradient(torch.autograd.Function):
    """The input, whose gradient autograd computes for each of the vectors, and passes to the input alone."""

    @staticmethod
    def forward(input: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        return input.view_as(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.vectors = len(inputs) - 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], *[None] * ctx.vectors


def _batch_norm(draw: Draw) -> Call:
    rank = draw.one(2, 3, 4, 4, 5)
    shape = draw.fitted([draw.size(8), draw.size(64), *draw.shape(rank - 2, 60)], draw.limits.elements)
    training = draw.chance(0.6)
    values = draw.one("normal", "normal", "large_mean")
    tensors = {"input": draw.tensor(*shape, values=values)}
    options: dict[str, Any] = {"training": training}
    if training and draw.chance(0.5):
        options |= {"running_mean": None, "running_var": None}
    else:
        # Tensors that are written must not have overlapping elements.
        tensors["running_mean"] = draw.vector(shape[1], values="normal", grad=False, layout=CONTIGUOUS)
        tensors["running_var"] = draw.vector(shape[1], values="positive", grad=False, layout=CONTIGUOUS)
    for name in ("weight", "bias"):
        if draw.chance(0.7):
            tensors[name] = draw.vector(shape[1], values="normal")
    if draw.chance(0.3):
        options |= {"momentum": draw.one(0.0, 0.5, 1.0), "eps": draw.one(1e-3, 1e-5)}
    return Call(tensors, options)


def _with_running(function: Function, **given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the result of `function`, a batch norm, and the updated running statistics."""
    result = function(**given)
    return result, *(given[name] for name in ("running_mean", "running_var") if given[name] is not None)


def _pool(name: str, draw: Draw) -> Call:
    shape = draw.fitted([draw.size(6), draw.size(16), draw.size(60), draw.size(60)], draw.limits.elements)
    names = ["kernel_size", "stride", *(["dilation"] if name == "max_pool2d" else [])]
    options = _windows(draw, names)
    taps = _of_two(options["kernel_size"], 2)
    if draw.chance(0.4):
        options["padding"] = min(draw.one(0, 1), min(taps) // 2)
    shape[2:] = _reached(draw, shape[2:], taps, options)
    shape = shape[1:] if draw.chance(0.2) else shape
    if draw.chance(0.3):
        options["ceil_mode"] = True
    if name == "max_pool2d" and draw.chance(0.3):
        options["return_indices"] = True
    if name == "avg_pool2d" and draw.chance(0.3):
        options["count_include_pad"] = False
    if name == "avg_pool2d" and draw.chance(0.2):
        options["divisor_override"] = draw.one(1, 3, -2)
    return Call({"input": draw.tensor(*shape)}, options)


# Products.


def _sizes(draw: Draw) -> list[int]:
    """Draw m, n and k."""
    return draw.fitted([draw.size(512), draw.size(512), draw.size(4096)], draw.limits.products)


def _scaled(draw: Draw, k: int, values: str = "") -> str:
    """Return a rule for values whose products have unit variance; other rules than normal ones are kept."""
    values = values or draw.values
    return f"scaled:{max(k, 1) ** -0.5:.3g}" if values in ("normal", "large_mean") else values


def _matmul(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batches = draw.one((), (), (), (2,), (3, 2), (1,), (0,))
    left = (*draw.one(batches, batches, ()), m, k)
    right = (*draw.one(batches, batches, batches[1:]), k, n)
    if draw.chance(0.12):
        left = (k,)
    if draw.chance(0.12):
        right = (k,)
    return Call({"input": draw.tensor(*left), "other": draw.tensor(*right)})


def _mm(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    return Call({"input": draw.tensor(m, k), "mat2": draw.tensor(k, n)})


def _bmm(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batch = draw.between(0, 4)
    return Call({"input": draw.tensor(batch, m, k), "mat2": draw.tensor(batch, k, n)})


def _factors(draw: Draw) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in ("beta", "alpha"):
        if draw.chance(0.4):
            options[name] = draw.one(0, 1, 2, 0.5, -1.5) if draw.dtype in FLOATS else draw.one(0, 1, 2)
    return options


def _addmm(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    addend = draw.one((m, n), (n,), (1, n), (m, 1), ())
    tensors = {"input": draw.tensor(*addend), "mat1": draw.tensor(m, k), "mat2": draw.tensor(k, n)}
    return Call(tensors, _factors(draw))


def _baddbmm(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batch = draw.between(1, 4)
    addend = draw.one((batch, m, n), (n,), (1, m, n), (m, 1))
    tensors = {
        "input": draw.tensor(*addend), "batch1": draw.tensor(batch, m, k), "batch2": draw.tensor(batch, k, n)
    }  # fmt: skip
    return Call(tensors, _factors(draw))


def _linear(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    before = draw.one((m,), (2, m), (), (1, 3, m))
    tensors = {"input": draw.tensor(*before, k), "weight": draw.tensor(n, k)}
    if draw.chance(0.6):
        tensors["bias"] = draw.vector(n)
    return Call(tensors)


def _grouped(draw: Draw, with_epilogue: bool = False) -> Call:
    kind = draw.one("rows", "rows", "columns", "inner")
    groups = draw.between(1, 5)
    width = 8 if draw.dtype in HALVES else 4
    n, k = (width * draw.between(1, min(12, draw.limits.size // width)) for _ in range(2))
    ends, total = [], 0
    for _ in range(groups):
        total += width * draw.own(0, 1, 1, 2, 3) if kind != "rows" else draw.own(0, 1, 3, 8, 17)
        ends.append(total)
    behind = draw.own(0, 0, width)
    total += behind
    values = _scaled(draw, k, draw.one("normal", "whole"))
    shapes = {
        "rows": ((total, k), (groups, k, n)), "columns": ((groups, n, k), (k, total)),
        "inner": ((n, total), (total, k)),
    }[kind]  # fmt: skip
    tensors = {
        "mat_a": draw.tensor(*shapes[0], values=values), "mat_b": draw.tensor(*shapes[1], values=values),
        "offs": TensorSpec((groups,), "int32", values=f"listed:{','.join(map(str, ends))}"),
    }  # fmt: skip
    if not with_epilogue:
        return Call(tensors)
    rows, cols = {"rows": (total, n), "columns": (n, total), "inner": (n, k)}[kind]
    call = _with_epilogue(
        draw, Call(tensors), (rows, cols), (rows, cols) if kind != "inner" else (groups, rows, cols)
    )
    return call


def grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    """Return products of groups outside autocast, as in torch; torch's own function accepts few strides."""
    with torch.autocast(mat_a.device.type, enabled=False):
        return reference.grouped_mm(mat_a, mat_b, offs=offs)


def fused_grouped_mm(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, epilogue: Any
) -> torch.Tensor:
    """Return products of groups with their epilogue, and 0 after the last group."""
    with torch.autocast(mat_a.device.type, enabled=False):
        result = reference.fused_grouped_mm(mat_a, mat_b, offs=offs, epilogue=epilogue).to(mat_a.dtype)
    if mat_a.dim() == mat_b.dim():
        return result
    axis = mat_a.dim() - 2
    places = torch.arange(result.shape[axis], device=result.device)
    is_inside = places < int(offs[-1])
    return torch.where(is_inside[:, None] if axis == 0 else is_inside, result, torch.zeros_like(result))


def _with_epilogue(draw: Draw, call: Call, matrix: tuple[int, int], output: Sequence[int]) -> Call:
    """Add up to three functors to a call; `matrix` is (m, n) of the product, `output` the result's shape."""
    tensors, chain = dict(call.tensors), []
    for _ in range(draw.one(1, 1, 2, 3)):
        functor = draw.one(
            "bias", "add", "residual", "scale", "add_scaled", "column_scale", "relu", "gelu", "fast_gelu",
            "silu", "sigmoid", "clamp", "dropout", "multiply",
        )  # fmt: skip
        given: list[Any] = []
        if functor in ("bias", "column_scale", "add", "residual", "multiply", "add_scaled"):
            shape = [matrix[1]] if functor in ("bias", "column_scale") else [*output]
            name = f"e{len(tensors)}"
            tensors[name] = draw.tensor(*shape, values="normal")
            given = [name, 0.5, 2.0] if functor == "add_scaled" else [name]
        given = {"scale": [0.5], "clamp": [-0.5, 1.5], "dropout": [0.25, 5]}.get(functor, given)
        chain.append([functor, *given])
    return Call(tensors, call.options | {"epilogue": chain})


def _fused_matmul(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batch = draw.one((), (), (2,))
    values = _scaled(draw, k)
    call = Call(
        {"input": draw.tensor(*batch, m, k), "other": draw.tensor(*draw.one(batch, ()), k, n, values=values)}
    )
    call = _with_epilogue(draw, call, (m, n), (*batch, m, n))
    if draw.chance(0.15):
        call.options["out_dtype"] = "torch.float32"
    return call


def fused_matmul(
    input: torch.Tensor, other: torch.Tensor, epilogue: Any, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return epilogue(input @ other)."""
    product = torch.matmul(input, other)
    return epilogue.meaning(product).to(product.dtype if out_dtype is None else out_dtype)  # type: ignore[no-any-return]  # a tensor


def _fused_rows(name: str, draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batch = draw.one((), (), (2,))
    values = "whole" if name == "argmax" else _scaled(draw, k, "normal")
    tensors = {
        "input": draw.tensor(*batch, m, k, values="whole" if name == "argmax" else "normal"),
        "other": draw.tensor(*draw.one(batch, ()), k, n, values=values),
    }
    for vector in {"layer_norm": ("weight", "bias"), "rms_norm": ("weight",)}.get(name, ()):
        if draw.chance(0.7):
            tensors[vector] = draw.vector(n, values="normal")
    options: dict[str, Any] = {}
    if name.endswith("norm") and name != "norm" and draw.chance(0.5):
        options["eps"] = 1e-3
    if not name.endswith(("_norm", "softmax")) and draw.chance(0.4):
        options["keepdim"] = True
    call = Call(tensors, options)
    if name != "argmax" and draw.chance(0.4):
        call = _with_epilogue(draw, call, (m, n), (*batch, m, n))
    return call


def fused_rows(
    name: str, input: torch.Tensor, other: torch.Tensor, epilogue: Any = None, **options: Any
) -> Any:
    """Return the row operator `name` of epilogue(input @ other), which is rounded before the row operator."""
    product = torch.matmul(input, other)
    dtype = product.dtype
    if epilogue is not None:
        product = epilogue.meaning(product)
    product = product.to(dtype)
    if name in ("layer_norm", "rms_norm"):
        result = getattr(F, name)(product, product.shape[-1:], **options)
    elif name == "norm":
        result = torch.linalg.vector_norm(product, 2, -1, **options)
    else:
        result = getattr(torch, name)(product, dim=-1, **options)
    return result.to(dtype) if result.is_floating_point() else result


def _matmul_matmul(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    batch, last = draw.one((), (), (2,)), draw.size(200)
    tensors = {
        "input": draw.tensor(*batch, m, k, values="normal"),
        "mat1": draw.tensor(k, n, values=_scaled(draw, k, "normal")),
        "mat2": draw.tensor(n, last, values=_scaled(draw, n, "normal")),
    }
    return Call(tensors, {"activation": draw.one(*reference.ACTIVATIONS)} if draw.chance(0.8) else {})


def matmul_matmul(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> torch.Tensor:
    """Return activation(input @ mat1) @ mat2."""
    return torch.matmul(reference.ACTIVATIONS[activation](torch.matmul(input, mat1)), mat2)


def _gated(name: str, draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    values = _scaled(draw, k, "normal")
    tensors = {
        "input": draw.tensor(*draw.one((), (), (2,)), m, k, values="normal"),
        "gate": draw.tensor(k, n, values=values), "up": draw.tensor(k, n, values=values),
    }  # fmt: skip
    return Call(tensors, {"approximate": draw.one("none", "tanh")} if name == "geglu" else {})


def gated(
    name: str, input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    """Return silu (for "swiglu") or gelu of input @ gate, times input @ up."""
    activation = F.silu if name == "swiglu" else partial(F.gelu, approximate=approximate)
    return activation(torch.matmul(input, gate)) * torch.matmul(input, up)


# Convolutions.


def _convolution(rank: int, draw: Draw, *, is_transposed: bool = False) -> Call:
    groups = draw.one(1, 1, 1, 2, 3)
    channels, features = (groups * draw.one(1, 2, 3, 4, 8, 16) for _ in range(2))
    if draw.limits.products < 2**20:
        channels, features = (groups * draw.one(1, 2, 3) for _ in range(2))
    names = ("dilation", "padding", "stride")
    options = _windows(draw, names, rank)
    if not is_transposed and draw.chance(0.12) and options.get("stride", 1) == 1:
        options["padding"] = draw.one("same", "valid")
    if groups > 1:
        options["groups"] = groups
    taps = [draw.one(1, 2, 3, 4) for _ in range(rank)]
    most = {1: 1000, 2: 50, 3: 12}[rank]
    budget = draw.limits.products // (channels * features // groups * _elements(taps) * 4)
    sizes = draw.fitted([draw.size(most, least=1) for _ in range(rank)], max(budget, 16))
    if not is_transposed:
        sizes = _reached(draw, sizes, taps, options)
    images = draw.between(0, 4)
    batch = () if draw.chance(0.15) else (images,)
    weight = (channels, features // groups) if is_transposed else (features, channels // groups)
    # Not "special": torch's kernels differ in whether padding is multiplied by an infinite weight.
    values = _scaled(draw, channels // groups * _elements(taps), draw.one("normal", "whole"))
    tensors = {
        "input": draw.tensor(*batch, channels, *sizes),
        "weight": draw.tensor(*weight, *taps, values=values),
    }
    if draw.chance(0.6):
        tensors["bias"] = draw.vector(features, values="normal")
    if is_transposed and draw.chance(0.3):
        options["output_padding"] = draw.one(0, 1)
    return Call(tensors, options)


def _fused_conv2d(draw: Draw) -> Call:
    call = _convolution(2, draw)
    features = call.tensors["weight"].shape[0]
    input, weight = (torch.empty(call.tensors[name].shape, device="meta") for name in ("input", "weight"))
    options: dict[str, Any] = {name: _decoded(value, False) for name, value in call.options.items()}
    try:
        output = [*F.conv2d(input if input.dim() == 4 else input[None], weight, **options).shape]
    except RuntimeError:  # torch refuses this call
        output = [1, features, 1, 1]
    kept = [draw.chance(0.7) for _ in output]
    output = [n if is_kept else 1 for n, is_kept in zip(output, kept, strict=True)]
    return _with_epilogue(draw, call, (1, features), output)


def fused_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epilogue: Any,
    **options: Any,
) -> torch.Tensor:
    """Return a convolution with its epilogue."""
    batch = input.unsqueeze(0) if input.dim() == 3 else input
    images = F.conv2d(batch, weight, bias, **options)
    result: torch.Tensor = epilogue.meaning_of_images(images, options.get("groups", 1)).to(images.dtype)
    return result.squeeze(0) if input.dim() == 3 else result


# Attention.


def _attention(draw: Draw, *, is_torchs: bool) -> Call:
    batch, heads = draw.between(1, 2), draw.one(1, 2, 4)
    is_shared = draw.chance(0.25)
    of_key = 1 if is_shared else heads
    size = draw.one(1, 8, 16, 24, 40, 59, 64, 80, 128)
    of_value = draw.one(size, size, 8, 48, 31)
    queries, keys = draw.fitted(
        [draw.size(700), draw.size(1200)], max(draw.limits.products // (8 * heads * size), 64)
    )
    values = draw.one("normal", "normal", "whole", "zeros")
    tensors = {
        "query": draw.tensor(batch, heads, queries, size, values=values),
        "key": draw.tensor(batch, of_key, keys, size, values=values),
        "value": draw.tensor(batch, of_key, keys, of_value, values=values),
    }
    if not is_torchs:
        window = [draw.one(None, 0, 3, 70), draw.one(None, 0, 5), draw.one(0, 0, 2), draw.chance(0.3)]
        return Call(tensors, {"window": window} if draw.chance(0.8) else {})
    options: dict[str, Any] = {"enable_gqa": True} if is_shared else {}
    kind = draw.one("none", "none", "causal", "boolean", "number")
    if kind == "causal":
        options["is_causal"] = True
    if kind in ("boolean", "number"):
        shape = (draw.one(1, batch), draw.one(1, heads), queries, keys)[draw.one(0, 0, 2) :]
        dtype = "bool" if kind == "boolean" else draw.dtype
        tensors["attn_mask"] = draw.tensor(*shape, dtype=dtype, values="normal")
    if draw.chance(0.2):
        options["scale"] = draw.one(0.1, 1.0, 0.5)
    if draw.chance(0.15):
        options["dropout_p"] = 0.0
    if draw.chance(0.1) and not is_shared:
        tensors = {
            name: spec if name == "attn_mask" else TensorSpec(
                spec.shape[1:], spec.dtype, draw.layout(3), spec.values, spec.requires_grad
            )
            for name, spec in tensors.items()
        }  # fmt: skip
        tensors.pop("attn_mask", None)
    return Call(tensors, options)


def scaled_dot_product_attention(**given: Any) -> torch.Tensor:
    """Return attention by products and a softmax; torch's fused kernels refuse odd pitches, or crash."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(**given)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Any = None
) -> torch.Tensor:
    """Return attention within the window of `scoring`, which becomes a mask."""
    options: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]}
    if scoring is not None:
        left, right, shift, from_end = scoring.window
        queries, keys = query.shape[2], key.shape[2]
        shift += keys - queries if from_end else 0
        rows = torch.arange(queries, device=query.device)[:, None] + shift
        cols = torch.arange(keys, device=query.device)[None]
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        if left is not None:
            mask &= cols >= rows - left
        if right is not None:
            mask &= cols <= rows + right
        options["attn_mask"] = mask
    with torch.autocast(query.device.type, enabled=False):  # this operator ignores autocast
        return scaled_dot_product_attention(query=query, key=key, value=value, **options)


def _keys(call: Call) -> float:
    """Return the number of terms of the longest sum, over keys, queries or columns."""
    return float(
        max(max(spec.shape[-2:], default=1) for name, spec in call.tensors.items() if name != "offs")
    )


_TORCH_ROWS: dict[str, Function] = {
    "layer_norm": F.layer_norm, "rms_norm": F.rms_norm, "softmax": torch.softmax,
    "log_softmax": torch.log_softmax, "logsumexp": torch.logsumexp,
}  # fmt: skip
_NORM = partial(Operator, divides_by_deviation=True)
_PRODUCT = partial(Operator, multiplies=True)
_FUSED = partial(Operator, multiplies=True, is_torchs=False)
_MOVE = partial(Operator, dtypes=MOVED, terms=_nothing_summed)
_EXACT = partial(Operator, dtypes=ANY, terms=_one_term)

OPERATORS: dict[str, Operator] = {
    "flip": _MOVE(_flip, torch.flip),
    "roll": _MOVE(_roll, torch.roll),
    # Gradients of elements that are repeated as padding are sums.
    "pad": Operator(_pad, F.pad, dtypes=MOVED, terms=_one_term),
    "unfold": Operator(_unfold, F.unfold, dtypes=(*FLOATS, "bool", *COMPLEX), terms=lambda call: 9.0),
    "clone": _MOVE(_clone, torch.clone),
    "permute_copy": _MOVE(_permute_copy, torch.permute_copy),
    "transpose_copy": _MOVE(_transpose_copy, torch.transpose_copy),
    "pixel_shuffle": _MOVE(_pixel_shuffle, F.pixel_shuffle),
    "pixel_unshuffle": _MOVE(_pixel_unshuffle, F.pixel_unshuffle),
    "add": Operator(_add, torch.add, dtypes=ANY),
    **{
        name: Operator(partial(_of_dims, name), getattr(torch, name), dtypes=dtypes)
        for name, dtypes in (("sum", ANY), ("mean", FLOATS))
    },
    **{name: _EXACT(partial(_of_dims, name), getattr(torch, name)) for name in ("amax", "amin")},
    **{name: _EXACT(partial(_of_dims, name), getattr(torch, name)) for name in ("any", "all")},
    **{name: _EXACT(partial(_of_one_dim, name), getattr(torch, name)) for name in ("argmax", "argmin")},
    # Gradients of broadcast tensors are sums.
    **{
        name: Operator(partial(_of_one_dim, name), getattr(torch, name), dtypes=ANY)
        for name in ("max", "min")
    },
    "prod": Operator(partial(_of_one_dim, "prod"), torch.prod, dtypes=FLOATS),
    "norm": Operator(_norm, torch.norm, dtypes=FLOATS),
    "softmax": Operator(_softmax, torch.softmax, terms=_one_term),
    "log_softmax": Operator(_softmax, torch.log_softmax),
    "logsumexp": Operator(_logsumexp, torch.logsumexp, terms=_one_term),
    "cross_entropy": Operator(_cross_entropy, F.cross_entropy, fixed=("weight",)),
    **{name: _NORM(partial(_row_norm, name), _TORCH_ROWS[name]) for name in ("layer_norm", "rms_norm")},
    "group_norm": _NORM(_group_norm, group_norm),
    "batch_norm": _NORM(
        _batch_norm, partial(_with_running, F.batch_norm), partial(_with_running, ops.batch_norm),
        fixed=("running_mean", "running_var"), changed=("running_mean", "running_var"),
    ),
    "avg_pool2d": Operator(partial(_pool, "avg_pool2d"), F.avg_pool2d, terms=lambda call: 9.0),
    "max_pool2d": Operator(
        partial(_pool, "max_pool2d"), F.max_pool2d, dtypes=(*FLOATS, *INTEGERS), terms=lambda call: 9.0
    ),
    "matmul": _PRODUCT(_matmul, torch.matmul, dtypes=(*FEW_FLOATS, "int8")),
    "mm": _PRODUCT(_mm, torch.mm, dtypes=(*FEW_FLOATS, "int8")),
    "bmm": _PRODUCT(_bmm, torch.bmm, dtypes=(*FEW_FLOATS, "int8")),
    "addmm": _PRODUCT(_addmm, torch.addmm),
    "baddbmm": _PRODUCT(_baddbmm, torch.baddbmm),
    "linear": _PRODUCT(_linear, F.linear),
    "grouped_mm": _FUSED(_grouped, grouped_mm),
    "fused_grouped_mm": _FUSED(partial(_grouped, with_epilogue=True), fused_grouped_mm),
    "fused_matmul": _FUSED(_fused_matmul, fused_matmul),
    "fused_conv2d": _FUSED(_fused_conv2d, fused_conv2d),
    **{
        f"matmul_{name}": _FUSED(
            partial(_fused_rows, name),
            partial(fused_rows, name),
            divides_by_deviation=name.endswith("_norm"),
            chooses=name in ("amax", "amin"),
        )
        for name in (
            "layer_norm", "rms_norm", "softmax", "log_softmax", "sum", "mean", "norm", "amax", "amin",
            "argmax", "logsumexp",
        )
    },
    "matmul_matmul": _FUSED(_matmul_matmul, matmul_matmul),
    **{name: _FUSED(partial(_gated, name), partial(gated, name)) for name in ("swiglu", "geglu")},
    **{
        f"conv{rank}d": _PRODUCT(partial(_convolution, rank), getattr(F, f"conv{rank}d"))
        for rank in (1, 2, 3)
    },
    "conv_transpose2d": _PRODUCT(partial(_convolution, 2, is_transposed=True), F.conv_transpose2d),
    "scaled_dot_product_attention": _FUSED(
        partial(_attention, is_torchs=True), scaled_dot_product_attention, terms=_keys
    ),
    "attention": _FUSED(partial(_attention, is_torchs=False), attention, terms=_keys),
}  # fmt: skip

# The share of calls with an `out` tensor, for operators that take one.
OUT_SHARE = 0.1

# Operators that are not drawn, each with the reason.
NOT_DRAWN: dict[str, str] = {}


def drawn(seed: int, number: int, limits: Limits, names: Sequence[str] = ()) -> Case:
    """Draw a case.

    Args:
        seed: the seed of the run.
        number: the number of the case. `limits.members` consecutive cases are a group, and groups cycle
            through the operators.
        limits: the limits of sizes.
        names: names of the operators to draw from; () for all.
    """
    group, member = divmod(number, limits.members)
    known = sorted(names or OPERATORS)
    start = seed_of(seed, "first")
    name = known[(start + group) % len(known)]
    operator = OPERATORS[name]
    draw = Draw(seed, group, member, limits, operator.dtypes)
    call = operator.draw(draw)
    if draw.chance(OUT_SHARE):
        call = _with_out(draw, name, call)
    case = draw.case(name, call, operator.dtypes, (*operator.fixed, "out"))
    return Case.from_json(
        Case(case.operator, case.calls, case.threads, case.on_stream, seed, number).to_json()
    )


def _with_out(draw: Draw, name: str, call: Call) -> Call:
    """Add an `out` tensor, of the result's shape or empty, if `ops` and torch take one for this call."""
    if "out" not in inspect.signature(getattr(ops, name)).parameters:
        return call
    tensors = {each: replace(spec, requires_grad=False) for each, spec in call.tensors.items()}
    on_meta = {
        each: torch.empty(spec.shape, dtype=dtype_of(spec.dtype), device="meta")
        for each, spec in tensors.items()
    }
    try:
        result = OPERATORS[name].torchs(**arguments(call, on_meta))
        if isinstance(result, torch.Tensor):
            OPERATORS[name].torchs(**arguments(call, on_meta), out=torch.empty_like(result))
    except (RuntimeError, IndexError, TypeError):  # torch refuses this call
        return call
    if not isinstance(result, torch.Tensor):
        return call
    shape = tuple(result.shape) if draw.chance(0.7) else (0,)
    # A tensor that is written must not have overlapping elements.
    layout = draw.one(CONTIGUOUS, Layout(offset=1), Layout(gap=2), Layout(order=(*range(len(shape)),)[::-1]))
    out = TensorSpec(shape, str(result.dtype).removeprefix("torch."), layout, "zeros")
    return Call(tensors | {"out": out}, call.options)


def arguments(call: Call, tensors: dict[str, torch.Tensor], *, is_exact: bool = False) -> dict[str, Any]:
    """Return the keyword arguments of a call with these tensors; floats become float64 if `is_exact`."""
    given: dict[str, Any] = {name: t for name, t in tensors.items() if name in call.tensors}
    options = {name: _decoded(value, is_exact) for name, value in call.options.items()}
    if "epilogue" in options:
        chain = [
            getattr(epilogues, functor)(*(tensors.get(value, value) for value in values))
            for functor, *values in call.options["epilogue"]
        ]
        for values in call.options["epilogue"]:
            for value in values[1:]:
                given.pop(value, None)
        whole = chain[0]
        for functor in chain[1:]:
            whole = whole | functor
        options["epilogue"] = whole
    if "window" in options:
        from workbench.kernels.attention import Scoring, Window

        options["scoring"] = Scoring(window=Window(*options.pop("window")))
    return given | options


def _decoded(value: Any, is_exact: bool) -> Any:
    """Return the value that a JSON value stands for: torch's object for "torch.NAME", a tuple for a list."""
    if isinstance(value, list):
        return tuple(_decoded(each, is_exact) for each in value)
    if isinstance(value, str) and value.startswith("torch."):
        found = getattr(torch, value.removeprefix("torch."))
        is_float = isinstance(found, torch.dtype) and found.is_floating_point
        return torch.float64 if is_exact and is_float else found
    return value
