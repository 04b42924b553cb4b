"""A net whose weights and biases have schedules of their own; each replica takes its share of every batch of 16.

Prints what was trained. Launched by nobody, it is a plain loop of torch.
"""

import json

import torch
from torch import nn

import cutset

torch.manual_seed(0)
inputs = torch.randn(64, 5, dtype=torch.float64)
targets = inputs @ torch.arange(5.0, dtype=torch.float64)
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
weights, biases = ([p for p in net.parameters() if (p.dim() > 1) == wide] for wide in (True, False))
own = torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}], lr=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(own, [lambda step: 1 / (1 + step / 10), lambda step: 0.9**step])

run = cutset.connect()
model, optimizer = run.prepare(net, own)
for step in range(20):
    rows = slice(16 * (step % 4) + run.replica, 16 * (step % 4 + 1), run.replicas)
    optimizer.zero_grad()
    (model(inputs[rows])[:, 0] - targets[rows]).square().mean().backward()
    optimizer.step()
    schedule.step()
run.finish()
if run.is_main:
    print(json.dumps([value.item() for parameter in model.parameters() for value in parameter.flatten()]))
