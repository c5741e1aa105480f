"""Checks of what Triton would compile for a GPU, and of compiled code; no GPU is needed."""

from __future__ import annotations

import re
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from workbench import compat
from workbench.launch import Launch


def kernels_for(launch: Launch) -> list[tuple[Any, ...]]:
    """Return, for each step, its name and the key by which Triton keeps its compiled kernel on sm_90."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    found = []
    for step in launch.steps:
        kernel = JITFunction(compat.python_function(step.kernel), **compat.decorations(step.kernel))
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, options = bind(*step.args, **step.meta)
        found.append((step.name, tuple(specialization), tuple(sorted(options.items()))))
    return found


def assert_waits_before_memory(ptx: str) -> None:
    """Assert that a program waits for the previous kernel before its first access of global memory."""
    before, waited, behind = ptx.partition("griddepcontrol.wait")
    touches = re.compile(r"(ld|st|red|atom)\.global|cp\.async")
    assert waited
    assert touches.search(behind)
    assert not touches.search(before)


def torn_sums(sass: str) -> list[str]:
    """Return the instructions of 64-bit sums whose two halves are added to one register, which is wrong.

    ptxas 12.8, which Triton 3.6 and 3.7 bring, computes the address of a wgmma operand by such a sum, where
    operands of two products use one place of shared memory in turn and differ in layout: the product then
    reads from anywhere. ptxas 13.0 does not.
    """
    low: dict[str, tuple[str, str]] = {}
    found = []
    for line in sass.splitlines():
        high = re.search(r"UIADD3\.X UR\d+, (UR\d+), [^,]+, URZ, (UP\d),", line)
        if high and low.get(high[2], ("", ""))[0] == high[1]:
            found += [low[high[2]][1], line.strip()]
        if written := re.search(r"\*/\s+(?:@!?U?P\d )?([\w.]+) (?:UP\d, )?UR(\d+)", line):
            first = int(written[2])
            registers = {f"UR{first}", f"UR{first + 1}"} if ".64" in written[1] else {f"UR{first}"}
            low = {carry: each for carry, each in low.items() if each[0] not in registers}
        if begun := re.search(r"UIADD3 UR\d+, (UP\d), (UR\d+), ", line):
            low[begun[1]] = begun[2], line.strip()
    return found


def sums_of_other_lanes(sass: str) -> list[str]:
    """Return the instructions that multiply two numbers and add a number sent by another lane.

    They round once. If each of two lanes adds the other's product to its own, the other's was rounded before
    it was sent and its own is not: the two lanes find different sums.
    """
    sent: set[str] = set()
    found = []
    for line in sass.splitlines():
        if not (parts := re.search(r"\*/\s+(?:@!?U?P\w+ )?([\w.]+) ([^;]*);", line)):
            continue
        what, operands = parts[1], [each.strip() for each in parts[2].split(",")]
        if what == "FFMA" and re.sub(r"[-|]|\.reuse", "", operands[3]) in sent:
            found.append(line.strip())
        if what.startswith("SHFL"):
            sent.add(operands[1])
        elif written := re.fullmatch(r"R(\d+)", operands[0]):
            width = 4 if ".128" in what else 2 if ".64" in what or ".WIDE" in what else 1
            sent -= {f"R{int(written[1]) + i}" for i in range(width)}
    return found


def products_of_two_roundings(ptx: str) -> list[str]:
    """Return the instructions that add an unrounded product which another instruction computes rounded.

    A compiler makes `x - a * b` one instruction even if `a * b` is used again, so the product has two values.
    """
    negated = dict(re.findall(r"neg\.f32\s+(%\w+), (%\w+);", ptx))
    rounded = {frozenset(pair) for pair in re.findall(r"mul(?:\.rn)?\.f32\s+%\w+, (%\w+), (%\w+);", ptx)}
    contracted = re.finditer(r"fma\.rn\.f32\s+%\w+, (%\w+), (%\w+), %\w+;", ptx)
    return [each[0] for each in contracted if frozenset(negated.get(r, r) for r in each.groups()) in rounded]
