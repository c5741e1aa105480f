"""Build functions from source: solutions, and mutants of them with a mistake."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from workbench.teach.definition import Definition, Mutant


def build(definition: Definition, source: str, file: str) -> Callable[..., Any]:
    """Execute `source` and return the exercise's function.

    Args:
        definition: the exercise.
        source: the text of a module.
        file: a file name for messages, under which Triton also finds the source of kernels.
    """
    # Triton reads a kernel's text through linecache, which needs an entry for a file that does not exist.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[definition.function]
    return function


def build_mutant(definition: Definition, mutant: Mutant) -> Callable[..., Any]:
    """Build the exercise's function with the mutant's mistake."""
    source = definition.marked_source().wrong(mutant.name)
    return build(definition, source, f"<{definition.id}: {mutant.name}>")
