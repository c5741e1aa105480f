# %% [markdown]
# # Tile transfer: copy, ragged copy, transpose
#
# You will build
#
# - a copy that moves its bytes in the fewest pieces there are, ragged ends included;
# - the count that explains why one access pattern is fast and another is not: sectors
#   of memory, seen lane by lane in the compiled kernel;
# - a transpose, from rows to tiles to the kernel that ships, each measured against the
#   bandwidth roof.
#
# **Time:** 50 minutes. **You need:** Python. Kernels run in the interpreter and are
# compiled for GPUs that need not be here; how fast they are was recorded on an H200.
#
# **Out of scope:** what happens inside shared memory while a tile is turned ([lesson
# 07](07_inside_the_compiler.ipynb)), and arithmetic: nothing here computes anything.

# %%
from workbench import Launch, Work, device, explore, lens, ops, runtime, teach, viz
from workbench.bench import from_recording, recording
from workbench.teach.rungs import ladder
from workbench.kernels.movement import transfer

import inspect

import matplotlib.pyplot as plt
import numpy as np
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## The idea: memory answers in sectors
#
# A copy of $n$ bytes reads $n$ and writes $n$, and computes nothing. So its roof is the
# bandwidth of memory, and the only question is what else travels along.
#
# Something may, because memory is not fetched by the byte. The 32 **lanes** of a
# **warp** run an instruction together, and its 32 addresses leave as one **request**.
# What comes back are whole **sectors**: runs of 32 bytes that begin at a multiple of
# 32. Whatever part of a sector nobody asked for has travelled for nothing:
#
# $$\text{efficiency} = \frac{\text{bytes asked for}}{32 \cdot \text{sectors touched}}$$
#
# Filling sectors by letting neighboring lanes read neighboring elements is called
# **coalescing**.
#
# **Predict.** Each lane of a warp loads one fp32 number, and neighbors load neighbors,
# from the start of a sector on. How many sectors does the request touch?

# %%
neighbors = teach.predict(
    "Sectors of a request for 32 neighboring fp32 numbers", guess=None, unit="sectors"
)

# %%
neighbors.reveal(4, because="32 lanes × 4 bytes = 128 bytes, which fill 4 sectors.")

# %% [markdown]
# Now every lane loads the eighth number after its neighbor's: the same 128 bytes asked
# for, but 32 bytes apart.

# %%
every_eighth = teach.predict(
    "Sectors of a request for every eighth fp32 number", guess=None, unit="sectors"
)

# %%
every_eighth.reveal(
    32,
    because="8 × 4 bytes = 32 bytes from lane to lane: each has a sector of its own.",
)

# %% [markdown]
# One byte in eight is used. Hold on to that number: we shall see it measured.
#
# ## The reference
#
# Both in one line of torch: a copy, and a transpose that is really carried out (`x.t()`
# alone moves nothing; it only swaps the strides).

# %%
here = device.current()
x = torch.arange(6, dtype=torch.float32, device=here.torch_device).reshape(2, 3)
print(x.clone().tolist())
print(x.t().contiguous().tolist())

# %% [markdown]
# ## Step 1: a copy
#
# Lesson 00's addition without the addition.


# %%
@triton.jit
def copy_kernel(x_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    tile = tl.load(x_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, tile, mask=valid)


def copy(x, block_size=1024):
    output = torch.empty_like(x)
    length = x.numel()
    return Launch.of(
        copy_kernel,
        (triton.cdiv(length, block_size),),
        x,
        output,
        length,
        outputs=output,
        work=Work(flops=0, bytes=2 * x.nbytes),
        BLOCK_SIZE=block_size,
    )


launch = copy(torch.arange(4096, dtype=torch.float32, device=here.torch_device))
(copied,) = launch.run()
print(copied.tolist() == list(range(4096)))

# %% [markdown]
# Nothing in the kernel says which lane loads what: it says `tl.load` of 1,024 elements,
# and Triton's compiler deals them out to lanes and registers. That map is the tile's
# **layout**. To count sectors takes both, what the kernel touches and who touches it:
#
# - the **trace**, from a run in the interpreter, has the offsets of every load;
# - the **compiled kernel**, here for the H200 (`sm_90`), has the layout, and how many
#   bits a lane moves at once;
# - `lens.memory.coalescing` brings the two together.

# %%
(trace,) = lens.trace(launch)
load = next(trace.events(kind="load"))
print("program", load.program, "loads elements", load.offsets[:4], "and so on")

# %%
(compiled,) = lens.compile(launch, "sm_90")
(tile,) = [found for found in compiled.layouts if found.operation == "tt.load"]
layout = lens.layout.of(tile.layout, tile.shape, target="sm_90")
bits = compiled.widest("global load")
coalescing = lens.memory.coalescing(load, layout, target="sm_90", bits=bits)
print(coalescing)

# %%
viz.Picture(
    viz.figure_png(viz.coalescing_strip(coalescing)),
    viz.describe_coalescing_strip(coalescing),
)

# %% [markdown]
# *Figure: one request of the copy: 32 lanes, each with 16 bytes, and the 16 sectors
# below them, filled without a gap.*
#
# Better than you predicted: a lane loads not one number but four neighbors at once, 128
# bits, so that one request brings 512 bytes. The efficiency is the same, the number of
# requests a quarter.
#
# From here on, `sectors.by_access` takes these steps for every load and store of a
# launch, over all its programs; *used* is the efficiency.

# %%
for access in teach.sectors.by_access(launch):
    print(access)

# %% [markdown]
# ## Step 2: a ragged copy
#
# Now four elements more: 4,100, no multiple of the block. The mask keeps the kernel
# right. What else does it do? The numbers fill 513 sectors.

# %%
ragged_sectors = teach.predict(
    "Sectors that the load touches, for 4,100 fp32 numbers", guess=None, unit="sectors"
)

# %%
ragged = copy(torch.zeros(4100, device=here.torch_device))
ragged_load, ragged_store = teach.sectors.by_access(ragged)
ragged_sectors.reveal(
    ragged_load.totals.sectors,
    because=f"a lane moves {ragged_load.totals.bits} bits at once, no longer 128.",
)
for access in (ragged_load, ragged_store):
    print(access)

# %% [markdown]
# Four times as many, for 0.1 % more data. What happened?
#
# A lane can move four elements in one instruction only if the mask is surely true for
# all four or false for all four. `offsets < 4096` changes at a multiple of 16, and the
# compiler knows it, since Triton tells it which arguments are multiples of 16. 4,100 is
# none. So it splits each access into four, one element a lane. The lanes still stand
# four elements apart, so each of the four requests touches all 16 sectors and uses a
# quarter of each. (On average it is 15.5: of the last four elements, each is a request
# of its own, to one sector.)

# %%
(trace,) = lens.trace(ragged)
(compiled,) = lens.compile(ragged, "sm_90")
load = next(trace.events(kind="load"))
coalescing = lens.memory.coalescing(load, layout, target="sm_90", bits=32)
viz.Picture(
    viz.figure_png(viz.coalescing_strip(coalescing)),
    viz.describe_coalescing_strip(coalescing),
)

# %% [markdown]
# *Figure: a request of the ragged copy: 32 lanes, each with 4 bytes, over 16 sectors of
# which a quarter is used.*
#
# How bad is that? The count cannot say. The other three requests of the warp come right
# after, and should find the sector in the **L1 cache**, a small memory close to the
# lanes: then memory itself is asked once. What is certain is that four times the
# requests are made. `shifted`, which is measured below, is split in the same way.
#
# ## Step 3: the copy that ships
#
# The remedy is cheap: only the *last* tile needs a mask. It should gain what was lost,
# three requests out of four. This is the package's kernel for contiguous tensors.

# %%
print(inspect.getsource(transfer.copy_kernel.fn))

# %%
a = torch.zeros(4100, device=here.torch_device)
for access in teach.sectors.by_access(transfer.launch(a, torch.empty_like(a))):
    print(access)

# %% [markdown]
# Your copy, with three things added:
#
# - **a branch on the tile**: whole tiles are moved without a mask, 128 bits a lane (the
#   first two rows above); the last, partly filled one takes the masked path (the other
#   two);
# - **words**: its invoker passes tensors as integers of the elements' width, so that
#   one kernel copies all dtypes, bit for bit;
# - **tile operators** and `WIDE`, as in lesson 00.
#
# ## Why a strided copy loses
#
# What if elements do not follow one another? Here are five ways in which a copy can
# find its elements, from `workbench/teach/rungs/ladder.py`: neighbors; one element beside a
# sector's start; every second; every eighth; anywhere.

# %%
print(inspect.getsource(ladder.pattern_kernel.fn))


def copy_of(pattern, length):
    values = torch.zeros(length, device=here.torch_device)
    source = ladder.spread(values, pattern)
    return ladder.copy_by(pattern, source, torch.empty_like(values))


for pattern in ladder.PATTERNS:
    load, _ = teach.sectors.by_access(copy_of(pattern, 2**14))
    print(f"{pattern}\n  {load}")

# %% [markdown]
# By this count, `shifted` is four times as bad as `contiguous`, and `every_eighth` no
# worse than `every_second`. Is that what you would expect of the clock? On the H200,
# for $2^{27}$ numbers:

# %%
slowdown = teach.predict(
    "Time of a copy from every eighth element, against a contiguous one",
    guess=None,
    choices=("about the same", "twice to three times", "four times or more"),
)

# %%
run = recording.latest_run(recording.shipped("nvidia-h200"), op="permute_copy")
copies = recording.select(
    run, op="clone", dtype="fp32", mode="events", case={"shape": [2**27]}
)
measured = {line.provider.removeprefix("workbench:"): line.gb_per_s for line in copies}
ratio = measured["contiguous"] / measured["every_eighth"]
bands = {
    1.5: "about the same",
    3.5: "twice to three times",
    99: "four times or more",
}
slowdown.reveal(
    next(band for limit, band in bands.items() if ratio < limit),
    because="for each number that it stores, it fetches a whole sector.",
)

# %% [markdown]
# A request is not yet traffic. The four requests of one warp that share their sectors
# cost memory one fetch, as we saw. So count what memory must deliver: the sectors that
# a *program* touches, each once. A program stores 1,024 numbers, in 128 sectors; if it
# loads from $s$ sectors, it should reach
#
# $$\frac{128 + 128}{s + 128}$$
#
# of the bandwidth of a contiguous copy.


# %%
def fetched(launch):
    """The sectors that the load of one program touches, each counted once."""
    (trace,) = lens.trace(launch, programs=1)
    load = next(trace.events(kind="load"))
    return len(np.unique(load.offsets[load.mask] * load.site.itemsize // 32))


predicted = {}
for pattern in ladder.PATTERNS:
    s = fetched(copy_of(pattern, 2**20))
    predicted[pattern] = (128 + 128) / (s + 128)
    print(
        f"{pattern:12s} {s:5d} sectors: {predicted[pattern]:.1%} of a copy's bandwidth"
    )

# %%
names = list(predicted)
reached = [measured[name] / measured["contiguous"] for name in names]
for name, share in zip(names, reached, strict=True):
    is_close = abs(share - predicted[name]) < 0.05
    print(f"{name:12s} measured within 0.05 of the count: {is_close}")
with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 4))
    place = np.arange(len(names))
    bars = [
        axes.bar(place - 0.2, list(predicted.values()), 0.38, label="predicted"),
        axes.bar(place + 0.2, reached, 0.38, label="measured, H200"),
    ]
    for each in bars:
        axes.bar_label(each, fmt="{:.2f}", fontsize=9)
    axes.set_xticks(place, names)
    axes.set_ylabel("bandwidth, of the contiguous copy's")
    axes.set_title(f"Recorded on {run[0].device}, {run[0].when[:10]}", loc="left")
    axes.legend()
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: bars of the bandwidth that five access patterns should reach by their
# sectors, beside what was measured on the H200; they agree but for the scattered one,
# which gets far less than was counted.*
#
# Four of the five come out about as counted. `shifted` costs nothing that can be seen,
# since four requests of a warp share what they fetch. With every second element, each
# number costs 8 + 4 bytes instead of 4 + 4. From every eighth element the H200 copies
# {{recording device=nvidia-h200 op=clone provider=workbench:every_eighth dtype=fp32 problem=2^27 show=GB/s}}
# instead of
# {{recording device=nvidia-h200 op=clone provider=workbench:contiguous dtype=fp32 problem=2^27 show=GB/s}}.
#
# The fifth is a warning. `scattered` touches as many sectors as `every_eighth` and gets
# {{recording device=nvidia-h200 op=clone provider=workbench:scattered dtype=fp32 problem=2^27 show=GB/s}}.
# Sectors are not all there is. *Why* is reasoned here and not measured: memory may
# deliver two sectors where one is asked for; it has rows of its own, and opening
# another one takes time; and addresses are translated page by page. All three like
# neighbors, at a scale that this count does not see. Two measurements would tell which
# of them it is: the GPU's own counters of the bytes that memory delivered, and the time
# of a scatter within pieces of 64 bytes, of a kilobyte, of a megabyte and so on, which
# has to jump where the cause sets in. Neither has been made. The count is a bound, and
# a good one when an access walks through memory in order.
#
# ## Step 4: a transpose, row by row
#
# A transpose has no good pattern to choose: what is a row on one side is a column on
# the other. The obvious kernel gives each program a piece of a row to load, and stores
# it down a column.


# %%
@triton.jit
def transpose_rows_kernel(
    x_pointer, output_pointer, rows, columns, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(axis=0)
    column = tl.program_id(axis=1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = column < columns
    piece = tl.load(x_pointer + row * columns + column, mask=valid)
    tl.store(output_pointer + column * rows + row, piece, mask=valid)


def transpose_rows(x, block_size=256):
    rows, columns = x.shape
    output = torch.empty(columns, rows, dtype=x.dtype, device=x.device)
    return Launch.of(
        transpose_rows_kernel,
        (rows, triton.cdiv(columns, block_size)),
        x,
        output,
        rows,
        columns,
        outputs=output,
        work=Work(flops=0, bytes=2 * x.nbytes),
        BLOCK_SIZE=block_size,
    )


print(transpose_rows(x).run()[0].tolist())

# %% [markdown]
# Take a matrix of 256 × 256 fp32 numbers. What does one request of the *store* touch?

# %%
column_store = teach.predict(
    "Sectors of a request that stores down a column", guess=None, unit="sectors"
)

# %%
matrix = torch.zeros(256, 256, device=here.torch_device)
load, store = teach.sectors.by_access(transpose_rows(matrix))
column_store.reveal(
    round(store.totals.sectors_per_request),
    because="neighbors in a column are a whole row apart: a sector for each lane.",
)
print(load)
print(store)

# %% [markdown]
# The loads are perfect, and the stores touch eight times the sectors of the loads. A
# cache could gather them, since other programs write the rest of the same sectors soon
# after. Whether that helps is measured below.
#
# ## Step 5: a transpose, tile by tile
#
# The way out: let a program take a *tile*, with runs along both dimensions. It loads
# the rows of the tile, turns it, and stores the rows of the turned tile. `tl.trans` is
# all it takes in Triton.


# %%
@triton.jit
def transpose_tile_kernel(x_pointer, output_pointer, rows, columns, TILE: tl.constexpr):
    row = tl.program_id(axis=0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(axis=1) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x_pointer + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(
        output_pointer + column[:, None] * rows + row[None, :],
        tl.trans(tile),
        mask=tl.trans(inside),
    )


def transpose_tiles(x, tile=64):
    rows, columns = x.shape
    output = torch.empty(columns, rows, dtype=x.dtype, device=x.device)
    return Launch.of(
        transpose_tile_kernel,
        (triton.cdiv(rows, tile), triton.cdiv(columns, tile)),
        x,
        output,
        rows,
        columns,
        outputs=output,
        work=Work(flops=0, bytes=2 * x.nbytes),
        TILE=tile,
    )


print(transpose_tiles(x).run()[0].tolist())
tiled = transpose_tiles(matrix)
for access in teach.sectors.by_access(tiled):
    print(access)

# %% [markdown]
# Every sector is touched once, by one request, and used whole, on both sides. Both
# cannot hold in one layout: lanes that hold neighbors of a row do not hold neighbors of
# a column. So between the load and the store the lanes exchange what they hold, through
# the **shared memory** of the *multiprocessor* that runs the program, one of the many
# parts of a GPU that compute: it is small, and far nearer than the GPU's memory.

# %%
(compiled,) = lens.compile(tiled, "sm_90")
print("stores to shared memory:", compiled.count("shared store") > 0)
print("loads from shared memory:", compiled.count("shared load") > 0)
print("a whole tile of it:", compiled.shared_bytes >= 64 * 64 * 4)

# %% [markdown]
# ## Step 6: the transpose that ships
#
# `ops.permute_copy` moves any tensor from any strides to any strides; a transpose is
# the case of two dimensions. This is its kernel.

# %%
print(inspect.getsource(transfer.permute_kernel.fn))

# %% [markdown]
# It is the tile kernel, with four things added:
#
# - **any rank**: `sizes` and strides are tuples; `TILE` has a length for each
#   dimension, and `tile_nd` finds a program's tile. Dimensions that follow one another
#   in both tensors are merged by the invoker first;
# - **the order of each side**: `SOURCE_AXES` and `DESTINATION_AXES` say in which order
#   the tile's axes lie in either memory. The load gets the one order, the store the
#   other, and `permute` stands where `tl.trans` stood;
# - **what divides what**: `multiples_of` lets the compiler see that rows begin at
#   multiples of, say, 4 elements, where Triton itself looks for multiples of 16 only.
#   It is the lesson of the ragged copy, for strides;
# - **the tile's size by dtype**: runs of 256 bytes on both sides. That is 64 × 64 in
#   fp32, as yours, and 128 × 128 in fp16. Below you see what that gains.

# %%
half = torch.zeros(196, 256, dtype=torch.float16, device=here.torch_device)
shipped = transfer.launch(half.t(), half.new_empty(256, 196))
print("a tile of the shipped kernel:", shipped.steps[0].meta["TILE"])
for name, launch in (("your tiles", transpose_tiles(half)), ("shipped", shipped)):
    print(name)
    for access in teach.sectors.by_access(launch):
        print(f"  {access}")

# %% [markdown]
# Rows of 196 halves, 14 × 14 pixels, as images have them. Your tiles store one element
# at a time; the shipped kernel still moves several, and touches fewer sectors.
#
# ## Check it
#
# One element, around a tile, more than one tile, rows and columns; into outputs filled
# with NaN, and with the programs shuffled.

# %%
for seed, (rows, columns) in enumerate([(1, 1), (1, 70), (63, 65), (64, 64), (100, 3)]):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, columns, generator=generator)
    for make in (transpose_rows, transpose_tiles):
        mine = runtime.interpret(make(a), poison=True, seed=seed)
        torch.testing.assert_close(mine.outputs[0], a.t().contiguous(), rtol=0, atol=0)
    result = ops.permute_copy(a.to(here.torch_device), (1, 0))
    torch.testing.assert_close(result.cpu(), a.t().contiguous(), rtol=0, atol=0)
    print(
        f"{rows:3d} x {columns:2d}: rows, tiles and ops.permute_copy agree with torch"
    )

# %% [markdown]
# What this does *not* prove: that your two are right for other strides
# (`ops.permute_copy` is), or beyond $2^{31}$ elements; and, of course, that they are
# fast.
#
# ## Turn the knobs
#
# Step through the programs of the tiled transpose, on a ragged matrix: blue is loaded,
# orange is stored, hatched is masked off. Then put `transpose_rows(ragged_matrix, 16)`
# in its place.

# %% tags=["widget"]
ragged_matrix = torch.zeros(24, 40, device=here.torch_device)
(stepped,) = lens.trace(transpose_tiles(ragged_matrix, tile=16))
viz.TraceMapWidget(stepped)

# %% [markdown]
# ## Look inside
#
# Select the line of the load, then that of the store: what it touches, the layout of
# its tile, and the instructions that it became, for an H200 (`sm_90`) and an MI300
# (`gfx942`), which AMD's compiler is asked for here, and no machine has run.

# %% tags=["widget"]
explore.source.source_lens(tiled)

# %% [markdown]
# ## Measure
#
# A transpose of 8192 × 8192 on the H200, each rung beside torch: `workbench:rows` and
# `workbench:tiles` are the two kernels above, word for word, with pieces of 1,024 and
# tiles of 64; `workbench` is what ships.

# %% tags=["nbval-ignore-output"]
rungs = recording.select(
    run, op="permute_copy", mode="events", case={"shape": [8192, 8192]}
)
Markdown(recording.table(rungs, "markdown", ("dtype", "provider", "ms", "GB/s")))

# %%
roof = from_recording(run).bandwidth / 1e9
order = ("workbench:rows", "torch", "torch.compile", "workbench:tiles", "workbench")
with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 4))
    for row, dtype in enumerate(("fp32", "fp16")):
        rates = {line.provider: line.gb_per_s for line in rungs if line.dtype == dtype}
        place = np.arange(len(order)) + (0.2 if row else -0.2)
        drawn = axes.barh(place, [rates[name] for name in order], 0.38, label=dtype)
        axes.bar_label(drawn, fmt="{:.0f}", fontsize=9, label_type="center", color="w")
    axes.axvline(roof, color=palette.ink, linestyle="--", label="the roof, a copy")
    axes.set_yticks(np.arange(len(order)), order)
    axes.set_xlabel("GB/s, bytes read and bytes written")
    axes.set_title(f"Recorded on {run[0].device}, {run[0].when[:10]}", loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(0.95, 0.05))
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: bars of the bandwidth of five transposes in two formats against the roof: by
# rows and by torch far from it, the tiled ones and torch.compile's close to it.*

# %%
for dtype in ("fp16", "fp32"):
    (line,) = recording.select(rungs, dtype=dtype, provider="workbench")
    print(f"{dtype}: at least 0.85 of the roof: {line.gb_per_s >= 0.85 * roof}")
    (rows,) = recording.select(rungs, dtype=dtype, provider="workbench:rows")
    ratio = recording.ratio([line, rows], "workbench", "workbench:rows")
    print(f"      at least 5 times as fast as by rows: {ratio >= 5}")

# %% [markdown]
# By rows, fp16 takes
# {{recording device=nvidia-h200 op=permute_copy provider=workbench:rows dtype=fp16 shape=[8192,8192] show=ms}},
# and fp32, with twice the bytes,
# {{recording device=nvidia-h200 op=permute_copy provider=workbench:rows dtype=fp32 shape=[8192,8192] show=ms}}.
# What the two have in common is the number of sectors that their stores touch: one for
# each element. The time follows those, and no longer the bytes. The L2 cache may well
# gather the pieces of a sector before they go to memory, since programs of neighboring
# rows run at the same time, but it has to take them in one by one. By tiles, the same
# transposes take
# {{recording device=nvidia-h200 op=permute_copy provider=workbench:tiles dtype=fp16 shape=[8192,8192] show=ms}}
# and
# {{recording device=nvidia-h200 op=permute_copy provider=workbench:tiles dtype=fp32 shape=[8192,8192] show=ms}}:
# nearly in proportion to their bytes.
#
# From your tiles to the shipped kernel there is little left where sizes are as round as
# here: larger tiles in fp16, in fp32 nothing. What it adds is that it does not mind
# other sizes, strides and ranks. What remains up to the roof is, we think, two things.
# Starting and ending a kernel takes some microseconds (lesson 00), which the far larger
# copy that the roof stands for hardly notices. And the exchange has its price: the
# first row of a turned tile can be stored only when all its rows are there. (That, too,
# is reasoned; nothing here measured it.)
#
# ## Your turn
#
# ### Exercise 01-1: sectors of a request
#
# Write `sectors(first, stride, itemsize)`: how many sectors do 32 lanes touch, if lane
# $l$ reads element $l \cdot \text{stride}$ of a tensor whose elements have `itemsize`
# bytes? The tensor begins at byte `first`, a multiple of `itemsize`.


# %%
# {{exercise 01-1}}

# %% [markdown]
# {{solution 01-1}}

# %% [markdown]
# ### Exercise 01-2: copy any matrix
#
# A contiguous copy of an fp32 matrix of *any* strides: a transposed view, a window of a
# larger one, every second column. Each element is loaded once.


# %%
# {{exercise 01-2}}

# %% [markdown]
# {{solution 01-2}}

# %% [markdown]
# ### Exercise 01-3: a quarter turn
#
# Turn a picture counterclockwise: the last column of `x` becomes the first row of the
# output (`torch.rot90`). There is a budget, of **sectors**, counted as above: where
# both sides are multiples of 16, loads and stores together may touch each sector of the
# two matrices once, 512 for 64 × 32 numbers of fp32; on ragged ones, where rows do not
# begin with sectors, twice as many as the matrices fill.


# %%
# {{exercise 01-3}}

# %% [markdown]
# {{solution 01-3}}

# %% [markdown]
# ## Takeaways
#
# - Memory answers in sectors of 32 bytes. Count those that a program fetches: they bound
#   the bandwidth; and those that its requests touch: they keep the caches busy.
# - The compiler deals elements to lanes. What it may move at once depends on what it
#   can prove: divisible lengths and strides, masks that end where accesses do.
# - A pattern that is bad on one side is turned in a tile, where both sides have runs.
# - A count is a bound, not a clock: `scattered` is slower than its sectors.
#
# **Next:** [02, the roofline](02_roofline.ipynb) puts bytes and FLOPs into one picture,
# and [07, inside the compiler](07_inside_the_compiler.ipynb) looks at layouts and at
# shared memory. Back to [00, start here](00_start_here.ipynb).
