"""Launches kept ready: what a call would check and compute again is done once for tensors that lie alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import torch

from workbench import compat, device
from workbench.device import planning_for
from workbench.errors import ArgumentTypeError, InvalidArgumentError
from workbench.launch import Launch
from workbench.runtime.replay import Bucket, Replay, is_only_prepared, only_prepared, run_once

MOST_KEPT = 4096

_KEY = "Have in it shapes, strides, dtypes and devices of all tensors, and what else a launch is made of."


class LaunchCache:
    """Launches by all that they depend on except where their tensors lie; any thread may use it."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Replay] = {}
        self._lying: dict[Hashable, list[tuple[Any, ...]]] = {}
        self._making = threading.RLock()

    def run(self, key: Hashable, make: Callable[..., Launch], *tensors: torch.Tensor) -> Replay | None:
        """`make(*tensors).run()`; from the second time on with a key, its kernels are only started.

        Args:
            key: shapes, strides, dtypes and device of the tensors, and whatever else `make` depends on; of
                floats the `repr`, where they are 0 at least: 0.0 and -0.0 are equal.
            make: makes the launch of these tensors; its steps are given each of them, and no others.
            tensors: what it is to run on.

        Returns:
            what starts it again; None where kernels are interpreted.

        Raises:
            TracingError: torch traces the call, or a tensor is a fake one. What `make` raises.
        """
        again = self._kept.get(key)
        if again is None:
            compat.refuse_tracing()  # before anything is made of tensors that may have no memory
            compat.refuse_fakes(*tensors)
            if len(set(map(id, tensors))) < len(tensors):
                # Another object in each place, so that the launch tells them apart.
                tensors = tuple(tensor.detach() for tensor in tensors)
            if device.is_interpreter():
                self._interpret(key, make, *tensors)
                return None
            with self._making:
                if (again := self._kept.get(key)) is None:
                    again = Replay(_made_here(make, *tensors), *tensors)
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    self._kept[key] = again
        again(*tensors)
        return again

    def _interpret(self, key: Hashable, make: Callable[..., Launch], *tensors: torch.Tensor) -> None:
        """Run a launch of its own; where a device is pretended one that is kept, as it would be there.

        There the key is checked too: a kernel that is kept reads every tensor as one of its first ones.
        """
        machine = device.running()
        if not machine.is_pretended or is_only_prepared():
            run_once(_made_here(make, *tensors))
            return
        lying = [_made_of(make), *map(_lying, tensors)]
        with self._making:
            if (again := self._kept.get((key, machine))) is None:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                again = self._kept[key, machine] = Replay(_made_here(make, *tensors), *tensors)
                self._lying[key, machine] = lying
            kept = self._lying[key, machine]
        if lying != kept:
            unlike = ", ".join(
                f"{one} for {first}" for one, first in zip(lying, kept, strict=True) if one != first
            )
            raise InvalidArgumentError("key", f"it is that of another call: {unlike}", _KEY)
        if missing := {tensor.device for tensor in tensors} - set(_parts(key)):
            raise InvalidArgumentError("key", f"nothing in it is {', '.join(map(str, missing))}", _KEY)
        again(*tensors)


class BucketCache:
    """Compiled kernels by the kinds of their arguments, for launches of one step; any thread may use it.

    A size changes no more of such a launch than the grid and a number.

    Args:
        leading: how many of the kernel's arguments each call gives, as of :class:`Bucket`.
    """

    def __init__(self, leading: int) -> None:
        self._leading = leading
        self._kept: dict[Hashable, Bucket] = {}
        self._making = threading.RLock()
        self.get = self._kept.get

    def make(self, key: Hashable, launch: Callable[[], Launch]) -> Bucket | None:
        """The bucket of such a launch and all alike, kept from now on; None where kernels are interpreted."""
        if device.is_interpreter():
            return None
        with self._making:
            if (found := self._kept.get(key)) is None:
                made = _made_here(launch)
                made.check_ready()
                (step,) = made.steps
                found = self._kept[key] = Bucket(step, self._leading)
        return found


def _made_of(value: Any) -> Any:
    """Functions and options that make a launch, and not its tensors, which are given besides."""
    if isinstance(value, partial):
        return value.func, *map(_made_of, (*value.args, *value.keywords.values()))
    if isinstance(value, tuple):
        return tuple(map(_made_of, value))
    if isinstance(value, torch.Tensor) or hasattr(value, "with_tensors"):  # an epilogue, a scoring
        return type(value)
    return repr(value) if isinstance(value, float) else value  # 0.0 and -0.0 are equal


def _lying(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a key says of a tensor: dtype, device, lengths and strides, but those of one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.dtype, tensor.device, tuple([pair for pair in pairs if pair[0] != 1])


def _parts(key: Any) -> Iterator[Hashable]:
    """What a key consists of."""
    if isinstance(key, tuple):
        for each in key:
            yield from _parts(each)
    else:
        yield key


def _made_here(make: Callable[..., Launch], *tensors: torch.Tensor) -> Launch:
    """The launch for this process's device, which is to run it, whatever others are planned for."""
    with planning_for(None):
        return make(*tensors)


def warmup(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Compile and keep ready all that `operator(*args, **kwargs)` would start, and start nothing.

    The next call of that kind, from any thread, then only starts kernels: `warmup(ops.matmul, a, b)`, before
    a CUDA graph is captured, or a request served. What torch does in the operator besides our kernels, such
    as to fill a tensor with zeros, is done. Of gradients, warm up the function that asks for them. Where
    kernels are interpreted, arguments are checked and that is all.

    Args:
        operator: a function of `ops`, or one that calls several.
        args, kwargs: its arguments. A tensor on the meta device stands for one of its shape, strides and
            dtype on this process's device, aligned to 16 bytes: `torch.empty(4096, 64, device="meta")`; also
            inside of an epilogue, of lists, tuples and dictionaries.

    Raises:
        ArgumentTypeError: `operator` cannot be called. KernelError: a kernel fails to compile; and what the
        operator raises.
    """
    if not callable(operator):
        raise ArgumentTypeError("operator", f"got a {type(operator).__name__}", "Give a function of ops.")
    with only_prepared():
        operator(*map(_real, args), **{name: _real(value) for name, value in kwargs.items()})


def _real(value: Any) -> Any:
    """The value with tensors in the places of those that stand for some; itself where none does."""
    if isinstance(value, torch.Tensor):
        return _real_tensor(value) if value.is_meta else value
    if isinstance(value, dict):
        parts = tuple(value.values())
        return value if (made := _real(parts)) is parts else dict(zip(value, made, strict=True))
    if isinstance(value, list | tuple):
        made = list(map(_real, value))
        if all(one is other for one, other in zip(made, value, strict=True)):
            return value
        return made if isinstance(value, list) else compat.tuple_like(value, made)
    if hasattr(value, "with_tensors"):  # an epilogue or a scoring, of which this room does not know
        return value if (made := _real(value.tensors)) is value.tensors else value.with_tensors(made)
    return value


def _real_tensor(value: torch.Tensor) -> torch.Tensor:
    place = device.current().torch_device
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place)
    return made.requires_grad_(value.requires_grad)
