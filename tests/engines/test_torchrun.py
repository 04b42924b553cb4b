"""Runs whose processes a real torchrun has started."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cutset
from command_line import cutset as cutset
from engine_runs import LOCK_STEP, read_weights, train_here

CUTSET = "import sys; from cutset.tools.commands.cli import main; sys.exit(main())"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--no-python", sys.executable)
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("with_key", [False, True], ids=["one machine", "key file"])
def test_a_run_of_three_processes(tmp_path: Path, cutset: Cutset, with_key: bool) -> None:
    expected = train_here(cutset, tmp_path)
    engine = "env"
    if with_key:
        assert cutset("host", "--new-key", tmp_path / "key").code == 0
        engine = f"env:{tmp_path / 'key'}"
    command = [*TORCHRUN, "-c", CUTSET, *LOCK_STEP, "--on", engine, "--out", str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_weights(tmp_path / "there") == expected
