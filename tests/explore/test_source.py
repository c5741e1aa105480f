"""The source lens of a launch, opened by one line."""

from __future__ import annotations

import pytest
import torch

from workbench import explore, lens
from workbench.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from workbench.kernels.pointwise import elementwise
from workbench.kernels.tile import transfer
from workbench.launch import Launch


def addition() -> Launch:
    x = torch.ones(100)
    return elementwise.launch(x, x.clone(), tile=64)


def test_a_shipped_kernel_is_shown_with_its_tile_operators() -> None:
    widget = explore.source.source_lens(addition(), ("sm_90",))
    assert "binary_kernel" in widget.picture.alt
    assert "sm_90" in widget.picture.alt
    names = [source.name for source in explore.source.sources(elementwise.binary_kernel, *looked_at())]
    assert names[0] == "binary_kernel"
    assert {"tile_1d", "load", "store", "add"} <= set(names)
    assert len(names) == len(set(names))


def looked_at() -> tuple[lens.StepTrace, tuple[lens.CompiledStep, ...]]:
    return lens.trace(addition())[0], lens.compile(addition(), "sm_90")


def test_sources_have_the_text_and_line_of_their_file() -> None:
    sources = {
        source.name: source for source in explore.source.sources(elementwise.binary_kernel, *looked_at())
    }
    load = sources["load"]
    assert load.file == transfer.__file__
    assert load.text.startswith("def load(pointer, offsets, valid, fill=0):")
    with open(load.file) as file:
        assert file.readlines()[load.line - 1].startswith("def load(")


def test_the_mime_bundle_has_a_picture() -> None:
    bundle = explore.source.source_lens(addition(), ("gfx942",))._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert {"image/png", "text/plain"} <= set(data)


def test_errors_name_the_wrong_argument() -> None:
    with pytest.raises(ArgumentTypeError, match="launch: got a Tensor"):
        explore.source.source_lens(torch.ones(3))  # type: ignore[arg-type] # that is the question
    with pytest.raises(UnknownNameError, match="target: 'sm90'"):
        explore.source.source_lens(addition(), ("sm90",))
    with pytest.raises(InvalidArgumentError, match="step: got 1"):
        explore.source.source_lens(addition(), step=1)
    with pytest.raises(ArgumentTypeError, match="shown"):
        explore.source.source_lens(addition(), "sm_90")
