"""The ping-pong template, where no GPU runs it: what it compiles to, what it takes, and who gets it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.kernels.test_gemm_instances import A100, H200
from workbench import device
from workbench.errors import InvalidArgumentError, WorkbenchError
from workbench.kernels import gemm
from workbench.kernels.epilogues import Epilogue, add, bias, fast_gelu, relu
from workbench.kernels.instances import gemm as instances
from workbench.launch import Launch
from workbench.lens.compile import compile_all


def half(rows: int, cols: int) -> torch.Tensor:
    return torch.zeros(rows, cols, dtype=torch.float16)


def ping_pong(
    layout: str = "nn", chain: Epilogue | None = None, m: int = 512, n: int = 512, k: int = 128, **more: Any
) -> Launch:
    a = half(m, k) if layout[0] == "n" else half(k, m).t()
    b = half(k, n) if layout[1] == "n" else half(n, k).t()
    how = {"tile": (128, 128, 64), "num_stages": 6, "compute_units": 132, **more}
    return gemm.launch(a, b, epilogue=chain, template="ping-pong", **how)


def brought(launch: Launch) -> int:
    """How many of an epilogue's tensors are brought to shared memory."""
    found: int = launch.steps[0].meta["BESIDE"]
    return found


def test_it_compiles_for_hopper_without_spills() -> None:
    two = add(half(512, 512)) | add(half(512, 512)) | fast_gelu()
    launches = {
        "bare": ping_pong(),
        "transposed": ping_pong("tt"),
        "two addends": ping_pong(chain=two),
        "one, and a row": ping_pong("nt", add(half(512, 512)) | bias(half(1, 512)[0]) | relu()),
        "wide": ping_pong(chain=two, tile=(64, 256, 64), num_stages=5),
    }
    compiled = dict(zip(launches, compile_all([*launches.values()], "sm_90"), strict=True))
    for name, found in compiled.items():
        assert isinstance(found, tuple), (name, found)
        (step,) = found
        assert (step.spills, step.problem, step.serialization) == (0, "", ""), name
        assert step.shared_bytes <= H200.shared_memory_bytes, name
        assert "wgmma.mma_async" in step.stages["ptx"], name
        assert "setmaxnreg" in step.stages["ptx"], (
            name
        )  # warps that copy leave registers to those that compute


def test_which_tensors_are_brought() -> None:
    whole = half(512, 512)
    wide, row, across = torch.zeros(512, 512), half(1, 512)[0], half(512, 512).t()
    unaligned = half(1, 512 * 516 + 1)[0, 1:].view(512, 516)[:, :512]
    for chain, wanted in (
        (add(whole) | add(whole), 2),
        (add(whole) | add(whole) | add(whole), 2),
        (bias(row) | add(whole), 1),
        (add(wide) | add(across) | add(unaligned) | bias(row), 0),
        (add(whole) | add(whole.to(torch.bfloat16)), 1),
    ):
        launch = ping_pong(chain=chain)
        assert brought(launch) == wanted, chain
        assert launch.steps[0].meta["STAGES"] == 6 - wanted
    # Two buffers are left, whatever is given up for what is brought.
    assert brought(ping_pong(chain=add(whole) | add(whole), num_stages=3)) == 1
    assert brought(ping_pong(chain=add(whole), num_stages=2)) == 0


@pytest.mark.parametrize(
    ("operands", "more", "said"),
    [
        ((torch.zeros(64, 64), torch.zeros(64, 64)), {}, "fp16 and bf16"),
        ((half(2, 64 * 64).view(2, 64, 64), half(64, 64)), {}, "no batches"),
        ((half(64, 65), half(65, 64)), {}, "TMA takes no a"),
        ((half(64, 64), half(64, 64)), {"tile": (128, 256, 64)}, "elements at most"),
        ((half(64, 64), half(64, 64)), {"tile": (32, 64, 64)}, "multiple of 64 rows"),
        ((half(64, 64), half(64, 64)), {"tile": (64, 192, 64)}, "power of two"),
        ((half(64, 64), half(64, 64)), {"num_stages": 1}, "Give 2 or more"),
        ((half(64, 64), half(64, 64)), {"num_warps": 8}, "num_warps"),
        ((half(64, 64), half(64, 64)), {"splits": 2}, "splits"),
        ((half(64, 64), half(64, 64)), {"pack": True}, "pack"),
    ],
)
def test_what_it_does_not_take_is_named(
    operands: tuple[torch.Tensor, torch.Tensor], more: dict[str, Any], said: str
) -> None:
    how = {"tile": (64, 64, 64), "compute_units": 132, **more}
    with pytest.raises(InvalidArgumentError, match=said):
        gemm.launch(*operands, template="ping-pong", **how)


def test_it_is_not_interpreted() -> None:
    with pytest.raises(WorkbenchError, match="Gluon"):
        ping_pong().run()


@pytest.mark.parametrize(
    ("shape", "here", "template"),
    [
        ((4096, 4096, 4096), H200, "ping-pong"),
        ((2048, 3072, 768), H200, "ping-pong"),
        ((3000, 3000, 3000), H200, "simple"),  # rows that begin at no lines
        ((1024, 1024, 1024), H200, "simple"),  # fewer tiles than units
        ((64, 65536, 4096), H200, None),  # no whole tile of rows
        ((256, 128, 64), H200, "simple"),
        ((4096, 4096, 4096), A100, "simple"),
        ((4096, 4096, 4096), dataclasses.replace(H200, architecture="sm_120"), "simple"),
    ],
)
def test_who_gets_it(
    shape: tuple[int, int, int], here: device.Device, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an epilogue loads a tensor of the output's shape; products alone, and in fp32, do not."""
    monkeypatch.setattr(device, "current", lambda: here)
    m, n, k = shape
    for dtype in (torch.float16, torch.float32):
        a = torch.empty(m, k, dtype=dtype, device="meta")
        b, output = (torch.empty(rows, n, dtype=dtype, device="meta") for rows in (k, m))
        found = instances.chosen_for_followed(a, b, output, "ieee")
        if dtype == torch.float16 and template is not None:
            assert found["template"] == template
        else:
            assert found["template"] != "ping-pong"
        assert instances.chosen(a, b, output, "ieee")["template"] != "ping-pong"


def test_which_chains_load_matrices() -> None:
    assert add(half(512, 256)).loads_matrices((512, 256))
    assert not (bias(half(1, 256)[0]) | relu()).loads_matrices((512, 256))
    assert not add(half(512, 1)).loads_matrices((512, 256))
    assert not Epilogue().loads_matrices((512, 256))
