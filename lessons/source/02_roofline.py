# %% [markdown]
# # The roofline: how fast could it be?
#
# You will build
#
# - the count that comes before every kernel: how many operations, how many bytes;
# - the two ceilings of a GPU, measured rather than read off a datasheet;
# - a roofline, drawn by hand and then with the workbench's own figure, with the
#   vendor's best kernels on it and room for yours.
#
# **Time:** 45 minutes. **You need:** Python. With a GPU the ceilings are measured on
# it, now; with none, you work on what was recorded on one, and every figure says which.
#
# **Out of scope:** writing a fast matrix product (that comes later), and caches in
# between: this roofline knows one memory.

# %%
from workbench import Launch, Work, suites, teach, viz
from workbench.bench import from_recording, recording, roofline

import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## Two counts
#
# A processor does two things: it moves numbers and it computes with them. So two
# numbers describe a job, whoever does it:
#
# - its **FLOPs**: the floating-point operations that it needs; a multiply and an add
#   count as two;
# - its **bytes**: the least that must travel between memory and the chip: each input
#   once, each output once.
#
# Their ratio is the **arithmetic intensity**, $I = \text{FLOPs} / \text{bytes}$, in
# FLOP per byte. The workbench writes the pair down as a `Work`.
#
# Adding two vectors of $n$ fp32 numbers: $n$ FLOPs, $3 \cdot 4n$ bytes.

# %%
n = 2**28
vector_add = Work(flops=n, bytes=3 * 4 * n)
print(f"vector add: {vector_add.intensity:.3f} FLOP per byte")

# %% [markdown]
# Now multiply two fp16 matrices, $C = A B$, each 4096 × 4096. Every one of the $4096^2$
# elements of $C$ is a sum of 4096 products. How many FLOPs for every byte that must
# move?

# %%
product_intensity = teach.predict(
    "Intensity of a 4096 × 4096 × 4096 fp16 product", guess=None, unit="FLOP per byte"
)


# %%
def product(n, bytes_per_element=2):
    """A square matrix product: 2 n^3 FLOPs; A and B are read, C is written."""
    return Work(flops=2 * n**3, bytes=3 * bytes_per_element * n**2)


product_intensity.reveal(
    round(product(4096).intensity),
    because="2 n³ FLOPs over 3 · 2 n² bytes is n / 3: it grows with the matrix.",
    tolerance=0.02,
)

# %% [markdown]
# More than ten thousand times that of the addition. The two could hardly be more
# different, and one picture holds both.
#
# ## Two ceilings
#
# A GPU has a highest rate of computing, $P$ in FLOP/s, and a highest rate of moving,
# $B$ in bytes/s. A job of intensity $I$ cannot run faster than either allows:
#
# $$\text{attainable FLOP/s} = \min(P,\; I \cdot B)$$
#
# The left term is a flat roof, the right one a slope. They meet at the **ridge**,
# $I = P / B$. Left of it a job is *memory-bound*: a kernel on the slope gets faster
# only by moving fewer bytes. Right of it, it is *compute-bound*.
#
# Datasheets name both numbers, and no program reaches them. So both are **measured**
# here: $B$ by copying a large tensor (bytes read plus bytes written), and $P$, for each
# number format, as the best rate that the vendor's own library reached over a sweep of
# sizes. It is the *best vendor rate seen*, no law of nature: a kernel that beats it is
# drawn above it.

# %% tags=["nbval-ignore-output"]
roofs, products = suites.live_or_recorded("matmul")
_, additions = suites.live_or_recorded("elementwise")
# Products of int8 may be among them, which are no floating-point operations.
floats = {
    dtype: roofs.matrix[dtype] for dtype in roofs.matrix if dtype in recording.FLOATS
}
roofs = replace(roofs, matrix=floats)
print(
    "device   ",
    roofs.device,
    "(recorded)" if roofs.recorded else "(measured just now)",
    roofs.when[:10],
)
print(f"copy      {roofs.bandwidth / 1e12:.2f} TB/s")
for dtype, rate in roofs.matrix.items():
    ridge = roofline.ridge(roofs.bandwidth, rate)
    print(f"{dtype:9s} {rate / 1e12:.0f} TFLOP/s, ridge at {ridge:.0f} FLOP per byte")

# %% [markdown]
# Look at the ridges: on an H200, with numbers of 16 bits, a kernel must do well over a
# hundred operations for every byte that it moves before arithmetic limits it. Almost
# nothing in a neural network does, apart from matrix products; that is why so much of
# this course is about not moving bytes.
#
# ## Draw it by hand
#
# Both axes are logarithmic, since both quantities span many powers of ten. Then the
# slope $I \cdot B$ is a straight line.
#
# So that this picture is the same on every machine, it uses round numbers: a GPU that
# copies 4 TB/s and computes 700
# TFLOP/s. <!-- unmeasured: an example in round numbers -->

# %%
bandwidth, rate = 4e12, 700e12
jobs = {
    "vector add": vector_add,
    "512³ product": product(512),
    "4096³ product": product(4096),
}
intensity = np.logspace(-2, 4, 200)
with viz.figure_style():
    plt.figure(figsize=(7, 3.5))
    plt.loglog(
        intensity, np.minimum(rate, intensity * bandwidth) / 1e12, label="min(P, I · B)"
    )
    for name, work in jobs.items():
        roof = roofline.attainable(work.intensity, bandwidth, rate)
        bound = roofline.bound(work.intensity, bandwidth, rate)
        plt.plot(work.intensity, roof / 1e12, "o", label=f"{name}: {bound}-bound")
    plt.xlabel("arithmetic intensity, FLOP per byte")
    plt.ylabel("TFLOP/s")
    plt.legend()
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: a rising line that turns flat at 175 FLOP per byte; vector add lies far down
# on the slope, a product of 512 just left of the corner, one of 4096 on the flat roof.*
#
# The points lie *on* the roof because we have measured nothing yet: this is what each
# job could reach. From it follows the least time that a job can take: the larger of
# FLOPs / P and bytes / B.

# %%
for name, work in jobs.items():
    seconds = max(work.flops / rate, work.bytes / bandwidth)
    counts = f"{work.flops:16,d} FLOPs {work.bytes:14,d} bytes"
    print(f"{name:14s} {counts}   at least {seconds * 1e6:8.2f} µs")

# %% [markdown]
# Look at the first two rows: by chance they need the very same number of FLOPs, and one
# of them moves two thousand times the bytes of the other. FLOPs alone say nothing about
# time.
#
# ## Where do real kernels land?
#
# Predict before you look. The vendor's library multiplies two 512 × 512 fp16 matrices
# on an H200. What fraction of the roof above it does it reach?

# %%
small_product = teach.predict(
    "Fraction of its roof that the vendor's 512³ product reaches on an H200",
    guess=None,
    choices=("over 0.8", "a tenth to 0.8", "under a tenth"),
)

# %%
shipped = recording.shipped("nvidia-h200")
# Roofs take copies and large products, and not every run has these and the small one.
with_copies = {line.run for line in recording.select(shipped, op="clone")}
with_small = recording.select(shipped, op="matmul", case={"m": 512, "n": 512, "k": 512})
latest = recording.latest_run(line for line in with_small if line.run in with_copies)
run = recording.select(shipped, run=latest[0].run)
h200 = from_recording(run)
# Rows of A, B and C lie in memory one after the other ("nn"); cold caches ("events").
by_library = recording.select(
    run, op="matmul", provider="cuBLAS", mode="events", case={"layout": "nn"}
)
small = recording.select(by_library, dtype="fp16", case={"m": 512, "n": 512, "k": 512})
(point,) = recording.points(small)
fraction = roofline.distance(point, h200)
took_us = point.seconds * 1e6
roof_us = took_us * fraction
bands = {0.1: "under a tenth", 0.8: "a tenth to 0.8", 9.9: "over 0.8"}
small_product.reveal(
    next(band for limit, band in bands.items() if fraction < limit),
    because=f"the roof allows {roof_us:.1f} µs, and it took {took_us:.1f} µs.",
)

# %% [markdown]
# Here is the roofline with what really ran: the vendor's matrix products, and additions
# by torch and by this workbench.

# %%
# One library for each vendor: torch runs the same kernels.
shown = [point for point in products if point.provider in ("cuBLAS", "rocBLAS")]
shown += [point for point in additions if point.provider in ("torch", "workbench")]
dtypes = [name for name in ("fp16", "bf16", "tf32", "fp32") if name in roofs.matrix]
figure = viz.roofline_figure(roofs, shown, dtype=dtypes)
viz.Picture(viz.figure_png(figure), viz.describe(roofs, shown, dtype=dtypes))

# %% [markdown]
# *Figure: the measured roofline; at the left, additions rise in columns toward the
# memory slope as they grow, torch's and this workbench's in the same places; at the
# right, matrix products climb toward their flat roofs; the small ones of both kinds lie
# well under the ceilings.*
#
# Three things to read off it.
#
# **On the slope, at the left,** lie large additions. They are as fast as memory: on the
# H200, torch's, of $2^{28}$ fp32 numbers, moves
# {{recording device=nvidia-h200 op=add dtype=fp32 provider=torch problem=2^28 mode=events show=TB/s}}.
# (A little above the slope: that is what a copy reached, and another mix of reads and
# writes may come out some percent higher. Roofs are measured, not given.) No cleverness
# inside the kernel will help it. What helps is to *not store* a result which the next
# operator reads again: fusing the two. (Exercise 02-3.)
#
# **At the right** are large products, a little under the flat roof that the best of
# them defines: on the H200, the bf16 product of 8192 × 8192 matrices ran at
# {{recording device=nvidia-h200 op=matmul dtype=bf16 provider=cuBLAS problem=8192^3 layout=nn mode=events show=TFLOP/s}}.
#
# **Under both ceilings** are the small ones, and the roofline alone does not say why.
# *Far under the roof* is always a question to ask, never an answer. Here are two parts
# of the answer: starting and ending a kernel takes some microseconds, whatever it does
# (lesson 00 has the picture); and a small result gives few tiles to work on. How few?
#
# ## What really ran?
#
# A baseline is worth as much as our knowledge of it. So each recording names the
# kernels that the library started, as the profiler saw them on the H200.

# %% tags=["nbval-ignore-output"]
squares = [
    line
    for n in (512, 1024, 4096, 8192)
    for line in recording.select(
        by_library, dtype="bf16", case={"m": n, "n": n, "k": n}
    )
]
columns = ("problem", "ms", "TFLOP/s", "kernels")
Markdown(recording.table(squares, "markdown", columns))

# %% [markdown]
# The names of these kernels hold the size of their tile, the block of $C$ that one
# program computes: the library takes smaller tiles for smaller products. Is there one
# for each of the H200's 132 multiprocessors?

# %%
for line in squares:
    size = line.case["n"]
    tile = re.search(r"_(\d+)x(\d+)_", line.config["kernels"][-1])
    rows, columns = int(tile[1]), int(tile[2])
    tiles = triton.cdiv(size, rows) * triton.cdiv(size, columns)
    idle = max(132 - tiles, 0)
    print(f"{size:5d}³: {rows} x {columns} makes {tiles:5d} tiles; idle: {idle}")

# %% [markdown]
# ## Turn the knobs
#
# Choose an operator and formats, and add a point for a kernel of your own: type its
# FLOPs, its bytes and the milliseconds that it took. Try to place one on the slope at
# one FLOP per byte: as many FLOPs as bytes. How many milliseconds may it take?

# %% tags=["widget"]
viz.RooflineWidget(lambda: (roofs, shown))

# %% [markdown]
# ## Move along the slope
#
# What does fusing do to the picture? Take $d = a \cdot b + c$, elementwise, on fp32
# vectors of length $n$. As two torch operators, the product is written to memory and
# read back by the addition; as one kernel it never leaves the chip.

# %%
two_kernels = Work(flops=2 * n, bytes=(3 + 3) * 4 * n)
one_kernel = Work(flops=2 * n, bytes=(3 + 1) * 4 * n)
for name, work in (("two kernels", two_kernels), ("one kernel", one_kernel)):
    print(
        f"{name:12s} {work.intensity:.3f} FLOP per byte, {work.bytes / 2**30:.0f} GiB"
    )
print(f"at best {two_kernels.bytes / one_kernel.bytes:.2f} times as fast")

# %% [markdown]
# The same FLOPs, two thirds of the bytes. On the roofline the job moves to the right,
# along the slope, and so upward. All of fusion is in that picture, up to and including
# flash attention.
#
# ## Your turn
#
# ### Exercise 02-1: the intensity of a product
#
# Write `intensity(m, n, k, bytes_per_element)` for $C = A B$ with $A$ of $m \times k$
# and $B$ of $k \times n$, in FLOP per byte, each matrix moved once. Matrices in real
# models are seldom square: try `m = 1` when it works.


# %%
# {{exercise 02-1}}

# %% [markdown]
# {{solution 02-1}}

# %% [markdown]
# ### Exercise 02-2: the least time
#
# Write `least_seconds(flops, bytes, bandwidth, rate)`: the least time that the job can
# take, and which of `"memory"` and `"compute"` bounds it (exactly at the ridge, say
# `"compute"`).


# %%
# {{exercise 02-2}}

# %% [markdown]
# {{solution 02-2}}

# %% [markdown]
# ### Exercise 02-3: fuse it
#
# Write the one kernel for $d = a \cdot b + c$ and its invoker, `multiply_add(a, b, c)`.
# The check counts the bytes that you load and store.


# %%
# {{exercise 02-3}}

# %% [markdown]
# {{solution 02-3}}

# %% [markdown]
# ## Takeaways
#
# - Count FLOPs and bytes first. The larger of FLOPs / P and bytes / B is the least time
#   there is.
# - On the slope only moving less helps; on the flat roof, fewer FLOPs or a higher rate.
# - Roofs are measured, on the device at hand, and a vendor's best is a mark to reach,
#   not a limit.
# - A point far under the roof is a question: too little work in flight, bytes that
#   nobody counted, or the cost of starting at all.
#
# **Where it goes next:** tile reduction and tile products, each predicted on this
# picture before it is written. Back to [01, tile transfer](01_tile_transfer.ipynb).
