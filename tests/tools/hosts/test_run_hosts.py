"""Which host each role runs on, and what it is told and given there."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from places import USER_MODELS
from supervised import prepare_sync_run

from cutset.runtime.hosts.host import Host, LocalHost, Role
from cutset.tools.hosts.run_hosts import RunHosts
from cutset.tools.job.job import Job


@dataclass
class FakeHost:
    """A host of which only the name, the cores and the folder matter."""

    name: str
    cores: int = 4
    folder: str = "/tmp/agent"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return prepare_sync_run(tmp_path, shards=3)


def hosts_of(job: Job, *hosts: Any) -> RunHosts:
    return RunHosts(job, [cast(Host, host) for host in hosts])


def with_machines(job: Job, *names: str) -> Job:
    """The same run, as if its replicas were cut over these machines."""
    placement: Any = SimpleNamespace(machines=[SimpleNamespace(name=name) for name in names])
    return replace(job, placement=placement, regions=job.regions * len(names))


def test_replica_0_is_where_the_placement_says_and_others_follow(job: Job) -> None:
    hosts = hosts_of(with_machines(job, "c", "a"), *map(FakeHost, "abcde"))
    assert [[hosts.worker_host(r, m).name for m in (0, 1)] for r in range(3)] == [["c", "a"], ["e", "c"], ["b", "e"]]
    assert [hosts.shard_host(index).name for index in range(6)] == ["a", "b", "c", "d", "e", "a"]


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
