"""A killed, stopped or failing process ends a run soon, by name, and nothing of the run is left behind.

Every process of a run inherits a mark in its environment, by which those that are left over would be found.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from disturbed import Break, Fault, Signal, disturbed

from cutset.partition.errors import NetworkError, ProcessLost
from cutset.ps.downpour import Downpour
from cutset.ps.gradient_rules import Adagrad
from cutset.ps.hogwild import Hogwild
from cutset.tools.load import TaskSpec
from cutset.tools.planning import Wanted
from cutset.tools.prepare import Options

HERE = Path(__file__).parent
GOOD = HERE / "tools" / "user_models" / "good.py"
CUTSET = Path(sys.executable).with_name("cutset")
MARK = "CUTSET_TEST_MARK"
START_S, END_S, PROMISED_S = 60.0, 20.0, 10.0
LOST, INTERRUPTED, TERMINATED = 6, 130, 143

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")

RAISES_LATE = """
    import torch
    from torch import nn
    from cutset import Data, Task


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 2), 0

        def forward(self, x):
            self.calls += 1
            if x.sum() > 1e9 or self.calls > 5:
                raise LookupError("no more wisdom after step 5")
            return self.layer(x)


    def samples(split):
        return Data((torch.ones(80, 4),), (torch.zeros(80, dtype=torch.int64),))


    def example(batch):
        return Data((torch.zeros(batch, 4),), (torch.zeros(batch, dtype=torch.int64),))


    def task():
        return Task("late", Model, nn.functional.cross_entropy, example, samples, batch=8)
"""


class Run:
    """`cutset train` as a process of its own, and what can be known of it from outside."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.mark = uuid.uuid4().hex
        self.files = folder / "tmp"
        self.files.mkdir()
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.files)}
        options = ["--no-baseline", "--out", folder / "run", *arguments]
        command = [str(CUTSET), "train", *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            # What a shell starts in the background ignores interrupts, and so would all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.said = ""

    def wait_for(self, words: str, *, timeout_s: float = START_S) -> None:
        """Read stderr until it says so."""
        deadline = time.monotonic() + timeout_s
        while words not in self.said:
            assert self._read(deadline), f"it ended or said nothing of {words!r} in time:\n{self.said}"

    def end(self, *, timeout_s: float = END_S) -> int:
        """The exit code, when it has said all and ended."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def processes(self) -> dict[int, str]:
        """Every process of the run that is alive: its command line by number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mark = f"{MARK}={self.mark}".encode()
                if mark in (folder / "environ").read_bytes().split(b"\0") and _alive(folder):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def pid(self, role: str) -> int:
        """The process of a role."""
        (pid,) = [pid for pid, line in self.processes().items() if line.endswith(f"cutset.runtime.child {role}")]
        return pid

    def maps(self) -> list[str]:
        """What memory each process has."""
        return [Path(f"/proc/{pid}/maps").read_text() for pid in self.processes()]

    def listening(self) -> set[str]:
        """Sockets of the run that listen, by inode, which no other socket has at the same time."""
        mine = set()
        for pid in self.processes():
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    mine |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
        return mine & listening()

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _read(self, deadline: float) -> bool:
        """Wait for more of stderr; False at its end, or when time is up."""
        assert self.process.stderr is not None
        if not select.select([self.process.stderr], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        more = self.process.stderr.read()
        self.said += (more or b"").decode()
        return bool(more)


def _alive(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")


def listening() -> set[str]:
    """Inodes of all TCP sockets that listen."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found |= {row[9] for row in rows if row[3] == "0A"}
    return found


def gone(pids: list[int], *, timeout_s: float) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + timeout_s
    for pid in pids:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(end)
    return True


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run; at the end of the test it is over, and nothing of it is left."""
    runs: list[Run] = []

    def started(*arguments: object) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield started
    try:
        for run in runs:
            assert run.processes() == {}
            assert [file.name for file in run.files.iterdir() if not file.name.startswith("torchinductor")] == []
    finally:
        for run in runs:
            run.close()


@pytest.fixture
def training(start: Start) -> Run:
    """Two machines and a shard in the midst of a training that would take hours; a loss is not to be made good."""
    run = start(f"{GOOD}:task", "--machines", 2, "--shards", 1, "--epochs", 1_000_000, "--lr", 0.001, "--restarts", 0)
    run.wait_for("downpour: ")
    return run


def ended(run: Run, sockets: set[str], since: float, *, within_s: float = PROMISED_S) -> int:
    """The exit code of a run that ended in the promised time, with all its sockets."""
    assert len(sockets) == 4  # of the launcher, two workers and a shard
    code = run.end()
    assert time.monotonic() - since < within_s
    assert not sockets & listening()
    return code


@pytest.mark.parametrize("role", ["worker-0.1", "shard-0"])
def test_a_killed_process_ends_the_run_with_its_name(training: Run, role: str) -> None:
    sockets, since = training.listening(), time.monotonic()
    os.kill(training.pid(role), signal.SIGKILL)
    assert ended(training, sockets, since) == LOST
    assert f"error E602: {role} was killed by SIGKILL (it" in training.said
    assert "Traceback" not in training.said


def test_a_stopped_process_ends_the_run_with_its_name(training: Run) -> None:
    sockets, since = training.listening(), time.monotonic()
    os.kill(training.pid("worker-0.0"), signal.SIGSTOP)
    assert ended(training, sockets, since) == LOST
    assert re.search(r"error E606: worker-0\.0 stopped answering \d\.\d s ago \(it", training.said)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, INTERRUPTED, "interrupted; every process of the run is ended"), (signal.SIGTERM, TERMINATED, "")],
)
def test_a_run_that_is_told_to_end_does(training: Run, number: int, code: int, said: str) -> None:
    sockets, since = training.listening(), time.monotonic()
    training.process.send_signal(number)
    assert ended(training, sockets, since) == code
    assert said in training.said
    assert "Traceback" not in training.said


def test_an_interrupt_before_anything_runs_ends_all(start: Start) -> None:
    run = start(f"{GOOD}:task", "--machines", 2, "--epochs", 1_000_000)
    run.wait_for("cut of ")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == INTERRUPTED


def test_all_processes_end_when_the_command_is_killed(training: Run) -> None:
    sockets, processes = training.listening(), training.processes()
    assert len(processes) == 4
    training.process.kill()
    assert gone(list(processes), timeout_s=5.0)
    assert not sockets & listening()


@pytest.mark.parametrize(
    ("method", "role"), [("allreduce", "worker-1.0"), ("allreduce", "shard-0"), ("hogwild", "shard-0")]
)
def test_where_all_need_each_other_a_killed_process_ends_the_run(start: Start, method: str, role: str) -> None:
    """However many restarts there may be: all-reduce has no gradient without one replica, Hogwild no memory."""
    run = start(f"{GOOD}:task", "--replicas", 2, "--epochs", 1_000_000, "--lr", 0.001, "--method", method)
    run.wait_for(f"{method}: ")
    assert not any("/dev/shm/" in maps for maps in run.maps()), "memory with a name would be left"
    assert any("memfd:cutset" in maps for maps in run.maps()) == (method == "hogwild")
    sockets, since = run.listening(), time.monotonic()
    os.kill(run.pid(role), signal.SIGKILL)
    assert run.end() == LOST
    assert time.monotonic() - since < PROMISED_S
    assert not sockets & listening()
    assert f"error E602: {role} was killed by SIGKILL (it" in run.said


def test_an_exception_of_the_users_code_in_a_worker_is_shown(start: Start, tmp_path: Path) -> None:
    """A model that cannot be traced runs the user's own code in the worker."""
    file = tmp_path / "late.py"
    file.write_text(textwrap.dedent(RAISES_LATE))
    run = start(f"{file}:task", "--machines", 1, "--replicas", 2, "--epochs", 10)
    assert run.end(timeout_s=START_S) == LOST
    assert re.search(r"error E605: worker-\d\.0 raised LookupError: no more wisdom after step 5\n", run.said)
    line = 1 + textwrap.dedent(RAISES_LATE).splitlines().index(
        '            raise LookupError("no more wisdom after step 5")'
    )
    assert f'File "{file}", line {line}, in forward' in run.said
    assert "cutset/tools/cli.py" not in run.said


# Losses that are made good --------------------------------------------------------------------------------------------


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Two replicas of a model on two machines, and a shard."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    return Options(
        spec=TaskSpec(f"{GOOD}:task"),
        method=Downpour(),
        rule=Adagrad(0.05),
        out=tmp_path / "run",
        wanted=Wanted(2),
        replicas=2,
        epochs=60,
        baseline=False,
    )


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Signal("worker-0.1", signal.SIGKILL, 30), "worker-0.1 was killed by SIGKILL"),
        (Break("worker-1.0", "worker-1.1", "cut", 30), "the link from worker-1"),
    ],
)
def test_a_replica_that_was_lost_trains_again(options: Options, fault: Fault, why: str) -> None:
    outcome = disturbed(options, [fault])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert why in restart["why"]
    # The other replica may have done all that was left before it was back; but replica 0 tests.
    back = restart["seconds"] is not None
    assert restart["seconds"] > 0 if back else restart["replica"] == 1
    assert any(why in note and ("trained again" in note) == back for note in outcome.result["notes"])
    said = [f"replica {restart['replica']} starts again at step {restart['step']}: {restart['why']}"]
    assert outcome.notes == said + ([] if back else ["replica 1 has left"])
    curve = outcome.result["rows"][-1]["curve"]
    assert [point["seconds"] for point in curve] == sorted(point["seconds"] for point in curve)
    assert outcome.result["test_accuracy"] > 0.9
    assert not any("+" in name for name in (*outcome.result["staleness"], *outcome.result["work_s"]))


def test_a_replica_that_was_lost_goes_on_in_the_memory_of_all(options: Options) -> None:
    outcome = disturbed(replace(options, method=Hogwild()), [Signal("worker-0.1", signal.SIGKILL, 30)])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert restart["replica"] == 0
    assert outcome.result["test_accuracy"] > 0.9
    assert not any("+" in name for name in outcome.result["staleness"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_shard_that_was_lost_goes_on_from_its_journal(options: Options, number: signal.Signals) -> None:
    outcome = disturbed(replace(options, shards=2), [Signal("shard-1", number, 30)])
    assert outcome.error is None
    (restart,) = outcome.result["shard_restarts"]
    assert (restart["shard"], outcome.result["restarts"]) == (1, [])
    assert restart["seconds"] > 0
    assert outcome.result["test_accuracy"] > 0.9
    assert not (options.out / "journal").exists()


def test_a_black_hole_within_a_replica_ends_the_run_with_both_names(options: Options) -> None:
    """Both processes live, and both tell the launcher so; it is the link that is blamed."""
    fault = Break("worker-0.0", "worker-0.1", "swallow", 30)
    outcome = disturbed(replace(options, replicas=1, epochs=1_000_000, restarts=0), [fault])
    assert isinstance(outcome.error, NetworkError)
    assert outcome.error.code == "E514"
    assert re.match(
        r"the link from worker-0\.(0 to worker-0\.1|1 to worker-0\.0) \(tcp://.*\) broke", outcome.error.facts
    )
    assert outcome.seconds < PROMISED_S


def test_a_replica_that_is_lost_too_often_ends_the_run(options: Options) -> None:
    kills = [Signal("worker-1.0", signal.SIGKILL, step) for step in (30, 40)]
    outcome = disturbed(replace(options, epochs=1_000_000, restarts=1), kills)
    assert isinstance(outcome.error, ProcessLost)
    assert "worker-1.0+1 was killed by SIGKILL" in outcome.error.facts
    assert "; replica 1 was started again once before, and that is all that --restarts allows" in outcome.error.facts
