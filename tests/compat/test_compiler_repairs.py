"""Kernels that Triton, LLVM or NVIDIA's assembler compile wrongly, and the repairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton._C.libtriton import ir
from triton.backends import backends
from triton.backends.compiler import GPUTarget

from workbench import compat
from workbench.compat import compiler
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, Scoring
from workbench.launch import Launch
from workbench.lens import compile as compile_for

STAGES = [
    ("nvidia", "make_ttgir"),
    ("nvidia", "gluon_to_ttgir"),
    ("nvidia", "make_ptx"),
    ("amd", "make_ttgir"),
    ("amd", "gluon_to_ttgir"),
    ("amd", "make_amdgcn"),
]


def test_repairing_the_compilers_again_changes_nothing() -> None:
    before = [getattr(backends[vendor].compiler, stage) for vendor, stage in STAGES]
    assert all(hasattr(stage, "changes") for stage in before)
    compiler.repair_compilers()
    assert [getattr(backends[vendor].compiler, stage) for vendor, stage in STAGES] == before


# Elements of 8 bits that lanes exchange


@triton.jit
def pixels_kernel(x, output, images, pixels, KIND: tl.constexpr):
    """Transpose each image of pixels with 4 channels: its elements, or the mask of nonzero elements."""
    image, four, pixel = tl.arange(0, 4), tl.arange(0, 4), tl.arange(0, 16)
    of_image = image[:, None, None] * pixels * 4
    valid = (image < images)[:, None, None]
    places = of_image + pixel[None, :, None] * 4 + four[None, None, :]
    tile = tl.load(x + places, mask=valid & (pixel < pixels)[None, :, None])
    if KIND == "mask":
        tile = tile != 0
    tile = tl.permute(tile, 0, 2, 1).to(output.dtype.element_ty)
    places = of_image + four[None, :, None] * pixels + pixel[None, None, :]
    tl.store(output + places, tile, mask=valid & (pixel < pixels)[None, None, :])


def of_pixels(x: torch.Tensor, kind: str) -> Launch:
    """Return the launch for x, [images, pixels, 4]."""
    images, pixels, channels = x.shape
    output = torch.zeros(images, channels, pixels, dtype=x.dtype, device=x.device)
    return Launch.of(pixels_kernel, 1, x, output, images, pixels, outputs=output, KIND=kind, num_warps=1)


NARROW = [("plain", torch.uint8), ("mask", torch.uint8), ("plain", torch.float8_e5m2)]


@pytest.mark.parametrize(("kind", "dtype"), NARROW)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_narrow_elements_are_exchanged_in_a_register_each(kind: str, dtype: torch.dtype, target: str) -> None:
    (made,) = compile_for(of_pixels(torch.zeros(3, 9, 4).to(dtype), kind), target)
    if target != "gfx942":  # its warps have other layouts
        assert re.search(r"ttg\.convert_layout .*xi32", made.stages["ttgir"])
        assert "nvvm.shfl" in made.stages["llir"]
    assert not re.search(r"nvvm\.prmt|amdgcn\.perm\(", made.stages["llir"])


def test_wide_elements_are_exchanged_without_repair() -> None:
    ttgir = compile_for(of_pixels(torch.zeros(3, 9, 4).to(torch.int16), "plain"), "sm_90")[0].stages["ttgir"]
    assert re.search(r"ttg\.convert_layout .*xi16, .* -> .*xi16, ", ttgir)
    assert "arith.trunci" not in ttgir


@pytest.mark.parametrize("kind", ["plain", "mask"])
def test_exchanged_elements_are_transposed_exactly_in_the_interpreter(kind: str) -> None:
    x = torch.arange(108, dtype=torch.uint8).reshape(3, 9, 4) % 5
    (output,) = of_pixels(x, kind).run()
    expected = x.transpose(1, 2)
    assert torch.equal(output, expected if kind == "plain" else (expected != 0).to(torch.uint8))


def converting(registers: Sequence[int], lanes: Sequence[int], element: str) -> str:
    """Return TTGIR that copies 256 elements: lanes load 8 in a row, and store them in a layout of `bases`."""

    def layout(registers: Sequence[int], lanes: Sequence[int]) -> str:
        register, lane = ([[base] for base in bases] for bases in (registers, lanes))
        return f"#ttg.linear<{{register = {register}, lane = {lane}, warp = [], block = []}}>"

    elements, places, pointers = (f"tensor<256x{each}, #" for each in (element, "i32", f"!tt.ptr<{element}>"))
    return f"""#before = {layout([1, 2, 4], [8, 16, 32, 64, 128])}
#after = {layout(registers, lanes)}
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 1 : i32, ttg.target = "cuda:90",
                    "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @copy(%x: !tt.ptr<{element}>, %y: !tt.ptr<{element}>) attributes {{noinline = false}} {{
    %place = tt.make_range {{end = 256 : i32, start = 0 : i32}} : {places}before>
    %there = tt.make_range {{end = 256 : i32, start = 0 : i32}} : {places}after>
    %from = tt.splat %x : !tt.ptr<{element}> -> {pointers}before>
    %to = tt.splat %y : !tt.ptr<{element}> -> {pointers}after>
    %source = tt.addptr %from, %place : {pointers}before>, {places}before>
    %target = tt.addptr %to, %there : {pointers}after>, {places}after>
    %loaded = tt.load %source : {pointers}before>
    %moved = ttg.convert_layout %loaded : {elements}before> -> {elements}after>
    tt.store %target, %moved : {pointers}after>
    tt.return
  }}
}}
"""


HOPPER = GPUTarget("cuda", 90, 32)


def parsed(text: str, folder: Path) -> Any:
    file = folder / "given.ttgir"
    file.write_text(text)
    context = ir.context()
    ir.load_dialects(context)
    backends["nvidia"].compiler(HOPPER).load_dialects(context)
    module = ir.parse_mlir_module(str(file), context)
    module.context = context
    return module


def llir_of(text: str, folder: Path) -> str:
    """Return the LLVM IR of TTGIR, to which Triton has applied no earlier stage."""
    file = folder / "compiled.ttgir"
    file.write_text(text)
    return str(triton.compile(str(file), target=HOPPER).asm["llir"])


# Exchanges of bits of the numbers of a register's bytes (r0, r1), of registers (r2) and of lanes (l4).
LANES = [8, 16, 32, 64]
MOVES = {
    "r0 r1 l4": ([2, 128, 4], [*LANES, 1]),
    "r0 l4 r1": ([128, 1, 4], [*LANES, 2]),
    "r0 r1, r2 l4": ([2, 1, 128], [*LANES, 4]),
}


def sent_and_kept(llir: str) -> set[tuple[str, int]]:
    """Return the bytes of registers that the lower half of the lanes sends away and wrongly also keeps."""
    chosen = dict(re.findall(r"(%\w+) = select i1 \S+ i32 (\d+), i32 \d+", llir))
    picked = {
        name: (one, other, [int(digit, 16) for digit in f"{int(chosen.get(by, by)):04x}"])
        for name, one, other, by in re.findall(
            r"(%\w+) = tail call i32 @llvm\.nvvm\.prmt\(i32 (%\w+), i32 (%\w+), i32 (%?\w+)\)", llir
        )
    }
    moved = dict(re.findall(r"(%\w+) = tail call i32 @llvm\.nvvm\.shfl\S+\(i32 -1, i32 (%\w+)", llir))
    assert moved
    found = set()
    for one, other, bytes_of in picked.values():
        if other in moved:
            first, second, away = picked[moved[other]]
            sent = {((first, second)[byte // 4], byte % 4) for byte in away}
            found |= sent & {(one, byte) for byte in bytes_of if byte < 4}
    return found


@pytest.mark.parametrize("move", ["r0 r1 l4", "r0 l4 r1"])
def test_triton_still_keeps_bytes_that_it_sends(move: str, tmp_path: Path) -> None:
    """If this fails, Triton no longer has the fault: remove with_wide_shuffles."""
    assert sent_and_kept(llir_of(converting(*MOVES[move], "i8"), tmp_path))


def test_no_byte_is_kept_if_bytes_change_places_with_lanes_only(tmp_path: Path) -> None:
    assert not sent_and_kept(llir_of(converting([128, 2, 4], [*LANES, 1], "i8"), tmp_path))


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("element", ["i8", "f8E5M2", "f8E4M3FN"])
def test_conversions_within_a_warp_are_widened(move: str, element: str, tmp_path: Path) -> None:
    made = compiler.with_wide_shuffles(parsed(converting(*MOVES[move], element), tmp_path))
    assert len(re.findall(r"ttg\.convert_layout .*xi32, .* -> .*xi32, ", str(made))) == 1
    assert "prmt" not in llir_of(str(made), tmp_path)


def test_conversions_through_shared_memory_are_not_changed(tmp_path: Path) -> None:
    """If two bits of the register change places with bits of the lane, Triton uses shared memory."""
    module = parsed(converting([128, 64, 4], [8, 16, 32, 2, 1], "i8"), tmp_path)
    assert compiler.with_wide_shuffles(module) is module


# Many quotients and remainders


def test_freeze_is_removed_from_many_quotients(monkeypatch: pytest.MonkeyPatch) -> None:
    llir = """
  %25 = extractelement <32 x i32> %24, i64 3, !dbg !31
  %x.element = extractelement <2 x i64> %x, i64 1
  %.frozen = freeze i32 %25, !dbg !31
  %x.element.frozen7 = freeze i64 %x.element
  %other = freeze i32 %25
  %scalar.frozen = freeze i32 %scalar
"""
    assert compiler.thawed(llir) == llir
    monkeypatch.setattr(compiler, "MANY_FROZEN", 2)
    expected = llir.replace(".frozen = freeze i32 %25", ".frozen = add i32 %25, 0")
    expected = expected.replace("freeze i64 %x.element", "add i64 %x.element, 0")
    assert expected != llir
    assert compiler.thawed(llir) == expected


# Descriptors of shared memory


UPPER = 0x40000040
OTHER = f"\tadd.s64 \t%rd8, %rd9, {UPPER << 32 | 128};"
THIRD = f"\tadd.s64 \t%rd6, %rd9, {0x40000080 << 32 | 128};"


@pytest.mark.parametrize("made", ["bfe.u32 \t%r5, %r4, 4, 14;", "and.b32 \t%r5, %r4, 16383;"])
@pytest.mark.parametrize(("added", "lower"), [("add.s64", 64), ("or.b64", 0)])
@pytest.mark.parametrize("upper", [0x40000080, 0x80000020])
def test_sums_of_descriptors_are_joined_from_halves(made: str, added: str, lower: int, upper: int) -> None:
    constant = upper << 32 | lower
    constant -= 2**64 if upper >> 31 else 0
    ptx = f"\t{made}\n\tcvt.u64.u32 \t%rd9, %r5;\n\t{added} \t%rd7, %rd9, {constant};\n{OTHER}"
    lines = compiler.with_descriptors_of_halves(ptx).split("\n")
    assert lines[2] == (
        f"\t{{ .reg .b32 lower; add.u32 lower, %r5, {lower}; mov.b64 %rd7, {{lower, {upper}}}; }}"
    )
    assert lines[:2] == ptx.split("\n")[:2]
    assert lines[3].endswith("mov.b64 %rd8, {lower, 1073741888}; }")


def test_addresses_of_tiles_of_one_layout_are_not_changed() -> None:
    added = f"\tor.b64 \t%rd7, %rd9, {UPPER << 32};\n\tadd.s64 \t%rd8, %rd9, {UPPER << 32 | 64};"
    ptx = f"\tbfe.u32 \t%r5, %r4, 4, 14;\n\tcvt.u64.u32 \t%rd9, %r5;\n{added}"
    assert compiler.with_descriptors_of_halves(ptx) == ptx


@pytest.mark.parametrize(
    ("made", "constant"),
    [
        ("bfe.u32 \t%r5, %r4, 4, 15;", UPPER << 32),  # not the address of a tile: its lower half may carry
        ("mov.u32 \t%r5, %r4;", UPPER << 32),
        ("bfe.u32 \t%r5, %r4, 4, 14;", 4096),  # no descriptor: its upper half is 0
        ("bfe.u32 \t%r5, %r4, 4, 14;", UPPER << 32 | 0xFFFFFFF0),
        ("bfe.u32 \t%r6, %r4, 4, 14;", UPPER << 32),
    ],
)
def test_sums_that_are_not_a_safe_descriptor_are_unchanged(made: str, constant: int) -> None:
    """Tiles of two layouts are addressed from %rd9, so the reason is in the address or in the constant."""
    added = f"\tadd.s64 \t%rd7, %rd9, {constant};"
    ptx = f"\t{made}\n\tcvt.u64.u32 \t%rd9, %r5;\n{OTHER}\n{THIRD}\n{added}"
    assert compiler.with_descriptors_of_halves(ptx).split("\n")[-1] == added


def test_descriptors_of_a_compiled_product_are_joined_from_halves() -> None:
    """Without the repair, attention with interleaved heads reads beyond shared memory.

    From Triton 3.7 on, keys and values have addresses of their own, and nothing is repaired.
    """
    query = torch.zeros(2 * 512 * 24 * 4, dtype=torch.bfloat16).as_strided((2, 4, 512, 24), (1, 2, 192, 8))
    key = torch.zeros(2, 11, 24, 4, dtype=torch.bfloat16).permute(0, 3, 1, 2)
    value = torch.zeros(2, 4, 11, 24, dtype=torch.bfloat16)
    causal = Scoring(window=CAUSAL)
    launch = attention.launch(query, key, value, causal, tile=(64, 64), num_warps=4, num_stages=3)
    ptx = compile_for(launch, "sm_90")[0].stages["ptx"]
    assert "wgmma.mma_async" in ptx
    assert ptx.count(".reg .b32 lower") == (12 if compat.VERSION < (3, 7) else 0)


def test_the_assembler_is_still_the_one_with_the_fault() -> None:
    """If this fails, test the new assembler, and remove with_descriptors_of_halves if it has no fault."""
    version = knobs.nvidia.ptxas.version
    assert version.startswith("12.8"), f"ptxas is {version}"
