"""The command line: `python -m workbench doctor | lab | record | tune | profile | roofline | ...`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from workbench import device
from workbench.errors import (
    DeviceError,
    InvalidArgumentError,
    NotMeasurableError,
    UnknownNameError,
    WorkbenchError,
    check_positive,
)

# The target that candidates are compiled for without a GPU: the device of the shipped recordings.
RECORDED_TARGET = "sm_90"

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

LAB_PACKAGES = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    It is 0 on success, 1 if the command fails, 130 after Ctrl-C; `lab` returns JupyterLab's. argparse itself
    exits with 2 if it does not know an argument.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    if command in (lab, profile):
        options.rest = rest  # unknown options belong to JupyterLab or the operator
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return command(options)
    except WorkbenchError as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130  # a shell's status for an interrupt


def doctor(options: argparse.Namespace) -> int:
    """Print what runs kernels here, versions and what is missing; return 1 if something is broken, else 0."""
    try:
        here = device.current()
    except DeviceError as error:
        _print_versions()
        print(f"\nBROKEN  {error}")
        return 1
    memory = f"{here.memory_bytes / 2**30:.0f} GiB, {device.free_memory_bytes() / 2**30:.0f} GiB free"
    print(f"kernels run on    {here.name}" + (f" ({here.architecture})" if here.is_gpu else ""))
    if here.is_gpu:
        shared = here.shared_memory_bytes // 1024
        print(f"compute units     {here.compute_units}, {shared} KiB of shared memory each")
        print(f"driver            {here.driver}")
    else:
        print(f"                  no GPU in use: {device.gpu_absence() or 'TRITON_INTERPRET is set'}")
    print(f"memory            {memory}")
    _print_versions()
    print()
    print("lessons, checks   here, " + ("compiled for the GPU" if here.is_gpu else "in Triton's interpreter"))
    print(
        "benchmarks        "
        + ("here" if here.is_gpu else "not here: recordings from other devices are shown")
    )
    if wish := device.unclear_wish():
        print(f"\nUNCLEAR {wish} kernels. Unset it, or set it to 1 or 0.")
    problems = _problems()
    for problem in problems:
        print(f"\nBROKEN  {problem}")
    if not here.is_gpu:
        print('\nFor more: an NVIDIA or AMD GPU runs the same lessons live. See README.md, "What you need".')
    return 1 if problems else 0


def _print_versions() -> None:
    print(f"python            {platform.python_version()}, {sys.executable}")
    for package in ("torch", "triton", "numpy", *LAB_PACKAGES):
        print(f"{package:17s} {_version(package) or 'not installed'}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _problems() -> list[str]:
    """Return the problems that keep lessons from running here, each with its fix."""
    import torch

    from workbench import ops, runtime
    from workbench.kernels.pointwise import elementwise

    problems = []
    where = device.current().torch_device
    x = torch.arange(100, dtype=torch.float32)
    try:
        result = ops.add(x.to(where), x.to(where)).cpu()
        if not torch.equal(result, 2 * x):
            problems.append(
                "A kernel gave a wrong result. Run `make clean lab` to install the tested set anew."
            )
    except Exception as error:
        problems.append(f"No kernel runs here: {error}. Run `make clean lab` to install the tested set anew.")
    try:
        if not torch.equal(runtime.interpret(elementwise.launch(x, x)).outputs[0], 2 * x):
            problems.append("The interpreter's worker gave a wrong result. Run `make clean lab`.")
    except WorkbenchError as error:
        problems.append(f"The interpreter's worker does not run: {error}")
    return problems


def lab(options: argparse.Namespace) -> int:
    """Open JupyterLab with a lesson."""
    root = Path(__file__).parents[1]
    lessons = {path.stem: path for path in sorted((root / "lessons").glob("*.ipynb"))}
    if options.lesson not in lessons:
        raise UnknownNameError("lesson", options.lesson, lessons)
    if _version("jupyterlab") is None:
        print("workbench: JupyterLab is not installed. Run `make lab`.", file=sys.stderr)
        return 1
    paths = [str(root / "jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--LabApp.default_url=/lab/tree/lessons/{options.lesson}.ipynb",
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    environment = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(paths)}
    return subprocess.run([*command, *options.rest], cwd=root, env=environment, check=False).returncode


def record(options: argparse.Namespace) -> int:
    """Measure a suite and write the recording."""
    from workbench import suites
    from workbench.bench import recording

    suite = suites.part(suites.get(options.suite), dtypes=options.dtype, ops=options.op)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that finished measurements are kept
    recorded = suites.record(suite, path=options.output, interpreter=options.interpreter)
    print(recording.table(recorded.lines))
    for cut in recorded.cut:
        print(f"not measured: {cut}")
    print(f"{len(recorded.lines)} lines added to {recorded.path}")
    return 0


def tune(options: argparse.Namespace) -> int:
    """Find the fastest configuration of a matrix product; without a GPU, list the candidates to time."""
    from workbench import tune
    from workbench.bench import data

    here = device.current()
    operands = data.matrices(options.m, options.n, options.k, options.dtype, options.layout)
    precision = "tf32" if options.dtype == "tf32" else "ieee"
    target = options.target or (None if here.is_gpu else RECORDED_TARGET)
    if here.is_gpu or options.interpreter:
        print(
            tune.tune_gemm(
                *operands,
                precision=precision,
                target=target,
                mode=options.mode,
                interpreter=options.interpreter,
                again=options.again,
            )
        )
        return 0
    found = tune.prune_gemm(*operands, precision=precision, target=target)
    left = tuple(trial for trial in found.trials if trial.fate == "left")
    notes = (
        f"Of {found.summary}.",
        f"Nothing was timed: kernels run on {here.name} here. On a GPU these would be raced.",
    )
    print(replace(found, trials=left, notes=notes))
    return 0


def profile(options: argparse.Namespace) -> int:
    """List, verify and time the instances of an operator for a problem, and keep the best.

    Instances are timed and kept on a GPU only. The exit status is 1 if the result of one is wrong.
    """
    from workbench import profiler
    from workbench.operators.registry import specs

    if options.operator is None:
        print(f"operators: {', '.join(specs())}")
        print("The keys of their cases are switches: python -m workbench profile matmul --help")
        return 0
    if options.operator not in specs() and any(word in specs() for word in options.rest):
        given, fix = f"got {options.operator!r}", "Name it first: python -m workbench profile matmul --m 64."
        raise InvalidArgumentError("operator", given, fix)
    chosen = _switches_of(options.operator).parse_args(options.rest)
    case = profiler.default_case(profiler.named(options.operator))
    case |= {key: value for key in case if (value := getattr(chosen, key)) is not None}
    arguments = profiler.arguments_of(options.operator, case, dtype=chosen.dtype, init=chosen.init)
    said = ", ".join(f"{key}={_in_words(value)}" for key, value in case.items())
    print(f"{options.operator}: {said}, {chosen.dtype}, {chosen.init}")
    found = profiler.profile(
        options.operator, arguments, verify=chosen.verify, target=chosen.target, mode=chosen.mode
    )
    print(found)
    return 1 if any(trial.fate == "wrong" for trial in found.trials) else 0


def _switches_of(operator: str) -> argparse.ArgumentParser:
    """Return the parser of `profile` for an operator.

    Its switches are the keys of the operator's cases; verify, init and dtype, as in ckProfiler; target and
    mode.
    """
    from workbench import profiler
    from workbench.bench import data

    spec = profiler.named(operator)
    parser = argparse.ArgumentParser(
        prog=f"python -m workbench profile {operator}", description=profile.__doc__, allow_abbrev=False
    )
    for key, value in profiler.default_case(spec).items():
        parser.add_argument(
            f"--{key}", type=_parser_of(value), metavar="SIZE", help=f"default: {_in_words(value)}"
        )
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True,
        help="compare results with plain torch in float64 (default: yes)",
    )  # fmt: skip
    parser.add_argument("--init", default="normal", help=f"{', '.join(data.INITS)} (default: normal)")
    parser.add_argument(
        "--dtype", default=spec.dtypes[0], help=f"{', '.join(spec.dtypes)} (default: the first)"
    )
    parser.add_argument("--target", help="compile for it, such as sm_90 (default: this GPU)")
    parser.add_argument(
        "--mode", choices=("events", "cuda_graph", "burst"), default="events", help="how they are timed"
    )
    return parser


def _parser_of(value: object) -> Callable[[str], Any]:
    """Return the function that reads a value of the same kind: a number, 0 or 1, a name, or lengths."""
    if isinstance(value, bool):
        return _flag
    return _lengths if isinstance(value, tuple) else type(value)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"got {text!r}: give 0 or 1")
    return text == "1"


def _lengths(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        fix = "give whole numbers with commas between, such as 3,4"
        raise argparse.ArgumentTypeError(f"got {text!r}: {fix}") from None


def _in_words(value: Any) -> str:
    """Return a value as it is typed."""
    return (
        ",".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(int(value) if isinstance(value, bool) else value)
    )


def roofline(options: argparse.Namespace) -> int:
    """Write the roofline as a PNG, from a live run or from the recordings."""
    from workbench import suites, viz

    if Path(options.output).suffix.lower() != ".png":
        raise InvalidArgumentError(
            "--output", options.output, "A PNG is written: name a file that ends in .png."
        )
    if options.live and not device.current().is_gpu:
        raise NotMeasurableError(
            "There is no GPU here to measure. Leave out --live to draw what was recorded on one."
        )
    ceilings, points = suites.live_or_recorded(recorded=options.recorded)
    png = viz.figure_png(viz.roofline_figure(ceilings, points, theme=options.theme))
    try:
        Path(options.output).write_bytes(png)
    except OSError as error:
        raise InvalidArgumentError(
            "--output",
            f"{options.output} cannot be written: {error.strerror}",
            "Name a file in a folder that you can write to.",
        ) from error
    print(f"{options.output}: {viz.describe(ceilings, points)}")
    return 0


def access(options: argparse.Namespace) -> int:
    """Print the Triton that a descriptor becomes: a convolution's, or one of a file of yours."""
    from workbench.coords import lower, vector_of
    from workbench.coords.descriptor import Descriptor
    from workbench.kernels.views import affine

    if options.file is None:
        described = _of_convolution(options)
    else:
        path, _, name = options.file.rpartition(":")
        if not path:
            given = f"got {options.file!r}, without a name after a colon"
            raise InvalidArgumentError("--file", given, "Give FILE.py:NAME, such as mine.py:rows.")
        described = {name: _from_file(path, name)}
    for name, found in described.items():
        if not isinstance(found, Descriptor):
            given = f"{name} is a {type(found).__name__}"
            raise InvalidArgumentError("--file", given, "Name a descriptor: see lesson 08.")
        print(f"# {name}: {', '.join(map(str, found.lengths))}")
        for dim, along in enumerate(found.names):
            print(f"# along {along}: {vector_of(found, dim)}")
        if strides := affine(found):
            print(f"# strides, and nothing else: {', '.join(map(str, strides.strides))}")
        print(lower(found, checked=(False,) * len(found.names) if options.file is None else None).source)
    return 0


def _from_file(path: str, name: str) -> object:
    """Return the value of a name in a Python file."""
    if Path(path).is_dir():
        raise InvalidArgumentError(
            "--file", f"{path!r} is a folder", "Give a file and a name in it: FILE.py:NAME."
        )
    try:
        values = runpy.run_path(path)
    except OSError as error:
        fix = "Give a Python file that can be read, and a name in it: FILE.py:NAME."
        raise InvalidArgumentError("--file", f"{path!r}: {error.strerror}", fix) from None
    if name not in values:
        raise UnknownNameError("--file", name, [word for word in values if not word.startswith("_")])
    return values[name]


def _of_convolution(options: argparse.Namespace) -> dict[str, object]:
    """Return the descriptors of the operands and outputs of a convolution's products, by name."""
    import torch

    from workbench.kernels import convolution
    from workbench.kernels.views import of_a_batch
    from workbench.ops.convolution import geometry_of

    format = torch.contiguous_format if options.contiguous else torch.channels_last

    def empty(name: str, *shape: int) -> torch.Tensor:
        for length in shape:
            check_positive(name, length)
        return torch.empty(shape, dtype=torch.float16, memory_format=format)

    x, w = empty("--input", *options.input), empty("--weight", *options.weight)
    numbers = {name: getattr(options, name) for name in ("stride", "padding", "dilation", "groups")}
    geometry = geometry_of(2, x, w, **numbers)
    y = empty("output", x.shape[0], geometry.features, *geometry.outputs)
    given = {"forward": (x, w, y), "backward_data": (y, w, x), "backward_weight": (y, x, w)}[options.kind]
    products = convolution.KINDS[options.kind](*given, geometry=geometry)
    return {
        f"{name} of product {number}, [row, col]": of_a_batch(view.descriptor)[0]
        for number, product in enumerate(products)
        for name, view in (("A", product.a), ("B", product.b), ("output", product.output))
    }


def operators(options: argparse.Namespace) -> int:
    """Print the table of all operators, or write it to a file: what they mean and take, and their speed."""
    from workbench import documentation

    page = documentation.page()
    if options.output is None:
        print(page, end="")
    else:
        try:
            Path(options.output).write_text(page)
        except OSError as error:
            fix = "Give the path of a file that you can write to."
            raise InvalidArgumentError("--output", f"{options.output}: {error.strerror}", fix) from None
    return 0


def overheads(options: argparse.Namespace) -> int:
    """Print what a warm call of each operator costs the CPU, beside torch's call."""
    from workbench import overheads as measuring

    measured: list[measuring.Overhead] = []
    for one in measuring.overheads(options.op, dtype=options.dtype):
        print(one if measured else f"{measuring.HEAD}\n{one}", flush=True)
        measured.append(one)
    print(measuring.summary(measured))
    return 0


def progress(options: argparse.Namespace) -> int:
    """Print the learner's progress; with --reset, forget it first."""
    from workbench import teach

    if options.reset:
        teach.reset_progress()
    print(teach.progress())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workbench", description="A workbench for GPU kernel engineering."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    _add(commands, "doctor", doctor, "what runs here, with which versions, and what to do for more")
    _add_lab(commands)
    _add_record(commands)
    _add_tune(commands)
    _add_profile(commands)
    table = _add(commands, "operators", operators, "a table of all operators, from their specs")
    table.add_argument("--output", help="write it to this file (default: print it)")
    calls = _add(commands, "overheads", overheads, "the CPU time of a warm call of operators, beside torch's")
    calls.add_argument("op", nargs="*", help="names of operators (default: all that torch has too)")
    calls.add_argument("--dtype", default="bf16", help="of the tensors, such as fp16 (default: bf16)")
    _add_roofline(commands)
    _add_access(commands)
    _add_progress(commands)
    return parser


def _add(
    commands: _Commands, name: str, command: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add a command and return its parser, to which its arguments are added."""
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command)
    return parser


def _add_lab(commands: _Commands) -> None:
    parser = _add(commands, "lab", lab, "open JupyterLab with a lesson; further options go to JupyterLab")
    parser.add_argument("lesson", nargs="?", default="00_start_here", help="such as 02_roofline")


def _add_record(commands: _Commands) -> None:
    parser = _add(commands, "record", record, "measure a suite of cases and write the recording")
    parser.add_argument("suite", nargs="?", default="all", help="its name; an unknown one lists them")
    parser.add_argument(
        "--dtype", nargs="+", default=(), help="only cases of these, such as fp16 bf16 (default: all of them)"
    )
    parser.add_argument(
        "--op", nargs="+", default=(), help="only cases of these, such as conv2d (default: all of them)"
    )
    parser.add_argument(
        "--output", type=Path, help="the file to append to (default: this device's recording)"
    )
    parser.add_argument(
        "--interpreter",
        action="store_true",
        help="time the interpreter where there is no GPU; every line says so",
    )


def _add_tune(commands: _Commands) -> None:
    parser = _add(commands, "tune", tune, "find the fastest configuration of a matrix product, and keep it")
    for size, of in (("m", "rows of A"), ("n", "columns of B"), ("k", "columns of A, rows of B")):
        parser.add_argument(size, type=int, metavar=size.upper(), help=of)
    parser.add_argument("--dtype", default="fp16", help="such as bf16, tf32, fp8_e4m3 (default: fp16)")
    parser.add_argument(
        "--layout", default="nn", help="of A and B: n as the shape says, t transposed (default: nn)"
    )
    parser.add_argument(
        "--mode", choices=("events", "cuda_graph", "burst"), default="events", help="how candidates are timed"
    )
    parser.add_argument("--again", action="store_true", help="even where a winner is kept")
    parser.add_argument(
        "--interpreter", action="store_true", help="time the interpreter where there is no GPU"
    )
    parser.add_argument(
        "--target",
        help=f"what candidates are compiled for (default: this GPU, else {RECORDED_TARGET})",
    )


def _add_profile(commands: _Commands) -> None:
    parser = commands.add_parser(
        "profile", help="verify and time the instances of any operator, and keep the best",
        add_help=False, allow_abbrev=False,  # the options after the operator have their own help
    )  # fmt: skip
    parser.set_defaults(command=profile)
    parser.add_argument("operator", nargs="?")


def _add_roofline(commands: _Commands) -> None:
    parser = _add(commands, "roofline", roofline, "write the roofline as a PNG")
    parser.add_argument("--output", default="roofline.png", help="the file to write, a .png")
    parser.add_argument("--theme", choices=("light", "dark"), help="of the figure")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--live", action="store_true", help="measure here; an error without a GPU")
    source.add_argument("--recorded", action="store_true", help="draw recordings even where there is a GPU")


def _add_access(commands: _Commands) -> None:
    parser = _add(
        commands, "access", access, "print the Triton that a descriptor becomes: a convolution's, or yours"
    )
    parser.add_argument("--file", help="FILE.py:NAME, a descriptor of your own")
    parser.add_argument("--kind", choices=("forward", "backward_data", "backward_weight"), default="forward")
    for name, sizes in (("input", (2, 64, 56, 56)), ("weight", (64, 64, 3, 3))):
        parser.add_argument(f"--{name}", type=int, nargs=4, default=sizes, help=f"shape (default: {sizes})")
    for name, number in (("stride", 1), ("padding", 1), ("dilation", 1), ("groups", 1)):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"(default: {number})")
    parser.add_argument("--contiguous", action="store_true", help="NCHW instead of channels_last")


def _add_progress(commands: _Commands) -> None:
    parser = _add(commands, "progress", progress, "the exercises solved so far")
    parser.add_argument("--reset", action="store_true", help="forget them")


if __name__ == "__main__":
    sys.exit(main())
