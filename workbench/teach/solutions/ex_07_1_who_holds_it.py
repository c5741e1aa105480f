"""Cut the row and the column into parts, and give each part to the lane or to the register.

- `column % 2` and `column // 2`: two neighbors lie in one lane, and four lanes make a row of eight.
- `row % 8` and `row // 8`: eight rows of four lanes are a warp, and then the next eight rows begin with
  lane 0 again, in other registers.

So the lane is made of `row % 8` (the slower part) and `column // 2`, the register of `row // 8` and
`column % 2`. All factors are powers of two, so that each part is a few *bits* of the row or the column: a
layout is a rearrangement of bits, which is what the compiler's linear layouts are.

In the PTX manual it reads backwards, from the lane to the element: *groupID = lane >> 2* is the row of
registers 0 and 1, *groupID + 8* that of 2 and 3, and *threadID_in_group = lane % 4* chooses the pair of
columns. The check knows neither formula: it asks the compiler.
"""


def holder(row: int, column: int) -> tuple[int, int]:
    """The lane and the register of an element of mma.m16n8k16's accumulator."""
    ### BEGIN SOLUTION
    lane = row % 8 * 4 + column // 2
    # WRONG the rows go on beyond the eighth: lane = row * 4 + column // 2
    # WRONG a lane for each column: lane = row % 8 * 4 + column
    # WRONG eight lanes a row: lane = row % 8 * 8 + column // 2
    # WRONG lanes go down the columns: lane = row % 8 + column // 2 * 8
    # WRONG two neighboring rows a lane: lane = row // 2 * 4 + column // 2
    register = row // 8 * 2 + column % 2
    # WRONG the registers go down first: register = row // 8 + column % 2 * 2
    # WRONG the lower half has the same registers: register = column % 2
    # WRONG the columns have the same registers: register = row // 8 * 2
    # WRONG two neighboring rows a lane: register = row % 2 * 2 + column % 2
    return lane, register
    # WRONG register and lane are swapped: return register, lane
    # WRONG zeros: return 0, 0
    # WRONG the arguments, untouched: return row, column
    ### END SOLUTION
    # STUB: pass  # return lane, register
