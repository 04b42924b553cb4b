"""A worker runs what is ready, whatever the order of arrival, and says what is wrong with what it is given."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from candidate_cuts import candidates
from cutting import STEP, Outcome, assert_same, buffers, deferring, finest_cut, load, pipeline, run_plain, subject
from marking import with_slow

from cutset.errors import BadInput, NetworkError
from cutset.models.task import Data
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.runtime.channel.faults import Delay, Fault
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.prepared_segment import MicroBatch
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.segment_runner import SegmentRunner, adds_state_gradients_repeatedly
from cutset.runtime.worker.trace import Trace
from cutset.runtime.worker.worker import STREAM_AHEAD, Worker

NAMES = ["worker-0.0", "worker-0.1", "worker-0.2"]


def parts(name: str, machines: int = 3) -> list[Program]:
    graph = subject(name).graph
    return programs(lower_cut(graph, finest_cut(graph, machines)), training=True)


def uncut(name: str) -> Worker:
    graph = subject(name).graph
    channel = MemoryNetwork().channel(NAMES[0])
    return Worker(programs(lower_cut(graph, one_machine_cut(graph)), training=True)[0], Mailbox(channel), NAMES[:1])


def slow(sender: int, receiver: int) -> list[Fault]:
    """A link that lags behind all others."""
    return [Delay(NAMES[sender], NAMES[receiver], nth, by=4) for nth in (1, 4)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("late", [(0, 1), (1, 0), (2, 1)])
@pytest.mark.parametrize("name", with_slow(["conv", "siamese"], ["transformer_dropout"]))
def test_the_order_of_arrival_changes_nothing(name: str, late: tuple[int, int]) -> None:
    of = subject(name)
    with Replica(parts(name), faults=slow(*late)) as replica:
        load(replica, of)
        loss = replica.step(of.several(3), STEP)
        gradients, found = replica.gradients(), buffers(replica)
    with Replica(parts(name)) as replica:
        load(replica, of)
        assert replica.step(of.several(3), STEP) == loss
        assert all(torch.equal(gradient, gradients[n]) for n, gradient in replica.gradients().items())
        assert all(torch.equal(buffer, found[n]) for n, buffer in buffers(replica).items())


def test_micro_batches_in_flight_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    of, most, lock = subject("mlp"), dict[str, int](), threading.Lock()
    by_urgency = Worker._by_urgency

    def watch(worker: Worker, active: list[MicroBatch]) -> list[MicroBatch]:
        with lock:
            most[worker.name] = max(most.get(worker.name, 0), len(active))
        return by_urgency(worker, active)

    monkeypatch.setattr(Worker, "_by_urgency", watch)
    with Replica(parts("mlp", 2)) as replica:
        load(replica, of)
        replica.step(of.several(6), STEP)
    assert most == {NAMES[0]: 2, NAMES[1]: 2}


def test_none_overtakes_an_older_one() -> None:
    worker = uncut("mlp")
    active = [MicroBatch(0, {}, {}, forward=1), MicroBatch(1, {}, {}), MicroBatch(2, {}, {})]
    assert [m.index for m in worker._by_urgency(active)] == [0, 1]
    active[1].forward = 1
    assert [m.index for m in worker._by_urgency(active)] == [0, 2]


def test_gradients_that_several_segments_add_up_come_in_one_order() -> None:
    tied, single = parts("causal")[0], programs(lower_cut(*planned("mlp")), training=True)[0]
    assert adds_state_gradients_repeatedly(tied)
    assert not adds_state_gradients_repeatedly(single)
    worker = Worker(tied, Mailbox(MemoryNetwork().channel(NAMES[0])), NAMES)
    count = len(tied.segments)
    active = [MicroBatch(0, {}, {}, forward=count, backward=2), MicroBatch(1, {}, {}, forward=count)]
    assert [m.index for m in worker._by_urgency(active)] == [0]
    active[1].forward = count - 1
    assert [m.index for m in worker._by_urgency(active)] == [0, 1]


def planned(name: str) -> tuple[Graph, Cut]:
    """A pipeline of two stages."""
    graph = subject(name).graph
    return graph, next(c.cut for c in candidates(graph, uniform_cluster(2), seed=0) if c.name == "stages")


def test_gradients_add_up_over_steps_until_they_are_zeroed() -> None:
    of = subject("mlp")
    with Replica(parts("mlp")) as replica:
        load(replica, of)
        replica.step(of.batch, STEP)
        once = [worker.gradients.clone() for worker in replica.workers]
        replica._each(lambda worker: worker.step(of.batch, STEP))
        for worker, gradient in zip(replica.workers, once, strict=True):
            torch.testing.assert_close(worker.gradients, 2 * gradient)


def test_training_and_evaluation_share_a_channel_and_the_parameters() -> None:
    of = subject("conv")
    spelled = lower_cut(of.graph, finest_cut(of.graph, 2))
    carried = carry_cut(of.graph, spelled.cut, of.evaluation)
    evaluated = programs(lower_cut(of.evaluation, carried), training=False)
    trained = programs(spelled, training=True)
    model, _ = of.fresh()
    expected = model.eval()(*of.batch.inputs).detach()

    def role(machine: int, channel: MemoryChannel) -> list[torch.Tensor]:
        mailbox = Mailbox(channel)
        worker = Worker(trained[machine], mailbox, NAMES[:2])
        worker.states.extend(evaluated[machine])
        worker.states.load(values.__getitem__)
        other = Worker(evaluated[machine], mailbox, NAMES[:2], states=worker.states, tag="evaluation/")
        output = [tensor for _, tensor in other.predict(of.batch, STEP)]
        worker.step(of.batch, STEP)
        return output

    values = {**dict(of.fresh()[0].named_parameters()), **dict(of.fresh()[0].named_buffers())}
    network = MemoryNetwork()
    results = network.run({NAMES[m]: lambda channel, m=m: role(m, channel) for m in range(2)})  # type: ignore[misc]
    (output,) = results[NAMES[0]] + results[NAMES[1]]
    torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("samples", [0, 4, 7])
def test_a_batch_that_does_not_divide_is_refused(samples: int) -> None:
    batch = Data((torch.zeros(samples, 12, dtype=torch.float64),), (torch.zeros(samples, dtype=torch.int64),))
    with pytest.raises(BadInput, match=rf"E343: a batch of {samples} samples does not divide into .* of 6"):
        uncut("mlp").step(batch, 0)


def test_a_prediction_takes_one_batch() -> None:
    with pytest.raises(BadInput, match="E343: 12 samples to predict; the program takes 6 at a time"):
        uncut("mlp").predict(subject("mlp").several(2), 0)


def test_what_a_worker_says_of_itself() -> None:
    worker = uncut("mlp")
    assert repr(worker) == "Worker(worker-0.0, 1 segments, 433 parameters, machine 0 of 1)"
    assert worker.values is worker.states.values
    assert worker.gradients is worker.states.gradients


def test_every_micro_batch_draws_its_own_numbers() -> None:
    of = subject("transformer_dropout")
    twice = Data(*(tuple(torch.cat([t, t]) for t in group) for group in (of.batch.inputs, of.batch.targets)))
    with Replica(parts("transformer_dropout")) as replica:
        load(replica, of)
        assert replica.step(twice, STEP) != replica.step(of.batch, STEP)
        assert_same_after(replica, of.batch)


def assert_same_after(replica: Replica, batch: Data) -> None:
    """A replica is as good as new after a step."""
    of = subject("transformer_dropout")
    outcome = Outcome(replica.step(batch, STEP), replica.gradients(), {})
    assert_same(outcome, run_plain(of), rtol=1e-11)


@pytest.mark.run
def test_the_norm_that_is_clipped_is_that_of_the_whole_model() -> None:
    of = subject("transformer_dropout")
    plain = run_plain(of)
    norm = torch.stack([gradient.norm() for gradient in plain.gradients.values()]).norm().item()
    for most in (norm / 3, norm * 3):
        with Replica(parts("transformer_dropout")) as replica:
            load(replica, of)
            replica.step(of.batch, STEP)
            assert replica.clip(most, STEP) == pytest.approx([norm] * 3, rel=1e-11)
            scale = min(1.0, most / (norm + 1e-6))
            for name, gradient in replica.gradients().items():
                torch.testing.assert_close(gradient, scale * plain.gradients[name], rtol=1e-9, atol=1e-11)


def test_a_message_of_another_placement_is_named() -> None:
    of = subject("mlp")
    mine, theirs = parts("mlp"), programs(lower_cut(of.graph, pipeline(of.graph, 3)), training=True)
    with Replica([mine[0], theirs[1], mine[2]]) as replica:
        load(replica, of)
        with pytest.raises(NetworkError, match=r"E516: worker-0\.. runs a program of plan \w+, worker-0"):
            replica.step(of.batch, STEP)


def test_a_tensor_that_the_program_does_not_expect_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject("mlp")
    honest = SegmentRunner.forward

    def halved(self: SegmentRunner, micro: MicroBatch, position: int) -> list[list[torch.Tensor]]:
        return [[frame[:1].half() for frame in frames] for frames in honest(self, micro, position)]

    monkeypatch.setattr(SegmentRunner, "forward", halved)
    with Replica(parts("mlp")) as replica:
        load(replica, of)
        with pytest.raises(NetworkError, match=r"E515: worker-0\.. sent worker-0\.. .*float16.* over edge \d.*float64"):
            replica.step(of.batch, STEP)


def test_a_trace_has_what_was_done_when() -> None:
    of, channel = subject("mlp"), MemoryNetwork().channel(NAMES[0])
    program = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)[0]
    worker = Worker(program, Mailbox(channel), NAMES[:1], trace=Trace(range(1, 3)))
    for step in range(4):
        worker.step(of.several(2), step)
    spans = worker.trace.spans
    assert {span.step for span in spans} == {1, 2}
    assert [(s.kind, s.micro) for s in spans if s.step == 1] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
        ("step", 0),
    ]
    whole = {span.step: span for span in spans if span.kind == "step"}
    for span in spans:
        assert whole[span.step].start_s <= span.start_s <= span.stop_s <= whole[span.step].stop_s


def test_a_slower_machine_is_emulated() -> None:
    of, channel = subject("mlp"), MemoryNetwork().channel(NAMES[0])
    program = programs(lower_cut(of.graph, deferring(of, one_machine_cut(of.graph))), training=True)[0]
    asked = list[tuple[int, str]]()

    def pace(position: int, kind: str) -> float:
        asked.append((position, kind))
        return 0.05

    worker = Worker(program, Mailbox(channel), NAMES[:1], trace=Trace(range(1)), pace=pace)
    worker.step(of.batch, 0)
    kinds = ["forward", "backward", "weights"]
    assert asked == [(0, kind) for kind in kinds]
    spans = [span for span in worker.trace.spans if span.kind in kinds]
    assert [span.kind for span in spans] == kinds
    assert all(span.stop_s - span.start_s >= 0.05 for span in spans)


def test_a_machine_that_waits_for_nobody_does_not_run_ahead_of_the_output() -> None:
    """Its mailbox would grow without end; here the last machine takes its time over every batch."""
    of = subject("mlp")
    cut = lower_cut(of.graph, pipeline(of.graph, 2)).cut
    evaluated = programs(lower_cut(of.evaluation, carry_cut(of.graph, cut, of.evaluation)), training=False)
    begun, done, ahead = [0], [0], list[int]()

    def batches(machine: int) -> Iterator[Data]:
        for _ in range(200):
            if evaluated[machine].done_source >= 0:
                begun[0] += 1
                ahead.append(begun[0] - done[0])
            yield Data(of.batch.inputs, ())

    def role(machine: int, channel: MemoryChannel) -> int:
        mailbox = Mailbox(channel)
        worker = Worker(evaluated[machine], mailbox, NAMES[:2])
        count = 0
        for pieces in worker.stream(batches(machine), 0):
            if pieces:
                done[0] += 1
                time.sleep(0.001)
            count += 1
        assert repr(mailbox).endswith("kept={})")  # streams after this one begin with nothing
        return count

    end = next(p.machine for p in evaluated if p.results)
    assert evaluated[end].done_listeners == (1 - end,)
    assert evaluated[1 - end].done_source == end
    found = MemoryNetwork().run({NAMES[m]: lambda channel, m=m: role(m, channel) for m in range(2)})  # type: ignore[misc]
    assert found == {NAMES[0]: 200, NAMES[1]: 200}
    assert max(ahead) <= STREAM_AHEAD * 2 + 2
