"""The command line, through `main`: arguments, output and exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from workbench import device, suites
from workbench.__main__ import main
from workbench.bench import recording
from workbench.bench.timing import Mode


def run_without_gpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own that sees no GPU, whatever this machine has."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        env=os.environ | hidden,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_doctor_names_what_runs_kernels_and_finds_nothing_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert device.current().name in printed
    assert all(name in printed for name in ("torch", "triton", "numpy", "jupyterlab"))
    assert "BROKEN" not in printed


def test_doctor_exits_1_with_the_fix_when_kernels_cannot_run() -> None:
    # The user's own setting is what is broken: compile where there is no GPU.
    done = run_without_gpu("doctor", TRITON_INTERPRET="0")
    assert done.returncode == 1
    assert "Unset it to use the interpreter" in done.stdout
    assert "jupyterlab" in done.stdout  # versions help to find the cause
    assert "Traceback" not in done.stderr


def test_doctor_says_how_triton_reads_an_unclear_setting() -> None:
    done = run_without_gpu("doctor", TRITON_INTERPRET="garbage")
    assert done.returncode == 1
    assert "TRITON_INTERPRET is 'garbage', neither yes (1) nor no (0)" in done.stdout
    assert "it compiles kernels, but torch sees no GPU. Unset it" in done.stdout


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctr"])
    assert stopped.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_an_unknown_option_of_doctor_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--quick"])
    assert stopped.value.code == 2
    assert "--quick" in capsys.readouterr().err


def test_lab_names_the_nearest_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "02_roofline_"]) == 1
    assert "Did you mean '02_roofline'" in capsys.readouterr().err


def test_profile_verifies_instances_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "softmax", "--rows", "2", "--cols", "33", "--init", "integer"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("softmax: rows=2, cols=33, dim=-1, fp16, integer")
    assert "5 candidates of softmax on Triton interpreter (CPU): 5 verified" in printed
    assert "2x64_4_warps" in printed
    assert (
        "Nothing was timed: kernels run on Triton interpreter (CPU) here, and a time needs a GPU." in printed
    )


def test_profile_can_leave_out_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "clone", "--no-verify"]) == 0
    printed = capsys.readouterr().out
    assert "verified" not in printed
    assert "6 left" in printed


def test_profile_lists_operators_and_their_switches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("grouped_mm", "conv2d_backward_data", "unfold"))
    with pytest.raises(SystemExit) as stopped:
        main(["profile", "conv2d", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    switches = ("stride", "groups", "memory_format", "verify", "init", "dtype")
    assert all(f"--{name}" in printed for name in switches)
    assert "default: channels_last" in printed


@pytest.mark.parametrize("command", [["tune"], ["profile", "matmul"]], ids=" ".join)
def test_help_of_tune_and_profile_lists_every_mode_of_timing(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert f"{{{','.join(get_args(Mode))}}}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matmull"], "Did you mean 'matmul'"),
        (["--m", "8", "matmul"], "operator: got '8'. Name it first"),
        (["matmul", "--m", "0"], "--m: got 0. Give a whole number of 1 or more."),
        (["matmul", "--dtype", "fp4"], "--dtype: matmul is not made for 'fp4'. Give one of fp16, bf16,"),
        (["matmul", "--layout", "nx"], "--layout: got 'nx'. Give one of nn, nt, tn, tt."),
        (["add", "--shape", "3,-4"], "--shape: got [3, -4]. Give a list of whole numbers of 0 or more."),
        (["add", "--alpha", "nan"], "--alpha: got nan. Give a finite number."),
        (["permute_copy", "--dims", "0,1,1"], "--dims: got [0, 1, 1]. Give every dimension of the shape"),
        (["group_norm", "--memory_format", "nhwc"], "--memory_format: got 'nhwc'. Give one of contiguous, "),
        (["add", "--init", "ones"], "--init: 'ones' is not known"),
        (
            ["conv2d", "--groups", "3"],
            "--groups: got 3 for 4 and 8 channels. Give a number that divides both.",
        ),
        (["conv2d", "--r", "9"], "--r: got 9 taps for 8 pixels, padding included. Give fewer taps"),
        (
            ["scaled_dot_product_attention", "--h_kv", "3"],
            "--h_kv: got 3 for 2 heads. Give a number that divides 2.",
        ),
        (["unfold", "--window", "30"], "no window fits into [5, 6]."),
        (["add", "--target", "sm_1"], "target: 'sm_1' is not known"),
    ],
)
def test_profile_names_the_wrong_argument(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("switch", [["--m", "many"], ["--q", "3"], ["--layout"], ["--m", "3,4"]])
def test_profile_names_a_switch_that_it_cannot_read(
    switch: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["profile", "matmul", *switch])
    assert stopped.value.code == 2
    assert switch[0] in capsys.readouterr().err


def test_profile_reads_lengths_flags_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "1,2,3,5", "--memory_format", "channels_last", "--groups", "2"]
    assert main(["profile", "group_norm", *shape]) == 0
    assert "shape=1,2,3,5, memory_format=channels_last, groups=2, fp16" in capsys.readouterr().out
    assert main(["profile", "attention", "--causal", "1", "--n_q", "17", "--no-verify"]) == 0
    assert "causal=1" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["profile", "attention", "--causal", "yes"])
    assert "--causal" in capsys.readouterr().err


def test_operators_are_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--output", str(tmp_path / "operators.md")]) == 0
    assert capsys.readouterr().out == ""
    assert "| `softmax` | exp(x) / sum" in (tmp_path / "operators.md").read_text()
    assert main(["operators", "--output", str(tmp_path)]) == 1
    assert "--output" in capsys.readouterr().err


def test_record_refuses_interpreter_time(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    done = run_without_gpu("record", "elementwise", "--output", str(path))
    assert done.returncode == 1
    assert "interpreter" in done.stderr
    assert not path.exists()


def test_record_names_the_nearest_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "elementwis", "--interpreter"]) == 1
    assert "elementwise" in capsys.readouterr().err


def test_record_measures_only_the_given_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    assert main(["record", "reduction", "--interpreter", "--dtype", "fp8", "--output", str(path)]) == 1
    assert "dtype: 'fp8' is not known" in capsys.readouterr().err
    done = run_without_gpu("record", "reduction", "--interpreter", "--dtype", "fp16", "--output", str(path))
    assert "; 6 cases: CUDA graphs need a GPU" in done.stderr
    assert not path.exists()


def test_record_says_why_nothing_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    done = run_without_gpu("record", "reduction", "--interpreter", "--output", str(path))
    assert done.returncode == 1
    assert "Nothing of the suite 'reduction' can be measured" in done.stderr
    assert "22 cases: CUDA graphs need a GPU" in done.stderr
    assert not path.exists()


def test_record_labels_interpreter_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    assert main(["record", "elementwise", "--interpreter", "--output", str(path)]) == 0
    lines = recording.load(path)
    assert lines
    if not device.current().is_gpu:
        assert {line.mode for line in lines} == {"interpreter"}
        assert "not measured:" in capsys.readouterr().out  # sizes that the interpreter cannot run are named


def test_tune_without_a_gpu_lists_the_candidates_left(tmp_path: Path) -> None:
    done = run_without_gpu("tune", "16", "16", "128", "--target", "sm_80", WORKBENCH_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading.split()[:3] == ["tile", "num_warps", "num_stages"]
    assert {"registers", "shared", "blocks"} <= set(heading.split())
    assert "candidates for sm_80" in done.stdout
    assert not any("pruned" in row for row in rows[:-2])  # pruned candidates are only counted
    assert "Nothing was timed: kernels run on Triton interpreter (CPU) here." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_tune_times_the_interpreter_when_asked(tmp_path: Path) -> None:
    asked = (
        "tune",
        "16",
        "16",
        "32",
        "--layout",
        "nt",
        "--dtype",
        "fp32",
        "--interpreter",
        "--target",
        "sm_80",
    )
    done = run_without_gpu(*asked, WORKBENCH_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "won" in done.stdout
    assert "interpreter, no measurement" in done.stdout
    assert f"Kept in {tmp_path}" in done.stdout
    again = run_without_gpu(*asked, WORKBENCH_HOME=str(tmp_path))
    assert "kept: nothing was timed" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0", "16", "16"), "m: got 0"),
        (("16", "16", "16", "--dtype", "fp1"), "dtype: 'fp1'"),
        (("16", "16", "16", "--layout", "mn"), "layout: 'mn'"),
        (("16", "16", "16", "--target", "sm_9"), "sm_90"),
    ],
)
def test_tune_names_the_wrong_argument(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_roofline_draws_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "roofline.png"
    assert main(["roofline", "--recorded", "--output", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "recorded" in capsys.readouterr().out


def test_roofline_live_needs_a_gpu(tmp_path: Path) -> None:
    done = run_without_gpu("roofline", "--live", "--output", str(tmp_path / "roofline.png"))
    assert done.returncode == 1
    assert "--live" in done.stderr


def test_progress_with_reset_shows_that_nothing_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["progress", "--reset"]) == 0
    printed = capsys.readouterr().out
    assert "00-1" in printed
    assert "0 of" in printed


@pytest.mark.parametrize("name", ["roofline.pdf", "roofline.svg", "roofline", "png"])
def test_roofline_refuses_other_formats_than_png(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert main(["roofline", "--recorded", "--output", str(path)]) == 1
    assert f"--output: {path}. A PNG is written: name a file that ends in .png." in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("name", ["missing/roofline.png", "."])
def test_roofline_names_a_file_that_cannot_be_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", "--recorded", "--output", str(tmp_path / name)]) == 1
    assert "--output" in capsys.readouterr().err


def test_an_interrupted_command_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(suites, "record", interrupt)
    assert main(["record", "elementwise", "--interpreter"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_access_prints_the_triton_of_a_convolution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "--stride", "2", "--contiguous"]) == 0
    text = capsys.readouterr().out
    assert text.count("@triton.jit") == 3
    assert "x_out * 2 + (x_tap - 1)" in text
    assert main(["access", "--weight", "64", "64", "1", "1", "--padding", "0"]) == 0
    assert "strides, and nothing else: 64, 1" in capsys.readouterr().out
    assert main(["access", "--kind", "backward_data", "--stride", "2"]) == 0
    assert capsys.readouterr().out.count("A of product") == 4


def test_access_prints_a_descriptor_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from workbench.coords import packed, transform\n"
        "from workbench.coords.transforms import merge\n"
        "rows = transform(packed((4, 6)), [merge((4, 6))], [(0, 1)], [(0,)], names=('i',))\n"
        "number = 3\n"
    )
    assert main(["access", "--file", f"{file}:rows"]) == 0
    text = capsys.readouterr().out
    assert "offset = i" in text
    assert "valid = (i < 24)" in text
    for name, words in (("number", "is a int"), ("row", "Did you mean 'rows'"), ("", "rows")):
        assert main(["access", "--file", f"{file}:{name}"]) == 1
        assert words in capsys.readouterr().err
    for given in (str(file), ":rows", "rows"):
        assert main(["access", "--file", given]) == 1
        assert "Give FILE.py:NAME, such as mine.py:rows" in capsys.readouterr().err
    assert main(["access", "--file", f"{tmp_path}:rows"]) == 1
    assert "is a folder" in capsys.readouterr().err
    assert main(["access", "--file", "nowhere.py:rows"]) == 1
    assert "nowhere.py" in capsys.readouterr().err


def test_access_refuses_arguments_that_make_no_convolution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "--weight", "64", "32", "3", "3"]) == 1
    assert "weight" in capsys.readouterr().err
    assert main(["access", "--input", "2", "64", "0", "56"]) == 1
    assert "--input" in capsys.readouterr().err
