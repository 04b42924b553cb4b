"""What DistBelief claims of its methods (Dean et al., 2012, section 5), as shapes of curves in virtual time.

The net is the small one of the bundled digits; docs/guide/figures.md has the same of MNIST. Each run is of one to three
seconds of CPU.
"""

from functools import lru_cache

import pytest

from cutset.ps.methods.sandblaster import Sandblaster
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.virtual_time.machines import SimulatedMachines
from cutset.tools.virtual_time.replica import SharedModel
from cutset.tools.virtual_time.results import SimulatedRun, SimulationSpec, find_crossing
from cutset.tools.virtual_time.samples import SplitSamples, read_samples_of
from cutset.tools.virtual_time.sandblaster import BatchWork, run_sandblaster, time_iterations
from cutset.tools.virtual_time.virtual_run import VirtualRun

pytestmark = pytest.mark.run
MACHINES = SimulatedMachines(step_s=1.0, spread=0.3, machine_spread=0.1)
EPOCHS, BATCH, GOAL = 12, 20, 0.9


@lru_cache
def make_model() -> tuple[SharedModel, SplitSamples]:
    """The net of the digits, and its samples."""
    task = load_task(TaskSpec("cutset.models:digits"))
    return SharedModel(task, seed=0), read_samples_of(task)


@lru_cache
def simulate(
    method: str, optimizer: str, lr: float, replicas: int = 20, losses: tuple[tuple[float, int], ...] = ()
) -> SimulatedRun:
    """Train over all epochs, whatever the method."""
    model, samples = make_model()
    count = EPOCHS * len(samples.train)
    spec = SimulationSpec(method, optimizer, lr, BATCH, count, replicas, machines=MACHINES, points=20, losses=losses)
    return VirtualRun(spec, model, samples).run()


def end_of(run: SimulatedRun) -> float:
    """The accuracy at the end, 0 where the run diverged."""
    return 0.0 if run.failure else run.points[-1].test_accuracy or 0.0


def test_downpour_with_many_replicas_is_faster_than_one_process() -> None:
    """As the paper has it: "better than a single-replica"; with Adagrad, at a rate for as many replicas."""
    one = simulate("sync", "adagrad", 0.02, replicas=1).seconds_to(GOAL)
    many = simulate("downpour", "adagrad", 0.005).seconds_to(GOAL)
    assert one is not None
    assert many is not None
    assert many < one / 3


def test_adagrad_makes_downpour_stable_and_faster() -> None:
    """Over a range of rates that spans a factor of five Adagrad learns; plain SGD does at none of such a range."""
    adagrad = [simulate("downpour", "adagrad", lr) for lr in (0.002, 0.005, 0.01)]
    plain = [simulate("downpour", "sgd", lr) for lr in (0.01, 0.03, 0.1)]
    assert min(map(end_of, adagrad)) > max(map(end_of, plain))
    assert all(run.seconds_to(GOAL) is not None for run in adagrad)
    assert all(run.seconds_to(GOAL) is None for run in plain)


def test_a_warm_start_helps_where_replicas_would_start_too_fast() -> None:
    """At a rate that suits one process, not twenty; at a lower one it only costs the time of its one replica."""
    cold, warm = simulate("downpour", "adagrad", 0.02), simulate("downpour:warm_start=80", "adagrad", 0.02)
    assert end_of(cold) < GOAL < end_of(warm)
    gently, warmly = simulate("downpour", "adagrad", 0.005), simulate("downpour:warm_start=20", "adagrad", 0.005)
    assert end_of(warmly) == pytest.approx(end_of(gently), abs=0.03)
    assert (warmly.seconds_to(GOAL) or 0) > (gently.seconds_to(GOAL) or 0)


def test_the_loss_of_replicas_changes_nothing_but_the_time() -> None:
    """A quarter of them, for good, early on."""
    all_of_them = simulate("downpour", "adagrad", 0.005)
    fewer = simulate("downpour", "adagrad", 0.005, losses=tuple((10.0, number) for number in range(5)))
    assert end_of(fewer) == pytest.approx(end_of(all_of_them), abs=0.02)
    assert 1.1 < fewer.seconds / all_of_them.seconds < 1.4


def test_sandblaster_scales_best_at_the_largest_number_of_machines() -> None:
    """Few replicas: Downpour is faster. More and more: it ends getting faster, Sandblaster does not."""
    model, samples = make_model()
    scores = run_sandblaster(Sandblaster(iterations=40), model, samples)
    work = BatchWork(len(samples.train), BATCH, model.initial.nbytes)
    batch = {n: find_crossing(time_iterations(scores, work, MACHINES, n), GOAL) for n in (4, 400)}
    downpour = {n: simulate("downpour", "adagrad", 0.005, n).seconds_to(GOAL) for n in (4, 60)}
    assert batch[4] is not None
    assert batch[400] is not None
    assert downpour[4] is not None
    assert batch[4] > downpour[4]
    assert batch[400] < batch[4] / 10
    best = min(seconds for seconds in downpour.values() if seconds is not None)
    assert batch[400] < best


def test_backups_hide_stragglers_in_lock_step() -> None:
    """Chen et al., 2016: with one replica five times slower, waiting for all but one of them is as fast as without."""
    model, samples = make_model()
    slow = SimulatedMachines(step_s=1.0, spread=0.3, stragglers=1, slowdown=5.0)
    count = 2 * len(samples.train)
    specs = [SimulationSpec(f"sync:backups={n}", "adagrad", 0.02, BATCH, count, 8, machines=slow) for n in (0, 1)]
    without, hidden = (VirtualRun(spec, model, samples).run().seconds for spec in specs)
    assert hidden < without / 2
