"""Operators that only suites know: parts of an operator, and attention of packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.nn import functional

from workbench import comparing, ops
from workbench.errors import InvalidArgumentError, NotMeasurableError
from workbench.kernels import gemm
from workbench.kernels.attention import CAUSAL, EVERYTHING, Scoring, Starts
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.layout import least_bytes
from workbench.launch import Work
from workbench.operators.accuracy import Accuracy
from workbench.operators.arguments import Arguments, Draw, given
from workbench.operators.attention import check_heads
from workbench.operators.instance import Instance
from workbench.operators.parts import Part
from workbench.operators.registry import specs
from workbench.operators.spec import OperatorSpec, gradient_of
from workbench.runtime.replay import Replay
from workbench.runtime.warm import warm

VARLEN = ("varlen_attention", "varlen_attention_backward")

# Providers that compute a part of an operator, by operator: they are timed along with it.
PARTS: Mapping[str, Mapping[str, str]] = {
    "fused_matmul": {
        **dict.fromkeys(("workbench:bare", "cuBLAS", "rocBLAS"), "matmul"),
        "workbench:without products": "fused_matmul_without_products",
    }
}

# Tokens at each end of the packed sequences that are compared.
_TOKENS = 64


def our_call_of(spec: OperatorSpec, arguments: Arguments) -> Callable[[], Any]:
    """Return a call of an operator's function, or of its launch where suites time only that.

    For int8 it is the kernel with an int32 result, as of libraries: `ops` returns int8.
    """
    if spec.name in ("matmul", "mm", "bmm") and arguments.args[0].dtype == torch.int8:
        return partial(_int8_product, *arguments.args)
    if spec.name == "fused_matmul_without_products":
        return _without_products(*arguments.args, **arguments.keywords)
    return comparing.our_call_of(spec, arguments)


@warm
def _int8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
    output = torch.empty(shape, dtype=torch.int32, device=a.device)
    ops.gemm.product_into(a, b, output)
    return output


def _without_products(a: torch.Tensor, b: torch.Tensor, *, epilogue: Epilogue) -> Callable[[], torch.Tensor]:
    """Return a call of `ops.fused_matmul` without its products, which makes a new result each time.

    The result's place in memory relative to the inputs matters: up to a tenth of the time if the tensors
    nearly fill the L2 cache.
    """
    listed = ops.fused_matmul.instances(a, b, epilogue=epilogue)
    whole = next(one for one in listed if one.is_shipped).launch()
    try:
        launch = gemm.without_products(whole)
    except InvalidArgumentError:
        raise NotMeasurableError(
            "only the kernels of Hopper for large products can leave the products out"
        ) from None
    (result,) = launch.outputs
    again = Replay(launch, a, b, *epilogue.tensors, result)

    def call() -> torch.Tensor:
        output = torch.empty_like(result)
        again(a, b, *epilogue.tensors, output)
        return output

    return call


def _of_zeros(a: torch.Tensor, b: torch.Tensor, *, epilogue: Epilogue) -> torch.Tensor:
    return epilogue.meaning(a.new_zeros(a.shape[0], b.shape[1]))


def _work_without_products(a: torch.Tensor, b: torch.Tensor, *, epilogue: Epilogue) -> Work:
    size = a.shape[0] * b.shape[1]
    return gemm.with_epilogue(Work(0, least_bytes(a, b) + size * a.element_size()), epilogue, size)


def lengths_of(tokens: int, sequences: int) -> tuple[int, ...]:
    """Return lengths in the ratio 1 : 2 : 3 and so on, with the sum `tokens`.

    Raises:
        InvalidArgumentError: there are too few tokens for that many sequences.
    """
    shares = sequences * (sequences + 1) // 2
    if tokens < shares:
        raise InvalidArgumentError(
            "tokens", f"got {tokens} for {sequences} sequences", f"Give {shares} or more."
        )
    ends = [tokens * number * (number + 1) // 2 // shares for number in range(sequences + 1)]
    return tuple([end - begin for begin, end in pairwise(ends)])


def _packed(is_backward: bool) -> Callable[..., Arguments]:
    """Return a function that makes tensors [tokens, heads, columns] of b sequences, and their lengths."""

    def arguments(
        draw: Draw, b: int, h: int, h_kv: int, n_q: int, n_k: int, d: int, causal: bool
    ) -> Arguments:
        if n_q != n_k:
            fix = "Give as many keys as queries: each sequence attends to itself."
            raise InvalidArgumentError("n_k", f"got {n_k} for {n_q} queries", fix)
        check_heads(h, h_kv)
        gradient = [draw(n_q, h, d)] if is_backward else []
        tensors = draw(n_q, h, d), draw(n_q, h_kv, d), draw(n_q, h_kv, d)
        return given(*gradient, *tensors, lengths=lengths_of(n_q, b), is_causal=causal)

    return arguments


def _attend_to_all(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, lengths: Sequence[int], is_causal: bool
) -> torch.Tensor:
    """Attend with one call of `ops.attention`."""
    starts = _starts(tuple(lengths), query.device)
    scoring = Scoring(
        window=CAUSAL if is_causal else EVERYTHING,
        starts=Starts(starts, starts, max(lengths), max(lengths)),
    )
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    return ops.attention(q, k, v, scoring)[0].transpose(0, 1)


@lru_cache(64)
def _starts(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):  # else later gradients could not use them
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _attend_one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, lengths: Sequence[int], is_causal: bool
) -> torch.Tensor:
    """Attend with one call for each sequence."""
    is_shared = query.shape[1] != key.shape[1]
    outputs = []
    for parts in zip(*(tensor.split(tuple(lengths)) for tensor in (query, key, value)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=is_shared)
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def _flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, lengths: Sequence[int], is_causal: bool
) -> torch.Tensor:
    """Attend in one call, by torch's operator for FlashAttention-2."""
    ends, longest = _starts(tuple(lengths), query.device), max(lengths)
    output: torch.Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, ends, ends, longest, longest, 0.0, is_causal, False
    )[0]
    return output


def _of_lengths(is_backward: bool) -> Callable[..., Sequence[Accuracy]]:
    def accuracy(*tensors: torch.Tensor, lengths: Sequence[int], is_causal: bool) -> Sequence[Accuracy]:
        terms = max(lengths)
        return (Accuracy(terms),) * 3 if is_backward else (Accuracy(terms, terms**-0.5),)

    return accuracy


def _work_of_sequences(matrices: int, products: int) -> Callable[..., Work]:
    """Return a function for the work.

    Args:
        matrices: how often a tensor of queries, and one of keys, is moved.
        products: of how many products each pair of a query and a key is part.
    """

    def work(*tensors: torch.Tensor, lengths: Sequence[int], is_causal: bool) -> Work:
        query, key, _ = tensors[-3:]
        window = CAUSAL if is_causal else EVERYTHING
        pairs = query.shape[1] * sum(window.pairs(length, length) for length in lengths)
        return Work(2 * products * pairs * query.shape[2], matrices * (query.nbytes + key.nbytes))

    return work


def _ends(arguments: Arguments) -> Iterator[Part]:
    """Yield the first sequences for the first head, the middle one and the last one for two other heads."""
    *queries, key, value = arguments.args
    lengths, sharing = arguments.keywords["lengths"], queries[0].shape[1] // key.shape[1]
    starts = [0, *accumulate(lengths)]
    count = len(queries) if len(queries) == 1 else 3
    middle, last = len(lengths) // 2, len(lengths) - 1
    for of_key, begin, end in (
        (0, 0, _until(starts, _TOKENS)),
        (key.shape[1] // 2, middle, middle + 1),
        (key.shape[1] - 1, last, last + 1),
    ):
        tokens = slice(starts[begin], starts[end])
        heads = slice(of_key * sharing, (of_key + 1) * sharing)
        of_keys = slice(of_key, of_key + 1)
        call = given(
            *(each[tokens, heads] for each in queries), *(each[tokens, of_keys] for each in (key, value)),
            lengths=tuple(lengths[begin:end]), is_causal=arguments.keywords["is_causal"],
        )  # fmt: skip
        yield Part((call,), ((tokens, heads), (tokens, of_keys), (tokens, of_keys))[:count])


def _until(starts: Sequence[int], tokens: int) -> int:
    """Return how many sequences have the first tokens; one at least."""
    return max(1, sum(start < tokens for start in starts) - 1)


def _no_instances(*args: Any, **keywords: Any) -> list[Instance]:
    """Return no instances: suites measure whole calls of these operators."""
    return []


_FUSED, _ATTENTION = specs()["fused_matmul"], specs()["attention"]
_CASE = {**_ATTENTION.case, "b": (3, 4), "n_k": _ATTENTION.case["n_q"]}
_PACKED = OperatorSpec(
    "varlen_attention", _attend_one_by_one, _CASE, _packed(is_backward=False),
    _no_instances, _of_lengths(is_backward=False), function=_attend_to_all, work=_work_of_sequences(2, 2),
    baselines={"FlashAttention-2": _flash_attention}, parts=_ends, fp32_precision=_FUSED.fp32_precision,
)  # fmt: skip

SPECS: Mapping[str, OperatorSpec] = {
    spec.name: spec
    for spec in (
        replace(
            _FUSED, name="fused_matmul_without_products", meaning=_of_zeros, work=_work_without_products,
            accuracy=lambda *args, epilogue: (Accuracy(2, 1.0),), instances=_no_instances, torch=None,
        ),
        _PACKED,
        gradient_of(
            _PACKED, (0, 1, 2), _packed(is_backward=True), _no_instances, _of_lengths(is_backward=True),
            work=_work_of_sequences(4, 5), baselines={"FlashAttention-2": _flash_attention}, parts=_ends,
        ),
    )
}  # fmt: skip
