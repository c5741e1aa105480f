"""`no_program_is_idle`: the check that every program of a launch writes something."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.idle import MAY_BE_IDLE, no_program_is_idle
from workbench.kernels.movement import transfer
from workbench.launch import Launch


def copied(surplus: int) -> Launch:
    one = transfer.launch(torch.arange(40.0), torch.empty(40))
    (step,) = one.steps
    return replace(one, steps=(replace(step, grid=(step.grid[0] + surplus,)),))


def test_a_program_that_writes_nothing_is_an_error() -> None:
    with no_program_is_idle():
        copied(0).run()
        with pytest.raises(AssertionError, match="1 of 2 programs wrote nothing: copy_kernel"):
            copied(1).run()
    copied(1).run()


def test_kernels_that_may_be_idle_have_a_reason() -> None:
    assert all(why.endswith(".") for why in MAY_BE_IDLE.values())
