r"""Two lines of arithmetic on a tile; all else is the kernel's.

$$x' = c \cdot \tanh\frac{x}{c} - \text{slope}_h \cdot |i + \text{shift} - j|, \qquad
\tanh y = 1 - \frac{2}{1 + e^{2 y}}$$

The hook is given the scores of a tile, already scaled, with the numbers of their queries and keys, which
broadcast to the tile: a column and a row. So it needs no loop, and no place of its own. The head may be a
number, or a column of numbers where heads that share keys are rows of one tile; `slopes + head` is right
for both.

The order is that of the formula: a cap on the *sum* would bend the slopes too, and a far key would be no
worse than $-c$. And the place of query $i$ among the keys is $i + \text{shift}$: with a cache of earlier
keys the last query is beside the last key.

For large $y$ the exponential is infinite, and $2 / \infty$ is 0: nothing has to be done about that. Near 0
the formula loses digits, which weights in fp16 do not miss; the package's own `tanh` has a series there.

A hook is compiled into the kernel, so that it costs what its instructions cost, on every score. It is why the
scale cannot be left to the exponential's multiply-add here: a hook wants scores.
"""

import torch
import triton
import triton.language as tl

from workbench.kernels import attention
from workbench.kernels.attention import Hook, Scoring
from workbench.launch import Launch


@triton.jit
def bend(scores, batch, head, query, key, extra):
    """Cap scores softly, and subtract the distance times the head's slope."""
    ### BEGIN SOLUTION
    slopes, cap, shift = extra
    capped = cap - 2 * cap / (1 + tl.exp(2 * scores / cap))
    # WRONG tanh of another argument: capped = cap - 2 * cap / (1 + tl.exp(scores / cap))
    # WRONG between -1 and 1: capped = 1 - 2 / (1 + tl.exp(2 * scores / cap))
    distance = tl.abs(query + shift - key)
    # WRONG aligned at the beginning: distance = tl.abs(query - key)
    # WRONG the shift turned around: distance = tl.abs(query - shift - key)
    return capped - tl.load(slopes + head) * distance
    # WRONG the distance is capped too:
    #     bent = scores - tl.load(slopes + head) * distance
    #     return cap - 2 * cap / (1 + tl.exp(2 * bent / cap))
    # WRONG no cap: return scores - tl.load(slopes + head) * distance
    # WRONG one slope for all heads: return capped - tl.load(slopes) * distance
    # WRONG far keys are preferred: return capped + tl.load(slopes + head) * distance
    ### END SOLUTION
    # STUB: return scores


def bent(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slopes: torch.Tensor, cap: float
) -> Launch:
    """Attention by the package's kernel, with scores that are bent."""
    hook = Hook(bend, (slopes, cap, key.shape[2] - query.shape[2]))
    # STUB:
    #     hook = None  # Hook(bend, ...): what does your function have to be given?
    #     if hook is None:
    #         return None
    scoring = Scoring(hooks=(hook,))
    return attention.launch(query, key, value, scoring, tile=(16, 16), splits=1)
