"""The invoker of matrix products: checks a call, plans it, and builds the launch of its template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
import triton

from workbench.device import plans_for_device
from workbench.errors import InvalidArgumentError
from workbench.kernels.epilogues import Epilogue
from workbench.kernels.gemm.constants import Descriptors, checks_of
from workbench.kernels.gemm.descriptors import descriptors_of, loader_of
from workbench.kernels.gemm.kernel import (
    MOST_AT_ONCE,
    gemm_kernel,
    gemm_persistent_kernel,
    gemm_stream_kernel,
    sum_of_splits_kernel,
    sum_of_stream_kernel,
)
from workbench.kernels.gemm.options import Options, Schedule
from workbench.kernels.gemm.overlapping import overlapping
from workbench.kernels.gemm.packing import copies_of, pack_step
from workbench.kernels.gemm.ping_pong import ping_pong_step
from workbench.kernels.gemm.placement import Placement, placement_of
from workbench.kernels.gemm.plan import Plan, plan_of
from workbench.kernels.gemm.problem import accumulator_of
from workbench.kernels.gemm.request import GemmRequest, validated
from workbench.kernels.layout import ACCESS_BYTES
from workbench.kernels.options import from_options
from workbench.kernels.tile import order, transfer
from workbench.launch import Launch, Step


class SumTile(NamedTuple):
    """Rows and columns of a tile of the step that adds up partial products."""

    rows: int
    cols: int


# Largest tile of the step that adds up split-K's partial products; elements of a tile of the step that adds
# up Stream-K's.
SUM_TILE = SumTile(rows=8, cols=128)
SUM_ELEMENTS = 2048


@plans_for_device
def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    output: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    epilogue: Epilogue | None = None,
    precision: str = "ieee",
    compute_units: int | None = None,
    device: str | None = None,
    **options: Unpack[Options],
) -> Launch:
    """output = epilogue(a @ b), or epilogue(alpha * (a @ b) + beta * addend).

    Products are accumulated in fp32 (fp64 in fp64, int8 in int32). The epilogue computes in the same type, or
    in fp32 if it makes floats of integers. It is applied once, to the whole sum, also with splits. (With the
    template "ping-pong", the first addends of a chain may be added to tiles of fp16 before their last
    products: the same numbers are added, in another order.)

    FLOPs: 2 m n k for each product, and those of the epilogue. Least bytes: operands read once, the output
    written once, the epilogue's tensors read once.

    Args:
        a, b: [..., m, k] and [..., k, n] of one dtype in `SUPPORTED` (or of two fp8 dtypes), with any
            strides; batches broadcast.
        output: [..., m, n] of any floating dtype (for int8 operands int8 or int32; with an epilogue any of
            these), with any strides by which no two elements share memory. If the epilogue permutes, it has
            the permuted shape. None for a new tensor of :func:`result_dtype`, or of the dtype that the
            epilogue makes of it.
        addend: the tensor that `beta` multiplies, which broadcasts to the output; None for the product alone.
        alpha, beta: numbers, truncated to integers for int8 operands. Without an addend, alpha must be 1 and
            beta is ignored.
        epilogue: a chain of functors (`epilogues`), whose tensors broadcast to the product; None for none.
        precision: of fp32 operands, a name in `PRECISIONS`.
        compute_units: number of compute units to plan for; None for as many as the device has.
        device: the device to plan for, a name in `targets.TARGETS` such as "sm_90"; None for the device of
            `device.planning_for`, or else the one that runs kernels here. Tensors stay where they are.
        options: template, tile, warps and so on; see :class:`~workbench.kernels.gemm.options.Options`.

    Raises:
        TensorMismatchError: tensors do not fit; the message says which. UnknownNameError: `launch_order`,
        `precision` or `device`. InvalidArgumentError, ArgumentTypeError: another argument.
    """
    request = validated(
        a, b, output, addend, alpha, beta, epilogue, precision, compute_units, from_options(Schedule, options)
    )
    built = _built(request)
    return built if request.schedule.rest is None else replace(built, work=request.whole_work)


def _built(request: GemmRequest) -> Launch:
    """Return the launch of a checked request, with steps that pack operands and steps for `rest`."""
    if request.output.numel() == 0:
        return Launch((), (request.output,), work=request.work)
    if request.schedule.pack:
        return _packed_first(request)
    if request.schedule.rest is not None:
        return _with_rest(request)
    plan = plan_of(request)
    placement = placement_of(request, plan.kept)
    if plan.template == "ping-pong":
        step = ping_pong_step(request, plan, placement)
        return Launch((step,), (request.output,), work=request.work)
    call = _call_of(request, plan, placement)
    if plan.template == "stream-k":
        return _stream(request, plan, placement, call)
    if plan.template == "persistent":
        first = _persistent_step(request, plan, call, _split_stride(placement.parts))
    else:
        first = _simple_step(request, plan, call, _split_stride(placement.parts))
    if placement.parts is None:
        return Launch((first,), (request.output,), work=request.work)
    return _summed(request, plan, placement, call, first)


def _packed_first(request: GemmRequest) -> Launch:
    """Return the launch that first copies A, B or both to the layout that the kernels prefer, if needed."""
    a, b, schedule = request.a, request.b, request.schedule
    copies = copies_of(a, b, schedule.pack) if a.shape[-1] else {}
    request = replace(request, schedule=replace(schedule, pack=False))
    if not copies:
        return _built(request)
    product = _built(replace(request, a=copies.get("a", a), b=copies.get("b", b)))
    first = pack_step({"a": a, "b": b}, copies)
    return replace(
        product, steps=overlapping(request.work, first, *product.steps), work=request.work,
        workspaces=(*copies.values(), *product.workspaces),
    )  # fmt: skip


def _with_rest(request: GemmRequest) -> Launch:
    """Return the launch with a step for the requested rows, and one with the options `rest` for later rows.

    Raises:
        InvalidArgumentError: there are no later rows.
    """
    schedule, (_, end), height = request.schedule, request.rows, request.shape[-2]
    rest = {} if schedule.rest is None else schedule.rest
    if end == height:
        rejected = f"got {dict(rest)}, but no rows are left after rows={request.rows} of {height}"
        fix = f"Give rows that end before row {height}, or rest=None."
        raise InvalidArgumentError("rest", rejected, fix)
    alone = replace(schedule, rest=None)
    above = _built(replace(request, schedule=alone))
    below = replace(request, rows=(end, height), schedule=replace(alone, rows=(end, height), **rest))
    steps = overlapping(request.work, *above.steps, *_built(below).steps)
    return Launch(steps, (request.output,), work=request.work)


class Call(NamedTuple):
    """Arguments of a product's kernels, for all templates but "ping-pong".

    Attributes:
        sources: A, the parts of B, and the parts of the target, as tensors, descriptors or None.
        extras: the epilogue's arguments; empty if another kernel applies the epilogue.
        sizes: m, n, k, and the sizes of the batch. strides, batch_strides: of A, B and the target.
        numbering: meta-parameters that the product's kernel shares with the one that sums Stream-K's parts.
        meta: all meta-parameters of the product's kernel that do not depend on the template.
    """

    sources: tuple[Any, ...]
    extras: tuple[Any, ...]
    sizes: tuple[int, int, int, tuple[int, ...]]
    strides: tuple[Any, ...]
    batch_strides: tuple[tuple[int, ...], ...]
    numbering: dict[str, Any]
    meta: dict[str, Any]


class Sources(NamedTuple):
    """Operands of a product's kernels: which are descriptors, loaders of A and B, and the arguments."""

    are_described: Descriptors
    load_a: Any
    load_b: Any
    arguments: tuple[Any, ...]


def _call_of(request: GemmRequest, plan: Plan, placement: Placement) -> Call:
    """Return the arguments of the kernels of a planned product."""
    a, output, parts = request.a, request.output, placement.parts
    (block_m, block_n, block_k), problem, bound = plan.tile, placement.problem, placement.bound
    of_a, of_b, of_target, *_ = problem.matrices
    target, place, of_place, functors, extras = (
        output, placement.place, placement.place_params, bound.functors, bound.extras,
    )  # fmt: skip
    if parts is not None and placement.of_parts is not None:
        target, of_target = parts, placement.of_parts
        place, of_place, functors, extras = transfer.affine, of_target.strides, (), ()
    sources = _sources_of(request, plan, placement, target)
    known = problem.divisors(
        a.element_size(), of_target, target.element_size(), is_affine=place is transfer.affine
    )
    numbering = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDTHS": plan.widths,
        "ORDER": order.ORDERS[request.schedule.launch_order], "GROUP": plan.group,
        "DIVISORS": known, "WIDE": placement.is_wide(plan.tile, output), "OVERLAP": False,
    }  # fmt: skip
    m, n, k = problem.sizes
    described = sources.are_described
    meta = numbering | {
        "EPILOGUE": functors, "ACCUMULATOR": accumulator_of(a.dtype).in_triton,
        "PRECISION": request.precision,
        "LOAD_A": sources.load_a, "LOAD_B": sources.load_b,
        "PLACE": place, "DESCRIPTORS": described,
        "CHECKS": checks_of(
            (request.height, n, k), plan.tile, are_described=described.a and described.b
        ),
        "num_warps": plan.num_warps, "num_stages": plan.num_stages,
    }  # fmt: skip
    return Call(
        sources.arguments, extras, (m, n, k, problem.batch_sizes),
        (of_a.strides, of_b.strides, of_place), (of_a.batch, of_b.batch, of_target.batch), numbering, meta,
    )  # fmt: skip


def _sources_of(request: GemmRequest, plan: Plan, placement: Placement, target: torch.Tensor) -> Sources:
    """Return A, B and the target, as descriptors if these are requested and possible.

    Args:
        target: the tensor that is written: the output, or partial products.
    """
    a, b, output, (block_m, _, block_k) = request.a, request.b, request.output, plan.tile
    halves = [2 if placement.bound.functors and block_m * w > MOST_AT_ONCE.value else 1 for w in plan.widths]
    stored = [width // half for width, half in zip(plan.widths, halves, strict=True)]
    blocks = ([(block_m, block_k)], [(block_k, w) for w in plan.widths], [(block_m, w) for w in stored])
    may_describe = request.schedule.descriptors and request.batch == 1
    of_a, of_b, of_output = (
        descriptors_of(tensor, shapes) if may_describe else None
        for tensor, shapes in zip((a, b, output), blocks, strict=True)
    )
    (first_row, end), height = request.rows, request.shape[-2]
    if of_a and of_a[0].is_transposed and first_row * a.element_size() % ACCESS_BYTES:
        of_a = None  # blocks must begin at a multiple of 16 bytes within a row of the transpose, too
    hangs_over_rest = end < height and request.height % block_m
    is_elsewhere = target is not output or request.chain.permuted is not None
    if is_elsewhere or hangs_over_rest or (of_output and of_output[0].is_transposed):
        of_output = None
    from_a, from_b, into = (
        [one.descriptor for one in many] if many else [tensor] * len(shapes)
        for tensor, many, shapes in zip((a, b, target), (of_a, of_b, of_output), blocks, strict=True)
    )
    none = [None] * (2 - len(plan.widths))
    return Sources(
        Descriptors(bool(of_a), bool(of_b), bool(of_output)), loader_of(of_a), loader_of(of_b),
        (*from_a, *from_b, *none, *into, *none),
    )  # fmt: skip


def _split_stride(parts: torch.Tensor | None) -> int:
    """Return the stride from one partial product to the next; 0 if there is at most one."""
    return 0 if parts is None or parts.shape[0] == 1 else parts.stride(0)


def _of_splits(request: GemmRequest, plan: Plan) -> dict[str, Any]:
    """Return SPLITS and ATOMIC, the meta-parameters of kernels that can compute a share of K."""
    return {"SPLITS": plan.splits, "ATOMIC": bool(plan.kept and request.schedule.atomic)}


def _simple_step(request: GemmRequest, plan: Plan, call: Call, split_stride: int) -> Step:
    """Return the step with one program for each tile, or for each split of a tile."""
    m, n, k, batch_sizes = call.sizes
    return Step(
        gemm_kernel, (plan.programs,),
        (
            *call.sources, call.extras, m, n, k, request.rows[0], batch_sizes, call.strides,
            call.batch_strides, split_stride,
        ),
        call.meta | _of_splits(request, plan),
    )  # fmt: skip


def _persistent_step(request: GemmRequest, plan: Plan, call: Call, split_stride: int) -> Step:
    """Return the step of persistent programs, which take tile by tile."""
    schedule = request.schedule
    is_flat = len(plan.widths) == 1 if schedule.flatten is None else schedule.flatten
    return Step(
        gemm_persistent_kernel, (plan.programs,),
        (
            *call.sources, call.extras, *call.sizes, call.strides, call.batch_strides, split_stride,
            plan.tiles * plan.splits,
        ),
        call.meta | _of_splits(request, plan) | {"FLATTEN": is_flat, "SPECIALIZE": schedule.specialize},
    )  # fmt: skip


def _summed(request: GemmRequest, plan: Plan, placement: Placement, call: Call, first: Step) -> Launch:
    """Return the launch of a split product, whose partial products a second step adds up."""
    parts, of_parts, output = placement.parts, placement.of_parts, request.output
    assert parts is not None  # only products with partial sums come here
    assert of_parts is not None
    m, n, _, batch_sizes = call.sizes
    rows, cols = min(SUM_TILE.rows, triton.next_power_of_2(m)), min(SUM_TILE.cols, triton.next_power_of_2(n))
    second = Step(
        sum_of_splits_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, cols) * request.batch,),
        (
            parts, output, placement.bound.extras, m, n, batch_sizes, of_parts.strides,
            placement.place_params, of_parts.batch, placement.of_output.batch, _split_stride(parts),
        ),
        {
            "BLOCK_M": rows, "BLOCK_N": cols, "SPLITS": plan.kept, "EPILOGUE": placement.bound.functors,
            "PLACE": placement.place, "WIDE": call.numbering["WIDE"], "OVERLAP": False,
        },
    )  # fmt: skip
    return Launch(
        overlapping(request.work, first, second), (output,),
        accumulators=(parts,) if request.schedule.atomic else (), work=request.work, workspaces=(parts,),
    )  # fmt: skip


def _stream(request: GemmRequest, plan: Plan, placement: Placement, call: Call) -> Launch:
    """Return the launch by Stream-K: waves of whole tiles, then shares of the tiles of the last two waves."""
    tiles, programs, output, work = plan.tiles, plan.programs, request.output, request.work
    alone = tiles if tiles % programs == 0 else max(tiles // programs - 1, 0) * programs
    rows, cols, _ = plan.tile
    kept_as = accumulator_of(request.a.dtype).in_torch
    parts = torch.empty((programs, 2, rows, cols), dtype=kept_as, device=output.device)
    arguments = (call.extras, *call.sizes, call.strides, call.batch_strides, tiles, alone)
    first = Step(gemm_stream_kernel, (programs,), (*call.sources, parts, *arguments), call.meta)
    if alone == tiles:
        return Launch((first,), (output,), work=work, workspaces=(parts,))
    together = max(min(triton.next_power_of_2(SUM_ELEMENTS // cols), rows), 1)
    second = Step(
        sum_of_stream_kernel, ((tiles - alone) * (rows // together),),
        (output, parts, *arguments, programs),
        call.numbering
        | {
            "ROWS": together, "EPILOGUE": placement.bound.functors, "PLACE": placement.place,
            "DESCRIPTORS": Descriptors(False, False, False),
        },
    )  # fmt: skip
    return Launch(overlapping(work, first, second), (output,), work=work, workspaces=(parts,))
