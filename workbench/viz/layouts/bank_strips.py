"""Cost of one request of a warp in shared memory: the banks that serve its lanes, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from workbench.errors import check_type
from workbench.lens.memory import BankConflicts, SharedRequest
from workbench.viz.base.style import Palette, plain_text_style
from workbench.viz.base.words import counted
from workbench.viz.layouts.layout_maps import number_colors
from workbench.viz.layouts.strip_figure import (
    DIGITS,
    ROOM,
    checked_request,
    draw_box,
    name_row,
    new_strip,
    request_text,
)

WORD_BYTES = 4

# Heights in pixels: a pass, the gap between phases, the bank numbers.
_PASS, _PHASE, _BANKS = 17.0, 7.0, 46.0


def bank_strip(conflicts: BankConflicts, request: int = 0, *, theme: str | None = None) -> Figure:
    """Draw a row for each pass and a column for each bank; each cell shows the lane that is served.

    Gaps separate the phases, groups of lanes that are served together. If several lanes request one word, the
    cell shows the first lane and a plus.

    Args:
        conflicts: a result of `lens.memory.bank_conflicts`.
        request: index of the request.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, or there is no such request.
        UnknownNameError: the theme is unknown.
    """
    chosen = _chosen_passes(conflicts, request)
    with plain_text_style(theme) as palette:
        heading = [_passes_text(conflicts, chosen), *_all_passes_texts(conflicts, request)]
        height = chosen.passes * _PASS + (len(chosen.phases) - 1) * _PHASE
        figure, axes = new_strip(heading, height, _BANKS, palette)
        _draw_passes(axes, conflicts, chosen, number_colors(len(chosen.addresses), theme), palette)
    return figure


def describe_bank_strip(conflicts: BankConflicts, request: int = 0) -> str:
    """Return the figure's text alternative. Arguments and errors are those of the figure."""
    text = _passes_text(conflicts, _chosen_passes(conflicts, request))
    return f"Which lanes each of {conflicts.banks} banks serves, pass by pass: {text}"


def _chosen_passes(conflicts: BankConflicts, request: int) -> SharedRequest:
    check_type("conflicts", conflicts, BankConflicts, "Give what lens.memory.bank_conflicts returns.")
    return checked_request(conflicts.requests, request)


def _passes_text(conflicts: BankConflicts, request: SharedRequest) -> str:
    worst = max(request.ways)
    article = "an" if worst in (8, 11, 18) else "a"
    conflict = f"at worst {article} {worst}-way conflict" if worst > 1 else "no conflict"
    instead = f" instead of {request.ideal}" if worst > 1 else ""
    return (
        f"{len(request.addresses)} lanes × {conflicts.bits} bits: "
        f"{counted(request.passes, 'pass', 'passes')}{instead}, {conflict}."
    )


def _all_passes_texts(conflicts: BankConflicts, request: int) -> list[str]:
    which = request_text(f"{conflicts.target}, {conflicts.kind}", conflicts.requests, request)
    return [
        f"{which} All requests of this tile: {counted(conflicts.passes, 'pass', 'passes')}, "
        f"{conflicts.ideal} without conflicts."
    ]


def _lanes_served(conflicts: BankConflicts, request: SharedRequest) -> list[list[list[list[int]]]]:
    """Return for each phase and bank the requested words in the order of passes, each as its lanes."""
    words = max(conflicts.bits // (8 * WORD_BYTES), 1)
    phases = []
    for lanes in request.phases:
        banks: list[dict[int, list[int]]] = [{} for _ in range(conflicts.banks)]
        for lane in lanes:
            first = request.addresses[lane] // WORD_BYTES
            for word in range(first, first + words):
                banks[word % conflicts.banks].setdefault(word, []).append(lane)
        phases.append([list(bank.values()) for bank in banks])
    return phases


def _draw_passes(
    axes: Axes,
    conflicts: BankConflicts,
    request: SharedRequest,
    colors: Sequence[str],
    palette: Palette,
) -> None:
    width = ROOM / conflicts.banks
    top, first = 0.0, 0
    for phase, ways in zip(_lanes_served(conflicts, request), request.ways, strict=True):
        idle = [
            Rectangle((bank * width, top + row * _PASS), width, _PASS)
            for bank, words in enumerate(phase)
            for row in range(len(words), ways)
        ]
        axes.add_collection(
            PatchCollection(idle, facecolor=palette.grid, edgecolor=palette.background, linewidth=1),
            autolim=False,
        )
        for bank, words in enumerate(phase):
            for row, lanes in enumerate(words):
                text = f"{lanes[0]}{'+' if len(lanes) > 1 else ''}"
                draw_box(
                    axes, (bank * width, top + row * _PASS, width, _PASS), text, colors[lanes[0]], palette
                )
        numbers = f"pass {first}" if ways == 1 else f"passes {first}–{first + ways - 1}"
        name_row(axes, numbers, top + ways * _PASS / 2)
        top, first = top + ways * _PASS + _PHASE, first + ways
    for bank in range(0, conflicts.banks, 1 if width > 3 * DIGITS[8.0] else 2):
        axes.text((bank + 0.5) * width, top - _PHASE + 6, str(bank), ha="center", va="top", fontsize=8)
    axes.text(
        ROOM / 2,
        top - _PHASE + 24,
        "bank (the number in a cell is the lane's; + is one word for several lanes)",
        ha="center",
        va="top",
    )
