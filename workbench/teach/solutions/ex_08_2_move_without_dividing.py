"""As on paper: add digit by digit from the fast end, and carry or borrow one.

A digit of the index is less than its length, and so is the amount of a digit of the step. With one carried,
their sum is less than twice the length, and not below minus the length. So a digit overflows once at most:
one comparison and one subtraction do what a remainder would.

The slowest digit takes what comes and has no end. An index may well be moved out of its dimension, as by
the last step of a loop, and back again; whether it is valid is asked elsewhere.

That is what `Coordinate.move` does, through every transform of a descriptor: of most of them, which are
linear, a step below is the step above times the coefficients. Only `merge` has to carry.
"""


def move(digits: tuple[int, ...], lengths: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, ...]:
    """The digits of an index after a step."""
    moved, carry = [], 0
    for i in reversed(range(len(digits))):
        digit = digits[i] + step[i] + carry
        carry = 0
        if i > 0 and digit >= lengths[i]:
            digit, carry = digit - lengths[i], 1
        elif i > 0 and digit < 0:
            digit, carry = digit + lengths[i], -1
        moved.append(digit)
    return tuple(reversed(moved))
