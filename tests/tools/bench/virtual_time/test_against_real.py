"""Runs in virtual time agree with runs of processes, whose steps take the same times."""

import pytest
from marking import with_slow

from cutset.tools.bench.virtual_time.against_real import ComparedMethod, ComparedSetting, Comparer, tabulate
from cutset.tools.task.load_task import TaskSpec

TASK = TaskSpec("cutset.models:digits_local")
UNEVEN = ComparedSetting("3 replicas, one 2 x slower", 3, 0.3, 2.0)
METHODS = with_slow(
    [ComparedMethod("downpour", "adagrad", 0.02, 150)],
    [
        ComparedMethod("ssp:staleness=2", "adagrad", 0.02, 150),
        ComparedMethod("sync", "adagrad", 0.03, 240),
        ComparedMethod("averaging:every=5", "adagrad", 0.03, 240),
    ],
)


@pytest.fixture(scope="module")
def comparer() -> Comparer:
    return Comparer(TASK, step_s=0.05, batch=20, seeds=2)


@pytest.mark.run
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
def test_staleness_and_the_time_to_an_accuracy_are_those_of_processes(
    comparer: Comparer, method: ComparedMethod
) -> None:
    """A busy machine delays processes by much of these few seconds; `cutset bench against-real` says more."""
    result = comparer.compare(UNEVEN, method)
    assert len(result.real) == len(result.simulated) == 2
    assert [sum(run.steps) for run in result.real] == [sum(run.steps) for run in result.simulated]
    real, simulated = result.staleness
    assert simulated == pytest.approx(real, rel=0.1, abs=0.05)
    assert result.overlap > 0.7
    real_s, simulated_s = result.to_accuracy
    one_s, other_s = (run.seconds_to(0.9) for run in result.real)
    assert one_s is not None
    assert other_s is not None
    assert real_s == pytest.approx((one_s + other_s) / 2)
    assert result.between_seeds == pytest.approx(abs(one_s - other_s) / real_s)
    assert simulated_s == pytest.approx(real_s, rel=0.5)
    assert tabulate([result]).format_cells()[0][1] == method.method
