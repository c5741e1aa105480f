"""Functions of autograd in warm calls: a warm call has the gradients of the function that was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch

from workbench import compat
from workbench.runtime.recording import Operation, Recorder
from workbench.runtime.tape import tape_of
from workbench.runtime.warm import warm


def follow(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Return `function.apply(*args)`; a warm call of the operator then has the same gradients.

    Args:
        function: a function with `setup_context`. What its context gets must depend on nothing but the
            layouts of tensors and the other arguments; its attributes must not hold tensors.
        args: its arguments. Each tensor is a separate argument, not inside another value.
    """
    recorder: Recorder | None = compat.recorder_here()
    if recorder is None:
        return function.apply(*args)
    places = tuple([place for place, value in enumerate(args) if isinstance(value, torch.Tensor)])
    given = [recorder.reference(value) if i in places else value for i, value in enumerate(args)]
    with recorder.paused():
        with torch.no_grad():  # as in the function's `forward`
            inner = Recorder([args[place] for place in places])
        recorders = [inner]
        with inner, inner.paused():
            result = _noted(function, recorders).apply(*args)
        recorders.clear()  # the graph of the result holds the class, and would hold all tensors
        followed = _followed(function, inner, args, places, result)
    recorder.switches |= inner.switches
    if isinstance(followed, str):
        recorder.refuse(followed)
    else:
        recorder.applied(Operation(_apply_of(function.__name__), (followed, *given), {}), result)
    return result


def _noted(
    function: type[torch.autograd.Function], recorders: Sequence[Recorder]
) -> type[torch.autograd.Function]:
    """Return the function; the paused recorder notes what `forward` does, and nothing that hooks do."""

    def forward(*args: Any) -> Any:
        with recorders[0].resumed():
            return function.forward(*args)

    return type(function.__name__, (function,), {"forward": staticmethod(forward)})


class _Context:
    """A context that is not a node of autograd's graph, for a function's `setup_context` and `backward`.

    What these set besides the slots is in its `__dict__`.
    """

    __slots__ = ("__dict__", "fixed", "materializes", "needs_input_grad", "saved_tensors")

    def __init__(self, needed: tuple[bool, ...], saved: tuple[torch.Tensor | None, ...] = ()) -> None:
        self.needs_input_grad, self.saved_tensors = needed, saved
        self.fixed: tuple[torch.Tensor, ...] = ()
        self.materializes = True

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for `backward`."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Do nothing: warm calls are not made in forward mode."""

    def mark_non_differentiable(self, *results: torch.Tensor) -> None:
        """Note results that have no gradient."""
        self.fixed = results

    def set_materialize_grads(self, value: bool) -> None:
        """Note whether missing gradients are zeros in `backward`, or None."""
        self.materializes = value


@dataclass(frozen=True, eq=False)
class _Followed:
    """A function of autograd in a warm call.

    Attributes:
        function: the function.
        call: does what its `forward` did, on tensors like those of the call: returns a tuple of its results,
            and of what else is saved.
        places: the positions of the tensors among the arguments.
        results: the number of its results.
        saved: for each saved tensor, where it is among the arguments and what `call` returns; None for None.
        fixed: the positions of the results without a gradient.
        materializes: whether missing gradients are zeros.
        attributes: what else `setup_context` set.
        backward: by the needed gradients, a warm function of the results' gradients and the saved tensors.
    """

    function: type[torch.autograd.Function]
    call: Callable[..., Any]
    places: tuple[int, ...]
    results: int
    saved: tuple[int | None, ...]
    fixed: tuple[int, ...]
    materializes: bool
    attributes: dict[str, Any]
    backward: dict[tuple[bool, ...], Callable[..., Any]] = field(default_factory=dict)

    def gradients(self, needed: tuple[bool, ...], count: int, *tensors: torch.Tensor | None) -> Any:
        """Return what the function's `backward` returns.

        Args:
            needed: for each argument, whether its gradient is needed.
            count: the number of the results' gradients, which come first.
            tensors: these gradients, and the saved tensors.
        """
        context = _Context(needed, tensors[count:])
        vars(context).update(self.attributes)
        return self.function.backward(context, *tensors[:count])


def _followed(
    function: type[torch.autograd.Function],
    recorder: Recorder,
    args: tuple[Any, ...],
    places: tuple[int, ...],
    result: Any,
) -> _Followed | str:
    """Return what a warm call needs of a function that was applied; or the reason why it cannot be warm.

    Args:
        recorder: of what the function did.
        places: the positions of the tensors among the arguments.
        result: what it returned: a tensor, or several.
    """
    results = result if isinstance(result, tuple) else (result,)
    context = _Context(tuple([isinstance(each, torch.Tensor) and each.requires_grad for each in args]))
    with recorder, torch.no_grad():
        function.setup_context(context, args, result)
    attributes = dict(vars(context))
    others = [each for place, each in enumerate(args) if place not in places]
    if any(map(_holds_tensors, (attributes, others))):
        return "an argument or attribute of a function of autograd holds tensors"
    known = list(args)
    made = list(results)
    for tensor in context.saved_tensors:
        if tensor is not None and not any(tensor is each for each in (*known, *made)):
            made.append(tensor)
    sources = [*known, *made]
    saved = tuple(
        [
            None if tensor is None else next(i for i, each in enumerate(sources) if each is tensor)
            for tensor in context.saved_tensors
        ]
    )
    fixed = tuple([i for i, each in enumerate(results) if any(each is one for one in context.fixed)])
    tape = tape_of(recorder, [args[place] for place in places], tuple(made), is_inner=True)
    if isinstance(tape, str):
        return tape
    return _Followed(
        function, tape.call, places, len(results) if isinstance(result, tuple) else 0, saved, fixed,
        context.materializes, attributes,
    )  # fmt: skip


def _holds_tensors(value: Any) -> bool:
    """Return whether a value holds tensors with memory, maybe in a tuple, function or epilogue."""
    if isinstance(value, torch.Tensor):
        return not value.is_meta
    if isinstance(value, FunctionType):
        cells = [each.cell_contents for each in value.__closure__ or ()]
        return any(map(_holds_tensors, [*cells, *(value.__defaults__ or ())]))
    if isinstance(value, partial):
        return _holds_tensors([*value.args, *value.keywords.values()])
    if isinstance(value, dict):
        return any(map(_holds_tensors, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    functors = [each.meaning for each in getattr(value, "functors", ())]
    return any(map(_holds_tensors, [*getattr(value, "tensors", ()), *functors]))


class _Node(torch.autograd.Function):
    """The application of a function of autograd in a warm call."""

    @staticmethod
    def forward(ctx: Any, followed: _Followed, *args: Any) -> Any:
        made = followed.call(*[args[place] for place in followed.places])
        ctx.followed, sources = followed, (*args, *made)
        ctx.save_for_backward(*[None if i is None else sources[i] for i in followed.saved])
        if followed.fixed:
            ctx.mark_non_differentiable(*[made[i] for i in followed.fixed])
        if not followed.materializes:
            ctx.set_materialize_grads(False)
        return made[: followed.results] if followed.results else made[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        followed, needed = ctx.followed, ctx.needs_input_grad[1:]
        tensors = (*grads, *ctx.saved_tensors)
        if torch.is_grad_enabled():
            return None, *followed.gradients(needed, len(grads), *tensors)
        backward = followed.backward.get(needed)
        if backward is None:
            backward = warm(partial(followed.gradients, needed, len(grads)))
            followed.backward[needed] = backward
        return None, *backward(*tensors)


@lru_cache(maxsize=1024)
def _apply_of(name: str) -> Callable[..., Any]:
    """Return what applies :class:`_Node` under the name of a function, which users see in `grad_fn`."""
    node = type(name, (_Node,), {})
    # Without what `Function.apply` does for functions with `setup_context` and for transforms of torch.func.
    apply: Callable[..., Any] = super(torch.autograd.Function, node).apply  # type: ignore[misc]  # it is a subclass
    return apply
