"""A real run whose rate is too large only because its replicas' updates come late."""

from pathlib import Path

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.job.prepare import Options

DELAYED = Path(__file__).parents[1] / "tools" / "user_models" / "delayed.py"


def four_late_replicas(out: Path, *, on_divergence: str) -> Options:
    """Each three updates late: steps of 90 % grow without end."""
    return Options(
        TaskSpec(f"{DELAYED}:task"),
        Downpour(),
        SGD(0.45),
        out,
        replicas=4,
        epochs=4,
        baseline=False,
        on_divergence=on_divergence,
    )
