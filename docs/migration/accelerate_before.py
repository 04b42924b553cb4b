"""Trains a classifier by accelerate: `accelerate launch accelerate_before.py`."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(1)
train, test = TensorDataset(inputs[:1600], targets[:1600]), (inputs[1600:], targets[1600:])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.3)
loader = DataLoader(train, batch_size=20, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

for epoch in range(8):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    schedule.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")

accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
accelerator.print(f"accuracy {accuracy:.3f}")
