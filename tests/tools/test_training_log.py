"""What the log of a worker tells is understood by who follows it."""

from collections.abc import Callable

from cutset.runtime.launcher.assignment import LAUNCHER
from cutset.runtime.launcher.heartbeat import Beacon
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.tools.job.run_config import Course
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.training.progress_log import TrainingLog, steps_done, steps_settled

COURSE = Course(
    TaskSpec("none"), batch=8, micro_batch=8, seed=0, replicas=2, steps=6, evaluate_every=2, initial="nowhere"
)


def test_the_steps_that_a_worker_has_done_follow_from_its_progress() -> None:
    told = (None, 7, "712 messages", "step 0", "step 41", "step 41, settled 38")
    assert [steps_done(progress) for progress in told] == [0, 0, 0, 1, 42, 42]
    assert [steps_settled(progress) for progress in told] == [0, 0, 0, 0, 0, 38]


def test_the_beacon_tells_the_steps_that_were_made_but_not_while_a_test_takes_long() -> None:
    network, beacon = MemoryNetwork(), Beacon()
    network.channel(LAUNCHER)
    log = TrainingLog(network.channel("worker-0.0"), beacon, COURSE)
    during = []

    def share() -> float:
        during.append(beacon.progress)
        return 0.5

    for step in range(4):
        log.step(step, None)
        log.test(step, share)
        assert steps_done(beacon.progress) == step + 1
    assert during == [None] * 4
    assert [(point["samples"], point["test_accuracy"]) for point in log.curve] == [(16 * n, 0.5) for n in (1, 2, 3, 4)]


def followed(steps: range, reached: Callable[[int], int]) -> list[int]:
    """After which steps a test follows."""
    network = MemoryNetwork()
    network.channel(LAUNCHER)
    log, found = TrainingLog(network.channel("worker-0.0"), Beacon(), COURSE), []
    for step in steps:
        log.step(step, None, reached=reached(step))
        if log.due():
            found.append(step)
            log.test(step, lambda: 0.5)
    return found


def test_a_test_follows_every_so_many_steps_but_the_last() -> None:
    assert followed(range(6), lambda step: 0) == [1, 3]
    assert followed(range(3, 6), lambda step: 0) == [3]


def test_tests_follow_what_all_replicas_have_come_to() -> None:
    assert followed(range(12), lambda step: step + 1) == [3, 7]  # it took all of the 12 batches
    assert followed(range(4), lambda step: 3 * (step + 1)) == [1, 2]  # a third of them
    assert followed(range(3, 5), lambda step: (12, 6)[step - 3]) == []  # all others were done before


def test_what_was_reached_is_counted_in_samples_and_never_less() -> None:
    network = MemoryNetwork()
    launcher = network.channel(LAUNCHER)
    log = TrainingLog(network.channel("worker-0.0"), Beacon(), COURSE)
    for step, reached in enumerate((7, 3, 12)):
        log.step(step, 0.25, reached=reached, settled=step, last=True)
    told = [launcher.receive(1.0).body for _ in range(3)]
    assert [(body["step"], body["settled"], body["samples"]) for body in told] == [(1, 0, 56), (2, 1, 56), (3, 2, 96)]
    assert log.beacon.progress == "step 2, settled 2"
    assert log.steps == 3


def test_the_last_test_counts_what_all_replicas_did() -> None:
    network = MemoryNetwork()
    network.channel(LAUNCHER)
    log = TrainingLog(network.channel("worker-0.0"), Beacon(), COURSE)
    log.step(0, None, reached=5)
    log.all_trained()
    log.test(5, lambda: 0.75)
    assert [point["samples"] for point in log.curve] == [96]
