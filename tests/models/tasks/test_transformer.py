"""`transformer`: its size, what it may look at, and that it learns."""

import pytest
import torch
from candidate_cuts import candidates
from cutting import Subject, assert_same, run_cut, run_plain
from zoo import Case

from cutset.models import TaskError, transformer
from cutset.partition.cluster.machines import uniform_cluster

SMALL = {"layers": 1, "width": 16, "heads": 2, "context": 6, "vocabulary": 11}


def test_the_smallest_gpt_2_has_124_million_parameters():
    model = transformer(layers=12, width=768, heads=12, context=1024, vocabulary=50257).build(seed=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == 124_439_808  # as the published checkpoint
    assert all(p.is_meta for p in model.parameters())


def test_untied_it_has_a_second_matrix_of_tokens():
    counts = [
        sum(p.numel() for p in transformer(**SMALL, tied=tied).build(seed=0, device="meta").parameters())
        for tied in (True, False)
    ]
    assert counts[1] - counts[0] == 11 * 16


def test_a_token_does_not_see_those_after_it():
    model = transformer(**SMALL).build(seed=0).eval()
    before = torch.tensor([[1, 2, 3, 4, 5, 6]])
    after = torch.tensor([[1, 2, 3, 9, 9, 9]])
    torch.testing.assert_close(model(before)[:, :3], model(after)[:, :3])
    assert not torch.allclose(model(before)[:, 3:], model(after)[:, 3:])


def test_at_first_all_tokens_are_about_as_likely():
    task = transformer()
    rows = task.data("train").rows(torch.arange(8))
    assert task.loss(task.build(seed=0)(*rows.inputs), *rows.targets).item() == pytest.approx(5.545, abs=0.1)  # ln 256


@pytest.mark.slow
def test_it_learns_which_token_follows():
    task = transformer(layers=1, width=32, heads=2, context=16, vocabulary=16)
    data, model = task.data("train"), task.build(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(model(*data.inputs), *data.targets).backward()
        optimizer.step()
    test = task.data("test")
    with torch.no_grad():
        assert task.correct(model(*test.inputs), *test.targets) > 0.75 * len(test)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("tied", [True, False])
def test_every_cut_trains_like_plain_torch(tied):
    task = transformer(**SMALL, dropout=0.1, tied=tied)
    of = Subject(Case(lambda: task.model(), lambda: task.data("train").rows(torch.arange(3)), task.loss), torch.float64)
    for candidate in candidates(of.graph, uniform_cluster(2), seed=0):
        assert_same(run_cut(of, candidate.cut), run_plain(of), rtol=1e-11)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"width": 30}, "width=30 does not divide into heads=4"),
        ({"layers": 0}, "layers=0"),
        ({"layers": True}, "layers=True"),
        ({"vocabulary": "many"}, "vocabulary='many'"),
        ({"hidden": 0}, "hidden=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_wrong_sizes_are_refused(sizes, said):
    with pytest.raises(TaskError, match=said):
        transformer(**sizes)
