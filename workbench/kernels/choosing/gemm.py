"""Choice of tile, template and splits for a matrix product without tuning.

On a device whose instances were measured, the time of the product is predicted for each instance, and the
fastest is taken. On other devices the largest tile that keeps every compute unit busy is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
import triton

from workbench import device
from workbench.device import Device
from workbench.errors import InvalidArgumentError
from workbench.kernels import epilogues, gemm
from workbench.kernels.choosing import tiles
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.gemm import Configuration, Rest
from workbench.kernels.instances.gemm import (
    ALONE,
    CHAIN_NS,
    FEW_ROWS,
    FLOPS_OF_LITTLE,
    FLOPS_PER_NS,
    HOPPER,
    LAUNCH_NS,
    LINE_NS,
    LINES_PER_NS,
    LITTLE,
    MOST_SPLITS,
    ONE_BY_ONE,
    OTHERS,
    OTHERWISE,
    PACK_BYTES_PER_NS,
    PACK_BYTES_PER_NS_IN_MEMORY,
    PACK_NS,
    PING_PONG,
    PING_PONG_SQUARE,
    PING_PONG_WIDE,
    SPLIT_BYTES_PER_NS,
    SPLIT_NS,
    STEPS_OF_LITTLE,
    WIDE_STEPS,
    WORTH_A_REST,
    Instance,
)

# Bytes of a line of the L2 cache, and of the span of TMA's widest swizzle.
LINE_BYTES = 128


@dataclass(frozen=True)
class Laid:
    """Layout of A or B in memory, as far as the choice depends on it.

    Attributes:
        is_line_aligned: whether its rows, or columns if those are contiguous, begin at multiples of 128
            bytes.
        is_one_by_one: whether some of these rows or columns begin between multiples of 16 bytes, so that
            elements are moved one by one.
        suits_units: whether matrix units take this layout: always for 16 bits, for other widths if neighbors
            lie along K.
        can_describe: whether a tensor descriptor can move it.
        packed_bytes: bytes that packing it would read and write; 0 if it cannot be packed, or need not be.
    """

    is_line_aligned: bool = True
    is_one_by_one: bool = False
    suits_units: bool = True
    can_describe: bool = True
    packed_bytes: int = 0


@dataclass(frozen=True)
class Asked:
    """A product and its device, as far as the choice depends on them.

    Attributes:
        m, n, k: sizes of each product.
        batch: number of products.
        are_matrices: whether all tensors are 2-D; a batch of one does not count.
        itemsize, output_itemsize: bytes of an element of the operands and of the output.
        a, b: layouts of the operands.
        uses_units: whether matrix units multiply: not in fp64, and in fp32 only if it is rounded to tf32.
        compute_units, l2_bytes, shared_memory_bytes: compute units; bytes of the L2 cache; bytes of shared
            memory of a unit.
        architecture: such as "sm_90".
        runs_gluon: whether the device runs kernels in Gluon, such as those of PING_PONG.
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
        """True if elements of A or B are moved one by one."""
        return self.a.is_one_by_one or self.b.is_one_by_one

    @property
    def suits_units(self) -> bool:
        """True if matrix units take the layouts of A and B, or if no matrix units multiply."""
        return not self.uses_units or (self.a.suits_units and self.b.suits_units)

    @property
    def can_take_turns(self) -> bool:
        """True if the measured times of PING_PONG apply.

        They are those of 16-bit matrices with results of 16 bits, in rows or columns that begin at multiples
        of 128 bytes.
        """
        are_alike = self.runs_gluon and self.are_matrices and self.itemsize == self.output_itemsize == 2
        return are_alike and self.can_describe and self.a.is_line_aligned and self.b.is_line_aligned

    @property
    def can_describe(self) -> bool:
        """True if A and B can be moved by tensor descriptors."""
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
    """Return the product `output = a @ b`, with the device to choose for.

    Args:
        a, b, output, precision: as `gemm.launch` takes them.
        here: the device to choose for; None for the planned one.
    """
    here = device.planned() if here is None else here
    # A product of no elements, which starts no kernel, counts as one of a single row, column or batch.
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
        a=_layout_of(a, -1, copies.get("a")),
        b=_layout_of(b, -2, copies.get("b")),
        uses_units=uses_units,
        compute_units=here.compute_units,
        l2_bytes=here.l2_bytes,
        shared_memory_bytes=here.shared_memory_bytes,
        architecture=here.architecture,
        runs_gluon=here.runs_gluon,
    )


def _layout_of(matrix: torch.Tensor, along_k: int, copy: torch.Tensor | None) -> Laid:
    pitch = max(matrix.stride()[-2:]) * matrix.element_size()
    return Laid(
        is_line_aligned=pitch % LINE_BYTES == 0,
        is_one_by_one=pitch % 16 != 0,
        suits_units=matrix.element_size() == 2 or matrix.stride(along_k) == 1,
        can_describe=gemm.descriptor_of(matrix, (16, 16)) is not None,
        packed_bytes=0 if copy is None else 2 * copy.numel() * matrix.element_size(),
    )


def configuration(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str,
    *,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Configuration:
    """Return the configuration of alpha * (a @ b) + beta * addend on the planned device.

    Args:
        a, b, output, addend, alpha, beta, precision: as `gemm.launch` takes them.
    """
    if addend is None:
        return chosen(a, b, output, precision)
    return chosen_for_sum(addend, alpha, beta, a, b, output, precision)


def configuration_for_chain(
    chain: Epilogue, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str
) -> Configuration:
    """Return the configuration of chain(a @ b); the chain may permute, and load wider elements.

    Args:
        a, b, output, precision: as `gemm.launch` takes them.
    """
    # Tiles that an epilogue loads pass through shared memory, like those that are stored.
    matrices = [output.dtype, *(each.dtype for each in chain.tensors if each.dim() > 1)]
    widest = max(matrices, key=lambda dtype: dtype.itemsize)
    if chain.permuted is not None or widest.itemsize > output.element_size():
        shape = (*gemm.batch_shape(a, b), a.shape[-2], b.shape[-1])
        output = torch.empty(shape, dtype=widest, device="meta")
    return chosen_for_chain(chain, a, b, output, precision)


def chosen(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str) -> Configuration:
    """Return the configuration of `output = a @ b` on the planned device."""
    return choose(asked_of(a, b, output, precision))


def chosen_for_chain(
    chain: Epilogue, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, precision: str
) -> Configuration:
    """Return the configuration of chain(a @ b) on the planned device."""
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
) -> Configuration:  # fmt: skip
    """Return the configuration of `alpha * (a @ b) + beta * addend` on the planned device."""
    return chosen_for_chain(epilogues.add_scaled(addend, alpha, beta), a, b, output, precision)


def chosen_for_followed(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    precision: str,
    *,
    loads: bool = True,
    may_be_wide: bool = False,
) -> Configuration:
    """Return the configuration for an epilogue that loads tensors of the output's shape or computes for long.

    Args:
        a, b, output, precision: as `gemm.launch` takes them.
        loads: whether the epilogue loads such tensors. may_be_wide: whether it first adds two tensors that
            tiles of 192 columns can load by tensor descriptors.
    """
    asked = asked_of(a, b, output, precision)
    if asked.architecture != "sm_90" or not asked.are_matrices or not asked.can_describe:
        return choose(asked, takes_turns=False)
    if asked.output_itemsize > 4:  # shared memory cannot hold two tiles of 64 bits beside the stages
        return choose(asked, takes_turns=False)
    first, wide = PING_PONG_SQUARE, PING_PONG_WIDE
    are_whole = asked.m >= first.rows and asked.n >= first.cols
    are_lines = asked.a.is_line_aligned and asked.b.is_line_aligned
    is_long = are_whole and are_lines and _tiles(first, asked) >= asked.compute_units
    is_long = is_long and (loads or asked.output_itemsize == asked.itemsize)
    if is_long and asked.runs_gluon and not gemm.why_not_ping_pong(a, b):
        if loads:
            from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

            rounds = [-(-_tiles(each, asked) // asked.compute_units) for each in (first, wide)]
            is_wide = may_be_wide and output.dtype == torch.float16 and _steps(wide, asked) in WIDE_STEPS
            is_wide = is_wide and rounds == [3, gemm_hopper_wide.MOST_TILES]
        else:
            times = {each.name: predicted_ns(each, 1, asked) for each in _ping_pong_instances(asked)}
            is_wide = times.get(wide.name, math.inf) < times.get(first.name, 0)
        return configured(wide if is_wide else first, asked, 1)
    if not loads:
        return choose(asked, is_followed=True)
    is_little = 2 * asked.m * asked.n * asked.k <= FLOPS_OF_LITTLE
    if asked.itemsize == 2 and is_little and _steps(LITTLE, asked) <= STEPS_OF_LITTLE:
        return configured(LITTLE, asked, 1)
    return choose(asked, takes_turns=False)


def choose(asked: Asked, *, takes_turns: bool = True, is_followed: bool = False) -> Configuration:
    """Return the configuration of `gemm.launch` for a product.

    Args:
        asked: the product.
        takes_turns: whether PING_PONG can be chosen, given the epilogue. is_followed: whether there is an
            epilogue whose cost is CHAIN_NS.
    """
    if asked.architecture != "sm_90":
        return _by_size(OTHERS.get(asked.architecture, OTHERS["sm_80"]), asked)
    if min(asked.m, asked.n) == asked.m <= FEW_ROWS[-1].most and asked.batch == 1:
        return _of_few_rows(asked)
    turns = _ping_pong_instances(asked) if takes_turns else []
    ways: list[tuple[float, int, Configuration]] = []
    for names in ((), ("b",), ("a",), ("a", "b")):
        moved = [each.packed_bytes for name, each in (("a", asked.a), ("b", asked.b)) if name in names]
        if all(moved):
            a, b = (Laid() if name in names else each for name, each in (("a", asked.a), ("b", asked.b)))
            time, found = _fastest(replace(asked, a=a, b=b), () if names else turns, is_followed)
            ways.append((time + _packing_ns(sum(moved), asked), len(ways), replace(found, pack=names)))
    _, _, best = min(ways)
    return best


def _ping_pong_instances(asked: Asked) -> list[Instance]:
    """Return the instances of PING_PONG that were measured and can take the product."""
    from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

    return [
        each
        for each in PING_PONG
        if asked.can_take_turns and each.step_ns is not None
        if asked.m >= each.rows and asked.n >= each.cols
        if each is not PING_PONG_WIDE or _steps(each, asked) >= gemm_hopper_wide.FEWEST_STEPS
    ]


def _packing_ns(bytes_moved: int, asked: Asked) -> float:
    """Return the time of packing operands, in nanoseconds."""
    fits = bytes_moved <= asked.l2_bytes
    rate = PACK_BYTES_PER_NS if fits else PACK_BYTES_PER_NS_IN_MEMORY
    return PACK_NS + bytes_moved / rate if bytes_moved else 0.0


def _fastest(asked: Asked, turns: Sequence[Instance], is_followed: bool) -> tuple[float, Configuration]:
    """Return the shortest predicted time on Hopper, in nanoseconds, and its configuration.

    Args:
        asked: the product. turns: instances of PING_PONG to consider too.
        is_followed: whether there is an epilogue whose cost is CHAIN_NS.
    """
    fitting = [
        each for each in for_units(HOPPER, asked) if _shared_bytes(each, asked) <= asked.shared_memory_bytes
    ]
    usable = [each for each in fitting if each.template == "simple" or asked.can_describe]
    tried = [_followed(each) if is_followed else each for each in (*turns, *usable)]
    ways = [(each, splits) for each in tried for splits in splits_worth_a_try(each, asked)]
    time, best = min(((predicted_ns(*way, asked), i) for i, way in enumerate(ways)))
    instance, splits = ways[best]
    whole = configured(instance, asked, splits)
    alone = [each for each in usable if each.template == "simple"]
    apart = min(
        (one for each in alone if (one := _with_rest(each, alone, asked)) is not None),
        key=itemgetter(0),
        default=(math.inf, whole),
    )
    return apart if apart[0] < (1 - WORTH_A_REST) * time else (time, whole)


def _followed(instance: Instance) -> Instance:
    """Return an instance with the time that a chain adds to each tile."""
    more = CHAIN_NS.get(instance.template, 0)
    return replace(instance, first_ns=instance.first_ns + more, next_ns=instance.next_ns + more)


def _with_rest(
    instance: Instance, others: Sequence[Instance], asked: Asked
) -> tuple[float, Configuration] | None:
    """Return time and configuration of two launches: whole waves of this instance, then the remaining rows.

    The remaining rows get the instance of `others` that is fastest for them. None for batches, and if no wave
    is whole or no rows remain.
    """
    across = triton.cdiv(asked.n, instance.cols)
    rows = _tiles(instance, asked) // asked.compute_units * asked.compute_units // across * instance.rows
    if not asked.are_matrices or not 0 < rows < asked.m:
        return None
    above, below = replace(asked, m=rows), replace(asked, m=asked.m - rows)
    time, i = min((predicted_ns(each, 1, below), i) for i, each in enumerate(others))
    other = configured(others[i], below, 1)
    rest = Rest(other.tile, other.num_warps, other.num_stages)
    found = replace(configured(instance, above, 1), rows=(0, rows), rest=rest)
    return predicted_ns(instance, 1, above) + time, found


def predicted_ns(instance: Instance, splits: int, asked: Asked) -> float:
    """Return the predicted time of a measured instance for a product, without packing, in nanoseconds.

    Raises:
        InvalidArgumentError: the instance was not measured.
    """
    if instance.step_ns is None:
        given = f"{instance.name} was not measured"
        raise InvalidArgumentError("instance", given, "Give an instance whose step_ns is not None.")
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
    # triton.cdiv alone would take as long as everything else here.
    return -(-asked.m // instance.rows) * -(-asked.n // instance.cols) * asked.batch


def _steps(instance: Instance, asked: Asked) -> int:
    """Return the number of tiles along K."""
    return -(-asked.k // (instance.row_bytes // asked.itemsize))


def for_units(instances: Sequence[Instance], asked: Asked) -> list[Instance]:
    """Return the instances whose accumulators fit registers.

    Without matrix units accumulators are kept twice: as sums, and as sums of sums.
    """
    most = gemm.MOST_WITHOUT_UNITS
    return [each for each in instances if asked.uses_units or each.rows * each.cols <= most]


def splits_worth_a_try(instance: Instance, asked: Asked) -> set[int]:
    """Return numbers of splits to try: 1, and those that fill the compute units once and twice.

    Only the simple template takes splits.
    """
    if instance.template != "simple":
        return {1}
    full, steps = asked.compute_units / max(_tiles(instance, asked), 1), _steps(instance, asked)
    return {max(min(int(rounds * full), MOST_SPLITS, steps), 1) for rounds in (0, 1, 2)}


def _shared_bytes(instance: Instance, asked: Asked) -> int:
    """Return an instance's bytes of shared memory: its stages, and the output's tile if stored apart.

    The output's tile has memory of its own in persistent programs, which load the next tile while they store,
    and if its elements have 4 bytes or more, which are not rounded. A masked last step along K is not part of
    the loop, and has memory of its own.
    """
    is_peeled = not asked.can_describe and asked.k * asked.itemsize % instance.row_bytes != 0
    stages = (instance.num_stages + is_peeled) * (instance.rows + instance.cols) * instance.row_bytes
    is_beside = instance.template == "persistent" or asked.output_itemsize >= 4
    return stages + is_beside * instance.rows * instance.cols * asked.output_itemsize


def configured(instance: Instance, asked: Asked, splits: int) -> Configuration:
    """Return the configuration of an instance; its tile is no larger than the product."""
    rows, cols = tiles.cut((instance.rows, instance.cols), (asked.m, asked.n))
    return Configuration(
        tile=(rows, cols, max(instance.row_bytes // asked.itemsize, 16)),
        num_warps=instance.num_warps if rows * cols >= 128 * 128 else 4,
        num_stages=instance.num_stages,
        template=instance.template,
        splits=splits,
        descriptors=asked.can_describe,
    )


def _of_few_rows(asked: Asked) -> Configuration:
    """Return the configuration for few rows: the widest tile that keeps every unit busy, or the narrowest.

    It has as many splits as fill the units.
    """
    few, units = next(each for each in FEW_ROWS if asked.m <= each.most), asked.compute_units
    width = next((w for w in few.widths if triton.cdiv(asked.n, w) >= 0.9 * units), few.widths[-1])
    block_k = few.row_bytes // asked.itemsize
    splits = min(units // triton.cdiv(asked.n, width), triton.cdiv(asked.k, 4 * block_k), MOST_SPLITS)
    rows, cols = tiles.rounded(asked.m), min(width, tiles.rounded(asked.n))
    return Configuration(
        tile=(rows, cols, max(block_k, 16)),
        num_warps=4,
        num_stages=few.num_stages,
        template="simple",
        splits=max(splits, 1),
        descriptors=asked.can_describe,
    )


def _by_size(instances: Sequence[Instance], asked: Asked) -> Configuration:
    """Return the configuration of the largest tile that gives each compute unit one.

    If there is none, it is that of a small tile, with splits along K.
    """
    for instance in for_units(instances, asked):
        if _tiles(instance, asked) >= asked.compute_units:
            return configured(instance, asked, 1)
    is_small = min(asked.m, asked.n) < instances[-2].rows
    smallest = instances[-1] if is_small else instances[-2]
    steps = triton.cdiv(asked.k, 4 * smallest.row_bytes // asked.itemsize)
    return configured(
        smallest, asked, max(min(asked.compute_units // _tiles(smallest, asked), MOST_SPLITS, steps), 1)
    )
