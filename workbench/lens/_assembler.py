"""What NVIDIA's assembler says of a kernel beside the binary it makes. Only in the compiler's process."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from triton import knobs

_Stage = Callable[[Any, dict[str, Any]], Any]


@contextlib.contextmanager
def words_kept() -> Iterator[None]:
    """Within it, `triton.compile` writes the assembler's words into a binary's metadata: `assembler_words`.

    Triton deletes them, and its cache on disk, from which most binaries come, never has them. Metadata is in
    that cache.
    """
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = _with_words
        yield


def _with_words(*pipeline: Any) -> tuple[str, str] | None:
    """Triton calls it without arguments for a part of its cache's key, and with the stages to change them."""
    if not pipeline:
        return "assembler_words", "assembler_words"
    stages: dict[str, _Stage] = pipeline[1]
    if "cubin" in stages:
        stages["cubin"] = partial(_assembled, stages["cubin"])
    return None


def _assembled(assemble: _Stage, ptx: Any, metadata: dict[str, Any]) -> Any:
    printed = io.StringIO()
    try:
        with knobs.nvidia.scope(), contextlib.redirect_stdout(printed):
            knobs.nvidia.dump_ptxas_log = True
            binary = assemble(ptx, metadata)
    finally:
        # Where it fails, the error's line is found in what Triton prints.
        print(printed.getvalue(), end="")
    metadata["assembler_words"] = printed.getvalue()
    return binary


def serialized_wgmma(words: str) -> str:
    """Why products of warp groups wait for one another (its messages C7510 and on); "" where they do not."""
    reasons = re.findall(r"wgmma\.mma_async instructions are serialized due to (.+)", words)
    return "; ".join(dict.fromkeys(" ".join(_OF_FUNCTION.sub("", reason).split()) for reason in reasons))


# The line, which CUDA 13 adds, is one of PTX.
_OF_FUNCTION = re.compile(r" (?:in|for) the function '[^']*'(?: in line \d+)?\s*$")
