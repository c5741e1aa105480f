"""Refusals: why a template cannot take its tensors, with advice for each reason."""

from typing import NamedTuple

import torch


class Refusal(NamedTuple):
    """Reason why a template cannot take its tensors, and advice.

    Attributes:
        reason: the tensor that is wrong and what it is; empty if the template can take all tensors.
        fix: what to do, as a sentence.
    """

    reason: str
    fix: str


ACCEPTED = Refusal("", "")


def refusal_of_tensor(name: str, tensor: object) -> Refusal:
    """Return why kernels cannot read `tensor`, the argument `name`; `ACCEPTED` if they can."""
    if not isinstance(tensor, torch.Tensor):
        return Refusal(
            f"{name} is a {type(tensor).__name__}, not a tensor", f"Give a torch.Tensor as {name}."
        )
    if tensor.layout != torch.strided:
        reason = f"{name} is not a plain strided tensor: its layout is {tensor.layout}"
        return Refusal(reason, f"Give {name}.to_dense().")
    if tensor.is_neg():
        reason = f"{name} is not a plain strided tensor: it is a negated view"
        return Refusal(reason, f"Give {name}.resolve_neg().")
    return ACCEPTED
