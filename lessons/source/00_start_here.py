# %% [markdown]
# # Start here: your first kernel
#
# You will build
#
# - a kernel that adds two vectors, from one element at a time to the one that this
#   workbench ships;
# - the three ideas that every later kernel stands on: the *program id*, the *block*,
#   and the *mask*;
# - a check that tries to break it, and a picture of what each program really touched.
#
# **Time:** 40 minutes. **You need:** Python and nothing else. With no GPU, kernels run
# in Triton's interpreter: the same source, the same answers, only slowly. With an
# NVIDIA GPU, the same cells run on it; with an AMD GPU they should, but no AMD GPU has
# run them yet.
#
# **Out of scope:** how the compiler turns a kernel into instructions, and why some
# access patterns are fast. Those are lessons of their own.

# %%
# workbench comes first: it decides, before Triton is imported, what runs the kernels.
from workbench import Launch, Work, device, lens, ops, runtime, suites, teach, viz
from workbench.bench import recording
from workbench.errors import OutOfBoundsError
from workbench.kernels.pointwise import elementwise

import inspect

import torch
import triton
import triton.language as tl
from IPython.display import Markdown

# %% [markdown]
# ## What your machine can do
#
# Nothing here needs a GPU, but it is good to know what runs your kernels.
# (`python -m workbench doctor` says more.)

# %% tags=["nbval-ignore-output"]
here = device.current()
print("kernels run on ", here.name)
print("architecture   ", here.architecture)
print("compute units  ", here.compute_units)  # multiprocessors; on a CPU, its cores
print("memory         ", f"{here.memory_bytes / 2**30:.0f} GiB")

# %% [markdown]
# ## How a lesson works
#
# Three things come back in every lesson.
#
# **You predict, then you look.** Being wrong before you see the answer is what makes it
# stick. Put your guess in place of `None` and run the cell; leave `None` and the lesson
# goes on without you.
#
# We are about to compute $z_i = x_i + y_i$ for 1,000 numbers of 4 bytes each. How many
# bytes must travel between memory and the processor, at the very least?

# %%
bytes_moved = teach.predict(
    "Bytes moved by z = x + y, for 1,000 fp32 numbers", guess=None, unit="bytes"
)

# %%
bytes_moved.reveal(
    12_000, because="x is read, y is read, z is written: 3 tensors of 4,000 bytes each."
)

# %% [markdown]
# And the arithmetic? One addition an element: 1,000 floating-point operations, or
# FLOPs. So this operator does one FLOP for every 12 bytes that it moves. Keep that
# ratio, the *arithmetic intensity*, in mind: it decides, in the lesson on the roofline,
# how fast *any* kernel can be that computes this.
#
# **You write, and a check tries to break it.** Exercises stand at the end of each
# lesson. Their check runs your kernel on awkward sizes, into outputs filled with NaN,
# and once more in a shuffled order. Where it can, it names the line that went wrong.
#
# **Your progress is kept** in a small file of yours, on this machine only:

# %%
teach.progress()

# %% [markdown]
# ## The reference
#
# What we want, in one line of torch. Every kernel here is judged against such a line,
# computed in higher precision.

# %%
x = torch.arange(10, dtype=torch.float32, device=here.torch_device)
y = 10 * torch.ones(10, device=here.torch_device)
print((x + y).tolist())

# %% [markdown]
# ## Step 1: one element a program
#
# A GPU does not run a loop over the elements. It runs your function many times at once,
# and each run asks *which one am I?* A run is called a **program**, and its number is
# the **program id**. The number of programs is the **grid**.
#
# Here each program adds one pair. What a kernel is given for a tensor is a **pointer**
# to its first element; pointer plus offset is the address of another one, and `tl.load`
# and `tl.store` go there.


# %%
@triton.jit
def add_one_kernel(x_pointer, y_pointer, output_pointer):
    element = tl.program_id(axis=0)
    x = tl.load(x_pointer + element)
    y = tl.load(y_pointer + element)
    tl.store(output_pointer + element, x + y)


# %% [markdown]
# A **launch** is everything that the call needs, as plain data: the kernel, the grid,
# the arguments, and which of these hold the result. All tools of this workbench take a
# launch: to run it, to look inside it, to measure it.

# %%
output = torch.empty_like(x)
launch = Launch.of(add_one_kernel, (10,), x, y, output, outputs=output)
(result,) = launch.run()
print(result.tolist())

# %% [markdown]
# Ten programs ran. Nothing says in which order: on a GPU hundreds of them run at the
# same moment. Here are the stores of the same launch with its programs shuffled, as
# `runtime.interpret` recorded them. The result does not care, and that is what makes it
# a parallel program.

# %%
shuffled = runtime.interpret(launch, seed=1, record=True)
stores = [access for access in shuffled.accesses[0] if access.kind == "store"]
print("order of the programs:", [access.program[0] for access in stores])
print("result:               ", shuffled.outputs[0].tolist())

# %% [markdown]
# ## Step 2: a block a program
#
# One addition is far too little work for a program: starting it costs more than the
# addition. So each program takes a
# **block** of consecutive elements. `tl.arange(0, BLOCK_SIZE)` is a whole vector of
# offsets 0, 1, 2, ..., and every operation on it happens for all its **lanes**
# together.
#
# `BLOCK_SIZE` is a `tl.constexpr`: known when the kernel is compiled, not when it runs.
# Triton wants it to be a power of two, and compiles the kernel once for each value.


# %%
@triton.jit
def add_block_kernel(x_pointer, y_pointer, output_pointer, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_pointer + offsets)
    y = tl.load(y_pointer + offsets)
    tl.store(output_pointer + offsets, x + y)


# %%
eight = [tensor[:8].clone() for tensor in (x, y, output)]
(result,) = Launch.of(
    add_block_kernel, (2,), *eight, outputs=eight[2], BLOCK_SIZE=4
).run()
print(result.tolist())

# %% [markdown]
# Two programs of four lanes, eight elements. It works because 8 is a multiple of 4.
#
# Now take all ten elements, and three programs. Before you run the next cell: how many
# lanes of the last program will find no element?

# %%
last_program = teach.predict(
    "10 elements, BLOCK_SIZE 4, 3 programs: lanes that have no element",
    guess=None,
    unit="lanes",
)

# %%
last_program.reveal(
    2, because="3 × 4 = 12 lanes for 10 elements: offsets 10 and 11 are beyond the end."
)
ragged = Launch.of(add_block_kernel, (3,), x, y, output, outputs=output, BLOCK_SIZE=4)
try:
    runtime.interpret(ragged)
except OutOfBoundsError as error:
    print(error)

# %% [markdown]
# The workbench's interpreter refused to read there. A GPU would not have: it reads and
# *writes* whatever lies behind your tensor, and the wrong numbers turn up later,
# somewhere else.
#
# ## Step 3: the mask
#
# The last block may hang over the end; its surplus lanes must not touch memory. A
# **mask** is a vector of booleans, one a lane, and `tl.load` and `tl.store` leave
# memory alone where it is false. The kernel must know the length for that.


# %%
@triton.jit
def add_kernel(x_pointer, y_pointer, output_pointer, length, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    valid = offsets < length
    x = tl.load(x_pointer + offsets, mask=valid)
    y = tl.load(y_pointer + offsets, mask=valid)
    tl.store(output_pointer + offsets, x + y, mask=valid)


# %% [markdown]
# ## Step 4: the invoker
#
# Callers should not have to think about grids. An **invoker** is the plain Python
# function that allocates the output, chooses the grid, and returns the launch.
# `triton.cdiv(n, b)` is $\lceil n / b \rceil$, the number of blocks that cover $n$
# elements.
#
# It also states the **work**: what the operator must do, however clever the kernel. You
# counted it above.


# %%
def add(x, y, block_size=1024):
    output = torch.empty_like(x)
    length = output.numel()
    work = Work(flops=length, bytes=3 * length * x.element_size())
    grid = (triton.cdiv(length, block_size),)
    return Launch.of(
        add_kernel,
        grid,
        x,
        y,
        output,
        length,
        outputs=output,
        work=work,
        BLOCK_SIZE=block_size,
    )


launch = add(x, y, block_size=4)
print(launch.run()[0].tolist())
print(launch.work)
print(f"arithmetic intensity: {launch.work.intensity:.3f} FLOP per byte")

# %% [markdown]
# ## Step 5: the kernel that ships
#
# This is the whole kernel behind `ops.add`, as the package has it.

# %%
print(inspect.getsource(elementwise.binary_kernel.fn))

# %% [markdown]
# It is the kernel that you just built, with four things added:
#
# - the offsets and the mask, the load and the store are **tile operators**, small jit
#   functions that later kernels share (you find them in
#   [workbench/kernels/tile/transfer.py](../workbench/kernels/tile/transfer.py));
# - `OPERATION` is a jit function, given as a constant: the same kernel adds, and
#   computes $\alpha x + y$. A kernel with such a hole in it is a **template**;
# - `COMPUTE_TYPE`: numbers of 16 bits are added in fp32 and rounded once, as torch
#   does;
# - `WIDE`: beyond $2^{31}$ elements, 32 bits no longer count them.

# %% [markdown]
# ## Check it
#
# A kernel that is right for ten elements proves little. Sizes around a block's edge are
# where kernels break: one element, one under a block, a block, one over. Outputs are
# filled with NaN first, so an element that nobody writes shows.

# %%
generator = torch.Generator().manual_seed(0)
for length in (1, 31, 32, 33, 100):
    a, b = (torch.randn(length, generator=generator) for _ in range(2))
    mine = runtime.interpret(add(a, b, block_size=32), poison=True, seed=length)
    torch.testing.assert_close(mine.outputs[0], a + b, rtol=0, atol=0)
    shipped = ops.add(a.to(here.torch_device), b.to(here.torch_device))
    torch.testing.assert_close(shipped.cpu(), a + b, rtol=0, atol=0)
    print(f"{length:4d} elements: yours and ops.add agree with torch to the last bit")

# %% [markdown]
# What this does *not* prove: that the kernel is right for tensors with other strides
# (`ops.add` is; yours assumes that elements lie one after the other), for lengths
# beyond $2^{31}$, or that it is fast.
#
# ## Turn the knobs
#
# Each strip is one load or store of the kernel *you* wrote; each cell is a lane, with
# the number of its program. Hatched lanes are masked off. The picture is drawn from a
# recorded run, not from a model of one. Make `n` a multiple of the block, then one
# more, and watch what a single element costs.


# %% tags=["widget"]
def accesses(length, block_size):
    launch = add(torch.ones(length), torch.ones(length), block_size)
    return runtime.interpret(launch, record=True).accesses[0]


viz.TileMapWidget(accesses)

# %% [markdown]
# ## Look inside
#
# Three **lenses** look into a launch. All take the same launch, and none of them changes
# its tensors. The first is the **trace**: what each program loads, stores and computes,
# recorded from a run. Is the kernel as frugal as you predicted?

# %%
(trace,) = lens.trace(add(torch.ones(1000), torch.ones(1000), block_size=256))
for row in trace.by_argument():
    print(f"{row.kind:5s} {row.argument:15s} {row.bytes:6,d} bytes")
print(f"in all {trace.traffic().bytes:,d} bytes and {trace.flops:,d} lanes that add")

# %% [markdown]
# Twelve thousand bytes: the least that is possible. This kernel cannot be improved by
# moving less. (The idle lanes of the last block add as well, in vain: they just do not
# touch memory.)
#
# The second is the **compiler's output**, for a GPU that you need not have: `sm_90` is
# an H200, `gfx942` an MI300. Here we ask one question only: how many bits does a thread
# load at once? Four fp32 numbers would be 128 bits.

# %%
for length in (1024, 1000):
    numbers = torch.ones(length)
    (code,) = lens.compile(add(numbers, numbers.clone()), "sm_90")
    widths = {each.bits for each in code.instructions if each.kind == "global load"}
    print(f"{length} numbers: loads of {sorted(widths)} bits")

# %% [markdown]
# The mask does that. Triton tells the compiler that a length is a multiple of 16 where
# it is, and then no mask can cut through four neighbors. 1,000 is none, so the compiler
# knows nothing about it, and loads one number at a time. How that matters is the next
# lesson.
#
# The third lens is the **clock**.
#
# ## Measure
#
# How fast should it be? For $2^{28}$ fp32 elements, 3 GiB must move. An NVIDIA H200
# copies at
# {{recording device=nvidia-h200 op=clone provider=torch dtype=fp32 problem=2^28 show=TB/s}}
# when measured, bytes read plus bytes written, so expect the addition to move its bytes
# at about that rate. Interpreter time means nothing: on a machine with no GPU you see
# what was recorded on one that has it.

# %%
roofs, points = suites.live_or_recorded("elementwise")
adds = [
    point
    for point in points
    if point.op == "add" and point.dtype == "fp32" and "alpha" not in point.label
]
viz.Picture(
    viz.figure_png(viz.bandwidth_figure(roofs, adds)),
    viz.describe_bandwidth(roofs, adds),
)

# %% [markdown]
# *Figure: achieved bandwidth of torch's add and of this workbench's add against the
# bytes moved; both rise with size and flatten at about the copy bandwidth of the
# device.*
#
# Two regions. Large vectors, at the right, run at the speed of memory, and there a
# kernel of a few lines is level with torch's own. Small ones take the time that the GPU
# needs to *start and end* a kernel, whatever their size: on the H200, the addition of
# vectors of $2^{12}$ numbers takes
# {{recording device=nvidia-h200 op=add dtype=fp32 provider=workbench problem=2^12 mode=events show=µs}}.
# Each call was timed by itself, between two **events**, and with caches that hold
# nothing of its vectors. In a **CUDA graph**, many calls that are recorded once and
# started together, the next kernel follows the last one at once, what fits the cache
# is still there, and the same addition takes
# {{recording device=nvidia-h200 op=add dtype=fp32 provider=workbench problem=2^12 mode=cuda_graph show=µs}}.
# What a start costs the CPU shows in neither, since it starts the next kernel while the
# GPU still works on the last one. That is a number of its own, for a later lesson.

# %% tags=["nbval-ignore-output"]
largest = recording.latest_run(
    recording.select(
        recording.load_all(), op="add", dtype="fp32", case={"shape": [2**28]}
    )
)
Markdown(recording.table(largest, "markdown"))

# %% [markdown]
# ## Your turn
#
# Each exercise has a specification that runs
# (`teach.exercise("00-1").specification(10, 4)`), a stub to fill in, and a check. Run
# the check as often as you like. `teach.exercise("00-1").hint()` asks you a question
# that helps; run it again for the next one.
#
# ### Exercise 00-1: count the programs
#
# Before a kernel can be launched, somebody has to compute its grid. Write
# `count(n, block_size)`: it returns how many programs cover `n` elements, and how many
# lanes of the last one are idle.


# %%
# {{exercise 00-1}}

# %% [markdown]
# {{solution 00-1}}

# %% [markdown]
# ### Exercise 00-2: axpy
#
# The classic of linear algebra libraries: $\alpha x + y$. Write the kernel and its
# invoker. `alpha` is a Python float; a kernel takes it as an argument like any other.


# %%
# {{exercise 00-2}}

# %% [markdown]
# {{solution 00-2}}

# %% [markdown]
# ### Exercise 00-3: fewer programs than blocks
#
# The grid need not follow the length. Fast kernels often start just as many programs as
# the GPU has compute units, and let each loop over several blocks; such kernels are
# called *persistent*. Write `add_persistent(x, y, programs)` that starts exactly
# `programs` programs, whatever the length, and loads every element once. Inside a
# kernel, `tl.num_programs(axis=0)` is the size of the grid, and `range` works as in
# Python.


# %%
# {{exercise 00-3}}

# %% [markdown]
# {{solution 00-3}}

# %% [markdown]
# ## Takeaways
#
# - A kernel is a function that runs many times at once; its **program id** says which
#   run this is.
# - A program works on a **block** of lanes; `BLOCK_SIZE` is a power of two and known at
#   compile time.
# - The last block hangs over the end, and a **mask** keeps its idle lanes out of
#   memory.
# - Bytes moved are worth counting before the first line is written: they bound the
#   speed of everything that follows.
#
# **Next:** [01, tile transfer](01_tile_transfer.ipynb) moves matrices, and shows why
# some ways through memory are fast and others slow.
