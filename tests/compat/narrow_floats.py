"""Kernels on bf16 and fp8, each with torch's result.

`test_compat.py` runs them in the repaired interpreter, and as a script, without workbench, in Triton's own:
`python narrow_floats.py` prints, for each case, whether unrepaired Triton gets it right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

Case = Callable[[], tuple[torch.Tensor, torch.Tensor]]
BF16 = torch.bfloat16


@triton.jit
def cast_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i).to(output.dtype.element_ty))


@triton.jit
def toward_zero_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(x + i).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def arithmetic_kernel(x, y, output, N: tl.constexpr, OPERATION: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OPERATION == "+":
        c = a + b
    elif OPERATION == "-":
        c = a - b
    elif OPERATION == "*":
        c = a * b
    elif OPERATION == "/":
        c = a / b
    elif OPERATION == "%":
        c = a % b
    elif OPERATION == "maximum":
        c = tl.maximum(a, b)
    elif OPERATION == "minimum":
        c = tl.minimum(a, b)
    elif OPERATION == "clamp":
        c = tl.clamp(a, -tl.abs(b), tl.abs(b))
    elif OPERATION == "fma":
        c = tl.fma(a, b, a)
    elif OPERATION == "where":
        c = tl.where(i % 2 == 0, a, b)
    elif OPERATION == "negative":
        c = -a
    elif OPERATION == "abs":
        c = tl.abs(a)
    else:
        tl.static_assert(False)
    tl.store(output + i, c)


@triton.jit
def compare_kernel(x, y, output, N: tl.constexpr, OPERATION: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OPERATION == "<":
        c = a < b
    elif OPERATION == "<=":
        c = a <= b
    elif OPERATION == ">":
        c = a > b
    elif OPERATION == ">=":
        c = a >= b
    elif OPERATION == "==":
        c = a == b
    else:
        c = a != b
    tl.store(output + i, c)


@triton.jit
def constant_kernel(x, output, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, 3 * tl.load(x + i) + 0.1)


@triton.jit
def full_kernel(output, N: tl.constexpr):
    tl.store(output + tl.arange(0, N), tl.full((N,), 0.1, tl.bfloat16))


@triton.jit
def pointer_choice_kernel(x, y, output, N: tl.constexpr, WANT_X: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, tl.load(tl.where(tl.full((N,), WANT_X, tl.int1), x + i, y + i)))


@triton.jit
def dot_kernel(a, b, c, output, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    at = m[:, None] * N + n[None, :]
    product = tl.dot(
        tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]), tl.load(c + at)
    )
    tl.store(output + at, product.to(output.dtype.element_ty))


@triton.jit
def batched_dot_kernel(a, b, output, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None]
    m, n = tl.arange(0, M)[None, :, None], tl.arange(0, N)[None, None, :]
    product = tl.dot(
        tl.load(a + batch * M * K + m * K + tl.arange(0, K)[None, None, :]),
        tl.load(b + batch * K * N + tl.arange(0, K)[None, :, None] * N + n),
    )
    tl.store(output + batch * M * N + m * N + n, product.to(output.dtype.element_ty))


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def reduce_kernel(x, output, M: tl.constexpr, N: tl.constexpr, OPERATION: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + m[:, None] * N + n[None, :])
    if OPERATION == "sum":
        tl.store(output + m, tl.sum(tile, axis=1))
    elif OPERATION == "sum of all":
        tl.store(output, tl.sum(tile))
    elif OPERATION == "max":
        tl.store(output + m, tl.max(tile, axis=1))
    elif OPERATION == "min":
        tl.store(output + m, tl.min(tile, axis=1))
    elif OPERATION == "argmax":
        tl.store(output + m, tl.argmax(tile, axis=1))
    elif OPERATION == "product":
        tl.store(output + m, tl.reduce(tile, 1, product))
    else:
        tl.store(output + m[:, None] * N + n[None, :], tl.cumsum(tile, axis=1))


@triton.jit
def atomic_add_kernel(x, where, mask, total, before, N: tl.constexpr):
    i = tl.arange(0, N)
    active = tl.load(mask + i)
    old = tl.atomic_add(total + tl.load(where + i), tl.load(x + i), mask=active)
    tl.store(before + i, old, mask=active)


def normal(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def patterns(dtype: torch.dtype, count: int = 2048) -> torch.Tensor:
    """Return random bits as floats: every exponent, subnormals, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return words.to(bits).view(dtype)


def subnormals_of_fp32() -> torch.Tensor:
    return (
        torch.randint(0, 2**23, (1024,), generator=torch.Generator().manual_seed(1)).int().view(torch.float32)
    )


def halfway_in_fp32() -> torch.Tensor:
    """Return numbers halfway between two bf16 numbers, which round to even, and one step to either side."""
    upper = torch.arange(0x3F80, 0x3F80 + 512, dtype=torch.int32) << 16
    steps = torch.tensor([0x7FFF, 0x8000, 0x8001], dtype=torch.int32)
    return torch.cat([(upper[:, None] + steps).flatten(), steps.new_zeros(512)]).view(torch.float32)


def casting(x: torch.Tensor, dtype: torch.dtype) -> Case:
    def case() -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.empty(x.shape, dtype=dtype)
        cast_kernel[(1,)](x, output, x.numel())
        return output, x.to(dtype)

    return case


def rounding_toward_zero() -> tuple[torch.Tensor, torch.Tensor]:
    x = patterns(torch.float32)
    output = torch.empty(x.shape, dtype=BF16)
    toward_zero_kernel[(1,)](x, output, x.numel())
    bits = (x.view(torch.int32) >> 16).to(torch.int16).view(BF16)
    return output, torch.where(x.isnan(), x.to(BF16), bits)


def computing(operation: str, reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Case:
    def case() -> tuple[torch.Tensor, torch.Tensor]:
        x, y = normal(256), normal(256, seed=1)
        output = torch.empty_like(x)
        arithmetic_kernel[(1,)](x, y, output, 256, operation)
        return output, reference(x.double(), y.double()).to(BF16)

    return case


def comparing(operation: str, reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Case:
    def case() -> tuple[torch.Tensor, torch.Tensor]:
        # As bits, negative numbers have reverse order; zeros and NaN differ in bits yet compare (un)equal.
        special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 2**-130])
        x, y = torch.meshgrid(
            torch.cat([special, normal(8).float()]).to(BF16), special.to(BF16), indexing="ij"
        )
        x, y = x.flatten(), y.flatten()
        output = torch.empty(x.shape, dtype=torch.bool)
        compare_kernel[(1,)](x, y, output, x.numel(), operation)
        return output, reference(x, y)

    return case


def constants() -> tuple[torch.Tensor, torch.Tensor]:
    x = normal(128)
    output = torch.empty_like(x)
    constant_kernel[(1,)](x, output, 128)
    return output, (3 * x + torch.tensor(0.1, dtype=BF16)).to(BF16)


def full() -> tuple[torch.Tensor, torch.Tensor]:
    output = torch.empty(16, dtype=BF16)
    full_kernel[(1,)](output, 16)
    return output, torch.full((16,), 0.1, dtype=BF16)


def choosing_pointers() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = normal(16), normal(16, seed=1)
    output = torch.empty_like(x)
    pointer_choice_kernel[(1,)](x, y, output, 16, False)
    return output, y


def multiplying(
    m: int, n: int, k: int, dtype: torch.dtype, output_dtype: torch.dtype = torch.float32
) -> Case:
    def case() -> tuple[torch.Tensor, torch.Tensor]:
        # Small integers: every sum is exact in any order. About half of those of fp8 are subnormal.
        scale = 2.0**-16 if dtype == torch.float8_e5m2 else 1.0
        a, b = (normal(*s).mul(2).round().mul(scale).to(dtype) for s in ((m, k), (k, n)))
        c = normal(m, n).float().mul(4).round()
        output = torch.empty(m, n, dtype=output_dtype)
        dot_kernel[(1,)](a, b, c, output, m, n, k)
        return output, (a.double() @ b.double() + c.double()).to(output_dtype)

    return case


def multiplying_batches() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = normal(4, 16, 32).mul(2).round(), normal(4, 32, 16, seed=1).mul(2).round()
    output = torch.empty(4, 16, 16)
    batched_dot_kernel[(1,)](a, b, output, 4, 16, 16, 32)
    return output, (a.double() @ b.double()).float()


def reducing(operation: str, reference: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    def case() -> tuple[torch.Tensor, torch.Tensor]:
        x = normal(4, 32).mul(4).round().div(4)  # sums are exact in fp32
        want = reference(x.double())
        want = want if want.dtype == torch.int64 else want.to(BF16)
        output = torch.empty_like(want)
        reduce_kernel[(1,)](x, output, 4, 32, operation)
        return output, want

    return case


def adding_atomically() -> tuple[torch.Tensor, torch.Tensor]:
    x = normal(64)
    where = torch.arange(64) % 3  # each address many times in one access
    mask = torch.arange(64) % 5 != 0
    total, before = torch.ones(4, dtype=BF16), torch.zeros(64, dtype=BF16)
    want_total, want_before = total.clone(), before.clone()
    atomic_add_kernel[(1,)](x, where, mask, total, before, 64)
    for i in range(64):
        if mask[i]:
            want_before[i] = want_total[where[i]]
            want_total[where[i]] += x[i]
    return torch.cat([total, before]), torch.cat([want_total, want_before])


def whole(dtype: torch.dtype) -> torch.Tensor:
    words = torch.randint(-(2**63), 2**63 - 1, (1024,), generator=torch.Generator().manual_seed(3))
    return words.to(dtype) if dtype != torch.bool else words % 2 == 0


def between_fp8(dtype: torch.dtype) -> torch.Tensor:
    """Return fp8 numbers, also subnormal ones, and numbers halfway between two, which round to even."""
    numbers = patterns(dtype).float()
    numbers = numbers[numbers.isfinite()].unique()
    halfway = (numbers[1:] + numbers[:-1]) / 2
    return torch.cat([numbers, halfway, numbers.new_zeros(512)])[:512]


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# The name of the function that a repair in compat/ replaces -> cases that show that the repair is needed.
CASES: dict[str, dict[str, Case]] = {
    "InterpreterBuilder.binary_op": {
        "+": computing("+", torch.add),
        "-": computing("-", torch.sub),
        "*": computing("*", torch.mul),
        "<": comparing("<", torch.lt),
        "<=": comparing("<=", torch.le),
        ">": comparing(">", torch.gt),
        ">=": comparing(">=", torch.ge),
        "==": comparing("==", torch.eq),
        "!=": comparing("!=", torch.ne),
        "a product by tl.reduce": reducing("product", lambda x: x.prod(1)),
    },
    "InterpreterBuilder.ternary_op": {
        "clamp": computing("clamp", lambda x, y: x.clamp(-y.abs(), y.abs())),
    },
    "InterpreterBuilder.create_fma": {
        "fma": computing("fma", lambda x, y: x * y + x),
    },
    "InterpreterBuilder.create_dot": {
        "dot": multiplying(16, 16, 16, BF16),
        "dot, wide": multiplying(16, 64, 32, BF16),
        "dot, tall": multiplying(64, 16, 128, BF16),
        "dot to bf16": multiplying(16, 16, 16, BF16, BF16),
        "dot of batches": multiplying_batches,
        "dot of subnormal fp8": multiplying(16, 16, 16, torch.float8_e5m2),
    },
    "InterpreterBuilder.cast_impl": {
        "fp32 to bf16": casting(patterns(torch.float32), BF16),
        "fp32 to bf16, subnormal": casting(subnormals_of_fp32(), BF16),
        "fp32 to bf16, halfway": casting(halfway_in_fp32(), BF16),
        "fp16 to bf16": casting(patterns(torch.float16), BF16),
        "fp64 to bf16": casting(patterns(torch.float64), BF16),
        "int8 to bf16": casting(whole(torch.int8), BF16),
        "uint8 to bf16": casting(whole(torch.uint8), BF16),
        "int16 to bf16": casting(whole(torch.int16), BF16),
        "int32 to bf16": casting(whole(torch.int32), BF16),
        "int64 to bf16": casting(whole(torch.int64), BF16),
        "bool to bf16": casting(whole(torch.bool), BF16),
        "bf16 to fp32": casting(patterns(BF16), torch.float32),
        "bf16 to fp64": casting(patterns(BF16), torch.float64),
        "/, whose result comes from fp32": computing("/", torch.div),
    },
    "InterpreterBuilder.create_fp_to_fp": {
        f"{source} to {target}".replace("torch.", ""): casting(x, target)
        for source, x, target in (
            *(
                (dtype, patterns(dtype), wide)
                for dtype in FP8
                for wide in (BF16, torch.float16, torch.float32)
            ),
            *((BF16, between_fp8(dtype).to(BF16), dtype) for dtype in FP8),
            *((torch.float32, between_fp8(dtype), dtype) for dtype in FP8),
        )
    }
    | {"fp32 to bf16, toward zero": rounding_toward_zero},
    "InterpreterBuilder.get_bf16": {"a number in arithmetic": constants, "tl.full": full},
    "ReduceOps.sum": {
        "sum": reducing("sum", lambda x: x.sum(1)),
        "sum of all": reducing("sum of all", lambda x: x.sum()),
    },
    "_interpreter.atomic_rmw": {"atomic_add": adding_atomically},
}

# Cases that Triton 3.7.1 gets right by itself, and that the repairs must leave right.
UNAFFECTED: dict[str, Case] = {
    "%": computing("%", torch.fmod),
    "maximum": computing("maximum", torch.maximum),
    "minimum": computing("minimum", torch.minimum),
    "where": computing("where", lambda x, y: torch.where(torch.arange(256) % 2 == 0, x, y)),
    "negative": computing("negative", lambda x, y: -x),
    "abs": computing("abs", lambda x, y: x.abs()),
    "tl.where on pointers": choosing_pointers,
    "max": reducing("max", lambda x: x.max(1).values),
    "min": reducing("min", lambda x: x.min(1).values),
    "argmax": reducing("argmax", lambda x: x.argmax(1)),
    "cumsum": reducing("cumsum", lambda x: x.cumsum(1)),
    "bf16 to fp16": casting(normal(256), torch.float16),
    "bf16 to int32": casting(normal(256).mul(100), torch.int32),
    "bf16 to bool": casting(normal(256).round(), torch.bool),
    "fp32 to fp16": casting(normal(256, dtype=torch.float32), torch.float16),
    "int64 to fp32": casting(whole(torch.int64), torch.float32),
}


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether all bits are equal, except those of a NaN."""
    if not want.is_floating_point():
        return torch.equal(got, want)
    nan = want.isnan()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[want.dtype.itemsize]
    return torch.equal(got.isnan(), nan) and torch.equal(got[~nan].view(bits), want[~nan].view(bits))


def outcome(case: Case) -> str:
    try:
        return "right" if same(*case()) else "wrong"
    except Exception as error:
        return f"raises {type(error).__name__}"


def outcomes() -> dict[str, Any]:
    return {repair: {name: outcome(case) for name, case in cases.items()} for repair, cases in CASES.items()}


if __name__ == "__main__":
    print(json.dumps(outcomes()))
