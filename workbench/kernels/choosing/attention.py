"""Choice among `instances.attention` for a problem and a device; unmeasured problems get defaults."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton

from workbench import device
from workbench.kernels import attention
from workbench.kernels.attention import PLAIN, Configuration, Scoring, Tiling
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.hopper import ROWS, Way
from workbench.kernels.instances.attention import (
    DEEPER_FROM,
    DESCRIBED,
    DRAWING,
    MERGE_IN_TILES,
    OF_KEYS,
    OF_QUERIES,
    ON_HOPPER,
    PACKED,
    PACKED_ROWS,
    PLAINLY,
    START_IN_TILES,
)

HALVES = (torch.float16, torch.bfloat16)


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> Configuration:
    """Choose the configuration of `attention.launch` for these tensors on the planned device."""
    way = _on_hopper(query, key, value, scoring)
    return portable(query, key, value, scoring) if way is None else Configuration(hopper=way)


def portable(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> Configuration:
    """Choose the configuration of `attention.launch` with the portable kernel, not the one for Hopper.

    fp16 and bf16 on sm_90 were measured; other problems get the default configuration.
    """
    if not _is_measured(query):
        return Configuration()
    if _is_packed(query, key, scoring):
        return _packed(query, key, PACKED[_width(query, value)])
    can_describe = _can_describe(query, key, value, scoring)
    tiling = (DESCRIBED if can_describe else PLAINLY)[_width(query, value)]
    return Configuration(**_with_room(tiling, query, value, scoring)._asdict())


def _packed(query: torch.Tensor, key: torch.Tensor, tiling: Tiling) -> Configuration:
    """Return the configuration of a tiling, with splits and stages for this number of keys."""
    programs, tiles = query.shape[0] * key.shape[1], triton.cdiv(key.shape[2], tiling.tile[1])
    splits = even_splits(programs, tiles, device.planned().compute_units)
    is_deep = triton.cdiv(tiles, splits) >= DEEPER_FROM
    return Configuration(
        tile=tiling.tile, splits=splits, num_warps=tiling.num_warps, num_stages=tiling.num_stages + is_deep
    )


@lru_cache(maxsize=4096)
def even_splits(programs: int, tiles: int, units: int) -> int:
    """Return the number of programs that share the keys of a head, so that memory is busy to the end.

    In the model, units run programs in rounds, one each, and have equal shares of the memory bandwidth. In a
    last round that is not full each unit has a larger share, so that the round takes less time, until the
    units are too few to use the whole bandwidth. Starting a program and merging the splits take time too.
    The result is the number of splits with the least time, at most half the tiles and MOST_SPLITS; of
    several, the smallest.

    Args:
        programs: the number of programs without splits. tiles: the tiles of keys that each of them visits.
        units: the compute units of the device.
    """

    def time_of(splits: int) -> float:
        rounds, rest = divmod(programs * splits, units)
        last = max(rest / units, DRAWING) if rest else 0.0
        each: int = triton.cdiv(tiles, splits)
        return (rounds + last) * (each + START_IN_TILES) + (MERGE_IN_TILES if splits > 1 else 0)

    return min(range(1, max(1, min(tiles // 2, attention.MOST_SPLITS)) + 1), key=time_of)


def backward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring = PLAIN
) -> attention_backward.Configuration:
    """Choose the configuration of `backward.launch`: two kernels, which are faster than one pass.

    fp16 and bf16 on sm_90 were measured; other problems get the default configuration.
    """
    if not _is_measured(query):
        return attention_backward.Configuration()
    can_describe = _can_describe(query, key, value, scoring)
    problem = _width(query, value), scoring.window.right is not None
    of_keys, of_queries = (
        next(
            tiling
            for least, tiling in table[problem]
            if key.shape[2] >= least and (can_describe or not tiling.descriptors)
        )
        for table in (OF_KEYS, OF_QUERIES)
    )
    of_queries = _with_room(of_queries, query, value, scoring)
    return attention_backward.Configuration(of_keys=of_keys, of_queries=of_queries)


def _with_room(tiling: Tiling, query: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> Tiling:
    """Return the tiling, with at most two stages if a mask or bias is loaded and heads are wider than 128.

    Tiles of the mask or bias take shared memory from the stages.
    """
    is_loading = any(isinstance(each, torch.Tensor) for hook in scoring.hooks for each in hook.extra)
    is_full = is_loading and _width(query, value) > 128
    return tiling._replace(num_stages=min(tiling.num_stages, 2)) if is_full else tiling


def _is_measured(query: torch.Tensor) -> bool:
    return device.planned().architecture == "sm_90" and query.dtype in HALVES


def _can_describe(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> bool:
    """Return whether query, key and value can have tensor descriptors; concatenated sequences cannot."""
    parts = attention.parts_of(max(query.shape[3], value.shape[3]))
    found = [attention.described(tensor, ROWS.value, parts) for tensor in (query, key, value)]
    return None not in found and scoring.starts is None


def _is_packed(query: torch.Tensor, key: torch.Tensor, scoring: Scoring) -> bool:
    """Return whether the queries of all heads that share keys fit in one tile of PACKED_ROWS rows.

    False with a mask, and for concatenated sequences.
    """
    group = query.shape[1] // max(key.shape[1], 1)
    return scoring.mask is None and scoring.starts is None and query.shape[2] * group <= PACKED_ROWS


def _on_hopper(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> Way | None:
    """Return the configuration of the kernel for Hopper; None if it is slower or cannot take the problem."""
    if not _is_measured(query) or _is_packed(query, key, scoring) or not device.planned().runs_gluon:
        return None
    programs = query.shape[0] * query.shape[1] * triton.cdiv(query.shape[2], 2 * ROWS.value)
    if programs < device.planned().compute_units:
        return None  # smaller tiles keep more units busy
    ways = ON_HOPPER[_width(query, value), scoring.window.right is not None]
    way = next((way for least, way in ways if key.shape[2] >= least), None)
    return None if attention.why_not_hopper(query, key, value, scoring) else way


def _width(query: torch.Tensor, value: torch.Tensor) -> int:
    return 64 if (columns := max(query.shape[3], value.shape[3])) <= 64 else 128 if columns <= 128 else 256
