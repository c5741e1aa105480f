"""Pictures of an operator with a single call: tiles, attention, descriptors, fusion, instances, source.

Modules are imported on first use, because importing `explore.tiles` starts a compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from workbench import renamed

if TYPE_CHECKING:
    from workbench.explore import attention, descriptors, fusion, instances, source, tiles

__all__ = ["attention", "descriptors", "fusion", "instances", "source", "tiles"]


def __getattr__(name: str) -> object:
    return importlib.import_module(f"{__name__}.{name}") if name in __all__ else renamed.find(__name__, name)
