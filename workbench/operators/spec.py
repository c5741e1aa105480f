"""One page an operator: an :class:`OperatorSpec` holds all that is known of it.

Tests, suites, the profiler, baselines and the documentation read the specs of `registry.specs()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from workbench import renamed
from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_type, in_brief
from workbench.launch import Work
from workbench.operators.accuracy import Accuracy
from workbench.operators.arguments import Arguments
from workbench.operators.instance import Instance
from workbench.operators.parts import Parts, whole

FLOATS = ("fp16", "bf16", "fp32", "fp64")

Results = torch.Tensor | Sequence[torch.Tensor]


@dataclass(frozen=True)
class Prepared:
    """A baseline that does something once for its arguments, such as a forward pass, before it is called.

    Attributes:
        make: a function of the operator's arguments that returns the call: a function of no arguments.
    """

    make: Callable[..., Callable[[], Results]]


@dataclass(frozen=True, eq=False, repr=False)
class OperatorSpec:
    """All that is known of an operator.

    `meaning`, `torch`, the baselines, `instances`, `accuracy` and `work` take the arguments of the operator's
    function. For a gradient, which has no function of its own, they take the gradient of the result first,
    and then the arguments of the operator.

    Attributes:
        name: the name in `ops`, in recordings, and on the command line.
        meaning: the operator in plain torch, called with float64.
        case: the keys of a case, such as lengths, each with two defaults: one if kernels are interpreted, one
            on a GPU. Both are of one kind: a whole number, a number, true or false, a text, or whole numbers
            in a tuple.
        arguments: a function of a `Draw` and a case's keys, by name, that returns the arguments.
        instances: a function that returns the possible configurations, the shipped one first.
        accuracy: a function that returns the accuracy of each result.
        function: the operator's function; None for that of `ops` with this name.
        aten: torch's operators with this meaning, such as "add.Tensor".
        torch: the operator as a user of torch writes it; None if that is `meaning`, and for gradients.
        baselines: the libraries that have it, by name (see `bench.baseline`), and the functions to call.
        work: a function that returns the FLOPs and the least bytes, without reading any tensor; None for
            those of the shipped launch.
        parts: yields the parts of the results that are compared if the whole takes too much memory.
        optional: the keys that a case may leave out, for the default on a GPU.
        dtypes: the names of the supported dtypes.
        fp32_precision: returns torch's setting, "tf32" if products of fp32 may be rounded to it; None if
            nothing is multiplied.
        of: the operator whose gradient this is; None for others.
        argnums: the arguments of that operator, by position, for which there are gradients.
    """

    name: str
    meaning: Callable[..., Results]
    case: Mapping[str, tuple[Any, Any]]
    arguments: Callable[..., Arguments]
    instances: Callable[..., list[Instance]]
    accuracy: Callable[..., Sequence[Accuracy]]
    function: Callable[..., Any] | None = None
    aten: tuple[str, ...] = ()
    torch: Callable[..., Results] | None = None
    baselines: Mapping[str, Callable[..., Results] | Prepared] = field(default_factory=dict)
    work: Callable[..., Work | None] | None = None
    parts: Parts = whole
    optional: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = FLOATS
    fp32_precision: Callable[[], str] | None = None
    of: OperatorSpec | None = None
    argnums: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the attributes.

        Raises:
            ArgumentTypeError, InvalidArgumentError: one is not as above; the error names operator and
                attribute.
        """
        check_type("name of an operator", self.name, str, "Give a text.")
        if not self.name.isidentifier():
            fix = 'Give a name as of a function, such as "softmax".'
            raise InvalidArgumentError("name of an operator", f"got {self.name!r}", fix)
        for word in ("meaning", "arguments", "instances", "accuracy", "parts"):
            self._check_function(word, getattr(self, word))
        for word in ("function", "torch", "work", "fp32_precision"):
            if getattr(self, word) is not None:
                self._check_function(word, getattr(self, word))
        for word in ("aten", "dtypes", "argnums"):
            check_type(f"{self.name}, {word}", getattr(self, word), tuple, "Give a tuple.")
        if not self.dtypes:
            raise InvalidArgumentError(f"{self.name}, dtypes", "got none", "Give one or more.")
        check_type(f"{self.name}, case", self.case, Mapping, 'Give keys, such as {"rows": (3, 8192)}.')
        for key, both in self.case.items():
            fix = "Give two defaults of one kind: if kernels are interpreted, and on a GPU."
            if not isinstance(both, tuple) or len(both) != 2 or kind_of(both[0]) != kind_of(both[1]):
                raise InvalidArgumentError(f"{self.name}, case, {key}", f"got {both!r}", fix)
            if not str(key).isidentifier() or key in RESERVED:
                fix = f"Give a name as of an argument, and none of {', '.join(RESERVED)}."
                raise InvalidArgumentError(f"{self.name}, case", f"got the key {key!r}", fix)
        if self.of is None and self.argnums:
            raise InvalidArgumentError(f"{self.name}, argnums", f"got {self.argnums}", "Give them with `of`.")
        if self.of is not None:
            check_type(f"{self.name}, of", self.of, OperatorSpec, "Give an OperatorSpec.")
            if not self.argnums or not all(type(place) is int and place >= 0 for place in self.argnums):
                fix = "Give positions of arguments, from 0 on."
                raise InvalidArgumentError(f"{self.name}, argnums", f"got {self.argnums}", fix)
        if strange := self.optional - self.case.keys():
            given = f"got {', '.join(sorted(strange))}"
            raise InvalidArgumentError(f"{self.name}, optional", given, "Give keys of the case.")

    def __repr__(self) -> str:
        return f"OperatorSpec({self.name!r}, ...)"

    def _check_function(self, word: str, value: object) -> None:
        if not callable(value):
            raise ArgumentTypeError(f"{self.name}, {word}", f"got {in_brief(value)}", "Give a function.")

    def defaults(self, is_gpu: bool) -> dict[str, Any]:
        """Return the case with which the operator is tried: small if kernels are interpreted."""
        return {key: both[is_gpu] for key, both in self.case.items()}

    def completed(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Return a case with the keys that it may leave out.

        Raises:
            InvalidArgumentError: a key is missing or unknown, or a value is of another kind than its default.
        """
        required = self.case.keys() - self.optional
        if not required <= case.keys() <= self.case.keys():
            more = f" (and {', '.join(sorted(self.optional))})" if self.optional else ""
            fix = (
                f"The keys of {self.name} are {', '.join(sorted(required))}{more}. Give these and no others."
            )
            raise InvalidArgumentError("case", f"{self.name} of {dict(case)}", fix)
        for key, value in case.items():
            kind = kind_of(self.case[key][1])
            if kind_of(value) != kind and not (kind is float and kind_of(value) is int):
                raise InvalidArgumentError(key, f"got {in_brief(value)}", f"Give {_KINDS[kind]}.")
        return {**{key: self.case[key][1] for key in self.optional}, **case}

    def work_of(self, arguments: Arguments) -> Work | None:
        """Return the FLOPs and the least bytes of a call; the tensors may be torch's of the meta device.

        Raises:
            As :func:`list_instances`.
        """
        if self.work is not None:
            return self.work(*arguments.args, **arguments.keywords)
        return list_instances(self, arguments)[0].launch().work


# Keys that a case cannot have: options of the command line.
RESERVED = ("help", "verify", "no_verify", "init", "dtype", "target", "mode")

_KINDS: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
    list: "a list of whole numbers",
}  # fmt: skip


def kind_of(value: object) -> type:
    """Return the kind of a key's value: int, float, bool, str or list, which stands for tuples too.

    Raises:
        InvalidArgumentError: it is of no such kind.
    """
    found = list if isinstance(value, tuple) else type(value)
    if found not in _KINDS:
        fix = f"Give {', '.join(_KINDS.values())}."
        raise InvalidArgumentError("value of a case", f"got {in_brief(value)}", fix)
    return found


def gradient_of(
    spec: OperatorSpec,
    argnums: Sequence[int],
    arguments: Callable[..., Arguments],
    instances: Callable[..., list[Instance]],
    accuracy: Callable[..., Sequence[Accuracy]],
    *,
    name: str = "backward",
    **more: Any,
) -> OperatorSpec:
    """Return the spec of an operator's gradients, `<operator>_<name>`.

    Args:
        spec: the operator.
        argnums: the arguments, by position, for which there are gradients.
        arguments, instances, accuracy: as in :class:`OperatorSpec`.
        name: the end of the name.
        more: other attributes.
    """
    shared = {each: getattr(spec, each) for each in ("case", "optional", "dtypes", "fp32_precision")}
    return OperatorSpec(
        f"{spec.name}_{name}", gradients_of(spec.meaning, argnums), arguments=arguments, instances=instances,
        accuracy=accuracy, of=spec, argnums=tuple(argnums), **shared | more,
    )  # fmt: skip


def list_instances(spec: OperatorSpec, arguments: Arguments) -> list[Instance]:
    """List the instances for these arguments.

    Raises:
        ArgumentTypeError: the arguments are not those of `spec.instances`, or one is not a tensor where
            a tensor is needed.
        WorkbenchError: an error of the family's invoker.
    """
    signature = inspect.signature(spec.instances)
    try:
        bound = signature.bind(*arguments.args, **arguments.keywords)
    except TypeError as error:
        taken = ", ".join(signature.parameters)
        fix = f"Give what its instances are listed for: {taken}."
        raise ArgumentTypeError(spec.name, str(error), fix) from None
    for word, value in bound.arguments.items():
        parameter = signature.parameters[word]
        if parameter.annotation == "torch.Tensor" and parameter.kind is not parameter.VAR_POSITIONAL:
            check_type(word, value, torch.Tensor, "Give a torch.Tensor.")
    return spec.instances(*arguments.args, **arguments.keywords)


def gradients_of(
    function: Callable[..., Any], argnums: Sequence[int] = (0,)
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that computes the gradients of the arguments at `argnums`.

    It takes the gradient of the result, then the arguments of `function`.
    """

    def backward(gradient: torch.Tensor, *args: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        followed = [
            arg.detach().requires_grad_() if place in argnums else arg for place, arg in enumerate(args)
        ]
        result = function(*followed, **keywords)
        # In this thread, which has a CUDA context; the first call of cuBLAS in autograd's own thread warns.
        with torch.autograd.set_multithreading_enabled(False):
            return torch.autograd.grad(result, [followed[place] for place in argnums], gradient)

    return backward


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
