"""Random boxes of every rule of resampling against the whole operator."""

import pytest
import torch
from rule_calls import (
    Given,
    assert_has_no_written_rule,
    build,
    drafted,
    given,
    leaves,
    operands,
    run_box,
    with_tensors,
    x,
)
from rule_tests import RuleTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.ir.arguments import call_operator
from cutset.partition.ir.graph import Window
from cutset.partition.operators.rules import resampling as rules


def vec(name: str, *args: object) -> Given:
    return given(f"aten.{name}.vec", *args)


def nearest() -> dict[str, Given]:
    return {
        "1d": vec("upsample_nearest1d", x(2, 3, 7), None, [2.0]),
        "2d": vec("upsample_nearest2d", x(2, 3, 4, 5), None, [2.0, 3.0]),
        "2d to a size": vec("upsample_nearest2d", x(2, 3, 4, 5), [7, 9], None),
        "2d smaller": vec("upsample_nearest2d", x(2, 3, 9, 8), [4, 5], None),
        "2d by a fraction": vec("upsample_nearest2d", x(2, 3, 7, 6), None, [1.5, 0.6]),
        "2d as it is": vec("upsample_nearest2d", x(2, 3, 7, 6), [7, 12], None),
        "3d": vec("upsample_nearest3d", x(1, 2, 3, 4, 2), None, [2.0, 1.0, 3.0]),
        "exact 1d": vec("_upsample_nearest_exact1d", x(2, 3, 7), [10], None),
        "exact 2d": vec("_upsample_nearest_exact2d", x(2, 3, 4, 5), None, [2.0, 1.7]),
        "exact 3d": vec("_upsample_nearest_exact3d", x(1, 2, 3, 4, 2), [5, 4, 3], None),
    }


def smooth() -> dict[str, Given]:
    return {
        "linear": vec("upsample_linear1d", x(2, 3, 7), None, False, [2.0]),
        "bilinear": vec("upsample_bilinear2d", x(2, 3, 4, 5), None, False, [2.0, 2.0]),
        "bilinear, corners": vec("upsample_bilinear2d", x(2, 3, 4, 5), [8, 10], True, None),
        "bilinear smaller": vec("upsample_bilinear2d", x(2, 3, 9, 8), [4, 5], False, None),
        "bilinear by a fraction": vec("upsample_bilinear2d", x(2, 3, 7, 5), None, False, [1.5, 2.3]),
        "bilinear to one": vec("upsample_bilinear2d", x(2, 3, 4, 5), [1, 4], True, None),
        "bilinear of one": vec("upsample_bilinear2d", x(2, 3, 1, 5), [6, 10], False, None),
        "trilinear": vec("upsample_trilinear3d", x(1, 2, 3, 4, 2), None, False, [2.0, 1.5, 2.0]),
        "bicubic": vec("upsample_bicubic2d", x(2, 2, 6, 5), None, False, [2.0, 1.5]),
        "bicubic, corners": vec("upsample_bicubic2d", x(2, 2, 6, 5), [9, 4], True, None),
    }


def padding() -> dict[str, Given]:
    return {
        "constant": given("pad", x(2, 3, 5, 6), [1, 2, 3, 0], "constant", 1.5),
        "far": given("pad", x(2, 4), [9, 3, 1, 1]),
        "cropped": given("pad", x(2, 3, 7, 8), [-2, 1, -1, -3]),
        "channels": given("pad", x(2, 4, 5, 3), [0, 0, 0, 0, 2, 2]),
        "behind only": given("pad", x(2, 5), [0, 3]),
        "reflect": given("pad", x(2, 3, 5, 6), [2, 1, 4, 4], "reflect"),
        "replicate": given("pad", x(2, 3, 5, 6), [3, 0, 1, 7], "replicate"),
        "circular": given("pad", x(2, 3, 5, 6), [1, 2, 3, 0], "circular"),
        "reflect, line": given("pad", x(2, 3, 9), [3, 2], "reflect"),
        "replicate, volume": given("pad", x(1, 2, 3, 4, 3), [1, 1, 0, 2, 1, 0], "replicate"),
    }


def pixels() -> dict[str, Given]:
    return {
        "pixel_shuffle": given("pixel_shuffle", x(2, 12, 4, 5), 2),
        "pixel_shuffle, three": given("pixel_shuffle", x(2, 9, 2, 3), 3),
        "pixel_unshuffle": given("pixel_unshuffle", x(2, 3, 6, 8), 2),
        "channel_shuffle": given("channel_shuffle", x(2, 6, 3, 4), 3),
        "grid": given("grid_sampler", x(2, 3, 4, 5), x(2, 6, 4, 2), 0, 0, False),
        "grid 2d": given("grid_sampler_2d", x(2, 3, 4, 5), x(2, 6, 4, 2), 0, 1, True),
        "grid 3d": given("grid_sampler_3d", x(1, 2, 3, 4, 5), x(1, 3, 2, 4, 3), 0, 0, False),
    }


CALLS = build(nearest, smooth, padding, pixels)


class TestResampling(RuleTests):
    rules = rules
    calls = CALLS


def test_a_matrix_that_would_be_too_large_leaves_the_call_whole() -> None:
    assert_has_no_written_rule(vec("upsample_nearest1d", torch.zeros(1, 1, 4100), None, [2.0]))


@pytest.mark.parametrize("name", padding())
def test_padding_that_is_not_cut_gives_the_very_bits_of_torch(name: str) -> None:
    case = CALLS[name]
    draft, values = drafted(case, False)
    graph = build_graph(draft)
    op, plain, cut = graph.ops[-1], leaves(case, values), leaves(case, values)
    whole = call_operator(case.target, {k: with_tensors(v, plain) for k, v in op.arguments.items()})
    (found,) = run_box(op, op.nest.box, operands(op, op.nest.box, graph, cut), graph.tensors)
    weight = torch.randn(whole.shape, dtype=whole.dtype, generator=torch.Generator().manual_seed(0))
    (whole * weight).sum().backward()
    (found * weight).sum().backward()
    assert torch.equal(found, whole)
    assert torch.equal(cut["self"].grad, plain["self"].grad)


def windows(case: Given) -> list[Window]:
    operand = build_graph(drafted(case, False)[0]).ops[-1].nest.operands[0]
    return [reading for reading in operand.readings if isinstance(reading, Window)]


def test_doubling_an_image_reads_half_of_the_interval_and_its_halo() -> None:
    (rows, _) = windows(CALLS["pixel_shuffle"])
    assert (rows.stride, rows.divisor, rows.offset, rows.extent) == (1, 2, 0, 1)
    (rows, _) = windows(CALLS["bilinear"])
    assert (rows.stride, rows.divisor) == (1, 2)
    assert rows.extent <= 4
