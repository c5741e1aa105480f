"""Triton from 3.6 to 3.9: the names that moved between versions, and repairs of what it lacks.

Each repair has a test in `tests/test_compat.py` that fails once Triton no longer needs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, lru_cache, partial, partialmethod, wraps
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from triton import knobs
from triton.backends import backends
from triton.compiler import ASTSource
from triton.compiler.code_generator import CodeGenerator
from triton.runtime import cache as cache_of_triton
from triton.runtime import driver, interpreter
from triton.runtime.jit import (
    ConstexprFunction,
    DependenciesFinder,
    JITCallable,
    JITFunction,
    KernelInterface,
)

from workbench.errors import TracingError
from workbench.interpreted_undefined import (
    BITS_OF_BF16,
    larger,
    largest,
    smaller,
    smallest,
    undefined,
    undefined_along,
)
from workbench.interpreted_undefined import FP32 as UNDEFINED_FP32

VERSION = tuple(map(int, triton.__version__.split(".")[:2]))


def is_kernel(value: object) -> bool:
    """True for what `@triton.jit` returns, compiled or interpreted, and False for an autotuner around it."""
    return isinstance(value, JITFunction | interpreter.InterpretedFunction)


def is_wrapped_kernel(value: object) -> bool:
    """True for a kernel inside `@triton.autotune` or `@triton.heuristics`."""
    return isinstance(value, KernelInterface) and not is_kernel(value)


def is_gluon(value: object) -> bool:
    """True for what `@gluon.jit` returns, which is only compiled: the interpreter does not know Gluon."""
    return isinstance(value, JITFunction) and value.is_gluon()


def is_constexpr_function(value: object) -> bool:
    """True for what `@triton.constexpr_function` returns."""
    return isinstance(value, ConstexprFunction)


def python_function(kernel: Any) -> Callable[..., Any]:
    """The Python function that was decorated with `@triton.jit` or `@triton.constexpr_function`."""
    function: Callable[..., Any] = kernel.fn
    return function


def decorations(kernel: Any) -> dict[str, Any]:
    """What was given to `@triton.jit` and changes how the kernel is compiled."""
    given = getattr(kernel, "kwargs", None)  # of an interpreted one; a compiled one has attributes
    names = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")
    values = {name: getattr(kernel, name, None) if given is None else given.get(name) for name in names}
    return {name: value for name, value in values.items() if value}


def tuple_like(example: Any, items: Iterable[Any]) -> tuple[Any, ...]:
    """`items` as a tuple; as a named one where `example` is one, since kernels read its fields."""
    like: tuple[Any, ...] = type(example)(*items) if hasattr(example, "_fields") else tuple(items)
    return like


def signature(kernel: Any) -> inspect.Signature:
    """The kernel's parameters."""
    # A kernel is hashed by its whole source, which Triton refuses of one in Gluon that calls what is
    # interpreted here.
    return _signature(python_function(kernel))


@lru_cache(maxsize=512)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def definition_line(kernel: Any) -> int:
    """The line of `def`, in the file or notebook cell of the kernel, decorators passed over.

    Of an interpreted one whose text nobody has, the first that is known: that of its decorators.
    """
    function: Any = python_function(kernel)
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        return int(function.__code__.co_firstlineno)
    return first + next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


# How many modes watch what torch dispatches on this thread: mostly none, which takes 30 ns to ask.
watching_modes = torch._C._len_torch_dispatch_stack

# Within it, none does.
without_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes


def refuse_tracing() -> None:
    """Raise where torch makes a graph of the calls on this thread, or asks for their shapes alone.

    The first in `make_fx` and `torch.func.linearize`, the second in a `FakeTensorMode`.

    Raises:
        TracingError: the graph would do without the kernel that is about to be started, and say nothing; or
            there is nothing that it could work on.
    """
    if not watching_modes():
        return
    mode_of, modes = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    if mode_of(modes.PROXY) is not None:
        raise TracingError(
            "torch traces this call and would leave the kernel out of its graph. Trace torch's own function "
            "instead, or call this one outside of make_fx and torch.func.linearize."
        )
    if mode_of(modes.FAKE) is not None:
        raise _without_memory()


def refuse_fakes(*tensors: object) -> None:
    """Raise where one is a `FakeTensor`, whose mode may be off by now.

    Raises:
        TracingError: a kernel would find it at the address 0.
    """
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        raise _without_memory()


def _without_memory() -> TracingError:
    return TracingError(
        "fake tensors, of a FakeTensorMode, have no memory that the kernel could work on. Call it outside of "
        "the mode with plain tensors; or for shapes alone, with tensors on the meta device."
    )


@cache
def launch_options() -> frozenset[str]:
    """The names that a launch takes besides the kernel's own parameters: `num_warps`, `num_stages`, ..."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    names = {field.name for options in (CUDAOptions, HIPOptions) for field in dataclasses.fields(options)}
    return frozenset(names) - {"arch", "backend_name", "extern_libs"}


@dataclass(frozen=True)
class Starter:
    """What starts a compiled kernel.

    Attributes:
        start: of the grid's three axes, a stream and all of the kernel's arguments, constants too, of
            whatever value. A pointer is a tensor or an integer; for an integer the driver is not asked.
        expanded: from the number of a tensor descriptor among the kernel's, and the descriptor, to what
            `start` takes in its place: the map that the hardware reads, and integers, right for as long as
            the tensor's address is the same. None where `start` takes descriptors themselves.
    """

    start: Callable[[int, int, int, int, Sequence[Any]], None]
    expanded: Callable[[int, Any], list[Any]] | None


def starter(compiled: Any) -> Starter:
    """The cheapest way to start a kernel that Triton compiled.

    `compiled[grid](...)`, Triton's own, asks for device and stream, makes a dictionary for hooks and calls
    them, which are empty chains in most processes, and makes the map of each tensor descriptor anew (3.6,
    3.7). On NVIDIA GPUs this calls what that calls in the end, a function in C, with hooks only where there
    are some, such as a profiler's. Elsewhere, and where the kernel wants scratch memory, it is Triton's.

    Args:
        compiled: what `kernel.warmup(...)` returned, on the device that it is to run on.
    """
    from triton.backends.nvidia import driver as nvidia

    run, metadata = compiled.run, compiled.metadata  # the first loads the kernel
    has_own = getattr(getattr(compiled.src, "fn", None), "launch_metadata", None) is not None
    is_direct = VERSION in ((3, 6), (3, 7)) and isinstance(run, nvidia.CudaLauncher) and not has_own
    if not is_direct or run.global_scratch_size or run.profile_scratch_size:
        return Starter(partial(_start_through_triton, compiled), None)

    # Around what it calls in C, Triton has a function that makes maps of descriptors.
    wraps = inspect.isfunction(run.launch)
    launch = inspect.getclosurevars(run.launch).nonlocals["launcher"] if wraps else run.launch
    function, packed, settings = compiled.function, compiled.packed_metadata, knobs.runtime
    flags = run.launch_cooperative_grid, run.launch_pdl
    maps = getattr(metadata, "tensordesc_meta", None)

    def expanded(which: int, descriptor: Any) -> list[Any]:
        parts = _expanded(descriptor, maps[which] if maps else None)
        return [part.data_ptr() if isinstance(part, torch.Tensor) else part for part in parts]

    # Triton's own chains of hooks, empty in most processes; somebody can set others, a function, or None.
    enters, leaves = type(settings).launch_enter_hook, type(settings).launch_exit_hook
    if VERSION == (3, 6):
        flags_36 = (function, *flags, None, None, packed)
        without_hooks: tuple[Any, ...] = (*flags_36, None, None, None)

        def start(x: int, y: int, z: int, stream: int, arguments: Sequence[Any]) -> None:
            enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
            if enter is enters and leave is leaves and not enters.calls and not leaves.calls:
                launch(x, y, z, stream, *without_hooks, *arguments)
            else:
                told = compiled.launch_metadata((x, y, z), stream, *arguments)
                launch(x, y, z, stream, *flags_36, told, enter, leave, *arguments)
    else:
        flags_37, after = (function, *flags, packed), (None, None, run.arg_annotations, run.kernel_signature)
        without_hooks = (*flags_37, None, None, None, *after)

        def start(x: int, y: int, z: int, stream: int, arguments: Sequence[Any]) -> None:
            enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
            if enter is enters and leave is leaves and not enters.calls and not leaves.calls:
                launch(x, y, z, stream, *without_hooks, arguments)
            else:
                told = compiled.launch_metadata((x, y, z), stream, *arguments)
                launch(x, y, z, stream, *flags_37, told, enter, leave, *after, arguments)

    return Starter(start, expanded)


def _expanded(descriptor: Any, meta: Any) -> list[Any]:
    """What a launch takes in place of a tensor descriptor, on an NVIDIA GPU.

    In a thread that has asked CUDA for nothing, as autograd's may be when a gradient begins with a product,
    no context is current, which the driver wants for a map; Triton sees to that at the launch, after its maps
    (3.6, 3.7).
    """
    from triton.backends.nvidia import driver as nvidia

    try:
        return list(nvidia.make_tensordesc_arg(descriptor, meta))
    except RuntimeError as error:
        if "invalid device context" not in str(error):
            raise
    # The answer is of no use; to ask makes the context current, also while a graph is captured.
    torch.cuda.cudart().cudaMemGetInfo(current_cuda_device())
    return list(nvidia.make_tensordesc_arg(descriptor, meta))


def _start_through_triton(
    compiled: Any, x: int, y: int, z: int, stream: int, arguments: Sequence[Any]
) -> None:
    compiled[x, y, z](*arguments, stream=stream)


def stream_getter() -> Callable[[int], int]:
    """A function from the number of a device to the handle of the stream that is current there."""
    getter: Callable[[int], int] = driver.active.get_current_stream
    return getter


def current_device() -> int:
    """The number of the device that Triton compiles for."""
    number: int = driver.active.get_current_device()
    return number


# As `torch.cuda.current_device()` asks, once CUDA is initialized; torch for the CPU does not have it.
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


@cache
def allocator(kind: str) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """`torch.empty_strided` on the current device of a type, "cuda" or "cpu", without torch's dispatcher.

    As code that torch.compile has written allocates, in half the time.
    """
    guards: Any = torch._C._dynamo.guards
    allocate: Callable[..., torch.Tensor] = getattr(guards, f"_empty_strided_{kind}")
    return allocate


@lru_cache(maxsize=512)
def specialized(kernel: Any) -> tuple[Literal["constant", "width", "value"], ...]:
    """What Triton compiles a kernel for of each parameter that is an integer.

    Of a constant (`tl.constexpr`) its value, of one that is not specialized its width, else also whether it
    is 1, and a multiple of 16.
    """
    return tuple(
        [
            "constant" if one.is_constexpr else "width" if one.do_not_specialize else "value"
            for one in kernel.params
        ]
    )


def compiled_for(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The kernel as Triton compiles it for such arguments on the current device; nothing is started.

    Args:
        kernel: a `@triton.jit` function, not interpreted.
        arguments: all of them, constants too.
        options: of the launch, such as `num_warps`.
    """
    return kernel.warmup(*arguments, grid=(1, 1, 1), **options)


def compiler_tells_shared_layouts() -> bool:
    """False on Triton 3.6, which aborts when it is asked for the linear layout of shared memory."""
    return VERSION >= (3, 7)


def lanes_lie_along_the_last_axes() -> bool:
    """Of axes along which nothing is contiguous, lanes get the last first; older versions the first."""
    return VERSION >= (3, 7)


def tell_compilers_apart_quickly() -> None:
    """Let Triton's cache on disk know this Triton by the sizes and times of its files.

    Of its own accord it reads them all, 460 MB, which takes most of a second in every new process.
    """
    files = [
        (str(path.relative_to(_TRITON)), path.stat().st_size, path.stat().st_mtime_ns)
        for pattern in ("**/*.py", "_C/*.so")
        for path in sorted(Path(_TRITON).glob(pattern))
    ]
    key = hashlib.sha256(repr((triton.__version__, files)).encode()).hexdigest()
    cache_of_triton.triton_key = wraps(cache_of_triton.triton_key)(lambda: key)


def tell_functions_in_tuples_apart() -> None:
    """Let Triton's cache on disk know the functions in a tuple of constants by their text.

    Of its own accord (seen on 3.6.0 and 3.7.1) it knows them by module and name: a kernel that takes a tuple
    of functions, as those with an epilogue do, stayed the one of the function before it was edited. And let
    it know this file and `compiler_repairs`, which change what is compiled.
    """
    plain = ASTSource.hash
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def repaired(self: Any) -> str:
        constants = (value for value in self.constants.values() if isinstance(value, tuple))
        keys = [function.cache_key for value in constants for function in _functions_in(value)]
        return hashlib.sha256(repr((plain(self), keys, _own_text())).encode()).hexdigest()

    ASTSource.hash = repaired


@cache
def _own_text() -> str:
    here = Path(__file__)
    return "".join(file.read_text() for file in (here, here.with_name("compiler_repairs.py")))


def _functions_in(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _functions_in(value)
        elif hasattr(value, "cache_key"):
            yield value


# What a kernel writes by inline assembly in front of a copy, and of products: to an assembler a comment.
EVICT_FIRST = "// L2::evict_first"
ONE_BLOCK = "// of one block"


def let_marks_change_ptx() -> None:
    """Let a kernel have instructions for which Gluon has no word (seen on 3.6.0 and 3.7.1).

    It marks by inline assembly what :func:`with_hints` and :func:`with_whole_products` then change. Where
    they find nothing that they know, the mark stays, a comment.
    """
    nvidia = backends.get("nvidia")
    if nvidia is None or hasattr(nvidia.compiler.make_ptx, "__wrapped__"):
        return
    plain = nvidia.compiler.make_ptx

    @wraps(plain)
    def repaired(*args: Any, **keywords: Any) -> str:
        made: str = plain(*args, **keywords)
        for mark, changed in ((EVICT_FIRST, with_hints), (ONE_BLOCK, with_whole_products)):
            if mark in made:
                made = changed(made)
        return made

    nvidia.compiler.make_ptx = repaired


def with_hints(ptx: str) -> str:
    """PTX in which the copy (TMA) behind each mark hints the L2 cache: what it brings leaves that first."""
    lines = ptx.split("\n")
    is_marked = False
    for i, line in enumerate(lines):
        copied = _COPY.fullmatch(line)
        if copied is not None and is_marked:
            lines[i] = (
                "\t{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
                f"{copied[1]}.L2::cache_hint {copied[2]}, policy; }}"
            )
        is_marked = EVICT_FIRST in line or (is_marked and copied is None)
    return "\n".join(lines)


# An instruction, and its operands: where to, from where, and the barrier that is told.
_COPY = re.compile(
    r"\s*((?:@%p\d+ )?cp\.async\.bulk\.tensor\.\dd\.shared::\w+\.global\.mbarrier::complete_tx::bytes)"
    r" (\[[^\[\]]*\], \[[^\[\]]*\], \[[^\[\]]*\]);"
)


def with_whole_products(ptx: str) -> str:
    """PTX in which of two products of one A, behind one mark and before what waits for them, one is made.

    Of a block of B a kernel multiplies first the 128 columns on the left, then the 64 on the right, since a
    tensor of Triton has a power of two of them; `wgmma` has 192 too. By the mark a kernel says that in shared
    memory the one lies right behind the other, which is not checked. Descriptors are set once, as by LLVM.
    """
    lines = ptx.split("\n")
    ends = [i for i, line in enumerate(lines) if ONE_BLOCK in line or "wgmma.wait_group" in line]
    for mark, end in pairwise([*ends, len(lines)]):
        found = {i: product for i in range(mark, end) if (product := _PRODUCT.fullmatch(lines[i]))}
        if ONE_BLOCK not in lines[mark] or not found:
            continue
        left = {_what_both_have(each): i for i, each in found.items() if each["columns"] == "128"}
        right = {_what_both_have(each): i for i, each in found.items() if each["columns"] == "64"}
        are_pairs = left.keys() == right.keys() and 2 * len(left) == len(found)
        others = [lines[i].partition("//")[0] for i in range(mark, max(found)) if i not in found]
        between = " ".join(others)
        begun = " ".join(found[i]["sums"] for i in right.values())
        are_others = set(re.findall(r"%\w+", begun)).isdisjoint(re.findall(r"%\w+", between))
        if not are_pairs or not are_others or re.search(r"\bbra\b|\$L__BB", between):
            continue
        for both, i in left.items():
            one, other = found[i], found[right[both]]
            lines[i] = (
                f"\twgmma.mma_async.sync.aligned.m64n192{one['kind']} {{{one['sums']},{other['sums']}}}, "
                f"{one['a']}, {one['b']}, {one['how']};"
            )
            lines[right[both]] = ""
    return "\n".join(lines)


def _what_both_have(product: re.Match[str]) -> tuple[str, ...]:
    return product["kind"], product["a"], product["how"]


# An instruction: its columns, what else it is of; its sums, the descriptors of A and of B, and the rest.
_PRODUCT = re.compile(
    r"\s*wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>128|64)(?P<kind>k\S+)"
    r" \{(?P<sums>[^{}]*)\}, (?P<a>%rd\d+), (?P<b>%rd\d+), (?P<how>[^;]*);"
)


def let_errors_know_their_functions() -> None:
    """Let errors of Triton's compiler know in which jit function they are, for :func:`function_of`.

    Of their own accord (seen on 3.6.0 and 3.7.1) they have its text alone: no name, no file, and lines that
    are counted from its `def`. And one that is called with too many arguments is not named at all.
    """
    plain = CodeGenerator.call_JitFunction
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def repaired(self: Any, function: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return plain(self, function, *args, **keywords)
        except Exception as error:
            # That is the caller's; its cause is the function's own. Without one it could not be called.
            (error.__cause__ or error).jit_function = function  # type: ignore[attr-defined]
            raise

    CodeGenerator.call_JitFunction = repaired


def function_of(error: BaseException | None) -> Any:
    """The jit function that the compiler was at, or could not call; None of its kernel, and of others."""
    return getattr(error, "jit_function", None)


def lines_read(frames: Iterable[FrameType]) -> Iterator[tuple[Any, int]]:
    """Of the frames of an error: the jit functions that Triton was reading, with the lines of their texts.

    It does so before it compiles, for what its caches depend on, and refuses what is none of a kernel's, such
    as a function of torch's.
    """
    function = None
    for frame in frames:
        if frame.f_code is _READING:
            function = frame.f_locals["self"]
        elif function is not None and isinstance(frame.f_locals.get("self"), DependenciesFinder):
            line = getattr(frame.f_locals.get("node"), "lineno", None)
            if line is not None:
                yield function, line


_READING = JITCallable.cache_key.fget.__code__


def repair_interpreter() -> None:
    """Mend Triton's interpreter: its narrow floats, the truth of tiles, and the time of reductions.

    It keeps bfloat16 and fp8 as raw bits. Unrepaired (seen on 3.6.0, 3.7.1 and 3.9.0): arithmetic,
    comparisons, sums and `tl.dot` of bf16 work on the bits as integers, and so do conversions to bf16 from
    integers and fp64; that from fp32 truncates, that of a subnormal gives another number; a bf16 scalar
    constant and an atomic add fail. Conversions from fp8 miss subnormals, infinities and NaN, those to fp8
    lose the carry of a rounding. Repaired: every operation is done in fp32 and its result rounded once, to
    nearest even, as GPUs do.

    It takes a tile of several elements for true: `if offsets < n:` and `inside and valid` go on with a wrong
    mask, where the compiler refuses the first and warns of the second. Repaired: ValueError. On 3.6.0 a loop
    to a bound that is known at run time draws numpy's warning, an error from numpy 2.4 on. Repaired.

    `tl.reduce` by a function of one's own calls it for one element after another, so a row of 1,024 takes a
    tenth of a second. Repaired: for all pairs at once, from far apart to near, as the lanes of a GPU do; one
    by one only if the function branches. And it and `tl.associative_scan` call the function as Python has it,
    with Python's `min`. Repaired: as kernels call it.

    `tl.max` and `tl.min` warn of rows that are all NaN. Repaired: they give NaN and say nothing, as on GPUs.

    It finds NaN where a GPU passes it by: `tl.maximum`, `tl.minimum` and `tl.clamp` propagate it though they
    were not asked to, `tl.argmax` and `tl.argmin` give the first one. Repaired: as `PropagateNan.NONE` says,
    and by Triton's own comparisons, in which NaN is chosen or lost depending on where it stands.

    Lanes that a mask turns off load 0 where no `other` is given. Their value is undefined on a GPU. Repaired:
    NaN that extremes do not pass by, or integers that stand out. And it takes an `other` of one element that
    is 0 for none. Atomics give such lanes whatever lay in fresh memory. Repaired: undefined values too. And
    `tl.atomic_xchg` fails for floats. Repaired: it exchanges their bits.

    `tl.gather` fails for an index beyond the end, also of a lane that is masked off, and takes a negative one
    for one from the end. Repaired: undefined values, as on a GPU.

    It sums fp16 in fp32. Repaired: each sum is fp16, as what it is made of, and may be too large for that.

    It knows no `tl.extra.cuda.gdc_*`, by which the launches of a stream overlap. Repaired: they do nothing,
    for it runs one launch after another. Nor the clock, `globaltimer`, and the multiprocessor, `smid`.
    Repaired: nanoseconds, and 0.

    `x.exp()` and the other functions of a float that are methods too fail, as nobody tells them where to
    build. Repaired. `x.T` passes by the builder, from which others learn that lanes exchange values, and
    takes a tile with any number of axes. Repaired: a permutation of two axes, as the compiler makes of it.

    It knows no atomics through tensor descriptors. Repaired.

    It fills lanes that a mask turns off with a constant of 8 or 16 bits whose first bit is 1, as -128. On a
    GPU of NVIDIA, where a lane loads several of them at once, only one has it and the others have -1 (3.6.0
    and 3.7.1). Repaired: ValueError.

    Arithmetic and comparisons of fp8 are of its bits; the compiler takes none. Repaired: TypeError.

    Calling it again changes nothing.
    """
    if isinstance(interpreter._interpreter, _Memory):
        return
    builder: Any = interpreter.InterpreterBuilder
    # Of the unary ones only negation meets bf16, and only from Triton 3.9 on: before, it is a subtraction.
    for name in ("binary_op", "unary_op", "create_fma"):
        setattr(builder, name, _in_fp32(_without_fp8(getattr(builder, name))))
    builder.ternary_op = _in_fp32(builder.ternary_op)
    builder.create_atomic_rmw = _undefined_where_masked(builder.create_atomic_rmw)
    builder.create_descriptor_reduce = _reduced_into_descriptor
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _converting(getattr(builder, name)))
    builder.create_dot = _dot_of_wide(builder.create_dot)
    builder.get_bf16 = lambda self, value: _narrow(self.get_fp32(value))
    if VERSION < (3, 7):  # which has no constants of fp8, nor has its compiler
        for scalar in _FP8:
            setattr(builder, f"get_{scalar}", _refused_constant(scalar))
    builder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, larger)
    builder.create_minnumf = lambda self, one, other: self.binary_op(one, other, smaller)
    builder.create_clampf = _clamped_as_asked(builder.create_clampf)
    builder.create_masked_load = _poisoned_where_undefined(builder.create_masked_load)
    builder.create_gather = _undefined_outside(builder.create_gather)
    for name in ("get_int8", "get_uint8", "get_int16", "get_uint16", "get_int32", "get_uint32", "get_int64",
                 "get_uint64", "get_fp16", "get_bf16", "get_fp32", "get_fp64"):  # fmt: skip
        setattr(builder, name, _of_a_constant(getattr(builder, name)))
    for name in ("cast_impl", "create_splat", "create_broadcast", "create_expand_dims"):
        setattr(builder, name, _constant_as_before(getattr(builder, name)))
    reductions: Any = interpreter.ReduceOps
    scans: Any = interpreter.ScanOps
    # Of these, only sums meet bf16 before Triton 3.9.
    for operations, name in (
        (reductions, "sum"), (reductions, "min_max"), (scans, "cumsum"), (scans, "cumprod"),
    ):  # fmt: skip
        setattr(operations, name, _reduced_in_fp32(getattr(operations, name)))
    reductions.sum = _summed_as_halves(reductions.sum)
    reductions.generic_reduce = _reduced_by_pairs
    scans.generic_scan = _scanned_by_rewritten(scans.generic_scan)
    reductions.apply_impl = _passing_nan_by(reductions.apply_impl)
    interpreter._interpreter = _Memory(interpreter._interpreter)
    patch: Any = _with_the_truth_of_tiles(interpreter._patch_lang_tensor)
    patch = _with_functions_as_methods(_with_launches_in_order(patch))
    interpreter._patch_lang_tensor = _without_fills_that_are_packed_wrongly(patch)


def guard_interpreted_kernels(
    guard: Callable[..., AbstractContextManager[None]], is_guarded: Callable[[], bool]
) -> None:
    """Let the interpreter run every kernel under a guard, also one that is called as `kernel[grid](...)`.

    Autotuners and heuristics end in the same method. Calling this again changes nothing.

    Args:
        is_guarded: whether the caller has seen to that already.
        guard: from the kernel, its positional and its keyword arguments, whose tensors are on the CPU, to
            what is open while its programs run. Keyword arguments come in the order of the parameters.

    Raises:
        TracingError: (inside) torch traces the call, or has given a tensor that has no memory.
    """
    plain: Any = interpreter.InterpretedFunction.run
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def guarded(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        if warmup or is_guarded():
            return plain(self, *args, grid=grid, warmup=warmup, **keywords)
        refuse_tracing()
        refuse_fakes(*args, *keywords.values())
        keywords = {name: keywords[name] for name in (*self.arg_names, *keywords) if name in keywords}
        # As `GridExecutor.__call__` does: tensors of a GPU are copied to the CPU and back, and views of one
        # storage stay views of one.
        copier: Any = interpreter.GridExecutor(self.fn, self.arg_names, grid)
        on_cpu, keywords_on_cpu = copier._init_args_hst(args, keywords)
        with guard(self, tuple(on_cpu), keywords_on_cpu):
            result = plain(self, *on_cpu, grid=grid, warmup=warmup, **keywords_on_cpu)
        copier._restore_args_dev(args, on_cpu, keywords, keywords_on_cpu)
        return result

    interpreter.InterpretedFunction.run = guarded


_TRITON = os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), "")


def is_tritons(file: str) -> bool:
    """True for a file of Triton's own."""
    return file.startswith(_TRITON)


_NEITHER = "neither true nor false as a whole"
_SEMANTIC = tl.semantic.TritonSemantic.__init__.__code__.co_filename


def _with_the_truth_of_tiles(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        plain = tensor.__bool__

        def truth(self: Any) -> bool:
            size, caller = self.handle.data.size, sys._getframe(1).f_code.co_filename
            # It asks `if mask` or `if other` for whether there is one, be it a single 0.
            if caller == _SEMANTIC:
                return True
            if size > 1 and not is_tritons(caller):
                raise ValueError(
                    f"a tile of {size} elements is {_NEITHER}: "
                    "`if`, `and`, `or`, `not` and `assert` take a single value"
                )
            return bool(plain(self))

        scope.set_attr(tensor, "__bool__", truth)
        # As Triton has it from 3.7 on: numpy makes no whole number of an array with dimensions.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return repaired


def _with_launches_in_order(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        for name in ("gdc_wait", "gdc_launch_dependents"):
            scope.set_attr(tl.extra.cuda, name, lambda: None)
        scope.set_attr(tl.extra.cuda, "globaltimer", lambda: _scalar_of(time.time_ns(), tl.int64))
        scope.set_attr(tl.extra.cuda, "smid", lambda: _scalar_of(0, tl.int32))

    return repaired


def _of_a_constant(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(self: Any, *given: Any) -> Any:
        handle = make(self, *given)
        handle.is_constant = True
        return handle

    return made


def _constant_as_before(change: Callable[..., Any]) -> Callable[..., Any]:
    """Of a constant the result is one too, to the compiler; arithmetic is not followed."""

    @wraps(change)
    def changed(self: Any, one: Any, other: Any) -> Any:
        result = change(self, one, other)
        if getattr(one, "is_constant", False) or getattr(other, "is_constant", False):
            result.is_constant = True
        return result

    return changed


def _filled_with(other: Any, element: Any) -> int | None:
    """The constant with which a load of integers fills; None where the compiler does not know it."""
    other = tl.core._unwrap_if_constexpr(other)
    if isinstance(other, float) and math.isfinite(other):
        return int(other)
    if isinstance(other, tl.tensor) and getattr(other.handle, "is_constant", False):
        other = other.handle.data.flat[0].astype(interpreter._get_np_dtype(element)).item()
    return other if isinstance(other, int) else None


def _without_fills_that_are_packed_wrongly(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        plain: Any = tl.load
        if tensor is not tl.tensor or hasattr(plain, "__wrapped__"):
            return

        @wraps(plain)
        def load(pointer: Any, mask: Any = None, other: Any = None, *given: Any, **named: Any) -> Any:
            kind = pointer.type
            element = kind.scalar.element_ty if kind.is_block() and kind.scalar.is_ptr() else tl.int1
            bits = element.primitive_bitwidth
            if mask is not None and other is not None and element.is_int() and 1 < bits < 32:
                fill, ones = _filled_with(other, element), (1 << bits) - 1
                if fill is not None and (fill & ones) >> (bits - 1) and fill & ones != ones:
                    raise ValueError(
                        f"other={fill} of {element}: where a GPU's lane loads several at once, Triton fills "
                        "all but one with -1. Write tl.where(mask, tl.load(pointer, mask=mask, other=0), "
                        f"tl.full([1], {fill}, tl.{element.name}))"
                    )
            return plain(pointer, mask, other, *given, **named)

        scope.set_attr(tl, "load", load)

    return repaired


def _scalar_of(value: int, dtype: Any) -> Any:
    stored = np.array([value], interpreter._get_np_dtype(dtype))
    return tl.core.tensor(interpreter.TensorHandle(stored, dtype), dtype)


def _with_functions_as_methods(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        for name, method in _methods_without_semantic().items():
            scope.set_attr(tensor, name, method)
        permute = interpreter.interpreter_semantic.permute
        scope.set_attr(tensor, "T", property(lambda self: permute(self, (1, 0))))

    return repaired


@cache
def _methods_without_semantic() -> dict[str, Any]:
    """Methods of a tensor that are to be told where to build, and that Triton does not know for such."""
    return {
        name: partialmethod(method, _semantic=interpreter.interpreter_semantic)
        for name, method in inspect.getmembers(tl.tensor, inspect.isfunction)
        if "_semantic" in inspect.signature(method).parameters and not tl.core.is_builtin(method)
    }


_FP8 = {
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5b16: torch.float8_e5m2fnuz,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}


@cache
def _values_of_fp8(dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """The value of each of the 256 patterns of bits."""
    values: npt.NDArray[np.float32] = (
        torch.arange(256, dtype=torch.uint8, device="cpu").view(dtype).float().numpy()
    )
    of_nan = np.flatnonzero(np.isnan(values))
    if len(of_nan) > 1:  # torch writes the first of each sign
        values[of_nan[-1]] = UNDEFINED_FP32
    return values


def _from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Exact: the same bits, followed by sixteen zeros."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bf16(values: npt.NDArray[Any], toward_zero: bool = False) -> npt.NDArray[np.uint16]:
    """Rounded to nearest even (or toward zero); NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(values.shape)
    rounded = bits if toward_zero else bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded >> 16).astype(np.uint16)


def _to_fp8(values: npt.NDArray[Any], dtype: torch.dtype) -> npt.NDArray[np.uint8]:
    """Rounded to nearest even; what is too large becomes the largest, as on NVIDIA GPUs; NaN stays NaN."""
    most = torch.finfo(dtype).max
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape))
    bits: npt.NDArray[np.uint8] = wide.clamp(-most, most).to(dtype).view(torch.uint8).numpy()
    return bits


def _is_bf16(value: Any) -> bool:
    return isinstance(value, interpreter.TensorHandle) and value.dtype.scalar == tl.bfloat16


def widen(value: Any) -> Any:
    """bf16 and fp8 to fp32, exact; all else as it is."""
    if _is_bf16(value):
        return interpreter.TensorHandle(_from_bf16(value.data), tl.float32)
    if isinstance(value, interpreter.TensorHandle) and value.dtype.scalar in _FP8:
        return interpreter.TensorHandle(_values_of_fp8(_FP8[value.dtype.scalar])[value.data], tl.float32)
    return value


def _narrow(value: Any) -> Any:
    return interpreter.TensorHandle(_to_bf16(value.data), tl.bfloat16)


def _in_fp32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        if not any(map(_is_bf16, operands)):
            return operation(self, *operands)
        result = operation(self, *map(widen, operands))
        return result if result.data.dtype == np.bool_ else _narrow(result)

    return repaired


def _without_fp8(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        for operand in operands:
            if isinstance(operand, interpreter.TensorHandle):
                _refuse_fp8(operand.dtype)
        return operation(self, *operands)

    return repaired


def _refuse_fp8(dtype: Any) -> None:
    if dtype.scalar in _FP8:
        raise TypeError(f"a GPU does not compute with {dtype.scalar}: convert first, as in x.to(tl.float16)")


def _refused_constant(scalar: Any) -> Callable[..., Any]:
    def refused(self: Any, value: object) -> Any:
        raise TypeError(f"Triton {triton.__version__} makes no {scalar} of {value}: convert first")

    return refused


def _converting(convert: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        wide, scalar = widen(source), target.scalar
        toward_zero = rounding == (interpreter._ir.ROUNDING_MODE.RTZ,)
        if scalar == tl.bfloat16:
            return interpreter.TensorHandle(_to_bf16(wide.data, toward_zero), scalar)
        if scalar in _FP8 and not toward_zero:
            return interpreter.TensorHandle(_to_fp8(wide.data, _FP8[scalar]), scalar)
        return convert(self, source, target, *rounding) if wide is source else self.cast_impl(wide, target)

    return repaired


def _dot_of_wide(dot: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widen(a), widen(b), *rest)

    return repaired


# The largest and smallest that are numbers: numpy's own warn where there is none, which Triton has NaN for.
_WITHOUT_NAN = {np.nanmax: largest, np.nanmin: smallest}


def _reduced_in_fp32(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, values: Any, **operations: Any) -> Any:
        operations = {name: _WITHOUT_NAN.get(value, value) for name, value in operations.items()}
        _refuse_fp8(values.dtype)
        if not _is_bf16(values.handle):
            return reduce(self, values, **operations)
        wide = tl.core.tensor(widen(values.handle), values.type.with_element_ty(tl.float32))
        results = reduce(self, wide, **operations)
        return type(results)(map(narrow, results)) if isinstance(results, tuple | list) else narrow(results)

    def narrow(result: Any) -> Any:
        if result.dtype != tl.float32:
            return result  # where the largest is
        return tl.core.tensor(_narrow(result.handle), result.type.with_element_ty(tl.bfloat16))

    return repaired


def _summed_as_halves(sum_of: Callable[..., Any]) -> Callable[..., Any]:
    """Sums of fp16: of the first half and the second, until one is left, as by a function of one's own."""

    def repaired(self: Any, values: Any) -> Any:
        data = values.handle.data
        if data.dtype != np.float16:
            return sum_of(self, values)
        axis, shape = self.axis, list(data.shape)
        if axis is None:
            data, axis = data.reshape(-1), 0
        data = np.moveaxis(data, axis, 0)
        while (length := len(data)) > 1:
            data = data[: length // 2] + data[length // 2 :]
        kept = [1] * len(shape) if self.axis is None else [*shape[:axis], 1, *shape[axis + 1 :]]
        return self.to_tensor(data.reshape(kept) if self.keep_dims else data[0], values.dtype)

    return repaired


def _clamped_as_asked(clamp: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, value: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == tl.PropagateNan.ALL:
            return clamp(self, value, low, high, propagate_nan)
        return self.create_minnumf(self.create_maxnumf(value, low), high)

    return repaired


def _passing_nan_by(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions that give an index, where there is NaN: by the function that a GPU is given."""
    standard: Any = tl.standard
    with_indices = (standard._argmax_combine_tie_break_left, standard._argmin_combine_tie_break_left)

    def repaired(self: Any, tiles: tuple[Any, ...]) -> Any:
        if any(self.combine_fn is each for each in with_indices):
            values = widen(tiles[0].handle).data
            if np.issubdtype(values.dtype, np.floating) and np.isnan(values).any():
                found = self.generic_reduce(tiles)
                is_undefined = undefined_along(values, self.axis, self.keep_dims)
                return [_undefined_where(is_undefined, result) for result in found]
        return apply(self, tiles)

    return repaired


def _undefined_where(is_undefined: npt.NDArray[np.bool_], result: Any) -> Any:
    data = result.handle.data
    values = np.where(is_undefined.reshape(data.shape), _undefined(data.shape, result.dtype), data)
    return tl.core.tensor(interpreter.TensorHandle(values, result.dtype), result.type)


def _poisoned_where_undefined(load: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, pointers: Any, mask: Any, other: Any, *hints: Any, **named_hints: Any) -> Any:
        # The mask of a block pointer is a plain array, whose `data` is a memoryview.
        if other is None and np.count_nonzero(lanes := np.asarray(mask.data)) < lanes.size:
            dtype = pointers.get_element_ty()
            # Of a pointer's shape, since that of a mask may still have to be broadcast to it.
            other = interpreter.TensorHandle(_undefined(pointers.data.shape, dtype), dtype)
        return load(self, pointers, mask, other, *hints, **named_hints)

    return repaired


def _undefined_where_masked(atomic: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *semantics: Any) -> Any:
        result = atomic(self, operation, pointers, value, mask, *semantics)
        if np.count_nonzero(mask.data) < mask.data.size:
            values = _undefined(result.data.shape, result.dtype.scalar)
            result.data = np.where(mask.data, result.data, values)
        return result

    return repaired


def _undefined_outside(gather: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, source: Any, indices: Any, axis: int) -> Any:
        size = source.data.shape[axis]
        # As one comparison: of a negative index the bits are a large number.
        is_inside = indices.data.view(f"u{indices.data.itemsize}") < size
        if is_inside.all():
            return gather(self, source, indices, axis)
        inside = interpreter.TensorHandle(np.where(is_inside, indices.data, 0), indices.dtype)
        result = gather(self, source, inside, axis)
        values = _undefined(result.data.shape, result.dtype.scalar)
        result.data = np.where(is_inside, result.data, values)
        return result

    return repaired


def _reduced_into_descriptor(self: Any, kind: Any, descriptor: Any, value: Any, indices: Any) -> Any:
    """An atomic operation with each element of a tensor descriptor's block."""
    pointers, mask = descriptor.materialize_pointers(indices)
    ir: Any = interpreter._ir
    name, dtype = kind.name, value.dtype.scalar
    if name == "ADD" and dtype.is_floating():
        name = "FADD"
    elif name in ("MIN", "MAX") and dtype.is_int_unsigned():
        name = f"U{name}"
    operation = getattr(ir.ATOMIC_OP, name)
    lanes = interpreter.TensorHandle(np.asarray(mask), tl.int1)
    relaxed, scope = ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU
    return self.create_atomic_rmw(operation, pointers, value, lanes, relaxed, scope)


def _undefined(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Undefined values as the interpreter keeps them."""
    stored = interpreter._get_np_dtype(dtype)
    if dtype == tl.bfloat16:
        return np.full(shape, BITS_OF_BF16, stored)
    if dtype in _FP8:
        return np.full(shape, np.flatnonzero(np.isnan(_values_of_fp8(_FP8[dtype])))[-1], stored)
    return undefined(shape, stored)


def _reduced_by_pairs(self: Any, tiles: tuple[Any, ...]) -> list[Any]:
    """`tl.reduce` by any function: the first half with the second, all pairs at once, until one is left.

    Triton's own takes the elements one by one, a tenth of a millisecond each. Halves and not neighbors, as
    lanes of a GPU combine with those far away first: a function that is right for elements in order only
    gives a wrong result here too.
    """
    rank = len(tiles[0].handle.data.shape)
    tiles, axis = self.unravel(tiles, self.axis)
    before = (slice(None),) * axis
    while tiles[0].handle.data.shape[axis] > 1:
        half = tiles[0].handle.data.shape[axis] // 2
        first, second = (
            [self.to_tensor(tile.handle.data[(*before, part)], tile.dtype) for tile in tiles]
            for part in (slice(half), slice(half, None))
        )
        tiles = _combined(self, [*first, *second])
    results = [tile.handle.data.squeeze(axis) for tile in tiles]
    if self.keep_dims:
        kept = (axis,) if self.axis is not None else tuple(range(rank))
        results = [np.expand_dims(result, kept) for result in results]
    return [self.to_tensor(result, tile.dtype) for result, tile in zip(results, tiles, strict=True)]


def _scanned_by_rewritten(scan: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, tiles: tuple[Any, ...]) -> Any:
        plain = self.combine_fn
        self.combine_fn = SimpleNamespace(fn=plain.rewrite())
        try:
            return scan(self, tiles)
        finally:
            self.combine_fn = plain

    return repaired


def _combined(reduction: Any, operands: list[Any]) -> tuple[Any, ...]:
    """What a reduction's function makes of tiles; of one element after another, where it branches."""
    combine = reduction.combine_fn.rewrite()
    try:
        combined = combine(*operands)
    except ValueError as error:
        if _NEITHER not in str(error):
            raise
    else:
        return combined if isinstance(combined, tuple) else (combined,)
    arrays = [operand.handle.data for operand in operands]
    results = [np.empty_like(array) for array in arrays[: len(arrays) // 2]]
    for place in np.ndindex(arrays[0].shape):
        scalars = [
            reduction.to_tensor(array[place], operand.dtype)
            for array, operand in zip(arrays, operands, strict=True)
        ]
        combined = combine(*scalars)
        for result, part in zip(results, combined if len(results) > 1 else (combined,), strict=True):
            result[place] = part.handle.data.item()
    return tuple(
        reduction.to_tensor(result, operand.dtype) for result, operand in zip(results, operands, strict=False)
    )


class _Memory:
    """The interpreter's memory functions, with an exchange of floats and an atomic add of bf16.

    The latter comes to them as uint16.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any) -> Any:
        if operation == self._plain.RMW_OP.XCHG and value.dtype.kind == "f":
            bits = value.view(f"u{value.itemsize}")
            return self._plain.atomic_rmw(operation, pointers, bits, mask, semantics).view(value.dtype)
        if operation != self._plain.RMW_OP.FADD or value.dtype != np.uint16:
            return self._plain.atomic_rmw(operation, pointers, value, mask, semantics)
        # One program runs at a time, so a plain read, add and write is atomic; lanes go one by one, since
        # several may name one address.
        lanes = zip(pointers.flat, value.flat, mask.flat, strict=True)
        return np.array([self._add(*lane) for lane in lanes], np.uint16).reshape(value.shape)

    def _add(self, address: np.uint64, addend: np.uint16, active: np.bool_) -> np.uint16:
        """Add at `address` where `active`; what was there before."""
        where, mask = np.array([address]), np.array([active])
        old = self._plain.load(where, mask, np.zeros(1, np.uint16), np.dtype(np.uint16))
        total = _from_bf16(old) + _from_bf16(np.array([addend]))
        self._plain.store(where, _to_bf16(total), mask)
        return np.uint16(old[0])
