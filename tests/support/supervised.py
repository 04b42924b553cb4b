"""A supervisor that a test tells what the roles of its run say, and a launcher that records what it does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from listening import Listening
from places import USER_MODELS

from cutset.errors import ProcessLost
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD
from cutset.runtime.channel.message import Message
from cutset.runtime.hosts.host import LocalHost, Role
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Loss
from cutset.tools.config.run_config import RunConfig
from cutset.tools.hosts.run_hosts import RunHosts
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.leases.scale_requests import ScaleLimits, ScaleRequests
from cutset.tools.training.supervisor import TrainingSupervisor

KILLED = "worker-1.0 was killed by SIGKILL (its last progress was 'step 2')"


def state_file(size: int) -> dict[str, Any]:
    """What a worker reports about the file of its buffers."""
    return {"machine": 0, "sha256": "0" * 64, "bytes": size, "pieces": []}


def scores(accuracy: float) -> dict[str, Any]:
    """What a point of a learning curve has of the scores."""
    return {"test_loss": None, "test_accuracy": accuracy, "metrics": {}}


def prepare_sync_run(out: Path, *, shards: int) -> Job:
    """Prepare a long run of two replicas in lock step, of one machine each, whose roles may be restarted twice."""
    options = RunConfig(
        task=f"{USER_MODELS / 'good.py'}:task",
        method=Sync(),
        optimizer=SGD(0.1),
        out=out,
        replicas=2,
        shards=shards,
        epochs=1000,
        restarts=2,
        baseline=False,
    )
    return prepare(options)


class FakeLauncher:
    """A launcher that only records what it is asked to do."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.leases: list[tuple[str, int, int]] = []
        self.added: list[str] = []
        self.stopped: list[str] = []

    def send(self, peer: str, message: Message) -> None:
        if message.kind == "lease":
            self.leases.append((peer, message.body["first"], message.body["count"]))
        else:
            self.sent.append((peer, message.kind))

    def add(self, roles: Sequence[Role]) -> None:
        self.added += [role.name for role in roles]

    def stop_roles(self, names: Sequence[str]) -> None:
        self.stopped += names


class ImmediateRequests(ScaleRequests):
    """Requests that are there at once."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.limits: list[tuple[int, int]] = []

    def take_request(self) -> int | None:
        request, self.next = self.next, None
        return request

    def publish_limits(self, limits: ScaleLimits) -> None:
        self.limits.append((limits.replicas, limits.max_replicas))


class Run:
    """A supervisor of two replicas of one machine each, and what it reports."""

    def __init__(self, job: Job, **options: Any) -> None:
        method = options.pop("method", job.method)
        self.job = replace(job, method=method, config=replace(job.config, **options))
        self.launcher, self.notices, self.steps = FakeLauncher(), list[str](), list[int]()
        self.requests = ImmediateRequests()
        self.supervisor = TrainingSupervisor(
            self.job,
            RunHosts(self.job, [LocalHost()]),
            listener=Listening(lambda step, loss: self.steps.append(step)),
            on_notice=self.notices.append,
            requests=self.requests,
        )
        self.roles = self.supervisor.roles()
        self.supervisor.mark_started()

    def receive(self, sender: str, kind: str, **body: Any) -> None:
        self.supervisor.handle(Message(kind, body=body, sender=sender), cast(Launcher, self.launcher))

    def progress(self, sender: str, step: int) -> None:
        self.receive(sender, "progress", step=step, steps=6, samples=8 * step, loss=1 / step, seconds=float(step))

    def request_lease(
        self, sender: str, number: int, *, acknowledged: int = 0, idle: bool = False
    ) -> tuple[int, int] | None:
        """Return what it is leased, first and count; None if it has to wait."""
        body = {"idle": idle, "acknowledged": acknowledged, "pace_s": 1e-3}
        before = len(self.launcher.leases)
        message = Message("lease_request", edge=number, body=body, sender=sender)
        self.supervisor.handle(message, cast(Launcher, self.launcher))
        return next(((first, count) for name, first, count in self.launcher.leases[before:] if name == sender), None)

    def request_replicas(self, replicas: int) -> None:
        self.requests.next = replicas
        self.supervisor.watch(cast(Launcher, self.launcher))

    def finish(self, sender: str) -> None:
        self.receive(sender, "finished", value={"seconds": 4.0})

    def lose(self, replica: int, progress: dict[str, int | str | None]) -> list[str]:
        """Return the names of the roles that replace it."""
        loss = Loss(f"replica {replica}", ProcessLost("E602", f"{KILLED}\nits log", fix="look"), progress)
        return [role.name for role in self.supervisor.restart(loss)]
