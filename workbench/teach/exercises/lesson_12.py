"""Exercises of lesson 12: delta, a tile of keys, a tile of queries, the gradient of a hook."""

from __future__ import annotations

import math

import torch

from workbench.teach.definition import Budget, Case, Mutant, normals
from workbench.teach.exercise import Exercise

# The side of all tiles.
_SIDE = 16

# Covers fp32 sums in another order, exponentials of differences, and log-sum-exps rounded to fp32.
ROUNDING = 1e-5


def delta(output: torch.Tensor, gradient: torch.Tensor, sum_gradient: torch.Tensor) -> torch.Tensor:
    """Return the delta that is subtracted from dP if a loss depends on attention's output and log-sum-exps.

    Args:
        output: the output of attention, [rows, columns], contiguous, in fp32.
        gradient: the gradient of the loss with respect to the output, likewise.
        sum_gradient: the gradient of the loss with respect to the log-sum-exps, [rows].

    Returns:
        delta, [rows]: the gradient of the scores is weights * (gradient @ value^T - delta).
    """
    return (output * gradient).sum(1) - sum_gradient


def key_value_gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of key and value, for heads that each have keys of their own.

    Args:
        query, gradient: [heads, queries, size], contiguous, in fp32; size is 16 or 32.
        key, value: [heads, keys, size], likewise.
        log_sums: log-sum-exps of the scores size^-0.5 * query @ key^T, [heads, queries].
        deltas: sums of output * gradient, [heads, queries].
        causal: whether query i sees only the keys up to i.

    Returns:
        the gradients of key and of value.
    """
    key, value = (tensor.detach().requires_grad_() for tensor in (key, value))
    shape = query.shape[1], key.shape[1]
    seen = torch.ones(shape, dtype=torch.bool, device=query.device)
    output, _ = _attended(query, key, value, seen.tril() if causal else seen)
    of_key, of_value = torch.autograd.grad(output, (key, value), gradient)
    return of_key, of_value


def query_gradient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of query with a causal mask aligned at the end: the last query sees all keys.

    Args:
        query, gradient: [heads, queries, size], contiguous, in fp32; size is 16 or 32.
        key, value: [heads, keys, size], likewise. Query i sees keys up to i + keys - queries.
        log_sums: log-sum-exps of the scores size^-0.5 * query @ key^T, [heads, queries]; -inf for a query
            that sees no key.
        deltas: sums of output * gradient, [heads, queries].
    """
    query = query.detach().requires_grad_()
    output, _ = _attended(query, key, value, _aligned_at_end(query.shape[1], key.shape[1], query.device))
    return torch.autograd.grad(output, query, gradient)[0]


def squashed_gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    cap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value of attention with squashed scores, s / (1 + |s| / cap).

    Args:
        gradient: the gradient of the output.
        query, key, value: [batch, heads, rows, size], in fp32; s is size^-0.5 * query @ key^T.
        output, log_sums: the results of the forward pass with the same scores.
        cap: the bound c of the magnitude of the squashed scores.
    """
    of = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    result, _ = _squashed(of[0], of[1], of[2], cap)
    of_query, of_key, of_value = torch.autograd.grad(result, of, gradient)
    return of_query, of_key, of_value


def _aligned_at_end(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the log-sum-exps; 0 and -inf for a query that sees nothing."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    log_sums = scores.masked_fill(~seen, -math.inf).logsumexp(-1)
    finite = log_sums.where(seen.any(-1), 0.0)
    weights = torch.exp(scores - finite[..., None]).masked_fill(~seen, 0.0)
    return weights @ value, log_sums


def _squashed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores / (1 + scores.abs() / cap)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _rows(rows: int, columns: int, seed: int) -> Case:
    return Case(
        lambda generator: (
            normals(generator, rows, columns), normals(generator, rows, columns), normals(generator, rows),
        ),
        seed,
    )  # fmt: skip


def _heads(heads: int, queries: int, keys: int, size: int, seed: int, causal: bool | None = None) -> Case:
    """Return a case with the inputs and saved results of a forward pass, for :func:`key_value_gradients`.

    If `causal` is None, the case is for :func:`query_gradient`.
    """

    def build(generator: torch.Generator) -> tuple[torch.Tensor | bool, ...]:
        query, gradient = normals(generator, 2, heads, queries, size).double()
        key, value = normals(generator, 2, heads, keys, size).double()
        seen = torch.ones(queries, keys, dtype=torch.bool)
        if causal is None:
            seen = seen.tril(keys - queries)
        elif causal:
            seen = seen.tril()
        output, log_sums = _attended(query, key, value, seen)
        tensors = query, key, value, gradient, log_sums, (output * gradient).sum(-1)
        given = tuple(tensor.float().clone() for tensor in tensors)
        return given if causal is None else (*given, causal)

    return Case(build, seed)


def _hooked(heads: int, queries: int, keys: int, cap: float, seed: int) -> Case:
    def build(generator: torch.Generator) -> tuple[torch.Tensor | float, ...]:
        query, gradient = 2 * normals(generator, 2, 1, heads, queries, 16).double()
        key, value = normals(generator, 2, 1, heads, keys, 16).double()
        output, log_sums = _squashed(query, key, value, cap)
        tensors = gradient, query, key, value, output, log_sums
        return *(tensor.float().clone() for tensor in tensors), cap

    return Case(build, seed)


def _each_row_once(output: torch.Tensor, gradient: torch.Tensor, sum_gradient: torch.Tensor) -> Budget:
    """Return a budget: each element is loaded once, and a number is stored for each row."""
    return Budget(output.nbytes + gradient.nbytes + sum_gradient.nbytes, sum_gradient.nbytes)


def _queries_that_see(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
    causal: bool,
) -> Budget:
    """Return a budget: keys are loaded once, and for each tile of keys the queries that see it."""
    heads, queries, size = query.shape
    keys = key.shape[1]
    passing = sum(max(0, queries - first) if causal else queries for first in range(0, keys, _SIDE))
    return Budget(
        loaded_bytes=4 * heads * (2 * keys * size + passing * (2 * size + 2)),
        stored_bytes=4 * heads * 2 * keys * size,
    )


def _keys_that_are_seen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    log_sums: torch.Tensor,
    deltas: torch.Tensor,
) -> Budget:
    """Return a budget: queries are loaded once, and for each tile of queries the tiles of keys it sees."""
    heads, queries, size = query.shape
    keys = key.shape[1]
    passing = 0
    for first in range(0, queries, _SIDE):
        seen = max(0, first + _SIDE + keys - queries)
        passing += min(-(-seen // _SIDE) * _SIDE, keys)
    return Budget(
        loaded_bytes=4 * heads * (queries * (2 * size + 2) + passing * 2 * size),
        stored_bytes=query.nbytes,
    )


DELTA = Exercise(
    id="12-1",
    title="delta of two gradients",
    function="delta",
    specification=delta,
    cases=(
        _rows(20, 40, seed=1),  # ragged in both directions
        _rows(16, 64, seed=2),
        _rows(17, 16, seed=3),
        _rows(1, 1, seed=4),
        _rows(33, 100, seed=5),
    ),
    hints=(
        "Without the second gradient, which two tensors is delta made of, and along which axis is summed?",
        "L is the logarithm of a sum of exponentials of the scores. What is its derivative by one score, and "
        "what do we call that number elsewhere?",
        "The gradient of a score is then P * (dP - delta) + P * dL. What has to stand in place of delta, if "
        "the formula is to stay as it was?",
    ),
    mutants=(
        Mutant(
            "the second gradient with the wrong sign",
            "The gradient of the log-sum-exp is added. It raises dS, from which delta is subtracted.",
        ),
        Mutant("the second gradient is forgotten", "The gradient of the log-sum-exp does not enter."),
        Mutant(
            "a mean in place of the sum",
            "The products are averaged over the columns. Their sum is asked for.",
        ),
        Mutant("the gradient's own square", "The output does not enter."),
        Mutant("a sum over rows", "Rows are added up. Each has a delta of its own."),
    ),
    unproven="that it is right where columns are many: the row of a head is one tile here.",
    returns_launch=True,
    budget=_each_row_once,
    tolerance=ROUNDING,
)

KEYS = Exercise(
    id="12-2",
    title="a tile of keys",
    function="key_value_gradients",
    specification=key_value_gradients,
    cases=(
        _heads(2, 20, 18, 16, seed=1, causal=False),  # ragged, more queries than keys
        _heads(1, 20, 35, 32, seed=2, causal=True),  # keys that no query sees
        _heads(1, 33, 17, 16, seed=3, causal=True),
        _heads(2, 16, 16, 16, seed=4, causal=True),  # one tile
        _heads(1, 5, 17, 16, seed=5, causal=False),
        _heads(3, 2, 3, 16, seed=6, causal=True),
    ),
    hints=(
        "Which two tiles does a program load once, and which four things come with each tile of queries?",
        "If a row of the tile of weights is a key, which of the two operands of K Qᵀ is transposed, and "
        "along which axis do log-sum-exps and deltas lie?",
        "Which is the first query that sees the tile's first key, with a causal mask? And which is it if "
        "nobody asked for one?",
        "dS is the gradient of the scaled scores. Which factor has dK besides, and where is it cheapest?",
    ),
    mutants=(
        Mutant(
            "right with the causal mask alone",
            "The loop begins at the diagonal, whether a causal mask was asked for or not. Triton's own "
            "tutorial has had such a backward; its test was causal.",
        ),
        Mutant("the mask is off by one", "No query sees the key of its own number. The causal mask lets it."),
        Mutant("no mask", "Tiles are skipped, but in the tile on the diagonal no pair is masked."),
        Mutant(
            "the scale is missing in dK",
            "dK lacks a factor. By what are the products of queries and keys multiplied?",
        ),
        Mutant(
            "the scale is missing in the weights",
            "The weights are not those of the forward pass: scores are scaled there.",
        ),
        Mutant(
            "no delta",
            "dP is multiplied by P, and no delta is subtracted: that is the gradient of exp, not of softmax.",
        ),
        Mutant(
            "dV by the gradient of the scores",
            "dV is a sum of dO with the gradients of the scores. Which numbers did the forward pass multiply "
            "values with?",
        ),
        Mutant("dK by the gradient of the output", "dK is a sum of dO. A score is a product with a query."),
        Mutant("only the last tile of queries", "Of dV, only what the last tile of queries says is kept."),
    ),
    unproven="that it is right where heads share keys, or that its sums fit the registers of a GPU: two of "
    "them lie in each program, beside two tiles of pairs.",
    returns_launch=True,
    budget=_queries_that_see,
    tolerance=ROUNDING,
)

QUERIES = Exercise(
    id="12-3",
    title="a tile of queries",
    function="query_gradient",
    specification=query_gradient,
    cases=(
        _heads(2, 18, 21, 16, seed=1),  # new queries and a cache of keys
        _heads(1, 37, 20, 32, seed=2),  # the first 17 queries see nothing
        _heads(1, 35, 35, 16, seed=3),
        _heads(1, 16, 32, 16, seed=4),  # nothing is ragged
        _heads(2, 1, 18, 16, seed=5),
        _heads(1, 20, 2, 16, seed=6),  # one query sees one key, and one sees two
    ),
    hints=(
        "What is loaded once now, log-sum-exps and deltas among it, and what passes by?",
        "Which key is the last that query 0 sees, with 20 queries and 37 keys? And which is the last for the "
        "last query of a tile?",
        "With 37 queries and 20 keys, what is the log-sum-exp of query 0? What comes of subtracting it from "
        "its masked scores, and what would be a better number to subtract?",
    ),
    mutants=(
        Mutant(
            "NaN where nothing is seen",
            "Rows that see no key are NaN: both their scores and their log-sum-exp are -inf.",
        ),
        Mutant(
            "aligned at the beginning",
            "The mask is aligned at the beginning: query i sees keys up to i. Here the last query sees the "
            "last key.",
        ),
        Mutant("the mask is off by one", "Each query misses the last key that it sees."),
        Mutant("one key too many", "Each query sees one key too many."),
        Mutant(
            "the scale is missing in dQ",
            "dQ lacks a factor: scores are products times the scale, so their gradient has it too.",
        ),
        Mutant(
            "no delta",
            "dP is multiplied by P, and no delta is subtracted: that is the gradient of exp, not of softmax.",
        ),
        Mutant("the last tile is not visited", "The tile that holds the diagonal is not visited."),
        Mutant("dQ by values", "dQ is a sum of values. A score is a product with a key."),
    ),
    unproven="that it is fast: what one program loads of keys and values, the programs of other queries of "
    "the same head load too.",
    returns_launch=True,
    budget=_keys_that_are_seen,
    tolerance=ROUNDING,
)

HOOK = Exercise(
    id="12-4",
    title="the gradient of a hook",
    function="squashed_gradients",
    specification=squashed_gradients,
    cases=(
        _hooked(2, 20, 35, 1.5, seed=1),
        _hooked(1, 17, 16, 4.0, seed=2),
        _hooked(2, 5, 40, 0.5, seed=3),
    ),
    hints=(
        "By the chain rule, what is the gradient of what a function was given, if that of what it returned "
        "is known?",
        "For scores above 0, what does the quotient rule make of s / (1 + s / c)? Multiply it out: what is "
        "left above the line?",
        "The function is odd. What does that say of its slope at -s?",
    ),
    mutants=(
        Mutant(
            "passed on as it is",
            "The gradient is passed on as it is: that is right of hooks that add something, and this one "
            "bends.",
        ),
        Mutant("not squared", "The slope is the square of what the score was divided by, upside down."),
        Mutant(
            "multiplied, not divided",
            "The gradient grows with the score. Where the function is flat, it should nearly vanish.",
        ),
        Mutant(
            "negative scores",
            "Scores below 0 are bent as much as those above: the function is odd, so its slope is even.",
        ),
        Mutant(
            "the slope where the score has arrived",
            "The slope is taken at what the hook returned. It belongs to what the hook was given.",
        ),
        Mutant(
            "the function again",
            "The gradient itself is squashed. The chain rule multiplies it with a slope.",
        ),
    ),
    unproven="that the hook is smooth: its second derivative jumps at 0. A gradient needs only the first.",
    returns_launch=True,
    tolerance=ROUNDING,
)

EXERCISES = (DELTA, KEYS, QUERIES, HOOK)
