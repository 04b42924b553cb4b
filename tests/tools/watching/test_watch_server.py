"""The page of a run over HTTP: who has the token sees it, and hears what changes."""

import fcntl
import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from watched_runs import Clock, begin_run, make_run_folder, worker_status

from cutset.errors import UsageError
from cutset.tools.run_listener import EvaluationReport, RolesReport, StepReport
from cutset.tools.tracking.metrics_file import MetricsFile
from cutset.tools.watching import watch_server
from cutset.tools.watching.run_follower import RunFollower
from cutset.tools.watching.watch_page import PARTS, render_snapshot
from cutset.tools.watching.watch_server import WatchServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run_folder(tmp_path / "<run>")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(folder: Path, clock: Clock) -> MetricsFile:
    made = begin_run(folder, clock, task="<digits>")
    made.on_step(StepReport("ssp", 1, 9, 0.125, 8, 2.0))
    return made


@pytest.fixture
def server(folder: Path, file: MetricsFile, clock: Clock) -> Iterator[WatchServer]:
    with WatchServer(RunFollower(folder, now=clock), folder) as made:
        yield made


class Stream:
    """Events of a server, as a browser reads them."""

    def __init__(self, server: WatchServer, **headers: str) -> None:
        where = urlsplit(server.address)
        self._connection = http.client.HTTPConnection("127.0.0.1", where.port or 0, timeout=30)
        self._connection.request("GET", f"{where.path}events", headers=headers)
        self.response = self._connection.getresponse()

    def read(self) -> dict[str, Any]:
        """Return the parts of the next event, none of a comment."""
        parts = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, text = line.partition(": ")
            if name == "data":
                parts = json.loads(text)
        return parts

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.response.close()
        self._connection.close()


def get(server: WatchServer, path: str, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port or 0, timeout=30)
    connection.request(method, path)
    return connection.getresponse()


def test_the_page_needs_nothing_else_and_runs_its_own_script_alone(server: WatchServer) -> None:
    response = get(server, urlsplit(server.address).path)
    text, policy = response.read().decode(), response.headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert text.count(f'<script nonce="{nonce[1]}">') == text.count("<script") == 1
    assert "http" not in text.replace('xmlns="http', "")
    assert all(f'<div id="{part}"></div>' in text for part in PARTS)
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert get(server, urlsplit(server.address).path).headers["Content-Security-Policy"] != policy, "a nonce is once"


@pytest.mark.parametrize(
    "path", ["/", "", "/wrong/", "/wrong/events", "//", "/{token}", "/{token}x/", "/{token}/other"]
)
def test_without_the_token_there_is_nothing(server: WatchServer, path: str) -> None:
    token = urlsplit(server.address).path.strip("/")
    response = get(server, path.format(token=token))
    assert response.status == 404
    assert b"digits" not in response.read()


def test_nothing_but_get_is_answered(server: WatchServer) -> None:
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert get(server, urlsplit(server.address).path, method).status == 501


def test_it_listens_on_loopback_alone(server: WatchServer) -> None:
    assert urlsplit(server.address).hostname == "127.0.0.1"


def test_what_changes_is_sent_and_nothing_else(server: WatchServer, file: MetricsFile, clock: Clock) -> None:
    stream = Stream(server)
    parts = stream.read()
    assert parts["title"] == "&lt;digits&gt; by ssp"
    assert "step 1" in parts["state"]
    assert parts["activity"] == ""
    shown = dict[str, Any]()
    for number in range(2, 5):
        clock.now += 2
        file.on_step(StepReport("ssp", number, 9, 0.125, 8 * number, 2.0 * number))
        file.on_roles(RolesReport("ssp", {"worker-0.1": worker_status(clock.now, number, peers=number * 1.5)}))
        server.update()
        parts = stream.read()
        assert f"step {number}" in parts["state"]
        assert "title" not in parts
        shown |= parts
    assert "peers 75 %" in shown["activity"]
    assert shown["busy"] == {"1": pytest.approx(0.25)}
    stream.close()
    clock.now += 2
    file.on_notice("<b>all is well</b>")
    server.update()
    again = Stream(server)
    parts = again.read()
    again.close()
    assert "&lt;b&gt;all is well" in parts["happenings"]
    assert {"curves", "title", "state"} <= set(parts), "whatever it has seen, it is sent what is shown now"


def test_a_long_run_is_shown_anew_less_often_but_what_happens_at_once(
    server: WatchServer, folder: Path, file: MetricsFile, clock: Clock
) -> None:
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as the process that trains does

    def take_step(number: int) -> int:
        clock.now += 2
        file.on_step(StepReport("ssp", number, 9999, 1 / number, 8 * number, 2.0 * number))
        server.update()
        return server.news.number

    def count_shown(first: int) -> int:
        """In the 40 seconds after this step."""
        before = take_step(first)
        return [take_step(number) for number in range(first + 1, first + 21)][-1] - before

    assert count_shown(2) == 20
    assert count_shown(570) == 10, "after 19 minutes, each 4 seconds"
    assert count_shown(3000) == 4, "after 100 minutes, each 10"
    shown = take_step(3030)
    file.on_notice("a machine was lost")
    server.update()
    assert server.news.number == shown + 1
    os.close(held)
    server.update()
    assert server.news.number == shown + 2, "the end is shown"


def test_many_viewers_are_told_the_same_and_more_are_sent_away(
    server: WatchServer, file: MetricsFile, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [Stream(server) for _ in range(watch_server.MAX_VIEWERS)]
    firsts = [stream.read() for stream in streams]
    assert all(first == firsts[0] for first in firsts)
    assert Stream(server).response.status == 503
    file.on_notice("a word")
    server.update()
    assert all("a word" in stream.read()["happenings"] for stream in streams)
    for stream in streams:
        stream.close()


@pytest.mark.run
def test_a_browser_that_was_away_for_an_hour_is_sent_what_is_shown_once(
    server: WatchServer, file: MetricsFile, clock: Clock
) -> None:
    for number in range(2, 3600):
        clock.now += 1
        file.on_step(StepReport("ssp", number, 9999, 0.125 + 1 / number, 8 * number, 1.0 * number))
        file.on_evaluate(EvaluationReport("ssp", 8 * number, 1.0 * number, 0.5, 1 - 1 / number, {}))
        file.on_notice(f"number {number}")
        if number % 100 == 0:
            server.update()
    server.update()
    stream = Stream(server, **{"Last-Event-ID": "1"})
    size = len(json.dumps(server.news.parts))
    assert size < 200_000
    assert stream.read() == server.news.parts
    file.on_notice("the only word since")
    server.update()
    assert set(stream.read()) <= {"happenings", "state", "busy"}, "nothing is sent again"
    stream.close()


def test_a_port_that_is_taken_is_named(server: WatchServer, folder: Path) -> None:
    port = urlsplit(server.address).port or 0
    with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 cannot be used") as caught:
        WatchServer(RunFollower(folder), folder, port)
    assert caught.value.code == "E280"


def test_a_placement_that_is_damaged_is_said_so(server: WatchServer, folder: Path, clock: Clock) -> None:
    (folder / "placement.json").write_text("{")
    clock.now += 2
    server.update()
    assert "cannot be shown" in server.news.parts["map"]


def test_the_page_as_a_file_has_everything_and_does_not_connect(folder: Path, file: MetricsFile, clock: Clock) -> None:
    for number in (2, 3):
        clock.now += 2
        file.on_roles(RolesReport("ssp", {"worker-0.1": worker_status(clock.now, number, peers=number * 1.0)}))
    follower = RunFollower(folder, now=clock)
    follower.update()
    page = render_snapshot(follower, folder)
    assert "EventSource" not in page
    assert "connect-src" not in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "<title>cutset: &lt;digits&gt; by ssp</title>" in page
    assert page.count("&lt;digits&gt; by ssp") == 3, "in the title, the heading and what happened"
    assert "--busy1:0.62;" in page
    assert "worker-0.1" in page
