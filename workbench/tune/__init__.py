"""The tuner: finds the fastest configuration of a launch on this device.

`tune` prunes candidates by compiling them, compares the results of the others with a reference, races them,
and caches the winner on disk. `prune` does only the first step and needs no GPU. `tune_gemm` and `prune_gemm`
do the same for a matrix product. Functions of `ops` never tune, because an unexpected tuning takes minutes.
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
