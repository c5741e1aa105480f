"""Checks of results: guarded outputs, and errors compared with torch's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

NOTHING = -77.0


def guarded(
    shape: Sequence[int], dtype: torch.dtype, nothing: float = NOTHING
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an output in the middle of guarded memory, and all of that memory, which holds `nothing`."""
    *batch, m, n = shape
    memory = torch.full((*batch, m + 4, n + 6), nothing, dtype=dtype)
    return memory[..., 2:-2, 3:-3], memory


def assert_untouched(memory: torch.Tensor, output: torch.Tensor, nothing: float = NOTHING) -> None:
    """Assert that guarded memory outside the output holds `nothing` still; the output is overwritten."""
    output.fill_(nothing)
    torch.testing.assert_close(memory, torch.full_like(memory, nothing), rtol=0, atol=0, equal_nan=True)


def assert_as_accurate_as_torch(
    got: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, largest: float | None = None
) -> None:
    """Assert an error of at most twice torch's, plus one rounding of the largest value of `exact`.

    Results in fp64 may be eight roundings of the largest value off, because the reference has roundings too.

    Args:
        torchs: torch's result in the dtype of `got`. exact: the reference in fp64.
        largest: the largest intermediate value, if larger than the results; used for fp64 alone.
    """
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    assert torch.equal(got.isnan(), exact.isnan())
    finite = exact.isfinite() & torchs.isfinite()
    assert torch.equal(got[exact.isinf()].double(), exact[exact.isinf()])
    if not finite.any():
        return
    off, theirs = ((t[finite].double() - exact[finite]).abs().max().item() for t in (got, torchs))
    size = exact[finite].abs().max().item()
    rounding = 8 * max(size, largest or 0) if got.element_size() == 8 else size
    allowed = 2 * theirs + rounding * torch.finfo(got.dtype).eps
    assert off <= allowed, f"off by {off}, torch by {theirs}, allowed {allowed}"
