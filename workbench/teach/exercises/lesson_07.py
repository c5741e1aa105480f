"""Exercises of lesson 07: layout arithmetic, a register budget, CK's layout encoding, 128-bit accesses."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from workbench import lens
from workbench.launch import Launch
from workbench.teach.definition import Budget, Case, Code, Mutant, eighths
from workbench.teach.exercise import Exercise

_ACCUMULATOR = (
    "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 1], instrShape = [16, 8]}>"
)

_BLOCK_NS = (32, 64, 128, 256)


def holder(row: int, column: int) -> tuple[int, int]:
    """Return the lane and the register that hold an element of the 16 x 8 accumulator of mma.m16n8k16."""
    (place,) = lens.layout.of(_ACCUMULATOR, (16, 8), target="sm_80").holders(row, column)
    return place.lane, place.register


def largest_tile(launch: Launch, target: str, registers: int) -> int:
    """Return the largest BLOCK_N of 32, 64, 128 and 256 for which the launch's kernel fits; 0 if none fits.

    A kernel fits if a thread uses at most `registers` registers on the target and spills none of them.
    """
    return max(
        (block_n for block_n in _BLOCK_NS if _fits(launch, target, registers, block_n)),
        default=0,
    )


def distribute(
    shape: tuple[int, int],
    size_per_thread: tuple[int, int],
    threads_per_warp: tuple[int, int],
    warps_per_cta: tuple[int, int],
) -> torch.Tensor:
    """Return the element in each place of a blocked layout with order [1, 0]: [warps, lanes, registers, 2].

    Each side of the tile is a multiple of what all threads together hold.
    """
    attribute = (
        f"#ttg.blocked<{{sizePerThread = {list(size_per_thread)}, threadsPerWarp = {list(threads_per_warp)}, "
        f"warpsPerCTA = {list(warps_per_cta)}, order = [1, 0]}}>"
    )
    return torch.tensor(lens.layout.of(attribute, shape, target="sm_80").elements)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0), contiguous, for a matrix in fp16 whose rows follow one another, perhaps with gaps.

    NaN stays NaN, as in torch. Rows have a multiple of 8 elements, and begin at multiples
    of 8 elements, which are 16 bytes.
    """
    return x.relu().contiguous()


def _fits(launch: Launch, target: str, registers: int, block_n: int) -> bool:
    (step,) = lens.compile(launch, target, BLOCK_N=block_n)
    return step.registers <= registers and step.spills == 0


# Triton's language has no types to check.
@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(  # type: ignore[no-untyped-def]
    a_pointer, b_pointer, c_pointer, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Compute C = A B for row-major matrices, which the tiles divide."""
    rows = tl.program_id(axis=0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(axis=1) * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_pointer + rows[:, None] * K + (start + steps)[None, :])
        b = tl.load(b_pointer + (start + steps)[:, None] * N + columns[None, :])
        accumulator = tl.dot(a, b, acc=accumulator)
    c = accumulator.to(c_pointer.dtype.element_ty)
    tl.store(c_pointer + rows[:, None] * N + columns[None, :], c)


@functools.cache
def _product(num_warps: int = 4) -> Launch:
    """Return the launch of a product of 256 x 256 matrices, which is compiled and never runs."""
    a, b, c = (torch.zeros(256, 256, dtype=torch.float16) for _ in range(3))
    return Launch.of(
        product_kernel,
        (2, 4),
        *(a, b, c, 256, 256),
        outputs=c,
        BLOCK_M=128,
        BLOCK_N=64,
        BLOCK_K=32,
        num_warps=num_warps,
    )


def _registers(target: str, block_n: int) -> int:
    (step,) = lens.compile(_product(), target, BLOCK_N=block_n)
    return step.registers


def _element(row: int, column: int) -> Case:
    return Case(lambda generator: (row, column))


def _budget(target: str, registers: int, num_warps: int = 4) -> Case:
    return Case(lambda generator: (_product(num_warps), target, registers))


def _rows(rows: int, columns: int, stride: int, seed: int) -> Case:
    """Return a case with columns of a matrix of `stride` columns, without its first 8 if there is room."""
    first = min(8, stride - columns)
    return Case(
        lambda generator: (eighths(generator, rows, stride).half()[:, first : first + columns],), seed
    )


def _with_nan(rows: int, columns: int, stride: int, seed: int) -> Case:
    """Return a case as in :func:`_rows`, with NaN in every seventh column of the wider matrix."""
    first = min(8, stride - columns)

    def build(generator: torch.Generator) -> tuple[torch.Tensor]:
        x = eighths(generator, rows, stride).half()
        x[:, ::7] = torch.nan
        return (x[:, first : first + columns],)

    return Case(build, seed)


def _wide_and_small(x: torch.Tensor) -> Budget:
    """Return a budget: accesses of 128 bits on both GPUs, and 64 registers for each thread."""
    code = tuple(Code(target, bits=128, registers=64) for target in ("sm_90", "gfx942"))
    return Budget(x.nbytes, x.nbytes, code=code)


def _blocked(shape: tuple[int, int], *attribute: tuple[int, int]) -> Case:
    return Case(lambda generator: (shape, *attribute))


HOLDER = Exercise(
    id="07-1",
    title="who holds it",
    function="holder",
    specification=holder,
    cases=(
        _element(13, 5),  # nothing in it is even, or zero
        _element(0, 0),
        _element(15, 7),  # the last
        _element(0, 1),  # the same lane, the next register
        _element(8, 0),  # the first of the lower half
        _element(7, 6),
        _element(10, 3),
        _element(1, 0),
    ),
    hints=(
        "Which elements does lane 0 hold? And lane 1? Read them off the picture of the accumulator.",
        "How many lanes share a row, and how many columns does each of them hold?",
        "Rows 0 and 8 are held by the same four lanes. Which part of the row's number says which lane, and "
        "which part says which register?",
        "A lane has four registers: in which order do they go through its two rows and two columns?",
    ),
    mutants=(
        Mutant(
            "the rows go on beyond the eighth",
            "A warp has 32 lanes, and four to a row make eight rows. Who holds row 8?",
        ),
        Mutant("a lane for each column", "Each column gets a lane of its own; a lane holds two neighbors."),
        Mutant("eight lanes a row", "A row is shared by eight lanes here. How many pairs of columns has it?"),
        Mutant(
            "lanes go down the columns",
            "The lanes go down the columns first; in this layout, they go along the rows.",
        ),
        Mutant(
            "the registers go down first",
            "The registers go through the rows first: register 1 is to be the next column.",
        ),
        Mutant(
            "the lower half has the same registers",
            "Rows 0 and 8 have the same lane and the same register: one of the two elements is lost.",
        ),
        Mutant(
            "the columns have the same registers",
            "A lane's two neighbors have the same register: one of the two elements is lost.",
        ),
        Mutant(
            "two neighboring rows a lane",
            "A lane holds two rows that are neighbors here; they are to be eight apart.",
        ),
        Mutant(
            "register and lane are swapped", "Both numbers are right, and in the wrong order: the lane first."
        ),
        Mutant("zeros", "Lane 0 and register 0 hold one element only."),
        Mutant("the arguments, untouched", "Those are the row and the column, just as they came."),
    ),
    unproven="that other instructions keep to this map: the operands of this one do not, nor does AMD.",
)

LARGEST_TILE = Exercise(
    id="07-2",
    title="the largest tile that fits",
    function="largest_tile",
    specification=largest_tile,
    cases=(
        _budget("sm_90", 255),  # all there are: only spilling sets a limit
        _budget("sm_90", 255, num_warps=8),  # the largest tile of all
        _budget("sm_90", 128),  # a budget below that
        _budget("sm_80", 200),  # another target, where the same tile takes more
        Case(lambda generator: (_product(), "sm_90", _registers("sm_90", 64))),  # used up to the last one
        _budget("sm_80", 16),  # nothing fits
    ),
    hints=(
        "How do you ask the compiler for this launch with another BLOCK_N? (It stood above, where the tile "
        "was changed.)",
        "`(step,) = lens.compile(launch, target, BLOCK_N=...)`: which two numbers of `step` matter here?",
        "A kernel that needs more registers than there are still compiles. Where do the values go, and which "
        "number says so?",
        "What is to be returned where not even the smallest tile fits?",
    ),
    mutants=(
        Mutant(
            "spills are not looked at",
            "A kernel that spills stays within any budget: what has no room goes to memory.",
        ),
        Mutant("the budget is not looked at", "Spills are looked at, and the budget is not."),
        Mutant("less than the budget", "A kernel may use its budget up to the last register."),
        Mutant(
            "the target is not looked at",
            "It compiles for sm_90, whatever the target: other GPUs need other numbers of registers.",
        ),
        Mutant(
            "the tile is not changed",
            "Every tile is the launch's own here: BLOCK_N has to reach the compiler.",
        ),
        Mutant("BLOCK_M is changed", "It is BLOCK_M that changes here."),
        Mutant("the smallest that fits", "That is the smallest tile that fits."),
        Mutant("the largest of all when nothing fits", "Where nothing fits, 0 is to be returned."),
        Mutant("how many fit", "That is how many tiles fit, not how large the largest is."),
        Mutant(
            "256 is not tried",
            "The largest tile of all, 256, is never compiled; dealt out to more warps, it fits.",
        ),
        Mutant("zeros", "It is always 0: no tile fits?"),
        Mutant("the budget, untouched", "That is the budget, just as it came."),
    ),
    unproven="that the largest tile is the fastest: more registers a thread leave room for fewer programs "
    "on a multiprocessor. The clock decides, and nothing was timed.",
)

DISTRIBUTE = Exercise(
    id="07-3",
    title="the same layout as an encoding",
    function="distribute",
    specification=distribute,
    cases=(
        _blocked((64, 128), (2, 4), (4, 8), (2, 2)),  # nothing in it is 1
        _blocked((64, 32), (1, 8), (8, 4), (4, 1)),  # the one of this lesson
        _blocked((16, 64), (2, 1), (2, 16), (2, 2)),
        _blocked((32, 16), (1, 1), (16, 2), (1, 8)),  # warps side by side, repeated down
        _blocked((16, 64), (1, 1), (4, 8), (4, 1)),  # repeated along the rows alone
    ),
    hints=(
        "How many rows do all warps together hold at a time, and how often do they start anew to cover "
        "shape[0]?",
        "Walk down a column of the tile. What changes first: the register of a lane, the lane, the warp, or "
        "the repetition? In which order do these four lengths stand in H?",
        "Which entries of H[0] and H[1] make up the warp? Which the lane? With order [1, 0] the last "
        "dimension is the fastest: does it come first or last in a P?",
        "Which four entries are left for Y? Within a thread, order [1, 0] holds too: which one is the "
        "fastest, and are repetitions faster or slower than the elements of one access?",
    ),
    mutants=(
        Mutant(
            "lanes go down first",
            "The lanes go down the columns first. In a P, the last entry is the fastest.",
        ),
        Mutant(
            "warps go down first",
            "The warps go down the columns first. In a P, the last entry is the fastest.",
        ),
        Mutant(
            "repetitions go down first",
            "The repetitions go down first. They follow the order too: the last dimension is the fastest.",
        ),
        Mutant(
            "the elements of a thread go down first",
            "The elements of one thread go down first. The last Y is the fastest.",
        ),
        Mutant(
            "repetitions are the fastest",
            "The registers go through the repetitions first, and through a thread's own elements last.",
        ),
        Mutant(
            "a warp's repetitions lie together",
            "Each warp takes all of its rows in one piece. In Triton the warps take one turn each, and then "
            "all of them start anew.",
        ),
        Mutant(
            "a lane's elements lie apart",
            "Neighboring elements go to neighboring lanes. In a blocked layout a thread's own elements are "
            "neighbors: they are the fastest part of H.",
        ),
        Mutant(
            "lanes and warps have changed places",
            "Neighboring rows go to neighboring warps. The lanes of one warp are to lie together.",
        ),
        Mutant(
            "the fastest part stands first",
            "The elements that a thread holds lie far apart, and repetitions lie together. In H the slowest "
            "part stands first.",
        ),
        Mutant("zeros", "Every place holds element (0, 0)?"),
    ),
    unproven="that CK generates the same instructions: it says where the elements are, and no more.",
)

_NO_MASK = "Has it a mask, and is the mask false for all of them?"


WIDE = Exercise(
    id="07-4",
    title="128 bits at once",
    function="relu",
    specification=relu,
    cases=(
        _rows(40, 264, 280, seed=1),  # no size is a multiple of 16; tiles hang over on both sides
        _rows(40, 264, 264, seed=2),  # without gaps
        _rows(32, 256, 256, seed=3),  # whole tiles, and everything a multiple of 16
        _rows(32, 256, 328, seed=4),  # the stride alone is none
        _rows(33, 136, 144, seed=5),  # the columns alone are none
        _rows(1, 8, 24, seed=6),  # the least
        _with_nan(17, 40, 56, seed=7),
    ),
    hints=(
        "First make it right, narrow or not: how do a row and a column become an offset in x, how one in the "
        "output, and where is the mask false?",
        "On which integers do the offsets depend, and on which the mask? Of each: is it a multiple of 16, "
        "which is all that the compiler asks? Is it one of 8?",
        "The compiler proves what it can from the text of the kernel. Which of these is a multiple of 8 "
        "whatever n is: n, n // 8, n // 8 * 8? And which of them is n, where n is a multiple of 8?",
        "128 bits are eight numbers of fp16. How many elements has a tile if each lane gets eight: of four "
        "warps of 32 lanes, and of four warps of 64? And how many registers do they take, two to each?",
    ),
    mutants=(
        Mutant(
            "the sizes may be any numbers",
            "The compiler does not know that 8 divides the stride and the number of columns. Of an argument, "
            "`tl.multiple_of` does not tell it. What could you write that is a multiple of 8 beyond doubt?",
        ),
        Mutant(
            "the stride may be any number",
            "The compiler does not know that rows of x begin at multiples of 8 elements.",
        ),
        Mutant(
            "the columns may be any number",
            "The compiler does not know that the number of columns is a multiple of 8: the mask may end "
            "anywhere, and rows of the output may begin anywhere.",
        ),
        Mutant(
            "a tile for warps of 32 lanes",
            "It is wide on sm_90 and half as wide on gfx942, whose warps have 64 lanes: eight elements for "
            "each of those are 512 a warp.",
        ),
        Mutant(
            "a tile too large",
            "The loads are wide, and the tile is large: each lane has to keep all of its part in registers.",
        ),
        Mutant(
            "columns in sixteens",
            "A number of columns that is a multiple of 8 alone is rounded down, and the last eight are lost.",
        ),
        Mutant(
            "the stride in sixteens",
            "A stride that is a multiple of 8 alone is rounded down: it is no longer the stride of x.",
        ),
        Mutant("eighths", "The number of columns is divided by 8 and not multiplied again."),
        Mutant(
            "the output gets x's stride", "The output is stored with the row stride of x. It has its own."
        ),
        Mutant(
            "x without its stride",
            "Rows of x are taken to follow one another: the row stride does not enter.",
        ),
        Mutant("no mask on the load", f"Lanes that have no element load x. {_NO_MASK}"),
        Mutant("no mask on the store", f"Lanes that have no element store a result. {_NO_MASK}"),
        Mutant("one program", "One program is started, and one program does one tile."),
        Mutant(
            "NaN becomes 0",
            "tl.maximum passes NaN by on a GPU: of NaN and 0 it gives 0. It has an argument for that, "
            "`propagate_nan`.",
        ),
        Mutant("the minimum", "That is min(x, 0)."),
        Mutant("the absolute value", "That is the absolute value."),
        Mutant("zeros", "Only zeros are stored."),
        Mutant("x, untouched", "That is x, just as it came."),
    ),
    unproven="that neighboring lanes fill whole sectors (lesson 01 counts them), or that it is fast: nothing "
    "was timed, and no AMD GPU has run it.",
    returns_launch=True,
    is_contiguous=True,
    budget=_wide_and_small,
)

EXERCISES = (HOLDER, LARGEST_TILE, DISTRIBUTE, WIDE)
