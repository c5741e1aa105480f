"""Which operators are compared with torch's by the CPU time of a call, and the table of their times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from workbench import overheads
from workbench.__main__ import main
from workbench.errors import InvalidArgumentError, NotMeasurableError, UnknownNameError
from workbench.operators import given, named, specs
from workbench.overheads import BOTH, FORWARD, Overhead


def test_operators_with_a_counterpart_in_torch_are_compared() -> None:
    names = overheads.names()
    assert {"add", "softmax", "conv2d", "scaled_dot_product_attention"} <= set(names)
    assert not {"softmax_backward", "fused_matmul", "attention"} & set(names)
    assert len(names) == len([spec for spec in specs().values() if spec.aten and spec.of is None])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownNameError, match="operator with a counterpart in torch: 'addd' is not known"):
        list(overheads.overheads(["addd"]))
    with pytest.raises(InvalidArgumentError, match=r"dtype: fp12 for softmax\. Give one of fp16"):
        list(overheads.overheads(["softmax"], dtype="fp12"))


def test_nothing_is_timed_in_the_interpreter() -> None:
    small = overheads.overheads(["transpose_copy"])
    with pytest.raises(NotMeasurableError, match="interpreter"):
        list(small)


def test_the_tensors_that_torch_differentiates_are_followed() -> None:
    x, weight = torch.randn(2, 3, 4), torch.randn(3)
    mean, variance = torch.zeros(3), torch.ones(3)
    spec = named("batch_norm")
    arguments = given(x, mean, variance, weight, training=True)
    function = spec.torch or spec.meaning
    followed = [overheads.is_differentiable(function, arguments, t) for t in (x, mean, variance, weight)]
    assert followed == [True, False, False, True]
    target = torch.tensor([0, 1])
    of_target = given(torch.randn(2, 4), target)
    assert not overheads.is_differentiable(torch.nn.functional.cross_entropy, of_target, target)


def test_each_time_has_a_line_and_the_ratios_a_mean() -> None:
    measured = [
        Overhead("add", FORWARD, 8.0, 4.0),
        Overhead("sum", FORWARD, 4.0, 8.0),
        Overhead("sum", BOTH, 30.0, 20.0),
    ]
    assert overheads.mean_ratio(measured[:2]) == pytest.approx(1.0)
    forward, both = overheads.summary(measured).splitlines()
    assert forward == "forward: geometric mean 1.00 of 2 operators, the largest ratio is 2.00, of add"
    assert (
        both == "forward and backward: geometric mean 1.50 of 1 operators, the largest ratio is 1.50, of sum"
    )
    assert str(measured[0]).split() == ["add", "forward", "8.0", "4.0", "2.00"]
    assert len(overheads.HEAD) == len(str(measured[0]))
    assert overheads.summary([]) == ""


def test_the_command_prints_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [Overhead("add", FORWARD, 8.0, 4.0), Overhead("add", BOTH, 30.0, 20.0)]
    asked: list[object] = []

    def measured(*args: object, **keywords: object) -> Iterator[Overhead]:
        asked.append((args, keywords))
        return iter(given)

    monkeypatch.setattr(overheads, "overheads", measured)
    assert main(["overheads", "add", "--dtype", "fp16"]) == 0
    assert asked == [((["add"],), {"dtype": "fp16"})]
    printed = capsys.readouterr().out.splitlines()
    assert printed == [overheads.HEAD, *map(str, given), *overheads.summary(given).splitlines()]
