"""Attention tile by tile: the tiles that a kernel visits, its state after each, and the bytes that it moves.

All of it is read from the kernels themselves, run in the interpreter: their tile lists and their loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_name, check_type, in_brief
from workbench.launch import Launch
from workbench.lens.trace import StepTrace, Traffic, trace
from workbench.runtime import interpret

SKIPPED, MASKED, WHOLE = 0, 1, 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MaskTiles:
    """The pairs of queries and keys of one head, in tiles.

    Attributes:
        tile: queries and keys per tile.
        seen: bool [queries, keys]: whether the query attends to the key.
        visits: int8 [tiles of queries, tiles of keys]: SKIPPED; MASKED, visited with the mask evaluated for
            each pair; WHOLE, visited without a mask.
    """

    tile: tuple[int, int]
    seen: NDArray[np.bool_]
    visits: NDArray[np.int8]

    def __repr__(self) -> str:
        return (
            f"MaskTiles({self.queries} queries, {self.keys} keys in tiles of {self.tile[0]} x "
            f"{self.tile[1]}: {self.visited} of {self.tiles} visited, {self.masked} of them masked)"
        )

    @property
    def queries(self) -> int:
        """The number of queries."""
        return int(self.seen.shape[0])

    @property
    def keys(self) -> int:
        """The number of keys."""
        return int(self.seen.shape[1])

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return self.visits.size

    @property
    def visited(self) -> int:
        """The number of tiles that are visited."""
        return int(np.count_nonzero(self.visits))

    @property
    def masked(self) -> int:
        """The number of tiles that are visited with the mask."""
        return int(np.count_nonzero(self.visits == MASKED))

    @property
    def saved(self) -> float:
        """The fraction of tiles, and so of the tile products, that is skipped."""
        return 1 - self.visited / self.tiles if self.tiles else 0.0

    @property
    def pairs(self) -> int:
        """The number of pairs whose query attends to the key."""
        return int(np.count_nonzero(self.seen))

    @property
    def used(self) -> float:
        """The fraction of the pairs in visited tiles that is seen; a pair beyond the ends is not seen."""
        return self.pairs / (self.visited * self.tile[0] * self.tile[1]) if self.visited else 0.0

    @property
    def seen_of_tile(self) -> NDArray[np.int64]:
        """The number of seen pairs in each tile, int64 [tiles of queries, tiles of keys]."""
        (block_m, block_n), (rows, cols) = self.tile, self.visits.shape
        padded = np.zeros((rows * block_m, cols * block_n), dtype=np.int64)
        padded[: self.queries, : self.keys] = self.seen
        counts: NDArray[np.int64] = padded.reshape(rows, block_m, cols, block_n).sum((1, 3))
        return counts


def tiles(launch: Launch) -> MaskTiles:
    """Interpret `kernels.attention.tiles.launch(attention.launch(...))` and return its tiles.

    Raises:
        ArgumentTypeError: `launch` is not a Launch. InvalidArgumentError: it is a launch of something else.
        Others as :func:`workbench.runtime.interpret`.
    """
    fix = "Give kernels.attention.tiles.launch(attention.launch(query, key, value, scoring))."
    given = _checked_arguments(launch, ("bounds_of", "seen_by", "BLOCK_M", "BLOCK_N", "RULES", "VISITS"), fix)
    bounds, seen, *listed = interpret(launch).outputs
    block_m, block_n = given["BLOCK_M"], given["BLOCK_N"]
    visits = np.zeros((len(bounds), -(-seen.shape[1] // block_n)), dtype=np.int8)
    # Without a visit list, the mask is evaluated everywhere.
    inner = MASKED if given["RULES"].mask and not given["VISITS"] else WHOLE
    for row, places in enumerate(bounds.tolist()):
        numbers = np.arange(visits.shape[1])
        if listed:
            of_batches, of_heads = listed[0].shape[:2]
            numbers = listed[0][given["batch"] % of_batches, given["head"] % of_heads, row, 2:].numpy()
        for first, end, kind in zip(places, places[1:], (MASKED, inner, MASKED), strict=False):
            visits[row, numbers[first:end]] = kind
    return MaskTiles((block_m, block_n), seen.numpy().astype(bool), visits)


@dataclass(frozen=True, eq=False)
class TileVisit:
    """The state of the program of one tile of queries after one more tile of keys.

    Arrays are float64, with a row for each existing query; the numbers are those of the kernel.

    Attributes:
        number: the number of the tile of keys.
        begin, end: its keys, `end` excluded.
        is_masked: whether the mask was evaluated for each pair.
        scores: [rows, end - begin], scaled; -inf where the query does not attend to the key.
        weights: [rows, end - begin], exp(score - maximum).
        rescale: [rows], exp(maximum before - maximum), the factor for the sums so far.
        maximum, total: [rows], the state of the online softmax.
        sums: [rows, columns], the sums of values times weights, not yet divided by `total`.
        kept_total, kept_sums: as `total` and `sums`, but without any `rescale`.
        exact: [rows, columns], the output for all keys so far, computed from the scores in float64.
    """

    number: int
    begin: int
    end: int
    is_masked: bool
    scores: Floats
    weights: Floats
    rescale: Floats
    maximum: Floats
    total: Floats
    sums: Floats
    kept_total: Floats
    kept_sums: Floats
    exact: Floats

    def __repr__(self) -> str:
        return f"TileVisit(keys {self.begin} to {self.end - 1}{', masked' if self.is_masked else ''})"

    def output(self, rescaled: bool = True) -> Floats:
        """Return sums / total, [rows, columns], 0 where nothing was seen; optionally without rescaling."""
        total, sums = (self.total, self.sums) if rescaled else (self.kept_total, self.kept_sums)
        return np.divide(sums, total[:, None], out=np.zeros_like(sums), where=total[:, None] != 0)

    def error(self, rescaled: bool = True) -> Floats:
        """Return the largest difference between each row of the output and of `exact`, [rows]."""
        difference: Floats = np.abs(self.output(rescaled) - self.exact).max(1, initial=0.0)
        return difference


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The steps of one program, which loads one tile of queries and loops over the tiles of keys.

    Attributes:
        begin, end: its queries, `end` excluded.
        queries, keys: the total numbers of queries and of keys.
        tile: queries and keys per tile.
        tiles: the number of tiles of queries.
        dtype: torch's name of the dtype of the values.
        state_dtype: torch's name of the dtype of scores, states and sums.
        visits: the visited tiles of keys, in order.
    """

    begin: int
    end: int
    queries: int
    keys: int
    tile: tuple[int, int]
    tiles: int
    dtype: str
    state_dtype: str
    visits: tuple[TileVisit, ...]

    def __repr__(self) -> str:
        return (
            f"AttentionSteps(queries {self.begin} to {self.end - 1} of {self.queries}, {len(self.visits)} "
            f"tiles of {self.tile[1]} keys of {self.keys})"
        )

    def carried(self, at: int) -> Floats:
        """Return the factor applied to each visit's part by the rescales up to visit `at`, [at + 1, rows].

        Raises:
            ArgumentTypeError, InvalidArgumentError: `at` is not the number of a visit, from 0.
        """
        fix = f"Give the number of a visit, from 0 to {len(self.visits) - 1}."
        if isinstance(at, bool) or not isinstance(at, int):
            raise ArgumentTypeError("at", f"got {in_brief(at)}, a {type(at).__name__}", fix)
        if not 0 <= at < len(self.visits):
            raise InvalidArgumentError("at", f"got {at}", fix)
        factors = np.ones((at + 1, self.end - self.begin))
        for number in range(at - 1, -1, -1):
            factors[number] = factors[number + 1] * self.visits[number + 1].rescale
        return factors


def steps(launch: Launch) -> AttentionSteps:
    """Interpret `kernels.attention.states.launch(attention.launch(...), tile)` and return its steps.

    Raises:
        ArgumentTypeError: `launch` is not a Launch. InvalidArgumentError: it is a launch of something else.
        Others as :func:`workbench.runtime.interpret`.
    """
    fix = "Give kernels.attention.states.launch(attention.launch(query, key, value, scoring), tile)."
    given = _checked_arguments(
        launch, ("all_scores", "all_states", "all_sums", "tile", "queries", "keys"), fix
    )
    outputs = interpret(launch).outputs
    numbers = [pair for pair in outputs[0].tolist() if pair[0] >= 0]
    (block_m, block_n), keys = (given["BLOCK_M"], given["BLOCK_N"]), given["keys"]
    begin = given["tile"] * block_m
    end = min(begin + block_m, given["queries"])
    rows = slice(0, end - begin)
    scores, weights, states, sums = (output.double().numpy() for output in outputs[1:])
    values = given["value"][given["batch"], given["head"] // given["group"]].detach().cpu().double().numpy()
    visits: list[TileVisit] = []
    for place, (number, is_masked) in enumerate(numbers):
        first, last = number * block_n, min((number + 1) * block_n, keys)
        cols = slice(0, last - first)
        rescale, maximum, total, kept_total = states[:, place, rows]
        own = scores[place, rows, cols]
        seen = np.concatenate([*(visit.scores for visit in visits), own], axis=1)
        of_keys = np.concatenate([*(np.arange(v.begin, v.end) for v in visits), np.arange(first, last)])
        visits.append(
            TileVisit(
                number, first, last, bool(is_masked), own, weights[place, rows, cols], rescale, maximum,
                total, sums[0, place, rows], kept_total, sums[1, place, rows],
                _softmax(seen) @ values[of_keys],
            )
        )  # fmt: skip
    dtype, state_dtype = (str(tensor.dtype).removeprefix("torch.") for tensor in (given["value"], outputs[1]))
    return AttentionSteps(
        begin, end, given["queries"], keys, (block_m, block_n), -(-given["queries"] // block_m), dtype,
        state_dtype, tuple(visits),
    )  # fmt: skip


def _softmax(scores: Floats) -> Floats:
    """Return the softmax of each row; 0 where all scores are -inf."""
    highest = scores.max(1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    totals = weights.sum(1, keepdims=True)
    shares: Floats = np.divide(weights, totals, out=np.zeros_like(weights), where=totals != 0)
    return shares


def visited(trace: StepTrace, tile: tuple[int, int], *, batch: int = 0, head: int = 0) -> NDArray[np.bool_]:
    """Return which tiles of keys the program of each tile of queries loads, according to a kernel's trace.

    Args:
        trace: such as `lens.trace(attention.launch(query, key, value, scoring, tile=tile))[-1]`.
        tile: queries and keys per tile.
        batch, head: the batch and the query head.

    Returns:
        bool [tiles of queries, tiles of keys].

    Raises:
        ArgumentTypeError: `trace` is not a trace. UnknownNameError: the kernel has no `query` or `key`.
    """
    check_type("trace", trace, StepTrace, "Give the trace of one step: lens.trace(launch)[-1].")
    for name in ("query", "key"):
        check_name("argument", name, trace.arguments)
    (_, heads, queries, _), (_, key_heads, keys, _) = (trace.arguments[n].shape for n in ("query", "key"))
    found = np.zeros((-(-queries // tile[0]), -(-keys // tile[1])), dtype=np.bool_)
    rows = {program: row // tile[0] for program, row in _first_rows(trace, "query", batch, head)}
    for program, row in _first_rows(trace, "key", batch, head // (heads // key_heads)):
        if program in rows:
            found[rows[program], row // tile[1]] = True
    return found


def _first_rows(trace: StepTrace, argument: str, batch: int, head: int) -> Iterator[tuple[int, int]]:
    """Yield (program, first row) for each load from one head of a tensor [batch, heads, rows, columns]."""
    known = trace.arguments[argument]
    for event in trace.events(kind="load", argument=argument):
        assert event.offsets is not None
        assert event.mask is not None
        place, rest = {}, int(event.offsets[event.mask].min(initial=np.iinfo(np.int64).max))
        if rest == np.iinfo(np.int64).max:
            continue
        for axis in sorted(range(4), key=lambda axis: -known.strides[axis]):
            if known.shape[axis] > 1:
                place[axis], rest = divmod(rest, known.strides[axis])
        if (place.get(0, 0), place.get(1, 0)) == (batch, head):
            yield event.program, place.get(2, 0)


@dataclass(frozen=True)
class TensorBytes:
    """The bytes of one tensor that all kernels of a launch move, counted in their traces.

    Attributes:
        name: the tensor's name.
        size: the tensor's size in bytes.
        loaded, stored: bytes with each element counted once per kernel, as between memory and a cache that
            keeps everything one kernel reads again. An atomic addition counts as both. Memory that several
            parameters of a kernel share is counted for the first.
        asked_to_load, asked_to_store: bytes of all lanes' accesses, repeated ones included.
        loads, stores: the numbers of kernels that load from it and that store to it.
    """

    name: str
    size: int
    loaded: int
    stored: int
    asked_to_load: int
    asked_to_store: int
    loads: int
    stores: int

    @property
    def moved(self) -> int:
        """Bytes loaded and stored, each element once per kernel."""
        return self.loaded + self.stored

    @property
    def asked(self) -> int:
        """Bytes that all lanes load and store, repeated accesses included."""
        return self.asked_to_load + self.asked_to_store

    @property
    def formula(self) -> int:
        """The size times the number of kernels that load it plus those that store it."""
        return (self.loads + self.stores) * self.size


@dataclass(frozen=True)
class AttentionBytes:
    """The bytes that a launch moves, by tensor.

    Attributes:
        label: a name for the launch: "fused".
        length: the number of queries and keys, to compare several launches.
        kernels: the number of kernels.
        tensors: first the named tensors, in the order given, then other memory.
    """

    label: str
    length: int
    kernels: int
    tensors: tuple[TensorBytes, ...]

    def __repr__(self) -> str:
        return (
            f"AttentionBytes({self.label}, {self.length} long: {self.moved} bytes by {self.kernels} kernels)"
        )

    def __getitem__(self, name: str) -> TensorBytes:
        """Return the bytes of one tensor.

        Raises:
            UnknownNameError: no tensor has that name.
        """
        known = {tensor.name: tensor for tensor in self.tensors}
        check_name("name", name, known)
        return known[name]

    @property
    def moved(self) -> int:
        """Bytes moved of all tensors, each element once per kernel."""
        return sum(tensor.moved for tensor in self.tensors)

    @property
    def asked(self) -> int:
        """Bytes that all lanes load and store of all tensors, repeated accesses included."""
        return sum(tensor.asked for tensor in self.tensors)

    @property
    def formula(self) -> int:
        """The sum of the tensors' formulas: size times the number of kernels that load or store it."""
        return sum(tensor.formula for tensor in self.tensors)


def attention_bytes(
    launch: Launch,
    tensors: Mapping[str, torch.Tensor],
    *,
    label: str,
    length: int = 0,
    timeout: float = 120.0,
) -> AttentionBytes:
    """Trace a launch in the interpreter and count the bytes that its kernels move of each tensor.

    Args:
        launch: a launch of any kernels: fused attention, or attention in three steps.
        tensors: by name, such as {"Q": query, "S": launch.workspaces[0]}: tensors of the steps, or views that
            begin at the same address. A tensor that no step has counts as never touched.
        label: a name for the launch.
        length: the number of queries and keys.
        timeout: seconds for the run.

    Returns:
        the bytes, with an entry for each of `tensors` and for each other memory that a step touches, named
        after the first parameter that has it.

    Raises:
        ArgumentTypeError: an argument has another type.
        InvalidArgumentError: two tensors begin at the same address.
        Others as :func:`workbench.lens.trace`.
    """
    check_type("launch", launch, Launch, "Give a Launch.")
    check_type("label", label, str, "Give a name.")
    check_type("length", length, int, "Give a whole number.")
    check_type("tensors", tensors, Mapping, "Give tensors by name.")
    names: dict[int, str] = {}
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        check_type(f"tensors[{name!r}]", tensor, torch.Tensor, "Give a torch.Tensor.")
        if (known := names.setdefault(tensor.data_ptr(), name)) != name:
            given = f"{name!r} begins where {known!r} does"
            raise InvalidArgumentError("tensors", given, "Give tensors that do not share memory.")
        sizes[name] = tensor.numel() * tensor.element_size()
    found: dict[str, dict[tuple[int, str], list[int]]] = {name: {} for name in names.values()}
    for number, (step, traced) in enumerate(zip(launch.steps, trace(launch, timeout=timeout), strict=True)):
        memory = step.memory()
        parameters = Counter(tensor.untyped_storage().data_ptr() for tensor in memory.values())
        counted: dict[str, NDArray[np.int64]] = {}
        for traffic in traced.by_argument():
            tensor = memory[traffic.argument]
            is_shared = parameters[tensor.untyped_storage().data_ptr()] > 1
            parameter = traffic.argument
            if tensor.data_ptr() not in names and parameter in sizes:
                parameter = f"{step.name}: {parameter}"
            name = names.setdefault(tensor.data_ptr(), parameter)
            sizes.setdefault(name, tensor.numel() * tensor.element_size())
            kinds = ("load", "store") if traffic.kind == "atomic" else (traffic.kind,)
            for kind in kinds:
                counts = found.setdefault(name, {}).setdefault((number, kind), [0, 0])
                counts[1] += traffic.bytes
                if not is_shared:
                    counts[0] += traffic.distinct_bytes
                    continue
                before = counted.get(kind, np.zeros(0, dtype=np.int64))
                counted[kind] = np.union1d(before, _bytes_touched(traced, traffic, tensor))
                counts[0] += len(counted[kind]) - len(before)
    return AttentionBytes(
        label, length, len(launch.steps), tuple(_bytes_of(name, sizes[name], found[name]) for name in found)
    )


def _bytes_touched(traced: StepTrace, traffic: Traffic, tensor: torch.Tensor) -> NDArray[np.int64]:
    """Return the address of each byte that an argument's loads or stores touch."""
    size = tensor.element_size()
    first = tensor.data_ptr() + traced.elements(traffic.argument, traffic.kind) * size
    addresses: NDArray[np.int64] = (first[:, None] + np.arange(size)).reshape(-1)
    return addresses


def _bytes_of(name: str, size: int, counts: Mapping[tuple[int, str], Sequence[int]]) -> TensorBytes:
    """Return a tensor's counts, summed over steps."""
    loads = [pair for (_, kind), pair in counts.items() if kind == "load" and pair[1]]
    stores = [pair for (_, kind), pair in counts.items() if kind == "store" and pair[1]]
    return TensorBytes(
        name, size, sum(once for once, _ in loads), sum(once for once, _ in stores),
        sum(each for _, each in loads), sum(each for _, each in stores), len(loads), len(stores),
    )  # fmt: skip


def _checked_arguments(launch: Launch, names: tuple[str, ...], fix: str) -> Mapping[str, Any]:
    """Return the last step's arguments; raise if it does not have all these parameters."""
    check_type("launch", launch, Launch, fix)
    given = launch.steps[-1].arguments() if launch.steps else {}
    if any(name not in given for name in names):
        kernels = " and ".join(step.name for step in launch.steps) or "no kernel"
        raise InvalidArgumentError("launch", f"got a launch of {kernels}", fix)
    return given
