"""State that several machines use reaches them before a step, and its gradients its owner after it."""

import torch
from cutting import finest_cut, load, run_plain, subject

from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import programs


def test_copies_of_state_are_those_of_their_owner_and_gradients_come_back() -> None:
    of = subject("conv")
    parts = programs(lower_cut(of.graph, finest_cut(of.graph, 2)), training=True)
    assert any(program.shared_in for program in parts)
    with Replica(parts) as replica:
        load(replica, of)
        replica.step(of.batch, 0)
        owned = {p: worker.states for worker in replica.workers for e in worker.program.shared_out for p in e.pieces}
        assert owned
        for worker in replica.workers:
            received = [piece for edge in worker.program.shared_in for piece in edge.pieces]
            copies = worker._runner.shared_state
            assert set(copies) == set(received)
            for piece in received:
                info = worker.program.pieces[piece]
                whole = dict(of.fresh()[0].named_parameters()) | dict(of.fresh()[0].named_buffers())
                value = whole[info.tensor].detach().reshape(worker.program.tensors[info.tensor].extents)
                assert torch.equal(copies[piece], value[tuple(slice(*interval) for interval in info.box)])
        plain = run_plain(of)
        for name, gradient in replica.gradients().items():
            torch.testing.assert_close(gradient, plain.gradients[name], rtol=1e-9, atol=1e-11)


def test_a_copy_of_state_is_not_changed_by_a_step_of_its_owner() -> None:
    of = subject("conv")
    with Replica(programs(lower_cut(of.graph, finest_cut(of.graph, 2)), training=True)) as replica:
        load(replica, of)
        replica.step(of.batch, 0)
        copies = [dict(worker._runner.shared_state) for worker in replica.workers]
        before = [{piece: tensor.clone() for piece, tensor in of_one.items()} for of_one in copies]
        for worker in replica.workers:
            worker.values.mul_(2)
        for now, then in zip(copies, before, strict=True):
            assert all(torch.equal(tensor, then[piece]) for piece, tensor in now.items())
