"""The template "ping-pong": the choice of one of its kernels for a product on Hopper, and its step.

`hopper_pairs` and `hopper_wide` are imported in the functions that need them, here and in `checks` and
`choosing.gemm`: Gluon reads the source of each kernel at its import, which takes 20 ms of each program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import triton

from workbench.errors import InvalidArgumentError, check_type
from workbench.kernels.gemm import hopper as gemm_hopper
from workbench.kernels.gemm.descriptors import Described, descriptor_of
from workbench.kernels.gemm.placement import Placement
from workbench.kernels.gemm.plan import Plan
from workbench.kernels.gemm.request import GemmRequest
from workbench.kernels.tile import order
from workbench.launch import Launch, Step


class Turns(NamedTuple):
    """A kernel of the template, chosen for a product.

    Attributes:
        kernel: from `hopper`, `hopper_pairs` or `hopper_wide`. meta: meta-parameters that only it has.
        number: number of tiles, or, for the kernel of `hopper_pairs`, of pairs of tiles.
    """

    kernel: Any
    meta: dict[str, Any]
    number: int


class Sums(NamedTuple):
    """The properties of a product on which the choice of a kernel depends.

    Attributes:
        tile: m, n and k. tiles_n: tiles in a row of tiles. number: all tiles. rounds: the most tiles of one
            program.
        steps: steps along K. stages: buffers of A and of B.
        programs: programs that may run at one time.
        brought: number of the epilogue's tensors that are prefetched.
        may_add: whether the prefetched tensors may be added to the sums before the last products.
        evict_first: whether the prefetched tensors leave the L2 cache first.
    """

    tile: tuple[int, int, int]
    tiles_n: int
    number: int
    rounds: int
    steps: int
    stages: int
    programs: int
    brought: int
    may_add: bool
    evict_first: bool

    @property
    def is_long(self) -> bool:
        """True if a tile has so many products that they hide the loads of the epilogue's tensors."""
        return self.tile[:2] == gemm_hopper.LARGE_TILE and self.steps >= gemm_hopper.FEWEST_LONG_STEPS

    @property
    def begins(self) -> bool:
        """True if a program's second tile begins as the sum of the prefetched tensors, and ends by halves."""
        return (
            self.may_add
            and self.is_long
            and self.rounds == 2
            and self.stages > gemm_hopper.TAIL.value
            and self.tile[2] == gemm_hopper.BLOCK_K_OF_HALVES
        )

    @property
    def stages_of_pairs(self) -> int:
        """Number of buffers for pairs of tiles: a buffer for a pair has three blocks, of A and two of B."""
        return self.stages * 2 // 3

    @property
    def is_in_pairs(self) -> bool:
        """True if the kernel of `hopper_pairs` is used, where neighboring tiles share blocks of A."""
        from workbench.kernels.gemm import hopper_pairs as gemm_hopper_pairs

        rounds = 2 * triton.cdiv(self.number // 2, self.programs)
        return (
            (self.may_add or not self.brought)
            and self.is_long
            and not self.begins
            and self.tiles_n % 2 == 0
            and self.stages_of_pairs >= gemm_hopper_pairs.FEWEST_STAGES
            and rounds <= gemm_hopper_pairs.MOST_TILES * self.rounds
        )


def ping_pong_step(request: GemmRequest, plan: Plan, placement: Placement) -> Step:
    """Return the only step of a product by the template "ping-pong".

    Raises:
        InvalidArgumentError: tiles of 128 x 192 are given, and K is too short, stages are too few, or tiles
            too
        many.
    """
    (block_m, block_n, block_k), (m, n, k) = plan.tile, placement.problem.sizes
    part = gemm_hopper.ROWS.value, min(block_n, gemm_hopper.PART_COLS.value)
    ahead = gemm_hopper.bring_ahead(
        placement.bound.functors, placement.bound.extras, (m, n), part,
        gemm_hopper.MOST_BROUGHT if plan.num_stages > gemm_hopper.FEWEST_STAGES else 0,
    )  # fmt: skip
    beside = ahead.tensors
    turns = _turns_of(_sums_of(request, plan, len(beside), is_first=ahead.is_first), k)
    programs = min(plan.programs, turns.number)
    if request.schedule.programs is None:
        # The smallest grid that does not increase tiles per program: fewer programs request blocks at one
        # time, and draw less power.
        programs = triton.cdiv(turns.number, triton.cdiv(turns.number, programs))
    of_a, *of_b = _described(request, plan)  # B has one for each part of the tile
    divisors = placement.problem.divisors(
        request.a.element_size(), placement.of_output, request.output.element_size(),
        is_affine=placement.is_affine,
    )  # fmt: skip
    _, _, of_output = divisors.strides
    meta = turns.meta | {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "BESIDE": len(beside),
        "ORDER": order.ORDERS[request.schedule.launch_order], "GROUP": plan.group,
        "EPILOGUE": gemm_hopper.on_hopper(ahead.functors), "PLACE": placement.place,
        "A_TRANSPOSED": of_a.is_transposed, "B_TRANSPOSED": of_b[0].is_transposed,
        "DIVISORS": gemm_hopper.Divisors(divisors.sizes, of_output),
        "WIDE": placement.is_wide(plan.tile, request.output),
        "PRODUCTS": True, "num_warps": gemm_hopper.WARPS,
    }  # fmt: skip
    sources = [
        gemm_hopper.described(one.base, one.shape, one.strides, one.block_shape)
        for one in (of_a.descriptor, *(each.descriptor for each in of_b))
    ]
    none = [None] * (gemm_hopper.MOST_BROUGHT - len(beside))
    arguments = (*sources, *beside, *none, request.output, placement.bound.extras, m, n, k)
    return Step(turns.kernel, (programs,), (*arguments, placement.place_params, turns.number), meta)


def _described(request: GemmRequest, plan: Plan) -> list[Described]:
    """Return descriptors of A and of each part of B."""
    block_m, _, block_k = plan.tile
    blocks = ((request.a, (block_m, block_k)), *((request.b, (block_k, width)) for width in plan.widths))
    return [one for each, block in blocks if (one := descriptor_of(each, block)) is not None]


def _sums_of(request: GemmRequest, plan: Plan, brought: int, *, is_first: bool) -> Sums:
    """Return the properties of a product for which `brought` tensors of the epilogue are prefetched.

    Args:
        is_first: whether these tensors may be added to a sum before the last products.
    """
    block_m, block_n, block_k = plan.tile
    steps, tiles_n = triton.cdiv(request.a.shape[-1], block_k), triton.cdiv(request.shape[-1], block_n)
    number = triton.cdiv(request.height, block_m) * tiles_n
    return Sums(
        plan.tile, tiles_n, number, triton.cdiv(number, plan.programs), steps, plan.num_stages, plan.programs,
        brought,
        # An addition to a large sum loses digits, which a wider output, or very many steps, would show.
        may_add=is_first and request.output.element_size() == 2 and steps <= gemm_hopper.MOST_ADDED_STEPS,
        evict_first=brought > 0 and request.work.bytes <= gemm_hopper.L2_BYTES,
    )  # fmt: skip


def _turns_of(sums: Sums, k: int) -> Turns:
    """Return the kernel for a product with `k` elements along K."""
    from workbench.kernels.gemm import hopper_pairs as gemm_hopper_pairs
    from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

    if sums.tile == gemm_hopper_wide.TILE:
        return _wide(sums, k)
    if sums.is_in_pairs:
        meta = {"STAGES": sums.stages_of_pairs}
        return Turns(gemm_hopper_pairs.gemm_pairs_kernel, meta, sums.number // 2)
    block_m, block_n, block_k = sums.tile
    # If a tile begins as its addends, one buffer of parts is enough: parts are needed long after one another.
    # Otherwise buffers of parts take the place of a stage.
    stages, slots = sums.stages, int(sums.begins)
    if sums.brought and not sums.begins:
        stages -= 1
        part = gemm_hopper.ROWS.value * min(block_n, gemm_hopper.PART_COLS.value)
        of_slot = sums.brought * part
        slots = min((block_m + block_n) * block_k // of_slot + 1, block_m * block_n // part)
    meta = {"STAGES": stages, "SLOTS": slots, "BEGIN": sums.begins, "EVICT_FIRST": sums.evict_first}
    return Turns(gemm_hopper.gemm_ping_pong_kernel, meta, sums.number)


def _wide(sums: Sums, k: int) -> Turns:
    """Return the kernel for tiles of 128 x 192.

    Raises:
        InvalidArgumentError: there are too many tiles, or too few elements along K, or too few stages.
    """
    from workbench.kernels.gemm import hopper_wide as gemm_hopper_wide

    tile, programs = sums.tile, sums.programs
    if sums.brought and sums.rounds > gemm_hopper_wide.MOST_TILES:
        most_tiles = programs * gemm_hopper_wide.MOST_TILES
        raise InvalidArgumentError(
            "tile",
            f"got {tile}, which makes {sums.number} tiles for {programs} programs, with an epilogue whose "
            "tensors are prefetched",
            f"Give more programs, or another tile: of this one there may be {most_tiles} at most.",
        )  # fmt: skip
    if sums.steps < gemm_hopper_wide.FEWEST_STEPS:
        fewest_k = (gemm_hopper_wide.FEWEST_STEPS - 1) * tile[2] + 1
        fix = f"Give another tile: with this one, K must have {fewest_k} elements or more."
        raise InvalidArgumentError("tile", f"got {tile} for {k} elements along K", fix)
    stages = sums.stages
    if stages < gemm_hopper_wide.FEWEST_STAGES:
        fix = f"Give {gemm_hopper_wide.FEWEST_STAGES} or more, or another tile."
        raise InvalidArgumentError("num_stages", f"got {stages} for tiles of {tile}", fix)
    if sums.brought:
        stages = min(stages, gemm_hopper_wide.MOST_STAGES_BESIDE)
    begins = sums.brought > 0 and sums.may_add
    meta = {"STAGES": stages, "BEGIN": begins, "EVICT_FIRST": sums.evict_first}
    return Turns(gemm_hopper_wide.gemm_wide_kernel, meta, sums.number)


def without_products(product: Launch) -> Launch:
    """Return the launch without its multiplications: it copies, stores and finishes as if A were 0.

    The result is for measurements: if it takes about as long as the whole launch, although the clock is
    higher without multiplications, the whole launch does not wait for the matrix units. The result's work is
    None.

    Args:
        product: a launch of the template "ping-pong".

    Raises:
        ArgumentTypeError: `product` is not a launch. InvalidArgumentError: `product` has no kernel of that
        template; an empty output needs no kernel, and an empty K gets the template "simple".
    """
    check_type("product", product, Launch, 'Give what `launch(..., template="ping-pong")` returns.')
    if not product.steps or any("PRODUCTS" not in step.meta for step in product.steps):
        names = ", ".join(step.name for step in product.steps) or "no kernel"
        raise InvalidArgumentError(
            "product",
            f"got a launch of {names}",
            'Give a launch of the template "ping-pong" whose product is not empty.',
        )
    steps = tuple(replace(step, meta={**step.meta, "PRODUCTS": False}) for step in product.steps)
    return replace(product, steps=steps, work=None)
