"""The tuner: which configuration of a launch is fastest on this device.

`tune` prunes candidates by the compile lens, before anything is timed, holds those that are left to a
reference, races them, and keeps the winner on disk. `prune` alone needs no GPU. `tune_gemm` and `prune_gemm`
do it for a matrix product. Nothing in `ops` calls any of them: a call that tunes by surprise takes minutes.
"""

from workbench.tune.gemm import gemm_candidates, prune_gemm, tune_gemm
from workbench.tune.pruning import prune
from workbench.tune.racing import race
from workbench.tune.result import Resources, Trial, Trials, Tuning
from workbench.tune.tuner import tune

__all__ = [
    "Resources",
    "Trial",
    "Trials",
    "Tuning",
    "gemm_candidates",
    "prune",
    "prune_gemm",
    "race",
    "tune",
    "tune_gemm",
]
