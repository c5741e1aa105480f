"""pyproject.toml, constraints.txt and the files for conda and Binder describe one set of packages."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
# A GPU build of torch names the exact versions of these itself.
BROUGHT_BY_TORCH = re.compile(r"(nvidia|cuda)-.*|triton-rocm")


@pytest.mark.parametrize("text", sum(EXTRAS.values(), PROJECT["dependencies"]))
def test_every_requirement_has_a_fitting_pin(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def installed() -> dict[str, str]:
    """Return the versions of the project's requirements and of all that they require."""
    waiting = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["lab"], *EXTRAS["test"]]]
    followed: set[str] = set()
    found: dict[str, str] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if str(requirement) in followed or BROUGHT_BY_TORCH.fullmatch(name):
            continue
        followed.add(str(requirement))
        package = distribution(name)
        found[name] = package.version.partition("+")[0]  # torch 2.13.0+cpu is torch 2.13.0
        for needed in map(Requirement, package.requires or []):
            extras, marker = requirement.extras or {""}, needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def test_everything_installed_is_pinned() -> None:
    versions = installed()
    assert "torch" in versions
    assert versions == {name: PINS.get(name) for name in versions}


def test_the_project_requires_python_3_11() -> None:
    supported = SpecifierSet(PROJECT["requires-python"])
    assert "3.11" in supported
    assert "3.10" not in supported


CPU_INDEX = ["--extra-index-url https://download.pytorch.org/whl/cpu"]


# The prefix is the path of the project's folder from that of the file.
@pytest.mark.parametrize(
    ("path", "prefix", "index"),
    [("environment.yml", "", []), ("binder/environment.yml", "../", CPU_INDEX)],
)
def test_conda_environments_install_the_project_with_the_pins(
    path: str, prefix: str, index: list[str]
) -> None:
    """conda installs Python, pip and make; pip installs the project, its extras and the pinned versions."""
    environment = yaml.safe_load((ROOT / path).read_text())
    python, pip, make, packages = environment["dependencies"]
    assert python.startswith("python=")
    assert python.removeprefix("python=") in SpecifierSet(PROJECT["requires-python"])
    assert (pip, make) == ("pip", "make")
    folder = prefix.removesuffix("/") or "."
    assert packages["pip"] == [
        *index,
        f"--constraint {prefix}constraints.txt",
        f"--editable {folder}[lab,test,triton]",
    ]
    assert (ROOT / path).parent.joinpath(prefix, "constraints.txt").is_file()
    assert {"lab", "test", "triton"} <= set(EXTRAS)


@pytest.mark.parametrize("text", PROJECT["dependencies"])
def test_every_dependency_is_imported(text: str) -> None:
    name = Requirement(text).name
    module = {"pillow": "PIL"}.get(name, name)
    imports = re.compile(rf"^\s*(?:import|from) {module}\b", re.MULTILINE)
    assert any(imports.search(path.read_text()) for path in (ROOT / "workbench").rglob("*.py"))


def test_triton_is_not_a_base_dependency() -> None:
    """On ROCm it would overwrite ROCm's own Triton."""
    names = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert "triton" not in names
