"""Elementwise operators and copies on a GPU: right at any size, and no write outside the output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn.functional import layer_norm

from workbench import ops
from workbench.errors import TensorMismatchError
from workbench.kernels.movement import transfer
from workbench.kernels.pointwise import elementwise

pytestmark = pytest.mark.gpu

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator, device="cuda") < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide, device="cuda").to(dtype)
    return torch.randint(-300, 300, shape, generator=generator, device="cuda").to(dtype)


def whole_numbers(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return numbers from -3 to 3, whose products and sums are exact in fp32."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-3, 4, tuple(shape), generator=generator, device="cuda").to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def assert_sum_as_accurate_as_torch(input: torch.Tensor, other: torch.Tensor, alpha: float = 1) -> None:
    """Check that integers are exact and other errors at most twice torch's plus one rounding."""
    got, want = ops.add(input, other, alpha=alpha), torch.add(input, other, alpha=alpha)
    assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device)
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        assert torch.equal(got, want)
    elif want.numel():
        exact = torch.add(wide(input), wide(other), alpha=alpha)
        off, torchs = ((wide(t) - exact).abs().max().item() for t in (got, want))
        assert off <= 2 * torchs + exact.abs().max().item() * torch.finfo(want.dtype).eps


SHAPES = [
    (),
    (1,),
    (15,),
    (17,),
    (239,),
    (1023,),
    (1025,),
    (0,),
    (1, 1, 32),
    (15, 160, 1024),
    (495, 5333),
    (0, 7),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_every_dtype_and_shape_agree_with_torch(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
        assert_sum_as_accurate_as_torch(x, y)
        if dtype != torch.bool:
            assert_sum_as_accurate_as_torch(x, y, alpha=-2)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch says so once in a process
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pairs_of_dtypes_are_promoted_as_in_torch(dtype: torch.dtype) -> None:
    for i, other in enumerate(DTYPES):
        assert_sum_as_accurate_as_torch(numbers((33, 7), dtype), numbers((33, 7), other, i))
        assert_sum_as_accurate_as_torch(numbers((33, 7), dtype), numbers((), other, i))


def test_sums_of_any_layout_agree_with_torch() -> None:
    x, y = numbers((60, 70, 9), torch.float32), numbers((60, 70, 9), torch.float32, 1)
    for a, b in (
        (x.transpose(0, 2), y.transpose(0, 2)),
        (x[::2, 1:], y[::2, 1:]),
        (x[:, :1], y),
        (x, y[0]),
        (x[..., 0].t(), y[:1, :1, 0]),
        (x.permute(2, 0, 1), y.permute(2, 0, 1).contiguous()),
    ):
        assert_sum_as_accurate_as_torch(a, b)
        assert ops.add(a, b).stride() == torch.add(a, b).stride()


@pytest.mark.parametrize("length", [1, 15, 1023, 1024, 1025, 2**20 + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
def test_sums_write_every_element_and_none_beside(length: int, dtype: torch.dtype) -> None:
    """The output begins at a multiple of 16 bytes, and one element later, where accesses are narrow."""
    poison = math.nan if dtype.is_floating_point else 243
    x, y = numbers((length,), dtype), numbers((length,), dtype, 1)
    for offset in (4096, 4097):
        memory = torch.full((length + 2 * 4097,), poison, dtype=dtype, device="cuda")
        inside = memory[offset : offset + length]
        elementwise.launch(x, y, inside).run()
        assert torch.equal(inside, x + y)
        memory[offset : offset + length] = poison
        assert (memory.isnan() if dtype.is_floating_point else memory == poison).all()


def test_sums_of_special_values_agree_with_torch() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 6e-8, 6e4, 1e-40], device="cuda")
    for dtype in FLOATS:
        x, y = torch.meshgrid(values.to(dtype), values.to(dtype), indexing="ij")
        torch.testing.assert_close(ops.add(x, y), torch.add(x, y), rtol=0, atol=0, equal_nan=True)


def test_numbers_and_alphas_are_as_exact_as_torch() -> None:
    """alpha reaches the kernel as a double, and a number rounds as in torch."""
    x, y = numbers((1000,), torch.float64), numbers((1000,), torch.float64, 1)
    torch.testing.assert_close(ops.add(x, y, alpha=0.1), x + 0.1 * y, rtol=4e-16, atol=4e-16)
    for dtype, alpha in (
        (torch.int64, 2**53),
        (torch.int64, 2**60 + 1),
        (torch.int64, -(2**63)),
        (torch.int32, -(2**31)),
        (torch.uint8, -1),
        (torch.int8, -128),
    ):
        assert_sum_as_accurate_as_torch(numbers((1000,), dtype), numbers((1000,), dtype, 1), alpha=alpha)
    for dtype in FLOATS + INTEGERS:
        z = numbers((1000,), dtype)
        assert torch.equal(ops.add(z, 3), torch.add(z, 3))


def test_out_is_written_even_in_place() -> None:
    x, y = numbers((100, 7), torch.float32), numbers((7,), torch.float32, 1)
    expected = x + y
    out = torch.full((100, 7), math.nan, dtype=torch.float64, device="cuda")
    assert ops.add(x, y, out=out) is out
    assert torch.equal(out, expected.double())
    assert torch.equal(ops.add(x, y, out=x), expected)


def test_gradients_of_add_agree_with_finite_differences() -> None:
    x = numbers((3, 4), torch.float64).requires_grad_()
    y = numbers((4,), torch.float64, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=-2.5), (x, y))


def test_work_waits_on_the_current_stream_only() -> None:
    """The sum waits for earlier work on its stream, while the default stream is free."""
    x, output = numbers((1000,), torch.float32), torch.empty(1000, device="cuda")
    launch = elementwise.launch(x, x, output)
    launch.run()  # compiled before, so that starting it takes no time
    ops.add(x, 1)
    output.fill_(math.nan)
    assert output.isnan().all()  # torch's kernels too: loading one waits for all streams
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**9)  # cycles: about half a second
        launch.run()
        result = ops.add(x, 1)
    assert output.isnan().all()
    stream.synchronize()
    assert torch.equal(output, x + x)
    assert torch.equal(result, x + 1)


def test_tensors_on_different_devices_are_refused() -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(TensorMismatchError, match="input, other"):
        ops.add(x, torch.ones(4))
    with pytest.raises(TensorMismatchError, match="input, other"):
        ops.add(torch.ones(4), x)
    with pytest.raises(TensorMismatchError, match="args of binary_kernel: tensors on cpu and cuda:0"):
        elementwise.launch(x, torch.ones(4), x.clone())
    with pytest.raises(TensorMismatchError, match="out: on cpu"):
        ops.add(x, x, out=torch.ones(4))
    with pytest.raises(TensorMismatchError, match=r"tensors on cpu, while kernels run on .*device='cuda'"):
        ops.add(torch.ones(4), torch.ones(4))
    # A tensor without dimensions moves to the other's device, as in torch.
    assert ops.add(x, torch.tensor(2.0)).tolist() == [3.0] * 4
    assert ops.add(torch.tensor(2.0), x, alpha=3).tolist() == [5.0] * 4


def assert_sum(result: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Compare in pieces, since the comparison needs memory too."""
    for piece in range(0, result.numel(), 2**28):
        part = slice(piece, piece + 2**28)
        assert torch.equal(result[part], torch.add(x[part], y[part]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16], ids=str)
def test_sums_of_more_than_two_to_the_31_elements_are_exact(dtype: torch.dtype, many: int) -> None:
    """The lengths are just below 2^31 and beyond it, on a GPU with enough memory."""
    for length in (many - 1, many + 12345):
        x = (torch.arange(2**20, device="cuda") % 251).to(dtype).repeat(-(-length // 2**20))[:length]
        y = torch.full((length,), 3, dtype=dtype, device="cuda")
        assert_sum(ops.add(x, y), x, y)
        del x, y
        torch.cuda.empty_cache()


def test_sums_of_few_elements_far_apart_are_exact(many: int) -> None:
    """The rows of the view begin more than 2^31 elements apart."""
    memory = torch.zeros(2 * many + 1000, dtype=torch.uint8, device="cuda")
    view = memory.as_strided((3, 1000), (many, 1))
    x, y = numbers((3, 1000), torch.uint8), numbers((3, 1000), torch.uint8, 1)
    elementwise.launch(x, y, view).run()
    assert torch.equal(view, x + y)
    assert torch.equal(ops.add(view, 1), x + y + 1)
    assert_nothing_else_is_written(memory, view)


def assert_nothing_else_is_written(memory: torch.Tensor, view: torch.Tensor) -> None:
    """Check that all nonzero elements are in the view, in pieces: torch counts in eight bytes an element."""
    assert sum(int(piece.count_nonzero()) for piece in memory.split(2**26)) == view.count_nonzero()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def assert_copies(x: torch.Tensor) -> None:
    """Check that each copy of `x` has torch's bits and strides."""
    dims = tuple(reversed(range(x.dim())))
    for got, want in (
        (ops.clone(x), torch.clone(x)),
        (ops.transpose_copy(x, 0, -1), torch.transpose_copy(x, 0, -1)),
        (ops.permute_copy(x, dims), torch.permute_copy(x, dims)),
    ):
        assert (got.dtype, got.stride(), got.device) == (want.dtype, want.stride(), want.device)
        assert torch.equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_of_every_dtype_and_shape_are_exact(dtype: torch.dtype) -> None:
    for shape in (*SHAPES, (64, 64), (63, 65), (1, 129), (513, 2), (3, 40, 50), (2, 3, 4, 5, 6), (2,) * 9):
        assert_copies(numbers(shape, dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.complex128], ids=str)
def test_copies_of_any_layout_are_exact(dtype: torch.dtype) -> None:
    """Lengths have every divisibility; views begin anywhere, are sliced or expanded."""
    for length in (31, 32, 36, 40, 48, 64):
        x = numbers((20, length, 70), dtype)
        for view in (
            x,
            x.mT,
            x.permute(2, 0, 1),
            x[:, 1:],
            x[:, :, 1:].mT,
            x[::2, :, ::3],
            x[:1].expand(5, length, 70),
            x[:, :, :1].expand(20, length, 90).mT,
            x.flatten()[3 : 3 + 19 * length * 70].view(-1, length, 10).mT,
        ):
            assert_copies(view)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 64, 56, 56), (3, 3, 224, 224), (4, 512, 14, 14), (2, 5, 7, 9)], ids=str
)
def test_images_change_between_memory_formats(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbers(shape, dtype)
    last = ops.clone(x, memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, x)
    assert torch.equal(ops.clone(last, memory_format=torch.contiguous_format), x)
    assert torch.equal(ops.permute_copy(x, (0, 2, 3, 1)), x.permute(0, 2, 3, 1))
    assert torch.equal(ops.permute_copy(last.permute(0, 2, 3, 1), (0, 3, 1, 2)), x)


@pytest.mark.parametrize("tile", [(1,), (16,), (1, 32), (64, 1), (8, 256), (32, 4, 32), (4, 16, 16)], ids=str)
def test_copies_write_every_element_and_none_beside(tile: tuple[int, ...]) -> None:
    """The output has gaps, which stay unwritten too."""
    x = numbers((33, 50, 70), torch.float32)
    for num_warps in (1, 4):
        for dims, offset in itertools.product(itertools.permutations(range(3)), (64, 65)):
            view = x.permute(dims)
            memory = torch.full((2 * x.numel() + 200,), math.nan, device="cuda")
            inside = memory[offset : offset + 2 * x.numel()].view(*view.shape[:-1], -1)[..., ::2]
            if len(tile) <= len(transfer.merged(view, inside)):
                transfer.launch(view, inside, tile=tile, num_warps=num_warps).run()
                assert torch.equal(inside, view)
                inside.fill_(math.nan)
                assert memory.isnan().all()


def test_copies_of_conjugates_are_exact_and_copies_pass_gradcheck() -> None:
    z = numbers((30, 40), torch.complex64)
    assert_copies(z.conj())
    assert_copies(z.conj().imag)
    x = numbers((3, 4), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ops.permute_copy(ops.transpose_copy(t, 0, 1), (1, 0)), (x,))
    assert torch.autograd.gradcheck(ops.clone, (x,))


def test_a_copy_between_devices_is_refused() -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(TensorMismatchError, match="args of copy_kernel: tensors on cpu and cuda:0"):
        transfer.launch(torch.ones(4), x)
    with pytest.raises(TensorMismatchError, match=r"tensors on cpu, while kernels run on .*device='cuda'"):
        ops.clone(torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16], ids=str)
def test_copies_of_more_than_two_to_the_31_elements_are_exact(dtype: torch.dtype, many: int) -> None:
    """Copies are flat, transposed, or of rows with gaps; both kernels need 64-bit offsets."""
    rows, columns = 2**12 + 3, many // 2**12
    period = (torch.arange(2**20 - 3, device="cuda") % 251).to(dtype)
    x = period.repeat(rows * columns // len(period) + 1)[: rows * columns].view(rows, columns)
    for view in (x, x[:, : columns - 5]):
        copy = ops.clone(view)
        assert all(torch.equal(a, b) for a, b in zip(copy.split(256), view.split(256), strict=True))
        del copy
    transposed = ops.transpose_copy(x, 0, 1)
    assert all(torch.equal(a.t(), b) for a, b in zip(transposed.split(256, 1), x.split(256), strict=True))


def test_copies_of_few_elements_far_apart_are_exact(many: int) -> None:
    memory = torch.zeros(2 * many + 1000, dtype=torch.uint8, device="cuda")
    view = memory.as_strided((3, 1000), (many, 1))
    x = numbers((1000, 3), torch.uint8)
    transfer.launch(x.t(), view).run()
    assert torch.equal(view, x.t())
    assert torch.equal(ops.transpose_copy(view, 0, 1), x)
    assert_nothing_else_is_written(memory, view)


def test_repeated_calls_use_their_own_tensors_and_alpha() -> None:
    """The tensors have one layout, so their calls may share a warm call."""
    for seed in range(3):
        generator = torch.Generator("cuda").manual_seed(seed)
        x, y = (torch.randn(1000, 30, generator=generator, device="cuda") for _ in range(2))
        for alpha in (1, 0.5, 0.0, -0.0):
            assert torch.equal(bits(ops.add(x, y, alpha=alpha)), bits(torch.add(x, y, alpha=alpha)))
        assert torch.equal(ops.add(x, x), x + x)
        assert torch.equal(ops.clone(x[1:]), x[1:])  # of another alignment
        assert torch.equal(ops.clone(x[:, 1:]), x[:, 1:])
        assert torch.equal(ops.permute_copy(x, (1, 0)), x.t())


def test_a_graph_of_a_kept_copy_follows_new_values() -> None:
    x = torch.randn(300, 200, device="cuda")
    ops.permute_copy(x, (1, 0))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.permute_copy(x, (1, 0))
    x.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, x.t())


ROW_OPERATORS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "sum": (lambda x: ops.sum(x, 1), lambda x: x.sum(1)),
    "sum of few rows": (lambda x: ops.sum(x.t(), 1), lambda x: x.t().sum(1)),
    "softmax": (lambda x: ops.softmax(x, 1), lambda x: torch.softmax(x, 1)),
    "logsumexp": (lambda x: ops.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1)),
    "layer_norm": (lambda x: ops.layer_norm(x, x.shape[1:]), lambda x: layer_norm(x, x.shape[1:])),
}


@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_kept_row_operators_take_any_address_and_run_in_a_graph(name: str) -> None:
    """A warm call starts the kernel compiled for the alignment of its addresses, on the current stream."""
    ours, torchs = ROW_OPERATORS[name]
    torch.manual_seed(0)
    memory = torch.randn(6 * 4096 + 16, device="cuda")
    views = [memory.as_strided((6, 4096), (4096, 1), offset) for offset in (0, 1, 4, 0, 2, 1, 0)]
    for view in views:
        torch.testing.assert_close(ours(view), torchs(view), rtol=1e-5, atol=1e-4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [ours(view) for view in views[:2]]
    memory.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    for result, view in zip(results, views, strict=False):
        torch.testing.assert_close(result, torchs(view), rtol=1e-5, atol=1e-4)
