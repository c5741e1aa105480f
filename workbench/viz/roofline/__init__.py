"""Rooflines, and figures of measured points."""

from __future__ import annotations

from workbench import renamed


def __getattr__(name: str) -> object:
    return renamed.find(__name__, name)
