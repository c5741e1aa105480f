"""The interpreter runs a kernel that is called as in Triton, on tensors of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import workbench
import torch, triton, triton.language as tl

@triton.jit
def copy_kernel(x, output, BLOCK_SIZE: tl.constexpr):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(x + i))

memory = torch.full((24,), 7.0, device="cuda")
x, output = torch.arange(8.0, device="cuda"), memory[8:16]
copy_kernel[(2,)](x, output, BLOCK_SIZE=4)
print(memory.int().tolist())
try:
    copy_kernel[(3,)](x, output, BLOCK_SIZE=4)
except workbench.errors.OutOfBoundsError as error:
    print(error.reason)
"""


def test_the_interpreter_copies_and_guards_tensors_of_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        str([7] * 8 + list(range(8)) + [7] * 8),
        "reads outside x: element 8 of a tensor with 8, in program (2, 0, 0)",
    ]
