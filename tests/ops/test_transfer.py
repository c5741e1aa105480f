"""Copies against torch: bits, dtypes, strides, errors, gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples, some_of
from tests.ops.test_elementwise import (
    COMPLEX,
    DTYPES,
    SPECIAL,
    complex_half_is_experimental,  # noqa: F401  # a fixture
    layouts,
    numbers,
    outcome,
    outs,
    tensors,
)
from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError, UnsupportedDtypeError, WorkbenchError
from workbench.ops import transfer

COPIES: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "clone": (torch.clone, ops.clone),
    "transpose_copy": (torch.transpose_copy, ops.transpose_copy),
    "permute_copy": (torch.permute_copy, ops.permute_copy),
}
ALL_DTYPES = [*DTYPES, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def assert_copy_as_torch(name: str, *args: Any, **options: Any) -> None:
    """Check for torch's bits and strides in new memory, or an error of the kind that torch raises."""
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
def test_copies_of_every_dtype_agree_with_torch(dtype: torch.dtype) -> None:
    x = numbers((3, 5, 2), torch.float32).to(dtype)
    for layout in (x, x.mT, x[:, ::2], x[:1].expand(4, 5, 2)):
        assert_copy_as_torch("clone", layout)
        assert_copy_as_torch("transpose_copy", layout, 0, -1)
        assert_copy_as_torch("permute_copy", layout, (1, 0, 2))


def test_no_default_device_changes_which_copies_are_refused() -> None:
    """The answer is kept for each dtype, so one found on the meta device would stay."""
    x = torch.empty(4, dtype=torch.uint4)  # type: ignore[attr-defined]  # torch does not type it
    transfer._refusal.cache_clear()
    for device in ("meta", "cpu"):
        with torch.device(device), pytest.raises(UnsupportedDtypeError, match="torch says"):
            ops.clone(x)


def test_copies_keep_bits_of_special_values() -> None:
    """NaN keeps its payload and zero its sign."""
    payloads = torch.tensor([0x7FC00001, -0x400001, 0x7F800001, -(2**31), 1], dtype=torch.int32)
    x = torch.cat([SPECIAL, payloads.view(torch.float32)]).view(3, 5)
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("transpose_copy", x, 0, 1)


@pytest.mark.parametrize("kind", layouts(torch.zeros(1, 1, 1, 2)))
def test_copies_have_torchs_strides(kind: str) -> None:
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
def test_copies_of_odd_shapes_agree_with_torch(x: torch.Tensor) -> None:
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("clone", x, memory_format=torch.contiguous_format)
    assert_copy_as_torch("permute_copy", x, tuple(reversed(range(x.dim()))))
    assert_copy_as_torch("transpose_copy", x, 0, -1)


@settings(max_examples=examples(100))
@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=5).map(tuple))
def test_copies_of_any_tensor_agree_with_torch(data: st.DataObject, shape: tuple[int, ...]) -> None:
    x = data.draw(tensors(shape))
    dims = data.draw(st.permutations(range(x.dim())))
    pick = st.integers(-x.dim() - 1, x.dim())  # one too far on both sides
    assert_copy_as_torch("clone", x)
    assert_copy_as_torch("permute_copy", x, dims)
    assert_copy_as_torch("permute_copy", x, [d - x.dim() for d in dims])
    assert_copy_as_torch("permute_copy", x, data.draw(st.lists(pick, max_size=5)))
    assert_copy_as_torch("transpose_copy", x, data.draw(pick), data.draw(pick))


def test_copies_of_conjugated_and_negated_views_are_resolved() -> None:
    for dtype in COMPLEX:
        z = numbers((3, 4), dtype)
        for view in (z.conj(), z.conj().imag, z[:, ::2].conj().t(), z.conj()[:1].expand(3, 4)):
            assert_copy_as_torch("clone", view)
            assert_copy_as_torch("transpose_copy", view, 0, 1)
            assert_copy_as_torch("permute_copy", view, (1, 0))


def test_copies_take_argument_names_and_integers_of_numpy_and_torch() -> None:
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
def test_wrong_dimensions_of_copies_are_refused_as_in_torch(
    name: str, arguments: Any, kind: type[Exception], message: str
) -> None:
    x = numbers((2, 3), torch.float32)
    assert_copy_as_torch(name, x, *arguments)
    with pytest.raises(kind, match=message) as caught:
        COPIES[name][1](x, *arguments)
    assert isinstance(caught.value, WorkbenchError)


@pytest.mark.parametrize("x", [3, None, [1.0], np.zeros(3)], ids=str)
def test_copies_of_objects_that_are_not_tensors_are_refused(x: Any) -> None:
    for name, arguments in (("clone", ()), ("transpose_copy", (0, 0)), ("permute_copy", ((0,),))):
        assert_copy_as_torch(name, x, *arguments)
        with pytest.raises(ArgumentTypeError, match=r"input: got a .*\. Give a torch\.Tensor"):
            COPIES[name][1](x, *arguments)


def test_wrong_memory_formats_are_refused() -> None:
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
def test_sparse_quantized_and_nested_tensors_are_not_copied() -> None:
    """torch copies them; here an error says why not."""
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


def test_copies_of_meta_tensors_have_torchs_shapes_and_strides() -> None:
    for dtype in (torch.float32, torch.complex64, NARROW[0]):
        x = torch.empty(2, 3, 4, 5, dtype=dtype, device="meta")
        for layout in (x, x.mT, x[:, ::2], x[:1].expand(4, 3, 4, 5)):
            assert_agrees_with_torch_on_meta("clone", layout)
            assert_agrees_with_torch_on_meta("clone", layout, memory_format=torch.channels_last)
            assert_agrees_with_torch_on_meta("transpose_copy", layout, 0, -1)
            assert_agrees_with_torch_on_meta("permute_copy", layout, (1, 0, 3, 2))
    assert_agrees_with_torch_on_meta("clone", torch.empty(2, dtype=torch.complex64, device="meta").conj())


def assert_agrees_with_torch_on_meta(name: str, *args: Any, **options: Any) -> None:
    want, got = (function(*args, **options) for function in COPIES[name])
    assert got.is_meta
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert (got.is_conj(), want.is_conj()) == (False, False)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dtypes_that_torch_does_not_copy_are_refused(dtype: torch.dtype) -> None:
    """torch defines only the names of these dtypes; tensors without elements are copied."""
    x = torch.empty(2, 3, dtype=dtype)
    for name, arguments in (("clone", ()), ("transpose_copy", (0, 1)), ("permute_copy", ((1, 0),))):
        copy: Any = COPIES[name][1]
        assert_copy_as_torch(name, x, *arguments)
        with pytest.raises(UnsupportedDtypeError, match=rf"input: {dtype}\. torch says: .* not implemented"):
            copy(x, *arguments)
        assert copy(x[:0], *arguments).dtype == dtype


COPY_ARGUMENTS: dict[str, tuple[Any, ...]] = {"transpose_copy": (0, 1), "permute_copy": ((1, 0),)}


@pytest.mark.parametrize("name", COPY_ARGUMENTS)
def test_copies_into_out_agree_with_torch(name: str) -> None:
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
        "out: got dtype torch.float64, but the result is torch.f",
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
def test_out_that_does_not_fit_a_copy_is_refused(
    name: str, out: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        COPIES[name][1](numbers((4, 3), torch.float32), *COPY_ARGUMENTS[name], out=out)


@pytest.mark.parametrize("name", COPY_ARGUMENTS)
def test_copies_refuse_out_while_autograd_records(name: str) -> None:
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
def test_gradients_of_copies_pass_gradcheck_and_agree_with_torch(case: str, dtype: torch.dtype) -> None:
    """First and second derivatives and forward mode are checked; gradients are torch's."""
    copy = GRADIENTS_OF_COPIES[case]
    x = numbers((2, 3, 2), dtype).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: copy(ops, t), (x,), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: copy(ops, t), (x,), fast_mode=True)
    weights = numbers(tuple(copy(torch, x).shape), dtype, 1)
    grads = [torch.autograd.grad((copy(of, x) * weights).sum().abs(), x)[0] for of in (torch, ops)]
    assert torch.equal(*grads)


def test_copies_follow_torchs_gradient_modes() -> None:
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


def test_a_copy_shares_no_memory() -> None:
    x = numbers((2, 3), torch.float32)
    before = x.clone()
    copy = ops.clone(x)
    copy.zero_()
    assert torch.equal(x, before)
    copy = ops.transpose_copy(x, 0, 0)
    x.zero_()
    assert torch.equal(copy, before)
