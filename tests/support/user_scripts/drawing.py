"""A loop over steps that takes its batches by `next`; what it saw is written beside it."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cutset

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--by", choices=("generator", "iterator"), default="generator")
options = parser.parse_args()


def repeat(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


run = cutset.connect()
torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.arange(20)), batch_size=2, shuffle=True)
model, optimizer, data = run.prepare(model, optimizer, data)
draws, seen = repeat(data) if options.by == "generator" else iter(data), list[int]()
for _ in range(run.start_step, options.steps):
    try:
        (numbers,) = next(draws)
    except StopIteration:
        draws = iter(data)
        (numbers,) = next(draws)
    seen += numbers.tolist()
    model(numbers[:, None] / 20).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
(options.folder / f"replica-{run.replica}.json").write_text(json.dumps({"seen": seen, "start": run.start_step}))
