"""Runs that end early leave a checkpoint of what was saved last, whoever ended them, and go on from it."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from busy import stretch

from cutset.tools.job.resume import find_checkpoint
from cutset.tools.unfinished.unfinished_run import UNFINISHED

NORMED = Path(__file__).parents[2] / "chaos/normed_digits.py"
CUTSET = (sys.executable, "-c", "import sys; from cutset.tools.commands.cli import main; sys.exit(main())")
LOCK_STEP = ("--method", "sync", "--replicas", "2", "--epochs", "80")
DOWNPOUR = ("--method", "downpour", "--replicas", "2", "--epochs", "80")
WAIT_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def train(out: Path, *options: str) -> list[str]:
    return [*CUTSET, "train", f"{NORMED}:task", "--no-baseline", "--lr", "0.05", "--out", str(out), *options]


def end_when(command: list[str], is_time: Callable[[], bool], number: signal.Signals) -> tuple[int, str]:
    """Start a run, and end it by a signal when it is time; return its exit code and what it printed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = time.monotonic() + stretch(WAIT_S)
        while not is_time():
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(number)
        printed = run.communicate()[0]
        return run.returncode, printed


def has_point(out: Path) -> Callable[[], bool]:
    """Whether all have saved a recovery point: the next one is begun only then."""
    return lambda: (
        len(list((out / "journal").glob("[0-9]*"))) > 1 or len(list(out.glob("journal/*/w*.safetensors"))) == 4
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lock_step_goes_on_from_a_recovery_point_to_the_same_bits(tmp_path: Path, number: signal.Signals) -> None:
    options = (*LOCK_STEP, "--machines", "2", "--shards", "2")
    subprocess.run(train(tmp_path / "whole", *options), check=True, capture_output=True)
    out = tmp_path / "ended"
    code, printed = end_when(train(out, *options), has_point(out), number)
    assert code == (143 if number == signal.SIGTERM else -number), printed
    assert (number == signal.SIGTERM) == bool(re.search(r"has what was saved last, of step \d+: --resume", printed))
    resumed = subprocess.run(train(out, *options, "--resume", str(out)), capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "Resumed from" in resumed.stdout
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert not (out / UNFINISHED).exists()


def test_downpour_goes_on_from_its_journals_in_another_folder(tmp_path: Path) -> None:
    out = tmp_path / "ended"
    journals = [out / "journal/shard-0.safetensors", out / "buffers-0.0.safetensors"]

    def is_time() -> bool:
        if not all(path.exists() for path in journals):
            return False
        return journals[0].stat().st_mtime > journals[1].stat().st_mtime + 1  # not only the first values

    code, printed = end_when(train(out, *DOWNPOUR), is_time, signal.SIGTERM)
    assert code == 143, printed
    checkpoint = find_checkpoint(out)
    assert checkpoint.manifest.about["step"] > 0
    assert any("running_mean" in name for name in checkpoint.names)
    resumed = subprocess.run(
        train(tmp_path / "resumed", *DOWNPOUR, "--resume", str(out)), capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"Resumed from {out} after {checkpoint.manifest.about['step']} of" in resumed.stdout
