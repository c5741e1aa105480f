"""Instances of the matrix product: which tile, template and split a product gets that nobody has tuned.

An instance of a device that was measured knows how long a step along K of one tile takes on one compute
unit; from that the time of any product is predicted, and the instance that promises the least is taken. For
other devices there are instances too, without times: taken is the largest tile that keeps every unit busy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
import triton

from workbench import device
from workbench.device import Device
from workbench.errors import InvalidArgumentError, TensorMismatchError
from workbench.kernels import epilogues, gemm, reference
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide
from workbench.operators import operation

# Bytes of a line of the L2 cache, which is also what TMA's widest swizzle spans.
LINE_BYTES = 128


@dataclass(frozen=True)
class Instance:
    """A configuration of `gemm.launch`.

    Attributes:
        name: says template and tile.
        rows, cols: of the output's tile.
        row_bytes: of a tile of A or B along K.
        num_warps, num_stages, template: as `gemm.launch` takes them.
        step_ns: how long a unit takes for one step along K of one tile, in nanoseconds; None if not measured.
        first_ns, next_ns: what a unit's first tile takes beside its steps, and each one after it: of 16-bit
            results; of wider ones longer where nothing is loaded meanwhile.
        together: programs that a unit has at a time, where a last one alone takes as long as all of them.
    """

    name: str
    rows: int
    cols: int
    row_bytes: int
    num_warps: int
    num_stages: int
    template: str
    step_ns: float | None = None
    first_ns: float = 0
    next_ns: float = 0
    together: int = 1


# Fitted, by least squares and then by hand, to tuning runs on an H200 (2026-11-21 and 22, Triton 3.6, fp16,
# graphs) over 13 shapes. Those runs are not in a recording. Mended by hand after races on H200s (2026-11-26):
# 384 tiles of simple_128x128, of which a unit has two at a time, take as long as 528 (2048 x 3072 x 4096, 88
# us; 3072^3, 576 tiles, 100); simple_64x128 has three (1536^3 15.4, 1024 x 3072 x 1024 12.2, 2304 x 2304 x
# 768 17.5); and 2304 tiles of simple_64x64 with one step take 17.7 (3072 x 3072 x 128).
HOPPER = (
    Instance("persistent_128x256", 128, 256, 128, 8, 3, "persistent", 680, 1700, 1700),
    Instance("simple_128x256_deep", 128, 256, 128, 8, 4, "simple", 690, 600, 3200),
    Instance("simple_128x256", 128, 256, 128, 8, 3, "simple", 690, 600, 3200),
    Instance("persistent_128x128", 128, 128, 128, 4, 5, "persistent", 358, 815, 815),
    Instance("persistent_64x256", 64, 256, 128, 4, 4, "persistent", 375, 790, 790),
    Instance("simple_128x128_deep", 128, 128, 128, 4, 5, "simple", 340, 420, 3500),
    Instance("simple_128x128", 128, 128, 128, 4, 3, "simple", 345, 420, 1500, 2),
    Instance("simple_64x128_deep", 64, 128, 256, 4, 4, "simple", 343, 700, 1500),
    Instance("simple_64x128_light", 64, 128, 256, 4, 3, "simple", 420, 100, 1500),
    Instance("simple_64x128", 64, 128, 128, 4, 3, "simple", 188, 400, 600, 3),
    Instance("simple_64x64", 64, 64, 256, 4, 3, "simple", 320, 60, 500),
)

# A launch; what leaving parts of splits and adding them up takes beside their bytes, and those.
LAUNCH_NS, SPLIT_NS, SPLIT_BYTES_PER_NS = 2200, 3000, 4000
MOST_SPLITS = 32

# What no tile exceeds, however many there are: lines of the L2 cache that all units load in a nanosecond
# (eight tiles, 1000^3 to 5000^3), what one takes in a unit, and FLOPs (8192^3, where the clock is low). A row
# of a tile is a line along K, and two where rows do not begin at lines.
LINES_PER_NS, LINE_NS, FLOPS_PER_NS = 105, 0.89, 740_000

# What a second launch for the rest of the rows has to gain, as a share of the time, before it is made.
# (3000^3: 100 us against 110 to 116 of the best that does without.)
WORTH_A_REST = 0.08

# Packing operands first, so that their rows begin at lines: what starting it adds, and bytes read and written
# in a nanosecond, in the L2 cache and, where operands and copies are more than it holds, in memory. (1000^3
# and 3000^3, fp16. Copies that transpose, as of tf32 NN, were not measured.)
PACK_NS, PACK_BYTES_PER_NS, PACK_BYTES_PER_NS_IN_MEMORY = 1000, 6000, 3900

# What a step takes longer where the tile of results, wider than 16 bits, takes the shared memory in which a
# second program hid the waiting of the first. (Tiles of 128 x 128, three stages, 4096^3, NT: tf32 1.27 times,
# int8 1.24.)
ALONE = 1.25

# What a step takes longer where pitches are no multiples of 16 bytes, so that elements are moved one by one
# (not measured); and where matrix units do not take operands as they lie (tf32, 4096^3, NN).
ONE_BY_ONE, OTHERWISE = 4, 4.9

# Products of few rows, which wait for B: for up to so many rows, tiles of so many columns, of so many bytes
# along K, and stages. H200, (M, 4096, 4096) for M of 1, 16 and 64.
FEW_ROWS: Sequence[tuple[int, tuple[int, ...], int, int]] = ((16, (128,), 256, 3), (64, (64, 32), 256, 5))

# Two groups of warps in turns, of which one multiplies while the other one finishes: for fp16 and bf16, whose
# rows begin at lines. Fitted by hand to times of 30 products on an H200 (2026-11-26, graphs, fp16; not in a
# recording), among them 2048 x 3072 x 4096: 72 and 70 us, where simple_128x128 takes 88; 3072^3: 86 and 79,
# not 96; 2304 x 2304 x 768: 15.7 and 16.8, not 17.2. They come first where all promise as much: 8192^3 took
# 1430 and 1470 us by the first in two races, 1530 and 1490 to 1600 by persistent_128x256.
#
# Where an epilogue loads as much as is stored, of tiles of which each unit gets one, they are taken whatever
# others promise; and for products that take less than their launch, tiles small enough to be many. (H200,
# two addends and gelu: 0.92 to 1.07 times the bare product where that is long, by the instances above 1.13 to
# 1.19.) Likewise where it computes what takes long, but loads no more than a bias. (H200, a bias and
# fast_gelu, 2048 x 3072 x 768: 20.9 us, not 26.4; eight others, 2048^3 to 4096 x 11008 x 4096: 0.80 to 0.99
# times as long. Gelu: 0.88 to 1.06 times.)
PING_PONG = (
    Instance("ping_pong_128x128", 128, 128, 128, 4, 6, "ping-pong", 325, 1500, 870),
    Instance("ping_pong_128x192", 128, 192, 128, 4, 5, "ping-pong", 505, 3300, 800),
    Instance("ping_pong_64x256", 64, 256, 128, 4, 4, "ping-pong"),
)
# What a chain that does neither adds to each tile, beside what it adds to those of simple programs. (H200, 22
# products and a row: 0.4 to 0.7 us to a tile in turns, 0.8 to 1.4 to one of persistent programs, 0.3 to 0.6
# to simple ones. 2048 x 3072 x 768 17.5 by tiles of 128 x 128 in turns, 19.5 and more by others.) Where it is
# FLOPs or lines that decide, it changes nothing.
CHAIN_NS = {"ping-pong": 100, "persistent": 600}

# Two tiles of the second where there would be three of the first, if a chain begins with adding two tensors
# of fp16, and K has this many steps. (H200, two and fast_gelu: 2048 x 3072 x 512 as long, x 768 0.94 times, x
# 1024 0.95, x 4096 0.96; one addend, up to x 1024, 1.01 to 1.05; two and gelu 27.4 us instead of 24.1.)
WIDE_STEPS = range(10, gemm_hopper.LONG_STEPS[1] + 1)
LITTLE, FLOPS_OF_LITTLE = Instance("simple_32x64", 32, 64, 128, 4, 4, "simple"), 2**23
STEPS_OF_LITTLE = 16  # more are worth splits

# Not measured; compiled, without spills, by tests/kernels/test_gemm_instances.py.
OTHERS: Mapping[str, Sequence[Instance]] = {
    "sm_80": (
        Instance("simple_128x256", 128, 256, 64, 8, 3, "simple"),
        Instance("simple_128x128", 128, 128, 64, 4, 4, "simple"),
        Instance("simple_128x64", 128, 64, 64, 4, 4, "simple"),
        Instance("simple_64x64", 64, 64, 128, 4, 3, "simple"),
        Instance("simple_32x64", 32, 64, 128, 4, 3, "simple"),
        Instance("simple_16x32", 16, 32, 256, 4, 3, "simple"),
    ),
    "gfx942": (
        Instance("simple_128x128", 128, 128, 128, 4, 2, "simple"),
        Instance("simple_128x64", 128, 64, 128, 4, 2, "simple"),
        Instance("simple_64x64", 64, 64, 128, 4, 2, "simple"),
        Instance("simple_32x64", 32, 64, 128, 4, 2, "simple"),
        Instance("simple_16x32", 16, 32, 256, 4, 2, "simple"),
    ),
}


@dataclass(frozen=True)
class Laid:
    """How A or B lies in memory, as far as the choice depends on it.

    Attributes:
        is_line_aligned: whether its rows, or columns where those are contiguous, begin at multiples of 128
            bytes.
        is_one_by_one: whether they begin at multiples of less than 16 bytes.
        suits_units: whether matrix units take it so: of 16 bits always, others with neighbors along K.
        can_describe: whether a tensor descriptor can move it.
        packed_bytes: what packing it would read and write; 0 where it cannot be done, or changes nothing.
    """

    is_line_aligned: bool = True
    is_one_by_one: bool = False
    suits_units: bool = True
    can_describe: bool = True
    packed_bytes: int = 0


@dataclass(frozen=True)
class Asked:
    """A product, as far as the choice depends on it.

    Attributes:
        m, n, k: of each product.
        batch: how many.
        are_matrices: whether all tensors are, so that none is a batch, of one either.
        itemsize, output_itemsize: bytes of an element.
        a, b: how they lie.
        uses_units: whether matrix units multiply; they do not in fp64, and in fp32 unless it is rounded.
        compute_units, l2_bytes, shared_memory_bytes: of the device; of its L2 cache; of one unit.
        architecture: such as "sm_90".
        runs_gluon: whether it runs kernels in Gluon, as those of PING_PONG are.
    """

    m: int
    n: int
    k: int
    batch: int
    are_matrices: bool
    itemsize: int
    output_itemsize: int
    a: Laid
    b: Laid
    uses_units: bool
    compute_units: int
    l2_bytes: int
    shared_memory_bytes: int
    architecture: str
    runs_gluon: bool = True

    @property
    def is_one_by_one(self) -> bool:
        """Whether elements of A or B are moved one by one."""
        return self.a.is_one_by_one or self.b.is_one_by_one

    @property
    def suits_units(self) -> bool:
        """Whether matrix units, where any multiply, take A and B as they lie."""
        return not self.uses_units or (self.a.suits_units and self.b.suits_units)

    @property
    def can_take_turns(self) -> bool:
        """Whether times of PING_PONG hold for it: results wider than the operands were not measured."""
        are_alike = self.runs_gluon and self.are_matrices and self.itemsize == self.output_itemsize == 2
        return are_alike and self.can_describe and self.a.is_line_aligned and self.b.is_line_aligned

    @property
    def can_describe(self) -> bool:
        """Whether A and B can be moved by tensor descriptors."""
        return (
            self.architecture == "sm_90" and self.batch == 1 and self.a.can_describe and self.b.can_describe
        )


def asked_of(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str = "ieee",
    here: Device | None = None,
) -> Asked:
    """The product `output = a @ b`, on this device or another.

    Args:
        a, b, output, precision: as `gemm.launch` takes them.
        here: the device to choose for; None for this one.
    """
    here = device.planned() if here is None else here
    # A product of no elements, which starts nothing, is told as one of a single row, column or batch.
    m, n, batch = (max(size, 1) for size in (*output.shape[-2:], output.shape[:-2].numel()))
    uses_units = a.dtype not in (torch.float32, torch.float64) or precision == "tf32"
    copies = gemm.packed(a, b) if a.dim() == b.dim() == 2 and uses_units else {}
    return Asked(
        m=m,
        n=n,
        k=a.shape[-1],
        batch=batch,
        are_matrices=a.dim() == b.dim() == output.dim() == 2,
        itemsize=a.element_size(),
        output_itemsize=output.element_size(),
        a=_laid(a, -1, copies.get("a")),
        b=_laid(b, -2, copies.get("b")),
        uses_units=uses_units,
        compute_units=here.compute_units,
        l2_bytes=here.l2_bytes,
        shared_memory_bytes=here.shared_memory_bytes,
        architecture=here.architecture,
        runs_gluon=here.runs_gluon,
    )


def _laid(matrix: torch.Tensor, along_k: int, copy: torch.Tensor | None) -> Laid:
    pitch = max(matrix.stride()[-2:]) * matrix.element_size()
    return Laid(
        is_line_aligned=pitch % LINE_BYTES == 0,
        is_one_by_one=pitch % 16 != 0,
        suits_units=matrix.element_size() == 2 or matrix.stride(along_k) == 1,
        can_describe=gemm.descriptor_of(matrix, (16, 16)) is not None,
        packed_bytes=0 if copy is None else 2 * copy.numel() * matrix.element_size(),
    )


def chosen(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str) -> dict[str, Any]:
    """What `gemm.launch` is to be given for `output = a @ b` on this device."""
    return choose(asked_of(a, b, output, precision))


def chosen_for_chain(
    chain: Epilogue, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str
) -> dict[str, Any]:
    """The same where a chain follows."""
    shape = tuple(output.shape)
    loads = chain.loads_matrices(shape)
    if not chain.takes_turns:
        return choose(asked_of(a, b, output, precision), takes_turns=False)
    if not (loads or chain.takes_long):
        return choose(asked_of(a, b, output, precision), is_followed=True)
    added = [gemm.descriptor_of(each, (16, 16)) for each in chain.added_by_wide_tiles(shape)]
    are_brought = bool(added) and all(one is not None and not one.is_transposed for one in added)
    return chosen_for_followed(a, b, output, precision, loads=loads, may_be_wide=are_brought)


def chosen_for_sum(
    addend: torch.Tensor, alpha: float, beta: float, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor,
    precision: str,
) -> dict[str, Any]:  # fmt: skip
    """The same of `alpha * (a @ b) + beta * addend`."""
    return chosen_for_chain(epilogues.add_scaled(addend, alpha, beta), a, b, output, precision)


def chosen_for_followed(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str,
    *,
    loads: bool = True,
    may_be_wide: bool = False,
) -> dict[str, Any]:
    """The same where an epilogue loads tensors of the output's shape, or computes what takes long.

    Args:
        loads: whether it does. may_be_wide: whether it adds two first that tiles of 192 columns bring.
    """
    asked = asked_of(a, b, output, precision)
    if asked.architecture != "sm_90" or not asked.are_matrices or not asked.can_describe:
        return choose(asked, takes_turns=False)
    if asked.output_itemsize > 4:  # two tiles of 64 bits are more than shared memory holds beside the stages
        return choose(asked, takes_turns=False)
    first, wide, _ = PING_PONG
    are_whole = asked.m >= first.rows and asked.n >= first.cols
    are_lines = asked.a.is_line_aligned and asked.b.is_line_aligned
    is_long = are_whole and are_lines and _tiles(first, asked) >= asked.compute_units
    is_long = is_long and (loads or asked.output_itemsize == asked.itemsize)
    if is_long and asked.runs_gluon and not gemm.why_not_ping_pong(a, b):
        if loads:
            rounds = [-(-_tiles(each, asked) // asked.compute_units) for each in (first, wide)]
            is_wide = may_be_wide and output.dtype == torch.float16 and _steps(wide, asked) in WIDE_STEPS
            is_wide = is_wide and rounds == [3, gemm_hopper_wide.MOST_TILES]
        else:
            times = {each.name: predicted_ns(each, 1, asked) for each in _in_turns(asked)}
            is_wide = times.get(wide.name, math.inf) < times.get(first.name, 0)
        return _keywords(wide if is_wide else first, asked, 1)
    if not loads:
        return choose(asked, is_followed=True)
    is_little = 2 * asked.m * asked.n * asked.k <= FLOPS_OF_LITTLE
    if asked.itemsize == 2 and is_little and _steps(LITTLE, asked) <= STEPS_OF_LITTLE:
        return _keywords(LITTLE, asked, 1)
    return choose(asked, takes_turns=False)


def choose(asked: Asked, *, takes_turns: bool = True, is_followed: bool = False) -> dict[str, Any]:
    """What `gemm.launch` is to be given for a product.

    Args:
        takes_turns: whether what follows suits PING_PONG. is_followed: whether a chain does, by CHAIN_NS.
    """
    if asked.architecture != "sm_90":
        return _by_size(OTHERS.get(asked.architecture, OTHERS["sm_80"]), asked)
    if min(asked.m, asked.n) == asked.m <= FEW_ROWS[-1][0] and asked.batch == 1:
        return _of_few_rows(asked)
    turns = _in_turns(asked) if takes_turns else []
    ways: list[tuple[float, int, dict[str, Any]]] = []
    for names in ((), ("b",), ("a",), ("a", "b")):
        moved = [each.packed_bytes for name, each in (("a", asked.a), ("b", asked.b)) if name in names]
        if all(moved):
            a, b = (Laid() if name in names else each for name, each in (("a", asked.a), ("b", asked.b)))
            time, found = _fastest(replace(asked, a=a, b=b), () if names else turns, is_followed)
            found |= {"pack": names} if names else {}
            ways.append((time + _packing_ns(sum(moved), asked), len(ways), found))
    return min(ways)[2]


def _in_turns(asked: Asked) -> list[Instance]:
    """Those of PING_PONG that were measured, and take the product."""
    return [
        each
        for each in PING_PONG
        if asked.can_take_turns and each.step_ns is not None
        if asked.m >= each.rows and asked.n >= each.cols
        if each is not PING_PONG[1] or _steps(each, asked) >= gemm_hopper_wide.FEWEST_STEPS
    ]


def _packing_ns(bytes_moved: int, asked: Asked) -> float:
    fits = bytes_moved <= asked.l2_bytes
    rate = PACK_BYTES_PER_NS if fits else PACK_BYTES_PER_NS_IN_MEMORY
    return PACK_NS + bytes_moved / rate if bytes_moved else 0.0


def _fastest(asked: Asked, turns: Sequence[Instance], is_followed: bool) -> tuple[float, dict[str, Any]]:
    """What promises the least time on Hopper, `turns` among it, and what it promises."""
    fitting = [
        each for each in _for_units(HOPPER, asked) if _shared_bytes(each, asked) <= asked.shared_memory_bytes
    ]
    usable = [each for each in fitting if each.template == "simple" or asked.can_describe]
    tried = [_followed(each) if is_followed else each for each in (*turns, *usable)]
    ways = [(each, splits) for each in tried for splits in _splits_worth_a_try(each, asked)]
    time, best = min(((predicted_ns(*way, asked), i) for i, way in enumerate(ways)))
    instance, splits = ways[best]
    whole = _keywords(instance, asked, splits)
    alone = [each for each in usable if each.template == "simple"]
    apart = min(
        (one for each in alone if (one := _with_a_rest(each, alone, asked)) is not None),
        key=itemgetter(0),
        default=(math.inf, whole),
    )
    return apart if apart[0] < (1 - WORTH_A_REST) * time else (time, whole)


def _followed(instance: Instance) -> Instance:
    """With what a chain adds."""
    more = CHAIN_NS.get(instance.template, 0)
    return replace(instance, first_ns=instance.first_ns + more, next_ns=instance.next_ns + more)


def _with_a_rest(
    instance: Instance, others: Sequence[Instance], asked: Asked
) -> tuple[float, dict[str, Any]] | None:
    """As many rows by this instance as fill whole waves, the rest by whichever is fastest for it."""
    across = triton.cdiv(asked.n, instance.cols)
    rows = _tiles(instance, asked) // asked.compute_units * asked.compute_units // across * instance.rows
    if not asked.are_matrices or not 0 < rows < asked.m:
        return None
    above, below = replace(asked, m=rows), replace(asked, m=asked.m - rows)
    time, i = min((predicted_ns(each, 1, below), i) for i, each in enumerate(others))
    rest = {
        name: value for name, value in _keywords(others[i], below, 1).items() if name in gemm.REST_KEYWORDS
    }
    found = _keywords(instance, above, 1) | {"rows": (0, rows), "rest": rest}
    return predicted_ns(instance, 1, above) + time, found


def predicted_ns(instance: Instance, splits: int, asked: Asked) -> float:
    """How long a measured instance should take for a product, nothing packed, in nanoseconds.

    Raises:
        InvalidArgumentError: the instance was not measured.
    """
    if instance.step_ns is None:
        raise InvalidArgumentError("instance", f"{instance.name} was not measured", "Give one that was.")
    tiles, steps = _tiles(instance, asked), _steps(instance, asked)
    rounds = -(-tiles * splits // asked.compute_units)
    if rounds > instance.together:
        rounds = -(-rounds // instance.together) * instance.together
    a_lines, b_lines = (1 if each.is_line_aligned else 2 for each in (asked.a, asked.b))
    lines = (instance.rows * a_lines + instance.cols * b_lines) * instance.row_bytes / LINE_BYTES
    step = max(instance.step_ns, lines * LINE_NS) * (ONE_BY_ONE if asked.is_one_by_one else 1)
    step *= 1 if asked.suits_units else OTHERWISE
    room = asked.shared_memory_bytes // 2
    is_wide = asked.output_itemsize > 2
    if is_wide and _shared_bytes(instance, replace(asked, output_itemsize=2)) <= room:
        step *= ALONE if room < _shared_bytes(instance, asked) else 1
    next_ns = instance.next_ns * (asked.output_itemsize / 2 if instance.template == "simple" else 1)
    time = rounds * -(-steps // splits) * step + instance.first_ns + (rounds - 1) * next_ns
    work = 2 * asked.batch * asked.m * asked.n * asked.k * (asked.itemsize / 2)
    time = LAUNCH_NS + max(time, tiles * steps * lines / LINES_PER_NS, work / FLOPS_PER_NS)
    if splits > 1:
        time += SPLIT_NS + 2 * splits * asked.batch * asked.m * asked.n * 4 / SPLIT_BYTES_PER_NS
    return time


def _tiles(instance: Instance, asked: Asked) -> int:
    # Not triton.cdiv, which takes as long as all else here.
    return -(-asked.m // instance.rows) * -(-asked.n // instance.cols) * asked.batch


def _steps(instance: Instance, asked: Asked) -> int:
    """Tiles along K."""
    return -(-asked.k // (instance.row_bytes // asked.itemsize))


def _for_units(instances: Sequence[Instance], asked: Asked) -> list[Instance]:
    """Those whose tiles registers hold: twice where no matrix units multiply, as sums and sums of sums."""
    most = gemm.MOST_WITHOUT_UNITS
    return [each for each in instances if asked.uses_units or each.rows * each.cols <= most]


def _splits_worth_a_try(instance: Instance, asked: Asked) -> set[int]:
    """One, and as many as fill the units once and twice; of persistent programs one."""
    if instance.template != "simple":
        return {1}
    full, steps = asked.compute_units / max(_tiles(instance, asked), 1), _steps(instance, asked)
    return {max(min(int(rounds * full), MOST_SPLITS, steps), 1) for rounds in (0, 1, 2)}


def _shared_bytes(instance: Instance, asked: Asked) -> int:
    """Of the stages, and where loads go on while a tile is stored, or none is rounded, of the output's tile.

    A last step along K that is masked is no part of the loop, and has room of its own.
    """
    is_peeled = not asked.can_describe and asked.k * asked.itemsize % instance.row_bytes != 0
    stages = (instance.num_stages + is_peeled) * (instance.rows + instance.cols) * instance.row_bytes
    is_beside = instance.template == "persistent" or asked.output_itemsize >= 4
    return stages + is_beside * instance.rows * instance.cols * asked.output_itemsize


def _keywords(instance: Instance, asked: Asked, splits: int) -> dict[str, Any]:
    rows, cols = (
        min(length, max(triton.next_power_of_2(size), 16))
        for length, size in ((instance.rows, asked.m), (instance.cols, asked.n))
    )
    return {
        "tile": (rows, cols, max(instance.row_bytes // asked.itemsize, 16)),
        "num_warps": instance.num_warps if rows * cols >= 128 * 128 else 4,
        "num_stages": instance.num_stages,
        "template": instance.template,
        "splits": splits,
        "descriptors": asked.can_describe,
    }


def _of_few_rows(asked: Asked) -> dict[str, Any]:
    """The widest tile that keeps every unit busy, or the narrowest, and as many splits as fill them."""
    _, widths, row_bytes, stages = next(each for each in FEW_ROWS if asked.m <= each[0])
    units = asked.compute_units
    width = next((w for w in widths if triton.cdiv(asked.n, w) >= 0.9 * units), widths[-1])
    block_k = row_bytes // asked.itemsize
    splits = min(units // triton.cdiv(asked.n, width), triton.cdiv(asked.k, 4 * block_k), MOST_SPLITS)
    return {
        "tile": (
            max(triton.next_power_of_2(asked.m), 16),
            min(width, max(triton.next_power_of_2(asked.n), 16)),
            max(block_k, 16),
        ),
        "num_warps": 4,
        "num_stages": stages,
        "template": "simple",
        "splits": max(splits, 1),
        "descriptors": asked.can_describe,
    }


def _by_size(instances: Sequence[Instance], asked: Asked) -> dict[str, Any]:
    """The largest tile of which each unit gets one, or a small one, K shared where even that is too few."""
    for instance in _for_units(instances, asked):
        if _tiles(instance, asked) >= asked.compute_units:
            return _keywords(instance, asked, 1)
    is_small = min(asked.m, asked.n) < instances[-2].rows
    smallest = instances[-1] if is_small else instances[-2]
    steps = triton.cdiv(asked.k, 4 * smallest.row_bytes // asked.itemsize)
    return _keywords(
        smallest, asked, max(min(asked.compute_units // _tiles(smallest, asked), MOST_SPLITS, steps), 1)
    )


# Layouts of A and B: "n" as the shape says, "t" transposed in memory.
LAYOUTS = ("nn", "nt", "tn", "tt")
DTYPES = (*operation.FLOATS, "fp8_e4m3", "int8")


def instances_for(
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    epilogue: Epilogue | None = None,
) -> list[operation.Instance]:
    """The configurations of alpha * (a @ b) + beta * addend on this device: all, be they too large for it.

    Or of what an epilogue makes of that; it casts and permutes nothing.

    Where kernels are interpreted, those of Hopper, which has most. Products of int8 go into int32, as the
    vendor's library has them.
    """
    if a.dim() < 2 or b.dim() < 2:
        shapes = f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise TensorMismatchError("input, other", shapes, "Give matrices: a vector is one of one row.")
    chain = Epilogue() if epilogue is None else epilogue
    if addend is not None and beta == 0:
        addend = a.new_zeros(())
    if b.dim() > 2 and math.prod(gemm.batch_shape(a, b)) == 1:
        b = b.view(b.shape[-2:])
        if a.dim() == 2:
            a = a[None]
    if b.dim() == 2 < a.dim() and (flat := chain.as_rows((*a.shape[:-1], b.shape[1]))) is not None:
        a, epilogue = a.flatten(0, -2), None if epilogue is None else flat
        if addend is not None and addend.dim() > 1:
            addend = addend.expand(*addend.shape[:-1], b.shape[1]).flatten(0, -2)
    if reason := gemm.is_supported(a, b):
        raise TensorMismatchError("input, other", reason, "Give what can be multiplied.")
    dtype = torch.int32 if a.dtype == torch.int8 else torch.bfloat16 if a.dtype in gemm.FP8 else a.dtype
    if epilogue is not None and (epilogue.permuted or epilogue.result_dtype(dtype) != dtype):
        fix = "Cast and permute the result: instances are the same ones."
        raise InvalidArgumentError("epilogue", "it casts or permutes", fix)
    output = torch.empty((*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1]), dtype=dtype, device=a.device)
    precision = operation.precision_of(a, operation.of_products)
    make = partial(
        gemm.launch, a, b, output=output, addend=addend, alpha=alpha, beta=beta, epilogue=epilogue,
        precision=precision,
    )  # fmt: skip
    asked = asked_of(a, b, output, precision)
    is_hopper = asked.architecture == "sm_90" or not device.planned().is_gpu
    known = HOPPER if is_hopper else OTHERS.get(asked.architecture, OTHERS["sm_80"])
    takes_turns = epilogue is None or epilogue.takes_turns
    if asked.architecture == "sm_90" and asked.runs_gluon and takes_turns:
        known = (*known, *(() if gemm.why_not_ping_pong(a, b) else PING_PONG))
    others = [
        _keywords(each, asked, splits)
        for each in _for_units(known, asked)
        for splits in sorted(_splits_worth_a_try(each, asked))
    ]
    if addend is not None:
        shipped = chosen_for_sum(addend, alpha, beta, a, b, output, precision)
    elif epilogue is not None:
        shipped = chosen_for_chain(epilogue, a, b, output, precision)
    else:
        shipped = choose(asked)
    return operation.instances_of(make, shipped, others)


def _addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> list[operation.Instance]:
    return instances_for(mat1, mat2, input, float(alpha), float(beta))


def _baddbmm(
    input: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> list[operation.Instance]:
    return instances_for(batch1, batch2, input, float(alpha), float(beta))


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> list[operation.Instance]:
    return instances_for(input, weight.t(), bias)


def _product(input: torch.Tensor, other: torch.Tensor) -> list[operation.Instance]:
    return instances_for(input, other)


def _mm(input: torch.Tensor, mat2: torch.Tensor) -> list[operation.Instance]:
    return instances_for(input, mat2)


def _fused(input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue) -> list[operation.Instance]:
    return instances_for(input, other, epilogue=epilogue)


def _operands(
    draw: operation.Draw, m: int, n: int, k: int, batch: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B in the layout that is asked for."""
    a = draw(*batch, m, k) if draw.layout[0] == "n" else draw(*batch, k, m).mT
    return a, draw(*batch, k, n) if draw.layout[1] == "n" else draw(*batch, n, k).mT


def _of_matrices(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(*_operands(draw, m, n, k))


def _with_two_addends(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    """Composable Kernel's example: two addends, one of them a row, and FastGELU."""
    chain = epilogues.add(draw(m, n)) | epilogues.add(draw(n)) | epilogues.fast_gelu()
    return operation.given(*_operands(draw, m, n, k), epilogue=chain)


def _of_batches(draw: operation.Draw, batch: int, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(*_operands(draw, m, n, k, (batch,)))


def _with_a_row(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(n), *_operands(draw, m, n, k))


def _with_matrices(draw: operation.Draw, batch: int, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(batch, m, n), *_operands(draw, m, n, k, (batch,)))


def _with_weight(draw: operation.Draw, m: int, n: int, k: int) -> operation.Arguments:
    return operation.given(draw(m, k), draw(n, k), draw(n))


def _accuracy(input: torch.Tensor, other: torch.Tensor) -> tuple[operation.Accuracy]:
    return (operation.sum_of(input.shape[-1]) if input.is_floating_point() else operation.EXACT,)


def _accuracy_of_sum(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **factors: float
) -> tuple[operation.Accuracy]:
    return (operation.sum_of(mat1.shape[-1] + 1),)


def _accuracy_of_fused(
    input: torch.Tensor, other: torch.Tensor, *, epilogue: Epilogue
) -> tuple[operation.Accuracy]:
    return (operation.sum_of(input.shape[-1] + len(epilogue.functors)),)


def _accuracy_of_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[operation.Accuracy]:
    return (operation.sum_of(input.shape[-1] + 1),)


_SIZES = {"m": (70, 4096), "n": (50, 4096), "k": (90, 4096)}
_BATCH = {"batch": (2, 16), "m": (40, 1024), "n": (50, 1024), "k": (60, 1024)}

_operation = partial(operation.Operation, switch=operation.of_products)

OPERATIONS = {
    "matmul": _operation(_SIZES, _of_matrices, _product, reference.matmul, _accuracy, DTYPES, LAYOUTS),
    "mm": _operation(_SIZES, _of_matrices, _mm, reference.mm, _accuracy, DTYPES, LAYOUTS),
    "bmm": _operation(_BATCH, _of_batches, _mm, reference.bmm, _accuracy, DTYPES, LAYOUTS),
    "addmm": _operation(
        _SIZES, _with_a_row, _addmm, reference.addmm, _accuracy_of_sum, operation.FLOATS, LAYOUTS
    ),
    "baddbmm": _operation(
        _BATCH, _with_matrices, _baddbmm, reference.baddbmm, _accuracy_of_sum, operation.FLOATS, LAYOUTS
    ),
    "fused_matmul": _operation(
        _SIZES,
        _with_two_addends,
        _fused,
        reference.fused_matmul,
        _accuracy_of_fused,
        operation.FLOATS,
        LAYOUTS,
    ),
    "linear": _operation(
        _SIZES, _with_weight, _linear, reference.linear, _accuracy_of_linear, operation.FLOATS
    ),
}
