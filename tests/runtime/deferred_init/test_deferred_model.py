"""Values that are drawn one after the other are those of a model that was built at once, bit for bit."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from cutset import models
from cutset.runtime.deferred_init import deferred_model as module
from cutset.runtime.deferred_init.deferred_model import record
from cutset.runtime.deferred_init.generator_tracking import Unrecordable
from tests.support.zoo import CASES, MORE_CASES


def seeded(factory, seed=3):
    """The factory, run as a task builds its model."""

    def build():
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed)
            return factory()

    return build


def state(model):
    """Parameters and buffers under every name."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))


def replayed(deferred, wanted=None):
    found = {}

    def sink(name, value, *, start=0):
        whole = (state(deferred.model) if wanted is None else wanted)[name]
        if value.numel() == whole.numel():
            assert name not in found
            found[name] = value.detach().clone()
            return
        parts = found.setdefault(name, torch.full(whole.shape, math.nan, dtype=value.dtype)).view(-1)
        assert parts[start : start + value.numel()].isnan().all(), "each part once"
        parts[start : start + value.numel()] = value

    deferred.replay(state(deferred.model) if wanted is None else wanted, sink)
    return found


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        tensor = tensor.detach()
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name


def check(factory, seed=3):
    before = torch.get_rng_state()
    deferred = record(seeded(factory, seed))
    found = replayed(deferred)
    assert torch.equal(torch.get_rng_state(), before)
    built = seeded(factory, seed)()
    same(found, state(built))
    assert [p.requires_grad for p in deferred.model.parameters()] == [p.requires_grad for p in built.parameters()]
    return deferred


BUNDLED = ("digits", "digits_local", "mnist", "mnist_conv", "speech", "resnet", "local_80m")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_tasks(name):
    check(getattr(models, name)().model)


def test_a_bundled_transformer():
    check(models.transformer(layers=3, width=64, heads=4, context=16, vocabulary=100).model)


@pytest.mark.parametrize("case", (CASES | MORE_CASES).values(), ids=(CASES | MORE_CASES).keys())
def test_the_zoo(case):
    check(case.model)


class Tied(nn.Module):
    """Ends with the weights that it begins with, and initialises all a second time."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 24, padding_idx=3)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 48, batch_first=True), 3)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.table.weight
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("linear2.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(6))

    def _initialise(self, module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Peculiar(nn.Module):
    """Parameters and buffers that come about in many ways."""

    def __init__(self):
        super().__init__()
        self.drawn = nn.Parameter(torch.randn(7, 5) / 3)
        self.later = nn.Parameter(torch.empty(33, 20))
        nn.init.orthogonal_(self.later)
        nn.init.sparse_(self.drawn, 0.3)
        self.turned = nn.Parameter(torch.empty(9, 40).t())
        nn.init.kaiming_uniform_(self.turned, a=math.sqrt(5))
        self.doubled = nn.Parameter(torch.empty(40, 40, dtype=torch.float64))
        with torch.no_grad():
            self.doubled[:20].normal_()
            self.doubled[20:].copy_(self.doubled[:20])
            self.doubled[::3, 1].fill_(2.0)
            self.doubled.data.mul_(0.5)
        self.small = nn.Parameter(torch.empty(15).normal_())  # fewer than 16 are drawn in another way
        self.odd = nn.Parameter(torch.empty(37, 3).normal_())
        self.listed = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.frozen = nn.Parameter(torch.linspace(0, 1, 5), requires_grad=False)
        self.array = nn.Parameter(torch.from_numpy(np.arange(6, dtype=np.float32)))
        self.swapped = nn.Parameter(torch.zeros(4))
        self.swapped.data = torch.rand(6, 2)
        self.cast = nn.Parameter(torch.rand(5).to(torch.bfloat16))
        self.register_buffer("angles", torch.outer(torch.arange(8.0), 1 / 10_000 ** (torch.arange(4) / 4)).cos())
        self.register_buffer("mask", torch.tril(torch.ones(6, 6, dtype=torch.bool)))
        self.register_buffer("order", torch.randperm(20))
        self.register_buffer("counter", torch.tensor(0))
        self.register_buffer("view", self.angles[2:4], persistent=False)


def recurrent():
    return nn.Sequential(nn.LSTM(8, 16, num_layers=2, bidirectional=True), nn.GRU(32, 4))


def normed():
    spectral = parametrizations.spectral_norm(nn.Linear(12, 9))
    return nn.Sequential(
        spectral,
        parametrizations.weight_norm(nn.Linear(9, 9)),
        nn.BatchNorm1d(9),
    )


def seeds_itself():
    torch.manual_seed(11)
    first = nn.Linear(30, 30)
    with torch.random.fork_rng(devices=[]):
        inner = nn.Linear(30, 30)
    again = nn.Linear(30, 30)  # drawn from where `inner` was
    state = torch.get_rng_state()
    second = nn.Linear(20, 20)
    torch.set_rng_state(state)
    third = nn.Linear(20, 20)
    torch.manual_seed(11)
    return nn.Sequential(first, inner, again, second, third, nn.Linear(30, 30))


def generators_of_its_own():
    one, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    other.set_state(one.get_state())
    made = nn.ParameterList([torch.randn(40, generator=g) for g in (one, other, one)])
    made.append(nn.Parameter(torch.empty(30)))
    nn.init.normal_(made[3], generator=other)
    made.append(torch.randn(20))
    return made


def branches_on_constants():
    sizes = torch.tensor([4, 6])
    rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
    assert torch.arange(4).sum() == 6
    return nn.Sequential(nn.Linear(int(sizes[0]), sizes.tolist()[1]), *(nn.Dropout(rate) for rate in rates))


def encoder_and_decoder():
    return nn.Transformer(16, 2, 2, 2, 32, batch_first=True)


def truncated():
    """Drawn until all are inside: in both of torch's ways, with fewer than 16, and partly."""
    made = nn.ParameterList(torch.empty(n, 7) for n in (1, 9, 40))
    for parameter, bounds in zip(made, ((-2, 2), (-0.1, 0.1), (-2, 0.5)), strict=True):
        nn.init.trunc_normal_(parameter, a=bounds[0], b=bounds[1])
    with torch.no_grad():
        nn.init.trunc_normal_(made[2][5:20], std=0.02)
        nn.init.trunc_normal_(made[1], generator=torch.Generator().manual_seed(4))
    made.append(torch.randn(40))
    return made


FACTORIES = (
    Tied,
    Peculiar,
    recurrent,
    normed,
    seeds_itself,
    generators_of_its_own,
    branches_on_constants,
)


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_values_that_come_about_in_many_ways(factory):
    check(factory)


def test_plain_tensors_have_values_too():
    def factory():
        model = nn.Linear(4, 4)
        model.table = torch.randn(3, 3)
        return model

    deferred = record(seeded(factory))
    assert torch.equal(replayed(deferred, {"table": deferred.model.table})["table"], seeded(factory)().table)


def test_a_recording_is_replayed_again_and_again():
    deferred = record(seeded(Peculiar))
    same(replayed(deferred), replayed(deferred))


def looks_at_values():
    model = nn.Linear(3, 3)
    if model.weight.sum() > 0:
        nn.init.zeros_(model.bias)
    return model


def looks_and_goes_on():
    model = nn.Linear(3, 3)
    try:
        nn.init.constant_(model.bias, float(model.weight.max()))
    except Exception:
        nn.init.zeros_(model.bias)
    return model


def through_numpy():
    return nn.ParameterList([torch.from_numpy(np.tanh(torch.randn(3).numpy()))])


def changes_what_was_there():
    array = np.zeros(4, dtype=np.float32)
    torch.from_numpy(array).normal_()
    return nn.ParameterList([torch.from_numpy(array * 2)])


def of_a_file(tmp_path):
    def factory():
        model = nn.Linear(3, 3)
        model.load_state_dict(torch.load(tmp_path / "weights.pt"))
        return model

    return factory


def sets_a_state_of_its_own():
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(3, generator=generator)
    moved = torch.Generator().manual_seed(2).get_state()
    moved[100] ^= 1
    generator.set_state(moved)
    return nn.ParameterList([first, torch.randn(3, generator=generator)])


UNRECORDABLE = {
    "looks at values": (looks_at_values, "cannot be deferred"),
    "looks at values and goes on": (looks_and_goes_on, "cannot be deferred"),
    "through numpy": (through_numpy, "without values it fails"),
    "changes what was there": (changes_what_was_there, "was there before the model"),
    "sets a state of its own": (sets_a_state_of_its_own, "was there before the model|sets the state of a random"),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(9, 9)), "allclose"),
    "fails": (lambda: nn.Linear(3, "a"), "without values it fails: TypeError"),
}


@pytest.mark.parametrize(("factory", "words"), UNRECORDABLE.values(), ids=UNRECORDABLE.keys())
def test_what_cannot_be_deferred_is_refused(factory, words):
    with pytest.raises(Unrecordable, match=words):
        record(seeded(factory))


def test_weights_of_a_file_are_not_taken_for_zeros(tmp_path):
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "weights.pt")
    try:
        found = replayed(record(seeded(of_a_file(tmp_path))))
    except Unrecordable:
        return
    same(found, state(seeded(of_a_file(tmp_path))()))


def deep(layers, width):
    made = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    for layer in made:  # a second time, as many models do once all is built
        nn.init.normal_(layer.weight, std=0.02)
    return made


def test_no_more_is_held_than_the_largest_tensor():
    layers, width = 12, 700
    deferred = record(seeded(lambda: deep(layers, width)))
    most = 0

    def sink(name, value):
        nonlocal most
        most = max(most, executions[-1].held_bytes)
        names.append(name)

    executions, names, original = [], [], module.EventExecutor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EventExecutor", lambda *given: executions.append(original(*given)) or executions[-1])
        deferred.replay(state(deferred.model), sink)
    assert sorted(names) == sorted(state(deferred.model))
    assert most == width * width * 4
    assert executions[-1].held_bytes == 0


class Drawn(nn.Module):
    """Tensors that are nothing but drawn, of sizes that parts of 64 do not divide, and others."""

    def __init__(self):
        super().__init__()
        self.uniform = nn.Parameter(torch.empty(5, 7, 11))
        nn.init.uniform_(self.uniform, -0.3, 0.2)
        self.linear, self.table = nn.Linear(33, 37), nn.Embedding(101, 7)
        self.normal = nn.Parameter(nn.init.normal_(torch.empty(1003), 1.0, 2.0))
        self.wide = nn.Parameter(nn.init.normal_(torch.empty(80, dtype=torch.float64)))
        self.changed = nn.Parameter(nn.init.normal_(torch.empty(900)) * 2)
        self.turned = nn.Parameter(nn.init.uniform_(torch.empty(20, 50).t()))
        self.last = nn.Parameter(torch.randn(100))


def test_large_tensors_are_drawn_in_parts(monkeypatch):
    monkeypatch.setattr(module, "PART", 64)
    deferred, parts = record(seeded(Drawn)), {}
    deferred.replay(
        state(deferred.model), lambda name, value, *, start=0: parts.setdefault(name, {}).update({start: value.clone()})
    )
    built = state(seeded(Drawn)())
    assert {name: len(found) for name, found in parts.items() if len(found) > 1} == {
        "uniform": 6, "linear.weight": 19, "table.weight": 11, "normal": 16,
    }  # fmt: skip
    for name, found in parts.items():
        drawn = torch.cat([found[start].flatten() for start in sorted(found)])
        assert torch.equal(drawn, built[name].flatten()), name
        starts = np.cumsum([0, *(len(found[start].flatten()) for start in sorted(found))])
        assert sorted(found) == starts[:-1].tolist()
