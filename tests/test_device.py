"""The choice of what runs kernels, before Triton is imported, and machines that the interpreter pretends."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

from tests.machines import A100, H200, RTX_4060
from workbench import device, ops
from workbench.errors import ArgumentTypeError, UnknownNameError
from workbench.kernels import gemm
from workbench.kernels.choosing import gemm as choosing
from workbench.kernels.rows import softmax
from workbench.operators import gemm as operators
from workbench.operators.accuracy import convolution_precision, precision_of

ROOT = Path(__file__).parents[1]
HIDDEN_GPUS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process that sees no GPU, with TRITON_INTERPRET only as given."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**inherited, **HIDDEN_GPUS, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


RUN_A_KERNEL = """
import torch
from workbench import device
from workbench.kernels import elementwise
launch = elementwise.launch(torch.arange(5), torch.ones(5, dtype=torch.int64))
for call in (launch.run, device.current, device.free_memory_bytes):
    try:
        print(call())
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


def test_without_a_gpu_kernels_are_interpreted() -> None:
    done = python(RUN_A_KERNEL)
    assert done.stdout.startswith("(tensor([1, 2, 3, 4, 5]),)\nDevice(kind='interpreter'"), done.stderr


def test_the_users_setting_to_compile_is_respected() -> None:
    """Kernels can be compiled for a GPU that is not present; running one says what is missing."""
    done = python(RUN_A_KERNEL, TRITON_INTERPRET="0")
    said = done.stdout.splitlines()
    assert len(said) == 3, done.stderr
    for line in said:
        assert line.startswith(
            "DeviceError TRITON_INTERPRET is set to compile kernels, but torch sees no GPU."
        )
        assert "Unset it" in line


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes", "y", "0", "False", "off", "no", "n", ""])
def test_the_users_setting_is_read_as_by_triton(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert device.is_interpreter() == triton.knobs.runtime.interpret
    assert device.unclear_wish() == ""


@pytest.mark.parametrize("value", ["garbage", "ture", "2", " 1", "enabled", "t"])
def test_an_unclear_setting_is_read_as_by_triton(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert not triton.knobs.runtime.interpret
    assert not device.is_interpreter()
    assert repr(value) in device.unclear_wish()
    assert device.unclear_wish().endswith("it compiles")


def test_an_unset_variable_gives_no_unclear_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert device.unclear_wish() == ""


@pytest.mark.parametrize(
    ("first", "environment", "have", "want"),
    [
        ("import triton.runtime.jit", {}, "compile", "interpret"),
        (
            "import os, triton; os.environ['TRITON_INTERPRET'] = '0'",
            {"TRITON_INTERPRET": "1"},
            "interpret",
            "compile",
        ),
    ],
    ids=["compiling", "interpreting"],
)
def test_triton_imported_first_in_the_other_mode_is_an_error(
    first: str, environment: dict[str, str], have: str, want: str
) -> None:
    """The error comes at every import, since a notebook's cell is run again."""
    code = f"""
{first}
for _ in range(2):
    try:
        import workbench
    except RuntimeError as error:
        print(type(error).__name__, error)
"""
    said = python(code, **environment).stdout.splitlines()
    assert len(said) == 2
    for line in said:
        assert line.startswith(
            f"DeviceError Triton was imported before workbench, set to {have} kernels, and this machine "
            f"needs it to {want} them. Restart Python"
        )


def test_triton_imported_first_in_the_same_mode_is_accepted() -> None:
    done = python(
        "import triton; from workbench import device; print(device.current().kind)", TRITON_INTERPRET="yes"
    )
    assert done.stdout == "interpreter\n", done.stderr


INTERPRETER = device.Device(
    kind="interpreter",
    name="Triton interpreter (CPU)",
    architecture="interpreter",
    compute_units=2,
    shared_memory_bytes=0,
    memory_bytes=2**33,
    l2_bytes=0,
    warp_size=1,
    driver="none",
)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Triton interpreter (CPU)", "triton-interpreter-cpu"),
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia-geforce-rtx-4090-laptop-gpu"),
        ("AMD Instinct MI300X/MI325X", "amd-instinct-mi300x-mi325x"),
        ("  odd -- name..\\:*?  ", "odd-name"),
    ],
)
def test_slug_of_a_device_name_is_a_valid_file_name(name: str, slug: str) -> None:
    assert replace(INTERPRETER, name=name).slug == slug


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownNameError, match="kind: 'rocm' is not known"):
        replace(INTERPRETER, kind="rocm")  # type: ignore[arg-type] # what a user might type


@pytest.mark.parametrize(
    ("kind", "is_gpu", "place"),
    [("cuda", True, "cuda"), ("hip", True, "cuda"), ("interpreter", False, "cpu")],  # ROCm's torch says cuda
)
def test_the_torch_device_follows_from_the_kind(kind: device.Kind, is_gpu: bool, place: str) -> None:
    here = replace(INTERPRETER, kind=kind)
    assert here.is_gpu is is_gpu
    assert here.torch_device == place


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU says")
def test_this_machine_is_described() -> None:
    here = device.current()
    assert here is device.current()
    assert (here.kind, here.architecture, here.warp_size, here.driver) == ("interpreter",) * 2 + (1, "none")
    assert here.compute_units == os.cpu_count()
    assert 0 < device.free_memory_bytes() < here.memory_bytes
    assert "CPU build" in device.gpu_absence() or "no usable GPU" in device.gpu_absence()


def test_the_interpreter_can_pretend_to_be_another_machine() -> None:
    here = device.planned()
    with device.pretend("sm_90") as hopper:
        assert device.planned() is hopper
        assert hopper == replace(H200, is_pretended=True)
        with device.pretend(RTX_4060) as ada:
            assert (ada.name, ada.compute_units, device.planned()) == (RTX_4060.name, 24, ada)
        with device.planning_for("gfx942") as cdna:
            assert device.planned() is cdna
            with device.planning_for(None) as what_runs:
                assert what_runs is hopper
        assert device.planned() is hopper
        assert device.current() is here
    assert device.planned() is here


def test_an_unknown_machine_cannot_be_pretended() -> None:
    with pytest.raises(UnknownNameError, match="sm_9O"), device.pretend("sm_9O"):
        pass
    with pytest.raises(ArgumentTypeError, match="machine"), device.pretend(90):  # type: ignore[arg-type]
        pass
    assert device.planned() is device.current()


def test_a_process_that_compiles_cannot_pretend() -> None:
    done = python("from workbench import device\nwith device.pretend('sm_90'): pass", TRITON_INTERPRET="0")
    assert "DeviceError" in done.stderr
    assert "TRITON_INTERPRET" in done.stderr


def test_operators_choose_for_the_pretended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pretended machine's own choice is run, and the two machines get different ones."""
    a, b, ways = torch.randn(64, 512).half(), torch.randn(512, 96).half(), []
    chosen = choosing.choose

    def choose(*args: object, **options: object) -> gemm.Configuration:
        ways.append(chosen(*args, **options))  # type: ignore[arg-type]
        return ways[-1]

    monkeypatch.setattr(choosing, "choose", choose)
    for machine in (H200, A100):
        with device.pretend(machine):
            torch.testing.assert_close(ops.mm(a, b).float(), a.float() @ b.float(), rtol=2e-3, atol=2e-2)
            assert ways[-1] == chosen(choosing.asked_of(a, b, a.new_empty(64, 96)))
    assert ways[0] != ways[1]


def test_rows_are_split_over_the_pretended_units() -> None:
    x = torch.randn(100, 20_000)
    grids = []
    for machine in (H200, RTX_4060):
        with device.pretend(machine):
            launch = softmax.launch("softmax", x, dim=1)
            grids.append([step.programs for step in launch.steps])
            torch.testing.assert_close(launch.run()[0], x.softmax(1))
    assert len(grids[0]) == 2  # one step splits, the other merges
    assert len(grids[1]) == 1


def test_the_next_candidate_is_interpreted_if_gluon_is_best() -> None:
    a, b, output = (torch.empty(2048, 2048, dtype=torch.float16, device="meta") for _ in range(3))
    with device.planning_for("sm_90"):
        assert choosing.chosen(a, b, output, "ieee").template == "ping-pong"
    with device.pretend("sm_90"):
        interpreted = choosing.chosen(a, b, output, "ieee")
        listed = operators.instances_for(a, b)
        with device.planning_for("sm_90"):
            assert choosing.chosen(a, b, output, "ieee").template == "ping-pong"
    assert interpreted.template in ("simple", "persistent", "stream-k")
    assert not any(each.keywords.get("template") == "ping-pong" for each in listed)


def test_fp32_products_have_the_precision_of_the_pretended_gpu() -> None:
    x = torch.ones(4, 4)
    switch = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]  # torch does not type it
    assert not device.on_gpu(x)
    assert precision_of(x, lambda: "tf32") == "ieee"
    with device.pretend(H200):
        assert device.on_gpu(x)
        assert precision_of(x, lambda: "tf32") == "tf32"
        assert precision_of(x, convolution_precision) == switch
        assert precision_of(x.double(), lambda: "tf32") == "ieee"
