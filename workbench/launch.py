"""Launches: everything that an operator call needs, as plain data.

Running, checking, tracing, compiling and measuring all take a :class:`Launch`, so they see the same kernels.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError, OutOfResources

from workbench import compat, device, interpreter
from workbench.errors import (
    ArgumentTypeError,
    DeviceError,
    InvalidArgumentError,
    KernelError,
    Place,
    TensorMismatchError,
    UnknownNameError,
    check_positive,
    in_brief,
    is_readers,
    place_to_show,
)

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]

MOST_PROGRAMS = (2**31 - 1, 2**16 - 1, 2**16 - 1)

# A block has at most 1024 threads on any GPU. The number of stages is limited only by its 32-bit integer.
MOST_OF_OPTIONS = {"num_warps": 32, "num_stages": 2**31 - 1}

# Triton generates a Python function for each kernel that mixes the kernel's parameters with these names (in
# 3.6 to 3.9: `create_function_from_signature` and `JITFunction.run` of `triton.runtime.jit`).
_RESERVED_NAMES = frozenset(
    ("params", "options", "backend", "specialize_impl", "debug", "instrumentation_mode")
)


@dataclass(frozen=True)
class Work:
    """The work that an operator has to do in any implementation: the two numbers of a roofline.

    Attributes:
        flops: floating-point operations; a multiply-add counts as two.
        bytes: minimum memory traffic: each input is read once, each output is written once.
    """

    flops: int
    bytes: int

    def __post_init__(self) -> None:
        for name, value in (("flops", self.flops), ("bytes", self.bytes)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentTypeError(
                    name, f"got {value!r}, a {type(value).__name__}", "Give a whole number."
                )
            if value < 0:
                raise InvalidArgumentError(name, f"got {value}", "Give 0 or more.")

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per byte: flops / bytes."""
        return self.flops / self.bytes if self.bytes else float("inf")


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel started once over a grid.

    Attributes:
        kernel: a `@triton.jit` function.
        grid: the number of programs along each of one to three axes.
        args: the kernel's positional arguments.
        meta: its keyword arguments: constexpr parameters such as `BLOCK_SIZE`, and launch options such as
            `num_warps` and `num_stages`.

    NumPy scalars are converted to Python numbers, because Triton accepts no others.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        meta = {name: _as_python_numbers(value) for name, value in self.meta.items()}
        object.__setattr__(self, "args", tuple(map(_as_python_numbers, self.args)))
        object.__setattr__(self, "meta", MappingProxyType(meta))

    def __repr__(self) -> str:
        """Show the call without tensor values and addresses: short enough for a notebook cell."""
        given = ", ".join(f"{name}={_format_value(value)}" for name, value in self.arguments().items())
        options = "".join(
            f", {n}={v}" for n, v in self.meta.items() if n not in compat.signature(self.kernel).parameters
        )
        return f"{self.name}[{self.grid}]({given}{options})"

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return compat.python_function(self.kernel).__name__

    @property
    def file(self) -> str:
        """The file or notebook cell of the kernel's source."""
        return compat.python_function(self.kernel).__code__.co_filename

    @property
    def programs(self) -> int:
        """The number of programs in the grid."""
        return torch.Size(self.grid).numel()

    @property
    def axes(self) -> tuple[int, int, int]:
        """The grid padded with ones to three axes."""
        x, y, z = (*self.grid, 1, 1)[:3]
        return x, y, z

    def arguments(self) -> MappingProxyType[str, Any]:
        """Return the kernel's arguments by name, with defaults and without launch options (read-only)."""
        return self._arguments

    @cached_property
    def _arguments(self) -> MappingProxyType[str, Any]:
        signature = compat.signature(self.kernel)
        own = {name: value for name, value in self.meta.items() if name in signature.parameters}
        bound = signature.bind(*self.args, **own)
        bound.apply_defaults()
        return MappingProxyType(bound.arguments)

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors among the arguments, including those in tuples and tensor descriptors."""
        return list(self._tensors)

    @cached_property
    def _tensors(self) -> Sequence[torch.Tensor]:
        found: list[torch.Tensor] = []
        for value in (*self.args, *self.meta.values()):
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif not isinstance(value, int | float | str):
                found += _tensors_in(value)
        return found

    def check(self) -> None:
        """Validate the step before anything runs.

        Raises:
            ArgumentTypeError: `kernel` is not a jit function, or `grid` is not a tuple of ints.
            InvalidArgumentError: the grid has more than three axes or an axis below 1, an argument is missing
                or superfluous, a parameter has a name that Triton uses itself, or `num_warps` or `num_stages`
                exceeds what any GPU allows.
            UnknownNameError: `meta` has a name that is neither a parameter of the kernel nor a launch option.
            TensorMismatchError: tensors are on several devices, complex, or have a pending negation.
        """
        _check_kernel(self.kernel)
        _check_grid(self.grid)
        self._check_names()
        for option, most in MOST_OF_OPTIONS.items():
            if isinstance(self.meta.get(option), int):
                check_positive(f"{option} of {self.name}", self.meta[option], most=most)
        self._check_tensors()

    def run(
        self,
        *,
        observer: interpreter.Observer | None = None,
        computed: Callable[[interpreter.Computation], None] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """Start the kernel on the current stream.

        In the interpreter every memory access is checked first. `observer`, `computed` and `order` are those
        of :func:`workbench.interpreter.watched`.

        Raises:
            KernelError: the kernel failed to compile or to run; the message shows the source line.
            OutOfBoundsError: (interpreter) the kernel addressed memory outside its tensors.
            InvalidArgumentError: `order` is empty, repeats a program or names one outside the grid.
            DeviceError: (interpreter) the kernel is written in Gluon.
            TracingError: torch traces the call into a graph, which would not contain the kernel.
        """
        compat.refuse_tracing()
        if (recorder := compat.recorder_here()) is not None:
            recorder.refuse(f"{self.name} was started by itself, not by `runtime.replay.start`")
        if order is not None:
            self._check_order(order)
        if device.is_interpreter() and compat.is_gluon(self.kernel):
            raise DeviceError(
                f"{self.name} is written in Gluon, which Triton does not interpret. Run it on a GPU that it "
                "is written for; it can be compiled and looked at without one."
            )
        try:
            if device.is_interpreter():
                with interpreter.watched(
                    self.name,
                    self.file,
                    self.memory(),
                    observer=observer,
                    computed=computed,
                    order=order,
                    grid=self.axes,
                ):
                    grid = self.grid if order is None else (len(order),)
                    self.kernel[grid](*self.args, **self._meta_in_order())
            else:
                with _device_of(self.tensors()):
                    self.kernel[self.grid](*self.args, **self.meta)
        except Exception as error:
            raise kernel_error(self.kernel, error) from None

    def compile(self) -> None:
        """Compile the kernel ahead of the first run; do nothing if kernels are interpreted.

        Raises:
            KernelError: the kernel failed to compile.
        """
        if device.is_interpreter():
            return
        try:
            with _device_of(self.tensors()):
                self.kernel.warmup(*self.args, grid=self.grid, **self.meta)
        except Exception as error:
            raise kernel_error(self.kernel, error) from None

    def _meta_in_order(self) -> dict[str, Any]:
        """Return the keyword arguments in the order of `memory`: parameters as declared, then options."""
        parameters = [name for name in compat.signature(self.kernel).parameters if name in self.meta]
        return {name: self.meta[name] for name in (*parameters, *self.meta)}

    def _check_order(self, order: Sequence[int]) -> None:
        if isinstance(order, range) and order == range(self.programs):
            return  # a set of all programs of a large grid would be expensive
        there = all(isinstance(number, int) and 0 <= number < self.programs for number in order)
        if not order or not there or len(set(order)) < len(order):
            raise InvalidArgumentError(
                "order",
                f"got {_format_value(tuple(order))}",
                f"Give one or more whole numbers from 0 to {self.programs - 1}, none of them twice.",
            )

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the tensors by parameter name; `pair[1]` is the second tensor of a tuple `pair`."""
        memory: dict[str, torch.Tensor] = {}
        for name, value in self.arguments().items():
            tensors = list(_tensors_in(value))
            memory |= {name if len(tensors) == 1 else f"{name}[{i}]": t for i, t in enumerate(tensors)}
        return memory

    def _check_names(self) -> None:
        signature = compat.signature(self.kernel)
        if taken := _RESERVED_NAMES.intersection(signature.parameters):
            raise InvalidArgumentError(
                f"parameters of {self.name}",
                f"Triton's launcher uses these names itself: {', '.join(map(repr, sorted(taken)))}",
                "Rename it, because Triton cannot start such a kernel on a GPU.",
            )
        own = 0
        for name in self.meta:
            if name in signature.parameters:
                own += 1
            elif name not in compat.launch_options():
                raise UnknownNameError(
                    f"meta of {self.name}", name, [*signature.parameters, "num_warps", "num_stages"]
                )
        last = list(signature.parameters)[len(self.args) :]
        if len(self.args) + own == len(signature.parameters) and all(name in self.meta for name in last):
            return  # each parameter is given once: skip the slower binding, which only finds the error
        try:
            self.arguments()
        except TypeError as error:
            raise InvalidArgumentError(
                f"args of {self.name}",
                error,
                f"Give one value for each of its parameters: ({', '.join(signature.parameters)}).",
            ) from None

    def _check_tensors(self) -> None:
        tensors = self.tensors()
        for tensor in tensors:
            if tensor.is_complex():
                raise TensorMismatchError(
                    f"args of {self.name}",
                    f"{self._name_of(tensor)} is {str(tensor.dtype).removeprefix('torch.')}",
                    "Triton has no complex numbers. Give torch.view_as_real(...) of it: pairs of real ones.",
                )
            if tensor.is_neg():
                raise TensorMismatchError(
                    f"args of {self.name}",
                    f"{self._name_of(tensor)} has a pending negation, which a kernel would not see in memory",
                    "Give its resolve_neg().",
                )
        places = {tensor.device for tensor in tensors}
        if len(places) > 1:
            raise TensorMismatchError(
                f"args of {self.name}",
                f"tensors on {' and '.join(sorted(map(str, places)))}",
                "Move them all to one device.",
            )

    def _name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of the parameter that a tensor is passed for, as in :meth:`memory`."""
        return next(name for name, own in self.memory().items() if own is tensor)

    def check_place(self) -> None:
        """Raise TensorMismatchError if a tensor is on a device that kernels of this process cannot reach.

        Only a run needs this check: a worker can interpret a launch of CPU tensors on any machine.
        """
        here = device.current()
        for tensor in self.tensors():
            if tensor.device.type != here.torch_device:
                raise TensorMismatchError(
                    f"args of {self.name}",
                    f"tensors on {tensor.device}, while kernels run on {here.name}",
                    f"Create them with device={here.torch_device!r}.",
                )


@dataclass(frozen=True, eq=False)
class Launch:
    """An operator call: kernels in order, the tensors that they write, and the call's work.

    Attributes:
        steps: kernels in order; empty if there is nothing to do (an empty tensor).
        outputs: the tensors that hold the result after `run()`.
        accumulators: tensors that steps add to; `reset()` zeroes them.
        work: FLOPs and minimum bytes; None if unknown.
        workspaces: scratch tensors through which steps pass intermediate results. Their contents before a
            run are undefined: checks fill them with NaN.
    """

    steps: tuple[Step, ...]
    outputs: tuple[torch.Tensor, ...]
    accumulators: tuple[torch.Tensor, ...] = ()
    work: Work | None = None
    workspaces: tuple[torch.Tensor, ...] = ()

    def __repr__(self) -> str:
        """Show the steps and outputs without tensor values."""
        steps = "; ".join(map(repr, self.steps)) or "nothing to do"
        return f"Launch({steps} -> {', '.join(map(_format_value, self.outputs))})"

    @classmethod
    def of(
        cls,
        kernel: Any,
        grid: Grid | int,
        *args: Any,
        outputs: Sequence[torch.Tensor] | torch.Tensor,
        accumulators: Sequence[torch.Tensor] = (),
        work: Work | None = None,
        workspaces: Sequence[torch.Tensor] = (),
        **meta: Any,
    ) -> Launch:
        """Create a launch of a single kernel, such as one written in a notebook cell.

        Args:
            kernel: a `@triton.jit` function.
            grid: programs per axis, `(n,)` or `n`; or, as in Triton, a function that returns them from a dict
                of the kernel's arguments.
            args: the kernel's positional arguments.
            outputs: the tensors that the kernel writes; each shares its memory with one in `args`.
            accumulators: tensors that the kernel adds to; they are zeroed before each run.
            work: FLOPs and minimum bytes, if known.
            workspaces: scratch tensors among `args`; their contents before a run are undefined.
            meta: constexpr parameters and launch options (`BLOCK_SIZE=1024, num_warps=4`).

        Raises:
            The errors of :meth:`check`; and InvalidArgumentError if a grid function raises an error.
        """
        _check_kernel(kernel)
        programs: Any = _evaluated_grid(grid, Step(kernel, (1,), args, meta)) if callable(grid) else grid
        if isinstance(programs, int):
            programs = (programs,)
        step = Step(kernel, tuple(programs) if isinstance(programs, list) else programs, args, meta)
        launch = cls(
            (step,),
            _tuple_of("outputs", outputs),
            _tuple_of("accumulators", accumulators),
            work,
            _tuple_of("workspaces", workspaces),
        )
        _ = launch._checked
        return launch

    def check(self) -> None:
        """Check every step, `work` and the tensors.

        Raises:
            The errors of :meth:`Step.check`; ArgumentTypeError if `work` is not a Work, or an output, an
            accumulator or a workspace is not a tensor; InvalidArgumentError if one of these tensors shares no
            memory with an argument of a step.
        """
        for step in self.steps:
            step.check()
        if not isinstance(self.work, Work | None):
            raise ArgumentTypeError("work", f"got a {type(self.work).__name__}", "Give a Work, or None.")
        known = {_storage(tensor) for step in self.steps for tensor in step.tensors()}
        for argument, tensors in (
            ("outputs", self.outputs),
            ("accumulators", self.accumulators),
            ("workspaces", self.workspaces),
        ):
            for i, tensor in enumerate(tensors):
                if not isinstance(tensor, torch.Tensor):
                    raise ArgumentTypeError(
                        f"{argument}[{i}]",
                        f"got a {type(tensor).__name__}",
                        "Give the tensors that the kernels write.",
                    )
                if self.steps and tensor.numel() and _storage(tensor) not in known:
                    raise InvalidArgumentError(
                        f"{argument}[{i}]",
                        f"no step has this tensor of shape {tuple(tensor.shape)} as an argument",
                        "Pass it to a kernel, or give the tensor that the kernel writes.",
                    )

    def reset(self) -> None:
        """Zero the accumulators."""
        for tensor in self.accumulators:
            tensor.zero_()

    def run(self) -> tuple[torch.Tensor, ...]:
        """Reset, run all steps on the current stream, and return `outputs`.

        Grids and arguments are checked on the first run only, because a launch does not change.

        Raises:
            The errors of :meth:`check`; TensorMismatchError if a tensor is on a device that kernels of this
            process cannot reach; KernelError if a kernel fails to compile or to run.
        """
        self.check_ready()
        self.reset()
        for step in self.steps:
            step.run()
        return self.outputs

    def check_ready(self) -> None:
        """Raise the errors that :meth:`run` raises before it runs anything. Only the first call checks."""
        _ = self._checked, self._placed

    @cached_property
    def _checked(self) -> bool:
        self.check()
        return True

    @cached_property
    def _placed(self) -> bool:
        for step in self.steps:
            step.check_place()
        return True


def _as_python_numbers(value: Any) -> Any:
    """Return `value` with NumPy scalars replaced by Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    return compat.tuple_like(value, map(_as_python_numbers, value)) if isinstance(value, tuple) else value


def _format_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_format_value, value))})"
    if isinstance(base := getattr(value, "base", None), torch.Tensor):
        return f"{type(value).__name__}({_format_value(base)})"
    name = getattr(value, "__name__", None)  # the repr of a function contains an address
    return name if isinstance(name, str) else str(value)


def _tuple_of(argument: str, tensors: Sequence[torch.Tensor] | torch.Tensor) -> tuple[torch.Tensor, ...]:
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    if not isinstance(tensors, Sequence):
        raise ArgumentTypeError(argument, f"got a {type(tensors).__name__}", "Give a tuple of tensors.")
    return tuple(tensors)


def _check_kernel(kernel: object) -> None:
    if compat.is_kernel(kernel):
        return
    if compat.is_wrapped_kernel(kernel):
        raise ArgumentTypeError(
            "kernel",
            f"got a {type(kernel).__name__}, which chooses meta-parameters by itself",
            "A launch names them: pass the plain `@triton.jit` function and give them as keywords.",
        )
    raise ArgumentTypeError(
        "kernel", f"got a {type(kernel).__name__}", "Pass a function that is decorated with @triton.jit."
    )


def _evaluated_grid(grid: Callable[[dict[str, Any]], Any], step: Step) -> Any:
    """Call a grid function as Triton does, with a dict of the kernel's arguments."""
    step.check()
    arguments = dict(step.arguments())
    try:
        return grid(arguments)
    except Exception as error:
        raise InvalidArgumentError(
            "grid",
            f"its function raised {type(error).__name__}: {error}",
            f"It is called with a dict of {', '.join(arguments)}: let it return the programs per axis.",
        ) from error


def _check_grid(grid: object) -> None:
    if not isinstance(grid, tuple):
        raise ArgumentTypeError(
            "grid", f"got {in_brief(grid)}", "Give a tuple of programs per axis, such as (n,)."
        )
    if not 1 <= len(grid) <= 3:
        raise InvalidArgumentError("grid", f"got {len(grid)} axes", "Give one to three axes.")
    for axis, (programs, most) in enumerate(zip(grid, MOST_PROGRAMS, strict=False)):
        check_positive(f"grid[{axis}]", programs, "Give a whole number of programs, 1 or more.")
        if programs > most:
            raise InvalidArgumentError(
                f"grid[{axis}]",
                f"got {programs}",
                f"Give {most} at most: a GPU starts no more programs along this axis.",
            )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(base := getattr(value, "base", None), torch.Tensor):
        yield base


def _storage(tensor: torch.Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def _device_of(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Make the tensors' GPU the current device, on which Triton launches kernels."""
    if tensors and tensors[0].is_cuda and tensors[0].get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensors[0].device)
    return contextlib.nullcontext()


@contextlib.contextmanager
def guarded(kernel: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Iterator[None]:
    """Check the memory accesses of `kernel[grid](*args, **keywords)` in the interpreter within this context.

    Kernels that are called as in Triton's documentation run in it. Without this check an access outside the
    tensors would corrupt the process, and a later notebook cell would hang or crash.

    Raises:
        The errors of :meth:`Step.run` that a program causes.
    """
    step = Step(kernel, (1,), args, keywords)
    try:
        with interpreter.watched(step.name, step.file, step.memory()):
            yield
    except (InterpreterError, KernelError) as error:
        raise kernel_error(kernel, error) from None


# Errors of a kernel that CUDA reports asynchronously: the next call of any library raises them.
ASYNCHRONOUS_ERRORS = (
    "misaligned address", "illegal memory access", "illegal instruction", "unspecified launch failure",
    "device-side assert", "hardware stack error", "invalid program counter", "invalid address space",
)  # fmt: skip


def kernel_error(kernel: Any, error: BaseException) -> KernelError:
    """Convert an error of Triton or CUDA to a KernelError with the reader's source line and the reason."""
    if reported := next((e for e in _chain(error) if isinstance(e, KernelError)), None):
        return reported
    function = compat.python_function(kernel)
    file = function.__code__.co_filename
    if isinstance(error, OutOfResources):
        return KernelError(
            function.__name__, str(error), file=file, fix="Use smaller tiles, or fewer num_stages."
        )
    if any(text in str(error) for text in ASYNCHRONOUS_ERRORS):
        return KernelError(
            function.__name__, str(error), file=file,
            fix="The cause is this kernel or one that ran before this one, of any library. Restart Python, "
            "and run with CUDA_LAUNCH_BLOCKING=1 to see which.",
        )  # fmt: skip
    compiled = [each for each in _chain(error) if isinstance(each, CompilationError)]
    places, uncalled = _places_compiled(kernel, compiled) if compiled else _places_run(error)
    if uncalled is not None and not (places and is_readers(places[-1].file)):
        # The workbench calls this function, so the reader has no line with the call: show the definition.
        places.append(_definition(uncalled))
    return KernelError.at(place_to_show(places, file), function.__name__, file, _innermost_reason(error))


def _chain(error: BaseException) -> list[BaseException]:
    """Return `error` and its causes, outermost first."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def _innermost_reason(error: BaseException) -> str:
    cause = next(e for e in reversed(_chain(error)) if not isinstance(e, InterpreterError) or e is error)
    if isinstance(cause, CompilationError):  # its text repeats the source
        return cause.error_message or type(cause).__name__
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _places_run(error: BaseException) -> tuple[list[Place], Any]:
    """Return the lines that were running at the error, and the jit function whose call failed, if any."""
    frames = [each for cause in _chain(error) for each in traceback.walk_tb(cause.__traceback__)]
    places = [
        Place(frame.f_code.co_name, frame.f_code.co_filename, line)
        for frame, line in frames
        if interpreter.is_of_kernels(frame.f_code.co_filename)
    ]
    places += [_line_in(*read) for read in compat.lines_read(frame for frame, _ in frames)]
    return places, interpreter.called_by(frames[-1][0]) if frames else None


def _places_compiled(kernel: Any, errors: Sequence[CompilationError]) -> tuple[list[Place], Any]:
    """Like :func:`_places_run`, from the compiler's errors: one for each function, outermost first."""
    places, function = [], kernel
    for error in errors:
        function = compat.function_of(error) or function
        if (line := getattr(error.node, "lineno", None)) is not None:
            places.append(_line_in(function, line))
    places = [place for place in places if interpreter.is_of_kernels(place.file)]
    return places, compat.function_of(errors[-1].__context__)


def _line_in(kernel: Any, line: int) -> Place:
    """Return the place of a line of a jit function's text, counted from 1."""
    start = _definition(kernel)
    return start._replace(line=start.line + line - 1)


def _definition(kernel: Any) -> Place:
    function = compat.python_function(kernel)
    return Place(function.__name__, function.__code__.co_filename, compat.definition_line(kernel))
