"""The standing pairs of `cutset bench plan --measure`: models, and the clusters that they are cut over.

A cluster is processes of this host, or network name spaces of it, whose links are limited to a rate. Both share its
cores.
"""

from dataclasses import dataclass

from ...task.load_task import TaskSpec

BUNDLED, OWN = "cutset.models:", "cutset.tools.bench.cluster.standing_models:"


@dataclass(frozen=True)
class StandingPair:
    """A model and a cluster of so many machines. rate: of each machine's link, such as "1gbit"; "" for processes."""

    model: str
    machines: int
    rate: str = ""
    micro_batches: int = 1
    batch: int | None = None

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return TaskSpec(self.model, batch=self.batch)

    @property
    def cluster(self) -> str:
        """The cluster in words."""
        return f"{self.machines} at {self.rate}" if self.rate else f"{self.machines} processes"


STANDING_PAIRS = (
    StandingPair(f"{BUNDLED}digits", 2),
    StandingPair(f"{BUNDLED}digits_large", 2),
    StandingPair(f"{BUNDLED}mnist", 2, batch=200),
    StandingPair(f"{BUNDLED}mnist_conv", 2),
    StandingPair(f"{BUNDLED}transformer", 2),
    StandingPair(f"{BUNDLED}speech(hidden=1024)", 2),
    StandingPair(f"{OWN}mlp", 2, micro_batches=4),
    StandingPair(f"{OWN}convnet", 2),
    StandingPair(f"{OWN}local_net", 2),
    StandingPair(f"{OWN}recurrent(kind='LSTM')", 2),
    StandingPair(f"{OWN}recurrent(kind='GRU')", 2, micro_batches=2),
    StandingPair(f"{OWN}mixture", 2),
    StandingPair(f"{OWN}mlp(width=2048)", 3),
    StandingPair(f"{BUNDLED}digits_large", 4),
    StandingPair(f"{BUNDLED}transformer(layers=2, width=256)", 4),
    StandingPair(f"{OWN}convnet", 2, "1gbit"),
    StandingPair(f"{OWN}mlp(width=2048)", 2, "300mbit"),
    StandingPair(f"{OWN}local_net", 3, "100mbit"),
    StandingPair(f"{BUNDLED}transformer", 2, "1gbit"),
    StandingPair(f"{OWN}recurrent(kind='GRU', layers=4)", 4, "100mbit", micro_batches=4),
)
