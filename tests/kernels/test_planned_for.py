"""A launch made for a named device is the same on a machine with any GPU, or with none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from tests.machines import A100, H100, MI300X, RTX_5090
from workbench import compat, device, explore, ops, profiler, teach, tune
from workbench.coords import naive
from workbench.errors import ArgumentTypeError, UnknownNameError
from workbench.kernels import attention, gemm
from workbench.kernels.attention import CAUSAL, Scoring
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.choosing import attention as of_attention
from workbench.kernels.choosing import gemm as of_gemm
from workbench.kernels.convolution import implicit_gemm, pooling
from workbench.kernels.options import options_of
from workbench.kernels.rows import normalization, softmax
from workbench.kernels.views import View
from workbench.launch import Launch, Step
from workbench.operators import Accuracy, OperatorSpec, given, instances_of, register, specs
from workbench.operators.spec import list_instances
from workbench.runtime.replay import start
from workbench.teach import mutants
from workbench.teach.definition import Definition
from workbench.teach.rungs import gemm_ladder
from workbench.viz.gemm.tile_explorer import TileConfiguration

SPECS = specs()

MACHINES = {"H100": H100, "A100": A100, "RTX 5090": RTX_5090, "MI300X": MI300X}
TARGETS = ("sm_90", "sm_80", "gfx942")


def described(value: Any) -> Any:
    """Return a comparable form: a kernel's name, a tensor's dtype, shape and strides, otherwise the repr."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if compat.is_kernel(value):
        return value.__name__
    if isinstance(value, tuple | list):
        return [described(each) for each in value]
    if isinstance(getattr(value, "base", None), torch.Tensor):  # a tensor descriptor
        return {name: described(each) for name, each in vars(value).items()}
    return repr(value)


def steps_of(launch: Launch) -> list[Any]:
    return [
        (step.name, step.grid, described(step.args), {name: described(v) for name, v in step.meta.items()})
        for step in launch.steps
    ]


@pytest.fixture(params=MACHINES)
def on_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that puts this process on one of the machines; kernels stay interpreted."""
    monkeypatch.setattr(Step, "check_place", lambda self: None)
    return lambda: monkeypatch.setattr(device, "current", lambda: MACHINES[request.param])


def halves(*shape: int) -> torch.Tensor:
    """Return an fp16 tensor whose memory is never read."""
    return torch.empty(shape, dtype=torch.float16)


def shipped_product(m: int, n: int, k: int) -> Launch:
    a, b, output = halves(m, k), halves(k, n), halves(m, n)
    return gemm.launch(a, b, output=output, **of_gemm.chosen(a, b, output, "ieee").keywords)


def shipped_attention(*lengths: int, heads: int = 16, window: attention.Window = CAUSAL) -> Launch:
    queries, keys = lengths
    query, key = halves(1, heads, queries, 64), halves(1, 4, keys, 64)
    scoring = Scoring(window=window)
    chosen = options_of(of_attention.forward(query, key, key, scoring))
    return attention.launch(query, key, key, scoring, **chosen)


def backward_of_attention(columns: int) -> Launch:
    gradient, query, key, value, output = (halves(1, 2, 256, columns) for _ in range(5))
    return attention_backward.launch(gradient, query, key, value, output, torch.empty(1, 2, 256))


def backward_of_norm(rows: int, cols: int) -> Launch:
    x, weight = halves(rows, cols), halves(cols)
    forward = normalization.launch("layer_norm", x, 1, weight, epsilon=1e-5, with_statistics=True)
    return normalization.launch_backward("layer_norm", x, x, 1, weight, forward.outputs[1:])


def described_product(m: int, n: int, k: int) -> Launch:
    views = [
        View(halves(*shape), naive(shape, (shape[1], 1), names=("row", "col")), {})
        for shape in ((m, k), (k, n), (m, n))
    ]
    return implicit_gemm.launch(*views)


def shipped_pooling() -> Launch:
    x, output = halves(2, 64, 28, 28), halves(2, 64, 14, 14)
    pool = pooling.Pool((28, 28), (14, 14), (3, 3), (2, 2), (1, 1))
    return pooling.launch("average", x, (output,), pool=pool)


# Launches whose tiles, splits, programs, overlap, options or templates depend on the device.
MADE: dict[str, Callable[[], Launch]] = {
    "a product that is split": lambda: gemm.launch(halves(512, 512), halves(512, 512), tile=(128, 256, 64)),
    "a product without a tile": lambda: gemm.launch(halves(700, 512), halves(512, 900)),
    "persistent programs": lambda: gemm.launch(
        halves(2048, 64), halves(64, 2048), tile=(64, 64, 32), template="persistent", splits=1
    ),
    "Stream-K": lambda: gemm.launch(
        halves(1100, 512), halves(512, 1100), tile=(64, 64, 32), template="stream-k"
    ),
    "packed first": lambda: gemm.launch(halves(100, 101), halves(101, 103), pack=True, splits=1),
    "the product that ships": lambda: shipped_product(4096, 4096, 4096),
    "the product that ships, of few rows": lambda: shipped_product(8, 4096, 4096),
    "attention that ships": lambda: shipped_attention(4096, 4096),
    "decoding that ships": lambda: shipped_attention(1, 8192),
    "attention, shared by programs": lambda: attention.launch(
        halves(1, 1, 16, 64), halves(1, 1, 4096, 64), halves(1, 1, 4096, 64)
    ),
    "attention backward": lambda: backward_of_attention(128),
    "a rung": lambda: gemm_ladder.persistent(halves(4096, 64), halves(64, 4096), halves(4096, 4096)),
    "pooling": shipped_pooling,
    "a described product without a tile": lambda: described_product(700, 900, 512),
    "gradients of a norm": lambda: backward_of_norm(4096, 512),
    "softmax": lambda: softmax.launch("softmax", halves(4, 2**20), dim=-1),
    "softmax in registers": lambda: softmax.launch("softmax", halves(4096, 16384), dim=-1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MADE)
def test_a_launch_for_a_target_is_the_same_on_any_machine(
    name: str, target: str, on_machine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with device.planning_for(target):
        expected = steps_of(MADE[name]())
    on_machine()
    monkeypatch.setattr(device, "is_interpreter", lambda: False)
    with device.planning_for(target):
        assert steps_of(MADE[name]()) == expected


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", MADE)
def test_a_launch_for_a_target_equals_the_launch_on_that_gpu(
    name: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device.planning_for(MACHINES[machine].architecture):
        expected = steps_of(MADE[name]())
    monkeypatch.setattr(device, "current", partial(device.named, MACHINES[machine].architecture))
    assert steps_of(MADE[name]()) == expected


@pytest.mark.parametrize("name", MADE)
def test_without_a_target_launches_depend_on_the_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would show nothing."""
    made = [steps_of(MADE[name]())]
    for machine in MACHINES.values():
        monkeypatch.setattr(device, "current", lambda machine=machine: machine)
        made.append(steps_of(MADE[name]()))
    assert any(one != made[0] for one in made[1:])


@pytest.mark.parametrize("name", SPECS)
def test_instances_for_a_target_are_the_same_on_any_machine(
    name: str, on_machine: Callable[[], None]
) -> None:
    """The listed instances and the launch of the shipped one are compared."""
    arguments = profiler.arguments_of(name, {})
    instances = {}
    for target in ("sm_90", "sm_80"):
        with device.planning_for(target):
            found = list_instances(SPECS[name], arguments)
            instances[target] = [each.name for each in found], steps_of(found[0].launch())
    on_machine()
    for target, expected in instances.items():
        with device.planning_for(target):
            found = list_instances(SPECS[name], arguments)
            assert ([each.name for each in found], steps_of(found[0].launch())) == expected


def test_instances_for_a_target_are_the_same_with_and_without_the_interpreter(
    on_machine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter lists Hopper's instances if no device is named."""
    arguments = given(halves(512, 512), halves(512, 512))

    def names() -> list[str]:
        return [each.name for each in list_instances(SPECS["matmul"], arguments)]

    with device.planning_for("gfx942"):
        expected = names()
    on_machine()
    monkeypatch.setattr(device, "is_interpreter", lambda: False)
    with device.planning_for("gfx942"):
        assert names() == expected


def test_parts_of_a_product_are_made_for_the_named_device(on_machine: Callable[[], None]) -> None:
    """The argument `device` reaches the parts of a launch that are launches of their own."""
    a, b = halves(512, 512), halves(512, 513)
    options: list[dict[str, Any]] = [
        {"tile": (128, 256, 64)}, {"pack": True}, {"rows": (0, 256), "rest": {"tile": (64, 64, 64)}}
    ]  # fmt: skip
    expected = [steps_of(gemm.launch(a, b, **each, device="sm_90")) for each in options]
    assert [len(each) for each in expected] == [2, 2, 2]
    on_machine()
    assert [steps_of(gemm.launch(a, b, **each, device="sm_90")) for each in options] == expected
    with device.planning_for("gfx942"):
        assert [steps_of(gemm.launch(a, b, **each, device="sm_90")) for each in options] == expected


def test_unknown_devices_are_refused() -> None:
    a = halves(16, 16)
    with pytest.raises(UnknownNameError, match="sm_9O"):
        gemm.launch(a, a, device="sm_9O")
    with pytest.raises(ArgumentTypeError, match="device"):
        gemm.launch(a, a, device=90)  # type: ignore[arg-type]  # refused at run time too
    with pytest.raises(UnknownNameError, match="H200"), device.planning_for("H200"):
        pass
    assert device.planned() is device.current()


def fail_while_planning() -> None:
    with device.planning_for("gfx942") as cdna:
        assert (device.planned(), cdna.kind, cdna.compute_units, cdna.warp_size) == (cdna, "hip", 304, 64)
        raise ZeroDivisionError


def test_planning_nests_and_ends_on_errors() -> None:
    with device.planning_for("sm_90") as hopper:
        assert (hopper.kind, hopper.compute_units, hopper.warp_size) == ("cuda", 132, 32)
        with pytest.raises(ZeroDivisionError):
            fail_while_planning()
        assert device.planned() is hopper
        with device.planning_for(None) as here:
            assert here is device.current()
        assert device.planned() is hopper
    assert device.planned() is device.current()


def test_another_thread_plans_for_its_own_device() -> None:
    with device.planning_for("sm_90"), ThreadPoolExecutor(1) as threads:
        assert threads.submit(device.planned).result() is device.current()


def test_calls_are_planned_for_the_device_that_runs_them() -> None:
    """Otherwise a call would start kernels that were chosen for an absent GPU."""
    a, b = (torch.randn(64, 64) for _ in range(2))
    seen = []

    def make(*tensors: torch.Tensor) -> Launch:
        seen.append(device.planned())
        return gemm.launch(*tensors)

    with device.planning_for("gfx942"):
        torch.testing.assert_close(ops.matmul(a, b), a @ b)
        start(make, a, b)
    assert seen == [device.current()]


def test_candidates_of_the_tuner_are_made_for_the_target(on_machine: Callable[[], None]) -> None:
    """The planned device is the target in each call, whatever GPU the machine has."""
    x = torch.ones(4, 64)
    planned = []

    def make(**candidate: Any) -> Launch:
        planned.append(device.planned().architecture)
        return softmax.launch("softmax", x, dim=-1, tile=(1, 64), **candidate)

    tune.prune(make, [{"num_warps": 1}, {"num_warps": 2}], "sm_80", progress=False)
    tune.prune(make, [{"num_warps": 1}], "gfx942", progress=False)
    assert planned == ["sm_80", "sm_80", "gfx942"]
    a, b = halves(16, 32), halves(32, 16)
    expected = tune.prune_gemm(a, b, target="sm_80", progress=False)
    on_machine()
    assert str(tune.prune_gemm(a, b, target="sm_80", progress=False)) == str(expected)


def test_a_profile_is_planned_for_its_target() -> None:
    x = torch.ones(4, 64)
    planned = []

    def instances(input: torch.Tensor) -> list[Any]:
        planned.append(device.planned().architecture)
        return instances_of(partial(softmax.launch, "softmax", input, dim=-1), {}, ({"num_warps": 1},))

    register(
        OperatorSpec(
            "softmax_of_a_test",
            lambda input: input.softmax(-1),
            case={},
            arguments=lambda draw: given(x),
            instances=instances,
            accuracy=lambda input: (Accuracy(input.shape[1]),),
            dtypes=("fp32",),
        ),
    )
    profiler.profile("softmax_of_a_test", given(x), target="gfx942", progress=False)
    profiler.profile("softmax_of_a_test", given(x), progress=False)
    assert planned == ["gfx942", "interpreter"]


def test_the_tile_explorer_shows_the_same_on_any_machine(on_machine: Callable[[], None]) -> None:
    tile = TileConfiguration(target="sm_80", template="persistent")
    shape = (2048, 2048, 512)
    expected = explore.tiles.tile(tile, shape)
    on_machine()
    found = explore.tiles.tile(tile, shape)
    # The second compilation is found in a cache, so it is the same object.
    assert found.step is expected.step
    assert found.at_a_time == expected.at_a_time


@pytest.mark.parametrize(
    "exercise", [each for each in teach.exercises() if each.returns_launch], ids=lambda each: each.id
)
def test_solutions_are_planned_the_same_on_any_machine(
    exercise: Definition, on_machine: Callable[[], None]
) -> None:
    """Checks of exercises name no device, yet trace and compile the same launch everywhere."""
    solve = mutants.build(exercise, exercise.solution_source(), f"<{exercise.id}>")
    inputs = [case.inputs() for case in exercise.cases]
    expected = [steps_of(solve(*each)) for each in inputs]
    on_machine()
    assert [steps_of(solve(*each)) for each in inputs] == expected
