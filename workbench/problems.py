"""Problems: how each operator's cases are set up, the least work that they take, and their references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn import grad as gradients

from workbench import ops
from workbench.bench import baseline, data, recording
from workbench.errors import InvalidArgumentError, NotMeasurableError
from workbench.kernels import epilogues, gemm
from workbench.kernels.attention import CAUSAL, EVERYTHING, Scoring, Starts
from workbench.kernels.rows import group_norm, normalization, softmax
from workbench.launch import Work
from workbench.runtime.replay import Replay

# Products of int8 are int32, as with the vendor's library.
INT8 = data.INT8

ATTENTION = ("scaled_dot_product_attention", "scaled_dot_product_attention_backward")
VARLEN_ATTENTION = ("varlen_attention", "varlen_attention_backward")

# Rows of a result are checked in blocks, so that a reference in fp64 needs little additional memory.
BLOCK_ELEMENTS = 2**22
BLOCK_ROWS = 128
BLOCK_QUERIES = 2048
BLOCK_ROWS_OF_SEQUENCES = 64


class Reference(NamedTuple):
    """The exact result, with which a result is compared.

    Attributes:
        rows: returns some rows of it, in fp64.
        terms: the number of terms that one element sums, 0 if the result must be exact.
        least: a lower bound for the size that errors are relative to.
    """

    rows: Callable[[slice], torch.Tensor]
    terms: int
    least: float = 0.0


@dataclass(frozen=True)
class Operator:
    """The set-up and check of an operator's cases.

    Attributes:
        keys: the required keys of a problem.
        arity: the number of input tensors.
        inputs: makes the tensors on this device from dtype and case.
        options: returns the keyword arguments of `ops.<op>` and of torch's function.
        work: returns FLOPs and least bytes.
        references: returns the exact results from inputs and case.
        blocks: yields the rows of a result to check, block by block.
        optional: the optional keys of a problem.
        dims: the allowed dimensions of a reduction over one dimension.
        is_index: whether the result is of integers for every input dtype.
        is_permutation: whether a problem's `dims`, if it has the key, must name every dimension.
        has_int8: whether int8 is measured too.
        ours: calls `ops` with inputs and options; None for `ops.<op>` itself.
        parts: maps providers that are timed along with the operator, but compute another one from its first
            inputs, to the other's name. For a fused operator these are its parts, such as the bare product.
    """

    keys: frozenset[str]
    arity: int
    inputs: Callable[[str, Mapping[str, Any]], tuple[torch.Tensor, ...]]
    options: Callable[[Mapping[str, Any]], dict[str, Any]]
    work: Callable[[str, Mapping[str, Any]], Work]
    references: Callable[[Sequence[torch.Tensor], Mapping[str, Any]], tuple[Reference, ...]]
    blocks: Callable[[torch.Tensor], Iterator[slice]]
    optional: frozenset[str] = frozenset()
    dims: tuple[int, ...] = (-1, 1)
    is_index: bool = False
    is_permutation: bool = True
    has_int8: bool = False
    ours: Callable[..., Callable[[], Any]] | None = None
    parts: Mapping[str, str] = field(default_factory=dict)


def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element of a dtype, given by name."""
    return 1 if dtype == INT8 else data.torch_dtype(dtype).itemsize


def all_rows(result: torch.Tensor) -> Iterator[slice]:
    """Yield slices of all rows, in blocks of about `BLOCK_ELEMENTS` elements."""
    rows = result.shape[0]
    step = max(1, BLOCK_ELEMENTS * rows // max(1, result.numel()))
    return (slice(start, start + step) for start in range(0, rows, step))


def some_rows(result: torch.Tensor) -> Iterator[slice]:
    """Yield slices of the first, the middle and the last `BLOCK_ROWS` rows."""
    rows = result.shape[0]
    starts = {0, max(0, (rows - BLOCK_ROWS) // 2), max(0, rows - BLOCK_ROWS)}
    return (slice(start, start + BLOCK_ROWS) for start in sorted(starts))


def _clone_work(dtype: str, case: Mapping[str, Any]) -> Work:
    return Work(flops=0, bytes=2 * math.prod(case["shape"]) * itemsize_of(dtype))


def _add_inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    return data.normal(case["shape"], dtype, seed=0), data.normal(case["shape"], dtype, seed=1)


def _add_work(dtype: str, case: Mapping[str, Any]) -> Work:
    length = math.prod(case["shape"])
    return Work(flops=length * (2 if "alpha" in case else 1), bytes=3 * length * itemsize_of(dtype))


def _add_reference(inputs: Sequence[torch.Tensor], rows: slice, case: Mapping[str, Any]) -> torch.Tensor:
    x, y = (tensor[rows].double() for tensor in inputs)
    return x + float(case.get("alpha", 1)) * y


def _row_operator(name: str) -> Operator:
    """Return the set-up of a row operator or its backward.

    Its inputs are a matrix; weight and bias for layer norm, a weight for RMS norm; and the gradient of the
    result for a backward.
    """
    op = name.removesuffix("_backward")
    columns = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    is_backward = op != name

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        shape = (case["rows"], case["cols"])
        vectors = (data.normal(shape[1:], dtype, seed=1 + i) for i in range(columns))
        gradient = (data.normal(shape, dtype, seed=3),) if is_backward else ()
        return data.normal(shape, dtype), *vectors, *gradient

    def options(case: Mapping[str, Any]) -> dict[str, Any]:
        return {"normalized_shape": [case["cols"]]} if columns else {"dim": case["dim"]}

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        size, itemsize = case["rows"] * case["cols"], itemsize_of(dtype)
        results = case["cols" if case["dim"] == 0 else "rows"]
        if op in _ROW_REDUCTIONS:
            flops = size - results
            return Work(flops, size * itemsize + results * (8 if op == "argmax" else itemsize))
        vectors = (1 + is_backward) * columns * case["cols"]
        statistics = (1 + (op == "layer_norm")) * 4 * results if is_backward and columns else 0
        return Work(_ROW_FLOPS[name] * size, ((2 + is_backward) * size + vectors) * itemsize + statistics)

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        length = case["rows" if case["dim"] == 0 else "cols"]
        by_row = [t.t() if case["dim"] == 0 and t.dim() == 2 else t for t in given]
        if op in _ROW_REDUCTIONS:
            exact = _ROW_REDUCTIONS[op]
            is_sum = op == "sum"
            return (
                Reference(
                    lambda rows: exact(by_row[0][rows].double()),
                    length if is_sum else 0,
                    math.sqrt(length) if is_sum else 0.0,
                ),
            )
        if not is_backward:
            return (Reference(lambda rows: _forward_of_rows(op, by_row, rows), length),)
        of_x = Reference(lambda rows: _backward_of_rows(op, by_row, rows)[0], length)
        if not columns:
            return (of_x,)
        parts = [_backward_of_rows(op, by_row, rows)[1:] for rows in all_rows(by_row[0])]
        sums = [torch.stack(each).sum(0) for each in zip(*parts, strict=True)]
        count = case["rows"]
        return of_x, *(Reference(partial(_part, each), count, math.sqrt(count)) for each in sums)

    return Operator(
        keys=frozenset({"rows", "cols", "dim"}),
        arity=1 + columns + is_backward,
        inputs=inputs,
        options=options,
        work=work,
        references=references,
        blocks=all_rows,
        dims=(-1, 1) if columns else (-1, 1, 0),
        is_index=op == "argmax",
        ours=partial(_our_row_operator, op, is_backward),
    )


_ROW_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(1),
}
_ROW_FLOPS = softmax.FLOPS | normalization.FLOPS
_ROW_OPERATORS = tuple(
    name + suffix for name in ("softmax", "layer_norm", "rms_norm") for suffix in ("", "_backward")
)


def _part(whole: torch.Tensor, rows: slice) -> torch.Tensor:
    return whole[rows]


def _our_row_operator(
    op: str, is_backward: bool, *inputs: torch.Tensor, **options: Any
) -> Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]:
    """Return a call of `ops.<op>` on x, the normalized shape, weight and bias, in torch's order."""
    function = getattr(ops, op)
    shape = options.pop("normalized_shape", None)

    def call(x: torch.Tensor, *columns: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(x, **options) if shape is None else function(x, shape, *columns)
        return result

    return baseline.backward_of(call, *inputs) if is_backward else partial(call, *inputs)


def _forward_of_rows(op: str, inputs: Sequence[torch.Tensor], rows: slice) -> torch.Tensor:
    x, *columns = inputs[0][rows].double(), *(t.double() for t in inputs[1:])
    if op == "softmax":
        return torch.softmax(x, 1)
    return _normalized(op, x, inputs[0].dtype)[0] * columns[0] + (columns[1] if op == "layer_norm" else 0)


def _normalized(op: str, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x with mean 0 (layer norm) and mean square 1, and its scale; `dtype` is that of the input."""
    is_layer = op == "layer_norm"
    centered = x - x.mean(1, keepdim=True) if is_layer else x
    # torch's defaults: 1e-5 for layer norm; for rms_norm the eps of the dtype that it computes in.
    wide = torch.promote_types(dtype, torch.float32)
    epsilon = 1e-5 if is_layer else torch.finfo(wide).eps
    scale = (centered.square().mean(1, keepdim=True) + epsilon).rsqrt()
    return centered * scale, scale


def _backward_of_rows(op: str, inputs: Sequence[torch.Tensor], rows: slice) -> tuple[torch.Tensor, ...]:
    """Return the gradients of these rows of x, and their contributions to those of weight and bias."""
    x, gradient = inputs[0][rows].double(), inputs[-1][rows].double()
    if op == "softmax":
        y = torch.softmax(x, 1)
        return (y * (gradient - (y * gradient).sum(1, keepdim=True)),)
    n, scale = _normalized(op, x, inputs[0].dtype)
    g = gradient * inputs[1].double()
    mean = g.mean(1, keepdim=True) if op == "layer_norm" else 0
    of_x = scale * (g - mean - n * (g * n).mean(1, keepdim=True))
    sums = ((gradient * n).sum(0), gradient.sum(0))
    return of_x, *sums[: len(inputs) - 2]


def _matmul_work(dtype: str, case: Mapping[str, Any]) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    itemsize = itemsize_of(dtype)
    # Products of int8 are int32, of fp8 bf16.
    result_itemsize = 4 if dtype == INT8 else 2 if itemsize == 1 else itemsize
    return Work(flops=2 * m * n * k, bytes=(m * k + k * n) * itemsize + m * n * result_itemsize)


def _matmul_inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    sizes, layout = (case["m"], case["n"], case["k"]), case["layout"]
    if dtype != INT8:
        return data.matrices(*sizes, dtype, layout)
    return tuple(data.to_int8(matrix) for matrix in data.matrices(*sizes, "fp32", layout))


def _matmul_references(inputs: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
    a, b = inputs
    terms = case["k"] if a.is_floating_point() else 0
    return (Reference(lambda rows: a[rows].double() @ b.double(), terms, math.sqrt(terms)),)


def _our_product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a call of `ops.matmul`; for int8, of the kernel with an int32 result, as `ops` returns int8."""
    return partial(ops.matmul if a.is_floating_point() else _int8_product, a, b)


def _int8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    output = torch.empty((a.shape[0], b.shape[1]), dtype=torch.int32, device=a.device)
    ops.gemm.start(a, b, output)
    return output


def _fused_inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    shape = (case["m"], case["n"])
    addends = (data.normal(shape, dtype, seed=seed) for seed in (3, 4))
    return *_matmul_inputs(dtype, case), *addends


def _fused_work(dtype: str, case: Mapping[str, Any]) -> Work:
    product, size = _matmul_work(dtype, case), case["m"] * case["n"]
    return Work(product.flops + _FUSED_FLOPS * size, product.bytes + 2 * size * itemsize_of(dtype))


def _fused_references(inputs: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
    a, b, *addends = inputs

    def exact(rows: slice) -> torch.Tensor:
        return _after_product(a[rows].double() @ b.double(), addends, rows)

    terms = case["k"]
    return (Reference(exact, terms, math.sqrt(terms)),)


def _our_fused_product(
    a: torch.Tensor, b: torch.Tensor, *addends: torch.Tensor
) -> Callable[[], torch.Tensor]:
    return partial(ops.fused_matmul, a, b, epilogue=_two_addends_and_gelu(*addends))


def _two_addends_and_gelu(first: torch.Tensor, second: torch.Tensor) -> epilogues.Epilogue:
    return epilogues.add(first) | epilogues.add(second) | epilogues.fast_gelu()


def _without_products_work(dtype: str, case: Mapping[str, Any]) -> Work:
    whole = _fused_work(dtype, case)
    return Work(_FUSED_FLOPS * case["m"] * case["n"], whole.bytes)


def _without_products_references(
    inputs: Sequence[torch.Tensor], case: Mapping[str, Any]
) -> tuple[Reference, ...]:
    _, _, *addends = inputs
    return (Reference(lambda rows: _after_product(0.0, addends, rows), 2, 1.0),)


def _after_product(
    product: torch.Tensor | float, addends: Sequence[torch.Tensor], rows: slice
) -> torch.Tensor:
    first, second = addends
    return functional.gelu(product + first[rows].double() + second[rows].double(), approximate="tanh")


def _our_fused_product_without_products(
    a: torch.Tensor, b: torch.Tensor, *addends: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return a call of `ops.fused_matmul` without its products, which makes a new result each time.

    The result's place in memory relative to the inputs matters: up to a tenth of the time if the tensors
    nearly fill the L2 cache.
    """
    listed = ops.fused_matmul.instances(a, b, epilogue=_two_addends_and_gelu(*addends))
    whole = next(one for one in listed if one.is_shipped).launch()
    try:
        launch = gemm.without_products(whole)
    except InvalidArgumentError:
        raise NotMeasurableError(
            "only the kernels of Hopper for large products can leave the products out"
        ) from None
    (result,) = launch.outputs
    again = Replay(launch, a, b, *addends, result)

    def call() -> torch.Tensor:
        output = torch.empty_like(result)
        again(a, b, *addends, output)
        return output

    return call


# FLOPs per element of two additions and gelu's approximation.
_FUSED_FLOPS = 10
# Operators that follow a product: the number of their vectors with one element a column, and what they are.
_COLUMNS_OF_PRODUCT = {"matmul_layer_norm": 2, "matmul_rms_norm": 1}
_OF_PRODUCT: dict[str, Callable[..., torch.Tensor]] = {
    "matmul_layer_norm": lambda dtype, x, weight, bias: (
        _normalized("layer_norm", x, dtype)[0] * weight + bias
    ),
    "matmul_rms_norm": lambda dtype, x, weight: _normalized("rms_norm", x, dtype)[0] * weight,
    "matmul_softmax": lambda dtype, x: torch.softmax(x, 1),
    "matmul_amax": lambda dtype, x: x.amax(1),
    "matmul_logsumexp": lambda dtype, x: x.logsumexp(1),
}
_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": functional.silu, "geglu": functional.gelu,
}  # fmt: skip
FUSED = (*_OF_PRODUCT, "matmul_matmul", *_GATES)

# FLOPs per element of the product; for a gate, of both products.
_FLOPS_OF_PRODUCT = {
    "matmul_layer_norm": normalization.FLOPS["layer_norm"],
    "matmul_rms_norm": normalization.FLOPS["rms_norm"],
    "matmul_softmax": softmax.FLOPS["softmax"],
    "swiglu": 2, "geglu": 2,
}  # fmt: skip


def _fused(name: str) -> Operator:
    """Return the set-up of a product with a following operator.

    The inputs are scaled so that the elements of `a @ b` have a deviation of 1.
    """
    is_pair, is_gated = name == "matmul_matmul", name in _GATES

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        m, n, k = case["m"], case["n"], case["k"]
        inner = case["l"] if is_pair else n
        a, b = data.matrices(m, inner, k, dtype, case["layout"])
        if is_pair or is_gated:
            depth = inner if is_pair else k
            shape = (depth, n) if case["layout"][1] == "n" else (n, depth)
            other = data.normal(shape, dtype, seed=2).mul_(depth**-0.5)
            others = [other if case["layout"][1] == "n" else other.t()]
        else:
            columns = _COLUMNS_OF_PRODUCT.get(name, 0)
            others = [data.normal((n,), dtype, seed=2 + i) for i in range(columns)]
        return a, b.mul_(k**-0.5), *others

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        m, n, k = case["m"], case["n"], case["k"]
        inner = case["l"] if is_pair else n
        results = m if name in ("matmul_amax", "matmul_logsumexp") else m * n
        weights = k * inner * (1 + is_gated) + (inner * n if is_pair else 0)
        vectors = _COLUMNS_OF_PRODUCT.get(name, 0) * n
        flops = 2 * m * k * inner * (1 + is_gated) + (m * inner * (2 * n + 1) if is_pair else 0)
        flops += 0 if is_pair else _FLOPS_OF_PRODUCT.get(name, 1) * m * n
        return Work(flops, (m * k + weights + vectors + results) * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        a, b, *others = given

        def rows_of(rows: slice) -> torch.Tensor:
            x = a[rows].double() @ b.double()
            if is_pair:
                return torch.relu(x) @ others[0].double()
            if is_gated:
                return _GATES[name](x) * (a[rows].double() @ others[0].double())
            return _OF_PRODUCT[name](a.dtype, x, *(t.double() for t in others))

        return (Reference(rows_of, case["k"]),)

    return Operator(
        keys=frozenset({"m", "n", "k", "layout", *(("l",) if is_pair else ())}),
        arity=3 if is_pair or is_gated else 2 + _COLUMNS_OF_PRODUCT.get(name, 0),
        inputs=inputs,
        options=lambda case: {},
        work=work,
        references=references,
        blocks=some_rows,
        ours=partial(_our_pair, "relu") if is_pair else None,
    )


def _our_pair(activation: str, *given: torch.Tensor) -> Callable[[], torch.Tensor]:
    a, b0, b1 = given
    return partial(ops.matmul_matmul, a, b0, b1, activation)


def _rearrangement(
    keys: Sequence[str],
    function: Callable[..., torch.Tensor],
    options: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Operator:
    """Return the set-up of an operator that only moves elements, so its result must equal torch's."""

    def result_of(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> torch.Tensor:
        return function(given[0], **options(case))

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        given = torch.empty(case["shape"], device="meta")
        try:
            elements = given.numel() + result_of([given], case).numel()
        except (RuntimeError, IndexError, ValueError) as error:
            words = f"torch says: {str(error).splitlines()[0].rstrip('.')}. Give a case that torch accepts."
            raise InvalidArgumentError("case", f"got {dict(case)}", words) from None
        return Work(flops=0, bytes=elements * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        whole = result_of(given, case)
        return (Reference(lambda rows: whole[rows].double(), 0),)

    return Operator(
        keys=frozenset({"shape", *keys}),
        arity=1,
        inputs=lambda dtype, case: (data.normal(case["shape"], dtype),),
        options=options,
        work=work,
        references=references,
        blocks=all_rows,
        is_permutation=False,
    )


def _images(dtype: str, case: Mapping[str, Any]) -> torch.Tensor:
    """Return images of a case's shape, in its memory format."""
    x = data.normal(case["shape"], dtype)
    is_last = case["memory_format"] == "channels_last"
    return x.contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)


def _check_images(case: Mapping[str, Any]) -> None:
    if len(case["shape"]) != 4:
        raise InvalidArgumentError("shape", f"got {case['shape']}", "Give images: (n, c, h, w).")


def _group_norm() -> Operator:
    """Return the set-up of group norm of images, with weight and bias."""

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        channels = case["shape"][1:2]
        return _images(dtype, case), *(data.normal(channels, dtype, seed=seed) for seed in (1, 2))

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        _check_images(case)
        channels, groups = case["shape"][1], case["groups"]
        if channels % groups:
            raise InvalidArgumentError(
                "groups", f"got {groups} for {channels} channels", f"Give a number that divides {channels}."
            )
        elements = math.prod(case["shape"])
        return Work(group_norm.FLOPS * elements, 2 * (elements + channels) * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        x, weight, bias = given
        terms = math.prod(case["shape"][1:]) // case["groups"]
        return (
            Reference(
                lambda rows: functional.group_norm(
                    x[rows].double(), case["groups"], weight.double(), bias.double()
                ),
                terms,
            ),
        )

    return Operator(
        keys=frozenset({"shape", "groups", "memory_format"}),
        arity=3,
        inputs=inputs,
        options=lambda case: {"num_groups": case["groups"]},
        work=work,
        references=references,
        blocks=all_rows,
        ours=lambda x, weight, bias, num_groups: partial(ops.group_norm, x, num_groups, weight, bias),
    )


def _pool(function: Callable[..., torch.Tensor], terms: Callable[[int], int]) -> Operator:
    """Return the set-up of pooling; `terms` returns the taps that an element sums, 0 if it is exact."""

    def options(case: Mapping[str, Any]) -> dict[str, Any]:
        return {"kernel_size": case["window"], "stride": case["stride"], "padding": case["pad"]}

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        _check_images(case)
        given = torch.empty(case["shape"], device="meta")
        try:
            outputs = function(given, **options(case)).numel()
        except (RuntimeError, ValueError) as error:
            words = f"torch says: {str(error).splitlines()[0].rstrip('.')}. Give a case that torch accepts."
            raise InvalidArgumentError("case", f"got {dict(case)}", words) from None
        return Work(outputs * case["window"] ** 2, (given.numel() + outputs) * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        return (
            Reference(
                lambda rows: function(given[0][rows].double(), **options(case)), terms(case["window"] ** 2)
            ),
        )

    return Operator(
        keys=frozenset({"shape", "window", "stride", "pad", "memory_format"}),
        arity=1,
        inputs=lambda dtype, case: (_images(dtype, case),),
        options=options,
        work=work,
        references=references,
        blocks=all_rows,
    )


CONVOLUTIONS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight")


def _attention(name: str) -> Operator:
    """Return the set-up of attention, or of its backward."""
    is_backward = name.endswith("_backward")

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        of_queries = (case["b"], case["h"], case["n_q"], case["d"])
        of_keys = (case["b"], case["h_kv"], case["n_k"], case["d"])
        shapes = [of_queries, of_keys, of_keys, *([of_queries] if is_backward else [])]
        return tuple(data.normal(shape, dtype, seed=seed) for seed, shape in enumerate(shapes))

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        if case["h"] % case["h_kv"]:
            given = f"got {case['h_kv']} for {case['h']} heads"
            raise InvalidArgumentError("h_kv", given, f"Give a number that divides {case['h']}.")
        window = CAUSAL if case["causal"] else EVERYTHING
        pairs = case["b"] * case["h"] * window.pairs(case["n_q"], case["n_k"])
        rows = case["b"] * (case["h"] * case["n_q"] + case["h_kv"] * case["n_k"])
        # In units of `rows`: query with key, output with value; the backward adds their gradients.
        matrices, products = (4, 5) if is_backward else (2, 2)
        return Work(2 * products * pairs * case["d"], matrices * rows * case["d"] * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        of_rows = partial(_exact_attention, given, case["causal"])
        if not is_backward:
            return (Reference(partial(of_rows, 0), case["n_k"], case["n_k"] ** -0.5),)
        terms = (case["n_k"], case["n_q"], case["n_q"])
        return tuple(Reference(partial(of_rows, which), n) for which, n in enumerate(terms))

    return Operator(
        keys=frozenset({"b", "h", "h_kv", "n_q", "n_k", "d", "causal"}),
        arity=3 + is_backward,
        inputs=inputs,
        options=lambda case: {"is_causal": case["causal"], "enable_gqa": case["h"] != case["h_kv"]},
        work=work,
        references=references,
        blocks=_some_rows_of_heads,
        ours=_our_attention_backward if is_backward else None,
    )


def _varlen_attention(name: str) -> Operator:
    """Return the set-up of attention, or its backward, of b packed sequences with n_q = n_k tokens in total.

    Tensors are [tokens, heads, columns], as in other libraries. `baseline.lengths_of` gives the lengths.
    """
    is_backward = name.endswith("_backward")

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        shapes = [(case["n_q"], case[heads], case["d"]) for heads in ("h", "h_kv", "h_kv")]
        shapes += shapes[:1] if is_backward else []
        return tuple(data.normal(shape, dtype, seed=seed) for seed, shape in enumerate(shapes))

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        if case["n_q"] != case["n_k"]:
            given = f"got {case['n_k']} for {case['n_q']} queries"
            raise InvalidArgumentError(
                "n_k", given, "Give as many keys as queries: each sequence attends to itself."
            )
        whole = _attention(ATTENTION[is_backward]).work
        parts = [
            whole(dtype, {**case, "b": 1, "n_q": length, "n_k": length})
            for length in baseline.lengths_of(case["n_q"], case["b"])
        ]
        return Work(sum(part.flops for part in parts), sum(part.bytes for part in parts))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        lengths = baseline.lengths_of(case["n_q"], case["b"])
        sequences = list(pairwise([0, *accumulate(lengths)]))

        def of_rows(which: int, place: tuple[slice, int]) -> torch.Tensor:
            rows, head = place
            parts = []
            for begin, end in sequences:
                first, last = max(rows.start, begin), min(rows.stop, end)
                if first < last:
                    own = [tensor[begin:end].transpose(0, 1)[None] for tensor in given]
                    inside = slice(first - begin, last - begin)
                    parts.append(_exact_attention(own, case["causal"], which, (0, head, inside)))
            return torch.cat(parts)

        terms = max(lengths)
        if not is_backward:
            return (Reference(partial(of_rows, 0), terms, terms**-0.5),)
        return tuple(Reference(partial(of_rows, which), terms) for which in range(3))

    def blocks(result: torch.Tensor) -> Iterator[Any]:
        tokens, heads, _ = result.shape
        yield slice(0, min(BLOCK_ROWS_OF_SEQUENCES, tokens)), 0
        yield slice(max(0, tokens - BLOCK_ROWS_OF_SEQUENCES), tokens), heads - 1

    return Operator(
        keys=frozenset({"b", "h", "h_kv", "n_q", "n_k", "d", "causal"}),
        arity=3 + is_backward,
        inputs=inputs,
        options=lambda case: {
            "lengths": baseline.lengths_of(case["n_q"], case["b"]), "is_causal": case["causal"],
        },
        work=work,
        references=references,
        blocks=blocks,
        ours=partial(_our_varlen_attention, is_backward),
    )  # fmt: skip


def _our_varlen_attention(
    is_backward: bool, *given: torch.Tensor, lengths: tuple[int, ...], is_causal: bool
) -> Callable[[], Any]:
    ends = [0, *accumulate(lengths)]
    starts = torch.tensor(ends, dtype=torch.int32, device=given[0].device)
    scoring = Scoring(
        window=CAUSAL if is_causal else EVERYTHING,
        starts=Starts(starts, starts, max(lengths), max(lengths)),
    )

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in tensors)
        return ops.attention(query, key, value, scoring)[0].transpose(0, 1)

    return baseline.backward_of(attend, *given) if is_backward else partial(attend, *given)


def _our_attention_backward(
    *given: torch.Tensor, is_causal: bool, enable_gqa: bool
) -> Callable[[], tuple[torch.Tensor, ...]]:
    function: Any = ops.scaled_dot_product_attention
    return baseline.backward_of(partial(function, is_causal=is_causal, enable_gqa=enable_gqa), *given)


def _some_rows_of_heads(result: torch.Tensor) -> Iterator[Any]:
    """Yield indices (batch, head, rows) of the first head's first rows and the last head's last ones."""
    batch, heads, rows, _ = result.shape
    yield 0, 0, slice(0, BLOCK_ROWS)
    yield batch - 1, heads - 1, slice(max(0, rows - BLOCK_ROWS), rows)


def _exact_attention(
    given: Sequence[torch.Tensor], is_causal: bool, which: int, place: tuple[int, int, slice]
) -> torch.Tensor:
    """Return the rows at `place` (batch, head, rows) of one result of attention, in fp64.

    Without an incoming gradient in `given`, the result is the output. Otherwise it is the gradient of query,
    key or value, for `which` 0, 1 or 2. Gradients of key and value sum over all queries of the heads that
    share this head of the key, a block of queries at a time.
    """
    query, key, value, *gradient = given
    batch, head, rows = place
    group = query.shape[1] // key.shape[1]
    of_key = head if which else head // group
    k, v = (tensor[batch, of_key].double() for tensor in (key, value))
    scale = 1 / math.sqrt(query.shape[3])

    def weights(of: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        q = query[batch, of, begin:end].double()
        products = q @ k.t() * scale
        if is_causal:
            row, col = torch.arange(begin, end, device=q.device), torch.arange(len(k), device=q.device)
            products = products.masked_fill(col > row[:, None], -math.inf)
        return q, products.softmax(-1)

    def of_products(of: int, begin: int, end: int, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g = gradient[0][batch, of, begin:end].double()
        of_weights = g @ v.t()
        return g, p * (of_weights - (p * of_weights).sum(-1, keepdim=True))

    begin, end, _ = rows.indices(query.shape[2])
    if not gradient:
        return weights(head, begin, end)[1] @ v
    if which == 0:
        _, p = weights(head, begin, end)
        return of_products(head, begin, end, p)[1] @ k * scale
    found = torch.zeros_like(k[rows])
    for of in range(of_key * group, (of_key + 1) * group):
        for begin in range(0, query.shape[2], BLOCK_QUERIES):
            end = min(begin + BLOCK_QUERIES, query.shape[2])
            q, p = weights(of, begin, end)
            g, of_scores = of_products(of, begin, end, p)
            found += p[:, rows].t() @ g if which == 2 else of_scores[:, rows].t() @ q * scale
    return found


def _convolution(name: str) -> Operator:
    """Return the set-up of a channels_last convolution, or of the gradient of its input or weight alone."""

    def sizes_of(case: Mapping[str, Any]) -> tuple[int, int]:
        high, wide = (
            (case[size] + 2 * case["pad"] - case["dilation"] * (case[taps] - 1) - 1) // case["stride"] + 1
            for size, taps in (("h", "r"), ("w", "s"))
        )
        return high, wide

    def inputs(dtype: str, case: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        shapes = [
            (case["n"], case["c"], case["h"], case["w"]),
            (case["k"], case["c"] // case["groups"], case["r"], case["s"]),
        ]
        if name != "conv2d":
            shapes.append((case["n"], case["k"], *sizes_of(case)))
        return tuple(
            data.normal(shape, dtype, seed=seed).contiguous(memory_format=torch.channels_last)
            for seed, shape in enumerate(shapes)
        )

    def options(case: Mapping[str, Any]) -> dict[str, Any]:
        names = {"stride": "stride", "padding": "pad", "dilation": "dilation", "groups": "groups"}
        return {name: case[key] for name, key in names.items()}

    def work(dtype: str, case: Mapping[str, Any]) -> Work:
        high, wide = sizes_of(case)
        weight = case["k"] * case["c"] // case["groups"] * case["r"] * case["s"]
        images = case["n"] * (case["c"] * case["h"] * case["w"] + case["k"] * high * wide)
        return Work(2 * case["n"] * high * wide * weight, (images + weight) * itemsize_of(dtype))

    def references(given: Sequence[torch.Tensor], case: Mapping[str, Any]) -> tuple[Reference, ...]:
        high, wide = sizes_of(case)
        terms = {
            "conv2d": case["c"] * case["r"] * case["s"] // case["groups"],
            "conv2d_backward_data": case["k"] * case["r"] * case["s"] // case["groups"],
            "conv2d_backward_weight": case["n"] * high * wide,
        }[name]
        return (Reference(partial(_exact_convolution, name, given, options(case)), terms, math.sqrt(terms)),)

    return Operator(
        keys=recording.CASE_KEYS["convolution"][0],
        arity=2 if name == "conv2d" else 3,
        inputs=inputs,
        options=options,
        work=work,
        references=references,
        blocks=_first_and_last if name != "conv2d_backward_weight" else _one_block,
        ours=partial(_our_convolution, name),
    )


def _first_and_last(result: torch.Tensor) -> Iterator[slice]:
    """Yield slices of the first and the last image; one slice if there is only one image."""
    last = result.shape[0] - 1
    return (slice(place, place + 1) for place in sorted({0, last}))


def _one_block(result: torch.Tensor) -> Iterator[slice]:
    """Yield one slice of all rows."""
    return iter((slice(0, result.shape[0]),))


def _exact_convolution(
    name: str, given: Sequence[torch.Tensor], options: Mapping[str, Any], rows: slice
) -> torch.Tensor:
    """Return rows of the result in fp64, for which libraries use no fast algorithm that is less accurate."""
    x, weight, *gradient = (t.double() for t in given)
    if name == "conv2d":
        return functional.conv2d(x[rows], weight, **options)
    if name == "conv2d_backward_data":
        part = gradient[0][rows]
        found: torch.Tensor = gradients.conv2d_input((part.shape[0], *x.shape[1:]), weight, part, **options)
        return found
    found = gradients.conv2d_weight(x, weight.shape, gradient[0], **options)[rows]
    return found


def _our_convolution(name: str, *given: torch.Tensor, **options: Any) -> Callable[[], Any]:
    """Return a call of `ops.conv2d`, or of its backward for only one gradient."""
    x, weight, *gradient = given
    if name == "conv2d":
        return partial(ops.conv2d, x, weight, **options)
    if name == "conv2d_backward_data":
        return baseline.backward_of(lambda input: ops.conv2d(input, weight, **options), x, *gradient)
    return baseline.backward_of(lambda taps: ops.conv2d(x, taps, **options), weight, *gradient)


_FUSED_PRODUCT = Operator(
    keys=frozenset({"m", "n", "k", "layout"}),
    arity=4,
    inputs=_fused_inputs,
    options=lambda case: {},
    work=_fused_work,
    references=_fused_references,
    blocks=some_rows,
    ours=_our_fused_product,
)

OPERATORS: Mapping[str, Operator] = {
    **{name: _attention(name) for name in ATTENTION},
    **{name: _varlen_attention(name) for name in VARLEN_ATTENTION},
    "clone": Operator(
        keys=frozenset({"shape"}),
        arity=1,
        inputs=lambda dtype, case: (data.normal(case["shape"], dtype),),
        options=lambda case: {},
        work=_clone_work,
        references=lambda inputs, case: (Reference(lambda rows: inputs[0][rows].double(), 0),),
        blocks=all_rows,
    ),
    "add": Operator(
        keys=frozenset({"shape"}),
        arity=2,
        inputs=_add_inputs,
        options=lambda case: {"alpha": case["alpha"]} if "alpha" in case else {},
        work=_add_work,
        references=lambda inputs, case: (
            Reference(lambda rows: _add_reference(inputs, rows, case), 2, math.sqrt(2)),
        ),
        blocks=all_rows,
        optional=frozenset({"alpha"}),
    ),
    "permute_copy": Operator(
        keys=frozenset({"shape", "dims"}),
        arity=1,
        inputs=lambda dtype, case: (data.normal(case["shape"], dtype),),
        options=lambda case: {"dims": tuple(case["dims"])},
        work=_clone_work,
        references=lambda inputs, case: (
            Reference(lambda rows: inputs[0].permute(case["dims"])[rows].double(), 0),
        ),
        blocks=all_rows,
    ),
    "flip": _rearrangement(["dims"], torch.flip, lambda case: {"dims": tuple(case["dims"])}),
    "roll": _rearrangement(
        ["dims", "shift"],
        torch.roll,
        lambda case: {"shifts": (case["shift"],) * len(case["dims"]), "dims": tuple(case["dims"])},
    ),
    "pad": _rearrangement(
        ["pad"], functional.pad, lambda case: {"pad": (case["pad"],) * 2 * min(len(case["shape"]), 2)}
    ),
    "pixel_shuffle": _rearrangement(
        ["factor"], functional.pixel_shuffle, lambda case: {"upscale_factor": case["factor"]}
    ),
    "unfold": _rearrangement(
        ["window", "pad"],
        functional.unfold,
        lambda case: {"kernel_size": case["window"], "padding": case["pad"]},
    ),
    "group_norm": _group_norm(),
    "avg_pool2d": _pool(functional.avg_pool2d, lambda taps: taps),
    "max_pool2d": _pool(functional.max_pool2d, lambda taps: 0),
    **{name: _row_operator(name) for name in ("sum", "amax", "argmax", "softmax", "layer_norm", "rms_norm")},
    **{
        f"{name}_backward": _row_operator(f"{name}_backward")
        for name in ("softmax", "layer_norm", "rms_norm")
    },
    "matmul": Operator(
        keys=frozenset({"m", "n", "k", "layout"}),
        arity=2,
        inputs=_matmul_inputs,
        options=lambda case: {},
        work=_matmul_work,
        references=_matmul_references,
        blocks=some_rows,
        has_int8=True,
        ours=_our_product,
    ),
    "fused_matmul": replace(
        _FUSED_PRODUCT,
        parts=dict.fromkeys(("workbench:bare", "cuBLAS", "rocBLAS"), "matmul")
        | {"workbench:without products": "fused_matmul_without_products"},
    ),
    "fused_matmul_without_products": replace(
        _FUSED_PRODUCT,
        work=_without_products_work,
        references=_without_products_references,
        ours=_our_fused_product_without_products,
    ),
    **{name: _fused(name) for name in FUSED},
    **{name: _convolution(name) for name in CONVOLUTIONS},
}
