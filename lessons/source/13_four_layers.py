# %% [markdown]
# # Four layers: from a tile operator to a library
#
# You will build
#
# - one small operator at four layers: a tile operator, a template with its invoker, named
#   instances, and the function that others call;
# - a table of its instances: which are refused and why, which are right, what each takes of a
#   GPU; and the same row sum held by a thread, by a warp and by a block;
# - a call that costs little before its kernel starts; and in the end a second operator of your
#   own, profiled by the engine that profiles all others.
#
# **Time:** 60 minutes. **You need:** Python, and [lesson 03](03_tile_reduction.ipynb) for the
# reduction of rows. Kernels run in the interpreter and are compiled for GPUs that need not be
# here. Without a GPU instances are verified, and not timed.
#
# **Out of scope:** gradients, and writing an operator into the package; CONTRIBUTING.md has
# the steps.

# %%
from workbench import Launch, Work, device, explore, lens, ops, profiler
from workbench import runtime, suites, teach, tune, viz
from workbench.bench import recording
from workbench.errors import InvalidArgumentError, NotMeasurableError, WorkbenchError
from workbench.kernels import gemm
from workbench.kernels.rows import reduction
from workbench.teach.rungs import reduction_levels
from workbench.operators import Accuracy, OperatorSpec, given, instances_of
from workbench.operators import register
from workbench.kernels.tile import levels, reduce
from workbench.ops.profiled import profiled
from workbench.operators.judging import judge_of
from workbench.runtime.replay import Replay, start
from workbench.runtime.warm import source_of

import contextlib
import inspect
import re
import timeit
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl
from IPython.display import Markdown

here = device.current()
generator = torch.Generator().manual_seed(13)


def normals(*shape):
    return torch.randn(shape, generator=generator).half().to(here.torch_device)


# %% [markdown]
# ## The idea: four kinds of people
#
# Who writes kernels is not who calls them. AMD's Composable Kernel (CK) has four layers, one
# for each kind of people, and so has the package that you have used all along:
#
# | layer | who works there | where | what it must know |
# | --- | --- | --- | --- |
# | 1, tile operators | who writes tiles | `kernels/tile/` | lanes, registers, one tile |
# | 2, templated kernels and their invokers | who templates kernels | `kernels/rows/` and the other families | grids, strides, tiles that hang over |
# | 3, instances | who chooses for a device | `kernels/instances/` | what was measured |
# | 4, client API | who only calls | `ops/` | what torch's function would do |
#
# A layer imports none but those above it in this table, and instances skip one: they import
# templates, and no tile operators. So whoever writes a better tile operator improves everything
# else without a word, and whoever calls `ops.sum` need not know that tiles exist.
#
# **Predict.** A kernel asks `program_id` which program it is, and so depends on a grid. In how
# many of the four layers is there such a function?

# %%
with_a_grid = teach.predict("Layers with a grid in them", guess=None)

# %%
package = Path(inspect.getfile(Launch)).parent
families = ("attention", "convolution", "gemm", "movement", "pointwise", "rows")
layers = {
    "kernels/tile": ("kernels/tile",),
    "kernels/<family>": tuple(f"kernels/{family}" for family in families),
    "kernels/instances": ("kernels/instances",),
    "ops": ("ops",),
}
signs = {
    "functions": r"^ *def ",
    "jit functions": r"@(triton|gluon)\.jit",
    "program_id": r"program_id\(",
    "makes a Launch": r"\bLaunch(\.of)?\(",
    "@profiled": r"^@profiled",
}


def has(folders, sign):
    paths = [path for folder in folders for path in (package / folder).rglob("*.py")]
    return any(re.search(sign, path.read_text(), re.MULTILINE) for path in paths)


found = {
    layer: {name for name in signs if has(folders, signs[name])}
    for layer, folders in layers.items()
}
for number, layer in enumerate(layers, start=1):
    names = ", ".join(name for name in signs if name in found[layer])
    print(f"{number} {layer:18s}", names or "tables, and no function")
with_a_grid.reveal(
    sum("program_id" in names for names in found.values()),
    because="a tile operator gets its tile, layer 3 is tables, and layer 4 gets a launch.",
)

# %% [markdown]
# The layers can be read off the files. (They are enforced, too: a test holds every import of
# the package to the table.) One call on its way through, `ops.sum(x, 1)`:

# %%
of_sum = [operator.fn.__name__ for operator in reduction.REDUCTIONS["sum"][:4]]
stops = (
    ("you", "ops.sum(x, 1)"),
    ("4  ops/reduction.py", "checks arguments as torch does"),
    ("3  kernels/instances/rows.py", "which configurations there are"),
    ("2  kernels/rows/reduction/", "chooses tiles and a grid, starts reduction_kernel"),
    ("1  kernels/tile/reduce.py", ", ".join(of_sum)),
)
with viz.figure_style():
    figure, axis = plt.subplots(figsize=(9, 3.4))
    for place, (where, what) in enumerate(stops):
        aside = place == 2
        left, width = (5.4, 4.5) if aside else (0.1, 5.0 if place in (1, 3) else 9.8)
        top = 4 - place
        axis.broken_barh([(left, width)], (top, 0.78), facecolor=f"C{place}", alpha=0.3)
        axis.text(left + 0.1, top + 0.52, where, va="center", fontweight="bold")
        axis.text(left + 0.1, top + 0.22, what, va="center")
    axis.annotate("", (2.6, 1.85), (2.6, 2.95), arrowprops={"arrowstyle": "->"})
    axis.annotate(
        "the profiler, or ops", (6.2, 2.8), (6.2, 3.3), arrowprops={"arrowstyle": "->"}
    )
    axis.set(xlim=(0, 10), ylim=(-0.1, 4.9))
    axis.set_axis_off()
    plt.show()

# %% [markdown]
# *Figure: boxes from the caller above to the tile operators below; a call goes from ops to the
# template, and the instances stand aside, asked by the profiler or by ops.*
#
# For a sum only the profiler asks the instances. `ops.matmul` asks them for each new size which
# tile to take.
#
# ## The reference
#
# The operator of this lesson is the mean square of each row, what an RMS norm divides by the
# root of:
#
# $$y_i = \frac1n \sum_{j=1}^{n} x_{ij}^2$$
#
# For $m \times n$ elements of fp16 that is $2mn$ FLOPs and $2mn + 2m$ bytes: one FLOP a byte,
# so it waits for memory, whatever its layers look like.


# %%
def reference(input):
    return input.square().mean(1)


# %% [markdown]
# ## Layer 1: what is done with a tile
#
# Two tile operators. One loads a tile of rows in fp32. With `EXACT` no tile hangs over, and
# there is no mask. The other is what is done to each element. Neither knows of a grid.


# %%
@triton.jit
def load_rows(x, row, col, rows, cols, row_stride, EXACT: tl.constexpr):
    places = x + row[:, None] * row_stride + col[None, :]
    if EXACT:
        tile = tl.load(places)
    else:
        inside = (row < rows)[:, None] & (col < cols)[None, :]
        tile = tl.load(places, mask=inside, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def squared(tile):
    return tile * tile


# %% [markdown]
# The third one, the sum of a tile's row, is Triton's own `tl.sum`. Who adds what to what? CK
# writes tile operators at three levels: **for the thread, for the warp and for the block**. (Its
# reductions are at those of the thread and of the block, and what it has for the warp are the
# matrix instructions of a GEMM.) Triton's compiler chooses for you. In Gluon, the language below
# Triton, the kernel says in which layout its tile lies, and so the package has the row sum at all
# three levels, as one text:

# %%
print(inspect.getsource(levels.across_add.fn))
source = inspect.getsource(reduction_levels.reduction_level_kernel.fn)
print(source[source.index("    BITS:") :])

# %% [markdown]
# `LEVEL` goes to `layout_of`, and nowhere else. All three tiles have 4,096 elements, for four
# warps of 32 lanes.
#
# **Predict.** A row of 1,024 columns lies over the 32 lanes of one warp. Each lane has added up
# what it holds. In a *shuffle* all lanes swap a number with another lane. How many shuffles does
# it take until one of them has the sum?

# %%
shuffles = teach.predict("Shuffles to join 32 lanes", guess=None, unit="shuffles")

# %%
x = torch.empty(4096, 1024, dtype=torch.float16)
steps = {
    (level, target): lens.compile(reduction_levels.launch(x, level=level), target)[0]
    for level in reduction_levels.LEVELS
    for target in ("sm_90", "gfx942")
}
for (level, target), step in steps.items():
    warps, lanes, registers = lens.layout.loaded(step)[0].spread(1)
    exchange = "many" if level == "block" else f"{step.shuffles}"
    print(
        f"{level:6s} {target:6s} a row lies in {warps} x {lanes:2d} lanes, {registers:2d} "
        f"registers each; shuffles: {exchange}, shared memory: {step.shared_bytes > 0}"
    )
shuffles.reveal(
    steps["warp", "sm_90"].shuffles,
    because="each swap halves the number of parts: log2 of 32. A wave of AMD has 64 lanes.",
)

# %%
tiles = {level: lens.layout.loaded(steps[level, "sm_90"])[0] for level in levels.LEVELS}
notes = {
    level: f"{steps[level, 'sm_90'].shuffles} shuffles, "
    f"{steps[level, 'sm_90'].shared_bytes} bytes of shared memory"
    for level in levels.LEVELS
}
viz.Picture(
    viz.figure_png(viz.row_holders_figure(tiles, notes)),
    viz.describe_row_holders(tiles, notes),
)

# %% [markdown]
# *Figure: the lanes of four warps for each level, with the number of the first row that each
# holds: at the level of the thread every lane has two rows of its own, at that of the warp all
# lanes of a warp have one, and at that of the block the lanes of all warps share all four, of
# which row 0 is shown.*
#
# - **Thread:** no exchange at all. But the neighbor's row begins a row further on.
# - **Warp:** neighboring lanes load neighboring columns, and five shuffles join them.
# - **Block:** as many shuffles for each row, and then the warps exchange their sums through
#   shared memory, behind a barrier. In return a single row has four warps that load it.
#
# So which one is best depends on the row. For a row of 8 columns, 16 bytes in all:

# %%
short = torch.empty(4096, 8, dtype=torch.float16)
for level in ("thread", "warp"):
    (step,) = lens.compile(reduction_levels.launch(short, level=level), "sm_90")
    (layout,) = lens.layout.loaded(step)
    cols = layout.elements[0, :, :, 1]
    useful = int((cols < 8).any(1).sum())
    print(
        f"{level:6s} {useful:2d} of 32 lanes have a column that exists; a load moves "
        f"{step.widest('global load')} bits"
    )

# %% [markdown]
# A thread takes such a row in one load. A warp would have four lanes that work, and five
# shuffles for one row. What that is worth was measured, see [below](#Measure). (Gluon is not
# interpreted: without a GPU these kernels are compiled and looked at. What is compiled for AMD
# was **compiled, not run**.)
#
# ## Layer 2: the template and its invoker
#
# A template has a grid, and leaves open what can be left open: here `LIFT`, what is done to each
# element, and the tile. It adds tiles element by element, and goes across lanes once, at the
# end. There is one contract between the two layers. What a mask leaves out is 0, so **`LIFT` has
# to make 0 of 0**.


# %%
@triton.jit
def row_mean_kernel(
    x,
    output,
    rows,
    cols,
    row_stride,
    LIFT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    EXACT: tl.constexpr,
):
    row = tl.program_id(axis=0) * ROWS + tl.arange(0, ROWS)
    state = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, cols, COLS):
        col = first + tl.arange(0, COLS)
        state += LIFT(load_rows(x, row, col, rows, cols, row_stride, EXACT))
    tl.store(output + row, tl.sum(state, axis=1) / cols, mask=row < rows)


# %% [markdown]
# The invoker says what the template can *not* do, in words, before anything runs. CK calls this
# `IsSupportedArgument`. It knows the strides, fills in what is known of the work, and returns a
# `Launch`, which is plain data.


# %%
def refusal(x, tile, exact):
    """Why there is no such launch, in words; empty where there is one."""
    (rows, cols), (tile_rows, tile_cols) = x.shape, tile
    if x.stride(1) != 1:
        return "columns are no neighbors in memory"
    if rows * x.stride(0) >= 2**31:
        return "offsets take more than 32 bits"
    if tile_rows * tile_cols > 2**15:
        return f"no thread has registers for a tile of {tile_rows} x {tile_cols}"
    if exact and (rows % tile_rows or cols % tile_cols):
        return f"a tile of {tile_rows} x {tile_cols} does not divide {rows} x {cols}"
    return ""


def launch(x, output=None, *, lift=squared, tile=(4, 1024), exact=False, num_warps=4):
    """The mean of lift(x) of each row of a matrix, in the dtype of x; sums are in fp32."""
    if reason := refusal(x, tile, exact):
        raise InvalidArgumentError("x, tile", reason, "Take another instance.")
    (rows, cols), (tile_rows, tile_cols) = x.shape, tile
    if output is None:
        output = torch.empty(rows, dtype=x.dtype, device=x.device)
    return Launch.of(
        row_mean_kernel,
        (triton.cdiv(rows, tile_rows),),
        *(x, output, rows, cols, x.stride(0)),
        outputs=output,
        work=Work(2 * rows * cols, x.nbytes + output.nbytes),
        LIFT=lift,
        ROWS=tile_rows,
        COLS=tile_cols,
        EXACT=exact,
        num_warps=num_warps,
    )


x = normals(6, 1000)
(got,) = launch(x).run()
print(
    "right:", torch.allclose(got.cpu().double(), reference(x.cpu().double()), rtol=2e-3)
)
try:
    launch(x, exact=True)
except WorkbenchError as error:
    print(error)

# %% [markdown]
# **And the package's?** Its template for reductions, `reduction_kernel`, has the same joints and
# more of them: `LIFT`, `COMBINE`, `ACROSS` and `FINISH` are four tile operators, any strides go
# through an access function, and few long rows are split over programs. In it a mean square
# would be this tile operator, which the package has for norms, and the `FINISH` of a mean:

# %%
print(inspect.getsource(reduce.lift_square.fn))
print(inspect.getsource(reduce.finish_mean.fn))

# %% [markdown]
# ### Check it
#
# Ragged sizes, rows that lie apart, several tiles, outputs full of NaN, programs in a shuffled
# order:

# %%
for seed, (rows, cols, tile) in enumerate(
    ((1, 1, (1, 16)), (5, 17, (4, 16)), (16, 64, (4, 32)), (7, 33, (8, 16)))
):
    generator.manual_seed(seed)
    wide = normals(rows, cols + 3)[:, :cols]
    errors = []
    for exact in (False, True):
        if refusal(wide, tile, exact):
            continue
        made = launch(wide, tile=tile, exact=exact)
        got = runtime.interpret(made, poison=True, seed=1).outputs[0].double()
        exactly = reference(wide.cpu().double())
        errors.append(((got - exactly).abs() / exactly.max()).max().item())
    print(f"{rows:2d} x {cols:2d}: {len(errors)} launches, right: {max(errors) < 2e-3}")

# %% [markdown]
# What this does *not* prove: that any of it is fast, or that a row of a million columns comes
# out well.
#
# ## Layer 3: instances
#
# An instance is a configuration with a name. Nobody knows the best tile for a device on which
# nothing was measured, so the third layer lists what there is to choose from. The first one is what a
# call gets. Besides, somebody has to say how to make arguments for a problem, what is right, and
# how near a result must come. All that is known of an operator is one `OperatorSpec`:

# %%
CONFIGURATIONS = (
    {"tile": (1, 1024), "num_warps": 4},
    {"tile": (4, 1024), "num_warps": 8},
    {"tile": (4, 256), "num_warps": 4},
    {"tile": (2, 500), "num_warps": 4, "exact": True},
    {"tile": (1, 256), "num_warps": 4, "exact": True},
    {"tile": (2, 8), "num_warps": 1, "exact": True},
    {"tile": (16, 4096), "num_warps": 8},
)


def spec_of(name, lift, meaning):
    """Describe the mean of lift(x) of each row."""

    def instances(input):
        output = torch.empty(len(input), dtype=input.dtype, device=input.device)
        return instances_of(
            partial(launch, input, output, lift=lift), {}, CONFIGURATIONS
        )

    return OperatorSpec(
        name,
        meaning,
        case={"rows": (6, 65536), "cols": (1000, 4000)},
        arguments=lambda draw, rows, cols: given(draw(rows, cols)),
        instances=instances,
        accuracy=lambda input: (Accuracy(input.shape[1]),),
        dtypes=("fp16", "bf16", "fp32"),
    )


register(spec_of("mean_square", squared, reference))

# %% [markdown]
# In the package it would be a page of `workbench/operators`: a file with a tuple `SPECS`, which
# tests, suites and the profiler find. `register` is for what lives in a notebook.
#
# ## Layer 4: the function
#
# Who calls wants torch's words, and no tile. `@profiled` changes nothing of the function. It
# gives it two attributes, `instances` and `best`.


# %%
@profiled
def mean_square(input):
    """The mean of input^2 of each row, as input.square().mean(1)."""
    return launch(input).run()[0]


for instance in mean_square.instances(x):
    print(f"{instance.name:22s} {instance.why_not or 'supported'}")

# %% [markdown]
# Two are refused, each with its reason. Of the others nobody has run one yet. Look at the names:
# would you ship them all?
#
# ## The profiler
#
# It takes any operator that has instances, and does in turn: **list, filter, verify, time,
# choose, keep**. CK's is `ckProfiler`, and the switches have its words:
#
# ```
# python -m workbench profile matmul --m 4096 --n 4096 --k 4096 --dtype bf16 --init integer
# ```
#
# From Python it is one call. Each instance that nobody refuses runs into an output full of NaN,
# and is compared with the reference in float64. On a GPU those that are right are raced;
# elsewhere verifying is all.

# %%
problem = profiler.arguments_of("mean_square", {"rows": 6, "cols": 1000})
found = profiler.profile("mean_square", problem, progress=False)
fates = {trial.candidate["instance"]: trial for trial in found.trials}


WORDS = {"failed": "does not run", "pruned": "does not run"}


def told(name):
    fate = fates[name].fate
    return "right" if fate in ("verified", "won", "slower") else WORDS.get(fate, fate)


for instance in found.instances:
    print(f"{instance.name:22s} {told(instance.name)}")

# %% [markdown]
# The tile of 500 columns does not run. Sides of Triton's tiles are powers of two, which nobody
# has told our invoker: a hole in `refusal`, and exercise 13-1 is about such holes. The whole
# table, with times where there is a GPU:

# %% tags=["nbval-ignore-output"]
found

# %% [markdown]
# The engine is the one that profiles the package's operators. `ops.sum` has a kernel that shares a
# row among programs which add what they have with atomics. Of its instances, here are those that
# fp16 rows cannot have, and why:

# %%
row_sum = profiler.arguments_of("sum", {"rows": 3, "cols": 2000})
listed = ops.sum.instances(*row_sum.args, **row_sum.keywords)
for reason in sorted({instance.why_not for instance in listed}):
    print(reason or "supported: most of them")

# %% [markdown]
# ### What a check finds depends on what it is fed
#
# `--init` chooses the inputs. *normal* is what a network has. *integer* has whole numbers from
# −5 to 5, whose sums are exact. *one-hot* has a single 1 in each row, in the next row a place
# further, so that a result shows which element it was made of.
#
# **Predict.** A wrong kernel begins one column too late: it misses the first column of 4,000.
# Results are in fp16. Which init finds it?

# %%
finds_it = teach.predict(
    "Which one finds it?",
    guess=None,
    choices=("normal", "integer", "one-hot", "all of them"),
)


# %%
@triton.jit
def magnitude(tile):
    return tl.abs(tile)


suspects = {
    "right": lambda x: launch(x),
    "begins a column too late": lambda x: launch(x[:, 1:]),
    "|x| in place of x * x": lambda x: launch(x, lift=magnitude),
}
spec = spec_of("mean_square", squared, reference)
noticed = {}
for init in ("normal", "integer", "one-hot"):
    problem = profiler.arguments_of("mean_square", {"rows": 6, "cols": 4000}, init=init)
    judge = judge_of(spec, problem)
    for name, suspect in suspects.items():
        noticed[name, init] = judge(suspect(*problem.args).run()) != ""
for name in suspects:
    verdicts = [
        init for init in ("normal", "integer", "one-hot") if noticed[name, init]
    ]
    print(f"{name:26s} found by {', '.join(verdicts) or 'none'}")
(only,) = [
    init
    for init in ("normal", "integer", "one-hot")
    if noticed["begins a column too late", init]
]
finds_it.reveal(
    only,
    because="one element of 4,000 is less than fp16 rounds; a single 1 is all there is.",
)

# %% [markdown]
# And the other way round: $|1| = 1^2$, so that one-hot takes a wrong formula for right. No init
# is best. Verify with all three, and say which ones you used.
#
# ### What the device refuses
#
# An invoker knows its template, but not every device. The second filter is the compiler: an
# instance may ask for more shared memory than a block can have. A product with a large tile and
# four stages, for an H200 and for a GeForce RTX 4090. (`device` names the GPU to plan for: what
# we leave open, such as the number of programs that share a sum, depends on its units. Else it
# is planned for the device that is here.)

# %%
a, b = (torch.empty(4096, 4096, dtype=torch.float16) for _ in range(2))
LARGE = {"tile": (128, 256, 64), "num_stages": 4, "num_warps": 8}
for target in ("sm_90", "sm_89"):
    (step,) = lens.compile(gemm.launch(a, b, **LARGE, device=target), target)
    lacks = "shared memory" in step.problem
    print(f"{target}: {'too little shared memory' if lacks else 'has room for it'}")

# %% [markdown]
# Nothing is wrong with that instance. It is an instance for the one GPU and not for the other,
# which is why layer 3 is a layer.
#
# ### Choose, and keep
#
# `best` races the instances that are right, once on a device, and keeps the winner in a file: by
# device, Triton's version, tensors, and the text of the kernels. Ask again, and it is found. Who only
# calls never waits for that: nothing in `ops` calls `best` by itself. Where nothing can be timed, it
# says so:

# %% tags=["nbval-ignore-output"]
try:
    print(mean_square.best(x))
except NotMeasurableError as error:
    print(error)

# %% [markdown]
# ## Turn the knobs: the landscape of instances
#
# All instances of a case on one picture: a cell for each tile, a bar for each instance, in the
# color of what stops more blocks on a unit. Here our template for an H200, compiled, not timed.
# Each cell has two bars, for 4 and for 8 warps, the higher one first. As high as a bar is are the
# registers of a thread, over the most that any of the twelve instances takes; above a cell stands
# its highest number. Switch heights from registers to shared memory. Which tile leaves room for
# the fewest blocks, and for want of what?

# %% tags=["nbval-ignore-output", "compiler"]
large_x = torch.empty(4096, 4096, dtype=torch.float16)
output = torch.empty(4096, dtype=torch.float16)
candidates = [
    {"tile": (rows, cols), "num_warps": warps}
    for rows in (1, 4)
    for cols in (256, 1024, 4096)
    for warps in (4, 8)
]
trials = tune.prune(
    partial(launch, large_x, output), candidates, "sm_90", progress=False
)
print(trials)

# %% tags=["widget"]
viz.InstanceLandscapeWidget(
    explore.instances.of_trials(trials), "mean square of 4096 x 4096, fp16, for sm_90"
)

# %% [markdown]
# (`explore.instances.gemm(a, b, "sm_90")` draws all that the tuner would try for a product, which takes
# a minute.) What the picture does not say is which one is fastest. A kernel that waits for
# memory wants many loads under way, and blocks are one way to have them; so it is a reason to
# try an instance first, and not a reason to ship it.
#
# ## Look inside
#
# Select the line that calls `LIFT`, and then `load_rows`. Two layers of functions, and nothing
# of them is left in the machine code: no call, no test of `EXACT`. (The two layers above are Python.)

# %% tags=["widget"]
explore.source.source_lens(launch(normals(8, 1024)), shown=("sm_90", "gfx942"))

# %%
for exact in (False, True):
    (step,) = lens.compile(launch(large_x, output, exact=exact), "sm_90")
    called = any("call" in each.text.lower() for each in step.instructions)
    print(
        f"exact {exact!s:5}: calls {called}, {step.widest('global load')} bits a load"
    )

# %% [markdown]
# ## What a call costs before its kernel starts
#
# A call is Python: check the arguments, choose a tile, make an output, build a launch, find the
# compiled kernel, hand it to the driver. Only then does the GPU begin. The CPU does not wait for it
# and goes on to the next call. So $n$ calls take about
#
# $$T = \max(n \cdot t_\text{call}, \; n \cdot t_\text{kernel})$$
#
# **Predict.** <!-- unmeasured: an example --> A call costs 10 µs, and its kernel runs for 2 µs.
# There are 1,000 such calls in a row. You make the kernel twice as fast. How many times as fast
# is the whole?

# %%
gained = teach.predict("Times as fast with a kernel twice as fast", guess=None)


# %%
def spans(calls, call, kernel):
    """(begin, end) of each call on the CPU, and of each kernel on the GPU."""
    on_cpu, on_gpu, free = [], [], 0
    for number in range(calls):
        on_cpu.append((number * call, (number + 1) * call))
        begin = max(free, on_cpu[-1][1])
        free = begin + kernel
        on_gpu.append((begin, free))
    return on_cpu, on_gpu


def in_all(calls, call, kernel):
    return spans(calls, call, kernel)[1][-1][1]


for call, kernel in ((10, 2), (10, 1), (4, 2), (4, 8)):
    print(
        f"a call {call:2d}, a kernel {kernel}: {in_all(1000, call, kernel):6,d} in all"
    )
gained.reveal(
    round(in_all(1000, 10, 2) / in_all(1000, 10, 1), 2),
    because="the GPU waits for the CPU. A cheaper call would have helped.",
)

# %%
plans = {
    "a call of 10, a kernel of 2": spans(6, 10, 2),
    "a call of 4, a kernel of 2": spans(6, 4, 2),
    "a call of 4, a kernel of 8": spans(6, 4, 8),
}
with viz.figure_style():
    figure, axes = plt.subplots(3, 1, figsize=(9, 4.2), sharex=True)
    for (title, lanes), axis in zip(plans.items(), axes, strict=True):
        for lane, found_spans in enumerate(lanes):
            bars = [(begin, end - begin - 0.15) for begin, end in found_spans]
            axis.broken_barh(bars, (1 - lane, 0.8), facecolor=f"C{lane}")
        axis.set_yticks([0.4, 1.4], ["kernels", "calls"])
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(visible=False)
    axes[-1].set_xlabel("time, arbitrary units")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: three timelines of six calls above and their kernels below, drawn by the rule and not
# measured: with kernels shorter than a call the GPU has gaps, as long as a call less a kernel,
# with longer ones calls run ahead and the GPU has none.*
#
# Where does the time of a call go? Measured here, in Python, on this machine's CPU. No kernel is
# started:

# %% tags=["nbval-ignore-output"]
small = normals(4, 16)
small_output = torch.empty(4, dtype=small.dtype, device=small.device)
ready = launch(small, small_output)


def microseconds(function):
    return min(timeit.repeat(function, number=200, repeat=5)) / 200 * 1e6


def key_of(x):
    return x.shape, x.stride(), x.dtype, x.device


parts = {
    "an output": lambda: torch.empty(4, dtype=small.dtype, device=small.device),
    "torch's own x.sum(1)": lambda: small.sum(1),
    "refusal": lambda: refusal(small, (4, 1024), False),
    "launch": lambda: launch(small, small_output),
    "its checks before a run": ready.check,
    "shapes, strides, dtype, device": lambda: key_of(small),
}
for name, part in parts.items():
    print(f"{name:32s} {microseconds(part):6.2f} us")

# %% [markdown]
# To make the launch and to check it costs many times what it takes to ask a tensor how it lies.
# And with each call for tensors that lie alike it is the very same work. So keep the launch.
#
# ### Keep it, first try
#
# A dictionary from how the tensor lies to the launch, which is run again. What can go wrong?

# %%
launches = {}


def kept_badly(x):
    if key_of(x) not in launches:
        launches[key_of(x)] = launch(x)
    return launches[key_of(x)].run()[0]


ones, twos = (torch.full((2, 16), value, dtype=torch.float16) for value in (1, 2))
ones, twos = ones.to(here.torch_device), twos.to(here.torch_device)
first = kept_badly(ones)
second = kept_badly(twos)
print("mean squares of ones:", first.tolist(), " of twos:", second.tolist())
print("one output for both:", first.data_ptr() == second.data_ptr())

# %% [markdown]
# A launch holds its tensors. The second call has computed the *first* call's mean squares again,
# into the first call's output. What is to be kept is all but the tensors. That is a `Replay` of
# the package: a launch that is started again, with other tensors in the places of those that it
# was made of.

# %%
replays = {}
made = 0


def kept(x):
    global made
    output = torch.empty(len(x), dtype=x.dtype, device=x.device)
    again = replays.get(key_of(x))
    if again is None:
        made += 1
        again = replays[key_of(x)] = Replay(launch(x, output), x, output)
    again(x, output)
    return output


first, second = kept(ones), kept(twos)
print("mean squares of ones:", first.tolist(), " of twos:", second.tolist())
for tensor in (ones, twos, ones[:1], twos.float(), ones):
    kept(tensor)
print(f"7 calls, {made} launches made")

# %% [markdown]
# What that removes, before any kernel starts; and on a GPU, of a whole call:

# %% tags=["nbval-ignore-output"]
parts = {
    "make and check a launch": lambda: launch(small, small_output).check(),
    "find what was kept": lambda: replays.get(key_of(small)),
}
if here.is_gpu:
    parts |= {
        "launch(x).run()": lambda: launch(small).run(),
        "kept(x)": lambda: kept(small),
    }
for name, part in parts.items():
    print(f"{name:32s} {microseconds(part):6.2f} us")
if not here.is_gpu:
    print("A whole call is timed on a GPU: here it would be the interpreter's time.")

# %% [markdown]
# ### The key: what changes the compiled kernel
#
# A launch is kept by shape and strides, since a grid and tiles depend on them. Is a *compiled
# kernel* kept by these, too? Compiling takes far longer than anything above, so a
# key that is too fine is costly: a program that meets a new length each time would compile each
# time. And a key that is too coarse is wrong. Ask the compiler what differs:


# %%
def rows_of(rows, cols, dtype=torch.float16, skipped=0):
    """A matrix that begins so many elements behind an aligned address."""
    memory = torch.empty(rows * cols + skipped, dtype=dtype)
    return memory[skipped:].view(rows, cols)


def code_of(x, **options):
    (step,) = lens.compile(launch(x, **options), "sm_90")
    return step


same = rows_of(4096, 1024)
others = {
    "twice as many rows": rows_of(8192, 1024),
    "twice as many columns": rows_of(4096, 2048),
    "1,000 columns": rows_of(4096, 1000),
    "1,001 columns": rows_of(4096, 1001),
    "begins 16 bytes later": rows_of(4096, 1024, skipped=8),
    "begins 2 bytes later": rows_of(4096, 1024, skipped=1),
    "bf16": rows_of(4096, 1024, torch.bfloat16),
    "one row": rows_of(1, 1024),
}
was = code_of(same)


def compare(name, step):
    verdict = "the same" if step.stages["ptx"] == was.stages["ptx"] else "another"
    print(f"{name:22s} {verdict:9s} loads of {step.widest('global load'):3d} bits")


for name, x in others.items():
    compare(name, code_of(x))
compare("a tile of 4 x 512", code_of(same, tile=(4, 512)))

# %% [markdown]
# So a size is not in the key, and its *kind* is. For NVIDIA's GPUs Triton compiles anew for
#
# - the dtype of each tensor, and whether its **address is a multiple of 16 bytes**;
# - of each whole number whether it is a **multiple of 16**, whether it is **1**, and whether it
#   needs 64 bits;
# - every `tl.constexpr`, and options such as `num_warps`.
#
# All the others come to the kernel as numbers, when it runs. (For AMD's it also asks of each tensor
# whether its memory is smaller than 2 GiB, so that offsets of 32 bits reach all of it.)
#
# Note the 1,000 columns. Rows begin at multiples of 2,000 bytes, which 16 divides, but the compiler
# is only told of multiples of 16 *elements*. So it loads 16 bits at a time. The kernel of the levels,
# above, has a constant for that, `DIVISOR`: the invoker knows what divides its numbers, and says so.

# %%
by_levels = reduction_levels.launch(others["1,000 columns"])
(step,) = lens.compile(by_levels, "sm_90")
divisor = by_levels.steps[0].meta["DIVISOR"]
print(f"DIVISOR is {divisor}: loads of {step.widest('global load')} bits")

# %% [markdown]
# **Predict.** Matrices of 64 rows and of 1,000 to 1,127 columns, 128 widths in all. How many
# kernels are compiled?

# %%
kernels = teach.predict("Kernels for 128 widths", guess=None, unit="kernels")

# %%
widths = [rows_of(64, cols) for cols in range(1000, 1128)]
texts = {code_of(x).stages["ptx"] for x in widths}
keys = {key_of(x) for x in widths}
print(f"{len(keys)} launches to make, {len(texts)} kernels to compile")
kernels.reveal(len(texts), because="columns are a multiple of 16, or they are not.")

# %% [markdown]
# That is why the package keeps two things: calls by how their tensors lie, and compiled kernels
# by the kinds of their arguments. A new width makes a launch and compiles nothing.
#
# ### As the package does it
#
# You wrote the key by hand. If it lacks one thing on which the launch depends, a later call starts
# the wrong kernel, and no error says so. The package has some sixty operators, and writes no key.
# It *records* a call: the memory that was allocated, the kernels that were started and with what,
# and torch's own operations in between. From that it writes a function in Python that does the
# same on other tensors, behind one comparison with all that torch knows of a tensor and of its
# modes. `@profiled` does this for an operator, and `start` runs a launch so that it is recorded.
# The first call is not recorded, since most arguments are seen once; the second is, and the third
# is *warm*.


# %%
@profiled
def mean_square(input):
    """The mean of input^2 of each row, as input.square().mean(1)."""
    output = torch.empty(len(input), dtype=input.dtype, device=input.device)
    start(launch, input, output)
    return output


x = normals(6, 1000)
with contextlib.nullcontext() if here.is_gpu else device.pretend("sm_90"):
    results = [mean_square(x) for call in range(3)]
expected = reference(x.cpu().double())
right = [torch.allclose(each.cpu().double(), expected, rtol=2e-3) for each in results]
print("right:", right, " instances:", len(mean_square.instances(x)))

# %% tags=["nbval-ignore-output"]
print(*source_of(mean_square))

# %% [markdown]
# Read it from the top. `t0` is the input. The first line compares it, and what else could change
# the choice, with the recorded call; if one thing differs, the function gives up, and the operator
# itself runs. The next compares whether the address is a multiple of 16 bytes, since the compiled
# kernel was promised that. Then the output is allocated, and the launch started. Names such as
# `k0` are constants: a dtype, a function of torch, a launch.
#
# On a GPU the last lines hold the kernel's grid and all of its arguments, and call the function in
# C that Triton's own launcher ends in. (Where kernels are interpreted nothing is kept, except for
# a pretended GPU, as here: each run is watched, which takes a whole launch.)

# %% [markdown]
# What remains is the first call, which compiles. `warmup` does that ahead of time, before a
# request is served or a **CUDA graph** is captured: it makes and keeps all that a call would
# start, and starts nothing. A tensor on the meta device has a shape and no memory, and stands
# for one. (A graph goes further: the CPU replays all of its kernels by one call. It wants the
# same sizes and the same addresses each time.)

# %%
runtime.warmup(mean_square, torch.empty(4096, 1024, dtype=torch.float16, device="meta"))
runtime.warmup(ops.sum, torch.empty(4096, 1024, dtype=torch.float16, device="meta"), 1)
print("warm")

# %% [markdown]
# ## Measure
#
# ### A row at three levels
#
# 256 MiB of fp16 are rows of 8 columns, or of 128, or of any other power of two: always as many
# bytes, and so the same time if memory were all that counts. Take rows of 65,536 columns. There
# are 2,048 of them, and each level makes of them as many programs as its tile has room for:

# %%
long_rows = torch.empty(2048, 65536, dtype=torch.float16)
for level in reduction_levels.LEVELS:
    (step,) = reduction_levels.launch(long_rows, level=level).steps
    tile = f"{step.meta['ROWS']} x {step.meta['COLS']:,}"
    print(f"{level:6s} a tile of {tile:9s} {step.grid[0]:5,} programs of 4 warps")

# %% [markdown]
# **Predict.** An H200 has 132 units, and room for several such programs on each. At which level
# is the sum of these rows fastest?

# %%
fastest = teach.predict(
    "The level for rows of 65,536 columns",
    guess=None,
    choices=("thread", "warp", "block"),
)

# %% tags=["nbval-ignore-output"]
shipped_lines = recording.shipped("nvidia-h200")
NOT_YET = "Not recorded yet: `make gpu` records it on a GPU."


def run_with(provider, op):
    """The operator's lines of the latest run in which it has this provider."""
    lines = recording.select(shipped_lines, op=op)
    own = recording.latest_run(line for line in lines if line.provider == provider)
    return recording.select(lines, run=own[0].run) if own else []


def live(suite, wanted):
    """Some cases of a suite, measured here."""
    cases = tuple(case for case in suites.get(suite).cases if wanted(case))
    few = suites.Suite(suite, "some of its cases", cases)
    return suites.run(few, progress=False, rounds=1, warmup_ms=10, rep_ms=20)[0]


def markdown_table(table):
    ruled = [table[0], ["---"] * len(table[0]), *table[1:]]
    return Markdown("\n".join(f"| {' | '.join(row)} |" for row in ruled))


def is_shown(case):
    return case.dtype == "fp16" and case.case["cols"] in (8, 1024, 65536)


of_sums = run_with("workbench:warp", "sum")
if here.is_gpu:
    of_sums = live("reduction_levels", is_shown)
by_cols = {}
for line in recording.select(of_sums, dtype="fp16"):
    by_cols.setdefault(line.case["cols"], {})[line.provider] = line
if 65536 in by_cols:
    times = {name: line.median_ms for name, line in by_cols[65536].items()}
    level = min(reduction_levels.LEVELS, key=lambda level: times[f"workbench:{level}"])
    fastest.reveal(level, because="the more programs, the more loads are under way.")
WHO = (
    *(f"workbench:{level}" for level in reduction_levels.LEVELS),
    "workbench",
    "torch",
)
table = [["columns", "rows", *(name.removeprefix("workbench:") for name in WHO)]]
for cols, by in sorted(by_cols.items()):
    speeds = [f"{by[name].gb_per_s / 1000:.3g}" if name in by else "" for name in WHO]
    table.append([f"{cols:,}", f"{2**27 // cols:,}", *speeds])
markdown_table(table) if by_cols else Markdown(NOT_YET)

# %% [markdown]
# The numbers are TB/s. `workbench` is `ops.sum`, whose layout the compiler chooses, and which
# shares very long rows among programs. Recorded on an H200:
#
# - **Rows of 8 and of 32 columns: the thread.** They are 16 and 64 bytes, one load of a lane or
#   four, by which every byte of the lines that a warp touches is used; and there is nothing to
#   exchange. At the level of the warp half of the lanes or more have no column.
# - **From 128 columns on, never again.** Now the rows of neighboring lanes lie so far apart that
#   each load of a warp touches a line of memory for every lane. And a program has 256 rows, so
#   that longer rows mean fewer programs: 8 for rows of 65,536 columns.
# - **Up to 4,096 columns, warp or block.** The warp is far ahead for rows of 128 columns. From
#   512 to 4,096 the better of the two changes, and leads by less than a quarter. Neither the
#   number of loads nor that of shuffles says why, and the recording does not, either.
# - **65,536 columns: the block**, which has four times as many programs as the warp.
# - **4,194,304 columns: none of the three.** There are 32 rows. The block has a program for each
#   of them, and leaves 100 of 132 units without work; the warp has 8 programs, the thread one.
#   `ops.sum` is nearly as fast as before, since it splits rows, and so is torch's.
#
# So no level is the best one, and nobody should have to choose: `ops.sum` is about as fast as the
# best of the three on each line, or faster. That is what the layers are for.
#
# ### A call
#
# What a call costs the CPU, in microseconds, each timed by itself (`launch us` in the
# recordings). In the last column is what a call of ours takes in a CUDA graph, which replays many of
# them: the time of the kernel on the GPU, and nothing else.

# %% tags=["nbval-ignore-output"]
CALLERS = ("workbench", "torch", "Triton", "Triton autotuned")
of_calls = [*run_with(CALLERS[-1], "add"), *run_with(CALLERS[-1], "matmul")]
if here.is_gpu:
    of_calls = live("launch", lambda case: True)
by_call = {}
for line in of_calls:
    by_call.setdefault(f"{line.op}, {line.problem}", {})[line.provider] = line
table = [["call", *CALLERS, "ours, in a graph"]]
for call, by in by_call.items():
    if not set(CALLERS) <= set(by):
        continue
    costs = [f"{by[name].config['launch_us']:.1f}" for name in CALLERS]
    table.append([call, *costs, f"{1000 * by['workbench'].median_ms:.1f}"])
markdown_table(table) if table[1:] else Markdown(NOT_YET)

# %% [markdown]
# *Triton* is a kernel such as yours, started by `kernel[grid](...)`. *Autotuned* goes through
# Triton's decorator, which makes a key of all sizes at each call. Compare within a line: a CPU's
# times differ more from one case to the next than a GPU's. (And from one moment to the next, so the four
# of a line take turns.) In every line the call costs more than its kernel. By the formula above, a row of
# such calls takes as long as the calls take, and a better kernel would gain nothing. A graph does: several
# times as many calls in the same time, if sizes and addresses stay.
#
# What remains of our own call: the output is allocated, the tensors are asked how they lie, a
# dictionary is read, and the driver is called. torch's own call does much the same in C++, and is ahead: ours
# costs some 13 to 18 % more (22 % in a run before).

# %% [markdown]
# ## A profiler for your own operator
#
# All that you have built is general but for one word. For another operator of this kind, write a
# tile operator (layer 1), the template is there (2), say what is right (3), and name the
# function (4). A squared ReLU, of which some networks are made, as the mean of each row:


# %%
@triton.jit
def squared_relu(tile):
    above = tl.maximum(tile, 0.0)
    return above * above


def meaning(input):
    return input.relu().square().mean(1)


register(spec_of("mean_squared_relu", squared_relu, meaning))


@profiled
def mean_squared_relu(input):
    """The mean of relu(input)^2 of each row."""
    return launch(input, lift=squared_relu).run()[0]


for init in ("normal", "integer", "one-hot"):
    problem = profiler.arguments_of(
        "mean_squared_relu", {"rows": 6, "cols": 1008}, dtype="fp32", init=init
    )
    found = profiler.profile("mean_squared_relu", problem, progress=False)
    fates = {trial.candidate["instance"]: trial for trial in found.trials}
    right = [each.name for each in found.instances if told(each.name) == "right"]
    print(f"{init:8s} {len(right)} of {len(found.instances)} right: {', '.join(right)}")

# %% [markdown]
# Now it is yours. Change `squared_relu` and its reference to what you need, such as the share of
# elements beyond a threshold. What if it makes 1 of 0? Then the contract of layer 2 is broken, and
# instances whose tiles hang over are wrong: try `tl.exp`. (Verify in fp32, as here. In bf16, of which
# rounding hides a hundredth, the check would not see it.) An operator that belongs to everybody is five files in
# the package instead of four cells, in `kernels/tile/`, `kernels/`, `kernels/instances/`, `operators/` and `ops/`,
# and then `python -m workbench profile` knows it too.
#
# ## Your turn
#
# As before, a check passes if the result is the specification's on all of its cases, and
# `teach.exercise("13-1").hint()` asks a question that leads on.

# ### Exercise 13-1: why not
#
# Another template has no masks, and copies tiles to shared memory, row by row in pieces of 16
# bytes, with `stages` of them there at once. The matrix begins at a multiple of 16 bytes, and its
# columns are neighbors. Say of an instance why it cannot take a matrix, by the first of these that
# holds:
#
# - `"power of two"`: a side of the tile is none;
# - `"tile"`: the tile does not divide the matrix;
# - `"alignment"`: a row of the matrix begins at no multiple of 16 bytes, or a row of the tile has no
#   whole number of pieces;
# - `"shared memory"`: a block asks for more than `room` bytes.
#
# Else it is `""`. `row_stride` is in elements, of `itemsize` bytes each.


# %%
# {{exercise 13-1}}

# %% [markdown]
# {{solution 13-1}}

# %% [markdown]
# ### Exercise 13-2: the key of a kernel
#
# A kernel is given a tensor of some dtype at some address, a size, a stride, and the constant
# `BLOCK`. Write the key by which its compiled code is kept: equal for two calls if and only if
# Triton compiles one kernel for both, by the rules above, those for NVIDIA's GPUs. Numbers of
# $2^{31}$ or more need 64 bits. `compiled` is given some calls, and returns for each the number of
# the first call that shares its kernel, counted from 0: `(0, 1, 0)` for three calls of which the
# last one runs the first one's kernel.


# %%
# {{exercise 13-2}}

# %% [markdown]
# {{solution 13-2}}

# %% [markdown]
# ### Exercise 13-3: two states in one pass
#
# The **crest factor** of a row is its largest magnitude over the root of its mean square, and 0
# for a row of zeros. Write it at layer 1: `update` brings a tile into the states of four rows,
# element by element, and `finish` makes the result of each row. The template is given; what it
# masks is 0. Tiles come in fp16 or fp32, as x has them; results are in fp32. Each element of x is
# loaded once. The template stores no result that is negative or NaN: where the check says that an
# element is never written, look for one of these.


# %%
# {{exercise 13-3}}

# %% [markdown]
# {{solution 13-3}}

# %% [markdown]
# ## Takeaways
#
# - Four layers for four kinds of people: a tile without a grid, a grid without a device, a device
#   without a caller, a caller without tiles.
# - One tile operator can be held by a thread, a warp or a block. The layout decides, and with it
#   the exchange: none, shuffles, shared memory and a barrier. Short rows want a thread, long ones
#   a block, and few long ones several programs each.
# - An instance is refused twice, by its invoker in words and by the device for want of room; and
#   what neither refuses must still be run to be believed.
# - A check finds what its inputs can show: normal, integer and one-hot each miss something.
# - A short kernel is as fast as its call. Keep launches by how tensors lie, and compiled kernels
#   by the kinds of their arguments; never by more, and never by less.
#
# **Next:** the package itself. `python -m workbench profile` lists every operator that it has.
# Back to [03, tile reduction](03_tile_reduction.ipynb), or to
# [00, start here](00_start_here.ipynb).
