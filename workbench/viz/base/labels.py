"""Labels beside data points that do not overlap each other or the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from workbench.viz.base.style import fit

Pixels = NDArray[np.float64]

# Costs of a position. At the limit the label is left out rather than drawn over data or other labels.
_OUTSIDE, _ON_A_LABEL, _ON_A_POINT, _NEARER_ANOTHER, _ON_A_LINE, _FARTHER = (
    1000.0,
    100.0,
    50.0,
    10.0,
    0.4,
    0.1,
)
_LIMIT, _LIMIT_OF_REQUIRED = _NEARER_ANOTHER, _ON_A_POINT
# The same text is not repeated within this distance (pixels).
_REPEATED = 40.0
_WIDEST = 230.0  # the widest label, in pixels


@dataclass(frozen=True)
class Label:
    """Text to place beside the point (x, y), in data coordinates.

    Required labels are placed before the others. They may be farther away from their points, and even nearer
    to another point than to their own.
    """

    text: str
    x: float
    y: float
    color: str
    required: bool = False


def place_labels(
    axes: Axes, labels: Sequence[Label], *, points: Pixels, lines: Pixels, boxes: Sequence[Pixels] = ()
) -> int:
    """Write `labels` into `axes`, each at the best position around its point; required ones go first.

    Args:
        axes: axes with their final limits and position.
        labels: labels to place.
        points: (n, 2), positions of markers in pixels; a label never covers one.
        lines: (n, 2), samples of lines in pixels; positions that cover few of them are preferred.
        boxes: existing texts, each (left, bottom, right, top) in pixels.

    Returns:
        The number of labels left out because they would not have been readable. A label that repeats the text
        of another less than 40 pixels away is left out too, and not counted.
    """
    frame = np.array(axes.get_window_extent().extents)
    taken = np.array(boxes).reshape(-1, 4)
    backing = {"facecolor": axes.get_facecolor(), "linewidth": 0, "pad": 0}  # hides lines behind the digits
    left_out = 0
    anchors: list[tuple[str, Pixels]] = []
    for label in sorted(labels, key=lambda label: not label.required):
        anchor = np.array(axes.transData.transform((label.x, label.y)))
        if any(label.text == text and np.hypot(*(anchor - other)) < _REPEATED for text, other in anchors):
            continue
        note = axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(0, 0),
            textcoords="offset pixels",
            va="bottom",
            color=label.color,
            fontsize=9,
            bbox=backing,
            annotation_clip=False,  # points lie within the axes, and the check is slow
        )
        fit(note, _WIDEST)
        width, height = note.get_window_extent().size
        offsets = _offsets(width, height, far=label.required)
        corners = anchor + offsets
        places = np.concatenate([corners, corners + np.array([width, height])], axis=1)
        costs = _costs(places, anchor, frame, taken, points, lines) + _FARTHER * np.arange(len(places))
        best = int(np.argmin(costs))
        if costs[best] >= (_LIMIT_OF_REQUIRED if label.required else _LIMIT):
            note.remove()
            left_out += 1
            continue
        note.set_position((float(offsets[best, 0]), float(offsets[best, 1])))
        taken = np.vstack([taken, places[best]])
        anchors.append((label.text, anchor))
    return left_out


def _offsets(width: float, height: float, far: bool) -> Pixels:
    """Return positions of a text's lower left corner, (n, 2) in pixels from its point, the usual first."""
    places = []
    for gap in (11.0, 20.0, 34.0) if far else (11.0, 20.0):
        right, left, middle = gap, -gap - width, -width / 2
        above, below, level = gap - 2, -gap - height + 2, -height / 2
        places += [
            (right, level), (left, level), (middle, above), (middle, below),
            (right, above), (right, below), (left, above), (left, below),
        ]  # fmt: skip
    return np.array(places)


def _costs(
    boxes: Pixels, anchor: Pixels, frame: Pixels, taken: Pixels, points: Pixels, lines: Pixels
) -> Pixels:
    """Return the cost of writing the text of the point `anchor` in each of the (n, 4) boxes, (n,)."""
    outside = ((boxes[:, :2] < frame[:2]) | (boxes[:, 2:] > frame[2:])).any(axis=1)
    of_points = _distances(points, boxes)
    is_another = np.hypot(*(points - anchor).T) > 3
    nearest = of_points[:, is_another].min(axis=1, initial=np.inf)
    costs: Pixels = (
        _OUTSIDE * outside
        + _ON_A_LABEL * _overlaps(boxes, taken)
        + _ON_A_POINT * (of_points < 5).sum(axis=1)
        + _NEARER_ANOTHER * (nearest < _distances(anchor[None], boxes)[:, 0])
        + _ON_A_LINE * (_distances(lines, boxes) < 1).sum(axis=1)
    )
    return costs


def blocked(box: Pixels, points: Pixels, boxes: Sequence[Pixels]) -> bool:
    """Return whether a text in `box` would cover any of the points or other boxes; all in pixels."""
    is_covering = (_distances(points, box[None]) < 5).any()
    return bool(is_covering or _overlaps(box[None], np.array(boxes).reshape(-1, 4))[0])


def _overlaps(boxes: Pixels, taken: Pixels) -> Pixels:
    """Return for each box the number of boxes of `taken` that it overlaps."""
    overlaps: Pixels = (
        ((boxes[:, None, :2] < taken[:, 2:]) & (taken[:, :2] < boxes[:, None, 2:])).all(axis=2).sum(axis=1)
    )
    return overlaps


def _distances(samples: Pixels, boxes: Pixels) -> Pixels:
    """Return the distances in pixels of (m, 2) samples from (n, 4) boxes, (n, m); 0 for a sample in a box."""
    beyond = np.maximum(boxes[:, None, :2] - samples, samples - boxes[:, None, 2:])
    distances: Pixels = np.hypot(*np.moveaxis(np.maximum(beyond, 0), 2, 0))
    return distances
