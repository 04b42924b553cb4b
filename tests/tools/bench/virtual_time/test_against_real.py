"""Runs in virtual time agree with runs of processes, whose steps take the same times."""

import pytest

from cutset.tools.bench.virtual_time.against_real import ComparedMethod, ComparedSetting, Comparer, tabulate
from cutset.tools.task.load_task import TaskSpec

TASK = TaskSpec("cutset.models:digits_local")
UNEVEN = ComparedSetting("3 replicas, one 2 x slower", 3, 0.3, 2.0)
METHODS = [
    ComparedMethod("downpour", "adagrad", 0.02, 150),
    ComparedMethod("ssp:staleness=2", "adagrad", 0.02, 150),
    ComparedMethod("sync", "adagrad", 0.03, 240),
    ComparedMethod("averaging:every=5", "adagrad", 0.03, 240),
]


@pytest.mark.run
def test_staleness_and_the_time_to_an_accuracy_are_those_of_processes() -> None:
    """A busy machine delays processes by much of these few seconds; `cutset bench against-real` says more."""
    comparer = Comparer(TASK, step_s=0.05, batch=20)
    results = [comparer.compare(UNEVEN, method) for method in METHODS]
    for result in results:
        real, simulated = result.staleness
        assert simulated == pytest.approx(real, rel=0.1, abs=0.05), result.method
        assert result.overlap > 0.7, result.method
        real_s, simulated_s = result.to_accuracy
        assert real_s is not None, result.method
        assert simulated_s == pytest.approx(real_s, rel=0.5), result.method
    assert [cells[1] for cells in tabulate(results).format_cells()] == [method.method for method in METHODS]
