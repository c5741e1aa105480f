"""Descriptions of operators for the profiler: an :class:`Operation` each, in the file of its family.

:func:`operations` finds every module of this folder that has a mapping `OPERATIONS`. Nothing else names the
module, so that a new family is one file here. Operators of other places, such as a notebook, are added by
:func:`register`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from workbench import renamed
from workbench.device import on_gpu
from workbench.errors import ArgumentTypeError, InvalidArgumentError, WorkbenchError, check_type
from workbench.launch import Launch

FLOATS = ("fp16", "bf16", "fp32", "fp64")


@dataclass(frozen=True)
class Instance:
    """A named configuration of a template, for the tensors that it was listed for.

    Attributes:
        name: a name that is unique among the instances of a list.
        make: the invoker, with the tensors bound.
        keywords: the other arguments of the invoker.
        is_shipped: whether a call of the operator uses this instance.
    """

    name: str
    make: Callable[..., Launch] = field(repr=False)
    keywords: Mapping[str, Any]
    is_shipped: bool = False

    def launch(self) -> Launch:
        """Return the launch; raise the invoker's error if it does not support these tensors."""
        return self.make(**self.keywords)

    @cached_property
    def why_not(self) -> str:
        """The reason if the invoker refuses such a launch; empty if it makes one."""
        try:
            self.launch()
        except WorkbenchError as error:
            return str(error)
        return ""

    @property
    def is_supported(self) -> bool:
        """True if the invoker makes such a launch; a device may still have too little memory for it."""
        return not self.why_not


class Accuracy(NamedTuple):
    """The accuracy that a result must have; see `bench.accuracy`.

    Attributes:
        terms: the number of terms that an element sums; 0 if it must be exact.
        least: the least size that errors are relative to.
        between: the size of intermediate values that cancel, in the dtype of the arithmetic; one number for
            all elements, or a tensor that broadcasts to them.
        is_sum: whether the result is a sum of products and nothing else, so that it is exact for integers.
    """

    terms: int
    least: float = 0.0
    between: float | torch.Tensor = 0.0
    is_sum: bool = False


EXACT = Accuracy(0)


def matmul_precision() -> str:
    """Return torch's switch for products of fp32: "tf32" if they may be rounded to it."""
    return str(torch.backends.cuda.matmul.fp32_precision)


def convolution_precision() -> str:
    """Return torch's switch for convolutions of fp32: "tf32" if they may be rounded to it."""
    return str(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]  # torch does not type it


def precision_of(tensor: torch.Tensor, switch: Callable[[], str]) -> str:
    """Return how a kernel should multiply: "tf32" if the switch allows it on a GPU, else "ieee"."""
    is_tf32 = tensor.dtype == torch.float32 and switch() == "tf32" and on_gpu(tensor)
    return "tf32" if is_tf32 else "ieee"


def sum_accuracy(terms: int) -> Accuracy:
    """Return the accuracy of a sum of `terms` values around 0, whose deviation is sqrt(terms)."""
    return Accuracy(terms, math.sqrt(terms), is_sum=True)


def largest(tensor: torch.Tensor) -> float:
    """Return the largest magnitude of the finite elements; 0 if there are none."""
    sizes = torch.where(tensor.isfinite(), tensor.abs(), 0.0)
    return sizes.max().item() if sizes.numel() else 0.0


class Draw(Protocol):
    """A source of tensors for the arguments of an operation.

    Attributes:
        layout: one of the operation's layouts; empty if it has none.
        device: the device of the tensors.
    """

    layout: str
    device: str

    def __call__(self, *shape: int) -> torch.Tensor:
        """Return a contiguous tensor of the profiled dtype, with other values at each call."""


class Arguments(NamedTuple):
    """The arguments of an operator's call."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]


def given(*args: Any, **keywords: Any) -> Arguments:
    """Return positional and keyword arguments as :class:`Arguments`."""
    return Arguments(args, keywords)


@dataclass(frozen=True)
class Operation:
    """The description of an operator for the profiler.

    `instances`, `reference` and `accuracy` take the arguments of the operator's function in `ops`; those of a
    gradient, which has no function there, take the output's gradient and then the forward function's
    arguments.

    Attributes:
        sizes: the numbers that describe a problem, by name. Each has two defaults: one if kernels are
            interpreted, one on a GPU.
        arguments: a function of a :class:`Draw` and the sizes, by name, that returns the arguments.
        instances: a function that returns the possible configurations, the shipped one first.
        reference: the operator in plain torch, called with float64.
        accuracy: a function that returns the accuracy of each result.
        dtypes: the names of the supported dtypes.
        layouts: the layouts of the operands, the usual one first.
        may_be_zero: the sizes that may be 0.
        switch: returns torch's switch for rounding fp32 to tf32; None if nothing is multiplied.
    """

    sizes: Mapping[str, tuple[int, int]]
    arguments: Callable[..., Arguments]
    instances: Callable[..., list[Instance]]
    reference: Callable[..., torch.Tensor | Sequence[torch.Tensor]]
    accuracy: Callable[..., Sequence[Accuracy]]
    dtypes: tuple[str, ...] = FLOATS
    layouts: tuple[str, ...] = ()
    may_be_zero: frozenset[str] = frozenset()
    switch: Callable[[], str] | None = None


# Operations that have no file here, by name.
_registered: dict[str, Operation] = {}


def operations() -> dict[str, Operation]:
    """Return all operations by name: those of the modules of this folder, and the registered ones."""
    return dict(sorted((_registered | _of_modules()).items()))


def register(name: str, operation: Operation) -> None:
    """Register an operator that has no file here, such as one of a notebook; replace an earlier registration.

    Raises:
        ArgumentTypeError: an argument has another type. InvalidArgumentError: the package has an operator of
            that name.
    """
    check_type("name", name, str, "Give a text.")
    check_type("operation", operation, Operation, "Give an Operation.")
    if name in _of_modules():
        raise InvalidArgumentError("name", f"got {name!r}, an operator of the package", "Give another name.")
    _registered[name] = operation


def _of_modules() -> dict[str, Operation]:
    from workbench import operators

    found: dict[str, Operation] = {}
    for module in pkgutil.iter_modules(operators.__path__):
        family = importlib.import_module(f"{operators.__name__}.{module.name}")
        found |= getattr(family, "OPERATIONS", {})
    return found


def list_instances(name: str, operation: Operation, arguments: Arguments) -> list[Instance]:
    """List the instances for these arguments.

    Raises:
        ArgumentTypeError: the arguments are not those of `operation.instances`, or one is not a tensor where
            a tensor is needed.
        WorkbenchError: an error of the family's invoker.
    """
    signature = inspect.signature(operation.instances)
    try:
        bound = signature.bind(*arguments.args, **arguments.keywords)
    except TypeError as error:
        taken = ", ".join(signature.parameters)
        fix = f"Give what its instances are listed for: {taken}."
        raise ArgumentTypeError(name, str(error), fix) from None
    for word, value in bound.arguments.items():
        parameter = signature.parameters[word]
        if parameter.annotation == "torch.Tensor" and parameter.kind is not parameter.VAR_POSITIONAL:
            check_type(word, value, torch.Tensor, "Give a torch.Tensor.")
    return operation.instances(*arguments.args, **arguments.keywords)


def instances_of(
    make: Callable[..., Launch], shipped: Mapping[str, Any] | None, others: Iterable[Mapping[str, Any]] = ()
) -> list[Instance]:
    """Return instances of the shipped configuration and of others, which are named by their keywords.

    Args:
        make: the invoker, with everything bound but the keywords.
        shipped: the keywords of a call of the operator; the invoker chooses the missing ones. None if a call
            does something else.
        others: the keywords of other configurations; duplicates are dropped.
    """
    found: dict[str, Instance] = {}
    if shipped is not None:
        found["shipped"] = Instance("shipped", make, shipped, is_shipped=True)
    for keywords in others:
        name = _name_of(keywords)
        found.setdefault(name, Instance(name, make, keywords))
    return list(found.values())


def _name_of(keywords: Mapping[str, Any]) -> str:
    """Return a name made of the keywords, such as "persistent_128x256x64_8_warps_3_stages"."""
    parts: list[str] = []
    for name, value in keywords.items():
        if name == "template":
            parts.insert(0, value)
        elif name == "tile":
            parts.append("x".join(map(str, value)) if isinstance(value, Sequence) else str(value))
        elif value is True:
            parts.append(name)
        elif value is False or (name == "splits" and value == 1):
            continue
        elif isinstance(value, tuple) and hasattr(value, "_asdict"):
            parts.append(f"{name}_{_name_of(value._asdict())}")
        else:
            word = name.removeprefix("num_")
            parts.append(f"{value}_{word}")
    return "_".join(parts) or "default"


def gradients_of(
    function: Callable[..., torch.Tensor], places: Sequence[int] = (0,)
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that computes the gradients of the arguments at `places`.

    It takes the gradient of the result, then the arguments of `function`.
    """

    def backward(gradient: torch.Tensor, *args: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        followed = [
            arg.detach().requires_grad_() if place in places else arg for place, arg in enumerate(args)
        ]
        result = function(*followed, **keywords)
        # In this thread, which has a CUDA context; the first call of cuBLAS in autograd's own thread warns.
        with torch.autograd.set_multithreading_enabled(False):
            return torch.autograd.grad(result, [followed[place] for place in places], gradient)

    return backward


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
