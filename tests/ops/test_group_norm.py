"""Group norm and batch norm against torch: its own samples, and random arguments."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from tests.everything import examples
from tests.ops.refused import assert_refused_as_in_torch
from tests.ops.test_opinfo_rows import outcome
from workbench import lens, ops
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    WorkbenchError,
)
from workbench.kernels.rows import batch_norm, group_norm

NAMES = ["group_norm", "batch_norm"]
OPERATORS = [
    op for op in op_db if op.name in [f"nn.functional.{name}" for name in NAMES] and not op.variant_test_name
]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def rounding_of(dtype: torch.dtype) -> dict[str, Any]:
    """Return the tolerances for results of about 1."""
    eps = torch.finfo(dtype).eps
    return {"rtol": 8 * eps, "atol": (8 if dtype == torch.float16 else 512) * eps}


def copied(sample: Any) -> Any:
    """Return a sample with tensors of its own, since running statistics are changed in place."""
    found = sample.transform(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
    )
    return found


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_opinfo_samples_and_gradients_agree_with_torch(op: Any, dtype: torch.dtype) -> None:
    assert len(OPERATORS) == 2
    torch.manual_seed(0)
    mine = getattr(ops, op.name.split(".")[-1])
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        ours, torchs = copied(sample), copied(sample)
        got, got_gradients = outcome(mine, ours)
        want, want_gradients = outcome(op.op, torchs)
        for mine_of, torchs_of in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
            torch.testing.assert_close(mine_of, torchs_of, equal_nan=True, **rounding_of(dtype))
        for mine_of, torchs_of in zip(ours.args, torchs.args, strict=True):
            if isinstance(mine_of, torch.Tensor):  # the running statistics among them
                torch.testing.assert_close(mine_of, torchs_of, **rounding_of(dtype))


def test_opinfo_error_inputs_are_refused_as_in_torch() -> None:
    (op,) = (op for op in OPERATORS if op.name == "nn.functional.group_norm")
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type) as refused:
            ops.group_norm(sample.input, *sample.args, **sample.kwargs)
        assert isinstance(refused.value, WorkbenchError)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Draw odd channels and sizes, of two to five dimensions, in all layouts."""
    groups = draw(st.sampled_from([1, 2, 3]))
    rank = draw(st.integers(0, 3))
    sizes = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    return {
        "shape": (draw(st.integers(1, 3)), groups * draw(st.sampled_from([1, 2, 5])), *sizes),
        "groups": groups,
        "layout": draw(st.sampled_from(["contiguous", "last", "sliced", "transposed", "expanded"])),
        "vectors": draw(st.sampled_from([(), ("weight",), ("bias",), ("weight", "bias")])),
        "eps": draw(st.sampled_from([1e-5, 0.1])),
    }


def tensors_of(problem: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the input, around 100 so that moments would cancel, and vectors of a value a channel."""
    generator = torch.Generator().manual_seed(0)
    shape, layout = problem["shape"], problem["layout"]

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    if layout == "expanded":
        x = numbers(*shape[:2], *(1 for _ in shape[2:])).expand(shape)
    elif layout == "sliced":
        x = numbers(shape[0], *(2 * n for n in shape[1:]))[
            (slice(None), *(slice(0, 2 * n, 2) for n in shape[1:]))
        ]
    elif layout == "transposed":
        x = numbers(shape[1], shape[0], *shape[2:]).transpose(0, 1)
    else:
        x = numbers(*shape)
    if layout == "last" and len(shape) in LAST:
        x = x.contiguous(memory_format=LAST[len(shape)])
    return x + 100, {name: numbers(shape[1]) for name in problem["vectors"]}


def assert_agrees_with_torch(
    mine: torch.Tensor, torchs: torch.Tensor, leaves: list[torch.Tensor], *, with_strides: bool = True
) -> None:
    """Check results, strides and gradients."""
    torch.testing.assert_close(mine, torchs, rtol=1e-9, atol=1e-9)
    assert mine.stride() == torchs.stride() or not with_strides
    grad = torch.randn(torchs.shape, generator=torch.Generator().manual_seed(1), dtype=torchs.dtype)
    for ours, theirs in zip(
        *(torch.autograd.grad(result, leaves, grad) for result in (mine, torchs)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


@settings(max_examples=examples(30))
@given(problems())
def test_group_norm_agrees_with_torch(problem: dict[str, Any]) -> None:
    x, vectors = tensors_of(problem)
    n, c, *sizes = x.shape
    if n * c // problem["groups"] * torch.Size(sizes).numel() == 1:
        return
    leaves = [t.requires_grad_() for t in (x, *vectors.values())]
    options = {**vectors, "eps": problem["eps"]}
    mine = ops.group_norm(x, problem["groups"], **options)
    if "bias" in vectors:  # without a weight, torch's gradient of the bias fails
        options = {"weight": torch.ones_like(vectors["bias"])} | options
    assert_agrees_with_torch(mine, F.group_norm(x, problem["groups"], **options), leaves)


@settings(max_examples=examples(30))
@given(problems(), st.booleans())
def test_batch_norm_agrees_with_torch(problem: dict[str, Any], training: bool) -> None:
    """Running statistics are compared too, and used by a second call."""
    x, vectors = tensors_of(problem)
    if x.numel() == x.shape[1]:
        return
    leaves = [t.requires_grad_() for t in (x, *vectors.values())]
    options = {**vectors, "eps": problem["eps"], "momentum": 0.3, "training": training}
    running = [torch.full(x.shape[1:2], 99.0, dtype=x.dtype), torch.ones(x.shape[1:2], dtype=x.dtype)]
    theirs = [t.clone() for t in running]
    for _ in range(2):
        mine = ops.batch_norm(x, running[0], running[1], **options)
        assert_agrees_with_torch(mine, F.batch_norm(x, theirs[0], theirs[1], **options), leaves)
        for ours, torchs in zip(running, theirs, strict=True):
            torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of_vectors", [None, torch.float32], ids=["alike", "fp32"])
def test_half_precision_agrees_with_float64_up_to_rounding(
    dtype: torch.dtype, of_vectors: torch.dtype | None
) -> None:
    """Weights or running statistics may be fp32, as in mixed precision."""
    torch.manual_seed(0)
    x = (torch.randn(2, 8, 9, 5) + 30).to(dtype)
    vectors = [torch.rand(8).to(of_vectors or dtype) + 0.5 for _ in range(4)]
    weight, bias, mean, variance = vectors
    y, *others = (t.double() for t in (x, *vectors))
    rounding: dict[str, Any] = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-5}
    got = ops.group_norm(x, 2, weight, bias)
    torch.testing.assert_close(got.double(), F.group_norm(y, 2, others[0], others[1]), **rounding)
    got = ops.batch_norm(x, mean, variance, weight, bias)
    want = F.batch_norm(y, others[2], others[3], others[0], others[1])
    torch.testing.assert_close(got.double(), want, **rounding)
    got = ops.batch_norm(x, mean, variance, weight, bias, training=True)
    want = F.batch_norm(y, others[2], others[3], others[0], others[1], training=True)
    torch.testing.assert_close(got.double(), want, **rounding)
    for ours, theirs in zip((mean, variance), others[2:], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=torch.finfo(ours.dtype).eps * 8, atol=0)


def test_each_gradient_has_its_tensors_dtype() -> None:
    x = torch.randn(2, 4, 3, 3, dtype=torch.float16, requires_grad=True)
    weight, bias = (torch.randn(4, requires_grad=True) for _ in range(2))
    for result in (
        ops.group_norm(x, 2, weight, bias),
        ops.batch_norm(x, None, None, weight, bias, training=True),
    ):
        found = torch.autograd.grad(result.float().square().sum(), (x, weight, bias))
        assert [t.dtype for t in found] == [torch.float16, torch.float32, torch.float32]


def test_a_large_mean_loses_no_digits() -> None:
    """A difference of two moments would lose all digits: 1e4 squared is 2^26.6."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 20, 20) + 1e4
    for last in (False, True):
        y = x.contiguous(memory_format=torch.channels_last) if last else x
        for got, want in (
            (ops.group_norm(y, 3), F.group_norm(x.double(), 3)),
            (
                ops.batch_norm(y, None, None, training=True),
                F.batch_norm(x.double(), None, None, training=True),
            ),
        ):
            assert (got - want).abs().max() < 2**-8  # x itself is rounded to steps of 2^-10


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (3, 6, 20)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {"tile": (1, 16)},
        {"tile": (4, 8), "splits": 3},
        {"tile": (1, 8), "splits": 5},
        {"tile": (8, 128), "programs": 1},
        {"tile": (2, 16), "programs": 2},
    ],
)
def test_every_division_of_the_work_agrees_with_torch(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape, dtype=torch.float64), *torch.randn(2, 6, dtype=torch.float64)
    wanted = F.group_norm(x, 2, weight, bias, 0.1)
    dims = (0, *range(2, x.dim()))
    for format in (torch.contiguous_format, *([torch.channels_last] if x.dim() == 4 else [])):
        y = x.contiguous(memory_format=format)
        output = torch.full_like(y, float("nan"))
        launch = group_norm.launch(
            y, 2, weight, bias, epsilon=0.1, output=output, with_statistics=True, **how
        )
        result, mean, scale = launch.run()
        torch.testing.assert_close(result, wanted)
        grouped = x.reshape(shape[0] * 2, -1)
        torch.testing.assert_close(mean, grouped.mean(1))
        torch.testing.assert_close(scale, (grouped.var(1, correction=0) + 0.1).rsqrt())
        launch = batch_norm.launch(y, weight, bias, epsilon=0.1, output=output.fill_(float("nan")), **how)
        result, mean, scale, variance = launch.run()
        torch.testing.assert_close(result, F.batch_norm(x, None, None, weight, bias, True, 0.1, 0.1))
        torch.testing.assert_close(mean, x.mean(dims))
        torch.testing.assert_close(variance, x.var(dims))


def test_nan_stays_in_its_group_or_channel() -> None:
    x = torch.randn(2, 6, 4, 4)
    x[1, 3, 2, 2] = float("nan")
    for y in (x, x.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(ops.group_norm(y, 3).isnan(), F.group_norm(x, 3).isnan())
        ours = ops.batch_norm(y, None, None, training=True)
        assert torch.equal(ours.isnan(), F.batch_norm(x, None, None, training=True).isnan())


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients() -> None:
    x, weight = torch.zeros(0, 4, 3, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    mean, variance = torch.zeros(4), torch.ones(4)
    for result in (
        ops.group_norm(x, 2, weight),
        ops.batch_norm(x, mean, variance, weight, training=True),
        ops.batch_norm(x, mean, variance, weight),
    ):
        assert result.shape == x.shape
        found = torch.autograd.grad(result.sum(), (x, weight))
        assert torch.equal(found[1], torch.zeros(4))
    assert torch.equal(mean, torch.zeros(4))
    assert ops.group_norm(torch.empty(2, 4, 3, device="meta"), 2).is_meta


def test_meta_parameters_do_not_depend_on_the_number_of_images() -> None:
    """A kernel is compiled once for its meta-parameters, so another number of images compiles nothing."""
    for groups, last in ((8, False), (8, True)):
        metas = []
        for images in (9, 10):
            x = torch.zeros(images, 32, 64, 64)
            x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
            launch = group_norm.launch(x, groups, x[0, :, 0, 0].clone(), epsilon=0.1, compute_units=16)
            metas.append([step.meta for step in launch.steps])
        assert metas[0] == metas[1]


# Shapes of stable diffusion and a VAE. Ten channels a group are 20 contiguous bytes: accesses of two halves.
@pytest.mark.parametrize("shape", [(2, 320, 64, 64), (8, 256, 128, 128)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_group_norm_compiles_to_wide_accesses_without_spills(shape: tuple[int, ...], last: bool) -> None:
    """Registers leave room for three programs of 8 warps on a multiprocessor."""
    x = torch.empty(shape, dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    weight = torch.empty(shape[1], dtype=torch.float16)
    launch = group_norm.launch(x, 32, weight, weight, epsilon=1e-5, compute_units=132)
    for step in lens.compile(launch, "sm_90"):
        assert step.spills == 0
        assert step.registers <= 80
        assert step.widest("global load") == (32 if last and shape[1] == 320 else 128)
    assert step.widest("global store") == (32 if last and shape[1] == 320 else 128)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_batch_norm_compiles_to_wide_accesses_without_spills(last: bool) -> None:
    x = torch.empty(32, 64, 56, 56, dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    vectors = [torch.empty(64) for _ in range(4)]
    trained = batch_norm.launch(x, *vectors[:2], epsilon=1e-5, compute_units=132)
    known = batch_norm.launch_known(x, *vectors, epsilon=1e-5, compute_units=132)
    for launch in (trained, known):
        for step in lens.compile(launch, "sm_90"):
            assert step.spills == 0
            assert step.widest("global load") == 128
        assert step.widest("global store") == 128


IMAGE, VECTOR = torch.randn(2, 6, 4, 4), torch.ones(6)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("group_norm", (IMAGE, -1), {}),
        ("group_norm", (IMAGE, 4), {}),
        ("group_norm", (IMAGE, 2.0), {}),
        ("group_norm", (IMAGE, True), {}),
        ("group_norm", (IMAGE[0, :, 0, 0], 2), {}),
        ("group_norm", (IMAGE, 2, VECTOR[:5]), {}),
        ("group_norm", (IMAGE, 2, VECTOR[:, None]), {}),
        ("group_norm", (IMAGE, 2, [1.0] * 6), {}),
        ("group_norm", (IMAGE.int(), 2), {}),
        ("group_norm", (IMAGE[:1, :, 0, 0], 6), {}),
        ("group_norm", (IMAGE, 2, VECTOR.half()), {}),
        ("group_norm", (IMAGE, 2), {"eps": "small"}),
        ("group_norm", (IMAGE, 2), {"eps": 10**400}),
        ("batch_norm", (IMAGE, None, None), {}),
        ("batch_norm", (IMAGE, VECTOR, None), {}),
        ("batch_norm", (IMAGE, VECTOR, None), {"training": True}),
        ("batch_norm", (IMAGE, VECTOR[:5], VECTOR), {}),
        ("batch_norm", (IMAGE, VECTOR.view(2, 3), VECTOR), {}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR[:, None]), {}),
        ("batch_norm", (IMAGE[:, :1], VECTOR[0], VECTOR[0]), {}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR, VECTOR[:5]), {}),
        ("batch_norm", (IMAGE[:1, :, 0, 0], VECTOR, VECTOR), {"training": True}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"momentum": None, "training": True}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"training": 1}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"eps": -1.0}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"eps": 0.0, "training": True}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"eps": None}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"eps": 10**400}),
        ("batch_norm", (IMAGE, VECTOR, VECTOR), {"momentum": 10**400, "training": True}),
        ("batch_norm", (IMAGE.int(), VECTOR, VECTOR), {}),
        ("batch_norm", (IMAGE.double(), VECTOR, VECTOR), {}),
        ("batch_norm", (IMAGE.half(), VECTOR.half(), VECTOR.half(), VECTOR, VECTOR), {}),
        ("batch_norm", (IMAGE, VECTOR.clone().requires_grad_(), VECTOR), {}),
        ("batch_norm", (IMAGE[0, :, 0, 0], VECTOR, VECTOR), {}),
        ("batch_norm", ([1.0], VECTOR, VECTOR), {}),
    ],
)
def test_wrong_arguments_are_refused_as_in_torch(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert_refused_as_in_torch(getattr(ops, name), getattr(F, name), *arguments, **options)


def in_inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("running_mean", torch.zeros(6, 1), r"shape \(6, 1\)"),
        ("running_var", torch.ones(6, 1), r"shape \(6, 1\)"),
        ("running_var", torch.ones(2, 3), r"shape \(2, 3\)"),
        ("running_mean", torch.zeros(1).expand(6), "share memory"),
        ("running_var", torch.ones(1).expand(6), "share memory"),
        ("running_mean", in_inference(torch.zeros(6)), "inference tensor"),
        ("running_var", in_inference(torch.ones(6)), "inference tensor"),
    ],
)
def test_no_running_vector_is_changed_if_one_is_refused(name: str, wrong: torch.Tensor, said: str) -> None:
    running: dict[str, Any] = {"running_mean": torch.zeros(6), "running_var": torch.ones(6), name: wrong}
    before = {each: tensor.clone() for each, tensor in running.items()}
    with pytest.raises(TensorMismatchError, match=f"^{name}: .*{said}"):
        ops.batch_norm(IMAGE, **running, training=True)
    for each, tensor in running.items():
        assert torch.equal(tensor, before[each])


def test_running_vectors_that_are_only_read_may_have_any_strides() -> None:
    """Running vectors may be inference tensors too; in inference mode training updates them."""
    mean, variance = torch.ones(1).expand(6), in_inference(torch.full((6,), 2.0))
    torch.testing.assert_close(ops.batch_norm(IMAGE, mean, variance), F.batch_norm(IMAGE, mean, variance))
    with torch.inference_mode():
        ops.batch_norm(IMAGE, torch.zeros(6), variance, training=True)
    assert not torch.equal(variance, torch.full((6,), 2.0))


def test_errors_name_the_argument_and_its_value() -> None:
    wanted = r"num_groups: got 0 for 6 channels\. Give a positive number that divides 6\."
    with pytest.raises(TensorMismatchError, match=wanted):
        ops.group_norm(IMAGE, 0)
    with pytest.raises(TensorMismatchError, match="weight: on meta, input on cpu"):
        ops.group_norm(IMAGE, 2, VECTOR.to("meta"))
    with pytest.raises(UnsupportedDtypeError, match="int64"):
        ops.batch_norm(IMAGE.long(), VECTOR, VECTOR)
    with pytest.raises(ArgumentTypeError, match="training"):
        ops.batch_norm(IMAGE, VECTOR, VECTOR, training=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="running_mean, running_var"):
        ops.batch_norm(IMAGE, None, VECTOR, training=True)


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    for result in (
        ops.group_norm(x, 2),
        ops.batch_norm(x, None, None, training=True),
        ops.batch_norm(x, VECTOR[:4], VECTOR[:4]),
    ):
        (grad,) = torch.autograd.grad(result.pow(3).sum(), x, create_graph=True)
        with pytest.raises(TensorMismatchError, match="create_graph"):
            torch.autograd.grad(grad.sum(), x)


def test_kept_launches_are_not_used_for_another_epsilon() -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for eps in (1e-5, 0.5, 1e-5):
        torch.testing.assert_close(ops.group_norm(x, 2, eps=eps), F.group_norm(x, 2, eps=eps))
        torch.testing.assert_close(
            ops.batch_norm(x, None, None, training=True, eps=eps),
            F.batch_norm(x, None, None, training=True, eps=eps),
        )


def test_launches_of_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TensorMismatchError, match="4 groups do not divide 6 channels"):
        group_norm.launch(IMAGE, 4, epsilon=0.1)
    with pytest.raises(TensorMismatchError, match="bias: given without a weight"):
        group_norm.launch(IMAGE, 2, None, VECTOR, epsilon=0.1)
    with pytest.raises(TensorMismatchError, match="output"):
        group_norm.launch(IMAGE, 2, epsilon=0.1, output=torch.zeros(6))
    with pytest.raises(TensorMismatchError, match="results"):
        group_norm.launch_backward(IMAGE, IMAGE, 2, None, (VECTOR, VECTOR))
    statistics = group_norm.statistics(IMAGE, 2)
    with pytest.raises(InvalidArgumentError, match="vectors"):
        group_norm.launch_backward(IMAGE, IMAGE, 2, None, statistics, vectors=3)
    with pytest.raises(TensorMismatchError, match="bias: given without a weight"):
        batch_norm.launch(IMAGE, None, VECTOR, epsilon=0.1)
    with pytest.raises(TensorMismatchError, match="x has 1 dimensions"):
        batch_norm.launch_known(VECTOR, VECTOR, VECTOR, epsilon=0.1)
    with pytest.raises(TensorMismatchError, match="gradient"):
        batch_norm.launch_backward(VECTOR, IMAGE, VECTOR, VECTOR)


@pytest.mark.parametrize("name", ["group_norm", "batch_norm"])
def test_any_combination_of_gradients_agrees_with_torch(name: str) -> None:
    """Each subset of input, weight and bias requires grad once."""
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 4, 3, 5), (4,), (4,))]

    def called(module: Any, x: torch.Tensor, *vectors: torch.Tensor) -> Any:
        if name == "group_norm":
            return module.group_norm(x, 2, *vectors)
        return module.batch_norm(x, None, None, *vectors, training=True)

    direction = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    for needs in itertools.product((True, False), repeat=3):
        if any(needs):
            leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
            asked = [leaf for leaf in leaves if leaf.requires_grad]
            ours, torchs = (
                torch.autograd.grad(called(module, *leaves), asked, direction) for module in (ops, F)
            )
            torch.testing.assert_close(ours, torchs)
