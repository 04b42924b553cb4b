"""UncutWorker is plain torch, with its parameters and gradients in two flat buffers."""

import copy

import torch
from torch import Tensor, nn

from cutset.models.task import Data
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.uncut_worker import UncutWorker


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def batch_of(number: int) -> Data:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(10, 6, generator=generator)
    return Data((inputs,), (inputs[:, :3].argmax(1),))


def test_twenty_steps_equal_plain_sgd_bit_for_bit() -> None:
    worker = UncutWorker(net(), nn.functional.cross_entropy, seed=7)
    model = net()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        batch = batch_of(step)
        loss = worker.step(batch, step)
        worker.values.sub_(worker.gradients, alpha=0.1)
        worker.gradients.zero_()
        torch.manual_seed(mask_seed(7, step, 0))
        expected = nn.functional.cross_entropy(model(*batch.inputs), *batch.targets)
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        assert loss == float(expected.detach())
    torch.testing.assert_close(dict(worker.model.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_parameters_and_gradients_stay_views_of_the_flat_buffers() -> None:
    worker = UncutWorker(net(), nn.functional.cross_entropy)
    assert worker.values.shape == worker.gradients.shape == (6 * 8 + 8 + 8 + 8 + 8 * 3 + 3,)
    for step in range(3):
        worker.step(batch_of(step), step)
    values, gradients = torch.arange(99.0), torch.arange(99.0) + 1000
    worker.values.copy_(values)
    worker.gradients.copy_(gradients)
    for flat, parts in ((values, [p.detach() for p in worker.model.parameters()]), (gradients, _grads(worker.model))):
        assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), flat)


def _grads(model: nn.Module) -> list[Tensor]:
    grads = [parameter.grad for parameter in model.parameters()]
    return [grad for grad in grads if grad is not None]


def test_its_parameters_may_move_to_other_memory() -> None:
    worker, still = (UncutWorker(net(), nn.functional.cross_entropy, seed=7) for _ in range(2))
    before, moved = worker.values, worker.values.clone()
    worker.move(moved)
    before.fill_(float("nan"))
    for step in range(3):
        for one in (worker, still):
            one.gradients.zero_()
            one.step(batch_of(step), step)
            one.values.sub_(one.gradients, alpha=0.1)
    assert worker.values.data_ptr() == moved.data_ptr()
    assert torch.equal(moved, still.values)


def test_gradients_add_up() -> None:
    worker = UncutWorker(net(), nn.functional.cross_entropy)
    worker.step(batch_of(0), 0)
    once = worker.gradients.clone()
    worker.model[1].reset_running_stats()  # type: ignore[index, operator]
    worker.step(batch_of(0), 0)
    torch.testing.assert_close(worker.gradients, 2 * once)


def test_frozen_parameters_are_not_trained_and_tied_ones_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    worker = UncutWorker(model, nn.functional.cross_entropy)
    assert list(worker.parameters) == ["0.weight", "0.bias", "1.bias", "2.bias"]
    assert worker.values.numel() == 16 + 4 + 4 + 2


def test_a_step_leaves_the_callers_random_numbers_alone() -> None:
    worker = UncutWorker(net(), nn.functional.cross_entropy)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    worker.step(batch_of(0), 0)
    assert torch.equal(torch.rand(2), expected)


def test_a_prediction_is_in_evaluation_mode() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(x), "input": x}

    model = Several()
    worker = UncutWorker(model, lambda output, target: nn.functional.cross_entropy(output["logits"], target))
    worker.step(batch_of(0), 0)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    output = worker.predict(batch_of(1))["logits"]
    assert torch.equal(output, model.net.eval()(*batch_of(1).inputs).detach())
    assert not output.requires_grad
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def test_a_step_is_in_training_mode_whoever_has_evaluated_before() -> None:
    model = net()
    model[1].eval()  # as a script may have left it
    worker = UncutWorker(model, nn.functional.cross_entropy)
    for leave_training in (lambda: None, lambda: worker.predict(batch_of(0)), model.eval):
        leave_training()
        worker.step(batch_of(1), 1)
        assert all(module.training for module in model.modules())


def test_updates_too_small_for_a_half_add_up_in_its_master() -> None:
    """Beside plain torch on rounded weights, with a float32 copy that is updated by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8).bfloat16(), Widen(), nn.Linear(8, 3))
    plain = copy.deepcopy(model)
    masters = [p.detach().float() for p in plain.parameters()]
    worker = UncutWorker(model, nn.functional.cross_entropy)
    before = worker.values.clone()
    for number in range(20):
        batch = batch_of(number)
        halves = Data((batch.inputs[0].bfloat16(),), batch.targets)
        loss = nn.functional.cross_entropy(plain(*halves.inputs), *halves.targets)
        gradients = torch.autograd.grad(loss, list(plain.parameters()))
        assert worker.step(halves, number) == float(loss.detach())
        worker.values.sub_(worker.gradients, alpha=1e-4)
        worker.gradient.zero()
        for parameter, master, gradient in zip(plain.parameters(), masters, gradients, strict=True):
            master.sub_(gradient.float(), alpha=1e-4)
            parameter.data.copy_(master)
    assert worker.values.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(worker.views(worker.values), masters, strict=True))
    assert not torch.equal(worker.values, before)
    predicted = worker.predict(halves)
    assert torch.equal(predicted, plain(*halves.inputs).detach())
    assert model[0].weight.dtype == torch.bfloat16


class Widen(nn.Module):
    """From a half to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().float()


def test_a_model_without_parameters_has_empty_buffers() -> None:
    worker = UncutWorker(nn.Flatten(), nn.functional.cross_entropy)
    assert worker.values.shape == worker.gradients.shape == (0,)


def test_in_autocast_it_is_plain_torch_in_autocast() -> None:
    worker, model = UncutWorker(net(), nn.functional.cross_entropy, seed=7, autocast="bfloat16"), net()
    found = worker.step(batch_of(0), 0)
    torch.manual_seed(mask_seed(7, 0, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = nn.functional.cross_entropy(model(*batch_of(0).inputs), *batch_of(0).targets)
    expected.backward()
    assert found == expected.item()
    assert torch.equal(worker.gradients, torch.cat([gradient.reshape(-1) for gradient in _grads(model)]))
    assert worker.predict(batch_of(1)).dtype == torch.bfloat16
