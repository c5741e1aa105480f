"""What a function of the client API says of its kernels: `ops.matmul.instances(a, b)`, `.best(a, b)`.

Both are attributes of the function itself, which is called as it is: a call goes through nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch

from workbench.errors import ArgumentTypeError, WorkbenchError, check_name, in_brief
from workbench.kernels.epilogues import Epilogue
from workbench.operators.operation import Arguments, Instance, list_instances, operations

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Profiled(Protocol[P, R_co]):
    """A function that knows the instances of its operator."""

    __name__: str
    __module__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The operator."""

    def instances(self, *args: P.args, **kwargs: P.kwargs) -> list[Instance]:
        """The configurations that these arguments could be given, first the shipped one, if there is one.

        Each has a name, its keywords, `why_not` where the invoker refuses it, and `.launch()`.

        Raises:
            ArgumentTypeError: an argument that instances are not listed for. WorkbenchError, or what the
            operator raises: arguments that it does not take.
        """

    def best(self, *args: P.args, **kwargs: P.kwargs) -> Instance:
        """The fastest of them on this GPU: verified, timed and kept by `workbench.profiler`.

        Raises:
            NotMeasurableError: there is no GPU here. Others as `instances`.
        """


def profiled(function: Callable[P, R_co]) -> Profiled[P, R_co]:
    """`function` itself, with `instances` and `best` of the operator of its name."""
    name = function.__name__

    def instances(*args: Any, **kwargs: Any) -> list[Instance]:
        arguments = _accepted(function, args, kwargs)
        try:
            return list_instances(name, operations()[name], arguments)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not isinstance(error, WorkbenchError):
                given = f"{type(error).__name__}: {error}"
                raise ArgumentTypeError(f"{name}.instances", given, f"Call {name} itself.") from error
            raise

    def best(*args: Any, **kwargs: Any) -> Instance:
        from workbench import profiler

        return profiler.best(name, _accepted(function, args, kwargs))

    known = cast(Any, function)
    known.instances, known.best = instances, best
    return cast(Profiled[P, R_co], function)


def _accepted(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments:
    """The arguments that differ from the defaults, if the function takes them, and its instances do.

    Raises:
        UnknownNameError: nobody has registered the operator. ArgumentTypeError: instances are not listed for
        an argument. Others as the function, which is asked with tensors without elements.
    """
    name, signature = function.__name__, inspect.signature(function)
    check_name("operator", name, operations())
    try:
        function(
            *map(_without_elements, args), **{word: _without_elements(v) for word, v in keywords.items()}
        )
    except WorkbenchError:
        function(*args, **keywords)  # which says it of these; or it takes no tensors without elements
    given = signature.bind(*args, **keywords)
    known = inspect.signature(operations()[name].instances).parameters
    for word, value in list(given.arguments.items()):
        if word in known:
            continue
        default, is_tensor = signature.parameters[word].default, isinstance(value, torch.Tensor)
        if value is not default and (is_tensor or value != default):
            got = "got a tensor" if is_tensor else f"got {in_brief(value)}"
            fix = f"Its instances are listed for {', '.join(known)}."
            raise ArgumentTypeError(f"{name}.instances, {word}", got, fix)
        del given.arguments[word]
    return Arguments(given.args, given.kwargs)


def _without_elements(value: Any) -> Any:
    """A tensor that has strides, and those of an epilogue, as on the meta device."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, Epilogue):
        return value.with_tensors([_without_elements(each) for each in value.tensors])
    return value
