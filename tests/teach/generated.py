"""Wrong answers made from a solution: one edit each, at every place where such an edit is possible."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield every edit of a solution's functions: its description, "old -> new", and the edited module."""
    tree = ast.parse(source)
    for place, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr | ast.Assign):
            continue
        for edited in _edits(node):
            changed = copy.deepcopy(tree)
            target = list(ast.walk(changed))[place]
            _Replacing(target, edited).visit(changed)
            yield (
                f"{ast.unparse(node)} -> {ast.unparse(edited)}",
                ast.unparse(ast.fix_missing_locations(changed)),
            )


def _edits(node: ast.expr | ast.Assign) -> Iterator[ast.AST]:
    match node:
        case ast.Call(keywords=keywords):
            # Drop a mask, or the value of its masked lanes.
            for keyword in keywords:
                if keyword.arg in ("mask", "other"):
                    yield _with(node, keywords=[other for other in keywords if other is not keyword])
            if ast.unparse(node.func) == "tl.store":
                # Round what is stored to fp16.
                rounded = ast.parse(f"({ast.unparse(node.args[1])}).to(tl.float16)", mode="eval").body
                yield _with(node, args=[node.args[0], rounded, *node.args[2:]])
            if ast.unparse(node.func) == "range":
                yield from _edited_ranges(node)
        case ast.BinOp(left=left, right=right):
            # Drop a factor (stride, block size, FLOPs) or a term of an offset or of the result.
            yield left
            yield right
        case ast.Compare(ops=[operator]) if type(operator) in _BOUNDARIES:
            yield _with(node, ops=[_BOUNDARIES[type(operator)]()])
        case ast.Assign(value=value) if _is_start(value):
            # Start an accumulator from another value.
            yield _with(node, value=ast.BinOp(value, ast.Add(), ast.Constant(1)))


def _edited_ranges(call: ast.Call) -> Iterator[ast.Call]:
    match call.args:
        case [start, stop, _]:
            yield _with(call, args=[start, stop])
            if not _is_zero(start):
                yield _with(call, args=[ast.Constant(0), *call.args[1:]])
        case [_, stop]:
            yield _with(call, args=[stop])


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0


def _is_start(value: ast.expr) -> bool:
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    return called in ("tl.zeros", "tl.full") or (
        isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    )


def _with(node: Any, **fields: object) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Replacing(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target, self._replacement = target, replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replacement if node is self._target else super().generic_visit(node)
