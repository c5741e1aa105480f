"""Compile a kernel for a target and analyze the result. Use only in the compiler's process."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime.jit import compute_cache_key, create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import compat
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    MissingPackageError,
    WorkbenchError,
)
from workbench.launch import kernel_error
from workbench.lens._assembler import log_kept, serialized_wgmma
from workbench.lens._instructions import Instruction, from_assembly, from_sass
from workbench.lens._layouts import tensor_layouts
from workbench.lens._locations import Home, chains
from workbench.lens._step import CompiledStep, CompileRequest, DescriptorSpec, PointerSpec
from workbench.lens.targets import MOST_THREADS_PER_BLOCK, Occupancy, Target, occupancy, target
from workbench.runtime.source import KernelSource, forget_unpacked, unpack

compat.tell_compilers_apart_quickly()

MOST_TENSOR_MEMORY_COLUMNS = 512

# Only sm_90a, to which Triton compiles sm_90, has wgmma (PTX ISA, "wgmma.mma_async", target ISA notes).
WITH_WGMMA = "sm_90"

MOST_KEPT = 128
_built: dict[tuple[Any, ...], CompiledStep] = {}


def build(request: CompileRequest) -> CompiledStep:
    """Compile the kernel of `request`; the same specialization is compiled once.

    Raises:
        KernelError: the kernel does not compile; file and line are those of its source, if known.
        InvalidArgumentError: the target's vendor does not have an option.
        ArgumentTypeError: an integer option has another type.
        MissingPackageError: for NVIDIA targets, this build of Triton has no cuobjdump.
    """
    on = target(request.target)
    kernel = unpack(request.kernel)
    with _captured_output() as output:
        try:
            return _compiled(kernel, request, on)
        except WorkbenchError:
            raise
        except Exception as error:
            forget_unpacked()
            raise _with_kernel_line(kernel, error, output()) from None


def _compiled(kernel: Any, request: CompileRequest, on: Target) -> CompiledStep:
    gpu = _gpu(on)
    backend = make_backend(gpu)
    arguments = {name: _stand_in(value) for name, value in request.arguments}
    keywords = {name: _stand_in(value) for name, value in request.keywords}
    options = {name: value for name, value in keywords.items() if name not in arguments}
    _check_options(kernel, options, backend.parse_options({}).__dict__, on)
    # As `JITFunction.run` does it, but for a target that may not be this machine's.
    keywords["debug"] = keywords.get("debug", kernel.debug) or knobs.runtime.debug
    keywords["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(**arguments, **options)
    files = _files(request)
    key = (request.target, kernel.cache_key, files, compute_cache_key({}, specialization, options))
    if key not in _built:
        if len(_built) == MOST_KEPT:
            _built.clear()
        parsed, signature, constants, attributes = kernel._pack_args(
            backend, keywords, bound, specialization, options
        )
        made = GluonASTSource if kernel.is_gluon() else ASTSource
        source = made(kernel, signature, constants, attributes)
        # The key of Triton's cache on disk has a kernel's text, but not the file names in its line table.
        environment = {**get_cache_invalidating_env_vars(), "source_files": ":".join(files)}
        with log_kept():
            binary = triton.compile(source, target=gpu, options=parsed.__dict__, _env_vars=environment)
        _built[key] = _compiled_step(binary, backend, on, Home(request.kernel.file, request.kernel.line))
    return _built[key]


def _gpu(on: Target) -> GPUTarget:
    """Return the target as Triton names it."""
    if on.vendor == "NVIDIA":
        return GPUTarget("cuda", int(on.name.removeprefix("sm_")), on.warp_size)
    return GPUTarget("hip", on.name, on.warp_size)


class _Tensor:
    """A tensor without data, with what Triton's specialization asks for."""

    def __init__(self, pointer: PointerSpec) -> None:
        self.dtype = pointer.dtype
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer.misalignment

    def ptr_range(self) -> int:
        return 0 if self._pointer.is_within_2gb else 2**31


def _stand_in(value: Any) -> Any:
    if isinstance(value, PointerSpec):
        return _Tensor(value)
    if isinstance(value, DescriptorSpec):
        fields = dict(value.fields)
        made = GluonDescriptor if "layout" in fields else TensorDescriptor
        return made(base=_Tensor(value.base), **fields)
    if isinstance(value, KernelSource):
        return unpack(value)
    if isinstance(value, tuple):
        return compat.tuple_like(value, map(_stand_in, value))
    return value


def _check_options(kernel: Any, options: Mapping[str, Any], defaults: Mapping[str, Any], on: Target) -> None:
    argument = f"meta of {kernel.fn.__name__}"
    for name, value in options.items():
        if name not in defaults:
            raise InvalidArgumentError(
                argument,
                f"{on.vendor} GPUs have no option {name!r}",
                f"Leave it out to compile for {on.name}.",
            )
        # Triton takes None for the default.
        if type(defaults[name]) is int and type(value) not in (int, type(None)):
            raise ArgumentTypeError(
                argument, f"{name} is {value!r}, a {type(value).__name__}", "Give a whole number."
            )


def _files(request: CompileRequest) -> tuple[str, ...]:
    """Return the files of a kernel and of the functions it calls, and the folders of workbench and Triton."""
    files = {str(Path(__file__).parents[1]), str(Path(triton.__file__).parent)}
    sources: list[Any] = [request.kernel, *(value for _, value in request.arguments)]
    while sources:
        each = sources.pop()
        if isinstance(each, KernelSource):
            files.add(each.file)
            sources += [value for _, value in each.names]
        elif isinstance(each, tuple):
            sources += each
    return tuple(sorted(files))


def _compiled_step(binary: Any, backend: Any, on: Target, home: Home) -> CompiledStep:
    missing: dict[str, str] = {}
    # Gluon kernels have layouts from the start, so their first stage is TTGIR.
    written = ("ttgir", "llir") if isinstance(binary.src, GluonASTSource) else ("ttir", "ttgir", "llir")
    stages: dict[str, str] = {name: binary.asm[name] for name in written}
    if on.vendor == "NVIDIA":
        stages["ptx"] = binary.asm["ptx"]
        used = _nvidia_resources(binary.asm["cubin"], stages["ptx"])
        instructions = _nvidia_instructions(binary.asm["cubin"], stages, missing, home)
    else:
        stages["amdgcn"] = binary.asm["amdgcn"]
        used = _amd_resources(stages["amdgcn"])
        instructions = from_assembly(stages["amdgcn"], stages["llir"], home)
    try:
        layouts = tensor_layouts(stages["ttgir"], backend, home)
    except ValueError as error:
        layouts, missing["layouts"] = (), str(error)
    threads = binary.metadata.num_warps * on.warp_size
    shared = int(binary.metadata.shared)
    fit = occupancy(on, threads=threads, registers=used.registers, shared_bytes=shared)
    columns = getattr(binary.metadata, "tmem_size", None) or 0
    return CompiledStep(
        kernel=binary.src.name,
        target=on.name,
        file=home.file,
        stages=stages,
        missing=missing,
        registers=used.registers,
        spills=used.spills,
        shared_bytes=shared,
        local_bytes=used.local_bytes,
        serialized_wgmma=serialized_wgmma(binary.metadata.assembler_log) if on.name == WITH_WGMMA else None,
        threads=threads,
        warp_size=on.warp_size,
        instructions=instructions,
        layouts=layouts,
        occupancy=fit,
        problem=_problem(on, fit, threads, used.registers, shared, columns),
    )


@dataclass(frozen=True)
class _Resources:
    registers: int
    spills: int
    local_bytes: int


def _nvidia_resources(cubin: bytes, ptx: str) -> _Resources:
    tool = _tool("cuobjdump")
    if tool is None:
        raise MissingPackageError(
            "The resources that a kernel uses are read with cuobjdump, which this build of Triton does not "
            "have. Install NVIDIA's CUDA Toolkit and set TRITON_CUOBJDUMP_PATH to its bin/cuobjdump; AMD "
            "targets do not need it."
        )
    report = _run(tool, "-res-usage", binary=cubin)
    match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", report.stdout)
    if match is None:
        raise RuntimeError(
            f"{tool} printed no registers of the kernel: {report.stdout}{report.stderr}. Set "
            "TRITON_CUOBJDUMP_PATH to the cuobjdump of a newer CUDA Toolkit."
        )
    local = int(match[2]) + int(match[3])
    # Arrays of the kernel itself, such as the arguments of a print, are declared in PTX; what the assembler
    # adds to them are spills.
    own = sum(map(int, re.findall(r"^\s*\.local .*__local_depot\d+\[(\d+)\]", ptx, re.MULTILINE)))
    return _Resources(registers=int(match[1]), spills=max(local - own, 0) // 4, local_bytes=local)


def _amd_resources(amdgcn: str) -> _Resources:
    read = partial(_metadata, amdgcn)
    return _Resources(
        registers=read(".vgpr_count"),
        spills=read(".vgpr_spill_count"),
        local_bytes=read(".private_segment_fixed_size"),
    )


def _metadata(amdgcn: str, name: str) -> int:
    """Return a number from the code object's metadata, which ends the text."""
    return int(re.findall(rf"^\s+(?:- )?{re.escape(name)}:\s+(\d+)", amdgcn, re.MULTILINE)[-1])


def _nvidia_instructions(
    cubin: bytes, stages: dict[str, str], missing: dict[str, str], home: Home
) -> tuple[Instruction, ...]:
    """Return instructions from SASS, added to `stages`, or else from PTX, with the reason in `missing`."""
    tool = _tool("nvdisasm")
    if tool is None:
        missing["sass"] = "this build of Triton has no nvdisasm"
    else:
        report = _run(tool, "-gp", "-c", binary=cubin)
        if report.returncode == 0:
            instructions, stages["sass"] = from_sass(report.stdout, stages["ptx"], stages["llir"], home)
            return instructions
        missing["sass"] = report.stderr.strip() or f"nvdisasm exits with {report.returncode}"
    return from_assembly(stages["ptx"], stages["llir"], home)


def _tool(name: str) -> str | None:
    """Return the path of one of NVIDIA's tools, as Triton finds it; None if there is none."""
    try:
        path: str = getattr(knobs.nvidia, name).path
    except RuntimeError:
        return None
    return path


def _run(tool: str, *arguments: str, binary: bytes) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([tool, *arguments, file.name], capture_output=True, text=True, check=False)


def _problem(
    on: Target, fit: Occupancy, threads: int, registers: int, shared: int, tensor_memory_columns: int
) -> str:
    """Return why the target cannot run the kernel, and what to change; empty if it can."""
    if shared > on.most_shared_per_block:
        return (
            f"needs {shared} bytes of shared memory a block, and {on.name} has {on.most_shared_per_block}: "
            "use smaller tiles, or fewer num_stages"
        )
    if threads > MOST_THREADS_PER_BLOCK:
        return f"needs {threads} threads a block, and GPUs take {MOST_THREADS_PER_BLOCK}: use fewer num_warps"
    if tensor_memory_columns > MOST_TENSOR_MEMORY_COLUMNS:
        return (
            f"needs {tensor_memory_columns} columns of tensor memory, and {on.name} has "
            f"{MOST_TENSOR_MEMORY_COLUMNS}: use smaller tiles"
        )
    if not fit.blocks:
        return (
            f"needs {registers} registers a thread, too many for a block of {threads} threads: use smaller "
            "tiles, or fewer num_warps"
        )
    return ""


@contextlib.contextmanager
def _captured_output() -> Iterator[Any]:
    """Capture what the compilers print, to keep it out of the notebook; yield a function that reads it.

    The compilers are C++ and other processes, which write to the file descriptor of stderr, and Triton's
    Python, which uses `print`.
    """
    printed = io.StringIO()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def read() -> str:
            file.seek(0)
            return file.read().decode(errors="replace") + printed.getvalue()

        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield read
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _with_kernel_line(kernel: Any, error: Exception, output: str) -> KernelError:
    """Return `error` as a KernelError, with the kernel's line if the compiler's messages name one."""
    if isinstance(error, CompilationError):
        return kernel_error(kernel, error)
    function = compat.python_function(kernel)
    file = function.__code__.co_filename
    if match := re.search(rf'"?{re.escape(file)}"?:(\d+):\d+\)?: error: (.*)', output):
        line = int(match[1])
        return KernelError(
            function.__name__,
            _assertion(output) or match[2],
            file=file,
            line=line,
            source=linecache.getline(file, line),
        )
    if match := re.search(r"(?:error|fatal) *: +(.*(?:\n\s+.*)?)", output):
        found = _line_by_ptx(output, Home(file, compat.definition_line(kernel)))
        source = linecache.getline(file, found) if found else None
        return KernelError(function.__name__, match[1].strip(), file=file, line=found, source=source)
    return kernel_error(kernel, error)


def _assertion(output: str) -> str:
    """Return a sentence with the compiler's failed assertion, which says more than other messages; or ""."""
    failed = re.search(r"Assertion `(.*)' failed", output)
    return f"the compiler does not expect it: its assertion {failed[1]!r} fails" if failed else ""


def _line_by_ptx(output: str, home: Home) -> int | None:
    """Return the kernel's line if the assembler names a line of PTX; Triton prints that PTX after it."""
    complaint, _, rest = output.partition("Repro command:")
    line = re.search(r"ptxas.*\bline (\d+)", complaint)
    ptx = rest.partition("\n\n")[2].lstrip("\n")
    if line is None or not ptx:
        return None
    return home.split(chains(ptx, "")[int(line[1]) - 1])[1]
