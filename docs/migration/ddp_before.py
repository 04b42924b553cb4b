"""Trains a classifier by DistributedDataParallel: `torchrun --nproc-per-node 2 ddp_before.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(1)
train, test = TensorDataset(inputs[:1600], targets[:1600]), (inputs[1600:], targets[1600:])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.3)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=20, sampler=sampler)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}")

accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f}")
dist.destroy_process_group()
