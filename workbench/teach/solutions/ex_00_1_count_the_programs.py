"""The number of programs is $n / b$, rounded *up*: the last one takes what is left.

`triton.cdiv(n, b)` computes it as `(n + b - 1) // b`. Adding $b - 1$ carries every quotient that is not
whole over the next whole number, and leaves the whole ones where they are.

All programs together have `programs * block_size` lanes, and `n` of them have an element. The rest are
idle: the ones that the mask keeps out of memory. Counted so, from all lanes, a full last block needs no
special case; `block_size - n % block_size` would call it empty.

Idle lanes are not free. With one element more than a block, almost half of all lanes are idle; with a
million elements, the last block does not matter. So small problems want small blocks.
"""

import triton


def count(n: int, block_size: int) -> tuple[int, int]:
    """Return the number of programs that cover n elements, and the idle lanes of the last one."""
    ### BEGIN SOLUTION
    programs = triton.cdiv(n, block_size)
    # WRONG right for blocks of 256 only:
    #     block_size = 256
    #     programs = triton.cdiv(n, block_size)
    # WRONG the division rounds down: programs = n // block_size
    # WRONG always one program more: programs = n // block_size + 1
    idle_lanes = programs * block_size - n
    # WRONG the lanes in use instead of the idle ones: idle_lanes = n % block_size
    # WRONG a full last block counts as empty: idle_lanes = block_size - n % block_size
    # WRONG the idle lanes of all blocks: idle_lanes = programs * (programs * block_size - n)
    return programs, idle_lanes
    # WRONG zeros: return 0, 0
    # WRONG the arguments, untouched: return n, block_size
    ### END SOLUTION
    # STUB: pass  # return programs, idle_lanes
