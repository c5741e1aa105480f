"""Cases of the fuzz as plain data: a short sequence of calls of one operator, each with its own mode."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.tensors import Layout, TensorSpec, seed_of

GRAD, NO_GRAD, INFERENCE = "grad", "no_grad", "inference"


@dataclass(frozen=True)
class Mode:
    """Modes of torch in which a call is made.

    Attributes:
        grad: "grad", "no_grad" or "inference".
        autocast: the name of autocast's dtype; "" if autocast is off.
        tf32: whether fp32 may be rounded to tf32 on a GPU.
        deterministic: whether torch's deterministic algorithms are on; the call is then made twice.
        one_gradient: whether the gradient of the result is one expanded number, like that of a sum.
    """

    grad: str = GRAD
    autocast: str = ""
    tf32: bool = False
    deterministic: bool = False
    one_gradient: bool = False


@dataclass(frozen=True)
class Call:
    """A call of the case's operator.

    Attributes:
        tensors: the tensors by parameter; operands of an epilogue are called e and a number, such as e2.
        options: the other arguments by name, as JSON values; "torch.float32" and the like stand for torch's
            objects, "epilogue" is a list of functors, each a name and its arguments, and "window" is the
            list of arguments of an attention `Window`.
        mode: the modes of torch.
    """

    tensors: dict[str, TensorSpec]
    options: dict[str, Any] = field(default_factory=dict)
    mode: Mode = Mode()

    def seed(self, place: int, name: str) -> int:
        """Return the seed of tensor `name`, if the call is number `place` of its case."""
        return seed_of(place, name)


@dataclass(frozen=True)
class Case:
    """A sequence of calls whose warm calls may interact.

    Attributes:
        operator: the name of the operator.
        calls: the calls, in order.
        seed, number: the seed and number from which the case was drawn.
        threads: the number of threads, each of which makes all calls, at the same time.
        on_stream: whether a thread makes its calls on a CUDA stream of its own; no effect without a GPU.
    """

    operator: str
    calls: tuple[Call, ...]
    threads: int = 1
    on_stream: bool = False
    seed: int = 0
    number: int = 0

    def to_json(self) -> str:
        """Return the case as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        calls = tuple(
            Call(
                {name: _tensor_from(spec) for name, spec in call["tensors"].items()},
                call["options"],
                Mode(**call["mode"]),
            )
            for call in fields.pop("calls")
        )
        return cls(calls=calls, **fields)

    def text(self) -> str:
        """Return lines of Python that make the calls, for a reader to paste."""
        lines = ["import torch", "from tests.fuzz.tensors import tensor", "from workbench import ops"]
        if any("epilogue" in call.options for call in self.calls):
            lines.append("from workbench.kernels import epilogues")
        if any("window" in call.options for call in self.calls):
            lines.append("from workbench.kernels.attention import Scoring, Window")
        if self.threads > 1:
            lines.append(f"# in {self.threads} threads at once:")
        if self.on_stream:
            lines.append("# in torch.cuda.stream(torch.cuda.Stream()):")
        for place, call in enumerate(self.calls):
            lines += self._switches(call.mode)
            lines += _lines_of(self.operator, call, place)
        return "\n".join(lines)

    def _switches(self, mode: Mode) -> list[str]:
        """Return lines that set those of torch's global switches that some call of the case turns on."""
        lines = []
        if any(call.mode.tf32 for call in self.calls):
            precision = "tf32" if mode.tf32 else "ieee"
            lines.append(f'torch.backends.cuda.matmul.fp32_precision = "{precision}"')
            lines.append(f'torch.backends.cudnn.conv.fp32_precision = "{precision}"')
        if any(call.mode.deterministic for call in self.calls):
            lines.append(f"torch.use_deterministic_algorithms({mode.deterministic}, warn_only=True)")
        return lines


def _tensor_from(spec: dict[str, Any]) -> TensorSpec:
    layout: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in spec.pop("layout").items()
    }
    return TensorSpec(**{**spec, "shape": tuple(spec["shape"])}, layout=Layout(**layout))


def _lines_of(operator: str, call: Call, place: int) -> list[str]:
    lines = [f"{name} = {spec.text(call.seed(place, name))}" for name, spec in call.tensors.items()]
    mode = call.mode
    within = {GRAD: [], NO_GRAD: ["torch.no_grad()"], INFERENCE: ["torch.inference_mode()"]}[mode.grad]
    if mode.autocast:
        first = next(iter(call.tensors), "input")
        kind = f"{first}.device.type"
        within.append(f"torch.autocast({kind}, dtype=torch.{mode.autocast})")
    indent = ""
    if within:
        lines.append(f"with {', '.join(within)}:")
        indent = "    "
    arguments = [f"{name}={name}" for name in call.tensors if not is_of_epilogue(name)]
    arguments += [_argument(name, value) for name, value in call.options.items()]
    lines.append(f"{indent}result = ops.{operator}({', '.join(arguments)})")
    followed = [name for name, spec in call.tensors.items() if spec.requires_grad and spec.is_floating]
    if mode.grad == GRAD and followed:
        lines.append("first = result if isinstance(result, torch.Tensor) else result[0]")
        direction = f"direction_of(first, {place}{', is_one=True' if mode.one_gradient else ''})"
        lines.append("from tests.fuzz.judging import direction_of")
        lines.append(f"gradients = torch.autograd.grad(first, [{', '.join(followed)}], {direction})")
    return lines


def is_of_epilogue(name: str) -> bool:
    """Return whether a tensor is an operand of the epilogue, and not of the operator."""
    return name[0] == "e" and name[1:].isdigit()


def _argument(name: str, value: Any) -> str:
    if name == "epilogue":
        functors = (f"epilogues.{functor}({', '.join(map(_plain, given))})" for functor, *given in value)
        return f"epilogue={' | '.join(functors)}"
    if name == "window":
        return f"scoring=Scoring(window=Window(*{tuple(value)}))"
    return f"{name}={_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, str) and (value.startswith("torch.") or is_of_epilogue(value)):
        return value
    return repr(tuple(value)) if isinstance(value, list) else repr(value)
