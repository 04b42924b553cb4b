"""A process that runs, one that is stopped, and one that sleeps."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutset.runtime.hosts.process_activity import ActivityProbe, ActivityProbes, ProcessActivity

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell")


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun to run this code."""
    begun = f"print(flush=True)\n{code}"
    with subprocess.Popen([sys.executable, "-c", begun], stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        try:
            yield popen
        finally:
            popen.kill()


def observe(pid: int, for_s: float = 0.5) -> ProcessActivity:
    """What a process does in some time, sampled as the launcher does it."""
    probe, end = ActivityProbe(pid, time.monotonic()), time.monotonic() + for_s
    active_s = waited_s = 0.0
    while (now := time.monotonic()) < end:
        time.sleep(0.05)  # the launcher's tick
        activity = probe.sample(now)
        active_s, waited_s = active_s + activity.active_s, waited_s + activity.waited_s
    return ProcessActivity(active_s, waited_s)


def test_a_busy_process_is_at_work_all_the_time() -> None:
    with process("while True: pass") as busy:
        activity = observe(busy.pid)
    assert activity.active_s > 0.4
    assert 0 <= activity.waited_s <= activity.active_s


def test_a_stopped_process_does_nothing() -> None:
    with process("while True: pass") as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        assert observe(stopped.pid) == ProcessActivity(0.0, 0.0)


def test_a_sleeping_process_does_nothing() -> None:
    with process("import time; time.sleep(600)") as sleeping:
        assert observe(sleeping.pid).active_s < 0.2


def test_a_process_that_is_gone_does_nothing() -> None:
    with process("pass") as ended:
        ended.wait()
    assert ActivityProbe(ended.pid, 0.0).sample(1.0) == ProcessActivity(0.0, 0.0)


def test_only_those_in_doubt_are_sampled_from_their_second_time_on() -> None:
    probes, own = ActivityProbes(), os.getpid()
    assert probes.sample({"a": own}, 0.0) == {}
    assert list(probes.sample({"a": own, "b": own}, 0.1)) == ["a"]
    assert list(probes.sample({"b": own}, 0.2)) == ["b"]
    assert probes.sample({"a": own}, 0.3) == {}
