r"""The gradient of the log-sum-exp goes where delta goes, with the other sign.

Output and log-sum-exp both depend on the scores. The first way gives $dS_j = P_j (dP_j - \delta)$, as before.
For the second, $L = \log \sum_i e^{S_i}$ has the derivative

$$\frac{\partial L}{\partial S_j} = \frac{e^{S_j}}{\sum_i e^{S_i}} = P_j$$

so that $dS_j$ gets $P_j \, dL$ besides. Both terms have the factor $P_j$:

$$dS_j = P_j (dP_j - \delta) + P_j \, dL = P_j \, \big(dP_j - (\delta - dL)\big)$$

The kernels of keys and of queries need not know: they are given $\delta - dL$ in place of $\delta$. And
$\delta$ itself needs no weights, for the sum over keys and the sum over columns can be exchanged:

$$\sum_i P_i \, dP_i = \sum_i P_i \sum_c dO_c V_{ic} = \sum_c dO_c \sum_i P_i V_{ic} = \sum_c dO_c \, O_c$$

That is a product of two vectors of as many elements as a head has columns, where the left side has as many as
there are keys, none of which is in memory.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def delta_kernel(
    output_pointer,
    gradient_pointer,
    sum_gradient_pointer,
    delta_pointer,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """delta[row] = sum of output * gradient of the row - gradient of its log-sum-exp."""
    ### BEGIN SOLUTION
    row = tl.program_id(axis=0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    places = row[:, None] * columns + column
    valid = (row[:, None] < rows) & (column < columns)
    output = tl.load(output_pointer + places, mask=valid, other=0.0)
    gradient = tl.load(gradient_pointer + places, mask=valid, other=0.0)
    of_sum = tl.load(sum_gradient_pointer + row, mask=row < rows, other=0.0)
    delta = tl.sum(output * gradient, axis=1) - of_sum
    # WRONG the second gradient with the wrong sign: delta = tl.sum(output * gradient, axis=1) + of_sum
    # WRONG the second gradient is forgotten: delta = tl.sum(output * gradient, axis=1)
    # WRONG a mean in place of the sum: delta = tl.sum(output * gradient, axis=1) / columns - of_sum
    # WRONG the gradient's own square: delta = tl.sum(gradient * gradient, axis=1) - of_sum
    # WRONG a sum over rows: delta = tl.sum(tl.sum(output * gradient, axis=1), axis=0) - of_sum
    tl.store(delta_pointer + row, delta, mask=row < rows)
    ### END SOLUTION


def delta(output: torch.Tensor, gradient: torch.Tensor, sum_gradient: torch.Tensor) -> Launch:
    """Compute what the kernels for keys and for queries subtract from dP."""
    rows, columns = output.shape
    deltas = torch.empty(rows, device=output.device)
    return Launch.of(
        delta_kernel,
        (triton.cdiv(rows, 16),),
        output,
        gradient,
        sum_gradient,
        deltas,
        rows,
        columns,
        outputs=deltas,
        ROWS=16,
        COLUMNS=triton.next_power_of_2(columns),
    )
