# %% [markdown]
# # Fast GEMM: from matrix units to the vendor's speed
#
# You will build
#
# - six rungs on top of lesson 05's five: a launch order for the L2 cache, loads that run
#   ahead, a sum that programs share, programs that take tile after tile, tiles that one
#   instruction moves, and two loops that become one;
# - for each of them a prediction of what it gains, and the recorded answer, losses
#   included;
# - the ladder's whole table, from one element a program to the shipped kernel.
#
# **Time:** 60 minutes. **You need:** Python and [lesson 05](05_tile_gemm.ipynb), whose
# helpers are imported here. Kernels run in the interpreter and are compiled for GPUs that
# need not be here.
#
# **Out of scope:** epilogues and fused operators (lesson 10), warp specialization by
# hand, and dtypes other than fp16, which change tiles and not ideas.

# %%
from workbench import (
    Launch,
    Step,
    device,
    explore,
    lens,
    readings,
    runtime,
    suites,
    teach,
    tune,
    viz,
)
from workbench.bench import recording
from workbench.kernels import gemm
from workbench.teach.rungs import gemm_ladder
from workbench.teach.rungs.gemm_ladder import store_tile, tile_of_product
from workbench.kernels.tile import order

import inspect
import math
from collections import Counter
from functools import partial
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl
from IPython.display import Markdown
from triton.tools.tensor_descriptor import TensorDescriptor

# %% [markdown]
# ## The idea: waves × steps × time of a step
#
# A GPU has $u$ units (an H200 has 132), and each of them makes one tile at a time. With
# $t$ tiles and $s$ steps along K,
#
# $$T \approx \underbrace{\left\lceil \frac{t}{u} \right\rceil}_{\text{waves}} \cdot
# \Big( s \cdot T_\text{step} + T_\text{begin and end} \Big)$$
#
# That is the whole lesson. A product's FLOPs are given; what a rung can do is make a
# step shorter, make waves fuller, or hide how a tile begins and ends:
#
# | rung | what it changes |
# | --- | --- |
# | 6 launch order | $T_\text{step}$: fewer loads come from memory |
# | 7 larger tiles, loaded ahead | $T_\text{step}$: nobody waits for loads |
# | 8 split-K | waves, where tiles are few |
# | 9 persistent programs | $T_\text{begin and end}$: started once |
# | 10 tensor descriptors | $T_\text{step}$: one instruction loads a tile |
# | 11 one loop | $T_\text{begin and end}$: hidden behind the next tile |
#
# **Predict.** A product of 4096 × 4096 × 4096, in tiles of 128 × 256: how many tiles
# does the unit make that makes the most of them, on an H200?

# %%
most_tiles = teach.predict(
    "Waves of 4096 × 4096 in tiles of 128 × 256, 132 units", guess=None, unit="waves"
)

# %%
cube = lens.waves.Waves(4096, 4096, (128, 256), compute_units=132)
most_tiles.reveal(
    cube.waves,
    because=f"{cube.tiles} tiles; the last wave has {cube.last} of them.",
)

# %% [markdown]
# ## The reference
#
# It is a line of torch still, `a @ b`. The number to reach is the vendor's: on an H200,
# cuBLAS multiplies two matrices of 4096 × 4096 in fp16 at
# {{recording device=nvidia-h200 op=matmul dtype=fp16 m=4096 n=4096 k=4096 layout=nn mode=events provider=cuBLAS show=TFLOP/s}}.
#
# What the rungs reach on that product was recorded too. `gained` reveals how many times
# as fast one of them is as another, by their median times in one run. A time is not one
# number but a range: the clock falls with the power, and memory has other guests. Where
# the ranges of two rungs overlap, the run has not told them apart, and `gained` says so.

# %%
here = device.current()
PRODUCT = {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"}


def of_the_ladder(lines):
    """The product that the rungs climb, in the latest run that has rungs."""
    lines = recording.select(
        lines, op="matmul", dtype="fp16", mode="events", case=PRODUCT
    )
    rungs = [line for line in lines if line.provider.startswith("workbench:")]
    latest = recording.latest_run(rungs)
    return recording.select(lines, run=latest[0].run) if latest else []


recorded = of_the_ladder(recording.shipped("nvidia-h200"))


def gained(prediction, rung, over, because):
    """Reveal how many times as fast a rung is as another."""
    names = f"workbench:{rung}", f"workbench:{over}"
    if not set(names) <= {line.provider for line in recorded}:
        print(f"{rung} over {over}: not recorded yet. `make gpu` records it on a GPU.")
        return
    mine, other = (
        next(line for line in recorded if line.provider == name) for name in names
    )
    if mine.p20_ms <= other.p80_ms and other.p20_ms <= mine.p80_ms:
        because = "not told apart: the middle 60 % of their times overlap."
    ratio = round(recording.ratio(recorded, *names), 2)
    prediction.reveal(ratio, because=because, tolerance=0.1)


# %% [markdown]
# ## Rung 6: a launch order
#
# Lesson 05 ended with tiles of 64 × 64, one a program, numbered row by row. Each program
# loads a byte for every 32 FLOPs: far more bytes than memory can bring while matrix units
# work. But programs that run at one time can share: what one of them has brought into the
# L2 cache, the others find there. How much they share depends on *which* tiles they make.
#
# **Predict.** 64 programs run at one time. As a row of tiles, they need for each step
# along K one tile of A and 64 of B. As a block of 8 × 8 tiles, how many times fewer do
# they need?

# %%
fewer = teach.predict(
    "Tiles of A and B for 64 programs: a row over a block", guess=None, unit="times"
)

# %%
as_a_row, as_a_block = (
    explore.tiles.intensity((64, 64), itemsize=2, tiles=64, rows=rows, cols=64 // rows)
    for rows in (1, 8)
)
print(f"a row   {as_a_row:5.1f} FLOP for each byte from memory")
print(f"a block {as_a_block:5.1f} FLOP for each byte from memory")
fewer.reveal(as_a_block / as_a_row, because="(1 + 64) tiles over (8 + 8).")

# %% [markdown]
# It is lesson 05's circumference and area once more, one level up: the block is a tile
# whose memory is the L2 cache. And it costs nothing but a few integer operations, which
# turn a program's number into a row and a column:

# %%
print(inspect.getsource(order.grouped.fn))

# %% [markdown]
# `GROUP` rows of tiles go together, column by column; where fewer rows are left, the last
# group is less high. Here are the first numbers of an output of 5 × 6 tiles:

# %%
numbers = {order.grouped.fn(number, 5, 6, 2): number for number in range(30)}
for row in range(5):
    print(" ".join(f"{numbers[row, col]:3d}" for col in range(6)))

# %% [markdown]
# The kernel is lesson 05's, with `tile_of_product` and `store_tile` as they were; only
# where a program finds its tile has changed. `described` says what the kernel is told
# of sizes and strides, as in lesson 05.


# %%
@triton.jit
def rows_and_cols(
    number,
    sizes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
):
    rows, cols = tl.cdiv(sizes[0], BLOCK_M), tl.cdiv(sizes[1], BLOCK_N)
    tile_row, tile_col = order.grouped(number, rows, cols, GROUP)
    row = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tile_col * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return row, col


@triton.jit
def grouped_kernel(
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
    GROUP: tl.constexpr,
):
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
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


def described(a, b, tile, group):
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    checks = gemm.Checks(
        *(size % side != 0 for size, side in zip(sizes, tile, strict=True))
    )
    values = (*sizes, *a.stride(), *b.stride())
    divisors = tuple(1 if value % 16 == 0 else math.gcd(value, 8) for value in values)
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    meta |= {"CHECKS": checks, "DIVISORS": divisors, "GROUP": group}
    return (sizes, a.stride(), b.stride()), meta


def tiles_of(a, b, tile):
    return triton.cdiv(a.shape[0], tile[0]) * triton.cdiv(b.shape[1], tile[1])


def output_of(a, b):
    return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)


def grouped(a, b, tile=(16, 16, 16), group=8, **options):
    output = output_of(a, b)
    arguments, meta = described(a, b, tile, group)
    options = {"num_stages": 1, **options}
    step = Step(
        grouped_kernel,
        (tiles_of(a, b, tile),),
        (a, b, output, *arguments),
        meta | options,
    )
    return Launch((step,), (output,))


# %% [markdown]
# Now a model of the L2 cache, scaled down with the product: 8 × 8 tiles, of which eight
# are made at a time, in step, and a cache with room for sixteen tiles, which drops what
# was used least recently. Groups of one are rows.

# %%
generator = torch.Generator().manual_seed(6)
x = torch.randn(128, 16, generator=generator).half().to(here.torch_device)
y = torch.randn(16, 128, generator=generator).half().to(here.torch_device)

for group in (1, 4, 8):
    (trace,) = lens.trace(grouped(x, y, group=group))
    reads = readings.gemm_reads.reads_of(trace, resident=8, cache_bytes=16 * 512)
    loaded = trace.traffic(kind="load").bytes
    print(
        f"groups of {group}: {loaded:,} bytes loaded, {reads.bytes_from_memory:6,} of "
        f"them from memory, {reads.hit_rate:.0%} hit"
    )

# %% [markdown]
# Not one byte less is *loaded*. But of groups that are neither too low nor too high, most
# of it is found in the cache. (Groups of eight are columns, as bad as rows.)
#
# **Scrub the order.** Four programs run at one time now, and the cache has room for eight
# tiles. Move the slider, and watch which tiles of A and B the running programs share and
# how the share of hits grows; then change the order. `snake` is one that you have not
# seen the text of: what does it do at the end of a group? (Exercise 06-1 will ask.)

# %% tags=["widget"]
wide = torch.randn(96, 16, generator=generator).half().to(here.torch_device)


def reads_of_shipped(launch_order, group):
    launch = gemm.launch(
        wide,
        wide.t(),
        tile=(16, 16, 16),
        launch_order=launch_order,
        group=group,
        splits=1,
    )
    (trace,) = lens.trace(launch)
    return readings.gemm_reads.reads_of(trace, resident=4, cache_bytes=8 * 512)


viz.GemmMapWidget(
    reads_of_shipped, orders=("grouped", "by_rows", "snake"), groups=(2, 3)
)

# %% [markdown]
# **Predict** what that is worth on the H200, for 4096 × 4096 × 4096 with tiles of
# 64 × 64 and groups of 8: how many times as fast as rung 5 is rung 6? (1 is no gain. A
# unit runs up to seven of these programs at one time.)

# %%
order_gain = teach.predict("grouped over ragged, in speed", guess=None, unit="times")

# %% tags=["nbval-ignore-output"]
gained(
    order_gain,
    "grouped",
    "ragged",
    "programs that run at one time share more of what they read.",
)

# %% [markdown]
# Were you disappointed? Count before you climb. In the model eight programs ran, as many
# as a row has tiles. On the H200 it is 7 · 132 = 924 at a time, and a row of 4096 has 64
# tiles: row by row, those that run are a block already.


# %%
def tiles_needed(side, group, running=7 * 132):
    """Tiles of A and B that the first programs need for a step, of side × side tiles."""
    places = [order.grouped.fn(number, side, side, group) for number in range(running)]
    return sum(len(set(numbers)) for numbers in zip(*places, strict=True))


for size in (4096, 8192, 16384):
    by_group = {group: tiles_needed(size // 64, group) for group in (1, 8, 32)}
    print(f"{size:6,}³:", ", ".join(f"groups of {g}: {n}" for g, n in by_group.items()))

# %% [markdown]
# At 4096³ groups of 8 cannot help these tiles: they need as many as rows do. Groups of 32
# would need fewer, and a larger product has more to win. (That is counted, not measured:
# no recorded run has other sizes or groups of this rung. It also leaves out that A and B
# have 67 MB together, most of which an H200's cache holds, whatever the order.) And a
# step of these rungs waits for its loads *wherever* they come from. That is next.
#
# ## Rung 7: larger tiles, loaded ahead
#
# Rung 6 waits. A step loads two tiles, waits until they are there, multiplies them, and
# only then asks for the next two. Matrix units idle while tiles travel, and loads idle
# while tiles are multiplied.
#
# The remedy has two parts. A *larger tile* multiplies longer for each byte: 128 × 256
# has four times the sums of 64 × 128, for twice the loads. And *stages*: room for
# several pairs of tiles in shared memory, so that some are on their way while one is
# multiplied. A load can begin as soon as there is room, a product as soon as its load is
# there and the one before it is done:


# %%
def timeline(stages, load, multiply, steps=8):
    """Return when each load begins, and when each product begins and ends."""
    found = []
    for step in range(steps):
        room = found[step - stages][2] if step >= stages else 0
        begin = max(room + load, found[-1][2] if found else 0)
        found.append((room, begin, begin + multiply))
    return found


with viz.figure_style():
    figure, axes = plt.subplots(3, 1, figsize=(9, 3.6), sharex=True)
    for stages, axis in zip((1, 2, 4), axes, strict=True):
        for step, (begin, multiplies, ends) in enumerate(timeline(stages, 3, 1)):
            lane = step % stages
            axis.broken_barh([(begin, 3)], (lane, 0.8), facecolor="0.75")
            axis.broken_barh(
                [(multiplies, ends - multiplies)], (lane, 0.8), facecolor="C1"
            )
        axis.set_yticks([])
        axis.set_title(f"{stages} stage{'s' * (stages > 1)}", loc="left", fontsize=10)
    axes[-1].set_xlabel("time, in products of one step")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: three timelines of eight steps along K, gray while a stage is loaded, orange
# while it is multiplied. With one stage loads and products take turns, with two some
# overlap, and with four one product follows the other without a gap.*
#
# A stage is busy for a load and a product, and then begins anew; so $S$ stages make a
# step every
#
# $$T_\text{step} = \max\Big( T_\text{multiply}, \;
# \frac{T_\text{load} + T_\text{multiply}}{S} \Big)$$
#
# **Predict.** If a load takes as long as *five* products, how many stages are needed
# before nobody waits?

# %%
enough_stages = teach.predict(
    "Stages, where a load takes as long as five products", guess=None, unit="stages"
)

# %%
for stages in range(1, 8):
    ends = timeline(stages, load=5, multiply=1, steps=400)[-1][2]
    print(f"{stages} stages: {ends / 400:.2f} products' time for each step")
enough_stages.reveal(6, because="(5 + 1) / 6 = 1.")

# %% [markdown]
# What limits both is room. A tile of 128 × 256 has 32,768 sums, 128 registers in each of
# 256 threads; and a stage takes (128 + 256) · 64 elements of fp16, 48 KiB.
#
# Now the pleasant part: **the kernel is the same**. Not one line of it changes. Triton
# finds the loads in a loop and moves them `num_stages - 1` steps ahead, if told so. What
# the compiler made of rung 6, of one stage, and of rung 7, of three:

# %%
LARGE = (128, 256, 64)
square = torch.zeros(4096, 4096, dtype=torch.float16, device=here.torch_device)
staged = {
    "grouped": grouped(square, square, (64, 64, 64), num_warps=4),
    "pipelined": grouped(square, square, LARGE, num_warps=8, num_stages=3),
}
own_launches = dict(staged)
outcomes = lens.compile_all(list(staged.values()), "sm_90")
for name, (step,) in zip(staged, outcomes, strict=True):
    width = step.widest("asynchronous copy") or step.widest("global load")
    way = "past the registers" if step.count("asynchronous copy") else "by registers"
    fits = "fits" if not step.problem else "does not fit"
    print(f"{name:9s}: loads {width} bits a lane, {way}; an H200: {fits}")

# %% [markdown]
# With stages, loads are *asynchronous copies*: they go from memory to shared memory
# without passing through registers, and the thread that has asked for one goes on. It
# asks for the tiles of step `i + 2`, waits for those of step `i`, and multiplies them.
#
# **Look inside**, for an H200 (`sm_90`). Select `return tl.load(pointers)`, then
# `tl.dot`: the first became copies past the registers, the second products of warp
# groups. Copies stand in two places, before the loop, for the first two steps, and in
# it, for a later step than the products beside them.

# %% tags=["widget"]
explore.source.source_lens(
    grouped(square[:128, :128], square[:128, :256], LARGE, num_warps=8, num_stages=3),
    shown=("sm_90",),
)

# %% [markdown]
# **Predict**, for 4096 × 4096 × 4096: how many times as fast as rung 6 is rung 7, with
# tiles of 128 × 256 × 64, 8 warps and 3 stages?

# %%
stages_gain = teach.predict(
    "pipelined over grouped, in speed", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
gained(
    stages_gain,
    "pipelined",
    "grouped",
    "loads and products overlap, and for each of its sums the larger tile loads three "
    "eighths as much. (Which of the two gave how much, the run does not say.)",
)

# %% [markdown]
# ## Which tile? Prune, then time
#
# Tile, warps, stages, and soon a template and splits: the space is large, and most of it
# cannot be good. Timing all of it takes minutes. But much can be said before anything
# runs.
#
# *By arithmetic*: a tile whose sums exceed the registers, stages that exceed the shared
# memory, a long narrow tile where a square one has as many sums. *By the compiler*: it
# says which of those that are left spill, and it needs no GPU for that.

# %%
sides = (64, 128, 192, 256)
combinations = 3 * len(sides) * 3 * 2 * 3 * 2 * 2
candidates = tune.gemm_candidates(
    4096, 4096, 4096, torch.float16, batch=1, target="sm_90"
)
print(f"{combinations} combinations of tile, warps, stages, template and descriptors;")
print(f"arithmetic leaves {len(candidates)} of them")

# %% tags=["nbval-ignore-output", "compiler"]
tried = [
    {"tile": tile, "num_warps": warps, "num_stages": stages}
    for tile, warps, stages in (
        ((64, 128, 64), 4, 3),
        ((64, 128, 64), 4, 10),
        ((128, 256, 64), 4, 3),
    )
]
output = output_of(square, square)
make = partial(gemm.launch, square, square, output=output, splits=1)
tune.prune(make, tried, "sm_90", progress=False)

# %% [markdown]
# What is left is *raced*: all are timed for a short while, the slower half drops out, and
# the rest is timed for longer. On a machine with a GPU,
#
#     python -m workbench tune 4096 4096 4096
#
# does both, and keeps the winner. `ops.matmul` never does it by surprise: it chooses by
# a formula, to which we come at the end.
#
# ## Rung 8: split-K, for waves that are not full
#
# **Predict.** A product of 384 × 384 × 65536, as where a gradient is summed over a long
# batch: which share of an H200's 132 units has something to do, with tiles of 128 × 256?

# %%
busy = teach.predict(
    "Units with a tile: 384 × 384, tiles of 128 × 256", guess=None, unit="%"
)

# %%
deep = lens.waves.Waves(384, 384, (128, 256), compute_units=132)
busy.reveal(
    round(100 * deep.efficiency, 1),
    because=f"{deep.tiles} tiles, and {deep.slots} units.",
    tolerance=0.1,
)

# %% [markdown]
# The output has no more tiles to give. But K is long, and a sum can be cut: let 22
# programs share a tile, each with its range of K, and add up what they found. The sums
# of all splits are kept, in fp32, and a second kernel adds them up. (It could be done
# by atomic additions to one tile of sums; see below.)


# %%
@triton.jit
def split_k_kernel(
    a_pointer,
    b_pointer,
    parts_pointer,
    span,
    sizes,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
    GROUP: tl.constexpr,
):
    row, col = rows_and_cols(tl.program_id(axis=0), sizes, BLOCK_M, BLOCK_N, GROUP)
    begin = tl.program_id(axis=1) * span
    total = tile_of_product(
        a_pointer,
        b_pointer,
        row,
        col,
        begin,
        min(begin + span, sizes[2]),
        sizes,
        a_strides,
        b_strides,
        BLOCK_K,
        CHECKS,
        DIVISORS,
    )
    part = parts_pointer + tl.program_id(axis=1) * sizes[0] * sizes[1]
    store_tile(part, row, col, total, sizes, DIVISORS)


@triton.jit
def sum_of_parts_kernel(
    parts_pointer, output_pointer, length, splits, BLOCK_SIZE: tl.constexpr
):
    i = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    for split in range(splits):
        total += tl.load(parts_pointer + split * length + i, mask=i < length, other=0.0)
    tl.store(output_pointer + i, total, mask=i < length)


def split_k(a, b, tile=(16, 16, 16), splits=4, group=8, **options):
    output = output_of(a, b)
    arguments, meta = described(a, b, tile, group)
    steps = triton.cdiv(a.shape[1], tile[2])
    share = triton.cdiv(steps, splits)
    splits = triton.cdiv(steps, share)  # none is idle
    parts = torch.empty(splits, *output.shape, dtype=torch.float32, device=a.device)
    first = Step(
        split_k_kernel,
        (tiles_of(a, b, tile), splits),
        (a, b, parts, share * tile[2], *arguments),
        meta | options,
    )
    second = Step(
        sum_of_parts_kernel,
        (triton.cdiv(output.numel(), 1024),),
        (parts, output, output.numel(), splits),
        {"BLOCK_SIZE": 1024},
    )
    return Launch((first, second), (output,), workspaces=(parts,))


# %% [markdown]
# Why not add atomically, and save the second kernel? Sums of floating-point numbers
# depend on their order, and which program comes first is nobody's decision. The shipped
# kernel has both ways. Here programs are shuffled, three times, and the results compared
# bit by bit:

# %%
long_a = torch.randn(32, 1024, generator=generator).half()
long_b = torch.randn(1024, 32, generator=generator).half()
for atomic in (False, True):
    in_fp32 = torch.empty(32, 32)
    launch = gemm.launch(
        long_a, long_b, output=in_fp32, tile=(32, 32, 64), splits=8, atomic=atomic
    )
    results = [runtime.interpret(launch, seed=seed).outputs[0] for seed in (1, 2, 3)]
    same = all(torch.equal(results[0], other) for other in results[1:])
    way = "atomic additions" if atomic else "a second kernel"
    print(f"{way:16s} the same bits in each order: {same}")

# %% [markdown]
# **Predict** the price. For 4096 × 4096 × 4096 and 4 splits, parts are written once and
# read once. How many times as many bytes is that as A, B and the output together?

# %%
of_parts = teach.predict(
    "Bytes of four parts, out and in, over A, B and C", guess=None, unit="times"
)

# %%
of_parts.reveal(
    2 * 4 * 4 / (3 * 2),
    because="4 parts of 4 bytes, twice, for each 3 elements of 2 bytes.",
    tolerance=0.05,
)

# %% [markdown]
# So on a product whose tiles fill the GPU by themselves, split-K only costs: four parts of
# 67 MB go out to memory, and come back. **Predict** how much, for 4096 × 4096 × 4096: how
# many times as fast as rung 7?

# %%
split_gain = teach.predict("split_k over pipelined, in speed", guess=None, unit="times")

# %% tags=["nbval-ignore-output"]
gained(
    split_gain,
    "split_k",
    "pipelined",
    "waves were full already, and 268 MB of parts are written and read again.",
)

# %% [markdown]
# A rung that loses here is no mistake: it is for another product. Where K is long and
# tiles are few, as in 384 × 384 × 65536, one program would make all 1,024 steps of a tile.
# What a step takes we know from rung 7, whose time is that of 4 waves of 64 steps:

# %% tags=["nbval-ignore-output"]
microseconds = {line.provider: 1000 * line.median_ms for line in recorded}
deep_lines = recording.select(
    recording.shipped("nvidia-h200"),
    op="matmul",
    dtype="fp16",
    mode="cuda_graph",
    case={"m": 384, "n": 384, "k": 65536, "layout": "nn"},
)
deep_own = [line for line in deep_lines if line.provider == "workbench"]
if deep_own and "workbench:pipelined" in microseconds:
    alone = 1024 * microseconds["workbench:pipelined"] / (4 * 64)
    print(f"one program a tile: about {alone:.0f} µs (estimated)")
    run = recording.latest_run(deep_own)[0].run
    for line in recording.select(deep_lines, run=run):
        if line.provider in ("workbench", "cuBLAS", "cuBLASLt"):
            print(f"{line.provider}: {1000 * line.median_ms:.0f} µs (recorded)")

# %% [markdown]
# `workbench` is `ops.matmul`, which splits K here (all were timed in a CUDA graph, so
# that nobody waits for Python). The parts pay for themselves many times over: of the
# vendor's libraries it keeps up with the better one, and leaves the other one behind.
#
# ## Waves that are nearly full, and Stream-K
#
# Between "few tiles" and "many" lies the awkward case: a few tiles more than units. The
# last wave then has a few tiles, and takes as long as a full one. Move the size, and find
# one where half of the time is lost; then change the tile.

# %% tags=["widget"]
viz.WavesWidget(lens.waves.Waves(1920, 1920, (128, 256)))

# %% [markdown]
# **Stream-K** counts *steps* instead of tiles. With $t$ tiles of $s$ steps, each of $u$
# programs gets $t s / u$ of them, wherever a tile begins or ends. A program that gets the
# end of one tile and the beginning of the next leaves parts of both, and a second kernel
# adds parts up, as in split-K; but a tile has few of them, and most tiles none. (Osama et
# al., *Stream-K*, PPoPP 2023.)
#
# Nine tiles of eight steps, by four programs at a time. **Predict:** how many steps does
# the program make that makes the most, by waves? And by Stream-K?

# %%
by_waves = teach.predict("Most steps of a program, by waves", guess=None, unit="steps")
by_stream = teach.predict("Most steps, by Stream-K", guess=None, unit="steps")

# %%
nine_a = torch.randn(48, 128, generator=generator).half().to(here.torch_device)
nine_b = torch.randn(128, 48, generator=generator).half().to(here.torch_device)
most = {}
for template in ("persistent", "stream-k"):
    launch = gemm.launch(
        nine_a, nine_b, tile=(16, 16, 16), splits=1, template=template, programs=4
    )
    trace = lens.trace(launch)[0]
    steps_of = Counter(event.program for event in trace.events(kind="dot"))
    most[template] = max(steps_of.values())
    print(f"{template:10s} steps of each program: {sorted(steps_of.values())}")
by_waves.reveal(most["persistent"], because="one of four programs gets a third tile.")
by_stream.reveal(most["stream-k"], because="9 · 8 steps over 4 programs.")

# %% [markdown]
# It is not free: the parts, the second kernel, and tiles that begin anywhere in K, so
# that fewer loads are shared. Where a smaller tile, or one of 192 columns, makes the
# waves come out even, that is the cheaper remedy. Exercise 06-3 asks for it.
#
# ## Rung 9: persistent programs
#
# Of the last wave nothing is left to gain for 4096 × 4096 × 4096. But each of its tiles
# is a program of its own, which has to be started, computes its addresses, fills its
# stages before the first product, and empties them after the last one. So start only as
# many programs as there are units, and let each take tile after tile: all that changes is
# a loop around the kernel.


# %%
@triton.jit
def persistent_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    tiles,
    sizes,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
    GROUP: tl.constexpr,
):
    for number in range(tl.program_id(axis=0), tiles, tl.num_programs(axis=0)):
        row, col = rows_and_cols(number, sizes, BLOCK_M, BLOCK_N, GROUP)
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


def persistent(a, b, tile=(16, 16, 16), programs=3, group=8, **options):
    output = output_of(a, b)
    arguments, meta = described(a, b, tile, group)
    tiles = tiles_of(a, b, tile)
    step = Step(
        persistent_kernel,
        (min(programs, tiles),),
        (a, b, output, tiles, *arguments),
        meta | options,
    )
    return Launch((step,), (output,))


# %% [markdown]
# Program $p$ of $P$ takes the tiles $p, p + P, p + 2P, \dots$, so that those that run at
# one time have neighboring numbers still, and the launch order keeps its meaning.
#
# **Predict.** What does it gain over rung 7? Note that starts of programs are all that
# this loop saves: the loads of the next tile still begin after the last tile is stored.

# %%
loop_gain = teach.predict(
    "persistent over pipelined, in speed", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
gained(
    loop_gain,
    "persistent",
    "pipelined",
    "programs start once, not once a tile.",
)

# %% [markdown]
# So little was to be expected: a tile lasts 64 steps, beside which the start of a program
# is short. And the loop has a price. Its kernel needs more registers than that of rung 7
# (the table at the end has both), and which program makes which tile is settled in
# advance, while the GPU would give the next tile to the unit that is free first. (That is
# reasoned; no run takes the two apart.) We keep the loop, because the next two rungs
# need it.
#
# ## Rung 10: one instruction loads a tile
#
# To load a tile of A, 256 threads compute addresses, and ask for 16 bytes each, again and
# again. **Predict:** for a tile of 128 × 64 elements of fp16, how many such requests
# does each thread make?

# %%
requests = teach.predict(
    "Requests of 16 bytes a thread: 128 × 64 in fp16, 256 threads",
    guess=None,
    unit="requests",
)

# %%
requests.reveal(
    128 * 64 * 2 // 16 // 256, because="16 KiB, 16 bytes each, 256 threads."
)

# %% [markdown]
# Hopper has a unit for it, the Tensor Memory Accelerator (TMA). It is told *once* how a
# matrix lies in memory, by a **tensor descriptor**: address, sizes, strides and the block
# to move. From then on one thread says "the block at [row, col]", and the unit computes
# addresses, minds the matrix's ends (beyond them there are zeros), and lays the tile out
# in shared memory as matrix units like it.
#
# The kernel becomes *shorter*: masks, pointers and what divides them are gone.


# %%
@triton.jit
def descriptors_kernel(
    a,
    b,
    output,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tl.assume(k > 0)
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for number in range(tl.program_id(axis=0), rows * cols, tl.num_programs(axis=0)):
        tile_row, tile_col = order.grouped(number, rows, cols, GROUP)
        row, col = tile_row * BLOCK_M, tile_col * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, k, BLOCK_K):
            total = tl.dot(a.load([row, start]), b.load([start, col]), total)
        output.store([row, col], total.to(output.dtype))


def descriptors(a, b, tile=(16, 16, 16), programs=3, group=8, **options):
    output = output_of(a, b)
    m, n, k = tile
    of_a = TensorDescriptor.from_tensor(a, [m, k])
    of_b = TensorDescriptor.from_tensor(b, [k, n])
    of_output = TensorDescriptor.from_tensor(output, [m, n])
    meta = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": group}
    step = Step(
        descriptors_kernel,
        (min(programs, tiles_of(a, b, tile)),),
        (of_a, of_b, of_output, a.shape[0], b.shape[1], a.shape[1]),
        meta | options,
    )
    return Launch((step,), (output,))


# %%
looping = {
    rung.__name__: rung(square, square, LARGE, programs=132, num_warps=8, num_stages=3)
    for rung in (persistent, descriptors)
}
own_launches |= looping
with_pointers, with_descriptors = (
    step for (step,) in lens.compile_all(list(looping.values()), "sm_90")
)
for step in (with_pointers, with_descriptors):
    in_bulk = "cp.async.bulk.tensor" in step.stages["ptx"]
    print(f"{step.kernel:18s} tiles move in bulk: {in_bulk}")
fewer_registers = with_descriptors.registers < with_pointers.registers
print("fewer registers a thread:", fewer_registers)

# %% [markdown]
# What TMA asks for: neighbors in a row lie side by side, and rows begin at multiples of
# 16 bytes. A matrix of 1001 columns in fp16 has none, until it is padded. **Predict** the
# gain over rung 9.

# %%
tma_gain = teach.predict(
    "descriptors over persistent, in speed", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
gained(
    tma_gain,
    "descriptors",
    "persistent",
    "nobody computes addresses, and threads have registers and issue slots to spare.",
)

# %% [markdown]
# ## Rung 11: two loops become one
#
# Rungs 9 and 10 still drain at the end of a tile. The last product ends, the tile is
# stored, and only then the first loads of the next tile begin, while matrix units wait.
# The pipeline knows of the loop along K; it does not look beyond it.
#
# It would if there were only one loop, over all steps of all tiles. Written by hand:


# %%
def two_loops(tiles, steps):
    for tile in tiles:
        for step in range(steps):
            yield ("load and multiply", tile, step)
        yield ("store", tile)


def one_loop(tiles, steps):
    for count in range(len(tiles) * steps):
        tile, step = tiles[count // steps], count % steps
        yield ("load and multiply", tile, step)
        if step == steps - 1:
            yield ("store", tile)


print(list(two_loops([4, 7], 3)) == list(one_loop([4, 7], 3)))

# %% [markdown]
# Both do the same in the same order. But in the second the loads of tile 7 stand in the
# same loop as those of tile 4, so that stages reach from the one into the other: tile 7
# is on its way while tile 4 is multiplied and stored. Triton makes the second out of the
# first, `tl.range(..., flatten=True)`.
#
# **Predict** by counting: between two tiles the pipeline waits for a load and a store,
# together as long as 6 products. What share of the time is that for K of 4096, with 64
# steps a tile, if nothing is hidden?

# %%
share = teach.predict("Share of the time between tiles, 64 steps", guess=None, unit="%")

# %%
share.reveal(
    round(100 * 6 / (64 + 6), 1),
    because=f"6 of 64 + 6. With 8 steps it would be {100 * 6 / (8 + 6):.0f} %.",
    tolerance=0.1,
)

# %% [markdown]
# That is the most it can gain; the shorter K is, the more. This rung is **a shipped
# kernel**. Around the loop over tiles stands the promise, `flatten`, and a tile itself is
# in `one_tile`:

# %%
print(inspect.getsource(gemm.gemm_persistent_kernel.fn))

# %%
print(inspect.getsource(gemm.one_tile.fn))

# %% [markdown]
# In it, `part_of_tile` finds the tile and calls lesson 05's `mainloop`, and `finish`
# stores what the epilogue makes of it. What it has that your rungs do not: batches,
# parts of tiles for widths such as 192, splits in the same kernel (a tile's number says
# which), offsets of 64 bits where matrices are that large, and an epilogue. What is not
# used is decided when the kernel is compiled, and costs nothing.

# %%
flat_gain = teach.predict(
    "flattened over descriptors, in speed", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
gained(
    flat_gain,
    "flattened",
    "descriptors",
    "the next tile is loaded while this one is stored.",
)

# %% [markdown]
# How near can two times be and still differ? Time the same kernel twice. On this product
# `ops.matmul` took the very kernel of rung 11, with the same tile, warps, stages and
# groups, before it took another one (below), and all runs of the rungs that were recorded
# until then have both. A line for each of them, in times as fast: the same kernel over
# itself, and rungs 9 to 11, each over the one before.

# %% tags=["nbval-ignore-output"]
at_4096 = recording.select(
    recording.shipped("nvidia-h200"),
    op="matmul",
    dtype="fp16",
    mode="events",
    case=PRODUCT,
)
climbed = ("pipelined", "persistent", "descriptors", "flattened")
for top in recording.select(at_4096, provider="workbench:flattened"):
    of_run = recording.select(at_4096, run=top.run)
    (by_itself,) = recording.select(of_run, provider="workbench")
    if by_itself.config["kernels"] != top.config["kernels"]:
        continue
    again = recording.ratio(of_run, "workbench", "workbench:flattened")
    print(f"{top.when[:16]}  the same kernel {again:.3f}", end="")
    for before, rung in pairwise(climbed):
        gain = recording.ratio(of_run, f"workbench:{rung}", f"workbench:{before}")
        print(f", {rung} {gain:.3f}", end="")
    print()

# %% [markdown]
# So what rungs 9 to 11 change *here* is about as large as what one kernel gains over
# itself in one run or another. What the loop costs, the next two rungs win back, and
# hardly more: rung 7 has reached the vendor's speed but for a few percent. Waves are nearly
# full, tiles are long, rows begin at lines. What hides the ends of tiles should count
# where a tile is short: 8192 × 8192 × 64, in the second table below, has one step a tile.
# (The table has the share of the vendor's speed; the rungs were not timed there.)
#
# ## What `ops.matmul` takes now
#
# In all these kernels each warp of a program does the same: all multiply, and then all
# store. On an H100 or H200 warps can divide the work. Two groups of them have a tile each,
# and are not in step, so that one multiplies while the other one stores; and one more warp
# does nothing but copy. Triton's language has no words for that. Gluon, the language beneath it, has, and
# [lesson 10](10_fused_operators.ipynb) reads such kernels: they gain most where much is done
# with a tile before it is stored. In fp16 and bf16, and with rows that begin at lines of
# 128 bytes, they are what `ops.matmul` takes there for most large products. On this one it was
# {{recording device=nvidia-h200 op=matmul dtype=fp16 mode=events m=4096 n=4096 k=4096 layout=nn provider=workbench over=workbench:flattened}}
# times as fast as rung 11 when it was last recorded, which is no more than the same kernel
# gained over itself in some runs. But its tiles of 128 × 128 are half as large as those of
# rung 11, and fill waves better where those do not; 3072³ gets tiles of 128 × 192.
#
# ## Rows that begin off a line
#
# So far 4096. A matrix of 1000 columns in fp16 has rows of 2,000 bytes, a multiple of 16:
# lesson 05 made its loads wide. But the L2 cache moves *lines* of 128 bytes, and the row
# of a tile, 64 elements, has 128 bytes too. **Predict:** how many lines does the row of
# such a tile touch, on average over the rows of the matrix?

# %%
lines_a_row = teach.predict(
    "Lines of 128 bytes for 128 bytes of a row, 1000 columns", guess=None, unit="lines"
)


# %%
def lines_of(pitch, rows=1000):
    """Lines that 128 bytes touch, from the beginning of each row."""
    starts = [row * pitch for row in range(rows)]
    return sum((start + 127) // 128 - start // 128 + 1 for start in starts) / rows


lines_a_row.reveal(
    lines_of(2000), because="only every eighth row begins at a multiple of 128 bytes."
)
print(f"with rows of 2,048 bytes: {lines_of(2048):g}")

# %% [markdown]
# Nearly twice as many lines for the same bytes, and the cache hands out only so many lines
# in a nanosecond. Two ways out. Make matrices with padded rows, where they are made. Or **pack**
# them: copy A and B once to rows that begin at lines, and multiply the copies. The copy
# moves $2 \cdot 2 (mk + kn)$ bytes, the product saves lines in every one of its steps;
# so it pays for large matrices.

# %%
crooked = torch.zeros(1000, 1000, dtype=torch.float16, device=here.torch_device)
for name, copy in gemm.packed(crooked, crooked).items():
    pitch = copy.stride(0) * copy.element_size()
    print(f"{name}: rows of {pitch:,} bytes, {lines_of(pitch):g} line for 128 of them")
launch = gemm.launch(crooked, crooked, pack=True, splits=1)
print("steps:", ", ".join(step.name for step in launch.steps))

# %% [markdown]
# ## Check it
#
# Your rungs, with sizes that are ragged in every direction, transposed operands, into
# outputs full of NaN, and with programs shuffled. Descriptors want rows that begin at
# multiples of 16 bytes, so they get sizes that are multiples of eight.


# %%
def check(rung, a, b, seed):
    exact = a.double() @ b.double()
    mine = runtime.interpret(rung(a, b), poison=True, seed=seed).outputs[0]
    torch.testing.assert_close(mine.double(), exact, rtol=1e-3, atol=1e-4)


shipped = {
    "stream-k": partial(gemm.launch, template="stream-k", programs=3),
    "persistent": partial(gemm.launch, template="persistent", programs=3),
}
for seed, (rows, cols, length) in enumerate([(1, 1, 1), (17, 35, 50), (40, 24, 72)]):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, length, generator=generator).half()
    right = torch.randn(cols, length, generator=generator).half().t()
    for rung in (grouped, split_k, persistent):
        check(rung, left, right, seed)
    for template in shipped.values():
        check(partial(template, tile=(16, 16, 16), splits=1), left, right, seed)
    if rows % 8 == cols % 8 == length % 8 == 0:
        check(descriptors, left, right.contiguous(), seed)
    print(
        f"{rows} x {cols} x {length}: yours and the shipped templates agree with torch"
    )

# %% [markdown]
# What this does *not* prove: that they are fast, or that the compiler keeps its word.
# What runs here are programs one by one; that stages, asynchronous copies and flattened
# loops change no result is tested on GPUs, where the package's tests run too.
#
# ## Turn the knobs
#
# All of it in one picture: tile, warps, stages, group, template and descriptors of the
# shipped kernel, compiled for each choice, and placed under the recorded roofs. Of the
# tile that is shown an SM holds two programs at a time: while one waits, the other one
# multiplies. Take 128 × 256 with 8 warps: what does it gain, and what does it give up?
# And with 4 warps, where are its sums?

# %% tags=["widget"]
explore.tiles.tile_sizes(targets=("sm_90", "sm_80"))

# %% [markdown]
# ## Measure: the ladder
#
# What each rung loads, by the trace of one program of each of its steps. That of a
# product of 512 × 512 × 256 is enough: with the same tiles, a program of
# 4096 × 4096 × 4096 loads 16 times as much for its longer K, and there are 64 times as
# many programs.

# %%
short_a = torch.zeros(512, 256, dtype=torch.float16, device=here.torch_device)
short_b = torch.zeros(256, 512, dtype=torch.float16, device=here.torch_device)
loaded_gb = {}
for name, rung in gemm_ladder.LADDER.items():
    options = {"block_k": 256} if name == "element" else {}
    if name in ("persistent", "descriptors", "flattened"):
        options = {"programs": 8}  # one tile each
    launch = rung(short_a, short_b, output_of(short_a, short_b), **options)
    loaded = [
        step.traffic(kind="load").bytes * math.prod(step.grid) * 64
        for step in lens.trace(launch, programs=1)
    ]
    # What a second step loads, the parts of split-K, does not depend on K.
    loaded_gb[name] = (16 * loaded[0] + sum(loaded[1:])) / 1e9
    print(f"{name:12s} loads {loaded_gb[name]:8.2f} GB")

# %% [markdown]
# Compiled for an H200, and measured there: live if you have one, or another GPU; else as
# it was recorded. Rungs 3 to 6 have tiles of 64 × 64 × 64, all others of
# 128 × 256 × 64 with 3 stages; split-K has 4 splits, and groups have 8 rows of tiles.
# (Rung 1 takes 512 elements along K at a time, rung 2 makes pieces of 256 columns.)
# `workbench` is what `ops.matmul` does by itself.

# %% tags=["nbval-ignore-output"]
climb = next(
    case for case in suites.get("gemm").cases if "workbench:grouped" in case.providers
)
measured = recorded
if here.is_gpu:
    measured, _ = suites.run(
        suites.Suite("ladder", "every rung", (climb,)),
        progress=False,
        rounds=1,
        warmup_ms=10,
        rep_ms=20,
    )
speed = {line.provider.removeprefix("workbench:"): line for line in measured}
print(measured[0].device if measured else "not recorded yet: `make gpu` records it")

# %% tags=["nbval-ignore-output", "compiler"]
launches = {
    name: rung(
        square,
        square,
        output,
        **(
            {"programs": 132}
            if "programs" in inspect.signature(rung).parameters
            else {}
        ),
    )
    for name, rung in gemm_ladder.LADDER.items()
}
launches |= own_launches
outcomes = lens.compile_all(list(launches.values()), "sm_90")


def width_of(step):
    bits = step.widest("asynchronous copy") or step.widest("global load")
    if step.count("asynchronous copy") and not step.widest("asynchronous copy"):
        return "tiles"
    return f"{bits} bits"


def speed_of(name):
    if name not in speed or "cuBLAS" not in speed:
        return ["not recorded", ""]
    share = 100 * speed["cuBLAS"].median_ms / speed[name].median_ms
    return [f"{speed[name].tflops:.3g}", f"{share:.3g} %"]


head = ["rung", "loads, GB", "load width", "registers", "TFLOP/s", "share of cuBLAS"]
table = [head, ["---"] * len(head)]
for name, steps in zip(launches, outcomes, strict=True):
    compiled_facts = [width_of(steps[0]), str(steps[0].registers)]
    table.append([name, f"{loaded_gb[name]:.3g}", *compiled_facts, *speed_of(name)])
for name in ("workbench", "cuBLAS", "cuBLASLt"):
    table.append([f"**{name}**", "", "", "", *speed_of(name)])
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# And what `ops.matmul` does with other products in fp16, beside the better one of the
# vendor's two libraries. A small product takes less time than its launch, so it is timed
# in a CUDA graph, which launches without Python; the line below the table says what
# happens where Python launches each. A note says what of a product is awkward, counted for
# tiles of 128 × 256 and not measured.

# %% tags=["nbval-ignore-output"]
shipped_lines = [
    line
    for line in recording.select(
        recording.shipped("nvidia-h200"),
        op="matmul",
        dtype="fp16",
        case={"layout": "nn"},
    )
    if line.provider in ("workbench", "cuBLAS", "cuBLASLt")
]
with_vendor = {line.run for line in shipped_lines if line.provider == "cuBLAS"}
own = recording.latest_run(
    line
    for line in shipped_lines
    if line.provider == "workbench" and line.run in with_vendor
)
latest = recording.select(shipped_lines, run=own[0].run) if own else []
rows = {}
for line in latest:
    rows.setdefault((line.problem, line.mode), {})[line.provider] = line
in_graph = {problem for problem, mode in rows if mode == "cuda_graph"}


def noteworthy(case):
    """Name what is awkward about a product, by this lesson's arithmetic."""
    notes = []
    if case["n"] * 2 % 128 or case["k"] * 2 % 128:
        notes.append("rows off lines")
    if case["m"] <= 64:
        notes.append("few rows")
    elif lens.waves.Waves(case["m"], case["n"], (128, 256)).efficiency < 0.8:
        notes.append("waves not full")
    if case["k"] <= 64:
        notes.append("one step a tile")
    return ", ".join(notes)


head = ["problem", "timed by", "workbench, TFLOP/s", "vendor, TFLOP/s", "share", "note"]
table, launched = [head, ["---"] * len(head)], []
for (problem, mode), by in rows.items():
    if "workbench" not in by or len(by) < 2:
        continue
    mine = by.pop("workbench")
    best = min(by.values(), key=lambda line: line.median_ms)
    share = 100 * best.median_ms / mine.median_ms
    if mode == "events" and problem in in_graph:
        launched.append(share)
        continue
    speeds = [f"{mine.tflops:.3g}", f"{best.tflops:.3g}", f"{share:.3g} %"]
    table.append([problem, mode.replace("_", " "), *speeds, noteworthy(mine.case)])
text = "\n".join(f"| {' | '.join(row)} |" for row in table)
if launched:
    text += (
        f"\n\nLaunched from Python, {len(launched)} of these reach "
        f"{min(launched):.0f} to {max(launched):.0f} % of the vendor."
    )
Markdown(text if rows else "Not recorded yet: `make gpu` records it on a GPU.")

# %% [markdown]
# How does `ops.matmul` know which rung a product wants? By the formula at the top. For
# each of a handful of *instances* (tile, warps, stages, template) it was measured how
# long a step takes, and what a tile takes beside its steps. The formula says for each of
# them, and for some numbers of splits, how long a product should take, packed first or
# not; the least of these is taken. That costs a few microseconds, once for each shape.
# <!-- unmeasured: an order of magnitude -->
#
# A formula can be wrong. So, on an H200, the tuner tried all configurations of Triton's
# kernels that compile well, for most products of the table above, and the best one that it
# found was timed beside the one that the formula took then:

# %% tags=["nbval-ignore-output"]
longer = {}
for best in recording.select(recording.shipped("nvidia-h200"), provider="tuned"):
    (untuned,) = recording.select(shipped_lines, run=best.run, provider="workbench")
    longer[best.problem] = untuned.median_ms / best.median_ms
if longer:
    mean = math.prod(longer.values()) ** (1 / len(longer))
    worst = max(longer, key=longer.get)
    print(f"{len(longer)} products: untuned takes {mean:.3f} times as long (mean)")
    print(f"the worst is {worst}: {longer[worst]:.2f} times")

# %% [markdown]
# On average the formula costs a few hundredths at most, where tuning compiles and times
# dozens of configurations for each shape.
#
# **What remains.** Every low share has a note, though not every note has a low share: a
# smaller tile, or splits, may be all that a product needs. *Rows off lines*: packing costs
# a pass over A and B, and where they are not packed every step asks the cache for nearly
# twice the lines. *Waves not full*: of a handful of tiles none may come out even, and a
# smaller one loads more for its sums; where K is long, as in 384 × 384 × 65536, splits
# fill the units, for the price of parts to add up. *Few rows*: all of B is loaded for few
# sums, so that a product waits for memory, and rungs that keep matrix units busy gain
# nothing. *One step a tile*: there is no next step to load ahead, and what takes the time
# is how a tile begins and ends, above all the storing of it. The vendor's library has
# far more instances than a handful, and on Hopper those for fp16 divide the work among warps;
# of ours the ones in Gluon do. (All that is reasoned: the table says
# how much is missing, not why.) And a launch from Python takes several times as long as
# a small product: lesson 13 is about that.
#
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on
# all of its cases, and if no more of the machine is used than the text says;
# `teach.exercise("06-1").hint()` asks a question that leads on. Matrices are in fp16, and
# sums stay in fp32 to the end.
#
# ### Exercise 06-1: an order that beats groups
#
# Write `tile_of`: from a program's number to the row and column of its tile. All else is
# given. It is scored by the model of the cache: four programs run at one time, in step,
# and the cache holds eight tiles of 16 × 16, those that are stored among them. For 6 × 6
# tiles `grouped` fetches 24 tiles of A and B from memory at best, whatever its group.
# Fetch at most 20; and for 8 × 4 tiles, where `grouped` fetches 24, at most 18. Any number
# of rows and columns has to come out right.


# %%
# {{exercise 06-1}}

# %% [markdown]
# {{solution 06-1}}

# %% [markdown]
# ### Exercise 06-2: a sum shared by four
#
# Four programs share K for each tile of 16 × 16, and leave their parts in fp32; a second
# kernel, a program for each tile, adds them up. A and B are contiguous, and K need not be
# divisible by anything: some splits may get fewer steps, or none. (The parts are full of
# NaN, so that what is not stored shows.)


# %%
# {{exercise 06-2}}

# %% [markdown]
# {{solution 06-2}}

# %% [markdown]
# ### Exercise 06-3: a tile for the waves
#
# An output of m × n is made by `units` units, one tile at a time each. Tiles may have 64
# or 128 rows, and 64, 128, 192 or 256 columns. A tile takes as long as its sums or its
# loads do, whichever is longer: `max(rows * cols, 80 * (rows + cols))`. With which tile
# is the product done soonest? Of equals, take the one with the fewest rows, and of these
# with the fewest columns. And how many persistent programs are the fewest with which it
# takes no longer?


# %%
# {{exercise 06-3}}

# %% [markdown]
# {{solution 06-3}}

# %% [markdown]
# ### Exercise 06-4: a batch by persistent programs
#
# `a` is [batch, m, k], `b` is [batch, k, n], both contiguous. Six programs make all tiles
# of all matrices, 16 × 16 each, and each program finds its tiles by their numbers.


# %%
# {{exercise 06-4}}

# %% [markdown]
# {{solution 06-4}}

# %% [markdown]
# ## Takeaways
#
# - Waves × steps × time of a step, and what a tile begins and ends with: each rung
#   shortens one of them, and helps only products that lose time there.
# - A launch order changes not what is loaded but where it is found. Where the programs
#   that run at one time are a block already, it changes nothing.
# - Time the same kernel twice before you believe a few percent.
# - Stages hide loads behind products; what they cost is shared memory.
# - Prune by arithmetic and by the compiler, and time what is left.
# - A sum can be cut along K, to fill a GPU; parts that are added in a fixed order give
#   the same bits at every run.
# - Past rung 7, straight rows and full waves are worth more than the last rungs.
#
# **Next:** [07, inside the compiler](07_inside_the_compiler.ipynb) reads what became of
# such kernels, instruction by instruction. Back to
# [05, tile GEMM](05_tile_gemm.ipynb), or to [00, start here](00_start_here.ipynb).
