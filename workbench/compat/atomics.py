"""Atomic operations that the memory functions of Triton's interpreter lack.

Seen on 3.6.0, 3.7.1 and 3.9.0: an atomic add of bf16 fails, because the interpreter passes 16-bit integers;
`tl.atomic_xchg` fails for floats; and atomics through tensor descriptors are missing. Repaired: all three
work. `tests/compat/test_compat.py::test_repair_is_still_needed` fails once Triton has the first.
The repairs of the other two are no longer needed when
`tests/compat/test_undefined.py::test_the_result_of_an_atomic_is_undefined_in_masked_lanes` and
`tests/compat/test_compat.py::test_atomics_through_descriptors_agree_with_python` pass without them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from workbench.compat.narrow_floats import from_bf16, to_bf16


def repair() -> None:
    """Let the interpreter add bf16, exchange floats, and do atomics through tensor descriptors."""
    builder: Any = interpreter.InterpreterBuilder
    builder.create_descriptor_reduce = _reduced_into_descriptor
    interpreter._interpreter = Memory(interpreter._interpreter)


class Memory:
    """The interpreter's memory functions, with an exchange of floats and an atomic add of bf16.

    Values of bf16 arrive as their bits, uint16.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any) -> Any:
        """Do an atomic operation for all active lanes; return the values of all lanes from before it."""
        if operation == self._plain.RMW_OP.XCHG and value.dtype.kind == "f":
            bits = value.view(f"u{value.itemsize}")
            return self._plain.atomic_rmw(operation, pointers, bits, mask, semantics).view(value.dtype)
        if operation != self._plain.RMW_OP.FADD or value.dtype != np.uint16:
            return self._plain.atomic_rmw(operation, pointers, value, mask, semantics)
        # One program runs at a time, so a plain read, add and write is atomic. Lanes go one by one, because
        # several may have the same address.
        lanes = zip(pointers.flat, value.flat, mask.flat, strict=True)
        return np.array([self._add(*lane) for lane in lanes], np.uint16).reshape(value.shape)

    def _add(self, address: np.uint64, addend: np.uint16, active: np.bool_) -> np.uint16:
        """Add bf16 at `address` if `active`; return the bits of the value from before."""
        where, mask = np.array([address]), np.array([active])
        old = self._plain.load(where, mask, np.zeros(1, np.uint16), np.dtype(np.uint16))
        total = from_bf16(old) + from_bf16(np.array([addend]))
        self._plain.store(where, to_bf16(total), mask)
        return np.uint16(old[0])


def _reduced_into_descriptor(self: Any, kind: Any, descriptor: Any, value: Any, indices: Any) -> Any:
    """Do the atomic operation `kind` with each element of a tensor descriptor's block."""
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
