"""`cutset plan --method`: what it says of a task, its command, and its placement, which is that of a replica."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cutset.errors import UsageError
from cutset.partition.cluster.hierarchy import order_machines
from cutset.partition.placement.placement_file import Placement
from cutset.partition.planner.pins import name_pins
from cutset.ps.methods.registry import parse_method
from cutset.tools.commands.cli import cli
from cutset.tools.report.whole_run import describe_run
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import plan_task
from cutset.tools.whole_run.plan_task_run import PlannedRun, plan_task_run
from cutset.tools.whole_run.what_if import list_changes

CLUSTER = """
[network]
bandwidth = "{bandwidth}"
latency = "50 us"
[[machine]]
name = "desk"
count = 4
flops = "5 GFLOP/s"
memory = "{memory}"
"""
TASK = "cutset.models:digits"


def write_cluster(folder: Path, *, bandwidth: str = "10 Gbit/s", memory: str = "1 GB") -> Path:
    path = folder / "cluster.toml"
    path.write_text(CLUSTER.format(bandwidth=bandwidth, memory=memory))
    return path


def plan_by(method: str, cluster: Path) -> PlannedRun:
    spec = TaskSpec(TASK)
    request = PlanRequest(cluster=cluster)
    return plan_task_run(capture_task(spec), spec, request, parse_method(method), method_text=method)


@pytest.mark.run
def test_what_to_do_with_the_machines(tmp_path: Path) -> None:
    planned = plan_by("downpour:fetch=8,push=8", write_cluster(tmp_path))
    chosen = planned.run.chosen
    assert chosen.replicas == 4
    assert describe_run(planned).startswith("4 replicas of 1 machine by downpour: ")
    options = dict(zip(*[iter(shlex.split(planned.command)[3:])] * 2, strict=True))
    assert options["--replicas"] == "4"
    assert options["--machines"] == "1"
    assert options["--cluster"].endswith("cluster.toml")
    assert len(planned.placement.machines) == 1


@pytest.mark.run
def test_a_slow_network_is_said_not_to_pay(tmp_path: Path) -> None:
    planned = plan_by("sync", write_cluster(tmp_path, bandwidth="1 Mbit/s"))
    assert "no split of 4 machines by sync is faster" in describe_run(planned)
    assert planned.run.chosen.machines == 1
    assert not planned.run.pays


@pytest.mark.parametrize("name", ["digits_local"])
@pytest.mark.run
def test_json_has_splits_and_a_placement(tmp_path: Path, name: str) -> None:
    cluster = str(write_cluster(tmp_path))
    arguments = ["plan", f"cutset.models:{name}", "--cluster", cluster, "--method", "sync", "--json"]
    found = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    chosen = found["splits"][found["chosen"]]
    assert chosen["fits"]
    assert f"--replicas {chosen['replicas']} --machines {chosen['machines_each']}" in found["command"]
    placement = msgspec.convert(found["placement"], Placement)
    assert len(placement.machines) == chosen["machines_each"]
    speeds = [split["samples_per_s"] for split in found["splits"]]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.run
def test_the_table_has_the_chosen_split(tmp_path: Path) -> None:
    arguments = ["plan", TASK, "--cluster", str(write_cluster(tmp_path)), "--method", "downpour"]
    lines = CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout.splitlines()
    assert sum(line.startswith("* ") and "chosen" not in line for line in lines) >= 1
    assert any("cutset train" in line for line in lines)


def test_options_that_exclude_each_other() -> None:
    result = CliRunner().invoke(cli, ["plan", TASK, "--max-machines", "4", "--method", "sync"])
    assert "--max-machines has no effect with --method" in str(result.exception)


@pytest.mark.parametrize("method", ["hogwild", "allreduce", "sandblaster"])
def test_methods_of_one_host_are_not_planned_over_several(tmp_path: Path, method: str) -> None:
    text = CLUSTER.format(bandwidth="1 Gbit/s", memory="1 GB").replace("count = 4\n", 'address = "me@desk"\n')
    (tmp_path / "reached.toml").write_text(text + text[text.index("[[machine]]") :].replace('"desk"', '"shelf"'))
    with pytest.raises(UsageError, match="does not go over several machines") as caught:
        plan_by(method, tmp_path / "reached.toml")
    assert caught.value.code == "E269"
    with pytest.raises(UsageError, match="does not go over several machines"):
        plan_by(method, write_cluster(tmp_path))  # whose machines are known by their speed alone


@pytest.mark.run
def test_methods_of_one_host_are_planned_over_its_processes(tmp_path: Path) -> None:
    """Which a file says to share its cores, or to be on it."""
    one_host = CLUSTER.format(bandwidth="1 Gbit/s", memory="1 GB")
    (tmp_path / "shared.toml").write_text(
        f'{one_host}\n[[shared]]\nmachines = ["desk 0", "desk 1", "desk 2", "desk 3"]\ncores = 2\n'
    )
    inside = '[network.inside]\nbandwidth = "10 Gbit/s"\nlatency = "10 us"\n'
    (tmp_path / "hosted.toml").write_text(one_host.replace("count = 4\n", 'count = 4\nhost = "left"\n') + inside)
    for name in ("shared.toml", "hosted.toml"):
        assert plan_by("hogwild", tmp_path / name).command


def test_machines_that_ssh_reaches_are_named_as_its_engine(tmp_path: Path) -> None:
    text = CLUSTER.format(bandwidth="10 Gbit/s", memory="1 GB").replace("count = 4\n", 'address = "me@desk"\n')
    path = tmp_path / "reached.toml"
    path.write_text(text + text[text.index("[[machine]]") :].replace('"desk"', '"shelf"'))
    assert f"--on ssh:{path}" in plan_by("downpour:fetch=8,push=8", path).command


@pytest.mark.run
def test_the_command_has_every_option_of_the_plan(tmp_path: Path) -> None:
    spec = TaskSpec(TASK, batch=40, autocast="bfloat16", leaf_modules=("0",))
    request = PlanRequest(cluster=write_cluster(tmp_path), pins=("2=1",), micro_batches=2, objective="memory", seed=3)
    method = parse_method("downpour")
    capture = capture_task(msgspec.structs.replace(spec, batch=20))
    planned = plan_task_run(capture, spec, request, method, method_text="downpour")
    words = shlex.split(planned.command)
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options.pop("--cluster").endswith("cluster.toml")
    assert {"--replicas", "--machines"} <= options.keys()
    kept = ("--batch", "--autocast", "--leaf-modules", "--pin", "--micro-batches", "--objective", "--seed")
    assert [options[name] for name in kept] == ["40", "bfloat16", "0", "2=1", "2", "memory", "3"]
    assert planned.run.chosen.machines_each > 1, "the pinned machine is the second"
    assert planned.run.rejected[0].startswith("1 machine each: pin '2=desk 1'")


def test_more_backups_than_replicas(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave none whose gradients count") as caught:
        plan_by("sync:backups=4", write_cluster(tmp_path))
    assert caught.value.code == "E263"


@pytest.mark.run
def test_a_model_that_is_too_large_for_one_machine_is_compared_with_none(tmp_path: Path) -> None:
    planned = plan_by("downpour:fetch=8,push=8", write_cluster(tmp_path, memory="160 kB"))
    assert planned.run.chosen.machines_each > 1
    assert "the model is too large for one machine" in describe_run(planned)


def test_the_machines_that_are_asked_for_hold_the_model(tmp_path: Path) -> None:
    """Of a file, --machines 1 takes the fastest machine that holds the model."""
    fast = CLUSTER.format(bandwidth="10 Gbit/s", memory="1 kB").replace("5 GFLOP/s", "9 GFLOP/s")
    slow = fast[fast.index("[[machine]]") :].replace("9 G", "1 G").replace("1 kB", "1 GB").replace('"desk"', '"large"')
    (tmp_path / "cluster.toml").write_text(fast + slow)
    spec = TaskSpec(TASK)
    planned = plan_task(capture_task(spec), spec, PlanRequest(machines=1, cluster=tmp_path / "cluster.toml"))
    assert [machine.name for machine in planned.placement.machines] == ["large 0"]


def test_a_pin_keeps_its_machine_where_one_is_added(tmp_path: Path) -> None:
    """The one more machine is first in the order of names; without names the pin would mean another one."""
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.format(bandwidth="10 Gbit/s", memory="1 GB").replace('"desk"', '"z"').replace("4", "2"))
    cluster = PlanRequest(cluster=path).load_cluster()
    (change,) = list_changes(cluster, faster_network=None, add_machine=True)
    assert next(change.cluster.machines[n].name for n in order_machines(change.cluster)) == "one more z 0"
    assert name_pins(["2=1", "0=z 0", "1=9"], cluster) == ("2=z 1", "0=z 0", "1=9")
    arguments = ["plan", TASK, "--cluster", str(path), "--pin", "2=1", "--add-machine", "--json"]
    found = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    assert found["what_if"][0]["failure"] == ""


def test_plans_for_many_machines_say_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.tools.whole_run.plan_task_run.QUICK_MACHINES", 2)
    spec, method, words = TaskSpec(TASK), parse_method("downpour"), list[str]()
    request = PlanRequest(cluster=write_cluster(tmp_path), candidates="slices")
    plan_task_run(capture_task(spec), spec, request, method, method_text="downpour", tell=words.append)
    assert words == ["planning a replica of 3 of the 4 machines", "planning a replica of 4 of the 4 machines"]
