"""How `cutset bench methods` runs each method: its options, its optimizer, its rate, and how the rate was found.

All train the 784-512-512-10 perceptron on MNIST with batches of 128 and two replicas. A rate that follows from that of
one process was not tuned; batch methods have none. For the others, `tuning` names the rates that were tried in single
runs of five epochs, with the accuracies reached; one that is within a point of one process was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import UsageError


@dataclass(frozen=True)
class MethodSetting:
    """One row of the table. method, optimizer: as on the command line. tuning: how the rate was found.

    optimizer: "" of a batch method, which takes passes over all samples, not epochs of batches, and ends by itself.
    baseline: whether to train one process by the same optimizer, too, if comparing with plain SGD is not enough.
    """

    name: str
    method: str
    optimizer: str = ""
    lr: float = 0.0
    tuning: str = ""
    baseline: bool = False


SAME = "that of one process"
SETTINGS = (
    MethodSetting("downpour", "downpour", "sgd", 0.1, SAME),
    MethodSetting("downpour every 4", "downpour:fetch=4,push=4", "sgd", 0.1, SAME),
    MethodSetting("downpour every 4 overlapped", "downpour:fetch=4,push=4,overlap=true", "sgd", 0.1, SAME),
    MethodSetting("downpour overlapped", "downpour:overlap=true", "sgd", 0.1, SAME),
    MethodSetting("downpour adagrad", "downpour", "adagrad", 0.02, "the default", baseline=True),
    MethodSetting("ssp", "ssp:staleness=3", "sgd", 0.1, SAME),
    MethodSetting("dc-asgd-c", "downpour", "dc-asgd-c", 0.1, SAME),
    MethodSetting("dc-asgd-a", "downpour", "dc-asgd-a", 0.1, SAME),
    MethodSetting(
        "adadelay", "downpour", "adadelay:beta=50", 10.0, "with beta 1: 5 (95.8 %), 10 (diverges); 10 with beta 50"
    ),
    MethodSetting("lr / tau", "downpour", "sgd/tau", 0.1, SAME),
    MethodSetting("hogwild", "hogwild", "sgd", 0.1, SAME),
    MethodSetting(
        "sync", "sync", "sgd", 0.2, "twice that of one process: half as many updates, each on twice the batch"
    ),
    MethodSetting("sync with a backup", "sync:backups=1", "sgd", 0.2, "as sync"),
    MethodSetting("allreduce", "allreduce", "sgd", 0.2, "as sync"),
    MethodSetting("averaging", "averaging:every=10", "sgd", 0.2, "0.2 (96.8 %), 0.3 (97.4 %)"),
    MethodSetting("easgd", "easgd:every=4", "sgd", 0.3, "0.2 (95.9 %), 0.3 (96.8 %)"),
    MethodSetting("diloco", "diloco:every=20", "adamw", 0.001, "AdamW's default", baseline=True),
    MethodSetting("diloco overlapped", "diloco:every=20,overlap=true", "adamw", 0.001, "as diloco"),
    MethodSetting("sandblaster", "sandblaster:iterations=60"),
    MethodSetting("OWL-QN", "sandblaster:iterations=60,l1=1e-05"),
    MethodSetting("conjugate gradients", "sandblaster:solver=cg,iterations=60"),
)


def find_settings(names: Sequence[str]) -> tuple[MethodSetting, ...]:
    """Return the settings with one of these names or of one of these methods; all settings if there are no names.

    Raises UsageError (E286) for a name of neither.
    """
    known = {name: None for setting in SETTINGS for name in (setting.name, setting.method.partition(":")[0])}
    unknown = [name for name in names if name not in known]
    if unknown:
        facts = f"--methods {unknown[0]}; there are {', '.join(known)}"
        raise UsageError("E286", facts, fix=f"--methods {SETTINGS[0].name}")
    return tuple(s for s in SETTINGS if not names or {s.name, s.method.partition(":")[0]} & set(names))
