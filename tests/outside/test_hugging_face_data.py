"""Datasets of Hugging Face, by number and as streams of local files, train on one replica and on two."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cutset
from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.part_samples import PartSamples
from cutset.tools.samples.read_samples import read_samples
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed: make test-outside has it")
pytestmark = pytest.mark.light
SHARDS, ROWS = 4, 40
TASK = """
import datasets, torch, cutset
from pathlib import Path

def task(*, streaming: bool = False) -> cutset.Task:
    def data(split):
        folder = Path(__file__).parent
        files = {one: sorted(map(str, folder.glob(f"{one}-*.jsonl"))) for one in ("train", "test")}
        cache = str(folder / "cache")
        return datasets.load_dataset(
            "json", data_files=files, split=split, streaming=streaming, cache_dir=cache
        ).with_format("torch")

    return cutset.Task(
        "hugging", lambda: torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy, data=data, batch=8, samples=160,
        unpack=lambda batch: cutset.Data((batch["values"],), (batch["label"],)),
    )
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task over files of lines, whose label is the largest of the first values."""
    folder, generator = tmp_path_factory.mktemp("files"), torch.Generator().manual_seed(0)
    for split, shards in (("train", SHARDS), ("test", 1)):
        for shard in range(shards):
            rows = torch.randn(ROWS, 6, generator=generator)
            lines = [json.dumps({"values": row.tolist(), "label": int(row[:3].argmax())}) for row in rows]
            (folder / f"{split}-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "hugging.py").write_text(TASK)
    return folder / "hugging.py"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(file.parent.glob("train-*")) for line in path.read_text().splitlines()]


def test_shards_are_parts_and_hold_every_sample_once(file: Path) -> None:
    stream = read_samples(load_task(TaskSpec(f"{file}:task(streaming=True)")), "train")
    assert isinstance(stream, PartSamples)
    assert (stream.parts, stream.is_divided) == (SHARDS, True)
    found = Counter[tuple[float, ...]]()
    for part in range(stream.parts):
        with stream.reading(part):
            found.update(tuple(sample["values"].tolist()) for sample in stream.samples(part))
    expected = torch.tensor([one["values"] for one in lines(file)])
    assert found == Counter(tuple(row) for row in expected.tolist())


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_train_on_them(tmp_path: Path, file: Path, replicas: int, streaming: bool) -> None:
    name, method = f"{file}:task(streaming={streaming})", parse_method("downpour")
    config = RunConfig(name, method=method, replicas=replicas, epochs=3, lr=0.1, baseline=False, out=tmp_path / "run")
    row = run(prepare(config))["rows"][-1]
    assert row["samples"] == 3 * SHARDS * ROWS
    tests = [json.loads(line) for line in (file.parent / "test-0.jsonl").read_text().splitlines()]
    model = nn.Linear(6, 3)
    model.load_state_dict(cutset.load_checkpoint(tmp_path / "run" / "checkpoint"))
    with torch.no_grad():
        outputs = model(torch.tensor([one["values"] for one in tests]))
    loss = nn.functional.cross_entropy(outputs, torch.tensor([one["label"] for one in tests]))
    assert row["test_loss"] == pytest.approx(float(loss), rel=1e-5)
