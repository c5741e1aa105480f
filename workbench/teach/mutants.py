"""Build functions from source: solutions, and mutants of them with a mistake."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from workbench.errors import InvalidArgumentError
from workbench.teach.definition import Definition, Mutant


def mutated(source: str, mutant: Mutant) -> str:
    """Return the solution's source with the mutant's edit.

    Raises:
        InvalidArgumentError: the text that the mutant replaces does not occur exactly once.
    """
    if (times := source.count(mutant.find)) != 1:
        raise InvalidArgumentError(
            f"find of mutant {mutant.name!r}",
            f"stands {times} times in the solution",
            "Name a piece that is unique.",
        )
    return source.replace(mutant.find, mutant.replace)


def build(definition: Definition, source: str, file: str) -> Callable[..., Any]:
    """Execute `source` and return the exercise's function.

    Args:
        definition: the exercise.
        source: the text of a module.
        file: a file name for messages, by which kernels also find their source.
    """
    # Triton reads a kernel's text through linecache, which needs an entry for a file that does not exist.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[definition.function]
    return function


def build_mutant(definition: Definition, mutant: Mutant) -> Callable[..., Any]:
    """Build the exercise's function with the mutant's mistake."""
    return build(
        definition, mutated(definition.solution_source(), mutant), f"<{definition.id}: {mutant.name}>"
    )
