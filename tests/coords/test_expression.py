"""Expressions: they equal Python's arithmetic, and are simplified where it matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.coords.expression import (
    Expression,
    Number,
    Table,
    clamped,
    divisor_of,
    element,
    evaluate,
    interval_of,
    substitute,
    symbol,
    symbols_of,
)
from workbench.errors import ArgumentTypeError, InvalidArgumentError

MOST = {"x": 40, "y": 7}


def leaves(name: str) -> Number:
    return symbol(name, most=MOST[name])


@st.composite
def numbers(draw: st.DrawFn, depth: int = 4) -> tuple[Number, Callable[[dict[str, int]], int]]:
    """Draw a number, and a function that computes it with Python's own arithmetic."""
    kind = draw(
        st.sampled_from(
            ["x", "y", "constant"] if depth == 0 else ["+", "-", "*", "//", "%", "^", "abs", "clamp", "x"]
        )
    )
    if kind in MOST:
        return leaves(kind), lambda values: values[kind]
    if kind == "constant":
        constant = draw(st.integers(-9, 9))
        return constant, lambda values: constant
    left, of_left = draw(numbers(depth=depth - 1))
    if kind in ("//", "%"):
        by = draw(st.integers(1, 12))
        if kind == "//":
            return left // by, lambda values: of_left(values) // by
        return left % by, lambda values: of_left(values) % by
    if kind == "abs":
        return abs(left), lambda values: abs(of_left(values))
    if kind == "clamp":
        most = draw(st.integers(0, 12))
        return clamped(left, most), lambda values: min(max(of_left(values), 0), most)
    right, of_right = draw(numbers(depth=depth - 1))
    if kind == "+":
        return left + right, lambda values: of_left(values) + of_right(values)
    if kind == "-":
        return left - right, lambda values: of_left(values) - of_right(values)
    if kind == "*":
        return left * right, lambda values: of_left(values) * of_right(values)
    return left ^ right, lambda values: of_left(values) ^ of_right(values)


@given(numbers(), st.integers(0, MOST["x"]), st.integers(0, MOST["y"]))
def test_expressions_agree_with_pythons_arithmetic(
    pair: tuple[Number, Callable[[dict[str, int]], int]], x: int, y: int
) -> None:
    number, by_python = pair
    values = {"x": x, "y": y}
    wanted = by_python(values)
    assert evaluate(number, values) == wanted
    assert substitute(number, values) == wanted
    assert evaluate(substitute(number, {"x": x}), {"y": y}) == wanted
    within = interval_of(number)
    assert within.low is None or within.low <= wanted
    assert within.high is None or wanted <= within.high
    assert wanted % (divisor_of(number) or 1) == 0
    # The text of a number is Python with the same value.
    assert eval(str(number), {}, values) == wanted


M, K = symbol("m", most=32 * 56 * 56 - 1), symbol("k")


@pytest.mark.parametrize(
    ("number", "simple"),
    [
        (M // 56 // 56, M // 3136),
        (M % 3136 // 56, M // 56 % 56),
        (M % 3136 % 56, M % 56),
        # The digits of a number are put together again.
        (M // 3136 * 200704 + M // 56 % 56 * 3584 + M % 56 * 64 + K, M * 64 + K),
        (M // 8 * 8 + M % 8, M),
        ((M * 8 + 3) // 4, M * 2),
        ((M * 8 + 3) % 4, 3),
        (M * 6 % 4, M * 3 % 2 * 2),
        (M // 100352, 0),
        (M % 100352, M),
        (K - K, 0),
        (K ^ 0, K),
        (M * K, K * M),
        ((M + 1) * (K + 2), M * K + 2 * M + K + 2),
        (element(Table("t", (4, 7)), 1), 7),
        (abs(M - 2**20), 2**20 - M),
        (abs(K), K),
        (clamped(M % 8, 7), M % 8),
        (clamped(-4, 7), 0),
    ],
    ids=str,
)
def test_expressions_are_simplified(number: Number, simple: Number) -> None:
    assert number == simple


def test_symbols_of_lists_nested_symbols_once() -> None:
    assert [s.name for s in symbols_of((M // 3 + K) % 5 * K)] == ["m", "k"]
    assert symbols_of(7) == ()


def test_a_table_with_an_unknown_index_is_read_when_evaluated() -> None:
    number = element(Table("t", (4, 7)), symbol("i", most=1))
    assert isinstance(number, Expression)
    assert [evaluate(number, {"i": i}) for i in range(2)] == [4, 7]
    assert interval_of(number).low == 4
    assert substitute(number, {"i": 1}) == 7


def test_errors_name_wrong_symbols_and_divisors() -> None:
    with pytest.raises(InvalidArgumentError, match="identifier"):
        symbol("two words")
    with pytest.raises(ArgumentTypeError, match="name"):
        symbol(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="multiple_of"):
        symbol("n", multiple_of=0)
    with pytest.raises(InvalidArgumentError, match="positive"):
        K // 0
    with pytest.raises(InvalidArgumentError, match="positive"):
        K % -2
