"""Each event is read once, however its line comes to be: in pieces, after a crash, in another file."""

import fcntl
import json
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_metrics import list_lines, write_run
from watched_runs import make_run_folder

from cutset.errors import UsageError
from cutset.tools.run_folder import METRICS
from cutset.tools.watching import metrics_reader
from cutset.tools.watching.metrics_reader import MetricsReader
from cutset.tools.watching.run_follower import RunFollower
from cutset.tools.watching.run_view import WINDOW, RunView


def line(number: int) -> bytes:
    return json.dumps({"event": "notice", "time": float(number), "words": "ü" * (number % 7)}).encode() + b"\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.integers(1, 90), min_size=1, max_size=20), chunk=st.integers(1, 64))
def test_each_event_once_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[int], chunk: int
) -> None:
    monkeypatch.setattr(metrics_reader, "CHUNK_BYTES", chunk)
    reader, text = MetricsReader(make_run_folder(tmp_path)), b"".join(map(line, range(12)))
    (tmp_path / METRICS).write_bytes(b"")
    found, written = list[float](), 0
    for size in [*pieces, len(text)]:
        with (tmp_path / METRICS).open("ab") as file:
            file.write(text[written : written + size])
        written += size
        found += [event["time"] for event in reader.read()]
        whole = text[:written].count(b"\n")
        assert found == [float(number) for number in range(whole)]
    assert (reader.position, reader.unreadable, reader.restarts) == (len(text), 0, 0)


def test_lines_that_were_cut_short_are_counted(tmp_path: Path) -> None:
    reader = MetricsReader(make_run_folder(tmp_path))
    (tmp_path / METRICS).write_bytes(line(1) + line(2)[:9] + b"\n" + b'[1]\n{"event": 3}\n\xff\n' + line(3))
    assert [event["time"] for event in reader.read()] == [1.0, 3.0]
    assert reader.unreadable == 4


def roles(number: int) -> bytes:
    return json.dumps({"event": "roles", "time": float(number), "run": "ssp", "roles": {}}).encode() + b"\n"


def test_what_processes_said_long_ago_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, path = MetricsReader(make_run_folder(tmp_path)), tmp_path / METRICS
    monkeypatch.setattr(metrics_reader, "RECENT_BYTES", 3 * len(roles(1)) - 1)
    path.write_bytes(b"".join(roles(number) for number in range(1, 7)) + line(7) + roles(8)[:30] + b"\n" + roles(9))
    assert [event["time"] for event in reader.read()] == [6.0, 7.0, 9.0]
    assert reader.unreadable == 1
    with path.open("ab") as file:
        file.write(roles(2)[:30] + b"\n" + b"".join(roles(number) for number in range(3, 9)))
    assert [event["time"] for event in reader.read()] == [6.0, 7.0, 8.0]
    assert (reader.position, reader.unreadable) == (path.stat().st_size, 2), "one that was cut short counts though old"


@pytest.mark.run
def test_a_run_of_days_takes_no_more_memory_than_one_of_hours(tmp_path: Path) -> None:
    peaks, widest = list[int](), max(map(len, list_lines(3)))
    for lines in (6_000, 60_000):
        write_run(tmp_path / str(lines), lines)
        reader, view, read = MetricsReader(tmp_path / str(lines)), RunView(), Counter[str]()
        tracemalloc.start()
        for event in reader.read():
            view.add(event)
            read[event["event"]] += 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert WINDOW <= read["roles"] <= metrics_reader.RECENT_BYTES / widest * 1.1, "of which most is passed over"
        assert read["step"] + read["evaluation"] + read["checkpoint"] >= lines / 2 - 1, "nothing of what has come to be"
        assert view.current is not None
        assert view.current.step["seconds"] == pytest.approx(lines / 2, rel=0.01)
    assert peaks[1] < 1.25 * peaks[0]


def test_another_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    reader, path = MetricsReader(make_run_folder(tmp_path)), tmp_path / METRICS
    assert list(reader.read()) == [], "the run has yet to begin"
    path.write_bytes(line(1) + line(2))
    assert len(list(reader.read())) == 2
    other = tmp_path / "other"
    other.write_bytes(line(3) + line(4) + line(5))
    os.replace(other, path)
    assert [event["time"] for event in reader.read()] == [3.0, 4.0, 5.0]
    path.write_bytes(line(6))
    assert [event["time"] for event in reader.read()] == [6.0]
    assert reader.restarts == 2


def test_a_folder_that_is_none_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run") as caught:
        MetricsReader(tmp_path)
    assert caught.value.code == "E259"
    with pytest.raises(UsageError, match="is not there"):
        MetricsReader(tmp_path / "none")
    reader = MetricsReader(make_run_folder(tmp_path / "run"))
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    (tmp_path / "run").rmdir()
    assert not reader.is_running()
    with pytest.raises(UsageError, match="has been removed"):
        list(reader.read())


def test_who_trains_holds_the_folder(tmp_path: Path) -> None:
    reader = MetricsReader(make_run_folder(tmp_path))
    assert not reader.is_running()
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert reader.is_running()
    os.close(held)
    assert not reader.is_running()


def test_events_that_lack_something_are_counted_and_another_run_is_seen_though_it_is_empty(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path) / METRICS
    path.write_bytes(b'{"event": "step", "time": 1.0}\n{"event": "lost", "time": 1.0}\n' + line(3))
    follower = RunFollower(tmp_path)
    follower.update()
    assert "2 lines of metrics.jsonl could not be read" in follower.describe()[0]
    assert len(follower.view.happenings) == 1
    other = tmp_path / "other"
    other.write_bytes(b"")
    os.replace(other, path)
    follower.update()
    assert not follower.view.happenings
