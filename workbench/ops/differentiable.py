"""Functions of tensors with gradients that kernels compute: :func:`differentiable`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from workbench.ops.gradients import mapped, once_differentiable
from workbench.runtime.following import follow

Tensors = Sequence[torch.Tensor | None]

# The tensors to save, and a function of the result's gradient and of these tensors, which returns the
# gradients of the first arguments in order: one, or a tuple of them.
Gradient = tuple[Tensors, Callable[..., Any]]


class Applied(NamedTuple):
    """A call that autograd records.

    Attributes:
        needed: which of the tensors need a gradient.
        tensors: the arguments by position; some may be None, or a number.
        results: the results, of which only the first has a gradient.
    """

    needed: tuple[bool, ...]
    tensors: Sequence[Any]
    results: tuple[torch.Tensor, ...]


class Differentiable(Protocol):
    """A function that autograd records.

    Attributes:
        function: the class of its nodes in autograd's graph.
    """

    function: type[torch.autograd.Function]

    def __call__(self, *tensors: Any, **constants: Any) -> Any:
        """Return the result, or a tuple of results, of which only the first has a gradient."""


def differentiable(
    forward: Callable[..., Any],
    backward: Callable[..., Gradient],
    *,
    jvp: Callable[..., torch.Tensor] | None = None,
    vmap: Callable[..., torch.Tensor] | None = None,
    is_once: bool = True,
) -> Differentiable:
    """Return `forward` as a function that autograd records, also in a warm call.

    It is called with tensors by position, of which some can be None or a number, and with constants by name,
    which hold no tensors. All functions get the constants by name.

    Args:
        forward: takes the tensors.
        backward: takes an `Applied`. It returns what to save, and a function as in `Gradient`, which holds no
            tensors itself. Gradients that are not needed may be None.
        jvp: takes the tensors and their tangents, as two tuples, and returns the tangent of the result;
            None if the function has no derivative in forward mode.
        vmap: the rule of torch.vmap: takes the size of the batch, the dimension of the batch in each
            tensor, or None, and the tensors; returns the result with the batch in dimension 0. None for a
            loop over the batch.
        is_once: whether its gradient has no gradient itself.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(call: partial[Any], *tensors: Any) -> Any:
            return call(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            call, *tensors = inputs
            results = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*results[1:])
            ctx.set_materialize_grads(False)  # zeros would cost a kernel each
            applied = Applied(ctx.needs_input_grad[1:], tensors, results)
            saved, ctx.compute = backward(applied, **call.keywords)
            ctx.save_for_backward(*saved)
            if jvp is not None:
                ctx.constants = call.keywords
                ctx.others = [None if isinstance(each, torch.Tensor) else each for each in tensors]
                ctx.save_for_forward(*[each if isinstance(each, torch.Tensor) else None for each in tensors])

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
            _, *needed = ctx.needs_input_grad
            if grads[0] is None:  # later operators have none for it
                return (None,) * (1 + len(needed))
            tensors = (grads[0], *ctx.saved_tensors)
            found = once_differentiable(ctx.compute, *tensors) if is_once else ctx.compute(*tensors)
            found = found if isinstance(found, tuple) else (found,)
            found += (None,) * (len(needed) - len(found))
            return None, *[each if wanted else None for each, wanted in zip(found, needed, strict=True)]

        @staticmethod
        def vmap(
            info: Any, in_dims: tuple[int | None, ...], call: partial[Any], *tensors: Any
        ) -> tuple[Any, Any]:
            if vmap is not None:
                return vmap(info.batch_size, in_dims[1:], *tensors, **call.keywords), 0
            return mapped(partial(Function.apply, call), in_dims[1:], *tensors)

    def tangent(ctx: Any, *tangents: Any) -> torch.Tensor:
        assert jvp is not None
        tensors = [
            one if other is None else other for one, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        return jvp(tensors, tangents[1:], **ctx.constants)

    if jvp is not None:
        Function.jvp = staticmethod(tangent)  # type: ignore[method-assign]
    return _Recording(forward, Function)


class Unread(NamedTuple):
    """A tensor whose elements no requested gradient depends on."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def reading(tensors: Tensors, read: Sequence[bool], compute: Callable[..., Any]) -> Gradient:
    """Return a gradient that saves only the tensors whose elements it reads.

    `compute` is given all tensors, with zeros of the same shape for the others.
    """
    unread = [
        None if t is None or is_read else Unread(t.shape, t.dtype, t.device)
        for t, is_read in zip(tensors, read, strict=True)
    ]
    saved = [t if is_read else None for t, is_read in zip(tensors, read, strict=True)]
    return saved, partial(_with_unread, compute, unread)


def _with_unread(
    compute: Callable[..., Any],
    unread: Sequence[Unread | None],
    grad: torch.Tensor,
    *saved: torch.Tensor | None,
) -> Any:
    tensors = [
        t if of is None else torch.zeros((), dtype=of.dtype, device=of.device).expand(of.shape)
        for t, of in zip(saved, unread, strict=True)
    ]
    return compute(grad, *tensors)


class _Recording:
    """See :class:`Differentiable`."""

    def __init__(self, forward: Callable[..., Any], function: type[torch.autograd.Function]) -> None:
        self.forward, self.function = forward, function
        name = forward.__name__.strip("_")
        function.__name__ = function.__qualname__ = name
        # As torch names it; users see it as a result's `grad_fn`.
        function._backward_cls.__name__ = f"{name}Backward"

    def __call__(self, *tensors: Any, **constants: Any) -> Any:
        return follow(self.function, partial(self.forward, **constants), *tensors)
