"""`PlanRequest`: the plan that the user asks for - machines, objective, pins and kinds of candidates."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError

if TYPE_CHECKING:
    from ...partition.cluster.machines import Cluster
    from ...partition.ir.graph import Graph

DEFAULT_MACHINES = 2  # of `cutset plan`; `cutset train` and `cutset eval` ask for one
HERE = "here"  # processes of this machine, which share its cores, as measured
DESKTOP = "desktop"  # machines like a desktop's core on gigabit Ethernet, by constants that never change
DEFAULT_VARIABLE = "CUTSET_CLUSTER"  # of the environment: what to plan for where no cluster is named


@dataclass(frozen=True)
class PlanRequest:
    """What the planner is asked for.

    machines: all of them are used; max_machines: as many of these are used as pay. cluster: the file that describes
    them, of which the fastest are taken, or all where no number is given; HERE or DESKTOP; None for what the
    environment says, which is HERE where it says nothing. replicas: that compute side by side HERE. The rest is as in
    `partition.planner`. UsageError where `machines` and `max_machines` are both given.
    """

    machines: int | None = None
    max_machines: int | None = None
    cluster: Path | str | None = None
    candidates: str = ""
    objective: str = "time"
    pins: tuple[str, ...] = ()
    micro_batches: int = 1
    seed: int = 0
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.machines is not None and self.max_machines is not None:
            raise UsageError("E203", "--machines uses all of them, --max-machines some", fix="give one of the two")

    @property
    def source(self) -> str:
        """What to plan for: HERE, DESKTOP or the path of a cluster file."""
        return str(self.cluster or os.environ.get(DEFAULT_VARIABLE) or HERE)

    @property
    def count(self) -> int:
        """How many machines to plan for, where no file says it."""
        count = self.machines if self.max_machines is None else self.max_machines
        return DEFAULT_MACHINES if count is None else count

    @property
    def processes(self) -> int:
        """How many processes share the cores of this machine, where the plan is for these."""
        return self.count * self.replicas

    def load_planned(self, names: Sequence[str]) -> "Cluster":
        """Return the machines that a plan has chosen, by their names there. UsageError where a file has others."""
        count = len(names) if self.source in (HERE, DESKTOP) else None
        cluster = replace(self, machines=count, max_machines=None).load_cluster()
        if count is not None:
            return cluster
        numbers = {machine.name: number for number, machine in enumerate(cluster.machines)}
        missing = next((name for name in names if name not in numbers), None)
        if missing is not None:
            facts = f"{self.source} describes no machine {missing!r}, which the plan has"
            raise UsageError("E201", facts, fix="the cluster file of the plan")
        return cluster.select([numbers[name] for name in names])

    def load_cluster(self, *, task: str = "", unrolled: str = "", graph: "Graph | None" = None) -> "Cluster":
        """Return the machines to plan for; UsageError or BadInput where there are none such.

        HERE, they have the constants that are saved of this machine, or where none are, those of DESKTOP. task: the
        digest of the graph to plan, unrolled: of its unrolled form, so that what was measured of these is used. graph:
        of the whole model; where the fastest machines of a file have no room for it, those that have are taken.
        """
        from ...partition.cluster.cluster_file import load
        from ...partition.cluster.hierarchy import (
            choose_large_machines,
            choose_machines,
            have_room,
            order_machines,
        )
        from ...partition.cluster.machines import uniform_cluster
        from ...partition.dataflow.memory_model import uncut_memory
        from ..measured.saved_probe import make_key, read_saved_probe

        source = self.source
        if source in (HERE, DESKTOP):
            constants = uniform_cluster(self.count)  # UsageError for a number that cannot be
            saved = read_saved_probe(make_key(self.processes))[0] if source == HERE else None
            if saved is None:
                return constants
            return saved.make_cluster(self.count, self.replicas, task=task, unrolled=unrolled or task)
        cluster = load(source)
        cluster = cluster.select(order_machines(cluster))
        if self.machines is None and self.max_machines is None:
            return cluster
        if not 1 <= self.count <= len(cluster):
            facts = f"{self.count} machines; {source} describes {len(cluster)}"
            raise UsageError("E201", facts, fix=f"--machines {len(cluster)}")
        fastest = cluster.select(choose_machines(cluster, self.count))
        if graph is None or self.count == len(cluster) or have_room(fastest, needed := uncut_memory(graph)):
            return fastest
        return cluster.select(choose_large_machines(cluster, self.count, needed))
