"""What is known of a run by its events; and that this does not grow with them."""

from typing import Any

import pytest
from watched_runs import worker_status

from cutset.tools.watching.role_rows import describe_progress, list_rows
from cutset.tools.watching.run_view import MAX_POINTS, RunView, Thinned, describe_scores, describe_state


def view_of(*events: dict[str, Any]) -> RunView:
    view = RunView()
    for number, event in enumerate(events):
        view.add({"time": 1000.0 + number, **event})
    return view


BEGIN = {"event": "begin", "task": "digits", "method": "downpour", "machines": 1, "replicas": 2, "shards": 1}


def step(number: int, samples: int, loss: float | None = 0.5, run: str = "downpour") -> dict[str, Any]:
    return {
        "event": "step",
        "run": run,
        "step": number,
        "samples": samples,
        "seconds": 1.0,
        "loss": loss,
        "samples_per_s": 80.0,
    }


def roles(**statuses: dict[str, Any]) -> dict[str, Any]:
    return {"event": "roles", "run": "downpour", "roles": {n.replace("_", "-"): one for n, one in statuses.items()}}


def test_curves_are_those_of_a_result() -> None:
    score = {
        "event": "evaluation",
        "run": "downpour",
        "samples": 8,
        "seconds": 2.0,
        "test_loss": 0.4,
        "test_accuracy": 0.9,
        "metrics": {"perplexity": 1.5},
    }
    view = view_of(BEGIN, step(1, 4, run="one process"), step(1, 8, 0.25), step(2, 16, None), score)
    first, second = view.as_result()["rows"]
    assert (first["name"], first["losses"]) == ("one process", [(4, 0.5)])
    assert (second["name"], second["losses"]) == ("downpour", [(8, 0.25)])
    assert second["curve"][0]["test_accuracy"] == 0.9
    assert view.current is not None
    assert view.current.step["step"] == 2
    assert describe_scores(view.current.score) == "test accuracy 90.0 %, test loss 0.4, perplexity 1.5"


def test_a_run_that_goes_back_takes_its_points_with_it() -> None:
    view = view_of(BEGIN, step(1, 8), step(2, 16), step(3, 24), step(2, 16), step(3, 24))
    assert view.as_result()["rows"][0]["losses"] == [(8, 0.5), (16, 0.5), (16, 0.5), (24, 0.5)]


def test_rates_and_waits_are_of_the_last_seconds() -> None:
    view = view_of(
        *(roles(worker_0=worker_status(5.0 + at, 10 * at, shards=0.25 * at, peers=0.5 * at)) for at in range(20))
    )
    role = view.roles["worker-0"]
    assert role.rate("step") == pytest.approx(10)
    assert role.rate("cpu_s", "beat_s") == pytest.approx(0.5)
    assert role.link_rates() == {"shard-0": pytest.approx(10_000)}
    assert role.split() == pytest.approx({"computes": 0.25, "data": 0, "leases": 0, "peers": 0.5, "shards": 0.25})


def test_a_process_that_said_one_thing_has_no_rates() -> None:
    role = view_of(roles(worker_0=worker_status(5.0, 10))).roles["worker-0"]
    assert (role.rate("step"), role.split(), role.link_rates()) == (None, None, {})
    role = view_of(roles(coordinator={"rss": 4}), roles(coordinator={"rss": 4})).roles["coordinator"]
    assert (role.rate("step"), role.split(), role.link_rates()) == (None, None, {})


def test_a_process_that_is_gone_is_not_shown() -> None:
    view = view_of(roles(a=worker_status(1, 1), b=worker_status(1, 1)), roles(b=worker_status(2, 2)))
    assert list(view.roles) == ["b"]


@pytest.mark.parametrize("count", [MAX_POINTS, MAX_POINTS + 1, 50_000])
def test_a_long_curve_keeps_its_form_in_little_memory(count: int) -> None:
    curve = Thinned()
    for number in range(count):
        curve.add(number)
    assert MAX_POINTS / 2 <= len(curve.points) <= MAX_POINTS
    steps = {b - a for a, b in zip(curve.points, curve.points[1:], strict=False)}
    assert steps == {curve.every}
    assert count - curve.points[-1] <= curve.every


def test_the_state_in_words() -> None:
    assert describe_state(RunView(), is_running=True, now=0.0) == "The run has yet to begin."
    assert describe_state(RunView(), is_running=False, now=0.0) == "Nothing is known of this run."
    view = view_of(BEGIN, step(1, 8))
    assert describe_state(view, is_running=True, now=1002.0) == "Training."
    assert describe_state(view, is_running=True, now=1061.0) == "Training; nothing was heard for 60 s."
    assert describe_state(view, is_running=False, now=1061.0).startswith("No process trains here any more; the last")
    ended = view_of(BEGIN, step(1, 8), {"event": "end", "why": None})
    assert describe_state(ended, is_running=False, now=1061.0) == "Ended after 2 s."
    assert not ended.roles
    failed = view_of(BEGIN, {"event": "end", "why": "the loss is not finite"})
    assert describe_state(failed, is_running=False, now=1e9) == "Ended with an error after 1 s: the loss is not finite"


def test_a_run_that_begins_anew_forgets_the_one_before() -> None:
    view = view_of(BEGIN, step(5, 40), {"event": "end", "why": "killed"}, BEGIN)
    assert (view.curves, view.ended, view.why) == ({}, None, None)
    assert [words for _, words in view.happenings] == [
        "began: digits by downpour",
        "ended: killed",
        "began: digits by downpour",
    ]


def test_a_process_that_waits_within_a_step_has_no_rates_of_before() -> None:
    said = [worker_status(float(at), at) for at in range(4)]
    said += [{**said[-1], "beat_s": 3.0 + late} for late in (1, 2, 3, 4)]
    view = view_of(*(roles(worker_0=status) for status in said))
    role = view.roles["worker-0"]
    assert (role.rate("step"), role.split(), role.link_rates()) == (None, None, {})
    assert role.rate("cpu_s", "beat_s") is not None
    (row,) = list_rows(view)
    assert "nothing new for 4 s" in row[-1]


def test_a_peer_that_was_among_others_has_no_rate() -> None:
    links = [{"others": 10**12}, {"late": 10**12 + 1}]
    said = [{**worker_status(float(at), at), "links": one} for at, one in enumerate(links)]
    assert view_of(*(roles(worker_0=status) for status in said)).roles["worker-0"].link_rates() == {}


def test_how_long_it_takes_to_the_end_is_said_where_that_is_known() -> None:
    def heard(number: int, seconds: float, **more: Any) -> dict[str, Any]:
        return {**step(number, 8 * number), "seconds": seconds, **more}

    view = view_of(BEGIN, heard(1, 0.1, steps=200))
    assert view.curves["downpour"].estimate_left_s() is None, "of one step nobody knows how long the next takes"
    view = view_of(BEGIN, *(heard(number, 2.0 * number, steps=200) for number in range(100, 150)))
    assert view.curves["downpour"].estimate_left_s() == pytest.approx(2 * (200 - 149))
    assert describe_progress(view).startswith("downpour: step 149 of 200 (74 %), ")
    assert describe_progress(view).endswith(", about 102 s left")
    assert "left" not in describe_progress(view, is_running=False), "it was killed"
    view.add({"time": 5.0, **heard(90, 310.0, steps=200)})
    assert view.curves["downpour"].estimate_left_s() is None, "it went back"
    endless = view_of(BEGIN, heard(1, 1.0, steps=None), heard(2, 2.0, steps=None))
    assert describe_progress(endless).startswith("downpour: step 2, 16 samples")
    assert "left" not in describe_progress(endless)
    ended = view_of(BEGIN, heard(1, 1.0, steps=9), heard(2, 2.0, steps=9), {"event": "end", "why": None})
    assert "left" not in describe_progress(ended)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "step", "run": "downpour", "step": 3},
        {**step(3, 24), "loss": "low"},
        roles(shard_0={"updates": 1, "staleness": {"mean": 0.5}}),
        roles(worker_0={**worker_status(1, 1), "links": {"shard-0": {"in": 1, "out": 2}}}),
        roles(worker_0={**worker_status(1, 1), "waited": {}}),
        {"event": "roles", "run": "downpour", "roles": 3},
        {"event": "end"},
    ],
)
def test_what_another_version_writes_otherwise_is_refused_and_changes_nothing(event: dict[str, Any]) -> None:
    view = view_of(BEGIN, step(2, 16))
    with pytest.raises(ValueError, match=r"Object|Expected"):
        view.add({"time": 2000.0, **event})
    assert (view.updated, view.ended, view.roles) == (1001.0, None, {})
    view.add({"time": 2000.0, "event": "applause"})
    assert view.updated == 1001.0, "an event that is not known is passed over"
