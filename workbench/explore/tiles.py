"""Explorer of a matrix product's tile sizes: compiles, rates and measures configurations.

Combines `kernels`, `lens` and `bench`, which do not import widgets, with `viz`, which times nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from typing import Any

import torch

from workbench.runtime import compiler

_BUILDER = "workbench.lens._build"
compiler.warm_up(_BUILDER)  # starts while the imports below run

# ruff: noqa: E402
from workbench import compat, device, lens
from workbench.bench import baseline, ceilings, data, recording
from workbench.bench.data import INT8
from workbench.bench.recording import Line
from workbench.bench.roofline import Ceilings, Point
from workbench.bench.timing import measure_together
from workbench.errors import (
    InvalidArgumentError,
    KernelError,
    NotMeasurableError,
    TensorMismatchError,
    WorkerError,
    check_each,
    check_name,
    check_positive,
    check_type,
)
from workbench.kernels import gemm
from workbench.kernels.tile import order
from workbench.launch import Launch, Work
from workbench.lens.compile import CompiledStep
from workbench.lens.targets import TARGETS, Target
from workbench.operators.drawing import draw_arguments
from workbench.operators.registry import named
from workbench.viz.gemm.tile_explorer import ExploredTile, TileConfiguration, TileExplorerWidget

TARGETS_OFFERED = ("sm_90", "sm_80", "gfx942")
THIS_TILE = "this tile"

# The values of each control; those that `gemm.launch` does not accept are left out.
_SIDES = (16, 32, 64, 96, 128, 192, 256)
_CANDIDATES: Mapping[str, tuple[Any, ...]] = {
    "template": ("simple", "persistent"),
    "descriptors": (False, True),
    "block_m": _SIDES,
    "block_n": _SIDES,
    "block_k": _SIDES,
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6),
    "group": (1, 2, 4, 8, 16, 32),
}

# Do not compile if the output's tile alone needs more than this many times the registers a thread can have:
# the compiler would take minutes, only to spill them.
_MOST_TIMES_REGISTERS = 2

# torch needs sizes in bytes that fit into 64 bits.
_MOST_BYTES = 2**63


def tile_sizes(
    shape: Sequence[int] = (4096, 4096, 4096),
    dtype: str = "fp16",
    targets: Sequence[str] = TARGETS_OFFERED,
    *,
    roofs: Mapping[str, Ceilings] | None = None,
    theme: str | None = None,
) -> TileExplorerWidget:
    """Return a widget that moves a GEMM's tile and shows registers, occupancy, waves and the roof.

    The shipped kernel is compiled for each choice; no GPU is needed, and nothing runs. If there is a GPU, a
    button measures the choice and the vendor's library.

    Args:
        shape: m, n and k.
        dtype: dtype of A and B, as in recordings of products: "fp16", "bf16", "tf32", ..., or "int8".
        targets: names of architectures (see `lens.targets`); the first is the initial choice.
        roofs: measured roofs by target name; for other targets, those of a shipped recording.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above, or this machine cannot reserve
            memory for the matrices, which a launch needs although nothing reads them.
        UnknownNameError: the dtype, a target, or the theme is unknown.
    """
    names = check_each("targets", targets, str, 'Give names in a tuple, such as ("sm_90", "gfx942").')
    if not names:
        raise InvalidArgumentError("targets", "got none", 'Give at least one, such as ("sm_90",).')
    for name in names:
        check_name("target", name, TARGETS)
    explorer = _GemmExplorer.checked(shape, dtype, roofs)
    compiler.warm_up(_BUILDER)  # while controls are made; it may have been stopped since the import
    first = explorer.first(names[0])
    choices: dict[str, Sequence[Any]] = {"target": names}
    choices |= {name: explorer.accepted(first, name) for name in _CANDIDATES}
    measure = explorer.measure if device.current().is_gpu else None
    return TileExplorerWidget(explorer.explore, choices, first, measure=measure, theme=theme)


def tile(
    configuration: TileConfiguration,
    shape: Sequence[int] = (4096, 4096, 4096),
    dtype: str = "fp16",
    *,
    roofs: Mapping[str, Ceilings] | None = None,
) -> ExploredTile:
    """Compile and rate one configuration; :func:`workbench.viz.tile_explorer_figure` draws the result.

    If the kernel rejects the configuration, it does not compile, or it does not fit the target, `problem` in
    the result says why.

    Args:
        configuration: the configuration.
        shape, dtype, roofs: as for :func:`tile_sizes`.

    Raises:
        as :func:`tile_sizes`.
    """
    check_type("configuration", configuration, TileConfiguration, "Give a TileConfiguration.")
    check_name("target", configuration.target, TARGETS)
    return _GemmExplorer.checked(shape, dtype, roofs).explore(configuration)


def intensity(tile: tuple[int, int], itemsize: int, *, tiles: int = 1, rows: int = 1, cols: int = 1) -> float:
    """Return FLOP per byte of output tiles that load their shared tiles of A and B once.

        intensity = 2 * tiles * m * n / ((rows * m + cols * n) * itemsize)

    A step of depth k along K takes 2 m n k FLOPs for each tile, and loads `rows` tiles of A (m x k) and
    `cols` tiles of B (k x n); k cancels out.

    Args:
        tile: m and n of a tile.
        itemsize: size of an element of A and B in bytes.
        tiles: number of tiles in the group.
        rows, cols: number of rows and columns of tiles that the group spans.
    """
    m, n = tile
    return 2 * tiles * m * n / ((rows * m + cols * n) * itemsize)


@dataclass(frozen=True)
class _GemmExplorer:
    """Compiles, rates and measures configurations of one matrix product.

    Attributes:
        shape: m, n, k.
        dtype: dtype of A and B, by its name in recordings.
        a, b, output: tensors that are never written to or read from.
        roofs: roofs by target name.
    """

    shape: tuple[int, int, int]
    dtype: str
    a: torch.Tensor
    b: torch.Tensor
    output: torch.Tensor
    roofs: Mapping[str, Ceilings]

    @classmethod
    def checked(cls, shape: Sequence[int], dtype: str, roofs: Mapping[str, Ceilings] | None) -> _GemmExplorer:
        """Check the arguments of :func:`tile_sizes`."""
        sizes = check_each("shape", shape, int, "Give m, n and k, such as (4096, 4096, 4096).")
        if len(sizes) != 3:
            raise InvalidArgumentError("shape", f"got {tuple(sizes)}", "Give three sizes: m, n and k.")
        m, n, k = (check_positive(f"shape[{i}]", size) for i, size in enumerate(sizes))
        check_name("dtype", dtype, (*recording.FLOATS, INT8))
        kind = torch.int8 if dtype == INT8 else data.torch_dtype(dtype)
        check_type("roofs", roofs, Mapping | None, 'Give Ceilings by target: {"sm_80": roofs}, or None.')
        for name, given in (roofs or {}).items():
            check_name("target", name, TARGETS)
            check_type(f"roofs[{name!r}]", given, Ceilings, "Give Ceilings.")
        a, output = _uninitialized((m, k), kind), _uninitialized((m, n), gemm.result_dtype(kind))
        is_transposed = baseline.product_layout(dtype) == "nt"
        b = _uninitialized((n, k), kind).t() if is_transposed else _uninitialized((k, n), kind)
        return cls((m, n, k), dtype, a, b, output, dict(roofs or {}))

    def first(self, target: str) -> TileConfiguration:
        """Return a configuration in which a row of A's tile has 128 bytes, a cache line."""
        return TileConfiguration(target=target, block_k=max(128 // self.a.element_size(), 16))

    def accepted(self, first: TileConfiguration, name: str) -> list[Any]:
        """Return the candidates for an attribute that the kernel's invoker accepts."""
        return [value for value in _CANDIDATES[name] if self._is_accepted(replace(first, **{name: value}))]

    def _is_accepted(self, chosen: TileConfiguration) -> bool:
        try:
            self._launch(chosen, self.a, self.b, self.output, on=chosen.target)
        except InvalidArgumentError:
            return False
        return True

    def explore(self, chosen: TileConfiguration) -> ExploredTile:
        """Compile and rate a configuration."""
        on = TARGETS[chosen.target]
        roofs, points = self._known(on)  # read first, because the compiler may still be starting
        step, problem, at_a_time = self._compiled(chosen, on)
        m, n, _ = self.shape
        rows, cols = -(-m // chosen.block_m), -(-n // chosen.block_n)
        of_tile = partial(intensity, (chosen.block_m, chosen.block_n), self.a.element_size())
        wave = _wave(rows, cols, at_a_time, chosen.group) if at_a_time else {}
        return ExploredTile(
            configuration=chosen,
            on=on,
            shape=self.shape,
            dtype=self.dtype,
            step=step,
            problem=problem,
            tiles=rows * cols,
            at_a_time=at_a_time,
            share=self._share(chosen, rows * cols, on.sms) if at_a_time else 0.0,
            tile_intensity=of_tile(),
            wave_intensity=of_tile(**wave) if wave else 0.0,
            intensity=self._work.flops / self._work.bytes,
            roofs=roofs,
            points=points,
        )

    def measure(self, chosen: TileConfiguration) -> tuple[Point, ...]:
        """Time the configuration and the vendor's libraries in turns on this machine's GPU.

        Returns:
            the point of the fastest library, then the point of the configuration.

        Raises:
            NotMeasurableError: the configuration is for another architecture.
        """
        here = device.current()
        if here.architecture != chosen.target:
            raise NotMeasurableError(
                f"{here.name} is {here.architecture}, not {chosen.target}: "
                f"choose {here.architecture} to measure."
            )
        a, b = draw_arguments(named("matmul"), self._case, self.dtype, here.torch_device).args
        candidates: dict[str, Any] = {THIS_TILE: self._launch(chosen, a, b, on=None)}
        if self.dtype == INT8:
            # torch.matmul would return int8; of the vendor's libraries only this one returns int32.
            library = next(name for name in baseline.VENDOR_LIBRARIES[here.kind] if name.endswith("Lt"))
            candidates[library] = partial(baseline.product, a, b)
        else:
            for name in baseline.product_libraries(self.dtype):
                candidates[name] = baseline.get(name).call(baseline.product, a, b)
        with baseline.precision(self.dtype) if self.dtype != INT8 else nullcontext():
            measured = measure_together(candidates, rounds=2, rep_ms=40)
        today = datetime.now(UTC).date().isoformat()
        seconds = {name: each.median_ms / 1e3 for name, each in measured.items()}
        own = self._point(THIS_TILE, seconds.pop(THIS_TILE), here.name, today)
        best = min(seconds, key=lambda name: seconds[name])
        return self._point(best, seconds[best], here.name, today), own

    def _point(self, provider: str, seconds: float, device_name: str, when: str) -> Point:
        return Point(
            label=recording.in_short(self._case),
            provider=provider,
            op="matmul",
            dtype=self.dtype,
            flops=self._work.flops,
            bytes=self._work.bytes,
            seconds=seconds,
            device=device_name,
            when=when,
            recorded=False,
        )

    def _launch(
        self,
        chosen: TileConfiguration,
        a: torch.Tensor,
        b: torch.Tensor,
        output: torch.Tensor | None = None,
        *,
        on: str | None,
    ) -> Launch:
        """Return the launch of a configuration, planned for the target `on`; None for this machine's GPU."""
        return gemm.launch(
            a,
            b,
            output=output,
            tile=(chosen.block_m, chosen.block_n, chosen.block_k),
            group=chosen.group,
            splits=1,
            precision="tf32" if self.dtype == "tf32" else "ieee",
            template=chosen.template,
            descriptors=chosen.descriptors,
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            device=on,
        )

    def _compiled(self, chosen: TileConfiguration, on: Target) -> tuple[CompiledStep | None, str, int]:
        """Return the compiled kernel or None, why it cannot run or "", and its concurrent programs."""
        try:
            launch = self._launch(chosen, self.a, self.b, self.output, on=chosen.target)
            if problem := self._too_large(chosen, on):
                return None, problem, 0
            (step,) = lens.compile(launch, chosen.target)
        except KernelError as error:
            return None, error.reason, 0
        except (InvalidArgumentError, TensorMismatchError, WorkerError) as error:
            return None, str(error), 0
        if step.problem:
            return step, step.problem, 0
        most = on.sms * step.occupancy.blocks
        # A persistent kernel has no more programs than its grid; others are limited by the GPU alone.
        return step, "", min(launch.steps[0].axes[0], most) if chosen.template == "persistent" else most

    def _too_large(self, chosen: TileConfiguration, on: Target) -> str:
        """Return why compiling the configuration would take too long; "" if it would not."""
        words = 2 if self.dtype == "fp64" else 1
        threads = chosen.num_warps * on.warp_size
        needed = chosen.block_m * chosen.block_n * words // threads
        if needed <= _MOST_TIMES_REGISTERS * on.most_registers_per_thread:
            return ""
        return (
            f"a thread would need {needed} registers for its part of the output's tile alone, and has "
            f"{on.most_registers_per_thread} at most: use more warps, or a smaller tile"
        )

    def _share(self, chosen: TileConfiguration, tiles: int, units: int) -> float:
        """Return useful FLOPs as a share of the GPU's capacity until the last tile is done."""
        m, n, k = self.shape
        k_padded = -(-k // chosen.block_k) * chosen.block_k
        most_tiles = -(-tiles // units)
        return m * n * k / (units * most_tiles * chosen.block_m * chosen.block_n * k_padded)

    @cached_property
    def _case(self) -> dict[str, Any]:
        m, n, k = self.shape
        return {"m": m, "n": n, "k": k, "layout": baseline.product_layout(self.dtype)}

    @cached_property
    def _work(self) -> Work:
        """FLOPs and bytes of the product, as recordings count them."""
        spec = named("matmul")
        work = spec.work_of(draw_arguments(spec, self._case, self.dtype, "meta"))
        assert work is not None  # a product's launch states it
        return work

    def _known(self, on: Target) -> tuple[Ceilings | None, tuple[Point, ...]]:
        """Return roofs for the dtype (given ones first), and recorded points of this matrix product."""
        roofed, other = _recorded_runs(on.product, self.dtype, tuple(self._case.items()))
        recorded = ceilings.from_recording(roofed) if roofed else None
        roofs = self.roofs.get(on.name, recorded)
        points = _best(roofed, self.dtype, self._case) or _best(other, self.dtype, self._case)
        return roofs if roofs is not None and self.dtype in roofs.matrix else None, points


def _uninitialized(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor: it reserves address space, but no memory until it is used.

    Raises:
        InvalidArgumentError: the system cannot reserve the address space.
    """
    rows, cols = shape
    needed = rows * cols * dtype.itemsize
    if needed < _MOST_BYTES:
        with suppress(RuntimeError):  # of torch's allocator
            return torch.empty(shape, dtype=dtype)
    given = f"a matrix of {rows:,} x {cols:,} takes {needed / 1e9:,.0f} GB, which this machine cannot reserve"
    raise InvalidArgumentError("shape", given, "Give smaller sizes.")


def _wave(rows: int, cols: int, programs: int, group: int) -> dict[str, int]:
    """Return the number of tiles of the first wave, and of the rows and columns of tiles that it spans."""
    place = compat.python_function(order.grouped)  # the kernel's own order
    places = [place(number, rows, cols, group) for number in range(min(programs, rows * cols))]
    taken = [len(set(numbers)) for numbers in zip(*places, strict=True)]
    return {"tiles": len(places), "rows": taken[0], "cols": taken[1]}


@cache
def _recorded_runs(
    product: str, dtype: str, case: tuple[tuple[str, Any], ...]
) -> tuple[list[Line], list[Line]]:
    """Return the last recorded run on a GPU with roofs, or [], and the last one of any kind.

    Runs with more points of the case take precedence. For some dtypes no run has both roofs and points.
    """
    runs = _runs(product)

    def rank(run: list[Line]) -> tuple[int, datetime]:
        return len(_best(run, dtype, dict(case))), run[-1].time

    roofed = max(filter(ceilings.has_roofs, runs), key=rank, default=[])
    return roofed, max(runs, key=rank, default=[])


@cache
def _runs(product: str) -> list[list[Line]]:
    """Return the shipped runs on a GPU product, each sorted by time."""
    runs: dict[str, list[Line]] = {}
    for line in sorted(recording.load_all(), key=lambda line: line.time):
        if product in line.device:
            runs.setdefault(line.run, []).append(line)
    return list(runs.values())


def _best(run: Sequence[Line], dtype: str, case: Mapping[str, Any]) -> tuple[Point, ...]:
    """Return the vendor's best point and that of `ops.matmul`, if the run has them."""
    lines = [line for line in run if (line.op, line.dtype, line.case) == ("matmul", dtype, case)]
    points = recording.points(lines)
    vendors = {name for names in baseline.VENDOR_LIBRARIES.values() for name in names}
    own = [point for point in points if point.provider == "workbench"]
    theirs = [point for point in points if point.provider in vendors]
    return tuple(min(each, key=lambda point: point.seconds) for each in (theirs, own) if each)
