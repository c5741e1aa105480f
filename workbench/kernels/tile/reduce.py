"""Tile reduction: many elements of a row become one value, or one small state.

A reduction has four jit functions. `lift` makes a state, a tuple of one or more tiles, of elements. `combine`
merges two states lane by lane; it is associative and commutative. `across` merges the states of all lanes of
a row. `finish` makes the result from a row's state. A kernel combines its tiles and goes across
lanes once, at the end: lanes exchange values through shared memory, at far more cost than an addition.

Two states are tile operators of their own: the online softmax (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018) and Welford's mean and variance (Chan, Golub and LeVeque, "Updating formulae
and a pairwise algorithm for computing sample variances", 1979).
"""

import triton
import triton.language as tl

# lift: from elements to states. `x` is a tile [rows, cols] in the type of the arithmetic, `start` the index
# of its first column, `parameter` the reduction's scalar. A state with an index keeps the extreme value of
# GROUP neighbors that one lane holds, and the column where this group begins: there is then one comparison of
# indices for a group.


@triton.jit
def lift_value(x, start, parameter, GROUP: tl.constexpr):
    """Return the element itself as its state: (x,)."""
    return (x,)


@triton.jit
def lift_magnitude(x, start, parameter, GROUP: tl.constexpr):
    """Return the magnitude as the state: (|x|,)."""
    return (tl.abs(x),)


@triton.jit
def lift_square(x, start, parameter, GROUP: tl.constexpr):
    """Return the square as the state: (x * x,)."""
    return (x * x,)


@triton.jit
def lift_power(x, start, parameter, GROUP: tl.constexpr):
    """Return a power of the magnitude as the state, in fp64: (|x| ** parameter,)."""
    return (power(tl.abs(x), scalar(parameter, tl.float64)),)


@triton.jit
def lift_truth(x, start, parameter, GROUP: tl.constexpr):
    """Return an int32 state: 1 where x is not zero, else 0; NaN counts as not zero."""
    return ((x != 0).to(tl.int32),)


@triton.jit
def lift_count(x, start, parameter, GROUP: tl.constexpr):
    """Return an int64 state for counting: 1 where x is not zero, else 0; NaN counts as not zero."""
    return ((x != 0).to(tl.int64),)


@triton.jit
def lift_larger_of_group(x, start, parameter, GROUP: tl.constexpr):
    """Return (maximum of each group, index of the group's first column)."""
    groups = tl.reshape(x, [x.shape[0], x.shape[1] // GROUP, GROUP])
    return tl.reduce(groups, 2, larger), first_of_group(x, start, GROUP)


@triton.jit
def lift_smaller_of_group(x, start, parameter, GROUP: tl.constexpr):
    """Return (minimum of each group, index of the group's first column)."""
    groups = tl.reshape(x, [x.shape[0], x.shape[1] // GROUP, GROUP])
    return tl.reduce(groups, 2, smaller), first_of_group(x, start, GROUP)


@triton.jit
def first_of_group(x, start, GROUP: tl.constexpr):
    """Return the index of the first column of each group, [rows, cols / GROUP]."""
    first = start + tl.arange(0, x.shape[1] // GROUP) * GROUP
    return tl.broadcast_to(first[None, :], [x.shape[0], x.shape[1] // GROUP])


@triton.jit
def lift_with_index(x, start, parameter, GROUP: tl.constexpr):
    """Return (x, index of its column): a group of one element, whatever GROUP is."""
    return x, first_of_group(x, start, 1)


@triton.jit
def lift_exponential(x, start, parameter, GROUP: tl.constexpr):
    """Return (x, 1): the state (maximum, total), which stands for total * exp(maximum), of exp(x)."""
    return x, tl.full(x.shape, 1.0, x.dtype)


@triton.jit
def place_in_group(state, x, col):
    """Return the state (value, index) of rows, with the index of the value instead of its group's index.

    Args:
        state: (value, index of the group's first column), each [rows].
        x: elements of the group, [rows, GROUP].
        col: indices of these elements, [rows, GROUP].
    """
    value = state[0][:, None]
    is_it = (x == value) | ((x != x) & (value != value))
    return state[0], tl.min(tl.where(is_it, col, col + x.shape[1]), 1)


@triton.jit
def scalar(value, TYPE: tl.constexpr):
    """Return a kernel's fp64 scalar in the type of the arithmetic, as a tile of one element."""
    return tl.full([1], value, TYPE)


@triton.jit
def power(x, exponent):
    """x ** exponent in fp64, for x of 0 or more and an exponent that is not 0.

    exp(exponent * log(x)) would lose the digits that the integer part of the logarithm takes. Here
    x = m * 2^e, with m near 1, and x ** exponent = 2^(exponent * log2(m) + exponent * e), whose second
    term is exact: an integer part, and a rest. The error is less than 2 + |exponent| rounding steps.

    Args:
        x: a tile. exponent: a tile of one element.
    """
    is_number = (x > 0) & (x < float("inf"))
    x_or_1 = tl.where(is_number, x, 1.0)
    is_subnormal = x_or_1 < 2.0**-1022
    bits = tl.where(is_subnormal, x_or_1 * 2.0**54, x_or_1).to(tl.int64, bitcast=True)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52  # the bits of sqrt(1/2): m is in [sqrt(1/2), sqrt(2))
    m = (bits - (e << 52)).to(tl.float64, bitcast=True)
    e = (e - tl.where(is_subnormal, 54, 0)).to(tl.float64)
    # `coarse` has 26 digits, so that its product with e is exact, as is the product of the rest.
    coarse = (exponent.to(tl.int64, bitcast=True) >> 27 << 27).to(tl.float64, bitcast=True)
    whole = tl.floor(coarse * e + 0.5)
    rest = (coarse * e - whole) + (exponent - coarse) * e + exponent * tl.log2(m)
    more = tl.floor(rest + 0.5)
    # Beyond 1100 the power is infinite or 0. 2^scale is multiplied in two halves, as 2^1100 overflows.
    scale = tl.minimum(tl.maximum(whole + more, -1100.0), 1100.0).to(tl.int64)
    half = scale >> 1
    result = tl.exp2(rest - more) * two_to(half) * two_to(scale - half)
    extreme = tl.where((x == 0) == (exponent > 0), 0.0, float("inf"))
    return tl.where(is_number, result, tl.where(x + exponent == x + exponent, extreme, float("nan")))


@triton.jit
def two_to(exponent):
    """2 ** exponent in fp64, for integers from -1022 to 1023."""
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


# combine: merges two states, lane by lane.


@triton.jit
def combine(state, other, COMBINE: tl.constexpr):
    """Merge two states by COMBINE, which takes the components of the one state, then of the other."""
    if len(state) == 1:
        return (COMBINE(state[0], other[0]),)
    else:
        return COMBINE(*state, *other)


@triton.jit
def add(a, b):
    """a + b"""
    return a + b


@triton.jit
def multiply(a, b):
    """a * b"""
    return a * b


@triton.jit
def add_both(a, b, other_a, other_b):
    """Return (a + other_a, b + other_b): two sums in one exchange between lanes."""
    return a + other_a, b + other_b


@triton.jit
def larger(a, b):
    """Return the larger value; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """Return the smaller value; NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def keep_larger(a, a_index, b, b_index):
    """The larger value and its index. NaN counts as larger than any number.

    If both are equal or both are NaN, the result is a, which must be earlier in the row.
    """
    keep = (a >= b) | (a != a)
    return tl.where(keep, a, b), tl.where(keep, a_index, b_index)


@triton.jit
def keep_smaller(a, a_index, b, b_index):
    """The smaller value and its index. NaN counts as smaller than any number.

    If both are equal or both are NaN, the result is a, which must be earlier in the row.
    """
    keep = (a <= b) | (a != a)
    return tl.where(keep, a, b), tl.where(keep, a_index, b_index)


@triton.jit
def first_larger(a, a_index, b, b_index):
    """The larger value and its index; the lower index if they are equal, or if both are NaN."""
    is_a = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (a_index < b_index))
    return tl.where(is_a, a, b), tl.where(is_a, a_index, b_index)


@triton.jit
def first_smaller(a, a_index, b, b_index):
    """The smaller value and its index; the lower index if they are equal, or if both are NaN."""
    is_a = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (a_index < b_index))
    return tl.where(is_a, a, b), tl.where(is_a, a_index, b_index)


@triton.jit
def keep_larger_last_nan(a, a_index, b, b_index):
    """Like :func:`keep_larger`, but if both are NaN the result is b, the later: torch's rule for pools."""
    keep = (a >= b) | ((a != a) & (b == b))
    return tl.where(keep, a, b), tl.where(keep, a_index, b_index)


@triton.jit
def first_larger_last_nan(a, a_index, b, b_index):
    """The larger value and its index; the lower index if they are equal, the higher if both are NaN."""
    is_first = ((a == b) & (a_index < b_index)) | ((a != a) & (b != b) & (a_index > b_index))
    is_a = (a > b) | ((a != a) & (b == b)) | is_first
    return tl.where(is_a, a, b), tl.where(is_a, a_index, b_index)


# across: merges the states of a row's lanes, [rows, cols] -> [rows].


@triton.jit
def across_add(state):
    """The sum of each row."""
    return (tl.sum(state[0], 1),)


@triton.jit
def across_multiply(state):
    """The product of each row."""
    return (tl.reduce(state[0], 1, multiply),)


@triton.jit
def across_larger(state):
    """The maximum of each row."""
    return (tl.reduce(state[0], 1, larger),)


@triton.jit
def across_smaller(state):
    """The minimum of each row."""
    return (tl.reduce(state[0], 1, smaller),)


@triton.jit
def across_first_larger(state):
    """The maximum of each row and its first index."""
    return tl.reduce(state, 1, first_larger)


@triton.jit
def across_first_smaller(state):
    """The minimum of each row and its first index."""
    return tl.reduce(state, 1, first_smaller)


@triton.jit
def across_first_larger_last_nan(state):
    """The maximum of each row and its first index; the last index of NaN."""
    return tl.reduce(state, 1, first_larger_last_nan)


@triton.jit
def across_numbers(state):
    """Welford's state of each row, from its lanes' states merged at once; (0, 0, 0, 0) without numbers.

    Args:
        state: (count, mean, m2), each [rows, lanes]; or (count, a, m2, b), where the mean is a + b.
    """
    mean = state[1]
    if len(state) > 3:
        mean += state[3]
    # Scaled by 2^-32: the plain sum may overflow where the mean does not.
    count, total = tl.reduce((state[0], product(state[0] * 2.0**-32, mean)), 1, add_both)
    near = product(total, 1.0 / (tl.maximum(count, 1.0) * 2.0**-32))
    return welford_of_lanes(count, near, *state)


@triton.jit
def welford_of_lanes(count, near, counts, means, m2, rests=None):
    """The state of each row, as in :func:`welford_around`, from the states of its lanes.

    rest = sum of count * (mean of the lane - near); squares = sum of m2 + count * (mean of the lane - near)^2

    Args:
        count: count of each row, [rows], or of all rows alike, [1].
        near: a number near the mean of each row, [rows].
        counts: count of each lane, [rows, cols] or [1, cols].
        means, m2: mean and m2 of each lane, [rows, cols].
        rests: the lower digits of the means, which are added to them; None for none.
    """
    difference = means - near[:, None]
    if rests is not None:
        difference += rests
    sums = (product(counts, difference), m2 + counts * difference * difference)
    return welford_around(count, near, *tl.reduce(sums, 1, add_both))


@triton.jit
def across_scores(state):
    """Return the state of the online softmax of each row, from the states of its lanes."""
    return online_softmax_settle(state)


@triton.jit
def across_exponentials(state):
    """Return the state (maximum, total) of each row, from the states of its lanes.

    The total is a multiple of exp(maximum). Unlike the state of the online softmax, this one tells a row with
    infinity, whose total is infinite, from a row with NaN, whose total is NaN, whether or not the maximum
    ignores NaN.
    """
    maximum, total = state
    largest = tl.max(maximum, 1)
    return largest, tl.sum(total * tl.exp(maximum - shift_or_0(largest)[:, None]), 1)


# finish: from a row's state to its results, a tuple.


@triton.jit
def finish_state(state, parameter):
    """Return the state itself as the results."""
    return state


@triton.jit
def finish_mean(state, parameter):
    """Return (state / parameter,): the mean, if parameter is the number of elements."""
    return (state[0] / parameter,)


@triton.jit
def finish_quotient(state, count):
    """Return (state / count,), with a count for each row; integers round toward zero, as in C."""
    if state[0].dtype.is_floating():
        return (state[0] / count.to(state[0].dtype),)
    else:
        return (state[0] // count.to(state[0].dtype),)


@triton.jit
def finish_square_root(state, parameter):
    """Return the square root of the state."""
    return (tl.sqrt(state[0]),)


@triton.jit
def finish_root(state, parameter):
    """Return state ** (1 / parameter), in fp64.

    1 / parameter is rounded, as it is in torch, and multiplied by a logarithm: unless parameter is a power of
    two, the error is up to 2 + |log(state) / parameter| / 2 rounding steps.
    """
    return (power(state[0], 1 / scalar(parameter, tl.float64)),)


@triton.jit
def finish_index(state, parameter):
    """Return the index of the state (value, index)."""
    return (state[1],)


@triton.jit
def finish_log_sum(state, parameter):
    """Return maximum + log(total): -inf without elements, inf with infinity, NaN with a NaN."""
    maximum, total = state
    return (shift_or_0(maximum) + tl.log(total),)


@triton.jit
def zero_init(ROWS: tl.constexpr, COLS: tl.constexpr, DTYPE: tl.constexpr):
    """The sum of no elements, by lane: (0,), [ROWS, COLS]."""
    return (tl.zeros([ROWS, COLS], DTYPE),)


@triton.jit
def zero_settle(kept, tallies, count):
    """The sum of each row, from the sums of its lanes."""
    return across_add(kept)


# The online softmax: the state of a row's elements so far is (maximum, total), where
# total = sum of exp(x - maximum). It never overflows. Elements may come in any order: the order changes the
# total by rounding errors only.


@triton.jit
def online_softmax_init(ROWS: tl.constexpr, DTYPE: tl.constexpr):
    """The state of rows without elements: (-inf, 0), each [ROWS]."""
    return tl.full([ROWS], float("-inf"), DTYPE), tl.zeros([ROWS], DTYPE)


@triton.jit
def online_softmax_update(state, scores):
    """Return the state after one more tile of scores, the tile's weights, and the factor of earlier sums.

    new maximum m' = max(m, max of scores); weights = exp(scores - m'); rescale = exp(m - m');
    new total = total * rescale + sum of weights

    Args:
        state: (maximum, total), each [rows].
        scores: [rows, cols]; -inf where there is no score.

    Returns:
        state: the new state. weights: [rows, cols]; the softmax after division by the final total, if no
        later tile raises the maximum. rescale: [rows]; the factor by which the caller multiplies its sums of
        earlier weights.
    """
    maximum, total = state
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    shift = finite_shift(new_maximum)
    weights = tl.exp(scores - shift[:, None])
    rescale = tl.exp(maximum - shift)
    return (new_maximum, total * rescale + tl.sum(weights, 1)), weights, rescale


@triton.jit
def online_softmax_update_in_base_2(
    state, scores, scale, BOOST: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Like :func:`online_softmax_update`, for scores that are not yet scaled, with powers of two for exp.

    new maximum m' = max(m, max of scores); weights = 2^(scale * (scores - m') + BOOST);
    rescale = 2^(scale * (m - m'))

    Args:
        state: (maximum of the scores before scaling, 2^BOOST times the total).
        scores: [rows, cols]; -inf where there is no score.
        scale: log2(e) times the factor of the scores; above 0.
        BOOST: weights are multiplied by 2^BOOST, for weights that are rounded to fp8; else 0.
        EXACT: whether to subtract the maximum before scaling. If not, one operation does both; its rounding
            error grows with the scores, but is less than that of rounding weights to 16 bits.
    """
    maximum, total = state
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    shift = finite_shift(new_maximum)
    if EXACT:
        weights = tl.exp2((scores - shift[:, None]) * scale + BOOST)
    else:
        weights = tl.exp2(scores * scale - (shift * scale - BOOST)[:, None])
    rescale = tl.exp2((maximum - shift) * scale)
    return (new_maximum, total * rescale + tl.sum(weights, 1)), weights, rescale


@triton.jit
def online_softmax_merge(maximum, total, other_maximum, other_total):
    """Return the state of two sets of elements from the state of each: a `combine` for `tl.reduce`."""
    new_maximum = tl.maximum(maximum, other_maximum)
    shift = finite_shift(new_maximum)
    return new_maximum, total * tl.exp(maximum - shift) + other_total * tl.exp(other_maximum - shift)


@triton.jit
def online_softmax_by_lane(kept, scores):
    """Return the states, one per lane, after one more score in each lane; lanes exchange nothing.

    Of the two factors of an update, exp(m - m') and exp(x - m'), one is always 1: a single exp is enough.

    Args:
        kept: (maximum, total), each [rows, cols].
        scores: [rows, cols]; -inf where there is no score.
    """
    maximum, total = kept
    factor = tl.exp(-tl.abs(tl.where(scores == maximum, 0.0, scores - maximum)))
    total = tl.where(scores > maximum, total * factor + 1.0, total + factor)
    return tl.maximum(maximum, scores), total


@triton.jit
def online_softmax_settle(kept):
    """The state of each row, from the states of its lanes.

    A lane with nothing but -inf has counted these elements: its total becomes 0. The total of a lane with
    infinity becomes NaN, as exp(inf - inf) is NaN.
    """
    maximum, total = kept
    total = tl.where(maximum == float("-inf"), tl.where(total == total, 0.0, total), total)
    total = tl.where(maximum == float("inf"), float("nan"), total)
    row_maximum = tl.max(maximum, 1)
    weights = tl.exp(maximum - finite_shift(row_maximum)[:, None])
    return row_maximum, tl.sum(total * weights, 1)


@triton.jit
def online_softmax_finish(state):
    """Return the log of the sum of exp(x): maximum + log(total); -inf if all x are -inf."""
    maximum, total = state
    return finite_shift(maximum) + tl.log(total)


@triton.jit
def finite_shift(maximum):
    """Return the number to subtract before `exp`: the maximum; 0 if it is -inf, since -inf - -inf is NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def shift_or_0(maximum):
    """Return the number to subtract before `exp`: the maximum; 0 if it is infinite, as inf - inf is NaN."""
    return tl.where(tl.abs(maximum) == float("inf"), 0.0, maximum)


# Welford: the state of a set of numbers is (count, mean, m2), where m2 = sum of (x - mean)^2. Unlike the
# difference of the mean square and the squared mean, it loses no digits where the mean is large.


@triton.jit
def welford_init(ROWS: tl.constexpr, COLS: tl.constexpr, DTYPE: tl.constexpr):
    """The state of :func:`welford_update` without numbers, by lane: (0, 0, 0), each [ROWS, COLS]."""
    zeros = tl.zeros([ROWS, COLS], DTYPE)
    return zeros, zeros, zeros


@triton.jit
def welford_update(kept, x, valid, tally):
    """Return what is kept of each lane after one more number.

    Mean and m2 are those of x - first: numbers near 0, so that the rounding error of their mean is relative
    to the deviation, however large the mean of x is. Difference d = x - first - mean; mean' = mean + d /
    tally; m2' = m2 + d * (x - first - mean').

    Args:
        kept: (the lane's first number, mean, m2), each [rows, cols].
        x: a number for each lane, [rows, cols].
        valid: bool [rows, cols], whether the number counts.
        tally: the count of numbers of a lane, this one included.
    """
    first, mean, m2 = kept
    first = tl.where(tally == 1, x, first)
    x -= first
    difference = tl.where(valid, x - mean, 0.0)
    mean += difference * (tl.full([1, 1], 1.0, x.dtype) / tally)
    return first, mean, m2 + difference * (x - mean)


@triton.jit
def welford_settle(kept, tallies, count):
    """The state of each row, from the states of its lanes merged at once.

    Args:
        kept: (first, mean, m2), each [rows, cols], see :func:`welford_update`.
        tallies: the count of numbers in each lane, [cols].
        count: the count of numbers in each row, a scalar.
    """
    first, mean, m2 = kept
    counts, count = tallies.to(mean.dtype)[None, :], scalar(count, mean.dtype)
    near = tl.sum(product(counts * (1.0 / tl.maximum(count, 1.0)), first + mean), 1)
    return welford_of_lanes(count, near, counts, first, m2, mean)


@triton.jit
def welford_of_row(x, valid, cols):
    """Return the state of rows that are in registers as a whole: the mean, then the squares around it.

    A sum of many numbers is off by some rounding steps. So a number near the mean is found first; its
    distance from the mean is added up together with the squares.

    Args:
        x: [rows, tile's columns], 0 where not valid.
        valid: bool [rows, tile's columns].
        cols: the number of valid columns.
    """
    count = scalar(cols, x.dtype)
    near = tl.sum(product(x, 1.0 / count), 1)  # a share at a time: the sum of all may overflow
    centered = tl.where(valid, x - near[:, None], 0.0)
    rest, squares = tl.reduce((centered, centered * centered), 1, add_both)
    return welford_around(count, near, rest, squares)


@triton.jit
def welford_around(count, near, rest, squares):
    """Return the state of numbers from their sums around a number that is near their mean.

    mean = near + rest / count; m2 = squares - rest^2 / count (the corrected two-pass algorithm: Chan, Golub
    and LeVeque, "Algorithms for computing the sample variance", 1983). As `rest` is small, nothing cancels.
    For equal numbers m2 is 0: the terms are small multiples of one rounding step, so that their sums are
    exact.

    Args:
        count: the count of numbers, [rows], or that of all rows alike, [1].
        near: the number near the mean, [rows].
        rest: sum of x - near, [rows]. squares: sum of (x - near)^2, [rows].

    Returns:
        count, mean, m2, and the part of the mean that rounding removed: mean + part = near + rest / count.
    """
    inverse = 1.0 / tl.maximum(count, 1.0)
    off = rest * inverse
    off = tl.fma(tl.fma(-off, count, rest), inverse, off)  # a Newton step: rounded to nearest
    m2 = squares - rest * off
    # Rounding must not make m2 negative; where the squares are infinite or NaN, m2 is too.
    m2 = tl.where(m2 > 0, m2, tl.where(squares < float("inf"), 0.0, squares))
    mean = near + off
    return tl.broadcast_to(count, mean.shape), mean, m2, (near - mean) + off


@triton.jit
def quotient(x, count):
    """Return x / count, with at most one rounding step more of error than an exact division.

    On NVIDIA's GPUs `/` of fp32 has an error of up to two steps, and an exact division is slow. The exact
    reciprocal of `count` can be computed while x is not yet known.
    """
    if x.dtype == tl.float64:
        return x * (1.0 / count)
    else:
        return x * tl.div_rn(tl.full(count.shape, 1.0, x.dtype), count)


@triton.jit
def product(a, b):
    """Return a * b, rounded before it is used.

    A compiler makes one instruction of `a * b + c`, which rounds once. Then two lanes that add the same two
    products get different sums: each adds its own product, not rounded, to the other lane's, which is
    rounded. And if `a * b` is subtracted from x and used again later, the two products differ. The compiler
    leaves `fma(a, b, 0)` as it is.
    """
    a, b = tl.broadcast(a, b)
    return tl.fma(a, b, tl.zeros_like(a))


@triton.jit
def welford_merge(count, mean, m2, other_count, other_mean, other_m2):
    """Return the state of two sets of numbers from the state of each: a `combine` for `tl.reduce`."""
    all = count + other_count
    share = other_count / tl.maximum(all, 1.0)
    difference = other_mean - mean
    new_mean = mean + difference * share
    return all, new_mean, m2 + other_m2 + difference * difference * count * share


@triton.jit
def welford_finish(state):
    """Return mean and variance; the variance is m2 / count, without Bessel's correction."""
    return state[1], quotient(state[2], state[0])
