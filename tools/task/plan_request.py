"""`PlanRequest`: the plan that the user asks for - machines, objective, pins and kinds of candidates."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError

if TYPE_CHECKING:
    from ...partition.cluster.machines import Cluster

DEFAULT_MACHINES = 2  # of `cutset plan`; `cutset train` and `cutset eval` ask for one


@dataclass(frozen=True)
class PlanRequest:
    """What the planner is asked for.

    machines: all of them are used; max_machines: as many of these are used as pay. cluster: the file that describes
    them, of which the fastest are taken, or all where no number is given. The rest is as in `partition.planner`.
    UsageError where `machines` and `max_machines` are both given.
    """

    machines: int | None = None
    max_machines: int | None = None
    cluster: Path | None = None
    candidates: str = ""
    objective: str = "time"
    pins: tuple[str, ...] = ()
    micro_batches: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.machines is not None and self.max_machines is not None:
            raise UsageError("E203", "--machines uses all of them, --max-machines some", fix="give one of the two")

    def load_cluster(self) -> "Cluster":
        """Return the machines to plan for; UsageError or BadInput where there are none such."""
        from ...partition.cluster.cluster_file import load
        from ...partition.cluster.hierarchy import choose_machines, order_machines
        from ...partition.cluster.machines import uniform_cluster

        count = self.machines if self.max_machines is None else self.max_machines
        if self.cluster is None:
            return uniform_cluster(DEFAULT_MACHINES if count is None else count)
        cluster = load(self.cluster)
        cluster = cluster.select(order_machines(cluster))
        if count is None:
            return cluster
        if not 1 <= count <= len(cluster):
            facts = f"{count} machines; {self.cluster} describes {len(cluster)}"
            raise UsageError("E201", facts, fix=f"--machines {len(cluster)}")
        return cluster.select(choose_machines(cluster, count))
