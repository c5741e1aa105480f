"""Cache of prepared launches: checks and planning are done once per combination of shapes and strides."""

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


class LaunchCache:
    """Prepared launches, keyed by all that they depend on except the addresses of tensors. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Replay] = {}
        self._layouts: dict[Hashable, list[tuple[Any, ...]]] = {}
        self._making = threading.RLock()

    def run(self, key: Hashable, make: Callable[..., Launch], *tensors: torch.Tensor) -> Replay | None:
        """Run `make(*tensors)`; with a key that was used before, start its kernels without making it again.

        Args:
            key: shapes, strides, dtypes and devices of the tensors, and whatever else `make` depends on. Use
                the `repr` of floats that can be zero, because 0.0 and -0.0 are equal.
            make: makes the launch; its steps take each of `tensors` and no other tensors but workspaces.
            tensors: the tensors to run on.

        Returns:
            The replay that starts the launch again; None if kernels are interpreted.

        Raises:
            TracingError: torch traces the call, or a tensor is fake.
            InvalidArgumentError: (on a pretended device) `key` is that of an unlike call, or lacks a device.
                Also the errors of `make`.
        """
        again = self._kept.get(key)
        if again is None:
            compat.refuse_tracing()  # before anything is made of tensors that may have no memory
            compat.refuse_fakes(*tensors)
            if len(set(map(id, tensors))) < len(tensors):
                # Give each position an object of its own, so that the launch tells them apart.
                tensors = tuple(tensor.detach() for tensor in tensors)
            if device.is_interpreter():
                self._interpret(key, make, *tensors)
                return None
            with self._making:
                if (again := self._kept.get(key)) is None:
                    again = Replay(_make_here(make, *tensors), *tensors)
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    self._kept[key] = again
        again(*tensors)
        return again

    def _interpret(self, key: Hashable, make: Callable[..., Launch], *tensors: torch.Tensor) -> None:
        """Run a new launch in the interpreter; on a pretended device a cached one, as on the real device.

        A cached launch assumes the shapes and strides of its first tensors. So on a pretended device, it is
        also checked that calls with one key have tensors of one layout, and that the key has their devices.
        """
        machine = device.running()
        if not machine.is_pretended or is_only_prepared():
            run_once(_make_here(make, *tensors))
            return
        layouts = [_static_parts(make), *map(_layout_of, tensors)]
        with self._making:
            if (again := self._kept.get((key, machine))) is None:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                again = self._kept[key, machine] = Replay(_make_here(make, *tensors), *tensors)
                self._layouts[key, machine] = layouts
            kept = self._layouts[key, machine]
        if layouts != kept:
            unlike = ", ".join(
                f"{one} for {first}" for one, first in zip(layouts, kept, strict=True) if one != first
            )
            raise InvalidArgumentError(
                "key",
                f"it is that of another call: {unlike}",
                "Put shapes, strides and dtypes of all tensors into it, and all else that `make` depends on.",
            )
        if missing := {tensor.device for tensor in tensors} - set(_leaves(key)):
            raise InvalidArgumentError(
                "key",
                f"nothing in it is {', '.join(map(str, missing))}",
                "Put the device of every tensor into it.",
            )
        again(*tensors)


class BucketCache:
    """Compiled kernels of single-step launches, keyed by their arguments' specialization. Thread-safe.

    A size may change only the grid of such a launch and one number among its arguments.

    Args:
        leading: the number of arguments that each call passes, as in :class:`Bucket`.
    """

    def __init__(self, leading: int) -> None:
        self._leading = leading
        self._kept: dict[Hashable, Bucket] = {}
        self._making = threading.RLock()
        self.get = self._kept.get

    def make(self, key: Hashable, launch: Callable[[], Launch]) -> Bucket | None:
        """Return the cached bucket of `key`, made from `launch` if new; None if kernels are interpreted."""
        if device.is_interpreter():
            return None
        with self._making:
            if (found := self._kept.get(key)) is None:
                made = _make_here(launch)
                made.check_ready()
                (step,) = made.steps
                found = self._kept[key] = Bucket(step, self._leading)
        return found


def _static_parts(value: Any) -> Any:
    """Return the functions and options in `make`, and of each tensor only its type."""
    if isinstance(value, partial):
        return value.func, *map(_static_parts, (*value.args, *value.keywords.values()))
    if isinstance(value, tuple):
        return tuple(map(_static_parts, value))
    if isinstance(value, torch.Tensor) or hasattr(value, "with_tensors"):  # an epilogue, a scoring
        return type(value)
    return repr(value) if isinstance(value, float) else value  # 0.0 and -0.0 are equal


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's dtype, device, and the (length, stride) of each dimension whose length is not 1."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.dtype, tensor.device, tuple([pair for pair in pairs if pair[0] != 1])


def _leaves(key: Any) -> Iterator[Hashable]:
    """Yield the leaves of a key of nested tuples."""
    if isinstance(key, tuple):
        for each in key:
            yield from _leaves(each)
    else:
        yield key


def _make_here(make: Callable[..., Launch], *tensors: torch.Tensor) -> Launch:
    """Make the launch for this process's device, which runs it, even inside `planning_for`."""
    with planning_for(None):
        return make(*tensors)


def warmup(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Compile and cache all kernels that `operator(*args, **kwargs)` would start, without starting them.

    The next call with such arguments, from any thread, then only starts kernels. Call it, for example
    `warmup(ops.matmul, a, b)`, before you capture a CUDA graph or serve a request. torch's own operations in
    the operator, such as filling a tensor with zeros, do run. To warm up a backward pass, pass a function
    that computes the gradients. If kernels are interpreted, only the arguments are checked.

    Args:
        operator: a function of `ops`, or one that calls several of them.
        args, kwargs: its arguments. A tensor on the meta device, `torch.empty(4096, 64, device="meta")`,
            stands for a tensor with its shape, strides and dtype on this process's device, aligned to 16
            bytes. It can also be inside an epilogue, list, tuple or dictionary.

    Raises:
        ArgumentTypeError: `operator` is not callable.
        KernelError: a kernel fails to compile. Also the operator's own errors.
    """
    if not callable(operator):
        raise ArgumentTypeError("operator", f"got a {type(operator).__name__}", "Give a function of ops.")
    with only_prepared():
        operator(
            *map(_with_real_tensors, args),
            **{name: _with_real_tensors(value) for name, value in kwargs.items()},
        )


def _with_real_tensors(value: Any) -> Any:
    """Replace meta tensors in `value` by real ones; return `value` itself if it has none."""
    if isinstance(value, torch.Tensor):
        return _real_tensor(value) if value.is_meta else value
    if isinstance(value, dict):
        parts = tuple(value.values())
        return value if (made := _with_real_tensors(parts)) is parts else dict(zip(value, made, strict=True))
    if isinstance(value, list | tuple):
        made = list(map(_with_real_tensors, value))
        if all(one is other for one, other in zip(made, value, strict=True)):
            return value
        return made if isinstance(value, list) else compat.tuple_like(value, made)
    if hasattr(value, "with_tensors"):  # an epilogue or a scoring, which this package must not import
        return (
            value
            if (made := _with_real_tensors(value.tensors)) is value.tensors
            else value.with_tensors(made)
        )
    return value


def _real_tensor(value: torch.Tensor) -> torch.Tensor:
    place = device.current().torch_device
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place)
    return made.requires_grad_(value.requires_grad)
