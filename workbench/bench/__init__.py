"""Measurement of launches: time, ceilings, baselines, the arithmetic of the roofline, recordings."""

from workbench.bench.ceilings import from_recording, measure_ceilings
from workbench.bench.roofline import Ceilings, Point
from workbench.bench.timing import Measurement, launch_overhead, launch_overheads, measure, measure_together

__all__ = [
    "Ceilings",
    "Measurement",
    "Point",
    "from_recording",
    "launch_overhead",
    "launch_overheads",
    "measure",
    "measure_ceilings",
    "measure_together",
]
