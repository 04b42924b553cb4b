"""What a worker alone has is saved with a recovery point, and there again after a restart."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from places import USER_MODELS
from torch import Tensor

from cutset.ps.client.client import Client
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD
from cutset.ps.slices.compression import TopK
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import make_worker_spec
from cutset.tools.job.prepare import prepare
from cutset.tools.job.process_specs import WorkerSpec
from cutset.tools.replica.local_state import LocalState

WRITTEN = "journal/000003/worker-1.0.safetensors"


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    options = RunConfig(
        task=f"{USER_MODELS / 'good.py'}:task",
        method=Sync(),
        optimizer=SGD(0.1),
        out=tmp_path,
        replicas=2,
        shards=1,
        baseline=False,
    )
    return make_worker_spec(prepare(options), 1, 0, 0)


class Worker:
    """A worker's local state, with a launcher that requests recovery points."""

    def __init__(self, spec: WorkerSpec, buffer: Tensor) -> None:
        network = MemoryNetwork([])
        self.launcher, self.channel = network.channel(LAUNCHER), network.channel("worker-1.0")
        mailbox = Mailbox(self.channel, timeout_s=1.0)
        slices = slice_parameters([4], 1, align=1, max_elements=4)
        self.client = Client(mailbox, slices, torch.zeros(4), compression=TopK(0.25))
        self.state = LocalState(spec, mailbox, [buffer], self.client)

    def request(self, number: int) -> None:
        self.launcher.send("worker-1.0", Message("recovery_point", body={"number": number}))

    def told(self) -> list[tuple[str, Any]]:
        messages = []
        while (message := self.launcher.poll()) is not None:
            messages.append((message.kind, message.body))
        return messages


def test_it_continues_with_what_was_saved(spec: WorkerSpec, tmp_path: Path) -> None:
    worker = Worker(spec, torch.tensor([1.5, 2.5]))
    inner = torch.arange(4.0)
    worker.state.keep({"momentum": inner})
    [session] = worker.client._sessions
    session.pack(torch.tensor([1.0, 2.0, 3.0, 4.0]), make=worker.channel.empty)  # the largest goes, the rest is kept
    worker.request(3)
    worker.state.save_due(1)
    assert worker.told() == []
    worker.state.save_due(2)
    assert worker.told() == [("recovery_point_saved", {"number": 3, "written": [WRITTEN]})]
    buffer, momentum = torch.zeros(2), torch.zeros(4)
    again = Worker(msgspec.structs.replace(spec, local_state=WRITTEN), buffer)
    again.state.keep({"momentum": momentum})
    assert buffer.tolist() == [1.5, 2.5]
    assert torch.equal(momentum, inner)
    assert {number: tensor.tolist() for number, tensor in again.client.residuals().items()} == {
        "0": [1.0, 2.0, 3.0, 0.0]
    }


def test_a_step_that_has_passed_is_missed(spec: WorkerSpec, tmp_path: Path) -> None:
    worker = Worker(spec, torch.zeros(2))
    worker.request(3)
    worker.state.save_due(3)
    assert worker.told() == [("recovery_point_missed", {"number": 3})]
    assert not (tmp_path / "journal").exists()


def test_a_replica_that_may_skip_steps_saves_the_next(spec: WorkerSpec) -> None:
    with_backup = msgspec.structs.replace(spec, method=Sync(backups=1))
    worker = Worker(with_backup, torch.zeros(2))
    worker.request(3)
    worker.state.save_due(3)
    assert worker.told() == [("recovery_point_saved", {"number": 3, "written": [WRITTEN]})]


def test_a_disk_that_cannot_be_written_is_reported(spec: WorkerSpec, tmp_path: Path) -> None:
    worker = Worker(spec, torch.zeros(2))
    (tmp_path / "journal").write_text("in the way")
    worker.request(3)
    worker.state.save_due(2)
    [(kind, body)] = worker.told()
    assert kind == "write_failed"
    assert "journal" in body["reason"] or "directory" in body["reason"]
