"""Recordings are read back as written; errors name file, line and field."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.example import FIELDS, copy_line, line
from workbench import measured
from workbench.bench import recording
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotMeasurableError,
    RecordingError,
    UnknownNameError,
)
from workbench.operators.registry import specs
from workbench.operators.spec import OperatorSpec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some-gpu.jsonl"


def write(path: Path, *records: object) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_lines_are_read_back_as_they_were_written(path: Path) -> None:
    lines = [line(), copy_line(), line(flops=None, bytes=None, config={}), line(device="Größe ™")]
    recording.append(path, lines[:1])
    recording.append(path, lines[1:])
    assert recording.load(path) == lines


@given(
    st.floats(min_value=1e-6, max_value=1e6),
    st.integers(min_value=0, max_value=2**60),
    st.lists(st.integers(0, 2**40), max_size=4),
)
def test_any_numbers_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, median: float, flops: int, shape: list[int]
) -> None:
    path = tmp_path_factory.mktemp("recording") / "gpu.jsonl"
    written = copy_line(median_ms=median, flops=flops, bytes=flops, case={"shape": shape})
    recording.append(path, [written])
    assert recording.load(path) == [written]


def test_the_example_has_every_field_in_order() -> None:
    assert list(recording.FIELDS) == list(FIELDS)


WRONG: dict[str, list[Any]] = {
    "run": ["", " ", "a\nb", 1, None, "\ud800"],
    "device": ["", None, ["NVIDIA H200"]],
    "driver": ["", 580.1],
    "torch": ["", 2.11],
    "triton": ["", {}],
    "commit": ["", False],
    "when": [
        "", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00:00+00:00",
        "2026-13-31T12:00:00+00:00", "20260131T120000Z", "2026-01-31T12:00:00.123456+00:00", 1738324800, None,
    ],
    "op": ["", "mat mul", "torch.mm", None],
    "case": [
        {}, None, [4096], {"": 1}, {"the rows": 1},
        {"m": 0, "n": 1, "k": 1, "layout": "nn"}, {"m": math.inf, "n": 1, "k": 1, "layout": "nn"},
        {"m": {}, "n": 1, "k": 1, "layout": "nn"}, {"m": 1, "n": 1, "k": 1, "layout": "xy"},
        {"shape": 4096}, {"shape": [1.5]}, {"shape": [True]}, {"shape": [1], "alpha": "2"},
        {"shape": [1], "alpha": math.nan}, {"rows": 1, "cols": None, "dim": -1},
        {"rows": 1, "cols": 1, "dim": [0, 1]}, {"shape": [1], "dims": 0}, {"shape": [1], "shift": [1]},
        {"shape": [1], "pad": -1}, {"shape": [1], "pad": [0, None]}, {"shape": [1], "window": 0},
        {"shape": [1], "stride": [1, 0.5]}, {"shape": [1], "memory_format": "nhwc"},
        {"b": 1, "h": 1, "h_kv": 1, "n_q": 1, "n_k": 1, "d": 1, "causal": 1},
    ],
    "dtype": ["", "float16", "half", None, ["fp16"]],
    "provider": ["", None],
    "mode": ["", "wall_clock", None],
    "data": ["", None],
    "config": [None, [], "", {"kernels": [math.nan]}, {"launch_us": math.inf}, {"launch_us": -5.0}, {"": 1}],
    "median_ms": [0, -0.2, math.nan, math.inf, "0.2", None, True, 0.22, 0.18],  # last: beyond p20, p80
    "p20_ms": [0, math.nan, None, "0.19", 0.205],
    "p80_ms": [0, math.inf, None, "0.21", 0.195],
    "flops": [-1, 1.5, "1", True, math.nan],
    "bytes": [-1, 1.5, "1", True, math.nan],
}  # fmt: skip


def test_every_field_has_examples_of_wrong_values() -> None:
    assert set(WRONG) == set(recording.FIELDS)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in WRONG for value in WRONG[field]])
def test_a_wrong_value_is_refused_by_name(path: Path, field: str, value: object) -> None:
    write(path, FIELDS, {**FIELDS, field: value}, FIELDS)
    with pytest.raises(RecordingError) as caught:
        recording.load(path)
    out_of_order = field in ("p20_ms", "p80_ms") and isinstance(value, float) and 0 < value < 1
    assert caught.value.field == ("median_ms" if out_of_order else field)
    assert (caught.value.file, caught.value.line) == (path, 2)
    assert all(word in str(caught.value) for word in (str(path), "line 2"))
    with pytest.raises(InvalidArgumentError, match="median_ms" if out_of_order else field):
        line(**{"p20_ms": 0.19, "p80_ms": 0.21, field: value})  # such a line cannot be made either


@pytest.mark.parametrize("field", recording.FIELDS)
def test_a_missing_field_is_refused_by_name(path: Path, field: str) -> None:
    write(path, {name: value for name, value in FIELDS.items() if name != field})
    with pytest.raises(RecordingError, match="missing") as caught:
        recording.load(path)
    assert (caught.value.line, caught.value.field) == (1, field)


def test_an_unknown_field_is_refused_by_name(path: Path) -> None:
    write(path, {**FIELDS, "mean_ms": 0.2})
    with pytest.raises(RecordingError, match="not a field") as caught:
        recording.load(path)
    assert caught.value.field == "mean_ms"


GOOD = json.dumps(FIELDS)


@pytest.mark.parametrize(
    ("content", "number", "said"),
    [
        (GOOD[: len(GOOD) // 2] + "\n", 1, "not JSON"),  # half a line, then other lines
        (f"{GOOD}\n{GOOD[:40]}", 2, "cut off"),  # a crash while the last line was written
        (f"{GOOD}\n{GOOD}", 2, "cut off"),  # a crash just before the line break
        (f"{GOOD}\n\n{GOOD}\n", 2, "not JSON"),  # an empty line
        (f"{GOOD}{GOOD}\n", 1, "not JSON"),  # two objects
        ("[1]\n", 1, "got"),
        ("null\n", 1, "got"),
        ("{'run': 1}\n", 1, "not JSON"),
        ("[" * 100_000 + "\n", 1, "not JSON"),  # deeper than Python's stack
        (f'{{"flops": {"9" * 5000}}}\n', 1, "not JSON"),  # longer than Python reads
        ("\ufeff" + GOOD + "\n", 1, "not JSON"),  # a byte order mark
    ],
)
def test_broken_json_is_refused(path: Path, content: str, number: int, said: str) -> None:
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecordingError, match=said) as caught:
        recording.load(path)
    assert (caught.value.line, caught.value.field) == (number, "line")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_refused(path: Path, encoding: str) -> None:
    path.write_bytes((json.dumps({**FIELDS, "device": "Größe"}, ensure_ascii=False) + "\n").encode(encoding))
    with pytest.raises(RecordingError, match=r"UTF-8|cut off"):
        recording.load(path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (GOOD[:-1] + ', "run": "other"}', "run"),
        (GOOD.replace('"m": 4096', '"m": 4096, "m": 1'), "m"),  # inside the case
    ],
)
def test_a_key_given_twice_is_refused(path: Path, text: str, field: str) -> None:
    path.write_text(text + "\n")
    with pytest.raises(RecordingError, match="given twice") as caught:
        recording.load(path)
    assert caught.value.field == field


def test_a_number_beyond_the_range_of_floats_is_refused(path: Path) -> None:
    path.write_text(GOOD.replace('"p80_ms": 0.21', '"p80_ms": 1e999') + "\n")
    with pytest.raises(RecordingError) as caught:
        recording.load(path)
    assert caught.value.field == "p80_ms"


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"some-gpu\.jsonl cannot be read: No such file"):
        recording.load(path)


def test_append_refuses_a_file_whose_last_line_is_cut_off(path: Path) -> None:
    path.write_text(f"{GOOD}\n{GOOD[:40]}")
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="cut off") as caught:
        recording.append(path, [line()])
    assert caught.value.line == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("last", ["", "{}", "half a line", GOOD[:40], GOOD.replace("fp16", "fp61")])
def test_nothing_is_added_behind_a_line_that_does_not_fit(path: Path, last: str) -> None:
    path.write_text(f"{GOOD}\n{last}\n")
    before = path.read_bytes()
    with pytest.raises(RecordingError) as caught:
        recording.append(path, [line()])
    assert (caught.value.file, caught.value.line) == (path, 2)
    assert path.read_bytes() == before


@pytest.mark.parametrize("lines", [None, 3, "run", [3], [None], [FIELDS], line()])
def test_lines_of_a_wrong_type_are_refused(path: Path, lines: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: recording.append(path, lines),
        lambda: recording.select(lines),
        lambda: recording.latest_run(lines),
        lambda: recording.ratio(lines, "torch", "torch"),
        lambda: recording.points(lines),
        lambda: recording.table(lines),
    ]
    for call in calls:
        with pytest.raises(ArgumentTypeError, match=r"lines(\[0\])?: got .* Give Lines"):
            call()
    assert not path.exists()


def test_a_line_that_was_spoiled_after_it_was_made_is_not_written(path: Path) -> None:
    spoiled = line(case={"m": 1, "n": 1, "k": 1, "layout": "nn"})
    spoiled.case["m"] = 0
    with pytest.raises(InvalidArgumentError, match=r"lines\[1\]\.case: got m 0"):
        recording.append(path, [line(), spoiled])
    assert not path.exists()


def test_a_full_disk_leaves_the_file_as_it_was(path: Path) -> None:
    recording.append(path, [line()])
    before = path.read_bytes()
    script = """
import resource, sys
from tests.bench.example import line
from workbench.bench import recording
from workbench.errors import InvalidArgumentError
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    recording.append(sys.argv[1], [line(), line()])
except InvalidArgumentError as error:
    print(error)
"""
    limit = str(len(before) + 100)  # in the middle of the first new line
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path), limit],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written: the disk is full" in ran.stdout
    assert path.read_bytes() == before


def test_several_writers_do_not_mix_lines(path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda run: recording.append(path, [line(run=str(run))] * 3), range(40)))
    runs = [read.run for read in recording.load(path)]
    assert sorted(runs) == sorted(3 * list(map(str, range(40))))
    assert all(runs[i] == runs[i + 1] == runs[i + 2] for i in range(0, 120, 3))


def test_a_path_that_takes_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below.jsonl"):
        with pytest.raises(InvalidArgumentError, match="cannot be written"):
            recording.append(path, [line()])


def test_missing_folders_are_made(tmp_path: Path) -> None:
    recording.append(tmp_path / "a" / "b.jsonl", [line()])
    assert recording.load(tmp_path / "a" / "b.jsonl") == [line()]


def test_select_finds_lines_by_any_field() -> None:
    one, other = line(), copy_line(run="another", device="AMD Instinct MI300X")
    lines = [one, other]
    assert recording.select(lines) == lines
    assert recording.select(lines, op="clone") == [other]
    assert recording.select(lines, device="NVIDIA H200") == [one]
    assert recording.select(lines, dtype="fp16", provider="cuBLAS", mode="events") == [one]
    assert recording.select(lines, run="another") == [other]
    assert recording.select(lines, case={"m": 4096}) == [one]  # the case may have other keys
    assert recording.select(lines, case={"shape": (2**28,)}) == [other]  # a tuple equals a list
    assert recording.select(lines, case={"m": 4096, "shape": [2**28]}) == []
    with pytest.raises(UnknownNameError, match=r"Did you mean .*'fp16'"):
        recording.select(lines, dtype="fp61")
    with pytest.raises(UnknownNameError, match="cuda_graph"):
        recording.select(lines, mode="graph")


def test_select_names_the_nearest_device_and_operator() -> None:
    lines = [line(), copy_line(device="AMD Instinct MI300X")]
    with pytest.raises(UnknownNameError, match=r"device: 'NVIDIA H20'.*Did you mean 'NVIDIA H200'"):
        recording.select(lines, device="NVIDIA H20")
    with pytest.raises(UnknownNameError, match=r"op: 'matmull'.*Did you mean 'matmul'.*Known: clone, matmul"):
        recording.select(lines, op="matmull")
    with pytest.raises(UnknownNameError, match=r"key of case: 'M'"):
        recording.select(lines, case={"M": 4096})
    with pytest.raises(UnknownNameError, match=r"key of case: 'rows'.*Known: k, layout, m, n, shape"):
        recording.select(lines, case={"rows": 4096})  # a key that other lines might have


def test_select_returns_no_lines_for_possible_values_that_no_line_has() -> None:
    lines = [line(), copy_line(device="AMD Instinct MI300X")]
    assert (
        recording.select(lines, device="AMD Instinct MI300X", op="matmul") == []
    )  # both occur, but not together
    assert recording.select(lines, op="matmul", case={"m": 512}) == []
    assert recording.select(lines, provider="rocBLAS") == []
    assert recording.select(lines, run="another") == []
    assert recording.select([], device="any", op="any", case={"any": 1}) == []  # no lines


@pytest.mark.parametrize("name", ["device", "op", "dtype", "provider", "mode", "case", "run"])
@pytest.mark.parametrize("wrong", [3, ["x"], math.nan])
def test_select_refuses_values_of_a_wrong_type(name: str, wrong: object) -> None:
    with pytest.raises((ArgumentTypeError, UnknownNameError), match=name):
        recording.select([line()], **{name: wrong})  # type: ignore[arg-type] # on purpose


def test_latest_run_is_by_time_not_by_place_or_id() -> None:
    early = line(run="z", when="2026-01-31T23:30:00+00:00")
    late = [
        line(run="a", when="2026-02-01T00:10:00+01:00"),  # earlier than `early`, but its run ended later
        line(run="a", when="2026-01-31T23:40:00+00:00"),
    ]
    assert recording.latest_run([*late, early]) == late
    assert recording.latest_run([]) == []
    same_second = [line(run="a"), line(run="b")]
    assert recording.latest_run(same_second) == same_second[1:]


def test_latest_run_of_an_operator_passes_over_runs_without_it() -> None:
    product = line(run="older", when="2025-01-01T00:00:00+00:00")
    later = copy_line(run="newer")
    assert recording.latest_run([product, later]) == [later]
    assert recording.latest_run([product, later], op="matmul") == [product]
    with pytest.raises(UnknownNameError, match="op: 'softmax'"):
        recording.latest_run([product, later], op="softmax")


def test_ratio_is_the_speed_of_the_first_provider_relative_to_the_second() -> None:
    lines = [line(median_ms=0.2), line(provider="workbench", median_ms=0.16), line(provider="torch")]
    assert recording.ratio(lines, "workbench", "cuBLAS") == pytest.approx(1.25)
    assert recording.ratio(lines, "cuBLAS", "workbench") == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": "another"}, "2 runs"),
        ({"case": {"m": 1, "n": 1, "k": 1, "layout": "nn"}}, "2 problems"),
        ({"dtype": "bf16"}, "2 problems"),
        ({"data": "integer"}, "2 problems"),
        ({"mode": "cuda_graph"}, "2 modes"),
    ],
)
def test_ratio_refuses_lines_that_cannot_be_compared(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        recording.ratio([line(), line(provider="workbench", **change)], "workbench", "cuBLAS")


def test_ratio_refuses_missing_and_repeated_lines() -> None:
    with pytest.raises(UnknownNameError, match="provider: 'rocBLAS'"):
        recording.ratio([line()], "cuBLAS", "rocBLAS")
    with pytest.raises(InvalidArgumentError, match="several lines of one provider"):
        recording.ratio([line(), line()], "cuBLAS", "cuBLAS")


def test_ratio_refuses_the_interpreters_time() -> None:
    lines = [line(mode="interpreter"), line(mode="interpreter", provider="workbench")]
    with pytest.raises(NotMeasurableError, match=r'lines: their mode is "interpreter".*measured on a GPU'):
        recording.ratio(lines, "workbench", "cuBLAS")


def test_points_are_the_lines_with_known_work_that_comes_from_memory() -> None:
    lines = [
        line(),
        copy_line(),  # a bandwidth without FLOPs
        line(flops=None, bytes=None),
        line(mode="cuda_graph", bytes=2**28 - 1),  # warm caches
        line(mode="interpreter"),
        copy_line(bytes=0, case={"shape": [0]}),
    ]
    product, copied = recording.points(lines)
    assert (product.label, product.provider, product.op, product.dtype) == (
        "4096^3",
        "cuBLAS",
        "matmul",
        "fp16",
    )
    assert product.rate == pytest.approx(2 * 4096**3 / 0.2e-3)
    assert (product.device, product.when, product.recorded) == ("NVIDIA H200", "2026-01-31", True)
    assert copied.bandwidth == pytest.approx(4.25e12)
    assert not recording.points(lines, recorded=False)[0].recorded
    assert len(recording.points([line(mode="cuda_graph", bytes=2**28)])) == 1  # no cache holds as much


def test_rates_follow_from_work_and_time() -> None:
    assert line().tflops == pytest.approx(2 * 4096**3 / 0.2e-3 / 1e12)
    assert copy_line().gb_per_s == pytest.approx(4250)
    assert line(flops=None).tflops is None
    assert line(bytes=None).gb_per_s is None


@pytest.mark.parametrize(
    ("case", "short"),
    [
        ({"m": 512, "n": 512, "k": 512, "layout": "nn"}, "512^3"),
        ({"m": 512, "n": 512, "k": 512, "layout": "tn"}, "512^3, tn"),
        ({"m": 16, "n": 4096, "k": 512, "layout": "nn"}, "16 x 4096 x 512"),
        ({"m": 16, "n": 4096, "k": 512, "layout": "nt"}, "16 x 4096 x 512, nt"),
        ({"m": 8, "n": 8, "k": 8, "layout": "nn", "batch": 3}, "3 x 8^3"),
        ({"m": 8, "n": 8, "k": 8, "layout": "tt", "batch": 3}, "3 x 8^3, tt"),
        ({"rows": 4096, "cols": 768, "dim": -1}, "4096 x 768"),
        ({"rows": 4096, "cols": 768, "dim": 0}, "4096 x 768, dim 0"),
        ({"rows": 4096, "cols": 768}, "4096 x 768"),
        ({"shape": [2**28]}, "2^28"),
        ({"shape": [1]}, "2^0"),
        ({"shape": [1000]}, "1000"),
        ({"shape": [64, 32]}, "64 x 32"),
        ({"shape": []}, "one element"),
        ({"shape": [4096], "alpha": 2}, "2^12, alpha 2"),
        ({"shape": [64, 32], "dims": [1], "shift": -3}, "64 x 32, dims [1], shift -3"),
        ({"shape": [1, 2, 8, 8], "pad": 1, "window": 3}, "1 x 2 x 8 x 8, pad 1, window 3"),
        (
            {"shape": [1, 2, 8, 8], "groups": 2, "memory_format": "channels_last"},
            "1 x 2 x 8 x 8, groups 2, channels_last",
        ),
        (
            {"b": 1, "h": 16, "h_kv": 16, "n_q": 64, "n_k": 64, "d": 32, "causal": True},
            "b 1, h 16, h_kv 16, n_q 64, n_k 64, d 32, causal True",
        ),
    ],
)
def test_a_case_has_a_short_text(case: dict[str, Any], short: str) -> None:
    assert line(case=case).problem == short


_WHOLE = st.integers(-2, 2)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "layout": st.sampled_from(recording.LAYOUTS),
    "causal": st.booleans(),
    "shape": st.lists(st.integers(0, 8), max_size=3),
    "alpha": _WHOLE | st.floats(allow_nan=False, allow_infinity=False),
    "dims": st.lists(_WHOLE, max_size=3),
    "dim": _WHOLE,
    "shift": _WHOLE,
    "memory_format": st.sampled_from(recording.MEMORY_FORMATS),
    "pad": st.integers(0, 2),
}
SPECS = {**specs(), **measured.SPECS}


def cases_of(spec: OperatorSpec) -> st.SearchStrategy[dict[str, Any]]:
    """Draw cases whose few lengths occur often, in different places."""
    values = {key: _VALUES.get(key, st.integers(1, 3)) for key in spec.case}
    return st.fixed_dictionaries(
        {key: values[key] for key in sorted(values.keys() - spec.optional)},
        optional={key: values[key] for key in sorted(spec.optional)},
    )


# One operator for each set of keys.
@pytest.mark.parametrize("op", {(*spec.case, spec.optional): name for name, spec in SPECS.items()}.values())
@given(data=st.data())
def test_different_cases_have_different_short_texts(op: str, data: st.DataObject) -> None:
    named: dict[str, dict[str, Any]] = {}
    for case in data.draw(st.lists(cases_of(SPECS[op]), min_size=2, max_size=40)):
        whole = SPECS[op].completed(case)
        assert named.setdefault(recording.in_short(case), whole) == whole


def test_a_table_is_aligned_text() -> None:
    text = recording.table([line(), copy_line()])
    head, product, copied, source = text.splitlines()
    assert head.split()[:5] == ["op", "problem", "dtype", "provider", "ms"]
    assert product.split() == [
        "matmul",
        "4096^3",
        "fp16",
        "cuBLAS",
        "0.2",
        "0.19",
        "to",
        "0.21",
        "687",
        "503",
        "events",
    ]
    assert copied.index("clone") == head.index("op")
    assert copied.index("torch") == head.index("provider")  # aligned
    assert source == "NVIDIA H200, 2026-01-31, commit 0123456789ab"


def test_a_table_as_markdown_or_html_escapes_its_texts() -> None:
    odd = line(provider="a|b<c>")
    assert "a\\|b<c>" in recording.table([odd], "markdown")
    assert recording.table([odd], "markdown").splitlines()[1] == "| " + " | ".join(["---"] * 9) + " |"
    page = recording.table([odd], "html")
    assert "a|b&lt;c&gt;" in page
    assert "<caption>NVIDIA H200, 2026-01-31, commit 0123456789ab</caption>" in page


def test_a_table_may_have_chosen_columns() -> None:
    text = recording.table([line()], columns=("provider", "kernels", "launch us"))
    assert text.splitlines()[1].split() == ["cuBLAS", "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT"]


def test_a_table_marks_times_of_the_interpreter() -> None:
    assert "interpreter, no measurement" in recording.table([line(mode="interpreter")])
    assert "no lines" in recording.table([])


def test_a_table_refuses_an_unknown_style_and_wrong_columns() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'provider'"):
        recording.table([], columns=("providers",))
    with pytest.raises(UnknownNameError, match="markdown"):
        recording.table([], "latex")  # type: ignore[arg-type] # what a user might type
    with pytest.raises(ArgumentTypeError, match="columns: got 'op'"):
        recording.table([], columns="op")
    with pytest.raises(InvalidArgumentError, match="columns: got none"):
        recording.table([], columns=[])


@pytest.mark.parametrize("case", [None, 3, "4096^3", [4096]])
def test_a_case_that_is_not_a_mapping_is_refused(case: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="case"):
        recording.in_short(case)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({}, r"case: got \{\}"),
        ({"m": 4, "n": 0}, r"case: got n 0\. Give a whole number of 1 or more"),
        ({"layout": "n"}, r"case: got layout 'n'\. Give one of nn, nt, tn, tt"),
        ({"shape": 4}, r"case: got shape 4\. Give a list"),
        ({"shape": (4,)}, r"case: got shape \(4,\)\. Give a list"),
        ({3: 4}, "case: got the key 3"),
    ],
)
def test_a_case_with_wrong_keys_or_values_is_refused(case: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        recording.check_case(case)
    with pytest.raises(InvalidArgumentError, match=said):
        recording.in_short(case)


def test_any_key_may_be_a_length() -> None:
    """Keys that no operator of the package has are taken, with values of any kind that a case may have."""
    recording.check_case({"l": 1, "experts": 8, "window": 3, "pad": 0, "causal": False})
    recording.check_case({"eps": 1e-5, "gated": True, "by": "rows", "heads": [1, 2]})
    several: tuple[Any, ...] = (math.nan, None, {}, -1, [1.5], "")
    for wrong in several:
        with pytest.raises(InvalidArgumentError, match="case: got experts"):
            recording.check_case({"experts": wrong})
    assert line(case={"experts": 8, "top": 2}).problem == "experts 8, top 2"


def test_a_wrong_value_of_a_key_is_named_as_the_caller_calls_it() -> None:
    recording.check_value("--pad", "pad", 0)
    with pytest.raises(InvalidArgumentError, match=r"^--pad: got -1\. Give a whole number of 0 or more"):
        recording.check_value("--pad", "pad", -1)
    with pytest.raises(InvalidArgumentError, match=r"^--m: got 0\. Give a whole number of 1 or more"):
        recording.check_value("--m", "m", 0)


@pytest.mark.parametrize("recorded", [None, 1, "no"])
def test_points_refuse_a_recorded_flag_that_is_not_a_bool(recorded: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="recorded"):
        recording.points([], recorded=recorded)


@pytest.mark.parametrize("name", [None, 3, ["nvidia-h200"]])
def test_a_device_name_of_a_wrong_type_is_refused(name: Any) -> None:
    with pytest.raises(UnknownNameError, match="recording"):
        recording.shipped(name)


def test_shipped_recordings_fit_the_format() -> None:
    slugs = [path.stem for path in recording.recordings_folder().glob("*.jsonl")]
    for slug in slugs:
        lines = recording.shipped(slug)
        # A recording in the interpreter stays on the machine: git ignores the file.
        assert ({read.mode for read in lines} == {"interpreter"}) == (slug == "triton-interpreter-cpu")
    assert len(recording.load_all()) == sum(len(recording.shipped(slug)) for slug in slugs)


def test_a_device_without_a_recording_is_named() -> None:
    with pytest.raises(UnknownNameError, match="recording: 'nvidia-h2oo'"):
        recording.shipped("nvidia-h2oo")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flops", 10**400),  # no rate could be computed
        ("median_ms", 10**400),
        ("case", {"shape": [-4]}),
        ("case", {"shape": [10**400]}),
        ("case", {"shape": [4], "alpha": 10**400}),
        ("case", {"m": [4, 4.5], "n": 4, "k": 4, "layout": "nn"}),
        ("case", {"m": 0, "n": 4, "k": 4, "layout": "nn"}),
        ("config", {"kernels": None}),
        ("config", {"kernels": "binary_kernel"}),
        ("config", {"launch_us": "5"}),
    ],
)
def test_numbers_out_of_range_and_malformed_cases_and_configs_are_refused(
    path: Path, name: str, value: object
) -> None:
    write(path, {**FIELDS, name: value, **({"p80_ms": value} if name == "median_ms" else {})})
    with pytest.raises(RecordingError, match=f"line 1, field '{name}'"):
        recording.load(path)


@pytest.mark.parametrize("wrong", [None, 3, ["a.jsonl"], "a\0b"])
def test_a_path_of_a_wrong_type_is_refused(wrong: Any) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match="path"):
        recording.load(wrong)
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match="path"):
        recording.append(wrong, [])
