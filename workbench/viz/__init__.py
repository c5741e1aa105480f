"""Figures (matplotlib) and widgets (ipywidgets) that draw results measured or traced elsewhere."""

from workbench.viz.attention.attention_bytes import describe_attention_bytes, plot_attention_bytes
from workbench.viz.attention.attention_gradients import describe_attention_gradients, plot_attention_gradients
from workbench.viz.attention.attention_stepper import (
    AttentionStepperWidget,
    describe_attention_steps,
    plot_attention_steps,
)
from workbench.viz.attention.attention_tiles import (
    AttentionTilesWidget,
    TilesChoice,
    describe_attention_tiles,
    plot_attention_tiles,
)
from workbench.viz.base.style import Picture, figure_png, figure_style
from workbench.viz.base.widget import Drawing, FigureWidget
from workbench.viz.code.code_text import code_figure, describe_code
from workbench.viz.code.source_widget import SourceLensWidget, describe_source_lens, source_lens
from workbench.viz.code.vector_widths import VectorWidth, describe_vector_widths, vector_widths_figure
from workbench.viz.coords.descriptor import DescriptorWidget, describe_descriptor, descriptor_figure
from workbench.viz.coords.image_tile import ImageTile, ImageTileWidget, describe_image_tile, image_tile_figure
from workbench.viz.gemm.fusion_explorer import (
    ExploredFusion,
    FusedTensor,
    FusionChoice,
    FusionExplorerWidget,
    FusionKernel,
    describe_fusion_explorer,
    fusion_explorer_figure,
)
from workbench.viz.gemm.gemm_map import GemmMapWidget, describe_gemm_map, gemm_map_figure
from workbench.viz.gemm.instance_landscape import (
    InstanceLandscapeWidget,
    LandscapeInstance,
    describe_instance_landscape,
    instance_landscape_figure,
)
from workbench.viz.gemm.tile_explorer import (
    ExploredTile,
    TileConfiguration,
    TileExplorerWidget,
    describe_tile_explorer,
    tile_explorer_figure,
)
from workbench.viz.gemm.waves import WavesWidget, describe_waves, waves_figure
from workbench.viz.layouts.bank_strips import bank_strip, describe_bank_strip
from workbench.viz.layouts.layout_maps import LayoutWidget, describe_layout_map, layout_map
from workbench.viz.layouts.reduction_trees import ReductionTreeWidget, describe_reduction_tree, reduction_tree
from workbench.viz.layouts.row_holders import describe_row_holders, row_holders_figure
from workbench.viz.layouts.sector_strips import coalescing_strip, describe_coalescing_strip
from workbench.viz.numerics.numerics import (
    NumericsWidget,
    describe_summation_errors,
    describe_variance_errors,
    summation_errors,
    variance_errors,
)
from workbench.viz.numerics.softmax_stepper import SoftmaxStepperWidget, describe_softmax_steps, softmax_steps
from workbench.viz.roofline.points import YOUR_KERNEL
from workbench.viz.roofline.roofline import bandwidth_figure, describe, describe_bandwidth, roofline_figure
from workbench.viz.roofline.roofline_widget import RooflineWidget
from workbench.viz.traces.heat_maps import HeatMapWidget, describe_heat_map, heat_map
from workbench.viz.traces.tile_map import TileMapWidget, describe_tile_map, tile_map_figure
from workbench.viz.traces.trace_maps import TraceMapWidget, describe_trace_map, trace_map

__all__ = [
    "YOUR_KERNEL",
    "AttentionStepperWidget",
    "AttentionTilesWidget",
    "DescriptorWidget",
    "Drawing",
    "ExploredFusion",
    "ExploredTile",
    "FigureWidget",
    "FusedTensor",
    "FusionChoice",
    "FusionExplorerWidget",
    "FusionKernel",
    "GemmMapWidget",
    "HeatMapWidget",
    "ImageTile",
    "ImageTileWidget",
    "InstanceLandscapeWidget",
    "LandscapeInstance",
    "LayoutWidget",
    "NumericsWidget",
    "Picture",
    "ReductionTreeWidget",
    "RooflineWidget",
    "SoftmaxStepperWidget",
    "SourceLensWidget",
    "TileConfiguration",
    "TileExplorerWidget",
    "TileMapWidget",
    "TilesChoice",
    "TraceMapWidget",
    "VectorWidth",
    "WavesWidget",
    "bandwidth_figure",
    "bank_strip",
    "coalescing_strip",
    "code_figure",
    "describe",
    "describe_attention_bytes",
    "describe_attention_gradients",
    "describe_attention_steps",
    "describe_attention_tiles",
    "describe_bandwidth",
    "describe_bank_strip",
    "describe_coalescing_strip",
    "describe_code",
    "describe_descriptor",
    "describe_fusion_explorer",
    "describe_gemm_map",
    "describe_heat_map",
    "describe_image_tile",
    "describe_instance_landscape",
    "describe_layout_map",
    "describe_reduction_tree",
    "describe_row_holders",
    "describe_softmax_steps",
    "describe_source_lens",
    "describe_summation_errors",
    "describe_tile_explorer",
    "describe_tile_map",
    "describe_trace_map",
    "describe_variance_errors",
    "describe_vector_widths",
    "describe_waves",
    "descriptor_figure",
    "figure_png",
    "figure_style",
    "fusion_explorer_figure",
    "gemm_map_figure",
    "heat_map",
    "image_tile_figure",
    "instance_landscape_figure",
    "layout_map",
    "plot_attention_bytes",
    "plot_attention_gradients",
    "plot_attention_steps",
    "plot_attention_tiles",
    "reduction_tree",
    "roofline_figure",
    "row_holders_figure",
    "softmax_steps",
    "source_lens",
    "summation_errors",
    "tile_explorer_figure",
    "tile_map_figure",
    "trace_map",
    "variance_errors",
    "vector_widths_figure",
    "waves_figure",
]
