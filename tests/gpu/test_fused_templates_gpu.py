"""Fused templates on a GPU: right at any size, layout and instance, and the same in every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.test_ops_gpu import bits
from tests.ops.test_fused_templates import SHAPES
from workbench import ops
from workbench.kernels import reference
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import rows as gemm_rows
from workbench.launch import Launch

pytestmark = pytest.mark.gpu

names = pytest.mark.parametrize("name", SHAPES)
# m, n, k and l: multiples of every tile; multiples of no access width; rows that no tile divides; one row; a
# K that fits into one tile; lengths below most tiles.
SIZES = [
    (1024, 512, 256, 128),
    (777, 131, 99, 57),
    (300, 1000, 72, 40),
    (1, 64, 33, 200),
    (2048, 256, 64, 256),
    (200, 20, 40, 17),
]


def given(
    name: str, sizes: tuple[int, int, int, int], dtype: torch.dtype, layout: str = "nn"
) -> list[torch.Tensor]:
    """Return the operator's tensors, scaled so that products are standard normal."""
    lengths = dict(zip("mnkl", sizes, strict=True))
    tensors = []
    for i, shape in enumerate((("m", "k"), *SHAPES[name])):
        generator = torch.Generator("cuda").manual_seed(i)
        size = [lengths[each] for each in shape]
        scale = lengths[shape[0]] ** -0.5 if i and len(shape) == 2 else 1.0
        is_turned = len(shape) == 2 and layout[min(i, len(layout) - 1)] == "t"
        drawn = torch.randn(size[::-1] if is_turned else size, generator=generator, device="cuda") * scale
        tensors.append((drawn.t() if is_turned else drawn).to(dtype))
    return tensors


def assert_as_accurate_as_torch(
    got: torch.Tensor, name: str, tensors: list[torch.Tensor], *options: Any
) -> None:
    """Check the error: at most twice torch's composition's, plus a few roundings of the largest value."""
    exact = getattr(reference, name)(*[t.double() for t in tensors], *options)
    torchs = getattr(reference, name)(*tensors, *options)
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    off, theirs = ((t.double() - exact).abs().max().item() for t in (got, torchs))
    roundings = 16 if got.dtype == torch.float64 else 2
    assert off <= 2 * theirs + roundings * exact.abs().max().item() * torch.finfo(got.dtype).eps


@names
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_results_are_as_accurate_as_torchs_composition(
    name: str, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    for layout in ("nn", "nt", "tn"):
        tensors = given(name, sizes, dtype, layout)
        assert_as_accurate_as_torch(getattr(ops, name)(*tensors), name, tensors)


@pytest.mark.parametrize("layout", ["ntn", "nnt"])
@pytest.mark.parametrize("sizes", [(239, 2, 787, 31), (100, 57, 131, 99)], ids=str)
@pytest.mark.parametrize("name", ["swiglu", "matmul_matmul"])
def test_weights_of_two_layouts_are_as_accurate_as_torchs_composition(
    name: str, sizes: tuple[int, int, int, int], layout: str
) -> None:
    """The weights share a place in shared memory; one is contiguous along K, one along N, at odd pitches."""
    for dtype in (torch.float16, torch.bfloat16):
        tensors = given(name, sizes, dtype, layout)
        assert_as_accurate_as_torch(getattr(ops, name)(*tensors), name, tensors)


@names
def test_results_are_within_2_percent_where_torch_allows_tf32(name: str) -> None:
    tensors = given(name, (777, 300, 200, 100), torch.float32)
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        got = getattr(ops, name)(*tensors)
    finally:
        settings.fp32_precision = before
    want = getattr(reference, name)(*[t.double() for t in tensors])
    assert (got - want).abs().max() <= 0.02 * max(want.abs().max().item(), 1)


@names
@pytest.mark.parametrize("batch", [(), (1,)], ids=str)
def test_one_input_serves_a_batch_of_weights(name: str, batch: tuple[int, ...]) -> None:
    first, *others = given(name, (130, 100, 64, 40), torch.float16)
    tensors = [
        first.expand(*batch, *first.shape),
        *(t.repeat(3, 1, 1) if t.dim() == 2 else t for t in others),
    ]
    assert_as_accurate_as_torch(getattr(ops, name)(*tensors), name, tensors)


@names
def test_gradients_of_batches_agree_with_torch(name: str) -> None:
    tensors = given(name, (96, 70, 40, 24), torch.float32)
    tensors[0] = tensors[0].view(2, 48, 40)
    leaves = [t.clone().requires_grad_() for t in tensors]
    pairs = []
    for module in (ops, reference):
        result = getattr(module, name)(*leaves)
        pairs.append(torch.autograd.grad(result, leaves, torch.ones_like(result)))
    torch.testing.assert_close(*pairs, atol=1e-3, rtol=1e-3)


def every_template(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **options: Any) -> list[Launch]:
    n = b.shape[-1]
    vectors = [torch.ones(n, device="cuda", dtype=a.dtype)] * 2
    return [
        gemm_gated.launch(a, b, b.flip(1), tile=(64, 64, 32), **options),
        gemm_pair.launch(a, b, c, activation="gelu", tile=(64, 64, 32, 64), **options),
        gemm_rows.launch("layer_norm", a, b, *vectors, epsilon=1e-5, tile=(64, 256, 32), **options),
        gemm_rows.launch("rms_norm", a, b, vectors[0], epsilon=1e-5, tile=(64, 64, 32), **options),
        gemm_rows.launch("softmax", a, b, tile=(64, 192, 32), **options),
        gemm_rows.launch("log_softmax", a, b, tile=(64, 64, 32), **options),
        *(
            gemm_rows.launch_reduction(name, a, b, tile=(64, 64, 32), **options)
            for name in gemm_rows.REDUCTIONS
        ),
    ]


@pytest.mark.parametrize("depth", [32, 128, 200], ids=str)
@pytest.mark.parametrize("is_turned", [False, True], ids=["B along n", "B along k"])
def test_descriptors_give_the_results_of_pointers(depth: int, is_turned: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((300, depth), (depth, 192), (192, 64))
    a, b, c = (torch.randint(-3, 4, shape, generator=generator, device="cuda").half() / 8 for shape in shapes)
    if is_turned:
        b, c = (t.mT.contiguous().mT for t in (b, c))
    for plain, described in zip(
        every_template(a, b, c), every_template(a, b, c, descriptors=True), strict=True
    ):
        assert torch.equal(plain.run()[0], described.run()[0]), plain


def test_every_run_gives_the_same_bits() -> None:
    a, b, c = (torch.randn(shape, device="cuda").half() for shape in ((500, 300), (300, 192), (192, 64)))
    for one in every_template(a, b, c):
        first = bits(one.run()[0].clone())
        assert all(torch.equal(first, bits(one.run()[0])) for _ in range(5))


@names
def test_kept_launches_take_other_tensors_and_addresses(name: str) -> None:
    tensors = given(name, (200, 96, 64, 48), torch.float16)
    function = getattr(ops, name)
    for shift in (0, 8, 1, 0):  # 16 bytes and 2
        moved = []
        for t in tensors:
            memory = torch.empty(t.numel() + shift, dtype=t.dtype, device="cuda")
            moved.append(memory[shift:].view(t.shape).copy_(t.flip(0)))
        assert_as_accurate_as_torch(function(*moved), name, moved)


@names
def test_a_cuda_graph_follows_new_values(name: str) -> None:
    tensors = given(name, (200, 96, 64, 48), torch.float16)
    function = getattr(ops, name)
    function(*tensors)
    function(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(*tensors)
    for t in tensors:
        t.mul_(-1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, function(*tensors))


@pytest.mark.parametrize("activation", gemm_gated.ACTIVATIONS)
def test_every_activation_agrees_with_float64(activation: str) -> None:
    a, b, c = (torch.randn(shape, device="cuda") for shape in ((100, 64), (64, 80), (80, 64)))
    got = gemm_pair.launch(a, b, c, activation=activation).run()[0]
    want = reference.matmul_matmul(a.double(), b.double(), c.double(), activation)
    torch.testing.assert_close(got.double(), want, atol=1e-3, rtol=1e-4)
    got = gemm_gated.launch(a, b, b, activation=activation).run()[0]
    product = a.double() @ b.double()
    torch.testing.assert_close(
        got.double(), reference.ACTIVATIONS[activation](product) * product, atol=1e-3, rtol=1e-4
    )


@pytest.mark.usefixtures("much_memory")
def test_rows_beyond_two_to_the_31_elements_are_exact() -> None:
    """The last rows of the output begin beyond 2^31 elements."""
    m, n = 2**24 + 40, 128
    a, b = torch.ones(1, 16, device="cuda").half().expand(m, 16), torch.ones(16, n, device="cuda").half()
    output = torch.empty(m, n, dtype=torch.float16, device="cuda")
    gemm_gated.launch(a, b, b, activation="relu", output=output, tile=(128, 128, 16), num_warps=8).run()
    assert (output[-64:] == 256).all()
    gemm_rows.launch("softmax", a, b, output=output, tile=(128, 128, 16), num_warps=8).run()
    assert (output[-64:] == 1 / 128).all()
