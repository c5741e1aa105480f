"""Examples: a recorded line, as an H200 would give it, the H200 itself, and libraries to compare with."""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from workbench.bench import baseline
from workbench.bench.recording import Line
from workbench.device import Device

# name of a baseline -> the package of its optional library
PACKAGES = {name: one.package for name, one in baseline.BASELINES.items() if one.package is not None}

FIELDS: dict[str, Any] = {
    "run": "20260131T120000Z-0a1b2c3d",
    "device": "NVIDIA H200",
    "driver": "580.159.04",
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "commit": "0123456789ab",
    "when": "2026-01-31T12:00:00+00:00",
    "op": "matmul",
    "case": {"m": 4096, "n": 4096, "k": 4096, "layout": "nn"},
    "dtype": "fp16",
    "provider": "cuBLAS",
    "mode": "events",
    "data": "normal",
    "config": {"kernels": ["nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT"]},
    "median_ms": 0.2,
    "p20_ms": 0.19,
    "p80_ms": 0.21,
    "flops": 2 * 4096**3,
    "bytes": 3 * 2 * 4096**2,
}


def line(**changes: Any) -> Line:
    """Return the example with some fields changed; p20 and p80 follow a changed median."""
    if "median_ms" in changes:
        changes = {"p20_ms": changes["median_ms"], "p80_ms": changes["median_ms"], **changes}
    return Line(**{**FIELDS, **changes})


def copy_line(**changes: Any) -> Line:
    """Return a copy of 1 GiB at 4.25 TB/s."""
    copied = {"op": "clone", "case": {"shape": [2**28]}, "dtype": "fp32", "provider": "torch"}
    work = {"flops": 0, "bytes": 2**31, "median_ms": 2**31 / 4.25e9}
    return line(**{**copied, **work, **changes})


def gpu(**changes: Any) -> Device:
    """Return the Device of an H200; the machine has no such GPU."""
    fields: dict[str, Any] = {
        "kind": "cuda",
        "name": "NVIDIA H200",
        "architecture": "sm_90",
        "compute_units": 132,
        "shared_memory_bytes": 232448,
        "memory_bytes": 150 * 10**9,
        "l2_bytes": 60 * 2**20,
        "warp_size": 32,
        "driver": "580.159.04",
    }
    return Device(**{**fields, **changes})


class GpuWithoutMemory(Device):
    """A GPU by its fields, with tensors on the CPU: for tests on a machine without a GPU."""

    @property
    def torch_device(self) -> str:
        return "cpu"


def installed(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Pretend that a module is installed, and the packages that contain it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(members)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has a GPU, with tensors on the CPU."""
    here = GpuWithoutMemory(**asdict(gpu()))
    monkeypatch.setattr("workbench.device.current", lambda: here)
