"""Create or update `.venv` with the tested set of packages and the build of torch that fits this machine.

`make` calls it before every target that needs Python; if nothing has changed, it returns at once. It needs
only the standard library. Even a Python that is too old can parse it, to print that it is too old.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "jupyter" / "jupyter_config.json"
OLDEST_PYTHON = (3, 11)
EXTRAS = ("dev", "lab", "test")
WHEELS = "https://download.pytorch.org/whl"
# The builds of the pinned torch on PyTorch's own indexes. PyPI's build needs a driver that runs CUDA 13.
CUDA_12_BUILD = "cu126"
ROCM_BUILDS = ((7, 2), (7, 1))
CPU_INDEX_SECONDS = 3.0
CHECK = """
import platform, torch, triton
versions = {"Python": platform.python_version(), "torch": torch.__version__, "Triton": triton.__version__}
print("setup: ready, with", ", ".join(f"{name} {version}" for name, version in versions.items()))
"""


class SetupError(Exception):
    """The environment cannot be created; the message says why and what to do."""


@dataclass(frozen=True)
class Machine:
    """The machine's GPU, as its own tools report it.

    Attributes:
        gpu: "nvidia", "amd" or "none".
        version: the newest CUDA that the NVIDIA driver runs, or the installed ROCm; None if unknown.
    """

    gpu: str
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class TorchBuild:
    """The build of torch to install.

    Attributes:
        name: the name to display, and for the record of the installation.
        reason: why this build was chosen, in one line.
        index: a package index to use in addition to pip's own; None for pip's own only.
        local: the required local part of the version, such as "rocm7.2"; None if pip may choose.
        accepts: a pattern for the local part of an installed torch that need not be replaced.
        triton: whether to install PyPI's Triton; torch for ROCm brings its own.
    """

    name: str
    reason: str
    index: str | None
    local: str | None
    accepts: str
    triton: bool = True


def output_of(*command: str) -> str | None:
    """Return the output of a command, or None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def first_version(text: str | None) -> tuple[int, int] | None:
    """Return the first `major.minor` in a text."""
    match = re.search(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def probe_machine(ask: Callable[..., str | None] = output_of, rocm: Path | None = None) -> Machine:
    """Find the GPU that this machine's own tools report: `nvidia-smi`, then `rocminfo`."""
    report = ask("nvidia-smi")
    if report is not None:
        cuda = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", report)
        return Machine("nvidia", first_version(cuda[1]) if cuda else None)
    if "gfx" in (ask("rocminfo") or ""):
        stated = (rocm or Path(os.environ.get("ROCM_PATH", "/opt/rocm"))) / ".info" / "version"
        version = stated.read_text() if stated.is_file() else ask("hipconfig", "--version")
        return Machine("amd", first_version(version))
    return Machine("none")


def answers(url: str, seconds: float = CPU_INDEX_SECONDS) -> bool:
    """Return whether an index answers in time. Unlike a socket timeout, the time includes the DNS lookup."""
    answered = threading.Event()

    def fetch() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds):  # a fixed https address
                answered.set()
        except (OSError, HTTPException):
            return

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def choose_torch(machine: Machine, wanted: str, reach: Callable[[str], bool]) -> TorchBuild:
    """Choose the build of torch for a machine.

    Args:
        machine: the result of :func:`probe_machine`.
        wanted: "auto", or "cpu", "cuda" or "rocm" to choose by hand.
        reach: returns whether an index answers.

    Raises:
        SetupError: the NVIDIA driver is too old, or the installed ROCm has no build of the tested torch.
    """
    kind = {"auto": machine.gpu, "cpu": "none", "cuda": "nvidia", "rocm": "amd"}[wanted]
    version = machine.version if kind == machine.gpu else None
    if kind == "nvidia":
        return _cuda_build(version)
    if kind == "amd":
        return _rocm_build(version)
    why = "TORCH=cpu was asked for" if wanted == "cpu" else "neither nvidia-smi nor rocminfo works here"
    index = f"{WHEELS}/cpu"
    if reach(f"{index}/torch/"):
        accepts = r"cpu" if wanted == "cpu" else r"|cpu|cu\d+"
        return TorchBuild("CPU", f"{why}, and {index} answers", index, None, accepts)
    reason = (
        f"{why}, and {index} did not answer within {CPU_INDEX_SECONDS:.0f} seconds. "
        "On pip's own index it may be the CUDA build: a much larger download, which runs without a GPU too"
    )
    return TorchBuild("default", reason, None, None, r"|cpu|cu\d+")


def _cuda_build(driver: tuple[int, int] | None) -> TorchBuild:
    if driver is None or driver >= (13, 0):
        return TorchBuild("CUDA", "nvidia-smi reports an NVIDIA GPU", None, None, r"|cu1[3-9]\d")
    runs = f"the NVIDIA driver runs CUDA {driver[0]}.{driver[1]}"
    if driver < (12, 0):
        raise SetupError(
            f"{runs}, and torch needs 12: update the driver, or do without the GPU: `make lab TORCH=cpu`."
        )
    reason, index = f"{runs}, and PyPI's build needs 13", f"{WHEELS}/{CUDA_12_BUILD}"
    return TorchBuild("CUDA 12.6", reason, index, CUDA_12_BUILD, CUDA_12_BUILD)


def _rocm_build(installed: tuple[int, int] | None) -> TorchBuild:
    have = "ROCm {}.{}".format(*installed) if installed else "a ROCm of unknown version"
    # A build brings its own ROCm libraries; they need a driver of the same version or newer.
    limit = installed or ROCM_BUILDS[0]
    fitting = [build for build in ROCM_BUILDS if build[0] == limit[0] and build <= limit]
    if not fitting:
        builds = " and ".join(f"{major}.{minor}" for major, minor in reversed(ROCM_BUILDS))
        raise SetupError(
            f"{have} is installed, and torch {pinned('torch')} is built for ROCm {builds}. Install one of "
            "these; or use a Python that already has AMD's own torch and Triton: "
            "`make gpu PYTHON=/path/to/python`; or do without the GPU: `make lab TORCH=cpu`."
        )
    local = "rocm{}.{}".format(*fitting[0])
    reason, index = f"rocminfo reports an AMD GPU, and {have} is installed", f"{WHEELS}/{local}"
    return TorchBuild(local, reason, index, local, re.escape(local), triton=False)


def pinned(package: str) -> str:
    """Return the version of a package in constraints.txt.

    Raises:
        SetupError: constraints.txt does not have the package.
    """
    text = (ROOT / "constraints.txt").read_text()
    match = re.search(rf"^{re.escape(package)}==(\S+)$", text, re.MULTILINE)
    if match is None:
        raise SetupError(f"constraints.txt names no version of {package}. Restore the file from git.")
    return match[1]


def pip_arguments(build: TorchBuild, extras: Sequence[str]) -> list[str]:
    """Return the arguments of `pip install`; the indexes of the user's own configuration are kept."""
    chosen = sorted({*extras, "triton"} if build.triton else {*extras})
    arguments = ["--constraint", "constraints.txt", "--editable", f".[{','.join(chosen)}]"]
    if build.local is not None:
        arguments.append(f"torch=={pinned('torch')}+{build.local}")
    if build.index is not None:
        arguments += ["--extra-index-url", build.index]
    return arguments


def fingerprint() -> str:
    """Return a hash of constraints.txt and the packaging tables of pyproject.toml."""
    import tomllib  # missing in the old Pythons that main() refuses

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tables = json.dumps(
        [project["build-system"], project["project"], project["tool"]["setuptools"]], sort_keys=True
    )
    return hashlib.sha256((tables + (ROOT / "constraints.txt").read_text()).encode()).hexdigest()


@dataclass
class Environment:
    """A virtual environment with a record of what was installed in it.

    The record says `complete: false` from before pip starts until everything is checked, so that an
    interrupted installation is never taken for a complete one.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def record(self) -> dict[str, object]:
        """The record of the installation; empty if another program made the environment."""
        try:
            found = json.loads((self.folder / "workbench.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_record(self, record: dict[str, object]) -> None:
        """Replace the record atomically."""
        partial = self.folder / "workbench.json.partial"
        partial.write_text(json.dumps(record, indent=2) + "\n")
        partial.replace(self.folder / "workbench.json")

    def write_settings(self) -> None:
        """Install the project's Jupyter settings, so that they apply in every working folder."""
        target = self.folder / "etc" / "jupyter" / SETTINGS.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(SETTINGS.read_bytes())

    @property
    def extras(self) -> set[str]:
        """The extras in the record."""
        named = self.record.get("extras")
        return {name for name in named if name in EXTRAS} if isinstance(named, list) else set()

    @property
    def python_version(self) -> str | None:
        """The version of the environment's Python, such as "3.12"; None if it does not run."""
        answer = output_of(str(self.python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        return None if answer is None else answer.strip()

    def flaw(self, build: TorchBuild, python: str | None) -> str | None:
        """Say why the environment has to be recreated; None if pip can update it.

        Args:
            build: the build of torch to install.
            python: the required Python version, such as "3.12"; None for any supported version.
        """
        have = self.python_version
        if have is None or output_of(str(self.python), "-m", "pip", "--version") is None:
            return "its Python or its pip does not run"
        if tuple(map(int, have.split("."))) < OLDEST_PYTHON or python not in (None, have):
            return f"it has Python {have}"
        if self.record.get("project", str(ROOT)) != str(ROOT):
            return "the project's folder was moved or copied"
        if self.record.get("complete") is False:
            return "its installation was interrupted (what was downloaded is still in pip's cache)"
        asked = "from importlib.metadata import version; print(version('torch'))"
        torch = output_of(str(self.python), "-c", asked)
        if torch is not None and not re.fullmatch(build.accepts, torch.strip().partition("+")[2]):
            return f"it has torch {torch.strip()}, and the {build.name} build is wanted"
        return None


def step(text: str) -> None:
    """Print what is being done."""
    print(f"setup: {text}", flush=True)


def run(*command: str) -> int:
    """Run a command in the project's folder and show its output; return its status, negative if killed."""
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode


def make_venv(folder: Path) -> None:
    """Create an environment, replacing its folder.

    Raises:
        SetupError: this Python cannot create an environment.
    """
    if Path(sys.prefix).resolve() == folder.resolve():
        raise SetupError(
            f"{sys.executable} is inside {folder.name}, which must be made anew. Use another Python."
        )
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    if run(sys.executable, "-m", "venv", str(folder)) != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise SetupError(
            "this Python cannot make a virtual environment. On Debian and Ubuntu: `apt install python3-venv` "
            "(or python3.12-venv, for Python 3.12)."
        )


def up_to_date(
    environment: Environment, extras: set[str], machine: Machine, wanted: str, python: str | None
) -> bool:
    """Return whether everything that is wanted is installed and the environment still runs."""
    record = environment.record
    return (
        record.get("complete") is True
        and record.get("fingerprint") == fingerprint()
        and record.get("project") == str(ROOT)
        and record.get("wanted") == [machine.gpu, list(machine.version or ()), wanted]
        and extras <= environment.extras
        and environment.python_version is not None
        and python in (None, environment.python_version)
    )


def set_up(folder: Path, extras: set[str], wanted: str, python: str | None) -> None:
    """Install the extras in the environment, in addition to those that it already has.

    Raises:
        SetupError: something failed; the message says what to do.
    """
    environment, machine = Environment(folder), probe_machine()
    if up_to_date(environment, extras, machine, wanted, python):
        environment.write_settings()
        return
    build = choose_torch(machine, wanted, answers)
    step(f"torch: the {build.name} build, since {build.reason}")
    extras = extras | environment.extras
    flaw = environment.flaw(build, python) if folder.exists() else None
    if flaw is not None:
        step(f"{folder.name} is made anew: {flaw}")
    if flaw is not None or not folder.exists():
        step(f"creating {folder.name} with Python {sys.version.split()[0]}")
        make_venv(folder)
    before = environment.record
    environment.write_record({"complete": False, "extras": sorted(extras)})
    step(f"installing the tested set for: {', '.join(sorted(extras))}")
    status = run(str(environment.python), "-m", "pip", "install", *pip_arguments(build, sorted(extras)))
    if status > 0:
        # pip failed on its own. It downloads everything before it installs, so nothing has changed.
        environment.write_record(before)
        raise SetupError(
            "pip failed: see its last lines. With the cause removed, run the same command again."
        )
    step("checking that torch and Triton can be imported")
    if status != 0 or run(str(environment.python), "-c", CHECK) != 0:
        raise SetupError(
            f"{folder.name} is not complete: pip was killed, or torch or Triton cannot be imported. Run the "
            "same command again: it makes the folder anew."
        )
    environment.write_settings()
    environment.write_record(
        {
            "complete": True,
            "extras": sorted(extras),
            "fingerprint": fingerprint(),
            "project": str(ROOT),
            "torch": build.name,
            "wanted": [machine.gpu, list(machine.version or ()), wanted],
        }
    )


def main() -> int:
    """Run from the command line; return the exit status."""
    if sys.version_info < OLDEST_PYTHON:
        have = ".".join(map(str, sys.version_info[:3]))
        print(f"setup: Python 3.11 or newer is needed, and {sys.executable} is {have}.", file=sys.stderr)
        print("       Install one, then name it: make PYTHON=python3.12 lab", file=sys.stderr)
        return 1
    if sys.platform != "linux":
        print("setup: Triton runs on Linux. On Windows use WSL2; on macOS the devcontainer.", file=sys.stderr)
        return 1
    import fcntl  # missing on Windows

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "extras", nargs="+", choices=EXTRAS, help="what to install, besides what is already there"
    )
    parser.add_argument(
        "--torch", choices=("auto", "cpu", "cuda", "rocm"), default="auto", help="build of torch"
    )
    parser.add_argument(
        "--this-python", action="store_true", help="make .venv anew if another Python made it"
    )
    arguments = parser.parse_args()
    python = ".".join(map(str, sys.version_info[:2])) if arguments.this_python else None
    try:
        with (ROOT / ".venv.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second `make` waits here, then finds everything installed
            set_up(ROOT / ".venv", set(arguments.extras), arguments.torch, python)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted. The same command makes .venv anew.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
