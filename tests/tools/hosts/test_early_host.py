"""What the first roles of a run are forks of is started before it is planned, with as many threads as they have."""

import os
from pathlib import Path

from cutset.tools.config.run_config import RunConfig
from cutset.tools.hosts.early_host import ROLES, list_first_threads, open_early_host
from cutset.tools.training.roles import BASELINE, SHARD, WORKER

CORES = 8


def first_threads(**options: object) -> list[int]:
    return list_first_threads(RunConfig("cutset.models:digits", **options), CORES)


def test_alone_a_process_has_all_cores_and_whatever_starts_later_takes_none_of_them() -> None:
    assert first_threads(replicas=4) == [CORES]


def test_without_it_shards_have_a_thread_and_workers_their_part_of_the_cores() -> None:
    assert first_threads(baseline=False) == [1, CORES]
    assert first_threads(baseline=False, machines=2, replicas=2) == [1, 2]
    assert first_threads(baseline=False, machines=4, replicas=2) == [1]


def test_a_placement_says_only_later_how_many_workers_there_are(tmp_path: Path) -> None:
    assert first_threads(baseline=False, placement=tmp_path / "cut.json") == [1]


def test_a_number_of_machines_that_cannot_be_is_left_to_the_planner_to_refuse() -> None:
    assert first_threads(baseline=False, machines=0) == [1, CORES]


def test_a_run_that_is_resumed_has_nothing_alone(tmp_path: Path) -> None:
    assert first_threads(resume=tmp_path, replicas=2) == [1, 4]


def test_roles_are_in_the_module_that_is_imported_early() -> None:
    assert {role.partition(":")[0] for role in (WORKER, SHARD, BASELINE)} == {ROLES}


def test_nothing_is_started_here_where_roles_run_elsewhere(tmp_path: Path) -> None:
    before = list_children()
    with open_early_host(RunConfig("cutset.models:digits", on=f"ssh:{tmp_path / 'cluster.toml'}")) as host:
        assert host is None
        assert list_children() == before


def test_here_it_has_started_when_the_run_is_prepared() -> None:
    with open_early_host(RunConfig("cutset.models:digits", replicas=2, baseline=False)) as host:
        assert host is not None
        host.await_prepared()
        assert any("cutset.runtime.hosts.fork_server" in command for command in map(read_command, list_children()))


def list_children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def read_command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
