"""Properties of every differentiable operator: saved tensors, batched gradients, negated views."""

from __future__ import annotations

import gc
import importlib
import itertools
import pkgutil
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap

from tests.everything import some_of
from tests.ops.differentiable import CASES, Case
from workbench import ops
from workbench.errors import TensorMismatchError
from workbench.kernels import epilogues
from workbench.ops.gradients import once_differentiable

NAN = float("nan")

# The operators share the code behind these properties, so half of them are tested on every change.
SOME = some_of(list(CASES), 32)


def subsets(case: Case) -> Iterator[tuple[bool, ...]]:
    """Yield choices of tensors that require grad; of five or more, one, all, or all but one."""
    for chosen in itertools.product((False, True), repeat=case.followed):
        is_one_of_few = case.followed < 5 or sum(chosen) in (1, case.followed - 1, case.followed)
        if any(chosen) and is_one_of_few:
            yield chosen + (False,) * case.fixed


def followed(case: Case, chosen: tuple[bool, ...]) -> list[torch.Tensor]:
    return [t.requires_grad_(is_chosen) for t, is_chosen in zip(case.tensors(), chosen, strict=True)]


def result_and_kept(function: Any, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, set[int]]:
    """Return the result, and which of the tensors are kept for the backward pass."""
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*tensors)
    return result, {i for i, t in enumerate(tensors) if t.untyped_storage().data_ptr() in kept}


def gradients(
    result: torch.Tensor, tensors: list[torch.Tensor], retain_graph: bool = False
) -> tuple[torch.Tensor, ...]:
    grad = torch.linspace(-1, 2, result.numel()).view(result.shape).to(result.dtype)
    leaves = [t for t in tensors if t.requires_grad]
    return torch.autograd.grad(result, leaves, grad, retain_graph=retain_graph)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers behind a pending negation, or conjugation if they are complex."""
    if tensor.is_complex():
        view = tensor.conj_physical().conj()
        assert view.is_conj()
    else:
        view = torch.imag(torch.complex(torch.zeros_like(tensor), -tensor).conj())
        assert view.is_neg()
    assert torch.equal(view, tensor)
    return view


def test_every_differentiable_function_is_tested() -> None:
    recorded = {}
    for module in pkgutil.iter_modules(ops.__path__):
        members = vars(importlib.import_module(f"{ops.__name__}.{module.name}"))
        for name, each in members.items():
            if isinstance(function := getattr(each, "function", None), type):
                assert issubclass(function, torch.autograd.Function)
                recorded[function] = f"{module.name}.{name}"
    seen = set()
    for case in CASES.values():
        nodes = [case.ours(*followed(case, next(iter(reversed([*subsets(case)]))))).grad_fn]
        while nodes:
            node = nodes.pop()
            if node is not None:
                seen.add(getattr(node, "_forward_cls", None))
                nodes += [before for before, _ in node.next_functions]
    # It computes the gradients of a convolution, so that they have gradients too, and has no node in a graph
    # of first derivatives; the gradgradcheck in test_convolution.py tests it.
    assert {recorded[each] for each in recorded.keys() - seen} == {"convolution._followed_product"}


@pytest.mark.parametrize("name", CASES)
def test_only_tensors_that_gradients_read_are_kept(name: str) -> None:
    """Gradients do not change when tensors that are not kept do; torch keeps all that we keep."""
    case = CASES[name]
    for chosen in subsets(case):
        theirs = followed(case, chosen)
        result, kept_by_torch = result_and_kept(case.theirs, theirs)
        want = gradients(result, theirs)
        tensors = followed(case, chosen)
        result, kept = result_and_kept(case.ours, tensors)
        if not case.recomputes:
            assert kept <= kept_by_torch, chosen
        with torch.no_grad():
            for i, tensor in enumerate(tensors):
                if i not in kept:
                    tensor.fill_(NAN)
        for ours, torchs in zip(gradients(result, tensors), want, strict=True):
            torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_every_tensor_that_is_kept_is_read_and_guarded(name: str) -> None:
    """A change in place of a kept tensor raises, as in torch."""
    case = CASES[name]
    for chosen in subsets(case):
        if 1 < sum(chosen) < case.followed:
            continue  # they keep the union of what single tensors keep
        tensors = followed(case, chosen)
        result, kept = result_and_kept(case.ours, tensors)
        want = gradients(result, tensors)
        for changed in kept:
            again = followed(case, chosen)
            result = case.ours(*again)
            again[changed].data.mul_(-3)  # autograd does not see this change
            got = gradients(result, again, retain_graph=True)
            assert not all(map(torch.equal, got, want)), (chosen, changed)
            with torch.no_grad():
                again[changed].mul_(-3)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradients(result, again)


@pytest.mark.parametrize("name", CASES)
def test_changing_a_result_raises_or_leaves_gradients_right(name: str) -> None:
    """After a change of a result that its gradient reads, the gradient raises."""
    case = CASES[name]
    tensors = followed(case, (True,) * case.followed + (False,) * case.fixed)
    want = gradients(case.ours(*tensors), tensors)
    result = case.ours(*tensors)
    with torch.no_grad():
        result.fill_(NAN)
    try:
        got = gradients(result, tensors)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017  # some cases do not raise
    else:
        torch.testing.assert_close(got, want)


def test_results_may_be_changed_in_place() -> None:
    """Autograd forbids to change a view that a Function returns; torch returns no views here either."""
    image = torch.randn(2, 4, 6, 2).to(memory_format=torch.channels_last).requires_grad_()
    heads = torch.randn(1, 5, 2, 4).transpose(1, 2).requires_grad_()
    for result in (
        ops.pixel_shuffle(image, 2), ops.pixel_unshuffle(image, 2), ops.pixel_shuffle(image[0], 2),
        ops.scaled_dot_product_attention(heads, heads, heads),
        ops.scaled_dot_product_attention(heads[0], heads[0], heads[0]),
    ):  # fmt: skip
        result.mul_(2)
        assert not result.is_leaf
    (grad,) = torch.autograd.grad(ops.pixel_shuffle(image, 2).mul_(3).sum(), image)
    assert torch.equal(grad, torch.full_like(grad, 3.0))


NOT_FOLLOWED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: ops.matmul(x, x.mT),
    "matmul, a vector": lambda x: ops.matmul(x, x[0, 0]),
    "linear": lambda x: ops.linear(x[0], x[0], x[0, :, 0]),
    "linear of a batch": lambda x: ops.linear(x, x[0]),
    "logsumexp": lambda x: ops.logsumexp(x, 1),
    "max_pool2d": lambda x: ops.max_pool2d(x, 2),
    "avg_pool2d": lambda x: ops.avg_pool2d(x, 2),
    "unfold": lambda x: ops.unfold(x, 2),
    "conv2d": lambda x: ops.conv2d(x, x[None, :, :2, :2]),
    "conv_transpose2d": lambda x: ops.conv_transpose2d(x, x[:, None, :2, :2]),
    "conv1d, taps in channels_last": lambda x: ops.conv1d(x, x[:, :2].clone().mT),
    "fused_conv2d": lambda x: ops.fused_conv2d(x, x[None, :, :2, :2], epilogue=epilogues.relu()),
    "matmul_norm": lambda x: ops.matmul_norm(x, x, keepdim=True),
    "attention of two dimensions": lambda x: ops.scaled_dot_product_attention(x[0], x[0], x[0]),
    "attention of three": lambda x: ops.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_results_made_under_no_grad_can_be_multiplied_in_place_by_a_tensor_that_requires_grad(
    name: str,
) -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    with torch.no_grad():
        result = NOT_FOLLOWED[name](torch.randn(3, 4, 4))
        total = result.sum()
    result.mul_(factor)
    (grad,) = torch.autograd.grad(result.sum(), factor)
    torch.testing.assert_close(grad, total)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norms_of_half_precision_save_no_fp32_copy_of_their_input(norm: str) -> None:
    """Half-precision inputs with a weight in fp32 are multiplied in fp32, and no fp32 copy is saved."""
    x, weight = torch.randn(3, 4).half().requires_grad_(), torch.randn(4, requires_grad=True)
    kept: list[torch.dtype] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == x.shape:
            kept.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = getattr(ops, norm)(x, (4,), weight)
    assert kept == [torch.float16]
    gradients = torch.autograd.grad(result, (x, weight), torch.ones_like(result))
    assert [each.dtype for each in gradients] == [torch.float16, torch.float32]


@pytest.mark.parametrize("name", SOME)
def test_a_graph_releases_tensors_without_gradients_after_its_backward(name: str) -> None:
    """The graph of a living result releases operands without gradients, functors and hooks."""
    case = CASES[name]
    for chosen in subsets(case):
        if sum(chosen) > 1:
            continue
        tensors = followed(case, chosen)
        others = [weakref.ref(t) for t in tensors if not t.requires_grad]
        result = case.ours(*tensors)
        del tensors
        result.backward(torch.ones_like(result))
        if any(other() is not None for other in others):
            gc.collect()  # frames of the interpreter may hold them
        assert all(other() is None for other in others), chosen


@pytest.mark.parametrize("name", SOME)
def test_vmap_agrees_with_single_calls(name: str) -> None:
    """The operator is mapped over its first tensor, and its gradient over gradients of the result."""
    case = CASES[name]
    tensors = case.tensors()
    batch = torch.stack([tensors[0], 2 * tensors[0]])
    got = torch.func.vmap(lambda t: case.ours(t, *tensors[1:]))(batch)
    torch.testing.assert_close(got, torch.stack([case.ours(each, *tensors[1:]) for each in batch]))
    leaf = tensors[0].requires_grad_()
    result = case.ours(leaf, *tensors[1:])
    grads = torch.randn(2, *result.shape, dtype=result.dtype)

    def of_one(grad: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(result, leaf, grad, retain_graph=True)[0]

    torch.testing.assert_close(torch.func.vmap(of_one)(grads), torch.stack([of_one(each) for each in grads]))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "softmax"])
def test_vmap_of_an_empty_batch_puts_0_before_the_shape_of_one_result(name: str) -> None:
    none = torch.ones(0, 2, 4, 3)
    for function in (lambda t: getattr(ops, name)(t, 1), lambda t: ops.add(t, t)):
        got = torch.func.vmap(function)(none)
        assert got.shape == (0, *function(none.new_ones(none.shape[1:])).shape)


def test_the_gradient_of_a_frozen_batch_norm_of_one_channel_has_torchs_strides() -> None:
    wide = torch.randn(2, 2, 3, 5).contiguous(memory_format=torch.channels_last)
    for x in (wide[:, :1], wide[:, :1].clone(memory_format=torch.channels_last)):
        strides = []
        for function in (ops.batch_norm, torch.nn.functional.batch_norm):
            leaf = x.detach().requires_grad_()
            result = function(leaf, torch.zeros(1), torch.ones(1))
            strides.append(torch.autograd.grad(result, leaf, torch.ones(result.shape))[0].stride())
        assert strides[0] == strides[1]


def test_a_batch_of_gradients_is_seen_in_another_thread() -> None:
    """Gradients on a GPU are computed in another thread, which does not know of a vmap around it."""
    weight = torch.randn(4)

    def doubled(grad: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(
            target=lambda: found.append(once_differentiable(lambda g, w: 2 * g * w, grad, weight))
        )
        thread.start()
        thread.join()
        return found[0]

    grads = torch.randn(2, 3, 4)
    nested = _vmap(_vmap(doubled))(grads)
    assert torch.equal(nested, 2 * grads * weight)


@pytest.mark.parametrize("name", SOME)
def test_batched_gradients_equal_single_ones(name: str) -> None:
    case = CASES[name]
    for chosen in subsets(case):
        if sum(chosen) == 1 or sum(chosen) == case.followed:
            assert_batched_gradients(case, chosen)


def assert_batched_gradients(case: Case, chosen: tuple[bool, ...]) -> None:
    tensors, theirs = followed(case, chosen), followed(case, chosen)
    result, torchs = case.ours(*tensors), case.theirs(*theirs)
    generator = torch.Generator().manual_seed(2)
    grads = torch.randn(3, *result.shape, generator=generator, dtype=result.dtype)
    leaves = [[t for t in some if t.requires_grad] for some in (tensors, theirs)]
    got = torch.autograd.grad(result, leaves[0], grads, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(torchs, leaves[1], grad, retain_graph=True) for grad in grads]
    for ours, want in zip(got, map(torch.stack, zip(*one_by_one, strict=True)), strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-5)
    # The same with a graph of the gradients.
    followed_too = torch.autograd.grad(result, leaves[0], grads, is_grads_batched=True, create_graph=True)
    for ours, want in zip(followed_too, got, strict=True):
        torch.testing.assert_close(ours, want)


@pytest.mark.parametrize("name", [name for name in SOME if not CASES[name].complex])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_jacobians_agree_with_torch(name: str) -> None:
    """`autograd.functional.jacobian` uses torch's older vmap; `torch.func.jacrev` uses the newer one."""
    case = CASES[name]
    tensors, others = case.tensors()[: case.followed], case.tensors()[case.followed :]
    of_ours, of_torch = (lambda *some, f=f: f(*some, *others).flatten()[:3] for f in (case.ours, case.theirs))
    want = torch.autograd.functional.jacobian(of_torch, tuple(tensors))
    places = tuple(range(case.followed))
    for got in (
        torch.autograd.functional.jacobian(of_ours, tuple(tensors), vectorize=True),
        torch.func.jacrev(of_ours, places)(*tensors),
    ):
        for ours, torchs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_negated_views_give_the_results_of_their_values(name: str) -> None:
    """Each tensor in turn is a negated view (conjugated if complex), and so is the incoming gradient."""
    case = CASES[name]
    every = next(iter(reversed([*subsets(case)])))
    tensors = followed(case, every)
    leaves = [t for t in tensors if t.requires_grad]
    want = case.ours(*tensors)
    grad = torch.linspace(-1, 2, want.numel()).view(want.shape).to(want.dtype)
    wanted = torch.autograd.grad(want, leaves, grad, retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(want, leaves, negated(grad)), wanted))
    for i in range(len(tensors)):
        some = case.tensors()
        some[i] = negated(some[i])
        assert torch.equal(case.ours(*some), want), i  # without a graph
        some = [t.requires_grad_(is_chosen) for t, is_chosen in zip(some, every, strict=True)]
        result = case.ours(*some)
        assert torch.equal(result, want), i
        got = torch.autograd.grad(result, [t for t in some if t.requires_grad], grad)
        assert all(map(torch.equal, got, wanted)), i


@pytest.mark.parametrize("name", SOME)
def test_every_element_of_results_and_gradients_is_written(name: str, uninitialized_is_nan: None) -> None:
    """Rows that belong to no group or sequence are written too."""
    case = CASES[name]
    every = next(iter(reversed([*subsets(case)])))
    (ours, tensors), (theirs, others) = (
        (function(*some), some)
        for function, some in ((f, followed(case, every)) for f in (case.ours, case.theirs))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for got, want in zip(gradients(ours, tensors), gradients(theirs, others), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.fixture
def uninitialized_is_nan() -> Iterator[None]:
    """Let torch.empty fill new memory with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


INTO: dict[str, Callable[..., Any]] = {
    "add": lambda x, out: ops.add(x, x, out=out),
    "matmul": lambda x, out: ops.matmul(x, x, out=out),
    "addmm": lambda x, out: ops.addmm(x, x, x, out=out),
    "softmax": lambda x, out: ops.softmax(x, 1, out=out),
    "logsumexp": lambda x, out: ops.logsumexp(x, 1, out=out),
    "sum": lambda x, out: ops.sum(x, 1, out=out),
    "norm": lambda x, out: ops.norm(x, dim=1, out=out),
    "amax": lambda x, out: ops.amax(x, 1, out=out),
    "max, of two": lambda x, out: ops.max(x, -x, out=out),
    "permute_copy": lambda x, out: ops.permute_copy(x, (1, 0), out=out),
}


@pytest.mark.parametrize("name", INTO)
def test_out_may_be_a_negated_view(name: str) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    want = INTO[name](x, None)
    out = negated(torch.zeros_like(want))
    assert INTO[name](x, out) is out
    assert out.is_neg()
    assert torch.equal(out, want)


def test_running_statistics_may_be_negated_views() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    mean, variance = torch.arange(4.0), torch.arange(1.0, 5.0)
    negated_mean, negated_variance = negated(mean), negated(variance)
    got = ops.batch_norm(x, negated_mean, negated_variance, training=True)
    want = torch.nn.functional.batch_norm(x, mean, variance, training=True)
    for ours, theirs in (got, want), (negated_mean, mean), (negated_variance, variance):
        torch.testing.assert_close(ours, theirs)


def test_vectorized_hessians_agree_with_torch_or_are_refused() -> None:
    """Products and convolutions have second derivatives; other operators refuse in words."""
    generator = torch.Generator().manual_seed(3)
    image, weight = (torch.randn(shape, generator=generator) for shape in ((1, 2, 3, 3), (2, 2, 2, 2)))
    found = [
        torch.autograd.functional.hessian(
            lambda x, w, f=f: f(x, w).pow(2).sum(), (image, weight), vectorize=True
        )
        for f in (ops.conv2d, torch.nn.functional.conv2d)
    ]
    for ours, theirs in zip(*found, strict=True):
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(TensorMismatchError, match="a second derivative, which this operator does not have"):
        torch.autograd.functional.hessian(
            lambda x: ops.softmax(x, 0).pow(2).sum(), torch.randn(4, generator=generator), vectorize=True
        )
