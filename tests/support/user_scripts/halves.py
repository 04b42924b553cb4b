"""A net whose first layer has bfloat16 parameters trains for some epochs, without chance."""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cutset


class Widen(nn.Module):
    """From a half to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().float()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()
run = cutset.connect()
torch.manual_seed(0)
inputs = torch.randn(64, 6)
model = nn.Sequential(nn.Linear(6, 8).bfloat16(), Widen(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = DataLoader(TensorDataset(inputs.bfloat16(), inputs[:, :3].argmax(1)), batch_size=8)
model, optimizer, data = run.prepare(model, optimizer, data)
for _ in range(options.epochs):
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
