"""Row operators: of each row something is found out, and with that each of its elements is made anew.

Softmax and the normalizations are such operators, and so are their gradients. One template for all: `UPDATE`
brings a tile into the row's state, `FINISH` makes the row's results of the state, `APPLY` makes an element of
the output. Three kernels are made of it: rows that fit into a tile are read once; longer ones are gone over
twice by one program; where rows are so few that programs are, each row is split over several, which leave
their states for a second step.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.tile import reduce, transfer


@triton.jit
def rowwise_kernel(
    # pointers: tensors of rows and columns, of a value a column, of a value a row; the output, results by row
    sources, columns, given, destination, results,
    # sizes
    rows, cols,
    # what the access function is given, for each source and last for the output
    layouts,
    # the operator's scalar
    parameter: "fp64",
    # meta-parameters: the operator, the access function and what divides its integers, what masked elements
    # are, the type of the arithmetic, a tile's rows and columns, whether they divide rows and columns
    WHOLE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, LATE: tl.constexpr, ONCE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows that fit into a tile: read once, ROWS of them at a time; ONCE: every program takes one tile."""
    if len(DIVISORS) > 0:
        layouts = transfer.known(layouts, DIVISORS)
    if EXACT:
        cols = COLS  # known to the compiler, which divides by it faster
    if ONCE:
        whole_rows(
            sources, columns, columns[:0], given, destination, results, tl.program_id(0), rows, cols, layouts,
            parameter, WHOLE, FINISH, APPLY, True, LATE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
    else:
        rows = widened(rows, WIDE)
        col = columns_from(0, COLS, WIDE)
        of_columns = columns[:0]
        if not LATE:
            of_columns = load_each(columns, col[None, :], col[None, :] < cols)
        for number in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
            whole_rows(
                sources, columns, of_columns, given, destination, results, number, rows, cols, layouts,
                parameter, WHOLE, FINISH, APPLY, LATE, LATE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
            )  # fmt: skip


@triton.jit
def whole_rows(
    # as in rowwise_kernel, and a tile's number
    sources, columns, of_columns, given, destination, results, number, rows, cols, layouts, parameter,
    # BESIDE: values by column are loaded behind the tile; LATE: and once more where they are used
    WHOLE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, BESIDE: tl.constexpr, LATE: tl.constexpr,
    ACCESS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of rowwise_kernel."""
    row, col = rows_of_tile(number, ROWS, WIDE), columns_from(0, COLS, WIDE)
    of_rows = load_each(given, row, row < rows)
    tiles, valid = load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
    if BESIDE:
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
    result = FINISH(WHOLE(tiles, of_columns, of_rows, valid, cols), cols, parameter)
    store_each(results, row, result, row < rows)
    offsets, valid = access(row, col, layouts[len(sources)], ACCESS, EXACT)
    if LATE:
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
    transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)


@triton.jit
def rowwise_tiles_kernel(
    # as in rowwise_kernel
    sources, columns, given, destination, results, rows, cols, layouts, parameter: "fp64",
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    FINISH: tl.constexpr, APPLY: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows of several tiles: gone over forward for the state, then backward, from what was read last."""
    if len(DIVISORS) > 0:
        layouts = transfer.known(layouts, DIVISORS)
    rows, cols = widened(rows, WIDE), widened(cols, WIDE)
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = rows_of_tile(number, ROWS, WIDE)
        of_rows = load_each(given, row, row < rows)
        state = row_state(
            sources, columns, of_rows, row, 0, cols, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
        result = FINISH(state, cols, parameter)
        store_each(results, row, result, row < rows)
        apply_to_row(
            sources, columns, of_rows, destination, result, row, 0, cols, cols, layouts,
            APPLY, ACCESS, FILLS, TYPE, COLS, EXACT, WIDE,
        )  # fmt: skip


@triton.jit
def row_states_kernel(
    # as in rowwise_kernel, and where states are left: one tensor [rows, SPLITS] for each part
    sources, columns, given, states, rows, cols, layouts,
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
    # where a split is one tile: the operator's function for rows of one
    WHOLE: tl.constexpr = None,
):  # fmt: skip
    """Rows split over SPLITS programs, first step: the state of each split of each row."""
    if len(DIVISORS) > 0:
        layouts = transfer.known(layouts, DIVISORS)
    rows, cols = widened(rows, WIDE), widened(cols, WIDE)
    span = tl.cdiv(tl.cdiv(cols, COLS), SPLITS) * COLS
    number, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    row = rows_of_tile(number, ROWS, WIDE)
    of_rows = load_each(given, row, row < rows)
    begin = split * span
    end = min(begin + span, cols)
    if WHOLE is None:
        state = row_state(
            sources, columns, of_rows, row, begin, end, cols, layouts,
            INIT, UPDATE, SETTLE, ACCESS, FILLS, TYPE, ROWS, COLS, EXACT, WIDE,
        )  # fmt: skip
    else:
        col = columns_from(begin, COLS, WIDE)
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
        tiles, valid = load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        state = WHOLE(tiles, of_columns, of_rows, valid, end - begin)
    store_each(states, row * SPLITS + split, state, row < rows)


@triton.jit
def apply_states_kernel(
    # as in rowwise_kernel, and the states of the first step
    sources, columns, given, states, destination, results, rows, cols, layouts, parameter: "fp64",
    MERGE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
    # what joins the states of a row at once, a power of two of at least SPLITS, if there is such a function
    ACROSS: tl.constexpr = None, JOINED: tl.constexpr = 1,
):  # fmt: skip
    """Rows split over SPLITS programs, second step: every program joins its row's states, then applies them.

    Programs go backward, from what the first step read last, of which the cache still holds some.
    """
    if len(DIVISORS) > 0:
        layouts = transfer.known(layouts, DIVISORS)
    rows, cols = widened(rows, WIDE), widened(cols, WIDE)
    span = tl.cdiv(tl.cdiv(cols, COLS), SPLITS) * COLS
    last = tl.num_programs(0) - 1 - tl.program_id(0)
    number, split = last // SPLITS, last % SPLITS
    row = rows_of_tile(number, ROWS, WIDE)
    if ACROSS is None:
        state = joined_states(states, row, rows, SPLITS, MERGE)
    else:
        state = ACROSS(states_beside(states, row, rows, SPLITS, JOINED))
        if ROWS == 1:
            state = alone(state)
    result = FINISH(state, cols, parameter)
    if split == 0:
        store_each(results, row, result, row < rows)
    apply_to_row(
        sources, columns, load_each(given, row, row < rows), destination, result, row,
        split * span, min(split * span + span, cols), cols, layouts,
        APPLY, ACCESS, FILLS, TYPE, COLS, EXACT, WIDE,
    )  # fmt: skip


@triton.jit
def joined_states(states, row, rows, SPLITS: tl.constexpr, MERGE: tl.constexpr):
    """The states of rows, joined from those of their splits."""
    state = load_each(states, row * SPLITS, row < rows)
    for part in tl.static_range(1, SPLITS):
        state = reduce.combine(state, load_each(states, row * SPLITS + part, row < rows), MERGE)
    return state


@triton.jit
def states_beside(states, row, rows, SPLITS: tl.constexpr, JOINED: tl.constexpr):
    """The states of rows' splits as tiles [rows, JOINED], 0 beyond SPLITS.

    Lanes share the loads, where for joined_states each loads all states of every row that it has a part of.
    """
    part = tl.arange(0, JOINED)[None, :]
    return load_each(states, row[:, None] * SPLITS + part, (row[:, None] < rows) & (part < SPLITS))


@triton.jit
def alone(vectors):
    """Vectors of one element, as constants that every lane can have.

    Else Triton brings the one element to the lanes of a row by way of lanes that hold all of the row: of
    4,096 columns 2,052 stores to shared memory.
    """
    found = vectors[:0]
    for i in tl.static_range(len(vectors)):
        found += (tl.sum(vectors[i], 0) + tl.zeros([1], vectors[i].dtype),)
    return found


@triton.jit
def row_state(
    sources, columns, of_rows, row, begin, end, cols, layouts,
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, FILLS: tl.constexpr,
    TYPE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The state of columns begin to end of each row."""
    kept = INIT(ROWS, COLS, TYPE)
    for start in range(begin, end, COLS):
        col = columns_from(start, COLS, WIDE)
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
        tiles, valid = load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        kept = UPDATE(kept, tiles, of_columns, of_rows, valid, (start - begin) // COLS + 1)
    count = end - begin
    return SETTLE(kept, (count - tl.arange(0, COLS) + COLS - 1) // COLS, count)


@triton.jit
def apply_to_row(
    sources, columns, of_rows, destination, result, row, begin, end, cols, layouts,
    APPLY: tl.constexpr, ACCESS: tl.constexpr, FILLS: tl.constexpr,
    TYPE: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The output in columns begin to end of each row, the last ones first."""
    for left in range(tl.cdiv(end - begin, COLS)):
        col = columns_from(begin + (tl.cdiv(end - begin, COLS) - 1 - left) * COLS, COLS, WIDE)
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
        tiles, _ = load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        offsets, valid = access(row, col, layouts[len(sources)], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)


@triton.jit
def columns_from(start, COLS: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of COLS columns from `start` on."""
    return widened(start, WIDE) + tl.arange(0, COLS)


@triton.jit
def rows_of_tile(number, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of the rows of tile `number`."""
    return widened(number, WIDE) * ROWS + tl.arange(0, ROWS)


@triton.jit
def widened(count, WIDE: tl.constexpr):
    """`count` in 64 bits if WIDE: a length below 2^31 may exceed that once it is rounded up to tiles."""
    if WIDE:
        count = tl.cast(count, tl.int64)
    return count


@triton.jit
def load_tiles(
    sources, row, col, layouts,
    ACCESS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """A tile of each source, and which elements of the first one's there are."""
    tiles = sources[:0]
    for i in tl.static_range(len(sources)):
        offsets, found = access(row, col, layouts[i], ACCESS, EXACT)
        tiles += (transfer.load(sources[i], offsets, found, FILLS[i]).to(TYPE),)
        if i == 0:
            valid = found
    return tiles, valid


@triton.jit
def access(row, col, layout, ACCESS: tl.constexpr, EXACT: tl.constexpr):
    """Offsets and validity of a tile. EXACT: no tile hangs over, so that the compiler needs no mask."""
    offsets, valid = ACCESS(row[:, None], col[None, :], layout)
    if EXACT:
        valid = tl.full(offsets.shape, True, tl.int1)
    return offsets, valid


@triton.jit
def load_each(pointers, index, valid):
    """The same elements of each of several vectors."""
    values = pointers[:0]
    for i in tl.static_range(len(pointers)):
        values += (transfer.load(pointers[i], index, valid),)
    return values


@triton.jit
def store_each(pointers, index, values, valid):
    """Elements of several vectors, which may be fewer than there are values."""
    for i in tl.static_range(len(pointers)):
        transfer.store(pointers[i], index, values[i], valid)


class Operator(NamedTuple):
    """A row operator as the kernels are given it: jit functions, and what masked elements are.

    `tiles` [rows, cols], `of_columns` [1, cols] and `of_rows` [rows] are tuples, one for each tensor.

    Attributes:
        whole: (tiles, of_columns, of_rows, valid, cols) -> state, a tuple of tiles [rows], of a tile's rows,
            or of their parts where each part is one tile; None: a part is always taken by `update`.
        init: (ROWS, COLS, TYPE) -> what is kept of no elements: by row, or by lane of the tile, which saves
            an exchange between lanes in every tile.
        update: (kept, tiles, of_columns, of_rows, valid, tally) -> what is kept once these tiles were seen
            too, the row's number `tally`.
        settle: (kept, tallies, count) -> state; `tallies` [cols] is how many of a row's `count` elements each
            lane has seen.
        merge: (*state, *state) -> state, of two parts of rows; None: `across` does it.
        finish: (state, cols, parameter) -> result, a tuple of tiles [rows].
        apply: (tiles, of_columns, of_rows, result) -> output [rows, cols].
        fills: for each source, what elements beyond the end of a row are taken for.
        parts: how many tiles a state is.
        across: (states [rows, splits]) -> state [rows], of which a state of zeros changes none: lanes share
            the loads of many states. None: `merge` does it, one after the other.
    """

    whole: Any
    init: Any
    update: Any
    settle: Any
    merge: Any
    finish: Any
    apply: Any
    fills: tuple[float, ...]
    parts: int
    across: Any = None
