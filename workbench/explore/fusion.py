"""Bytes that fusion saves: a fused launch compared with the launches it replaces, counted in traces.

Combines `kernels` and `readings`, which do not draw, with `viz`, which makes no launches.
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
from workbench.errors import (
    InvalidArgumentError,
    TensorMismatchError,
    UnsupportedDtypeError,
    check_each,
    check_name,
    check_positive,
    check_type,
    in_brief,
)
from workbench.kernels import convolution, epilogues, gemm
from workbench.kernels.epilogues import Epilogue, ImageFrame
from workbench.kernels.gemm import gated as gemm_gated
from workbench.kernels.gemm import pair as gemm_pair
from workbench.kernels.gemm import rows as gemm_rows
from workbench.kernels.layout import MOST_OFFSETS_IN_32_BITS
from workbench.kernels.pointwise import elementwise, epilogues_unfused
from workbench.kernels.rows import normalization, reduction, softmax
from workbench.launch import Launch, Work
from workbench.ops.convolution import geometry_of
from workbench.readings.attention import TensorBytes, attention_bytes
from workbench.viz.gemm.fusion_explorer import (
    MOST_FUNCTORS,
    ExploredFusion,
    FusedTensor,
    FusionChoice,
    FusionExplorerWidget,
    FusionKernel,
)

# Activation of the gate, by operator.
_GATES = {"swiglu": "silu", "geglu": "gelu"}

# The operators of `ops` for which :func:`plans` has both plans.
OPERATORS = (
    *(f"matmul_{name}" for name in (*gemm_rows.OPERATORS, *gemm_rows.REDUCTIONS)),
    "matmul_matmul", *_GATES,
)  # fmt: skip

_NORMS = ("layer_norm", "rms_norm")

# Dtypes that a functor takes in a kernel of its own.
_FUNCTOR_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# Dimensions of an image in memory, outermost first: channels_last, and contiguous.
_NHWC, _NCHW = (0, 2, 3, 1), (0, 1, 2, 3)

# Functors of the explorer: the letters (m, n, k) of the sizes of its tensor, and its constructor.
_EpilogueFactory = Callable[..., Epilogue]
FUNCTORS: Mapping[str, tuple[str, _EpilogueFactory]] = {
    "add": ("mn", epilogues.add),
    "bias": ("n", epilogues.bias),
    "multiply": ("mn", epilogues.multiply),
    "row_scale": ("m", epilogues.row_scale),
    "column_scale": ("n", epilogues.column_scale),
    "scale": ("", partial(epilogues.scale, 0.5)),
    **{name: ("", make) for name, make in epilogues.ACTIVATIONS.items()},
    "clamp": ("", partial(epilogues.clamp, -1.0, 1.0)),
}

SIZES = (64, 256, 1024, 2048, 4096, 8192, 16384)

# The device whose recording gives roofs and times, and the providers whose times are shown.
DEVICE = "nvidia-h200"
_PROVIDERS = ("workbench", "torch.compile max-autotune", "torch")

# m, n and k of the traced product, and its tile: there are several tiles in each direction.
_TRACED_SIZES, _TILE = {"m": 32, "n": 64, "k": 32}, (16, 32, 16)

# Rows and columns of a tile of a functor's own kernel on images.
_FUNCTOR_TILE = (32, 64)


@dataclass(frozen=True)
class ArgumentBytes:
    """Bytes of one tensor that each plan moves, each element counted once per kernel.

    Attributes:
        name: name of the tensor.
        fused_loaded, fused_stored: bytes that the fused launch loads and stores.
        unfused_loaded, unfused_stored: bytes that the launches it replaces load and store.
    """

    name: str
    fused_loaded: int
    fused_stored: int
    unfused_loaded: int
    unfused_stored: int

    @property
    def saved(self) -> int:
        """Bytes that the fused launch saves; negative if it moves more."""
        fused = self.fused_loaded + self.fused_stored
        return self.unfused_loaded + self.unfused_stored - fused


@dataclass(frozen=True)
class BytesSaved:
    """Bytes that a fused launch and the launches that it replaces move.

    Attributes:
        arguments: bytes of each tensor; named tensors first, in their order.
        fused_kernels, unfused_kernels: number of kernels that each plan starts.
    """

    arguments: tuple[ArgumentBytes, ...]
    fused_kernels: int
    unfused_kernels: int

    @property
    def fused(self) -> int:
        """Bytes that the fused plan moves."""
        return sum(each.fused_loaded + each.fused_stored for each in self.arguments)

    @property
    def unfused(self) -> int:
        """Bytes that the unfused plan moves."""
        return sum(each.unfused_loaded + each.unfused_stored for each in self.arguments)

    @property
    def saved(self) -> int:
        """Bytes that the fused plan saves: unfused - fused."""
        return self.unfused - self.fused


def bytes_saved(
    fused: Launch,
    unfused: Launch | Sequence[Launch],
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    timeout: float = 120.0,
) -> BytesSaved:
    """Trace both plans in the interpreter and count the bytes of each tensor that they move.

    An element, identified by its address, counts once for each kernel that loads it and once for each kernel
    that stores it. This is the traffic between memory and a cache that holds everything one kernel reuses.

    Args:
        fused: the fused launch. unfused: the launches that it replaces, in order, one for each operator.
        tensors: tensors to report, by name, such as {"A": a, "product": x}; both plans can share them. Other
            tensors are named after the first parameter that they are passed as.
        timeout: time limit of each plan in seconds.

    Raises:
        ArgumentTypeError: an argument has the wrong type. Others as `readings.attention.attention_bytes`.
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
    """Fused and unfused launches of an operator, as :func:`bytes_saved` takes them.

    Attributes:
        fused, unfused: the launches. They share their operands, and their output unless it is an index.
        tensors: tensors of either plan, by name. A tensor with several names has the first of them.
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
    """Return both plans of an operator: the fused template's launch, and one launch per operator.

    For a product or a convolution with any epilogue, use :func:`chained` or :func:`chained_conv2d`.

    Args:
        op: name of an operator in `OPERATORS`.
        given: its tensors: three matrices for matmul_matmul, swiglu and geglu; two matrices for the others.
            After them, matmul_layer_norm takes a weight, or a weight and a bias, and matmul_rms_norm takes a
            weight, [n] each; all may be left out.
        activation: activation of matmul_matmul; the other operators have none to choose.
        tile: tile of the fused template, as its `launch` takes it; None for the template's default.
        product_tile: m, n and k of a tile in the unfused products; None for `gemm.default_tile`.

    Raises:
        UnknownNameError: `op` is unknown. InvalidArgumentError: the number of tensors is wrong, or the
        operator takes no activation. Others as the templates' `launch`.
    """
    check_name("op", op, OPERATORS)
    fewest = 3 if op in (*_GATES, "matmul_matmul") else 2
    most = {"matmul_layer_norm": 4, "matmul_rms_norm": 3}.get(op, fewest)
    if not fewest <= len(given) <= most:
        wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidArgumentError("given", f"got {len(given)} tensors for {op}", f"Give {wanted}.")
    if op != "matmul_matmul" and activation != "identity":
        raise InvalidArgumentError(
            "activation",
            f"got {in_brief(activation)} for {op}",
            "Leave it out: only matmul_matmul has one.",
        )
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
    """Return both plans of a product with an epilogue: one launch, or one for the product and each functor.

    Args:
        a, b: matrices [m, k] and [k, n] in fp16, bf16 or fp32.
        epilogue: a chain of functors, none of which casts or permutes.
        tile: tile of the fused launch. product_tile: tile of the unfused product. None for
            `gemm.default_tile`.

    Raises:
        TensorMismatchError: `a` or `b` is not a matrix or has another dtype. InvalidArgumentError: the
        epilogue casts or permutes. Others as `gemm.launch` and `epilogues_unfused.launch`.
    """
    _check_separable(epilogue)
    fused = gemm.launch(a, b, epilogue=epilogue, tile=tile, splits=1)
    for name, matrix in (("a", a), ("b", b)):
        _check_functor_dtype(name, matrix)
        if matrix.dim() != 2:
            raise TensorMismatchError(name, f"shape {tuple(matrix.shape)}", "Give a matrix.")
    output = fused.outputs[0]
    product = _product(a, b, product_tile, None if epilogue.functors else output)
    unfused, between = _unfused_launches("product", product, epilogue, output, _on_a_matrix)
    return Plans(fused, unfused, _without_aliases({"A": a, "B": b, **between, "output": output}))


def chained_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    epilogue: Epilogue,
    tile: Sequence[int] | None = None,
    product_tile: Sequence[int] | None = None,
) -> Plans:
    """Return both plans of `ops.fused_conv2d`: one launch, or `ops.conv2d` and one per functor.

    The result and all intermediate tensors are channels_last if input or weight is. Both plans first copy an
    operand in a separate kernel if its layout does not allow 16-byte accesses; most images that are not
    channels_last need this copy. In the unfused plan, the convolution adds the bias.

    Args:
        input: (n, channels, height, width), none of them 0, in fp16, bf16 or fp32.
        weight: (features, channels / groups, taps, taps). bias: (features,), or None. Both have the input's
            dtype and device.
        stride, padding, dilation, groups: as for `ops.conv2d`.
        epilogue: a chain of functors, none of which casts or permutes. A functor that uses an element's
            position, such as dropout, requires channels_last images in one group.
        tile: m, n and k of a tile of the fused launch. product_tile: the same for the unfused convolution.
            None for `gemm.default_tile`.

    Raises:
        TensorMismatchError: a tensor has another shape, dtype or device. InvalidArgumentError: the epilogue
        is not as above. Others as `ops.fused_conv2d`.
    """
    _check_separable(epilogue)
    _check_images(input, weight, bias)
    geometry = geometry_of(
        2, input, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    shape = (input.shape[0], geometry.features, *geometry.outputs)
    # Validated without the bias, so that errors number the functors as they were given.
    epilogues.expanded(epilogue, ImageFrame(shape, groups), input.device)
    order = _NHWC if _is_channels_last(input) or _is_channels_last(weight) else _NCHW
    _check_places(epilogue, order, groups)
    format = torch.channels_last if order == _NHWC else torch.contiguous_format
    output = torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=format)

    def convolved(chain: Epilogue, into: torch.Tensor, tile: Sequence[int] | None) -> Launch:
        return convolution.launch(
            "forward", input, weight, into, geometry=geometry, epilogue=chain, tile=tile
        )

    first = Epilogue() if bias is None else epilogues.bias(bias)
    fused = convolved(first | epilogue, output, tile)
    product = convolved(first, torch.empty_like(output) if epilogue.functors else output, product_tile)
    launch_functor = partial(_on_images, order)
    unfused, between = _unfused_launches("convolution", product, epilogue, output, launch_functor)
    operands = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    copies = _copies(fused, operands) | {
        f"{name} of the other plan": copy for name, copy in _copies(product, operands).items()
    }
    return Plans(fused, unfused, _without_aliases({**operands, **copies, **between, "output": output}))


def explore(
    shape: Sequence[int] = (4096, 4096, 4096),
    functors: Sequence[str] = ("add", "add", "fast_gelu"),
    *,
    roofs: Ceilings | None = None,
    theme: str | None = None,
) -> FusionExplorerWidget:
    """Return a widget that builds an epilogue and shows its source, its traffic, and its least time.

    Bytes are counted in traces of a small product and scaled to the tensors' sizes; no GPU is needed.

    Args:
        shape: initial m, n and k; they and `SIZES` are the values to choose from.
        functors: initial functors, at most four names in `FUNCTORS`.
        roofs: measured roofs; None for the recorded ones.
        theme: "light" or "dark"; by default the environment's `WORKBENCH_THEME`, else "light".

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument is not as above. UnknownNameError: a functor or
        the theme is unknown.
    """
    first = _choice(shape, functors)
    sizes = sorted({*SIZES, first.m, first.n, first.k})
    return FusionExplorerWidget(partial(explored, roofs=roofs), tuple(FUNCTORS), sizes, first, theme=theme)


def _choice(shape: Sequence[int], functors: Sequence[str]) -> FusionChoice:
    sizes = check_each("shape", shape, int, "Give m, n and k, such as (4096, 4096, 4096).")
    if len(sizes) != 3:
        raise InvalidArgumentError("shape", f"got {tuple(sizes)}", "Give three sizes: m, n and k.")
    names = check_each("functors", functors, str, 'Give names, such as ("add", "gelu").')
    _check_functors(names)
    m, n, k = (check_positive(f"shape[{place}]", size) for place, size in enumerate(sizes))
    return FusionChoice(m, n, k, tuple(names))


def _check_functors(names: Sequence[str]) -> None:
    for name in names:
        check_name("functor", name, FUNCTORS)
    if len(names) > MOST_FUNCTORS:
        raise InvalidArgumentError("functors", f"got {len(names)} functors", f"Give {MOST_FUNCTORS} at most.")


def explored(choice: FusionChoice, *, roofs: Ceilings | None = None) -> ExploredFusion:
    """Return both plans of one choice, in fp16; :func:`workbench.viz.fusion_explorer_figure` draws them.

    Args:
        choice: sizes (any) and functors. roofs: as for :func:`explore`.

    Raises:
        as :func:`explore`.
    """
    check_type("choice", choice, FusionChoice, "Give a FusionChoice.")
    check_type("roofs", roofs, Ceilings | None, "Give Ceilings, or None for those that were recorded.")
    sizes = {name: check_positive(name, getattr(choice, name)) for name in ("m", "n", "k")}
    _check_functors(choice.functors)
    kernels = _traced_bytes(tuple(choice.functors))
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
    """Return the letters (m, n, k) of the sizes of a tensor of :func:`chained`."""
    if name in ("A", "B"):
        return {"A": "mk", "B": "kn"}[name]
    functor, _, place = name.rpartition(" ")
    if functor in FUNCTORS and functors[int(place) - 1] == functor:
        return FUNCTORS[functor][0]
    return "mn"


def _scaled(name: str, moved: int, functors: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Scale the bytes of a tensor in the traced product to a product of the given sizes."""
    letters = _sizes_of(name, functors)
    small, large = (math.prod(each[letter] for letter in letters) for each in (_TRACED_SIZES, sizes))
    return moved * large // small


@cache
def _traced_bytes(functors: tuple[str, ...]) -> tuple[Mapping[str, int], ...]:
    """Return the bytes of each tensor, by name, that the fused kernel and each unfused kernel move."""
    m, n, k = _TRACED_SIZES.values()
    generator = torch.Generator().manual_seed(0)

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half()

    epilogue = Epilogue()
    for name in functors:
        letters, make = FUNCTORS[name]
        epilogue = epilogue | make(
            *([half(*(_TRACED_SIZES[letter] for letter in letters))] if letters else [])
        )
    plans = chained(half(m, k), half(k, n), epilogue, tile=_TILE, product_tile=_TILE)
    found = []
    for launch in (plans.fused, *plans.unfused):
        moved = attention_bytes(launch, plans.tensors, label="").tensors
        found.append({each.name: each.moved for each in moved if each.moved})
    return tuple(found)


def _source(name: str) -> str:
    """Return the source of a functor in `FUNCTORS` without its decorator and docstring."""
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
    """Return the roofs of the last run that has a copy and a product in fp16."""
    runs: dict[str, list[recording.Line]] = {}
    for line in _recorded():
        if line.op in ("clone", "matmul"):
            runs.setdefault(line.run, []).append(line)
    roofs = [ceilings.from_recording(lines) for lines in runs.values() if ceilings.has_roofs(lines)]
    return next((each for each in reversed(roofs) if "fp16" in each.matrix), None)


def _recorded_points(choice: FusionChoice) -> tuple[Point, ...]:
    """Return the recorded points of Composable Kernel's chain, the only recorded one."""
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
    """Return the point of a line; `recording.points` leaves out products so small that they hit caches."""
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


def _check_separable(epilogue: Epilogue) -> None:
    """Raise if a separate kernel for each functor does not give the fused kernel's result."""
    check_type("epilogue", epilogue, Epilogue, "Give a chain of functors, such as epilogues.relu().")
    if epilogue.permuted is not None:
        fix = "Leave the permutation out, and permute the result afterwards."
        raise InvalidArgumentError("epilogue", "it permutes the result", fix)
    if (dtype := next((one.dtype for one in epilogue.functors if one.dtype is not None), None)) is not None:
        fix = "Leave the cast out, and convert the result afterwards."
        raise InvalidArgumentError("epilogue", f"it casts to {dtype}", fix)


def _check_functor_dtype(name: str, operand: torch.Tensor) -> None:
    """Raise if a functor's own kernel does not take the operand's dtype."""
    if operand.dtype not in _FUNCTOR_DTYPES:
        raise UnsupportedDtypeError(name, f"{operand.dtype}", "Give fp16, bf16 or fp32.")


def _check_images(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Raise if the tensors are not plain operands of a convolution. Their lengths are not compared."""
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in given.items():
        check_type(name, tensor, torch.Tensor, "Give a torch.Tensor.")
        _check_functor_dtype(name, tensor)
        if (tensor.dtype, tensor.device) != (input.dtype, input.device):
            words = f"{tensor.dtype} on {tensor.device}"
            raise TensorMismatchError(name, words, f"Give {input.dtype} on {input.device}, as the input is.")
        if tensor.layout != torch.strided:
            raise TensorMismatchError(name, f"layout {tensor.layout}", f"Give {name}.to_dense().")
        if tensor.is_neg():
            raise TensorMismatchError(name, "the negative view of a tensor", f"Give {name}.resolve_neg().")
        if name != "bias" and (tensor.dim() != 4 or not tensor.numel()):
            given_shape = f"shape {tuple(tensor.shape)}"
            raise TensorMismatchError(name, given_shape, "Give four dimensions, none of them of length 0.")


def _is_channels_last(image: torch.Tensor) -> bool:
    return image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()


def _check_places(epilogue: Epilogue, order: tuple[int, ...], groups: int) -> None:
    """Raise if a functor may use an element's position and the plans number elements differently."""
    if order == _NHWC and groups == 1:
        return
    for place, one in enumerate(epilogue.functors):
        if one.uses_place:
            given = f"{one.name} may use an element's position, which differs between the plans"
            raise InvalidArgumentError(
                f"epilogue[{place}]", given, "Give channels_last images in one group, or leave it out."
            )


def _unfused_launches(
    name: str,
    product: Launch,
    epilogue: Epilogue,
    output: torch.Tensor,
    launch_functor: Callable[[torch.Tensor, Epilogue, torch.Tensor | None], Launch],
) -> tuple[tuple[Launch, ...], dict[str, torch.Tensor]]:
    """Return the launches of a product and of each functor after it, and their other tensors by name.

    Args:
        name: name of the product. output: tensor for the result of the last launch.
        launch_functor: function (input, functor, output or None) that returns a functor's launch.
    """
    launches, tensors = [product], {name: product.outputs[0]} if epilogue.functors else {}
    last = len(epilogue.functors) - 1
    for place, one in enumerate(epilogue.functors):
        own = Epilogue((one,))
        launches.append(launch_functor(launches[-1].outputs[0], own, output if place == last else None))
        tensors |= {f"{one.name} {place + 1}": tensor for tensor in own.tensors}
        if place < last:
            tensors[f"after {one.name} {place + 1}"] = launches[-1].outputs[0]
    return tuple(launches), tensors


def _on_a_matrix(x: torch.Tensor, epilogue: Epilogue, output: torch.Tensor | None) -> Launch:
    return epilogues_unfused.launch(x, epilogue, output=output)


@dataclass(frozen=True)
class _DenseImageFrame(ImageFrame):
    """:class:`ImageFrame` for a dense image, seen as one matrix of consecutive rows.

    Attributes:
        order: dimensions in memory, outermost first; the last one numbers the columns.
    """

    order: tuple[int, ...] = _NCHW

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the output's own dimensions."""
        return self.shape

    @property
    def dims(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Dimensions of the batches (none), rows and columns."""
        return (), self.order[:-1], self.order[-1]

    def split(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return the strides unchanged."""
        return tuple(strides)


def _on_images(
    order: tuple[int, ...], x: torch.Tensor, epilogue: Epilogue, output: torch.Tensor | None
) -> Launch:
    """Launch a functor's own kernel, as `epilogues_unfused.launch` does, on dense images in this order."""
    output = torch.empty_like(x) if output is None else output
    frame = _DenseImageFrame(tuple(x.shape), order=order)
    bound = epilogues.bind(epilogue, frame, torch.float32, output.dtype, x.device)
    (block_m, block_n), n = _FUNCTOR_TILE, x.shape[order[-1]]
    m = x.numel() // n
    if max(x.numel(), bound.reach) + (block_m + 1) * (n + block_n) > MOST_OFFSETS_IN_32_BITS:
        given = f"its output would be images of {tuple(x.shape)}"
        raise TensorMismatchError("input", given, "Give fewer elements: offsets have 32 bits.")
    own = epilogue.work(x.numel())
    work = Work(own.flops, 2 * x.numel() * x.element_size() + own.bytes)
    return Launch.of(
        epilogues_unfused.functor_kernel, (math.ceil(m / block_m) * math.ceil(n / block_n),),
        x, output, bound.extras, m, n,
        outputs=output, work=work, BLOCK_M=block_m, BLOCK_N=block_n, EPILOGUE=bound.functors, num_warps=4,
    )  # fmt: skip


def _copies(launch: Launch, operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the copies of operands that a convolution makes, by name. Each has a step before the product."""
    found = {}
    for step, space in zip(launch.steps, launch.workspaces, strict=False):
        places = {tensor.data_ptr() for tensor in step.memory().values()}
        name = next(name for name, tensor in operands.items() if tensor.data_ptr() in places)
        found[f"copy of {name}"] = space
    return found


def _product(
    a: torch.Tensor, b: torch.Tensor, tile: Sequence[int] | None, output: torch.Tensor | None = None
) -> Launch:
    return gemm.launch(a, b, output=output, tile=tile, splits=1)


def _named(fused: Launch, unfused: tuple[Launch, ...], tensors: dict[str, torch.Tensor]) -> Plans:
    """Return the plans, with names for their workspaces and outputs too."""
    states = {f"state {i}": space for i, space in enumerate(fused.workspaces)}
    outputs = {"output": fused.outputs[0]}
    if unfused[-1].outputs[0] is not fused.outputs[0]:
        outputs["output of the other plan"] = unfused[-1].outputs[0]
    return Plans(fused, unfused, _without_aliases({**tensors, **states, **outputs}))


def _without_aliases(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each tensor under its first name only: traces identify tensors by their address."""
    first: dict[int, str] = {}
    return {name: t for name, t in tensors.items() if first.setdefault(t.data_ptr(), name) == name}
