"""Numbers and lists in words, for figures and widgets."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number and its noun: "1 program", "3 programs"."""
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def grouped(number: int, noun: str) -> str:
    """Return a number with thousands separators, and its noun: "1,024 instructions"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Return a number of times: "once", "3 times"."""
    return "once" if number == 1 else f"{number} times"


def bytes_text(count: int) -> str:
    """Return a size with its unit: "1,234 B", "56.7 KiB"."""
    if count < 10_000:
        return f"{count:,} B"
    size, units = float(count), iter(("KiB", "MiB", "GiB", "TiB"))
    while size >= 1000:
        size, unit = size / 1024, next(units)
    return f"{size:.3g} {unit}"


def listed(names: Sequence[str]) -> str:
    """Join names: "a"; "a and b"; "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def number_text(value: float, digits: int = 3) -> str:
    """Return a number rounded to `digits` significant digits, as text: "−0.0125", "∞", "NaN"."""
    if isfinite(value):
        return f"{value:.{digits}g}".replace("-", "−")
    return "NaN" if isnan(value) else "∞" if value > 0 else "−∞"
