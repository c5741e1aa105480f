"""Moving takes at least `bytes / bandwidth` seconds, and computing at least `flops / rate`.

A GPU does both at once: while some programs wait for memory, others compute. So the times do not add up.
The job cannot end before the *longer* of the two has, and may end with it: hence the maximum. The sum would
be right for a machine that does one thing after the other.

This is the roofline, read as a time. Divide the FLOPs by it, and you have the roof: the lower of `rate` and
`intensity * bandwidth`.

The name of the longer one says what would help. Bound by memory: move fewer bytes (fuse, or use a smaller
format); multiplying faster changes nothing. Bound by compute: use matrix units, or a smaller format; moving
less changes nothing. At the ridge both times are equal, and we say "compute": from there on, arithmetic is
the limit.
"""


def least_seconds(flops: float, bytes: float, bandwidth: float, rate: float) -> tuple[float, str]:
    """The least time in seconds, and what sets it: "memory" or "compute"."""
    ### BEGIN SOLUTION
    moving = bytes / bandwidth
    # WRONG bandwidth and rate are swapped: moving = bytes / rate
    computing = flops / rate
    # WRONG bandwidth and rate are swapped: computing = flops / bandwidth
    if moving > computing:
        # WRONG the shorter time and its name: if moving < computing:
        # WRONG memory at the ridge: if moving >= computing:
        return moving, "memory"
        # WRONG the sum: return moving + computing, "memory"
        # WRONG the shorter time: return computing, "memory"
        # WRONG the names are swapped: return moving, "compute"
        # WRONG always compute: return computing, "compute"
        # WRONG zeros: return 0.0, "memory"
        # WRONG the first argument, untouched: return flops, "memory"
    return computing, "compute"
    # WRONG the sum: return moving + computing, "compute"
    # WRONG the shorter time: return moving, "compute"
    # WRONG the names are swapped: return computing, "memory"
    # WRONG always memory: return moving, "memory"
    # WRONG zeros: return 0.0, "compute"
    # WRONG the first argument, untouched: return flops, "compute"
    ### END SOLUTION
    # STUB: pass  # return seconds, "memory" or "compute"
