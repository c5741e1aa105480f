"""The launches of calls that are not warm: each is kept by all arguments of the function that made it.

Some calls cannot be warm, such as those in a transform of torch.func or in forward mode. Their operators
check and choose anew each time, but a launch of equal arguments is checked and planned only twice. Its key is
made of every argument, and not written by hand. A launch with an argument of an unknown class is not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from workbench import compat
from workbench.launch import Launch

# The latest launches are kept.
MOST_LAUNCHES = 1024

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = frozenset((int, bool, str, type(None), torch.dtype, torch.memory_format, torch.device))


class Kept(NamedTuple):
    """A launch that can be started again.

    Attributes:
        again: starts it with other tensors, a `runtime.replay.Replay`.
        places: for each of its tensors, the position among all tensors of the arguments.
    """

    again: Callable[..., None]
    places: Sequence[int]


class Call(NamedTuple):
    """The arguments of a function that makes launches: a key of their values and layouts; their tensors."""

    key: Hashable
    tensors: Sequence[torch.Tensor]


_kept: dict[Hashable, Kept] = {}
_seen: set[int] = set()  # the hashes of keys that were seen once
_lock = threading.Lock()


def call_of(make: Callable[..., Launch], args: tuple[Any, ...], keywords: dict[str, Any]) -> Call | None:
    """Return a call of `make` as a key and tensors; None if a launch of it cannot be kept.

    Calls with equal keys make equal launches: `make` depends on nothing but its arguments, and of tensors on
    nothing but their layouts, the sizes of their memories, and how their addresses are aligned and lie to one
    another in one memory.
    """
    tensors: list[torch.Tensor] = []
    try:
        values = _key_of((make, args, keywords), tensors)
        first: dict[int, tuple[int, int]] = {}
        same: dict[int, int] = {}
        lying = []
        for place, tensor in enumerate(tensors):
            address, memory = tensor.data_ptr(), tensor.untyped_storage()
            begin, start = first.setdefault(memory._cdata, (place, address))
            object_ = same.setdefault(id(tensor), place)
            lying.append((object_, begin, address - start, address & 15, memory.nbytes()))
        key = values, tuple(lying)
        hash(key)
        return Call(key, tensors)
    except (_UnknownError, RuntimeError, TypeError):  # some tensors have no memory, some values no hash
        return None


def find(call: Call) -> Kept | None:
    """Return the launch of an earlier call like this one."""
    return _kept.get(call.key)


def keep(call: Call, again: Callable[..., None], given: Sequence[torch.Tensor]) -> None:
    """Keep a launch at the second such call, if all its tensors are arguments of the call."""
    known = {id(tensor): place for place, tensor in enumerate(call.tensors)}
    if not all(id(tensor) in known for tensor in given):
        return
    with _lock:
        if hash(call.key) not in _seen:  # such as a call with a new random seed
            if len(_seen) >= MOST_LAUNCHES:
                _seen.clear()
            _seen.add(hash(call.key))
            return
        if len(_kept) >= MOST_LAUNCHES:
            del _kept[next(iter(_kept))]
        _kept[call.key] = Kept(again, [known[id(tensor)] for tensor in given])


def clear() -> None:
    """Forget all launches."""
    with _lock:
        _kept.clear()
        _seen.clear()


class _UnknownError(Exception):
    """An argument is of a class whose values cannot be compared."""


def _key_of(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """Return a key for a value, and add its tensors to the list."""
    kind = type(value)
    if kind in _CONSTANTS:
        return kind, value
    if kind in _TENSORS:
        if value.layout is not torch.strided or value.is_nested:
            raise _UnknownError
        tensors.append(value)
        flags = value.is_neg(), value.is_conj(), value.is_meta
        return value.shape, value.stride(), value.dtype, value.device, flags
    if kind is float:
        return kind, repr(value)  # 0.0 and -0.0 are equal
    if kind is dict:
        return kind, *value, *[_key_of(each, tensors) for each in value.values()]
    if hasattr(value, "with_tensors") and hasattr(value, "key"):  # an epilogue
        return kind, value.key, *[_key_of(each, tensors) for each in value.tensors]
    if kind is frozenset:
        return kind, frozenset([_key_of(each, tensors) for each in value])
    if isinstance(value, tuple | list):
        return kind, *[_key_of(each, tensors) for each in value]
    if kind is partial:
        return kind, *[_key_of(each, tensors) for each in (value.func, value.args, value.keywords)]
    if compat.is_kernel(value):
        function: Hashable = value.fn  # Triton hashes a jit function by its source, which takes long
        return function
    if isinstance(value, type) or _is_plain_function(value):
        known: Hashable = value
        return known
    if is_dataclass(value) and kind.__dataclass_params__.frozen:
        return kind, *[_key_of(getattr(value, each.name), tensors) for each in fields(value)]
    raise _UnknownError


def _is_plain_function(value: Any) -> bool:
    """Return whether a value is a function that holds no values: neither a closure nor a bound method."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, FunctionType) and value.__closure__ is None
