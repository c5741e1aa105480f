"""The launch: everything that one operator call needs, as plain data.

Every room takes a :class:`Launch`, so that what is run, traced, compiled and measured is always the same thing.
"""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError, OutOfResources

from workbench import compat, device, interpreter
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    TensorMismatchError,
    UnknownNameError,
    check_positive,
)

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Work:
    """What an operator must do, whoever does it: the two numbers of a roofline.

    Attributes:
        flops: floating-point operations; a multiply-add counts as two.
        bytes: the least bytes that must move between memory and chip: each input read once, each output written once.
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


@dataclass(frozen=True)
class Step:
    """One kernel started over one grid.

    Attributes:
        kernel: a `@triton.jit` function.
        grid: the number of programs along each of one to three axes.
        args: the kernel's positional arguments.
        meta: its keyword arguments: constexpr parameters such as `BLOCK_SIZE`, and `num_warps`, `num_stages`, ...
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    def __repr__(self) -> str:
        """Short enough to end a notebook cell with: no tensor's values, no addresses."""
        given = ", ".join(f"{name}={_in_short(value)}" for name, value in self.arguments().items())
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
        """The file, or notebook cell, of its source."""
        return compat.python_function(self.kernel).__code__.co_filename

    @property
    def programs(self) -> int:
        """How many programs the grid starts."""
        return torch.Size(self.grid).numel()

    def arguments(self) -> dict[str, Any]:
        """The kernel's own parameters by name, defaults filled in; launch options are left out."""
        signature = compat.signature(self.kernel)
        own = {name: value for name, value in self.meta.items() if name in signature.parameters}
        bound = signature.bind(*self.args, **own)
        bound.apply_defaults()
        return dict(bound.arguments)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, those inside tuples and tensor descriptors too."""
        return [tensor for value in (*self.args, *self.meta.values()) for tensor in _tensors_in(value)]

    def check(self) -> None:
        """Find what would fail, before anything runs.

        Raises:
            ArgumentTypeError: `kernel` is not a jit function, or `grid` is not a tuple.
            InvalidArgumentError: a grid axis under 1, more than three axes, an argument missing or too many.
            UnknownNameError: `meta` has a name that is neither a parameter of the kernel nor a launch option.
            TensorMismatchError: tensors on several devices, or on one that cannot run this kernel.
        """
        _check_kernel(self.kernel)
        _check_grid(self.grid)
        self._check_names()
        self._check_devices()

    def run(
        self, *, observer: interpreter.Observer | None = None, order: Sequence[int] | None = None
    ) -> None:
        """Start the kernel on the current stream.

        In the interpreter every access to memory is checked first, and `observer` and `order` are as in
        :func:`workbench.interpreter.watched`.

        Raises:
            KernelError: it failed to compile or to run; the message shows the line of its source.
            OutOfBoundsError: (interpreter) it addressed memory outside its tensors.
        """
        try:
            if device.is_interpreter():
                with interpreter.watched(
                    self.name, self.file, self._memory(), observer=observer, order=order
                ):
                    self.kernel[self.grid](*self.args, **self.meta)
            else:
                with _device_of(self.tensors()):
                    self.kernel[self.grid](*self.args, **self.meta)
        except Exception as error:
            raise _kernel_error(self.kernel, error) from None

    def _memory(self) -> dict[str, torch.Tensor]:
        """The tensors by the parameter that holds them: `x`, or `pair[1]` inside a tuple."""
        memory: dict[str, torch.Tensor] = {}
        for name, value in self.arguments().items():
            tensors = list(_tensors_in(value))
            memory |= {name if len(tensors) == 1 else f"{name}[{i}]": t for i, t in enumerate(tensors)}
        return memory

    def _check_names(self) -> None:
        signature = compat.signature(self.kernel)
        for name in self.meta:
            if name not in signature.parameters and name not in compat.launch_options():
                raise UnknownNameError(
                    f"meta of {self.name}", name, [*signature.parameters, "num_warps", "num_stages"]
                )
        try:
            self.arguments()
        except TypeError as error:
            raise InvalidArgumentError(
                f"args of {self.name}", error, f"Its parameters are ({', '.join(signature.parameters)})."
            ) from None

    def _check_devices(self) -> None:
        places = {tensor.device for tensor in self.tensors()}
        if len(places) > 1:
            raise TensorMismatchError(
                f"args of {self.name}",
                f"tensors on {' and '.join(sorted(map(str, places)))}",
                "Move them all to one device.",
            )
        here = device.current()
        if here.is_gpu and any(place.type != here.torch_device for place in places):
            raise TensorMismatchError(
                f"args of {self.name}",
                f"tensors on {places.pop()}, while kernels run on {here.name}",
                f"Create them with device={here.torch_device!r}.",
            )


@dataclass(frozen=True)
class Launch:
    """An operator call: ordered steps, what they write, and what they must do.

    Attributes:
        steps: kernels in order; none where there is nothing to do (an empty tensor).
        outputs: the tensors that hold the result after `run()`.
        accumulators: tensors that steps add into; `reset()` zeroes them.
        work: FLOPs and least bytes, None where unknown.
    """

    steps: tuple[Step, ...]
    outputs: tuple[torch.Tensor, ...]
    accumulators: tuple[torch.Tensor, ...] = ()
    work: Work | None = None

    def __repr__(self) -> str:
        """Its steps and outputs, without the tensors' values."""
        steps = "; ".join(map(repr, self.steps)) or "nothing to do"
        return f"Launch({steps} -> {', '.join(map(_in_short, self.outputs))})"

    @classmethod
    def of(
        cls,
        kernel: Any,
        grid: Grid | int,
        *args: Any,
        outputs: Sequence[torch.Tensor] | torch.Tensor,
        accumulators: Sequence[torch.Tensor] = (),
        work: Work | None = None,
        **meta: Any,
    ) -> Launch:
        """A launch of one kernel, such as one that was just written in a notebook cell.

        Args:
            kernel: a `@triton.jit` function.
            grid: programs per axis, `(n,)` or `n`; or a function from the meta-parameters to it, as Triton takes.
            args: the kernel's positional arguments.
            outputs: the tensors that it writes; they are among `args`, or views of what is.
            accumulators: tensors that it adds into, zeroed before each run.
            work: FLOPs and least bytes, where known.
            meta: constexpr parameters and launch options (`BLOCK_SIZE=1024, num_warps=4`).

        Raises:
            as :meth:`Step.check`; and InvalidArgumentError where an output is not among the arguments.
        """
        _check_kernel(kernel)
        if callable(grid):
            grid = grid(dict(meta))
        if isinstance(grid, int):
            grid = (grid,)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        step = Step(kernel, tuple(grid) if isinstance(grid, list) else grid, args, meta)
        launch = cls((step,), tuple(outputs), tuple(accumulators), work)
        launch.check()
        return launch

    def check(self) -> None:
        """Check every step (see :meth:`Step.check`) and that each output is one of the tensors that a step is given."""
        for step in self.steps:
            step.check()
        if not self.steps:
            return
        known = {_storage(tensor) for step in self.steps for tensor in step.tensors()}
        for i, output in enumerate(self.outputs):
            if not isinstance(output, torch.Tensor):
                raise ArgumentTypeError(
                    f"outputs[{i}]", f"got a {type(output).__name__}", "Give the tensors written."
                )
            if _storage(output) not in known:
                raise InvalidArgumentError(
                    f"outputs[{i}]",
                    f"a tensor of shape {tuple(output.shape)} that no step is given",
                    "Pass the kernel the tensor that it is to write, and name that one.",
                )

    def reset(self) -> None:
        """Zero what the steps accumulate into."""
        for tensor in self.accumulators:
            tensor.zero_()

    def run(self) -> tuple[torch.Tensor, ...]:
        """Reset, run all steps on the current stream, and return `outputs`.

        Grids and arguments are checked on the first run: a launch is plain data that does not change.

        Raises:
            as :meth:`check`; and KernelError where a kernel fails to compile or to run.
        """
        _ = self._checked
        self.reset()
        for step in self.steps:
            step.run()
        return self.outputs

    @cached_property
    def _checked(self) -> bool:
        self.check()
        return True


def _in_short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_short, value))})"
    return compat.python_function(value).__name__ if compat.is_kernel(value) else str(value)


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


def _check_grid(grid: object) -> None:
    if not isinstance(grid, tuple):
        raise ArgumentTypeError("grid", f"got {grid!r}", "Give a tuple of programs per axis, such as (n,).")
    if not 1 <= len(grid) <= 3:
        raise InvalidArgumentError("grid", f"got {len(grid)} axes", "Give one to three.")
    for axis, programs in enumerate(grid):
        check_positive(f"grid[{axis}]", programs, "A launch needs at least one program along each axis.")


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


def _device_of(tensors: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on torch's current device; where the tensors lie on another, make that one current."""
    if tensors and tensors[0].is_cuda and tensors[0].get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensors[0].device)
    return contextlib.nullcontext()


def _kernel_error(kernel: Any, error: Exception) -> KernelError:
    """`error` in terms of the kernel's own source."""
    if reported := next((e for e in _chain(error) if isinstance(e, KernelError)), None):
        return reported
    function = compat.python_function(kernel)
    file = function.__code__.co_filename
    if isinstance(error, OutOfResources):
        return KernelError(
            function.__name__, str(error), file=file, fix="Use smaller tiles, or fewer num_stages."
        )
    if isinstance(error, CompilationError):
        line = compat.definition_line(kernel) + error.node.lineno - 1 if error.node is not None else None
        reason = error.error_message or _innermost(error)
    else:
        line = _last_line_in(file, error)
        reason = _innermost(error)
    source = linecache.getline(file, line) if line is not None else None
    return KernelError(function.__name__, reason, file=file, line=line, source=source)


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and what caused it, outermost first."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def _innermost(error: Exception) -> str:
    cause = next(e for e in reversed(_chain(error)) if not isinstance(e, InterpreterError) or e is error)
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _last_line_in(file: str, error: Exception) -> int | None:
    """The last line of `file` that was running when the error was raised."""
    frames = [frame for cause in _chain(error) for frame in traceback.extract_tb(cause.__traceback__)]
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
