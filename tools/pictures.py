"""Make the README's pictures: `make pictures` writes them and their alternative texts.

Each picture is a widget or figure of the lessons that shows a real kernel or recorded data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from workbench import explore, lens, readings, suites, viz
from workbench.kernels import attention, gemm
from workbench.readings.gemm_reads import GemmReads
from workbench.teach.rungs import gemm_ladder
from workbench.viz.base.style import Picture

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "lessons/pictures"


def tile_map() -> Picture:
    """Draw the tile map of the shipped product, halfway through its programs."""
    square = _normals(96, 96)

    def reads(order: str, group: int) -> GemmReads:
        launch = gemm.launch(
            square, square, tile=(16, 16, 16), launch_order=order, group=group, splits=1
        )  # fmt: skip
        (trace,) = lens.trace(launch)
        return readings.gemm_reads.reads_of(trace, resident=9, cache_bytes=6144)

    return viz.GemmMapWidget(reads, orders=("by_rows", "grouped"), groups=(3, 2)).picture


def source_lens() -> Picture:
    """Draw the source lens on the first rung of lesson 05 that uses matrix units."""
    square = _normals(128, 128)
    launch = gemm_ladder.dot(square, square, torch.empty_like(square))
    return explore.source.source_lens(launch, shown=("sm_90", "gfx942")).picture


def roofline() -> Picture:
    """Draw the roofline of the recorded device with fp16 products of the workbench and of cuBLAS."""
    ceilings, points = suites.live_or_recorded("gemm", recorded=True)
    shown = [
        point
        for point in points
        if point.op == "matmul" and point.dtype == "fp16" and point.provider in ("workbench", "cuBLAS")
    ]
    figure = viz.roofline_figure(ceilings, shown)
    return Picture(viz.figure_png(figure), viz.describe(ceilings, shown))


def attention_stepper() -> Picture:
    """Draw the stepper on a tile of the shipped attention, after the third of four tiles of keys."""
    query, key, value = _normals(1, 1, 32, 16) * 2, _normals(1, 1, 64, 16), _normals(1, 1, 64, 16)
    rising = (key * torch.linspace(0.5, 2, 64)[:, None]).half()
    steps = explore.attention.steps(attention.launch(query, rising, value, tile=(16, 16), splits=1), tile=1)
    figure = viz.plot_attention_steps(steps, 2)
    return Picture(viz.figure_png(figure), viz.describe_attention_steps(steps, 2))


PICTURES: Mapping[str, Callable[[], Picture]] = {
    make.__name__: make for make in (tile_map, source_lens, roofline, attention_stepper)
}


def describe(readme: str, sentences: Mapping[str, str]) -> str:
    """Return the README with these sentences as the alternative texts of its pictures.

    Raises:
        ValueError: the README does not show one of the pictures exactly once.
    """
    for name, sentence in sentences.items():
        place = re.compile(rf"!\[[^\]]*\]\({FOLDER}/{name}\.png\)")
        if len(place.findall(readme)) != 1:
            raise ValueError(f"README.md has to show {FOLDER}/{name}.png once.")
        before, after = place.split(readme)
        readme = f"{before}![{sentence}]({FOLDER}/{name}.png){after}"
    return readme


def main() -> None:
    """Write the pictures and their alternative texts in README.md."""
    made = {name: make() for name, make in PICTURES.items()}
    (ROOT / FOLDER).mkdir(exist_ok=True)
    for name, picture in made.items():
        (ROOT / FOLDER / f"{name}.png").write_bytes(picture.png)
    readme = ROOT / "README.md"
    readme.write_text(describe(readme.read_text(), {name: each.alt for name, each in made.items()}))
    print(f"{len(made)} pictures in {FOLDER}")


def _normals(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).half()


if __name__ == "__main__":
    main()
