"""Each operator beside torch's: values, dtypes, strides, errors, gradients."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from tests.everything import examples, some_of
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    NumberRangeError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
)
from workbench.ops import transfer
from workbench.ops.arguments import is_dense

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128, torch.complex32]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX]


@pytest.fixture(autouse=True)
def complex_half_is_experimental() -> Iterator[None]:
    """torch says so once in each process, wherever it is first used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        yield


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(dtype)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 3).to(dtype)
    return torch.randint(-300, 300, shape, generator=generator).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def outcome(add: Callable[..., torch.Tensor], *args: Any, **options: Any) -> Any:
    try:
        return add(*args, **options)
    except Exception as error:
        return error


def telling_strides(tensor: torch.Tensor) -> list[int]:
    """Of dimensions of one element, and of no elements at all, a stride says nothing."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for n, step in sizes if n > 1] if tensor.numel() else []


def allowed_strides(want: torch.Tensor, input: Any, other: Any) -> list[list[int]]:
    """Torch's own; two where for a result with a dimension of one it promises others than it then returns."""
    without_data = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if torch.is_tensor(x) else x
        for x in (input, other)
    ]
    allowed = [telling_strides(want), telling_strides(torch.add(*without_data))]
    return allowed if 1 in want.shape else allowed[:1]


def assert_as_torch(input: Any, other: Any, **options: Any) -> None:
    """The same result, or an error that is caught like torch's.

    Where alpha is a fraction torch's own kernels differ by a rounding (they fuse the multiplication on some
    processors, round alpha on others), so both are held against float64: ours is at most twice as far off,
    and a rounding of the largest term, which the sum may cancel.
    """
    want, got = (outcome(add, input, other, **options) for add in (torch.add, ops.add))
    if isinstance(want, Exception):
        assert isinstance(got, WorkbenchError), f"torch: {want!r}; ops: {got!r}"
        assert isinstance(got, type(want)), f"torch: {want!r}; ops: {got!r}"
        return
    assert isinstance(got, torch.Tensor), f"torch: {want!r}; ops: {got!r}"
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert telling_strides(got) in allowed_strides(want, input, other)
    assert (got.is_conj(), got.is_neg()) == (False, False)
    alpha = options.get("alpha", 1)
    if not (want.is_floating_point() or want.is_complex()) or alpha == 1:
        torch.testing.assert_close(wide(got), wide(want), rtol=0, atol=0, equal_nan=True)
        return
    exact = torch.add(wide(input), wide(other) if isinstance(other, torch.Tensor) else other, alpha=alpha)
    finite = exact.abs() < torch.finfo(want.dtype).max / 2
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf()[~finite], want.isinf()[~finite])
    if finite.any():
        off, torchs = ((wide(t) - exact)[finite].abs().max() for t in (got, want))
        magnitude = wide(other).abs() if isinstance(other, torch.Tensor) else float(abs(other))
        largest = (wide(input).abs() + float(abs(alpha)) * magnitude)[finite].max()
        assert off <= 2 * torchs + largest * torch.finfo(want.dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pair_of_dtypes(dtype: torch.dtype) -> None:
    for i, other in enumerate(DTYPES):
        x, y = numbers((3, 7), dtype, i), numbers((3, 7), other, i + 1)
        for options in ({}, {"alpha": 2}):
            assert_as_torch(x, y, **options)
            assert_as_torch(x, y[:, :1], **options)
        assert_as_torch(x[0], y[0, 0])  # of no dimensions: it does not promote
        assert_as_torch(x[0, 0], y[0])
        assert_as_torch(x[0, 0], y[0, 0])


NUMBERS = [
    1,
    -1,
    0,
    300,
    2.5,
    0.1,
    True,
    False,
    1j,
    1 + 0j,
    2**40,
    -(2**63),
    2**63,
    2**70,
    1e30,
    np.int64(3),
    np.float32(0.5),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_number_for_the_other(dtype: torch.dtype) -> None:
    """Whole numbers wrap around in integer dtypes; too large ones are refused as torch refuses them."""
    for number in NUMBERS:
        if dtype == torch.complex32 and isinstance(number, int | float) and abs(number) > 1e6:
            continue  # torch's own gives inf + nan j: it multiplies by alpha = 1 + 0j
        assert_as_torch(numbers((5,), dtype), number)
        assert_as_torch(numbers((), dtype), number)


ALPHAS: list[Any] = [
    1, 1.0, True, False, 1 + 0j, 2, -1, 0, 0.5, 0.1, -2.0, 300, -300,
    -128, -(2**31), 2**31, 2**40, 2**53 + 1, 2**60 + 1, 2**63 - 1, -(2**63), 2**63, 2**70,
    np.int64(2), np.float32(0.5),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alphas(dtype: torch.dtype) -> None:
    """A boolean for booleans only, a whole number for whole ones, one that the dtype can hold."""
    x, y = numbers((2, 5), dtype), numbers((2, 5), dtype, 1)
    for alpha in ALPHAS:
        if dtype in (torch.float16, torch.complex32) and abs(alpha) > 65504:
            continue  # torch refuses that on the CPU, and takes it on a GPU
        for other in (y, y[:1], y.mT.contiguous().mT, 3):
            assert_as_torch(x, other, alpha=alpha)


@pytest.mark.parametrize("alpha", [1j, 2 + 1j])
def test_a_complex_alpha_is_refused_for_now(alpha: complex) -> None:
    for dtype in (torch.complex64, torch.complex128):
        x = numbers((3,), dtype)
        with pytest.raises(
            TensorMismatchError, match=r"alpha: got .* Multiply other by a complex alpha before"
        ):
            ops.add(x, x, alpha=alpha)
    with pytest.raises(TensorMismatchError, match=r"torch\.add says: For non-complex input"):
        ops.add(torch.zeros(3), torch.zeros(3), alpha=alpha)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 6e-8, 6e4, 1e-40])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities_nan_zeros_and_subnormals(dtype: torch.dtype) -> None:
    x, y = torch.meshgrid(SPECIAL.to(dtype), SPECIAL.to(dtype), indexing="ij")
    got, want = ops.add(x, y), torch.add(x, y)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[~want.isnan()], want.signbit()[~want.isnan()])
    for number in (math.inf, -math.inf, math.nan, -0.0):
        torch.testing.assert_close(ops.add(x, number), torch.add(x, number), rtol=0, atol=0, equal_nan=True)
    for alpha in (math.inf, math.nan, 0.0):
        torch.testing.assert_close(
            ops.add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha), rtol=0, atol=0, equal_nan=True
        )


SHAPES = [
    ((), ()), ((1,), ()), ((5,), (5,)), ((5,), (1,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)),
    ((2, 1, 4), (5, 1, 3, 1)), ((1, 1, 32), (1, 1, 32)), ((1,) * 7, (2,) * 7),
    ((0,), (0,)), ((0, 3), (3,)), ((0, 3), (1, 1)), ((2, 0), (2, 1)), ((1, 0, 3), (4, 1, 1)), ((0,), ()),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "other"), SHAPES, ids=str)
def test_broadcasting(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    for dtypes in ((torch.float32, torch.float32), (torch.float16, torch.int64)):
        x, y = numbers(shape, dtypes[0]), numbers(other, dtypes[1], 1)
        assert_as_torch(x, y)
        assert_as_torch(y, x, alpha=2)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """4-D tensors of one shape, each lying in memory in another way."""
    padded = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    padded[..., ::2] = x
    return {
        "contiguous": x,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.mT.contiguous().mT,
        "permuted": x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "every other element": padded[..., ::2],
        "expanded": x[:, :1, :, :1].expand(x.shape),
        "with an offset": torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
        "first row for all": x[:1].expand(x.shape),
    }


def test_strides_of_the_result() -> None:
    """Of any two layouts torch picks one for the result, by rules of its own."""
    x, y = layouts(numbers((2, 3, 4, 5), torch.float32)), layouts(numbers((2, 3, 4, 5), torch.float32, 1))
    for a, b in itertools.product(x, y):
        assert_as_torch(x[a], y[b])
    for a in x:
        assert_as_torch(x[a], 2)
        assert_as_torch(x[a], numbers((5,), torch.float32))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """What broadcasts to `shape`: permuted, sliced, expanded, with dimensions left out."""
    kept = [1 if draw(st.integers(0, 4)) == 0 else n for n in shape[draw(st.integers(0, len(shape))) :]]
    order = draw(st.permutations(range(len(kept))))
    steps = [draw(st.sampled_from([1, 1, 2])) for _ in kept]
    dtype = draw(st.sampled_from([*FLOATS, *INTEGERS, torch.bool, torch.complex64]))
    stored = numbers(tuple(kept[d] * steps[d] for d in order), dtype, draw(st.integers(0, 1000)))
    tensor = stored.permute([order.index(d) for d in range(len(kept))])
    tensor = tensor[tuple(slice(None, None, step) for step in steps)]
    is_expanded = draw(st.booleans())
    if kept and is_expanded:
        tensor = tensor.expand(shape[len(shape) - len(kept) :])
    return tensor


def test_strides_that_torch_itself_is_of_two_minds_about() -> None:
    """Its add of data lets a stride along one element decide; its add of tensors without data does not."""
    stored = numbers((16,), torch.float32)
    x, y = stored.as_strided((2, 1), (1, 1)), stored.as_strided((1, 1, 1, 2), (2, 4, 0, 4))
    assert len(set(map(tuple, allowed_strides(torch.add(x, y), x, y)))) == 2
    assert_as_torch(x, y)


@settings(max_examples=examples(100))
@given(
    data=st.data(),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    alpha=st.sampled_from([1, 2, -3]),
)
def test_anything_that_broadcasts(data: st.DataObject, shape: tuple[int, ...], alpha: int) -> None:
    x, y = data.draw(tensors(shape)), data.draw(tensors(shape))
    assert_as_torch(x, y, alpha=alpha)


# The shapes that torch's own tests of add use (OpInfo, whose module needs a package that few have).
SAMPLES = [
    ((5, 5), (5, 5)), ((5, 5), (5,)), ((5,), (5, 5)), ((5, 1), (1, 5)), ((), ()), ((5,), ()), ((), (5, 5)),
    ((1,), (2,)), ((2, 1), (2,)), ((1, 2), (2,)), ((3, 2), (2,)), ((1, 3, 2), (2,)), ((1, 3, 2), (3, 2)),
    ((3, 1, 2), (3, 2)), ((2, 3, 2), ()), ((3, 1, 2), (1, 3, 2)), ((0, 1, 5), (0, 10, 5)),
    ((2, 1, 0), (2, 3, 1)),
    ((12,), (12,)), ((64,), (64,)), ((1, 1, 32), (1, 1, 32)), ((5, 10, 2), (5, 1, 2)),
    ((10, 1, 5), (1, 10, 1)),
]  # fmt: skip
SAMPLE_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", SAMPLE_DTYPES, ids=str)
def test_torchs_own_samples(dtype: torch.dtype) -> None:
    alphas: list[Any] = [{}, {"alpha": 2}, {"alpha": True} if dtype == torch.bool else {"alpha": -3}]
    if dtype.is_floating_point or dtype.is_complex:
        alphas.append({"alpha": -3.125})
    for shape, other in SAMPLES:
        for options in alphas:
            assert_as_torch(numbers(shape, dtype), numbers(other, dtype, 1), **options)


def test_conjugates_and_negatives_are_views_with_a_mark() -> None:
    x, y = numbers((3, 4), torch.complex64), numbers((3, 4), torch.complex64, 1)
    assert_as_torch(x.conj(), y)
    assert_as_torch(x, y.conj(), alpha=2)
    assert_as_torch(x.conj().imag, y.real)
    assert_as_torch(x.real, y.conj().imag, alpha=0.5)
    assert x.conj().imag.is_neg()


def test_what_comes_in_stays_as_it_is() -> None:
    x, y = numbers((3, 4), torch.float32), numbers((4,), torch.int32)
    before = x.clone(), y.clone()
    ops.add(x, y, alpha=3)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_new_tensor_each_time() -> None:
    x, zero = numbers((3,), torch.float32), torch.zeros(())
    for result in (ops.add(x, x), ops.add(x, zero), ops.add(x, 0), ops.add(x, x, alpha=0)):
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert not result.requires_grad


def test_parameters_and_modes() -> None:
    x = torch.nn.Parameter(numbers((3,), torch.float32))
    assert type(ops.add(x, x)) is torch.Tensor
    with torch.no_grad():
        assert not ops.add(x, 1).requires_grad
    with torch.inference_mode():
        assert ops.add(x, 1).is_inference()


def outs() -> dict[str, Callable[[], torch.Tensor]]:
    return {
        "as wanted": lambda: torch.full((3, 4), math.nan),
        "double": lambda: torch.full((3, 4), math.nan, dtype=torch.float64),
        "half": lambda: torch.full((3, 4), math.nan, dtype=torch.float16),
        "complex": lambda: torch.full((3, 4), math.nan, dtype=torch.complex64),
        "transposed": lambda: torch.full((4, 3), math.nan).t(),
        "every other column": lambda: torch.full((3, 8), math.nan)[:, ::2],
        "no elements yet": lambda: torch.empty(0),
        "no elements yet, half": lambda: torch.empty(0, dtype=torch.float16),
    }


@pytest.mark.parametrize("kind", outs())
def test_out(kind: str) -> None:
    x, y = numbers((3, 4), torch.float32), numbers((4,), torch.float32, 1)
    want, got = outs()[kind](), outs()[kind]()
    torch.add(x, y, out=want)
    assert ops.add(x, y, out=got) is got
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()


def test_out_that_is_an_input() -> None:
    x, y = numbers((3, 4), torch.float32), numbers((3, 4), torch.float32, 1)
    expected = x + y
    assert torch.equal(ops.add(x, y, out=x), expected)
    z = numbers((4, 4), torch.float32)
    expected = z + z.t()
    assert torch.equal(ops.add(z, z.t().clone(), out=z), expected)
    # Overlapping in part: torch refuses; the result here is that of inputs as they were.
    memory = numbers((10,), torch.float32)
    expected = memory[:8] + 1
    assert torch.equal(ops.add(memory[:8], 1, out=memory[1:9]), expected)


def test_an_empty_out_gets_the_strides_of_the_result() -> None:
    x = torch.arange(12.0).view(3, 4).t()
    for y in (x, x.half()):
        got, want = torch.empty(0), torch.empty(0)
        torch.add(x, y, out=want)
        assert ops.add(x, y, out=got) is got
        assert (got.shape, got.stride()) == (want.shape, want.stride()) == ((4, 3), (1, 4))
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        (
            torch.zeros(3, 4, dtype=torch.int32),
            TensorMismatchError,
            "out: torch.int32, the result is torch.float32",
        ),
        (torch.zeros(3, 4, dtype=torch.bool), TensorMismatchError, "out: torch.bool"),
        (torch.zeros(4, 3), TensorMismatchError, r"out: shape \(4, 3\). The result is \(3, 4\)"),
        (torch.zeros(1, 3, 4), TensorMismatchError, r"out: shape \(1, 3, 4\)"),
        (torch.zeros(()), TensorMismatchError, r"out: shape \(\)"),
        (
            torch.zeros(4).expand(3, 4),
            TensorMismatchError,
            r"out: strides \(0, 1\). torch says: .* more than one element",
        ),
        (torch.zeros(3, 4, device="meta"), TensorMismatchError, "out: on meta. The operands are on cpu"),
        (torch.zeros(3, 4).to_sparse(), TensorMismatchError, "out: its layout is torch.sparse_coo"),
        (3, ArgumentTypeError, "out: got a int. Give a torch.Tensor"),
    ],
    ids=[
        "int",
        "bool",
        "transposed shape",
        "more dimensions",
        "none",
        "expanded",
        "device",
        "sparse",
        "a number",
    ],
)
def test_out_that_does_not_fit(out: Any, kind: type[Exception], message: str) -> None:
    """torch resizes one of another shape, with a warning that this will be an error: here it is one."""
    x = numbers((3, 4), torch.float32)
    with pytest.raises(kind, match=message):
        ops.add(x, x, out=out)


def test_out_and_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TensorMismatchError, match="out: given together with tensors that require grad"):
        ops.add(x, 1, out=torch.zeros(3))
    with pytest.raises(TensorMismatchError, match="out: given together"):
        ops.add(torch.ones(3), 1, out=torch.zeros(3, requires_grad=True))
    out = torch.zeros(3)
    with torch.no_grad():
        assert ops.add(x, 1, out=out) is out
    assert out.tolist() == [2.0] * 3


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (lambda x: (3, x), ArgumentTypeError, "input: got a int. Give a torch.Tensor"),
        (lambda x: ([1.0], x), ArgumentTypeError, "input: got a list"),
        (lambda x: (x, None), ArgumentTypeError, "other: got a NoneType. Give a torch.Tensor or a number"),
        (lambda x: (x, "1"), ArgumentTypeError, "other: got a str"),
        (lambda x: (x, x.numpy()), ArgumentTypeError, "other: got a ndarray"),
        (lambda x: (x, torch.zeros(3)), TensorMismatchError, r"float32 \(4,\) on cpu, float32 \(3,\) on cpu"
            r".*torch\.add says: The size of tensor a \(4\) must match the size of tensor b \(3\) at"),
        (lambda x: (x, x.to("meta")), TensorMismatchError, r"on cpu, float32 \(4,\) on meta"),
        (lambda x: (x, x.to_sparse()), TensorMismatchError, "other: its layout is torch.sparse_coo"),
        (lambda x: (x.to(torch.float8_e5m2),) * 2, UnsupportedDtypeError, "Float8_e5m2"),
        (lambda x: (x.to(torch.uint16),) * 2, UnsupportedDtypeError, "UInt16"),
        (lambda x: (x, 2**70), NumberRangeError, "int too big to convert"),
        (lambda x: (x, torch.nested.nested_tensor([x, x])), TensorMismatchError, "other: it is nested"),
    ],
)  # fmt: skip
def test_operands_that_are_refused(
    arguments: Callable[[torch.Tensor], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ops.add(*arguments(torch.ones(4)))


@pytest.mark.parametrize(
    ("dtype", "alpha", "kind", "message"),
    [
        (torch.float32, "1", ArgumentTypeError, "alpha: got '1', a str. Give a number"),
        (torch.float32, 2**70, NumberRangeError, "torch.add says: int too big to convert"),
        (torch.float32, None, ArgumentTypeError, "alpha: got None, a NoneType"),
        (torch.float32, torch.tensor([2, 3]), ArgumentTypeError, "alpha: got .*, a Tensor"),
        (torch.int64, 0.5, TensorMismatchError, r"alpha=0\.5\. torch\.add says: For integral input tensors"),
        (torch.int8, 300, TensorMismatchError, "alpha=300. torch.add says: value cannot be converted"),
        (torch.int32, 2**31, TensorMismatchError, "alpha: got 2147483648 for torch.int32. Give a whole num"),
    ],
)  # fmt: skip
def test_alphas_that_are_refused(dtype: torch.dtype, alpha: Any, kind: type[Exception], message: str) -> None:
    x = torch.ones(4, dtype=dtype)
    with pytest.raises(kind, match=message):
        ops.add(x, x, alpha=alpha)


def test_alpha_is_given_by_name() -> None:
    arguments: Any = (torch.ones(4), torch.ones(4), 2)
    with pytest.raises(TypeError, match="positional argument"):
        ops.add(*arguments)


GRADIENTS = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (2, 3)),
    ((2, 3), ()),
    ((2, 0), (2, 1)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize(("shape", "other"), GRADIENTS, ids=str)
@pytest.mark.parametrize("alpha", [1, -2.5])
def test_gradients(shape: tuple[int, ...], other: tuple[int, ...], alpha: float) -> None:
    x, y = (numbers(s, torch.float64, i).requires_grad_() for i, s in enumerate((shape, other)))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=alpha), (x, y))
    assert torch.autograd.gradgradcheck(lambda a, b: ops.add(a * a, b * b, alpha=alpha), (x, y))


def test_gradients_of_complex_numbers() -> None:
    """A real operand of a complex sum gets the real part; conjugates are followed."""
    z, w = (numbers((2, 3), torch.complex128, i).requires_grad_() for i in range(2))
    real = numbers((3,), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=2.0), (z, w))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b), (z, real))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a.conj(), b, alpha=-1), (z, w))


CASES: list[tuple[tuple[int, ...], torch.dtype, bool, tuple[int, ...], torch.dtype, bool]] = [
    ((3, 4), torch.float32, True, (4,), torch.float32, True),
    ((3, 4), torch.float32, True, (4,), torch.float32, False),
    ((3, 4), torch.float32, False, (4,), torch.float32, True),
    ((3, 4), torch.float16, True, (3, 4), torch.float32, True),  # each gradient is of its operand's dtype
    ((3, 4), torch.bfloat16, True, (3, 1), torch.float64, True),
    ((4,), torch.int64, False, (3, 4), torch.float32, True),
    ((), torch.float64, True, (3, 4), torch.float32, True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("alpha", [1, 3])
def test_gradients_as_torchs(case: Any, alpha: int) -> None:
    shape, dtype, needs, other_shape, other_dtype, other_needs = case
    grads = []
    for add in (torch.add, ops.add):
        x = numbers(shape, dtype).requires_grad_(needs)
        y = numbers(other_shape, other_dtype, 1).requires_grad_(other_needs)
        result = add(x, y, alpha=alpha)
        result.backward(torch.arange(1.0, 1 + result.numel()).to(result.dtype).reshape(result.shape))
        grads.append((result.dtype, x.grad, y.grad))
    (dtype_of_torch, *want), (dtype_of_ours, *got) = grads
    assert dtype_of_ours == dtype_of_torch
    for ours, torchs in zip(got, want, strict=True):
        assert (ours is None) == (torchs is None)
        if torchs is not None:
            torch.testing.assert_close(ours, torchs)


def test_gradient_of_one_tensor_twice_and_of_a_number() -> None:
    x = torch.ones(3, requires_grad=True)
    ops.add(x, x, alpha=3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0] * 3
    x.grad = None
    ops.add(x, 5, alpha=3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 3


FOLLOWED: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda of, x, y: of.add(x, y, alpha=3),
    "add, broadcast": lambda of, x, y: of.add(x * x, y[0], alpha=2.5),
    "add of fewer dimensions": lambda of, x, y: of.add(y[0, 0], x[0]),
    "add of a number": lambda of, x, y: of.add(x * y, 3.0),
    "add of a tensor to itself": lambda of, x, y: of.add(x, x, alpha=-1.5) * y,
    "add of a constant": lambda of, x, y: of.add(torch.ones(4, dtype=torch.int64), x * y),
    "add of another constant": lambda of, x, y: of.add(x * y, torch.ones(4, dtype=torch.int64)),
    "clone": lambda of, x, y: of.clone(x * y),
    "clone, contiguous": lambda of, x, y: of.clone((x * y).mT, memory_format=torch.contiguous_format),
    "transpose_copy": lambda of, x, y: of.transpose_copy(x * y, 0, -1),
    "permute_copy": lambda of, x, y: of.permute_copy(x, (1, 0)) * y.mT,
}
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x, y: torch.func.grad(lambda a, b: f(a, b).sin().sum(), argnums=(0, 1))(x, y),
    "grad of grad": lambda f, x, y: torch.func.grad(
        lambda a: torch.func.grad(lambda b: f(b, y).sin().sum())(a).cos().sum()
    )(x),
    "vjp": lambda f, x, y: torch.func.vjp(f, x, y)[1](torch.ones_like(f(x, y))),
    "jvp": lambda f, x, y: torch.func.jvp(f, (x, y), (y, x)),
    "jvp of one": lambda f, x, y: torch.func.jvp(lambda a: f(a, y), (x,), (y,)),
    "jvp of jvp": lambda f, x, y: torch.func.jvp(
        lambda a: torch.func.jvp(lambda b: f(a, b).sin(), (y,), (x,)), (x,), (y,)
    ),
    "jacfwd": lambda f, x, y: torch.func.jacfwd(f)(x, y),
    "jacrev": lambda f, x, y: torch.func.jacrev(f, argnums=1)(x, y),
    "hessian": lambda f, x, y: torch.func.hessian(lambda a: f(a, y).sin().sum())(x),
    "vmap": lambda f, x, y: torch.func.vmap(f)(torch.stack((x, y)), torch.stack((y, x))),
    "vmap of one": lambda f, x, y: torch.func.vmap(f, in_dims=(None, 1), out_dims=1)(
        x, torch.stack((y, x), 1)
    ),
    "vmap of vmap": lambda f, x, y: torch.func.vmap(torch.func.vmap(f, in_dims=(0, None)), in_dims=(None, 0))(
        torch.stack((x, y)), torch.stack((x, y, x))
    ),
    "vmap of grad": lambda f, x, y: torch.func.vmap(torch.func.grad(lambda a, b: f(a, b).sin().sum()))(
        torch.stack((x, y)), torch.stack((y, x))
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own copies in vmap
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("case", FOLLOWED)
def test_transforms_of_functions(case: str, transform: str) -> None:
    x, y = numbers((3, 4), torch.float64), numbers((3, 4), torch.float64, 1)
    want, got = (
        TRANSFORMS[transform](lambda a, b, of=of: FOLLOWED[case](of, a, b), x, y) for of in (torch, ops)
    )
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_batch_of_single_numbers_promotes_as_they_would() -> None:
    """Of no dimensions each, they do not widen the other's dtype, though in memory they are a vector."""
    scalars, rows = numbers((3,), torch.float64), numbers((3, 4), torch.float32)
    for dtypes in ((torch.float64, torch.float32), (torch.float32, torch.float16), (torch.int64, torch.int8)):
        x, y = scalars.to(dtypes[0]), rows.to(dtypes[1])
        for pair in ((x, y), (y, x)):
            want, got = (torch.func.vmap(add)(*pair) for add in (torch.add, ops.add))
            torch.testing.assert_close(got, want)
    with pytest.raises(TensorMismatchError, match="out: given together"):
        torch.func.vmap(lambda a: ops.add(a, 1, out=torch.zeros(4)))(rows)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_sums_in_forward_mode() -> None:
    x, y = (numbers((3, 4), torch.float64, i).requires_grad_() for i in range(2))
    z = numbers((4,), torch.complex128).requires_grad_()
    for options in ({"check_forward_ad": True}, {"check_batched_grad": True}):
        assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b[0], alpha=2.5), (x, y), **options)
        assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=-1.5), (x, z), **options)
        assert torch.autograd.gradcheck(lambda a: ops.add(a, 2 + 1j), (x,), **options)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), y.detach())
        result = ops.add(torch.ones(4, dtype=torch.int64), dual, alpha=2)
        assert torch.equal(forward_ad.unpack_dual(result).tangent, 2 * y)
        assert forward_ad.unpack_dual(ops.add(y.detach(), 1)).tangent is None
        out = torch.zeros(3, 4, dtype=torch.float64)
        with pytest.raises(TensorMismatchError, match="out: given together with tensors that require grad"):
            ops.add(dual, 1, out=out)
        with pytest.raises(TensorMismatchError, match="out: given together with tensors that require grad"):
            ops.transpose_copy(dual, 0, 1, out=out.t())
        assert ops.add(y.detach(), 1, out=out) is out


def test_errors_where_gradients_are_wanted() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TensorMismatchError, match="Boolean alpha"):
        ops.add(x, x, alpha=True)
    with pytest.raises(TensorMismatchError, match="must match the size of tensor b"):
        ops.add(x, torch.ones(4))


COPIES: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "clone": (torch.clone, ops.clone),
    "transpose_copy": (torch.transpose_copy, ops.transpose_copy),
    "permute_copy": (torch.permute_copy, ops.permute_copy),
}
ALL_DTYPES = [*DTYPES, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def assert_copy_as_torch(name: str, *args: Any, **options: Any) -> None:
    """The same bits in the same strides, in memory of their own; or an error that is caught like torch's."""
    want, got = (outcome(function, *args, **options) for function in COPIES[name])
    if isinstance(want, Exception):
        assert isinstance(got, WorkbenchError), f"torch: {want!r}; ops: {got!r}"
        assert isinstance(got, type(want)), f"torch: {want!r}; ops: {got!r}"
        return
    assert isinstance(got, torch.Tensor), f"torch: {want!r}; ops: {got!r}"
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert (got.is_conj(), got.is_neg(), got.requires_grad) == (False, False, want.requires_grad)
    assert torch.equal(*(t.detach().contiguous().unsqueeze(-1).view(torch.uint8) for t in (got, want)))
    assert got.numel() == 0 or got.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_copies_of_every_dtype(dtype: torch.dtype) -> None:
    x = numbers((3, 5, 2), torch.float32).to(dtype)
    for layout in (x, x.mT, x[:, ::2], x[:1].expand(4, 5, 2)):
        assert_copy_as_torch("clone", layout)
        assert_copy_as_torch("transpose_copy", layout, 0, -1)
        assert_copy_as_torch("permute_copy", layout, (1, 0, 2))


def test_no_default_device_changes_which_copies_are_refused() -> None:
    """What was found of a dtype is kept, so that an answer of the meta device would stay."""
    x = torch.empty(4, dtype=torch.uint4)  # type: ignore[attr-defined]  # torch does not type it
    transfer._refusal.cache_clear()
    for device in ("meta", "cpu"):
        with torch.device(device), pytest.raises(UnsupportedDtypeError, match="torch says"):
            ops.clone(x)


def test_copies_of_special_values() -> None:
    """Bits are moved, not numbers: NaN keeps its payload, zero its sign."""
    payloads = torch.tensor([0x7FC00001, -0x400001, 0x7F800001, -(2**31), 1], dtype=torch.int32)
    x = torch.cat([SPECIAL, payloads.view(torch.float32)]).view(3, 5)
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("transpose_copy", x, 0, 1)


@pytest.mark.parametrize("kind", layouts(torch.zeros(1, 1, 1, 2)))
def test_strides_of_copies(kind: str) -> None:
    x = layouts(numbers((2, 3, 4, 5), torch.float32))[kind]
    for memory_format in (
        torch.preserve_format,
        torch.contiguous_format,
        torch.channels_last,
        torch.channels_last_3d,
        None,
    ):
        assert_copy_as_torch("clone", x, memory_format=memory_format)
    for dims in some_of([*itertools.permutations(range(4))], 8):
        assert_copy_as_torch("permute_copy", x, dims)
    for dim0, dim1 in some_of([*itertools.product(range(-4, 4), repeat=2)], 13):
        assert_copy_as_torch("transpose_copy", x, dim0, dim1)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(3.0),
        torch.ones(1),
        torch.zeros(0),
        torch.zeros(0, 3, 2),
        torch.zeros(3, 0).t(),
        torch.zeros(0).as_strided((0, 3), (7, 2)),
        torch.arange(20.0).as_strided((4, 5), (2, 1)),  # windows that overlap
        torch.arange(8.0).as_strided((2, 1, 4), (4, 77, 1)),  # a dimension of one element has any stride
        torch.tensor(3.0).expand(2, 3),
        torch.zeros((1,) * 8),
        torch.arange(64.0).view((2,) * 6).permute(5, 3, 1, 4, 2, 0),
    ],
    ids=lambda x: f"{tuple(x.shape)} {x.stride()}",
)
def test_copies_of_odd_shapes(x: torch.Tensor) -> None:
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("clone", x, memory_format=torch.contiguous_format)
    assert_copy_as_torch("permute_copy", x, tuple(reversed(range(x.dim()))))
    assert_copy_as_torch("transpose_copy", x, 0, -1)


@settings(max_examples=examples(100))
@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=5).map(tuple))
def test_copies_of_anything(data: st.DataObject, shape: tuple[int, ...]) -> None:
    x = data.draw(tensors(shape))
    dims = data.draw(st.permutations(range(x.dim())))
    pick = st.integers(-x.dim() - 1, x.dim())  # one too far on both sides
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("permute_copy", x, dims)
    assert_copy_as_torch("permute_copy", x, [d - x.dim() for d in dims])
    assert_copy_as_torch("permute_copy", x, data.draw(st.lists(pick, max_size=5)))
    assert_copy_as_torch("transpose_copy", x, data.draw(pick), data.draw(pick))


def test_copies_of_conjugates_and_negatives() -> None:
    """The mark is resolved: the result's memory holds what the view shows."""
    for dtype in COMPLEX:
        z = numbers((3, 4), dtype)
        for view in (z.conj(), z.conj().imag, z[:, ::2].conj().t(), z.conj()[:1].expand(3, 4)):
            assert_copy_as_torch("clone", view)
            assert_copy_as_torch("transpose_copy", view, 0, 1)
            assert_copy_as_torch("permute_copy", view, (1, 0))


def test_copies_by_names_and_kinds_of_numbers() -> None:
    x = numbers((2, 3), torch.float32)
    assert torch.equal(ops.transpose_copy(input=x, dim0=1, dim1=0), x.t())
    assert torch.equal(ops.permute_copy(input=x, dims=[1, 0]), x.t())
    assert torch.equal(ops.permute_copy(x, torch.Size((1, 0))), x.t())
    assert_copy_as_torch("transpose_copy", x, np.int64(0), torch.tensor(1))
    assert_copy_as_torch("permute_copy", x, (np.int64(1), 0))
    positional: Any = (x, torch.contiguous_format)
    with pytest.raises(TypeError, match="positional argument"):
        ops.clone(*positional)


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        ("transpose_copy", (0, 2), IndexError, r"dim0, dim1: got 0, 2 for a tensor of 2 dimensions. "
            r"torch.transpose says: Dimension out of range \(expected to be in range of \[-2, 1\], but got"),
        ("transpose_copy", (-3, 0), TensorMismatchError, "but got -3"),
        ("transpose_copy", (0, 1.0), ArgumentTypeError, "dim0, dim1: got 0, 1.0 .* must be int, not float"),
        ("transpose_copy", (True, 0), ArgumentTypeError, "must be int, not bool"),
        ("transpose_copy", ("a", "b"), ArgumentTypeError, "must be int, not str"),
        ("transpose_copy", (2**70, 0), ValueError, "Overflow when unpacking long"),
        ("permute_copy", ((0, 2),), IndexError, r"dims: got \(0, 2\) .*torch.permute says: Dimension out of"),
        ("permute_copy", ((0,),), TensorMismatchError, r"input.dim\(\) = 2 is not equal to len\(dims\) = 1"),
        ("permute_copy", ((),), TensorMismatchError, r"= 2 is not equal to len\(dims\) = 0"),
        ("permute_copy", ((1, -1),), TensorMismatchError, "duplicate dims are not allowed"),
        ("permute_copy", (0,), ArgumentTypeError, "dims: got 0 for .* must be tuple of ints, not int"),
        ("permute_copy", ((0, 1.0),), ArgumentTypeError, "dims: got .* tuple of ints"),
        ("permute_copy", (None,), ArgumentTypeError, "dims: got None"),
    ],
)  # fmt: skip
def test_copies_that_are_refused(name: str, arguments: Any, kind: type[Exception], message: str) -> None:
    x = numbers((2, 3), torch.float32)
    assert_copy_as_torch(name, x, *arguments)
    with pytest.raises(kind, match=message) as caught:
        COPIES[name][1](x, *arguments)
    assert isinstance(caught.value, WorkbenchError)


@pytest.mark.parametrize("x", [3, None, [1.0], np.zeros(3)], ids=str)
def test_copies_of_no_tensor(x: Any) -> None:
    for name, arguments in (("clone", ()), ("transpose_copy", (0, 0)), ("permute_copy", ((0,),))):
        assert_copy_as_torch(name, x, *arguments)
        with pytest.raises(ArgumentTypeError, match=r"input: got a .*\. Give a torch\.Tensor"):
            COPIES[name][1](x, *arguments)


def test_memory_formats_that_are_refused() -> None:
    x = numbers((2, 3), torch.float32)
    assert_copy_as_torch("clone", x, memory_format=torch.channels_last)
    with pytest.raises(
        TensorMismatchError, match=r"memory_format: got torch.channels_last .* required rank 4"
    ):
        ops.clone(x, memory_format=torch.channels_last)
    wrongs: list[Any] = [3, "channels_last", torch.strided]
    for wrong in wrongs:
        assert_copy_as_torch("clone", x, memory_format=wrong)
        with pytest.raises(ArgumentTypeError, match=r"memory_format: got a .* Give one of torch's, or None"):
            ops.clone(x, memory_format=wrong)


@pytest.mark.filterwarnings("ignore:.*quantiz.*", "ignore:.*nested tensors is in prototype")
def test_tensors_that_copies_refuse() -> None:
    """torch clones these; here they are refused in words."""
    dense = numbers((2, 3), torch.float32)
    packed = torch.quantize_per_tensor(dense, 1.0, 0, torch.qint8)
    for function, arguments in ((ops.clone, ()), (ops.transpose_copy, (0, 1)), (ops.permute_copy, ((1, 0),))):
        copy: Any = function
        with pytest.raises(TensorMismatchError, match=r"input: its layout is torch\.sparse_coo"):
            copy(dense.to_sparse(), *arguments)
        with pytest.raises(TensorMismatchError, match=r"input: quantized, torch\.qint8"):
            copy(packed, *arguments)
        with pytest.raises(TensorMismatchError, match=r"input: it is nested\."):
            copy(torch.nested.nested_tensor([dense, dense]), *arguments)


NARROW = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)]


def test_copies_without_data() -> None:
    """On the meta device there is nothing to move: what is left is the shape, the strides and the dtype."""
    for dtype in (torch.float32, torch.complex64, NARROW[0]):
        x = torch.empty(2, 3, 4, 5, dtype=dtype, device="meta")
        for layout in (x, x.mT, x[:, ::2], x[:1].expand(4, 3, 4, 5)):
            assert_as_torchs_meta("clone", layout)
            assert_as_torchs_meta("clone", layout, memory_format=torch.channels_last)
            assert_as_torchs_meta("transpose_copy", layout, 0, -1)
            assert_as_torchs_meta("permute_copy", layout, (1, 0, 3, 2))
    assert_as_torchs_meta("clone", torch.empty(2, dtype=torch.complex64, device="meta").conj())


def assert_as_torchs_meta(name: str, *args: Any, **options: Any) -> None:
    want, got = (function(*args, **options) for function in COPIES[name])
    assert got.is_meta
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert (got.is_conj(), want.is_conj()) == (False, False)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dtypes_that_torch_does_not_copy(dtype: torch.dtype) -> None:
    """A shell of a dtype, whose elements mean nothing to torch; what has none of them passes."""
    x = torch.empty(2, 3, dtype=dtype)
    for name, arguments in (("clone", ()), ("transpose_copy", (0, 1)), ("permute_copy", ((1, 0),))):
        copy: Any = COPIES[name][1]
        assert_copy_as_torch(name, x, *arguments)
        with pytest.raises(UnsupportedDtypeError, match=rf"input: {dtype}\. torch says: .* not implemented"):
            copy(x, *arguments)
        assert copy(x[:0], *arguments).dtype == dtype


COPY_ARGUMENTS: dict[str, tuple[Any, ...]] = {"transpose_copy": (0, 1), "permute_copy": ((1, 0),)}


@pytest.mark.parametrize("name", COPY_ARGUMENTS)
def test_copies_into_out(name: str) -> None:
    x = numbers((4, 3), torch.float32)
    kinds = ("as wanted", "transposed", "every other column", "no elements yet")
    for kind in kinds:
        want, got = outs()[kind](), outs()[kind]()
        theirs, ours = COPIES[name]
        theirs(x, *COPY_ARGUMENTS[name], out=want)
        assert ours(x, *COPY_ARGUMENTS[name], out=got) is got
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    square = numbers((4, 4), torch.float32)
    expected = square.t().clone()
    assert torch.equal(COPIES[name][1](square, *COPY_ARGUMENTS[name], out=square), expected)
    meta = torch.empty(3, 4, device="meta")
    assert COPIES[name][1](x.to("meta"), *COPY_ARGUMENTS[name], out=meta) is meta


OUTS_REFUSED: list[tuple[Any, type[Exception], str]] = [
    (
        torch.zeros(3, 4, dtype=torch.float64),
        TensorMismatchError,
        "out: torch.float64, the result is torch.f",
    ),
    (torch.zeros(4, 3), TensorMismatchError, r"out: shape \(4, 3\)"),
    (torch.zeros(4).expand(3, 4), TensorMismatchError, "out: strides .* more than one element"),
    (torch.zeros(3, 4, device="meta"), TensorMismatchError, "out: on meta"),
    (torch.zeros(3, 4, requires_grad=True), TensorMismatchError, "out: given together with tensors that"),
    (torch.zeros(3, 4).to_sparse(), TensorMismatchError, "out: its layout is"),
    (3, ArgumentTypeError, "out: got a int"),
]


@pytest.mark.parametrize("name", COPY_ARGUMENTS)
@pytest.mark.parametrize(("out", "kind", "message"), OUTS_REFUSED)
def test_outs_that_copies_refuse(name: str, out: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        COPIES[name][1](numbers((4, 3), torch.float32), *COPY_ARGUMENTS[name], out=out)


@pytest.mark.parametrize("name", COPY_ARGUMENTS)
def test_out_of_copies_and_gradients(name: str) -> None:
    x, out = numbers((4, 3), torch.float32).requires_grad_(), torch.zeros(3, 4)
    with pytest.raises(TensorMismatchError, match="out: given together with tensors that require grad"):
        COPIES[name][1](x, *COPY_ARGUMENTS[name], out=out)
    with torch.no_grad():
        assert COPIES[name][1](x, *COPY_ARGUMENTS[name], out=out) is out
    assert torch.equal(out, x.detach().t())


GRADIENTS_OF_COPIES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "clone": lambda of, x: of.clone(x),
    "clone, channels last": lambda of, x: of.clone(x[None], memory_format=torch.channels_last),
    "transpose_copy": lambda of, x: of.transpose_copy(x, 0, -1),
    "permute_copy": lambda of, x: of.permute_copy(x, (1, 2, 0)),
    "of a slice": lambda of, x: of.permute_copy(x[:, ::2], (2, 0, 1)),
    "of an expanded tensor": lambda of, x: of.clone(x[:1].expand(3, 3, 2)),
    "of a conjugate": lambda of, x: of.transpose_copy(x.conj(), 0, 1),
    "of a copy": lambda of, x: of.permute_copy(of.transpose_copy(x * x, 0, 1), (2, 1, 0)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
@pytest.mark.parametrize("case", GRADIENTS_OF_COPIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradients_of_copies(case: str, dtype: torch.dtype) -> None:
    """Backward, forward, and twice; and the gradients are torch's."""
    copy = GRADIENTS_OF_COPIES[case]
    x = numbers((2, 3, 2), dtype).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: copy(ops, t), (x,), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: copy(ops, t), (x,), fast_mode=True)
    weights = numbers(tuple(copy(torch, x).shape), dtype, 1)
    grads = [torch.autograd.grad((copy(of, x) * weights).sum().abs(), x)[0] for of in (torch, ops)]
    assert torch.equal(*grads)


def test_copies_in_modes() -> None:
    x = torch.nn.Parameter(numbers((2, 3), torch.float32))
    for copy in (ops.clone(x), ops.transpose_copy(x, 0, 1), ops.permute_copy(x, (1, 0))):
        assert type(copy) is torch.Tensor
        assert copy.requires_grad
        assert not copy.is_leaf
    with torch.no_grad():
        assert not ops.clone(x).requires_grad
        assert ops.transpose_copy(x, 0, 1).is_leaf
    with torch.inference_mode():
        assert ops.permute_copy(x, (1, 0)).is_inference()
    assert not ops.clone(x.detach()).requires_grad
    assert not ops.clone(torch.arange(3)).requires_grad


def test_a_copy_is_apart_from_what_it_was_copied_from() -> None:
    x = numbers((2, 3), torch.float32)
    before = x.clone()
    copy = ops.clone(x)
    copy.zero_()
    assert torch.equal(x, before)
    copy = ops.transpose_copy(x, 0, 0)
    x.zero_()
    assert torch.equal(copy, before)


def test_zeros_without_memory_are_no_dense_tensors() -> None:
    """torch's forward mode makes them; kernels would be given address 0."""
    zeros = torch._efficientzerotensor((48,))
    assert not is_dense(zeros)
    assert is_dense(torch.zeros(48))
    with pytest.raises(RuntimeError, match="storage"):
        ops.add(torch.ones(48), zeros)
