"""A checked call of `gemm.launch`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_type,
)
from workbench.kernels import epilogues
from workbench.kernels.epilogues import Epilogue, Frame, expanded
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm.checks import check_cast, check_plain, checked_tile
from workbench.kernels.gemm.options import TEMPLATES, Rest, Schedule
from workbench.kernels.gemm.permuted import stored_shape
from workbench.kernels.gemm.problem import (
    OPERANDS_WANTED,
    PRECISIONS,
    batch_shape,
    is_supported,
    output_dtypes,
    powers_of_two,
    result_dtype,
    with_epilogue,
)
from workbench.kernels.layout import least_bytes
from workbench.kernels.tile import order
from workbench.launch import Work


@dataclass(frozen=True, eq=False)
class GemmRequest:
    """Checked arguments of `gemm.launch`.

    Attributes:
        a, b, output: [..., m, k], [..., k, n], and [..., m, n] unless the epilogue permutes.
        chain: the epilogue, after the functor of an addend. views: its tensors, in the product's shape.
        shape: of the product.
        rows: the first row to compute, and the one after the last.
        work: FLOPs and least bytes of these rows.
        precision: a name in `PRECISIONS`.
        compute_units: of the device to plan for, as given; None for as many as it has.
        schedule: the options.
    """

    a: torch.Tensor
    b: torch.Tensor
    output: torch.Tensor
    chain: Epilogue
    views: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]
    rows: tuple[int, int]
    work: Work
    precision: str
    compute_units: int | None
    schedule: Schedule

    @property
    def batch(self) -> int:
        """Number of products."""
        return math.prod(self.shape[:-2])

    @property
    def height(self) -> int:
        """Number of rows to compute."""
        return self.rows[1] - self.rows[0]

    @property
    def whole_work(self) -> Work:
        """FLOPs and least bytes of the launch, including the rows that `rest` computes."""
        if self.schedule.rest is None:
            return self.work
        return _work(self.a[self.rows[0] :], self.b, self.output, self.chain)


def validated(
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor | None,
    addend: torch.Tensor | None,
    alpha: float,
    beta: float,
    epilogue: Epilogue | None,
    precision: str,
    compute_units: int | None,
    schedule: Schedule,
) -> GemmRequest:
    """Return the request of these arguments of `gemm.launch`, with a new output if it is None.

    Raises:
        The errors of `gemm.launch`, except for tile, programs, warps, stages, group and compute units, which
        `plan_of` checks.
    """
    for name, tensor in (("a", a), ("b", b)):
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
    if reason := is_supported(a, b):
        raise TensorMismatchError("a, b", reason, OPERANDS_WANTED)
    _check_schedule(schedule, precision)
    shape = (*batch_shape(a, b), a.shape[-2], b.shape[-1])
    chain = _chain(addend, alpha, beta, epilogue, is_whole=a.dtype == torch.int8)
    stored = stored_shape(chain, shape)
    if output is None:
        output = torch.empty(stored, dtype=chain.result_dtype(result_dtype(a.dtype)), device=a.device)
    _check_output(output, stored, a, chain)
    views = expanded(chain, Frame(shape), a.device)
    rows = _checked_rows(schedule.rows, shape, schedule.template, schedule.splits)
    work = _work(a if schedule.rows is None else a[slice(*rows)], b, output, chain)
    _check_pack_and_rest(schedule.pack, schedule.rest)
    if schedule.pack and output.numel() and (a.dim(), b.dim()) != (2, 2):
        rejected = f"got {schedule.pack} for a batch"
        raise InvalidArgumentError("pack", rejected, "Give two matrices, or pack=False.")
    return GemmRequest(
        a, b, output, chain, tuple(views), shape, rows, work, precision, compute_units, schedule
    )


def _check_schedule(schedule: Schedule, precision: str) -> None:
    """Raise if a name among the options is unknown, or if the template does not take another option."""
    check_name("launch_order", schedule.launch_order, order.ORDERS)
    check_name("precision", precision, PRECISIONS)
    check_name("template", schedule.template, TEMPLATES)
    template, tile, splits = schedule.template, schedule.tile, schedule.splits
    if template == "stream-k" and tile is not None and len(powers_of_two(checked_tile(tile)[1])) > 1:
        # As Triton 3.6 compiles it for Hopper, with masks, the second part is wrong, differently each time.
        raise InvalidArgumentError(
            "tile",
            f"got {tuple(tile)} for stream-k",
            f"Give a power of two of columns instead of {tile[1]}, or another template.",
        )
    if template == "stream-k" and splits not in (None, 1):
        given, fix = f"got {splits} for stream-k", "Stream-K splits by itself: give 1, or None."
        raise InvalidArgumentError("splits", given, fix)
    if template == "ping-pong":
        warps = schedule.num_warps
        if splits not in (None, 1):
            raise InvalidArgumentError(
                "splits", f"got {splits} for ping-pong", "Give 1, or another template."
            )
        if schedule.pack:
            given = f"got {schedule.pack} for ping-pong"
            raise InvalidArgumentError("pack", given, "Give False, or another template.")
        if warps not in (None, gemm_hopper.WARPS):
            given, fix = f"got {warps} for ping-pong", f"Give {gemm_hopper.WARPS}, or another template."
            raise InvalidArgumentError("num_warps", given, fix)
    if template == "simple" and schedule.programs is not None:
        rejected = f"got {schedule.programs} for the template simple, which starts one for each tile"
        raise InvalidArgumentError("programs", rejected, "Give programs=None, or another template.")


def _chain(
    addend: torch.Tensor | None, alpha: float, beta: float, epilogue: Epilogue | None, *, is_whole: bool
) -> Epilogue:
    """Return the epilogue, after the functor of the addend if there is one.

    Args:
        is_whole: whether products are integers, for which alpha and beta are truncated to integers.
    """
    check_type("addend", addend, torch.Tensor | None, "Give a torch.Tensor, or None.")
    check_type("epilogue", epilogue, Epilogue | None, "Give an epilogue, such as relu(), or None.")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentTypeError(name, f"got {value!r}", "Give a number.")
    chain = Epilogue() if epilogue is None else epilogue
    if addend is not None:
        numbers = (int(alpha), int(beta)) if is_whole else (float(alpha), float(beta))
        return epilogues.add_scaled(addend, *numbers) | chain
    if alpha != 1:
        raise InvalidArgumentError("alpha", f"got {alpha}, without an addend", "Give an addend, or alpha=1.")
    return chain


def _work(a: torch.Tensor, b: torch.Tensor, output: torch.Tensor, chain: Epilogue) -> Work:
    """Return FLOPs and least bytes of a product of these rows of A, including its epilogue."""
    made = math.prod((*batch_shape(a, b), a.shape[-2], b.shape[-1]))
    size = least_bytes(a, b) + made * output.element_size()
    return with_epilogue(Work(2 * made * a.shape[-1], size), chain, made)


def _check_output(output: torch.Tensor, shape: tuple[int, ...], a: torch.Tensor, chain: Epilogue) -> None:
    check_type("output", output, torch.Tensor, "Give a torch.Tensor, or None.")
    if tuple(output.shape) != shape or output.device != a.device:
        given = f"shape {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give a tensor of shape {shape} on {a.device}.")
    check_cast(chain, output.dtype)
    if output.dtype not in output_dtypes(a.dtype, chain):
        names = ", ".join(str(dtype)[6:] for dtype in output_dtypes(a.dtype, chain))
        given = f"got {output.dtype} for operands of {a.dtype}"
        raise TensorMismatchError("output", given, f"Give a tensor of one of {names}.")
    check_plain(output)


def _check_pack_and_rest(pack: bool | Sequence[str], rest: Mapping[str, Any] | None) -> None:
    check_type("pack", pack, bool | tuple | list, "Give True or False, or names such as ('b',).")
    for name in () if isinstance(pack, bool) else pack:
        check_name("pack", name, ("a", "b"))
    check_type("rest", rest, Mapping | None, "Give a dict such as {'tile': (64, 128, 64)}, or None.")
    for name in rest or ():
        check_name("rest", name, Rest._fields)


def _checked_rows(
    rows: tuple[int, int] | None, shape: tuple[int, ...], template: str, splits: int | None
) -> tuple[int, int]:
    """Return the first row to compute, and the one after the last."""
    if rows is None:
        return 0, shape[-2]
    if len(shape) != 2:
        given = f"got {rows} for a product of shape {shape}, a batch"
        raise InvalidArgumentError("rows", given, "Give two matrices, or rows=None.")
    if template != "simple":
        fix = "Give the template simple, or rows=None."
        raise InvalidArgumentError("rows", f"got {rows} for the template {template}", fix)
    if splits not in (None, 1):
        raise InvalidArgumentError("rows", f"got {rows} with splits={splits}", "Give splits=1, or rows=None.")
    if not (isinstance(rows, tuple) and len(rows) == 2 and all(type(row) is int for row in rows)):
        raise ArgumentTypeError("rows", f"got {rows!r}", "Give two integers, such as (0, 128).")
    if not 0 <= rows[0] < rows[1] <= shape[0]:
        fix = f"Give (begin, end) with 0 <= begin < end <= {shape[0]}."
        raise InvalidArgumentError("rows", f"got {rows}", fix)
    return rows
