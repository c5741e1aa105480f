"""Layout of a descriptor's graph in layers; lines are routed around boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# In pixels: gaps between neighbors of a layer and between layers; width of a line that crosses a layer.
_APART, _BELOW, _BEND = 14.0, 26.0, 8.0
# Sweeps over the layers: first to order each layer, then to place its items.
_ORDERINGS, _PLACINGS = 6, 24


@dataclass(eq=False)
class Item:
    """A box, or the point where a line crosses a layer.

    Attributes:
        width, height: size in pixels. layer: layer, counted from the top.
        x: x of its center. top: y of its upper edge.
        above, below: its neighbors in the layers above and below.
    """

    width: float
    height: float
    layer: int
    x: float = 0.0
    top: float = 0.0
    above: list[Item] = field(default_factory=list, repr=False)
    below: list[Item] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class PlacedGraph:
    """A placed graph.

    Attributes:
        lines: each line from its upper to its lower box, with the items where it crosses layers.
        width, height: overall size in pixels.
    """

    lines: tuple[tuple[Item, ...], ...]
    width: float
    height: float


def place(boxes: Sequence[Item], edges: Sequence[tuple[int, int]], room: float) -> PlacedGraph:
    """Set the position of each box, and return the placed graph; the boxes of layer 0 keep their order.

    Args:
        boxes: boxes with their layers. edges: index pairs of boxes, each to a box in a lower layer.
        room: available width; the graph becomes wider if the boxes need it.
    """
    lines = [_line(boxes[upper], boxes[lower]) for upper, lower in edges]
    layers: list[list[Item]] = [[] for _ in range(1 + max(box.layer for box in boxes))]
    for box in boxes:
        layers[box.layer].append(box)
    for line in lines:
        for bend in line[1:-1]:
            layers[bend.layer].append(bend)
    layers = [layer for layer in layers if layer]
    width = max(room, *(sum(item.width + _APART for item in layer) - _APART for layer in layers))
    _order(layers)
    _spread(layers, width)
    items = [item for layer in layers for item in layer]
    first, last = min(item.x - item.width / 2 for item in items), max(i.x + i.width / 2 for i in items)
    for item in items:
        item.x += (width - first - last) / 2
    top = 0.0
    for layer in layers:
        height = max(item.height for item in layer)
        for item in layer:
            item.height = item.height or height  # a line crosses the full height of the layer
            item.top = top
        top += height + _BELOW
    return PlacedGraph(tuple(lines), width, top - _BELOW)


def _line(upper: Item, lower: Item) -> tuple[Item, ...]:
    bends = [Item(_BEND, 0, layer) for layer in range(upper.layer + 1, lower.layer)]
    line = (upper, *bends, lower)
    for above, below in pairwise(line):
        above.below.append(below)
        below.above.append(above)
    return line


def _order(layers: Sequence[list[Item]]) -> None:
    """Sort each layer by the mean position of its neighbors above, then below, to reduce crossings."""
    for turn in range(_ORDERINGS):
        is_down = turn % 2 == 0
        for layer in layers[1:] if is_down else layers[-2:0:-1]:
            shares = {id(item): at / max(len(each) - 1, 1) for each in layers for at, item in enumerate(each)}
            middles = {id(item): _middle(item, is_down, shares) for item in layer}
            layer.sort(key=lambda item, middles=middles: middles[id(item)])  # type: ignore[misc]  # its own


def _middle(item: Item, is_down: bool, shares: Mapping[int, float]) -> float:
    """Return the mean position of the neighbors on one side, or the item's own if there are none."""
    near = [shares[id(other)] for other in (item.above if is_down else item.below)]
    return sum(near) / len(near) if near else shares[id(item)]


def _spread(layers: Sequence[Sequence[Item]], width: float) -> None:
    """Move each item as close as possible to the mean position of its neighbors."""
    for layer in layers:
        for at, item in enumerate(layer):
            item.x = width * (at + 0.5) / len(layer)
        _separate(layer, [item.x for item in layer], width)
    near = {
        id(item): [(_straightness(item, other), other) for other in (*item.above, *item.below)]
        for layer in layers
        for item in layer
    }
    totals = {key: sum(pull for pull, _ in own) for key, own in near.items()}
    for turn in range(_PLACINGS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            wished = [
                sum(pull * other.x for pull, other in near[id(item)]) / totals[id(item)]
                if near[id(item)]
                else item.x
                for item in layer
            ]
            _separate(layer, wished, width)


def _straightness(one: Item, other: Item) -> float:
    """Return how strongly a line should be straight: more if it crosses layers or is its ends' only line."""
    bends = sum(item.height == 0 for item in (one, other))
    are_alone = (one.above, other.below) == ([other], [one]) or (one.below, other.above) == ([other], [one])
    return (1.0, 2.0, 8.0)[bends] * (2.0 if are_alone else 1.0)


def _separate(layer: Sequence[Item], wished: Sequence[float], width: float) -> None:
    """Set the positions closest to the wished ones (least squares) at which no items overlap."""
    offsets, groups = [0.0], list[tuple[float, int]]()  # groups that move as one: (mean wish, size)
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + _APART)
    for wish, offset in zip(wished, offsets, strict=True):
        mean, size = wish - offset, 1
        while groups and groups[-1][0] > mean:
            before, count = groups.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        groups.append((mean, size))
    means = [mean for mean, size in groups for _ in range(size)]
    first, last = layer[0].width / 2, width - layer[-1].width / 2 - offsets[-1]
    for item, mean, offset in zip(layer, means, offsets, strict=True):
        item.x = min(max(mean, first), max(first, last)) + offset


def layers_of(
    stages: Sequence[tuple[Sequence[int], Sequence[int]]], top: Sequence[int]
) -> tuple[Mapping[int, int], list[int]]:
    """Return the layer of each dimension and of each stage from the top; dimensions have even layers.

    Args:
        stages: dimensions above and below each stage, in topological order from the top.
        top: dimensions of layer 0.
    """
    of_dimension, of_stage = dict.fromkeys(top, 0), list[int]()
    for above, below in stages:
        of_stage.append(1 + max((of_dimension[d] for d in above), default=0))
        of_dimension.update(dict.fromkeys(below, of_stage[-1] + 1))
    for at, (above, below) in reversed(list(enumerate(stages))):
        if above:
            continue
        # Nothing is above this stage: place it directly above the first stage that uses it.
        takers = [of_stage[other] for other, (taken, _) in enumerate(stages) if set(taken) & set(below)]
        if takers:
            of_stage[at] = min(takers) - 2
            of_dimension.update(dict.fromkeys(below, of_stage[at] + 1))
    return of_dimension, of_stage
