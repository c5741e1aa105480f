"""Run a case and judge it: values against float64 by the accuracy rule, all else against torch."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode

from tests.drawn import allowed_error
from tests.fuzz.cases import GRAD, INFERENCE, NO_GRAD, Call, Case, Mode
from tests.fuzz.differences import reason_for
from tests.fuzz.operators import OPERATORS, Operator, arguments
from tests.fuzz.tensors import dtype_of, seed_of, tensor
from workbench import ops
from workbench.errors import WorkbenchError

# The largest relative rounding error of tf32 operands, which have 10 bits after the leading one.
TF32_ROUNDING = 2.0**-11


@dataclass(frozen=True)
class Finding:
    """Failure of a call.

    Attributes:
        kind: its kind in a word or two: "accuracy", "shape", "dtype", "refusal", ...; shrinking keeps it.
        words: the details.
        call: the number of the call in the case, from 0.
    """

    kind: str
    words: str
    call: int = 0


@dataclass
class Verdict:
    """The findings and the counts of a case.

    Attributes:
        findings: the failures.
        listed: differences on purpose, with the reason.
        refusals: errors of `ops` for what torch accepts, listed or not.
        lenient: errors of torch for what `ops` computed.
        refused_by_both: the number of calls that `ops` and torch both refused.
        compared: the number of calls with results to compare.
    """

    findings: list[Finding] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    lenient: list[str] = field(default_factory=list)
    refused_by_both: int = 0
    compared: int = 0


@dataclass
class Outcome:
    """Results and gradients of a call, or the error.

    Attributes:
        results, gradients: empty if an error came before them.
        error: the error; None if there was none.
        is_backward: whether the error came from the gradients; then there are results.
        changed: descriptions of what the call changed and must not change.
    """

    results: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    error: Exception | None = None
    is_backward: bool = False
    changed: list[str] = field(default_factory=list)


def judge(
    case: Case,
    device: str,
    ours: Callable[..., Any] | None = None,
    *,
    torch_begins: Callable[[], None] = lambda: None,
) -> Verdict:
    """Run a case on a device and compare it with torch.

    Args:
        ours: a function in place of the one in `workbench.ops`, for tests of the fuzz.
        torch_begins: called after all calls of `ops` and before torch's calls, because torch may end the
            process.
    """
    operator = OPERATORS[case.operator]
    function = ours or operator.ours or getattr(ops, case.operator)
    verdict = Verdict()
    of_threads = _in_threads(case, partial(_calls, case, operator, function, device), device)
    torch_begins()
    for place, call in enumerate(case.calls):
        with _set_up(call.mode):
            theirs = _outcome(operator.torchs, operator, call, place, device)
        judged: list[Outcome] = []
        for outcomes in of_threads:
            # Outcomes of most threads have the same bits as the first's, so equal outcomes are judged once.
            if not any(_same_bits(outcomes[place], before) for before in judged):
                judged.append(outcomes[place])
        for outcome in judged:
            _compare(verdict, case, operator, place, device, outcome, theirs)
    return verdict


def _calls(case: Case, operator: Operator, function: Callable[..., Any], device: str) -> list[Outcome]:
    outcomes = []
    for place, call in enumerate(case.calls):
        with contextlib.nullcontext() if case.threads > 1 else _set_up(call.mode):
            outcome = _outcome(function, operator, call, place, device, watched=True)
            if call.mode.deterministic:
                again = _outcome(function, operator, call, place, device)
                if not _same_bits(outcome, again):
                    outcome.changed.append("the bits of the result, from one run to the next")
            outcomes.append(outcome)
    return outcomes


def _in_threads(case: Case, run: Callable[[], list[Outcome]], device: str) -> list[list[Outcome]]:
    """Return the outcomes of `run`, one list for each thread of the case."""
    found: list[list[Outcome]] = []
    failed: list[BaseException] = []

    def within() -> None:
        stream = torch.cuda.Stream() if case.on_stream and device == "cuda" else None
        try:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                found.append(run())
            if device == "cuda":
                torch.cuda.synchronize()
        except BaseException as error:
            failed.append(error)

    if case.threads == 1:
        within()
    else:
        # torch's switches are global, so all threads have the switches of the first call.
        with _set_up(case.calls[0].mode):
            threads = [threading.Thread(target=within) for _ in range(case.threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if failed:
        raise failed[0]
    return found


@contextlib.contextmanager
def _set_up(mode: Mode) -> Iterator[None]:
    """Set torch's global switches as the mode has them, and restore them at the end."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]  # torch does not type it
    before = matmul.fp32_precision, conv.fp32_precision, torch.are_deterministic_algorithms_enabled()
    matmul.fp32_precision = conv.fp32_precision = "tf32" if mode.tf32 else "ieee"
    torch.use_deterministic_algorithms(mode.deterministic, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        matmul.fp32_precision, conv.fp32_precision = before[:2]
        torch.use_deterministic_algorithms(before[2])


def _within(mode: Mode, device: str) -> contextlib.ExitStack:
    """Return the contexts of autograd and autocast of a mode, entered; they hold for this thread only."""
    stack = contextlib.ExitStack()
    if mode.grad == NO_GRAD:
        stack.enter_context(torch.no_grad())
    elif mode.grad == INFERENCE:
        stack.enter_context(torch.inference_mode())
    if mode.autocast:
        stack.enter_context(torch.autocast(device, dtype=getattr(torch, mode.autocast)))
    return stack


def made(call: Call, place: int, device: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a call by name."""
    return {name: spec.make(device, call.seed(place, name)) for name, spec in call.tensors.items()}


def _outcome(
    function: Callable[..., Any],
    operator: Operator,
    call: Call,
    place: int,
    device: str,
    *,
    is_exact: bool = False,
    shake: float = 0.0,
    watched: bool = False,
) -> Outcome:
    """Make a call and compute its gradients.

    Args:
        is_exact: compute in float64 on the CPU, with contiguous tensors, outside autocast.
        shake: the largest relative change of each element of the inputs, as if they had been rounded.
        watched: whether to record tensors that the call changed and must not change.
    """
    mode = call.mode
    tensors = made(call, place, "cpu" if is_exact else device)
    if is_exact:
        tensors = {name: _widened(t, shake) for name, t in tensors.items()}
        mode = Mode(grad=mode.grad, one_gradient=mode.one_gradient)
    followed = [t for t in tensors.values() if t.requires_grad]
    outcome = Outcome()
    before = {name: t.detach().clone() for name, t in tensors.items()} if watched else {}
    try:
        with _within(mode, device):
            returned = function(**arguments(call, tensors, is_exact=is_exact))
        results = [returned] if isinstance(returned, torch.Tensor) else [*returned]
        if "out" in tensors and watched and returned is not tensors["out"]:
            outcome.changed.append("`out` is not what is returned: the result")
        outcome.results = results
        outcome.is_backward = True
        if mode.grad == GRAD and followed and results[0].requires_grad:
            direction = direction_of(results[0], place, is_one=mode.one_gradient)
            outcome.gradients = [
                *torch.autograd.grad(
                    results[0], followed, direction, allow_unused=True, materialize_grads=True
                )
            ]
        if device == "cuda":
            torch.cuda.synchronize()
        outcome.is_backward = False
    except Exception as error:
        outcome.error = error
    for name, kept in before.items():
        if name not in (*operator.changed, "out") and not _are_same(kept, tensors[name].detach()):
            outcome.changed.append(f"the tensor {name}")
    return outcome


def _widened(t: torch.Tensor, shake: float) -> torch.Tensor:
    wide = t.detach().contiguous()
    if t.is_floating_point():
        wide = wide.double()
        if shake:
            dice = torch.rand(wide.shape, dtype=wide.dtype, generator=torch.Generator().manual_seed(0))
            wide = wide * (1 + shake * (2 * dice - 1))
    elif t.is_complex():
        wide = wide.to(torch.complex128)
    return wide.clone().requires_grad_(t.requires_grad)


def direction_of(result: torch.Tensor, place: int, *, is_one: bool = False) -> torch.Tensor:
    """Return the gradient of `result` with which the backward pass of call number `place` begins.

    Args:
        is_one: whether the gradient is a single 1, expanded to the shape of the result.
    """
    if is_one:
        return torch.ones((), dtype=result.dtype, device=result.device).expand(result.shape)
    name = str(result.dtype).removeprefix("torch.")
    drawn = tensor(tuple(result.shape), name, seed=seed_of(place, "gradient"), device="cpu")
    # Rounded to bfloat16 first, so that the gradient is the same in every dtype.
    return drawn.to(torch.bfloat16).to(result) if result.is_floating_point() else drawn.to(result)


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _bits(t: torch.Tensor) -> torch.Tensor:
    t = t.detach().contiguous()
    if t.is_complex():
        t = torch.view_as_real(t)
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.view(sizes[t.element_size()]) if t.dtype != torch.bool else t


def _same_bits(one: Outcome, other: Outcome) -> bool:
    if one.error is not None or other.error is not None:
        return repr(one.error) == repr(other.error)
    pairs = [
        *zip(one.results, other.results, strict=True),
        *zip(one.gradients, other.gradients, strict=False),
    ]
    return all(_are_same(*pair) for pair in pairs)


def _compare(
    verdict: Verdict,
    case: Case,
    operator: Operator,
    place: int,
    device: str,
    ours: Outcome,
    theirs: Outcome,
) -> None:
    call = case.calls[place]

    def found(kind: str, words: str) -> None:
        if (why := reason_for(case.operator, device, kind, words)) is not None:
            verdict.listed.append(f"{case.operator}: {kind}: {why}")
        else:
            verdict.findings.append(Finding(kind, words, place))

    for what in ours.changed:
        found("changed", f"{what} changed")
    if ours.error is not None and not isinstance(ours.error, WorkbenchError) and _is_bare(ours, theirs):
        found("error", f"{type(ours.error).__name__}, not an error of the workbench: {ours.error}")
        return
    if theirs.error is not None and ours.error is not None:
        verdict.refused_by_both += 1
        if operator.is_torchs and not isinstance(ours.error, _torchs_kind(theirs.error)):
            found("kind of error", f"{_named(ours.error)}; torch raises {_named(theirs.error)}")
        return
    if ours.error is not None:
        name = f"{case.operator}{', backward' if ours.is_backward else ''}"
        verdict.refusals.append(_reason(name, ours.error))
        found("refusal", f"refuses what torch accepts: {_named(ours.error)}")
        return
    exact = _outcome(operator.torchs, operator, call, place, device, is_exact=True)
    if theirs.error is not None:
        verdict.lenient.append(_reason(case.operator, theirs.error))
        if exact.error is not None or theirs.is_backward:
            return
        theirs = Outcome(
            [r.to(o.dtype) for r, o in zip(exact.results, ours.results, strict=True)],
            [r.to(o.dtype) for r, o in zip(exact.gradients, ours.gradients, strict=False)],
        )
        has_torchs_form = False
    else:
        has_torchs_form = True
    verdict.compared += 1
    if isinstance(exact.error, NotImplementedError) and not any(
        t.is_floating_point() for t in theirs.results
    ):
        exact = theirs  # the CPU lacks this dtype, and nothing is rounded
    if exact.error is not None:
        found("fuzz", f"no float64 result to compare with: {_named(exact.error)}")
        return
    if len(ours.results) != len(theirs.results):
        found("results", f"{len(ours.results)} results, torch has {len(theirs.results)}")
        return
    for number, pair in enumerate(zip(ours.results, theirs.results, strict=True)):
        words = f"result {number}" if len(ours.results) > 1 else "result"
        if not _have_same_form(found, words, *pair, operator, has_torchs_form=has_torchs_form):
            return
    _judge_values(found, operator, call, place, device, ours, theirs, exact)


def _is_bare(ours: Outcome, theirs: Outcome) -> bool:
    """Return whether an error must be one of the workbench; torch's autograd may raise its own."""
    return theirs.error is None or not ours.is_backward


def _torchs_kind(error: Exception) -> type[Exception]:
    kinds = (NotImplementedError, IndexError, OverflowError, RuntimeError, TypeError, ValueError)
    found = next((kind for kind in kinds if isinstance(error, kind)), Exception)
    # For "not implemented for" torch raises NotImplementedError or RuntimeError.
    return RuntimeError if found is NotImplementedError else found


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"


def _reason(operator: str, error: Exception) -> str:
    """Return the text of an error without its numbers."""
    return re.sub(r"-?\d[\d.e]*", "#", re.sub(r"\([^()]*\)", "(...)", f"{operator}: {_named(error)}"))


def _have_same_form(
    found: Callable[[str, str], None],
    words: str,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    operator: Operator,
    *,
    has_torchs_form: bool,
) -> bool:
    """Compare the form of two results, and return whether their values can be compared."""
    if ours.shape != theirs.shape:
        found("shape", f"{words}: shape {tuple(ours.shape)}, torch's {tuple(theirs.shape)}")
        return False
    if ours.dtype != theirs.dtype:
        found("dtype", f"{words}: {ours.dtype}, torch's {theirs.dtype}")
        return False
    if not has_torchs_form:
        return True
    if ours.requires_grad != theirs.requires_grad:
        found(
            "requires_grad", f"{words}: requires_grad is {ours.requires_grad}, torch's {theirs.requires_grad}"
        )
    if ours.is_inference() != theirs.is_inference():
        found("inference", f"{words}: is_inference is {ours.is_inference()}, torch's {theirs.is_inference()}")
    if operator.is_torchs and telling(ours) != telling(theirs):
        named = "" if _has_a_format(theirs) else ", of no memory format"
        strides = f"strides {ours.stride()} of {tuple(ours.shape)}, torch's {theirs.stride()}{named}"
        found("strides", f"{words}: {strides}")
    return True


def _has_a_format(t: torch.Tensor) -> bool:
    """Return whether a tensor has the strides of the memory format that torch suggests for it."""
    suggested = suggest_memory_format(t)
    return telling(t) == telling(torch.empty_like(t, memory_format=suggested))


def telling(t: torch.Tensor) -> list[int]:
    """Return the strides of dimensions longer than one; an empty list for a tensor without elements."""
    return [stride for stride, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []


def _judge_values(
    found: Callable[[str, str], None],
    operator: Operator,
    call: Call,
    place: int,
    device: str,
    ours: Outcome,
    theirs: Outcome,
    exact: Outcome,
) -> None:
    inputs = max((_largest(s) for s in _inputs(call)), default=0.0)
    terms = min(operator.terms(call), _most_terms(call, ours.results))
    has_tf32 = call.mode.tf32 and operator.multiplies and device == "cuda"
    largest = max((_largest(t) for t in exact.results), default=0.0)
    is_of_nothing = any(0 in spec.shape for spec in call.tensors.values())
    close = partial(
        _close, found, terms=terms, has_tf32=has_tf32, inputs=inputs, is_of_nothing=is_of_nothing,
        least_eps=_eps_of_arithmetic(operator, call),
    )  # fmt: skip
    shaken, bent = _shaken(operator, call, place, device, ours)
    of_results = of_gradients = close
    if operator.divides_by_deviation and any(t.dtype == torch.float64 for t in ours.results):
        cancelled = _cancelled(operator, call, place, device)
        of_results, of_gradients = (partial(close, inputs=max(inputs, size)) for size in cancelled)
    for number, (mine, torchs, right) in enumerate(
        zip(ours.results, theirs.results, exact.results, strict=True)
    ):
        moved = [each.results[number] for each in shaken]
        judge_result = close if number else of_results
        judge_result(f"result {number}" if number else "result", mine, torchs, right, moved, [], largest)
    is_special = any(spec.values == "special" for spec in call.tensors.values())
    if not ours.gradients or not theirs.gradients or (is_special and terms):
        return  # torch's results on a CPU and on a GPU differ in gradients of NaN and infinities
    names = [name for name, spec in call.tensors.items() if spec.requires_grad and spec.is_floating]
    largest = max(largest, *map(_largest, exact.gradients))
    for number, (name, mine, torchs, right) in enumerate(
        zip(names, ours.gradients, theirs.gradients, exact.gradients, strict=True)
    ):
        moved = [each.gradients[number] for each in shaken]
        words = f"gradient of {name}"
        if mine.shape != torchs.shape or mine.dtype != torchs.dtype:
            found(
                "gradient",
                f"{words}: {mine.dtype} {tuple(mine.shape)}, torch's {torchs.dtype} {tuple(torchs.shape)}",
            )
        else:
            others = [each.gradients[number] for each in bent]
            of_gradients(words, mine, torchs, right, moved, others, largest)


def _shaken(
    operator: Operator, call: Call, place: int, device: str, ours: Outcome
) -> tuple[list[Outcome], list[Outcome]]:
    """Return exact outcomes of slightly changed inputs, for operators that are sensitive to rounding.

    - If an operator divides by a deviation, terms that cancel can be much larger than the result, and torch's
      error of a few elements may be 0 by luck; in float64 torch's result is the exact one itself.
    - If it has a bend, as relu has at 0, either gradient is right near the bend.
    - If it chooses, as amax does, either of two nearly equal elements may count as the largest.

    Returns:
        outcomes of inputs with a rounding error in each element, for the first kind of operator; outcomes
        with other gradients near bends and nearly equal elements, for the others.
    """
    exact = partial(_outcome, operator.torchs, operator, call, place, device, is_exact=True)
    found, bent = [], []
    if operator.divides_by_deviation:
        is_double = any(t.dtype == torch.float64 for t in ours.results)
        found.append(exact(shake=torch.finfo(torch.float64 if is_double else torch.float32).eps))
    chain = [functor for functor, *_ in call.options.get("epilogue", ())]
    bends = {"relu", "clamp"} & {*chain, call.options.get("activation")}
    if ours.gradients and (bends or operator.chooses):
        names = [spec.dtype for spec in call.tensors.values() if spec.is_floating] + [call.mode.autocast]
        eps = max(torch.finfo(dtype_of(name)).eps for name in names if name)
        if call.mode.tf32 and operator.multiplies and device == "cuda":
            eps = max(eps, TF32_ROUNDING)
        for share in (eps, -eps):
            with _BentElsewhere(share):
                bent.append(exact())
    return found, bent


def _cancelled(operator: Operator, call: Call, place: int, device: str) -> tuple[float, float]:
    """Return the size of the terms that cancel in a norm, and of the terms that cancel in its gradients.

    torch's float64 result is rounded too. Its formula of the gradient subtracts a multiple of the input, not
    of the input's distance from the mean: for two nearly equal elements its error is larger than ours.
    """
    with _Cancelled() as cancelled:
        outcome = _outcome(operator.torchs, operator, call, place, device, is_exact=True)
    direction = direction_of(outcome.results[0], place, is_one=call.mode.one_gradient)
    return cancelled.results, cancelled.gradients * max(_largest(direction), 1.0)


class _Cancelled(TorchFunctionMode):
    """Mode of torch that finds the largest terms that norms of rows, groups and batches add up.

    Below, r is 1 / sqrt(variance + eps); for rms_norm, 1 / sqrt(mean square + eps).

    Attributes:
        results: the largest `max(|x| r, 1) * max(|weight|, 1)`.
        gradients: the largest `max(r, 1) * max(|x| r, 1) * max(|weight|, 1)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results = self.gradients = 0.0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function not in (F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm):
            return result
        x = (args[0] if args else kwargs["input"]).detach()
        if not x.numel() or (function is F.batch_norm and not kwargs.get("training")):
            return result
        if function is F.group_norm:
            rows = x.reshape(x.shape[0] * (kwargs.get("num_groups") or args[1]), -1)
        elif function is F.batch_norm:
            rows = x.transpose(0, 1).reshape(x.shape[1], -1)
        else:
            normalized = kwargs.get("normalized_shape") or args[1]
            rows = x.reshape(-1, torch.Size(normalized).numel())
        of_squares = (rows if function is F.rms_norm else rows - rows.mean(1, keepdim=True)).square()
        eps = kwargs.get("eps") or (torch.finfo(x.dtype).eps if function is F.rms_norm else 1e-5)
        reciprocal = (of_squares.mean(1) + eps).rsqrt()
        weight = 1.0 if kwargs.get("weight") is None else max(_largest(kwargs["weight"]), 1.0)
        found = (rows.abs().amax(1) * reciprocal).clamp(min=1) * weight
        self.results = max(self.results, _largest(found))
        self.gradients = max(self.gradients, _largest(found * reciprocal.clamp(min=1)))
        return result


class _BentElsewhere(TorchFunctionMode):
    """Mode of torch in which relu, clamp, amax and amin have other gradients, and the same results.

    Let a step be `share` times the largest magnitude of the input. relu and clamp have the gradients of
    inputs that are moved by a step. For a positive share, amax (amin) gives its gradient to the second
    largest (smallest) element if that is within a step of the largest (smallest); for a negative share, to
    all elements within a step, in equal parts.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function not in (F.relu, torch.relu, torch.clamp, torch.amax, torch.amin):
            return result
        width = self.share * _largest(args[0])
        step: torch.Tensor | float = width
        if function in (torch.amax, torch.amin):
            values: torch.Tensor = args[0].detach()
            first = result.detach() if kwargs.get("keepdim") else result.detach().unsqueeze(kwargs["dim"])
            if self.share < 0:
                step = (first - values) * ((first - values).abs() <= -width)
            else:
                step = (values == first) * (-width if function is torch.amax else width)
        moved = function(args[0] + step, *args[1:], **kwargs)
        return moved + (result - moved).detach()


def _most_terms(call: Call, results: Sequence[torch.Tensor]) -> float:
    """Return a bound on the terms of a sum: the longest dimension or the largest ratio of tensors' sizes."""
    shapes = [spec.shape for spec in call.tensors.values()] + [tuple(result.shape) for result in results]
    counts = [max(torch.Size(shape).numel(), 1) for shape in shapes]
    longest = max((n for shape in shapes for n in shape), default=1)
    return float(max(longest, max(counts) / min(counts)))


def _eps_of_arithmetic(operator: Operator, call: Call) -> float:
    """Return eps of the arithmetic if it may be coarser than the dtype of a result says; else 0.

    Under autocast, products are computed in its dtype, and gradients have the dtype of the tensors.
    """
    if call.mode.autocast and operator.multiplies:
        return torch.finfo(dtype_of(call.mode.autocast)).eps
    if (
        narrow := dtype_of(call.options["dtype"].removeprefix("torch.")) if "dtype" in call.options else None
    ) is not None:
        return torch.finfo(narrow).eps if narrow.is_floating_point else 0.0
    if "out" not in call.tensors:
        return 0.0
    dtypes = [
        dtype_of(spec.dtype) for name, spec in call.tensors.items() if name != "out" and spec.is_floating
    ]
    return min(torch.finfo(dtype).eps for dtype in (*dtypes, torch.float32))


def _inputs(call: Call) -> Sequence[torch.Tensor]:
    """Return a tensor of 100, the mean of "large_mean", for each tensor of the call with such values."""
    return [torch.full((1,), 100.0) for spec in call.tensors.values() if spec.values == "large_mean"]


def _largest(t: torch.Tensor) -> float:
    if not t.numel() or t.dtype == torch.bool:
        return 0.0
    magnitudes = t.detach().abs().double()
    finite = magnitudes[magnitudes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _close(
    found: Callable[[str, str], None],
    words: str,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    right: torch.Tensor,
    moved: Sequence[torch.Tensor],
    bent: Sequence[torch.Tensor],
    largest: float,
    *,
    terms: float,
    has_tf32: bool,
    inputs: float,
    is_of_nothing: bool,
    least_eps: float,
) -> None:
    """Report a finding if a result is further from float64 than the accuracy rule allows.

    Args:
        ours, theirs, right: the result of `ops`, of torch, and of torch in float64.
        moved: exact results of rounded inputs; their distance from `right` counts as an error of torch.
        bent: other exact gradients. Where they differ from `right`, either may be right; these elements are
            judged apart from the others, with torch's error there.
        largest: the largest magnitude of the exact results and, for gradients, of the exact gradients.
        terms: the number of terms of the largest sum; 0 if elements are only moved.
        inputs: the size of the terms, if it is known to be larger than `largest`.
        is_of_nothing: whether a tensor of the call has no elements: gradients that are NaN in torch may then
            be 0.
        least_eps: the least eps of the result, whatever its dtype.
    """
    if not right.numel():
        return
    ours, theirs, right = (t.detach().cpu().resolve_conj() for t in (ours, theirs, right))
    if right.is_complex():
        ours, theirs, right = (torch.view_as_real(t.to(torch.complex128)) for t in (ours, theirs, right))
    if not (ours.is_floating_point() and right.is_floating_point()):
        wrong = ours != right.to(ours.dtype)
        if wrong.any():
            found(
                "accuracy",
                f"{words}: {_share(wrong)} are wrong, {_first(wrong, ours, right)}",
            )
        return
    kinds = [_kind_of(t) for t in (ours, theirs, right)]
    wrong = (kinds[0] != kinds[1]) & (kinds[1] == kinds[2])
    if is_of_nothing:
        wrong &= ours != 0
    if wrong.any():
        found(
            "kind of number",
            f"{words}: {_share(wrong)} are NaN or infinite where torch's are not, or the other way round; "
            f"{_first(wrong, ours, right)}",
        )
        return
    finite = (kinds[0] == 0) & (kinds[1] == 0) & (kinds[2] == 0)
    if not finite.any():
        return
    mine, torchs, wanted = (t[finite].double() for t in (ours, theirs, right))
    errors = (mine - wanted).abs()
    off = [(each.detach()[finite] - wanted).abs().nan_to_num(0.0) for each in (*moved, *bent)]
    is_open = torch.zeros_like(errors, dtype=torch.bool)
    for each in off[len(moved) :]:
        is_open |= each > 1e-12 * largest
    for part in (~is_open, is_open):
        if not part.any():
            continue
        of_torch = max(float(each[part].max()) for each in ((torchs - wanted).abs(), *off))
        if not terms:
            allowed = of_torch
        else:
            eps = max(torch.finfo(ours.dtype).eps, least_eps)
            order = min(eps, torch.finfo(torch.float32).eps)
            order = TF32_ROUNDING if has_tf32 and ours.dtype == torch.float32 else order
            # Terms of sums may cancel, so the error is judged by their size, not by that of the result.
            allowed = allowed_error(of_torch, eps, largest, order, terms, max(largest, terms**0.5, inputs))
        if float(errors[part].max()) > allowed:
            wrong = torch.zeros_like(finite)
            wrong[finite] = part & (errors > allowed)
            found(
                "accuracy",
                f"{words}: error {float(errors[part].max()):.3g}, torch's {of_torch:.3g}, "
                f"allowed {allowed:.3g}; {_share(wrong)}, {_first(wrong, ours, right)}",
            )
            return


def _kind_of(t: torch.Tensor) -> torch.Tensor:
    """Return 0 for a finite number, 1 for infinity, -1 for its negative, 2 for NaN."""
    return torch.where(t.isnan(), 2, torch.where(t.isinf(), t.sign().nan_to_num(), 0.0)).to(torch.int8)


def _share(wrong: torch.Tensor) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} elements"


def _first(wrong: torch.Tensor, ours: torch.Tensor, right: torch.Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    return f"first at {place}: {ours[place].item()} for {right[place].item()}"
