"""Metrics of a run for Prometheus, as its own parser reads them."""

import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from watched_runs import Clock, begin_run, make_run_folder, worker_status

from cutset.errors import UsageError
from cutset.tools.run_listener import EvaluationReport, RolesReport, StepReport
from cutset.tools.watching.prometheus import serve_metrics
from cutset.tools.watching.run_follower import RunFollower

Sample = tuple[str, frozenset[tuple[str, str]]]


def labelled(name: str, **labels: str) -> Sample:
    return f"cutset_{name}", frozenset(labels.items())


def test_prometheus_reads_what_is_known_and_what_follows(tmp_path: Path) -> None:
    clock, addresses, read = Clock(), list[str](), list[dict[Sample, float]]()
    file = begin_run(make_run_folder(tmp_path), clock)
    file.on_step(StepReport("ssp", 1, 9, 0.125, 8, 2.0))

    def go_on(seconds: float) -> None:
        with urlopen(addresses[0].split()[2].rstrip(";"), timeout=30) as response:
            families = text_string_to_metric_families(response.read().decode())
            read.append({labelled(s.name[7:], **s.labels): s.value for one in families for s in one.samples})
        if len(read) == 2:
            raise KeyboardInterrupt
        clock.now += 2
        stale = {"mean": 0.5, "p50": 0, "p90": 1, "max": 2}
        shard = {"updates": 7, "staleness": stale, "unsaved_s": None, "links": {}, "rss": 5}
        file.on_roles(RolesReport("ssp", {"worker-0.0": worker_status(3.0, 4, peers=1.5), "shard-0": shard}))
        file.on_evaluate(EvaluationReport("ssp", 16, 4.0, 0.5, 0.75, {}))

    with pytest.raises(KeyboardInterrupt):
        serve_metrics(RunFollower(tmp_path, now=clock), 0, tell=addresses.append, wait=go_on)
    first, second = read
    assert first == {
        labelled("running"): 0.0,
        labelled("samples", run="ssp"): 8.0,
        labelled("step", run="ssp"): 1.0,
        labelled("loss", run="ssp"): 0.125,
        labelled("samples_per_second", run="ssp"): 4.0,
    }
    assert second[labelled("test_accuracy", run="ssp")] == 0.75
    assert second[labelled("role_step", role="worker-0.0")] == 4
    assert second[labelled("role_waited_seconds", role="worker-0.0", **{"for": "peers"})] == 1.5
    assert second[labelled("link_bytes", source="worker-0.0", target="shard-0")] == 4000
    assert second[labelled("role_staleness", role="shard-0", quantile="mean")] == 0.5
    assert labelled("role_unsaved_seconds", role="shard-0") not in second


def test_without_the_library_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match="needs prometheus_client") as caught:
        serve_metrics(RunFollower(make_run_folder(tmp_path)), 0, tell=print)
    assert caught.value.code == "E294"
