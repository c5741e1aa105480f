"""Row operators: of each row something is found out, and with that each of its elements is made anew.

Softmax and the normalizations are such operators, and so are their gradients. One template for all: `UPDATE`
brings a tile into the row's state, `FINISH` makes the row's results of the state, `APPLY` makes an element of
the output. Three kernels are made of it: rows that fit into a tile are read once; longer ones are gone over
twice by one program; where rows are so few that programs are, each row is split over several, which leave
their states for a second step.
"""

# No `from __future__ import annotations`: Triton reads "fp64" below as the annotation's value, not its text.

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from workbench import device
from workbench.errors import InvalidArgumentError, check_positive, check_power_of_two
from workbench.kernels.layout import ACCESS_BYTES, Rows, rows_of
from workbench.kernels.tile import reduce, transfer
from workbench.kernels.views import Described, View, layouts_of_each, placed
from workbench.launch import Launch, Step, Work

# Programs for each compute unit: below the fewest, rows are split, into as many as keep memory busy; beyond
# the most, programs are started once and take several tiles each.
FEWEST_PER_UNIT = 4
SPLIT_PER_UNIT = 16
MOST_PER_UNIT = 64
PERSISTENT_IN_INTERPRETER = 4
MOST_WARPS = 8
MOST_SPLITS = 32

# More states than these, of a tile's rows and their splits, are joined in one reduction, where an operator
# has one. Of 8 rows of 27 splits (sm_90) it takes 60 registers, one after the other 128 and spills.
MOST_JOINED = 8

# From so many elements in a tile on, values by column are loaded where they are used, not kept in registers
# from the start: H200, layer norm of 16384 x 4096 halves: 3.5 TB/s, with them 3.0.
LATE_ELEMENTS = 4096

# Where a lane has so many elements, it gets no more registers than let two programs of 8 warps run beside one
# another. H200, layer norm of 4096 x 16384 halves: 3.5 TB/s, without the limit 2.4.
MOST_PER_LANE, REGISTERS = 64, 128


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


class Plan(NamedTuple):
    """How programs share rows and columns.

    Attributes:
        rows, cols: of a tile, powers of two.
        splits: programs that share each row.
        programs: started in all; where there are fewer than tiles of rows times splits, each takes several.
        num_warps: of each program.
    """

    rows: int
    cols: int
    splits: int
    programs: int
    num_warps: int


def checked_tile(tile: Sequence[int]) -> tuple[int, int]:
    """`tile` as (rows, cols), both powers of two."""
    if not isinstance(tile, Sequence) or len(tile) != 2:
        raise InvalidArgumentError(
            "tile", f"got {tile!r}", "Give a tile's rows and columns, such as (4, 256)."
        )
    return check_power_of_two("tile[0]", tile[0]), check_power_of_two("tile[1]", tile[1])


def enough_tiles(view: Rows | Described, rows: int, fewest: int) -> int:
    """`rows` of a tile, halved as long as there would be fewer tiles than `fewest`."""
    while rows > 1 and triton.cdiv(view.rows, rows) < fewest:
        rows //= 2
    return rows


def units_of(compute_units: int | None) -> int:
    """The compute units to plan for; None for this device's."""
    return (
        device.planned().compute_units
        if compute_units is None
        else check_positive("compute_units", compute_units)
    )


def plan(
    view: Rows | Described,
    itemsize: int,
    tile: tuple[int, int],
    *,
    splits: int | None = None,
    programs: int | None = None,
    num_warps: int | None = None,
    compute_units: int | None = None,
    split_per_unit: int = SPLIT_PER_UNIT,
    most_splits: int = MOST_SPLITS,
) -> Plan:
    """How programs share `view`; what is given is taken, the rest is chosen.

    Rows are split where there are fewer than :data:`FEWEST_PER_UNIT` tiles of them for each compute unit,
    into `split_per_unit` programs for each, or as many as there are tiles. Where there are more than
    :data:`MOST_PER_UNIT` tiles for each, programs are persistent: as many as that, each taking one after
    another.

    Args:
        view: rows and columns.
        itemsize: bytes of an element.
        tile: rows and columns of a tile.
        splits: programs that share a row. programs: in all, of which none is idle: no more than there are
            tiles. num_warps: of each program.
        compute_units: of the device to plan for; None for this one.
        split_per_unit: programs for each compute unit, where rows are split.
        most_splits: no more than these, where it is chosen: a row operator's programs each read all states.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a number is not positive, `num_warps` no power of two.
    """
    units = units_of(compute_units)
    row_tiles, col_tiles = triton.cdiv(view.rows, tile[0]), triton.cdiv(view.cols, tile[1])
    if splits is None:
        is_few = row_tiles < FEWEST_PER_UNIT * units
        wanted = triton.cdiv(split_per_unit * units, row_tiles)
        splits = max(min(wanted, col_tiles, most_splits), 1) if is_few else 1
    splits = triton.cdiv(col_tiles, triton.cdiv(col_tiles, check_positive("splits", splits)))  # none is idle
    if programs is None:
        most = MOST_PER_UNIT * units
        if not device.planned().is_gpu and compute_units is None:
            most = max(PERSISTENT_IN_INTERPRETER, splits)
        programs = most
    programs = min(check_positive("programs", programs), row_tiles * splits)
    if num_warps is None:
        num_warps = min(max(tile[0] * tile[1] * itemsize // (32 * ACCESS_BYTES * 4), 1), MOST_WARPS)
    return Plan(*tile, splits, programs, check_power_of_two("num_warps", num_warps))


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


def launch(
    operator: Operator,
    sources: Sequence[torch.Tensor],
    output: torch.Tensor,
    dims: frozenset[int],
    plan: Plan,
    *,
    columns: Sequence[torch.Tensor] = (),
    given: Sequence[torch.Tensor] = (),
    results: Sequence[torch.Tensor] = (),
    parameter: float = 0.0,
    work: Work | None = None,
) -> Launch:
    """output = operator(sources), row by row.

    Args:
        operator: what is done.
        sources: tensors of one shape, of any strides, with elements.
        output: of that shape, of any strides in which no two elements share memory.
        dims: the dimensions that are the columns.
        plan: how programs share rows and columns.
        columns, given: contiguous tensors of a value a column, and of a value a row.
        results: contiguous tensors of a value a row, for the first so many of the operator's results.
        parameter: the operator's scalar.
        work: FLOPs and least bytes.
    """
    call = prepared(operator, sources, output, dims, plan, columns, given)
    return _launched(operator, call, output, plan, results, parameter, work)


def launch_views(
    operator: Operator,
    sources: Sequence[View],
    output: View,
    plan: Plan,
    *,
    vectors: Sequence[View] = (),
    given: Sequence[torch.Tensor] = (),
    results: Sequence[torch.Tensor] = (),
    parameter: float = 0.0,
    work: Work | None = None,
) -> Launch:
    """As :func:`launch`, of matrices that descriptors without padding describe.

    Args:
        operator: what is done; its `tiles` are those of the sources, and behind them of the vectors.
        sources: [rows, cols], with elements.
        output: of these lengths, no two elements in one place.
        vectors: of these lengths as well, but all rows, or all columns, may be one: tiles of one element
            along that axis.
        others: as of :func:`launch`.
    """
    call = prepared_views(operator, sources, output, plan, vectors, given)
    return _launched(operator, call, output.tensor, plan, results, parameter, work)


class Prepared(NamedTuple):
    """What every kernel of a row operator is given.

    Attributes:
        read: the tensors that are read: sources, columns, given.
        sizes: rows, cols, layouts.
        meta: meta-parameters.
    """

    read: tuple[tuple[torch.Tensor, ...], ...]
    sizes: tuple[Any, ...]
    meta: dict[str, Any]


def prepared(
    operator: Operator,
    sources: Sequence[torch.Tensor],
    output: torch.Tensor,
    dims: frozenset[int],
    plan: Plan,
    columns: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
) -> Prepared:
    """What every kernel is given; arguments as those of :func:`launch`."""
    tensors = (*sources, output)
    views = rows_of(output.shape, tuple(t.stride() for t in tensors), dims)
    divisors = sum((v.divisors(t.element_size()) for v, t in zip(views, tensors, strict=True)), ())
    meta = {"ACCESS": transfer.strided, "DIVISORS": divisors} | _meta(operator, sources[0], views, plan)
    read = (tuple(sources), tuple(columns), tuple(given))
    return Prepared(read, (views[0].rows, views[0].cols, tuple(each.layout for each in views)), meta)


def prepared_views(
    operator: Operator,
    sources: Sequence[View],
    output: View,
    plan: Plan,
    vectors: Sequence[View] = (),
    given: Sequence[torch.Tensor] = (),
) -> Prepared:
    """What every kernel is given; arguments as those of :func:`launch_views`."""
    whole = [Described(view) for view in (*sources, output)]
    tile = (plan.rows, plan.cols)
    *read, written = [each.access(*tile) for each in whole]
    beside = [placed(view, tile, is_vector=True) for view in vectors]
    function, layouts = layouts_of_each([*read, *beside, written])
    tensors = tuple([view.tensor for view in (*sources, *vectors)])
    meta = {"ACCESS": function, "DIVISORS": ()} | _meta(operator, tensors[0], whole, plan)
    return Prepared((tensors, (), tuple(given)), (whole[0].rows, whole[0].cols, layouts), meta)


def _meta(
    operator: Operator, like: torch.Tensor, views: Sequence[Rows | Described], plan: Plan
) -> dict[str, Any]:
    """The meta-parameters that follow from the plan."""
    view = views[0]
    padded = max(view.rows + plan.rows, view.cols + plan.splits * plan.cols, view.rows * plan.splits)
    meta = {
        "FILLS": operator.fills,
        "TYPE": tl.float64 if like.dtype == torch.float64 else tl.float32,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "EXACT": view.are_whole(plan.rows, plan.cols),
        "WIDE": any(each.is_wide(padded) for each in views),
        "num_warps": plan.num_warps,
    }
    if device.planned().kind == "cuda" and plan.rows * plan.cols >= MOST_PER_LANE * 32 * plan.num_warps:
        meta["maxnreg"] = REGISTERS  # an option of NVIDIA's compiler alone
    return meta


def states_step(
    operator: Operator, call: Prepared, like: torch.Tensor, plan: Plan
) -> tuple[tuple[torch.Tensor, ...], Step]:
    """Where the states of each split of each row are left, [rows, splits] each; and the step that does so."""
    rows, cols, _ = call.sizes
    states = workspaces(operator.parts, like, rows, plan)
    programs = triton.cdiv(rows, plan.rows) * plan.splits
    meta = call.meta | _kept_of_tiles(operator) | {"SPLITS": plan.splits}
    if plan.splits * plan.cols >= cols:
        meta["WHOLE"] = operator.whole
    return states, Step(row_states_kernel, (programs,), (*call.read, states, *call.sizes), meta)


def _launched(
    operator: Operator,
    call: Prepared,
    output: torch.Tensor,
    plan: Plan,
    results: Sequence[torch.Tensor],
    parameter: float,
    work: Work | None,
) -> Launch:
    """The steps that the plan asks for."""
    rows, cols, _ = call.sizes
    end = {"FINISH": operator.finish, "APPLY": operator.apply}
    outputs = (output, *results)
    if plan.splits == 1:
        kernel, begin = rowwise_tiles_kernel, _kept_of_tiles(operator)
        if plan.cols >= cols:
            kernel, begin = (
                rowwise_kernel,
                {
                    "WHOLE": operator.whole,
                    "LATE": plan.rows * plan.cols >= LATE_ELEMENTS,
                    "ONCE": plan.programs * plan.rows >= rows,
                },
            )
        arguments = (*call.read, output, tuple(results), *call.sizes, parameter)
        return Launch(
            (Step(kernel, (plan.programs,), arguments, call.meta | begin | end),), outputs, work=work
        )
    states, first = states_step(operator, call, output, plan)
    is_joined = operator.merge is None or plan.rows * plan.splits > MOST_JOINED
    if operator.across is not None and is_joined:
        end |= {"ACROSS": operator.across, "JOINED": triton.next_power_of_2(plan.splits)}
    second = Step(
        apply_states_kernel, first.grid,
        (*call.read, states, output, tuple(results), *call.sizes, parameter),
        call.meta | {"SPLITS": plan.splits, "MERGE": operator.merge} | end,
    )  # fmt: skip
    return Launch((first, second), outputs, work=work, workspaces=states)


def _kept_of_tiles(operator: Operator) -> dict[str, Any]:
    return {"INIT": operator.init, "UPDATE": operator.update, "SETTLE": operator.settle}


def workspaces(parts: int, like: torch.Tensor, rows: int, plan: Plan) -> tuple[torch.Tensor, ...]:
    """Where states of so many parts are left between two steps."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return tuple(torch.empty((rows, plan.splits), dtype=dtype, device=like.device) for _ in range(parts))
