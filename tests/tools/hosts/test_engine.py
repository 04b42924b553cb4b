"""Whether hosts have room for the roles of a run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from supervised import prepare_sync_run

from cutset.errors import UsageError
from cutset.runtime.hosts.host import Host
from cutset.tools.hosts.engine import check_room
from cutset.tools.hosts.run_hosts import RunHosts
from cutset.tools.job.job import Job


@dataclass
class FakeHost:
    """A host of which only the name matters."""

    name: str
    cores: int = 1
    folder: str = ""
    lost: str = ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return prepare_sync_run(tmp_path, shards=2)


def with_options(job: Job, *, replicas: int, ports: str | None = None) -> Job:
    config = replace(job.config, replicas=replicas, on="ssh:cluster.toml", ports=ports)
    return replace(job, config=config, training=msgspec.structs.replace(job.training, replicas=replicas))


def check(job: Job, hosts: int) -> None:
    check_room(job, RunHosts(job, [cast(Host, FakeHost(f"lab{number}")) for number in range(hosts)]))


@pytest.mark.parametrize(("replicas", "hosts"), [(255, 1), (600, 2)])
def test_a_host_has_256_roles_at_most(job: Job, replicas: int, hosts: int) -> None:
    check(with_options(job, replicas=254), 1)  # and two shards
    big = with_options(job, replicas=replicas)
    with pytest.raises(UsageError, match=r"E221: [0-9]+ processes on lab0; 256 at most"):
        check(big, hosts)


def test_ports_have_room_for_the_roles_of_a_host_and_the_launcher(job: Job) -> None:
    options: dict[str, Any] = {"replicas": 4}
    check(with_options(job, **options, ports="40000-40003"), 2)  # two workers, a shard, and the launcher
    with pytest.raises(UsageError, match="E297: --ports 40000-40002 has 3 ports; 4 roles may be on one host"):
        check(with_options(job, **options, ports="40000-40002"), 2)
