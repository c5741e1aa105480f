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
    moving = bytes / bandwidth
    computing = flops / rate
    if moving > computing:
        return moving, "memory"
    return computing, "compute"
