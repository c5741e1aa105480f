"""On a pretended device, a call is refused whose key is that of a call with other tensors or options."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from tests.machines import A100, H200
from workbench import device
from workbench.errors import InvalidArgumentError
from workbench.kernels.movement import transfer
from workbench.runtime.cache import LaunchCache


def copied(launches: LaunchCache, x: torch.Tensor, *key: Any) -> torch.Tensor:
    output = torch.zeros(x.shape, dtype=x.dtype)
    launches.run((key, x.device), transfer.launch, x, output)
    return output


@pytest.mark.parametrize(
    ("unlike", "words"),
    [
        (torch.arange(24, dtype=torch.int32).view(4, 6), r"torch\.int32, .* for \(torch\.int64, "),
        (torch.arange(30).view(5, 6), r"\(\(5, 6\), \(6, 1\)\)\) for "),
        (torch.arange(24).view(6, 4).t(), r"\(\(4, 1\), \(6, 4\)\)\) for "),
    ],
)
def test_a_key_of_two_different_launches_is_an_error(unlike: torch.Tensor, words: str) -> None:
    x, launches = torch.arange(24).view(4, 6), LaunchCache()
    with device.pretend(H200):
        for _ in range(2):
            assert torch.equal(copied(launches, x), x)
        with pytest.raises(InvalidArgumentError, match=rf"key: it is that of another call: .*{words}"):
            copied(launches, unlike)
        assert torch.equal(copied(launches, unlike, "another"), unlike)


def test_a_key_that_lacks_an_option_is_an_error() -> None:
    launches = LaunchCache()

    def make(tile: int, x: torch.Tensor, output: torch.Tensor) -> Any:
        return transfer.launch(x, output, tile=(tile,))

    with device.pretend(H200):
        for tile in (64, 64, 128):
            x = torch.arange(300)
            output = torch.zeros_like(x)
            with (
                nullcontext() if tile == 64 else pytest.raises(InvalidArgumentError, match=r"128.* for .*64")
            ):
                launches.run(x.device, partial(make, tile), x, output)
                assert torch.equal(output, x)


def test_strides_of_dimensions_of_length_1_do_not_matter() -> None:
    launches = LaunchCache()
    with device.pretend(H200):
        for x in (torch.arange(4).view(4, 1), torch.arange(4).view(1, 4)):
            assert torch.equal(copied(launches, x), x)


def test_a_key_that_lacks_its_device_is_an_error() -> None:
    x = torch.arange(4)
    with device.pretend(H200), pytest.raises(InvalidArgumentError, match="key: nothing in it is cpu"):
        LaunchCache().run(("copy", x.shape, x.dtype), transfer.launch, x, torch.zeros_like(x))


def test_each_machine_has_launches_of_its_own() -> None:
    x, launches = torch.arange(24), LaunchCache()
    made = []

    def make(*tensors: torch.Tensor) -> Any:
        made.append(device.running().architecture)
        return transfer.launch(*tensors)

    for machine in (H200, A100, H200):
        with device.pretend(machine):
            launches.run(x.device, make, x, torch.zeros_like(x))
    assert made == ["sm_90", "sm_80"]
    launches.run("any", make, x, torch.zeros_like(x))  # the interpreter itself keeps and checks nothing
    assert len(made) == 3
