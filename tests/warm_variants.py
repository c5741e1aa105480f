"""Calls of every operator with tensors of many layouts, under torch's modes and switches, in turns.

`steps` draws them. A test makes each call twice: as users do, where a warm call may answer, and by the
operator's own function, which checks and chooses everything anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from workbench import ops, profiler
from workbench.operators import Arguments, named, specs

OPERATORS = tuple(name for name in specs() if hasattr(ops, name))

Make = Callable[[torch.Tensor], torch.Tensor]


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:].view(tensor.shape)
    return made.copy_(tensor)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)[..., 0]
    return made.copy_(tensor)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    size = 16 // tensor.element_size() * 3
    made = torch.empty(tensor.numel() + size, dtype=tensor.dtype, device=tensor.device)[size:]
    return made.view(tensor.shape).copy_(tensor)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return tensor.clone()
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _followed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor.clone()


def _parameter(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor.clone(), requires_grad=tensor.is_floating_point())


def _negative(tensor: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(tensor.neg()) if tensor.is_floating_point() else tensor.clone()


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


# How one tensor, or all tensors, of a call are made from contiguous ones, which are never passed themselves.
LAYOUTS: dict[str, Make] = {
    "plain": torch.clone, "misaligned": _misaligned, "strided": _strided, "offset": _offset,
    "transposed": _transposed, "requires grad": _followed, "parameter": _parameter, "negative": _negative,
}  # fmt: skip
DTYPES: dict[str, Make] = {
    "fp16": lambda t: t.half() if t.is_floating_point() else t.clone(),
    "fp32": lambda t: t.float() if t.is_floating_point() else t.clone(),
    "fp64": _double,
}


@contextmanager
def tf32() -> Iterator[None]:
    """Let matrix units round fp32, by torch's switches."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _default_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _forward_mode() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


MODES: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "no mode": lambda kind: nullcontext(),
    "no_grad": lambda kind: torch.no_grad(),
    "inference": lambda kind: torch.inference_mode(),
    "autocast bf16": lambda kind: torch.autocast(kind, dtype=torch.bfloat16),
    "autocast fp16": lambda kind: torch.autocast(kind, dtype=torch.float16),
    "tf32": lambda kind: tf32(),
    "deterministic": lambda kind: _deterministic(),
    "default fp64": lambda kind: _default_double(),
    "forward mode": lambda kind: _forward_mode(),
}


@dataclass(frozen=True)
class Step:
    """A call of an operator.

    Attributes:
        name: what is special about it.
        make: makes the arguments, new tensors each time.
        mode: the context to call it in, as a function of the type of torch's device.
    """

    name: str
    make: Callable[[], Arguments]
    mode: Callable[[str], AbstractContextManager[Any]]


def steps(operator: str, count: int, seed: int, **how: Any) -> Iterator[Step]:
    """Yield calls of an operator; each kind of call occurs several times among others.

    Args:
        operator: the operator's name in `ops`.
        how: what `profiler.arguments_of` is given.
    """
    draw = random.Random(f"{operator} {seed}")
    base = profiler.arguments_of(operator, named(operator).defaults(is_gpu=False) | how)
    tensors = list(_tensors_in([*base.args, *base.keywords.values()]))
    kinds = []
    for _ in range(max(count // 4, 1)):
        dtype = draw.choice([*DTYPES, *["as it is"] * 4])
        layout, place = draw.choice(list(LAYOUTS)), draw.randrange(-1, len(tensors))
        kinds.append((dtype, layout, place, draw.choice([*MODES, *["no mode"] * 6])))
    for _ in range(count):
        dtype, layout, place, mode = draw.choice(kinds)

        def make(dtype: str = dtype, layout: str = layout, place: int = place) -> Arguments:
            convert = DTYPES.get(dtype, torch.clone)
            changed = range(len(tensors)) if place < 0 else (place,)
            made = iter(
                [LAYOUTS[layout if i in changed else "plain"](convert(t)) for i, t in enumerate(tensors)]
            )
            return Arguments(
                tuple(_with_tensors(base.args, made)),
                dict(zip(base.keywords, _with_tensors(base.keywords.values(), made), strict=True)),
            )

        yield Step(f"{operator}: {dtype}, {layout} at {place}, {mode}", make, MODES[mode])


def tensors_of(arguments: Arguments) -> list[torch.Tensor]:
    """Return all tensors among the arguments, also those of epilogues."""
    return list(_tensors_in([*arguments.args, *arguments.keywords.values()]))


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)
        elif hasattr(value, "with_tensors"):
            yield from value.tensors


def _with_tensors(values: Any, made: Iterator[torch.Tensor]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield next(made)
        elif isinstance(value, list | tuple) and any(True for _ in _tensors_in(value)):
            yield type(value)(_with_tensors(value, made))
        elif hasattr(value, "with_tensors"):
            yield value.with_tensors([next(made) for _ in value.tensors])
        else:
            yield value
