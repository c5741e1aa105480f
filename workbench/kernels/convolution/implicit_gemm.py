"""Products of tensors seen through coordinate descriptors: the kernel of `gemm`, with other loaders.

No kernel is written here. Where the algebra finds that a view is a strided matrix after all, it is loaded as
one; else its descriptor's access function brings the tiles, and no matrix is ever made in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
import triton
import triton.language as tl

from workbench import device
from workbench.coords.expression import divisor_of, evaluate
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels import gemm
from workbench.kernels.epilogues import Bound, Epilogue, Frame, bind
from workbench.kernels.gemm import ACCUMULATORS, PRECISIONS, check_epilogue, with_epilogue
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.options import from_options
from workbench.kernels.tile import order, transfer
from workbench.kernels.views import View, access_of, loader_of, of_a_batch
from workbench.launch import Launch, Step, Work

TEMPLATES = ("simple", "persistent")

# Elements of a row of splits are stored together where this divides the row.
STORED_TOGETHER = 16


class Side(NamedTuple):
    """An operand or the output as the kernel is given it.

    Attributes:
        sources: pointer, or tensor descriptors, one for each of the tile's parts.
        place: what finds a tile: a loader, or of the output an access function.
        strides: of rows and columns; or what the access function is given.
        batch_stride: from one of the batch to the next.
        divisors: what divides each of `strides`.
        is_described: whether the sources are tensor descriptors.
    """

    sources: tuple[Any, ...]
    place: Any
    strides: tuple[Any, ...]
    batch_stride: int
    divisors: tuple[int, ...]
    is_described: bool = False


class Sides(NamedTuple):
    """Operands and results of a product.

    Attributes:
        a, b, output: those of the call.
        target: what the product is stored to: the output, or the parts of splits.
        parts: [splits, batch, m, n], m and n rounded up; empty of one split.
        batch_strides: of a, b and target.
    """

    a: Side
    b: Side
    target: Side
    output: Side
    parts: torch.Tensor
    batch_strides: tuple[tuple[int], ...]


class Options(TypedDict, total=False):
    """How a product works: keyword arguments of :func:`launch`.

    Attributes:
        tile: rows, columns and steps along K; None: see `gemm.default_tile`.
        splits: programs that share K; their parts are added up in a second step, in a fixed order.
        template: "simple" or "persistent".
        descriptors: load by tensor descriptors (on Hopper, TMA) what is a strided matrix, without a batch.
        aligned: tell the compiler what divides the step from one to the next of a batch, so that it loads as
            many bytes at once as it can. It mostly pays.
        programs, launch_order, group, num_warps, num_stages, compute_units: as of `gemm.launch`.
    """

    tile: Sequence[int] | None
    splits: int
    template: str
    programs: int | None
    launch_order: str
    group: int
    descriptors: bool
    aligned: bool
    num_warps: int | None
    num_stages: int
    compute_units: int | None


@dataclass(frozen=True)
class Configuration:
    """A choice of all :class:`Options`, which says what they mean."""

    tile: Sequence[int] | None = None
    splits: int = 1
    template: str = "simple"
    programs: int | None = None
    launch_order: str = "grouped"
    group: int = 8
    descriptors: bool = False
    aligned: bool = True
    num_warps: int | None = None
    num_stages: int = 3
    compute_units: int | None = None


@dataclass(frozen=True)
class Plan:
    """A product of [m, k] by [k, n] for each of `batch`, and how it falls into tiles.

    Attributes:
        m_is_fixed, k_is_fixed: whether these lengths are known without the call.
        tile: rows, columns and steps along K.
        splits: programs that share K.
        sum_tile: rows and columns of the step that adds up splits.
        compute_units: for which persistent programs are as many.
        descriptors: load by tensor descriptors where there can be some.
    """

    batch: int
    m: int
    n: int
    k: int
    m_is_fixed: bool
    k_is_fixed: bool
    tile: tuple[int, int, int]
    splits: int
    sum_tile: tuple[int, int]
    compute_units: int
    descriptors: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """A tile's columns in powers of two."""
        return gemm.powers_of_two(self.tile[1])


def is_supported(a: View, b: View, output: View, chain: Epilogue) -> str:
    """Why the templates cannot take these and this epilogue, in words; empty when they can."""
    for name, view, dtypes in (
        ("a", a, gemm.SUPPORTED),
        ("b", b, gemm.SUPPORTED),
        ("output", output, gemm.output_dtypes(a.tensor.dtype, chain)),
    ):
        tensor = view.tensor
        if tensor.dtype not in dtypes:
            return f"{name} is {tensor.dtype}; supported: {', '.join(str(d)[6:] for d in dtypes)}"
        if tensor.layout != torch.strided or tensor.is_neg():
            return f"{name} is no plain strided tensor"
        if tensor.device != a.tensor.device:
            return f"a is on {a.tensor.device}, {name} on {tensor.device}"
    if a.tensor.dtype != b.tensor.dtype:
        return f"a is {a.tensor.dtype}, b is {b.tensor.dtype}"
    (*batch, m, k), (*of_b, k_of_b, n), (*of_output, m_of_output, n_of_output) = (
        view.lengths for view in (a, b, output)
    )
    if (m, n, k) != (m_of_output, n_of_output, k_of_b) or not batch == of_b == of_output:
        return f"lengths are {a.lengths} of a, {b.lengths} of b and {output.lengths} of the output"
    return ""


def launch(
    a: View,
    b: View,
    output: View,
    *,
    epilogue: Epilogue | None = None,
    frame: Frame | None = None,
    work: Work | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """output = a @ b, or what an epilogue makes of it, of matrices that descriptors describe.

    Products are accumulated as by `gemm.launch`, whose kernel does the work.

    Args:
        a, b, output: views of [m, k], [k, n] and [m, n]; or of [batch, m, k] and so on, where from one of the
            batch to the next is a constant step in memory. What is invalid in a or b counts as 0; of the
            output, it is not stored.
        epilogue: what is done to the product before it is stored; its result fits the output's dtype.
        frame: how the epilogue's operands go with the matrices; None where they broadcast to [batch, m, n].
        work: of the product, if not 2 m n k FLOPs for each of the batch and each tensor's memory once.
        precision: of fp32: as of `gemm.launch`.
        options: tile, splits, template and the rest, see :class:`Options`.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: a name. InvalidArgumentError,
        ArgumentTypeError: another argument.
    """
    config = from_options(Configuration, options)
    chain = Epilogue() if epilogue is None else epilogue
    _check(a, b, output, chain, precision, config)
    *_, m, k = a.lengths
    *batches, _, n = output.lengths
    batch = batches[0] if batches else 1
    if work is None:
        tensors = (a.tensor, b.tensor, output.tensor)
        work = Work(2 * batch * m * n * k, sum(t.numel() * t.element_size() for t in tensors))
    work = with_epilogue(work, chain, batch * m * n)
    if output.tensor.numel() == 0 or 0 in (batch, m, n):
        return Launch((), (output.tensor,), work=work)
    plan = plan_of(a, output, config)
    sides = _sides(a, b, output, plan)
    _, kept_as = _sum_dtypes(a)
    frame = Frame((*batches, m, n)) if frame is None else frame
    bound = bind(chain, frame, kept_as, output.tensor.dtype, a.tensor.device)
    reach = max(*(_reach(view) for view in (a, b, output)), bound.reach) + sides.parts.numel()
    is_wide = reach > MOST_OFFSETS_IN_32_BITS
    meta = _meta(a, plan, sides, config, precision)
    meta |= {"EPILOGUE": () if plan.splits > 1 else bound.functors, "WIDE": is_wide}
    first = _product_step(plan, sides, config, () if plan.splits > 1 else bound.extras, meta)
    if plan.splits == 1:
        return Launch((first,), (output.tensor,), work=work)
    second = _sum_step(plan, sides, bound, is_wide=is_wide)
    # Whatever the work, where lengths come with the call: else another number of images would compile anew.
    is_fixed = plan.m_is_fixed and plan.k_is_fixed
    steps = gemm.overlapping(work if is_fixed else Work(0, 0), first, second)
    return Launch(steps, (output.tensor,), work=work, workspaces=(sides.parts,))


def _check(a: View, b: View, output: View, chain: Epilogue, precision: str, config: Configuration) -> None:
    """Refuse what the templates cannot take."""
    for name, view in (("a", a), ("b", b), ("output", output)):
        check_type(name, view, View, "Give a View.")
    check_type("epilogue", chain, Epilogue, "Give an epilogue, such as relu(), or None.")
    if reason := is_supported(a, b, output, chain):
        raise TensorMismatchError("a, b, output", reason, "Give views of matrices that can be multiplied.")
    check_name("template", config.template, TEMPLATES)
    check_name("precision", precision, PRECISIONS)
    check_name("launch_order", config.launch_order, order.ORDERS)
    check_epilogue(chain, output.tensor.dtype)


def plan_of(a: View, output: View, config: Configuration) -> Plan:
    """Return tile and splits of a product, with the defaults in the place of what is left open."""
    *_, m, k = a.lengths
    *batches, _, n = output.lengths
    batch = batches[0] if batches else 1
    units = device.planned().compute_units if config.compute_units is None else config.compute_units
    itemsize, tile = a.tensor.element_size(), config.tile
    chosen = gemm.default_tile(m, n, batch, itemsize, units) if tile is None else tile
    block_m, block_n, block_k = gemm.checked_tile(chosen)
    # A length that comes with the call is always checked, and divided by what divides it whatever the call,
    # so that another one compiles nothing; splits without a tile along K leave zeros.
    m_is_fixed, k_is_fixed = (isinstance(length, int) for length in a.descriptor.lengths[-2:])
    most = triton.cdiv(k, block_k) if k_is_fixed else config.splits
    return Plan(
        batch, m, n, k, m_is_fixed, k_is_fixed, (block_m, block_n, block_k),
        splits=gemm.splits_with_work(config.splits, most),
        sum_tile=(gemm.SUM_TILE.rows, min(gemm.SUM_TILE.cols, triton.next_power_of_2(n))),
        compute_units=units,
        descriptors=config.descriptors and batch == 1,
    )  # fmt: skip


def _sum_dtypes(a: View) -> tuple[Any, torch.dtype]:
    """Return the type in which products are added up, as Triton's and as torch's."""
    return ACCUMULATORS.get(a.tensor.dtype, (tl.float32, torch.float32))


def _sides(a: View, b: View, output: View, plan: Plan) -> Sides:
    """Return operands and results as the kernels are given them."""
    block_m, _, block_k = plan.tile
    _, kept_as = _sum_dtypes(a)
    # Rows and columns of the parts are rounded up, so that they are stored whole, whatever m and n are.
    splits = plan.splits if plan.splits > 1 else 0
    shape = (splits, plan.batch, _rounded_up(plan.m), _rounded_up(plan.n))
    parts = torch.empty(shape, dtype=kept_as, device=a.tensor.device)
    of_a = _side(a, [(block_m, block_k)] if plan.descriptors else ())
    of_b = _side(b, [(block_k, width) for width in plan.widths] if plan.descriptors else ())
    of_output = _side(output, is_output=True, tile=plan.sum_tile if splits else None)
    target = of_output
    if splits:
        place = parts.stride()[2:]
        divisors = gemm.divisors(place, parts.element_size())
        target = Side((parts,), transfer.affine, place, parts.stride(1), divisors)
    # From one to the next of a batch: of a single group of 72 channels a stride of 72 would hide from the
    # compiler that addresses are multiples of 16 bytes.
    of_batch = [(each.batch_stride if plan.batch > 1 else 0,) for each in (of_a, of_b, target)]
    return Sides(of_a, of_b, target, of_output, parts, tuple(of_batch))


def _meta(a: View, plan: Plan, sides: Sides, config: Configuration, precision: str) -> dict[str, Any]:
    """Return the product's meta-parameters, but for the epilogue and the width of offsets."""
    block_m, block_n, block_k = plan.tile
    of_a, of_b, target = sides.a, sides.b, sides.target
    itemsize, (length_m, length_k) = a.tensor.element_size(), a.descriptor.lengths[-2:]
    itemsizes = (itemsize, itemsize, target.sources[0].element_size())
    of_batch = zip(sides.batch_strides, itemsizes, strict=True)
    are_described = of_a.is_described and of_b.is_described
    num_warps = config.num_warps
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDTHS": plan.widths,
        "ORDER": order.ORDERS[config.launch_order], "SPLITS": plan.splits,
        "GROUP": check_positive("group", config.group, most=order.MOST_GROUP),
        "ATOMIC": False, "ACCUMULATOR": _sum_dtypes(a)[0], "PRECISION": precision,
        "LOAD_A": of_a.place, "LOAD_B": of_b.place, "PLACE": target.place,
        "DESCRIPTORS": gemm.Descriptors(of_a.is_described, of_b.is_described, output=False),
        "CHECKS": gemm.Checks(
            not plan.m_is_fixed or plan.m % block_m != 0, plan.n % block_n != 0,
            not plan.k or not plan.k_is_fixed or (plan.k % block_k != 0 and not are_described),
        ),
        "DIVISORS": gemm.Divisors(
            gemm.divisors((divisor_of(length_m), plan.n, divisor_of(length_k)), itemsize, is_seen=False),
            (of_a.divisors, of_b.divisors, target.divisors),
            tuple([gemm.divisors(each, size) if config.aligned else (1,) for each, size in of_batch]),
        ),
        "OVERLAP": False,
        "num_warps": gemm.default_warps(block_m, block_n) if num_warps is None else num_warps,
        "num_stages": check_positive("num_stages", config.num_stages),
    }  # fmt: skip


def _product_step(
    plan: Plan, sides: Sides, config: Configuration, extras: tuple[Any, ...], meta: dict[str, Any]
) -> Step:
    """Return the step of the product, by one of the two templates."""
    of_a, of_b, target = sides.a, sides.b, sides.target
    (m, n, k), widths = (plan.m, plan.n, plan.k), plan.widths
    none = (None,) * (2 - len(widths))
    sources = (
        *of_a.sources, *_each(of_b.sources, widths), *none, *_each(target.sources, widths), *none, extras,
        m, n, k,
    )  # fmt: skip
    strides = (of_a.strides, of_b.strides, target.strides)
    of_split = sides.parts.stride(0) if plan.splits > 1 else 0
    rest = ((plan.batch,), strides, sides.batch_strides, of_split)
    block_m, block_n, _ = plan.tile
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * plan.batch * plan.splits
    programs = config.programs
    if config.template == "persistent":
        meta = {**meta, "FLATTEN": len(widths) == 1, "SPECIALIZE": False}
        most = plan.compute_units if programs is None else check_positive("programs", programs)
        return Step(gemm.gemm_persistent_kernel, (min(most, tiles),), (*sources, *rest, tiles), meta)
    if programs is not None:
        fix = "Give it to persistent programs, or None."
        raise InvalidArgumentError("programs", f"got {programs}", fix)
    return Step(gemm.gemm_kernel, (tiles,), (*sources, 0, *rest), meta)


def _sum_step(plan: Plan, sides: Sides, bound: Bound, *, is_wide: bool) -> Step:
    """Return the step that adds up the parts of splits."""
    rows, cols = plan.sum_tile
    of_output, (*_, of_target) = sides.output, sides.batch_strides
    return Step(
        gemm.sum_of_splits_kernel, (triton.cdiv(plan.m, rows) * triton.cdiv(plan.n, cols) * plan.batch,),
        (
            sides.parts, *of_output.sources, bound.extras, plan.m, plan.n, (plan.batch,),
            sides.target.strides, of_output.strides, of_target, (of_output.batch_stride,),
            sides.parts.stride(0),
        ),
        {"BLOCK_M": rows, "BLOCK_N": cols, "SPLITS": plan.splits, "EPILOGUE": bound.functors,
         "PLACE": of_output.place, "WIDE": is_wide, "OVERLAP": False},
    )  # fmt: skip


def _rounded_up(size: int) -> int:
    """To a multiple of what Triton looks for in a stride."""
    return -(-size // STORED_TOGETHER) * STORED_TOGETHER


def _each(sources: tuple[Any, ...], widths: tuple[int, ...]) -> tuple[Any, ...]:
    """A source for each part of a tile."""
    return sources if len(sources) == len(widths) else sources * len(widths)


def _side(
    view: View,
    blocks: Sequence[tuple[int, int]] = (),
    *,
    is_output: bool = False,
    tile: tuple[int, int] | None = None,
) -> Side:
    """How the kernel finds a view's elements; by tensor descriptors of `blocks`, where there can be some.

    Args:
        tile: in which an output is stored; None for tiles of products.
    """
    strides = view.strides
    if strides is None:
        described_matrix, batch_stride = of_a_batch(view.descriptor)
        access = access_of(described_matrix, tile)
        params = access.params(view.symbols, view.tensor.device)
        place = access.function if is_output else loader_of(described_matrix)
        step = evaluate(batch_stride, view.symbols)
        return Side((view.tensor,), place, params, step, (1,) * len(params))
    *batch_strides, row_stride, col_stride = strides
    step = batch_strides[0] if batch_strides else 0
    divisors = gemm.divisors((row_stride, col_stride), view.tensor.element_size())
    pointer = Side((view.tensor,), transfer.affine, (row_stride, col_stride), step, divisors)
    if is_output:
        return pointer
    matrix = view.tensor.as_strided(view.lengths[-2:], (row_stride, col_stride))
    found = [gemm.descriptor_of(matrix, block) for block in blocks]
    described = [one for one in found if one is not None]
    loader = gemm.loader_of(described if blocks and len(described) == len(found) else None)
    if not blocks or len(described) < len(found):
        return pointer._replace(place=loader)
    # Of the tensor itself, by which a launch that is started again knows what to put in its place.
    sources = tuple([replace(one.descriptor, base=view.tensor) for one in described])
    return pointer._replace(sources=sources, place=loader, is_described=True)


def _reach(view: View) -> int:
    """Elements of the memory that offsets go through, tiles that hang over included, roughly."""
    reach = view.descriptor.bind(**view.symbols).reach
    return 2 * max(abs(reach.low or 0), abs(reach.high or 0))
