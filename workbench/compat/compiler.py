"""Repairs of compiler faults, between the stages from Triton's IR to machine code.

The faults of Triton and LLVM were seen on 3.6.0 and 3.7.1, those of ptxas on 3.6.0. It was not tried
whether AMD's compiler picks wrong bytes too; it is repaired, because both share the code of the conversion.

Tests that fail once a repair is no longer needed, in `tests/compat/test_compiler_repairs.py`:
`test_triton_still_keeps_bytes_that_it_sends` for `with_wide_shuffles` and
`test_the_assembler_is_still_the_one_with_the_fault` for `with_descriptors_of_halves`. LLVM's fault
ends the process, so no test shows that `thawed` is still needed. It is no longer needed when
`tests/kernels/convolution/test_implicit_gemm.py::test_a_product_that_made_llvm_abort_compiles` passes
without it (docs/decisions/015 to 017).
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

from triton.backends import backends

Change = Callable[[Any], Any]


def repair_compilers() -> None:
    """Repair the faults of Triton, LLVM and NVIDIA's assembler; calling it again changes nothing."""
    for vendor, last in (("nvidia", "make_ptx"), ("amd", "make_amdgcn")):
        _change(vendor, "make_ttgir", after=with_wide_shuffles)
        _change(vendor, "gluon_to_ttgir", after=with_wide_shuffles)
        _change(vendor, last, before=thawed)
    _change("nvidia", "make_ptx", after=with_descriptors_of_halves)


def _change(vendor: str, stage: str, before: Change | None = None, after: Change | None = None) -> None:
    """Change the input or the output of a stage of a vendor's compiler."""
    compiler: Any = backends[vendor].compiler if vendor in backends else None
    plain = getattr(compiler, stage, None)
    changes = getattr(plain, "changes", ())
    if plain is None or (before, after) in changes:
        return
    is_static = isinstance(inspect.getattr_static(compiler, stage), staticmethod)
    place = 0 if is_static else 1

    @wraps(plain)
    def repaired(*args: Any, **keywords: Any) -> Any:
        if before is not None:
            args = (*args[:place], before(args[place]), *args[place + 1 :])
        made = plain(*args, **keywords)
        return made if after is None else after(made)

    repaired.changes = (*changes, (before, after))  # type: ignore[attr-defined]
    setattr(compiler, stage, staticmethod(repaired) if is_static else repaired)


# Triton: elements of 8 bits that the lanes of a warp exchange.


def with_wide_shuffles(module: Any) -> Any:
    """Return TTGIR in which lanes exchange each element of up to 8 bits, also of a mask, in its own register.

    If a tile's elements change lanes within their warp, Triton packs four of 8 bits into a register, and
    selects bytes before and after each shuffle. If the two bits that number the bytes of a register change
    places, it selects wrong bytes: `tl.permute` of bytes, and similar layout conversions, put some elements
    in wrong places. 32-bit integers are not packed.
    """
    lines = str(module).split("\n")
    if not any(map(_is_narrow, lines)):
        return module
    # Imported here, because a process that never compiles does not need it.
    from triton._C.libtriton import ir, passes

    planned = _parsed("\n".join(lines), module.context)
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_allocate_shared_memory(manager)
    manager.run(planned, "with_wide_shuffles")
    # Conversions within a warp are those without space in shared memory.
    conversions = [place for place, line in enumerate(lines) if _CONVERSION in line]
    plans = [line for line in str(planned).split("\n") if _CONVERSION in line]
    shuffles = [
        place
        for place, plan in zip(conversions, plans, strict=True)
        if _is_narrow(lines[place]) and "allocation.offset" not in plan
    ]
    if not shuffles:
        return module
    for place in reversed(shuffles):
        lines[place : place + 1] = _widened(lines[place], f"%widened{place}")
    return _parsed("\n".join(lines), module.context)


_CONVERSION = " = ttg.convert_layout "
_NARROW = re.compile(rf"{_CONVERSION}.* : tensor<(?:\d+x)+(?:i[1-8]|f8\w+), ")
_LINE = re.compile(
    rf"\s*(?P<result>%\S+){_CONVERSION}(?P<operand>%\S+)(?: \{{.*?\}})? : "
    r"(?P<tile>tensor<(?:\d+x)+)(?P<element>\w+), (?P<source>.*)> -> "
    r"tensor<(?:\d+x)+\w+, (?P<target>.*)>(?P<place> loc\(.*\))?"
)


def _is_narrow(line: str) -> bool:
    return _NARROW.search(line) is not None


def _parsed(text: str, context: Any) -> Any:
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "module.ttgir"
        file.write_text(text)
        module = ir.parse_mlir_module(str(file), context)
    module.context = context
    return module


def _widened(line: str, name: str) -> list[str]:
    """Return TTGIR lines that convert to 32 bits, then to the other layout, then back to the element type."""
    found = _LINE.fullmatch(line)
    assert found is not None, f"an internal error: TTGIR writes a layout conversion in a new way: {line}"
    element, place = found["element"], found["place"] or ""
    bits = element if element.startswith("i") else "i8"
    source, target = (
        [f"{found['tile']}{each}, {layout}>" for each in (element, bits, "i32")]
        for layout in (found["source"], found["target"])
    )
    steps = [
        ("tt.bitcast", source[0], "->", source[1]),
        ("arith.extui", source[1], "to", source[2]),
        ("ttg.convert_layout", source[2], "->", target[2]),
        ("arith.trunci", target[2], "to", target[1]),
        ("tt.bitcast", target[1], "->", target[0]),
    ]
    if bits == element:
        steps = steps[1:-1]
    names = [found["operand"], *(f"{name}_{i}" for i in range(len(steps) - 1)), found["result"]]
    return [
        f"    {result} = {operation} {operand} : {before} {word} {after}{place}"
        for (operation, before, word, after), (operand, result) in zip(steps, pairwise(names), strict=True)
    ]


# LLVM: many quotients and remainders.


def thawed(llir: Any) -> str:
    """Return LLVM IR without `freeze` before divisions, if many of them freeze a lane's elements.

    If a kernel computes x // y and x % y, LLVM computes one from the other, with `freeze x`, so that both see
    the same value if x is undefined. With many of them, as when a lane computes 32 indices, instruction
    selection may create a `freeze` of itself, and abort the process: "Node is not in map!". A kernel's
    indices are never undefined, so the results are the same without `freeze`. IR with fewer than
    `MANY_FROZEN` keeps them, because without them some kernels become longer and the registers of others
    spill.
    """
    text = str(llir)
    elements = set(_ELEMENT.findall(text))
    if sum(found[3] in elements for found in _FROZEN.finditer(text)) < MANY_FROZEN:
        return text
    return _FROZEN.sub(lambda found: _unfrozen(found) if found[3] in elements else found[0], text)


def _unfrozen(found: re.Match[str]) -> str:
    return f"{found[1]} = add {found[2]} {found[3]}, 0"


# LLVM aborted with 32; kernels whose lanes hold few elements have up to 10.
MANY_FROZEN = 16
_FROZEN = re.compile(r"(%\S*\.frozen\d*) = freeze (i\d+) (%?[\w.$-]+)")
_ELEMENT = re.compile(r"(%[\w.$-]+) = extractelement ")


# NVIDIA's assembler: the descriptors of products' operands.


def with_descriptors_of_halves(ptx: str) -> str:
    """Return PTX that builds shared-memory descriptors from two halves instead of adding in 64 bits.

    The lower half of a descriptor has the address of a tile, 14 bits, and the upper half the tile's layout.
    LLVM extends the address to 64 bits and adds the offset of an operand's part and the layout. If tiles of
    two layouts share an address, like keys and values in turn, ptxas 12.8, which Triton ships, may add to
    registers that hold something else, such as another tensor's address. The product then reads beyond shared
    memory, or wrong elements. ptxas 13.1 does not. For such addresses, each descriptor is the sum of the
    lower half, which has no carry, joined with the upper half. Other addresses are unchanged, because no
    fault was seen there, and registers of tuned kernels would spill.
    """
    places = {found["wide"]: found["place"] for found in _EXTENDED.finditer(ptx)}
    within = {found["cut"] or found["masked"] for found in _PLACE.finditer(ptx)}
    ways: dict[str, set[int]] = {}
    for found in _ADDED.finditer(ptx):
        ways.setdefault(found["wide"], set()).add(int(found["constant"]) % 2**64 >> 32)

    def in_halves(found: re.Match[str]) -> str:
        place, constant = places.get(found["wide"]), int(found["constant"]) % 2**64
        upper, lower = divmod(constant, 2**32)
        if place not in within or not upper or lower > 2**31 or len(ways[found["wide"]] - {0}) < 2:
            return found[0]
        return (
            f"\t{{ .reg .b32 lower; add.u32 lower, {place}, {lower}; "
            f"mov.b64 {found['descriptor']}, {{lower, {upper}}}; }}"
        )

    return _ADDED.sub(in_halves, ptx)


_PLACE = re.compile(
    r"^\t(?:bfe\.u32 \t(?P<cut>%r\d+), %r\d+, 4, 14|and\.b32 \t(?P<masked>%r\d+), %r\d+, 16383);",
    re.MULTILINE,
)
_EXTENDED = re.compile(r"^\tcvt\.u64\.u32 \t(?P<wide>%rd\d+), (?P<place>%r\d+);", re.MULTILINE)
_ADDED = re.compile(
    r"^\t(?:add\.s64|or\.b64) \t(?P<descriptor>%rd\d+), (?P<wide>%rd\d+), (?P<constant>-?\d+);", re.MULTILINE
)
