"""The table of activations: their forms, their meaning in torch, and properties that templates need.

The functions of tiles are in :mod:`workbench.kernels.tile.activation`, the functors of epilogues in
:mod:`workbench.kernels.tile.epilogue`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from workbench.kernels.tile import activation, epilogue


@dataclass(frozen=True)
class Activation:
    """An activation.

    Attributes:
        name: the name that operators and templates take; epilogues use the name of the functor.
        function: jit function of a tile, for results of fewer than `activation.EXACT_FROM` bytes an element.
        exact: jit function of a tile for other results.
        functor, exact_functor: `function` and `exact` as functors of epilogues; None if there are none.
        meaning: the same function in torch, from which gradients are derived.
        flops: floating-point operations per element; an exponential or an error function counts as one.
        makes_floats: whether integers become floats.
        takes_long: whether the functor is so slow that products with it gain by the template "ping-pong".
        is_coarse: whether later functors can make an error of more than a rounding step visible in a narrow
            result.
    """

    name: str
    function: Any
    exact: Any
    functor: Any
    exact_functor: Any
    meaning: Callable[[torch.Tensor], torch.Tensor]
    flops: int
    makes_floats: bool = True
    takes_long: bool = False
    is_coarse: bool = False

    def for_results_of(self, dtype: torch.dtype) -> Any:
        """Return the jit function for results of a dtype."""
        return self.exact if dtype.itemsize >= activation.EXACT_FROM else self.function


# The functor of gelu is a polynomial, and a later sum may leave nothing but the polynomial's error.
# sigmoid(0) is a rounding step less than a half, and a later comparison may take the other side. So these two
# are coarse.
_ALL = (
    Activation(
        "identity", activation.identity, activation.identity, None, None, lambda x: x, 0, makes_floats=False
    ),
    Activation(
        "relu", activation.relu, activation.relu, epilogue.relu, epilogue.relu, functional.relu, 1,
        makes_floats=False,
    ),
    Activation(
        "sigmoid", activation.sigmoid, activation.exact_sigmoid, epilogue.sigmoid, epilogue.exact_sigmoid,
        torch.sigmoid, 4, takes_long=True, is_coarse=True,
    ),
    Activation(
        "silu", activation.silu, activation.exact_silu, epilogue.silu, epilogue.exact_silu, functional.silu,
        4, takes_long=True,
    ),
    Activation(
        "gelu", activation.gelu, activation.gelu, epilogue.gelu, epilogue.exact_gelu, functional.gelu, 5,
        is_coarse=True,
    ),
    Activation(
        "gelu_tanh", activation.gelu_tanh, activation.exact_gelu_tanh, epilogue.fast_gelu,
        epilogue.exact_fast_gelu, partial(functional.gelu, approximate="tanh"), 8, takes_long=True,
    ),
)  # fmt: skip

ACTIVATIONS = {each.name: each for each in _ALL}

# The exact form of each functor that is not exact itself; the coarse functors; the functors that take long.
EXACT = {each.functor: each.exact_functor for each in _ALL if each.exact_functor is not each.functor}
COARSE = frozenset(each.functor for each in _ALL if each.is_coarse)
LONG = tuple(each.functor for each in _ALL if each.takes_long)
