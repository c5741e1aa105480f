"""The texts of a figure and their places, and checks that several tests of figures and widgets share."""

from __future__ import annotations

import base64
import itertools
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

Box = tuple[float, float, float, float]


def drawn_texts(figure: Figure) -> list[Text]:
    """Return the visible texts; matplotlib also keeps labels of ticks beyond the axes' limits."""
    unseen = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    found = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    return [text for text in found if text.get_text().strip() and id(text) not in unseen]


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in drawn_texts(figure)}


def boxes(figure: Figure) -> list[tuple[Text, Box]]:
    """Return the box of each text, in pixels; a slanted text is a chain of small boxes."""
    figure.canvas.draw()
    found = []
    for text in drawn_texts(figure):
        angle = text.get_rotation()
        box = text.get_window_extent()
        if angle % 90 == 0:
            found.append((text, box.extents))
            continue
        text.set_rotation(0)
        flat = text.get_window_extent()
        text.set_rotation(angle)
        along = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
        center = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
        for step in np.arange(-flat.width / 2, flat.width / 2, 6):
            x, y = center + step * along
            found.append((text, (x - 4, y - 4, x + 4, y + 4)))
    return found


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in itertools.combinations(boxes(figure), 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] and one is not other
    ]


def outside(figure: Figure) -> list[str]:
    """Return the texts that lie partly or wholly outside the figure."""
    width, height = figure.bbox.size
    return [
        text.get_text()
        for text, (left, bottom, right, top) in boxes(figure)
        if min(left, bottom, width - right, height - top) < 0
    ]


def assert_legible(figure: Figure) -> None:
    """Check that no two texts of a figure overlap, and that none leaves it."""
    assert not (found := overlaps(figure)), found
    assert not (leaving := outside(figure)), leaving


def assert_bundle(widget: Any, png: bytes, alt: str) -> None:
    """Check that a widget's mime bundle has its view, this picture with its description, and its name."""
    data, metadata = widget._repr_mimebundle_(include=None, exclude=None)
    assert base64.b64decode(data["image/png"]) == png
    assert metadata["image/png"]["alt"] == alt
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.view.model_id
    assert data["text/plain"] == repr(widget) == f"{type(widget).__name__}()"


def assert_error_is_shown(widget: Any, control: Any, wrong: object, right: object, said: str) -> None:
    """Check that the wrong value shows an error and keeps the picture, and that the right one clears it."""
    before = widget.picture
    control.value = wrong
    assert said in widget.error
    assert widget.picture is before
    control.value = right
    assert widget.error == ""


def least_redraw_seconds(control: Any, values: Iterable[object]) -> float:
    """Return the least processor time of a redraw, over the values of a control."""
    times = []
    for value in values:
        begin = time.process_time()
        control.value = value
        times.append(time.process_time() - begin)
    return min(times)


def lines_printed_by(program: str) -> list[str]:
    """Run a program in a new process, and return the lines that it prints."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return run.stdout.strip().splitlines()
