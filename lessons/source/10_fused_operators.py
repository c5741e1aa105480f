# %% [markdown]
# # Fused operators: what is done before a tile is stored
#
# You will build
#
# - an epilogue for lesson 06's product, step by step: a function, then a chain of functors
#   with tensors of their own; Composable Kernel's GEMM + Add + Add + FastGELU of it, and a
#   functor of your own in three lines;
# - the count of the bytes that this saves, by traces and by a formula; and the cases where
#   it saves nothing, or costs more than it saves;
# - a norm of a product's rows in the same kernel, two products in one, and a gate; all of it
#   beside torch's compiler, as recorded on an H200 and an H100.
#
# **Time:** 60 minutes. **You need:** Python, [lesson 04](04_normalization.ipynb) for the
# norms and [lesson 06](06_fast_gemm.ipynb) for the product. Kernels run in the interpreter
# and are compiled for GPUs that need not be here.
#
# **Out of scope:** fused softmax, which is lesson 11, and what a launch itself costs, which
# is lesson 13.

# %%
from workbench import Launch, Step, device, explore, lens, ops, runtime, teach, viz
from workbench.bench import recording
from workbench.kernels import epilogues, gemm
from workbench.kernels.gemm import (
    hopper as gemm_hopper,
    pair as gemm_pair,
    rows as gemm_rows,
)
from workbench.teach.rungs.gemm_ladder import rows_and_cols, store_tile, tile_of_product
from workbench.kernels.tile import epilogue

import inspect
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from IPython.display import Markdown

here = device.current()
generator = torch.Generator().manual_seed(10)


def normals(*shape):
    return torch.randn(shape, generator=generator).half().to(here.torch_device)


# %% [markdown]
# ## The idea: a product that nobody stores
#
# A layer of a network is seldom a product alone. Composable Kernel's example, and ours, is
#
# $$E = \text{gelu}(A B + D_0 + D_1)$$
#
# with A of $m \times k$, B of $k \times n$ and all others $m \times n$. As four kernels,
# the product is stored, loaded, stored with $D_0$ added, loaded again, and so on. In bytes of
# fp16,
#
# $$\underbrace{2 (mk + kn + mn)}_{\text{product}} + \underbrace{6 mn}_{+ D_0} +
# \underbrace{6 mn}_{+ D_1} + \underbrace{4 mn}_{\text{gelu}}$$
#
# But each element of the sum depends on *one* element of the product, and that was in a
# register when it was stored. A kernel that does the rest before it stores moves
# $2 (mk + kn + mn) + 4 mn$ bytes. What comes after a kernel's main loop is its
# **epilogue**, and putting operators into it is **fusion**.
#
# **Predict.** For $m = n = k = 4096$, how many times as many bytes do the four kernels move?

# %%
more_bytes = teach.predict(
    "Bytes of four kernels, over bytes of one", guess=None, unit="times"
)

# %%
m = n = k = 4096
least = 2 * (m * k + k * n + m * n) + 4 * m * n
print(f"one kernel:   {least / 1e6:4.0f} MB")
print(f"four kernels: {(least + 12 * m * n) / 1e6:4.0f} MB")
more_bytes.reveal(
    round((least + 12 * m * n) / least, 2),
    because="each functor saves a store and a load of the product, 4 m n bytes.",
)

# %% [markdown]
# **Predict** once more. By the roofs of lesson 02 a kernel takes at least as long as its FLOPs
# or its bytes, whichever is longer. How many times as long do the four kernels take, at least?

# %%
more_time = teach.predict(
    "Least time of four kernels, over that of one", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
cube = explore.fusion.explored(viz.FusionChoice(4096, 4096, 4096))
fused_time, unfused_time = cube.predicted
more_time.reveal(
    round(unfused_time / fused_time, 2),
    because=f"the product is bound by {cube.bound}, and takes as long in both plans.",
    tolerance=0.05,
)

# %% [markdown]
# Both plans in a picture; each part of a bar is a kernel:

# %%
drawn = viz.fusion_explorer_figure(cube)
viz.Picture(viz.figure_png(drawn), viz.describe_fusion_explorer(cube))

# %% [markdown]
# So bytes are not time. Fusion takes away what the *other* kernels take; the product remains.
# How much that is depends on the shape, and we will come back to it. First the kernel: on the
# left of the picture is what it does to each of its tiles.
#
# ## The reference
#
# Two lines of torch, in float64, since what is compared with it has errors of its own:


# %%
def reference(a, b, d0, d1):
    total = a.cpu().double() @ b.cpu().double() + d0.cpu().double() + d1.cpu().double()
    return F.gelu(total, approximate="tanh")


# %% [markdown]
# FastGELU is gelu with its error function written as a hyperbolic tangent,
# `approximate="tanh"` in torch.
#
# ## Step 1: four kernels, counted
#
# `fuse.chained` has both plans of a chain, and `fuse.bytes_saved` traces them and counts what
# they move of each tensor, each element once a kernel. A chain is written with `|`:

# %%
x, y = normals(32, 32), normals(32, 64)
d0, d1 = normals(32, 64), normals(32, 64)
chain = epilogues.add(d0) | epilogues.add(d1) | epilogues.fast_gelu()
SMALL = {"tile": (16, 32, 16), "product_tile": (16, 32, 16)}
plans = explore.fusion.chained(x, y, chain, **SMALL)
found = explore.fusion.bytes_saved(plans.fused, plans.unfused, plans.tensors)
for each in found.arguments:
    print(
        f"{each.name:12s} fused {each.fused_loaded + each.fused_stored:6,}, "
        f"unfused {each.unfused_loaded + each.unfused_stored:6,}"
    )
print(f"in all       fused {found.fused:6,}, unfused {found.unfused:6,}")
print(f"saved {found.saved:,}; by the formula {12 * 32 * 64:,}")

# %% [markdown]
# The product and what became of it on the way are not in memory at all. (The plan that is
# called fused is the shipped kernel. How does it do that?)
#
# ## Step 2: a function before the store
#
# The kernel is lesson 06's `grouped_kernel`, with `rows_and_cols`, `tile_of_product` and
# `store_tile` as they were. Where the sum of a tile is complete, and still in registers, a
# function is called that the launch names. It is a constant, `EPILOGUE`: Triton compiles
# another kernel for each function, in which nothing of the call is left but its instructions.


# %%
@triton.jit
def activated_kernel(
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
    EPILOGUE: tl.constexpr,
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
    store_tile(output_pointer, row, col, EPILOGUE(total), sizes, DIVISORS)


@triton.jit
def positive(tile):
    return tl.maximum(tile, 0.0)


@triton.jit
def same(tile):
    return tile


def described(a, b, tile):
    """Return what kernels know about sizes, strides and the tile, as in lesson 06."""
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    checks = gemm.Checks(
        *(size % side != 0 for size, side in zip(sizes, tile, strict=True))
    )
    values = (*sizes, *a.stride(), *b.stride())
    divisors = tuple(1 if value % 16 == 0 else math.gcd(value, 8) for value in values)
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    return (sizes, a.stride(), b.stride()), meta | {
        "CHECKS": checks,
        "DIVISORS": divisors,
    }


def output_of(a, b):
    return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)


def tiles_of(a, b, tile):
    return triton.cdiv(a.shape[0], tile[0]) * triton.cdiv(b.shape[1], tile[1])


def activated(a, b, function, tile=(16, 32, 16)):
    output = output_of(a, b)
    arguments, meta = described(a, b, tile)
    meta |= {"GROUP": 8, "EPILOGUE": function}
    grid = (tiles_of(a, b, tile),)
    step = Step(activated_kernel, grid, (a, b, output, *arguments), meta)
    return Launch((step,), (output,))


def moved_by(launch):
    """Bytes, each element once a kernel."""
    steps = lens.trace(launch)
    kinds = ("load", "store")
    return sum(step.traffic(kind=k).distinct_bytes for step in steps for k in kinds)


(got,) = activated(x, y, positive).run()
exact = (x.cpu().double() @ y.cpu().double()).relu()
print("right:", torch.allclose(got.cpu().double(), exact, atol=0.02))
print(f"bare {moved_by(activated(x, y, same)):,} bytes", end=", ")
print(f"with relu {moved_by(activated(x, y, positive)):,}")

# %% [markdown]
# As many bytes as without it: an activation in an epilogue is free of bytes. As a kernel of
# its own it would have moved $4 mn$ more, 8,192 here.
#
# And it is *nearer*. The sum comes in fp32, and is rounded to fp16 once, at the store. Four
# kernels round it four times:

# %%
errors = []
exact = reference(x, y, d0, d1)
for launches in ((plans.fused,), plans.unfused):
    for launch in launches:
        (got,) = launch.run()
    errors.append((got.cpu().double() - exact).abs().mean().item())
print("the fused one is nearer:", errors[0] < errors[1])

# %% [markdown]
# ## Step 3: a chain with tensors of its own
#
# Two things are missing: $D_0$ and $D_1$, and more functions than one. So let an epilogue be
# a tuple of **functors**, `(tile, operands, place) -> tile`. `tile` is what the one before made;
# `operands` are the functor's own tensors, of each the elements that belong to the tile;
# `place` says which elements these are. Here are two of the package's, word for word:


# %% tags=["package-kernel"]
@triton.jit
def add(tile, operands, place):
    """tile + operands[0]"""
    return tile + operands[0]


@triton.jit
def relu(tile, operands, place):
    """max(tile, 0)"""
    return tl.where(tile < 0, 0, tile)


# %% [markdown]
# Which elements of D belong to the tile? Those of its rows and columns, with D's strides. A
# bias has no rows: the same number stands in each. That is a stride of 0, as in torch's
# `expand`, and needs no code. What a tile has beyond the last row or column must not be
# loaded, so there is a mask.
#
# The loop over functors is unrolled by the compiler (`static_range`), since each of them is
# another function. What should it gain? All that the formula promises.


# %%
@triton.jit
def operands_of(extra, row, col, sizes):
    inside = (row < sizes[0]) & (col < sizes[1])
    found = extra[:0]
    for i in tl.static_range(len(extra)):
        pointer, strides = extra[i]
        places = row * strides[0] + col * strides[1]
        found += (tl.load(pointer + places, mask=inside, other=0.0).to(tl.float32),)
    return found


@triton.jit
def chain_of(tile, row, col, sizes, extras, EPILOGUE: tl.constexpr):
    for i in tl.static_range(len(EPILOGUE)):
        tile = EPILOGUE[i](tile, operands_of(extras[i], row, col, sizes), (0, row, col))
    return tile


@triton.jit
def chained_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    extras,
    sizes,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
    GROUP: tl.constexpr,
    EPILOGUE: tl.constexpr,
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
    tile = chain_of(total, row, col, sizes, extras, EPILOGUE)
    store_tile(output_pointer, row, col, tile, sizes, DIVISORS)


def chained(a, b, functors, tile=(16, 32, 16), **options):
    """functors: of each its function, and the tensors that it is given."""
    output = output_of(a, b)
    extras = []
    for _, tensors in functors:
        views = [tensor.expand(output.shape) for tensor in tensors]
        extras.append(tuple([(view, view.stride()) for view in views]))
    arguments, meta = described(a, b, tile)
    meta |= {"GROUP": 8, "EPILOGUE": tuple([function for function, _ in functors])}
    grid = (tiles_of(a, b, tile),)
    given = (a, b, output, tuple(extras), *arguments)
    return Launch((Step(chained_kernel, grid, given, meta | options),), (output,))


functors = [(add, (d0,)), (add, (d1,)), (epilogue.fast_gelu, ())]
launch = chained(x, y, functors)
(got,) = launch.run()
print(
    "right:",
    torch.allclose(got.cpu().double(), reference(x, y, d0, d1), atol=0.02),
)
print(f"{moved_by(launch):,} bytes; the shipped kernel moves {found.fused:,}")

# %% [markdown]
# That is GEMM + Add + Add + FastGELU, in one kernel, and not a byte more than it has to move.
#
# ## Step 4: what the package has more
#
# Count again, not what crosses from memory, but what lanes *ask* for. A bias is one number for
# each column. **Predict.** The output is 32 × 64 in tiles of 16 × 32, in fp16. How many bytes
# of the bias do the lanes of our kernel ask for?

# %%
asked_bytes = teach.predict(
    "Bytes of a bias of 64 that all lanes ask for", guess=None, unit="bytes"
)

# %%
vector = normals(64)
ours = chained(x, y, [(add, (vector,))])
shipped = gemm.launch(
    x, y, epilogue=epilogues.bias(vector), tile=(16, 32, 16), splits=1
)


def asked_of(launch, tensor):
    (step,), (traced,) = launch.steps, lens.trace(launch)
    memory = step.memory()
    return sum(
        each.bytes
        for each in traced.by_argument()
        if memory[each.argument].data_ptr() == tensor.data_ptr()
    )


print(f"ours: {asked_of(ours, vector):,}, the package's: {asked_of(shipped, vector)}")
asked_bytes.reveal(
    asked_of(ours, vector), because="every element of the output asks for its own."
)

# %% [markdown]
# The package's functor is given a *row*, [1, cols], and the addition broadcasts it. Its operator
# knows from the strides which tensors have rows, columns, or neither:

# %%
print(inspect.getsource(epilogue.of_tensor.fn))

# %% [markdown]
# Batches, several dimensions of rows, numbers as operands, and what the compiler may know of
# strides are there too; `applied` is our `chain_of`. And it is called, in the shipped product,
# by a function that stores a tile's part. One thing in its caller is not about elements:

# %%
print(inspect.getsource(gemm.finish.fn))

# %% [markdown]
# Why halves? A tile of 128 × 256 with 256 threads is 128 numbers for each thread. What is
# loaded of D comes on top: 128 more, all at once. **Predict** for an H200: does our kernel,
# with this tile and the whole chain, spill registers?

# %%
spilling = teach.predict(
    "Our chain on a tile of 128 × 256", guess=None, choices=("it spills", "it fits")
)

# %%
wide = torch.empty(512, 512, dtype=torch.float16, device=here.torch_device)
other = torch.empty_like(wide)
LARGE = {"num_warps": 8, "num_stages": 3}
whole_chain = epilogues.add(wide) | epilogues.add(other) | epilogues.fast_gelu()
on_wide = [(add, (wide,)), (add, (other,)), (epilogue.fast_gelu, ())]
TILE = (128, 256, 64)
compiled = {
    "no epilogue": gemm.launch(wide, wide, tile=TILE, splits=1, **LARGE),
    "ours": chained(wide, wide, on_wide, tile=TILE, **LARGE),
    "the package's": gemm.launch(
        wide, wide, epilogue=whole_chain, tile=TILE, splits=1, **LARGE
    ),
}
outcomes = dict(
    zip(compiled, lens.compile_all(list(compiled.values()), "sm_90"), strict=True)
)
for name, (step,) in outcomes.items():
    print(f"{name:14s} {'spills' if step.spills else 'all in registers'}")
spilling.reveal(
    "it spills" if outcomes["ours"][0].spills else "it fits",
    because="sums, and as many numbers of D, are more than a thread can have.",
)

# %% [markdown]
# An epilogue may cost no bytes of memory and still cost what a GPU has least of: registers. By
# halves, half as many numbers of D are there at one time. (Spilled numbers go to memory and come
# back: bytes that no formula above counts.)
#
# With this, one line of the library:

# %%
got = ops.fused_matmul(x, y, epilogue=chain)
print("right:", torch.allclose(got.cpu().double(), reference(x, y, d0, d1), atol=0.02))
print(chain)

# %% [markdown]
# ## Your own functor, in three lines
#
# What is not in the list is no reason for a kernel of its own. `own` takes a functor and its
# operands; hard swish, $x \cdot \min(\max(x + 3, 0), 6) / 6$, is


# %%
@triton.jit
def hard_swish(tile, operands, place):
    return tile * tl.minimum(tl.maximum(tile + 3.0, 0.0), 6.0) / 6.0


swish = epilogues.own(
    hard_swish, meaning=lambda x, operands, place: F.hardswish(x), flops=5
)
weights = y.clone().requires_grad_()
got = ops.fused_matmul(x, weights, epilogue=epilogues.bias(vector) | swish)
got.float().sum().backward()

double = y.cpu().double().requires_grad_()
exact = F.hardswish(x.cpu().double() @ double + vector.cpu().double())
exact.sum().backward()
print("right:", torch.allclose(got.detach().cpu().double(), exact, atol=0.03))
print("gradient:", torch.allclose(weights.grad.cpu().double(), double.grad, atol=0.1))

# %% [markdown]
# `meaning` is the same in torch, for gradients: backward makes the product anew, and asks
# autograd about the chain. Without it the functor works forward alone.
#
# ## Every functor saves the same
#
# A functor saves a store and a load of the product, $4 mn$ bytes in fp16, *whatever it does*.
# Its own tensor has to be read by either plan. Four chains, by traces of both plans:

# %%
column = normals(32, 1)
chains = {
    "relu": epilogues.relu(),
    "bias, silu": epilogues.bias(vector) | epilogues.silu(),
    "add, add, fast_gelu": chain,
    "scale, bias, clamp, multiply": epilogues.scale(0.5)
    | epilogues.bias(vector)
    | epilogues.clamp(-1.0, 1.0)
    | epilogues.multiply(column),
}
for name, each in chains.items():
    both = explore.fusion.chained(x, y, each, **SMALL)
    counted = explore.fusion.bytes_saved(both.fused, both.unfused, both.tensors)
    says = 4 * 32 * 64 * len(each.functors)
    print(f"{name:29s} saved {counted.saved:6,}, by the formula {says:6,}")

# %% [markdown]
# A convolution is a product too (lesson 09), and takes the same functors. The last one in a block of
# ResNet adds a bias to each channel, then what came into the block, and cuts off below 0. torch's
# convolution has the bias in it already, so two functors are left:

# %%
images, came_in, taps = (
    normals(*shape).contiguous(memory_format=torch.channels_last)
    for shape in ((2, 16, 8, 8), (2, 16, 8, 8), (16, 16, 3, 3))
)
block = epilogues.residual(came_in) | epilogues.relu()
both = explore.fusion.chained_conv2d(
    images, taps, normals(16), padding=1, epilogue=block
)
counted = explore.fusion.bytes_saved(both.fused, both.unfused, both.tensors)
print(f"{counted.fused_kernels} kernel for {counted.unfused_kernels}")
print(f"saved {counted.saved:,}, by the formula {2 * 2 * images.nbytes:,}")

# %% [markdown]
# ## A norm of each row
#
# An epilogue sees a tile. What needs more than that, such as the mean of a *row*, it can do
# only if the tile has whole rows. Then it is lesson 04's norm, of numbers that are in registers
# already. An RMS norm, $x / \sqrt{\text{mean}(x^2) + \varepsilon} \cdot w$:


# %%
@triton.jit
def product_rms_norm_kernel(
    a_pointer,
    b_pointer,
    weight_pointer,
    output_pointer,
    epsilon,
    sizes,
    a_strides,
    b_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHECKS: tl.constexpr,
    DIVISORS: tl.constexpr,
):
    row = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.arange(0, BLOCK_N)[None, :]
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
    mean_square = tl.sum(total * total, axis=1) / sizes[1]
    weight = tl.load(weight_pointer + col, mask=col < sizes[1], other=0.0).to(
        tl.float32
    )
    tile = total * tl.rsqrt(mean_square + epsilon)[:, None] * weight
    store_tile(output_pointer, row, col, tile, sizes, DIVISORS)


def product_rms_norm(a, b, weight, epsilon=1e-5, rows=16):
    output = output_of(a, b)
    tile = (rows, triton.next_power_of_2(b.shape[1]), 16)
    arguments, meta = described(a, b, tile)
    given = (a, b, weight, output, epsilon, *arguments)
    grid = (triton.cdiv(a.shape[0], rows),)
    return Launch((Step(product_rms_norm_kernel, grid, given, meta),), (output,))


# %% [markdown]
# A tile of 64 columns of which 40 exist holds zeros in the others, since what is loaded of B
# there is 0. **Predict.** Is the mean right without a mask?

# %%
no_mask = teach.predict(
    "The mean of squares, in a tile with columns too many",
    guess=None,
    choices=("right: zeros add nothing", "wrong: zeros count"),
)

# %%
narrow, weight = normals(32, 40), normals(40)
(got,) = product_rms_norm(x, narrow, weight).run()
product_in_double = x.cpu().double() @ narrow.cpu().double()
exact = F.rms_norm(product_in_double, (40,), weight.cpu().double(), 1e-5)
is_right = torch.allclose(got.cpu().double(), exact, atol=0.02)
no_mask.reveal(
    "right: zeros add nothing" if is_right else "wrong: zeros count",
    because="their squares are 0, and the sum is divided by n, not by the tile's width.",
)

# %% [markdown]
# (A layer norm subtracts the mean first. Is it right without a mask too? Exercise 10-3.)
#
# The package's template takes any of lesson 04's norms, lesson 03's softmax and reductions:
# from each row a *state* is found, and the row is made anew with it. A row's state is that of
# its parts, merged, so that a tile of 192 columns, two parts, is no other case. And a chain of functors
# comes first, so that a residual and the norm of the sum are one kernel too:

# %%
source = inspect.getsource(gemm_rows.gemm_rows_kernel.fn)
print(source[source.index("    parts = of_epilogue") :])

# %% [markdown]
# ## When fusion does not pay
#
# ### 1. The product takes all the time
#
# A gain by bytes is a gain of time only as far as the bytes took time. Here is the least time
# of both plans of GEMM + Add + Add + FastGELU, by the H200's recorded roofs, for
# 4096 × 4096 and more and more of K. **Predict.** At K = 16,384, how many times as long do the
# four kernels take?

# %%
at_long_k = teach.predict(
    "Least time unfused over fused, K = 16,384", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
times = [explore.fusion.explored(viz.FusionChoice(4096, 4096, k)) for k in lengths]
gains = [each.predicted[1] / each.predicted[0] for each in times]
for each, gain in zip(times, gains, strict=True):
    print(
        f"K = {each.choice.k:6,}: bytes {each.unfused_bytes / each.fused.bytes:.2f} times, "
        f"time {gain:.2f} times, fused bound by {each.bound}"
    )
at_long_k.reveal(
    round(gains[-1], 2),
    because="the additions still take what they took, beside a product four times as long.",
    tolerance=0.05,
)

# %%
with viz.figure_style():
    figure, axis = plt.subplots(figsize=(9, 3.6))
    axis.plot(lengths, gains, "o-", label="least time, unfused over fused")
    in_bytes = [each.unfused_bytes / each.fused.bytes for each in times]
    axis.plot(lengths, in_bytes, "s--", label="bytes, unfused over fused")
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.set_ylim(0.9, None)
    axis.set_xlabel("K")
    axis.set_ylabel("times")
    axis.legend()
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: two curves over K, from 64 to 16,384, of the unfused plan over the fused one: its bytes,
# from three times down to about one and a half, and its least time, which begins with the bytes,
# rises above them at 256, is highest at 512, and then falls below them, to less than a tenth above 1.*
#
# On the left, all is bound by memory, and time is bytes. On the right, the fused kernel is bound by
# compute: $D_0$ and $D_1$ hide behind the matrix units, and what fusion can gain is the time of three
# kernels that are short beside the product. In between it gains *more* than the bytes say. There the
# bare product is bound by compute already, while the fused one still waits for $D_0$ and $D_1$, and
# multiplies meanwhile: two kernels, one of FLOPs and one of bytes, take the sum of their times; one
# kernel of both takes the longer.
#
# By this model fusing an epilogue never *loses*. But the model knows no registers: if a chain makes
# the kernel take a smaller tile, or fewer stages, a product that is bound by compute pays for it in
# every step along K.
#
# ### 2. The row does not fit
#
# A row of 4,096 numbers fits no tile. Then no program knows the norm when it has its part, and the
# product has to be in memory after all: the first kernel stores it, and a *state* of each row in
# each tile (of a layer norm count, mean and sum of squares); the second merges states, reads the
# product and finishes. The plan without fusion stores the product and reads it too. **Predict.**
# What does the fused one save?

# %%
saves = teach.predict(
    "A layer norm after a product, rows in two tiles",
    guess=None,
    choices=("about half of the bytes", "nothing", "less than nothing"),
)

# %%
norm_weight, norm_bias = normals(64), normals(64)
saved_by = {}
for op, given in (
    ("matmul_layer_norm", (x, y, norm_weight, norm_bias)),
    ("matmul_amax", (x, y)),
):
    for columns in (64, 32):
        both = explore.fusion.plans(
            op, *given, tile=(16, columns, 16), product_tile=SMALL["product_tile"]
        )
        counted = explore.fusion.bytes_saved(both.fused, both.unfused, both.tensors)
        saved_by[op, columns] = counted.saved
        print(
            f"{op:18s} {columns} of 64 columns in a tile: {counted.fused_kernels} for "
            f"{counted.unfused_kernels} kernels, saved {counted.saved:6,}"
        )
saved = saved_by["matmul_layer_norm", 32]
saves.reveal(
    "less than nothing" if saved < 0 else "nothing" if saved == 0 else saved,
    because="the product is stored and loaded as before, and states besides.",
)

# %% [markdown]
# It pays where the row fits: the product of 32 × 64 is stored and loaded no more, 8,192 bytes. And
# a *reduction* pays either way, since nobody wants its product: states are all that is stored.
#
# ### 3. What stays on chip is too wide
#
# Two products, one behind the other, $(A B_0) B_1$, of $A$ with $m \times k$, $B_0$ with
# $k \times l$ and $B_1$ with $l \times n$. The first one's tile can be multiplied with its rows of
# $B_1$ at once, and never be stored: it saves $4 ml$ bytes. But a program that does so needs the sums
# of *all* n columns of its rows. Where the tile has fewer, each column of tiles makes the first
# product anew. The compiler, for an H200, with tiles of 128 rows and 8 warps:

# %%
tall = torch.empty(1024, 64, dtype=torch.float16, device=here.torch_device)
pairs = {}
for columns in (64, 128, 256, 512):
    first, second = wide[:64], wide[:, :columns].contiguous()
    tile = (128, columns, 64, 64)
    pairs[columns] = gemm_pair.launch(tall, first, second, tile=tile, num_warps=8)
for columns, (step,) in zip(
    pairs, lens.compile_all(list(pairs.values()), "sm_90"), strict=True
):
    print(
        f"{columns:3d} columns of the output: "
        f"{'spills' if step.spills else 'all in registers'}, products "
        f"{'wait for one another' if step.serialized_wgmma else 'overlap'}"
    )

# %% [markdown]
# So 512 columns are too many: 128 × 512 sums over 256 threads are 256 registers, of 255. With tiles
# of 256 columns it fits, and pays in FLOPs. What is that worth, by the roofs?


# %%
def pair_by_roofs(m, k, inner, n, most=256):
    """Times the FLOPs of two kernels that one takes, and its speed in terms of theirs."""

    def least(flops, elements):
        return max(flops / cube.roofs.rate("fp16"), 2 * elements / cube.roofs.bandwidth)

    first, second = 2 * m * inner * k, 2 * m * inner * n
    again = triton.cdiv(n, most) * first + second
    in_one = least(again, m * k + k * inner + inner * n + m * n)
    in_two = least(first, m * k + k * inner + m * inner)
    in_two += least(second, m * inner + inner * n + m * n)
    return again / (first + second), in_two / in_one


# %% tags=["nbval-ignore-output"]
for sizes in (
    (65536, 128, 128, 128),
    (65536, 128, 512, 128),
    (65536, 128, 512, 512),
    (32768, 256, 256, 256),
    (4096, 4096, 4096, 4096),
):
    again, gain = pair_by_roofs(*sizes)
    m, k, inner, n = sizes
    print(
        f"m {m:6,}, k {k:5,}, l {inner:5,}, n {n:5,}: {again:.2f} times the FLOPs, "
        f"{gain:.2f} times as fast at most"
    )

# %% [markdown]
# Where all sides are narrow, fusing is worth a factor. Where n is wide, the first product is made
# again and again, and one kernel takes *longer* than two. Attention is the same pair of products with
# a softmax between them, and n there is the width of a head: 64 or 128. It is no accident that it fuses.
#
# ### A gate, which always fits
#
# SwiGLU, $\text{silu}(A G) \cdot (A U)$, wants one element of both products for each of its own. So a
# program makes the same tile of both, side by side, and loads A once for the two:

# %%
both = explore.fusion.plans("swiglu", x, y, normals(32, 64), tile=(16, 32, 16))
counted = explore.fusion.bytes_saved(both.fused, both.unfused, both.tensors)
by_formula = 4 * 32 * 64 * 2 + 2 * 32 * 32
print(f"{counted.fused_kernels} kernel for {counted.unfused_kernels}")
print(f"saved {counted.saved:,}; by the formula {by_formula:,}")

# %% [markdown]
# That is a store and a load of two products, and one reading of A. It costs registers as well: two
# tiles of sums, so that each can have half as many columns.
#
# ## Check it
#
# Sizes that fill no tile, operands that broadcast in every way, transposed ones, outputs full of NaN,
# programs in a shuffled order; our chain and the package's, and our norm:

# %%
for seed, (m, n, k) in enumerate(((1, 1, 1), (17, 33, 31), (40, 20, 16), (16, 64, 50))):
    generator.manual_seed(seed)
    a, b = normals(m, k), normals(n, k).t()
    full, row, column = normals(n, m).t(), normals(n), normals(m, 1)
    exact = (a.cpu().double() @ b.cpu().double() + row.cpu().double()).relu()
    exact = exact * column.cpu().double() + full.cpu().double()
    multiply = epilogue.multiply
    by_hand = [(add, (row,)), (relu, ()), (multiply, (column,)), (add, (full,))]
    chain = epilogues.bias(row) | epilogues.relu() | epilogues.multiply(column)
    shipped = gemm.launch(
        a, b, epilogue=chain | epilogues.add(full), tile=(16, 32, 16), splits=2
    )
    norm = F.rms_norm(
        a.cpu().double() @ b.cpu().double(), (n,), row.cpu().double(), 1e-5
    )
    wrong = []
    for name, launch, wanted in (
        ("chained", chained(a, b, by_hand), exact),
        ("shipped, K in two splits", shipped, exact),
        ("norm", product_rms_norm(a, b, row), norm),
    ):
        (got,) = runtime.interpret(launch, poison=True, seed=seed).outputs
        if not torch.allclose(got.double(), wanted, atol=0.02, rtol=0.002):
            wrong.append(name)
    print(f"{m:2d} × {n:2d} × {k:2d}: {', '.join(wrong) or 'all right'}")

# %% [markdown]
# What this does *not* prove: that any of it is fast, that offsets beyond 32 bits are right, or that
# the compiler keeps its word about registers on a GPU that is not here.
#
# ## Turn the knobs
#
# Put an epilogue together, functor by functor, and choose a size. On the left is what the kernel does
# with its tile; on the right are both plans, bytes and least times, with a part for each kernel. Find a
# chain and a size for which fusing gains more than four times; then change *one* size so that it gains
# less than a tenth. Does it matter for the bytes which functor you choose?

# %% tags=["widget"]
explore.fusion.explore()

# %% [markdown]
# ## Look inside
#
# The shipped product with its chain, for an H200 and an MI300. In the lens, `part_of_tile` makes the
# product, and `finish` does all that comes behind it. Which of the two asks for more bytes, and which has
# more instructions? (An instruction counts once, however often it runs, and those of the loop over K run
# many times.) Go down from `finish` to the functors.

# %%
shipped = gemm.launch(
    wide,
    wide,
    epilogue=whole_chain,
    tile=(128, 128, 64),
    splits=1,
    num_warps=8,
    num_stages=3,
)
for target in ("sm_90", "gfx942"):
    (step,) = lens.compile(shipped, target)
    print(
        f"{target}: matrix instructions {step.count('matrix') > 0}, "
        f"spills {step.spills > 0}, widest load {step.widest('global load')} bits"
    )

# %% tags=["widget"]
explore.source.source_lens(shipped, shown=("sm_90", "gfx942"))

# %% [markdown]
# And in numbers, which differ from one compiler to the next: what the chain costs of registers, in the
# three kernels of step 4, with tiles of 128 × 256.

# %% tags=["nbval-ignore-output", "compiler"]
for name, (step,) in outcomes.items():
    print(
        f"{name:14s} {step.registers:3d} registers, {step.spills:3d} spilled, "
        f"{step.shared_bytes / 1024:.0f} KiB shared"
    )

# %% [markdown]
# ## On Hopper: one group multiplies, the other finishes
#
# In the kernel that you built, all warps of a program multiply, and then all of them finish their
# tile: they load $D_0$ and $D_1$, compute and store. Meanwhile they give the matrix units nothing
# to do.
#
# Triton's language has no words for "these warps multiply, and those finish". Gluon, the lower
# language beneath it, has. So the package has a second kernel, in Gluon, for what is asked for most:
# `workbench/kernels/gemm/hopper.py`. On Hopper it ships where an epilogue loads matrices, or computes
# FastGELU, SiLU or a sigmoid, in 16 bits, with rows that begin at lines of memory, and at least one tile of
# 128 × 128 for each SM. For other chains, and for a product alone, it ships where lesson 06's formula promises most
# of it. (With a functor of your own, the portable kernel ships.) It does the same sums, and calls the same functors:
#
# - Two groups of four warps have a tile each. While one multiplies, the other one finishes. Then they
#   change places. (CUTLASS calls this *ping-pong*.)
# - A warp of its own copies tiles of A and B, by TMA. Another one brings the tiles of $D_0$ and
#   $D_1$, so that they are in shared memory before they are needed.
# - Programs are persistent, as in lesson 06's rung 9: each takes tile after tile.
#
# This is what a group does with its tiles: `multiply` one, then `finish` it. To multiply is to wait for its
# turn, to go along K, and to let the other group begin (`turn` is the barrier for that). To finish is to read
# what was brought of $D_0$ and $D_1$, to call the functors and to store, part by part. `BEGIN` is for a long
# K where an SM has two tiles, and so the second group has one. It does not begin with zeros but with the sum of
# $D_0$ and $D_1$, read while the first tile is multiplied. And it ends by halves: the last products of the
# lower half are started between what is stored of the upper one, and half of each is handed to the first group.
#
# Where an SM has more tiles, and K is long, the groups do not take turns (`gemm_hopper_pairs.py`). They have
# neighboring tiles of one row, and multiply the same block of A at the same time, each by its own block of B.
# One group is seven steps behind the other. So it still multiplies, alone, when the first one finishes, and
# finishes while the first begins the next pair. $D_0$ and $D_1$ are added half-way along K.
#
# And where an SM would have three tiles of 128 × 128, but has two of 128 × 192, chains that begin with adding two
# matrices of fp16 get those, from ten steps along K on (`gemm_hopper_wide.py`): for each sum a sixth less of A and
# B is brought. The second tile begins as the sum of $D_0$ and $D_1$, as above; a third of it is handed to the first
# group at the end. (Where no matrices are added, the groups take turns with as many such tiles as there are.
# `PRODUCTS` is true in every call; you will meet it when we measure.)

# %%
for kernel_part, begins in (
    (gemm_hopper.multiply_and_finish, "    if not BEGIN"),
    (gemm_hopper.multiply, "    done = nth"),
):
    source = inspect.getsource(kernel_part.fn)
    print(source[source.index(begins) :])

# %% [markdown]
# ## Measure
#
# GEMM + Add + Add + FastGELU in fp16, on Composable Kernel's four sizes and six more, as recorded on an
# H200 in short bursts: a few calls in a CUDA graph, after a rest. (A GPU that multiplies for longer comes to
# its power limit and lowers its clock, by an amount that depends on what ran before. So it is hard to see
# whether the chain costs a few hundredths more or less.) First beside the package's own bare product,
# `ops.matmul`: what does the chain cost?
#
# **Predict.** For $m = n = k = 4096$, how much longer than the bare product does the whole chain take?

# %%
CHAIN_COSTS = ("nothing that shows", "some 5 %", "some 20 %")
chain_costs = teach.predict(
    "The chain beside the bare product, 4096³", guess=None, choices=CHAIN_COSTS
)

# %%
shipped_lines = recording.shipped("nvidia-h200")
TUNED = "torch.compile max-autotune"


def latest_of(op, mode="cuda_graph"):
    """Return the lines of an operator's last run, by problem and provider."""
    lines = recording.select(shipped_lines, op=op, dtype="fp16", mode=mode)
    found = {}
    for line in recording.latest_run(lines):
        found.setdefault(line.problem, {})[line.provider] = line
    return found


def table_of(head, rows):
    return Markdown(
        "\n".join(f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *rows))
    )


fused_lines = latest_of("fused_matmul", "burst")
of_cube = {name: line.median_ms for name, line in fused_lines["4096^3"].items()}
over_bare = of_cube["workbench"] / of_cube["workbench:bare"]
chain_costs.reveal(
    CHAIN_COSTS[(over_bare > 1.02) + (over_bare > 1.12)],
    because="a tile is finished while another one is multiplied.",
)

# %% [markdown]
# Why is it not nothing? In the table, `more` is the time of the whole less that of the bare product, and
# `addends` is what the bytes of $D_0$ and $D_1$ take at the roof of a copy. (A small problem finds some of
# its bytes in the L2 cache, since it runs again and again. Then the roof of memory is not its limit.)

# %% tags=["nbval-ignore-output"]
rows = []
for problem, by in fused_lines.items():
    whole, bare = (1e3 * by[name].median_ms for name in ("workbench", "workbench:bare"))
    addends = 4 * by["workbench"].case["m"] * by["workbench"].case["n"]
    kernel_of_it = next(
        (
            word
            for word, kernel_name in (
                ("ping-pong", "gemm_ping_pong_kernel"),
                ("pairs", "gemm_pairs_kernel"),
                ("192 columns", "gemm_wide_kernel"),
            )
            if kernel_name in by["workbench"].config["kernels"]
        ),
        "portable",
    )
    rows.append(
        [
            problem,
            kernel_of_it,
            f"{bare:.4g}",
            f"{whole:.4g}",
            f"{whole / bare:.2f}",
            f"{whole - bare:.1f}",
            f"{1e6 * addends / cube.roofs.bandwidth:.1f}",
        ]
    )
head = [
    "problem",
    "kernel",
    "bare, µs",
    "whole, µs",
    "whole over bare",
    "more, µs",
    "addends, µs",
]
table_of(head, rows)

# %% [markdown]
# - **Large, with a long K** (the four with K = 4096 and thousands of rows). The chain costs three to six
#   hundredths. That is a third to seven tenths of what the addends' bytes would take alone: the rest is hidden.
# - **2048³** has less to hide behind: there are 256 tiles, so an SM has two at most, and nothing
#   is left to multiply while the second one is finished. Its gelu alone, an exponential and a reciprocal for each of
#   16,384 elements, keeps units that do 16 in a clock busy for 2,048 clocks. So the kernel begins this tile
#   as the sum of the addends, finishes its upper half between the last products of the lower one, and hands half
#   of each to the group that has nothing left to do. So it costs no more than they do, five hundredths. (On
#   another H200, before all that was done, it was nine; on an H100 it is seven.)
# - **A short K loses more:** from about a fifth to over two fifths. There `more` is about half of what the addends' bytes
#   take, or over. The model above promised the longer one of FLOPs and bytes. What came is nearer to the sum of
#   the bare product and the addends.
# - **The addends are read once**, A and B by a whole row or column of tiles. So the copies of addends have a hint,
#   where all tensors fit the L2 cache, as at 2048³ and 2048 × 3072 × 768: evict these first, and A and B stay.
# - **Portable** are the three that have fewer tiles of 128 × 128 than there are SMs. There the chain takes longer than
#   its addends' bytes: no other group multiplies while a tile is finished. On 1000³, for one, the whole
#   takes {{recording device=nvidia-h200 op=fused_matmul dtype=fp16 m=1000 n=1000 k=1000 provider=workbench:bare over=workbench}}
#   times as long as the bare product. (What else it waits for was not measured.)
#
# Why is so little hidden where K is short? Ask the kernel: leave its products out, and nothing else. (That is
# `if PRODUCTS`, in the source above and in the two others; `gemm.without_products` makes such a launch of
# another.) What is left still copies $A$, $B$, $D_0$ and $D_1$, tile by tile, finishes each tile as if $A$ were
# 0, and stores it. If that takes much less time, the whole waits for its products. If it takes about as long,
# the products are hidden behind the rest, and faster matrix units would change nothing.
#
# **Predict.** How much of its time is left of 2048 × 3072 × 768 without the products, on the H200?

# %%
SHARES = ("two fifths", "three fifths", "four fifths", "nearly all")
left_without = teach.predict(
    "Left without products, 2048 × 3072 × 768", guess=None, choices=SHARES
)

# %%
WITHOUT = "workbench:without products"
of_transformer = fused_lines["2048 x 3072 x 768"]
share = of_transformer[WITHOUT].median_ms / of_transformer["workbench"].median_ms
left_without.reveal(
    SHARES[sum(share > least for least in (0.5, 0.7, 0.9))],
    because="most of the products are made while the kernel waits for the rest.",
)

# %% tags=["nbval-ignore-output"]
rows = []
for problem, by in fused_lines.items():
    if WITHOUT in by:  # the portable kernel cannot leave them out
        whole, bare, rest = (
            1e3 * by[name].median_ms
            for name in ("workbench", "workbench:bare", WITHOUT)
        )
        rows.append(
            [
                problem,
                f"{bare:.4g}",
                f"{whole:.4g}",
                f"{rest:.4g}",
                f"{rest / whole:.2f}",
                f"{rest / bare:.2f}",
            ]
        )
head = [
    "problem",
    "bare, µs",
    "whole, µs",
    "without products, µs",
    "over whole",
    "over bare",
]
table_of(head, rows)

# %% [markdown]
# A GPU that multiplies nothing runs at a higher clock. So a part of what is saved is the clock's.
#
# - **A short K:** more than four fifths are left, even so. What is not products, copies and finishing, takes more
#   than a quarter longer than the bare product on 4096 × 4096 × 512. So all products would have to be made beside it.
#   On 2048 × 3072 × 768 runs differ, from 0.80 to 1.02 of the whole, which is 0.94 to 1.22 of the bare product.
#   All tensors nearly fill the L2 cache there, and a tenth is by how the result lies beside the others: without
#   products it was stored in another place than the whole's. (In an H100's recording both have a new result for
#   each call, and 0.90 is left.)
# - **Large, with a long K:** some three fifths are left. Products *and* the rest fill the time, side by side.
# - **2048³** keeps more than those, and up to as much as these.
#
# Beside it is not for nothing, either: the group that finishes and the one that multiplies share an SM. What
# does the first one get done then? Kernels in CUDA that do nothing else tell (an H200, not recorded; on your GPU,
# `python -m tools.contention`):
#
# | beside products of | reads of shared memory, bytes a clock | exponentials a clock | a part of 64 × 64 is finished in |
# | --- | --- | --- | --- |
# | nothing | 77 | 15 | 1,030 clocks |
# | 64 columns | 2 | 11 | 11,600 clocks |
# | 128 columns, then 64, by turns | 21 | 11 | 2,530 clocks |
# | 128 columns | 31 | 12 | 2,090 clocks |
# | 192 columns | 31 | 12 | 1,870 clocks |
#
# `wgmma` takes both blocks from shared memory, which gives 128 bytes a clock. Of 64 rows and 64 columns, and 16 along K, it
# reads 4 KiB for 32 clocks of the matrix units: 128 bytes a clock, and nobody else gets any. Of 192 columns it
# reads 8 KiB for 96 clocks. (31 is what the loop that reads gets done; there may be room for more.) That is why the kernel with tiles of 128 × 192 multiplies by products of 192 columns.
# A tensor in Triton has a power of two of columns, so the kernel is written with products of 128 and of 64, marks them,
# and `compat.with_whole_products` makes one of two in the PTX. It gained two to five hundredths (not recorded).
#
# And the roofline? By the datasheets, 2048 × 3072 × 768, with 212 FLOP a byte, is memory-bound on an H100, whose
# ridge is at 295, and just compute-bound on an H200, at 206; 4096 × 4096 × 512, with 158, is memory-bound on
# both. But a roofline knows one way, that from memory. The way from the L2 cache to an SM has a bandwidth too:
# kernels that only copied $A$ and $B$ brought each SM 56 to 66 bytes a clock (on an H100, not recorded;
# [a log of that day](../docs/notebook/2026-11-26-fused-gemm-short-k.md) has more). A step of 128 × 128 × 64 keeps the matrix units busy for 512 clocks, and needs 32 KiB of $A$ and $B$:
# 64 bytes a clock, so the way is full already. (Pairs, which share blocks of $A$, need 48 while both groups
# multiply.) $D_0$ and $D_1$ come on top: $128 / K$ of the bytes of $A$ and $B$, which is 3 % for K = 4,096, but
# 25 % for K = 512. (That is reasoned.)
#
# Now the compiler. `torch.compile` in its mode `max-autotune` times several kernels for each product, and
# may put the chain into one, as we do. **Predict.** For how many of the ten problems does it?

# %%
in_one = teach.predict("Fused by torch's compiler", guess=None, unit="of ten")

# %%
kernels_of = {
    problem: [name for name in by[TUNED].config["kernels"] if "Mem" not in name]
    for problem, by in fused_lines.items()
}
in_one.reveal(
    sum(len(names) == 1 for names in kernels_of.values()),
    because="for the others it takes a bare product, and one more kernel for the chain.",
)

# %% [markdown]
# And how fast is that? A ratio above 1 says that ours is faster; torch, without its compiler, starts a
# kernel for each operator. `by the roofs` is the least time of four kernels over that of one:

# %% tags=["nbval-ignore-output"]
rows = []
for problem, by in fused_lines.items():
    mine = by["workbench"]
    sizes = (mine.case[name] for name in "mnk")
    least, unfused = explore.fusion.explored(viz.FusionChoice(*sizes)).predicted
    rows.append(
        [
            problem,
            f"{by[TUNED].median_ms / mine.median_ms:.2f}",
            str(len(kernels_of[problem])),
            f"{by['torch'].median_ms / mine.median_ms:.2f}",
            f"{unfused / least:.2f}",
        ]
    )
head = [
    "problem",
    f"{TUNED}, over ours",
    "its kernels",
    "torch, over ours",
    "by the roofs",
]
table_of(head, rows)

# %% [markdown]
# - **The compiler** is slower on all ten. Of the large products with a long K it leaves the chain to a kernel of
#   its own, and is an eighth slower or more. For the product of 16 rows it takes over a third as long again as ours.
#   (On 4096³ its two kernels took longer in this run than in all such runs before, in which it was some 10 %
#   slower, once 6 %. It chooses by what it times: five of the others were fused in one run, and not in another.)
# - **torch's kernels**, one for each operator, take longer on all ten as well. On the large products with a long K ours
#   gains about what the roofs allow. Where K is short it gains a sixth less or more, as above, and on 1000³, too.
# - **The chain that you built**, with tiles of 128 × 256, for which it spills, was recorded on 4096³: the
#   shipped kernel is
#   {{recording device=nvidia-h200 op=fused_matmul dtype=fp16 m=4096 n=4096 k=4096 provider=workbench over=workbench:chained}}
#   times as fast. Yours is ahead of torch's four, but was *behind* the compiler's two in all runs but this
#   one. One kernel gains nothing by itself, if it spills and its epilogue hides behind nothing.
#
# Now norms, softmax, pairs (with a relu between) and gates, these in graphs that ran for longer. Of each problem the
# newest run counts, and the table says on which GPU: most kernels that do all in one were made faster after the
# H200 had run them, and were then recorded on an H100. `one kernel` says whether all is done in one. A ratio
# below 1 is a loss:

# %% tags=["nbval-ignore-output"]
followed_lines = [*shipped_lines, *recording.shipped("nvidia-h100-80gb-hbm3")]


def newest_of(op):
    """Return the lines of each problem's last run, by problem and provider."""
    lines = recording.select(followed_lines, op=op, dtype="fp16", mode="cuda_graph")
    problems = dict.fromkeys(line.problem for line in lines)
    newest = {
        problem: recording.latest_run(line for line in lines if line.problem == problem)
        for problem in problems
    }
    return {
        problem: {line.provider: line for line in run if line.problem == problem}
        for problem, run in newest.items()
    }


rows = []
for op in sorted({line.op for line in followed_lines} & set(explore.fusion.OPERATORS)):
    for problem, by in newest_of(op).items():
        mine = by["workbench"]
        ratios = [by[name].median_ms / mine.median_ms for name in (TUNED, "torch")]
        rows.append(
            [
                op,
                problem,
                mine.device.split()[1],
                "yes" if len(mine.config["kernels"]) == 1 else "no",
                f"{1e3 * mine.median_ms:.4g}",
                *(f"{ratio:.2f}" for ratio in ratios),
                "loss" if min(ratios) < 1 else "",
            ]
        )
head = ["operator", "problem", "GPU", "one kernel", "ours, µs"]
table_of([*head, f"{TUNED}, over ours", "torch, over ours", "note"], rows)

# %% [markdown]
# - **In one kernel** ours is ahead of torch and of the compiler everywhere and, but for gates, by a fifth or
#   more. (The largest ratio says more about torch's layer norm of very short rows than about fusion.)
# - **Gates** gain most where K is short. Where it is long, the two products take all the time.
# - **Long rows.** A norm of 1,024 or 4,096 columns takes two kernels, and by the count above that saves
#   less than nothing. What is gained or lost there is not by fusion, but by how good the kernels are: those of
#   4,096 columns are losses.
# - **The wide pair**, 4096 on all sides, would make its first product again and again. So
#   `ops.matmul_matmul` does not fuse it, and is about as fast as torch.
#
# **What remains.** Of the chain: what the addends' way costs, most of all where K is short. Norms, pairs and
# gates are in Triton's language on Hopper too, where no group of warps multiplies while another one finishes. Most
# of their tiles are so small, and their buffers so few, that an SM has room for two programs or more, of which one
# may multiply while the other one stores. Rows of 512 columns, and gates of a long K, have an SM for
# themselves. (How much is hidden was not measured.)

# %% [markdown]
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on all of its
# cases, and if no more of the machine is used than the text says; `teach.exercise("10-1").hint()`
# asks a question that leads on. Matrices are in fp16, and sums stay in fp32 to the end.
#
# ### Exercise 10-1: a functor of your own
#
# To each element of a product, add its column's `bias`; keep the result between `-most` and `most`,
# NaN excepted, which stays; multiply by its row's `gate`; and put 0 right of the diagonal, where the column's number is larger than
# the row's. `bias` is [n], `gate` is [m], `most` a number. It runs in the shipped kernel. A tile of 16
# rows and 32 columns loads 32 numbers of the bias and 16 of the gate, and no more.


# %%
# {{exercise 10-1}}

# %% [markdown]
# {{solution 10-1}}

# %% [markdown]
# ### Exercise 10-2: once, after the sum
#
# Four programs share K for each tile of 16 × 16, as in exercise 06-2, and this time the result is
# $\text{silu}(A B + D)$. `part_of_tile` makes a program's part of a tile; parts are in fp32. Write both
# kernels. Which of them has the epilogue? The addend is loaded once, and all are contiguous.


# %%
# {{exercise 10-2}}

# %% [markdown]
# {{solution 10-2}}

# %% [markdown]
# ### Exercise 10-3: the norm of a row that fits
#
# The layer norm of each row of a product, $(x - \bar x) / \sqrt{v + \varepsilon} \cdot w + b$, in one
# kernel: a program makes 16 whole rows, in a tile of 64 columns, of which n exist. `rows_of_product`
# makes the tile. Rows may be far from 0. A is loaded once, and B, weight and bias once a program.


# %%
# {{exercise 10-3}}

# %% [markdown]
# {{solution 10-3}}

# %% [markdown]
# ## Takeaways
#
# - An epilogue works on a tile while it is in registers. Each functor in it saves a store and a load
#   of the product, whatever it does, and a rounding.
# - A functor is a function of a tile, of its own operands and of its place; what a tensor broadcasts is
#   a stride of 0, and a row is loaded as a row.
# - Bytes saved are time saved only as far as bytes took time: count both plans under the roofs.
# - An epilogue costs time unless something hides it. The product of another tile does, where K is
#   long and there are tiles enough.
# - What needs a whole row fuses where the row fits a tile. Where it does not, a norm saves no bytes; a
#   reduction saves the product still.
# - What stays on chip takes registers. Where they do not suffice, fusion is paid for with spills, with
#   smaller tiles, or with FLOPs.
#
# **Next:** [11, flash attention](11_flash_attention.ipynb) fuses two products and a softmax. Back to
# [06, fast GEMM](06_fast_gemm.ipynb), or to [00, start here](00_start_here.ipynb).
