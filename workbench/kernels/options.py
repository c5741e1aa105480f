"""Configurations as keyword arguments: what `launch(...)` is given of one that was chosen."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def options_of(configuration: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, by name."""
    return {
        field.name: value
        for field in fields(configuration)
        if (value := getattr(configuration, field.name)) != field.default
    }
