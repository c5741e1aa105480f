"""Random choices of a case: those that its group shares, and its own sizes.

The cases of a group have one operator, and the same dtypes, layouts, modes, magnitudes of sizes and most
options. They differ in sizes and in numbers such as shifts, so that most of them find their kernels compiled.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.fuzz.cases import GRAD, INFERENCE, NO_GRAD, Call, Case, Mode
from tests.fuzz.tensors import CONTIGUOUS, FLOATS, Layout, TensorSpec, seed_of

T = TypeVar("T")

# The most calls of a case.
MOST_CALLS = 4


@dataclass(frozen=True)
class Limits:
    """The limits of a problem's size.

    Attributes:
        size: the largest length of a dimension.
        elements: about the most elements of a tensor.
        products: about the most multiplications of a matrix product.
        members: the number of cases of a group; small where nothing is compiled, so that more groups are
            drawn.
    """

    size: int
    elements: int
    products: int
    members: int


ON_GPU = Limits(size=2**15, elements=2**18, products=2**24, members=16)
INTERPRETED = Limits(size=70, elements=1500, products=2**14, members=2)


class Draw:
    """Random choices of one case.

    Attributes:
        limits: the limits of sizes.
        dtype: the dtype of most tensors.
        values: the rule for the values of most floating tensors.
        layouts: "plain" for contiguous tensors, "any" for layouts of all kinds.
    """

    def __init__(self, seed: int, group: int, member: int, limits: Limits, dtypes: Sequence[str]) -> None:
        self._shared = random.Random(seed_of(seed, "group", group))
        self._own = random.Random(seed_of(seed, "case", group, member))
        self.limits = limits
        self.dtype = self.one(*dtypes)
        self.values = self.weighted(normal=70, special=10, whole=8, large_mean=8, zeros=4)
        self.layouts = self.weighted(plain=30, any=70)

    def one(self, *choices: T) -> T:
        """Return one of the choices, the same for the whole group."""
        return self._shared.choice(choices)

    def weighted(self, **weights: int) -> str:
        """Return one of the names, drawn by these weights, the same for the whole group."""
        return self._shared.choices([*weights], [*weights.values()])[0]

    def chance(self, share: float) -> bool:
        """Return True with this probability, the same for the whole group."""
        return self._shared.random() < share

    def own(self, *choices: T) -> T:
        """Return one of the choices, for this case alone."""
        return self._own.choice(choices)

    def between(self, least: int, most: int) -> int:
        """Return a number from `least` to `most`, for this case alone."""
        return self._own.randint(least, most)

    def size(self, most: int = 2**15, *, least: int = 0) -> int:
        """Return a length from `least` to `most`: 0, 1, or one whose magnitude the whole group shares."""
        most = max(min(most, self.limits.size), least, 1)
        top = self._shared.randint(1, most.bit_length())
        style = self._shared.choice(("near", "any", "any", "sixteen"))
        dice = self._own.random()
        if dice < 0.03 and least == 0:
            return 0
        if dice < 0.08 and least <= 1:
            return 1
        low, high = 1 << (top - 1), min((1 << top) - 1, most)
        if style == "near":
            found = low + self._own.choice((-1, 0, 1))
        elif style == "sixteen" and high >= 16:
            found = 16 * self._own.randint(-(-low // 16), max(high // 16, 1))
        else:
            found = self._own.randint(low, high)
        return min(max(found, least, 1), most)

    def shape(self, rank: int, most: int = 2**15, *, least: int = 0) -> list[int]:
        """Return `rank` lengths of `least` or more whose product is at most `limits.elements` if possible."""
        return self.fitted([self.size(most, least=least) for _ in range(rank)], self.limits.elements, least)

    def fitted(self, sizes: Sequence[int], most: int, least: int = 1) -> list[int]:
        """Return the sizes, the largest reduced until their product is at most `most` if `least` allows."""
        found = list(sizes)
        while _product(found) > most:
            longest = found.index(max(found))
            if found[longest] <= max(least, 1):
                break
            found[longest] = max(found[longest] // 2 - self._own.randint(0, 1), least, 1)
        return found

    def dim(self, rank: int) -> int:
        """Return a dimension, counted from either end."""
        return self._shared.randrange(-rank, rank) if rank else self.one(0, -1)

    def dims(self, rank: int, *, least: int = 1) -> list[int]:
        """Return `least` dimensions or more, without repetition, counted from either end."""
        count = self._shared.randint(min(least, rank), rank)
        return [d - rank * self.one(0, 1) for d in self._shared.sample(range(rank), count)]

    def permutation(self, count: int) -> list[int]:
        """Return the numbers from 0 to `count` - 1 in a random order."""
        return self._shared.sample(range(count), count)

    def layout(self, rank: int) -> Layout:
        """Return a layout for a tensor of this rank."""
        if self.layouts == "plain" or self.chance(0.25):
            return CONTIGUOUS
        kind = self.weighted(permuted=3, last=3 if rank in (4, 5) else 0, gap=2, step=2, expanded=1, offset=3)
        offset = self.one(0, 0, 0, 1, 2, 3, 8)
        if kind == "last":
            return Layout(order=(0, *range(2, rank), 1), offset=offset)
        if kind == "permuted":
            return Layout(order=tuple(self.permutation(rank)), offset=offset)
        if kind == "gap":
            return Layout(gap=self.one(1, 3, 4, 16), offset=offset)
        if kind == "step" and rank:
            steps = [1] * rank
            steps[self._shared.randrange(rank)] = self.one(2, 3)
            return Layout(steps=tuple(steps), offset=offset)
        if kind == "expanded" and rank:
            return Layout(expanded=tuple(self._shared.sample(range(rank), self.one(1, rank))), offset=offset)
        return Layout(offset=self.one(1, 2, 3, 4, 8))

    def tensor(
        self, *shape: int, dtype: str = "", values: str = "", grad: bool = True, layout: Layout | None = None
    ) -> TensorSpec:
        """Return a tensor of this shape; dtype and values default to the case's; the layout may be drawn."""
        dtype = dtype or self.dtype
        return TensorSpec(
            tuple(shape), dtype, self.layout(len(shape)) if layout is None else layout,
            values or self.values, grad and self.chance(0.85),
        )  # fmt: skip

    def vector(self, length: int, **others: Any) -> TensorSpec:
        """Return a tensor of one dimension, see :meth:`tensor`."""
        return self.tensor(length, **others)

    def mode(self) -> Mode:
        """Return a mode of torch."""
        return Mode(
            grad=self.weighted(**{GRAD: 60, NO_GRAD: 22, INFERENCE: 18}),
            autocast=self.weighted(none=88, bfloat16=6, float16=6).replace("none", ""),
            tf32=self.chance(0.25),
            deterministic=self.chance(0.12),
            one_gradient=self.chance(0.2),
        )

    def case(self, operator: str, call: Call, dtypes: Sequence[str], fixed: Collection[str]) -> Case:
        """Return a case: the call in a drawn mode, and up to three variations of it in one respect each.

        In some cases two threads make the calls.

        Args:
            dtypes: the dtypes of the operator.
            fixed: names of tensors that never require grad.
        """
        call = replace(call, mode=self.mode())
        calls = [call]
        for _ in range(self.one(0, 1, 2, MOST_CALLS - 1)):
            calls.append(self._varied(call, dtypes, fixed))
        is_threaded = self.chance(0.06)
        if is_threaded:  # torch's switches are global, so all threads have those of the first call
            tf32, deterministic = call.mode.tf32, call.mode.deterministic
            modes = [replace(each.mode, tf32=tf32, deterministic=deterministic) for each in calls]
            calls = [replace(each, mode=mode) for each, mode in zip(calls, modes, strict=True)]
        return Case(operator, tuple(calls), 2 if is_threaded else 1, self.chance(0.2))

    def _varied(self, call: Call, dtypes: Sequence[str], fixed: Collection[str]) -> Call:
        """Return the call, or a variation of it that caches must distinguish."""
        how = self.weighted(same=3, layout=3, offset=2, dtype=2, grad=2, mode=2)
        if how == "mode":
            return replace(call, mode=self.mode())
        if how == "same" or (how == "dtype" and self.dtype not in FLOATS):
            return call
        other = self.one(*[dtype for dtype in dtypes if dtype in FLOATS] or [self.dtype])
        tensors = {}
        for name, spec in call.tensors.items():
            if how == "layout" and not spec.values.startswith("listed") and name not in fixed:
                spec = replace(spec, layout=self.layout(len(spec.shape)))
            if how == "offset":
                spec = replace(spec, layout=replace(spec.layout, offset=self.one(0, 1, 2, 4)))
            if how == "dtype" and spec.dtype == self.dtype and name != "out":
                spec = replace(spec, dtype=other)
            if how == "grad" and name not in fixed:
                spec = replace(spec, requires_grad=not spec.requires_grad)
            tensors[name] = spec
        return replace(call, tensors=tensors)


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= max(size, 1)
    return result
