"""The verdict over a run, as tables of events: the first cause wins, and consequences are not blamed."""

import pytest
from liveness_events import (
    BUG,
    DAMAGED,
    LIMITS,
    NAN,
    SILENT,
    Event,
    alive,
    breaks,
    exits,
    fails,
    finishes,
    passes,
    play,
    running,
)

from cutset.errors import CheckpointError, CutsetError, Diverged, NetworkError, ProcessLost
from cutset.runtime.hosts.process_activity import ProcessActivity
from cutset.runtime.launcher.liveness import LivenessMonitor

# when and what: the time of the verdict, its class, the code, and what it says
TABLE: dict[str, tuple[list[tuple[float, Event]], float, type[CutsetError], str, str]] = {
    "killed": ([(3.0, exits("a", -9))], 3.0, ProcessLost, "E602", "a was killed by SIGKILL"),
    "crashed": (
        [(3.0, exits("a", -11, "Fatal: segfault"))],
        3.0,
        ProcessLost,
        "E602",
        "SIGSEGV (it reported no progress)",
    ),
    "killed, then its peer fails": (
        [(3.0, exits("a", -9)), (3.1, fails("b", SILENT))],
        3.0,
        ProcessLost,
        "E602",
        "a was killed",
    ),
    "its peer fails first, then it is seen killed": (
        [(3.0, fails("b", SILENT)), (3.5, exits("a", -9)), (4.0, passes)],
        3.5,
        ProcessLost,
        "E602",
        "a was killed",
    ),
    "its peer fails first and exits, then it is seen killed": (
        [(3.0, fails("b", SILENT)), (3.2, exits("b", 5)), (3.5, exits("a", -9)), (4.0, passes)],
        3.5,
        ProcessLost,
        "E602",
        "a was killed",
    ),
    "its peer fails first, then it raises": (
        [(3.0, fails("b", SILENT)), (3.9, fails("a", BUG))],
        3.9,
        ProcessLost,
        "E605",
        "a raised ValueError: bad shape\nTraceback",
    ),
    "its peer fails first, and it has been silent": (
        [(0.0, alive("a", "b")), (2.0, fails("b", SILENT)), (3.1, passes), (4.9, passes), (5.1, passes)],
        5.1,
        ProcessLost,
        "E606",
        "a stopped answering 5.1 s ago",
    ),
    "its peer fails, and it was only slow": (
        [(0.0, alive("a", "b")), (2.0, fails("b", SILENT)), (3.1, passes), (4.0, alive("a")), (4.1, passes)],
        4.0,
        NetworkError,
        "E501",
        "b: waited 60 s",
    ),
    "a network error alone": (
        [(3.0, fails("b", SILENT)), (3.1, exits("b", 5)), (3.2, alive("a")), (4.0, passes)],
        4.0,
        NetworkError,
        "E501",
        "b: waited 60 s and no message came",
    ),
    "diverged": ([(3.0, fails("b", NAN))], 3.0, Diverged, "E701", "b: the loss is NaN at step 12"),
    "damaged checkpoint": ([(3.0, fails("b", DAMAGED))], 3.0, CheckpointError, "E801", "b: the checkpoint"),
    "exits, and its report comes later": (
        [(3.0, exits("a", 1)), (3.2, fails("a", BUG))],
        3.2,
        ProcessLost,
        "E605",
        "a raised ValueError",
    ),
    "exits without a report": (
        [(2.0, exits("a", 3, "1\n2")), (2.5, alive("b")), (3.0, passes)],
        3.0,
        ProcessLost,
        "E603",
        "a ended with exit code 3 without a report (it reported no progress)\nlast lines of its log:\n1\n2",
    ),
    "exits without a report, its peer fails first": (
        [(2.0, fails("b", SILENT)), (2.1, exits("a", 3)), (3.1, passes)],
        3.1,
        ProcessLost,
        "E603",
        "a ended with exit code 3",
    ),
    "exits with 0 but without a result": (
        [(2.0, exits("a", 0)), (2.1, alive("b")), (3.1, passes)],
        3.1,
        ProcessLost,
        "E603",
        "a ended with exit code 0 without a report",
    ),
    "stopped": (
        [(4.0, alive("b")), (5.0, passes), (5.1, passes)],
        5.1,
        ProcessLost,
        "E606",
        "a stopped answering 5.1 s ago",
    ),
    "the one that stopped first is named": (
        [(1.0, alive("a")), (1.2, alive("b")), (7.0, passes)],
        7.0,
        ProcessLost,
        "E606",
        "a stopped answering 6.0 s ago",
    ),
}


@pytest.mark.parametrize("story", TABLE)
def test_the_first_cause_is_blamed(story: str) -> None:
    events, when, kind, code, said = TABLE[story]
    now, verdict = play(running("a", "b"), events)
    assert verdict is not None
    assert (now, type(verdict), verdict.code) == (when, kind, code)
    assert said in verdict.facts


def test_the_verdict_stays() -> None:
    monitor = running("a", "b")
    monitor.on_exited("a", 1.0, -9)
    first = monitor.tick(1.0)
    monitor.on_failed("b", 2.0, BUG)
    assert monitor.tick(60.0) is first


def test_one_that_lives_but_does_not_go_on_is_stuck() -> None:
    monitor = running("a", "b", "shard")
    for now in range(200):
        monitor.on_heartbeat("a", now, "epoch 2 step 31" if now >= 7 else f"epoch 2 step {24 + now}")
        monitor.on_heartbeat("b", now, now)
        monitor.on_heartbeat("shard", now, None)  # it only serves, and tells no progress
        if monitor.tick(now):
            break
    assert now == 128
    assert monitor.verdict is not None
    assert monitor.verdict.code == "E607"
    assert (
        "a lives but is stuck: no progress for 121 s, its last progress was 'epoch 2 step 31'" in monitor.verdict.facts
    )


def test_a_killed_role_is_named_with_its_last_progress_and_a_hint() -> None:
    monitor = running("a")
    monitor.on_heartbeat("a", 1.0, 17)
    monitor.on_exited("a", 1.0, -9)
    assert monitor.verdict is not None
    assert "its last progress was 17" in monitor.verdict.facts
    assert "out-of-memory" in monitor.verdict.fix


def test_a_report_keeps_its_fix_and_its_traceback() -> None:
    monitor = running("a")
    monitor.on_failed("a", 1.0, NAN)
    assert monitor.verdict is not None
    assert monitor.verdict.fix == "lower the rate"
    assert monitor.verdict.__notes__ == ["in a:\nTraceback: diverged"]


def test_roles_become_ready_and_know_each_other() -> None:
    monitor = LivenessMonitor(["a", "b"], now=0.0, limits=LIMITS)
    monitor.on_hello("a", "tcp://a")
    assert not monitor.all_ready
    assert monitor.tick(59.0) is None
    monitor.on_hello("b", "tcp://b")
    assert monitor.all_ready
    assert monitor.directory == {"a": "tcp://a", "b": "tcp://b"}
    assert monitor.tick(61.0) is None


def test_one_that_is_never_ready_is_named() -> None:
    monitor = LivenessMonitor(["a", "b"], now=0.0, limits=LIMITS)
    monitor.on_hello("a", "tcp://a")
    verdict = monitor.tick(60.1)
    assert isinstance(verdict, ProcessLost)
    assert verdict.facts == "b not ready after 60 s"


def test_one_that_ends_before_it_is_ready_is_named_with_its_log() -> None:
    monitor = LivenessMonitor(["a", "b"], now=0.0, limits=LIMITS)
    monitor.on_exited("a", 1.0, 1, last_lines="ModuleNotFoundError: No module named 'x'\n")
    assert monitor.tick(1.5) is None
    verdict = monitor.tick(2.0)
    assert verdict is not None
    assert "a ended with exit code 1 before it was ready" in verdict.facts
    assert "No module named 'x'" in verdict.facts


@pytest.mark.parametrize("order", [[finishes("a"), exits("a", 0)], [exits("a", 0), finishes("a")]])
def test_a_finished_role_has_a_result_whatever_was_seen_first(order: list[Event]) -> None:
    monitor = running("a", "b")
    assert play(monitor, [(1.0 + n / 10, event) for n, event in enumerate(order)])[1] is None
    assert monitor.results == {"a": "result of a"}
    assert monitor.have_ended(["a"])
    assert not monitor.have_ended()
    monitor.on_heartbeat("b", 4.0, None)
    assert monitor.tick(4.0) is None
    assert "'a': 'gone', 'b': 'running'" in repr(monitor)


@pytest.mark.parametrize("order", [[finishes("a"), exits("a", -6)], [exits("a", 3), finishes("a")]])
def test_a_result_is_not_lost_by_how_the_process_ends_after_it(order: list[Event]) -> None:
    monitor = running("a", "b")
    events = [(1.0 + n / 10, event) for n, event in enumerate(order)]
    assert play(monitor, [*events, (4.0, alive("b")), (9.0, alive("b"))])[1] is None
    assert monitor.results == {"a": "result of a"}
    assert monitor.have_ended(["a"])
    [note] = monitor.notes
    assert note.startswith("a had delivered its result when its process ended by ")
    assert note.partition(" by ")[2].startswith(("SIGABRT;", "exit code 3;"))


def test_a_process_that_outlives_its_result_is_named_and_no_failure() -> None:
    monitor = running("a", "b")
    assert play(monitor, [(2.0, finishes("a")), (16.9, alive("b"))])[1] is None
    assert monitor.late_exits(16.9) == []
    assert monitor.late_exits(17.1) == ["a"]
    monitor.on_exited("a", 17.2, -9)
    assert monitor.late_exits(99.0) == []
    assert monitor.have_ended(["a"])


def test_no_names_at_all_have_ended() -> None:
    assert running("a").have_ended([])


# Broken links ---------------------------------------------------------------------------------------------------------

LINKS: dict[str, tuple[list[tuple[float, Event]], float, str]] = {
    "a broken link alone": ([(3.0, breaks("a", "b")), (3.1, alive("a", "b")), (4.0, passes)], 4.0, "E514"),
    "told by both ends": (
        [(3.0, breaks("a", "b")), (3.1, breaks("b", "a")), (3.2, alive("a", "b")), (4.0, passes)],
        4.0,
        "E514",
    ),
    "to the launcher": ([(3.0, breaks("launcher", "b")), (3.1, alive("a", "b")), (4.0, passes)], 4.0, "E514"),
    "better than one that waits in vain": (
        [(2.0, fails("b", SILENT)), (2.5, breaks("a", "c")), (2.6, alive("a", "c")), (3.5, passes)],
        3.5,
        "E514",
    ),
    "one end is seen killed": ([(3.0, breaks("a", "b")), (3.5, exits("b", -9))], 3.5, "E602"),
    "one end ended without a report": (
        [(3.0, breaks("a", "b")), (3.5, exits("b", 3)), (3.6, alive("a")), (4.5, passes)],
        4.5,
        "E603",
    ),
    "one end is silent": ([(0.5, alive("a")), (4.5, breaks("a", "b")), (5.0, alive("a")), (5.1, passes)], 5.1, "E606"),
}


@pytest.mark.parametrize("story", LINKS)
def test_a_broken_link_is_blamed_where_nothing_explains_it(story: str) -> None:
    events, when, code = LINKS[story]
    now, verdict = play(running("a", "b", *(["c"] if "better" in story else [])), events)
    assert verdict is not None
    assert (now, verdict.code) == (when, code)


def test_a_link_to_one_that_has_finished_is_no_fault() -> None:
    monitor = running("a", "b")
    story = [(3.0, breaks("a", "b")), (3.5, finishes("b")), (3.6, exits("b", 0)), (3.7, breaks("a", "b"))]
    assert play(monitor, [*story, (5.0, alive("a")), (6.0, passes)])[1] is None


# A busy machine -------------------------------------------------------------------------------------------------------


def test_one_at_work_is_not_silent_though_nothing_is_heard_of_it() -> None:
    monitor = running("a")
    for second in range(1, 60):
        assert monitor.doubtful_roles(second) == ([] if second == 1 else ["a"])
        monitor.on_activity("a", ProcessActivity(1.0 if second > 1 else 0.0, 0.0))
        assert monitor.tick(second) is None
    for second in range(60, 64):
        assert monitor.tick(second) is None
    assert "a stopped answering 65.0 s ago" in str(monitor.tick(65.0)), "as soon as it stops"


def test_one_that_is_at_work_for_ever_and_never_heard_of_is_lost() -> None:
    monitor, second = running("a"), 0
    while monitor.tick(second) is None:
        second += 1
        monitor.on_activity("a", ProcessActivity(1.0, 0.0))
    assert second == LIMITS.progress_s + 1


def test_a_wait_for_a_cpu_is_no_time_in_which_it_could_have_gone_on() -> None:
    monitor = running("a")
    for second in range(1, 300):
        alive("a", progress=1)(monitor, second)
        monitor.on_activity("a", ProcessActivity(1.0, 0.8))
        assert monitor.tick(second) is None, "it had 60 s of its own"
    for second in range(300, 420):
        alive("a", progress=1)(monitor, second)
        monitor.tick(second)
    assert monitor.verdict is not None
    assert monitor.verdict.code == "E607"


def test_one_that_waits_for_a_cpu_has_longer_to_start() -> None:
    monitor = LivenessMonitor(["a"], now=0.0, limits=LIMITS)
    assert monitor.doubtful_roles(0.5) == ["a"]
    for second in range(1, 100):
        monitor.on_activity("a", ProcessActivity(1.0, 0.5))
        assert monitor.tick(second) is None
    assert "a not ready after 60 s" in str(monitor.tick(120.0))
