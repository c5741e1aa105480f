"""Planted faults: where each is planted, what it changes, and whether tests catch it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import plant

KERNEL = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.multiple_of(i, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(tl.cdiv(n, BLOCK)):
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, tl.where(valid, total, 0.0), mask=i < n)


def launch(x, y, splits):
    total = torch.zeros(4)
    total.zero_()
    arguments = (x.stride(0), x.stride(1), *y.stride())
    step = Step(kernel, (splits, 1), arguments, {"SPLITS": splits, "DIVISORS": divisors(n)})
    return Launch((step,), (y,), accumulators=(total,))


def _guard(x):
    unlike = ["not alike(x)"]
    unlike.append("is_grad_enabled()")
    unlike += ["preparing"]
    return unlike


class Doubled(torch.autograd.Function):
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
"""

EXPECTED = {
    "dropped_mask": [
        "i < n -> ((i < n) | True)", "i < n -> ((i < n) | True)", "valid -> ((valid) | True)",
    ],
    "surplus_program": ["splits -> (splits) + 1"],
    "false_hint": [
        "divisors(n) -> tuple(tuple(2 * d for d in each) if isinstance(each, tuple) else 2 * each "
        "for each in divisors(n))",
        "BLOCK -> 2 * (BLOCK)",
    ],
    "wrong_tail": ["i < n -> i <= n", "i < n -> i <= n", "tl.cdiv(n, BLOCK) -> ((n) // (BLOCK))"],
    "missing_reset": ["(total,) -> ()", "total.zero_() -> pass"],
    "swapped_stride": ["x.stride(0) -> x.stride(1)", "y.stride() -> y.stride()[::-1]"],
    "unsaved_tensor": ["ctx.save_for_backward(x, y) -> setattr(ctx, 'unsaved', (x, y,))"],
    "wrong_split": ["splits -> (splits) + 1"],
    "uninitialized": [
        "tl.zeros([BLOCK], tl.float32) -> (tl.zeros([BLOCK], tl.float32) + 1)",
        "torch.zeros(4) -> torch.zeros(4).fill_(1)",
    ],
    "stale_warm_call": ['unlike += ["preparing"] -> pass', 'unlike.append("is_grad_enabled()") -> pass'],
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plant.Source:
    monkeypatch.setattr(plant, "ROOT", tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return plant.Source(tmp_path / "kernel.py")


def test_every_kind_of_fault_has_an_example() -> None:
    assert EXPECTED.keys() == plant.FAULTS.keys()


@pytest.mark.parametrize("fault", plant.FAULTS)
def test_each_kind_of_fault_is_planted_at_its_places(fault: str, source: plant.Source) -> None:
    places = plant.places_of(fault, [source])
    assert sorted(place.words for place in places) == sorted(EXPECTED[fault])
    for place in places:
        changed = plant.plant(source.bytes, place)
        assert changed != source.bytes
        assert ast.dump(ast.parse(changed)) != ast.dump(source.tree)
        assert place.file == "kernel.py"
        assert KERNEL.splitlines()[place.line - 1]


@pytest.mark.parametrize("fault", plant.FAULTS)
def test_places_of_a_fault_are_in_files_of_the_package(fault: str) -> None:
    for place in plant.places_of(fault, plant.sources()):
        assert (plant.ROOT / place.file).is_file()


def test_every_file_with_places_has_existing_tests() -> None:
    for source in plant.sources():
        if any(list(plant.FAULTS[fault](source)) for fault in plant.FAULTS):
            tests = plant.tests_of(source.name)
            assert tests, source.name
            assert [test for test in tests if not (plant.ROOT / test).exists()] == []


def test_a_fault_is_caught_only_by_a_test_that_sees_it(source: plant.Source, tmp_path: Path) -> None:
    (place,) = plant.places_of("surplus_program", [source])
    (tmp_path / "test_grid.py").write_text(
        "def test_grid():\n    with open('kernel.py') as file:\n        assert '(splits, 1)' in file.read()\n"
    )
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    assert True\n")
    assert not plant.caught(tmp_path, None, ["test_grid.py"])[0]
    is_caught, line = plant.caught(tmp_path, place, ["test_grid.py"])
    assert is_caught
    assert "test_grid" in line
    assert not plant.caught(tmp_path, place, ["test_nothing.py"])[0]
    assert (tmp_path / "kernel.py").read_text() == KERNEL  # as it was


def test_tests_that_fail_anyway_catch_no_fault(source: plant.Source, tmp_path: Path) -> None:
    (place,) = plant.places_of("surplus_program", [source])
    words = "import pytest\n\n\n@pytest.mark.parametrize('n', [1, 2], ids=['one - 1', 'two'])\n"
    (tmp_path / "test_one.py").write_text(f"{words}def test_one(n):\n    assert n == 2\n")
    failing = plant.failing_anyway(tmp_path, ["test_one.py"], 1)
    assert failing == ["test_one.py::test_one[one - 1]"]
    assert plant.caught(tmp_path, place, ["test_one.py"])[0]
    assert not plant.caught(tmp_path, place, ["test_one.py"], failing)[0]
    with pytest.raises(RuntimeError, match=r"test_absent\.py"):
        plant.failing_anyway(tmp_path, ["test_absent.py"], 1)


def test_the_command_line_lists_places_and_refuses_unknown_faults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plant.main(["no_such_fault"])
    assert "no_such_fault" in capsys.readouterr().err
    assert plant.main(["--list", "wrong_split"]) == 0
    assert "wrong_split" in capsys.readouterr().out
