"""Run the tests that depend on Triton's version with the oldest supported version and with the pinned one.

`make test-matrix` runs it, for the versions in `VERSIONS`. Each version is installed in a folder of its own,
which shadows the environment's Triton; nothing else changes. The wheels are a few hundred megabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"

# Packages to install for each version, without dependencies. Triton 3.6's interpreter needs numpy < 2.4.
VERSIONS = {"3.6.0": ("triton==3.6.0", "numpy==2.3.5"), "3.7.1": ("triton==3.7.1",)}
# From tests/viz only those that draw compiled kernels: other pictures do not depend on Triton's version.
TESTS = (
    "tests/lens",
    "tests/coords",
    "tests/kernels",
    "tests/operators",
    "tests/runtime",
    # These compile kernels that no other test compiles.
    "tests/ops/test_cross_entropy.py",
    "tests/ops/test_softmax.py",
    "tests/compat/test_compat.py",
    "tests/compat/test_compiler_repairs.py",
    "tests/interpreter/test_watching.py",
    "tests/viz/test_layout_map.py",
    "tests/viz/test_source_lens.py",
    "tests/viz/test_strips.py",
)


def install(version: str) -> Path:
    """Install a version of Triton unless it is installed, and return its folder."""
    folder = FOLDER / f"triton-{version}"
    if not (folder / "triton").exists():
        print(f"Installing Triton {version} into {folder.relative_to(ROOT)}", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, *VERSIONS[version]], check=True)
    return folder


def test(version: str) -> bool:
    """Return whether the tests pass with a version of Triton."""
    folder = install(version)
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {
        "PYTHONPATH": paths,
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "WORKBENCH_TEST_MATRIX": "1",  # compile everything that is chosen for ragged sizes
    }
    found = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__version__)"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    print(f"\n== Triton {found.stdout.strip()}", flush=True)
    if found.stdout.strip() != version:
        print(f"wanted {version}: another Triton comes before {folder}. Take it out of PYTHONPATH.")
        return False
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    return subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """Test each version; return 0 if all pass."""
    results = {version: test(version) for version in VERSIONS}
    print("\n== summary")
    for version, passed in results.items():
        print(f"Triton {version:<8} {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
