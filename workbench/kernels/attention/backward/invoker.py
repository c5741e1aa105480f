"""Invoker of attention's gradients: checks, then the steps of one of the two designs in `kernels.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import compat
from workbench.errors import InvalidArgumentError, TensorMismatchError, check_each, check_name, check_type
from workbench.kernels.attention.backward.kernels import (
    delta_kernel,
    gradients_of_keys_kernel,
    gradients_of_queries_kernel,
    round_kernel,
)
from workbench.kernels.attention.backward.plan import (
    DescribedOperands,
    default_tilings,
    refusal_of,
)
from workbench.kernels.attention.invoker import clear_slack_step, visited, visits_launch
from workbench.kernels.attention.plan import (
    Tiling,
    check_tile,
    described,
    is_wide,
    parts_of,
    shared_meta,
    sum_dtypes,
    work_of,
)
from workbench.kernels.attention.scoring import PLAIN, Scoring
from workbench.kernels.gemm import PRECISIONS
from workbench.kernels.layout import may_share
from workbench.launch import Launch, Step

Gradients: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Operands(NamedTuple):
    """Tensors that gradients are computed from.

    Attributes:
        gradient: gradient of the output, with its shape.
        query, key, value, output: operands and output of attention, (batch, heads, rows, columns) each.
        log_sums: log-sum-exps of the scores, (batch, heads, queries).
    """

    gradient: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    log_sums: torch.Tensor


def launch(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    scoring: Scoring = PLAIN,
    *,
    one_pass: bool = False,
    precision: str = "ieee",
    gradients: Gradients | None = None,
    of_keys: Tiling | None = None,
    of_queries: Tiling | None = None,
) -> Launch:
    """Compute the gradients of query, key and value from the gradient of the output.

    FLOPs: those of five products: for each pair of a query and a key that it sees, 6 for each column of the
    key and 4 for each column of the value. Least bytes: all arguments read once, the gradients written once.

    Args:
        gradient: of the output, with its shape; any strides.
        query, key, value, scoring: the arguments of `attention.launch`; not fp8.
        output, log_sums: the outputs of that launch.
        one_pass: let the kernel that keeps keys add to the gradient of queries too. The order of additions,
            and so the rounding, differs from run to run.
        precision: of fp32 products: "ieee" or "tf32", which truncates operands (cuBLAS rounds them).
        gradients: memory for the gradients of query, key and value, each with the shape and dtype of its
            tensor. None: see :func:`new_gradients`.
        of_keys, of_queries: tilings of the kernel that keeps keys and of the one that keeps queries. None:
            see :func:`default_tilings`.

    Returns:
        a launch with three outputs, the gradients of query, key and value.

    Raises:
        TensorMismatchError: tensors do not fit. UnknownNameError: `precision` is unknown.
        InvalidArgumentError: a hook has no gradient, a tile is invalid, or `gradients` are not three.
        ArgumentTypeError: another argument has the wrong type.
    """
    given = Operands(gradient, query, key, value, output, log_sums)
    _check(given, scoring, precision)
    for name, tiling in (("of_keys", of_keys), ("of_queries", of_queries)):
        check_type(name, tiling, Tiling | None, "Give a Tiling.")
    gradients = new_gradients(query, key, value) if gradients is None else gradients
    _check_gradients(gradients, given)
    work = work_of(query, key, value, output, log_sums, scoring, products=5)
    of_query, of_key, of_value = gradients
    if of_query.numel() + of_key.numel() + of_value.numel() == 0:
        return Launch((), gradients, work=work)
    if not query.shape[1]:
        # Accumulators are zeroed, and no step adds to them.
        return Launch((), gradients, accumulators=(of_key, of_value), work=work)
    defaults = default_tilings(query.dtype, max(query.shape[3], value.shape[3]))
    builder = _Builder(given, gradients, scoring, precision)
    if log_sums.numel():
        builder.add_deltas()
    sums = builder.new_sums() if one_pass else of_query
    builder.add_keys(of_keys or defaults[0], sums, one_pass=one_pass)
    if one_pass:
        builder.add_rounding(sums)
    else:
        builder.add_queries(of_queries or defaults[1])
    if scoring.starts is not None:
        builder.add_clearing(one_pass=one_pass)
    steps = tuple([step for step in builder.steps if step.programs])
    return Launch(steps, gradients, (sums,) if one_pass else (), work, tuple(builder.spaces))


def _check(given: Operands, scoring: Scoring, precision: str) -> None:
    """Raise unless the kernels support these arguments."""
    check_type("scoring", scoring, Scoring, "Give a Scoring.")
    if (refusal := refusal_of(*given, scoring)).reason:
        raise TensorMismatchError("gradient, query, key, value, output, log_sums", *refusal)
    check_name("precision", precision, PRECISIONS)
    for hook in scoring.hooks:
        if not compat.is_kernel(hook.gradient):
            raise InvalidArgumentError(
                "scoring.hooks", f"{hook.function} has the gradient {hook.gradient!r}",
                "Give Hook(function, extra, gradient), with a gradient decorated with @triton.jit.",
            )  # fmt: skip


def _check_gradients(gradients: Gradients, given: Operands) -> None:
    """Raise unless each gradient fits its tensor, and no two elements of it share memory."""
    fix = "Give three tensors: the gradients of query, of key and of value."
    if len(check_each("gradients", gradients, torch.Tensor, fix)) != 3:
        raise InvalidArgumentError("gradients", f"got {len(gradients)} tensors", fix)
    operands = {"query": given.query, "key": given.key, "value": given.value}
    for tensor, (name, of) in zip(gradients, operands.items(), strict=True):
        if (tensor.shape, tensor.dtype, tensor.device) != (of.shape, of.dtype, of.device):
            words = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise TensorMismatchError(
                f"gradients, of {name}",
                words,
                f"Give a tensor of {of.dtype} {tuple(of.shape)} on {of.device}.",
            )
        if may_share(tensor.shape, tensor.stride()):
            shared = f"its elements share memory, with strides {tensor.stride()}"
            fix = "Give a tensor whose elements do not share memory."
            raise TensorMismatchError(f"gradients, of {name}", shared, fix)


@dataclass(frozen=True)
class _Builder:
    """Builder of a launch: each `add_` method adds a kernel, and the steps that it needs before it.

    Attributes:
        given, gradients, scoring, precision: the checked arguments of :func:`launch`.
        steps: the steps so far.
        spaces: the workspaces so far. The first holds the deltas, see :meth:`add_deltas`.
    """

    given: Operands
    gradients: Gradients
    scoring: Scoring
    precision: str
    steps: list[Step] = field(default_factory=list)
    spaces: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spaces.append(torch.empty_like(self.given.log_sums))

    def new_sums(self) -> torch.Tensor:
        """Allocate the sums from which :meth:`add_rounding` makes the gradient of queries."""
        query = self.given.query
        return torch.empty(query.shape, dtype=sum_dtypes(query.dtype)[1], device=query.device)

    def add_deltas(self) -> None:
        """Add the kernel of delta = sum(dO * output) of each row, with dO the gradient of the output."""
        given = self.given
        tensors = (given.output, given.gradient, self.spaces[0])
        self.steps.append(_step_by_rows(delta_kernel, tensors, {"TYPE": sum_dtypes(given.query.dtype)[0]}))

    def add_keys(self, tiling: Tiling, sums: torch.Tensor, *, one_pass: bool) -> None:
        """Add the kernel that keeps keys; in one pass, it also adds the gradient of queries to `sums`."""
        extents, key_heads = self.scoring.extents(self.given.query, self.given.key), self.given.key.shape[1]
        _, of_key, of_value = self.gradients
        hooks = [hook.once or hook.gradient for hook in self.scoring.hooks]
        written = (sums, of_key, of_value)
        arguments, meta = self._call(tiling, written, hooks, of_keys=True)
        programs = triton.cdiv(extents.keys, tiling.tile[1]) * key_heads * extents.sequences
        self.steps.append(Step(gradients_of_keys_kernel, (programs,), arguments, {**meta, "ADDS": one_pass}))

    def add_queries(self, tiling: Tiling) -> None:
        """Add the kernel that keeps queries."""
        extents, heads = self.scoring.extents(self.given.query, self.given.key), self.given.query.shape[1]
        hooks = [hook.gradient for hook in self.scoring.hooks]
        arguments, meta = self._call(tiling, self.gradients[:1], hooks, of_keys=False)
        programs = triton.cdiv(extents.queries, tiling.tile[0]) * heads * extents.sequences
        self.steps.append(Step(gradients_of_queries_kernel, (programs,), arguments, meta))

    def add_rounding(self, sums: torch.Tensor) -> None:
        """Add the kernel that scales `sums` and rounds them to the gradient of queries."""
        scale = self.scoring.factor(self.given.query.shape[3])
        self.steps.append(_step_by_rows(round_kernel, (sums, self.gradients[0]), {"scale": scale}))
        self.spaces.append(sums)

    def add_clearing(self, *, one_pass: bool) -> None:
        """Add the kernels that write 0 to rows outside all sequences."""
        starts, (of_query, of_key, of_value) = self.scoring.starts, self.gradients
        assert starts is not None
        self.steps.append(clear_slack_step(starts.keys, (of_key, of_value)))
        if not one_pass:  # the sums of one pass are zeroed before each run
            self.steps.append(clear_slack_step(starts.queries, (of_query,)))

    def _call(
        self, tiling: Tiling, written: Sequence[torch.Tensor], hooks: Sequence[Any], *, of_keys: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a kernel's arguments and meta-parameters; with a mask, add the step that lists visits."""
        given, scoring = self.given, self.scoring
        query, key, value = given.query, given.key, given.value
        (heads, size), (key_heads, value_size) = query.shape[1::2], value.shape[1::2]
        extents, tile = scoring.extents(query, key), check_tile(tiling.tile)
        visits = self._visits(tile, of_keys=of_keys)
        sources = _sources(given, tiling, is_ragged=scoring.starts is not None)
        read = (query, key, value, given.gradient)
        arguments = (
            *sources, given.log_sums, self.spaces[0], *written,
            heads, heads // max(key_heads, 1), extents.queries, extents.keys, size, value_size,
            *[tensor.stride() for tensor in read], given.log_sums.stride()[:2],
            *[tensor.stride() for tensor in written], *scoring.arguments(size), visits,
        )  # fmt: skip
        meta = {
            **shared_meta(scoring, size, value_size, tile, extents.queries, extents.keys),
            "GRADIENTS": tuple(hooks), "TYPE": sum_dtypes(query.dtype)[0], "PRECISION": self.precision,
            "VISITS": scoring.mask is not None,
            "DESCRIBED": DescribedOperands(*[isinstance(one, TensorDescriptor) for one in sources]),
            "WIDE": is_wide(*read, given.output, *self.gradients),
            "num_warps": tiling.num_warps, "num_stages": tiling.num_stages,
        }  # fmt: skip
        return arguments, meta

    def _visits(self, tile: tuple[int, int], *, of_keys: bool) -> tuple[Any, ...]:
        """Return the kernel's argument `visits`; with a mask, add the step that lists visited tiles."""
        scoring, query = self.scoring, self.given.query
        if scoring.mask is None:
            return ()
        extents, heads = scoring.extents(query, self.given.key), query.shape[1]
        finding = visits_launch(
            scoring, extents.sequences, heads, extents.queries, extents.keys, tile, query.device,
            of_keys=of_keys,
        )  # fmt: skip
        self.steps.extend(finding.steps)
        self.spaces.extend(finding.outputs)
        return visited(finding.outputs[0], extents.sequences, heads)


def _sources(given: Operands, tiling: Tiling, *, is_ragged: bool) -> tuple[Any, ...]:
    """Return query, key, value and gradient, where possible as descriptors in blocks of a tile."""
    tensors = (given.query, given.key, given.value, given.gradient)
    if not tiling.descriptors or is_ragged:
        return tensors
    block_m, block_n = tiling.tile
    widths, value_widths = parts_of(given.query.shape[3]), parts_of(given.value.shape[3])
    blocks = ((block_m, widths), (block_n, widths), (block_n, value_widths), (block_m, value_widths))
    found = [described(tensor, *block) for tensor, block in zip(tensors, blocks, strict=True)]
    return tuple([one or tensor for one, tensor in zip(found, tensors, strict=True)])


def _step_by_rows(kernel: Any, tensors: tuple[torch.Tensor, ...], extra: Any) -> Step:
    """Return the step of a kernel each of whose programs processes some whole rows of a head."""
    batch, heads, queries, size = tensors[0].shape
    cols = max(16, triton.next_power_of_2(size))
    rows = max(1, 4096 // cols)
    return Step(
        kernel, (batch * heads * triton.cdiv(queries, rows),),
        (*tensors, heads, queries, size, *[tensor.stride() for tensor in tensors]),
        {"ROWS": rows, "COLS": cols, "WIDE": is_wide(*tensors), "num_warps": 4, **extra},
    )  # fmt: skip


def new_gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Gradients:
    """Allocate the gradients of query, key and value.

    Each has its tensor's strides if the tensor is dense, else those of `torch.empty_like`; it is contiguous
    if elements of the tensor share memory.
    """
    of_query, of_key, of_value = (
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if may_share(tensor.shape, tensor.stride())
        else torch.empty_like(tensor)
        for tensor in (query, key, value)
    )
    return of_query, of_key, of_value
