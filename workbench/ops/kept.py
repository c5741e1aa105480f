"""Calls kept ready: for tensors that lie like some before, an operator asks nothing that it has asked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from workbench.ops.arguments import precision_of
from workbench.runtime.cache import MOST_KEPT
from workbench.runtime.replay import GuardedCall, Replay, dispatch_guard

# What tensors may be: other types can decide for themselves what functions make of them.
_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_MOST_LIKES = 8  # of one key: they differ in strides, in addresses, in modes of inference


class Started(NamedTuple):
    """What an operator started.

    Attributes:
        again: starts it again; or a function of the tensors that is the operator, where autograd does not
            follow it; None where there is neither.
        tensors: what that was given, in order, but the result.
        place: of the result among them; a function makes it.
    """

    again: Replay | Callable[..., torch.Tensor] | None = None
    tensors: Sequence[torch.Tensor] = ()
    place: int = 0


class KeptCalls:
    """Calls of an operator by all that they depend on; any thread may use it.

    A call is kept where its tensors are plain, without copies of them, and neither autograd, forward mode,
    a transform nor autocast had to know of it. What such a call found out, that its arguments fit, what it
    chose, how its result lies, holds for each later one of equal arguments and tensors that are alike.

    Args:
        precision: how fp32 is multiplied at the moment, which is asked for where the first tensor is.
    """

    def __init__(self, precision: Callable[[torch.Tensor], str] = precision_of) -> None:
        self._kept: dict[Hashable, tuple[GuardedCall, ...]] = {}
        self._precision = precision
        self.clear = self._kept.clear

    def again(self, key: Hashable, *tensors: Any) -> torch.Tensor | None:
        """The result for tensors like some before; None, having started nothing, where all is to be asked.

        Args:
            key: all that the call depends on but its tensors, and how many these are; None where that is not
                known.
            tensors: what the operator was given for them.
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
        """`result`; from now on :meth:`again` finds such calls, if they can be kept.

        Args:
            key, tensors: as there; a key of None for a call that cannot.
            result: what the operator returns; a view of all that was started's, if not that itself.
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
    """Whether these, of which others were made, say all about them: those are views from their beginnings."""
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
    """As :meth:`Replay.guarded_call`, of a function."""
    are_alike, requires_grad = dispatch_guard(*tensors), any(t.requires_grad for t in tensors)

    def guarded_call(*tensors: torch.Tensor) -> torch.Tensor | None:
        if not are_alike(*tensors) or (requires_grad and torch.is_grad_enabled()):
            return None
        return function(*tensors)

    return guarded_call
