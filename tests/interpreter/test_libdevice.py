"""Functions of CUDA's and ROCm's device libraries in the interpreter, against mpmath and exact fractions."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.extra.hip import libdevice as hip_libdevice
from triton.language.extra.libdevice import tanh

from workbench.errors import KernelError
from workbench.interpreter import Computation
from workbench.interpreter.libdevice import function_of
from workbench.launch import Launch
from workbench.lens import compile as compile_for
from workbench.runtime import interpret

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "int32": torch.int32, "uint32": torch.uint32,
          "int64": torch.int64, "uint64": torch.uint64}  # fmt: skip


def signatures(library: Any) -> dict[str, list[tuple[tuple[str, ...], str, str]]]:
    """Return, for each function, its overloads: argument types, the symbol that is called, result type."""
    entry = re.compile(r'\(((?:\s*core\.dtype\("\w+"\),?)+)\s*\)\s*:\s*\("(\w+)",\s*core\.dtype\("(\w+)"\)\)')
    text = inspect.getsource(library)
    functions = re.split(r"\ndef (?=\w+\()", text)[1:]
    return {
        function.partition("(")[0]: [
            (tuple(re.findall(r'"(\w+)"', types)), symbol, result)
            for types, symbol, result in entry.findall(function)
        ]
        for function in functions
    }


OF_CUDA, OF_HIP = signatures(cuda_libdevice), signatures(hip_libdevice)


def kernel_of(path: Path, name: str, arguments: int, library: str = "libdevice") -> Any:
    """Return a kernel that calls one function with `arguments` tiles."""
    names = [f"x{i}" for i in range(arguments)]
    path.write_text(
        "import triton\nimport triton.language as tl\n"
        "from triton.language.extra import libdevice\n"
        "from triton.language.extra.cuda import libdevice as cuda_libdevice\n\n"
        "@triton.jit\n"
        f"def kernel({', '.join(names)}, y, N: tl.constexpr):\n"
        "    i = tl.arange(0, N)\n"
        f"    tl.store(y + i, {library}.{name}({', '.join(f'tl.load({each} + i)' for each in names)}))\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.kernel


def ran(path: Path, name: str, operands: list[torch.Tensor], result: torch.dtype) -> torch.Tensor:
    y = torch.zeros(len(operands[0]), dtype=result)
    kernel = kernel_of(path, name, len(operands))
    Launch.of(kernel, 1, *operands, y, len(operands[0]), outputs=y).run()
    return y


def test_every_function_of_cuda_and_rocm_is_implemented() -> None:
    """CUDA's and ROCm's functions are listed by the symbols that the compilers link."""
    symbols = {symbol for each in (OF_CUDA, OF_HIP) for entries in each.values() for _, symbol, _ in entries}
    assert len(symbols) > 400
    assert [symbol for symbol in sorted(symbols) if function_of(symbol) is None] == []
    assert function_of("__nv_unheard_of") is None


@pytest.mark.parametrize("name", sorted(OF_CUDA))
def test_each_function_runs_in_a_kernel(name: str, tmp_path: Path) -> None:
    """It runs for each list of types that it takes, and gives equal results for equal operands."""
    for number, (types, _, result) in enumerate(OF_CUDA[name]):
        operands = [torch.full((8,), 1).to(DTYPES[each]) for each in types]
        y = ran(tmp_path / f"{name}_{number}.py", name, operands, DTYPES[result])
        assert (y == y[0]).all()


REAL: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(mpmath, by or name)
        for name, by in {
            "acos": "", "acosh": "", "asin": "", "asinh": "", "atan": "", "atanh": "", "cbrt": "", "cos": "",
            "cosh": "", "cospi": "", "erf": "", "erfc": "", "erfinv": "", "exp": "", "expm1": "", "j0": "",
            "j1": "", "log": "", "log10": "", "log1p": "", "normcdf": "ncdf", "sin": "", "sinh": "",
            "sinpi": "", "sqrt": "", "tan": "", "tanh": "", "tgamma": "gamma",
        }.items()
    },
    "cyl_bessel_i0": lambda x: mpmath.besseli(0, x),
    "cyl_bessel_i1": lambda x: mpmath.besseli(1, x),
    "erfcinv": lambda x: mpmath.erfinv(1 - x),
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "exp2": lambda x: mpmath.power(2, x),
    "exp10": lambda x: mpmath.power(10, x),
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
    "log2": lambda x: mpmath.log(x, 2),
    "normcdfinv": lambda x: -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * x),
    "rcbrt": lambda x: 1 / mpmath.cbrt(x),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "y0": lambda x: mpmath.bessely(0, x),
    "y1": lambda x: mpmath.bessely(1, x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(REAL))
def test_real_functions_agree_with_mpmath_within_roundings(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Results are within a rounding of fp32, which is rounded once from fp64, and some ulp of fp64."""
    x = torch.tensor([0.0625, 0.3, 0.5, 0.75, 0.99, 1.0, 1.5, 3.0], dtype=dtype)
    if name in ("acos", "asin", "atanh", "erfinv"):
        x = x.clamp(max=0.99)
    elif name == "acosh":
        x = x + 1
    elif name == "erfcinv":
        x = x / 2
    elif name == "normcdfinv":
        x = x / 4
    y = ran(tmp_path / f"{name}_{dtype.itemsize}.py", name, [x], dtype)
    with mpmath.workdps(40):
        expected = torch.tensor(
            [float(REAL[name](mpmath.mpf(each))) for each in x.tolist()], dtype=torch.float64
        )
    relative = 1.2e-7 if dtype == torch.float32 else 4e-15
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=relative / 4)


def test_bessel_functions_agree_with_mpmath_at_any_argument() -> None:
    """Arguments are small and large, of both signs, and where one expansion takes over from another."""
    x = np.array([1e-6, 0.1, 1.0, 4.9, 5.1, 7.0, 12.5, 24.9, 25.1, 26.0, 40.0, 1000.0, 123456.0])
    for order in (0, 1, 2, 3, 7, 30, -1, -4):
        orders = np.full(x.shape, order, dtype=np.int32)
        for name, exact in (("jn", mpmath.besselj), ("yn", mpmath.bessely)):
            function = function_of(f"__nv_{name}")
            assert function is not None
            with mpmath.workdps(40), np.errstate(all="ignore"):
                for sign in (1, -1) if name == "jn" else (1,):
                    expected = np.array([float(exact(order, sign * v)) for v in x])
                    got = function(orders, sign * x)
                    if name == "yn" and order < 0:
                        assert np.isnan(got).all()
                        continue
                    # Errors are relative to the height of the wave, whose zeros are at no float; below the
                    # wave they are absolute.
                    scale = np.maximum(np.abs(expected), np.minimum(1, np.sqrt(2 / (np.pi * x))))
                    scale = np.where(x < abs(order), np.maximum(1e-2, np.abs(expected)), scale)
                    assert (np.abs(got - expected) <= 2e-13 * scale).all(), (name, order, sign)


def test_functions_of_0_infinities_and_nan_give_the_results_that_cuda_defines(tmp_path: Path) -> None:
    """The CUDA math API defines the results for 0, infinities and NaN."""
    inf, nan = math.inf, math.nan
    cases: dict[str, tuple[list[float], list[float]]] = {
        "tanh": ([inf, -inf, nan, -0.0], [1, -1, nan, -0.0]),
        "exp": ([inf, -inf, nan, 1000], [inf, 0, nan, inf]),
        "log": ([0, -0.0, -1, inf], [-inf, -inf, nan, inf]),
        "rsqrt": ([0, -0.0, -1, inf], [inf, -inf, nan, 0]),
        "tgamma": ([0, -0.0, -1, 200], [inf, -inf, nan, inf]),
        "lgamma": ([0, -1, -inf, inf], [inf, inf, inf, inf]),
        "erfinv": ([1, -1, 2, 0], [inf, -inf, nan, 0]),
        "round": ([0.5, -0.5, 2.5, 0.49999997], [1, -1, 3, 0]),
        "rint": ([0.5, -0.5, 2.5, inf], [0, -0.0, 2, inf]),
        "sinpi": ([1, 1e10, 0.5, inf], [0, 0, 1, nan]),
        "cospi": ([0.5, 1, 1e10, inf], [0, -1, 1, nan]),
        "saturatef": ([nan, -inf, 0.5, 7], [0, 0, 0.5, 1]),
        "logb": ([0, inf, -inf, 0.375], [-inf, inf, inf, -2]),
        "isnan": ([nan, inf, 0, 1], [1, 0, 0, 0]),
        "isinf": ([nan, inf, -inf, 1], [0, 1, 1, 0]),
        "finitef": ([nan, inf, -inf, 1], [0, 0, 0, 1]),
        "signbit": ([-0.0, 0, -inf, 1], [1, 0, 1, 0]),
        "ilogb": ([0, nan, inf, 0.375], [-(2**31), -(2**31), 2**31 - 1, -2]),
        "llround": ([0.5, -2.5, nan, inf], [1, -3, 0, 2**63 - 1]),
        "llrint": ([0.5, -2.5, nan, -inf], [0, -2, 0, -(2**63)]),
        "y0": ([0, -1, inf, nan], [-inf, nan, 0, nan]),
        "j1": ([0, -inf, inf, nan], [0, -0.0, 0, nan]),
    }
    for name, (values, expected) in cases.items():
        result = DTYPES[OF_CUDA[name][0][2]]
        y = ran(tmp_path / f"edges_{name}.py", name, [torch.tensor(values, dtype=torch.float32)], result)
        torch.testing.assert_close(
            y.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True, msg=name
        )
        signs = torch.tensor(expected, dtype=torch.float64).signbit()
        assert torch.equal(y.double().signbit() & ~y.isnan(), signs & ~y.isnan()), name


SEVERAL: dict[str, Callable[..., Any]] = {
    "atan2": mpmath.atan2,
    "copysign": math.copysign,
    "fast_dividef": lambda x, y: x / y,
    "fast_powf": mpmath.power,
    "fdim": lambda x, y: max(x - y, 0),
    "fma": lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z),
    "fmod": math.fmod,
    "hypot": math.hypot,
    "nextafter": None,  # type: ignore[dict-item]
    "norm3d": lambda *parts: math.hypot(*parts),
    "norm4d": lambda *parts: math.hypot(*parts),
    "pow": mpmath.power,
    "remainder": math.remainder,
    "rhypot": lambda *parts: 1 / math.hypot(*parts),
    "rnorm3d": lambda *parts: 1 / math.hypot(*parts),
    "rnorm4d": lambda *parts: 1 / math.hypot(*parts),
}


@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_functions_of_several_numbers_are_within_a_rounding(name: str, tmp_path: Path) -> None:
    """Errors are at most a rounding of fp32, or a few ulp of fp64."""
    for number, (types, _, result) in enumerate(OF_CUDA[name]):
        dtype = DTYPES[result]
        generator = torch.Generator().manual_seed(number)
        operands = [torch.rand(16, generator=generator).to(dtype) * 3 + 0.1 for _ in types]
        y = ran(tmp_path / f"{name}_{number}.py", name, operands, dtype)
        if name == "nextafter":
            expected = torch.nextafter(*operands)
        else:
            rows = zip(*(each.tolist() for each in operands), strict=True)
            expected = torch.tensor([float(SEVERAL[name](*row)) for row in rows], dtype=torch.float64).to(
                dtype
            )
        relative = 1.2e-7 if dtype == torch.float32 else 1e-15
        torch.testing.assert_close(y, expected, rtol=relative, atol=0)


def test_functions_with_an_integer_argument_agree_with_their_definitions(tmp_path: Path) -> None:
    n = torch.tensor([0, 1, 2, 3, 5, 8, -1, -2], dtype=torch.int32)
    x = torch.tensor([0.5, 1.0, 2.5, 7.0, 12.5, 40.0, 3.0, 2.0], dtype=torch.float64)
    expected = {
        "jn": [float(mpmath.besselj(k, v)) for k, v in zip(n.tolist(), x.tolist(), strict=True)],
        "yn": [
            float(mpmath.bessely(k, v)) if k >= 0 else math.nan
            for k, v in zip(n.tolist(), x.tolist(), strict=True)
        ],
        "ldexp": [v * 2.0**k for k, v in zip(n.tolist(), x.tolist(), strict=True)],
        "pow": [v**k for k, v in zip(n.tolist(), x.tolist(), strict=True)],
    }
    for name, values in expected.items():
        operands = [n, x] if name in ("jn", "yn") else [x, n]
        y = ran(tmp_path / f"integer_{name}.py", name, operands, torch.float64)
        torch.testing.assert_close(
            y, torch.tensor(values, dtype=torch.float64), rtol=1e-12, atol=1e-14, equal_nan=True
        )


OPERATIONS: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "fma": lambda x, y, z: x * y + z, "rcp": lambda x: 1 / x,
}  # fmt: skip


@given(
    name=st.sampled_from([*OPERATIONS, "sqrt"]),
    width=st.sampled_from([32, 64]),
    data=st.data(),
)
def test_operations_round_as_their_names_say(name: str, width: int, data: st.DataObject) -> None:
    """Down and up are equal or neighbors around the exact result; the other modes give one of the two."""
    dtype: Any = np.float32 if width == 32 else np.float64
    floats = st.floats(width=32 if width == 32 else 64, allow_nan=False, allow_infinity=False)
    count = 3 if name == "fma" else 1 if name in ("rcp", "sqrt") else 2
    operands = [dtype(data.draw(floats)) for _ in range(count)]
    if name in ("rcp", "div"):
        operands[-1] = operands[-1] or dtype(1)
    if name == "sqrt":
        operands = [abs(operands[0])]
    prefix = ("fmaf" if width == 32 else "fma") if name == "fma" else f"{'f' if width == 32 else 'd'}{name}"
    exact = None if name == "sqrt" else OPERATIONS[name](*(Fraction(float(each)) for each in operands))
    results = {}
    with np.errstate(all="ignore"):
        for mode in ("rn", "rz", "rd", "ru"):
            function = function_of(f"__nv_{prefix}_{mode}")
            assert function is not None
            (results[mode],) = function(*(np.array([each]) for each in operands))
        down, up = results["rd"], results["ru"]

        def compared(value: Any) -> int:
            """Return the sign of the value minus the exact result."""
            if np.isinf(value):
                return int(np.sign(value))
            if exact is not None:
                return (Fraction(float(value)) > exact) - (Fraction(float(value)) < exact)
            square, operand = Fraction(float(value)) ** 2, Fraction(float(operands[0]))
            return (square > operand) - (square < operand)

        assert compared(down) <= 0 <= compared(up)
        assert up == down or up == np.nextafter(down, dtype(np.inf))
        assert (down == up) == (compared(down) == 0)
        assert results["rn"] in (down, up)
        is_negative = exact is not None and exact < 0
        assert results["rz"] == (up if is_negative else down)
        assert results["rn"].dtype == dtype
        if name == "add" and width == 64:
            assert results["rn"] == operands[0] + operands[1]


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_conversions_round_as_their_names_say(mode: str, tmp_path: Path) -> None:
    whole: Any = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode]
    x = [
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.25,
        3e9,
        -3e9,
        math.nan,
        1e30,
        -math.inf,
        7.75,
        2.0**31,
        -(2.0**31),
        0.0,
        4e9,
        1e10,
    ]
    limits = {
        "int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1),
        "ll": (-(2**63), 2**63 - 1), "ull": (0, 2**64 - 1),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        expected = [
            0 if math.isnan(v) else low if v == -math.inf else max(low, min(high, int(whole(v)))) for v in x
        ]
        bits = 64 if "ll" in name else 32
        result = torch.int64 if bits == 64 else torch.int32
        expected = [(v + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in expected]
        values = torch.tensor(x, dtype=torch.float64)
        y = ran(tmp_path / f"{name}_{mode}.py", f"double2{name}_{mode}", [values], result)
        assert y.tolist() == expected, name
    large = [2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**53 + 1, -(2**62) - 1, 0, 1, -7]
    values = torch.tensor(large, dtype=torch.int64)
    y = ran(tmp_path / f"floats_{mode}.py", f"ll2float_{mode}", [values], torch.float32)
    for exact, got in zip(large, y.tolist(), strict=True):
        if mode == "rn":
            assert got == np.float32(exact)
        elif mode == "rz":
            assert abs(got) <= abs(exact)
        else:
            assert got <= exact if mode == "rd" else got >= exact
        assert abs(Fraction(got) - exact) < max(abs(exact), 1) * Fraction(2, 2**24)


def test_functions_of_integers_and_bits_are_exact(tmp_path: Path) -> None:
    x = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 0x12345678, 0x00FF00FF, -12345], dtype=torch.int32)
    y = torch.tensor([1, -1, 7, 2**31 - 1, -(2**31), 0x0F0F0F0F, 3, 1000], dtype=torch.int32)
    bits = [v % 2**32 for v in x.tolist()]
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    expected: dict[str, list[int]] = {
        "clz": [32 - v.bit_length() for v in bits],
        "popc": [v.bit_count() for v in bits],
        "ffs": [(v & -v).bit_length() for v in bits],
        "brev": [int(f"{v:032b}"[::-1], 2) for v in bits],
        "abs": [abs(v) for v in x.tolist()],
        "mulhi": [a * b >> 32 for a, b in pairs],
        "mul24": [((a + 2**23) % 2**24 - 2**23) * ((b + 2**23) % 2**24 - 2**23) for a, b in pairs],
        "hadd": [(a + b) >> 1 for a, b in pairs],
        "rhadd": [(a + b + 1) >> 1 for a, b in pairs],
    }
    for name, values in expected.items():
        operands = [x] if len(OF_CUDA[name][0][0]) == 1 else [x, y]
        got = ran(tmp_path / f"bits_{name}.py", name, operands, torch.int32)
        assert got.tolist() == [(v + 2**31) % 2**32 - 2**31 for v in values], name
    words = torch.full((8,), 0x03020100, dtype=torch.int32), torch.full((8,), 0x07060504, dtype=torch.int32)
    selector = torch.tensor([0x3210, 0x7654, 0x0123, 0x5140, 0, 0x7777, 0x2222, 0x6420], dtype=torch.int32)
    got = ran(tmp_path / "bytes.py", "byte_perm", [*words, selector], torch.int32)
    assert got.tolist() == [int("".join(f"0{digit}" for digit in f"{s:04x}"), 16) for s in selector.tolist()]
    apart = torch.tensor([5] * 8, dtype=torch.int32).to(torch.uint32)
    got = ran(tmp_path / "sad.py", "sad", [x[:2].repeat(4), y[:2].repeat(4), apart], torch.int32)
    assert got.tolist() == [6, 7] * 4


def test_functions_of_the_bits_of_floats_are_exact(tmp_path: Path) -> None:
    x = torch.tensor([1.0, -2.5, 0.0, -0.0, math.inf, 1e-40, 3.14159, 65504.0])
    bits = ran(tmp_path / "as_int.py", "float_as_int", [x], torch.int32)
    assert torch.equal(bits, x.view(torch.int32))
    assert torch.equal(ran(tmp_path / "as_float.py", "int_as_float", [bits], torch.float32), x)
    wide = x.double() / 3
    low = ran(tmp_path / "low.py", "double2loint", [wide], torch.int32)
    high = ran(tmp_path / "high.py", "double2hiint", [wide], torch.int32)
    assert torch.equal(ran(tmp_path / "joined.py", "hiloint2double", [high, low], torch.float64), wide)


# In kernels


@triton.jit
def activations_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = tl.load(x + i)
    tl.store(y + i, libdevice.tanh(tile))
    tl.store(y + N + i, tl.extra.cuda.libdevice.erf(tile))
    tl.store(y + 2 * N + i, tanh(tile) + libdevice.pow(tl.load(x), 2.0))
    tl.store(y + 3 * N + i, tl.where(libdevice.isnan(tile), 0.0, libdevice.pow(tile, tile)))


def test_functions_are_found_through_each_module_and_import() -> None:
    """They are found in `tl.extra.libdevice`, in a vendor's module, and by `from ... import`."""
    x, y = torch.tensor([0.5, 1.0, 2.0, 3.0]), torch.zeros(4, 4)
    launch = Launch.of(activations_kernel, 1, x, y, 4, outputs=y)
    launch.run()
    torch.testing.assert_close(y, torch.stack([x.tanh(), x.erf(), x.tanh() + 0.25, x**x]))
    assert torch.equal(interpret(launch).outputs[0], y)
    assert "__nv_tanhf" in compile_for(launch, "sm_90")[0].stages["ttir"]


@triton.jit
def half_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, libdevice.tanh(tl.load(x + i)))


def test_halves_are_refused_as_by_the_compiler() -> None:
    """The libraries have no functions of fp16, and Triton does not convert."""
    x, y = torch.ones(4, dtype=torch.float16), torch.zeros(4)
    launch = Launch.of(half_kernel, 1, x, y, 4, outputs=y)
    for run in (launch.run, lambda: compile_for(launch, "sm_90")):
        with pytest.raises(KernelError, match="float16"):
            run()


def test_each_call_counts_as_one_operation_per_element() -> None:
    """A call is one operation an element, like `tl.exp`."""
    x, y = torch.ones(4), torch.zeros(4)
    seen: list[Computation] = []
    (step,) = Launch.of(half_kernel, 1, x, y, 4, outputs=y).steps
    step.run(computed=seen.append)
    assert [(each.kind, each.flops, each.shape) for each in seen] == [("arithmetic", 4, (4,))]


def test_calls_outside_kernels_are_refused() -> None:
    with pytest.raises(Exception, match="tensor"):
        libdevice.tanh(torch.ones(4))


IMPORTED_FIRST = """
import torch, triton, triton.language as tl
from triton.language.extra.cuda.libdevice import erf
from triton.language.extra.libdevice import tanh

@triton.jit
def applied(x, function: tl.constexpr):
    return function(x)

@triton.jit
def kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, applied(tanh(tl.load(x + i)), erf))

from workbench.launch import Launch

x, y = torch.ones(4), torch.zeros(4)
Launch.of(kernel, 1, x, y, 4, outputs=y).run()
torch.testing.assert_close(y, x.tanh().erf())
"""


def test_functions_imported_before_the_workbench_work(tmp_path: Path) -> None:
    """Such an import binds Triton's empty function, which is replaced in the kernel's module."""
    script = tmp_path / "imported_first.py"
    script.write_text(IMPORTED_FIRST)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
