"""The formulas of a stage describe its transform by the names of dimensions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.coords.random_chains import descriptors
from workbench.coords import naive, symbol, transform, transforms
from workbench.coords.descriptor import Descriptor


def distinct(descriptor: Descriptor) -> bool:
    """Return whether no transform takes two dimensions of one name."""
    names = descriptor.all_names
    return all(len({names[d] for d in stage.upper}) == len(stage.upper) for stage in descriptor.stages)


@given(st.data())
def test_formulas_compute_the_lower_indices_of_their_transform(data: st.DataObject) -> None:
    descriptor = data.draw(descriptors().filter(distinct))
    lengths: Any = descriptor.lengths
    if 0 in lengths:
        return
    index = [data.draw(st.integers(0, length - 1)) for length in lengths]
    values = descriptor.values(index)
    for stage in descriptor.stages:
        known: dict[str, Any] = {descriptor.all_names[d]: values[d] for d in stage.upper}
        if isinstance(stage.transform, transforms.Indexing):
            known[stage.transform.table.name] = Clipped(stage.transform.table.values)
        if 0 in stage.transform.upper_lengths:
            continue
        found = [eval(text, known) for text in descriptor.formulas(stage)]
        assert found == [values[d] for d in stage.lower]


class Clipped:
    """Table that holds 0 beyond its ends, as in generated code."""

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values

    def __getitem__(self, index: int) -> int:
        return self.values[index] if 0 <= index < len(self.values) else 0


def test_formulas_are_written_with_names() -> None:
    images = symbol("images")
    base = naive((images, 6, 6), (36, 6, 1), names=("n", "y", "x"))
    merged = transform(base, [transforms.merge((images, 6, 6))], [(0, 1, 2)], [(0,)], names=("row",))
    assert merged.formulas(merged.stages[1]) == ("row // 36", "(row // 6) % 6", "row % 6")
    assert merged.formulas(merged.stages[0]) == ("n * 36 + y * 6 + x",)
    padded = transform(
        base,
        [
            transforms.freeze(2),
            transforms.pad(6, 1, 1),
            transforms.pass_through(6),
            transforms.replicate((3,)),
        ],
        [(0,), (1,), (2,), ()],
        [(), (0,), (1,), (2,)],
    )
    assert [padded.formulas(stage) for stage in padded.stages[1:]] == [("2",), ("y - 1",), ("x",), ()]


def test_formulas_keep_dimensions_of_one_name_apart() -> None:
    base = naive((4, 4), (8, 1), names=("a", "b"))
    twice = transform(
        base, [transforms.unmerge((2, 2)), transforms.merge((4,))], [(0,), (1,)], [(0, 1), (2,)]
    )
    assert len(twice.formulas(twice.stages[0])[0].split("+")) == 2
