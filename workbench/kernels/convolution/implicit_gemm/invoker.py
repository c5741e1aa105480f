"""Invoker of products of described matrices."""

from __future__ import annotations

from typing import Any, Unpack

import triton

from workbench.coords.expression import divisor_of
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels import gemm
from workbench.kernels.convolution.implicit_gemm.operands import Sides, sides_of, sum_dtypes
from workbench.kernels.convolution.implicit_gemm.plan import (
    TEMPLATES,
    Configuration,
    Options,
    Plan,
    plan_of,
    refusal_of,
)
from workbench.kernels.epilogues import Bound, Epilogue, Frame, bind
from workbench.kernels.gemm import PRECISIONS, check_epilogue, with_epilogue
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS, least_bytes
from workbench.kernels.movement.view_transfer import reach_of
from workbench.kernels.options import from_options
from workbench.kernels.tile import order
from workbench.kernels.views import View
from workbench.launch import Launch, Step, Work


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
    """Multiply matrices that descriptors describe: output = epilogue(a @ b).

    Products are accumulated as by `gemm.launch`, with the same kernels.

    Args:
        a, b, output: views of [m, k], [k, n] and [m, n]; or of [batch, m, k] and so on, with a constant
            stride of the batch in memory. Invalid elements of a and b count as 0; invalid elements of the
            output are not stored.
        epilogue: functors applied to the product before it is stored, with a result that fits the output's
            dtype; None for none.
        frame: relation of the epilogue's operands to the matrices; None where they broadcast to [batch, m,
            n].
        work: FLOPs and least bytes; None for 2 m n k FLOPs for each product, and each tensor's memory once.
        precision: of fp32, as for `gemm.launch`.
        options: tile, splits, template and others, see :class:`Options`.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: the template, precision or launch order is
            unknown. InvalidArgumentError, ArgumentTypeError: another argument is invalid.
    """
    config = from_options(Configuration, options)
    chain = Epilogue() if epilogue is None else epilogue
    _check(a, b, output, chain, precision, config)
    *_, m, k = a.lengths
    *batches, _, n = output.lengths
    batch = batches[0] if batches else 1
    if work is None:
        work = Work(2 * batch * m * n * k, least_bytes(a.tensor, b.tensor, output.tensor))
    work = with_epilogue(work, chain, batch * m * n)
    if output.tensor.numel() == 0 or 0 in (batch, m, n):
        return Launch((), (output.tensor,), work=work)
    plan = plan_of(a, output, config)
    sides = sides_of(a, b, output, plan)
    _, kept_as = sum_dtypes(a)
    frame = Frame((*batches, m, n)) if frame is None else frame
    bound = bind(chain, frame, kept_as, output.tensor.dtype, a.tensor.device)
    reach = max(*(reach_of(view) for view in (a, b, output)), bound.reach) + sides.parts.numel()
    is_wide = reach > MOST_OFFSETS_IN_32_BITS
    meta = _meta(a, plan, sides, config, precision)
    meta |= {"EPILOGUE": () if plan.splits > 1 else bound.functors, "WIDE": is_wide}
    first = _product_step(plan, sides, config, () if plan.splits > 1 else bound.extras, meta)
    if plan.splits == 1:
        return Launch((first,), (output.tensor,), work=work)
    second = _sum_step(plan, sides, bound, is_wide=is_wide)
    # Where lengths are given with the call, work is not considered: another number of images could otherwise
    # change the choice, and compile anew.
    is_fixed = plan.m_is_fixed and plan.k_is_fixed
    steps = gemm.overlapping(work if is_fixed else Work(0, 0), first, second)
    return Launch(steps, (output.tensor,), work=work, workspaces=(sides.parts,))


def _check(a: View, b: View, output: View, chain: Epilogue, precision: str, config: Configuration) -> None:
    """Raise unless the templates can take the arguments."""
    for name, view in (("a", a), ("b", b), ("output", output)):
        check_type(name, view, View, "Give a View.")
    check_type("epilogue", chain, Epilogue, "Give an epilogue, such as relu(), or None.")
    if (refusal := refusal_of(a, b, output, chain)).reason:
        raise TensorMismatchError("a, b, output", *refusal)
    check_name("template", config.template, TEMPLATES)
    check_name("precision", precision, PRECISIONS)
    check_name("launch_order", config.launch_order, order.ORDERS)
    check_epilogue(chain, output.tensor.dtype)


def _meta(a: View, plan: Plan, sides: Sides, config: Configuration, precision: str) -> dict[str, Any]:
    """Return the product's meta-parameters except EPILOGUE and WIDE."""
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
        "ATOMIC": False, "ACCUMULATOR": sum_dtypes(a)[0], "PRECISION": precision,
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
    """Return the step of the product, by the simple or the persistent template."""
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
        fix = 'Give None, or template="persistent".'
        raise InvalidArgumentError("programs", f"got {programs} with template {config.template!r}", fix)
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


def _each(sources: tuple[Any, ...], widths: tuple[int, ...]) -> tuple[Any, ...]:
    """Return a source for each part of a tile: `sources`, or its only element repeated."""
    return sources if len(sources) == len(widths) else sources * len(widths)
