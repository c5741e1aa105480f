"""x / sum of |x| along each row: an operator of its own kernel, in one file."""

from functools import partial

import torch
import triton
import triton.language as tl

from workbench.launch import Launch, Work
from workbench.operators import Accuracy, OperatorSpec, by_rows, given, instances_of


@triton.jit
def l1_normalize_kernel(x_pointer, output_pointer, cols, COLS: tl.constexpr):
    col = tl.arange(0, COLS)
    place = tl.program_id(0).to(tl.int64) * cols + col
    x = tl.load(x_pointer + place, mask=col < cols, other=0.0).to(tl.float32)
    tl.store(output_pointer + place, x / tl.sum(tl.abs(x), axis=0), mask=col < cols)


def launch(input: torch.Tensor, num_warps: int = 4) -> Launch:
    x, output = input.contiguous(), torch.empty(input.shape, dtype=input.dtype, device=input.device)
    return Launch.of(
        l1_normalize_kernel, (len(x),), x, output, x.shape[1], outputs=output, num_warps=num_warps,
        work=Work(2 * x.numel(), 2 * x.nbytes), COLS=triton.next_power_of_2(x.shape[1]),
    )  # fmt: skip


SPECS = (
    OperatorSpec(
        "l1_normalize", partial(torch.nn.functional.normalize, p=1.0, dim=1),
        case={"rows": (6, 8192), "cols": (300, 8192)},
        arguments=lambda draw, rows, cols: given(draw(rows, cols)),
        instances=lambda x: instances_of(partial(launch, x), {}, ({"num_warps": n} for n in (1, 8, 16))),
        accuracy=lambda x: (Accuracy(x.shape[1]),), function=lambda x: launch(x).run()[0],
        dtypes=("fp16", "bf16", "fp32"), parts=by_rows(0),
    ),
)  # fmt: skip
