"""Typical mistakes in a first kernel: a pattern that recognizes each, and a hint in plain words.

A pattern is searched for in the text of the error or verdict (from Triton's interpreter or compiler, NumPy or
the workbench), followed by the code that it is about: the line that failed, or the whole kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    r"""A kind of mistake.

    Attributes:
        name: the mistake in a few words.
        pattern: a regular expression; the part before `\n` matches the error, the part after it the code.
        hint: the hint for the learner, in plain words.
    """

    name: str
    pattern: str
    hint: str


# The first match is taken, so specific mistakes come before general ones.
MISTAKES = (
    Mistake(
        "a kernel called like a function",
        r"called from Python.*\nCall it in a kernel"
        r"|(InterpreterError|outside of the scope of a kernel).*\n(?!.*\]\s*\()",
        "a kernel is not called like a function: it is launched over a grid, a number of programs. "
        "Return Launch.of(kernel, grid, ...).",
    ),
    Mistake(
        "a launch that is to be changed",
        r"'mappingproxy' object|cannot (assign to|delete) field"
        r"|('tuple' object|attribute '(append|insert|extend)').*\n.*\.(steps|args|grid|outputs)\b",
        "a launch cannot be changed. To compile it otherwise, name what is to differ: "
        "lens.compile(launch, target, BLOCK_N=n). To run it otherwise, make another: Launch.of(...).",
    ),
    Mistake(
        "break or continue",
        r"AST node type: (Break|Continue)\b",
        "a compiled kernel has no `break` and no `continue`: a loop goes on to its end. Put the condition "
        "into `while`, or leave out what a turn does by a mask, or by `if`.",
    ),
    Mistake(
        "return in a loop",
        r"Cannot have `return` statements inside `while` or `for`",
        "a compiled kernel cannot leave a loop: it goes on to its end. Put the condition into `while`, or "
        "leave out what a turn does by a mask, or by `if`.",
    ),
    Mistake(
        "a number of the run time, converted by Python",
        r"(int|float|complex)\(\) argument must be|must be real number, not tensor",
        "when a kernel is compiled, its arguments and tl.program_id(...) have no values yet, so int(), "
        "float() and math cannot convert them. Use them as they are, in range(...) too, and change a type by "
        "x.to(tl.float32).",
    ),
    Mistake(
        "a variable that changes its type",
        r"Loop-carried variable|Mismatched type for \w+ between|inconsistent types|Return type mismatch",
        "in a compiled kernel a variable keeps one dtype and one shape, whichever way the program takes. "
        "Begin with what it is to become, as in tl.zeros([BLOCK_SIZE], tl.float32), or convert by .to(...).",
    ),
    Mistake(
        "comparisons in a chain",
        r"simultaneous multiple comparison",
        "a compiled kernel has no comparisons in a chain. Write (0 <= i) & (i < n).",
    ),
    Mistake(
        "a global that is not a tl.constexpr",
        r"Cannot access global variable",
        "a compiled kernel reads no variables from around it but constants: SIZE = tl.constexpr(64). Or pass "
        "it as an argument.",
    ),
    Mistake(
        "one of Python's own functions",
        r"NameError\('(abs|all|any|bool|bytes|dict|divmod|enumerate|filter|id|list|map|open|pow|reversed|round"
        r"|set|sorted|str|sum|tuple|type|zip|__import__) is not defined'\)",
        "of Python's own functions a compiled kernel has range, min, max, len and few more. The others work "
        "on Python's values, which are not known yet; Triton has tl.sum, tl.abs, tl.sort, ...",
    ),
    Mistake(
        "a name that is not assigned everywhere",
        r"NameError\('\w+ is not defined'\)",
        "in a compiled kernel a name exists behind an `if` or a loop only where it has a value before. Give "
        "it one.",
    ),
    Mistake(
        "a loop over something else than range",
        r"'(Tuple|List|Name|Attribute)' object has no attribute 'func'|Only `range` and `static_range`",
        "in a compiled kernel `for` goes over range(start, end, step), or over tl.static_range of constants.",
    ),
    Mistake(
        "a list that grows, or changes",
        r"'tuple' object has no attribute append|'append\\?' is not in list"
        r"|__setitem__ is not supported|only tuple comprehensions",
        "a compiled kernel has no lists: what is written as one becomes a tuple, which cannot grow and does "
        "not change. Keep a block of values, or write to memory.",
    ),
    Mistake(
        "text in a kernel",
        r"Cannot evaluate f-string|is not string|of type <class 'str'> to tensor",
        'a compiled kernel makes no texts at run time. To print a value, write tl.device_print("n", n).',
    ),
    Mistake(
        "a tuple in a tuple, unpacked",
        r"unhashable type: 'list'",
        "on the left of =, the compiler takes no tuple in a tuple. Unpack each in a line of its own.",
    ),
    Mistake(
        "Python that is not Triton",
        r"AST node type: |'(In|NotIn|MatMult)' object has no attribute|not supported in triton",
        "the interpreter runs any Python, the compiler a part of it: numbers, blocks, tuples, `if`, `while`, "
        "`for` over a range, and functions that are @triton.jit themselves.",
    ),
    Mistake(
        "a pointer indexed like an array",
        r"(not iterable|length-1|0-dimensional|tensor index|item assignment).*\n.*\w\[",
        "square brackets reach no memory in a kernel, where a tensor argument is a pointer. Read with "
        "tl.load(pointer + offsets, mask=...), write with tl.store(pointer + offsets, values, mask=...).",
    ),
    Mistake(
        "a loop over a block",
        r"(not iterable|length-1|0-dimensional|step of a loop are integers.*got <\[).*\n.*\bfor\b",
        "a loop counts with single numbers: range(start, end, step). A block of values needs no loop, since "
        "each operation is done for all of them at once.",
    ),
    Mistake(
        "arithmetic with a pointer",
        r"operands of type pointer|add pointers together|cannot cast \[\.\.\.\]",
        "a tensor argument is a pointer, an address. Load the values first, as in "
        "x = tl.load(pointer + offsets, mask=...), and compute with those.",
    ),
    Mistake(
        "offsets without their pointer",
        r"Unsupported ptr type",
        "tl.load and tl.store take addresses, the pointer plus the offsets: tl.load(pointer + offsets).",
    ),
    Mistake(
        "a method instead of what it returns",
        r"built-in method|'builtin_function_or_method' object has no attribute 'dtype'",
        "an argument is a method that was not called. Write its parentheses, as in x.numel().",
    ),
    Mistake(
        "torch or numpy in a kernel",
        r"'(torch|numpy)\b[.\w]*' object|has no attribute 'scalar'|\n.*\b(torch|numpy|np)\.",
        "torch and numpy work outside of kernels only. Inside, Triton has functions of its own: tl.arange, "
        "tl.zeros, tl.exp, tl.sum, ...",
    ),
    Mistake(
        "a Python range as offsets",
        r"'range' object",
        "range is for loops. A block of offsets is tl.arange(0, BLOCK_SIZE).",
    ),
    Mistake(
        "a block size that is not a tl.constexpr",
        r"must be of type tl\.constexpr\n.*arange\(\s*0\s*,\s*[A-Z_]+\s*\)",
        "tl.arange needs a size that is known when the kernel is compiled. Mark it among the kernel's "
        "parameters, as in BLOCK_SIZE: tl.constexpr.",
    ),
    Mistake(
        "tl.arange between numbers of the run time",
        r"must be of type tl\.constexpr",
        "tl.arange takes constants, as in tl.arange(0, BLOCK_SIZE). Add what is known at run time only, and "
        "cut it to a length with a mask: offsets < length.",
    ),
    Mistake(
        "a number that can be 1, converted",
        r"'constexpr' object has no attribute 'to'",
        "an argument that is 1 is a constant to the compiler, which has no .to. Write "
        "tl.cast(number, dtype), which takes both.",
    ),
    Mistake(
        "a block size that is not a power of two",
        r"power of (2|two)\n",
        "blocks have 1, 2, 4, 8, ... elements. Take the next larger power of two, and mask the lanes that "
        "have no element.",
    ),
    Mistake(
        "what lens.compile or lens.trace returns, taken for one step",
        r"'tuple' object has no attribute '(registers|spills|\w+_bytes|instructions|layouts|stages|events)'",
        "it is a tuple. What lens.compile and lens.trace return has an entry for each kernel of the launch: "
        "(step,) = lens.compile(launch, target).",
    ),
    Mistake(
        "a shape where a number belongs",
        r"'tuple'",
        "an argument is a tuple, as x.shape is. Pass the number: x.numel(), or x.shape[0] for one dimension.",
    ),
    Mistake(
        "the shape of a pointer",
        r"(out of range|not callable|no len|no attribute).*\n.*(\.shape|\.numel|\.size|\blen\()",
        "a kernel is given a tensor's address, and not its shape. Pass the length as an argument of its own.",
    ),
    Mistake(
        "`and`, `or` or `not` with blocks",
        r"neither true nor false.*\n.*(\b(and|or|not)\b|[<>]([^<>(),[]|\[[^\]]*\])*[<>])",
        "write & for `and`, | for `or`, ~ for `not`, and put each comparison into parentheses: "
        "(i < rows) & (j < columns).",
    ),
    Mistake(
        "`if` with a block",
        r"neither true nor false",
        "`if` decides once, for a whole program. To decide element by element, use a mask (mask=offsets < "
        "length), or tl.where(condition, this, that).",
    ),
    Mistake(
        "a launch without a grid",
        r"grid: got (tensor|a Tensor|\w+\[)",
        "the grid is missing. It comes after the kernel: Launch.of(kernel, (programs,), x, ...).",
    ),
    Mistake(
        "a grid that is not rounded up",
        r"grid(\[\d\])?: got [\d.]+, a float",
        "programs are counted in whole numbers. triton.cdiv(length, BLOCK_SIZE) divides and rounds up.",
    ),
    Mistake(
        "a result that is not stored",
        r"stores nothing\.\n(?!(.*\n)*.*tl\.store)(.*\n)*.*(\breturn [^\n]|tl\.load)",
        "only tl.store writes to memory. What a kernel returns, or assigns to a parameter, is lost.",
    ),
)


def hint(error: str, code: str) -> str:
    """Return a line with the hint for the first mistake that matches; empty if none does.

    Args:
        error: the type and text of an error, or the text of a verdict.
        code: the line that failed, or the kernel.
    """
    text = f"{error}\n{code}"
    found = (mistake.hint for mistake in MISTAKES if re.search(mistake.pattern, text))
    return next((f"\n  Hint: {hint}" for hint in found), "")
