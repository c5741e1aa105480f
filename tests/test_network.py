"""The package, the command line and the widgets need no network; for the lessons see test_nbval.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.no_network.environment import attempts, without_network
from tools.lesson_check import EXTERNAL

ROOT = Path(__file__).parents[1]

# The name of a namespace looks like an address, but is never opened.
ADDRESS = re.compile(r"https?://(?!www\.w3\.org/)\S+")


def cut_off(log: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without a network, from the repository's root."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=without_network(os.environ, log),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('192.0.2.1', 80), timeout=1)",  # an address for documentation
        "socket.socket().connect_ex(('192.0.2.1', 80))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.getaddrinfo('example.org', 80)",
        "socket.gethostbyname('example.org')",
        "urllib.request.urlopen('https://example.org', timeout=1)",
        "subprocess.run([sys.executable, '-c', 'import socket; socket.getaddrinfo(\"a.example\", 1)'])",
    ],
)
def test_network_attempts_are_refused_and_logged(tmp_path: Path, attempt: str) -> None:
    log = tmp_path / "log"
    run = cut_off(log, "-c", f"import socket, subprocess, sys, urllib.request\n{attempt}")
    assert "the network is cut off" in run.stderr
    assert attempts(log)


def test_this_machine_stays_reachable(tmp_path: Path) -> None:
    """A notebook talks to its kernel through loopback."""
    log = tmp_path / "log"
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(('localhost', server.getsockname()[1]))"
    )
    run = cut_off(log, "-c", code)
    assert run.returncode == 0, run.stderr
    assert attempts(log) == []


def test_every_module_is_imported_without_network(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import importlib, pkgutil, workbench\n"
        "for module in pkgutil.walk_packages(workbench.__path__, 'workbench.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)"
    )
    run = cut_off(log, "-c", code)
    assert run.returncode == 0, run.stderr
    assert attempts(log) == []


def test_doctor_needs_no_network(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = cut_off(log, "-m", "workbench", "doctor")
    assert run.returncode == 0, run.stdout + run.stderr
    assert attempts(log) == []


def loads(path: Path) -> list[str]:
    """Return the addresses from which a browser would load something for this file."""
    pattern = EXTERNAL if path.suffix in {".py", ".md"} else ADDRESS
    return [match.group() for match in pattern.finditer(path.read_text())]


def test_the_package_names_no_address_to_load_from() -> None:
    kinds = {".py", ".js", ".css", ".html", ".svg", ".mplstyle", ".md"}
    files = [path for path in (ROOT / "workbench").rglob("*") if path.suffix in kinds]
    assert len(files) > 5
    assert {str(path): found for path in files if (found := loads(path))} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("widget.js", 'import * as d3 from "https://cdn.example.org/d3.js"'),
        ("widget.js", "const source = `http://cdn.example.org/${name}`"),
        ("widget.css", "@font-face { src: url(https://example.org/font.woff2) }"),
        ("widget.py", "HTML('<script src=\"https://example.org/x.js\"></script>')"),
    ],
)
def test_addresses_that_a_file_loads_are_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert loads(tmp_path / name)


def test_an_xml_namespace_is_not_an_address_to_load(tmp_path: Path) -> None:
    path = tmp_path / "widget.js"
    path.write_text('document.createElementNS("http://www.w3.org/2000/svg", "rect")')
    assert loads(path) == []
