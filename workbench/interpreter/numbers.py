"""Numbers in Triton's interpreter with the compiler's types: tensors of fixed widths that wrap.

The interpreter runs a kernel as Python: a float argument, a loop's index and `a if b else c` are Python's
numbers, which adopt the dtype of the tile that they meet, never overflow and have no `.to`. The compiler
makes tensors of them. So fp16 times a float argument is fp32 on a GPU, and was fp16 here.

Repaired (seen on 3.6.0 and 3.7.1):

- arguments: a float is fp32 and an integer int32, int64 or uint64 by its size, unless the parameter's
  annotation says otherwise; an integer that is 1 is a constant, unless the kernel is not specialized to it;
- indices of `range` and `tl.range`: of the common type of the bounds and the step;
- numbers in a tuple that is assigned, and the results of `x += 1`, `min`, `max` and `a if b else c`;
- constants that a function returns, if the compiler sees several returns with different ones;
- `and`, `or` and `not` of tensors: int1, and both sides are evaluated, because no GPU skips the second one;
- addition, subtraction and shifts of int1, `~` of unsigned integers, shifts of signed integers by unsigned
ones, `tl.umulhi` of
  signed integers, and conversions of floats beyond the integers' range, which the hardware saturates;
- `tl.fma`, which rounds once, and takes only floats; `tl.histogram`, which takes only 32-bit integers;
- integers wrap without a warning, and are no longer computed twice to detect an overflow.

Constants (`tl.constexpr`, literals, the indices of `tl.static_range`) stay Python's numbers, as in the
compiler.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import KernelParam, mangle_type

from workbench import compat
from workbench.interpreter import libdevice

# The name of this module in rewritten kernels, next to the names that the interpreter adds.
_HERE = "interpreted_numbers"


def repair() -> None:
    """Give the interpreter the compiler's numbers; calling it again changes nothing."""
    if hasattr(interpreter, _HERE):
        return
    setattr(interpreter, _HERE, _Names)
    interpreter.FunctionRewriter._transform_ast = _transformed
    interpreter.InterpretedFunction.run = _with_typed_arguments(interpreter.InterpretedFunction.run)
    interpreter._patch_lang_core = _with_typed_indices(interpreter._patch_lang_core)
    options = dataclasses.replace(interpreter.InterpreterOptions(), sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    for name in _OF_CONSTANTS:
        setattr(tl.constexpr, name, _left_to_tensors(getattr(tl.constexpr, name)))
    builder: Any = interpreter.InterpreterBuilder
    # The sum and the difference of two bits are their exclusive or.
    builder.create_add = _of_bits(builder.create_add, np.logical_xor)
    builder.create_sub = _of_bits(builder.create_sub, np.logical_xor)
    # One bit shifted by one is shifted out.
    builder.create_shl = _of_bits(builder.create_shl, np.greater)
    builder.create_lshr = _of_bits(builder.create_lshr, np.greater)
    builder.create_ashr = _shifted_as_signed
    builder.create_umulhi = _of_unsigned(builder.create_umulhi)
    for name in ("create_fp_to_si", "create_fp_to_ui"):
        setattr(builder, name, _saturating(getattr(builder, name)))
    builder.get_all_ones_value = _all_ones
    builder.create_histogram = _counted
    builder.create_fma = _fused(builder.create_fma)


# Arguments


def typed(value: Any, parameter: str = "", *, is_specialized: bool = True) -> Any:
    """Return a kernel's argument with the compiler's type.

    Args:
        value: any argument; numbers, also those inside tuples, are typed, and others returned as they are.
        parameter: the annotated type of the parameter in Triton's notation ("fp64"); empty for none.
        is_specialized: whether an integer that is 1 becomes a constant.
    """
    if isinstance(value, tuple):
        return compat.tuple_like(value, map(typed, value))
    if not isinstance(value, bool | int | float):
        return value
    if parameter:
        return _scalar(value, tl.str_to_ty(parameter, None))
    if value == 1 and is_specialized and isinstance(value, int) and not isinstance(value, bool):
        return tl.constexpr(1)
    return _scalar(value, tl.float32 if isinstance(value, float) else tl.str_to_ty(mangle_type(value), None))


def _scalar(value: Any, dtype: Any) -> tl.tensor:
    if dtype == tl.bfloat16:
        narrow = interpreter.interpreter_builder.get_bf16(value)
        return tl.tensor(narrow, dtype)
    if not dtype.is_floating():
        value = operator.index(value)
    with np.errstate(over="ignore"):
        stored = np.array([value]).astype(interpreter._get_np_dtype(dtype))
    return tl.tensor(interpreter.TensorHandle(stored, dtype), dtype)


@cache
def _parameters(function: Callable[..., Any], unspecialized: tuple[int | str, ...]) -> list[KernelParam]:
    """Return the parameters as the compiler reads them."""
    return [
        KernelParam(number, parameter, number in unspecialized or name in unspecialized, False)
        for number, (name, parameter) in enumerate(inspect.signature(function).parameters.items())
    ]


def _with_typed_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        signature = compat.signature(self)
        own = {name: value for name, value in keywords.items() if name in signature.parameters}
        options = {name: value for name, value in keywords.items() if name not in own}
        bound = signature.bind(*args, **own)
        bound.apply_defaults()
        unspecialized = tuple(compat.decorations(self).get("do_not_specialize", ()))
        parameters = _parameters(compat.python_function(self), unspecialized)
        arguments = [
            value
            if parameter.is_constexpr
            else typed(value, parameter.annotation_type, is_specialized=not parameter.do_not_specialize)
            for value, parameter in zip(bound.arguments.values(), parameters, strict=True)
        ]
        # A grid function gets Python's numbers, as on a GPU.
        programs = grid(bound.arguments) if callable(grid) else grid
        return run(self, *arguments, grid=programs, warmup=warmup, **options)

    return repaired


# Loops


def indices(arg1: Any, arg2: Any = None, step: Any = None, **options: Any) -> Iterator[tl.tensor]:
    """Yield the indices of a loop: scalars of the common type of its bounds and step.

    Args:
        arg1, arg2: the start and the stop, or the stop alone; Triton's names.
        step: the difference between indices.
        options: options of `tl.range`, which do not change the indices.
    """
    start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
    to_tensor = interpreter.interpreter_semantic.to_tensor
    bounds = [to_tensor(1 if each is None else each) for each in (start, stop, step)]
    dtype = _promoted([bound.type for bound in bounds])
    stored = interpreter._get_np_dtype(dtype)
    for index in range(*(int(bound.handle.data.astype(stored).item()) for bound in bounds)):
        yield tl.tensor(interpreter.TensorHandle(np.array([index], stored), dtype), dtype)


def _promoted(types: list[Any]) -> Any:
    for each in types:
        if each.is_block() or not each.is_int():
            raise TypeError(
                f"range: its bounds and step are integers, not tiles or floats, and one is {each}: convert "
                "it first, as in n.to(tl.int32)"
            )
    promote = interpreter.interpreter_semantic.integer_promote_impl
    return promote(promote(types[0], types[1]), types[2])


def _with_typed_indices(patch: Callable[..., None]) -> Callable[..., None]:
    def repaired(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        scope.set_attr(lang, "range", indices)

    return repaired


# Functions that rewritten kernels call


def assigned(value: Any) -> Any:
    """Return the value of a variable after `x = value`: a scalar tensor for a number, also inside a tuple."""
    if isinstance(value, tl.tensor):
        return value
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tuple):
        return compat.tuple_like(value, map(assigned, value))
    return interpreter.interpreter_semantic.to_tensor(value, False)


def unpacked(value: Any, names: int) -> Any:
    """Return the value that `a, b = value` unpacks, after a check of its length.

    Raises:
        ValueError: a tuple or list has fewer parts than there are names; or more, and the compiler would
            silently drop the last ones.
    """
    if isinstance(value, tuple | list) and len(value) != names:
        dropped = "; the compiler drops the last ones and says nothing" if len(value) > names else ""
        raise ValueError(f"{len(value)} values for {names} names{dropped}: write a name for each value")
    return value


def chosen(condition: Any, value: Any) -> Any:
    """Return the chosen `value` of `a if condition else b`; a tensor if the condition is one."""
    return assigned(value) if isinstance(condition, tl.tensor) else value


def returned(value: Any, *conditions: Any) -> Any:
    """Return the constant `value` of a `return`; the `conditions` may lead to another `return`.

    If a condition is known only at run time, the compiler compiles both, and makes tensors of their values.
    """
    return assigned(value) if any(isinstance(each, tl.tensor) for each in conditions) else value


def least(*values: Any, **options: Any) -> Any:
    """Return `min(...)`: of constants by Python, otherwise by `tl.minimum`."""
    return _extreme(builtins.min, "minimum", values, options)


def greatest(*values: Any, **options: Any) -> Any:
    """Return `max(...)`: of constants by Python, otherwise by `tl.maximum`."""
    return _extreme(builtins.max, "maximum", values, options)


def _extreme(of_constants: Callable[..., Any], of_tensors: str, values: tuple[Any, ...], options: Any) -> Any:
    values = tuple(value.value if isinstance(value, tl.constexpr) else value for value in values)
    if not any(isinstance(value, tl.tensor) for value in values):
        return of_constants(*values, **options)
    result = values[0]
    for value in values[1:]:
        result = getattr(tl, of_tensors)(result, value, **options)
    return result


def goes_on(value: Any, decisive: bool) -> bool:
    """Return whether `value and ...` (`decisive` is False) or `value or ...` (True) needs its right side.

    A constant may decide without it; a tensor never does.
    """
    return _is_tensor(value) or bool(value) is not decisive


def joined(left: Any, right: Any, decisive: bool) -> Any:
    """Return `left and right` (`decisive` is False) or `left or right` (True); `left` has not decided it."""
    if not _is_tensor(left):
        return right
    if not _is_tensor(right):
        return right if bool(right) is decisive else left
    return left.logical_or(right) if decisive else left.logical_and(right)


def negated(value: Any) -> Any:
    """Return `not value`, one bit for a tensor."""
    return value.__not__() if _is_tensor(value) else not value


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor; raise ValueError for a tile, which has no truth value.

    Only Triton's own functions may combine tiles by `and`, `or` and `not`; there the compiler only warns.
    """
    if not isinstance(value, tl.tensor):
        return False
    if value.type.is_block() and not compat.is_tritons(sys._getframe(2).f_code.co_filename):
        bool(value)
    return True


def met() -> int:
    """Return how often the program's lanes have synchronized, if that is counted; else 0."""
    return int(getattr(interpreter.interpreter_builder, "meetings", _UNCOUNTED).barriers)


def discarded(before: int, value: Any) -> None:
    """Reset the count of :func:`met` to `before`: lanes do not wait for an atomic whose result is unread."""
    getattr(interpreter.interpreter_builder, "meetings", _UNCOUNTED).barriers = before


class _Uncounted:
    barriers = 0


_UNCOUNTED = _Uncounted()


class _Names:
    """The functions that a rewritten kernel calls."""

    assigned = staticmethod(assigned)
    chosen = staticmethod(chosen)
    discarded = staticmethod(discarded)
    goes_on = staticmethod(goes_on)
    greatest = staticmethod(greatest)
    indices = staticmethod(indices)
    joined = staticmethod(joined)
    least = staticmethod(least)
    met = staticmethod(met)
    negated = staticmethod(negated)
    returned = staticmethod(returned)
    unpacked = staticmethod(unpacked)


_RENAMED = {"min": "least", "max": "greatest"}


class _Return(NamedTuple):
    """A `return` of a function.

    Attributes:
        node: the statement.
        values: the texts of the returned values, several for a tuple.
        branches: the `if` statements around it, the outermost first, and for each whether it is in the body.
    """

    node: ast.Return
    values: list[str]
    branches: tuple[tuple[ast.If, bool], ...]

    def deciding_branch(self, other: _Return) -> ast.If | None:
        """Return the `if` that decides between this `return` and the `other`; None if there is none."""
        common = 0
        for one, another in zip(self.branches, other.branches, strict=False):
            if one != another:
                break
            common += 1
        return self.branches[common][0] if common < len(self.branches) else None


def _returns_in(
    statements: list[ast.stmt], branches: tuple[tuple[ast.If, bool], ...] = ()
) -> Iterator[_Return]:
    """Yield the `return` statements among statements, in order."""
    for statement in statements:
        if isinstance(statement, ast.Return):
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            yield _Return(statement, [ast.unparse(value) if value else "" for value in values], branches)
        elif isinstance(statement, ast.If):
            yield from _returns_in(statement.body, (*branches, (statement, True)))
            yield from _returns_in(statement.orelse, (*branches, (statement, False)))
        else:
            yield from _returns_in(getattr(statement, "body", []), branches)


class _Rewriter(ast.NodeTransformer):
    """Rewriter of a kernel, so that its numbers become tensors where the compiler makes tensors of them.

    Args:
        names: the names that the kernel's module defines, which hide Python's own.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._kept = 0
        self._returns: list[_Return] = []
        self._conditions: dict[ast.If, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._returns = [*_returns_in(node.body)]
        self._conditions = {test: self._name() for each in self._returns for test, _ in each.branches}
        self.generic_visit(node)
        # Conditions in a loop that does not run are not evaluated.
        unknown = [ast.Name(name, ast.Store()) for name in self._conditions.values()]
        node.body[:0] = [ast.Assign([name], ast.Constant(None)) for name in unknown]
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node in self._conditions:
            node.test = ast.NamedExpr(ast.Name(self._conditions[node], ast.Store()), node.test)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if len(node.targets) > 1:
            raise ValueError(
                f"Triton has no assignment to several targets: write `{ast.unparse(node)}` as one assignment "
                "for each"
            )
        self.generic_visit(node)
        node.value = _call("assigned", node.value)
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and not any(isinstance(name, ast.Starred) for name in target.elts):
            node.value = _call("unpacked", node.value, ast.Constant(len(target.elts)))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not ast.unparse(node.annotation).strip("'\"").endswith("constexpr"):
            node.value = _call("assigned", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], _call("assigned", value)), node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        if compat.VERSION < (3, 7):
            node.value = _call("assigned", node.value)
        elif isinstance(node.value, ast.Tuple):
            node.value.elts = [self._returned(node, *each) for each in enumerate(node.value.elts)]
        else:
            node.value = self._returned(node, 0, node.value)
        return node

    def _returned(self, node: ast.Return, place: int, value: ast.expr) -> ast.expr:
        """Return the expression of a returned value: a tensor if the compiler also sees another value."""
        own = next(number for number, each in enumerate(self._returns) if each.node is node)
        conditions = []
        for number, other in enumerate(self._returns):
            if other.values[place : place + 1] == self._returns[own].values[place : place + 1]:
                continue
            decided = other.deciding_branch(self._returns[own])
            is_around = any(test is decided for test, _ in self._returns[own].branches)
            if decided is None or (number > own and not is_around):
                return _call("assigned", value)
            conditions.append(ast.Name(self._conditions[decided], ast.Load()))
        return _call("returned", value, *conditions) if conditions else value

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        atomics = sum(map(_is_atomic, ast.walk(node)))
        self.generic_visit(node)
        if atomics == 1 and _is_atomic(node.value):
            node.value = _call("discarded", _call("met"), node.value)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and self._is_pythons(node.iter.func, "range"):
            node.iter.func = _attribute("indices")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for name, renamed in _RENAMED.items():
            if self._is_pythons(node.func, name):
                node.func = _attribute(renamed)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        kept = self._name()
        condition = ast.NamedExpr(ast.Name(kept, ast.Store()), node.test)
        value = ast.IfExp(ast.Name(kept, ast.Load()), node.body, node.orelse)
        return ast.copy_location(_call("chosen", condition, value), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        decisive = ast.Constant(isinstance(node.op, ast.Or))
        left, *others = node.values
        for right in others:
            kept = self._name()
            left = ast.IfExp(
                _call("goes_on", ast.NamedExpr(ast.Name(kept, ast.Store()), left), decisive),
                _call("joined", ast.Name(kept, ast.Load()), right, decisive),
                ast.Name(kept, ast.Load()),
            )
        return ast.copy_location(left, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(_call("negated", node.operand), node)

    def _is_pythons(self, function: ast.expr, name: str) -> bool:
        return isinstance(function, ast.Name) and function.id == name and name not in self._names

    def _name(self) -> str:
        self._kept += 1
        return f"_kept_{self._kept}"


def _is_atomic(node: ast.AST) -> bool:
    """Return whether a node is a call such as `tl.atomic_add(...)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("atomic_")
    )


def _attribute(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(_HERE, ast.Load()), name, ast.Load())


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_attribute(name), list(arguments), [])


def _transformed(self: Any, source: str) -> ast.AST:
    """Rewrite a function; replaces `FunctionRewriter._transform_ast`, which rewrites only assignments."""
    libdevice.replace_in(self.fn.__globals__)
    tree: ast.AST = _Rewriter(self.fn.__globals__).visit(ast.parse(source))
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, self.def_file_lineno - 1)
    return tree


# Operations on constants

_OF_CONSTANTS = [
    f"__{name}__"
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift",
        "lt", "le", "gt", "ge", "eq", "ne",
    )
]  # fmt: skip


def _left_to_tensors(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Let an operation of a constant leave a right operand that is a tensor to the tensor's operation."""

    def repaired(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, tl.tensor) else operation(self, other)

    return repaired


# Operations on an element


def _of_bits(operation: Callable[..., Any], of_bits: Any) -> Callable[..., Any]:
    def repaired(self: Any, one: Any, other: Any) -> Any:
        return (
            self.binary_op(one, other, of_bits) if one.data.dtype == np.bool_ else operation(self, one, other)
        )

    return repaired


def _shifted_as_signed(self: Any, value: Any, count: Any) -> Any:
    """Return `value >> count`, filled with the highest bit even if their common type is unsigned."""
    signed = np.dtype(f"int{8 * value.data.itemsize}")
    result = np.right_shift(value.data.view(signed), count.data.view(signed))
    return interpreter.TensorHandle(result.view(value.data.dtype), value.dtype.scalar)


def _of_unsigned(operation: Callable[..., Any]) -> Callable[..., Any]:
    def repaired(self: Any, *operands: Any) -> Any:
        stored = operands[0].data.dtype
        unsigned = np.dtype(f"uint{8 * stored.itemsize}")
        result = operation(
            self, *(interpreter.TensorHandle(each.data.view(unsigned), each.dtype) for each in operands)
        )
        return interpreter.TensorHandle(result.data.view(stored), result.dtype)

    return repaired


def _all_ones(self: Any, dtype: Any) -> Any:
    """Return the operand of the exclusive or that makes `~`: -1, or the largest unsigned integer."""
    stored = interpreter._get_np_dtype(dtype)
    return interpreter.TensorHandle(np.invert(np.zeros(1, stored)), dtype.scalar)


def _counted(self: Any, values: Any, bins: int, mask: Any) -> Any:
    """Compute `tl.histogram` like the lanes of a warp: by the lowest bits, so values without a bin count too.

    Lanes that were masked off in a load also count, unless the mask is given here.
    """
    if values.data.dtype.kind not in "iu" or values.data.dtype.itemsize != 4:
        raise TypeError(
            f"tl.histogram counts integers of 32 bits, not {values.dtype.scalar}: convert first, as in "
            "x.to(tl.int32)"
        )
    inside = values.data if mask is None else values.data[mask.data]
    lanes_of_warp = 32
    counts = np.bincount(inside.reshape(-1) & (max(bins, lanes_of_warp) - 1), minlength=bins)
    return interpreter.TensorHandle(counts[:bins].astype(np.int32), tl.int32)


def _fused(fma: Callable[..., Any]) -> Callable[..., Any]:
    """Let `tl.fma` round `x * y + z` once, on which algorithms for exact products rely."""

    def repaired(self: Any, *operands: Any) -> Any:
        dtype = operands[2].dtype.scalar
        if not dtype.is_floating():
            raise TypeError(
                f"tl.fma takes floats, not {dtype}: convert first, as in x.to(tl.float32), or write x * y + z"
            )
        if dtype not in (tl.float16, tl.bfloat16, tl.float32, tl.float64):
            return fma(self, *operands)  # fp8, for which `fma` raises TypeError
        if not operands[2].data.any() or (dtype != tl.bfloat16 and (operands[1].data == 1).all()):
            # A product or a sum alone is rounded once anyway, and takes a twentieth of the time.
            return fma(self, *operands)
        if dtype == tl.float64:
            exact = libdevice.function_of("__nv_fma")
            assert exact is not None
            return interpreter.TensorHandle(exact(*np.broadcast_arrays(*(o.data for o in operands))), dtype)
        x, y, z = (compat.widen(operand).data.astype(np.float64) for operand in operands)
        product = x * y  # exact for numbers of at most 24 bits
        total = product + z
        rest = total - product
        total = _odd_where_rounded(total, (product - (total - rest)) + (z - rest))
        narrow = total.astype(np.float32)
        narrow = _odd_where_rounded(narrow, total - narrow) if dtype == tl.bfloat16 else total
        stored = narrow.astype(np.float32 if dtype == tl.bfloat16 else interpreter._get_np_dtype(dtype))
        wide = interpreter.TensorHandle(stored, tl.float32 if dtype == tl.bfloat16 else dtype)
        return self.create_fp_trunc(wide, dtype) if dtype == tl.bfloat16 else wide

    return repaired


def _odd_where_rounded(values: npt.NDArray[Any], rests: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `values + rests` rounded to odd, so that rounding it to fewer bits is like a single rounding."""
    is_even = values.view(f"u{values.itemsize}") % 2 == 0
    is_rounded = is_even & np.isfinite(values) & np.isfinite(rests) & (rests != 0)
    toward = np.where(rests > 0, np.inf, -np.inf).astype(values.dtype)
    return np.where(is_rounded, np.nextafter(values, toward), values)


def _saturating(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Let conversions of floats beyond the integers' range saturate, like PTX's `cvt.rzi`.

    That instruction has no 8-bit results: an 8-bit integer is the lower half of a 16-bit one.
    """

    def repaired(self: Any, source: Any, target: Any) -> Any:
        result = convert(self, source, target)
        stored = result.data.dtype
        values = compat.widen(source).data
        if stored.itemsize == 1:
            wide = np.dtype(f"{stored.kind}2")
            with np.errstate(invalid="ignore"):
                result.data = _saturated(values, values.astype(wide)).astype(stored)
        else:
            result.data = _saturated(values, result.data)
        return result

    return repaired


def _saturated(values: npt.NDArray[Any], converted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the largest or smallest integer for values beyond it, 0 for NaN, and `converted` elsewhere."""
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    limits = np.iinfo(converted.dtype)
    is_held = (values >= float(limits.min)) & (values < 2.0 ** int(limits.max).bit_length())
    if is_held.all():
        return converted
    limit = np.where(values < 0, limits.min, limits.max).astype(converted.dtype)
    return np.where(is_held, converted, np.where(np.isnan(values), converted.dtype.type(0), limit))
