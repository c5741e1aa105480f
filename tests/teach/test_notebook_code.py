"""Code of a module as `for_notebook` formats it."""

from __future__ import annotations

import pytest

from workbench.teach.notebook_code import for_notebook


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        (
            f"result = f({'a' * 36}, {'b' * 36})",
            f"result = f(\n    {'a' * 36}, {'b' * 36}\n)",
        ),
        (
            f"result = f({'a' * 40}, {'b' * 50})",
            f"result = f(\n    {'a' * 40},\n    {'b' * 50},\n)",
        ),
        (
            f"result = {{'({'a' * 40}': 1, '{'b' * 40}': 2}}",
            f"result = {{\n    '({'a' * 40}': 1,\n    '{'b' * 40}': 2,\n}}",
        ),
        (f"result = {'a' * 90}", f"result = {'a' * 90}"),
        (f"f({'a' * 60})  # {'b' * 40}", f"f({'a' * 60})  # {'b' * 40}"),
    ],
)
def test_wide_lines_are_broken_at_brackets_for_a_notebook(code: str, broken: str) -> None:
    assert for_notebook(f"def f():\n    {code}\n") == (
        "def f():\n" + "".join(f"    {line}\n" for line in broken.splitlines())
    )


def test_wide_signature_has_an_argument_a_line() -> None:
    arguments = [f"argument_{i}" for i in range(9)]
    assert for_notebook(f"def f({': int, '.join(arguments)}: int) -> int:\n    pass\n") == (
        "def f(\n" + "".join(f"    {name},\n" for name in arguments) + "):\n    pass\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        # A string of several lines holds no code.
        f'TEXT = """\nf({"a" * 60}, {"b" * 60})\n"""\n',
        f'TEXT = f"""\n{{1}} f({"a" * 60}, {"b" * 60})\n"""\n',
        "def f(x): ...\n",
        "def f(x):\n    pass\n",
    ],
)
def test_code_that_fits_and_lines_inside_strings_are_not_changed(code: str) -> None:
    assert for_notebook(code) == code


def test_function_with_only_a_docstring_keeps_a_body() -> None:
    assert for_notebook('def f(x: int) -> None:\n    """Do nothing."""\n') == "def f(x):\n    pass\n"


def test_escaped_quote_does_not_end_a_string() -> None:
    arguments = [r'"\"("', r"'\'('", "a" * 40, "b" * 40]
    code = f"f({', '.join(arguments)})\n"
    assert for_notebook(code) == "f(\n" + "".join(f"    {each},\n" for each in arguments) + ")\n"
