"""The rules for scores as data: scale, window, mask, hooks, dropout, starts of sequences."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from workbench import compat
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    check_each,
    check_type,
    in_brief,
)
from workbench.kernels.tile.scores import Rules

# Limit of a window's reach and shift: numbers of keys are computed in 32 bits.
MOST_REACH = 2**29


class Window(NamedTuple):
    """The keys that a query sees: from query + shift - left to query + shift + right.

    Attributes:
        left, right: from 0 to `MOST_REACH`; None if the window does not end on that side.
        shift: of the diagonal, from -`MOST_REACH` to `MOST_REACH`; 0 aligns the first query with the first
            key.
        from_end: align the last query with the last key instead, and shift from there.
    """

    left: int | None = None
    right: int | None = None
    shift: int = 0
    from_end: bool = False

    def pairs(self, queries: int, keys: int) -> int:
        """Return the number of pairs of a query and a key in which the query sees the key."""
        if self.left is None and self.right is None:
            return queries * keys
        shift = self.shift + (keys - queries if self.from_end else 0)
        ends = queries * keys if self.right is None else _clamped_sum(shift + self.right + 1, queries, keys)
        return ends - (0 if self.left is None else _clamped_sum(shift - self.left, queries, keys))


def _clamped_sum(first: int, count: int, most: int) -> int:
    """Return the sum of `count` consecutive numbers from `first`, each clamped to 0 to `most`."""

    def below(end: int) -> int:  # the sum of the numbers before `end`
        rising = min(max(end, 0), most + 1)
        return rising * (rising - 1) // 2 + max(end - most - 1, 0) * most

    return below(first + count) - below(first)


EVERYTHING = Window()
CAUSAL = Window(right=0)


class Hook(NamedTuple):
    """A user's jit function that changes scores; see `tile.scores`.

    Attributes:
        function: `(scores, batch, head, query, key, extra) -> scores`.
        extra: the last argument of the functions: tensors and numbers.
        gradient: `(gradient, scores, batch, head, query, key, extra) -> gradient`; None if there is none.
        once: a gradient that is called exactly once for each visited pair, so that it may write to memory;
            None for `gradient`. With `once`, the two-kernel backward also calls `gradient` for each pair, so
            `gradient` must not write.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    gradient: Any = None
    once: Any = None


class Mask(NamedTuple):
    """A user's jit function that hides keys from queries, besides the window.

    Attributes:
        function: `(batch, head, query, key, extra) -> whether the query sees the key`.
        extra: the last argument of the function: tensors and numbers.
        of_batch, of_head: whether the mask depends on batch and head; if not, the tiles to visit are listed
            once for all batches or heads.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    of_batch: bool = True
    of_head: bool = True


class Dropout(NamedTuple):
    """Random zeros among the weights; the other weights are divided by 1 - probability.

    Attributes:
        probability: of a zero; 0 or more, below 1.
        seed: 0 or more, below 2^63; the same seed drops the same weights, whatever the tiles.
    """

    probability: float
    seed: int


class Starts(NamedTuple):
    """Starts of sequences of various lengths that are concatenated in tensors with a batch of 1.

    Attributes:
        queries, keys: int32 [sequences + 1] (cu_seqlens): the first row of each sequence, and the end of the
            last. Rows before the first sequence and after the last belong to no sequence: their output and
            their gradients are 0.
        most_queries, most_keys: the lengths of the longest sequences.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    most_queries: int
    most_keys: int


class Extents(NamedTuple):
    """The number of sequences of a problem, and the lengths of the longest ones.

    Attributes:
        sequences: the size of the batch, or the number of concatenated sequences.
        queries, keys: the lengths of the longest sequences of queries and of keys.
    """

    sequences: int
    queries: int
    keys: int


class Arguments(NamedTuple):
    """The kernels' arguments for scores, in the kernels' order.

    Attributes:
        scale: the factor of the products.
        left, right, shift: of the window; 0 for a side on which it does not end.
        extras: the argument `extra` of each hook.
        mask_extra: the argument `extra` of the mask; empty without a mask.
        seed, probability: of dropout; 0 without dropout.
        starts: (`Starts.queries`, `Starts.keys`); empty if sequences are not concatenated.
    """

    scale: float
    left: int
    right: int
    shift: int
    extras: tuple[tuple[Any, ...], ...]
    mask_extra: tuple[Any, ...]
    seed: int
    probability: float
    starts: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Scoring:
    """The rules by which scores and weights are made of queries and keys, forward and backward.

    Attributes:
        scale: the factor of the products; None for 1 / sqrt(columns).
        window: the keys that a query sees.
        mask: a function that hides some of these keys; or None.
        hooks: functions that change the scaled scores, in order, before the scores are masked.
        dropout: random zeros among the weights; or None.
        starts: starts of concatenated sequences; None if the batch has sequences of one length.
    """

    scale: float | None = None
    window: Window = EVERYTHING
    mask: Mask | None = None
    hooks: tuple[Hook, ...] = ()
    dropout: Dropout | None = None
    starts: Starts | None = None

    def __post_init__(self) -> None:
        check_type("scale", self.scale, float | int | None, "Give a number, or None for 1 / sqrt(columns).")
        check_type("window", self.window, Window, "Give a Window.")
        check_type("mask", self.mask, Mask | None, "Give a Mask, or None.")
        check_type("hooks", self.hooks, tuple, "Give a tuple of Hooks.")
        check_each("hooks", self.hooks, Hook, "Give a tuple of Hooks.")
        check_type("dropout", self.dropout, Dropout | None, "Give a Dropout, or None.")
        check_type("starts", self.starts, Starts | None, "Give a Starts, or None.")
        left, right, shift, _ = self.window
        for name, number in (("window.left", left), ("window.right", right), ("window.shift", shift)):
            if name == "window.shift":
                check_type(name, number, int, "Give a whole number.")
                fix = f"Give a number from -{MOST_REACH:,} to {MOST_REACH:,}."
            else:
                check_type(
                    name, number, int | None, "Give a whole number, or None for a side without an end."
                )
                fix = f"Give a number from 0 to {MOST_REACH:,}, or None for a side without an end."
            if number is None:
                continue
            if number < 0 and name != "window.shift":
                fix = "Give 0 or more; to move the window, give window.shift."
                raise InvalidArgumentError(name, f"got {number}", fix)
            if abs(number) > MOST_REACH:
                raise InvalidArgumentError(name, f"got {number}", fix)
        given = [(f"hooks[{i}]", hook.function, hook.extra) for i, hook in enumerate(self.hooks)]
        if self.mask is not None:
            given.append(("mask", self.mask.function, self.mask.extra))
        for name, function, extra in given:
            if not compat.is_kernel(function):
                fix = "Give a function decorated with @triton.jit."
                raise ArgumentTypeError(f"{name}.function", f"got {in_brief(function)}", fix)
            check_type(f"{name}.extra", extra, tuple, "Give a tuple of tensors and numbers.")
        if self.dropout is not None:
            probability, seed = self.dropout
            check_type("dropout.probability", probability, float | int, "Give a number.")
            check_type("dropout.seed", seed, int, "Give a whole number.")
            if not 0 <= probability < 1:
                got = f"got {probability}"
                raise InvalidArgumentError("dropout.probability", got, "Give 0 or more, below 1.")
            if not 0 <= seed < 2**63:
                raise InvalidArgumentError("dropout.seed", f"got {seed}", "Give 0 or more, below 2^63.")

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of hooks, mask and starts, in this order."""
        return tuple(_tensors_in(self._held()))

    @cached_property
    def key(self) -> Hashable:
        """Key of what a launch depends on besides its tensors: functions and numbers."""
        rules = self.scale, tuple(self.window), self.dropout, *self._held()
        return _key_of(rules)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Scoring:
        """Return the same scoring with other tensors in the places of :attr:`tensors`."""
        hooks, mask, starts = _replaced(self._held(), iter(tensors))
        return replace(self, hooks=hooks, mask=mask, starts=starts)

    def _held(self) -> tuple[Any, ...]:
        """Return the attributes that may hold tensors."""
        return self.hooks, self.mask, self.starts

    def factor(self, columns: int) -> float:
        """Return the factor of the products: `scale`, or by default 1 / sqrt(columns); 1 for no columns."""
        if self.scale is not None:
            return float(self.scale)
        return 1 / math.sqrt(columns) if columns else 1.0

    def rules(self, columns: int) -> Rules:
        """Return the constants of `tile.scores.scored` for heads with this number of columns."""
        # The kernel multiplies masked scores by the scale only if it is positive and normal in fp32: a
        # smaller scale may become 0, and 0 times -inf is NaN; a negative one would make -inf positive. Hooks
        # take scaled scores.
        is_later = not self.hooks and self.factor(columns) >= torch.finfo(torch.float32).tiny
        mask = () if self.mask is None else (self.mask.function,)
        hooks = tuple([hook.function for hook in self.hooks])
        return Rules(hooks, mask, self.window.left is not None, self.window.right is not None, is_later)

    def arguments(self, columns: int) -> Arguments:
        """Return a kernel's arguments from `scale` to `starts`, for heads with this number of columns."""
        window, mask, starts = self.window, self.mask, self.starts
        probability, seed = self.dropout or (0.0, 0)
        return Arguments(
            self.factor(columns), window.left or 0, window.right or 0, window.shift,
            tuple([hook.extra for hook in self.hooks]), () if mask is None else mask.extra, seed, probability,
            () if starts is None else (starts.queries, starts.keys),
        )  # fmt: skip

    def extents(self, query: torch.Tensor, key: torch.Tensor) -> Extents:
        """Return the number of sequences, and the lengths of the longest ones."""
        starts = self.starts
        if starts is None:
            return Extents(query.shape[0], query.shape[2], key.shape[2])
        return Extents(starts.queries.numel() - 1, starts.most_queries, starts.most_keys)


PLAIN = Scoring()


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors_in(each)


def _replaced(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return the same nested tuples with each tensor replaced by the next of `tensors`."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, tuple):
        return compat.tuple_like(value, [_replaced(each, tensors) for each in value])
    return value


def _key_of(value: Any) -> Hashable:
    """Return a key for functions and numbers, in which 0.0 differs from -0.0 and all tensors are equal."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, tuple):
        return type(value), *map(_key_of, value)
    if compat.is_kernel(value):
        function: Hashable = value.fn  # Triton hashes a jit function by its source, which takes long
        return function
    try:
        hash(value)
    except TypeError:
        raise ArgumentTypeError("extra", f"got {in_brief(value)}", "Give tensors and numbers.") from None
    return type(value), repr(value) if isinstance(value, float | np.floating) else value
