"""Figures (matplotlib) and widgets (ipywidgets). They draw plain results that others measured or traced."""

from workbench.viz.points import YOUR_KERNEL
from workbench.viz.roofline import bandwidth_figure, describe, describe_bandwidth, roofline_figure
from workbench.viz.roofline_widget import RooflineWidget
from workbench.viz.style import Picture, figure_png, figure_style
from workbench.viz.tile_map import TileMapWidget, describe_tile_map, tile_map_figure
from workbench.viz.widget import Drawing, FigureWidget

__all__ = [
    "YOUR_KERNEL",
    "Drawing",
    "FigureWidget",
    "Picture",
    "RooflineWidget",
    "TileMapWidget",
    "bandwidth_figure",
    "describe",
    "describe_bandwidth",
    "describe_tile_map",
    "figure_png",
    "figure_style",
    "roofline_figure",
    "tile_map_figure",
]
