"""A torch optimizer becomes one of the shards that makes the same updates, at the rates that the user's loop sets."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from cutset.errors import BadInput
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.parameter_groups import Grouped
from cutset.ps.optimizers.rates import Scheduled
from cutset.ps.optimizers.schedule import GivenRate
from cutset.tools.scripts.script_run import describe_model
from cutset.tools.scripts.torch_optimizer import SharedOptimizer, translate_optimizer

Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: list[Make] = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1),
    lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.2),
    lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5, centered=True),
    lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_it_makes_the_updates_of_torch(make: Make) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, generator=generator, dtype=torch.float64)
    parameter = nn.Parameter(values.clone())
    theirs = make([parameter])
    schedule = torch.optim.lr_scheduler.LambdaLR(theirs, lambda step: 1 / (1 + step))
    ours = Scheduled(translate_optimizer(theirs)[0], GivenRate())
    state = ours.init_state(values)
    for step in range(5):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.clone()
        theirs.step()
        schedule.step()
        ours.apply(values, gradient, state, Update(step + 1, progress=1 / (1 + step)))
        torch.testing.assert_close(values, parameter.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.LBFGS(p), "no optimizer like torch.optim's LBFGS"),
        (lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "dampening=0.5"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "maximize=True"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "learning rate of a group of parameters is 0"),
    ],
)
def test_what_the_shards_cannot_do_is_refused(make: Make, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        translate_optimizer(make([nn.Parameter(torch.zeros(1))]))
    assert caught.value.code == "E360"


def shared(*rates: float) -> tuple[SharedOptimizer, torch.optim.Optimizer, list[Sequence[float]]]:
    pushed = list[Sequence[float]]()
    own = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])
    return SharedOptimizer(own, pushed.append), own, pushed


@pytest.mark.filterwarnings("error")
def test_schedulers_of_either_optimizer_set_the_rate_that_is_pushed() -> None:
    for of_own in (True, False):
        taken, own, pushed = shared(0.2, 0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(own if of_own else taken, 0.5)
        for _ in range(3):
            taken.step()
            schedule.step()
        assert pushed == [pytest.approx((factor,)) for factor in (1, 0.5, 0.25)]


@pytest.mark.filterwarnings("error")
def test_schedulers_that_catch_up_before_the_first_step_do_not_warn() -> None:
    own = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(own, 0.5)
    taken = SharedOptimizer(own, lambda factors: None, goes_on=True)
    schedule.step()
    assert taken.factors == (0.5,)
    anew = torch.optim.lr_scheduler.ExponentialLR(shared(0.2)[1], 0.5)
    with pytest.raises(UserWarning, match=r"before `optimizer.step\(\)`"):
        anew.step()


def test_a_closure_is_called_before_the_push() -> None:
    taken, _, pushed = shared(0.1)
    assert taken.step(lambda: 7.0) == 7.0
    assert pushed == [(1,)]


def test_groups_may_have_schedules_of_their_own() -> None:
    taken, own, pushed = shared(0.2, 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(own, [lambda step: 1 / (1 + step), lambda step: 1.0])
    for _ in range(2):
        taken.step()
        schedule.step()
    assert pushed == [(1,), (0.5, 1)]


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_rates_that_are_none_are_refused(rate: float) -> None:
    taken, own, pushed = shared(0.2, 0.1)
    own.param_groups[0]["lr"] = rate
    with pytest.raises(BadInput, match="learning rate of a group of parameters is") as caught:
        taken.step()
    assert caught.value.code == "E361"
    assert not pushed


def test_options_that_the_shards_would_not_hear_of_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    own = torch.optim.AdamW([parameter], lr=0.1)
    taken = SharedOptimizer(own, lambda factors: None)
    schedule = torch.optim.lr_scheduler.OneCycleLR(own, max_lr=0.2, total_steps=10, cycle_momentum=False)
    taken.step()
    schedule.step()
    taken.step()
    torch.optim.lr_scheduler.OneCycleLR(own, max_lr=0.2, total_steps=10)
    with pytest.raises(BadInput, match="betas of a group of parameters was") as caught:
        taken.step()
    assert caught.value.code == "E361"


def test_state_is_not_loaded_where_it_would_be_lost() -> None:
    taken, own, _ = shared(0.1)
    taken.load_state_dict(taken.state_dict())
    with pytest.raises(BadInput, match="state is on the shards"):
        taken.load_state_dict({"state": {0: {}}, "param_groups": own.state_dict()["param_groups"]})


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5))


def apply_flat(optimizer: Any, flat: Tensor, gradient: Tensor) -> None:
    optimizer = optimizer.of_machine(0).at(0, flat.numel())
    optimizer.apply(flat, gradient, optimizer.init_state(flat), Update(1, progress=1.0))


def test_groups_of_parameters_keep_their_options() -> None:
    net = model().double()
    decayed, others = [p for p in net.parameters() if p.dim() > 1], [p for p in net.parameters() if p.dim() < 2]
    theirs = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.5}, {"params": others, "lr": 0.3}], lr=0.1)
    description = describe_model(net, theirs, [])
    assert isinstance(description.optimizer, Grouped)
    parameters = dict(net.named_parameters())
    flat = torch.cat([parameters[region.name].detach().flatten() for region in description.regions])
    gradient = torch.randn(flat.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for region in description.regions:
        parameters[region.name].grad = gradient[region.offset : region.stop].view(region.sizes)
    apply_flat(description.optimizer, flat, gradient)
    theirs.step()
    expected = torch.cat([parameters[region.name].detach().flatten() for region in description.regions])
    torch.testing.assert_close(flat, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD], ids=lambda make: make.__name__
)
def test_steps_with_a_schedule_for_each_group_are_those_of_torch(make: Make) -> None:
    net = model().double()
    wide, others = [p for p in net.parameters() if p.dim() > 1], [p for p in net.parameters() if p.dim() < 2]
    theirs = make([{"params": wide, "lr": 0.2}, {"params": others}], lr=0.1, weight_decay=0.1)
    regions = (description := describe_model(net, theirs, [])).regions
    pushed, parameters = list[Sequence[float]](), dict(net.named_parameters())
    taken = SharedOptimizer(theirs, pushed.append)
    schedule = torch.optim.lr_scheduler.LambdaLR(theirs, [lambda step: 1 / (1 + step), lambda step: 0.5**step])
    flat = torch.cat([parameters[region.name].detach().flatten() for region in regions])
    assert isinstance(description.optimizer, Grouped)
    ours = description.optimizer.of_machine(0).at(0, flat.numel())
    state, generator = ours.init_state(flat), torch.Generator().manual_seed(0)
    for number in range(1, 5):
        gradient = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        for region in regions:
            parameters[region.name].grad = gradient[region.offset : region.stop].view(region.sizes)
        taken.step()
        ours.apply(flat, gradient, state, Update(number).at_factors(pushed[-1]))
        theirs.step()
        schedule.step()
    expected = torch.cat([parameters[region.name].detach().flatten() for region in regions])
    torch.testing.assert_close(flat, expected, rtol=1e-11, atol=1e-12)


def test_only_what_the_optimizer_has_is_trained() -> None:
    net = model()
    description = describe_model(net, torch.optim.SGD(net[2].parameters(), lr=0.1), [])
    assert {region.name for region in description.regions} == {"2.weight", "2.bias"}
    with pytest.raises(BadInput, match="other parameters than the model's"):
        describe_model(net, torch.optim.SGD(model().parameters(), lr=0.1), [])


def test_what_the_shards_do_not_train_is_refused_and_not_left_as_it_was() -> None:
    frozen = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    own = torch.optim.SGD([nn.Parameter(torch.zeros(1)), frozen], lr=0.1)
    pushed = list[Sequence[float]]()
    taken = SharedOptimizer(own, pushed.append)
    taken.step()
    frozen.requires_grad_(True)
    frozen.grad = torch.ones(2, 3)
    with pytest.raises(BadInput, match=r"shape \[2, 3\] has a gradient that needed none") as caught:
        taken.step()
    assert caught.value.code == "E361"
    with pytest.raises(BadInput, match=r"add_param_group after run\.prepare"):
        taken.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert pushed == [(1.0,)]


def test_the_samples_of_a_batch_are_those_of_the_loader_or_its_sampler() -> None:
    model, data = nn.Linear(2, 1), TensorDataset(torch.zeros(9, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = BatchSampler(RandomSampler(data), 3, drop_last=False)
    loaders = [DataLoader(data, batch_size=4), DataLoader(data, batch_sampler=batches), [[torch.zeros(5, 2)]]]
    assert [describe_model(model, optimizer, [loader]).batch for loader in loaders] == [4, 3, 1]
    assert describe_model(model, optimizer, loaders[2:], batch=5).batch == 5
