"""The log of NVIDIA's assembler for a kernel. Use only in the compiler's process."""

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
def log_kept() -> Iterator[None]:
    """Keep ptxas's log in the metadata of binaries of `triton.compile`, as `assembler_log`, in this context.

    Triton deletes the log. Its cache on disk, from which most binaries come, has the metadata and no log.
    """
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = _with_log
        yield


def _with_log(*pipeline: Any) -> tuple[str, str] | None:
    """Serve Triton's hook: without arguments return two parts of the cache key, else change the stages."""
    if not pipeline:
        return "assembler_log", "assembler_log"
    stages: dict[str, _Stage] = pipeline[1]
    if "cubin" in stages:
        stages["cubin"] = partial(_assemble_with_log, stages["cubin"])
    return None


def _assemble_with_log(assemble: _Stage, ptx: Any, metadata: dict[str, Any]) -> Any:
    printed = io.StringIO()
    try:
        with knobs.nvidia.scope(), contextlib.redirect_stdout(printed):
            knobs.nvidia.dump_ptxas_log = True
            binary = assemble(ptx, metadata)
    finally:
        # If it fails, the caller finds the error's line in what Triton prints.
        print(printed.getvalue(), end="")
    metadata["assembler_log"] = printed.getvalue()
    return binary


def serialized_wgmma(log: str) -> str:
    """Return why the assembler serializes wgmma (messages C7510 and on); "" if it does not."""
    reasons = re.findall(r"wgmma\.mma_async instructions are serialized due to (.+)", log)
    return "; ".join(dict.fromkeys(" ".join(_OF_FUNCTION.sub("", reason).split()) for reason in reasons))


# The assembler of CUDA 13 adds `in line N`, a line of PTX.
_OF_FUNCTION = re.compile(r" (?:in|for) the function '[^']*'(?: in line \d+)?\s*$")
