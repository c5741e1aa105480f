"""Kernels chosen for random problems of ragged sizes compile for every kind of GPU, and fit."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

from tests.chosen import of_problem, only_made_for
from tests.drawn import FAMILIES
from tests.everything import all_is_tested
from tests.kernels.places_in_sass import has_products, misplaced
from tests.machines import A100, H200, MI300X
from workbench import ops
from workbench.errors import WorkbenchError
from workbench.lens import compile_all

MACHINES = {"sm_80": A100, "sm_90": H200, "gfx942": MI300X}
# Kernels take seconds to compile: all of them where Triton's versions are compared, else some small ones.
IS_MATRIX = all_is_tested() or "WORKBENCH_TEST_MATRIX" in os.environ
SEEDS = range(6 if IS_MATRIX else 1)
PLACES = (
    list(product(FAMILIES, MACHINES))
    if IS_MATRIX
    else [("rows", "sm_90"), ("channels", "sm_80"), ("moved", "gfx942"), ("grouped", "sm_90")]
)


@pytest.mark.parametrize(("family", "target"), PLACES)
def test_chosen_kernels_compile_and_fit(family: str, target: str) -> None:
    machine = MACHINES[target]
    drawn = [of_problem(family, seed, machine) for seed in SEEDS]
    launches = [(words, launch) for words, made in drawn for launch in made]
    assert launches
    wrong = []
    for (words, launch), steps in zip(
        launches, compile_all([each for _, each in launches], target), strict=True
    ):
        if isinstance(steps, WorkbenchError):
            wrong.append(f"{words}\n{launch}\n{steps}")
            continue
        most = max((step.shared_bytes for step in steps), default=0)
        if most > machine.shared_memory_bytes:
            wrong.append(f"{words}\n{launch}\ntakes {most} bytes of shared memory")
        sass = [step.stages["sass"] for step in steps if "sass" in step.stages]
        if astray := [each for text in sass if has_products(text) for each in misplaced(text)]:
            wrong.append(f"{words}\n{launch}\nreads beyond shared memory: {astray[0]}")
    assert not wrong, "\n\n".join(wrong)


def test_attention_in_float64_compiles_with_a_boolean_mask() -> None:
    """Triton chose the operands' layout by the type of the mask; no such layout exists for fp64."""
    given = [torch.ones(1, 1, 16, 16, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    query, key, value = given
    mask = torch.ones(16, 16, dtype=torch.bool)
    with only_made_for(H200) as made:
        result = ops.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        torch.autograd.grad(result, given, torch.ones_like(result))
    assert len(made) == 2
    wrong = [steps for steps in compile_all(made, "sm_90") if isinstance(steps, WorkbenchError)]
    assert not wrong
