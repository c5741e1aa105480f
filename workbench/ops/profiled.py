"""What a function of the client API says of its kernels: `ops.matmul.instances(a, b)`, `.best(a, b)`.

Both are attributes of the function itself, which is called as it is: a call goes through nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from workbench.errors import ArgumentTypeError, WorkbenchError
from workbench.kernels.instances.operation import Arguments, Instance, listed, operations

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
        """The configurations that these arguments could be given, the shipped one first.

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
        try:
            return listed(name, operations()[name], Arguments(args, kwargs))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not isinstance(error, WorkbenchError):
                function(*args, **kwargs)  # which says in words what is wrong with them
                given = f"{type(error).__name__}: {error}"
                raise ArgumentTypeError(f"{name}.instances", given, f"Call {name} itself.") from error
            raise

    def best(*args: Any, **kwargs: Any) -> Instance:
        from workbench import profiler

        return profiler.best(name, Arguments(args, kwargs))

    known = cast(Any, function)
    known.instances, known.best = instances, best
    return cast(Profiled[P, R_co], function)
