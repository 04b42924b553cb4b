"""`RunConfig`: each option is declared once, and the command line, `cutset.train` and the record are made of that."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import USAGE, Cutset, refused
from places import USER_MODELS

import cutset
from cutset.errors import BadInput, UsageError
from cutset.models.task import Task
from cutset.partition.placement.placement_file import Placement
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.rates import Scaled, Scheduled
from cutset.ps.optimizers.schedule import Cosine
from cutset.ps.optimizers.standard import SGD, Adam
from cutset.ps.slices.compression import TopK
from cutset.tools.commands.train_command import train as train_command
from cutset.tools.config.config_file import load_config, save_config
from cutset.tools.config.named_choices import optimizer_of
from cutset.tools.config.option import options_of
from cutset.tools.config.run_config import RunConfig
from cutset.tools.run_folder import CONFIG

TASK = f"{USER_MODELS / 'good.py'}:task"
FLAGS = {
    "data": "--data",
    "inputs": "--input",
    "batch": "--batch",
    "leaf_modules": "--leaf-modules",
    "autocast": "--autocast",
    "trust_trace": "--trust-trace",
    "machines": "--machines",
    "max_machines": "--max-machines",
    "cluster": "--cluster",
    "placement": "--placement",
    "objective": "--objective",
    "pins": "--pin",
    "micro_batches": "--micro-batches",
    "candidates": "--candidates",
    "method": "--method",
    "optimizer": "--optimizer",
    "lr": "--lr",
    "lr_schedule": "--lr-schedule",
    "groups": "--group",
    "ema": "--ema",
    "clip_norm": "--clip-norm",
    "epochs": "--epochs",
    "target": "--target",
    "evaluate_every": "--evaluate-every",
    "monitor": "--monitor",
    "patience": "--patience",
    "baseline": "--baseline",
    "schedule": "--schedule",
    "on_divergence": "--on-divergence",
    "seed": "--seed",
    "replicas": "--replicas",
    "shards": "--shards",
    "compress": "--compress",
    "restarts": "--restarts",
    "on": "--on",
    "ports": "--ports",
    "host_wait": "--host-wait",
    "out": "--out",
    "tensorboard": "--tensorboard",
    "learn": "--learn",
    "overwrite": "--overwrite",
    "init": "--init",
    "resume": "--resume",
    "checkpoint_every": "--checkpoint-every",
    "keep_checkpoints": "--keep-checkpoints",
}


# One declaration -----------------------------------------------------------------------------------------------------


def test_every_field_but_the_task_is_an_option_with_a_flag_and_help() -> None:
    assert {one.name: said.flag for one, said in options_of(RunConfig)} == FLAGS
    assert [one.name for one in fields(RunConfig)] == ["task", *FLAGS]
    assert all(said.help.endswith((".", "staleness.")) for _, said in options_of(RunConfig))


def test_every_option_is_one_of_the_command() -> None:
    found = {one.name: one for one in train_command.params if isinstance(one, click.Option)}
    assert {name: option.opts[0] for name, option in found.items() if name != "as_json"} == FLAGS


def test_every_option_is_a_parameter_of_train() -> None:
    parameters = inspect.signature(cutset.train).parameters
    assert list(parameters) == ["task", *FLAGS]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in FLAGS)
    assert {name: parameters[name].default for name in FLAGS} == {
        one.name: one.default for one, _ in options_of(RunConfig)
    }
    assert all(f"\n{name}: " in (cutset.train.__doc__ or "") for name in FLAGS)


def test_the_command_makes_the_config_that_python_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunConfig] = []
    monkeypatch.setattr("cutset.tools.commands.train_command._train", lambda config, as_json: made.append(config))
    said = [
        "--machines",
        "2",
        "--pin",
        "a=0",
        "--pin",
        "b=1",
        "--lr",
        "0.5",
        "--no-baseline",
        "--checkpoint-every",
        "7",
    ]
    train_command.main([TASK, *said], standalone_mode=False)
    assert made == [RunConfig(TASK, machines=2, pins=["a=0", "b=1"], lr=0.5, baseline=False, checkpoint_every="7")]
    train_command.main([TASK], standalone_mode=False)
    assert made[1] == RunConfig(TASK)


def test_help_has_titled_groups_and_examples(cutset: Cutset) -> None:
    said = cutset("train", "--help").out
    titles = ["Task:", "Plan:", "Training:", "Replicas, shards and hosts:", "Run folder and checkpoints:", "Other:"]
    assert [line for line in said.splitlines() if line in titles] == titles
    assert "Examples:\n    cutset train cutset.models:digits\n" in said


# Refusals ------------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch": 0}, "E220"),
    ({"epochs": 0}, "E220"),
    ({"replicas": 0}, "E220"),
    ({"shards": -1}, "E220"),
    ({"restarts": -1}, "E220"),
    ({"keep_checkpoints": 0, "checkpoint_every": 5}, "E220"),
    ({"seed": 2**32}, "E220"),
    ({"clip_norm": -1.0}, "E220"),
    ({"clip_norm": float("nan")}, "E220"),
    ({"target": 1.5}, "E225"),
    ({"autocast": "float8"}, "E224"),
    ({"schedule": "fifo", "micro_batches": 2}, "E224"),
    ({"objective": "money"}, "E208"),
    ({"on_divergence": "explode"}, "E285"),
    ({"machines": 2, "max_machines": 3}, "E203"),
    ({"placement": "cut.json", "machines": 2}, "E228"),
    ({"placement": "cut.json", "max_machines": 2}, "E228"),
    ({"placement": "cut.json", "cluster": "cluster.toml"}, "E228"),
    ({"placement": "cut.json", "objective": "bytes"}, "E228"),
    ({"placement": "cut.json", "pins": ["a=0"]}, "E228"),
    ({"placement": "cut.json", "micro_batches": 2}, "E228"),
    ({"placement": "cut.json", "candidates": "metis"}, "E228"),
    ({"placement": "cut.json", "leaf_modules": ["a"]}, "E228"),
    ({"placement": "cut.json", "autocast": "bfloat16"}, "E228"),
    ({"resume": "runs/a", "init": "runs/b"}, "E287"),
    ({"optimizer": "adam:lr=0.1", "lr": 0.1}, "E229"),
    ({"lr": 1e39}, "E226"),
    ({"lr": 0.0}, "E253"),
    ({"optimizer": "newton"}, "E252"),
    ({"method": "nothing"}, "E252"),
    ({"compress": "zip"}, "E252"),
    ({"method": "hogwild", "compress": "int8"}, "E267"),
    ({"method": "hogwild", "checkpoint_every": "5min"}, "E288"),
    ({"method": "downpour:push=2", "checkpoint_every": 5}, "E281"),
    ({"checkpoint_every": "often"}, "E293"),
    ({"keep_checkpoints": 5}, "E230"),
    ({"schedule": "gpipe"}, "E230"),
    ({"method": "sandblaster", "optimizer": "sgd"}, "E296"),
    ({"method": "sandblaster", "lr": 0.02}, "E296"),
    ({"method": "sandblaster", "epochs": 2}, "E296"),
    ({"method": "sandblaster", "target": 0.9}, "E296"),
    ({"method": "sandblaster", "clip_norm": 1.0}, "E296"),
    ({"method": "sandblaster", "patience": 2}, "E296"),
    ({"patience": 0}, "E220"),
    ({"evaluate_every": 0}, "E220"),
    ({"method": "sandblaster", "on_divergence": "retry-scaled"}, "E296"),
    ({"on": "telnet:cluster.toml"}, "E297"),
    ({"on": "ssh:cluster.toml", "cluster": "cluster.toml"}, "E228"),
    ({"on": "ssh:cluster.toml", "method": "hogwild"}, "E269"),
    ({"on": "ssh:cluster.toml", "method": "allreduce"}, "E269"),
    ({"on": "ssh:cluster.toml", "method": "sandblaster"}, "E269"),
]


def arguments(options: dict[str, Any]) -> list[str]:
    """The options as on the command line."""
    return [
        word
        for name, value in options.items()
        for item in (value if isinstance(value, list) else [value])
        for word in (FLAGS[name], str(item))
    ]


@pytest.mark.parametrize(("options", "code"), REFUSED, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_python_and_the_command_line_refuse_the_same(cutset: Cutset, options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig(TASK, **options)
    assert caught.value.code == code
    assert caught.value.fix
    refused(cutset("train", TASK, *arguments(options)), USAGE, code)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"optimizer": SGD(0.1), "lr": 0.1}, "E229"),
        ({"optimizer": SGD(1e39)}, "E226"),
        ({"optimizer": 3}, "E252"),
        ({"method": Downpour}, "E252"),
        ({"compress": TopK}, "E252"),
        ({"replicas": "2"}, "E220"),
        ({"epochs": 1.5}, "E220"),
        ({"pins": [3]}, "E220"),
    ],
)
def test_python_refuses_objects_of_the_wrong_kind(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        RunConfig(TASK, **options)


def test_a_function_as_a_schedule_names_what_makes_one_of_it() -> None:
    def warm(step: int) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r"E252: lr_schedule is a function of the step, warm\n.*TabulatedSchedule.of"):
        RunConfig(TASK, lr_schedule=warm)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"E252: lr_schedule is the class .*Path; .*\n  fix: lr_schedule='cosine'"):
        RunConfig(TASK, lr_schedule=Path)  # type: ignore[arg-type]


def test_a_task_in_hand_is_to_be_named() -> None:
    task = Task(name="mine", model=None, loss=None, example=None, batch=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"E227: the task is a Task itself, .*\n  fix: .*file.py:task"):
        cutset.train(task)  # type: ignore[arg-type]


# Values --------------------------------------------------------------------------------------------------------------


def test_equal_options_are_equal_however_they_are_given() -> None:
    assert RunConfig(TASK, pins="a=0", out="runs/x") == RunConfig(TASK, pins=["a=0"], out=Path("runs/x"))
    assert not any(RunConfig(TASK, out=Path("runs/x")).is_given(name) for name in FLAGS if name != "out")
    assert RunConfig(TASK, epochs=2).is_given("epochs")


def test_a_config_can_be_changed() -> None:
    config = RunConfig(TASK, method="sync", lr=0.1)
    assert replace(config, replicas=2) == RunConfig(TASK, method="sync", lr=0.1, replicas=2)


def test_the_learning_rate_is_the_users_or_the_optimizers_own() -> None:
    assert optimizer_of(None, None).lr == 0.02
    assert optimizer_of("adam", None) == Adam(0.001)
    assert optimizer_of("adam/tau:beta1=0.8", None) == Scaled(Adam(0.001, beta1=0.8))
    assert optimizer_of("sgd", None, "cosine") == Scheduled(SGD(0.1), Cosine())
    assert optimizer_of("sgd:momentum=0.9", None) == SGD(0.01, momentum=0.9)
    assert optimizer_of("adam:lr=0.3", None).lr == 0.3
    assert optimizer_of("adam", 0.1) == Adam(0.1)
    assert optimizer_of(Scaled(SGD(0.4)), None) == Scaled(SGD(0.4))


# config.json ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"machines": 2, "pins": ["a=0", "b=1"], "inputs": ("4x8",), "cluster": "cluster.toml"},
        {"method": "downpour:fetch=4", "optimizer": "adam/tau:beta1=0.8", "lr": 0.1, "compress": "topk:fraction=0.1"},
        {"method": Sync(), "optimizer": Scaled(Adam(0.1)), "compress": TopK(0.1), "checkpoint_every": 8},
        {"method": "sandblaster:iterations=3", "resume": "runs/a", "baseline": False},
        {"placement": "cut.json", "target": 0.9, "shards": 3, "seed": 5},
        {"on": "ssh:cluster.toml", "machines": 2},
    ],
)
def test_the_record_in_the_run_folder_is_read_back(options: dict[str, Any], tmp_path: Path) -> None:
    config = RunConfig(TASK, out=tmp_path, **options)
    assert save_config(config) == tmp_path / CONFIG
    assert load_config(tmp_path) == load_config(tmp_path / CONFIG) == config


def test_a_placement_in_hand_is_recorded_by_the_file_that_it_is_saved_to(tmp_path: Path, mlp: Placement) -> None:
    save_config(RunConfig(TASK, out=tmp_path, placement=mlp))
    assert load_config(tmp_path).placement == tmp_path / "placement.json"


@pytest.mark.parametrize("content", ["", "[]", '{"task": "x", "rule": "sgd"}', "{}"])
def test_a_record_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(BadInput, match=f"E347: .*{CONFIG}"):
        load_config(tmp_path)
