"""Add digit by digit from the fast end, as on paper, and carry or borrow one.

A digit of the index is less than its length, and so is the magnitude of a digit of the step. With one
carried, their sum is less than twice the length, and not below minus the length. So a digit overflows once at
most: one comparison and one subtraction do what a remainder would.

The slowest digit takes what comes and has no end. An index may well be moved out of its dimension, as by
the last step of a loop, and back again; whether it is valid is asked elsewhere.

That is what `Coordinate.move` does, through every transform of a descriptor: most transforms are
linear, so that a step below is the step above times the coefficients. Only `merge` has to carry.
"""


def move(digits: tuple[int, ...], lengths: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, ...]:
    """The digits of an index after a step."""
    ### BEGIN SOLUTION
    moved, carry = [], 0
    for i in reversed(range(len(digits))):
        # WRONG from the slow end: for i in range(len(digits)):
        digit = digits[i] + step[i] + carry
        # WRONG the carry is lost: digit = digits[i] + step[i]
        carry = 0
        if i > 0 and digit >= lengths[i]:
            # WRONG digits that are too large stay: if i < 0 and digit >= lengths[i]:
            # WRONG a digit may be its length: if i > 0 and digit > lengths[i]:
            # WRONG the first digit begins anew: if digit >= lengths[i]:
            digit, carry = digit - lengths[i], 1
            # WRONG nothing is carried: digit, carry = digit - lengths[i], 0
            # WRONG it divides: carry, digit = divmod(digit, lengths[i])
        elif i > 0 and digit < 0:
            # WRONG digits below 0 stay: elif i < 0 and digit < 0:
            # WRONG the first digit ends at 0: elif digit < 0:
            digit, carry = digit + lengths[i], -1
            # WRONG nothing is borrowed: digit, carry = digit + lengths[i], 0
        moved.append(digit)
    return tuple(reversed(moved))
    # WRONG only added: return tuple(a + b for a, b in zip(digits, step, strict=True))
    # WRONG zeros: return (0,) * len(moved)
    # WRONG the digits, untouched: return tuple(digits)
    ### END SOLUTION
    # STUB: pass  # return the digits after the step, a tuple
