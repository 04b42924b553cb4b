"""Runs over hosts that a real sshd leads to: the bits are those of a run on this machine, and nothing is left there."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Cutset
from command_line import cutset as cutset
from name_spaces import needs_namespaces
from places import USER_MODELS
from ssh_hosts import AGENTS, needs_sshd, separate_hosts, ssh_hosts, write_cluster

TASK = f"{USER_MODELS / 'good.py'}:task"
MANIFESTS = "checkpoints/*/manifest.json"
LOCK_STEP = ("--method", "sync", "--optimizer", "adam", "--machines", "2", "--replicas", "2", "--epochs", "2")


def train(cutset: Cutset, out: Path, *options: str) -> None:
    outcome = cutset("train", TASK, "--no-baseline", "--out", out, *options)
    assert outcome.code == 0, outcome.err


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@needs_sshd
def test_lock_step_over_hosts_has_the_bits_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset
) -> None:
    train(cutset, tmp_path / "here", *LOCK_STEP, "--checkpoint-every", "4")
    with ssh_hosts(tmp_path, 3, monkeypatch) as names:
        engine = f"ssh:{write_cluster(tmp_path / 'cluster.toml', names)}"
        train(cutset, tmp_path / "there", *LOCK_STEP, "--checkpoint-every", "4", "--on", engine)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert list((tmp_path / AGENTS).iterdir()) == []
    complete = [sorted(path.parent.name for path in (tmp_path / run).glob(MANIFESTS)) for run in ("here", "there")]
    assert complete[0] == complete[1] != []


@pytest.mark.slow
@needs_sshd
def test_a_run_over_hosts_resumes_here_and_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset
) -> None:
    longer = (*LOCK_STEP, "--epochs", "3")
    train(cutset, tmp_path / "here", *LOCK_STEP)
    with ssh_hosts(tmp_path, 3, monkeypatch) as names:
        engine = f"ssh:{write_cluster(tmp_path / 'cluster.toml', names)}"
        train(cutset, tmp_path / "there", *LOCK_STEP, "--on", engine)
        train(cutset, tmp_path / "there again", *longer, "--resume", str(tmp_path / "here"), "--on", engine)
    train(cutset, tmp_path / "here again", *longer, "--resume", str(tmp_path / "there"))
    assert weights(tmp_path / "there again") == weights(tmp_path / "here again")


SEPARATE: Sequence[tuple[str, ...]] = [
    LOCK_STEP,
    ("--method", "averaging", "--replicas", "3", "--compress", "int8"),
    ("--method", "downpour", "--replicas", "3", "--shards", "2", "--checkpoint-every", "5"),
]


@pytest.mark.slow
@needs_sshd
@needs_namespaces
@pytest.mark.parametrize("options", SEPARATE, ids=lambda options: options[1])
def test_hosts_without_a_shared_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset, options: tuple[str, ...]
) -> None:
    """Name spaces for the network and for mounts: nothing of the run folder can be read on a host."""
    assert tmp_path.is_relative_to("/tmp")
    with separate_hosts(3, monkeypatch) as there:
        engine = f"ssh:{write_cluster(tmp_path / 'cluster.toml', there.names)}"
        train(cutset, tmp_path / "there", *options, "--on", engine)
    assert (tmp_path / "there" / "checkpoint" / "manifest.json").exists()
    if "downpour" not in options:
        train(cutset, tmp_path / "here", *options)
        assert weights(tmp_path / "there") == weights(tmp_path / "here")
