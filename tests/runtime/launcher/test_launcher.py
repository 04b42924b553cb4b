"""Real processes: they start, work, fail, are killed, stopped and orphaned; the launcher names the culprit."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import stretch
from launched import HOST, QUICK, failure, gone, launch, replicas, run, state_of, waiting
from launched import nothing_is_left as nothing_is_left
from launched import shared_servers as shared_servers
from marking import with_slow
from places import ROOT, SUPPORT
from relay import Relay

from cutset.errors import Diverged, NetworkError, ProcessLost
from cutset.runtime.channel.message import Message
from cutset.runtime.hosts.host import LOCAL, LocalHost, Role
from cutset.runtime.launcher.membership import Limits


def test_roles_work_together_and_finish_with_results() -> None:
    def member(name: str, number: float, *, next: str, previous: str) -> Role:
        return Role(name, "role_examples:ring", {"number": number, "next": next, "previous": previous, "steps": 5})

    messages, launcher = run(
        member("worker 0", 1.0, next="worker 1", previous="worker 2"),
        member("worker 1", 2.0, next="worker 2", previous="worker 0"),
        member("worker 2", 4.0, next="worker 0", previous="worker 1"),
    )
    assert launcher.results == {"worker 0": 20.0, "worker 1": 5.0, "worker 2": 10.0}
    totals = [m.body["total"] for m in messages if m.kind == "progress" and m.sender == "worker 1"]
    assert totals == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert {m.sender: m.body["value"] for m in messages if m.kind == "finished"} == launcher.results


def test_what_the_roles_return_is_in_their_order_not_that_in_which_they_end() -> None:
    server = Role("server", "role_examples:serves", serves=True)
    with launch([server, Role("client", "role_examples:asks", "server")]) as launcher:
        assert launcher.run() == [None, sum(range(20))]


@pytest.mark.run
def test_a_role_gets_its_threads_and_no_secret_where_others_can_look() -> None:
    with LocalHost(environ={**os.environ, "MARK": "kept"}) as host:
        _, launcher = run(Role("worker 0", "role_examples:environment", threads=2), hosts=[host])
    got = launcher.results["worker 0"]
    environ = got["environ"]
    assert (got["threads"], environ["OMP_NUM_THREADS"], environ["OMP_WAIT_POLICY"]) == (2, "2", "passive")
    assert environ["GOMP_SPINCOUNT"] == "10000"  # fewer are over before the next operator begins
    assert environ["MARK"] == "kept"
    secret = launcher._hosts.keys(LOCAL).secret
    assert secret not in str(environ) + str(got["argv"])
    assert got["stdin"] == ""
    assert got["leader"]
    assert got["modules"] == []


def test_a_server_is_told_when_the_others_have_finished() -> None:
    messages, launcher = run(
        Role("shard 0", "role_examples:serves", serves=True), Role("worker 0", "role_examples:asks", "shard 0")
    )
    assert launcher.results == {"shard 0": None, "worker 0": sum(range(20))}
    assert [m.body["why"] for m in messages if m.kind == "result"] == ["all others have finished"]


@pytest.mark.run
def test_a_role_that_raises_is_shown_with_its_own_traceback() -> None:
    error = failure(Role("worker 0", "role_examples:waits"), Role("worker 1", "role_examples:raises", "somehow"))
    assert isinstance(error, ProcessLost)
    assert error.exit_code == 6
    assert "worker 1 raised ValueError: no such way to fail: somehow" in error.facts
    assert "role_examples.py" in error.facts
    assert "in raises" in error.facts


def test_an_error_of_the_tree_keeps_its_class_code_and_fix() -> None:
    error = failure(Role("worker 0", "role_examples:waits"), Role("worker 1", "role_examples:raises", "diverged"))
    assert isinstance(error, Diverged)
    assert (error.code, error.facts, error.fix) == ("E701", "worker 1: the loss is NaN at step 3", "lower the rate")
    assert "in raises" in error.__notes__[0]


@pytest.mark.run
def test_a_network_error_alone_is_raised_after_the_grace() -> None:
    error = failure(Role("worker 0", "role_examples:waits"), Role("worker 1", "role_examples:raises", "network"))
    assert isinstance(error, NetworkError)
    assert error.facts == "worker 1: waited 1 s and no message came"


@pytest.mark.parametrize("entry", ["raises", "returns_what_is_not_plain"])
def test_what_cannot_be_sent_is_the_roles_own_error(entry: str) -> None:
    error = failure(Role("worker 0", f"role_examples:{entry}", "unplain"))
    assert "worker 0 raised TypeError" in error.facts
    assert "Generator" in error.facts


@pytest.mark.run
def test_a_role_that_just_exits_is_named_with_its_last_lines() -> None:
    error = failure(Role("worker 0", "role_examples:raises", "exit"))
    assert isinstance(error, ProcessLost)
    assert "worker 0 ended with exit code 3 without a report" in error.facts
    assert "something odd was printed" in error.facts


def test_a_role_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    error = failure(Role("worker 0", "role_examples:waits"), Role("worker 1", "no_such_module:f"), folder=tmp_path)
    assert "worker 1 raised ModuleNotFoundError: No module named 'no_such_module'" in error.facts
    assert "No module named 'no_such_module'" in (tmp_path / "worker-1.log").read_text()


@pytest.mark.run
def test_a_process_that_dies_before_hello_is_shown_with_what_it_printed() -> None:
    broken = {**os.environ, "PYTHONHOME": "/nowhere"}
    with LocalHost(environ=broken) as host:
        error = failure(Role("worker 0", "role_examples:waits"), hosts=[host])
    assert isinstance(error, ProcessLost)
    assert "worker 0 ended with exit code 1 before it was ready" in error.facts
    assert "/nowhere" in error.facts


@pytest.mark.run
def test_one_that_is_not_ready_in_time_is_named() -> None:
    launcher = launch([Role("worker 0", "role_examples:waits")], hosts=())
    with launcher, pytest.raises(ProcessLost, match=r"worker 0 not ready after 0.1 s"):
        launcher.start(timeout_s=0.1)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "worker 1 was killed by SIGKILL"), (signal.SIGSTOP, "worker 1 stopped answering")],
)
@pytest.mark.run
def test_a_killed_and_a_stopped_role_are_named_in_time(number: signal.Signals, said: str) -> None:
    roles = [Role(f"worker {n}", "role_examples:waits") for n in range(2)]
    with launch(roles, limits=QUICK) as launcher:
        waiting(launcher, "worker 0", "worker 1")
        os.kill(launcher.pids["worker 1"], number)
        began = time.monotonic()
        with pytest.raises(ProcessLost, match=said):
            list(launcher.events())
        assert time.monotonic() - began < stretch(10)
        pids = launcher.pids
    assert all(gone(pid, timeout_s=0) for pid in pids.values())


@pytest.mark.slow
def test_a_role_whose_interpreter_is_busy_is_not_taken_for_lost() -> None:
    roles = [Role("worker 0", "role_examples:holds_the_lock", 2.0)]
    with launch(roles, limits=Limits(heartbeat_s=1.0)) as launcher:
        [seconds] = launcher.run()
    assert seconds >= 2.0


@pytest.mark.run
def test_a_consequence_is_not_blamed() -> None:
    """Worker 0 gives up waiting while worker 1 stands still, before anybody knows."""
    roles = [Role("worker 0", "role_examples:waits", 1.0), Role("worker 1", "role_examples:waits")]
    with launch(roles, limits=QUICK) as launcher:
        waiting(launcher, "worker 0", "worker 1")
        os.kill(launcher.pids["worker 1"], signal.SIGSTOP)
        with pytest.raises(ProcessLost, match="worker 1 stopped answering"):
            list(launcher.events())


def test_a_stop_ends_all_at_once() -> None:
    with launch([Role(f"worker {n}", "role_examples:waits") for n in range(2)]) as launcher:
        waiting(launcher, "worker 0", "worker 1")
        began = time.monotonic()
        launcher.stop("enough")
        assert time.monotonic() - began < stretch(1.9)
        assert list(launcher.events()) == []


def test_a_result_is_kept_where_the_process_does_not_end() -> None:
    notices: list[str] = []
    roles = [Role("worker 0", "role_examples:outlives_its_result", 600.0)]
    with launch(roles, limits=Limits(exit_s=0.5), on_notice=notices.append) as launcher:
        assert launcher.run() == ["done"]
    assert notices == ["worker 0 had delivered its result when its process ended by SIGKILL; nothing is lost"]


def test_a_message_stops_one_role_quietly() -> None:
    with launch([Role("worker 0", "role_examples:waits")]) as launcher:
        waiting(launcher, "worker 0")
        launcher.send("worker 0", Message("stop", body={"why": "enough"}))
        assert [m.body["stopped"] for m in launcher.events()] == ["worker 0 was told to stop: enough"]
        assert launcher.results == {"worker 0": None}


@pytest.mark.run
def test_one_that_minds_nothing_is_killed_with_what_it_started() -> None:
    with launch([Role("worker 0", "role_examples:ignores_everything")]) as launcher:
        launcher.start()
        body = next(launcher.events()).body
    assert gone(body["pid"], timeout_s=0)
    assert gone(body["child"])


def test_what_a_killed_role_has_started_ends_too() -> None:
    with launch([Role("worker 0", "role_examples:ignores_everything")]) as launcher:
        launcher.start()
        body = next(launcher.events()).body
        os.kill(body["pid"], signal.SIGKILL)
        with pytest.raises(ProcessLost, match="SIGKILL"):
            list(launcher.events())
        assert gone(body["child"])


def test_an_interrupt_ends_all() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with launch([Role("worker 0", "role_examples:waits")]) as launcher:
            waiting(launcher, "worker 0")
            pids.extend(launcher.pids.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(gone(pid, timeout_s=0) for pid in pids)


@pytest.mark.run
def test_the_roles_end_when_the_launcher_is_killed() -> None:
    command = [sys.executable, str(SUPPORT / "launch_and_wait.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        assert len(pids) == 3
        os.kill(pids[0], signal.SIGSTOP)  # even one that is stopped
        while sys.platform == "linux" and state_of(pids[0]) != "T":
            time.sleep(0.01)
        launcher.kill()
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_a_black_hole_between_two_roles_is_blamed_with_both_ends() -> None:
    ways: dict[tuple[str, str], Relay] = {}

    def route(source: str, target: str, endpoint: str) -> str:
        if (source, target) != ("w0", "shard"):
            return endpoint
        ways[source, target] = Relay(endpoint)
        return ways[source, target].endpoint

    try:
        with launch(replicas(1), route=route) as launcher:
            waiting(launcher, "w0")
            began = time.monotonic()
            ways["w0", "shard"].swallow()
            with pytest.raises(
                NetworkError, match=r"the connection from w0 to shard \(tcp://127.0.0.1:\d+\) broke"
            ) as caught:
                list(launcher.events())
            assert time.monotonic() - began < stretch(10)
            assert caught.value.code == "E514"
    finally:
        for way in ways.values():
            way.close()


def test_a_role_that_runs_out_of_memory_says_how_much_it_asked_for() -> None:
    error = failure(Role("worker 0", "role_examples:raises", "memory"))
    assert (type(error), error.code) == (ProcessLost, "E609")
    assert error.facts.startswith("worker 0 ran out of memory: it asked for 1,099,511,627,776.0 MiB")


@pytest.mark.parametrize(
    ("host", "said"),
    with_slow(
        [("203.0.113.9", "is no address of this machine")],
        [("no-such-host.invalid", "is no name that is known here")],
    ),
)
@pytest.mark.run
def test_a_host_that_will_not_do_is_named_for_the_launcher_and_a_role(host: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said) as caught:
        launch([Role("a", "role_examples:waits")], address=host)
    assert f"launcher cannot listen on {host!r}" in caught.value.facts
    roles = [Role("worker 0", "role_examples:waits"), Role("worker 1", "role_examples:waits", host="other")]
    with LocalHost("other", host) as other:
        error = failure(*roles, hosts=[HOST, other])
    assert isinstance(error, NetworkError)
    assert error.code == "E512"
    assert f"worker 1 cannot listen on {host!r}: it {said}" in error.facts
    assert "127.0.0.1" in error.fix


def test_a_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of the launcher goes back and forth by years; that of the roles is never asked, see below."""
    jumps = itertools.cycle([0.0, 4e9, -1.0, 1e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps)))
    test_roles_work_together_and_finish_with_results()


@pytest.mark.parametrize("folder", ["runtime", "ps"])
def test_no_clock_that_can_jump_is_asked(folder: str) -> None:
    files = (ROOT / folder).rglob("*.py")
    asked = re.compile(r"\btime\.(time|time_ns|localtime|gmtime)\(|\bdatetime\b|from time import")
    span = "from datetime import timedelta\n"  # no clock
    asking = {file.name for file in files if asked.search(file.read_text().replace(span, ""))}
    assert asking <= {"versions.py"}  # which only compares the clocks of two machines


@pytest.mark.parametrize("names", [[], ["a", "a"], ["launcher"], ["a#b"], ["../a"]])
def test_names_that_will_not_do_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="roles need names"):
        launch([Role(name, "role_examples:waits") for name in names])
