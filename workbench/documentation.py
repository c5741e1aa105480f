"""The documentation of all operators, written from their specs and from recordings."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import torch

from workbench import comparing, device
from workbench.bench import recording
from workbench.bench.baseline import VENDOR_LIBRARIES
from workbench.bench.recording import Line
from workbench.operators.arguments import map_tensors
from workbench.operators.drawing import draw_arguments
from workbench.operators.registry import specs
from workbench.operators.spec import OperatorSpec

HEAD = """\
# Operators

This page is generated from the specs in `workbench/operators` and the recordings that the package ships, by
`python -m workbench operators --output docs/operators.md`. A test fails if it is out of date.

Every operator takes tensors with any strides. Where layouts are named, a case names one of them; the first is
the usual one. Dtypes are those that the profiler and suites draw; operators that move, add or compare take
integers too. *Gradient* says whether autograd goes through the operator; gradients themselves have lines of
their own.

*Speed* is the time of the fastest library in a recorded case, divided by ours: above 1 we are faster. It is
the geometric mean over all cases, each in its newest run, with the least and the most. The libraries are
torch in eager mode and what it calls: cuBLAS, cuDNN, FlashAttention-2. Compilers and other Triton libraries
do not count. *Call* is what a call costs the CPU, in microseconds, and in parentheses what torch's call costs
for the same case in the same run: the newest that has both.
"""

# Whose times count as a library's.
_LIBRARIES = ("torch", "cuDNN", "FlashAttention-2", *chain.from_iterable(VENDOR_LIBRARIES.values()))

_LAYOUTS: Mapping[str, Sequence[str]] = {
    "layout": recording.LAYOUTS, "memory_format": recording.MEMORY_FORMATS,
}  # fmt: skip


def page() -> str:
    """Return docs/operators.md: a line for each operator that has a function, or is a gradient of one."""
    lines = recording.load_all()
    rows = [_row(spec, lines) for spec in specs().values() if comparing.has_function(spec)]
    head = (
        "Operator",
        "Meaning",
        "torch's operators",
        "Case",
        "Layouts",
        "Dtypes",
        "Gradient",
        "Speed",
        "Call, us",
    )
    table = [head, ("---",) * len(head), *rows]
    return HEAD + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in table)


def _row(spec: OperatorSpec, lines: Sequence[Line]) -> tuple[str, ...]:
    aten = ", ".join(f"`{name}`" for name in spec.aten) or "none"
    case = ", ".join(f"`{key}`" for key in spec.case)
    gradient = "(is a gradient)" if spec.of is not None else "yes" if has_gradient(spec) else "no"
    return (
        f"`{spec.name}`", meaning_of(spec), aten, case, _layouts(spec), ", ".join(spec.dtypes), gradient,
        speed_of(spec.name, lines), call_cost_of(spec.name, lines),
    )  # fmt: skip


def meaning_of(spec: OperatorSpec) -> str:
    """Return the first sentence about an operator's meaning."""
    if spec.of is not None:
        names = list(inspect.signature(comparing.function_of(spec.of)).parameters)
        followed = [f"`{names[place]}`" for place in spec.argnums if place < len(names)]
        which = "gradient" if len(followed) == 1 else "gradients"
        return f"The {which} of {' and '.join(followed)} in `{spec.of.name}`"
    meaning = spec.meaning.func if isinstance(spec.meaning, partial) else spec.meaning
    text = meaning.__doc__ or getattr(spec.function, "__doc__", None) or "See its page."
    about = " ".join(text.partition("\n\n")[0].split()).rstrip(".")
    return about.replace(":func:", "").replace("|", "\\|")


def _layouts(spec: OperatorSpec) -> str:
    for key, choices in _LAYOUTS.items():
        if key in spec.case:
            usual = spec.case[key][1]
            return ", ".join([usual, *(each for each in choices if each != usual)])
    return "any"


def has_gradient(spec: OperatorSpec) -> bool:
    """Return whether autograd goes through an operator's function, which is called with a small case.

    Raises:
        UnknownNameError: it has no function.
    """
    dtype = "fp32" if "fp32" in spec.dtypes else spec.dtypes[0]
    arguments = draw_arguments(spec, spec.defaults(is_gpu=False), dtype, device.current().torch_device)
    followed = map_tensors(arguments, _followed)
    result = comparing.our_call_of(spec, followed)()
    first = result if isinstance(result, torch.Tensor) else result[0]
    return bool(first.requires_grad)


def _followed(tensor: torch.Tensor) -> Any:
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


def speed_of(op: str, lines: Iterable[Line]) -> str:
    """Return an operator's speed beside the fastest library, for each device that has recorded it."""
    own = [line for line in lines if line.op == op and line.mode != "interpreter"]
    said = []
    for name in dict.fromkeys(line.device for line in own):
        ratios = list(_ratios([line for line in own if line.device == name]))
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            extent = f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} cases"
            said.append(f"{name}: {mean:.2f} ({extent if len(ratios) > 1 else '1 case'})")
    return "; ".join(said) or "not recorded"


def call_cost_of(op: str, lines: Iterable[Line]) -> str:
    """Return the CPU time of a call of ours and of torch, from the newest case that has both in one run."""
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for line in sorted(lines, key=lambda line: line.time, reverse=True):
        if line.op == op and "launch_us" in line.config:
            case = f"{line.run} {sorted(line.case.items())} {line.dtype} {line.mode} {line.data}"
            cases[case][line.provider] = line.config["launch_us"]
    both = (by for by in cases.values() if {"workbench", "torch"} <= by.keys())
    for by in islice(both, 1):
        return f"{by['workbench']:.0f} ({by['torch']:.0f})"
    return "not recorded"


def _ratios(lines: Sequence[Line]) -> Iterator[float]:
    """Yield each case's ratio in the newest run in which both ours and a library were timed."""
    runs: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in sorted(lines, key=lambda line: line.time, reverse=True):
        case = specs()[line.op].completed(line.case)
        runs[f"{sorted(case.items())} {line.dtype} {line.mode}"][line.run].append(line)
    for by_run in runs.values():
        yield from islice(filter(None, map(_ratio_of, by_run.values())), 1)


def _ratio_of(lines: Sequence[Line]) -> float | None:
    times = {line.provider: line.median_ms for line in lines}
    others = [times[name] for name in _LIBRARIES if name in times]
    return min(others) / times["workbench"] if others and "workbench" in times else None
