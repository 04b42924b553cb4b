"""A shard is written while it goes on, as it was at one moment; whoever takes its place goes on from there."""

import pytest
import torch

from cutset.ps.checkpoint.journal import Journal, JournalConfig, checkpoint_path, journal_path, recovery_path
from cutset.ps.checkpoint.shard_file import read_shard
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.message import LAUNCHER, Message

SIZE = 40
SLICES = slice_parameters([SIZE], 1, align=1, max_elements=8)  # five slices
SERVING = ServingConfig(Adagrad(0.5))


def kept(tmp_path, *, serving=SERVING, ticks=None, **options):
    """A shard and what writes it, by a clock that stands still unless `ticks` move it."""
    clock = (lambda: 0.0) if ticks is None else (lambda: ticks[0])
    journal = Journal(JournalConfig(str(tmp_path), **options), 0, clock=clock)
    return Shard(0, SLICES, serving, journal=journal), journal


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
    replies = shard.poll()
    while shard.busy:
        replies += shard.poll()
    return replies


def restored(tmp_path):
    contents = read_shard(journal_path(tmp_path, 0))
    return contents.slice_states, contents.clocks


def test_no_fetch_is_answered_before_the_initial_values_are_durable(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    ask = Message("fetch", 1, 0, 0, {"min_version": 0, "min_step": 0, "replica": 0}, sender="worker-0.0")
    assert shard.handle(ask) == []
    assert [m.kind for _, m in settled(shard) if m.kind == "values"] == ["values"]
    assert [h.version for h in restored(tmp_path)[0]] == [0] * len(SLICES)


def test_a_snapshot_is_of_one_moment_though_pushes_go_on(tmp_path):
    ticks = [0.0]
    shard, _ = kept(tmp_path, ticks=ticks)
    put(shard)
    settled(shard)
    push(shard, 1)
    before = [(h.value.clone(), h.state["sum"].clone()) for h in shard.slice_states()]
    ticks[0] = 100.0
    shard.poll()  # it begins; at most a slice is copied
    push(shard, 2, 3.0)
    push(shard, 3, -7.0)
    settled(shard)
    slice_states, _ = restored(tmp_path)
    for slice_state, (value, total) in zip(slice_states, before, strict=True):
        assert (slice_state.version, slice_state.applied) == (1, {"worker-0.0": 1})
        assert torch.equal(slice_state.value, value)
        assert torch.equal(slice_state.state["sum"], total)


def test_clients_are_told_which_pushes_are_durable(tmp_path):
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


def test_a_flush_does_not_wait_for_the_interval(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1, flush=1)
    assert [m.kind for _, m in settled(shard)] == ["durable"]


def test_a_leave_is_acknowledged_once_the_pushes_are_durable(tmp_path):
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1)
    for piece in SLICES:
        leave = Message("leave", edge=piece.number, body={"replica": 0, "number": 1}, sender="worker-0.0")
        assert shard.handle(leave) == []
    assert [m.kind for _, m in settled(shard)].count("leave_ack") == len(SLICES)
    slice_states, clocks = restored(tmp_path)
    assert [h.applied for h in slice_states] == [{"worker-0.0": 1}] * len(SLICES)
    assert set(map(len, clocks.values())) == {0}


def test_a_replaced_shard_applies_resent_pushes_once(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)))
    put(shard)
    settled(shard)
    push(shard, 1, flush=1)
    settled(shard)
    push(shard, 2)  # is lost with it
    slice_states, clocks = restored(tmp_path)
    journal = Journal(JournalConfig(str(tmp_path)), 0)
    journal.restore_from(slice_states)
    again = Shard(0, SLICES, ServingConfig(SGD(1.0)), journal=journal, restored=slice_states, clocks=clocks)
    assert {m.kind for _, m in push(again, 3)} == {"resend"}
    for number in (1, 2, 3, 3, 2):
        push(again, number, base=number - 1)
    assert all(torch.equal(h.value, torch.full((h.slice.size,), -3.0)) for h in again.slice_states())


def test_a_full_disk_is_reported_and_the_last_journal_stays(tmp_path):
    ticks = [0.0]
    shard, journal = kept(tmp_path, ticks=ticks)
    put(shard)
    settled(shard)
    push(shard, 1)
    journal.path.with_suffix(".tmp").mkdir()  # cannot be opened for writing, by root neither
    ticks[0] = 100.0
    told = settled(shard)
    assert ("launcher", "write_failed") in [(peer, m.kind) for peer, m in told]
    assert [m.body["failing"] for _, m in told if m.kind == "durable"] == [True]
    assert [h.version for h in restored(tmp_path)[0]] == [0] * len(SLICES)
    leave = Message("leave", edge=0, body={"replica": 0, "number": 1}, sender="worker-0.0")
    assert shard.handle(leave) == []  # the client keeps its push, should the shard be lost
    ticks[0] = 690.0
    assert "leave_ack" not in [m.kind for _, m in settled(shard)]
    ticks[0] = 705.0
    assert [m.kind for _, m in settled(shard)][-1] == "leave_ack"  # nobody waits for such a disk for ever
    journal.path.with_suffix(".tmp").rmdir()
    ticks[0] = 800.0
    assert [m.body["failing"] for _, m in settled(shard) if m.kind == "durable"] == [False]
    assert [h.version for h in restored(tmp_path)[0]] == [1] * len(SLICES)


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_are_of_one_version_of_all_slices(tmp_path, every):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)), checkpoint_every=every)
    put(shard)
    told = settled(shard)
    for number in (1, 2, 3, 4):
        for piece in SLICES:
            push(shard, number, slices=[piece], base=number - 1)
            told += shard.poll()
    told += settled(shard)
    saved = [m.body for _, m in told if m.kind == "checkpoint_saved"]
    assert sorted(body["number"] for body in saved) == list(range(1, 4 // every + 1))
    for number in range(1, 4 // every + 1):
        [file] = checkpoint_path(tmp_path, number).glob("*.safetensors")
        slice_states = read_shard(file).slice_states
        assert {h.version for h in slice_states} == {number * every}
        assert all(torch.equal(h.value, torch.full((h.slice.size,), -float(number * every))) for h in slice_states)


def test_only_checkpoints_requested_in_advance_are_made(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)), checkpoint_every=2, on_request=True)
    put(shard)
    told = settled(shard)
    asked = {3: 2, 4: 2, 5: 4, 7: 3}  # before which push for which number; 4 is asked for in its time, then 3 too late
    for number in range(1, 9):
        if number in asked:
            shard.handle(Message("checkpoint", body={"number": asked[number]}, sender="launcher"))
            told += shard.poll()
        for piece in SLICES:
            push(shard, number, slices=[piece], base=number - 1)
            told += shard.poll()
    told += settled(shard)
    said = [(message.kind, message.body["number"]) for peer, message in told if peer == "launcher"]
    assert sorted(said) == [("checkpoint_missed", 3), ("checkpoint_saved", 2)], (
        "a question takes the place of the one before"
    )
    [file] = checkpoint_path(tmp_path, 2).glob("*.safetensors")
    assert {slice_state.version for slice_state in read_shard(file).slice_states} == {4}
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["000002"]


def test_it_is_busy_as_long_as_a_flush_is_due(tmp_path):
    """Who leaves while an earlier state is being written must not wait until the shard looks again by itself."""
    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    push(shard, 1, flush=1)
    shard.poll()  # begins to write
    push(shard, 2, flush=2)
    while shard._durability._journal._snapshot is not None:
        shard.poll()
    assert shard.busy
    assert [m.body["numbers"] for _, m in settled(shard)][-1] == {str(piece.number): 2 for piece in SLICES}
    assert not shard.busy


def test_a_recovery_point_is_of_one_version_though_slices_come_to_it_apart(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)), lock_step=True)
    put(shard)
    told = settled(shard)
    shard.handle(Message("recovery_point", body={"number": 2}, sender="launcher"))
    first, *others = SLICES
    for slices, versions in (([first], range(3)), (others, range(3))):  # the first is at 3 when the others are at 0
        for piece in slices:
            for version in versions:
                push(shard, version + 1, slices=[piece], base=version)
                told += shard.poll()
    told += settled(shard)
    [saved] = [m.body for _, m in told if m.kind == "recovery_point_saved"]
    assert saved["number"] == 2
    [file] = recovery_path(tmp_path, 2).glob("*.safetensors")
    slice_states = read_shard(file).slice_states
    assert {h.version for h in slice_states} == {2}
    assert all(torch.equal(h.value, torch.full((h.slice.size,), -2.0)) for h in slice_states)
    assert not journal_path(tmp_path, 0).exists(), "in lock step there is no journal"


def test_a_recovery_point_that_a_slice_has_passed_is_missed(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)), lock_step=True)
    put(shard)
    for version in range(3):
        push(shard, version + 1, slices=SLICES[:1], base=version)
    shard.handle(Message("recovery_point", body={"number": 2}, sender="launcher"))
    told = settled(shard)
    assert [(m.kind, m.body) for _, m in told] == [("recovery_point_missed", {"number": 2})]
    assert not recovery_path(tmp_path, 2).exists()


def test_in_lock_step_pushes_need_no_journal_to_be_durable(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)), lock_step=True)
    put(shard)
    assert [m.body["durable"] for _, m in push(shard, 1, slices=SLICES[:1])] == [1]


def test_a_replica_has_left_once_a_journal_says_so(tmp_path):
    """Else a shard that goes on from the journal would wait for the replica, which is gone."""
    shard, _ = kept(tmp_path)
    put(shard)
    push(shard, 1)
    settled(shard)  # all its pushes are durable
    replies = []
    for piece in SLICES:
        leave = Message("leave", edge=piece.number, body={"replica": 0, "number": 1}, sender="worker-0.0")
        replies += shard.handle(leave)
    assert replies == []
    assert [m.kind for _, m in settled(shard) if m.kind == "leave_ack"] == ["leave_ack"] * len(SLICES)
    assert restored(tmp_path)[1] == {piece.number: {} for piece in SLICES}


def test_a_fence_says_what_is_durable_of_a_client_of_which_nothing_more_is_taken(tmp_path):
    shard, _ = kept(tmp_path, serving=ServingConfig(SGD(1.0)))
    put(shard)
    settled(shard)
    push(shard, 1)
    push(shard, 2)
    fence = Message("fence", body={"client": "worker-0.0"}, sender=LAUNCHER)
    assert shard.handle(fence) == []  # not before that is on the disk
    assert push(shard, 3) == []
    [fenced] = [message for peer, message in settled(shard) if peer == LAUNCHER]
    slice_states, _ = restored(tmp_path)
    steps = {str(state.slice.number): state.steps["worker-0.0"] for state in slice_states}
    assert (fenced.kind, fenced.body) == ("fenced", {"client": "worker-0.0", "steps": steps})
    assert [state.applied["worker-0.0"] for state in slice_states] == [2] * len(SLICES)
    again = Shard(0, SLICES, ServingConfig(SGD(1.0)), restored=slice_states)
    assert [message.body for _, message in again.handle(fence)] == [fenced.body]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_push_that_the_journal_being_written_has_needs_no_other(tmp_path, elsewhere):
    """Also while it is waited for that another machine has it, too."""
    shard, _ = kept(tmp_path, kept_elsewhere=elsewhere)

    def keep():
        """Let the other machine confirm, if there is one; what clients were told."""
        told = settled(shard)
        if elsewhere:
            shard._durability.confirm("")
            told += settled(shard)
        return [m.body["numbers"] for _, m in told if m.kind == "durable"]

    put(shard)
    keep()
    push(shard, 1, flush=1)
    shard.poll()  # begins to write
    push(shard, 2, flush=1)
    if elsewhere:
        settled(shard)  # is written; now it is waited for the other machine
        push(shard, 3, flush=1)
    assert keep() == [{str(piece.number): 1 for piece in SLICES}]
    assert not shard.busy
    last = 4 if elsewhere else 3
    push(shard, last, flush=2)
    assert keep() == [{str(piece.number): last for piece in SLICES}]


def test_a_push_is_asked_for_again_whose_journal_failed(tmp_path, monkeypatch):
    def fail(*paths):
        raise OSError("no space")

    shard, _ = kept(tmp_path)
    put(shard)
    settled(shard)
    with monkeypatch.context() as disk:
        disk.setattr("cutset.ps.checkpoint.journal.rename_durably", fail)
        push(shard, 1, flush=1)
        shard.poll()  # begins to write
        push(shard, 2, flush=1)
        assert [m.body["failing"] for _, m in settled(shard) if m.kind == "durable"] == [True]
    push(shard, 3, flush=1)
    assert [m.body for _, m in settled(shard)] == [
        {"numbers": {str(piece.number): 3 for piece in SLICES}, "failing": False}
    ]
