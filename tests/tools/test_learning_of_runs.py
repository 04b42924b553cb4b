"""What a run leaves for later plans, and when it leaves nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from cutset.partition.cluster.machines import uniform_cluster
from cutset.tools.measured.other_work import OtherWork
from cutset.tools.measured.saved_probe import make_key, make_saved_probe, read_saved_probe, save_probe
from cutset.tools.task.plan_request import HERE, PlanRequest
from cutset.tools.train import learn_from_run

MEASURED = {"mispredicted": {"classes": {"loss": [4.0, 1.0, 1.0]}, "link": 4.0, "messages": 3}}
IDLE = OtherWork(programs=0.1, stolen=0.0, cores=2)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make_job(cluster: str = HERE) -> Any:
    config = SimpleNamespace(plan_request=PlanRequest(machines=2, cluster=cluster))
    return SimpleNamespace(machines=2, replicas=1, shards=1, config=config)


def test_a_run_is_folded_into_what_is_kept():
    save_probe(make_saved_probe(make_key(2), uniform_cluster(2), busy=0.0, seconds=1.0))
    assert "learnt of 1 classes of operators and 3 messages" in learn_from_run(make_job(), MEASURED, IDLE)
    saved, _ = read_saved_probe(make_key(2))
    assert saved is not None
    assert (saved.learned, saved.learned_link) == ({"loss": (2.0, 1.0)}, 2.0)


def test_nothing_is_learnt_without_a_step_a_machine_or_quiet():
    assert "nothing is kept of this machine" in learn_from_run(make_job(), MEASURED, IDLE)
    saved = make_saved_probe(make_key(2), uniform_cluster(2), busy=0.0, seconds=1.0)
    save_probe(saved)
    for job, measured in ((make_job(), None), (make_job(), {"mispredicted": None}), (make_job("lab.toml"), MEASURED)):
        assert "no step of a cut model was recorded" in learn_from_run(job, measured, None)
    said = learn_from_run(make_job(), MEASURED, OtherWork(programs=1.5, stolen=0.0, cores=2))
    assert "nothing is learnt of this run: other programs had 1.5 of 2 cores" in said
    assert read_saved_probe(make_key(2)) == (saved, "")
