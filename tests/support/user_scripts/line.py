"""A straight line is fitted by a loop of its own; what it saw and did is written beside it."""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cutset

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--count", type=int, default=64)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--leaves", type=int, default=-1)
parser.add_argument("--fault", choices=("none", "kill", "raise", "exit", "twice", "nothing", "nan"), default="none")
parser.add_argument("--replica", type=int, default=1)
parser.add_argument("--at", type=int, default=9)
options = parser.parse_args()

run = cutset.connect()
torch.manual_seed(0)
inputs = torch.randn(options.count, 5, dtype=torch.float64)
targets = inputs @ torch.arange(5.0, dtype=torch.float64)
model = nn.Linear(5, 1, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
numbered = TensorDataset(torch.arange(options.count), inputs, targets)
data = DataLoader(numbered, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
if options.fault != "nothing":
    model, optimizer, data, schedule = run.prepare(model, optimizer, data, schedule)
if options.fault == "twice":
    run.prepare(model, optimizer)
seen, rates = list[int](), list[float]()
steps = run.start_step
first = options.folder / f"replica-{run.replica}.json"
for _ in range(options.epochs):
    for place, (numbers, x, y) in enumerate(data):
        if place == options.leaves:
            break
        seen += numbers.tolist()
        loss = (model(x)[:, 0] - y).square().mean() / options.accumulate
        if options.fault == "nan" and steps == options.at:
            loss = loss * float("nan")
        loss.backward()
        if (place + 1) % options.accumulate:
            continue
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        steps += 1
        if options.fault != "none" and run.replica == options.replica and steps == options.at and not first.exists():
            first.write_text(json.dumps({"seen": seen, "rates": rates}))
            if options.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if options.fault == "exit":
                raise SystemExit(3)
            if options.fault == "raise":
                raise ValueError("no more patience")
run.finish()
name = options.folder / f"replica-{run.replica}{'-later' if first.exists() else ''}.json"
weights = [float(w) for w in model.weight.detach()[0]]
name.write_text(json.dumps({"seen": seen, "rates": rates, "weights": weights, "start": run.start_step, "steps": steps}))
run.report(distance=(model.weight.detach()[0] - torch.arange(5.0)).norm())
print(f"{len(seen)} samples seen, {run}")
