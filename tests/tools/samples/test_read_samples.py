"""What a task gives for samples, or as an example, and is none."""

import pytest
from places import USER_MODELS

from cutset.errors import BadInput
from cutset.tools.samples.read_samples import example_batch, read_split
from cutset.tools.task.load_task import TaskSpec, load_task

WRONG = USER_MODELS / "wrong.py"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("example_raises", "KeyError: 8"),
        ("example_is_a_tensor", "gives a Tensor, not a cutset.Data"),
        ("example_of_another_batch", "example(8) of task wrong gives 4 samples"),
        ("example_ragged", "do not have one number of samples"),
    ],
)
def test_an_example_that_is_none(name: str, said: str) -> None:
    task = load_task(TaskSpec(f"{WRONG}:{name}"))
    with pytest.raises(BadInput, match="E312") as caught:
        example_batch(task, 8)
    assert said in caught.value.facts
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "split", "code", "said"),
    [
        ("no_data", "train", "E310", "has no data to train on"),
        ("no_test_split", "test", "E311", "KeyError: 'test'"),
        ("data_gives_tensors", "train", "E311", "gives a Tensor, not a cutset.Data"),
        ("data_gives_nothing", "train", "E311", "has no samples"),
        ("ragged_data", "train", "E311", "do not have one number of samples"),
    ],
)
def test_data_that_is_none(name: str, split: str, code: str, said: str) -> None:
    task = load_task(TaskSpec(f"{WRONG}:{name}"))
    with pytest.raises(BadInput, match=code) as caught:
        read_split(task, split)
    assert said in caught.value.facts
    assert caught.value.fix


def test_a_bare_module_has_no_data() -> None:
    with pytest.raises(BadInput, match="E310"):
        read_split(load_task(TaskSpec(f"{USER_MODELS / 'good.py'}:module", inputs=("4x8",))), "train")
