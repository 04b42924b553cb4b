"""The trace keeps the rules of the format, and holds all that was recorded and predicted."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from recording import exchange, halves, one_after_another, run

from cutset.partition.placement.placement_file import Placement
from cutset.runtime.worker.trace import Span
from cutset.tools.analysis.chrome_trace import _shorten, make_chrome_trace

Events = list[dict[str, Any]]


def events(placement: Placement, spans: Any, parts: Any) -> Events:
    """Through JSON and back."""
    found: Events = json.loads(json.dumps(make_chrome_trace(placement, spans, parts), allow_nan=False))["traceEvents"]
    return found


def rows(found: Events) -> dict[str, Events]:
    """Intervals by "process: row"."""
    process = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    out: dict[str, Events] = defaultdict(list)
    for e in found:
        if e["ph"] == "X":
            out[f"{process[e['pid']]}: {named[e['pid'], e['tid']]}"].append(e)
    return out


@pytest.fixture(scope="module")
def recording() -> Any:
    return run([3, 4, 5])


def test_every_event_is_valid(mlp: Placement, recording: Any) -> None:
    found = events(mlp, *recording)
    assert {"name", "ph", "ts", "pid", "tid"} <= set.intersection(*({*e} for e in found))
    assert {e["ph"] for e in found} == {"M", "X", "s", "f"}
    times = [e["ts"] for e in found]
    assert times == sorted(times)
    assert all(isinstance(e["ts"], int) and e["ts"] >= 0 for e in found)
    assert all(isinstance(e["dur"], int) and e["dur"] >= 0 for e in found if e["ph"] == "X")
    assert all(e["pid"] > 0 and e["tid"] > 0 for e in found if e["ph"] != "M"), "0 is the idle process"
    named = [(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"]
    assert {(e["pid"], e["tid"]) for e in found if e["ph"] != "M"} <= set(named)
    assert len({tid for _, tid in named}) == len(named)


def test_steps_that_were_recorded_at_other_times_are_left_out(mlp: Placement) -> None:
    spans = one_after_another(exchange(2, 0.0), exchange(3, 20.0), exchange(90, 1e6), exchange(91, 1e6 + 20))
    found = events(mlp, spans, halves()[1])
    assert {event["args"]["step"] for event in found if "step" in event.get("args", {})} == {2, 3}
    assert max(event["ts"] for event in found) < 1e9


@pytest.mark.parametrize("real", [True, False])
def test_intervals_of_a_row_are_disjoint_or_nested(mlp: Placement, recording: Any, real: bool) -> None:
    """A step of `exchange` begins with its first segment: what holds the other must come first."""
    found = events(mlp, *recording) if real else events(mlp, exchange(7), halves()[1])
    for name, mine in rows(found).items():
        open_until: list[int] = []
        for e in mine:
            while open_until and open_until[-1] <= e["ts"]:
                open_until.pop()
            assert not open_until or e["ts"] + e["dur"] <= open_until[-1], f"{name}: {e}"
            open_until.append(e["ts"] + e["dur"])


def test_everything_recorded_and_predicted_is_there(mlp: Placement, recording: Any) -> None:
    spans, parts = recording
    by_row = rows(events(mlp, spans, parts))
    for machine, of in enumerate(mlp.machines):
        computed = [s for s in spans[machine] if s.kind not in ("send", "receive")]
        assert len(by_row[f"{of.name}: measured"]) == len(computed)
        predicted = [s for s in mlp.predicted.timeline if s.machine == machine]
        names = [f"{of.name}: predicted", f"{of.name}: predicted sends"]
        shown = [e for row, mine in by_row.items() for e in mine if row.startswith(tuple(names))]
        assert sorted(e["name"] for e in shown) == sorted(s.label for s in predicted)
    sent = sum(span.bytes for mine in spans for span in mine if span.kind == "send")
    links = {row: mine for row, mine in by_row.items() if row.startswith("links: ")}
    assert {row.split(" (")[0] for row in links} == {"links: machine-0 → machine-1", "links: machine-1 → machine-0"}
    assert sum(e["args"]["bytes"] for mine in links.values() for e in mine) == sent > 0


def test_segments_and_messages_list_their_content(mlp: Placement, recording: Any) -> None:
    spans, parts = recording
    by_row = rows(events(mlp, spans, parts))
    segments = [e for e in by_row["machine-0: measured"] if e["cat"] == "forward"]
    for e in segments:
        segment = parts[0].segments[e["args"]["segment"]]
        assert {step.op for step in segment.steps} - {""} <= {*e["args"]["operators"]}
        assert e["name"] == f"forward {segment.stage}"
    assert {e["args"]["micro-batch"] for e in segments} == {0, 1}
    first = next(e for e in by_row["links: machine-0 → machine-1"] if e["cat"] == "forward")
    pieces = parts[1].arrivals[first["args"]["edge"]].pieces
    assert first["args"]["tensors"] == list(dict.fromkeys(parts[1].pieces[p].tensor for p in pieces))


def test_long_lists_of_operators_are_cut() -> None:
    assert _shorten(["a", "b", "a"]) == ["a", "b"]
    assert _shorten([str(i) for i in range(25)]) == [*map(str, range(20)), "and 5 more"]


def test_times_are_microseconds_from_the_first_event(mlp: Placement) -> None:
    by_row = rows(events(mlp, exchange(7, at=1000.0), halves()[1]))
    shown = {e["name"]: (e["ts"], e["dur"]) for e in by_row["machine-0: measured"]}
    assert shown == {
        "step 7": (0, 10_000_000),
        "forward 0": (0, 2_000_000),
        "wait for machine-1": (2_000_000, 6_000_000),
        "backward 0": (8_000_000, 1_500_000),
    }
    (there,) = by_row["links: machine-0 → machine-1"]
    assert (there["ts"], there["dur"], there["args"]["bytes"]) == (2_000_000, 1_000_000, 100)


def test_arrows_lead_from_the_producer_of_a_message_to_its_consumer(mlp: Placement) -> None:
    found = events(mlp, exchange(7), halves()[1])
    arrows = {e["id"]: [a for a in found if a.get("id") == e["id"]] for e in found if e["ph"] == "s"}
    ends = [[(a["ph"], a["pid"], a["ts"]) for a in pair] for pair in arrows.values()]
    assert ends == [[("s", 1, 0), ("f", 2, 3_000_000)], [("s", 2, 5_000_000), ("f", 1, 8_000_000)]]


def test_messages_that_overlap_on_a_link_get_rows_of_their_own(mlp: Placement) -> None:
    first, second = exchange(7)
    queued, taken = first[1], second[1]
    first.append(msgspec.structs.replace(queued, micro=1, start_s=12.5, stop_s=12.5))
    second.append(msgspec.structs.replace(taken, micro=1, start_s=14.0, stop_s=14.0))
    by_row = rows(events(mlp, [first, second], halves()[1]))
    links = {row: [e["ts"] for e in mine] for row, mine in by_row.items() if "→ machine-1" in row}
    assert links == {"links: machine-0 → machine-1": [2_000_000], "links: machine-0 → machine-1 (2)": [2_500_000]}


def test_without_a_whole_step_there_are_no_events(mlp: Placement) -> None:
    assert make_chrome_trace(mlp, [[], []], halves()[1])["traceEvents"] == []


def test_rounding_keeps_neighbours_apart(mlp: Placement) -> None:
    edges = [1000.0 + i * 1.0000003e-5 / 3 for i in range(200)]
    mine = [Span("forward", 1, a, b, 0, 0) for a, b in pairwise(edges)] + [Span("step", 1, edges[0], edges[-1])]
    shown = rows(events(mlp, [mine, [Span("step", 1, edges[0], edges[-1])]], halves()[1]))["machine-0: measured"]
    inner = [e for e in shown if e["cat"] == "forward"]
    assert len(inner) == 199
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(inner))
