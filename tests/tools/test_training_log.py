"""What the log of a worker tells is understood by who follows it."""

from cutset.runtime.assignment import LAUNCHER
from cutset.runtime.beacon import Beacon
from cutset.runtime.memory_channel import MemoryNetwork
from cutset.tools.course import Course
from cutset.tools.load import TaskSpec
from cutset.tools.training_log import TrainingLog, steps_done

COURSE = Course(
    TaskSpec("none"), batch=8, micro_batch=8, seed=0, replicas=2, steps=6, evaluate_every=2, initial="nowhere"
)


def test_the_steps_that_a_worker_has_done_follow_from_its_progress() -> None:
    assert [steps_done(progress) for progress in (None, 7, "712 messages", "step 0", "step 41")] == [0, 0, 0, 1, 42]


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


def test_a_test_follows_every_so_many_steps_but_the_last() -> None:
    network = MemoryNetwork()
    network.channel(LAUNCHER)
    log = TrainingLog(network.channel("worker-0.0"), Beacon(), COURSE)
    assert [step for step in range(6) if log.due(step)] == [1, 3]
