"""Implicit GEMM: products of tensors seen through descriptors, and the convolutions made of them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench
from tests.everything import examples
from tests.kernels.compiled_for import kernels_for
from tests.kernels.inputs import windows
from tests.machines import A100, H200
from workbench import Launch, compat, device, lens, ops
from workbench.compat import compiler
from workbench.coords import naive, packed, symbol, transform
from workbench.coords.transforms import merge, pad, pass_through, unmerge
from workbench.errors import InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import convolution, epilogues, gemm
from workbench.kernels.choosing import convolution as choosing
from workbench.kernels.convolution import Geometry, implicit_gemm, phases_of
from workbench.kernels.instances import convolution as instances
from workbench.kernels.options import options_of
from workbench.kernels.views import View, affine, of_a_batch
from workbench.operators import convolution as operators
from workbench.ops.convolution import geometry_of
from workbench.runtime.replay import Replay

pytestmark = pytest.mark.usefixtures("pretended")

SIZES = (35, 50, 41)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def matrix(tensor: torch.Tensor) -> View:
    return View(tensor, naive(tuple(tensor.shape), tensor.stride()), {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"splits": 3},
        {"template": "persistent", "programs": 3},
        {"template": "persistent", "programs": 2, "splits": 2},
        {"descriptors": True},
        {"tile": (16, 192, 16)},
    ],
)
def test_products_of_strided_views_are_exact(options: dict[str, Any], dtype: torch.dtype) -> None:
    m, n, k = SIZES
    a, b = random(m, k, dtype=dtype), random(n, k, dtype=dtype, seed=1).t()
    output = torch.full((m, n), 99, dtype=gemm.result_dtype(dtype))
    options = {"tile": (32, 32, 16), **options}
    (got,) = implicit_gemm.launch(matrix(a), matrix(b), matrix(output), **options).run()
    assert torch.equal(got.double(), a.double() @ b.double())


@pytest.mark.parametrize("options", [{}, {"splits": 2}, {"template": "persistent", "programs": 2}])
def test_products_of_views_that_are_not_matrices_are_exact(options: dict[str, Any]) -> None:
    """The windows of a padded row times a matrix are stored in blocks of 4 x 4."""
    row, b = random(30), random(5, 8, seed=1)
    places = 32
    blocks = transform(packed((8, 2, 4, 4)), [merge((8, 4)), merge((2, 4))], [(0, 2), (1, 3)], [(0,), (1,)])
    output = torch.full((8, 2, 4, 4), float("nan"))
    view = View(row, windows(30, 5, 3), {})
    assert view.lengths == (places, 5)
    assert view.strides is None
    bias = random(8, seed=2)
    implicit_gemm.launch(
        view, matrix(b), View(output, blocks, {}), epilogue=epilogues.bias(bias), tile=(16, 16, 16), **options
    ).run()
    unfolded = torch.nn.functional.pad(row, (3, 3)).unfold(0, 5, 1)
    wanted = (unfolded @ b + bias).view(8, 4, 2, 4).transpose(1, 2)
    assert torch.equal(output, wanted)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "chain", "result"),
    [
        (torch.float32, epilogues.scale(9.0) | epilogues.cast(torch.int8), torch.int8),
        (torch.float16, epilogues.relu(), torch.int32),
        (torch.int8, epilogues.scale(0.5), torch.float32),
    ],
    ids=str,
)
def test_epilogues_convert_between_floats_and_integers(
    dtype: torch.dtype, chain: epilogues.Epilogue, result: torch.dtype, splits: int
) -> None:
    a, b = random(20, 40, dtype=dtype), random(40, 17, dtype=dtype, seed=1)
    output = torch.empty(20, 17, dtype=result)
    options: dict[str, Any] = {"tile": (16, 16, 16), "splits": splits, "epilogue": chain}
    implicit_gemm.launch(matrix(a), matrix(b), matrix(output), **options).run()
    assert torch.equal(output.float(), chain.meaning(a.float() @ b.float()))


def test_invalid_elements_of_the_output_are_not_stored() -> None:
    a, b = random(6, 4), random(4, 6, seed=1)
    inner = transform(packed((4, 6)), [pad(4, 1, 1), pass_through(6)], [(0,), (1,)], [(0,), (1,)])
    output = torch.full((4, 6), 99.0)
    implicit_gemm.launch(matrix(a), matrix(b), View(output, inner, {}), tile=(16, 16, 16)).run()
    assert torch.equal(output, (a @ b)[1:5])


def test_the_batch_of_a_view_is_a_stride() -> None:
    a, b = random(3, 20, 24), random(3, 24, 17, seed=1)
    output = torch.empty(3, 20, 17)
    implicit_gemm.launch(matrix(a), matrix(b), matrix(output), tile=(16, 16, 16), splits=2).run()
    assert torch.equal(output, a @ b)
    grouped = packed((20, 3, 8))  # groups beside one another in a row
    moved = transform(grouped, [pass_through(n) for n in (20, 3, 8)], [(0,), (1,), (2,)], [(1,), (0,), (2,)])
    _, step = of_a_batch(moved)
    assert step == 8
    checked = transform(
        packed((3, 4, 4)), [pad(3, 1, 0), pass_through(4), pass_through(4)],
        [(0,), (1,), (2,)], [(0,), (1,), (2,)],
    )  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="valid depends on d0, the batch"):
        of_a_batch(checked)


@pytest.mark.parametrize("kind", convolution.KINDS)
def test_the_number_of_images_changes_no_constants(kind: str) -> None:
    """Constants are equal for all numbers of images, including those that tiles divide."""
    geometry = Geometry((7, 7), (7, 7), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 16, 32, 1)
    metas = []
    for images in (1, 2, 3, 16):
        x, w, y = (
            torch.zeros(shape).to(memory_format=torch.channels_last)
            for shape in ((images, 16, 7, 7), (32, 16, 3, 3), (images, 32, 7, 7))
        )
        tensors = {"forward": (x, w, y), "backward_data": (y, w, x), "backward_weight": (y, x, w)}[kind]
        launch = convolution.launch(kind, *tensors, geometry=geometry, tile=(64, 32, 16))
        metas.append([step.meta for step in launch.steps])
    assert all(meta == metas[0] for meta in metas)


@pytest.mark.parametrize("taps", range(1, 5))
@pytest.mark.parametrize("stride", range(1, 5))
@pytest.mark.parametrize("dilation", range(1, 4))
def test_phases_pair_each_pixel_with_its_taps_and_outputs(taps: int, stride: int, dilation: int) -> None:
    for size in (1, 2, 7):
        for padding in range(3):
            found = set()
            places = set()
            for phase in phases_of(size, taps, stride, padding, dilation):
                for i in range(phase.count):
                    place = phase.first + stride * i
                    assert place not in places
                    places.add(place)
                    for j in range(phase.taps):
                        tap = phase.first_tap + phase.tap_step * j
                        found.add((place, tap, i + phase.shift - phase.output_step * j))
            assert places == set(range(size))
            wanted = {
                (out * stride + tap * dilation - padding, tap, out)
                for tap in range(taps)
                for out in range(-20, 20)
            }
            assert found == {each for each in wanted if each[0] in range(size)}


def test_one_tile_operator_holds_every_dot() -> None:
    """The GEMM, grouped GEMM, convolutions and attention call the tile operator that holds `tl.dot`."""
    folder = Path(workbench.__file__).parent / "kernels"
    found = {}
    for file in folder.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
                if count := calls.count("tl.dot"):
                    found[f"{file.relative_to(folder)}:{function.name}"] = count
    assert set(found) == {"tile/gemm.py:product"}
    convolutions = folder / "convolution"
    files = [*convolutions.glob("*.py"), *(convolutions / "implicit_gemm").glob("*.py")]
    assert [file.name for file in files if "triton.jit" in file.read_text()] == []


def test_a_convolution_that_is_a_matrix_is_loaded_by_tma() -> None:
    geometry = Geometry((7, 7), (7, 7), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 64, 32, 1)
    x = torch.zeros(2, 64, 7, 7, dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.zeros(32, 64, 1, 1, dtype=torch.float16)
    y = torch.zeros(2, 32, 7, 7, dtype=torch.float16).to(memory_format=torch.channels_last)
    launch = convolution.launch("forward", x, w, y, geometry=geometry, tile=(64, 32, 64), descriptors=True)
    meta = launch.steps[0].meta
    assert meta["DESCRIPTORS"] == (True, True, False)
    (step,) = lens.compile(launch, "sm_90")
    assert "cp.async.bulk.tensor" in step.stages["ptx"]


@pytest.mark.parametrize(
    "channels", [64, 72]
)  # a multiple of 16, which Triton finds itself, and one of 8 only
def test_convolutions_load_16_bytes_at_once_and_use_matrix_units(channels: int) -> None:
    geometry = Geometry((14, 14), (14, 14), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), channels, channels, 1)
    x, y = (torch.zeros(2, channels, 14, 14, dtype=torch.float16).to(memory_format=torch.channels_last),) * 2
    w = torch.zeros(channels, channels, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    launch = convolution.launch(
        "forward", x, w, y.clone(), geometry=geometry, tile=(128, 64, 64), num_warps=4
    )
    (step,) = lens.compile(launch, "sm_90")
    kinds = ("asynchronous copy", "global load", "global store")
    assert {each.bits for each in step.instructions if each.kind in kinds} == {128}
    assert "wgmma" in step.stages["ptx"]
    (step,) = lens.compile(launch, "gfx942")
    assert step.widest("global load") == 128


def test_operands_of_one_tile_shape_have_their_own_access_functions() -> None:
    """Triton tells functions apart by module, name, types and constants, so access functions need names."""
    geometry = Geometry((14, 14), (14, 14), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 64, 64, 1)
    grad = torch.zeros(2, 64, 14, 14, dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.zeros(64, 64, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    launch = convolution.launch(
        "backward_data", grad, w, torch.empty_like(grad), geometry=geometry, tile=(64, 64, 64), num_warps=4
    )
    (step,) = lens.compile(launch, "sm_90")
    row_of_image, feature_of_weight = 14 * 64, 9 * 64
    for factor in (row_of_image, feature_of_weight):
        assert re.search(rf"arith.constant dense<-?{factor}>", step.stages["ttir"]), factor


def test_phases_without_taps_compile() -> None:
    """Three of four pixels of a 1 x 1 convolution with stride 2 have K = 0; no offset depends on a column."""
    geometry = Geometry((8, 8), (4, 4), (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 64, 64, 1)
    x = torch.zeros(2, 64, 8, 8, dtype=torch.float16).to(memory_format=torch.channels_last)
    y = torch.zeros(2, 64, 4, 4, dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.zeros(64, 64, 1, 1, dtype=torch.float16)
    launch = convolution.launch("backward_data", y, w, x, geometry=geometry, tile=(64, 32, 64))
    assert len(lens.compile(launch, "sm_90")) == 4


@pytest.mark.parametrize("groups", [1, 4])
def test_another_batch_compiles_nothing(groups: int) -> None:
    """Images have 49 pixels. There are few and many images, and 16 divides the number of rows or does not."""
    w = torch.empty(64, 32 // groups, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)

    def kernels(images: int) -> list[tuple[Any, ...]]:
        x, y = (torch.empty(images, channels, 7, 7, dtype=torch.float16) for channels in (32, 64))
        x, y = (one.to(memory_format=torch.channels_last) for one in (x, y))
        geometry = geometry_of(2, x, w, padding=1, groups=groups)
        found = []
        for kind, first, second, output in (
            ("forward", x, w, y),
            ("backward_data", torch.ones((), dtype=x.dtype).expand(y.shape), w, x),
            ("backward_weight", torch.ones((), dtype=x.dtype).expand(y.shape), x, w),
        ):
            few_or_many = choosing.FEW_IMAGES if choosing.is_few(images) else choosing.MANY_IMAGES
            chosen = choosing.fastest(choosing.problem_of(kind, geometry, few_or_many), 132)
            launch = convolution.launch(kind, first, second, output, geometry=geometry, **options_of(chosen))
            found += kernels_for(launch)
        return found

    known = [*kernels(choosing.FEW_IMAGES), *kernels(choosing.MANY_IMAGES)]
    for images in (31, 30, 17, 24, 1, 3, 64):
        for kernel in kernels(images):
            assert kernel in known, images


def test_images_with_unsuitable_strides_are_copied() -> None:
    def copied(*shape: int, groups: int = 1, last: bool = True, gathered: bool = True) -> int:
        """Return the channels per group of the copy, or 0 without a copy."""
        x = torch.zeros(shape, dtype=torch.float16)
        x = x.to(memory_format=torch.channels_last) if last else x
        image = convolution.image_of(x, groups, is_gathered=gathered)
        assert (image.launch is None) == (image.tensor is x)
        return 0 if image.launch is None else image.channels

    assert copied(2, 64, 8, 8) == 0
    assert copied(2, 3, 8, 8) == 4
    assert copied(2, 65, 8, 8) == 72
    assert copied(2, 64, 8, 8, groups=8) == 8
    assert copied(2, 64, 8, 8, groups=2) == 0
    assert copied(2, 64, 8, 8, groups=64, last=False) == 0
    assert copied(2, 64, 8, 8, last=False) == 64
    assert copied(2, 64, 8, 8, last=False, gathered=False) == 0
    assert copied(2, 64, 7, 7, last=False, gathered=False) == 64
    assert copied(2, 64, 1, 1) == 0


@settings(max_examples=examples(60))
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9)),
    more=st.integers(1, 5),
    order=st.permutations(range(4)),
    dtype=st.sampled_from([torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_added_channels_hold_zeros(
    shape: tuple[int, ...], more: int, order: list[int], dtype: torch.dtype
) -> None:
    """Sources have any strides, the memory held ones, and a warm call also fills another tensor."""
    back = [order.index(d) for d in range(4)]
    source = torch.randn([shape[d] for d in order]).mul(9).to(dtype).permute(back)
    channels = shape[1]
    image = convolution.image_of(source, least=channels + more)
    assert image.launch is not None
    image.tensor.fill_(1)
    image.launch.run()
    again = torch.ones_like(image.tensor)
    Replay(image.launch, source, image.tensor)(source, again)
    for copy in (image.tensor, again):
        assert torch.equal(copy[:, 0, ..., :channels], source.permute(0, 2, 3, 1))
        assert not copy[..., channels:].any()


RAGGED = [
    # input, weight, stride, padding, dilation, groups; no tile along K divides the number of pixels.
    ((2, 4, 37), (5, 4, 3), 1, 1, 1, 1),
    ((1, 4, 11, 13), (8, 2, 3, 3), 2, 1, 1, 2),
    ((1, 3, 5, 7), (3, 3, 2, 3), 1, 2, 2, 1),
    ((1, 2, 3, 5, 4), (3, 2, 2, 1, 2), 1, 0, 1, 1),
]


@pytest.mark.parametrize("template", implicit_gemm.TEMPLATES)
@pytest.mark.parametrize("problem", RAGGED, ids=str)
def test_programs_without_pixels_add_nothing_to_a_weights_gradient(problem: Any, template: str) -> None:
    """A GPU with many units asks for more splits than there are tiles along K."""
    shape, of_weight, stride, padding, dilation, groups = problem
    x, w = random(*shape), random(*of_weight, seed=1).requires_grad_()
    convolve = getattr(torch.nn.functional, f"conv{len(shape) - 2}d")
    result = convolve(x, w, None, stride, padding, dilation, groups)
    grad = random(*result.shape, seed=2)
    (want,) = torch.autograd.grad(result, w, grad)
    rank = len(shape) - 2
    geometry = operators.geometry_of(x, w, (stride,) * rank, (padding,) * rank, (dilation,) * rank, groups)
    pixels = grad[:, 0].numel()
    tiles = -(-pixels // 16)
    assert pixels % 16
    for splits in (1, tiles - 1, tiles, tiles + 1, 2 * tiles + 3):
        got = torch.full_like(w, float("nan"), requires_grad=False)
        how: dict[str, Any] = {"tile": (16, 16, 16), "splits": splits, "template": template}
        convolution.launch("backward_weight", grad, x, got, geometry=geometry, **how).run()
        assert torch.equal(got, want), splits


@pytest.mark.parametrize(
    "problem",
    [
        ((2, 3, 9, 11), (20, 3, 3, 3)),
        ((2, 4, 9, 11), (80, 1, 1, 1)),
        ((2, 8, 9, 11), (20, 8, 3, 3)),
        ((2, 3, 9, 11), (32, 3, 3, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("are_features_neighbors", [False, True])
def test_hints_stay_within_the_tile_that_sums_splits(problem: Any, are_features_neighbors: bool) -> None:
    """Triton 3.6 fails to compile larger hints, and masks must be constant over the promised elements."""
    shape, of_weight = problem
    groups = shape[1] // of_weight[1]
    x, w = random(*shape, dtype=torch.float16), random(*of_weight, dtype=torch.float16)
    geometry = operators.geometry_of(x, w, (2, 2), (1, 1), (1, 1), groups)
    grad = random(shape[0], of_weight[0], *geometry.outputs, dtype=torch.float16)
    x, grad = (t.to(memory_format=torch.channels_last) for t in (x, grad))
    result = w.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2) if are_features_neighbors else w.clone()
    tile = (128, 128, 64)
    one = convolution.launch("backward_weight", grad, x, result, geometry=geometry, tile=tile, splits=3)
    (step,) = (step for step in one.steps if step.kernel is gemm.sum_of_splits_kernel)
    text = inspect.getsource(compat.python_function(step.meta["PLACE"]))
    hints = re.findall(r"tl\.(?:max_constancy|max_contiguous|multiple_of)\(.*?\((\d+), (\d+)\)", text)
    for rows, cols in hints:
        assert int(rows) <= step.meta["BLOCK_M"]
        assert int(cols) <= step.meta["BLOCK_N"]
    lens.compile(Launch((step,), one.outputs), "sm_90")


@pytest.mark.parametrize(("channels", "store"), [(4, 64), (8, 128)])
def test_channels_are_loaded_from_planes_16_bytes_at_once(channels: int, store: int) -> None:
    """Pixels are stored one at a time. Three channels that lie together are loaded singly and stored by four.

    The constants are equal for any number of images.
    """
    metas = []
    for images in (1, 16, 31):
        x = torch.empty(images, 3, 224, 224, dtype=torch.float16)
        planes = convolution.image_of(x, least=channels).launch
        pixels = convolution.image_of(x.to(memory_format=torch.channels_last), least=channels).launch
        assert planes is not None
        assert pixels is not None
        metas.append((planes.steps[0].meta, pixels.steps[0].meta))
        if images == 1:
            (of_planes,), (of_pixels,) = lens.compile(planes, "sm_90"), lens.compile(pixels, "sm_90")
            assert (of_planes.widest("global load"), of_planes.widest("global store")) == (128, store)
            assert (of_pixels.widest("global load"), of_pixels.widest("global store")) == (16, 64)
    assert metas[0] == metas[1] == metas[2]


def test_only_the_gradient_of_the_weight_is_split() -> None:
    """K of this gradient is the number of pixels; K of the other kinds depends on channels and taps."""
    geometry = Geometry((56, 56), (56, 56), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 8, 8, 1)
    for machine in (A100, H200):
        with device.pretend(machine):
            splits = {
                (kind, dtype): choosing.chosen(kind, geometry, 32, dtype).splits
                for kind in convolution.KINDS
                for dtype in (torch.float16, torch.float32)
            }
        assert {kind for (kind, _), number in splits.items() if number > 1} == {"backward_weight"}
        # One tile: as many splits as units, or the most splits where four programs share a unit.
        of_weight = [splits["backward_weight", dtype] for dtype in (torch.float16, torch.float32)]
        assert of_weight == ([108, 108] if machine is A100 else [256, 132])


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_product_that_made_llvm_abort_compiles(target: str) -> None:
    """See `compiler.thawed`. With other numbers of warps or taps it compiled anyway."""
    x, w, y = (torch.zeros(n, dtype=torch.float16) for n in ((4, 4, 42, 48), (8, 2, 4, 2), (4, 8, 20, 24)))
    geometry = geometry_of(2, x, w, stride=2, groups=2)
    launch = convolution.launch(
        "forward", x, w, y, geometry=geometry, tile=(256, 16, 16), num_warps=2, num_stages=1, splits=1,
        template="simple", descriptors=False,
    )  # fmt: skip
    steps = lens.compile(launch, target)
    assert len(re.findall(r"\.frozen\d* = freeze i32", steps[-1].stages["llir"])) >= compiler.MANY_FROZEN


def test_small_products_are_listed_without_splits() -> None:
    x, w = torch.zeros(1, 4, 6, 6), torch.zeros(4, 4, 3, 3)
    found = [instance.keywords for instance in ops.conv2d.instances(x, w)]
    assert {one.get("splits", 1) for one in found} == {1}


@pytest.mark.parametrize("kind", convolution.KINDS)
def test_the_instance_with_the_least_predicted_time_is_chosen(kind: str) -> None:
    """No listed instance is predicted to be faster; batches of a similar size get one instance."""
    for channels, size, features, taps in ((64, 56, 64, 3), (2048, 7, 512, 1), (320, 64, 320, 3)):
        geometry = Geometry(
            (size, size), (size, size), (taps, taps), (1, 1), ((taps // 2,) * 2,) * 2, (1, 1), channels,
            features, 1,
        )  # fmt: skip
        problem = choosing.problem_of(kind, geometry, 32)
        found = choosing.fastest(problem, 132)
        of_kind = instances.OF_WEIGHT if kind == "backward_weight" else instances.OF_PIXELS
        least = min(choosing.predicted_us(one, 1, problem, 132) for one in of_kind)
        (own,) = (
            one
            for one in of_kind
            if (one.tile, one.num_warps, one.num_stages, one.template)
            == (found.tile, found.num_warps, found.num_stages, found.template)
        )
        assert 0 < choosing.predicted_us(own, found.splits, problem, 132) <= least
        chosen = [choosing.chosen(kind, geometry, images, torch.float16) for images in (1, 5, 6, 99)]
        assert chosen[0] == chosen[1]
        assert chosen[2] == chosen[3]


def test_affine_finds_the_strides_of_matrices() -> None:
    n = symbol("n", least=1)
    plain = transform(packed((n, 4, 6)), [merge((n, 4)), pass_through(6)], [(0, 1), (2,)], [(0,), (1,)])
    found = affine(plain)
    assert found is not None
    assert found.strides == (6, 1)
    assert affine(windows(8, 3, 1)) is None
    split = transform(packed((24,)), [unmerge((4, 6))], [(0,)], [(0, 1)])
    assert affine(split) == affine(packed((4, 6)))


def test_invalid_arguments_are_refused() -> None:
    a, b, output = random(8, 8), random(8, 8, seed=1), torch.empty(8, 8)
    views = [matrix(t) for t in (a, b, output)]
    with pytest.raises(TensorMismatchError, match="reaches from element 0 to 80"):
        View(a, naive((8, 9), (8, 3)), {})
    with pytest.raises(InvalidArgumentError, match="Give two dimensions, or three with a batch"):
        View(a, packed((64,)), {})
    with pytest.raises(InvalidArgumentError, match="no value of n"):
        View(a, packed((symbol("n"), 8)), {})
    with pytest.raises(TensorMismatchError, match="lengths are"):
        implicit_gemm.launch(views[0], View(b, packed((4, 16)), {}), views[2])
    with pytest.raises(TensorMismatchError, match=r"a is torch.float32, b is torch.float16"):
        implicit_gemm.launch(views[0], matrix(b.half()), views[2])
    with pytest.raises(TensorMismatchError, match=r"output is torch\.int8; supported"):
        implicit_gemm.launch(views[0], views[1], matrix(output.char()))
    with pytest.raises(TensorMismatchError, match=r"output is torch\.int64; supported"):
        implicit_gemm.launch(views[0], views[1], matrix(output.long()), epilogue=epilogues.relu())
    with pytest.raises(TensorMismatchError, match="bias: shape"):
        implicit_gemm.launch(*views, epilogue=epilogues.bias(torch.zeros(7)))
    with pytest.raises(UnknownNameError, match="template"):
        implicit_gemm.launch(*views, template="stream-k")
    with pytest.raises(InvalidArgumentError, match="programs"):
        implicit_gemm.launch(*views, programs=3)
