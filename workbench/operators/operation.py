"""What the profiler is told of an operator: one :class:`Operation` for each, in the file of its family.

A module of this folder that has a mapping `OPERATIONS` is found by that (:func:`operations`): nothing else
names it, so that a new family is one file here. What lives elsewhere, in a notebook, says so by
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
    """A named configuration of a template, for tensors that it was listed for.

    Attributes:
        name: of all that are listed together it alone has it.
        make: the invoker, which already has the tensors.
        keywords: what it is given besides.
        is_shipped: whether a call of the operator takes this one.
    """

    name: str
    make: Callable[..., Launch] = field(repr=False)
    keywords: Mapping[str, Any]
    is_shipped: bool = False

    def launch(self) -> Launch:
        """The launch; raises what the invoker raises where it does not support these tensors."""
        return self.make(**self.keywords)

    @cached_property
    def why_not(self) -> str:
        """Why the invoker makes no such launch, in words; empty where it makes one."""
        try:
            self.launch()
        except WorkbenchError as error:
            return str(error)
        return ""

    @property
    def is_supported(self) -> bool:
        """Whether the invoker makes such a launch; a device may still have too little memory for it."""
        return not self.why_not


class Accuracy(NamedTuple):
    """How near a result has to be: see `bench.accuracy`.

    Attributes:
        terms: how many terms one element sums, 0 where it must be exact.
        least: the least of what its errors are relative to.
        between: as large as what cancels on the way to it, in the type of the arithmetic; one number for all
            elements, or a tensor that has as many or broadcasts to them.
        is_sum: whether it is a sum of products and nothing else, so that whole numbers make it exactly.
    """

    terms: int
    least: float = 0.0
    between: float | torch.Tensor = 0.0
    is_sum: bool = False


EXACT = Accuracy(0)


def matmul_precision() -> str:
    """Torch's switch for products of fp32: "tf32" where they may be rounded to it."""
    return str(torch.backends.cuda.matmul.fp32_precision)


def convolution_precision() -> str:
    """The same for convolutions."""
    return str(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]  # torch does not type it


def precision_of(tensor: torch.Tensor, switch: Callable[[], str]) -> str:
    """How a kernel is to multiply: "tf32" where a switch allows it and there are such units, else "ieee"."""
    is_tf32 = tensor.dtype == torch.float32 and switch() == "tf32" and on_gpu(tensor)
    return "tf32" if is_tf32 else "ieee"


def sum_accuracy(terms: int) -> Accuracy:
    """That of a sum of so many values around 0, whose deviation is their number's root."""
    return Accuracy(terms, math.sqrt(terms), is_sum=True)


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of its finite elements; 0 where there is none."""
    sizes = torch.where(tensor.isfinite(), tensor.abs(), 0.0)
    return sizes.max().item() if sizes.numel() else 0.0


class Draw(Protocol):
    """Where an operation has its tensors from.

    Attributes:
        layout: one of the operation's, "" where it has none.
        device: where tensors are.
    """

    layout: str
    device: str

    def __call__(self, *shape: int) -> torch.Tensor:
        """A contiguous tensor of the dtype that is profiled, another one at each call."""


class Arguments(NamedTuple):
    """What an operator is called with."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]


def given(*args: Any, **keywords: Any) -> Arguments:
    """These arguments."""
    return Arguments(args, keywords)


@dataclass(frozen=True)
class Operation:
    """An operator, as the profiler knows it.

    `instances`, `reference` and `accuracy` take the arguments of the operator's function in `ops`; of a
    gradient, which has none there, the output's gradient and then those of the forward function.

    Attributes:
        sizes: the numbers that describe a problem, by name; of each, what it is where kernels are
            interpreted, and what on a GPU, unless it is given.
        arguments: from a :class:`Draw` and the sizes, by name, to the arguments.
        instances: the configurations that could be taken, the shipped one first.
        reference: the plain torch meaning, given float64.
        accuracy: of each of its results.
        dtypes: names of those that the operator has.
        layouts: how operands may lie, the usual one first.
        may_be_zero: which sizes may be 0.
        switch: which of torch's says whether fp32 is rounded to tf32; None where nothing is multiplied.
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


# Those that have no file here, by their names.
_registered: dict[str, Operation] = {}


def operations() -> dict[str, Operation]:
    """Every operation by its name: of each module of this folder that has some, and those registered."""
    return dict(sorted((_registered | _of_modules()).items()))


def register(name: str, operation: Operation) -> None:
    """Make an operator known that has no file here, such as one of a notebook; once more to replace it.

    Raises:
        ArgumentTypeError: an argument is something else. InvalidArgumentError: the package has an operator of
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
    """The instances for these arguments.

    Raises:
        ArgumentTypeError: the arguments are not those of the operator, or no instance is listed with one.
        WorkbenchError: as the family's invoker.
    """
    signature = inspect.signature(operation.instances)
    try:
        bound = signature.bind(*arguments.args, **arguments.keywords)
    except TypeError as error:
        taken = ", ".join(signature.parameters)
        raise ArgumentTypeError(name, str(error), f"Its instances are listed for {taken}.") from None
    for word, value in bound.arguments.items():
        parameter = signature.parameters[word]
        if parameter.annotation == "torch.Tensor" and parameter.kind is not parameter.VAR_POSITIONAL:
            check_type(word, value, torch.Tensor, "Give a torch.Tensor.")
    return operation.instances(*arguments.args, **arguments.keywords)


def instances_of(
    make: Callable[..., Launch], shipped: Mapping[str, Any] | None, others: Iterable[Mapping[str, Any]] = ()
) -> list[Instance]:
    """The shipped configuration and others, by names that follow from their keywords.

    Args:
        make: the invoker, given all but keywords.
        shipped: those of a call of the operator; what it leaves out, the invoker chooses. None where a call
            does something else.
        others: each once.
    """
    found: dict[str, Instance] = {}
    if shipped is not None:
        found["shipped"] = Instance("shipped", make, shipped, is_shipped=True)
    for keywords in others:
        name = _name_of(keywords)
        found.setdefault(name, Instance(name, make, keywords))
    return list(found.values())


def _name_of(keywords: Mapping[str, Any]) -> str:
    """What configurations differ in: "persistent_128x256x64_8_warps_3_stages"."""
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
    """The gradients of some of `function`'s arguments, given its result's gradient in front of all."""

    def backward(gradient: torch.Tensor, *args: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        followed = [
            arg.detach().requires_grad_() if place in places else arg for place, arg in enumerate(args)
        ]
        result = function(*followed, **keywords)
        # In this thread, which has a CUDA context: in one of its own autograd's first call of cuBLAS warns.
        with torch.autograd.set_multithreading_enabled(False):
            return torch.autograd.grad(result, [followed[place] for place in places], gradient)

    return backward


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
