"""All operators: the pages of this folder, those of other folders, and those of notebooks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import threading
from functools import cache
from pathlib import Path

from workbench.errors import InvalidArgumentError, check_name, check_type
from workbench.operators.spec import OperatorSpec

# Folders with pages of other operators, separated like those of PATH.
FOLDERS = "WORKBENCH_OPERATORS"

# Pages are read by one thread at a time; it is noted while it reads.
_lock = threading.RLock()
_reading: list[str] = []

# Operators that have no page, by name.
_registered: dict[str, OperatorSpec] = {}


def specs() -> dict[str, OperatorSpec]:
    """Return all operators by name.

    A page is a module with a tuple `SPECS` of :class:`OperatorSpec`. Every module of this folder is read, and
    every file of the folders that the environment variable `WORKBENCH_OPERATORS` names. No list names them,
    so that a new operator is one file.

    Raises:
        InvalidArgumentError: there is no such folder, a page has no specs, or two operators have one name.
    """
    folders = os.environ.get(FOLDERS, "")
    # A page that is being read sees the package's operators.
    with _lock:
        found = _of_package() if _reading else {**_of_package(), **_of_folders(folders)}
    return dict(sorted((_registered | found).items()))


def named(name: str) -> OperatorSpec:
    """Return the operator of that name; raise UnknownNameError, with the nearest names, if there is none."""
    known = specs()
    check_name("operator", name, known)
    return known[name]


def register(spec: OperatorSpec) -> None:
    """Register an operator that has no page, such as one of a notebook; replace an earlier registration.

    Raises:
        ArgumentTypeError: it is not a spec. InvalidArgumentError: a page has an operator of that name.
    """
    check_type("spec", spec, OperatorSpec, "Give an OperatorSpec.")
    if spec.name in _of_package():
        raise InvalidArgumentError(
            "name", f"got {spec.name!r}, an operator of the package", "Give another name."
        )
    with _lock:
        if not _reading and spec.name in _of_folders(os.environ.get(FOLDERS, "")):
            raise InvalidArgumentError(
                "name", f"got {spec.name!r}, an operator of a page", "Give another name."
            )
    _registered[spec.name] = spec


def _of_package() -> dict[str, OperatorSpec]:
    return _of_pages(__package__, tuple(sys.modules[__package__].__path__))


@cache
def _of_pages(package: str, folders: tuple[str, ...]) -> dict[str, OperatorSpec]:
    found: dict[str, OperatorSpec] = {}
    for module in pkgutil.iter_modules(folders):
        page = importlib.import_module(f"{package}.{module.name}")
        found |= {spec.name: spec for spec in getattr(page, "SPECS", ())}
    return found


@cache
def _of_folders(folders: str) -> dict[str, OperatorSpec]:
    _reading.append(folders)
    try:
        return _read_folders(folders)
    finally:
        _reading.pop()


def _read_folders(folders: str) -> dict[str, OperatorSpec]:
    found: dict[str, OperatorSpec] = {}
    for folder in filter(None, folders.split(os.pathsep)):
        if not Path(folder).expanduser().is_dir():
            raise InvalidArgumentError(FOLDERS, f"no folder {folder}", "Give existing folders.")
        _find_modules_in(Path(folder).expanduser())
        for path in sorted(Path(folder).expanduser().glob("*.py")):
            for spec in _specs_of(path):
                if spec.name in found or spec.name in _of_package():
                    fix = "Give another name: there is an operator of this one."
                    raise InvalidArgumentError(f"{path}, name", f"got {spec.name!r}", fix)
                found[spec.name] = spec
    return found


def _find_modules_in(folder: Path) -> None:
    """Let pages import the modules beside them, which come after all others of the same name."""
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.append(place)


def _specs_of(path: Path) -> tuple[OperatorSpec, ...]:
    """Return the specs of a page in another folder; files whose names begin with "_" have none."""
    if path.name.startswith("_"):
        return ()
    name = f"workbench_operators_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise InvalidArgumentError(FOLDERS, f"{path} is no module", "Give folders of Python files.")
    page = importlib.util.module_from_spec(found)
    sys.modules[name] = page  # a jit function finds its source by its module
    try:
        found.loader.exec_module(page)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        given = f"{path} cannot be read: {type(error).__name__}: {error}"
        raise InvalidArgumentError(
            FOLDERS, given, "Correct the page, or take it out of the folder."
        ) from error
    specs = getattr(page, "SPECS", None)
    if not isinstance(specs, tuple) or not all(isinstance(spec, OperatorSpec) for spec in specs):
        raise InvalidArgumentError(
            FOLDERS,
            f"{path} has no tuple SPECS of OperatorSpec",
            "Define SPECS = (OperatorSpec(...),) in it.",
        )
    return specs
