"""The pages of operators: errors of arguments and sizes, accuracy, and switches of precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workbench import ops, profiler
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError, WorkbenchError
from workbench.kernels import epilogues
from workbench.operators.accuracy import Accuracy, added, convolution_precision, matmul_precision
from workbench.operators.arguments import Arguments, given
from workbench.operators.registry import named
from workbench.operators.spec import list_instances

IMAGE, TAPS, MATRIX = torch.ones(2, 4, 6, 6), torch.ones(8, 4, 3, 3), torch.ones(4, 6)
HEADS = torch.ones(1, 2, 8, 16)
CASTING = epilogues.cast(torch.int8)

# Operator, its arguments, the error, and the argument that the error names.
LISTED: tuple[tuple[str, Arguments, type[WorkbenchError], str], ...] = (
    ("attention", given(HEADS, HEADS, HEADS[:, :, :4]), TensorMismatchError, "query, key, value"),
    ("conv2d", given(IMAGE, torch.ones(8, 3, 3, 3)), TensorMismatchError, "input, weight"),
    ("conv2d", given(IMAGE, torch.ones(8, 4, 7, 3)), TensorMismatchError, "weight"),
    ("conv2d", given(IMAGE, TAPS, torch.ones(7)), TensorMismatchError, "bias"),
    ("fused_conv2d", given(IMAGE, TAPS, epilogue=CASTING), InvalidArgumentError, "epilogue"),
    ("conv_transpose2d", given(IMAGE, TAPS[:4], torch.ones(4)), TensorMismatchError, "bias"),
    ("matmul_softmax", given(MATRIX, MATRIX), TensorMismatchError, "input, other"),
    ("matmul", given(MATRIX, MATRIX), TensorMismatchError, "input, other"),
    ("matmul", given(torch.ones(6), MATRIX.t()), TensorMismatchError, "input, other"),
    ("fused_matmul", given(MATRIX, MATRIX.t(), epilogue=CASTING), InvalidArgumentError, "epilogue"),
    ("layer_norm", given(MATRIX, (4,)), InvalidArgumentError, "normalized_shape"),
    ("layer_norm", given(MATRIX, ()), InvalidArgumentError, "normalized_shape"),
    ("max_pool2d", given(IMAGE[0], 2), InvalidArgumentError, "input"),
    ("max_pool2d", given(IMAGE, 7), InvalidArgumentError, "kernel_size, padding"),
    ("avg_pool2d", given(IMAGE, 2, 2, 2), InvalidArgumentError, "kernel_size, padding"),
    ("pad", given(MATRIX, (1, 1, 1)), InvalidArgumentError, "pad"),
    ("pad", given(MATRIX, (1,) * 6), InvalidArgumentError, "pad"),
    ("unfold", given(IMAGE, 7), InvalidArgumentError, "kernel_size"),
    ("norm", given(MATRIX, "nuc"), InvalidArgumentError, "p"),
    ("cross_entropy", given(MATRIX, torch.ones(4, 6)), TensorMismatchError, "target"),
    ("pixel_shuffle", given(IMAGE, 3), TensorMismatchError, "upscale_factor"),
    ("pixel_unshuffle", given(IMAGE, 4), TensorMismatchError, "downscale_factor"),
    ("sum", given(), ArgumentTypeError, "sum"),
    ("sum", given(MATRIX, elements=3), ArgumentTypeError, "sum"),
    ("sum", given([1.0, 2.0]), ArgumentTypeError, "input"),
)


@pytest.mark.parametrize(("name", "arguments", "kind", "argument"), LISTED)
def test_invalid_arguments_are_named(
    name: str, arguments: Arguments, kind: type[WorkbenchError], argument: str
) -> None:
    with pytest.raises(kind) as caught:
        list_instances(named(name), arguments)
    assert str(caught.value).startswith(f"{argument}: ")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["matmul", "matmul_softmax"])
def test_reasons_name_operands_as_the_operator_does(name: str) -> None:
    for other, reason in (
        (MATRIX, "input has shape (4, 6), other (4, 6): 6 and 4 along K"),
        (MATRIX.t().to(torch.complex64), "other is torch.complex64; supported: float16"),
        (MATRIX.t().half(), "input is torch.float32, other is torch.float16"),
    ):
        with pytest.raises(TensorMismatchError) as caught:
            list_instances(named(name), given(MATRIX, other))
        assert str(caught.value).startswith(f"input, other: {reason}")
        assert "Give plain matrices, or batches of them, of one supported dtype" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "case", "key"),
    [
        ("scaled_dot_product_attention", {"h": 4, "h_kv": 3}, "--h_kv"),
        ("scaled_dot_product_attention", {"causal": 2}, "--causal"),
        ("conv2d", {"c": 6, "groups": 4}, "--groups"),
        ("conv2d", {"h": 2, "r": 7, "pad": 1}, "--r"),
        ("conv_transpose2d", {"h": 1, "r": 3, "stride": 1, "pad": 2}, "--pad"),
        ("grouped_mm", {"groups": 100_000}, "--groups"),
        ("group_norm", {"shape": (2, 6, 4, 4), "groups": 4}, "--groups"),
    ],
)
def test_impossible_cases_are_named(name: str, case: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        profiler.arguments_of(name, case)
    assert str(caught.value).startswith(f"{key}: got ")


def test_batch_norm_of_known_statistics_has_instances_without_splits() -> None:
    mean, variance = torch.full((4,), 0.5), torch.full((4,), 4.0)
    x = torch.randn(2, 4, 6, 6)
    found = ops.batch_norm.instances(x, mean, variance)
    assert len(found) > 1
    assert not any("splits" in each.keywords for each in found)
    for each in found:
        (result,) = each.launch().run()
        torch.testing.assert_close(result, (x - 0.5) / (4 + 1e-5) ** 0.5)


def test_the_accuracy_of_linear_counts_its_products_and_bias_and_that_of_amax_is_exact() -> None:
    def accuracy(name: str, *args: Any) -> Accuracy:
        (found,) = named(name).accuracy(*args)
        return found

    assert accuracy("linear", MATRIX, MATRIX).terms == 7  # six products and the bias
    assert accuracy("amax", MATRIX).terms == 0


def test_fp32_precision_follows_torchs_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch, module in (
        (matmul_precision, torch.backends.cuda.matmul),
        (convolution_precision, torch.backends.cudnn.conv),  # type: ignore[attr-defined]
    ):
        before = module.fp32_precision
        try:
            for precision in ("ieee", "tf32"):
                module.fp32_precision = precision
                assert switch() == precision
        finally:
            module.fp32_precision = before


def test_accuracies_of_added_results_have_the_deviation_of_their_sum() -> None:
    each = Accuracy(9, 3.0, torch.tensor([3.0, 0.0]), is_sum=True)
    assert added([each]) is each
    both = added([each, Accuracy(16, 4.0, 4.0)])
    assert (both.terms, both.least, both.is_sum) == (25, 5.0, False)
    assert torch.equal(torch.as_tensor(both.between), torch.tensor([5.0, 4.0]))
    assert added([Accuracy(1, between=3.0), Accuracy(1, between=4.0)]).between == 5.0
