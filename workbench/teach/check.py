"""Check a learner's answer on every case of an exercise, and give a verdict in words.

A launch runs twice in the interpreter, on copies of its tensors, with outputs full of NaN. The first run
keeps the usual order of programs and records every memory access, so that the verdict can name the line that
stored a wrong element and the two programs of a race. The second run shuffles the programs and uses other
numbers in the inputs, which exposes a result that was computed before the launch. If it gives a wrong result,
a third run, with those numbers and the usual order, tells whether the order is to blame.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FrameType
from typing import Any, Literal

import torch

from workbench import compat, lens, readings, runtime
from workbench.coords import Descriptor
from workbench.coords.transforms import PassThrough
from workbench.errors import (
    InvalidArgumentError,
    KernelError,
    OutOfBoundsError,
    PromiseError,
    WorkbenchError,
    WorkerError,
)
from workbench.launch import Launch, Step
from workbench.teach import code, comparison, mutants, newcomer, observation, races, sectors
from workbench.teach.code import Excess
from workbench.teach.comparison import in_words
from workbench.teach.definition import Budget, Case, Definition, Mutant
from workbench.teach.observation import Usage, Writers, share_memory
from workbench.teach.sectors import AccessSectors

# With this seed even two programs change places.
SHUFFLE_SEED = 5

# Maximum number of lines to show of what the learner's code prints.
PRINTED_LINES = 20

# For tuples of at least this length, the verdict names the first element that differs.
LONG_TUPLE = 3

# Marks padding in an array of offsets; no real offset has this value.
_PADDING = -(2**63)

# Time limit of a run during the search for a known mistake; a slower answer gets no name for its mistake.
NAMING_SECONDS = 10.0
# Two wrong results count as the same mistake if they differ by at most this share of their errors plus this
# number of rounding steps.
NAMING_SHARE, NAMING_STEPS = 1 / 16, 16

Kind = Literal[
    "solved",
    "not solved yet",  # the stub, or an answer that does as little
    "raises",  # the function or its kernel raises an error
    "unfinished",  # it exceeded the time limit, or the worker died
    "wrong type",
    "wrong shape",
    "wrong dtype",
    "wrong strides",
    "wrong values",
    "unwritten elements",
    "inputs changed",
    "out of bounds",
    "false promise",  # a compiler hint such as tl.multiple_of is false
    "race",  # two programs or lanes touch one element, or the result depends on the order of the programs
    "computed elsewhere",  # by a kernel that is not the learner's, or before the launch was run
    "over budget",
]


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        kind: the kind of failure, or "solved", or "not solved yet".
        text: the text for the learner; the same answer gets the same text on every machine.
        case: the call that failed, such as "axpy(2.5, float32[300], float32[300])"; empty if solved.
        mistake: the name of a known wrong answer that fails in the same way; empty if there is none.
    """

    kind: Kind
    text: str
    case: str = ""
    mistake: str = ""

    @property
    def solved(self) -> bool:
        """True if the answer passed."""
        return self.kind == "solved"


def evaluate(definition: Definition, candidate: object, timeout: float) -> Verdict:
    """Try `candidate` on every case and return the verdict, which the first failure decides.

    The learner's own prints are shown for the first case only, up to `PRINTED_LINES` lines.

    Args:
        definition: the exercise.
        candidate: the learner's function.
        timeout: time limit in seconds for the function and for each run of its launch. Outside the main
            thread, a function that never returns cannot be stopped.
    """
    call = ""
    try:
        function = _validated_function(definition, candidate)
        answers = []
        for case in definition.cases:
            call = _format_call(definition, case)
            with _suppress_prints(shown=case is definition.cases[0]):
                answers.append(_try(definition, function, case, timeout))
        for case, answer in zip(definition.cases, answers, strict=True):
            call = _format_call(definition, case)
            _check_budget(definition, case, answer)
        unknown = {target: reason for answer in answers for target, reason in answer.unknown.items()}
        compiled: set[bytes] = set()
        for case, answer in zip(definition.cases, answers, strict=True):
            call = _format_call(definition, case)
            _check_compiles(answer, call, compiled, unknown)
    except _Rejected as rejected:
        text = f"{definition.name}: {rejected}"
        if rejected.evidence is not None and (mutant := _matching_mutant(definition, function)):
            return Verdict(rejected.kind, f"{text}\nIt looks like this: {mutant.says}", call, mutant.name)
        return Verdict(rejected.kind, text, call)
    note = next((answer.note for answer in answers if answer.note), "")
    for target, reason in unknown.items():
        note += (
            f"\nNote: here nothing can be compiled for {target}, neither this kernel nor any other. So it is "
            f"not known whether such a GPU takes it.\n  {reason}"
        )
    return Verdict("solved", _passing_text(definition, bool(compiled), unknown) + note)


@dataclass(frozen=True)
class _Answer:
    """A correct answer to one case.

    Attributes:
        launch: the launch; None if the function does not return a launch.
        usage: the resources that the launch used; None if the function does not return a launch.
        note: a note for the verdict, as lines to append; often empty.
        sectors: the sectors that its loads and stores touch; empty without a budget for sectors.
        missed: the cache lines that its reads fetch from memory, by the model; 0 without a budget for misses.
        code: the ways in which its compiled code exceeds the budget.
        unknown: the GPUs of the budget for which nothing can be compiled here, each with the reason.
    """

    launch: Launch | None = None
    usage: Usage | None = None
    note: str = ""
    sectors: tuple[AccessSectors, ...] = ()
    missed: int = 0
    code: tuple[Excess, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


class _Rejected(Exception):
    """The answer is wrong.

    Args:
        kind: the kind of failure.
        text: the text for the learner.
        evidence: a value that is equal for two answers with the same mistake; None if nothing identifies it.
    """

    def __init__(self, kind: Kind, text: str, evidence: object = None) -> None:
        super().__init__(text)
        self.kind, self.evidence = kind, evidence


@contextlib.contextmanager
def _suppress_prints(shown: bool) -> Iterator[None]:
    """Suppress prints within this context; if `shown`, print the first lines at the end."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines() if shown else []
        for line in lines[:PRINTED_LINES]:
            print(line)
        if (more := len(lines) - PRINTED_LINES) > 0:
            print(f"... and {more:,} more lines that your code printed.")


class _NothingCompiles(Exception):
    """No kernel at all compiles for a target here, so the answer cannot be judged by it."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(reason)
        self.reasons = {target: reason}


def _passing_text(definition: Definition, compiles: bool, unknown: Mapping[str, str]) -> str:
    agreed = f"All {len(definition.cases)} cases agree with the specification"
    if definition.transforms is not None:
        agreed += f", with no more than {definition.transforms} transforms"
    if definition.returns_launch:
        agreed += ", in two orders of the programs, into outputs that were full of NaN"
    targets: list[str] = []
    if definition.budget:
        agreed += ", and it moves no more bytes than it must"
        budget = definition.budget(*definition.cases[0].inputs())
        if budget.sectors is not None and sectors.TARGET not in unknown:
            agreed += ", in no more sectors than it may"
        if budget.misses is not None:
            agreed += ", and no more of them from memory, by the model of the cache, than it may"
        targets = [asked.target for asked in budget.code if asked.target not in unknown]
        if targets:
            agreed += f"; compiled for {' and '.join(targets)}, it keeps within its budget"
    if compiles and code.TARGET not in targets:
        agreed += f"; it compiles for {code.TARGET}"
    return f"{definition.name}: solved. {agreed}.\nThis does not prove {definition.unproven}"


def _validated_function(definition: Definition, candidate: object) -> Callable[..., Any]:
    call = f"check({definition.function})"
    if candidate is None or candidate is ...:
        raise _Rejected("not solved yet", f"not solved yet. Give the check your function: {call}.")
    if compat.is_kernel(candidate) or compat.is_wrapped_kernel(candidate):
        text = f"this is a kernel. Give the check the function that launches it: {call}."
        raise _Rejected("wrong type", text)
    if not callable(candidate):
        text = f"got a {type(candidate).__name__}. Give the check the function itself, not called: {call}."
        raise _Rejected("wrong type", text)
    return candidate


def _format_call(definition: Definition, case: Case) -> str:
    return f"{definition.function}({', '.join(map(in_words, case.inputs()))})"


def _try(definition: Definition, function: Callable[..., Any], case: Case, timeout: float) -> _Answer:
    """Run the function on one case and judge its result.

    Raises:
        _Rejected: the answer is wrong.
    """
    inputs, call = case.inputs(), _format_call(definition, case)
    result = _call_function(function, inputs, call, timeout)
    is_first = case is definition.cases[0]
    if is_first and any(result is nothing for nothing in (None, ..., NotImplemented)):
        raise _Rejected("not solved yet", f"not solved yet. {call} returns nothing.")
    names = inspect.signature(definition.specification).parameters
    tensors = {
        name: tensor for name, tensor in zip(names, inputs, strict=True) if isinstance(tensor, torch.Tensor)
    }
    originals = (value for value in case.inputs() if isinstance(value, torch.Tensor))
    for (name, tensor), original in zip(tensors.items(), originals, strict=True):
        if observation.bits(tensor) != observation.bits(original):
            raise _Rejected("inputs changed", f"{call} changes its argument {name}. Leave the inputs alone.")
    if not definition.returns_launch:
        _compare_values(definition, result, case, call)
        return _Answer()

    return _try_launch(definition, _validated_launch(result, tensors, call), tensors, case, timeout)


def _try_launch(
    definition: Definition, launch: Launch, inputs: dict[str, torch.Tensor], case: Case, timeout: float
) -> _Answer:
    """Run and judge a launch that the function made from `inputs`; raises the errors of :func:`_try`."""
    call = _format_call(definition, case)
    expected, exact = map(_as_tensors, _expected(definition, case.inputs()))
    if len(launch.outputs) != len(expected):
        text = (
            f"the launch of {call} names {len(launch.outputs)} outputs, not {len(expected)}: "
            f"outputs={'output' if len(expected) == 1 else '(output_0, output_1, ...)'}."
        )
        raise _Rejected("wrong type", text)
    _check_forms(launch.outputs, expected, "the output", call)
    if definition.is_contiguous:
        _check_strides(launch.outputs, call)
    if definition.own_kernels:
        _check_own_kernels(launch, call)
    run = _run_interpreted(launch, call, timeout, record=True)
    print(run.printed, end="")
    usage = observation.usage(launch, run.accesses, run.outputs)
    if case is definition.cases[0] and usage.stored_bytes == 0:
        text = "not solved yet. The kernel stores nothing."
        raise _Rejected("not solved yet", text + newcomer.hint(text, _kernels(launch)))
    _check_changed(launch, run.changed, inputs, call)
    race = races.find(launch, run.accesses)
    if race is not None and not (race.is_harmless or race.is_within):
        raise _race_of_programs(race, run.accesses, call)
    _compare_outputs(definition, launch, run, expected, exact, usage, call)
    if race is not None and race.is_within:
        raise _Rejected(
            "race",
            f"the lanes of a program race, for {call}: {race.describe()}\n"
            "  Lanes run at the same time. Put tl.debug_barrier() between the two, or keep the values in the "
            "tile.",
        )
    _check_depends_on_inputs(definition, launch, run.accesses, inputs, case, timeout)
    note = ""
    if race is not None:
        note = (
            f"\nNote, for {call}: {race.describe()}\n"
            "  Both write the same: the result is right, and the work is done twice."
        )
    budget = definition.budget(*case.inputs()) if definition.budget else None
    unknown: dict[str, str] = {}
    return _Answer(
        launch,
        usage,
        note,
        _count_sectors(budget, launch, call, unknown),
        _count_missed_lines(budget, launch, call),
        _excesses(budget, launch, call, unknown),
        unknown,
    )


def _race_of_programs(race: races.Race, accesses: observation.Accesses, call: str) -> _Rejected:
    """Return the rejection of programs that race."""
    barrier = ""
    if any(access.kind == "atomic" for seen in accesses for access in seen):
        barrier = (
            " One that tells others that a tile is stored needs tl.debug_barrier() before it: a single lane "
            "does it, and does not wait for the others."
        )
    return _Rejected(
        "race",
        f"the programs race, for {call}: {race.describe()}\n"
        "  Programs run at the same time, in any order. Leave an element to one of them, or use atomics, "
        f"such as tl.atomic_add.{barrier}",
    )


def _count_sectors(
    budget: Budget | None, launch: Launch, call: str, unknown: dict[str, str]
) -> tuple[AccessSectors, ...]:
    """Count the sectors that a correct launch touches; empty without a budget or if nothing compiles."""
    if budget is None or budget.sectors is None:
        return ()
    text = f"the result of {call} is right, but its sectors cannot be counted."
    with _collect_unknown(unknown), _reject_on_error(text, sectors.TARGET):
        return tuple(sectors.by_access(launch))
    return ()


def _count_missed_lines(budget: Budget | None, launch: Launch, call: str) -> int:
    """Count the cache lines that a correct launch's reads fetch from memory; 0 without a budget for them."""
    if budget is None or budget.misses is None:
        return 0
    with _reject_on_error(f"the result of {call} is right, but its reads cannot be counted."):
        trace, *more = lens.trace(launch)
        if more:
            given = f"it has {len(launch.steps)} steps, and the model of the cache knows one"
            raise InvalidArgumentError("launch", given, "Return a launch of one kernel.")
        found = readings.gemm_reads.reads_of(
            trace, resident=budget.misses.resident, cache_bytes=budget.misses.cache_bytes
        )
    return sum(program.reads - program.hits for program in found.programs)


def _excesses(
    budget: Budget | None, launch: Launch, call: str, unknown: dict[str, str]
) -> tuple[Excess, ...]:
    """Return the ways in which a correct launch's compiled code exceeds its budget, where it compiles."""
    found: list[Excess] = []
    for asked in budget.code if budget else ():
        text = f"the result of {call} is right, but it does not compile for {asked.target}."
        with _collect_unknown(unknown), _reject_on_error(text, asked.target):
            found += code.excesses(launch, asked)
    return tuple(found)


@contextlib.contextmanager
def _collect_unknown(unknown: dict[str, str]) -> Iterator[None]:
    """Suppress _NothingCompiles within this context, and add its target and reason to `unknown`."""
    try:
        yield
    except _NothingCompiles as nothing:
        unknown |= nothing.reasons


@contextlib.contextmanager
def _reject_on_error(text: str, target: str = "") -> Iterator[None]:
    """Reject an answer that is right in the interpreter, if this context raises a WorkbenchError.

    Args:
        text: the first line of the verdict.
        target: the target that it is compiled for; empty if it is not compiled.

    Raises:
        _Rejected: with `text`, the error's message and a hint.
        _NothingCompiles: the answer is not to blame, since no kernel compiles for this target here.
    """
    try:
        yield
    except WorkbenchError as error:
        if target and (reason := code.why_nothing_compiles(target)):
            raise _NothingCompiles(target, reason) from None
        words = _normalized(str(error))
        hint = newcomer.hint(words, getattr(error, "source", None) or "")
        indented = words.replace("\n", "\n  ")
        raise _Rejected("raises", f"{text}\n  {indented}{hint}") from None


def _kernels(launch: Launch) -> str:
    """Return the source of a launch's kernels."""
    return "\n".join(inspect.getsource(compat.python_function(step.kernel)) for step in launch.steps)


def _call_function(
    function: Callable[..., Any], inputs: tuple[Any, ...], call: str, timeout: float
) -> object:
    """Call the learner's function; raise _Rejected if it raises an error or exceeds the time limit."""
    try:
        with _time_limit(timeout):
            result: object = function(*inputs)
    except NotImplementedError:
        return NotImplemented
    except _TimeOver:
        text = f"{call} did not return within {timeout:g} s. Look for a loop that never ends."
        raise _Rejected("unfinished", text) from None
    except (Exception, SystemExit) as error:
        text = _normalized(f"{type(error).__name__}: {error}")
        number, line = _line_of(error, function)
        shown = f"\n  line {number}: {line}" if number else ""
        hint = newcomer.hint(text, line)
        raise _Rejected("raises", f"{call} raises {text}{shown}{hint}", type(error)) from None
    return result


def _line_of(error: BaseException, function: Callable[..., Any]) -> tuple[int, str]:
    """Return the number and text of the innermost line of an error in the function's file; 0 if none."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return frame.lineno or 0, (frame.line or "").strip()
    return 0, ""


def _normalized(text: str) -> str:
    """Remove memory addresses, which differ between runs, and long arrays from an error's text."""
    return re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"\[[-+\d\s.,e]{40,}\]", "[...]", text))


class _TimeOver(BaseException):
    """The time limit expired. Not an Exception, so that a learner's `except Exception` does not catch it."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeOver in this context after a number of seconds; set no limit outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TimeOver

    handler_before = signal.signal(signal.SIGALRM, stop)
    timer_before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
        signal.setitimer(signal.ITIMER_REAL, *timer_before)  # for example a test runner's time limit


def _validated_launch(result: object, inputs: dict[str, torch.Tensor], call: str) -> Launch:
    """Return the function's result if it is a launch whose outputs do not share memory with the inputs."""
    if not isinstance(result, Launch):
        raise _Rejected(
            "wrong type",
            f"{call} returns a {type(result).__name__}. Return the launch, and the check will run it:\n"
            "  return Launch.of(kernel, grid, ..., outputs=output)",
        )
    for name, tensor in inputs.items():
        if any(share_memory(tensor, output) for output in result.outputs):
            text = (
                f"{call} names {name}, an input, among its outputs. "
                f"Name only the result, a new tensor: torch.empty_like({name})."
            )
            raise _Rejected("inputs changed", text)
    return result


def _run_interpreted(
    launch: Launch, call: str, timeout: float, *, seed: int | None = None, record: bool = False
) -> runtime.Interpreted:
    """Run a launch in the interpreter with outputs full of NaN; arguments as in `runtime.interpret`."""

    def rejected(kind: Kind, error: WorkbenchError, evidence: object = None, hint: str = "") -> _Rejected:
        indented = _normalized(str(error)).replace("\n", "\n  ")
        return _Rejected(kind, f"the launch of {call} fails.\n  {indented}{hint}", evidence)

    try:
        return runtime.interpret(launch, poison=True, seed=seed, record=record, timeout=timeout)
    except OutOfBoundsError as error:
        # The reason up to the colon names the tensor and says whether it is read or written.
        raise rejected("out of bounds", error, error.reason.partition(":")[0]) from None
    except PromiseError as error:
        raise rejected("false promise", error) from None
    except WorkerError as error:
        raise rejected("unfinished", error) from None
    except KernelError as error:
        hint = newcomer.hint(_normalized(error.reason), error.source or "")
        raise rejected("raises", error, hint=hint) from None
    except WorkbenchError as error:
        raise rejected("raises", error) from None
    except SystemExit:
        text = f"the kernel of {call} raises SystemExit. Let the kernel return instead of exiting."
        raise _Rejected("raises", text) from None


def _check_own_kernels(launch: Launch, call: str) -> None:
    """Raise _Rejected if the launch uses a kernel of the package instead of the learner's."""
    for step in launch.steps:
        if observation.is_the_packages(step.kernel):
            raise _Rejected(
                "computed elsewhere",
                f"the launch of {call} runs {step.name}, a kernel of the package.\n"
                "  Write the kernel yourself. It may call the package's tile operators.",
            )


def _check_compiles(answer: _Answer, call: str, compiled: set[bytes], unknown: dict[str, str]) -> None:
    """Compile each of the learner's kernels once, since the interpreter accepts more than the compiler.

    Args:
        answer: a correct answer to a case.
        call: the call of this case, in words.
        compiled: the keys of the steps that were compiled; new ones are added.
        unknown: the targets for which nothing compiles here; a new one is added with the reason.

    Raises:
        _Rejected: a kernel does not compile, or needs more resources than the GPU has.
    """
    for step in answer.launch.steps if answer.launch else ():
        identity = code.identity(step)
        if identity is None or identity in compiled or code.TARGET in unknown:
            continue
        with _collect_unknown(unknown):
            _compile(step, call)
            compiled.add(identity)


def _compile(step: Step, call: str) -> None:
    """Compile a step of a correct launch; raises _Rejected or _NothingCompiles."""
    target = code.TARGET
    with _reject_on_error(f"the result of {call} is right, but it does not compile for {target}.", target):
        (compiled,) = lens.compile(Launch((step,), ()), target)
    if compiled.problem:
        text = f"the result of {call} is right, but {target} cannot run {compiled.kernel}"
        raise _Rejected("raises", f"{text}: it {compiled.problem}.")


def _check_changed(
    launch: Launch, changed: tuple[torch.Tensor, ...], inputs: dict[str, torch.Tensor], call: str
) -> None:
    """Raise _Rejected if the launch changed an input, or memory beside the elements of an output."""
    for memory in changed:
        for name, tensor in inputs.items():
            if share_memory(tensor, memory):
                text = f"the kernel of {call} writes to {name}, an input. Store to the output only."
                raise _Rejected("inputs changed", text)
        if any(share_memory(output, memory) for output in launch.outputs):
            text = (
                f"the kernel of {call} writes beside the elements of its output, into the same memory. "
                "Use the strides of the output in its offsets, and mask the store."
            )
            raise _Rejected("out of bounds", text)


def _check_depends_on_inputs(
    definition: Definition,
    launch: Launch,
    accesses: observation.Accesses,
    inputs: dict[str, torch.Tensor],
    case: Case,
    timeout: float,
) -> None:
    """Raise _Rejected if the launch is wrong with other numbers in its inputs and with shuffled programs.

    A result that is wrong only then depends on the order of the programs, or was computed elsewhere, for
    example by torch.
    """
    call, others = _format_call(definition, case), case.other_inputs()
    other_tensors = (value for value in others if isinstance(value, torch.Tensor))
    for tensor, other in zip(inputs.values(), other_tensors, strict=True):
        tensor.untyped_storage().copy_(other.untyped_storage())  # copy_ does not work on an expanded tensor
    expected, exact = map(_as_tensors, _expected(definition, others))

    def is_right(seed: int | None) -> bool:
        run = _run_interpreted(launch, call, timeout, seed=seed)
        outputs = zip(run.outputs, exact, expected, strict=True)
        return not any(_wrong(definition, o, e, own).any() for o, e, own in outputs)

    if is_right(SHUFFLE_SEED):
        return
    if is_right(None):
        raise _Rejected(
            "race",
            f"the programs race: {call} gives another result when they run in another order.\n"
            "  Look for atomics whose result is used: which program comes first is not known.",
        )
    unused = [name for name, tensor in inputs.items() if not observation.loads(launch, accesses, tensor)]
    reason = f"no kernel of the launch loads {' and '.join(unused)}"
    if not unused:
        reason = f"with other numbers in {' and '.join(inputs)}, the same launch does not compute from those"
    raise _Rejected(
        "computed elsewhere",
        f"the result of {call} is right, but {reason}.\n"
        "  Give the kernel the inputs themselves, and compute nothing before it runs.",
        reason,  # a mistake that shows only with some numbers ends here too, so mutants are compared by this
    )


def _expected(definition: Definition, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the specification's results: computed in the inputs' dtypes, and in float64."""
    wide = (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    )
    return definition.specification(*inputs), definition.specification(*wide)


def _as_tensors(value: object) -> tuple[torch.Tensor, ...]:
    """Return a tensor or a tuple of tensors as a tuple; empty for anything else."""
    values = value if isinstance(value, tuple) else (value,)
    return values if all(isinstance(item, torch.Tensor) for item in values) else ()


def _compare_values(definition: Definition, result: object, case: Case, call: str) -> None:
    """Judge the result of a function that does not return a launch."""
    expected, exact = _expected(definition, case.inputs())
    if isinstance(expected, Descriptor):
        _compare_descriptors(definition, result, expected, call)
        return
    if tensors := _as_tensors(expected):
        results = _as_tensors(result)
        if len(results) != len(tensors):
            asked = "a tensor" if len(tensors) == 1 else f"a tuple of {len(tensors)} tensors"
            raise _Rejected("wrong type", f"{call} returns a {type(result).__name__}, not {asked}.")
        _check_forms(results, tensors, "the result", call)
        for number, (own, reference) in enumerate(zip(tensors, _as_tensors(exact), strict=True)):
            wrong = _wrong(definition, results[number].cpu(), reference, own)
            if wrong.any():
                name = _numbered("the result", number, len(tensors))
                raise _wrong_values(results[number], reference, wrong, name, call)
        return
    if not comparison.same_type(result, expected):
        text = f"{call} returns {_type_in_words(result)}, not {_type_in_words(expected)}."
        raise _Rejected("wrong type", text)
    if not comparison.same_value(result, expected):
        raise _Rejected(
            "wrong values",
            f"wrong for {call}.\n  expected {in_words(expected)}\n  got      {in_words(result)}"
            f"{_first_that_differs(result, expected)}",
            in_words(result),
        )


def _first_that_differs(result: object, expected: object) -> str:
    """Return a line that says where two long tuples first differ; empty for other values."""
    if not isinstance(result, tuple) or not isinstance(expected, tuple) or len(expected) < LONG_TUPLE:
        return ""
    equal = itertools.takewhile(lambda pair: comparison.same_value(*pair), zip(result, expected, strict=True))
    return f"\n  They differ first at number {len(list(equal))}, counted from 0."


def _compare_descriptors(definition: Definition, result: object, expected: Descriptor, call: str) -> None:
    """Judge a descriptor by the offset of each element, and by its transforms."""
    if not isinstance(result, Descriptor):
        text = f"{call} returns a {type(result).__name__}, not a descriptor. Return the descriptor."
        raise _Rejected("wrong type", text)
    if result.symbols:
        names = ", ".join(found.name for found in result.symbols)
        raise _Rejected(
            "wrong type", f"{call} returns a descriptor in which {names} is not known yet. Give numbers."
        )
    if result.lengths != expected.lengths:
        text = f"the descriptor of {call} has lengths {[*result.lengths]}, not {[*expected.lengths]}."
        raise _Rejected("wrong shape", text, result.lengths)
    got, wanted = (one.offsets().filled(_PADDING) for one in (result, expected))
    wrong = torch.from_numpy(got != wanted)
    if wrong.any():
        first = _first(wrong)
        values = ["padding" if one[first] == _PADDING else f"offset {one[first]}" for one in (wanted, got)]
        raise _Rejected(
            "wrong values",
            f"{int(wrong.sum()):,} of {got.size:,} elements of the descriptor are wrong, for {call}.\n"
            f"  element {_index(first)}: expected {values[0]}, got {values[1]}",
            got.tobytes(),
        )
    if definition.transforms is not None:
        _check_transforms(result, definition.transforms, call)


def _check_transforms(found: Descriptor, most: int, call: str) -> None:
    """Raise _Rejected if a correct descriptor has more than `most` transforms or reads a table."""
    own = [stage.transform for stage in found.stages[1:] if not isinstance(stage.transform, PassThrough)]
    excess = []
    if len(own) > most:
        excess.append(f"it has {len(own)} transforms where {most} would do")
    if found.tables:
        excess.append("it reads a table")
    if excess:
        labels = "".join(f"\n    {one.name}" for one in reversed(own))
        raise _Rejected(
            "over budget",
            "correct, but it uses too much to count as solved.\n"
            f"  For {call}, {' and '.join(excess)}:{labels}",
            tuple(one.name for one in own),
        )


def _type_in_words(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"a value of type {type(value).__name__}"


def _compare_outputs(
    definition: Definition,
    launch: Launch,
    run: runtime.Interpreted,
    expected: tuple[torch.Tensor, ...],
    exact: tuple[torch.Tensor, ...],
    usage: Usage,
    call: str,
) -> None:
    """Judge the elements of a launch's outputs, whose shapes and dtypes are right."""
    for number, (own, reference) in enumerate(zip(expected, exact, strict=True)):
        output, name = run.outputs[number], _numbered("the output", number, len(expected))
        wrong = _wrong(definition, output, reference, own)
        if not wrong.any():
            continue
        writers = Writers.of(launch, run.accesses, launch.outputs[number])
        first = _first(wrong)
        if writer := writers.describe(first):
            raise _wrong_values(output, reference, wrong, name, call, f"\n  written by {writer}")
        unwritten = int(writers.unwritten().sum())
        grids = " and ".join(f"{step.name} over a grid of {step.grid}" for step in launch.steps)
        raise _Rejected(
            "unwritten elements",
            f"{unwritten:,} of {output.numel():,} elements of {name} are never written, for {call}.\n"
            f"  The first is element {_index(first)}. The launch runs {grids}.",
            usage,
        )


def _wrong(
    definition: Definition, got: torch.Tensor, reference: torch.Tensor, torchs_own: torch.Tensor
) -> torch.Tensor:
    """Call `comparison.wrong_elements` with the exercise's tolerance; `got` has to be on the CPU."""
    return comparison.wrong_elements(got, reference.cpu(), torchs_own.cpu(), definition.tolerance)


def _check_forms(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str, call: str
) -> None:
    for number, (result, own) in enumerate(zip(results, expected, strict=True)):
        name = _numbered(what, number, len(expected))
        if result.shape != own.shape:
            text = (
                f"{name} of {call} has shape {list(result.shape)}, not {list(own.shape)}. Give it that shape."
            )
            raise _Rejected("wrong shape", text)
        if result.dtype != own.dtype:
            text = f"{name} of {call} has dtype {result.dtype}, not {own.dtype}. Give it that dtype."
            raise _Rejected("wrong dtype", text)


def _check_strides(results: Sequence[torch.Tensor], call: str) -> None:
    for number, result in enumerate(results):
        if not result.is_contiguous():
            name = _numbered("the output", number, len(results))
            raise _Rejected(
                "wrong strides",
                f"{name} of {call} is not contiguous: its shape is {list(result.shape)}, and its strides are "
                f"{list(result.stride())}.\n"
                "  torch.empty(shape) makes a contiguous tensor; torch.empty_like(x) takes the strides of x.",
            )


def _numbered(what: str, number: int, of: int) -> str:
    """Return "the output" if there is only one, else "output 1" and so on."""
    return what if of == 1 else f"{what.removeprefix('the ')} {number}"


def _wrong_values(
    result: torch.Tensor, reference: torch.Tensor, wrong: torch.Tensor, name: str, call: str, writer: str = ""
) -> _Rejected:
    first = _first(wrong)
    values = [in_words(tensor[first].item()) for tensor in (reference, result)]
    return _Rejected(
        "wrong values",
        f"{int(wrong.sum()):,} of {result.numel():,} elements of {name} are wrong, for {call}.\n"
        f"  element {_index(first)}: expected {values[0]}, got {values[1]}{writer}",
        _WrongResult(result.cpu(), reference.cpu()),
    )


@dataclass(frozen=True, eq=False)
class _WrongResult:
    """A wrong result and its reference; two of them are equal if they show one mistake up to rounding.

    In floating dtypes each element may differ by `NAMING_SHARE` of its error plus `NAMING_STEPS` rounding
    steps of the reference, but if all errors are finite, by no more than `NAMING_SHARE` of the largest error.
    Infinities and NaN have to be the same.
    """

    got: torch.Tensor
    reference: torch.Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _WrongResult) or self.got.shape != other.got.shape:
            return False
        differs = (self.got != other.got) & ~(self.got.isnan() & other.got.isnan())
        if not differs.any() or not self.got.dtype.is_floating_point:
            return not differs.any()
        got, wanted = self.got.double(), self.reference.double()
        errors = (got - wanted).abs()
        errors = torch.where(errors.isnan(), torch.inf, errors)
        share, digits = NAMING_SHARE * errors, NAMING_STEPS * torch.finfo(self.got.dtype).eps * wanted.abs()
        share, digits = (torch.where(each.isfinite(), each, 0.0) for each in (share, digits))
        # If an error is infinite or NaN, no largest error exists to compare with: nothing is clamped.
        allowed = (share + digits).clamp(max=NAMING_SHARE * errors.max())
        return bool(((got - other.got.double()).abs() <= allowed)[differs].all())


def _first(wrong: torch.Tensor) -> tuple[int, ...]:
    return tuple(wrong.nonzero()[0].tolist())


def _index(element: tuple[int, ...]) -> int | tuple[int, ...]:
    return element[0] if len(element) == 1 else element


def _check_budget(definition: Definition, case: Case, answer: _Answer) -> None:
    usage = answer.usage
    if definition.budget is None or usage is None:
        return
    budget = definition.budget(*case.inputs())
    excess = [
        f"it {verb} {used:,} {unit} where {enough:,} would do"
        for verb, used, unit, enough in (
            ("loads", usage.loaded_bytes, "bytes", budget.loaded_bytes),
            ("stores", usage.stored_bytes, "bytes", budget.stored_bytes),
            ("takes", usage.steps, "steps", budget.steps),
        )
        if used > enough
    ]
    touched = sum(access.totals.sectors for access in answer.sectors)
    details = [each.text for each in answer.code]
    if budget.sectors is not None and touched > budget.sectors:
        excess.append(f"it touches {touched:,} sectors where {budget.sectors:,} would do")
        details += [
            f"{access.kind} of {access.argument}, line {access.line}: {access.totals.sectors:,} sectors, "
            f"{access.totals.bits} bits a lane"
            for access in answer.sectors
        ]
    if budget.misses is not None and answer.missed > budget.misses.lines:
        excess.append(
            f"it fetches {answer.missed:,} lines from memory, by the model, where {budget.misses.lines:,} "
            "would do"
        )
    if budget.programs is not None and usage.programs != budget.programs:
        excess.append(f"it starts {usage.programs} programs, not {budget.programs}")
    if excess or answer.code:
        found = ", ".join(excess) or "its code is not what is asked for"
        raise _Rejected(
            "over budget",
            "correct, but it uses too much to count as solved.\n"
            f"  For {_format_call(definition, case)}, {found}{':' if details else '.'}"
            + "".join(f"\n    {detail}" for detail in details),
            (
                usage.loaded_bytes,
                usage.stored_bytes,
                budget.programs and usage.programs,
                touched,
                answer.missed,
                [each.signature for each in answer.code],
            ),
        )


def _matching_mutant(definition: Definition, function: Callable[..., Any]) -> Mutant | None:
    """Return a mutant that fails like `function` in every case, if possible bit for bit; else None."""
    like = None
    with _suppress_prints(shown=False):
        signatures = list(_failure_signatures(definition, partial(_failure_signature, definition, function)))
        for mutant in definition.mutants:
            others = []
            for one, other in itertools.zip_longest(
                signatures, _failure_signatures(definition, partial(_mutant_signature, definition, mutant))
            ):
                if one != other:
                    break
                others.append(other)
            else:
                if _in_bits(signatures) == _in_bits(others):
                    return mutant
                like = like or mutant
    return like


_Signature = tuple[Kind, object] | None


def _in_bits(signatures: Iterable[_Signature]) -> list[object]:
    """Replace the wrong results in signatures by their bits."""
    return [
        observation.bits(signature[1].got)
        if signature and isinstance(signature[1], _WrongResult)
        else signature
        for signature in signatures
    ]


def _failure_signatures(
    definition: Definition, signature: Callable[[Case], _Signature]
) -> Iterator[_Signature]:
    """Yield the signature of each case, up to the first failure without evidence.

    The signature of a failure without evidence equals no other signature.
    """
    for case in definition.cases:
        found = signature(case)
        if found is not None and found[1] is None:
            yield found[0], object()
            return
        yield found


def _failure_signature(definition: Definition, function: Callable[..., Any], case: Case) -> _Signature:
    """Return the kind and evidence of the function's failure in this case; None if it does not fail."""
    try:
        _check_budget(definition, case, _try(definition, function, case, NAMING_SECONDS))
    except _Rejected as rejected:
        return rejected.kind, rejected.evidence
    return None


@lru_cache(maxsize=1024)
def _mutant_signature(definition: Definition, mutant: Mutant, case: Case) -> _Signature:
    """Return the signature of a mutant, which does not depend on the learner's answer and is cached."""
    return _failure_signature(definition, mutants.build_mutant(definition, mutant), case)
