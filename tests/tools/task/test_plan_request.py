"""The machines that a plan has chosen are found again in their file, in the plan's order."""

from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.task.plan_request import DESKTOP, PlanRequest

CLUSTER = """
[network]
bandwidth = "1 Gbit/s"
latency = "50 us"
"""
MACHINE = """
[[machine]]
name = "{name}"
flops = "{flops} GFLOP/s"
memory = "{memory} GB"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The fastest machine has the least memory."""
    path = tmp_path / "cluster.toml"
    machines = (("quick", 9, 1), ("large", 3, 64), ("larger", 2, 128))
    path.write_text(CLUSTER + "".join(MACHINE.format(name=n, flops=f, memory=m) for n, f, m in machines))
    return path


def test_not_the_fastest_but_those_of_the_plan(cluster: Path) -> None:
    request = PlanRequest(cluster=cluster, machines=2)
    assert [machine.name for machine in request.load_cluster().machines] == ["quick", "large"]
    planned = request.load_planned(["larger", "large"])
    assert [machine.flops_per_s for machine in planned.machines] == [2e9, 3e9]


def test_a_file_of_other_machines_is_refused(cluster: Path) -> None:
    with pytest.raises(UsageError, match="describes no machine 'gone'"):
        PlanRequest(cluster=cluster).load_planned(["quick", "gone"])


def test_processes_and_desktops_go_by_their_number() -> None:
    assert len(PlanRequest(cluster=DESKTOP, max_machines=9).load_planned(["one", "two", "three"])) == 3
