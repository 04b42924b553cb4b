"""What torch and the Hub wrote is read, what is written torch reads: weights and optimizer state are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cutset.errors import BadInput, UsageError
from cutset.ps.optimizers.registry import parse_optimizer
from cutset.tools.commands.exchange_commands import export
from cutset.tools.exchange import trained_model
from cutset.tools.exchange.forms import read_form, write_form
from cutset.tools.exchange.trained_model import (
    TORCH_NAMES,
    TORCH_OPTIMIZERS,
    TrainedModel,
    read_trained,
    write_checkpoint,
)
from cutset.tools.run_folder import WEIGHTS

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad-torch": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
OPTIONS = {  # of the same here: text and learning rate
    "sgd": ("sgd:momentum=0.9", 0.1),
    "adam": ("adam", 0.01),
    "adamw": ("adamw", 0.01),
    "rmsprop": ("rmsprop:momentum=0.5", 0.01),
    "adagrad-torch": ("adagrad-torch", 0.1),
}
UPDATES = 4


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def train(make: Make, *, named: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    optimizer = make(model.named_parameters() if named else model.parameters())
    step(model, optimizer, UPDATES)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def through_a_run(model: TrainedModel, folder: Path) -> TrainedModel:
    """Write a model as a run from which to resume, with its weights beside, and read it."""
    write_checkpoint(model, folder, {"samples": 32, "seed": 0, "method": "sync", "step": 4})
    save_file(model.weights, folder / WEIGHTS)
    return read_trained(folder)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_torch_goes_on_after_the_way_through_a_run(
    name: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in the file, with the options of a run that was trained with the same."""
    monkeypatch.setattr(trained_model, "parse_optimizer", lambda name, lr: parse_optimizer(*OPTIONS[name]))
    model, optimizer = train(OPTIMIZERS[name], named=named)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "theirs.pt")
    read = read_form(tmp_path / "theirs.pt")
    assert read.optimizer == name
    exported = through_a_run(read, tmp_path / "run")
    write_form("torch", tmp_path / "ours.pt", exported, part_bytes=1)
    ours = torch.load(tmp_path / "ours.pt", weights_only=True)
    again = net()
    again.load_state_dict(ours["model"])
    assert same(again.state_dict(), model.state_dict())
    later = type(optimizer)(again.named_parameters(), lr=7.0)  # which the file replaces, with all other options
    later.load_state_dict(ours["optimizer"])
    for one in (later, optimizer):
        step(again if one is later else model, one, 3)
    assert same(again.state_dict(), model.state_dict())


def test_all_optimizers_whose_state_torch_has_are_tried() -> None:
    assert OPTIMIZERS.keys() == OPTIONS.keys() == TORCH_NAMES.keys() == TORCH_OPTIMIZERS.keys()
    assert all(type(make([torch.zeros(1)])) is TORCH_OPTIMIZERS[name] for name, make in OPTIMIZERS.items())


@pytest.mark.parametrize("name", ["adagrad", "adam/tau", "adadelay"])
def test_of_an_optimizer_that_torch_does_not_have_the_weights_alone_are_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = train(OPTIMIZERS["adagrad-torch"])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "theirs.pt")
    monkeypatch.setattr(trained_model, "parse_optimizer", lambda _, lr: parse_optimizer(name, lr))
    through_a_run(read_form(tmp_path / "theirs.pt"), tmp_path / "run")
    for form in ("torch", "dcp"):
        done = CliRunner().invoke(export, [str(tmp_path / "run"), "--to", form, "--out", str(tmp_path / form)])
        assert f"without the state of {name}: no optimizer of torch is the same" in done.output
    assert torch.load(tmp_path / "torch", weights_only=True).keys() == {"model"}
    assert not read_form(tmp_path / "dcp", trust=True).state


@pytest.mark.parametrize("named", [True, False])
def test_the_state_of_several_groups_needs_names(named: bool, tmp_path: Path) -> None:
    """Groups may have parameters in any order, as one for the head before one for the rest: shapes do not tell."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    groups = [list(layer.named_parameters(f"{n}") if named else layer.parameters()) for n, layer in enumerate(model)]
    groups = [[(name.removeprefix("."), p) for name, p in group] if named else group for group in groups]
    optimizer = torch.optim.Adam([{"params": group} for group in reversed(groups)])
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "theirs.pt")
    if not named:
        with pytest.raises(BadInput, match="which of its parameters") as caught:
            read_form(tmp_path / "theirs.pt")
        assert caught.value.code == "E349"
        return
    read = read_form(tmp_path / "theirs.pt")
    for name, parameter in model.named_parameters():
        assert torch.equal(read.state[name]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_state_beside_that_of_parameters_with_fewer_bits_is_not_rounded(tmp_path: Path) -> None:
    weights = {"half": torch.randn(5).bfloat16(), "full": torch.randn(7)}
    state = {
        name: {"exp_avg": torch.randn_like(weight), "exp_avg_sq": torch.rand_like(weight), "step": torch.tensor(3.0)}
        for name, weight in weights.items()
    }
    read = through_a_run(TrainedModel(weights, "adam", state, updates=3), tmp_path / "run")
    assert same(read.weights, weights)
    for name, own in state.items():
        assert same({key: read.state[name][key] for key in own}, {key: value.float() for key, value in own.items()})


def test_a_distributed_checkpoint_has_the_same(tmp_path: Path) -> None:
    model, optimizer = train(OPTIMIZERS["adamw"])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "theirs.pt")
    exported = through_a_run(read_form(tmp_path / "theirs.pt"), tmp_path / "run")
    write_form("dcp", tmp_path / "dcp", exported, part_bytes=1)
    with pytest.raises(BadInput, match="unpickling") as caught:
        read_form(tmp_path / "dcp")
    assert caught.value.code == "E349"
    back = read_form(tmp_path / "dcp", trust=True)
    assert same(back.weights, model.state_dict())
    assert back.updates == UPDATES
    for name, parameter in model.named_parameters():
        assert torch.equal(back.state[name]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_torch_itself_reads_a_distributed_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    weights = net().state_dict()
    write_form("dcp", tmp_path / "dcp", TrainedModel(dict(weights)), part_bytes=1)
    found = {"model": {name: torch.zeros_like(tensor) for name, tensor in weights.items()}}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(found, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(found["model"], dict(weights))


@pytest.mark.parametrize("part_bytes", [1, 100, 10**9])
def test_the_layout_of_the_hub_in_one_file_or_several(tmp_path: Path, part_bytes: int) -> None:
    weights = dict(net().state_dict())
    write_form("hf", tmp_path / "hub", TrainedModel(weights), part_bytes=part_bytes)
    files = sorted((tmp_path / "hub").glob("*.safetensors"))
    assert (len(files) == 1) == (part_bytes == 10**9)
    assert same({n: t for file in files for n, t in load_file(file).items()}, weights)
    assert same(read_form(tmp_path / "hub").weights, weights)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for form in ("hf", "torch", "dcp"):
        with pytest.raises(UsageError, match="exists"):
            write_form(form, tmp_path / "mine", TrainedModel(dict(net().state_dict())), part_bytes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_what_cannot_be_read_is_named_and_nothing_is_run(tmp_path: Path) -> None:
    torch.save({"model": Trap(tmp_path / "sprung")}, tmp_path / "trap.pt")
    (tmp_path / "broken.pt").write_bytes(b"no file of torch")
    torch.save(7, tmp_path / "number.pt")
    damaged = tmp_path / "hub"
    damaged.mkdir()
    (damaged / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    for name, code in (
        ("trap.pt", "E349"),
        ("broken.pt", "E349"),
        ("number.pt", "E349"),
        ("hub", "E318"),
        ("no", "E349"),
    ):
        with pytest.raises(BadInput) as caught:
            read_form(tmp_path / name)
        assert caught.value.code == code, name
    assert not (tmp_path / "sprung").exists()


def test_state_of_parameters_that_nothing_names_is_refused(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.1)
    step(model, optimizer, 1)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "some.pt")
    with pytest.raises(BadInput, match="which of its parameters"):
        read_form(tmp_path / "some.pt")
