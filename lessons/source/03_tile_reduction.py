# %% [markdown]
# # Tile reduction: from a row sum to the online softmax
#
# You will build
#
# - the sum of a row in three kernels: as one tile, tile by tile, and shared by several
#   programs, each for the reason that the one before leaves behind;
# - a reduction by a function of your own, and the rules that a maximum's place obeys;
# - a softmax that overflows, one that does not and reads its row three times, one that
#   reads it twice, by the **online softmax** on which attention stands, and one that
#   keeps its row in registers and reads it once.
#
# **Time:** 60 minutes. **You need:** Python, and [lesson 02](02_roofline.ipynb)'s two
# counts. Kernels run in the interpreter and are compiled for GPUs that need not be
# here; how fast they are was recorded on an H200.
#
# **Out of scope:** layer norm and gradients ([lesson 04](04_normalization.ipynb)); the
# matrix product, which is a reduction too and gets lessons of its own.

# %%
from workbench import (
    Launch,
    Step,
    device,
    explore,
    lens,
    readings,
    ops,
    runtime,
    teach,
    viz,
)
from workbench.bench import from_recording, recording
from workbench.kernels.rows import reduction, rowwise, softmax, softmax_states
from workbench.kernels.tile import reduce

import inspect

import matplotlib.pyplot as plt
import numpy as np
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## The idea: what lanes hold apart has to come together
#
# A **reduction** makes one number of many: a sum, a maximum, the place of a maximum. To
# add up a row of $n$ fp32 numbers takes $n - 1$ FLOPs, and $4n$ bytes have to be read.
#
# **Predict.** What is its intensity, for long rows?

# %%
intensity = teach.predict(
    "Intensity of a sum of fp32 numbers", guess=None, unit="FLOP per byte"
)

# %%
intensity.reveal(0.25, because="one addition for each number of four bytes.")

# %% [markdown]
# So memory decides, as it does for a copy, and a good sum takes as long as reading its
# row. But it is a new kind of kernel. So far every element of an output came from
# elements that one lane had loaded. Here it comes from all of them, and they lie in the
# registers of many lanes:
#
# - what *one* lane holds, it adds up by itself: one instruction an element;
# - what *two lanes of a warp* hold meets by a **shuffle**, an instruction in which
#   every lane reads a register of another one;
# - what *two warps* hold meets in shared memory: one stores, all wait at a **barrier**,
#   the other loads.
#
# Each step down that list costs more than the one above. Add up 1,024 numbers that lie
# eight to a lane, in four warps of 32 lanes. When two partners meet, one number is left
# of two, and all pairs meet at once. **Predict.** How many rounds of *meeting* does it
# take until one lane has the sum?

# %%
rounds = teach.predict(
    "Rounds of meeting: 128 lanes, one sum", guess=None, unit="rounds"
)

# %%
rounds.reveal(7, because="128 lanes are 2⁷: five rounds in a warp, two between warps.")

# %% [markdown]
# ## The reference
#
# In one line each, of torch: the sum, and the function that this lesson ends with.

# %%
here = device.current()
x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], device=here.torch_device)
print(x.sum(1).tolist())
print(torch.softmax(x, 1)[1].tolist())

# %% [markdown]
# ## Step 1: a row, one tile
#
# A program takes a row, loads all of it as one tile and adds it up: `tl.sum` does what
# was described above. A tile's length is a power of two, so where the row ends earlier,
# lanes load 0, which changes no sum.


# %%
@triton.jit
def row_sum_kernel(x_pointer, output_pointer, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(axis=0)
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_pointer + row * columns + column, mask=column < columns, other=0.0)
    total = tl.sum(x.to(tl.float32), axis=0)
    tl.store(output_pointer + row, total)


def row_sum(x):
    rows, columns = x.shape
    output = torch.empty(rows, dtype=x.dtype, device=x.device)
    return Launch.of(
        row_sum_kernel,
        (rows,),
        x,
        output,
        columns,
        outputs=output,
        COLUMNS=triton.next_power_of_2(columns),
    )


whole = row_sum(torch.ones(3, 1000, device=here.torch_device))
print(whole.run()[0].tolist())

# %% [markdown]
# Who met whom? The compiler's layout of the loaded tile says which lane holds what, and
# `lens.reduction.tree` says from that how Triton's compiler reduces it. Step through
# the stages: registers, then lanes, then warps.

# %% tags=["widget"]
(compiled,) = lens.compile(whole, "sm_90")
(tile,) = [found for found in compiled.layouts if found.operation == "tt.load"]
tree = lens.reduction.tree(lens.layout.of(tile.layout, tile.shape, target="sm_90"), 0)
viz.ReductionTreeWidget(tree)

# %%
print("elements a lane:", tree.elements_per_lane)
print("lanes and warps of the row:", tree.lanes_per_row, "and", tree.warps_per_row)
print("barriers:", tree.barriers)
shuffles = sum("SHFL" in each.opcode for each in compiled.instructions)
print("shuffles of a warp, by the tree:", tree.shuffles_per_warp)
print("as many in the compiled code:", shuffles == tree.shuffles_per_warp)

# %% [markdown]
# Five rounds of shuffles, and two more once the four warps' sums lie in shared memory:
# seven, as counted. A barrier comes before all that is loaded from there: the four sums,
# and in the end the result.
#
# Two things are worth a second look. The row is converted to fp32 *before* it is added
# up; why, is the next section. And the row has to fit into registers: 65,536 numbers
# over 128 lanes would be 512 for each, and a lane has at most 255. A program may have
# up to 1,024 lanes, which moves that limit but does not lift it.
#
# ## In which order, and in which format?
#
# Additions of floating-point numbers are rounded, so a sum depends on its order.
# **Predict.** Add up 4,096 ones, one by one, in fp16. What comes out?

# %%
ones = teach.predict("4,096 ones, added one by one in fp16", guess=None)

# %%
row = lens.numerics.named_row("ones", 4096)
ones.reveal(
    int(lens.numerics.summation(row, "fp16", "one by one")),
    because="2,049 lies halfway between two numbers of fp16, and is rounded to 2,048.",
)
print(lens.numerics.summation(row, "fp16", "by lane"), "by lane")
print(lens.numerics.summation(row, "fp32", "one by one"), "in fp32")

# %% [markdown]
# Two remedies, and a good kernel takes both. **Accumulate in fp32**, whatever comes in
# and goes out. And add in an order in which no element goes through many additions:
# lane by lane first, then the lanes as in the tree. With 128 lanes that makes at most
# $n / 128 + 7$ of them, instead of up to $n$. The order was not chosen for its
# accuracy, it is what the machine is good at.
#
# The microscope shows the error in **ULP**, units in the last place: the distance
# between neighbors of the format, at the exact result. Choose `uniform 0 to 1` and then
# `growing`, and compare fp16 with fp32: what becomes of `one by one`?

# %% tags=["widget"]
viz.NumericsWidget(lens.numerics.errors_of_named_row)

# %%
for name in ("uniform 0 to 1", "growing"):
    for dtype in ("fp16", "fp32"):
        errors = lens.numerics.errors_of_named_row(name, dtype)
        one, lane = (errors.curve(dtype, o).ulps[-1] for o in ("one by one", "by lane"))
        print(f"{name:14s} {dtype}: {one:3.0f} ULP one by one, {lane:.0f} by lane")

# %% [markdown]
# A number of fp16 is 1,024 to 2,047 ULP, so that an error of 770 is a large part of the
# sum. In fp32 the same order spoils the last one to three of seven digits, and by lane
# hardly any.
#
# ## Step 2: a row, tile by tile
#
# For rows of any length, go over them in a loop. The obvious loop is
# `total += tl.sum(x)`, and it is not a good one: in each turn lanes and warps meet, for
# one number. Let every lane keep a sum of its own instead, and let them meet once,
# behind the loop. That should save all meetings but the last.


# %%
@triton.jit
def row_sum_tiles_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    row = tl.program_id(axis=0)
    totals = tl.zeros([TILE], tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + row * columns + column, mask=column < columns, other=0.0
        )
        totals += x.to(tl.float32)
    tl.store(output_pointer + row, tl.sum(totals, axis=0))


@triton.jit
def meeting_in_every_tile_kernel(
    x_pointer, output_pointer, columns, TILE: tl.constexpr
):
    row = tl.program_id(axis=0)
    total = 0.0
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + row * columns + column, mask=column < columns, other=0.0
        )
        total += tl.sum(x.to(tl.float32), axis=0)
    tl.store(output_pointer + row, total)


def in_tiles(kernel, x, tile=1024):
    rows, columns = x.shape
    output = torch.empty(rows, dtype=x.dtype, device=x.device)
    return Launch.of(kernel, (rows,), x, output, columns, outputs=output, TILE=tile)


long_rows = torch.ones(2, 20_000, device=here.torch_device)
for kernel in (meeting_in_every_tile_kernel, row_sum_tiles_kernel):
    launch = in_tiles(kernel, long_rows)
    (trace,) = lens.trace(launch)
    meetings = sum(1 for event in trace.events(kind="reduction") if event.program == 0)
    print(f"{kernel.__name__}: {launch.run()[0].tolist()}, reductions a row:", meetings)

# %% [markdown]
# This is the pattern of every sum, maximum or place of one in the workbench: `combine`
# lane by lane as long as there are tiles, go `across` lanes once.
#
# ## Step 3: a row, several programs
#
# An H200 has 132 multiprocessors, and each wants several programs at once, or it waits
# for memory with nothing else to do. A program a row gives it as many as there are
# rows. What if those are few? Here are two matrices of about a gigabyte and of half a
# gigabyte, of 16,384 rows and of 128.
#
# **Predict.** Of the bandwidth that the first sum gets, how much does the second get,
# with a program for each row?

# %%
few_rows = teach.predict(
    "Bandwidth with 128 rows, one program each, of that with 16,384",
    guess=None,
    choices=("nearly all", "about two thirds", "a third or less"),
)

# %%
shipped = recording.shipped("nvidia-h200")
rungs = recording.select(shipped, op="sum", provider="workbench:tiles")
run = recording.select(shipped, run=recording.latest_run(rungs)[0].run)


def rates(op, dtype, rows, cols, dim=-1):
    """GB/s by provider, of one problem in the recording."""
    case = {"rows": rows, "cols": cols, "dim": dim}
    lines = recording.select(run, op=op, dtype=dtype, mode="cuda_graph", case=case)
    return {line.provider.removeprefix("workbench:"): line.gb_per_s for line in lines}


many = rates("sum", "fp32", 16384, 16384)
few = rates("sum", "fp32", 128, 1_000_000)
bands = {1 / 3: "a third or less", 0.8: "about two thirds", 9: "nearly all"}
few_rows.reveal(
    next(band for limit, band in bands.items() if few["tiles"] / many["tiles"] < limit),
    because="128 programs cannot keep 132 multiprocessors busy.",
)

# %% [markdown]
# The remedy is to let several programs share a row. Each leaves the sum of its part,
# and a second kernel adds up the parts; it is the very kernel of step 2, on a matrix
# with a column for each part. A launch may have several steps, which run one after the
# other. (`span` is how many columns a part has: a whole number of tiles.)


# %%
@triton.jit
def row_sum_split_kernel(
    x_pointer, parts_pointer, columns, span, SPLITS: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(axis=0) // SPLITS
    split = tl.program_id(axis=0) % SPLITS
    totals = tl.zeros([TILE], tl.float32)
    for start in range(split * span, min(split * span + span, columns), TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + row * columns + column, mask=column < columns, other=0.0
        )
        totals += x.to(tl.float32)
    tl.store(parts_pointer + row * SPLITS + split, tl.sum(totals, axis=0))


def row_sum_split(x, splits=4, tile=1024):
    rows, columns = x.shape
    span = triton.cdiv(triton.cdiv(columns, splits), tile) * tile
    parts = torch.empty(rows, splits, device=x.device)
    first = Step(
        row_sum_split_kernel,
        (rows * splits,),
        (x, parts, columns, span),
        {"SPLITS": splits, "TILE": tile},
    )
    second = in_tiles(row_sum_tiles_kernel, parts, tile=splits)
    return Launch((first, *second.steps), second.outputs)


split = row_sum_split(long_rows)
print(split.run()[0].tolist())
print("programs of each step:", [step.grid for step in split.steps])

# %%
roof = from_recording(run).bandwidth / 1e9
problems = {
    "16,384 rows of 16,384": many,
    "128 rows of 1,000,000": few,
}
with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 4))
    place = np.arange(len(problems))
    shown = ("torch", "tiles", "split", "workbench")
    for number, name in enumerate(shown):
        bars = axes.barh(
            place + (number - 1.5) * 0.2,
            [each[name] for each in problems.values()],
            0.18,
            label=name,
        )
        axes.bar_label(bars, fmt="{:.0f}", fontsize=9, label_type="center", color="w")
    axes.axvline(roof, color=palette.ink, linestyle="--", label="copy roof")
    axes.set_yticks(place, problems)
    axes.invert_yaxis()
    axes.set_xlabel("GB/s, bytes read")
    axes.set_title(f"Recorded on {run[0].device}, {run[0].when[:10]}", loc="left")
    axes.legend(loc="upper center", fontsize=9, bbox_to_anchor=(0.4, -0.2), ncols=5)
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: bars of the bandwidth of four sums of rows, for many rows and for few: by
# tiles, with a program for each row, it drops far when rows are few, and split when
# they are many.*
#
# `tiles` and `split` are your kernels, with tiles of 4,096; `workbench` is `ops.sum`.
# With 128 rows, the sum by tiles reads
# {{recording device=nvidia-h200 op=sum provider=workbench:tiles dtype=fp32 rows=128 cols=1000000 show=GB/s}},
# and split over 64 programs a row
# {{recording device=nvidia-h200 op=sum provider=workbench:split dtype=fp32 rows=128 cols=1000000 show=GB/s}}.
# With 16,384 rows the split is a loss: a row of 16,384 has four tiles, so that 60 of
# its 64 programs are started for nothing. `ops.sum` splits rows only where they are
# few, and by the number of multiprocessors.
#
# A bar beyond the dashed line is no mistake: that line is a copy's bandwidth, and a
# kernel that only reads can pass it by some percent. (How all of this was timed is said
# under [Measure](#Measure).)
#
# There was another way: let all programs add to one place in memory, by
# `tl.atomic_add`. It saves the second step, but programs then come in any order, and
# the sum may differ in its last digits from run to run. The parts are always added up
# in the same order, so that the result is the same, bit for bit. That is what `ops.sum`
# does; `reduction.launch` takes `atomic=True` for those who want the other.
#
# ## Step 4: the reduction that ships
#
# A sum is only one way to combine two numbers into one. Any function that is
# *associative* will do:
#
# $$f(f(a, b), c) = f(a, f(b, c))$$
#
# Then it does not matter which pairs meet first. (Rounded additions are associative but
# for their rounding; that is what you saw in the microscope.)
#
# For a maximum there are rules to keep, those of `torch.argmax`: of equal elements the
# first one wins, and a NaN wins against every number. So what is combined are pairs
# (value, index), by this function from the package:

# %%
print(inspect.getsource(reduce.first_larger.fn))


# %%
@triton.jit
def argmax_kernel(x_pointer, output_pointer, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(axis=0)
    column = tl.arange(0, COLUMNS)
    x = tl.load(
        x_pointer + row * columns + column, mask=column < columns, other=float("-inf")
    )
    _, index = tl.reduce((x, column), 0, reduce.first_larger)
    tl.store(output_pointer + row, index)


def argmax(x):
    rows, columns = x.shape
    output = torch.empty(rows, dtype=torch.int64, device=x.device)
    return Launch.of(
        argmax_kernel,
        (rows,),
        x,
        output,
        columns,
        outputs=output,
        COLUMNS=triton.next_power_of_2(columns),
    )


nan, inf = float("nan"), float("inf")
hard = torch.tensor([[3, 7, 7], [1, nan, 9], [-inf, -inf, -inf], [nan, 2, nan]])
hard = hard.to(here.torch_device)
print(argmax(hard).run()[0].tolist(), torch.argmax(hard, 1).tolist())

# %% [markdown]
# Lanes beyond the row's end hold $-\infty$ and the highest indices, so that they lose
# even in a row of nothing but $-\infty$.
#
# The shipped kernel takes such a function as an argument, `COMBINE`, with three more:
# `LIFT` makes an element a state (for a norm, its square), `ACROSS` joins a row's
# lanes, and `FINISH` makes the result of the state (for a mean, divides it). `sum`,
# `mean`, `amax`, `argmax`, `norm`, `any` and the others are rows of a table of such
# functions.

# %%
print(inspect.getsource(reduction.reduction_kernel.fn))

# %% [markdown]
# Beyond yours it has:
#
# - **several rows to a program**, `ROWS`, where rows are short, so that every program
#   has a tile worth starting it for;
# - **any strides and dimensions**: `ACCESS` says where an element of row and column
#   lies, so that the same kernel sums over rows, over columns, or over the middle one
#   of three dimensions;
# - **`GROUP`**: for an index, the neighbors that one lane loads at once are compared
#   by value alone first; only the group's place is kept, and looked up in the end;
# - **`WIDE`**: row and column numbers in 64 bits, for tensors of $2^{31}$ elements and
#   more.
#
# ## Step 5: a softmax, and why it overflows
#
# $$y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# Two reductions' worth of work in one formula, and a trap. **Predict.** What is the
# softmax of (100, 100), computed in fp32 as the formula says?

# %%
overflowing = teach.predict(
    "Softmax of (100, 100) by the formula, in fp32",
    guess=None,
    choices=("0.5 and 0.5", "1 and 1", "inf and inf", "nan and nan"),
)

# %%
naive = torch.exp(torch.tensor([100.0, 100.0]))
naive = (naive / naive.sum()).tolist()
overflowing.reveal(
    " and ".join(str(each) for each in naive),
    because="exp(100) is beyond the largest fp32 number, and inf / inf is NaN.",
)

# %% [markdown]
# The remedy is to subtract the row's maximum $m$ first. It cancels in the quotient, and
# the largest exponent becomes 0:
#
# $$y_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}$$
#
# But $m$ is known only once the row has been read, and the sum only once it has been
# read again. So a long row is read three times: for the maximum, for the sum, and to be
# divided.


# %%
@triton.jit
def softmax_three_reads_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    start_of_row = tl.program_id(axis=0) * columns
    maxima = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + start_of_row + column,
            mask=column < columns,
            other=float("-inf"),
        )
        maxima = tl.maximum(maxima, x.to(tl.float32))
    maximum = tl.max(maxima, axis=0)
    totals = tl.zeros([TILE], tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + start_of_row + column,
            mask=column < columns,
            other=float("-inf"),
        )
        totals += tl.exp(x.to(tl.float32) - maximum)
    total = tl.sum(totals, axis=0)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + start_of_row + column,
            mask=column < columns,
            other=float("-inf"),
        )
        weights = tl.exp(x.to(tl.float32) - maximum) / total
        tl.store(output_pointer + start_of_row + column, weights, mask=column < columns)


def softmax_of(kernel, x, **meta):
    rows, columns = x.shape
    output = torch.empty_like(x)
    return Launch.of(kernel, (rows,), x, output, columns, outputs=output, **meta)


hot = torch.full((1, 3000), 100.0, device=here.torch_device)
safe = softmax_of(softmax_three_reads_kernel, hot, TILE=1024)
print(safe.run()[0][0, :2].tolist(), 1 / 3000)

# %% [markdown]
# What lies beyond the row's end is loaded as $-\infty$ here: it raises no maximum, and
# its exponential is 0.
#
# ## Step 6: online
#
# Could maximum and sum be found in *one* reading? While the row comes in, keep the
# maximum $m$ of what was seen, and $s = \sum e^{x_j - m}$ of what was seen. Now a tile
# raises the maximum to $m'$. Then every term of $s$ should have had $m'$ in its
# exponent, and all of them can be put right at once:
#
# $$\sum_j e^{x_j - m'} = \sum_j e^{x_j - m} \cdot e^{m - m'} = s \cdot e^{m - m'}$$
#
# So the state of a row is the pair $(m, s)$, and a tile makes of it
#
# $$m' = \max(m, \max_j x_j), \qquad s' = s \cdot e^{m - m'} + \sum_j e^{x_j - m'}$$
#
# (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018.) No
# exponent here is above 0, and so no term is above 1: nothing overflows. In the package
# this is a tile operator:

# %%
print(inspect.getsource(reduce.online_softmax_update.fn))

# %% [markdown]
# Step through a row, block by block. Watch the total when a block raises the maximum,
# and beside it the naive sum, of $e^{x}$ with nothing subtracted: from which block on
# is it lost? This is the operator above, run by the interpreter.

# %% tags=["widget"]
generator = torch.Generator().manual_seed(3)
scores = 1.5 * torch.randn(48, generator=generator) + torch.linspace(80, 92, 48)


def stepped(block):
    return readings.online_softmax.steps(softmax_states.launch(scores, block))


viz.SoftmaxStepperWidget(stepped, blocks=(8, 4, 16))

# %%
steps = stepped(8)
for number, state in enumerate(steps.states):
    print(
        f"block {number}: the total is multiplied by {state.rescale:.1g}, "
        f"the naive sum is {'inf' if state.naive_overflows else 'finite'}"
    )

# %% [markdown]
# `finite_shift` in the operator is for rows that begin with $-\infty$, as masked scores
# in attention do: $-\infty - (-\infty)$ would be NaN.
#
# The softmax in two readings, with the operator. It takes tiles of rows × columns; this
# one has a single row, hence the 1 and the `None`.


# %%
@triton.jit
def softmax_two_reads_kernel(x_pointer, output_pointer, columns, TILE: tl.constexpr):
    start_of_row = tl.program_id(axis=0) * columns
    state = reduce.online_softmax_init(1, tl.float32)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + start_of_row + column,
            mask=column < columns,
            other=float("-inf"),
        )
        state, _, _ = reduce.online_softmax_update(state, x.to(tl.float32)[None, :])
    maximum, total = state
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        x = tl.load(
            x_pointer + start_of_row + column,
            mask=column < columns,
            other=float("-inf"),
        )
        weights = tl.exp(x.to(tl.float32) - maximum) / total
        tl.store(output_pointer + start_of_row + column, weights, mask=column < columns)


# %% [markdown]
# Here lanes do meet in every tile, for its maximum and for its sum, against the advice
# of step 2. With thousands of columns to a tile that is little beside the reading; for
# tiles of few columns the package has the same state by lane, which meets once.
#
# And where a row fits into one tile, nothing has to be read again at all: the tile
# stays in registers between the maximum, the sum and the division.


# %%
@triton.jit
def softmax_row_kernel(x_pointer, output_pointer, columns, COLUMNS: tl.constexpr):
    start_of_row = tl.program_id(axis=0) * columns
    column = tl.arange(0, COLUMNS)
    x = tl.load(
        x_pointer + start_of_row + column, mask=column < columns, other=float("-inf")
    )
    weights = tl.exp(x.to(tl.float32) - tl.max(x.to(tl.float32), axis=0))
    tl.store(
        output_pointer + start_of_row + column,
        weights / tl.sum(weights, axis=0),
        mask=column < columns,
    )


# %% [markdown]
# **Predict.** Count bytes: what is read and written for a matrix of 4,096 × 16,384, in
# units of the matrix. How much longer should three readings take than one?

# %%
factor = teach.predict(
    "Bytes of the softmax with three readings, of that with one", guess=None
)

# %%
matrix = torch.randn(2, 16384, generator=generator).to(here.torch_device)
moved = {}
for name, kernel, meta in (
    ("three_reads", softmax_three_reads_kernel, {"TILE": 4096}),
    ("two_reads", softmax_two_reads_kernel, {"TILE": 4096}),
    ("row", softmax_row_kernel, {"COLUMNS": 16384}),
):
    (trace,) = lens.trace(softmax_of(kernel, matrix, **meta))
    moved[name] = trace.traffic().bytes / matrix.nbytes
    print(f"{name:12s} moves {moved[name]:.0f} times the matrix")
factor.reveal(
    int(moved["three_reads"] / moved["row"]),
    because="three readings and one writing, against one and one.",
)

# %%
whole_rows = rates("softmax", "fp32", 4096, 16384)
shown = ("torch", "three_reads", "two_reads", "row", "torch.compile", "workbench")
with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 3.8))
    place = np.arange(len(shown))
    bars = axes.barh(place, [whole_rows[name] for name in shown], 0.6, label="measured")
    axes.bar_label(bars, fmt="{:.0f}", fontsize=9, label_type="center", color="w")
    counted = [2 / moved[name] * roof if name in moved else nan for name in shown]
    axes.scatter(
        counted, place, marker="D", color=palette.ink, zorder=3, label="by its bytes"
    )
    axes.axvline(roof, color=palette.ink, linestyle="--", label="copy roof")
    axes.set_yticks(place, shown)
    axes.invert_yaxis()
    axes.set_xlabel("GB/s: the matrix read once and written once, over the time")
    axes.set_title(f"4096 × 16384 fp32, {run[0].device}", loc="left")
    axes.legend(loc="lower left", bbox_to_anchor=(0.55, 1.0), ncols=3, fontsize=8)
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: bars of the bandwidth of six softmax kernels on 4,096 rows of 16,384, three
# of them with a diamond at what the copy roof and the count of their bytes allow.*

# %%
for name in moved:
    share = whole_rows[name] / (2 / moved[name] * roof)
    print(f"{name:12s} reaches {share:.0%} of what its bytes allow")

# %% [markdown]
# The count of bytes foretells the time, here as in lesson 01. (To pass what it allows
# by a little is no mistake: of a copy's bytes half are read, of `three_reads`' three
# quarters.) The L2 cache, which remembers some tens of megabytes of what was read last,
# could have helped those that read a row again, and hardly does: while one program goes
# over its row, hundreds of others go over theirs, and its beginning is forgotten.
#
# Its *end* need not be. On rows that fit no tile, the shipped kernel reads twice as
# well, but the second time from the end to the beginning. Compare it with `two_reads`
# on rows of 65,536:

# %% tags=["nbval-ignore-output"]
rungs = [
    line
    for cols in (16384, 65536)
    for line in recording.select(
        run,
        op="softmax",
        dtype="fp32",
        mode="cuda_graph",
        case={"rows": 4096, "cols": cols, "dim": -1},
    )
]
Markdown(recording.table(rungs, "markdown", ("problem", "provider", "ms", "GB/s")))

# %%
longer = rates("softmax", "fp32", 4096, 65536)
print(f"over two_reads: {longer['workbench'] / longer['two_reads']:.2f} times the rate")

# %% [markdown]
# ## A state that can be merged
#
# Two states of two parts of a row make the state of both:
#
# $$m = \max(m_1, m_2), \qquad s = s_1 e^{m_1 - m} + s_2 e^{m_2 - m}$$
#
# That is associative, so all that was said of sums holds for the online softmax too:
# lanes, warps and programs can each keep a state and merge them in any order. This is
# how long rows are split over programs, and how attention will split its keys.

# %%
print(inspect.getsource(reduce.online_softmax_merge.fn))

# %%
left, right = scores[:20].double(), scores[20:].double()
states = [(part.max(), (part - part.max()).exp().sum()) for part in (left, right)]
(m1, s1), (m2, s2) = states
m = max(m1, m2)
s = s1 * (m1 - m).exp() + s2 * (m2 - m).exp()
print(torch.allclose(m + s.log(), scores.double().logsumexp(0)))

# %% [markdown]
# ## The softmax that ships
#
# `ops.softmax` is your `softmax_row_kernel` where a row fits into a tile, your
# `softmax_two_reads_kernel` where it does not, and a pair of kernels that leave and
# merge states where rows are few. All three are one template for *row operators*, which
# finds out something of a row and then makes each element anew.

# %%
print(inspect.getsource(rowwise.whole_rows.fn))

# %% [markdown]
# What it adds is what the shipped sum added, several rows to a program, any strides,
# and few rows split, and three things more:
#
# - **`WHOLE`, `FINISH`, `APPLY`** are arguments: for a softmax they make the state of
#   the row, $(m, 1 / s)$ of that, and $e^{x - m} / s$. Layer norm puts a mean and a
#   variance there, in the next lesson, and its gradient two sums;
# - **`of_columns`**, values by column, such as layer norm's weight: `BESIDE` and `LATE`
#   say when they are loaded. A softmax has none;
# - **`EXACT`**: where no tile hangs over, no mask is needed.
#
# A launch says which way was chosen:

# %%
for shape in ((4096, 256), (4096, 4096), (4096, 65536), (128, 1_000_000)):
    empty = torch.empty(shape, dtype=torch.float16, device="meta")
    launch = softmax.launch("softmax", empty, dim=-1, compute_units=132)
    for step in launch.steps:
        meta = step.meta
        tile = f"{meta['ROWS']} x {meta['COLS']}"
        print(f"{shape}: {step.name}, {step.grid[0]} programs, tiles of {tile}")

# %% [markdown]
# ## Check it
#
# Rows shorter than a tile, as long, and longer, with large scores; into outputs filled
# with NaN, and with programs shuffled. And the shipped softmax on a row of $-\infty$.


# %%
def agrees(launch, seed, exact, atol):
    mine = runtime.interpret(launch, poison=True, seed=seed).outputs[0]
    torch.testing.assert_close(mine.to(exact.dtype), exact, rtol=1e-5, atol=atol)


for seed, (rows, columns) in enumerate([(1, 1), (2, 17), (3, 1024), (2, 3001)]):
    generator = torch.Generator().manual_seed(seed)
    a = 300 * torch.randn(rows, columns, generator=generator)
    there, width = a.to(here.torch_device), triton.next_power_of_2(columns)
    total, weights = a.double().sum(1), torch.softmax(a.double(), 1)
    for launch in (row_sum(a), in_tiles(row_sum_tiles_kernel, a), row_sum_split(a)):
        agrees(launch, seed, total, atol=1e-3)
    agrees(argmax(a), seed, a.argmax(1), atol=0)
    for kernel in (softmax_three_reads_kernel, softmax_two_reads_kernel):
        agrees(softmax_of(kernel, a, TILE=1024), seed, weights, atol=1e-7)
    agrees(softmax_of(softmax_row_kernel, a, COLUMNS=width), seed, weights, atol=1e-7)
    shipped = (ops.sum(there, 1), ops.argmax(there, 1), ops.softmax(there, 1))
    torch.testing.assert_close(shipped[0].cpu().double(), total, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(shipped[1].cpu(), a.argmax(1))
    torch.testing.assert_close(shipped[2].cpu().double(), weights, rtol=1e-5, atol=1e-7)
    print(f"{rows} x {columns:4d}: your seven and the shipped ones agree with torch")
masked = torch.full((1, 4), -inf, device=here.torch_device)
print(ops.softmax(masked, 1).tolist(), torch.softmax(masked, 1).tolist())

# %% [markdown]
# What this does *not* prove: that yours take rows of $-\infty$ (the shipped one gives
# NaN there, as torch does, and that is tested), other strides or $2^{31}$ elements.
#
# ## Look inside
#
# Select the line of `tl.max`: its tile's layout, and the shuffles, shared memory and
# barriers that it became, for an H200 (`sm_90`) and an MI300 (`gfx942`). On the latter
# a warp has 64 lanes, and a shuffle has `dpp` in its name.

# %% tags=["widget"]
explore.source.source_lens(
    softmax_of(softmax_row_kernel, matrix[:, :1024].contiguous(), COLUMNS=1024)
)

# %% [markdown]
# ## Measure
#
# The shipped softmax against torch and torch.compile, in fp16, on rows from 256 to a
# million, and along columns.
#
# All row operators of this lesson and the next were timed in a **CUDA graph**, in the
# recording's words in mode `cuda_graph`: many calls in a row that are recorded once and
# started together. There are two reasons. In mode `events`, where each call is timed by
# itself, its time includes the start and the end of a kernel that runs alone: some
# microseconds for every candidate, as in lesson 00, of the few tens that many of these
# take. And where the CPU takes long to start a call, the GPU waits for it between the
# two events, and the time is no longer the kernel's. What a call costs the CPU has a
# column of its own, the last one, in microseconds: with small problems that is what you
# wait for.
#
# There is a price. In a graph, what fits the L2 cache is still there when the next call
# begins. So the GB/s of 4,096 rows of 256 or of 1,024 are not the memory's. Of a matrix
# that is larger than the cache, one call leaves next to nothing for the next.
#
# On a GPU of your own, what `python -m workbench roofline` measures live is timed by
# events, row operators too, so that the same kernel comes out slower there by those
# microseconds.

# %% tags=["nbval-ignore-output"]
against = recording.select(run, op="softmax", dtype="fp16", mode="cuda_graph")
columns = ("problem", "provider", "ms", "GB/s", "launch us")
Markdown(recording.table(against, "markdown", columns))

# %%
for problem in dict.fromkeys(line.problem for line in against):
    by = {line.provider: line.median_ms for line in against if line.problem == problem}
    rival = min(("torch", "torch.compile"), key=by.get)
    ahead = by[rival] / by["workbench"]
    print(f"{problem:18s} workbench is {ahead:.2f} times as fast as {rival}")

# %% [markdown]
# On 16,384 rows of 4,096 the shipped softmax moves
# {{recording device=nvidia-h200 op=softmax provider=workbench dtype=fp16 rows=16384 cols=4096 show=GB/s}},
# torch's own
# {{recording device=nvidia-h200 op=softmax provider=torch dtype=fp16 rows=16384 cols=4096 show=GB/s}}.
# The gap that remains to the copy roof is made of what a copy need not do: every
# program waits for its whole row before it can store the first element, so loads and
# stores overlap only between programs. (That is reasoned, not measured.)
#
# ## Your turn
#
# A check passes if the result is torch's, but for rounding, on all of its shapes, and
# if no more bytes are loaded and stored than the text says. As in lesson 00,
# `teach.exercise("03-1").hint()` asks a question that leads on. You may use the
# package's tile operators, but try without them first.
#
# ### Exercise 03-1: where the smallest is
#
# The index of the smallest element of each row, by `torch.argmin`'s rules: of equal
# elements the first, and a NaN before every number. Each element is loaded once.


# %%
# {{exercise 03-1}}

# %% [markdown]
# {{solution 03-1}}

# %% [markdown]
# ### Exercise 03-2: log-sum-exp in one pass
#
# $\log \sum_j e^{x_j}$ of each row, tile by tile and online: every element is loaded
# once. Rows may hold $-\infty$; one of nothing else has the result $-\infty$.


# %%
# {{exercise 03-2}}

# %% [markdown]
# {{solution 03-2}}

# %% [markdown]
# ### Exercise 03-3: join the splits
#
# Every row was split over several programs, and each has left the state of its part:
# `maxima` and `totals`, both rows × splits. A part without elements has left
# $(-\infty, 0)$. Make the log-sum-exp of each row. Each state is loaded once.


# %%
# {{exercise 03-3}}

# %% [markdown]
# {{solution 03-3}}

# %% [markdown]
# ## Takeaways
#
# - A reduction is memory-bound: it should take as long as reading its input once.
# - Combine what a lane holds first, let lanes meet once, and accumulate in fp32.
# - Too few rows are split over programs, and their parts are added up in a fixed order.
# - Anything associative can be reduced, a pair of value and index as well as the state
#   $(m, s)$ of an online softmax.
# - Subtract the maximum before `exp`; if it rises later, rescale by $e^{m - m'}$.
#
# **Next:** [04, normalization](04_normalization.ipynb) puts other states into the same
# template, and goes backward. Back to [00, start here](00_start_here.ipynb).
