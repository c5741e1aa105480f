"""A chain of epilogue functors in a kernel of its own: the baseline that fusion is compared with."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from workbench.errors import TensorMismatchError, check_type
from workbench.kernels.epilogues import Epilogue, Frame, bind, reach_of
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS, distinct_elements
from workbench.kernels.rows.rowwise import checked_tile
from workbench.kernels.tile import epilogue as functors
from workbench.kernels.tile import transfer
from workbench.launch import Launch, Work


@triton.jit
def functor_kernel(
    # pointers; the functors' own arguments
    x, output, extras,
    # sizes
    m, n,
    # meta-parameters: the tile; the functors that are applied to it
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """output = EPILOGUE(x), for contiguous matrices [m, n]; one tile a program."""
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    in_rows, in_cols = row < m, col < n
    tile = tl.load(x + row * n + col, mask=in_rows & in_cols, other=0.0).to(tl.float32)
    tile = functors.applied(tile, 0, row, col, in_rows, in_cols, extras, EPILOGUE)
    transfer.store(output, row * n + col, tile, in_rows & in_cols)


def launch(
    x: torch.Tensor,
    epilogue: Epilogue,
    *,
    output: torch.Tensor | None = None,
    tile: Sequence[int] = (32, 64),
    num_warps: int = 4,
) -> Launch:
    """output = epilogue(x), for a matrix in memory.

    FLOPs: those of the epilogue. Least bytes: x and the epilogue's tensors read once, the output written
    once.

    Args:
        x: [m, n] in fp16, bf16 or fp32, contiguous.
        epilogue: a chain of functors whose tensors broadcast to [m, n]; none that permutes.
        output: a contiguous tensor of x's shape in fp16, bf16 or fp32; None for a new tensor of x's dtype.
        tile: rows and columns of a tile, powers of two.
        num_warps: warps of a program, a power of two.

    Raises:
        TensorMismatchError: tensors do not fit, or an offset does not fit 32 bits. ArgumentTypeError,
        InvalidArgumentError: another argument.
    """
    check_type("x", x, torch.Tensor, "Give a torch.Tensor.")
    check_type("epilogue", epilogue, Epilogue, "Give a chain of functors, such as add(d) | relu().")
    output = torch.empty_like(x) if output is None else output
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None for a new one.")
    for name, tensor in (("x", x), ("output", output)):
        fits = tensor.dim() == 2 and tensor.is_contiguous() and tensor.shape == x.shape
        if not fits or tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            given = f"got {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
            shape = f" of shape {tuple(x.shape)}, like x," if name == "output" else ""
            fix = f"Give a contiguous matrix{shape} in fp16, bf16 or fp32."
            raise TensorMismatchError(name, given, fix)
    if epilogue.permuted is not None:
        raise TensorMismatchError(
            "epilogue",
            f"it permutes the result by {epilogue.permuted}",
            "Leave out the permutation, and permute the output of the launch instead: that is a view.",
        )
    rows, cols = checked_tile(tile)
    bound = bind(epilogue, Frame(tuple(x.shape)), torch.float32, output.dtype, x.device)
    reach = max(reach_of(x), bound.reach) + (rows + 1) * (x.shape[1] + cols)
    if reach > MOST_OFFSETS_IN_32_BITS:
        raise TensorMismatchError(
            "x, epilogue",
            f"offsets span up to {reach:,} elements, with x of shape {tuple(x.shape)}",
            f"Give fewer elements or a smaller tile: offsets have 32 bits, for {MOST_OFFSETS_IN_32_BITS:,}.",
        )
    own = epilogue.work(x.numel())
    size = (distinct_elements(x) + distinct_elements(output)) * x.element_size()
    work = Work(own.flops, size + own.bytes)
    if not x.numel():
        return Launch((), (output,), work=work)
    m, n = x.shape
    return Launch.of(
        functor_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, cols),), x, output, bound.extras, m, n,
        outputs=output, work=work, BLOCK_M=rows, BLOCK_N=cols, EPILOGUE=bound.functors, num_warps=num_warps,
    )  # fmt: skip
