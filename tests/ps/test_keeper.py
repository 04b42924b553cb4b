"""A shard is written while it goes on, as it was at one moment; whoever takes its place goes on from there."""

import pytest
import torch

from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.checkpoint.journal import Keeper, Keeping, journal_path, unfinished_path
from cutset.ps.slices.slicing import layout
from cutset.ps.methods.method import Serving
from cutset.ps.server.shard import Shard
from cutset.ps.checkpoint.shard_file import read_shard
from cutset.runtime.channel.message import Message

SIZE = 40
SLICES = layout([SIZE], 1, align=1, most=8)  # five slices
SERVING = Serving(Adagrad(0.5))


def kept(tmp_path, *, serving=SERVING, ticks=None, **options):
    """A shard and what writes it, by a clock that stands still unless `ticks` move it."""
    clock = (lambda: 0.0) if ticks is None else (lambda: ticks[0])
    keeper = Keeper(Keeping(str(tmp_path), **options), 0, clock=clock)
    return Shard(0, SLICES, serving, keeper=keeper), keeper


def put(shard, value=0.0):
    for piece in SLICES:
        body = {"version": 0, "state": []}
        full = torch.full((piece.size,), value)
        shard.handle(Message("put", edge=piece.number, body=body, tensors=(full,), sender="worker-0.0"))


def push(shard, number, value=1.0, sender="worker-0.0", slices=SLICES, **body):
    replies = []
    for piece in slices:
        plain = {"base": 0, "number": number, "replica": int(sender[7]), **body}
        gradient = torch.full((piece.size,), value)
        replies += shard.handle(Message("push", number, 0, piece.number, plain, (gradient,), sender))
    return replies


def settled(shard):
    """Turn until nothing is being written; what was told."""
    replies = shard.turn()
    while shard.busy:
        replies += shard.turn()
    return replies


def restored(tmp_path):
    contents = read_shard(journal_path(tmp_path, 0))
    return contents.holdings, contents.clocks


def test_nothing_is_fetched_before_the_initial_values_are_on_the_disk(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    ask = Message("fetch", 1, 0, 0, {"at_least": 0, "slowest": 0, "replica": 0}, sender="worker-0.0")
    assert shard.handle(ask) == []
    assert [m.kind for _, m in settled(shard) if m.kind == "values"] == ["values"]
    assert [h.version for h in restored(tmp_path)[0]] == [0] * len(SLICES)


def test_a_snapshot_is_of_one_moment_though_pushes_go_on(tmp_path):
    ticks = [0.0]
    shard, _ = kept(tmp_path, ticks=ticks)
    put(shard)
    settled(shard)
    push(shard, 1)
    before = [(h.value.clone(), h.state["sum"].clone()) for h in shard.holdings()]
    ticks[0] = 100.0
    shard.turn()  # it begins; at most a slice is copied
    push(shard, 2, 3.0)
    push(shard, 3, -7.0)
    settled(shard)
    holdings, _ = restored(tmp_path)
    for holding, (value, total) in zip(holdings, before, strict=True):
        assert (holding.version, holding.applied) == (1, {"worker-0.0": 1})
        assert torch.equal(holding.value, value)
        assert torch.equal(holding.state["sum"], total)


def test_clients_are_told_what_the_disk_has(tmp_path):
    ticks = [0.0]
    shard, _ = kept(tmp_path, ticks=ticks)
    put(shard)
    settled(shard)
    assert {m.body["durable"] for _, m in push(shard, 1)} == {0}
    assert settled(shard) == []
    ticks[0] = 100.0
    [(peer, told)] = settled(shard)
    assert (peer, told.kind) == ("worker-0.0", "durable")
    assert told.body == {"numbers": {str(piece.number): 1 for piece in SLICES}, "failing": False}
    assert {m.body["durable"] for _, m in push(shard, 2)} == {1}


def test_a_client_in_a_hurry_need_not_wait_for_the_next_time(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1, hurry=True)
    assert [m.kind for _, m in settled(shard)] == ["durable"]


def test_who_leaves_is_told_once_its_pushes_are_on_the_disk(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1)
    for piece in SLICES:
        leave = Message("leave", edge=piece.number, body={"replica": 0, "number": 1}, sender="worker-0.0")
        assert shard.handle(leave) == []
    assert [m.kind for _, m in settled(shard)].count("left") == len(SLICES)
    holdings, clocks = restored(tmp_path)
    assert [h.applied for h in holdings] == [{"worker-0.0": 1}] * len(SLICES)
    assert set(map(len, clocks.values())) == {0}


def test_another_takes_its_place_and_takes_pushes_once(tmp_path):
    shard, _ = kept(tmp_path, serving=Serving(SGD(1.0)))
    put(shard)
    settled(shard)
    push(shard, 1, hurry=True)
    settled(shard)
    push(shard, 2)  # is lost with it
    holdings, clocks = restored(tmp_path)
    keeper = Keeper(Keeping(str(tmp_path)), 0)
    keeper.goes_on_from(holdings)
    again = Shard(0, SLICES, Serving(SGD(1.0)), keeper=keeper, held=holdings, clocks=clocks)
    assert {m.kind for _, m in push(again, 3)} == {"again"}
    for number in (1, 2, 3, 3, 2):
        push(again, number, base=number - 1)
    assert all(torch.equal(h.value, torch.full((h.slice.size,), -3.0)) for h in again.holdings())


def test_gathered_pushes_of_a_later_version_wait_after_a_restart(tmp_path):
    serving = Serving(SGD(1.0), replicas=2, gather=2)
    shard, _ = kept(tmp_path, serving=serving)
    put(shard)
    settled(shard)
    holdings, clocks = restored(tmp_path)
    again = Shard(0, SLICES, serving, held=holdings, clocks=clocks)
    for number in (1, 2, 3):  # one replica was faster
        assert push(again, number, 2.0, base=number - 1) == []
    assert len(push(again, 1, 4.0, sender="worker-1.0", base=0)) == 2 * len(SLICES)
    assert all(h.version == 1 and torch.equal(h.value, torch.full((h.slice.size,), -3.0)) for h in again.holdings())
    push(again, 2, 4.0, sender="worker-1.0", base=1)
    assert all(h.version == 2 and h.applied == {"worker-0.0": 2, "worker-1.0": 2} for h in again.holdings())


def test_a_disk_that_is_full_is_told_and_the_last_good_file_stays(tmp_path):
    ticks = [0.0]
    shard, keeper = kept(tmp_path, ticks=ticks)
    put(shard)
    settled(shard)
    push(shard, 1)
    keeper.path.with_suffix(".tmp").mkdir()  # cannot be opened for writing, by root neither
    ticks[0] = 100.0
    told = settled(shard)
    assert ("launcher", "unsaved") in [(peer, m.kind) for peer, m in told]
    assert [m.body["failing"] for _, m in told if m.kind == "durable"] == [True]
    assert [h.version for h in restored(tmp_path)[0]] == [0] * len(SLICES)
    leave = Message("leave", edge=0, body={"replica": 0, "number": 1}, sender="worker-0.0")
    assert [m.kind for _, m in shard.handle(leave)] == ["left"]  # nobody waits for such a disk
    keeper.path.with_suffix(".tmp").rmdir()
    ticks[0] = 200.0
    assert [m.body["failing"] for _, m in settled(shard) if m.kind == "durable"] == [False]
    assert [h.version for h in restored(tmp_path)[0]] == [1] * len(SLICES)


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_are_of_one_version_of_all_slices(tmp_path, every):
    shard, _ = kept(tmp_path, serving=Serving(SGD(1.0)), every=every)
    put(shard)
    told = settled(shard)
    for number in (1, 2, 3, 4):
        for piece in SLICES:
            push(shard, number, slices=[piece], base=number - 1)
            told += shard.turn()
    told += settled(shard)
    saved = [m.body for _, m in told if m.kind == "saved"]
    assert sorted(body["checkpoint"] for body in saved) == list(range(1, 4 // every + 1))
    for number in range(1, 4 // every + 1):
        [file] = unfinished_path(tmp_path, number).glob("*.safetensors")
        holdings = read_shard(file).holdings
        assert {h.version for h in holdings} == {number * every}
        assert all(torch.equal(h.value, torch.full((h.slice.size,), -float(number * every))) for h in holdings)


def test_of_those_by_number_only_the_ones_are_made_that_are_asked_for_ahead(tmp_path):
    shard, _ = kept(tmp_path, serving=Serving(SGD(1.0)), every=2, asked=True)
    put(shard)
    told = settled(shard)
    asked = {3: 2, 4: 2, 5: 4, 7: 3}  # before which push for which number; 4 is asked for in its time, then 3 too late
    for number in range(1, 9):
        if number in asked:
            shard.handle(Message("checkpoint", body={"checkpoint": asked[number]}, sender="launcher"))
            told += shard.turn()
        for piece in SLICES:
            push(shard, number, slices=[piece], base=number - 1)
            told += shard.turn()
    told += settled(shard)
    said = [(message.kind, message.body["checkpoint"]) for peer, message in told if peer == "launcher"]
    assert sorted(said) == [("late", 3), ("saved", 2)], "a question takes the place of the one before"
    [file] = unfinished_path(tmp_path, 2).glob("*.safetensors")
    assert {holding.version for holding in read_shard(file).holdings} == {4}
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000002"]


def test_it_is_busy_as_long_as_something_is_wanted_that_is_not_written(tmp_path):
    """Who leaves while an earlier state is being written must not wait until the shard looks again by itself."""
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1, hurry=True)
    shard.turn()  # begins to write
    push(shard, 2, hurry=True)
    while shard._disk._keeper._journal is not None:
        shard.turn()
    assert shard.busy
    assert [m.body["numbers"] for _, m in settled(shard)][-1] == {str(piece.number): 2 for piece in SLICES}
    assert not shard.busy
