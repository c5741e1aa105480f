"""Instructions parsed from SASS, PTX and AMDGCN: the class, width and source line of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from workbench.lens._locations import Chain, Home, chains

Kind = Literal[
    "matrix",
    "global load",
    "global store",
    "asynchronous copy",
    "shared load",
    "shared store",
    "barrier",
    "conversion",
    "other",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compiled kernel.

    Attributes:
        text: the instruction as the disassembler or the compiler wrote it.
        opcode: its name with all modifiers: "LDG.E.128", "global_load_dwordx4".
        kind: its class, one of `KINDS`. "asynchronous copy": between global and shared memory, bypassing the
            registers (cp.async, TMA, loads to LDS). "barrier": of a block, including the barriers in memory
            that asynchronous copies signal. "conversion": between number formats. "other": everything else,
            such as waits for loads (s_waitcnt, DEPBAR), shuffles, atomics and spills.
        bits: the bits that a lane moves, for an access to memory, also an atomic or a spill; None for other
            instructions, and where one thread moves a whole tile (TMA).
        file: the kernel's file, or the file of the called function if it is not inlined (`noinline`).
        line: the line of `file` which the instruction comes from.
        inlined: if that line calls an inlined function, such as a tile operator, the (file, line) in that
            function, then in the function that it calls, and so on.
    """

    text: str
    opcode: str
    kind: Kind
    bits: int | None
    file: str
    line: int
    inlined: Chain

    @property
    def is_shuffle(self) -> bool:
        """True for an instruction with which lanes of a warp exchange values without memory."""
        return bool(_SHUFFLE.match(self.opcode))

    def __repr__(self) -> str:
        width = f", {self.bits} bits" if self.bits else ""
        return f"Instruction({self.opcode}: {self.kind}{width}, line {self.line})"


# Opcodes of NVIDIA's SASS and PTX, and of AMD's assembly, where the modifier DPP reads another lane's
# operand.
_SHUFFLE = re.compile(r"(SHFL|REDUX)\b|(shfl|redux)\.sync|v_\w+_dpp\b|ds_swizzle|ds_b?permute|v_permlane")


@dataclass(frozen=True)
class _Class:
    kind: Kind
    pattern: re.Pattern[str]  # matches the whole text without its predicate
    bits: Callable[[str, str], int | None]


def from_sass(disassembly: str, ptx: str, llir: str, home: Home) -> tuple[tuple[Instruction, ...], str]:
    """Return the instructions in the output of `nvdisasm -gp -c`, and that output with source lines.

    The option -gp gives the line of PTX for each instruction, and PTX has the whole chain of source lines.
    The binary's own line table, which `-gi` prints, has only the innermost frame before Triton 3.9.

    On Hopper, the assembler gives no line to the matrix instructions of a wgmma after the first, so that they
    would seem to come from the line before. They get the line of the preceding WARPGROUP.ARRIVE.
    """
    of_ptx = chains(ptx, llir)
    listing: list[str] = []
    found: list[Instruction] = []
    chain: Chain = ()
    of_product: Chain = ()
    shown: Chain = ()
    for text in disassembly.splitlines():
        if marker := _PTX_LINE.match(text):
            chain = of_ptx[int(marker[1]) - 1]
        elif match := _SASS.match(text):
            if "WARPGROUP.ARRIVE" in match["text"]:
                of_product = chain
            own = of_product if of_product and _WARP_GROUP_PRODUCT.match(match["text"]) else chain
            found.append(_instruction(_SASS_CLASSES, match["text"], own, home))
            if own != shown:
                listing.append(_marker(own))
                shown = own
            listing.append(f"{match['address']}{match['text']};")
        else:
            listing.append(text)
    return tuple(found[: _without_padding(found)]), "\n".join(listing)


_PTX_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt[^"]*", line (\d+)')
_WARP_GROUP_PRODUCT = re.compile(r"(@!?\w+\s+)?[HIQB]GMMA\.")
# Some disassemblers append scheduling information to an instruction: `&req={5} &wr=0x2 ?trans1;`.
_SASS = re.compile(r"(?P<address>\s*/\*[0-9a-f]{4,}\*/\s+)(?P<text>\S.*?)\s*(?:\s[&?]\S+\s*)*;\s*$")


def _marker(chain: Chain) -> str:
    """Return a comment like those of `nvdisasm -gi`, innermost frame first."""
    frames = [f'"{file}", line {line}' for file, line in reversed(chain)]
    return "\t//## File " + " inlined at ".join(frames)


def _without_padding(instructions: Sequence[Instruction]) -> int:
    """Return the number of instructions before the final branch to itself and the NOPs after it."""
    end = len(instructions)
    while end and instructions[end - 1].opcode == "NOP":
        end -= 1
    return end - 1 if end and instructions[end - 1].opcode == "BRA" else end


def from_assembly(assembly: str, llir: str, home: Home) -> tuple[Instruction, ...]:
    """Return the instructions in PTX or AMDGCN text."""
    is_ptx = ".address_size" in assembly
    classes, statements = (_PTX_CLASSES, _ptx_statements) if is_ptx else (_AMD_CLASSES, _amd_statements)
    chain_of = chains(assembly, llir)
    return tuple(_instruction(classes, text, chain_of[number], home) for number, text in statements(assembly))


def _ptx_statements(ptx: str) -> Iterator[tuple[int, str]]:
    """Yield the number, from 0, and the text of each line with an instruction, from `{` to the debug data."""
    body = False
    for number, line in enumerate(ptx.splitlines()):
        text = line.split("//")[0].strip()
        if body and text.startswith((".file", ".section")):
            return
        if body and _PTX_START.match(text):
            yield number, text.rstrip("; ")
        body |= text == "{"


_PTX_START = re.compile(r"(@!?%\w+\s+)?[a-z]\w*[.\w:]*(\s|;|$)")


def _amd_statements(amdgcn: str) -> Iterator[tuple[int, str]]:
    """Yield number, from 0, and text of each indented line that is not a directive, up to `.rodata`."""
    for number, line in enumerate(amdgcn.splitlines()):
        text, _, comment = (part.rstrip() for part in line.partition(";"))
        if text.strip().startswith(".section") and ".rodata" in text:
            return
        if text[:1].isspace() and not text.strip().startswith("."):
            # CDNA2 spills with ordinary buffer instructions; only the comment marks them.
            yield number, f"{text} ;{comment}".strip() if "Folded" in comment else text.strip()


def _instruction(classes: Sequence[_Class], text: str, chain: Chain, home: Home) -> Instruction:
    unconditional = _PREDICATE.sub("", text)
    opcode = unconditional.split()[0]
    kind, bits = _classified(classes, opcode, unconditional)
    return Instruction(" ".join(text.split()), opcode, kind, bits, *home.split(chain))


_PREDICATE = re.compile(r"^@!?%?\w+\s+")


def _classified(classes: Sequence[_Class], opcode: str, text: str) -> tuple[Kind, int | None]:
    for each in classes:
        if each.pattern.fullmatch(text):
            return each.kind, each.bits(opcode, text)
    return "other", None


def _no_access(opcode: str, text: str) -> None:
    """Return None: the instruction accesses no memory, or moves a whole tile."""
    return None


def _sass_bits(opcode: str, text: str) -> int:
    """Return the width by the modifier, `.64`, `.128`, `.256`, `.U8`, `.S16`; 32 without one."""
    for modifier in opcode.split(".")[1:]:
        if match := re.fullmatch(r"[US]?(8|16|64|128|256)", modifier):
            return int(match[1])
    return 32


def _sass_matrix_bits(opcode: str, text: str) -> int:
    """Return 32 bits for each of the 1, 2 or 4 8 x 8 16-bit matrices that LDSM and STSM move."""
    count = re.search(r"\.([24])(?=\.|$)", opcode)
    return 32 * int(count[1]) if count else 32


def _classes(*rows: tuple[Kind, str, Callable[[str, str], int | None]]) -> tuple[_Class, ...]:
    return tuple(_Class(kind, re.compile(pattern), bits) for kind, pattern, bits in rows)


# The opcodes are listed in NVIDIA's "CUDA Binary Utilities", instruction set reference. HADD2.F32 widens
# fp16: it adds a half to zero in fp32.
_SASS_CLASSES = _classes(
    ("matrix", r"([HIDBQO]MMA|[HIQB]GMMA|UTC\w*MMA)\b.*", _no_access),
    ("asynchronous copy", r"LDGSTS\b.*", _sass_bits),
    ("asynchronous copy", r"(UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED|UTCCP)\b.*", _no_access),
    ("global load", r"LDG?\b.*", _sass_bits),
    ("global store", r"STG?\b.*", _sass_bits),
    ("shared load", r"LDSM\b.*", _sass_matrix_bits),
    ("shared load", r"LDS\b.*", _sass_bits),
    ("shared store", r"STSM\b.*", _sass_matrix_bits),
    ("shared store", r"STS\b.*", _sass_bits),
    ("barrier", r"(BAR|SYNCS|UCGABAR_\w+|UTCBAR)\b.*", _no_access),
    ("conversion", r"U?(F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP)\b.*|HADD2\.F32\b.*", _no_access),
    ("other", r"(LDL|STL|ATOM|ATOMG|ATOMS|RED|REDG|REDS)\b.*", _sass_bits),
)


def _amd_bits(opcode: str, text: str) -> int | None:
    """Return the width in the name: `dwordx4`, `b128`, `ushort`, `u8`; doubled for `read2`, `2addr`, `pk`."""
    times = 2 if re.search(r"read2|write2|_2addr|_pk_", opcode) else 1
    if match := re.search(r"dwordx?(\d?)", opcode):
        return times * 32 * int(match[1] or 1)
    if match := re.search(r"_[bfiu](\d+)", opcode):
        return times * int(match[1])
    if "byte" in opcode:
        return 8
    return 16 if "short" in opcode else None


def _amd_atomic_bits(opcode: str, text: str) -> int:
    """Return the width in the name; if it has none, 64 for names that end in `_x2`, else 32."""
    return _amd_bits(opcode, text) or (64 if opcode.endswith("_x2") else 32)


# The opcodes are listed in AMD's "Instruction Set Architecture" guides for CDNA2 to 4, RDNA3 and RDNA4.
_AMD_CLASSES = _classes(
    ("other", r".*; \d+-byte Folded (Spill|Reload)", _amd_bits),
    ("matrix", r"v_(mfma|smfmac|wmma|swmmac)_.*", _no_access),
    ("asynchronous copy", r"(global|buffer)_load_(lds_.*|.* lds\b.*)", _amd_bits),
    ("global load", r"(global|buffer|flat)_load_.*", _amd_bits),
    ("global store", r"(global|buffer|flat)_store_.*", _amd_bits),
    ("shared load", r"ds_(read|load).*", _amd_bits),
    ("shared store", r"ds_(write|store).*", _amd_bits),
    ("barrier", r"s_barrier.*", _no_access),
    ("conversion", r"v_cvt_.*", _no_access),
    ("other", r"scratch_(load|store)_.*", _amd_bits),
    ("other", r"(global|buffer|flat)_atomic_.*", _amd_atomic_bits),
)


def _ptx_bits(opcode: str, text: str) -> int:
    """Return the element's width times the vector's length: 128 for `ld.global.v4.b32`."""
    element = re.findall(r"\.[bfsu](\d+)", opcode)
    vector = re.search(r"\.v(\d+)", opcode)
    return int(element[-1] if element else 32) * int(vector[1] if vector else 1)


def _ptx_copy_bits(opcode: str, text: str) -> int | None:
    """Return the size that cp.async has as its third operand; None for bulk copies, which move a tile."""
    operands = text.split(",")
    size = operands[2].strip() if len(operands) > 2 and ".bulk" not in opcode else ""
    return 8 * int(size, 0) if re.fullmatch(r"0x[0-9a-f]+|\d+", size) else None


def _ptx_matrix_bits(opcode: str, text: str) -> int:
    """Return 32 bits for each of the 1, 2 or 4 matrices that ldmatrix and stmatrix move."""
    count = re.search(r"\.x([124])\b", opcode)
    return 32 * int(count[1]) if count else 32


# The opcodes are listed in NVIDIA's "PTX ISA".
_PTX_CLASSES = _classes(
    ("matrix", r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\b.*", _no_access),
    ("asynchronous copy", r"cp\.(reduce\.)?async\.(?!.*(commit|wait|prefetch|mbarrier)).*", _ptx_copy_bits),
    ("asynchronous copy", r"tcgen05\.cp\b.*", _no_access),
    ("global load", r"ld\.(\w+\.)*global\b.*", _ptx_bits),
    ("global store", r"st\.(\w+\.)*global\b.*", _ptx_bits),
    ("shared load", r"ldmatrix\b.*", _ptx_matrix_bits),
    ("shared load", r"ld\.(\w+\.)*shared\b.*", _ptx_bits),
    ("shared store", r"stmatrix\b.*", _ptx_matrix_bits),
    ("shared store", r"st\.(\w+\.)*shared\b.*", _ptx_bits),
    ("barrier", r"(bar|barrier|mbarrier)\b.*", _no_access),
    ("conversion", r"cvt\b.*", _no_access),
    ("other", r"(ld\.local|st\.local|atom|red)\b.*", _ptx_bits),
)
