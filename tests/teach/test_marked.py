"""The marks of a solution, which make its stub and its wrong answers; and the errors of malformed marks."""

from __future__ import annotations

import pytest

from workbench.errors import InvalidArgumentError, UnknownNameError
from workbench.teach.marked import MarkedSource

TEXT = '''\
"""The explanation."""

import torch

from workbench.launch import Launch


@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    """Return nothing."""
    # A comment of the solution.
    ### BEGIN SOLUTION
    for start in range(0, n, BLOCK):
        # WRONG one tile: for start in range(1):
        value = f(
            x + start,
            # WRONG no start: x,
            n,
        )
        # WRONG no call: value = x
        # WRONG no start, twice:
        #     start = 0
        #     value = f(x + start, n)
    ### END SOLUTION


def answer(
    x: torch.Tensor,
    n: int,
) -> Launch:
    """Launch it."""
    grid = (n,)
    # STUB: grid = (1,)  # how many?
    check(grid)
    # WRONG no check:
    # STUB ONLY:
    #     if grid is None:
    #
    #         return None
    return Launch.of(kernel, grid, x, n)
    # WRONG no start, twice: return None
'''
NAMES = ("one tile", "no start", "no start, twice", "no call", "no check")


def changes_of(text: str) -> list[str]:
    """Return the lines of the solution that a version lacks (-), and its own lines (+)."""
    solution = MarkedSource(TEXT, NAMES, "answer.py").solution.splitlines()
    changed = text.splitlines()
    return [f"-{line.strip()}" for line in solution if line not in changed] + [
        f"+{line.strip()}" for line in changed if line not in solution
    ]


def test_solution_has_all_lines_but_the_marks() -> None:
    kept = [
        line
        for line in TEXT.splitlines()
        if not line.lstrip().startswith(("###", "# WRONG", "# STUB", "#     ")) and line.strip() != "#"
    ]
    assert MarkedSource(TEXT, NAMES, "answer.py").solution.splitlines() == kept


def test_stub_has_its_own_parts_and_neither_docstrings_nor_types_outside_triton() -> None:
    assert MarkedSource(TEXT, NAMES, "answer.py").stub == (
        "@triton.jit\n"
        "def kernel(x, n, BLOCK: tl.constexpr):\n"
        "    # A comment of the solution.\n"
        "    pass\n"
        "\n"
        "\n"
        "def answer(x, n):\n"
        "    grid = (1,)  # how many?\n"
        "    check(grid)\n"
        "    if grid is None:\n"
        "\n"
        "        return None\n"
        "    return Launch.of(kernel, grid, x, n)\n"
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("one tile", ["-for start in range(0, n, BLOCK):", "+for start in range(1):"]),
        ("no start", ["-x + start,", "+x,"]),
        ("no call", ["-value = f(", "-x + start,", "-n,", "-)", "+value = x"]),
        (
            "no start, twice",
            [
                *("-value = f(", "-x + start,", "-n,", "-)", "-return Launch.of(kernel, grid, x, n)"),
                *("+start = 0", "+value = f(x + start, n)", "+return None"),
            ],
        ),
        ("no check", ["-check(grid)"]),
    ],
)
def test_wrong_answer_differs_in_the_lines_above_its_marks(name: str, changes: list[str]) -> None:
    assert changes_of(MarkedSource(TEXT, NAMES, "answer.py").wrong(name)) == changes


def test_blocks_are_replaced_by_the_marks_after_their_ends() -> None:
    text = (
        "def f(n):\n"
        "    ### BEGIN SOLUTION\n"
        "    ### BEGIN WRONG\n"
        "    total = 0\n"
        "    for i in range(n):\n"
        "        total += i\n"
        "        # WRONG twice: total += 2 * i\n"
        "    ### END WRONG\n"
        "    # WRONG a formula: total = n * n\n"
        "    # WRONG no sum: total = n\n"
        "    return total\n"
        "    ### END SOLUTION\n"
        "    # WRONG zero: return 0\n"
        "    # STUB: return None  # the sum\n"
    )
    source = MarkedSource(text, ["twice", "a formula", "no sum", "zero"], "sum.py")
    assert source.solution == (
        "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
    )
    assert source.stub == "def f(n):\n    return None  # the sum\n"
    assert source.wrong("twice") == source.solution.replace("+= i", "+= 2 * i")
    assert source.wrong("a formula") == "def f(n):\n    total = n * n\n    return total\n"
    assert source.wrong("no sum") == "def f(n):\n    total = n\n    return total\n"
    assert source.wrong("zero") == source.solution.replace("return total", "return 0")


def test_functions_that_the_stub_lacks_leave_no_blank_lines() -> None:
    text = (
        "import a\n\n\ndef f(x):\n    return x\n\n\n"
        "### BEGIN SOLUTION\ndef g(x):\n    return f(x)\n\n\n### END SOLUTION\n# STUB:\n\n\n"
        "def h(x):\n    return x\n"
    )
    source = MarkedSource(text, [], "g.py")
    assert source.stub == "def f(x):\n    return x\n\n\ndef h(x):\n    return x\n"
    assert source.solution.count("\n\n\n") == 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("### BEGIN SOLUTION\nx = 1", r"a.py, line 2: has BEGIN SOLUTION without an end"),
        ("### END SOLUTION", r"a.py, line 2: has END SOLUTION without a BEGIN.*Close each"),
        (
            "### BEGIN SOLUTION\nx = 1\n### BEGIN SOLUTION\n### END SOLUTION",
            "line 4: has BEGIN.*inside of the block of line 2",
        ),
        ("### BEGIN SOLUTION\n### END SOLUTION", "line 3: ends a block without code"),
        ("### SOLUTION\nx = 1", "line 2: reads '### SOLUTION'.*BEGIN or END"),
        ("### BEGIN WRONG\nx = 1\n### END WRONG\ny = 1\n# WRONG zero: y = 0", "line 4: ends a block that no"),
        (
            "### BEGIN SOLUTION\nx = 1\n# STUB: x = 2\n### END SOLUTION",
            "line 4: stands inside of the solution that begins in line 2",
        ),
        ("\n# STUB: x = 1\nx = 2", "line 3: replaces nothing"),
        ("x = 1\n\n# STUB: x = 2", "line 4: replaces nothing"),
        ("x = [\n1,\n\n# STUB: 2,\n]", "line 5: replaces nothing"),
        ("x = 1\n# STUB: x = 2\n# STUB: x = 3", "line 2: is replaced by two marks"),
        ("x = [\n1,\n# WRONG zero: 0,\n]\n# WRONG zero: x = []", "line 3: is replaced by two marks"),
        ("x = 1\n# STUB x = 2", "line 3: lacks a colon"),
        ("x = 1\n# STUB ONLY x = 2", "line 3: lacks a colon"),
        ("x = 1", "a.py: has no mark for 'zero'"),
        ("def f():\n    'One.'\n    x = 1\n#STUB: x = 2", "line 5: reads '#STUB: x = 2'"),
        ("x = 1\n# Stub only: x = 2", "line 3: reads '# Stub only: x = 2'"),
        ("x = 1\n# wrong zero: x = 0", "line 3: reads '# wrong zero: x = 0'"),
        ("## BEGIN WRONG\nx = 1", "line 2: reads '## BEGIN WRONG'"),
        ('def f():\n    """One."""\n    # STUB: x = 2\n    x = 1', "line 4: replaces nothing"),
        ("x = 1\n# WRONG zero:\n#   x = 0", "line 4: is a comment directly below.*by four columns"),
        ("x = 1\n# WRONG zero: x = 0\n#     x += 1", "line 4: is a comment directly below"),
    ],
)
def test_malformed_mark_is_named_with_its_line(body: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        MarkedSource(f"import a\n{body}\n", ["zero"], "a.py")


def test_block_may_have_another_indentation_than_its_code() -> None:
    text = (
        "def f():\n# A comment.\n### BEGIN SOLUTION\n        ### BEGIN WRONG\n    x = 1\n### END WRONG\n"
        "# WRONG zero: x = 0\n    return x\n### END SOLUTION\n"
    )
    source = MarkedSource(text, ["zero"], "a.py")
    assert source.stub == "def f():\n# A comment.\n    pass\n"
    assert source.wrong("zero") == "def f():\n# A comment.\n    x = 0\n    return x\n"


def test_version_that_is_not_valid_python_is_named() -> None:
    source = MarkedSource("x = 1\n# STUB: x = = 2\n# WRONG zero:\n#       x = 0\n", ["zero"], "a.py")
    said = r"a\.py: has a stub that is not valid Python: .* in 'x = = 2'\. Correct the code in its marks"
    with pytest.raises(InvalidArgumentError, match=said):
        _ = source.stub
    said = "has a wrong answer 'zero' that is not valid Python: unexpected"
    with pytest.raises(InvalidArgumentError, match=said):
        source.wrong("zero")
    source = MarkedSource("x = = 1\n# STUB: x = 2\n", [], "a.py")
    said = r"has a solution that is not valid Python: .* in 'x = = 1'\. Correct the code of the solution"
    with pytest.raises(InvalidArgumentError, match=said):
        _ = source.solution


@pytest.mark.parametrize("mark", ["zeroes: x = 0", "zero x = 0", "x = 0"])
def test_the_error_of_a_mark_with_an_unknown_name_lists_the_known_names(mark: str) -> None:
    with pytest.raises(UnknownNameError, match=r"wrong answer in a\.py, line 2.*Known: zero"):
        MarkedSource(f"x = 1\n# WRONG {mark}\n", ["zero"], "a.py")


def test_the_error_of_an_unknown_wrong_answer_suggests_a_known_name() -> None:
    with pytest.raises(UnknownNameError, match=r"wrong answer: 'zeroes' is not known\. Did you mean 'zero'"):
        MarkedSource("x = 1\n# WRONG zero: x = 0\n", ["zero"], "a.py").wrong("zeroes")


def test_name_may_have_a_colon_and_begin_with_another_name() -> None:
    text = "x = 1\n# WRONG NaN: x = 2\n# WRONG NaN: 0 / 0: x = 3\n"
    source = MarkedSource(text, ["NaN", "NaN: 0 / 0"], "a.py")
    assert source.wrong("NaN") == "x = 2\n"
    assert source.wrong("NaN: 0 / 0") == "x = 3\n"
