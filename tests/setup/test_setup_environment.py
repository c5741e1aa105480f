"""The decisions of `make` when it creates or updates .venv; the machine, pip and the network are faked."""

from __future__ import annotations

import ast
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tools import setup_environment as setup
from tools.setup_environment import Environment, Machine, SetupError

NO_GPU = Machine("none")
NVIDIA = Machine("nvidia", (13, 0))


def told(answers: dict[str, str]) -> Callable[..., str | None]:
    """Return a stand-in for `output_of` on a machine where these commands, and no others, work."""
    return lambda *command: answers.get(command[0])


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({}, NO_GPU),
        ({"nvidia-smi": "| Driver Version: 580.95.05   CUDA Version: 13.0  |"}, NVIDIA),
        ({"nvidia-smi": "| CUDA UMD Version: 13.1 |"}, Machine("nvidia", (13, 1))),
        ({"nvidia-smi": "no such line"}, Machine("nvidia")),
        ({"rocminfo": "Name: gfx942", "hipconfig": "7.2.53211-e1a6bc5"}, Machine("amd", (7, 2))),
        ({"rocminfo": "Name: gfx942"}, Machine("amd")),
        ({"rocminfo": "Name: a CPU alone"}, NO_GPU),
        ({"nvidia-smi": "CUDA Version: 13.0", "rocminfo": "Name: gfx942"}, NVIDIA),
    ],
    ids=[
        "no tools",
        "nvidia",
        "newer nvidia driver",
        "nvidia without a version",
        "amd",
        "amd without a version",
        "rocm without a gpu",
        "nvidia and amd",
    ],
)
def test_the_gpu_and_its_driver_are_probed(answers: dict[str, str], found: Machine, tmp_path: Path) -> None:
    assert setup.probe_machine(told(answers), rocm=tmp_path) == found


def test_the_rocm_version_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("7.1.0-52\n")
    asked = told({"rocminfo": "gfx90a", "hipconfig": "7.2.1"})
    assert setup.probe_machine(asked, rocm=tmp_path) == Machine("amd", (7, 1))


@pytest.mark.parametrize(
    ("machine", "wanted", "index", "local"),
    [
        (NO_GPU, "auto", "cpu", None),
        (NVIDIA, "cpu", "cpu", None),
        (NVIDIA, "auto", None, None),  # PyPI's build
        (Machine("nvidia"), "auto", None, None),
        (Machine("nvidia", (12, 8)), "auto", "cu126", "cu126"),  # the driver is too old for PyPI's build
        (NO_GPU, "cuda", None, None),  # an image built where there is no GPU
        (Machine("amd", (7, 1)), "auto", "rocm7.1", "rocm7.1"),
        (Machine("amd", (7, 2)), "auto", "rocm7.2", "rocm7.2"),
        (Machine("amd", (7, 14)), "auto", "rocm7.2", "rocm7.2"),  # the newest build that is not newer
        (Machine("amd"), "auto", "rocm7.2", "rocm7.2"),
        (NO_GPU, "rocm", "rocm7.2", "rocm7.2"),
    ],
    ids=str,
)
def test_the_torch_build_fits_the_machine(
    machine: Machine, wanted: str, index: str | None, local: str | None
) -> None:
    build = setup.choose_torch(machine, wanted, lambda url: True)
    assert build.index == (index and f"https://download.pytorch.org/whl/{index}")
    assert build.local == local
    arguments = setup.pip_arguments(build, ["lab"])
    assert ("--extra-index-url" in arguments) == (index is not None)
    assert "--index-url" not in arguments  # it would replace the user's own
    assert (f"torch=={setup.pinned('torch')}+{local}" in arguments) == (local is not None)
    # ROCm's torch brings its own Triton, which PyPI's must never overwrite.
    rocm = local is not None and local.startswith("rocm")
    assert (".[lab]" if rocm else ".[lab,triton]") in arguments
    assert any("triton" in argument for argument in arguments) is not rocm


def test_a_silent_cpu_index_is_replaced_by_the_default() -> None:
    build = setup.choose_torch(NO_GPU, "auto", lambda url: False)
    assert build.index is None
    assert "did not answer within 3 seconds" in build.reason
    assert "much larger download" in build.reason


def test_a_driver_too_old_for_any_build_raises() -> None:
    with pytest.raises(SetupError, match=r"CUDA 11\.8, and torch needs 12: update the driver.*TORCH=cpu"):
        setup.choose_torch(Machine("nvidia", (11, 8)), "auto", lambda url: True)


@pytest.mark.parametrize("version", [(6, 4), (7, 0), (8, 0)], ids=str)
def test_a_rocm_version_without_a_build_raises(version: tuple[int, int]) -> None:
    with pytest.raises(SetupError, match=r"built for ROCm 7\.1 and 7\.2.*make gpu PYTHON=.*TORCH=cpu"):
        setup.choose_torch(Machine("amd", version), "auto", lambda url: True)


class Quick(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_an_index_that_answers_is_found() -> None:
    with HTTPServer(("127.0.0.1", 0), Quick) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert setup.answers(f"http://127.0.0.1:{server.server_port}/torch/")
        thread.join()


def test_a_silent_index_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert not setup.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/", seconds=0.2)
        assert time.monotonic() - start < 2


def test_an_index_that_refuses_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert not setup.answers(f"http://127.0.0.1:{port}/")


@dataclass
class Computer:
    """Fake computer on which pip takes no time: it records the commands, and answers them."""

    machine: Machine = NO_GPU
    python: str = "3.12"
    torch: str | None = None
    pip_status: int = 0
    runs: list[str] = field(default_factory=list)
    broken: bool = False

    def run(self, *command: str) -> int:
        what = next((word for word in ("venv", "install") if word in command), "check")
        self.runs.append(what)
        if what == "venv":
            Path(command[-1]).mkdir()
            self.broken, self.torch = False, None
        if what == "install" and self.pip_status == 0:
            self.torch = f"2.13.0{'' if self.machine.gpu == 'nvidia' else '+cpu'}"
        return self.pip_status if what == "install" else 0

    def output_of(self, *command: str) -> str | None:
        if self.broken:
            return None
        asks_for_torch = "importlib.metadata" in command[-1]
        return self.torch if asks_for_torch else self.python


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    fake = Computer()
    monkeypatch.setattr(setup, "run", fake.run)
    monkeypatch.setattr(setup, "output_of", fake.output_of)
    monkeypatch.setattr(setup, "probe_machine", lambda: fake.machine)
    monkeypatch.setattr(setup, "answers", lambda url: True)
    return fake


def ask(folder: Path, *extras: str, wanted: str = "auto", python: str | None = None) -> None:
    setup.set_up(folder, set(extras), wanted, python)


def test_a_second_setup_runs_nothing(computer: Computer, tmp_path: Path) -> None:
    ask(tmp_path / "venv", "lab")
    assert computer.runs == ["venv", "install", "check"]
    ask(tmp_path / "venv", "lab")
    assert computer.runs == ["venv", "install", "check"]


def test_jupyter_gets_the_settings_of_the_project(computer: Computer, tmp_path: Path) -> None:
    """The settings are copied to the folder where Jupyter looks, and again after a change."""
    there = tmp_path / "venv" / "etc" / "jupyter" / "jupyter_config.json"
    for _ in range(2):
        ask(tmp_path / "venv", "lab")
        assert there.read_bytes() == setup.SETTINGS.read_bytes()
        assert "HTMLExporter" in json.loads(there.read_text())
        there.write_text("{}")


def test_extras_of_earlier_setups_are_kept(computer: Computer, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    ask(environment.folder, "lab")
    ask(environment.folder, "test")
    assert environment.extras == {"lab", "test"}
    assert computer.runs == ["venv", "install", "check", "install", "check"]
    ask(environment.folder, "lab")
    assert len(computer.runs) == 5


def test_changed_requirements_are_installed(
    computer: Computer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path / "venv", "lab")
    monkeypatch.setattr(setup, "fingerprint", lambda: "changed")
    ask(tmp_path / "venv", "lab")
    assert computer.runs[3:] == ["install", "check"]


def test_interrupted_installation_starts_over(computer: Computer, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    computer.pip_status = -9  # killed
    with pytest.raises(SetupError, match="is not complete: pip was killed"):
        ask(environment.folder, "lab")
    assert environment.record["complete"] is False
    computer.pip_status = 0
    ask(environment.folder, "test")
    assert computer.runs == ["venv", "install", "venv", "install", "check"]
    assert environment.extras == {"lab", "test"}  # the extras of the interrupted installation are kept


def test_failure_of_pip_keeps_the_old_environment(computer: Computer, tmp_path: Path) -> None:
    """Without a network, `make test` fails, and `make lab` still works."""
    ask(tmp_path / "venv", "lab")
    computer.pip_status = 1
    with pytest.raises(SetupError, match="pip failed"):
        ask(tmp_path / "venv", "lab", "test")
    ask(tmp_path / "venv", "lab")
    assert computer.runs[3:] == ["install"]


def test_failure_of_the_first_installation_is_not_complete(computer: Computer, tmp_path: Path) -> None:
    computer.pip_status = 1
    with pytest.raises(SetupError, match="pip failed"):
        ask(tmp_path / "venv", "lab")
    assert "complete" not in Environment(tmp_path / "venv").record
    computer.pip_status = 0
    ask(tmp_path / "venv", "lab")
    assert computer.runs == ["venv", "install", "install", "check"]


def test_broken_environment_is_made_anew(computer: Computer, tmp_path: Path) -> None:
    ask(tmp_path / "venv", "lab")
    computer.broken = True
    ask(tmp_path / "venv", "lab")
    assert computer.runs[3:] == ["venv", "install", "check"]


def test_environment_of_a_copied_project_is_made_anew(
    computer: Computer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old environment would import the original's package."""
    ask(tmp_path / "venv", "lab")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((setup.ROOT / name).read_text())
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    ask(tmp_path / "venv", "lab")
    assert computer.runs[3:] == ["venv", "install", "check"]


def test_environment_made_by_hand_is_taken_over(computer: Computer, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    computer.torch = "2.13.0+cpu"
    ask(tmp_path / "venv", "lab")
    assert computer.runs == ["install", "check"]


@pytest.mark.parametrize(
    ("before", "machine", "anew"),
    [
        ("2.13.0+cpu", NVIDIA, True),  # a GPU was added
        ("2.13.0", NVIDIA, False),
        ("2.13.0", Machine("nvidia", (12, 8)), True),  # PyPI's build is for CUDA 13
        ("2.13.0+cu126", Machine("nvidia", (12, 8)), False),
        ("2.13.0+cu126", NVIDIA, True),  # the driver was updated
        ("2.13.0", NO_GPU, False),  # the CUDA build runs without a GPU
        ("2.13.0+rocm7.2", NO_GPU, True),
        ("2.13.0+rocm7.1", Machine("amd", (7, 2)), True),
        ("2.13.0+cpu", Machine("amd", (7, 2)), True),
    ],
    ids=str,
)
def test_torch_of_the_wrong_build_is_replaced(
    computer: Computer, tmp_path: Path, before: str, machine: Machine, anew: bool
) -> None:
    """The environment is made again, because pip takes 2.13.0+cpu for 2.13.0."""
    (tmp_path / "venv").mkdir()
    computer.torch, computer.machine = before, machine
    ask(tmp_path / "venv", "lab")
    assert ("venv" in computer.runs) is anew


def test_another_python_is_used_only_when_named(computer: Computer, tmp_path: Path) -> None:
    ask(tmp_path / "venv", "lab")
    ask(tmp_path / "venv", "lab", python="3.12")
    assert len(computer.runs) == 3
    computer.python = "3.13"
    ask(tmp_path / "venv", "lab")
    assert len(computer.runs) == 3
    ask(tmp_path / "venv", "lab", python="3.12")
    assert computer.runs[3:] == ["venv", "install", "check"]


def test_environment_is_not_removed_by_its_own_python(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="Use another Python"):
        setup.make_venv(Path(sys.prefix))
    assert Path(sys.prefix).is_dir()


def test_damaged_record_is_read_as_empty(tmp_path: Path) -> None:
    (tmp_path / "workbench.json").write_text('{"complete": tr')
    assert Environment(tmp_path).record == {}


def test_the_fingerprint_depends_on_packages_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a linter's settings installs nothing; a change of a version installs packages."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((setup.ROOT / name).read_text())
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    before = setup.fingerprint()
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write("\n[tool.other]\nx = 1\n")
    assert setup.fingerprint() == before
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    assert setup.fingerprint() != before


def test_an_old_python_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ast.parse(Path(setup.__file__).read_text(), feature_version=(3, 8))  # an old Python can parse the file
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    assert setup.main() == 1
    said = capsys.readouterr().err
    assert "Python 3.11 or newer is needed" in said
    assert "make PYTHON=python3.12 lab" in said


def test_other_systems_are_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert setup.main() == 1
    assert "devcontainer" in capsys.readouterr().err
