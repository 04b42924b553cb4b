"""All-reduce equals one process with the batch of all replicas, and the shards get what it has come to."""

import pytest
import torch
from regression import Regression, check_lock_step, run

from cutset.errors import Diverged, UsageError
from cutset.ps.methods import all_reduce_ as gloo
from cutset.ps.methods.all_reduce import AllReduce
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.methods.sync import Sync


@pytest.mark.parametrize("rule", [SGD(0.02), Adagrad(0.1)])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_it_equals_one_process_with_the_batch_of_all(rule, replicas):
    found = check_lock_step(AllReduce(), rule, replicas=replicas, steps=40)
    assert all(piece["version"] == 40 and piece["pushes"] == 0 for piece in found)


def test_it_equals_sync():
    sync, _, _ = run(Sync(), Adagrad(0.1), steps=30, replicas=3)
    values, _, _ = run(AllReduce(), Adagrad(0.1), steps=30, replicas=3)
    torch.testing.assert_close(values, sync, rtol=0, atol=1e-10)


def test_all_replicas_have_the_same_bits():
    workers = [Regression() for _ in range(3)]
    values, _, _ = run(AllReduce(), Adagrad(0.1), steps=30, replicas=3, workers=workers)
    assert all(torch.equal(one.values, values) for one in workers)


def test_replicas_on_other_hosts_are_refused(monkeypatch):
    """Each thread reads another boot, as if it were another machine's."""
    boots = iter("ab")
    monkeypatch.setattr(gloo, "_read", lambda path: next(boots))
    with pytest.raises(UsageError, match="is not on the host of worker-") as caught:
        run(AllReduce(), SGD(0.02), steps=3, replicas=2)
    assert caught.value.code == "E269"
    assert "--method sync" in caught.value.fix


def test_parameters_that_are_not_finite_are_named():
    with pytest.raises(Diverged) as caught:
        run(AllReduce(), SGD(1e308), steps=1, replicas=2)
    assert caught.value.code == "E704"
