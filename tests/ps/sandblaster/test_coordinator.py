from pathlib import Path

import msgspec
import pytest
import torch
from sandblast import SandblasterResult, sandblast
from torch import Tensor

from cutset.errors import CheckpointError
from cutset.ps.methods.sandblaster import Sandblaster
from cutset.ps.sandblaster.coordinator import Coordinator
from cutset.ps.sandblaster.recovery_log import RecoveryLog
from cutset.ps.sandblaster.solver import Portions
from cutset.runtime.channel.message import LAUNCHER, Message

SAMPLES, FEATURES, CLASSES = 301, 20, 5
PORTIONS = Portions(SAMPLES, 10)


def softmax(point: Tensor, samples: slice) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=chance, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=chance)
    weights = point.view(FEATURES, CLASSES)
    return torch.nn.functional.cross_entropy(inputs[samples] @ weights, labels[samples])


def run(folder: Path, *, method: Sandblaster | None = None, shards: int = 2, replicas: int = 1) -> SandblasterResult:
    start = torch.zeros(FEATURES * CLASSES, dtype=torch.float64)
    steps = (method or Sandblaster(iterations=8, l2=1e-3)).make_solver(PORTIONS)
    return sandblast(steps, softmax, start, PORTIONS, folder, shards=shards, replicas=replicas, most=32)


@pytest.mark.run
def test_losses_have_the_same_bits_with_any_number_of_replicas(tmp_path: Path) -> None:
    alone = run(tmp_path / "1")
    assert len(alone.losses) == 8
    for replicas in (2, 4):
        several = run(tmp_path / str(replicas), replicas=replicas)
        assert several.losses == alone.losses
        assert torch.equal(several.values, alone.values)
        assert len(several.result["taken"]) == replicas


def test_it_equals_torch_lbfgs(tmp_path: Path) -> None:
    point = torch.zeros(FEATURES * CLASSES, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([point], max_iter=8, max_eval=100, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        found = softmax(point, slice(None)) + 5e-4 * (point**2).sum()
        found.backward()
        return found

    optimiser.step(evaluate)
    method = Sandblaster(iterations=8, l2=1e-3, torch_path=True)
    assert (run(tmp_path, method=method, replicas=2).values - point.detach()).abs().max() <= 1e-10


@pytest.mark.run
def test_an_iteration_takes_few_round_trips_as_the_shards_count_them(tmp_path: Path) -> None:
    ran = run(tmp_path)
    for shard in ran.shards:
        assert shard["round_trips"] == ran.result["round_trips"]
        assert shard["round_trips"] / len(ran.iterations) <= 15


@pytest.mark.slow
def test_the_bytes_of_the_coordinator_do_not_grow_with_the_parameters(tmp_path: Path) -> None:
    sizes = {}
    for count in (10_000, 1_000_000):

        def bowl(point: Tensor, samples: slice) -> Tensor:
            scale = torch.linspace(1.0, 2.0, len(point), dtype=torch.float64)
            return (scale * (point - 1) ** 2).mean()

        method, portions = Sandblaster(iterations=3, tolerance_change=0.0), Portions(4, 1)
        start = torch.zeros(count, dtype=torch.float64)
        ran = sandblast(method.make_solver(portions), bowl, start, portions, tmp_path / str(count), shards=2)
        # A search may take more evaluations with one than with the other.
        sizes[count] = ran.result["bytes"] / ran.result["round_trips"]
    small, large = sizes.values()
    assert large == pytest.approx(small, rel=0.1)
    assert large < 2000


@pytest.mark.slow
def test_windows_of_the_samples_reach_the_solution_of_all(tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=chance, dtype=torch.float64) * torch.linspace(0.2, 2.0, 12)
    wanted = torch.randn(12, generator=chance, dtype=torch.float64)
    answers = inputs @ wanted + 0.01 * torch.randn(SAMPLES, generator=chance, dtype=torch.float64)

    def squares(point: Tensor, samples: slice) -> Tensor:
        return ((inputs[samples] @ point - answers[samples]) ** 2).mean()

    method = Sandblaster(iterations=40, fraction=0.5, overlap=0.25, tolerance_change=0.0)
    start = torch.zeros(12, dtype=torch.float64)
    ran = sandblast(method.make_solver(PORTIONS), squares, start, PORTIONS, tmp_path, shards=2, replicas=2)
    assert float(squares(start, slice(None))) > 1.0
    assert float(squares(ran.values, slice(None))) < 1e-3
    looked_at = sum(ran.result["taken"].values())  # groups are portions here
    assert looked_at < 0.6 * PORTIONS.count * ran.result["evaluations"]


# One message at a time ------------------------------------------------------------------------------------------------


class ScriptedCoordinator:
    """A coordinator of one shard, whose answers are made up."""

    def __init__(self, folder: Path, shards: int = 1) -> None:
        method = Sandblaster(iterations=3)
        self.log = RecoveryLog(folder / "log", {})
        names = [f"shard-{n}" for n in range(shards)]
        self.coordinator = Coordinator(method.make_solver(Portions(4, 1)), Portions(4, 1), self.log, names)

    def hear(self, sender: str, kind: str, **body: object) -> list[tuple[str, Message]]:
        return self.coordinator.handle(Message(kind, body=body, sender=sender))

    def begin(self) -> list[tuple[str, Message]]:
        (_, message), *_ = self.coordinator.start()
        assert message.kind == "roll back"
        return self.hear("shard-0", "rolled back", epoch=message.body["epoch"])


def kinds(replies: list[tuple[str, Message]]) -> list[tuple[str, str]]:
    return [(peer, message.kind) for peer, message in replies]


def test_a_replica_that_asks_early_waits_for_the_first_batch(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path)
    assert desk.hear("worker-0.0", "ask") == []
    assert kinds(desk.begin()) == [("shard-0", "operate"), ("worker-0.0", "portions")]


def test_a_batch_is_answered_when_all_losses_have_come(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path)
    desk.begin()
    groups = [desk.hear("worker-0.0", "ask")[0][1].body for _ in range(4)]
    assert desk.hear("shard-0", "operated", epoch=1, number=1, partials=[0.0, 2.0, 5.0, 7.0]) == []
    for group in groups[:-1]:
        desk.hear("worker-0.0", "done", **group, losses=[1.0])
    assert desk.log.answers == []
    replies = desk.hear("worker-0.0", "done", **groups[-1], losses=[3.0])
    assert desk.log.answers == [[1.5, 2.0, 5.0, 7.0]]
    assert ("shard-0", "operate") in kinds(replies)


def test_the_portions_of_a_lost_replica_go_to_others(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path)
    desk.begin()
    mine = [desk.hear("worker-0.0", "ask")[0][1].body for _ in range(4)]
    desk.hear("worker-0.0", "done", **mine[0], losses=[1.0])
    desk.hear(LAUNCHER, "lost", names=["worker-0.0"])
    others = [desk.hear("worker-1.0", "ask")[0][1].body for _ in range(4)]
    assert sorted(one["index"] for one in others) == [0, 1, 2, 3]


def test_answers_of_another_epoch_or_of_strangers_are_ignored(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path)
    desk.begin()
    assert desk.hear("shard-0", "operated", epoch=7, number=1, partials=[0.0, 2.0, 5.0, 7.0]) == []
    assert desk.hear("worker-0.0", "operated", epoch=1, number=1, partials=[0.0, 2.0, 5.0, 7.0]) == []
    assert desk.hear("worker-0.0", "shard_replaced", shard=0, name="mine") == []
    assert kinds(desk.coordinator.resend()) == [("shard-0", "operate")]


def test_a_replaced_shard_rolls_all_back_to_the_last_commit(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path)
    desk.begin()
    ((peer, message),) = desk.hear(LAUNCHER, "shard_replaced", shard=0, name="shard-0+1")
    assert (peer, message.kind, message.body) == ("shard-0+1", "roll back", {"epoch": 2, "number": 0})
    assert desk.hear(LAUNCHER, "shard_replaced", shard=0, name="shard-0+1") == []


def test_a_repeated_answer_does_not_count_for_the_next_request(tmp_path: Path) -> None:
    desk = ScriptedCoordinator(tmp_path, shards=2)
    desk.coordinator.start()
    for _ in range(2):
        desk.hear("shard-0", "rolled back", epoch=1)
    assert ("shard-0", "operate") in kinds(desk.hear("shard-1", "rolled back", epoch=1))
    assert desk.hear("shard-0", "rolled back", epoch=1) == []
    assert kinds(desk.coordinator.resend()) == [("shard-0", "operate"), ("shard-1", "operate")]
    assert desk.hear("shard-0", "committed", epoch=1, number=1) == []
    assert kinds(desk.coordinator.resend()) == [("shard-0", "operate"), ("shard-1", "operate")]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("portions", [94, 150, 250])
def test_a_group_lies_within_one_range_of_portions(tmp_path: Path, portions: int) -> None:
    """Windows that go over the end have short ranges."""

    def bowl(point: Tensor, samples: slice) -> Tensor:
        return ((point - 1) ** 2).sum() * (1 + 0.01 * samples.start)

    of = Portions(portions, 1)
    method = Sandblaster(
        iterations=9, fraction=0.5, tolerance_change=0.0, tolerance_grad=0.0, solver="momentum", step=0.01
    )
    start = torch.zeros(3, dtype=torch.float64)
    assert len(sandblast(method.make_solver(of), bowl, start, of, tmp_path).iterations) == 9


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("change", [{"iterations": 3}, {"evaluations": 4}])
def test_the_log_of_another_run_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    run(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, method=msgspec.structs.replace(Sandblaster(iterations=8, l2=1e-3), **change))
    assert caught.value.code == "E812"


@pytest.mark.slow
def test_a_log_is_continued_with_more_iterations(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", method=Sandblaster(iterations=12, l2=1e-3))
    run(tmp_path / "parts", method=Sandblaster(iterations=5, l2=1e-3))
    rest = run(tmp_path / "parts", method=Sandblaster(iterations=12, l2=1e-3))
    assert rest.losses == whole.losses
    assert [one["replayed"] for one in rest.iterations] == [True] * 5 + [False] * (len(whole.losses) - 5)
    assert len(whole.losses) > 7
    assert rest.result["evaluations"] == whole.result["evaluations"]
    assert torch.equal(rest.values, whole.values)
