# %% [markdown]
# # Tile GEMM: from one element a program to matrix units
#
# You will build
#
# - five matrix products, each with one idea more than the one before: one element a
#   program, a piece of a row, a tile, a tile by matrix units, and one that knows where
#   it needs no masks;
# - for each of them the count of what it loads, made on paper before it is made by the
#   interpreter's trace;
# - the eye for a mask in the wrong place: what it does shows in a picture.
#
# **Time:** 60 minutes. **You need:** Python, [lesson 02](02_roofline.ipynb)'s roofline
# and [lesson 03](03_tile_reduction.ipynb)'s reductions. Kernels run in the interpreter
# and are compiled for GPUs that need not be here.
#
# **Out of scope:** launch order, pipelining, split-K, persistent programs and TMA; they
# are the upper half of the ladder, and the next lesson.

# %%
from workbench import Launch, device, explore, lens, readings, ops, runtime, teach, viz
from workbench.bench import from_recording, recording, roofline
from workbench.kernels import gemm
from workbench.kernels.tile import gemm as tile_gemm
from workbench.kernels.tile import transfer

import inspect
import math

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## The idea: load once, use often
#
# GEMM is short for general matrix multiplication. With A of m × k and B of k × n,
#
# $$C_{ij} = \sum_{l=1}^{k} A_{il} B_{lj}$$
#
# has $2mnk$ FLOPs, and in fp16 at least $2(mk + kn + mn)$ bytes have to move. Lesson 02
# made an intensity of that: a third of the side for a square product, far to the right
# of every ridge. But "at least" stands there for a reason. Every element of A is needed
# for $n$ elements of C. Whether it is *loaded* $n$ times is up to the kernel.
#
# This lesson keeps two counts of each kernel: its FLOPs, which never change, and the
# bytes that its programs **load**, all together. Some of these bytes come from caches
# and not from memory, which helps; but a cache has a bandwidth too, and the fewer
# loads, the better.
#
# **Predict.** A program makes a single element of C: it loads a row of A and a column
# of B. How many FLOPs does it do for each byte that it loads?

# %%
of_an_element = teach.predict(
    "FLOP per byte loaded, one element a program", guess=None, unit="FLOP per byte"
)

# %%
of_an_element.reveal(
    explore.tiles.intensity((1, 1), itemsize=2),
    because="2 k FLOPs, for k elements of A and k of B, of two bytes each.",
)

# %% [markdown]
# ## The reference
#
# One operator. Sums are made in fp32, and rounded to fp16 in the end.

# %%
here = device.current()
a = torch.tensor(
    [[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16, device=here.torch_device
)
print((a @ a).tolist())

# %% [markdown]
# ## Rung 1: a program makes one element
#
# It is lesson 03's sum of a row, of products this time: lanes lie along K, each adds up
# what it gets, and they meet once. Strides of A and B are arguments, as pairs, so that
# a transposed matrix is no special case.


# %%
@triton.jit
def element_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    n,
    k,
    a_strides,
    b_strides,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(axis=0) // n
    col = tl.program_id(axis=0) % n
    totals = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, k, BLOCK_K):
        i = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_pointer + row * a_strides[0] + i * a_strides[1], mask=i < k, other=0.0
        )
        b = tl.load(
            b_pointer + i * b_strides[0] + col * b_strides[1], mask=i < k, other=0.0
        )
        totals += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, tl.sum(totals, axis=0))


def product(kernel, programs, a, b, *sizes, **meta):
    output = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    arguments = (a, b, output, *sizes, a.stride(), b.stride())
    return Launch.of(kernel, (programs,), *arguments, outputs=output, **meta)


def by_element(a, b, block_k=16):
    (m, k), n = a.shape, b.shape[1]
    return product(element_kernel, m * n, a, b, n, k, BLOCK_K=block_k)


print(by_element(a, a).run()[0].tolist())

# %% [markdown]
# Now the count, by the trace of a product that is small enough to be interpreted. What
# it should be, you have just predicted.

# %%
m, n, k = 32, 32, 16
generator = torch.Generator().manual_seed(5)
x = torch.randn(m, k, generator=generator).half().to(here.torch_device)
y = torch.randn(k, n, generator=generator).half().to(here.torch_device)
least = 2 * (m * k + k * n)
counted = {}


def count(name, launch):
    (trace,) = lens.trace(launch)
    counted[name] = trace.traffic(kind="load").bytes
    print(
        f"{name:9s} {trace.grid[0]:4d} programs load {counted[name]:7,d} bytes, "
        f"{counted[name] / least:4.1f} times A and B; "
        f"{2 * m * n * k / counted[name]:.2f} FLOP per byte"
    )


count("element", by_element(x, y))

# %% [markdown]
# And the *way* in which it loads is as bad. Neighboring lanes read neighbors of a row
# of A. Of B they read down a column, so that each lane of a warp needs a sector of 32
# bytes for an element of two.
#
# ## Rung 2: a program makes a piece of a row
#
# Let lanes lie along the row of C instead. Each element of A, loaded once, meets a row
# of B, whose elements are neighbors; and since every lane has an element of C of its
# own, no lanes have to meet at all.
#
# **Predict.** The longer the piece, the more often an element of A is used. How many
# FLOPs for each byte loaded are there at most, whatever its length?

# %%
of_a_row = teach.predict(
    "FLOP per byte loaded, at most, a piece of a row a program",
    guess=None,
    unit="FLOP per byte",
)

# %%
of_a_row.reveal(
    round(explore.tiles.intensity((1, 2**20), itemsize=2), 3),
    because="each element of B, of two bytes, is still used for one multiply-add.",
)


# %%
@triton.jit
def row_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    n,
    k,
    a_strides,
    b_strides,
    BLOCK_N: tl.constexpr,
):
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)
    totals = tl.zeros([BLOCK_N], tl.float32)
    for i in range(k):
        a = tl.load(a_pointer + row * a_strides[0] + i * a_strides[1])
        b = tl.load(
            b_pointer + i * b_strides[0] + col * b_strides[1], mask=col < n, other=0.0
        )
        totals += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, totals, mask=col < n)


def by_row(a, b, block_n=16):
    (m, k), n = a.shape, b.shape[1]
    programs = m * triton.cdiv(n, block_n)
    return product(row_kernel, programs, a, b, n, k, BLOCK_N=block_n)


count("row", by_row(x, y))

# %% [markdown]
# It gained almost a factor of two, and no more is to be had in this direction: a row of
# C needs all of B.
#
# ## Rung 3: a program makes a tile
#
# So reuse has to go in both directions. A tile of $b_m \times b_n$ needs, for each step
# along K, $b_m$ elements of A and $b_n$ of B, and makes $b_m b_n$ multiply-adds of
# them: the **outer product** of a column and a row. In FLOP per byte, in fp16,
#
# $$I = \frac{2 \, b_m b_n}{2 \, (b_m + b_n)}$$
#
# The loads grow with the tile's circumference, the work with its area. **Predict.** How
# much is that for a tile of 64 × 64?

# %%
of_a_tile = teach.predict(
    "FLOP per byte loaded, a tile of 64 × 64 a program",
    guess=None,
    unit="FLOP per byte",
)

# %%
of_a_tile.reveal(
    explore.tiles.intensity((64, 64), itemsize=2),
    because="2 · 64 · 64 FLOPs for 64 + 64 elements of two bytes.",
)


# %%
@triton.jit
def tile_sum_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    m,
    n,
    k,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(k):
        a = tl.load(
            a_pointer + row * a_strides[0] + i * a_strides[1], mask=row < m, other=0.0
        )
        b = tl.load(
            b_pointer + i * b_strides[0] + col * b_strides[1], mask=col < n, other=0.0
        )
        total += a.to(tl.float32) * b.to(tl.float32)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


def tiles_of(a, b, block_m, block_n):
    return triton.cdiv(a.shape[0], block_m) * triton.cdiv(b.shape[1], block_n)


def by_tile(a, b, tile=(16, 16)):
    programs = tiles_of(a, b, *tile)
    sizes = (*a.shape[:1], *b.shape[1:], *a.shape[1:])
    meta = dict(zip(("BLOCK_M", "BLOCK_N"), tile, strict=True))
    return product(tile_sum_kernel, programs, a, b, *sizes, **meta)


count("tile", by_tile(x, y))

# %% [markdown]
# `row` is a column of indices, [BLOCK_M, 1], and `col` a row, [1, BLOCK_N]. A tile that
# is as small as this one has 16 · 16 / (16 + 16) = 8 FLOPs for each byte; it moves a
# sixteenth of what rung 1 moved.
#
# Is a large tile enough? On an H200 the ridge was recorded too: the FLOPs for each byte
# *from memory*, below which it is memory that limits a kernel. **Predict.** Which is
# the smallest square tile that gets there by its own reuse alone?

# %%
enough = teach.predict(
    "The smallest square tile beyond the H200's ridge, in fp16",
    guess=None,
    choices=("64 × 64", "128 × 128", "256 × 256", "none of these"),
)

# %%
h200_lines = recording.shipped("nvidia-h200")
# Roofs take copies and products, and not every run has both.
with_copies = {line.run for line in recording.select(h200_lines, op="clone")}
h200 = from_recording(
    recording.latest_run(
        (line for line in h200_lines if line.run in with_copies), op="matmul"
    )
)
ridge = roofline.ridge(h200.bandwidth, h200.matrix["fp16"])
sides = (64, 128, 256)
beyond = [side for side in sides if explore.tiles.intensity((side, side), 2) > ridge]
enough.reveal(
    f"{beyond[0]} × {beyond[0]}" if beyond else "none of these",
    because="it has half of its side in FLOP per byte, and the ridge lies above 128.",
)

# %% [markdown]
# And a tile of 256 × 256 sums would fill all registers of a multiprocessor. What is
# missing comes from the L2 cache: programs that run at one time share rows of A and
# columns of B. How much they share is a matter of the order in which they start, and
# the first thing in lesson 06.
#
# ## Rung 4: matrix units
#
# There is another limit, which no count of bytes shows. For each step along K, 64 × 64
# sums are 4,096 multiply-adds. **Predict.** With 128 threads, how many multiply-add
# instructions does each of them execute, for 64 steps along K?

# %%
instructions = teach.predict(
    "Multiply-adds of a thread, for a tile of 64 × 64 and 64 steps along K",
    guess=None,
    unit="instructions",
)

# %%
instructions.reveal(
    64 * 64 * 64 // 128, because="64 · 64 · 64 multiply-adds, over 128 threads."
)

# %% [markdown]
# Matrix units are there for this: one instruction multiplies a whole small matrix by
# another. In Triton they are `tl.dot(a, b, total)`, of a tile [BLOCK_M, BLOCK_K] and
# one [BLOCK_K, BLOCK_N], which adds their product to a tile of sums. So the loop now
# takes BLOCK_K elements along K in one step. It should gain no bytes at all, and a
# large factor in the arithmetic.


# %%
@triton.jit
def dot_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    m,
    n,
    k,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    cols = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        of_a = start + tl.arange(0, BLOCK_K)[None, :]
        of_b = start + tl.arange(0, BLOCK_K)[:, None]
        a = tl.load(
            a_pointer + row * a_strides[0] + of_a * a_strides[1],
            mask=(row < m) & (of_a < k),
            other=0.0,
        )
        b = tl.load(
            b_pointer + of_b * b_strides[0] + col * b_strides[1],
            mask=(of_b < k) & (col < n),
            other=0.0,
        )
        total = tl.dot(a, b, total)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


def by_dot(a, b, tile=(16, 16, 16)):
    programs = tiles_of(a, b, *tile[:2])
    sizes = (*a.shape[:1], *b.shape[1:], *a.shape[1:])
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    return product(dot_kernel, programs, a, b, *sizes, num_stages=1, **meta)


count("dot", by_dot(x, y))

# %% [markdown]
# The same bytes. What became of the arithmetic, the compiler says: this is what an
# H200 and an MI300 would run, neither of which has to be here. Tiles are 64 × 64 now,
# as they would be on a GPU.

# %%
large = torch.zeros(1024, 1024, dtype=torch.float16, device=here.torch_device)
for name, launch in (
    ("tile", by_tile(large, large, (64, 64))),
    ("dot", by_dot(large, large, (64, 64, 64))),
):
    for target in ("sm_90", "gfx942"):
        (step,) = lens.compile(launch, target)
        units = "matrix units" if step.count("matrix") else "no matrix units"
        print(f"{name:5s} for {target:7s} {units}, spills: {step.spills > 0}")

# %% [markdown]
# (*Spills* are registers that did not suffice and went to memory. Here are none.)
#
# Note what `tl.dot` asks for. Its tiles have at least 16 rows and columns. The sums
# stay in fp32 from the first step to the last, so that only the end is rounded. And
# lanes beyond the end of K have to hold 0 in *both* operands: what A has there may be
# NaN, and 0 · NaN is NaN.
#
# ## Rung 5: ragged edges, and what the compiler knows
#
# Masks have a price: registers and comparisons in each step, and one more that is
# larger. A lane can load 16 bytes at once only where the compiler can *prove* that they
# begin at a multiple of 16 bytes, and that a mask takes all of them or none. Of an
# argument, such as a stride, it knows whether it is 1 and whether 16 divides it, and
# nothing else.
#
# **Predict.** Matrices of 1000 × 1000 in fp16: 16 does not divide 1000, though every
# row begins at a multiple of 16 bytes. How many bits does a lane of rung 4 load at once?

# %%
width = teach.predict(
    "Bits that a lane loads at once, 1000 × 1000 in fp16", guess=None, unit="bits"
)

# %%
thousand = torch.zeros(1000, 1000, dtype=torch.float16, device=here.torch_device)
(step,) = lens.compile(by_dot(thousand, thousand, (64, 64, 64)), "sm_90")
width.reveal(
    step.widest("global load"),
    because="it cannot prove more than that: one element at a time.",
)

# %% [markdown]
# Two remedies, in one rung.
#
# **Masks only where they are needed.** Of the steps along K only the last one can hang
# over, so it is *peeled off*: all others load without a mask in that direction. And
# where the tile divides `m` or `n`, nobody asks.
#
# **Tell what divides.** `multiples_of` divides an argument by what is known to divide
# it, and multiplies again: the compiler sees that the result is a multiple. Whether that
# is true is checked by the interpreter, in every program: a false promise would move the
# wrong elements on a GPU. (Lesson 01's shipped kernel has it too.)

# %%
print(inspect.getsource(transfer.multiples_of.fn))


# %%
@triton.jit
def load_checked(
    pointers, in_rows, in_cols, CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr
):
    if CHECK_ROWS and CHECK_COLS:
        return tl.load(pointers, mask=in_rows & in_cols, other=0.0)
    elif CHECK_ROWS:
        return tl.load(pointers, mask=in_rows, other=0.0)
    elif CHECK_COLS:
        return tl.load(pointers, mask=in_cols, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def add_step(
    total,
    start,
    a_pointer,
    b_pointer,
    row,
    col,
    sizes,
    a_strides,
    b_strides,
    BLOCK_K: tl.constexpr,
    CHECK_M: tl.constexpr,
    CHECK_N: tl.constexpr,
    CHECK_K: tl.constexpr,
):
    m, n, k = sizes
    of_a = start + tl.arange(0, BLOCK_K)[None, :]
    of_b = start + tl.arange(0, BLOCK_K)[:, None]
    a = load_checked(
        a_pointer + row * a_strides[0] + of_a * a_strides[1],
        row < m,
        of_a < k,
        CHECK_M,
        CHECK_K,
    )
    b = load_checked(
        b_pointer + of_b * b_strides[0] + col * b_strides[1],
        of_b < k,
        col < n,
        CHECK_K,
        CHECK_N,
    )
    return tl.dot(a, b, total)


# %% [markdown]
# The loop, with its peeled end. `if CHECKS.k` is decided when the kernel is compiled:
# where the tile divides `k`, nothing of it is left. Then there is at least one step, and
# `tl.assume` says so: a promise too, by which the compiler need not think of the case
# in which the sums come from nowhere but the zeros.


# %%
@triton.jit
def tile_of_product(
    a_pointer,
    b_pointer,
    row,
    col,
    begin,
    end,
    sizes,
    a_strides,
    b_strides,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
):
    sizes = transfer.multiples_of(sizes, DIVISORS)
    a_strides = transfer.multiples_of(a_strides, DIVISORS, 3)
    b_strides = transfer.multiples_of(b_strides, DIVISORS, 5)
    total = tl.zeros([row.shape[0], col.shape[1]], tl.float32)
    whole = end
    if CHECKS.k:
        whole = min(end, sizes[2] // BLOCK_K * BLOCK_K)
    else:
        tl.assume(begin < end)
    for start in range(begin, whole, BLOCK_K):
        total = add_step(
            total,
            start,
            a_pointer,
            b_pointer,
            row,
            col,
            sizes,
            a_strides,
            b_strides,
            BLOCK_K,
            CHECKS.m,
            CHECKS.n,
            False,
        )
    if CHECKS.k:
        if whole < end:
            total = add_step(
                total,
                whole,
                a_pointer,
                b_pointer,
                row,
                col,
                sizes,
                a_strides,
                b_strides,
                BLOCK_K,
                CHECKS.m,
                CHECKS.n,
                True,
            )
    return total


@triton.jit
def store_tile(output_pointer, row, col, total, sizes, DIVISORS: tl.constexpr):
    m, n, _ = transfer.multiples_of(sizes, DIVISORS)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


@triton.jit
def ragged_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    sizes,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
):
    cols = tl.cdiv(sizes[1], BLOCK_N)
    row = tl.program_id(axis=0) // cols * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=0) % cols * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tile_of_product(
        a_pointer,
        b_pointer,
        row,
        col,
        0,
        sizes[2],
        sizes,
        a_strides,
        b_strides,
        BLOCK_K,
        CHECKS,
        DIVISORS,
    )
    store_tile(output_pointer, row, col, total, sizes, DIVISORS)


def ragged(a, b, tile=(16, 16, 16)):
    programs = tiles_of(a, b, *tile[:2])
    sizes = (*a.shape[:1], *b.shape[1:], *a.shape[1:])
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    checks = gemm.Checks(
        *(size % side != 0 for size, side in zip(sizes, tile, strict=True))
    )
    # What 16 divides, the compiler knows; 8 elements of fp16 are 16 bytes.
    values = (*sizes, *a.stride(), *b.stride())
    divisors = tuple(1 if value % 16 == 0 else math.gcd(value, 8) for value in values)
    meta |= {"CHECKS": checks, "DIVISORS": divisors, "num_stages": 1}
    return product(ragged_kernel, programs, a, b, sizes, **meta)


count("ragged", ragged(x, y))

# %%
for size in (1024, 1000, 1001):
    square = torch.zeros(size, size, dtype=torch.float16, device=here.torch_device)
    for name, rung in (("dot", by_dot), ("ragged", ragged)):
        (step,) = lens.compile(rung(square, square, (64, 64, 64)), "sm_90")
        bits = step.widest("global load")
        print(f"{size} x {size}, {name:6s} loads {bits:3d} bits a lane at once")

# %% [markdown]
# 1001 is odd: then there is nothing to know, and rows begin anywhere. What helps there
# is to pad the rows when the matrix is made.
#
# A divisor is a promise. If it does *not* divide the stride, the kernel computes
# addresses that are wrong; so the invoker finds it out from the tensors, and nobody
# passes it by hand.
#
# ## The loop that ships

# %%
print(inspect.getsource(tile_gemm.mainloop.fn))

# %% [markdown]
# It is your `tile_of_product`, with
#
# - **`LOAD_A`, `LOAD_B`**, loaders, as arguments: what you wrote is `load_strided`;
#   lesson 06 puts tensor descriptors there, and lesson 08 coordinates of your own;
# - **`WIDTHS`**: tiles of, say, 192 columns, as parts whose widths are powers of two
#   and which share what is loaded of A;
# - **`begin` and `end`** in tiles along K, so that several programs can share K. A program
#   may have no tile of its own (`begin >= end`). Then it must not add the last, ragged
#   tile: another program adds it;
# - **`ACCUMULATOR` and `PRECISION`**: sums of int8 are int32, and fp32 operands are
#   rounded to tf32 or not, as torch's switch says.
#
# Around it, the shipped kernel has batches, an epilogue (alpha, beta and an addend
# today), and launch orders.
#
# ## Check it
#
# Sizes below a tile, ragged in every direction, and transposed operands; several seeds,
# into outputs filled with NaN, and with programs shuffled. The shipped product too.

# %%
rungs = (by_element, by_row, by_tile, by_dot, ragged)
cases = [(1, 1, 1), (17, 9, 35), (5, 33, 7)]
for seed, (rows, cols, length) in enumerate(cases):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, length, generator=generator).half()
    right = torch.randn(cols, length, generator=generator).half().t()
    exact = left.double() @ right.double()
    for rung in rungs:
        launch = rung(left, right)
        mine = runtime.interpret(launch, poison=True, seed=seed).outputs[0]
        torch.testing.assert_close(mine.double(), exact, rtol=1e-3, atol=1e-4)
    shipped = ops.matmul(left.to(here.torch_device), right.to(here.torch_device))
    torch.testing.assert_close(shipped.cpu().double(), exact, rtol=1e-3, atol=1e-4)
    print(f"{rows} x {cols} x {length}: your five and the shipped one agree with torch")

# %% [markdown]
# What this does *not* prove: that yours take other dtypes, batches, or matrices with
# offsets beyond $2^{31}$; nor that they are fast.
#
# ## Turn the knobs
#
# **Who reads what?** Here is a product of 6 × 6 tiles by the shipped kernel: A at the
# left, B above, the output between them. Move the slider. A program reads a row of
# tiles of A and a column of tiles of B; what several of those that run at one time
# read, they can share. Then choose another launch order, and look at the curves: that
# is where lesson 06 begins.

# %% tags=["widget"]
wide = torch.randn(96, 96, generator=generator).half().to(here.torch_device)


def reads(launch_order, group):
    launch = gemm.launch(
        wide, wide, tile=(16, 16, 16), launch_order=launch_order, group=group, splits=1
    )
    (trace,) = lens.trace(launch)
    return readings.gemm_reads.reads_of(trace, resident=9, cache_bytes=6144)


viz.GemmMapWidget(reads, orders=("by_rows", "grouped"), groups=(3, 2))

# %% [markdown]
# **Which tile?** Larger tiles load less, until their sums no longer fit into registers,
# or tiles of A and B into shared memory, or until there are too few tiles for all
# multiprocessors. Each choice is compiled, and placed under the roofs that were
# recorded. Find a tile that spills.

# %% tags=["widget"]
explore.tiles.tile_sizes(targets=("sm_90", "gfx942"))

# %% [markdown]
# ## Look inside
#
# Select the line of `tl.dot`: what it became, and which lane holds which of the sums,
# for an H200 (`sm_90`) and an MI300 (`gfx942`).

# %% tags=["widget"]
explore.source.source_lens(by_dot(large[:64, :128], large[:128, :64], (64, 64, 64)))

# %% [markdown]
# ## Measure
#
# The counts said: from rung 2 to rung 3, with pieces of 256 columns and
# tiles of 64 × 64, the loads of all programs fall to about a thirtieth. **Predict** what
# that is worth on an H200, for 4096 × 4096 × 4096.

# %%
gained = teach.predict(
    "How many times as fast as rung 2 is rung 3?",
    guess=None,
    choices=("30 times", "some 3 times", "not faster"),
)

# %%
climbed = ("element", "row", "tile_sum", "dot", "ragged")
lines = recording.select(
    h200_lines,
    op="matmul",
    dtype="fp16",
    mode="events",
    case={"m": 4096, "n": 4096, "k": 4096, "layout": "nn"},
)
measured = recording.latest_run(
    line for line in lines if line.provider == "workbench:ragged"
)
speed = {
    line.provider.removeprefix("workbench:"): line
    for line in recording.select(lines, run=measured[0].run)
}
ratio = speed["row"].median_ms / speed["tile_sum"].median_ms
gained.reveal(
    "not faster" if ratio < 1.5 else "some 3 times" if ratio < 10 else "30 times",
    because=f"the time of rung 2 is {ratio:.2f} times that of rung 3.",
)

# %% [markdown]
# All five rungs, the shipped product (`workbench`) and the vendor's library, as they were
# recorded in one run on an H200:

# %% tags=["nbval-ignore-output"]
shown = [speed[name] for name in (*climbed, "workbench", "cuBLAS")]
columns = ("problem", "provider", "ms", "TFLOP/s", "mode")
Markdown(recording.table(shown, "markdown", columns))

# %% [markdown]
# Evidence first, then what may explain it. What was compiled says more than the counts:
# here are, for each rung, load instructions for each multiply-add instruction, registers
# of a thread, and how many programs a multiprocessor holds at one time.


# %% tags=["nbval-ignore-output", "compiler"]
def compiled(launch):
    (step,) = lens.compile(launch, "sm_90")
    return step


full = torch.zeros(4096, 4096, dtype=torch.float16, device=here.torch_device)
steps = {
    "element": compiled(by_element(full, full, 512)),
    "row": compiled(by_row(full, full, 256)),
    "tile_sum": compiled(by_tile(full, full, (64, 64))),
    "dot": compiled(by_dot(full, full, (64, 64, 64))),
    "ragged": compiled(ragged(full, full, (64, 64, 64))),
}
for name, step in steps.items():
    adds = [each for each in step.instructions if each.opcode.startswith("FFMA")]
    masked = sum(
        each.kind == "global load" and each.text.startswith("@")
        for each in step.instructions
    )
    loads = step.count("global load")
    per_add = (
        f"{loads / len(adds):.2f} loads a multiply-add" if adds else "matrix units"
    )
    print(
        f"{name:8s} {per_add:25s} {step.registers:4d} registers: "
        f"{step.occupancy.blocks:2d} programs; {len(step.instructions)} "
        f"instructions, {masked} of {loads} loads masked"
    )

# %% [markdown]
# Rung by rung. (What is measured stands in the table, what is compiled in the lines above;
# that the one is the *reason* of the other is reasoned, since no run took them apart.)
#
# - **Rung 2** is
#   {{recording device=nvidia-h200 op=matmul dtype=fp16 provider=workbench:row problem=4096^3 layout=nn mode=events over=workbench:element}}
#   times as fast as rung 1. Of that the count explains a factor of two. The rest should be
#   the way of loading: neighboring lanes read neighbors of B now, instead of a sector each.
# - **Rung 3** is *not* faster than rung 2: it is
#   {{recording device=nvidia-h200 op=matmul dtype=fp16 provider=workbench:tile_sum problem=4096^3 layout=nn mode=events over=workbench:row}}
#   times as fast, with a thirtieth of the bytes. A trace counts what a *program* loads, and a
#   program needs an element of A once. But threads do not share registers: each loads for
#   itself what its sums need. Of the tile a thread holds 32 sums in *one* column, so for 32
#   multiply-adds it loads 32 elements of A and one of B; 32 lanes of a warp ask for the same
#   ones of A. That is one load instruction for one multiply-add, as in rung 2. Caches give
#   these loads quickly, but each has to be issued, with its address; and there are 4
#   programs on a multiprocessor where rung 2 has 16. So reuse that the tile has on paper
#   does not reach the registers. Fewer bytes help where bytes are the limit. Here they are
#   not.
# - **Rung 4** is
#   {{recording device=nvidia-h200 op=matmul dtype=fp16 provider=workbench:dot problem=4096^3 layout=nn mode=events over=workbench:tile_sum}}
#   times as fast as rung 3: matrix units do the arithmetic, and take their operands from
#   shared memory. So each element is loaded from global memory by *one* thread of the
#   program, 8 elements at a time, and the tile's reuse is real at last.
# - **Rung 5** is
#   {{recording device=nvidia-h200 op=matmul dtype=fp16 provider=workbench:ragged problem=4096^3 layout=nn mode=events over=workbench:dot}}
#   times as fast as rung 4, for a product that no tile overhangs and where both load 128
#   bits a lane. So it is not the width. Rung 4 masks all of its loads: in each step along K
#   it compares, and writes zeros to the registers of lanes that might load nothing. Rung 5
#   does neither. It takes fewer instructions and fewer registers, so that another program
#   runs on each multiprocessor while one waits.
#
# What is left between rung 5 and the vendor's library, which is
# {{recording device=nvidia-h200 op=matmul dtype=fp16 provider=cuBLAS problem=4096^3 layout=nn mode=events over=workbench:ragged}}
# times as fast: a tile of 64 × 64 still loads a byte for every 32 FLOPs; and no count shows
# the *waiting*. In each step along K the matrix units wait for loads, and the next loads for
# the matrix units. [Lesson 06](06_fast_gemm.ipynb) makes tiles larger, loads the next ones
# while the present ones are multiplied, and measures what each of these is worth.
#
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on
# all of its cases, and if no more bytes are loaded and stored than the text says;
# `teach.exercise("05-1").hint()` asks a question that leads on. Matrices are in fp16, and
# sums stay in fp32 to the end.
#
# ### Exercise 05-1: what tiles load
#
# How many bytes do all programs load together, for a product of fp16 matrices m × k and
# k × n, with a tile of block_m × block_n for each program? Tiles may hang over; lanes
# that do load nothing.


# %%
# {{exercise 05-1}}

# %% [markdown]
# {{solution 05-1}}

# %% [markdown]
# ### Exercise 05-2: a mask in the wrong place
#
# A linear layer is $x W^T$: its weight has a row for each *output*, so that both
# matrices are read along their rows. Somebody wrote this kernel for it. It is right for
# square matrices.


# %%
@triton.jit
def broken_kernel(
    x_pointer,
    weight_pointer,
    output_pointer,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(axis=1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        of_x = start + tl.arange(0, BLOCK_K)[None, :]
        of_weight = start + tl.arange(0, BLOCK_K)[:, None]
        in_x = (row < m) & (of_x < k)
        in_weight = (of_weight < k) & (col < m)
        x = tl.load(x_pointer + row * k + of_x, mask=in_x, other=0.0)
        weight = tl.load(
            weight_pointer + col * k + of_weight, mask=in_weight, other=0.0
        )
        total = tl.dot(x, weight, total)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


# %%
inputs = torch.randint(1, 4, (24, 40), generator=generator).half()
weights = torch.randint(1, 4, (56, 40), generator=generator).half()
exact = inputs.double() @ weights.double().t()
inputs, weights = inputs.to(here.torch_device), weights.to(here.torch_device)
result = torch.empty(24, 56, dtype=torch.float16, device=here.torch_device)
broken = Launch.of(
    broken_kernel,
    (2, 2),
    inputs,
    weights,
    result,
    24,
    56,
    40,
    outputs=result,
    BLOCK_M=16,
    BLOCK_N=32,
    BLOCK_K=16,
)
wrong = broken.run()[0].cpu().double() != exact
(trace,) = lens.trace(broken)
panels = (
    ("output: bright is wrong", wrong, (16, 32)),
    ("x: bright is never loaded", trace.counts("x_pointer", "load") == 0, (16, 16)),
    (
        "weight: bright is never loaded",
        trace.counts("weight_pointer", "load") == 0,
        (32, 16),
    ),
)
with viz.figure_style():
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.8), width_ratios=(56, 40, 40))
    for (title, is_bad, tile), axis in zip(panels, axes, strict=True):
        axis.imshow(is_bad, cmap="cividis", vmin=0, vmax=1)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xticks(range(0, is_bad.shape[1] + 1, 8))
        axis.set_yticks(range(0, is_bad.shape[0] + 1, 8))
        axis.grid(False)
        for down in range(tile[0], is_bad.shape[0], tile[0]):
            axis.axhline(down - 0.5, color="0.6", linestyle=":")
        for across in range(tile[1], is_bad.shape[1], tile[1]):
            axis.axvline(across - 0.5, color="0.6", linestyle=":")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: three matrices with the borders of tiles dotted, bright where something is
# wrong. Of the output, 24 × 56, all columns from some one on are wrong; all of x,
# 24 × 40, is loaded; of the weight, 56 × 40, all rows from some one on never are.*
#
# Find the mistake in the picture before you look for it in the text, and write the
# kernel without it. Each element is loaded as often as tiles of 16 × 32 need it, and no
# more.


# %%
# {{exercise 05-2}}

# %% [markdown]
# {{solution 05-2}}

# %% [markdown]
# ### Exercise 05-3: half of a symmetric product
#
# $G = X^T X$ holds the products of all columns with one another, and is symmetric. So
# of its tiles, those below the diagonal need not be computed: they are mirror images.
# Load for the others alone, in tiles of 16 × 16.


# %%
# {{exercise 05-3}}

# %% [markdown]
# {{solution 05-3}}

# %% [markdown]
# ### Exercise 05-4: a tile within the registers
#
# A program of 128 threads keeps its tile's sums in registers, `registers` of them in
# each thread. Of the tiles with sides of 16, 32, 64, 128 or 256 that fit, which one
# loads the fewest elements for an output of m × n? Of several, take the one with the
# fewest rows, and of these the one with the fewest columns.


# %%
# {{exercise 05-4}}

# %% [markdown]
# {{solution 05-4}}

# %% [markdown]
# ## Takeaways
#
# - A product's FLOPs are given; how much is loaded for them is the kernel's choice.
# - Only a tile reuses in both directions: its work is an area, its loads a
#   circumference.
# - What a program loads once, its threads may load many times: a count of bytes is a bound,
#   and the compiled code says what is issued.
# - Matrix units multiply tiles; sums stay in fp32, in registers, to the end.
# - Peel off the ragged end, and tell the compiler what divides sizes and strides.
# - A border in a picture that belongs to no tile and no matrix is a mask with the wrong
#   length.
#
# **Next:** [06, fast GEMM](06_fast_gemm.ipynb) climbs on, from these five rungs to the
# shipped kernel. Back to [00, start here](00_start_here.ipynb).
