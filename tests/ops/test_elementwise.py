"""add against torch: values, dtypes, strides, errors, gradients; add and the copies in transforms."""

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

from tests.everything import examples
from workbench import ops
from workbench.errors import (
    ArgumentTypeError,
    NumberRangeError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
)

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128, torch.complex32]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX]


@pytest.fixture(autouse=True)
def complex_half_is_experimental() -> Iterator[None]:
    """Ignore the warning that torch gives once in each process, wherever ComplexHalf is first used."""
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
    """Return the strides that have a meaning: those of dimensions of several elements, if there are any."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for n, step in sizes if n > 1] if tensor.numel() else []


def allowed_strides(want: torch.Tensor, input: Any, other: Any) -> list[list[int]]:
    """Return torch's strides, and those of its meta tensors, if a result with a dimension of 1 has others."""
    without_data = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if torch.is_tensor(x) else x
        for x in (input, other)
    ]
    allowed = [telling_strides(want), telling_strides(torch.add(*without_data))]
    return allowed if 1 in want.shape else allowed[:1]


def assert_as_torch(input: Any, other: Any, **options: Any) -> None:
    """Check for torch's result, or an error of the kind that torch raises.

    If alpha is a fraction, torch's own kernels differ by a rounding (they fuse the multiplication on some
    processors, round alpha on others), so both are compared with float64: our error is at most twice torch's
    plus a rounding of the largest term, which the sum may cancel.
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
def test_every_pair_of_dtypes_is_added_as_in_torch(dtype: torch.dtype) -> None:
    for i, other in enumerate(DTYPES):
        x, y = numbers((3, 7), dtype, i), numbers((3, 7), other, i + 1)
        for options in ({}, {"alpha": 2}):
            assert_as_torch(x, y, **options)
            assert_as_torch(x, y[:, :1], **options)
        assert_as_torch(x[0], y[0, 0])  # a tensor without dimensions does not promote
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
def test_numbers_are_added_or_refused_as_in_torch(dtype: torch.dtype) -> None:
    """Integers wrap around in integer dtypes; torch refuses too large ones."""
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
def test_alphas_give_torchs_sums_or_are_refused_as_in_torch(dtype: torch.dtype) -> None:
    """torch takes a boolean for booleans only, and for integers an integer that the dtype holds."""
    x, y = numbers((2, 5), dtype), numbers((2, 5), dtype, 1)
    for alpha in ALPHAS:
        if dtype in (torch.float16, torch.complex32) and abs(alpha) > 65504:
            continue  # torch refuses it on the CPU and takes it on a GPU
        for other in (y, y[:1], y.mT.contiguous().mT, 3):
            assert_as_torch(x, other, alpha=alpha)


@pytest.mark.parametrize("alpha", [1j, 2 + 1j])
def test_a_complex_alpha_is_refused(alpha: complex) -> None:
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
def test_infinities_nan_zeros_and_subnormals_are_added_as_in_torch(dtype: torch.dtype) -> None:
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
def test_shapes_broadcast_as_in_torch(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    for dtypes in ((torch.float32, torch.float32), (torch.float16, torch.int64)):
        x, y = numbers(shape, dtypes[0]), numbers(other, dtypes[1], 1)
        assert_as_torch(x, y)
        assert_as_torch(y, x, alpha=2)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return 4-D tensors of one shape, each in another layout, by name."""
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


def test_the_result_has_torchs_strides() -> None:
    """torch chooses the layout of the result from any two layouts by rules of its own."""
    x, y = layouts(numbers((2, 3, 4, 5), torch.float32)), layouts(numbers((2, 3, 4, 5), torch.float32, 1))
    for a, b in itertools.product(x, y):
        assert_as_torch(x[a], y[b])
    for a in x:
        assert_as_torch(x[a], 2)
        assert_as_torch(x[a], numbers((5,), torch.float32))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw a tensor that broadcasts to `shape`: permuted, sliced, expanded, with dimensions left out."""
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


def test_strides_are_those_of_torch_on_the_cpu_or_of_its_meta_tensors() -> None:
    """In torch's add the stride of a dimension of one element can decide; in its add of meta tensors not."""
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
def test_anything_that_broadcasts_is_added_as_in_torch(
    data: st.DataObject, shape: tuple[int, ...], alpha: int
) -> None:
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
def test_shapes_from_torchs_own_tests_are_added_as_in_torch(dtype: torch.dtype) -> None:
    alphas: list[Any] = [{}, {"alpha": 2}, {"alpha": True} if dtype == torch.bool else {"alpha": -3}]
    if dtype.is_floating_point or dtype.is_complex:
        alphas.append({"alpha": -3.125})
    for shape, other in SAMPLES:
        for options in alphas:
            assert_as_torch(numbers(shape, dtype), numbers(other, dtype, 1), **options)


def test_conjugated_and_negated_views_are_added_as_in_torch() -> None:
    x, y = numbers((3, 4), torch.complex64), numbers((3, 4), torch.complex64, 1)
    assert_as_torch(x.conj(), y)
    assert_as_torch(x, y.conj(), alpha=2)
    assert_as_torch(x.conj().imag, y.real)
    assert_as_torch(x.real, y.conj().imag, alpha=0.5)
    assert x.conj().imag.is_neg()


def test_operands_are_not_changed() -> None:
    x, y = numbers((3, 4), torch.float32), numbers((4,), torch.int32)
    before = x.clone(), y.clone()
    ops.add(x, y, alpha=3)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_each_result_is_a_new_tensor() -> None:
    x, zero = numbers((3,), torch.float32), torch.zeros(())
    for result in (ops.add(x, x), ops.add(x, zero), ops.add(x, 0), ops.add(x, x, alpha=0)):
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert not result.requires_grad


def test_add_follows_torchs_gradient_modes() -> None:
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
def test_out_is_written_as_in_torch(kind: str) -> None:
    x, y = numbers((3, 4), torch.float32), numbers((4,), torch.float32, 1)
    want, got = outs()[kind](), outs()[kind]()
    torch.add(x, y, out=want)
    assert ops.add(x, y, out=got) is got
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()


def test_out_may_be_an_input() -> None:
    x, y = numbers((3, 4), torch.float32), numbers((3, 4), torch.float32, 1)
    expected = x + y
    assert torch.equal(ops.add(x, y, out=x), expected)
    z = numbers((4, 4), torch.float32)
    expected = z + z.t()
    assert torch.equal(ops.add(z, z.t().clone(), out=z), expected)
    # torch refuses a partial overlap; here the result is that of the inputs before the write.
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
            "out: got dtype torch.int32, but the result is torch.float32. Give a tensor of a dtype",
        ),
        (torch.zeros(3, 4, dtype=torch.bool), TensorMismatchError, "out: got dtype torch.bool"),
        (torch.zeros(4, 3), TensorMismatchError, r"out: shape \(4, 3\). Give an empty .* \(3, 4\)"),
        (torch.zeros(1, 3, 4), TensorMismatchError, r"out: shape \(1, 3, 4\)"),
        (torch.zeros(()), TensorMismatchError, r"out: shape \(\)"),
        (
            torch.zeros(4).expand(3, 4),
            TensorMismatchError,
            r"out: strides \(0, 1\). torch says: .* more than one element",
        ),
        (torch.zeros(3, 4, device="meta"), TensorMismatchError, "out: on meta. Give a tensor on cpu"),
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
def test_out_that_does_not_fit_is_refused(out: Any, kind: type[Exception], message: str) -> None:
    """torch resizes an `out` of another shape, and warns that this will be an error; here it is an error."""
    x = numbers((3, 4), torch.float32)
    with pytest.raises(kind, match=message):
        ops.add(x, x, out=out)


def test_out_with_tensors_that_require_grad_is_refused() -> None:
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
def test_invalid_operands_are_refused_with_the_reason(
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
        (torch.int32, 2**31, TensorMismatchError, "alpha=2147483648. torch.add says: value cannot"),
    ],
)  # fmt: skip
def test_invalid_alphas_are_refused_with_the_reason(
    dtype: torch.dtype, alpha: Any, kind: type[Exception], message: str
) -> None:
    x = torch.ones(4, dtype=dtype)
    with pytest.raises(kind, match=message):
        ops.add(x, x, alpha=alpha)


def test_alpha_is_a_keyword_only_argument() -> None:
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
def test_gradients_agree_with_finite_differences(
    shape: tuple[int, ...], other: tuple[int, ...], alpha: float
) -> None:
    x, y = (numbers(s, torch.float64, i).requires_grad_() for i, s in enumerate((shape, other)))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=alpha), (x, y))
    assert torch.autograd.gradgradcheck(lambda a, b: ops.add(a * a, b * b, alpha=alpha), (x, y))


def test_gradients_of_complex_numbers_agree_with_finite_differences() -> None:
    """A real operand of a complex sum gets the real part; conjugated operands have gradients too."""
    z, w = (numbers((2, 3), torch.complex128, i).requires_grad_() for i in range(2))
    real = numbers((3,), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b, alpha=2.0), (z, w))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a, b), (z, real))
    assert torch.autograd.gradcheck(lambda a, b: ops.add(a.conj(), b, alpha=-1), (z, w))


CASES: list[tuple[tuple[int, ...], torch.dtype, bool, tuple[int, ...], torch.dtype, bool]] = [
    ((3, 4), torch.float32, True, (4,), torch.float32, True),
    ((3, 4), torch.float32, True, (4,), torch.float32, False),
    ((3, 4), torch.float32, False, (4,), torch.float32, True),
    ((3, 4), torch.float16, True, (3, 4), torch.float32, True),  # each gradient has its operand's dtype
    ((3, 4), torch.bfloat16, True, (3, 1), torch.float64, True),
    ((4,), torch.int64, False, (3, 4), torch.float32, True),
    ((), torch.float64, True, (3, 4), torch.float32, True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("alpha", [1, 3])
def test_gradients_agree_with_torch(case: Any, alpha: int) -> None:
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


def test_gradients_of_a_tensor_given_twice_are_summed() -> None:
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
def test_transforms_agree_with_torch(case: str, transform: str) -> None:
    x, y = numbers((3, 4), torch.float64), numbers((3, 4), torch.float64, 1)
    want, got = (
        TRANSFORMS[transform](lambda a, b, of=of: FOLLOWED[case](of, a, b), x, y) for of in (torch, ops)
    )
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_batch_of_scalars_is_promoted_as_scalars() -> None:
    """A scalar does not widen the other's dtype, although the batch is a vector in memory."""
    scalars, rows = numbers((3,), torch.float64), numbers((3, 4), torch.float32)
    for dtypes in ((torch.float64, torch.float32), (torch.float32, torch.float16), (torch.int64, torch.int8)):
        x, y = scalars.to(dtypes[0]), rows.to(dtypes[1])
        for pair in ((x, y), (y, x)):
            want, got = (torch.func.vmap(add)(*pair) for add in (torch.add, ops.add))
            torch.testing.assert_close(got, want)
    with pytest.raises(TensorMismatchError, match="out: given together"):
        torch.func.vmap(lambda a: ops.add(a, 1, out=torch.zeros(4)))(rows)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_gives_right_tangents() -> None:
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


def test_errors_are_the_same_with_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TensorMismatchError, match="Boolean alpha"):
        ops.add(x, x, alpha=True)
    with pytest.raises(TensorMismatchError, match="must match the size of tensor b"):
        ops.add(x, torch.ones(4))


def test_zeros_without_memory_are_refused() -> None:
    """torch's forward mode makes such tensors; kernels would get address 0."""
    zeros = torch._efficientzerotensor((48,))
    with pytest.raises(RuntimeError, match="storage"):
        ops.add(torch.ones(48), zeros)
