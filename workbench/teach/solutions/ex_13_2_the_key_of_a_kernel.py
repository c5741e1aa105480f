r"""The key has all that the compiler puts into the code, and nothing else.

- **dtype**: which instructions load and convert.
- **Address**: whether 16 divides it. If so, 16 bytes are loaded at once, and that kernel must not be started
  elsewhere. Where exactly a tensor lies is an argument like any other.
- **Size and stride**: whether the number is 1, a multiple of 16, and whether it takes 64 bits. A stride of 1
  is what makes neighbors of columns, so it is put into the code; a stride that is a multiple of 16 keeps rows
  aligned. Both are whole numbers to Triton, which does not know what they mean.
- **The constant**, by its value: a tile's shape decides everything.

A key that is too fine costs time. With every size in it, a server that meets a new length with each request
compiles with each request. A key that is too coarse is an error that no small test finds: the kernel for
aligned addresses runs well until somebody passes a slice.

When in doubt, put it in. The package's key is finer than Triton's in places: that may cost a compilation, and
never a wrong result.
"""


def key(
    dtype: str, address: int, size: int, stride: int, block: int
) -> tuple[str, bool, tuple[bool, ...], tuple[bool, ...], int]:
    """Return a key that is equal for two calls if they share a compiled kernel."""

    ### BEGIN SOLUTION
    def kind(number: int) -> tuple[bool, ...]:
        return (number == 1, number % 16 == 0, number >= 2**31)
        # WRONG 1 is like any other: return (number % 16 == 0, number >= 2**31)
        # WRONG 32 bits for all: return (number == 1, number % 16 == 0)

    return dtype, address % 16 == 0, kind(size), kind(stride), block
    # WRONG no dtype: return address % 16 == 0, kind(size), kind(stride), block
    # WRONG no alignment: return dtype, kind(size), kind(stride), block
    # WRONG every address: return dtype, address, kind(size), kind(stride), block
    # WRONG multiples of 8: return dtype, address % 8 == 0, kind(size), kind(stride), block
    # WRONG every size: return dtype, address % 16 == 0, size, kind(stride), block
    # WRONG no size: return dtype, address % 16 == 0, kind(stride), block
    # WRONG every stride: return dtype, address % 16 == 0, kind(size), stride, block
    # WRONG no stride: return dtype, address % 16 == 0, kind(size), block
    # WRONG no constant: return dtype, address % 16 == 0, kind(size), kind(stride)
    ### END SOLUTION
    # STUB: pass  # return a tuple: equal for two calls if they share a compiled kernel


def compiled(calls: tuple[tuple[str, int, int, int, int], ...]) -> tuple[int, ...]:
    """Return for each call the index of the first call that shares its kernel."""
    keys = [key(*call) for call in calls]
    return tuple(keys.index(each) for each in keys)
    # STUB: return None if None in keys else tuple(keys.index(each) for each in keys)
