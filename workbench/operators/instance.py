"""Instances: the named configurations of an operator's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from workbench.errors import WorkbenchError
from workbench.launch import Launch


@dataclass(frozen=True)
class Instance:
    """A named configuration of a template, for the tensors that it was listed for.

    Attributes:
        name: a name that is unique among the instances of a list.
        make: the invoker, with the tensors bound.
        keywords: the other arguments of the invoker.
        is_shipped: whether a call of the operator uses this instance.
    """

    name: str
    make: Callable[..., Launch] = field(repr=False)
    keywords: Mapping[str, Any]
    is_shipped: bool = False

    def launch(self) -> Launch:
        """Return the launch; raise the invoker's error if it does not support these tensors."""
        return self.make(**self.keywords)

    @cached_property
    def why_not(self) -> str:
        """The reason if the invoker refuses such a launch; empty if it makes one."""
        try:
            self.launch()
        except WorkbenchError as error:
            return str(error)
        return ""

    @property
    def is_supported(self) -> bool:
        """True if the invoker makes such a launch; a device may still have too little memory for it."""
        return not self.why_not


def instances_of(
    make: Callable[..., Launch], shipped: Mapping[str, Any] | None, others: Iterable[Mapping[str, Any]] = ()
) -> list[Instance]:
    """Return instances of the shipped configuration and of others, which are named by their keywords.

    Args:
        make: the invoker, with everything bound but the keywords.
        shipped: the keywords of a call of the operator; the invoker chooses the missing ones. None if a call
            does something else.
        others: the keywords of other configurations; duplicates are dropped.
    """
    found: dict[str, Instance] = {}
    if shipped is not None:
        found["shipped"] = Instance("shipped", make, shipped, is_shipped=True)
    for keywords in others:
        name = _name_of(keywords)
        found.setdefault(name, Instance(name, make, keywords))
    return list(found.values())


def _name_of(keywords: Mapping[str, Any]) -> str:
    """Return a name made of the keywords, such as "persistent_128x256x64_8_warps_3_stages"."""
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


def results_of(launch: Launch) -> tuple[torch.Tensor, ...]:
    """Run a launch and return its results; on torch's meta device nothing is computed, as in torch."""
    is_planned = any(tensor.is_meta for tensor in launch.outputs)
    return launch.outputs if is_planned else launch.run()
