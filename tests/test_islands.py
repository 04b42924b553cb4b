"""Islands change nothing either: loss, gradients, statistics and predictions of models whose sizes depend on data are
those of plain torch, however the rest is cut."""

import random
from functools import cache

import pytest
import torch
from candidate_cuts import candidates
from cutting import (
    DOUBLE,
    Subject,
    assert_same,
    finest_cut,
    predict_cut,
    random_cut,
    run_cut,
    run_plain,
)
from dynamic_zoo import DYNAMIC_CASES
from marking import with_slow

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.operators.island import ISLAND

TIGHT = 1e-11
SLOW = ["experts", "upsampled", "unseen", "masked"]
NAMES = with_slow([name for name in DYNAMIC_CASES if name not in SLOW], SLOW)

# One process has them all, since a capture is made once for all tests of a model.
pytestmark = pytest.mark.xdist_group("islands")


@cache
def island_subject(name: str, dtype: torch.dtype = DOUBLE) -> Subject:
    return Subject(DYNAMIC_CASES[name], dtype)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_what_depends_on_data_is_an_island(name: str) -> None:
    graph = island_subject(name).graph
    assert ISLAND in {op.target for op in graph.ops}
    assert any(op.is_cuttable for op in graph.ops)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_one_machine_has_the_bits_of_plain_torch(name: str) -> None:
    of = island_subject(name, torch.float32)
    assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("machines", with_slow([3], [2]))
@pytest.mark.parametrize("name", NAMES)
def test_cuts_equal_plain_torch(name: str, machines: int) -> None:
    of = island_subject(name)
    draw = random.Random(machines)
    planned = candidates(of.graph, uniform_cluster(machines), seed=0)
    cuts = [candidate.cut for candidate in planned] + [finest_cut(of.graph, machines)]
    cuts += [random_cut(of.graph, machines, [draw.randrange(2**16) for _ in of.graph.ops]) for _ in range(3)]
    for cut in cuts:
        assert_same(run_cut(of, cut), run_plain(of), rtol=TIGHT)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_and_evaluation_equal_plain_torch(name: str) -> None:
    of = island_subject(name)
    cut = finest_cut(of.graph, 2)
    assert_same(run_cut(of, cut, micros=3), run_plain(of, micros=3), rtol=TIGHT)
    model = of.fresh()[0].eval()
    with torch.no_grad():
        expected = model(*of.batch.inputs)
    torch.testing.assert_close(predict_cut(of, cut), expected, rtol=1e-9, atol=1e-9)
