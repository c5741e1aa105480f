"""What an operator is compared with: a call of `ops`, or of a library that has the operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from workbench import ops
from workbench.bench import baseline
from workbench.errors import ArgumentTypeError, UnknownNameError, check_name
from workbench.operators.arguments import Arguments, tensors_of
from workbench.operators.registry import named
from workbench.operators.spec import OperatorSpec, Prepared

# Baselines that every operator has: they call torch.
OF_TORCH = ("torch", "torch.compile", "torch.compile max-autotune")


def baselines_of(spec: OperatorSpec) -> tuple[str, ...]:
    """Return the names of the baselines that can compute an operator."""
    return (*OF_TORCH, *(name for name in spec.baselines if name not in OF_TORCH))


def optional_baselines_of(op: str) -> tuple[str, ...]:
    """Return the optional libraries that can compute an operator."""
    return tuple(name for name in named(op).baselines if baseline.get(name).is_optional)


def call_of(name: str, spec: OperatorSpec, arguments: Arguments) -> Callable[[], Any]:
    """Return a function of no arguments that computes an operator with a baseline.

    Args:
        name: the baseline's name.
        spec: the operator.
        arguments: its arguments; for a gradient the result's gradient, then those of the operator.

    Raises:
        UnknownNameError: the baseline is unknown, or does not have the operator.
        ArgumentTypeError: it does not take such arguments.
        Others as for `bench.Baseline.call`.
    """
    one = baseline.get(name)
    if name not in spec.baselines and name not in OF_TORCH:
        having = [each for each in baseline.BASELINES if each in baselines_of(spec)]
        raise UnknownNameError(f"baseline of {spec.name}", name, having)
    written = spec if spec.of is None else spec.of
    function = spec.baselines.get(name, written.torch or written.meaning)
    one.check_here()
    baseline.check_place(tensors_of(arguments))
    args, keywords = arguments
    if isinstance(function, Prepared):
        _check_call(name, spec, function.make, args, keywords)
        return one.call(function.make(*args, **keywords))
    _check_call(name, spec, function, args if spec.of is None else args[1:], keywords)
    argnums = None if spec.of is None else spec.argnums
    return one.call(function, *args, argnums=argnums, **keywords)


def _check_call(
    name: str,
    spec: OperatorSpec,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    """Raise ArgumentTypeError unless a baseline's function takes these arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # one of torch's own, which does not tell
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        fix = f"Give what {name} takes: {', '.join(signature.parameters)}."
        raise ArgumentTypeError(spec.name, str(error), fix) from None


def our_call_of(spec: OperatorSpec, arguments: Arguments) -> Callable[[], Any]:
    """Return a function of no arguments that computes an operator with its function.

    Raises:
        UnknownNameError: `ops` has no function of this name, and the spec names none.
    """
    if spec.of is not None:
        function = function_of(spec.of)
        return baseline.backward_of(function, spec.argnums, *arguments.args, **arguments.keywords)
    return partial(function_of(spec), *arguments.args, **arguments.keywords)


def has_function(spec: OperatorSpec) -> bool:
    """Return whether an operator, or the one whose gradient it is, has a function."""
    whose = spec if spec.of is None else spec.of
    return whose.function is not None or whose.name in ops.__all__


def function_of(spec: OperatorSpec) -> Callable[..., Any]:
    """Return an operator's function: the spec's, or that of `ops`."""
    if spec.function is not None:
        return spec.function
    check_name("operator of ops", spec.name, ops.__all__)
    function: Callable[..., Any] = getattr(ops, spec.name)
    return function
