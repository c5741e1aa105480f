r"""Two sums over the row, then one formula for each element.

The forward pass is $y_i = x_i \cdot r \cdot w_i$ with $r = (\overline{x^2} + \varepsilon)^{-1/2}$. An
element $x_j$ acts in two ways: on its own $y_j$, and through $r$ on all of them. With $g = dy \cdot w$, the
first way gives $r g_j$. For the second, $\partial r / \partial x_j = -r^3 x_j / n$, and every $y_i$ passes
on $g_i x_i$ of it:

$$dx_j = r g_j - \frac{r^3 x_j}{n} \sum_i g_i x_i = r \left( g_j - x_j \, r^2 \, \overline{g x} \right)$$

So a program needs $\overline{x^2}$ and $\overline{g x}$ of its row, and has the row's $x$ and $g$ in
registers when both are known: each element is loaded once. Nothing has to be kept from the forward pass,
though libraries keep $r$, one number a row, which saves the first sum.

A test by thought: without $\varepsilon$, multiplying a row by a constant does not change $y$, so the
gradient has to be at right angles to $x$. Indeed $\overline{x \cdot dx} = r \, (\overline{g x} -
\overline{x^2} \, r^2 \, \overline{g x}) = 0$, as $r^2 \, \overline{x^2} = 1$. With a sum instead of a mean,
or one $r$ less inside the parentheses, it no longer is.

The gradient of the weight is another matter: it is summed over *rows*, and rows lie in different programs.
"""

import torch
import triton
import triton.language as tl

from workbench.launch import Launch


@triton.jit
def rms_norm_backward_kernel(
    x_pointer, weight_pointer, dy_pointer, dx_pointer, columns, eps, BLOCK_SIZE: tl.constexpr
):
    """dx[i] = r * (g - x[i] * r^2 * mean of g * x[i]), g = dy[i] * weight, one row a program."""
    ### BEGIN SOLUTION
    column = tl.arange(0, BLOCK_SIZE)
    valid = column < columns
    places = tl.program_id(axis=0) * columns + column
    x = tl.load(x_pointer + places, mask=valid, other=0.0)
    dy = tl.load(dy_pointer + places, mask=valid, other=0.0)
    weight = tl.load(weight_pointer + column, mask=valid, other=0.0)
    g = dy * weight
    # WRONG the weight does not enter: g = dy
    r = 1 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
    # WRONG divided by the width of the tile: r = 1 / tl.sqrt(tl.sum(x * x, axis=0) / BLOCK_SIZE + eps)
    # WRONG no eps: r = 1 / tl.sqrt(tl.sum(x * x, axis=0) / columns)
    mean = tl.sum(g * x, axis=0) / columns
    # WRONG the mean of g: mean = tl.sum(g, axis=0) / columns
    # WRONG a sum instead of a mean: mean = tl.sum(g * x, axis=0)
    tl.store(dx_pointer + places, r * (g - x * r * r * mean), mask=valid)
    # WRONG r taken for a constant: tl.store(dx_pointer + places, r * g, mask=valid)
    # WRONG plus instead of minus: tl.store(dx_pointer + places, r * (g + x * r * r * mean), mask=valid)
    # WRONG one r less: tl.store(dx_pointer + places, r * (g - x * r * mean), mask=valid)
    # WRONG no r in front: tl.store(dx_pointer + places, g - x * r * r * mean, mask=valid)
    ### END SOLUTION


def rms_norm_backward(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, eps: float) -> Launch:
    """The gradient of x, from the gradient of the output."""
    rows, columns = x.shape
    dx = torch.empty_like(x)
    ### BEGIN SOLUTION
    arguments = (x, weight, dy, dx, columns, eps)
    block_size = triton.next_power_of_2(columns)
    # WRONG a tile of 1,024, whatever the row: block_size = 1024
    # WRONG a tile of 4,096, whatever the row: block_size = 4096
    return Launch.of(rms_norm_backward_kernel, (rows,), *arguments, outputs=dx, BLOCK_SIZE=block_size)
    ### END SOLUTION
    # STUB:
    #     return Launch.of(
    #         rms_norm_backward_kernel,
    #         (rows,),
    #         x,
    #         weight,
    #         dy,
    #         dx,
    #         columns,
    #         eps,
    #         outputs=dx,
    #         BLOCK_SIZE=triton.next_power_of_2(columns),
    #     )
