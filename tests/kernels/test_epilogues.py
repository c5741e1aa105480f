"""Epilogues of products: chains of functors agree with torch, in every template that is interpreted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.everything import examples
from tests.kernels.compiled_for import kernels_for
from tests.kernels.inputs import laid, numbers, whole
from tests.kernels.results import assert_as_accurate_as_torch, assert_untouched, guarded
from workbench import lens, ops
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
)
from workbench.kernels import epilogues, gemm, reference
from workbench.kernels.epilogues import Epilogue, Frame
from workbench.kernels.pointwise import elementwise
from workbench.kernels.tile import activations
from workbench.launch import Launch

pytestmark = pytest.mark.usefixtures("pretended")

M, N, K = 35, 50, 33
TILE = (32, 32, 16)
WAYS: dict[str, dict[str, Any]] = {
    "tiles": {},
    "halves": {"tile": (64, 256, 16)},
    "two parts": {"tile": (16, 192, 16)},
    "splits": {"splits": 2},
    "atomic": {"splits": 2, "atomic": True},
    "persistent": {"template": "persistent", "programs": 2},
    "stream-k": {"template": "stream-k", "programs": 3},
    "packed": {"pack": True},
    "rest": {"rows": (0, 32), "rest": {"tile": (16, 32, 16)}},
}
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def fused(a: torch.Tensor, b: torch.Tensor, chain: Epilogue, **options: Any) -> torch.Tensor:
    return gemm.launch(a, b, epilogue=chain, **{"tile": TILE, **options}).run()[0]


VECTOR, COLUMN, MATRIX = numbers(N, seed=2), numbers(M, seed=3), numbers(M, N, seed=4)

# Name -> constructor, its tensors, and the same function of the product and these tensors in torch.
FUNCTORS: dict[str, tuple[Callable[..., Epilogue], tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]] = {
    "bias": (epilogues.bias, (VECTOR,), lambda x, v: x + v),
    "add": (epilogues.add, (MATRIX,), lambda x, d: x + d),
    "add column": (lambda c: epilogues.add(c[:, None]), (COLUMN,), lambda x, c: x + c[:, None]),
    "add scalar": (epilogues.add, (VECTOR[3],), lambda x, s: x + s),
    "add number": (lambda: epilogues.add(0.3), (), lambda x: x + 0.3),
    "residual": (epilogues.residual, (MATRIX,), lambda x, d: x + d),
    "multiply": (epilogues.multiply, (MATRIX,), lambda x, d: x * d),
    "scale": (lambda: epilogues.scale(0.3), (), lambda x: x * 0.3),
    "add_scaled": (lambda d: epilogues.add_scaled(d, 0.3, -2), (MATRIX,), lambda x, d: 0.3 * x - 2 * d),
    "row_scale": (epilogues.row_scale, (COLUMN,), lambda x, c: x * c[:, None]),
    "column_scale": (epilogues.column_scale, (VECTOR,), lambda x, v: x * v),
    "relu": (epilogues.relu, (), torch.relu),
    "gelu": (epilogues.gelu, (), functional.gelu),
    "fast_gelu": (epilogues.fast_gelu, (), lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (epilogues.silu, (), functional.silu),
    "sigmoid": (epilogues.sigmoid, (), torch.sigmoid),
    "clamp": (lambda: epilogues.clamp(-0.5, 1), (), lambda x: x.clamp(-0.5, 1)),
    "clamp from below": (lambda: epilogues.clamp(min=-1), (), lambda x: x.clamp(min=-1)),
    "clamp from above": (lambda: epilogues.clamp(max=0.3), (), lambda x: x.clamp(max=0.3)),
}


def test_every_shipped_functor_is_tested() -> None:
    elsewhere = {"cast", "dropout", "own", "permuted"}  # tested below, apart from the table
    makers = {
        name
        for name, each in vars(epilogues).items()
        if not name.startswith("_") and getattr(each, "__annotations__", {}).get("return") == "Epilogue"
    }
    assert makers >= elsewhere
    assert makers - elsewhere == {name.split()[0] for name in FUNCTORS}


@pytest.mark.parametrize("name", FUNCTORS)
def test_functors_without_operands_declare_whether_they_make_floats_of_integers(name: str) -> None:
    """Otherwise the result of an int8 product would be stored as int32."""
    make, tensors, _ = FUNCTORS[name]
    for functor in make(*tensors).functors:
        if not functor.operands:
            assert functor.meaning is not None
            place = (torch.zeros(1), torch.zeros(1), torch.zeros(1))
            found = functor.meaning(torch.arange(-3, 4, dtype=torch.int32), (), place)
            assert found.is_floating_point() == functor.makes_floats


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTORS)
def test_each_functor_agrees_with_torch(name: str, dtype: torch.dtype) -> None:
    make, tensors, torchs = FUNCTORS[name]
    a, b = numbers(M, K, dtype=dtype), numbers(K, N, dtype=dtype, seed=1)
    tensors = tuple(each.to(dtype) for each in tensors)
    product = a.double() @ b.double()
    exact = torchs(product, *(each.double() for each in tensors))
    chain = make(*tensors)
    largest = product.abs().max().item()
    assert_as_accurate_as_torch(fused(a, b, chain), torchs(a @ b, *tensors).to(dtype), exact, largest)
    assert_as_accurate_as_torch(chain.meaning(product), exact, exact, largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("around", [-700, -104, -88.5, -80, -30, -16, -8, -3, -1, 0, 3, 20, 88.5, 104, 700])
@pytest.mark.parametrize("name", ["fast_gelu", "silu", "sigmoid"])
def test_activations_are_accurate_on_narrow_ranges(name: str, around: float, dtype: torch.dtype) -> None:
    """Errors of an exponential grow with the exponent; beside larger results they would not show."""
    make, _, torchs = FUNCTORS[name]
    a, identity = numbers(16, 16, dtype=dtype) / 4 + around, torch.eye(16, dtype=dtype)
    got, theirs, exact = fused(a, identity, make()), torchs(a), torchs(a.double())
    if name == "fast_gelu":  # torch's own 1 + tanh is mostly rounding errors
        x = a.double()
        exact = x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    if around == -88.5 and dtype == torch.float32:  # torch's exponential is infinite below -88.7
        kept = a > -88.7
        got, theirs, exact = got[kept], theirs[kept], exact[kept]
    assert_as_accurate_as_torch(got, theirs, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["gelu", "fast_gelu", "silu", "sigmoid"])
def test_errors_of_activations_left_by_cancellation_are_no_larger_than_in_torch(
    name: str, dtype: torch.dtype
) -> None:
    """A result in 16 bits hides a few roundings of fp32, except where a sum cancels everything else."""
    make, _, torchs = FUNCTORS[name]
    a = numbers(16, 16)
    addend = (1e-4 * numbers(16, 16, seed=1) - torchs(a.double())).float()
    got = torch.empty(16, 16, dtype=dtype)
    fused(a, torch.eye(16), make() | epilogues.add(addend), output=got)
    assert_as_accurate_as_torch(got, (torchs(a) + addend).to(dtype), torchs(a.double()) + addend)


def test_sigmoid_of_zero_is_exactly_one_half() -> None:
    """Functors that follow may compare it, or round it to integers."""
    zeros = torch.zeros(4, 4, dtype=torch.float16)
    assert (fused(zeros, zeros, epilogues.sigmoid() | epilogues.add(-0.5)) == 0).all()
    whole = fused(zeros, zeros, epilogues.sigmoid() | epilogues.scale(3.0) | epilogues.cast(torch.int8))
    assert (whole == 2).all()  # 1.5, to even


def test_silu_and_sigmoid_of_infinity_and_nan_agree_with_torch() -> None:
    a = torch.tensor([[math.inf, -math.inf, math.nan, 0]])
    for make, want in ((epilogues.silu, functional.silu), (epilogues.sigmoid, torch.sigmoid)):
        got = fused(torch.zeros(1, 1), torch.zeros(1, 4), epilogues.add(a) | make())
        assert torch.equal(got.nan_to_num(-1), want(a).nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gelu_in_16_bits_is_within_a_rounding(dtype: torch.dtype) -> None:
    """Results near 0 are accurate too, where 1 + erf would cancel."""
    a = torch.linspace(-12, 12, 64 * 64).view(64, 64).to(dtype)
    exact = a.double() * torch.special.erfc(-a.double() * math.sqrt(0.5)) / 2
    got = fused(a, torch.eye(64, dtype=dtype), epilogues.gelu())
    known = torch.finfo(dtype)
    step = exact.abs().clamp(min=known.tiny) * known.eps
    assert ((got.double() - exact).abs() <= 0.52 * step).all()
    infinite = torch.tensor([[math.inf, -math.inf, math.nan, 0]], dtype=dtype)
    none = torch.zeros(1, 4, dtype=dtype)
    got = fused(none[:, :1], none, epilogues.add(infinite) | epilogues.gelu())
    assert got[0].nan_to_num(-1, posinf=math.inf).tolist() == [math.inf, -1, -1, 0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_epilogues_run_once_after_the_sum(way: dict[str, Any]) -> None:
    """Integers are exact in any order. The square of a sum differs from the sum of squares."""
    a, b, d = whole(M, K), whole(K, N, seed=1), whole(M, N, seed=2)
    v, c = whole(N, seed=3), whole(M, seed=4)
    want = ((a @ b + v) * c[:, None] + d).clamp(-40, 300)
    chain = epilogues.bias(v) | epilogues.row_scale(c) | epilogues.add(d) | epilogues.own(square)
    output = torch.full((M, N), math.nan)
    fused(a, b, chain | epilogues.clamp(0, 250), output=output, **way)
    want = ((a @ b + v) * c[:, None] + d).square().clamp(0, 250)
    assert torch.equal(output, want)


@triton.jit
def square(tile, operands, place):
    return tile * tile


@triton.jit
def gated(tile, operands, place):
    return tile * tl.sigmoid(operands[0])


def test_a_chain_of_shipped_and_user_defined_functors_is_as_accurate_as_torch() -> None:
    a, b, gate = numbers(M, K), numbers(K, N, seed=1), numbers(M, N, seed=2)
    got = fused(a, b, epilogues.relu() | epilogues.own(gated, gate))
    exact = (a.double() @ b.double()).relu() * torch.sigmoid(gate.double())
    assert_as_accurate_as_torch(got, (a @ b).relu() * torch.sigmoid(gate), exact)


def scaled(doubles: bool) -> Any:
    """Return a jit function called `scale`: one that doubles, or one that halves."""
    if doubles:

        @triton.jit
        def scale(tile, operands, place):
            return tile * 2.0
    else:

        @triton.jit
        def scale(tile, operands, place):
            return tile * 0.5

    return scale


def test_two_functors_of_one_name_are_refused() -> None:
    """Compiled, the first function would stand for both."""
    half, double = scaled(False), scaled(True)
    with pytest.raises(InvalidArgumentError, match="two functions are called scale"):
        epilogues.own(half) | epilogues.relu() | epilogues.own(double)
    chain = epilogues.own(half) | epilogues.own(half)
    assert torch.equal(fused(A, B, chain), A @ B / 4)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: laid(t, "transposed"),
    "sliced": lambda t: laid(t, "sliced"),
    "padded": lambda t: functional.pad(t, (3, 8))[..., 3:-8],
    "expanded": lambda t: t[..., :1, :].expand_as(t),
}
UNARY: dict[str, tuple[Callable[[], Epilogue], Callable[..., torch.Tensor]]] = {
    "relu": (epilogues.relu, torch.relu),
    "gelu": (epilogues.gelu, functional.gelu),
    "fast_gelu": (epilogues.fast_gelu, lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (epilogues.silu, functional.silu),
    "sigmoid": (epilogues.sigmoid, torch.sigmoid),
    "clamp": (lambda: epilogues.clamp(-2, 1.5), lambda x: x.clamp(-2, 1.5)),
    "scale": (lambda: epilogues.scale(-0.7), lambda x: x * -0.7),
}
WITH_TENSOR: dict[str, tuple[Callable[[torch.Tensor], Epilogue], Callable[..., torch.Tensor]]] = {
    "add": (epilogues.add, torch.add),
    "multiply": (epilogues.multiply, torch.mul),
    "residual": (epilogues.residual, torch.add),
}


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_chain_agrees_with_torch(data: st.DataObject) -> None:
    """Dtypes, broadcasts, layouts and shapes are drawn, some with infinity; NaN guards the output."""
    m, n = (data.draw(st.sampled_from([1, 15, 16, 17, 33]), label=name) for name in "mn")
    k = data.draw(st.sampled_from([0, 1, 17]), label="k")
    batch = data.draw(st.sampled_from([(), (2,), (2, 1)]), label="batch")
    dtype = data.draw(st.sampled_from(FLOATS), label="dtype")
    a, b = numbers(*batch, m, k, dtype=dtype), numbers(*batch, k, n, dtype=dtype, seed=1)
    if k and data.draw(st.booleans(), label="infinite"):
        a[..., 0, 0] = math.inf
    chain = Epilogue()
    steps: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = []
    for i in range(data.draw(st.integers(1, 4), label="functors")):
        if data.draw(st.booleans(), label="unary"):
            of_nothing, function = UNARY[data.draw(st.sampled_from(sorted(UNARY)), label="functor")]
            chain |= of_nothing()
            steps.append((function, ()))
            continue
        make, function = WITH_TENSOR[data.draw(st.sampled_from(sorted(WITH_TENSOR)), label="functor")]
        kept = data.draw(st.tuples(*[st.booleans()] * len((*batch, m, n))), label="broadcast")
        shape = [size if keep else 1 for size, keep in zip((*batch, m, n), kept, strict=True)]
        given_dtype = data.draw(st.sampled_from([dtype, torch.float32]), label="operand")
        tensor = numbers(*shape, dtype=given_dtype, seed=2 + i)
        tensor = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)), label="layout")](tensor)
        chain |= make(tensor)
        steps.append((function, (tensor,)))

    largest = 0.0

    def of_torch(product: torch.Tensor) -> torch.Tensor:
        """Return the chain of a product in the product's dtype, as kernels compute in the accumulators'."""
        nonlocal largest
        for function, tensors in steps:
            largest = max(largest, *product[product.isfinite()].abs().tolist(), 0)
            product = function(product, *(each.to(product.dtype) for each in tensors))
        return product

    ways: list[dict[str, Any]] = [{}, {"splits": 2}, {"template": "persistent", "programs": 2}]
    way = data.draw(st.sampled_from(ways), label="way")
    output, memory = guarded((*batch, m, n), dtype, math.nan)
    fused(a, b, chain, output=output, tile=(16, 32, 16), **way)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = of_torch(a.double() @ b.double())
    assert_as_accurate_as_torch(output, of_torch(a.to(wide) @ b.to(wide)).to(dtype), exact, largest)
    assert_untouched(memory, output, math.nan)


@pytest.mark.parametrize("out", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_results_saturate(out: torch.dtype) -> None:
    large = torch.tensor([[1e9, math.inf, -math.inf, math.nan, 3.0]])
    got = ops.fused_matmul(torch.ones(1, 1), large, epilogue=epilogues.scale(1.0), out_dtype=out).float()
    most = torch.finfo(out).max
    assert got[0, :3].tolist() == [most, most, -most]
    assert got[0, 3].isnan()
    assert got[0, 4] == 3


@pytest.mark.parametrize("out", [torch.float16, torch.float32], ids=str)
def test_scaled_int8_products_are_exact_until_made_floats(out: torch.dtype) -> None:
    """Rows and columns have scales, as in quantization."""
    a, b = whole(M, K, dtype=torch.int8), whole(K, N, dtype=torch.int8, seed=1)
    chain = epilogues.add(7) | epilogues.row_scale(COLUMN) | epilogues.column_scale(VECTOR)
    output = torch.full((M, N), math.nan, dtype=out)
    got = fused(a, b, chain, output=output)
    exact = (a.double() @ b.double() + 7) * COLUMN[:, None].double() * VECTOR.double()
    assert_as_accurate_as_torch(got, exact.float().to(out), exact)
    assert chain.result_dtype(torch.int32) == torch.float32
    assert (epilogues.relu() | epilogues.clamp(0, 9)).result_dtype(torch.int32) == torch.int32
    whole_chain = epilogues.add(whole(M, N, dtype=torch.int32)) | epilogues.relu() | epilogues.clamp(1, 9)
    assert torch.equal(
        fused(a, b, whole_chain), (a.int() @ b.int() + whole(M, N, dtype=torch.int32)).relu().clamp(1, 9)
    )


def test_casts_round_to_even_and_saturate() -> None:
    """Integers round half to even, and NaN becomes 0; fp8 keeps NaN, and has no infinity."""
    row = torch.tensor([0.5, 1.5, 2.5, -0.5, -3.5, 126.6, 127.6, -200, math.inf, -math.inf, math.nan, 400])
    identity = torch.eye(len(row))
    a = row.nan_to_num(0, 0, 0)[None]
    chain = epilogues.add(torch.where(row.isfinite(), 0, row))
    got = fused(a, identity, chain | epilogues.cast(torch.int8))
    assert got.tolist() == [[0, 2, 2, 0, -4, 127, 127, -128, 127, -128, 0, 127]]
    for dtype in epilogues.FP8:
        got = fused(a, identity, chain | epilogues.scale(100.0) | epilogues.cast(dtype))
        most = torch.finfo(dtype).max
        assert torch.equal(
            got.float().nan_to_num(-1), (row * 100).clamp(-most, most)[None].to(dtype).float().nan_to_num(-1)
        )
        assert got.dtype == dtype


@pytest.mark.parametrize("way", [{}, {"splits": 2}, {"rows": (0, 16), "rest": {"num_warps": 2}}], ids=str)
def test_results_may_be_stored_permuted(way: dict[str, Any]) -> None:
    """The product's columns are three heads of twelve; the result has a matrix for each head."""
    a, b, v = whole(2 * 15, K), whole(K, 3 * 12, seed=1), whole(36, seed=2)
    chain = epilogues.bias(v) | epilogues.permuted((2, 15, 3, 12), (2, 0, 1, 3))
    (got,) = gemm.launch(a, b, epilogue=chain, tile=(16, 32, 16), **way).run()
    assert got.is_contiguous()
    assert torch.equal(got, (a @ b + v).view(2, 15, 3, 12).permute(2, 0, 1, 3))


@pytest.mark.parametrize(
    "way", [{}, {"splits": 2}, {"template": "persistent"}, {"template": "stream-k"}], ids=str
)
@pytest.mark.parametrize(
    ("batch", "shape", "dims"),
    [
        ((3,), (3, 5, 4, 3, 12), (0, 3, 1, 2, 4)),  # the batch stays outermost
        ((3,), (3, 20, 36), (2, 1, 0)),  # the batch becomes innermost
        ((2, 3), (2, 3, 20, 6, 6), (3, 1, 2, 0, 4)),  # the two dimensions of the batch are separated
        ((1,), (1, 20, 36), (1, 0, 2)),
    ],
)
def test_batches_may_be_stored_permuted(
    batch: tuple[int, ...], shape: tuple[int, ...], dims: tuple[int, ...], way: dict[str, Any]
) -> None:
    a, b, v = whole(*batch, 20, K), whole(*batch, K, 36, seed=1), whole(36, seed=2)
    for one, other in ((a, b), (a, b[(0,) * len(batch)])):
        chain = epilogues.bias(v) | epilogues.permuted(shape, dims)
        (got,) = gemm.launch(one, other, epilogue=chain, tile=(16, 32, 16), **way).run()
        assert got.is_contiguous()
        assert torch.equal(got, (one @ other + v).view(shape).permute(dims))


def test_dropout_depends_on_seed_and_position_alone() -> None:
    a, b = torch.ones(70, 8), torch.ones(8, 90)
    chain = epilogues.dropout(0.3, seed=2**40 + 5)
    got = fused(a, b, chain)
    assert torch.equal(got, fused(a, b, chain, tile=(16, 64, 16), splits=1, template="persistent"))
    assert torch.equal(got, fused(a, b, epilogues.dropout(0.3, torch.tensor([2**40 + 5]))))
    assert torch.equal(got, chain.meaning(a @ b))
    assert not torch.equal(got, fused(a, b, epilogues.dropout(0.3, seed=1)))
    assert got.unique().tolist() == [0, pytest.approx(8 / 0.7)]
    assert (got == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)
    batches = fused(a.expand(2, 70, 8), b, chain)
    assert torch.equal(batches[0], got)
    assert not torch.equal(batches[1], got)


def test_work_counts_functors_and_their_tensors() -> None:
    a, b, d = (torch.empty(*shape, dtype=torch.float16) for shape in ((M, K), (K, N), (M, N)))
    bare, whole_chain = (
        gemm.launch(a, b, epilogue=chain).work
        for chain in (None, epilogues.add(d) | epilogues.bias(d[0]) | epilogues.fast_gelu())
    )
    assert bare is not None
    assert whole_chain is not None
    assert whole_chain.flops - bare.flops == 10 * M * N
    assert whole_chain.bytes - bare.bytes == 2 * (M * N + N)
    expanded = gemm.launch(a, b, epilogue=epilogues.add(d[:1].expand(M, N))).work
    assert expanded is not None
    assert expanded.bytes - bare.bytes == 2 * N


def with_addend(*shape: int, chain: Callable[[torch.Tensor], Epilogue], **options: Any) -> Launch:
    m, n, k = shape
    a, b, d = (torch.empty(*size, dtype=torch.float16) for size in ((m, k), (k, n), (m, n)))
    return gemm.launch(a, b, epilogue=chain(d), **{"tile": (64, 64, 32), "splits": 1, **options})


def test_addends_are_loaded_as_wide_as_strides_allow() -> None:
    """Rows have 72 elements, which 16 does not divide, and tiles have masks.

    A lane loads the elements of a vector for its own columns of the product, two at a time.
    """
    (matrix,), (vector,) = (
        lens.compile(with_addend(200, 72, 64, chain=chain), "sm_80")
        for chain in (epilogues.add, lambda d: epilogues.bias(d[0]))
    )
    assert matrix.count("global load", bits=128) == matrix.count("global load") > 0
    assert vector.count("global load", bits=32) == vector.count("global load") > 0


def test_large_tiles_leave_shared_memory_for_the_next_tiles_stages() -> None:
    """Two addends pass through shared memory, in Hopper's instance for large products."""
    launch = with_addend(
        1024, 1024, 256, chain=lambda d: epilogues.add(d) | epilogues.add(d) | epilogues.fast_gelu(),
        tile=(128, 256, 64), template="persistent", programs=8, descriptors=True, num_warps=8,
    )  # fmt: skip
    (step,) = lens.compile(launch, "sm_90")
    assert step.problem == ""
    assert step.spills == 0


@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp64_products_take_fp8_addends_and_give_fp8_results(fp8: torch.dtype) -> None:
    a = whole(32, 32, dtype=torch.float64)
    launch = gemm.launch(a, a, epilogue=epilogues.add(a.to(fp8)) | epilogues.cast(fp8), tile=(32, 32, 16))
    (step,) = lens.compile(launch, "sm_90")
    assert step.problem == ""
    most = torch.finfo(fp8).max
    assert torch.equal(launch.run()[0].float(), (a @ a + a).clamp(-most, most).to(fp8).float())


def test_launches_that_differ_in_scalars_share_a_compiled_kernel() -> None:
    kernels = [
        kernels_for(with_addend(64, 64, 64, chain=chain))
        for chain in (
            lambda d: epilogues.add_scaled(d, 0.5, 3.0) | epilogues.scale(1.0),
            lambda d: epilogues.add_scaled(d, 1.0, 0.1) | epilogues.scale(16.0),
        )
    ]
    assert kernels[0] == kernels[1]


def test_another_number_of_rows_compiles_nothing() -> None:
    """One number of rows is a multiple of 16, the other is not; both launches have one compiled kernel."""
    kernels = [
        kernels_for(with_addend(m, 64, 64, chain=lambda d: epilogues.add(d) | epilogues.bias(d[0])))
        for m in (264, 336)
    ]
    assert kernels[0] == kernels[1]


A, B = torch.ones(8, 4), torch.ones(4, 6)
WRONG: dict[str, tuple[Callable[[], object], type[WorkbenchError], str]] = {
    "no tensor": (lambda: epilogues.bias(3), ArgumentTypeError, "vector"),  # type: ignore[arg-type]
    "no vector": (lambda: epilogues.bias(torch.tensor(1.0)), TensorMismatchError, "vector"),
    "no operand": (lambda: epilogues.add("1"), ArgumentTypeError, "other"),  # type: ignore[arg-type]
    "a flag": (lambda: epilogues.scale(True), ArgumentTypeError, "factor"),
    "a huge number": (lambda: epilogues.scale(2**63), InvalidArgumentError, "factor"),
    "a bound that is none": (lambda: epilogues.clamp(0.0, math.nan), InvalidArgumentError, "max"),
    "no bound": (epilogues.clamp, InvalidArgumentError, "min, max"),
    "certain": (lambda: epilogues.dropout(1.0, 0), InvalidArgumentError, "probability"),
    "a negative seed": (lambda: epilogues.dropout(0.1, -1), InvalidArgumentError, "seed"),
    "a seed of floats": (lambda: epilogues.dropout(0.1, torch.ones(1)), TensorMismatchError, "seed"),
    "many seeds": (lambda: epilogues.dropout(0.1, torch.ones(2).long()), TensorMismatchError, "seed"),
    "no narrow dtype": (lambda: epilogues.cast(torch.float16), UnsupportedDtypeError, "dtype"),
    "no permutation": (lambda: epilogues.permuted((8, 6), (0, 0)), InvalidArgumentError, "dims"),
    "no lengths": (lambda: epilogues.permuted((8, 6.0), (0, 1)), ArgumentTypeError, "shape"),  # type: ignore[arg-type]
    "no meaning": (
        lambda: epilogues.own(square, meaning=3), ArgumentTypeError, "meaning",  # type: ignore[arg-type]
    ),
    "no number of operations": (
        lambda: epilogues.own(square, flops=None), ArgumentTypeError, "flops",  # type: ignore[arg-type]
    ),
    "a flag as a seed": (lambda: epilogues.dropout(0.1, True), ArgumentTypeError, "seed"),
    "not called": (lambda: epilogues.relu | epilogues.gelu(), ArgumentTypeError, r"before gelu\(\)"),
    "no jit function": (lambda: epilogues.own(len), ArgumentTypeError, "function"),
    "no chain": (lambda: epilogues.relu() | 3, ArgumentTypeError, "epilogue"),  # type: ignore[operator]
    "behind a cast": (lambda: epilogues.cast(torch.int8) | epilogues.relu(), InvalidArgumentError, "cast"),
    "no epilogue": (lambda: fused(A, B, epilogues.relu), ArgumentTypeError, "epilogue"),  # type: ignore[arg-type]
    "another shape": (lambda: fused(A, B, epilogues.add(torch.ones(7))), TensorMismatchError, r"\[0\], add"),
    "another vector": (lambda: fused(A, B, epilogues.row_scale(B[0])), TensorMismatchError, "rows of"),
    "complex": (
        lambda: fused(A, B, epilogues.add(B.to(torch.complex64))), UnsupportedDtypeError,
        r"got a tensor of torch.complex64. Convert it to one of",
    ),
    "sparse": (
        lambda: fused(A, B, epilogues.add(torch.ones(8, 6).to_sparse())), TensorMismatchError, "sparse_coo",
    ),
    "negated": (
        lambda: fused(A, B, epilogues.add(torch.ones(8, 6, dtype=torch.complex64).conj().imag)),
        TensorMismatchError, "resolve_neg",
    ),
    "elsewhere": (
        lambda: fused(A, B, epilogues.add(torch.ones(6, device="meta"))), TensorMismatchError, "on cpu",
    ),
    "another output": (
        lambda: fused(A, B, epilogues.cast(torch.int8), output=A @ B), TensorMismatchError, "cast to",
    ),
    "a whole output": (
        lambda: fused(A, B, epilogues.relu(), output=torch.empty(8, 6).long()), TensorMismatchError, "int64",
    ),
    "other lengths": (
        lambda: fused(A, B, epilogues.permuted((4, 12), (1, 0))), TensorMismatchError, "multiply to 8",
    ),
    "a batch": (
        lambda: fused(A[None], B, epilogues.permuted((8, 6), (1, 0))), TensorMismatchError,
        "Give the batch's",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_invalid_arguments_are_named(call: tuple[Callable[[], object], type[WorkbenchError], str]) -> None:
    function, error, words = call
    with pytest.raises(error, match=words):
        function()


@pytest.mark.parametrize(
    ("meaning", "words"),
    [
        (lambda x: x, "it raises TypeError"),
        (lambda x, operands, place: x @ operands[0], "it raises IndexError"),
        (lambda x, operands, place: x @ x, "it raises RuntimeError"),
        (lambda x, operands, place: None, "it returns a NoneType"),
        (lambda x, operands, place: x[:1], r"it returns shape \(1, 6\) for \(8, 6\)"),
    ],
)
def test_backward_names_a_wrong_meaning(meaning: Any, words: str) -> None:
    a, b = torch.ones(8, 4, requires_grad=True), torch.ones(4, 6)
    result = ops.fused_matmul(a, b, epilogue=epilogues.relu() | epilogues.own(square, meaning=meaning))
    with pytest.raises(WorkbenchError, match=rf"epilogue\[1\]\.meaning: {words}"):
        result.sum().backward()


def test_functors_without_a_meaning_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"epilogue\[1\]\.meaning"):
        (epilogues.relu() | epilogues.own(square)).meaning(A)


def test_repr_shows_the_chain() -> None:
    chain = epilogues.add(A) | epilogues.scale(2.0) | epilogues.permuted((8, 4), (1, 0))
    assert repr(chain) == "add(float32 (8, 4)) | scale(2.0) | permuted((8, 4), (1, 0))"
    assert repr(Epilogue()) == "Epilogue()"


def test_a_frame_numbers_rows_and_columns() -> None:
    batch, row, col = Frame((2, 3, 4)).place(torch.device("cpu"))
    assert (batch + 10 * row + 100 * col)[1, 2, 3] == 321


@triton.jit
def to_half(tile, operands, place):
    return tile.to(tl.float16)


@triton.jit
def row_sum(tile, operands, place):
    return tl.sum(tile, 1)


@triton.jit
def nothing(tile, operands, place):
    tile + 1


def test_a_functor_may_make_narrower_floats() -> None:
    a = torch.full((16, 16), 5.0)
    for chain, want in (
        (epilogues.own(to_half) | epilogues.cast(torch.int8), torch.full((16, 16), 5, dtype=torch.int8)),
        (epilogues.own(to_half) | epilogues.gelu(), torch.nn.functional.gelu(a)),
    ):
        torch.testing.assert_close(fused(a, torch.eye(16), chain), want)


@pytest.mark.parametrize(
    ("function", "words"),
    [(row_sum, "functor 0 of the epilogue changes"), (nothing, "functor 0 of the epilogue returns nothing")],
)
def test_functors_that_return_another_shape_or_nothing_are_refused(function: Any, words: str) -> None:
    """Otherwise row sums would be broadcast along the columns."""
    with pytest.raises(KernelError, match=words):
        fused(A, B, epilogues.own(function))


def test_constructors_gated_operations_and_references_have_the_same_activations() -> None:
    """These tables are written out by hand, so an activation could be missing in one of them."""
    made = {name: make().functors[0] for name, make in epilogues.ACTIVATIONS.items()}
    functors = {each.functor for each in activations.ACTIVATIONS.values()} - {None}
    assert {one.function for one in made.values()} == functors
    assert [one.name for one in made.values()] == list(made)
    gated = [f"{name}_gated" for name in activations.ACTIVATIONS if name != "identity"]
    assert list(elementwise.GATED) == gated
    assert list(reference.ACTIVATIONS) == list(activations.ACTIVATIONS)
    assert made.keys() <= FUNCTORS.keys() & UNARY.keys()
