"""Layouts agree with the vendors' published fragments and with the definitions of the attributes."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import triton
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench import compat
from workbench.coords import TileDistributionEncoding
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    UnknownNameError,
    WorkerError,
)
from workbench.lens import layout
from workbench.lens.layout import Layout, Place, Spread
from workbench.runtime.compiler import worker

if TYPE_CHECKING:
    from tests.machine import Machine

BLOCKED = (
    "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [4, 1], order = [1, 0]}>"
)
SWIZZLED = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
LINEAR = (
    "#ttg.linear<{register = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]], "
    "lane = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 32]], warp = [[16, 0], [32, 0]], block = []}>"
)

# Triton 3.7 changed the spelling of the WMMA attribute.
ONE_WARP = "warpsPerCTA = [1, 1]" if triton.__version__.startswith("3.6.") else "ctaLayout = {warp = []}"


def mma(version: int, warps: tuple[int, int], shape: tuple[int, ...]) -> str:
    return (
        f"#ttg.nvidia_mma<{{versionMajor = {version}, versionMinor = 0, warpsPerCTA = {list(warps)}, "
        f"instrShape = {list(shape)}}}>"
    )


def mfma(shape: tuple[int, int, int], *, warps: tuple[int, int] = (1, 1), transposed: bool = False) -> str:
    return (
        f"#ttg.amd_mfma<{{version = 3, warpsPerCTA = {list(warps)}, instrShape = {list(shape)}, "
        f"isTransposed = {str(transposed).lower()}}}>"
    )


def wmma(version: int) -> str:
    return f"#ttg.amd_wmma<{{version = {version}, isTranspose = false, {ONE_WARP}}}>"


def operand(number: int, parent: str, k_width: int) -> str:
    return f"#ttg.dot_op<{{opIdx = {number}, parent = {parent}, kWidth = {k_width}}}>"


# (warp, lane, register) -> (row, column), for each lane and register of an instruction.
Published = Callable[[int, int, int], tuple[int, int]]


def ptx_a(warp: int, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row + 16 * warp, thread * 2 + (i & 1) + (0 if i < 4 else 8)


def ptx_b(warp: int, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return thread * 2 + (i & 1) + (0 if i < 2 else 8), group


def ptx_accumulator(warp: int, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


def wgmma_accumulator(warp: int, lane: int, i: int) -> tuple[int, int]:
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), 2 * (lane % 4) + i % 2 + 8 * (i // 4)


CASES = [
    # PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": A, B and C/D of .f16.
    (operand(0, mma(2, (1, 1), (16, 8)), 2), (16, 16), "sm_80", ptx_a),
    (operand(1, mma(2, (1, 1), (16, 8)), 2), (16, 8), "sm_80", ptx_b),
    (mma(2, (1, 1), (16, 8)), (16, 8), "sm_120", ptx_accumulator),
    # PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16", the figures of A in registers and of D; D in
    # CUTLASS is CLayout_64xN = ((4,8,4),(2,2,N/8)):((128,1,16),(64,8,512)) (mma_traits_sm90_gmma.hpp).
    (operand(0, mma(3, (4, 1), (16, 64, 16)), 2), (64, 16), "sm_90", ptx_a),
    (mma(3, (4, 1), (16, 8, 16)), (64, 8), "sm_90", wgmma_accumulator),
    (mma(3, (4, 1), (16, 64, 16)), (64, 64), "sm_90", wgmma_accumulator),
    (mma(3, (4, 1), (16, 256, 16)), (64, 256), "sm_90", wgmma_accumulator),
    # AMD lab notes, "AMD matrix cores", mfma_fp32_32x32x8fp16.cpp: A, B and D of V_MFMA_F32_32X32X8F16.
    (operand(0, mfma((32, 32, 8)), 4), (32, 8), "gfx942", lambda w, t, i: (t % 32, i + t // 32 * 4)),
    (operand(1, mfma((32, 32, 8)), 4), (8, 32), "gfx942", lambda w, t, i: (i + t // 32 * 4, t % 32)),
    (
        mfma((32, 32, 8)),
        (32, 32),
        "gfx942",
        lambda w, t, i: (i % 4 + t // 32 * 4 + i // 4 * 2 * 4, t % 32),
    ),
    # The same, mfma_fp32_16x16x16fp16.cpp: A, B and D of V_MFMA_F32_16X16X16F16.
    (operand(0, mfma((16, 16, 16)), 4), (16, 16), "gfx90a", lambda w, t, i: (t % 16, i + t // 16 * 4)),
    (operand(1, mfma((16, 16, 16)), 4), (16, 16), "gfx90a", lambda w, t, i: (i + t // 16 * 4, t % 16)),
    (mfma((16, 16, 16)), (16, 16), "gfx942", lambda w, t, i: (i + t // 16 * 4, t % 16)),
    # The compiler's transposed result is that of B A, with the operands exchanged.
    (
        mfma((32, 32, 8), transposed=True),
        (32, 32),
        "gfx942",
        lambda w, t, i: (t % 32, i % 4 + t // 32 * 4 + i // 4 * 2 * 4),
    ),
    # AMD GPUOpen, "How to accelerate AI applications on RDNA 3 using WMMA": lanes 16 to 31 repeat A and B;
    # row r = ele * 2 + (lIdx / 16) of C.
    (operand(0, wmma(1), 16), (16, 16), "gfx1100", lambda w, t, i: (t % 16, i)),
    (operand(1, wmma(1), 16), (16, 16), "gfx1100", lambda w, t, i: (i, t % 16)),
    (wmma(1), (16, 16), "gfx1100", lambda w, t, i: (i * 2 + t // 16, t % 16)),
    # AMD GPUOpen, "Using the Matrix Cores of AMD RDNA 4 architecture GPUs": ele + laneGroup * 8 along K of A
    # and B and along the rows of C.
    (operand(0, wmma(2), 8), (16, 16), "gfx1201", lambda w, t, i: (t % 16, i + t // 16 * 8)),
    (operand(1, wmma(2), 8), (16, 16), "gfx1201", lambda w, t, i: (i + t // 16 * 8, t % 16)),
    (wmma(2), (16, 16), "gfx1201", lambda w, t, i: (i + t // 16 * 8, t % 16)),
]


@pytest.mark.parametrize(("attribute", "shape", "target", "published"), CASES)
def test_layouts_of_matrix_instructions_agree_with_published_tables(
    attribute: str, shape: tuple[int, int], target: str, published: Published
) -> None:
    found = layout.of(attribute, shape, target=target)
    for warp, lane, register in np.ndindex(found.warps, found.lanes, found.registers):
        assert found.element(warp, lane, register) == published(warp, lane, register)


def places(found: Layout) -> Iterator[Place]:
    counts = (found.warps, found.lanes, found.registers)
    return (Place(*place) for place in np.ndindex(*counts))


@pytest.mark.parametrize(
    ("attribute", "shape", "target"),
    [
        (BLOCKED, (16, 64), "sm_90"),
        (BLOCKED, (2, 4), "sm_90"),  # smaller than the layout: most places hold copies
        (LINEAR, (64, 64), "sm_100"),  # as a fifth-generation result is loaded from tensor memory
        (f"#ttg.slice<{{dim = 0, parent = {BLOCKED}}}>", (64,), "sm_90"),
        (wmma(1), (16, 16), "gfx1100"),
        (mma(2, (2, 2), (16, 8)), (32, 32), "sm_80"),
    ],
)
def test_holders_and_elements_are_inverse(attribute: str, shape: tuple[int, ...], target: str) -> None:
    found = layout.of(attribute, shape, target=target)
    holders: dict[tuple[int, ...], list[Place]] = {index: [] for index in np.ndindex(shape)}
    for place in places(found):
        assert found.element(*place) == tuple(found.elements[place])
        holders[found.element(*place)].append(place)
    for index, held in holders.items():
        assert list(found.holders(*index)) == held
        assert (found.warp[index], found.lane[index], found.register[index]) == held[0]


def blocked(
    size: tuple[int, ...], threads: tuple[int, ...], warps: tuple[int, ...], order: tuple[int, ...]
) -> str:
    return (
        f"#ttg.blocked<{{sizePerThread = {list(size)}, threadsPerWarp = {list(threads)}, "
        f"warpsPerCTA = {list(warps)}, order = {list(order)}}}>"
    )


def split(number: int, lengths: tuple[int, ...], order: tuple[int, ...]) -> dict[int, int]:
    """Return a number's coordinate in each dimension, of these lengths; dimension order[0] is the fastest."""
    found = {}
    for dimension in order:
        found[dimension] = number % lengths[dimension]
        number //= lengths[dimension]
    return found


def powers_of_two(product: int, rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    powers = [1 << n for n in range(product.bit_length())]
    choices = [each for each in itertools.product(powers, repeat=rank) if math.prod(each) == product]
    return st.sampled_from(choices)


@st.composite
def blocked_layouts(draw: st.DrawFn) -> tuple[Any, ...]:
    rank = draw(st.integers(1, 3))
    size = draw(powers_of_two(draw(st.sampled_from([1, 2, 4, 8])), rank))
    threads = draw(powers_of_two(32, rank))
    warps = draw(powers_of_two(draw(st.sampled_from([1, 2, 4])), rank))
    order = tuple(draw(st.permutations(range(rank))))
    shape = tuple(draw(st.sampled_from([1, 2, 8, 32, 64])) for _ in range(rank))
    assume(math.prod(shape) <= 4096)
    return size, threads, warps, order, shape


@given(blocked_layouts())
def test_blocked_layouts_agree_with_their_definition(drawn: tuple[Any, ...]) -> None:
    # The definition (Triton, TritonGPUAttrDefs.td, BlockedEncodingAttr): a thread holds a block of
    # sizePerThread elements; threads, then warps are laid side by side in the order given; what they cover is
    # repeated over a larger tile, and a smaller one is repeated over them.
    size, threads, warps, order, shape = drawn
    found = layout.of(blocked(size, threads, warps, order), shape, target="sm_90")
    covered = [s * t * w for s, t, w in zip(size, threads, warps, strict=True)]
    repeats = tuple(max(1, length // c) for length, c in zip(shape, covered, strict=True))
    for warp, lane in np.ndindex(found.warps, found.lanes):
        w, t = split(warp, warps, order), split(lane, threads, order)
        expected = []
        for r, s in itertools.product(range(math.prod(repeats)), range(math.prod(size))):
            repeat, value = split(r, repeats, order), split(s, size, order)
            index = [((repeat[d] * warps[d] + w[d]) * threads[d] + t[d]) * size[d] + value[d] for d in order]
            expected.append(tuple(index[order.index(d)] % shape[d] for d in range(len(shape))))
        held = [tuple(map(int, index)) for index in found.elements[warp, lane]]
        # Triton 3.9 leaves out the registers that would hold copies.
        assert held in (expected, list(dict.fromkeys(expected)))


def test_slice_drops_a_dimension_of_its_parent() -> None:
    parent = layout.of(BLOCKED, (16, 64), target="sm_90")
    for dim, length in [(0, 64), (1, 16)]:
        found = layout.of(f"#ttg.slice<{{dim = {dim}, parent = {BLOCKED}}}>", (length,), target="sm_90")
        for warp, lane in np.ndindex(4, 32):
            kept = {int(index[1 - dim]) for index in parent.elements[warp, lane]}
            assert {int(index[0]) for index in found.elements[warp, lane]} == kept


def test_linear_has_the_bases_of_its_text() -> None:
    found = layout.of(LINEAR, (64, 64), target="sm_100")
    assert found.register_bases == ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16))
    assert found.lane_bases == ((1, 0), (2, 0), (4, 0), (8, 0), (0, 32))
    assert found.warp_bases == ((16, 0), (32, 0))


def test_tables_of_a_large_tile_take_less_than_20_ms(machine: Machine) -> None:
    def tables(found: Layout) -> None:
        assert found.warp.shape == found.lane.shape == found.register.shape == (128, 128)

    packed = pickle.dumps(layout.of(BLOCKED, (128, 128), target="sm_90"))
    assert machine.least_seconds([partial(tables, pickle.loads(packed)) for _ in range(5)]) < 0.02


def test_tables_of_a_long_column_agree_with_the_definition() -> None:
    """numpy 2.3's unravel_index is wrong for arrays of shape (16384, 1), so the tables avoid them."""
    text = "#ttg.blocked<{sizePerThread=[1,1],threadsPerWarp=[32,1],warpsPerCTA=[4,1],order=[0,1]}>"
    found, row = layout.of(text, (16384, 1), target="sm_90"), np.arange(16384)[:, None]
    assert (found.lane == row % 32).all()
    assert (found.warp == row // 32 % 4).all()
    assert (found.register == row // 128).all()


def test_tables_cannot_be_changed() -> None:
    found = layout.of(BLOCKED, (16, 64), target="sm_90")
    for table in (
        found.elements,
        found.warp,
        layout.shared(SWIZZLED, (64, 64), target="sm_80", dtype_bits=16).offsets,
    ):
        with pytest.raises(ValueError, match="read-only"):
            table[0, 0] = 1


def test_layouts_can_be_pickled_and_have_a_short_repr() -> None:
    found = layout.of(BLOCKED, (16, 64), target="sm_90")
    assert pickle.loads(pickle.dumps(found)) == found
    assert repr(found) == f"Layout({BLOCKED}, 16 × 64: 4 warps × 32 lanes × 8 registers)"
    memory = layout.shared(SWIZZLED, (64, 64), target="sm_80", dtype_bits=16)
    assert pickle.loads(pickle.dumps(memory)) == memory
    assert repr(memory) == f"SharedLayout({SWIZZLED}, 64 × 64 of 16 bits)"


power = st.sampled_from([1, 2, 4, 8])


@given(power, power, power, st.booleans(), st.sampled_from([8, 16, 32]), st.booleans())
def test_swizzled_layouts_agree_with_their_definition(
    vec: int, per_phase: int, max_phase: int, column_major: bool, bits: int, rotating: bool
) -> None:
    # The definitions (Triton, TritonGPUAttrDefs.td): in row r the vector v lies at v ^ phase, where the phase
    # of swizzled_shared is (r / perPhase) % maxPhase; that of amd_rotating_shared is this exclusive or
    # (r / (perPhase * maxPhase)) % maxPhase.
    rows, columns = 64, 64
    order = [0, 1] if column_major else [1, 0]
    name = "amd_rotating_shared" if rotating else "swizzled_shared"
    attribute = (
        f"#ttg.{name}<{{vec = {vec}, perPhase = {per_phase}, maxPhase = {max_phase}, order = {order}}}>"
    )
    found = layout.shared(attribute, (rows, columns), target="gfx942", dtype_bits=bits)
    row, column = np.indices((rows, columns))
    if column_major:
        row, column = column, row
    phase = row // per_phase % max_phase
    if rotating:
        phase = phase ^ (row // (per_phase * max_phase) % max_phase)
    swizzled = (column // vec ^ phase) * vec + column % vec
    np.testing.assert_array_equal(found.offsets, (row * columns + swizzled) * bits // 8)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("shape", [(8, 128), (64, 128), (512, 256)])
@pytest.mark.parametrize("transposed", [False, True])
def test_nvmma_layouts_agree_with_the_ptx_swizzling_modes(
    swizzle: int, bits: int, shape: tuple[int, int], transposed: bool
) -> None:
    # PTX ISA, "Swizzling Modes": rows of 128, 64 or 32 bytes; of a byte's address, bits 7 to 9 (7 to 8, 7)
    # are added by exclusive or to bits 4 to 6 (4 to 5, 4). In CuTe Swizzle<3,4,3>, <2,4,3> and <1,4,3>.
    attribute = (
        f"#ttg.nvmma_shared<{{swizzlingByteWidth = {swizzle}, transposed = {str(transposed).lower()}, "
        f"elementBitWidth = {bits}}}>"
    )
    rows, columns = shape
    found = layout.shared(
        attribute, (columns, rows) if transposed else shape, target="sm_90", dtype_bits=bits
    )
    row, column = np.indices(shape)
    byte = column * bits // 8
    # All rows of as many columns as the swizzle is wide, then the next columns; a transposed tile goes box by
    # box of 256 rows.
    box = min(rows, 256) if transposed else rows
    stripe = row // box * (columns * bits // 8 // swizzle) + byte // swizzle
    linear = (stripe * box + row % box) * swizzle + byte % swizzle
    expected = linear ^ (linear >> 3 & swizzle - 16)
    np.testing.assert_array_equal(found.offsets.T if transposed else found.offsets, expected)


@pytest.mark.parametrize(
    ("swizzle", "bits", "shape", "transposed"),
    [
        (128, 16, (64, 64), False),
        (128, 8, (512, 512), False),  # beyond the 256 rows of a box
        (64, 16, (32, 128), True),
        (32, 32, (2, 8, 64), False),  # a batch
        (0, 16, (16, 512), False),
        (0, 16, (512, 512), False),
        (0, 16, (1024,), False),
    ],
)
def test_stand_in_for_nvmma_agrees_with_the_compiler(
    swizzle: int, bits: int, shape: tuple[int, ...], transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stand-in for the compiler of Triton 3.6 agrees with the compiler of this version where that answers.
    rank = f", rank = {len(shape)}" if len(shape) != 2 else ""
    attribute = (
        f"#ttg.nvmma_shared<{{swizzlingByteWidth = {swizzle}, transposed = {str(transposed).lower()}, "
        f"elementBitWidth = {bits}{rank}}}>"
    )
    told = layout.shared(attribute, shape, target="sm_90", dtype_bits=bits).offset_bases
    parameters = SimpleNamespace(
        swizzle_byte_width=swizzle, element_bitwidth=bits, transposed=transposed, fp4_padded=False
    )
    monkeypatch.setattr(compat, "compiler_tells_shared_layouts", lambda: False)
    assert layout._nvmma(None, parameters, shape) == told


def test_stand_in_for_swizzled_agrees_with_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    attribute = "#ttg.swizzled_shared<{vec = 4, perPhase = 2, maxPhase = 8, order = [2, 0, 1]}>"
    told = layout.shared(attribute, (16, 2, 64), target="sm_80", dtype_bits=16).offset_bases
    parameters = SimpleNamespace(vec=4, per_phase=2, max_phase=8, order=[2, 0, 1])
    monkeypatch.setattr(compat, "compiler_tells_shared_layouts", lambda: False)
    assert layout._swizzled(None, parameters, (16, 2, 64), is_rotating=False) == told


def test_nvmma_without_swizzle_is_row_major() -> None:
    attribute = "#ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 16}>"
    found = layout.shared(attribute, (16, 64), target="sm_90", dtype_bits=16)
    np.testing.assert_array_equal(found.offsets, 2 * np.arange(16 * 64).reshape(16, 64))


def test_a_padded_layout_agrees_with_the_example_of_gluon() -> None:
    # Triton, gluon's PaddedSharedLayout: rows 0, 2, then 4, 6, then 1, 3, then 5, 7; an element free between.
    attribute = "#ttg.padded_shared<[8:+1] {offset = [[0, 1], [0, 2], [2, 0], [4, 0], [1, 0]], block = []}>"
    found = layout.shared(attribute, (8, 4), target="gfx942", dtype_bits=32)
    lines = {0: 0, 2: 4, 4: 9, 6: 13, 1: 18, 3: 22, 5: 27, 7: 31}
    for (row, column), offset in np.ndenumerate(found.offsets):
        assert offset == 4 * (lines[row] + column) == found.offset(row, column)
        assert found.element(int(offset) + 3) == (row, column)
    assert found.bytes == 4 * 35
    with pytest.raises(
        InvalidArgumentError, match=r"byte 32, which holds no element\. Give 0 to 139, and no padding"
    ):
        found.element(4 * 8)
    plain = layout.shared(SWIZZLED, (64, 64), target="sm_80", dtype_bits=16)
    with pytest.raises(InvalidArgumentError, match=r"byte 8192, which holds no element\. Give 0 to 8191\."):
        plain.element(8192)


def test_padding_moves_a_column_over_the_banks() -> None:
    plain = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    padded = "#ttg.padded_shared<[32:+1] {order = [1, 0], shape = [32, 32]}>"
    for attribute, banks in [(plain, 1), (padded, 32)]:
        found = layout.shared(attribute, (32, 32), target="gfx942", dtype_bits=32)
        assert len(set(found.banks()[:, 0])) == banks
    assert found.banks(64).max() == 63


def test_shared_linear_layouts_and_buffers_have_the_sizes_and_elements_of_their_text() -> None:
    attribute = "#ttg.shared_linear<{offset = [[0, 1], [1, 0], [2, 0], [0, 2]]}, alignment = 16>"
    found = layout.shared(attribute, (3, 4, 4), target="sm_90", dtype_bits=8)
    assert found.shape == (4, 4)
    assert [found.element(offset) for offset in range(5)] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert layout.shared(SWIZZLED, (3, 64, 64), target="sm_80", dtype_bits=16).bytes == 64 * 64 * 2
    barrier = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"
    assert layout.shared(barrier, (1,), target="sm_90", dtype_bits=64).bytes == 8


def test_many_layouts_take_one_request_and_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    call = worker.call

    def counted(function: Any, *args: Any, timeout: float) -> Any:
        calls.append(args)
        return call(function, *args, timeout=timeout)

    monkeypatch.setattr(layout, "_known", {})
    monkeypatch.setattr(worker, "call", counted)
    layout.prepare([(BLOCKED, (16, 64)), (BLOCKED, [32, 64]), (SWIZZLED, (64, 64))], target="sm_90")
    layout.of(BLOCKED, (16, 64), target="sm_90")
    layout.of(BLOCKED, (32, 64), target="sm_90")
    layout.shared(SWIZZLED, (64, 64), target="sm_90", dtype_bits=16)
    assert len(calls) == 1


MMA_5 = mma(5, (4, 1), (128, 64, 16))
TMEM = "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 1>"
CLUSTER = BLOCKED.replace("}>", ", CGALayout = [[1, 0]]}>")


@pytest.mark.parametrize(
    ("attribute", "shape", "said"),
    [
        ("#ttg.blockd<{}>", (16, 64), r"cannot parse #ttg.blockd<{}>: unknown attribute `blockd`"),
        ("#blocked", (16, 64), "cannot parse #blocked: undefined symbol alias id 'blocked'"),
        ("blocked", (16, 64), "attribute: got 'blocked'"),
        (blocked((1, 3), (2, 16), (4, 1), (1, 0)), (16, 64), "sizePerThread must be a power of two"),
        (BLOCKED, (16, 48), "shape: got 48, not a power of two"),
        (BLOCKED, (16,), "shape: got 16. Give 2 dimensions"),
        (BLOCKED, (2, 16, 64), "shape: got 2 × 16 × 64. Give 2 dimensions"),
        (BLOCKED, (16, 0), "shape: got 0"),
        (SWIZZLED, (64, 64), "is a layout of shared memory. Use layout.shared"),
        (MMA_5, (128, 64), "is a layout of tensor memory"),
        (TMEM, (64, 64), "is a layout of tensor memory"),
        (CLUSTER, (32, 64), "several blocks"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attribute: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        layout.of(attribute, shape, target="sm_90")


@pytest.mark.parametrize(
    ("attribute", "shape", "bits", "said"),
    [
        (SWIZZLED, (64, 64), 4, "dtype_bits: got 4"),
        (SWIZZLED, (64,), 16, "Got 2 and 1"),
        (SWIZZLED, (2, 2, 64, 64), 16, "Got 2 and 4"),
        (BLOCKED, (16, 64), 16, "is a layout of registers. Use layout.of"),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>",
            (4, 64),
            16,
            "at least 8 rows of 64 elements",
        ),
    ],
)
def test_shared_layouts_that_do_not_fit_are_refused(
    attribute: str, shape: tuple[int, ...], bits: int, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        layout.shared(attribute, shape, target="sm_90", dtype_bits=bits)


@pytest.mark.parametrize("name", ["swizzled_shared", "amd_rotating_shared"])
@pytest.mark.parametrize("parameters", [(0, 1, 8), (3, 1, 8), (8, 0, 8), (8, 1, 0), (8, 1, 3)])
def test_a_swizzle_of_no_powers_of_two_is_refused(name: str, parameters: tuple[int, int, int]) -> None:
    """The compiler would divide by zero for 0, and gives some layout for other numbers than powers of two."""
    vec, per_phase, max_phase = parameters
    attribute = (
        f"#ttg.{name}<{{vec = {vec}, perPhase = {per_phase}, maxPhase = {max_phase}, order = [1, 0]}}>"
    )
    said = f"attribute: its vec, perPhase and maxPhase are {vec}, {per_phase} and {max_phase}"
    with pytest.raises(InvalidArgumentError, match=said):
        layout.shared(attribute, (64, 64), target="gfx942", dtype_bits=16)


def test_a_tile_beyond_tritons_limit_is_refused() -> None:
    """The tables of such a tile would fill the memory of the notebook's process."""
    assert layout.of(BLOCKED, (1024, 1024), target="sm_90").registers == 8192
    with pytest.raises(InvalidArgumentError, match=r"got 1024 × 2048\. Give at most 1048576 elements"):
        layout.of(BLOCKED, (1024, 2048), target="sm_90")


def test_an_element_size_other_than_the_attributes_is_refused() -> None:
    attribute = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
    with pytest.raises(InvalidArgumentError, match=r"got 32\. Give 16: the attribute is for such elements"):
        layout.shared(attribute, (64, 64), target="sm_90", dtype_bits=32)


@pytest.mark.parametrize("number", ["0", None, 0.0, True])
def test_numbers_that_are_not_integers_are_refused(number: Any) -> None:
    found = layout.of(BLOCKED, (16, 64), target="sm_90")
    memory = layout.shared(SWIZZLED, (64, 64), target="sm_90", dtype_bits=16)
    for argument, ask in (
        ("warp", lambda: found.element(number, 0, 0)),
        ("register", lambda: found.element(0, 0, number)),
        ("index", lambda: found.holders(number, 0)),
        ("index", lambda: memory.offset(0, number)),
        ("offset", lambda: memory.element(number)),
        ("dtype_bits", lambda: layout.shared(SWIZZLED, (64, 64), target="sm_90", dtype_bits=number)),
    ):
        with pytest.raises(ArgumentTypeError, match=f"^{argument}: got {re.escape(repr(number))}, a "):
            ask()
    index: Any = np.int64(3)  # the tables have numpy's integers
    assert found.holders(index, 4) == found.holders(3, 4)


def test_equivalent_refuses_objects_of_other_types() -> None:
    encoding, found = BLOCKED_ENCODING, layout.of(BLOCKED, (16, 64), target="sm_90")
    memory = layout.shared(SWIZZLED, (16, 64), target="sm_90", dtype_bits=16)
    pairs: list[tuple[Any, Any, str]] = [
        (BLOCKED, found, "encoding"), (found, found, "encoding"), (None, found, "encoding"),
        (encoding, BLOCKED, "layout"), (encoding, memory, "layout"), (encoding, encoding, "layout"),
    ]  # fmt: skip
    for one, other, argument in pairs:
        with pytest.raises(ArgumentTypeError, match=f"^{argument}: got "):
            layout.equivalent(one, other)


@pytest.mark.parametrize(
    ("attribute", "shape"), [(5, (16, 64)), (BLOCKED, 16), (BLOCKED, ()), (BLOCKED, (16, 6.4))]
)
def test_attributes_and_shapes_of_wrong_types_are_refused(attribute: Any, shape: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        layout.of(attribute, shape, target="sm_90")


def test_unknown_targets_and_targets_of_another_warp_size_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"'sm_91' is not known. Did you mean 'sm_90'"):
        layout.of(BLOCKED, (16, 64), target="sm_91")
    with pytest.raises(InvalidArgumentError, match=r"gfx942 has warps of 64 lanes .* has 32"):
        layout.of(BLOCKED, (16, 64), target="gfx942")


@pytest.mark.parametrize(
    ("attribute", "shape", "down", "along"),
    [
        (BLOCKED, (16, 64), Spread(4, 2, 2), Spread(1, 16, 4)),
        (mma(3, (4, 1), (16, 64, 16)), (64, 64), Spread(4, 8, 2), Spread(1, 4, 16)),
        # Every lane has a copy of the single row.
        (blocked((1, 1), (32, 1), (4, 1), (1, 0)), (1, 4), Spread(4, 32, 1), Spread(4, 32, 4)),
    ],
)
def test_a_row_and_a_column_are_spread_over_lanes_and_warps(
    attribute: str, shape: tuple[int, int], down: Spread, along: Spread
) -> None:
    found = layout.of(attribute, shape, target="sm_90")
    assert (found.spread(0), found.spread(1)) == (down, along)


def test_spread_refuses_dimensions_that_the_layout_lacks() -> None:
    found = layout.of(BLOCKED, (16, 64), target="sm_90")
    for dimension in (2, -1):
        with pytest.raises(InvalidArgumentError, match=rf"dimension: got {dimension}\. Give 0 to 1"):
            found.spread(dimension)
    with pytest.raises(ArgumentTypeError, match=r"dimension: got 1\.0"):
        found.spread(1.0)  # type: ignore[arg-type]


def test_indices_and_lanes_that_do_not_exist_are_refused() -> None:
    found = layout.of(BLOCKED, (16, 64), target="sm_90")
    with pytest.raises(InvalidArgumentError, match=r"index: got \(16, 0\)"):
        found.holders(16, 0)
    with pytest.raises(InvalidArgumentError, match=r"index: got \(1\)"):
        found.holders(1)
    with pytest.raises(
        InvalidArgumentError, match=r"lane: got 32\. Give 0 to 31: the layout has 4 warps × 32 lanes"
    ):
        found.element(0, 32, 0)


def test_a_crash_of_the_compiler_raises_an_error_with_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    # No instruction has 7 columns; Triton aborts on it.
    crashes = mma(3, (4, 1), (16, 7, 16))
    shape = (32, 1024)  # not used elsewhere
    with pytest.raises(WorkerError, match=r"no answer for .*instrShape = \[16, 7, 16\].*: Assertion"):
        layout.prepare([(BLOCKED, shape), (crashes, (64, 64))], target="sm_90")
    assert layout.of(BLOCKED, shape, target="sm_90").registers == 256
    assert "Assertion" not in capfd.readouterr().err


# ck_tile, as in tests/coords/test_distribution.py: the accumulator and operand A of v_mfma_f32_32x32x8_f16.
CK_ACCUMULATOR = TileDistributionEncoding((), ((4, 2, 4), (32,)), ((1, 2),), ((1, 0),), (1, 1), (0, 2))
CK_OPERAND = TileDistributionEncoding((), ((32,), (2, 4)), ((2, 1),), ((0, 0),), (2,), (1,))
# The accumulator in a block of 2 x 2 warps with 2 x 2 steps each.
CK_BLOCK = TileDistributionEncoding(
    (), ((2, 2, 4, 2, 4), (2, 2, 32)), ((1, 2), (1, 2)), ((1, 1), (3, 2)), (1, 2, 1, 1), (0, 0, 2, 4)
)
# WmmaTraits16BitBase<gfx11_t>: operand A, which both halves of the wave hold, and the accumulator; then that
# of WmmaTraits16BitBase<gfx12_t>.
CK_RDNA3_OPERAND = TileDistributionEncoding(
    (2,), ((16,), (1, 1, 16)), ((0, 2, 1),), ((0, 1, 0),), (2, 2), (0, 2)
)
CK_RDNA3_ACCUMULATOR = TileDistributionEncoding((), ((8, 2, 1), (16,)), ((1, 2),), ((1, 0),), (1, 1), (0, 2))
CK_RDNA4_ACCUMULATOR = TileDistributionEncoding((), ((1, 2, 8), (16,)), ((1, 2),), ((1, 0),), (1, 1), (0, 2))
# BLOCKED on 16 x 64: X[0] = (repetition, warp, lane), X[1] = (lane, value).
BLOCKED_ENCODING = TileDistributionEncoding(
    (), ((2, 4, 2), (16, 4)), ((1,), (1, 2)), ((1,), (2, 0)), (1, 2), (0, 1)
)


@pytest.mark.parametrize(
    ("encoding", "attribute", "target"),
    [
        (BLOCKED_ENCODING, BLOCKED, "sm_90"),
        (CK_ACCUMULATOR, mfma((32, 32, 8)), "gfx942"),
        (CK_OPERAND, operand(0, mfma((32, 32, 8)), 4), "gfx942"),
        (CK_BLOCK, mfma((32, 32, 8), warps=(2, 2)), "gfx942"),
        (CK_RDNA3_OPERAND, operand(0, wmma(1), 16), "gfx1100"),
        (CK_RDNA3_ACCUMULATOR, wmma(1), "gfx1100"),
        (CK_RDNA4_ACCUMULATOR, wmma(2), "gfx1201"),
    ],
)
def test_equivalent_encodings_and_layouts_are_recognized(
    encoding: TileDistributionEncoding, attribute: str, target: str
) -> None:
    answer = layout.equivalent(encoding, layout.of(attribute, encoding.lengths, target=target))
    assert answer, answer.reason
    assert answer.element is None


def test_the_first_different_element_is_named() -> None:
    found = layout.of(mfma((32, 32, 8), transposed=True), (32, 32), target="gfx942")
    answer = layout.equivalent(CK_ACCUMULATOR, found)
    assert not answer
    assert answer.element == (0, 1)  # (0, 0) is in lane 0, register 0 of both
    assert answer.encoding_places == (Place(0, 1, 0),)
    assert answer.layout_places == (Place(0, 0, 1),)
    assert str(answer) == (
        "Element (0, 1): the encoding has it in warp 0, lane 1, register 0; "
        "the layout in warp 0, lane 0, register 1."
    )


def test_encodings_with_another_order_of_registers_differ() -> None:
    # The same lanes with Y exchanged: the encoding numbers its registers in another order.
    exchanged = TileDistributionEncoding((), ((4, 2, 4), (32,)), ((1, 2),), ((1, 0),), (1, 1), (2, 0))
    answer = layout.equivalent(exchanged, layout.of(mfma((32, 32, 8)), (32, 32), target="gfx942"))
    assert (answer.element, answer.encoding_places, answer.layout_places) == (
        (1, 0),
        (Place(0, 0, 4),),
        (Place(0, 0, 1),),
    )


def test_an_element_in_a_wrong_lane_is_reported_with_both_places() -> None:
    # Copies in other lanes: the encoding repeats A in odd and even lanes, RDNA 3 in the halves of the wave.
    wrong = TileDistributionEncoding((2,), ((16,), (1, 1, 16)), ((2, 1, 0),), ((1, 0, 0),), (2, 2), (0, 2))
    answer = layout.equivalent(wrong, layout.of(operand(0, wmma(1), 16), (16, 16), target="gfx1100"))
    assert answer.element == (0, 0)
    assert answer.reason == (
        "Element (0, 0): the encoding has it in warp 0, lane 0, register 0 and warp 0, lane 1, register 0; "
        "the layout in warp 0, lane 0, register 0 and warp 0, lane 16, register 0."
    )


def test_encodings_of_other_lanes_differ_and_of_other_tiles_are_refused() -> None:
    found = layout.of(wmma(1), (32, 32), target="gfx1100")
    answer = layout.equivalent(CK_ACCUMULATOR, found)
    assert (bool(answer), answer.element) == (False, None)
    assert answer.reason == "The encoding has 64 lanes, the layout 32."
    with pytest.raises(TensorMismatchError, match="its tile is 32 × 8, the layout's 32 × 32"):
        layout.equivalent(CK_OPERAND, found)
