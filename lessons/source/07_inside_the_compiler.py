# %% [markdown]
# # Inside the compiler: what your kernel became
#
# You will build
#
# - a matrix product of forty lines, and follow one of them from Triton to the machine
#   code of NVIDIA and of AMD;
# - a map of who holds what: for each element of a tile the warp, the lane and the
#   register, and why shared memory is *swizzled*; the shipped product, read like that;
# - a proof that a tile distribution of AMD's Composable Kernel (CK) and a layout of
#   Triton are the same thing.
#
# **Time:** 60 minutes. **You need:** Python. All of this lesson is compiled for GPUs
# that need not be here. What is compiled for AMD was **compiled, not run**: no AMD GPU
# has run it yet.
#
# **Out of scope:** how fast it is. Nothing is timed in this lesson. It explains what a
# clock finds; asking the clock is for a later one.

# %%
from workbench import Launch, Work, device, explore, lens, runtime, teach, viz
from workbench.coords import TileDistributionEncoding
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing

import inspect
import math
import re

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl

# %% [markdown]
# ## The kernel
#
# $C = A B$, in the shape that all fast products have. Each program computes one tile of
# $C$. It walks along $K$, loads a tile of $A$ and one of $B$, multiplies them with
# `tl.dot`, and adds the product to an **accumulator** in fp32, which never leaves the
# chip until the end. The reference is one line, `a @ b`.


# %%
@triton.jit
def product_kernel(
    a_pointer, b_pointer, c_pointer, M, N, K,
    a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(axis=1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_valid, column_valid = rows[:, None] < M, columns[None, :] < N
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        steps = start + tl.arange(0, BLOCK_K)
        a_offsets = rows[:, None] * a_row + steps[None, :] * a_column
        b_offsets = steps[:, None] * b_row + columns[None, :] * b_column
        a_mask = row_valid & (steps[None, :] < K)
        b_mask = (steps[:, None] < K) & column_valid
        a = tl.load(a_pointer + a_offsets, mask=a_mask, other=0.0)
        b = tl.load(b_pointer + b_offsets, mask=b_mask, other=0.0)
        accumulator = tl.dot(a, b, acc=accumulator)
    c_offsets = rows[:, None] * c_row + columns[None, :] * c_column
    c = accumulator.to(c_pointer.dtype.element_ty)
    tl.store(c_pointer + c_offsets, c, mask=row_valid & column_valid)


def product(a, b, block_m=64, block_n=64, block_k=32, **options):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    moved = (m * k + k * n + m * n) * a.element_size()
    strides = *a.stride(), *b.stride(), *c.stride()
    tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
    return Launch.of(
        product_kernel,
        (triton.cdiv(m, block_m), triton.cdiv(n, block_n)),
        *(a, b, c, m, n, k, *strides),
        outputs=c,
        work=Work(flops=2 * m * n * k, bytes=moved),
        **tile,
        **options,
    )


# %% [markdown]
# Check it before you look inside: shapes that no tile divides, into outputs full of
# NaN, with the programs shuffled. The numbers are small and whole, so every sum is
# exact.

# %%
generator = torch.Generator().manual_seed(0)


def small_integers(*shape):
    return torch.randint(-2, 3, shape, generator=generator).to(torch.float16)


for m, n, k in ((1, 1, 1), (64, 64, 32), (65, 63, 33), (100, 30, 70)):
    a, b = small_integers(m, k), small_integers(k, n)
    mine = runtime.interpret(product(a, b), poison=True, seed=m)
    assert torch.equal(mine.outputs[0], (a.float() @ b.float()).half())
    print(f"{m:3d} × {n:2d} × {k:2d}: agrees with torch to the last bit")

# %% [markdown]
# This does not prove that it runs on any GPU. But we can see what would run there.
#
# ## One line, many languages
#
# The compiler translates the kernel step by step, and keeps each step's text:
#
# | stage | what it knows |
# | --- | --- |
# | **TTIR** | tiles and what is done to them; no GPU yet |
# | **TTGIR** | the same tiles, each with a **layout**: who holds which element |
# | **LLVM IR** | one thread and its registers; tiles are gone |
# | **PTX**, then **SASS** | NVIDIA's portable assembly, then what the machine runs |
# | **AMDGCN** | what an AMD machine runs |
#
# A launch and the name of a GPU are all that it needs. Here is what the line with
# `tl.dot` is called in each stage.

# %%
a, b = small_integers(128, 128), small_integers(128, 128)
launch = product(a, b, num_warps=4, num_stages=3)
DOT = re.compile(
    r"tt\.dot\b|ttng\.warp_group_dot\b|wgmma\.mma_async[\w.]*|HGMMA[\w.]*"
    r"|llvm\.amdgcn\.mfma[\w.]*|v_mfma\w*"
)
compiled = {name: lens.compile(launch, name)[0] for name in ("sm_90", "gfx942")}
for name, step in compiled.items():
    for stage, text in step.stages.items():
        print(f"{name:7s} {stage:7s} {DOT.search(text).group()}")

# %% [markdown]
# One line of Python became instructions that each multiply 64 × 64 × 16 numbers, by 128
# threads together (`HGMMA.64x64x16`, on Hopper, the generation of the H100 and the
# H200), or 32 × 32 × 8, by 64 lanes (`v_mfma_f32_32x32x8`, on CDNA3, AMD's MI300). What
# carries them out are the **matrix units**. The compiler found them, because `tl.dot`
# says *what* is computed and not by whom.
#
# Every instruction remembers the line that it comes from. These belong to the line with
# `tl.dot`. (`@!PT` before an instruction means that it is never carried out.)


# %% tags=["nbval-ignore-output", "compiler"]
def line_of(text):
    lines, first = inspect.getsourcelines(product_kernel.fn)
    return first + next(at for at, line in enumerate(lines) if text in line)


dot_line = line_of("tl.dot(")
for name, step in compiled.items():
    of_line = [each for each in step.instructions if each.line == dot_line]
    print(f"{name}: {len(of_line)} instructions, among them")
    for each in [each for each in of_line if each.kind != "other"][:6]:
        print(f"    {each.kind:12s} {each.text[:70]}")

# %% [markdown]
# ## Select a line
#
# The **source lens** puts it together. Click a line, or go there with the arrow keys:
# what it touches in a recorded run, the layout of its tensors, and its instructions on
# each GPU, side by side. Tick another one to compile for it, too.


# %% tags=["widget"]
explore.source.source_lens(launch, ("sm_90", "gfx942"))

# %% [markdown]
# Look at the two loads on `sm_90`: they have become **asynchronous copies** (`LDGSTS`).
# No register takes part; the bytes go from memory straight to shared memory, while the
# matrix units still work on the tiles before. On `gfx942` they are loads to registers,
# and a store to shared memory follows.
#
# ## What a layout is
#
# A tile of 64 × 32 elements is no array anywhere. It is spread over the registers of
# 128 threads: 4 **warps** of 32 **lanes**. How many elements does each thread hold?

# %%
each_thread = teach.predict(
    "A 64 × 32 tile in 4 warps of 32 lanes: elements a thread", guess=None, unit=""
)

# %%
each_thread.reveal(16, because="64 · 32 = 2,048 elements, dealt out to 128 threads.")

# %% [markdown]
# *Which* sixteen? That is the layout, and TTGIR writes it beside the type of every
# tensor. This is the one in which the A100 (`sm_80`) addresses the tile of $A$.


# %%
def find_layout(step, **wanted):
    """The first tensor of the compiled kernel for which all of this is so."""
    for tensor in step.layouts:
        if all(getattr(tensor, name) == value for name, value in wanted.items()):
            return tensor
    raise LookupError(wanted)


(sm_80,) = lens.compile(launch, "sm_80")
a_tensor = find_layout(sm_80, name="blocked", shape=(64, 32))
print(a_tensor.layout)
a_layout = lens.layout.of(a_tensor.layout, a_tensor.shape, target="sm_80")
print(f"{a_layout.warps} warps, {a_layout.lanes} lanes, {a_layout.registers} registers")

# %% [markdown]
# Read it from the inside: a thread holds `[1, 8]`, eight elements of a row (16 bytes:
# one load of 128 bits); the lanes of a warp stand in `[8, 4]`, four of them to a row;
# the warps stand in `[4, 1]`, one under the other. `order = [1, 0]` says that columns
# come first. That makes 32 rows, and the tile has 64: so all of it is **repeated**, and
# each thread has another eight elements 32 rows further down. Point at an element, or go
# there with the arrow keys, and everything else that its lane holds stands out.

# %% tags=["widget"]
viz.LayoutWidget(a_layout)

# %% [markdown]
# *Figure: the 64 × 32 tile, colored by lane; runs of eight columns share a lane, bands
# of eight rows belong to a warp, and after four bands the pattern begins anew.*
#
# It can be asked both ways: who holds an element, and which element a place holds.

# %%
print("element (5, 3) is in   ", *a_layout.holders(5, 3))
print("element (37, 3) is in  ", *a_layout.holders(37, 3))
print("warp 3, lane 31, register 15 holds", a_layout.element(3, 31, 15))

# %% [markdown]
# Now the trick that the whole compiler stands on. Everything here is a power of two, so
# a layout only moves *bits*. Each bit of the register's, lane's and warp's number adds
# an index of its own, a **basis**, and the element is the exclusive or of the bases of
# all bits that are set. Eleven bases say all about 2,048 elements.

# %%
print("register bits:", *a_layout.register_bases)
print("lane bits:    ", *a_layout.lane_bases)
print("warp bits:    ", *a_layout.warp_bases)

# %% [markdown]
# Register bit 3 adds (32, 0): that is the repetition. A basis of (0, 0) would mean that
# the bit changes nothing, so that two places hold a *copy* of one element. You find
# such in the vectors of your kernel: the 64 row numbers are needed by every lane that
# works on that row.

# %%
rows = find_layout(sm_80, name="slice of blocked", shape=(64,))
rows_layout = lens.layout.of(rows.layout, rows.shape, target="sm_80")
print(rows_layout.lane_bases)
for place in rows_layout.holders(5):
    print("row number 5 is in", place)

# %% [markdown]
# Four lanes hold row number 5: the four that share that row of the tile.
#
# ## The accumulator
#
# Matrix units leave no choice. `mma.m16n8k16`, the instruction of the A100, wants the
# 16 × 8 elements of its result in exactly these lanes; the manual of PTX prints the
# table, and the compiler's layout `nvidia_mma` is the same table.

# %%
accumulator = find_layout(sm_80, operation="tt.dot")
print(accumulator.layout)
one_warp = re.sub(r"warpsPerCTA = \[.*?\]", "warpsPerCTA = [1, 1]", accumulator.layout)
fragment = lens.layout.of(one_warp, (16, 8), target="sm_80")
viz.Picture(viz.figure_png(viz.layout_map(fragment)), viz.describe_layout_map(fragment))

# %% [markdown]
# *Figure: the 16 × 8 result of one matrix instruction: each row of eight is shared by
# four lanes, two neighbors a lane in registers 0 and 1; the lower eight rows repeat the
# same lanes in registers 2 and 3.*
#
# Keep this picture in mind for exercise 07-1.
#
# A tile must therefore change its layout on the way from the loads (wide rows) to the
# matrix unit (this). It does so through shared memory. We will see what that costs.
#
# ## Turn the knobs
#
# ### A known stride of 1
#
# A lane can load 128 bits at once if the compiler *knows* that its eight elements lie
# side by side, and begin at a multiple of 16 bytes. It knows two things about each
# integer argument: whether it is 1, and whether 16 divides it. Triton compiles the
# kernel anew for each answer.
#
# The rows of our $A$ are 128 elements apart. Suppose that they were 130: a matrix with
# two columns more, of which we use 128. How many bits does a lane load at once?

# %%
padded_rows = teach.predict(
    "Rows of fp16 that are 130 elements apart: bits a lane loads of A at once",
    guess=None,
    unit="bits",
)

# %%
a_line = line_of("a = tl.load")


def how_a_is_loaded(a):
    (step,) = lens.compile(product(a, b, num_stages=3), "sm_80")
    moves = [
        each
        for each in step.instructions
        if each.line == a_line and each.kind in ("global load", "asynchronous copy")
    ]
    return max(move.bits for move in moves), ", ".join({move.kind for move in moves})


wide = small_integers(128, 130)
padded_rows.reveal(
    how_a_is_loaded(wide[:, :128])[0],
    because="16 does not divide 130: rows may begin anywhere, so every element is "
    "loaded alone.",
)

# %%
ways = {
    "rows of 128, together": a,
    "rows of 130": wide[:, :128],
    "rows of 144": small_integers(128, 144)[:, :128],
    "every second column": small_integers(128, 256)[:, ::2],
    "transposed": small_integers(128, 128).t(),
}
for name, matrix in ways.items():
    bits, kind = how_a_is_loaded(matrix)
    print(f"{name:22s} strides {matrix.stride()!s:10s} {bits:4d} bits, {kind}")

# %% [markdown]
# One unlucky stride, and the same kernel needs eight times as many loads, and loses the
# asynchronous copies, too: these move 4 bytes or more. (The transposed matrix is as
# good as the first: there the *other* stride is 1, and the compiler turns the layout
# around.) So libraries pad their matrices. And where you know of a number what the
# compiler cannot, you write the kernel so that it can prove it: exercise 07-4 is about
# that.
#
# ### num_warps, and the size of the tile
#
# A thread of an NVIDIA GPU has at most 255 registers, and all threads of a
# *multiprocessor* (SM), the part of a GPU that runs a program, share 65,536. The
# accumulator is the largest tenant: `BLOCK_M ×
# BLOCK_N` numbers of 32 bits, dealt out to `32 × num_warps` threads. What does
# not fit is **spilled**: stored to memory, and loaded back.
#
# Predict first. On Hopper a matrix instruction of the new kind (`HGMMA`) is issued by
# four warps together. What does the kernel become with `num_warps=2`?

# %%
two_warps = teach.predict(
    "sm_90, num_warps=2: what becomes of tl.dot?",
    guess=None,
    choices=("HGMMA", "HMMA, as on the A100", "it does not compile"),
)


# %%
def matrix_instructions(step):
    names = {each.opcode for each in step.instructions if each.kind == "matrix"}
    return ", ".join(sorted(names))


def compile_each(launches):
    """Compile launches for sm_90, several at a time; the results keep the keys."""
    outcomes = lens.compile_all(list(launches.values()), "sm_90")
    return {key: step for key, (step,) in zip(launches, outcomes, strict=True)}


by_warps = compile_each(
    {w: product(a, b, num_warps=w, num_stages=3) for w in (1, 2, 4, 8)}
)
is_old = matrix_instructions(by_warps[2]).startswith("HMMA")
two_warps.reveal(
    "HMMA, as on the A100" if is_old else "HGMMA",
    because="two warps are no warp group, so the older instruction has to do.",
)
for warps, step in by_warps.items():
    share = 64 * 64 // (32 * warps)
    print(f"{warps} warps: {share:3d} sums a thread, {matrix_instructions(step)}")

# %%
tiles = [(32, 32), (64, 64), (64, 128), (128, 128), (128, 256)]
by_tile = compile_each(
    {(m, n): product(a, b, m, n, num_warps=4, num_stages=3) for m, n in tiles}
)
for (m, n), step in by_tile.items():
    sums = m * n // 128
    fits = "spills" if step.spills else "fits"
    print(f"{m:3d} × {n:3d} in 4 warps: {sums:3d} sums a thread, {fits}")

# %%
with viz.figure_style() as palette:
    _, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
    names = [str(w) for w in by_warps], [f"{m} × {n}" for m, n in by_tile]
    sums = (
        [64 * 64 // (32 * w) for w in by_warps],
        [m * n // 128 for m, n in by_tile],
    )
    series = zip(panels, names, (by_warps, by_tile), sums, strict=True)
    for panel, labels, steps, share in series:
        panel.bar(labels, [step.registers for step in steps.values()], label="all")
        panel.bar(labels, share, width=0.4, label="sums alone")
        panel.axhline(255, linestyle="--", color=palette.ink, label="the most, 255")
        panel.tick_params(axis="x", labelrotation=30)
    panels[0].set_xlabel("num_warps, tile of 64 × 64")
    panels[1].set_xlabel("tile, 4 warps")
    panels[0].set_ylabel("registers a thread, sm_90")
    panels[0].set_ylim(top=290)
    panels[1].legend(loc="upper left", bbox_to_anchor=(0, 0.86))
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: registers a thread on sm_90, of which the sums of the accumulator are the
# inner bar: at the left they fall as warps are added, at the right they rise with the
# tile until, at 128 × 256, all 255 of the dashed line are taken.*
#
# The largest tile would need 256 registers for its sums alone. It does compile, and it
# spills. A larger tile loads less for each product, and leaves room for fewer programs
# at a time on a multiprocessor: there lies most of the art of tuning.
#
# ### num_stages
#
# With several **stages** the loop loads the tiles of its next turns while it multiplies
# those of this one. That takes a buffer in shared memory for each.

# %%
for stages in (1, 2, 3, 4):
    (step,) = lens.compile(launch, "sm_90", num_stages=stages)
    copied = "asynchronous copies" if step.count("asynchronous copy") else "plain loads"
    print(
        f"num_stages={stages}: {step.shared_bytes:6,d} bytes of shared memory, {copied}"
    )

# %% [markdown]
# ## Bank conflicts, and swizzling
#
# Shared memory has 32 **banks**. Each gives one word of 4 bytes a pass; byte $b$ is in
# bank $\lfloor b / 4 \rfloor \bmod 32$. If the lanes of a warp ask for different words
# of one bank, the request takes as many passes as there are words.
#
# A row of our tile of $A$ is 32 elements, 64 bytes, 16 banks. The matrix unit of the
# A100 wants 8 × 8 elements at a time, 16 bytes out of each of eight rows. If the rows
# just followed one another, how many passes would that take?

# %%
straight_passes = teach.predict(
    "16 bytes from each of 8 rows that are 64 bytes apart: passes through the banks",
    guess=None,
    unit="passes",
)

# %% [markdown]
# The compiled kernel's own shared layout says what was done about it; beside it, the
# same without swizzling (`maxPhase = 1`).


# %%
stored = find_layout(sm_80, operation="ttg.local_alloc", shape=(2, 64, 32))
wanted = find_layout(sm_80, operation="ttg.local_load", shape=(64, 32))
wanted_layout = lens.layout.of(wanted.layout, wanted.shape, target="sm_80")


def conflicts(attribute):
    memory = lens.layout.shared(attribute, (64, 32), target="sm_80", dtype_bits=16)
    return lens.memory.bank_conflicts(wanted_layout, memory, target="sm_80")


straight_text = re.sub(r"maxPhase = \d+", "maxPhase = 1", stored.layout)
swizzled, straight = conflicts(stored.layout), conflicts(straight_text)
straight_passes.reveal(
    straight.requests[0].passes,
    because="rows 0, 2, 4 and 6 begin in bank 0, and rows 1, 3, 5 and 7 in bank 16.",
)
print(stored.layout)
for name, found in (("swizzled", swizzled), ("straight", straight)):
    print(f"{name}: {found.passes} passes for {len(found.requests)} requests")

# %%
viz.Picture(viz.figure_png(viz.bank_strip(straight)), viz.describe_bank_strip(straight))

# %% [markdown]
# *Figure: one request without swizzling: four passes, in each of which eight banks
# serve two rows and the other 24 stand idle.*

# %%
viz.Picture(viz.figure_png(viz.bank_strip(swizzled)), viz.describe_bank_strip(swizzled))

# %% [markdown]
# *Figure: the same request with swizzling: one pass, in which every bank serves one
# lane.*
#
# Not a byte more is used. **Swizzling** exchanges pieces of 16 bytes within a row, by
# the exclusive or of the piece's number and a number that changes with the row: here
# every second row (`perPhase = 2`), through four values (`maxPhase = 4`). What stood
# below one another now stands side by side. The other remedy is *padding*, a few unused
# bytes after each row. Here is where the pieces of the first eight rows went:

# %%
memory = lens.layout.shared(stored.layout, (64, 32), target="sm_80", dtype_bits=16)
for row in range(8):
    places = [memory.offset(row, column) % 64 // 16 for column in range(0, 32, 8)]
    print(f"row {row}: pieces 0 1 2 3 are in places", *places)

# %% [markdown]
# (The A100 reads four such 8 × 8 pieces with one `ldmatrix`; each is a phase with just
# these addresses. Counts are those of a model, and tests hold it to published ones.)
#
# ## Four GPUs, side by side
#
# The same launch for an A100, an H100 or H200, an MI300X and a Radeon RX 7900. The last
# two were **compiled, not run**. In the table a *block* is a program, and *occupancy*
# the share of the threads that a multiprocessor can hold.

# %% tags=["nbval-ignore-output", "compiler"]
four = ("sm_80", "sm_90", "gfx942", "gfx1100")
comparison = lens.compare(launch, four)
comparison

# %%
for row in comparison.rows:
    step = row.step
    is_async = "yes" if step.count("asynchronous copy") else "no"
    bits = step.widest("asynchronous copy") or step.widest("global load")
    print(
        f"{row.label:8s} {step.warp_size} lanes a warp, loads of {bits} bits, "
        f"asynchronous: {is_async:3s} {matrix_instructions(step)}"
    )

# %% [markdown]
# One source, four machines. A warp of CDNA (`gfx942`) has 64 lanes, which AMD calls a
# *wavefront*; loads are equally wide everywhere; NVIDIA's pipelines copy without
# registers, and those of these two AMD GPUs load early and keep what was loaded in
# registers until it is time. And the accumulators differ: here is who holds the result
# of CDNA's `v_mfma_f32_32x32x8`.

# %%
gfx942 = comparison.rows[2].step
cdna = find_layout(gfx942, operation="tt.dot").layout
cdna = re.sub(r"warpsPerCTA = \[.*?\]", "warpsPerCTA = [1, 1]", cdna)
mfma = lens.layout.of(cdna, (32, 32), target="gfx942")
print("element (5, 3) in the result of one instruction")
print("mma  (sm_80): ", *fragment.holders(5, 3))
print("mfma (gfx942):", *mfma.holders(5, 3))
viz.Picture(viz.figure_png(viz.layout_map(mfma)), viz.describe_layout_map(mfma))

# %% [markdown]
# *Figure: the 32 × 32 result of one matrix instruction of CDNA3: a lane holds runs of
# four columns in one row, lanes go down the rows, and lanes 32 to 63 have the next four
# columns.*
#
# ## The product that ships
#
# Now the same for what `ops.matmul` runs: the GEMM of lessons [05](05_tile_gemm.ipynb) and
# [06](06_fast_gemm.ipynb). It has no single tile. For each problem and each GPU it chooses
# an *instance*: a tile, warps, stages, and a template of the kernel. So "the same kernel on another GPU" means another choice, not only
# another compiler. Here is what it chooses for two fp16 matrices of 4096 × 4096, of kernels in Triton's language. (On
# an H200 it takes one in Gluon for these, which [lesson 10](10_fused_operators.ipynb) reads: `takes_turns` leaves those out.
# Times are behind the choice for the H200. Those for the A100 and the MI300X are **not measured**.)

# %%
full = torch.empty(4096, 4096, dtype=torch.float16)
shipped = {}
for name in ("sm_90", "sm_80", "gfx942"):
    with device.planning_for(name):
        asked = choosing.asked_of(full, full, full)
        choice = choosing.choose(asked, takes_turns=False)
        shipped[name] = gemm.launch(full, full, output=full, **choice.keywords)
    tile = " × ".join(map(str, choice.tile))
    print(
        f"{name:7s} {choice.template:10s} tile {tile:14s} "
        f"{choice.num_warps} warps, {choice.num_stages} stages, "
        f"descriptors: {'yes' if choice.descriptors else 'no'}"
    )

# %% [markdown]
# On the H200 there are three stages of 128 × 64 elements of A and 64 × 256 of B. And since
# the next tile's loads begin before this one is stored, 128 × 256 elements of the output
# lie beside them. How much shared memory is that?

# %%
of_shared = teach.predict(
    "Shared memory of this product on an H200", guess=None, unit="KiB"
)

# %%
rows = [lens.compare(one, (name,)).rows[0] for name, one in shipped.items()]
hopper, ampere, cdna3 = (row.step for row in rows)
of_shared.reveal(
    hopper.shared_bytes // 1024,
    because="3 · (128 · 64 + 64 · 256) + 128 · 256 elements of two bytes.",
)

# %% [markdown]
# That is nearly all that a multiprocessor has, so it holds one program, whose 8 warps are
# an eighth of what it could hold. The occupancy looks poor and is meant to be: what the
# matrix units wait for is hidden by stages that are loaded ahead, not by other programs.
# Beside it, the forty lines of this lesson:

# %% tags=["nbval-ignore-output", "compiler"]
type(comparison)((comparison.rows[1], *rows))

# %%
for row in rows:
    step = row.step
    tensor_copy = any(each.opcode.startswith("UTMALDG") for each in step.instructions)
    bits = step.widest("asynchronous copy") or step.widest("global load")
    way = "tiles, by descriptors" if tensor_copy else f"{bits} bits a lane"
    print(
        f"{row.label:7s} {matrix_instructions(step):22s} loads {way}; "
        f"spills: {'yes' if step.spills else 'no'}"
    )

# %% [markdown]
# On `sm_90` a single thread asks for a whole tile (`UTMALDG`, of the **tensor memory
# accelerator**, TMA): there are no addresses to compute, no masks, and no lanes to load
# anything, so that the tile of $A$ has no blocked layout any more. It goes straight to
# shared memory, in the swizzled form from which `HGMMA` reads. And that instruction now
# makes 256 columns at once, not 64. On the A100 the same source copies 128 bits a lane; on
# CDNA3, where no descriptors and no asynchronous copies are used, lanes load to registers.
#
# Where the operands lie, and who holds the sums:

# %%
tile_a = find_layout(hopper, operation="ttg.local_alloc", shape=(3, 128, 64))
tile_b = find_layout(hopper, operation="ttg.local_alloc", shape=(3, 64, 256))
for name, tensor in (("A", tile_a), ("B", tile_b)):
    swizzle = re.search(r"swizzlingByteWidth = \d+", tensor.layout).group()
    print(f"{name}, {tensor.shape[0]} stages: {tensor.name}, {swizzle}")
sums = find_layout(hopper, operation="ttng.warp_group_dot")
sums_layout = lens.layout.of(sums.layout, sums.shape, target="sm_90")
print(
    f"sums: {sums_layout.warps} warps, {sums_layout.lanes} lanes, "
    f"{sums_layout.registers} registers"
)
for element in ((5, 3), (5, 11), (21, 3)):
    print("sum", element, "is in", *sums_layout.holders(*element))

# %% [markdown]
# It is the picture of the A100 again, over and over: a lane's next pair is 8 columns to the
# right, 32 times to the end of a row of 256, and each warp has 16 rows for itself. Half of
# the 255 registers that a thread may have are sums.

# %%
limits = [lens.targets.target(name) for name in shipped]
held = [
    math.prod(one.steps[0].meta[f"BLOCK_{side}"] for side in "MN") / row.step.threads
    for one, row in zip(shipped.values(), rows, strict=True)
]
with viz.figure_style() as palette:
    _, panels = plt.subplots(1, 2, figsize=(8, 3.2))
    names = list(shipped)
    panels[0].bar(names, [row.step.registers for row in rows], label="all")
    panels[0].bar(names, held, width=0.4, label="sums alone")
    panels[1].bar(names, [row.step.shared_bytes / 1024 for row in rows], label="used")
    most = (
        [limit.most_registers_per_thread for limit in limits],
        [limit.most_shared_per_block / 1024 for limit in limits],
    )
    for panel, heights in zip(panels, most, strict=True):
        outline = {"fill": False, "edgecolor": palette.ink, "linestyle": "--"}
        panel.bar(names, heights, **outline, label="the most")
        panel.set_ylim(top=1.3 * max(heights))
        panel.legend(loc="upper center", ncols=3, fontsize=8)
    panels[0].set_ylabel("registers a thread")
    panels[1].set_ylabel("shared memory, KiB a program")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: the shipped product on three GPUs, at the left registers a thread, of which sums
# are the inner bar, at the right shared memory, each in a dashed outline of the most there
# is: on sm_90 shared memory is nearly full, on sm_80 registers are and shared memory is
# not, and gfx942 has half of its shared memory free.*
#
# ## The same thing in CK's words
#
# AMD's library Composable Kernel describes the same with a **tile distribution
# encoding**. Each dimension of the tile, $X$, is cut into parts $H$, the slowest first.
# Each part belongs to a $P$ (the warp, or the lane) or is a $Y$ (a register); what
# differs only in $R$ is a copy. A pair of numbers, major and minor, names a part: major
# $i + 1$ for $H_i$, minor for the place in it.
#
# Take the layout of $A$ from above. Rows: 2 repetitions × 4 warps × 8 lanes. Columns: 4
# lanes × 8 elements. The warp is the middle part of the rows; the lane is made of the
# last part of the rows and the first of the columns; what is left are registers.

# %%
encoding = TileDistributionEncoding(
    rs_lengths=(),
    hs_lengthss=((2, 4, 8), (4, 8)),
    ps_to_rhss_major=((1,), (1, 2)),  # of the warp, of the lane
    ps_to_rhss_minor=((1,), (2, 0)),
    ys_to_rhs_major=(1, 2),  # of the registers
    ys_to_rhs_minor=(0, 1),
)
print(lens.layout.equivalent(encoding, a_layout))

# %% [markdown]
# That is a proof and no test: all places are compared, and there are no others. Now a
# mistake that is easy to make. Give each warp its 16 rows in one piece, and put the
# repetition *inside* the warp: 4 warps × 2 repetitions × 8 lanes.

# %%
wrong = TileDistributionEncoding(
    rs_lengths=(),
    hs_lengthss=((4, 2, 8), (4, 8)),
    ps_to_rhss_major=((1,), (1, 2)),
    ps_to_rhss_minor=((0,), (2, 0)),
    ys_to_rhs_major=(1, 2),
    ys_to_rhs_minor=(1, 1),
)
answer = lens.layout.equivalent(wrong, a_layout)
print(bool(answer))
print(answer)

# %% [markdown]
# It is a good layout, with the same number of everything, and equally fast to load. It
# is another one, and a kernel that mixed up the two would multiply the wrong rows.
#
# ## Your turn
#
# ### Exercise 07-1: who holds it
#
# Write `holder(row, column)`: the lane and the register that hold an element of the 16
# × 8 result of `mma.m16n8k16`. The picture is above; find the arithmetic. The check
# asks the compiler.


# %%
# {{exercise 07-1}}

# %% [markdown]
# {{solution 07-1}}

# %% [markdown]
# ### Exercise 07-2: the largest tile that fits
#
# Keep a kernel within a budget. Write `largest_tile(launch, target, registers)`: the
# largest `BLOCK_N` of 32, 64, 128 and 256 with which the launch's kernel, compiled for
# the target, takes at most `registers` registers a thread and spills none; 0 where none
# does. (The launch is one of a product like ours, with tiles of 128 rows.)


# %%
# {{exercise 07-2}}

# %% [markdown]
# {{solution 07-2}}

# %% [markdown]
# ### Exercise 07-3: the same layout as an encoding
#
# Write the tile distribution encoding of *any* blocked layout with `order = [1, 0]`.
# The four arguments are pairs, for rows and columns: the tile's shape, and the three
# lists of the layout's text. The tile is as large as what all threads hold together, or
# some times as large. Return where its elements are, as in the stub.


# %%
# {{exercise 07-3}}

# %% [markdown]
# {{solution 07-3}}

# %% [markdown]
# ### Exercise 07-4: 128 bits at once
#
# Write a kernel to a budget. `relu(x)` is $\max(x, 0)$ of an fp16 matrix whose rows may
# have gaps between them; NaN stays NaN. Each row has a multiple of 8 elements, and begins at a multiple
# of 8 elements; of 16, perhaps not. The output is contiguous. Compiled for `sm_90`
# *and* for `gfx942`, every load and every store has to move 128 bits a lane, and a
# thread may take 64 registers and spill none. The tile and `num_warps` (4, unless you
# give another) are yours to choose. The check compiles what you launch; where it is too
# narrow, it names the line.


# %%
# {{exercise 07-4}}

# %% [markdown]
# {{solution 07-4}}

# %% [markdown]
# ## Takeaways
#
# - A tile is spread over registers, and its **layout** says who holds what. All sizes
#   are powers of two, so a layout is a rearrangement of bits.
# - Wide loads and asynchronous copies are not asked for. They come when the compiler
#   knows that strides are 1 and addresses aligned, and they go when it does not.
# - The accumulator rules the registers: tile size divided by threads. Beyond 255,
#   values spill.
# - Swizzling spreads a column over the banks of shared memory, without using a byte
#   more.
# - What is compiled can be read, for GPUs that you do not own. What it takes to run is
#   measured, on one that you do.
#
# **Where it goes next:** what is chosen here by reading, tiles, warps and stages, later
# lessons choose by the clock; and coordinate transforms, of which layouts and tile
# distributions are special cases, have a lesson of their own, also later. Back to
# [02, the roofline](02_roofline.ipynb), or to
# [01, tile transfer](01_tile_transfer.ipynb), where sectors are counted.
