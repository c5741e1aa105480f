"""Say at which byte each lane begins, and in which sector that byte lies; count the different ones.

Lane $l$ reads element number $l$ times the stride; that times the size of an element, added to the first
byte, is where it begins. A sector is a run of 32 bytes that begins at a multiple of 32, so a byte's sector is
its address divided by 32, rounded down. An element never lies in two sectors, since it begins at a multiple
of its own size. A set keeps each number once.

Try it on the patterns of this lesson. Neighbors that read fp32 make 4 sectors, of fp16 only 2: the request
shrinks with what is asked for. Move the beginning by one element, and there is one sector more. Double the
stride, and the number of sectors doubles, until at a stride of 8 every lane has one of its own; from there on
it cannot get worse, and 32 sectors bring 32 elements. With a stride of 0 all lanes read one element, and one
sector serves them all.
"""


def sectors(first: int, stride: int, itemsize: int) -> int:
    """Return how many sectors the 32 lanes of a warp touch."""
    return len({(first + lane * stride * itemsize) // 32 for lane in range(32)})
    # STUB: pass  # return how many
    # WRONG the first byte is left out: return len({(lane * stride * itemsize) // 32 for lane in range(32)})
    # WRONG the stride is left out: return len({(first + lane * itemsize) // 32 for lane in range(32)})
    # WRONG the stride is taken for bytes: return len({(first + lane * stride) // 32 for lane in range(32)})
    # WRONG cache lines instead of sectors:
    #     return len({(first + lane * stride * itemsize) // 128 for lane in range(32)})
    # WRONG one for each lane: return len([(first + lane * stride * itemsize) // 32 for lane in range(32)])
    # WRONG the bytes asked for, in sectors: return 32 * itemsize // 32
    # WRONG not rounded down: return len({(first + lane * stride * itemsize) / 32 for lane in range(32)})
    # WRONG bits instead of bytes:
    #     return len({(first + lane * stride * itemsize * 8) // 32 for lane in range(32)})
    # WRONG lanes count from 1:
    #     return len({(first + lane * stride * itemsize) // 32 for lane in range(1, 33)})
    # WRONG half a warp: return len({(first + lane * stride * itemsize) // 32 for lane in range(16)})
    # WRONG the last lane is missing:
    #     return len({(first + lane * stride * itemsize) // 32 for lane in range(31)})
    # WRONG zero: return 0
    # WRONG the first byte, untouched: return first
