"""Name spaces as machines: their links, and what is removed when. Where there is no root, what needs none."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from marking import with_slow
from name_spaces import RATE, needs_namespaces

from cutset.errors import UsageError
from cutset.tools.bench.cluster import emulated_cluster
from cutset.tools.bench.cluster.emulated_cluster import (
    EmulatedCluster,
    find_leftovers,
    parse_rate,
    remove_leftovers,
    require_support,
)
from cutset.tools.bench.cluster.link import measure_link


def ours() -> set[str]:
    """Name spaces and interfaces of clusters of this process."""
    names = os.listdir(emulated_cluster.NAMESPACES) if emulated_cluster.NAMESPACES.is_dir() else []
    return {name for name in names if name.startswith(f"cutset-{os.getpid()}-")}


@pytest.fixture
def cluster() -> Iterator[EmulatedCluster]:
    with EmulatedCluster(2, rate=RATE) as made:
        yield made
    assert not ours()


def connected(cluster: EmulatedCluster, machine: int) -> str:
    """What becomes of a connection to a port of a machine where nobody listens."""
    try:
        with socket.create_connection((cluster.process_placement.hosts[machine].address, 9), timeout=0.3):
            return "connected"
    except ConnectionRefusedError:
        return "refused"  # it answers
    except TimeoutError:
        return "silence"


def carrier(cluster: EmulatedCluster, machine: int) -> str:
    name = cluster.process_placement.hosts[machine].name
    command = ["ip", "-n", name, "link", "show", "card"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return "lost" if "NO-CARRIER" in done.stdout else "there"


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 125e6), ("100mbit", 12.5e6), ("1 Gbit/s", 125e6), ("2.5Gbit", 312.5e6), ("110 MB/s", 110e6)],
)
def test_rates_are_read_as_tc_and_cluster_files_write_them(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["fast", "-1gbit", "1 gflop", "0bit", ""])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bandwidth|negative"):
        parse_rate(text)


def test_only_name_spaces_of_processes_that_are_gone_are_left_over() -> None:
    began = {10: 700, 11: 800}
    names = [
        "cutset-10-700-3-switch",
        "cutset-10-700-3-0",
        "cutset-11-500-4-1",
        "cutset-12-900-5-0",
        "other",
        "cutset-x",
    ]
    assert find_leftovers(names, began.get) == ["cutset-11-500-4-1", "cutset-12-900-5-0"]


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="only root") as caught:
        require_support()
    assert "sudo" in caught.value.fix


def test_without_the_tools_it_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(UsageError, match="not on the PATH: tc"):
        require_support()


def test_the_number_of_machines_is_limited() -> None:
    with pytest.raises(UsageError, match="65 emulated machines"):
        EmulatedCluster(65, rate=RATE)


@pytest.mark.slow
@needs_namespaces
def test_a_link_has_its_rate_and_large_messages_take_as_long(cluster: EmulatedCluster) -> None:
    times = measure_link(cluster.process_placement)
    assert 0.7 * cluster.payload_rate < times.raw < 1.1 * cluster.payload_rate
    size, seconds = times.points[-1]
    assert 0.7 < seconds * cluster.payload_rate / size < 2.0
    assert times.points[0][1] < 0.1 * seconds
    assert 0 < times.after_work_s < 0.5 * seconds


@needs_namespaces
def test_a_cable_that_is_pulled_is_noticed_and_heals(cluster: EmulatedCluster) -> None:
    assert (connected(cluster, 1), carrier(cluster, 1)) == ("refused", "there")
    cluster.pull_cable(1)
    assert (connected(cluster, 1), carrier(cluster, 1)) == ("silence", "lost")
    cluster.restore(1)
    assert carrier(cluster, 1) == "there"
    assert answers(cluster, 1)
    assert connected(cluster, 0) == "refused"


@needs_namespaces
def test_a_black_hole_is_silent_and_heals(cluster: EmulatedCluster) -> None:
    assert connected(cluster, 1) == "refused"
    cluster.drop_packets(1)
    assert (connected(cluster, 1), carrier(cluster, 1)) == ("silence", "there")
    assert connected(cluster, 0) == "refused"
    cluster.restore(1)
    assert answers(cluster, 1)


def answers(cluster: EmulatedCluster, machine: int) -> bool:
    """Whether a machine answers within some seconds."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if connected(cluster, machine) == "refused":
            return True
    return False


@needs_namespaces
def test_an_error_inside_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), EmulatedCluster(2, rate=RATE):
        assert 1 / (len(ours()) - 3)  # two machines and the switch
    assert not ours()


@needs_namespaces
def test_what_is_half_built_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(namespace: str, device: str, rate: float) -> None:
        raise UsageError("E246", "no tbf here")

    monkeypatch.setattr(emulated_cluster, "_limit_rate", fail)
    with pytest.raises(UsageError, match="no tbf"), EmulatedCluster(2, rate=RATE):
        pass
    assert not ours()


HOLD = """
import signal, sys
from cutset.tools.bench.cluster.emulated_cluster import EmulatedCluster
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
with EmulatedCluster(1, rate=12.5e6) as cluster:
    print(cluster.process_placement.hosts[0].name, flush=True)
    signal.pause()
"""


@pytest.mark.run
@needs_namespaces
@pytest.mark.parametrize(
    ("number", "stays"), with_slow([(signal.SIGKILL, True)], [(signal.SIGTERM, False), (signal.SIGINT, False)])
)
def test_who_is_ended_removes_its_name_spaces_and_who_is_killed_has_them_removed(number: int, stays: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert (emulated_cluster.NAMESPACES / name).exists()
        assert name not in remove_leftovers()  # its owner lives
        process.send_signal(number)
    assert (emulated_cluster.NAMESPACES / name).exists() == stays
    assert (name in remove_leftovers()) == stays
    assert not Path(emulated_cluster.NAMESPACES / name).exists()
