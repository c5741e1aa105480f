"""The rules for built lessons: each is a function that returns the problems of a notebook, in words.

The top of `tools/lessons.py` says what an author has to know of them.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from nbformat import NotebookNode

from workbench import errors

KERNELS = Path(__file__).resolve().parents[1] / "workbench" / "kernels"

NOTEBOOK_BYTES = 1_500_000

TAGS = {
    "nbval-ignore-output": "shows time or device: its output is not compared",
    "compiler": "shows what depends on Triton's version (with nbval-ignore-output)",
    "widget": "displays a widget, which a browser test drives",
    "package-kernel": "its functions are the package's own, word for word",
}

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

MEASUREMENT = re.compile(r"\{\{recording ([^{}]+)\}\}")
UNMEASURED = re.compile(r"\s*<!-- unmeasured: \S[^>]*-->")
CAPTION = re.compile(r"^\*Figure: ([^*]+\.)\*$", re.MULTILINE)
# A sentence rather than a repr: a capital, at least three words, a period.
SENTENCE = re.compile(r"[A-Z][\w-]*,? \S+ .*\S\.", re.DOTALL)

# A number (possibly in LaTeX) with a unit of time or rate, or as a share or multiple of a library or a peak.
MEASURED = re.compile(
    r"""\d[\d.,]*(?:\s|~|\\[,;:\ ]|\\(?:mathrm|text)\{)*
        (?: (?:[kMGT]i?B|[MGTP]FLOPs?)\s*/\s*s\b | [MGTP]FLOPS\b
          | (?:ms|µs|μs|us|ns)\b | (?:milli|micro|nano)seconds?\b
          | (?:%|\\%|×|\\times|x|times)\$?\s*(?:of\s+|faster\s+than\s+|slower\s+than\s+)?(?:the\s+)?
            (?:cu[A-Z]\w+|roc[A-Z]\w+|hip[A-Z]\w+|torch\w*|FlashAttention\w*|roofs?|ceilings?|peak|vendor\w*)\b
        )""",
    re.VERBOSE,
)

# Addresses that a browser loads by itself, in contrast to links that a reader may follow.
_ADDRESS = r"(?:https?:)?//[^\s\"'<>)]*"
EXTERNAL = re.compile(
    rf"""<(?:img|script|link|iframe|source|video|audio|embed|object|track)\b[^>]*?
           \b(?:src|href|data)\s*=\s*["']?{_ADDRESS}
      | !\[[^\]]*\]\(\s*{_ADDRESS}
      | url\(\s*["']?{_ADDRESS}
      | (?:@import|\bfrom|\bimport)\s*["']{_ADDRESS}
      | \b(?:import|fetch|require)\s*\(\s*["'`]{_ADDRESS}""",
    re.VERBOSE | re.IGNORECASE,
)


def check_prose(source: NotebookNode) -> list[str]:
    """Find typed numbers in prose that look measured, and misspelled placeholders, in an unfilled source."""
    problems = []
    for index, cell in markdown_cells(source):
        text = MEASUREMENT.sub("", cell.source)
        for paragraph in re.split(r"\n\s*\n", text):
            if (match := MEASURED.search(paragraph)) and not UNMEASURED.search(paragraph):
                problems.append(
                    f"cell {index}: {match.group()!r} looks measured. Take it from a recording, "
                    "{{recording ...}}, or say <!-- unmeasured: why --> in its paragraph."
                )
        for match in re.finditer(r"\{\{\w+ [^{}]*\}\}", without_code(text)):
            problems.append(
                f"cell {index}: {match.group()!r} is not a placeholder. Write solution or recording."
            )
    return problems


def check_pair(rendered: NotebookNode, stored: NotebookNode) -> list[str]:
    """Find differences, except in outputs, between the rendered source and the stored notebook."""
    if len(rendered.cells) != len(stored.cells):
        return [
            f"the source has {len(rendered.cells)} cells, the notebook {len(stored.cells)}. Build it again."
        ]
    pairs = list(enumerate(zip(rendered.cells, stored.cells, strict=True)))
    problems = []
    for name in ("cell_type", "source", "metadata", "id"):
        if different := [str(index) for index, (new, old) in pairs if new[name] != old[name]]:
            problems.append(
                f"{name} of cells {', '.join(different)}: not what the source says. Build it again."
            )
            break
    if rendered.metadata != stored.metadata:
        problems.append("the notebook's metadata is not what a build writes. Build it again.")
    return problems


def check_size(size: int) -> list[str]:
    """Find out if a notebook is too large to load quickly."""
    return [f"{size:,} bytes, more than {NOTEBOOK_BYTES:,}"] if size > NOTEBOOK_BYTES else []


def check_notebook(notebook: NotebookNode, folder: Path) -> list[str]:
    """Check all rules that concern the notebook alone; `folder` is the notebook's folder."""
    return [
        *check_run(notebook),
        *check_outputs(notebook),
        *check_tags(notebook),
        *check_package_kernels(notebook),
        *check_figures(notebook),
        *check_headings(notebook),
        *check_links(notebook, folder),
        *check_network(notebook),
    ]


def check_run(notebook: NotebookNode) -> list[str]:
    """Find cells that were not run top to bottom, or whose text defeats the comparison of outputs."""
    problems = []
    for count, (index, cell) in enumerate(code_cells(notebook), start=1):
        if not cell.source.strip():
            problems.append(f"cell {index}: empty")
        elif cell.execution_count != count:
            problems.append(f"cell {index}: its execution count is {cell.execution_count}, not {count}")
        if re.search(r";\s*(#.*)?\Z", cell.source):
            problems.append(f"cell {index}: ends with `;`, which hides nothing from nbval. Use plt.show().")
        if "NBVAL_" in cell.source or "PYTEST_VALIDATE_" in cell.source:
            problems.append(f"cell {index}: a comment steers nbval. Use the tag `nbval-ignore-output`.")
    return problems


def check_outputs(notebook: NotebookNode) -> list[str]:
    """Find errors, output to stderr, and widget-view JSON among the stored outputs."""
    problems = []
    for index, _, output in outputs(notebook):
        if output.output_type == "error":
            problems.append(f"cell {index}: stored with an error, {output.ename}")
        if output.get("name") == "stderr":
            problems.append(f"cell {index}: writes to stderr, {output.text.strip()[:80]!r}")
        if WIDGET_VIEW in output.get("data", {}):
            problems.append(f"cell {index}: stored with widget-view JSON, which hides the widget's picture")
    return problems


def check_tags(notebook: NotebookNode) -> list[str]:
    """Find unknown and incomplete tags, and too many cells whose output is not compared."""
    problems = []
    cells = code_cells(notebook)
    for index, cell in enumerate(notebook.cells):
        unknown = sorted(tags_of(cell) - TAGS.keys())
        problems += [f"cell {index}: {errors.UnknownNameError('tag', tag, TAGS)}" for tag in unknown]
    for index, cell in cells:
        if "compiler" in tags_of(cell) and "nbval-ignore-output" not in tags_of(cell):
            problems.append(f"cell {index}: tagged `compiler` without `nbval-ignore-output`")
        if "widget" in tags_of(cell) and not pictures(cell):
            problems.append(f"cell {index}: tagged `widget`, but no picture of it is stored")
    ignored = sum(
        "nbval-ignore-output" in tags_of(cell) and "compiler" not in tags_of(cell) for _, cell in cells
    )
    if ignored * 5 > len(cells):
        problems.append(f"{ignored} of {len(cells)} code cells are not compared; at most one in five may be")
    return problems


def check_package_kernels(notebook: NotebookNode) -> list[str]:
    """Find functions in `package-kernel` cells that differ from the package's."""
    tagged = [(index, cell) for index, cell in code_cells(notebook) if "package-kernel" in tags_of(cell)]
    shipped = (
        {function for path in KERNELS.rglob("*.py") for function in functions(path.read_text())}
        if tagged
        else set()
    )
    problems = []
    for index, cell in tagged:
        defined = functions(cell.source)
        if not defined:
            problems.append(f"cell {index}: tagged `package-kernel`, but defines no function")
        problems += [
            f"cell {index}: {name} is not the text of a function in workbench/kernels"
            for name, text in defined
            if (name, text) not in shipped
        ]
    return problems


def check_figures(notebook: NotebookNode) -> list[str]:
    """Find pictures without a sentence that describes them, and sentences without a picture."""
    problems = []
    for index, cell in code_cells(notebook):
        drawn, captions = pictures(cell), captions_after(notebook, index)
        if (silent := sum(not own_sentence(picture) for picture in drawn)) > len(captions):
            problems.append(
                f"cell {index}: {silent} picture(s) without a sentence. Begin the next markdown cell with "
                "`*Figure: what is drawn, and what to see in it.*`"
            )
        if len(captions) > len(drawn):
            problems.append(
                f"cell {index}: shows {len(drawn)} picture(s), but the next cell has {len(captions)} "
                "`*Figure: ...*` sentences. Keep one for each picture."
            )
    return problems


def check_headings(notebook: NotebookNode) -> list[str]:
    """Find a missing, repeated or late title, and skipped levels of headings."""
    found = [(index, len(marks)) for index, marks, _ in headings(notebook)]
    problems = []
    if found[:1] != [(0, 1)] or sum(level == 1 for _, level in found) > 1:
        problems.append("a lesson has one title, `# ...`, in its first cell and before any other heading")
    for (_, above), (index, level) in itertools.pairwise(found):
        if level > above + 1:
            problems.append(f"cell {index}: a heading of level {level} follows one of level {above}")
    return problems


def check_links(notebook: NotebookNode, folder: Path) -> list[str]:
    """Find broken links to files and to headings of the same lesson."""
    anchors = {text.strip().replace(" ", "-").lower() for _, _, text in headings(notebook)}
    problems = []
    for index, cell in markdown_cells(notebook):
        prose = without_code(cell.source)
        for targets in re.findall(r"""\]\(\s*<?([^\s)>]+)|(?:href|src)\s*=\s*["']([^"']+)""", prose):
            link = unquote(next(filter(None, targets)))
            path, _, anchor = link.partition("#")
            if re.match(r"https?:|mailto:", link):
                continue
            if not (folder / path).exists() or (not path and anchor.lower() not in anchors):
                problems.append(f"cell {index}: the link {link!r} leads nowhere")
    return problems


def check_network(notebook: NotebookNode) -> list[str]:
    """Find pictures, scripts and styles that a browser would load from the network."""
    texts = [(index, without_code(cell.source)) for index, cell in markdown_cells(notebook)]
    texts += [
        (index, str(data))
        for index, _, output in outputs(notebook)
        for data in output.get("data", {}).values()
    ]
    return [
        f"cell {index}: loads from the network, {match.group()!r}"
        for index, text in texts
        for match in EXTERNAL.finditer(text)
    ]


def check_widgets(run: NotebookNode) -> list[str]:
    """Find widgets without a tag or without a static picture, in a notebook that was just run."""
    problems = []
    for index, cell, output in outputs(run):
        # tqdm's progress bar is a widget too, but no test drives it.
        if WIDGET_VIEW not in output.get("data", {}) or "%|" in output.data.get("text/plain", ""):
            continue
        if "widget" not in tags_of(cell):
            problems.append(f"cell {index}: displays a widget. Tag the cell `widget`.")
        if "image/png" not in output.data:
            problems.append(
                f"cell {index}: the widget's mime bundle has no image/png to show where no kernel runs"
            )
    return problems


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """Return the code cells, each with its index among all cells."""
    return [(index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def markdown_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """Return the markdown cells, each with its index among all cells."""
    return [(index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"]


def outputs(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode, NotebookNode]]:
    """Yield every output with the index of its cell and the cell."""
    for index, cell in code_cells(notebook):
        for output in cell.outputs:
            yield index, cell, output


def pictures(cell: NotebookNode) -> list[NotebookNode]:
    """Return the outputs of a code cell that have a PNG."""
    return [output for output in cell.outputs if "image/png" in output.get("data", {})]


def tags_of(cell: NotebookNode) -> set[str]:
    """Return the tags of a cell."""
    return set(cell.metadata.get("tags", []))


def own_sentence(picture: NotebookNode) -> str:
    """Return a picture's own description, from its metadata or its repr; empty if it has none."""
    alternative: str = picture.metadata.get("image/png", {}).get("alt", "")
    text: str = picture.data.get("text/plain", "")
    return alternative or (text if SENTENCE.fullmatch(text) else "")


def captions_after(notebook: NotebookNode, index: int) -> list[str]:
    """Return the sentences after `Figure:` in the markdown cell that follows the cell `index`."""
    for cell in notebook.cells[index + 1 : index + 2]:
        if cell.cell_type == "markdown":
            return [" ".join(caption.split()) for caption in CAPTION.findall(cell.source)]
    return []


def headings(notebook: NotebookNode) -> list[tuple[int, str, str]]:
    """Return every heading: the index of its cell, its `#` marks, its text."""
    return [
        (index, marks, text)
        for index, cell in markdown_cells(notebook)
        for marks, text in re.findall(r"^(#{1,6}) +(.+)$", without_code(cell.source), re.MULTILINE)
    ]


def without_code(markdown: str) -> str:
    """Remove fenced blocks and inline code from Markdown."""
    return re.sub(r"^(`{3,}|~{3,}).*?^\1|`[^`\n]*`", "", markdown, flags=re.MULTILINE | re.DOTALL)


def functions(code: str) -> list[tuple[str, str]]:
    """Return the name and text, with decorators, of each function at the top level of `code`."""
    lines = code.splitlines()
    found = []
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append((node.name, "\n".join(lines[first - 1 : node.end_lineno])))
    return found
