"""Matrix products fused with a norm, softmax or reduction of rows, a gate, or a second product.

torch has no such functions. Meaning and broadcasting are those of the composition of torch's functions. The
backward pass recomputes the composition from other operators of this package and differentiates that, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from workbench.errors import (
    DimensionError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    check_name,
)
from workbench.kernels.choosing import fused_templates as choosing
from workbench.kernels.epilogues import Epilogue, Frame, expanded
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import products
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.reference import ACTIVATIONS
from workbench.launch import Launch
from workbench.ops import normalization, softmax
from workbench.ops import reduction as reductions
from workbench.ops.arguments import as_real, check_operand, in_shape, is_followed, precision_of
from workbench.ops.differentiable import Applied, Gradient, differentiable, reading
from workbench.ops.fused import accumulated
from workbench.ops.gemm import matmul
from workbench.ops.profiled import profiled
from workbench.runtime.replay import start


@profiled
def matmul_layer_norm(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """layer_norm(input @ other) over the last dimension, with weight and bias.

    One kernel if an instance has whole rows in a tile; otherwise two, which pass the product through memory.
    fp32 is rounded to tf32 if torch's switch allows it. Under `torch.autocast` the product's operands and the
    result are in the lower precision. It can be differentiated once, by recomputing the product.

    Args:
        input, other: (..., m, k) and (..., k, n) of one dtype: fp16, bf16, fp32 or fp64; batches broadcast.
        weight, bias: (n,), fp16, bf16, fp32 or fp64, or None.
        eps: added to the variance.
        epilogue: functors that are applied to the product first, in the accumulator's dtype, such as
            `bias(vector) | add(residual)`; None for none.

    Raises:
        ArgumentTypeError: an argument has another type. UnsupportedDtypeError: the kernels do not support the
            dtype. TensorMismatchError: shapes, dtypes or devices do not fit.
    """
    if isinstance(bias, torch.Tensor) and weight is None:
        weight = torch.ones_like(bias)
    return _rows("layer_norm", input, other, (weight, bias), eps, epilogue)


@profiled
def matmul_rms_norm(
    input: torch.Tensor,
    other: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """rms_norm(input @ other) over the last dimension, with a weight.

    Arguments and errors as for :func:`matmul_layer_norm`; an `eps` of None is the machine epsilon of the
    arithmetic, as for `ops.rms_norm`.
    """
    if eps is None and isinstance(input, torch.Tensor):
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    return _rows("rms_norm", input, other, (weight,), eps, epilogue)


@profiled
def matmul_softmax(
    input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """softmax(input @ other) over the last dimension. Arguments as for :func:`matmul_layer_norm`."""
    return _rows("softmax", input, other, epilogue=epilogue)


@profiled
def matmul_log_softmax(
    input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """log_softmax(input @ other) over the last dimension. Arguments as for :func:`matmul_layer_norm`."""
    return _rows("log_softmax", input, other, epilogue=epilogue)


@profiled
def matmul_sum(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).sum(-1); the product is never in memory.

    It sums the product's elements. `matmul(input, other.sum(-1))` needs 1 / n of the multiplications, but
    rounds in another order. The other reductions have no such shortcut.

    Args:
        input, other: (..., m, k) and (..., k, n), as for :func:`matmul_layer_norm`; n is at least 1.
        keepdim: whether the result keeps a last dimension of 1.
        epilogue: as for :func:`matmul_layer_norm`.

    Raises:
        The errors of :func:`matmul_layer_norm`.
    """
    return _reduced("sum", input, other, keepdim, epilogue)


@profiled
def matmul_mean(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).mean(-1). Arguments as for :func:`matmul_sum`."""
    return _reduced("mean", input, other, keepdim, epilogue)


@profiled
def matmul_norm(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """The Euclidean norm of each row of input @ other. Arguments as for :func:`matmul_sum`."""
    return _reduced("norm", input, other, keepdim, epilogue)


@profiled
def matmul_amax(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).amax(-1). Arguments as for :func:`matmul_sum`."""
    return _reduced("amax", input, other, keepdim, epilogue)


@profiled
def matmul_amin(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).amin(-1). Arguments as for :func:`matmul_sum`."""
    return _reduced("amin", input, other, keepdim, epilogue)


@profiled
def matmul_argmax(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).argmax(-1): the first index of the largest element of each row, int64.

    It compares the product's elements before they are rounded, and has no gradients. Arguments as for
    :func:`matmul_sum`.
    """
    return _reduced("argmax", input, other, keepdim, epilogue)


@profiled
def matmul_logsumexp(
    input: torch.Tensor, other: torch.Tensor, keepdim: bool = False, *, epilogue: Epilogue | None = None
) -> torch.Tensor:
    """(input @ other).logsumexp(-1), which cross entropy needs of all logits.

    Arguments as for :func:`matmul_sum`.
    """
    return _reduced("logsumexp", input, other, keepdim, epilogue)


@profiled
def matmul_matmul(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, activation: str = "identity"
) -> torch.Tensor:
    """activation(input @ mat1) @ mat2, in one kernel if a tile can hold all n columns of a result's row.

    Otherwise, or if both k and l are long, three operators compute it: product, activation, product.

    Args:
        input, mat1, mat2: (..., m, k), (..., k, l) and (..., l, n), as for :func:`matmul_layer_norm`.
        activation: "identity", "relu", "sigmoid", "silu", "gelu" or "gelu_tanh".

    Raises:
        UnknownNameError: `activation` is unknown. Others as for :func:`matmul_layer_norm`.
    """
    tensors = _operands("matmul_matmul", input=input, mat1=mat1, mat2=mat2)
    names = ("input", "mat1", "mat2")
    _refuse(names, gemm_pair.is_supported(*tensors, names=names), "(..., m, k), (..., k, l) and (..., l, n)")
    check_name("activation", activation, ACTIVATIONS)
    run, plain = partial(_run_pair, activation), partial(_pair_plainly, ACTIVATIONS[activation])
    reads = _read_by_products if activation == "identity" else partial(_read_but_the_last, 1)
    return _followed(run, plain, reads, *tensors)


@profiled
def swiglu(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(input @ gate) * (input @ up), in one kernel, which loads `input` once.

    Args:
        input: (..., m, k), as for :func:`matmul_layer_norm`.
        gate, up: (..., k, n), such as the transposed weights of two linear layers, or two halves of one.

    Raises:
        The errors of :func:`matmul_layer_norm`.
    """
    return _gated("swiglu", "silu", input, gate, up)


@profiled
def geglu(
    input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    """gelu(input @ gate) * (input @ up), in one kernel, which loads `input` once.

    Args:
        input, gate, up: as for :func:`swiglu`.
        approximate: "none" or "tanh", as for `torch.nn.functional.gelu`.

    Raises:
        InvalidArgumentError: `approximate` is unknown. Others as for :func:`matmul_layer_norm`.
    """
    if approximate not in ("none", "tanh"):
        raise InvalidArgumentError("approximate", f"got {approximate!r}", "Give 'none' or 'tanh'.")
    return _gated("geglu", "gelu" if approximate == "none" else "gelu_tanh", input, gate, up)


def _gated(function: str, activation: str, *given: torch.Tensor) -> torch.Tensor:
    """Return activation(input @ gate) * (input @ up)."""
    tensors = _operands(function, **dict(zip(("input", "gate", "up"), given, strict=True)))
    reason = gemm_gated.is_supported(*tensors, name="input")
    _refuse(("input", "gate", "up"), reason, "(..., m, k), (..., k, n) and (..., k, n)")
    plain = partial(_gated_plainly, ACTIVATIONS[activation])
    run, reads = partial(_run_gated, activation), partial(_read_but_the_last, 1)
    return _followed(run, plain, reads, *tensors)


def _run_gated(activation: str, input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    a, output = _rows_and_output(input, gate, up)
    return _run_three(_launch_gated, activation, input, a, gate, up, output)


def _run_three(
    make: Callable[..., Launch],
    activation: str,
    input: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    output: torch.Tensor,
) -> torch.Tensor:
    """Run a launch of three matrices and return `output`; `a` is `input` in the shape for the kernel."""
    if output.is_meta or not output.numel():
        return output
    into = output.view(-1, output.shape[-1]) if a.dim() < input.dim() else output
    start(make, activation, precision_of(a), a, b, c, into)
    return output


def _launch_gated(
    activation: str,
    precision: str,
    a: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    output: torch.Tensor,
) -> Launch:
    way = choosing.gated(a, gate, output, precision)
    return gemm_gated.launch(
        a, gate, up, output=output, activation=activation, precision=precision, **way.keywords
    )


def _gated_plainly(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    return activation(accumulated(input, gate)) * accumulated(input, up)


def _run_pair(activation: str, input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    if not choosing.is_pair_fused(input, mat1, mat2):
        return matmul(ACTIVATIONS[activation](matmul(input, mat1)), mat2)
    a, output = _rows_and_output(input, mat1, mat2, cols=mat2.shape[-1])
    return _run_three(_launch_pair, activation, input, a, mat1, mat2, output)


def _launch_pair(
    activation: str,
    precision: str,
    a: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    output: torch.Tensor,
) -> Launch:
    way = choosing.pair(a, mat1, mat2, output, precision)
    return gemm_pair.launch(
        a, mat1, mat2, output=output, activation=activation, precision=precision, **way.keywords
    )


def _pair_plainly(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
) -> torch.Tensor:
    return accumulated(activation(accumulated(input, mat1)).to(input.dtype), mat2)


def _rows(
    operator: str,
    input: torch.Tensor,
    other: torch.Tensor,
    vectors: tuple[torch.Tensor | None, ...] = (),
    eps: float | None = 0.0,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """Return a norm or softmax of the product's rows."""
    a, b = _operands(f"matmul_{operator}", input=input, other=other)
    epsilon = as_real("eps", eps)
    names = ("weight", "bias")[: len(vectors)]
    for name, vector in zip(names, vectors, strict=True):
        check_operand(name, vector, torch.Tensor | None, "a torch.Tensor, or None")
    columns = [None if t is None else t.resolve_neg().contiguous() for t in vectors]
    reason = gemm_rows.is_supported(operator, a, b, *columns, names=("input", "other"))
    vector_shapes = f", and (n,) for {' and '.join(names)}," if names else ""
    _refuse(("input", "other", *names), reason, f"(..., m, k) and (..., k, n){vector_shapes}")
    chain = _chain(epilogue, a, b)
    count = len(columns)
    run = partial(_run_rows, operator, epsilon, chain, count)
    plain = partial(_rows_plainly, operator, epsilon, chain.emptied, count)
    reads = partial(_read_by_rows, count)
    return _followed(run, plain, reads, a, b, *columns, *chain.tensors)


def _run_rows(
    operator: str,
    epsilon: float,
    chain: Epilogue,
    count: int,
    input: torch.Tensor,
    other: torch.Tensor,
    *others: torch.Tensor | None,
) -> torch.Tensor:
    flat, output = _rows_and_output(input, other)
    if output.is_meta or not output.numel():
        return output
    a = input if _tells_batches_apart(chain) else flat
    into = output.view(-1, output.shape[-1]) if a.dim() < input.dim() else output
    columns, of_chain = ([t for t in some if t is not None] for some in (others[:count], others[count:]))
    chain = chain.with_tensors(of_chain)
    start(_launch_rows, operator, epsilon, precision_of(a), chain, a, other, columns, into)
    return output


def _launch_rows(
    operator: str,
    epsilon: float,
    precision: str,
    chain: Epilogue,
    a: torch.Tensor,
    b: torch.Tensor,
    columns: Sequence[torch.Tensor],
    output: torch.Tensor,
) -> Launch:
    way = choosing.rows(a, b, output, precision)
    return gemm_rows.launch(
        operator, a, b, *columns, epsilon=epsilon, epilogue=chain, output=output, precision=precision,
        **way.keywords,
    )  # fmt: skip


def _rows_plainly(
    operator: str,
    epsilon: float,
    chain: Epilogue,
    count: int,
    input: torch.Tensor,
    other: torch.Tensor,
    *others: torch.Tensor | None,
) -> torch.Tensor:
    product = _ended(accumulated(input, other), chain, others[count:])
    if operator in ("softmax", "log_softmax"):
        function: Callable[..., torch.Tensor] = getattr(softmax, operator)
        return function(product, -1)
    vectors = [None if t is None else t.to(product.dtype) for t in others[:count]]
    norm: Callable[..., torch.Tensor] = getattr(normalization, operator)
    return norm(product, product.shape[-1:], *vectors, eps=epsilon)


def _reduced(
    operator: str, input: torch.Tensor, other: torch.Tensor, keepdim: bool, epilogue: Epilogue | None
) -> torch.Tensor:
    """Return a reduction of the product's rows."""
    a, b = _operands(f"matmul_{operator}", input=input, other=other)
    check_operand("keepdim", keepdim, bool, "True or False")
    reason = gemm_rows.is_supported(operator, a, b, names=("input", "other"))
    _refuse(("input", "other"), reason, "(..., m, k) and (..., k, n) with n > 0")
    chain = _chain(epilogue, a, b)
    empty = chain.emptied
    run, plain = partial(_run_reduced, operator, chain), partial(_reduced_plainly, operator, empty)
    reads = partial(_read_by_sums, empty) if operator in ("sum", "mean") else _read_all
    tensors = (a, b, *chain.tensors)
    if operator == "argmax":
        tensors = tuple([t.detach() for t in tensors])
    result = _followed(run, plain, reads, *tensors)
    return in_shape(result, (*result.shape, 1)) if keepdim else result


def _run_reduced(
    operator: str, chain: Epilogue, input: torch.Tensor, other: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    a = input if _tells_batches_apart(chain) else products.as_rows(input, other)
    dtype = torch.int64 if operator == "argmax" else a.dtype
    shape = (*torch.broadcast_shapes(input.shape[:-2], other.shape[:-2]), input.shape[-2])
    output = torch.empty(shape, dtype=dtype, device=a.device)
    if output.is_meta or not output.numel():
        return output
    into = output.view(-1) if a.dim() < input.dim() else output
    start(_launch_reduced, operator, precision_of(a), chain.with_tensors(others), a, other, into)
    return output


def _launch_reduced(
    operator: str,
    precision: str,
    chain: Epilogue,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
) -> Launch:
    way = choosing.reduced(a, b, output, precision)
    return gemm_rows.launch_reduction(
        operator, a, b, epilogue=chain, output=output, precision=precision, **way.keywords
    )


def _reduced_plainly(
    operator: str, chain: Epilogue, input: torch.Tensor, other: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    product = _ended(accumulated(input, other), chain, others)
    if operator == "logsumexp":
        return softmax.logsumexp(product, -1)
    if operator == "norm":
        return reductions.norm(product, 2, -1)
    function: Callable[..., torch.Tensor] = getattr(reductions, operator)
    return function(product, -1)


def _chain(epilogue: Epilogue | None, a: torch.Tensor, b: torch.Tensor) -> Epilogue:
    """Check that the epilogue's tensors fit the product; return it without pending negations."""
    check_operand("epilogue", epilogue, Epilogue | None, "a chain of functors, such as bias(vector), or None")
    chain = Epilogue() if epilogue is None else epilogue
    chain = chain.with_tensors([t.resolve_neg() for t in chain.tensors])
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    expanded(chain, Frame(shape), a.device)
    return chain


def _tells_batches_apart(chain: Epilogue) -> bool:
    """Return whether the epilogue depends on the batch, so that a batch cannot be flattened to one matrix."""
    return bool(chain.tensors) or any(one.uses_place for one in chain.functors)


def _ended(product: torch.Tensor, chain: Epilogue, others: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Apply the epilogue to a product in the accumulator's dtype."""
    return chain.with_tensors([t for t in others if t is not None]).meaning(product)


def _rows_and_output(
    input: torch.Tensor, *others: torch.Tensor, cols: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `input` as the kernels take it, and an empty tensor for the result."""
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in (input, *others)))
    shape = (*batch, input.shape[-2], others[0].shape[-1] if cols is None else cols)
    return products.as_rows(input, *others), torch.empty(shape, dtype=input.dtype, device=input.device)


def _operands(function: str, **given: torch.Tensor) -> list[torch.Tensor]:
    """Check the matrices; return them without pending negations, in autocast's dtype if that is on."""
    for name, tensor in given.items():
        check_operand(name, tensor, torch.Tensor, "a torch.Tensor")
    tensors = [*given.values()]
    kind = tensors[0].device.type
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]
    for name, tensor in zip(given, tensors, strict=True):
        if tensor.dtype not in products.SUPPORTED:
            supported = ", ".join(str(each)[6:] for each in products.SUPPORTED)
            raise UnsupportedDtypeError(
                name, f"{tensor.dtype}", f"{function} takes {supported}: convert to one of these."
            )
        if tensor.dim() < 2:
            raise DimensionError(name, f"{tensor.dim()} dimensions", "Give a matrix, or a batch of them.")
    return [tensor.resolve_neg() for tensor in tensors]


def _refuse(arguments: Sequence[str], reason: str, shapes: str) -> None:
    if reason:
        supported = ", ".join(str(each)[6:] for each in products.SUPPORTED)
        fix = (
            f"Give strided tensors of shapes {shapes} on one device, in {supported}. Matrices have one "
            "dtype, and batches broadcast."
        )
        raise TensorMismatchError(", ".join(arguments), reason, fix)


_Run = Callable[..., torch.Tensor]

# A function from whether each tensor's gradient is requested to whether each tensor's elements are read.
_Reads = Callable[[Sequence[bool]], Sequence[bool]]


def _read_all(needed: Sequence[bool]) -> Sequence[bool]:
    """Rule for operators each of whose gradients depends on all tensors."""
    return [True for _ in needed]


def _read_but_the_last(count: int, needed: Sequence[bool]) -> Sequence[bool]:
    """Rule for operators linear in the last `count` tensors, which their own gradients do not read."""
    return [True] * (len(needed) - count) + [any(needed[:-count])] * count


def _read_by_products(needed: Sequence[bool]) -> Sequence[bool]:
    """Rule for products of all tensors: each gradient depends on the others."""
    return [any(needed[:i]) or any(needed[i + 1 :]) for i in range(len(needed))]


def _read_by_rows(count: int, needed: Sequence[bool]) -> Sequence[bool]:
    """Rule for operands, `count` vectors (weight and bias), and a chain's tensors: the bias is not read."""
    of_weight, of_product = any(needed[2:3][:count]), any((*needed[:2], *needed[2 + count :]))
    is_product_read = of_product or of_weight
    of_vectors = [of_product, False][:count]
    return [is_product_read] * 2 + of_vectors + [is_product_read] * (len(needed) - 2 - count)


def _read_by_sums(chain: Epilogue, needed: Sequence[bool]) -> Sequence[bool]:
    """Rule for operands and a chain's tensors where the chain's result is added up, and so is not read."""
    of_a, of_b, *of_tensors = needed
    is_product_read, read = chain.read_by_gradients(of_a or of_b, of_tensors)
    return [is_product_read or of_b, is_product_read or of_a, *read]


def _followed(
    run: _Run, plain: Callable[..., torch.Tensor], reads: _Reads, *tensors: torch.Tensor | None
) -> torch.Tensor:
    """Return `run(*tensors)`; autograd records it if it has to."""
    if is_followed(*(t for t in tensors if t is not None)):
        return _recomputed(*tensors, run=run, plain=plain, reads=reads)  # type: ignore[no-any-return]
    return run(*tensors)


def _run(*tensors: torch.Tensor | None, run: _Run, plain: _Run, reads: _Reads) -> torch.Tensor:
    """Return `run(*tensors)`; its gradients are those of `plain`, which the backward pass recomputes.

    The product is recomputed in the accumulator's dtype, like in the kernel, so that it is finite even where
    it is too large for fp16.
    """
    return run(*tensors)


def _backward(call: Applied, run: _Run, plain: _Run, reads: _Reads) -> Gradient:
    return reading(call.tensors, reads(call.needed), partial(_gradients, plain, call.needed))


_recomputed = differentiable(_run, _backward)


def _gradients(
    plain: Callable[..., torch.Tensor],
    needed: Sequence[bool],
    grad: torch.Tensor,
    *tensors: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of `plain(*tensors)`; None for tensors that need none."""
    with torch.enable_grad():
        leaves = [
            None if t is None else t.detach().requires_grad_(wanted)
            for t, wanted in zip(tensors, needed, strict=True)
        ]
        result = plain(*leaves)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    found = iter(
        torch.autograd.grad(result, wanted, grad.to(result.dtype), allow_unused=True, materialize_grads=True)
    )
    return tuple([next(found) if is_needed else None for is_needed in needed])
