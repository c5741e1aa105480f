"""The online softmax block by block: its state after each block, and the error of that state.

The states come from a run in the interpreter; only the exact values are computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, isfinite, isnan, nan

import numpy as np
import torch

from workbench.errors import ArgumentTypeError, InvalidArgumentError, check_type, in_brief
from workbench.launch import Launch
from workbench.runtime import interpret

# The parameters and the outputs that `steps` needs in a kernel.
_PARAMETERS = ("scores", "BLOCK_SIZE", "SHIFTED")
_OUTPUTS = ("maxima", "totals", "rescales", "log_sums", "weights")
_FIX = "Give kernels.rows.softmax_states.launch(scores, block)."


@dataclass(frozen=True)
class BlockState:
    """The state after a block of scores, and the exact values.

    Attributes:
        begin, end: the block's scores, `end` excluded.
        maximum: the running maximum, which is subtracted before exp; -inf if all scores were -inf.
        rescale: exp(maximum before - maximum), the factor for the total so far.
        weights: exp(score - maximum) of the block's scores.
        total: total before * rescale + sum of the weights.
        log_sum_exp: maximum + log(total).
        exact: the log-sum-exp of all scores so far, by torch in float64.
        error: |log_sum_exp - exact|; 0 where both are the same infinity or NaN, NaN where only one is NaN.
        ulps: the error in units in the last place of `exact`, in the state's dtype; NaN where undefined.
        naive: the sum of exp(score) so far, without subtraction, in the state's dtype.
    """

    begin: int
    end: int
    maximum: float
    rescale: float
    weights: tuple[float, ...]
    total: float
    log_sum_exp: float
    exact: float
    error: float
    ulps: float
    naive: float

    @property
    def added(self) -> float:
        """The sum of the block's weights, which the block adds to the total."""
        return sum(self.weights)

    @property
    def naive_overflows(self) -> bool:
        """True if the naive sum is infinite although the exact value is finite."""
        return self.naive == inf and isfinite(self.exact)

    @property
    def naive_underflows(self) -> bool:
        """True if the naive sum is 0 although the exact value is finite: its logarithm is -inf."""
        return self.naive == 0 and isfinite(self.exact)


@dataclass(frozen=True)
class OnlineSoftmax:
    """The online softmax of a row, as a sequence of states.

    Attributes:
        scores: the row.
        dtype: torch's name of the scores' dtype: "float16".
        state_dtype: torch's name of the state's dtype: "float32" or "float64".
        block: scores per block.
        is_shifted: whether the maximum is subtracted; otherwise the state's maximum is always 0.
        states: the state after each block.
    """

    scores: tuple[float, ...]
    dtype: str
    state_dtype: str
    block: int
    is_shifted: bool
    states: tuple[BlockState, ...]

    def __repr__(self) -> str:
        return (
            f"OnlineSoftmax({len(self.scores)} scores of {self.dtype}, {len(self.states)} blocks of "
            f"{self.block}, log-sum-exp {self.states[-1].log_sum_exp:.6g})"
        )

    def carried(self, at: int) -> tuple[float, ...]:
        """Return the factor applied to each block's part of the total by the rescales up to block `at`.

        It is the product of all later rescales; 1 for block `at` itself.

        Raises:
            ArgumentTypeError, InvalidArgumentError: `at` is not the number of a block, from 0.
        """
        fix = f"Give the number of a block, from 0 to {len(self.states) - 1}."
        if isinstance(at, bool) or not isinstance(at, int):
            raise ArgumentTypeError("at", f"got {in_brief(at)}, a {type(at).__name__}", fix)
        if not 0 <= at < len(self.states):
            raise InvalidArgumentError("at", f"got {at}", fix)
        later = (state.rescale for state in reversed(self.states[1 : at + 1]))
        return tuple(accumulate(later, lambda factor, rescale: factor * rescale, initial=1.0))[::-1]

    def weights(self, at: int) -> tuple[float, ...]:
        """Return exp(score - maximum of block `at`) for all scores up to that block.

        Raises:
            as :meth:`carried`.
        """
        states = zip(self.states, self.carried(at), strict=False)
        return tuple(weight * factor for state, factor in states for weight in state.weights)


def steps(launch: Launch) -> OnlineSoftmax:
    """Run `kernels.rows.softmax_states.launch(scores, block)` in the interpreter and return its states.

    Other kernels work too if they have the parameters `scores`, `BLOCK_SIZE` and `SHIFTED`, and the same five
    outputs in the same order.

    Raises:
        ArgumentTypeError: `launch` is not a Launch.
        InvalidArgumentError: it is a launch of something else.
        Others as :func:`workbench.runtime.interpret`.
    """
    check_type("launch", launch, Launch, _FIX)
    scores, block, is_shifted = _checked_arguments(launch)
    outputs = interpret(launch).outputs
    state_dtype = outputs[0].dtype
    maxima, totals, rescales, log_sums, weights = (output.tolist() for output in outputs)
    row = scores.detach().cpu()
    begins = [*range(0, len(row), block), len(row)]
    naive_sums = accumulate(row[begin:end].to(state_dtype).exp().sum() for begin, end in pairwise(begins))
    states = []
    for number, ((begin, end), naive) in enumerate(zip(pairwise(begins), naive_sums, strict=True)):
        exact = torch.logsumexp(row[:end].double(), 0).item()
        error = _error(log_sums[number], exact)
        states.append(
            BlockState(
                begin,
                end,
                maxima[number],
                rescales[number],
                tuple(weights[begin:end]),
                totals[number],
                log_sums[number],
                exact,
                error,
                _in_ulps(error, exact, state_dtype),
                float(naive),
            )
        )
    dtype, of_state = (str(dtype).removeprefix("torch.") for dtype in (row.dtype, state_dtype))
    return OnlineSoftmax(tuple(row.tolist()), dtype, of_state, block, is_shifted, tuple(states))


def _checked_arguments(launch: Launch) -> tuple[torch.Tensor, int, bool]:
    """Return the scores, the block length and `SHIFTED`; raise if the launch does not have them."""
    arguments = launch.steps[0].arguments() if len(launch.steps) == 1 else {}
    missing = [name for name in _PARAMETERS if name not in arguments]
    if missing or len(launch.outputs) != len(_OUTPUTS):
        raise InvalidArgumentError(
            "launch",
            f"{launch!r} must have parameters {', '.join(_PARAMETERS)} and outputs {', '.join(_OUTPUTS)}",
            _FIX,
        )
    scores, block, is_shifted = (arguments[name] for name in _PARAMETERS)
    return scores, block, is_shifted


def _error(value: float, exact: float) -> float:
    return 0.0 if value == exact or (isnan(value) and isnan(exact)) else abs(value - exact)


def _in_ulps(error: float, exact: float, dtype: torch.dtype) -> float:
    if not isfinite(exact):
        return 0.0 if error == 0 else nan
    nearest = np.float64(exact) if dtype == torch.float64 else np.float32(exact)
    return error / float(np.spacing(np.abs(nearest)))
