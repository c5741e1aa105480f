"""Invoker of attention's forward pass: checks, plan, and steps of the portable or the Hopper kernel."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.device import planned
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels.attention import hopper
from workbench.kernels.attention.kernel import (
    attention_kernel,
    clear_slack_kernel,
    merge_kernel,
    visits_kernel,
)
from workbench.kernels.attention.plan import (
    Configuration,
    Options,
    Plan,
    check_supported,
    check_tile,
    described,
    is_wide,
    output_dtype,
    parts_of,
    plan_of,
    shared_meta,
    sum_dtypes,
    why_not_hopper,
    work_of,
)
from workbench.kernels.attention.scoring import PLAIN, Scoring
from workbench.kernels.gemm import PRECISIONS, overlapped
from workbench.kernels.layout import may_share
from workbench.kernels.options import from_options
from workbench.kernels.tile import scores
from workbench.launch import Launch, Step

# With at most this many splits, the step that merges them is started while they run. (One query of 32 heads
# on 8 heads of keys, H200: this gains 0.4 to 1.4 us with 2 splits, and loses 0.2 to 0.7 us with 16; no number
# between them was measured.)
MOST_SPLITS_OVERLAPPED = 4

# Elements of a tile in the kernel that clears rows outside all sequences.
ELEMENTS_CLEARED = 8192

# Weights lie between 0 and 1. In fp8 they are stored times 2^BOOST, so that more of them are normal numbers;
# the largest stays finite.
BOOSTS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}


class Operands(NamedTuple):
    """Operands and results of attention.

    Attributes:
        query, key, value, output: (batch, heads, rows, columns) each.
        log_sums: log-sum-exps of the scores, (batch, heads, queries).
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    log_sums: torch.Tensor


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scoring: Scoring = PLAIN,
    *,
    output: torch.Tensor | None = None,
    log_sums: torch.Tensor | None = None,
    visits: torch.Tensor | None = None,
    precision: str = "ieee",
    **options: Unpack[Options],
) -> Launch:
    """Attention of each head: softmax(scale * query @ key^T) @ value, over the keys that a query sees.

    A query that sees no key has an output of 0 and a log-sum-exp of -inf. Products are accumulated in fp32,
    or in fp64 for fp64; weights are rounded to the dtype of value. For fp8 the output is in bf16.

    FLOPs: for each pair of a query and a key that it sees, 2 for each column of the key and 2 for each column
    of the value. Least bytes: query, key and value read once, output and log-sum-exps written once.

    Args:
        query: (batch, heads, queries, columns), with any strides and a dtype in `SUPPORTED`.
        key: (batch, key heads, keys, columns). The number of key heads divides the number of heads, and
            neighboring heads share a key head.
        value: (batch, key heads, keys, columns of the output).
        scoring: the scale, window, mask, hooks, dropout and starts of sequences.
        output: memory for the result, with any strides in which no two elements share memory.
        log_sums: memory for the log-sum-exps, contiguous; fp32, or fp64 for fp64.
        visits: the output of :func:`visits_launch` for the mask and this tile. None: with a mask, and as many
            queries as a tile has or more, a first step of the launch computes it.
        precision: of fp32 products: "ieee" or "tf32", which truncates operands (cuBLAS rounds them).
        options: tile, splits, warps and the rest, see `plan.Options`.

    Returns:
        a launch with the outputs (result, log-sum-exps of the scores, [batch, heads, queries]). Its `work` is
        None if there is a mask or there are starts.

    Raises:
        TensorMismatchError: an operand, `output` or `log_sums` is not a tensor that fits the others.
        UnknownNameError: `precision` is unknown. InvalidArgumentError, ArgumentTypeError: another argument is
        invalid.
    """
    config = from_options(Configuration, options)
    check_type("scoring", scoring, Scoring, "Give a Scoring.")
    check_supported(query, key, value, scoring)
    check_name("precision", precision, PRECISIONS)
    for name, memory in (("output", output), ("log_sums", log_sums)):
        check_type(name, memory, torch.Tensor | None, "Give a torch.Tensor, or None to allocate one.")
    if config.splits is not None:
        check_positive("splits", config.splits)
    output, log_sums = _results(query, value, output, log_sums)
    given = Operands(query, key, value, output, log_sums)
    work = work_of(*given, scoring)
    if log_sums.numel() == 0:
        return Launch((), (output, log_sums), work=work)
    if config.hopper is not None:
        if reason := why_not_hopper(query, key, value, scoring):
            raise InvalidArgumentError(
                "hopper", reason, "Leave it out: the portable kernel takes these arguments."
            )
        step = _step_on_hopper(given, scoring, config.hopper)
        return Launch((step,), (output, log_sums), work=work)
    plan = plan_of(query, key, value, scoring, config)
    steps, spaces = _portable_steps(given, scoring, plan, visits, precision)
    return Launch(steps, (output, log_sums), work=work, workspaces=spaces)


def _results(
    query: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None, log_sums: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check the memory of output and log-sum-exps, or allocate it."""
    wanted, dtype = (*query.shape[:3], value.shape[3]), output_dtype(query.dtype)
    if output is None:
        output = query.new_empty(wanted, dtype=dtype)
    elif tuple(output.shape) != wanted or output.dtype != dtype or output.device != query.device:
        given = f"{output.dtype} {tuple(output.shape)} on {output.device}"
        raise TensorMismatchError("output", given, f"Give a tensor of {dtype} {wanted} on {query.device}.")
    elif may_share(output.shape, output.stride()):
        given = f"of strides {output.stride()}, its elements share memory"
        raise TensorMismatchError("output", given, "Give a tensor whose elements do not share memory.")
    _, kept_as = sum_dtypes(query.dtype)
    if log_sums is None:
        log_sums = torch.empty(wanted[:3], dtype=kept_as, device=query.device)
    elif (tuple(log_sums.shape), log_sums.dtype, log_sums.device) != (
        wanted[:3], kept_as, query.device,
    ) or not log_sums.is_contiguous():  # fmt: skip
        given = f"{log_sums.dtype} {tuple(log_sums.shape)}, strides {log_sums.stride()}, on {log_sums.device}"
        fix = f"Give a contiguous tensor of {kept_as} {wanted[:3]} on {query.device}."
        raise TensorMismatchError("log_sums", given, fix)
    return output, log_sums


def _portable_steps(
    given: Operands, scoring: Scoring, plan: Plan, visits: torch.Tensor | None, precision: str
) -> tuple[tuple[Step, ...], tuple[torch.Tensor, ...]]:
    """Return the steps of a launch of the portable kernel, and their workspaces.

    The steps list visits, attend, merge splits and clear rows outside all sequences, each where needed.
    """
    before: tuple[Step, ...] = ()
    spaces: tuple[torch.Tensor, ...] = ()
    extents, starts = plan.extents, scoring.starts
    if scoring.mask is not None and visits is None and extents.queries >= plan.tile[0]:
        heads, device = given.query.shape[1], given.query.device
        finding = visits_launch(
            scoring, extents.sequences, heads, extents.queries, extents.keys, plan.tile, device
        )
        (visits,), before = finding.outputs, finding.steps
        spaces = finding.outputs if before else ()
    if plan.splits == 1:
        steps: tuple[Step, ...] = (_portable_step(given, None, scoring, plan, visits, precision),)
    else:
        _, kept_as = sum_dtypes(given.query.dtype)
        parts, part_sums = (
            torch.empty((plan.splits, *result.shape), dtype=kept_as, device=result.device)
            for result in (given.output, given.log_sums)
        )
        spaces += (parts, part_sums)
        steps = (
            _portable_step(given, (parts, part_sums), scoring, plan, visits, precision),
            merge_step(parts, part_sums, given.output, given.log_sums),
        )
        if plan.splits <= MOST_SPLITS_OVERLAPPED:
            steps = overlapped(*steps)
    if starts is not None:  # as the last step, because the step that merges splits writes all rows
        steps = (*steps, clear_slack_step(starts.queries, (given.output,), given.log_sums))
    return tuple([each for each in (*before, *steps) if each.programs]), spaces


def _portable_step(
    given: Operands,
    parts: tuple[torch.Tensor, torch.Tensor] | None,
    scoring: Scoring,
    plan: Plan,
    visits: torch.Tensor | None,
    precision: str,
) -> Step:
    """Return the step of the portable kernel.

    Args:
        parts: outputs and log-sum-exps, with the splits as the first dimension of both; None without splits.
    """
    query, key, value, output, log_sums = given
    (heads, size), (key_heads, value_size) = query.shape[1::2], value.shape[1::2]
    extents = plan.extents
    written, sums = (output, log_sums) if parts is None else parts
    output_strides, sums_strides = written.stride(), sums.stride()[:-1]
    if parts is None:
        output_strides, sums_strides = (0, *output_strides), (0, *sums_strides)
    sources = _sources(given, plan)
    meta = {
        **shared_meta(scoring, size, value_size, plan.tile, extents.queries * plan.packed, extents.keys),
        "TYPE": sum_dtypes(query.dtype)[0], "PRECISION": precision, "BOOST": BOOSTS.get(query.dtype, 0),
        "SPLITS": plan.splits, "VISITS": visits is not None,
        "DESCRIPTORS": isinstance(sources[0], TensorDescriptor), "SPECIALIZED": plan.specialized,
        "WIDE": is_wide(query, key, value, written), "OVERLAP": False,
        "num_warps": plan.num_warps, "num_stages": plan.num_stages,
    }  # fmt: skip
    return Step(
        attention_kernel, (plan.programs * plan.splits,),
        (
            *sources, written, sums, heads, heads // max(key_heads, 1), extents.queries, extents.keys, size,
            value_size, plan.packed, query.stride(), key.stride(), value.stride(), output_strides,
            sums_strides, *scoring.arguments(size),
            () if visits is None else visited(visits, extents.sequences, heads),
        ),
        meta,
    )  # fmt: skip


def _sources(given: Operands, plan: Plan) -> tuple[Any, ...]:
    """Return query, key and value: as descriptors if the plan has them and all three can have one."""
    query, key, value, _, _ = given
    if plan.descriptors:
        (block_m, block_n), size, value_size = plan.tile, query.shape[3], value.shape[3]
        found = (
            described(query, block_m, parts_of(size)), described(key, block_n, parts_of(size)),
            described(value, block_n, parts_of(value_size)),
        )  # fmt: skip
        if None not in found:
            return found
    return query, key, value


def _step_on_hopper(given: Operands, scoring: Scoring, way: hopper.Way) -> Step:
    """Return the step of the kernel for Hopper."""
    query, key, value, output, log_sums = given
    (batch, heads, queries, size), (key_heads, keys, value_size) = query.shape, value.shape[1:]
    (width,), window = parts_of(size), scoring.window
    shift = window.shift + (window.right or 0) + (keys - queries if window.from_end else 0)
    programs = triton.cdiv(queries, hopper.ROWS.value * way.groups) * heads * batch
    if way.persistent:
        programs = min(programs, planned().compute_units)
    return Step(
        hopper.attention_hopper_kernel, (programs,),
        (
            *hopper.described((query, key, value), width, way.keys), output, log_sums, batch, heads,
            heads // key_heads, queries, keys, value_size, scoring.factor(size) * scores.LOG2_E.value, shift,
            output.stride(), log_sums.stride()[:2],
        ),
        {
            "BLOCK_N": way.keys, "WIDTH": width, "STAGES": way.stages, "GROUPS": way.groups,
            "TURNS": way.turns, "CAUSAL": window.right is not None, "RAGGED": keys % way.keys != 0,
            "WIDE": is_wide(output), "num_warps": 4,
        },
    )  # fmt: skip


def visits_launch(
    scoring: Scoring,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    tile: tuple[int, int],
    device: torch.device | str,
    *,
    of_keys: bool = False,
) -> Launch:
    """List the tiles of keys that each tile of queries sees, whole or in part, by window and mask.

    Args:
        scoring: a scoring with a mask.
        batch: the size of the batch, or the number of concatenated sequences.
        heads: heads of queries.
        queries, keys: their numbers, or those of the longest sequences if sequences are concatenated.
        tile: queries and keys of a tile.
        device: device of the output.
        of_keys: list the tiles of queries that see each tile of keys instead.

    Returns:
        a launch with one output, int32 [batch, heads, tiles, 2 + others]: tiles are those of queries and
        others those of keys, or the reverse for `of_keys`. The entry of a tile has the number of others that
        are seen whole, the number that are seen in part, then the numbers of both in this order. heads is 1
        if the mask does not depend on the head; batch is 1 if it does not depend on the batch and sequences
        are not concatenated.

    Raises:
        InvalidArgumentError: `scoring` has no mask, or `tile` is invalid.
    """
    if scoring.mask is None:
        raise InvalidArgumentError("scoring", "it has no mask", "Give a Scoring with a mask.")
    block_m, block_n = check_tile(tile)
    ragged = scoring.starts is not None
    tiles, others = triton.cdiv(queries, block_m), triton.cdiv(keys, block_n)
    if of_keys:
        tiles, others = others, tiles
    shape = (
        batch if scoring.mask.of_batch or ragged else 1, heads if scoring.mask.of_head else 1,
        tiles, 2 + others,
    )  # fmt: skip
    visits = torch.empty(shape, dtype=torch.int32, device=device)
    if visits.numel() == 0:
        return Launch((), (visits,))
    rules = scoring.arguments(1)
    return Launch.of(
        visits_kernel, (math.prod(shape[:3]),),
        visits, visits.stride(), shape[1], tiles, queries, keys, rules.left, rules.right, rules.shift,
        rules.mask_extra, rules.starts,
        outputs=visits, BLOCK_M=block_m, BLOCK_N=block_n, RULES=scoring.rules(1),
        FROM_END=scoring.window.from_end, RAGGED=ragged, OF_KEYS=of_keys, num_warps=4,
    )  # fmt: skip


def visited(visits: torch.Tensor, batch: int, heads: int) -> tuple[Any, ...]:
    """Return the kernels' argument `visits`, see `kernel.visits_of`, for the output of `visits_launch`."""
    return (visits, *visits.expand(batch, heads, -1, -1).stride()[:3])


def clear_slack_step(
    starts: torch.Tensor, targets: tuple[torch.Tensor, ...], log_sums: torch.Tensor | None = None
) -> Step:
    """Return the step that writes 0 to rows outside all sequences, and -inf to their log-sum-exps.

    Args:
        starts: `Starts.queries` if the rows are queries, or `Starts.keys`.
        targets: tensors of (1, heads, rows, columns), with the same heads and rows.
        log_sums: log-sum-exps of the rows, (1, heads, rows); None for none.
    """
    _, heads, rows, _ = targets[0].shape
    cols = tuple([max(16, triton.next_power_of_2(each.shape[3])) for each in targets])
    tile = max(1, ELEMENTS_CLEARED // max(cols))
    return Step(
        clear_slack_kernel, (heads * triton.cdiv(rows, tile),),
        (
            targets, tuple([each.shape[3] for each in targets]),
            tuple([each.stride()[1:] for each in targets]),
            () if log_sums is None else log_sums, 0 if log_sums is None else log_sums.stride(1),
            starts, len(starts) - 1, rows,
        ),
        {
            "ROWS": tile, "COLS": cols, "HAS_SUMS": log_sums is not None, "WIDE": is_wide(*targets),
            "num_warps": 4,
        },
    )  # fmt: skip


def merge_step(
    parts: torch.Tensor, part_sums: torch.Tensor, output: torch.Tensor, log_sums: torch.Tensor
) -> Step:
    """Return the step that merges splits: `parts` and `part_sums` into `output` and `log_sums`.

    Splits are the first dimension of `parts`, the splits' outputs, and of `part_sums`, their log-sum-exps.
    """
    splits, batch, heads, queries, value_size = parts.shape
    return Step(
        merge_kernel, (batch * heads * queries,),
        (
            parts, part_sums, output, log_sums, splits, heads, queries, value_size, parts.stride(),
            part_sums.stride(), (0, *output.stride()), (0, *log_sums.stride()),
        ),
        {
            "SPLITS": triton.next_power_of_2(splits), "COLS": max(16, triton.next_power_of_2(value_size)),
            "WIDE": is_wide(parts, output), "OVERLAP": False, "num_warps": 4,
        },
    )  # fmt: skip
