"""A real run whose rate is too large only because its replicas' updates come late."""

from pathlib import Path

from places import USER_MODELS

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.run_config import RunConfig

DELAYED = USER_MODELS / "delayed.py"


def four_late_replicas(out: Path, *, on_divergence: str) -> RunConfig:
    """Each three updates late: steps of 90 % grow without end."""
    return RunConfig(
        f"{DELAYED}:task",
        method=Downpour(),
        optimizer=SGD(0.45),
        out=out,
        replicas=4,
        epochs=4,
        baseline=False,
        on_divergence=on_divergence,
    )
