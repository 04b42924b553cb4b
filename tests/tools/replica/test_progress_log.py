"""What a worker logs is understood by the supervisor."""

from collections.abc import Callable

from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.tools.job.process_specs import TrainingSpec
from cutset.tools.replica.progress_log import ProgressLog, parse_steps_done
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.scores import Scores

TRAINING = TrainingSpec(
    TaskSpec("none"), batch=8, micro_batch=8, seed=0, replicas=2, steps=6, evaluate_every=2, folder="nowhere"
)


def test_steps_done_are_parsed_from_progress() -> None:
    reports = (None, 7, "712 messages", "step 0", "step 41")
    assert [parse_steps_done(progress) for progress in reports] == [0, 0, 0, 1, 42]


def test_heartbeats_have_the_steps_done_except_during_an_evaluation() -> None:
    network, progress = MemoryNetwork(), RoleProgress()
    network.channel(LAUNCHER)
    log = ProgressLog(network.channel("worker-0.0"), progress, TRAINING)
    during = []

    def evaluate() -> Scores:
        during.append(progress.value)
        return Scores(4, 1.5, 2, {"mean": 3.0})

    for step in range(4):
        log.record_step(step, None)
        log.record_evaluation(step, evaluate)
        assert parse_steps_done(progress.value) == step + 1
    assert during == [None] * 4
    scores = {"test_loss": 1.5, "test_accuracy": 0.5, "metrics": {"mean": 3.0}}
    assert [point["samples"] for point in log.curve] == [16, 32, 48, 64]
    assert all(scores.items() <= point.items() for point in log.curve)


def followed(steps: range, reached: Callable[[int], int]) -> list[int]:
    """After which steps a test follows."""
    network = MemoryNetwork()
    network.channel(LAUNCHER)
    log, found = ProgressLog(network.channel("worker-0.0"), RoleProgress(), TRAINING), []
    for step in steps:
        log.record_step(step, None, reached=reached(step))
        if log.is_evaluation_due():
            found.append(step)
            log.record_evaluation(step, lambda: Scores(4, 1.5, None))
    return found


def test_an_evaluation_is_due_every_n_steps_but_not_after_the_last() -> None:
    assert followed(range(6), lambda step: 0) == [1, 3]
    assert followed(range(3, 6), lambda step: 0) == [3]


def test_evaluations_are_due_by_the_batches_of_all_replicas() -> None:
    assert followed(range(12), lambda step: step + 1) == [3, 7]  # it took all of the 12 batches
    assert followed(range(4), lambda step: 3 * (step + 1)) == [1, 2]  # a third of them
    assert followed(range(3, 5), lambda step: (12, 6)[step - 3]) == []  # all others were done before


def test_progress_is_counted_in_samples_and_never_decreases() -> None:
    network = MemoryNetwork()
    launcher = network.channel(LAUNCHER)
    progress = RoleProgress()
    log = ProgressLog(network.channel("worker-0.0"), progress, TRAINING)
    for step, reached in enumerate((7, 3, 12)):
        log.record_step(step, 0.25, reached=reached, acknowledged=step, last=True)
    reports = [launcher.receive(1.0).body for _ in range(3)]
    assert [(body["step"], body["acknowledged"], body["samples"]) for body in reports] == [
        (1, 0, 56),
        (2, 1, 56),
        (3, 2, 96),
    ]
    assert progress.value == "step 2"
    assert log.steps == 3


def test_the_last_evaluation_counts_the_batches_of_all_replicas() -> None:
    network = MemoryNetwork()
    network.channel(LAUNCHER)
    log = ProgressLog(network.channel("worker-0.0"), RoleProgress(), TRAINING)
    log.record_step(0, None, reached=5)
    log.mark_all_trained(12)
    log.record_evaluation(5, lambda: Scores(4, 1.5, 3))
    assert [point["samples"] for point in log.curve] == [96]
