"""Random problems, new ones in each run: ragged sizes, any layout, forward and gradients.

A failure names its family and seed: `tests.drawn.check(family, seed, "cuda")` draws it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from tests.drawn import FAMILIES, check
from tests.everything import examples

pytestmark = pytest.mark.gpu

# Problems of a test, and tests of a family. Tests may run in parallel: a problem takes seconds to compile.
DRAWS = examples(20)
TESTS = {
    "convolution": 20, "attention": 12, "product": 10, "rows": 10, "channels": 10, "moved": 2, "grouped": 2,
    "fused": 10,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _exact_fp32() -> Iterator[None]:
    """Compare fp32 with fp32, not tf32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def test_every_family_has_random_problems() -> None:
    assert TESTS.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("family", "number"), [(family, number) for family, count in TESTS.items() for number in range(count)]
)
def test_random_problems_agree_with_torch(family: str, number: int) -> None:
    wrong = []
    for seed in random.SystemRandom().sample(range(2**31), DRAWS):
        try:
            check(family, seed, "cuda")
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
