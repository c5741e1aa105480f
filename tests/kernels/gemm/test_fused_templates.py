"""Fused templates agree with their parts one after the other, for any shapes, strides and batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.everything import examples
from tests.kernels.compiled_for import torn_sums
from tests.kernels.gemm.test_gemm import FLOATS
from tests.kernels.inputs import laid, numbers, whole
from tests.kernels.places_in_sass import misplaced
from tests.kernels.results import NOTHING, assert_untouched, guarded
from workbench import device
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, UnknownNameError
from workbench.kernels import reference
from workbench.kernels.choosing import fused_templates as choosing
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.gemm.products import SUPPORTED, why_not
from workbench.launch import Launch, Work
from workbench.lens.compile import compile
from workbench.runtime import interpret

pytestmark = pytest.mark.usefixtures("pretended")

SIZES = [1, 15, 16, 17, 33]

ROWS: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": lambda x, w, b: reference.layer_norm(x, x.shape[-1:], w, b),
    "rms_norm": lambda x, w: reference.rms_norm(x, x.shape[-1:], w, 1e-5),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}
COLUMNS = {"layer_norm": 2, "rms_norm": 1, "softmax": 0, "log_softmax": 0}
REDUCED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "norm": lambda x: x.square().sum(-1).sqrt(),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "argmax": lambda x: x.argmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
}
operators = pytest.mark.parametrize("operator", ROWS)
reductions = pytest.mark.parametrize("reduction", REDUCED)


def near(got: torch.Tensor, want: torch.Tensor, roundings: float = 8) -> None:
    """Assert an error of at most `roundings` roundings of the largest value or 1, in the dtype of `got`."""
    assert got.shape == want.shape
    if got.dtype == torch.int64:
        assert torch.equal(got, want)
    elif got.numel():
        error = (got.double() - want).abs().max().item()
        assert error <= roundings * torch.finfo(got.dtype).eps * max(want.abs().max().item(), 1.0)


def drawn(
    data: st.DataObject, shapes: Sequence[tuple[str, str]]
) -> tuple[dict[str, int], list[torch.Tensor]]:
    """Draw sizes by name, and a tensor of small integers for each shape, some with batches, in any layout."""
    names = sorted(set("".join(rows + cols for rows, cols in shapes)))
    sizes = {name: data.draw(st.sampled_from(SIZES), label=name) for name in names}
    batch = data.draw(st.sampled_from([(), (2,), (2, 3)]), label="batch")
    dtype = data.draw(st.sampled_from(SUPPORTED), label="dtype")
    tensors = []
    for i, (rows, cols) in enumerate(shapes):
        has_batch = i == 0 or data.draw(st.booleans(), label="has a batch")
        shape = (*(batch if has_batch else ()), sizes[rows], sizes[cols])
        layout = data.draw(st.sampled_from(["dense", "transposed", "sliced"]), label="layout")
        tensors.append(laid(whole(*shape, dtype=dtype, seed=i).clamp_(-2, 2), layout))
    return sizes, tensors


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_any_gated_product_agrees_with_float64(data: st.DataObject) -> None:
    _, (a, gate, up) = drawn(data, [("m", "k"), ("k", "n"), ("k", "n")])
    up = up.expand_as(gate) if gate.dim() > up.dim() else up
    gate = gate.expand_as(up)
    name = data.draw(st.sampled_from(list(gemm_gated.ACTIVATIONS)), label="activation")
    want = reference.ACTIVATIONS[name](a.double() @ gate.double()) * (a.double() @ up.double())
    output, memory = guarded(want.shape, torch.float64 if a.dtype == torch.float64 else torch.float32)
    gemm_gated.launch(a, gate, up, activation=name, output=output, tile=(16, 32, 16)).run()
    near(output, want)
    assert_untouched(memory, output)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_any_pair_of_products_is_exact(data: st.DataObject) -> None:
    """The first product is rounded as if it were stored in memory."""
    _, (a, b0, b1) = drawn(data, [("m", "k"), ("k", "l"), ("l", "n")])
    name = data.draw(st.sampled_from(["identity", "relu"]), label="activation")
    tile = data.draw(st.sampled_from([(16, 32, 16, 16), (16, 16, 64, 32)]), label="tile")
    first = reference.ACTIVATIONS[name](a.double() @ b0.double()).to(a.dtype)
    want = first.double() @ b1.double()
    output, memory = guarded(want.shape, torch.float64 if a.dtype == torch.float64 else torch.float32)
    gemm_pair.launch(a, b0, b1, activation=name, output=output, tile=tile).run()
    assert torch.equal(output.double(), want)
    assert_untouched(memory, output)


@pytest.mark.parametrize("name", gemm_pair.ACTIVATIONS)
def test_pairs_of_infinity_and_nan_agree_with_torch(name: str) -> None:
    """Tiles hang over the end of the first product's columns; columns beyond the end count as 0."""
    a = torch.ones(4, 4)
    a[0, 0], a[1, 1], a[2, 2] = float("inf"), float("-inf"), float("nan")
    for size in (8, 16, 24):
        b0, b1 = whole(4, size).abs() + 1, torch.ones(size, 4)
        # In fp64, because vectorized torch on a CPU gives NaN for gelu of infinity in fp32.
        want = reference.ACTIVATIONS[name](a.double() @ b0.double()) @ b1.double()
        for between in (16, 32):
            for described in (False, True):
                tile = (16, 16, 16, between)
                one = gemm_pair.launch(a, b0, b1, activation=name, tile=tile, descriptors=described)
                torch.testing.assert_close(one.run()[0], want.float(), equal_nan=True)


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_row_operator_of_a_product_agrees_with_float64(data: st.DataObject) -> None:
    """The launch has one kernel, one kernel with tiles of two parts, or two kernels."""
    sizes, (a, b) = drawn(data, [("m", "k"), ("k", "n")])
    operator = data.draw(st.sampled_from(list(ROWS)), label="operator")
    tile = data.draw(st.sampled_from([(16, 64, 16), (16, 16, 16), (16, 192, 16)]), label="tile")
    columns = [whole(sizes["n"], seed=5 + i).clamp_(-2, 2) for i in range(COLUMNS[operator])]
    product = a.double() @ b.double()
    output, memory = guarded(product.shape, torch.float64 if a.dtype == torch.float64 else torch.float32)
    one = gemm_rows.launch(operator, a, b, *columns, epsilon=1e-5, output=output, tile=tile)
    assert len(one.steps) == (1 if tile[1] >= sizes["n"] else 2)
    one.run()
    near(output, ROWS[operator](product, *[t.double() for t in columns]), 32)
    assert_untouched(memory, output)


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_reduction_of_a_product_agrees_with_float64(data: st.DataObject) -> None:
    sizes, (a, b) = drawn(data, [("m", "k"), ("k", "n")])
    reduction = data.draw(st.sampled_from(list(REDUCED)), label="reduction")
    tile = data.draw(st.sampled_from([(16, 64, 16), (16, 16, 16)]), label="tile")
    want = REDUCED[reduction](a.double() @ b.double())
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    output = torch.empty_like(want) if reduction == "argmax" else torch.full_like(want, NOTHING, dtype=dtype)
    one = gemm_rows.launch_reduction(reduction, a, b, output=output, tile=tile)
    assert len(one.steps) == (1 if tile[1] >= sizes["n"] else 2)
    near(one.run()[0], want)


@operators
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cols", [64, 16])
def test_row_operators_of_normal_numbers_are_within_24_roundings_of_float64(
    operator: str, dtype: torch.dtype, cols: int
) -> None:
    """Two kernels round the product before the row operator; the exact operator gets it rounded, too."""
    a, b = numbers(20, 24, dtype=dtype), numbers(24, 50, dtype=dtype, seed=1)
    columns = [numbers(50, dtype=dtype, seed=5 + i) for i in range(COLUMNS[operator])]
    product = a.double() @ b.double()
    if cols < 50:
        product = (a.float() @ b.float()).to(dtype).double() if dtype != torch.float64 else product
    one = gemm_rows.launch(operator, a, b, *columns, epsilon=1e-5, tile=(16, cols, 16))
    # Sums in another order may round the product differently, which exp magnifies.
    near(one.run()[0], ROWS[operator](product, *[t.double() for t in columns]), 8 if cols > 50 else 24)


def test_moments_keep_their_digits_where_the_mean_is_large() -> None:
    """Rows are large numbers plus noise, where a difference of squares would have no correct digit."""
    a = torch.cat([numbers(16, 8), torch.full((16, 1), 1.0)], 1)
    b = torch.cat([numbers(8, 70, seed=1), torch.full((1, 70), 1e4)])
    want = reference.layer_norm((a @ b).double(), (70,))
    for cols in (128, 32):
        got = gemm_rows.launch("layer_norm", a, b, epsilon=1e-5, tile=(16, cols, 16)).run()[0]
        assert (got - want).abs().max() < 5e-3


@reductions
def test_reductions_of_infinity_and_nan_agree_with_torch(reduction: str) -> None:
    inf, nan = float("inf"), float("nan")
    a = torch.eye(16)[:10]
    b = whole(16, 40).clamp_(-3, 3)
    b[0, 3], b[1, 30], b[2, 3], b[3] = inf, -inf, nan, -inf
    b[5], b[6], b[6, 20], b[7, 30], b[7, 3], b[8, 39], b[9] = nan, -inf, nan, inf, nan, inf, inf
    # Each row is a product of its own, with K = 1, because 0 times infinity is NaN.
    for cols in (64, 16):
        for row in range(10):
            one = a[row : row + 1, row : row + 1], b[row : row + 1]
            got = gemm_rows.launch_reduction(reduction, *one, tile=(16, cols, 16)).run()[0]
            torch.testing.assert_close(got, REDUCED[reduction](one[0] @ one[1]), equal_nan=True)


@operators
def test_row_operators_of_infinity_and_nan_agree_with_torch(operator: str) -> None:
    inf, nan = float("inf"), float("nan")
    a, b = torch.tensor([[1.0], [nan], [inf], [-inf]]), torch.ones(1, 40)
    columns = [numbers(40, seed=5 + i) for i in range(COLUMNS[operator])]
    for cols in (64, 16):
        got = gemm_rows.launch(operator, a, b, *columns, epsilon=1e-5, tile=(16, cols, 16)).run()[0]
        torch.testing.assert_close(got, ROWS[operator](a @ b, *columns), equal_nan=True)


@pytest.mark.parametrize("cols", [16, 64])
def test_argmax_of_equals_is_the_first(cols: int) -> None:
    a, b = torch.ones(3, 2), torch.ones(2, 50)
    b[:, [7, 20, 33]] = 2
    assert gemm_rows.launch_reduction("argmax", a, b, tile=(16, cols, 16)).run()[0].tolist() == [7] * 3


def every_template(m: int = 40, n: int = 50, k: int = 24, **options: Any) -> list[Launch]:
    a, b, c = numbers(m, k), numbers(k, n, seed=1), numbers(n, 20, seed=2)
    w = numbers(n, seed=3)
    return [
        gemm_gated.launch(a, b, b.flip(1), tile=(16, 32, 16), **options),
        gemm_pair.launch(a, b, c, tile=(16, 32, 16, 16), **options),
        gemm_rows.launch("layer_norm", a, b, w, w, epsilon=1e-5, tile=(16, 64, 16), **options),
        gemm_rows.launch("softmax", a, b, tile=(16, 16, 16), **options),
        gemm_rows.launch_reduction("logsumexp", a, b, tile=(16, 16, 16), **options),
    ]


def test_results_are_the_same_bits_in_any_order_of_programs() -> None:
    seed = random.randrange(2**32)
    for one in every_template():
        (want,) = one.run()
        (got,) = interpret(one, poison=True, seed=seed).outputs
        assert torch.equal(got, want), f"shuffled by seed {seed}: {one}"


def test_descriptors_give_the_same_bits_as_pointers() -> None:
    for size in (32, 40):
        for plain, described in zip(
            every_template(32, size, size), every_template(32, size, size, descriptors=True), strict=True
        ):
            assert all(described.steps[0].meta["DESCRIPTORS"])
            assert torch.equal(plain.run()[0], described.run()[0])
    a, gate = numbers(32, 32).half(), numbers(32, 32, seed=1).half().mT  # contiguous along k
    pairs = [
        gemm_gated.launch(a, gate, gate, tile=(16, 16, 16), descriptors=on).run()[0] for on in (True, False)
    ]
    assert torch.equal(*pairs)


def test_empty_k_gives_zeros_and_empty_results_launch_nothing() -> None:
    a, b = torch.empty(3, 0), torch.empty(0, 5)
    assert torch.equal(gemm_gated.launch(a, b, b).run()[0], torch.zeros(3, 5))
    assert torch.equal(gemm_pair.launch(a, b, torch.ones(5, 4)).run()[0], torch.zeros(3, 4))
    assert torch.equal(gemm_pair.launch(torch.ones(3, 4), torch.ones(4, 0), b).run()[0], torch.zeros(3, 5))
    assert torch.equal(gemm_rows.launch("softmax", a, b).run()[0], torch.full((3, 5), 0.2))
    assert torch.equal(gemm_rows.launch_reduction("argmax", a, b).run()[0], torch.zeros(3).long())
    none = torch.empty(0, 4)
    for one in (
        gemm_gated.launch(none, torch.ones(4, 2), torch.ones(4, 2)),
        gemm_pair.launch(none, torch.ones(4, 2), torch.ones(2, 3)),
        gemm_rows.launch("softmax", none, torch.ones(4, 2)),
        gemm_rows.launch_reduction("sum", none, torch.ones(4, 2)),
    ):
        assert one.steps == ()
        assert one.run()[0].numel() == 0


def test_far_rows_take_64_bit_offsets() -> None:
    """There is one row, so its stride of 2**31 touches no memory."""
    far = 2**31
    a, b = whole(1, 20).as_strided((1, 20), (far, 1)), whole(20, 30, seed=1)
    for one, want in (
        (gemm_gated.launch(a, b, b, activation="relu", tile=(16, 16, 16)), torch.relu(a @ b) * (a @ b)),
        (gemm_pair.launch(a, b, b.mT, tile=(16, 16, 16, 16)), a @ b @ b.mT),
        (gemm_rows.launch_reduction("sum", a, b, tile=(16, 16, 16)), (a @ b).sum(-1)),
    ):
        assert one.steps[0].meta["WIDE"]
        assert torch.equal(one.run()[0], want)
        assert not any(step.problem for step in compile(one, "sm_90"))


@pytest.mark.parametrize("n", [2, 30])
def test_gated_operands_in_two_layouts_are_read_at_their_own_addresses(n: int) -> None:
    """Operands are contiguous along K and along N, at odd pitches that no asynchronous copy takes."""
    a = torch.empty(239, 787, dtype=torch.float16)
    gate, up = torch.empty(n, 787, dtype=a.dtype).t(), torch.empty(787, n, dtype=a.dtype)
    with device.planning_for("sm_90"):
        how = choosing.gated(a, gate, torch.empty(239, n, dtype=a.dtype))
    (step,) = compile(gemm_gated.launch(a, gate, up, **how.keywords), "sm_90")
    assert not misplaced(step.stages["sass"])
    assert not torn_sums(step.stages["sass"])


def test_work_counts_products_and_row_operators() -> None:
    a, b, c = (torch.empty(*shape, dtype=torch.float16) for shape in ((8, 4), (4, 6), (6, 2)))
    assert gemm_gated.launch(a, b, b).work == Work(2 * 2 * 8 * 4 * 6 + 2 * 48, 2 * (32 + 2 * 24 + 48))
    assert gemm_pair.launch(a, b, c).work == Work(2 * 8 * 6 * (4 + 2), 2 * (32 + 24 + 12 + 16))
    assert gemm_rows.launch("softmax", a, b).work == Work((2 * 4 + 5) * 48, 2 * (32 + 24 + 48))
    assert gemm_rows.launch_reduction("argmax", a, b).work == Work((2 * 4 + 1) * 48, 2 * (32 + 24) + 8 * 8)


A, B, C, V = whole(8, 4), whole(4, 6), whole(6, 3), torch.ones(6)
NO_TENSOR: Any = [3, 8]
REFUSED: list[tuple[Callable[..., Launch], tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (gemm_gated.launch, (A, B, B[:, :5]), {}, TensorMismatchError, "up"),
    (gemm_gated.launch, (A, C, C), {}, TensorMismatchError, "4 and 6 along K"),
    (gemm_gated.launch, (A, B, NO_TENSOR), {}, ArgumentTypeError, "up: got"),
    (gemm_gated.launch, (A, B, B), {"activation": "swish"}, UnknownNameError, "silu"),
    (gemm_gated.launch, (A, B, B), {"tile": (16, 48, 16)}, InvalidArgumentError, r"tile\[1\]: got 48"),
    (gemm_gated.launch, (A, B, B), {"tile": (16, 16)}, InvalidArgumentError, "tile: got"),
    (gemm_gated.launch, (A, B, B), {"output": torch.empty(8, 5)}, TensorMismatchError, "output: shape"),
    (gemm_gated.launch, (A, B, B), {"output": torch.empty(8, 6).int()}, TensorMismatchError, "int32"),
    (gemm_gated.launch, (A, B.half(), B), {}, TensorMismatchError, "gate is torch.float16"),
    (gemm_gated.launch, (A.int(), B.int(), B.int()), {}, TensorMismatchError, "int32; supported"),
    (gemm_pair.launch, (A, B, B), {}, TensorMismatchError, "6 columns, b1 4 rows"),
    (gemm_pair.launch, (A, B, C), {"tile": (16, 16, 16)}, InvalidArgumentError, "tile: got"),
    (gemm_pair.launch, (A, B, C), {"tiles": (16, 16, 16, 16)}, ArgumentTypeError, "tiles: launch has"),
    (gemm_pair.launch, (A, B, C.to("meta")), {}, TensorMismatchError, "b1 is meta"),
    (gemm_rows.launch, ("layernorm", A, B), {}, UnknownNameError, "layer_norm"),
    (gemm_rows.launch, ("softmax", A, B, V), {}, TensorMismatchError, "no weight. Leave out"),
    (gemm_rows.launch, ("rms_norm", A, B, V, V), {}, TensorMismatchError, "Give rms_norm a weight or n"),
    (gemm_rows.launch, ("layer_norm", A, B, None, V), {}, TensorMismatchError, "without a weight"),
    (gemm_rows.launch, ("layer_norm", A, B, V[:5]), {}, TensorMismatchError, "6 columns"),
    (gemm_rows.launch, ("layer_norm", A, B, V.to("meta")), {}, TensorMismatchError, "weight is on meta"),
    (
        gemm_rows.launch, ("layer_norm", A, B, torch.ones(12)[::2]), {}, TensorMismatchError,
        r"stride of 2, so it is not contiguous\. Give layer_norm weight and bias, a weight alone or",
    ),
    (gemm_rows.launch, ("softmax", A, B), {"epsilon": "0"}, ArgumentTypeError, "epsilon"),
    (
        gemm_rows.launch, ("softmax", A, whole(4, 200)), {"tile": (16, 192, 16)}, InvalidArgumentError,
        "power of two, or all columns: 200",
    ),
    (gemm_rows.launch_reduction, ("max", A, B), {}, UnknownNameError, "amax"),
    (gemm_rows.launch_reduction, ("sum", A, B[:, :0]), {}, TensorMismatchError, "nothing to reduce"),
    (
        gemm_rows.launch_reduction, ("argmax", A, B), {"output": torch.empty(8)}, TensorMismatchError, "int64"
    ),
    (gemm_rows.launch_reduction, ("sum", A, B), {"output": torch.empty(7)}, TensorMismatchError, "output"),
    (
        gemm_rows.launch_reduction, ("sum", A, B), {"output": torch.empty(16)[::2]}, TensorMismatchError,
        r"strides \(2,\)",
    ),
    (gemm_rows.launch_reduction, ("sum", A, B), {"precision": "tf64"}, UnknownNameError, "tf32"),
]  # fmt: skip


@pytest.mark.parametrize(("launch", "args", "options", "error", "says"), REFUSED)
def test_invalid_arguments_are_refused(
    launch: Callable[..., Launch],
    args: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        launch(*args, **options)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (torch.ones(4, dtype=torch.float32), "has 1 dimensions, not a matrix's two"),
        (torch.eye(4).to_sparse(), "is not a plain strided tensor"),
        (torch.ones(4, 4, dtype=torch.complex64).conj().imag, "is not a plain strided tensor"),
        (torch.ones(4, 4, dtype=torch.int32), "is torch.int32; supported: "),
        (torch.ones(4, 4, dtype=torch.float16), "a is torch.float32, b is torch.float16"),
    ],
)
def test_fused_templates_name_unsupported_operands(matrix: torch.Tensor, words: str) -> None:
    assert words in why_not(a=torch.ones(4, 4), b=matrix)
    assert not why_not(a=torch.ones(4, 4), b=torch.ones(4, 4))
