"""Exercises of lesson 11: the online softmax, the tiles of a window, merged splits, a hook for scores."""

from __future__ import annotations

import math

import torch

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise

# The side of all tiles, and the columns of a head in 11-1 and 11-2.
_SIDE = 16


def prefixes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of queries to the first 16 keys, to the first 32, and so on; contiguous fp16.

    Args:
        query: [queries, 16], contiguous, in fp16.
        key, value: [keys, 16], likewise. The last tile of keys may have fewer than 16.

    Returns:
        [tiles of keys, queries, 16]: after each tile, softmax(query @ key^T / 4) @ value of the keys so far.
    """
    ends = [min(start + _SIDE, len(key)) for start in range(0, len(key), _SIDE)]
    return torch.stack([torch.softmax(query @ key[:end].T / 4, 1) @ value[:end] for end in ends])


def windowed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, from_end: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of each query to the key at its own place and to `left` keys before.

    Args:
        query: [queries, 16], contiguous, in fp16. key, value: [keys, 16], likewise.
        left: the number of keys before its own place that a query sees.
        from_end: whether the last query is at the place of the last key; otherwise the first query is at the
            place of the first key.

    Returns:
        the output, [queries, 16], 0 for a query that sees nothing; and int32 [tiles, 2] with two counts for
        each tile of 16 queries. The first counts the tiles of 16 keys in which some query sees some key. The
        second counts the tiles among them in which some query does not see all keys, so that they need a
        mask.
    """
    place = torch.arange(len(query), device=query.device)[:, None]
    place = place + (len(key) - len(query) if from_end else 0)
    keys = torch.arange(-(-len(key) // _SIDE) * _SIDE, device=query.device)
    seen = (keys <= place) & (keys >= place - left) & (keys < len(key))
    counts = []
    for rows in seen.split(_SIDE):
        tiles = rows.unflatten(1, (-1, _SIDE)).transpose(0, 1).flatten(1)
        counts.append((int(tiles.any(1).sum()), int((tiles.any(1) & ~tiles.all(1)).sum())))
    rated = (query @ key.T / 4).masked_fill(~seen[:, : len(key)], -math.inf)
    output = torch.softmax(rated, 1).nan_to_num(0) @ value
    return output, torch.tensor(counts, dtype=torch.int32, device=query.device)


def merged(outputs: torch.Tensor, log_sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention to all keys, merged from the attention to each split of them; contiguous fp32.

    Args:
        outputs: [splits, rows, size]: softmax(scores of the split's keys) @ values; 0 where the split saw no
            key.
        log_sums: [splits, rows]: log of the sum of exp(scores); -inf where the split saw no key.

    Returns:
        the output, [rows, size], 0 for a row of which no split saw a key; and the log-sum-exp of all scores,
        [rows].
    """
    whole = log_sums.logsumexp(0)
    shares = (log_sums - whole).exp().nan_to_num(0)
    return (shares[..., None] * outputs).sum(0), whole


def bent(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slopes: torch.Tensor, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention whose scores are capped softly and then lowered by the distance; in fp16.

    A score x of query i and key j becomes cap * tanh(x / cap) - slopes[head] * |i + keys - queries - j|.

    Args:
        query: [batch, heads, queries, size], in fp16.
        key, value: [batch, key heads, keys, size], likewise; neighboring query heads share a key head.
        slopes: [heads], in fp32.
        cap: a number above 0.

    Returns:
        the output, and the log-sum-exps of the scores, [batch, heads, queries] in fp32.
    """
    group = query.shape[1] // key.shape[1]
    keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    # Products in fp16 would overflow, and round the scores.
    wide = torch.promote_types(query.dtype, torch.float32)
    rated = query.to(wide) @ keys.to(wide).mT / math.sqrt(query.shape[3])
    place = torch.arange(query.shape[2], device=query.device)[:, None] + key.shape[2] - query.shape[2]
    distance = (place - torch.arange(key.shape[2], device=query.device)).abs()
    rated = cap * torch.tanh(rated / cap) - slopes.to(wide)[:, None, None] * distance
    weights = torch.softmax(rated, 3).to(value.dtype)
    return weights @ values, rated.logsumexp(3)


def _rows(queries: int, keys: int, *, rising: float, seed: int, opposed: bool = False) -> Case:
    """Return a case with scores that rise by about `rising` from the first key to the last.

    A negative `rising` makes them fall. If `opposed`, the scores of every second query change the other way.
    """

    def build(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        query, key, value = (normals(generator, rows, _SIDE) for rows in (queries, keys, keys))
        # The first column of the query is constant, and the first column of the keys rises.
        query[:, 0] = 4
        if opposed:
            query[1::2, 0] = -4
        key[:, 0] = torch.linspace(0, rising, keys)
        return query.half(), key.half(), value.half()

    return Case(build, seed)


def _first_weighs_most(generator: torch.Generator, queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    """Return query, key and value whose first key has a far higher score than all other keys.

    A tile of the other keys adds less to the sums than their last digit in fp16.
    """
    query, key, value = (normals(generator, rows, _SIDE) / 4 for rows in (queries, keys, keys))
    query[:, 0], key[:, 0] = 4, 0
    key[0, 0] = 11
    return query.half(), key.half(), (value.abs() + 1).half()


def _long(queries: int, keys: int, seed: int) -> Case:
    return Case(lambda generator: _first_weighs_most(generator, queries, keys), seed)


def _long_window(queries: int, keys: int, seed: int) -> Case:
    """Return a case of :func:`windowed` with a window as long as the keys, aligned at the end."""
    return Case(lambda generator: (*_first_weighs_most(generator, queries, keys), keys, True), seed)


def _window(queries: int, keys: int, left: int, from_end: bool, seed: int) -> Case:
    return Case(
        lambda generator: (
            normals(generator, queries, _SIDE).half(), normals(generator, keys, _SIDE).half(),
            normals(generator, keys, _SIDE).half(), left, from_end,
        ),
        seed,
    )  # fmt: skip


def _splits(
    splits: int, rows: int, size: int, *, nothing: tuple[tuple[int, int], ...], level: float, seed: int
) -> Case:
    """Return a case with log-sum-exps around `level`; `nothing` lists each (split, row) that saw no key."""

    def build(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        outputs, log_sums = normals(generator, splits, rows, size), normals(generator, splits, rows)
        log_sums = 2 * log_sums + level
        for split, row in nothing:
            outputs[split, row], log_sums[split, row] = 0, -math.inf
        return outputs, log_sums

    return Case(build, seed)


def _bent(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, size: int, *, cap: float, seed: int
) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor | float, ...]:
        query = 2 * normals(generator, batch, heads, queries, size)
        key, value = (normals(generator, batch, key_heads, keys, size) for _ in range(2))
        slopes = normals(generator, heads).abs() / 4 + 0.1
        return query.half(), key.half(), value.half(), slopes, cap

    return Case(build, seed)


def _tiles(length: int) -> int:
    return -(-length // _SIDE)


def _each_tile_once(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Budget:
    """Return a budget: queries are loaded once, and all keys and values once for each tile of queries."""
    return Budget(
        loaded_bytes=query.nbytes + _tiles(len(query)) * (key.nbytes + value.nbytes),
        stored_bytes=_tiles(len(key)) * query.nbytes,
        programs=_tiles(len(query)),
    )


def _what_is_visited(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, from_end: bool
) -> Budget:
    """Return a budget: loads of visited tiles of keys and values, and of a plan of four int32 per program."""
    output, counts = windowed(query, key, value, left, from_end)
    rows = int(counts[:, 0].sum()) * _SIDE
    return Budget(
        loaded_bytes=query.nbytes + 2 * rows * _SIDE * 2 + len(counts) * 16,
        stored_bytes=output.nbytes + counts.nbytes,
        programs=len(counts),
    )


def _each_split_once(outputs: torch.Tensor, log_sums: torch.Tensor) -> Budget:
    """Return a budget: the results of all splits are loaded once, and the merged results are stored once."""
    return Budget(
        loaded_bytes=outputs.nbytes + log_sums.nbytes,
        stored_bytes=(outputs.nbytes + log_sums.nbytes) // len(outputs),
    )


_LOST = "What one tile adds can be less than their last digit, and is lost, though many tiles add much."

PREFIXES = Exercise(
    id="11-1",
    title="an answer after every tile",
    function="prefixes",
    specification=prefixes,
    cases=(
        _rows(20, 40, rising=8, seed=1),  # later tiles weigh more
        _rows(16, 64, rising=0, seed=2),
        _rows(5, 49, rising=-600, seed=3),  # a tile's own maximum is far below that of all
        _rows(33, 70, rising=600, seed=4),  # nothing subtracted, nothing left
        _rows(1, 1, rising=0, seed=5),
        _rows(17, 40, rising=600, seed=6, opposed=True),  # a row's maximum is far below that of others
        _long(3, 700, seed=7),  # many tiles that add a little each
    ),
    hints=(
        "Total and sums were made with the old maximum in their exponents. By what has $e^{x - m}$ to be "
        "multiplied to become $e^{x - m'}$? Does that depend on the key?",
        "The product of weights and values can be added to something: the third argument of `tl.dot`. What "
        "has to happen to the old sums before?",
        "One factor for each row, [BLOCK], and sums of [BLOCK, BLOCK]: which `None` makes them fit? Which "
        "dtype do the weights need beside values in fp16?",
    ),
    mutants=(
        Mutant(
            "the sums are not rescaled",
            "The weighted sums are not rescaled. What was added to them has the old maximum in its "
            "exponents, and the total the new one.",
        ),
        Mutant("the total is not rescaled", "The total is not rescaled, only the sums are."),
        Mutant(
            "rescaled the wrong way",
            "The rescale is turned around: it has to make old weights smaller when the maximum grows.",
        ),
        Mutant(
            "nothing is subtracted",
            "Nothing is subtracted from the new scores, though the old sums have a maximum subtracted.",
        ),
        Mutant(
            "the old maximum is subtracted",
            "The new scores have the old maximum subtracted. In the first tile there is none yet.",
        ),
        Mutant(
            "the maximum is not kept",
            "The maximum that is returned is the old one. What will the next tile rescale by?",
        ),
        Mutant(
            "the old sums are forgotten",
            "The sums are those of the last tile alone, divided by the total of all.",
        ),
        Mutant(
            "the maximum of all rows",
            "The maximum is that of all rows of the tile. A row whose scores are far below it has no weight "
            "left.",
        ),
        Mutant(
            "the maximum of the tile alone",
            "The maximum is that of the last tile, which may be far below that of all: then the rescale "
            "overflows.",
        ),
        Mutant(
            "sums are rounded between tiles", f"The sums are rounded to fp16 after each tile of keys. {_LOST}"
        ),
        Mutant(
            "totals are rounded between tiles",
            f"The totals are rounded to fp16 after each tile of keys. {_LOST}",
        ),
    ),
    unproven="that a rescale in every tile is the fastest way: most of them are by 1.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_tile_once,
)

WINDOWED = Exercise(
    id="11-2",
    title="only what is seen",
    function="windowed",
    specification=windowed,
    cases=(
        _window(50, 70, 20, True, seed=1),
        _window(50, 70, 20, False, seed=2),
        _window(70, 40, 100, True, seed=3),  # the first queries see nothing
        _window(70, 40, 24, False, seed=4),  # the last ones neither
        _window(64, 64, 0, False, seed=5),  # each query its own key
        _window(48, 96, 47, True, seed=6),  # the window ends on tiles
        _window(33, 65, 3, True, seed=7),  # narrower than a tile
        _window(32, 200, 500, True, seed=8),  # causal: no end on the left
        _window(1, 1, 0, True, seed=9),
        _window(17, 16, 16, False, seed=10),
        _window(20, 130, 33, False, seed=11),
        _window(64, 64, 16, False, seed=12),
        _window(32, 63, 500, True, seed=13),  # the first query sees whole tiles, to the last of their keys
        _window(70, 40, 100, False, seed=14),  # the last ones see all keys, which do not fill their tile
        _long_window(3, 700, seed=15),  # many tiles that add a little each
    ),
    hints=(
        "Which keys does query i see, from which to which, if the first query is at the place of the first "
        "key? And where is the first query if the last one is at the place of the last key?",
        "Of a tile of queries, which one sees furthest to the left, and which one furthest to the right? "
        "From which key on do *all* of them see?",
        "Tiles that are visited are those that the range of 'some' touches; tiles without a mask lie "
        "wholly in the range of 'all'. Which of the four bounds are rounded up? What if a range is empty, "
        "or begins before the first key?",
    ),
    mutants=(
        Mutant(
            "the last tile taken for full",
            "A tile that the keys do not fill is taken for whole: what is not there has a score of 0.",
        ),
        Mutant("a mask off by one", "The mask is off by one: a query does not see the key at its own place."),
        Mutant(
            "a mask off by one, on the left",
            "The mask is off by one on the left: `left` keys before its own place are seen.",
        ),
        Mutant("one key into the future", "A query sees the key after its own."),
        Mutant(
            "aligned at the beginning, always",
            "The first query is always at the place of the first key. Where is it if the *last* two are to "
            "meet?",
        ),
        Mutant(
            "aligned at the end, always",
            "The last query is always at the place of the last key, also where the first two are to meet.",
        ),
        Mutant(
            "the shift turned around",
            "The shift has the wrong sign: with more keys than queries, a query is further to the right.",
        ),
        Mutant(
            "the diagonal without a mask",
            "Tiles on the diagonal have no mask. It is the *first* query that must see all of a tile.",
        ),
        Mutant(
            "the left edge without a mask",
            "Tiles at the left edge have no mask. It is the *last* query that must see all of a tile.",
        ),
        Mutant("a mask on every tile", "Every tile is masked, also those of which all queries see all keys."),
        Mutant(
            "nothing is skipped on the left",
            "The first tile is visited always. From which key on does the first query see?",
        ),
        Mutant(
            "nothing is skipped on the right",
            "All tiles up to the last key are visited. Up to which key does the last query see?",
        ),
        Mutant(
            "the last tile is not visited",
            "A tile that is seen in part on the right is not visited: its number is rounded down.",
        ),
        Mutant(
            "sums are rounded between tiles", f"The sums are rounded to fp16 after each tile of keys. {_LOST}"
        ),
    ),
    unproven="that no instruction is wasted: a tile that is masked computes scores that nobody sees.",
    returns_launch=True,
    is_contiguous=True,
    budget=_what_is_visited,
)

MERGED = Exercise(
    id="11-3",
    title="merge the splits",
    function="merged",
    specification=merged,
    cases=(
        _splits(5, 7, 24, nothing=((1, 2), *((split, 4) for split in range(5))), level=0, seed=1),
        _splits(4, 3, 16, nothing=(), level=300, seed=2),  # exp overflows
        _splits(3, 5, 40, nothing=((0, 0), (2, 0)), level=-300, seed=3),  # exp is 0
        _splits(1, 2, 16, nothing=((0, 1),), level=1, seed=4),
        _splits(9, 1, 17, nothing=((8, 0),), level=5, seed=5),
    ),
    hints=(
        "A split has divided its sums by its own total. Which number has to multiply its output, so that the "
        "outputs of two splits can be added?",
        "The log-sum-exp of all scores, from those of the splits: by which formula? What has to be "
        "subtracted before `tl.exp`, if they lie around 300?",
        "What do your formulas make of a row of which no split saw a key? Where does $-\\infty - (-\\infty)$ "
        "come up, and where 0 / 0?",
    ),
    mutants=(
        Mutant(
            "NaN where nothing is seen: 0 / 0",
            "A row that no split saw is NaN: its total is 0, and 0 / 0 is not a number. Its output is 0.",
        ),
        Mutant(
            "NaN where nothing is seen: -inf - -inf",
            "A row that no split saw is NaN: its maximum is $-\\infty$, and that less itself is not a "
            "number.",
        ),
        Mutant(
            "all splits count alike",
            "The mean of all splits is taken, though one may have nearly all of the weight.",
        ),
        Mutant("shares do not add up to 1", "The shares are not divided by their sum."),
        Mutant(
            "the largest for the sum",
            "The log-sum-exp is the largest of those of the splits. The others count too.",
        ),
        Mutant("what was subtracted is forgotten", "The log-sum-exp lacks what was subtracted before `exp`."),
        Mutant(
            "nothing is subtracted",
            "Nothing is subtracted before `exp`. It overflows above 88, and is 0 below -104.",
        ),
        Mutant(
            "lanes beyond the splits count",
            "Lanes beyond the last split have a log-sum-exp of 0, which is a weight like any other.",
        ),
    ),
    unproven="that it is fast: one program a row is little work, and where there are thousands of splits "
    "they do not fit one tile.",
    returns_launch=True,
    is_contiguous=True,
    budget=_each_split_once,
)

BENT = Exercise(
    id="11-4",
    title="a hook of your own",
    function="bent",
    specification=bent,
    cases=(
        _bent(1, 2, 2, 40, 50, 16, cap=3.0, seed=1),
        _bent(2, 4, 2, 17, 33, 32, cap=5.0, seed=2),  # heads that share keys are rows of one tile
        _bent(1, 3, 1, 70, 20, 16, cap=0.5, seed=3),  # more queries than keys
        _bent(1, 4, 1, 1, 90, 16, cap=2.0, seed=4),  # decoding
        _bent(1, 1, 1, 1, 1, 16, cap=1.0, seed=9),
    ),
    hints=(
        "The hook is given a tile of scores, and numbers of queries and keys that broadcast to it. Which "
        "line of torch would you write for it?",
        "What must the hook know besides? `extra` is a tuple of whatever you give it: tensors arrive as "
        "pointers, numbers as numbers.",
        "There is no `tl.tanh`. How does $\\tanh y$ follow from $e^{2 y}$, so that a large $y$ does no "
        "harm? And what is the place of query 0, if the last query is beside the last key?",
    ),
    mutants=(
        Mutant(
            "the distance is capped too",
            "The distance is subtracted before the cap, so that it is capped with the score.",
        ),
        Mutant("no cap", "Scores are not capped."),
        Mutant("one slope for all heads", "All heads have the first one's slope."),
        Mutant("far keys are preferred", "The distance is added: the farther a key, the larger its score."),
        Mutant(
            "aligned at the beginning",
            "The distance is measured as if the first query were at the place of the first key.",
        ),
        Mutant(
            "the shift turned around",
            "The shift has the wrong sign: with more keys than queries, a query is further to the right.",
        ),
        Mutant(
            "tanh of another argument",
            "That is cap * tanh(x / (2 cap)): the exponential wants twice the argument.",
        ),
        Mutant(
            "between -1 and 1",
            "The scores are capped at 1, whatever the cap: tanh has to be multiplied by it.",
        ),
    ),
    unproven="that it has a gradient: that would be a second function, of lesson 12.",
    returns_launch=True,
)

EXERCISES = (PREFIXES, WINDOWED, MERGED, BENT)
