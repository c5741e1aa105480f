"""The picture of attention's bytes: a bar for each tensor and way, and the growth with the length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.viz.drawn import assert_legible, texts
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.readings.attention import AttentionBytes, TensorBytes
from workbench.viz.attention.attention_bytes import describe_attention_bytes, plot_attention_bytes
from workbench.viz.base.style import THEMES, Theme


def loaded(name: str, size: int, times: int = 1) -> TensorBytes:
    return TensorBytes(name, size, size, 0, times * size, 0, 1, 0)


def stored(name: str, size: int) -> TensorBytes:
    return TensorBytes(name, size, 0, size, 0, size, 0, 1)


def both(name: str, size: int) -> TensorBytes:
    return TensorBytes(name, size, size, size, size, size, 1, 1)


def never(name: str, size: int) -> TensorBytes:
    return TensorBytes(name, size, 0, 0, 0, 0, 0, 0)


def ways(length: int) -> list[AttentionBytes]:
    """Return the bytes of unfused and of fused attention for a head of 16 columns in fp16."""
    row, pairs = 32 * length, 2 * length * length
    given = (loaded("Q", row), loaded("K", row, length // 16), loaded("V", row, length // 16))
    return [
        AttentionBytes("unfused", length, 3, (*given, both("S", pairs), both("P", pairs), stored("O", row))),
        AttentionBytes(
            "fused",
            length,
            1,
            (*given, never("S", pairs), never("P", pairs), stored("O", row), stored("L", 4 * length)),
        ),
    ]


COUNTED = [one for length in (64, 128, 256) for one in ways(length)]


def bars(figure: Figure) -> list[tuple[float, float]]:
    """Return left and width of each bar."""
    found = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [(bar.get_x(), bar.get_width()) for bar in found if bar.get_width()]


@pytest.mark.parametrize("theme", THEMES)
def test_each_tensor_has_a_bar_of_its_loaded_and_stored_bytes(theme: Theme) -> None:
    figure = plot_attention_bytes(COUNTED, theme=theme)
    row, pairs = 32 * 256, 2 * 256 * 256
    rows = [(0.0, row)] * 3
    apart = [*rows, (0.0, pairs), (pairs, pairs), (0.0, pairs), (pairs, pairs), (0.0, row)]
    together = [*rows, (0.0, row), (0.0, 4 * 256)]
    assert bars(figure) == [*apart, *together]
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said.count("never in memory") == 2
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list("QKVSPOL")


def test_the_curves_show_the_counted_bytes_and_the_formula() -> None:
    figure = plot_attention_bytes(COUNTED)
    formula, counted, *_ = (np.asarray(line.get_ydata()).tolist() for line in figure.axes[1].lines)
    assert counted == formula == [one.moved for one in COUNTED if one.label == "unfused"]
    wrong = [replace(one, tensors=(replace(one.tensors[0], loads=3), *one.tensors[1:])) for one in COUNTED]
    formula, counted, *_ = (
        np.asarray(line.get_ydata()).tolist() for line in plot_attention_bytes(wrong).axes[1].lines
    )
    assert [more - less for more, less in zip(formula, counted, strict=True)] == [
        2 * 32 * n for n in (64, 128, 256)
    ]


def test_one_length_draws_no_curve() -> None:
    assert len(plot_attention_bytes(ways(64)).axes) == 1


def test_the_description_gives_kernels_and_bytes_of_unfused_and_fused_attention() -> None:
    said = describe_attention_bytes(COUNTED)
    assert "Unfused, 3 kernels: 557,056 bytes, by the formula 557,056;" in said
    assert "Fused, 1 kernel: 33,792 bytes" in said
    assert "ask for 8.3 times as many" in said
    assert "Fused, S and P never reach memory." in said
    assert "L never" not in said
    assert "From length 128 to 256: unfused × 3.78, fused × 2.00; what lanes ask for:" in said


@pytest.mark.parametrize(
    "counted",
    [COUNTED, COUNTED[-1:], ways(64), ways(16)[:1], ways(2**17)],
    ids=["three lengths", "fused alone", "one length", "unfused alone", "long"],
)
def test_texts_neither_overlap_nor_leave_the_figure(counted: list[AttentionBytes]) -> None:
    figure = plot_attention_bytes(counted)
    assert_legible(figure)
    assert "formula" in texts(figure)


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match=r"counted\[0\]: got 3.*readings\.attention\.attention_bytes"):
        plot_attention_bytes([3])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match=r"counted: it is empty\. Give one result or more"):
        plot_attention_bytes([])
    with pytest.raises(InvalidArgumentError, match=r"Give each way once at each length"):
        plot_attention_bytes(COUNTED[:-1])
    with pytest.raises(InvalidArgumentError, match=r"Give each way once at each length"):
        plot_attention_bytes([*COUNTED, *COUNTED])
    many = [replace(ways(64)[0], label=str(number)) for number in range(4)]
    with pytest.raises(InvalidArgumentError, match="got 4 ways and 6 tensors"):
        plot_attention_bytes(many)
    with pytest.raises(UnknownNameError, match="theme: 'blue'"):
        plot_attention_bytes(COUNTED, theme="blue")
