"""Launches kept ready: what a call would check and compute again is done once for tensors that lie alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from workbench import device
from workbench.launch import Launch

MOST_KEPT = 4096


class LaunchCache:
    """Launches by all that they depend on except where their tensors lie."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Callable[..., None]] = {}

    def run(self, key: Hashable, make: Callable[..., Launch], *tensors: torch.Tensor) -> None:
        """`make(*tensors).run()`; from the second time on with a key, its kernels are only started.

        Args:
            key: shapes, strides, dtypes and device of the tensors, and whatever else `make` depends on.
            make: makes the launch of these tensors; its steps are given each of them, and no others.
            tensors: what it is to run on.
        """
        if (again := self._kept.get(key)) is not None:
            again(*tensors)
            return
        if len(set(map(id, tensors))) < len(tensors):
            # Another object in each place, so that the launch tells them apart.
            tensors = tuple(tensor.detach() for tensor in tensors)
        launch = make(*tensors)
        launch.run()
        if not device.is_interpreter():  # where each run is watched, which takes a whole launch
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = launch.replay(*tensors)
