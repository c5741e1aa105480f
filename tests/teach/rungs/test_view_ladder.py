"""Every rung computes the same convolution; its loads are as wide as what its descriptor knows allows."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from workbench import lens
from workbench.coords import lower, symbol
from workbench.errors import InvalidArgumentError
from workbench.teach.rungs import ladder, view_ladder
from workbench.teach.rungs.view_ladder import LADDER, image_windows

each_rung = pytest.mark.parametrize("name", LADDER)


def images(*shape: int) -> torch.Tensor:
    """Return small integers, whose sums are exact."""
    return torch.randint(-2, 3, shape).half().contiguous(memory_format=torch.channels_last)


@each_rung
@pytest.mark.parametrize(
    ("shape", "features", "taps", "options"),
    [
        ((2, 8, 5, 6), 8, (3, 3), {"padding": 1}),
        ((1, 5, 7, 4), 3, (2, 3), {"stride": 2, "padding": 1}),  # no size divides another
        ((3, 16, 6, 6), 16, (3, 3), {"padding": 2, "dilation": 2}),
        ((1, 24, 5, 5), 8, (5, 3), {"padding": 1}),  # a step along K carries from digit to digit
        ((2, 3, 4, 4), 9, (1, 1), {}),  # a plain matrix
    ],
    ids=["3 x 3", "ragged", "dilated", "carried", "1 x 1"],
)
def test_every_rung_computes_the_convolution(
    name: str, shape: tuple[int, ...], features: int, taps: tuple[int, ...], options: dict[str, Any]
) -> None:
    x, weight = images(*shape), images(features, shape[1], *taps)
    if name == "in_eights" and shape[1] % 8:
        with pytest.raises(InvalidArgumentError, match="Give a multiple of 8"):
            LADDER[name](x, weight, **options)
        return
    (output,) = LADDER[name](x, weight, **options).run()
    assert torch.equal(output, functional.conv2d(x.float(), weight.float(), **options).half())


def narrowest_load(name: str, channels: int) -> int:
    """Return the fewest bits that a lane moves in one access, compiled for an H200."""
    x, weight = images(2, channels, 56, 56), images(64, channels, 3, 3)
    (step,) = lens.compile(LADDER[name](x, weight, padding=1), "sm_90")
    kinds = ("global load", "asynchronous copy")
    return min(each.bits for each in step.instructions if each.kind in kinds and each.bits)


@pytest.mark.parametrize(
    ("name", "channels", "bits"),
    [
        ("constants", 72, 128),
        ("in_eights", 72, 128),
        ("arguments", 72, 16),
        ("constants", 40, 128),
        ("in_eights", 40, 128),
        ("arguments", 40, 16),
        ("taps_innermost", 72, 16),
        ("computed", 72, 128),
        ("moved", 72, 128),
    ],
)
def test_load_widths_follow_from_the_divisors_that_a_rung_knows(name: str, channels: int, bits: int) -> None:
    assert narrowest_load(name, channels) == bits


def test_the_compiler_specializes_an_argument_that_16_divides() -> None:
    """16 divides 64 channels: `arguments` then copies 16 bytes at once, except in the last step along K."""
    copies = {}
    for channels in (64, 72):
        x, weight = images(2, channels, 56, 56), images(64, channels, 3, 3)
        (step,) = lens.compile(LADDER["arguments"](x, weight, padding=1), "sm_90")
        copies[channels] = sum(each.kind == "asynchronous copy" for each in step.instructions)
    assert copies[64] == 3 * copies[72]  # copies of images and weight, and of the weight alone


def test_unknown_lengths_are_divisors_at_run_time_and_known_ones_constants() -> None:
    """The compiler turns a division by a constant into a multiplication."""
    divisions = re.compile(r"(?://|%) (\w+)")
    known = lower(image_windows((2, 56, 56, 64), (56, 56), (3, 3), padding=1)).source
    assert all(by.isdigit() for by in divisions.findall(known))
    n, high, wide, channels = (symbol(name, least=1) for name in ("n", "high", "wide", "channels"))
    unknown = lower(image_windows((n, high, wide, channels), (high, wide), (3, 3), padding=1)).source
    assert {"wide", "channels"} <= set(divisions.findall(unknown))


def test_rungs_are_candidates_of_conv2d() -> None:
    x, weight = images(1, 8, 4, 4), images(4, 8, 3, 3)
    assert list(ladder.RUNGS["conv2d"]) == list(LADDER)
    for name, rung in ladder.RUNGS["conv2d"].items():
        options = {"stride": 1, "padding": 1, "dilation": 1}
        found = rung(x, weight, groups=1, **options)()
        assert torch.equal(found, functional.conv2d(x.float(), weight.float(), padding=1).half()), name
        with pytest.raises(InvalidArgumentError, match="groups: got 2"):
            rung(x, weight, groups=2, **options)


def test_images_that_are_not_channels_last_raise() -> None:
    x = images(1, 8, 4, 4).contiguous(memory_format=torch.contiguous_format)
    with pytest.raises(InvalidArgumentError, match="input: strides"):
        view_ladder.constants(x, images(4, 8, 3, 3))


def test_too_many_elements_of_images_or_output_raise() -> None:
    """The images have 2^28 elements, and the output 2^31."""
    x = torch.empty(2**8, 16, 2**8, 2**8, dtype=torch.float16, device="meta")
    x, weight = x.contiguous(memory_format=torch.channels_last), torch.empty(128, 16, 1, 1, device="meta")
    given = "input: 268435456 elements, and 2147483648 in the output. Give fewer images"
    with pytest.raises(InvalidArgumentError, match=given):
        view_ladder.computed(x, weight)
