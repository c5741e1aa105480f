"""Attention with its matrices in memory: a product, a softmax, a product, each a kernel of its own.

The baseline of fused attention: S and P have an element for each pair of a query and a key.
"""

from collections.abc import Sequence

import torch

from workbench.errors import TensorMismatchError, check_type
from workbench.kernels import gemm
from workbench.kernels.attention import check_supported
from workbench.kernels.gemm import FP8
from workbench.kernels.layout import least_bytes
from workbench.kernels.rows import softmax
from workbench.launch import Launch, Work


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    tile: Sequence[int] | None = None,
    softmax_tile: Sequence[int] | None = None,
    precision: str = "ieee",
) -> Launch:
    """S = query @ key^T; P = softmax(S); output = P @ value, for each head, without masks.

    Scores are not scaled: multiply the query. S and P are of the tensors' dtype.

    FLOPs: for each pair of a query and a key, 2 for each column of the key, 2 for each column of the value,
    and 5 for the softmax. Least bytes: query, key and value read once, the output written once. S and P,
    which the kernels write and read, do not count.

    Args:
        query: (batch, heads, queries, columns), not fp8.
        key: (batch, key heads, keys, columns). The number of key heads divides the number of heads, and
            neighboring heads share a key head.
        value: (batch, key heads, keys, columns of the output).
        tile, precision: of both products, as in `gemm.launch`.
        softmax_tile: as `tile` of `softmax.launch`.

    Returns:
        a launch of three steps, with the output and the workspaces (S, P), [batch, heads, queries, keys].

    Raises:
        ArgumentTypeError: query, key or value is not a tensor. TensorMismatchError: they do not fit each
        other, are fp8 or have no elements. Errors of `tile`, `softmax_tile` and `precision`: see
        `gemm.launch` and `softmax.launch`.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    check_supported(query, key, value)
    if query.dtype in FP8:
        fix = "Give query, key and value of fp16, bf16, fp32 or fp64."
        raise TensorMismatchError("query, key, value", f"query is {query.dtype}", fix)
    for name, tensor in (("query", query), ("value", value)):
        if not tensor.numel():
            given = f"{name} of shape {tuple(tensor.shape)} has no elements"
            raise TensorMismatchError("query, key, value", given, "Give sizes of 1 or more.")
    (batch, heads, queries, size), (key_heads, keys) = query.shape, key.shape[1:3]
    group = heads // key_heads
    q = query.unflatten(1, (key_heads, group))
    k, v = (tensor.unsqueeze(2).expand(-1, -1, group, -1, -1) for tensor in (key, value))
    scores, weights = (query.new_empty(batch, heads, queries, keys) for _ in range(2))
    output = query.new_empty(batch, heads, queries, value.shape[3])
    s, p, o = (tensor.unflatten(1, (key_heads, group)) for tensor in (scores, weights, output))
    parts = (
        gemm.launch(q, k.transpose(-1, -2), output=s, tile=tile, precision=precision, splits=1),
        softmax.launch("softmax", scores, output=weights, tile=softmax_tile),
        gemm.launch(p, v, output=o, tile=tile, precision=precision, splits=1),
    )
    steps = tuple([step for part in parts for step in part.steps])
    spaces = tuple([space for part in parts for space in part.workspaces])
    pairs = batch * heads * queries * keys
    moved = least_bytes(query, key, value, output)
    work = Work(2 * pairs * (size + value.shape[3]) + 5 * pairs, moved)
    return Launch(steps, (output,), work=work, workspaces=(scores, weights, *spaces))
