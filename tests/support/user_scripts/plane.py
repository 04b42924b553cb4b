"""A plane is fitted with AdamW, without chance: by torch alone up to a step, or as a replica."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cutset

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()
run = cutset.connect()
torch.manual_seed(0)
inputs = torch.randn(32, 5, dtype=torch.float64)
targets = inputs.sum(1)
model = nn.Linear(5, 1, dtype=torch.float64)
optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.05)
data = DataLoader(TensorDataset(inputs, targets), batch_size=4)
model, optimizer, data = run.prepare(model, optimizer, data)
for _ in range(options.epochs):
    for x, y in data:
        optimizer.zero_grad()
        (model(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
run.finish()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, options.out)
