"""Client API: functions with torch's own names and signatures, run by the kernels of this package.

Each function chooses a template and an instance, launches it, and returns what torch's function returns, with
the same broadcasting, dtypes, strides and classes of errors, and with autograd where torch has it. Docstrings
name the differences: most gradients, for example, cannot be differentiated again. torch does not have
`attention`, `swiglu`, `geglu` and the functions `fused_*` and `matmul_*`; their meaning is that of a
composition of torch's functions. There is one file for each family of operators.
"""

from workbench.ops.attention import attention, scaled_dot_product_attention
from workbench.ops.convolution import conv1d, conv2d, conv3d, conv_transpose2d
from workbench.ops.elementwise import add
from workbench.ops.fused import fused_conv2d, fused_grouped_mm, fused_matmul
from workbench.ops.fused_templates import (
    geglu,
    matmul_amax,
    matmul_amin,
    matmul_argmax,
    matmul_layer_norm,
    matmul_log_softmax,
    matmul_logsumexp,
    matmul_matmul,
    matmul_mean,
    matmul_norm,
    matmul_rms_norm,
    matmul_softmax,
    matmul_sum,
    swiglu,
)
from workbench.ops.gemm import addmm, baddbmm, bmm, linear, matmul, mm
from workbench.ops.grouped_gemm import grouped_mm
from workbench.ops.normalization import batch_norm, group_norm, layer_norm, rms_norm
from workbench.ops.pooling import avg_pool2d, max_pool2d
from workbench.ops.rearrange import flip, pad, roll, unfold
from workbench.ops.reduction import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    max,
    mean,
    min,
    norm,
    prod,
    sum,
)
from workbench.ops.softmax import cross_entropy, log_softmax, logsumexp, softmax
from workbench.ops.transfer import clone, permute_copy, pixel_shuffle, pixel_unshuffle, transpose_copy

__all__ = [
    "add",
    "addmm",
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "attention",
    "avg_pool2d",
    "baddbmm",
    "batch_norm",
    "bmm",
    "clone",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "cross_entropy",
    "flip",
    "fused_conv2d",
    "fused_grouped_mm",
    "fused_matmul",
    "geglu",
    "group_norm",
    "grouped_mm",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "matmul",
    "matmul_amax",
    "matmul_amin",
    "matmul_argmax",
    "matmul_layer_norm",
    "matmul_log_softmax",
    "matmul_logsumexp",
    "matmul_matmul",
    "matmul_mean",
    "matmul_norm",
    "matmul_rms_norm",
    "matmul_softmax",
    "matmul_sum",
    "max",
    "max_pool2d",
    "mean",
    "min",
    "mm",
    "norm",
    "pad",
    "permute_copy",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prod",
    "rms_norm",
    "roll",
    "scaled_dot_product_attention",
    "softmax",
    "sum",
    "swiglu",
    "transpose_copy",
    "unfold",
]
