"""The environment of a process that has no network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def without_network(environment: Mapping[str, str], log: Path) -> dict[str, str]:
    """Return the environment of a process that cannot leave this machine, nor can any process it starts.

    Args:
        environment: the environment to begin with.
        log: the file to which each refused attempt is added as a line.
    """
    folders = [str(Path(__file__).parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "WORKBENCH_NETWORK_LOG": str(log),
    }


def attempts(log: Path) -> list[str]:
    """Return the lines of the log, one for each refused attempt."""
    return log.read_text().splitlines() if log.exists() else []
