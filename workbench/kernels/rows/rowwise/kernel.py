"""Row operators: kernels that reduce each row to a state, then compute each element anew from that state.

Softmax and the normalizations are such operators, and so are their gradients. One template serves all:
`UPDATE` merges a tile into the row's state, `FINISH` turns the state into the row's results, and `APPLY`
computes an element of the output. The template has a kernel for rows that fit into a tile, which are read
once; one for longer rows, which one program reads twice; and two for rows too few to fill the device: each
row is split over several programs, which leave their states for a second step.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from workbench.kernels.tile import reduce, transfer


@triton.jit
def rowwise_kernel(
    # pointers: tensors of rows and columns, tensors with one value a column, tensors with one value a row;
    # the output; results with one value a row
    sources, columns, given, destination, results,
    # sizes
    rows, cols,
    # parameters of the access function, for each source and last for the output
    layouts,
    # the operator's scalar
    parameter: "fp64",
    # meta-parameters: the operator, the access function and divisors of its integers, values of masked
    # elements, the dtype of the arithmetic, a tile's rows and columns, whether they divide rows and columns
    WHOLE: tl.constexpr, FINISH: tl.constexpr, APPLY: tl.constexpr, LATE: tl.constexpr, ONCE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Apply an operator to rows that fit into a tile, reading each once.

    ONCE: each program has one tile. LATE: values by column are loaded where they are used.
    """
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
    """Apply an operator to the rows of tile `number`, each of which fits into the tile whole."""
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
    """Apply an operator to rows of several tiles.

    A first pass over a row's tiles finds its state; a second pass, last tile first, computes the output.
    """
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
    # as in rowwise_kernel, and the workspaces of the states: one tensor [rows, SPLITS] for each part
    sources, columns, given, states, rows, cols, layouts,
    INIT: tl.constexpr, UPDATE: tl.constexpr, SETTLE: tl.constexpr,
    ACCESS: tl.constexpr, DIVISORS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr,
    # where a split is one tile: the operator's function for whole rows
    WHOLE: tl.constexpr = None,
):  # fmt: skip
    """Store the state of each split of each row: the first step where SPLITS programs share a row."""
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
    # a function that joins all states of a row at once, if there is one; SPLITS rounded up to a power of two
    ACROSS: tl.constexpr = None, JOINED: tl.constexpr = 1,
):  # fmt: skip
    """Join each row's states, then compute the output: the second step where SPLITS programs share a row.

    Programs go backward: the cache still holds some of what the first step read last.
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
    """Return the states of rows; MERGE joins the states of a row's splits one after another."""
    state = load_each(states, row * SPLITS, row < rows)
    for part in tl.static_range(1, SPLITS):
        state = reduce.combine(state, load_each(states, row * SPLITS + part, row < rows), MERGE)
    return state


@triton.jit
def states_beside(states, row, rows, SPLITS: tl.constexpr, JOINED: tl.constexpr):
    """Return the states of rows' splits as tiles [rows, JOINED], with 0 beyond column SPLITS.

    The lanes of a warp share the loads. In joined_states, each lane loads all states of its rows.
    """
    part = tl.arange(0, JOINED)[None, :]
    return load_each(states, row[:, None] * SPLITS + part, (row[:, None] < rows) & (part < SPLITS))


@triton.jit
def alone(vectors):
    """Return vectors of one element as splats of scalars, which every lane has.

    Otherwise Triton distributes the element to the lanes of a row through lanes that hold the whole row: for
    4,096 columns, 2,052 stores to shared memory.
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
    """Return the state of columns `begin` to `end` of each row."""
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
    """Store the output in columns `begin` to `end` of each row, the last tile first."""
    for left in range(tl.cdiv(end - begin, COLS)):
        col = columns_from(begin + (tl.cdiv(end - begin, COLS) - 1 - left) * COLS, COLS, WIDE)
        of_columns = load_each(columns, col[None, :], col[None, :] < cols)
        tiles, _ = load_tiles(sources, row, col, layouts, ACCESS, FILLS, TYPE, EXACT)
        offsets, valid = access(row, col, layouts[len(sources)], ACCESS, EXACT)
        transfer.store(destination, offsets, APPLY(tiles, of_columns, of_rows, result), valid)


@triton.jit
def columns_from(start, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Return the indices of COLS columns, from `start` on."""
    return widened(start, WIDE) + tl.arange(0, COLS)


@triton.jit
def rows_of_tile(number, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Return the indices of the rows of tile `number`."""
    return widened(number, WIDE) * ROWS + tl.arange(0, ROWS)


@triton.jit
def widened(count, WIDE: tl.constexpr):
    """Return `count` in 64 bits if WIDE: a length below 2^31, rounded up to tiles, may reach 2^31."""
    if WIDE:
        count = tl.cast(count, tl.int64)
    return count


@triton.jit
def load_tiles(
    sources, row, col, layouts,
    ACCESS: tl.constexpr, FILLS: tl.constexpr, TYPE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Return a tile of each source, and the validity of the first one's elements."""
    tiles = sources[:0]
    for i in tl.static_range(len(sources)):
        offsets, found = access(row, col, layouts[i], ACCESS, EXACT)
        tiles += (transfer.load(sources[i], offsets, found, FILLS[i]).to(TYPE),)
        if i == 0:
            valid = found
    return tiles, valid


@triton.jit
def access(row, col, layout, ACCESS: tl.constexpr, EXACT: tl.constexpr):
    """Return offsets and validity of a tile. EXACT: no tile hangs over, so the compiler needs no mask."""
    offsets, valid = ACCESS(row[:, None], col[None, :], layout)
    if EXACT:
        valid = tl.full(offsets.shape, True, tl.int1)
    return offsets, valid


@triton.jit
def load_each(pointers, index, valid):
    """Return the elements at `index` of each vector, in a tuple."""
    values = pointers[:0]
    for i in tl.static_range(len(pointers)):
        values += (transfer.load(pointers[i], index, valid),)
    return values


@triton.jit
def store_each(pointers, index, values, valid):
    """Store values[i] at `index` of pointers[i]; values beyond the last pointer are not stored."""
    for i in tl.static_range(len(pointers)):
        transfer.store(pointers[i], index, values[i], valid)


class RowOperator(NamedTuple):
    """A row operator for the kernels: its jit functions, and the values of masked elements.

    `tiles` [rows, cols], `of_columns` [1, cols] and `of_rows` [rows] are tuples, one element for each tensor.

    Attributes:
        whole: (tiles, of_columns, of_rows, valid, cols) -> state, a tuple of tiles [rows]: the state of rows,
            or of splits of rows, that are one tile. None: `update` takes such splits too.
        init: (ROWS, COLS, TYPE) -> running state of no elements: tiles [rows], or tiles [rows, cols], which
            save an exchange between lanes in every tile.
        update: (kept, tiles, of_columns, of_rows, valid, tally) -> running state after these tiles, which are
            number `tally` of the row, counted from 1.
        settle: (kept, tallies, count) -> state; `tallies` [cols] says how many of a row's `count` elements
            each column of the tile has seen.
        merge: (*state, *state) -> state of two parts of rows. None: `across` joins them.
        finish: (state, cols, parameter) -> result, a tuple of tiles [rows].
        apply: (tiles, of_columns, of_rows, result) -> output [rows, cols].
        fills: for each source, the value of elements beyond the end of a row.
        parts: the number of tiles in a state.
        across: (states [rows, splits]) -> state [rows]: lanes share the loads of many states. A state of
            zeros must not change the result. None: `merge` joins states one after another.
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
