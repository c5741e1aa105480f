"""What a warm call of each operator costs the CPU, beside torch's: forward, and with its backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from workbench import comparing, device
from workbench.bench.timing import launch_overheads
from workbench.errors import InvalidArgumentError, check_name
from workbench.operators.arguments import Arguments, map_tensors, tensors_of
from workbench.operators.drawing import draw_arguments
from workbench.operators.registry import named, specs
from workbench.operators.spec import OperatorSpec

FORWARD, BOTH = "forward", "forward and backward"

# The head of a table of overheads, whose lines are their texts.
HEAD = f"{'operator':<30} {'passes':<22} {'ours, us':>9} {'torch, us':>9} {'ratio':>6}"

# Calls of a batch: few enough that the GPU's queue of launches is never full.
_CALLS, _BATCHES = 50, 10


class Overhead(NamedTuple):
    """The CPU time of a warm call.

    Attributes:
        op: the operator's name.
        passes: :data:`FORWARD`, or :data:`BOTH` if the call is followed by autograd and is differentiated.
        ours_us: the time of our call, in microseconds.
        torchs_us: the time of torch's.
    """

    op: str
    passes: str
    ours_us: float
    torchs_us: float

    @property
    def ratio(self) -> float:
        """Our time divided by torch's."""
        return self.ours_us / self.torchs_us

    def __str__(self) -> str:
        return f"{self.op:<30} {self.passes:<22} {self.ours_us:9.1f} {self.torchs_us:9.1f} {self.ratio:6.2f}"


def names() -> tuple[str, ...]:
    """Return the names of the operators that have a function and a counterpart in torch."""
    return tuple(
        spec.name for spec in specs().values()
        if spec.aten and spec.of is None and comparing.has_function(spec)
    )  # fmt: skip


def overheads(ops: Sequence[str] = (), *, dtype: str = "bf16") -> Iterator[Overhead]:
    """Yield the CPU times of warm calls, each with the case of its spec for a GPU, measured in turns.

    Args:
        ops: names of operators, see :func:`names`; all by default.
        dtype: the dtype of their tensors.

    Raises:
        UnknownNameError: an operator is unknown, or torch has no counterpart. InvalidArgumentError: it does
            not support the dtype. NotMeasurableError: no GPU runs the kernels here.
    """
    chosen = tuple(ops) or names()
    for name in chosen:
        check_name("operator with a counterpart in torch", name, names())
        if dtype not in named(name).dtypes:
            fix = f"Give one of {', '.join(named(name).dtypes)}."
            raise InvalidArgumentError("dtype", f"{dtype} for {name}", fix)
    for name in chosen:
        yield from _of_operator(named(name), dtype)


def summary(measured: Sequence[Overhead]) -> str:
    """Return the geometric mean and the largest of the ratios, a line for each kind of passes."""
    lines = []
    for passes in (FORWARD, BOTH):
        if some := [one for one in measured if one.passes == passes]:
            worst = max(some, key=lambda one: one.ratio)
            lines.append(
                f"{passes}: geometric mean {mean_ratio(some):.2f} of {len(some)} operators, "
                f"the largest ratio is {worst.ratio:.2f}, of {worst.op}"
            )
    return "\n".join(lines)


def mean_ratio(measured: Sequence[Overhead]) -> float:
    """Return the geometric mean of the ratios."""
    return math.exp(sum(math.log(one.ratio) for one in measured) / len(measured))


def _of_operator(spec: OperatorSpec, dtype: str) -> Iterator[Overhead]:
    arguments = draw_arguments(spec, spec.defaults(is_gpu=True), dtype, device.current().torch_device)
    ours, torchs = comparing.function_of(spec), spec.torch or spec.meaning
    yield _measured(spec, FORWARD, lambda function: _bound(function, arguments), ours, torchs)
    leaves = [each for each in tensors_of(arguments) if is_differentiable(torchs, arguments, each)]
    if leaves:
        for leaf in leaves:
            leaf.requires_grad_()
        yield _measured(spec, BOTH, lambda function: _training(function, arguments, leaves), ours, torchs)


def _measured(
    spec: OperatorSpec,
    passes: str,
    made: Callable[..., Any],
    ours: Callable[..., Any],
    torchs: Callable[..., Any],
) -> Overhead:
    calls = {"ours": made(ours), "torch": made(torchs)}
    costs = launch_overheads(calls, calls=_CALLS, batches=_BATCHES)
    return Overhead(spec.name, passes, costs["ours"], costs["torch"])


def _bound(function: Callable[..., Any], arguments: Arguments) -> Callable[[], Any]:
    args, keywords = arguments
    return lambda: function(*args, **keywords)


def _training(
    function: Callable[..., Any], arguments: Arguments, leaves: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """Return a step of training: the call, its backward pass, and gradients that are set to None."""
    call = _bound(function, arguments)
    gradient = torch.ones_like(_first(call()))

    def step() -> None:
        _first(call()).backward(gradient)
        for leaf in leaves:
            leaf.grad = None

    return step


def _first(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result[0]


def is_differentiable(function: Callable[..., Any], arguments: Arguments, tensor: torch.Tensor) -> bool:
    """Return whether a function is differentiable in one of its tensors; it is called to find out."""
    if not tensor.is_floating_point():
        return False
    followed = map_tensors(arguments, lambda each: each.detach().requires_grad_() if each is tensor else each)
    try:
        return bool(_first(function(*followed.args, **followed.keywords)).requires_grad)
    except RuntimeError:
        return False  # as for running means, which torch refuses to differentiate
