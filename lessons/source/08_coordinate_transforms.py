# %% [markdown]
# # Coordinate transforms: one kernel, many matrices
#
# You will build
#
# - matrices that lie nowhere in memory: windows, borders, bands and patches, each of them
#   a *descriptor* of two or three transforms;
# - the function that a descriptor becomes, and a matrix product that takes it as an
#   argument: in the end the GEMM of lesson 06, unchanged;
# - an account of what the compiler has to know, so that a lane loads 16 bytes at once and
#   not 2.
#
# **Time:** 60 minutes. **You need:** Python, [lesson 05](05_tile_gemm.ipynb)'s product and
# [lesson 06](06_fast_gemm.ipynb)'s. Kernels run in the interpreter and are compiled for
# GPUs that need not be here.
#
# **Out of scope:** convolutions in earnest, forward and backward. They are made of what
# you build here, and the next lesson.

# %%
from workbench import Launch, device, explore, lens, runtime, suites, teach, viz
from workbench.bench import recording
from workbench.coords import (
    Descriptor,
    aligned,
    lower,
    naive,
    symbol,
    transform,
    vector_of,
)
from workbench.coords.transforms import (
    embed,
    left_pad,
    merge,
    modulo,
    offset,
    pad,
    pass_through,
    reflect,
    replicate,
    unmerge,
)
from workbench.kernels import gemm
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.movement import rearrangement
from workbench.teach.rungs import view_ladder
from workbench.kernels.movement import view_transfer
from workbench.kernels.views import View, affine

import random
import re

import matplotlib.pyplot as plt
import numpy as np
import torch
import triton
import triton.language as tl
from IPython.display import Markdown
from torch.nn import functional

# %% [markdown]
# ## The idea: an index is not an address
#
# A GEMM asks for element $(i, j)$ of a matrix. So far the answer was always the same, two
# strides: $\text{offset} = i \, s_0 + j \, s_1$. But the product does not care how the
# answer is found. Any function will do that says where the element lies, and whether there
# is one:
#
# $$(i, j) \;\mapsto\; (\text{offset}, \text{valid})$$
#
# Where it is not valid, the product takes a 0 and loads nothing. With another function the
# same kernel multiplies another matrix, be it one that nobody ever wrote to memory.
#
# The standard example is a matrix of **windows**. Row $i$ has the samples of a signal from
# number $i$ on. **Predict.** A signal of 65,536 samples in fp16, and windows of 64: how
# much memory does the matrix take, if it is written out with a row for each sample?

# %%
written_out = teach.predict(
    "A matrix of 65,536 windows of 64 samples in fp16", guess=None, unit="MiB"
)

# %%
written_out.reveal(
    65536 * 64 * 2 // 2**20,
    because="65,536 · 64 elements of two bytes. The signal itself takes an eighth of one.",
)

# %% [markdown]
# All of these bytes would be written, and then read by the product, although only one in
# 64 of them says anything new. A function costs a few integer instructions instead. This
# lesson is about such functions: how to put them together without mistakes, and how to
# keep them cheap.
#
# ## The reference
#
# torch knows windows of a signal as `unfold`:

# %%
signal = torch.arange(6)
print(signal.unfold(0, 3, 1).tolist())

# %% [markdown]
# ## A descriptor, transform by transform
#
# A **descriptor** is a chain of small functions, from the index that a kernel asks for
# (*upper*) down to the offset in memory (*lower*). The names are those of Composable
# Kernel, AMD's library, which builds its convolutions so. Each **transform** takes some
# dimensions and makes others:
#
# | transform | lower index | valid where |
# | --- | --- | --- |
# | `pass_through(n)` | the upper one | always |
# | `embed(lengths, coefficients)` | sum of upper ones × coefficients | always |
# | `pad(n, left, right)` | upper − left | 0 ≤ lower < n |
# | `merge(lengths)` | several: the digits of the upper one | always |
# | `unmerge(lengths)` | the number of which the upper ones are the digits | always |
# | `replicate(lengths)` | none: nothing depends on the upper ones | always |
# | `offset(n, by)` | upper + by | always |
# | `modulo(m, n)` | upper modulo m | always |
# | `reflect(n, left, right)` | upper − left, mirrored at both ends | always |
#
# It begins with `naive(lengths, strides)`, which is a tensor as it lies in memory.
# `transform` puts transforms on top: it is given a list of them, for each the places of the
# dimensions that it takes, and for each the places of those that it makes. Here are the
# windows of six samples:

# %%
line = naive((6,), (1,), names=("x",))
windows = transform(
    line, [embed((4, 3), (1, 1))], [(0,)], [(0, 1)], names=("row", "col")
)
print(windows)

# %% [markdown]
# Read it from the top. A kernel asks for a row and a column, four and three long;
# `embed` adds them up, each times 1; and that is the place `x` in the signal, whose offset
# it is. `offsets()` tells all of them at once, and this small function prints them, with
# a point where there is no element:


# %%
def show(descriptor: Descriptor):
    for row in np.atleast_2d(descriptor.offsets()).filled(-1).tolist():
        print(" ".join(" ." if place < 0 else f"{place:2d}" for place in row))


show(windows)

# %% [markdown]
# The same numbers as torch's, and no memory was used. Most of this algebra is puzzles of
# that kind. Here are eight pictures of the same line of six samples:


# %%
def of_line(*chain, length=6):
    """A line of memory, with transforms on top of each other."""
    made = naive((length,), (1,), names=("x",))
    for one in chain:
        upper = tuple(range(len(one.upper_lengths)))
        made = transform(made, [one], [(0,)], [upper])
    return made


def repeated(count):
    """The line, again and again: nothing depends on the row."""
    chosen = [pass_through(6), replicate((count,))]
    return transform(line, chosen, [(0,), ()], [(1,), (0,)])


PICTURES = {
    "windows": of_line(embed((4, 3), (1, 1))),
    "windows, stride 2": of_line(embed((2, 3), (2, 1))),
    "folded": of_line(unmerge((2, 3))),
    "repeated": repeated(3),
    "zeros before": of_line(left_pad(6, 2)),
    "mirrored": of_line(offset(6, 5), embed((6,), (-1,))),
    "reflected ends": of_line(reflect(6, 2, 1)),
    "around and around": of_line(modulo(6, 9)),
}


def draw(pictures, columns):
    grids = [np.atleast_2d(descriptor.offsets()) for descriptor in pictures.values()]
    heights = [
        max(len(grid) for grid in grids[first : first + columns]) + 0.2
        for first in range(0, len(grids), columns)
    ]
    with viz.figure_style() as palette:
        size, shape = (10, 0.28 * sum(heights) + 1.2), (len(heights), columns)
        _, axes = plt.subplots(*shape, figsize=size, height_ratios=heights)
        for axis, name, places in zip(axes.flat, pictures, grids, strict=True):
            axis.imshow(places, cmap="viridis", vmin=-2, vmax=8)
            for (row, col), place in np.ndenumerate(places.filled(-1)):
                text, color = (place, "white") if place >= 0 else ("·", palette.ink)
                axis.text(col, row, text, ha="center", va="center", color=color)
            axis.set_title(name, fontsize=10)
            below = heights[list(pictures).index(name) // columns] - 0.6
            axis.set(xlim=(-0.6, 8.6), ylim=(below, -0.6))
            axis.set_axis_off()
        plt.tight_layout()
        plt.show()


draw(PICTURES, columns=4)

# %% [markdown]
# *Figure: eight descriptors of six samples as grids of offsets, with a point for padding:
# windows one sample apart, windows two apart, the line folded into two rows, the line three
# times, two places before it, the line from back to front, the line with mirrored ends, and
# nine samples that begin anew after six.*
#
# **Puzzle.** A filter of three taps, $f_0, f_1, f_2$, turns a signal $x$ into
# $y_i = f_0 x_i + f_1 x_{i-1} + f_2 x_{i-2}$. As a matrix product that is $y = T x$ with
# this matrix $T$, of which the three taps are all that lies in memory:
#
# ```text
# 0 . . . .
# 1 0 . . .
# 2 1 0 . .
# . 2 1 0 .
# . . 2 1 0
# ```
#
# **Predict.** How many transforms does it take, on top of `naive((3,), (1,))`?

# %%
of_a_band = teach.predict(
    "Transforms for a band matrix",
    guess=None,
    choices=("one", "two", "three", "it cannot be done"),
)

# %%
of_a_band.reveal(
    "two",
    because="embed with 1 and -1 makes i - j, and pad says where that is no tap.",
)
show(of_line(pad(3, 0, 0), embed((5, 5), (1, -1)), length=3))

# %% [markdown]
# `embed` never checks: here it runs from −4 to 4. `pad` does, even if it adds nothing.
# That is why a chain is read from the top: what a transform hands down may be out of range,
# until one below says so.
#
# ## A matrix of an image
#
# Now the one that the rest of the lesson uses: for each pixel of an image of h × w, the
# 3 × 3 pixels around it, with zeros beyond the border. A kernel wants rows and columns. So
# the last step is `merge`: a row is a number with two digits, the pixel's y and x; and a
# column has two digits too, the place in the window.


# %%
def windows_of_image(h, w):
    image = naive((h, w), (w, 1), names=("y", "x"))
    bordered = transform(
        image, [pad(h, 1, 1), pad(w, 1, 1)], [(0,), (1,)], [(0,), (1,)]
    )
    apart = transform(
        bordered,
        [embed((h, 3), (1, 1)), embed((w, 3), (1, 1))],
        [(0,), (1,)],
        [(0, 1), (2, 3)],
        names=("y_out", "y_tap", "x_out", "x_tap"),
    )
    return transform(
        apart,
        [merge((h, w)), merge((3, 3))],
        [(0, 2), (1, 3)],
        [(0,), (1,)],
        names=("row", "col"),
    )


print(windows_of_image(4, 5))

# %% [markdown]
# **Predict.** Row 0 is the window around the first pixel, in the corner. How many of its
# nine elements are padding?

# %%
in_the_corner = teach.predict(
    "Padding in the window of a corner pixel", guess=None, unit="elements"
)

# %%
in_the_corner.reveal(
    int(np.ma.count_masked(windows_of_image(4, 5).offsets()[0])),
    because="a row of three above, and one to the left of each of the other two.",
)
show(windows_of_image(4, 5))

# %% [markdown]
# **Move the coordinate.** Every shaded box below is a dimension with the index along it,
# every white one a transform. Go along a row of the matrix with the second slider, and watch
# the two digits; then go up the rows, to the image's corner. Which transform says no?

# %% tags=["widget"]
viz.DescriptorWidget(windows_of_image(4, 5), (7, 2))

# %% [markdown]
# ## A coordinate that moves
#
# Such an index is computed by divisions, which are slow. But a kernel goes through a matrix
# in steps, and the place of the next element can be found from that of the last one: most
# transforms are linear, so a step above is a step below, times the coefficients. The digits
# of `merge` are carried, as on paper. (What is short and not linear, such as `modulo`, is
# computed anew.) A coordinate of a descriptor can **move**, and says which transforms the
# step has touched:

# %%
described = windows_of_image(4, 5)
at = described.coordinate((7, 2))
print("offset", at.offset, "valid", at.valid)
for step in ((0, 1), (0, -1), (1, 0)):
    moved = at.move(step)
    through = ", ".join(stage.transform.name for stage in moved.touched)
    print(f"{step!s:8s} offset {moved.offset:2d} valid {moved.valid!s:5s} by {through}")

# %% [markdown]
# A step to the right, from column 2 to column 3, begins a new row of the window: it
# carries, so both digits change. A step to the left changes one digit, and only what hangs
# on that is gone through.
#
# Moving has to lead to the very place that computing leads to, `move == recompute`, for
# steps of either sign, and beyond the ends. That is easy to say, and easy to get wrong.
# Random walks:


# %%
def walk(descriptor, steps, seed):
    """Return whether moving a coordinate always agrees with computing it."""
    generator = random.Random(seed)
    here_now = descriptor.coordinate([0] * len(descriptor.lengths))
    for _ in range(steps):
        step = [generator.randint(-n, n) for n in descriptor.lengths]
        here_now = here_now.move(step)
        computed = descriptor.coordinate(here_now.index)
        if (here_now.values, here_now.valid) != (computed.values, computed.valid):
            return False
    return True


for name, descriptor in {"windows of an image": described, **PICTURES}.items():
    print(f"{name:20s} {walk(descriptor, 500, seed=8)}")

# %% [markdown]
# ## From a descriptor to Triton
#
# A kernel on a GPU cannot call Python. So `lower` writes the function that a descriptor
# stands for, as Triton that one can read:

# %%
explore.descriptors.code(described)

# %% [markdown]
# *Figure: the generated function of 20 × 9 windows: two divisions and two remainders by
# constants, then the offset and the six conditions for an element to be valid, which are
# marked.*
#
# Read it beside the graph above.
#
# - Divisions have the names of the dimensions that they make, and their divisors are
#   **numbers**. The compiler turns a division by a number into a multiplication.
# - The offset is a part that depends on the row, and one that depends on the column. A tile
#   of 64 × 64 has 64 rows and 64 columns to compute, and 4,096 sums of the two.
# - `y_out * 5 + x_out` has become `row` again. The graph divides and then multiplies; the
#   algebra has seen that nothing happens.
# - Only what can be out of range is checked: the ends of the matrix, and the four sides of
#   the image; of the digits none.
#
# So the kernels here compute, and do not move: with constants for divisors there should be
# little to gain. (A table below has both.)
#
# The third point has a surprising effect. Take windows of 1 × 1, without a border. That
# matrix is just the image; must somebody tell the kernel?


# %%
def columns_of_pixels(n, h, w, channels):
    """A row for each pixel of n images, a column for each channel."""
    image = naive((n, h, w, channels), (h * w * channels, w * channels, channels, 1))
    rows = merge((n, h, w))
    return transform(
        image, [rows, pass_through(channels)], [(0, 1, 2), (3,)], [(0,), (1,)]
    )


print(affine(columns_of_pixels(2, 7, 7, 64)))
print(affine(described))

# %% [markdown]
# Nobody has to. `affine` asks whether a descriptor is no more than strides, and where it is,
# the matrix is loaded like any other, with all that lesson 06 has for those. Of the windows
# it is not.
#
# ## A product that takes the function
#
# Now lesson 05's kernel. It computed `row * a_strides[0] + of_a * a_strides[1]` and a mask.
# In its place stands a call, and the function is a **meta-parameter**: another one makes
# another kernel, and a call costs nothing.


# %%
@triton.jit
def described_kernel(
    a_pointer,
    b_pointer,
    output_pointer,
    m,
    n,
    k,
    A: tl.constexpr,
    B: tl.constexpr,
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
        offsets, valid = A(row, of_a, ())
        a = tl.load(a_pointer + offsets, mask=valid, other=0.0)
        offsets, valid = B(of_b, col, ())
        b = tl.load(b_pointer + offsets, mask=valid, other=0.0)
        total = tl.dot(a, b, total)
    tl.store(output_pointer + row * n + col, total, mask=(row < m) & (col < n))


def described_product(a, of_a, b, of_b, tile=(16, 16, 16)):
    (m, k), (_, n) = of_a.lengths, of_b.lengths
    output = torch.empty(m, n, dtype=a.dtype, device=a.device)
    programs = triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1])
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    meta |= {"A": lower(of_a).function, "B": lower(of_b).function}
    arguments = (a, b, output, m, n, k)
    return Launch.of(described_kernel, (programs,), *arguments, outputs=output, **meta)


# %% [markdown]
# Six filters of 3 × 3 for an image of 7 × 10: the windows, [70, 9], times the filters,
# [9, 6]. In deep learning that is called a convolution, and torch has it.

# %%
here = device.current()
generator = torch.Generator().manual_seed(8)


def small_integers(*shape):
    values = torch.randint(-2, 3, shape, generator=generator).to(torch.float16)
    return values.to(here.torch_device)


def reference(image, filters):
    """[h * w, features], of filters [features, 3, 3]."""
    found = functional.conv2d(image[None].float(), filters[:, None].float(), padding=1)
    return found.flatten(1).t().half()


image, filters = small_integers(7, 10), small_integers(6, 3, 3)
as_columns = naive((9, 6), (1, 9), names=("row", "col"))  # the transpose of [6, 9]
(output,) = described_product(image, windows_of_image(7, 10), filters, as_columns).run()
print(tuple(output.shape), torch.equal(output, reference(image, filters)))

# %% [markdown]
# ## The GEMM of lesson 06, unchanged
#
# What ships has long had such a place. The loop along K of its kernel knows neither strides
# nor masks; it is given a **loader** for each operand, as a meta-parameter. Lesson 06's
# loaders are of strided matrices and of tensor descriptors (TMA). Here is what makes one
# of an access function, word for word:


# %% tags=["package-kernel"]
@triton.jit
def load_by_access(
    operand, row, col, ROWS: tl.constexpr, COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr, ACCESS: tl.constexpr,
):  # fmt: skip
    """Load a tile by an access function; the loaders of views that are not strided matrices call it.

    Args:
        operand: (pointer, (rows, cols), params), with params for the access function.
        ACCESS: the access function, (row, col, params) -> (offset, valid).
        others: as :func:`load_strided`.
    """
    pointer, sizes, params = operand
    of_rows = row + tl.arange(0, ROWS)[:, None]
    of_cols = col + tl.arange(0, COLS)[None, :]
    offsets, valid = ACCESS(of_rows, of_cols, params)
    if CHECK_ROWS:
        valid = (of_rows < sizes[0]) & valid
    if CHECK_COLS:
        valid = (of_cols < sizes[1]) & valid
    zero: tl.constexpr = 0 if pointer.dtype.element_ty.is_int() else 0.0
    return tl.load(pointer + offsets, mask=valid, other=zero)


# %% [markdown]
# It has three things more than the kernel above. `params` are lengths that are known only
# when the kernel is called. The matrix's own ends are checked here, and only where a tile
# can hang over them, as in lesson 05. And zeros are of the operand's type.
#
# `implicit_gemm.launch` multiplies three **views**, each a tensor and a descriptor (and the
# values of lengths that the descriptor leaves open, of which there are none here). It has no
# kernel of its own:


# %%
def filtered(image, filters, **options):
    """The GEMM that ships, of the windows of an image and of filters [features, 3, 3]."""
    h, w = image.shape
    features = len(filters)
    output = torch.empty(h * w, features, dtype=image.dtype, device=image.device)
    return implicit_gemm.launch(
        View(image, windows_of_image(h, w), {}),
        View(filters, naive((9, features), (1, 9), names=("row", "col")), {}),
        View(output, naive((h * w, features), (features, 1), names=("row", "col")), {}),
        **options,
    )


launch = filtered(image, filters, tile=(16, 16, 16))
step = launch.steps[0]
print(step.name, step.kernel is gemm.gemm_kernel)
print("A is loaded by", step.meta["LOAD_A"].__name__)
print("B is loaded by", step.meta["LOAD_B"].__name__)

# %% [markdown]
# A comes through the descriptor. The filters are a transposed matrix, which the algebra
# has found out, and they are loaded by strides. So the GEMM of lesson 06 has just become a
# convolution, and not a line of it has changed.
#
# ## Check it
#
# Images and filters that no tile divides, into outputs full of NaN, with the programs
# shuffled. The numbers are small and whole, so every sum is exact.

# %%
shapes = ((7, 10, 6), (1, 1, 1), (8, 8, 16), (3, 21, 17), (2, 3, 40))
for seed, (h, w, features) in enumerate(shapes):
    image, filters = small_integers(h, w), small_integers(features, 3, 3)
    launch = filtered(image, filters, tile=(16, 16, 16))
    mine = runtime.interpret(launch, poison=True, seed=seed)
    same = torch.equal(mine.outputs[0], reference(image, filters).cpu())
    print(f"{h:2d} × {w:2d}, {features:2d} filters: {same}")

# %% [markdown]
# How much does it load? The trace of the product counts the bytes that are asked for.
# **Predict.** An image of 16 × 16 pixels and 16 filters: how many times is a pixel of it
# loaded, on average? (A tile has 16 columns, so that all filters share one.)

# %%
loads_of_a_pixel = teach.predict(
    "Loads of a pixel for windows of 3 × 3", guess=None, unit="times"
)

# %%
image, filters = small_integers(16, 16), small_integers(16, 3, 3)
(trace,) = lens.trace(filtered(image, filters, tile=(16, 16, 16)))
(of_image,) = [
    counted
    for counted in trace.by_argument()
    if counted.kind == "load" and counted.distinct_bytes == 2 * image.numel()
]
loads_of_a_pixel.reveal(
    round(of_image.reread, 2),
    because="each pixel is in nine windows, but for those at the border.",
)
print(
    f"{of_image.bytes:,} bytes asked for, of {of_image.distinct_bytes:,} that there are"
)

# %% [markdown]
# So nothing is saved on the way from the cache to the registers: the windows are asked for
# as if they were written out. What is saved is memory. The matrix is never written, and
# only the image has to come from memory, once if the cache holds what neighbors share. A
# passing check does not prove that either; the clock is asked below.
#
# ## Turn the knobs
#
# Which pixels does a tile of 16 × 8 of that matrix need? Move it down the rows, and along
# K, and watch how the tile's windows overlap in the image. Where do two tiles share pixels?

# %% tags=["widget"]
explore.descriptors.move_tile(windows_of_image(8, 8), tile=(16, 8), at=(1, 0))

# %% [markdown]
# ## Look inside: what the compiler has to know
#
# A lane moves up to 16 bytes at once, eight elements of fp16. It does so where the compiler
# can *prove* three things, as in [lesson 07](07_inside_the_compiler.ipynb): the elements are
# neighbors; the first of them begins at a multiple of 16 bytes; and a mask takes all of them
# or none. A descriptor knows whether that is so. `vector_of` asks it about the neighbors
# along a dimension.
#
# **Predict.** A matrix of 64 × 196 in fp16, row by row without gaps. How many bytes of a row
# can a lane load at once?

# %%
of_196 = teach.predict("A load from rows of 196 elements", guess=None, unit="bytes")

# %%
rows_of_196 = naive((64, 196), (196, 1), names=("row", "col"))
print(vector_of(rows_of_196, 1))
of_196.reveal(
    2 * vector_of(rows_of_196, 1).contiguous,
    because="rows begin at multiples of 196 elements, and 4 is the power of two in that.",
)

# %% [markdown]
# Each transform has a rule for what it leaves of such knowledge, and some that look harmless
# leave little. `symbol` is a length that comes with the call: of that nothing is known,
# unless it is said.


# %%
def on_columns(one, base=None):
    """A matrix of 64 × 256 with a transform on its columns."""
    base = naive((64, 256), (256, 1), names=("row", "col")) if base is None else base
    both = [pass_through(64), one]
    names = ("row", "col")
    return transform(base, both, [(0,), (1,)], [(0,), (1,)], names=names)


w, w_of_eights = symbol("w", least=1), symbol("w", least=1, multiple_of=8)
names = ("row", "col")
before_and_after = {
    "256 columns": naive((64, 256), (256, 1), names=names),
    "a border of 8": on_columns(pad(256, 8, 8)),
    "a border of 1": on_columns(pad(256, 1, 1)),
    "mirrored": on_columns(embed((256,), (-1,)), on_columns(offset(256, 255))),
    "196 columns": rows_of_196,
    "196, rows begin at 8s": aligned((64, 196), 8, names=names),
    "w columns": naive((64, w), (w, 1), names=names),
    "w columns, w in 8s": naive((64, w_of_eights), (w_of_eights, 1), names=names),
}
widths = explore.descriptors.vector_widths(before_and_after, itemsize=2)
along_columns = [one for one in widths if one.dimension == "col"]
picture = viz.figure_png(viz.vector_widths_figure(along_columns))
viz.Picture(picture, viz.describe_vector_widths(along_columns))

# %% [markdown]
# *Figure: bytes of neighbors along the columns of eight matrices: 16 of rows of 256, 16 with
# a border of 8, 2 with a border of 1 or mirrored, 8 of rows of 196, 16 where rows begin at
# multiples of 8, 2 of a length that is not known, and 16 where it is known to be a multiple
# of 8.*
#
# A border of one shifts everything by one: eight columns that begin at a multiple of 8 begin
# one place before a multiple of 8 in memory, and the border's end cuts through eight of them.
# (So a border had better be along a dimension that is not the innermost one.) What the
# descriptor knows goes into the code, as the last lines of this function. They are promises
# to the compiler: `max_contiguous` and `multiple_of` say that neighbors lie together and
# where they begin, `max_constancy` that a mask takes all of them or none.

# %%
print(lower(before_and_after["a border of 8"]).source)

# %% [markdown]
# Does the compiler take our word for it? Here is a kernel that copies what a descriptor sees
# (we come back to it), compiled for an H200: how many bytes its loads move.


# %%
def narrowest(step):
    """Bytes that a lane loads at once, where it loads the fewest."""
    kinds = ("global load", "asynchronous copy")
    found = [one.bits for one in step.instructions if one.kind in kinds and one.bits]
    return min(found) // 8


def copied(name):
    """The compiled copy of a matrix, of 200 columns where their number is open."""
    descriptor = before_and_after[name]
    lengths = {"w": 200} if descriptor.symbols else {}
    source, target = torch.zeros(2, 64 * 512, dtype=torch.float16)
    stored = naive((64, descriptor.lengths[1]), (512, 1), names=names)
    both = View(source, descriptor, lengths), View(target, stored, lengths)
    (step,) = lens.compile(view_transfer.launch(*both), "sm_90")
    print(f"{name:21s} loads of {narrowest(step):2d} bytes")


copied("a border of 8")
copied("a border of 1")

# %% [markdown]
# **Predict.** And rows of 196 elements, each of which begins at a multiple of 8? The picture
# says that eight neighbors lie together, at a multiple of 16 bytes.

# %%
of_aligned_rows = teach.predict(
    "A load of 196 columns in rows that begin at multiples of 8",
    guess=None,
    choices=("16 bytes", "8 bytes", "2 bytes"),
)

# %%
of_aligned_rows.reveal(
    "8 bytes",
    because="8 does not divide 196, so a row's end cuts through the last eight columns.",
)
for name in ("196, rows begin at 8s", "w columns", "w columns, w in 8s"):
    copied(name)

# %% [markdown]
# It is the third condition: a mask that takes all of them or none. `vector_of` speaks of
# neighbors; what is checked at the end of a row comes on top, and the generated code promises
# no more than both allow.
#
# The other half of the knowledge is *numbers* instead of arguments. Here are the windows of
# images with 72 channels, the same product four times. `constants` is as in what ships: all
# lengths but the number of images are in the text. In `arguments` height, width and channels
# come with the call, and so does how many columns there are. `in_eights` is like it, but its
# descriptor is told what divides the channels: `symbol("channels", multiple_of=8)`. And
# `taps_innermost` knows all that `constants` does, but sums in another order: the columns of
# its windows go through the taps first, and then on to the next channel. (Why not 64 channels?
# Triton looks at arguments too: those that are multiples of 16 it compiles as such, and 64
# would be found out.) Compiled for an H200:

# %%
format = {"dtype": torch.float16, "memory_format": torch.channels_last}
images = torch.zeros(2, 72, 56, 56, device=here.torch_device).to(**format)
filters = torch.zeros(64, 72, 3, 3, device=here.torch_device).to(**format)
compiled = {}


def compile_rung(name):
    (step,) = lens.compile(
        view_ladder.LADDER[name](images, filters, padding=1), "sm_90"
    )
    compiled[name] = step
    print(f"{name:14s} loads of {narrowest(step):2d} bytes")


compile_rung("constants")
compile_rung("arguments")

# %% [markdown]
# **Predict.** And `in_eights`?

# %%
of_eights = teach.predict(
    "A load where 8 is known to divide the channels", guess=None, unit="bytes"
)

# %%
compile_rung("in_eights")
of_eights.reveal(
    narrowest(compiled["in_eights"]),
    because="eight columns from a multiple of 8 on lie in one pixel, whatever the lengths are.",
)

# %% [markdown]
# **Predict.** And `taps_innermost`, which knows all that `constants` knows?

# %%
of_taps = teach.predict("A load with the taps innermost", guess=None, unit="bytes")

# %%
compile_rung("taps_innermost")
of_taps.reveal(
    narrowest(compiled["taps_innermost"]),
    because="the next tap is the next pixel, 72 channels away: no neighbors to be proved.",
)

# %% [markdown]
# What the widths do not show is the arithmetic. These are the divisions in the text of two
# descriptors:


# %%
def divisors(descriptor):
    found = re.findall(r"(?://|%) (\w+)", lower(descriptor).source)
    return ", ".join(sorted(set(found), key=lambda by: (not by.isdigit(), by)))


n, h, w = (symbol(name, least=1) for name in ("n", "h", "w"))
c = symbol("c", least=1, multiple_of=8)
known = view_ladder.image_windows((n, 56, 56, 72), (56, 56), (3, 3), padding=1)
unknown = view_ladder.image_windows((n, h, w, c), (h, w), (3, 3), padding=1)
print("constants divides by", divisors(known))
print("in_eights divides by", divisors(unknown))

# %% tags=["nbval-ignore-output", "compiler"]
head = ["rung", "bytes a load", "instructions", "registers", "divisions in PTX"]
table = [head, ["---"] * len(head)]
for name, step in compiled.items():
    divided = len(re.findall(r"\b(?:div|rem)\.[su]\d+", step.stages["ptx"]))
    facts = (narrowest(step), len(step.instructions), step.registers, divided)
    table.append([name, *map(str, facts)])
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% [markdown]
# A division by an argument is a routine of a dozen instructions or more. Those that depend on
# the row alone can be made once for a tile; those of columns are due in every step along K.
# (The few divisions that are left of `constants` find a program's tile, once.)
#
# So the rule is: inner lengths and strides are constants, and so is what divides them; the
# outermost length, the number of images, stays an argument, so that another batch compiles
# nothing.
#
# ## Measure
#
# **Predict.** 32 images of 56 × 56 pixels and 72 channels, windows of 3 × 3, 64 filters:
# with the same tile and the same matrix instructions, how many times as long as
# `constants` does `arguments` take, on an H200?

# %%
slower = teach.predict(
    "Lengths as arguments over lengths as constants", guess=None, unit="times"
)

# %% tags=["nbval-ignore-output"]
OURS = tuple(f"workbench:{name}" for name in view_ladder.LADDER)


def rungs():
    """The rungs and what ships: live on a GPU, else as recorded on an H200."""
    case = {"n": 32, "c": 72, "h": 56, "w": 56, "k": 64, "r": 3, "s": 3}
    case |= {"stride": 1, "pad": 1, "dilation": 1, "groups": 1}
    if here.is_gpu:
        candidates = ("workbench", *OURS)
        one = suites.Case("conv2d", "fp16", case, candidates, "cuda_graph")
        suite = suites.Suite("knowledge", "what a descriptor knows", (one,))
        quick = {"rounds": 1, "warmup_ms": 10, "rep_ms": 20}
        return list(suites.run(suite, progress=False, **quick)[0])
    lines = recording.shipped("nvidia-h200")
    lines = recording.select(lines, op="conv2d", dtype="fp16", case=case)
    latest = recording.latest_run(line for line in lines if line.provider in OURS)
    return recording.select(lines, run=latest[0].run) if latest else []


measured = rungs()
if measured:
    slower.reveal(
        round(
            recording.ratio(measured, "workbench:constants", "workbench:arguments"), 2
        ),
        because="loads of 2 bytes, and divisions by arguments; the table tells them apart.",
        tolerance=0.2,
    )
else:
    print("Not recorded yet: `make gpu` records it on a GPU.")

# %% tags=["nbval-ignore-output"]
head = ["rung", "bytes a load", "µs", "TFLOP/s"]
table = [head, ["---"] * len(head)]
for line in measured:
    name = line.provider.removeprefix("workbench:")
    width = str(narrowest(compiled[name])) if name in compiled else ""
    table.append([name, width, f"{line.median_ms * 1e3:.3g}", f"{line.tflops:.3g}"])
rows = "\n".join(f"| {' | '.join(row)} |" for row in table)
Markdown(rows if measured else "Not recorded yet: `make gpu` records it on a GPU.")

# %% [markdown]
# It is the loads. `in_eights` divides by arguments as well, and as recorded on an H200 it is
# {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=72 h=56 provider=workbench:in_eights over=workbench:arguments}}
# times as fast as `arguments`, since it was told one fact: 8 divides the channels.
#
# `computed` and `moved` in that table are one plain kernel, which takes a column's taps and
# channel apart at each step along K, or carries those of the last step, as exercise 08-2 has
# you do. All else is the same, and so is the width of its loads. Moving makes it
# {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=72 h=56 provider=workbench:moved over=workbench:computed}}
# times as fast, so there is nothing to gain. (Why is reasoned: a few multiplications in place
# of divisions by constants, while the matrix units and the loads take most of the time.)
#
# Descriptors serve more than products. `ops.flip`, `ops.roll`, `ops.pad` and `ops.unfold`
# are one kernel that copies from where one descriptor says to where another one says. As
# recorded on an H200, in fp16; the least bytes that have to move, over the time:

# %% tags=["nbval-ignore-output"]
MOVERS = ("flip", "roll", "pad", "unfold")
WHO = ("workbench", "torch", "torch.compile")
lines = recording.select(recording.shipped("nvidia-h200"), dtype="fp16")
moved = recording.latest_run(line for line in lines if line.op in MOVERS)
head = ["operator", "problem", *(f"{who}, TB/s" for who in WHO)]
table, by = [head, ["---"] * len(head)], {}
for line in moved:
    by.setdefault((line.op, line.problem), {})[line.provider] = line
for (op, problem), found in by.items():
    speeds = [
        f"{found[who].gb_per_s / 1000:.2f}" if who in found else "-" for who in WHO
    ]
    table.append([op, problem, *speeds])
rows = "\n".join(f"| {' | '.join(row)} |" for row in table)
Markdown(rows if by else "Not recorded yet: `make gpu` records it on a GPU.")

# %% [markdown]
# A flip along rows is the one to look at. Its descriptor says that neighbors lie in reverse,
# which would be loads of 2 bytes. So the kernel's invoker turns runs of 16 bytes around
# *in the descriptor*, after which the algebra finds them contiguous, and the lane that holds
# a run turns it back. A roll along rows by 1001 cannot be helped: 1001 is odd, so wherever
# its stores are aligned, its loads are not. Compiled for an H200:

# %%
shape = (512, 512)
source, target = torch.zeros(2, *shape, dtype=torch.float16, device=here.torch_device)
movers = {
    "flip": rearrangement.flip(shape, (1,)),
    "roll": rearrangement.roll(shape, (1001,), (1,)),
}
for name, how in movers.items():
    (step,) = lens.compile(rearrangement.launch(how, source, target), "sm_90")
    print(f"{name}: loads of {narrowest(step):2d} bytes")

# %% [markdown]
# ## Your turn
#
# As before, a check passes if the result is the specification's on all of its cases, and if no
# more of the machine is used than the text says; `teach.exercise("08-1").hint()` asks a
# question that leads on. `show(...)` shows a descriptor that you have, and in a terminal
# `python -m workbench access --file FILE.py:NAME` prints what one in a file of yours becomes.
#
# ### Exercise 08-1: make this picture
#
# An image, enlarged: every pixel stands `factor` times in each direction. This is 2 × 3
# pixels by a factor of 2:
#
# ```text
# 0 0 1 1 2 2
# 0 0 1 1 2 2
# 3 3 4 4 5 5
# 3 3 4 4 5 5
# ```
#
# Return the descriptor, with at most three transforms on top of the image's, not counting
# `pass_through`, and without a table (`indexing`).


# %%
# {{exercise 08-1}}

# %% [markdown]
# {{solution 08-1}}

# %% [markdown]
# ### Exercise 08-2: move without dividing
#
# Write what `merge(lengths)` does when a coordinate moves. `digits` is the index, by its
# digits, the last one the fastest; `step` is the step, by its digits, all of which have its
# sign: −7 is (0, −1, −2) where the lengths are (4, 3, 5). Return the digits after the step.
# The first digit has no end: it goes on beyond its length, and below 0. The numbers that the
# check gives you can be added, multiplied and compared, and refuse to be divided.


# %%
# {{exercise 08-2}}

# %% [markdown]
# {{solution 08-2}}

# %% [markdown]
# ### Exercise 08-3: sixteen bytes at once
#
# A signal with channels, `x` [n, channels], and `weight` [features, taps, channels]:
#
# $$y_{if} = \sum_{t} \sum_{c} x_{i + t - (\text{taps} - 1),\, c} \; w_{ftc}$$
#
# Window $i$ ends at sample $i$, so no result depends on what comes later: the filters are
# *causal*. What lies before the signal is 0. Write both operands as descriptors; the GEMM does
# the rest, in tiles of 64 × 32. Channels and features are multiples of 8, and compiled for
# `sm_90` every load and every store has to move 16 bytes.


# %%
# {{exercise 08-3}}

# %% [markdown]
# {{solution 08-3}}

# %% [markdown]
# ### Exercise 08-4: patches into the GEMM
#
# The first layer of a vision transformer cuts images [n, h, w] into patches of side × side
# pixels, and multiplies each patch with `weight` [features, side, side]. Write the
# descriptor of all patches, a row each: those of the first image first, row by row. Where
# a patch hangs over the image's end, the rest of it is 0. The GEMM of lesson 06 takes it
# from there.


# %%
# {{exercise 08-4}}

# %% [markdown]
# {{solution 08-4}}

# %% [markdown]
# Once it is solved, look at what you have made: `viz.DescriptorWidget(patches(2, 7, 10, 3))`
# shows its graph, and `address.code(patches(2, 7, 10, 3))` its text.
#
# ## Takeaways
#
# - An index becomes an offset by a chain of transforms: `pad` checks, `embed` adds up,
#   `merge` takes apart, and three of them make most matrices that one wants.
# - A kernel that is given the function instead of strides multiplies matrices that are
#   nowhere in memory. The GEMM of lesson 06 did, unchanged.
# - Moving a coordinate and computing it lead to the same place. Moving carries; computing
#   divides, which is cheap where the divisor is a number in the text.
# - Wide loads have to be proved: neighbors, where they begin, and masks that take all of
#   them or none. What a descriptor knows of them it has to tell the compiler.
# - The order of a sum is free, and one order is that of memory.
#
# **Next:** [09, convolution is GEMM](09_convolution_is_gemm.ipynb) makes a convolution of
# this, forward and backward. Back to [06, fast GEMM](06_fast_gemm.ipynb), or to
# [00, start here](00_start_here.ipynb).
