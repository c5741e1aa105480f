"""Pictures of attention with a single call: the tiles it visits, its state after each tile, its traffic.

Combines `kernels` and `readings`, which do not draw, with `viz`, which makes no launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import triton

from workbench.errors import check_each, check_positive
from workbench.kernels import attention
from workbench.kernels.attention import CAUSAL, Mask, Scoring, Window
from workbench.kernels.attention import states as attention_states
from workbench.kernels.attention import tiles as attention_tiles
from workbench.kernels.attention import unfused as attention_unfused
from workbench.kernels.tile import scores
from workbench.launch import Launch
from workbench.readings import attention as attention_readings
from workbench.readings.attention import AttentionBytes, AttentionSteps, MaskTiles, attention_bytes
from workbench.readings.attention_gradients import gradient_flow
from workbench.viz.attention.attention_stepper import AttentionStepperWidget
from workbench.viz.attention.attention_tiles import AttentionTilesWidget, TilesChoice

# Returns the tensors that the kernels of an `attention_backward.launch(...)` keep on chip, stream, multiply
# and write.
gradients = gradient_flow

# Lengths of consecutive documents, as shares of all queries and keys.
_DOCUMENTS = (0.3, 0.2, 0.5)


def tiles(launch: Launch, *, batch: int = 0, head: int = 0) -> MaskTiles:
    """Return which tiles the programs of a head visit and which they mask, by the kernel's own rules.

    Args:
        launch: a launch of `attention.launch` with one program for each tile of queries (splits=1).
        batch, head: the indices of the batch and of the query head.

    Raises: as `attention_tiles.launch` and `readings.attention.tiles`.
    """
    return attention_readings.tiles(attention_tiles.launch(launch, batch=batch, head=head))


def steps(launch: Launch, tile: int = 0, *, batch: int = 0, head: int = 0) -> AttentionSteps:
    """Return the state of one tile of queries after each tile of keys, computed by the kernel's operators.

    Args:
        launch: a launch of `attention.launch` with one program for each tile of queries (splits=1).
        tile: the index of the tile of queries. batch, head: the indices of the batch and of the query head.

    Raises: as `attention_states.launch` and `readings.attention.steps`.
    """
    return attention_readings.steps(attention_states.launch(launch, tile, batch=batch, head=head))


def bytes_by_length(
    lengths: Sequence[int] = (64, 128, 256),
    *,
    columns: int = 16,
    dtype: torch.dtype = torch.float16,
    tile: tuple[int, int] = (64, 64),
) -> list[AttentionBytes]:
    """Return the bytes of each tensor that unfused and fused attention move, counted in traces.

    Args:
        lengths: sequence lengths, each for both queries and keys.
        columns: head dimension of queries, keys and values. dtype: their dtype.
        tile: (queries, keys) of the fused kernel; (rows, columns) of the unfused products.

    Returns:
        "unfused" and "fused" for each length, as `plot_attention_bytes` takes them.

    Raises: as `attention.launch` and `readings.attention.attention_bytes`.
    """
    found = []
    for length in check_each("lengths", lengths, int, "Give a list of lengths, such as (64, 128)."):
        shape = (1, 1, check_positive("lengths", length), columns)
        query, key, value = (torch.ones(shape, dtype=dtype) for _ in range(3))
        given = {"Q": query, "K": key, "V": value}
        rows = (32, triton.next_power_of_2(length))
        unfused = attention_unfused.launch(query, key, value, tile=(*tile, 16), softmax_tile=rows)
        of_scores, weights = unfused.workspaces[:2]
        given |= {"S": of_scores, "P": weights}
        named = {**given, "O": unfused.outputs[0]}
        found.append(attention_bytes(unfused, named, label="unfused", length=length))
        fused = attention.launch(query, key, value, Scoring(scale=1.0), tile=tile, splits=1)
        named = {**given, "O": fused.outputs[0], "L": fused.outputs[1]}
        found.append(attention_bytes(fused, named, label="fused", length=length))
    return found


def map_tiles(
    first: TilesChoice | None = None, *, longest: int = 256, theme: str | None = None
) -> AttentionTilesWidget:
    """Return the widget that chooses a mask, lengths and a tile.

    Arguments and errors: :class:`AttentionTilesWidget`.
    """
    return AttentionTilesWidget(tiles_of_choice, first, longest=longest, theme=theme)


def tiles_of_choice(choice: TilesChoice) -> MaskTiles:
    """Return the tiles that `attention.launch` visits for a choice of :class:`AttentionTilesWidget`."""
    query = torch.empty(1, 1, choice.queries, 16)
    key = torch.empty(1, 1, choice.keys, 16)
    return tiles(attention.launch(query, key, key, scoring_of(choice), tile=choice.tile, splits=1))


def scoring_of(choice: TilesChoice) -> Scoring:
    """Return the `Scoring` for a choice of :class:`AttentionTilesWidget`."""
    causal = CAUSAL._replace(from_end=choice.from_end)
    if choice.mask == "everything":
        return Scoring()
    if choice.mask == "causal":
        return Scoring(window=causal)
    if choice.mask == "sliding window":
        return Scoring(window=Window(choice.window, 0, from_end=choice.from_end))
    length = max(choice.queries, choice.keys)
    ends = torch.tensor([round(sum(_DOCUMENTS[:n]) * length) for n in range(1, len(_DOCUMENTS))])
    numbers = torch.bucketize(torch.arange(length), ends, right=True).to(torch.int32)
    mask = Mask(scores.same_document, (numbers, length), of_batch=False, of_head=False)
    return Scoring(window=causal if choice.mask == "causal documents" else Window(), mask=mask)


def step_through(
    launch: Launch, *, batch: int = 0, head: int = 0, theme: str | None = None
) -> AttentionStepperWidget:
    """Return the widget that steps through the tiles of keys for any tile of queries.

    Args:
        launch: a launch of `attention.launch` with one program for each tile of queries (splits=1).
        batch, head: the indices of the batch and of the query head.
        theme: as for :class:`AttentionStepperWidget`.

    Raises: as :func:`steps` and :class:`AttentionStepperWidget`.
    """
    given = attention_tiles.step_of(launch).arguments()
    count = -(-given["queries"] // given["BLOCK_M"])
    return AttentionStepperWidget(partial(_steps_of, launch, batch, head), count, theme=theme)


def _steps_of(launch: Launch, batch: int, head: int, tile: int) -> AttentionSteps:
    return steps(launch, tile, batch=batch, head=head)
