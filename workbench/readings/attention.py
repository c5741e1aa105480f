"""What attention does tile by tile: which tiles it visits, what it has after each, which bytes it moves.

All of it is told by the kernels themselves, in the interpreter: what they list, and what they load.
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
    """The pairs of queries and keys of one head in tiles.

    Attributes:
        tile: queries and keys of a tile.
        seen: bool [queries, keys]: which keys a query sees.
        visits: int8 [tiles of queries, tiles of keys]: SKIPPED; MASKED, visited with the mask asked of each
            pair; WHOLE, visited without.
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
        """How many there are."""
        return int(self.seen.shape[0])

    @property
    def keys(self) -> int:
        """How many there are."""
        return int(self.seen.shape[1])

    @property
    def tiles(self) -> int:
        """How many there are in all."""
        return self.visits.size

    @property
    def visited(self) -> int:
        """How many are visited."""
        return int(np.count_nonzero(self.visits))

    @property
    def masked(self) -> int:
        """How many are visited with the mask."""
        return int(np.count_nonzero(self.visits == MASKED))

    @property
    def saved(self) -> float:
        """The share of all tiles that is skipped, and with it of the products."""
        return 1 - self.visited / self.tiles if self.tiles else 0.0

    @property
    def pairs(self) -> int:
        """How many pairs there are of which the query sees the key."""
        return int(np.count_nonzero(self.seen))

    @property
    def used(self) -> float:
        """Of the pairs in tiles that are visited, those beyond the ends too: the share that is seen."""
        return self.pairs / (self.visited * self.tile[0] * self.tile[1]) if self.visited else 0.0

    @property
    def seen_of_tile(self) -> NDArray[np.int64]:
        """int64 [tiles of queries, tiles of keys]: how many pairs of each are seen."""
        (block_m, block_n), (rows, cols) = self.tile, self.visits.shape
        padded = np.zeros((rows * block_m, cols * block_n), dtype=np.int64)
        padded[: self.queries, : self.keys] = self.seen
        counts: NDArray[np.int64] = padded.reshape(rows, block_m, cols, block_n).sum((1, 3))
        return counts


def tiles(launch: Launch) -> MaskTiles:
    """Run `kernels.attention_tiles.launch(attention.launch(...))` in the interpreter, and tell the tiles.

    Raises:
        ArgumentTypeError: it is no launch. InvalidArgumentError: it is one of something else.
        Others as :func:`workbench.runtime.interpret`.
    """
    fix = "Give attention_tiles.launch(attention.launch(query, key, value, scoring))."
    given = _told(launch, ("bounds_of", "seen_by", "BLOCK_M", "BLOCK_N", "RULES", "VISITS"), fix)
    bounds, seen, *listed = interpret(launch).outputs
    block_m, block_n = given["BLOCK_M"], given["BLOCK_N"]
    visits = np.zeros((len(bounds), -(-seen.shape[1] // block_n)), dtype=np.int8)
    # A mask of which no list was made is asked everywhere.
    inner = MASKED if given["RULES"][1] and not given["VISITS"] else WHOLE
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
    """What the program of a tile of queries has once it has seen one more tile of keys.

    Arrays are float64, with a row for each query that there is; numbers as the kernel had them.

    Attributes:
        number: the tile's. begin, end: its keys, `end` excluded.
        is_masked: whether the mask was asked of each pair.
        scores: [rows, end - begin], scaled; -inf where the query does not see the key.
        weights: likewise, exp(score - maximum).
        rescale: [rows], exp(maximum before - maximum): what was summed before is multiplied by it.
        maximum, total: [rows], the state of the online softmax.
        sums: [rows, columns], the sums of values times weights, not divided yet.
        kept_total, kept_sums: as `total` and `sums`, if nothing were multiplied by `rescale`.
        exact: [rows, columns], the output by all keys so far, from the scores in float64.
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
        """[rows, columns]: sums / total; 0 where nothing was seen. Else without the rescale."""
        total, sums = (self.total, self.sums) if rescaled else (self.kept_total, self.kept_sums)
        return np.divide(sums, total[:, None], out=np.zeros_like(sums), where=total[:, None] != 0)

    def error(self, rescaled: bool = True) -> Floats:
        """[rows]: the largest difference between a row of the output and of `exact`."""
        difference: Floats = np.abs(self.output(rescaled) - self.exact).max(1, initial=0.0)
        return difference


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """How the program of one tile of queries goes over the tiles of keys.

    Attributes:
        begin, end: its queries, `end` excluded. queries, keys: how many there are in all.
        tile: queries and keys of a tile.
        tiles: how many tiles of queries there are.
        dtype: of the tensors, torch's name. state_dtype: of state and sums.
        visits: in order.
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
        """[visits up to `at`, rows]: by what each one's part has been multiplied since, once `at` was seen.

        Raises:
            ArgumentTypeError, InvalidArgumentError: `at` is no number of a visit, from 0.
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
    """Run `kernels.attention_states.launch(attention.launch(...), tile)` in the interpreter; tell each visit.

    Raises:
        ArgumentTypeError: it is no launch. InvalidArgumentError: it is one of something else.
        Others as :func:`workbench.runtime.interpret`.
    """
    fix = "Give attention_states.launch(attention.launch(query, key, value, scoring), tile)."
    given = _told(launch, ("all_scores", "all_states", "all_sums", "tile", "queries", "keys"), fix)
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
    """Of each row; 0 where nothing is seen."""
    highest = scores.max(1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    totals = weights.sum(1, keepdims=True)
    shares: Floats = np.divide(weights, totals, out=np.zeros_like(weights), where=totals != 0)
    return shares


def visited(trace: StepTrace, tile: tuple[int, int], *, batch: int = 0, head: int = 0) -> NDArray[np.bool_]:
    """Which tiles of keys are loaded by the program of each tile of queries, from the trace of the kernel.

    Args:
        trace: such as `lens.trace(attention.launch(query, key, value, scoring, tile=tile))[-1]`.
        tile: queries and keys of a tile.
        batch, head: of the queries.

    Returns:
        bool [tiles of queries, tiles of keys].

    Raises:
        ArgumentTypeError: it is no trace. UnknownNameError: of a kernel without `query` or `key`.
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
    """Of each load of a head of a tensor [batch, heads, rows, columns]: the program, and the first row."""
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
    """What all kernels of a launch move of one tensor, counted in their traces.

    Attributes:
        name: the tensor's.
        size: its bytes.
        loaded, stored: each element counted once a kernel: what crosses between memory and a cache that
            keeps what one kernel reads again. An atomic addition does both. What several parameters of a
            kernel share is counted for the first.
        asked_to_load, asked_to_store: of all lanes, each time.
        loads, stores: how many kernels load from it, and store to it.
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
        """Bytes that are loaded and stored."""
        return self.loaded + self.stored

    @property
    def asked(self) -> int:
        """Bytes that all lanes ask to load and store, each time."""
        return self.asked_to_load + self.asked_to_store

    @property
    def formula(self) -> int:
        """The size once for each kernel that loads it and each that stores it."""
        return (self.loads + self.stores) * self.size


@dataclass(frozen=True)
class AttentionBytes:
    """Where the bytes of a launch go.

    Attributes:
        label: what it is called: "fused".
        length: how many queries and keys it has, for a comparison of several.
        kernels: how many there are.
        tensors: of those that were named, in their order, and then of others.
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
        """Of one tensor.

        Raises:
            UnknownNameError: none is called so.
        """
        known = {tensor.name: tensor for tensor in self.tensors}
        check_name("name", name, known)
        return known[name]

    @property
    def moved(self) -> int:
        """Bytes of all tensors, each element once a kernel."""
        return sum(tensor.moved for tensor in self.tensors)

    @property
    def asked(self) -> int:
        """Bytes of all tensors, each time that they are asked for."""
        return sum(tensor.asked for tensor in self.tensors)

    @property
    def formula(self) -> int:
        """Of all tensors, the size once for each kernel that loads it and each that stores it."""
        return sum(tensor.formula for tensor in self.tensors)


def attention_bytes(
    launch: Launch,
    tensors: Mapping[str, torch.Tensor],
    *,
    label: str,
    length: int = 0,
    timeout: float = 120.0,
) -> AttentionBytes:
    """Trace a launch in the interpreter, and count what its kernels move of each tensor.

    Args:
        launch: of any kernels: a fused attention, or one in three steps.
        tensors: by name, such as {"Q": query, "S": launch.workspaces[0]}: those that a step has, or views of
            which begin where they begin. One that no step has counts as never touched.
        label: what to call it. length: of the problem.
        timeout: seconds for the run.

    Returns:
        one entry for each of `tensors`, and for each other memory that a step touches, called as the first
        parameter that has it.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is something else; two tensors begin in one
        place. Others as :func:`workbench.lens.trace`.
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
    """The address of each byte that is moved."""
    size = tensor.element_size()
    first = tensor.data_ptr() + traced.elements(traffic.argument, traffic.kind) * size
    addresses: NDArray[np.int64] = (first[:, None] + np.arange(size)).reshape(-1)
    return addresses


def _bytes_of(name: str, size: int, counts: Mapping[tuple[int, str], Sequence[int]]) -> TensorBytes:
    """The sum over steps."""
    loads = [pair for (_, kind), pair in counts.items() if kind == "load" and pair[1]]
    stores = [pair for (_, kind), pair in counts.items() if kind == "store" and pair[1]]
    return TensorBytes(
        name, size, sum(once for once, _ in loads), sum(once for once, _ in stores),
        sum(each for _, each in loads), sum(each for _, each in stores), len(loads), len(stores),
    )  # fmt: skip


def _told(launch: Launch, names: tuple[str, ...], fix: str) -> Mapping[str, Any]:
    """The arguments of the last step, or an error where it is none that has these parameters."""
    check_type("launch", launch, Launch, fix)
    given = launch.steps[-1].arguments() if launch.steps else {}
    if any(name not in given for name in names):
        raise InvalidArgumentError("launch", f"got {launch!r}", fix)
    return given
