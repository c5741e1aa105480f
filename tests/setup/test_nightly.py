"""The unattended run of every test, and its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import nightly

RUN = """<testsuite>
<testcase classname="tests.ops.test_gemm" name="test_product[a|b]" time="4.0"/>
<testcase classname="tests.ops.test_gemm" name="test_broken" time="9.5"><failure>first
{lines}AssertionError: 1 is not 2</failure></testcase>
<testcase classname="tests.gpu.test_gpu" name="test_there" time="0"><skipped message="no GPU"/></testcase>
</testsuite>""".replace("{lines}", "deeper\n" * 30)

# A stand-in for the tests, which writes its results to the given file and fails.
MAKEFILE = """test-all:
\t@echo output of the tests
\t@cp run.xml $(patsubst --junitxml=%,%,$(filter --junitxml=%,$(TEST_ARGS)))
\t@exit 3
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "FOLDER", tmp_path / "build" / "nightly")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "run.xml").write_text(RUN)
    return tmp_path


def test_the_report_lists_failures_and_the_slowest_tests(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nightly.main(["-x"]) != 0
    (folder,) = (root / "build" / "nightly").iterdir()
    assert "output of the tests" in (folder / "log.txt").read_text()
    text = (folder / "report.md").read_text()
    assert "1 passed, 1 failed, 0 errors, 1 skipped in 0 minutes. Exit status: 2." in text
    failure = text.partition("### tests.ops.test_gemm::test_broken\n")[2].partition("## ")[0]
    assert failure.rstrip().endswith("    AssertionError: 1 is not 2")
    assert failure.count("deeper") == nightly.LINES_OF_A_FAILURE - 1
    assert text.index("| 9.5 | tests.ops.test_gemm::test_broken |") < text.index(
        "| 4.0 | tests.ops.test_gemm::test_product[a\\|b] |"
    )
    assert "test_broken" in capsys.readouterr().out


def test_a_run_that_ended_before_its_tests_points_to_the_log(root: Path) -> None:
    (root / "run.xml").unlink()
    assert nightly.main([]) != 0
    (folder,) = (root / "build" / "nightly").iterdir()
    assert "No test failed, but the run did: read log.txt." in (folder / "report.md").read_text()


def test_a_report_without_failures_says_none() -> None:
    case = nightly.Case("tests.test_it::test_it", seconds=1.0, outcome="passed", text="")
    text = nightly.report([case], status=0, seconds=61.0, commit="abc")
    assert text.startswith("# Tests of abc\n\n1 passed, 0 failed, 0 errors, 0 skipped in 1 minutes.")
    assert "## Failures\n\nNone.\n" in text
