"""Attention's traffic: bytes of each tensor with and without fusion, and how they grow with the length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from workbench.errors import InvalidArgumentError, check_each
from workbench.readings.attention import AttentionBytes, TensorBytes
from workbench.viz.base.panel_figure import mixed
from workbench.viz.base.style import DPI, WIDTH, WIDTH_INCHES, Palette, new_figure, plain_text_style
from workbench.viz.base.words import bytes_text, listed

# The most ways to compute attention, and the most tensors, that a figure can show.
MOST_LABELS, MOST_TENSORS = 3, 12

# Sizes in pixels: margins and a line of text; the bars and the curve.
_MARGIN, _LEFT, _HEADING, _BELOW, _LINE = 18.0, 62.0, 82.0, 56.0, 19.0
_BARS, _BETWEEN, _RIGHT, _TENSOR = 500.0, 96.0, 28.0, 46.0
_MARKERS = ("o", "s", "D")


def plot_attention_bytes(counted: Sequence[AttentionBytes], *, theme: str | None = None) -> Figure:
    """Draw the bytes of each tensor at the largest length, and total bytes by length.

    There is a bar for each tensor and each label. A bar is divided into bytes loaded and bytes stored, each
    element counted once per kernel. The dotted line is the formula: a tensor's size, once for each kernel
    that loads it and once for each that stores it.

    Args:
        counted: results of `readings.attention.attention_bytes` for one to three ways to compute attention,
            which their labels distinguish, such as "unfused" and "fused"; each way at the same lengths.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError: `counted` has the wrong type. InvalidArgumentError: it is empty, has too many ways
            or tensors, or does not have each way once at each length.
        UnknownNameError: the theme is unknown.
    """
    ways = _checked(counted)
    largest = {label: of_way[-1] for label, of_way in ways.items()}
    names = _names(largest.values())
    sentences = _sentences(ways)
    with plain_text_style(theme) as palette:
        figure, bars = new_figure()
        down = max(_TENSOR * len(names), 150.0)
        width, height = (
            WIDTH,
            round(_HEADING + down + _BELOW + len(sentences) * _LINE + _MARGIN),
        )
        figure.set_size_inches(WIDTH_INCHES, height / DPI)
        figure.text(
            _MARGIN / width, 1 - 22 / height, _heading(ways), va="center", fontsize=12, fontweight="bold"
        )
        bottom = 1 - (_HEADING + down) / height
        has_curve = len(next(iter(ways.values()))) > 1
        across = _BARS if has_curve else width - _LEFT - _RIGHT
        bars.set_position((_LEFT / width, bottom, across / width, down / height))
        _draw_bars(bars, largest, names, palette)
        if has_curve:
            left = _LEFT + across + _BETWEEN
            curve = figure.add_axes((left / width, bottom, 1 - (left + _RIGHT) / width, down / height))
            _draw_curve(curve, ways, palette)
        for number, line in enumerate(sentences):
            top = _HEADING + down + _BELOW + (number + 0.5) * _LINE
            figure.text(_MARGIN / width, 1 - top / height, line, va="center", fontsize=9)
        _draw_legend(figure, list(ways), palette)
    return figure


def describe_attention_bytes(counted: Sequence[AttentionBytes]) -> str:
    """Return the text alternative of :func:`plot_attention_bytes`, with its arguments and errors."""
    ways = _checked(counted)
    return f"Bars of the bytes that kernels load and store of each tensor. {' '.join(_sentences(ways))}"


def _checked(given: Sequence[AttentionBytes]) -> dict[str, list[AttentionBytes]]:
    """Check the results and group them by label, sorted by length."""
    fix = "Give a list of results of readings.attention.attention_bytes."
    each = check_each("counted", given, AttentionBytes, fix)
    ways: dict[str, list[AttentionBytes]] = {}
    for one in each:
        ways.setdefault(one.label, []).append(one)
    lengths = {tuple(sorted(one.length for one in of_way)) for of_way in ways.values()}
    if not ways:
        raise InvalidArgumentError("counted", "it is empty", "Give one result or more.")
    if len(lengths) > 1 or len(set(*lengths)) < len(next(iter(lengths))):
        given_lengths = {label: sorted(one.length for one in of_way) for label, of_way in ways.items()}
        fix = "Give each way once at each length."
        raise InvalidArgumentError("counted", f"got the lengths {given_lengths}", fix)
    names = _names(each)
    if len(ways) > MOST_LABELS or len(names) > MOST_TENSORS:
        fix = f"Give at most {MOST_LABELS} ways and {MOST_TENSORS} tensors."
        raise InvalidArgumentError("counted", f"got {len(ways)} ways and {len(names)} tensors", fix)
    return {label: sorted(of_way, key=lambda one: one.length) for label, of_way in ways.items()}


def _names(each: Iterable[AttentionBytes]) -> list[str]:
    """Return the names of all tensors, without repetition, in their first order."""
    found = [tensor.name for one in each for tensor in one.tensors]
    return list(dict.fromkeys(found))


def _tensor_bytes(one: AttentionBytes, name: str) -> TensorBytes | None:
    """Return the bytes of a tensor; None if there is no tensor with that name."""
    return next((tensor for tensor in one.tensors if tensor.name == name), None)


def _heading(ways: dict[str, list[AttentionBytes]]) -> str:
    largest = [of_way[-1] for of_way in ways.values()]
    what = ", ".join(f"{one.label} {bytes_text(one.moved)}" for one in largest)
    return f"Bytes between memory and chip at length {largest[0].length:,}: {what}"


def _sentences(ways: dict[str, list[AttentionBytes]]) -> list[str]:
    """Return the sentences that describe the figure."""
    largest = [of_way[-1] for of_way in ways.values()]
    sentences = []
    for one in largest:
        asked = one.asked / one.moved if one.moved else 0.0
        sentences.append(
            f"{one.label.capitalize()}, {_kernels(one)}: {one.moved:,} bytes, by the formula "
            f"{one.formula:,}; lanes, which read some again, ask for {asked:.1f} times as many."
        )
    for one in largest:
        if never := [tensor.name for tensor in one.tensors if not tensor.asked]:
            reach = "reach" if len(never) > 1 else "reaches"
            sentences.append(f"{one.label.capitalize()}, {listed(never)} never {reach} memory.")
    if len(next(iter(ways.values()))) > 1:
        before, last = next(iter(ways.values()))[-2:]
        grown, asked_for = (
            ", ".join(
                f"{label} × {_ratio(getattr(of_way[-1], what), getattr(of_way[-2], what))}"
                for label, of_way in ways.items()
            )
            for what in ("moved", "asked")
        )
        sentences.append(
            f"From length {before.length:,} to {last.length:,}: {grown}; what lanes ask for: {asked_for}."
        )
    return sentences


def _kernels(one: AttentionBytes) -> str:
    return "1 kernel" if one.kernels == 1 else f"{one.kernels} kernels"


def _ratio(after: int, before: int) -> str:
    return f"{after / before:.2f}" if before else "∞"


def _colors(labels: Sequence[str], palette: Palette) -> dict[str, str]:
    order = (1, 0, 2)
    return {label: palette.series[order[number]] for number, label in enumerate(labels)}


def _draw_bars(
    axes: Axes, largest: dict[str, AttentionBytes], names: Sequence[str], palette: Palette
) -> None:
    """Draw a bar for each tensor and each way to compute attention: bytes loaded, then bytes stored."""
    colors = _colors(list(largest), palette)
    most = max(tensor.moved for one in largest.values() for tensor in one.tensors) or 1
    thick = 0.76 / len(largest)
    for number, (label, one) in enumerate(largest.items()):
        for place, name in enumerate(names):
            middle = place + (number - (len(largest) - 1) / 2) * thick
            tensor = _tensor_bytes(one, name)
            if tensor is None:
                continue
            if not tensor.moved:
                text, end = "never in memory", 0.0
            else:
                light = mixed(palette.background, colors[label], 0.5)
                axes.barh(middle, tensor.loaded, 0.86 * thick, color=colors[label], linewidth=0)
                axes.barh(middle, tensor.stored, 0.86 * thick, left=tensor.loaded, color=light, linewidth=0)
                axes.plot(
                    [tensor.formula] * 2, [middle - 0.5 * thick, middle + 0.5 * thick], ":",
                    color=palette.ink, linewidth=1.4,
                )  # fmt: skip
                text, end = bytes_text(tensor.moved), float(max(tensor.moved, tensor.formula))
            axes.annotate(
                text, (end, middle), (6, 0), textcoords="offset pixels", va="center", fontsize=8,
                color=palette.muted,
            )  # fmt: skip
    axes.set_xlim(0, 1.24 * most)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), list(names))
    axes.grid(visible=False, axis="y")
    axes.tick_params(length=0, labelsize=9)
    step = 2.0 ** round(np.log2(max(most / 4, 1)))
    axes.set_xticks(np.arange(0, 1.24 * most, step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(int(value))))
    axes.set_xlabel("bytes loaded and stored, each element once a kernel")


def _draw_curve(axes: Axes, ways: dict[str, list[AttentionBytes]], palette: Palette) -> None:
    """Draw total bytes by length, both logarithmic, with the formula dotted."""
    colors = _colors(list(ways), palette)
    for marker, (label, of_way) in zip(_MARKERS, ways.items(), strict=False):
        lengths = [one.length for one in of_way]
        axes.plot(lengths, [one.formula for one in of_way], ":", color=palette.ink, linewidth=1.4)
        axes.plot(lengths, [one.moved for one in of_way], marker, color=colors[label])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    lengths = [one.length for one in next(iter(ways.values()))]
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    every = [one.moved for of_way in ways.values() for one in of_way]
    ends = np.log2([max(min(every), 1), max(max(every), 2)])
    ticks = 2.0 ** np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1)
    ticks = ticks[:: max(1, len(ticks) // 6)]
    axes.set_yticks(ticks, [bytes_text(int(tick)) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.set_ylim(2 ** (ends[0] - 0.7), 2 ** (ends[1] + 0.7))
    axes.tick_params(length=0, labelsize=9)
    axes.set_xlabel("queries and keys")


def _draw_legend(figure: Figure, labels: Sequence[str], palette: Palette) -> None:
    colors = _colors(labels, palette)
    handles: list[Patch | Line2D] = []
    for label in labels:
        handles.append(Patch(color=colors[label], label=f"{label}: loaded"))
        handles.append(Patch(color=mixed(palette.background, colors[label], 0.5), label="stored"))
    handles.append(Line2D([], [], linestyle=":", color=palette.ink, linewidth=1.4, label="formula"))
    width, height = figure.bbox.size
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=((_MARGIN - 4) / width, 1 - 50 / height),
        ncols=len(handles), borderaxespad=0, borderpad=0.3, handlelength=1.2, columnspacing=1.6,
    )  # fmt: skip
