"""The README's pictures are those that the package draws now."""

from __future__ import annotations

import re
from io import BytesIO

import pytest
from PIL import Image

from tools import pictures


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_readme_shows_what_the_package_draws_now(name: str) -> None:
    picture = pictures.PICTURES[name]()
    readme = (pictures.ROOT / "README.md").read_text()
    assert _but_for_rounding(f"![{picture.alt}]({pictures.FOLDER}/{name}.png)") in _but_for_rounding(readme)
    with (
        Image.open(pictures.ROOT / pictures.FOLDER / f"{name}.png") as shown,
        Image.open(BytesIO(picture.png)) as drawn,
    ):
        assert shown.size == drawn.size


def _but_for_rounding(text: str) -> str:
    """Replace rounding errors in a text by words: they differ between the matrix libraries of processors."""
    return re.sub(r"[\d.]+e\W\d+", "an error", text)


def test_descriptions_are_written_into_the_readme() -> None:
    told = pictures.describe("Here: ![old](lessons/pictures/roofline.png).", {"roofline": r"A \1 roof."})
    assert told == r"Here: ![A \1 roof.](lessons/pictures/roofline.png)."
    for text in ("", told + told):
        with pytest.raises(ValueError, match=r"README\.md has to show lessons/pictures/roofline\.png once"):
            pictures.describe(text, {"roofline": "A roof."})
