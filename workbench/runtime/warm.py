"""Warm calls: a call like an earlier one starts the earlier call's kernels and does nothing else.

An operator checks its arguments, chooses kernels and allocates its result. For tensors of the same layout it
does the same each time, and that takes longer on the CPU than starting the kernels. So :func:`warm` records
what one call did: the memory that it allocated, the kernels that it started, and torch's own operations, each
with the tensors that it was given. From this *tape* it generates a Python function that does the same on
other tensors. The function begins with a guard that compares all that the operator's choices depended on; if
one thing differs, the operator itself runs. :func:`source_of` shows the generated functions.

A call is recorded the second time that arguments of its kind are passed, with gradients too. It is not
recorded inside a transform of torch.func, in forward mode or under another dispatch mode, nor if it did
something that other tensors could make different, such as reading a value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

from workbench import compat, device
from workbench.runtime.recording import Recorder
from workbench.runtime.replay import is_only_prepared
from workbench.runtime.tape import Tape, compiled, tape_of

P = ParamSpec("P")
R = TypeVar("R")

# Limits of what is kept: types of arguments of an operator; arguments of these types, in which shapes count;
# and of these the calls, which differ in strides, alignments and modes. The latest are kept.
MOST_PATTERNS, MOST_KEYS, MOST_LIKE = 256, 1024, 8
# After so many recordings of such arguments, calls are recorded ever more rarely.
MANY_RECORDINGS = 64

# Subclasses of tensors can change what a function does with them.
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = frozenset((int, bool, str, type(None), torch.dtype, torch.memory_format, torch.device))


def warm(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function like `function` that keeps what its calls do, for calls with similar arguments.

    Args:
        function: an operator. What it does must depend on nothing but the types, values and layouts of its
            arguments, torch's modes, and the switches that are read by :func:`read_switch`.
    """
    patterns: dict[Hashable, Pattern] = {}
    find = patterns.get

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        if keywords:
            values = (*args, *keywords.values())
            kinds: tuple[Any, ...] = (len(args), *keywords, *map(type, values))
        else:
            values, kinds = args, tuple(map(type, args))
        if (pattern := find(kinds)) is None:
            if len(patterns) >= MOST_PATTERNS:
                patterns.clear()
            pattern = patterns[kinds] = Pattern([type(each) for each in values])
        elif (result := pattern.again(*values)) is not None:
            return result  # type: ignore[no-any-return]  # what the function returned
        return pattern.cold(function, args, keywords, values)  # type: ignore[no-any-return]

    vars(call)["patterns"] = patterns
    return call


def source_of(function: Callable[..., Any]) -> list[str]:
    """Return the source of the functions that were generated for warm calls of an operator.

    Raises:
        AttributeError: `function` is not a warm operator.
    """
    patterns: dict[Hashable, Pattern] = function.patterns  # type: ignore[attr-defined]
    kept = [tapes for pattern in patterns.values() for tapes in pattern.kept.values()]
    return [tape.text for tapes in kept for tape in tapes]


def reasons_of(function: Callable[..., Any]) -> list[str]:
    """Return why calls of an operator were recorded in vain, each reason once."""
    patterns: dict[Hashable, Pattern] = function.patterns  # type: ignore[attr-defined]
    return sorted({reason for pattern in patterns.values() for reason in pattern.reasons})


def read_switch(read: Callable[[], Any]) -> Any:
    """Return `read()`, one of torch's switches; warm calls that depend on it compare it again."""
    value = read()
    if (recorder := compat.recorder_here()) is not None:
        recorder.switches[read] = value
    return value


class Pattern:
    """The calls of an operator whose arguments have the same types.

    Attributes:
        kept: the warm calls by key: the values that are not tensors, and the tensors' shapes.
        reasons: why calls were recorded in vain, or not at all.
        again: a function of all arguments that returns the result of a warm call; None if there is none.
    """

    def __init__(self, types: Sequence[type]) -> None:
        self.kept: dict[Hashable, tuple[Tape, ...]] = {}
        self.reasons: set[str] = set()
        self._lock = threading.Lock()
        self._seen: set[int] = set()  # the keys themselves could hold a user's tensors
        self._recordings: dict[Hashable, int] = {}
        names = [f"a{i}" for i in range(len(types))]
        tensors, parts, nested = [], [], []
        for name, kind in zip(names, types, strict=True):
            if kind in _TENSORS:
                tensors.append(name)
                parts.append(f"{name}.shape")
                nested.append(f"{name}.is_nested")
            elif kind in _CONSTANTS:
                parts.append(name)
            elif kind is float:
                parts.append(f"{name} or repr({name})")  # 0.0 and -0.0 are equal
            elif kind in (tuple, list, torch.Size):
                parts.append(f"whole({name})")
            elif hasattr(kind, "with_tensors") and hasattr(kind, "key"):  # an epilogue
                tensors.append(f"*{name}.tensors")
                parts.append(f"{name}.key")
                nested.append(f"any([each.is_nested for each in {name}.tensors])")
            else:
                self.again: Callable[..., Any] = _nothing
                self._split: Callable[..., Any] | None = None
                return
        if not tensors or tensors[0].startswith("*"):
            self.again, self._split = _nothing, None
            return
        listed, given, key = ", ".join(names), ", ".join(tensors), ", ".join(parts)
        text = (
            f"def again({listed}):\n"
            f"    if {' or '.join(nested)}: return None\n"
            f"    for tape in kept.get(({key},), ()):\n"
            f"        if (result := tape.call({given})) is not None: return result\n"
            f"    return None\n"
            f"def split({listed}):\n"
            f"    return ({key},), ({given},)\n"
        )
        space: dict[str, Any] = {"kept": self.kept, "whole": _whole}
        exec(compiled(text), space)
        self.again, self._split = space["again"], space["split"]

    def cold(
        self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], values: Any
    ) -> Any:
        """Call the function; record what it does if its arguments were seen before."""
        if self._split is None or not _is_recordable(values):
            return function(*args, **keywords)
        try:
            key, tensors = self._split(*values)
        except RuntimeError:  # a nested tensor has no shape
            return function(*args, **keywords)
        if not all(map(_is_plain, tensors)) or any(type(part) is object for part in key):
            return function(*args, **keywords)
        if not self._is_due(key):
            return function(*args, **keywords)
        with (recorder := Recorder(tensors)):
            result = function(*args, **keywords)
        tape = tape_of(recorder, tensors, result)
        if isinstance(tape, str):
            self.reasons.add(tape)
            with self._lock:  # a few recordings in vain are enough
                self._recordings[key] = self._recordings.get(key, 0) + MANY_RECORDINGS // 4
        elif key in self._recordings:
            self.kept[key] = (tape, *self.kept.get(key, ()))[:MOST_LIKE]
        return result

    def _is_due(self, key: Hashable) -> bool:
        """Return whether to record a call that is not warm: not the first one with such a key."""
        with self._lock:
            if (count := self._recordings.get(key, 0)) == 0:
                if hash(key) not in self._seen:
                    if len(self._seen) >= MOST_KEYS:
                        self._seen.clear()
                    self._seen.add(hash(key))
                    return False
                if len(self._recordings) >= MOST_KEYS:
                    oldest = next(iter(self._recordings))
                    del self._recordings[oldest]
                    self.kept.pop(oldest, None)
            self._recordings[key] = count + 1
        if count < MANY_RECORDINGS:
            return True
        self.reasons.add("calls with tensors of these shapes were recorded so often that few later ones are")
        return not count & (count - 1)


def _nothing(*values: Any) -> None:
    """Return None: calls with arguments of these types are not kept."""


def _whole(values: Sequence[Any]) -> Hashable:
    """Return a sequence of whole numbers as a key; for another one a key that equals no other."""
    return tuple(values) if all(type(each) is int for each in values) else object()


def _is_recordable(values: Sequence[Any]) -> bool:
    """Return whether a call can be recorded at the moment, whatever its tensors are."""
    machine = device.running()
    return (
        (machine.is_gpu or machine.is_pretended)
        and not is_only_prepared()
        and forward_ad._current_level < 0
        and not compat.watching_modes()
        and not torch._C._are_functorch_transforms_active()
        and not any(type(each) in _TENSORS and each.is_nested for each in values)
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a strided one with memory."""
    return (
        type(tensor) in _TENSORS
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
        and not torch._is_zerotensor(tensor)
    )
