"""`Task` and `Data`."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cutset.models.task import Data, Task, TaskError, count_correct_classes, make_example_batches


def make_task(model=lambda: nn.Linear(3, 2), batch=4) -> Task:
    return Task("small", model, nn.functional.cross_entropy, make_example_batches(((3,),), classes=2), batch=batch)


def test_rows_picks_the_same_samples_everywhere():
    data = Data((torch.arange(6).reshape(3, 2), torch.arange(3)), (torch.tensor([7, 8, 9]),))
    rows = data.rows(torch.tensor([2, 0]))
    assert rows.inputs[0].tolist() == [[4, 5], [0, 1]]
    assert rows.inputs[1].tolist() == [2, 0]
    assert rows.targets[0].tolist() == [9, 7]
    assert (len(data), len(rows)) == (3, 2)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [((), (torch.zeros(3),)), ((torch.zeros(3, 2),), (torch.zeros(4),)), ((torch.tensor(1.0),), ())],
    ids=["no input", "other count", "no dimension"],
)
def test_data_without_one_number_of_samples_is_refused(inputs, targets):
    with pytest.raises(TaskError, match="number of samples"):
        Data(inputs, targets)


def test_build_draws_weights_from_the_seed_and_leaves_the_global_generator_alone():
    task = make_task()
    before = torch.random.get_rng_state()
    first, again, other = task.build(seed=1), task.build(seed=1), task.build(seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


def test_build_on_meta_has_no_storage():
    assert make_task().build(seed=0, device="meta").weight.is_meta


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(TaskError, match=r"'small' gives int, not a torch\.nn\.Module") as caught:
        make_task(model=lambda: 3).build(seed=0)
    assert caught.value.fix


def test_an_empty_batch_is_refused():
    with pytest.raises(TaskError, match="batch=0"):
        make_task(batch=0)


def test_no_epochs_are_refused():
    with pytest.raises(TaskError, match="epochs=0"):
        replace(make_task(), epochs=0)


@pytest.mark.parametrize("rate_scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_of_rates_is_a_number_above_0(rate_scale):
    with pytest.raises(TaskError, match="rate_scale="):
        replace(make_task(), rate_scale=rate_scale)


def test_example_fits_the_model_and_the_loss():
    task = make_task()
    example = task.example(5)
    loss = task.loss(task.build(seed=0)(*example.inputs), *example.targets)
    assert loss.shape == ()
    assert len(example) == 5


def test_example_of_tokens_without_targets():
    example = make_example_batches(((7,), (2, 3)), dtype=torch.int64)(4)
    assert [tuple(t.shape) for t in example.inputs] == [(4, 7), (4, 2, 3)]
    assert {t.dtype for t in example.inputs} == {torch.int64}
    assert example.targets == ()


def test_correct_classes_counts():
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert count_correct_classes(outputs, torch.tensor([1, 0, 0])) == 2
