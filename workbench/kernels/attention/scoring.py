"""The rules for scores as data: scale, window, mask, hooks, dropout, starts of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

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
        """Return the number of pairs of a query and a key that it sees."""
        if self.left is None and self.right is None:
            return queries * keys
        shift = self.shift + (keys - queries if self.from_end else 0)
        rows = torch.arange(queries, dtype=torch.int64, device="cpu") + shift
        first = torch.zeros_like(rows) if self.left is None else (rows - self.left).clamp(min=0)
        end = torch.full_like(rows, keys) if self.right is None else (rows + self.right + 1).clamp(0, keys)
        return int((end - first).clamp(min=0).sum())


EVERYTHING = Window()
CAUSAL = Window(right=0)


class Hook(NamedTuple):
    """A jit function of the user that changes scores; see `tile.scores`.

    Attributes:
        function: `(scores, batch, head, query, key, extra) -> scores`.
        extra: its last argument: tensors and numbers.
        gradient: `(gradient, scores, batch, head, query, key, extra) -> gradient`; None if there is none.
        once: a gradient that is called exactly once for each visited pair, so that it may write to memory.
            Then `gradient` is called for each pair too, and must not write.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    gradient: Any = None
    once: Any = None


class Mask(NamedTuple):
    """A jit function of the user that hides keys from queries, besides the window.

    Attributes:
        function: `(batch, head, query, key, extra) -> whether the query sees the key`.
        extra: as in :class:`Hook`.
        of_batch, of_head: whether it depends on batch and head; if not, it is evaluated once for all of them.
    """

    function: Any
    extra: tuple[Any, ...] = ()
    of_batch: bool = True
    of_head: bool = True


class Dropout(NamedTuple):
    """Random zeros among the weights; the other weights are divided by 1 - probability.

    Attributes:
        probability: of a zero; 0 or more, below 1.
        seed: 63 bits; the same seed drops the same weights, whatever the tiles.
    """

    probability: float
    seed: int


class Starts(NamedTuple):
    """Starts of sequences of various lengths that are concatenated in tensors with a batch of 1.

    Attributes:
        queries, keys: int32 [sequences + 1] (cu_seqlens): the first row of each sequence, and the end of the
            last. Rows before the first sequence and after the last belong to none: their output and their
            gradients are 0.
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
        queries, keys: of the longest sequences.
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
        mask_extra: that of the mask.
        seed, probability: of dropout.
        starts: first queries and first keys of sequences, or nothing.
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
        window: the keys that a query sees. mask: hides some of them; or None.
        hooks: functions that change the scaled scores, in order, before they are masked.
        dropout: of weights; or None.
        starts: of concatenated sequences; or None.
    """

    scale: float | None = None
    window: Window = EVERYTHING
    mask: Mask | None = None
    hooks: tuple[Hook, ...] = ()
    dropout: Dropout | None = None
    starts: Starts | None = None

    def __post_init__(self) -> None:
        check_type("scale", self.scale, float | int | None, "Give a number.")
        check_type("window", self.window, Window, "Give a Window.")
        check_type("mask", self.mask, Mask | None, "Give a Mask.")
        check_type("hooks", self.hooks, tuple, "Give a tuple of Hooks.")
        check_each("hooks", self.hooks, Hook, "Give a tuple of Hooks.")
        check_type("dropout", self.dropout, Dropout | None, "Give a Dropout.")
        check_type("starts", self.starts, Starts | None, "Give Starts.")
        left, right, shift, _ = self.window
        for name, number in (("window.left", left), ("window.right", right), ("window.shift", shift)):
            check_type(name, number, int if name == "window.shift" else int | None, "Give a whole number.")
            if number is None:
                continue
            if number < 0 and name != "window.shift":
                raise InvalidArgumentError(
                    name, f"got {number}", "Give 0 or more, and shift the window instead."
                )
            if abs(number) > MOST_REACH:
                fix = f"Give {MOST_REACH:,} at most, or None for a side without an end."
                raise InvalidArgumentError(name, f"got {number}", fix)
        functions = [("hook", hook.function) for hook in self.hooks]
        if self.mask is not None:
            functions.append(("mask", self.mask.function))
        for name, function in functions:
            if not compat.is_kernel(function):
                raise ArgumentTypeError(
                    name, f"got {in_brief(function)}", "Give a function decorated with @triton.jit."
                )
        if self.dropout is not None:
            probability, seed = self.dropout
            check_type("dropout.probability", probability, float | int, "Give a number.")
            check_type("dropout.seed", seed, int, "Give a whole number.")
            if not 0 <= probability < 1:
                given = f"got {probability}"
                raise InvalidArgumentError("dropout.probability", given, "Give 0 or more, below 1.")
            if not 0 <= seed < 2**63:
                raise InvalidArgumentError("dropout.seed", f"got {seed}", "Give 0 or more, below 2^63.")

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of hooks, mask and starts, in order."""
        return tuple(_tensors_in(self._held()))

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Scoring:
        """Return the same scoring with other tensors in the places of :attr:`tensors`."""
        hooks, mask, starts = _replaced(self._held(), iter(tensors))
        return replace(self, hooks=hooks, mask=mask, starts=starts)

    def _held(self) -> tuple[Any, ...]:
        """Return the attributes that may hold tensors."""
        return self.hooks, self.mask, self.starts

    def factor(self, columns: int) -> float:
        """Return the factor of the products."""
        if self.scale is not None:
            return float(self.scale)
        return 1 / math.sqrt(columns) if columns else 1.0

    def rules(self, columns: int) -> Rules:
        """Return the constants of `tile.scores.scored`, for heads of so many columns."""
        # A scale that fp32 cannot hold would become 0, and 0 times the -inf of a masked score is NaN.
        is_later = not self.hooks and self.factor(columns) >= torch.finfo(torch.float32).tiny
        mask = () if self.mask is None else (self.mask.function,)
        hooks = tuple([hook.function for hook in self.hooks])
        return Rules(hooks, mask, self.window.left is not None, self.window.right is not None, is_later)

    def arguments(self, columns: int) -> Arguments:
        """Return the arguments of a kernel, from `scale` to `starts`."""
        window, mask, starts = self.window, self.mask, self.starts
        probability, seed = self.dropout or (0.0, 0)
        return Arguments(
            self.factor(columns), window.left or 0, window.right or 0, window.shift,
            tuple([hook.extra for hook in self.hooks]), () if mask is None else mask.extra, seed, probability,
            () if starts is None else (starts.queries, starts.keys),
        )  # fmt: skip

    def extents(self, query: torch.Tensor, key: torch.Tensor) -> Extents:
        """Return how many sequences there are, and the most queries and keys that one of them has."""
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
