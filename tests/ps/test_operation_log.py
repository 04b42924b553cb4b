"""The log says the same to whoever opens it next, whatever the crash left of its end."""

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import CheckpointError
from cutset.ps.sandblaster.recovery_log import OperationLog

RUN = {"method": "sandblaster", "samples": 1437, "shards": ["shard-0", "shard-1"], "share": 0.5, "init": None}


def opened(path, run=RUN):
    """Read and closed again."""
    log = OperationLog(path, run)
    log.close()
    return log


def told(log):
    return log.answers, log.committed, log.epoch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "operations.jsonl"


@pytest.fixture
def filled(path):
    """Rolled back once at its start, as every run; five answers, three of them committed."""
    log = OperationLog(path, RUN)
    assert log.back() == 1
    for number in range(1, 6):
        log.answered(number, [number / 3])
        if number == 3:
            log.commit(3)
    log.close()
    return path


def test_a_new_one_is_empty_and_makes_its_folder(path):
    log = opened(path)
    assert told(log) == ([], 0, 0)
    assert json.loads(path.read_text()) == {"run": RUN}


def test_it_goes_on_from_what_is_there(filled):
    log = opened(filled)
    assert told(log) == ([[n / 3] for n in range(1, 6)], 3, 1)
    before = filled.read_bytes()
    assert told(opened(filled)) == told(log)
    assert filled.read_bytes() == before


def test_answers_after_the_last_commit_are_void_after_back(filled):
    log = OperationLog(filled, RUN)
    assert log.back() == 2
    assert told(log) == ([[n / 3] for n in range(1, 4)], 3, 2)
    log.answered(4, [7.0])
    log.close()
    assert told(opened(filled)) == ([[1 / 3], [2 / 3], [1.0], [7.0]], 3, 2)


def test_without_a_commit_nothing_is_left_after_back(path):
    log = OperationLog(path, RUN)
    log.back()
    log.answered(1, [1.0])
    assert log.back() == 2
    assert told(log) == ([], 0, 2)
    log.close()
    assert told(opened(path)) == ([], 0, 2)


def test_epochs_go_on_growing_whoever_opens_it(path):
    for epoch in range(1, 5):
        log = OperationLog(path, RUN)
        assert log.back() == epoch
        log.close()


def test_every_line_is_there_before_it_goes_on(path):
    log = OperationLog(path, RUN)
    log.back()
    log.answered(1, [0.5])
    assert told(opened(path)) == ([[0.5]], 0, 1)
    log.commit(1)
    assert told(opened(path)) == ([[0.5]], 1, 1)
    log.close()


@pytest.mark.parametrize("number", [0, 2, 7, -1])
def test_answers_come_one_after_the_other(path, number):
    log = OperationLog(path, RUN)
    with pytest.raises(ValueError, match=f"batch {number} after 0"):
        log.answered(number, [1.0])
    assert told(log) == ([], 0, 0)
    log.close()
    assert told(opened(path)) == ([], 0, 0)


@settings(max_examples=60)
@given(numbers=st.lists(st.floats(width=64), max_size=6))
def test_numbers_keep_every_bit(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("log") / "log"
    log = OperationLog(path, {})
    log.answered(1, numbers)
    log.close()
    (found,) = opened(path, {}).answers
    assert len(found) == len(numbers)
    assert all(map(same, numbers, found))


def same(a, b):
    return math.isnan(b) if math.isnan(a) else struct.pack("d", a) == struct.pack("d", b)


def test_whole_numbers_come_back_as_numbers_with_a_point(path):
    log = OperationLog(path, RUN)
    log.answered(1, [3, 0])
    log.close()
    assert [type(number) for number in opened(path).answers[0]] == [float, float]


def test_a_line_that_a_crash_cut_off_does_not_count(filled):
    whole = filled.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        filled.write_bytes(whole[:end])
        assert told(opened(filled)) == ([[n / 3] for n in range(1, 5)], 3, 1)
        assert filled.read_bytes() == whole[:last]


def test_wherever_it_is_cut_off_it_goes_on(filled):
    whole = filled.read_bytes()
    for end in range(0, len(whole), 3):
        filled.write_bytes(whole[:end])
        log = OperationLog(filled, RUN)
        count, epoch = len(log.answers), log.epoch
        assert log.committed in (0, 3)
        assert log.answers == [[n / 3] for n in range(1, count + 1)]
        assert log.back() == epoch + 1
        assert len(log.answers) == log.committed
        log.answered(log.committed + 1, [9.0])
        log.close()
        again = opened(filled)
        assert again.answers == [*([n / 3] for n in range(1, log.committed + 1)), [9.0]]
        assert again.epoch == epoch + 1


def test_an_empty_file_is_a_new_log(path):
    path.parent.mkdir()
    path.touch()
    assert told(opened(path)) == ([], 0, 0)
    assert json.loads(path.read_text()) == {"run": RUN}


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("samples", 1436, "of a run with samples 1437; this one has 1436"),
        ("method", "other", "of a run with method sandblaster; this one has other"),
        ("shards", ["shard-0"], r"of a run with shards \['shard-0', 'shard-1'\]; this one has \['shard-0'\]"),
        ("init", "file", "of a run with init None; this one has file"),
        ("new", 1, "of a run with new None; this one has 1"),
    ],
)
def test_the_log_of_another_run_is_refused(filled, name, value, facts):
    before = filled.read_bytes()
    with pytest.raises(CheckpointError, match=facts) as caught:
        OperationLog(filled, RUN | {name: value})
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
        OperationLog(path, RUN)
    assert (caught.value.code, str(path) in str(caught.value)) == ("E803", True)


def test_a_batch_that_was_told_again_counts_as_told_last(path):
    """Another coordinator rolled back and died before it wrote that."""
    path.parent.mkdir()
    entries = [{"run": RUN}, {"number": 1, "answers": [1.0]}, {"number": 2, "answers": [2.0]}]
    entries.append({"number": 1, "answers": [5.0]})
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert told(opened(path)) == ([[5.0]], 0, 0)
