"""A run of real processes that a simulation is compared with: the same roles, over ZeroMQ, in real time.

A step takes as long as the simulated machine would take: the process computes, and then sleeps for the rest. So few
cores serve several replicas, and their pace is the one that is drawn in virtual time, too. A process of its own fetches
the parameters now and then; what they are worth is measured after the run.
"""

import time
import uuid
from typing import Any

import msgspec
import torch
from torch import Tensor

from ....ps.client.client import Client
from ....ps.server.serve_loop import serve
from ....ps.slices.slicing import count_shards
from ....ps.slices.staleness import merge_histograms
from ....runtime.channel.channel import Channel, SilenceError
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import LAUNCHER, Message
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ...samples.read_samples import read_split
from ...samples.sample_loader import make_stream
from ...task.load_task import TaskSpec, load_task
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import Point, SimulatedRun, SimulationSpec
from ...virtual_time.roles import ReplicaRole, divide_parameters, make_shard, take_turns

ENTRY = "cutset.tools.bench.virtual_time.real_replicas:{}"
START_TIMEOUT_S = 120.0
FINISH = (LAUNCHER, "finish", 0, 0, 0)


class RealSetup(msgspec.Struct, frozen=True):
    """The setup of every role. test_every_s: seconds between two looks at the parameters."""

    task: TaskSpec
    spec: SimulationSpec
    test_every_s: float


def run_real(task: TaskSpec, spec: SimulationSpec, *, test_every_s: float) -> SimulatedRun:
    """Run the replicas of a spec, which take turns, as processes of this host."""
    if not spec.takes_turns:
        raise ValueError("real replicas take turns")
    setup = msgspec.to_builtins(RealSetup(task, spec, test_every_s))
    model = SharedModel(load_task(task), seed=spec.seed)
    shards = [f"shard-{i}" for i in range(count_shards(divide_parameters(spec, model.initial.numel())))]
    workers = [f"worker-{i}.0" for i in range(spec.replicas)]
    kinds = {"tester": "run_tester", **dict.fromkeys(shards, "run_shard"), **dict.fromkeys(workers, "run_replica")}
    roles = [Role(name, ENTRY.format(entry), setup) for name, entry in kinds.items()]
    values: dict[str, Any] = {}
    ready, left = set(kinds) - set(shards), set(workers)
    with Launcher(roles, job=f"virtual-{uuid.uuid4().hex[:12]}") as launcher:
        launcher.start()
        for message in launcher.events():
            match message.kind:
                case "ready":
                    ready.discard(message.sender)
                    if not ready:
                        for name in ("tester", *workers):
                            launcher.send(name, Message("go"))
                case "finished":
                    values[message.sender] = message.body["value"]
                    left.discard(message.sender)
                    if message.sender in workers and not left:
                        launcher.send("tester", Message("finish"))
                    if message.sender == "tester":
                        for name in shards:
                            launcher.send(name, Message("finish"))
    return _summarize(values, workers, shards)


def _summarize(values: dict[str, Any], workers: list[str], shards: list[str]) -> SimulatedRun:
    slices = [part for name in shards for part in values[name]["slices"]]
    replicas = [values[name] for name in workers]
    seconds = max(replica["seconds"] for replica in replicas)
    return SimulatedRun(
        points=msgspec.convert(values["tester"], list[Point]),
        seconds=seconds,
        failure="",
        steps=[len(replica["step_s"]) for replica in replicas],
        updates=min(part["version"] or 0 for part in slices),
        staleness=merge_histograms(counts for part in slices for counts in part["staleness"].values()),
        bytes_sent=sum(part["bytes_in"] + part["bytes_out"] for part in slices),
        waiting=sum(replica["waited_s"] for replica in replicas) / (seconds * len(replicas)),
        shards_busy=0.0,
        step_s=[replica["step_s"] for replica in replicas],
    )


def run_shard(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Be a shard."""
    config = msgspec.convert(setup, RealSetup)
    model = SharedModel(load_task(config.task), seed=config.spec.seed)
    slices = divide_parameters(config.spec, model.initial.numel())
    index = int(channel.name.partition("-")[2])
    return serve(make_shard(config.spec, slices, index), channel, progress=progress)


def run_replica(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Be a replica."""
    config = msgspec.convert(setup, RealSetup)
    spec, task = config.spec, load_task(config.task)
    model, samples = SharedModel(task, seed=spec.seed), read_split(task, "train")
    number = int(channel.name.partition("-")[2].partition(".")[0])
    stream, began = make_stream(samples, batch=spec.batch, seed=spec.seed), 0.0
    mailbox = Mailbox(channel)
    role = ReplicaRole(spec, model, number, clock=time.perf_counter, sleep=time.sleep, early=True)
    steps = 0

    def get_ready() -> None:
        nonlocal began
        _wait_for_start(channel, mailbox, progress)
        began = time.perf_counter()

    def count_step() -> None:
        nonlocal steps
        steps += 1
        progress.value = f"{steps} steps"

    slices = divide_parameters(spec, model.initial.numel())
    assign = take_turns(spec, number, samples, stream)
    role.train(mailbox, slices, assign, on_step=count_step, retransmit_s=15.0, ready=get_ready)
    return {"seconds": time.perf_counter() - began, "step_s": role.replica.step_s, "waited_s": role.waited_s()}


def run_tester(channel: Channel, setup: Any, progress: RoleProgress) -> list[dict[str, Any]]:
    """Look at the parameters now and then, and say at the end what they were worth."""
    config = msgspec.convert(setup, RealSetup)
    spec, task = config.spec, load_task(config.task)
    model, test = SharedModel(task, seed=spec.seed), read_split(task, "test")
    values, mailbox = model.initial.clone(), Mailbox(channel)
    client = Client(mailbox, divide_parameters(spec, values.numel()), values, replica=0)
    _wait_for_start(channel, mailbox, progress)
    began, looks = time.perf_counter(), [(0.0, values.clone())]
    while not is_over(mailbox, config.test_every_s):
        looks.append(_look(client, began, progress))
    looks.append(_look(client, began, progress))
    progress.value = None  # scoring is not hanging
    points = []
    for seconds, seen in looks:
        scores = model.score(seen, test, 500)
        points.append(Point(seconds, 0, scores.accuracy, None, scores.loss, None))
    return [msgspec.to_builtins(point) for point in points]


def _look(client: Client, began: float, progress: RoleProgress) -> tuple[float, Tensor]:
    client.fetch()
    client.wait()
    seconds = time.perf_counter() - began
    progress.value = f"{seconds:.1f} s"
    return seconds, torch.clone(client.values)


def is_over(mailbox: Mailbox, within_s: float) -> bool:
    """Return whether the launcher has said so, waiting for this long: also if it came while a fetch waited."""
    try:
        mailbox.wait([FINISH], timeout_s=within_s)
    except SilenceError:
        return False
    return True


def _wait_for_start(channel: Channel, mailbox: Mailbox, progress: RoleProgress) -> None:
    channel.send(LAUNCHER, Message("ready"))
    progress.value = None
    mailbox.wait([(LAUNCHER, "go", 0, 0, 0)], timeout_s=START_TIMEOUT_S)
    progress.value = "0 steps"
