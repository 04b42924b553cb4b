"""The shard's protocol as a table: messages in, answers out."""

import pytest
import torch
from msgspec.structs import replace
from shard_messages import (
    SLICES,
    attach_fetch,
    fetch,
    make_compressed_push,
    plain,
    push,
    put,
    shard_with_values,
    vector,
)

from cutset.errors import Diverged, NetworkError
from cutset.ps.optimizers.parameter_groups import Averaged, Grouped
from cutset.ps.optimizers.rates import Scheduled
from cutset.ps.optimizers.schedule import GivenRate
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.server.shared_parameters import SharedParameters
from cutset.ps.slices.compression import BFloat16, Int8, Threshold, TopK
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.flat_gradient import FlatGradient


def test_put_fetch_push():
    shard = shard_with_values()
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 0, "applied": 0, "durable": 0}, [[0, 10, 20]])
    ]
    pushed = ("worker-0.0", "push_ack", {"version": 1, "number": 1, "durable": 1}, [])
    assert plain(shard.handle(push(1, 1.0, 2.0, 3.0))) == [pushed]
    values = ("worker-1.0", "values", {"version": 1, "applied": 0, "durable": 0}, [[-1, 8, 17]])
    assert plain(shard.handle(fetch(sender="worker-1.0"))) == [values]
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 1, "applied": 1, "durable": 1}, [[-1, 8, 17]])
    ]


def test_a_fetch_attached_to_a_push_is_answered_before_the_next_push():
    shard = shard_with_values()
    replies = shard.handle(attach_fetch(push(1, 1.0, 2.0, 3.0)))
    assert plain(replies) == [
        ("worker-0.0", "values", {"version": 1, "applied": 1, "durable": 1}, [[-1, 8, 17]]),
    ]
    assert [message.step for _, message in replies] == [3]
    shard.handle(push(1, 1.0, 1.0, 1.0, sender="worker-1.0"))
    again = attach_fetch(push(1, 1.0, 2.0, 3.0), step=4)  # applied once, and answered as often as it asks
    assert plain(shard.handle(again))[0] == (
        "worker-0.0",
        "values",
        {"version": 2, "applied": 1, "durable": 1},
        [[-2, 7, 16]],
    )
    assert plain(shard.handle(attach_fetch(push(3, 1.0, 2.0, 3.0)))) == [  # one was lost
        ("worker-0.0", "resend", {"number": 1, "attempt": 0}, []),
        ("worker-0.0", "values", {"version": 2, "applied": 1, "durable": 1}, [[-2, 7, 16]]),
    ]


def test_a_fetch_attached_to_a_push_may_wait():
    shard = shard_with_values()
    assert [m.kind for _, m in shard.handle(attach_fetch(push(1, 1.0, 2.0, 3.0), min_version=2))] == ["push_ack"]
    replies = shard.handle(push(1, 1.0, 1.0, 1.0, sender="worker-1.0"))
    assert [(peer, m.kind, m.body["version"]) for peer, m in replies] == [
        ("worker-1.0", "push_ack", 2),
        ("worker-0.0", "values", 2),
    ]


def test_values_of_a_later_version_replace_the_present_ones():
    shard = shard_with_values(Adagrad(1.0))
    shard.handle(push(1, 1.0, 2.0, 3.0))
    body, tensors = {"version": 5, "state": ["sum"]}, (vector(1, 2, 3), vector(4, 5, 6))
    later = replace(put(1.0, 2.0, 3.0), body=body, tensors=tensors)
    assert plain(shard.handle(later)) == [("worker-0.0", "put_ack", {}, [])]
    assert plain(shard.handle(put(0.0, 0.0, 0.0)))[0][1] == "put_ack"  # of version 0, which does not count any more
    assert plain(shard.handle(fetch(min_version=5))) == [
        ("worker-0.0", "values", {"version": 5, "applied": 1, "durable": 1}, [[1, 2, 3]])
    ]
    shard.handle(put(0.0, 0.0, machine=2))
    assert shard.slice_states()[0].state["sum"].tolist() == [4, 5, 6]


def test_values_without_the_announced_state_are_refused():
    with pytest.raises(NetworkError, match="for version 5 with") as caught:
        shard_with_values().handle(replace(put(1.0, 2.0, 3.0), body={"version": 5, "state": ["sum"]}))
    assert caught.value.code == "E550"


def test_memory_is_shared_once_all_of_a_machine_has_values():
    shard = Shard(
        0, [ParameterSlice(0, 0, 0, 3, 0), ParameterSlice(0, 0, 3, 5, 1)], ServingConfig(Adagrad(1.0), replicas=2)
    )
    assert shard.handle(Message("share_memory", edge=0, body={"replica": 1}, sender="worker-1.0")) == []
    shard.handle(put(1.0, 2.0, 3.0))
    *_, (peer, answer) = shard.handle(replace(put(4.0, 5.0), edge=1))
    assert (peer, answer.kind, answer.body["version"]) == ("worker-1.0", "shared_memory", 0)
    shared = SharedParameters(answer.body, replica=1)
    assert shared.values.tolist() == [1, 2, 3, 4, 5]
    shared.apply(Adagrad(1.0), FlatGradient(vector(2, 2, 2, 2, -2)), seen=0)
    assert [one.value.tolist() for one in shard.slice_states()] == [[0, 1, 2], [3, 6]]
    assert [one.state["sum"].tolist() for one in shard.slice_states()] == [[4, 4, 4], [4, 4]]
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 1, "applied": 0, "durable": 0}, [[0, 1, 2]])
    ]


def test_memory_is_shared_with_the_configured_replicas_only():
    with pytest.raises(NetworkError, match="is of replica 1; 1 share"):
        shard_with_values().handle(Message("share_memory", edge=0, body={"replica": 1}, sender="worker-1.0"))


def test_a_get_from_the_store_waits_for_the_set():
    shard = Shard(0, SLICES, ServingConfig(SGD(1.0)))
    assert shard.handle(Message("store_get", edge=0, body={"key": "a"}, sender="worker-1.0")) == []
    assert (
        shard.handle(Message("store_set", edge=2, body={"key": "a", "value": b"elsewhere"}, sender="worker-0.0")) == []
    )
    note = Message("store_set", edge=0, body={"key": "a", "value": b"here"}, sender="worker-0.0")
    assert plain(shard.handle(note)) == [("worker-1.0", "store_value", {"key": "a", "value": b"here"}, [])]
    with pytest.raises(NetworkError, match="key None"):
        shard.handle(Message("store_get", edge=0, sender="worker-0.0"))


def test_replies_carry_the_machine_and_the_step_of_the_request():
    shard = shard_with_values()
    [(_, reply)] = shard.handle(replace(fetch(), step=5))
    assert (reply.step, reply.edge) == (5, 0)
    shard.handle(put(1.0, 2.0, machine=2))
    [(_, reply)] = shard.handle(fetch(machine=2))
    assert (reply.step, reply.edge) == (0, 2)


def test_the_first_initial_values_stay_whoever_puts_them_again():
    shard = shard_with_values()
    shard.handle(push(1, 1.0, 2.0, 3.0))
    assert plain(shard.handle(put(7.0, 7.0, 7.0))) == [("worker-0.0", "put_ack", {}, [])]
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 1, "applied": 1, "durable": 1}, [[-1, 8, 17]])
    ]


def test_tensors_that_were_sent_or_put_are_never_overwritten():
    shard, first = Shard(0, SLICES, ServingConfig(SGD(1.0))), put(0.0, 10.0, 20.0)
    shard.handle(first)
    [(_, reply)] = shard.handle(fetch())
    assert not reply.borrowed
    shard.handle(push(1, 1.0, 1.0, 1.0))
    assert first.tensors[0].tolist() == reply.tensors[0].tolist() == [0, 10, 20]


def test_fetch_waits_for_the_initial_values():
    shard = Shard(0, SLICES, ServingConfig(SGD(1.0)))
    assert shard.handle(fetch(sender="worker-1.0")) == []
    assert shard.handle(fetch(sender="worker-2.0", min_version=1)) == []
    assert [(peer, m.kind) for peer, m in shard.handle(put(1.0, 2.0, 3.0))] == [
        ("worker-0.0", "put_ack"),
        ("worker-1.0", "values"),
    ]


def test_fetch_waits_for_its_version():
    shard = shard_with_values()
    assert shard.handle(fetch(min_version=2, sender="worker-1.0")) == []
    assert [m.kind for _, m in shard.handle(push(1, 1.0, 1.0, 1.0))] == ["push_ack"]
    replies = plain(shard.handle(push(2, 1.0, 1.0, 1.0, base=1)))
    assert replies[1] == ("worker-1.0", "values", {"version": 2, "applied": 0, "durable": 0}, [[-2, 8, 18]])
    assert len(shard.handle(push(3, 0.0, 0.0, 0.0, base=2))) == 1


def test_slices_have_versions_of_their_own():
    shard = shard_with_values()
    shard.handle(put(1.0, 2.0, machine=2))
    shard.handle(push(1, 1.0, 1.0, 1.0))
    assert shard.handle(fetch(machine=2, min_version=1)) == []
    assert [s["version"] for s in shard.statistics()["slices"]] == [1, 0]


@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5)])
def test_a_repeated_push_is_acknowledged_and_not_applied(optimizer):
    shard = shard_with_values(optimizer)
    shard.handle(push(1, 1.0, 2.0, 3.0))
    shard.handle(push(2, 1.0, 2.0, 3.0, base=1))
    before = plain(shard.handle(fetch()))
    for number in (1, 2):
        again = plain(shard.handle(push(number, 1.0, 2.0, 3.0)))
        assert again == [("worker-0.0", "push_ack", {"version": 2, "number": number, "durable": number}, [])]
    assert plain(shard.handle(fetch())) == before
    assert shard.statistics()["slices"][0]["duplicates"] == 2
    assert shard.statistics()["slices"][0]["pushes"] == 2


def test_push_numbers_are_counted_for_each_client():
    shard = shard_with_values()
    for sender in ("worker-0.0", "worker-1.0"):
        assert [m.kind for _, m in shard.handle(push(1, 0.0, 0.0, 0.0, sender=sender))] == ["push_ack"]
    assert shard.statistics()["slices"][0]["version"] == 2


def test_after_a_gap_the_client_is_asked_to_resend():
    shard = shard_with_values()
    shard.handle(push(1, 0.0, 0.0, 0.0))
    late = push(4, 0.0, 0.0, 0.0)
    late.body["attempt"] = 3
    assert plain(shard.handle(late)) == [("worker-0.0", "resend", {"number": 1, "attempt": 3}, [])]
    assert shard.statistics()["slices"][0]["version"] == 1


def test_a_client_that_has_given_up_what_is_missing_is_not_asked_for_it():
    shard = shard_with_values()
    late = push(4, 1.0, 0.0, 0.0)
    late.body["gap"] = True
    assert [(kind, body["number"]) for _, kind, body, _ in plain(shard.handle(late))] == [("push_ack", 4)]
    assert [kind for _, kind, _, _ in plain(shard.handle(push(5, 0.0, 0.0, 0.0)))] == ["push_ack"]
    assert shard.statistics()["slices"][0]["version"] == 2


BROKEN = {
    "slice of another shard": (fetch(machine=1), "slice 1; this shard has 0, 2"),
    "unknown kind": (Message("pull", sender="worker-0.0"), "'pull' .*unknown kind"),
    "push before put": (push(1, 1.0, 2.0, machine=2), "before the initial values"),
    "gradient of another size": (push(1, 1.0, 2.0), r"shapes \[\[2\]\]; the slice is one of \[3\]"),
    "no gradient": (replace(push(1, 1.0), tensors=()), r"shapes \[\]"),
    "gradient of another dtype": (
        replace(push(1, 1.0), tensors=(torch.zeros(3),)),
        "float32 gradient for torch.float64",
    ),
    "base from the future": (push(1, 1.0, 2.0, 3.0, base=1), "builds on version 1; the slice has 0"),
    "no base": (replace(push(1, 1.0, 2.0, 3.0), body={"number": 1, "replica": 0}), "base = None"),
    "no number": (replace(push(1, 1.0, 2.0, 3.0), body={"base": 0, "replica": 0}), "number = None"),
    "numbers for another size": (
        replace(make_compressed_push(Int8()), tensors=(torch.zeros(2, dtype=torch.int8), vector(1.0))),
        r"int8 \[2\], .*there should be torch.int8 \[3\]",
    ),
    "places outside the slice": (
        replace(make_compressed_push(TopK(0.3)), tensors=(torch.tensor([3], dtype=torch.int32), vector(1.0))),
        "indices that do not ascend from 0 to 2",
    ),
    "unknown packing": (
        replace(push(1, 1.0, 2.0, 3.0), body={"base": 0, "number": 1, "replica": 0, "compression": {"type": "zip"}}),
        "has an unknown compression",
    ),
    "along with what is no fetch": (
        replace(push(1, 1.0, 2.0, 3.0), body={"base": 0, "number": 1, "replica": 0, "fetch": [0]}),
        r"brings \[0\] along, which is no fetch",
    ),
    "along with a fetch of no step": (attach_fetch(push(1, 1.0, 2.0, 3.0), step=None), "step = None"),
    **{
        f"factors {factors}": (
            replace(push(1, 1.0, 2.0, 3.0), body={"base": 0, "number": 1, "replica": 0, "factors": factors}),
            "which are no factors of rates",
        )
        for factors in ([], [1.0, -1.0], [-1.0], [float("nan")], [1], "1.0", 1.0)
    },
    "words for a version": (
        replace(fetch(), body={"min_version": "now", "min_step": 0, "replica": 0}),
        "min_version = 'now'",
    ),
    "negative version": (replace(fetch(), body={"min_version": -1, "min_step": 0, "replica": 0}), "min_version = -1"),
}


def test_groups_have_the_rates_that_come_with_a_push():
    groups = [Scheduled(SGD(1.0), GivenRate()), Scheduled(SGD(0.1), GivenRate())]
    shard = shard_with_values(Grouped(groups, [[(2, 0), (3, 1)]] * 3))
    for number, factors in ((1, [1.0]), (2, [0.5, 10.0])):
        message = push(number, 1.0, 2.0, 3.0)
        shard.handle(replace(message, body={**message.body, "factors": factors}))
    message = push(3, 1.0, 2.0, 3.0)
    with pytest.raises(NetworkError, match="no factors of rates"):
        shard.handle(replace(message, body={**message.body, "factors": [1.0, 1.0, 1.0]}))
    values = [0 - 1 - 0.5, 10 - 2 - 1, pytest.approx(20 - 0.3 - 3)]
    assert plain(shard.handle(fetch()))[0][3] == [values]


@pytest.mark.parametrize(("message", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_messages_are_network_errors_and_change_nothing(message, words):
    shard = shard_with_values()
    with pytest.raises(NetworkError, match=words) as caught:
        shard.handle(message)
    assert caught.value.exit_code == 5
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 0, "applied": 0, "durable": 0}, [[0, 10, 20]])
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5)])
def test_a_gradient_that_is_not_finite_names_its_worker(optimizer, number):
    shard = shard_with_values(optimizer)
    with pytest.raises(Diverged) as caught:
        shard.handle(push(1, 1.0, number, 3.0, sender="worker-3.0", step=41))
    words = str(caught.value)
    assert caught.value.exit_code == 7
    for part in ("gradient", "worker-3.0", "shard-0", "machine 0", "step 41", "version 0", "--lr 0.05"):
        assert part in words
    assert plain(shard.handle(fetch())) == [
        ("worker-0.0", "values", {"version": 0, "applied": 0, "durable": 0}, [[0, 10, 20]])
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", [BFloat16(), Int8(), Threshold(0.1), TopK(0.3)], ids=str)
def test_a_compressed_gradient_that_is_not_finite_names_its_worker(how, number):
    with pytest.raises(Diverged, match=r"the gradient .*worker-0\.0 at step 7"):
        shard_with_values().handle(make_compressed_push(how, 1.0, number, 2.0))


@pytest.mark.parametrize(
    ("how", "left"),
    [(BFloat16(), [-1, 8, 17]), (Int8(block=1), [-1, 8, 17]), (Threshold(2.0), [0, 10, 18]), (TopK(0.3), [0, 10, 17])],
    ids=str,
)
def test_a_compressed_push_is_applied(how, left):
    shard = shard_with_values()
    assert plain(shard.handle(make_compressed_push(how))) == [
        ("worker-0.0", "push_ack", {"version": 1, "number": 1, "durable": 1}, [])
    ]
    [(_, message)] = shard.handle(fetch())
    torch.testing.assert_close(message.tensors[0], vector(*map(float, left)))


def test_parameters_that_overflow_are_named():
    shard = shard_with_values(SGD(1e10))
    with pytest.raises(Diverged, match=r"the parameters .*version 1"):
        shard.handle(push(1, 1e300, 0.0, 0.0))


def test_sums_of_squares_that_overflow_are_named():
    with pytest.raises(Diverged, match="the optimizer's sum"):
        shard_with_values(Adagrad(1.0)).handle(push(1, 1e200, 0.0, 0.0))


def test_large_finite_gradients_are_accepted():
    shard = shard_with_values(SGD(1e-300))
    assert len(shard.handle(push(1, 1.7e308, 1.7e308, 0.0))) == 1


def test_a_checkpoint_before_the_initial_values_names_the_machines():
    with pytest.raises(NetworkError, match=r"shard-0 never got initial values of machines \[2\]"):
        shard_with_values().slice_states()


def test_fetches_that_are_never_ready_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("cutset.ps.server.pending_fetches.MAX_PENDING_FETCHES", 3)
    shard = shard_with_values()
    for replica in range(3):
        assert shard.handle(fetch(min_version=9, sender=f"worker-{replica}.0")) == []
    with pytest.raises(NetworkError, match=r"E550.*comes while 3 fetches wait for pushes that were never made"):
        shard.handle(fetch(min_version=9, sender="worker-3.0"))


def test_a_push_with_nothing_for_a_slice_is_numbered_and_not_applied():
    shard = shard_with_values(Adagrad(1.0))
    skipped = Message("push", 4, 0, 0, {"base": 0, "number": 1, "replica": 0, "skipped": True}, (), "worker-0.0")
    acknowledged = [("worker-0.0", "push_ack", {"version": 0, "number": 1, "durable": 1}, [])]
    assert plain(shard.handle(skipped)) == acknowledged
    assert plain(shard.handle(skipped)) == acknowledged
    values = ("worker-0.0", "values", {"version": 0, "applied": 1, "durable": 1}, [[0, 10, 20]])
    assert plain(shard.handle(fetch())) == [values]
    fence = Message("fence", body={"client": "worker-0.0"}, sender="launcher")
    assert [body for _, _, body, _ in plain(shard.handle(fence))] == [
        {"client": "worker-0.0", "steps": {"0": 5, "2": 0}}
    ]


def test_state_that_is_put_is_completed_where_the_run_before_had_other_options():
    """A run that resumes has a moving average and momentum now; an average that was kept before is forgotten."""
    values, sums = vector(0.0, 10.0, 20.0), vector(1.0, 2.0, 3.0)

    def state_after(optimizer, **state):
        shard = Shard(0, SLICES[:1], ServingConfig(optimizer))
        body = {"version": 5, "state": sorted(state)}
        shard.handle(Message("put", body=body, tensors=(values, *(state[name] for name in body["state"])), sender="w"))
        (slice_state,) = shard.slice_states()
        return {name: tensor.tolist() for name, tensor in slice_state.state.items()}

    momentum = SGD(1.0, momentum=0.9)
    assert state_after(Averaged(momentum, 0.5), momentum=sums) == {"momentum": [1, 2, 3], "ema": [0, 10, 20]}
    assert state_after(Averaged(momentum, 0.5), ema=sums) == {"momentum": [0, 0, 0], "ema": [1, 2, 3]}
    assert state_after(momentum, ema=sums, momentum=sums) == {"momentum": [1, 2, 3]}
