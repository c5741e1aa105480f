"""Documents name existing files, and decisions are in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from workbench import device
from workbench.errors import NotMeasurableError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("*/*.md")),
]
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
LOGS = sorted((DOCS / "notebook").glob("[0-9]*.md"))

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FOLDERS = ("workbench/", "tests/", "tools/", "lessons/", "docs/", "jupyter/")


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Return the links to files, without code that looks like one."""
    return LINK.findall(CODE.sub("", text))


def files_named(text: str) -> Iterator[str]:
    """Yield paths from the root that are written as code; the path alone of `path::test`; no patterns."""
    for code in CODE.findall(text):
        path = code.split("::")[0]
        if path.startswith(FOLDERS) and not re.search(r"[\s<>*{}()]|NN", path):
            yield path


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_files_named_in_a_document_exist(document: Path) -> None:
    text = document.read_text()
    assert [link for link in links(text) if not (document.parent / link).exists()] == []
    assert [path for path in files_named(text) if not (ROOT / path).exists()] == []


def test_links_and_paths_are_recognized() -> None:
    text = "[a](b.md#c) [d](https://e) `f[n](x)` `tools/plant.py` `tests/x.py::test_y` `tools/<name>.py`"
    assert links(text) == ["b.md"]
    assert list(files_named(text)) == ["tools/plant.py", "tests/x.py"]


@pytest.mark.parametrize("pages", [DECISIONS, LOGS], ids=["decisions", "notebook"])
def test_each_page_is_in_the_index(pages: list[Path]) -> None:
    index = pages[0].parent / "README.md"
    assert links(index.read_text()) == [page.name for page in pages]


def test_decisions_are_numbered_and_have_a_reason() -> None:
    for number, page in enumerate(DECISIONS, 1):
        text = page.read_text()
        assert page.name.startswith(f"{number:03}-"), page.name
        assert text.startswith(f"# {number:03}. "), page.name
        headings = re.findall(r"^## (.*)", text, re.MULTILINE)
        assert headings[:2] == ["Decision", "Why"], page.name


def test_logs_are_named_by_their_day() -> None:
    for page in LOGS:
        assert re.match(r"20\d\d-\d\d-\d\d-[a-z0-9-]+\.md$", page.name), page.name


def test_contributing_is_short_and_has_its_four_recipes() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert len(lines) <= 200
    recipes = [line for line in lines if line.startswith("## Add ")]
    assert recipes == ["## Add an operator", "## Add an epilogue", "## Add a lesson", "## Add a recording"]


in_both_places = pytest.mark.parametrize("place", ["here", pytest.param("on a GPU", marks=pytest.mark.gpu)])


def example_of(page: Path) -> str:
    """Return the one block of Python in a page."""
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return str(code)


@in_both_places
def test_the_example_of_the_readme_runs(place: str) -> None:
    made: dict[str, Any] = {}
    exec(example_of(ROOT / "README.md"), made)
    (found,) = made["launch"].outputs
    product = made["x"].double() @ made["weight"].double() + made["bias"].double()
    torch.testing.assert_close(found.double(), functional.gelu(product), rtol=2e-3, atol=2e-3)


@in_both_places
def test_the_example_of_the_architecture_runs(place: str) -> None:
    *before, last = example_of(DOCS / "architecture.md").strip().splitlines()
    assert last.startswith("measure(launch)")
    made: dict[str, Any] = {}
    exec("\n".join(before), made)
    if device.current().is_gpu:
        exec(last, made)
    else:
        with pytest.raises(NotMeasurableError):
            exec(last, made)
