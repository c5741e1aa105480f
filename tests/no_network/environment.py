"""The environment of a process that has no network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def without_network(environment: Mapping[str, str], log: Path) -> dict[str, str]:
    """`environment` for a process that, with all it starts, cannot leave this machine; `log` has attempts."""
    folders = [str(Path(__file__).parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "WORKBENCH_NETWORK_LOG": str(log),
    }


def attempts(log: Path) -> list[str]:
    """Return the lines of the log, one for each refused attempt."""
    return log.read_text().splitlines() if log.exists() else []
