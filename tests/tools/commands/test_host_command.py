"""`cutset host` makes keys and joins; `cutset train --on join:KEY` waits for it."""

import threading
from pathlib import Path

import pytest
from busy import stretch
from command_line import USAGE, Cutset
from command_line import cutset as cutset
from places import USER_MODELS

from cutset.runtime.joining.join import join
from cutset.runtime.joining.join_key import read_join_key


@pytest.mark.slow
def test_a_machine_joins_a_run(tmp_path: Path, cutset: Cutset) -> None:
    key = tmp_path / "run.key"
    made = cutset("host", "--new-key", key, "--listen", "127.0.0.1:47961")
    assert (made.code, made.out) == (0, f"{key}: for 10 minutes, at 127.0.0.1:47961\n")
    machine = threading.Thread(target=join, args=("tcp://127.0.0.1:47961", read_join_key(key).make_pass(0)))
    machine.start()
    task = f"{USER_MODELS / 'good.py'}:task"
    outcome = cutset("train", task, "--no-baseline", "--on", f"join:{key}", "--out", tmp_path / "run")
    machine.join(stretch(30.0))
    assert not machine.is_alive()
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run/model.safetensors").exists()


def test_what_it_needs_is_said(tmp_path: Path, cutset: Cutset) -> None:
    key = tmp_path / "run.key"
    assert cutset("host").code == USAGE
    assert cutset("host", "--new-key", key, "--listen", "127.0.0.1:port").code == USAGE
    assert cutset("host", "--join", "127.0.0.1", "--key", key).code == USAGE
    assert not key.exists()
