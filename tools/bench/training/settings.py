"""How each method is run in `cutset bench methods`: its options, its rule and its rate, and how the rate was found.

All train the 784-512-512-10 perceptron on MNIST with batches of 128 by two replicas. A rate that follows from that of
one process was not tuned; for the others single runs of five epochs were made, at the rates that `found` names with the
accuracy that they came to, and one that is within a point of one process was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One row. method, rule: as on the command line. found: how the rate was.

    beside: whether to train one process by the same rule too, where the comparison with plain SGD is not enough.
    """

    name: str
    method: str
    rule: str
    lr: float
    found: str = ""
    beside: bool = False


SAME = "that of one process"
SETTINGS = (
    Setting("downpour", "downpour", "sgd", 0.1, SAME),
    Setting("downpour every 4", "downpour:fetch=4,push=4", "sgd", 0.1, SAME),
    Setting("downpour every 4 overlapped", "downpour:fetch=4,push=4,overlap=true", "sgd", 0.1, SAME),
    Setting("downpour overlapped", "downpour:overlap=true", "sgd", 0.1, SAME),
    Setting("downpour adagrad", "downpour", "adagrad", 0.02, "the default", beside=True),
    Setting("ssp", "ssp:staleness=3", "sgd", 0.1, SAME),
    Setting("dc-asgd-c", "downpour", "dc-asgd-c", 0.1, SAME),
    Setting("dc-asgd-a", "downpour", "dc-asgd-a", 0.1, SAME),
    Setting(
        "adadelay", "downpour", "adadelay:beta=50", 10.0, "with beta 1: 5 (95.8 %), 10 (diverges); 10 with beta 50"
    ),
    Setting("lr / tau", "downpour", "sgd/tau", 0.1, SAME),
    Setting("hogwild", "hogwild", "sgd", 0.1, SAME),
    Setting("sync", "sync", "sgd", 0.2, "twice that of one process: half as many updates, each on twice the batch"),
    Setting("sync with a backup", "sync:backups=1", "sgd", 0.2, "as sync"),
    Setting("allreduce", "allreduce", "sgd", 0.2, "as sync"),
    Setting("averaging", "averaging:every=10", "sgd", 0.2, "0.2 (96.8 %), 0.3 (97.4 %)"),
    Setting("easgd", "easgd:every=4", "sgd", 0.3, "0.2 (95.9 %), 0.3 (96.8 %)"),
    Setting("diloco", "diloco:every=20", "adamw", 0.001, "AdamW's default", beside=True),
    Setting("diloco overlapped", "diloco:every=20,overlap=true", "adamw", 0.001, "as diloco"),
)


def named(names: Sequence[str]) -> tuple[Setting, ...]:
    """Those whose row or whose method has one of these names, all where none is given; UsageError for others."""
    known = {name: None for setting in SETTINGS for name in (setting.name, setting.method.partition(":")[0])}
    unknown = [name for name in names if name not in known]
    if unknown:
        facts = f"--only {unknown[0]}; there are {', '.join(known)}"
        raise UsageError("E286", facts, fix=f"--only {SETTINGS[0].name}")
    return tuple(s for s in SETTINGS if not names or {s.name, s.method.partition(":")[0]} & set(names))
