"""Count the memory sectors that each load and store of a launch touches.

The launch's trace gives the elements; its compiled code gives the lane that moves each element, and the bits
that a lane moves at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from workbench import lens
from workbench.errors import InvalidArgumentError
from workbench.launch import Launch
from workbench.lens import CompiledStep, StepTrace
from workbench.lens.memory import Totals
from workbench.lens.trace import MEMORY_KINDS

# A fixed GPU, so that a launch has the same count on every machine. All NVIDIA GPUs have 32-byte sectors.
TARGET = "sm_90"

# File name and line of each frame, from the kernel down through the tile operators that it calls.
Frames = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class AccessSectors:
    """The traffic of a load or store over all programs of a launch.

    Attributes:
        kind: "load" or "store".
        argument: the kernel's parameter whose memory is accessed.
        line: the line in the kernel's file.
        totals: requests, sectors, bits per lane, and figures derived from these.
    """

    kind: str
    argument: str
    line: int | None
    totals: Totals

    def __repr__(self) -> str:
        moved = self.totals
        return (
            f"{self.kind} {self.argument}: {moved.bits} bits a lane, {moved.sectors_per_request:.3g} sectors "
            f"a request, {moved.sectors:,} in all, {moved.efficiency:.1%} used"
        )


def by_access(launch: Launch) -> tuple[AccessSectors, ...]:
    """Return the sectors of each load and store of a launch, in the order of their first execution.

    A sector counts once for each request of a warp that touches it.

    Raises:
        InvalidArgumentError: the lanes of an access have no addresses of their own: it accesses a single
            element, uses a descriptor, or is an atomic.
        KernelError: a kernel fails to run or to compile.
    """
    steps = zip(lens.trace(launch), lens.compile(launch, TARGET), strict=True)
    return tuple(found for trace, compiled in steps for found in _of_step(trace, compiled))


def _of_step(trace: StepTrace, compiled: CompiledStep) -> Iterator[AccessSectors]:
    layouts = dict(_layouts(compiled.stages["ttgir"]))
    for site in trace.sites:
        if site.kind not in MEMORY_KINDS:
            continue
        frames = _frames((frame.file, frame.line) for frame in site.frames)
        # The compiler may give a call that spans lines the line of an argument, below the first line.
        found = [place for kind, place in layouts if kind == site.kind and _is_at_or_below(place, frames)]
        if not found or not site.shape:
            raise InvalidArgumentError(
                "launch",
                f"the {site.kind} in line {site.line} of {trace.kernel} accesses no tile of pointers",
                "Write it as tl.load(pointer + offsets) or tl.store(pointer + offsets, tile).",
            )
        place = min(found)
        layout = lens.layout.of(layouts[site.kind, place], site.shape, target=TARGET)
        totals = lens.memory.site_coalescing(
            trace, site, layout, target=TARGET, bits=_bits(compiled, site.kind, place)
        )
        yield AccessSectors(site.kind, site.argument, site.line, totals)


def _is_at_or_below(place: Frames, frames: Frames) -> bool:
    (file, line), (wanted_file, wanted_line) = place[-1], frames[-1]
    return place[:-1] == frames[:-1] and file == wanted_file and line >= wanted_line


def _bits(compiled: CompiledStep, kind: str, place: Frames) -> int | None:
    """Return the fewest bits that a lane moves in one instruction of an access; None if none is found."""
    widths = [
        each.bits
        for each in compiled.instructions
        if each.kind == f"global {kind}"
        and each.bits
        and _frames([(each.file, each.line), *each.inlined]) == place
    ]
    return min(widths, default=None)


def _layouts(ttgir: str) -> Iterator[tuple[tuple[str, Frames], str]]:
    """Yield the kind, source location and layout of each load and store of a tile in the TTGIR."""
    aliases = dict(re.findall(r"^(#\w+) = (#ttn?g\..*>)$", ttgir, re.MULTILINE))
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttgir, re.MULTILINE))

    def written_out(text: str) -> str:
        while "#loc" in text:
            text = re.sub(r"#loc\d*", lambda alias: locations[alias[0]], text)
        return text

    for kind, attribute, location in _ACCESS.findall(ttgir):
        layout = re.sub(r"#\w+\b(?!\.)", lambda alias: aliases[alias[0]], attribute)
        inner_first = re.findall(r'"([^"]*)":(\d+):\d+', written_out(location))
        yield (kind, _frames((file, int(line)) for file, line in reversed(inner_first))), layout


_ACCESS = re.compile(r"tt\.(load|store) .*: tensor<[^,]*, (#.*)> loc\((.*)\)$", re.MULTILINE)


def _frames(frames: Iterable[tuple[str, int]]) -> Frames:
    # Leave out folders: the compiler may make names absolute, even that of a notebook cell.
    return tuple((PurePath(file).name, line) for file, line in frames)
