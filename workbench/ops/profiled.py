"""Instances of an operator's kernels: `ops.matmul.instances(a, b)` and `ops.matmul.best(a, b)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch

from workbench.errors import ArgumentTypeError, WorkbenchError, check_name, in_brief
from workbench.kernels.epilogues import Epilogue
from workbench.operators.arguments import Arguments
from workbench.operators.instance import Instance
from workbench.operators.registry import specs
from workbench.operators.spec import list_instances
from workbench.runtime.warm import warm

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Profiled(Protocol[P, R_co]):
    """A function of the client API with the instances of its operator."""

    __name__: str
    __module__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Compute the operator."""

    def instances(self, *args: P.args, **kwargs: P.kwargs) -> list[Instance]:
        """Return the configurations for these arguments; the shipped one comes first, if there is one.

        Each has a name, its keywords, `.launch()`, and `why_not`, the reason if the invoker refuses it.

        Raises:
            ArgumentTypeError: instances are not listed for an argument. WorkbenchError, or an error of the
                operator: the operator does not take the arguments.
        """

    def best(self, *args: P.args, **kwargs: P.kwargs) -> Instance:
        """Return the fastest instance on this GPU; `workbench.profiler` verifies, times and keeps it.

        Raises:
            NotMeasurableError: there is no GPU here. Others as for `instances`.
        """


def profiled(function: Callable[P, R_co]) -> Profiled[P, R_co]:
    """Return the function with warm calls, and with the attributes `instances` and `best` of its operator."""
    name = function.__name__

    def instances(*args: Any, **kwargs: Any) -> list[Instance]:
        arguments = _accepted(function, args, kwargs)
        try:
            return list_instances(specs()[name], arguments)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not isinstance(error, WorkbenchError):
                given = f"{type(error).__name__}: {error}"
                fix = f"Call {name} itself: instances cannot be listed for these arguments, which it takes."
                raise ArgumentTypeError(f"{name}.instances", given, fix) from error
            raise

    def best(*args: Any, **kwargs: Any) -> Instance:
        from workbench import profiler

        return profiler.best(name, _accepted(function, args, kwargs))

    known = cast(Any, warm(function))
    known.instances, known.best = instances, best
    return cast(Profiled[P, R_co], known)


def _accepted(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments:
    """Return the arguments of a call for the operator's instances, after the function has checked them.

    An argument that the instances do not take must have its default value, and is dropped.

    Raises:
        UnknownNameError: the operator is not registered. ArgumentTypeError: instances are not listed for an
            argument. Others as for the function, which is called with tensors without elements.
    """
    name, signature = function.__name__, inspect.signature(function)
    check_name("operator", name, specs())
    try:
        function(
            *map(_without_elements, args), **{word: _without_elements(v) for word, v in keywords.items()}
        )
    except WorkbenchError:
        # The error should describe these tensors; or the function takes no tensors without elements.
        function(*args, **keywords)
    given = signature.bind(*args, **keywords)
    known = inspect.signature(specs()[name].instances).parameters
    for word, value in list(given.arguments.items()):
        if word in known:
            continue
        default, is_tensor = signature.parameters[word].default, isinstance(value, torch.Tensor)
        if value is not default and (is_tensor or value != default):
            got = "got a tensor" if is_tensor else f"got {in_brief(value)}"
            fix = f"Leave it out: its instances are listed for {', '.join(known)}."
            raise ArgumentTypeError(f"{name}.instances, {word}", got, fix)
        del given.arguments[word]
    return Arguments(given.args, given.kwargs)


def _without_elements(value: Any) -> Any:
    """Move a strided tensor, or the tensors of an epilogue, to the meta device; return others unchanged."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, Epilogue):
        return value.with_tensors([_without_elements(each) for each in value.tensors])
    return value
