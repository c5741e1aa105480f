"""Cache of operator calls: a call with tensors like those of an earlier one skips checks and planning."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from workbench.ops.arguments import precision_of
from workbench.runtime.cache import MOST_KEPT
from workbench.runtime.replay import GuardedCall, Replay, dispatch_guard

# The tensor types that are cached: subclasses can override what a function does with them.
_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_MOST_LIKES = 8  # calls of one key: they differ in strides, alignment and inference mode


class Started(NamedTuple):
    """The work that an operator started, and how to repeat it.

    Attributes:
        again: a replay of the launch; or a function of the tensors that computes the operator without
            autograd; None if there is neither.
        tensors: the arguments of `again` in order, without the result.
        place: the position of the result among the arguments of a replay; a function returns its result.
    """

    again: Replay | Callable[..., torch.Tensor] | None = None
    tensors: Sequence[torch.Tensor] = ()
    place: int = 0


class KeptCalls:
    """Cache of an operator's calls, keyed by everything that they depend on. Thread-safe.

    A call is kept if its tensors are plain, it made no copies of them, and neither autograd, forward mode, a
    transform nor autocast was involved. What such a call has established (its arguments fit, its choice of
    kernels, the layout of its result) holds for later calls with equal arguments and similar tensors.

    Args:
        precision: returns how fp32 is multiplied at the moment; called if the first tensor is fp32.
    """

    def __init__(self, precision: Callable[[torch.Tensor], str] = precision_of) -> None:
        self._kept: dict[Hashable, tuple[GuardedCall, ...]] = {}
        self._precision = precision
        self.clear = self._kept.clear

    def again(self, key: Hashable, *tensors: Any) -> torch.Tensor | None:
        """Return the result if a call like this one is kept; start nothing and return None otherwise.

        Args:
            key: everything that the call depends on except its tensors, and the number of these; None if that
                is not known.
            tensors: the arguments of the operator that should be tensors.
        """
        if key is None:
            return None
        for each in tensors:
            if type(each) not in _TYPES or each.is_nested:
                return None
        if forward_ad._current_level >= 0:
            return None
        for kept in self._kept.get(self._whole(key, tensors), ()):
            if (result := kept(*tensors)) is not None:
                return result
        return None

    def keep(
        self, key: Hashable, tensors: Sequence[torch.Tensor], result: torch.Tensor, started: Started
    ) -> torch.Tensor:
        """Keep a call for :meth:`again`, if it can be kept, and return `result`.

        Args:
            key, tensors: as in :meth:`again`; a call whose key is None is not kept.
            result: the operator's result: that of the started work, or a view of all of it.
            started: the work that the call started.
        """
        again, given, place = started
        if key is None or again is None or not _is_plain(tensors, given):
            return result
        if isinstance(again, Replay):
            guarded_call = again.guarded_call(tensors, place, result)
        else:
            guarded_call = _guarded_call(again, tensors)
        whole = self._whole(key, tensors)
        likes = self._kept.get(whole, ())
        if len(likes) < _MOST_LIKES:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[whole] = (*likes, guarded_call)
        return result

    def _whole(self, key: Hashable, tensors: Sequence[torch.Tensor]) -> Hashable:
        first, dtype = tensors[0], tensors[0].dtype
        precision = self._precision(first) if dtype is torch.float32 else ""
        return key, first.shape, tensors[1].shape, dtype, first.get_device(), precision


def _is_plain(tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """Return whether a call can be kept: its tensors are plain, and the kernels were given views of them.

    Args:
        tensors: the operator's arguments.
        given: the tensors that were made of them for the kernels, which must begin at the same addresses.
    """
    is_asked_for = (
        forward_ad._current_level >= 0
        or torch._C._is_any_autocast_enabled()
        or torch._C._are_functorch_transforms_active()
        or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    if is_asked_for or any(type(t) not in _TYPES or t.is_nested or is_batched(t) for t in tensors):
        return False
    return [t.data_ptr() for t in tensors] == [t.data_ptr() for t in given]


def _guarded_call(function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> GuardedCall:
    """Return :meth:`Replay.guarded_call` for a function."""
    are_alike, requires_grad = dispatch_guard(*tensors), any(t.requires_grad for t in tensors)

    def guarded_call(*tensors: torch.Tensor) -> torch.Tensor | None:
        if not are_alike(*tensors) or (requires_grad and torch.is_grad_enabled()):
            return None
        return function(*tensors)

    return guarded_call
