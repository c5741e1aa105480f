"""What fusion saves: a fused launch beside the launches that it replaces, counted in traces of both.

Stands above `kernels` and `lens`, which do not know one another, and `viz`, which calls neither.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from workbench.bench import ceilings, recording
from workbench.bench.roofline import Ceilings, Point
from workbench.errors import InvalidArgumentError, check_each, check_name, check_positive, check_type
from workbench.kernels import (
    elementwise,
    epilogues,
    epilogues_unfused,
    gemm,
    gemm_gated,
    gemm_pair,
    gemm_rows,
    normalization,
    reduction,
    softmax,
)
from workbench.kernels.epilogues import Epilogue
from workbench.launch import Launch
from workbench.lens.attention import TensorBytes, attention_bytes
from workbench.viz.fusion_explorer import (
    MOST_FUNCTORS,
    ExploredFusion,
    FusedTensor,
    FusionChoice,
    FusionExplorerWidget,
    FusionKernel,
)

# What gates a product, by operator.
_GATES = {"swiglu": "silu", "geglu": "gelu"}

# The operators of `ops` that have two plans.
OPERATORS = (
    *(f"matmul_{name}" for name in (*gemm_rows.OPERATORS, *gemm_rows.REDUCTIONS)),
    "matmul_matmul", *_GATES,
)  # fmt: skip

_NORMS = ("layer_norm", "rms_norm")

# What the explorer offers: the sizes of a functor's tensor, in letters of m, n and k; and the functor.
_Made = Callable[..., Epilogue]
FUNCTORS: Mapping[str, tuple[str, _Made]] = {
    "add": ("mn", epilogues.add),
    "bias": ("n", epilogues.bias),
    "multiply": ("mn", epilogues.multiply),
    "row_scale": ("m", epilogues.row_scale),
    "column_scale": ("n", epilogues.column_scale),
    "scale": ("", partial(epilogues.scale, 0.5)),
    "relu": ("", epilogues.relu),
    "gelu": ("", epilogues.gelu),
    "fast_gelu": ("", epilogues.fast_gelu),
    "silu": ("", epilogues.silu),
    "sigmoid": ("", epilogues.sigmoid),
    "clamp": ("", partial(epilogues.clamp, -1.0, 1.0)),
}

SIZES = (64, 256, 1024, 2048, 4096, 8192, 16384)

# The recording that roofs and times are taken from, and whose times are shown.
DEVICE = "nvidia-h200"
_PROVIDERS = ("workbench", "torch.compile max-autotune", "torch")

# m, n and k of the product that is traced, and its tile: several tiles in each direction.
_TRACED, _TILE = {"m": 32, "n": 64, "k": 32}, (16, 32, 16)


@dataclass(frozen=True)
class ArgumentBytes:
    """What both plans move of one tensor, each element counted once a kernel.

    Attributes:
        name: the tensor's.
        fused_loaded, fused_stored: by the fused launch, in bytes.
        unfused_loaded, unfused_stored: by the launches that it replaces.
    """

    name: str
    fused_loaded: int
    fused_stored: int
    unfused_loaded: int
    unfused_stored: int

    @property
    def saved(self) -> int:
        """Bytes that the fused launch does not move; negative where it moves more."""
        fused = self.fused_loaded + self.fused_stored
        return self.unfused_loaded + self.unfused_stored - fused


@dataclass(frozen=True)
class BytesSaved:
    """What a fused launch moves, and what the launches move that it replaces.

    Attributes:
        arguments: of each tensor; those that were named, in their order, and then others.
        fused_kernels, unfused_kernels: how many each plan starts.
    """

    arguments: tuple[ArgumentBytes, ...]
    fused_kernels: int
    unfused_kernels: int

    @property
    def fused(self) -> int:
        """Bytes of the fused plan."""
        return sum(each.fused_loaded + each.fused_stored for each in self.arguments)

    @property
    def unfused(self) -> int:
        """Bytes of the other."""
        return sum(each.unfused_loaded + each.unfused_stored for each in self.arguments)

    @property
    def saved(self) -> int:
        """unfused - fused"""
        return self.unfused - self.fused


def bytes_saved(
    fused: Launch,
    unfused: Launch | Sequence[Launch],
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    timeout: float = 120.0,
) -> BytesSaved:
    """Trace both plans in the interpreter, and count what they move of each tensor.

    An element counts once for each kernel that loads it, and once for each that stores it, by its address,
    whichever of the kernel's parameters have it: what crosses between memory and a cache that keeps what one
    kernel reads again.

    Args:
        fused: the one launch. unfused: what it replaces, in order, a launch for each operator.
        tensors: by name, those that are to be told apart, such as {"A": a, "product": x}; both plans can
            share them. Others are called as the first parameter that has them.
        timeout: seconds for each plan.

    Raises:
        ArgumentTypeError: an argument is something else. Others as `lens.attention.attention_bytes`.
    """
    check_type("fused", fused, Launch, "Give a Launch.")
    many = (unfused,) if isinstance(unfused, Launch) else unfused
    many = check_each("unfused", many, Launch, "Give the launches that it replaces.")
    whole = Launch(tuple(chain(*(each.steps for each in many))), many[-1].outputs if many else ())
    named = {} if tensors is None else tensors
    both = [
        {each.name: each for each in attention_bytes(plan, named, label="", timeout=timeout).tensors}
        for plan in (fused, whole)
    ]
    nothing = TensorBytes("", 0, 0, 0, 0, 0, 0, 0)
    arguments = []
    for name in dict.fromkeys(chain(named, *both)):
        first, second = (plan.get(name, nothing) for plan in both)
        arguments.append(ArgumentBytes(name, first.loaded, first.stored, second.loaded, second.stored))
    return BytesSaved(tuple(arguments), len(fused.steps), len(whole.steps))


class Plans(NamedTuple):
    """An operator in one launch, and in several; as :func:`bytes_saved` takes them.

    Attributes:
        fused, unfused: the launches, which have operands in common, and the output if it is no index.
        tensors: those of both, by name, and what only one of them has. What is given twice has the first
            of its names.
    """

    fused: Launch
    unfused: tuple[Launch, ...]
    tensors: dict[str, torch.Tensor]


def plans(
    op: str,
    *given: torch.Tensor,
    activation: str = "identity",
    tile: Sequence[int] | None = None,
    product_tile: Sequence[int] | None = None,
) -> Plans:
    """Both plans of an operator: the fused template's launch, and one launch for each operator in it.

    Args:
        op: a name in `OPERATORS`, those of `ops`.
        given: its tensors: two matrices, and of norms weight and bias by column; three of matmul_matmul,
            swiglu and geglu.
        activation: of matmul_matmul.
        tile: of the fused template, as its `launch` takes it; None for that one's default.
        product_tile: m, n and k of a tile, of the products of the other plan; None for `gemm.default_tile`.

    Raises:
        UnknownNameError: `op`. InvalidArgumentError: it takes more or fewer tensors. Others as the templates'
        `launch`.
    """
    check_name("op", op, OPERATORS)
    fewest = 3 if op in (*_GATES, "matmul_matmul") else 2
    most = {"matmul_layer_norm": 4, "matmul_rms_norm": 3}.get(op, fewest)
    if not fewest <= len(given) <= most:
        wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidArgumentError("given", f"got {len(given)} tensors for {op}", f"Give {wanted}.")
    options: dict[str, Any] = {} if tile is None else {"tile": tile}
    if op in _GATES:
        return _gated(op, given, options, product_tile)
    if op == "matmul_matmul":
        return _pair(given, activation, options, product_tile)
    operator = op.removeprefix("matmul_")
    a, b, *columns = given
    product = _product(a, b, product_tile)
    x = product.outputs[0]
    if operator in gemm_rows.OPERATORS:
        epsilon = 1e-5 if operator in _NORMS else 0.0
        fused = gemm_rows.launch(operator, a, b, *columns, epsilon=epsilon, **options)
        second = (
            normalization.launch(operator, x, 1, *columns, epsilon=epsilon, output=fused.outputs[0])
            if operator in _NORMS
            else softmax.launch(operator, x, output=fused.outputs[0])
        )
    else:
        fused = gemm_rows.launch_reduction(operator, a, b, **options)
        last = (x.dim() - 1,)
        name = "norm2" if operator == "norm" else operator
        second = (
            softmax.launch_log_sum_exp(x, last, fused.outputs[0])
            if operator == "logsumexp"
            else reduction.launch(x, last, None if operator == "argmax" else fused.outputs[0], reduction=name)
        )
    vectors = dict(zip(("weight", "bias"), columns, strict=False))
    tensors = {"A": a, "B": b, **vectors, "product": x}
    return _named(fused, (product, second), tensors)


def chained(
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: Epilogue,
    *,
    tile: Sequence[int] | None = None,
    product_tile: Sequence[int] | None = None,
) -> Plans:
    """Both plans of a product with an epilogue: one launch; and the product's, and one for each functor.

    Args:
        a, b: [m, k] and [k, n] in fp16, bf16 or fp32.
        epilogue: a chain of functors, none of which casts or permutes.
        tile: of the fused launch. product_tile: of the product in the other plan. None for
            `gemm.default_tile`.

    Raises:
        as `gemm.launch` and `epilogues_unfused.launch`.
    """
    check_type("epilogue", epilogue, Epilogue, "Give a chain of functors, such as epilogues.relu().")
    fused = gemm.launch(a, b, epilogue=epilogue, tile=tile, splits=1)
    output = fused.outputs[0]
    product = _product(a, b, product_tile, None if epilogue.functors else output)
    launches, tensors = [product], {"A": a, "B": b, "product": product.outputs[0]}
    last = len(epilogue.functors) - 1
    for place, one in enumerate(epilogue.functors):
        own = Epilogue((one,))
        alone = epilogues_unfused.launch(
            launches[-1].outputs[0], own, output=output if place == last else None
        )
        launches.append(alone)
        tensors |= {f"{one.name} {place + 1}": tensor for tensor in own.tensors}
        if place < last:
            tensors[f"after {one.name} {place + 1}"] = alone.outputs[0]
    if not epilogue.functors:
        del tensors["product"]
    return Plans(fused, tuple(launches), _each_once({**tensors, "output": output}))


def explore(
    shape: Sequence[int] = (4096, 4096, 4096),
    functors: Sequence[str] = ("add", "add", "fast_gelu"),
    *,
    roofs: Ceilings | None = None,
    theme: str | None = None,
) -> FusionExplorerWidget:
    """Put an epilogue together and see its text, its bytes fused and unfused, and its least time.

    Bytes are those of traces of a small product, scaled by the sizes of its tensors; no GPU is needed.

    Args:
        shape: m, n and k that are shown first, each of `SIZES`.
        functors: names in `FUNCTORS`, up to four, that are shown first.
        roofs: measured ones; None for those that were recorded.
        theme: "light" or "dark"; else the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above. UnknownNameError: a functor, or
        the theme.
    """
    first = _choice(shape, functors)
    return FusionExplorerWidget(partial(explored, roofs=roofs), tuple(FUNCTORS), SIZES, first, theme=theme)


def _choice(shape: Sequence[int], functors: Sequence[str]) -> FusionChoice:
    sizes = check_each("shape", shape, int, "Give m, n and k, such as (4096, 4096, 4096).")
    if len(sizes) != 3:
        raise InvalidArgumentError("shape", f"got {len(sizes)} sizes", "Give m, n and k.")
    names = check_each("functors", functors, str, 'Give names, such as ("add", "gelu").')
    m, n, k = sizes
    return FusionChoice(m, n, k, tuple(names))


def explored(choice: FusionChoice, *, roofs: Ceilings | None = None) -> ExploredFusion:
    """What is known of one choice, in fp16; :func:`workbench.viz.fusion_explorer_figure` draws it.

    Args:
        choice: of any sizes. roofs: as of :func:`explore`.

    Raises:
        as :func:`explore`.
    """
    check_type("choice", choice, FusionChoice, "Give a FusionChoice.")
    check_type("roofs", roofs, Ceilings | None, "Give Ceilings, or None for those that were recorded.")
    sizes = {name: check_positive(name, getattr(choice, name)) for name in ("m", "n", "k")}
    for name in choice.functors:
        check_name("functor", name, FUNCTORS)
    if len(choice.functors) > MOST_FUNCTORS:
        given = f"got {len(choice.functors)}"
        raise InvalidArgumentError("functors", given, f"Give {MOST_FUNCTORS} at most.")
    kernels = _kernels(tuple(choice.functors))
    flops = 2 * math.prod(sizes.values())
    scaled = [
        {name: _scaled(name, moved, choice.functors, sizes) for name, moved in kernel.items()}
        for kernel in kernels
    ]
    moved = [sum(kernel.values()) for kernel in scaled]
    names = ("product", *choice.functors)
    return ExploredFusion(
        choice=choice,
        dtype="fp16",
        sources={name: _source(name) for name in dict.fromkeys(choice.functors)},
        tensors=tuple(
            FusedTensor(name, scaled[0].get(name, 0), sum(kernel.get(name, 0) for kernel in scaled[1:]))
            for name in dict.fromkeys(chain(*scaled))
        ),
        fused=FusionKernel("all in one", flops, moved[0]),
        unfused=tuple(
            FusionKernel(name, flops if place == 0 else 0, moved[place + 1])
            for place, name in enumerate(names)
        ),
        roofs=_recorded_roofs() if roofs is None else roofs,
        points=_recorded_points(choice),
    )


def _sizes_of(name: str, functors: Sequence[str]) -> str:
    """The sizes of a tensor of :func:`chained`, in letters of m, n and k."""
    if name in ("A", "B"):
        return {"A": "mk", "B": "kn"}[name]
    functor, _, place = name.rpartition(" ")
    if functor in FUNCTORS and functors[int(place) - 1] == functor:
        return FUNCTORS[functor][0]
    return "mn"


def _scaled(name: str, moved: int, functors: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Bytes of a tensor in a product of these sizes, from those in the product that is traced."""
    letters = _sizes_of(name, functors)
    small, large = (math.prod(each[letter] for letter in letters) for each in (_TRACED, sizes))
    return moved * large // small


@cache
def _kernels(functors: tuple[str, ...]) -> tuple[Mapping[str, int], ...]:
    """What the fused kernel moves of each tensor, by name, and what each of the others does; in bytes."""
    m, n, k = _TRACED.values()
    generator = torch.Generator().manual_seed(0)

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half()

    epilogue = Epilogue()
    for name in functors:
        letters, make = FUNCTORS[name]
        epilogue = epilogue | make(*([half(*(_TRACED[letter] for letter in letters))] if letters else []))
    plans = chained(half(m, k), half(k, n), epilogue, tile=_TILE, product_tile=_TILE)
    found = []
    for launch in (plans.fused, *plans.unfused):
        moved = attention_bytes(launch, plans.tensors, label="").tensors
        found.append({each.name: each.moved for each in moved if each.moved})
    return tuple(found)


def _source(name: str) -> str:
    """A functor's text, without its decorator and its docstring."""
    _, make = FUNCTORS[name]
    given = [torch.empty(1)] if FUNCTORS[name][0] else []
    function = make(*given).functors[0].function
    (definition,) = ast.parse(inspect.getsource(function.fn)).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list, definition.body = [], definition.body[1:]
    return ast.unparse(definition)


@cache
def _recorded() -> tuple[recording.Line, ...]:
    return tuple(recording.shipped(DEVICE))


@cache
def _recorded_roofs() -> Ceilings | None:
    """Of the last run that has a copy and a product in fp16."""
    runs: dict[str, list[recording.Line]] = {}
    for line in _recorded():
        if line.op in ("clone", "matmul"):
            runs.setdefault(line.run, []).append(line)
    roofs = [ceilings.from_recording(lines) for lines in runs.values() if ceilings.has_roofs(lines)]
    return next((each for each in reversed(roofs) if "fp16" in each.matrix), None)


def _recorded_points(choice: FusionChoice) -> tuple[Point, ...]:
    """What was recorded of Composable Kernel's chain, the only one that is."""
    if choice.functors != ("add", "add", "fast_gelu"):
        return ()
    case = {"m": choice.m, "n": choice.n, "k": choice.k, "layout": "nn"}
    lines = [
        line
        for line in _recorded()
        if (line.op, line.dtype, line.mode, line.case) == ("fused_matmul", "fp16", "burst", case)
    ]
    latest = {line.provider: line for line in recording.latest_run(lines)}
    return tuple(_point(latest[name]) for name in _PROVIDERS if name in latest)


def _point(line: recording.Line) -> Point:
    """Unlike those of `recording.points`, of a small product too, which calls in a row find in caches."""
    return Point(
        label=line.problem,
        provider=line.provider,
        op=line.op,
        dtype=line.dtype,
        flops=line.flops or 0,
        bytes=line.bytes or 1,
        seconds=line.median_ms / 1e3,
        device=line.device,
        when=line.when[:10],
        recorded=True,
    )


def _gated(
    op: str, given: Sequence[torch.Tensor], options: Mapping[str, Any], product_tile: Sequence[int] | None
) -> Plans:
    a, gate, up = given
    fused = gemm_gated.launch(a, gate, up, activation=_GATES[op], **options)
    first, second = (_product(a, b, product_tile) for b in (gate, up))
    x, y = first.outputs[0], second.outputs[0]
    last = elementwise.launch(x, y, fused.outputs[0], operation=f"{_GATES[op]}_gated")
    tensors = {"A": a, "gate": gate, "up": up, "A @ gate": x, "A @ up": y}
    return _named(fused, (first, second, last), tensors)


def _pair(
    given: Sequence[torch.Tensor],
    activation: str,
    options: Mapping[str, Any],
    product_tile: Sequence[int] | None,
) -> Plans:
    a, b0, b1 = given
    fused = gemm_pair.launch(a, b0, b1, activation=activation, **options)
    first = _product(a, b0, product_tile)
    x = first.outputs[0]
    tensors = {"A": a, "B0": b0, "B1": b1, "A @ B0": x}
    between: tuple[Launch, ...] = ()
    if activation != "identity":
        one = torch.ones((), dtype=x.dtype, device=x.device)
        between = (elementwise.launch(x, one.expand_as(x), operation=f"{activation}_gated"),)
        x = between[0].outputs[0]
        tensors |= {"one": one, "activated": x}
    last = _product(x, b1, product_tile, fused.outputs[0])
    return _named(fused, (first, *between, last), tensors)


def _product(
    a: torch.Tensor, b: torch.Tensor, tile: Sequence[int] | None, output: torch.Tensor | None = None
) -> Launch:
    return gemm.launch(a, b, output=output, tile=tile, splits=1)


def _named(fused: Launch, unfused: tuple[Launch, ...], tensors: dict[str, torch.Tensor]) -> Plans:
    """The plans, with names for what else they have: states of the fused one, and the outputs."""
    states = {f"state {i}": space for i, space in enumerate(fused.workspaces)}
    outputs = {"output": fused.outputs[0]}
    if unfused[-1].outputs[0] is not fused.outputs[0]:
        outputs["output of the other plan"] = unfused[-1].outputs[0]
    return Plans(fused, unfused, _each_once({**tensors, **states, **outputs}))


def _each_once(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that begin in one place by the first of their names, since traces tell tensors by their place."""
    first: dict[int, str] = {}
    return {name: t for name, t in tensors.items() if first.setdefault(t.data_ptr(), name) == name}
