"""The table of operators: speeds and costs of calls from recordings, meanings, and gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.example import line
from workbench import documentation
from workbench.operators import named

OLD, NEW = (
    {"run": "old", "when": "2026-01-01T00:00:00+00:00"},
    {"run": "new", "when": "2026-02-01T00:00:00+00:00"},
)


def timed(provider: str, milliseconds: float, **changes: Any) -> Any:
    return line(provider=provider, median_ms=milliseconds, **changes)


def test_the_speed_is_that_of_each_cases_newest_run_beside_the_fastest_library() -> None:
    other = {"case": {"m": 8, "n": 8, "k": 8, "layout": "nn"}}
    lines = [
        timed("workbench", 1.0, **NEW), timed("cuBLAS", 2.0, **NEW), timed("torch", 4.0, **NEW),
        timed("workbench", 1.0, **OLD), timed("cuBLAS", 9.0, **OLD),
        timed("torch.compile", 0.1, **NEW), timed("FlagGems", 0.1, **NEW),
        timed("workbench", 1.0, **OLD, **other), timed("torch", 8.0, **OLD, **other),
        timed("workbench", 1.0, **NEW, **other),  # alone in its run
    ]  # fmt: skip
    assert documentation.speed_of("matmul", lines) == "NVIDIA H200: 4.00 (2.00 to 8.00, 2 cases)"
    assert documentation.speed_of("matmul", lines[:2]) == "NVIDIA H200: 2.00 (1 case)"
    assert documentation.speed_of("bmm", lines) == "not recorded"
    assert documentation.speed_of("matmul", [line(mode="interpreter")]) == "not recorded"


def test_the_cost_of_a_call_is_of_the_newest_case_with_both_in_one_run() -> None:
    def called(provider: str, cost: float, **changes: Any) -> Any:
        return line(provider=provider, config={"launch_us": cost}, **changes)

    other = {"case": {"m": 8, "n": 8, "k": 8, "layout": "nn"}}
    lines = [
        called("workbench", 90.0, **OLD), called("torch", 8.0, **OLD),
        called("workbench", 14.0, **NEW), called("workbench", 16.0, **NEW, **other),
        called("torch", 12.0, **NEW, **other),
    ]  # fmt: skip
    assert documentation.call_cost_of("matmul", lines) == "16 (12)"
    assert documentation.call_cost_of("matmul", lines[:4]) == "90 (8)"
    assert documentation.call_cost_of("matmul", [line()]) == "not recorded"


@pytest.mark.parametrize(
    ("name", "meaning", "gradient"),
    [
        ("all", "True if no element along `dim` (or of the tensor, for None) is 0", False),
        ("softmax", "exp(x) / sum of exp(x) along `dim`", True),
        ("layer_norm_backward", "The gradients of `input` and `weight` and `bias` in `layer_norm`", None),
        ("conv2d_backward_data", "The gradient of `input` in `conv2d`", None),
    ],
)  # fmt: skip
def test_meanings_and_gradients_are_those_of_the_operator(
    name: str, meaning: str, gradient: bool | None
) -> None:
    assert documentation.meaning_of(named(name)) == meaning
    if gradient is not None:
        assert documentation.has_gradient(named(name)) is gradient
