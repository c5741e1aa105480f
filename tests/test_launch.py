"""A launch: its refusals and their messages, its runs, and the line that an error in a kernel shows."""

from __future__ import annotations

import copy
import inspect
import linecache
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench import Launch, Step, Work
from workbench.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    KernelError,
    OutOfBoundsError,
    TensorMismatchError,
    TracingError,
    UnknownNameError,
    WorkbenchError,
)
from workbench.kernels import gemm
from workbench.kernels.epilogues import own, relu
from workbench.kernels.gemm import kernel
from workbench.kernels.tile import epilogue, transfer
from workbench.runtime import interpret


@triton.jit
def scale_kernel(x, output, n, factor=2.0, BLOCK_SIZE: tl.constexpr = 8):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x + i, mask=i < n)
    tl.store(output + i, value * factor, mask=i < n)


@triton.jit
def add_into_kernel(x, total, BLOCK_SIZE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tl.atomic_add(total + i * 0, tl.load(x + i))


@triton.jit
def negate_kernel(x, BLOCK_SIZE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tl.store(x + i, -tl.load(x + i))


@triton.jit
def function_kernel(x, FUNCTION: tl.constexpr):
    tl.store(x, FUNCTION(tl.load(x)))


@triton.jit
def double(value):
    return 2 * value


def plain_function(value: Any) -> Any:
    return value


autotuned = triton.autotune(configs=[triton.Config({"BLOCK_SIZE": 8})], key=["n"])(scale_kernel)
heuristic = triton.heuristics({"BLOCK_SIZE": lambda arguments: 8})(scale_kernel)


def tensors(length: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(float(length)), torch.full((length,), float("nan"))


def test_a_learners_kernel_runs_in_one_line() -> None:
    x, output = tensors(20)
    launch = Launch.of(scale_kernel, (3,), x, output, 20, outputs=(output,))
    (result,) = launch.run()
    assert result is output
    assert torch.equal(output, 2 * x)


@pytest.mark.parametrize(
    "grid",
    [
        3,
        (3,),
        [3],
        (3, 1),
        (3, 1, 1),
        lambda arguments: (triton.cdiv(arguments["n"], arguments["BLOCK_SIZE"]),),
        lambda arguments: triton.cdiv(arguments["x"].numel(), arguments["BLOCK_SIZE"]),
        lambda arguments: [3],
    ],
    ids=["int", "tuple", "list", "two axes", "three axes", "function", "function to int", "function to list"],
)
def test_a_grid_may_be_given_in_every_way(grid: Any) -> None:
    """A function gets what Triton gives it: all of the kernel's arguments, with defaults."""
    x, output = tensors(20)
    launch = Launch.of(scale_kernel, grid, x, output, 20, outputs=output, num_warps=4)
    assert launch.steps[0].programs == 3
    assert torch.equal(launch.run()[0], 2 * x)


def test_arguments_are_given_by_position_or_name() -> None:
    x, output = tensors()
    launch = Launch.of(scale_kernel, 1, x, output, outputs=output, n=8, factor=3.0, num_stages=2)
    assert launch.steps[0].arguments() == {"x": x, "output": output, "n": 8, "factor": 3.0, "BLOCK_SIZE": 8}
    assert torch.equal(launch.run()[0], 3 * x)


class Refusal(NamedTuple):
    name: str
    kind: type[WorkbenchError]
    message: str
    kernel: Any = scale_kernel
    grid: Any = (1,)
    args: Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]] = lambda x, output: (x, output, 8)
    outputs: Any = None
    accumulators: Any = ()
    work: Any = None
    meta: Mapping[str, Any] = MappingProxyType({})


def raising(arguments: dict[str, Any]) -> Any:
    return (arguments["BLOCK"],)


TUPLE = "Give a tuple of programs per axis"
NOT_UNDER_ONE = "Give a whole number of programs, 1 or more."
REFUSALS = [
    # kernels
    Refusal(
        "a function",
        ArgumentTypeError,
        "kernel: got a function. Pass a function .* @triton.jit",
        plain_function,
    ),
    Refusal("no function", ArgumentTypeError, "kernel: got a int.", 3),
    Refusal(
        "autotuned", ArgumentTypeError, "got a Autotuner, which chooses meta-parameters by itself", autotuned
    ),
    Refusal(
        "heuristic", ArgumentTypeError, "got a Heuristics, which chooses .* A launch names them", heuristic
    ),
    Refusal("a launcher", ArgumentTypeError, "kernel: got a ", scale_kernel[(1,)]),
    # grids
    Refusal("grid None", ArgumentTypeError, f"grid: got None. {TUPLE}", grid=None),
    Refusal("grid float", ArgumentTypeError, f"grid: got 2.0. {TUPLE}", grid=2.0),
    Refusal("grid text", ArgumentTypeError, f"grid: got '3'. {TUPLE}", grid="3"),
    Refusal("grid bool", ArgumentTypeError, r"grid\[0\]: got True, a bool.", grid=True),
    Refusal("grid empty", InvalidArgumentError, "grid: got 0 axes. Give one to three.", grid=()),
    Refusal("grid of four", InvalidArgumentError, "grid: got 4 axes. Give one to three.", grid=(1, 1, 1, 1)),
    Refusal("grid zero", InvalidArgumentError, rf"grid\[0\]: got 0. {NOT_UNDER_ONE}", grid=0),
    Refusal("grid zero within", InvalidArgumentError, rf"grid\[1\]: got 0. {NOT_UNDER_ONE}", grid=(2, 0, 3)),
    Refusal("grid negative", InvalidArgumentError, rf"grid\[2\]: got -1. {NOT_UNDER_ONE}", grid=(2, 1, -1)),
    Refusal("grid of floats", ArgumentTypeError, r"grid\[0\]: got 1.0, a float", grid=(1.0,)),
    Refusal("grid of numpy", ArgumentTypeError, r"grid\[0\]: got .*, a int64", grid=(np.int64(1),)),
    Refusal(
        "grid of a tensor",
        ArgumentTypeError,
        r"grid\[0\]: got tensor\(1\), a Tensor",
        grid=(torch.tensor(1),),
    ),
    Refusal("grid too long", InvalidArgumentError, r"grid\[0\]: got 2147483648. .* 2147483647 ", grid=2**31),
    Refusal("grid too high", InvalidArgumentError, r"grid\[1\]: got 65536. .* 65535 ", grid=(1, 65536)),
    Refusal("grid too deep", InvalidArgumentError, r"grid\[2\]: got 65536. .* 65535 ", grid=(1, 1, 65536)),
    Refusal(
        "grid function of rubbish", ArgumentTypeError, "grid: got 'many'.", grid=lambda arguments: "many"
    ),
    Refusal("grid function of None", ArgumentTypeError, "grid: got None.", grid=lambda arguments: None),
    Refusal(
        "grid function of bool", ArgumentTypeError, r"grid\[0\]: got False", grid=lambda arguments: (False,)
    ),
    Refusal(
        "grid function of float", ArgumentTypeError, r"grid\[0\]: got 2.5", grid=lambda arguments: (2.5,)
    ),
    Refusal("grid function of less", InvalidArgumentError, r"grid\[0\]: got -3", grid=lambda arguments: -3),
    Refusal(
        "grid function that raises",
        InvalidArgumentError,
        "its function raised KeyError: 'BLOCK'. It is called with a dict of x, output, n, factor, BLOCK_SIZE",
        grid=raising,
    ),
    Refusal("grid function without arguments", InvalidArgumentError, "raised TypeError", grid=lambda: (1,)),
    # arguments
    Refusal(
        "argument missing",
        InvalidArgumentError,
        r"args of scale_kernel: missing a required argument: 'n'. "
        r"Give one value for each of its parameters: \(x, output, n, factor, BLOCK_SIZE\)",
        args=lambda x, output: (x, output),
    ),
    Refusal(
        "argument too many",
        InvalidArgumentError,
        "args of scale_kernel: too many positional arguments",
        args=lambda x, output: (x, output, 8, 1.0, 8, 9),
    ),
    Refusal(
        "argument too many, all by position",
        InvalidArgumentError,
        "too many positional arguments",
        kernel=negate_kernel,
        args=lambda x, output: (output, 8, 8),
    ),
    Refusal("argument twice", InvalidArgumentError, "multiple values for argument 'n'", meta={"n": 8}),
    Refusal(
        "a misspelled parameter",
        UnknownNameError,
        "meta of scale_kernel: 'BLOCKSIZE' is not known. Did you mean 'BLOCK_SIZE'",
        meta={"BLOCKSIZE": 8},
    ),
    Refusal("a misspelled option", UnknownNameError, "Did you mean 'num_warps'", meta={"num_warp": 8}),
    Refusal(
        "more warps than a block has room for",
        InvalidArgumentError,
        "num_warps of scale_kernel: got 64. Give 32 or less",
        meta={"num_warps": 64},
    ),
    Refusal(
        "more stages than can be counted",
        InvalidArgumentError,
        "num_stages of scale_kernel: got 1,000,000,000,000",
        meta={"num_stages": 10**12},
    ),
    Refusal(
        "what Triton's own launch takes", UnknownNameError, "'warmup' is not known", meta={"warmup": True}
    ),
    # tensors
    Refusal(
        "several devices",
        TensorMismatchError,
        "tensors on cpu and meta. Move them all to one device",
        args=lambda x, output: (x.to("meta"), output, 8),
    ),
    Refusal(
        "devices inside a tuple",
        TensorMismatchError,
        "tensors on cpu and meta",
        args=lambda x, output: ((x, (x.to("meta"),)), output, 8),
    ),
    Refusal(
        "complex numbers",
        TensorMismatchError,
        r"args of scale_kernel: x is complex64\. .* Give torch.view_as_real\(...\) of it",
        args=lambda x, output: (x.to(torch.complex64), output, 8),
    ),
    Refusal(
        "complex numbers inside a tuple",
        TensorMismatchError,
        "is complex128",
        args=lambda x, output: ((3, (x.to(torch.complex128),)), output, 8),
    ),
    Refusal(
        "a pending negation",
        TensorMismatchError,
        r"args of scale_kernel: x has a pending negation, .* Give its resolve_neg\(\)",
        args=lambda x, output: ((3, (torch._neg_view(x),)), output, 8),
    ),
    # outputs, accumulators and work
    Refusal(
        "an output not given",
        InvalidArgumentError,
        r"outputs\[0\]: no step has this tensor of shape \(3,\) as an argument. Pass it to a kernel",
        outputs=torch.zeros(3),
    ),
    Refusal(
        "an output's copy",
        InvalidArgumentError,
        r"outputs\[1\]: no step has this",
        outputs=lambda output: (output, output.clone()),
    ),
    Refusal(
        "an output that is none",
        ArgumentTypeError,
        r"outputs\[0\]: got a NoneType. Give the tensors",
        outputs=(None,),
    ),
    Refusal("an array", ArgumentTypeError, r"outputs\[0\]: got a ndarray", outputs=(np.zeros(3),)),
    Refusal(
        "outputs None",
        ArgumentTypeError,
        "outputs: got a NoneType. Give a tuple",
        outputs=lambda output: None,
    ),
    Refusal("outputs a number", ArgumentTypeError, "outputs: got a int. Give a tuple", outputs=3),
    Refusal(
        "an accumulator not given",
        InvalidArgumentError,
        r"accumulators\[0\]: no step has this",
        accumulators=(torch.zeros(1),),
    ),
    Refusal("accumulators a number", ArgumentTypeError, "accumulators: got a int", accumulators=3),
    Refusal("work a number", ArgumentTypeError, "work: got a int. Give a Work", work=5),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.name for refusal in REFUSALS])
def test_wrong_arguments_are_refused_before_anything_runs(refusal: Refusal) -> None:
    x, output = tensors()
    outputs = output if refusal.outputs is None else refusal.outputs
    with pytest.raises(refusal.kind, match=refusal.message) as caught:
        Launch.of(
            refusal.kernel, refusal.grid, *refusal.args(x, output),
            outputs=outputs(output) if callable(outputs) else outputs,
            accumulators=refusal.accumulators, work=refusal.work, **refusal.meta,
        )  # fmt: skip
    assert type(caught.value) is refusal.kind
    assert output.isnan().all()


# Kernels of one parameter, whose name Triton's launcher uses for itself.
@triton.jit
def params_kernel(params):
    tl.store(params, 1.0)


@triton.jit
def options_kernel(options):
    tl.store(options, 1.0)


@triton.jit
def backend_kernel(backend):
    tl.store(backend, 1.0)


@triton.jit
def specialize_impl_kernel(specialize_impl):
    tl.store(specialize_impl, 1.0)


@triton.jit
def debug_kernel(debug):
    tl.store(debug, 1.0)


@triton.jit
def instrumentation_mode_kernel(instrumentation_mode):
    tl.store(instrumentation_mode, 1.0)


@triton.jit
def fine_kernel(specialization, JITCallable, default_x, args, kwargs, self, num_warps, grid, warmup):
    tl.store(specialization, 1.0)


TAKEN = [
    params_kernel,
    options_kernel,
    backend_kernel,
    specialize_impl_kernel,
    debug_kernel,
    instrumentation_mode_kernel,
]


def starts_on_a_gpu(kernel: Any, *args: Any) -> bool:
    """Return whether Triton's code before the compilation for a GPU takes the arguments."""
    compiled = JITFunction(kernel.fn)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    try:
        bind = create_function_from_signature(compiled.signature, compiled.params, backend)
        bind(*args, debug=False, instrumentation_mode="")
    except (AttributeError, SyntaxError, TypeError):
        return False
    return True


@pytest.mark.parametrize("kernel", TAKEN, ids=lambda kernel: kernel.fn.__name__)
def test_parameters_with_names_that_tritons_launcher_uses_are_refused(kernel: Any) -> None:
    """The interpreter would run them, but a GPU would not."""
    x = torch.zeros(1)
    name = kernel.fn.__name__.removesuffix("_kernel")
    assert not starts_on_a_gpu(kernel, x)
    with pytest.raises(InvalidArgumentError, match=rf"^parameters of {name}_kernel: .*'{name}'\. Rename it"):
        Launch.of(kernel, 1, x, outputs=x)
    with pytest.raises(InvalidArgumentError, match="Rename it"):
        Launch((Step(kernel, (1,), (x,)),), (x,)).run()
    assert x.item() == 0


def test_a_kernel_of_parameters_with_similar_names_runs() -> None:
    x = torch.zeros(1)
    assert starts_on_a_gpu(fine_kernel, x, *range(8))
    assert Launch.of(fine_kernel, 1, x, *range(8), outputs=x).run()[0].item() == 1


@triton.jit
def numbers_kernel(output, first, pair, flag: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(output + i, first + pair[0] * pair[1][0] + flag)


class Pair(NamedTuple):
    whole: Any
    rest: Any


def test_numpys_numbers_become_pythons() -> None:
    """Triton takes only Python's numbers."""
    output = torch.zeros(8)
    pair = Pair(np.int64(2), (np.float32(0.5), np.int8(1)))
    launch = Launch.of(
        numbers_kernel, 1, output, np.float64(1.5), pair, outputs=output,
        flag=np.bool_(True), N=np.int64(8), num_warps=np.int32(4),
    )  # fmt: skip
    (step,) = launch.steps
    assert [type(value) for value in (step.args[1], *step.meta.values())] == [float, bool, int, int]
    assert step.args[2] == Pair(2, (0.5, 1))
    assert type(step.args[2].whole) is int
    assert step.arguments()["N"] == 8
    assert launch.run()[0].tolist() == [3.5] * 8
    assert starts_on_a_gpu(numbers_kernel, *step.arguments().values())


def test_an_array_for_a_tensor_is_an_error() -> None:
    x, output = tensors()
    with pytest.raises(KernelError):
        Launch.of(scale_kernel, 1, x.numpy(), output, 8, outputs=output).run()


def test_a_view_may_be_an_output() -> None:
    """An output is a part of the tensor that the kernel writes, or a tensor that contains it."""
    whole = torch.zeros(4, 8)
    x = torch.arange(8.0)
    launch = Launch.of(scale_kernel, 1, x, whole[2], 8, outputs=(whole[2, 1:3], whole))
    part, same = launch.run()
    assert part.tolist() == [2.0, 4.0]
    assert same is whole
    assert torch.equal(whole[2], 2 * x)
    assert not whole[[0, 1, 3]].any()


def test_a_launch_may_have_no_outputs() -> None:
    """A kernel may only print."""
    x, output = tensors()
    assert Launch.of(scale_kernel, 1, x, output, 8, outputs=()).run() == ()


def test_an_output_may_have_no_elements() -> None:
    x = torch.empty(0)
    output = torch.empty(0)
    launch = Launch.of(scale_kernel, 1, x, output, 0, outputs=output)
    assert launch.run()[0].shape == (0,)


def test_a_launch_without_steps_runs() -> None:
    output = torch.ones(0, 3)
    launch = Launch((), (output,), work=Work(0, 0))
    assert launch.run() == (output,)
    assert repr(launch) == "Launch(nothing to do -> float32[0, 3])"
    with pytest.raises(ArgumentTypeError, match=r"outputs\[0\]: got a str"):
        Launch((), ("output",)).run()  # type: ignore[arg-type]  # what is refused


def test_steps_run_in_order() -> None:
    x, y, z = torch.arange(8.0), torch.zeros(8), torch.zeros(8)
    first = Step(scale_kernel, (1,), (x, y, 8, 3.0))
    second = Step(scale_kernel, (1,), (y, z, 8, 10.0))
    assert torch.equal(Launch((first, second), (z,)).run()[0], 30 * x)
    y.zero_()
    assert not Launch((second, first), (z,)).run()[0].any()


def test_accumulators_are_zeroed_on_each_run() -> None:
    x, total = torch.ones(8), torch.full((1,), 5.0)
    launch = Launch.of(add_into_kernel, 1, x, total, 8, outputs=total, accumulators=(total,))
    assert total.item() == 5.0
    assert [launch.run()[0].item() for _ in range(3)] == [8.0, 8.0, 8.0]
    launch.reset()
    assert total.item() == 0.0
    without = Launch.of(add_into_kernel, 1, x, total, 8, outputs=total)
    assert [without.run()[0].item() for _ in range(3)] == [8.0, 16.0, 24.0]


def test_a_step_built_by_hand_is_checked_when_it_runs() -> None:
    x, output = tensors()
    for bad in (Step(scale_kernel, (0,), (x, output, 8)), Step(scale_kernel, (1,), (x,))):
        with pytest.raises(InvalidArgumentError):
            Launch((bad,), (output,)).run()
    assert output.isnan().all()


def test_a_launch_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch does not change, so later runs, which may be measured, repeat no check."""
    count = {"check": 0, "check_place": 0}
    for name in count:
        whole = getattr(Step, name)

        def counted(self: Step, name: str = name, whole: Callable[[Step], None] = whole) -> None:
            count[name] += 1
            whole(self)

        monkeypatch.setattr(Step, name, counted)
    x, output = tensors()
    launch = Launch.of(scale_kernel, 1, x, output, 8, outputs=output)
    for _ in range(5):
        launch.run()
    assert count == {"check": 1, "check_place": 1}


def test_launches_are_plain_data() -> None:
    """Launches are compared by identity, since tensors compare by element, and cannot be changed."""
    x, output = tensors()
    launch = Launch.of(scale_kernel, 1, x, output, 8, outputs=output, num_warps=4)
    again = Launch.of(scale_kernel, 1, x, output, 8, outputs=output, num_warps=4)
    assert launch == launch
    assert launch != again
    assert len({launch, again, launch.steps[0], again.steps[0]}) == 4
    with pytest.raises(AttributeError):
        launch.outputs = ()  # type: ignore[misc]  # what is refused
    with pytest.raises(TypeError):
        launch.steps[0].meta["num_warps"] = 8  # type: ignore[index]  # what is refused
    meta = {"num_warps": 4}
    step = Step(scale_kernel, (1,), (x, output, 8), meta)
    meta["num_warps"] = 8
    assert step.meta["num_warps"] == 4


def test_repr_is_short_and_stable() -> None:
    """A notebook's cell may end with a launch, so the repr has no values and no addresses."""
    x, output = torch.zeros(4, 1000, dtype=torch.bfloat16), torch.zeros(4000)
    launch = Launch.of(scale_kernel, (2, 3), x, output, 8, outputs=output, num_warps=4)
    assert repr(launch) == (
        "Launch(scale_kernel[(2, 3)](x=bfloat16[4, 1000], output=float32[4000], n=8, factor=2.0, "
        "BLOCK_SIZE=8, num_warps=4) -> float32[4000])"
    )
    for function in (double, plain_function):
        step = Step(function_kernel, (1,), (output,), {"FUNCTION": function})
        assert repr(step) == f"function_kernel[(1,)](x=float32[4000], FUNCTION={function.__name__})"
    descriptor = TensorDescriptor(output.reshape(4, 1000), [4, 1000], [1000, 1], [4, 8])
    step = Step(negate_kernel, (1,), ((x, [descriptor, 3]), tl.float32))
    assert repr(step) == (
        "negate_kernel[(1,)](x=(bfloat16[4, 1000], (TensorDescriptor(float32[4, 1000]), 3)), BLOCK_SIZE=fp32)"
    )


def test_a_step_lists_its_tensors_by_name() -> None:
    x, y, z = torch.zeros(2), torch.ones(2), torch.zeros(4, 16)
    descriptor = TensorDescriptor(z, [4, 16], [16, 1], [4, 8])
    step = Step(scale_kernel, (1,), ((x, (y, 3)), descriptor, 8), {"factor": x})
    assert [id(tensor) for tensor in step.tensors()] == [id(x), id(y), id(z), id(x)]
    assert {name: id(tensor) for name, tensor in step.memory().items()} == {
        "x[0]": id(x), "x[1]": id(y), "output": id(z), "factor": id(x),
    }  # fmt: skip
    assert (step.name, step.file) == ("scale_kernel", __file__)


@pytest.mark.parametrize(
    ("flops", "moved", "kind", "message"),
    [
        (1.5, 1, ArgumentTypeError, "flops: got 1.5, a float"),
        (True, 1, ArgumentTypeError, "flops: got True, a bool"),
        (1, None, ArgumentTypeError, "bytes: got None, a NoneType"),
        (-1, 1, InvalidArgumentError, "flops: got -1"),
        (1, -8, InvalidArgumentError, "bytes: got -8"),
    ],
)
def test_work_refuses_fractions_and_negative_numbers(
    flops: Any, moved: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Work(flops, moved)


def test_arithmetic_intensity_is_flops_by_bytes() -> None:
    assert Work(flops=6, bytes=12).intensity == 0.5
    assert Work(flops=0, bytes=12).intensity == 0.0
    assert math.isinf(Work(flops=6, bytes=0).intensity)
    assert Work(6, 12) == Work(6, 12)


# Kernels that fail, each at the marked line; frames below it are Triton's.


@triton.jit
def name_kernel(x):
    tl.store(x, no_such_name)  # fails  # noqa: F821  # the learner's slip


@triton.jit
def shape_kernel(x):
    i = tl.arange(0, 8)
    tl.store(x + i, tl.load(x + i) + tl.arange(0, 4))  # fails


@triton.jit
def static_assert_kernel(x, N: tl.constexpr):
    tl.static_assert(N == 4, "N must be 4")  # fails


@triton.jit
def assert_kernel(x, N: tl.constexpr):
    assert N == 4, "N has to be 4"  # fails


@triton.jit
def division_kernel(x, N: tl.constexpr):
    tl.store(x, 1 // (N - 8))  # fails


@triton.jit
def range_kernel(x):
    i = tl.arange(0, 7)  # fails
    tl.store(x + i, i)


@triton.jit
def attribute_kernel(x):
    tl.store(x, tl.no_such_function(x))  # fails


@triton.jit
def bounds_kernel(x):
    i = tl.arange(0, 16)
    tl.store(x + i, i)  # fails


@triton.jit
def broken_helper(value):
    return value + no_such_name  # fails  # noqa: F821  # the learner's slip


@triton.jit
def helper_kernel(x):
    tl.store(x, broken_helper(tl.load(x)))


@triton.jit
def library_kernel(x):
    i, valid = transfer.tile_1d(0, 8, 8)
    transfer.store(x, i, "text", valid)  # fails


FAILURES = {
    name_kernel: (name_kernel, "NameError: name 'no_such_name' is not defined"),
    shape_kernel: (shape_kernel, "ValueError: Cannot make_shape_compatible: incompatible dimensions"),
    static_assert_kernel: (static_assert_kernel, "AssertionError: N must be 4"),
    assert_kernel: (assert_kernel, "AssertionError: N has to be 4"),
    division_kernel: (division_kernel, "ZeroDivisionError: integer division or modulo by zero"),
    range_kernel: (range_kernel, "ValueError: arange's range must be a power of 2"),
    attribute_kernel: (attribute_kernel, "AttributeError: module 'triton.language' has no attribute"),
    bounds_kernel: (bounds_kernel, "writes outside x: element 8 of a tensor with 8"),
    helper_kernel: (broken_helper, "NameError: name 'no_such_name' is not defined"),
    library_kernel: (library_kernel, "AttributeError: 'str' object has no attribute 'to'"),
}


def failing_line(kernel: Any) -> tuple[int, str]:
    lines, first = inspect.getsourcelines(kernel.fn)
    (found,) = [(first + i, line.strip()) for i, line in enumerate(lines) if "# fails" in line]
    return found


@pytest.mark.parametrize("kernel", FAILURES, ids=lambda kernel: kernel.fn.__name__)
def test_the_learners_own_line_is_shown(kernel: Any) -> None:
    where, reason = FAILURES[kernel]
    meta: dict[str, Any] = {"N": 8} if "N" in inspect.signature(kernel.fn).parameters else {}
    with pytest.raises(KernelError) as caught:
        Launch.of(kernel, 1, torch.zeros(8), outputs=(), **meta).run()
    error = caught.value
    line, text = failing_line(where)
    assert (error.kernel, error.file, error.line) == (kernel.fn.__name__, __file__, line)
    assert error.reason.startswith(reason)
    within = "" if where is kernel else f", in {where.fn.__name__}"
    file = f" ({__file__})" if within else ""
    assert str(error).startswith(f"kernel {kernel.fn.__name__}{within}, line {line}{file}: {reason}")
    assert f"\n    {text}" in str(error)
    assert "InterpreterError" not in str(error)


CELL = """\
import triton
import triton.language as tl


@triton.jit
def scale(x, factor):
    return factor * x.undefined


@triton.jit
def cell_kernel(x, DEEP: tl.constexpr):
    i = tl.arange(0, 8)
    if DEEP:
        tl.store(x + i, scale(tl.load(x + i), 3))
    tl.store(x + i + 1, 0)
"""


@pytest.fixture
def cell_kernel() -> Iterator[Any]:
    """Yield a kernel as a notebook defines it: its source is in `linecache` only."""
    name = "<cell 12>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), namespace)
    yield namespace["cell_kernel"]
    del linecache.cache[name]


def test_an_error_shows_the_line_of_a_notebook_cell(cell_kernel: Any) -> None:
    x = torch.zeros(8)
    with pytest.raises(OutOfBoundsError) as caught:
        Launch.of(cell_kernel, 1, x, outputs=x, DEEP=False).run()
    assert (caught.value.file, caught.value.line) == ("<cell 12>", 15)
    assert "\n    tl.store(x + i + 1, 0)\n" in str(caught.value)
    with pytest.raises(KernelError) as caught_inside:
        Launch.of(cell_kernel, 1, x, outputs=x, DEEP=True).run()
    assert (caught_inside.value.line, caught_inside.value.kernel) == (7, "cell_kernel")
    assert "AttributeError" in str(caught_inside.value)
    assert "return factor * x.undefined" in str(caught_inside.value)


FUNCTORS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def undefined(tile, operands, place):
    return tile * undefined_thing


@triton.jit
def misses(tile, operands, place):
    return tile + operands[3]


@triton.jit
def asserts(tile, operands, place):
    tl.static_assert(tile.shape[0] == 3, "three rows")
    return tile


@triton.jit
def calls_torch(tile, operands, place):
    return torch.relu(tile)


@triton.jit
def helper(x):
    return x.undefined


@triton.jit
def calls_helper(tile, operands, place):
    return helper(tile)


@triton.jit
def calls_wrongly(tile, operands, place):
    return helper(tile, tile)


@triton.jit
def of_two(tile, operands):
    return tile
"""

IN_FUNCTORS = {
    "undefined": ("undefined", 8, "NameError: name 'undefined_thing' is not defined"),
    "misses": ("misses", 13, "IndexError: "),
    "asserts": ("asserts", 18, "AssertionError: three rows"),
    "calls_torch": ("calls_torch", 24, "TypeError: relu()"),
    "calls_helper": ("helper", 29, "AttributeError: 'tensor' object has no attribute 'undefined'"),
    "calls_wrongly": ("calls_wrongly", 39, "TypeError: helper() takes 1 positional argument but 2 were"),
    "of_two": ("of_two", 43, "TypeError: of_two() takes 2 positional arguments but 3 were given"),
}


@pytest.fixture
def functors() -> Iterator[dict[str, Any]]:
    """Yield functions, defined in a notebook's cell, to pass to a kernel of the workbench."""
    name = "<cell 13>"
    linecache.cache[name] = (len(FUNCTORS), None, FUNCTORS.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(FUNCTORS, name, "exec"), namespace)
    yield namespace
    del linecache.cache[name]


@pytest.mark.parametrize("name", IN_FUNCTORS)
def test_an_error_in_the_readers_functor_shows_its_line(functors: dict[str, Any], name: str) -> None:
    """A function that could not even be called has no line that ran: its `def` is shown."""
    function, line, reason = IN_FUNCTORS[name]
    a = torch.ones(16, 16)
    with pytest.raises(KernelError) as caught:
        gemm.launch(a, a, epilogue=relu() | own(functors[name])).run()
    error = caught.value
    assert (error.kernel, error.function) == ("gemm_kernel", function)
    assert (error.file, error.line) == ("<cell 13>", line)
    assert error.reason.startswith(reason)
    text = FUNCTORS.splitlines()[line - 1].strip()
    assert str(error) == (
        f"kernel gemm_kernel, in {function}, line {line} (<cell 13>): {error.reason}\n    {text}"
    )


def test_an_error_in_the_readers_functor_in_a_worker_shows_its_line(functors: dict[str, Any]) -> None:
    a = torch.ones(16, 16)
    with pytest.raises(KernelError, match=r"in undefined, line 8 \(<cell 13>\): NameError"):
        interpret(gemm.launch(a, a, epilogue=own(functors["undefined"])))


def test_an_error_in_a_function_without_text_is_named(functors: dict[str, Any]) -> None:
    linecache.cache["<cell 13>"] = (0, None, [], "<cell 13>")
    a = torch.ones(16, 16)
    with pytest.raises(KernelError, match=r"in undefined, line 8 \(<cell 13>\): NameError: .*defined$"):
        gemm.launch(a, a, epilogue=own(functors["undefined"])).run()
    with pytest.raises(KernelError, match=r"in of_two, line 42 \(<cell 13>\): TypeError: .*given$"):
        gemm.launch(a, a, epilogue=own(functors["of_two"])).run()


def test_errors_outside_the_readers_functions_show_the_kernels_line() -> None:
    """The reader cannot repair errors inside the workbench's own functions."""
    a = torch.ones(16, 16)
    launch = gemm.launch(a, a, epilogue=relu())
    (step,) = launch.steps
    constants = dict(step.meta) | {
        "EPILOGUE": (epilogue.FunctorConstants(epilogue.add),)
    }  # without the operand that it adds
    with pytest.raises(KernelError) as caught:
        Step(step.kernel, step.grid, step.args, constants).run()
    assert caught.value.file == kernel.__file__
    assert caught.value.source is not None
    assert "epilogue.applied(" in caught.value.source


OUTSIDE = """\
import triton
import triton.language as tl


@triton.jit
def store_beside(x, i):
    tl.store(x + i + 1, 0)
"""


def test_an_access_outside_in_another_cell_shows_its_line() -> None:
    name, namespace = "<cell 14>", {"__name__": "__main__"}
    linecache.cache[name] = (len(OUTSIDE), None, OUTSIDE.splitlines(keepends=True), name)
    exec(compile(OUTSIDE, name, "exec"), namespace)
    x = torch.zeros(8)
    with pytest.raises(OutOfBoundsError) as caught:
        Launch.of(given_kernel, 1, x, outputs=x, FUNCTION=namespace["store_beside"]).run()
    del linecache.cache[name]
    error = caught.value
    assert (error.kernel, error.function, error.file, error.line) == ("given_kernel", "store_beside", name, 7)
    assert str(error).startswith(
        "kernel given_kernel, in store_beside, line 7 (<cell 14>): writes outside x: element 8"
    )
    assert "\n    tl.store(x + i + 1, 0)\n" in str(error)


@triton.jit
def given_kernel(x, FUNCTION: tl.constexpr):
    FUNCTION(x, tl.arange(0, 8))


def test_a_notebook_shows_the_readers_lines_only(cell_kernel: Any) -> None:
    x = torch.zeros(8)
    launch = Launch.of(cell_kernel, 1, x, outputs=x, DEEP=True)
    with pytest.raises(KernelError) as caught:
        launch.run()
    shown = "".join(caught.value._render_traceback_())
    assert f'File "{__file__}"' in shown
    assert "launch.run()" in shown
    assert len(re.findall(r'File "', shown)) == 1
    assert shown.endswith(f"KernelError: {caught.value}")


def test_an_error_keeps_no_exception_of_the_interpreter() -> None:
    """No chain of causes is printed in a script either; the message says everything."""
    with pytest.raises(KernelError) as caught:
        Launch.of(name_kernel, 1, torch.zeros(1), outputs=()).run()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_interrupt_of_a_kernel_is_not_a_kernel_error() -> None:
    """KeyboardInterrupt, which Jupyter's stop button raises, is passed on as it is."""

    def stop(access: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Step(negate_kernel, (1,), (torch.zeros(8), 8)).run(observer=stop)


def test_launch_can_be_copied() -> None:
    x, output = tensors()
    launch = Launch.of(scale_kernel, 1, x, output, 8, outputs=output)
    again = copy.copy(launch)
    assert torch.equal(again.run()[0], 2 * x)


@triton.jit
def unmasked_copy_kernel(x, output, BLOCK_SIZE: tl.constexpr):
    i = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(x + i))


@triton.jit
def plane_kernel(x, output, rows, columns, row_stride, column_stride, TILE: tl.constexpr):
    """output = x + 1, without a mask for the rows."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    tile = tl.load(x + row * row_stride + column * column_stride, mask=column < columns)
    tl.store(output + row * columns + column, tile + 1, mask=column < columns)


@triton.jit
def endless_kernel(output):
    count = 0
    while count >= 0:
        count = count * 1
    tl.store(output, count)


@triton.jit
def pair_kernel(pair, output, BLOCK_SIZE: tl.constexpr):
    i = tl.arange(0, BLOCK_SIZE)
    tl.store(output + i, tl.load(pair[0] + i) + tl.load(pair[1] + i))


def error_of(run: Callable[[], object]) -> KernelError:
    with pytest.raises(KernelError) as caught:
        run()
    return caught.value


def called_and_launched(kernel: Any, grid: Any, *args: Any, **meta: Any) -> tuple[KernelError, KernelError]:
    """Return two errors: of a kernel that is called by Triton's syntax, and of the same call as a Launch."""
    plain = kernel.fn if isinstance(kernel, triton.runtime.Autotuner | triton.runtime.Heuristics) else kernel
    chosen = meta if plain is kernel else {**meta, "BLOCK_SIZE": 8}
    launch = Launch.of(plain, grid, *args, outputs=args[1], **chosen)
    return error_of(lambda: kernel[grid](*args, **meta)), error_of(launch.run)


def test_a_kernel_called_with_tritons_syntax_is_guarded() -> None:
    """The error names line, program and element, and nothing beyond the tensor is touched."""
    memory = torch.full((200,), 7.0)
    x, output = torch.arange(10.0), memory[50:60]
    called, launched = called_and_launched(unmasked_copy_kernel, (30,), x, output, BLOCK_SIZE=4)
    assert isinstance(called, OutOfBoundsError)
    assert str(called) == str(launched)
    assert "program (2, 0, 0)" in str(called)
    assert "outside x: element 10 of a tensor with 10" in str(called)
    assert called.source is not None
    assert "tl.load(x + i)" in called.source
    assert (memory[:50] == 7).all()
    assert (memory[60:] == 7).all()


@pytest.mark.parametrize(
    "kernel",
    [
        triton.autotune(configs=[triton.Config({"BLOCK_SIZE": 8})], key=[])(unmasked_copy_kernel),
        triton.heuristics({"BLOCK_SIZE": lambda arguments: 8})(unmasked_copy_kernel),
    ],
    ids=["autotuned", "heuristic"],
)
def test_a_wrapped_kernel_is_guarded(kernel: Any) -> None:
    x, output = torch.arange(16.0), torch.zeros(16)
    kernel[(2,)](x, output)
    assert torch.equal(output, x)
    called, launched = called_and_launched(kernel, (3,), x, output)
    assert isinstance(called, OutOfBoundsError)
    assert str(called) == str(launched)


def test_a_grid_that_is_a_function_is_guarded() -> None:
    x, output = torch.arange(16.0), torch.zeros(16)
    unmasked_copy_kernel[lambda meta: (triton.cdiv(16, meta["BLOCK_SIZE"]),)](x, output, BLOCK_SIZE=4)
    assert torch.equal(output, x)
    with pytest.raises(OutOfBoundsError, match=r"element 16 of a tensor with 16.*program \(4, 0, 0\)"):
        unmasked_copy_kernel[lambda meta: (5,)](x, output, BLOCK_SIZE=4)


def test_a_plane_of_programs_is_guarded_on_strided_views() -> None:
    """The view is transposed, begins inside its storage, and has gaps."""
    storage = torch.arange(400.0).reshape(20, 20)
    x, output = storage[2:18:2, 4:12].T, torch.zeros(8, 8)
    before = storage.clone()
    plane_kernel[(2, 2)](x, output, 8, 8, *x.stride(), TILE=4)
    assert torch.equal(output, x + 1)
    with pytest.raises(OutOfBoundsError, match=r"outside output: element 64 .* program \(2, 0, 0\)"):
        plane_kernel[(3, 2)](x, output, 8, 8, *x.stride(), TILE=4)
    with pytest.raises(OutOfBoundsError, match=r"outside x: element 320 .* program \(0, 2, 0\)"):
        plane_kernel[(1, 3)](x, torch.zeros(8, 12), 8, 12, *x.stride(), TILE=4)
    assert torch.equal(storage, before)


def test_keywords_in_another_order_than_parameters_reach_their_tensors() -> None:
    x, output = torch.arange(4.0), torch.zeros(4)
    unmasked_copy_kernel[(1,)](BLOCK_SIZE=4, output=output, x=x, num_warps=4)
    assert torch.equal(output, x)
    with pytest.raises(OutOfBoundsError, match="outside x: element 4 of a tensor with 4"):
        unmasked_copy_kernel[(1,)](BLOCK_SIZE=8, output=torch.zeros(8), x=x)


def test_tuples_repeated_tensors_and_empty_tensors_are_guarded() -> None:
    x, output = torch.arange(8.0), torch.zeros(8)
    pair_kernel[(1,)]((x, x), output, BLOCK_SIZE=8)
    assert torch.equal(output, 2 * x)
    with pytest.raises(OutOfBoundsError, match="element 8 of a tensor with 8"):
        pair_kernel[(1,)]((x, x), output, BLOCK_SIZE=16)
    unmasked_copy_kernel[(1,)](x, x, BLOCK_SIZE=8)
    with pytest.raises(OutOfBoundsError, match="element 8 of a tensor with 8"):
        unmasked_copy_kernel[(1,)](x, x, BLOCK_SIZE=16)
    with pytest.raises(OutOfBoundsError, match="outside x: element 0 of a tensor with 0"):
        unmasked_copy_kernel[(1,)](torch.zeros(0), output, BLOCK_SIZE=8)


def test_tritons_own_errors_about_arguments_are_not_changed() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'output'"):
        unmasked_copy_kernel[(1,)](torch.zeros(8), BLOCK_SIZE=8)


@pytest.mark.usefixtures("interrupts")
def test_an_endless_loop_of_a_called_kernel_can_be_interrupted() -> None:
    """The interpreter is restored: the next kernel runs, and is guarded."""
    timer = threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        endless_kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    timer.join()
    x, output = torch.arange(8.0), torch.zeros(8)
    unmasked_copy_kernel[(1,)](x, output, BLOCK_SIZE=8)
    assert torch.equal(output, x)
    with pytest.raises(OutOfBoundsError):
        unmasked_copy_kernel[(2,)](x, output, BLOCK_SIZE=8)


def test_a_fake_tensor_of_a_called_kernel_is_refused() -> None:
    with FakeTensorMode():
        x = torch.zeros(8)
    with pytest.raises(TracingError, match="no memory"):
        unmasked_copy_kernel[(1,)](x, x, BLOCK_SIZE=8)
