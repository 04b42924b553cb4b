"""The log says the same to whoever opens it next, whatever the crash left of its end."""

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import CheckpointError
from cutset.ps.sandblaster.recovery_log import RecoveryLog

RUN = {"method": "sandblaster", "samples": 1437, "shards": ["shard-0", "shard-1"], "share": 0.5, "init": None}


def reopen(path, run=RUN):
    """Read and closed again."""
    log = RecoveryLog(path, run)
    log.close()
    return log


def contents(log):
    return log.answers, log.committed, log.epoch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "operations.jsonl"


@pytest.fixture
def filled(path):
    """Rolled back once at its start, as every run; five answers, three of them committed."""
    log = RecoveryLog(path, RUN)
    assert log.begin_epoch() == 1
    for number in range(1, 6):
        log.append_answers(number, [number / 3])
        if number == 3:
            log.append_commit(3)
    log.close()
    return path


def test_a_new_one_is_empty_and_makes_its_folder(path):
    log = reopen(path)
    assert contents(log) == ([], 0, 0)
    assert json.loads(path.read_text()) == {"run": RUN}


def test_it_continues_an_existing_log(filled):
    log = reopen(filled)
    assert contents(log) == ([[n / 3] for n in range(1, 6)], 3, 1)
    before = filled.read_bytes()
    assert contents(reopen(filled)) == contents(log)
    assert filled.read_bytes() == before


def test_answers_after_the_last_commit_are_void_in_the_next_epoch(filled):
    log = RecoveryLog(filled, RUN)
    assert log.begin_epoch() == 2
    assert contents(log) == ([[n / 3] for n in range(1, 4)], 3, 2)
    log.append_answers(4, [7.0])
    log.close()
    assert contents(reopen(filled)) == ([[1 / 3], [2 / 3], [1.0], [7.0]], 3, 2)


def test_without_a_commit_the_next_epoch_is_empty(path):
    log = RecoveryLog(path, RUN)
    log.begin_epoch()
    log.append_answers(1, [1.0])
    assert log.begin_epoch() == 2
    assert contents(log) == ([], 0, 2)
    log.close()
    assert contents(reopen(path)) == ([], 0, 2)


def test_epochs_grow_from_process_to_process(path):
    for epoch in range(1, 5):
        log = RecoveryLog(path, RUN)
        assert log.begin_epoch() == epoch
        log.close()


def test_every_line_is_on_disk_when_the_method_returns(path):
    log = RecoveryLog(path, RUN)
    log.begin_epoch()
    log.append_answers(1, [0.5])
    assert contents(reopen(path)) == ([[0.5]], 0, 1)
    log.append_commit(1)
    assert contents(reopen(path)) == ([[0.5]], 1, 1)
    log.close()


@pytest.mark.parametrize("number", [0, 2, 7, -1])
def test_answers_come_in_order(path, number):
    log = RecoveryLog(path, RUN)
    with pytest.raises(ValueError, match=f"batch {number} after 0"):
        log.append_answers(number, [1.0])
    assert contents(log) == ([], 0, 0)
    log.close()
    assert contents(reopen(path)) == ([], 0, 0)


@settings(max_examples=60)
@given(numbers=st.lists(st.floats(width=64), max_size=6))
def test_numbers_keep_every_bit(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("log") / "log"
    log = RecoveryLog(path, {})
    log.append_answers(1, numbers)
    log.close()
    (found,) = reopen(path, {}).answers
    assert len(found) == len(numbers)
    assert all(map(same, numbers, found))


def same(a, b):
    return math.isnan(b) if math.isnan(a) else struct.pack("d", a) == struct.pack("d", b)


def test_whole_numbers_are_read_as_floats(path):
    log = RecoveryLog(path, RUN)
    log.append_answers(1, [3, 0])
    log.close()
    assert [type(number) for number in reopen(path).answers[0]] == [float, float]


def test_a_line_that_a_crash_cut_off_does_not_count(filled):
    whole = filled.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        filled.write_bytes(whole[:end])
        assert contents(reopen(filled)) == ([[n / 3] for n in range(1, 5)], 3, 1)
        assert filled.read_bytes() == whole[:last]


def test_a_log_cut_off_anywhere_is_continued(filled):
    whole = filled.read_bytes()
    for end in range(0, len(whole), 3):
        filled.write_bytes(whole[:end])
        log = RecoveryLog(filled, RUN)
        count, epoch = len(log.answers), log.epoch
        assert log.committed in (0, 3)
        assert log.answers == [[n / 3] for n in range(1, count + 1)]
        assert log.begin_epoch() == epoch + 1
        assert len(log.answers) == log.committed
        log.append_answers(log.committed + 1, [9.0])
        log.close()
        again = reopen(filled)
        assert again.answers == [*([n / 3] for n in range(1, log.committed + 1)), [9.0]]
        assert again.epoch == epoch + 1


def test_an_empty_file_is_a_new_log(path):
    path.parent.mkdir()
    path.touch()
    assert contents(reopen(path)) == ([], 0, 0)
    assert json.loads(path.read_text()) == {"run": RUN}


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("samples", 1436, "recovery log of a run with samples 1437; this run has 1436"),
        ("method", "other", "recovery log of a run with method sandblaster; this run has other"),
        (
            "shards",
            ["shard-0"],
            r"recovery log of a run with shards \['shard-0', 'shard-1'\]; this run has \['shard-0'\]",
        ),
        ("init", "file", "recovery log of a run with init None; this run has file"),
        ("new", 1, "recovery log of a run with new None; this run has 1"),
    ],
)
def test_the_log_of_another_run_is_refused(filled, name, value, facts):
    before = filled.read_bytes()
    with pytest.raises(CheckpointError, match=facts) as caught:
        RecoveryLog(filled, RUN | {name: value})
    assert (caught.value.code, str(filled) in str(caught.value)) == ("E812", True)
    assert caught.value.fix
    assert filled.read_bytes() == before


LINE = json.dumps({"run": RUN})


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([LINE, "{"], id="half a line"),
        pytest.param([LINE, "garbage", json.dumps({"epoch": 1})], id="no JSON"),
        pytest.param([LINE, "", LINE], id="an empty line"),
        pytest.param([LINE, "[]"], id="a list"),
        pytest.param([LINE, "3"], id="a number"),
        pytest.param([LINE, '"run"'], id="a word"),
        pytest.param([LINE, "{}"], id="says nothing"),
        pytest.param([LINE, '{"epoch": "x"}'], id="an epoch that is no number"),
        pytest.param([LINE, '{"commit": null}'], id="a commit that is no number"),
        pytest.param([LINE, '{"answers": [1.0]}'], id="answers without a number"),
        pytest.param([LINE, '{"number": 1, "answers": ["x"]}'], id="answers that are no numbers"),
        pytest.param([LINE, '{"number": 1, "answers": 1.0}'], id="answers that are no list"),
        pytest.param(['{"run": 1}'], id="a run that is nothing"),
        pytest.param(['{"epoch": 1}'], id="of no run"),
        pytest.param([LINE, '{"number": 2, "answers": [1.0]}'], id="a batch that is missing"),
        pytest.param([LINE, '{"number": 0, "answers": [1.0]}'], id="a batch before the first"),
        pytest.param([LINE, '{"number": 1, "answers": [1.0]}', '{"commit": 2}'], id="a commit of what is not there"),
        pytest.param([b"\xff\xfe".decode("latin1")], id="bytes"),
    ],
)
def test_a_damaged_log_is_refused(path, lines):
    path.parent.mkdir()
    path.write_text("".join(f"{line}\n" for line in lines), encoding="latin1")
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        RecoveryLog(path, RUN)
    assert (caught.value.code, str(path) in str(caught.value)) == ("E803", True)


def test_the_last_answers_to_a_batch_count(path):
    """Another coordinator rolled back and died before it wrote that."""
    path.parent.mkdir()
    entries = [{"run": RUN}, {"number": 1, "answers": [1.0]}, {"number": 2, "answers": [2.0]}]
    entries.append({"number": 1, "answers": [5.0]})
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert contents(reopen(path)) == ([[5.0]], 0, 0)
