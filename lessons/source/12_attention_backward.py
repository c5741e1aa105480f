# %% [markdown]
# # Attention backward: compute the weights again
#
# You will build
#
# - the gradients of attention without its matrices in memory: delta, then dV, then dK, then
#   dQ, one kernel at a time, each tile of them checked against autograd and against finite
#   differences;
# - the same with a causal mask, which skips tiles in both directions, and with heads that
#   share their keys, until your kernels give the same bits as those that ship;
# - an answer to a question of design: two kernels that do some work twice, or one that adds
#   to memory in any order?
#
# **Time:** 60 minutes. **You need:** Python, [lesson 03](03_tile_reduction.ipynb)'s softmax
# and [lesson 05](05_tile_gemm.ipynb)'s tiles; what attention's forward pass does is said
# again where it matters. Kernels run in the interpreter and are compiled for GPUs that need
# not be here.
#
# **Out of scope:** the forward pass (lesson 11), dropout and masks of your own, which the
# shipped kernels have, and gradients in fp8, which they have not.

# %%
from workbench import Launch, Step, device, explore, lens, readings, runtime, suites
from workbench import teach, viz
from workbench.bench import from_recording, recording
from workbench.kernels import attention
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention import CAUSAL, EVERYTHING, Hook, Scoring, Window
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.tile import gemm, reduce, scores

import inspect
import math
from dataclasses import replace
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## The idea: what was thrown away can be made again
#
# For each head, with a scale of $1 / \sqrt{\text{columns}}$, attention is
#
# $$S = \text{scale} \cdot Q K^T, \qquad P = \text{softmax}(S), \qquad O = P V$$
#
# and the forward pass never had $S$ and $P$ in memory: a tile of them was made, used and
# dropped. Now a loss sends back $dO$, the gradient of the output, and asks for those of
# $Q$, $K$ and $V$. Had we $P$, the rules for a product's gradients would say
#
# $$dV = P^T dO, \qquad dP = dO\, V^T, \qquad dQ = \text{scale} \cdot dS\, K, \qquad
# dK = \text{scale} \cdot dS^T Q$$
#
# and only $dS$, through the softmax, needs a thought. So $P$ is needed after all. The
# forward pass could save it. Or it saves one number for each query, the **log-sum-exp**
#
# $$L_i = \log \sum_j e^{S_{ij}}$$
#
# from which each weight follows by itself, $P_{ij} = e^{S_{ij} - L_i}$, once its score is
# computed again.
#
# **Predict.** With 4,096 queries and keys: how many times as many bytes has a head's $P$ in
# fp16 as its $L$ in fp32?

# %%
saved = teach.predict(
    "Bytes of P over those of L, 4,096 keys", guess=None, unit="times"
)

# %%
saved.reveal(4096 * 2 // 4, because="4,096 weights of 2 bytes for each number of 4.")
per_head = 4096 * 4096 * 2
print(f"P of 32 heads: {32 * per_head / 2**30:.0f} GiB; L: {32 * 4096 * 4 / 2**20} MiB")

# %% [markdown]
# Memory alone would decide it. But what of time? To have an element of $P$ again costs
# $2 \cdot \text{columns}$ FLOPs and an exponential; to read it costs 2 bytes.
#
# **Predict.** For heads of 64 columns on an H200, which is sooner: reading a tile of $P$ from
# memory, or computing its scores again? (Lesson 02 has the two roofs.)

# %%
again = teach.predict(
    "A tile of P, 64 columns: read, or computed again?",
    guess=None,
    choices=("read it", "compute it again"),
)

# %%
here = device.current()
shipped = recording.shipped("nvidia-h200")
roofs, _ = suites.live_or_recorded("matmul", recorded=True)
tile_of_pairs = 128 * 128
reading = tile_of_pairs * 2 / roofs.bandwidth
computing = tile_of_pairs * 2 * 64 / roofs.matrix["fp16"]
again.reveal(
    "compute it again" if computing < reading else "read it",
    because=f"under the roofs it takes {computing / reading:.2f} times as long; and to be "
    "read, P would have to be written first.",
)

# %% [markdown]
# That is **recomputation**: FLOPs are spent to save bytes, because FLOPs are what there is
# plenty of. Count products of tiles of pairs: forward has two, $QK^T$ and $PV$. Backward with
# a saved $P$ would have four, and so it has five: 2.5 times the FLOPs of the forward pass.
#
# ## The reference
#
# Two lines of torch, if all weights may be in memory. Here they are in float64, for heads
# that may share keys (`group` of them each) and with a causal mask if asked for.


# %%
def by_autograd(gradient, *inputs, causal=False):
    """dQ, dK and dV in float64; of queries, keys and values [heads, rows, columns]."""
    of = [tensor.detach().cpu().double().requires_grad_() for tensor in inputs]
    output = attended(*of, causal)
    return torch.autograd.grad(output, of, gradient.cpu().double())


def attended(query, key, value, causal=False):
    group = len(query) // len(key)
    key, value = (tensor.repeat_interleave(group, 0) for tensor in (key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def drawn(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


HEADS, QUERIES, KEYS, SIZE = 2, 70, 53, 16
query, gradient = drawn(2, HEADS, QUERIES, SIZE)
key, value = drawn(2, HEADS, KEYS, SIZE, seed=1)
exact = by_autograd(gradient, query, key, value)
print([tuple(of.shape) for of in exact])

# %% [markdown]
# And what the forward pass leaves for us, from the kernel that ships. It takes a batch of
# heads, [batch, heads, rows, columns]:


# %%
def forward(query, key, value, causal=False):
    """Output and log-sum-exps, [heads, queries, columns] and [heads, queries]."""
    scoring = Scoring(window=CAUSAL if causal else EVERYTHING)
    batch = [tensor[None] for tensor in (query, key, value)]
    launch = attention.launch(*batch, scoring, tile=(16, 16))
    return [tensor[0] for tensor in runtime.interpret(launch).outputs]


output, log_sums = forward(query, key, value)
print(tuple(output.shape), tuple(log_sums.shape), log_sums.dtype)

# %% [markdown]
# ## Through the softmax
#
# One row: $P_j = e^{S_j} / \sum_i e^{S_i}$. A score raises its own weight and lowers all
# others, since they sum to 1:
#
# $$\frac{\partial P_i}{\partial S_j} = P_i\, ([i = j] - P_j)$$
#
# The gradient of $S_j$ collects what it does to all weights:
#
# $$dS_j = \sum_i dP_i\, P_i\, ([i = j] - P_j) = P_j\, \Big( dP_j -
# \underbrace{\sum_i P_i\, dP_i}_{\delta} \Big)$$
#
# $\delta$ is one number for each row, the average of $dP$ by the weights.
#
# **Predict.** What is the sum of a row of $dS$?

# %%
of_a_row = teach.predict("The sum of dS over a row", guess=None)

# %%
of_a_row.reveal(
    0,
    because="a number added to all scores of a row changes no weight, and so no loss.",
)

# %% [markdown]
# There is a difficulty in $\delta$: it sums over *all* keys, and $dS$ of the first tile of
# keys needs it already. Would we have to go over the keys twice? No: put $dP_i = \sum_c dO_c
# V_{ic}$ into it and exchange the sums.
#
# $$\delta = \sum_i P_i \sum_c dO_c\, V_{ic} = \sum_c dO_c \sum_i P_i\, V_{ic} =
# \sum_c dO_c\, O_c$$
#
# $O$ is what the forward pass returned: $\delta$ needs no weights at all. In numbers, with
# $dS$ beside what a small change of a score does to the loss:

# %%
all_scores = query @ key.mT * SIZE**-0.5
weights = torch.softmax(all_scores, -1)
of_weights = gradient @ value.mT
delta = (gradient * output).sum(-1)
print("delta is the same:", torch.allclose(delta, (weights * of_weights).sum(-1)))
of_scores = weights * (of_weights - delta[..., None])
print("rows of dS sum to 0:", bool((of_scores.sum(-1).abs() < 1e-12).all()))


def loss_of_scores(given):
    return float((gradient * (torch.softmax(given, -1) @ value)).sum())


for place in ((0, 0, 0), (0, 41, 7), (1, 69, 52)):
    change = torch.zeros_like(all_scores)
    change[place] = 1e-5
    up, down = loss_of_scores(all_scores + change), loss_of_scores(all_scores - change)
    print(
        f"dS{place}: {of_scores[place]:9.6f}, by difference {(up - down) / 2e-5:9.6f}"
    )

# %% [markdown]
# ## Step 1: delta
#
# The smallest kernel first: a program has some rows of a head. `rows_of` loads a tile of
# whole rows with lesson 05's loader, zeros beyond the last; `write_rows` stores one. From
# here on a tensor is [heads, rows, columns] and contiguous, with a power of two of columns.
# What the arithmetic is done in is the type of the log-sum-exps: fp32, and float64 for
# float64, so that the same kernels can be checked to fifteen digits.


# %%
@triton.jit
def rows_of(tensor, head, rows, start, ROWS: tl.constexpr, SIZE: tl.constexpr):
    matrix = tensor + head * rows * SIZE, (rows, SIZE), (SIZE, 1)
    return gemm.load_strided(matrix, start, 0, ROWS, SIZE, True, False)


@triton.jit
def write_rows(tensor, head, rows, start, tile, ROWS: tl.constexpr, SIZE: tl.constexpr):
    row = start + tl.arange(0, ROWS)[:, None]
    places = (head * rows + row) * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(tensor + places, tile, mask=row < rows)


@triton.jit
def delta_kernel(
    output, gradient, deltas, queries, TILE: tl.constexpr, SIZE: tl.constexpr
):
    TYPE: tl.constexpr = deltas.dtype.element_ty
    start, head = tl.program_id(0) * TILE, tl.program_id(1)
    o = rows_of(output, head, queries, start, TILE, SIZE).to(TYPE)
    do = rows_of(gradient, head, queries, start, TILE, SIZE).to(TYPE)
    row = start + tl.arange(0, TILE)
    tl.store(deltas + head * queries + row, tl.sum(o * do, 1), mask=row < queries)


def delta_of(output, gradient, log_sums, tile=16):
    heads, queries, columns = output.shape
    deltas = torch.empty_like(log_sums)
    grid = (triton.cdiv(queries, tile), heads)
    arguments = (output, gradient, deltas, queries)
    return Launch.of(
        delta_kernel, grid, *arguments, outputs=deltas, TILE=tile, SIZE=columns
    )


launch = delta_of(output, gradient, log_sums)
(deltas,) = runtime.interpret(launch, poison=True, seed=1).outputs
print("right:", torch.allclose(deltas, delta))

# %% [markdown]
# It reads $O$ and $dO$ once, and what it writes is as small as $L$. Its time is little, and
# it saves going over all keys a second time.
#
# ## Step 2: dV, from weights that are made again
#
# $$dV_j = \sum_i P_{ij}\, dO_i$$
#
# sums over *queries*. So turn the forward pass around: a program keeps a tile of keys, the
# queries pass by, and the sum stays in registers. All tiles are transposed, [keys, queries],
# so that what is summed over is the inner dimension of a product:
#
# $$P^T = e^{\,\text{scale} \cdot K Q^T - L}, \qquad dV \mathrel{+}= P^T dO$$
#
# **Predict.** The forward pass had to find each row's maximum before it could take an
# exponential, or $e^{S}$ would overflow. Which maximum does this pass need?

# %%
maximum = teach.predict(
    "The maximum that backward subtracts",
    guess=None,
    choices=("of the tile", "of the row", "none"),
)

# %%
large = torch.tensor([1000.0, 999.0, 0.0])
print("e^S:      ", torch.exp(large).tolist())
from_sum = torch.exp(large - large.logsumexp(0))
print("e^(S - L):", [round(float(each), 4) for each in from_sum])
maximum.reveal(
    "none", because="L is no less than any score of its row, so no e^(S - L) exceeds 1."
)

# %% [markdown]
# The maximum is in $L$ already. With the whole row's sum in it too, nothing is rescaled as
# tiles pass: backward has no online softmax.
#
# Two habits of the shipped kernels come in here. $e^x$ is computed as $2^{x \log_2 e}$,
# which is what hardware has. And every product of tiles goes through `gemm.product`, the one
# place where matrix units are asked. Queries beyond the last one get $L = \infty$, so that
# their weights are 0.


# %%
@triton.jit
def weights_again(
    products, log_sums, head, start, queries, scale, TILE_M: tl.constexpr
):
    row = start + tl.arange(0, TILE_M)
    log_sum = tl.load(
        log_sums + head * queries + row, mask=row < queries, other=float("inf")
    )
    return tl.exp2((products * scale - log_sum[None, :]) * scores.LOG2_E)


@triton.jit
def values_kernel(
    query,
    key,
    gradient,
    log_sums,
    value_gradient,
    queries,
    keys,
    scale,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    TYPE: tl.constexpr = log_sums.dtype.element_ty
    first, head = tl.program_id(0) * TILE_N, tl.program_id(1)
    k = rows_of(key, head, keys, first, TILE_N, SIZE)
    of_values = gemm.zeros(TILE_N, SIZE, TYPE)
    for start in range(0, queries, TILE_M):
        q = rows_of(query, head, queries, start, TILE_M, SIZE)
        do = rows_of(gradient, head, queries, start, TILE_M, SIZE)
        none = gemm.zeros(TILE_N, TILE_M, TYPE)
        products = gemm.product(k, tl.trans(q), none, TYPE, "ieee")
        p = weights_again(products, log_sums, head, start, queries, scale, TILE_M)
        of_values = gemm.product(p.to(do.dtype), do, of_values, TYPE, "ieee")
    write_rows(value_gradient, head, keys, first, of_values, TILE_N, SIZE)


def values_launch(query, key, gradient, log_sums, tile=(16, 16)):
    (heads, queries, columns), keys = query.shape, key.shape[1]
    of_values = torch.empty_like(key)
    return Launch.of(
        values_kernel,
        (triton.cdiv(keys, tile[1]), heads),
        *(query, key, gradient, log_sums, of_values),
        *(queries, keys, columns**-0.5),
        outputs=of_values,
        TILE_M=tile[0],
        TILE_N=tile[1],
        SIZE=columns,
    )


# %% [markdown]
# Whether a tile is right is asked twice, of two judges that know nothing of each other:
#
# - *autograd* in float64, element by element;
# - *finite differences*: go a small step in a random direction that changes only the rows of
#   this tile, forward and back. The loss must change as the tile of the gradient says. This
#   judge knows the forward pass alone: it would notice if we had asked autograd the wrong
#   question.


# %%
def loss(inputs):
    return float((gradient * attended(*inputs)).sum())


def judge(name, which, got, tile=16, step=1e-5):
    """Print how many tiles of a gradient each of the judges accepts."""
    inputs = (query, key, value)
    first_rows = range(0, got.shape[1], tile)
    by_gradient = by_difference = 0
    for first in first_rows:
        rows = slice(first, first + tile)
        by_gradient += torch.allclose(got[:, rows], exact[which][:, rows], atol=1e-10)
        direction = torch.zeros_like(got)
        direction[:, rows] = drawn(*got[:, rows].shape, seed=first + 5)
        up, down = (
            loss(
                tensor + way * direction if number == which else tensor
                for number, tensor in enumerate(inputs)
            )
            for way in (step, -step)
        )
        slope = float((got * direction).sum())
        by_difference += abs((up - down) / (2 * step) - slope) < 1e-6
    print(
        f"{name}: of {len(first_rows)} tiles, autograd accepts {by_gradient}, "
        f"finite differences accept {by_difference}"
    )


launch = values_launch(query, key, gradient, log_sums)
(got,) = runtime.interpret(launch, poison=True, seed=2).outputs
judge("dV", 2, got)

# %% [markdown]
# The last tile of queries hangs over: 70 queries are four tiles of 16 and 6 more. The last
# tile of keys does too; what its rows beyond the end hold is not stored.
#
# ## Step 3: dP, dS and dK
#
# In the same round of the loop all is at hand that dK needs: two more products and a line of
# arithmetic.
#
# $$dP^T = V\, dO^T, \qquad dS^T = P^T \odot (dP^T - \delta), \qquad dK \mathrel{+}= dS^T Q$$
#
# The scale of dK is multiplied once, in the end. **Predict.** Per round, the kernel of step 2
# has two products of tiles. How many has this one?

# %%
products_a_round = teach.predict(
    "Products in a round of the kernel for dK and dV", guess=None, unit="products"
)


# %%
@triton.jit
def both_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    key_gradient,
    value_gradient,
    queries,
    keys,
    scale,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    TYPE: tl.constexpr = log_sums.dtype.element_ty
    first, head = tl.program_id(0) * TILE_N, tl.program_id(1)
    k = rows_of(key, head, keys, first, TILE_N, SIZE)
    v = rows_of(value, head, keys, first, TILE_N, SIZE)
    of_keys = gemm.zeros(TILE_N, SIZE, TYPE)
    of_values = gemm.zeros(TILE_N, SIZE, TYPE)
    none = gemm.zeros(TILE_N, TILE_M, TYPE)
    for start in range(0, queries, TILE_M):
        q = rows_of(query, head, queries, start, TILE_M, SIZE)
        do = rows_of(gradient, head, queries, start, TILE_M, SIZE)
        products = gemm.product(k, tl.trans(q), none, TYPE, "ieee")
        p = weights_again(products, log_sums, head, start, queries, scale, TILE_M)
        of_values = gemm.product(p.to(do.dtype), do, of_values, TYPE, "ieee")
        dp = gemm.product(v, tl.trans(do), none, TYPE, "ieee")
        row = start + tl.arange(0, TILE_M)
        delta = tl.load(deltas + head * queries + row, mask=row < queries, other=0.0)
        ds = p * (dp - delta[None, :])
        of_keys = gemm.product(ds.to(q.dtype), q, of_keys, TYPE, "ieee")
    write_rows(key_gradient, head, keys, first, of_keys * scale, TILE_N, SIZE)
    write_rows(value_gradient, head, keys, first, of_values, TILE_N, SIZE)


def both_launch(query, key, value, gradient, log_sums, deltas, tile=(16, 16)):
    (heads, queries, columns), keys = query.shape, key.shape[1]
    outputs = torch.empty_like(key), torch.empty_like(value)
    return Launch.of(
        both_kernel,
        (triton.cdiv(keys, tile[1]), heads),
        *(query, key, value, gradient, log_sums, deltas, *outputs),
        *(queries, keys, columns**-0.5),
        outputs=outputs,
        TILE_M=tile[0],
        TILE_N=tile[1],
        SIZE=columns,
    )


launch = both_launch(query, key, value, gradient, log_sums, deltas)
of_keys, of_values = runtime.interpret(launch, poison=True, seed=3).outputs
judge("dV", 2, of_values)
judge("dK", 1, of_keys)

# %%
(trace,) = lens.trace(launch)
rounds = math.ceil(QUERIES / 16) * math.ceil(KEYS / 16) * HEADS
products_a_round.reveal(
    len([*trace.events(kind="dot")]) // rounds,
    because="K Qᵀ and V dOᵀ make a tile of pairs each, and dV and dK use one each.",
)

# %% [markdown]
# ## Step 4: dQ, in a kernel of its own
#
# $dQ_i = \text{scale} \cdot \sum_j dS_{ij} K_j$ sums over *keys*. In the kernel above keys
# lie in different programs: each has a part of every dQ. So let another kernel keep a tile of
# queries, with its $L$ and $\delta$, and let keys pass. It is the forward pass's loop, and
# has to make $P$ and $dP$ once more.


# %%
@triton.jit
def queries_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    query_gradient,
    queries,
    keys,
    scale,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    TYPE: tl.constexpr = log_sums.dtype.element_ty
    first, head = tl.program_id(0) * TILE_M, tl.program_id(1)
    q = rows_of(query, head, queries, first, TILE_M, SIZE)
    do = rows_of(gradient, head, queries, first, TILE_M, SIZE)
    row = first + tl.arange(0, TILE_M)
    of_row = head * queries + row
    log_sum = tl.load(log_sums + of_row, mask=row < queries, other=float("inf"))
    delta = tl.load(deltas + of_row, mask=row < queries, other=0.0)
    of_queries = gemm.zeros(TILE_M, SIZE, TYPE)
    none = gemm.zeros(TILE_M, TILE_N, TYPE)
    for start in range(0, keys, TILE_N):
        k = rows_of(key, head, keys, start, TILE_N, SIZE)
        v = rows_of(value, head, keys, start, TILE_N, SIZE)
        products = gemm.product(q, tl.trans(k), none, TYPE, "ieee")
        col = start + tl.arange(0, TILE_N)[None, :]
        products = scores.masked(products, col < keys)
        p = tl.exp2((products * scale - log_sum[:, None]) * scores.LOG2_E)
        dp = gemm.product(do, tl.trans(v), none, TYPE, "ieee")
        ds = p * (dp - delta[:, None])
        of_queries = gemm.product(ds.to(k.dtype), k, of_queries, TYPE, "ieee")
    write_rows(query_gradient, head, queries, first, of_queries * scale, TILE_M, SIZE)


def queries_launch(query, key, value, gradient, log_sums, deltas, tile=(16, 16)):
    (heads, queries, columns), keys = query.shape, key.shape[1]
    of_queries = torch.empty_like(query)
    return Launch.of(
        queries_kernel,
        (triton.cdiv(queries, tile[0]), heads),
        *(query, key, value, gradient, log_sums, deltas, of_queries),
        *(queries, keys, columns**-0.5),
        outputs=of_queries,
        TILE_M=tile[0],
        TILE_N=tile[1],
        SIZE=columns,
    )


launch = queries_launch(query, key, value, gradient, log_sums, deltas)
(of_queries,) = runtime.interpret(launch, poison=True, seed=4).outputs
judge("dQ", 0, of_queries)

# %% [markdown]
# Keys beyond the last one have to be masked here. They are loaded as zeros, so what they add
# to dQ is 0 times their $dS$; but with a score of 0 and an $L$ of, say, $-200$, their weight
# would be $e^{200}$, which is infinite in fp32, and 0 times that is NaN.
#
# ## Two kernels, or one?
#
# Three products for dQ, four for dK and dV: **seven**, of which two are made twice. Why not
# *five*? The kernel of keys has $dS$ at hand; it could make its part of dQ and add it to
# memory, with `tl.atomic_add`, where all programs of keys add to the same rows. The package
# has both designs. Counted by their traces:

# %%
of_some = [tensor[:, :37] for tensor in (gradient, query, output, log_sums)]
do, q, o, sums = (tensor[None].float() for tensor in of_some)
given = (do, q, key[None].float(), value[None].float(), o, sums)
SMALL = {"of_keys": Tiling((16, 16)), "of_queries": Tiling((16, 16))}
pairs = math.ceil(37 / 16) * math.ceil(KEYS / 16) * HEADS
for one_pass in (False, True):
    launch = attention_backward.launch(*given, one_pass=one_pass, **SMALL)
    steps = lens.trace(launch)
    dots = sum(len([*step.events(kind="dot")]) for step in steps)
    added = sum(step.traffic(kind="atomic").bytes for step in steps)
    print(
        f"{'one pass' if one_pass else 'two kernels'}: {dots // pairs} products for each "
        f"pair of tiles, {added:,} bytes added to memory"
    )

# %% [markdown]
# What the two kernels keep, what passes by, and what they multiply, as their traces tell it,
# for 128 queries and keys of 64 columns:

# %%
whole = [torch.zeros(1, 1, 128, 64, dtype=torch.float16) for _ in range(5)]
tilings = {"of_keys": Tiling((32, 64)), "of_queries": Tiling((64, 32))}
flow = readings.attention_gradients.gradient_flow(
    attention_backward.launch(*whole, torch.zeros(1, 1, 128), **tilings)
)
viz.Picture(
    viz.figure_png(viz.plot_attention_gradients(flow)),
    viz.describe_attention_gradients(flow),
)

# %%
for kernel in flow.kernels:
    kept = ", ".join(tile.name for tile in kernel.of("kept")) or "none"
    passing = ", ".join(tile.name for tile in kernel.of("passing")) or "none"
    written = ", ".join(tile.name for tile in kernel.of("written"))
    print(f"{kernel.kernel}: keeps {kept}; {passing} pass by; writes {written}")

# %% [markdown]
# The price of the one pass is in the last column of the count: each pair of tiles adds a
# whole tile of dQ to memory, in fp32, and another kernel rounds the sums in the end. (A
# register holds a sum for free; memory does not.) And there is something else, which lesson
# 06 met with split-K.
#
# **Predict.** Programs come in any order. With which of the two designs are the gradients the
# same, bit for bit, on every run?

# %%
same_bits = teach.predict(
    "The same bits on every run",
    guess=None,
    choices=("both", "two kernels", "one pass", "neither"),
)

# %%
same = {}
for one_pass in (False, True):
    launch = attention_backward.launch(*given, one_pass=one_pass, **SMALL)
    first, *others = (
        runtime.interpret(launch, seed=seed).outputs for seed in (1, 2, 3)
    )
    for name, number in (("dQ", 0), ("dK", 1), ("dV", 2)):
        equal = all(torch.equal(first[number], other[number]) for other in others)
        same[one_pass, name] = equal
        way = "one pass" if one_pass else "two kernels"
        print(f"{way:11s} {name} the same bits in three orders: {equal}")
same_bits.reveal(
    {(True, True): "both", (True, False): "two kernels"}[
        same[False, "dQ"], same[True, "dQ"]
    ],
    because="a sum in registers is made in the order of a loop; additions to memory come "
    "in the order of the programs.",
)

# %% [markdown]
# A training run that can be repeated bit for bit is worth something. Whether it costs
# anything is to be measured; see [below](#Measure).
#
# ## Step 5: a causal mask, in both directions
#
# A query sees the keys up to its own number. The kernel of queries ends its loop early, as
# the forward pass does. And the kernel of keys? **Predict.** With tiles of 16, which is the
# first tile of queries that the tile of keys 32 to 47 has to visit?

# %%
first_tile = teach.predict(
    "First tile of queries for the keys 32 to 47",
    guess=None,
    unit="(number of the tile)",
)

# %%
first_tile.reveal(2, because="query 32 is the first that sees key 32.")

# %% [markdown]
# So one loop ends early, and the other begins late. There need be no second rule for that.
# The forward pass asks a tile operator which tiles of keys some queries see:

# %%
print(inspect.getsource(scores.tiles_of_window.fn))

# %% [markdown]
# A query $i$ sees the keys from $i + \text{shift} - \text{left}$ to
# $i + \text{shift} + \text{right}$. Turn that around: a key $j$ is seen by the queries from
# $j - \text{shift} - \text{right}$ to $j - \text{shift} + \text{left}$. It is the same
# sentence with queries and keys exchanged, right and left, and the sign of the shift. So the
# same function serves, and forward and backward cannot disagree.
#
# ## Step 6: heads that share their keys
#
# With **grouped queries** several heads share one head of keys and values. For dQ nothing
# changes but which keys are loaded. dK and dV are sums over *all* heads of the group.
#
# **Predict.** 32 heads of queries share 8 heads of keys. If the kernel of keys is started for
# each head of queries, and its parts are added up by another kernel, how many times as many
# bytes of dK are written, parts included, as dK has?

# %%
parts = teach.predict("Bytes of dK and its parts, over dK's", guess=None, unit="times")

# %%
parts.reveal(32 // 8 + 1, because="four heads of parts for each of dK, and dK itself.")

# %% [markdown]
# Instead, one program loops over the heads of its group and keeps the sums in registers, as
# it does for the queries of one head: a loop around the loop, no parts, no atomic additions.
# Here are both kernels with a causal mask (aligned at the beginning if `shift` is 0) and
# with groups. What is made of a pair of tiles has become one function for both, whose rows
# are keys in the one and queries in the other.


# %%
@triton.jit
def of_pairs(
    held,
    passing,
    held_values,
    passing_values,
    log_sum,
    delta,
    row,
    col,
    keys,
    shift,
    scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """P and dS of a tile of pairs; row and col are the numbers of queries and keys."""
    TYPE: tl.constexpr = log_sum.dtype
    none = gemm.zeros(ROWS, COLS, TYPE)
    products = gemm.product(held, tl.trans(passing), none, TYPE, "ieee")
    seen = scores.sees(row, col, keys, 0, 0, shift, False, CAUSAL)
    products = scores.masked(products, seen)
    p = tl.exp2((products * scale - log_sum) * scores.LOG2_E)
    dp = gemm.product(held_values, tl.trans(passing_values), none, TYPE, "ieee")
    return p, p * (dp - delta)


@triton.jit
def sums_of_rows(log_sums, deltas, head, row, queries):
    of_row = head * queries + row
    log_sum = tl.load(log_sums + of_row, mask=row < queries, other=float("inf"))
    delta = tl.load(deltas + of_row, mask=row < queries, other=0.0)
    return reduce.finite_shift(log_sum), delta


@triton.jit
def tile_of_keys_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    key_gradient,
    value_gradient,
    queries,
    keys,
    group,
    shift,
    scale,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    TYPE: tl.constexpr = log_sums.dtype.element_ty
    first, of_key = tl.program_id(0) * TILE_N, tl.program_id(1)
    k = rows_of(key, of_key, keys, first, TILE_N, SIZE)
    v = rows_of(value, of_key, keys, first, TILE_N, SIZE)
    of_keys = gemm.zeros(TILE_N, SIZE, TYPE)
    of_values = gemm.zeros(TILE_N, SIZE, TYPE)
    col = first + tl.arange(0, TILE_N)[:, None]
    last = min(first + TILE_N, keys) - 1
    bounds = scores.tiles_of_window(
        first, last, queries, 0, 0, -shift, TILE_M, CAUSAL, False
    )
    for member in range(group):
        head = of_key * group + member
        for tile in range(bounds[0], bounds[3]):
            start = tile * TILE_M
            q = rows_of(query, head, queries, start, TILE_M, SIZE)
            do = rows_of(gradient, head, queries, start, TILE_M, SIZE)
            row = start + tl.arange(0, TILE_M)
            log_sum, delta = sums_of_rows(log_sums, deltas, head, row, queries)
            p, ds = of_pairs(
                *(k, q, v, do, log_sum[None, :], delta[None, :], row[None, :], col),
                *(keys, shift, scale, TILE_N, TILE_M, CAUSAL),
            )
            of_values = gemm.product(p.to(do.dtype), do, of_values, TYPE, "ieee")
            of_keys = gemm.product(ds.to(q.dtype), q, of_keys, TYPE, "ieee")
    write_rows(key_gradient, of_key, keys, first, of_keys * scale, TILE_N, SIZE)
    write_rows(value_gradient, of_key, keys, first, of_values, TILE_N, SIZE)


@triton.jit
def tile_of_queries_kernel(
    query,
    key,
    value,
    gradient,
    log_sums,
    deltas,
    query_gradient,
    queries,
    keys,
    group,
    shift,
    scale,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    TYPE: tl.constexpr = log_sums.dtype.element_ty
    first, head = tl.program_id(0) * TILE_M, tl.program_id(1)
    of_key = head // group
    q = rows_of(query, head, queries, first, TILE_M, SIZE)
    do = rows_of(gradient, head, queries, first, TILE_M, SIZE)
    of_queries = gemm.zeros(TILE_M, SIZE, TYPE)
    row = first + tl.arange(0, TILE_M)
    log_sum, delta = sums_of_rows(log_sums, deltas, head, row, queries)
    last = min(first + TILE_M, queries) - 1
    bounds = scores.tiles_of_window(
        first, last, keys, 0, 0, shift, TILE_N, False, CAUSAL
    )
    for tile in range(bounds[0], bounds[3]):
        start = tile * TILE_N
        k = rows_of(key, of_key, keys, start, TILE_N, SIZE)
        v = rows_of(value, of_key, keys, start, TILE_N, SIZE)
        col = start + tl.arange(0, TILE_N)[None, :]
        _, ds = of_pairs(
            *(q, k, do, v, log_sum[:, None], delta[:, None], row[:, None], col),
            *(keys, shift, scale, TILE_M, TILE_N, CAUSAL),
        )
        of_queries = gemm.product(ds.to(k.dtype), k, of_queries, TYPE, "ieee")
    write_rows(query_gradient, head, queries, first, of_queries * scale, TILE_M, SIZE)


def backward(
    gradient, query, key, value, output, log_sums, causal=False, shift=0, tile=(16, 16)
):
    """Three steps: delta, dK and dV, dQ."""
    (heads, queries, columns), (key_heads, keys, _) = query.shape, key.shape
    delta = delta_of(output, gradient, log_sums)
    (deltas,) = delta.outputs
    outputs = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    tensors = (query, key, value, gradient, log_sums, deltas)
    sizes = (queries, keys, heads // key_heads, shift, columns**-0.5)
    meta = {"TILE_M": tile[0], "TILE_N": tile[1], "SIZE": columns, "CAUSAL": causal}
    of_keys = Step(
        tile_of_keys_kernel,
        (triton.cdiv(keys, tile[1]), key_heads),
        (*tensors, *outputs[1:], *sizes),
        meta,
    )
    of_queries = Step(
        tile_of_queries_kernel,
        (triton.cdiv(queries, tile[0]), heads),
        (*tensors, outputs[0], *sizes),
        meta,
    )
    return Launch((*delta.steps, of_keys, of_queries), outputs, workspaces=(deltas,))


# %% [markdown]
# How many pairs of tiles do the two kernels visit, of 4 × 4? By the trace: the kernel of keys
# has four products for each, that of queries three.

# %%
square = drawn(4, 1, 64, SIZE, seed=2)
for causal in (False, True):
    q, k, v, do = square
    launch = backward(do, q, k, v, *forward(q, k, v, causal), causal=causal)
    _, of_keys, of_queries = lens.trace(launch)
    visited = [
        len([*step.events(kind="dot")]) // products
        for step, products in ((of_keys, 4), (of_queries, 3))
    ]
    print(
        f"causal={causal!s:5}: by keys {visited[0]} of 16, by queries {visited[1]} of 16"
    )

# %% [markdown]
# Both directions visit the same pairs. 10 of 16 is more than half: four tiles lie on the
# diagonal, and are computed whole, of which half is thrown away. The more tiles, the less
# that matters.
#
# ## The numerics
#
# **Rows that see nothing.** With a mask that is aligned at the end and more queries than keys,
# the first queries see no key. All their scores are $-\infty$, and so is $L$.

# %%
few_keys = [
    tensor[:, None].float() for tensor in (query[:1], key[:1, :20], value[:1, :20])
]
at_end = Scoring(window=Window(right=0, from_end=True))
on_device = [tensor.to(here.torch_device) for tensor in few_keys]
sees_nothing, sums = attention.launch(*on_device, at_end, tile=(16, 16)).run()
print(
    "L of query 0:",
    float(sums[0, 0, 0]),
    "output:",
    float(sees_nothing.abs()[0, 0, 0].max()),
)
minus_infinity = torch.tensor(float("-inf"))
print("e^(S - L), S masked:", float(torch.exp(minus_infinity - minus_infinity)))
print("e^(S - 0), S masked:", float(torch.exp(minus_infinity - 0)))

# %% [markdown]
# $-\infty - (-\infty)$ is NaN, and one NaN in a tile of $P^T$ makes a whole row of dV NaN. So
# `sums_of_rows` puts 0 in place of an $L$ of $-\infty$, with the forward pass's own
# `finite_shift`: any finite number will do, for $e^{-\infty - 0} = 0$. A query that sees
# nothing has no gradient and gives none.
#
# **Rounding.** Matrix units take 16 bits, so $P$ and $dS$ are rounded on their way into
# products, `p.to(do.dtype)`, while sums stay in fp32. What does it do? Here are the
# gradients in torch, from inputs in bf16, with everything else in float64 but that one
# rounding:


# %%
def rounded(tensor, is_rounded):
    return tensor.bfloat16().double() if is_rounded else tensor


def error_of(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


in_bf16 = [tensor.bfloat16().double() for tensor in (gradient, query, key, value)]
do, q, k, v = in_bf16
wanted = by_autograd(*in_bf16)
p = torch.softmax(q @ k.mT * SIZE**-0.5, -1)
ds = p * (do @ v.mT - (do * (p @ v)).sum(-1)[..., None])
for is_rounded in (False, True):
    dv = rounded(p, is_rounded).mT @ do
    dk = rounded(ds, is_rounded).mT @ q * SIZE**-0.5
    errors = error_of(dk, wanted[1]), error_of(dv, wanted[2])
    print(
        f"{'P and dS rounded' if is_rounded else 'nothing rounded':16s}: "
        f"an error is seen: {max(errors) > 1e-12}, "
        f"of half a step of bf16 or more: {max(errors) >= 2**-8}"
    )

# %% [markdown]
# The roundings of many terms average out: what they do to a sum is less than what storing it
# in bf16 may do, half a step. So products can take 16 bits here, and matrix units with them.
#
# What does *not* average out is $\delta$ from an $O$ that was rounded. $dP - \delta$ is a
# difference of numbers that may be nearly the same: with a single key, $dS$ is 0, and a
# tile algorithm, which makes $dP$ by a product and $\delta$ from the output, has something
# of the size of a rounding there instead. So gradients are compared with a tolerance that
# belongs to the largest of all three.
#
# ## The kernels that ship
#
# First the proof that there is nothing between yours and theirs. In fp32, with the same tiles,
# the shipped kernels' gradients and yours:

# %%
grouped = drawn(2, 4, 37, SIZE, dtype=torch.float32, seed=3)
shared = drawn(2, 2, 29, SIZE, dtype=torch.float32, seed=4)
for causal in (False, True):
    (q, do), (k, v) = grouped, shared
    o, sums = forward(q, k, v, causal)
    mine = runtime.interpret(backward(do, q, k, v, o, sums, causal=causal)).outputs
    launch = attention_backward.launch(
        *(tensor[None] for tensor in (do, q, k, v, o, sums)),
        Scoring(window=CAUSAL if causal else EVERYTHING),
        **SMALL,
    )
    theirs = runtime.interpret(launch).outputs
    same = [torch.equal(one, other[0]) for one, other in zip(mine, theirs, strict=True)]
    print(f"causal={causal!s:5}: dQ, dK, dV the same bits: {same}")

# %% [markdown]
# Now read the one for keys. It is your `tile_of_keys_kernel`, argument for argument, around
# your `of_pairs`:

# %%
print(inspect.getsource(attention_backward.gradients_of_scores.fn))

# %%
print(inspect.getsource(attention_backward.gradients_of_keys_kernel.fn))

# %% [markdown]
# What it has that yours does not, and why:
#
# - **three phases**: tiles before the whole ones, whole ones, tiles behind them. Only where
#   some pair may not be seen is there a mask; your kernel masks every tile;
# - **parts** (`load_parts`, `WIDTHS`): heads of 192 columns are 128 and 64, since a tile's
#   sides are powers of two. `CHECKS` says at compile time which tiles can hang over;
# - **any strides**, and a batch: query, key and value may be slices of one tensor;
# - **`DESCRIBED`**: tiles by TMA, lesson 06's rung 10, of those tensors that it takes;
# - **hooks** (`unhooked`): a function of each score, such as a soft cap or a bias, has a
#   gradient, which is called behind $P \odot (dP - \delta)$. The last exercise is about that;
# - **windows** with a left side, **masks** of a learner with a list of the tiles to visit
#   (`VISITS`), **sequences** one after another (`RAGGED`), **dropout**, whose generator counts,
#   so that backward drops what forward has dropped;
# - **`EXACT`**: for 16 bits the scale, $\log_2 e$ and $L$ are one multiply-add;
# - **`ADDS`**: the other design, with atomic additions to dQ;
# - **`WIDE`**: offsets of 64 bits.
#
# What is not used is decided when the kernel is compiled, and costs nothing.
#
# ## Check it
#
# Ragged shapes, groups, with a mask and without, in fp16, into outputs that were full of NaN,
# and with programs shuffled.


# %%
def passes(candidate, shape, causal, seed=0):
    """Test a backward against autograd, for (heads, key heads, queries, keys)."""
    heads, key_heads, queries, keys = shape
    q, do = drawn(2, heads, queries, SIZE, dtype=torch.float16, seed=seed)
    k, v = drawn(2, key_heads, keys, SIZE, dtype=torch.float16, seed=seed + 1)
    launch = candidate(do, q, k, v, *forward(q, k, v, causal), causal=causal)
    got = runtime.interpret(launch, poison=True, seed=seed).outputs
    wanted = by_autograd(do, q, k, v, causal=causal)
    largest = max(float(each.abs().max()) for each in wanted)
    return all(
        float((one.double() - other).abs().max()) < 4e-3 * largest
        for one, other in zip(got, wanted, strict=True)
    )


shapes = ((2, 2, 16, 16), (2, 1, 35, 20), (2, 1, 17, 18), (1, 1, 1, 3))
for shape, causal in product(shapes, (False, True)):
    agrees = passes(backward, shape, causal, seed=sum(shape))
    print(f"{shape}, causal={causal!s:5}: agrees with autograd: {agrees}")

# %% [markdown]
# Why both, with a mask and without? A backward was published, in Triton's own tutorial on
# attention, that is right with the causal mask alone: it began its loop at the diagonal,
# and masked there, whether asked to or not ([issue
# 4541](https://github.com/triton-lang/triton/issues/4541)). Its test was causal. Here it is
# again:


# %%
def causal_whatever_is_asked(*tensors, causal):
    return backward(*tensors, causal=True)


for causal in (True, False):
    agrees = passes(causal_whatever_is_asked, (2, 1, 17, 18), causal)
    print(f"asked for causal={causal!s:5}: agrees with autograd: {agrees}")

# %% [markdown]
# A kernel that the interpreter runs is not yet one that a compiler takes. Yours, with groups
# and a causal mask, for both vendors:

# %%
of_queries, of_keys = (
    torch.empty(heads, 128, 64, dtype=torch.float16) for heads in (4, 2)
)
launch = backward(
    *(of_queries, of_queries, of_keys, of_keys, of_queries, torch.empty(4, 128)),
    causal=True,
    tile=(32, 32),
)
for target in ("sm_90", "gfx942"):
    for step in lens.compile(launch, target)[1:]:
        units = "on matrix units" if step.count("matrix") else "not on matrix units"
        print(f"{target:6} {step.kernel}: products {units}")

# %% [markdown]
# What the check does *not* prove: that kernels are fast, or that offsets of large tensors are
# right. The package's tests ask these on GPUs too, with all four types,
# windows, hooks, masks, dropout and sequences of many lengths.
#
# ## Turn the knobs: which pairs are visited
#
# The widget asks the shipped forward kernel which pairs of tiles it visits; backward visits the
# same. Read it by rows for the kernel of queries, and by columns for the kernel of keys: a
# column's first tile is where its loop begins. Try the mask that is aligned at the end, with
# fewer keys than queries: which queries see nothing? And with a sliding window, which tiles of
# queries does a tile of keys meet?

# %% tags=["widget"]
choice = viz.TilesChoice("causal", 96, 96, (16, 16), window=32, from_end=False)
explore.attention.map_tiles(choice)

# %%
seen = explore.attention.tiles_of_choice(choice)
print(f"visited {seen.visited} of {seen.tiles}, {seen.masked} of them with a mask")
print("by tile of keys:   ", (seen.visits != 0).sum(0).tolist())
print("by tile of queries:", (seen.visits != 0).sum(1).tolist())

# %% [markdown]
# A tile of keys at the beginning is seen by all queries, one at the end by few; of queries it
# is the other way around. Programs of one kernel differ widely in their work, so the shipped
# kernel of queries starts with the long ones.
#
# ## Look inside
#
# Your kernel of step 3, for an H200 (`sm_90`); tick an MI300 (`gfx942`) too. Select the lines with
# `gemm.product`: four products of matrix units, in two shapes. Two make a tile of pairs from
# rows of 64 columns; two add to sums of 64 columns. Which of the loads came past the
# registers?

# %% tags=["widget"]
halves = [drawn(1, 128, 64, dtype=torch.float16, seed=seed) for seed in range(4)]
row_sums = torch.zeros(1, 128)
wide = both_launch(*halves, row_sums, row_sums.clone(), tile=(32, 64))
explore.source.source_lens(wide, shown=("sm_90",))

# %% [markdown]
# Now the shipped kernel of keys, and the question that decides its speed: what fits? A
# program of it holds *two* sums of keys × columns, dK and dV, for as long as it lives, and in
# each round two tiles of pairs, $P$ (which was $S$) and $dP$ (which becomes $dS$), all in
# fp32.
#
# **Predict.** Heads of 128 columns, tiles of 64 queries and 128 keys, 8 warps of 32 lanes: how
# many registers does each lane need for these four alone? It has 255.

# %%
registers = teach.predict(
    "Registers of a lane for dK, dV and two tiles of pairs",
    guess=None,
    unit="registers",
)

# %%
lanes = 8 * 32
registers.reveal(
    (2 * 128 * 128 + 2 * 64 * 128) // lanes,
    because="128 for dK and dV, 64 for the two tiles of pairs.",
)

# %% [markdown]
# Add the weights and $dS$ in 16 bits, on their way into products, addresses, $L$ and
# $\delta$: it is at the edge. A larger tile is beyond it, and a smaller one loads more for
# each of its sums. What the compiler says, for some tiles (queries × keys):


# %%
def keys_step(columns, tile, warps, stages):
    """The kernel of keys alone, for 256 queries and keys in fp16."""
    of_heads = [torch.empty(1, 1, 256, columns, dtype=torch.float16) for _ in range(5)]
    launch = attention_backward.launch(
        *of_heads, torch.empty(1, 1, 256), of_keys=Tiling(tile, warps, stages)
    )
    return Launch(launch.steps[1:2], launch.outputs[1:])


with device.planning_for("sm_90"):  # a GPU with less shared memory gets smaller tiles
    TILES = [
        (columns, *attention_backward.default_tilings(torch.float16, columns)[0][:3])
        for columns in (64, 128)
    ]
TILES.append((128, (128, 128), 8, 2))


def table_of(target, outcomes, lanes_of_a_warp):
    head = ["columns", "tile", "fp32 sums a lane", "registers a lane", "spilled"]
    table = [[target, *head], ["---"] * 6]
    for tiles, (step,) in zip(TILES, outcomes, strict=False):
        columns, (rows, cols), warps, _ = tiles
        sums = 2 * (cols * columns + rows * cols) // (lanes_of_a_warp * warps)
        facts = (columns, f"{rows} × {cols}", sums, step.registers, step.spills)
        table.append(["", *map(str, facts)])
    return Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))


# %% tags=["nbval-ignore-output", "compiler"]
on_hopper = lens.compile_all([keys_step(*tiles) for tiles in TILES], "sm_90")
table_of("sm_90", on_hopper, 32)

# %%
for (columns, tile, _, _), (step,) in zip(TILES, on_hopper, strict=True):
    units = "matrix units" if step.count("matrix") else "no matrix units"
    fits = "fits" if not step.spills else "does not fit"
    if columns == 128 and tile[0] < 128:
        fits = "at the edge"  # it depends on the compiler
    print(f"{columns:3} columns, {tile}: {units}, {fits}")

# %% tags=["nbval-ignore-output", "compiler"]
on_cdna = lens.compile_all([keys_step(*tiles) for tiles in TILES[:2]], "gfx942")
table_of("gfx942", on_cdna, 64)

# %% [markdown]
# What is **spilled** does not fit, and goes to memory and back in every round. The first two
# rows are the tiles that the package takes by default. (For 16 bits on an H200 it takes those of a
# table of measurements, in `kernels/instances/attention.py`: most are smaller, for four warps.)
# Heads of 64 columns are at ease with theirs. That for heads of 128 columns is at the edge, as
# counted: whether a few registers are spilled depends on stages, masks and the compiler's version.
# With 128 queries there is no doubt.
#
# On an MI300 (`gfx942`) a warp has 64 lanes, so that each holds half of the sums, and yet its
# 256 registers do not suffice: there, what a product multiplies lies in registers too, and
# not in shared memory. A tile that is right for one GPU need not be for another. (AMD: compiled,
# not run.)
#
# ## Measure
#
# The shipped backward against cuDNN's and FlashAttention-2's, both as torch calls them, and against
# `flex_attention`'s. 16,384 tokens in all (32,768 of the longest text) and 2,048 columns in all heads,
# fp16, timed in CUDA graphs. FLOPs are counted as five products, for everybody: the two that our kernels make twice
# count as lost time. With a causal mask only pairs that are seen count.
#
# **Predict.** Heads of 64 columns, 4,096 queries and keys, an H200: which design is faster, two
# kernels with seven products, or one pass with five, which adds dQ to memory? By products alone one
# pass would be 1.4 times as fast.

# %%
faster = teach.predict(
    "Seven products, or five and atomic additions?",
    guess=None,
    choices=("two kernels", "one pass"),
)

# %% tags=["nbval-ignore-output"]
OP = "scaled_dot_product_attention_backward"
SEVEN, FIVE = "workbench", "workbench:one_pass"
PEERS = ("cuDNN", "FlashAttention-2", "flex_attention")
CALLED = {SEVEN: "two kernels (shipped)", FIVE: "one pass"} | {
    name: name for name in PEERS
}
FAMILIES = ((64, False), (64, True), (128, False), (128, True))
with_both = recording.select(shipped, op=OP, dtype="fp16", provider=FIVE)
run = recording.select(shipped, run=recording.latest_run(with_both)[0].run)
h200, recorded = from_recording(run), recording.select(run, op=OP, dtype="fp16")
measured = recording.select(recorded, case={"n_q": 4096})
if here.is_gpu:  # without flex_attention, whose compiler takes its time
    few = [
        replace(
            case, providers=tuple(name for name in case.providers if name != PEERS[2])
        )
        for case in suites.get("attention_backward").cases
        if case.dtype == "fp16" and (case.case["n_q"], case.case["d"]) == (4096, 64)
    ]
    live = suites.Suite("designs", "both designs", tuple(few))
    measured, _ = suites.run(live, progress=False, rounds=1, warmup_ms=10, rep_ms=20)
taken = {
    (line.case["d"], line.case["causal"], line.provider): line
    for line in measured
    if line.case["d"] * line.case["h_kv"] == 2048
}


def family(columns, masked):
    return f"{columns} columns, {'causal' if masked else 'no mask'}"


head = ["problem", "design", "ms", "TFLOP/s", "speed over cuDNN's"]
table = [head, ["---"] * len(head)]
for problem, provider in product(FAMILIES, CALLED):
    line, vendor = taken.get((*problem, provider)), taken.get((*problem, "cuDNN"))
    if line:
        against = f"{vendor.median_ms / line.median_ms:.2f}" if vendor else ""
        cells = [family(*problem), CALLED[provider], f"{line.median_ms:.2f}"]
        table.append([*cells, f"{line.tflops:.0f}", against])
two, one = (taken.get((64, False, name)) for name in (SEVEN, FIVE))
if two and one:
    faster.reveal(
        "two kernels" if two.median_ms < one.median_ms else "one pass",
        because=f"one pass takes {one.median_ms / two.median_ms:.2f} times as long.",
    )
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# One pass is slower at every problem of the table, though each design has the fastest tiles that were
# found for it. What it saves in products it pays in memory: each tile of keys adds to all of dQ. With
# tiles of 128 keys and no mask each element of dQ is added to 32 times, in fp32, and additions to one address
# wait for one another. (That they wait is reasoned, not measured.)
#
# So of our two designs the **deterministic** one, with the same bits on every run, is the faster one
# too, and `ops.scaled_dot_product_attention` always takes it.
#
# And **memory**? What does each design keep, besides what it is given and what it returns? One text,
# 32 heads of 64 columns, beside the matrices $P$ that nobody saves:

# %%
head = ["tokens", "two kernels, MiB", "one pass, MiB", "P in fp16, MiB"]
table = [head, ["---"] * len(head)]
for length in (512, 4096, 32768):
    of_heads = [torch.empty(1, 32, length, 64, dtype=torch.float16, device="meta")] * 5
    row_sums = torch.empty(1, 32, length, device="meta")
    cells = [f"{length:,}"]
    for one_pass in (False, True):
        launch = attention_backward.launch(*of_heads, row_sums, one_pass=one_pass)
        kept = sum(space.nbytes for space in launch.workspaces)
        cells.append(f"{kept / 2**20:.5g}")
    table.append([*cells, f"{32 * length**2 * 2 / 2**20:,.0f}"])
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# In both designs eight times the tokens take eight times the bytes: memory is **linear** in the length.
# For $P$ it would be 64 times. The two kernels keep $\delta$, a number for each query of a head. One
# pass keeps a sum in fp32 for each element of dQ as well.
#
# Now by the length of a text, as recorded on an H200:

# %%
curves = {}
for line in recorded:
    if line.case["d"] in (64, 128) and line.case["h"] == line.case["h_kv"]:
        curve = curves.setdefault((line.case["d"], line.case["causal"]), {})
        curve.setdefault(line.provider, {})[line.case["n_q"]] = line
with viz.figure_style() as palette:
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex=True, sharey=True)
    for axis, problem in zip(axes.flat, FAMILIES, strict=True):
        for provider, marker in zip((SEVEN, *PEERS), "osDX", strict=True):
            by_length = curves[problem].get(provider, {})
            lengths = sorted(by_length)
            speeds = [by_length[length].tflops for length in lengths]
            axis.plot(lengths, speeds, marker=marker, markersize=5, label=provider)
        axis.axhline(h200.rate("fp16") / 1e12, color=palette.ink, ls="--", lw=1)
        axis.set_title(family(*problem), loc="left", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths := sorted(curves[problem][SEVEN]))
        axis.set_xticklabels([f"{x / 1024:g}k" if x > 512 else x for x in lengths])
    axes[0, 0].set_ylim(0, 760)
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    for axis in axes[1]:
        axis.set_xlabel("tokens of a text")
    axes[0, 1].legend(ncols=2, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.88))
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: four plots of TFLOP/s by the length of a text, for heads of 64 and 128 columns, without a
# mask and with one, below a dashed line for the roof of products. All rise with the length and level
# off. The package begins near cuDNN or above it, and falls behind; FlashAttention-2 stays far below
# both; flex_attention is one marker at 4,096 tokens, between FlashAttention-2 and the package.*
#
# The same as a table: the package's speed over cuDNN's. Where it is behind by more than three in a
# hundred, the number is bold.

# %%
head = ["tokens", *(family(*problem) for problem in FAMILIES)]
table = [head, ["---"] * len(head)]
for length in sorted(curves[FAMILIES[0]]["cuDNN"]):
    cells = []
    for problem in FAMILIES:
        ours, theirs = (curves[problem][name][length] for name in (SEVEN, "cuDNN"))
        cells.append(f"{theirs.median_ms / ours.median_ms:.2f}")
    table.append(
        [
            f"{length:,}",
            *(f"**{cell}**" if float(cell) < 0.97 else cell for cell in cells),
        ]
    )
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# The shortest texts with heads of 64 columns are ahead. All texts of 2,048 tokens or more are behind.
# In lesson 11 it was short texts that were behind: keys cost as much as cuDNN's, and what a program
# does besides cost more. And here?
# Draw a line through the times of texts of up to 4,096 tokens, by the keys that a query sees, for
# heads of 64 columns without a mask:

# %%
fits = {}
for provider in (SEVEN, "cuDNN"):
    by_length = curves[64, False][provider]
    lengths = np.array([length for length in sorted(by_length) if length <= 4096])
    micros = np.array([1e3 * by_length[length].median_ms for length in lengths])
    slope, besides = fits[provider] = np.polyfit(lengths, micros, 1)
    print(
        f"{provider:9s} {1000 * slope:.0f} µs for 1,000 keys, {besides:.0f} µs besides"
    )
print(f"for the same keys {fits[SEVEN][0] / fits['cuDNN'][0]:.2f} times cuDNN's time")

# %% [markdown]
# Here keys cost more, and what comes besides costs less. If our products ran as fast as cuDNN's, then
# with seven instead of five keys would cost 1.4 times as much. Ours run faster. At 4,096 tokens
# without a mask, with each product counted as often as it is made:

# %%
for line in recording.select(recorded, case={"n_q": 4096, "causal": False}):
    if line.provider in fits and line.case["d"] * line.case["h_kv"] == 2048:
        made = 7 if line.provider == SEVEN else 5
        columns, speed = line.case["d"], line.tflops * made / 5
        print(
            f"{columns:3} columns, {line.provider:9}: {speed:.0f} TFLOP/s, {made} products"
        )

# %% [markdown]
# That cuDNN makes five is inferred from the names of its kernels in the recording. One kernel makes
# all three gradients; before it memory is set to zero, and after it another kernel turns dQ into 16
# bits. So that is one pass, as in FlashAttention-2. The design can be fast on this GPU: cuDNN's is,
# and ours is not.
#
# **What remains** to cuDNN:
#
# - *Two products too many.* With products of equal speed, that leaves 5 / 7 = 0.71 of cuDNN's speed.
#   Heads of 256 columns are near it: at 4,096 tokens they have
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=256 causal=false provider=workbench over=cuDNN}}
#   without a mask and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=256 causal=true provider=workbench over=cuDNN}}
#   with one. For fewer columns our products are the faster ones, which wins some of it back.
# - *Heads that share their keys* lose a little more. With 32 heads of 128 columns on 8 of keys it is
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=128 h_kv=8 causal=false provider=workbench over=cuDNN}}
#   and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=128 h_kv=8 causal=true provider=workbench over=cuDNN}}.
#   Why was not measured.
# - *Registers.* dK and dV fill them. With the tiles that were recorded at 4,096 tokens, a multiprocessor
#   has room for eight warps of the kernel of keys, of 64 that it could hold. So few others can multiply
#   while some compute exponentials. (Reasoned: the tables say how much is lost, not why.)
# - *Hopper.* Nothing of lesson 11's kernel for Hopper is in here: no warps that only load, no groups
#   that take turns. All of this is the portable kernel.
#
# **The others** are slower than the package at every problem that was recorded. The smallest leads are
# {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=256 causal=false provider=workbench over=FlashAttention-2}}
# over FlashAttention-2 (256 columns, no mask) and
# {{recording device=nvidia-h200 op=scaled_dot_product_attention_backward dtype=fp16 n_q=4096 d=128 h=16 causal=true provider=workbench over=flex_attention}}
# over `flex_attention` (128 columns, causal), which was recorded at 4,096 tokens only. In bf16 the
# package's speed over cuDNN's and FlashAttention-2's is the same within a tenth.
#
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on all of
# its cases, and if no more is loaded and stored than the text says;
# `teach.exercise("12-1").hint()` asks a question that leads on. Tensors are in fp32 and
# contiguous, [heads, rows, columns] unless it is said otherwise, with 16 or 32 columns. Tiles
# are 16 × 16, and `tl.dot` of them is exact enough here.
#
# ### Exercise 12-1: delta of two gradients
#
# A loss may depend on $L$ as well as on $O$: some language models are trained to keep their
# log-sum-exps small. So besides `gradient`, $dO$, there is `sum_gradient`, $dL$, a number for
# each row. The kernels of this lesson shall stay as they are, with
# $dS = P \odot (dP - \delta)$. Which $\delta$ has to be handed to them? Write the kernel that
# makes it, for `output` and `gradient` of [rows, columns]; each element is loaded once.


# %%
# {{exercise 12-1}}

# %% [markdown]
# {{solution 12-1}}

# %% [markdown]
# ### Exercise 12-2: a tile of keys
#
# dK and dV, with a causal mask (aligned at the beginning) or without. A program makes a tile
# of 16 keys of a head. Load only what some pair needs: each tile of queries once for each
# tile of keys of which it sees some.


# %%
# {{exercise 12-2}}

# %% [markdown]
# {{solution 12-2}}

# %% [markdown]
# ### Exercise 12-3: a tile of queries
#
# dQ, with a causal mask that is aligned at the *end*: the last query sees the last key, as
# where new queries meet a cache of older keys. There may be fewer keys than queries, so that
# some queries see nothing: their log-sum-exp is $-\infty$, their gradient 0. Only tiles of
# keys are loaded that some query of the tile sees.


# %%
# {{exercise 12-3}}

# %% [markdown]
# {{solution 12-3}}

# %% [markdown]
# ### Exercise 12-4: the gradient of a hook
#
# A **hook** is a function of each score, called before the softmax. This one squashes
# scores: $f(s) = s / (1 + |s| / c)$ never leaves $(-c, c)$. It is given, and the forward pass
# has used it. Write its gradient, and hand it to the kernels that ship. They call
# `squash_gradient(gradient, scores, batch, head, query, key, extra)` with the gradient of
# what the hook returned, with the scores that it was given, and with its `extra`, here
# $(c,)$; all but `extra` are tiles. Tensors are [batch, heads, rows, columns].


# %%
# {{exercise 12-4}}

# %% [markdown]
# {{solution 12-4}}

# %% [markdown]
# ## Takeaways
#
# - Of the matrix of weights, the forward pass saves a number a row, $L$; from it each tile is
#   made again, without a maximum. FLOPs are spent to save bytes.
# - Through the softmax, $dS = P \odot (dP - \delta)$, and $\delta = \sum dO \odot O$ needs no
#   weights.
# - What is summed over keys belongs to a program of queries, and what is summed over queries
#   to a program of keys. Two kernels, seven products, the same bits on every run.
# - Which queries see a key is which keys a query sees, turned around: one tile operator
#   serves both.
# - Two sums of keys × columns fill the registers; they decide the tile.
# - Check gradients by judges that do not know each other, and check what you were *not*
#   asked for: with a mask and without.
#
# **Next:** [13, four layers](13_four_layers.ipynb) looks at the layers between a kernel and its
# caller. Back to
# [03, tile reduction](03_tile_reduction.ipynb), or to
# [00, start here](00_start_here.ipynb).
