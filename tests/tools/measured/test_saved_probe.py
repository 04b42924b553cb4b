"""What is kept of a machine: for whom, where, and what becomes of files that cannot be used."""

import json
from dataclasses import replace

import msgspec
import pytest

from cutset.partition.cluster.machines import Cluster, Machine, ProcessMemory, Rate, SharedCores, uniform_cluster
from cutset.tools.measured.saved_probe import (
    FORMAT,
    MachineKey,
    SavedProbe,
    find_file,
    find_folder,
    make_key,
    make_saved_probe,
    read_saved_probe,
    save_probe,
)
from cutset.tools.task.plan_request import DESKTOP, HERE, PlanRequest

KEY = MachineKey("host", "cpu", 4, "2.13", "0.1", 1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cutset"


def make_probe(key: MachineKey = KEY) -> SavedProbe:
    machine = Machine("m", memory_bytes=4 << 30, rates={"loss": Rate(1e9, 2e9, 3e-6, 4e-6)}, process_bytes=250 * 10**6)
    machines = tuple(replace(machine, name=f"m {i}") for i in range(2))
    cluster = Cluster(machines, 1e9, 5e-5, shared=(SharedCores((0, 1), 4, 1.25),))
    return make_saved_probe(key, cluster, busy=0.5, seconds=4.0)


def test_processes_share_cores_and_memory_of_the_machine():
    saved = msgspec.structs.replace(make_probe(), ratios={"op": (2.0, 3.0)}, learned={"loss": (1.5, 1.0)})
    cluster = saved.make_cluster(4)
    assert [machine.name for machine in cluster.machines] == [f"machine {i}" for i in range(4)]
    assert cluster.machines[0].memory_bytes == 2 << 30
    assert cluster.machines[0].rates["loss"] == Rate(1e9, 2e9, 3e-6, 4e-6)
    assert cluster.machines[0].ratios == {"op": (2.0, 3.0), "loss": (1.5, 1.0)}
    assert cluster.shared == (SharedCores((0, 1, 2, 3), 4, 1.25, 1e9),)
    assert (cluster.bandwidth, cluster.latency_s) == (1e9, 5e-5)
    assert saved.make_cluster(2, replicas=2).shared == (SharedCores((0, 1), 2, 1.25, 1e9),)
    assert saved.make_cluster(1).shared == ()


def test_a_task_slows_others_down_as_it_was_measured():
    saved = msgspec.structs.replace(make_probe(), contentions={"digest": 1.5})
    assert saved.make_cluster(2, task="digest").shared == (SharedCores((0, 1), 4, 1.5, 1e9),)
    assert saved.make_cluster(2, task="another").shared == (SharedCores((0, 1), 4, 1.25, 1e9),)


def test_processes_that_take_turns_have_a_contention_of_their_own():
    cores = KEY.cores // KEY.threads
    saved = msgspec.structs.replace(make_probe(), contentions={"digest": 1.5, f"digest by {cores + 1}": 1.75})
    found = [saved.make_cluster(count, task="digest").shared[0].contention for count in range(cores, cores + 3)]
    assert found == [1.5, 1.75, 1.25]


def test_one_process_is_as_fast_with_all_cores_as_was_measured():
    saved = msgspec.structs.replace(make_probe(), speedups={"digest": 1.5})
    assert saved.make_cluster(2, task="digest").shared[0].whole_speedup == 1.5
    assert saved.make_cluster(2, task="another").shared[0].whole_speedup is None
    assert saved.make_cluster(2, replicas=2, task="digest").shared[0].whole_speedup is None, "others have some of them"


def test_both_forms_of_a_task_have_the_memory_that_was_measured():
    saved = msgspec.structs.replace(
        make_probe(), memory={"whole": ProcessMemory(3, 1.5), "unrolled": ProcessMemory(4, 1.25)}
    )
    both, one = saved.make_cluster(2, task="whole", unrolled="unrolled"), saved.make_cluster(2, task="whole")
    for cluster, expected in (
        (both, (3, 1.5)),
        (both.for_unrolled_form(), (4, 1.25)),
        (one.for_unrolled_form(), (3, 1.5)),
    ):
        assert [(machine.process_bytes, machine.memory_ratio) for machine in cluster.machines] == [expected] * 2


def test_messages_are_as_slow_as_runs_have_shown():
    cluster = msgspec.structs.replace(make_probe(), learned_link=2.0).make_cluster(2)
    assert (cluster.bandwidth, cluster.latency_s) == (0.5e9, 1e-4)


def test_what_is_kept_is_read_again(folder):
    saved = make_probe()
    assert read_saved_probe(KEY) == (None, "")
    assert save_probe(saved) == ""
    assert [path.parent for path in folder.iterdir()] == [folder]
    assert read_saved_probe(KEY) == (saved, "")
    assert read_saved_probe(msgspec.structs.replace(KEY, threads=2)) == (None, "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read"),
        ("[1, 2]", "cannot be read"),
        ("\x00\xff", "cannot be read"),
        (json.dumps({"format": 2}), "cannot be read"),
    ],
)
def test_a_broken_file_is_left_out_with_a_sentence(folder, content, said):
    folder.mkdir()
    path = find_file(KEY)
    assert path is not None
    path.write_text(content, encoding="latin-1")
    saved, note = read_saved_probe(KEY)
    assert saved is None
    assert said in note
    assert str(path) in note


def test_numbers_that_cannot_be_are_left_out():
    for broken in (
        {"ratios": {"op": (0.0, 1.0)}},
        {"learned": {"loss": (1.0, 1e9)}},
        {"learned_link": -1.0},
        {"contentions": {"digest": 0.0}},
        {"speedups": {"digest": 1e9}},
        {"steps": {"digest of a graph": (0.0, 0.1)}},
        {"cluster": "[[machine]]\nname = 'a'\n"},
    ):
        save_probe(msgspec.structs.replace(make_probe(), **broken))
        saved, note = read_saved_probe(KEY)
        assert saved is None
        assert "is left out" in note


def test_what_another_version_has_measured_is_left_out_and_said_to_be():
    save_probe(msgspec.structs.replace(make_probe(), format=FORMAT - 1))
    saved, note = read_saved_probe(KEY)
    assert saved is None
    assert note.endswith("is left out: another version of cutset has measured it")


def test_a_probe_of_another_machine_is_left_out_and_its_name_is_said():
    save_probe(make_probe(msgspec.structs.replace(KEY, host="other")))
    other, own = find_file(msgspec.structs.replace(KEY, host="other")), find_file(KEY)
    assert other is not None
    assert own is not None
    other.rename(own)
    saved, note = read_saved_probe(KEY)
    assert saved is None
    assert note.endswith("it is a probe of another machine (host other)")


def test_what_cannot_be_kept_is_said(folder):
    folder.write_text("a file where the folder would be")
    assert "cannot be kept" in save_probe(make_probe())
    assert read_saved_probe(KEY) == (None, "")


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder() == tmp_path / ".cache" / "cutset"


def test_a_key_is_that_of_this_machine_and_of_a_part_of_its_cores():
    key = make_key(1)
    assert (key.threads, key.cores >= 1) == (key.cores, True)
    assert make_key(10**6).threads == 1


def test_a_plan_here_has_what_is_kept_and_constants_where_nothing_is():
    request = PlanRequest(machines=2, cluster=HERE)
    assert request.load_cluster() == uniform_cluster(2)
    save_probe(make_probe(make_key(2)))
    assert request.load_cluster().bandwidth == 1e9
    assert PlanRequest(machines=2, cluster=DESKTOP).load_cluster() == uniform_cluster(2)


def test_the_environment_says_what_to_plan_for_where_nothing_else_does(monkeypatch):
    assert PlanRequest().source == DESKTOP  # as in all tests
    monkeypatch.delenv("CUTSET_CLUSTER")
    assert PlanRequest().source == HERE
    assert PlanRequest(cluster="lab.toml").source == "lab.toml"
