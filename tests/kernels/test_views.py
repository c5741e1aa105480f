"""Views by descriptors: in the 2-D reduction and the row operators, and their errors."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.inputs import windows
from workbench import lens
from workbench.coords import naive, packed, symbol, transform
from workbench.coords.transforms import embed, merge, pad, pass_through
from workbench.errors import ArgumentTypeError, InvalidArgumentError, TensorMismatchError
from workbench.kernels import channels, views
from workbench.kernels.convolution import pooling
from workbench.kernels.layout import distinct_elements, rows_of
from workbench.kernels.rows import batch_norm, group_norm, normalization, reduction, rowwise
from workbench.kernels.rows.reduction import REDUCTIONS
from workbench.kernels.rows.rowwise import Plan
from workbench.kernels.views import Described, View, access_of_tile, layouts_of_each, of_a_batch, placed


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "prod", "max", "min"])
@pytest.mark.parametrize(
    "how",
    [{}, {"tile": (4, 2)}, {"tile": (16, 8)}, {"tile": (4, 1), "splits": 3}, {"are_cols_neighbors": False}],
)
def test_padding_changes_no_reduction_of_windows(name: str, how: dict[str, Any]) -> None:
    """Padding is filled with the neutral element of each reduction."""
    x = torch.randint(-4, 0, (40,), generator=torch.Generator().manual_seed(0)).float()
    chosen = REDUCTIONS[name]
    outputs = [torch.full((38,), 77.0), torch.full((38,), 77)][: len(chosen.gives)]
    view = View(x, windows(40, 5, 1), {})
    reduction.launch_view(view, outputs, chosen, **how).run()
    seen = [x[max(i - 1, 0) : i + 4] for i in range(38)]
    if name in ("max", "min"):
        found = [getattr(torch, name)(window, 0) for window in seen]
        assert torch.equal(outputs[0], torch.stack([value for value, _ in found]))
        first = torch.tensor([int(index) + (i == 0) for i, (_, index) in enumerate(found)])
        assert torch.equal(outputs[1], first)  # column 0 of the first window is padding
    else:
        assert torch.equal(outputs[0], torch.stack([getattr(torch, name)(window) for window in seen]))


def test_reductions_of_views_refuse_invalid_arguments() -> None:
    view = View(torch.zeros(40), windows(40, 5, 1), {})
    with pytest.raises(TensorMismatchError, match=r"outputs\[0\]: got 39 elements for 38 rows"):
        reduction.launch_view(view, (torch.zeros(39),), REDUCTIONS["sum"])
    with pytest.raises(ArgumentTypeError, match="view"):
        reduction.launch_view(torch.zeros(4, 4), (torch.zeros(4),), REDUCTIONS["sum"])  # type: ignore[arg-type]
    complex_view = View(torch.zeros(40, dtype=torch.complex64), windows(40, 5, 1), {})
    with pytest.raises(TensorMismatchError, match="complex64"):
        reduction.launch_view(complex_view, (torch.zeros(38),), REDUCTIONS["sum"])


def test_ends_that_tiles_divide_are_not_checked() -> None:
    n = symbol("n", least=1)
    images = transform(packed((n, 4, 6)), [merge((n, 4)), pass_through(6)], [(0, 1), (2,)], [(0,), (1,)])
    described = Described(View(torch.zeros(3, 4, 6), images, {"n": 3}))
    assert described.are_whole(4, 2)
    assert not described.are_whole(8, 2)
    assert not described.are_whole(4, 4)
    assert access_of_tile(images, (4, 2)).params({"n": 3}) == ()  # the number of images is not a parameter
    assert access_of_tile(images, (8, 2)).params({"n": 3}) == (3,)
    assert "valid = True" in access_of_tile(images, (4, 2)).source
    assert not Described(View(torch.zeros(40), windows(40, 5, 1), {})).are_whole(1, 1)


def test_norms_take_vectors_by_row_and_by_column() -> None:
    """A norm has weights by row and biases by column."""
    x, by_row, by_col = torch.randn(6, 40), torch.randn(6), torch.randn(40)
    of_x = View(x, naive((6, 40), (40, 1), names=("row", "col")), {})
    vectors = [
        View(by_row, naive((6, 40), (1, 0), names=("row", "col")), {}),
        View(by_col, naive((6, 40), (0, 1), names=("row", "col")), {}),
    ]
    output = torch.full_like(x, float("nan"))
    of_output = View(output, of_x.descriptor, {})
    operator = (
        normalization.NORMS["layer_norm"]
        .forward[0]
        ._replace(apply=group_norm.affine_beside, fills=(0.0,) * 3)
    )
    wanted = torch.nn.functional.layer_norm(x, (40,)) * by_row[:, None] + by_col
    for plan in (Plan(2, 64, 1, 3, 1), Plan(4, 16, 1, 2, 1), Plan(4, 8, 2, 4, 1), Plan(8, 8, 3, 3, 1)):
        launch = rowwise.launch_views(operator, (of_x,), of_output, plan, vectors=vectors, parameter=1e-5)
        launch.run()
        torch.testing.assert_close(output, wanted)
        output.fill_(float("nan"))


def test_equal_layouts_share_one_access_function() -> None:
    (rows,) = rows_of((6, 40), ((40, 1),), frozenset((1,)))
    view = View(torch.zeros(6, 40), naive((6, 40), (40, 1), names=("row", "col")), {})
    other = View(torch.zeros(6, 40), naive((6, 40), (0, 1), names=("row", "col")), {})
    accesses = [placed(view, (2, 8)), placed(other, (2, 8), is_vector=True), placed(view, (2, 8))]
    _, layouts = layouts_of_each(accesses)
    assert layouts == (((),), ((), 1), ((),))
    assert rows.access(2, 8)[1] == rows.layout


def test_kernels_with_and_without_a_weight_are_compiled_apart() -> None:
    """Triton 3.6 ignores empty tuples in an argument: it took the first kernel's access function for both."""
    x, weight = torch.empty(2, 6, 5, 5), torch.empty(6)
    with_weight, without = (
        lens.compile(group_norm.launch(x, 3, *vectors, epsilon=1e-5, compute_units=132), "sm_90")[0]
        for vectors in ((weight,), ())
    )
    assert "arith.divsi" in with_weight.stages["ttir"]  # 25 columns have one weight
    assert "arith.divsi" not in without.stages["ttir"]


def test_pools_and_image_norms_have_no_kernels_of_their_own() -> None:
    """Descriptors and tile operators run in the kernels of `rowwise` and `reduction`."""
    folders = [Path(str(each.__file__)).parent for each in (batch_norm, group_norm, pooling)]
    files = [file for folder in folders for file in folder.glob("*.py")]
    for file in (*files, *(Path(str(each.__file__)) for each in (channels, views))):
        functions = [
            node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert not [name for name in functions if name.endswith("_kernel")]
    x = torch.zeros(2, 8, 6, 6)
    launches = [
        group_norm.launch(x, 2, epsilon=1e-5),
        batch_norm.launch(x, epsilon=1e-5),
        batch_norm.launch_known(x, x[0, :, 0, 0].clone(), x[0, :, 0, 0].clone(), epsilon=1e-5),
        pooling.launch(
            "max", x, (torch.zeros(2, 8, 3, 3),), pool=pooling.Pool((6, 6), (3, 3), *((2, 2),) * 2, (0, 0))
        ),
    ]
    kernels = {step.kernel for launch in launches for step in launch.steps}
    known = {value for module in (rowwise, reduction) for value in vars(module).values() if callable(value)}
    assert kernels <= known


def test_the_trace_counts_the_bytes_of_a_group_norm() -> None:
    """Images are loaded once, and a weight and a bias once for each pixel."""
    x, weight = torch.randn(2, 4, 4, 4), torch.ones(4)
    launch = group_norm.launch(x, 2, weight, weight.clone(), epsilon=1e-5, tile=(1, 32))
    (step,) = lens.trace(launch)
    loads, stores = (step.traffic(kind=kind).bytes for kind in ("load", "store"))
    assert (loads, stores) == (3 * 4 * 128, 4 * 128)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.ones(4), (4, 1), {}), "descriptor: got .* Give a Descriptor"),
        (([1.0], naive((1, 1), (1, 1)), {}), "tensor: got"),
        ((torch.ones(4), naive((4, 1), (1, 1)), None), "symbols: got None"),
    ],
)
def test_views_of_wrong_types_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        View(*arguments)


def test_views_whose_offsets_leave_the_memory_are_refused() -> None:
    x = torch.ones(8)[4:]
    with pytest.raises(TensorMismatchError, match=r"reaches from element 0 to 4, and .* from -4 to 3"):
        View(x, naive((1, 5), (1, 1)), {})
    View(x, naive((1, 4), (1, 1)), {})  # reaches to the last element, and is allowed


def test_batches_whose_padding_moves_have_no_descriptor_of_one_matrix() -> None:
    """Rows are padded at the start of the flat tensor, so the first matrix alone has padding."""
    flat = transform(packed((24,)), [pad(24, 6, 0)], [(0,)], [(0,)])
    batch = transform(flat, [embed((5, 2, 3), (6, 3, 1))], [(0,)], [(0, 1, 2)], names=("batch", "row", "col"))
    with pytest.raises(InvalidArgumentError, match=r"valid depends on batch, .* without padding"):
        of_a_batch(batch)
    assert of_a_batch(naive((5, 2, 3), (6, 3, 1), names=("batch", "row", "col")))[1] == 6


def test_expanded_dimensions_count_as_one_element() -> None:
    assert distinct_elements(torch.zeros(3, 1).expand(3, 5)) == 3
    assert distinct_elements(torch.zeros(1, 5).expand(3, 5)) == 5
    assert distinct_elements(torch.zeros(3, 5)) == 15
