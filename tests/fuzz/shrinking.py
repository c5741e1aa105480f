"""Search for a smaller case with the same failure: fewer calls, plainer modes and layouts, less data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.cases import GRAD, NO_GRAD, Call, Case, Mode, is_of_epilogue
from tests.fuzz.tensors import CONTIGUOUS, TensorSpec

# Options that hold sizes of tensors and change with them.
SIZED = ("normalized_shape",)


def shrink(case: Case, fails: Callable[[Case], bool], *, seconds: float = 30.0, attempts: int = 400) -> Case:
    """Return the smallest failing case that the search finds; the given case if it finds none.

    Args:
        fails: a function that returns whether a case has the same failure.
        seconds, attempts: limits of the search: its time, and the number of cases that are tried.
    """
    deadline, left = time.monotonic() + seconds, attempts
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in candidates(case):
            if time.monotonic() > deadline or left == 0:
                return case
            left -= 1
            if fails(candidate):
                case, is_smaller = candidate, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Yield cases that are smaller in one respect, the largest reductions first."""
    for place in range(len(case.calls)):
        if len(case.calls) > 1:
            yield replace(case, calls=(*case.calls[:place], *case.calls[place + 1 :]))
    if case.threads > 1:
        yield replace(case, threads=1)
    if case.on_stream:
        yield replace(case, on_stream=False)
    for size in sorted(_sizes(case), reverse=True):
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if smaller < size:
                yield _resized(case, size, smaller)
    for place, call in enumerate(case.calls):
        for smaller_call in _smaller_calls(call):
            yield replace(case, calls=(*case.calls[:place], smaller_call, *case.calls[place + 1 :]))


def _sizes(case: Case) -> set[int]:
    return {n for call in case.calls for spec in call.tensors.values() for n in spec.shape if n > 1}


def _resized(case: Case, size: int, smaller: int) -> Case:
    """Return the case with `size` replaced everywhere, since equal lengths usually belong together."""

    def of_options(name: str, value: Any) -> Any:
        if name in SIZED:
            return [smaller if n == size else n for n in value]
        return value

    calls = []
    for call in case.calls:
        tensors = {
            name: replace(spec, shape=tuple(smaller if n == size else n for n in spec.shape))
            for name, spec in call.tensors.items()
        }
        options = {name: of_options(name, value) for name, value in call.options.items()}
        calls.append(replace(call, tensors=tensors, options=options))
    return replace(case, calls=tuple(calls))


def _smaller_calls(call: Call) -> Iterator[Call]:
    if call.mode != Mode():
        yield replace(call, mode=Mode())
    for mode in _plainer_modes(call.mode):
        yield replace(call, mode=mode)
    for name in call.options:
        yield replace(call, options={n: value for n, value in call.options.items() if n != name})
    chain = call.options.get("epilogue", [])
    for place in range(len(chain)) if len(chain) > 1 else ():
        options = call.options | {"epilogue": chain[:place] + chain[place + 1 :]}
        dropped = {each for each in chain[place] if isinstance(each, str) and is_of_epilogue(each)}
        yield replace(
            call, tensors={n: t for n, t in call.tensors.items() if n not in dropped}, options=options
        )
    for name in call.tensors:
        if not is_of_epilogue(name):
            yield replace(call, tensors={n: t for n, t in call.tensors.items() if n != name})
    for name, spec in call.tensors.items():
        for plainer in _plainer_tensors(spec):
            yield replace(call, tensors=call.tensors | {name: plainer})


def _plainer_modes(mode: Mode) -> Iterator[Mode]:
    if mode.autocast:
        yield replace(mode, autocast="")
    if mode.deterministic:
        yield replace(mode, deterministic=False)
    if mode.tf32:
        yield replace(mode, tf32=False)
    if mode.one_gradient:
        yield replace(mode, one_gradient=False)
    if mode.grad != GRAD:
        yield replace(mode, grad=GRAD)
        if mode.grad != NO_GRAD:
            yield replace(mode, grad=NO_GRAD)


def _plainer_tensors(spec: TensorSpec) -> Iterator[TensorSpec]:
    layout = spec.layout
    if layout != CONTIGUOUS:
        yield replace(spec, layout=CONTIGUOUS)
    parts: dict[str, Any] = {"order": (), "steps": (), "gap": 0, "expanded": (), "offset": 0}
    for name, plain in parts.items():
        plainer = replace(layout, **{name: plain})
        if plainer not in (layout, CONTIGUOUS):
            yield replace(spec, layout=plainer)
    if layout.offset > 1:
        yield replace(spec, layout=replace(layout, offset=1))
    if spec.requires_grad:
        yield replace(spec, requires_grad=False)
    if spec.values in ("special", "large_mean", "zeros", "unit") or spec.values.startswith("scaled"):
        yield replace(spec, values="normal")
