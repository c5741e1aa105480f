# %% [markdown]
# # Flash attention: two products and a softmax in one kernel
#
# You will build
#
# - attention from three kernels you have, with every byte counted; then as *one* kernel, and
#   what limits it;
# - the loop that lifts the limit: keys tile by tile, with lesson 03's online softmax and sums
#   that are rescaled;
# - causal attention that skips what nobody sees, heads that share keys, and hooks of your own
#   in the kernel that ships; against cuDNN and FlashAttention.
#
# **Time:** 60 minutes. **You need:** Python, [lesson 03](03_tile_reduction.ipynb) for the
# online softmax and [lesson 05](05_tile_gemm.ipynb) for the tile GEMM. Kernels run in the
# interpreter and are compiled for GPUs that need not be here.
#
# **Out of scope:** gradients (lesson 12), and caches of keys that lie in pages.

# %%
from workbench import Launch, Step, device, explore, lens, runtime, suites
from workbench import teach, viz
from workbench.bench import from_recording, recording
from workbench.kernels import attention
from workbench.kernels.attention import hopper as attention_hopper
from workbench.teach.rungs import attention_ladder
from workbench.kernels.rows import softmax
from workbench.kernels.attention import CAUSAL, Dropout, Hook, Mask, Scoring, Window
from workbench.kernels.gemm import launch as product
from workbench.kernels.tile import gemm, reduce, scores

import inspect
import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from IPython.display import Markdown

here = device.current()
generator = torch.Generator().manual_seed(11)


def normals(*shape):
    return torch.randn(shape, generator=generator).half().to(here.torch_device)


# %% [markdown]
# ## The idea: scores that nobody keeps
#
# A *query* asks, *keys* answer with a score, and the output is the mean of the *values*,
# weighted by the softmax of the scores. For each head, with rows of $d$ columns,
#
# $$S = \tfrac{1}{\sqrt d} \, Q K^\top, \qquad P = \text{softmax}(S), \qquad O = P V$$
#
# $Q$, $K$, $V$ and $O$ are $n \times d$. But $S$ and $P$ are $n \times n$, and nobody asked
# for them. The two products take $2 n^2 d$ FLOPs each. In bytes of fp16, $Q$, $K$, $V$ and
# $O$ are $8 n d$; and if $S$ and $P$ are written and read, that is $8 n^2$ more.
#
# **Predict.** 4,096 queries and keys, and heads of 64 columns. If three kernels do it, one
# after the other, how many times as many bytes are moved as by one kernel that keeps $S$ and
# $P$ to itself?

# %%
more_bytes = teach.predict(
    "Bytes of three kernels, over bytes of one", guess=None, unit="times"
)

# %%
n, d = 4096, 64
flops, least, with_scores = 4 * n * n * d, 8 * n * d, 8 * n * d + 8 * n * n
print(f"one kernel:    {least / 1e6:6.1f} MB, {flops / least:6.1f} FLOP for each byte")
print(
    f"three kernels: {with_scores / 1e6:6.1f} MB, {flops / with_scores:6.1f} FLOP for each byte"
)
more_bytes.reveal(
    with_scores / least, because="1 + n / d: the longer the text, the worse."
)

# %% [markdown]
# In three kernels, no length of the text brings the intensity above $d / 2$, far to the left
# of the ridge that lesson 02 measured on an H200: they wait for memory. In one kernel it grows
# with $n$, beyond the ridge, and the matrix units can be the limit. That is the whole reason
# for what follows. (Dao et al., *FlashAttention*, 2022.)
#
# ## The reference
#
# One line of torch, or three that say what it does:

# %%
query, key, value = (normals(1, 2, 40, 16) for _ in range(3))
in_one_line = F.scaled_dot_product_attention(
    *(t.cpu().double() for t in (query, key, value))
)


def reference(query, key, value, seen=None):
    """The output in float64, and the log-sum-exp of each row's scores; 0 where nothing is seen."""
    q, k, v = (t.cpu().double() for t in (query, key, value))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    rated = q @ k.mT / math.sqrt(q.shape[-1])
    if seen is not None:
        rated = rated.masked_fill(~seen, float("-inf"))
    return torch.softmax(rated, -1).nan_to_num(0) @ v, rated.logsumexp(-1)


print("the same:", torch.allclose(reference(query, key, value)[0], in_one_line))

# %% [markdown]
# ## Rung 1: three kernels
#
# The workbench has all that is needed: lesson 06's product, with the heads as a batch, and
# lesson 03's softmax. (The scale goes to the query; with 64 columns it is 1/8, and rounds
# nothing.)


# %%
def unfused(query, key, value):
    scale = 1 / math.sqrt(query.shape[-1])
    rated = product(query * scale, key.mT, tile=(64, 64, 64), splits=1)
    weights = softmax.launch("softmax", *rated.outputs, dim=-1)
    summed = product(*weights.outputs, value, tile=(64, 64, 64), splits=1)
    return Launch((*rated.steps, *weights.steps, *summed.steps), summed.outputs)


long_query, long_key, long_value = (normals(1, 1, 256, 64) for _ in range(3))
launch = unfused(long_query, long_key, long_value)
(got,) = launch.run()
exact, _ = reference(long_query, long_key, long_value)
print("right:", torch.allclose(got.cpu().double(), exact, atol=2e-3))

moved = 0
for what, step in zip(("Q Kᵀ", "softmax", "P V"), lens.trace(launch), strict=True):
    loaded, stored = (step.traffic(kind=kind) for kind in ("load", "store"))
    moved += loaded.distinct_bytes + stored.distinct_bytes
    print(
        f"{what:8s} reads {loaded.distinct_bytes:7,} bytes (loads {loaded.bytes:7,}), "
        f"writes {stored.distinct_bytes:7,}"
    )
print(f"in all {moved:,}; by the formula {8 * 256 * 64 + 8 * 256 * 256:,}")

# %% [markdown]
# The trace says what the formula said. Even at a length of 256 most bytes are those of $S$
# and $P$.
#
# ## Rung 2: both products in one kernel
#
# A row of $P$ needs a whole row of $S$, and nothing of other rows. So let a program take a
# tile of queries, and *all* keys: it makes their scores, takes the softmax of each row (in
# registers, as lesson 03's `softmax_row_kernel`), and multiplies by all values. What should
# it gain? All of the $8 n^2$ bytes.
#
# Two helpers first, which all rungs share. `rows_of_head` finds a head's matrix by its
# strides, in the form that the package's tile loader takes, and `store_rows` stores a tile
# of the output.


# %%
@triton.jit
def rows_of_head(pointer, batch, head, rows, size, strides):
    return (pointer + batch * strides[0] + head * strides[1], (rows, size), strides[2:])


@triton.jit
def store_rows(matrix, row, tile, SIZE: tl.constexpr):
    pointer, sizes, strides = matrix
    places = row[:, None] * strides[0] + tl.arange(0, SIZE)[None, :] * strides[1]
    inside = (row < sizes[0])[:, None]
    tl.store(pointer + places, tile.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def whole_rows_kernel(
    query,
    key,
    value,
    output,
    heads,
    queries,
    keys,
    strides,
    scale,
    BLOCK_M: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = tl.program_id(axis=0) * BLOCK_M
    row, col = start + tl.arange(0, BLOCK_M), tl.arange(0, KEYS)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    all_keys = gemm.load_strided(k, 0, 0, KEYS, SIZE, True, False)
    rated = tl.dot(held, tl.trans(all_keys)) * scale
    rated = tl.where((col < keys)[None, :], rated, float("-inf"))
    weights = tl.exp(rated - tl.max(rated, axis=1)[:, None])
    total = tl.sum(weights, axis=1)
    all_values = gemm.load_strided(v, 0, 0, KEYS, SIZE, True, False)
    sums = tl.dot(weights.to(all_values.dtype), all_values)
    store_rows(out, row, sums / total[:, None], SIZE)


# %% [markdown]
# A launch has a program for each tile of queries of each head. `launched` will do for all
# rungs; what a later one is told besides comes last.


# %%
def launched(kernel, query, key, value, *told, saves=True, **meta):
    (batch, heads, queries, size), keys = query.shape, key.shape[2]
    output = torch.empty_like(query)
    log_sums = torch.empty(
        batch, heads, queries, dtype=torch.float32, device=query.device
    )
    outputs = (output, log_sums) if saves else (output,)
    strides = tuple([t.stride() for t in (query, key, value, output)])
    sizes = (heads, queries, keys, strides, 1 / math.sqrt(size))
    grid = (triton.cdiv(queries, meta["BLOCK_M"]), batch * heads)
    step = Step(kernel, grid, (query, key, value, *outputs, *sizes, *told), meta)
    return Launch((step,), outputs)


def whole_rows(query, key, value, block_m=16, **options):
    keys, size = key.shape[2:]
    meta = {"BLOCK_M": block_m, "KEYS": triton.next_power_of_2(keys), "SIZE": size}
    return launched(
        whole_rows_kernel, query, key, value, saves=False, **meta, **options
    )


def error_of(launch, query, key, value, seen=None):
    """The largest error of the output, into memory full of NaN, with programs shuffled."""
    got = runtime.interpret(launch, poison=True, seed=1).outputs
    exact = reference(query, key, value, seen)
    return (got[0].double() - exact[0]).abs().max().item()


error = error_of(whole_rows(query, key, value), query, key, value)
print("right:", error < 2e-3)
(step,) = lens.trace(whole_rows(long_query, long_key, long_value, block_m=64))
distinct = sum(step.traffic(kind=kind).distinct_bytes for kind in ("load", "store"))
print(f"bytes read and written: {distinct:,}; Q, K, V and O have {8 * 256 * 64:,}")
print(f"bytes loaded, K and V by each program: {step.traffic(kind='load').bytes:,}")

# %% [markdown]
# Every byte is read from memory once. (Each program loads all of $K$ and $V$, which the L2
# cache has by then; the more queries a tile has, the fewer such programs there are.)
#
# But how long may the text be? All scores of a tile are in registers, in fp32.
#
# **Predict.** A tile of 128 queries, 128 threads, and at most 255 registers for each of them.
# From which number of keys on do the scores *alone* not fit? (A power of two.)

# %%
too_long = teach.predict("Keys whose scores do not fit", guess=None, unit="keys")

# %%
for keys in (64, 128, 256, 512):
    print(f"{keys:5,} keys: {128 * keys // 128} registers of each thread for scores")
too_long.reveal(256, because="128 · 256 scores over 128 threads are 256, of 255.")

# %% [markdown]
# That is the bound; weights in fp16 and sums need room too. The compiler, for an H200:

# %%
for keys in (32, 256):
    tensors = (normals(1, 1, keys, 64) for _ in range(3))
    launch = whole_rows(*tensors, block_m=128, num_warps=4, num_stages=1)
    (compiled,) = lens.compile(launch, "sm_90")
    print(f"{keys:3d} keys: {'spills' if compiled.spills else 'all in registers'}")

# %% [markdown]
# So this kernel is for texts of a few hundred keys at most. It is a good kernel for those, and
# no use for others. A smaller tile of queries buys some length, and pays with more loads of
# $K$ and $V$.
#
# ## Rung 3: keys tile by tile
#
# Lesson 03 had this problem: a softmax of a row that does not fit. Its answer was a state,
# the maximum $m$ and the total $s$ of what was seen, and a rule for the next tile. But then
# it read the row again for the result. Attention need not: what is asked for is not the
# weights but a *sum* with these weights,
#
# $$o = \sum_j e^{x_j - m} \, v_j,$$
#
# and a sum can be put right as the total was. When a tile raises the maximum to $m'$, every
# term should have had $m'$ in its exponent:
#
# $$m' = \max(m, \max_j x_j), \qquad
# s' = s \cdot e^{m - m'} + \sum_j e^{x_j - m'}, \qquad
# o' = o \cdot e^{m - m'} + \sum_j e^{x_j - m'} v_j$$
#
# The last sum is a product of tiles, $P V$; the output is $o / s$ in the end. In plain torch,
# for one query, whose scores grow on the way. Beside it stands what comes out if the
# **rescale is forgotten**:

# %%
rated = torch.randn(64, generator=generator).double() + torch.linspace(0, 6, 64)
values = torch.randn(64, 1, generator=generator).double()
m, s, o, wrong = torch.tensor(-torch.inf), 0.0, 0.0, 0.0
for start in range(0, 64, 16):
    x, v = rated[start : start + 16], values[start : start + 16]
    new = torch.maximum(m, x.max())
    rescale, weights = (m - new).exp(), (x - new).exp()
    s, o, wrong = (
        s * rescale + weights.sum(),
        o * rescale + weights @ v,
        wrong + weights @ v,
    )
    m = new
    exact = torch.softmax(rated[: start + 16], 0) @ values[: start + 16]
    print(
        f"maximum {m:5.2f}, rescale {rescale:.3f}: output {(o / s).item():7.4f}, "
        f"exact {exact.item():7.4f}, without rescale {(wrong / s).item():7.4f}"
    )

# %% [markdown]
# After *every* tile $o / s$ is the attention to the keys seen so far. Without the rescale
# the early values keep the weight that they had when they looked important. If the maximum
# never rises after the first tile, nothing is wrong: a test whose scores do not grow would
# not notice.
#
# **Predict.** Scores in random order, 64 tiles. In how many tiles, on average, does the
# maximum of a row rise, the first one included?

# %%
rises = teach.predict("Tiles that raise the maximum, of 64", guess=None, unit="tiles")

# %%
of_tiles = torch.randn(4000, 64, 32, generator=generator).amax(2)
running = of_tiles.cummax(1).values
counted = 1 + (running[:, 1:] > running[:, :-1]).double().sum(1).mean().item()
harmonic = sum(1 / tile for tile in range(1, 65))
print(f"counted: {counted:.1f}")
rises.reveal(
    round(harmonic, 2),
    because="tile i holds the largest so far with probability 1 / i: the sum of these.",
    tolerance=0.1,
)

# %% [markdown]
# So most of the multiplications by the rescale are by 1. A kernel makes them all the same,
# since rows of a tile share their instructions; and sums that are multiplied so often are
# kept in fp32.
#
# Now the kernel. Lesson 03's tile operator returns the rescale besides state and weights;
# that was for today:

# %%
print(inspect.getsource(reduce.online_softmax_update.fn))


# %%
@triton.jit
def attend_to_tile(
    state,
    sums,
    held,
    key,
    value,
    start,
    keys,
    scale,
    BLOCK_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    tile = gemm.load_strided(key, start, 0, BLOCK_N, SIZE, True, False)
    rated = tl.dot(held, tl.trans(tile)) * scale
    col = start + tl.arange(0, BLOCK_N)
    rated = tl.where((col < keys)[None, :], rated, float("-inf"))
    state, weights, rescale = reduce.online_softmax_update(state, rated)
    tile = gemm.load_strided(value, start, 0, BLOCK_N, SIZE, True, False)
    sums = tl.dot(weights.to(tile.dtype), tile, sums * rescale[:, None])
    return (state, sums)


@triton.jit
def online_kernel(
    query,
    key,
    value,
    output,
    log_sums,
    heads,
    queries,
    keys,
    strides,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = tl.program_id(axis=0) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = tl.zeros([BLOCK_M, SIZE], tl.float32)
    for first_key in range(0, keys, BLOCK_N):
        state, sums = attend_to_tile(
            state, sums, held, k, v, first_key, keys, scale, BLOCK_N, SIZE
        )
    maximum, total = state
    store_rows(out, row, sums / total[:, None], SIZE)
    places = tl.program_id(axis=1) * queries + row
    tl.store(log_sums + places, maximum + tl.log(total), mask=row < queries)


def online(query, key, value, tile=(16, 16), **options):
    meta = {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "SIZE": query.shape[3]}
    return launched(online_kernel, query, key, value, **meta, **options)


error = error_of(online(query, key, value), query, key, value)
print("right:", error < 2e-3)

# %% [markdown]
# Four things to see in it:
#
# - **The query stays, keys and values pass by.** Of the loop's operands one is loaded once.
# - **`weights.to(tile.dtype)`**: the second product wants its operand in fp16. The weights
#   lie between 0 and 1, and their total is summed *before* they are rounded.
# - **Keys beyond the end** get a score of $-\infty$, hence a weight of 0. A 0 in their place
#   would be a score like any other.
# - **The log-sum-exp**, $\ell = m + \log s$, is stored too: four bytes a row. With it a
#   weight can be made again from its score alone, $p = e^{x - \ell}$, which is how lesson 12
#   gets along without $P$; and two outputs of different keys can be merged, of which more
#   below.
#
# **Step through it**: the shipped kernel on one tile of queries, tile of keys by tile of keys.
# Watch the maximum, the rescale when it rises, and the weighted sums. Then switch the rescale
# off: from which tile on is the output wrong?

# %% tags=["widget"]
rising = normals(1, 1, 32, 16) * 2
rising_keys = (
    normals(1, 1, 64, 16)
    * torch.linspace(0.5, 2, 64, device=here.torch_device)[:, None]
)
stepped = attention.launch(
    rising, rising_keys.half(), normals(1, 1, 64, 16), tile=(16, 16), splits=1
)
explore.attention.step_through(stepped)

# %% [markdown]
# What the loop should gain: the length has no limit. And registers no longer depend on it:

# %%
tokens = torch.empty(1, 16, 4096, 64, dtype=torch.float16, device=here.torch_device)
OPTIONS = {"tile": (128, 64), "num_warps": 8, "num_stages": 3}
(compiled,) = lens.compile(online(tokens, tokens, tokens, **OPTIONS), "sm_90")
print("matrix units:", compiled.count("matrix") > 0, " spills:", compiled.spills > 0)
(step,) = lens.trace(online(long_query, long_key, long_value, tile=(64, 64)))
distinct = sum(step.traffic(kind=kind).distinct_bytes for kind in ("load", "store"))
print(f"bytes read and written: {distinct:,}, with log-sum-exps of {4 * 256:,}")

# %% [markdown]
# **Where each byte goes**, in three kernels and in the shipped one, counted by traces of both,
# for three lengths:

# %%
counted = explore.attention.bytes_by_length((64, 128, 256))
viz.Picture(
    viz.figure_png(viz.plot_attention_bytes(counted)),
    viz.describe_attention_bytes(counted),
)

# %% [markdown]
# *Figure: bars of the bytes of each tensor, of which S and P have most in three kernels and none
# in one; beside them all bytes by length, which grow with its square in three kernels and along
# a line in one.*

# %% [markdown]
# ## Rung 4: causal, and nothing for nothing
#
# In a language model query $i$ may see keys $0$ to $i$. As a mask, that is a `tl.where` as
# for keys beyond the end. But half of the tiles are then computed for nothing at all.
#
# **Predict.** 128 queries and keys, tiles of 16 × 16. Of 64 pairs of tiles, how many have to
# be visited?

# %%
visited = teach.predict("Tiles to visit, of 64", guess=None, unit="tiles")

# %% [markdown]
# A tile of queries from `first` to `last` sees keys up to `last`: tiles beyond need no visit.
# And keys up to `first` are seen by *all* of its queries: these tiles need no mask. Only the
# tiles in between, on the diagonal, do. So the loop becomes two.
#
# Where is the diagonal if there are more keys than queries? There are two answers, and both
# are in use:
#
# - the **first** query is at the place of the first key (torch's `is_causal`);
# - the **last** query is at that of the last key (FlashAttention's `causal`). So it has to
#   be where keys of earlier tokens are kept, and the new queries come behind them.
#
# As a rule with one number, query $i$ sees keys up to $i + \text{shift}$: the shift is 0, or
# keys − queries.


# %%
@triton.jit
def attend_seen(
    state,
    sums,
    held,
    key,
    value,
    row,
    start,
    keys,
    shift,
    scale,
    BLOCK_N: tl.constexpr,
    SIZE: tl.constexpr,
    MASKED: tl.constexpr,
):
    tile = gemm.load_strided(key, start, 0, BLOCK_N, SIZE, MASKED, False)
    rated = tl.dot(held, tl.trans(tile)) * scale
    if MASKED:
        col = start + tl.arange(0, BLOCK_N)[None, :]
        seen = (col < keys) & (col <= row[:, None] + shift)
        rated = tl.where(seen, rated, float("-inf"))
    state, weights, rescale = reduce.online_softmax_update(state, rated)
    tile = gemm.load_strided(value, start, 0, BLOCK_N, SIZE, MASKED, False)
    sums = tl.dot(weights.to(tile.dtype), tile, sums * rescale[:, None])
    return (state, sums)


@triton.jit
def causal_kernel(
    query,
    key,
    value,
    output,
    log_sums,
    heads,
    queries,
    keys,
    strides,
    scale,
    shift,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SIZE: tl.constexpr,
):
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = (tl.num_programs(axis=0) - 1 - tl.program_id(axis=0)) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_strided(q, start, 0, BLOCK_M, SIZE, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = tl.zeros([BLOCK_M, SIZE], tl.float32)
    last = min(start + BLOCK_M, queries) - 1
    end = tl.cdiv(min(max(last + shift + 1, 0), keys), BLOCK_N)
    whole = min(max(start + shift + 1, 0), keys) // BLOCK_N
    for tile in range(whole):
        state, sums = attend_seen(
            state,
            sums,
            held,
            k,
            v,
            row,
            tile * BLOCK_N,
            keys,
            shift,
            scale,
            BLOCK_N,
            SIZE,
            False,
        )
    for tile in range(whole, end):
        state, sums = attend_seen(
            state,
            sums,
            held,
            k,
            v,
            row,
            tile * BLOCK_N,
            keys,
            shift,
            scale,
            BLOCK_N,
            SIZE,
            True,
        )
    maximum, total = state
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    store_rows(out, row, sums * share[:, None], SIZE)
    places = tl.program_id(axis=1) * queries + row
    log_sum = reduce.finite_shift(maximum) + tl.log(total)
    tl.store(log_sums + places, log_sum, mask=row < queries)


def causal(query, key, value, from_end=False, tile=(16, 16), **options):
    shift = key.shape[2] - query.shape[2] if from_end else 0
    meta = {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "SIZE": query.shape[3]}
    return launched(causal_kernel, query, key, value, shift, **meta, **options)


# %% [markdown]
# Count products by the trace: two for each tile that is visited.

# %%


def tiles_visited(launch):
    """Pairs of tiles of which the launch makes scores: two products each."""
    return sum(len([*step.events(kind="dot")]) for step in lens.trace(launch)) // 2


query, key, value = (normals(1, 1, 128, 16) for _ in range(3))
all_tiles = tiles_visited(online(query, key, value))
some_tiles = tiles_visited(causal(query, key, value))
print(f"online: {all_tiles} tiles, causal: {some_tiles}")
visited.reveal(some_tiles, because="1 + 2 + ... + 8: half, and half of the diagonal.")

# %% [markdown]
# For longer texts it is nearly half. Both alignments now, with lengths that are no multiples
# of anything. The maps are told by a kernel that asks the rule of the package,
# `tiles_of_window`, which has two bounds more, for windows that end on the left: ■ needs no
# mask, ◪ does, · is skipped. (A kernel has to ask: Python cannot call a jit function on a GPU.)


# %%
def visits_of(query, key, window, tile=(16, 16)):
    """Return the tiles that the programs of the shipped kernel visit."""
    scoring = Scoring(window=window)
    return explore.attention.tiles(
        attention.launch(query, key, key, scoring, tile=tile, splits=1)
    )


def map_of(query, key, window):
    return [
        "".join("·◪■"[kind] for kind in row)
        for row in visits_of(query, key, window).visits
    ]


few, many = normals(1, 1, 50, 16), normals(1, 1, 90, 16)
for query, key in ((few, many), (many, few)):
    queries, keys = query.shape[2], key.shape[2]
    value = normals(*key.shape)
    drawn = []
    for from_end in (False, True):
        shift = keys - queries if from_end else 0
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(shift)
        error = error_of(causal(query, key, value, from_end), query, key, value, seen)
        drawn.append(map_of(query, key, CAUSAL._replace(from_end=from_end)))
        place = "last" if from_end else "first"
        print(
            f"{queries} queries, {keys} keys, {place} at {place}: right {error < 2e-3}"
        )
    for left, right in zip(*drawn, strict=True):
        print(f"   {left}   {right}")

# %% [markdown]
# In the last map the first queries see *nothing*: 90 queries, of which the last is at key
# number 49. Then $m = -\infty$ and $s = 0$, and two traps lie in the way. $-\infty - (-\infty)$
# is NaN: `finite_shift` subtracts 0 instead. And $0 / 0$ is NaN: `share` makes the output 0.
# What does torch make of such a row?

# %%
nothing = torch.zeros(1, 2, dtype=torch.bool)
plain_softmax = torch.softmax(torch.zeros(1, 2).masked_fill(~nothing, -math.inf), 1)
print("softmax:", plain_softmax.tolist())
ours = causal(many, few, value, from_end=True)
output, log_sums = runtime.interpret(ours, poison=True).outputs
print("ours, first row:", output[0, 0, 0].abs().max().item(), log_sums[0, 0, 0].item())

# %% [markdown]
# A program that sees most keys takes longest, so the last tile of queries goes first
# (`num_programs - 1 - program_id`): what begins last should be short, or a GPU's other units
# wait for it.
#
# **Choose a mask**, lengths and a tile. The map is told by the rules of the shipped kernel:
# dark tiles are seen as a whole, lighter ones in part, and the others are not visited. How
# much of the work is saved by a sliding window? What does a larger tile of keys cost on the
# diagonal? (Documents are the subject of a section below.)

# %% tags=["widget"]
explore.attention.map_tiles()

# %% [markdown]
# ## Rung 5: heads that share keys
#
# A text of 8,192 tokens, 32 heads of 128 columns in fp16: keys and values are 134 MB, for
# each layer and each text. When text is generated token by token they are read again for
# every one. So models let a *group* of query heads share a head of keys (Ainslie et al.,
# *GQA*, 2023; with one for all: Shazeer, *multi-query attention*, 2019).
#
# In the kernel it is one division: `head // group`. So this rung takes a second step too: it
# does what rung 4 does by **the package's tile operators**, as the shipped kernel does.
#
# - `scores.tiles_of_window` for the bounds: any window, and three phases (masked, whole,
#   masked) instead of two loops;
# - `scores.scored` for scale, hooks and mask, by `RULES`, which is a constant:
#   (hooks, mask, ends on the left, ends on the right, scaled later);
# - `gemm.product_of_parts`, `scale_rows`, `add_products`: rows in parts whose columns are
#   powers of two, for heads of 192;
# - `online_softmax_update_in_base_2`. Hardware has $2^x$; $e^x$ is $2^{x \log_2 e}$, one
#   multiplication more for each score. If nothing is done to scores between the product and
#   the softmax, that factor and the scale are one, and subtracting the maximum is part of the
#   same multiply-add:

# %%
print(inspect.getsource(reduce.online_softmax_update_in_base_2.fn))

# %% [markdown]
# **Predict.** Of $n$ queries and keys with $n$ large, $d = 64$: for each pair the two
# products take $4 d$ FLOPs on the matrix units. How many FLOPs of those is it for each
# exponential?

# %%
for_each_exp = teach.predict("FLOPs of products for each exponential", guess=None)

# %%
for_each_exp.reveal(
    4 * 64, because="there is one for each pair, and pairs have 4 d FLOPs."
)

# %% [markdown]
# That sounds like plenty. But an SM of an H200 makes 16 exponentials a cycle, and 4,096 FLOPs
# in its matrix units: 256 of the one for each of the other. With heads of 64 the exponentials
# alone take as long as *both products*. So each instruction beside them counts: that is why
# base 2, and why tiles that need no mask have none. <!-- unmeasured: a datasheet's rates -->


# %%
@triton.jit
def attend_by_rules(
    state,
    sums,
    held,
    key,
    value,
    start,
    place,
    rules,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTHS: tl.constexpr,
    RULES: tl.constexpr,
    MASKED: tl.constexpr,
):
    batch, head, row = place
    keys, scale, window, extras = rules
    tiles = gemm.load_parts(key, start, BLOCK_N, WIDTHS, MASKED, False)
    products = gemm.product_of_parts(held, tiles, BLOCK_M, BLOCK_N, tl.float32, "ieee")
    col = start + tl.arange(0, BLOCK_N)[None, :]
    _, rated = scores.scored(
        products, batch, head, row, col, keys, scale, window, extras, (), RULES, MASKED
    )
    factor = scale
    if not RULES.scales_later:
        factor = 1.0
    state, weights, rescale = reduce.online_softmax_update_in_base_2(
        state, rated, factor * scores.LOG2_E, 0, False
    )
    tiles = gemm.load_parts(value, start, BLOCK_N, WIDTHS, MASKED, False)
    sums = gemm.scale_rows(sums, rescale)
    sums = gemm.add_products(
        weights.to(tiles[0].dtype), tiles, sums, tl.float32, "ieee"
    )
    return (state, sums)


@triton.jit
def grouped_queries_kernel(
    query,
    key,
    value,
    output,
    log_sums,
    heads,
    queries,
    keys,
    strides,
    scale,
    group,
    window,
    extras,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTHS: tl.constexpr,
    RULES: tl.constexpr,
):
    batch, head = tl.program_id(axis=1) // heads, tl.program_id(axis=1) % heads
    SIZE: tl.constexpr = WIDTHS[0]
    q = rows_of_head(query, batch, head, queries, SIZE, strides[0])
    k = rows_of_head(key, batch, head // group, keys, SIZE, strides[1])
    v = rows_of_head(value, batch, head // group, keys, SIZE, strides[2])
    out = rows_of_head(output, batch, head, queries, SIZE, strides[3])
    start = (tl.num_programs(axis=0) - 1 - tl.program_id(axis=0)) * BLOCK_M
    row = start + tl.arange(0, BLOCK_M)
    held = gemm.load_parts(q, start, BLOCK_M, WIDTHS, True, False)
    state = reduce.online_softmax_init(BLOCK_M, tl.float32)
    sums = gemm.zeros_of_parts(BLOCK_M, WIDTHS, tl.float32)
    last = min(start + BLOCK_M, queries) - 1
    bounds = scores.tiles_of_window(
        start,
        last,
        keys,
        window[0],
        window[1],
        window[2],
        BLOCK_N,
        RULES.ends_left,
        RULES.ends_right,
    )
    place = (batch, head, row[:, None])
    rules = (keys, scale, window, extras)
    for phase in tl.static_range(3):
        for tile in range(bounds[phase], bounds[phase + 1]):
            state, sums = attend_by_rules(
                state,
                sums,
                held,
                k,
                v,
                tile * BLOCK_N,
                place,
                rules,
                BLOCK_M,
                BLOCK_N,
                WIDTHS,
                RULES,
                phase != 1,
            )
    maximum, total = state
    share = tl.where(total == 0.0, 0.0, 1.0 / total)
    store_rows(out, row, sums[0] * share[:, None], SIZE)
    factor = scale
    if not RULES.scales_later:
        factor = 1.0
    log_sum = reduce.finite_shift(maximum) * factor + tl.log(total)
    places = tl.program_id(axis=1) * queries + row
    tl.store(log_sums + places, log_sum, mask=row < queries)


def grouped_queries(
    query, key, value, window=CAUSAL, hooks=(), tile=(16, 16), **options
):
    group = query.shape[1] // key.shape[1]
    shift = window.shift
    if window.from_end:
        shift += key.shape[2] - query.shape[2]
    sides = (window.left or 0, window.right or 0, shift)
    rules = Scoring(window=window, hooks=hooks).rules(query.shape[3])
    extras = tuple([hook.extra for hook in hooks])
    meta = {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "WIDTHS": (query.shape[3],)}
    told = (group, sides, extras)
    return launched(
        grouped_queries_kernel, query, key, value, *told, **meta, RULES=rules, **options
    )


query = normals(1, 4, 50, 16)
key, value = normals(1, 2, 50, 16), normals(1, 2, 50, 16)
below = torch.ones(50, 50, dtype=torch.bool).tril()
error = error_of(grouped_queries(query, key, value), query, key, value, below)
print("right:", error < 2e-3)

# %% [markdown]
# ## The kernel that ships
#
# Its step from tile to tile:

# %%
print(inspect.getsource(attention.attend.fn))

# %% [markdown]
# Put it beside your `attend_by_rules`. What is the same has the same names; what is more:
#
# - `DESCRIPTORS`: tiles by TMA, lesson 06's rung 10;
# - `EXACT`: in fp32 the maximum is subtracted *before* scaling, so that no digit is lost;
# - `BOOST`: weights in fp8 are stored times a power of two, since most lie far below 1;
# - `DROPS`: dropout, below.
#
# And the kernel around it:

# %%
print(inspect.getsource(attention.attention_kernel.fn))

# %% [markdown]
# It begins as yours: find tile, head and batch; load the queries; state and sums; bounds;
# three phases; divide and store. The rest is one paragraph each.
#
# **Windows.** A query sees `left` keys before itself and `right` after. `RULES` says on which
# sides a window ends, so that no comparison is made that is not needed. You have it already:

# %%
query, key, value = (normals(1, 1, 128, 16) for _ in range(3))
for name, window in (
    ("everything", Window()),
    ("causal", CAUSAL),
    ("40 keys back", Window(left=40, right=0)),
):
    yours = tiles_visited(grouped_queries(query, key, value, window))
    ships = tiles_visited(
        attention.launch(
            query, key, value, Scoring(window=window), tile=(16, 16), splits=1
        )
    )
    print(f"{name:12s} {yours} tiles, and {ships} of the shipped kernel")

# %% [markdown]
# **Hooks.** A hook is a jit function of yours, `(scores, batch, head, query, key, extra)`, that
# is called on each tile of scores: `query` and `key` are the numbers of rows and columns,
# `head` may be a number or a column of them, and `extra` is what you give it. ALiBi, a bias by
# distance and soft-capping are hooks of the package; and here is one of ours, a temperature
# for each head. It is compiled into the kernel, as if it stood there.


# %%
@triton.jit
def times_of_head(scores, batch, head, query, key, extra):
    return scores * tl.load(extra[0] + head)


query = normals(1, 2, 40, 16)
key, value = normals(1, 2, 40, 16), normals(1, 2, 40, 16)
sharpness = torch.tensor([0.5, 2.0], device=here.torch_device)
sharper = Hook(times_of_head, (sharpness,))
sharpened = Scoring(hooks=(sharper,))
launch = attention.launch(query, key, value, sharpened, tile=(16, 16), splits=1)
(got, _) = runtime.interpret(launch, poison=True).outputs
exact, _ = reference(query * sharpness[:, None, None], key, value)
print("shipped kernel, your hook:", torch.allclose(got.double(), exact, atol=2e-3))
launch = grouped_queries(query, key, value, Window(), (sharper,))
(got, _) = runtime.interpret(launch, poison=True).outputs
print("your kernel, your hook:", torch.allclose(got.double(), exact, atol=2e-3))

# %% [markdown]
# (With a hook the scale cannot wait: a hook wants scores, not products. `RULES.scales_later` says so.)
#
# **Masks by function, with tiles skipped.** A hook can mask, by $-\infty$, but every tile is
# visited. A `Mask` is asked *before*: a small kernel, `visits_kernel`, evaluates it on all
# pairs and writes a list for each tile of queries: whole tiles first, then those in part. The
# attention kernel then goes over the list. Packed documents, say, of which none may see
# another:

# %%
query, key, value = (normals(1, 1, 128, 16) for _ in range(3))
documents = torch.arange(128, dtype=torch.int32, device=here.torch_device) // 40
alone = Mask(scores.same_document, (documents[None], 128), of_head=False)
scoring = Scoring(window=CAUSAL, mask=alone)
launch = attention.launch(query, key, value, scoring, tile=(16, 16), splits=1)
print("steps:", ", ".join(step.name for step in launch.steps))
print("visited:", tiles_visited(launch), "tiles; causal alone:", 36)
of_document = documents.cpu()
seen = (of_document[:, None] == of_document) & torch.ones(128, 128).bool().tril()
print("right:", error_of(launch, query, key, value, seen) < 2e-3)

# %% [markdown]
# **Dropout.** Each weight is dropped or not by a random number that is a *function* of seed,
# head, query and key (a generator that counts, Philox). Nothing is stored; lesson 12's
# backward asks again and gets the same answer, with other tiles. Hence the same result,
# but for rounding, whatever the tile:

# %%
dropping = Scoring(dropout=Dropout(0.25, seed=3))
by_tile = [
    attention.launch(query, key, value, dropping, tile=tile, splits=1).run()[0].float()
    for tile in ((16, 16), (32, 64))
]
kept_all = attention.launch(query, key, value, tile=(16, 16), splits=1).run()[0].float()
print("the same weights dropped:", torch.allclose(*by_tile, atol=5e-3))
print("some are:", not torch.allclose(by_tile[0], kept_all, atol=5e-3))

# %% [markdown]
# **Decoding.** One new token: a single query for each head, and thousands of keys. With a tile
# of queries a head, fifteen of sixteen rows would be empty, and there are as many programs as
# heads. **Predict.** 32 heads of queries, 8 of keys, 8,192 keys, one text, on a GPU of 132
# units. How many FLOPs are there for each byte of keys and values in fp16?

# %%
of_decoding = teach.predict(
    "Decoding, 32 heads on 8: FLOP for each byte", guess=None, unit="FLOP per byte"
)

# %%
keys, columns, heads_of_keys = 8192, 128, 8
of_decoding.reveal(
    4 * 32 * keys * columns / (2 * 2 * heads_of_keys * keys * columns),
    because="each key and value is used by the four queries of its group, and by no other.",
)

# %% [markdown]
# So it waits for memory; the matrix units do not matter, and what counts is that *all* units
# load. Two remedies, both in the kernel above:
#
# - `packed`: the queries of a group become the rows of one tile, so that keys are loaded once
#   for all of them: 8 programs instead of 32, and a fourth of the loads;
# - `SPLITS`: several programs share the keys of a head. Each writes its output and its
#   log-sum-exp; a second kernel merges them, which on Hopper is started while the first still
#   runs and waits for it (`OVERLAP`). That is lesson 03's merge of states, for a
#   log-sum-exp *is* a state, whose total is 1:
#
# $$\ell = \log \sum_s e^{\ell_s}, \qquad o = \sum_s e^{\ell_s - \ell} \, o_s$$

# %%
query = normals(1, 8, 1, 16)
key, value = normals(1, 2, 300, 16), normals(1, 2, 300, 16)
for splits in (1, 4):
    launch = attention.launch(query, key, value, tile=(16, 16), splits=splits)
    grids = ", ".join(f"{step.name} by {step.grid[0]}" for step in launch.steps)
    error = error_of(launch, query, key, value)
    (loaded,) = {lens.trace(launch)[0].traffic("key", kind="load").bytes // key.nbytes}
    print(f"{grids}: keys loaded {loaded} time, right {error < 2e-3}")
print(inspect.getsource(attention.merge_kernel.fn))

# %% [markdown]
# **Sequences of various lengths** (`RAGGED`) lie one after another in one tensor, and a program
# finds its own by its first rows, `starts`. **`WIDE`**: offsets in 64 bits where 32 do not
# suffice, decided at launch.
#
# ## On Hopper: a softmax beside a product
#
# Each tile takes two products, on matrix units, and a softmax, on others. In the kernel above
# one waits for the other: no product can begin before its weights are there. Two programs on
# one SM fill each other's gaps, if chance has it so.
#
# **Predict.** Say both products of a tile take 2 units of time, and its softmax 2 (as computed
# above for heads of 64). If the two kinds of units never wait for one another, how many times
# as fast is that as one after the other?

# %%
overlapped = teach.predict("Overlapped, over in turns", guess=None, unit="times")

# %%
overlapped.reveal((2 + 2) / max(2, 2), because="the longer one hides the shorter.")

# %% [markdown]
# Triton's language has no words for it: which warps load, which product is waited for, who goes
# first. Gluon, the lower language beneath, has them. So the package has a second kernel, for
# Hopper, for what is asked for most: no hooks, masks or dropout, heads of 64 to 256 columns in
# 16 bits. (Shah et al., *FlashAttention-3*, 2024, has these ideas.) A group of four warps runs
# this:

# %%
print(inspect.getsource(attention_hopper.attend.fn))

# %% [markdown]
# - **Within a group.** In the loop, `warpgroup_mma` *starts* the scores of a tile, then the
#   product of the weights of the tile *before* with its values. `warpgroup_mma_wait(1)` waits
#   for the scores alone. So the second product runs while `softmax` does.
# - **Rescale after that product.** The sums belong to the matrix unit while it adds to them.
#   They are rescaled when it is done, by the factor of the next tile: the same formula, with the
#   order of steps shifted by one.
# - **Between groups** (`TURNS`). A barrier lets them start products in turns, so that one has the
#   matrix unit while the other is in its softmax. Which of that pays was found by measuring: see
#   `ON_HOPPER` in `workbench/kernels/instances/attention.py`.
# - **A warp that only copies** (`copy`), by TMA, and barriers that say when a buffer is full, and
#   when it is free. It needs few registers, and gives the others to those that have sums.
# - **Persistent programs**, as in lesson 06's rung 9: the first keys of the next tile of queries
#   arrive while this one is stored.
#
# As a timeline, of one tensor core and of the units that make exponentials:


# %%
def schedule(groups, overlap):
    """(lane, begin, length, group) of products, lane 0, and softmaxes, lane 1, of six tiles each."""
    found, matrix_free, softmax_free = [], 0, 0
    ready = [0] * groups
    for _ in range(6):
        for group in range(groups):
            begin = max(matrix_free, ready[group])
            found.append((0, begin, 2, group))
            matrix_free = begin + 2
            start = max(softmax_free, begin + (1 if overlap else 2))
            found.append((1, start, 2, group))
            softmax_free = ready[group] = start + 2
    return found


plans = {
    "one group, in turns": schedule(1, False),
    "one group, the softmax beside the values of the tile before": schedule(1, True),
    "two groups, that take turns": schedule(2, False),
}
with viz.figure_style():
    figure, axes = plt.subplots(3, 1, figsize=(9, 4.2), sharex=True)
    for (title, plan), axis in zip(plans.items(), axes, strict=True):
        for lane, begin, length, group in plan:
            color = f"C{group}"
            axis.broken_barh([(begin, length - 0.06)], (1 - lane, 0.8), facecolor=color)
        axis.set_yticks([0.4, 1.4], ["softmax", "products"])
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlim(0, 27)
        axis.grid(visible=False)
    axes[-1].set_xlabel("time, in units of one product")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: three timelines of six tiles, products above and softmaxes below: one group in turns,
# where each kind of unit idles half of the time; one group whose softmax begins after the scores,
# beside the product before, where each idles for a third; and two groups in two colors, with twice
# the tiles in all, that take turns, where both kinds of units are busy.*
#
# (The timelines are drawn by the rules above, not measured. What is gained in truth is less: a
# softmax's instructions and a product's share the issue slots of the SM, and two groups have
# half the registers each.)
#
# ## Check it
#
# All rungs and the shipped kernel, with lengths that fill no tile, heads that share keys,
# layouts in which the heads are not apart, several seeds, outputs full of NaN, and programs in
# a shuffled order:

# %%
for seed, (queries, keys, heads, key_heads, size) in enumerate(
    ((1, 1, 1, 1, 16), (17, 33, 2, 2, 16), (40, 31, 4, 2, 32), (31, 70, 3, 1, 64))
):
    generator.manual_seed(seed)
    query = normals(1, queries, heads, size).transpose(1, 2)
    key, value = (normals(1, key_heads, keys, size) for _ in range(2))
    shared = [t.repeat_interleave(heads // key_heads, dim=1) for t in (key, value)]
    below = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    aligned = Window(right=0, from_end=True)
    by_rules = Scoring(window=aligned)
    errors = {
        "whole rows": error_of(whole_rows(query, *shared), query, *shared),
        "online": error_of(online(query, *shared), query, *shared),
        "causal": error_of(causal(query, *shared, True), query, *shared, below),
        "grouped": error_of(
            grouped_queries(query, key, value, aligned), query, key, value, below
        ),
        "shipped": error_of(
            attention.launch(query, key, value, by_rules, tile=(16, 16), splits=1),
            query,
            key,
            value,
            below,
        ),
    }
    wrong = [name for name, error in errors.items() if not error < 4e-3]
    print(f"{queries:2d} queries, {keys} keys: {', '.join(wrong) or 'all right'}")

# %% [markdown]
# What this does *not* prove: that it is fast, that offsets beyond 32 bits are right, or that
# scores of a hundred thousand come out well. (The package's tests have the last two.)
#
# ## Look inside
#
# The shipped kernel, causal, with tiles of 128 × 64, for an H200 and an MI300. In the lens select
# the line that calls `attend`: nearly all bytes and instructions are its. Then go down to the
# operators that it calls. `tl.dot` stands in one line, `product`, and both products are there, as
# matrix instructions (`wgmma`, `mfma`). What is the softmax made of (`tl.exp2`)?

# %%
TILE = {"tile": (128, 64), "num_warps": 8, "num_stages": 3, "splits": 1}
one_head = normals(1, 1, 256, 64)
shipped = attention.launch(one_head, one_head, one_head, Scoring(window=CAUSAL), **TILE)
for target in ("sm_90", "gfx942"):
    (compiled,) = lens.compile(shipped, target)
    print(
        f"{target}: matrix instructions {compiled.count('matrix') > 0}, "
        f"spills {compiled.spills > 0}, fits {not compiled.problem}"
    )

# %% tags=["widget"]
explore.source.source_lens(shipped, shown=("sm_90", "gfx942"))

# %% [markdown]
# And in numbers, which differ from one compiler to the next: with tiles of queries and keys of
# several sizes, the registers of a thread and what they leave room for.

# %% tags=["nbval-ignore-output", "compiler"]
for queries, keys in ((64, 64), (128, 64), (128, 128)):
    tile = {**TILE, "tile": (queries, keys), "num_stages": 2}
    (step,) = lens.compile(attention.launch(tokens, tokens, tokens, **tile), "sm_90")
    print(
        f"{queries:3d} queries, {keys:3d} keys: {step.registers:3d} registers, "
        f"{step.spills} spilled, {step.shared_bytes / 1024:.0f} KiB shared"
    )

# %% [markdown]
# A tile of queries costs registers for its sums, of keys for its scores. More queries spare
# loads of keys and values; more keys spare rescales and the end of a loop. Neither may spill.

# %% [markdown]
# ## Measure: the ladder
#
# Four texts of 4,096 tokens, 32 heads of 64 columns, fp16. First what each rung *should* gain.
#
# **Fusion.** Three kernels move all of $S$ and $P$, and wait for memory. One kernel need not.
# **Predict.** By the roofs of an H200, of memory and of products: how many times as fast as the
# three can one kernel be?

# %%
fusion = teach.predict("One kernel over three, by the roofs", guess=None, unit="times")

# %%
shipped_lines = recording.shipped("nvidia-h200")
ATTENTION = "scaled_dot_product_attention"
rungs = recording.select(shipped_lines, op=ATTENTION, provider="workbench:online")
run = recording.select(shipped_lines, run=recording.latest_run(rungs)[0].run)
h200 = from_recording(run)
heads_in_all = 4 * 32
for_bytes = heads_in_all * with_scores / h200.bandwidth
for_products = heads_in_all * flops / h200.rate("fp16")
by_roofs = for_bytes / for_products
print(f"three kernels, all bytes: {1e3 * for_bytes:.2f} ms at the least")
print(f"one kernel, its products: {1e3 * for_products:.2f} ms")
fusion.reveal(
    round(by_roofs, 1),
    because="three wait for their bytes, and one for its products.",
    tolerance=0.1,
)

# %% [markdown]
# Far less than the ratio of the bytes, 65: without them something else is the limit.
#
# **Causal skipping.** All tiles over those that are visited. Counted for tiles of 128 × 64:

# %%
one_text = tokens[:, :1]
counted = visits_of(one_text, one_text, CAUSAL, tile=(128, 64))
by_tiles = counted.tiles / counted.visited
print(
    f"{counted.visited:,} of {counted.tiles:,} tiles are visited: "
    f"{by_tiles:.2f} times as fast"
)

# %% [markdown]
# **Base 2.** In this problem heads share no keys. What is left of rung 5 is that a score takes
# fewer instructions. As the compiler counts them:

# %% tags=["nbval-ignore-output", "compiler"]
FP32 = ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP")
for name in ("causal", "grouped_queries"):
    rung = attention_ladder.LADDER[name]
    (step,) = lens.compile(
        rung(tokens, tokens, tokens, torch.empty_like(tokens)), "sm_90"
    )
    opcodes = [each.opcode.split(".")[:2] for each in step.instructions]
    in_fp32 = sum(each[0] in FP32 for each in opcodes)
    exponentials = opcodes.count(["MUFU", "EX2"])
    print(f"{name:16s} {in_fp32 / exponentials:.1f} in fp32 for each exponential")

# %% [markdown]
# Exponentials and products are as many as before.
#
# **Predict.** Is that worth anything?

# %%
base_2 = teach.predict(
    "Rung 5 over rung 4, without shared heads",
    guess=None,
    choices=("as fast, within 3 %", "faster"),
)

# %% [markdown]
# **Portable**: the shipped kernel, with tiles by descriptors, of 64 queries and 128 keys for four
# warps. A unit has room for three such programs, and for two of the rungs'. We have no formula
# for that. **Shipped**: what `ops.scaled_dot_product_attention` does by itself. Without a mask
# that is Hopper's kernel here: twice as fast, if nothing was hidden before. With a mask and
# 4,096 keys it is the portable one: nothing to gain.
#
# Now the ladder, timed in CUDA graphs: live if you have a GPU, else as recorded on an H200.

# %% tags=["nbval-ignore-output"]
OURS, PEERS = "workbench", ("cuDNN", "FlashAttention-2", "flex_attention")
measured = recording.select(run, op=ATTENTION, case={"n_q": n, "d": d})
if here.is_gpu:  # without flex_attention, whose compiler takes its time
    climb = [
        replace(
            case, providers=tuple(name for name in case.providers if name != PEERS[2])
        )
        for case in suites.get("attention").cases
        if case.dtype == "fp16" and (case.case["n_q"], case.case["d"]) == (n, d)
    ]
    ladder = suites.Suite("ladder", "every rung", tuple(climb))
    measured, _ = suites.run(ladder, progress=False, rounds=1, warmup_ms=10, rep_ms=20)
taken = {(line.case["causal"], line.provider): line for line in measured}
RUNGS = (
    # what it is called, its provider, mask, what it is compared with, what it should gain
    ("three kernels", f"{OURS}:unfused", False, None, ""),
    ("online", f"{OURS}:online", False, (False, f"{OURS}:unfused"), f"{by_roofs:.1f}"),
    ("portable", f"{OURS}:portable", False, (False, f"{OURS}:online"), "?"),
    ("**shipped**", OURS, False, (False, f"{OURS}:portable"), "up to 2"),
    *((name, name, False, None, "") for name in PEERS),
    ("causal", f"{OURS}:causal", True, (False, f"{OURS}:online"), f"{by_tiles:.2f}"),
    ("base 2", f"{OURS}:grouped_queries", True, (True, f"{OURS}:causal"), "?"),
    ("portable", f"{OURS}:portable", True, (True, f"{OURS}:grouped_queries"), "?"),
    ("**shipped**", OURS, True, (True, f"{OURS}:portable"), "1"),
    *((name, name, True, None, "") for name in PEERS),
)


def times_faster(line, other):
    return f"{other.median_ms / line.median_ms:.2f}" if line and other else ""


head = ["kernel", "mask", "should gain", "gained", "TFLOP/s", "speed over cuDNN's"]
table = [head, ["---"] * len(head)]
for called, provider, masked, before, expected in RUNGS:
    line = taken.get((masked, provider))
    gain = times_faster(line, taken.get(before))
    speed = f"{line.tflops:.0f}" if line else "not measured"
    against = times_faster(line, taken.get((masked, "cuDNN")))
    mask = "causal" if masked else "none"
    table.append([called, mask, expected, gain, speed, against])
slower, faster = (
    taken.get((True, f"{OURS}:{name}")) for name in ("causal", "grouped_queries")
)
if slower and faster:
    base_2.reveal(
        "faster"
        if slower.median_ms > 1.03 * faster.median_ms
        else "as fast, within 3 %",
        because="of all that it does, only these instructions became fewer.",
    )
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# Rung for rung, as recorded:
#
# - **Online** gains three fifths of what the roofs allow. (See the figure below: it is far from
#   the roof of products.)
# - **Causal** gains a little *more* than its tiles: those that it visits are mostly whole, and have
#   no mask any more, while `online` compares every column with the number of keys.
# - **Base 2** gains a fifth, by instructions of the softmax alone. So it is these that the rung
#   waited for, and not its products.
# - **Portable** gains a third without a mask, over a rung that has neither base 2 nor whole tiles;
#   over the rung that has both, hardly anything.
# - **Shipped**, without a mask, gains less than a fifth, of a factor of two. With the mask it is the very
#   same kernel, so that line shows how well a time repeats.
#
# Without a mask, under the roofs; the three kernels with the bytes that they really move:

# %%
roofs = suites.live_or_recorded("matmul")[0] if here.is_gpu else h200
SHOWN = {f"{OURS}:unfused": "three kernels", OURS: "shipped"}
with viz.figure_style() as palette:
    figure, axis = plt.subplots(figsize=(9, 5.2))
    intensity = np.geomspace(16, 8192, 200)
    roof = np.minimum(intensity * roofs.bandwidth, roofs.rate("fp16")) / 1e12
    axis.loglog(intensity, roof, color=palette.ink)
    beyond = intensity > 2 * roofs.rate("fp16") / roofs.bandwidth
    axis.loglog(intensity[beyond], roof[beyond] / 2, "--", color=palette.muted)
    products, half = f"products: {roof[-1]:.0f} TFLOP/s", roof[-1] / 2
    axis.text(8192, roof[-1], products, ha="right", va="bottom", fontsize=9)
    axis.text(330, half, "half of it", va="bottom", fontsize=9)
    memory = f"memory: {roofs.bandwidth / 1e12:.2f} TB/s "
    axis.text(80, roofs.bandwidth * 80 / 1e12, memory, ha="right", fontsize=9)
    for provider in (
        *(f"{OURS}:{name}" for name in ("unfused", "online", "portable")),
        OURS,
        *PEERS,
    ):
        line = taken.get((False, provider))
        if not line:
            continue
        name = SHOWN.get(provider, provider.removeprefix(f"{OURS}:"))
        is_peer = provider in PEERS
        moved = heads_in_all * with_scores if name == "three kernels" else line.bytes
        axis.plot(
            line.flops / moved,
            line.tflops,
            "s" if is_peer else "o",
            color=f"C{int(is_peer)}",
        )
        axis.annotate(
            f"{name}, {line.tflops:.0f}",
            (line.flops / moved, line.tflops),
            xytext=(8 if is_peer or name == "three kernels" else -8, 0),
            textcoords="offset points",
            ha="left" if is_peer or name == "three kernels" else "right",
            va="center",
            fontsize=9,
        )
    axis.set_xticks(ticks := [16, 64, 256, 1024, 4096], map(str, ticks))
    axis.set_yticks(ticks := [64, 128, 256, 512], map(str, ticks))
    axis.minorticks_off()
    axis.set(ylim=(56, 900), xlabel="FLOP for each byte", ylabel="TFLOP/s")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: attention under the roofs of the device, ours as circles and the libraries as squares:
# three kernels on the left, close below the slope of memory; all others far to the right of the
# ridge, below the roof of products, with the online rung and FlashAttention-2 below a dashed line
# at half of it, and the portable and the shipped kernel, flex_attention and cuDNN above.*
#
# So the three kernels are not badly written: they reach three quarters of what memory allows. They
# move too much. And the one kernel has left memory behind. What holds it is the softmax. As computed
# above, with heads of 64 columns the exponentials take as long as both products, so that a kernel
# which does them *in turns* could reach about half of the roof. `online` stays below that half.
# The portable kernel is above it, since the programs on a unit overlap, and the shipped one further
# above, since it sees to that itself.
#
# ## Measure: against the libraries
#
# 16,384 tokens in all, cut into texts of 512, or 1,024, and so on (the last point is one text of
# 32,768), fp16; heads of 64 columns and of 128. As recorded on an H200.
#
# **Predict.** Where is the package furthest behind cuDNN?

# %%
furthest = teach.predict(
    "Furthest behind cuDNN",
    guess=None,
    choices=(
        "short texts, no mask",
        "short texts, causal",
        "long texts, no mask",
        "long texts, causal",
    ),
)

# %%
curves = {}
for line in recording.select(run, op=ATTENTION):
    if line.case["d"] in (64, 128) and line.case["h"] == 2048 // line.case["d"]:
        curve = curves.setdefault((line.case["d"], line.case["causal"]), {})
        curve.setdefault(line.provider, {})[line.case["n_q"]] = line
FAMILIES = ((64, False), (64, True), (128, False), (128, True))


def family(columns, masked):
    return f"{columns} columns, {'causal' if masked else 'no mask'}"


with viz.figure_style() as palette:
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex=True, sharey=True)
    for axis, problem in zip(axes.flat, FAMILIES, strict=True):
        for provider, marker in zip((OURS, *PEERS), "osDX", strict=True):
            by_length = curves[problem].get(provider, {})
            lengths = sorted(by_length)
            speeds = [by_length[length].tflops for length in lengths]
            axis.plot(lengths, speeds, marker=marker, markersize=5, label=provider)
        axis.axhline(h200.rate("fp16") / 1e12, color=palette.ink, ls="--", lw=1)
        axis.set_title(family(*problem), loc="left", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths := sorted(curves[problem][OURS]))
        axis.set_xticklabels([f"{x / 1024:g}k" if x > 512 else x for x in lengths])
    axes[0, 0].set_ylim(0, 760)
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    for axis in axes[1]:
        axis.set_xlabel("tokens of a text")
    axes[0, 0].legend(ncols=2, fontsize=8, loc="lower right")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: four plots of TFLOP/s by the length of a text, for heads of 64 and 128 columns, without a
# mask and with one, below a dashed line for the roof of products: the package and cuDNN rise
# together, the package lower for short texts and level or higher for long ones; FlashAttention-2
# stays far below both; flex_attention is one marker at 4,096 tokens, below the package's.*
#
# The same as a table: the package's speed over cuDNN's. Where it is behind by more than three in a
# hundred, the number is bold.

# %%
shares = {
    (problem, length): line.median_ms / curves[problem][OURS][length].median_ms
    for problem in FAMILIES
    for length, line in curves[problem]["cuDNN"].items()
}
worst_problem, worst_length = min(shares, key=shares.get)
kind = "causal" if worst_problem[1] else "no mask"
furthest.reveal(
    f"{'short' if worst_length <= 2048 else 'long'} texts, {kind}",
    because=f"{shares[worst_problem, worst_length]:.2f} of its speed "
    f"at {worst_length} tokens, {family(*worst_problem)}.",
)
head = ["tokens", *(family(*problem) for problem in FAMILIES)]
table = [head, ["---"] * len(head)]
for length in sorted({length for _, length in shares}):
    cells = [f"{shares[problem, length]:.2f}" for problem in FAMILIES]
    cells = [f"**{cell}**" if float(cell) < 0.97 else cell for cell in cells]
    table.append([f"{length:,}", *cells])
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# What is it that short texts lack? With the same number of tokens there are as many programs for
# any length; what grows with the length are the keys that each goes over. So draw the time by the
# keys that a query sees. The slope is what keys cost. Where the line meets the axis, at no keys at
# all, is what costs time besides. For heads of 64 columns with a causal mask the package takes the
# same kernel, the portable one, for all lengths up to 4,096:

# %%
fits = {}
with viz.figure_style() as palette:
    figure, axis = plt.subplots(figsize=(9, 3.8))
    for provider, marker in zip((OURS, "cuDNN"), "os", strict=True):
        by_length = curves[64, True][provider]
        lengths = [length for length in sorted(by_length) if length <= 4096]
        keys_seen = np.array([(length + 1) / 2 for length in lengths])
        micros = np.array([1e3 * by_length[length].median_ms for length in lengths])
        slope, besides = fits[provider] = np.polyfit(keys_seen, micros, 1)
        (dots,) = axis.plot(keys_seen, micros, marker, label=provider)
        ends = np.array([0, keys_seen[-1]])
        axis.plot(ends, besides + slope * ends, color=dots.get_color(), lw=1)
    axis.set(xlim=(0, None), ylim=(0, None), ylabel="µs")
    axis.set_xlabel("keys that a query sees, on average")
    axis.legend(loc="upper left")
    plt.tight_layout()
    plt.show()
for provider, (slope, besides) in fits.items():
    print(
        f"{provider:9s} {1000 * slope:.0f} µs for 1,000 keys, {besides:.0f} µs besides"
    )

# %% [markdown]
# *Figure: time by the keys that a query sees, four dots each for the package and for cuDNN, on two
# straight lines of nearly the same slope, of which cuDNN's begins lower.*
#
# Keys cost both the same. What differs is what comes *besides*, and in a short text there is little
# else. Two parts of it can be counted: of the tiles on the diagonal half is computed for nothing, and
# $Q$, $K$, $V$ and $O$ have to be moved.

# %%
tile = attention_ladder.PORTABLE[64].tile
counted = visits_of(one_text, one_text, CAUSAL, tile=tile)
visited_keys = (counted.visits != 0).sum(1) * tile[1]
for_nothing = visited_keys.mean() - (n + 1) / 2
line = curves[64, True][OURS][512]
print(f"computed for nothing: {for_nothing:.0f} keys for each query,")
print(f"   {for_nothing * fits[OURS][0]:.0f} of {fits[OURS][1]:.0f} µs")
print(
    f"Q, K, V and O, once, at memory's roof: {1e6 * line.bytes / h200.bandwidth:.0f} µs"
)
print(f"with 512 tokens {line.flops / line.bytes:.0f} FLOP for each byte, ", end="")
print(f"ridge at {h200.rate('fp16') / h200.bandwidth:.0f}")

# %% [markdown]
# So with 512 tokens and a mask attention is left of the ridge again: it cannot take less time than
# its bytes. The rest is the beginning and the end of each program. It loads its queries and the first
# keys before it can multiply, and it stores at the end. Nothing of its own work hides that, only
# other programs on the unit do. (That is reasoned: what a program waits for was not recorded.)
# Hopper's kernel has a warp that loads ahead; but there is room for one program on a unit only, and
# for short texts with a mask it was slower still.
#
# **What remains**, in cuDNN's terms:
#
# - *Short texts with a causal mask* are the worst: with 128 columns
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=512 d=128 causal=true provider=workbench over=cuDNN}}
#   of its speed at 512 tokens,
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=1024 d=128 causal=true provider=workbench over=cuDNN}}
#   at 1,024 and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=2048 d=128 causal=true provider=workbench over=cuDNN}}
#   at 2,048 tokens.
# - *Short texts without a mask* lack less:
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=512 d=64 causal=false provider=workbench over=cuDNN}}
#   (64 columns) and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=512 d=128 causal=false provider=workbench over=cuDNN}}
#   (128) at 512 tokens.
# - *Long texts* are level or ahead: at 16,384 tokens
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=16384 d=64 causal=false provider=workbench over=cuDNN}}
#   and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=16384 d=128 causal=false provider=workbench over=cuDNN}},
#   with a mask
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=16384 d=64 causal=true provider=workbench over=cuDNN}}
#   and
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=16384 d=128 causal=true provider=workbench over=cuDNN}}.
#   That is Hopper's kernel: with 128 columns and 4,096 tokens it has
#   {{recording device=nvidia-h200 op=scaled_dot_product_attention dtype=fp16 n_q=4096 d=128 h=16 causal=false provider=workbench over=workbench:portable}}
#   times the portable one's speed.
# - *To the roof of products* it is further for 64 columns than for 128, where a tile has as many
#   exponentials for twice the products.
#
# FlashAttention-2, as torch ships it, was written for the GPUs before this one and does not use
# Hopper's matrix instructions. FlashAttention-3, which does, was not there to be recorded.
# `flex_attention`, torch's compiled template, takes masks and scores of your own as the shipped
# kernel does; it was recorded at 4,096 tokens only.

# %% [markdown]
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on all of
# its cases, and if no more of the machine is used than the text says;
# `teach.exercise("11-1").hint()` asks a question that leads on.
#
# ### Exercise 11-1: an answer after every tile
#
# Keys pass by in tiles of 16, and after *each* of them the output so far is stored: the
# attention to the first 16 keys, to the first 32, and so on. Heads have 16 columns. Write
# `update`: state and weighted sums of each row once a tile of scores (`rated`, already scaled,
# $-\infty$ where there is no key) and its values were seen too. All else is given. Scores may
# rise and fall by hundreds. Each program loads each key and value once.


# %%
# {{exercise 11-1}}

# %% [markdown]
# {{solution 11-1}}

# %% [markdown]
# ### Exercise 11-2: only what is seen
#
# A query sees the key at its own place and `left` keys before it. Its place is its own number;
# or, `from_end`, such that the last query is at the place of the last key. Write `shift_of`,
# `sees`, and `tiles_seen`, which for the queries from `first` to `last` says which tiles of keys
# are visited, from `begin` to `end` (excluded), and which of these need no mask, from `whole` to
# `whole_end`. The kernel goes by your plan and counts: it is scored by the tiles that it visits,
# and by those that it masks. A query that sees nothing has an output of 0.


# %%
# {{exercise 11-2}}

# %% [markdown]
# {{solution 11-2}}

# %% [markdown]
# ### Exercise 11-3: merge the splits
#
# Splits of the keys have left their outputs, [splits, rows, size], each divided by its own
# total, and their log-sum-exps, [splits, rows]. A split that saw no key of a row has left 0 and
# $-\infty$. Make of them the output and the log-sum-exp of each row: 0 and $-\infty$ where no
# split saw a key. Neither the number of splits nor the size need be a power of two; everything
# is in fp32, and is loaded once.


# %%
# {{exercise 11-3}}

# %% [markdown]
# {{solution 11-3}}

# %% [markdown]
# ### Exercise 11-4: a hook of your own
#
# Cap scores softly, and prefer near keys: a score $x$ of query $i$ and key $j$ becomes
#
# $$c \cdot \tanh\frac{x}{c} - \text{slope}_h \cdot |\,i + \text{keys} - \text{queries} - j\,|$$
#
# where `slopes` has a number for each head of queries. Write `bend`, and say in `bent` what it has
# to be given. It runs in the shipped kernel; heads may share keys, and lengths may differ.


# %%
# {{exercise 11-4}}

# %% [markdown]
# {{solution 11-4}}

# %% [markdown]
# ## Takeaways
#
# - Scores are made, used and forgotten on the chip: bytes are linear in the length, FLOPs
#   remain quadratic.
# - What is asked for is a sum with the softmax's weights, and a sum can be rescaled as its
#   total can. Sums in fp32, weights in 16 bits.
# - Skip tiles of which nothing is seen; mask only those of which some is; and know which of
#   two diagonals is meant.
# - A row that sees nothing is 0, not NaN.
# - A log-sum-exp is a state: outputs of different keys merge by it, and backward needs it.
# - Beside products of this size, exponentials are not free. Bytes that are saved gain time up to
#   the next limit, and no further: here it is the softmax, and for short texts what a program
#   does before and after its keys.
#
# **Next:** lesson 12 goes backward, and makes the weights again from a score and a
# log-sum-exp. Back to [06, fast GEMM](06_fast_gemm.ipynb), or to
# [00, start here](00_start_here.ipynb).
