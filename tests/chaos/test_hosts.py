"""Faults of hosts at random moments of whole runs by the command line: exactly once, an end in words, nothing left.

The hosts have network cards and disks of their own, and a real sshd.
"""

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from busy import stretch
from host_faults import drop_packets, kill_agent, lose_machine, pull_cable
from name_spaces import needs_namespaces
from places import USER_MODELS
from safetensors.torch import load_file
from ssh_hosts import SeparateHosts, needs_sshd, separate_hosts, write_cluster

SEEDS = range(int(os.environ.get("CUTSET_CHAOS", "30")))
RATE, EPOCHS, STEPS = 2.0**-6, 300, 3600
COUNTED = f"{Path(__file__).with_name('counted_pushes.py')}:task"
GOOD = f"{USER_MODELS / 'good.py'}:task"
COUNT = ("train", COUNTED, "--method", "downpour", "--replicas", "1", "--shards", "3", "--optimizer", "sgd")
COUNT = (*COUNT, "--lr", str(RATE), "--epochs", str(EPOCHS), "--no-baseline")
LOCK_STEP = ("train", GOOD, "--method", "sync", "--replicas", "3", "--shards", "2", "--epochs", "600", "--no-baseline")
LEFT_S, MOST_REPEATED = 30.0, 300
CUTSET = (sys.executable, "-c", "import sys; from cutset.tools.commands.cli import main; sys.exit(main())")

Launcher = subprocess.Popen[str]
Fault = Callable[[SeparateHosts, int, Launcher], object]

pytestmark = [needs_sshd, needs_namespaces, pytest.mark.timeout(600)]


def on_host(fault: Callable[[SeparateHosts, int], object]) -> Fault:
    def happen(hosts: SeparateHosts, number: int, launcher: Launcher) -> None:
        fault(hosts, number)

    happen.__name__ = fault.__name__
    return happen


def block_one_way(hosts: SeparateHosts, number: int, launcher: Launcher) -> None:
    """What a host sends to another one vanishes; the other way, and to the launcher, all is well."""
    name, other = (hosts.cluster.process_placement.hosts[n] for n in (number, (number + 1) % len(hosts.names)))
    subprocess.run(["ip", "-n", name.name, "route", "add", "blackhole", f"{other.address}/32"], check=True)


def wipe_disk(hosts: SeparateHosts, number: int, launcher: Launcher) -> None:
    hosts.wipe(number)


def kill_launcher(hosts: SeparateHosts, number: int, launcher: Launcher) -> None:
    launcher.kill()


def terminate_launcher(hosts: SeparateHosts, number: int, launcher: Launcher) -> None:
    launcher.terminate()


FAULTS: tuple[Fault, ...] = (
    *map(on_host, (kill_agent, pull_cable, drop_packets, lose_machine)),
    block_one_way,
    wipe_disk,
    kill_launcher,
    terminate_launcher,
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of the run in lock step."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run([*CUTSET, *LOCK_STEP, "--out", str(out)], check=True, capture_output=True)
    return (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_recovers_or_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes, seed: int
) -> None:
    chance = random.Random(seed)
    fault, counts, spare = FAULTS[seed % len(FAULTS)], chance.random() < 0.5, chance.random() < 0.5
    number, later_s = chance.choice((0, 1, 2)), chance.uniform(0.0, 4.0)
    if counts and number == 0:
        number = 1  # where the only worker is, steps are computed again
    out = tmp_path / "run"
    with separate_hosts(4 if spare else 3, monkeypatch) as hosts:
        engine = f"ssh:{write_cluster(tmp_path / 'cluster.toml', hosts.names)}"
        command = [*CUTSET, *(COUNT if counts else LOCK_STEP), "--on", engine, "--out", str(out)]
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            _await_training(launcher)
            time.sleep(later_s)  # at a moment of nobody's choice
            fault(hosts, number, launcher)
            printed = launcher.communicate(timeout=stretch(200))[1]
        finally:
            launcher.kill()
            launcher.communicate()
        about = f"{fault.__name__} of {hosts.names[number]}, {'count' if counts else 'lock step'}, spare {spare}"
        print(f"seed {seed}: {about}: {launcher.returncode}")  # noqa: T201
        ended_at = time.monotonic()
        while (left := _left_on(hosts)) and time.monotonic() - ended_at < stretch(LEFT_S):
            time.sleep(0.2)
        assert not left, about
    if fault is kill_launcher:
        return
    if fault is terminate_launcher:
        assert launcher.returncode == 143, about + printed
        return
    if fault is block_one_way and launcher.returncode == 5:  # roles that are started again there meet it again
        assert re.search(r"has what was saved last, of step \d+: --resume", printed), about + printed
        assert "error E514: the connection from" in printed, about + printed
        return
    assert launcher.returncode == 0, f"{about}\n{printed[-2000:]}"
    if fault in FAULTS[:4]:
        assert "is lost" in printed, f"{about}: it was too late"
    if counts:
        parts = load_file(out / "model.safetensors").values()
        pushes = {-float(value) / RATE for part in parts for value in part.flatten()}
        # A worker that is started again computes what it had done since its last heartbeat once more.
        repeated = MOST_REPEATED if "replica 0 restarts" in printed else 0
        assert all(STEPS <= count <= STEPS + repeated for count in pushes), f"{about}: {pushes}\n{printed}"
    else:
        assert (out / "model.safetensors").read_bytes() == undisturbed, about + printed


def _await_training(launcher: Launcher) -> None:
    """Read what it prints until it tells of progress."""
    assert launcher.stderr is not None
    for line in launcher.stderr:
        if re.match(r"(downpour|sync): ", line):
            return
    raise AssertionError("the run has ended before it trained")


def _left_on(hosts: SeparateHosts) -> list[str]:
    left = []
    for number, name in enumerate(hosts.names):
        with contextlib.suppress(ProcessLookupError):
            left += [f"{name}: {line}" for line in hosts.processes(number).values()]
            left += [f"{name}: /tmp/{file}" for file in hosts.files(number)]
    return left
