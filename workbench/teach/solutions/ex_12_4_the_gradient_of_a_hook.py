r"""The chain rule, with the score that the hook was *given*.

The hook is $f(s) = s / (1 + |s| / c)$, which never leaves $(-c, c)$. For $s > 0$ the quotient rule says

$$f'(s) = \frac{(1 + s / c) - s \cdot \frac{1}{c}}{(1 + s / c)^2} = \frac{1}{(1 + |s| / c)^2}$$

and since $f(-s) = -f(s)$, its slope is the same on both sides, hence the $|s|$. The gradient with
respect to the hook's input is the gradient with respect to its output, times this slope.

The kernel computes S again in any case, and hands it to the gradient function, so that nothing more has to
be saved. It calls this function after $dS = P \odot (dP - \delta)$, which is the gradient with respect to
what the *softmax* was given, and before the products with K and Q. The weights need no care at all: P is
computed again by the same hook as in the forward pass.

Where a score is masked, P is 0, and so is all that comes after it.
"""

import torch
import triton
import triton.language as tl

from workbench.kernels.attention import Hook, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.launch import Launch


@triton.jit
def squash(scores, batch, head, query, key, extra):
    """score / (1 + |score| / extra[0])"""
    return scores / (1.0 + tl.abs(scores) / extra[0])


@triton.jit
def squash_gradient(gradient, scores, batch, head, query, key, extra):
    """gradient / (1 + |score| / extra[0])^2"""
    ### BEGIN SOLUTION
    slope = 1.0 + tl.abs(scores) / extra[0]
    # WRONG negative scores: slope = 1.0 + scores / extra[0]
    # WRONG the slope where the score has arrived:
    #     slope = 1.0 + tl.abs(squash(scores, batch, head, query, key, extra)) / extra[0]
    return gradient / (slope * slope)
    # WRONG passed on as it is: return gradient
    # WRONG not squared: return gradient / slope
    # WRONG multiplied, not divided: return gradient * (slope * slope)
    # WRONG the function again: return squash(gradient, batch, head, query, key, extra)
    ### END SOLUTION
    # STUB: pass  # return the gradient of `scores`, from that of what `squash` returned


def squashed_gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    cap: float,
) -> Launch:
    """dQ, dK and dV of attention whose scores are squashed."""
    hook = Hook(squash, (cap,), squash_gradient)
    # STUB:
    #     hook = Hook(squash, (cap,), None)  # put squash_gradient here
    #     if hook.gradient is None:
    #         return None
    tiling = attention_backward.Tiling((16, 16))
    return attention_backward.launch(
        gradient,
        query,
        key,
        value,
        output,
        log_sums,
        Scoring(hooks=(hook,)),
        of_keys=tiling,
        of_queries=tiling,
    )
