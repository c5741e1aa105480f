"""Figures (matplotlib) and widgets (ipywidgets). They draw plain results that others measured or traced."""

from workbench.viz.bank_strips import bank_strip, describe_bank_strip
from workbench.viz.heat_maps import HeatMapWidget, describe_heat_map, heat_map
from workbench.viz.layout_maps import LayoutWidget, describe_layout_map, layout_map
from workbench.viz.points import YOUR_KERNEL
from workbench.viz.roofline import bandwidth_figure, describe, describe_bandwidth, roofline_figure
from workbench.viz.roofline_widget import RooflineWidget
from workbench.viz.sector_strips import coalescing_strip, describe_coalescing_strip
from workbench.viz.source_widget import SourceLensWidget, describe_source_lens, source_lens
from workbench.viz.style import Picture, figure_png, figure_style
from workbench.viz.tile_map import TileMapWidget, describe_tile_map, tile_map_figure
from workbench.viz.trace_maps import TraceMapWidget, describe_trace_map, trace_map
from workbench.viz.widget import Drawing, FigureWidget

__all__ = [
    "YOUR_KERNEL",
    "Drawing",
    "FigureWidget",
    "HeatMapWidget",
    "LayoutWidget",
    "Picture",
    "RooflineWidget",
    "SourceLensWidget",
    "TileMapWidget",
    "TraceMapWidget",
    "bandwidth_figure",
    "bank_strip",
    "coalescing_strip",
    "describe",
    "describe_bandwidth",
    "describe_bank_strip",
    "describe_coalescing_strip",
    "describe_heat_map",
    "describe_layout_map",
    "describe_source_lens",
    "describe_tile_map",
    "describe_trace_map",
    "figure_png",
    "figure_style",
    "heat_map",
    "layout_map",
    "roofline_figure",
    "source_lens",
    "tile_map_figure",
    "trace_map",
]
