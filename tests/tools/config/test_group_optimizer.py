"""Parameter groups and the moving average are those of torch.optim, whoever applies the optimizer and however cut."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cutset
from cutset.errors import UsageError
from cutset.models.sample_stream import SampleStream
from cutset.models.task import Task, make_example_batches
from cutset.tools.config.group_optimizer import find_frozen
from cutset.tools.config.parameter_group import Group, assign_groups
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.samples.read_samples import read_split
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

TASK = f"{USER_MODELS / 'good.py'}:exact"  # two layers, in float64
GROUPS = ["dims<2:weight_decay=0", "0.*:lr_scale=0.5"]  # the biases; of the rest the first layer; the second
STEPS = 24


def options(out: Path, **more: Any) -> RunConfig:
    return RunConfig(TASK, **{"out": out, "epochs": 2, "baseline": False, "groups": GROUPS, **more})


def parameter_groups(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    return [
        {"params": [named["0.bias"], named["2.bias"]], "weight_decay": 0.0},
        {"params": [named["0.weight"]], "lr": lr / 2},
        {"params": [named["2.weight"]]},
    ]


def train_in_torch(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], lr: float, *, after: Callable[[nn.Module], None]
) -> nn.Module:
    task, stream = load_task(TaskSpec(TASK)), SampleStream(96, batch=8, seed=0)
    samples, model = read_split(task, "train"), task.build(seed=0)
    after(model)
    optimizer = make(parameter_groups(model, lr))
    for step in range(STEPS):
        batch = samples.rows(stream.indices(step))
        optimizer.zero_grad()
        task.loss(model(*batch.inputs), *batch.targets).backward()
        optimizer.step()
        after(model)
    return model


def demand_equal(folder: Path, model: nn.Module, name: str = "model.safetensors") -> None:
    found = load_file(folder / name)
    assert found.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-12)


OPTIMIZERS: list[tuple[str, float, Any]] = [
    ("adamw:weight_decay=0.1", 0.01, lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)),
    (
        "sgd:momentum=0.9,weight_decay=0.1",
        0.05,
        lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.1),
    ),
]
ADAGRAD = (
    "adagrad-torch:weight_decay=0.1",
    0.05,
    lambda groups: torch.optim.Adagrad(groups, lr=0.05, weight_decay=0.1),
)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("name", "lr", "make"), with_slow(OPTIMIZERS[:1], [*OPTIMIZERS[1:], ADAGRAD]))
@pytest.mark.parametrize(
    ("method", "machines", "shards"),
    with_slow(
        [("downpour", 1, 2), ("sync", 2, 3)],
        [("averaging:every=1", 1, 1), ("hogwild", 1, 1), ("allreduce", 1, 1)],
    ),
)
def test_one_replica_makes_the_steps_of_torch(
    tmp_path: Path, method: str, machines: int, shards: int, name: str, lr: float, make: Any
) -> None:
    config = options(tmp_path / "run", method=method, machines=machines, shards=shards, optimizer=name, lr=lr)
    job = prepare(config)
    run(job)
    demand_equal(tmp_path / "run", train_in_torch(make, lr, after=lambda model: None))
    (said,) = [note for note in job.notes if note.startswith("parameter groups")]
    assert said == (
        "parameter groups: 19 elements by dims<2:weight_decay=0, 128 elements by 0.*:lr_scale=0.5, 48 by the rest"
    )


@pytest.mark.slow
def test_the_one_process_has_the_groups_too(tmp_path: Path) -> None:
    name, lr, make = OPTIMIZERS[0]
    result = run(prepare(options(tmp_path / "run", method="sync", machines=2, optimizer=name, lr=lr, baseline=True)))
    plain = train_in_torch(make, lr, after=lambda model: None)
    task = load_task(TaskSpec(TASK))
    tests = read_split(task, "test")
    with torch.no_grad():
        loss = task.loss(plain(*tests.inputs), *tests.targets)  # type: ignore[attr-defined]
    assert result["rows"][0]["test_loss"] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize(("method", "machines"), with_slow([("sync", 2)], [("downpour", 1), ("hogwild", 1)]))
@pytest.mark.run
def test_the_average_is_that_of_torch(tmp_path: Path, method: str, machines: int) -> None:
    name, lr, make = OPTIMIZERS[1]
    run(prepare(options(tmp_path / "run", method=method, machines=machines, optimizer=name, lr=lr, ema=0.9)))
    averaged = list[AveragedModel]()

    def average(model: nn.Module) -> None:
        if not averaged:
            averaged.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
            averaged[0].update_parameters(model)  # the first call copies
        else:
            averaged[0].update_parameters(model)

    demand_equal(tmp_path / "run", train_in_torch(make, lr, after=average))
    demand_equal(tmp_path / "run", averaged[0].module, "model-ema.safetensors")


@pytest.mark.slow
def test_a_resumed_run_has_them_as_before(tmp_path: Path) -> None:
    whole = options(tmp_path / "whole", method="sync", replicas=2, optimizer="adamw", lr=0.01, ema=0.9)
    run(prepare(whole))
    first = replace(whole, out=tmp_path / "run", epochs=1)
    run(prepare(first))
    run(prepare(replace(first, epochs=2, resume=tmp_path / "run", shards=3)))
    for name in ("model.safetensors", "model-ema.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_a_resumed_run_may_have_other_options(tmp_path: Path) -> None:
    """What the checkpoint does not have begins anew, is told, and does what torch's does from there on."""
    first = options(tmp_path / "first", method="sync", optimizer="adamw", lr=0.01, epochs=1, groups=[])
    run(prepare(first))
    result = run(prepare(replace(first, epochs=2, resume=first.out, out=tmp_path / "averaged", ema=0.9)))
    assert "the checkpoint has no ema of the parameters, which begins anew" in result["notes"]
    averaged = list[AveragedModel]()

    def average(model: nn.Module) -> None:
        counted[0] += 1
        if counted[0] == 1 + STEPS // 2:
            averaged.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
        if averaged:
            averaged[0].update_parameters(model)

    counted = [0]
    plain = train_in_torch(
        lambda groups: torch.optim.AdamW([p for g in groups for p in g["params"]], lr=0.01), 0.01, after=average
    )
    demand_equal(tmp_path / "averaged", plain)
    demand_equal(tmp_path / "averaged", averaged[0].module, "model-ema.safetensors")
    again = replace(first, epochs=3, resume=tmp_path / "averaged", out=tmp_path / "plain")
    assert not any("anew" in note for note in run(prepare(again))["notes"])
    assert "ema" not in find_checkpoint(tmp_path / "plain").state_names(), "nobody goes on with an old average"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["allreduce", "hogwild"])
def test_methods_whose_replicas_make_the_updates_resume_the_optimizer(method: str, tmp_path: Path) -> None:
    replicas = 2 if method == "allreduce" else 1
    whole = options(tmp_path / "whole", method=method, replicas=replicas, optimizer="adamw", lr=0.01, ema=0.9)
    run(prepare(whole))
    first = replace(whole, out=tmp_path / "run", epochs=1)
    run(prepare(first))
    run(prepare(replace(first, epochs=2, resume=tmp_path / "run")))
    for name in ("model.safetensors", "model-ema.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("machines", with_slow([2], [1]))
def test_frozen_parameters_stay(tmp_path: Path, machines: int) -> None:
    config = options(tmp_path / "run", groups=[cutset.Group("0.*", frozen=True)], machines=machines, lr=0.1)
    run(prepare(config))
    first, last = load_file(tmp_path / "run" / "initial.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    moved = {name for name in last if not first[name].equal(last[name])}
    assert moved == {"2.weight", "2.bias"}
    command = [Path(sys.executable).with_name("cutset"), "eval", TASK, "--checkpoint", "run"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)


def test_a_group_is_named_as_text_or_as_an_object(tmp_path: Path) -> None:
    text = "a.*,*.bias:weight_decay=0.0,nesterov=true,lr_scale=0.5"
    group = Group("a.*", "*.bias", weight_decay=0.0, nesterov=True, lr_scale=0.5)
    assert str(group) == text == str(Group.parse(text))
    assert RunConfig(TASK, optimizer="sgd:momentum=0.9", groups=group).groups == (text,)


SHAPES = {"wte.weight": (9, 4), "head.weight": (9, 4), "norm.weight": (4,), "head.bias": (9,)}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["*.biass:lr=1"], r"'\*.biass' matches no parameter; there are head.bias"),
        (["*:lr=1", "norm.*:lr=2"], r"norm.\*:lr=2: all that it matches is of the groups before it"),
        (["*.bias"], "is no group"),
        (["a:lr_scale=x"], "is no number"),
        (["a:frozen=true,lr=1"], "is frozen and has other options"),
        (["a:lr_scale=-1"], "not above 0"),
        (["a:lr_scale=0.1,lr=0.5"], "has lr=0.5 and lr_scale=0.1"),
    ],
)
def test_groups_that_cannot_be_are_named(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        assign_groups([Group.parse(text) for text in texts], SHAPES, {})
    assert caught.value.code == "E237"


def test_groups_that_freeze_all_are_named() -> None:
    task = Task("net", lambda: nn.Linear(2, 2), F.cross_entropy, make_example_batches(((2,),), classes=2))
    assert find_frozen([Group.parse("weight:frozen=true")], task) == ("weight",)
    with pytest.raises(
        UsageError, match=r"--group \*:frozen=true freezes 2 parameters of the model, and nothing is left"
    ) as caught:
        find_frozen([Group.parse("*:frozen=true")], task)
    assert caught.value.code == "E237"


def test_the_first_group_counts_and_tied_names_do() -> None:
    groups = [Group.parse(text) for text in ("dims<2:lr=1", "lm_head.*:lr=2", "*.weight:lr=3")]
    numbers = assign_groups(groups, SHAPES, {"lm_head.weight": "wte.weight"})
    assert numbers == {"wte.weight": 1, "head.weight": 2, "norm.weight": 0, "head.bias": 0}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"groups": ["*:beta1=0.5"], "optimizer": "sgd"}, "E254"),
        ({"groups": ["*:weight_decay=2"], "optimizer": "sgd"}, "E253"),
        ({"groups": ["*:lr=1"], "optimizer": "dc-asgd-c"}, "E237"),
        ({"method": "sandblaster", "groups": ["*:lr=1"]}, "E296"),
        ({"ema": 1.5}, "E220"),
    ],
)
def test_options_that_do_not_fit_are_refused(more: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig(TASK, **more)
    assert caught.value.code == code


def test_weights_are_averaged_only_where_shards_update_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="each by itself") as caught:
        prepare(options(tmp_path / "run", method="diloco", ema=0.9, replicas=2, groups=[]))
    assert caught.value.code == "E238"
