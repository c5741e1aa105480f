"""Differences between `workbench.ops` and torch on purpose, each with its reason; all others fail."""

from __future__ import annotations

import re
from typing import NamedTuple


class Listed(NamedTuple):
    """Difference from torch on purpose.

    Attributes:
        pattern: a regular expression that matches the beginning of "operator on device: kind: words".
        why: the reason, a sentence.
    """

    pattern: str
    why: str


LISTED = (
    Listed(
        r"\w+ on \w+: refusal: .*out: given together with tensors that require grad",
        "torch refuses such an `out` in most functions; in some, such as softmax, it loses the gradient.",
    ),
    Listed(
        r"conv3d on cpu: strides: ",
        "torch's kernels for small 3-d convolutions on one CPU thread always return contiguous results.",
    ),
    Listed(
        r"conv_transpose2d on \w+: refusal: .*which leaves an output of \(.*\b0\b.*\) pixels",
        "torch refuses an output without pixels too, except for the dtypes that oneDNN computes.",
    ),
    Listed(
        r"pixel_unshuffle on \w+: shape: .*torch's \(.*\b0\b.*\)",
        "torch returns a tensor without elements unchanged; its meta function and ours rearrange the shape.",
    ),
    Listed(
        r"pixel_(un)?shuffle on cuda: fuzz: no float64 result .*(invalid gradient .*\[.*\b0\b.*\]|divisible)",
        "torch's float64 result comes from the CPU, where it returns a tensor without elements unchanged.",
    ),
    Listed(
        r"batch_norm on cuda: strides: .*, of no memory format",
        "torch's own kernels keep strides of any dense input, cuDNN's do not; ours use the suggested format.",
    ),
    Listed(
        r"(group_norm|pixel_(un)?shuffle) on cuda: strides: result: strides \(\d+, 1, ",
        "torch keeps channels_last on a CPU and not on a GPU; ours keeps it on both, for later operators.",
    ),
    Listed(
        r"pad on cuda: strides: result: strides \(\d+, 1, \d+, \d+(, \d+)?\)",
        "torch loses channels_last on a GPU, not on a CPU, if three dimensions are padded; ours keeps it.",
    ),
    Listed(
        r"pad on cuda: refusal: .*'mode': 'replicate'.* of shape \(.*\b0\b.*torch.pad says",
        "torch refuses an empty batch too, except if a switch selects its deterministic implementation.",
    ),
    Listed(
        r"rms_norm on cuda: dtype: result: torch.float32, torch's torch.b?float16",
        "torch widens the result under autocast, as ours does, but torch 2.11 did not yet.",
    ),
    Listed(
        r"conv_transpose2d on cuda: strides: result: strides \(\d+, 1, ",
        "torch loses channels_last if output_padding reaches the stride, which cuDNN does not support.",
    ),
    Listed(
        r"matmul_\w+ on \w+: refusal: .*has no columns, so there is nothing to reduce",
        "A fused reduction, which torch does not have, needs one column or more.",
    ),
)


def reason_for(operator: str, device: str, kind: str, words: str) -> str | None:
    """Return the reason for a difference between `ops` and torch; None if the difference is not listed."""
    finding = f"{operator} on {device}: {kind}: {words}"
    return next((each.why for each in LISTED if re.match(each.pattern, finding)), None)
