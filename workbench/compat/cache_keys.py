"""The keys of compiled kernels in Triton's cache on disk.

Triton's key for itself is a hash of all its files, 460 MB that every process reads. Its key for a function
in a tuple of constants is module and name, so an edited epilogue got the kernel compiled before the edit
(3.6.0 and 3.7.1). Tests that fail once Triton does better, in `tests/compat/test_compat.py`:
`test_tritons_own_key_still_reads_all_its_files` and
`test_a_kernels_key_changes_with_a_function_in_a_tuple`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import triton
from triton.compiler import ASTSource
from triton.runtime import cache as cache_of_triton

from workbench.compat.versions import TRITON_FOLDER


def tell_compilers_apart_quickly() -> None:
    """Let Triton's cache on disk identify this Triton by the sizes and times of its files.

    Triton itself reads all files, 460 MB; this takes most of a second in every new process.
    """
    files = [
        (str(path.relative_to(TRITON_FOLDER)), path.stat().st_size, path.stat().st_mtime_ns)
        for pattern in ("**/*.py", "_C/*.so")
        for path in sorted(Path(TRITON_FOLDER).glob(pattern))
    ]
    key = hashlib.sha256(repr((triton.__version__, files)).encode()).hexdigest()
    cache_of_triton.triton_key = wraps(cache_of_triton.triton_key)(lambda: key)


def tell_functions_in_tuples_apart() -> None:
    """Let Triton's cache on disk identify the functions in a tuple of constants by their text.

    Triton itself (seen on 3.6.0 and 3.7.1) uses module and name: a kernel that takes a tuple of functions,
    such as an epilogue, was not compiled again after one of them was edited. The key also gets the text of
    `ptx.py` and `compiler.py` of this package, which change the compiled code. Calling this again changes
    nothing.
    """
    plain = ASTSource.hash
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def repaired(self: Any) -> str:
        constants = (value for value in self.constants.values() if isinstance(value, tuple))
        keys = [function.cache_key for value in constants for function in _functions_in(value)]
        return hashlib.sha256(repr((plain(self), keys, _own_text())).encode()).hexdigest()

    ASTSource.hash = repaired


@cache
def _own_text() -> str:
    return "".join(Path(__file__).with_name(name).read_text() for name in ("ptx.py", "compiler.py"))


def _functions_in(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _functions_in(value)
        elif hasattr(value, "cache_key"):
            yield value
