# %% [markdown]
# # Normalization: layer norm and RMS norm, forward and backward
#
# You will build
#
# - layer norm in one kernel that reads its row once;
# - a variance by the textbook's formula, which can lose every digit, and by Welford's,
#   which does not, on rows of any length;
# - the gradients: derived, checked by finite differences and by autograd, and computed
#   in one kernel for rows and weights at once.
#
# **Time:** 60 minutes. **You need:** Python, and
# [lesson 03](03_tile_reduction.ipynb)'s reductions. Kernels run in the interpreter and
# are compiled for GPUs that need not be here; how fast they are was recorded on an
# H200.
#
# **Out of scope:** batch norm and group norm (the same template with other rows and
# columns, in a later lesson); second derivatives.

# %%
from workbench import (
    Launch,
    Step,
    Work,
    device,
    explore,
    lens,
    ops,
    runtime,
    teach,
    viz,
)
from workbench.bench import recording
from workbench.kernels.rows import normalization
from workbench.kernels.tile import reduce

import inspect

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## The idea: two moments of a row
#
# Layer norm makes each row of a matrix have mean 0 and variance 1, and then scales and
# shifts its columns by a weight and a bias that are learned:
#
# $$y_j = \frac{x_j - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w_j + b_j, \qquad
# \mu = \frac{1}{n} \sum_j x_j, \qquad \sigma^2 = \frac{1}{n} \sum_j (x_j - \mu)^2$$
#
# ($\epsilon$ is small, and keeps a constant row from dividing by 0.) Two reductions of
# a row, and then every element is made anew: a row operator, as the softmax is.
#
# Count some 8 FLOPs an element. **Predict.** In fp16, with each element read once and
# written once: what is the intensity?

# %%
intensity = teach.predict(
    "Intensity of layer norm in fp16", guess=None, unit="FLOP per byte"
)

# %%
n = 4096 * 4096
intensity.reveal(
    Work(flops=8 * n, bytes=2 * 2 * n).intensity,
    because="8 FLOPs for 2 bytes read and 2 bytes written.",
)

# %% [markdown]
# Even the lowest of lesson 02's ridges lies to the right of that. So layer norm is bound
# by memory, and what counts is that the row is read *once*.
#
# ## The reference

# %%
here = device.current()
functional = torch.nn.functional
x = torch.tensor([[1.0, 2.0, 3.0, 6.0]], device=here.torch_device)
print([round(value, 4) for value in functional.layer_norm(x, (4,))[0].tolist()])

# %% [markdown]
# ## Step 1: a row, one tile
#
# The row is loaded once and stays in registers: its mean, the squares around the mean,
# the result.


# %%
@triton.jit
def layer_norm_row_kernel(
    x_pointer,
    weight_pointer,
    bias_pointer,
    output_pointer,
    columns,
    epsilon,
    COLUMNS: tl.constexpr,
):
    start_of_row = tl.program_id(axis=0) * columns
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    x = tl.load(x_pointer + start_of_row + column, mask=inside, other=0.0).to(
        tl.float32
    )
    mean = tl.sum(x, axis=0) / columns
    centered = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centered * centered, axis=0) / columns
    weight = tl.load(weight_pointer + column, mask=inside)
    bias = tl.load(bias_pointer + column, mask=inside)
    result = centered * tl.rsqrt(variance + epsilon) * weight + bias
    tl.store(output_pointer + start_of_row + column, result, mask=inside)


def layer_norm(x, weight, bias, epsilon=1e-5):
    rows, columns = x.shape
    output = torch.empty_like(x)
    return Launch.of(
        layer_norm_row_kernel,
        (rows,),
        x,
        weight,
        bias,
        output,
        columns,
        epsilon,
        outputs=output,
        COLUMNS=triton.next_power_of_2(columns),
    )


weight, bias = torch.ones(4, device=x.device), torch.zeros(4, device=x.device)
print([round(value, 4) for value in layer_norm(x, weight, bias).run()[0][0].tolist()])

# %% [markdown]
# Look at `tl.where`. A row of 1,000 numbers gets a tile of 1,024, and the 24 lanes
# beyond its end have loaded 0. That is right for the sum. But then the mean is
# subtracted. **Predict.** Of a row of 1,000 numbers, all of them 5, what would the
# variance be without `tl.where`?

# %%
without = teach.predict("Variance of 1,000 fives, without tl.where", guess=None)

# %%
without.reveal(0.6, because="24 lanes hold 0 − 5 each: 24 · 25 / 1000, not 0.")

# %% [markdown]
# A masked lane is not an absent lane. What it holds must be neutral *at each reduction
# anew*.
#
# ## Three ways to a variance
#
# The kernel goes over the row twice, in registers. A row that does not fit into them
# would have to be read twice before it is normalized in a third reading. The textbook
# has a formula for one reading, since $\sigma^2 = \overline{x^2} - \bar{x}^2$ (a bar is
# the mean over the row): add up $x$ and $x^2$ on the way.
#
# **Predict.** A row has the mean 10,000 and the variance 1. What does this formula
# give in fp32?

# %%
moments = teach.predict(
    "mean of x² − mean², in fp32, for a mean of 10,000 and a variance of 1",
    guess=None,
    choices=("1 to three digits", "1 to one digit", "wrong in the first digit"),
)

# %%
row = 1e4 + lens.numerics.named_row("normal", 4096)
ways = {
    method: lens.numerics.variance(row, "fp32", method)
    for method in ("two moments", "two passes", "welford")
}
exact = float(lens.numerics.exact_variance(row, "fp32"))
off = abs(ways["two moments"] - exact) / exact
bands = {1e-3: "1 to three digits", 0.1: "1 to one digit"}
moments.reveal(
    next(
        (band for limit, band in bands.items() if off < limit),
        "wrong in the first digit",
    ),
    because="x² is 10⁸, where neighbors in fp32 are 8 apart, and the difference is 1.",
)
for method, value in ways.items():
    print(f"{method:12s} within 0.1 %: {abs(value - exact) / exact < 1e-3}")

# %% [markdown]
# This is **cancellation**: two large numbers that agree in their first digits are
# subtracted, and what is left are their rounding errors. They grow with the square of
# mean / deviation. Where the result comes out negative, hollow in the figure, the root
# of it is NaN:

# %%
spread = lens.numerics.errors_of_variance(dtypes=("fp32",))
viz.Picture(
    viz.figure_png(viz.variance_errors(spread)), viz.describe_variance_errors(spread)
)

# %% [markdown]
# *Figure: the relative error of the variance in fp32 against mean over deviation, by
# method: that of the two moments grows with the square of it, to a thousand times the
# value itself, while those of two passes and Welford's stay below 1 %.*
#
# ## Step 2: Welford, one reading without cancellation
#
# Keep the mean of what was seen, and $M_2 = \sum (x - \mu)^2$ of what was seen. The
# $k$-th number $x$ changes them to
#
# $$\delta = x - \mu, \qquad \mu' = \mu + \frac{\delta}{k}, \qquad
# M_2' = M_2 + \delta \, (x - \mu')$$
#
# (B. P. Welford, 1962.) Here too a large number is subtracted from another, but
# *before* anything is squared: $x$ is what was loaded, and only $\mu$ has been rounded.
# So the error grows with mean / deviation, as the figure shows, and not with its
# square. In the package every *lane* keeps such a state of its own, as in lesson 03's
# sums. It takes one step more: of all its numbers it subtracts the first one. Each
# $\mu$ is rounded, near 10,000 to steps of $10^{-3}$, and $M_2$ gathers these roundings;
# less the first number, the others are near 0, and $\mu$ is rounded to a small part of
# the deviation:

# %%
print(inspect.getsource(reduce.welford_update.fn))

# %% [markdown]
# And two states, of $n_a$ and $n_b$ numbers, make the state of all of them, with
# $\delta = \mu_b - \mu_a$ and $n = n_a + n_b$:
#
# $$\mu = \mu_a + \delta \frac{n_b}{n}, \qquad
# M_2 = M_{2a} + M_{2b} + \delta^2 \frac{n_a n_b}{n}$$
#
# (T. Chan, G. Golub and R. LeVeque, 1979.) The last term is what neither part knows by
# itself: how far their means lie apart. So the state can be reduced like any other,
# over lanes, warps and programs.

# %%
print(inspect.getsource(reduce.welford_merge.fn))

# %%
a, b = torch.tensor(row[:1000]), torch.tensor(row[1000:])
(mean_a, m2_a), (mean_b, m2_b) = (
    (part.mean(), ((part - part.mean()) ** 2).sum()) for part in (a, b)
)
delta, total = mean_b - mean_a, len(a) + len(b)
m2 = m2_a + m2_b + delta**2 * len(a) * len(b) / total
print(torch.allclose(m2 / total, torch.tensor(row).var(unbiased=False)))

# %% [markdown]
# In this way the shipped layer norm takes rows that are longer than its tiles, only that
# it merges the states of all lanes at once. Where a row fits into registers, or a
# program's part of one, it does what your kernel does, and then corrects the mean. A sum
# of many numbers is off by some roundings, and so is a mean that is made of it. The
# centered numbers tell by how much, since they should add up to 0. They are added up
# together with their squares, so that lanes meet twice, as in your kernel. (`product`
# multiplies. The compiler would join a plain `*` with the subtraction that follows, and
# subtract the product before it is rounded; but the mean is made of the rounded one.)

# %%
print(inspect.getsource(reduce.welford_of_row.fn))
print(inspect.getsource(reduce.welford_around.fn))

# %% [markdown]
# Which way a row is taken, a launch tells:

# %%
for shape in ((4096, 256), (4096, 4096), (4096, 65536), (128, 1_000_000)):
    empty = torch.empty(shape, dtype=torch.float16, device="meta")
    launch = normalization.launch(
        "layer_norm", empty, 1, epsilon=1e-5, compute_units=132
    )
    for step in launch.steps:
        tile = f"{step.meta['ROWS']} x {step.meta['COLS']}"
        print(f"{shape}: {step.name}, {step.grid[0]} programs, tiles of {tile}")

# %% [markdown]
# ## RMS norm
#
# One moment fewer: $y_j = x_j \, w_j / \sqrt{\overline{x^2} + \epsilon}$. Nothing is
# subtracted, so nothing cancels, and the plain sum of squares will do. In the package
# it is the template of lesson 03 with three other functions, as `WHOLE`, `FINISH` and
# `APPLY`:

# %%
for function in (
    normalization.sum_of_squares,
    normalization.root_scale,
    normalization.scaled_weighted,
):
    print(inspect.getsource(function.fn))

# %% [markdown]
# ## Step 3: backward
#
# Training needs the gradients. Let $L$ be what is minimized, and let $\dot y_j =
# \partial L / \partial y_j$ come from the layers above. Write $s = 1 / \sqrt{\sigma^2 +
# \epsilon}$ and $\hat x_j = (x_j - \mu) s$, so that $y_j = \hat x_j w_j + b_j$.
#
# For weight and bias it is short. They act on every row $i$, so
#
# $$\dot w_j = \sum_i \dot y_{ij} \hat x_{ij}, \qquad \dot b_j = \sum_i \dot y_{ij}$$
#
# An element $x_k$ acts in three ways: on its own $\hat x_k$, on all of them through
# $\mu$, and on all of them through $s$. With $g_j = \dot y_j w_j$, the gradient at
# $\hat x_j$, and since $\partial \mu / \partial x_k = 1 / n$ and
# $\partial s / \partial x_k = -s^2 \hat x_k / n$,
#
# $$\frac{\partial \hat x_j}{\partial x_k} = s \Big( [j = k] - \frac{1}{n} -
# \frac{\hat x_j \hat x_k}{n} \Big)$$
#
# where $[j = k]$ is 1 if $j = k$ and else 0. Multiplied by $g_j$ and summed over $j$:
#
# $$\dot x_k = s \Big( g_k - \frac{1}{n} \sum_j g_j -
# \hat x_k \, \frac{1}{n} \sum_j g_j \hat x_j \Big)$$
#
# Two means over the row, and then every element anew: a row operator again. Read it
# as a sentence: of the gradient $g$, what would only shift the row is taken away, and
# what would only stretch it; both are undone by the normalization anyway.
#
# In torch, to be checked in two ways that know nothing of this derivation: by finite
# differences, and by autograd.


# %%
def gradients(dy, x, w, epsilon=1e-5):
    mean = x.mean(1, keepdim=True)
    s = (x.var(1, unbiased=False, keepdim=True) + epsilon).rsqrt()
    normalized = (x - mean) * s
    g = dy * w
    stretch = (g * normalized).mean(1, keepdim=True)
    dx = s * (g - g.mean(1, keepdim=True) - normalized * stretch)
    return dx, (dy * normalized).sum(0), dy.sum(0)


generator = torch.Generator().manual_seed(0)
xs, dy = (torch.randn(3, 5, generator=generator).double() for _ in range(2))
w, b = (torch.randn(5, generator=generator).double() for _ in range(2))
dx, dw, db = gradients(dy, xs, w)


def loss(x):
    return (functional.layer_norm(x, (5,), w, b) * dy).sum()


step = 1e-6
by_differences = torch.zeros_like(xs)
for i in range(3):
    for j in range(5):
        nudge = torch.zeros_like(xs)
        nudge[i, j] = step
        by_differences[i, j] = (loss(xs + nudge) - loss(xs - nudge)) / (2 * step)
print("finite differences agree:", torch.allclose(dx, by_differences, atol=1e-7))

leaves = [tensor.clone().requires_grad_() for tensor in (xs, w, b)]
(functional.layer_norm(leaves[0], (5,), *leaves[1:]) * dy).sum().backward()
agree = [torch.allclose(a, b.grad) for a, b in zip((dx, dw, db), leaves, strict=True)]
print("autograd agrees:", agree)

# %% [markdown]
# ## Step 4: the gradients in one kernel
#
# A kernel for $\dot x$ reads $x$ and $\dot y$ and writes $\dot x$. The gradients of
# weight and bias need the same two tensors, but summed over *rows*. **Predict.** If
# they get a kernel of their own, how much more is moved than by one kernel for all?

# %%
apart = teach.predict("Bytes of two kernels over those of one", guess=None)

# %%
apart.reveal(
    round(5 / 3, 2),
    because="x and dy read and dx written, and then x and dy read again: 5 over 3.",
    tolerance=0.01,
)

# %% [markdown]
# So let each program take several rows, one after the other, and keep two rows of sums
# in registers on the way. In the end it leaves them in memory, and a second step adds
# them up: the two-step reduction of lesson 03. The mean and $s$ of each row are kept
# from the forward pass: 8 bytes a row, against two more reductions.


# %%
@triton.jit
def layer_norm_backward_kernel(
    x_pointer,
    dy_pointer,
    weight_pointer,
    mean_pointer,
    scale_pointer,
    dx_pointer,
    parts_pointer,
    rows,
    columns,
    COLUMNS: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    weight = tl.load(weight_pointer + column, mask=inside, other=0.0)
    dw = tl.zeros([COLUMNS], tl.float32)
    db = tl.zeros([COLUMNS], tl.float32)
    for row in range(tl.program_id(axis=0), rows, tl.num_programs(axis=0)):
        x = tl.load(x_pointer + row * columns + column, mask=inside, other=0.0)
        dy = tl.load(dy_pointer + row * columns + column, mask=inside, other=0.0)
        mean, scale = tl.load(mean_pointer + row), tl.load(scale_pointer + row)
        normalized = (x - mean) * scale
        g = dy * weight
        shift = tl.sum(g, axis=0) / columns
        stretch = tl.sum(g * normalized, axis=0) / columns
        dx = scale * (g - shift - normalized * stretch)
        tl.store(dx_pointer + row * columns + column, dx, mask=inside)
        dw += dy * normalized
        db += dy
    part = parts_pointer + tl.program_id(axis=0) * 2 * columns
    tl.store(part + column, dw, mask=inside)
    tl.store(part + columns + column, db, mask=inside)


@triton.jit
def column_sum_kernel(x_pointer, output_pointer, rows, columns, TILE: tl.constexpr):
    column = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    inside = column < columns
    total = tl.zeros([TILE], tl.float32)
    for row in range(rows):
        total += tl.load(x_pointer + row * columns + column, mask=inside, other=0.0)
    tl.store(output_pointer + column, total, mask=inside)


def layer_norm_backward(dy, x, weight, mean, scale, programs=4):
    rows, columns = x.shape
    dx = torch.empty_like(x)
    parts = torch.empty(programs, 2, columns, device=x.device)
    of_weights = torch.empty(2, columns, device=x.device)
    tile = triton.next_power_of_2(columns)
    first = Step(
        layer_norm_backward_kernel,
        (programs,),
        (x, dy, weight, mean, scale, dx, parts, rows, columns),
        {"COLUMNS": tile},
    )
    second = Step(
        column_sum_kernel,
        (triton.cdiv(2 * columns, tile),),
        (parts, of_weights, programs, 2 * columns),
        {"TILE": tile},
    )
    return Launch((first, second), (dx, of_weights))


x32, dy32 = xs.float().to(here.torch_device), dy.float().to(here.torch_device)
w32 = w.float().to(here.torch_device)
mean = x32.mean(1)
scale = (x32.var(1, unbiased=False) + 1e-5).rsqrt()
backward = layer_norm_backward(dy32, x32, w32, mean, scale)
got_dx, got_weights = (each.cpu().double() for each in backward.run())
print("dx:", torch.allclose(got_dx, dx, atol=1e-6))
print("dw, db:", torch.allclose(got_weights, torch.stack((dw, db)), atol=1e-6))

# %% [markdown]
# Nothing in `column_sum_kernel` reduces within a tile: every column is summed down by
# the lane that holds it. Reductions over the *other* dimension need no meeting of lanes
# at all.
#
# Step through the programs: four of them share nine rows. Which ones does program 1
# take?

# %% tags=["widget"]
tall, up = (torch.randn(9, 24, generator=generator) for _ in range(2))
tall, up = tall.to(here.torch_device), up.to(here.torch_device)
statistics = (tall.mean(1), (tall.var(1, unbiased=False) + 1e-5).rsqrt())
nine_rows = layer_norm_backward(up, tall, torch.ones_like(tall[0]), *statistics)
trace, _ = lens.trace(nine_rows)
viz.TraceMapWidget(trace)

# %% [markdown]
# ## The gradients that ship

# %%
print(inspect.getsource(normalization.norm_backward_kernel.fn))

# %% [markdown]
# It is yours, with
#
# - **`WHOLE`, `FINISH`, `APPLY` and `NORMALIZED`** as arguments: RMS norm has the same
#   kernel;
# - **several rows to a tile**, `ROWS`, where rows are short;
# - **`VECTORS`**, how many gradients beside that of $x$: of weight and bias, or of the
#   weight alone. Where neither is wanted there is nothing to add up, and the forward
#   pass's template does it;
# - for rows that do not fit into registers together with two rows of sums, two kernels
#   after all: 5 over 3, as you counted.
#
# `ops.layer_norm` and `ops.rms_norm` are differentiable by it:

# %%
leaf = tall.clone().requires_grad_()
(ops.layer_norm(leaf, (24,)) * up).sum().backward()
by_hand = gradients(up.double(), tall.double(), torch.ones_like(up[0]).double())[0]
print(torch.allclose(leaf.grad.double(), by_hand, atol=1e-5))

# %% [markdown]
# ## Check it
#
# Ragged rows, several seeds, a mean far from 0; into outputs filled with NaN, and with
# programs shuffled.

# %%
close = {"rtol": 1e-4, "atol": 2e-4}
for seed, (rows, columns) in enumerate([(1, 1), (5, 17), (3, 1000), (7, 1025)]):
    generator = torch.Generator().manual_seed(seed)
    a = 100 + torch.randn(rows, columns, generator=generator)
    da = torch.randn(rows, columns, generator=generator)
    w, b = (torch.randn(columns, generator=generator) for _ in range(2))
    exact = functional.layer_norm(a.double(), (columns,), w.double(), b.double())
    mine = runtime.interpret(layer_norm(a, w, b), poison=True, seed=seed).outputs[0]
    torch.testing.assert_close(mine.double(), exact, **close)
    mean, scale = a.mean(1), (a.var(1, unbiased=False) + 1e-5).rsqrt()
    launch = layer_norm_backward(da, a, w, mean, scale)
    outputs = runtime.interpret(launch, poison=True, seed=seed).outputs
    dx, dw, db = gradients(da.double(), a.double(), w.double())
    torch.testing.assert_close(outputs[0].double(), dx, **close)
    torch.testing.assert_close(outputs[1].double(), torch.stack((dw, db)), **close)
    leaves = [each.to(here.torch_device).requires_grad_() for each in (a, w, b)]
    shipped = ops.layer_norm(leaves[0], (columns,), *leaves[1:])
    torch.testing.assert_close(shipped.detach().cpu().double(), exact, **close)
    (shipped * da.to(here.torch_device)).sum().backward()
    for leaf, gradient in zip(leaves, (dx, dw, db), strict=True):
        torch.testing.assert_close(leaf.grad.cpu().double(), gradient, **close)
    print(f"{rows} x {columns:4d}: yours and the shipped ones agree, in both passes")

# %% [markdown]
# The tolerance is wider than rounding alone would need: near 100, neighbors in fp32 are
# almost $10^{-5}$ apart, and as far off is a row's mean, which every element inherits.
# What this does *not* prove: that yours take fp16, other strides, or rows that are
# longer than a tile.
#
# ## Look inside
#
# Select the lines of the two `tl.sum`: each has its shuffles and its barriers, for an
# H200 (`sm_90`) and an MI300 (`gfx942`).

# %% tags=["widget"]
two_rows, vectors = torch.randn(2, 2, 1024, generator=generator).to(here.torch_device)
explore.source.source_lens(layer_norm(two_rows, *vectors))

# %% [markdown]
# ## Measure
#
# Layer norm and RMS norm of the package in fp16, against torch and torch.compile, and
# the gradients of layer norm. As in lesson 03, all were timed in CUDA graphs: kernels
# alone, without the CPU, and a matrix that fits the L2 cache comes from there and not
# from memory. The last column is what a call costs the CPU, in microseconds.

# %% tags=["nbval-ignore-output"]
run = recording.latest_run(recording.shipped("nvidia-h200"), op="layer_norm")
fp16 = recording.select(run, dtype="fp16", mode="cuda_graph")
columns = ("problem", "provider", "ms", "GB/s", "launch us")
forward = recording.select(fp16, op="layer_norm")
Markdown(recording.table(forward, "markdown", columns))

# %% tags=["nbval-ignore-output"]
rms = recording.select(fp16, op="rms_norm")
Markdown(recording.table(rms, "markdown", columns))

# %% tags=["nbval-ignore-output"]
backward = recording.select(fp16, op="layer_norm_backward")
Markdown(recording.table(backward, "markdown", columns))

# %% [markdown]
# How much faster than the better one of torch and torch.compile is each, those of RMS
# norm among them? Above 1 the package is ahead.

# %%
names = ("layer_norm", "rms_norm", "layer_norm_backward", "rms_norm_backward")
problems = list(dict.fromkeys(line.problem for line in forward))
with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for number, name in enumerate(names):
        ahead = []
        for problem in problems:
            lines = recording.select(fp16, op=name)
            by = {x.provider: x.median_ms for x in lines if x.problem == problem}
            ahead.append(min(by["torch"], by["torch.compile"]) / by["workbench"])
        place = [index + (number - 1.5) * 0.2 for index in range(len(problems))]
        axes.bar(place, ahead, 0.18, label=name)
    axes.axhline(1, color=palette.ink, linestyle="--")
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set_ylabel("time of the better of both / ours")
    axes.set_title(f"fp16, recorded on {run[0].device}, {run[0].when[:10]}", loc="left")
    axes.legend(fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.25))
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: for eight shapes and four operators, bars of the time of the better of torch
# and torch.compile over that of the package, with a line at 1.*
#
# On 16,384 rows of 4,096, layer norm takes
# {{recording device=nvidia-h200 op=layer_norm provider=workbench dtype=fp16 rows=16384 cols=4096 show=ms}}
# and moves
# {{recording device=nvidia-h200 op=layer_norm provider=workbench dtype=fp16 rows=16384 cols=4096 show=GB/s}}.
# Its gradients take
# {{recording device=nvidia-h200 op=layer_norm_backward provider=workbench dtype=fp16 rows=16384 cols=4096 show=ms}}
# for three times the matrix instead of twice.
#
# In a graph, a bar compares kernels, and the CPU has no part in it. Whether you wait for
# kernels is another question: a backward pass is several, started from a Python
# function that autograd calls, and where that takes longer than they do, the GPU waits
# for the CPU. The last column tells:

# %%
for line in backward:
    if line.provider == "workbench":
        cpu = line.config["launch_us"]
        slower = "CPU" if cpu > line.median_ms * 1e3 else "GPU"
        print(f"{line.problem:14s} you wait for the {slower}")

# %% [markdown]
# With the shortest rows all that is left in a graph is latency: 4,096 rows of 256 fit
# the cache, and a program waits for its rows, reduces them, waits for the second
# reduction, and stores, and then all is over. (That is reasoned, not measured.)
#
# ## Your turn
#
# As in lesson 03, a check passes if the result is torch's, but for rounding, on all of
# its shapes, and if no more bytes are loaded and stored than the text says;
# `teach.exercise("04-1").hint()` asks a question that leads on.
#
# ### Exercise 04-1: the variance of a long row
#
# The variance (not the unbiased one) of each row, tile by tile, with each element
# loaded once. The rows have large means: the two moments will not do.


# %%
# {{exercise 04-1}}

# %% [markdown]
# {{solution 04-1}}

# %% [markdown]
# ### Exercise 04-2: add, then normalize
#
# In a transformer, a layer's output is added to what went around it, and the sum is
# normalized: $h = x + r$, and $y = h \, w / \sqrt{\overline{h^2} + \epsilon}$. Both are
# needed, $y$ by the next layer, $h$ to go around it. One kernel: each input is loaded
# once, each output stored once.


# %%
# {{exercise 04-2}}

# %% [markdown]
# {{solution 04-2}}

# %% [markdown]
# ### Exercise 04-3: RMS norm, backward
#
# The gradient of x. First derive it: with $r = 1 / \sqrt{\overline{x^2} + \epsilon}$
# and $g_j = \dot y_j w_j$, an element acts on its own output, and on all of them
# through $r$. You should arrive at
#
# $$\dot x_k = r \Big( g_k - x_k \, r^2 \, \frac{1}{n} \sum_j g_j x_j \Big)$$
#
# Each input is loaded once.


# %%
# {{exercise 04-3}}

# %% [markdown]
# {{solution 04-3}}

# %% [markdown]
# ## Takeaways
#
# - Normalizations are bound by memory: read the row once, keep it in registers.
# - The difference of two moments cancels; Welford's state does not, and it merges.
# - A masked lane needs a neutral value before each reduction, not only when loaded.
# - A gradient is a row operator too. Check it by finite differences before it is fast.
# - Sums over rows ride along with a pass over rows, as parts that a second step adds
#   up.
#
# **Next:** [05, tile GEMM](05_tile_gemm.ipynb): where matrix units come in. Back to
# [00, start here](00_start_here.ipynb).
