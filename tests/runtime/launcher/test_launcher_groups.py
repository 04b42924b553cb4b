"""Groups of real processes that are lost, started again, added and dismissed while others are at work."""

import os
import signal
from dataclasses import replace

import pytest
from launched import QUICK, gone, launch, replicas, run, waiting
from launched import nothing_is_left as nothing_is_left
from launched import shared_servers as shared_servers

from cutset.errors import ProcessLost
from cutset.runtime.channel.message import Message
from cutset.runtime.hosts.host import Role
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Loss


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_group_is_started_again_while_the_others_go_on(number: signal.Signals) -> None:
    losses: list[Loss] = []

    def restart(loss: Loss) -> list[Role]:
        losses.append(loss)
        return [replace(replicas(2)[2], name="w1+1")]

    greeted: list[str] = []
    with launch(replicas(2), limits=QUICK, restart=restart) as launcher:
        launcher.start()
        before = launcher.pids
        for message in launcher.events():
            if message.kind == "greeted":
                greeted.append(message.sender)
                if len(greeted) == 2:
                    os.kill(before["w1"], number)
                if len(greeted) == 3:
                    for name in ("w0", "w1+1"):
                        launcher.send(name, Message("end"))
        assert {name: pid for name, pid in launcher.pids.items() if name in before} == {
            name: before[name] for name in ("shard", "w0")
        }
        assert launcher.results == {"shard": None, "w0": "w0", "w1+1": "w1+1"}
    assert greeted[2] == "w1+1"
    (loss,) = losses
    assert (loss.group, list(loss.progress)) == ("group 1", ["w1"])
    assert "w1 was killed by SIGKILL" in loss.error.facts or "w1 stopped answering" in loss.error.facts
    assert gone(before["w1"], timeout_s=0)


def test_roles_are_added_and_dismissed_while_others_are_at_work() -> None:
    """One joins and is dismissed at work, one before it is ready; neither leaves a result or a process."""
    greeted: list[str] = []
    pids: dict[str, int] = {}

    def watch(launcher: Launcher) -> None:
        if greeted == ["w0"] and len(launcher.roles) == 2:
            launcher.add([replace(replicas(2)[2], name="w2", group="group 2")])
        if "w2" in greeted and "w2" in launcher.pids:
            launcher.add([replace(replicas(2)[2], name="w3", group="group 3")])
            pids.update(launcher.pids)
            launcher.stop_roles(["w2", "w3"])
            launcher.send("w0", Message("end"))
        pids.update(launcher.pids)

    with launch(replicas(1), watch=watch) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "greeted":
                greeted.append(message.sender)
        assert launcher.results == {"shard": None, "w0": "w0"}
    assert greeted == ["w0", "w2"]
    assert "w2" in pids
    assert all(gone(pid, timeout_s=0) for pid in pids.values())


def test_a_loss_is_the_error_where_nothing_takes_its_place() -> None:
    with launch(replicas(1)) as launcher:
        waiting(launcher, "w0")
        os.kill(launcher.pids["w0"], signal.SIGKILL)
        with pytest.raises(ProcessLost, match="w0 was killed by SIGKILL"):
            list(launcher.events())


def test_a_role_that_is_lost_before_all_are_ready_ends_the_run() -> None:
    broken = replace(replicas(1)[1], entry="no_such_module:f")
    with pytest.raises(ProcessLost, match="w0 raised ModuleNotFoundError"):
        run(broken, restart=lambda loss: [])
