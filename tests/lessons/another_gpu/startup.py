"""Run by IPython before a lesson's first cell: launches are planned for a GPU, and still interpreted.

So a lesson shows what it would on a machine with that GPU wherever its output follows from what a launch is:
tiles, grids, templates, what is traced and compiled of it.
"""

import os

from workbench import device


def _pretend(name: str) -> None:
    there, plain = device.named(name), device.planned

    def planned() -> device.Device:
        chosen = plain()
        return there if chosen == device.current() else chosen

    device.planned = planned


_pretend(os.environ["WORKBENCH_TEST_GPU"])
del _pretend
