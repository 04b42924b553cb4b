"""`resnet`: the published parameter counts, and a small one cut."""

import pytest
import torch
from candidate_cuts import candidates
from cutting import Subject, assert_same, run_cut, run_plain
from zoo import Case

from cutset.models import TaskError, resnet
from cutset.partition.cluster.machines import uniform_cluster


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ({}, 11_689_512),
        ({"blocks": (3, 4, 6, 3)}, 21_797_672),
        ({"blocks": [3, 4, 6, 3], "bottleneck": True}, 25_557_032),
        ({"blocks": (3, 4, 23, 3), "bottleneck": True}, 44_549_160),
    ],
)
def test_parameters_are_those_published(sizes, parameters):
    assert sum(p.numel() for p in resnet(**sizes).build(seed=0, device="meta").parameters()) == parameters


@pytest.mark.parametrize(("image", "rows"), [(224, 7), (32, 4)])
def test_large_images_are_made_small_at_once(image, rows):
    task = resnet(width=8, image=image, classes=5)
    model = task.build(seed=0)
    seen = []
    model.blocks.register_forward_hook(lambda *found: seen.append(found[2].shape))
    assert model(*task.example(2).inputs).shape == (2, 5)
    assert seen == [(2, 64, rows, rows)]


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("bottleneck", [False, True])
def test_every_cut_trains_like_plain_torch(bottleneck):
    task = resnet(blocks=(1, 1), width=4, image=8, classes=3, bottleneck=bottleneck)
    of = Subject(Case(lambda: task.model(), lambda: task.data("train").rows(torch.arange(4)), task.loss), torch.float64)
    for candidate in candidates(of.graph, uniform_cluster(2), seed=0):
        assert_same(run_cut(of, candidate.cut), run_plain(of), rtol=1e-10)


@pytest.mark.parametrize(("sizes", "said"), [({"blocks": 18}, "blocks=18 is not a list"), ({"width": -1}, "width=-1")])
def test_wrong_sizes_are_refused(sizes, said):
    with pytest.raises(TaskError, match=said):
        resnet(**sizes)
