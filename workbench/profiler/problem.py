"""Profiling problems, as in ckProfiler: an operator's arguments from a case, dtype and init."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from workbench import device, renamed
from workbench.bench import data, recording
from workbench.errors import InvalidArgumentError, check_name, check_type
from workbench.operators.arguments import Arguments, within_memory
from workbench.operators.drawing import draw_arguments
from workbench.operators.registry import named
from workbench.operators.spec import OperatorSpec

# The largest size, also for sizes that are not a tensor's length, such as a stride: torch's index arithmetic
# overflows with larger ones.
MOST = 2**36


def default_case(spec: OperatorSpec) -> dict[str, Any]:
    """Return the operator's default case; it is small if kernels are interpreted."""
    return spec.defaults(device.current().is_gpu)


@contextmanager
def _with_switches(spec: OperatorSpec) -> Iterator[None]:
    """Name the command-line option, --groups, in errors about a key of the case."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.argument in spec.case:
            error.argument = f"--{error.argument}"
            error.args = (f"--{error}",)
        raise


def arguments_of(
    name: str, case: Mapping[str, Any] | None = None, *, dtype: str | None = None, init: str = "normal"
) -> Arguments:
    """Return the arguments of an operator for a problem.

    Args:
        name: the operator's name.
        case: values of its keys; the others are taken from :func:`default_case`.
        dtype: a dtype of the operator; None for its first.
        init: a name in `data.INITS`.

    Raises:
        UnknownNameError: `name`, a key or `init` is unknown.
        InvalidArgumentError, ArgumentTypeError: a value is invalid or needs more memory than there is, or the
            operator does not support the dtype.
        The errors name the command-line option, such as --dtype.
    """
    spec = named(name)
    check_type("case", case, Mapping | None, 'Give keys and values, such as {"rows": 6}.')
    chosen = default_case(spec) | dict(case or {})
    for key, value in chosen.items():
        check_name("key", key, spec.case)
        for size in value if isinstance(value, list | tuple) else (value,):
            if isinstance(size, int) and size > MOST:
                raise InvalidArgumentError(f"--{key}", f"got {size:,}", f"Give {MOST:,} or less.")
        recording.check_value(f"--{key}", key, list(value) if isinstance(value, tuple) else value)
    dtype = spec.dtypes[0] if dtype is None else dtype
    if dtype not in spec.dtypes:
        has = ", ".join(spec.dtypes)
        raise InvalidArgumentError("--dtype", f"{name} is not made for {dtype!r}", f"Give one of {has}.")
    check_name("--init", init, data.INITS)
    with _with_switches(spec), within_memory(name, "its operands need", "Give smaller sizes."):
        return draw_arguments(spec, chosen, dtype, device.current().torch_device, init=init)


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
