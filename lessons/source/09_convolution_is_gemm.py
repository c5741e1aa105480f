# %% [markdown]
# # Convolution is GEMM: descriptors, and no new kernel
#
# You will build
#
# - the matrix of a convolution, which is never laid out in memory: pad, embed, merge; by it
#   the kernel of lesson 06 becomes a convolution, unchanged;
# - both gradients of a convolution in the same way, one of them as several products;
# - depth-to-space as a transfer, group norm as a reduction of rows, and the table against
#   cuDNN, with what is missing in it.
#
# **Time:** 55 minutes. **You need:** Python, [lesson 06](06_fast_gemm.ipynb) for the kernel,
# and [lesson 08](08_coordinate_transforms.ipynb) for coordinate transforms. Kernels run in
# the interpreter and are compiled for GPUs that need not be here.
#
# **Out of scope:** other ways to convolve (Winograd, Fourier transforms), what is fused
# behind a convolution (lesson 10), and how an instance is chosen (lesson 13).

# %%
from workbench import Launch, device, explore, lens, ops, runtime, suites, teach, viz
from workbench.bench import recording
from workbench.bench.roofline import Point
from workbench.coords import Descriptor, naive, packed, transform
from workbench.coords.transforms import embed, merge, offset, pad, pass_through, unmerge
from workbench.kernels import convolution, gemm
from workbench.kernels.rows import group_norm, normalization
from workbench.kernels.convolution import implicit_gemm
from workbench.kernels.movement import view_transfer
from workbench.kernels.views import View, affine
from workbench.ops.convolution import geometry_of

import inspect
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from IPython.display import Markdown

here = device.current()
generator = torch.Generator().manual_seed(9)

# %% [markdown]
# ## The idea: a row for each pixel, a column for each tap
#
# A convolution slides a window over an image. At each place of it, every *tap* of the window
# (3 × 3 of them, say) meets a pixel, and each output channel, or *feature*, is the sum over
# taps and channels:
#
# $$\text{out}[n, y, x, k] = \sum_{r, s, c} \text{image}[n,\;
# y \cdot \text{stride} + r \cdot \text{dilation} - \text{padding},\; \dots,\; c] \cdot
# \text{weight}[r, s, c, k]$$
#
# Count the three indices $(n, y, x)$ of an output pixel as one number, the row, and the
# three $(r, s, c)$ of a weight as one number, the column. Then this *is* a matrix product,
#
# $$\text{out}[\text{row}, k] = \sum_{\text{col}} A[\text{row}, \text{col}] \cdot
# B[\text{col}, k]$$
#
# where B is the weight, and a row of A has all that the window sees at one place. Its FLOPs
# are those of any product, $2\,m\,n\,k$. One row of A, of an image of 4 × 4 pixels with one
# channel, for a window of 3 × 3:

# %%
TAPS_FIRST = (1, 2, 0)  # dimensions of a column: both taps, then the channel
tiny = geometry_of(2, torch.empty(1, 1, 4, 4), torch.empty(1, 1, 3, 3), padding=1)
tiny_a = convolution.input_windows(tiny, 1, (16, 0, 1, 4, 1), TAPS_FIRST).bind(images=1)
a_row = explore.descriptors.tile_on_image(tiny_a, tile=(1, 9), at=(7, 0))
viz.Picture(
    viz.figure_png(viz.image_tile_figure(a_row)), viz.describe_image_tile(a_row)
)

# %% [markdown]
# *Figure: left a matrix of 16 × 9 with row 7 marked, right the image in its padding; the row
# reads six pixels at the right edge, once each, and three places beyond it, which are zeros.*
#
# But A does not exist: memory has the image. Most pixels are in A nine times, for each tap
# that meets them. One can lay A out (*im2col*, image to columns) and multiply; early
# libraries did. Or one loads a tile of A from where its elements lie in the image, each time
# that the kernel asks for one. That is an **implicit GEMM** (Chetlur et al., *cuDNN*, 2014).
#
# **Predict.** A layer of ResNet-50: 32 images of 28 × 28 with 128 channels in fp16, a window
# of 3 × 3, 128 features, a zero of padding on each side. If A is laid out in memory, written
# once and read once, how many times as many bytes are moved as where it is not?

# %%
more_bytes = teach.predict(
    "Bytes of im2col and product, over bytes of the implicit product",
    guess=None,
    unit="times",
)

# %%
images, size, channels, features, taps = 32, 28, 128, 128, 3
m, n, k = images * size * size, features, taps * taps * channels
image_bytes, a_bytes = 2 * images * size * size * channels, 2 * m * k
weight_bytes, out_bytes = 2 * k * n, 2 * m * n
implicit = image_bytes + weight_bytes + out_bytes
laid_out = image_bytes + 2 * a_bytes + weight_bytes + out_bytes
flops = 2 * m * n * k
print(f"A is {m:,} × {k:,}, B is {k:,} × {n}: {flops / 1e9:.2f} GFLOP")
print(f"laid out: {laid_out / 1e6:6.1f} MB, {flops / laid_out:4.0f} FLOP for each byte")
print(f"implicit: {implicit / 1e6:6.1f} MB, {flops / implicit:4.0f} FLOP for each byte")
more_bytes.reveal(
    laid_out / implicit,
    because="A is nine times the image, and is written and read.",
    tolerance=0.1,
)

# %% [markdown]
# The ridge that lesson 02 measured on an H200 lies between these two: laid out, the layer
# waits for memory; implicit, it need not.
#
# ## The reference
#
# Two lines of torch, of which the second one lays A out (its `unfold` has channels and
# taps down, and pixels across):

# %%
x = torch.randn(2, 8, 6, 6, generator=generator)
w = torch.randn(8, 8, 3, 3, generator=generator)

convolved_by_torch = F.conv2d(x, w, padding=1)
as_a_product = w.flatten(1) @ F.unfold(x, 3, padding=1)

print("A, transposed:", tuple(F.unfold(x, 3, padding=1).shape[1:]), "for each image")
equal = torch.allclose(convolved_by_torch.flatten(2), as_a_product, atol=1e-4)
print("the same numbers:", equal)

# %% [markdown]
# ## One dimension: pad, embed, merge
#
# Lesson 08 made windows of one image with one channel. A convolution has more: several
# images, channels, a stride, a dilation. So that these stay in sight, shrink the image to a
# signal, [n, length, channels]. From memory upward, a transform a step:
#
# 1. **memory**: three dimensions, and their strides;
# 2. **pad**: the length gets zeros at both ends, and the descriptor remembers which part of
#    it there really is;
# 3. **embed**: one place becomes two indices, output and tap:
#    place = output · stride + tap · dilation;
# 4. **merge**: (n, output) is the row, (tap, channel) the column.


# %%
def windows_of_a_signal(shape, taps, outputs, stride, padding, dilation):
    """A of a convolution of signals: [(n, output), (tap, channel)]."""
    n, length, channels = shape
    memory = packed(shape, names=("n", "x", "c"))
    padded = transform(
        memory,
        [pass_through(n), pad(length, padding, padding), pass_through(channels)],
        [(0,), (1,), (2,)],
        [(0,), (1,), (2,)],
    )
    apart = transform(
        padded,
        [
            pass_through(n),
            embed((outputs, taps), (stride, dilation)),
            pass_through(channels),
        ],
        [(0,), (1,), (2,)],
        [(0,), (1, 2), (3,)],
        names=("n", "out", "tap", "c"),
    )
    return transform(
        apart,
        [merge((n, outputs)), merge((taps, channels))],
        [(0, 1), (2, 3)],
        [(0,), (1,)],
        names=("row", "col"),
    )


def show(descriptor):
    """Print where each element of a small matrix lies in memory; a dot is padding."""
    for row in descriptor.offsets().tolist():
        print(" ".join(f"{'.' if place is None else place:>3}" for place in row))


show(windows_of_a_signal((1, 8, 1), taps=3, outputs=8, stride=1, padding=1, dilation=1))

# %% [markdown]
# Eight rows, one for each output; three columns, one for each tap. Along a diagonal stands one
# sample, up to three times, and no memory was spent on that. Here is how the first element is
# found to be padding:

# %%
of_a_signal = windows_of_a_signal((1, 8, 1), 3, 8, stride=1, padding=1, dilation=1)
viz.Picture(
    viz.figure_png(viz.descriptor_figure(of_a_signal, (0, 0))),
    viz.describe_descriptor(of_a_signal, (0, 0)),
)

# %% [markdown]
# *Figure: the graph of the descriptor for row 0 and column 0, from these two on top through
# merge, embed and pad to the offset; pad says that sample -1 is outside, so nothing is read.*
#
# **Predict.** With a stride of 2 and a dilation of 3, no padding, and 12 samples: which
# sample does row 1 have in column 2?

# %%
sample = teach.predict("Stride 2, dilation 3: A[1, 2]", guess=None, unit="")

# %%
strided = windows_of_a_signal(
    (1, 12, 1), taps=3, outputs=3, stride=2, padding=0, dilation=3
)
show(strided)
sample.reveal(strided.offset((1, 2)), because="1 · 2 + 2 · 3.")

# %% [markdown]
# Now the product. B is the weight, [(tap, channel), feature], as it lies; the output
# [(n, output), feature] too. `implicit_gemm.launch` takes three views, a tensor with a
# descriptor each, and makes a launch of them:


# %%
def conv1d(signal, weight, stride=1, padding=0, dilation=1):
    """[n, outputs, features] of a signal [n, length, channels]."""
    n, length, channels = signal.shape
    taps, _, features = weight.shape
    outputs = (length + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    a = windows_of_a_signal(signal.shape, taps, outputs, stride, padding, dilation)
    b = packed((taps * channels, features))
    c = packed((n * outputs, features))
    output = torch.empty(n, outputs, features, dtype=signal.dtype, device=signal.device)
    views = View(signal, a, {}), View(weight, b, {}), View(output, c, {})
    return implicit_gemm.launch(*views, tile=(16, 16, 16))


signal = torch.randn(2, 21, 8, generator=generator).half().to(here.torch_device)
taps_and_channels = torch.randn(3, 8, 5, generator=generator).half()
launch = conv1d(
    signal, taps_and_channels.to(here.torch_device), stride=2, padding=2, dilation=2
)
(result,) = runtime.interpret(launch, poison=True).outputs
exact = F.conv1d(
    signal.cpu().double().mT,
    taps_and_channels.double().permute(2, 1, 0),
    stride=2,
    padding=2,
    dilation=2,
).mT
print("right:", torch.allclose(result.double(), exact, atol=0.02))

# %% [markdown]
# As in lesson 08, no kernel was written for that. What exactly was the kernel told? Here is a
# plain product of two matrices of the same sizes beside it:

# %%
(of_windows,) = launch.steps
rows, cols, depth = map(of_windows.arguments().get, "mnk")
plain_a, plain_b = (
    torch.zeros(shape, dtype=torch.float16, device=here.torch_device)
    for shape in ((rows, depth), (depth, cols))
)
(of_matrices,) = gemm.launch(plain_a, plain_b, tile=(16, 16, 16), splits=1).steps

print("kernels:", of_windows.name, "and", of_matrices.name)
print("the very same object:", of_windows.kernel is of_matrices.kernel)
names = [
    name for name, value in of_windows.meta.items() if value != of_matrices.meta[name]
]
print("it was given other values of:", ", ".join(names))

# %% [markdown]
# `LOAD_A` is the loader of A: a jit function, made from the descriptor, that is handed to the
# kernel as a constant. (`DIVISORS` says what divides A's strides, which a matrix has and
# windows do not.) The loop, the products, the masks at the edges, the order of programs, the
# splits and the epilogue are those of a matrix product. **That is the whole lesson**; what
# follows are more dimensions, and more descriptors.
#
# ## An image
#
# The package has the same for any number of dimensions. This is its descriptor of A, in
# full:

# %%
print(inspect.getsource(convolution.input_windows))

# %% [markdown]
# It goes the same way: `pad` each size, `embed` each into output and tap, `merge` rows and
# columns. What was added, and why:
#
# - **Groups** are a batch of products: a third dimension in front, with a stride of its own.
# - **The number of images is a symbol**, `IMAGES`, in the dimension that is outermost. So
#   another batch generates the same text, and compiles nothing anew. All other lengths are
#   constants: the compiler divides by constants, which is cheap, and not by variables.
# - **Strides** are the tensor's own, so that any memory format will do.
# - **The order** of taps and channels in a column is chosen by these strides.
#
# For the small image from above, whose tensor lies *channels last*: the channels of a pixel
# are neighbors in memory.

# %%
last = torch.channels_last
image, weight = (
    one.half().contiguous(memory_format=last).to(here.torch_device) for one in (x, w)
)
shape = geometry_of(2, image, weight, padding=1)


def strides_of(tensor):
    """Return the strides of (n, group, channel, height, width), for one group."""
    of_image, *others = tensor.stride()
    return (of_image, 0, *others)


a = convolution.input_windows(shape, 8, strides_of(image), TAPS_FIRST)
print(a)

# %% [markdown]
# Read it from the top, as the kernel asks, or from the bottom, as we built it.
#
# **Predict.** The kernel asks for the first tile of 16 × 16 of A: the first 16 output pixels,
# and the first 16 columns, which are two taps of eight channels. How many of its 256 elements
# are padding?

# %%
in_padding = teach.predict(
    "Elements of the first tile that are padding", guess=None, unit="elements"
)

# %%
first_tile = explore.descriptors.tile_on_image(a.bind(images=2), tile=(16, 16))
in_padding.reveal(
    int((~first_tile.tile).sum()),
    because="both taps are in the row above, and the first six pixels have none above "
    "them; of the ten others, those two at the left edge have no pixel for the first tap.",
)

# %% [markdown]
# Those are zeros that nobody loads: the access function says that they are not valid, and the
# mask of the load leaves them out.
#
# **Move the tile.** Left stands A, which is nowhere in memory; right the two images in their
# padding. `step along K` moves the tile as the loop of the kernel does, `tile of rows` as the
# next program has it. When does a tile read one pixel several times? When does it read both
# images?

# %% tags=["widget"]
explore.descriptors.move_tile(a.bind(images=2), tile=(16, 16), at=(1, 1))

# %% [markdown]
# ## What it becomes
#
# The sum runs over columns in any order, as long as A and B have the same one. Lesson 08
# found that one order is that of memory: with the channel last in both, a lane loads 16
# bytes at once. So the package sorts a column by the image's strides. This is the function
# that is made for a layer of 128 channels:

# %%
layer = torch.empty(2, 128, 28, 28, dtype=torch.float16).contiguous(memory_format=last)
layer_weight = torch.empty(128, 128, 3, 3, dtype=torch.float16)
layer_weight = layer_weight.contiguous(memory_format=last)
layer_shape = geometry_of(2, layer, layer_weight, padding=1)
layer_a = convolution.input_windows(layer_shape, 128, strides_of(layer), TAPS_FIRST)
explore.descriptors.code(layer_a, title="A of a layer of ResNet-50")

# %% [markdown]
# `row` is a column of indices and `col` a row of them; only where both meet is there a whole
# tile of numbers. All divisions are by constants. And look at `offset`: with a stride of 1
# and an output as large as the image, image, height and width of a row need not be taken
# apart to be put together again. The algebra of lesson 08 found `row * 128`. They are taken
# apart for `valid` alone.
#
# ## A window of 1 × 1
#
# Most of ResNet-50's convolutions have a window of a single pixel. Composable Kernel has a
# specialization for it. Here nobody wrote one: the algebra folds `merge` and `embed` away
# where they cancel, and asks what is left.
#
# **Predict.** For which of these does it find that A is a plain strided matrix?

# %%
plain = teach.predict(
    "A is a plain matrix for",
    guess=None,
    choices=(
        "1 × 1",
        "1 × 1 and 1 × 1 with stride 2",
        "1 × 1 and 8 × 8 on an image of 8 × 8",
        "1 × 1 and 2 × 2 with stride 2",
    ),
)

# %%
small = torch.empty(2, 16, 8, 8).contiguous(memory_format=last)
for window, stride, padding in ((1, 1, 0), (1, 2, 0), (2, 2, 0), (3, 1, 1), (8, 1, 0)):
    one = geometry_of(
        2, small, torch.empty(8, 16, window, window), stride=stride, padding=padding
    )
    found = affine(convolution.input_windows(one, 16, strides_of(small), TAPS_FIRST))
    said = "no matrix" if found is None else f"row stride {found.strides[1]}, col 1"
    print(f"{window} × {window}, stride {stride}, padding {padding}: {said}")
plain.reveal(
    "1 × 1 and 8 × 8 on an image of 8 × 8",
    because="a window as large as the image sees all of it, once: a fully connected layer.",
)

# %% [markdown]
# With a stride of 2, the rows of pixels that are left out make a jump at the end of each row
# that is read, and no stride can say that. Where A is a matrix, the package gives the kernel
# the loaders of lesson 06, those of tensor descriptors (TMA) among them.
#
# ## Check it
#
# The package's launch, for images and windows that are not square, with strides, dilations
# and groups, into outputs full of NaN, with programs in a shuffled order:

# %%
ragged = (  # image, weight, stride, padding, dilation, groups
    ((2, 8, 7, 5), (6, 8, 3, 2), (1, 2), (1, 0), (1, 1), 1),
    ((1, 16, 9, 8), (24, 8, 3, 3), (2, 2), (1, 1), (1, 1), 2),
    ((1, 8, 6, 11), (3, 8, 2, 3), (1, 1), (2, 2), (3, 2), 1),
    ((3, 8, 5, 5), (8, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
)


def tensors_of(*shapes):
    return [
        torch.randn(one, generator=generator)
        .half()
        .contiguous(memory_format=last)
        .to(here.torch_device)
        for one in shapes
    ]


for seed, (of_image, of_weight, *options) in enumerate(ragged):
    one, taps_of_it = tensors_of(of_image, of_weight)
    names = ("stride", "padding", "dilation", "groups")
    chosen = dict(zip(names, options, strict=True))
    exact = F.conv2d(one.cpu().double(), taps_of_it.cpu().double(), **chosen)
    output = torch.empty_like(exact, dtype=torch.float16, memory_format=last)
    launch = convolution.launch(
        "forward",
        one,
        taps_of_it,
        output.to(here.torch_device),
        geometry=geometry_of(2, one, taps_of_it, **chosen),
        tile=(16, 16, 16),
    )
    (got,) = runtime.interpret(launch, poison=True, seed=seed).outputs
    error = ((got.double() - exact).abs() / (1 + exact.abs())).max()
    print(f"{of_image} by {of_weight}: {'right' if error < 0.01 else error}")

# %% [markdown]
# ## Look inside
#
# Lesson 08 counted: an implicit product *loads* as many bytes of A as one that was laid out,
# but for the padding. What changes is where they come from: a pixel that another tap has
# brought may be in a cache still, and nobody wrote A to memory before.
#
# And what instructions load them? Compiled for an H200, the layer with 128 channels beside a
# plain product with the same tile:

# %%
TILE = {"tile": (64, 64, 64), "num_warps": 4, "num_stages": 3}
layer_output = torch.empty_like(layer)
as_windows = convolution.launch(
    "forward", layer, layer_weight, layer_output, geometry=layer_shape, **TILE
)
(compiled,) = lens.compile(as_windows, "sm_90")


def in_short(step):
    copies = step.widest("asynchronous copy")
    units = "matrix units" if step.count("matrix") else "no matrix units"
    return f"asynchronous copies of {copies} bits, {units}"


print("windows:  ", in_short(compiled))

# %%
plain_a = torch.empty(2 * 28 * 28, 9 * 128, dtype=torch.float16)
plain_b = torch.empty(9 * 128, 128, dtype=torch.float16)
as_matrix = gemm.launch(plain_a, plain_b, splits=1, **TILE)
(compiled,) = lens.compile(as_matrix, "sm_90")
print("a product:", in_short(compiled))

# %% [markdown]
# ## Backward for data: the gradient of the image
#
# Which outputs saw a pixel? Place $p$ was met by tap $r$ of output $y$ if
# $p = y \cdot \text{stride} + r \cdot \text{dilation} - \text{padding}$. With a stride of 1
# that can be turned around at once:
#
# $$y = p + \text{padding} - r \cdot \text{dilation}$$
#
# It is a window again, on the *gradient of the output*, whose taps go backward. So there is
# nothing to flip in memory: `embed` takes a negative coefficient. `offset` adds the padding,
# and a `pad` of nothing says which outputs there are. The sum is over taps and features; B is
# [(tap, feature), channel], the same weight with other dimensions merged.


# %%
def gradient_windows_of_a_signal(shape, taps, places, padding, dilation):
    """[(n, place), (tap, feature)] of a gradient [n, outputs, features]; the stride is 1."""
    n, outputs, features = shape
    memory = packed(shape, names=("n", "y", "k"))
    places_and_taps = memory
    for one in (
        pad(outputs, 0, 0),
        offset(outputs, padding),
        embed((places, taps), (1, -dilation)),
    ):
        last_step = len(one.upper_lengths) == 2
        places_and_taps = transform(
            places_and_taps,
            [pass_through(n), one, pass_through(features)],
            [(0,), (1,), (2,)],
            [(0,), (1, 2), (3,)] if last_step else [(0,), (1,), (2,)],
        )
    return transform(
        places_and_taps,
        [merge((n, places)), merge((taps, features))],
        [(0, 1), (2, 3)],
        [(0,), (1,)],
        names=("row", "col"),
    )


show(gradient_windows_of_a_signal((1, 8, 1), taps=3, places=8, padding=1, dilation=1))

# %% [markdown]
# The windows of before, with their columns in reverse.
#
# **Predict.** With a stride of 2, $y = (p + \text{padding} - r) / 2$ has to be a whole
# number. If one product with all 3 × 3 taps is made for each pixel of an image, and the
# outputs that do not exist count as zeros: which share of its multiply-adds meets an output,
# edges left out?

# %%
useful = teach.predict(
    "Stride 2, 3 × 3: multiply-adds that meet an output", guess=None, unit="%"
)

# %% [markdown]
# The package makes a product for each *remainder* of a place by the stride (Composable Kernel
# does so too). Of one dimension with a window of 3:

# %%
for phase in convolution.phases_of(size=8, taps=3, stride=2, padding=1, dilation=1):
    places = [phase.first + 2 * i for i in range(phase.count)]
    met = [phase.first_tap + phase.tap_step * j for j in range(phase.taps)]
    print(f"places {places} meet taps {met}")
useful.reveal(
    25,
    because="in each dimension, half of the pairs of place and tap are of one parity.",
)

# %% [markdown]
# For an image that is 2 · 2 = 4 products, with 4, 2, 2 and 1 of the nine taps. Each is a pair
# of descriptors for the same kernel, and their outputs are places of one image:

# %%
image, weight = tensors_of((2, 8, 8, 8), (16, 8, 3, 3))
strided = geometry_of(2, image, weight, stride=2, padding=1)
(grad,) = tensors_of((2, 16, 4, 4))
grad_image = torch.empty_like(image)
products = convolution.backward_data(grad, weight, grad_image, geometry=strided)
sums = 0
for one in products:
    rows, depth = one.a.lengths[1:]
    sums += rows * depth * one.b.lengths[-1]
    print(f"[{rows}, {depth}] @ [{depth}, {one.b.lengths[-1]}]")
forward = 2 * 4 * 4 * 9 * 8 * 16
print(f"multiply-adds: {sums:,}; of the forward product: {forward:,}")
launch = convolution.launch(
    "backward_data", grad, weight, grad_image, geometry=strided, tile=(16, 16, 16)
)
dots = sum(len([*step.events(kind="dot")]) for step in lens.trace(launch))
all_taps = (2 * 8 * 8 // 16) * (9 * 16 // 16)
print(f"dots of 16 × 16 × 16: {dots}; with all taps for each pixel: {all_taps}")

# %% [markdown]
# Exactly those of the forward pass, no zero among them but padding, and a fourth of the dots.
# The price is four smaller products, one launched after the other. The table will show it.
#
# ## Backward for weight: a sum over pixels
#
# $$\text{grad}_w[k, (r, s, c)] = \sum_{(n, y, x)} \text{grad}[k, (n, y, x)] \cdot
# A[(n, y, x), (r, s, c)]$$
#
# The windows of the forward pass are B now, unchanged, and A is the output's gradient,
# seen with features down. K is the number of pixels of all images, and the output is small.
#
# **Predict.** 64 channels to 64 features, 3 × 3, on 32 images of 56 × 56. With tiles of
# 64 × 128, how many tiles are there for an H200's 132 units?

# %%
few_tiles = teach.predict("Tiles of the weight's gradient", guess=None, unit="tiles")

# %%
k_of_pixels = 32 * 56 * 56
print(f"[64, {k_of_pixels:,}] @ [{k_of_pixels:,}, {9 * 64}]")
few_tiles.reveal(
    math.ceil(64 / 64) * math.ceil(9 * 64 / 128),
    because="64 features down, and nine taps of 64 channels across.",
)

# %% [markdown]
# That is where lesson 06's split-K comes in: the kernel has it already. Here are all three
# products, with splits for the last one, against torch's gradients:

# %%
exact_image, exact_weight = torch.autograd.grad(
    F.conv2d(
        leaf_image := image.cpu().double().requires_grad_(),
        leaf_weight := weight.cpu().double().requires_grad_(),
        stride=2,
        padding=1,
    ),
    (leaf_image, leaf_weight),
    grad.cpu().double(),
)
result = torch.empty_like(grad)
grad_weight = torch.empty_like(weight)
exact_result = F.conv2d(image.cpu().double(), weight.cpu().double(), None, 2, 1)
of_the_gemm = {gemm.gemm_kernel, gemm.sum_of_splits_kernel}
for kind, first, second, output, exact, splits in (
    ("forward", image, weight, result, exact_result, 1),
    ("backward_data", grad, weight, grad_image, exact_image, 1),
    ("backward_weight", grad, image, grad_weight, exact_weight, 2),
):
    launch = convolution.launch(
        kind,
        first,
        second,
        output,
        geometry=strided,
        tile=(16, 16, 16),
        splits=splits,
    )
    (got,) = runtime.interpret(launch, poison=True).outputs
    error = ((got.double() - exact).abs() / (1 + exact.abs())).max()
    kernels = {step.kernel for step in launch.steps}
    print(
        f"{kind:15s} {'right' if error < 0.01 else error}, steps: {len(launch.steps)}, "
        f"no kernel but the GEMM's: {kernels <= of_the_gemm}"
    )

# %% [markdown]
# That is `ops.conv2d`, and its gradients, which autograd asks for; one, two and three
# dimensions, groups, and the transposed convolution, whose forward pass *is* backward for
# data.
#
# (One thing besides: where an image lies so that a lane cannot load 16 bytes, as with three
# channels, the package copies it first, with zeros for the channels that are missing. The
# copy is a transfer by a descriptor with a `right_pad`; see `convolution.image_of`.)
#
# ## Depth-to-space: a transfer with a descriptor
#
# The GEMM is not the only kernel that takes descriptors. `pixel_shuffle` makes a large image
# of many channels: of $r^2$ channels each becomes a place in a block of $r \times r$ pixels.
#
# $$\text{out}[n, c, h \cdot r + i, w \cdot r + j] = \text{in}[n, (c, i, j), h, w]$$
#
# Read from the output: a row of its pixels *is* a number of two digits, (h, i). `merge` takes
# it apart.


# %%
def shuffled_pixels(source, factor):
    """[n, c, height * factor, width * factor] of [n, c * factor^2, height, width]."""
    n, depth, height, width = source.shape
    channels = depth // factor**2
    memory = packed(
        (n, channels, factor, factor, height, width),
        names=("n", "c", "i", "j", "h", "w"),
    )
    return transform(
        memory,
        [
            pass_through(n),
            pass_through(channels),
            merge((height, factor)),
            merge((width, factor)),
        ],
        [(0,), (1,), (4, 2), (5, 3)],
        [(0,), (1,), (2,), (3,)],
        names=("n", "c", "y", "x"),
    )


show_one = transform(
    shuffled_pixels(torch.empty(1, 4, 2, 3), 2),
    [merge((1, 1, 4)), pass_through(6)],
    [(0, 1, 2), (3,)],
    [(0,), (1,)],
)
show(show_one)

# %% [markdown]
# Four channels of 2 × 3 are woven into one of 4 × 6. The kernel is the one that moves elements
# (`view_transfer`), for which flips, shifts, padding and windows are descriptors too:

# %%
deep = torch.randn(2, 12, 5, 7, generator=generator).half().to(here.torch_device)
seen = shuffled_pixels(deep, 2)
wide_output = torch.empty(2, 3, 10, 14, dtype=torch.float16, device=here.torch_device)
source, places = view_transfer.matrices(seen, packed(seen.lengths), itemsize=2)
launch = view_transfer.launch(View(deep, source, {}), View(wide_output, places, {}))
(got,) = runtime.interpret(launch, poison=True, seed=1).outputs
print(launch.steps[0].name, "right:", torch.equal(got, F.pixel_shuffle(deep.cpu(), 2)))
roll = torch.equal(ops.roll(deep, 3, 1), torch.roll(deep, 3, 1))
flip = torch.equal(ops.flip(deep, (2, 3)), torch.flip(deep, (2, 3)))
print("the same kernel, other descriptors: roll", roll, "and flip", flip)

# %% [markdown]
# (`ops.pixel_shuffle` itself goes a shorter way: written with six dimensions, depth-to-space
# has no division in it, only strides in another order, and that is lesson 01's transfer.)
#
# ## Group norm: rows that no stride can say
#
# Group norm takes the mean and variance of each *group of channels* of an image: lesson 04's
# layer norm, whose row is (n, group), and whose columns are the group's channels and pixels.
# Does the kernel of lesson 04 do it unchanged? It needs rows and columns:


# %%
def rows_of_groups(tensor, groups):
    """[(n, group), (channel of the group, y, x)], whatever the tensor's strides."""
    n, channels, height, width = tensor.shape
    memory = naive(tensor.shape, tensor.stride(), names=("n", "c", "y", "x"))
    grouped = transform(
        memory,
        [
            pass_through(n),
            unmerge((groups, channels // groups)),
            pass_through(height),
            pass_through(width),
        ],
        [(0,), (1,), (2,), (3,)],
        [(0,), (1, 2), (3,), (4,)],
    )
    return transform(
        grouped,
        [merge((n, groups)), merge((channels // groups, height, width))],
        [(0, 1), (2, 3, 4)],
        [(0,), (1,)],
        names=("row", "col"),
    )


planes = torch.randn(2, 8, 4, 4, generator=generator).to(here.torch_device)
for name, lies in (
    ("channels first", planes),
    ("channels last ", planes.contiguous(memory_format=last)),
):
    found = affine(rows_of_groups(lies, groups=4))
    said = "no strides" if found is None else f"strides {found.strides}"
    launch = group_norm.launch(lies, 4, epsilon=1e-5)
    (got,) = runtime.interpret(launch, poison=True).outputs
    right = torch.allclose(got, F.group_norm(planes.cpu(), 4), atol=1e-5)
    print(f"{name}: a matrix of {said}; right: {right}")

rows = torch.zeros(8, 32, device=here.torch_device)
of_rows = normalization.launch("layer_norm", rows, 1, epsilon=1e-5)
kernels = {step.kernel for step in launch.steps}
print("layer norm's kernel:", kernels == {step.kernel for step in of_rows.steps})

# %% [markdown]
# Channels first, a group is a plain row. Channels last it is not: a group's channels lie
# beside those of the next group, pixel after pixel. Yet the kernel is the same, and only the
# access function differs. `ops.group_norm` is that, with its gradients.
#
# ## Measure: against cuDNN
#
# ResNet-50's convolutions with 32 images and with one, two of a diffusion model's UNet, one
# with 32 groups and one with dilation, in fp16, channels last. cuDNN was told to try all its
# algorithms first (its benchmark mode). All were timed in CUDA graphs, where a call finds in
# the cache what the one before it has left there; so a ratio compares kernels, without Python
# and, for small layers, without memory.
#
# **Predict.** For ResNet-50's 3 × 3 with a stride of 2 and a batch: for which of the three
# products does the package take longest, in terms of cuDNN's time?

# %%
slowest = teach.predict(
    "3 × 3, stride 2: furthest behind cuDNN",
    guess=None,
    choices=("forward", "backward data", "backward weight"),
)

# %% tags=["nbval-ignore-output"]
KINDS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight")
HEADS = ("forward", "backward data", "backward weight")
shipped = recording.shipped("nvidia-h200")


def fullest_run(kind):
    """The lines of the newest of those runs that compare most problems with cuDNN."""
    lines = [one for one in shipped if one.op == kind and one.dtype == "fp16"]
    compared = {}
    for one in lines:
        if one.provider == "cuDNN":
            compared.setdefault(one.run, []).append(one.time)
    if not compared:
        return []
    run = max(compared, key=lambda name: (len(compared[name]), max(compared[name])))
    return recording.select(lines, run=run)


measured = [line for kind in KINDS for line in fullest_run(kind)]
if here.is_gpu:
    few = [
        case
        for case in suites.get("convolution").cases
        if case.dtype == "fp16"
        and (case.case["n"], case.case["c"], case.case["r"]) == (32, 128, 3)
        and case.case["dilation"] == 1
    ]
    live = suites.Suite("layers", "some layers", tuple(few))
    measured, _ = suites.run(live, progress=False, rounds=1, warmup_ms=10, rep_ms=20)
times = {}
for line in measured:
    problem = tuple(line.case.items())
    times.setdefault(problem, {}).setdefault(line.op, {})[line.provider] = line


def share(problem, kind):
    """The time of cuDNN over ours; None where one of them is missing."""
    by = times[problem].get(kind, {})
    if "workbench" not in by or "cuDNN" not in by:
        return None
    return by["cuDNN"].median_ms / by["workbench"].median_ms


def sort_of(problem):
    """Name what is particular about a layer."""
    case = dict(problem)
    if case["groups"] > 1:
        return "32 groups"
    if case["dilation"] > 1:
        return "dilated"
    if case["c"] < 8:
        return "three channels"
    if case["n"] == 2:
        return "UNet"
    return f"{case['r']} × {case['s']}, stride {case['stride']}"


where = f"{measured[0].device}, {measured[0].when[:10]}" if measured else "not recorded"
print(where)

# %% [markdown]
# By sort of layer, and of several the geometric mean. Above 1 the package is ahead.


# %% tags=["nbval-ignore-output"]
def mean(shares):
    known = [one for one in shares if one]
    if not known:
        return ""
    return f"{math.prod(known) ** (1 / len(known)):.2f}"


sorts = {}
for problem in times:
    batch = "one image" if dict(problem)["n"] == 1 else "a batch"
    sorts.setdefault((batch, sort_of(problem)), []).append(problem)
head = ["images", "layers", "number", *HEADS]
table = [head, ["---"] * len(head)]
for (batch, sort), problems in sorted(sorts.items()):
    means = [mean(share(one, kind) for one in problems) for kind in KINDS]
    table.append([batch, sort, str(len(problems)), *means])
for batch in ("a batch", "one image"):
    problems = [one for key, many in sorts.items() if key[0] == batch for one in many]
    means = [mean(share(one, kind) for one in problems) for kind in KINDS]
    table.append([f"**{batch}**", "all", str(len(problems)), *means])
Markdown("\n".join(f"| {' | '.join(row)} |" for row in table))

# %% tags=["nbval-ignore-output"]
by_head = {
    head: mean(
        share(one, kind) for one in sorts.get(("a batch", "3 × 3, stride 2"), ())
    )
    for head, kind in zip(HEADS, KINDS, strict=True)
}
slowest.reveal(
    min(by_head, key=lambda head: by_head[head] or "9"),
    because="it is four products of a fourth each, where cuDNN has one kernel.",
)

# %% [markdown]
# Each layer with a batch on its own, forward and backward:

# %%
layers = [problem for problem in times if dict(problem)["n"] > 1]
layers.sort(key=lambda problem: (sort_of(problem), dict(problem)["h"]))


def label(problem):
    case = dict(problem)
    return f"{case['c']}→{case['k']}, {case['h']}²"


with viz.figure_style() as palette:
    figure, axes = plt.subplots(figsize=(9, 5.2))
    for kind, name, marker in zip(KINDS, HEADS, "osD", strict=True):
        found = [(i, share(one, kind)) for i, one in enumerate(layers)]
        known = [(i, value) for i, value in found if value]
        axes.plot(*zip(*known, strict=True), marker, label=name, markersize=6)
    axes.axhline(1, color=palette.ink, linestyle="--", linewidth=1)
    names = [sort_of(problem) for problem in layers]
    for i in range(1, len(names)):
        if names[i] != names[i - 1]:
            axes.axvline(i - 0.5, color=palette.muted, linewidth=0.8)
    for name in dict.fromkeys(names):
        middle = names.index(name) + (names.count(name) - 1) / 2
        turned = names.count(name) < 3
        axes.text(
            middle,
            1.0,
            f" {name}",
            rotation=90 if turned else 0,
            ha="center",
            va="bottom",
            fontsize=8,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xticks(range(len(layers)), map(label, layers), rotation=90, fontsize=8)
    axes.set_ylabel("time of cuDNN / ours")
    axes.set_xlabel(f"channels→features, height and width; {where}")
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=9, ncols=3, loc="upper left")
    plt.tight_layout()
    plt.show()

# %% [markdown]
# *Figure: for each layer of a batch, grouped by sort, three markers for the time of cuDNN
# over that of the package, forward, backward for data and backward for weight, with a line
# at 1; they lie on both sides of it, but those of 32 groups, and of backward for data with
# 3 × 3 and a stride of 2, all below.*
#
# And the forward pass under the roofs. A roof of memory is not one of these kernels, which
# find much of their bytes in the L2 cache; it shows which layers would wait for memory if
# they did not.

# %%
roofs, _ = suites.live_or_recorded("matmul")
points = [
    Point(
        label=label(problem),
        provider=line.provider,
        op=line.op,
        dtype=line.dtype,
        flops=line.flops,
        bytes=line.bytes,
        seconds=line.median_ms / 1e3,
        device=line.device,
        when=line.when[:10],
        recorded=not here.is_gpu,
    )
    for problem in layers
    for name, line in times[problem].get("conv2d", {}).items()
    if name in ("workbench", "cuDNN")
]
title = "Forward, fp16, calls in a row with warm caches"
viz.Picture(
    viz.figure_png(viz.roofline_figure(roofs, points, dtype="fp16", title=title)),
    viz.describe(roofs, points, dtype="fp16"),
)

# %% [markdown]
# *Figure: the forward pass of each layer, ours and cuDNN's, under the roofs of the device:
# they rise along the slope of memory and stay, beyond the ridge, under the roof of products;
# ours and cuDNN's lie close together, and lowest of all are 32 groups and three channels.*
#
# The layer that we counted at the beginning computes
# {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=128 h=28 k=128 r=3 dilation=1 groups=1 provider=workbench show=TFLOP/s}}
# in
# {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=128 h=28 k=128 r=3 dilation=1 groups=1 provider=workbench show=µs}}.
# cuDNN needs
# {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=128 h=28 k=128 r=3 dilation=1 groups=1 provider=cuDNN show=µs}}.
# Both are well under the roof. The layer's 196 tiles of 128 × 128 are one and a half for each of 132
# units, and with 18 steps along K a tile's beginning and end weigh more than in a large
# product. (Counted, not measured.)
#
# Which kernels were that? The recording says it:

# %% tags=["nbval-ignore-output"]
asked = (
    ("conv2d", "1 × 1, stride 1"),
    ("conv2d", "3 × 3, stride 1"),
    ("conv2d_backward_data", "3 × 3, stride 2"),
    ("conv2d_backward_weight", "3 × 3, stride 1"),
    ("conv2d", "32 groups"),
    ("conv2d", "three channels"),
)
for kind, sort in asked:
    chosen = [one for one in layers if sort_of(one) == sort and kind in times[one]]
    for problem in chosen[-1:]:
        print(f"{HEADS[KINDS.index(kind)]}, {sort}, {label(problem)}")
        for name in ("workbench", "cuDNN"):
            line = times[problem][kind].get(name)
            ran = line.config.get("kernels", []) if line else []
            print(f"   {name}: {', '.join(one[:60] for one in ran) or 'not known'}")

# %% [markdown]
# cuDNN does what we do: its kernels for 3 × 3 have `implicit_gemm` in their names, and for
# most windows of 1 × 1 it calls cuBLAS's products (`nvjet`). So the vendor's answer to "is a
# convolution a GEMM" is yes, too.
#
# **What remains.** Forward and backward for weight of a batch take about as long as cuDNN's
# on average; forward with one image, the package is ahead. It is behind in these places:
#
# - *Backward for data with a stride.* Of ResNet-50's 3 × 3, the one with the largest image
#   reaches
#   {{recording device=nvidia-h200 op=conv2d_backward_data dtype=fp16 n=32 c=128 h=56 k=128 r=3 provider=workbench over=cuDNN}}
#   of cuDNN's speed: four products, one after the other, each with a fourth of the rows, and
#   with one, two or four of the nine taps. cuDNN runs one kernel for all (`indexed` in its
#   name).
# - *Groups of few channels*:
#   {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 groups=32 provider=workbench over=cuDNN}}
#   forward and
#   {{recording device=nvidia-h200 op=conv2d_backward_weight dtype=fp16 n=32 groups=32 provider=workbench over=cuDNN}}
#   backward for weight. A group of 8 channels and 8 features fills half of the narrowest
#   tile, and the image is copied first (`view_kernel`), to have each group's channels side by
#   side.
# - *1 × 1*, some layers, such as 512 channels to 256 features on images of 28 × 28:
#   {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=512 h=28 k=256 r=1 provider=workbench over=cuDNN}}.
#   That is lesson 06's product, of which the vendor has more instances.
# - *Few pixels*: backward for data of 512 channels on images of 7 × 7,
#   {{recording device=nvidia-h200 op=conv2d_backward_data dtype=fp16 n=32 c=512 h=7 k=512 r=3 provider=workbench over=cuDNN}}.
#   It has 100 tiles of 64 × 128 for 132 units, and long sums.
# - *Three channels*, forward:
#   {{recording device=nvidia-h200 op=conv2d dtype=fp16 n=32 c=3 h=224 provider=workbench over=cuDNN}}.
#   The copy with zeros for missing channels is a pass of its own; cuDNN makes one too.
#
# The ratios are measured. That these are the reasons is reasoned: which kernels ran is
# recorded, and not what they waited for. Why the UNet's layers are behind, the recording does
# not say.
#
# Depth-to-space and group norm, where they are recorded, against torch and its compiler. (For
# depth-to-space of this one problem the package reaches
# {{recording device=nvidia-h200 op=pixel_shuffle dtype=fp16 provider=workbench over=torch.compile}}
# times the speed of what torch's compiler makes.)

# %% tags=["nbval-ignore-output"]
others = []
for kind in ("pixel_shuffle", "group_norm"):
    lines = [line for line in shipped if line.op == kind and line.dtype == "fp16"]
    own = [line for line in lines if line.provider == "workbench"]
    if own:
        run = recording.latest_run(own)[0].run
        others += recording.select(lines, run=run)
    else:
        print(f"{kind}: not recorded yet. `make gpu` records it on a GPU.")
columns = ("op", "problem", "provider", "ms", "GB/s")
Markdown(recording.table(others, "markdown", columns)) if others else None

# %% [markdown]
# ## Your turn
#
# As before, a check passes if the result is the specification's, but for rounding, on all of
# its cases, and if no more of the machine is used than the text says;
# `teach.exercise("09-1").hint()` asks a question that leads on. You write descriptors; the
# kernels are the package's. Images are [n, height, width, channels] and contiguous.
#
# ### Exercise 09-1: the windows of an image
#
# Write `windows`, the descriptor of A for images: rows (n, y, x), columns (tap down, tap
# across, channel). `taps` and `outputs` are pairs, down and across; stride, padding and
# dilation are the same in both directions. All else is given. Your descriptor runs in the
# GEMM of lesson 06, and is scored: of A only what is not padding may be loaded.


# %%
# {{exercise 09-1}}

# %% [markdown]
# {{solution 09-1}}

# %% [markdown]
# ### Exercise 09-2: what an implicit product loads
#
# Images, windows and tiles are square: `images` of `size` × `size` with `channels`, a window
# of `taps` × `taps`, a program for each tile of `tile` × `tile` of the output
# [images · outputs · outputs, features]. A program loads its rows of A and its columns of B
# once, in fp16. Padding is not loaded, nor what is beyond the end of a matrix. How many bytes
# do all programs load together?


# %%
# {{exercise 09-2}}

# %% [markdown]
# {{solution 09-2}}

# %% [markdown]
# ### Exercise 09-3: space to batch
#
# An image is cut into blocks of `block` × `block` pixels, after zeros were put around it.
# Pixel (i, j) of all blocks makes an image of its own, so that there are `block` · `block`
# times as many images, each that much smaller: the batch is in the order (i, j, n). Write
# `blocks_of`, a descriptor with six dimensions. Each pixel is loaded once, zeros are not.


# %%
# {{exercise 09-3}}

# %% [markdown]
# {{solution 09-3}}

# %% [markdown]
# ### Exercise 09-4: pixels shuffled by the store
#
# A decoder makes its images larger with a transposed convolution whose stride is as long as
# its window: each pixel becomes a block of `factor` × `factor`. Then no two windows meet, and
# it is *one* product, of the image [(n, y, x), c] and the weight [c, (k, i, j)], followed by
# depth-to-space. Spare the second pass: write `shuffled`, the descriptor of the *output*, so
# that the product's store puts each element where it belongs. One step, each element stored
# once.


# %%
# {{exercise 09-4}}

# %% [markdown]
# {{solution 09-4}}

# %% [markdown]
# ## Takeaways
#
# - A convolution is a product whose A is seen, not stored: pad, embed, merge.
# - The kernel does not know: it is given a loader, made from a descriptor. Forward, both
#   gradients, groups and any number of dimensions are descriptors of one GEMM.
# - Implicit saves no loads but memory: what taps share is found in a cache.
# - What is a plain matrix after all, is *found* to be one.
# - A stride makes backward for data several products, with no zero multiplied; a sum over
#   pixels wants split-K.
# - The same holds for transfers (depth-to-space, flips, padding) and for reductions of rows
#   (group norm).
#
# **Next:** [10, fused operators](10_fused_operators.ipynb) puts what comes behind a product into
# its store. Back to [06, fast GEMM](06_fast_gemm.ipynb), or to [00, start here](00_start_here.ipynb).
