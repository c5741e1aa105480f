"""Functions from edited source: a solution, or what it would be with a mistake in it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from workbench.errors import InvalidArgumentError
from workbench.teach.definition import Definition, Mutant


def mutated(source: str, mutant: Mutant) -> str:
    """The solution's source with the mutant's edit.

    Raises:
        InvalidArgumentError: what the mutant edits does not stand there exactly once.
    """
    if (times := source.count(mutant.find)) != 1:
        raise InvalidArgumentError(
            f"find of mutant {mutant.name!r}",
            f"stands {times} times in the solution",
            "Name a piece that is unique.",
        )
    return source.replace(mutant.find, mutant.replace)


def build(definition: Definition, source: str, file: str) -> Callable[..., Any]:
    """The exercise's function as this source defines it.

    Args:
        definition: the exercise.
        source: the text of a module.
        file: a name for it, in messages; kernels find their source by it.
    """
    # Triton reads a kernel's text through linecache; a file that does not exist has to be put there.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[definition.function]
    return function


def build_mutant(definition: Definition, mutant: Mutant) -> Callable[..., Any]:
    """The exercise's function with this mistake in it."""
    return build(
        definition, mutated(definition.solution_source(), mutant), f"<{definition.id}: {mutant.name}>"
    )
