"""Instructions that Gluon cannot express, written into the PTX after marks.

A kernel marks a place by a comment in inline assembly, and the PTX is changed there: a copy gets a hint for
the L2 cache, and one `wgmma` of 192 columns takes the place of two (3.6.0 and 3.7.1). Tests that fail once
Gluon can express them, in `tests/compat/test_compat.py`: `test_gluon_still_has_no_hints` and
`test_tensors_still_cannot_have_192_columns`.
"""

from __future__ import annotations

import re
from functools import wraps
from itertools import pairwise
from typing import Any

from triton.backends import backends

# The marks that a kernel writes by inline assembly before a copy, and before products: comments in PTX.
EVICT_FIRST = "// L2::evict_first"
ONE_BLOCK = "// of one block"


def let_marks_change_ptx() -> None:
    """Let a kernel use instructions that Gluon cannot express (seen on 3.6.0 and 3.7.1).

    Inline assembly marks the places that :func:`with_hints` and :func:`with_whole_products` change. If these
    do not recognize the code there, the mark stays a comment.
    """
    nvidia = backends.get("nvidia")
    if nvidia is None or hasattr(nvidia.compiler.make_ptx, "__wrapped__"):
        return
    plain = nvidia.compiler.make_ptx

    @wraps(plain)
    def repaired(*args: Any, **keywords: Any) -> str:
        made: str = plain(*args, **keywords)
        for mark, changed in ((EVICT_FIRST, with_hints), (ONE_BLOCK, with_whole_products)):
            if mark in made:
                made = changed(made)
        return made

    nvidia.compiler.make_ptx = repaired


def with_hints(ptx: str) -> str:
    """Return PTX in which the copy (TMA) after each mark has the L2 hint to evict its data first."""
    lines = ptx.split("\n")
    is_marked = False
    for i, line in enumerate(lines):
        copied = _COPY.fullmatch(line)
        if copied is not None and is_marked:
            lines[i] = (
                "\t{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
                f"{copied[1]}.L2::cache_hint {copied[2]}, policy; }}"
            )
        is_marked = EVICT_FIRST in line or (is_marked and copied is None)
    return "\n".join(lines)


# A copy instruction, and its operands: destination, source and barrier.
_COPY = re.compile(
    r"\s*((?:@%p\d+ )?cp\.async\.bulk\.tensor\.\dd\.shared::\w+\.global\.mbarrier::complete_tx::bytes)"
    r" (\[[^\[\]]*\], \[[^\[\]]*\], \[[^\[\]]*\]);"
)


def with_whole_products(ptx: str) -> str:
    """Return PTX in which two products of one A, between a mark and their wait, are merged into one.

    A kernel multiplies a block of B in two parts, the left 128 columns and then the right 64, because a
    tensor of Triton has a power of two of columns; `wgmma` also has 192. The mark asserts that the right part
    directly follows the left one in shared memory; this is not checked. LLVM assigns each register of a
    descriptor only once, so equal names mean equal descriptors.
    """
    lines = ptx.split("\n")
    ends = [i for i, line in enumerate(lines) if ONE_BLOCK in line or "wgmma.wait_group" in line]
    for mark, end in pairwise([*ends, len(lines)]):
        found = {i: product for i in range(mark, end) if (product := _PRODUCT.fullmatch(lines[i]))}
        if ONE_BLOCK not in lines[mark] or not found:
            continue
        left = {_what_both_have(each): i for i, each in found.items() if each["columns"] == "128"}
        right = {_what_both_have(each): i for i, each in found.items() if each["columns"] == "64"}
        are_pairs = left.keys() == right.keys() and 2 * len(left) == len(found)
        others = [lines[i].partition("//")[0] for i in range(mark, max(found)) if i not in found]
        between = " ".join(others)
        begun = " ".join(found[i]["sums"] for i in right.values())
        are_others = set(re.findall(r"%\w+", begun)).isdisjoint(re.findall(r"%\w+", between))
        if not are_pairs or not are_others or re.search(r"\bbra\b|\$L__BB", between):
            continue
        for both, i in left.items():
            one, other = found[i], found[right[both]]
            lines[i] = (
                f"\twgmma.mma_async.sync.aligned.m64n192{one['kind']} {{{one['sums']},{other['sums']}}}, "
                f"{one['a']}, {one['b']}, {one['how']};"
            )
            lines[right[both]] = ""
    return "\n".join(lines)


def _what_both_have(product: re.Match[str]) -> tuple[str, ...]:
    return product["kind"], product["a"], product["how"]


# A product: its columns and kind, its accumulators, the descriptors of A and B, and the rest.
_PRODUCT = re.compile(
    r"\s*wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>128|64)(?P<kind>k\S+)"
    r" \{(?P<sums>[^{}]*)\}, (?P<a>%rd\d+), (?P<b>%rd\d+), (?P<how>[^;]*);"
)
