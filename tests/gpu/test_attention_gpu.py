"""Attention on a GPU: FlashAttention's rule over its grid, long sequences, and determinism."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.kernels.attention.cases import AT_END, Tensors, assert_by_rule, assert_gradients_by_rule, seen
from tests.kernels.attention.test_attention import of_even_sum
from workbench import ops
from workbench.kernels import attention
from workbench.kernels.attention import (
    CAUSAL,
    EVERYTHING,
    PLAIN,
    Dropout,
    Hook,
    Mask,
    Scoring,
    Starts,
    Window,
)
from workbench.kernels.attention import backward as attention_backward
from workbench.kernels.attention.backward import Tiling
from workbench.kernels.attention.hopper import Way
from workbench.kernels.choosing import attention as choosing
from workbench.kernels.options import options_of
from workbench.kernels.tile import scores
from workbench.runtime import launches

pytestmark = pytest.mark.gpu

# Untyped, so that tests can pass any arguments.
sdpa: Any = ops.scaled_dot_product_attention
attend: Any = ops.attention
torchs_own: Any = F.scaled_dot_product_attention
forward: Any = attention.launch
backward: Any = attention_backward.launch

HALVES = [torch.float16, torch.bfloat16]
PAIRS = [
    (1, 1), (239, 1), (3, 799), (799, 3), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211),
    (108, 256), (256, 512), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048),
]  # fmt: skip
SIZES = [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]


def tensors(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, size: int, dtype: torch.dtype
) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device="cuda").to(dtype)
        for shape in ((batch, heads, queries, size), *((batch, key_heads, keys, size),) * 2)
    )
    return query, key, value


def scores_of(
    given: Tensors, dtype: torch.dtype, window: Window, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and weights, computed in `dtype` with all scores in memory."""
    group = given[0].shape[1] // given[1].shape[1]
    query, key, value = given[0].to(dtype), *(t.to(dtype).repeat_interleave(group, 1) for t in given[1:])
    products = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if cap is not None:
        products = cap * torch.tanh(products / cap)
    visible = seen(window, query.shape[2], key.shape[2]).cuda()
    products = products.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(products, -1).nan_to_num(0)
    return weights @ value, weights


def assert_call_by_rule(
    call: Any, given: Tensors, window: Window, cap: float | None = None, judge_of: Tensors | None = None
) -> None:
    """Compare output and gradients with the plain computation of the same dtype, by FlashAttention's rule.

    Args:
        judge_of: the operands of the plain computation; None for those in `given`.
    """
    inputs = [t.detach().requires_grad_() for t in given]
    output = call(*inputs)
    gradient = torch.randn(output.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda")
    gradient = gradient.to(output.dtype)
    found = torch.autograd.grad(output, inputs, gradient)
    others = []
    for of, dtype in ((given, torch.float64), (judge_of or given, given[0].dtype)):
        again = [t.detach().to(dtype, copy=True).requires_grad_() for t in of]
        plainly, _ = scores_of((again[0], again[1], again[2]), dtype, window, cap)
        others.append((plainly, torch.autograd.grad(plainly, again, gradient.to(dtype))))
    (exact, of_exact), (plainly, of_plain) = others
    assert_by_rule(output, exact, plainly)
    times = 2.0 if given[0].shape[1] == given[1].shape[1] else 3.0
    assert_gradients_by_rule(found, of_exact, of_plain, times)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("window", [EVERYTHING, AT_END, Window(30, 20, from_end=True)], ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pairs", [PAIRS[first::4] for first in range(4)], ids=["1st", "2nd", "3rd", "4th"])
def test_flash_attentions_error_rule_holds_over_its_own_test_cases(
    pairs: list[tuple[int, int]], size: int, window: Window, dtype: torch.dtype
) -> None:
    for queries, keys in pairs:
        for heads in ((4, 4), (6, 2)):
            given = tensors(2, *heads, queries, keys, size, dtype)
            assert_call_by_rule(lambda *t: attend(*t, Scoring(window=window)), given, window)


WAYS = [
    (size, way)
    for size, ways in {
        64: (Way(3, 128, 2, True, True), Way(2, 128, 2, False, False)),
        128: (Way(2, 128, 2, False, False), Way(2, 128, 2, True, True)),
        256: (Way(2, 64, 2, False, False),),
        96: (Way(2, 128, 2, True, True),),
        40: (Way(3, 128, 2, True, True),),
    }.items()
    for way in ways
]


@pytest.mark.gpu(architecture="sm_90")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("size", "way"), WAYS, ids=str)
def test_the_hopper_kernel_keeps_flash_attentions_error_rule(size: int, way: Way, dtype: torch.dtype) -> None:
    """Heads are interleaved in memory; some rows of some windows see nothing; tiles are ragged."""
    for window in (EVERYTHING, CAUSAL, AT_END, Window(right=0, shift=-70)):
        for queries, keys in ((1000, 1000), (300, 777), (777, 300), (1024, 2048)):
            given = tensors(3, 8, 2, queries, keys, size, dtype)
            query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in given)
            output, log_sums = forward(query, key, value, Scoring(window=window), hopper=way).run()
            exact, _ = scores_of(given, torch.float64, window)
            plainly, _ = scores_of(given, dtype, window)
            assert_by_rule(output, exact, plainly, 2.0)
            portable = forward(query, key, value, Scoring(window=window)).run()[1]
            assert torch.equal(torch.isinf(log_sums), torch.isinf(portable))
            torch.testing.assert_close(log_sums, portable, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu(architecture="sm_90")
def test_the_hopper_kernel_gives_the_same_bits_on_every_run() -> None:
    query, key, value = tensors(4, 16, 16, 4096, 4096, 128, torch.float16)
    first = sdpa(query, key, value, is_causal=True)
    assert all(torch.equal(first, sdpa(query, key, value, is_causal=True)) for _ in range(20))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_the_error_is_at_most_twice_that_of_torchs_kernels(
    size: int, is_causal: bool, dtype: torch.dtype
) -> None:
    given = tensors(2, 4, 4, 1024, 1024, size, dtype)
    inputs = [t.detach().requires_grad_() for t in given]
    ours = sdpa(*inputs, is_causal=is_causal)
    gradient = torch.randn_like(ours)
    of_ours = torch.autograd.grad(ours, inputs, gradient)
    window = CAUSAL if is_causal else EVERYTHING
    again = [t.detach().double().requires_grad_() for t in given]
    exact, _ = scores_of((again[0], again[1], again[2]), torch.float64, window)
    of_exact = torch.autograd.grad(exact, again, gradient.double())
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        torchs = torchs_own(*inputs, is_causal=is_causal)
        of_torchs = torch.autograd.grad(torchs, inputs, gradient)
    assert_by_rule(ours, exact, torchs)
    assert_gradients_by_rule(of_ours, of_exact, of_torchs)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("window", [EVERYTHING, AT_END], ids=str)
def test_fp32_follows_torchs_precision(window: Window, precision: str) -> None:
    """Matrix units truncate to tf32 and cuBLAS rounds, so the operands of the reference are truncated too."""
    given = tensors(2, 4, 2, 300, 333, 64, torch.float32)
    query, key, value = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in given)
    cut = (query, key, value) if precision == "tf32" else given
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        call = lambda *t: attend(*t, Scoring(window=window))  # noqa: E731
        assert_call_by_rule(call, given, window, judge_of=cut)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("operand", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("where", ["pitch", "address"])
def test_an_operand_may_have_an_odd_pitch_or_address(where: str, operand: int, dtype: torch.dtype) -> None:
    query, key, value = tensors(2, 3, 3, 63, 63, 40, dtype)
    given = [query, key, value]
    odd = given[operand]
    if where == "pitch":
        space = odd.new_empty(*odd.shape[:-1], 41)[..., :40]
    else:
        space = odd.new_empty(odd.numel() + 1)[1:].view(odd.shape)
    given[operand] = space.copy_(odd)
    assert_call_by_rule(sdpa, (given[0], given[1], given[2]), EVERYTHING)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", [(159, 31), (130, 15), (64, 48)], ids=str)
def test_values_may_be_narrower_than_keys_at_an_odd_pitch(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """Keys and values go through registers to shared memory, where their layouts differ."""
    query, key, value = (
        torch.randn(1, 2, 300, size | 1, device="cuda").to(dtype)[..., :size] for size in (sizes[0], *sizes)
    )
    assert_call_by_rule(sdpa, (query, key, value), EVERYTHING)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize(
    "tilings",
    [
        (Tiling((64, 128), 8, 2), Tiling((128, 64), 8, 2)),
        (Tiling((64, 64), 4, 2), Tiling((64, 64), 4, 2)),
        (Tiling((128, 128), 8, 1), Tiling((128, 128), 8, 1)),
        (Tiling((32, 64), 4, 3), Tiling((64, 32), 4, 3)),
        (Tiling((64, 128), 8, 2, True), Tiling((128, 64), 8, 2, True)),
        (Tiling((64, 64), 4, 3, True), Tiling((64, 64), 4, 3, True)),
        (Tiling((32, 64), 4, 3, True), Tiling((64, 32), 4, 3, True)),
        (Tiling((16, 64), 8, 3, True), Tiling((64, 16), 4, 3, True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [64, 96, 128])
def test_tilings_of_the_backward_keep_flash_attentions_error_rule(
    size: int, tilings: tuple[Tiling, Tiling], one_pass: bool
) -> None:
    given = tensors(1, 4, 2, 500, 600, size, torch.float16)
    assert_tilings_by_rule(given, tilings, one_pass=one_pass)


@pytest.mark.parametrize("descriptors", [False, True])
def test_the_backward_keeps_the_error_rule_where_heads_are_interleaved(descriptors: bool) -> None:
    """Models store the rows of all heads together."""
    query, key, value = (
        t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors(2, 4, 2, 500, 600, 256, torch.float16)
    )
    tilings = Tiling((16, 64), 8, 3, descriptors), Tiling((64, 32), 4, 3, descriptors)
    assert_tilings_by_rule((query, key, value), tilings, one_pass=False)


def assert_tilings_by_rule(given: Tensors, tilings: tuple[Tiling, Tiling], *, one_pass: bool) -> None:
    """Compare the gradients that these tilings give, by FlashAttention's rule, for several windows."""
    for window in (EVERYTHING, CAUSAL, AT_END):
        scoring = Scoring(window=window)
        output, log_sums = forward(*given, scoring).run()
        gradient = torch.randn_like(output)
        found = backward(
            gradient, *given, output, log_sums, scoring, one_pass=one_pass, of_keys=tilings[0],
            of_queries=tilings[1],
        ).run()  # fmt: skip
        others = []
        for dtype in (torch.float64, torch.float16):
            again = [t.detach().to(dtype, copy=True).requires_grad_() for t in given]
            plainly, _ = scores_of((again[0], again[1], again[2]), dtype, window)
            others.append(torch.autograd.grad(plainly, again, gradient.to(dtype)))
        assert_gradients_by_rule(found, others[0], others[1], 3.0)


def test_a_kept_launch_uses_descriptors_only_at_aligned_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Successive calls have the same shapes and strides; some addresses are not multiples of 16 bytes."""
    given = tensors(1, 4, 4, 500, 500, 64, torch.float16)
    output, log_sums = forward(*given).run()
    gradient = torch.randn_like(output)
    wanted = backward(gradient, *given, output, log_sums, **options_of(by_descriptors())).run()
    monkeypatch.setattr(choosing, "backward", by_descriptors)
    launches.clear()
    for offset in (0, 0, 1, 1, 0, 1):
        moved = []
        for tensor in (gradient, *given):
            memory = torch.zeros(tensor.numel() + offset, dtype=tensor.dtype, device="cuda")
            moved.append(memory[offset:].view_as(tensor).copy_(tensor))
        leaves = [tensor.requires_grad_() for tensor in moved[1:]]
        found = torch.autograd.grad(attend(*leaves), leaves, moved[0])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)


def by_descriptors(*_: object) -> attention_backward.Configuration:
    tiling = Tiling((64, 64), 4, 2, descriptors=True)
    return attention_backward.Configuration(of_keys=tiling, of_queries=tiling)


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize(
    "tile", [(128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (64, 128, 4, 2)], ids=str
)
@pytest.mark.parametrize("size", [64, 128])
def test_tiles_of_the_forward_keep_flash_attentions_error_rule(
    size: int, tile: tuple[int, ...], descriptors: bool
) -> None:
    given = tensors(2, 4, 2, 500, 600, size, torch.float16)
    for window in (EVERYTHING, CAUSAL, AT_END):
        found, _ = forward(
            *given, Scoring(window=window), tile=tile[:2], num_warps=tile[2], num_stages=tile[3],
            descriptors=descriptors,
        ).run()  # fmt: skip
        exact, _ = scores_of(given, torch.float64, window)
        assert_by_rule(found, exact, scores_of(given, torch.float16, window)[0])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", [64, 128, 200, 256])
def test_masks_and_biases_are_applied(size: int, dtype: torch.dtype) -> None:
    """The widest heads leave the least shared memory for tiles of the mask."""
    for queries, keys in ((300, 333), (512, 512)):
        given = tensors(2, 4, 4, queries, keys, size, dtype)
        generator = torch.Generator("cuda").manual_seed(2)
        bias = torch.randn(2, 4, queries, keys, generator=generator, device="cuda").to(dtype)
        for mask in (bias > -1, bias):
            found = sdpa(*(inputs := [t.detach().requires_grad_() for t in given]), mask)
            gradients = torch.autograd.grad(found, inputs, found)
            others = []
            for kind in (torch.float64, dtype):
                again = [t.detach().to(kind, copy=True).requires_grad_() for t in given]
                products = again[0] @ again[1].transpose(-1, -2) * size**-0.5
                products = products + mask if mask is bias else products.masked_fill(~mask, float("-inf"))
                plainly = torch.softmax(products, -1) @ again[2]
                others.append((plainly, torch.autograd.grad(plainly, again, found.detach().to(kind))))
            (exact, of_exact), (plainly, of_plain) = others
            assert_by_rule(found, exact, plainly)
            assert_gradients_by_rule(gradients, of_exact, of_plain, 2.0)


@pytest.mark.parametrize("size", [1, 40, 128])
def test_float64_with_a_bool_mask_agrees_with_torch(size: int) -> None:
    given = [t.requires_grad_() for t in tensors(2, 4, 4, 70, 133, size, torch.float64)]
    mask = torch.rand(70, 133, generator=torch.Generator("cuda").manual_seed(2), device="cuda") > 0.3
    found, wanted = sdpa(*given, mask), torchs_own(*given, mask)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(each, given, wanted.detach()) for each in (found, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", [40, 64, 160, 256])
def test_decoding_keeps_the_error_rule_at_any_head_size(size: int, dtype: torch.dtype) -> None:
    given = tensors(2, 8, 1, 1, 5000, size, dtype)
    exact, _ = scores_of(given, torch.float64, EVERYTHING)
    assert_by_rule(attend(*given, Scoring()), exact, scores_of(given, dtype, EVERYTHING)[0])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("keys", [100, 4096, 70001])
@pytest.mark.parametrize("queries", [1, 4])
def test_decoding_keeps_the_error_rule_in_any_number_of_splits(
    queries: int, keys: int, dtype: torch.dtype
) -> None:
    given = tensors(2, 32, 8, queries, keys, 128, dtype)
    for window in (EVERYTHING, AT_END, Window(1000, 0, from_end=True)):
        exact, _ = scores_of(given, torch.float64, window)
        plainly, _ = scores_of(given, dtype, window)
        for splits in (None, 1, 7):
            found, _ = forward(*given, Scoring(window=window), splits=splits).run()
            assert_by_rule(found, exact, plainly)
        assert_by_rule(attend(*given, Scoring(window=window)), exact, plainly)


@pytest.mark.parametrize("batch", [1, 8])
def test_overlapped_merging_waits_for_the_splits(batch: int) -> None:
    """20 launches in a row, each with other values, give the same bits as merging without overlap."""
    query, key, value = tensors(batch, 32, 8, 1, 8192, 128, torch.float16)
    launch = forward(query, key, value, splits=16 // batch)
    assert len(launch.steps) == 2
    plainly = [
        replace(step, meta={**step.meta, "OVERLAP": False, "launch_pdl": False}) for step in launch.steps
    ]
    alone = replace(launch, steps=tuple(plainly))
    found: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for made, results in ((alone, wanted), (launch, found)):
        for number in range(20):
            for space in (*launch.outputs, *launch.workspaces):
                space.fill_(float("nan"))
            query.copy_(key[:, :1, number : number + 1].expand_as(query))
            results.append(made.run()[0].clone())
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        assert not one.isnan().any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_hooks_masks_and_a_bias_are_applied(dtype: torch.dtype) -> None:
    given = tensors(2, 4, 4, 300, 300, 64, dtype)
    capped = Scoring(window=CAUSAL, hooks=(Hook(scores.cap_softly, (2.0,), scores.cap_softly_gradient),))
    assert_call_by_rule(lambda *t: attend(*t, capped), given, CAUSAL, cap=2.0)
    documents = torch.arange(300, dtype=torch.int32, device="cuda").div(70, rounding_mode="floor").int()
    documents = documents.expand(2, 300).contiguous()
    keep = documents[:, None, :, None] == documents[:, None, None, :]
    masked = Scoring(window=CAUSAL, mask=Mask(scores.same_document, (documents, 300), of_head=False))
    inputs = [t.detach().requires_grad_() for t in given]
    ours = attend(*inputs, masked)
    visible = keep & seen(CAUSAL, 300, 300).cuda()
    gradient = torch.randn_like(ours)
    of_ours = torch.autograd.grad(ours, inputs, gradient)
    others = []
    for kind in (torch.float64, dtype):
        again = [t.detach().to(kind, copy=True).requires_grad_() for t in given]
        with sdpa_kernel([SDPBackend.MATH]):
            plainly = torchs_own(*again, visible)
        others.append((plainly, torch.autograd.grad(plainly, again, gradient.to(kind))))
    assert_by_rule(ours, others[0][0], others[1][0])
    assert_gradients_by_rule(of_ours, others[0][1], others[1][1])
    even = Scoring(mask=Mask(of_even_sum, of_batch=False))
    place = torch.arange(4)[:, None, None] + torch.arange(300)[:, None] + torch.arange(300)
    found = attend(*given, even)
    wanted = torchs_own(*(t.double() for t in given), (place % 2 == 0).cuda())
    assert float((found - wanted).abs().max()) < 0.05
    bias = torch.randn(4, 1, 300, device="cuda", dtype=dtype, requires_grad=True)
    every = [t.detach().requires_grad_() for t in given]
    got = torch.autograd.grad(sdpa(*every, bias), (*every, bias), gradient, allow_unused=False)
    exact = [t.detach().double().requires_grad_() for t in (*given, bias)]
    want = torch.autograd.grad(torchs_own(*exact[:3], exact[3]), exact, gradient.double())
    for ours_, exact_ in zip(got, want, strict=True):
        assert float((ours_ - exact_).abs().max()) < 0.03 * float(exact_.abs().max())


def test_packed_sequences_match_separate_ones() -> None:
    lengths = [1, 0, 700, 33, 128, 1000]
    starts = torch.tensor([0, *lengths]).cumsum(0).int().cuda()
    given = tensors(1, 8, 2, sum(lengths), sum(lengths), 128, torch.float16)
    for window in (EVERYTHING, CAUSAL, Window(64, 0)):
        scoring = Scoring(window=window, starts=Starts(starts, starts, 1000, 1000))
        inputs = [t.detach().requires_grad_() for t in given]
        output = attend(*inputs, scoring)
        gradient = torch.randn_like(output)
        found = torch.autograd.grad(output, inputs, gradient)
        for i in range(len(lengths)):
            part = slice(int(starts[i]), int(starts[i + 1]))
            if part.start == part.stop:
                continue
            others = []
            for dtype in (torch.float64, torch.float16):
                again = [t[:, :, part].detach().to(dtype, copy=True).requires_grad_() for t in given]
                plainly, _ = scores_of((again[0], again[1], again[2]), dtype, window)
                others.append((plainly, torch.autograd.grad(plainly, again, gradient[:, :, part].to(dtype))))
            assert_by_rule(output[:, :, part], others[0][0], others[1][0])
            of_part = [each[:, :, part] for each in found]
            assert_gradients_by_rule(of_part, others[0][1], others[1][1], 3.0)


@pytest.mark.parametrize("ends", [[3, 130, 600], [700], [0, 700], [0, 1, 699]], ids=str)
def test_rows_outside_all_sequences_get_0_and_change_nothing(ends: list[int]) -> None:
    """The inputs of these rows and the memory of the result are NaN; the result there is 0, its lse -inf."""
    starts = torch.tensor(ends, dtype=torch.int32).cuda()
    row = torch.arange(700, device="cuda")
    is_slack = (row < ends[0]) | (row >= ends[-1])
    given = tensors(1, 8, 2, 700, 700, 64, torch.float16)
    for tensor in given:
        tensor[:, :, is_slack] = torch.nan
    scoring = Scoring(starts=Starts(starts, starts, 700, 700))
    output, sums = torch.full_like(given[0], torch.nan), torch.full((1, 8, 700), torch.nan).cuda()
    for splits in (1, 3):
        attention.launch(*given, scoring, output=output, log_sums=sums, splits=splits).run()
        assert not output[:, :, is_slack].any()
        assert (sums[:, :, is_slack] == -torch.inf).all()
        assert output[:, :, ~is_slack].isfinite().all()
    inputs = [t.detach().requires_grad_() for t in given]
    gradients = torch.autograd.grad(attend(*inputs, scoring), inputs, torch.ones_like(output))
    for gradient in gradients:
        assert not gradient[:, :, is_slack].any()
        assert gradient[:, :, ~is_slack].isfinite().all()


def test_dropout_does_not_depend_on_tiles_and_has_finite_gradients() -> None:
    """Dropout keeps 70 % of the weights above 1e-4."""
    query, key, _ = tensors(1, 4, 2, 500, 512, 64, torch.float16)
    value = torch.eye(512, device="cuda", dtype=torch.float16)[:, :256].expand(1, 2, 512, 256)
    scoring = Scoring(dropout=Dropout(0.3, 2**40 + 3))
    one, _ = attention.launch(query, key, value, scoring, tile=(128, 64)).run()
    other, _ = attention.launch(query, key, value, scoring, tile=(64, 32), num_warps=4).run()
    assert torch.equal(one != 0, other != 0)
    whole, _ = attention.launch(query, key, value, PLAIN).run()
    seen_at_all = whole > 1e-4
    assert abs(float(((one != 0) & seen_at_all).sum() / seen_at_all.sum()) - 0.7) < 0.01
    torch.manual_seed(3)
    given = [t.requires_grad_() for t in tensors(1, 4, 2, 256, 256, 64, torch.float16)]
    output = attend(*given, scoring)
    for gradient in torch.autograd.grad(output.sum(), given):
        assert gradient.isfinite().all()


def test_deterministic_gradients_have_the_same_bits_on_every_run() -> None:
    given = [t.requires_grad_() for t in tensors(2, 8, 2, 2000, 2000, 128, torch.bfloat16)]
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        gradient = torch.randn(2, 8, 2000, 128, device="cuda", dtype=torch.bfloat16)
        runs = [
            torch.autograd.grad(sdpa(*given, is_causal=True, enable_gqa=True), given, gradient)
            for _ in range(4)
        ]
    finally:
        torch.use_deterministic_algorithms(before)
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_results_are_within_a_rounding_of_float64(dtype: torch.dtype) -> None:
    given = tensors(2, 4, 2, 500, 600, 128, dtype)
    found, _ = forward(*given).run()
    exact, weights = scores_of(given, torch.float64, EVERYTHING)
    rounding = 2.0**-4 if dtype == torch.float8_e4m3fn else 2.0**-3
    most = (weights @ given[2].double().abs().repeat_interleave(2, 1)).max()
    assert float((found.double() - exact).abs().max()) < rounding * float(most)


def test_memory_is_linear_in_the_length() -> None:
    used = []
    for length in (4096, 8192, 16384):
        given = [t.requires_grad_() for t in tensors(1, 4, 4, length, length, 64, torch.float16)]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sdpa(*given, is_causal=True).sum().backward()
        used.append(torch.cuda.max_memory_allocated() - before)
        del given
    assert used[2] < 4.2 * used[0]
    assert used[2] < 16384 * 16384  # a byte for each score of one head


def test_rows_beyond_two_to_the_31_elements_agree_with_float64(many: int) -> None:
    queries = many // 128 + 64
    query = torch.randn(1, 2, queries, 64, device="cuda", dtype=torch.float16)
    key, value = torch.randn(2, 1, 2, 128, 64, device="cuda", dtype=torch.float16).unbind()
    output, _ = attention.launch(query, key, value).run()
    for rows in (slice(0, 100), slice(queries - 100, queries)):
        exact, _ = scores_of((query[:, :, rows], key, value), torch.float64, EVERYTHING)
        assert float((output[:, :, rows] - exact).abs().max()) < 2e-3
