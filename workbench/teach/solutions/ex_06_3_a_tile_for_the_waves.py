r"""Compute for each tile that may be taken how long a wave lasts, and how many waves there are.

A unit makes one tile at a time. With $t$ tiles and $u$ units, the unit with the most tiles makes $\lceil t /
u \rceil$ of them, and the product takes as long as that one does:

$$\Big\lceil \frac{t}{u} \Big\rceil \cdot \max\big(b_m b_n, \; 80 \, (b_m + b_n)\big)$$

Larger tiles load less for each product, smaller ones come out even: 128 x 256 is the cheapest for each
element of the output, the only one of the eight whose sums take longer than its loads, and yet loses where it
makes one tile more than there are units, since then most of a wave is idle. Both have to be in one formula,
or one of them wins always.

As for the programs: with $w$ waves, no unit needs to make more than $w$ tiles, and $\lceil t / w \rceil$
programs that make $w$ each are enough. More would be idle in the last wave, with fewer one of them would make
$w + 1$. (The shipped kernel starts one for each unit all the same: it costs nothing, and units are not
equally fast.)

The package's instances predict their time (`predicted_ns`) by such a formula, with measured times: for a
step, and for what a program does beside its steps.
"""

import triton


def plan(m: int, n: int, units: int) -> tuple[int, int, int]:
    """Return rows and columns of the best tile, and the fewest programs that need no more waves."""
    ### BEGIN SOLUTION
    tiles_to_try = [(rows, cols) for rows in (64, 128) for cols in (64, 128, 192, 256)]

    def cost(tile: tuple[int, int]) -> tuple[int, int, int]:
        rows, cols = tile
        waves = triton.cdiv(triton.cdiv(m, rows) * triton.cdiv(n, cols), units)
        # WRONG waves in fractions: waves = triton.cdiv(m, rows) * triton.cdiv(n, cols) / units
        return waves * max(rows * cols, 80 * (rows + cols)), rows, cols
        # WRONG the fewest waves: return waves, rows, cols
        # WRONG loads cost nothing: return waves * rows * cols, rows, cols
        # WRONG the largest of equals: return waves * max(rows * cols, 80 * (rows + cols)), -rows, -cols

    _, rows, cols = min(map(cost, tiles_to_try))
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, cols)
    waves = triton.cdiv(tiles, units)
    return rows, cols, triton.cdiv(tiles, waves)
    # WRONG a program for each unit: return rows, cols, min(tiles, units)
    # WRONG programs rounded down: return rows, cols, tiles // waves
    ### END SOLUTION
    # STUB: pass  # return rows, cols, programs
