"""A checkpoint that goes by time is complete when all who were asked have written; where one is late it is dropped."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from places import USER_MODELS

from cutset.errors import CheckpointError
from cutset.ps.checkpoint.journal import Journal, JournalConfig, checkpoint_path
from cutset.ps.checkpoint.write_checkpoint import write_shard, write_state
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slice_state import SliceState
from cutset.ps.slices.slicing import slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.replica.replica_state import ReplicaStateWriter
from cutset.tools.training.checkpoint_sets import CheckpointSets

GOOD = USER_MODELS / "good.py"
WORKER = "worker-0.0"


class Server:
    """A shard that one replica trains in lock-step, with gradients of 1."""

    def __init__(self, job: Job, index: int) -> None:
        journal = Journal(JournalConfig(job.training.folder, job.checkpoint_versions, on_request=True), index)
        self._slices = slices_of_shard(job.slices, index)
        self._shard = Shard(index, self._slices, job.serving, journal=journal)
        self._say("put", 0, version=0, state=[])

    def ask(self, number: int) -> None:
        self._shard.handle(Message("checkpoint", body={"number": number}, sender=LAUNCHER))

    def step(self, step: int) -> list[Message]:
        """Take the pushes of a step, from 0 on; what the launcher is reports."""
        return self._say("push", 1, base=step, number=step + 1, replica=0)

    def _say(self, kind: str, value: float, **body: Any) -> list[Message]:
        replies = []
        for piece in self._slices:
            tensor = torch.full((piece.size,), float(value))
            self._shard.handle(Message(kind, 0, 0, piece.number, body, (tensor,), WORKER))
            replies += self._shard.poll()
        while self._shard.busy:
            replies += self._shard.poll()
        return [message for peer, message in replies if peer == LAUNCHER]


class Replica:
    """The worker's part of it."""

    def __init__(self, job: Job) -> None:
        network = MemoryNetwork()
        self._launcher: MemoryChannel = network.channel(LAUNCHER)
        mailbox = Mailbox(network.channel(WORKER))
        self._writer = ReplicaStateWriter(mailbox, job.training, 0, list, start_step=0)

    def ask(self, number: int) -> None:
        self._launcher.send(WORKER, Message("checkpoint", body={"number": number}))

    def step(self, step: int) -> list[Message]:
        """A step was made; what the launcher is reports."""
        self._writer.write_due(step + 1)
        return list(iter(self._launcher.poll, None))


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of two shards that writes checkpoints by time, and keeps one."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    return RunConfig(
        f"{GOOD}:task",
        method=Sync(),
        optimizer=SGD(1.0),
        out=tmp_path,
        shards=2,
        checkpoint_every="1min",
        keep_checkpoints=1,
    )


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("late", ["shard 0", "shard 1", "replica 0"])
def test_a_checkpoint_that_one_role_missed_is_dropped_and_the_next_is_complete(
    tmp_path: Path, options: RunConfig, late: str
) -> None:
    job = prepare(options)
    checkpoints, reports = CheckpointSets(job), list[tuple[str, int]]()
    roles = {"shard 0": Server(job, 0), "shard 1": Server(job, 1), "replica 0": Replica(job)}

    def train(*steps: int) -> None:
        for step in steps:
            for name, role in roles.items():
                for message in role.step(step):
                    checkpoints.handle(message)
                    reports.append((f"{name}: {message.kind}", message.body["number"]))

    train(0, 1, 2)
    for role in [role for name, role in roles.items() if name != late]:
        role.ask(5)
    train(3, 4)
    roles[late].ask(5)
    train(5)
    assert (f"{late}: checkpoint_missed", 5) in reports
    assert len(reports) == 3, "the others have written theirs"
    with pytest.raises(CheckpointError, match=r"E801: .* has no complete checkpoint; 1 were begun there"):
        find_checkpoint(tmp_path)
    for role in roles.values():
        role.ask(8)
    train(6, 7, 8)
    found = find_checkpoint(tmp_path)
    assert (found.folder.name, found.manifest.about["step"]) == ("000008", 8)
    assert all(bool((found.read_tensor(name) == -8).all()) for name in found.trained_names)
    assert [folder.name for folder in found.folder.parent.iterdir()] == ["000008"]


# Runs before in the same folder --------------------------------------------------------------------------------------


def save(checkpoints: CheckpointSets, job: Job, number: int) -> None:
    """Write a checkpoint, as shards and the worker of replica 0 do, and report it."""
    folder = checkpoint_path(job.out, number)
    for shard in range(job.shards):
        held = [SliceState(piece, torch.ones(piece.size), {}, number) for piece in job.slices if piece.shard == shard]
        body = {"number": number, "file": msgspec.to_builtins(write_shard(folder, shard, held, job.optimizer))}
        checkpoints.handle(Message("checkpoint_saved", body=body))
    body = {"number": number, "file": msgspec.to_builtins(write_state(folder, 0, []))}
    checkpoints.handle(Message("state_saved", body=body))


def numbers(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.slow
def test_those_of_an_earlier_run_go_first_though_they_had_come_further(tmp_path: Path, options: RunConfig) -> None:
    options = replace(options, keep_checkpoints=2)
    before = prepare(options)
    checkpoints = CheckpointSets(before)
    for number in (7, 8, 9):
        save(checkpoints, before, number)
    assert numbers(tmp_path) == ["000008", "000009"]
    after = prepare(options)
    checkpoints = CheckpointSets(after)
    save(checkpoints, after, 1)
    assert numbers(tmp_path) == ["000001", "000009"]
    assert find_checkpoint(tmp_path).folder.name == "000001"
    save(checkpoints, after, 9)
    assert numbers(tmp_path) == ["000001", "000009"], "it has taken the place of the one before"
    save(CheckpointSets(after), after, 10)
    assert numbers(tmp_path) == ["000009", "000010"]


def test_a_damaged_one_is_named_and_neither_counted_nor_removed(tmp_path: Path, options: RunConfig) -> None:
    before = prepare(options)
    save(CheckpointSets(before), before, 4)
    damaged = tmp_path / "checkpoints" / "000004" / "manifest.json"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    notices = list[str]()
    after = prepare(options)
    checkpoints = CheckpointSets(after, on_notice=notices.append)
    assert [str(damaged) in notice for notice in notices] == [True]
    save(checkpoints, after, 1)
    save(checkpoints, after, 2)
    assert numbers(tmp_path) == ["000002", "000004"]


def test_a_checkpoint_survives_a_power_cut_before_the_one_before_it_is_removed(
    tmp_path: Path, options: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, events = prepare(options), list[str]()
    checkpoints = CheckpointSets(job)
    save(checkpoints, job, 1)
    sync, remove = os.fsync, shutil.rmtree

    def note_sync(descriptor: int) -> None:
        events.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        sync(descriptor)

    def note_removal(path: Path, **options: bool) -> None:
        events.append(f"remove {path}")
        remove(path, **options)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(shutil, "rmtree", note_removal)
    save(checkpoints, job, 2)
    inside = tmp_path / "checkpoints" / "000002"
    *before, removal = events
    assert removal == f"remove {tmp_path / 'checkpoints' / '000001'}"
    assert before[-2:] == [f"sync {inside}", f"sync {inside.parent}"], "the manifest's name, then that of the folder"
    assert f"sync {inside / 'manifest.json.tmp'}" in before


def test_the_folders_above_the_first_checkpoint_survive_a_power_cut(
    tmp_path: Path, options: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, synced, sync = prepare(options), list[str](), os.fsync

    def note_sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    save(CheckpointSets(job), job, 1)
    assert str(tmp_path) in synced, "which has the name of the folder of all checkpoints"
