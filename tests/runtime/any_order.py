"""Calls of every operator in any order on a pretended GPU, which starts nothing and records all arguments.

Run as a script in a process that compiles kernels, it prints for each operator what a warm call did otherwise
than the operator's own function, or nothing.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from tests.runtime import pretended_gpu as gpu
from tests.warm_variants import OPERATORS, Step, steps, tensors_of
from workbench import device, ops
from workbench.errors import WorkbenchError
from workbench.runtime import launches, warm

# How many calls are made of each operator, each of them twice.
COUNT = 24


def raw(value: Any) -> Any:
    """Return a started kernel's argument as a comparable value, with addresses as they are."""
    if isinstance(value, torch.Tensor):
        value = value.data_ptr()
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(raw, value)]
    return (
        value if isinstance(value, int | float | str | None) else getattr(value, "__name__", str(type(value)))
    )


def outcome(function: Callable[..., Any], step: Step) -> Any:
    """Return the layouts of a call's results and the kernels that it started, or the class of its error."""
    arguments = step.make()
    gpu.started.clear()
    with step.mode("cpu"):
        try:
            result = function(*arguments.args, **arguments.keywords)
        except WorkbenchError as error:
            return type(error).__name__
    results = list(result) if isinstance(result, tuple | list) else [result]
    known = {"argument": tensors_of(arguments), "result": results}

    def named(value: Any) -> Any:
        """Replace an address by the tensor that it is in; that of a workspace by its alignment."""
        if isinstance(value, list):
            return list(map(named, value))
        if not isinstance(value, int) or value < gpu.FIRST_ADDRESS:
            return repr(value)
        for kind, tensors in known.items():
            for number, tensor in enumerate(tensors):
                memory = tensor.untyped_storage()
                if memory.data_ptr() <= value < memory.data_ptr() + max(memory.nbytes(), 1):
                    return f"{kind} {number} + {value - tensor.data_ptr()}"
        return f"elsewhere + {value % 16}"

    layouts = [
        str((t.shape, t.stride(), t.dtype, t.requires_grad, t.is_inference(), type(t).__name__))
        for t in results
    ]
    return layouts, named(gpu.started)


def unlike(operator: str, seed: int, *, with_modes: bool = True) -> list[str]:
    """Return the calls whose warm form differs from the operator's own function."""
    function, wrong = getattr(ops, operator), []
    for step in steps(operator, COUNT, seed):
        if not with_modes and not step.name.endswith("no mode"):
            continue
        mine, cold = outcome(function, step), outcome(function.__wrapped__, step)
        with patch.object(launches, "find", _nothing):
            wanted = outcome(function.__wrapped__, step)
        for which, got in (("warm", mine), ("with kept launches", cold)):
            if got != wanted:
                pairs = [] if isinstance(wanted, str) else zip(got[1], wanted[1], strict=False)
                differing = next(((a, b) for a, b in pairs if a != b), (got, wanted))
                wrong.append(f"{step.name}, {which}: {differing}")
    return wrong


def checked(operator: str) -> list[str]:
    """Return what is wrong with an operator's warm calls."""
    wrong = unlike(operator, seed=0)
    function = getattr(ops, operator)
    if not warm.source_of(function):
        wrong.append(f"no call of it is warm: {warm.reasons_of(function)}")
    function.patterns.clear()
    with patch.object(warm, "MOST_KEYS", 2), patch.object(warm, "MOST_PATTERNS", 2):
        wrong += unlike(operator, seed=1)
        if len(function.patterns) > 2 or any(len(each.kept) > 2 for each in function.patterns.values()):
            wrong.append("its caches are not bounded")
    thread = threading.Thread(target=lambda: wrong.extend(unlike(operator, seed=0, with_modes=False)))
    thread.start()
    thread.join()
    return wrong


def main() -> None:
    """Check the operators that are named, or all."""
    gpu.pretend()
    gpu.in_short = raw
    warnings.simplefilter("ignore")
    # Classes are read on a CPU, and would not be on a GPU.
    softmax = sys.modules["workbench.ops.softmax"]
    kind = property(lambda self: "cpu")
    with patch.object(device.Device, "torch_device", kind), patch.object(softmax, "_check_targets", _nothing):
        for operator in sys.argv[1:] or OPERATORS:
            try:
                wrong = checked(operator)
            except Exception:
                wrong = [traceback.format_exc()]
            print(json.dumps({"operator": operator, "wrong": wrong}), flush=True)


def _nothing(*_: object) -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
