"""Random boxes of every rule of convolution against the whole operator."""

import pytest
import torch
from rule_calls import Given, build, drafted, given, x
from rule_tests import RuleTests

import cutset.models.tasks.locally_connected  # noqa: F401 - registers its operator
from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import convolution as rules

# Of torch's own advice on how an operator is called, which some versions give once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel:UserWarning")

SAME, SAME3 = "aten.conv2d.padding", "aten.conv3d.padding"
UP1, UP2, UP3 = "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"


def convolutions() -> dict[str, Given]:
    return {
        "conv1d": given("conv1d", x(2, 3, 11), x(4, 3, 3), x(4), [2], [1]),
        "conv2d": given("conv2d", x(2, 3, 7, 8), x(4, 3, 3, 2), x(4)),
        "conv2d stride": given("conv2d", x(2, 2, 9, 8), x(4, 2, 3, 3), None, [2, 2], [1, 1]),
        "conv2d dilated": given("conv2d", x(2, 2, 9, 9), x(3, 2, 3, 3), x(3), [1], [2], [2]),
        "conv2d padded": given("conv2d", x(1, 2, 6, 6), x(3, 2, 5, 3), x(3), [1, 1], [2, 1]),
        "conv2d padded beyond the filter": given("conv2d", x(2, 2, 4, 3), x(3, 2, 2, 1), x(3), [1, 1], [4, 2]),
        "conv2d padded without bias": given("conv2d", x(1, 2, 4, 4), x(3, 2, 1, 1), None, [2, 1], [3, 1]),
        "conv2d of points": given("conv2d", x(2, 4, 5, 6), x(6, 4, 1, 1), x(6)),
        "conv2d same": given(SAME, x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "same"),
        "conv2d same, even": given(SAME, x(2, 2, 6, 7), x(3, 2, 2, 4), x(3), [1, 1], "same"),
        "conv2d same, dilated": given(SAME, x(2, 2, 9, 8), x(3, 2, 2, 3), None, [1, 1], "same", [3, 2]),
        "conv2d valid": given(SAME, x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "valid"),
        "conv2d leftover": given("conv2d", x(1, 1, 10, 12), x(2, 1, 3, 3), None, [3, 4]),
        "conv2d of one column": given("conv2d", x(2, 2, 6, 1), x(3, 2, 3, 1), x(3), [1, 1], [1, 0]),
        "conv2d of one pixel": given("conv2d", x(2, 2, 1, 1), x(3, 2, 3, 3), x(3), [1, 1], [2, 2]),
        "conv2d unbatched": given("conv2d", x(3, 7, 8), x(4, 3, 3, 2), x(4), [2, 1], [1, 0]),
        "conv3d": given("conv3d", x(1, 2, 5, 6, 4), x(3, 2, 3, 3, 1), x(3), [1, 2, 1], [1, 0, 0]),
        "conv3d same": given(SAME3, x(1, 2, 5, 4, 4), x(3, 2, 3, 2, 1), x(3), [1, 1, 1], "same"),
    }


def grouped() -> dict[str, Given]:
    return {
        "groups": given("conv2d", x(2, 4, 6, 6), x(6, 2, 3, 3), x(6), [1, 1], [1, 1], [1, 1], 2),
        "groups without bias": given("conv1d", x(2, 12, 9), x(8, 3, 3), None, [2], [1], [1], 4),
        "depthwise": given("conv2d", x(2, 6, 7, 6), x(6, 1, 3, 3), x(6), [2, 1], [1, 1], [1, 1], 6),
        "depthwise, several": given("conv2d", x(2, 4, 5, 6), x(12, 1, 3, 3), x(12), [1, 1], [1, 1], [1, 1], 4),
        "depthwise, padded": given("conv3d", x(1, 3, 3, 4, 3), x(3, 1, 1, 1, 1), x(3), [1] * 3, [2] * 3, [1] * 3, 3),
        "groups transposed": given(UP2, x(2, 4, 4, 3), x(4, 3, 3, 3), x(6), [2, 2], [1, 1], [1, 1], 2),
        "depthwise transposed": given(UP1, x(2, 4, 6), x(4, 2, 4), x(8), [2], [1], [0], 4),
    }


def transposed() -> dict[str, Given]:
    return {
        "twice as large": given(UP2, x(2, 4, 5, 4), x(4, 3, 2, 2), x(3), [2, 2]),
        "with overlap": given(UP2, x(2, 2, 5, 4), x(2, 3, 4, 4), x(3), [2, 2], [1, 1]),
        "with output padding": given(UP2, x(2, 2, 5, 4), x(2, 3, 3, 3), None, [2, 3], [1, 0], [1, 2]),
        "with gaps": given(UP2, x(1, 2, 4, 5), x(2, 3, 1, 2), x(3), [3, 4]),
        "dilated": given(UP2, x(1, 2, 4, 5), x(2, 3, 3, 2), x(3), [1, 2], [2, 0], [0, 1], 1, [2, 3]),
        "cropped": given(UP1, x(2, 3, 7), x(3, 2, 5), x(2), [1], [4]),
        "of points": given(UP1, x(2, 3, 7), x(3, 2, 1), x(2)),
        "of points, dilated": given(UP1, x(2, 3, 7), x(3, 2, 1), x(2), [1], [0], [1], 1, [2]),
        "of one pixel": given(UP2, x(2, 3, 1, 1), x(3, 2, 4, 4), x(2)),
        "unbatched": given(UP1, x(3, 7), x(3, 2, 4), x(2), [3], [1]),
        "conv_transpose3d": given(UP3, x(1, 2, 3, 4, 2), x(2, 2, 3, 2, 2), x(2), [2, 2, 1], [1, 0, 0], [1, 0, 0]),
    }


def filters() -> dict[str, Given]:
    return {
        "im2col": given("im2col", x(2, 4, 6, 5), [3, 2], [1, 1], [1, 0], [2, 1]),
        "im2col unbatched": given("im2col", x(4, 6, 5), [2, 2], [1, 1], [0, 0], [1, 1]),
        "col2im": given("col2im", x(2, 24, 4), [6, 5], [3, 2], [1, 1], [0, 0], [2, 2]),
        "local2d": given("cutset.local2d.default", x(2, 3, 7, 8), x(5, 7, 4, 3, 3, 2), x(4, 5, 7), 1),
        "local2d stride": given("cutset.local2d.default", x(2, 2, 7, 7), x(3, 3, 4, 2, 3, 3), None, 2),
    }


CALLS = build(convolutions, grouped, transposed, filters)


class TestConvolution(RuleTests):
    rules = rules
    calls = CALLS


def cuttable_sizes(case: Given, *, kind: str) -> list[int]:
    op = build_graph(drafted(case, False)[0]).ops[-1]
    return [loop.size for loop in op.nest.loops if loop.kind == kind]


def test_groups_and_their_channels_are_loops_of_their_own() -> None:
    case = given("conv2d", torch.zeros(2, 12, 5, 7), torch.zeros(8, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], 4)
    assert cuttable_sizes(case, kind="parallel") == [2, 4, 2, 5, 7]
    assert cuttable_sizes(case, kind="reduction") == [3]


@pytest.mark.parametrize("name", ["twice as large", "with overlap", "with output padding", "conv2d same, even"])
def test_an_image_that_grows_or_has_an_even_filter_is_cut_in_space(name: str) -> None:
    shape = build_graph(drafted(CALLS[name], False)[0]).tensors["out"].shape
    assert set(shape[2:]) <= set(cuttable_sizes(CALLS[name], kind="parallel"))
