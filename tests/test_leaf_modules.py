"""Leaf modules change nothing either: loss, gradients, statistics and predictions are those of plain torch."""

from collections.abc import Sequence
from functools import cache

import msgspec
import pytest
import torch
from candidate_cuts import candidates
from cutting import STEP, Outcome, assert_same, buffers, finest_cut, random_cut, run_plain
from marking import with_slow
from torch import Tensor, nn
from untraceable_zoo import LEAF_CASES

import cutset
from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import Cut, check_cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.operators.leaf_module import LEAF_MODULE
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.program import programs

TIGHT = 1e-11


class Subject:
    """As cutting.Subject, with leaf modules."""

    autocast = ""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.case, self.leaf_modules = LEAF_CASES[name].case, LEAF_CASES[name].leaf_modules
        self.exact, self.dtype = self.case.exact, dtype
        with torch.random.fork_rng():
            torch.manual_seed(1)
            batch = self.case.batch()
        self.batch = Data(*(tuple(self._cast(t) for t in group) for group in (batch.inputs, batch.targets)))
        model, loss = self.fresh()
        self.graph, self.constants = capture(
            model, loss, self.batch.inputs, self.batch.targets, leaf_modules=self.leaf_modules
        )
        self.evaluation, more = capture(model, None, self.batch.inputs, leaf_modules=self.leaf_modules)
        self.constants |= more

    def fresh(self):  # type: ignore[no-untyped-def]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.case.model().to(self.dtype).train(), self.case.loss

    def several(self, micros: int) -> Data:
        groups = (self.batch.inputs, self.batch.targets)
        return Data(*(tuple(torch.cat([self._other(t, m) for m in range(micros)]) for t in g) for g in groups))

    def _other(self, tensor: Tensor, micro: int) -> Tensor:
        return tensor * (1 - 1.5 * micro) if tensor.is_floating_point() else tensor.roll(micro)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


@cache
def subject(name: str, dtype: torch.dtype = torch.float64) -> Subject:
    return Subject(name, dtype)


def load(replica: Replica, of: Subject) -> None:
    values = {n: v.clone() for n, v in collect_state(*of.fresh(), of.constants).items()}
    replica.load(values.__getitem__)


def run_cut(of: Subject, cut: Cut, *, micros: int = 1) -> Outcome:
    check_cut(of.graph, cut)
    with Replica(programs(lower_cut(of.graph, cut), training=True), model=of.fresh()[0]) as replica:
        load(replica, of)
        loss = replica.step(of.several(micros), STEP)
        return Outcome(loss, replica.gradients(), buffers(replica))


def cuts(of: Subject) -> Sequence[Cut]:
    """Planned ones, and those that tear apart all that can be."""
    planned = [c.cut for c in candidates(of.graph, uniform_cluster(2), seed=0)]
    seeds = [[(17 * i + 5 * k + 3) % 65536 for i in range(len(of.graph.ops))] for k in range(3)]
    return [
        *planned[:: max(1, len(planned) // 3)],
        finest_cut(of.graph, 3),
        *(random_cut(of.graph, 3, s) for s in seeds),
    ]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("dtype", with_slow([torch.float64], [torch.float32]), ids=["float64", "float32"])
@pytest.mark.parametrize("name", with_slow(list(LEAF_CASES)[:8], list(LEAF_CASES)[8:]))
def test_one_machine_gives_the_same_bits(name: str, dtype: torch.dtype) -> None:
    of = subject(name, dtype)
    assert [op for op in of.graph.ops if op.target == LEAF_MODULE]
    for micros in (1, 3):
        assert_same(run_cut(of, one_machine_cut(of.graph), micros=micros), run_plain(of, micros=micros), rtol=0.0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(list(LEAF_CASES)[:8], list(LEAF_CASES)[8:]))
def test_every_cut_trains_like_plain_torch(name: str) -> None:
    of = subject(name)
    for number, cut in enumerate(cuts(of)):
        micros = 1 + 2 * (number % 2)
        assert_same(run_cut(of, cut, micros=micros), run_plain(of, micros=micros), rtol=TIGHT)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(list(LEAF_CASES)[:8], list(LEAF_CASES)[8:]))
def test_a_cut_model_predicts_like_plain_torch(name: str) -> None:
    of = subject(name)
    model, _ = of.fresh()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(mask_seed(0, STEP, 0))
        output = model.eval()(*of.batch.inputs)
    expected = output["logits"] if isinstance(output, dict) else output
    for cut in (one_machine_cut(of.graph), finest_cut(of.graph, 2)):
        carried = carry_cut(of.graph, lower_cut(of.graph, cut).cut, of.evaluation)
        check_cut(of.evaluation, carried)
        with Replica(programs(lower_cut(of.evaluation, carried), training=False), model=of.fresh()[0]) as replica:
            load(replica, of)
            torch.testing.assert_close(next(replica.predict([of.batch], STEP)), expected, rtol=TIGHT, atol=1e-12)


@pytest.mark.run
def test_several_steps_keep_what_a_leaf_module_remembers() -> None:
    of = subject("remembers")
    model, loss = of.fresh()
    plain: nn.Module = model
    spelled = lower_cut(of.graph, finest_cut(of.graph, 2))
    with Replica(programs(spelled, training=True), model=of.fresh()[0]) as replica:
        load(replica, of)
        for step in range(3):
            plain.zero_grad()
            with torch.random.fork_rng():
                torch.manual_seed(mask_seed(0, step, 0))
                expected = loss(plain(*of.batch.inputs), *of.batch.targets)
            expected.backward()
            assert replica.step(of.batch, step) == pytest.approx(expected.item(), rel=1e-10)
        found = buffers(replica)
    torch.testing.assert_close(found, {n: b for n, b in plain.named_buffers() if n in found}, rtol=1e-10, atol=1e-12)
    assert found["inner.0.calls"] == 3


# What no trial run met -----------------------------------------------------------------------------------------------


class Surprises(nn.Module):
    """Does something else for one value that no trial run has."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.inner = what, nn.Linear(5, 4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, float]:
        y: Tensor = self.inner(x)
        if x[0, 0] != 12.5:
            return (y, 1.0) if self.what == "constant" else y
        if self.what == "draw":
            torch.rand(1)
        if self.what == "overwrite":
            self.seen += 1
        if self.what == "constant":
            return y, 2.0
        return y[1:] if self.what == "shape" else y


class Surprised(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.block = Surprises(what)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return y[0] if isinstance(y, tuple) else y


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("draw", "draws random numbers, which it did not"),
        ("overwrite", "overwrites its seen, which it did not"),
        ("shape", r"returns float32\[3, 4\]; in its trial runs it returned float32\[4, 4\]"),
        ("constant", r"returns \[2.0\] beside its tensors; in its trial runs it returned \[1.0\]"),
    ],
)
def test_a_worker_refuses_what_no_trial_run_met(what: str, said: str) -> None:
    model, x = Surprised(what), torch.zeros(4, 5)
    graph, _ = capture(model, lambda y: y.sum(), [x], leaf_modules=["block"])
    with Replica(programs(lower_cut(graph, one_machine_cut(graph)), training=True), model=model) as replica:
        values = {n: t.detach().clone() for n, t in model.state_dict().items()}
        replica.load(values.__getitem__)
        assert replica.step(Data((x,), ()), 0) == pytest.approx(4 * model.block.inner.bias.sum().item())
        with pytest.raises(BadInput, match=f"E327: the leaf module block {said}"):
            replica.step(Data((x + 12.5,), ()), 1)


# The face in Python --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_in_hand_is_planned_and_run_with_its_leaf_modules() -> None:
    of = subject("gates")
    model, loss = of.fresh()
    placement = cutset.plan(model, of.batch.inputs, of.batch.targets, loss=loss, leaf_modules=["inner.*"])
    assert placement.leaf_modules == ["inner.*"]
    with cutset.replica(model, placement, of.batch.inputs, of.batch.targets, loss=loss) as replica:
        assert replica.step(of.batch, STEP) == pytest.approx(run_plain(of).loss, rel=TIGHT)
    other = msgspec.structs.replace(placement, leaf_modules=["inner.*", "last"])
    with pytest.raises(BadInput, match="E340: the placement is for another model"):
        cutset.replica(model, other, of.batch.inputs, of.batch.targets, loss=loss)
