"""Check, in machine code, where in shared memory the operands of Hopper products lie.

`wgmma` reads an operand through a descriptor, whose lower half holds the operand's place in shared memory.
Each place is the address of the block's shared memory plus an offset. ptxas 12.8, which Triton 3.6 and 3.7
bring, sometimes computes it from a tensor's address or stride instead: the product then reads from anywhere.
This happened where operands of two products used one place in turn and differed in layout. ptxas 13 was not
seen to do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class _Instruction(NamedTuple):
    is_conditional: bool
    name: str
    operands: tuple[str, ...]
    text: str


# Register ("R4") or word of the stack ("[8]") -> whether it holds a place, or a sum with a place. Nothing was
# written yet to a missing name.
_State = dict[str, bool]

_LINE = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+"
    r"(?P<text>(?:@!?(?P<condition>U?P\w+)\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<operands>.*?))\s*;"
)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_REGISTER = re.compile(r"\b(UR|R)(\d+)\b")
_PRODUCT = re.compile(r"[HIQB]GMMA\.")
_STACK = re.compile(r"\[R1(?:\+(-?0x[0-9a-f]+))?\]")
_WRITES_NOTHING = re.compile(
    "ST|RED(?!UX)|BAR|WARP|SYNCS|DEPBAR|LDGDEPBAR|LDGSTS|FENCE|MEMBAR|BS|NOP|UTMA|CCTL|NANO|BRA|EXIT"
)


def has_products(sass: str) -> bool:
    """Return whether a kernel has products by `wgmma`."""
    return "gdesc[" in sass


def misplaced(sass: str) -> list[str]:
    """Return the products that read an operand from a place that is not the block's own.

    The upper half, which holds the operand's layout, is not followed: `torn_sums` finds a wrong one.

    Raises:
        ValueError: the text has no product, or no place of the block, so it cannot be judged.
    """
    code, blocks = _read(sass)
    if not has_products(sass) or "SR_CgaCtaId" not in sass:
        raise ValueError("Give the machine code of a kernel with products by wgmma.")
    states: dict[int, _State] = {0: {}}
    waiting = [0]
    while waiting:
        block = waiting.pop()
        state = dict(states[block])
        for instruction in code[slice(*blocks[block][0])]:
            _step(state, instruction)
        for after in blocks[block][1]:
            known = states.get(after)
            joined = state if known is None else _joined(known, state)
            if joined != known:
                states[after] = dict(joined)
                waiting.append(after)
    found = []
    for block, before in states.items():
        state = dict(before)
        for instruction in code[slice(*blocks[block][0])]:
            if any(not state.get(place, False) for place in _places(instruction)):
                found.append(instruction.text)
            _step(state, instruction)
    return found


def _joined(one: _State, other: _State) -> _State:
    """Return the state that holds after either of two paths."""
    return {name: one.get(name, True) and other.get(name, True) for name in {**one, **other}}


def _read(sass: str) -> tuple[list[_Instruction], dict[int, tuple[tuple[int, int], list[int]]]]:
    """Return the instructions, and by the start of each block its (start, end) and the blocks after it."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := _LINE.search(line):
            operands = tuple(each.strip() for each in found["operands"].split(","))
            code.append(_Instruction(found["condition"] is not None, found["name"], operands, found["text"]))
    leaves = [place for place, each in enumerate(code) if each.name.startswith(("BRA", "EXIT"))]
    starts = sorted({0, *labels.values(), *(place + 1 for place in leaves)} - {len(code)})
    blocks = {}
    for start, end in pairwise([*starts, len(code)]):
        last, after = code[end - 1], [end] if end < len(code) else []
        if last.name.startswith("EXIT") and not last.is_conditional:
            after = []
        elif last.name.startswith("BRA"):
            (label,) = re.findall(r"\.L_x_\d+", last.text)
            always = not last.is_conditional and len(last.operands) == 1 and last.name == "BRA"
            after = [labels[label]] + ([] if always else after)
        blocks[start] = (start, end), [each for each in after if each < len(code)]
    return code, blocks


def _width(name: str) -> int:
    """Return how many registers an instruction of this name writes."""
    if ".128" in name:
        return 4
    return 2 if ".64" in name or ".WIDE" in name or (name.startswith("CS2R") and ".32" not in name) else 1


def _registers(text: str, width: int = 1) -> Iterator[str]:
    for kind, number in _REGISTER.findall(text):
        for place in range(width):
            yield f"{kind}{int(number) + place}"


def _places(instruction: _Instruction) -> list[str]:
    """Return the registers that hold the lower halves of a product's descriptors.

    There is one for each operand in shared memory, and none for an operand in registers.
    """
    if not _PRODUCT.match(instruction.name):
        return []
    first, second = instruction.operands[1:3]
    if "gdesc[URZ]" in first + second:
        return []  # it multiplies nothing and only waits
    (number,) = re.findall(r"gdesc\[UR(\d+)\]", first + second)
    return [f"UR{int(number) + half}" for half in ((0, 2) if "gdesc" in first else (2,))]


def _step(state: _State, instruction: _Instruction) -> None:
    """Change a state as an instruction changes registers and the stack."""
    name, operands = instruction.name, instruction.operands
    width = _width(name)
    if name.startswith("STL"):
        targets, sources = _words(operands[0], width), [*_registers(operands[1], width)] or ["RZ"] * width
    elif name.startswith("LDL"):
        targets, sources = [*_registers(operands[0], width)], _words(operands[1], width)
    elif _WRITES_NOTHING.match(name) or _PRODUCT.match(name):
        return
    else:
        targets = [*_registers(operands[0], width)]
        is_loaded = name.startswith(("LD", "ATOM", "SHFL")) and not name.startswith("LDC")
        read = (each for text in operands[1:] for each in _registers(text, 2 if width > 1 else 1))
        is_place = "SR_CgaCtaId" in instruction.text or any(state.get(each, False) for each in read)
        sources = ["place" if is_place and not is_loaded else "other"] * len(targets)
    # Conditions are ignored: a register written under a condition is read under the same one.
    held = [source == "place" or state.get(source, False) for source in sources]
    state |= dict(zip(targets, held, strict=True))


def _words(address: str, width: int) -> list[str]:
    found = _STACK.fullmatch(address)
    assert found is not None, address
    return [f"[{int(found[1] or '0', 16) + 4 * place}]" for place in range(width)]
