"""The online softmax, state by state: one program reads a row and stores the state after each block."""

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, check_power_of_two, check_type
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS, least_bytes
from workbench.kernels.rows.softmax import SUPPORTED
from workbench.kernels.tile import reduce, transfer
from workbench.launch import Launch, Work


@triton.jit
def unshifted_update(state, scores):
    """`reduce.online_softmax_update` without the subtraction before exp, so that exp can overflow.

    state: (0, total); total' = total + sum of exp(scores)
    """
    weights = tl.exp(scores)
    maximum = tl.zeros_like(state[0])
    return (maximum, state[1] + tl.sum(weights, 1)), weights, maximum + 1.0


@triton.jit
def softmax_states_kernel(
    # pointers: the row of scores; tensors with one value a block: the state (maximum, total), the factor that
    # rescales the total of earlier blocks, and the log-sum-exp so far; a tensor with one value a score: its
    # weight exp(score - maximum) when its block was seen
    scores, maxima, totals, rescales, log_sums, weights,
    # sizes
    length,
    # strides, in elements
    stride,
    # meta-parameters: SHIFTED, whether the maximum is subtracted before exp; WIDE, offsets of 64 bits
    TYPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHIFTED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store the state after each block of BLOCK_SIZE scores, in one program."""
    state = reduce.online_softmax_init(1, TYPE)
    for number in range(tl.cdiv(length, BLOCK_SIZE)):
        offsets, valid = transfer.tile_1d(number, length, BLOCK_SIZE, WIDE)
        x = transfer.load(scores, offsets * stride, valid, float("-inf")).to(TYPE)[None, :]
        if SHIFTED:
            state, weight, rescale = reduce.online_softmax_update(state, x)
        else:
            state, weight, rescale = unshifted_update(state, x)
        block = number + tl.arange(0, 1)
        tl.store(maxima + block, state[0])
        tl.store(totals + block, state[1])
        tl.store(rescales + block, rescale)
        tl.store(log_sums + block, reduce.online_softmax_finish(state))
        transfer.store(weights, offsets[None, :], weight, valid[None, :])


def is_supported(scores: torch.Tensor) -> str:
    """Return why the kernel cannot take this row; empty if it can."""
    found = _misfit(scores)
    return "" if found is None else found[0]


def _misfit(scores: torch.Tensor) -> tuple[str, str] | None:
    """Return why the kernel cannot take this row, and what to give instead; None if it can."""
    if scores.dtype not in SUPPORTED:
        return f"dtype {scores.dtype}", f"Give one of {', '.join(str(d)[6:] for d in SUPPORTED)}."
    if scores.dim() != 1:
        return f"shape {tuple(scores.shape)}, not one row", "Give a tensor of one dimension."
    if scores.layout != torch.strided:
        return f"layout {scores.layout}", "Give scores.to_dense()."
    if scores.is_neg():
        return "it is a view that negates its memory", "Give scores.resolve_neg()."
    return None if scores.numel() else ("it has no elements", "Give a row of one score or more.")


def launch(scores: torch.Tensor, block: int, shifted: bool = True) -> Launch:
    """Compute the state of the online softmax after each block of a row, and its log-sum-exp.

    After a block with scores x, with m the maximum before it and m' the maximum after it:
    total' = total * exp(m - m') + sum of exp(x - m');  log-sum-exp = m' + log(total')

    FLOPs: 4 an element. Least bytes: the scores read once, the outputs written once.

    Args:
        scores: [length], of any stride, with elements.
        block: scores in a block, a power of two; the last block may hang over the end.
        shifted: False subtracts nothing (m is 0), which overflows where a score is large.

    Returns:
        A launch with outputs in fp32 (fp64 for fp64): maxima, totals, rescales (exp(m - m')) and
        log-sum-exps, each [blocks]; and weights [length], each score's exp(x - m') when its block was seen.

    Raises:
        TensorMismatchError: `scores` is not a strided row of a supported dtype, or has no elements.
        InvalidArgumentError: `block` is not a power of two. ArgumentTypeError: an argument has another type.
    """
    check_type("scores", scores, torch.Tensor, "Give a torch.Tensor of one dimension.")
    if found := _misfit(scores):
        raise TensorMismatchError("scores", *found)
    check_power_of_two("block", block)
    check_type("shifted", shifted, bool, "Give True or False.")
    length, (stride,) = scores.numel(), scores.stride()
    is_double = scores.dtype == torch.float64
    sizes = (*[triton.cdiv(length, block)] * 4, length)
    state_dtype = torch.float64 if is_double else torch.float32
    outputs = tuple(torch.empty(size, dtype=state_dtype, device=scores.device) for size in sizes)
    moved = (scores, *outputs)
    work = Work(flops=4 * length, bytes=least_bytes(*moved))
    return Launch.of(
        softmax_states_kernel, (1,), *moved, length, stride, outputs=outputs, work=work,
        TYPE=tl.float64 if is_double else tl.float32, BLOCK_SIZE=block, SHIFTED=shifted,
        WIDE=(length + block) * max(stride, 1) > MOST_OFFSETS_IN_32_BITS,
    )  # fmt: skip
