"""A real run whose rate is too large only because its replicas' updates come late."""

from pathlib import Path

from cutset.ps.downpour import Downpour
from cutset.ps.gradient_rules import SGD
from cutset.tools.load import TaskSpec
from cutset.tools.prepare import Options

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
