"""Flips, shifts, padding and windows against torch: its own samples, random arguments, all gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import examples
from tests.ops.refused import assert_refused_as_in_torch
from tests.ops.test_opinfo_rows import outcome
from workbench import ops
from workbench.errors import ArgumentTypeError, TensorMismatchError, UnsupportedDtypeError, WorkbenchError
from workbench.kernels.movement import rearrangement
from workbench.ops import rearrange

NAMES = ["flip", "roll", "nn.functional.pad", "nn.functional.unfold"]
OPERATORS = [op for op in op_db if op.name in NAMES]
DTYPES = [torch.float64, torch.bfloat16, torch.complex128, torch.int8, torch.bool]
MODES = ["constant", "reflect", "replicate", "circular"]


def name_of(op: Any) -> str:
    return f"{op.name.split('.')[-1]}{'-' if op.variant_test_name else ''}{op.variant_test_name}"


def test_every_operator_has_samples() -> None:
    assert {op.name for op in OPERATORS} == set(NAMES)
    assert {"reflect", "replicate", "circular", "replicate_negative"} <= {
        op.variant_test_name for op in OPERATORS
    }


CASES: list[Any] = [
    pytest.param(op, dtype, id=f"{name_of(op)}-{str(dtype)[6:]}")
    for op in OPERATORS
    for dtype in DTYPES
    if dtype in op.dtypes
]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    """Operators with many samples run some of them; gradients in bf16 may differ by a few roundings."""
    torch.manual_seed(0)
    mine: Callable[..., Any] = getattr(ops, op.name.split(".")[-1])
    is_followed = dtype.is_floating_point or dtype.is_complex
    every = 12 if "unfold" in op.name else 4 if op.variant_test_name == "constant" else 1
    samples = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=is_followed), 0, None, every)
    for sample in samples:
        (got,), gradients = outcome(mine, sample)
        (want,), wanted = outcome(op.op, sample)
        assert torch.equal(got, want)
        assert op.name == "roll" or got.stride() == want.stride()  # torch's roll differs from GPU to CPU
        for ours, torchs in zip(gradients, wanted, strict=True):
            rounding = 0.2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(ours, torchs, rtol=0, atol=rounding)


@st.composite
def tensors(draw: st.DrawFn, least: int = 0, most: int = 4, smallest: int = 0) -> torch.Tensor:
    """Draw a tensor of any rank, order of dimensions, steps and dtype, expanded along some dimensions."""
    shape = draw(st.lists(st.integers(smallest, 9), min_size=least, max_size=most))
    dtype = draw(st.sampled_from([torch.bool, torch.int8, torch.float16, torch.float32, torch.complex128]))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.integers(1, 2)) for _ in shape]
    once = [draw(st.integers(0, 4)) == 0 for _ in shape]
    base = [1 if once[d] else shape[d] * steps[d] for d in order]
    tensor = torch.randn(base).mul(9).to(dtype).permute([order.index(d) for d in range(len(shape))])
    tensor = tensor[tuple(slice(None, None, step) for step in steps)]
    return tensor.expand(shape)


@settings(max_examples=examples(60))
@given(tensors(), st.data())
def test_flip_and_roll_are_exact(tensor: torch.Tensor, data: st.DataObject) -> None:
    dims = data.draw(
        st.lists(st.sampled_from(range(tensor.dim())), unique=True) if tensor.dim() else st.just([])
    )
    got, want = ops.flip(tensor, dims), torch.flip(tensor, dims)
    assert torch.equal(got, want)
    assert got.stride() == want.stride()
    shift = st.integers(-20, 20)
    flat = data.draw(shift)
    assert torch.equal(ops.roll(tensor, flat), torch.roll(tensor, flat))
    if dims:
        twice = data.draw(st.sampled_from([dims, [*dims, dims[0] - tensor.dim()]]))
        shifts = [data.draw(shift) for _ in twice]
        assert torch.equal(ops.roll(tensor, shifts, twice), torch.roll(tensor, shifts, twice))


def test_nested_lengths_are_refused_by_the_name_of_their_argument() -> None:
    wanted = r"^pad: got \(1, \[2\]\). Give a flat sequence of whole numbers\.$"
    with pytest.raises(ArgumentTypeError, match=wanted):
        ops.pad(torch.zeros(4), (1, [2]))  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"^mode: got \{\}. Give the name of a mode\.$"):
        ops.pad(torch.zeros(4), (1, 2), {})  # type: ignore[arg-type]


@settings(max_examples=examples(40))
@given(tensors(least=1), st.sampled_from(MODES), st.data())
def test_pad_gives_torchs_result_or_refusal(tensor: torch.Tensor, mode: str, data: st.DataObject) -> None:
    most = tensor.dim() if mode == "constant" else min(tensor.dim() - 1, 3)
    count = data.draw(st.integers(min(most, 1), max(most, 0)))
    added = data.draw(st.lists(st.integers(-3, 6), min_size=2 * count, max_size=2 * count))
    value = data.draw(st.sampled_from([None, 0, 1, True, 2.5, -3])) if mode == "constant" else None
    if mode == "circular" and _is_of_nothing(tensor, added):
        with pytest.raises(TensorMismatchError, match=r"^pad"):
            ops.pad(tensor, added, mode)
        return
    try:
        want = F.pad(tensor, added, mode, value)
    except Exception as error:
        assume("single memory location" not in str(error))  # torch copies a circle onto itself, we do not
        with pytest.raises(type(error)) as ours:
            ops.pad(tensor, added, mode, value)
        assert isinstance(ours.value, WorkbenchError)
        return
    got = ops.pad(tensor, added, mode, value)
    if mode != "circular" or not _is_undefined(tensor, added):
        assert torch.equal(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("shape", [(0, 1, 1), (0, 2, 3, 3)])
def test_empty_tensors_of_dtypes_that_torch_does_not_pad_are_refused(
    mode: str, shape: tuple[int, ...]
) -> None:
    for module in (F, ops):
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            module.pad(torch.zeros(shape, dtype=torch.bool), (0,) * (2 * len(shape) - 4), mode)


def _is_of_nothing(tensor: torch.Tensor, added: list[int]) -> bool:
    """Return whether a whole dimension is dropped, then repeated: torch returns unwritten memory."""
    pairs = zip(added[::2], added[1::2], reversed(tensor.shape), strict=False)
    is_one = any(max(pair) > 0 and n + sum(min(each, 0) for each in pair) <= 0 for *pair, n in pairs)
    return is_one and bool(tensor.numel())


def _is_undefined(tensor: torch.Tensor, added: list[int]) -> bool:
    """Return whether more is added than is kept: torch then reads memory it has not written yet."""
    pairs = zip(added[::2], added[1::2], reversed(tensor.shape), strict=False)
    return any(max(left, right) > n + min(left, 0) + min(right, 0) for left, right, n in pairs)


@settings(max_examples=examples(40))
@given(
    tensors(least=3, smallest=1),
    *(st.tuples(st.integers(1, 3), st.integers(1, 3)) for _ in range(3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_unfold_is_exact(
    tensor: torch.Tensor,
    taps: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    options = {"kernel_size": taps, "dilation": dilation, "padding": padding, "stride": stride}
    try:
        want = F.unfold(tensor, **options)
    except Exception as error:
        with pytest.raises(type(error)) as ours:
            ops.unfold(tensor, **options)
        assert isinstance(ours.value, WorkbenchError)
        return
    got = ops.unfold(tensor, **options)
    assert torch.equal(got, want)
    assert got.stride() == want.stride()


FUNCTIONS: list[tuple[str, tuple[int, ...], Callable[[Any, torch.Tensor], torch.Tensor]]] = [
    ("flip", (2, 3, 5), lambda on, x: on.flip(x, (0, -1))),
    ("roll", (2, 3, 5), lambda on, x: on.roll(x, (1, -2), (0, 2))),
    ("flat roll", (2, 3, 5), lambda on, x: on.roll(x, 4)),
    ("constant", (2, 3, 5), lambda on, x: on.pad(x, (1, -2, 2, 1), "constant", 0.5)),
    ("reflect", (2, 3, 5), lambda on, x: on.pad(x, (3, 2, -1, 2), "reflect")),
    ("replicate", (2, 3, 5), lambda on, x: on.pad(x, (3, -1, 2, 4), "replicate")),
    ("circular", (2, 3, 5), lambda on, x: on.pad(x, (4, 2, -1, 2), "circular")),
    ("unfold", (2, 1, 3, 4), lambda on, x: on.unfold(x, (2, 3), 1, (1, 0), (2, 1))),
    ("single unfold", (1, 3, 4), lambda on, x: on.unfold(x, 2, 2, 1)),
]


class Torch:
    """torch's operators in one namespace."""

    flip, roll, pad, unfold = torch.flip, torch.roll, F.pad, F.unfold


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode compiles with it
@pytest.mark.parametrize(("shape", "function"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_derivatives_of_all_kinds_pass_gradcheck(
    shape: tuple[int, ...], function: Callable[[Any, torch.Tensor], torch.Tensor]
) -> None:
    """First and second derivatives, tangents, batches of each, and vmap."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def ours(x: torch.Tensor) -> torch.Tensor:
        return function(ops, x)

    assert torch.autograd.gradcheck(ours, x, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(ours, x, check_batched_grad=True, fast_mode=True)
    batch = torch.randn(*shape[:1], 4, *shape[1:], dtype=torch.float64)
    got = torch.func.vmap(ours, in_dims=1)(batch)
    each = [function(Torch, one) for one in batch.unbind(1)]
    assert torch.equal(got, torch.stack(each))
    jacobian = torch.func.jacrev(ours)(x.detach())
    torch.testing.assert_close(jacobian, torch.func.jacfwd(ours)(x.detach()))


@pytest.mark.parametrize(("shape", "function"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_conjugated_negated_and_meta_tensors_give_torchs_results(
    shape: tuple[int, ...], function: Callable[[Any, torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(shape)
    z = torch.randn(shape, dtype=torch.complex64)
    for view in (torch._neg_view(x), z.conj(), z.imag, z.conj().imag):
        assert torch.equal(function(ops, view), function(Torch, view))
    on_meta = function(ops, x.to("meta"))
    assert on_meta.is_meta
    assert on_meta.shape == function(Torch, x).shape


@pytest.mark.parametrize("mode", MODES)
def test_the_result_of_pad_has_torchs_strides(mode: str) -> None:
    for shape, format in (((2, 3, 5, 6), torch.channels_last), ((2, 3, 5, 6, 4), torch.channels_last_3d)):
        x = torch.randn(shape).to(memory_format=format)
        for view in (x, x[:1], x.transpose(0, 1)):
            for added in ((1, 2) * (len(shape) - 2), (0, 0) * (len(shape) - 2), (-1, -1) * (len(shape) - 2)):
                got, want = ops.pad(view, added, mode), F.pad(view, added, mode)
                assert torch.equal(got, want)
                assert got.stride() == want.stride()


@pytest.mark.parametrize(
    ("name", "shape", "arguments"),
    [
        ("flip", (2, 3), (0,)),
        ("flip", (2, 3), ((0, 0),)),
        ("flip", (2, 3), ((0, -2),)),
        ("flip", (2, 3), ((2,),)),
        ("flip", (2, 3), ((1.0,),)),
        ("flip", (2, 3), ([[1]],)),
        ("roll", (2, 3), ((),)),
        ("roll", (2, 3), ((1, 2), 0)),
        ("roll", (2, 3), (1, (0, 1))),
        ("roll", (2, 3), (1, 5)),
        ("roll", (2, 3), (1.5,)),
        ("roll", (2, 3), (True,)),
        ("roll", (), (1, 0)),
        ("roll", (0,), ((1, 2),)),
        ("roll", (0,), ((),)),
        ("roll", (2, 0), ((1, 2), (0,))),
        ("roll", (0, 3), (1, (0, 1))),
        ("roll", (0, 3), ((), 0)),
        ("roll", (2, 3), (torch.tensor(1.5), 0)),
        ("roll", (2, 3), (torch.tensor([1, 2]), (0, 1))),
        ("pad", (2, 3), ((1,),)),
        ("pad", (2, 3), (1,)),
        ("pad", (2, 3), ((1.0, 1),)),
        ("pad", (2, 3), ((1, 1) * 3,)),
        ("pad", (2, 3), ((1, -5),)),
        ("pad", (2, 3), ((1, 1), "mirror")),
        ("pad", (2, 3), ((1, 1), "constant", 2j)),
        ("pad", (2, 3), ((1, 1), "constant", "1")),
        ("pad", (2, 3), ((1, 1), "reflect", 1.0)),
        ("pad", (2, 3), ((3, 0), "reflect")),
        ("pad", (2, 3), ((4, 0), "circular")),
        ("pad", (3,), ((1, 1), "replicate")),
        ("pad", (2, 3, 4), ((1, 1) * 3, "replicate")),
        ("pad", (2, 0), ((1, 1), "replicate")),
        ("unfold", (3, 4), (2,)),
        ("unfold", (1, 2, 3, 4), ((2, 2, 2),)),
        ("unfold", (1, 2, 3, 4), (5,)),
        ("unfold", (1, 2, 3, 4), (2, 0)),
        ("unfold", (1, 2, 3, 4), (2, 1, -1)),
        ("unfold", (2, 5, 5), (2, 1, (0, -1))),
        ("unfold", (0, 2, 5, 5), (2, 1, -1)),
        ("unfold", (1, 2, 3, 4), (2, 1, 0, 0)),
        ("unfold", (1, 2, 3, 4), (2.0,)),
        ("unfold", (1, 0, 3, 4), (2,)),
    ],
)
def test_wrong_arguments_are_refused_as_in_torch(
    name: str, shape: tuple[int, ...], arguments: tuple[Any, ...]
) -> None:
    assert_refused_as_in_torch(getattr(ops, name), getattr(Torch, name), torch.zeros(shape), *arguments)


@pytest.mark.parametrize(
    ("name", "dtype", "arguments"),
    [
        ("pad", torch.int8, ((1, 1), "constant", 300)),
        ("pad", torch.uint8, ((1, 1), "constant", -3)),
        ("pad", torch.uint8, ((1, 1), "constant", -0.5)),
        ("pad", torch.uint64, ((1, 1), "constant", -(2**63))),
        ("pad", torch.int64, ((1, 1), "constant", 2**64)),
        ("pad", torch.float32, ((1, 1), "constant", 2**200)),
        ("pad", torch.int32, ((1, 1), "constant", float("nan"))),
        ("pad", torch.float16, ((1, 1), "constant", 1e9)),
        ("pad", torch.bool, ((1, 1), "reflect")),
        ("pad", torch.uint16, ((1, 1), "replicate")),
        ("unfold", torch.int64, (2,)),
        ("unfold", torch.float8_e4m3fn, (2,)),
    ],
)
def test_wrong_values_and_dtypes_are_refused_as_in_torch(
    name: str, dtype: torch.dtype, arguments: tuple[Any, ...]
) -> None:
    x = torch.zeros(1, 2, 3).to(dtype)
    refused = assert_refused_as_in_torch(getattr(ops, name), getattr(Torch, name), x, *arguments)
    if name == "unfold":
        assert isinstance(refused, UnsupportedDtypeError)


@pytest.mark.parametrize("context", [lambda: torch.device("meta"), FakeTensorMode], ids=["meta", "fake"])
def test_no_mode_of_torch_changes_which_calls_are_refused(context: Callable[[], Any]) -> None:
    """The answer is kept for each dtype, so one found for tensors without memory would stay."""
    whole = torch.ones(1, 1, 4, 4, dtype=torch.int32)
    unsigned = torch.ones(1, 4, dtype=torch.uint16)
    rearrange._refusal.cache_clear()
    for entered in (context(), nullcontext()):
        with entered:
            with pytest.raises(UnsupportedDtypeError):
                ops.unfold(whole, 2)
            with pytest.raises(UnsupportedDtypeError):
                ops.pad(unsigned, (1, 1), "replicate")


def test_a_fill_is_the_same_whatever_the_default_device() -> None:
    for x in (torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bfloat16), torch.ones(1, 4, dtype=torch.int8)):
        wanted = F.pad(x, (1, 1), value=2.0)
        with torch.device("meta"):
            assert torch.equal(ops.pad(x, (1, 1), value=2.0), wanted)
            with pytest.raises(TensorMismatchError, match="value"):
                ops.pad(torch.ones(1, 4, device="cpu", dtype=torch.float16), (1, 1), value=1e9)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, 255),
        (torch.uint8, 1.5),
        (torch.int8, -128),
        (torch.bool, -3),
        (torch.float32, 2**100),
        (torch.complex128, -(2**70)),
    ],
    ids=str,
)
def test_fills_that_fit_the_dtype_pad_as_in_torch(dtype: torch.dtype, value: float) -> None:
    x = torch.ones(2).to(dtype)
    assert torch.equal(ops.pad(x, (1, 1), "constant", value), F.pad(x, (1, 1), "constant", value))


def test_a_fill_that_is_not_used_is_not_checked() -> None:
    x = torch.arange(4, dtype=torch.uint8)
    for added in ((-1, -1), (0, 0)):
        assert torch.equal(ops.pad(x, added, "constant", -3), F.pad(x, added, "constant", -3))


def test_an_integer_fill_is_exact() -> None:
    """torch converts by way of a float, which makes the largest number negative."""
    for value in (2**53 + 1, 2**63 - 1):
        assert ops.pad(torch.ones(1, dtype=torch.int64), (1, 0), "constant", value)[0] == value


def test_errors_name_the_argument_that_is_wrong() -> None:
    x = torch.ones(1, 3, 5, 5)
    for padding in (-1, (0, -1)):
        with pytest.raises(TensorMismatchError, match=r"^padding: got .*-1"):
            ops.unfold(x, 2, 1, padding)
    for shape, added in (((1, 1), (-1, 1)), ((2, 3), (3, -3)), ((1, 2, 3), (0, 0, 1, -2))):
        with pytest.raises(TensorMismatchError, match=r"^pad: got .*nothing is left"):
            ops.pad(torch.ones(shape), added, "circular")
    with pytest.raises(TensorMismatchError, match=r"^value: got -3 .*uint8"):
        ops.pad(torch.ones(2, dtype=torch.uint8), (1, 1), "constant", -3)
    with pytest.raises(TensorMismatchError, match=r"^shifts, dims: got \(1, 2\) and \(0,\)"):
        ops.roll(torch.ones(2, 0), (1, 2), 0)


@pytest.mark.parametrize("one", [torch.tensor(1), torch.tensor([1]), np.int64(1)], ids=repr)
def test_integers_of_other_types_roll_and_unfold_as_in_torch(one: Any) -> None:
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(ops.roll(x, one, 0), torch.roll(x, one, 0))
    assert torch.equal(ops.roll(x, 1, one), torch.roll(x, 1, one))
    assert torch.equal(ops.roll(x, (one, 2), (1, one)), torch.roll(x, (one, 2), (1, one)))
    image = x.view(1, 1, 2, 3)
    for taps in ((one, one), one):
        if not isinstance(taps, torch.Tensor):
            assert torch.equal(ops.unfold(image, taps), F.unfold(image, taps))


@pytest.mark.parametrize("far", [2**31 - 1, 2**31, 2**40])
def test_a_single_window_may_have_a_huge_stride_or_dilation(far: int) -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    for options in ({"kernel_size": 2, "stride": far}, {"kernel_size": 1, "dilation": far}):
        got, want = ops.unfold(x, **options), F.unfold(x, **options)
        assert torch.equal(got, want)
        (of_ours,), (of_torchs,) = (torch.autograd.grad(each.sum(), x) for each in (got, want))
        assert torch.equal(of_ours, of_torchs)


def test_launches_kept_for_1_are_not_used_for_true_or_1_0() -> None:
    x = torch.arange(6).view(2, 3)
    assert torch.equal(ops.roll(x, 1), torch.roll(x, 1))
    with pytest.raises(ArgumentTypeError):
        ops.roll(x, True)
    assert torch.equal(ops.pad(x, (1, 1)), F.pad(x, (1, 1)))
    with pytest.raises(ArgumentTypeError):
        ops.pad(x, (1.0, 1))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_inputs_that_no_kernel_takes_are_refused() -> None:
    for wrong in ([1.0], None):
        with pytest.raises(ArgumentTypeError, match="input"):
            ops.flip(wrong, (0,))  # type: ignore[arg-type]
    with pytest.raises(TensorMismatchError, match="layout"):
        ops.pad(torch.zeros(2, 3).to_sparse(), (1, 1))
    with pytest.raises(TensorMismatchError, match="quantized"):
        ops.roll(torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8), 1)


def test_empty_tensors_are_padded_flipped_rolled_and_unfolded() -> None:
    x = torch.zeros(2, 0, 3)
    assert torch.equal(ops.pad(x, (1, 1, 2, 2), value=7.0), F.pad(x, (1, 1, 2, 2), value=7.0))
    assert ops.flip(x, (0, 1)).shape == ops.roll(x, 1).shape == x.shape
    assert ops.unfold(torch.zeros(0, 2, 3, 3), 2).shape == (0, 8, 4)


def test_the_payload_of_a_nan_is_kept() -> None:
    """Arithmetic would lose the payload."""
    bits = torch.tensor([0x7FC01234, 0x7F800001, 0xFFC0ABCD - 2**32], dtype=torch.int32)
    x = bits.view(torch.float32)
    assert torch.equal(ops.flip(x, (0,)).view(torch.int32), bits.flip(0))
    assert torch.equal(ops.pad(x[None], (1, 0), "reflect")[0].view(torch.int32), bits[[1, 0, 1, 2]])


def test_the_gradient_of_unfold_in_bf16_agrees_with_float64_up_to_rounding() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9, dtype=torch.bfloat16, requires_grad=True)
    result = ops.unfold(x, 3, padding=1)
    grad = torch.randn(result.shape).to(torch.bfloat16)
    (got,) = torch.autograd.grad(result, x, grad)
    exact = F.fold(grad.double(), (9, 9), 3, padding=1)
    torch.testing.assert_close(got, exact.to(torch.bfloat16), rtol=2**-7, atol=2**-7)


def test_fold_agrees_with_torch() -> None:
    torch.manual_seed(0)
    for taps, stride, dilation, padding in itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (1,)):
        x = torch.zeros(2, 2, 7, 8)
        windows = F.unfold(x, taps, dilation, padding, stride)
        sums = torch.randint_like(windows, -4, 5).transpose(0, 1).contiguous().transpose(0, 1)
        counts = tuple((n + 2 * padding - dilation * (taps - 1) - 1) // stride + 1 for n in (7, 8))
        how = rearrangement.Windows((taps,) * 2, counts, (stride,) * 2, (dilation,) * 2, (padding,) * 2)
        rearrangement.fold(how, sums, x).run()
        assert torch.equal(x, F.fold(sums, (7, 8), taps, dilation, padding, stride))


def test_a_few_taps_are_folded_in_one_step() -> None:
    how = rearrangement.Windows((3, 3), (14, 14), (1, 1), (1, 1), (0, 0))
    (step,) = rearrangement.fold(how, torch.zeros(1, 9, 196), torch.zeros(1, 1, 16, 16)).steps
    assert step.meta["SPLITS"] == 1
