"""Values and copies for trial runs."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cutset.partition.capture.leaf_trial_inputs import (
    STYLES,
    TrialStates,
    copy_untraced,
    dense_spec,
    make_trial_input,
)
from cutset.partition.operators.leaf_module import TRACED_CALL


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("layout", ["rows", "columns", "spread"])
def test_values_have_the_shape_and_the_layout_of_what_they_stand_for(dtype: torch.dtype, layout: str) -> None:
    x = torch.zeros(3, 4, dtype=dtype)
    tensor = {"rows": x, "columns": x.t(), "spread": x[:, :1].expand(-1, 5)}[layout]
    for number in range(len(STYLES)):
        for made in (make_trial_input(tensor, number), TrialStates().make("weight", tensor, number, None)):
            assert (made.shape, made.dtype) == (tensor.shape, dtype)
            assert layout == "spread" or made.stride() == tensor.stride()
    assert dense_spec(tensor).shape == tuple(tensor.shape)


def test_values_of_the_runs_differ_in_sign_and_size() -> None:
    torch.manual_seed(0)
    means = [make_trial_input(torch.zeros(100), number).mean().item() for number in range(len(STYLES))]
    assert min(means) < -0.5
    assert max(means) > 0.5
    assert 0.0 in means
    assert {make_trial_input(torch.zeros(1, dtype=torch.int64), n).item() for n in range(5)} == {0, 1}


def test_states_of_all_runs_have_one_memory() -> None:
    states, weight = TrialStates(), torch.zeros(9, requires_grad=True)
    first = states.make("weight", weight, 0, None)
    drawn = first.clone()
    assert drawn.unique().numel() > 1
    assert torch.equal(states.make("weight", weight, 1, None), -drawn)  # a branch on its sign goes both ways
    assert torch.equal(states.make("weight", weight, 2, torch.arange(9.0)), torch.arange(9.0))
    other = states.make("weight", weight, 3, None)
    assert not torch.equal(other.abs(), torch.arange(9.0))
    assert other.data_ptr() == first.data_ptr()
    eighths = torch.zeros(9, dtype=torch.float8_e4m3fn, requires_grad=True)
    assert all(states.make("eighths", eighths, number, None).double().abs().max() > 0 for number in (0, 1))
    assert states.make("variance", torch.zeros(9), 0, None).min() > 0


def test_a_state_whose_memory_the_module_freed_has_another() -> None:
    states, weight = TrialStates(), torch.zeros(9, requires_grad=True)
    states.make("weight", weight, 0, None).untyped_storage().resize_(0)
    assert 0 < states.make("weight", weight, 1, None).abs().max() <= 0.2


def test_a_copy_has_python_state_of_its_own_and_no_copies_of_tensors_of_the_trace() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with FakeTensorMode():
        seen = torch.ones(1 << 20)
    module.seen, module.count = [seen], [0]  # type: ignore[assignment]
    setattr(module[0], TRACED_CALL, lambda *args: None)
    copied = copy_untraced(module, module.parameters())
    assert copied.seen is not module.seen
    assert copied.seen[0] is seen  # type: ignore[index]
    assert copied[0].weight is module[0].weight  # type: ignore[index]
    assert isinstance(copied(torch.ones(1, 2)), Tensor)
