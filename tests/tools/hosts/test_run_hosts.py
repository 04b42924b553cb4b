"""Which host each role runs on, and what it is told and given there."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from places import USER_MODELS
from supervised import prepare_sync_run

from cutset.errors import NetworkError, ProcessLost
from cutset.runtime.hosts.host import Host, LocalHost, Role
from cutset.tools.hosts.run_hosts import RunHosts
from cutset.tools.job.job import Job


@dataclass
class FakeHost:
    """A host of which only the name, the cores and the folder matter."""

    name: str
    cores: int = 4
    folder: str = "/tmp/agent"
    lost: str = ""
    ports: str = ""
    memory_bytes: int = 1 << 30


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return prepare_sync_run(tmp_path, shards=3)


def hosts_of(job: Job, *hosts: Any, **more: Any) -> RunHosts:
    return RunHosts(job, [cast(Host, host) for host in hosts], **more)


def with_machines(job: Job, *names: str, memory: int = 0) -> Job:
    """The same run, as if its replicas were cut over these machines."""
    placement: Any = SimpleNamespace(machines=[SimpleNamespace(name=name, memory_used_bytes=memory) for name in names])
    return replace(job, placement=placement, regions=job.regions * len(names))


def test_replica_0_is_where_the_placement_says_and_others_follow(job: Job) -> None:
    hosts = hosts_of(with_machines(job, "c", "a"), *map(FakeHost, "abcde"))
    assert [[hosts.worker_host(r, m).name for m in (0, 1)] for r in range(2)] == [["c", "a"], ["e", "c"]]
    assert [hosts.shard_host(index).name for index in range(6)] == ["a", "b", "c", "d", "e", "a"]


def test_what_was_on_a_lost_host_goes_to_a_spare_one_then_to_whoever_has_fewest(job: Job) -> None:
    a, b, c, spare = map(FakeHost, ["a", "b", "c", "spare"])
    notices = list[str]()
    hosts = hosts_of(job, a, b, c, spare_hosts=[spare], on_notice=notices.append)
    expected = ["abc", ["a", "spare", "c"], ["c", "spare", "c"], ["spare", "spare", "spare"]]
    for lost, names in zip([None, b, a, c], expected, strict=True):
        if lost is not None:
            lost.lost = f"host {lost.name} is lost: why"
        assert [hosts.shard_host(index).name for index in range(3)] == list(names)
    assert hosts.first is cast(Host, spare)
    assert notices == [
        "host b is lost: why; its roles go to spare",
        "host a is lost: why; its roles go to c",
        "host c is lost: why; its roles go to spare",
    ]
    spare.lost = "host spare is lost: why"
    with pytest.raises(ProcessLost, match="E608: host spare is lost: why; no host is left"):
        hosts.shard_host(0)


def test_roles_whose_connections_broke_start_elsewhere(job: Job) -> None:
    hosts = hosts_of(job, *map(FakeHost, "abc"), spare_hosts=[cast(Host, FakeHost("spare"))])
    hosts.note_loss("shard 2", ProcessLost("E602", "it was killed"))
    assert hosts.shard_host(2).name == "c"
    names = []
    for _ in range(4):
        hosts.note_loss("shard 2", NetworkError("E514", "nothing passes"))
        names.append(hosts.shard_host(2).name)
    assert names == ["spare", "a", "b", "c"]
    assert [hosts.shard_host(index).name for index in range(2)] == ["a", "b"]
    hosts.note_loss("replica 0", NetworkError("E514", "nothing passes"))
    assert [hosts.worker_host(replica, 0).name for replica in range(2)] == ["b", "b"]


def test_cores_are_shared_by_the_workers_of_a_host(job: Job) -> None:
    """Two replicas of one machine each, on hosts of 4 and 2 cores, or both on one of 3."""
    small, large, lone = FakeHost("small", 2), FakeHost("large", 4), FakeHost("lone", 3)
    both = hosts_of(job, small, large)
    assert [both.threads_on(host) for host in both.hosts] == [2, 4]
    assert hosts_of(job, lone).threads_on(cast(Host, lone)) == 1


def test_a_role_elsewhere_gets_its_files_and_the_code_of_the_task(job: Job) -> None:
    there = FakeHost("there")
    hosts = hosts_of(job, there)
    role = hosts.place(Role("worker", "a:b"), cast(Host, there), files=["initial.safetensors"])
    assert role.host == "there"
    assert role.files["initial.safetensors"] == job.out.resolve() / "initial.safetensors"
    assert role.files["code/good.py"] == (USER_MODELS / "good.py").resolve()
    training = hosts.training_on(cast(Host, there))
    assert training.folder == "/tmp/agent"
    assert training.task.model == "/tmp/agent/code/good.py:task"
    assert hosts.host_of("worker") is cast(Host, there)


def test_a_role_here_gets_nothing_since_it_is_all_here(job: Job) -> None:
    with LocalHost() as here:
        hosts = hosts_of(job, here)
        role = hosts.place(Role("worker", "a:b"), here, files=["initial.safetensors"])
        assert not role.files
        assert hosts.training_on(here) == job.training
        assert hosts.folder_on(here) == str(job.out.resolve())
        assert hosts.launcher_address == ""


def test_a_lost_host_that_is_there_again_gets_back_what_is_started(job: Job) -> None:
    notices = list[str]()
    old, other = FakeHost("b", 2), FakeHost("a", 6)
    hosts = hosts_of(job, other, old, on_notice=notices.append)
    old.lost = "host b is lost: why"
    assert [hosts.worker_host(replica, 0).name for replica in range(2)] == ["a", "a"]
    assert hosts.threads_on(cast(Host, other)) == 3
    again = FakeHost("b", 2)
    hosts.admit(cast(Host, again))
    assert hosts.worker_host(1, 0) is cast(Host, again)
    assert [hosts.threads_on(host) for host in hosts.hosts] == [6, 2]
    hosts.admit(cast(Host, FakeHost("c")))
    assert [host.name for host in hosts.hosts] == ["a", "b", "c"]
    other.lost = "host a is lost: why"
    assert hosts.worker_host(0, 0).name == "c"
    assert notices == [
        "host b is lost: why; its roles go to a",
        "host b is there again",
        "host c has joined",
        "host a is lost: why; its roles go to c",
    ]


def test_replicas_that_join_go_where_the_fewest_workers_are_and_stay_there(job: Job) -> None:
    hosts = hosts_of(job, FakeHost("a"), FakeHost("b"), spare_hosts=[cast(Host, FakeHost("big", 12))])
    joined = [hosts.worker_host(replica, 0).name for replica in (5, 6, 7, 5)]
    assert joined == ["big", "big", "big", "big"]
    assert hosts.worker_host(8, 0).name == "a"
    hosts.admit(cast(Host, FakeHost("new")))
    assert [hosts.worker_host(replica, 0).name for replica in (5, 9, 10)] == ["big", "new", "b"]
    cut = hosts_of(with_machines(job, "a", "b"), *map(FakeHost, "abcd"))
    assert [[cut.worker_host(r, m).name for m in (0, 1)] for r in (0, 1, 2)] == [["a", "b"], ["c", "d"], ["a", "b"]]


def test_nothing_goes_where_the_memory_is_too_small(job: Job) -> None:
    planned = with_machines(job, "a", memory=600 << 20)
    a, b, c = FakeHost("a"), FakeHost("b"), FakeHost("c")
    hosts = hosts_of(planned, a, b, spare_hosts=[cast(Host, c)])
    assert hosts.find_obstacle() is None
    a.lost = "host a is lost: why"
    assert hosts.find_obstacle() is None
    assert [hosts.worker_host(replica, 0).name for replica in range(2)] == ["c", "b"]
    c.lost = "host c is lost: why"
    obstacle = hosts.find_obstacle()
    assert obstacle is not None
    assert obstacle.facts == "host c is lost: why; no other has 600 MiB of memory to spare"
    hosts.admit(cast(Host, FakeHost("c")))
    assert hosts.find_obstacle() is None
    assert hosts.worker_host(0, 0).name == "c"
