"""The launches that operators would start on a machine that is not present."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from tests.drawn import FAMILIES, Draw
from workbench import device, ops
from workbench.device import Device
from workbench.launch import Launch


@contextmanager
def only_made_for(machine: Device) -> Iterator[list[Launch]]:
    """Make operators build launches for that machine, also of kernels in Gluon, and start none.

    Results are zeros: torch is given some of them, such as the indices of maxima.
    """
    made: list[Launch] = []

    def start(make: Callable[..., Launch], *args: Any, **keywords: Any) -> None:
        launch = make(*args, **keywords)
        made.append(launch)
        for result in launch.outputs:
            result.zero_()

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(device, "current", return_value=machine))
        for name, module in sys.modules.items():
            if name.startswith(f"{ops.__name__}.") and hasattr(module, "start"):
                stack.enter_context(mock.patch.object(module, "start", start))
        yield made


def of_problem(family: str, seed: int, machine: Device) -> tuple[str, list[Launch]]:
    """Return the words of a drawn problem, and the launches of its result and of its gradients."""
    problem = FAMILIES[family](Draw(seed, "cpu"))
    given = [t.requires_grad_(t.is_floating_point() and problem.has_gradient) for t in problem.tensors]
    with only_made_for(machine) as made:
        result = problem.ours(*given)
        if problem.has_gradient:
            followed = [t for t in given if t.requires_grad]
            torch.autograd.grad(result, followed, torch.ones_like(result))
    return problem.words, made
