"""Steps of a launch that start while the previous step still runs (see `tile.overlap`)."""

from __future__ import annotations

from dataclasses import replace

from workbench.device import planned
from workbench.launch import Step, Work

# The most FLOPs of a product whose steps overlap. Long products gain nothing: on an H200, 3000^3 (fp16,
# packed) lost 2 %, tf32 8192^3 (packed, persistent programs) 40 %.
MOST_FLOPS_OVERLAPPED = 2 * 2**33


def overlapping(work: Work, *steps: Step) -> tuple[Step, ...]:
    """Return the steps, overlapped if the product is short enough to gain by it."""
    return steps if work.flops > MOST_FLOPS_OVERLAPPED else overlapped(*steps)


def overlapped(*steps: Step) -> tuple[Step, ...]:
    """Return the steps so that each starts while the previous one runs, if the device can do that."""
    architecture = planned().architecture
    if not architecture.startswith("sm_") or int(architecture[3:]) < 90:
        return steps
    return tuple(
        [
            replace(step, meta={**step.meta, "OVERLAP": True} | ({"launch_pdl": True} if i else {}))
            for i, step in enumerate(steps)
        ]
    )
