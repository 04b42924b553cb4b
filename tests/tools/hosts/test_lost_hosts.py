"""Runs over hosts of which one is lost: its roles go on elsewhere, and the result is that of a run without a loss."""

from dataclasses import replace
from pathlib import Path

import pytest
from host_faults import HOST_FAULTS, HostFault, train_and_lose
from name_spaces import needs_namespaces
from places import USER_MODELS
from ssh_hosts import needs_sshd, separate_hosts, write_cluster

from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run

pytestmark = [pytest.mark.slow, needs_sshd, needs_namespaces, pytest.mark.timeout(120)]


@pytest.mark.parametrize("spare", [True, False], ids=["spare", "no spare"])
@pytest.mark.parametrize("fault", HOST_FAULTS, ids=lambda fault: fault.__name__)
def test_lock_step_goes_on_with_the_bits_of_a_run_without_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: HostFault, spare: bool
) -> None:
    here = RunConfig(
        task=f"{USER_MODELS / 'good.py'}:task",
        method=parse_method("sync"),
        replicas=2,
        shards=2,
        epochs=80,
        baseline=False,
        out=tmp_path / "here",
    )
    run(prepare(here))
    with separate_hosts(3 if spare else 2, monkeypatch) as hosts:
        cluster = write_cluster(tmp_path / "cluster.toml", hosts.names)
        there = replace(here, out=tmp_path / "there", on=f"ssh:{cluster}")
        followed = train_and_lose(there, hosts, fault, 1, step=40)
    assert followed.error is None
    successor = "lab3" if spare else "lab1"
    assert any("lab2 is lost" in note and f"go to {successor}" in note for note in followed.notes)
    assert followed.resumed_s is not None
    assert (there.out / "model.safetensors").read_bytes() == (here.out / "model.safetensors").read_bytes()
