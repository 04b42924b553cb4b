"""Every sample is counted once in an epoch, though replicas and shards are killed: the model counts them itself."""

import random
import signal
from pathlib import Path

import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from train_with_faults import Signal, train_with_faults

from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.run_config import RunConfig

COUNTING = USER_MODELS / "counting.py"
COUNT, EPOCHS = 1000, 3
METHODS = ["downpour", "ssp:staleness=2", "downpour:push=3,fetch=2", "downpour:overlap=true"]


def train(out: Path, factory: str, seed: int, method: str) -> torch.Tensor:
    """Return how often each sample was counted in a run in which replicas and shards are killed at random steps."""
    chance = random.Random(seed)
    options = RunConfig(
        task=f"{COUNTING}:{factory}",
        method=parse_method(method),
        optimizer=SGD(1.0),
        replicas=3,
        shards=2,
        epochs=EPOCHS,
        restarts=5,
        baseline=False,
        out=out,
    )
    roles = ["worker-0.0", "worker-1.0", "worker-2.0", "shard-0"]
    victims = [*chance.sample(roles, chance.randrange(1, 4)), "worker-1.0"]
    faults = [Signal(role, signal.SIGKILL, chance.randrange(10, 600)) for role in victims]
    faults = sorted(faults, key=lambda fault: fault.step)
    outcome = train_with_faults(options, faults)
    assert outcome.error is None, outcome.error
    assert len(outcome.happened) >= 1
    return load_file(out / "model.safetensors")["weight"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow([0], range(1, 12)))
def test_every_sample_is_counted_once_though_replicas_are_killed(tmp_path: Path, seed: int) -> None:
    counts = train(tmp_path, f"numbered(count={COUNT})", seed, METHODS[seed % len(METHODS)])
    assert counts.tolist() == [EPOCHS] * COUNT


STREAMS = ["unsized", "in_files", "undivided", "loaded"]


@pytest.mark.run
@pytest.mark.parametrize("seed", with_slow([0], range(1, 12)))
def test_every_sample_of_a_stream_is_counted_once_though_replicas_are_killed(tmp_path: Path, seed: int) -> None:
    factory, method = STREAMS[seed % len(STREAMS)], METHODS[seed // 3 % len(METHODS)]
    counts = train(tmp_path, f"{factory}(count={COUNT})", seed, method)
    assert counts.tolist() == [EPOCHS] * COUNT
