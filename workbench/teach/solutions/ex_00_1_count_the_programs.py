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
    """The programs that cover n elements, and the idle lanes of the last one."""
    programs = triton.cdiv(n, block_size)
    idle_lanes = programs * block_size - n
    return programs, idle_lanes
