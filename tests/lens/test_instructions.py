"""Instructions are found with class, width and line in small pieces of SASS, PTX and AMDGCN."""

from __future__ import annotations

import textwrap

import pytest

from workbench.lens._instructions import KINDS, Instruction, from_assembly, from_sass
from workbench.lens._layouts import layout_name
from workbench.lens._locations import Home, chains

HOME = Home("/sources/k.py", 3)


def classified(text: str, *, ptx: bool = False) -> Instruction:
    if ptx:
        (found,) = from_assembly(f".address_size 64\n{{\n\t{text};\n}}\n", "", HOME)
    else:
        (found,) = from_assembly(f"\t{text}\n", "", HOME)
    return found


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("LDG.E.128 R4, desc[UR6][R12.64]", "global load", 128),
        ("@!P2 LDG.E.LTC128B.64 R4, desc[UR6][R12.64]", "global load", 64),  # a hint to L2 is not a width
        ("@P1 LDG.E.U16.CONSTANT R2, [R2.64]", "global load", 16),
        ("LDG.E.S8 R2, [R2.64]", "global load", 8),
        ("LDG.E.ENL2.256 R12, R8, desc[UR4][R8.64]", "global load", 256),
        ("LD.E R2, [R2.64]", "global load", 32),
        ("STG.E desc[UR6][R2.64], R5", "global store", 32),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR6][R8.64]", "asynchronous copy", 128),
        ("LDGSTS.E.64 [R3], [R8.64]", "asynchronous copy", 64),
        ("UTMALDG.2D [UR8], [UR4]", "asynchronous copy", None),
        ("UBLKCP.S.G [UR8], [UR4], UR9", "asynchronous copy", None),
        ("LDS.U.128 R4, [R2+UR4]", "shared load", 128),
        ("LDS R4, [R2+UR4]", "shared load", 32),
        ("LDSM.16.M88.4 R4, [R2]", "shared load", 128),
        ("LDSM.16.MT88.2 R4, [R2]", "shared load", 64),
        ("LDSM.16.M88 R4, [R2]", "shared load", 32),
        ("STS.64 [R2], R4", "shared store", 64),
        ("STSM.16.M88.4 [R2], R4", "shared store", 128),
        ("HMMA.16816.F32 R4, R8, R6, R4", "matrix", None),
        ("IMMA.16832.S8.S8 R4, R8.ROW, R6.COL, R4", "matrix", None),
        ("QMMA.16832.F32.E4M3.E4M3 R4, R8, R6, R4", "matrix", None),
        ("HGMMA.64x64x16.F32 R24, gdesc[UR4], R24, gsb0", "matrix", None),
        ("QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24", "matrix", None),
        ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UP0", "matrix", None),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier", None),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "barrier", None),
        ("F2FP.F16.F32.PACK_AB R4, R5, R4", "conversion", None),
        ("I2FP.F32.S32 R4, R4", "conversion", None),
        ("HADD2.F32 R4, -RZ, R4.H0_H0", "conversion", None),
        ("HADD2 R4, R4, R5", "other", None),
        ("LDL.64 R2, [R1]", "other", 64),
        ("STL [R1+0x4], R2", "other", 32),
        ("LDC R1, c[0x0][0x28]", "other", None),
        ("DEPBAR.LE SB0, 0x1", "other", None),
        ("LDGDEPBAR", "other", None),
        ("SHFL.BFLY PT, R3, R14, 0x10, 0x1f", "other", None),
    ],
)
def test_sass_is_classified(text: str, kind: str, bits: int | None) -> None:
    (found,), _ = from_sass(f"        /*0a10*/                   {text} ;", "", "", HOME)
    assert (found.kind, found.bits) == (kind, bits)
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("global_load_dwordx4 v[2:5], v[2:3], off", "global load", 128),
        ("global_load_b128 v[2:5], v[2:3], off", "global load", 128),
        ("global_load_ushort v2, v[2:3], off", "global load", 16),
        ("global_load_d16_hi_b16 v2, v[2:3], off", "global load", 16),
        ("global_load_ubyte v2, v[2:3], off", "global load", 8),
        ("buffer_load_dwordx2 v[2:3], v6, s[4:7], 0 offen", "global load", 64),
        ("buffer_load_short_d16 v6, v6, s[4:7], 0 offen", "global load", 16),
        ("buffer_store_b64 v[2:3], v6, s[4:7], 0 offen", "global store", 64),
        ("global_store_dwordx3 v[0:1], v[2:4], off", "global store", 96),
        ("buffer_load_dwordx4 v6, s[4:7], 0 offen lds", "asynchronous copy", 128),
        ("global_load_lds_dwordx4 v[2:3], off", "asynchronous copy", 128),
        ("ds_read_b128 v[2:5], v1", "shared load", 128),
        ("ds_read2_b32 v[2:3], v1 offset1:1", "shared load", 64),
        ("ds_load_2addr_stride64_b64 v[2:5], v1 offset1:1", "shared load", 128),
        ("ds_read_u16_d16_hi v2, v1", "shared load", 16),
        ("ds_read_b64_tr_b16 v[2:3], v1", "shared load", 64),
        ("ds_write_b8 v1, v2", "shared store", 8),
        ("ds_store_b64 v1, v[2:3]", "shared store", 64),
        ("ds_bpermute_b32 v1, v2, v3", "other", None),
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]", "matrix", None),
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "matrix", None),
        ("v_dot2_f32_f16 v0, v1, v2, v0", "other", None),
        ("s_barrier", "barrier", None),
        ("s_barrier_wait 0xffff", "barrier", None),
        ("s_waitcnt vmcnt(0)", "other", None),
        ("s_load_dwordx4 s[0:3], s[0:1], 0x0", "other", None),
        ("v_cvt_pkrtz_f16_f32 v0, v0, v1", "conversion", None),
        ("v_cvt_f32_f16_e32 v0, v0", "conversion", None),
        ("scratch_store_dwordx2 off, v[0:1], off", "other", 64),
        ("global_atomic_add v0, v[0:1], v2, off sc0", "other", 32),
        ("buffer_atomic_cmpswap_x2 v[0:3], v6, s[4:7], 0 offen", "other", 64),
        ("global_atomic_add_f64 v[0:1], v[2:3], off", "other", 64),
        ("global_atomic_pk_add_f16 v0, v[0:1], v2, off", "other", 32),
    ],
)
def test_amdgcn_is_classified(text: str, kind: str, bits: int | None) -> None:
    found = classified(text)
    assert (found.kind, found.bits) == (kind, bits)


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ]", "global load", 128),
        ("ld.global.L1::evict_last.b16 { %rs1 }, [ %rd1 + 0 ]", "global load", 16),
        ("st.global.v2.b64 [ %rd1 + 0 ], { %rd2, %rd3 }", "global store", 128),
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2", "asynchronous copy", 128),
        ("cp.async.bulk.tensor.2d.shared::cta.global [%r1], [%rd1, {%r2}]", "asynchronous copy", None),
        ("cp.async.commit_group", "other", None),
        ("cp.async.wait_group 2", "other", None),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5]", "shared load", 128),
        ("ld.shared.v2.b32 {%r1, %r2}, [%r5]", "shared load", 64),
        ("st.shared.b8 [%r5], %rs1", "shared store", 8),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}", "matrix", None),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1, %rd2", "matrix", None),
        ("wgmma.commit_group.sync.aligned", "other", None),
        ("bar.sync 0", "barrier", None),
        ("mbarrier.try_wait.parity.shared.b64 p, [%r1], %r2", "barrier", None),
        ("cvt.rn.f16x2.f32 %r1, %f2, %f1", "conversion", None),
        ("mov.u32 %r1, %tid.x", "other", None),
    ],
)  # fmt: skip
def test_ptx_is_classified(text: str, kind: str, bits: int | None) -> None:
    found = classified(text, ptx=True)
    assert (found.kind, found.bits) == (kind, bits)


PTX = textwrap.dedent("""\
    .version 8.7
    .address_size 64
    .visible .entry k(
    )
    {
        ld.param.b64     %rd1, [k_param_0];
        .loc    1 5 9                           // k.py:5:9
        mov.u32     %r1, %tid.x;
        .loc    2 35 19                         // tile.py:35:19 @[ k.py:7:13 ]
        ld.global.b32     { %r2 }, [ %rd1 ];
        .loc    2 0 19                          // tile.py:0:19
        add.s32     %r3, %r2, 1;
        .loc    3 263 15                        // tile.py:263:15 @[ tile.py:293:36 @[ k.py:8:5 ] ]
        add.s32     %r4, %r3, 1;
        ret;
    }
        .file    1 "/sources/k.py"
        .file    2 "/lib/a/tile.py"
        .file    3 "/lib/b/tile.py"
    """)

LLIR = textwrap.dedent("""\
    !1 = !DIFile(filename: "k.py", directory: "/sources")
    !4 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 3, unit: !0)
    !9 = distinct !DISubprogram(name: "load", scope: !10, file: !10, line: 30, unit: !0)
    !10 = !DIFile(filename: "tile.py", directory: "/lib/a")
    !11 = !DIFile(filename: "tile.py", directory: "/lib/b")
    !12 = !DILexicalBlockFile(scope: !4, file: !1, discriminator: 0)
    !20 = distinct !DISubprogram(name: "sum", scope: !11, file: !11, line: 290, unit: !0)
    !22 = !DILocation(line: 293, column: 36, scope: !20, inlinedAt: !23)
    !23 = !DILocation(line: 8, column: 5, scope: !12)
    !24 = !DILocation(line: 35, column: 19, scope: !9, inlinedAt: !25)
    !25 = !DILocation(line: 7, column: 13, scope: !12)
    """)

# Triton 3.9 puts the calling frames into the directive.
PTX_WITH_INLINED_AT = textwrap.dedent("""\
    .address_size 64
    {
        .loc    1 7 13                          // k.py:7:13
        .loc    2 35 19, function_name $L__info_string0, inlined_at 1 7 13 // tile.py:35:19
        ld.global.b32     { %r2 }, [ %rd1 ];
        .loc    1 8 5                           // k.py:8:5
        .loc    3 293 36, function_name $L__info_string1, inlined_at 1 8 5 // tile.py:293:36
        .loc    3 263 15, function_name $L__info_string2, inlined_at 3 293 36 // tile.py:263:15
        add.s32     %r4, %r3, 1;
    }
        .file    1 "/sources/k.py"
        .file    2 "/lib/a/tile.py"
        .file    3 "/lib/b/tile.py"
    """)


def test_lines_of_ptx_are_found() -> None:
    places = [(each.opcode, each.line, each.inlined) for each in from_assembly(PTX, LLIR, HOME)]
    load, total = (("/lib/a/tile.py", 35),), (("/lib/b/tile.py", 293), ("/lib/b/tile.py", 263))
    assert places == [
        ("ld.param.b64", 3, ()),  # before the first line: the def
        ("mov.u32", 5, ()),
        ("ld.global.b32", 7, load),
        ("add.s32", 7, load),  # line 0 counts as the line before
        ("add.s32", 8, total),
        ("ret", 8, total),
    ]
    assert {each.file for each in from_assembly(PTX, LLIR, HOME)} == {"/sources/k.py"}


def test_lines_of_ptx_with_inlined_at_are_found() -> None:
    load, add = from_assembly(PTX_WITH_INLINED_AT, "", HOME)
    assert (load.line, load.inlined) == (7, (("/lib/a/tile.py", 35),))
    assert (add.line, add.inlined) == (8, (("/lib/b/tile.py", 293), ("/lib/b/tile.py", 263)))


def test_inline_assembly_has_the_line_of_its_call() -> None:
    """Triton 3.9 counts lines on inside the assembly; its instructions get the line of the call instead."""
    ptx = textwrap.dedent("""\
        .address_size 64
        {
            .loc    1 7 13                          // k.py:7:13
            // begin inline asm
            .loc    1 10 13                         // k.py:10:13
            mov.u32 %r1, 0x0;
            .loc    1 11 13                         // k.py:11:13
            @%p1 ld.global.b32 { %r1 }, [ %rd1 ];
            // end inline asm
            .loc    1 9 1                           // k.py:9:1
            ret;
        }
            .file    1 "/sources/k.py"
        """)
    assert [each.line for each in from_assembly(ptx, "", HOME)] == [7, 7, 9]


def test_lines_of_sass_are_found() -> None:
    """Lines are those of PTX; the disassembler's scheduling notes and the padding at the end are skipped."""
    disassembly = textwrap.dedent("""\
        .text.k:
                /*0000*/                   LDC R1, c[0x0][0x28] ;
            //## File ".nv_debug_ptx_txt", line 10
                /*0010*/              @!P2 LDG.E R2, desc[UR6][R12.64]      &req={5} &wr=0x2 ?trans1;
            //## File ".nv_debug_ptx_txt.4242", line 14
                /*0020*/                   IADD3 R3, R2, 0x1, RZ            ?WAIT4_END_GROUP;
                /*0030*/                   EXIT ;
        .L_x_0:
                /*0040*/                   BRA `(.L_x_0);
                /*0050*/                   NOP;
        """)
    found, listing = from_sass(disassembly, PTX, LLIR, HOME)
    assert [(each.text, each.line, len(each.inlined)) for each in found] == [
        ("LDC R1, c[0x0][0x28]", 3, 0),
        ("@!P2 LDG.E R2, desc[UR6][R12.64]", 7, 1),
        ("IADD3 R3, R2, 0x1, RZ", 8, 2),
        ("EXIT", 8, 2),
    ]
    assert '\t//## File "/lib/a/tile.py", line 35 inlined at "/sources/k.py", line 7\n' in listing
    assert "@!P2 LDG.E R2, desc[UR6][R12.64];" in listing
    assert "&req" not in listing


def test_a_product_of_warp_groups_has_one_line() -> None:
    """The assembler gives a line only to the first instruction of the product; the others get that line."""
    disassembly = textwrap.dedent("""\
            //## File ".nv_debug_ptx_txt", line 10
            /*0010*/                   WARPGROUP.ARRIVE ;
            /*0020*/                   HGMMA.64x64x16.F32 R24, gdesc[UR12], R24 ;
            //## File ".nv_debug_ptx_txt", line 7
            /*0030*/                   VIADD R61, R57, UR6 ;
            /*0040*/                   HGMMA.64x64x16.F32 R24, gdesc[UR12], R24, gsb0 ;
            /*0050*/                   VIADD R61, R57, UR6 ;
        """)
    found, _ = from_sass(disassembly, PTX, LLIR, HOME)
    assert [(each.opcode.split(".")[0], each.line) for each in found] == [
        ("WARPGROUP", 7),
        ("HGMMA", 7),
        ("VIADD", 5),
        ("HGMMA", 7),
        ("VIADD", 5),
    ]


def test_files_with_escaped_names_or_no_folder_are_found() -> None:
    """AMDGCN names the folder and the file separately, with bytes escaped in octal; a cell has no folder."""
    amdgcn = textwrap.dedent("""\
        k:
            .file    1 "/sources/Jos\\303\\251" "k.py"
            .file    2 "<ipython-input-3-abc>"
            .loc    1 9 1 prologue_end              ; k.py:9:1
            s_nop 0
            .loc    1 4 2                           ; k.py:4:2 @[ <ipython-input-3-abc>:6:8 ]
            s_endpgm
        """)
    llir = '!1 = !DIFile(filename: "<ipython-input-3-abc>", directory: "")\n'
    assert chains(amdgcn, llir)[-1] == (("<ipython-input-3-abc>", 6), ("/sources/José/k.py", 4))
    nop, end = from_assembly(amdgcn, llir, Home("<ipython-input-3-abc>", 5))
    assert (end.file, end.line, end.inlined) == ("<ipython-input-3-abc>", 6, (("/sources/José/k.py", 4),))
    assert (nop.file, nop.line) == ("/sources/José/k.py", 9)


def test_labels_and_directives_of_amdgcn_are_skipped() -> None:
    amdgcn = textwrap.dedent("""\
            .text
        k:                                      ; @k
        ; %bb.0:
            s_nop 0                                 ; a comment
        .LBB0_1:
            s_endpgm
            .section    .rodata,"a",@progbits
            s_code_end
        """)
    assert [each.text for each in from_assembly(amdgcn, "", HOME)] == ["s_nop 0", "s_endpgm"]


@pytest.mark.parametrize("access", ["load", "store"])
def test_a_spill_by_a_buffer_instruction_is_a_spill(access: str) -> None:
    """A spill differs from an access to a tensor in its comment only."""
    text = f"buffer_{access}_dword v9, off, s[0:3], 0 offset:4"
    found = classified(f"{text} ; 4-byte Folded Reload")
    assert (found.kind, found.bits) == ("other", 32)
    assert found.text == f"{text} ; 4-byte Folded Reload"
    found = classified(f"{text} ; 4-byte Folded Spill")
    assert (found.kind, found.bits) == ("other", 32)
    found = classified(f"{text} ; a comment")
    assert (found.kind, found.text) == (f"global {access}", text)


@pytest.mark.parametrize(
    ("opcode", "is_shuffle"),
    [
        ("SHFL.BFLY", True), ("SHFL.IDX", True), ("REDUX.SUM.S32", True), ("shfl.sync.bfly.b32", True),
        ("redux.sync.add.s32", True), ("v_add_f32_dpp", True), ("v_mov_b32_dpp", True),
        ("ds_swizzle_b32", True), ("ds_bpermute_b32", True), ("ds_permute_b32", True),
        ("v_permlane16_b32", True), ("v_permlanex16_b32", True), ("v_permlane32_swap_b32", True),
        ("SHF.L.U32", False), ("RED.E.ADD", False), ("shf.l.wrap.b32", False), ("red.global.add.f32", False),
        ("v_add_f32_e32", False), ("v_perm_b32", False), ("ds_read_b128", False), ("v_readlane_b32", False),
        ("LDS.128", False), ("FADD", False),
    ],
)  # fmt: skip
def test_shuffles_are_recognized(opcode: str, is_shuffle: bool) -> None:
    found = Instruction(f"{opcode} a, b", opcode, "other", None, "k.py", 7, ())
    assert found.is_shuffle == is_shuffle


def test_instructions_have_known_kinds_and_a_short_repr() -> None:
    assert len(KINDS) == 9
    assert KINDS[-1] == "other"
    load = Instruction("LDG.E.128 R4, [R2]", "LDG.E.128", "global load", 128, "k.py", 7, ())
    assert repr(load) == "Instruction(LDG.E.128: global load, 128 bits, line 7)"


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32]}>", "blocked"),
        ("#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0}>", "nvidia_mma v3"),
        ("#ttg.slice<{dim = 0, parent = #ttg.blocked<{order = [1, 0]}>}>", "slice of blocked"),
        ("#ttg.dot_op<{opIdx = 0, parent = #ttg.amd_mfma<{version = 3}>}>", "dot_op of amd_mfma v3"),
        ("#ttng.tensor_memory_encoding<blockM = 64>", "tensor_memory_encoding"),
    ],
)  # fmt: skip
def test_layouts_have_short_names(layout: str, name: str) -> None:
    assert layout_name(layout) == name
