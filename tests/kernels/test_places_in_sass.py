"""`misplaced` finds the products whose operands lie outside the block's shared memory."""

from __future__ import annotations

import pytest

from tests.kernels.places_in_sass import misplaced

BEGIN = (
    "S2UR UR4, SR_CgaCtaId",
    "UMOV UR5, 0x400",
    "ULEA UR5, UR4, UR5, 0x18",
    "USHF.R.U32.HI UR6, URZ, 0x4, UR5",
)
PRODUCT = "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0"
OF_REGISTERS = "HGMMA.64x64x16.F32 R24, R88, gdesc[UR8], R24, gsb0"
END = ("EXIT",)


def listing(*lines: str) -> str:
    """Return instructions, each with its address, and labels, as nvdisasm lists them."""
    return "\n".join(
        line if line.startswith(".L") else f"        /*{16 * place:04x}*/    {line} ;"
        for place, line in enumerate((*BEGIN, *lines, *END))
    )


@pytest.mark.parametrize("product", [PRODUCT, OF_REGISTERS])
@pytest.mark.parametrize(
    ("lower", "is_wrong"),
    [
        (("UIADD3 UR10, UR6, 0x80, URZ",), False),
        (("ULDC.64 UR10, c[0x0][0x220]",), True),
        (("ULDC UR12, c[0x0][0x220]", "UIADD3 UR10, UR12, 0x80, URZ"), True),
        (("ULDC UR12, c[0x0][0x220]", "UIADD3 UR10, UR6, UR12, URZ"), False),  # one of several stages
        (("MOV R3, UR6", "STL.64 [R1+0x8], R2", "LDL R5, [R1+0xc]", "R2UR UR10, R5"), False),
        (("MOV R3, UR6", "STL.64 [R1+0x8], R2", "LDL R5, [R1+0x8]", "R2UR UR10, R5"), True),
        (("MOV R3, UR6", "LDS R5, [R3]", "R2UR UR10, R5"), True),
        (("UMOV UR10, UR6", "@P0 ULDC UR10, c[0x0][0x220]"), True),
        (("UMOV UR10, UR6", "CS2R R4, SRZ", "R2UR UR10, R5"), True),
        (("ULDC UR10, c[0x0][0x220]", "@P0 BRA `(.L_x_0)", "UMOV UR10, UR6", ".L_x_0:"), True),
        (("UMOV UR10, UR6", "@P0 BRA `(.L_x_0)", "UIADD3 UR10, UR10, 0x2, URZ", ".L_x_0:"), False),
        (("UMOV UR10, UR6", "BRA `(.L_x_0)", "ULDC UR10, c[0x0][0x220]", ".L_x_0:"), False),
    ],
)
def test_operands_outside_the_block_are_found(lower: tuple[str, ...], is_wrong: bool, product: str) -> None:
    assert misplaced(listing("UMOV UR8, UR6", *lower, product)) == ([product] if is_wrong else [])


def test_every_iteration_of_a_loop_counts() -> None:
    """The second iteration starts with the registers that the first one left."""
    lines = ["UMOV UR10, UR6", ".L_x_0:", OF_REGISTERS, "ULDC UR10, c[0x0][0x220]", "@P0 BRA `(.L_x_0)"]
    assert misplaced(listing(*lines)) == [OF_REGISTERS]
    assert misplaced(listing(*lines[:3], "UIADD3 UR10, UR10, 0x2, URZ", lines[4])) == []


def test_the_first_operand_counts_unless_it_is_in_registers() -> None:
    lines = "UMOV UR10, UR6", "ULDC UR8, c[0x0][0x220]"
    assert misplaced(listing(*lines, PRODUCT)) == [PRODUCT]
    assert misplaced(listing(*lines, OF_REGISTERS)) == []


def test_instructions_that_multiply_nothing_are_ignored() -> None:
    waits = "HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0"
    assert misplaced(listing(waits)) == []


@pytest.mark.parametrize("sass", ["", "        /*0000*/    EXIT ;", PRODUCT])
def test_text_that_cannot_be_judged_is_refused(sass: str) -> None:
    with pytest.raises(ValueError, match="products by wgmma"):
        misplaced(sass)
